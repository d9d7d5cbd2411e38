// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* A preloaded object like many others: it wraps a function of the C library, and the second one wraps dlsym too. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#define CAT2(a, b, c) a##b##c
#define CAT(a, b, c) CAT2(a, b, c)
#define EXPORT __attribute__((visibility("default")))

static int calls, depth;

int CAT(wrap_, WRAP, _calls)(void);
EXPORT int CAT(wrap_, WRAP, _calls)(void)
{
	return calls;
}

EXPORT pid_t getppid(void)
{
	pid_t (*next)(void) = (pid_t(*)(void))dlsym(RTLD_NEXT, "getppid");
	pid_t p;

	calls++;
	if (!next || ++depth > 4)
		abort(); /* RTLD_NEXT led back here */
	p = next();
	depth--;
	return p;
}

#ifdef WRAP_DLSYM
static int dlsym_calls;

int CAT(wrap_, WRAP, _dlsym_calls)(void);
EXPORT int CAT(wrap_, WRAP, _dlsym_calls)(void)
{
	return dlsym_calls;
}

EXPORT void *dlsym(void *handle, const char *name)
{
	static void *(*real)(void *, const char *);

	if (!real)
		real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", WRAP_DLSYM);
	dlsym_calls++;
	if (!real)
		abort();
	return real(handle, name);
}
#endif

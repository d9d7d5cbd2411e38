// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * dlsym, dlvsym and dlopen. The C library finds their caller by the return address: RTLD_NEXT, RTLD_DEFAULT, namespaces and
 * RUNPATHs depend on it. So whatever is not ours must leave by a jump, not by a call: this file is always compiled at a
 * fixed -O2 without sanitizers, coverage or the builder's CFLAGS, and a test reads its disassembly.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdatomic.h>

#include "symtab.h"
#include "stub.h"

#if defined(__has_attribute)
#if __has_attribute(musttail)
#define TAIL __attribute__((musttail))
#endif
#endif
#ifndef TAIL
#define TAIL
#endif

/* Relaxed everywhere: the pointers lead to code of the C library, which was there before this object. */
static _Atomic(dp_dlsym_fn) real_dlsym;
static _Atomic(dp_dlvsym_fn) real_dlvsym;

static _Atomic(dp_dlopen_fn) real_dlopen;

static void *no_dlsym(void *handle, const char *name)
{
	(void)handle;
	(void)name;
	return NULL;
}

static void *no_dlvsym(void *handle, const char *name, const char *version)
{
	(void)version;
	return no_dlsym(handle, name);
}

static __attribute__((noinline, cold)) dp_dlsym_fn find_dlsym(void)
{
	dp_dlsym_fn fn = (dp_dlsym_fn)dp_elf_next("dlsym");

	if (!fn)
		fn = no_dlsym;
	atomic_store_explicit(&real_dlsym, fn, memory_order_relaxed);
	return fn;
}

static __attribute__((noinline, cold)) dp_dlvsym_fn find_dlvsym(void)
{
	dp_dlvsym_fn fn = (dp_dlvsym_fn)dp_elf_next("dlvsym");

	if (!fn)
		fn = no_dlvsym;
	atomic_store_explicit(&real_dlvsym, fn, memory_order_relaxed);
	return fn;
}

static void *no_dlopen(const char *file, int mode)
{
	(void)file;
	(void)mode;
	return NULL;
}

static __attribute__((noinline, cold)) dp_dlopen_fn find_dlopen(void)
{
	dp_dlopen_fn fn = (dp_dlopen_fn)dp_elf_next("dlopen");

	if (!fn)
		fn = no_dlopen;
	atomic_store_explicit(&real_dlopen, fn, memory_order_relaxed);
	return fn;
}

dp_dlsym_fn dp_real_dlsym(void)
{
	dp_dlsym_fn fn = atomic_load_explicit(&real_dlsym, memory_order_relaxed);

	return fn ? fn : find_dlsym();
}

dp_dlvsym_fn dp_real_dlvsym(void)
{
	dp_dlvsym_fn fn = atomic_load_explicit(&real_dlvsym, memory_order_relaxed);

	return fn ? fn : find_dlvsym();
}

/*
 * RTLD_DEFAULT finds our exports by itself, RTLD_NEXT depends on the caller: neither is ours to answer, unless the program
 * would find what it has not got without us.
 */
static inline bool ours(void *handle, const char *name, const char *version)
{
	if (__builtin_expect(name[0] == 'i', 0)) {
		if (name[1] != 'b' || name[2] != 'v' || name[3] != '_')
			return false;
	} else if (__builtin_expect(name[0] == 'm', 0)) {
		if (name[1] != 'l' || name[2] != 'x' || name[3] != '5' || name[4] != 'd' || name[5] != 'v')
			return false;
	} else {
		return false;
	}
	return handle == RTLD_DEFAULT ? dp_only_ours(name, version) : handle != RTLD_NEXT;
}

static inline void look(void)
{
	if (__builtin_expect(atomic_load_explicit(&dp_deepbind_open, memory_order_relaxed), 0))
		dp_deepbind_look();
}

DP_EXPORT void *dlsym(void *handle, const char *name)
{
	dp_dlsym_fn fn;

	look();
	if (__builtin_expect(ours(handle, name, NULL), 0))
		TAIL return dp_serve_dlsym(handle, name);
	fn = dp_real_dlsym();
	TAIL return fn(handle, name);
}

DP_EXPORT void *dlvsym(void *handle, const char *name, const char *version)
{
	dp_dlvsym_fn fn;

	look();
	if (__builtin_expect(ours(handle, name, version), 0))
		TAIL return dp_serve_dlvsym(handle, name, version);
	fn = dp_real_dlvsym();
	TAIL return fn(handle, name, version);
}

DP_EXPORT void *dlopen(const char *file, int mode)
{
	dp_dlopen_fn fn;

	look();
	if (__builtin_expect(mode & RTLD_DEEPBIND, 0))
		dp_deepbind_note();
	fn = atomic_load_explicit(&real_dlopen, memory_order_relaxed);
	if (__builtin_expect(!fn, 0))
		fn = find_dlopen();
	TAIL return fn(file, mode);
}

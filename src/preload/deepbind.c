// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Objects opened with RTLD_DEEPBIND look into their own libraries first: one that is linked with libibverbs gets its verbs,
 * not ours, and nothing can be done but to say so. dlopen() itself leaves by a jump, so what it loaded is looked at in the
 * next dlsym() or dlopen(), or at exit.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "symtab.h"
#include "stub.h"

_Atomic bool dp_deepbind_open;

static _Atomic unsigned known; /* objects before the first such dlopen() that was not looked at */
static _Atomic bool said;

struct look {
	unsigned skip;
	const char *name;
};

static bool counts(const struct dp_elf *elf, void *arg)
{
	(void)elf;
	++*(unsigned *)arg;
	return false;
}

/* Is it linked with libibverbs, under whatever name a wheel gave that? */
static bool linked(const struct dp_elf *elf, void *arg)
{
	struct look *l = arg;

	if (l->skip) {
		l->skip--;
		return false;
	}
	for (const ElfW(Dyn) *d = elf->dyn; d->d_tag != DT_NULL; d++)
		if (d->d_tag == DT_NEEDED && !strncmp(elf->strtab + d->d_un.d_val, "libibverbs", strlen("libibverbs"))) {
			l->name = elf->name;
			return true;
		}
	return false;
}

void dp_deepbind_note(void)
{
	unsigned n = 0;

	if (atomic_load(&said) || atomic_load(&dp_deepbind_open))
		return;
	dp_elf_each(counts, &n);
	atomic_store(&known, n);
	atomic_store(&dp_deepbind_open, true);
}

void dp_deepbind_look(void)
{
	struct look l = {.skip = atomic_load(&known)};
	const char *slash;
	char line[512];
	int len;

	if (!atomic_exchange(&dp_deepbind_open, false) || dp_env_is("DUALPORT_ENABLE", false) || !dp_elf_each(linked, &l) ||
	    atomic_exchange(&said, true))
		return;
	slash = strrchr(l.name, '/');
	len = snprintf(line, sizeof(line),
		       "dualport[%d]: %s was opened with RTLD_DEEPBIND and is linked with libibverbs: its verbs pass this library "
		       "by; one port\n", (int)getpid(), slash ? slash + 1 : l.name);
	if (len >= (int)sizeof(line))
		len = sizeof(line) - 1;
	if (len > 0 && dp_stderr_is_ours() && write(STDERR_FILENO, line, (size_t)len) < 0)
		return; /* nobody to tell */
}

static __attribute__((destructor)) void at_exit(void)
{
	dp_deepbind_look();
}

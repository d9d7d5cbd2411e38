/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * Look-ups in the symbol tables of loaded objects, without the dl* functions: those have symbol versions
 * that differ between C libraries, some are hooked by this very object, and a handle searches dependencies too.
 * Everything here is thread-safe, allocates nothing, and works before any constructor has run.
 */
#ifndef DUALPORT_SYMTAB_H
#define DUALPORT_SYMTAB_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/* A loaded object; valid as long as it is loaded. */
struct dp_elf {
	uintptr_t base;
	uintptr_t lo, hi; /* the addresses from lo up to, not including, hi are its own */
	const char *name; /* as in its link map */
	const ElfW(Dyn) * dyn;
	const ElfW(Sym) * symtab;
	const char *strtab;
	const uint32_t *gnu_hash, *sysv_hash;
	const ElfW(Half) * versym;
	const ElfW(Verdef) * verdef;
};

/* The object that addr lies in; false if none. */
bool dp_elf_of(const void *addr, struct dp_elf *elf);

/*
 * The function that elf itself defines as name@version; with version NULL, the one that an unversioned look-up
 * gives. NULL if there is none.
 */
void *dp_elf_sym(const struct dp_elf *elf, const char *name, const char *version);

/*
 * What a symbol look-up that starts behind this object finds: the next preloaded object's, or the C library's. Calls nothing
 * that sanitizers wrap.
 */
void *dp_elf_next(const char *name);

/* Calls fn for each loaded object except this one, in load order, until it returns true; returns whether it did. */
bool dp_elf_each(bool (*fn)(const struct dp_elf *elf, void *arg), void *arg);

#endif

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "symtab.h"

#include <stddef.h>
#include <sys/auxv.h>

/*
 * dlsym must work before a sanitizer or profiler that the program is linked with has initialised itself: it calls dlsym
 * to find the functions that it wraps. So nothing on that way may call what is commonly wrapped: no string functions,
 * no dl_iterate_phdr.
 */
static bool same(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

#define VERSYM_HIDDEN 0x8000
#define BLOOM_BITS (8 * sizeof(ElfW(Addr)))

/* glibc relocates the pointers in the dynamic section in place, except where that section is read-only */
static const void *dyn_ptr(const struct dp_elf *elf, ElfW(Addr) p)
{
	return (const void *)(p < elf->base ? p + elf->base : p);
}

static bool read_dynamic(struct dp_elf *elf)
{
	const ElfW(Dyn) * d;

	for (d = elf->dyn; d && d->d_tag != DT_NULL; d++) {
		switch (d->d_tag) {
		case DT_SYMTAB:
			elf->symtab = dyn_ptr(elf, d->d_un.d_ptr);
			break;
		case DT_STRTAB:
			elf->strtab = dyn_ptr(elf, d->d_un.d_ptr);
			break;
		case DT_GNU_HASH:
			elf->gnu_hash = dyn_ptr(elf, d->d_un.d_ptr);
			break;
		case DT_HASH:
			elf->sysv_hash = dyn_ptr(elf, d->d_un.d_ptr);
			break;
		case DT_VERSYM:
			elf->versym = dyn_ptr(elf, d->d_un.d_ptr);
			break;
		case DT_VERDEF:
			elf->verdef = dyn_ptr(elf, d->d_un.d_ptr);
			break;
		}
	}
	return elf->symtab && elf->strtab && (elf->gnu_hash || elf->sysv_hash);
}

static bool elf_read(const struct dl_phdr_info *info, struct dp_elf *elf)
{
	int i;

	*elf = (struct dp_elf){.base = info->dlpi_addr, .name = info->dlpi_name, .lo = UINTPTR_MAX};
	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
		uintptr_t start = elf->base + ph->p_vaddr;

		if (ph->p_type == PT_DYNAMIC)
			elf->dyn = (const ElfW(Dyn) *)start;
		if (ph->p_type != PT_LOAD)
			continue;
		if (start < elf->lo)
			elf->lo = start;
		if (start + ph->p_memsz > elf->hi)
			elf->hi = start + ph->p_memsz;
	}
	return read_dynamic(elf);
}

static bool version_is(const struct dp_elf *elf, unsigned int ndx, const char *version)
{
	const ElfW(Verdef) *vd = elf->verdef;

	while (vd) {
		if (vd->vd_ndx == ndx) {
			const ElfW(Verdaux) *aux = (const ElfW(Verdaux) *)((const char *)vd + vd->vd_aux);

			return same(elf->strtab + aux->vda_name, version);
		}
		vd = vd->vd_next ? (const ElfW(Verdef) *)((const char *)vd + vd->vd_next) : NULL;
	}
	return false;
}

static void *sym_match(const struct dp_elf *elf, uint32_t i, const char *name, const char *version)
{
	const ElfW(Sym) *sym = &elf->symtab[i];
	unsigned int type = sym->st_info & 0xf, bind = sym->st_info >> 4;

	if (sym->st_shndx == SHN_UNDEF || !sym->st_value || bind == STB_LOCAL)
		return NULL;
	if (type != STT_FUNC && type != STT_NOTYPE)
		return NULL;
	if (!same(elf->strtab + sym->st_name, name))
		return NULL;
	if (version && (!elf->versym || !version_is(elf, elf->versym[i] & ~VERSYM_HIDDEN, version)))
		return NULL;
	if (!version && elf->versym && (elf->versym[i] & VERSYM_HIDDEN))
		return NULL;
	return (void *)(elf->base + sym->st_value);
}

static void *gnu_lookup(const struct dp_elf *elf, const char *name, const char *version)
{
	const uint32_t *h = elf->gnu_hash;
	uint32_t nbuckets = h[0], first = h[1], nbloom = h[2], shift = h[3], hash = 5381, i;
	const ElfW(Addr) *bloom = (const ElfW(Addr) *)&h[4];
	const uint32_t *buckets = (const uint32_t *)(bloom + nbloom), *chain = buckets + nbuckets;
	const unsigned char *c;
	ElfW(Addr) word;
	void *p;

	for (c = (const unsigned char *)name; *c; c++)
		hash = hash * 33 + *c;
	word = bloom[(hash / BLOOM_BITS) % nbloom];
	if (!(word >> (hash % BLOOM_BITS) & word >> ((hash >> shift) % BLOOM_BITS) & 1))
		return NULL;
	i = buckets[hash % nbuckets];
	if (i < first)
		return NULL;
	for (;; i++) {
		uint32_t c_hash = chain[i - first];

		if ((c_hash | 1) == (hash | 1)) {
			p = sym_match(elf, i, name, version);
			if (p)
				return p;
		}
		if (c_hash & 1)
			return NULL;
	}
}

static void *sysv_lookup(const struct dp_elf *elf, const char *name, const char *version)
{
	const uint32_t *h = elf->sysv_hash, *buckets = h + 2, *chain = buckets + h[0];
	uint32_t hash = 0, i;
	const unsigned char *c;
	void *p;

	for (c = (const unsigned char *)name; *c; c++) {
		hash = (hash << 4) + *c;
		hash ^= (hash >> 24) & 0xf0;
		hash &= 0x0fffffff;
	}
	for (i = buckets[hash % h[0]]; i; i = chain[i]) {
		p = sym_match(elf, i, name, version);
		if (p)
			return p;
	}
	return NULL;
}

void *dp_elf_sym(const struct dp_elf *elf, const char *name, const char *version)
{
	return elf->gnu_hash ? gnu_lookup(elf, name, version) : sysv_lookup(elf, name, version);
}

static bool is_self(const struct dp_elf *elf)
{
	return elf->dyn == _DYNAMIC;
}

struct walk {
	const void *addr;
	struct dp_elf *found;
	bool (*fn)(const struct dp_elf *elf, void *arg);
	void *arg;
	const char *name;
	void *behind, *any;
	bool past_self;
};

static int of_cb(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct walk *w = arg;
	int i;

	(void)size;
	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *ph = &info->dlpi_phdr[i];

		if (ph->p_type == PT_LOAD && (uintptr_t)w->addr - (info->dlpi_addr + ph->p_vaddr) < ph->p_memsz)
			return elf_read(info, w->found) ? 1 : -1;
	}
	return 0;
}

bool dp_elf_of(const void *addr, struct dp_elf *elf)
{
	struct walk w = {.addr = addr, .found = elf};

	return dl_iterate_phdr(of_cb, &w) == 1;
}

static int each_cb(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct walk *w = arg;
	struct dp_elf elf;

	(void)size;
	return elf_read(info, &elf) && !is_self(&elf) && w->fn(&elf, w->arg);
}

bool dp_elf_each(bool (*fn)(const struct dp_elf *elf, void *arg), void *arg)
{
	struct walk w = {.fn = fn, .arg = arg};

	return dl_iterate_phdr(each_cb, &w);
}

static bool next_visit(const struct dp_elf *elf, struct walk *w)
{
	void *p;

	if (is_self(elf)) {
		w->past_self = true;
		return false;
	}
	p = dp_elf_sym(elf, w->name, NULL);
	if (p && w->past_self)
		w->behind = p;
	else if (p && !w->any)
		w->any = p;
	return w->behind;
}

static int next_cb(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct dp_elf elf;

	(void)size;
	return elf_read(info, &elf) && next_visit(&elf, arg);
}

/* The loader's list, which it shows to debuggers through the program's dynamic section. */
static const struct link_map *loaded(void)
{
	const ElfW(Phdr) *ph = (const ElfW(Phdr) *)getauxval(AT_PHDR);
	size_t n = getauxval(AT_PHNUM), i;
	const ElfW(Dyn) *d = NULL;
	uintptr_t base = 0;

	for (i = 0; ph && i < n; i++)
		if (ph[i].p_type == PT_PHDR)
			base = (uintptr_t)ph - ph[i].p_vaddr;
	for (i = 0; ph && i < n; i++)
		if (ph[i].p_type == PT_DYNAMIC)
			d = (const ElfW(Dyn) *)(base + ph[i].p_vaddr);
	for (; d && d->d_tag != DT_NULL; d++)
		if (d->d_tag == DT_DEBUG && d->d_un.d_ptr)
			return ((const struct r_debug *)d->d_un.d_ptr)->r_map;
	return NULL;
}

void *dp_elf_next(const char *name)
{
	struct walk w = {.name = name};
	const struct link_map *m;

	/*
	 * No lock is held, nor needed: the list grows at its end, and what stands between this object and the C library
	 * was there at start and stays.
	 */
	for (m = loaded(); m; m = m->l_next) {
		struct dp_elf elf = {.base = m->l_addr, .name = m->l_name, .dyn = m->l_ld};

		if (read_dynamic(&elf) && next_visit(&elf, &w))
			return w.behind;
	}
	w = (struct walk){.name = name};
	dl_iterate_phdr(next_cb, &w);
	return w.behind ? w.behind : w.any;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * One table of real functions per copy of libibverbs in the process. A context names its copy: verbs_context's
 * query_port is set by libibverbs itself (set_lib_ops, never by a provider) to a static function of that copy.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "symtab.h"
#include "stub.h"

struct copy {
	struct copy *next; /* constant once in the list */
	uintptr_t lo, hi;
	struct dp_verbs real;
};

static _Atomic(struct copy *) copies; /* only ever grows, at its head */

/*
 * Recognised by content: Python wheels carry copies under other names. query_port came between v20 and v22, so a copy
 * that has IBVERBS_1.6 (v24) sets it. The contexts of older ones do not tell their copy, which is left alone.
 */
static bool is_libibverbs(const struct dp_elf *elf)
{
	return dp_elf_sym(elf, "ibv_alloc_pd", "IBVERBS_1.1") && dp_elf_sym(elf, "ibv_qp_to_qp_ex", "IBVERBS_1.6");
}

static bool is_self(const struct dp_elf *elf)
{
	return (uintptr_t)&copies >= elf->lo && (uintptr_t)&copies < elf->hi;
}

bool dp_is_real_verb(const void *p, const char *name, const char *version)
{
	struct dp_elf elf;

	return dp_elf_of(p, &elf) && !is_self(&elf) && is_libibverbs(&elf) && dp_elf_sym(&elf, name, version) == p;
}

static const struct copy *lookup(const struct copy *c, uintptr_t addr)
{
	for (; c; c = c->next)
		if (addr >= c->lo && addr < c->hi)
			return c;
	return NULL;
}

/* A table outlives its contexts, so its copy must not be unloaded, nor another object take its addresses. */
static void pin(const struct dp_elf *elf)
{
	void *(*open)(const char *, int) = (void *(*)(const char *, int))dp_elf_next("dlopen");

	if (open)
		open(elf->name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

static __attribute__((cold)) const struct copy *add(const void *addr)
{
	struct copy *c, *head = atomic_load_explicit(&copies, memory_order_acquire);
	const struct copy *found;
	struct dp_elf elf;

	if (!dp_elf_of(addr, &elf) || is_self(&elf) || !is_libibverbs(&elf))
		return NULL;
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->lo = elf.lo;
	c->hi = elf.hi;
#define FILL(ret, verb, version, params, args) c->real.verb = (ret(*) params)dp_elf_sym(&elf, "ibv_" #verb, version);
	DP_VERBS_HOOKED(FILL)
	DP_VERBS_USED(FILL)
#undef FILL
	/* the one name that does not begin with ibv_ */
	c->real._query_gid_ex = dp_elf_sym(&elf, "_ibv_query_gid_ex", "IBVERBS_1.11");
	pin(&elf);
	do {
		/* somebody may have added the same copy meanwhile: one copy has one table */
		found = lookup(head, (uintptr_t)addr);
		if (found) {
			free(c);
			return found;
		}
		c->next = head;
		/* release: whoever finds c in the list sees it filled */
	} while (!atomic_compare_exchange_weak_explicit(&copies, &head, c, memory_order_acq_rel, memory_order_acquire));
	return c;
}

const struct dp_verbs *dp_real_of(struct ibv_context *ctx)
{
	struct verbs_context *vctx = ctx ? verbs_get_ctx_op(ctx, query_port) : NULL;
	const struct copy *c;

	if (!vctx)
		return NULL;
	c = lookup(atomic_load_explicit(&copies, memory_order_acquire), (uintptr_t)vctx->query_port);
	if (!c)
		c = add((const void *)vctx->query_port);
	return c ? &c->real : NULL;
}

struct wanted {
	const char *name, *version;
	void *found;
};

static bool defines(const struct dp_elf *elf, void *arg)
{
	struct wanted *w = arg;

	w->found = dp_elf_sym(elf, w->name, w->version);
	return w->found;
}

bool dp_is_ours(const void *p)
{
	struct dp_elf elf;

	return dp_elf_of(p, &elf) && is_self(&elf);
}

bool dp_only_ours(const char *name, const char *version)
{
	struct wanted w = {.name = name, .version = version};
	struct dp_elf self;

	return dp_elf_of(&copies, &self) && dp_elf_sym(&self, name, version) && !dp_elf_each(defines, &w);
}

void *dp_guess(const char *name, const char *version, const void *caller)
{
	void *(*open)(const char *, int) = (void *(*)(const char *, int))dp_elf_next("dlopen");
	int (*close)(void *) = (int (*)(void *))dp_elf_next("dlclose");
	char *(*error)(void) = (char *(*)(void))dp_elf_next("dlerror");
	struct wanted w = {.name = name, .version = version};
	struct dp_elf elf;
	void *p, *handle;

	p = dp_real_dlvsym()(RTLD_NEXT, name, version);
	if (p)
		return p;
	if (open && close && dp_elf_of(caller, &elf)) {
		handle = open(elf.name[0] ? elf.name : NULL, RTLD_LAZY | RTLD_NOLOAD);
		if (handle) {
			p = dp_real_dlvsym()(handle, name, version);
			close(handle);
		}
		/* through its dependencies the main program's handle may lead back to us */
		if (p && dp_elf_of(p, &elf) && !is_self(&elf))
			return p;
	}
	if (error)
		error(); /* a failed look-up of ours is not the program's error */
	/*
	 * A caller that jumped here left no trace, or got at us by a handle. Most verbs only go through the context's
	 * own operations, so any copy's will do better than none.
	 */
	dp_elf_each(defines, &w);
	return w.found;
}

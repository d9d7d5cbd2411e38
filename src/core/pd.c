// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Protection domains and their twins. */
#include "rkeys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static struct dp_hmap pds = DP_HMAP_INIT;    /* ibv_pd pointer -> struct dp_pd */
static struct dp_hmap pd_ids = DP_HMAP_INIT; /* id -> struct dp_pd */
static dp_lock ids_lock = PTHREAD_MUTEX_INITIALIZER;

const struct dp_verbs *dp_real_of(struct ibv_context *ctx)
{
	struct dp_ctx *c = dp_ctx_find(ctx);

	return c ? c->real : dp_stub->real_of(ctx);
}

struct dp_pd *dp_pd_find(struct ibv_pd *pd)
{
	return dp_hmap_getp(&pds, pd);
}

void dp_pd_hold(struct dp_pd *pd)
{
	atomic_fetch_add_explicit(&dp_pd_rec(pd)->refs, 1, memory_order_relaxed);
}

void dp_pd_put(struct dp_pd *pd)
{
	/* acq_rel: whoever frees it sees all that the others did with it */
	if (atomic_fetch_sub_explicit(&dp_pd_rec(pd)->refs, 1, memory_order_acq_rel) != 1)
		return;
	dp_hmap_fini(&pd->rkeys);
	dp_lock_fini(&pd->settling);
	dp_lock_fini(&pd->lock);
	free(pd);
}

struct dp_pd *dp_pd_by_id(uint32_t id)
{
	struct dp_pd *pd;

	dp_take(&ids_lock); /* or the last reference could go between look-up and hold */
	pd = dp_hmap_get(&pd_ids, id);
	if (pd)
		dp_pd_hold(pd);
	dp_drop(&ids_lock);
	return pd;
}

/*
 * Ids are drawn at random: a peer learns the id of a PD only when a QP of that PD is bonded with it, and one that
 * was not told cannot guess it, hence not pull keys or watch. Nothing else needs to be checked there.
 */
static int publish_id(struct dp_pd *pd)
{
	int ret;

	dp_take(&ids_lock);
	do {
		if (getrandom(&pd->id, sizeof(pd->id), 0) != sizeof(pd->id)) {
			ret = -EIO;
			goto out;
		}
	} while (!pd->id || dp_hmap_get(&pd_ids, pd->id));
	ret = dp_hmap_put(&pd_ids, pd->id, pd);
out:
	dp_drop(&ids_lock);
	return ret;
}

static void unpublish_id(struct dp_pd *pd)
{
	dp_take(&ids_lock);
	dp_hmap_del(&pd_ids, pd->id);
	dp_drop(&ids_lock);
}

static void drop_twins(struct dp_pd *pd)
{
	dp_scratch_drop(pd, false);
	for (uint32_t i = 0; i < pd->c->nsib; i++) {
		int err = pd->twin[i] && !pd->c->sib[i].shared ? pd->c->real->dealloc_pd(pd->twin[i]) : 0;

		if (err)
			dp_warn("twin of a protection domain on %s could not be freed: %s", pd->c->sib[i].text,
				strerror(err));
		pd->twin[i] = NULL;
	}
}

void dp_pd_settle(struct dp_pd *pd, const void *addr)
{
	struct dp_ctx *c = pd->c;
	int err = errno;

	if (atomic_load_explicit(&pd->settled, memory_order_acquire))
		return;
	dp_take(&pd->settling);
	if (atomic_load_explicit(&pd->settled, memory_order_relaxed))
		goto out;
	dp_ctx_open_siblings(c, addr);
	for (uint32_t i = 0; i < c->nsib; i++) {
		if (!c->sib[i].ctx)
			continue;
		pd->twin[i] = c->sib[i].shared ? pd->pd : c->real->alloc_pd(c->sib[i].ctx);
		if (!pd->twin[i])
			dp_warn("%s: no protection domain on %s: %s", c->dev, c->sib[i].text, strerror(errno));
	}
	/* release: whoever sees it settled sees the twins */
	atomic_store_explicit(&pd->settled, true, memory_order_release);
out:
	dp_drop(&pd->settling);
	errno = err;
}

static void gone(struct dp_pd *p)
{
	/* what is left when the program closes the device goes with it */
	if (!atomic_load(&p->c->closed)) {
		dp_scratch_drop(p, true);
		drop_twins(p);
	}
	/* release: whoever finds that it was the last frees the context after what was done here */
	atomic_fetch_sub_explicit(&p->c->refs, 1, memory_order_release);
}

void dp_pd_use(struct dp_pd *pd)
{
	dp_pd_hold(pd);
	atomic_fetch_add_explicit(&dp_pd_rec(pd)->users, 1, memory_order_relaxed);
}

void dp_pd_unuse(struct dp_pd *pd)
{
	/* acq_rel: the last one sees that it was left, and what the others had made in the twins is gone */
	if (atomic_fetch_sub_explicit(&dp_pd_rec(pd)->users, 1, memory_order_acq_rel) == 1 &&
	    atomic_load_explicit(&dp_pd_rec(pd)->left, memory_order_relaxed))
		gone(pd);
	dp_pd_put(pd);
}

static void record(struct dp_ctx *c, struct ibv_pd *pd)
{
	struct dp_pd_rec *r = calloc(1, sizeof(*r));
	struct dp_pd *p;

	if (!r)
		goto no_memory;
	p = &r->p;
	p->pd = pd;
	p->c = c;
	atomic_init(&r->refs, 1);
	atomic_init(&r->users, 1);
	atomic_init(&r->left, false);
	dp_lock_init(&p->settling);
	dp_lock_init(&p->lock);
	dp_hmap_init(&p->rkeys);
	dp_push_init(r);
	if (publish_id(p))
		goto undo;
	if (dp_hmap_put(&pds, (uint64_t)(uintptr_t)pd, p))
		goto undo_id;
	atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
	return;

undo_id:
	unpublish_id(p);
undo:
	dp_pd_put(p);
no_memory:
	dp_warn("%s: out of memory: a protection domain stays without twins", c->dev);
}

struct ibv_pd *dp_alloc_pd(struct ibv_context *ctx)
{
	struct dp_ctx *c = dp_ctx_get(ctx);
	const struct dp_verbs *real = c ? c->real : dp_stub->real_of(ctx);
	struct ibv_pd *pd;
	int err;

	if (!real || !real->alloc_pd) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	pd = real->alloc_pd(ctx);
	if (!pd || !c || !c->grouped)
		return pd;
	err = errno;
	record(c, pd);
	errno = err;
	return pd;
}

/* Memory of ours in the program's own PD would keep it busy; a QP's twin that needs it later registers it again. */
static void free_scratch(struct dp_pd *p)
{
	dp_take(&p->settling);
	if (!p->guests)
		dp_scratch_drop(p, true);
	dp_drop(&p->settling);
}

/*
 * It may be one that this process allocated and another imported: that one will deallocate it. Unlike dealloc_pd it does not
 * fail while there are regions and queue pairs in it: their twins need the twins of the PD as long.
 */
void dp_unimport_pd(struct ibv_pd *pd)
{
	const struct dp_verbs *real = dp_real_of(pd->context);
	struct dp_pd *p = dp_pd_find(pd);

	if (!real || !real->unimport_pd)
		return;
	if (!p) {
		real->unimport_pd(pd);
		return;
	}
	free_scratch(p);
	dp_hmap_del(&pds, (uint64_t)(uintptr_t)pd);
	dp_take(&p->settling); /* a queue pair may be about to bond */
	p->pd = NULL;
	real->unimport_pd(pd);
	dp_drop(&p->settling);
	unpublish_id(p);
	atomic_store_explicit(&dp_pd_rec(p)->left, true, memory_order_relaxed);
	dp_pd_unuse(p);
}

int dp_dealloc_pd(struct ibv_pd *pd)
{
	const struct dp_verbs *real = dp_real_of(pd->context);
	struct dp_pd *p = dp_pd_find(pd);
	int ret;

	if (!real || !real->dealloc_pd)
		return EOPNOTSUPP;
	if (!p)
		return real->dealloc_pd(pd);
	free_scratch(p);
	/* before the real one: another thread may be given the same pointer at once */
	dp_hmap_del(&pds, (uint64_t)(uintptr_t)pd);
	ret = real->dealloc_pd(pd);
	if (ret) { /* busy: everything stays as it was */
		if (dp_hmap_put(&pds, (uint64_t)(uintptr_t)pd, p))
			dp_warn("%s: out of memory: a protection domain loses its twins", p->c->dev);
		return ret;
	}
	unpublish_id(p);
	gone(p);
	dp_pd_put(p);
	return 0;
}

static void unlock_one(void *val, void *arg)
{
	struct dp_pd *pd = val;

	(void)arg;
	dp_lock_init(&pd->settling);
	dp_lock_init(&pd->lock);
	dp_lock_init(&pd->rkeys.lock);
	dp_push_pd_after_fork(dp_pd_rec(pd));
}

void dp_pd_after_fork(void)
{
	dp_lock_init(&ids_lock);
	dp_lock_init(&pds.lock);
	dp_lock_init(&pd_ids.lock);
	dp_hmap_each(&pds, unlock_one, NULL);
}

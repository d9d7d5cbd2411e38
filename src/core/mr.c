// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Memory regions and their twins; rereg.c and memlock.c do the rest. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP */
#endif
#include "rkeys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEVS 256

static struct dp_hmap mrs = DP_HMAP_INIT; /* ibv_mr pointer -> struct dp_mr_rec */
static TAILQ_HEAD(, dp_mr_rec) list = TAILQ_HEAD_INITIALIZER(list);
static dp_lock list_lock = PTHREAD_MUTEX_INITIALIZER;
/* prefers writers: a program that deregisters without end must not starve one that runs out of memory */
pthread_rwlock_t dp_mr_life = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

struct dp_mr_rec *dp_mr_find(struct ibv_mr *mr)
{
	return dp_hmap_getp(&mrs, mr);
}

/*
 * One that was imported, perhaps, which is the region of somebody else's record: what is done with it is done to that, too. The
 * kernel knows no difference (rdma-core, libibverbs/cmd_mr.c), and no two regions of a device have these keys.
 */
struct dp_mr_rec *dp_mr_of(struct ibv_mr *mr)
{
	const struct dp_verbs *real = dp_real_of(mr->context);
	struct dp_mr_rec *r = dp_mr_find(mr);
	uint32_t dev;

	if (r || !real || !real->get_device_name)
		return r;
	dev = dp_key_dev(real->get_device_name(mr->context->device));
	dp_take(&list_lock);
	TAILQ_FOREACH(r, &list, all)
		if (dev && r->dev == dev && r->m.lkey == mr->lkey && r->m.rkey == mr->rkey)
			break;
	dp_drop(&list_lock);
	return r;
}

void dp_mr_new_keys(struct dp_mr_rec *r)
{
	dp_take(&list_lock);
	r->m.lkey = r->m.mr->lkey;
	r->m.rkey = r->m.mr->rkey;
	dp_drop(&list_lock);
}

void dp_mr_each(void (*fn)(struct dp_mr_rec *r, void *arg), void *arg)
{
	struct dp_mr_rec *r;

	dp_take(&list_lock);
	TAILQ_FOREACH(r, &list, all)
		fn(r, arg);
	dp_drop(&list_lock);
}

static char devs[MAX_DEVS][DP_DEV_NAME];
static uint32_t ndevs = 1; /* 0 is shared by those that found no room */
static dp_lock devs_lock = PTHREAD_MUTEX_INITIALIZER;

uint32_t dp_key_dev(const char *dev)
{
	uint32_t i;

	dp_take(&devs_lock);
	for (i = 1; i < ndevs && strncmp(devs[i], dev, DP_DEV_NAME); i++)
		;
	if (i == MAX_DEVS)
		i = 0;
	else if (i == ndevs)
		strncpy(devs[ndevs++], dev, DP_DEV_NAME - 1);
	dp_drop(&devs_lock);
	return i;
}

/* ---- registering */

static struct ibv_mr *call(const struct dp_verbs *real, struct ibv_pd *pd, const struct dp_mr_how *h)
{
	if (h->attr && real->reg_mr_ex)
		return real->reg_mr_ex(pd, h->attr);
	if (h->buf && real->reg_buf_mr)
		return real->reg_buf_mr(pd, h->buf, h->addr, h->length, (int)h->access);
	/* a program that finds our symbol, and not libibverbs's, has it all the same, by what older ones have */
	if (h->buf || (h->attr && (((const struct dp_mr_init_attr *)h->attr)->comp_mask & (DP_MR_INIT_DMAH | DP_MR_INIT_BUF))))
		goto unsupported;
	switch (h->kind) {
	case DP_MR_REG:
		if (real->reg_mr)
			return real->reg_mr(pd, h->addr, h->length, (int)h->access);
		break;
	case DP_MR_IOVA:
		if (real->reg_mr_iova)
			return real->reg_mr_iova(pd, h->addr, h->length, h->iova, (int)h->access);
		break;
	case DP_MR_IOVA2:
		if (real->reg_mr_iova2)
			return real->reg_mr_iova2(pd, h->addr, h->length, h->iova, h->access);
		break;
	case DP_MR_DMABUF:
		if (real->reg_dmabuf_mr)
			return real->reg_dmabuf_mr(pd, h->offset, h->length, h->iova, h->fd, (int)h->access);
		break;
	case DP_MR_UNKNOWN:
		break;
	}
unsupported:
	errno = EOPNOTSUPP;
	return NULL;
}

struct reg_arg {
	const struct dp_verbs *real;
	struct ibv_pd *pd;
	const struct dp_mr_how *how;
};

static void *make_mr(const void *arg)
{
	const struct reg_arg *a = arg;

	return call(a->real, a->pd, a->how);
}

static int drop_mr(void *mr, const void *arg)
{
	return ((const struct reg_arg *)arg)->real->dereg_mr(mr);
}

uint32_t dp_rkey_of_mr(const void *mr)
{
	return ((const struct ibv_mr *)mr)->rkey;
}

struct ibv_mr *dp_mr_register(const struct dp_verbs *real, struct ibv_pd *pd, uint32_t dev,
			      const struct dp_mr_how *how)
{
	const struct dp_key_maker k = { .what = "a memory region registered", .dev = dev, .tags = 1, .rkey = dp_rkey_of_mr,
					.make = make_mr, .drop = drop_mr };
	const struct reg_arg a = { real, pd, how };
	static _Atomic bool said;
	bool reused;
	struct ibv_mr *mr = dp_key_make(&k, &a, &reused);
	int err = errno;

	if (reused && !atomic_exchange(&said, true))
		dp_warn("remote key 0x%x is used again although its past holders did not answer within the lease",
			mr->rkey);
	errno = err;
	return mr;
}

static void say_failed(const struct dp_mr_rec *r, const struct dp_sib *sib, int err)
{
	static _Atomic uint64_t said[4]; /* by errno */
	unsigned e = (unsigned)err & 255;

	dp_fallback(DP_FB_MR_TWIN_FAILED);
	if (atomic_fetch_or(&said[e / 64], UINT64_C(1) << (e % 64)) >> (e % 64) & 1)
		return;
	dp_warn("a memory region of %zu bytes of %s uses this port only: its registration on %s failed: %s", r->how.length,
		r->m.pd->c->dev, sib->text, strerror(err));
}

void dp_mr_twins_drop(struct dp_mr_rec *r)
{
	const struct dp_ctx *c = r->m.pd->c;

	r->m.usable = false;
	for (uint32_t i = 0; i < c->nsib; i++) {
		/* on a shared sibling it is the program's own, perhaps gone by now */
		int err = r->m.twin[i] && r->m.twin[i] != r->m.mr ? c->real->dereg_mr(r->m.twin[i]) : 0;

		if (err)
			dp_warn("twin of a memory region on %s could not be freed: %s", c->sib[i].text, strerror(err));
		r->m.twin[i] = NULL;
	}
}

/* A sibling without a twin of the PD has no twins of QPs either, so the MR can be used without it. */
void dp_mr_twins_make(struct dp_mr_rec *r)
{
	struct dp_pd *pd = r->m.pd;
	struct dp_ctx *c = pd->c;
	uint32_t i, n = 0;

	r->m.usable = false;
	for (i = 0; i < c->nsib; i++) {
		struct ibv_mr *twin;

		if (!pd->twin[i])
			continue;
		errno = 0;
		twin = c->sib[i].shared ? r->m.mr : dp_mr_register(c->real, pd->twin[i], dp_key_dev(c->sib[i].port.dev), &r->how);
		if (!twin) {
			int err = errno;

			dp_mr_twins_drop(r);
			say_failed(r, &c->sib[i], err);
			return;
		}
		r->m.twin[i] = twin;
		r->m.lkeys[i] = twin->lkey;
		n++;
	}
	r->m.usable = n > 0;
}

/* ---- the maps */

void dp_mr_publish(struct dp_mr_rec *r)
{
	struct dp_pd *pd = r->m.pd;
	bool call = false;

	if (!r->m.usable)
		return;
	dp_take(&pd->lock);
	/* release, here and below: who finds it raised finds what is there now */
	if (dp_hmap_put(&pd->c->lkeys, r->m.lkey, &r->m) || dp_hmap_put(&pd->rkeys, r->m.rkey, &r->m))
		dp_warn("%s: out of memory: a memory region uses this port only", pd->c->dev);
	else
		call = dp_push_list(r);
	atomic_fetch_add_explicit(&pd->c->lkeys_gen, 1, memory_order_release);
	dp_drop(&pd->lock);
	if (call)
		dp_push_call(pd);
}

struct dp_holder *dp_mr_unpublish(struct dp_mr_rec *r)
{
	struct dp_pd *pd = r->m.pd;
	struct dp_holder *h;

	dp_take(&pd->lock);
	if (dp_hmap_get(&pd->c->lkeys, r->m.lkey) == &r->m)
		dp_hmap_del(&pd->c->lkeys, r->m.lkey);
	atomic_fetch_add_explicit(&pd->c->lkeys_gen, 1, memory_order_release);
	if (dp_hmap_get(&pd->rkeys, r->m.rkey) == &r->m)
		dp_hmap_del(&pd->rkeys, r->m.rkey);
	dp_push_unlist(r);
	h = r->m.holders;
	r->m.holders = NULL;
	dp_drop(&pd->lock);
	return h;
}

static void free_rec(struct dp_mr_rec *r)
{
	free(r->m.twin);
	free(r->m.lkeys);
	free(r);
}

void dp_mr_forget(struct dp_mr_rec *r)
{
	dp_take(&list_lock);
	TAILQ_REMOVE(&list, r, all);
	dp_drop(&list_lock);
	dp_pd_unuse(r->m.pd);
	free_rec(r);
}

static void record(struct dp_pd *pd, struct ibv_mr *mr, const struct dp_mr_how *how, uint32_t dev)
{
	size_t nsib = pd->c->nsib ? pd->c->nsib : 1;
	struct dp_mr_rec *r = calloc(1, sizeof(*r));

	if (!r)
		goto no_memory;
	r->m.twin = calloc(nsib, sizeof(r->m.twin[0]));
	r->m.lkeys = calloc(nsib, sizeof(r->m.lkeys[0]));
	if (!r->m.twin || !r->m.lkeys)
		goto no_memory;
	r->m.mr = mr;
	r->m.pd = pd;
	r->m.access = (int)how->access;
	r->m.lkey = mr->lkey;
	r->m.rkey = mr->rkey;
	r->how = *how;
	r->how.attr = NULL;
	r->how.buf = NULL;
	r->dev = dev;
	dp_mr_twins_make(r);
	r->how.fd = -1;
	if (dp_hmap_put(&mrs, (uint64_t)(uintptr_t)mr, r)) {
		dp_mr_twins_drop(r);
		goto no_memory;
	}
	dp_pd_use(pd);
	dp_mr_publish(r);
	/* last: from here on memlock.c may take its twins */
	dp_take(&list_lock);
	TAILQ_INSERT_HEAD(&list, r, all);
	dp_drop(&list_lock);
	return;

no_memory:
	if (r)
		free_rec(r);
	dp_fallback(DP_FB_MR_TWIN_FAILED);
	dp_warn("%s: out of memory: a memory region uses this port only", pd->c->dev);
}

/* ---- hooks */

static struct ibv_mr *reg(struct ibv_pd *pd, const struct dp_mr_how *how)
{
	struct dp_pd *p = dp_pd_find(pd);
	struct ibv_mr *mr;
	uint64_t deadline;
	uint32_t dev;
	int err;

	if (!p) {
		const struct dp_verbs *real = dp_real_of(pd->context);
		/* one that was imported may not have been seen yet */
		const struct dp_ctx *c = dp_ctx_get(pd->context);

		/* a parent domain, say: without twins, but not with a key that a peer takes for another's either */
		if (real && c && c->grouped)
			return dp_mr_register(real, pd, dp_key_dev(c->dev), how);
		if (real)
			return call(real, pd, how);
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (how->kind != DP_MR_UNKNOWN)
		dp_pd_settle(p, how->addr ? how->addr : (const void *)(uintptr_t)how->iova);
	dev = dp_key_dev(p->c->dev);
	mr = dp_mr_register(p->c->real, pd, dev, how);
	if (!mr && (errno == ENOMEM || errno == EAGAIN)) {
		/* twins count against RLIMIT_MEMLOCK, too: the program must get what it would get without us */
		deadline = dp_now_ns() + dp_lease_bound();
		for (err = errno; !mr && (err == ENOMEM || err == EAGAIN) && dp_mr_give_back(deadline); err = errno)
			mr = dp_mr_register(p->c->real, pd, dev, how);
		if (!mr)
			errno = err;
	}
	if (!mr)
		return NULL;
	if (how->kind == DP_MR_UNKNOWN) {
		dp_fallback(DP_FB_MR_TWIN_FAILED);
		return mr;
	}
	err = errno;
	record(p, mr, how, dev);
	errno = err;
	return mr;
}

struct ibv_mr *dp_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return reg(pd, &(struct dp_mr_how){ .kind = DP_MR_REG, .addr = addr, .length = length, .fd = -1,
					    .iova = (uint64_t)(uintptr_t)addr, .access = (unsigned int)access });
}

struct ibv_mr *dp_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return reg(pd, &(struct dp_mr_how){ .kind = DP_MR_IOVA, .addr = addr, .length = length, .fd = -1,
					    .iova = iova, .access = (unsigned int)access });
}

struct ibv_mr *dp_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	return reg(pd, &(struct dp_mr_how){ .kind = DP_MR_IOVA2, .addr = addr, .length = length, .fd = -1,
					    .iova = iova, .access = access });
}

struct ibv_mr *dp_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	return reg(pd, &(struct dp_mr_how){ .kind = DP_MR_DMABUF, .length = length, .iova = iova, .offset = offset,
					    .fd = fd, .access = (unsigned int)access });
}

/*
 * What attr asks for, as the older verbs say it: so the twins are made. A DMA handle and memory of ibv_alloc_buf are rail
 * 0's device's; the first is a hint, the second is registered by its address.
 */
static enum dp_mr_kind kind_of(const struct dp_mr_init_attr *a)
{
	const uint64_t fd = DP_MR_INIT_FD | DP_MR_INIT_FD_OFFSET, of_fd = fd | DP_MR_INIT_IOVA | DP_MR_INIT_DMAH;

	if (a->comp_mask & fd)
		return (a->comp_mask | DP_MR_INIT_DMAH) == of_fd ? DP_MR_DMABUF : DP_MR_UNKNOWN;
	if (!(a->comp_mask & DP_MR_INIT_ADDR) || a->comp_mask & ~(uint64_t)DP_MR_INIT_ALL)
		return DP_MR_UNKNOWN;
	return DP_MR_IOVA2;
}

struct ibv_mr *dp_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr)
{
	const struct dp_mr_init_attr *a = (const struct dp_mr_init_attr *)attr;
	struct dp_mr_how how = { .kind = kind_of(a), .length = a->length, .fd = -1, .access = (unsigned int)a->access,
				 .attr = attr };

	switch (how.kind) {
	case DP_MR_DMABUF:
		how.fd = a->fd;
		how.offset = a->fd_offset;
		how.iova = a->iova;
		break;
	case DP_MR_UNKNOWN: /* of a later version, perhaps */
		break;
	default:
		how.addr = a->addr;
		how.iova = a->comp_mask & DP_MR_INIT_IOVA ? a->iova : (uint64_t)(uintptr_t)a->addr;
	}
	return reg(pd, &how);
}

struct ibv_mr *dp_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access)
{
	return reg(pd, &(struct dp_mr_how){ .kind = DP_MR_IOVA2, .addr = addr, .length = length, .fd = -1,
					    .iova = (uint64_t)(uintptr_t)addr, .access = (unsigned int)access,
					    .buf = buf });
}

void dp_dmabuf_made(struct ibv_pd *pd, struct ibv_mr *mr, uint64_t offset, size_t length, uint64_t iova, int fd,
		    int access)
{
	const struct dp_mr_how how = { .kind = DP_MR_DMABUF, .length = length, .iova = iova, .offset = offset,
				       .fd = fd, .access = (unsigned int)access };
	struct dp_pd *p = dp_pd_find(pd);
	uint32_t dev;

	if (!p)
		return;
	dp_pd_settle(p, (const void *)(uintptr_t)iova);
	dev = dp_key_dev(p->c->dev);
	/* no other key can be asked for any more */
	dp_key_wait(dev, mr->rkey, dp_now_ns() + dp_lease_bound());
	record(p, mr, &how, dev);
}

int dp_dereg_mr(struct ibv_mr *mr)
{
	const struct dp_verbs *real = dp_real_of(mr->context);
	struct dp_mr_rec *r = dp_mr_of(mr);
	struct dp_holder *h;
	int ret;

	if (!real || !real->dereg_mr)
		return EOPNOTSUPP;
	if (!r)
		return real->dereg_mr(mr);
	pthread_rwlock_rdlock(&dp_mr_life);
	/*
	 * Out of the maps and the keys into quarantine before the real call: from its success on, another thread
	 * may be given the same pointer, lkey and rkey.
	 */
	dp_hmap_del(&mrs, (uint64_t)(uintptr_t)r->m.mr);
	h = dp_mr_unpublish(r);
	dp_holders_block(h, NULL);
	ret = real->dereg_mr(mr);
	if (ret) { /* memory windows are bound to it, say: everything stays as it was */
		int err = errno;

		dp_holders_unblock(h);
		dp_take(&r->m.pd->lock);
		r->m.holders = h;
		dp_drop(&r->m.pd->lock);
		dp_mr_publish(r);
		if (dp_hmap_put(&mrs, (uint64_t)(uintptr_t)r->m.mr, r))
			dp_warn("%s: out of memory: twins of a memory region are lost", r->m.pd->c->dev);
		errno = err;
		goto out;
	}
	dp_mr_twins_drop(r);
	dp_holders_invalidate(h, 0);
	dp_mr_forget(r);
out:
	pthread_rwlock_unlock(&dp_mr_life);
	return ret;
}

/*
 * Of a region that this process registered and another imported: it lives on there, and so do its keys, so nothing may be
 * on its way to the twins when they go.
 */
void dp_unimport_mr(struct ibv_mr *mr)
{
	const struct dp_verbs *real = dp_real_of(mr->context);
	struct dp_mr_rec *r = dp_mr_find(mr);

	if (!real || !real->unimport_mr)
		return;
	if (!r) {
		real->unimport_mr(mr);
		return;
	}
	pthread_rwlock_rdlock(&dp_mr_life);
	dp_hmap_del(&mrs, (uint64_t)(uintptr_t)mr);
	dp_mr_settle(r, dp_now_ns() + dp_lease_bound());
	dp_mr_twins_drop(r);
	real->unimport_mr(mr);
	dp_mr_forget(r);
	pthread_rwlock_unlock(&dp_mr_life);
}

static void unlist(void *val, void *arg)
{
	struct dp_mr_rec *r = val;

	(void)arg;
	r->listed = false;
}

void dp_mr_after_fork(void)
{
	static const pthread_rwlock_t unlocked = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

	dp_lock_init(&list_lock);
	dp_lock_init(&devs_lock);
	dp_lock_init(&mrs.lock);
	dp_hmap_each(&mrs, unlist, NULL); /* dp_push_pd_after_fork() emptied the lists */
	dp_mr_life = unlocked;
}

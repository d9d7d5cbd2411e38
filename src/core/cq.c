// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Completion queues: the program's, of which there is a record each, and the internal ones, for twins, behind them. */
#include "cq_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ICQ_MIN 1024

struct dp_hmap dp_cqs = DP_HMAP_INIT;

struct dp_cq *dp_cq_find(struct ibv_cq *cq)
{
	return dp_hmap_getp(&dp_cqs, cq);
}

static void unlock_one(void *val, void *arg)
{
	(void)arg;
	dp_lock_init(&((struct dp_cq *)val)->lock);
	dp_lock_init(&((struct dp_cq *)val)->qpns.lock);
	dp_cqex_after_fork(val);
}

void dp_cq_after_fork(void)
{
	dp_lock_init(&dp_cqs.lock);
	dp_hmap_each(&dp_cqs, unlock_one, NULL);
}

struct dp_cq *dp_cq_adopt(struct dp_ctx *c, struct ibv_cq *cq, struct dp_cqex *x, struct dp_channel *shadow)
{
	struct dp_cq *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	q->cq = cq;
	q->c = c;
	q->poll_cq = c->ops.poll_cq;
	q->ex = x;
	q->last_qpn = UINT64_MAX;
	q->turn = 1;
	q->ready_tail = &q->ready;
	q->stash_tail = &q->stash;
	dp_lock_init(&q->lock);
	dp_hmap_init(&q->qpns);
	if (dp_hmap_put(&dp_cqs, (uintptr_t)cq, q)) {
		dp_hmap_fini(&q->qpns);
		free(q);
		return NULL;
	}
	if (shadow)
		dp_channel_attach(shadow, q);
	return q;
}

struct ibv_cq *dp_create_cq(struct ibv_context *ctx, int cqe, void *cq_context, struct ibv_comp_channel *channel,
			    int vector)
{
	struct dp_ctx *c = dp_ctx_get(ctx);
	struct dp_channel *shadow = NULL;
	struct ibv_cq *cq;

	if (!c || !c->grouped)
		return (c ? c->real : dp_stub->real_of(ctx))->create_cq(ctx, cqe, cq_context, channel, vector);
	cq = c->real->create_cq(ctx, cqe, cq_context, dp_channel_real(channel, &shadow), vector);
	if (!cq)
		return NULL;
	if (!dp_cq_adopt(c, cq, NULL, shadow) && shadow)
		dp_channel_attach_plain(shadow, cq);
	return cq;
}

static void free_icqs(struct dp_cq *q)
{
	struct dp_icq *i, *next;

	for (i = q->icqs; i; i = next) {
		next = i->next;
		if (q->c->real->destroy_cq(i->cq))
			dp_info("internal cq on %s: destroy: %s", i->sib->text, strerror(errno));
		free(i);
	}
	q->icqs = NULL;
}

static void free_list(struct dp_stash *s)
{
	for (struct dp_stash *next; s; s = next) {
		next = s->next;
		free(s);
	}
}

static void free_cq(struct dp_cq *q)
{
	free_icqs(q);
	free_list(q->stash);
	free_list(q->unstashed);
	dp_cqex_free(q);
	dp_hmap_fini(&q->qpns);
	dp_lock_fini(&q->lock);
	free(q);
}

struct of_ctx {
	const struct dp_ctx *c;
	struct dp_cq *found;
};

static void find_of_ctx(void *val, void *arg)
{
	struct of_ctx *f = arg;

	if (((struct dp_cq *)val)->c == f->c)
		f->found = val;
}

void dp_cq_abandon(struct dp_ctx *c)
{
	struct of_ctx f = { .c = c };

	while (f.found = NULL, dp_hmap_each(&dp_cqs, find_of_ctx, &f), f.found) {
		dp_progress_forget(f.found);
		dp_hmap_del(&dp_cqs, (uintptr_t)f.found->cq);
		dp_channel_detach(f.found);
		dp_chanwatch_settle();
		free_cq(f.found);
	}
}

int dp_destroy_cq(struct ibv_cq *cq)
{
	struct dp_cq *q = dp_cq_find(cq);
	const struct dp_verbs *real = q ? q->c->real : dp_stub->real_of(cq->context);
	int ret;

	if (!q) {
		struct dp_channel *shadow = dp_channel_detach_plain(cq);

		ret = real->destroy_cq(cq);
		if (ret && shadow)
			dp_channel_attach_plain(shadow, cq);
		return ret;
	}
	dp_progress_forget(q);
	dp_channel_detach(q);
	dp_cqex_hide(q);
	/* it may be refused, so whoever polls meanwhile must find the record */
	ret = real->destroy_cq(cq);
	if (ret) {
		if (q->channel)
			dp_channel_attach(q->channel, q);
		if (atomic_load_explicit(&q->busy, memory_order_relaxed))
			dp_progress_watch(q);
		return ret;
	}
	dp_cqex_close(q);
	dp_hmap_del_if(&dp_cqs, (uintptr_t)cq, q); /* a new one may have its address already */
	dp_progress_forget(q);
	free_cq(q);
	return 0;
}

struct dp_icq *dp_icq_get(struct dp_cq *cq, struct dp_sib *sib, uint32_t n)
{
	struct dp_icq *i;
	uint32_t size = n > ICQ_MIN ? n : ICQ_MIN;

	dp_take(&cq->lock);
	for (i = cq->icqs; i; i = i->next)
		if (i->sib == sib && i->size - i->used >= n)
			break;
	if (!i) {
		/* room for several QPs, as far as the device goes; more of them are made when it is full */
		if (size < 8 * n)
			size = 8 * n;
		if (sib->attr.max_cqe > 0 && size > (uint32_t)sib->attr.max_cqe)
			size = (uint32_t)sib->attr.max_cqe;
		i = size >= n ? calloc(1, sizeof(*i)) : NULL;
		if (i)
			i->cq = cq->c->real->create_cq(sib->ctx, (int)size, &dp_made_by_us, NULL, 0);
		if (!i || !i->cq) {
			free(i);
			i = NULL;
			goto out;
		}
		i->sib = sib;
		i->size = size;
		i->next = cq->icqs;
		if (!i->next)
			dp_channel_watch(cq);
		/* post.c walks the list without the lock */
		__atomic_store_n(&cq->icqs, i, __ATOMIC_RELEASE);
	}
	i->used += n;
out:
	dp_drop(&cq->lock);
	return i;
}

void dp_icq_put(struct dp_cq *cq, struct dp_icq *icq, uint32_t n)
{
	dp_take(&cq->lock);
	icq->used -= n;
	dp_drop(&cq->lock);
}

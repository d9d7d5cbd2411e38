// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The queue of WRs that wait, whole or in part: copies, and posting them when they may go. */
#include "qp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define COPIES_MAX 1024u

static size_t size_of(const struct dp_qp *q, size_t nsge, bool parts, size_t bytes)
{
	size_t size = sizeof(struct dp_qwr) + nsge * sizeof(struct ibv_sge) + bytes;

	if (parts)
		size += q->nrails * (sizeof(struct dp_part) + (1 + nsge) * sizeof(uint32_t));
	/* the next one is as aligned as the first */
	return (size + 15) & ~(size_t)15;
}

void dp_copies_make(struct dp_qp *q)
{
	struct dp_copies *c = &q->copies;

	c->room = size_of(q, q->cap.max_send_sge, true, q->cap.max_inline_data);
	/* most of it is never touched; but it may be locked in memory, so there is an end to it */
	c->n = q->cap.max_send_wr < COPIES_MAX ? q->cap.max_send_wr : COPIES_MAX;
	c->mem = malloc(c->n * c->room);
	if (!c->mem)
		c->n = 0;
}

void dp_copies_free(struct dp_qp *q)
{
	free(q->copies.mem);
	q->copies = (struct dp_copies){ 0 };
}

static struct dp_qwr *get(struct dp_copies *c, size_t size)
{
	struct dp_qwr *w = c->unused;

	if (size > c->room)
		return malloc(size);
	if (w) {
		c->unused = w->next;
		return w;
	}
	return c->begun < c->n ? (struct dp_qwr *)(c->mem + c->room * c->begun++) : malloc(size);
}

static void put(struct dp_copies *c, struct dp_qwr *w)
{
	uintptr_t mem = (uintptr_t)c->mem, at = (uintptr_t)w;

	if (at < mem || at >= mem + c->n * c->room) {
		free(w);
		return;
	}
	w->next = c->unused;
	c->unused = w;
}

void dp_qwr_drop(struct dp_qp *q, uint64_t pos)
{
	struct dp_slot *s = dp_qp_slot(q, pos);

	if (s->qwr)
		put(&q->copies, s->qwr);
	s->qwr = NULL;
}

struct dp_qwr *dp_qwr_new(struct dp_qp *q, const struct ibv_send_wr *wr, const struct dp_part *part,
			  const uint32_t *rkey, const uint32_t *lkey)
{
	size_t nsge = (size_t)wr->num_sge, bytes = 0;
	bool inlined = wr->send_flags & IBV_SEND_INLINE;
	struct dp_qwr *w;

	for (size_t i = 0; inlined && i < nsge; i++)
		bytes += wr->sg_list[i].length;
	w = get(&q->copies, size_of(q, nsge, part, bytes));
	if (!w)
		return NULL;
	*w = (struct dp_qwr){ .wr = *wr, .inlined = inlined };
	w->wr.next = NULL;
	w->wr.sg_list = w->sge;
	/*
	 * In post_send providers read no more of it than this (pd, type, rkey). irdma also writes the new key into it, which
	 * programs do themselves, for all providers.
	 */
	if (wr->opcode == IBV_WR_BIND_MW) {
		w->mw = *wr->bind_mw.mw;
		w->wr.bind_mw.mw = &w->mw;
	}
	if (nsge)
		memcpy(w->sge, wr->sg_list, nsge * sizeof(w->sge[0]));
	if (part) {
		w->part = (struct dp_part *)&w->sge[nsge];
		w->rkey = (uint32_t *)&w->part[q->nrails];
		w->lkey = &w->rkey[q->nrails];
		memcpy(w->part, part, q->nrails * sizeof(*part));
		memcpy(w->rkey, rkey, q->nrails * sizeof(*rkey));
		memcpy(w->lkey, lkey, q->nrails * nsge * sizeof(*lkey));
	}
	/* inline bytes are the program's again when post_send returns */
	if (inlined) {
		uint8_t *p = part ? (uint8_t *)&w->lkey[q->nrails * nsge] : (uint8_t *)&w->sge[nsge];

		for (size_t i = 0; i < nsge; i++) {
			memcpy(p, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
			w->sge[i].addr = (uintptr_t)p;
			p += wr->sg_list[i].length;
		}
	}
	return w;
}

/* Both the rail-0 WR and the sibling parts went: the copy is not needed. */
static void drop_copy(struct dp_qp *q, uint64_t pos)
{
	if (pos < q->order.post0 && (pos < q->order.posts || dp_order_op(&q->order, pos)->whole))
		dp_qwr_drop(q, pos);
}

void dp_queue_drop(struct dp_qp *q)
{
	for (uint64_t p = q->order.tail; p < q->order.next; p++)
		dp_qwr_drop(q, p);
}

static void count_wait(struct dp_qp *q, uint64_t pos, uint64_t first, uint64_t now)
{
	/* several go at once: what came lets the first go, and that one the others */
	if (!(dp_order_op(&q->order, pos)->flags & DP_OP_BULK))
		dp_signal_waited(now - dp_qp_slot(q, pos)->qwr->since, pos == first ? q->event : DP_WAIT_TURN);
}

/* Returns 1: something went; 0: nothing may go; -1: refused. */
static int release0(struct dp_qp *q)
{
	struct dp_order *o = &q->order;
	uint64_t first = o->post0, now;
	unsigned accepted;
	int ret;

	while (dp_order_may_post0(o) && !dp_chain_full(q, 0)) {
		struct dp_qwr *w = dp_qp_slot(q, o->post0)->qwr;

		dp_chain_add0(q, &w->wr, w->part ? &w->part[0] : NULL, dp_qp_slot(q, o->post0)->byte_len);
		dp_order_posted0(o);
	}
	if (o->post0 == first)
		return 0;
	ret = dp_chain_post0(q, &accepted);
	dp_order_unposted0(o, first + accepted);
	now = dp_now_ns();
	for (uint64_t p = first; p < o->post0; p++) {
		count_wait(q, p, first, now);
		dp_qp_slot(q, p)->posted_ns = now;
		drop_copy(q, p);
	}
	/* a provider may free a slot of its queue a little after giving the completion: try again later */
	q->retry = ret == ENOMEM || ret == -ENOMEM; /* the latter says qedr */
	q->event = q->retry ? DP_WAIT_ROOM : DP_WAIT_TURN;
	if (q->retry)
		return accepted != 0;
	return ret ? -1 : 1;
}

/* Of ops before `end`. */
static int release_siblings(struct dp_qp *q, uint64_t end)
{
	struct dp_order *o = &q->order;
	uint64_t first = o->posts;
	bool any = false, full = false;

	while (!full && dp_order_may_posts(o) && o->posts < end) {
		uint64_t pos = o->posts;
		const struct dp_qwr *w = dp_qp_slot(q, pos)->qwr;

		for (uint32_t r = 1; r < q->nrails; r++) {
			if (w->part[r].len)
				dp_chain_add(q, r, &w->wr, &w->part[r], &w->lkey[r * (uint32_t)w->wr.num_sge],
					     w->rkey[r], dp_order_rail(o, pos, r)->seq,
					     dp_order_op(o, pos)->flags & DP_OP_EVERY);
			full |= dp_chain_full(q, r);
		}
		dp_order_posteds(o);
		any = true;
	}
	if (!any)
		return 0;
	if (!dp_chain_posts(q))
		return -1;
	for (uint64_t p = first; p < o->posts; p++)
		drop_copy(q, p);
	return 1;
}

enum dp_release dp_qp_release(struct dp_qp *q)
{
	int a, b;

	if (!dp_order_queued(&q->order))
		return DP_RELEASED;
	do {
		a = release0(q);
		if (a < 0)
			return DP_REFUSED0;
		b = release_siblings(q, UINT64_MAX);
		if (b < 0)
			return DP_REFUSED;
	} while (a || b);
	return DP_RELEASED;
}

bool dp_queue_settle(struct dp_qp *q, uint64_t end)
{
	int ret = 0;

	while (q->order.posts < end && (ret = release_siblings(q, end)) > 0)
		;
	return ret >= 0;
}

void dp_queue_flush(struct dp_qp *q, bool in_err, uint64_t end)
{
	struct dp_order *o = &q->order;
	bool refused = !in_err;

	while (o->post0 < o->next) {
		uint64_t pos = o->post0;
		struct dp_slot *s = dp_qp_slot(q, pos);
		struct ibv_send_wr *bad;

		dp_order_posted0(o);
		/* once it takes none, also none behind it, which it would tell of earlier: say what it would have said */
		if (!refused)
			refused = !s->qwr || q->post_send(q->qp, &s->qwr->wr, &bad);
		if (refused)
			dp_fail_fake(q, pos);
	}
	for (uint64_t p = o->tail; p < o->next; p++)
		if (p >= end || p < o->posts || dp_order_op(o, p)->whole)
			dp_qwr_drop(q, p);
}

void dp_qp_update_busy(struct dp_qp *q)
{
	bool busy = atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_FAILING ||
		    (atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_BONDED &&
		     (q->fail_waits || dp_order_queued(&q->order) || dp_order_held(&q->order) != UINT64_MAX));

	if (busy != q->busy) {
		q->busy = busy;
		atomic_fetch_add_explicit(&q->scq->busy, busy ? 1 : (uint32_t)-1, memory_order_relaxed);
	}
	if (busy)
		dp_progress_watch(q->scq);
}

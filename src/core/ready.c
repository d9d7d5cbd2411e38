// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What a CQ has to give beside what the provider has: completions that the progress thread read ahead (the stash), and QPs that
 * hold some (the ready list). Both stand by turn, so that they are given as they came.
 */
#include "cq_priv.h"

#include <stdlib.h>

/* Links q in at *p. The list stands by turn. */
static void link_ready(struct dp_cq *cq, struct dp_qp *q, struct dp_qp **p, uint64_t turn)
{
	q->on_ready = true;
	q->ready_turn = turn;
	q->ready_next = *p;
	*p = q;
	if (!q->ready_next)
		cq->ready_tail = &q->ready_next;
}

void dp_cq_ready(struct dp_cq *cq, struct dp_qp *q)
{
	if (!q->on_ready)
		link_ready(cq, q, cq->ready_tail, cq->turn++);
}

/* Back on the list, with the turn of what it has to give next. */
static void ready_again(struct dp_cq *cq, struct dp_qp *q, uint64_t turn)
{
	struct dp_qp **p;

	for (p = &cq->ready; *p && (*p)->ready_turn < turn; p = &(*p)->ready_next)
		;
	link_ready(cq, q, p, turn);
}

void dp_cq_unready(struct dp_cq *cq, struct dp_qp *q)
{
	struct dp_qp **p;

	if (!q->on_ready)
		return;
	for (p = &cq->ready; *p != q; p = &(*p)->ready_next)
		;
	*p = q->ready_next;
	if (cq->ready_tail == &q->ready_next)
		cq->ready_tail = p;
	q->on_ready = false;
}

struct dp_qp *dp_cq_find_sender(struct dp_cq *cq, uint32_t qp_num)
{
	cq->last = dp_hmap_get(&cq->qpns, qp_num);
	cq->last_qpn = cq->last ? qp_num : UINT64_MAX;
	return cq->last;
}

void dp_cq_stash(struct dp_cq *cq)
{
	struct dp_stash *s = cq->unstashed;
	struct dp_qp *q = sender_of(cq, s->wc.qp_num);

	s->more = cq->more;
	s->turn = cq->turn++;
	if (q)
		q->stash_turn = s->turn;
	/* what is here must be found even if the last QP of this CQ goes native meanwhile */
	if (!cq->stash)
		atomic_fetch_add_explicit(&cq->active, 1, memory_order_relaxed);
	cq->unstashed = s->next;
	s->next = NULL;
	*cq->stash_tail = s;
	cq->stash_tail = &s->next;
}

void dp_cq_purge(struct dp_cq *cq, uint32_t qp_num)
{
	struct dp_stash **p = &cq->stash, *s;
	struct dp_qp *q;

	if (!cq->stash)
		return;
	q = sender_of(cq, qp_num);
	if (q)
		q->stash_turn = 0;
	while ((s = *p)) {
		if (s->wc.qp_num != qp_num) {
			p = &s->next;
			continue;
		}
		*p = s->next;
		free(s);
	}
	cq->stash_tail = p;
	if (!cq->stash)
		atomic_fetch_sub_explicit(&cq->active, 1, memory_order_relaxed);
}

/* A held completion is given. */
static void more_of(struct dp_cq *cq, const struct dp_slot *s)
{
	cq->more.ts = s->ts;
	cq->more.wall_ns = s->wall_ns;
}

static void take_stashed(struct dp_cq *cq, struct ibv_wc *wc)
{
	struct dp_stash *s = cq->stash;

	*wc = s->wc;
	cq->more = s->more;
	cq->stash = s->next;
	if (!cq->stash) {
		cq->stash_tail = &cq->stash;
		atomic_fetch_sub_explicit(&cq->active, 1, memory_order_relaxed);
	}
	/* the program's thread leaves the C library's memory alone: see release.c */
	s->next = cq->unstashed;
	cq->unstashed = s;
}

static bool stashed_before(const struct dp_cq *cq, uint64_t turn)
{
	return cq->stash && cq->stash->turn < turn;
}

/*
 * Is the stash's turn, not that of q, the first on the ready list (NULL: there is none)? One CQ gives its completions as they
 * came: if either had precedence, a program that answers each receive with a send would fill its send queue with requests
 * whose completions it never gets.
 */
static bool stash_is_next(const struct dp_cq *cq, const struct dp_qp *q)
{
	if (!q)
		return cq->stash;
	if (stashed_before(cq, q->ready_turn))
		return true;
	/* its receives that were good come before those that were flushed: is the last of them still there? */
	return atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_FAILING && cq->stash &&
	       q->stash_turn >= cq->stash->turn;
}

/* Gives what was read ahead, and what QPs on the ready list have. */
int dp_cq_take_ready(struct dp_cq *cq, int n, struct ibv_wc *wc)
{
	struct dp_qp *q, *again = NULL;
	int got = 0;

	while (got < n) {
		const struct dp_slot *rest = NULL;
		uint64_t pos;
		bool more = false;

		q = cq->ready == again ? NULL : cq->ready;
		if (stash_is_next(cq, q)) {
			take_stashed(cq, &wc[got++]);
			continue;
		}
		if (!q)
			break;
		dp_take(&q->lock);
		if (dp_qp_again(q))
			dp_cq_release(q);
		if (atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_FAILING) {
			if (dp_cq_armed(cq))
				dp_cq_tell(cq, q);
			while (got < n && (more = dp_fail_next(q, &wc[got])))
				got++;
			/* what comes behind this has an event of its own */
			if (q->fail_told && (!more || !dp_fail_ready(q)))
				q->fail_told = false;
			/* its twins' flushes may still be under way: it stays on the list until it has ended */
			more = atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_FAILING;
		} else {
			while ((pos = dp_order_deliverable(&q->order)) != UINT64_MAX) {
				const struct dp_slot *s = dp_qp_slot(q, pos);

				if (got == n || stashed_before(cq, s->turn)) {
					rest = s;
					break;
				}
				wc[got++] = s->wc;
				more_of(cq, s);
				dp_order_delivered(&q->order);
			}
			more |= dp_qp_again(q);
		}
		dp_qp_update_busy(q);
		dp_cq_unready(cq, q);
		if (rest) {
			ready_again(cq, q, rest->turn);
		} else if (more) {
			dp_cq_ready(cq, q);
			if (!again)
				again = q;
		}
		dp_drop(&q->lock);
	}
	return got;
}

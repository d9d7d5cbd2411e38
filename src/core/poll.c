// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Completions. Rail 0's arrive in the program's own CQ and are matched to its WRs by position; those whose siblings are not done
 * are held in the QP. Twins complete into internal CQs that hang behind the program's.
 */
#include "cq_priv.h"
#include "bond.h"
#include "order_short.h"

#include <errno.h>
#include <stdlib.h>

#define POLL_BATCH 16

/* With both locks: has q something to give, or to do? */
static bool worth_a_look(struct dp_qp *q)
{
	return dp_qp_again(q) || atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_FAILING ||
	       dp_order_deliverable(&q->order) != UINT64_MAX;
}

/* Posts the flushes that have become due; also for a QP that has failed, as long as its twins are well. */
static void flush(struct dp_qp *q)
{
	int state = atomic_load_explicit(&q->state, memory_order_relaxed);
	bool due = false;

	if (state == DP_QP_NATIVE || state == DP_QP_PENDING || q->twins_err)
		return;
	for (uint32_t r = 0; r < q->order.nrails && !due; r++)
		due = dp_order_flush_due(&q->order, r, r ? q->rail[r].posted : q->order.done[0]);
	if (due && !dp_chain_posts(q))
		dp_fail_sibling(q, IBV_WC_LOC_QP_OP_ERR, UINT64_MAX);
}

void dp_cq_release(struct dp_qp *q)
{
	if (q->going)
		return;
	if (atomic_load_explicit(&q->state, memory_order_relaxed) != DP_QP_BONDED) {
		if (atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_FAILING)
			dp_fail_go_on(q);
		flush(q);
		return;
	}
	if (q->fail_waits) {
		dp_fail_waited(q);
		if (!q->fail_waits)
			return;
	}
again:
	switch (dp_qp_release(q)) {
	case DP_RELEASED:
		flush(q);
		if (dp_queue_may_go(q))
			goto again;
		break;
	case DP_REFUSED0:
		dp_fail_refused(q);
		break;
	case DP_REFUSED:
		dp_fail_sibling(q, IBV_WC_LOC_QP_OP_ERR, UINT64_MAX);
		break;
	}
}

/*
 * One port raises an event for an armed CQ when it puts a completion there, whoever takes it, and if somebody does at once.
 * For us that is when a completion is first seen to be deliverable: here, where q has one, or below, where it is given. As
 * long as nothing can be held, the kernel's event is the program's, and one of ours would be a second one.
 */
__attribute__((noinline)) void dp_cq_tell(struct dp_cq *cq, struct dp_qp *q)
{
	if (atomic_load_explicit(&q->state, memory_order_relaxed) != DP_QP_FAILING) {
		if (dp_cq_holds(cq) && dp_order_news(&q->order))
			dp_arm_raise(cq);
	} else if (dp_fail_ready(q) && !q->fail_told) {
		dp_arm_raise_error(cq);
	}
}

__attribute__((noinline)) static void tell_given(struct dp_cq *cq, const struct ibv_wc *wc)
{
	if (!dp_cq_holds(cq))
		return;
	if (wc->status != IBV_WC_SUCCESS) {
		dp_arm_raise_error(cq);
		return;
	}
	/* if it is solicited, as only the kernel can tell, it will */
	if (wc->opcode & IBV_WC_RECV)
		cq->recv_seen = true;
	dp_arm_raise(cq);
}

void dp_cq_go_on(struct dp_cq *cq, struct dp_qp *q)
{
	dp_cq_release(q);
	/* one that has ended may be freed as soon as its twins are gone: it must not get on the list again */
	if (atomic_load_explicit(&q->state, memory_order_relaxed) != DP_QP_NATIVE && worth_a_look(q))
		dp_cq_ready(cq, q);
	/* one that is failing is asked where it may be moved on: by who polls, or in progress */
	if (dp_cq_armed(cq) && atomic_load_explicit(&q->state, memory_order_relaxed) != DP_QP_FAILING)
		dp_cq_tell(cq, q);
	if (atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_BONDED)
		dp_meter_update(q);
	dp_qp_update_busy(q);
}

/*
 * The common case of twin_done(), which else does it: a good completion of fragments, where nothing is queued or held, so
 * that nobody waits for it.
 */
static inline bool note_done(struct dp_icq *icq, struct dp_rail *rail, const struct ibv_wc *wc)
{
	struct dp_qp *q = rail->q;

	/* a retry is of what is queued, as is what a flush lets go; the spare has nothing but flushes */
	if (wc->status != IBV_WC_SUCCESS || (wc->wr_id & DP_FLUSH_BIT) || rail->probe == DP_PROBE_SENT || q->busy ||
	    q->retry || dp_order_queued(&q->order) || q->order.flush ||
	    (dp_order_may_hold(&q->order) && dp_order_held(&q->order) != UINT64_MAX) ||
	    atomic_load_explicit(&q->state, memory_order_relaxed) != DP_QP_BONDED)
		return false;
	atomic_fetch_sub_explicit(&icq->pending, 1, memory_order_relaxed);
	rail->signaled--;
	if (wc->wr_id > rail->seen)
		rail->seen = wc->wr_id;
	if (!dp_order_done_one(&q->order, rail->idx, wc->wr_id))
		dp_order_done(&q->order, rail->idx, wc->wr_id);
	if (dp_meter_of_note(q, rail->idx))
		dp_meter_update(q);
	return true;
}

static void twin_done(struct dp_cq *cq, struct dp_icq *icq, const struct ibv_wc *wc)
{
	struct dp_rail *rail = dp_hmap_get(&icq->sib->twins, wc->qp_num);
	bool flush = wc->wr_id & DP_FLUSH_BIT;
	struct dp_qp *q;
	uint64_t seq;

	if (!rail || rail->icq != icq)
		return; /* of a twin that is gone */
	q = rail->q;
	dp_take(&q->lock);
	if (note_done(icq, rail, wc)) {
		dp_drop(&q->lock);
		return;
	}
	seq = dp_flush_covers(wc->wr_id);
	if (rail->probe == DP_PROBE_SENT) {
		atomic_fetch_sub_explicit(&icq->pending, 1, memory_order_relaxed);
		rail->signaled--;
		rail->probe = wc->status == IBV_WC_SUCCESS ? DP_PROBE_OK : DP_PROBE_FAILED;
		dp_meter_rtt(q, dp_now_ns() - rail->probe_ns);
		dp_drop(&q->lock);
		return;
	}
	if (seq > rail->seen)
		rail->seen = seq;
	if (wc->status != IBV_WC_SUCCESS && rail == q->spare) {
		dp_spare_lost(q, wc->status);
	} else if (wc->status == IBV_WC_SUCCESS) {
		atomic_fetch_sub_explicit(&icq->pending, 1, memory_order_relaxed);
		rail->signaled--;
		q->event = flush ? DP_WAIT_FLUSH : DP_WAIT_ACK;
		if (flush)
			dp_flush_done(q, rail, wc->wr_id);
		else
			dp_order_done(&q->order, rail->idx, seq);
	} else if (!rail->dead) {
		rail->dead = true;
		/* RC completes in order: what stood before the one that failed has arrived */
		if (wc->status != IBV_WC_WR_FLUSH_ERR && seq)
			dp_order_done(&q->order, rail->idx, flush ? seq : seq - 1);
		if (atomic_load_explicit(&q->state, memory_order_relaxed) != DP_QP_FAILING) {
			/* a wrong key or range is the program's affair, and it is told */
			dp_log_at(wc->status == IBV_WC_REM_ACCESS_ERR ? DP_LOG_INFO : DP_LOG_WARN,
				  "qp 0x%x: %s: twin 0x%x: %s %llu: %s", q->qp_num, rail->sib->text,
				  rail->twin->qp_num, flush ? "flush of fragment" : "fragment", (unsigned long long)seq,
				  q->c->real->wc_status_str(wc->status));
			dp_fallback(DP_FB_RAIL_LOST);
		}
		dp_fail_sibling(q, wc->status, flush ? UINT64_MAX : dp_order_of(&q->order, rail->idx, seq));
	}
	dp_cq_go_on(cq, q);
	dp_drop(&q->lock);
}

__attribute__((noinline)) static void poll_icqs(struct dp_cq *cq)
{
	struct ibv_wc wc[POLL_BATCH];
	int n;

	for (struct dp_icq *i = cq->icqs; i; i = i->next) {
		if (!atomic_load_explicit(&i->pending, memory_order_relaxed))
			continue;
		do {
			n = i->cq->context->ops.poll_cq(i->cq, POLL_BATCH, wc);
			for (int k = 0; k < n; k++)
				twin_done(cq, i, &wc[k]);
		} while (n == POLL_BATCH);
	}
}

/*
 * The common case of intake(), which else does it: nothing is held or queued, and all that this completion stands for is
 * done. So nobody waits for it either.
 */
static inline __attribute__((always_inline)) bool give_at_once(struct dp_cq *cq, struct ibv_wc *wc)
{
	struct dp_qp *q = sender_of(cq, wc->qp_num);
	const struct dp_op *op;
	uint64_t pos;

	if (!q)
		return true;
	if (wc->status != IBV_WC_SUCCESS || wc->opcode & IBV_WC_RECV)
		return false;
	dp_take(&q->lock);
	/* open: it is bonded, nothing is queued, and what is held the order machine sees */
	if (__builtin_expect(!q->order.open, 0) &&
	    (atomic_load_explicit(&q->state, memory_order_relaxed) != DP_QP_BONDED || q->busy || q->on_ready))
		goto no;
	if (!dp_order_take(&q->order, &op))
		goto no;
	pos = q->order.deliver - 1;
	if (!op->whole && dp_qp_slot(q, pos)->opcode == IBV_WR_RDMA_READ)
		wc->byte_len = dp_qp_slot(q, pos)->byte_len;
	dp_trip_ends(q, pos, q->order.open);
	/* siblings' are told of when they complete */
	if (dp_meter_needed(q) && dp_meter_of_note(q, 0))
		dp_meter_update(q);
	dp_drop(&q->lock);
	return true;
no:
	dp_drop(&q->lock);
	return false;
}

/*
 * A completion of the program's CQ. True: it may be given now (wc perhaps completed); false: it is held. late:
 * hold it in any case, nobody is here to take it.
 */
__attribute__((noinline)) static bool intake(struct dp_cq *cq, struct ibv_wc *wc, bool late)
{
	struct dp_qp *q = sender_of(cq, wc->qp_num);
	struct dp_slot *s;
	bool give = true;
	uint64_t pos;
	int state;

	if (!q)
		return true;
	dp_take(&q->lock);
	state = atomic_load_explicit(&q->state, memory_order_relaxed);
	if (state == DP_QP_NATIVE)
		goto out;
	if (wc->status != IBV_WC_SUCCESS) {
		if (state == DP_QP_PENDING)
			goto out;
		dp_fail_rail0(q, wc);
		dp_cq_ready(cq, q);
		dp_qp_update_busy(q);
		give = false;
		goto out;
	}
	if (wc->opcode & IBV_WC_RECV)
		goto out;
	pos = dp_order_match(&q->order);
	if (pos == UINT64_MAX) {
		if (!q->unrecorded)
			dp_warn("qp 0x%x: completion of wr_id 0x%llx was not expected", wc->qp_num,
				(unsigned long long)wc->wr_id);
		goto out;
	}
	s = dp_qp_slot(q, pos);
	/* matched wrongly: one before it was never seen. Not to be bonded then. */
	if (state == DP_QP_PENDING && s->wr_id != wc->wr_id)
		q->unrecorded = true;
	/* the provider knows only rail 0's part; senders are given no byte_len but for what they read */
	if (s->opcode == IBV_WR_RDMA_READ && !dp_order_op(&q->order, pos)->whole)
		wc->byte_len = s->byte_len;
	if (state == DP_QP_PENDING || (!late && state == DP_QP_BONDED && dp_order_deliverable(&q->order) == pos)) {
		dp_order_delivered(&q->order);
	} else {
		s->wc = *wc;
		s->ts = cq->more.ts;
		s->wall_ns = cq->more.wall_ns;
		s->held_since = dp_now_ns();
		s->turn = cq->turn++;
		s->reported = false;
		dp_count(&dp_counters.held, 1);
		give = false;
	}
	dp_trip_ends(q, pos, false);
	dp_cq_go_on(cq, q);
out:
	dp_drop(&q->lock);
	return give;
}

/* As poll_cq of the program's own CQ. */
static inline int read_own(struct dp_cq *cq, int n, struct ibv_wc *wc)
{
	return cq->ex ? dp_cqex_read(cq, n, wc) : cq->poll_cq(cq->cq, n, wc);
}

/* One that was read. Whoever gives it sees to its event: tell_given(). False: it is not to be given, or not yet. */
static inline __attribute__((always_inline)) bool give(struct dp_cq *cq, struct ibv_wc *wc)
{
	return give_at_once(cq, wc) || intake(cq, wc, false);
}

static inline void poll_begin(struct dp_cq *cq)
{
	dp_take(&cq->lock);
	atomic_fetch_add_explicit(&cq->polls, 1, memory_order_relaxed);
	for (const struct dp_icq *i = cq->icqs; i; i = i->next)
		if (atomic_load_explicit(&i->pending, memory_order_relaxed)) {
			poll_icqs(cq);
			break;
		}
}

static inline void poll_leave(struct dp_cq *cq, struct dp_wc_more *more)
{
	if (more)
		*more = cq->more;
	dp_drop(&cq->lock);
}

static inline void poll_end(struct dp_cq *cq, struct dp_wc_more *more)
{
	if (__builtin_expect(dp_cq_armed_old(cq), 0))
		dp_arm_polled(cq);
	poll_leave(cq, more);
}

/* Between poll_begin() and poll_end(). */
__attribute__((noinline)) static int poll_some(struct dp_cq *cq, int n, struct ibv_wc *wc)
{
	int got = cq->stash || cq->ready ? dp_cq_take_ready(cq, n, wc) : 0, k;

	while (got < n) {
		k = read_own(cq, n - got, wc + got);
		if (k <= 0) {
			if (k < 0 && !got)
				got = k;
			break;
		}
		for (int end = got + k, at = got; at < end; at++) {
			if (give(cq, &wc[at])) {
				if (__builtin_expect(dp_cq_armed(cq), 0))
					tell_given(cq, &wc[at]);
				if (at != got)
					wc[got] = wc[at];
				got++;
			}
		}
	}
	if (got >= 0 && got < n && (cq->stash || cq->ready))
		got += dp_cq_take_ready(cq, n - got, wc + got);
	return got;
}

/* The rarer ends of poll_one(), apart, so that it keeps nothing for them. */
__attribute__((noinline)) static int poll_rest(struct dp_cq *cq, struct ibv_wc *wc, struct dp_wc_more *more)
{
	int got = poll_some(cq, 1, wc);

	poll_end(cq, more);
	return got;
}

__attribute__((noinline)) static int poll_none(struct dp_cq *cq, int got, struct dp_wc_more *more)
{
	poll_end(cq, more);
	return got;
}

__attribute__((noinline)) static void given_armed(struct dp_cq *cq, const struct ibv_wc *wc)
{
	if (dp_cq_armed(cq))
		tell_given(cq, wc);
	if (dp_cq_armed_old(cq))
		dp_arm_polled(cq);
}

/* One at a time is how most programs ask. */
static inline __attribute__((always_inline)) int poll_one(struct dp_cq *cq, struct ibv_wc *wc,
							   struct dp_wc_more *more, bool ex)
{
	int got;

	poll_begin(cq);
	if (__builtin_expect(cq->stash || cq->ready, 0))
		return poll_rest(cq, wc, more);
	got = ex ? read_own(cq, 1, wc) : cq->poll_cq(cq->cq, 1, wc);
	if (__builtin_expect(got <= 0, 0))
		return poll_none(cq, got, more);
	if (__builtin_expect(!give(cq, wc), 0))
		return poll_rest(cq, wc, more);
	if (__builtin_expect(atomic_load_explicit(&cq->armed, memory_order_relaxed) != DP_ARM_NONE, 0))
		given_armed(cq, wc);
	poll_leave(cq, more);
	return 1;
}

int dp_cq_poll_one(struct dp_cq *cq, struct ibv_wc *wc, struct dp_wc_more *more)
{
	return poll_one(cq, wc, more, true);
}

/* Apart, as poll_unknown() below. */
__attribute__((noinline)) int dp_cq_poll_plain(struct dp_cq *cq, struct ibv_wc *wc)
{
	return poll_one(cq, wc, NULL, false);
}

__attribute__((noinline)) static int poll_tracked(struct dp_cq *cq, int n, struct ibv_wc *wc)
{
	int got;

	poll_begin(cq);
	got = poll_some(cq, n, wc);
	poll_end(cq, NULL);
	return got;
}

/* Apart, so that the common path of dp_poll_cq() saves no registers. */
__attribute__((noinline)) static int poll_unknown(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	return dp_ctx_find(cq->context)->ops.poll_cq(cq, n, wc);
}

__attribute__((noinline)) static int poll_ex(struct dp_cq *q, int n, struct ibv_wc *wc)
{
	int got;

	dp_cqex_enter(q, true);
	got = poll_tracked(q, n, wc);
	dp_cqex_leave(q);
	return got;
}

int dp_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct dp_cq *q = dp_hmap_getp(&dp_cqs, cq);

	if (__builtin_expect(!q, 0))
		return poll_unknown(cq, n, wc);
	/*
	 * relaxed: a QP of this CQ becomes active in create_qp, before the program can post on it; whatever
	 * orders the program's post before its poll orders that, too
	 */
	if (!atomic_load_explicit(&q->active, memory_order_relaxed))
		return q->poll_cq(cq, n, wc);
	if (q->ex)
		return poll_ex(q, n, wc);
	return n == 1 ? dp_cq_poll_plain(q, wc) : poll_tracked(q, n, wc);
}

/* Reads the program's CQ ahead of the program: somebody waits for what rail 0 acknowledges. */
static void read_ahead(struct dp_cq *cq)
{
	/* who polls reads it */
	cq->unread = cq->ex && !dp_cqex_enter(cq, false);
	if (cq->unread)
		return;
	for (;;) {
		struct dp_stash *s = cq->unstashed;

		if (!s) {
			s = calloc(1, sizeof(*s));
			cq->unread = !s;
			if (!s)
				break;
			cq->unstashed = s;
		}
		if (read_own(cq, 1, &s->wc) != 1)
			break;
		if (!intake(cq, &s->wc, true))
			continue;
		if (dp_cq_armed(cq))
			tell_given(cq, &s->wc);
		dp_cq_stash(cq);
	}
	if (cq->ex)
		dp_cqex_leave(cq);
}

void dp_cq_progress(struct dp_cq *cq, bool take0)
{
	struct dp_qp *q;

	poll_icqs(cq);
	if (take0)
		read_ahead(cq);
	for (q = cq->ready; q; q = q->ready_next) {
		dp_take(&q->lock);
		if (dp_qp_again(q))
			dp_cq_release(q);
		/* asking one that is failing moves it on */
		if (dp_cq_armed(cq) || atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_FAILING)
			dp_cq_tell(cq, q);
		dp_drop(&q->lock);
	}
}

void dp_cq_all_told(struct dp_cq *cq)
{
	for (struct dp_qp *q = cq->ready; q; q = q->ready_next) {
		dp_take(&q->lock);
		if (atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_FAILING)
			q->fail_told = dp_fail_ready(q);
		else
			dp_order_news(&q->order);
		dp_drop(&q->lock);
	}
}

bool dp_cq_gives(struct dp_cq *cq, bool solicited_only)
{
	bool gives = false;

	for (const struct dp_stash *s = cq->stash; s && !gives; s = s->next)
		gives = !solicited_only || s->wc.status != IBV_WC_SUCCESS || (s->wc.opcode & IBV_WC_RECV);
	for (struct dp_qp *q = cq->ready; q && !gives; q = q->ready_next) {
		dp_take(&q->lock);
		gives = atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_FAILING ?
			dp_fail_ready(q) : !solicited_only && dp_order_deliverable(&q->order) != UINT64_MAX;
		dp_drop(&q->lock);
	}
	return gives;
}

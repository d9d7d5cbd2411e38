// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The end of a QP after its first error (I1). What rail 0 completed well before the error is still given in
 * order, each when its siblings are done, and what it did without a word is done by them, too: one port would have. Then the
 * twins are moved to ERR so that nothing of ours can land any more, and the rest of rail 0's completions is given as it came.
 */
#include "qp.h"

#include <stdlib.h>
#include <string.h>

#define FLUSH_LIMIT_NS UINT64_C(2000000000)
#define WAIT_LIMIT_NS UINT64_C(60000000000)
#define GRACE_NS UINT64_C(50000000) /* for rail 0's flushes, once it is in ERR */
#define SEEN_NS UINT64_C(10000000) /* what is acknowledged is in memory */
#define SILENT_NS UINT64_C(400000000) /* for what rail 0 does without telling */

/*
 * How long a healthy twin may take to complete what it has, or to give up by itself: the QP's own timeout and
 * retries (IBTA 9.7.6.1.3: a requester may wait up to four times the timeout).
 */
static uint64_t patience_ns(const struct dp_qp *q)
{
	uint64_t ns;

	if (!q->rts.timeout || q->rts.timeout > 24)
		return WAIT_LIMIT_NS;
	ns = (UINT64_C(4096) << q->rts.timeout) * 4 * (q->rts.retry_cnt + 1u);
	if (ns < FLUSH_LIMIT_NS)
		return FLUSH_LIMIT_NS;
	return ns < WAIT_LIMIT_NS ? ns : WAIT_LIMIT_NS;
}

static void keep(struct dp_qp *q, struct dp_stash **list, struct dp_stash ***end, const struct ibv_wc *wc)
{
	struct dp_stash *s = malloc(sizeof(*s));

	if (!s) {
		dp_warn("qp 0x%x: out of memory: a flushed completion is lost", q->qp_num);
		return;
	}
	s->wc = *wc;
	s->more = q->scq->more;
	s->next = NULL;
	if (!*list)
		*end = list;
	**end = s;
	*end = &s->next;
}

static void drop_all(struct dp_stash **list)
{
	struct dp_stash *s;

	while ((s = *list)) {
		*list = s->next;
		free(s);
	}
}

void dp_fail_fake(struct dp_qp *q, uint64_t pos)
{
	struct ibv_wc wc = {
		.wr_id = dp_qp_slot(q, pos)->wr_id,
		.status = IBV_WC_WR_FLUSH_ERR,
		.qp_num = q->qp_num,
	};

	/* the provider will not tell of it */
	dp_order_op(&q->order, pos)->flags &= ~(unsigned)DP_OP_SIGNALED;
	if (q->fake_pos == UINT64_MAX)
		q->fake_pos = pos;
	keep(q, &q->fakes, &q->fakes_end, &wc);
}

static bool to_err(struct dp_qp *q, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	int ret;

	dp_stub->inside(1);
	ret = q->c->real->modify_qp(qp, &attr, IBV_QP_STATE);
	dp_stub->inside(-1);
	if (ret)
		dp_warn("qp 0x%x: cannot move qp 0x%x to error: %s", q->qp_num, qp->qp_num, strerror(ret));
	return !ret;
}

/* first0: the first op that rail 0 has not done well; 0: that is not known. */
static void begin(struct dp_qp *q, bool move, uint64_t first0)
{
	bool in_err;

	q->fail_waits = false;
	dp_order_bar(&q->order, UINT64_MAX);
	/* release: as for every change of state */
	atomic_store_explicit(&q->state, DP_QP_FAILING, memory_order_release);
	dp_order_unbond(&q->order);
	/* what rail 0 acknowledged is good: one port would give it */
	dp_order_flush_over(&q->order, 0);
	q->fail_before = first0;
	dp_order_done(&q->order, 0, first0);
	q->fail_since = dp_now_ns();
	q->fail_deadline = q->fail_since + patience_ns(q);
	/* the oldest WR that rail 0 has not completed */
	if (q->order.match < q->order.next)
		q->fail_wr_id = dp_qp_slot(q, q->order.match)->wr_id;
	in_err = !move || to_err(q, q->qp);
	/* sibling parts of what never went are not wanted any more: their ops will be flushed by rail 0 */
	dp_queue_flush(q, in_err, first0);
	dp_cq_ready(q->scq, q);
}

/* The next completion that is given was made up: as late as the last one that was read, or as now. */
static void stamp(struct dp_qp *q)
{
	struct ibv_values_ex now = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	struct dp_wc_more *more = &q->scq->more;
	struct timespec wall;

	if (!q->scq->ex || more->ts || more->wall_ns)
		return;
	if (!ibv_query_rt_values_ex(q->c->ctx, &now))
		more->ts = (uint64_t)now.raw_clock.tv_sec * 1000000000u + (uint64_t)now.raw_clock.tv_nsec;
	if (!clock_gettime(CLOCK_REALTIME, &wall))
		more->wall_ns = (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec;
}

/*
 * The op that an error is about. UINT64_MAX: it is a receive's, which says nothing of the send queue. By wr_id: such
 * errors have no opcode.
 */
static uint64_t op_of(struct dp_qp *q, const struct ibv_wc *wc)
{
	for (uint64_t p = q->order.match; p < q->order.post0; p++)
		if (dp_qp_slot(q, p)->wr_id == wc->wr_id)
			return p;
	return UINT64_MAX;
}

static bool only_one(struct dp_qp *q, uint64_t pos)
{
	for (uint64_t p = pos + 1; p < q->order.post0; p++)
		if (dp_qp_slot(q, p)->wr_id == dp_qp_slot(q, pos)->wr_id)
			return false;
	return true;
}

void dp_fail_rail0(struct dp_qp *q, const struct ibv_wc *wc)
{
	uint64_t pos = op_of(q, wc);

	if (q->fail_waits && pos < q->fail_pos) {
		/* this one is before what has failed */
		q->fail_status = IBV_WC_SUCCESS;
		q->fail_refused = false;
		q->fail_pos = q->fail_next = UINT64_MAX;
		q->fail_waits = false;
	}
	if (q->fail_waits) {
		/* the siblings may not have done all that rail 0 has */
		if (pos != UINT64_MAX)
			dp_order_done(&q->order, 0, q->fail_pos);
	} else if (!q->going && atomic_load_explicit(&q->state, memory_order_relaxed) != DP_QP_FAILING) {
		begin(q, true, pos == UINT64_MAX ? 0 : pos);
	}
	if (pos != UINT64_MAX) {
		/* one of ours has told of it; of two with one wr_id it may be the other */
		if (pos >= q->fail_pos && pos < q->fail_next && only_one(q, pos))
			return;
		if (!q->fail_seen0)
			q->fail_pos0 = pos;
		q->fail_seen0 = true;
		q->fail_errors0++;
		dp_fail_go_on(q);
	}
	keep(q, &q->tail_wcs, &q->tail_end, wc);
}

/*
 * May rail 0 have a good completion that was not read yet? If the QP went native now, that one would be given although
 * a sibling failed its part of the WR.
 */
static bool rail0_open(const struct dp_qp *q)
{
	for (uint64_t p = q->order.match; !q->fail_seen0 && p < q->order.post0; p++)
		if (dp_order_op(&q->order, p)->flags & DP_OP_SIGNALED)
			return true;
	return false;
}

/* Was something acknowledged on a broken rail of which nobody can know any more when it is seen, and that has to be known? */
static bool unflushed(const struct dp_qp *q)
{
	const struct dp_order *o = &q->order;

	for (uint32_t r = 1; r < q->nrails; r++)
		if (q->rail[r].dead && (o->want[r] > o->visible[r] ||
					((o->flush >> r & 1) && o->visible[r] < o->planned[r])))
			return true;
	return false;
}

/* Whoever waits until what went over broken twins is visible cannot be told of that any more. */
static void dead_flushed(struct dp_qp *q)
{
	for (uint32_t r = 1; r < q->nrails; r++)
		if (q->rail[r].dead)
			dp_order_flush_over(&q->order, r);
}

/* Is an earlier op known to have failed than that of a sibling's error? */
static bool is_later(const struct dp_qp *q, enum ibv_wc_status status, uint64_t pos)
{
	if (q->fail_waits) /* a flush of which nothing is known stands behind it, a refusal ends the waiting */
		return pos == UINT64_MAX ? status == IBV_WC_WR_FLUSH_ERR : pos >= q->fail_pos;
	return q->fail_before && pos != UINT64_MAX && pos >= q->fail_before;
}

/*
 * One port would have done what stands before the op that failed, and rail 0 in ERR could not: until then it goes on, but nothing
 * of that op or behind it is posted any more.
 */
static void wait_for_earlier(struct dp_qp *q)
{
	dp_order_unbond(&q->order);
	dp_order_bar(&q->order, q->fail_pos);
	if (!q->fail_waits) {
		q->fail_since = dp_now_ns();
		q->fail_deadline = q->fail_since + patience_ns(q);
	}
	q->fail_waits = true;
	dp_cq_ready(q->scq, q);
	dp_qp_update_busy(q);
}

/* Is all done that stands before the failed op? It may be given then. */
static bool done_before(const struct dp_qp *q)
{
	uint32_t acked = 1; /* as in begin() */

	if (dp_order_done_before(&q->order, q->fail_pos, acked))
		return true;
	/* of what a broken twin wrote nothing will tell when it is seen: it was acknowledged, and is by then */
	for (uint32_t r = 1; r < q->nrails; r++)
		acked |= (uint32_t)q->rail[r].dead << r;
	return dp_now_ns() > q->fail_since + SEEN_NS && dp_order_done_before(&q->order, q->fail_pos, acked);
}

/* The op at pos has failed, or one of which nothing more is known (UINT64_MAX). */
static void fail_at(struct dp_qp *q, uint64_t pos)
{
	if (pos == UINT64_MAX || dp_order_done_before(&q->order, pos, 1))
		begin(q, true, 0);
	else
		wait_for_earlier(q);
}

/* Will a completion of rail 0 tell that all before the failed op is done there? */
static bool rail0_tells(const struct dp_qp *q)
{
	const struct dp_order *o = &q->order;

	if (o->done[0] >= q->fail_pos)
		return true;
	for (uint64_t p = q->fail_pos - 1; p < o->post0; p++)
		if (p >= o->match && (dp_order_op(o, p)->flags & DP_OP_SIGNALED))
			return true;
	return false;
}

void dp_fail_waited(struct dp_qp *q)
{
	uint64_t now = dp_now_ns();
	bool done = done_before(q);

	if (!done && now < q->fail_deadline && (rail0_tells(q) || now < q->fail_since + SILENT_NS))
		return;
	begin(q, true, done ? q->fail_pos : 0);
	if (done)
		dead_flushed(q);
}

void dp_fail_sibling(struct dp_qp *q, enum ibv_wc_status status, uint64_t pos)
{
	int state = atomic_load_explicit(&q->state, memory_order_relaxed);

	if (state == DP_QP_NATIVE || state == DP_QP_PENDING)
		return;
	if (q->going) /* the program is done with it: what its twins still say is of no interest */
		return;
	if (state != DP_QP_FAILING && dp_order_siblings_idle(&q->order) && !unflushed(q)) {
		/* nothing was on its way there: the program need not know */
		dp_warn("qp 0x%x: its twins broke while idle; one port from here on", q->qp_num);
		dp_order_unbond(&q->order);
		dead_flushed(q);
		return;
	}
	if (is_later(q, status, pos))
		return;
	if (q->fail_status == IBV_WC_SUCCESS || (q->fail_waits && pos < q->fail_pos)) {
		q->fail_status = status;
		q->fail_pos = q->fail_next = pos;
	}
	if (state == DP_QP_FAILING)
		return;
	fail_at(q, pos);
}

void dp_fail_refused(struct dp_qp *q)
{
	dp_warn("qp 0x%x: the provider refused a queued request; the qp goes to error", q->qp_num);
	q->fail_refused = true;
	q->fail_status = IBV_WC_SUCCESS; /* a sibling's, if there is one, is of a later op */
	q->fail_pos = q->fail_next = q->order.post0;
	if (q->fail_waits)
		begin(q, true, 0);
	else
		fail_at(q, q->fail_pos);
}

static void each_to_err(struct dp_qp *q)
{
	for (uint32_t r = 1; r < q->ntwins; r++)
		if (q->rail[r].twin)
			to_err(q, q->rail[r].twin);
}

static void twins_to_err(struct dp_qp *q)
{
	if (q->twins_err)
		return;
	q->twins_err = true;
	q->fail_deadline = dp_now_ns() + FLUSH_LIMIT_NS;
	each_to_err(q);
}

void dp_fail_by_program(struct dp_qp *q)
{
	/* when modify_qp returns, nothing of this QP may land any more, nor of the peer's here */
	switch (atomic_load_explicit(&q->state, memory_order_relaxed)) {
	case DP_QP_BONDED:
		begin(q, false, 0);
		twins_to_err(q);
		break;
	case DP_QP_FAILING:
		twins_to_err(q);
		break;
	default:
		each_to_err(q); /* they respond */
	}
}

void dp_fail_by_peer(struct dp_qp *q)
{
	switch (atomic_load_explicit(&q->state, memory_order_relaxed)) {
	case DP_QP_BONDED:
		begin(q, true, 0);
		twins_to_err(q);
		break;
	case DP_QP_PENDING:
		dp_qp_native(q);
		dp_cq_unready(q->scq, q);
		/* fall through */
	case DP_QP_NATIVE:
		to_err(q, q->qp);
		each_to_err(q);
		break;
	default:
		break;
	}
}

/* Has every fragment that was posted come back, well or flushed? */
static bool twins_quiet(const struct dp_qp *q)
{
	for (uint32_t r = 1; r < q->nrails; r++)
		if (q->rail[r].twin && q->rail[r].seen < q->rail[r].posted)
			return dp_now_ns() > q->fail_deadline;
	return true;
}

/* Were all the fragments posted that the next held completion stands for? */
static bool on_its_way(const struct dp_qp *q)
{
	for (uint32_t r = 1; r < q->nrails; r++)
		if (dp_order_rail(&q->order, q->order.deliver, r)->seq > q->rail[r].posted)
			return false;
	return true;
}

/* Are the siblings well, and have not done all of what stands before rail 0's first error? */
static bool settling(const struct dp_qp *q)
{
	return q->fail_status == IBV_WC_SUCCESS && !q->twins_err &&
	       !dp_order_done_before(&q->order, q->fail_before, UINT32_MAX);
}

void dp_fail_go_on(struct dp_qp *q)
{
	if (!q->going && settling(q) && !dp_queue_settle(q, q->fail_before))
		dp_fail_sibling(q, IBV_WC_LOC_QP_OP_ERR, UINT64_MAX);
}

/*
 * Where the ending stands: a held completion may be given as it is, or as failed, or the kept ones may be given,
 * or all is over, or we wait for twins.
 */
enum stage { GIVE_GOOD, GIVE_SILENT, GIVE_FAILED, GIVE_KEPT, GIVE_FAKE, OVER, WAIT };

/*
 * Has rail 0 told of everything before the first WR that it never took? It gives an error for each from the first one
 * on, signalled or not; a provider that does not is not waited for.
 */
static bool fakes_due(const struct dp_qp *q)
{
	if (!q->fail_seen0)
		return !rail0_open(q);
	return q->fail_pos0 + q->fail_errors0 >= q->fake_pos || dp_now_ns() > q->fail_deadline;
}

/*
 * From the failed op on, one port gives an error for every op, signalled or not. Rail 0 may have done its part of
 * unsignalled ones well, and then says nothing: we must, in their place. What tells that it was done is a later op's
 * completion or error, or silence. OVER: rail 0 tells of the next one.
 */
static enum stage silent(struct dp_qp *q, bool held)
{
	for (; q->fail_next < q->order.post0; q->fail_next++) {
		uint64_t p = q->fail_next;

		if (held && q->order.deliver <= p)
			return GIVE_FAILED;
		if (dp_order_op(&q->order, p)->flags & DP_OP_SIGNALED) {
			if (p >= q->order.match)
				return OVER;
			continue; /* given already */
		}
		if ((q->fail_seen0 && p >= q->fail_pos0) || p >= q->fake_pos)
			return OVER;
		if (p < q->order.match || q->fail_seen0)
			return GIVE_SILENT;
		if (q->tail_wcs) /* of receives */
			return OVER;
		if (rail0_open(q))
			return WAIT;
		return dp_now_ns() > q->fail_since + GRACE_NS ? GIVE_SILENT : WAIT;
	}
	return OVER;
}

/*
 * The twins are over: the first op that rail 0 has done, and they have not, is where one port would have ended. From there on
 * silent() tells of each.
 */
static void find_end(struct dp_qp *q)
{
	const struct dp_order *o = &q->order;
	uint64_t known = q->fail_seen0 && q->fail_pos0 > o->match ? q->fail_pos0 : o->match;

	for (uint64_t p = o->tail; !q->fail_reported && p < known && p < q->fail_next; p++)
		for (uint32_t r = 1; r < q->nrails && !dp_order_op(o, p)->whole; r++)
			if (o->done[r] < dp_order_rail(o, p, r)->seq)
				q->fail_pos = q->fail_next = p;
}

static enum stage stage(struct dp_qp *q)
{
	bool held = dp_order_held(&q->order) != UINT64_MAX;
	enum stage st;

	if (held && dp_order_deliverable(&q->order) != UINT64_MAX && !q->fail_reported)
		return GIVE_GOOD;
	/* as long as the siblings are healthy, what they still carry for earlier WRs may arrive */
	if (settling(q) || (held && q->fail_status == IBV_WC_SUCCESS && !q->twins_err && on_its_way(q))) {
		if (dp_now_ns() < q->fail_deadline)
			return WAIT;
		/* it had its time */
		q->fail_status = IBV_WC_RETRY_EXC_ERR;
	}
	twins_to_err(q);
	if (!twins_quiet(q))
		return WAIT;
	find_end(q);
	st = silent(q, held);
	if (st != OVER)
		return st;
	if (held)
		return GIVE_FAILED;
	if (q->tail_wcs)
		return GIVE_KEPT;
	if (q->fakes)
		return fakes_due(q) ? GIVE_FAKE : WAIT;
	return rail0_open(q) ? WAIT : OVER;
}

bool dp_fail_ready(struct dp_qp *q)
{
	enum stage s = stage(q);

	return s != OVER && s != WAIT;
}

static enum ibv_wc_status culprit_status(const struct dp_qp *q)
{
	if (q->fail_status != IBV_WC_SUCCESS)
		return q->fail_status;
	return q->fail_refused ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_WR_FLUSH_ERR;
}

/* Of the next op that is told of. */
static enum ibv_wc_status next_status(struct dp_qp *q)
{
	enum ibv_wc_status st = q->fail_reported ? IBV_WC_WR_FLUSH_ERR : culprit_status(q);

	q->fail_reported = true;
	return st;
}

static void take_first(struct dp_qp *q, struct dp_stash **list, struct ibv_wc *wc)
{
	struct dp_stash *s = *list;

	*wc = s->wc;
	q->scq->more = s->more;
	*list = s->next;
	free(s);
}

/* The next that is held. */
static void take_held(struct dp_qp *q, struct ibv_wc *wc)
{
	const struct dp_slot *s = dp_qp_slot(q, q->order.deliver);

	*wc = s->wc;
	q->scq->more.ts = s->ts;
	q->scq->more.wall_ns = s->wall_ns;
}

bool dp_fail_next(struct dp_qp *q, struct ibv_wc *wc)
{
	struct dp_wc_more more;

	switch (stage(q)) {
	case GIVE_GOOD:
		take_held(q, wc);
		dp_order_delivered(&q->order);
		return true;
	case GIVE_SILENT:
		*wc = (struct ibv_wc){
			.wr_id = dp_qp_slot(q, q->fail_next)->wr_id,
			.status = next_status(q),
			.qp_num = q->qp_num,
		};
		q->fail_next++;
		stamp(q);
		return true;
	case GIVE_FAILED:
		/* the first one that a sibling failed has the sibling's error, the rest stands behind it */
		take_held(q, wc);
		wc->status = q->fail_reported || q->fail_status == IBV_WC_SUCCESS ? IBV_WC_WR_FLUSH_ERR :
										    q->fail_status;
		q->fail_reported = true;
		dp_order_delivered(&q->order);
		return true;
	case GIVE_KEPT:
		take_first(q, &q->tail_wcs, wc);
		if (wc->wr_id == q->fail_wr_id || op_of(q, wc) != UINT64_MAX) {
			if (q->fail_reported)
				/* what rail 0 reports as the culprit stands behind a WR that failed before it */
				wc->status = IBV_WC_WR_FLUSH_ERR;
			else if (wc->status == IBV_WC_WR_FLUSH_ERR)
				/* rail 0 was only flushed by us, because of what a sibling met: one port would say that */
				wc->status = culprit_status(q);
			q->fail_reported = true;
		}
		return true;
	case GIVE_FAKE:
		more = q->scq->more;
		take_first(q, &q->fakes, wc);
		/* it was kept before those that are given before it */
		q->scq->more = more;
		stamp(q);
		wc->status = next_status(q);
		return true;
	case OVER:
		dp_qp_native(q);
		return false;
	case WAIT:
		break;
	}
	return false;
}

void dp_fail_end(struct dp_qp *q)
{
	drop_all(&q->tail_wcs);
	drop_all(&q->fakes);
	q->fail_status = IBV_WC_SUCCESS;
	q->fail_reported = q->fail_seen0 = q->fail_refused = q->fail_told = q->fail_waits = q->twins_err = false;
	q->fail_pos = q->fail_next = q->fake_pos = UINT64_MAX;
	q->fail_errors0 = q->fail_before = 0;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The short way of the most frequent request of all: one signal, alone in its list, on a QP with nothing queued and
 * nothing under way on the siblings. It goes to the provider as the program wrote it: no copy, no chain. Such are all
 * signals of a program that waits for its data before it signals, or that has no data. Bulk alone in its list goes on to
 * bulk.c; post.c does what is not done here. post_send and the end of an ibv_wr_* session begin here, since they choose.
 */
#include "qp.h"
#include "order_short.h"

/*
 * The provider took it: it writes [at, hi). Entered now, since its completion is not looked at without the lock, and what was
 * refused need not be taken back.
 */
static inline __attribute__((always_inline)) void went(struct dp_qp *q, const struct ibv_send_wr *wr, unsigned flags,
							uint64_t at, uint64_t hi, uint32_t len)
{
	dp_slot_name(dp_qp_slot(q, q->order.next), wr->wr_id, len, wr->opcode);
	dp_order_add_lone(&q->order, flags | dp_qp_op_flags(q, wr->send_flags), at, hi);
	dp_flow_count(q->flow0, len, 1, 0);
	dp_count(&dp_counters.signals, 1);
	if (__builtin_expect(len >= DP_METER_LITTLE, 0))
		dp_meter_update(q);
	/* q->busy stays as it is: nothing was queued, and what is held is no other */
}

/* Posts wr if there is nothing that it could have to wait for, or be queued behind. False: it is for post.c. */
static bool look_and_post(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad, uint32_t len, int *ret)
{
	unsigned flags = 0;
	uint64_t at = 0, hi = 0, timed;
	bool apart; /* what siblings have is done, and rail 0 keeps its own order */

	if ((unsigned)wr->num_sge > q->cap.max_send_sge)
		return false;
	if (wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
		at = len ? dp_qp_place(q, wr->wr.rdma.remote_addr, wr->wr.rdma.rkey, &apart) : wr->wr.rdma.remote_addr;
		hi = at + len;
		if (wr->opcode == IBV_WR_RDMA_WRITE)
			flags |= DP_OP_PLAIN | (len ? dp_qp_strong(dp_qp_rkeys(q, wr->wr.rdma.rkey)) : 0);
	}
	/* acknowledged is enough, but for DP_OP_STRONG and where flushes are needed: then visible */
	if (!dp_order_alone(&q->order, flags & DP_OP_STRONG))
		return false;
	/* the next that is timed comes here again */
	timed = (q->order.next / TRIP_EVERY + 1) * TRIP_EVERY;
	if (q->order.open > timed)
		q->order.open = timed;
	if (dp_trip_timed(q, q->order.next))
		dp_qp_slot(q, q->order.next)->posted_ns = dp_now_ns();
	*ret = q->post_send(q->qp, wr, bad);
	if (!*ret)
		went(q, wr, flags, at, hi, len);
	return true;
}

/* held: lock is held. As dp_post_tracked(), without it. */
__attribute__((noinline)) static int post_closer(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
						 uint32_t len, bool session, bool held)
{
	bool done = false;
	int ret = 0;

	if (!held)
		dp_take(&q->lock);
	if (atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_BONDED)
		done = look_and_post(q, wr, bad, len, &ret);
	dp_drop(&q->lock);
	return done ? ret : dp_post_tracked(q, wr, bad, session);
}

/* Apart, so that nothing is kept of it where there is no error. */
__attribute__((noinline)) static int refused(struct dp_qp *q, int ret)
{
	dp_drop(&q->lock);
	return ret;
}

/* Of requests one after the other, post_closer() looks at the first of as many as the order machine has room for. */
static inline __attribute__((always_inline)) int post_lone(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
							    uint32_t len, bool session)
{
	uint64_t at = 0, hi = 0;
	int ret;

	if (__builtin_expect(!dp_try(&q->lock), 0))
		return post_closer(q, wr, bad, len, session, false);
	/* not after any change of state either */
	if (__builtin_expect(!dp_order_open(&q->order), 0))
		return post_closer(q, wr, bad, len, session, true);
	if (__builtin_expect(wr->opcode <= IBV_WR_RDMA_WRITE_WITH_IMM, 1)) {
		/* one without bytes has no key that means something */
		if (__builtin_expect(q->lone_rkey != wr->wr.rdma.rkey || !len, 0))
			return post_closer(q, wr, bad, len, session, true);
		at = wr->wr.rdma.remote_addr;
		hi = at + len;
	}
	ret = q->post_send(q->qp, wr, bad);
	if (__builtin_expect(ret, 0))
		return refused(q, ret);
	went(q, wr, 0, at, hi, len);
	dp_drop(&q->lock);
	return 0;
}

/* Apart, so that bulk on its way to bulk.c saves no registers. */
__attribute__((noinline)) static int post_lone_wr(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
						  uint32_t len)
{
	return post_lone(q, wr, bad, len, false);
}

int dp_post_session_lone(struct dp_qp *q, struct ibv_send_wr *wr, uint32_t len)
{
	return post_lone(q, wr, &q->bad, len, true);
}

static inline __attribute__((always_inline)) int post_rest(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
							    uint32_t len, bool session)
{
	return dp_bulk_like(wr, len) ? dp_bulk_post(q, wr, bad, session) : dp_post_tracked(q, wr, bad, session);
}

int dp_post_session_rest(struct dp_qp *q, struct ibv_send_wr *wr, uint32_t len)
{
	return post_rest(q, wr, &q->bad, len, true);
}

/*
 * q is bonded, as it seemed without its lock, wr alone in its list, len: of its one SGE, or 0 if there is none. What bind_mw
 * posts is a BIND_MW.
 */
static inline __attribute__((always_inline)) int post_short(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
							     uint32_t len, bool session)
{
	if (dp_may_go_alone(q, wr, len))
		return session ? dp_post_session_lone(q, wr, len) : post_lone_wr(q, wr, bad, len);
	return post_rest(q, wr, bad, len, session);
}

static inline __attribute__((always_inline)) int post_one(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
							   bool session)
{
	if (__builtin_expect(wr->num_sge == 1, 1))
		return post_short(q, wr, bad, wr->sg_list->length, session);
	return wr->num_sge ? dp_post_tracked(q, wr, bad, session) : post_short(q, wr, bad, 0, session);
}

/* Apart, so that the common path saves no registers. */
__attribute__((noinline)) static int post_unknown(struct ibv_qp *qp, struct ibv_send_wr *wr,
						  struct ibv_send_wr **bad_wr)
{
	return dp_ctx_find(qp->context)->ops.post_send(qp, wr, bad_wr);
}

int dp_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	struct dp_qp *q = dp_hmap_getp(&dp_qps, qp);
	int state;

	if (__builtin_expect(!q, 0))
		return post_unknown(qp, wr, bad_wr);
	/* acquire: what the switch to another state prepared is visible before the state */
	state = atomic_load_explicit(&q->state, memory_order_acquire);
	if (state == DP_QP_NATIVE)
		return q->post_send(qp, wr, bad_wr);
	return state == DP_QP_BONDED && wr && !wr->next ? post_one(q, wr, bad_wr, false)
							: dp_post_tracked(q, wr, bad_wr, false);
}

int dp_post_session(struct dp_qp *q, struct ibv_send_wr *wr)
{
	return wr && !wr->next ? post_one(q, wr, &q->bad, true) : dp_post_tracked(q, wr, &q->bad, true);
}

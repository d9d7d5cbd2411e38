// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The short way of the most frequent request of all: one signal, alone in its list, on a QP with nothing queued and
 * nothing under way on the siblings. It goes to the provider as the program wrote it: no copy, no chain. Such are all
 * signals of a program that waits for its data before it signals, or that has no data. Bulk alone in its list goes on to
 * bulk.c; post.c does what is not done here.
 */
#include "qp.h"

/* Of one SGE or none, len bytes: is it a signal of a kind that needs no closer look? */
static inline bool may_go_alone(const struct ibv_send_wr *wr, uint32_t len)
{
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
		return len < dp_cfg.spread_min || (wr->send_flags & IBV_SEND_INLINE);
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
		return true;
	default:
		return false;
	}
}

/* Is everything on the siblings complete (visible)? */
static inline bool alone(const struct dp_order *o, bool visible)
{
	if (__builtin_expect(o->flush || visible, 0)) {
		for (uint32_t r = 1; r < o->nrails; r++)
			if (!dp_order_reached(o, r, o->planned[r], visible))
				return false;
		return true;
	}
	/* by far the most frequent number */
	return __builtin_expect(o->nrails == 2, 1) ? !dp_order_outstanding(o, 1) : dp_order_siblings_idle(o);
}

/* Posts wr if there is nothing that it could have to wait for, or be queued behind. False: it is for post.c. */
static inline bool post(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad, uint32_t len, int *ret)
{
	struct dp_order *o = &q->order;
	unsigned flags = dp_qp_signaled(q, wr->send_flags);
	uint64_t at = 0, bytes = 0, since = 0, pos;
	struct dp_slot *s;

	/* where rail 0 is flushed, post.c notes what was written there */
	if (!o->bonded || (o->flush & 1) || o->post0 != o->next || o->posts < o->tail || dp_order_full(o) ||
	    (unsigned)wr->num_sge > q->cap.max_send_sge)
		return false;
	if (wr->send_flags & IBV_SEND_FENCE)
		flags |= DP_OP_FENCE;
	if (wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
		const struct dp_rkeys *keys = len ? dp_qp_rkeys(q, wr->wr.rdma.rkey) : NULL;

		at = wr->wr.rdma.remote_addr + (keys ? keys->shift : 0);
		bytes = len;
		if (wr->opcode == IBV_WR_RDMA_WRITE)
			flags |= DP_OP_PLAIN | dp_qp_strong(keys);
	}
	/* acknowledged is enough, but for DP_OP_STRONG and where flushes are needed: then visible */
	if (!alone(o, flags & DP_OP_STRONG))
		return false;
	if (dp_meter_needed(q))
		since = dp_time_trip(q, o->next);
	/* then entered: its completion is not looked at without the lock, and what was refused need not be taken back */
	*ret = q->post_send(q->qp, wr, bad);
	if (__builtin_expect(*ret, 0))
		return true;
	pos = dp_order_add_lone(o, flags, at, at + bytes);
	s = dp_qp_slot(q, pos);
	dp_slot_fill(s, wr->wr_id, len, wr->opcode);
	s->posted_ns = since;
	dp_flow_count(q->rail[0].flow, len, 1, 0);
	dp_count(&dp_counters.signals, 1);
	if (len >= DP_METER_LITTLE)
		dp_meter_update(q);
	/* q->busy stays as it is: nothing was queued, and what is held is no other */
	return true;
}

/* Apart, so that bulk on its way to bulk.c saves no registers. */
__attribute__((noinline)) static int post_lone(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
					       uint32_t len, bool session)
{
	bool done = false;
	int ret = 0;

	dp_take(&q->lock);
	if (__builtin_expect(atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_BONDED, 1))
		done = post(q, wr, bad, len, &ret);
	dp_drop(&q->lock);
	return done ? ret : dp_post_tracked(q, wr, bad, session);
}

int dp_post_one(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad, bool session)
{
	uint32_t len;

	/* at the first look, without the lock; what bind_mw posts is a BIND_MW */
	if ((unsigned)wr->num_sge > 1)
		return dp_post_tracked(q, wr, bad, session);
	len = wr->num_sge ? wr->sg_list[0].length : 0;
	if (may_go_alone(wr, len))
		return post_lone(q, wr, bad, len, session);
	return dp_bulk_like(wr, len) ? dp_bulk_post(q, wr, bad, session) : dp_post_tracked(q, wr, bad, session);
}

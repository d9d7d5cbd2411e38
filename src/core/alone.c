// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The short way of the most frequent request of all: one signal, alone in its list, on a QP with nothing queued and
 * nothing under way on the siblings. It goes to the provider as the program wrote it: no copy, no chain. Such are all
 * signals of a program that waits for its data before it signals, or that has no data. post.c does what is not done here.
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

/* Is there nothing that wr could have to wait for, or be queued behind? *d: what it is. */
static inline bool goes_alone(struct dp_qp *q, const struct ibv_send_wr *wr, struct dp_op_desc *d, uint32_t len)
{
	const struct dp_order *o = &q->order;
	const struct dp_rkeys *keys;
	uint64_t at = 0;

	/* where rail 0 is flushed, post.c notes what was written there */
	if (!o->bonded || (o->flush & 1) || o->post0 != o->next || o->posts < o->tail || dp_order_full(o) ||
	    (unsigned)wr->num_sge > q->cap.max_send_sge)
		return false;
	d->flags = dp_qp_signaled(q, wr->send_flags);
	if (wr->send_flags & IBV_SEND_FENCE)
		d->flags |= DP_OP_FENCE;
	if (wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
		if (wr->opcode == IBV_WR_RDMA_WRITE)
			d->flags |= DP_OP_PLAIN;
		at = wr->wr.rdma.remote_addr;
		keys = len && q->rpd ? dp_rkey_peek(q->rpd, wr->wr.rdma.rkey) : NULL;
		if (keys) {
			at += keys->shift;
			/* as in look_closer() */
			if (keys->flags & DP_RKEY_RELAXED && dp_cfg.flush == DP_FLUSH_AUTO &&
			    wr->opcode == IBV_WR_RDMA_WRITE)
				d->flags |= DP_OP_STRONG;
		}
		d->remote = (struct dp_range){ at, at + len };
	} else {
		d->remote = (struct dp_range){ 0, 0 };
	}
	d->local = (struct dp_range){ 0, 0 };
	/* acknowledged is enough, but for DP_OP_STRONG and where flushes are needed: then visible */
	for (uint32_t r = 1; r < o->nrails; r++)
		if (!dp_order_reached(o, r, o->planned[r], d->flags & DP_OP_STRONG))
			return false;
	return true;
}

static inline int post(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
		       const struct dp_op_desc *d, uint32_t len)
{
	struct dp_order *o = &q->order;
	uint64_t pos = dp_order_add(o, d);
	struct dp_slot *s = dp_qp_slot(q, pos);
	int ret;

	dp_slot_fill(s, wr->wr_id, len, wr->opcode);
	if (dp_meter_needed(q))
		s->posted_ns = dp_time_trip(q, pos);
	dp_order_went_whole(o, d->remote.hi - d->remote.lo);
	ret = q->post_send(q->qp, wr, bad);
	if (__builtin_expect(ret, 0)) {
		dp_order_undo(o);
		return ret;
	}
	dp_count(&q->rail[0].flow->bytes, len);
	dp_count(&q->rail[0].flow->msgs, 1);
	dp_count(&dp_counters.signals, 1);
	if (len >= DP_METER_LITTLE)
		dp_meter_update(q);
	/* q->busy stays as it is: nothing was queued, and what is held is no other */
	return 0;
}

int dp_post_one(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad, bool session)
{
	struct dp_op_desc d;
	uint32_t len;
	int ret;

	/* at the first look, without the lock; what bind_mw posts is a BIND_MW */
	if ((unsigned)wr->num_sge > 1)
		goto no;
	len = wr->num_sge ? wr->sg_list[0].length : 0;
	if (!may_go_alone(wr, len))
		goto no;
	dp_take(&q->lock);
	if (atomic_load_explicit(&q->state, memory_order_relaxed) != DP_QP_BONDED || !goes_alone(q, wr, &d, len)) {
		dp_drop(&q->lock);
		goto no;
	}
	ret = post(q, wr, bad, &d, len);
	dp_drop(&q->lock);
	return ret;
no:
	return dp_post_tracked(q, wr, bad, session);
}

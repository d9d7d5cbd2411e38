// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The short way of a bulk WR: of one SGE, cut over the rails, with nothing queued and nothing to wait for. So go all of a
 * program that streams data, or whose signals are acknowledged when its next data come. post.c does what is not done here.
 */
#include "qp.h"

/* What is known of a WR that goes this way. */
struct bulk {
	const struct dp_part *part;
	const struct dp_rkeys *keys;
	const uint32_t *lkeys;
	unsigned bytes_on; /* so many rails */
};

/* Room and keys for the parts. False: not all of them. */
static inline __attribute__((always_inline)) bool ready(struct dp_qp *q, const struct ibv_send_wr *wr, struct bulk *b,
							 bool alone)
{
	const struct dp_rkeys *keys = NULL;
	enum dp_fallback why;

	/* what goes whole for a reason is counted in post.c */
	if (q->rpd && dp_rpd_usable(q->rpd, &why))
		keys = dp_qp_rkeys(q, wr->wr.rdma.rkey);
	if (!keys)
		return false;
	for (uint32_t r = 1, nr = q->nrails; r < nr; r++) {
		const struct dp_rail *rail = &q->rail[r];

		if (rail->peer_sib_idx >= keys->n ||
		    (b->part[r].len && (!rail->max_sge || !dp_qp_room_on(q, r))))
			return false;
		/* a flush that could not be posted yet goes with the next chain */
		if (alone && __builtin_expect(dp_order_flush_wanted(&q->order, r), 0))
			return false;
	}
	b->keys = keys;
	b->lkeys = dp_mr_lkeys(q->c, wr->sg_list->lkey);
	return b->lkeys;
}

/* Enters wr. False: it is not for this way, nothing was done. */
static inline __attribute__((always_inline)) bool enter(struct dp_qp *q, const struct ibv_send_wr *wr, struct bulk *b,
							 bool alone)
{
	unsigned flags = DP_OP_BULK | DP_OP_PLAIN | dp_qp_signaled(q, wr->send_flags);
	uint64_t pos, remote = wr->wr.rdma.remote_addr;
	uint32_t len = wr->sg_list->length;
	struct dp_order *o = &q->order;

	if (!o->bonded || o->flush || o->post0 != o->next || o->posts != o->next || len < q->policy.split_min ||
	    dp_order_full(o) || !q->cap.max_send_sge)
		return false;
	/* the provider has room for it that the program has not: post.c refuses it */
	if (__builtin_expect(dp_order_may_hold(o) && o->next - o->deliver >= q->cap.max_send_wr, 0))
		return false;
	b->bytes_on = dp_qp_cut(q, remote, len);
	b->part = q->cut.part;
	/* all on rail 0: no parts */
	if (b->bytes_on < 2 && b->part[0].len)
		return false;
	if (!ready(q, wr, b, alone))
		return false;
	if (wr->opcode == IBV_WR_RDMA_READ)
		flags |= DP_OP_READ;
	pos = dp_order_add_free(o, flags, remote + b->keys->shift, wr->sg_list->addr, b->part);
	if (pos == UINT64_MAX)
		return false;
	dp_slot_fill(dp_qp_slot(q, pos), wr->wr_id, len, wr->opcode);
	return true;
}

/* Makes w the request for one part of wr; its list of SGEs is s. */
static inline void make(struct ibv_send_wr *w, struct ibv_sge *s, const struct ibv_send_wr *wr, const struct dp_part *part,
			uint64_t wr_id, unsigned int flags, uint32_t lkey, uint32_t rkey)
{
	w->wr_id = wr_id;
	w->next = NULL;
	w->sg_list = s;
	w->num_sge = part->len != 0;
	w->opcode = wr->opcode;
	w->send_flags = flags;
	w->wr.rdma.remote_addr = wr->wr.rdma.remote_addr + part->offset;
	w->wr.rdma.rkey = rkey;
	s->addr = wr->sg_list->addr + part->offset;
	s->length = (uint32_t)part->len;
	s->lkey = lkey;
}

static inline void put(struct dp_chain *ch, const struct ibv_send_wr *wr, const struct dp_part *part, uint64_t wr_id,
		       unsigned int flags, uint32_t lkey, uint32_t rkey)
{
	struct ibv_send_wr *w = &ch->wr[ch->n];

	if (ch->n)
		ch->wr[ch->n - 1].next = w;
	ch->n++;
	ch->msgs++;
	/* there are at least as many SGEs as requests: max_send_sge is not 0 */
	make(w, &ch->sge[ch->nsge], wr, part, wr_id, flags, lkey, rkey);
	ch->nsge += (unsigned)w->num_sge;
	ch->bytes += part->len;
	if (wr->opcode == IBV_WR_RDMA_READ)
		ch->reads += part->len;
}

/* What part r writes may have to be flushed, if there comes a signal that asks for it. */
static inline void note_write(struct dp_qp *q, const struct ibv_send_wr *wr, const struct bulk *b, uint32_t r)
{
	/* no rail is in `flush`, so that nothing need be said of what cannot be */
	if (q->rail[r].flushes && wr->opcode == IBV_WR_RDMA_WRITE && (b->keys->flags & DP_RKEY_READ))
		dp_flush_wrote(q, r, q->order.planned[r], wr->wr.rdma.remote_addr + b->part[r].offset + b->part[r].len - 1,
			       wr->wr.rdma.rkey, b->keys);
}

static inline void count(const struct bulk *b)
{
	dp_count(b->bytes_on > 1 ? &dp_counters.splits : &dp_counters.spreads, 1);
}

bool dp_bulk_add(struct dp_qp *q, const struct ibv_send_wr *wr)
{
	struct bulk b;

	if (wr->num_sge != 1 || !dp_bulk_like(wr, wr->sg_list->length) || !enter(q, wr, &b, false))
		return false;
	put(&q->rail[0].chain, wr, &b.part[0], wr->wr_id, wr->send_flags, wr->sg_list->lkey, wr->wr.rdma.rkey);
	for (uint32_t r = 1, nr = q->nrails; r < nr; r++) {
		struct dp_rail *rail = &q->rail[r];

		if (!b.part[r].len)
			continue;
		/* the last of the chain will be signalled */
		put(&rail->chain, wr, &b.part[r], q->order.planned[r], 0, b.lkeys[rail->sib_idx],
		    b.keys->key[rail->peer_sib_idx]);
		note_write(q, wr, &b, r);
	}
	count(&b);
	return true;
}

/* The siblings' parts of wr, alone in its list and taken by rail 0. False: one was refused. */
static inline bool post_siblings(struct dp_qp *q, const struct ibv_send_wr *wr, const struct bulk *b, struct ibv_send_wr *w,
				 struct ibv_sge *s)
{
	bool ok = true, news = dp_meter_of_note(q, 0);

	for (uint32_t r = 1, nr = q->nrails; r < nr; r++) {
		struct dp_rail *rail = &q->rail[r];
		uint64_t seq = q->order.planned[r], len = b->part[r].len;

		if (!len)
			continue;
		note_write(q, wr, b, r);
		make(w, s, wr, &b->part[r], seq, IBV_SEND_SIGNALED, b->lkeys[rail->sib_idx], b->keys->key[rail->peer_sib_idx]);
		news |= dp_meter_of_note(q, r);
		if (!dp_rail_post(rail, w, seq))
			ok = false;
		else if (rail->flow)
			dp_flow_count(rail->flow, len, 1, wr->opcode == IBV_WR_RDMA_READ ? len : 0);
	}
	if (news)
		dp_meter_update(q);
	return ok;
}

int dp_bulk_post(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad, bool session)
{
	struct ibv_send_wr w;
	struct ibv_sge s;
	bool refused = false;
	struct bulk b;
	int ret;

	dp_take(&q->lock);
	if (atomic_load_explicit(&q->state, memory_order_relaxed) != DP_QP_BONDED || !enter(q, wr, &b, true)) {
		dp_drop(&q->lock);
		return dp_post_tracked(q, wr, bad, session);
	}
	/* one request for each rail: no chain */
	make(&w, &s, wr, &b.part[0], wr->wr_id, wr->send_flags, wr->sg_list->lkey, wr->wr.rdma.rkey);
	ret = q->post_send(q->qp, &w, bad);
	if (__builtin_expect(ret, 0)) {
		*bad = wr;
		dp_order_undo(&q->order);
	} else {
		dp_flow_count(q->rail[0].flow, b.part[0].len, 1, wr->opcode == IBV_WR_RDMA_READ ? b.part[0].len : 0);
		count(&b);
		refused = !post_siblings(q, wr, &b, &w, &s);
		/* q->busy stays as it is: nothing was queued, and what is held is no other */
	}
	dp_drop(&q->lock);
	if (__builtin_expect(refused, 0))
		dp_qp_sibling_refused(q);
	return ret;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The short way of a bulk WR: of one SGE, cut over the rails, with nothing queued and nothing to wait for. So go all of a
 * program that streams data, or whose signals are acknowledged when its next data come. post.c does what is not done here.
 */
#include "qp.h"

/* Room and keys for the parts. NULL: not all of them. */
static inline __attribute__((always_inline)) const uint32_t *
ready(struct dp_qp *q, const struct ibv_send_wr *wr, const struct dp_part *part, const struct dp_rkeys **rkeys)
{
	const struct dp_rkeys *keys = NULL;
	enum dp_fallback why;

	/* what goes whole for a reason is counted in post.c */
	if (q->rpd && dp_rpd_usable(q->rpd, &why))
		keys = dp_qp_rkeys(q, wr->wr.rdma.rkey);
	if (!keys)
		return NULL;
	for (uint32_t r = 1, nr = q->nrails; r < nr; r++)
		if (q->rail[r].peer_sib_idx >= keys->n ||
		    (part[r].len && (!q->rail[r].max_sge || !dp_qp_room_on(q, r))))
			return NULL;
	*rkeys = keys;
	return dp_mr_lkeys(q->c, wr->sg_list->lkey);
}

static inline void put(struct dp_chain *ch, const struct ibv_send_wr *wr, const struct dp_part *part, uint64_t wr_id,
		       unsigned int flags, uint32_t lkey, uint32_t rkey)
{
	struct ibv_send_wr *w = &ch->wr[ch->n];
	struct ibv_sge *s = &ch->sge[ch->nsge];

	if (ch->n)
		ch->wr[ch->n - 1].next = w;
	ch->n++;
	ch->msgs++;
	w->wr_id = wr_id;
	w->next = NULL;
	w->sg_list = s;
	w->num_sge = part->len != 0;
	w->opcode = wr->opcode;
	w->send_flags = flags;
	w->wr.rdma.remote_addr = wr->wr.rdma.remote_addr + part->offset;
	w->wr.rdma.rkey = rkey;
	if (!part->len)
		return;
	s->addr = wr->sg_list->addr + part->offset;
	s->length = (uint32_t)part->len;
	s->lkey = lkey;
	ch->nsge++;
	ch->bytes += part->len;
	if (wr->opcode == IBV_WR_RDMA_READ)
		ch->reads += part->len;
}

/* Inlined where one is alone in its list. */
static inline __attribute__((always_inline)) bool add(struct dp_qp *q, const struct ibv_send_wr *wr)
{
	unsigned flags = DP_OP_BULK | DP_OP_PLAIN | dp_qp_signaled(q, wr->send_flags), bytes_on;
	uint32_t len = wr->sg_list->length;
	const uint32_t *lkeys;
	uint64_t pos, remote = wr->wr.rdma.remote_addr;
	struct dp_order *o = &q->order;
	const struct dp_rkeys *keys;
	const struct dp_part *part;
	struct dp_slot *s;

	if (!o->bonded || o->flush || o->post0 != o->next || o->posts != o->next || len < q->policy.split_min ||
	    dp_order_full(o) || !q->cap.max_send_sge)
		return false;
	bytes_on = dp_qp_cut(q, remote, len);
	part = q->cut.part;
	/* all on rail 0: no parts */
	if (bytes_on < 2 && part[0].len)
		return false;
	lkeys = ready(q, wr, part, &keys);
	if (!lkeys)
		return false;
	if (wr->opcode == IBV_WR_RDMA_READ)
		flags |= DP_OP_READ;
	pos = dp_order_add_free(o, flags, remote + keys->shift, wr->sg_list->addr, part);
	if (pos == UINT64_MAX)
		return false;
	s = dp_qp_slot(q, pos);
	dp_slot_fill(s, wr->wr_id, len, wr->opcode);
	put(&q->rail[0].chain, wr, &part[0], wr->wr_id, wr->send_flags, wr->sg_list->lkey, wr->wr.rdma.rkey);
	for (uint32_t r = 1, nr = q->nrails; r < nr; r++) {
		struct dp_rail *rail = &q->rail[r];
		uint64_t seq = o->planned[r];

		if (!part[r].len)
			continue;
		/* the last of the chain will be signalled */
		put(&rail->chain, wr, &part[r], seq, 0, lkeys[rail->sib_idx], keys->key[rail->peer_sib_idx]);
		if (rail->flushes && wr->opcode == IBV_WR_RDMA_WRITE)
			dp_flush_wrote(q, r, seq, wr->wr.rdma.remote_addr + part[r].offset + part[r].len - 1,
				       wr->wr.rdma.rkey, keys);
	}
	dp_count(bytes_on > 1 ? &dp_counters.splits : &dp_counters.spreads, 1);
	return true;
}

bool dp_bulk_add(struct dp_qp *q, const struct ibv_send_wr *wr)
{
	return wr->num_sge == 1 && dp_bulk_like(wr, wr->sg_list->length) && add(q, wr);
}

int dp_bulk_post(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad, bool session)
{
	bool refused = false;
	unsigned accepted;
	int ret;

	dp_take(&q->lock);
	if (atomic_load_explicit(&q->state, memory_order_relaxed) != DP_QP_BONDED || !add(q, wr)) {
		dp_drop(&q->lock);
		return dp_post_tracked(q, wr, bad, session);
	}
	ret = dp_chain_post0(q, &accepted);
	if (__builtin_expect(ret, 0)) {
		*bad = wr;
		dp_order_undo(&q->order);
		dp_chain_drop(q);
	} else {
		refused = !dp_chain_posts(q);
		dp_meter_update(q);
		/* q->busy stays as it is: nothing was queued, and what is held is no other */
	}
	dp_drop(&q->lock);
	if (__builtin_expect(refused, 0))
		dp_qp_sibling_refused(q);
	return ret;
}

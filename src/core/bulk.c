// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The short way of a bulk WR: of one SGE, cut over the rails, with nothing queued and nothing to wait for. So go all of a
 * program that streams data, or whose signals are acknowledged when its next data come. post.c does what is not done here.
 */
#include "qp.h"
#include "order_short.h"

#include <stddef.h>
#include <string.h>

_Static_assert(offsetof(struct ibv_sge, lkey) == offsetof(struct ibv_sge, length) + 4, "read as one");

/* Both in one comparison. */
static inline uint64_t length_and_lkey(const struct ibv_sge *sge)
{
	uint64_t both;

	memcpy(&both, &sge->length, sizeof(both));
	return both;
}

/* Cuts wr and writes down how such as wr go. False: it is not for this way; then nothing is written down. */
__attribute__((noinline)) static bool find_way(struct dp_qp *q, const struct ibv_send_wr *wr)
{
	const struct ibv_sge *sge = wr->sg_list;
	struct dp_way *w = &q->way;
	/* before the look-up: what changes after it is noticed */
	uint64_t gen = atomic_load_explicit(&q->c->lkeys_gen, memory_order_acquire);
	const struct dp_rkeys *keys = q->rpd ? dp_qp_rkeys(q, wr->wr.rdma.rkey) : NULL;
	const uint32_t *lkeys;

	w->rkey = UINT64_MAX;
	w->noted = false;
	/* what goes whole for a reason is counted in post.c */
	if (!keys || keys->shift || sge->length < q->policy.split_min || !q->cap.max_send_sge)
		return false;
	w->bytes_on = dp_qp_cut(q, wr->wr.rdma.remote_addr, sge->length);
	/* all on rail 0: no parts */
	if (w->bytes_on < 2 && q->cut.part[0].len)
		return false;
	lkeys = dp_mr_lkeys(q->c, sge->lkey);
	if (!lkeys)
		return false;
	for (uint32_t r = 0, nr = q->nrails; r < nr; r++) {
		struct dp_rail *rail = &q->rail[r];
		const struct dp_part *part = &q->cut.part[r];

		if (r && (rail->peer_sib_idx >= keys->n || (part->len && !rail->max_sge)))
			return false;
		w->part[r] = *part;
		rail->way_noted = r && part->len && rail->flushes && wr->opcode == IBV_WR_RDMA_WRITE;
		if (rail->way_noted && !(keys->flags & DP_RKEY_READ)) {
			/* no flush of ours reads there; whether that matters is told in post.c */
			if (dp_rpd_relaxed(q->rpd))
				return false;
			rail->way_noted = false;
		}
		w->noted |= rail->way_noted;
		rail->way_sge = (struct ibv_sge){ .length = (uint32_t)part->len,
						  .lkey = r ? lkeys[rail->sib_idx] : sge->lkey };
		rail->way_wr = (struct ibv_send_wr){
			.sg_list = &rail->way_sge,
			.num_sge = part->len != 0,
			.opcode = wr->opcode,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma.rkey = r ? keys->key[rail->peer_sib_idx] : wr->wr.rdma.rkey,
		};
	}
	w->base = q->cut.base;
	w->sge = length_and_lkey(sge);
	w->opcode = wr->opcode;
	w->flags = DP_OP_BULK | DP_OP_PLAIN | (wr->opcode == IBV_WR_RDMA_READ ? DP_OP_READ : 0);
	w->keys = keys;
	w->pair = q->nrails == 2 && w->part[0].len && w->part[1].len;
	w->gen = gen;
	w->rkey = wr->wr.rdma.rkey;
	return true;
}

/*
 * Programs mostly ask for the same over and over. Whoever takes a remote key away, or lets q's rails be others, makes q forget
 * the way (dp_qp_forget_key()).
 */
static inline __attribute__((always_inline)) bool knows_way(struct dp_qp *q, const struct ibv_send_wr *wr)
{
	const struct dp_way *w = &q->way;

	return __builtin_expect(w->rkey == wr->wr.rdma.rkey && w->sge == length_and_lkey(wr->sg_list) &&
				w->base == (wr->wr.rdma.remote_addr & (q->policy.align - 1)) && w->opcode == wr->opcode &&
				w->gen == atomic_load_explicit(&q->c->lkeys_gen, memory_order_acquire), 1);
}

/*
 * Looks up to which op there is room, and whether anything is queued or a flush is wanted that goes with the next chain. False:
 * not for a single one.
 */
__attribute__((noinline)) static bool find_room(struct dp_qp *q)
{
	struct dp_order *o = &q->order;
	uint64_t end = o->tail + o->mask + 1;

	if (atomic_load_explicit(&q->state, memory_order_relaxed) != DP_QP_BONDED || !o->bonded || o->flush ||
	    dp_order_queued(o))
		return false;
	/* the provider has room for it that the program has not: post.c refuses it */
	if (dp_order_may_hold(o) && dp_order_given(o) + q->cap.max_send_wr < end)
		end = dp_order_given(o) + q->cap.max_send_wr;
	for (uint32_t r = 1; r < q->nrails; r++) {
		uint64_t more = dp_qp_room_on(q, r) ? q->rail[r].sq_size - dp_order_outstanding(o, r) : 0;

		if (o->next + more < end)
			end = o->next + more;
		if (dp_order_flush_wanted(o, r))
			return false;
	}
	o->roomy = end;
	return o->next < end;
}

/* Is there room to note what wr writes? */
static bool may_note(struct dp_qp *q, const struct ibv_send_wr *wr)
{
	for (uint32_t r = 1; r < q->nrails; r++)
		if (q->rail[r].way_noted && !dp_flush_room(q, r, wr->wr.rdma.rkey))
			return false;
	return true;
}

/* May wr, all of whose parts go at once, be posted now, if it has nothing to wait for? Then q->way is its way. */
static inline __attribute__((always_inline)) bool may_go(struct dp_qp *q, const struct ibv_send_wr *wr)
{
	enum dp_fallback why;
	uint64_t remote = wr->wr.rdma.remote_addr;

	if (__builtin_expect(q->order.next >= q->order.roomy, 0) && !find_room(q))
		return false;
	if (!knows_way(q, wr) && !find_way(q, wr))
		return false;
	if (q->way.noted && !may_note(q, wr))
		return false;
	/* a range that ends beyond the last address is no memory's; to the order machine it would be empty */
	return __builtin_expect(remote + wr->sg_list->length > remote, 1) && dp_rpd_usable(q->rpd, &why);
}

/* The request for rail r's part of wr, as on q->way. */
static inline struct ibv_send_wr *part_of(struct dp_qp *q, const struct ibv_send_wr *wr, uint32_t r, uint64_t wr_id)
{
	struct dp_rail *rail = &q->rail[r];
	uint64_t at = q->way.part[r].offset;

	rail->way_wr.wr_id = wr_id;
	rail->way_wr.wr.rdma.remote_addr = wr->wr.rdma.remote_addr + at;
	rail->way_sge.addr = wr->sg_list->addr + at;
	return &rail->way_wr;
}

static inline void put(struct dp_chain *ch, const struct ibv_send_wr *part, unsigned int flags)
{
	struct ibv_send_wr *w = &ch->wr[ch->n];
	uint32_t len = part->sg_list->length;

	if (ch->n)
		ch->wr[ch->n - 1].next = w;
	ch->n++;
	ch->msgs++;
	*w = *part;
	w->send_flags = flags;
	/* there are at least as many SGEs as requests: max_send_sge is not 0 */
	w->sg_list = &ch->sge[ch->nsge];
	*w->sg_list = *part->sg_list;
	ch->nsge += (unsigned)w->num_sge;
	ch->bytes += len;
	if (w->opcode == IBV_WR_RDMA_READ)
		ch->reads += len;
}

/* What part r writes may have to be flushed, if there comes a signal that asks for it. */
static inline void note_write(struct dp_qp *q, const struct ibv_send_wr *wr, uint32_t r)
{
	/* no rail is in `flush`, so that nothing need be said of what cannot be */
	if (q->rail[r].way_noted)
		dp_flush_wrote(q, r, q->order.planned[r], wr->wr.rdma.remote_addr + q->way.part[r].offset + q->way.part[r].len - 1,
			       wr->wr.rdma.rkey, q->way.keys);
}

static inline void count(const struct dp_qp *q)
{
	dp_count(q->way.bytes_on > 1 ? &dp_counters.splits : &dp_counters.spreads, 1);
}

bool dp_bulk_add(struct dp_qp *q, const struct ibv_send_wr *wr)
{
	uint64_t pos;

	if (wr->num_sge != 1 || !dp_bulk_like(wr, wr->sg_list->length) || !may_go(q, wr))
		return false;
	pos = dp_order_add_free(&q->order, q->way.flags | dp_qp_signaled(q, wr->send_flags), wr->wr.rdma.remote_addr,
				wr->sg_list->addr, q->way.part);
	if (pos == UINT64_MAX)
		return false;
	dp_slot_fill(dp_qp_slot(q, pos), wr->wr_id, wr->sg_list->length, wr->opcode);
	put(&q->rail[0].chain, part_of(q, wr, 0, wr->wr_id), wr->send_flags);
	for (uint32_t r = 1, nr = q->nrails; r < nr; r++) {
		if (!q->way.part[r].len)
			continue;
		/* the last of the chain will be signalled */
		put(&q->rail[r].chain, part_of(q, wr, r, q->order.planned[r]), 0);
		note_write(q, wr, r);
	}
	count(q);
	return true;
}

/* The siblings' parts of wr, alone in its list and taken by rail 0; pair: q->way's. False: one was refused. */
static inline __attribute__((always_inline)) bool post_siblings(struct dp_qp *q, const struct ibv_send_wr *wr, bool pair)
{
	bool ok = true, news = dp_meter_of_post(q, 0);

	for (uint32_t r = 1, nr = pair ? 2 : q->nrails; r < nr; r++) {
		struct dp_rail *rail = &q->rail[r];
		uint64_t seq = q->order.planned[r], len = q->way.part[r].len;

		if (!pair && !len)
			continue;
		note_write(q, wr, r);
		news |= dp_meter_of_post(q, r);
		if (!dp_rail_post(rail, part_of(q, wr, r, seq), seq))
			ok = false;
		else
			dp_flow_count(rail->flow, len, 1, wr->opcode == IBV_WR_RDMA_READ ? len : 0);
	}
	if (news)
		dp_meter_update(q);
	return ok;
}

enum went {
	NOT,	 /* it is not for this way, nothing was done */
	WENT,	 /* ret is post_send's, of which providers say errno as it is or negative */
	REFUSED, /* by a sibling */
};

/* With lock held, may_go(). pair: q->way's, as a constant, which spares loops and questions. */
static inline __attribute__((always_inline)) enum went post(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
							     bool pair, int *ret)
{
	uint64_t remote = wr->wr.rdma.remote_addr, pos;
	const struct dp_part *part = q->way.part;
	unsigned flags = q->way.flags | dp_qp_signaled(q, wr->send_flags);
	struct ibv_send_wr *w;

	if (!dp_order_is_free(&q->order, flags, remote, wr->sg_list->addr, part, pair))
		return NOT;
	/*
	 * One request for each rail, no chain. Entered when rail 0 has taken it, so that what was refused need not be taken back:
	 * its completion is not looked at without the lock.
	 */
	w = part_of(q, wr, 0, wr->wr_id);
	w->send_flags = wr->send_flags;
	*ret = q->post_send(q->qp, w, bad);
	if (__builtin_expect(*ret, 0)) {
		*bad = wr;
		return WENT;
	}
	pos = dp_order_enter_free(&q->order, flags, remote, wr->sg_list->addr, part, pair, false);
	dp_slot_fill(dp_qp_slot(q, pos), wr->wr_id, wr->sg_list->length, wr->opcode);
	dp_flow_count(q->flow0, part[0].len, 1, wr->opcode == IBV_WR_RDMA_READ ? part[0].len : 0);
	count(q);
	/* q->busy stays as it is: nothing was queued, and what is held is no other */
	return __builtin_expect(post_siblings(q, wr, pair), 1) ? WENT : REFUSED;
}

/* Apart, so that nothing is kept of it where all is well. */
__attribute__((noinline)) static int sibling_refused(struct dp_qp *q)
{
	dp_drop(&q->lock);
	dp_qp_sibling_refused(q);
	return 0;
}

int dp_bulk_post(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad, bool session)
{
	enum went went = NOT;
	int ret = 0;

	dp_take(&q->lock);
	if (__builtin_expect(may_go(q, wr), 1))
		/* two are by far the most frequent number */
		went = __builtin_expect(q->way.pair, 1) ? post(q, wr, bad, true, &ret) : post(q, wr, bad, false, &ret);
	if (__builtin_expect(went == REFUSED, 0))
		return sibling_refused(q);
	dp_drop(&q->lock);
	return __builtin_expect(went == WENT, 1) ? ret : dp_post_tracked(q, wr, bad, session);
}

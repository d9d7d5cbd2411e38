// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* ibv_post_send: classify each WR, cut the bulk ones, post what may go, queue the rest. */
#include "qp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What a WR is, found before anything is changed. */
struct wr_class {
	struct dp_op_desc d;
	uint64_t len;
	bool inlined;
	bool split; /* has parts on siblings */
	struct dp_part part[DP_MAX_RAILS];
	struct dp_range lpart[DP_MAX_RAILS];
	const struct dp_rkeys *keys; /* split: of the program's rkey */
	uint32_t rkey[DP_MAX_RAILS];
	uint32_t lkey[DP_MAX_RAILS * 32]; /* [nrails][num_sge] */
};

#define MAX_CUT_SGE 32 /* more are sent whole */

static bool is_atomic(enum ibv_wr_opcode op)
{
	return op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

static struct dp_range hull_of(const struct ibv_sge *sge, int n)
{
	struct dp_range h = { 0, 0 };

	for (int i = 0; i < n; i++) {
		if (!sge[i].length)
			continue;
		if (h.lo == h.hi)
			h = (struct dp_range){ sge[i].addr, sge[i].addr + sge[i].length };
		if (sge[i].addr < h.lo)
			h.lo = sge[i].addr;
		if (sge[i].addr + sge[i].length > h.hi)
			h.hi = sge[i].addr + sge[i].length;
	}
	return h;
}

static void classify(struct dp_qp *q, const struct ibv_send_wr *wr, struct wr_class *k)
{
	struct dp_op_desc *d = &k->d;

	*d = (struct dp_op_desc){ 0 };
	k->split = false;
	k->len = 0;
	k->inlined = wr->send_flags & IBV_SEND_INLINE;
	d->flags |= dp_qp_signaled(q, wr->send_flags);
	/* a wrong number: the provider refuses it, and the list is not read */
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->cap.max_send_sge) {
		d->flags |= DP_OP_ALL;
		return;
	}
	for (int i = 0; i < wr->num_sge; i++)
		k->len += wr->sg_list[i].length;
	if (wr->send_flags & IBV_SEND_FENCE)
		d->flags |= DP_OP_FENCE;
	switch (wr->opcode) {
	case IBV_WR_RDMA_READ:
		d->flags |= DP_OP_READ;
		d->local = hull_of(wr->sg_list, wr->num_sge);
		/* fall through */
	case IBV_WR_RDMA_WRITE:
		d->flags |= DP_OP_PLAIN;
		if (k->len >= dp_cfg.spread_min && !k->inlined)
			d->flags |= DP_OP_BULK;
		/* fall through */
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		d->remote.lo = wr->wr.rdma.remote_addr;
		d->remote.hi = d->remote.lo + k->len;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		d->flags |= DP_OP_ATOMIC;
		d->remote.lo = wr->wr.atomic.remote_addr;
		d->remote.hi = d->remote.lo + 8;
		d->local = hull_of(wr->sg_list, wr->num_sge);
		break;
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_SEND_WITH_INV:
		break; /* the receiver's buffer is unknown here; it was posted for this purpose alone */
	default:
		d->flags |= DP_OP_ALL;
	}
}

/* The rail with the fewest outstanding bytes. */
static uint32_t emptiest(const struct dp_qp *q)
{
	uint32_t best = q->policy.first; /* of equal ones that by which this peer begins */

	for (uint32_t r = 0; r < q->nrails; r++)
		if (q->order.bytes[r] < q->order.bytes[best])
			best = r;
	return best;
}

/* Is there anything that sibling parts could have to wait for, in the modes that ask? */
static bool may_wait(const struct dp_order *o)
{
	if (o->mode == DP_ORDER_RC)
		return !dp_order_reached(o, 0, o->next, false) || !dp_order_siblings_idle(o);
	return !dp_order_reached(o, 0, o->last_signal, false);
}

/* Decides the parts and finds the keys for them. Without success the WR goes whole on rail 0. */
static void cut(struct dp_qp *q, const struct ibv_send_wr *wr, struct wr_class *k)
{
	enum dp_fallback why = DP_FB_SQ_FULL;
	const struct dp_rkeys *rkeys;
	uint32_t bytes_on = 0;

	/* a range that ends beyond the last address is no memory's; to the order machine it would be empty */
	if (wr->num_sge > MAX_CUT_SGE || k->d.remote.hi < k->d.remote.lo)
		return;
	if (k->len >= q->policy.split_min) {
		bytes_on = dp_qp_cut(q, wr->wr.rdma.remote_addr, k->len);
		memcpy(k->part, q->cut.part, q->nrails * sizeof(k->part[0]));
		if (bytes_on < 2 && k->part[0].len)
			return;
	} else {
		uint32_t r = emptiest(q);

		if (r == 0)
			return;
		memset(k->part, 0, q->nrails * sizeof(k->part[0]));
		k->part[r].len = k->len;
	}
	for (uint32_t r = 1; r < q->nrails; r++) {
		if (!k->part[r].len)
			continue;
		if ((uint32_t)wr->num_sge > q->rail[r].max_sge)
			return;
		if (!dp_qp_room_on(q, r))
			goto whole;
	}
	rkeys = dp_rkey_get(q->rpd, wr->wr.rdma.rkey, &why);
	if (!rkeys)
		goto whole;
	for (uint32_t r = 1; r < q->nrails; r++) {
		why = DP_FB_RKEY_NONE;
		if (q->rail[r].peer_sib_idx >= rkeys->n)
			goto whole;
		why = DP_FB_FLUSH_REGIONS;
		if (wr->opcode == IBV_WR_RDMA_WRITE && k->part[r].len && !dp_flush_room(q, r, wr->wr.rdma.rkey))
			goto whole;
		k->rkey[r] = rkeys->key[q->rail[r].peer_sib_idx];
	}
	why = DP_FB_LKEY_UNKNOWN;
	for (int i = 0; i < wr->num_sge; i++) {
		const uint32_t *lkeys = dp_mr_lkeys(q->c, wr->sg_list[i].lkey);

		if (!lkeys) {
			if (wr->sg_list[i].length)
				goto whole;
			continue;
		}
		for (uint32_t r = 1; r < q->nrails; r++)
			k->lkey[r * (uint32_t)wr->num_sge + (uint32_t)i] = lkeys[q->rail[r].sib_idx];
	}
	if (k->d.flags & DP_OP_READ) {
		struct ibv_sge sge[MAX_CUT_SGE];

		for (uint32_t r = 0; r < q->nrails; r++) {
			int m = k->part[r].len ? dp_plan_sges(wr->sg_list, wr->num_sge, &k->part[r], NULL, sge,
							      MAX_CUT_SGE) : 0;

			k->lpart[r] = hull_of(sge, m > 0 ? m : 0);
		}
		k->d.lpart = k->lpart;
	}
	k->d.part = k->part;
	k->keys = rkeys;
	k->split = true;
	if (dp_meter_needed(q) && may_wait(&q->order) && dp_meter_haste(q, k->part, k->len))
		k->d.flags |= DP_OP_HASTE;
	return;
whole:
	dp_fallback(why);
}

/*
 * The READ by which a program flushes its own device, on a QP connected to itself: other ports of the card may have
 * written, so each reads, into memory of ours. The keys are this process's own.
 */
static void on_every(struct dp_qp *q, const struct ibv_send_wr *wr, struct wr_class *k)
{
	const struct dp_mr *mr = dp_hmap_get(&q->pd->rkeys, wr->wr.rdma.rkey);

	if (!mr || !mr->usable || wr->num_sge > MAX_CUT_SGE || k->d.remote.hi < k->d.remote.lo) {
		dp_fallback(DP_FB_RKEY_NONE);
		return;
	}
	for (uint32_t r = 1; r < q->nrails; r++) {
		if (!q->rail[r].scratch_lkey || !dp_qp_room_on(q, r)) {
			dp_fallback(DP_FB_SQ_FULL);
			return;
		}
		k->rkey[r] = mr->twin[q->rail[r].sib_idx]->rkey;
		k->lpart[r] = (struct dp_range){ 0, 0 };
		memset(&k->lkey[r * (uint32_t)wr->num_sge], 0, (size_t)wr->num_sge * sizeof(k->lkey[0]));
	}
	for (uint32_t r = 0; r < q->nrails; r++)
		k->part[r] = (struct dp_part){ 0, k->len };
	k->lpart[0] = k->d.local;
	k->d.flags |= DP_OP_EVERY;
	k->d.lpart = k->lpart;
	k->d.part = k->part;
	k->split = true;
}

uint64_t dp_qp_place(struct dp_qp *q, uint64_t addr, uint32_t rkey, bool *apart)
{
	const struct dp_rkeys *keys = dp_qp_rkeys(q, rkey);
	bool by_ranges = q->order.mode == DP_ORDER_STRICT || q->order.mode == DP_ORDER_SIGNAL;
	enum dp_fallback why;

	/* where there are shifts, whatever is not known stands in the way of bulk: ask */
	if (!keys && q->shifted && q->rpd)
		keys = dp_rkey_get(q->rpd, rkey, &why);
	*apart = false;
	if (!keys) {
		q->unplaced = q->order.next + 1;
		*apart = by_ranges && q->shifted > q->order.tail;
		return addr;
	}
	if (keys->shift) {
		q->shifted = q->order.next + 1;
		*apart = by_ranges && q->unplaced > q->order.tail;
	}
	return addr + keys->shift;
}

static void place(struct dp_qp *q, const struct ibv_send_wr *wr, struct wr_class *k)
{
	uint64_t len = k->d.remote.hi - k->d.remote.lo;
	bool apart;

	if (!len)
		return;
	k->d.remote.lo = dp_qp_place(q, k->d.remote.lo, k->d.flags & DP_OP_ATOMIC ? wr->wr.atomic.rkey : wr->wr.rdma.rkey,
				     &apart);
	k->d.remote.hi = k->d.remote.lo + len;
	if (apart)
		k->d.flags |= DP_OP_ALL;
}

/* What only a bonded QP needs to know of a signal. */
static void look_closer(struct dp_qp *q, const struct ibv_send_wr *wr, struct wr_class *k)
{
	if (wr->opcode == IBV_WR_RDMA_READ && q->loopback && k->len && k->len <= DP_EVERY_MAX && !k->inlined)
		on_every(q, wr, k);
	if (wr->opcode == IBV_WR_RDMA_WRITE && k->len && dp_qp_strong(dp_qp_rkeys(q, wr->wr.rdma.rkey))) {
		k->d.flags |= DP_OP_STRONG;
		dp_flush_strong(q);
	}
}

/* Siblings' parts of the op at pos are on their way, or will be: what they write may have to be flushed. */
static void note_writes(struct dp_qp *q, const struct ibv_send_wr *wr, const struct wr_class *k, uint64_t pos)
{
	if (wr->opcode != IBV_WR_RDMA_WRITE)
		return;
	for (uint32_t r = 1; r < q->nrails; r++)
		if (k->part[r].len)
			dp_flush_wrote(q, r, dp_order_rail(&q->order, pos, r)->seq,
				       wr->wr.rdma.remote_addr + k->part[r].offset + k->part[r].len - 1,
				       wr->wr.rdma.rkey, k->keys);
}

/* The same of what the op at pos has on rail 0, where it has to be flushed. */
static void note_write0(struct dp_qp *q, const struct ibv_send_wr *wr, const struct wr_class *k, uint64_t pos)
{
	const struct dp_part whole = { 0, k->len }, *part = k->split ? &k->part[0] : &whole;

	if (k->d.flags & DP_OP_ATOMIC)
		dp_flush_wrote0(q, pos + 1, wr->wr.atomic.remote_addr, wr->wr.atomic.rkey);
	else if ((wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) && part->len)
		dp_flush_wrote0(q, pos + 1, wr->wr.rdma.remote_addr + part->offset + part->len - 1, wr->wr.rdma.rkey);
}

/* What every provider refuses of a window when it is posted; the rest is told by its completion. */
static bool can_bind(const struct ibv_send_wr *wr)
{
	const struct ibv_mw_bind_info *i = &wr->bind_mw.bind_info;

	return wr->bind_mw.mw && (i->mr || !i->length);
}

/*
 * A WR that cannot go now is refused for what the provider would refuse (I7): after a good return the program
 * never hears of a bad WR.
 */
static int validate(const struct dp_qp *q, const struct ibv_send_wr *wr, const struct wr_class *k)
{
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_RDMA_READ:
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
	case IBV_WR_LOCAL_INV:
	case IBV_WR_BIND_MW:
	case IBV_WR_SEND_WITH_INV:
		break;
	default:
		return EINVAL;
	}
	if (wr->opcode == IBV_WR_BIND_MW && !can_bind(wr))
		return EINVAL;
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->cap.max_send_sge)
		return EINVAL;
	if (k->inlined && k->len > q->cap.max_inline_data)
		return EINVAL;
	/* who takes it writes into the program's memory or nowhere; a copy of ours has no such memory */
	if (k->inlined && (wr->opcode == IBV_WR_RDMA_READ || is_atomic(wr->opcode)))
		return EINVAL;
	if (is_atomic(wr->opcode) && ((wr->wr.atomic.remote_addr & 7) || k->len != 8))
		return EINVAL;
	/* more than 2^31 is told of by a completion (IBTA 9.7.2), but what cannot be counted */
	if (k->len > UINT32_MAX)
		return EINVAL;
	return 0;
}

/* What one call of dp_post_send() has done so far in its current batch. */
struct batch {
	const struct ibv_send_wr *first; /* the WR of the op at pos */
	uint64_t pos;			 /* of the first op of the batch */
};

/* Forgets the ops from position `from` on: the provider refused the first of them. */
static void take_back(struct dp_qp *q, uint64_t from)
{
	while (q->order.next > from) {
		dp_order_undo(&q->order);
		dp_qwr_drop(q, q->order.next);
	}
}

/*
 * Posts the batch that was collected, rail 0 first: what it refuses goes nowhere. Returns 0, or the provider's
 * error with *bad set.
 */
static int flush(struct dp_qp *q, struct batch *b, struct ibv_send_wr **bad)
{
	struct ibv_send_wr *wr = (struct ibv_send_wr *)b->first;
	unsigned accepted;
	int ret = dp_chain_post0(q, &accepted);

	if (ret) {
		/*
		 * What rail 0 took are the oldest of the batch, in order; the siblings' parts of the refused ones
		 * still sit in their chains.
		 */
		for (unsigned i = 0; i < accepted; i++)
			wr = wr->next;
		*bad = wr;
		take_back(q, b->pos + accepted);
		dp_chain_take_back(q);
	}
	if (!dp_chain_posts(q))
		q->sibling_refused = true;
	b->pos = q->order.next;
	return ret;
}

/* Adds one WR: to the chains as far as it may go now, to the queue as far as not. */
static int add(struct dp_qp *q, const struct ibv_send_wr *wr)
{
	struct wr_class k;
	struct dp_order *o = &q->order;
	const struct dp_op *op;
	struct dp_slot *s;
	bool go0, gos;
	uint64_t pos;

	classify(q, wr, &k);
	/* un-bonded, too: parts on siblings may still be under way */
	place(q, wr, &k);
	if ((k.d.flags & DP_OP_BULK) && (k.d.flags & DP_OP_ALL))
		dp_fallback(DP_FB_RKEY_PENDING);
	else if ((k.d.flags & DP_OP_BULK) && o->bonded)
		cut(q, wr, &k);
	else if (o->bonded)
		look_closer(q, wr, &k);
	if (!dp_qp_room(q))
		return ENOMEM;
	pos = dp_order_add(o, &k.d);
	op = dp_order_op(o, pos);
	s = dp_qp_slot(q, pos);
	dp_slot_fill(s, wr->wr_id, (uint32_t)k.len, wr->opcode);
	k.split = !op->whole;
	go0 = o->post0 == pos && dp_order_may_post0(o);
	gos = dp_order_may_posts(o); /* passes over ops without sibling parts, so it comes before the comparison */
	gos = op->whole || (gos && o->posts == pos);
	if (dp_qp_too_deep(q, pos, go0)) {
		dp_order_undo(o);
		return ENOMEM;
	}
	if (!go0 || !gos) {
		int err = go0 ? 0 : validate(q, wr, &k);

		if (!err) {
			s->qwr = dp_qwr_new(q, wr, k.split ? k.part : NULL, k.rkey, k.lkey);
			if (!s->qwr)
				err = ENOMEM;
			s->reported = false;
		}
		if (err) {
			dp_order_undo(o);
			return err;
		}
		s->qwr->since = dp_now_ns();
		if (!go0 && !(k.d.flags & DP_OP_BULK))
			dp_count(&dp_counters.signals_waited, 1);
		if (go0)
			dp_count(&dp_counters.deferred, 1);
	}
	if (go0) {
		if (!(k.d.flags & DP_OP_BULK) && dp_trip_timed(q, pos))
			s->posted_ns = dp_now_ns();
		dp_chain_add0(q, wr, k.split ? &k.part[0] : NULL, k.len);
		dp_order_posted0(o);
	}
	if (k.split && gos) {
		for (uint32_t r = 1; r < q->nrails; r++)
			if (k.part[r].len)
				dp_chain_add(q, r, wr, &k.part[r], &k.lkey[r * (uint32_t)wr->num_sge], k.rkey[r],
					     dp_order_rail(o, pos, r)->seq, k.d.flags & DP_OP_EVERY);
		dp_order_posteds(o);
	}
	if (k.split)
		note_writes(q, wr, &k, pos);
	if (o->flush & 1)
		note_write0(q, wr, &k, pos);
	if (op->full0 | op->fulls)
		dp_count(&dp_counters.full_waits, 1);
	if (!(k.d.flags & DP_OP_BULK)) {
		dp_count(&dp_counters.signals, 1);
	} else if (k.split) {
		unsigned rails = 0;

		for (uint32_t r = 0; r < q->nrails; r++)
			rails += k.part[r].len != 0;
		dp_count(rails > 1 ? &dp_counters.splits : &dp_counters.spreads, 1);
	} else if (op->behind) {
		dp_fallback(op->behind == DP_BEHIND_HASTE ? DP_FB_HASTE : DP_FB_BEHIND_SIGNAL);
	}
	return 0;
}

static bool chains_full(const struct dp_qp *q)
{
	for (uint32_t r = 0; r < q->nrails; r++)
		if (dp_chain_full(q, r))
			return true;
	return false;
}

static int post_bonded(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct batch b = { .first = wr, .pos = q->order.next };
	int ret = 0, err = 0;

	for (; wr; wr = wr->next) {
		if (chains_full(q)) {
			ret = flush(q, &b, bad);
			if (ret)
				return ret;
			b.first = wr;
		}
		err = dp_bulk_add(q, wr) ? 0 : add(q, wr);
		if (err)
			break; /* what stands before it is posted all the same */
	}
	ret = flush(q, &b, bad);
	if (ret)
		return ret;
	if (err)
		*bad = wr;
	return err;
}

bool dp_qp_record(struct dp_qp *q, uint64_t wr_id, enum ibv_wr_opcode op, unsigned int send_flags)
{
	struct dp_op_desc d = { .flags = DP_OP_ALL | dp_qp_signaled(q, send_flags) };

	/* errors are given in the order of the records, and those have theirs last */
	if (q->order.post0 != q->order.next || q->fake_pos != UINT64_MAX)
		return false;
	if (!dp_qp_room(q)) {
		q->unrecorded = true;
		return false;
	}
	dp_slot_fill(dp_qp_slot(q, dp_order_add(&q->order, &d)), wr_id, 0, op);
	dp_order_posted0(&q->order);
	return true;
}

/* session: wr is the one that ibv_wr_* collected. */
static int pass(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad, bool session)
{
	if (!session)
		return q->post_send(q->qp, wr, bad);
	*bad = wr;
	return dp_qpex_play(q);
}

/* Before the bond, or when it failed: passes natively, but its completions will look like later ones (I9). */
static int post_pending(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad, bool session)
{
	int ret = pass(q, wr, bad, session);

	for (; wr && !(ret && wr == *bad); wr = wr->next)
		if (!dp_qp_record(q, wr->wr_id, wr->opcode, wr->send_flags))
			break;
	return ret;
}

/*
 * A signal in the list may find the siblings drained already although nobody polled their completions: look, lest
 * it waits for the next poll.
 */
static void look_at_siblings(struct dp_qp *q, const struct ibv_send_wr *wr)
{
	if (wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_READ)
		if (!wr->next && wr->num_sge > 0 && (uint32_t)wr->num_sge <= q->cap.max_send_sge &&
		    wr->sg_list[0].length >= dp_cfg.spread_min)
			return;
	for (const struct dp_icq *i = q->scq->icqs; i; i = i->next)
		if (atomic_load_explicit(&i->pending, memory_order_relaxed)) {
			if (dp_try(&q->scq->lock)) {
				dp_cq_progress(q->scq, false);
				dp_drop(&q->scq->lock);
			}
			return;
		}
}

/*
 * ibv_wr_complete posts all or nothing: what would be refused in the middle of the list is looked for before its
 * first WR goes. One WR alone is refused as a whole anyway.
 */
static int check_session(struct dp_qp *q, const struct ibv_send_wr *wr)
{
	uint64_t n = q->order.next - dp_order_given(&q->order);
	struct wr_class k;
	int ret;

	if (!wr->next)
		return 0;
	for (; wr; wr = wr->next) {
		classify(q, wr, &k);
		ret = validate(q, wr, &k);
		if (!ret && ++n > q->cap.max_send_wr)
			ret = ENOMEM;
		if (ret)
			return ret;
	}
	return 0;
}

void dp_qp_sibling_refused(struct dp_qp *q)
{
	dp_take(&q->scq->lock);
	dp_take(&q->lock);
	dp_fail_sibling(q, IBV_WC_GENERAL_ERR, UINT64_MAX);
	dp_drop(&q->lock);
	dp_drop(&q->scq->lock);
}

/*
 * What was released outside the CQ's lock rail 0 had no room for, or refused. With it this is found once more, and there is who
 * tries again, or the queue pair fails.
 */
static void go_on(struct dp_qp *q)
{
	dp_take(&q->scq->lock);
	dp_take(&q->lock);
	if (atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_BONDED)
		dp_cq_go_on(q->scq, q);
	dp_drop(&q->lock);
	dp_drop(&q->scq->lock);
}

int dp_post_tracked(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad, bool session)
{
	bool refused, left = false;
	int ret;

	if (!session && atomic_load_explicit(&q->binding, memory_order_relaxed) && dp_bind_posts(q))
		return q->post_send(q->qp, wr, bad);
	if (atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_BONDED && wr)
		look_at_siblings(q, wr);
	dp_take(&q->lock);
	switch (atomic_load_explicit(&q->state, memory_order_relaxed)) {
	case DP_QP_PENDING:
	case DP_QP_FAILING: /* rail 0 flushes it, and its error is known by the record */
		ret = post_pending(q, wr, bad, session);
		break;
	case DP_QP_BONDED:
		ret = session && wr ? check_session(q, wr) : 0;
		if (!ret)
			ret = post_bonded(q, wr, bad);
		if (dp_queue_may_go(q)) {
			enum dp_release how = dp_qp_release(q);

			q->sibling_refused |= how == DP_REFUSED;
			left = how == DP_REFUSED0 || q->retry;
		}
		dp_meter_update(q);
		dp_qp_update_busy(q);
		break;
	default:
		ret = pass(q, wr, bad, session);
	}
	refused = q->sibling_refused;
	q->sibling_refused = false;
	dp_drop(&q->lock);
	if (refused)
		dp_qp_sibling_refused(q);
	if (left)
		go_on(q);
	return ret;
}

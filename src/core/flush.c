// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Flushes: READs of ours behind the WRITEs of a sibling, one for each region of the peer that was written to. A READ
 * pushes earlier WRITEs to its own region into memory, and not always those to another one (PCIe ordering holds within
 * one requester's traffic, but a device may send different regions different ways).
 *
 * A flush covers whatever was posted before it on its rail, so it is posted when somebody waits (order.c says), not for
 * each WRITE; and right behind the WRITEs, before their acknowledgement. READs go where no completion of the program's
 * is touched: on the twins, which have room for them beside the program's own requests. For what rail 0 wrote that is the
 * spare (spare.c), another queue pair over the same ports: a READ there overtakes what the program's has not delivered
 * yet, so it is posted only when that is acknowledged, and covers that.
 */
#include "qp.h"

#include <errno.h>
#include <string.h>

#define COUNT_SHIFT 56 /* wr_id of a flush: DP_FLUSH_BIT, how many READs it is, what it covers */
#define COVERS(wr_id) ((wr_id) & ((UINT64_C(1) << COUNT_SHIFT) - 1))

/* What flushes read, and what the siblings' parts of the program's own flushes read; nobody looks at it. */
static uint8_t scratch[DP_EVERY_MAX] __attribute__((aligned(DP_EVERY_MAX)));

static struct ibv_mr *scratch_reg(const struct dp_verbs *real, struct ibv_pd *pd)
{
	return real->reg_mr(pd, scratch, sizeof(scratch), IBV_ACCESS_LOCAL_WRITE);
}

struct ibv_mr *dp_scratch_own(struct dp_pd *pd)
{
	struct ibv_mr *mr = NULL;

	dp_take(&pd->settling);
	if (pd->pd)
		mr = scratch_reg(pd->c->real, pd->pd);
	else
		errno = ENODEV;
	dp_drop(&pd->settling);
	return mr;
}

int dp_scratch_make(struct dp_pd *pd, uint32_t i)
{
	if (pd->scratch[i])
		return 0;
	pd->scratch[i] = scratch_reg(pd->c->real, pd->twin[i]);
	return pd->scratch[i] ? 0 : -errno;
}

void dp_scratch_drop(struct dp_pd *pd, bool shared)
{
	for (uint32_t i = 0; i < pd->c->nsib; i++) {
		if (pd->c->sib[i].shared != shared)
			continue;
		if (pd->scratch[i] && pd->c->real->dereg_mr(pd->scratch[i]))
			dp_warn("scratch memory on %s could not be freed: %s", pd->c->sib[i].text, strerror(errno));
		pd->scratch[i] = NULL;
	}
}

void dp_scratch_sge(const struct dp_rail *rail, struct ibv_send_wr *wr, uint32_t len)
{
	wr->sg_list[0] = (struct ibv_sge){ (uintptr_t)scratch, len, rail->scratch_lkey };
	wr->num_sge = 1;
}

static void say_ack(const struct dp_qp *q, _Atomic bool *said, const char *what)
{
	dp_count(&dp_counters.flush_acks, 1);
	if (!atomic_exchange_explicit(said, true, memory_order_relaxed))
		dp_warn("qp 0x%x: %s: no flush is possible, so that acknowledgements count (flush = ack), here and for its "
			"like", q->qp_num, what);
}

void dp_flush_setup(struct dp_qp *q, uint64_t rail0)
{
	static _Atomic bool said, said_scratch;

	static _Atomic bool said_spare;

	dp_order_shut(&q->order);
	q->order.flush = 0;
	for (uint32_t r = 1; r < q->nrails && dp_cfg.flush != DP_FLUSH_ACK; r++) {
		struct dp_rail *rail = &q->rail[r];

		rail->flushes = rail->peer_reads && rail->scratch_lkey;
		if (dp_cfg.flush == DP_FLUSH_AUTO && rail->peer_upstream == rail0)
			continue;
		if (rail->flushes)
			q->order.flush |= UINT32_C(1) << r;
		else if (rail->peer_reads)
			say_ack(q, &said_scratch, "there is no memory for flushes");
		else
			say_ack(q, &said, "the peer's queue pair does not allow READs");
	}
	if (!q->order.flush)
		return;
	/* siblings that reach memory another way can be seen before what rail 0 has had acknowledged */
	if (q->spare && (q->spare->rts || q->spare->dead) && q->spare->peer_reads && q->spare->scratch_lkey) {
		q->spare->flushes = true;
		q->order.flush |= 1;
	} else {
		say_ack(q, &said_spare, "there is no spare queue pair on the program's own port");
	}
}

static void forget(struct dp_rail *rail, uint32_t i)
{
	rail->dirty[i] = rail->dirty[--rail->ndirty];
}

static struct dp_dirty *find(struct dp_rail *rail, uint32_t rkey0)
{
	for (uint32_t i = 0; i < rail->ndirty; i++)
		if (rail->dirty[i].rkey0 == rkey0)
			return &rail->dirty[i];
	return NULL;
}

/* Forgets what is visible. */
static void purge(const struct dp_qp *q, struct dp_rail *rail)
{
	uint64_t visible = q->order.visible[rail->idx];

	for (uint32_t i = rail->ndirty; i-- > 0;) {
		struct dp_dirty *d = &rail->dirty[i];

		if (d->last <= visible)
			forget(rail, i);
		else if (d->first <= visible)
			d->first = visible + 1;
	}
}

/* May anything ask for what sibling r writes to be visible? Where the peer has no memory of relaxed order nothing is DP_OP_STRONG. */
static bool may_be_wanted(const struct dp_qp *q, uint32_t r)
{
	return (q->order.flush >> r & 1) ||
	       (dp_cfg.flush == DP_FLUSH_AUTO && q->rail[r].flushes && q->rpd && dp_rpd_relaxed(q->rpd));
}

bool dp_flush_room(struct dp_qp *q, uint32_t r, uint32_t rkey0)
{
	struct dp_rail *rail = &q->rail[r];

	if (rail->ndirty < DP_DIRTY || !may_be_wanted(q, r) || find(rail, rkey0))
		return true;
	purge(q, rail);
	if (rail->ndirty < DP_DIRTY)
		return true;
	/* else it might stay so for good: no signal need come that asks */
	dp_order_want(&q->order, r);
	return false;
}

/* What was written longest ago is the least likely to be missed. */
static void forget_oldest(struct dp_rail *rail)
{
	uint32_t oldest = 0;

	for (uint32_t i = 1; i < rail->ndirty; i++)
		if (rail->dirty[i].last < rail->dirty[oldest].last)
			oldest = i;
	if (rail->dirty[oldest].last > rail->blind)
		rail->blind = rail->dirty[oldest].last;
	forget(rail, oldest);
}

static void wrote(struct dp_rail *rail, uint64_t seq, uint64_t addr, uint32_t rkey0, uint32_t rkey, uint64_t born)
{
	struct dp_dirty *d = find(rail, rkey0);

	if (!d) {
		if (rail->ndirty == DP_DIRTY)
			forget_oldest(rail);
		d = &rail->dirty[rail->ndirty++];
		d->rkey0 = rkey0;
		d->first = UINT64_MAX;
	}
	/*
	 * Read is where the first one wrote, which is posted before any flush for it: a later one may still be queued then, and
	 * beyond the region, and must not fail what stands before it. What is gone needs no flush; what was taken back is not there.
	 */
	if (d->first >= seq || d->rkey != rkey || d->born != born) {
		d->first = seq;
		d->rkey = rkey;
		d->born = born;
		d->addr = addr;
	}
	d->last = seq;
}

void dp_flush_wrote(struct dp_qp *q, uint32_t r, uint64_t seq, uint64_t addr, uint32_t rkey0,
		    const struct dp_rkeys *keys)
{
	static _Atomic bool said;
	struct dp_rail *rail = &q->rail[r];

	if (!rail->flushes)
		return;
	if (!(keys->flags & DP_RKEY_READ)) {
		if (q->order.flush >> r & 1)
			say_ack(q, &said, "a memory region of the peer does not allow READs");
		rail->blind = seq;
		return;
	}
	wrote(rail, seq, addr, rkey0, keys->key[rail->peer_sib_idx], keys->born);
}

void dp_flush_strong(struct dp_qp *q)
{
	static _Atomic bool said;

	for (uint32_t r = 1; r < q->nrails; r++)
		if (!(q->order.flush >> r & 1) && q->rail[r].blind > q->order.visible[r])
			say_ack(q, &said, "a flag in memory of relaxed order, behind data in regions that do not allow READs, or in too many");
}

void dp_flush_wrote0(struct dp_qp *q, uint64_t seq, uint64_t addr, uint32_t rkey0)
{
	static _Atomic bool said, said_many;
	struct dp_rail *rail = q->spare;
	enum dp_fallback why;
	const struct dp_rkeys *keys = q->rpd ? dp_rkey_get(q->rpd, rkey0, &why) : NULL;

	/* the key may be that of a window, with which only the program's own queue pair may read */
	if (!keys || !(keys->flags & DP_RKEY_READ)) {
		say_ack(q, &said, keys ? "a memory region of the peer, written to over the program's own port, does not "
					 "allow READs" :
					 "nothing is known of a key with which the program writes over its own port");
		return;
	}
	if (!find(rail, rkey0) && rail->ndirty == DP_DIRTY) {
		purge(q, rail);
		if (rail->ndirty == DP_DIRTY)
			say_ack(q, &said_many, "too many regions wait for a flush of the program's own port");
	}
	wrote(rail, seq, addr, rkey0, rkey0, keys->born);
}

/* Is the key still good? A region that is gone needs no flush, and a READ of it would break the connection. */
static bool still_there(const struct dp_qp *q, const struct dp_rail *rail, const struct dp_dirty *d)
{
	const struct dp_rkeys *keys = q->rpd ? dp_rkey_peek(q->rpd, d->rkey0) : NULL;

	/* one that was registered anew may have kept its keys, and not its addresses */
	if (keys && keys->born != d->born)
		return false;
	if (rail == q->spare)
		return keys && (keys->flags & DP_RKEY_READ);
	return !q->rpd || (keys && rail->peer_sib_idx < keys->n && keys->key[rail->peer_sib_idx] == d->rkey);
}

static void append(struct dp_rail *rail, const struct dp_dirty *d, uint64_t wr_id)
{
	struct dp_chain *ch = &rail->chain;
	struct ibv_send_wr *w = &ch->wr[ch->n];

	*w = (struct ibv_send_wr){
		.wr_id = wr_id,
		.sg_list = &ch->sge[ch->nsge++],
		.opcode = IBV_WR_RDMA_READ,
		.wr.rdma = { .remote_addr = d->addr, .rkey = d->rkey },
	};
	dp_scratch_sge(rail, w, 1);
	if (ch->n)
		ch->wr[ch->n - 1].next = w;
	ch->n++;
}

/* posted: what a flush that is posted now covers. */
static bool chain(struct dp_qp *q, struct dp_rail *rail, uint64_t posted)
{
	struct dp_chain *ch = &rail->chain;
	struct dp_order *o = &q->order;
	uint32_t r = rail->idx, k = 0;

	if (rail->dead || !dp_order_flush_due(o, r, posted))
		return true;
	purge(q, rail);
	for (uint32_t i = rail->ndirty; i-- > 0;) {
		if (!still_there(q, rail, &rail->dirty[i]))
			forget(rail, i);
		else
			k += rail->dirty[i].first <= posted;
	}
	if (!k) {
		/* regions that cannot be read, or are gone: more than the acknowledgement will never be known */
		dp_order_flushed(o, r, o->done[r]);
		return true;
	}
	/* further READs would stop what stands behind them in the send queue; the next completion comes here again */
	if (rail->flushing && rail->flushing + k > (rail->rd_atomic < DP_FLUSH_SLOTS ? rail->rd_atomic : DP_FLUSH_SLOTS))
		return true;
	if (ch->n + k > DP_BATCH)
		return false;
	for (uint32_t i = 0; i < rail->ndirty; i++)
		if (rail->dirty[i].first <= posted)
			append(rail, &rail->dirty[i], DP_FLUSH_BIT | (uint64_t)k << COUNT_SHIFT | posted);
	rail->flushing += k;
	dp_order_flush_posted(o, r, posted);
	dp_count(&dp_counters.flushes, k);
	return true;
}

bool dp_flush_chain(struct dp_qp *q, uint32_t r)
{
	const struct dp_chain *ch = &q->rail[r].chain;

	return chain(q, &q->rail[r], ch->n ? ch->wr[ch->n - 1].wr_id : q->rail[r].posted);
}

void dp_flush_spare(struct dp_qp *q)
{
	chain(q, q->spare, q->order.done[0]);
}

uint64_t dp_flush_covers(uint64_t wr_id)
{
	return COVERS(wr_id);
}

void dp_flush_done(struct dp_qp *q, struct dp_rail *rail, uint64_t wr_id)
{
	struct dp_order *o = &q->order;
	bool go0 = dp_order_may_post0(o), gos = dp_order_may_posts(o), give = dp_order_deliverable(o) != UINT64_MAX;

	/* its acknowledgements may only be known from it */
	dp_order_done(o, rail->idx, COVERS(wr_id));
	rail->flushing -= (uint32_t)((wr_id & ~DP_FLUSH_BIT) >> COUNT_SHIFT);
	dp_order_flushed(o, rail->idx, COVERS(wr_id));
	purge(q, rail);
	if (!go0 && dp_order_may_post0(o))
		dp_count(&dp_counters.flush_waits, 1);
	if (!gos && dp_order_may_posts(o))
		dp_count(&dp_counters.flush_waits, 1);
	if (!give && dp_order_deliverable(o) != UINT64_MAX)
		dp_count(&dp_counters.flush_waits, 1);
}

/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* The order machine's short ways, inlined where requests are posted and polled. */
#ifndef DUALPORT_ORDER_SHORT_H
#define DUALPORT_ORDER_SHORT_H

#include "order_priv.h"

/*
 * dp_order_add() and dp_order_posted0(), for a signal that rail 0's provider took already, that writes no local range, where
 * dp_order_alone() said yes. Not for dp_order_undo(), nor dp_order_unposted0(): its record says only where it is, its
 * numbers, and whether it is signalled. flags need not have DP_OP_PLAIN if it has bytes.
 */
static inline __attribute__((always_inline)) uint64_t dp_order_add_lone(struct dp_order *o, unsigned flags, uint64_t lo,
									 uint64_t hi)
{
	uint64_t pos = o->next;
	struct dp_op_rail *or = dp_order_rail(o, pos, 0);
	struct dp_op *op = dp_order_op(o, pos);

	op->flags = flags;
	op->whole = true;
	or->remote.lo = lo;
	or->remote.hi = hi;
	or->seq = pos + 1;
	or[1].seq = o->planned[1]; /* dp_order_alone() says no where there is no sibling */
	/* nobody wants a flush for it: all that could be asked to be visible is */
	o->planned[0] = o->next = o->post0 = o->last_signal = pos + 1;
	/* all parts on siblings are complete: there is nothing to be posted before it either */
	o->posts = pos + 1;
	if (__builtin_expect(lo < hi, 1)) {
		hull_add(&o->hull[0], (struct dp_range){ lo, hi });
		o->bytes[0] += hi - lo;
		o->sent[0] += hi - lo;
		o->last_write[0] = pos + 1;
	} else if (writes(flags, 0, (struct dp_range){ lo, hi })) {
		o->last_write[0] = pos + 1;
	}
	if (__builtin_expect(flags == DP_OP_SIGNALED, 1)) {
		o->last_signaled = pos + 1;
		if (__builtin_expect(o->nrails <= 2, 1))
			return pos;
	}
	/* one call, so that the common case keeps nothing for it */
	dp_order_lone_rest(o, or, flags);
	return pos;
}

/* Is a part of bulk clear of what is outstanding on rail e? By the hulls: true is certain. */
static inline __attribute__((always_inline)) bool clear_of(const struct dp_order *o, uint32_t e, unsigned flags,
							    uint64_t remote, uint64_t local, const struct dp_part *part,
							    bool pair)
{
	const struct dp_range *h = &o->hull[e], *lh = &o->lhull[e];

	if (o->planned[e] == o->done[e] || (!pair && !part->len))
		return true;
	remote += part->offset;
	local += part->offset;
	/* none is empty, but for hulls of { 0, 0 } */
	return (remote + part->len <= h->lo || remote >= h->hi) &&
	       (!(flags & DP_OP_READ) || local + part->len <= lh->lo || local >= lh->hi);
}

/*
 * Has a bulk WR, as for dp_order_add_free(), nothing to wait for? pair: there are two rails, and it has bytes on each; as a
 * constant this spares loops and questions.
 */
static inline __attribute__((always_inline)) bool dp_order_is_free(const struct dp_order *o, unsigned flags, uint64_t remote,
								    uint64_t local, const struct dp_part *part, bool pair)
{
	uint32_t nr = o->nrails;

	if (o->last_fence > o->done[0])
		return false;
	if (o->mode == DP_ORDER_RELAXED)
		return true;
	if (o->mode == DP_ORDER_RC || (o->mode == DP_ORDER_STRICT && o->last_signal > o->done[0]) ||
	    o->last_all > o->done[0])
		return false;
	if (pair)
		return clear_of(o, 1, flags, remote, local, &part[0], true) &&
		       clear_of(o, 0, flags, remote, local, &part[1], true);
	for (uint32_t r = 0; r < nr; r++)
		for (uint32_t e = 0; e < nr; e++)
			if (e != r && !clear_of(o, e, flags, remote, local, &part[r], false))
				return false;
	return true;
}

/*
 * Enters what dp_order_is_free(), pair as there, as posted. undo: it may be taken back. Else its record says only where
 * it is, its numbers, and whether it is signalled.
 */
static inline __attribute__((always_inline)) uint64_t dp_order_enter_free(struct dp_order *o, unsigned flags,
									   uint64_t remote, uint64_t local,
									   const struct dp_part *part, bool pair, bool undo)
{
	uint64_t pos = o->next, waits0 = o->mode == DP_ORDER_STRICT ? o->last_signal : 0;
	struct dp_op_rail *or = dp_order_rail(o, pos, 0);
	struct dp_op *op = dp_order_op(o, pos);
	uint64_t *last = flags & DP_OP_READ ? o->last_read : o->last_write;

	o->open = 0;
	op->flags = flags;
	op->whole = false;
	if (undo) {
		op->behind = DP_BEHIND_NOT;
		op->full0 = op->fulls = 0;
		op->before.signal = o->last_signal;
		op->before.signaled = o->last_signaled;
		op->before.all = o->last_all;
		op->before.fence = o->last_fence;
	}
	o->next = o->post0 = o->posts = pos + 1;
	if (flags & DP_OP_SIGNALED)
		o->last_signaled = pos + 1;
	for (uint32_t r = 0, nr = pair ? 2 : o->nrails; r < nr; r++, or++) {
		uint64_t len = part[r].len, seq = r ? o->planned[r] + (pair || len != 0) : pos + 1;

		o->planned[r] = or->seq = seq;
		if (undo) {
			or->wait0 = 0;
			or->waits = r ? 0 : waits0;
			or->last_read = o->last_read[r];
			or->last_write = o->last_write[r];
		}
		/* a local range is looked at only of READs */
		if (undo || (!pair && !len))
			or->remote = or->local = (struct dp_range){ 0, 0 };
		if (!pair && !len) {
			/* one without bytes on rail 0 is a READ there all the same, but no WRITE */
			if (!r && (flags & DP_OP_READ))
				last[0] = seq;
			continue;
		}
		or->remote.lo = remote + part[r].offset;
		or->remote.hi = or->remote.lo + len;
		hull_widen(&o->hull[r], or->remote);
		if (flags & DP_OP_READ) {
			or->local.lo = local + part[r].offset;
			or->local.hi = or->local.lo + len;
			hull_add(&o->lhull[r], or->local);
		}
		o->bytes[r] += len;
		o->sent[r] += len;
		last[r] = seq;
	}
	return pos;
}

/*
 * dp_order_done() of a sibling, for the common case that it is the one fragment which is the next to be done there, that no
 * op without bytes there is behind it, no flush is waited for, and no op is finished by it: the oldest was not given yet.
 * False: it is not that case, nothing was done.
 */
static inline __attribute__((always_inline)) bool dp_order_done_one(struct dp_order *o, uint32_t rail, uint64_t seq)
{
	uint64_t pos = o->counted[rail];
	const struct dp_op_rail *or = dp_order_rail(o, pos, rail);

	if (__builtin_expect(o->flush || pos < o->tail || pos >= o->posts || or->seq != seq ||
			     o->tail != o->deliver, 0))
		return false;
	if (pos + 1 < o->next && dp_order_rail(o, pos + 1, rail)->seq == seq)
		return false;
	o->done[rail] = seq;
	o->counted[rail] = pos + 1;
	arrive(o, rail, size_of(or->remote));
	after_done(o, rail);
	return true;
}

/* The part of dp_order_take() for when it is `open`, or not. */
static inline __attribute__((always_inline)) bool dp_order_take_if(struct dp_order *o, const struct dp_op **op, bool open)
{
	uint64_t pos = o->deliver;
	const struct dp_op_rail *or = dp_order_rail(o, pos, 0);

	*op = dp_order_op(o, pos);
	/* one completion for one op, and nobody before it is waited for or still known */
	if (__builtin_expect(o->match != pos || o->tail != pos || o->counted[0] != pos || o->post0 == pos ||
			     !((*op)->flags & DP_OP_SIGNALED), 0))
		return false;
	/* open: all of the siblings is complete, and flush is 0 */
	if (!open) {
		if (o->flush)
			return false;
		/* by far the most frequent number */
		if (__builtin_expect(o->nrails == 2, 1)) {
			if (o->done[1] < or[1].seq)
				return false;
		} else {
			for (uint32_t r = 1; r < o->nrails; r++)
				if (o->done[r] < or[r].seq)
					return false;
		}
		raise_to(&o->posts, pos + 1); /* as retire() */
	}
	o->match = o->deliver = o->tail = o->counted[0] = o->done[0] = pos + 1;
	if (__builtin_expect(!empty(or->remote), 1))
		arrive(o, 0, or->remote.hi - or->remote.lo);
	after_done(o, 0);
	return true;
}

/*
 * dp_order_match(), and dp_order_delivered() if that op may be given at once, for the common case that nothing else is
 * known before it: then that op, the one before `deliver`. False: it is not that case, nothing was done.
 */
static inline __attribute__((always_inline)) bool dp_order_take(struct dp_order *o, const struct dp_op **op)
{
	return __builtin_expect(o->open != 0, 1) ? dp_order_take_if(o, op, true) : dp_order_take_if(o, op, false);
}

#endif

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
	if (__builtin_expect(flags & DP_OP_SIGNALED, 1))
		o->last_signaled = pos + 1;
	/* at the end, so that the common case keeps nothing for it */
	if (__builtin_expect(o->nrails > 2, 0))
		dp_order_seqs(o, or);
	return pos;
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
		for (uint32_t r = 1, nr = o->nrails; r < nr; r++)
			if (o->done[r] < or[r].seq)
				return false;
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

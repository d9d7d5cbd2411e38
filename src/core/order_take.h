/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* The order machine's short way to give a completion, inlined where each is polled. */
#ifndef DUALPORT_ORDER_TAKE_H
#define DUALPORT_ORDER_TAKE_H

#include "order_priv.h"

/*
 * dp_order_match(), and dp_order_delivered() if that op may be given at once, for the common case that nothing else is
 * known before it. UINT64_MAX: it is not that case, nothing was done.
 */
static inline uint64_t dp_order_take(struct dp_order *o)
{
	uint64_t pos = o->deliver;
	const struct dp_op_rail *or = dp_order_rail(o, pos, 0);

	/* one completion for one op, and nobody before it is waited for or still known */
	if (o->flush || o->match != pos || o->tail != pos || o->counted[0] != pos || o->post0 == pos ||
	    !(dp_order_op(o, pos)->flags & DP_OP_SIGNALED))
		return UINT64_MAX;
	for (uint32_t r = 1, nr = o->nrails; r < nr; r++)
		if (o->done[r] < or[r].seq)
			return UINT64_MAX;
	o->match = o->deliver = o->tail = o->counted[0] = pos + 1;
	raise_to(&o->done[0], pos + 1);
	arrive(o, 0, size_of(or->remote));
	after_done(o, 0);
	raise_to(&o->posts, pos + 1); /* as retire() */
	return pos;
}

#endif

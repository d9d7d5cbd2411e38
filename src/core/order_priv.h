/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* Between order.c, order_add.c and order_short.h. */
#ifndef DUALPORT_ORDER_PRIV_H
#define DUALPORT_ORDER_PRIV_H

#include "order.h"

static inline bool overlap(struct dp_range a, struct dp_range b)
{
	return a.lo < b.hi && b.lo < a.hi && a.lo < a.hi && b.lo < b.hi;
}

static inline bool empty(struct dp_range a)
{
	return a.lo >= a.hi;
}

static inline uint64_t size_of(struct dp_range a)
{
	return empty(a) ? 0 : a.hi - a.lo;
}

/* a is not empty. */
static inline void hull_widen(struct dp_range *h, struct dp_range a)
{
	if (empty(*h)) {
		*h = a;
		return;
	}
	if (a.lo < h->lo)
		h->lo = a.lo;
	if (a.hi > h->hi)
		h->hi = a.hi;
}

static inline void hull_add(struct dp_range *h, struct dp_range a)
{
	if (!empty(a))
		hull_widen(h, a);
}

static inline void raise_to(uint64_t *v, uint64_t to)
{
	if (*v < to)
		*v = to;
}

/* What is at or before this number on a rail concerns nobody any more. */
static inline uint64_t settled(const struct dp_order *o, uint32_t r)
{
	return o->flush >> r & 1 ? o->visible[r] : o->done[r];
}

/* Does what an op has on rail r write to the peer's memory? */
static inline bool writes(unsigned flags, uint32_t r, struct dp_range remote)
{
	if (flags & DP_OP_READ)
		return false;
	return !empty(remote) || (r == 0 && !(flags & (DP_OP_BULK | DP_OP_PLAIN)));
}

/* order_add.c: what dp_order_add_lone() seldom does; o->next is past the op. */
void dp_order_lone_rest(struct dp_order *o, struct dp_op_rail *or, unsigned flags);

static inline void arrive(struct dp_order *o, uint32_t rail, uint64_t bytes)
{
	o->bytes[rail] -= bytes;
	o->arrived[rail] += bytes;
}

static inline void after_done(struct dp_order *o, uint32_t rail)
{
	/* what was not written need not be flushed; without flushes of rail 0 nobody asks */
	if ((rail || (o->flush & 1)) && o->visible[rail] >= o->last_write[rail])
		o->visible[rail] = o->done[rail];
	if (settled(o, rail) == o->planned[rail])
		o->hull[rail] = o->lhull[rail] = (struct dp_range){ 0, 0 };
}

#endif

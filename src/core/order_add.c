// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The order machine's entry: what a WR has to wait for, and its record. order.c has what happens to it then. */
#include "order_short.h"

#include <string.h>

/* Does a signal wait until the siblings have drained? */
static bool drains(const struct dp_order *o, unsigned flags)
{
	return o->mode != DP_ORDER_RELAXED || !(flags & DP_OP_PLAIN) || (flags & DP_OP_FENCE);
}

/* Would two fragments on different rails be seen, if reversed? */
static bool conflict(unsigned fe, const struct dp_op_rail *e, unsigned fl, struct dp_range remote,
		     struct dp_range local)
{
	if ((fe | fl) & DP_OP_ALL)
		return true;
	if (!((fe & DP_OP_READ) && (fl & DP_OP_READ)) && overlap(e->remote, remote))
		return true;
	return (fe & (DP_OP_READ | DP_OP_ATOMIC)) && overlap(e->local, local);
}

/*
 * Raises wait[e], for each rail e other than `rail`, to the newest fragment there that conflicts with the
 * fragment (remote, local) of a bulk WR on `rail`. Returns the rails where it did not look at everything, and waits for all
 * of the rest.
 */
static uint32_t wait_for_overlaps(const struct dp_order *o, unsigned flags, uint32_t rail, struct dp_range remote,
				  struct dp_range local, uint64_t wait[])
{
	uint32_t full = 0;

	for (uint32_t e = 0; e < o->nrails; e++) {
		if (e == rail || o->planned[e] == settled(o, e))
			continue;
		/* the hull of all that is outstanding there spares the scan in the common case */
		if (!(flags & DP_OP_ALL) && !(e == 0 && o->last_all > settled(o, 0)) && !overlap(o->hull[e], remote) &&
		    !overlap(o->lhull[e], local))
			continue;
		for (uint64_t p = o->next; p-- > o->tail;) {
			const struct dp_op_rail *er = dp_order_rail(o, p, e);
			unsigned fe;

			if (er->seq <= settled(o, e) || er->seq <= wait[e])
				break; /* numbers only fall from here on */
			if (o->next - p > o->search) {
				wait[e] = er->seq;
				full |= UINT32_C(1) << e;
				break;
			}
			if (e && (dp_order_op(o, p)->whole || empty(er->remote)))
				continue; /* the number is an earlier op's */
			fe = dp_order_op(o, p)->flags;
			if (e)
				fe &= ~DP_OP_ALL; /* bonding says that of rail 0; what a sibling has is known */
			if (conflict(fe, er, flags, remote, local)) {
				wait[e] = er->seq;
				break;
			}
		}
	}
	return full;
}

/*
 * What bulk WR d has to wait for when cut as part[]: wait0[] for its part on rail 0, waits[] for the others.
 * Numbers already reached are harmless.
 */
static void bulk_waits(struct dp_order *o, const struct dp_op_desc *d, const struct dp_range remote[],
		       const struct dp_range local[], bool whole, uint64_t wait0[], uint64_t waits[])
{
	struct dp_op *op = dp_order_op(o, o->next);
	uint32_t nr = o->nrails;

	if (o->mode == DP_ORDER_RC) {
		for (uint32_t r = 1; r < nr; r++)
			wait0[r] = waits[r] = o->planned[r];
		waits[0] = o->next;
		return;
	}
	if (d->flags & DP_OP_FENCE) {
		/* a rail's own READs and atomics are left to the FENCE flag, which stays on every fragment */
		for (uint32_t r = 1; r < nr; r++) {
			wait0[r] = o->last_read[r];
			if (nr > 2)
				waits[r] = o->last_read[r];
		}
		waits[0] = o->last_read[0];
	}
	for (uint32_t r = 0; r < nr && !whole; r++)
		if (o->fenced[r] > settled(o, r))
			raise_to(&waits[r], o->fenced[r]);
	if (o->mode == DP_ORDER_RELAXED)
		return;
	op->full0 = wait_for_overlaps(o, d->flags, 0, remote[0], local[0], wait0);
	if (whole)
		return;
	for (uint32_t r = 1; r < nr; r++)
		if (!empty(remote[r]))
			op->fulls |= wait_for_overlaps(o, d->flags, r, remote[r], local[r], waits);
	if (o->mode == DP_ORDER_STRICT)
		raise_to(&waits[0], o->last_signal);
}

/* Where the bytes go; without part, all on rail 0. */
static void fill_fragments(const struct dp_order *o, const struct dp_op_desc *d, const struct dp_part *part,
			   struct dp_range remote[], struct dp_range local[])
{
	for (uint32_t r = 0; r < o->nrails; r++) {
		remote[r] = local[r] = (struct dp_range){ 0, 0 };
		if (!part || !part[r].len)
			continue;
		remote[r].lo = d->remote.lo + part[r].offset;
		remote[r].hi = remote[r].lo + part[r].len;
		if (d->lpart)
			local[r] = d->lpart[r];
	}
	if (!part) {
		remote[0] = d->remote;
		local[0] = d->local;
	}
}

static bool on_siblings(const struct dp_order *o, const struct dp_part *part)
{
	for (uint32_t r = 1; part && r < o->nrails; r++)
		if (part[r].len)
			return true;
	return false;
}

struct waits {
	uint64_t rail0[DP_MAX_RAILS], siblings[DP_MAX_RAILS];
};

static void clear_waits(const struct dp_order *o, struct waits *w)
{
	for (uint32_t r = 0; r < o->nrails; r++)
		w->rail0[r] = w->siblings[r] = 0;
}

/* What an op, entered with these numbers, needs to be visible on rail r. */
static void want_visible(struct dp_order *o, unsigned flags, uint32_t r, const struct dp_op_rail *or)
{
	if (flags & DP_OP_STRONG)
		raise_to(&o->want[r], or->wait0);
	if (!(o->flush >> r & 1))
		return;
	raise_to(&o->want[r], or->wait0);
	raise_to(&o->want[r], or->waits);
	if (flags & DP_OP_SIGNALED)
		raise_to(&o->want[r], or->seq);
}

/* The op whose record this is has a FENCE, its number is o->next, and its own READ is not in last_read[] yet. */
static void fence(struct dp_order *o, struct dp_op_rail *or)
{
	for (uint32_t r = 0; r < o->nrails; r++) {
		or[r].fenced = o->fenced[r];
		o->fenced[r] = o->last_read[r];
	}
	o->last_fence = o->next;
}

/* Enters the op at o->next and raises the marks that later ops look at. */
static void enter(struct dp_order *o, const struct dp_op_desc *d, const struct dp_range remote[],
		  const struct dp_range local[], const struct waits *w)
{
	struct dp_op *op = dp_order_op(o, o->next);
	struct dp_op_rail *or = dp_order_rail(o, o->next, 0);

	op->before = (struct dp_op_marks){ o->last_signal, o->last_signaled, o->last_all, o->last_fence };
	o->planned[0] = ++o->next;
	if (d->flags & DP_OP_FENCE)
		fence(o, or);
	for (uint32_t r = 0; r < o->nrails; r++, or++) {
		bool here = r == 0 || !empty(remote[r]);

		if (r && here)
			o->planned[r]++;
		or->remote = remote[r];
		or->local = local[r];
		or->seq = o->planned[r];
		or->wait0 = w->rail0[r];
		or->waits = w->siblings[r];
		or->last_read = o->last_read[r];
		or->last_write = o->last_write[r];
		if (here && (d->flags & (DP_OP_READ | DP_OP_ATOMIC)))
			o->last_read[r] = o->planned[r];
		if (here && writes(d->flags, r, remote[r]))
			o->last_write[r] = o->planned[r];
		if (o->flush || (d->flags & DP_OP_STRONG))
			want_visible(o, d->flags, r, or);
		hull_add(&o->hull[r], remote[r]);
		hull_add(&o->lhull[r], local[r]);
		o->bytes[r] += size_of(remote[r]);
	}
	if (d->flags & DP_OP_ALL)
		o->last_all = o->next;
	if (!(d->flags & DP_OP_BULK))
		o->last_signal = o->next;
	if (d->flags & DP_OP_SIGNALED)
		o->last_signaled = o->next;
}

static bool untold(const struct dp_order *o, const struct waits *w)
{
	return w->siblings[0] > o->done[0] && w->siblings[0] > o->last_signaled;
}

/* Where DP_OP_HASTE matters. */
static bool would_wait(const struct dp_order *o, const struct waits *w)
{
	bool wait = w->siblings[0] > settled(o, 0);

	for (uint32_t r = 1; o->mode == DP_ORDER_RC && r < o->nrails && !wait; r++)
		wait = !dp_order_reached(o, r, w->siblings[r], false) || !dp_order_reached(o, r, w->rail0[r], false);
	return wait;
}

/* A signal goes on rail 0 alone. Field by field, since compilers make whole structs elsewhere and copy them. */
static uint64_t add_signal(struct dp_order *o, const struct dp_op_desc *d)
{
	uint64_t pos = o->next, wait = drains(o, d->flags) ? UINT64_MAX : 0;
	struct dp_op_rail *or = dp_order_rail(o, pos, 0);
	struct dp_op *op = dp_order_op(o, pos);

	op->flags = d->flags;
	op->whole = true;
	op->behind = DP_BEHIND_NOT;
	op->full0 = op->fulls = 0;
	op->before.signal = o->last_signal;
	op->before.signaled = o->last_signaled;
	op->before.all = o->last_all;
	op->before.fence = o->last_fence;
	o->planned[0] = o->next = o->last_signal = pos + 1;
	if (d->flags & DP_OP_FENCE)
		fence(o, or);
	for (uint32_t r = 0, nr = o->nrails; r < nr; r++) {
		or[r].seq = o->planned[r];
		or[r].wait0 = r ? o->planned[r] & wait : 0;
		or[r].waits = 0;
		or[r].last_read = o->last_read[r];
		or[r].last_write = o->last_write[r];
		or[r].remote = or[r].local = (struct dp_range){ 0, 0 };
	}
	or->remote = d->remote;
	or->local = d->local;
	hull_add(&o->hull[0], d->remote);
	hull_add(&o->lhull[0], d->local);
	o->bytes[0] += size_of(d->remote);
	if (writes(d->flags, 0, d->remote))
		o->last_write[0] = pos + 1;
	if (d->flags & (DP_OP_READ | DP_OP_ATOMIC))
		o->last_read[0] = pos + 1;
	if (d->flags & DP_OP_ALL)
		o->last_all = pos + 1;
	if (d->flags & DP_OP_SIGNALED)
		o->last_signaled = pos + 1;
	for (uint32_t r = 0; (o->flush || (d->flags & DP_OP_STRONG)) && r < o->nrails; r++)
		if (r || (o->flush & 1))
			want_visible(o, d->flags, r, dp_order_rail(o, pos, r));
	return pos;
}

void dp_order_lone_rest(struct dp_order *o, struct dp_op_rail *or, unsigned flags)
{
	if (flags & DP_OP_SIGNALED)
		o->last_signaled = o->next;
	if (flags & DP_OP_FENCE)
		fence(o, or);
	for (uint32_t r = 2; r < o->nrails; r++)
		or[r].seq = o->planned[r];
}

bool dp_order_alone(struct dp_order *o, bool strong)
{
	/* dp_order_add_lone() wants a sibling's place in the record */
	if (!o->bonded || o->nrails < 2 || (o->flush & 1) || o->post0 != o->next || o->posts < o->tail || dp_order_full(o) ||
	    dp_order_may_hold(o))
		return false;
	for (uint32_t r = 1; r < o->nrails; r++)
		if (!dp_order_reached(o, r, o->planned[r], strong))
			return false;
	if (!o->flush) {
		o->open = o->tail + o->mask + 1;
		/* as dp_order_may_posts() passes over what has no parts on siblings: there is nothing else */
		o->posts = o->next;
	}
	return true;
}

uint64_t dp_order_add_free(struct dp_order *o, unsigned flags, uint64_t remote, uint64_t local, const struct dp_part *part)
{
	if (!dp_order_is_free(o, flags, remote, local, part, false))
		return UINT64_MAX;
	return dp_order_enter_free(o, flags, remote, local, part, false, true);
}

uint64_t dp_order_add(struct dp_order *o, const struct dp_op_desc *d)
{
	struct dp_range remote[DP_MAX_RAILS], local[DP_MAX_RAILS];
	const struct dp_part *part = d->part;
	struct waits w;
	struct dp_op *op = dp_order_op(o, o->next);

	dp_order_shut(o);
	if (!(d->flags & (DP_OP_BULK | DP_OP_EVERY)))
		return add_signal(o, d);
	*op = (struct dp_op){ .flags = d->flags };
	if (!o->bonded || !on_siblings(o, part))
		part = NULL;
	clear_waits(o, &w);
	fill_fragments(o, d, part, remote, local);
	if (d->flags & DP_OP_BULK) {
		bulk_waits(o, d, remote, local, !part, w.rail0, w.siblings);
		/*
		 * Only a signalled WR at or after what we wait for tells of it. If none stands before this one,
		 * the wait might never end: the program may be about to wait for this very WR.
		 */
		if (part && untold(o, &w))
			op->behind = DP_BEHIND_UNTOLD;
		else if (part && (d->flags & DP_OP_HASTE) && would_wait(o, &w))
			op->behind = DP_BEHIND_HASTE;
		if (op->behind) {
			part = NULL;
			clear_waits(o, &w);
			fill_fragments(o, d, NULL, remote, local);
			bulk_waits(o, d, remote, local, true, w.rail0, w.siblings);
		}
	} else if (drains(o, d->flags)) {
		memcpy(w.rail0, o->planned, o->nrails * sizeof(uint64_t));
		w.rail0[0] = 0;
	}
	op->whole = !part;
	enter(o, d, remote, local, &w);
	return o->next - 1;
}

void dp_order_undo(struct dp_order *o)
{
	uint64_t pos = o->next - 1;
	const struct dp_op *op = dp_order_op(o, pos);
	const struct dp_op_rail *or = dp_order_rail(o, pos, 0);

	for (uint32_t r = 0; r < o->nrails; r++, or++) {
		if (r && !empty(or->remote))
			o->planned[r]--;
		o->last_read[r] = or->last_read;
		if (op->flags & DP_OP_FENCE)
			o->fenced[r] = or->fenced;
		if (o->counted[r] > pos)
			o->counted[r] = pos;
		else
			o->bytes[r] -= size_of(or->remote);
		o->last_write[r] = or->last_write;
		if (r ? o->posts > pos : o->post0 > pos)
			o->sent[r] -= size_of(or->remote);
		/* what it wanted costs one flush too many at worst */
		if (o->want[r] > o->planned[r])
			o->want[r] = o->planned[r];
	}
	o->last_signal = op->before.signal;
	o->last_signaled = op->before.signaled;
	o->last_all = op->before.all;
	o->last_fence = op->before.fence;
	o->planned[0] = o->next = pos;
	/* the hulls stay as they are: too large does no harm; the cursors may have passed over it */
	if (o->posts > pos)
		o->posts = pos;
	if (o->post0 > pos)
		o->post0 = pos;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include "order_ref.h"
#include "order_short.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void default_fail(const char *why)
{
	fprintf(stderr, "%s\n", why);
	abort();
}

void (*ref_fail)(const char *why) = default_fail;
bool ref_world_only;

#define demand(cond, ...)                                                                                             \
	do {                                                                                                          \
		if (__builtin_expect(!(cond), 0)) {                                                                   \
			char why_[256];                                                                               \
			snprintf(why_, sizeof(why_), __VA_ARGS__);                                                    \
			ref_fail(why_);                                                                               \
		}                                                                                                     \
	} while (0)

static const char *const mode_names[] = { "rc", "strict", "signal", "relaxed" };

static bool meet(struct dp_range a, struct dp_range b)
{
	for (uint64_t x = a.lo; x < a.hi; x++)
		if (x >= b.lo && x < b.hi)
			return true;
	return false;
}

void ref_cut(struct ref_kind *k, uint32_t nrails, uint32_t nparts, uint32_t first)
{
	uint64_t len = (k->remote.hi - k->remote.lo) / nparts;

	memset(k->part, 0, sizeof(k->part));
	memset(k->lpart, 0, sizeof(k->lpart));
	k->cut = true;
	for (uint32_t i = 0; i < nparts; i++) {
		uint32_t r = (first + i) % nrails;
		uint64_t end = i + 1 == nparts ? k->remote.hi - k->remote.lo : len * (i + 1);

		k->part[r] = (struct dp_part){ len * i, end - len * i };
		if (k->local.lo < k->local.hi)
			k->lpart[r] = (struct dp_range){ k->local.lo + len * i, k->local.lo + end };
	}
}

void ref_every(struct ref_kind *k, uint32_t nrails)
{
	k->flags |= DP_OP_EVERY;
	k->cut = true;
	memset(k->lpart, 0, sizeof(k->lpart));
	for (uint32_t i = 0; i < nrails; i++)
		k->part[i] = (struct dp_part){ 0, k->remote.hi - k->remote.lo };
	k->lpart[0] = k->local;
}

static const struct ref_kind *kind_of(const struct ref *r, unsigned pos)
{
	return &r->kinds[r->kind[pos]];
}

static bool signaled(const struct ref *r, unsigned pos)
{
	return kind_of(r, pos)->flags & DP_OP_SIGNALED;
}

/* Does op pos have a fragment on this rail, and over which ranges? Rail 0 always sees something. */
static bool fragment(const struct ref *r, unsigned pos, uint32_t rail, struct dp_range *remote, struct dp_range *local)
{
	const struct ref_kind *k = kind_of(r, pos);

	*remote = *local = (struct dp_range){ 0, 0 };
	if (r->whole[pos]) {
		if (rail)
			return false;
		*remote = k->remote;
		*local = k->local;
		return true;
	}
	if (!k->part[rail].len)
		return rail == 0;
	remote->lo = k->remote.lo + k->part[rail].offset;
	remote->hi = remote->lo + k->part[rail].len;
	*local = k->lpart[rail];
	return true;
}

static bool has(const struct ref *r, unsigned pos, uint32_t rail)
{
	if (!rail)
		return true;
	return !r->whole[pos] && kind_of(r, pos)->part[rail].len;
}

/* Is a fragment with these flags for nobody there? One that goes on every rail answers to the program on rail 0 alone. */
static bool for_nobody(unsigned flags, uint32_t rail)
{
	return rail && (flags & DP_OP_EVERY);
}

/* Stands a FENCE between them? What follows it follows the READs and atomics before it. */
static bool fenced_between(const struct ref *r, unsigned e, unsigned l)
{
	while (++e < l)
		if (kind_of(r, e)->flags & DP_OP_FENCE)
			return true;
	return false;
}

/*
 * The rules, pair by pair: must the fragment of E on rail re be acknowledged before the fragment of the later L
 * on rail rl may go?
 */
static bool must_wait(const struct ref *r, unsigned e, uint32_t re, unsigned l, uint32_t rl)
{
	unsigned fe = kind_of(r, e)->flags, fl = kind_of(r, l)->flags;
	struct dp_range er, el, lr, ll;

	if (!fragment(r, e, re, &er, &el))
		return false;
	if (for_nobody(fl, rl))
		return false;
	if (r->native[e] && l >= r->native[e] && !re) {
		/* one signal that may have read and whose ranges are unknown */
		fe &= ~DP_OP_BULK;
		fe |= DP_OP_ALL | DP_OP_READ;
		/* and nobody knows of FENCEs either */
		if (rl)
			return true;
	}
	/* on rail 0 it stands behind that FENCE itself; what siblings need is one number for each rail */
	if (rl && (fe & (DP_OP_READ | DP_OP_ATOMIC)) && fenced_between(r, e, l))
		return true;
	if (re == rl) {
		/*
		 * A rail keeps its own order. Yet all sibling parts of a WR go at once, and what they need of all
		 * siblings is one number per rail where it does not depend on ranges.
		 */
		if (!rl)
			return false;
		if (r->mode == DP_ORDER_RC)
			return true;
		return (fl & DP_OP_FENCE) && (fe & (DP_OP_READ | DP_OP_ATOMIC)) && r->nrails > 2;
	}
	if (r->mode == DP_ORDER_RC)
		return true;
	if ((fl & DP_OP_FENCE) && (fe & (DP_OP_READ | DP_OP_ATOMIC)))
		return true;
	if (!(fl & DP_OP_BULK))
		return r->mode != DP_ORDER_RELAXED || !(fl & DP_OP_PLAIN) || (fl & DP_OP_FENCE);
	if (r->mode == DP_ORDER_RELAXED)
		return false;
	if (!(fe & DP_OP_BULK) && r->mode == DP_ORDER_STRICT && rl && !for_nobody(fe, re))
		return true;
	if (l - e > r->search && ((rl ? r->fulls : r->full0)[l] >> re & 1))
		return true;
	fragment(r, l, rl, &lr, &ll);
	if ((!re && (fe & DP_OP_ALL)) || (fl & DP_OP_ALL))
		return true;
	if (!((fe & DP_OP_READ) && (fl & DP_OP_READ)) && meet(er, lr))
		return true;
	return meet(el, ll);
}

/* Everything that op l waits for on behalf of its part on rail rl. */
static bool part_may_go(const struct ref *r, unsigned l, uint32_t rl)
{
	for (uint32_t re = 0; re < r->nrails; re++)
		for (unsigned e = r->acked[re]; e < l; e++)
			if (must_wait(r, e, re, l, rl))
				return false;
	return true;
}

static bool may_post0(const struct ref *r)
{
	return r->posted0 < r->n && part_may_go(r, r->posted0, 0);
}

static unsigned next_sibling_op(const struct ref *r)
{
	unsigned p = r->posts;

	while (p < r->n && r->whole[p])
		p++;
	return p;
}

static bool may_posts(const struct ref *r)
{
	unsigned p = next_sibling_op(r);

	if (p == r->n)
		return false;
	for (uint32_t rl = 1; rl < r->nrails; rl++)
		if (has(r, p, rl) && !part_may_go(r, p, rl))
			return false;
	return true;
}

/* The completions that rail 0 gave are of positions below. */
static unsigned told0(const struct ref *r)
{
	return r->flush & 1 ? r->nic[0] : r->acked[0];
}

/* Would cut op l have to wait for something on rail 0 that no completion tells of? */
static bool nobody_tells(const struct ref *r, unsigned l)
{
	bool told = false;

	for (unsigned e = l; e-- > told0(r);) {
		told |= signaled(r, e);
		if (told)
			return false;
		for (uint32_t rl = 1; rl < r->nrails; rl++)
			if (has(r, l, rl) && must_wait(r, e, 0, l, rl))
				return true;
	}
	return false;
}

static void ref_add(struct ref *r, unsigned kind)
{
	unsigned l = r->n++;
	const struct ref_kind *k = &r->kinds[kind];
	bool siblings = false;

	r->kind[l] = (uint8_t)kind;
	r->native[l] = 0;
	for (uint32_t rl = 1; k->cut && rl < r->nrails; rl++)
		siblings |= k->part[rl].len != 0;
	r->whole[l] = !r->bonded || !siblings;
	if (!r->whole[l] && (k->flags & DP_OP_BULK))
		r->whole[l] = nobody_tells(r, l);
}

/* The next position at or after `from` and below `to` that has a fragment on this rail. */
static unsigned next_on(const struct ref *r, uint32_t rail, unsigned from, unsigned to)
{
	while (from < to && !has(r, from, rail))
		from++;
	return from;
}

static unsigned posted_on(const struct ref *r, uint32_t rail)
{
	return rail ? r->posts : r->posted0;
}

static bool all_acked(const struct ref *r, unsigned upto)
{
	if (r->acked[0] < upto)
		return false;
	for (uint32_t rail = 1; rail < r->nrails; rail++)
		if (next_on(r, rail, r->acked[rail], upto) < upto)
			return false;
	return true;
}

static unsigned next_deliverable(const struct ref *r)
{
	unsigned p = r->delivered;

	while (p < r->n && !signaled(r, p))
		p++;
	return p < r->n && all_acked(r, p + 1) ? p : UINT32_MAX;
}

/* ---- the world: DESIGN's table as it is written, judged when something becomes visible ---- */

static bool listed(enum dp_ordering mode, unsigned fe, struct dp_range er, unsigned fl, struct dp_range lr)
{
	bool disjoint = !meet(er, lr) || ((fe & DP_OP_READ) && (fl & DP_OP_READ));
	bool be = fe & DP_OP_BULK, bl = fl & DP_OP_BULK;

	switch (mode) {
	case DP_ORDER_RC:
		return false;
	case DP_ORDER_STRICT:
		return be && bl && disjoint && !((fe | fl) & DP_OP_ALL);
	case DP_ORDER_SIGNAL:
		return bl && disjoint && !((fe | fl) & DP_OP_ALL);
	case DP_ORDER_RELAXED:
		return bl || (be && (fl & DP_OP_PLAIN) && !(fl & DP_OP_FENCE));
	}
	return false;
}

static void seen(const struct ref *r, unsigned l, uint32_t rl)
{
	unsigned fl = kind_of(r, l)->flags;
	struct dp_range er, el, lr, ll;

	fragment(r, l, rl, &lr, &ll);
	if (for_nobody(fl, rl))
		return;
	for (uint32_t re = 0; re < r->nrails; re++) {
		if (re == rl)
			continue; /* the NIC's order, and its FENCE */
		for (unsigned e = r->acked[re]; e < l; e++) {
			unsigned fe = kind_of(r, e)->flags;

			if (!fragment(r, e, re, &er, &el) || for_nobody(fe, re))
				continue;
			demand(e < r->placed[re] || listed(r->mode, fe, er, fl, lr),
			       "mode %s: %s (op %u, rail %u) seen before %s (op %u, rail %u)", mode_names[r->mode],
			       kind_of(r, l)->name, l, rl, kind_of(r, e)->name, e, re);
			demand(!((fl & DP_OP_FENCE) || fenced_between(r, e, l)) || !(fe & (DP_OP_READ | DP_OP_ATOMIC)),
			       "mode %s: fenced %s (op %u, rail %u) before %s (op %u, rail %u) has answered",
			       mode_names[r->mode], kind_of(r, l)->name, l, rl, kind_of(r, e)->name, e, re);
			demand(r->mode == DP_ORDER_RELAXED || !meet(el, ll),
			       "mode %s: %s (op %u) may answer into the bytes of %s (op %u) first",
			       mode_names[r->mode], kind_of(r, l)->name, l, kind_of(r, e)->name, e);
		}
	}
}

/* ---- lockstep ---- */

void world_init(struct world *w, const struct ref_kind *kinds, uint32_t nrails, enum dp_ordering mode, uint64_t slots)
{
	memset(w, 0, sizeof(*w));
	demand(!dp_order_init(&w->o, nrails, mode, slots), "no memory");
	w->r.kinds = kinds;
	w->r.nrails = nrails;
	w->r.mode = mode;
}

void world_fini(struct world *w)
{
	dp_order_fini(&w->o);
}

static void describe(const struct ref_kind *k, struct dp_op_desc *d)
{
	*d = (struct dp_op_desc){
		.flags = k->flags,
		.remote = k->remote,
		.local = k->local,
		.part = k->cut ? k->part : NULL,
		.lpart = k->cut && (k->flags & DP_OP_READ) ? k->lpart : NULL,
	};
}

static bool same_op(const struct dp_op *a, const struct dp_op *b)
{
	return a->flags == b->flags && a->whole == b->whole && a->behind == b->behind &&
	       !memcmp(&a->before, &b->before, sizeof(a->before)) && a->full0 == b->full0 && a->fulls == b->fulls;
}

static bool same_range(struct dp_range a, struct dp_range b)
{
	return a.lo == b.lo && a.hi == b.hi;
}

/* As far as anybody needs to know of an op that went. */
static bool same_lone(const struct dp_op *a, const struct dp_op_rail *ar, const struct dp_op *b,
		      const struct dp_op_rail *br, uint32_t nrails)
{
	bool same = a->flags == b->flags && a->whole && b->whole && same_range(ar->remote, br->remote);

	for (uint32_t r = 0; r < nrails; r++)
		same &= ar[r].seq == br[r].seq;
	/* it has no local range, and nobody looks for one */
	return same && br->local.lo == br->local.hi && !(a->flags & (DP_OP_READ | DP_OP_ATOMIC));
}

/* The same of bulk that is not to be taken back. */
static bool same_bulk(const struct dp_op *a, const struct dp_op_rail *ar, const struct dp_op *b,
		      const struct dp_op_rail *br, uint32_t nrails)
{
	bool same = a->flags == b->flags && !a->whole && !b->whole;

	for (uint32_t r = 0; r < nrails; r++)
		same &= ar[r].seq == br[r].seq && same_range(ar[r].remote, br[r].remote) &&
			(!(a->flags & DP_OP_READ) || same_range(ar[r].local, br[r].local));
	return same;
}

/* Is d's local range cut as its bytes are? So it is with one SGE. */
static bool cut_alike(const struct dp_op_desc *d, uint32_t nrails)
{
	for (uint32_t r = 0; (d->flags & DP_OP_READ) && r < nrails; r++)
		if (d->part[r].len && (d->lpart[r].lo != d->local.lo + d->part[r].offset ||
				       d->lpart[r].hi != d->lpart[r].lo + d->part[r].len))
			return false;
	return true;
}

/* May a signal be entered the short way? */
static bool may_alone(const struct dp_order *o, bool strong)
{
	if (!o->bonded || o->nrails < 2 || (o->flush & 1) || o->post0 != o->next || o->posts < o->tail || dp_order_full(o) ||
	    o->match != o->deliver)
		return false;
	for (uint32_t r = 1; r < o->nrails; r++)
		if (!dp_order_reached(o, r, o->planned[r], strong))
			return false;
	return true;
}

/* For such a constant spares questions. */
static bool is_pair(const struct dp_op_desc *d, uint32_t nrails)
{
	return nrails == 2 && d->part[0].len && d->part[1].len;
}

/* Enters d the short way, if it is of a kind for that; UINT64_MAX if not, and nothing was done. */
static uint64_t add_short(struct dp_order *o, const struct dp_op_desc *d)
{
	const unsigned other = DP_OP_EVERY | DP_OP_ALL | DP_OP_ATOMIC;
	bool siblings = false;

	if (!o->bonded || o->post0 != o->next || (d->flags & other))
		return UINT64_MAX;
	if (d->flags & DP_OP_BULK) {
		for (uint32_t r = 1; d->part && r < o->nrails; r++)
			siblings |= d->part[r].len != 0;
		if (!siblings || o->flush || o->posts != o->next || (d->flags & DP_OP_FENCE) || !cut_alike(d, o->nrails))
			return UINT64_MAX;
		if (is_pair(d, o->nrails))
			demand(dp_order_is_free(o, d->flags, d->remote.lo, d->local.lo, d->part, true) ==
			       dp_order_is_free(o, d->flags, d->remote.lo, d->local.lo, d->part, false),
			       "a pair is free otherwise than another");
		return dp_order_add_free(o, d->flags, d->remote.lo, d->local.lo, d->part);
	}
	if ((d->flags & DP_OP_READ) || !(may_alone(o, d->flags & DP_OP_STRONG)))
		return UINT64_MAX;
	return dp_order_add_lone(o, d->flags, d->remote.lo, d->remote.hi);
}

/* Entered so as not to be taken back, bulk leaves the state a, which it leaves with op and rail as its record. */
static void check_no_undo(const struct dp_order *o, const struct dp_op_desc *d, const struct dp_order *a, const struct dp_op *op,
			  const struct dp_op_rail *rail)
{
	uint64_t p = o->next;
	struct dp_order c;

	memcpy(&c, o, sizeof(c));
	memset(dp_order_rail(o, p, 0), 0x5a, o->nrails * sizeof(*rail));
	memset(dp_order_op(o, p), 0x5a, sizeof(*op));
	demand(dp_order_enter_free(&c, d->flags, d->remote.lo, d->local.lo, d->part, is_pair(d, c.nrails),
				   false) == p,
	       "without undo it has another position");
	demand(!memcmp(&c, a, sizeof(c)), "op %lu leaves another state without undo", (unsigned long)p);
	demand(same_bulk(dp_order_op(o, p), dp_order_rail(o, p, 0), op, rail, o->nrails),
	       "op %lu leaves another record without undo", (unsigned long)p);
}

/* The short ways to enter an op and to post it leave what the long one leaves, or decline and change nothing. */
static void check_short(const struct dp_order *o, const struct dp_op_desc *d)
{
	struct dp_order a, b;
	struct dp_op op, was;
	struct dp_op_rail rail[REF_RAILS], rail_was[REF_RAILS];
	size_t size = o->nrails * sizeof(rail[0]);
	uint64_t p = o->next;

	memcpy(&a, o, sizeof(a));
	was = *dp_order_op(o, p);
	memcpy(rail_was, dp_order_rail(o, p, 0), size);
	if (add_short(&a, d) == UINT64_MAX) {
		demand(!memcmp(&a, o, sizeof(a)), "the short way declines, and leaves something behind");
		return;
	}
	memcpy(&b, o, sizeof(b));
	op = *dp_order_op(o, p);
	memcpy(rail, dp_order_rail(o, p, 0), size);
	if (!op.whole)
		check_no_undo(o, d, &a, &op, rail);
	*dp_order_op(o, p) = was;
	memcpy(dp_order_rail(o, p, 0), rail_was, size);
	demand(dp_order_add(&b, d) == p, "the short way has another position");
	demand(!dp_order_open(&a) || may_alone(&a, false), "the short way of op %lu leaves it open", (unsigned long)p);
	a.open = b.open;
	a.roomy = b.roomy;
	demand(dp_order_may_post0(&b), "op %lu may not go, but went the short way", (unsigned long)p);
	dp_order_posted0(&b);
	if (!op.whole) {
		demand(dp_order_may_posts(&b) && b.posts == p, "parts of op %lu may not go, but went", (unsigned long)p);
		dp_order_posteds(&b);
	} else {
		demand(!dp_order_may_posts(&b), "op %lu goes the short way before parts of others", (unsigned long)p);
	}
	/* what is visible already needs no flush, wanted or not */
	for (uint32_t r = 0; r < o->nrails; r++)
		if (a.want[r] <= a.visible[r] && b.want[r] <= a.visible[r])
			a.want[r] = b.want[r];
	demand(!memcmp(&a, &b, sizeof(a)), "the short way of op %lu leaves another state", (unsigned long)p);
	demand(op.whole ? same_lone(&op, rail, dp_order_op(o, p), dp_order_rail(o, p, 0), o->nrails) :
			  same_op(&op, dp_order_op(o, p)) && !memcmp(rail, dp_order_rail(o, p, 0), size),
	       "the short way of op %lu leaves another record", (unsigned long)p);
	*dp_order_op(o, p) = was;
	memcpy(dp_order_rail(o, p, 0), rail_was, size);
}

/* May bulk that is free be entered the short way? */
static bool may_free(const struct dp_order *o)
{
	if (!o->bonded || o->flush || o->post0 != o->next || o->posts != o->next || dp_order_full(o) || o->match != o->deliver)
		return false;
	for (uint32_t r = 1; r < o->nrails; r++)
		if (dp_order_flush_wanted(o, r))
			return false;
	return true;
}

/* What was found to be open is open still, whatever was done since; and it is opened whenever it may be. The same of room. */
static void check_open(struct world *w)
{
	struct dp_order *o = &w->o;

	demand(!dp_order_open(o) || may_alone(o, false), "open, but a signal may not go alone");
	demand(dp_order_alone(o, false) == may_alone(o, false), "a signal may or may not go alone otherwise");
	demand(o->next >= o->roomy || may_free(o), "roomy, but bulk may not go");
	if (may_free(o))
		o->roomy = o->tail + o->mask + 1; /* as bulk.c does */
}

void world_add(struct world *w, unsigned kind)
{
	struct dp_op_desc d;
	uint64_t pos;

	check_open(w);
	demand(!dp_order_full(&w->o), "full");
	describe(&w->r.kinds[kind], &d);
	/* before the group is known nothing is looked at but whether it is signalled */
	if (w->o.nrails < w->r.nrails)
		d = (struct dp_op_desc){ .flags = DP_OP_ALL | (d.flags & DP_OP_SIGNALED) };
	w->r.search = w->o.search;
	if (!ref_world_only)
		check_short(&w->o, &d);
	pos = dp_order_add(&w->o, &d);
	w->r.full0[pos] = dp_order_op(&w->o, pos)->full0;
	w->r.fulls[pos] = dp_order_op(&w->o, pos)->fulls;
	demand(!(w->r.full0[pos] | w->r.fulls[pos]) || pos - w->o.tail > w->o.search, "op %lu does not search enough",
	       (unsigned long)pos);
	ref_add(&w->r, kind);
	demand(pos == w->r.n - 1u, "position %lu, not %u", (unsigned long)pos, w->r.n - 1);
	if (ref_world_only)
		w->r.whole[pos] = dp_order_op(&w->o, pos)->whole;
	demand(dp_order_op(&w->o, pos)->whole == w->r.whole[pos], "op %lu (%s) is %swhole", (unsigned long)pos,
	       w->r.kinds[kind].name, w->r.whole[pos] ? "not " : "");
	demand(!dp_order_op(&w->o, pos)->behind || w->r.whole[pos], "behind, yet not whole");
}

/* The hulls may stay too large: they only spare a scan. */
static void forget_hulls(struct dp_order *o)
{
	memset(o->hull, 0, sizeof(o->hull));
	memset(o->lhull, 0, sizeof(o->lhull));
}

void world_undo(struct world *w, const unsigned *kinds, int n)
{
	struct dp_order before, after;
	struct dp_op_desc d;

	check_open(w);
	before = w->o;

	for (int i = 0; i < n; i++) {
		uint64_t pos;

		describe(&w->r.kinds[kinds[i]], &d);
		pos = dp_order_add(&w->o, &d);
		/* a whole list is asked for before its one call tells that nothing of it went */
		if (dp_order_may_post0(&w->o) && w->o.post0 == pos)
			dp_order_posted0(&w->o);
		if (dp_order_may_posts(&w->o) && w->o.posts == pos)
			dp_order_posteds(&w->o);
	}
	for (int i = 0; i < n; i++)
		dp_order_undo(&w->o);
	check_open(w);
	before.open = w->o.open;
	before.roomy = w->o.roomy;
	after = w->o;
	/* a flush too many does no harm */
	memcpy(before.want, after.want, sizeof(before.want));
	forget_hulls(&before);
	forget_hulls(&after);
	/* passing over whole ops that stood before is no trace */
	while (before.posts < before.next && dp_order_op(&before, before.posts)->whole)
		before.posts++;
	while (after.posts < after.next && dp_order_op(&after, after.posts)->whole)
		after.posts++;
	demand(ref_world_only || !memcmp(&before, &after, sizeof(before)), "undo left something behind");
}

static void place_below(struct world *w, uint32_t rail, unsigned to);

void world_bond(struct world *w)
{
	struct ref *r = &w->r;

	/* what was acknowledged before is visible by now */
	place_below(w, 0, told0(r));
	r->acked[0] = r->nic[0] = (uint16_t)told0(r);
	r->flush |= r->flush0;
	w->o.flush = r->flush;
	dp_order_bond(&w->o);
	r->bonded = true;
	for (unsigned p = r->acked[0]; p < r->n; p++)
		if (!r->native[p])
			r->native[p] = r->n;
}

void world_unbond(struct world *w)
{
	dp_order_unbond(&w->o);
	w->r.bonded = false;
}

void world_reset(struct world *w)
{
	struct ref r = { .kinds = w->r.kinds, .mode = w->r.mode, .nrails = w->r.nrails, .flush = w->r.flush & ~1u,
			 .flush0 = w->r.flush0 };

	dp_order_reset(&w->o);
	w->r = r;
	w->o.flush = r.flush; /* as a new bond does */
	demand(dp_order_deliverable(&w->o) == UINT64_MAX && dp_order_match(&w->o) == UINT64_MAX &&
		       !dp_order_queued(&w->o) && dp_order_held(&w->o) == UINT64_MAX && dp_order_siblings_idle(&w->o) &&
		       !dp_order_may_post0(&w->o) && !dp_order_may_posts(&w->o) && !dp_order_full(&w->o),
	       "reset left something behind");
}

/* What dp_order_add_lone() leaves as it was in the record of an op that went whole: anything. */
static void forget_lone(struct world *w, uint64_t pos)
{
	struct dp_op *op = dp_order_op(&w->o, pos);
	struct dp_op_rail *or = dp_order_rail(&w->o, pos, 0);

	if (!w->o.bonded || !op->whole || (op->flags & (DP_OP_BULK | DP_OP_READ | DP_OP_ATOMIC)))
		return;
	for (uint32_t r = 0; r < w->o.nrails; r++) {
		if (r)
			or[r].remote = (struct dp_range){ 0, UINT64_MAX };
		or[r].local = (struct dp_range){ 0, UINT64_MAX };
		or[r].wait0 = or[r].waits = or[r].last_read = or[r].last_write = UINT64_MAX / 2;
	}
}

bool world_post0(struct world *w)
{
	demand(w->o.post0 == w->r.posted0, "rail 0 is at op %lu, not %u", (unsigned long)w->o.post0, w->r.posted0);
	if (!dp_order_may_post0(&w->o))
		return false;
	demand(ref_world_only || may_post0(&w->r), "op %u may not go to rail 0 yet", w->r.posted0);
	dp_order_posted0(&w->o);
	forget_lone(w, w->r.posted0);
	w->r.posted0++;
	return true;
}

bool world_posts(struct world *w)
{
	unsigned p = next_sibling_op(&w->r);

	if (!dp_order_may_posts(&w->o))
		return false;
	demand(w->o.posts == p, "siblings are at op %lu, not %u", (unsigned long)w->o.posts, p);
	demand(ref_world_only || may_posts(&w->r), "op %u may not go to its siblings yet", p);
	dp_order_posteds(&w->o);
	w->r.posts = (uint16_t)(p + 1);
	return true;
}

void world_drive(struct world *w)
{
	bool went;

	do {
		went = world_post0(w);
		went |= world_posts(w);
	} while (went);
}

bool world_can_place(const struct world *w, uint32_t rail)
{
	unsigned to = posted_on(&w->r, rail);

	return next_on(&w->r, rail, w->r.placed[rail], to) < to;
}

bool world_can_ack(const struct world *w, uint32_t rail)
{
	const struct ref *r = &w->r;

	if (r->lost >> rail & 1)
		return false;
	if (rail && (r->flush >> rail & 1))
		return next_on(r, rail, r->nic[rail], r->posts) < r->posts;
	if (rail)
		return next_on(r, rail, r->acked[rail], r->placed[rail]) < r->placed[rail];
	for (unsigned p = told0(r); p < (r->flush & 1 ? r->posted0 : r->placed[0]); p++)
		if (signaled(r, p))
			return true;
	return false;
}

bool world_place(struct world *w, uint32_t rail)
{
	struct ref *r = &w->r;
	unsigned to = posted_on(r, rail), p = next_on(r, rail, r->placed[rail], to);

	if (p == to)
		return false;
	seen(r, p, rail);
	r->placed[rail] = (uint16_t)(p + 1);
	return true;
}

static void place_below(struct world *w, uint32_t rail, unsigned to)
{
	while (next_on(&w->r, rail, w->r.placed[rail], to) < to)
		world_place(w, rail);
}

/* What the machine takes for visible by now must be so. Ops that it has forgotten just now are still in their slots. */
static void believe(struct world *w, uint32_t rail)
{
	struct ref *r = &w->r;
	unsigned p = r->acked[rail];

	while ((p = next_on(r, rail, p, r->nic[rail])) < r->nic[rail] &&
	       (rail ? dp_order_rail(&w->o, p, rail)->seq : p + 1) <= w->o.visible[rail]) {
		demand(p < r->placed[rail], "op %u is taken for visible on rail %u", p, rail);
		r->acked[rail] = (uint16_t)++p;
	}
}

/* Fragments up to seq are acknowledged. The short way is as the long one, or declines and changes nothing. */
static void done(struct dp_order *o, uint32_t rail, uint64_t seq)
{
	struct dp_order a;
	bool shortly;

	/* neither writes to the arrays */
	memcpy(&a, o, sizeof(a));
	shortly = dp_order_done_one(&a, rail, seq);
	demand(shortly || !memcmp(&a, o, sizeof(a)), "the short way to acknowledge declines, and leaves something behind");
	dp_order_done(o, rail, seq);
	demand(!shortly || !memcmp(&a, o, sizeof(a)), "the short way to acknowledge %lu on rail %u leaves another state",
	       (unsigned long)seq, rail);
}

static bool ack_unplaced(struct world *w, uint32_t rail, unsigned n)
{
	struct ref *r = &w->r;
	unsigned p = r->nic[rail], last = UINT32_MAX;

	while (n-- && (p = next_on(r, rail, p, r->posts)) < r->posts) {
		last = p++;
		/* a READ's answer pushes what stands before it */
		if (kind_of(r, last)->flags & DP_OP_READ)
			place_below(w, rail, p);
	}
	if (last == UINT32_MAX)
		return false;
	r->nic[rail] = (uint16_t)(last + 1);
	done(&w->o, rail, dp_order_rail(&w->o, last, rail)->seq);
	believe(w, rail);
	return true;
}

/* What writes nothing there needs not be pushed. */
static void place_empty(struct world *w)
{
	struct ref *r = &w->r;

	while (r->placed[0] < r->nic[0]) {
		unsigned p = r->placed[0], f = kind_of(r, p)->flags;
		struct dp_range remote, local;

		fragment(r, p, 0, &remote, &local);
		if (!(f & DP_OP_READ) && (remote.lo < remote.hi || !(f & (DP_OP_BULK | DP_OP_PLAIN))))
			return;
		world_place(w, 0);
	}
}

static bool ack_unplaced0(struct world *w)
{
	struct ref *r = &w->r;
	unsigned p = r->nic[0];

	while (p < r->posted0 && !signaled(r, p))
		p++;
	if (p == r->posted0)
		return false;
	for (unsigned i = r->nic[0]; i <= p; i++)
		if (kind_of(r, i)->flags & DP_OP_READ)
			place_below(w, 0, i + 1);
	r->nic[0] = (uint16_t)(p + 1);
	place_empty(w);
	demand(dp_order_match(&w->o) == p, "the completion of op %u was matched otherwise", p);
	believe(w, 0);
	return true;
}

void world_set_flush(struct world *w, uint32_t rails)
{
	w->r.flush0 = rails & 1;
	w->r.flush = w->o.flush = rails & ~1u;
}

void world_spare_lost(struct world *w)
{
	struct ref *r = &w->r;

	if (!(r->flush & 1))
		return;
	world_unbond(w);
	dp_order_flush_over(&w->o, 0);
	r->flush &= ~1u;
	r->flush0 = 0;
	r->flushing[0] = 0;
	/* what waited goes as acknowledgements come: the exception */
	place_below(w, 0, r->nic[0]);
	r->acked[0] = r->nic[0];
}

void world_spare_again(struct world *w)
{
	struct ref *r = &w->r;

	if (!(r->flush & 1))
		return;
	r->flushing[0] = 0;
	dp_order_flush_again(&w->o, 0);
}

void world_rail_lost(struct world *w, uint32_t rail)
{
	struct ref *r = &w->r;

	world_unbond(w);
	dp_order_flush_over(&w->o, 0);
	/* nothing goes any more, so that nothing can go too early */
	if (r->flush & 1)
		r->acked[0] = r->nic[0];
	r->flush &= ~1u;
	r->lost |= 1u << rail;
}

bool world_can_flush(const struct world *w, uint32_t rail)
{
	const struct ref *r = &w->r;
	unsigned last = UINT32_MAX;

	if (!(r->flush >> rail & 1) || (r->lost >> rail & 1))
		return false;
	if (r->flushing[rail])
		return true;
	if (!rail)
		return dp_order_flush_due(&w->o, 0, r->nic[0]);
	for (unsigned p = r->acked[rail]; (p = next_on(r, rail, p, r->posts)) < r->posts; p++)
		last = p;
	return last != UINT32_MAX && dp_order_flush_due(&w->o, rail, dp_order_rail(&w->o, last, rail)->seq);
}

static bool flush0(struct world *w)
{
	struct ref *r = &w->r;

	if (r->flushing[0]) {
		place_below(w, 0, r->flushing[0]);
		r->flushing[0] = 0;
		place_empty(w);
		dp_order_flushed(&w->o, 0, r->covers[0]);
		believe(w, 0);
		return true;
	}
	/* another queue pair: it covers what is acknowledged */
	if (!dp_order_flush_due(&w->o, 0, r->nic[0]))
		return false;
	r->covers[0] = r->flushing[0] = r->nic[0];
	dp_order_flush_posted(&w->o, 0, r->covers[0]);
	return true;
}

bool world_flush(struct world *w, uint32_t rail)
{
	struct ref *r = &w->r;
	unsigned last = UINT32_MAX;

	if (!(r->flush >> rail & 1))
		return false;
	if (!rail)
		return flush0(w);
	if (r->flushing[rail]) {
		last = r->flushing[rail] - 1u;
		place_below(w, rail, last + 1);
		if (r->nic[rail] <= last)
			r->nic[rail] = (uint16_t)(last + 1);
		r->flushing[rail] = 0;
		dp_order_flushed(&w->o, rail, r->covers[rail]);
		believe(w, rail);
		return true;
	}
	for (unsigned p = r->acked[rail]; (p = next_on(r, rail, p, r->posts)) < r->posts; p++)
		last = p;
	if (last == UINT32_MAX || !dp_order_flush_due(&w->o, rail, dp_order_rail(&w->o, last, rail)->seq))
		return false;
	r->covers[rail] = dp_order_rail(&w->o, last, rail)->seq;
	dp_order_flush_posted(&w->o, rail, r->covers[rail]);
	r->flushing[rail] = (uint16_t)(last + 1);
	return true;
}

/* The short way to match and deliver an op is as the long one, or declines and changes nothing. */
static void check_take(const struct dp_order *o)
{
	const struct dp_op *op;
	struct dp_order a, b;
	uint64_t p;

	/* neither writes to the arrays */
	memcpy(&a, o, sizeof(a));
	memcpy(&b, o, sizeof(b));
	p = a.deliver;
	if (dp_order_take(&a, &op)) {
		demand(op == dp_order_op(o, p) && a.deliver == p + 1, "op %lu taken, but another given", (unsigned long)p);
		demand(dp_order_match(&b) == p, "op %lu taken, which is not the one to match", (unsigned long)p);
		demand(dp_order_deliverable(&b) == p, "op %lu taken, which may not be given", (unsigned long)p);
		dp_order_delivered(&b);
		/* nothing is held, so it may stay open, and what was given is not written down */
		a.given = b.given;
		a.open = b.open;
		a.roomy = b.roomy;
	}
	demand(!memcmp(&a, &b, sizeof(a)), "the short way to take op %ld leaves another state", (long)p);
}

bool world_ack(struct world *w, uint32_t rail, unsigned n)
{
	struct ref *r = &w->r;
	unsigned p = r->acked[rail], last = UINT32_MAX;

	check_open(w);

	if (!rail && (r->flush & 1))
		return ack_unplaced0(w);
	if (!rail) {
		while (p < r->placed[0] && !signaled(r, p))
			p++;
		if (p == r->placed[0])
			return false;
		r->acked[0] = (uint16_t)(p + 1);
		check_take(&w->o);
		demand(dp_order_match(&w->o) == p, "the completion of op %u was matched otherwise", p);
		return true;
	}
	if (r->flush >> rail & 1)
		return ack_unplaced(w, rail, n);
	while (n-- && (p = next_on(r, rail, p, r->placed[rail])) < r->placed[rail])
		last = p++;
	if (last == UINT32_MAX)
		return false;
	r->acked[rail] = (uint16_t)(last + 1);
	done(&w->o, rail, dp_order_rail(&w->o, last, rail)->seq);
	return true;
}

bool world_deliver(struct world *w)
{
	struct ref *r = &w->r;
	uint64_t p = dp_order_deliverable(&w->o);

	check_open(w);

	if (p == UINT64_MAX)
		return false;
	demand(p >= r->delivered && p < r->n, "op %lu delivered again", (unsigned long)p);
	for (unsigned q = r->delivered; q < p; q++)
		demand(!signaled(r, q), "op %lu delivered before op %u", (unsigned long)p, q);
	demand(signaled(r, (unsigned)p), "op %lu delivered, but unsignalled", (unsigned long)p);
	demand(all_acked(r, (unsigned)p + 1), "op %lu delivered before all up to it is acknowledged",
	       (unsigned long)p);
	dp_order_delivered(&w->o);
	r->delivered = (uint16_t)(p + 1);
	return true;
}

void world_compare(struct world *w)
{
	const struct ref *r = &w->r;
	struct dp_order *o = &w->o;
	uint64_t held = UINT64_MAX;
	bool idle = true;

	/* what is not over is still known */
	for (unsigned p = 0; p < o->tail; p++)
		demand(all_acked(r, p + 1) && (!signaled(r, p) || p < r->delivered), "op %u is forgotten too early", p);
	if (ref_world_only)
		return;
	demand(dp_order_may_post0(o) == may_post0(r), "op %u: rail 0 says %d", r->posted0, !may_post0(r));
	demand(dp_order_may_posts(o) == may_posts(r), "op %u: siblings say %d", next_sibling_op(r), !may_posts(r));
	demand(dp_order_deliverable(o) == (next_deliverable(r) == UINT32_MAX ? UINT64_MAX : next_deliverable(r)),
	       "deliverable: op %ld, not %d", (long)dp_order_deliverable(o), (int)next_deliverable(r));
	demand(dp_order_held(o) == UINT64_MAX || dp_order_given(o) == r->delivered, "%lu are given, not %u",
	       (unsigned long)dp_order_given(o), r->delivered);
	demand(dp_order_queued(o) == (r->posted0 < r->n || next_sibling_op(r) < r->n), "queued is wrong");
	for (uint32_t rail = 1; rail < r->nrails; rail++) {
		uint64_t open = 0;

		for (unsigned p = r->flush >> rail & 1 ? r->nic[rail] : r->acked[rail]; p < r->n; p++)
			open += has(r, p, rail);
		idle &= !open;
		demand(dp_order_outstanding(o, rail) == open, "rail %u has %lu outstanding, not %lu", rail,
		       (unsigned long)dp_order_outstanding(o, rail), (unsigned long)open);
	}
	demand(dp_order_siblings_idle(o) == idle, "siblings idle is wrong");
	for (unsigned p = told0(r); p-- > r->delivered;)
		if (signaled(r, p))
			held = p;
	demand(dp_order_held(o) == held, "held: op %ld, not %ld", (long)dp_order_held(o), (long)held);
}

void world_quiescent(struct world *w)
{
	const struct ref *r = &w->r;

	if (r->lost) {
		demand(dp_order_deliverable(&w->o) == UINT64_MAX, "a completion is not given");
		return;
	}
	demand(r->posted0 == r->n, "stuck: op %u (%s) never goes to rail 0", r->posted0, kind_of(r, r->posted0)->name);
	demand(next_sibling_op(r) == r->n, "stuck: siblings of op %u never go", next_sibling_op(r));
	for (unsigned p = r->delivered; p < r->n; p++)
		demand(!signaled(r, p), "stuck: completion of op %u (%s) is never given", p, kind_of(r, p)->name);
	for (uint32_t rail = 1; rail < r->nrails; rail++)
		demand(!dp_order_outstanding(&w->o, rail), "stuck: rail %u", rail);
	demand(w->o.tail >= r->delivered, "op %lu is never forgotten", (unsigned long)w->o.tail);
}

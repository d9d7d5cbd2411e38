// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The order machine over all interleavings: every program over an alphabet of WRs, every moment at which a rail
 * may make a fragment visible or acknowledge it (in that order, or the other where it is flushed), at which a flush goes or
 * comes back, at which a completion is given, and at which the QP is bonded, un-bonded, reset, a WR refused, or a rail or
 * the spare lost, or lost and renewed. States are remembered, so each is looked at once.
 */
#include <check.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "order_kinds.h"
#include "run.h"

#define SLOTS 16

/* ---- the explorer ---- */

struct scenario {
	uint32_t nrails;
	int max; /* WRs */
	int alphabet[2 * NKINDS];
	int n;
	bool start_bonded;
	bool narrow; /* starts with one rail, as a QP does before it knows its group */
	uint64_t slots;
	uint32_t flush; /* bit per rail */
	uint32_t search; /* 0: as it is */
	/* how often it may happen: */
	uint8_t bonds, unbonds, resets, undos, grows;
	bool rail_loss, spare_loss, spare_again;
};

struct state {
	struct world w;
	int left; /* WRs that may yet be added */
	uint8_t bonds, unbonds, resets, undos, grows;
	bool rail_loss, spare_loss, spare_again;
	uint64_t slots; /* in use of the arrays below */
	struct dp_op op[SLOTS];
	struct dp_op_rail rail[SLOTS * REF_RAILS];
};

static const struct scenario *sc;
static unsigned long states, steps, splits, waits, flushes, losses, full;
static struct {
	const char *what, *a, *b;
	uint32_t rail;
} trace[64];
static int depth;

static void print_trace_and_fail(const char *why)
{
	char text[4096];
	size_t len = (size_t)snprintf(text, sizeof(text), "%s; after:", why);

	for (int i = 0; i < depth && len < sizeof(text); i++) {
		const char *sep = i ? "," : "";

		if (trace[i].a)
			len += (size_t)snprintf(text + len, sizeof(text) - len, "%s %s %s %s", sep, trace[i].what,
						trace[i].a, trace[i].b);
		else
			len += (size_t)snprintf(text + len, sizeof(text) - len, "%s %s %u", sep, trace[i].what,
						trace[i].rail);
	}
	if (getenv("ORDER_FIRST")) {
		puts(text);
		fflush(stdout);
		_exit(1);
	}
	ck_abort_msg("%s", text);
}

static void point_inside(struct state *s)
{
	s->w.o.op = s->op;
	s->w.o.rail = s->rail;
}

static void copy_state(struct state *to, const struct state *from)
{
	uint64_t n = from->w.o.mask + 1;

	memcpy(to, from, offsetof(struct state, op));
	memcpy(to->op, from->op, n * sizeof(*to->op));
	memcpy(to->rail, from->rail, n * from->w.o.nrails * sizeof(*to->rail));
	point_inside(to);
}

static void grow(struct state *s)
{
	struct dp_order *o = &s->w.o;
	uint64_t n = o->mask + 1;
	struct dp_op *op = malloc(n * sizeof(*op));
	struct dp_op_rail *rail = malloc(n * o->nrails * sizeof(*rail));

	if (!op || !rail || 2 * n > SLOTS)
		print_trace_and_fail("no memory");
	memcpy(op, s->op, n * sizeof(*op));
	memcpy(rail, s->rail, n * o->nrails * sizeof(*rail));
	o->op = op;
	o->rail = rail;
	if (dp_order_grow(o))
		print_trace_and_fail("no memory");
	memcpy(s->op, o->op, 2 * n * sizeof(*op));
	memcpy(s->rail, o->rail, 2 * n * o->nrails * sizeof(*rail));
	dp_order_fini(o);
	point_inside(s);
}

static void widen(struct state *s)
{
	struct dp_order *o = &s->w.o;
	uint64_t n = o->mask + 1;
	struct dp_op_rail *rail = malloc(n * o->nrails * sizeof(*rail));

	if (!rail)
		print_trace_and_fail("no memory");
	memcpy(rail, s->rail, n * o->nrails * sizeof(*rail));
	o->rail = rail;
	if (dp_order_widen(o, sc->nrails))
		print_trace_and_fail("no memory");
	memcpy(s->rail, o->rail, n * o->nrails * sizeof(*rail));
	free(o->rail);
	point_inside(s);
}

/* Open addressing over 64-bit hashes. Two states that share one are taken for the same (1e6 states: odds 1e-7). */
static uint64_t *seen_set;
static size_t seen_size, seen_used;

static void seen_resize(size_t size)
{
	seen_size = size;
	seen_used = 0;
	seen_set = calloc(size, sizeof(*seen_set));
	if (!seen_set)
		print_trace_and_fail("no memory");
}

static bool seen_put(uint64_t h)
{
	size_t i = h & (seen_size - 1);

	for (; seen_set[i]; i = (i + 1) & (seen_size - 1))
		if (seen_set[i] == h)
			return false;
	seen_set[i] = h;
	seen_used++;
	return true;
}

static bool seen_before(uint64_t h)
{
	h |= !h;
	if (seen_used * 2 > seen_size) {
		uint64_t *old = seen_set;
		size_t n = seen_size;

		seen_resize(2 * n);
		for (size_t i = 0; i < n; i++)
			if (old[i])
				seen_put(old[i]);
		free(old);
	}
	return !seen_put(h);
}

/* Everything on which the future depends. Numbers that a rail has reached are as good as zero. */
static uint64_t hash_state(const struct state *s)
{
	const struct dp_order *o = &s->w.o;
	const struct ref *r = &s->w.r;
	uint8_t key[640];
	uint64_t h = 0x9e3779b97f4a7c15, v;
	size_t n = 0;

#define PUT(x) (key[n++] = (uint8_t)(x))
#define OPEN(number, rail) ((number) > o->done[rail] ? (number) : 0)
	PUT(s->left);
	PUT(s->bonds << 4 | s->unbonds);
	PUT(s->resets << 4 | s->undos);
	PUT(s->grows << 1 | o->bonded);
	PUT(s->spare_again << 2 | s->rail_loss << 1 | s->spare_loss);
	PUT(r->lost);
	PUT(r->flush0 << 7 | r->flush);
	PUT(o->mask);
	PUT(o->tail);
	PUT(o->next);
	PUT(o->post0);
	PUT(o->posts);
	PUT(o->match);
	PUT(o->deliver);
	PUT(r->delivered);
	PUT(OPEN(o->last_signal, 0));
	PUT(OPEN(o->last_signaled, 0));
	PUT(OPEN(o->last_all, 0));
	for (uint32_t i = 0; i < o->nrails; i++) {
		PUT(r->placed[i]);
		PUT(r->acked[i]);
		PUT(o->planned[i]);
		PUT(o->done[i]);
		PUT(OPEN(o->last_read[i], i));
		PUT(o->hull[i].lo);
		PUT(o->hull[i].hi);
		PUT(o->lhull[i].lo);
		PUT(o->lhull[i].hi);
		if (!(r->flush >> i & 1))
			continue;
		PUT(r->nic[i]);
		PUT(r->flushing[i]);
		PUT(r->flushing[i] ? r->covers[i] : 0);
		PUT(o->visible[i]);
		PUT(o->want[i] > o->visible[i] ? o->want[i] : 0);
		PUT(o->asked[i] > o->visible[i] ? o->asked[i] : 0);
		PUT(o->last_write[i] > o->visible[i] ? o->last_write[i] : 0);
	}
	for (uint64_t p = o->tail; p < o->next; p++) {
		PUT(r->kind[p]);
		PUT(r->native[p]);
		PUT(r->whole[p] | (dp_order_op(o, p)->flags & DP_OP_ALL ? 2 : 0));
		PUT(r->full0[p] << 4 | r->fulls[p]);
		for (uint32_t i = 0; i < o->nrails; i++) {
			const struct dp_op_rail *or = dp_order_rail(o, p, i);

			PUT(or->seq);
			PUT(OPEN(or->wait0, i));
			PUT(OPEN(or->waits, i));
		}
	}
#undef PUT
#undef OPEN
	memset(key + n, 0, 8);
	for (size_t i = 0; i < n; i += 8) {
		memcpy(&v, key + i, 8);
		h = (h ^ v) * 0xff51afd7ed558ccd;
		h ^= h >> 32;
	}
	/* the last bytes have only reached the upper bits */
	h *= 0xc4ceb9fe1a85ec53;
	return h ^ h >> 29;
}

static void explore(struct state *s);

/* Takes one more step, from a copy. */
#define STEP(what_, a_, b_, rail_)                                                                                    \
	do {                                                                                                          \
		copy_state(&t, s);                                                                                    \
		trace[depth].what = (what_);                                                                          \
		trace[depth].a = (a_);                                                                                \
		trace[depth].b = (b_);                                                                                \
		trace[depth].rail = (rail_);                                                                          \
		depth++;                                                                                              \
		steps++;                                                                                              \
	} while (0)
#define STEPPED() (explore(&t), depth--)

static void programs_turn(struct state *s)
{
	struct state t;

	for (int i = 0; s->left && i < sc->n; i++) {
		STEP("post", order_kinds[sc->alphabet[i]].name, "", 0);
		t.left--;
		if (dp_order_full(&t.w.o))
			grow(&t);
		world_add(&t.w, (unsigned)sc->alphabet[i]);
		splits += !t.w.r.whole[t.w.r.n - 1];
		full += (t.w.r.full0[t.w.r.n - 1] | t.w.r.fulls[t.w.r.n - 1]) != 0;
		world_drive(&t.w);
		waits += dp_order_queued(&t.w.o);
		STEPPED();
	}
	for (int i = 0; s->left && s->undos && i < sc->n; i++) {
		unsigned two[2] = { (unsigned)sc->alphabet[i], (unsigned)sc->alphabet[(i + 1) % sc->n] };

		STEP("refuse", order_kinds[two[0]].name, order_kinds[two[1]].name, 0);
		t.undos--;
		while (t.w.o.next + 2 - t.w.o.tail > t.w.o.mask + 1)
			grow(&t);
		world_undo(&t.w, two, 2);
		STEPPED();
	}
	if (s->bonds && !s->w.r.bonded) {
		STEP("bond", "", "", 0);
		t.bonds--;
		if (t.w.o.nrails < sc->nrails)
			widen(&t);
		world_bond(&t.w);
		world_drive(&t.w); /* at a second bond */
		STEPPED();
	}
	for (uint32_t rail = 1; s->rail_loss && s->w.r.bonded && rail < sc->nrails; rail++) {
		STEP("lose rail", NULL, NULL, rail);
		t.rail_loss = false;
		t.left = t.bonds = t.unbonds = t.resets = t.undos = t.grows = 0;
		t.spare_loss = t.spare_again = false;
		world_rail_lost(&t.w, rail);
		losses++;
		STEPPED();
	}
	if (s->spare_loss && s->w.r.bonded) {
		STEP("lose spare", "", "", 0);
		t.spare_loss = false;
		world_spare_lost(&t.w);
		world_drive(&t.w);
		losses++;
		STEPPED();
	}
	if (s->spare_again && s->w.r.flushing[0]) {
		STEP("renew spare", "", "", 0);
		t.spare_again = false;
		world_spare_again(&t.w);
		losses++;
		STEPPED();
	}
	if (s->unbonds && s->w.r.bonded) {
		STEP("un-bond", "", "", 0);
		t.unbonds--;
		world_unbond(&t.w);
		STEPPED();
	}
	if (s->grows) {
		STEP("grow", "", "", 0);
		t.grows--;
		grow(&t);
		STEPPED();
	}
	if (s->resets) {
		STEP("reset", "", "", 0);
		t.resets--;
		world_reset(&t.w);
		if (sc->start_bonded)
			world_bond(&t.w);
		STEPPED();
	}
}

/* With a rail the queue pair is lost: what the machine would let go is of no interest. */
static void compare(struct world *w)
{
	if (!w->r.lost)
		world_compare(w);
}

static void drive(struct world *w)
{
	if (!w->r.lost)
		world_drive(w);
}

static void explore(struct state *s)
{
	bool busy = false;
	struct state t;

	if (seen_before(hash_state(s)))
		return;
	states++;
	compare(&s->w);
	for (uint32_t rail = 0; rail < sc->nrails; rail++) {
		if (world_can_place(&s->w, rail)) {
			STEP("place on", NULL, NULL, rail);
			world_place(&t.w, rail);
			busy = true;
			STEPPED();
		}
		if (world_can_ack(&s->w, rail)) {
			STEP("ack on", NULL, NULL, rail);
			world_ack(&t.w, rail, 1);
			compare(&t.w);
			drive(&t.w);
			busy = true;
			STEPPED();
		}
		if (world_can_flush(&s->w, rail)) {
			STEP("flush on", NULL, NULL, rail);
			world_flush(&t.w, rail);
			compare(&t.w);
			drive(&t.w);
			flushes++;
			busy = true;
			STEPPED();
		}
	}
	if (dp_order_deliverable(&s->w.o) != UINT64_MAX) {
		STEP("give", "", "", 0);
		world_deliver(&t.w);
		busy = true;
		STEPPED();
	}
	if (!busy)
		world_quiescent(&s->w);
	programs_turn(s);
}

static void run(const struct scenario *scenario, enum dp_ordering mode)
{
	struct state s;

	sc = scenario;
	/* short programs first: a failure then shows a short trace */
	for (int max = 1; max <= sc->max; max++) {
		free(seen_set);
		seen_resize(1 << 12);
		depth = 0;
		memset(&s, 0, sizeof(s));
		world_init(&s.w, order_kinds, sc->nrails, mode, sc->slots);
		dp_order_fini(&s.w.o);
		if (sc->narrow)
			s.w.o.nrails = 1, s.w.o.rail_size = sizeof(struct dp_op_rail);
		if (sc->search)
			s.w.o.search = sc->search;
		world_set_flush(&s.w, sc->flush);
		point_inside(&s);
		if (sc->start_bonded)
			world_bond(&s.w);
		s.left = max;
		s.bonds = sc->bonds;
		s.unbonds = sc->unbonds;
		s.resets = sc->resets;
		s.undos = sc->undos;
		s.grows = sc->grows;
		s.rail_loss = sc->rail_loss;
		s.spare_loss = sc->spare_loss;
		s.spare_again = sc->spare_again;
		if (max == sc->max)
			states = steps = splits = waits = flushes = losses = full = 0;
		explore(&s);
	}
}

static const enum dp_ordering modes[] = { DP_ORDER_RC, DP_ORDER_STRICT, DP_ORDER_SIGNAL, DP_ORDER_RELAXED };
#define NMODES 4

#define ALPHABET(...) .alphabet = { __VA_ARGS__ }, .n = sizeof((int[]){ __VA_ARGS__ }) / sizeof(int)

static void run_all(const char *what, const struct scenario *list, int n, int m)
{
	unsigned long st = 0, sp = 0, wa = 0, ac = 0, fl = 0, lo = 0, fu = 0;
	uint32_t flush = 0, search = 0;
	bool loss = false;

	order_make_kinds(list->nrails);
	for (int i = 0; i < n; i++) {
		run(&list[i], modes[m]);
		st += states;
		ac += steps;
		sp += splits;
		wa += waits;
		fl += flushes;
		lo += losses;
		fu += full;
		flush |= list[i].flush;
		search |= list[i].search;
		loss |= list[i].rail_loss || list[i].spare_loss || list[i].spare_again;
	}
	printf("%s, mode %d: %lu states, %lu steps, %lu cuts, %lu queued, %lu flushes, %lu losses, %lu waited for all\n", what,
	       modes[m], st, ac, sp, wa, fl, lo, fu);
	ck_assert(!fl == !flush);
	ck_assert(!lo == !loss);
	/* the other modes do not look at ranges */
	ck_assert(!fu == !(search && (modes[m] == DP_ORDER_STRICT || modes[m] == DP_ORDER_SIGNAL)));
	/* a machine that never cuts or never waits proves nothing */
	ck_assert_uint_gt(sp, 0);
	ck_assert_uint_gt(wa, 0);
}

/* all pairs and triples of everything */
START_TEST(test_every_kind)
{
	struct scenario list[] = {
		{ .nrails = 2, .max = 2, .start_bonded = true, .slots = 4, .n = 2 * NKINDS },
	};

	for (int i = 0; i < 2 * NKINDS; i++)
		list[0].alphabet[i] = i;
	run_all("every kind, 2 WRs", list, 1, _i);
}
END_TEST

START_TEST(test_three)
{
	static const struct scenario list[] = {
		{ .nrails = 2, .max = 3, .start_bonded = true, .slots = 4,
		  ALPHABET(A, B + SIG, C, C + SIG, Arot, Asib, R, R + SIG, Rrot, Bf, RBf, F, F + SIG, T, S + SIG,
				 r) },
	};

	run_all("3 WRs of 16 kinds", list, 1, _i);
}
END_TEST

START_TEST(test_six)
{
	static const struct scenario list[] = {
		/* data, unsignalled flag, signalled data */
		{ .nrails = 2, .max = 6, .start_bonded = true, .slots = 8, ALPHABET(A, F, A + SIG) },
		{ .nrails = 2, .max = 6, .start_bonded = true, .slots = 8, ALPHABET(A + SIG, F + SIG) },
		/* overlaps */
		{ .nrails = 2, .max = 6, .start_bonded = true, .slots = 8, ALPHABET(A, C + SIG) },
		{ .nrails = 2, .max = 5, .start_bonded = true, .slots = 8, ALPHABET(Arot, A, S + SIG) },
		{ .nrails = 2, .max = 5, .start_bonded = true, .slots = 8, ALPHABET(Asib, R + SIG, Fin) },
		/* data, fenced data */
		{ .nrails = 2, .max = 6, .start_bonded = true, .slots = 8, ALPHABET(R, Bf, F + SIG) },
		{ .nrails = 2, .max = 6, .start_bonded = true, .slots = 8, ALPHABET(T, Bf + SIG) },
		{ .nrails = 2, .max = 5, .start_bonded = true, .slots = 8, ALPHABET(A, E + SIG, F) },
		{ .nrails = 2, .max = 5, .start_bonded = true, .slots = 8, ALPHABET(R + SIG, RBf, r) },
		{ .nrails = 2, .max = 5, .start_bonded = true, .slots = 8, ALPHABET(Rrot, R, Tin + SIG) },
	};

	run_all("5 and 6 WRs", list, sizeof(list) / sizeof(*list), _i);
}
END_TEST

START_TEST(test_four_wider)
{
	static const struct scenario list[] = {
		{ .nrails = 2, .max = 4, .start_bonded = true, .slots = 4, ALPHABET(A, C + SIG, F, F + SIG, T, Bf, R) },
		{ .nrails = 2, .max = 4, .start_bonded = true, .slots = 4,
		  ALPHABET(Asib, Arot + SIG, I, Ff + SIG, RBf, r) },
	};

	run_all("4 WRs of 7 kinds", list, sizeof(list) / sizeof(*list), _i);
}
END_TEST

/* bonding with WRs outstanding, un-bonding with fragments outstanding, again, in any order and at any moment */
START_TEST(test_bonding)
{
	static const struct scenario list[] = {
		{ .nrails = 2, .max = 4, .slots = 2, ALPHABET(A, F + SIG), .bonds = 2, .unbonds = 1 },
		{ .nrails = 2, .max = 3, .slots = 2, .narrow = true,
		  ALPHABET(R, Bf + SIG, C), .bonds = 2, .unbonds = 1 },
		{ .nrails = 2, .max = 5, .slots = 2, .narrow = true, ALPHABET(F, A + SIG), .bonds = 1, .unbonds = 1 },
		{ .nrails = 2, .max = 3, .slots = 2, ALPHABET(A, C + SIG, T, Bf), .bonds = 2, .unbonds = 2 },
	};

	run_all("bonding", list, sizeof(list) / sizeof(*list), _i);
}
END_TEST

START_TEST(test_reset_undo_grow)
{
	static const struct scenario list[] = {
		{ .nrails = 2, .max = 4, .start_bonded = true, .slots = 2, ALPHABET(A, F + SIG, C), .resets = 1 },
		{ .nrails = 2, .max = 4, .start_bonded = true, .slots = 2, ALPHABET(A, F + SIG, Bf), .undos = 1 },
		{ .nrails = 2, .max = 3, .start_bonded = true, .slots = 2, ALPHABET(A, E + SIG, E), .resets = 1, .undos = 1 },
		{ .nrails = 2, .max = 4, .start_bonded = true, .slots = 2,
		  ALPHABET(R + SIG, T, RBf), .undos = 1, .grows = 1 },
		{ .nrails = 2, .max = 4, .slots = 2, ALPHABET(S, A + SIG, F), .bonds = 1, .undos = 1 },
	};

	run_all("reset, undo, grow", list, sizeof(list) / sizeof(*list), _i);
}
END_TEST

START_TEST(test_three_rails)
{
	static const struct scenario list[] = {
		{ .nrails = 3, .max = 4, .start_bonded = true, .slots = 4, ALPHABET(A, C + SIG) },
		{ .nrails = 3, .max = 4, .start_bonded = true, .slots = 4, ALPHABET(Arot, F, Asib + SIG) },
		{ .nrails = 3, .max = 4, .start_bonded = true, .slots = 4, ALPHABET(R, Bf + SIG) },
		{ .nrails = 3, .max = 4, .start_bonded = true, .slots = 4, ALPHABET(A, E, E + SIG) },
		{ .nrails = 3, .max = 2, .start_bonded = true, .slots = 4,
		  ALPHABET(A, C + SIG, RBf, Rsib, T, F), .undos = 1 },
		{ .nrails = 3, .max = 3, .start_bonded = true, .slots = 4,
		  ALPHABET(A, C, Rsib, RBf + SIG, T, S + SIG, Bf, R + SIG) },
	};

	run_all("3 rails", list, sizeof(list) / sizeof(*list), _i);
}
END_TEST

/* acknowledged is not visible: on the sibling, on both, on one sibling of two; the spare may break at any moment */
START_TEST(test_flush)
{
	static const struct scenario list[] = {
		{ .nrails = 2, .max = 4, .start_bonded = true, .slots = 4, .flush = 2, ALPHABET(A, F + SIG, C) },
		{ .nrails = 2, .max = 4, .start_bonded = true, .slots = 4, .flush = 3, ALPHABET(A, F + SIG, C) },
		{ .nrails = 2, .max = 4, .start_bonded = true, .slots = 4, .flush = 3, ALPHABET(Arot + SIG, A, T + SIG) },
		{ .nrails = 2, .max = 3, .start_bonded = true, .slots = 4, .flush = 3, ALPHABET(A + SIG, E, E + SIG) },
		{ .nrails = 2, .max = 3, .start_bonded = true, .slots = 4, .flush = 3,
		  ALPHABET(A, C + SIG, R + SIG, Bf, F, S + SIG, Fin + SIG, r) },
		{ .nrails = 2, .max = 3, .start_bonded = true, .slots = 4, .flush = 3, .spare_loss = true,
		  ALPHABET(A + SIG, C, T + SIG) },
		{ .nrails = 2, .max = 4, .start_bonded = true, .slots = 4, .flush = 3, .spare_again = true,
		  ALPHABET(A, F + SIG, C) },
		{ .nrails = 2, .max = 3, .slots = 2, .flush = 3, .bonds = 2, .unbonds = 1, ALPHABET(A, F + SIG, C + SIG) },
		{ .nrails = 2, .max = 3, .start_bonded = true, .slots = 2, .flush = 3, .undos = 1, .resets = 1,
		  ALPHABET(A, F + SIG, C + SIG) },
	};

	run_all("flush", list, sizeof(list) / sizeof(*list), _i);
}
END_TEST

START_TEST(test_flush_three_rails)
{
	static const struct scenario list[] = {
		{ .nrails = 3, .max = 3, .start_bonded = true, .slots = 4, .flush = 5, ALPHABET(A, C + SIG, T + SIG) },
		{ .nrails = 3, .max = 3, .start_bonded = true, .slots = 4, .flush = 7, ALPHABET(Arot, Asib + SIG) },
	};

	run_all("flush, 3 rails", list, sizeof(list) / sizeof(*list), _i);
}
END_TEST

/* a sibling is lost at any moment, with anything under way: no completion is given of what it had */
START_TEST(test_rail_loss)
{
	static const struct scenario list[] = {
		{ .nrails = 2, .max = 4, .start_bonded = true, .slots = 4, .rail_loss = true, ALPHABET(A, F + SIG, C + SIG) },
		{ .nrails = 2, .max = 3, .start_bonded = true, .slots = 4, .rail_loss = true, .flush = 3,
		  ALPHABET(A + SIG, C, T + SIG) },
		{ .nrails = 3, .max = 3, .start_bonded = true, .slots = 4, .rail_loss = true,
		  ALPHABET(A, Asib + SIG, F + SIG) },
		{ .nrails = 2, .max = 3, .slots = 4, .bonds = 1, .rail_loss = true, ALPHABET(A + SIG, F + SIG) },
	};

	run_all("rail loss", list, sizeof(list) / sizeof(*list), _i);
}
END_TEST

/* more is outstanding than is searched for overlaps: all of the rest is waited for */
START_TEST(test_search)
{
	static const struct scenario list[] = {
		{ .nrails = 2, .max = 5, .start_bonded = true, .slots = 8, .search = 1, ALPHABET(A, C + SIG) },
		{ .nrails = 2, .max = 4, .start_bonded = true, .slots = 4, .search = 2,
		  ALPHABET(A, C + SIG, Arot, T + SIG) },
		{ .nrails = 2, .max = 4, .start_bonded = true, .slots = 4, .search = 1, .flush = 3,
		  ALPHABET(A, B + SIG, C) },
		{ .nrails = 3, .max = 3, .start_bonded = true, .slots = 4, .search = 1,
		  ALPHABET(A, C + SIG, Arot, R + SIG) },
	};

	run_all("bounded search", list, sizeof(list) / sizeof(*list), _i);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("order");
	TCase *all = tcase_create("interleavings"), *changes = tcase_create("changes");
	TCase *flushes = tcase_create("flushes");

	ref_fail = print_trace_and_fail;
	ref_world_only = getenv("ORDER_WORLD_ONLY") != NULL;
	setvbuf(stdout, NULL, _IOLBF, 0);
	tcase_set_timeout(all, 600);
	tcase_set_timeout(changes, 600);
	tcase_set_timeout(flushes, 600);
	tcase_add_loop_test(all, test_every_kind, 0, NMODES);
	tcase_add_loop_test(all, test_three, 0, NMODES);
	tcase_add_loop_test(all, test_six, 0, NMODES);
	tcase_add_loop_test(all, test_four_wider, 0, NMODES);
	tcase_add_loop_test(all, test_three_rails, 0, NMODES);
	suite_add_tcase(s, all);
	tcase_add_loop_test(changes, test_bonding, 0, NMODES);
	tcase_add_loop_test(changes, test_reset_undo_grow, 0, NMODES);
	tcase_add_loop_test(changes, test_rail_loss, 0, NMODES);
	suite_add_tcase(s, changes);
	tcase_add_loop_test(flushes, test_flush, 0, NMODES);
	tcase_add_loop_test(flushes, test_flush_three_rails, 0, NMODES);
	tcase_add_loop_test(flushes, test_search, 0, NMODES);
	suite_add_tcase(s, flushes);
	return run_suite(s);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The order machine under long random programs: up to 4 rails, 200 WRs, random kinds, cuts, overlaps and schedules,
 * with bonding, un-bonding, growth, refusals, RESET and the loss of the spare in between. ORDER_SEED repeats a run,
 * ORDER_STEPS lengthens it. Of a program that fails, as much is left out as it fails without, and the rest is printed.
 */
#include <check.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "order_ref.h"
#include "run.h"

#define WRS 200
#define NKINDS 64

static struct ref_kind kinds[NKINDS];
static uint64_t seed, rnd_state, program, step;
static enum dp_ordering mode;
static uint32_t nrails;

static uint32_t rnd(uint32_t below)
{
	/* splitmix64 */
	uint64_t z = rnd_state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (uint32_t)((z ^ z >> 31) >> 32) % below;
}

/* What is done to the machine, so that a failure can be done again, with less. */
struct act {
	enum { ADD, DRIVE, POST0, POSTS, PLACE, ACK, DELIVER, FLUSH, BOND, UNBOND, GROW, REFUSE, SPARE, AGAIN, RESET, SETTLE } what;
	uint32_t a, n;
	unsigned refused[3];
};
static const char *const act_names[] = { "add", "drive", "post0", "posts", "place", "ack", "deliver", "flush", "bond", "un-bond",
					 "grow", "refuse", "lose spare", "renew spare", "reset", "settle" };

static struct act *acts; /* of this program */
static size_t nacts, acts_room;
static uint32_t start_rails, start_flush, start_search;
static jmp_buf *again; /* a failure is not the first */
static char first_why[256];

static void run_acts(const struct act *list, size_t n);

static bool fails(const struct act *list, size_t n)
{
	jmp_buf here;
	volatile bool failed = true;

	again = &here;
	if (!setjmp(here)) {
		run_acts(list, n);
		failed = false;
	}
	again = NULL;
	return failed;
}

/* Leaves out whatever it fails without: halves, quarters, ..., single acts, until none can be left out any more. */
static void shrink(void)
{
	struct act *less = malloc(nacts * sizeof(*less));
	bool progress = less != NULL;

	while (progress) {
		progress = false;
		for (size_t chunk = (nacts + 1) / 2; chunk; chunk = chunk > 1 ? (chunk + 1) / 2 : 0)
			for (size_t from = 0; from < nacts;) {
				size_t gone = nacts - from < chunk ? nacts - from : chunk;

				memcpy(less, acts, from * sizeof(*less));
				memcpy(less + from, acts + from + gone, (nacts - from - gone) * sizeof(*less));
				if (fails(less, nacts - gone)) {
					nacts -= gone;
					memcpy(acts, less, nacts * sizeof(*less));
					progress = true;
				} else {
					from += chunk;
				}
			}
	}
	free(less);
}

static void say_kind(const struct ref_kind *k)
{
	static const char *const flags[] = { "bulk", "signalled", "fence", "read", "atomic", "plain", "all" };

	printf(" %s [%" PRIu64 ",%" PRIu64 ")", k->name, k->remote.lo, k->remote.hi);
	for (unsigned i = 0; i < 7; i++)
		if (k->flags >> i & 1)
			printf(" %s", flags[i]);
	if (k->local.lo < k->local.hi)
		printf(" into [%" PRIu64 ",%" PRIu64 ")", k->local.lo, k->local.hi);
	for (uint32_t r = 0; k->cut && r < nrails; r++)
		printf("%s%" PRIu64 "+%" PRIu64, r ? " | " : " cut ", k->part[r].offset, k->part[r].len);
}

static void say_acts(void)
{
	printf("mode %d, %u rails (%u at first), flush 0x%x, search %u:\n", mode, nrails, start_rails, start_flush, start_search);
	for (size_t i = 0; i < nacts; i++) {
		const struct act *t = &acts[i];

		printf("\t%s", act_names[t->what]);
		if (t->what == ADD)
			say_kind(&kinds[t->a]);
		else if (t->what == PLACE || t->what == ACK || t->what == FLUSH)
			printf(" on %u", t->a);
		if (t->what == ACK && t->a)
			printf(", up to %u", t->n);
		for (uint32_t k = 0; t->what == REFUSE && k < t->n; k++)
			say_kind(&kinds[t->refused[k]]);
		putchar('\n');
	}
}

static void fail_with_seed(const char *why)
{
	if (again) {
		snprintf(first_why, sizeof(first_why), "%s", why);
		longjmp(*again, 1);
	}
	if (getenv("ORDER_FIRST")) {
		puts(why);
		fflush(stdout);
		_exit(1);
	}
	snprintf(first_why, sizeof(first_why), "%s", why);
	if (acts && fails(acts, nacts)) {
		size_t all = nacts;

		shrink();
		fails(acts, nacts);
		printf("%zu acts of %zu are enough, in ", nacts, all);
		say_acts();
	}
	ck_abort_msg("%s; then %s; ORDER_SEED=%" PRIu64 ", program %" PRIu64 ", step %" PRIu64 ", mode %d, %u rails", why,
		     first_why, seed, program, step, mode, nrails);
}

/* cuts at random places, over a random run of rails */
static void random_cut(struct ref_kind *k)
{
	uint64_t len = k->remote.hi - k->remote.lo, from = 0;
	uint32_t parts = 1 + rnd(nrails), first = rnd(nrails);

	if (rnd(2)) {
		ref_cut(k, nrails, parts, rnd(4) ? 0 : first);
		return;
	}
	k->cut = true;
	for (uint32_t i = 0; i < parts && from < len; i++) {
		uint64_t to = i + 1 == parts ? len : from + rnd((uint32_t)(len - from) + 1);
		uint32_t rail = (first + i) % nrails;

		if (to == from)
			continue;
		k->part[rail] = (struct dp_part){ from, to - from };
		if (k->flags & DP_OP_READ)
			k->lpart[rail] = (struct dp_range){ k->local.lo + from, k->local.lo + to };
		from = to;
	}
}

static void random_kinds(void)
{
	/* few bytes: many overlaps; many bytes: few */
	static const uint32_t spans[] = { 4000, 400, 60 };
	uint32_t span = spans[rnd(3)];
	uint32_t signal_share = 1 + rnd(12), signaled_share = 1 + rnd(4), fence_share = 4 + rnd(20);

	memset(kinds, 0, sizeof(kinds));
	for (int i = 0; i < NKINDS; i++) {
		struct ref_kind *k = &kinds[i];
		uint64_t len = 4 + rnd(20);

		snprintf(k->name, sizeof(k->name), "kind-%d", i);
		k->remote.lo = rnd(span);
		k->remote.hi = k->remote.lo + len;
		if (!rnd(signaled_share))
			k->flags |= DP_OP_SIGNALED;
		if (!rnd(fence_share))
			k->flags |= DP_OP_FENCE;
		if (rnd(signal_share + 1)) {
			k->flags |= DP_OP_BULK | DP_OP_PLAIN;
			if (!rnd(3)) {
				k->flags |= DP_OP_READ;
				k->local.lo = 1000 + rnd(span);
				k->local.hi = k->local.lo + len;
			}
			if (!rnd(16))
				k->flags |= DP_OP_ALL; /* whole */
			else if (rnd(8))
				random_cut(k);
			continue;
		}
		switch (rnd(5)) {
		case 0:
			k->flags |= DP_OP_ATOMIC;
			k->local.lo = 1000 + rnd(span);
			k->local.hi = k->local.lo + 8;
			break;
		case 1:
			k->flags |= DP_OP_ALL;
			k->remote.lo = k->remote.hi = 0;
			break;
		case 2:
			k->flags |= DP_OP_PLAIN | DP_OP_READ;
			k->local.lo = 1000 + rnd(span);
			k->local.hi = k->local.lo + 4;
			if (!rnd(4))
				ref_every(k, nrails);
			break;
		case 3:
			k->flags |= DP_OP_PLAIN;
			break;
		}
	}
}

static void settle(struct world *w)
{
	bool busy;

	do {
		busy = false;
		world_drive(w);
		for (uint32_t r = 0; r < nrails; r++) {
			busy |= world_place(w, r);
			busy |= world_ack(w, r, 2);
			busy |= world_flush(w, r);
		}
		busy |= world_deliver(w);
	} while (busy);
	world_compare(w);
	world_quiescent(w);
}

static void start(struct world *w)
{
	world_init(w, kinds, start_rails, mode, 2);
	w->r.nrails = nrails;
	if (start_search)
		w->o.search = start_search;
	world_set_flush(w, start_flush);
	if (w->o.nrails == nrails)
		world_bond(w);
}

static void grow_to(struct world *w, uint64_t n)
{
	while (w->o.next + n - w->o.tail > w->o.mask + 1)
		if (dp_order_grow(&w->o))
			fail_with_seed("no memory");
}

/* Where it is not possible (any more), it does nothing. */
static void act(struct world *w, const struct act *t)
{
	switch (t->what) {
	case ADD:
		if (w->r.n == WRS)
			break;
		grow_to(w, 1);
		world_add(w, t->a);
		break;
	case DRIVE:
		world_drive(w);
		break;
	case POST0:
		world_post0(w);
		break;
	case POSTS:
		world_posts(w);
		break;
	case PLACE:
		world_place(w, t->a);
		break;
	case ACK:
		world_ack(w, t->a, t->n);
		break;
	case DELIVER:
		world_deliver(w);
		break;
	case FLUSH:
		world_flush(w, t->a);
		break;
	case BOND:
		if (w->o.nrails < nrails && dp_order_widen(&w->o, nrails))
			fail_with_seed("no memory");
		world_bond(w);
		break;
	case UNBOND:
		world_unbond(w);
		break;
	case GROW:
		if (w->o.mask < 511 && dp_order_grow(&w->o))
			fail_with_seed("no memory");
		break;
	case REFUSE:
		grow_to(w, t->n);
		world_undo(w, t->refused, (int)t->n);
		break;
	case SPARE:
		world_spare_lost(w);
		break;
	case AGAIN:
		world_spare_again(w);
		break;
	case RESET:
		world_reset(w);
		if (w->o.nrails == nrails)
			world_bond(w);
		break;
	case SETTLE:
		settle(w);
		return;
	}
	world_compare(w);
}

static void run_acts(const struct act *list, size_t n)
{
	struct world w;

	start(&w);
	for (size_t i = 0; i < n; i++)
		act(&w, &list[i]);
	world_fini(&w);
}

static struct act *new_act(void)
{
	if (nacts == acts_room) {
		acts_room = acts_room ? 2 * acts_room : 4096;
		acts = realloc(acts, acts_room * sizeof(*acts));
		if (!acts)
			abort();
	}
	acts[nacts] = (struct act){ .what = DRIVE };
	return &acts[nacts++];
}

/* The next act. False: nothing this time. */
static bool draw(const struct world *w, uint32_t window, struct act *t)
{
	switch (rnd(16)) {
	case 0 ... 3:
		/* without a signalled WR the window would stay shut */
		if (w->r.n == WRS || (w->o.next - w->o.tail >= window && rnd(16)))
			return false;
		t->what = ADD;
		t->a = rnd(NKINDS);
		break;
	case 4:
	case 5:
		t->what = DRIVE;
		break;
	case 6:
		t->what = POST0;
		break;
	case 7:
		t->what = POSTS;
		break;
	case 8 ... 10:
		t->what = PLACE;
		t->a = rnd(nrails);
		break;
	case 11 ... 13:
		t->what = ACK;
		t->a = rnd(nrails);
		t->n = 1 + rnd(4);
		break;
	case 14:
		t->what = rnd(2) ? DELIVER : FLUSH;
		t->a = rnd(nrails);
		break;
	case 15:
		switch (rnd(40)) {
		case 0:
			t->what = BOND;
			break;
		case 1:
			t->what = UNBOND;
			break;
		case 2:
			t->what = GROW;
			break;
		case 3 ... 8:
			t->what = REFUSE;
			t->n = 1 + rnd(3);
			for (uint32_t i = 0; i < t->n; i++)
				t->refused[i] = rnd(NKINDS);
			break;
		case 9:
			t->what = AGAIN;
			break;
		case 10:
			if (rnd(10) && rnd(20))
				return false;
			t->what = rnd(3) ? SPARE : RESET;
			break;
		default:
			return false;
		}
		break;
	}
	return true;
}

START_TEST(test_random)
{
	const char *env = getenv("ORDER_STEPS");
	uint64_t steps = (env ? strtoull(env, NULL, 0) : 1000000) / 4, cuts = 0, wrs = 0, full = 0;
	struct timespec now;
	struct world w;

	env = getenv("ORDER_SEED");
	clock_gettime(CLOCK_REALTIME, &now);
	seed = env ? strtoull(env, NULL, 0) : (uint64_t)now.tv_sec * 1000000007 + (uint64_t)now.tv_nsec;
	rnd_state = seed + (uint64_t)_i;
	mode = (enum dp_ordering)_i;
	for (program = 0, step = 0; step < steps; program++) {
		uint32_t window = 2 + rnd(60);

		nrails = 1 + rnd(REF_RAILS);
		random_kinds();
		start_rails = rnd(4) ? nrails : 1;
		start_search = rnd(2) ? 1 + rnd(12) : 0;
		start_flush = rnd(2) ? rnd(1u << nrails) : 0;
		nacts = 0;
		start(&w);
		for (uint64_t end = step + 400 + rnd(3000); step < end && w.r.n < WRS; step++) {
			struct act *t = new_act();

			if (draw(&w, window, t))
				act(&w, t);
			else
				nacts--;
		}
		new_act()->what = SETTLE;
		settle(&w);
		for (unsigned p = 0; p < w.r.n; p++)
			cuts += !w.r.whole[p], full += (w.r.full0[p] | w.r.fulls[p]) != 0;
		wrs += w.r.n;
		world_fini(&w);
	}
	printf("mode %d: seed %" PRIu64 ", %" PRIu64 " programs, %" PRIu64 " steps, %" PRIu64 " WRs, %" PRIu64 " cut, %" PRIu64
	       " waited for all\n", mode, seed, program, step, wrs, cuts, full);
	ck_assert_uint_gt(cuts, 0);
	/* the other modes do not look at ranges */
	if (mode == DP_ORDER_STRICT || mode == DP_ORDER_SIGNAL)
		ck_assert_uint_gt(full, 0);
	else
		ck_assert_uint_eq(full, 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("order_random");
	TCase *tc = tcase_create("interleavings");

	ref_fail = fail_with_seed;
	ref_world_only = getenv("ORDER_WORLD_ONLY") != NULL;
	setvbuf(stdout, NULL, _IOLBF, 0);
	tcase_set_timeout(tc, 600);
	tcase_add_loop_test(tc, test_random, 0, 4);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

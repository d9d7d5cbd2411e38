// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The order machine under long random programs: up to 4 rails, 200 WRs, random kinds, cuts, overlaps and schedules,
 * with bonding, un-bonding, growth, refusals and RESET in between. ORDER_SEED repeats a run, ORDER_STEPS lengthens it.
 */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "order_ref.h"

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

static void fail_with_seed(const char *why)
{
	if (getenv("ORDER_FIRST")) {
		puts(why);
		fflush(stdout);
		_exit(1);
	}
	ck_abort_msg("%s; ORDER_SEED=%" PRIu64 ", program %" PRIu64 ", step %" PRIu64 ", mode %d, %u rails", why, seed,
		     program, step, mode, nrails);
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
			if (rnd(8))
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
			busy |= world_ack(w, r, 1 + rnd(3));
			busy |= world_flush(w, r);
		}
		busy |= world_deliver(w);
	} while (busy);
	world_compare(w);
	world_quiescent(w);
}

static void one_step(struct world *w, uint32_t window)
{
	unsigned refused[3];
	int n;

	switch (rnd(16)) {
	case 0 ... 3:
		/* without a signalled WR the window would stay shut */
		if (w->r.n == WRS || (w->o.next - w->o.tail >= window && rnd(16)))
			break;
		if (dp_order_full(&w->o) && dp_order_grow(&w->o))
			fail_with_seed("no memory");
		world_add(w, rnd(NKINDS));
		break;
	case 4:
	case 5:
		world_drive(w);
		break;
	case 6:
		world_post0(w);
		break;
	case 7:
		world_posts(w);
		break;
	case 8 ... 10:
		world_place(w, rnd(nrails));
		break;
	case 11 ... 13:
		world_ack(w, rnd(nrails), 1 + rnd(4));
		break;
	case 14:
		if (rnd(2))
			world_deliver(w);
		else
			world_flush(w, rnd(nrails));
		break;
	case 15:
		switch (rnd(40)) {
		case 0:
			if (w->o.nrails < nrails && dp_order_widen(&w->o, nrails))
				fail_with_seed("no memory");
			world_bond(w);
			break;
		case 1:
			world_unbond(w);
			break;
		case 2:
			if (w->o.mask < 511 && dp_order_grow(&w->o))
				fail_with_seed("no memory");
			break;
		case 3 ... 8:
			n = 1 + (int)rnd(3);
			for (int i = 0; i < n; i++)
				refused[i] = rnd(NKINDS);
			while (w->o.next + (uint64_t)n - w->o.tail > w->o.mask + 1)
				if (dp_order_grow(&w->o))
					fail_with_seed("no memory");
			world_undo(w, refused, n);
			break;
		case 9:
			if (!rnd(10))
				world_spare_lost(w);
			if (!rnd(20)) {
				world_reset(w);
				if (w->o.nrails == nrails)
					world_bond(w);
			}
			break;
		}
		break;
	}
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
		world_init(&w, kinds, rnd(4) ? nrails : 1, mode, 2);
		w.r.nrails = nrails;
		if (rnd(2))
			w.o.search = 1 + rnd(12);
		if (rnd(2))
			world_set_flush(&w, rnd(1u << nrails));
		if (w.o.nrails == nrails)
			world_bond(&w);
		for (uint64_t end = step + 400 + rnd(3000); step < end && w.r.n < WRS; step++) {
			one_step(&w, window);
			world_compare(&w);
		}
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
	SRunner *sr;
	int failed;

	ref_fail = fail_with_seed;
	ref_world_only = getenv("ORDER_WORLD_ONLY") != NULL;
	setvbuf(stdout, NULL, _IOLBF, 0);
	tcase_set_timeout(tc, 600);
	tcase_add_loop_test(tc, test_random, 0, 4);
	suite_add_tcase(s, tc);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

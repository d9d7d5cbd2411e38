// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The planner: every byte once, cuts where they belong, against a slow byte-by-byte reference. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "run.h"

#define MAX_SGE 8

/* ck_assert() reports every passing check to the runner: far too slow for millions of them */
#define must_msg(cond, ...)                                                                                           \
	do {                                                                                                          \
		if (!(cond))                                                                                          \
			ck_abort_msg(__VA_ARGS__);                                                                    \
	} while (0)
#define must(cond) must_msg(cond, "%s", #cond)
#define eq(a, b)                                                                                                      \
	must_msg((uint64_t)(a) == (uint64_t)(b), "%s is %lld, not %lld", #a, (long long)(a), (long long)(b))

static const uint32_t weight_sets[][4] = {
	{ 1, 1, 1, 1 }, { 1, 2, 3, 4 }, { 4, 1, 1, 2 }, { 0, 1, 1, 1 }, { 1, 0, 1, 0 },
	{ 1, 0, 0, 0 }, { 0, 0, 0, 1 }, { 100, 1, 7, 3 }, { UINT32_MAX, UINT32_MAX, 1, UINT32_MAX },
};
#define NWEIGHTS (sizeof(weight_sets) / sizeof(weight_sets[0]))

static unsigned long cases, cuts_seen;

static uint64_t sum_of(const struct dp_plan_policy *pol)
{
	uint64_t sum = 0;

	for (uint32_t r = 0; r < pol->nrails; r++)
		sum += pol->weight[r];
	return sum;
}

static bool multiple_inside(uint64_t raddr, uint64_t len, uint64_t align)
{
	uint64_t next = align - raddr % align; /* distance to the next multiple above raddr */

	return next < len;
}

/* Everything that plan.h promises of one cut. */
static void check_cut(const struct dp_plan_policy *pol, uint64_t raddr, uint64_t len, const struct dp_part *part,
		      unsigned n)
{
	uint64_t at = 0, sum = sum_of(pol);
	unsigned seen = 0;
	bool whole = len < pol->split_min || pol->nrails == 1 || !multiple_inside(raddr, len, pol->align);

	cases++;
	for (uint32_t i = 0; i < pol->nrails; i++) {
		uint32_t r = (pol->first + i) % pol->nrails;
		long double ideal = (long double)len * pol->weight[r] / sum;
		long double off = (long double)part[r].len - ideal;

		if (!whole) {
			must_msg(off <= pol->align + 1.0L && -off <= pol->align + 1.0L,
				      "rail %u: %lu of %lu bytes, ideal %Lf, align %lu", r, (unsigned long)part[r].len,
				      (unsigned long)len, ideal, (unsigned long)pol->align);
			if (!pol->weight[r])
				eq(part[r].len, 0);
		}
		if (!part[r].len)
			continue;
		eq(part[r].offset, at); /* disjoint, without gaps, in order */
		if (at) {
			eq((raddr + at) % pol->align, 0);
			cuts_seen++;
		}
		at += part[r].len;
		seen++;
	}
	eq(at, len);
	eq(seen, n);
	if (whole && len) {
		eq(part[0].offset, 0);
		eq(part[0].len, len);
		eq(n, 1);
	}
}

/* The cut nearest to the ideal, found by looking at every candidate; ties go up. */
static uint64_t slow_cut(uint64_t raddr, uint64_t len, uint64_t num, uint64_t den, uint64_t align)
{
	uint64_t best = 0;
	long double best_off = -1;

	for (uint64_t c = 0; c <= len + align; c++) {
		long double off;

		if ((raddr + c) % align)
			continue;
		off = (long double)c - (long double)len * num / den;
		off = off < 0 ? -off : off;
		if (best_off < 0 || off <= best_off) {
			best_off = off;
			best = c;
		}
	}
	/* the multiple at or below raddr competes, too */
	if ((long double)len * num / den + (long double)(raddr % align) < best_off)
		best = 0;
	return best > len ? len : best;
}

static void policy(struct dp_plan_policy *pol, uint32_t nrails, uint64_t split_min, uint64_t align, const uint32_t *w,
		   uint32_t first)
{
	memset(pol, 0, sizeof(*pol));
	pol->nrails = nrails;
	pol->split_min = split_min;
	pol->align = align;
	memcpy(pol->weight, w, nrails * sizeof(*w));
	pol->first = first;
}

/* align is kept tiny here so that "all small sizes" meet many cuts; the planner knows no lower bound itself */
START_TEST(test_all_small)
{
	static const uint64_t aligns[] = { 1, 2, 4, 8, 16 };
	static const uint64_t split_mins[] = { 0, 1, 9, 24 };

	cases = cuts_seen = 0;
	for (uint32_t nr = 1; nr <= 4; nr++)
	for (size_t w = 0; w < NWEIGHTS; w++)
	for (size_t a = 0; a < sizeof(aligns) / sizeof(*aligns); a++)
	for (size_t s = 0; s < sizeof(split_mins) / sizeof(*split_mins); s++)
	for (uint32_t first = 0; first < nr; first++) {
		struct dp_plan_policy pol;

		policy(&pol, nr, split_mins[s], aligns[a], weight_sets[w], first);
		if (!sum_of(&pol))
			continue;
		for (uint64_t raddr = 0; raddr < 2 * aligns[a]; raddr++)
			for (uint64_t len = 0; len <= 48; len++) {
				struct dp_part part[4], again[4];
				unsigned n;

				memset(part, 0xa5, sizeof(part));
				n = dp_plan_cut(&pol, raddr, len, part);
				check_cut(&pol, raddr, len, part, n);
				/* equal modulo align: equal cuts, also at the end of the address space */
				eq(n, dp_plan_cut(&pol, raddr - 4 * aligns[a], len, again));
				must(!memcmp(part, again, nr * sizeof(*part)));
			}
	}
	printf("small: %lu plans, %lu inner cuts\n", cases, cuts_seen);
	must(cuts_seen > cases / 2);
}
END_TEST

START_TEST(test_nearest)
{
	for (uint32_t nr = 2; nr <= 4; nr++)
	for (size_t w = 0; w < NWEIGHTS; w++)
	for (uint64_t align = 2; align <= 32; align *= 4)
	for (uint64_t raddr = 0; raddr < align; raddr++)
	for (uint64_t len = 1; len <= 40; len++) {
		struct dp_plan_policy pol;
		struct dp_part part[4];
		uint64_t num = 0, from = 0;

		policy(&pol, nr, 0, align, weight_sets[w], w % nr);
		if (!sum_of(&pol) || !multiple_inside(raddr, len, align))
			continue;
		dp_plan_cut(&pol, raddr, len, part);
		for (uint32_t i = 0; i < nr; i++) {
			uint32_t r = (pol.first + i) % nr;
			uint64_t to;

			num += pol.weight[r];
			if (!pol.weight[r])
				to = from;
			else
				to = num == sum_of(&pol) ? len : slow_cut(raddr, len, num, sum_of(&pol), align);
			must_msg(part[r].len == to - from, "rail %u of %u: %lu bytes, not %lu (%lu at %lu by %lu)", r,
				      nr, (unsigned long)part[r].len, (unsigned long)(to - from), (unsigned long)len,
				      (unsigned long)raddr, (unsigned long)align);
			from = to;
		}
	}
}
END_TEST

START_TEST(test_realistic)
{
	static const uint64_t lens[] = { 4096, 8191, 8192, 8193, 65536, 65537, 1 << 20, (1 << 20) + 3,
					 (1ull << 31) - 1, 1ull << 31 };
	static const uint64_t aligns[] = { 128, 4096, 65536 };

	for (uint32_t nr = 1; nr <= 4; nr++)
	for (size_t w = 0; w < NWEIGHTS; w++)
	for (size_t a = 0; a < sizeof(aligns) / sizeof(*aligns); a++)
	for (uint32_t first = 0; first < nr; first++)
	for (size_t l = 0; l < sizeof(lens) / sizeof(*lens); l++) {
		static const uint64_t bases[] = { 0, 0x7f0000000000, 0x7fffffffffff0001, UINT64_MAX - (1ull << 31) };
		struct dp_plan_policy pol;
		struct dp_part part[4];

		policy(&pol, nr, 8192, aligns[a], weight_sets[w], first);
		if (!sum_of(&pol))
			continue;
		for (size_t b = 0; b < sizeof(bases) / sizeof(*bases); b++)
			for (uint64_t off = 0; off < 8192; off += 1023)
				check_cut(&pol, bases[b] + off, lens[l], part,
					  dp_plan_cut(&pol, bases[b] + off, lens[l], part));
	}
}
END_TEST

START_TEST(test_even_halves)
{
	static const uint32_t equal[] = { 1, 1 };
	struct dp_plan_policy pol;
	struct dp_part part[2];

	policy(&pol, 2, 8192, 4096, equal, 0);
	eq(dp_plan_cut(&pol, 0x10000, 1 << 20, part), 2);
	eq(part[0].len, 1 << 19);
	eq(part[1].offset, 1 << 19);
	pol.first = 1;
	eq(dp_plan_cut(&pol, 0x10000, 1 << 20, part), 2);
	eq(part[1].offset, 0);
	eq(part[0].offset, 1 << 19);
	/* a sibling that alone has weight takes what can be cut, rail 0 what cannot */
	pol.weight[0] = 0;
	eq(dp_plan_cut(&pol, 0x10000, 65536, part), 1);
	eq(part[1].len, 65536);
	eq(dp_plan_cut(&pol, 0x10000, 8191, part), 1);
	eq(part[0].len, 8191);
	/* a share too small to round to anything vanishes and does not draw the rest to its rail */
	pol.weight[0] = 1;
	pol.weight[1] = 1000000;
	eq(dp_plan_cut(&pol, 0x10000, 1 << 20, part), 1);
	eq(part[1].len, 1 << 20);
}
END_TEST

/* Byte b of the list as (SGE, address); false beyond its end. */
static bool slow_byte(const struct ibv_sge *in, int nin, uint64_t b, int *idx, uint64_t *addr)
{
	for (int i = 0; i < nin; i++)
		for (uint32_t k = 0; k < in[i].length; k++)
			if (!b--) {
				*idx = i;
				*addr = in[i].addr + k;
				return true;
			}
	return false;
}

static void check_sges(const struct ibv_sge *in, int nin, uint64_t total, uint64_t offset, uint64_t len,
		       const uint32_t *keys)
{
	struct dp_part part = { offset, len };
	struct ibv_sge out[MAX_SGE + 1];
	uint64_t b = offset;
	int n, idx, need = 0, last = -1;
	uint64_t addr;

	memset(out, 0x5a, sizeof(out));
	n = dp_plan_sges(in, nin, &part, keys, out, MAX_SGE);
	if (offset + len > total) {
		eq(n, -EINVAL);
		return;
	}
	must(n >= 0);
	for (int i = 0; i < n; i++) {
		must(out[i].length);
		for (uint32_t k = 0; k < out[i].length; k++, b++) {
			must(slow_byte(in, nin, b, &idx, &addr));
			eq(out[i].addr + k, addr);
			eq(out[i].lkey, keys ? keys[idx] : in[idx].lkey);
			if (idx != last)
				need++;
			last = idx;
		}
	}
	eq(b, offset + len);
	eq(n, need); /* one SGE for each touched: none cut in two, none empty */
	eq(out[n].length, 0x5a5a5a5a);
	eq(dp_plan_sges(in, nin, &part, keys, out, n), n);
	if (n)
		eq(dp_plan_sges(in, nin, &part, keys, out, n - 1), -E2BIG);
}

/* Bytes per second and ns are such that a round trip is 1000 bytes long. */
START_TEST(test_wait)
{
	static const struct {
		struct dp_patience p;
		bool wait;
	} cases[] = {
		/* alone: only for long parts */
		{ { 1000, 1000000000, 3999, 2000, 0 }, false },
		{ { 1000, 1000000000, 4000, 2000, 0 }, true },
		/* others keep the port busy */
		{ { 1000, 1000000000, 1000, 500, 1499 }, false },
		{ { 1000, 1000000000, 1000, 500, 1500 }, true },
		/* nothing is known */
		{ { 0, 1000000000, 1000000, 1, 1000000 }, false },
		{ { 1000, 0, 1000000, 1, 1000000 }, false },
		/* no overflow */
		{ { UINT64_MAX / 2, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX }, false },
		{ { 1, 1, UINT64_MAX, UINT64_MAX, UINT64_MAX }, true },
	};

	ck_assert_int_eq(dp_plan_wait(&cases[_i].p), cases[_i].wait);
}
END_TEST
#define WAITS 8


/* every list of up to 4 SGEs of 0..4 bytes, every part of it, and some that reach beyond */
START_TEST(test_sges_all_small)
{
	static const uint32_t keys[MAX_SGE] = { 91, 92, 93, 94, 95, 96, 97, 98 };

	for (int nin = 0; nin <= 4; nin++) {
		int shapes = 1;

		for (int i = 0; i < nin; i++)
			shapes *= 5;
		for (int shape = 0; shape < shapes; shape++) {
			struct ibv_sge in[4] = { { 0 } };
			uint64_t total = 0;

			for (int i = 0, s = shape; i < nin; i++, s /= 5) {
				in[i].addr = 1000 * (uint64_t)(nin - i); /* not ascending */
				in[i].length = s % 5;
				in[i].lkey = 10 + i;
				total += in[i].length;
			}
			for (uint64_t off = 0; off <= total + 1; off++)
				for (uint64_t len = 0; off + len <= total + 2; len++)
					check_sges(in, nin, total, off, len, shape & 1 ? keys : NULL);
		}
	}
}
END_TEST

/* a cut and its SGEs together: the parts of a multi-SGE WR tile it byte for byte */
START_TEST(test_cut_and_sges)
{
	static const uint32_t lens[][4] = { { 40, 0, 0, 0 }, { 0, 40, 0, 0 }, { 7, 0, 13, 20 }, { 1, 1, 1, 37 },
					    { 10, 10, 10, 10 }, { 0, 39, 0, 1 } };

	for (size_t l = 0; l < sizeof(lens) / sizeof(*lens); l++)
	for (uint32_t nr = 1; nr <= 4; nr++)
	for (size_t w = 0; w < NWEIGHTS; w++)
	for (uint64_t raddr = 0; raddr < 8; raddr++)
	for (uint32_t first = 0; first < nr; first++) {
		struct ibv_sge in[4] = { { 0 } }, out[4];
		unsigned hits[40] = { 0 };
		struct dp_plan_policy pol;
		struct dp_part part[4];

		policy(&pol, nr, 1, 8, weight_sets[w], first);
		if (!sum_of(&pol))
			continue;
		for (int i = 0; i < 4; i++)
			in[i] = (struct ibv_sge){ .addr = 100 * (i + 1), .length = lens[l][i], .lkey = i };
		dp_plan_cut(&pol, raddr, 40, part);
		for (uint32_t r = 0; r < nr; r++) {
			int n = dp_plan_sges(in, 4, &part[r], NULL, out, 4);
			uint64_t b = part[r].offset;

			must(n >= 0);
			for (int i = 0; i < n; i++)
				for (uint32_t k = 0; k < out[i].length; k++, b++) {
					int idx;
					uint64_t addr;

					must(slow_byte(in, 4, b, &idx, &addr));
					eq(addr, out[i].addr + k);
					hits[b]++;
				}
			eq(b, part[r].offset + part[r].len);
		}
		for (int b = 0; b < 40; b++)
			eq(hits[b], 1);
	}
}
END_TEST

START_TEST(test_sges_large)
{
	struct ibv_sge in[3] = {
		{ .addr = 0xfffffffe00000000, .length = UINT32_MAX, .lkey = 1 },
		{ .addr = 0x1000, .length = UINT32_MAX, .lkey = 2 },
		{ .addr = 0x7fff00000000, .length = 1u << 31, .lkey = 3 },
	};
	struct dp_part part = { UINT32_MAX - 1ull, 3 };
	struct ibv_sge out[3];

	eq(dp_plan_sges(in, 3, &part, NULL, out, 3), 2);
	eq(out[0].addr, 0xfffffffe00000000 + UINT32_MAX - 1);
	eq(out[0].length, 1);
	eq(out[1].addr, 0x1000);
	eq(out[1].length, 2);
	part = (struct dp_part){ 2ull * UINT32_MAX, 1ull << 31 };
	eq(dp_plan_sges(in, 3, &part, NULL, out, 1), 1);
	eq(out[0].length, 1u << 31);
	eq(out[0].lkey, 3);
	/* sums that wrap must not look as if they lay within */
	part = (struct dp_part){ UINT64_MAX, 2 };
	eq(dp_plan_sges(in, 3, &part, NULL, out, 3), -EINVAL);
	part = (struct dp_part){ 2, UINT64_MAX };
	eq(dp_plan_sges(in, 3, &part, NULL, out, 3), -EINVAL);
}
END_TEST

#define PEERS 4096

/* All that send to one receiver begin as often at each of its ports, within what such a number of draws may differ. */
START_TEST(test_first)
{
	uint8_t receiver[16], sender[16];
	uint32_t n = (uint32_t)_i, counts[8] = { 0 }, same = 0;

	for (uint32_t k = 0; k < sizeof(receiver); k++)
		receiver[k] = (uint8_t)(k * 37 + n);
	memset(sender, 0x5a, sizeof(sender));
	for (uint32_t p = 0; p < PEERS; p++) {
		uint32_t there, back;

		/* numbers that follow one another, where a bad function would show */
		memcpy(sender + 12, &p, sizeof(p));
		there = dp_plan_first(sender, receiver, sizeof(sender), n);
		back = dp_plan_first(receiver, sender, sizeof(sender), n);
		ck_assert_uint_lt(there, n);
		eq(there, dp_plan_first(sender, receiver, sizeof(sender), n));
		counts[there]++;
		same += there == back;
	}
	for (uint32_t k = 0; k < n; k++) {
		ck_assert_uint_gt(counts[k], PEERS / n * 8 / 10);
		ck_assert_uint_lt(counts[k], PEERS / n * 12 / 10 + n);
	}
	/* the two directions of a pair have nothing to do with each other */
	if (n > 1)
		ck_assert_uint_lt(same, PEERS / n * 12 / 10 + n);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("plan");
	TCase *tc = tcase_create("plan");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, test_all_small);
	tcase_add_test(tc, test_nearest);
	tcase_add_test(tc, test_realistic);
	tcase_add_test(tc, test_even_halves);
	tcase_add_loop_test(tc, test_first, 1, 9);
	tcase_add_loop_test(tc, test_wait, 0, WAITS);
	tcase_add_test(tc, test_sges_all_small);
	tcase_add_test(tc, test_cut_and_sges);
	tcase_add_test(tc, test_sges_large);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Short programs for the order machine that must come out in one way. */
#include <check.h>
#include <stdlib.h>

#include "order_kinds.h"
#include "run.h"

static void fail_test(const char *why)
{
	ck_abort_msg("%s", why);
}

static struct world w;

static void begin(enum dp_ordering mode, bool bonded)
{
	order_make_kinds(2);
	world_init(&w, order_kinds, 2, mode, 16);
	if (bonded)
		world_bond(&w);
}

static struct dp_op *post(int k)
{
	world_add(&w, (unsigned)k);
	world_drive(&w);
	world_compare(&w);
	return dp_order_op(&w.o, w.o.next - 1);
}

static void ack(uint32_t rail)
{
	while (world_place(&w, rail))
		;
	while (world_ack(&w, rail, 1))
		;
	world_drive(&w);
	world_compare(&w);
}

static int deliver_all(void)
{
	int n = 0;

	while (world_deliver(&w))
		n++;
	return n;
}

/* data, unsignalled flag, signalled data: nothing would tell of the flag, so the data follows it on rail 0 */
START_TEST(test_trace_unsignalled_flag)
{
	struct dp_op *op;

	begin(DP_ORDER_STRICT, true);
	ck_assert(!post(A)->whole);
	post(F);
	ck_assert_uint_eq(w.o.post0, 1); /* the flag waits for the data */
	op = post(A + SIG);
	ck_assert(op->whole && op->behind);
	ck_assert_uint_eq(w.o.post0, 1);
	ack(1);
	ck_assert_uint_eq(w.o.post0, 3);
	ack(0);
	ck_assert_int_eq(deliver_all(), 1);
	ck_assert_uint_eq(w.o.tail, 3);
	world_quiescent(&w);
	world_fini(&w);
}
END_TEST

/* The same with signalled flags, in haste: it goes whole only where it would wait. */
START_TEST(test_trace_haste)
{
	static const struct dp_part half[2] = { { 0, 6 }, { 6, 6 } };
	struct dp_op_desc a = { .flags = DP_OP_BULK | DP_OP_PLAIN | DP_OP_HASTE | DP_OP_SIGNALED,
				  .remote = { 0, 12 }, .part = half };
	struct dp_op_desc b = { .flags = a.flags, .remote = { 12, 24 }, .part = half };
	struct dp_op_desc flag = { .flags = DP_OP_PLAIN | DP_OP_SIGNALED, .remote = { 30, 31 } };
	struct dp_order o;

	for (int rc = 0; rc < 2; rc++) {
		ck_assert_int_eq(dp_order_init(&o, 2, rc ? DP_ORDER_RC : DP_ORDER_STRICT, 16), 0);
		dp_order_bond(&o);
		ck_assert(!dp_order_op(&o, dp_order_add(&o, &a))->whole);
		/* behind bulk alone: rc would wait */
		dp_order_add(&o, &b);
		ck_assert_int_eq(dp_order_op(&o, 1)->behind, rc ? DP_BEHIND_HASTE : DP_BEHIND_NOT);
		dp_order_add(&o, &flag);
		dp_order_add(&o, &a);
		ck_assert(dp_order_op(&o, 3)->whole);
		ck_assert_int_eq(dp_order_op(&o, 3)->behind, DP_BEHIND_HASTE);
		for (; dp_order_may_post0(&o) || dp_order_may_posts(&o); dp_order_done(&o, 1, o.planned[1])) {
			while (dp_order_may_post0(&o))
				dp_order_posted0(&o);
			while (dp_order_may_posts(&o))
				dp_order_posteds(&o);
		}
		ck_assert(!dp_order_queued(&o));
		ck_assert_uint_eq(o.sent[0] + o.sent[1], 37);
		dp_order_done(&o, 0, 4);
		ck_assert_uint_eq(o.arrived[0] + o.arrived[1], 37);
		ck_assert_uint_eq(o.sent[1], o.arrived[1]);
		/* nothing is outstanding: it is cut */
		ck_assert(!dp_order_op(&o, dp_order_add(&o, &b))->whole);
		dp_order_fini(&o);
	}
}
END_TEST

/* data, signalled flag, data: the sibling's part waits for the flag's completion, then goes */
START_TEST(test_trace_signalled_flag)
{
	begin(DP_ORDER_STRICT, true);
	post(A);
	post(F + SIG);
	ck_assert(!post(B + SIG)->whole);
	ack(1);
	ck_assert_uint_eq(w.o.post0, 3); /* rail 0's part of the data follows the flag there */
	ck_assert(!dp_order_may_posts(&w.o));
	ck_assert_uint_eq(w.o.posts, 2);
	ack(0); /* both completions */
	ck_assert_int_eq(deliver_all(), 1);
	ck_assert_uint_eq(w.o.posts, 3);
	ck_assert_uint_eq(dp_order_held(&w.o), 2);
	ack(1);
	ck_assert_int_eq(deliver_all(), 1);
	world_quiescent(&w);
	world_fini(&w);
}
END_TEST

/* in mode signal the sibling's part goes at once, in mode relaxed the flag does not wait either */
START_TEST(test_trace_weaker_modes)
{
	begin(DP_ORDER_SIGNAL, true);
	post(A);
	post(F);
	ck_assert(!post(B + SIG)->whole);
	ck_assert_uint_eq(w.o.posts, 3);
	ck_assert_uint_eq(w.o.post0, 1);
	world_fini(&w);
	begin(DP_ORDER_RELAXED, true);
	post(A);
	post(F);
	ck_assert(!post(B + SIG)->whole);
	ck_assert_uint_eq(w.o.post0, 3);
	post(T);
	ck_assert_uint_eq(w.o.post0, 3);
	post(Ff);
	ack(1);
	ck_assert_uint_eq(w.o.post0, 5);
	world_fini(&w);
	begin(DP_ORDER_RC, true);
	ck_assert(!post(A)->whole); /* nothing before it */
	ck_assert(post(B)->whole);  /* nothing tells of A's part on rail 0 */
	ck_assert_uint_eq(w.o.post0, 1);
	world_fini(&w);
}
END_TEST

/* equal ranges cut at equal places never wait, crosswise overlaps do */
START_TEST(test_trace_overlap)
{
	begin(DP_ORDER_STRICT, true);
	for (int i = 0; i < 8; i++)
		ck_assert(!post(A)->whole);
	ck_assert_uint_eq(w.o.post0, 8);
	ck_assert_uint_eq(w.o.posts, 8);
	ck_assert(post(Arot)->behind); /* its half on rail 1 meets A's on rail 0, of which nobody tells */
	world_fini(&w);
	begin(DP_ORDER_STRICT, true);
	post(A);
	ck_assert(!post(C)->whole); /* only its half on rail 0 meets A's, on rail 1 */
	ck_assert_uint_eq(w.o.post0, 1);
	ck_assert_uint_eq(w.o.posts, 2);
	world_fini(&w);
}
END_TEST

/* data, fenced data */
START_TEST(test_trace_fence)
{
	begin(DP_ORDER_SIGNAL, true);
	post(R + SIG);
	ck_assert(!post(Bf)->whole);
	ck_assert_uint_eq(w.o.post0, 1);
	ck_assert_uint_eq(w.o.posts, 1);
	ack(1);
	ck_assert_uint_eq(w.o.post0, 2);
	ck_assert_uint_eq(w.o.posts, 1);
	ack(0);
	ck_assert_uint_eq(w.o.posts, 2);
	world_fini(&w);
	begin(DP_ORDER_SIGNAL, true);
	post(T);
	ck_assert(post(Bf)->behind);
	world_fini(&w);
}
END_TEST

/* what was outstanding when bonding counts as one signal; once it is acknowledged, data is cut again */
START_TEST(test_trace_bond)
{
	begin(DP_ORDER_STRICT, false);
	ck_assert(post(A + SIG)->whole);
	ck_assert(post(A)->whole);
	world_bond(&w);
	ck_assert(post(B)->behind); /* nothing tells of the second */
	post(F + SIG);
	ck_assert(!post(A + SIG)->whole);
	ck_assert_uint_eq(w.o.post0, 5);
	ck_assert(!dp_order_may_posts(&w.o));
	ack(0);
	ck_assert_uint_eq(w.o.posts, 5);
	world_unbond(&w);
	ck_assert(post(C + SIG)->whole);
	ck_assert_uint_eq(w.o.post0, 5); /* meets the fragment that is still out */
	ack(1);
	ck_assert_uint_eq(w.o.post0, 6);
	ack(0);
	ck_assert_int_eq(deliver_all(), 4);
	world_quiescent(&w);
	ck_assert_uint_eq(w.o.tail, w.o.next);
	world_reset(&w);
	ck_assert(post(A)->whole); /* a reset QP is not bonded */
	world_fini(&w);
}
END_TEST

/* a completion that nobody expects must not shift the matching of those that come later */
START_TEST(test_trace_unexpected_completion)
{
	struct dp_op_desc d = { .flags = DP_OP_PLAIN };

	begin(DP_ORDER_STRICT, true);
	ck_assert(dp_order_match(&w.o) == UINT64_MAX);
	dp_order_add(&w.o, &d);
	dp_order_posted0(&w.o);
	ck_assert(dp_order_match(&w.o) == UINT64_MAX);
	ck_assert(dp_order_held(&w.o) == UINT64_MAX);
	d.flags |= DP_OP_SIGNALED;
	dp_order_add(&w.o, &d);
	ck_assert(dp_order_match(&w.o) == UINT64_MAX); /* not posted yet */
	dp_order_posted0(&w.o);
	ck_assert_uint_eq(dp_order_match(&w.o), 1);
	ck_assert(dp_order_match(&w.o) == UINT64_MAX);
	ck_assert_uint_eq(dp_order_deliverable(&w.o), 1);
	world_fini(&w);
}
END_TEST

/* before bonding completions are given as they come, without asking: that must not leave one to be given again */
START_TEST(test_trace_given_unasked)
{
	struct dp_op_desc d = { .flags = DP_OP_PLAIN };

	begin(DP_ORDER_STRICT, false);
	dp_order_add(&w.o, &d);
	d.flags |= DP_OP_SIGNALED;
	dp_order_add(&w.o, &d);
	dp_order_posted0(&w.o);
	dp_order_posted0(&w.o);
	ck_assert_uint_eq(dp_order_match(&w.o), 1);
	dp_order_delivered(&w.o);
	ck_assert(dp_order_held(&w.o) == UINT64_MAX);
	ck_assert_uint_eq(w.o.tail, 2);
	dp_order_delivered(&w.o); /* nothing is held: nothing happens */
	ck_assert_uint_eq(w.o.deliver, 2);
	world_fini(&w);
}
END_TEST

/* Bonded after so much traffic that the slots were used more than once: the siblings' queue begins with what is there. */
START_TEST(test_bond_after_long)
{
	const struct dp_part part[2] = { { .offset = 0, .len = 4096 }, { .offset = 4096, .len = 4096 } };
	struct dp_op_desc one = { .flags = DP_OP_ALL | DP_OP_SIGNALED };
	struct dp_op_desc cut = { .flags = DP_OP_BULK | DP_OP_PLAIN | DP_OP_SIGNALED, .remote = { 0, 8192 }, .part = part };
	struct dp_order o;
	uint64_t pos;

	ck_assert_int_eq(dp_order_init(&o, 1, DP_ORDER_STRICT, 4), 0);
	for (int i = 0; i < 22; i++) {
		ck_assert(!dp_order_full(&o));
		dp_order_add(&o, &one);
		dp_order_posted0(&o);
		ck_assert_uint_eq(dp_order_match(&o), (uint64_t)i);
		dp_order_delivered(&o);
	}
	ck_assert_int_eq(dp_order_widen(&o, 2), 0);
	dp_order_bond(&o);
	pos = dp_order_add(&o, &cut);
	ck_assert(dp_order_may_post0(&o));
	dp_order_posted0(&o);
	ck_assert(dp_order_may_posts(&o));
	ck_assert_uint_eq(o.posts, pos);
	dp_order_posteds(&o);
	ck_assert_msg(!dp_order_may_posts(&o), "its sibling part would be posted twice");
	dp_order_fini(&o);
}
END_TEST

/* What conflicts is found among as many WRs as are searched; behind more, all of the rest is waited for. */
START_TEST(test_trace_search)
{
	const enum dp_ordering mode = _i ? DP_ORDER_SIGNAL : DP_ORDER_STRICT;

	for (uint64_t n = DP_ORDER_SEARCH; n <= DP_ORDER_SEARCH + 20; n += 20) {
		const struct dp_part part[2] = { { 0, 50 }, { 50, 50 } };
		struct dp_op_desc d = { .flags = DP_OP_BULK | DP_OP_PLAIN | DP_OP_SIGNALED, .part = part };
		uint64_t rest = n - DP_ORDER_SEARCH, pos;
		struct dp_order o;

		ck_assert_int_eq(dp_order_init(&o, 2, mode, 128), 0);
		dp_order_bond(&o);
		for (uint64_t i = 0; i < n; i++) {
			d.remote = (struct dp_range){ i * 100, i * 100 + 100 };
			pos = dp_order_add(&o, &d);
			dp_order_posted0(&o);
			ck_assert(dp_order_may_posts(&o));
			dp_order_posteds(&o);
			ck_assert_uint_eq(dp_order_op(&o, pos)->full0 | dp_order_op(&o, pos)->fulls, 0);
		}
		/* its first half lies over op 0's second, its second half over op 1's first */
		d.remote = (struct dp_range){ 50, 150 };
		pos = dp_order_add(&o, &d);
		ck_assert_uint_eq(dp_order_rail(&o, pos, 1)->wait0, rest ? rest : 1);
		ck_assert_uint_eq(dp_order_rail(&o, pos, 0)->waits, rest ? rest : 2);
		ck_assert_uint_eq(dp_order_op(&o, pos)->full0, rest ? 2 : 0);
		ck_assert_uint_eq(dp_order_op(&o, pos)->fulls, rest ? 1 : 0);
		dp_order_done(&o, 1, rest ? rest - 1 : 0);
		ck_assert(!dp_order_may_post0(&o));
		dp_order_done(&o, 1, rest ? rest : 1);
		ck_assert(dp_order_may_post0(&o));
		for (uint64_t i = 0; i < (rest ? rest : 2); i++) {
			ck_assert(!dp_order_may_posts(&o));
			dp_order_match(&o);
		}
		ck_assert(dp_order_may_posts(&o));
		dp_order_fini(&o);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("order_traces");
	TCase *tc = tcase_create("traces");

	ref_fail = fail_test;
	tcase_add_test(tc, test_bond_after_long);
	tcase_add_test(tc, test_trace_unsignalled_flag);
	tcase_add_test(tc, test_trace_signalled_flag);
	tcase_add_test(tc, test_trace_weaker_modes);
	tcase_add_test(tc, test_trace_overlap);
	tcase_add_test(tc, test_trace_fence);
	tcase_add_test(tc, test_trace_haste);
	tcase_add_loop_test(tc, test_trace_search, 0, 2);
	tcase_add_test(tc, test_trace_bond);
	tcase_add_test(tc, test_trace_unexpected_completion);
	tcase_add_test(tc, test_trace_given_unasked);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

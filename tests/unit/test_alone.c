// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A signal that goes the short way (alone.c), or bulk (bulk.c), leaves the same behind as one that goes the long way: two
 * QPs get the same requests, one by either, and are compared after each.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "order_short.h"
#include "pair_fake.h"
#include "run.h"

#define STEPS 5000

static void compare(void)
{
	struct dp_order a = q[0]->order, b = q[1]->order;

	for (uint64_t p = a.tail; p < a.next && p < b.next; p++) {
		const struct dp_op *x = dp_order_op(&a, p), *y = dp_order_op(&b, p);
		const struct dp_slot *s = dp_qp_slot(q[0], p), *t = dp_qp_slot(q[1], p);

		/* by the short ways no more is known of one that went than later ones ask for */
		ck_assert(!((x->flags ^ y->flags) & ~(unsigned)(x->whole ? DP_OP_PLAIN : 0)) && x->whole == y->whole);
		for (uint32_t r = 0; r < 2; r++) {
			const struct dp_op_rail *xr = dp_order_rail(&a, p, r), *yr = dp_order_rail(&b, p, r);

			ck_assert(xr->seq == yr->seq);
			ck_assert((x->whole && r) || !memcmp(&xr->remote, &yr->remote, sizeof(xr->remote)));
			ck_assert(!(x->flags & DP_OP_READ) || !memcmp(&xr->local, &yr->local, sizeof(xr->local)));
		}
		ck_assert(s->wr_id == t->wr_id && s->byte_len == t->byte_len && s->opcode == t->opcode);
		ck_assert(!s->qwr == !t->qwr);
	}
	a.open = b.open;
	a.roomy = b.roomy;
	a.op = b.op = NULL;
	a.rail = b.rail = NULL;
	ck_assert_mem_eq(&a, &b, sizeof(a));
	ck_assert_mem_eq(&got[0], &got[1], sizeof(got[0]));
	ck_assert_mem_eq(&got_sge[0], &got_sge[1], sizeof(got_sge[0]));
	ck_assert_uint_eq(ngot[0], ngot[1]);
	ck_assert_uint_eq(q[0]->busy, q[1]->busy);
}

/*
 * Refused: the long way entered it and took it back, which leaves its hulls larger, whole ops passed over, and written down
 * what it would have written.
 */
static void forget_refused(void)
{
	struct dp_order *a = &q[0]->order, *b = &q[1]->order;

	for (uint32_t r = 0; r < 2; r++) {
		const struct dp_range *x = &a->hull[r], *y = &b->hull[r], *lx = &a->lhull[r], *ly = &b->lhull[r];

		ck_assert(x->lo == x->hi || (y->lo <= x->lo && y->hi >= x->hi));
		ck_assert(lx->lo == lx->hi || (ly->lo <= lx->lo && ly->hi >= lx->hi));
		b->hull[r] = *x;
		b->lhull[r] = *lx;
	}
	for (unsigned i = 0; i < 2; i++) {
		struct dp_order *o = &q[i]->order;

		while (o->posts < o->next && dp_order_op(o, o->posts)->whole)
			o->posts++;
	}
	ck_assert(q[1]->rail[1].ndirty - q[0]->rail[1].ndirty <= 1);
	q[1]->rail[1].ndirty = q[0]->rail[1].ndirty;
	memcpy(q[1]->rail[1].dirty, q[0]->rail[1].dirty, sizeof(q[1]->rail[1].dirty));
}

static void post_both(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad[2] = { NULL, NULL };
	int ret = dp_post_send(q[0]->qp, wr, &bad[0]);

	ck_assert_int_eq(dp_post_tracked(q[1], wr, &bad[1], false), ret);
	ck_assert_ptr_eq(bad[0], bad[1]);
	if (ret)
		forget_refused();
	compare();
}

static void complete_both(uint64_t wr_id)
{
	for (unsigned i = 0; i < 2; i++) {
		struct ibv_wc wc;

		cqe = (struct ibv_wc){ .wr_id = wr_id, .qp_num = qp[i].qp_num };
		have_cqe = true;
		ck_assert_int_eq(dp_poll_cq(cq->cq, 1, &wc), 1);
		ck_assert(wc.wr_id == wr_id && wc.qp_num == qp[i].qp_num);
	}
	compare();
}

START_TEST(as_the_long_way)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
						  IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	static uint8_t mem[4096];
	uint64_t next = 0, done = 0;

	srand(1);
	for (int step = 0; step < STEPS; step++) {
		struct ibv_sge s = { (uintptr_t)mem, (uint32_t)rand() % 5 ? (uint32_t)rand() % 64 : 0, 7 };
		struct ibv_send_wr wr = { .wr_id = next, .sg_list = &s, .num_sge = rand() % 8 != 0,
					  .opcode = ops[(size_t)rand() % (sizeof(ops) / sizeof(ops[0]))] };
		bool posted;

		if (next - done == DEPTH || (next > done && rand() % 2)) {
			complete_both(done++);
			continue;
		}
		wr.send_flags = IBV_SEND_SIGNALED | (rand() % 4 ? 0 : IBV_SEND_FENCE);
		if (wr.opcode == IBV_WR_RDMA_WRITE && rand() % 2)
			wr.send_flags |= IBV_SEND_INLINE;
		if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			s.length = 8;
			wr.wr.atomic.remote_addr = (uint64_t)rand() * 8;
		} else {
			wr.wr.rdma.remote_addr = (uint64_t)rand();
		}
		refuse = rand() % 10 == 0;
		posted = !refuse;
		post_both(&wr);
		next += posted;
		ck_assert_uint_eq(q[0]->order.next, next);
		ck_assert_uint_eq(ngot[0], next);
	}
	ck_assert_uint_ge(next, STEPS / 4);
}
END_TEST

/* While a sibling has something outstanding, a signal is queued by either way. */
START_TEST(waits)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };

	for (unsigned i = 0; i < 2; i++)
		q[i]->order.planned[1] = 1;
	post_both(&wr);
	ck_assert_uint_eq(ngot[0], 0);
	ck_assert_ptr_nonnull(dp_qp_slot(q[0], 0)->qwr);
}
END_TEST

/* A number of SGEs that the list does not have: the provider's to refuse, and the list is not looked at. */
START_TEST(wrong_lists)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .num_sge = -1 };

	refuse = true;
	post_both(&wr);
	wr.num_sge = 1000;
	post_both(&wr);
	ck_assert_uint_eq(q[0]->order.next, 0);
}
END_TEST

static struct ibv_sge none; /* empty; what it stands in is not looked at by the short way */

/* wr: list[0..n), each of one SGE. */
static void bulk_both(struct ibv_send_wr *list, int n)
{
	struct ibv_sge two[4][2];
	struct ibv_send_wr longer[4], *bad[2] = { NULL, NULL };
	int ret;

	for (int k = 0; k < n; k++) {
		list[k].next = k + 1 < n ? &list[k + 1] : NULL;
		longer[k] = list[k];
		longer[k].next = k + 1 < n ? &longer[k + 1] : NULL;
		two[k][0] = list[k].sg_list[0];
		two[k][1] = none;
		longer[k].sg_list = two[k];
		longer[k].num_sge = 2;
	}
	ret = n == 1 ? dp_post_send(q[0]->qp, list, &bad[0]) : dp_post_tracked(q[0], list, &bad[0], false);
	ck_assert_int_eq(dp_post_tracked(q[1], longer, &bad[1], false), ret);
	if (ret) {
		ck_assert_int_eq(bad[0] - list, bad[1] - longer);
		forget_refused();
	}
}

static void compare_bulk(void)
{
	for (unsigned r = 0; r < 2; r++) {
		ck_assert_uint_eq(sent_hash[0][r], sent_hash[1][r]);
		ck_assert_uint_eq(nsent[0][r], nsent[1][r]);
		ck_assert_uint_eq(q[0]->rail[r].posted, q[1]->rail[r].posted);
		ck_assert_uint_eq(q[0]->rail[r].ndirty, q[1]->rail[r].ndirty);
		ck_assert_mem_eq(q[0]->rail[r].dirty, q[1]->rail[r].dirty, sizeof(q[0]->rail[r].dirty));
	}
	compare();
}

/* What its rails have acknowledged: a random number of what was posted. */
static void acknowledge(void)
{
	uint64_t to = q[0]->rail[1].posted, rail = (uint64_t)rand() % 2, some = (uint64_t)rand();

	for (unsigned i = 0; i < 2; i++) {
		struct dp_order *o = &q[i]->order;

		if (rail && to > o->done[1])
			dp_order_done(o, 1, o->done[1] + 1 + some % (to - o->done[1]));
		else if (!rail)
			dp_order_match(o);
		while (dp_order_deliverable(o) != UINT64_MAX)
			dp_order_delivered(o);
		ck_assert_int_eq(dp_qp_release(q[i]), DP_RELEASED);
		dp_qp_update_busy(q[i]);
	}
}

START_TEST(bulk_as_the_long_way)
{
	static uint8_t mem[1 << 18];
	uint64_t splits = 0, whole = 0;

	pair_bulk(modes[_i]);
	srand((unsigned)_i + 1);
	for (int step = 0; step < STEPS; step++) {
		struct ibv_send_wr wr[3];
		struct ibv_sge s[3];
		int n = rand() % 3 ? 1 : 1 + rand() % 3;

		if (rand() % 2 || q[0]->order.next - q[0]->order.tail > DEPTH) {
			for (int k = rand() % 6; k >= 0; k--)
				acknowledge();
			compare_bulk();
			continue;
		}
		for (int k = 0; k < n; k++) {
			/* half of them where nothing else is */
			uint64_t own = rand() % 2 ? (uint64_t)(step * 4 + k) << 20 : 0;
			uint64_t at = own + (uint64_t)(rand() % 40) * 2048;

			s[k] = (struct ibv_sge){ (uintptr_t)mem + at, rand() % 4 ? 4096u << rand() % 3 : 8, 7 };
			wr[k] = (struct ibv_send_wr){
				.wr_id = (uint64_t)step * 4 + (uint64_t)k, .sg_list = &s[k], .num_sge = 1,
				.opcode = rand() % 3 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
				/* or nothing will ever tell of them */
				.send_flags = rand() % 3 || q[0]->order.next - q[0]->order.last_signaled > 4 ?
						      IBV_SEND_SIGNALED : 0,
				/* no other key: its first use asks the owner */
				.wr.rdma = { 0x10000 + own + (uint64_t)(rand() % 60) * 2048, 9 },
			};
			if (rand() % 10 == 0)
				wr[k].send_flags |= IBV_SEND_FENCE;
		}
		refuse = rand() % 10 == 0;
		bulk_both(wr, n);
		refuse = false;
		compare_bulk();
		if (q[0]->order.next > q[0]->order.tail)
			*(dp_order_op(&q[0]->order, q[0]->order.next - 1)->whole ? &whole : &splits) += 1;
	}
	/* all of it was seen */
	ck_assert_uint_gt(nsent[0][1], STEPS / 20);
	ck_assert_uint_gt(splits, STEPS / 20);
	ck_assert_uint_gt(whole, 0);
}
END_TEST

/* What goes the short way, and what does not. */
START_TEST(bulk_short)
{
	struct ibv_sge s = { 0x1000, 16384, 7 };
	struct ibv_send_wr wr = { .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { 0x10000, 9 } };

	pair_bulk(modes[_i]);
	s.lkey = 8;
	ck_assert(!dp_bulk_add(q[0], &wr));
	s.lkey = 7;
	s.length = 8191;
	ck_assert(!dp_bulk_add(q[0], &wr));
	s.length = 16384;
	wr.send_flags = IBV_SEND_FENCE;
	ck_assert(!dp_bulk_add(q[0], &wr));
	wr.send_flags = 0;
	q[0]->order.flush = 2;
	dp_order_shut(&q[0]->order); /* as dp_flush_setup() does */
	ck_assert(!dp_bulk_add(q[0], &wr));
	q[0]->order.flush = 0;
	ck_assert_uint_eq(q[0]->order.next, 0);
	ck_assert(dp_bulk_add(q[0], &wr) == (modes[_i] != DP_ORDER_RC));
	if (modes[_i] == DP_ORDER_RC)
		return;
	/* equal places never wait; half a place further a part lands where another rail's does */
	ck_assert(dp_bulk_add(q[0], &wr));
	wr.wr.rdma.remote_addr += 8192;
	ck_assert(dp_bulk_add(q[0], &wr) == (modes[_i] == DP_ORDER_RELAXED));
	wr.wr.rdma.remote_addr += 16384;
	dp_order_add_lone(&q[0]->order, 0, 0, 0);
	ck_assert(dp_bulk_add(q[0], &wr) == (modes[_i] != DP_ORDER_STRICT));
}
END_TEST

/* What is no range of memory goes the long way, which says so; the order machine would take it for nothing. */
START_TEST(beyond_the_last_address)
{
	struct ibv_sge s = { 0x1000, 16384, 7 };
	struct ibv_send_wr wr = { .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { UINT64_MAX - 16383, 9 } };

	pair_bulk(DP_ORDER_SIGNAL);
	wr.wr.rdma.remote_addr += 1;
	ck_assert(!dp_bulk_add(q[0], &wr));
	ck_assert_uint_eq(q[0]->order.next, 0);
	wr.wr.rdma.remote_addr -= 4096;
	ck_assert(dp_bulk_add(q[0], &wr));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("alone");
	TCase *t = tcase_create("alone");

	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, pair_setup, NULL);
	tcase_add_test(t, as_the_long_way);
	tcase_add_test(t, waits);
	tcase_add_test(t, wrong_lists);
	tcase_add_loop_test(t, bulk_as_the_long_way, 0, 4);
	tcase_add_loop_test(t, bulk_short, 0, 4);
	tcase_add_test(t, beyond_the_last_address);
	suite_add_tcase(s, t);
	return run_suite(s);
}

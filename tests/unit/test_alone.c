// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A signal that goes the short way (alone.c) leaves the same behind as one that goes the long way: two QPs get the same
 * requests, one by either, and are compared after each.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "provider_fake.h"

#define DEPTH 16
#define STEPS 5000

static struct verbs_context program;
static struct dp_cq *cq;
static struct ibv_qp qp[2];
static struct dp_qp *q[2];
static struct ibv_send_wr got[2]; /* what the provider got last, and how many */
static struct ibv_sge got_sge[2];
static unsigned ngot[2];
static bool refuse;
static struct ibv_wc cqe; /* the next completion, if there is one */
static bool have_cqe;

static int f_post(struct ibv_qp *p, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	unsigned i = p == &qp[1];

	ck_assert_ptr_null(wr->next);
	if (refuse) {
		*bad = wr;
		return ENOMEM;
	}
	got[i] = *wr;
	got_sge[i] = wr->num_sge ? wr->sg_list[0] : (struct ibv_sge){ 0 };
	got[i].sg_list = NULL;
	ngot[i]++;
	return 0;
}

static int f_poll(struct ibv_cq *c, int n, struct ibv_wc *wc)
{
	(void)c;
	if (!have_cqe || n < 1)
		return 0;
	*wc = cqe;
	have_cqe = false;
	return 1;
}

static const struct dp_verbs real = {
	.query_device = fake_query_device,
	.get_device_name = fake_device_name,
	.create_cq = fake_create_cq,
};

static struct dp_qp *bonded(unsigned i)
{
	struct dp_qp *p;

	qp[i] = (struct ibv_qp){ .context = &program.context, .qp_num = 0x11 + i };
	p = fake_qp(&qp[i], cq, (struct ibv_qp_cap){ .max_send_wr = DEPTH, .max_send_sge = 2, .max_inline_data = 64 });
	p->post_send = f_post;
	ck_assert_int_eq(dp_qp_track(p), 0);
	p->nrails = 2;
	p->rail = calloc(2, sizeof(*p->rail));
	for (uint32_t r = 0; r < 2; r++) {
		p->rail[r].q = p;
		p->rail[r].idx = r;
		p->rail[r].flow = dp_flow_get(r ? "fake1:1" : "fake0:1", "peer");
		p->rail[r].chain.sge = calloc(DP_BATCH * 2, sizeof(struct ibv_sge));
	}
	ck_assert_int_eq(dp_order_widen(&p->order, 2), 0);
	dp_order_bond(&p->order);
	atomic_store(&p->state, DP_QP_BONDED);
	return p;
}

static void setup(void)
{
	struct dp_ctx *c;

	fake_begin(&real, &program);
	dp_cfg.spread_min = dp_cfg.split_min = 8192;
	ngot[0] = ngot[1] = 0;
	refuse = have_cqe = false;
	program.context.ops.post_send = f_post;
	program.context.ops.poll_cq = f_poll;
	c = dp_ctx_get(&program.context);
	ck_assert_ptr_nonnull(c);
	cq = dp_cq_find(dp_create_cq(&program.context, 2 * DEPTH, NULL, NULL, 0));
	ck_assert_ptr_nonnull(cq);
	for (unsigned i = 0; i < 2; i++)
		q[i] = bonded(i);
}

static void compare(void)
{
	struct dp_order a = q[0]->order, b = q[1]->order;

	for (uint64_t p = a.tail; p < a.next && p < b.next; p++) {
		const struct dp_op *x = dp_order_op(&a, p), *y = dp_order_op(&b, p);
		const struct dp_slot *s = dp_qp_slot(q[0], p), *t = dp_qp_slot(q[1], p);

		ck_assert_uint_eq(x->flags, y->flags);
		ck_assert(x->whole == y->whole && x->behind == y->behind);
		ck_assert_mem_eq(&x->before, &y->before, sizeof(x->before));
		ck_assert_mem_eq(dp_order_rail(&a, p, 0), dp_order_rail(&b, p, 0), 2 * sizeof(struct dp_op_rail));
		ck_assert(s->wr_id == t->wr_id && s->byte_len == t->byte_len && s->opcode == t->opcode);
		ck_assert(!s->qwr == !t->qwr);
	}
	a.op = b.op = NULL;
	a.rail = b.rail = NULL;
	ck_assert_mem_eq(&a, &b, sizeof(a));
	ck_assert_mem_eq(&got[0], &got[1], sizeof(got[0]));
	ck_assert_mem_eq(&got_sge[0], &got_sge[1], sizeof(got_sge[0]));
	ck_assert_uint_eq(ngot[0], ngot[1]);
	ck_assert_uint_eq(q[0]->busy, q[1]->busy);
}

static void post_both(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad[2] = { NULL, NULL };
	int ret = dp_post_one(q[0], wr, &bad[0], false);

	ck_assert_int_eq(dp_post_tracked(q[1], wr, &bad[1], false), ret);
	ck_assert_ptr_eq(bad[0], bad[1]);
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

int main(void)
{
	Suite *s = suite_create("alone");
	TCase *t = tcase_create("alone");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, setup, NULL);
	tcase_add_test(t, as_the_long_way);
	tcase_add_test(t, waits);
	tcase_add_test(t, wrong_lists);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}

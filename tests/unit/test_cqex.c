// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * ibv_cq_ex over a provider of this file's own: what of held completions is given later, and what touches the
 * program's fields.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "provider_fake.h"
#include "run.h"

#define MANY 16
#define QPN 0x11

/* ---- the provider: completions with time stamps, no byte_len was asked for */

static struct verbs_context program;
static struct ibv_cq_ex ex;
static struct { uint64_t wr_id, ts; enum ibv_wc_status status; enum ibv_wc_opcode opcode; uint32_t qpn; } cqe[MANY];
static int ncqe, taken, now = -1, start_err;
static bool polling;
static uint64_t asked_flags;

/* The progress thread may read while a test pushes. */
static pthread_mutex_t cqe_lock = PTHREAD_MUTEX_INITIALIZER;

static void push_status(enum ibv_wc_status status, uint64_t wr_id, uint64_t ts, enum ibv_wc_opcode opcode, uint32_t qpn)
{
	pthread_mutex_lock(&cqe_lock);
	cqe[ncqe].wr_id = wr_id;
	cqe[ncqe].ts = ts;
	cqe[ncqe].status = status;
	cqe[ncqe].opcode = opcode;
	cqe[ncqe++].qpn = qpn;
	pthread_mutex_unlock(&cqe_lock);
}

static void push(uint64_t wr_id, uint64_t ts, enum ibv_wc_opcode opcode, uint32_t qpn)
{
	push_status(IBV_WC_SUCCESS, wr_id, ts, opcode, qpn);
}

static int p_next(struct ibv_cq_ex *e)
{
	int ret = ENOENT;

	pthread_mutex_lock(&cqe_lock);
	if (taken < ncqe) {
		now = taken++;
		e->wr_id = cqe[now].wr_id;
		e->status = cqe[now].status;
		ret = 0;
	}
	pthread_mutex_unlock(&cqe_lock);
	return ret;
}

static int p_start(struct ibv_cq_ex *e, struct ibv_poll_cq_attr *attr)
{
	int ret = attr->comp_mask ? EINVAL : start_err ? start_err : p_next(e);

	ck_assert(!polling);
	polling = !ret;
	return ret;
}

static void p_end(struct ibv_cq_ex *e)
{
	(void)e;
	ck_assert(polling);
	polling = false;
}

static enum ibv_wc_opcode p_opcode(struct ibv_cq_ex *e)
{
	(void)e;
	return cqe[now].opcode;
}

static uint32_t p_vendor_err(struct ibv_cq_ex *e)
{
	(void)e;
	return 5;
}

static unsigned int p_wc_flags(struct ibv_cq_ex *e)
{
	(void)e;
	return 0;
}

static uint32_t p_qp_num(struct ibv_cq_ex *e)
{
	(void)e;
	return cqe[now].qpn;
}

static uint64_t p_ts(struct ibv_cq_ex *e)
{
	(void)e;
	return cqe[now].ts;
}

static struct ibv_cq_ex *p_create_cq_ex(struct ibv_context *ctx, struct ibv_cq_init_attr_ex *attr)
{
	asked_flags = attr->wc_flags;
	ex = (struct ibv_cq_ex){
		.context = ctx,
		.start_poll = p_start,
		.next_poll = p_next,
		.end_poll = p_end,
		.read_opcode = p_opcode,
		.read_vendor_err = p_vendor_err,
		.read_wc_flags = p_wc_flags,
		.read_qp_num = p_qp_num,
		.read_completion_ts = p_ts,
	};
	return &ex;
}

static int p_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	(void)cq;
	(void)n;
	(void)wc;
	ck_abort_msg("time stamps would be lost");
	return 0;
}

static int p_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp;
	(void)attr;
	(void)mask;
	return 0;
}

static const struct dp_verbs real = {
	.query_device = fake_query_device,
	.get_device_name = fake_device_name,
	.modify_qp = p_modify_qp,
};

/* ---- a bonded QP that sends into it */

static struct dp_cq *cq;
static struct dp_qp *q;

static void setup(void)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 16, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP };
	static struct ibv_qp qp;

	fake_begin(&real, &program);
	program.context.ops.poll_cq = p_poll;
	program.create_cq_ex = p_create_cq_ex;
	ck_assert_ptr_nonnull(dp_ctx_get(&program.context));
	ck_assert_ptr_eq(ibv_create_cq_ex(&program.context, &attr), &ex);
	/* whose a completion is has to be known */
	ck_assert_uint_eq(asked_flags, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_QP_NUM);
	cq = dp_cq_find(ibv_cq_ex_to_cq(&ex));
	ck_assert_ptr_nonnull(cq);
	ck_assert(!dp_cqex_single(cq));
	ck_assert_ptr_eq(ex.start_poll, p_start);
	qp = (struct ibv_qp){ .context = &program.context, .qp_num = QPN };
	q = fake_qp(&qp, cq, (struct ibv_qp_cap){ .max_send_wr = 16, .max_send_sge = 2 });
	ck_assert_int_eq(dp_qp_track(q), 0);
	ck_assert_ptr_ne(ex.start_poll, p_start);
	fake_bond(q);
}

/* A WRITE of which half went to the sibling: nothing else is posted. */
static uint64_t split(uint64_t wr_id)
{
	const struct dp_part part[2] = { { .offset = 0, .len = 4096 }, { .offset = 4096, .len = 4096 } };
	struct dp_op_desc d = { .flags = DP_OP_BULK | DP_OP_PLAIN | DP_OP_SIGNALED, .remote = { 0, 8192 }, .part = part };
	uint64_t pos;

	dp_take(&q->lock);
	pos = dp_order_add(&q->order, &d);
	*dp_qp_slot(q, pos) = (struct dp_slot){ .wr_id = wr_id };
	ck_assert(dp_order_may_post0(&q->order) && dp_order_may_posts(&q->order));
	dp_order_posted0(&q->order);
	dp_order_posteds(&q->order);
	dp_drop(&q->lock);
	return dp_order_rail(&q->order, pos, 1)->seq;
}

static void sibling_done(uint64_t seq)
{
	dp_take(&cq->lock);
	dp_take(&q->lock);
	dp_order_done(&q->order, 1, seq);
	dp_cq_ready(cq, q);
	dp_drop(&q->lock);
	dp_drop(&cq->lock);
}

static void read_ahead(void)
{
	dp_take(&cq->lock);
	dp_cq_progress(cq, true);
	dp_drop(&cq->lock);
}

static int start(void)
{
	struct ibv_poll_cq_attr attr = { 0 };

	return ibv_start_poll(&ex, &attr);
}

static void is(uint64_t wr_id, uint64_t ts)
{
	ck_assert_uint_eq(ex.wr_id, wr_id);
	ck_assert_int_eq(ex.status, IBV_WC_SUCCESS);
	ck_assert_uint_eq(ibv_wc_read_completion_ts(&ex), ts);
	ck_assert_uint_eq(ibv_wc_read_qp_num(&ex), QPN);
}

/* ---- */

START_TEST(held_ones_keep_their_time)
{
	uint64_t a = split(1), b = split(2);

	push(1, 100, IBV_WC_RDMA_WRITE, QPN);
	push(2, 200, IBV_WC_RDMA_WRITE, QPN);
	push(9, 300, IBV_WC_RECV, 0x99);
	/* another's passes them */
	ck_assert_int_eq(start(), 0);
	ck_assert_uint_eq(ex.wr_id, 9);
	ck_assert_uint_eq(ibv_wc_read_completion_ts(&ex), 300);
	ck_assert_int_eq(ibv_next_poll(&ex), ENOENT);
	ibv_end_poll(&ex);
	ck_assert_int_eq(start(), ENOENT);
	sibling_done(b > a ? b : a);
	ck_assert_int_eq(start(), 0);
	is(1, 100);
	ck_assert_int_eq(ibv_next_poll(&ex), 0);
	is(2, 200);
	ck_assert_int_eq(ibv_next_poll(&ex), ENOENT);
	ibv_end_poll(&ex);
}
END_TEST

START_TEST(reading_ahead_keeps_off_an_open_poll)
{
	uint64_t seq = split(1);

	push(1, 100, IBV_WC_RDMA_WRITE, QPN);
	sibling_done(seq);
	ck_assert_int_eq(start(), 0);
	is(1, 100);
	push(7, 400, IBV_WC_RECV, 0x99);
	/* in the thread that polls: the program's fields stay; this is what bind_mw does */
	dp_take(&cq->lock);
	dp_cq_progress(cq, true);
	ck_assert(cq->stash && !cq->unread);
	dp_drop(&cq->lock);
	is(1, 100);
	/* what was read is given next */
	ck_assert_int_eq(ibv_next_poll(&ex), 0);
	ck_assert_uint_eq(ex.wr_id, 7);
	ck_assert_uint_eq(ibv_wc_read_completion_ts(&ex), 400);
	ibv_end_poll(&ex);
}
END_TEST

static void *look(void *arg)
{
	(void)arg;
	read_ahead();
	return NULL;
}

static void next_is(uint64_t wr_id)
{
	ck_assert_int_eq(start(), 0);
	ck_assert_uint_eq(ex.wr_id, wr_id);
	ibv_end_poll(&ex);
}

/* Nobody's completions wait behind others that came later, however many of these there are. */
static void *go_on_polling(void *arg)
{
	(void)arg;
	is(1, 100);
	ck_assert_int_eq(ibv_next_poll(&ex), 0);
	is(2, 200);
	ibv_end_poll(&ex);
	return NULL;
}

/* The program hands what it has begun to another thread. */
START_TEST(handed_over)
{
	pthread_t t;

	for (int i = 0; i < 2; i++) {
		split(1);
		sibling_done(split(2));
		push(1, 100, IBV_WC_RDMA_WRITE, QPN);
		push(2, 200, IBV_WC_RDMA_WRITE, QPN);
		ck_assert_int_eq(start(), 0);
		ck_assert_int_eq(pthread_create(&t, NULL, go_on_polling, NULL), 0);
		pthread_join(t, NULL);
		ck_assert_int_eq(start(), ENOENT);
	}
}
END_TEST

START_TEST(what_was_read_ahead_keeps_its_turn)
{
	uint64_t seq = split(1);

	push(1, 100, IBV_WC_RDMA_WRITE, QPN);
	read_ahead();
	sibling_done(seq);
	push(7, 200, IBV_WC_RECV, 0x99);
	push(8, 300, IBV_WC_RECV, 0x99);
	read_ahead();
	next_is(1);
	seq = split(2);
	push(2, 400, IBV_WC_RDMA_WRITE, QPN);
	read_ahead();
	sibling_done(seq);
	push(9, 500, IBV_WC_RECV, 0x99);
	read_ahead();
	next_is(7);
	next_is(8);
	next_is(2);
	next_is(9);
	ck_assert_int_eq(start(), ENOENT);
}
END_TEST

/* Sends first and first + 1, each with a receive behind it, all read ahead. */
static void read_two_of_each(uint64_t first, uint64_t recv)
{
	split(first);
	sibling_done(split(first + 1));
	for (uint64_t i = 0; i < 2; i++) {
		push(first + i, 100, IBV_WC_RDMA_WRITE, QPN);
		push(recv + i, 200, IBV_WC_RECV, 0x99);
	}
	read_ahead();
}

/* So do those that one queue pair had held, each between the receives that it came between, one for each poll. */
START_TEST(each_that_was_held_keeps_its_turn)
{
	struct ibv_wc wc[5];

	read_two_of_each(1, 7);
	next_is(1);
	next_is(7);
	next_is(2);
	next_is(8);
	ck_assert_int_eq(start(), ENOENT);
	/* in one that is held open, and in one of several, too */
	read_two_of_each(3, 9);
	ck_assert_int_eq(start(), 0);
	ck_assert_uint_eq(ex.wr_id, 3);
	ck_assert_int_eq(ibv_next_poll(&ex), 0);
	ck_assert_uint_eq(ex.wr_id, 9);
	ck_assert_int_eq(ibv_next_poll(&ex), 0);
	ck_assert_uint_eq(ex.wr_id, 4);
	ck_assert_int_eq(ibv_next_poll(&ex), 0);
	ck_assert_uint_eq(ex.wr_id, 10);
	ck_assert_int_eq(ibv_next_poll(&ex), ENOENT);
	ibv_end_poll(&ex);
	read_two_of_each(5, 11);
	ck_assert_int_eq(ibv_poll_cq(ibv_cq_ex_to_cq(&ex), 5, wc), 4);
	ck_assert(wc[0].wr_id == 5 && wc[1].wr_id == 11 && wc[2].wr_id == 6 && wc[3].wr_id == 12);
}
END_TEST

/* A queue pair that has failed had its turn before a receive of its own that was good: its errors come after that. */
START_TEST(good_receives_come_before_the_flushed)
{
	split(1);
	dp_take(&cq->lock);
	dp_take(&q->lock);
	dp_fail_sibling(q, IBV_WC_RETRY_EXC_ERR, 0);
	ck_assert_int_eq(atomic_load(&q->state), DP_QP_FAILING);
	ck_assert(q->on_ready);
	dp_drop(&q->lock);
	dp_drop(&cq->lock);
	push(6, 100, IBV_WC_RECV, 0x99);
	push(7, 200, IBV_WC_RECV, QPN);
	push_status(IBV_WC_WR_FLUSH_ERR, 8, 300, IBV_WC_RECV, QPN);
	push_status(IBV_WC_WR_FLUSH_ERR, 1, 400, IBV_WC_RDMA_WRITE, QPN);
	read_ahead();
	ck_assert(cq->stash && q->ready_turn < cq->stash->turn);
	push(9, 500, IBV_WC_RECV, 0x99);
	read_ahead();
	next_is(6);
	next_is(7);
	ck_assert_int_eq(start(), 0);
	ck_assert_int_ne(ex.status, IBV_WC_SUCCESS);
	ibv_end_poll(&ex);
	ck_assert_ptr_nonnull(cq->stash);
}
END_TEST

START_TEST(another_thread_does_not_read_meanwhile)
{
	uint64_t seq = split(1);
	pthread_t t;

	push(1, 100, IBV_WC_RDMA_WRITE, QPN);
	sibling_done(seq);
	ck_assert_int_eq(start(), 0);
	push(7, 400, IBV_WC_RECV, 0x99);
	ck_assert_int_eq(pthread_create(&t, NULL, look, NULL), 0);
	pthread_join(t, NULL);
	ck_assert_int_eq(taken, 1);
	is(1, 100);
	ibv_end_poll(&ex);
	ck_assert_int_eq(pthread_create(&t, NULL, look, NULL), 0);
	pthread_join(t, NULL);
	ck_assert_int_eq(taken, 2);
	ck_assert_int_eq(start(), 0);
	ck_assert_uint_eq(ibv_wc_read_completion_ts(&ex), 400);
	ibv_end_poll(&ex);
}
END_TEST

START_TEST(errors_and_plain_polls)
{
	struct ibv_poll_cq_attr attr = { .comp_mask = 1 };
	struct ibv_wc wc[4];

	ck_assert_int_eq(ibv_start_poll(&ex, &attr), EINVAL);
	start_err = EIO;
	ck_assert_int_eq(start(), EIO);
	ck_assert_int_lt(ibv_poll_cq(ibv_cq_ex_to_cq(&ex), 4, wc), 0);
	start_err = 0;
	push(7, 400, IBV_WC_RECV, 0x99);
	push(8, 500, IBV_WC_RECV, 0x99);
	ck_assert_int_eq(ibv_poll_cq(ibv_cq_ex_to_cq(&ex), 4, wc), 2);
	ck_assert(wc[0].wr_id == 7 && wc[1].wr_id == 8 && wc[1].qp_num == 0x99 && wc[1].opcode == IBV_WC_RECV);
	ck_assert_int_eq(start(), ENOENT);
}
END_TEST

START_TEST(without_active_qps_it_is_the_providers)
{
	dp_take(&cq->lock);
	dp_take(&q->lock);
	dp_qp_native(q);
	dp_drop(&q->lock);
	dp_drop(&cq->lock);
	push(1, 100, IBV_WC_RDMA_WRITE, QPN);
	push(2, 200, IBV_WC_RDMA_WRITE, QPN);
	ck_assert_int_eq(start(), 0);
	ck_assert(polling);
	ck_assert_ptr_eq(ex.start_poll, p_start);
	ck_assert_ptr_eq(ex.read_completion_ts, p_ts);
	/* a poll that began with the provider stays there, whatever is installed meanwhile */
	dp_take(&cq->lock);
	dp_cqex_install(cq);
	dp_drop(&cq->lock);
	ck_assert_ptr_ne(ex.next_poll, p_next);
	is(1, 100);
	ck_assert_int_eq(ibv_next_poll(&ex), 0);
	is(2, 200);
	ibv_end_poll(&ex);
	ck_assert(!polling);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cqex");
	TCase *tc = tcase_create("cqex");

	/* every test in a child of its own, so setup() starts from nothing */
	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, held_ones_keep_their_time);
	tcase_add_test(tc, reading_ahead_keeps_off_an_open_poll);
	tcase_add_test(tc, handed_over);
	tcase_add_test(tc, what_was_read_ahead_keeps_its_turn);
	tcase_add_test(tc, each_that_was_held_keeps_its_turn);
	tcase_add_test(tc, good_receives_come_before_the_flushed);
	tcase_add_test(tc, another_thread_does_not_read_meanwhile);
	tcase_add_test(tc, errors_and_plain_polls);
	tcase_add_test(tc, without_active_qps_it_is_the_providers);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

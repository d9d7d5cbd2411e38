// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The extended interfaces: ibv_wr_* and extended completion queues. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "test_end.h"

#define OPS (IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |		\
	     IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |	\
	     IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)

static struct ibv_qp_ex *begin(struct end *e, uint64_t id, unsigned int flags)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(e->qp);

	ck_assert_ptr_nonnull(x);
	ibv_wr_start(x);
	x->wr_id = id;
	x->wr_flags = flags;
	return x;
}

static uint64_t at(const struct end *e, uint32_t off)
{
	return (uintptr_t)e->buf + off;
}

START_TEST(each_operation)
{
	struct end_opts o = { .send_ops = OPS, .inl = 128 };
	struct ibv_data_buf bufs[3];
	struct ibv_sge sge[2];
	struct ibv_qp_ex *x;
	uint64_t *word;
	struct end a, b;
	struct ibv_wc wc;

	pair_open(&a, &b, &o, NULL);
	fill(a.buf, 60000, 1);
	x = begin(&a, 1, 0);
	ibv_wr_rdma_write(x, b.mr->rkey, at(&b, 0));
	ibv_wr_set_sge(x, a.mr->lkey, at(&a, 0), 60000);
	ck_assert_int_eq(ibv_wr_complete(x), 0);
	ck_assert_int_eq(want(&a, 1, IBV_WC_SUCCESS).opcode, IBV_WC_RDMA_WRITE);
	check_filled(b.buf, 60000, 1);

	ck_assert_int_eq(post_rx(&b, 50, 0, 0), 0);
	x = begin(&a, 2, 0);
	ibv_wr_rdma_write_imm(x, b.mr->rkey, at(&b, 100000), 77);
	sge[0] = (struct ibv_sge){ at(&a, 0), 100, a.mr->lkey };
	sge[1] = (struct ibv_sge){ at(&a, 100), 300, a.mr->lkey };
	ibv_wr_set_sge_list(x, 2, sge);
	ck_assert_int_eq(ibv_wr_complete(x), 0);
	want(&a, 2, IBV_WC_SUCCESS);
	wc = want(&b, 50, IBV_WC_SUCCESS);
	ck_assert_int_eq(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	ck_assert_uint_eq(wc.imm_data, 77);
	check_filled(b.buf + 100000, 400, 1);

	/* two at once, with data that belong to the program again before they are posted */
	ck_assert_int_eq(post_rx(&b, 51, 200000, 128), 0);
	ck_assert_int_eq(post_rx(&b, 52, 200128, 128), 0);
	x = begin(&a, 3, 0);
	ibv_wr_send(x);
	fill(a.buf + 500000, 100, 2);
	ibv_wr_set_inline_data(x, a.buf + 500000, 100);
	memset(a.buf + 500000, 0, 100);
	x->wr_id = 4;
	ibv_wr_send_imm(x, 99);
	fill(a.buf + 500000, 120, 3);
	bufs[0] = (struct ibv_data_buf){ a.buf + 500000, 1 };
	bufs[1] = (struct ibv_data_buf){ a.buf + 500001, 0 };
	bufs[2] = (struct ibv_data_buf){ a.buf + 500001, 119 };
	ibv_wr_set_inline_data_list(x, 3, bufs);
	memset(a.buf + 500000, 0, 120);
	ck_assert_int_eq(ibv_wr_complete(x), 0);
	want(&a, 3, IBV_WC_SUCCESS);
	want(&a, 4, IBV_WC_SUCCESS);
	ck_assert_uint_eq(want(&b, 51, IBV_WC_SUCCESS).byte_len, 100);
	ck_assert_uint_eq(want(&b, 52, IBV_WC_SUCCESS).imm_data, 99);
	check_filled(b.buf + 200000, 100, 2);
	check_filled(b.buf + 200128, 120, 3);

	memset(a.buf, 0, LEN);
	x = begin(&a, 5, 0);
	ibv_wr_rdma_read(x, b.mr->rkey, at(&b, 0));
	ibv_wr_set_sge(x, a.mr->lkey, at(&a, 7), 60000);
	ck_assert_int_eq(ibv_wr_complete(x), 0);
	ck_assert_int_eq(want(&a, 5, IBV_WC_SUCCESS).opcode, IBV_WC_RDMA_READ);
	check_filled(a.buf + 7, 60000, 1);

	word = (uint64_t *)(b.buf + 300000);
	*word = 5;
	x = begin(&a, 6, 0);
	ibv_wr_atomic_fetch_add(x, b.mr->rkey, at(&b, 300000), 3);
	ibv_wr_set_sge(x, a.mr->lkey, at(&a, 0), 8);
	x->wr_id = 7;
	ibv_wr_atomic_cmp_swp(x, b.mr->rkey, at(&b, 300000), 8, 40);
	ibv_wr_set_sge(x, a.mr->lkey, at(&a, 8), 8);
	ck_assert_int_eq(ibv_wr_complete(x), 0);
	ck_assert_int_eq(want(&a, 6, IBV_WC_SUCCESS).opcode, IBV_WC_FETCH_ADD);
	ck_assert_int_eq(want(&a, 7, IBV_WC_SUCCESS).opcode, IBV_WC_COMP_SWAP);
	ck_assert_uint_eq(((uint64_t *)a.buf)[0], 5);
	ck_assert_uint_eq(((uint64_t *)a.buf)[1], 8);
	ck_assert_uint_eq(*word, 40);
	pair_close(&a, &b);
}
END_TEST

static void write_8(struct ibv_qp_ex *x, const struct end *a, const struct end *b)
{
	ibv_wr_rdma_write(x, b->mr->rkey, at(b, 0));
	ibv_wr_set_sge(x, a->mr->lkey, at(a, 0), 8);
}

/* All of a batch, or nothing. */
START_TEST(all_or_nothing)
{
	struct end_opts o = { .send_ops = OPS, .sq = 8, .sge = 2, .no_sig_all = 1 };
	struct wr plain = { IBV_WR_RDMA_WRITE, .len = 8, .flags = IBV_SEND_SIGNALED };
	struct ibv_sge sge[3] = { { 0 } };
	struct ibv_qp_ex *x;
	struct end a, b;

	pair_open(&a, &b, &o, NULL);
	a.buf[0] = 1;
	x = begin(&a, 1, IBV_SEND_SIGNALED);
	write_8(x, &a, &b);
	ibv_wr_abort(x);
	want_none(&a, 20);
	/* too many */
	x = begin(&a, 1, IBV_SEND_SIGNALED);
	for (int i = 0; i < 9; i++)
		write_8(x, &a, &b);
	ck_assert_int_eq(ibv_wr_complete(x), ENOMEM);
	/* too much of something, in the middle */
	for (int i = 0; i < 4; i++) {
		x = begin(&a, 1, IBV_SEND_SIGNALED);
		write_8(x, &a, &b);
		if (i < 2)
			ibv_wr_rdma_write(x, b.mr->rkey, at(&b, 0));
		else if (i == 2)
			ibv_wr_rdma_read(x, b.mr->rkey, at(&b, 0));
		else
			ibv_wr_atomic_fetch_add(x, b.mr->rkey, at(&b, 0), 1);
		if (i == 0)
			ibv_wr_set_sge_list(x, 3, sge);
		else
			ibv_wr_set_inline_data(x, a.buf, i == 1 ? 65 : 8);
		write_8(x, &a, &b);
		ck_assert_int_eq(ibv_wr_complete(x), EINVAL);
	}
	want_none(&a, 20);
	ck_assert_uint_eq(b.buf[0], 0);
	/* unsignalled, among those of ibv_post_send, and the same slots */
	for (int round = 0; round < 20; round++) {
		ck_assert_int_eq(post(&a, &b, 10, plain), 0);
		x = begin(&a, 11, 0);
		for (int i = 0; i < 5; i++)
			write_8(x, &a, &b);
		x->wr_flags = IBV_SEND_SIGNALED;
		write_8(x, &a, &b);
		ck_assert_int_eq(ibv_wr_complete(x), 0);
		ck_assert_int_eq(post(&a, &b, 12, plain), 0);
		ck_assert_int_eq(post(&a, &b, 13, plain), ENOMEM);
		x = begin(&a, 11, 0);
		write_8(x, &a, &b);
		ck_assert_int_eq(ibv_wr_complete(x), ENOMEM);
		want(&a, 10, IBV_WC_SUCCESS);
		want(&a, 11, IBV_WC_SUCCESS);
		want(&a, 12, IBV_WC_SUCCESS);
	}
	ck_assert_uint_eq(b.buf[0], 1);
	/* states */
	ck_assert_int_eq(to_state(a.qp, IBV_QPS_ERR), 0);
	x = begin(&a, 20, 0);
	write_8(x, &a, &b);
	ck_assert_int_eq(ibv_wr_complete(x), 0);
	want(&a, 20, IBV_WC_WR_FLUSH_ERR);
	ck_assert_int_eq(to_state(a.qp, IBV_QPS_RESET), 0);
	x = begin(&a, 21, 0);
	write_8(x, &a, &b);
	ck_assert_int_eq(ibv_wr_complete(x), EINVAL);
	pair_close(&a, &b);
}
END_TEST

START_TEST(what_is_offered)
{
	struct ibv_qp_init_attr_ex init = { .cap = { 8, 8, 1, 1, 0 }, .comp_mask = IBV_QP_INIT_ATTR_PD |
					    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS };
	static const struct { enum ibv_qp_type type; uint64_t not; } wrong[] = {
		{ IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ }, { IBV_QPT_UC, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD },
		{ IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE }, { IBV_QPT_UD, IBV_QP_EX_WITH_BIND_MW },
		{ IBV_QPT_RC, IBV_QP_EX_WITH_TSO }, { IBV_QPT_RC, IBV_QP_EX_WITH_ATOMIC_WRITE },
		{ IBV_QPT_RAW_PACKET, IBV_QP_EX_WITH_SEND }, { IBV_QPT_XRC_SEND, IBV_QP_EX_WITH_TSO },
	};
	struct end a;
	struct ibv_qp *qp;

	end_open(&a, 0, NULL);
	ck_assert_ptr_null(ibv_qp_to_qp_ex(a.qp));
	init.pd = a.pd;
	init.send_cq = init.recv_cq = a.cq;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		init.qp_type = wrong[i].type;
		init.send_ops_flags = wrong[i].not;
		errno = 0;
		ck_assert_ptr_null(ibv_create_qp_ex(a.ctx, &init));
		ck_assert_int_eq(errno, EOPNOTSUPP);
	}
	init.qp_type = IBV_QPT_RC;
	init.send_ops_flags = IBV_QP_EX_WITH_SEND;
	qp = ibv_create_qp_ex(a.ctx, &init);
	ck_assert_ptr_nonnull(qp);
	ck_assert_ptr_nonnull(ibv_qp_to_qp_ex(qp)->wr_send);
	ck_assert_ptr_null(ibv_qp_to_qp_ex(qp)->wr_rdma_write);
	ck_assert_int_eq(ibv_destroy_qp(qp), 0);
	end_close(&a);
}
END_TEST

/* ---- completion queues ---- */

static uint64_t clock_ns(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void start_poll(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = { 0 };
	uint64_t end = clock_ns(CLOCK_MONOTONIC) + 20000000000u;
	int ret;

	while ((ret = ibv_start_poll(cq, &attr)) == ENOENT)
		ck_assert_uint_lt(clock_ns(CLOCK_MONOTONIC), end);
	ck_assert_int_eq(ret, 0);
}

START_TEST(extended_poll)
{
	struct end_opts o = { .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
					  IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
			      .cq_flags = _i ? IBV_CREATE_CQ_ATTR_SINGLE_THREADED : 0 };
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	uint64_t before, wall, raw;
	struct ibv_cq_ex *cq;
	struct end a, b;

	pair_open(&a, &b, &o, NULL);
	cq = (struct ibv_cq_ex *)b.cq;
	ck_assert_int_eq(ibv_start_poll(cq, &attr), ENOENT);
	ck_assert_int_eq(ibv_start_poll(cq, &attr), ENOENT);
	before = clock_ns(CLOCK_MONOTONIC);
	wall = clock_ns(CLOCK_REALTIME);
	ck_assert_int_eq(post_rx(&b, 50, 0, 100), 0);
	ck_assert_int_eq(post_rx(&b, 51, 0, 100), 0);
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_SEND_WITH_IMM, .len = 9, .arg = 12 }), 0);
	ck_assert_int_eq(post(&a, &b, 2, (struct wr){ IBV_WR_SEND, .len = 10 }), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	want(&a, 2, IBV_WC_SUCCESS);

	start_poll(cq);
	ck_assert_uint_eq(cq->wr_id, 50);
	ck_assert_int_eq(cq->status, IBV_WC_SUCCESS);
	ck_assert_int_eq(ibv_wc_read_opcode(cq), IBV_WC_RECV);
	ck_assert_uint_eq(ibv_wc_read_byte_len(cq), 9);
	ck_assert_uint_eq(ibv_wc_read_wc_flags(cq), IBV_WC_WITH_IMM);
	ck_assert_uint_eq(ibv_wc_read_imm_data(cq), 12);
	ck_assert_uint_eq(ibv_wc_read_qp_num(cq), b.qp->qp_num);
	ck_assert_uint_eq(ibv_wc_read_src_qp(cq), a.qp->qp_num);
	ck_assert_uint_eq(ibv_wc_read_slid(cq), a.lid);
	ck_assert_uint_eq(ibv_wc_read_vendor_err(cq), 0);
	ck_assert_uint_ge(ibv_wc_read_completion_ts(cq), before);
	ck_assert_uint_ge(ibv_wc_read_completion_wallclock_ns(cq), wall);
	ck_assert_int_eq(ibv_query_rt_values_ex(a.ctx, &values), 0);
	raw = (uint64_t)values.raw_clock.tv_sec * 1000000000u + (uint64_t)values.raw_clock.tv_nsec;
	ck_assert_uint_le(ibv_wc_read_completion_ts(cq), raw);
	before = ibv_wc_read_completion_ts(cq);
	ck_assert_int_eq(ibv_next_poll(cq), 0);
	ck_assert_uint_eq(cq->wr_id, 51);
	ck_assert_uint_eq(ibv_wc_read_byte_len(cq), 10);
	ck_assert_uint_ge(ibv_wc_read_completion_ts(cq), before);
	ck_assert_int_eq(ibv_next_poll(cq), ENOENT);
	ibv_end_poll(cq);

	/* the plain poll works on it, too */
	ck_assert_int_eq(post(&b, &a, 3, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	want(&b, 3, IBV_WC_SUCCESS);
	ck_assert_int_eq(ibv_start_poll(cq, &attr), ENOENT);
	attr.comp_mask = 1;
	ck_assert_int_eq(ibv_start_poll(cq, &attr), EINVAL);
	pair_close(&a, &b);
}
END_TEST

/* Room that completions take is free when the poll ends; slots of the queues already when they are taken. */
START_TEST(room_after_end_poll)
{
	struct end_opts o = { .wc_flags = IBV_WC_EX_WITH_BYTE_LEN, .cqe = 8, .sq = 4 };
	struct wr w = { IBV_WR_RDMA_WRITE, .len = 8 };
	struct ibv_cq_ex *cq;
	struct end a, b;

	pair_open(&a, &b, &o, NULL);
	cq = (struct ibv_cq_ex *)a.cq;
	ck_assert_ptr_null(cq->read_imm_data);
	for (int round = 0; round < 5; round++) {
		for (uint64_t i = 0; i < 4; i++)
			ck_assert_int_eq(post(&a, &b, i, w), 0);
		ck_assert_int_eq(post(&a, &b, 4, w), ENOMEM);
		start_poll(cq);
		for (uint64_t i = 1; i < 4; i++)
			while (ibv_next_poll(cq))
				;
		/* the CQ still holds four, so four more are its limit */
		for (uint64_t i = 0; i < 4; i++)
			ck_assert_int_eq(post(&a, &b, 10 + i, w), 0);
		for (uint64_t i = 0; i < 4; i++) {
			while (ibv_next_poll(cq))
				;
			ck_assert_uint_eq(cq->wr_id, 10 + i);
		}
		ibv_end_poll(cq);
	}
	pair_close(&a, &b);
}
END_TEST

/* So with the four that are held, one more is too many. */
START_TEST(held_until_end_poll)
{
	struct end_opts o = { .wc_flags = IBV_WC_EX_WITH_BYTE_LEN, .cqe = 4, .sq = 8 };
	struct wr w = { IBV_WR_RDMA_WRITE, .len = 8 };
	struct ibv_async_event ev;
	struct ibv_cq_ex *cq;
	struct end a, b;

	pair_open(&a, &b, &o, NULL);
	cq = (struct ibv_cq_ex *)a.cq;
	for (uint64_t i = 0; i < 4; i++)
		ck_assert_int_eq(post(&a, &b, i, w), 0);
	start_poll(cq);
	for (uint64_t i = 1; i < 4; i++)
		while (ibv_next_poll(cq))
			;
	ck_assert_int_eq(post(&a, &b, 4, w), 0);
	ck_assert_int_eq(ibv_get_async_event(a.ctx, &ev), 0);
	ck_assert_int_eq(ev.event_type, IBV_EVENT_CQ_ERR);
	ck_assert_ptr_eq(ev.element.cq, a.cq);
	ibv_ack_async_event(&ev);
	ibv_end_poll(cq);
	pair_close(&a, &b);
}
END_TEST

START_TEST(extended_create)
{
	static const uint64_t not_offered[] = { IBV_WC_EX_WITH_CVLAN, IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_TM_INFO,
						1ull << 40 };
	struct ibv_modify_cq_attr mod = { IBV_CQ_ATTR_MODERATE, { 4, 10 } };
	struct ibv_cq_init_attr_ex attr = { .cqe = 10 };
	struct ibv_context *ctx = open_dev(0);
	struct ibv_cq_ex *cq;

	for (size_t i = 0; i < sizeof(not_offered) / sizeof(not_offered[0]); i++) {
		attr.wc_flags = not_offered[i];
		ck_assert_ptr_null(ibv_create_cq_ex(ctx, &attr));
		ck_assert_int_eq(errno, EOPNOTSUPP);
	}
	attr.wc_flags = 0;
	attr.cqe = 0;
	ck_assert_ptr_null(ibv_create_cq_ex(ctx, &attr));
	ck_assert_int_eq(errno, EINVAL);
	attr.cqe = 10;
	attr.comp_vector = 1000;
	ck_assert_ptr_null(ibv_create_cq_ex(ctx, &attr));
	attr.comp_vector = 0;
	cq = ibv_create_cq_ex(ctx, &attr);
	ck_assert_ptr_nonnull(cq);
	ck_assert_int_eq(cq->cqe, 10);
	ck_assert_int_eq(ibv_modify_cq(ibv_cq_ex_to_cq(cq), &mod), 0);
	mod.attr_mask = 2;
	ck_assert_int_eq(ibv_modify_cq(ibv_cq_ex_to_cq(cq), &mod), EINVAL);
	ck_assert_int_eq(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	ck_assert_int_eq(ibv_close_device(ctx), 0);
}
END_TEST

START_TEST(resize)
{
	struct end_opts o = { .cqe = 16 };
	struct wr w = { IBV_WR_RDMA_WRITE, .len = 8 };
	struct end a, b;

	pair_open(&a, &b, &o, NULL);
	/* so that its ring does not begin at its beginning */
	for (uint64_t i = 0; i < 10; i++) {
		ck_assert_int_eq(post(&a, &b, i, w), 0);
		want(&a, i, IBV_WC_SUCCESS);
	}
	for (uint64_t i = 0; i < 12; i++)
		ck_assert_int_eq(post(&a, &b, i, w), 0);
	/* one more at the other end: all before is done */
	ck_assert_int_eq(post(&b, &a, 50, w), 0);
	want(&b, 50, IBV_WC_SUCCESS);
	want_none(&b, 50);
	ck_assert_int_eq(ibv_resize_cq(a.cq, 11), EINVAL);
	ck_assert_int_eq(ibv_resize_cq(a.cq, 0), EINVAL);
	ck_assert_int_eq(a.cq->cqe, 16);
	ck_assert_int_eq(ibv_resize_cq(a.cq, 100), 0);
	ck_assert_int_eq(a.cq->cqe, 100);
	for (uint64_t i = 12; i < 60; i++)
		ck_assert_int_eq(post(&a, &b, i, w), 0);
	for (uint64_t i = 0; i < 60; i++)
		want(&a, i, IBV_WC_SUCCESS);
	ck_assert_int_eq(ibv_resize_cq(a.cq, 1), 0);
	ck_assert_int_eq(post(&a, &b, 70, w), 0);
	want(&a, 70, IBV_WC_SUCCESS);
	pair_close(&a, &b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("softnic: extended interfaces");
	TCase *t = tcase_create("ex");

	tcase_set_timeout(t, 120);
	tcase_add_test(t, each_operation);
	tcase_add_test(t, all_or_nothing);
	tcase_add_test(t, what_is_offered);
	tcase_add_loop_test(t, extended_poll, 0, 2);
	tcase_add_test(t, room_after_end_poll);
	tcase_add_test(t, held_until_end_poll);
	tcase_add_test(t, extended_create);
	tcase_add_test(t, resize);
	suite_add_tcase(s, t);
	return run_suite(s);
}

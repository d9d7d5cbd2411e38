// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Reliable connections: data, order, completions, slots. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test_end.h"

/* below, at and above what a packet, a slot and a header hold */
static const uint32_t sizes[] = { 1, 7, 8, 95, 96, 97, 4095, 4096, 4097, 16383, 16384, 16385, 100000, LEN / 2 };

#define EACH_SIZE(i) (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)

START_TEST(write_and_read)
{
	struct conn_opts o = { .mtu = _i };
	struct end a, b;

	pair_open(&a, &b, NULL, &o);
	for EACH_SIZE(i) {
		uint32_t n = sizes[i];

		fill(a.buf, n, n);
		ck_assert_int_eq(post(&a, &b, i, (struct wr){ IBV_WR_RDMA_WRITE, .to = 3, .len = n }), 0);
		ck_assert_int_eq(want(&a, i, IBV_WC_SUCCESS).opcode, IBV_WC_RDMA_WRITE);
		check_filled(b.buf + 3, n, n);
		ck_assert_uint_eq(b.buf[3 + n], 0);

		memset(a.buf, 0, LEN);
		ck_assert_int_eq(post(&a, &b, i, (struct wr){ IBV_WR_RDMA_READ, .at = 5, .to = 3, .len = n }), 0);
		ck_assert_uint_eq(want(&a, i, IBV_WC_SUCCESS).byte_len, n);
		check_filled(a.buf + 5, n, n);
		ck_assert_uint_eq(a.buf[5 + n], 0);
		memset(a.buf, 0, LEN);
		memset(b.buf, 0, LEN);
	}
	want_none(&b, 0);
	pair_close(&a, &b);
}
END_TEST

START_TEST(send_and_imm)
{
	struct end a, b;
	struct ibv_wc wc;

	pair_open(&a, &b, NULL, NULL);
	for EACH_SIZE(i) {
		uint32_t n = sizes[i];

		fill(a.buf, n, n);
		ck_assert_int_eq(post_rx(&b, 100 + i, 11, n + 1), 0);
		ck_assert_int_eq(post(&a, &b, i, (struct wr){ IBV_WR_SEND, .len = n }), 0);
		ck_assert_int_eq(want(&a, i, IBV_WC_SUCCESS).opcode, IBV_WC_SEND);
		wc = want(&b, 100 + i, IBV_WC_SUCCESS);
		ck_assert_int_eq(wc.opcode, IBV_WC_RECV);
		ck_assert_uint_eq(wc.byte_len, n);
		ck_assert_uint_eq(wc.src_qp, a.qp->qp_num);
		ck_assert_uint_eq(wc.wc_flags & IBV_WC_WITH_IMM, 0);
		check_filled(b.buf + 11, n, n);

		ck_assert_int_eq(post_rx(&b, 200 + i, 0, 0), 0);
		ck_assert_int_eq(post(&a, &b, i, (struct wr){ IBV_WR_RDMA_WRITE_WITH_IMM, .to = LEN / 2 - 7, .len = n,
							      .arg = 0xabcd0000 + n }), 0);
		want(&a, i, IBV_WC_SUCCESS);
		wc = want(&b, 200 + i, IBV_WC_SUCCESS);
		ck_assert_int_eq(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
		ck_assert_uint_eq(wc.byte_len, n);
		ck_assert_uint_eq(wc.imm_data, 0xabcd0000 + n);
		ck_assert_uint_eq(wc.wc_flags, IBV_WC_WITH_IMM);
		check_filled(b.buf + LEN / 2 - 7, n, n);
	}
	/* nothing at all, with and without immediate data */
	ck_assert_int_eq(post_rx(&b, 300, 0, 16), 0);
	ck_assert_int_eq(post(&a, &b, 301, (struct wr){ IBV_WR_SEND_WITH_IMM, .arg = 77 }), 0);
	wc = want(&b, 300, IBV_WC_SUCCESS);
	ck_assert_uint_eq(wc.byte_len, 0);
	ck_assert_uint_eq(wc.imm_data, 77);
	want(&a, 301, IBV_WC_SUCCESS);
	/* of nothing, neither key nor address is looked at */
	ck_assert_int_eq(post(&a, &b, 302, (struct wr){ IBV_WR_RDMA_WRITE, .rkey = 1, .lkey = 1 }), 0);
	want(&a, 302, IBV_WC_SUCCESS);
	pair_close(&a, &b);
}
END_TEST

START_TEST(atomics)
{
	struct end a, b;
	uint64_t *mine, *theirs;

	pair_open(&a, &b, NULL, NULL);
	mine = (uint64_t *)a.buf;
	theirs = (uint64_t *)(b.buf + 64);
	*theirs = 40;
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_ATOMIC_FETCH_AND_ADD, .to = 64, .len = 8, .arg = 2 }), 0);
	ck_assert_int_eq(want(&a, 1, IBV_WC_SUCCESS).opcode, IBV_WC_FETCH_ADD);
	ck_assert_uint_eq(*mine, 40);
	ck_assert_uint_eq(*theirs, 42);
	ck_assert_int_eq(post(&a, &b, 2, (struct wr){ IBV_WR_ATOMIC_CMP_AND_SWP, .to = 64, .len = 8, .arg = 41,
						      .swap = 9 }), 0);
	ck_assert_int_eq(want(&a, 2, IBV_WC_SUCCESS).opcode, IBV_WC_COMP_SWAP);
	ck_assert_uint_eq(*mine, 42);
	ck_assert_uint_eq(*theirs, 42);
	ck_assert_int_eq(post(&a, &b, 3, (struct wr){ IBV_WR_ATOMIC_CMP_AND_SWP, .to = 64, .len = 8, .arg = 42,
						      .swap = 9 }), 0);
	want(&a, 3, IBV_WC_SUCCESS);
	ck_assert_uint_eq(*theirs, 9);
	/* many on their way at once, more than the other end can take at a time */
	for (uint32_t i = 0; i < 60; i++)
		ck_assert_int_eq(post(&a, &b, i, (struct wr){ IBV_WR_ATOMIC_FETCH_AND_ADD, .at = 8 * i, .to = 64,
							      .len = 8, .arg = 1 }), 0);
	for (uint32_t i = 0; i < 60; i++) {
		want(&a, i, IBV_WC_SUCCESS);
		ck_assert_uint_eq(mine[i], 9 + i);
	}
	ck_assert_uint_eq(*theirs, 69);
	pair_close(&a, &b);
}
END_TEST

START_TEST(inline_and_sges)
{
	struct ibv_sge sge[4];
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = sge, .num_sge = 4, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	struct ibv_recv_wr rx = { .wr_id = 2, .sg_list = sge, .num_sge = 4 }, *bad_rx;
	struct end_opts o = { .inl = 200 };
	uint8_t stack[200];
	struct end a, b;

	pair_open(&a, &b, &o, NULL);
	/* inline data belong to the program again at once, and need no key */
	fill(stack, sizeof(stack), 5);
	sge[0] = (struct ibv_sge){ (uintptr_t)stack, 150, 0 };
	sge[1] = (struct ibv_sge){ (uintptr_t)stack + 150, 50, 12345 };
	wr.num_sge = 2;
	wr.send_flags = IBV_SEND_INLINE;
	wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
	wr.wr.rdma.rkey = b.mr->rkey;
	ck_assert_int_eq(ibv_post_send(a.qp, &wr, &bad), 0);
	memset(stack, 0, sizeof(stack));
	want(&a, 1, IBV_WC_SUCCESS);
	check_filled(b.buf, 200, 5);

	/* pieces of uneven length on both sides; an empty one, too */
	fill(a.buf, 60000, 6);
	sge[0] = (struct ibv_sge){ (uintptr_t)a.buf, 13, a.mr->lkey };
	sge[1] = (struct ibv_sge){ 0, 0, 0 };
	sge[2] = (struct ibv_sge){ (uintptr_t)a.buf + 13, 16384, a.mr->lkey };
	sge[3] = (struct ibv_sge){ (uintptr_t)a.buf + 13 + 16384, 60000 - 13 - 16384, a.mr->lkey };
	wr.num_sge = 4;
	wr.send_flags = 0;
	ck_assert_int_eq(ibv_post_send(a.qp, &wr, &bad), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	check_filled(b.buf, 60000, 6);

	sge[0] = (struct ibv_sge){ (uintptr_t)b.buf + 100000, 20000, b.mr->lkey };
	sge[1] = (struct ibv_sge){ (uintptr_t)b.buf + 200000, 1, b.mr->lkey };
	sge[2] = (struct ibv_sge){ (uintptr_t)b.buf + 300000, 30000, b.mr->lkey };
	sge[3] = (struct ibv_sge){ (uintptr_t)b.buf + 400000, 30000, b.mr->lkey };
	ck_assert_int_eq(ibv_post_recv(b.qp, &rx, &bad_rx), 0);
	ck_assert_int_eq(post(&a, &b, 3, (struct wr){ IBV_WR_SEND, .len = 60000 }), 0);
	want(&a, 3, IBV_WC_SUCCESS);
	ck_assert_uint_eq(want(&b, 2, IBV_WC_SUCCESS).byte_len, 60000);
	memcpy(b.buf, b.buf + 100000, 20000);
	memcpy(b.buf + 20000, b.buf + 200000, 1);
	memcpy(b.buf + 20001, b.buf + 300000, 30000);
	memcpy(b.buf + 50001, b.buf + 400000, 9999);
	check_filled(b.buf, 60000, 6);

	/* a READ into pieces */
	memset(a.buf, 0, LEN);
	sge[0] = (struct ibv_sge){ (uintptr_t)a.buf, 5, a.mr->lkey };
	sge[1] = (struct ibv_sge){ (uintptr_t)a.buf + 5, 20000, a.mr->lkey };
	wr.opcode = IBV_WR_RDMA_READ;
	wr.num_sge = 2;
	ck_assert_int_eq(ibv_post_send(a.qp, &wr, &bad), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	check_filled(a.buf, 20005, 6);
	pair_close(&a, &b);
}
END_TEST

/* Completions come in the order of the requests; what is behind the data is never seen ahead of it. */
START_TEST(order)
{
	struct end_opts o = { .sq = 256 };
	struct end a, b;
	volatile uint32_t *flag;

	pair_open(&a, &b, &o, NULL);
	flag = (uint32_t *)(b.buf + LEN - 64);
	for (uint32_t round = 1; round <= 50; round++) {
		uint32_t n = 1 + round * 7919 % 200000;

		fill(a.buf, n, round);
		memcpy(a.buf + LEN - 64, &round, 4);
		ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = n }), 0);
		ck_assert_int_eq(post(&a, &b, 2, (struct wr){ IBV_WR_RDMA_WRITE, .at = LEN - 64, .to = LEN - 64,
							      .len = 4 }), 0);
		ck_assert_int_eq(post(&a, &b, 3, (struct wr){ IBV_WR_RDMA_READ, .at = LEN / 2, .to = LEN / 2,
							      .len = 40000 }), 0);
		ck_assert_int_eq(post(&a, &b, 4, (struct wr){ IBV_WR_ATOMIC_FETCH_AND_ADD, .at = LEN - 128,
							      .to = LEN - 128, .len = 8, .arg = 1,
							      .flags = IBV_SEND_FENCE }), 0);
		while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != round)
			;
		check_filled(b.buf, n, round);
		for (uint64_t id = 1; id <= 4; id++)
			want(&a, id, IBV_WC_SUCCESS);
	}
	pair_close(&a, &b);
}
END_TEST

START_TEST(slots)
{
	struct end_opts o = { .sq = 8, .no_sig_all = 1 };
	struct wr plain = { IBV_WR_RDMA_WRITE, .len = 8 }, signalled = { IBV_WR_RDMA_WRITE, .len = 8,
									 .flags = IBV_SEND_SIGNALED };
	struct ibv_wc wc;
	struct end a, b;

	pair_open(&a, &b, &o, NULL);
	for (int i = 0; i < 8; i++)
		ck_assert_int_eq(post(&a, &b, (uint64_t)i, i == 4 ? signalled : plain), 0);
	ck_assert_int_eq(post(&a, &b, 9, plain), ENOMEM);
	/* done long since, but nobody looked */
	for (int i = 0; i < 20; i++)
		want_none(&b, 10);
	ck_assert_int_eq(post(&a, &b, 9, plain), ENOMEM);
	/* it frees itself and what is ahead of it, not the three behind */
	want(&a, 4, IBV_WC_SUCCESS);
	for (int i = 0; i < 5; i++)
		ck_assert_int_eq(post(&a, &b, 10 + (uint64_t)i, plain), 0);
	ck_assert_int_eq(post(&a, &b, 9, plain), ENOMEM);
	/* eight without a completion: the queue stays full for ever */
	want_none(&a, 50);
	ck_assert_int_eq(post(&a, &b, 9, signalled), ENOMEM);
	/* even in the error state only a polled completion frees them */
	ck_assert_int_eq(to_state(a.qp, IBV_QPS_ERR), 0);
	ck_assert_int_eq(post(&a, &b, 9, signalled), ENOMEM);
	while (ibv_poll_cq(a.cq, 1, &wc))
		;
	/* a receive queue likewise */
	for (uint64_t i = 0; i < 64; i++)
		ck_assert_int_eq(post_rx(&b, i, 0, 8), 0);
	ck_assert_int_eq(post_rx(&b, 64, 0, 8), ENOMEM);
	pair_close(&a, &b);
}
END_TEST

START_TEST(chains)
{
	struct ibv_sge sge[10];
	struct ibv_send_wr wr[10] = { 0 }, *bad;
	struct end_opts o = { .sq = 8 };
	struct end a, b;

	pair_open(&a, &b, &o, NULL);
	fill(a.buf, 1000, 1);
	for (uint32_t i = 0; i < 10; i++) {
		sge[i] = (struct ibv_sge){ (uintptr_t)a.buf + 100 * i, 100, a.mr->lkey };
		wr[i] = (struct ibv_send_wr){ .wr_id = i, .next = i < 9 ? &wr[i + 1] : NULL, .sg_list = &sge[i],
					      .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
		wr[i].wr.rdma.remote_addr = (uintptr_t)b.buf + 100 * i;
		wr[i].wr.rdma.rkey = b.mr->rkey;
	}
	/* what fits was posted */
	ck_assert_int_eq(ibv_post_send(a.qp, wr, &bad), ENOMEM);
	ck_assert_ptr_eq(bad, &wr[8]);
	for (uint64_t i = 0; i < 8; i++)
		want(&a, i, IBV_WC_SUCCESS);
	check_filled(b.buf, 800, 1);
	ck_assert_uint_eq(b.buf[800], 0);
	/* what is ahead of a bad one, too */
	wr[2].num_sge = 5;
	ck_assert_int_eq(ibv_post_send(a.qp, wr, &bad), EINVAL);
	ck_assert_ptr_eq(bad, &wr[2]);
	want(&a, 0, IBV_WC_SUCCESS);
	want(&a, 1, IBV_WC_SUCCESS);
	want_none(&a, 20);
	pair_close(&a, &b);
}
END_TEST

START_TEST(refused_at_post)
{
	const int inl = IBV_SEND_INLINE;
	struct end a, b;

	pair_open(&a, &b, NULL, NULL);
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = 65, .flags = inl }), EINVAL);
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_RDMA_READ, .len = 8, .flags = inl }), EINVAL);
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_ATOMIC_FETCH_AND_ADD, .len = 4 }), EINVAL);
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_TSO, .len = 4 }), EINVAL);
	want_none(&a, 10);
	pair_close(&a, &b);
}
END_TEST

/* A QP connected to itself, as programs use to flush. */
START_TEST(loopback)
{
	struct end a;

	end_open(&a, 0, NULL);
	join(&a, &a, NULL);
	/* its own PSN is both what it sends and what it expects */
	fill(a.buf, 50000, 1);
	ck_assert_int_eq(post(&a, &a, 1, (struct wr){ IBV_WR_RDMA_WRITE, .to = LEN / 2, .len = 50000 }), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	check_filled(a.buf + LEN / 2, 50000, 1);
	ck_assert_int_eq(post(&a, &a, 2, (struct wr){ IBV_WR_RDMA_READ, .at = 100000, .to = LEN / 2, .len = 4 }), 0);
	want(&a, 2, IBV_WC_SUCCESS);
	check_filled(a.buf + 100000, 4, 1);
	end_close(&a);
}
END_TEST

START_TEST(events)
{
	struct ibv_comp_channel *ch;
	struct ibv_cq *cq, *got;
	struct pollfd p;
	struct end a, b;
	void *context;

	pair_open(&a, &b, NULL, NULL);
	ch = ibv_create_comp_channel(b.ctx);
	ck_assert_ptr_nonnull(ch);
	cq = ibv_create_cq(b.ctx, 16, &b, ch, 0);
	ck_assert_ptr_nonnull(cq);
	ck_assert_int_eq(ibv_destroy_qp(b.qp), 0);
	b.qp = ibv_create_qp(b.pd, &(struct ibv_qp_init_attr){ .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
							       .cap = { 8, 8, 1, 1, 0 } });
	ck_assert_ptr_nonnull(b.qp);
	ck_assert_int_eq(to_state(a.qp, IBV_QPS_RESET), 0);
	join(&a, &b, NULL);
	p = (struct pollfd){ ch->fd, POLLIN, 0 };
	for (uint64_t i = 0; i < 4; i++)
		ck_assert_int_eq(post_rx(&b, i, 0, 8), 0);
	/* not armed: none; armed when it is there already: none */
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_SEND, .len = 8 }), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	ck_assert_int_eq(poll(&p, 1, 20), 0);
	ck_assert_int_eq(ibv_req_notify_cq(cq, 0), 0);
	ck_assert_int_eq(poll(&p, 1, 20), 0);
	/* one, however many come */
	for (uint64_t i = 2; i < 4; i++) {
		ck_assert_int_eq(post(&a, &b, i, (struct wr){ IBV_WR_SEND, .len = 8 }), 0);
		want(&a, i, IBV_WC_SUCCESS);
	}
	ck_assert_int_eq(ibv_get_cq_event(ch, &got, &context), 0);
	ck_assert_ptr_eq(got, cq);
	ck_assert_ptr_eq(context, &b);
	ck_assert_int_eq(poll(&p, 1, 20), 0);
	/* solicited only */
	ck_assert_int_eq(ibv_req_notify_cq(cq, 1), 0);
	ck_assert_int_eq(post(&a, &b, 4, (struct wr){ IBV_WR_SEND, .len = 8 }), 0);
	want(&a, 4, IBV_WC_SUCCESS);
	ck_assert_int_eq(poll(&p, 1, 20), 0);
	ck_assert_int_eq(post_rx(&b, 4, 0, 8), 0);
	ck_assert_int_eq(post(&a, &b, 5, (struct wr){ IBV_WR_SEND, .len = 8, .flags = IBV_SEND_SOLICITED }), 0);
	want(&a, 5, IBV_WC_SUCCESS);
	ck_assert_int_eq(ibv_get_cq_event(ch, &got, &context), 0);
	ck_assert_int_eq(ibv_destroy_cq(cq), EBUSY);
	ck_assert_int_eq(ibv_destroy_qp(b.qp), 0);
	b.qp = NULL;
	ck_assert_int_eq(ibv_destroy_comp_channel(ch), EBUSY);
	ibv_ack_cq_events(cq, 2);
	ck_assert_int_eq(ibv_destroy_cq(cq), 0);
	ck_assert_int_eq(ibv_destroy_comp_channel(ch), 0);
	pair_close(&a, &b);
}
END_TEST

/* Devices hand out the same numbers; what was given back comes again. */
START_TEST(numbers)
{
	struct end a, b;
	uint32_t key, rkey;
	struct ibv_mr *mr;

	/* numbers of the tests before may still rest */
	usleep(100000);
	end_open(&a, 0, NULL);
	end_open(&b, 1, NULL);
	ck_assert_uint_eq(a.qp->qp_num, b.qp->qp_num);
	ck_assert_uint_eq(a.mr->rkey, b.mr->rkey);
	ck_assert_uint_eq(a.mr->lkey, b.mr->lkey);
	ck_assert_uint_ne(a.mr->lkey, a.mr->rkey);
	mr = ibv_reg_mr(a.pd, a.buf, 4096, IBV_ACCESS_LOCAL_WRITE);
	ck_assert_ptr_nonnull(mr);
	key = mr->lkey;
	rkey = mr->rkey;
	ck_assert_int_eq(ibv_dereg_mr(mr), 0);
	mr = ibv_reg_mr(a.pd, a.buf, 8192, IBV_ACCESS_LOCAL_WRITE);
	ck_assert_ptr_nonnull(mr);
	ck_assert_uint_eq(mr->lkey, key);
	ck_assert_uint_eq(mr->rkey, rkey);
	ck_assert_int_eq(ibv_dealloc_pd(a.pd), EBUSY);
	ck_assert_int_eq(ibv_dereg_mr(mr), 0);
	pair_close(&a, &b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("softnic: reliable connections");
	TCase *t = tcase_create("rc");

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, write_and_read, IBV_MTU_256, IBV_MTU_4096 + 1);
	tcase_add_test(t, send_and_imm);
	tcase_add_test(t, atomics);
	tcase_add_test(t, inline_and_sges);
	tcase_add_test(t, order);
	tcase_add_test(t, slots);
	tcase_add_test(t, chains);
	tcase_add_test(t, refused_at_post);
	tcase_add_test(t, loopback);
	tcase_add_test(t, events);
	tcase_add_test(t, numbers);
	suite_add_tcase(s, t);
	return run_suite(s);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* States of a QP: which changes are allowed, with which attributes, and what may be done in them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "test_end.h"

/* The rows of IBTA 11.2.5.2 for RC; ALT_PATH and PATH_MIG_STATE are legal, but not offered. */
static const struct {
	enum ibv_qp_state from, to;
	int must, may;
} legal[] = {
	{ IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0 },
	{ IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS },
	{ IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX },
	{ IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	  IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER |
	  IBV_QP_PATH_MIG_STATE },
	{ IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH |
	  IBV_QP_PATH_MIG_STATE | IBV_QP_MIN_RNR_TIMER },
	{ IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
	{ IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS |
	  IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE },
	{ IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
	  IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS |
	  IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE },
};

#define NLEGAL (int)(sizeof(legal) / sizeof(legal[0]))
#define NOT_OFFERED (IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE)
#define LAST_BIT 25

static struct ibv_qp_attr values(const struct end *e, enum ibv_qp_state cur, enum ibv_qp_state to)
{
	struct ibv_qp_attr a = { .qp_state = to, .cur_qp_state = cur, .port_num = 1, .path_mtu = IBV_MTU_1024,
				 .dest_qp_num = e->qp->qp_num, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
				 .max_rd_atomic = 1, .max_dest_rd_atomic = 1, .min_rnr_timer = 1 };

	a.ah_attr.is_global = 1;
	a.ah_attr.port_num = 1;
	a.ah_attr.grh.dgid = e->gid;
	a.ah_attr.grh.sgid_index = 1;
	a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	return a;
}

/* A QP in this state; SQE is no state of RC. */
static void bring_to(struct end *e, enum ibv_qp_state s)
{
	struct addr self = end_addr(e);

	ck_assert_int_eq(to_state(e->qp, IBV_QPS_RESET), 0);
	if (s == IBV_QPS_ERR)
		ck_assert_int_eq(to_state(e->qp, s), 0);
	if (s == IBV_QPS_RESET || s == IBV_QPS_ERR)
		return;
	ck_assert_int_eq(to_init(e->qp, NULL), 0);
	if (s >= IBV_QPS_RTR)
		ck_assert_int_eq(to_rtr(e->qp, &self, NULL), 0);
	if (s >= IBV_QPS_RTS)
		ck_assert_int_eq(to_rts(e->qp, 0, NULL), 0);
	if (s == IBV_QPS_SQD)
		ck_assert_int_eq(to_state(e->qp, s), 0);
}

static int try_change(struct end *e, enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
	struct ibv_qp_attr a = values(e, from, to), got;
	struct ibv_qp_init_attr init;
	int ret;

	bring_to(e, from);
	ret = ibv_modify_qp(e->qp, &a, mask | IBV_QP_STATE);
	ck_assert_int_eq(ibv_query_qp(e->qp, &got, IBV_QP_STATE, &init), 0);
	ck_assert_int_eq(got.qp_state, ret ? from : to);
	return ret;
}

START_TEST(legal_masks)
{
	int must = legal[_i].must, may = legal[_i].may;
	enum ibv_qp_state from = legal[_i].from, to = legal[_i].to;
	struct end e;

	end_open(&e, 0, NULL);
	ck_assert_int_eq(try_change(&e, from, to, must), 0);
	ck_assert_int_eq(try_change(&e, from, to, must | (may & ~NOT_OFFERED)), 0);
	for (int bit = 1; bit <= LAST_BIT; bit++) {
		int b = 1 << bit;

		if (must & b)
			ck_assert_int_eq(try_change(&e, from, to, must & ~b), EINVAL);
		else if (!(may & b))
			ck_assert_int_eq(try_change(&e, from, to, must | b), EINVAL);
		else
			ck_assert_int_eq(try_change(&e, from, to, must | b), b & NOT_OFFERED ? EOPNOTSUPP : 0);
	}
	end_close(&e);
}
END_TEST

static bool is_legal(enum ibv_qp_state from, enum ibv_qp_state to)
{
	for (int i = 0; i < NLEGAL; i++)
		if (legal[i].from == from && legal[i].to == to)
			return true;
	return to == IBV_QPS_RESET || to == IBV_QPS_ERR;
}

START_TEST(illegal_changes)
{
	struct end e;
	int n = 0;

	end_open(&e, 0, NULL);
	for (int from = IBV_QPS_RESET; from <= IBV_QPS_ERR; from++)
		for (int to = IBV_QPS_RESET; to <= IBV_QPS_ERR; to++) {
			if (from == IBV_QPS_SQE || is_legal((enum ibv_qp_state)from, (enum ibv_qp_state)to))
				continue;
			ck_assert_int_eq(try_change(&e, (enum ibv_qp_state)from, (enum ibv_qp_state)to, 0), EINVAL);
			for (int i = 0; i < NLEGAL; i++)
				if (legal[i].to == (enum ibv_qp_state)to)
					ck_assert_int_eq(try_change(&e, (enum ibv_qp_state)from, (enum ibv_qp_state)to,
								    legal[i].must), EINVAL);
			n++;
		}
	/* 6 states by 7, less 12 to RESET and ERR, less the legal ones */
	ck_assert_int_eq(n, 6 * 7 - 12 - NLEGAL);
	ck_assert_int_eq(try_change(&e, IBV_QPS_RTS, IBV_QPS_ERR, IBV_QP_ACCESS_FLAGS), EINVAL);
	ck_assert_int_eq(try_change(&e, IBV_QPS_RTS, IBV_QPS_RESET, IBV_QP_PORT), EINVAL);
	end_close(&e);
}
END_TEST

START_TEST(bad_values)
{
	struct ibv_qp_attr a;
	struct end e;
	int mask = legal[2].must | IBV_QP_STATE;

	end_open(&e, 0, NULL);
	bring_to(&e, IBV_QPS_INIT);
#define BAD(set)								\
	do {									\
		a = values(&e, IBV_QPS_INIT, IBV_QPS_RTR);			\
		set;								\
		ck_assert_int_eq(ibv_modify_qp(e.qp, &a, mask), EINVAL);	\
	} while (0)
	BAD(a.path_mtu = (enum ibv_mtu)6);
	BAD(a.path_mtu = (enum ibv_mtu)0);
	BAD(a.ah_attr.is_global = 0);
	BAD(a.ah_attr.grh.sgid_index = 3);	/* an empty place */
	BAD(a.ah_attr.grh.sgid_index = 200);
	BAD(a.ah_attr.port_num = 2);
	BAD(a.max_dest_rd_atomic = 17);
	BAD(a.min_rnr_timer = 32);
	BAD(a.dest_qp_num = 1 << 24);
	a = values(&e, IBV_QPS_INIT, IBV_QPS_RTR);
	ck_assert_int_eq(ibv_modify_qp(e.qp, &a, mask), 0);
	/* the current state, if given, must be right */
	a = values(&e, IBV_QPS_INIT, IBV_QPS_RTS);
	ck_assert_int_eq(ibv_modify_qp(e.qp, &a, legal[3].must | IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL);
	end_close(&e);
}
END_TEST

START_TEST(posting)
{
	struct end e;

	end_open(&e, 0, NULL);
	for (int s = IBV_QPS_RESET; s <= IBV_QPS_RTS; s++) {
		bring_to(&e, (enum ibv_qp_state)s);
		ck_assert_int_eq(post(&e, &e, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }),
				 s < IBV_QPS_RTS ? EINVAL : 0);
		ck_assert_int_eq(post_rx(&e, 2, 0, 8), s == IBV_QPS_RESET ? EINVAL : 0);
	}
	/* paused: it is done when the QP goes on */
	bring_to(&e, IBV_QPS_RTS);
	ck_assert_int_eq(to_state(e.qp, IBV_QPS_SQD), 0);
	ck_assert_int_eq(post(&e, &e, 3, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	want_none(&e, 50);
	ck_assert_int_eq(to_state(e.qp, IBV_QPS_RTS), 0);
	end_close(&e);
}
END_TEST

START_TEST(reset_drops)
{
	struct end a, b;
	struct ibv_qp_attr got;
	struct ibv_qp_init_attr init;

	pair_open(&a, &b, NULL, NULL);
	/* completions that nobody polled, receives that nobody used, and a full queue */
	for (uint64_t i = 0; i < 64; i++)
		ck_assert_int_eq(post(&a, &b, i, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	ck_assert_int_eq(post_rx(&a, 99, 0, 8), 0);
	usleep(20000);
	ck_assert_int_eq(to_state(a.qp, IBV_QPS_RESET), 0);
	want_none(&a, 20);
	ck_assert_int_eq(to_state(b.qp, IBV_QPS_RESET), 0);
	/* and again, with other PSNs */
	a.psn = 7;
	b.psn = 0x123456;
	join(&a, &b, NULL);
	ck_assert_int_eq(ibv_query_qp(a.qp, &got, IBV_QP_STATE, &init), 0);
	ck_assert_int_eq(got.qp_state, IBV_QPS_RTS);
	ck_assert_uint_eq(got.sq_psn, 7);
	ck_assert_uint_eq(got.rq_psn, 0x123456);
	ck_assert_uint_eq(got.dest_qp_num, b.qp->qp_num);
	ck_assert_uint_eq(init.cap.max_send_wr, 64);
	for (uint64_t i = 0; i < 64; i++)
		ck_assert_int_eq(post(&a, &b, i, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	for (uint64_t i = 0; i < 64; i++)
		want(&a, i, IBV_WC_SUCCESS);
	ck_assert_int_eq(ibv_query_qp(a.qp, &got, IBV_QP_STATE, &init), 0);
	ck_assert_uint_eq(got.sq_psn, 7 + 64);
	pair_close(&a, &b);
}
END_TEST

START_TEST(numbers_rest)
{
	struct end a;
	struct ibv_qp *first, *second;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct timespec t[2];
	uint32_t qpn;
	long us;

	/* numbers of the tests before may still rest */
	usleep(100000);
	end_open(&a, 0, NULL);
	init.send_cq = init.recv_cq = a.cq;
	ck_assert_int_eq(ibv_destroy_cq(a.cq), EBUSY);
	for (int try = 0;; try++) {
		ck_assert_int_lt(try, 100);
		first = ibv_create_qp(a.pd, &init);
		ck_assert_ptr_nonnull(first);
		qpn = first->qp_num;
		clock_gettime(CLOCK_MONOTONIC, &t[0]);
		ck_assert_int_eq(ibv_destroy_qp(first), 0);
		second = ibv_create_qp(a.pd, &init);
		ck_assert_ptr_nonnull(second);
		clock_gettime(CLOCK_MONOTONIC, &t[1]);
		us = (t[1].tv_sec - t[0].tv_sec) * 1000000 + (t[1].tv_nsec - t[0].tv_nsec) / 1000;
		/* a machine that was busy elsewhere for longer has let it rest */
		if (us < 50000)
			ck_assert_uint_ne(second->qp_num, qpn);
		ck_assert_int_eq(ibv_destroy_qp(second), 0);
		usleep(100000);
		if (us < 50000)
			break;
	}
	first = ibv_create_qp(a.pd, &init);
	ck_assert_ptr_nonnull(first);
	ck_assert_uint_eq(first->qp_num, qpn);
	ck_assert_int_eq(ibv_destroy_qp(first), 0);
	init.cap.max_inline_data = 1 << 20;
	ck_assert_ptr_null(ibv_create_qp(a.pd, &init));
	ck_assert_int_eq(errno, EINVAL);
	end_close(&a);
}
END_TEST

START_TEST(registering)
{
	char *p = aligned_alloc(4096, 8192);
	struct ibv_mr *mr;
	struct end a;

	end_open(&a, 0, NULL);
	/* may be written from afar, but not here; no memory; nothing; something that is not known */
	ck_assert_ptr_null(ibv_reg_mr(a.pd, p, 8192, IBV_ACCESS_REMOTE_WRITE));
	ck_assert_int_eq(errno, EINVAL);
	ck_assert_ptr_null(ibv_reg_mr(a.pd, NULL, 4096, IBV_ACCESS_LOCAL_WRITE));
	ck_assert_int_eq(errno, EFAULT);
	ck_assert_ptr_null(ibv_reg_mr(a.pd, p, 0, IBV_ACCESS_LOCAL_WRITE));
	ck_assert_ptr_null(ibv_reg_mr(a.pd, p, 8192, (int)(1u << 18)));
	ck_assert_int_eq(errno, EINVAL);
	mr = ibv_reg_mr(a.pd, p + 4000, 1, 0);
	ck_assert_ptr_nonnull(mr);
	ck_assert_int_eq(ibv_dereg_mr(mr), 0);
	end_close(&a);
	free(p);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("softnic: states");
	TCase *t = tcase_create("states");

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, legal_masks, 0, NLEGAL);
	tcase_add_test(t, illegal_changes);
	tcase_add_test(t, bad_values);
	tcase_add_test(t, posting);
	tcase_add_test(t, reset_drops);
	tcase_add_test(t, numbers_rest);
	tcase_add_test(t, registering);
	suite_add_tcase(s, t);
	return run_suite(s);
}

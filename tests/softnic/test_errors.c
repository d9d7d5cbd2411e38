// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* What goes wrong, and which status each side gets for it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "test_end.h"

static enum ibv_qp_state state(struct end *e)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;

	ck_assert_int_eq(ibv_query_qp(e->qp, &a, IBV_QP_STATE, &i), 0);
	return a.qp_state;
}

static void want_event(struct end *e, enum ibv_event_type type)
{
	struct ibv_async_event ev;

	ck_assert_int_eq(ibv_get_async_event(e->ctx, &ev), 0);
	ck_assert_int_eq(ev.event_type, type);
	ck_assert_ptr_eq(ev.element.qp, e->qp);
	ibv_ack_async_event(&ev);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One bad request between two good ones: the first is done, the last is flushed. */
static void bad_between(struct end *a, struct end *b, struct wr bad, enum ibv_wc_status status)
{
	struct wr good = { IBV_WR_RDMA_WRITE, .at = LEN - 64, .to = LEN - 64, .len = 64 };

	fill(a->buf + LEN - 64, 64, 3);
	/* the one ahead is long, so that it is not done when the bad one is looked at */
	ck_assert_int_eq(post(a, b, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = LEN / 2 }), 0);
	ck_assert_int_eq(post(a, b, 2, bad), 0);
	ck_assert_int_eq(post(a, b, 3, good), 0);
	want(a, 1, IBV_WC_SUCCESS);
	want(a, 2, status);
	want(a, 3, IBV_WC_WR_FLUSH_ERR);
	ck_assert_int_eq(state(a), IBV_QPS_ERR);
	for (int i = 0; i < 64; i++)
		ck_assert_uint_eq(b->buf[LEN - 64 + i], 0);
	/* what is posted in this state is flushed at once */
	ck_assert_int_eq(post(a, b, 4, good), 0);
	want(a, 4, IBV_WC_WR_FLUSH_ERR);
	ck_assert_int_eq(post_rx(a, 5, 0, 8), 0);
	want(a, 5, IBV_WC_WR_FLUSH_ERR);
}

enum fault {
	LOCAL_KEY, LOCAL_KEY_IS_RKEY, LOCAL_BOUNDS, LOCAL_PD, LOCAL_READ_ONLY, LOCAL_GONE,
	REMOTE_KEY, REMOTE_KEY_IS_LKEY, REMOTE_BOUNDS, REMOTE_PD, REMOTE_NO_WRITE, REMOTE_NO_READ, REMOTE_NO_ATOMIC,
	REMOTE_GONE, QP_NO_WRITE, QP_NO_READ, QP_NO_ATOMIC, ATOMIC_ODD, NO_READS, TOO_MANY_READS, OTHER_MTU, NFAULTS
};

static const struct {
	enum ibv_wc_status status;
	enum ibv_event_type event;	/* at the other end; CQ_ERR: none, and its QP lives on */
} faults[NFAULTS] = {
	[LOCAL_KEY] = { IBV_WC_LOC_PROT_ERR, IBV_EVENT_CQ_ERR },
	[LOCAL_KEY_IS_RKEY] = { IBV_WC_LOC_PROT_ERR, IBV_EVENT_CQ_ERR },
	[LOCAL_BOUNDS] = { IBV_WC_LOC_PROT_ERR, IBV_EVENT_CQ_ERR },
	[LOCAL_PD] = { IBV_WC_LOC_PROT_ERR, IBV_EVENT_CQ_ERR },
	[LOCAL_READ_ONLY] = { IBV_WC_LOC_PROT_ERR, IBV_EVENT_CQ_ERR },
	[LOCAL_GONE] = { IBV_WC_LOC_PROT_ERR, IBV_EVENT_CQ_ERR },
	[REMOTE_KEY] = { IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR },
	[REMOTE_KEY_IS_LKEY] = { IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR },
	[REMOTE_BOUNDS] = { IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR },
	[REMOTE_PD] = { IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR },
	[REMOTE_NO_WRITE] = { IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR },
	[REMOTE_NO_READ] = { IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR },
	[REMOTE_NO_ATOMIC] = { IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR },
	[REMOTE_GONE] = { IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR },
	[QP_NO_WRITE] = { IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR },
	[QP_NO_READ] = { IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR },
	[QP_NO_ATOMIC] = { IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR },
	[ATOMIC_ODD] = { IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR },
	[NO_READS] = { IBV_WC_LOC_QP_OP_ERR, IBV_EVENT_CQ_ERR },
	[TOO_MANY_READS] = { IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR },
	[OTHER_MTU] = { IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR },
};

static struct ibv_mr *reg(struct end *e, struct ibv_pd *pd, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, e->buf, LEN, access);

	ck_assert_ptr_nonnull(mr);
	return mr;
}

static struct wr faulty(struct end *a, struct end *b, enum fault f, struct ibv_mr **mr, struct ibv_pd **pd)
{
	const int rw = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct wr write = { IBV_WR_RDMA_WRITE, .to = LEN - 64, .len = 64 }, read = { IBV_WR_RDMA_READ, .len = 64 };
	struct wr add = { IBV_WR_ATOMIC_FETCH_AND_ADD, .len = 8, .arg = 1 };

	switch (f) {
	case LOCAL_KEY:
		write.lkey = a->mr->lkey + 0x100;
		return write;
	case LOCAL_KEY_IS_RKEY:
		write.lkey = a->mr->rkey;
		return write;
	case LOCAL_BOUNDS:
		write.at = LEN - 63;
		return write;
	case LOCAL_PD:
		*pd = ibv_alloc_pd(a->ctx);
		*mr = reg(a, *pd, rw);
		write.lkey = (*mr)->lkey;
		return write;
	case LOCAL_READ_ONLY:
		*mr = reg(a, a->pd, 0);
		read.lkey = (*mr)->lkey;
		return read;
	case LOCAL_GONE:
		*mr = reg(a, a->pd, rw);
		write.lkey = (*mr)->lkey;
		ck_assert_int_eq(ibv_dereg_mr(*mr), 0);
		*mr = NULL;
		return write;
	case REMOTE_KEY:
		write.rkey = b->mr->rkey + 0x100;
		return write;
	case REMOTE_KEY_IS_LKEY:
		write.rkey = b->mr->lkey;
		return write;
	case REMOTE_BOUNDS:
		write.to = LEN - 63;
		return write;
	case REMOTE_PD:
		*pd = ibv_alloc_pd(b->ctx);
		*mr = reg(b, *pd, rw);
		write.rkey = (*mr)->rkey;
		return write;
	case REMOTE_NO_WRITE:
		*mr = reg(b, b->pd, IBV_ACCESS_REMOTE_READ);
		write.rkey = (*mr)->rkey;
		return write;
	case REMOTE_NO_READ:
		*mr = reg(b, b->pd, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		read.rkey = (*mr)->rkey;
		return read;
	case REMOTE_NO_ATOMIC:
		*mr = reg(b, b->pd, rw);
		add.rkey = (*mr)->rkey;
		return add;
	case REMOTE_GONE:
		*mr = reg(b, b->pd, rw);
		write.rkey = (*mr)->rkey;
		ck_assert_int_eq(ibv_dereg_mr(*mr), 0);
		*mr = NULL;
		return write;
	case QP_NO_ATOMIC:
		return add;
	case ATOMIC_ODD:
		add.to = 4;
		return add;
	case QP_NO_WRITE:
		return write;
	case OTHER_MTU:
		write.to = 0;
		write.len = 4097;
		return write;
	default:
		return read;
	}
}

START_TEST(fault)
{
	struct addr aa, ba;
	struct conn_opts ca = { 0 }, cb = { 0 };
	enum fault f = (enum fault)_i;
	struct ibv_mr *mr = NULL;
	struct ibv_pd *pd = NULL;
	struct end a, b;
	struct wr w;

	end_open(&a, 0, NULL);
	end_open(&b, 1, NULL);
	ca.rd = f == NO_READS ? -1 : 0;
	cb.dest_rd = f == TOO_MANY_READS ? -1 : 0;
	if (f == OTHER_MTU)
		ca.mtu = IBV_MTU_1024, cb.mtu = IBV_MTU_2048;
	if (f == QP_NO_READ)
		cb.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	if (f == QP_NO_ATOMIC)
		cb.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	if (f == QP_NO_WRITE)
		cb.access = IBV_ACCESS_REMOTE_READ;
	aa = end_addr(&a);
	ba = end_addr(&b);
	connect_to(&a, &ba, &ca);
	connect_to(&b, &aa, &cb);
	w = faulty(&a, &b, f, &mr, &pd);
	ck_assert_int_eq(post_rx(&b, 50, 0, 8), 0);
	if (f == QP_NO_WRITE || f == OTHER_MTU) {
		/* nothing good can go ahead of it */
		ck_assert_int_eq(post(&a, &b, 2, w), 0);
		want(&a, 2, faults[f].status);
	} else {
		bad_between(&a, &b, w, faults[f].status);
	}
	if (faults[f].event == IBV_EVENT_CQ_ERR) {
		want_none(&b, 50);
		ck_assert_int_eq(state(&b), IBV_QPS_RTS);
	} else {
		want(&b, 50, IBV_WC_WR_FLUSH_ERR);
		ck_assert_int_eq(state(&b), IBV_QPS_ERR);
		want_event(&b, faults[f].event);
	}
	if (mr)
		ck_assert_int_eq(ibv_dereg_mr(mr), 0);
	if (pd)
		ck_assert_int_eq(ibv_dealloc_pd(pd), 0);
	pair_close(&a, &b);
}
END_TEST

START_TEST(receive_too_short)
{
	struct end a, b;

	pair_open(&a, &b, NULL, NULL);
	ck_assert_int_eq(post_rx(&b, 50, 0, 19999), 0);
	ck_assert_int_eq(post_rx(&b, 51, 0, 20000), 0);
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_SEND, .len = 20000 }), 0);
	want(&a, 1, IBV_WC_REM_INV_REQ_ERR);
	want(&b, 50, IBV_WC_LOC_LEN_ERR);
	want(&b, 51, IBV_WC_WR_FLUSH_ERR);
	pair_close(&a, &b);
}
END_TEST

START_TEST(receive_bad_key)
{
	struct ibv_sge sge;
	struct ibv_recv_wr wr = { .wr_id = 50, .sg_list = &sge, .num_sge = 1 }, *bad;
	struct end a, b;

	pair_open(&a, &b, NULL, NULL);
	sge = (struct ibv_sge){ (uintptr_t)b.buf, 100, b.mr->rkey };
	ck_assert_int_eq(ibv_post_recv(b.qp, &wr, &bad), 0);
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_SEND, .len = 100 }), 0);
	want(&a, 1, IBV_WC_REM_OP_ERR);
	want(&b, 50, IBV_WC_LOC_PROT_ERR);
	pair_close(&a, &b);
}
END_TEST

START_TEST(receiver_not_ready)
{
	struct conn_opts o = { .rnr_retry = 3, .rnr_timer = 20 }; /* 10.24 ms */
	enum ibv_wr_opcode op = _i ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND;
	struct end a, b;
	double t;

	pair_open(&a, &b, NULL, &o);
	t = now();
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	ck_assert_int_eq(post(&a, &b, 2, (struct wr){ op, .len = 40000 }), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	want(&a, 2, IBV_WC_RNR_RETRY_EXC_ERR);
	ck_assert_double_ge(now() - t, 3 * 10.24e-3);
	/* the other side has nothing to complain of */
	ck_assert_int_eq(state(&b), IBV_QPS_RTS);
	pair_close(&a, &b);
}
END_TEST

START_TEST(receiver_ready_late)
{
	struct conn_opts o = { .rnr_timer = 14 }; /* 1.28 ms, without end */
	enum ibv_wr_opcode op = _i ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND;
	struct end a, b;

	pair_open(&a, &b, NULL, &o);
	fill(a.buf, 40000, 9);
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ op, .len = 40000 }), 0);
	ck_assert_int_eq(post(&a, &b, 2, (struct wr){ IBV_WR_RDMA_WRITE, .at = 100, .to = 100000, .len = 8 }), 0);
	want_none(&a, 300);
	/* nothing passes what waits */
	check_filled(b.buf + 100000, 0, 0);
	ck_assert_uint_eq(b.buf[100000] | b.buf[100001], 0);
	ck_assert_int_eq(post_rx(&b, 50, 0, 40000), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	want(&a, 2, IBV_WC_SUCCESS);
	ck_assert_uint_eq(want(&b, 50, IBV_WC_SUCCESS).byte_len, 40000);
	check_filled(b.buf, 40000, 9);
	ck_assert_mem_eq(b.buf + 100000, a.buf + 100, 8);
	pair_close(&a, &b);
}
END_TEST

enum silence { PEER_RESET, PEER_ERR, PEER_DESTROYED, WRONG_QPN, WRONG_PSN_LOW, WRONG_PSN_HIGH, WRONG_GID, NSILENCES };

/* Nobody answers: after (retries + 1) times the timeout, not before. */
START_TEST(no_answer)
{
	struct conn_opts o = { .timeout = 13, .retry = 2 }; /* 33.6 ms */
	struct addr aa, ba;
	struct end a, b;
	double t;

	end_open(&a, 0, NULL);
	end_open(&b, 1, NULL);
	aa = end_addr(&a);
	ba = end_addr(&b);
	switch (_i) {
	case WRONG_QPN:
		ba.qpn += 1;
		break;
	case WRONG_PSN_LOW:
		a.psn -= 5;
		break;
	case WRONG_PSN_HIGH:
		a.psn += 5;
		break;
	case WRONG_GID:
		ba.gid.raw[15] += 40;
		ba.lid += ba.lid ? 40 : 0;
		break;
	}
	connect_to(&a, &ba, &o);
	connect_to(&b, &aa, NULL);
	if (_i == PEER_RESET || _i == PEER_ERR)
		ck_assert_int_eq(to_state(b.qp, _i == PEER_ERR ? IBV_QPS_ERR : IBV_QPS_RESET), 0);
	if (_i == PEER_DESTROYED) {
		ck_assert_int_eq(ibv_destroy_qp(b.qp), 0);
		b.qp = NULL;
	}
	ck_assert_int_eq(post_rx(&a, 50, 0, 8), 0);
	t = now();
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = 100000 }), 0);
	ck_assert_int_eq(post(&a, &b, 2, (struct wr){ IBV_WR_RDMA_READ, .len = 8 }), 0);
	want(&a, 1, IBV_WC_RETRY_EXC_ERR);
	t = now() - t;
	/* a peer that hears of a gap says so at once, and that counts as a retry */
	ck_assert_double_ge(t, (_i == WRONG_PSN_HIGH || _i == WRONG_PSN_LOW ? 2 : 3) * 0.0335);
	want(&a, 2, IBV_WC_WR_FLUSH_ERR);
	want(&a, 50, IBV_WC_WR_FLUSH_ERR);
	pair_close(&a, &b);
}
END_TEST

/* A peer that becomes ready late is found by a retry. */
START_TEST(late_rtr)
{
	struct conn_opts o = { .timeout = 17 };
	struct addr aa, ba;
	struct end a, b;

	end_open(&a, 0, NULL);
	end_open(&b, 1, NULL);
	aa = end_addr(&a);
	ba = end_addr(&b);
	connect_to(&a, &ba, &o);
	fill(a.buf, 100000, 4);
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = 100000 }), 0);
	ck_assert_int_eq(post(&a, &b, 2, (struct wr){ IBV_WR_ATOMIC_FETCH_AND_ADD, .at = LEN - 8, .to = LEN - 8,
						      .len = 8, .arg = 3 }), 0);
	want_none(&a, 30);
	connect_to(&b, &aa, NULL);
	want(&a, 1, IBV_WC_SUCCESS);
	want(&a, 2, IBV_WC_SUCCESS);
	check_filled(b.buf, 100000, 4);
	ck_assert_uint_eq(b.buf[LEN - 8], 3);
	pair_close(&a, &b);
}
END_TEST

/* All that is queued comes back flushed, in order, unsignalled requests too. */
START_TEST(flush)
{
	struct conn_opts o = { .timeout = 20 };
	struct end_opts eo = { .no_sig_all = 1 };
	struct addr ba;
	struct end a, b;

	end_open(&a, 0, &eo);
	end_open(&b, 1, NULL);
	ba = end_addr(&b);
	connect_to(&a, &ba, &o);
	for (uint64_t i = 0; i < 10; i++) {
		ck_assert_int_eq(post(&a, &b, i, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8,
							      .flags = i & 1 ? IBV_SEND_SIGNALED : 0 }), 0);
		ck_assert_int_eq(post_rx(&a, 100 + i, 0, 8), 0);
	}
	want_none(&a, 20);
	ck_assert_int_eq(to_state(a.qp, IBV_QPS_ERR), 0);
	for (uint64_t i = 0; i < 10; i++)
		want(&a, i, IBV_WC_WR_FLUSH_ERR);
	for (uint64_t i = 0; i < 10; i++)
		want(&a, 100 + i, IBV_WC_WR_FLUSH_ERR);
	want_none(&a, 20);
	pair_close(&a, &b);
}
END_TEST

/* ---- a peer in another process, which is killed ---- */

struct told {
	struct addr addr;
	uint64_t buf;
	uint32_t rkey;
};

static void whole_read(int fd, void *p, size_t n)
{
	ck_assert_int_eq((int)read(fd, p, n), (int)n);
}

static void whole_write(int fd, const void *p, size_t n)
{
	ck_assert_int_eq((int)write(fd, p, n), (int)n);
}

static void child(int in, int out)
{
	struct told mine, theirs;
	struct end e;

	end_open(&e, 1, NULL);
	mine = (struct told){ end_addr(&e), (uintptr_t)e.buf, e.mr->rkey };
	whole_write(out, &mine, sizeof(mine));
	whole_read(in, &theirs, sizeof(theirs));
	connect_to(&e, &theirs.addr, NULL);
	whole_write(out, "r", 1);
	for (;;)
		pause();
}

START_TEST(killed_peer)
{
	struct conn_opts o = { .timeout = 14, .retry = 1 };
	struct ibv_mr rmr = { 0 };
	int to[2], from[2], done = 0;
	struct told mine, theirs;
	struct end a, peer = { .mr = &rmr };
	struct ibv_wc wc;
	pid_t pid;
	char c;

	ck_assert_int_eq(pipe(to) | pipe(from), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (!pid) {
		child(to[0], from[1]);
		_exit(1);
	}
	whole_read(from[0], &theirs, sizeof(theirs));
	end_open(&a, 0, NULL);
	mine = (struct told){ end_addr(&a), 0, 0 };
	whole_write(to[1], &mine, sizeof(mine));
	whole_read(from[0], &c, 1);
	connect_to(&a, &theirs.addr, &o);
	peer.buf = (uint8_t *)(uintptr_t)theirs.buf;
	rmr.rkey = theirs.rkey;
	/* it works, then it is killed with more on its way than one turn of its engine takes */
	fill(a.buf, 50000, 1);
	ck_assert_int_eq(post(&a, &peer, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = 50000 }), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	memset(a.buf, 0, LEN);
	ck_assert_int_eq(post(&a, &peer, 2, (struct wr){ IBV_WR_RDMA_READ, .len = 50000 }), 0);
	want(&a, 2, IBV_WC_SUCCESS);
	check_filled(a.buf, 50000, 1);
	for (uint64_t i = 0; i < 60; i++)
		ck_assert_int_eq(post(&a, &peer, 10 + i, (struct wr){ IBV_WR_RDMA_WRITE, .len = LEN }), 0);
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	ck_assert_int_eq(post(&a, &peer, 100, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	/* some may have made it; then one fails, and the rest is flushed */
	while (poll_one(&a, &wc, 20000) && !wc.status)
		done++;
	ck_assert_int_eq(wc.status, IBV_WC_RETRY_EXC_ERR);
	for (int i = done + 1; i < 61; i++)
		ck_assert_int_eq(want(&a, i == 60 ? 100 : 10 + (uint64_t)i, IBV_WC_WR_FLUSH_ERR).status,
				 IBV_WC_WR_FLUSH_ERR);
	end_close(&a);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("softnic: errors");
	TCase *t = tcase_create("errors");

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, fault, 0, NFAULTS);
	tcase_add_test(t, receive_too_short);
	tcase_add_test(t, receive_bad_key);
	tcase_add_loop_test(t, receiver_not_ready, 0, 2);
	tcase_add_loop_test(t, receiver_ready_late, 0, 2);
	tcase_add_loop_test(t, no_answer, 0, NSILENCES);
	tcase_add_test(t, late_rtr);
	tcase_add_test(t, flush);
	tcase_add_test(t, killed_peer);
	suite_add_tcase(s, t);
	return run_suite(s);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A server whose client lets nobody into its memory: its siblings only respond. What it does to its queue pair holds for
 * them, too: after ERR nothing lands any more, and a right that it gives later is there.
 */
#include <string.h>

#include "mini.h"

#define LEN (1u << 20)
#define N 8u

static struct mini m = { .name = "responds", .timeout_s = 100, .count = 6, .settle_ms = 300 };
static const struct mend_want want = { .len = N * LEN, .depth = 2 * N, .sge = 1, .recvs = 1 };
static struct mend a, b;

static bool connect(int access)
{
	struct rc_opts oa = { .access = IBV_ACCESS_LOCAL_WRITE, .timeout = 12, .retry_cnt = 2 }, ob = { .access = access };
	struct rc_addr at, bt;

	if (mend_new_qp(&a, &want) || mend_new_qp(&b, &want))
		return false;
	rc_addr_of(&a.dev, a.qp, a.psn, &at);
	rc_addr_of(&b.dev, b.qp, b.psn, &bt);
	CHECK(!rc_connect(&b.dev, b.qp, b.psn, &at, &ob) && !rc_connect(&a.dev, a.qp, a.psn, &bt, &oa), "connect");
	return true;
}

static void post(enum ibv_wr_opcode op, unsigned int k)
{
	CHECK(!mend_post(&a, &(struct mwr){ .op = op, .off = k * LEN, .len = LEN, .raddr = (uintptr_t)b.buf + k * LEN,
					    .rkey = b.mr->rkey, .flags = IBV_SEND_SIGNALED, .id = k }), "post");
}

/* Until it is bonded and knows the keys. */
static void settle(enum ibv_wr_opcode op)
{
	for (unsigned int i = 0; i < 3; i++) {
		mini_nap(m.settle_ms / 3);
		post(op, 0);
		mend_expect(&a, 0, op == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE, -1);
	}
}

static void to_err(unsigned int after_ms)
{
	size_t landed = 0;
	struct ibv_wc wc;

	if (!connect(0))
		return;
	settle(IBV_WR_RDMA_WRITE);
	for (unsigned int k = 0; k < N; k++)
		post(IBV_WR_RDMA_WRITE, k);
	mini_nap(after_ms);
	CHECK(!rc_to_state(b.qp, IBV_QPS_ERR), "to ERR");
	memset(b.buf, 0, N * LEN);
	for (unsigned int k = 0; k < N; k++)
		CHECK(rc_poll_one(a.cq, &wc, 20000) == 1 && wc.wr_id == k, "completion %u", k);
	mini_nap(50);
	for (size_t i = 0; i < N * LEN; i++)
		landed += b.buf[i] != 0;
	CHECK(!landed, "%zu bytes landed after the queue pair was in ERR", landed);
}

static void give_right(void)
{
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE };

	if (!connect(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ))
		return;
	settle(IBV_WR_RDMA_READ);
	CHECK(!vb.modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS), "access flags");
	post(IBV_WR_RDMA_WRITE, 1);
	mend_expect(&a, 1, IBV_WC_RDMA_WRITE, -1);
	mini_nap(50);
	printf("REMOTE_WRITE later: %s\n", mend_state(&b));
}

int main(int argc, char **argv)
{
	mini_start(&m, argc, argv, "a server that only responds: its queue pair goes to ERR, gives a right later");
	if (mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want))
		return 2;
	memset(a.buf, 0xaa, N * LEN);
	for (unsigned int i = 0; i < m.count; i++)
		to_err(1 + i % 3);
	give_right();
	mend_close(&a);
	mend_close(&b);
	return mini_end(&m, NULL);
}

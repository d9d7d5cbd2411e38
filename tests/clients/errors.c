// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What a program is told when things go wrong, as text on stdout without any number that differs from run to run:
 * two runs, one with a library preloaded, must print the same. Checks of its own are only those that hold on every RC
 * device.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "ex.h"
#include "mini.h"

#define BIG	(1u << 20)
#define HALF	(512u << 10)

static const struct mend_want want = { .len = 2 * BIG, .depth = 32, .sge = 1, .inl = 64, .recvs = 8 };
static const struct rc_opts quick = { .timeout = 14, .retry_cnt = 2, .rnr_retry = 1 };
static struct mini m = { .name = "errors", .timeout_s = 120 };
static struct mend a, b;
static struct ibv_mr *half;		/* the first 512 KiB of b's memory, then nothing */

static bool is_recv(const struct ibv_wc *wc)
{
	return wc->wr_id > 100 && wc->wr_id < 200;
}

/*
 * Completions until none comes for a while: their order, ids and statuses. Those of receives come last, because the
 * order between the two queues is nobody's promise.
 */
static unsigned int show(struct mend *e, const char *who, unsigned int expect, int first_ms)
{
	struct ibv_wc wc[64];
	unsigned int n = 0, i, recvs;
	int ms = first_ms;

	while (n < 64 && rc_poll_one(e->cq, &wc[n], ms) == 1)
		ms = ++n < expect ? first_ms : 100;
	for (recvs = 0; recvs < 2; recvs++) {
		for (i = 0; i < n; i++) {
			if (is_recv(&wc[i]) != recvs)
				continue;
			printf("  %s: %s %llu: %s", who, recvs ? "receive" : "wr", (unsigned long long)wc[i].wr_id,
			       vb.wc_status_str(wc[i].status));
			if (wc[i].status == IBV_WC_SUCCESS)
				printf(", opcode %d", wc[i].opcode);
			printf("\n");
			CHECK(wc[i].qp_num == e->qp->qp_num, "qp_num 0x%x", wc[i].qp_num);
		}
	}
	printf("  %s: %u completions, state %s\n", who, n, mend_state(e));
	return n;
}

static int begin(const char *title, const struct rc_opts *o)
{
	int err;

	printf("%s\n", title);
	err = mend_new_qp(&a, &want);
	if (!err)
		err = mend_new_qp(&b, &want);
	if (!err)
		err = mend_join(&a, &b, o);
	CHECK(!err, "set-up: %s", strerror(-err));
	mini_nap(m.settle_ms);
	return err;
}

static void wr(uint64_t id, enum ibv_wr_opcode op, size_t off, size_t len, uint32_t rkey, bool sig)
{
	int err = mend_post(&a, &(struct mwr){ .op = op, .off = off, .len = len, .id = id, .rkey = rkey,
					       .raddr = (uintptr_t)b.buf + off, .flags = sig ? IBV_SEND_SIGNALED : 0 });

	printf("  post %llu: %s\n", (unsigned long long)id, err ? strerror(err) : "ok");
}

/* The QPs of `a` and `b` must be as good as new after RESET. */
static void reuse(void)
{
	int err = rc_to_state(a.qp, IBV_QPS_RESET);
	struct ibv_wc wc;

	printf("  reset and reuse\n");
	CHECK(!err, "RESET: %s", strerror(-err));
	err = rc_to_state(b.qp, IBV_QPS_RESET);
	CHECK(!err, "RESET: %s", strerror(-err));
	while (rc_poll_one(a.cq, &wc, 0) == 1 || rc_poll_one(b.cq, &wc, 0) == 1)
		CHECK(0, "wr %llu completed after RESET", (unsigned long long)wc.wr_id);
	err = mend_join(&a, &b, NULL);
	CHECK(!err, "connecting again: %s", strerror(-err));
	mini_nap(m.settle_ms);
	pattern_fill(a.buf, 77, 0, HALF);
	memset(b.buf, 0, HALF);
	wr(901, IBV_WR_RDMA_WRITE, 0, HALF, b.mr->rkey, true);
	CHECK(show(&a, "a", 1, 5000) == 1, "reuse");
	CHECK(!memcmp(a.buf, b.buf, HALF), "data after reuse");
}

static void access_error(const char *title, enum ibv_wr_opcode op, uint64_t rkey_add)
{
	uint32_t bad = half->rkey + (uint32_t)rkey_add;
	size_t i;

	if (begin(title, NULL))
		return;
	pattern_fill(a.buf, 1, 0, BIG);
	memset(b.buf, 0, 2 * BIG);
	wr(1, IBV_WR_RDMA_WRITE, 0, 4096, b.mr->rkey, true);
	wr(2, IBV_WR_RDMA_WRITE, 65536, 200000, b.mr->rkey, false);
	CHECK(show(&a, "a", 1, 3000) == 1, "the good ones");
	wr(3, op, HALF - 100000, 300001, bad, true);
	wr(4, IBV_WR_RDMA_WRITE, 0, 100000, b.mr->rkey, true);
	wr(5, IBV_WR_RDMA_WRITE, 0, 100000, b.mr->rkey, false);
	wr(6, IBV_WR_SEND, 0, 10, 0, true);
	show(&a, "a", 4, 3000);
	wr(7, IBV_WR_RDMA_WRITE, 0, 10, b.mr->rkey, true);
	show(&a, "a", 1, 1000);
	for (i = HALF; i < 2 * BIG && !b.buf[i]; i++)
		;
	CHECK(i == 2 * BIG, "memory beyond the region written at %zu", i);
	reuse();
}

static void local_error(void)
{
	struct ibv_sge sge = { (uintptr_t)a.buf, 100000, a.mr->lkey + 0x100000 };
	struct ibv_send_wr w = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = IBV_SEND_SIGNALED,
				 .wr.rdma = { (uintptr_t)b.buf, b.mr->rkey } }, *badp;

	if (begin("wrong lkey in a large WRITE", NULL))
		return;
	printf("  post 1: %d\n", any_post(a.qp, &w, &badp));
	wr(2, IBV_WR_RDMA_WRITE, 0, 100000, b.mr->rkey, true);
	show(&a, "a", 2, 3000);
	reuse();
}

static void no_receive(void)
{
	if (begin("SEND without a receive, rnr_retry 1", &quick))
		return;
	wr(1, IBV_WR_RDMA_WRITE, 0, 100000, b.mr->rkey, false);
	wr(2, IBV_WR_SEND, 0, 10, 0, true);
	wr(3, IBV_WR_RDMA_WRITE, 0, 100000, b.mr->rkey, true);
	show(&a, "a", 2, 3000);
	reuse();
}

/* The peer's QP goes away below the connection: retries run out. */
static void peer_gone(void)
{
	if (begin("peer reset, retry_cnt 2", &quick))
		return;
	CHECK(!rc_to_state(b.qp, IBV_QPS_RESET), "RESET");
	wr(1, IBV_WR_RDMA_WRITE, 0, 300000, b.mr->rkey, true);
	wr(2, IBV_WR_RDMA_READ, 0, 100000, b.mr->rkey, true);
	wr(3, IBV_WR_RDMA_WRITE, 0, 8, b.mr->rkey, false);
	show(&a, "a", 3, 10000);
	reuse();
}

static void to_err_queued(void)
{
	unsigned int i;

	if (begin("to ERR with WRs and receives queued", NULL))
		return;
	CHECK(!rc_to_state(b.qp, IBV_QPS_RESET), "RESET");
	mini_nap(50);
	for (i = 1; i <= 3; i++)
		CHECK(!mend_recv(&a, BIG, 64, 100 + i), "post_recv");
	for (i = 1; i <= 12; i++)
		wr(i, i % 4 ? IBV_WR_RDMA_WRITE : IBV_WR_ATOMIC_FETCH_AND_ADD, 0, i % 4 ? 100000 : 8, b.mr->rkey, i % 3 > 0);
	CHECK(!rc_to_state(a.qp, IBV_QPS_ERR), "ERR");
	show(&a, "a", 15, 3000);
	wr(13, IBV_WR_RDMA_WRITE, 0, 100000, b.mr->rkey, true);
	CHECK(!mend_recv(&a, BIG, 64, 104), "post_recv");
	show(&a, "a", 2, 1000);
	reuse();
}

static void reset_outstanding(void)
{
	unsigned int i;

	if (begin("RESET with WRs outstanding", NULL))
		return;
	CHECK(!rc_to_state(b.qp, IBV_QPS_RESET), "RESET");
	mini_nap(50);
	for (i = 1; i <= 6; i++)
		wr(i, i % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, 0, i % 2 ? 200000 : 32, b.mr->rkey, true);
	reuse();
}

static void destroy_outstanding(void)
{
	struct ibv_wc wc;
	unsigned int i;
	int err;

	if (begin("destroy with WRs outstanding", NULL))
		return;
	CHECK(!rc_to_state(b.qp, IBV_QPS_RESET), "RESET");
	mini_nap(50);
	for (i = 1; i <= 6; i++)
		wr(i, IBV_WR_RDMA_WRITE, 0, 200000, b.mr->rkey, true);
	err = vb.destroy_qp(a.qp);
	a.qp = NULL;
	printf("  destroy: %s\n", err ? strerror(err) : "ok");
	/* a provider may or may not clean the CQ of a destroyed QP: what it leaves belongs to those WRs */
	while (rc_poll_one(a.cq, &wc, 100) == 1)
		CHECK(wc.wr_id >= 1 && wc.wr_id <= 6, "wr_id %llu", (unsigned long long)wc.wr_id);
}

static void bad_modify(void)
{
	struct rc_addr peer;
	int err;

	printf("modify_qp that must be refused\n");
	err = mend_new_qp(&a, &want);
	CHECK(!err, "create_qp");
	rc_addr_of(&b.dev, b.qp, 1, &peer);
	err = rc_to_rtr(&a.dev, a.qp, &peer, NULL);
	printf("  RESET to RTR: %s\n", strerror(-err));
	CHECK(err, "RESET to RTR was taken");
	err = rc_to_rts(a.qp, 1, NULL);
	printf("  RESET to RTS: %s\n", strerror(-err));
	CHECK(err, "RESET to RTS was taken");
	err = rc_to_init(&a.dev, a.qp, NULL);
	CHECK(!err, "INIT");
	peer.gid.raw[15] ^= 0x55;
	err = rc_to_rtr(&a.dev, a.qp, &peer, NULL);
	printf("  RTR to an address nobody has: %s, state %s\n", err ? strerror(-err) : "ok", mend_state(&a));
}

int main(int argc, char **argv)
{
	int err;

	mini_start(&m, argc, argv, "Error completions, flushes, RESET, destroy; text to compare runs by.");
	err = mend_open(&a, &m, m.dev, &want);
	if (!err)
		err = mend_open(&b, &m, m.peer_dev, &want);
	if (err)
		return 2;
	half = vb.reg_mr(b.dev.pd, b.buf, HALF, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	if (!half)
		return 2;
	access_error("WRITE that ends beyond the region", IBV_WR_RDMA_WRITE, 0);
	access_error("READ that ends beyond the region", IBV_WR_RDMA_READ, 0);
	access_error("WRITE with an rkey that nobody has", IBV_WR_RDMA_WRITE, 0x100000);
	local_error();
	no_receive();
	peer_gone();
	to_err_queued();
	reset_outstanding();
	destroy_outstanding();
	bad_modify();
	err = vb.dereg_mr(half);
	CHECK(!err, "dereg_mr: %s", strerror(err));
	mend_close(&a);
	mend_close(&b);
	fflush(stdout);
	fprintf(stderr, "errors: %u failed\n", mini_failed);
	return mini_failed ? 1 : 0;
}

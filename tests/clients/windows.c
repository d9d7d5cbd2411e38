// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What a program changes on connected QPs: memory windows bound between WRITEs (ibv_bind_mw is a request on the send
 * queue without a post_send), and access flags given and taken away. Lines on stdout have no number that differs from
 * run to run.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "mini.h"

#define BIG	(300u << 10)
#define ROUNDS	20

static const struct mend_want want = { .len = 4 * BIG, .depth = 64, .sge = 1, .inl = 64, .recvs = 4 };
static struct mini m = { .name = "windows", .timeout_s = 120 };
static struct mend a, b;

static bool is(const uint8_t *p, uint64_t key)
{
	static uint8_t wanted[BIG];

	pattern_fill(wanted, key, 0, BIG);
	return !memcmp(p, wanted, BIG);
}

static bool begin(const char *title, const struct rc_opts *of_b)
{
	struct rc_addr aa, ba;
	int err;

	printf("%s\n", title);
	err = mend_new_qp(&a, &want);
	if (!err)
		err = mend_new_qp(&b, &want);
	if (!err) {
		rc_addr_of(&a.dev, a.qp, a.psn, &aa);
		rc_addr_of(&b.dev, b.qp, b.psn, &ba);
		err = rc_connect(&a.dev, a.qp, a.psn, &ba, NULL);
	}
	if (!err)
		err = rc_connect(&b.dev, b.qp, b.psn, &aa, of_b);
	CHECK(!err, "set-up: %s", strerror(-err));
	mini_nap(m.settle_ms);
	return !err;
}

static void wr(struct mend *from, struct mend *to, enum ibv_wr_opcode op, uint64_t id, size_t len, uint32_t rkey,
	       int flags)
{
	int err = mend_post(from, &(struct mwr){ .op = op, .len = len, .id = id, .raddr = (uintptr_t)to->buf + 2 * BIG,
						 .rkey = rkey, .flags = flags });

	CHECK(!err, "post %llu: %s", (unsigned long long)id, strerror(err));
}

static int bind(struct mend *e, struct ibv_mw *mw, struct ibv_mr *mr, uint64_t id, size_t len, int flags)
{
	struct ibv_mw_bind bd = {
		.wr_id = id,
		.send_flags = (unsigned int)flags,
		.bind_info = { .mr = mr, .addr = (uintptr_t)e->buf + 2 * BIG, .length = len,
			       .mw_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE },
	};

	return ibv_bind_mw(e->qp, mw, &bd);
}

static void binds(void)
{
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	uint64_t id = 1;
	int err;

	if (!begin("windows bound between WRITEs", NULL))
		return;
	mr = vb.reg_mr(a.dev.pd, a.buf, a.len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		       IBV_ACCESS_MW_BIND);
	mw = mr ? ibv_alloc_mw(a.dev.pd, IBV_MW_TYPE_1) : NULL;
	CHECK(mw, "alloc_mw: %s", strerror(errno));
	if (!mw)
		return;
	for (int i = 0; i < ROUNDS && !mini_failed; i++) {
		/* a bulk one that perhaps nobody tells of, a bind, a small one; the answers must come in that order */
		int flags = i % 2 ? IBV_SEND_SIGNALED : 0;

		pattern_fill(a.buf, (uint64_t)i, 0, BIG);
		wr(&a, &b, IBV_WR_RDMA_WRITE, id++, BIG, b.mr->rkey, flags);
		err = bind(&a, mw, mr, id++, BIG, IBV_SEND_SIGNALED);
		CHECK(!err, "bind: %s", strerror(err));
		wr(&a, &b, IBV_WR_RDMA_WRITE, id++, 8, b.mr->rkey, IBV_SEND_SIGNALED);
		if (flags)
			mend_expect(&a, id - 3, IBV_WC_RDMA_WRITE, -1);
		mend_expect(&a, id - 2, IBV_WC_BIND_MW, -1);
		mend_expect(&a, id - 1, IBV_WC_RDMA_WRITE, -1);
		CHECK(is(b.buf + 2 * BIG, (uint64_t)i), "data of round %d", i);
		/* the other side reads through the window */
		pattern_fill(a.buf + 2 * BIG, (uint64_t)i + 1000, 0, BIG);
		memset(b.buf, 0, BIG);
		wr(&b, &a, IBV_WR_RDMA_READ, id, BIG, mw->rkey, IBV_SEND_SIGNALED);
		mend_expect(&b, id++, IBV_WC_RDMA_READ, BIG);
		CHECK(is(b.buf, (uint64_t)i + 1000), "data through the window, round %d", i);
	}
	CHECK(!vb.destroy_qp(a.qp), "destroy_qp");
	a.qp = NULL;
	err = ibv_dealloc_mw(mw);
	CHECK(!err, "dealloc_mw: %s", strerror(err));
	CHECK(!vb.dereg_mr(mr), "dereg_mr");
}

static void set_access(int access)
{
	struct ibv_qp_attr attr = { .qp_access_flags = (unsigned int)access };
	int err = vb.modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS);

	printf("  access of the peer: %s\n", err ? strerror(err) : "set");
}

static void access_flags(void)
{
	static const struct rc_opts only_read = { .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ };
	struct ibv_wc wc;

	if (!begin("access flags of a connected QP", &only_read))
		return;
	pattern_fill(b.buf + 2 * BIG, 5, 0, BIG);
	wr(&a, &b, IBV_WR_RDMA_READ, 1, BIG, b.mr->rkey, IBV_SEND_SIGNALED);
	mend_expect(&a, 1, IBV_WC_RDMA_READ, BIG);
	CHECK(is(a.buf, 5), "data read");
	set_access(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	pattern_fill(a.buf, 6, 0, BIG);
	wr(&a, &b, IBV_WR_RDMA_WRITE, 2, BIG, b.mr->rkey, IBV_SEND_SIGNALED);
	mend_expect(&a, 2, IBV_WC_RDMA_WRITE, -1);
	CHECK(is(b.buf + 2 * BIG, 6), "data written");
	set_access(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	wr(&a, &b, IBV_WR_RDMA_WRITE, 3, BIG, b.mr->rkey, IBV_SEND_SIGNALED);
	for (int ms = 5000; rc_poll_one(a.cq, &wc, ms) == 1; ms = 100)
		printf("  written without the right: wr %llu: %s\n", (unsigned long long)wc.wr_id,
		       vb.wc_status_str(wc.status));
}

int main(int argc, char **argv)
{
	mini_start(&m, argc, argv, "Memory windows bound between WRITEs; access flags changed on a connected QP.");
	if (mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want))
		return 2;
	binds();
	access_flags();
	mend_close(&a);
	mend_close(&b);
	return mini_end(&m, NULL);
}

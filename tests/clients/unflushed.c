// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * unflushed lost|rereg|drop: what was acknowledged on a sibling, and not flushed yet, when something changes. lost: the sibling's
 * cable is pulled (by the fault script), then a flag is sent, which must end, well or not. rereg: the region that was
 * written is registered elsewhere, under the same key perhaps; flushes must not break the connection over it. drop: regions
 * are deregistered right after their flag, while flushes of them may be under way, and a flag elsewhere is behind these.
 */
#include <stdlib.h>
#include <string.h>
#include "ex.h"
#include "mini.h"

#define REGION 262144
#define BULK 200000

static struct mend_want want = { .len = 1 << 20, .depth = 64, .sge = 2, .inl = 64, .recvs = 8 };
static struct mini m = { .name = "unflushed", .timeout_s = 60 };
static struct mend a, b;

static void write_to(uint64_t id, const void *to, uint32_t rkey, uint32_t len, int flags)
{
	struct mwr w = { .op = IBV_WR_RDMA_WRITE, .len = len, .raddr = (uintptr_t)to, .rkey = rkey, .id = id,
			 .flags = (unsigned)flags };

	CHECK(!mend_post(&a, &w), "post");
	if (flags & IBV_SEND_SIGNALED)
		mend_expect(&a, id, IBV_WC_RDMA_WRITE, -1);
}

static void lost(void)
{
	struct mwr flag = { .op = IBV_WR_RDMA_WRITE, .len = 8, .raddr = (uintptr_t)b.buf, .rkey = b.mr->rkey, .id = 2,
			    .flags = IBV_SEND_SIGNALED };
	struct ibv_wc wc;
	int n = 0;

	write_to(1, b.buf, b.mr->rkey, BULK, 0);
	mini_nap(7000); /* in which the cable goes */
	CHECK(!mend_post(&a, &flag), "post");
	for (int ms = 0; !n && ms < 30000; ms++) {
		n = ibv_poll_cq(a.cq, 1, &wc);
		if (!n)
			mini_nap(1);
	}
	CHECK(n == 1, "the flag has not ended within 30 s");
	printf("the flag ended with status %d\n", n == 1 ? (int)wc.status : -1);
}

static void rereg(void)
{
	uint8_t *was = aligned_alloc(4096, REGION), *is = aligned_alloc(4096, REGION);
	struct ibv_mr *x;
	uint32_t key;

	memset(was, 0, REGION);
	memset(is, 0, REGION);
	x = vb.reg_mr(b.dev.pd, was, REGION, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(x, "reg_mr");
	if (!x)
		return;
	key = x->rkey;
	write_to(1, was, key, BULK, 0);
	mini_nap(200); /* it is there, and the program knows by other means */
	CHECK(!ibv_rereg_mr(x, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, is, REGION, 0), "rereg_mr");
	printf("its key is %s\n", x->rkey == key ? "the same" : "another");
	mini_nap(300); /* the new keys are told */
	for (unsigned i = 0; i < 5; i++) {
		write_to(10 + i, b.buf, b.mr->rkey, BULK, IBV_SEND_SIGNALED);
		write_to(20 + i, i % 2 ? b.buf : is, i % 2 ? b.mr->rkey : x->rkey, 8, IBV_SEND_SIGNALED);
	}
	CHECK(!vb.dereg_mr(x), "dereg_mr");
	free(was);
	free(is);
}

static void drop(void)
{
	uint8_t *x = aligned_alloc(4096, REGION);
	struct mwr flag = { .op = IBV_WR_RDMA_WRITE, .len = 8, .raddr = (uintptr_t)b.buf, .rkey = b.mr->rkey,
			    .flags = IBV_SEND_SIGNALED };
	struct ibv_mr *mr;

	memset(a.buf, 1, BULK);
	for (unsigned i = 0; i < 40; i++) {
		memset(x, 0, REGION);
		mr = vb.reg_mr(b.dev.pd, x, REGION,
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
		CHECK(mr, "reg_mr");
		if (!mr)
			break;
		mini_nap(100); /* its keys are told */
		flag.id = i + 1;
		write_to(0, x, mr->rkey, BULK, 0);
		write_to(0, x + BULK, mr->rkey, 8, 0);
		CHECK(!mend_post(&a, &flag), "post");
		while (!__atomic_load_n(x + BULK, __ATOMIC_ACQUIRE))
			mini_nap(0);
		CHECK(x[0] && x[BULK - 1], "a flag before its data");
		CHECK(!vb.dereg_mr(mr), "dereg_mr");
		mend_expect(&a, i + 1, IBV_WC_RDMA_WRITE, -1);
	}
	free(x);
}

int main(int argc, char **argv)
{
	const struct rc_opts quick = { .timeout = 14, .retry_cnt = 3 };
	bool cable = argc > 1 && !strcmp(argv[1], "lost");

	if (argc < 2 || (!cable && strcmp(argv[1], "rereg") && strcmp(argv[1], "drop"))) {
		fprintf(stderr, "usage: unflushed lost|rereg|drop OPTION...\n");
		return 2;
	}
	mini_start(&m, argc - 1, argv + 1, "What was acknowledged on a sibling and is not flushed.");
	if (mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want))
		return 2;
	CHECK(!mend_join(&a, &b, &quick), "join");
	mini_nap(m.settle_ms);
	if (cable)
		lost();
	else if (!strcmp(argv[1], "drop"))
		drop();
	else
		rereg();
	mend_close(&a);
	mend_close(&b);
	return mini_end(&m, NULL);
}

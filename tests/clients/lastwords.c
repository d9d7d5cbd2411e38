// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What a program is told, and what has arrived, when a request fails behind others that nothing is told of: those before it
 * are done, it has its error, and what is posted later is flushed behind it. Each line on stdout is as on one port.
 */
#include <string.h>

#include "mini.h"

#define BIG (1u << 20)
#define KEYS 4 /* WRITEs before all, until the keys are known */

static const struct mend_want want = { .len = 4 * BIG, .depth = 32, .sge = 1, .inl = 64, .recvs = 4 };
static struct mini m = { .name = "lastwords", .timeout_s = 120 };
static struct mend a, b;

static void post(uint64_t id, size_t len, size_t at, uint32_t rkey, int flags)
{
	int err = mend_post(&a, &(struct mwr){ .op = IBV_WR_RDMA_WRITE, .off = at, .len = len, .id = id,
					       .raddr = (uintptr_t)b.buf + at, .rkey = rkey, .flags = flags });

	CHECK(!err, "post %llu: %s", (unsigned long long)id, strerror(err));
}

/* Prints what comes, until nothing has for so long. */
static void told(unsigned int quiet_ms)
{
	uint64_t last = now_ns();
	struct ibv_wc wc;

	while (now_ns() - last < quiet_ms * UINT64_C(1000000)) {
		if (ibv_poll_cq(a.cq, 1, &wc) != 1)
			continue;
		printf("  %llu: %s\n", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
		last = now_ns();
	}
}

static bool begin(const char *title)
{
	printf("%s\n", title);
	CHECK(!mend_new_qp(&a, &want) && !mend_new_qp(&b, &want) && !mend_join(&a, &b, NULL), "set-up");
	mini_nap(m.settle_ms);
	for (uint64_t i = 0; i < KEYS; i++) {
		post(100 + i, 65536, 0, b.mr->rkey, IBV_SEND_SIGNALED);
		mend_expect(&a, 100 + i, IBV_WC_RDMA_WRITE, -1);
		mini_nap(20);
	}
	for (size_t i = 0; i < a.len; i++)
		a.buf[i] = (uint8_t)(i * 7 + (i >> 12) + 1);
	memset(b.buf, 0, b.len);
	return !mini_failed;
}

static void arrived(size_t at, size_t len)
{
	printf("  data: %s\n", memcmp(a.buf + at, b.buf + at, len) ? "missing" : "there");
}

/* A flag, then unsignalled bulk that may have to wait for it on other ports, then what fails. */
static void waiting(void)
{
	if (!begin("unsignalled bulk behind a flag, then a wrong key"))
		return;
	post(1, 8, 0, b.mr->rkey, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
	post(2, 65536, 65536, b.mr->rkey, 0);
	post(3, 65536, 2 * BIG, b.mr->rkey ^ 0x5a5a00, IBV_SEND_SIGNALED);
	told(1000);
	arrived(65536, 65536);
}

/* Unsignalled bulk that takes long on other ports. */
static void long_way(void)
{
	if (!begin("long unsignalled bulk, then a wrong key"))
		return;
	post(1, BIG, 0, b.mr->rkey, 0);
	post(2, 65536, 2 * BIG, b.mr->rkey ^ 0x5a5a00, IBV_SEND_SIGNALED);
	told(1500);
	arrived(0, BIG);
}

/* Good bulk that takes long on one port or another, then some of which only the second half fails. */
static void half(enum ibv_wr_opcode op)
{
	int err;

	if (!begin(op == IBV_WR_RDMA_READ ? "long bulk, then a READ half beyond the end" : "long bulk, then a WRITE half beyond the end"))
		return;
	post(1, BIG, 0, b.mr->rkey, IBV_SEND_SIGNALED);
	err = mend_post(&a, &(struct mwr){ .op = op, .off = 2 * BIG, .len = 65536, .id = 2, .rkey = b.mr->rkey,
					   .raddr = (uintptr_t)b.buf + b.len - 32768 - 1, .flags = IBV_SEND_SIGNALED });
	CHECK(!err, "post 2: %s", strerror(err));
	/* on one port neither goes */
	post(3, BIG, 0, b.mr->rkey, 0);
	post(4, 8, 0, b.mr->rkey, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
	told(1500);
	arrived(0, BIG);
}

/* Unsignalled bulk fails beyond the end of the regions; a little later another is posted. */
static void afterwards(unsigned int gap_ms)
{
	if (!begin("unsignalled bulk beyond the end, and another request later"))
		return;
	post(1, 65536, b.len - 32768 - 1, b.mr->rkey, 0);
	mini_nap(gap_ms);
	post(2, 8, 0, b.mr->rkey, IBV_SEND_SIGNALED);
	told(500);
}

/* One list, whose last one is beyond the region: nothing that is done for those before it, a flush perhaps, touches that. */
static void list(void)
{
	struct ibv_sge big = { (uintptr_t)a.buf, 65536, a.mr->lkey };
	struct ibv_send_wr w[5], *bad;

	if (!begin("bulk, flags, bulk, and bulk beyond the end, in one list"))
		return;
	for (unsigned int i = 0; i < 5; i++)
		w[i] = (struct ibv_send_wr){ .wr_id = i + 1, .sg_list = &big, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					     .send_flags = i == 3 ? IBV_SEND_SIGNALED : 0, .next = i < 4 ? &w[i + 1] : NULL,
					     .wr.rdma = { (uintptr_t)b.buf + (i == 4 ? b.len - 32768 : i * 65536), b.mr->rkey } };
	w[1].num_sge = w[2].num_sge = 0;
	CHECK(!ibv_post_send(a.qp, w, &bad), "post");
	told(1500);
	printf("  data: %s\n", memcmp(a.buf, b.buf, 65536) || memcmp(a.buf, b.buf + 3 * 65536, 65536) ? "missing" : "there");
}

int main(int argc, char **argv)
{
	mini_start(&m, argc, argv, "what a program is told when a request fails behind unsignalled ones");
	if (mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want))
		return 2;
	waiting();
	long_way();
	half(IBV_WR_RDMA_READ);
	half(IBV_WR_RDMA_WRITE);
	for (unsigned int gap = 0; gap < 40; gap += 10)
		afterwards(gap);
	list();
	mend_close(&a);
	mend_close(&b);
	return mini_end(&m, NULL);
}

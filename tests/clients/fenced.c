// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A READ, a request with FENCE, and a WRITE, without one, of what was read: it stands behind the FENCE, so that the READ is over
 * when it begins (IBTA 10.8.3.3). What is fenced is a short inline WRITE, or a long one by a key that nobody knows yet, and so
 * goes over one port.
 */
#include <stdlib.h>
#include <string.h>

#include "mini.h"

#define LEN (256u << 10)
#define LONG (64u << 10)

/* of a: read to at 0; of b: read from at 0, written back to at LEN, flags behind it */
static const struct mend_want want = { .len = 2 * LEN + LONG, .depth = 64, .sge = 1, .inl = 64, .recvs = 4 };
static struct mini m = { .name = "fenced", .count = 20, .timeout_s = 120 };
static struct mend a, b;

static void post(enum ibv_wr_opcode op, uint64_t id, size_t off, size_t len, uint64_t raddr, uint32_t rkey, int flags)
{
	int err = mend_post(&a, &(struct mwr){ .op = op, .off = off, .len = len, .id = id, .raddr = raddr, .rkey = rkey,
					       .flags = flags | IBV_SEND_SIGNALED });

	CHECK(!err, "post %llu: %s", (unsigned long long)id, strerror(err));
}

static bool round_of(unsigned int i, bool lengthy)
{
	uint8_t *new = aligned_alloc(4096, LONG);
	struct ibv_mr *mr;
	bool ok;

	for (size_t k = 0; k < LEN; k++)
		b.buf[k] = (uint8_t)(k * 3 + i + 1);
	memset(a.buf, 0xee, LEN);
	memset(b.buf + LEN, 0, LEN);
	/* just before it is used */
	mr = new ? vb.reg_mr(b.dev.pd, new, LONG, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) : NULL;
	if (!mr) {
		CHECK(mr, "reg_mr");
		free(new);
		return false;
	}
	post(IBV_WR_RDMA_READ, 1, 0, LEN, (uintptr_t)b.buf, b.mr->rkey, 0);
	if (lengthy)
		post(IBV_WR_RDMA_WRITE, 2, LEN, LONG, (uintptr_t)new, mr->rkey, IBV_SEND_FENCE);
	else
		post(IBV_WR_RDMA_WRITE, 2, LEN, 8, (uintptr_t)b.buf + 2 * LEN, b.mr->rkey, IBV_SEND_FENCE | IBV_SEND_INLINE);
	post(IBV_WR_RDMA_WRITE, 3, 0, LEN, (uintptr_t)b.buf + LEN, b.mr->rkey, 0);
	mend_expect(&a, 1, IBV_WC_RDMA_READ, -1);
	mend_expect(&a, 2, IBV_WC_RDMA_WRITE, -1);
	mend_expect(&a, 3, IBV_WC_RDMA_WRITE, -1);
	ok = !memcmp(b.buf, b.buf + LEN, LEN);
	CHECK(!vb.dereg_mr(mr), "dereg_mr");
	free(new);
	return ok;
}

int main(int argc, char **argv)
{
	mini_start(&m, argc, argv, "WRITEs of what was read before a FENCE");
	if (mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want) || mend_join(&a, &b, NULL))
		return 2;
	mini_nap(m.settle_ms);
	for (unsigned int lengthy = 0; lengthy < 2; lengthy++) {
		unsigned int wrong = 0;

		for (unsigned int i = 0; i < m.count; i++)
			wrong += !round_of(i, lengthy);
		printf("behind a %s one: %u rounds wrong\n", lengthy ? "long" : "short", wrong);
		CHECK(!wrong, "a WRITE overtook a FENCE");
	}
	mend_close(&a);
	mend_close(&b);
	return mini_end(&m, NULL);
}

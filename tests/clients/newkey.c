// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * WRITEs to one range of a region that was registered just now, so that its key becomes known to whoever asks its owner
 * in their midst; under addresses of the region's own, as under those of the memory. The last one must remain.
 */
#include <string.h>
#include <time.h>

#include "mini.h"

#define LEN (64u << 10)
#define WRITES 6

static const struct mend_want want = { .len = WRITES * LEN, .depth = 64, .sge = 1, .inl = 64, .recvs = 4 };
static struct mini m = { .name = "newkey", .count = 200, .timeout_s = 120 };
static struct mend a, b;

/* The number of the first byte that is not the last WRITE's, or LEN. */
static size_t first_old(void)
{
	size_t i = 0;

	while (i < LEN && b.buf[i] == WRITES)
		i++;
	return i;
}

static bool round_of(uint64_t iova, struct rng *rng)
{
	struct ibv_mr *mr = vb.reg_mr_iova(b.dev.pd, b.buf, LEN, iova, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	bool ok;

	if (!mr) {
		CHECK(mr, "reg_mr_iova");
		return false;
	}
	for (unsigned int i = 0; i < WRITES; i++) {
		int err = mend_post(&a, &(struct mwr){ .op = IBV_WR_RDMA_WRITE, .off = i * LEN, .len = LEN, .id = i,
						       .raddr = iova, .rkey = mr->rkey, .flags = IBV_SEND_SIGNALED });
		struct timespec t = { 0, (long)rng_range(rng, 0, 1500000) };

		CHECK(!err, "post: %s", strerror(err));
		if (i == WRITES - 2)
			nanosleep(&t, NULL);
	}
	for (unsigned int i = 0; i < WRITES; i++)
		mend_expect(&a, i, IBV_WC_RDMA_WRITE, -1);
	ok = first_old() == LEN;
	CHECK(!vb.dereg_mr(mr), "dereg_mr");
	return ok;
}

int main(int argc, char **argv)
{
	unsigned int old = 0;
	struct rng rng;

	mini_start(&m, argc, argv, "WRITEs over one another, by a key that nobody knows yet");
	rng.s = m.seed;
	if (mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want) || mend_join(&a, &b, NULL))
		return 2;
	mini_nap(m.settle_ms);
	for (unsigned int i = 0; i < WRITES; i++)
		memset(a.buf + i * LEN, (int)i + 1, LEN);
	for (unsigned int shifted = 0; shifted < 2; shifted++) {
		for (unsigned int i = 0; i < m.count; i++) {
			memset(b.buf, 0, LEN);
			old += !round_of(shifted ? 0x10000000 : (uintptr_t)b.buf, &rng);
		}
		printf("%s addresses: old bytes in %u rounds\n", shifted ? "the region's own" : "the memory's", old);
		CHECK(!old, "a WRITE overtook one after it");
	}
	mend_close(&a);
	mend_close(&b);
	return mini_end(&m, NULL);
}

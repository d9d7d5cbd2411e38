// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <string.h>
#include <time.h>

#include "mini.h"

#define AREA	(1u << 20)
#define SRC	0u		/* what WRITEs send, then where READs land */
#define DST	AREA		/* where WRITEs land */
#define WORD	(2 * AREA)	/* atomics: the word, then the result */
#define MSG	(2 * AREA + 4096)

static const struct mend_want want = { .len = 2 * AREA + 8192, .depth = 32, .inl = 64, .recvs = 8 };

static bool is(const uint8_t *p, uint64_t key, size_t len)
{
	static uint8_t w[AREA];

	pattern_fill(w, key, 0, len);
	return !memcmp(p, w, len);
}

/* From a's memory to b's, with every completion checked. */
static void traffic(struct mend *a, struct mend *b, const struct mini *m, struct rng *r, unsigned int count)
{
	uint64_t raddr = (uintptr_t)b->buf, key, v, before;
	size_t len, so, to;
	unsigned int i;

	(void)m;
	for (i = 0; i < count && !mini_failed; i++) {
		key = rng_u64(r);
		len = rng_size(r, 1, AREA / 2);
		so = rng_range(r, 0, AREA - len);
		to = rng_range(r, 8, AREA - len - 8);
		pattern_fill(a->buf + SRC + so, key, 0, len);
		memset(b->buf + DST + to - 8, 0, len + 16);
		CHECK(!mend_post(a, &(struct mwr){ .op = IBV_WR_RDMA_WRITE, .off = SRC + so, .len = len, .id = key,
						   .raddr = raddr + DST + to, .rkey = b->mr->rkey,
						   .flags = IBV_SEND_SIGNALED }), "post");
		mend_expect(a, key, IBV_WC_RDMA_WRITE, -1);
		CHECK(is(b->buf + DST + to, key, len), "write of %zu: completed, but the data is not there", len);
		memcpy(&v, b->buf + DST + to - 8, 8);
		memcpy(&before, b->buf + DST + to + len, 8);
		CHECK(!v && !before, "write of %zu: bytes beside the target changed", len);

		memset(a->buf + SRC, 0, AREA);
		CHECK(!mend_post(a, &(struct mwr){ .op = IBV_WR_RDMA_READ, .off = SRC + so, .len = len, .id = ~key,
						   .raddr = raddr + DST + to, .rkey = b->mr->rkey,
						   .flags = IBV_SEND_SIGNALED }), "post");
		mend_expect(a, ~key, IBV_WC_RDMA_READ, (int64_t)len);
		CHECK(is(a->buf + SRC + so, key, len), "read of %zu: completed, but the data is not there", len);

		/* the few bytes that GPU programs read back to flush */
		CHECK(!mend_post(a, &(struct mwr){ .op = IBV_WR_RDMA_READ, .off = MSG, .len = len < 4 ? len : 4, .id = 5,
						   .raddr = raddr + DST + to, .rkey = b->mr->rkey,
						   .flags = IBV_SEND_SIGNALED }), "post");
		mend_expect(a, 5, IBV_WC_RDMA_READ, len < 4 ? (int64_t)len : 4);
		CHECK(is(a->buf + MSG, key, len < 4 ? len : 4), "flush read");

		memcpy(&before, b->buf + WORD, 8);
		CHECK(!mend_post(a, &(struct mwr){ .op = IBV_WR_ATOMIC_FETCH_AND_ADD, .off = WORD + 8, .len = 8, .id = 1,
						   .raddr = raddr + WORD, .rkey = b->mr->rkey, .arg = key,
						   .flags = IBV_SEND_SIGNALED }), "post");
		mend_expect(a, 1, IBV_WC_FETCH_ADD, 8);
		memcpy(&v, a->buf + WORD + 8, 8);
		CHECK(v == before, "fetch_add returned 0x%llx", (unsigned long long)v);
		CHECK(!mend_post(a, &(struct mwr){ .op = IBV_WR_ATOMIC_CMP_AND_SWP, .off = WORD + 8, .len = 8, .id = 2,
						   .raddr = raddr + WORD, .rkey = b->mr->rkey, .compare = before + key,
						   .arg = key ^ i, .flags = IBV_SEND_SIGNALED }), "post");
		mend_expect(a, 2, IBV_WC_COMP_SWAP, 8);
		memcpy(&v, b->buf + WORD, 8);
		CHECK(v == (key ^ i), "cmp_swap left 0x%llx", (unsigned long long)v);

		CHECK(!mend_recv(b, MSG + 1024, 512, 3), "post_recv");
		pattern_fill(a->buf + MSG, key, 0, 100);
		CHECK(!mend_post(a, &(struct mwr){ .op = IBV_WR_SEND, .off = MSG, .len = 100, .id = 4 }), "post");
		mend_expect(b, 3, IBV_WC_RECV, 100);
		CHECK(is(b->buf + MSG + 1024, key, 100), "send");
	}
}

static void pair(const struct mini *m, const char *da, const char *db, bool self)
{
	struct timespec nap = { m->settle_ms / 1000, m->settle_ms % 1000 * 1000000L };
	struct rng r = { m->seed };
	struct mend a = { 0 }, b = { 0 };
	int err;

	err = mend_open(&a, m, da, &want);
	if (!err && !self)
		err = mend_open(&b, m, db, &want);
	if (!err)
		err = mend_join(&a, self ? &a : &b, NULL);
	CHECK(!err, "set-up: %s", strerror(-err));
	if (!err) {
		nanosleep(&nap, NULL);
		traffic(&a, self ? &a : &b, m, &r, m->count);
		if (!self)
			traffic(&b, &a, m, &r, m->count);
	}
	mend_close(&a);
	if (!self)
		mend_close(&b);
	printf("loopback: %s to %s%s: %s\n", da ? da : "first", db ? db : "first", self ? ", one QP" : "",
	       mini_failed ? "FAILED" : "ok");
}

int main(int argc, char **argv)
{
	struct mini m = { .name = "loopback", .count = 20, .timeout_s = 120 };

	mini_start(&m, argc, argv, "A QP connected to itself; two QPs of one device; two devices of one process.");
	pair(&m, m.dev, m.dev, true);
	pair(&m, m.dev, m.dev, false);
	if (m.peer_dev != m.dev)
		pair(&m, m.dev, m.peer_dev, false);
	return mini_end(&m, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Patterns by which programs tell that data has arrived, one by one. Whoever sees the sign looks at once at what it
 * stands for. Both ends are in this process: whatever the NICs do, the order in memory is theirs.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mini.h"

#define AREA	(1u << 18)	/* of data */
#define WORDS	AREA		/* then words, a line each */
#define WORD(i)	(WORDS + 64u * (i))
#define SCRATCH	(WORDS + 4096)	/* what atomics found */
#define BACK	(2 * AREA)	/* what READs brought */
#define DEPTH	64

static const struct mend_want want = { .len = 3 * AREA, .depth = DEPTH, .sge = 1, .inl = 64, .recvs = 1 };
static struct mend a, b;
static struct rng rng;
static uint64_t violations, posted, done;

struct pattern {
	const char *name;
	void (*round)(uint64_t round, size_t len);
};

/* ---- posting: offsets are the same at both ends */

static void put(enum ibv_wr_opcode op, size_t off, size_t local, size_t len, int flags, uint64_t arg)
{
	int err = mend_post(&a, &(struct mwr){ .op = op, .off = local, .len = len, .flags = flags, .id = posted, .arg = arg,
					       .raddr = (uintptr_t)b.buf + off, .rkey = b.mr->rkey });

	CHECK(!err, "post: %s", strerror(err));
	posted++;
}

static void data(size_t len, uint64_t key, int flags)
{
	pattern_fill(a.buf, key, 0, len);
	put(IBV_WR_RDMA_WRITE, 0, 0, len, flags, 0);
}

static void word(unsigned i, uint64_t v, int flags)
{
	memcpy(a.buf + WORD(i), &v, 8);
	put(IBV_WR_RDMA_WRITE, WORD(i), WORD(i), 8, flags | IBV_SEND_INLINE, 0);
}

static void add(unsigned i, uint64_t v, int flags)
{
	put(IBV_WR_ATOMIC_FETCH_AND_ADD, WORD(i), SCRATCH, 8, flags, v);
}

/* ---- waiting */

static void look(void)
{
	struct ibv_wc wc[8];
	int n = ibv_poll_cq(a.cq, 8, wc);

	for (int i = 0; i < n; i++) {
		CHECK(!wc[i].status, "completion %llu: %s", (unsigned long long)wc[i].wr_id, vb.wc_status_str(wc[i].status));
		done = wc[i].wr_id + 1;
	}
}

static void completed(void)
{
	while (done < posted && !mini_failed)
		look();
}

static uint64_t seen(unsigned i)
{
	return atomic_load_explicit((_Atomic uint64_t *)(b.buf + WORD(i)), memory_order_acquire);
}

static void wait_word(unsigned i, uint64_t v)
{
	while (seen(i) != v && !mini_failed)
		look();
}

/* Looks from the end: that is where the last fragment lands. */
static bool there(const uint8_t *p, uint64_t key, size_t len)
{
	static uint8_t w[AREA];

	pattern_fill(w, key, 0, len);
	for (size_t o = len & ~(size_t)1023;; o -= 1024) {
		if (o + 8 <= len && memcmp(p + o, w + o, 8))
			return false;
		if (!o)
			return !memcmp(p, w, len);
	}
}

static void must(const uint8_t *p, uint64_t key, size_t len)
{
	if (!there(p, key, len))
		violations++;
}

/* ---- the patterns; word 0 counts rounds from 1 */

#define S IBV_SEND_SIGNALED

static void faa(uint64_t r, size_t len)
{
	data(len, r, S);
	add(0, 1, S);
	wait_word(0, r);
	must(b.buf, r, len);
}

static void flag(uint64_t r, size_t len)
{
	data(len, r, S);
	word(0, r, S);
	wait_word(0, r);
	must(b.buf, r, len);
}

static void array(uint64_t r, size_t len)
{
	data(len, r, S);
	memcpy(a.buf + WORD(0), &r, 8);
	put(IBV_WR_RDMA_WRITE, WORD(0), WORD(0), 128, S, 0);
	wait_word(0, r);
	must(b.buf, r, len);
}

/* no flag of its own is signalled */
static void unsignalled(uint64_t r, size_t len)
{
	data(len, r, 0);
	word(0, r, r % 8 ? 0 : S);
	wait_word(0, r);
	must(b.buf, r, len);
}

/* signals behind signals: the last one stands for all */
static void signals(uint64_t r, size_t len)
{
	data(len, r, S);
	add(1, 1, 0);
	add(2, 1, 0);
	word(3, r, 0);
	add(0, 1, S);
	wait_word(0, r);
	if (seen(1) != r || seen(2) != r || seen(3) != r)
		violations++;
	must(b.buf, r, len);
}

/* flags among data, in one go: each stands for what is before it */
static void middle(uint64_t r, size_t len)
{
	size_t half = len / 2 & ~(size_t)4095;

	pattern_fill(a.buf, r, 0, len);
	put(IBV_WR_RDMA_WRITE, 0, 0, half, 0, 0);
	word(1, r, 0);
	put(IBV_WR_RDMA_WRITE, half, half, len - half, S, 0);
	word(0, r, S);
	wait_word(1, r);
	must(b.buf, r, half);
	wait_word(0, r);
	must(b.buf, r, len);
}

/* an empty WRITE, whose completion says that all is there */
static void empty(uint64_t r, size_t len)
{
	data(len, r, 0);
	put(IBV_WR_RDMA_WRITE, 0, 0, 0, S, 0);
	completed();
	must(b.buf, r, len);
}

static void read_after_write(uint64_t r, size_t len)
{
	data(len, r, 0);
	put(IBV_WR_RDMA_READ, 0, BACK, len, S, 0);
	completed();
	must(a.buf + BACK, r, len);
}

/* take a lock, then read what it guards: the old value must have been written before the lock was free */
static void lock(uint64_t r, size_t len)
{
	pattern_fill(b.buf, r, 0, len);
	put(IBV_WR_ATOMIC_CMP_AND_SWP, WORD(0), SCRATCH, 8, 0, r);
	put(IBV_WR_RDMA_READ, 0, BACK, len, S | IBV_SEND_FENCE, 0);
	data(len, ~r, S | IBV_SEND_FENCE); /* not before it was read */
	completed();
	must(a.buf + BACK, r, len);
	memset(b.buf + WORD(0), 0, 8);
}

/* odd while data changes: in modes strict and rc only */
static void seqlock(uint64_t r, size_t len)
{
	uint64_t v;

	word(0, 2 * r - 1, 0);
	data(len, r, 0);
	word(0, 2 * r, S);
	while ((v = seen(0)) != 2 * r && !mini_failed) {
		uint64_t first;

		/* while the version is the last round's, so is the data, from its first byte to its last */
		memcpy(&first, b.buf + len - 8, 8);
		if (v == 2 * r - 2 && r > 1 && seen(0) == v) {
			uint64_t old;

			pattern_fill((uint8_t *)&old, r - 1, len - 8, 8);
			if (first != old && seen(0) == v)
				violations++;
		}
		look();
	}
	must(b.buf, r, len);
}

static const struct pattern patterns[] = {
	{ "faa", faa }, { "flag", flag }, { "array", array }, { "unsignalled", unsignalled }, { "signals", signals },
	{ "middle", middle }, { "empty", empty }, { "read", read_after_write }, { "lock", lock }, { "seqlock", seqlock },
};

static void run(const struct mini *m, const struct pattern *p)
{
	memset(b.buf + WORDS, 0, 4096);
	violations = 0;
	for (uint64_t r = 1; r <= m->count && !mini_failed; r++) {
		/* the same length throughout where the last round's bytes matter */
		p->round(r, p->round == seqlock ? AREA / 2 : rng_range(&rng, 16, AREA / 4096) * 4096);
		if (p->round != unsignalled || r % 8 == 0)
			completed();
	}
	if (p->round == unsignalled) {
		put(IBV_WR_RDMA_WRITE, 0, 0, 0, S, 0);
		completed();
	}
	printf("%s: %u rounds, %llu violations\n", p->name, m->count, (unsigned long long)violations);
	fflush(stdout);
	CHECK(!violations, "%s: %llu violations", p->name, (unsigned long long)violations);
}

int main(int argc, char **argv)
{
	struct mini m = { .name = "litmus", .count = 100, .timeout_s = 120 };
	const char *only = getenv("LITMUS"), *skip = getenv("SKIP");
	int err;

	mini_start(&m, argc, argv, "patterns by which programs tell that data has arrived; LITMUS=NAME for one of them");
	rng.s = m.seed;
	err = mend_open(&a, &m, m.dev, &want);
	if (!err)
		err = mend_open(&b, &m, m.peer_dev, &want);
	if (!err)
		err = mend_join(&a, &b, NULL);
	CHECK(!err, "set-up: %s", strerror(-err));
	mini_nap(m.settle_ms);
	for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]) && !mini_failed; i++)
		if (only ? !strcmp(only, patterns[i].name) : !skip || !strstr(skip, patterns[i].name))
			run(&m, &patterns[i]);
	mend_close(&a);
	mend_close(&b);
	return mini_end(&m, "");
}

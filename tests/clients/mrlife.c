// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Registrations that come and go while a peer writes: each kind of call, thousands of short-lived MRs whose rkeys
 * may soon be used again (the device decides that: the summary says how many were), and an rkey after its MR is
 * gone, which must reach nothing.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mini.h"

#define AREA	(64u << 10)
#define SLOTS	8
#define ACCESS	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static const struct mend_want want = { .len = AREA, .depth = 32, .inl = 64, .recvs = 4 };
static struct mini m = { .name = "mrlife", .count = 10000, .timeout_s = 300 };
static struct mend a, b;
static uint8_t *mem;		/* SLOTS areas of b's that MRs are made of */
static uint8_t want_buf[AREA];
static unsigned int reused, stale_refused;

static int connect_new(void)
{
	struct timespec nap = { m.settle_ms / 1000, m.settle_ms % 1000 * 1000000L };
	int err = mend_new_qp(&a, &want);

	if (!err)
		err = mend_new_qp(&b, &want);
	if (!err)
		err = mend_join(&a, &b, NULL);
	CHECK(!err, "connecting: %s", strerror(-err));
	nanosleep(&nap, NULL);
	return err;
}

static void write_to(uint64_t raddr, uint32_t rkey, size_t len, uint64_t key)
{
	pattern_fill(a.buf, key, 0, len);
	CHECK(!mend_post(&a, &(struct mwr){ .op = IBV_WR_RDMA_WRITE, .len = len, .raddr = raddr, .rkey = rkey, .id = key,
					    .flags = IBV_SEND_SIGNALED }), "post");
	mend_expect(&a, key, IBV_WC_RDMA_WRITE, -1);
}

static void read_from(uint64_t raddr, uint32_t rkey, size_t len, uint64_t key)
{
	memset(a.buf, 0, len);
	CHECK(!mend_post(&a, &(struct mwr){ .op = IBV_WR_RDMA_READ, .len = len, .raddr = raddr, .rkey = rkey, .id = key,
					    .flags = IBV_SEND_SIGNALED }), "post");
	mend_expect(&a, key, IBV_WC_RDMA_READ, (int64_t)len);
}

static void use(struct ibv_mr *mr, uint64_t base, const uint8_t *p, size_t len, const char *what)
{
	uint64_t key = mix64(m.seed + len + (uintptr_t)mr);

	if (!mr) {
		printf("mrlife: %s: %s\n", what, strerror(errno));
		return;
	}
	write_to(base, mr->rkey, len, key);
	pattern_fill(want_buf, key, 0, len);
	CHECK(!memcmp(p, want_buf, len), "%s: data of a write", what);
	read_from(base, mr->rkey, len, key + 1);
	CHECK(!memcmp(a.buf, want_buf, len), "%s: data of a read", what);
	printf("mrlife: %s: %s\n", what, mini_failed ? "FAILED" : "ok");
}

static void gone(struct ibv_mr *mr)
{
	int err = mr ? vb.dereg_mr(mr) : 0;

	CHECK(!err, "dereg_mr: %s", strerror(err));
}

static void kinds(void)
{
	size_t len = AREA - 4096;
	uint8_t *p = mem + 1000;
	struct ibv_mr *mr;
	int err;

	mr = vb.reg_mr(b.dev.pd, p, len, ACCESS);
	CHECK(mr, "reg_mr: %s", strerror(errno));
	use(mr, (uintptr_t)p, p, len, "reg_mr");
	gone(mr);
	mr = vb.reg_mr_iova ? vb.reg_mr_iova(b.dev.pd, p, len, 0x7000000000ull + 1000, ACCESS) : NULL;
	CHECK(mr || !vb.reg_mr_iova, "reg_mr_iova: %s", strerror(errno));
	use(mr, 0x7000000000ull + 1000, p, len, "reg_mr_iova");
	gone(mr);
	mr = vb.reg_mr_iova2 ? vb.reg_mr_iova2(b.dev.pd, p, len, 0x6000000000ull + 1000, ACCESS | IBV_ACCESS_RELAXED_ORDERING)
			     : NULL;
	CHECK(mr || !vb.reg_mr_iova2, "reg_mr_iova2: %s", strerror(errno));
	use(mr, 0x6000000000ull + 1000, p, len, "reg_mr_iova2, relaxed ordering");
	gone(mr);
	mr = vb.reg_mr(b.dev.pd, p, len, ACCESS);
	err = mr ? vb.rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, p + AREA, len, 0) : -1;
	printf("mrlife: rereg_mr: %s\n", !err ? "ok" : "refused");
	if (!err)
		use(mr, (uintptr_t)p + AREA, p + AREA, len, "reg_mr after rereg_mr");
	/* what a refusal leaves of the MR is said by its code: here only that it can be freed */
	gone(mr);
	mr = vb.reg_mr(b.dev.pd, NULL, 4096, ACCESS);
	CHECK(!mr, "reg_mr of nothing was taken");
	gone(mr);
}

/* A large WRITE to an MR that is no more: an error, and not one byte anywhere. */
static void stale(uint64_t raddr, uint32_t rkey, size_t len)
{
	static uint8_t before[SLOTS * AREA];
	struct ibv_wc wc;
	int n;

	memcpy(before, mem, SLOTS * AREA);
	pattern_fill(a.buf, 99, 0, len);
	CHECK(!mend_post(&a, &(struct mwr){ .op = IBV_WR_RDMA_WRITE, .len = len, .raddr = raddr, .rkey = rkey, .id = 5,
					    .flags = IBV_SEND_SIGNALED }), "post");
	n = rc_poll_one(a.cq, &wc, 10000);
	CHECK(n == 1 && wc.wr_id == 5 && wc.status == IBV_WC_REM_ACCESS_ERR, "stale rkey: %d completions, %s", n,
	      n == 1 ? vb.wc_status_str(wc.status) : "none");
	CHECK(!memcmp(before, mem, SLOTS * AREA), "a stale rkey reached memory");
	stale_refused++;
	connect_new();
}

static void churn(void)
{
	struct ibv_mr *keep[SLOTS] = { NULL };
	uint32_t seen[1024] = { 0 };
	struct rng r = { m.seed };
	uint64_t last_addr = 0;
	uint32_t last_rkey = 0;
	unsigned int i, s, k;
	size_t len, off, lens[SLOTS] = { 0 }, offs[SLOTS] = { 0 };

	for (i = 0; i < m.count && !mini_failed; i++) {
		s = (unsigned int)rng_range(&r, 0, SLOTS - 1);
		if (keep[s]) {
			last_addr = (uintptr_t)mem + s * AREA + offs[s];
			last_rkey = keep[s]->rkey;
			gone(keep[s]);
			keep[s] = NULL;
			if (i % 200 >= 190 && lens[s] > 16384)
				stale(last_addr, last_rkey, lens[s]);
		}
		lens[s] = len = rng_size(&r, 8, AREA / 2);
		offs[s] = off = rng_range(&r, 0, AREA - len);
		keep[s] = vb.reg_mr(b.dev.pd, mem + s * AREA + off, len, ACCESS);
		CHECK(keep[s], "reg_mr number %u: %s", i, strerror(errno));
		if (!keep[s])
			break;
		for (k = 0; k < 1024 && seen[k] != keep[s]->rkey; k++)
			;
		reused += k < 1024;
		seen[i % 1024] = keep[s]->rkey;
		/* whichever MR is there now, mostly the newest: a remembered twin of an older one must not be taken */
		if (rng_pct(&r, 30)) {
			do
				s = (unsigned int)rng_range(&r, 0, SLOTS - 1);
			while (!keep[s]);
			len = lens[s];
			off = offs[s];
		}
		memset(mem + s * AREA, 0, AREA);
		write_to((uintptr_t)mem + s * AREA + off, keep[s]->rkey, len, i + 1000);
		pattern_fill(want_buf, i + 1000, 0, len);
		CHECK(!memcmp(mem + s * AREA + off, want_buf, len), "registration %u: data", i);
		for (k = 0; k < 64; k++)
			CHECK((off <= k || !mem[s * AREA + off - 1 - k]) &&
			      (off + len + k >= AREA || !mem[s * AREA + off + len + k]), "registration %u: beside", i);
	}
	for (s = 0; s < SLOTS; s++)
		gone(keep[s]);
}

int main(int argc, char **argv)
{
	char extra[128];

	mini_start(&m, argc, argv, "Each kind of registration; thousands that come and go; rkeys after their MR.");
	mem = aligned_alloc(4096, SLOTS * AREA);
	if (!mem || mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want) || connect_new())
		return 2;
	memset(mem, 0, SLOTS * AREA);
	kinds();
	churn();
	mend_close(&a);
	mend_close(&b);
	free(mem);
	snprintf(extra, sizeof(extra), "\"registrations\":%u,\"rkeys_seen_again\":%u,\"stale_refused\":%u", m.count, reused,
		 stale_refused);
	return mini_end(&m, extra);
}

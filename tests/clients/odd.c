// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Requests one port accepts, refuses or fails, each as a few lines of text without numbers that differ from run to
 * run: natively and with the library the same must be printed. CASE=name runs one of them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ex.h"
#include "mini.h"

#define BIG (1u << 20)
static struct mend_want want = { .len = 2 * BIG, .depth = 32, .sge = 4, .inl = 64, .recvs = 8 };
static const struct rc_opts quick = { .timeout = 14, .retry_cnt = 2, .rnr_retry = 1 };
static struct mini m = { .name = "odd", .timeout_s = 100 };
static struct mend a, b;

static void show(struct mend *e, const char *who, unsigned int expect, int ms)
{
	struct ibv_wc wc;
	unsigned int n = 0;

	while (rc_poll_one(e->cq, &wc, n < expect ? ms : 100) == 1) {
		n++;
		printf("  %s: wr %llu: %s", who, (unsigned long long)wc.wr_id, vb.wc_status_str(wc.status));
		if (!wc.status)
			printf(", opcode %d len %u", wc.opcode,
			       wc.opcode == IBV_WC_RDMA_READ || (wc.opcode & IBV_WC_RECV) ? wc.byte_len : 0);
		printf("\n");
	}
	printf("  %s: %u completions, state %s\n", who, n, mend_state(e));
}

static void fresh(const struct rc_opts *o)
{
	int err = mend_new_qp(&a, &want);

	if (!err)
		err = mend_new_qp(&b, &want);
	if (!err)
		err = mend_join(&a, &b, o);
	CHECK(!err, "join: %s", strerror(-err));
	mini_nap(m.settle_ms);
	memset(a.buf, 0, a.len);
	memset(b.buf, 0, b.len);
}

static struct ibv_send_wr W(uint64_t id, enum ibv_wr_opcode op, struct ibv_sge *sge, int n, size_t roff, int flags)
{
	struct ibv_send_wr w = { .wr_id = id, .sg_list = sge, .num_sge = n, .opcode = op, .send_flags = (unsigned)flags,
				 .wr.rdma = { (uintptr_t)b.buf + roff, b.mr->rkey } };
	return w;
}

static struct ibv_sge S(size_t off, size_t len)
{
	return (struct ibv_sge){ (uintptr_t)a.buf + off, (uint32_t)len, a.mr->lkey };
}

static void post(struct ibv_send_wr *w)
{
	struct ibv_send_wr *bad = NULL;
	int err = any_post(a.qp, w, &bad);

	printf("  post: %s", err ? strerror(err) : "ok");
	if (err)
		printf(" bad %llu", bad ? (unsigned long long)bad->wr_id : 0ull);
	printf("\n");
}

static void chain(struct ibv_send_wr *w, int n)
{
	for (int i = 0; i + 1 < n; i++)
		w[i].next = &w[i + 1];
	w[n - 1].next = NULL;
	post(w);
}

#define SIG IBV_SEND_SIGNALED
#define WR IBV_WR_RDMA_WRITE
#define RD IBV_WR_RDMA_READ

/* too many SGEs: refused before anybody looks at them */
static void toomany(void)
{
	struct ibv_sge *s = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_send_wr w;

	fresh(NULL);
	munmap((char *)s + 4096, 4096);
	s = (struct ibv_sge *)((char *)s + 4096) - 5;
	for (int i = 0; i < 5; i++)
		s[i] = S((size_t)i * 10000, 10000);
	w = W(1, WR, s, 5, 0, SIG);
	post(&w);
	w.num_sge = -1;
	post(&w);
	w.num_sge = 1000;
	post(&w);
	show(&a, "a", 0, 100);
}

/* bulk WRITE refused in the middle of a chain; what stands before goes */
static void midbad(void)
{
	struct ibv_sge s = S(0, 100000), t = S(0, 8), u[5] = { s, s, s, s, s };
	struct ibv_send_wr w[5] = { W(1, WR, &s, 1, 0, SIG), W(2, WR, &t, 1, 200000, SIG), W(3, WR, u, 5, 0, SIG),
				    W(4, WR, &t, 1, 0, SIG), W(5, WR, &s, 1, 0, SIG) };

	fresh(NULL);
	chain(w, 5);
	show(&a, "a", 2, 1000);
	w[2] = W(3, IBV_WR_RDMA_READ, &t, 1, 0, SIG | IBV_SEND_INLINE);
	chain(w, 5);
	show(&a, "a", 2, 1000);
	w[2] = W(3, IBV_WR_ATOMIC_FETCH_AND_ADD, &s, 1, 0, SIG);
	chain(w, 5);
	show(&a, "a", 2, 1000);
	w[2] = W(3, IBV_WR_BIND_MW, &t, 1, 0, SIG);
	chain(w, 5);
	show(&a, "a", 2, 1000);
	w[2] = W(3, IBV_WR_SEND_WITH_INV, &t, 1, 0, SIG);
	chain(w, 5);
	show(&a, "a", 2, 1000);
	w[2] = W(3, IBV_WR_LOCAL_INV, &t, 1, 0, SIG);
	chain(w, 5);
	show(&a, "a", 2, 1000);
}

/* queued flag that the provider refuses: READ inline, INLINE too long */
static void queuedbad(void)
{
	struct ibv_sge s = S(0, BIG), t = S(0, 8), v = S(0, 65);
	struct ibv_send_wr w1 = W(1, WR, &s, 1, 0, SIG), w2 = W(2, RD, &t, 1, 0, SIG | IBV_SEND_INLINE),
			   w3 = W(3, WR, &v, 1, 0, SIG | IBV_SEND_INLINE), w4 = W(4, WR, &t, 1, 0, SIG);

	fresh(NULL);
	post(&w1);
	post(&w2);
	post(&w3);
	post(&w4);
	w2.opcode = IBV_WR_LOCAL_INV;
	post(&w2);
	w2.opcode = IBV_WR_BIND_MW;
	post(&w2);
	w2.opcode = IBV_WR_SEND_WITH_INV;
	post(&w2);
	show(&a, "a", 2, 1000);
}

/* misaligned atomics, queued and not */
static void misatomic(bool queue)
{
	struct ibv_sge s = S(0, BIG), t = S(0, 8);
	struct ibv_send_wr w1 = W(1, WR, &s, 1, 0, SIG), w2 = W(2, IBV_WR_ATOMIC_FETCH_AND_ADD, &t, 1, 0, SIG);

	fresh(NULL);
	w2.wr.atomic.remote_addr = (uintptr_t)b.buf + 12;
	w2.wr.atomic.rkey = b.mr->rkey;
	if (queue)
		post(&w1);
	post(&w2);
	show(&a, "a", queue ? 2 : 1, 1000);
}

static void misatomic0(void) { misatomic(false); }
static void misatomic1(void) { misatomic(true); }

/* half valid range, unsignalled, and nothing else */
static void unsigbad(void)
{
	struct ibv_sge s = S(0, BIG);
	struct ibv_send_wr w = W(1, WR, &s, 1, 2 * BIG - BIG / 2 - 4096, 0), f = W(2, WR, &s, 1, 0, SIG);

	fresh(NULL);
	post(&w);
	show(&a, "a", 1, 1000);
	post(&f);
	show(&a, "a", 1, 1000);
}

/* chain: unsignalled culprit in the middle, the last one signalled */
static void unsigmid(void)
{
	struct ibv_sge s = S(0, BIG);
	struct ibv_send_wr w[4] = { W(1, WR, &s, 1, 0, SIG), W(2, WR, &s, 1, 2 * BIG - BIG / 2 - 4096, 0),
				    W(3, WR, &s, 1, 0, 0), W(4, WR, &s, 1, 0, SIG) };

	fresh(NULL);
	chain(w, 4);
	show(&a, "a", 4, 1000);
}

/* half valid range: what the peer hears of it */
static void peerhears(void)
{
	struct ibv_sge s = S(0, BIG);
	struct ibv_send_wr w = W(1, WR, &s, 1, 2 * BIG - BIG / 2 - 4096, SIG);

	fresh(&quick);
	mend_recv(&b, 0, 100, 7);
	mend_recv(&b, 0, 100, 8);
	post(&w);
	show(&a, "a", 1, 1000);
	show(&b, "b", 2, 500);
}

/* the same ids for receives and sends, as programs with one array of slots have them */
static void same_ids(int sig)
{
	struct ibv_sge s = S(0, BIG);
	struct ibv_send_wr w = W(1, WR, &s, 1, 2 * BIG - BIG / 2 - 4096, sig);
	struct ibv_wc wc;
	int good = 0, n = 0;

	fresh(NULL);
	for (int i = 0; i < 4; i++)
		mend_recv(&a, 0, 100, 1);
	post(&w);
	while (rc_poll_one(a.cq, &wc, n < 5 ? 1000 : 100) == 1) {
		n++;
		good += wc.status == IBV_WC_REM_ACCESS_ERR;
		printf("  %s\n", vb.wc_status_str(wc.status));
	}
	printf("  %d of %d\n", good, n);
}

static void sameids(void) { same_ids(SIG); }
static void sameids0(void) { same_ids(0); }

/* memory known under two addresses: the later WRITE must win */
static void alias(void)
{
	struct ibv_mr *other;
	int wrong = 0;

	fresh(NULL);
	other = vb.reg_mr_iova2(b.dev.pd, b.buf, BIG, 0x7000000000ull, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				IBV_ACCESS_REMOTE_READ);
	mini_nap(m.settle_ms + 100);
	for (int i = 0; i < 200; i++) {
		size_t len = BIG;
		struct ibv_sge s = S(0, len), t = S(BIG, len / 4);
		struct ibv_send_wr w[2] = { W(1, WR, &s, 1, 0, 0), W(2, WR, &t, 1, 0, SIG) };
		struct ibv_wc wc;

		memset(a.buf, 1, BIG);
		memset(a.buf + BIG, 2, BIG);
		w[1].wr.rdma.remote_addr = 0x7000000000ull + len / 2 + len / 8 ;
		w[1].wr.rdma.rkey = other->rkey;
		w[0].next = &w[1];
		if (i == 0)
			post(w);
		else
			any_post(a.qp, w, &(struct ibv_send_wr *){ NULL });
		if (rc_poll_one(a.cq, &wc, 1000) != 1 || wc.status)
			printf("  no\n");
		for (size_t k = len / 2 + len / 8; k < len / 2 + len / 8 + len / 4; k++)
			if (b.buf[k] != 2) {
				wrong++;
				break;
			}
	}
	printf("  later data overwritten by earlier in %s rounds\n", wrong ? "some" : "no");
	fprintf(stderr, "alias: %d of 200\n", wrong);
	vb.dereg_mr(other);
}

/* a region that ends at the top of the address space */
static void top(void)
{
	uint64_t base = 0ull - BIG - 4096;
	struct ibv_mr *t;
	int wrong = 0;

	fresh(NULL);
	t = vb.reg_mr_iova2(b.dev.pd, b.buf, BIG + 4096, base, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			    IBV_ACCESS_REMOTE_READ);
	printf("  reg %s\n", t ? "ok" : strerror(errno));
	if (!t) {
		base -= 4096;
		t = vb.reg_mr_iova2(b.dev.pd, b.buf, BIG + 4096, base, IBV_ACCESS_LOCAL_WRITE |
				    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	}
	mini_nap(m.settle_ms + 100);
	for (int i = 0; t && i < 20; i++) {
		struct ibv_sge s = S(0, BIG);
		struct ibv_send_wr w = W(1, WR, &s, 1, 0, SIG);
		struct ibv_wc wc = { 0 };

		memset(a.buf, i + 1, BIG);
		w.wr.rdma.remote_addr = base + 4096;
		w.wr.rdma.rkey = t->rkey;
		any_post(a.qp, &w, &(struct ibv_send_wr *){ NULL });
		if (rc_poll_one(a.cq, &wc, 2000) != 1 || wc.status)
			wrong++;
		else if (memcmp(a.buf, b.buf + 4096, BIG))
			wrong++;
	}
	printf("  wrong: %d\n", wrong);
	if (t)
		vb.dereg_mr(t);
}

/* remote range that wraps */
static void wrap(void)
{
	struct ibv_sge s = S(0, BIG);
	struct ibv_send_wr w = W(1, WR, &s, 1, 0, SIG);

	fresh(NULL);
	w.wr.rdma.remote_addr = 0ull - BIG / 2;
	post(&w);
	show(&a, "a", 1, 1000);
}

/* sizes around split_min, odd places, empty elements */
static void sizes(void)
{
	static const size_t len[] = { 0, 1, 4095, 8191, 8192, 8193, 12287, 12289, 65535, 65537, 300001, BIG - 7 };
	int wrong = 0;

	fresh(NULL);
	for (int op = 0; op < 2; op++)
		for (unsigned i = 0; i < sizeof(len) / sizeof(len[0]); i++)
			for (size_t off = 0; off < 9000; off += 1 + off * 3) {
				struct ibv_sge s[4] = { S(0, 0), S(off, len[i] / 3), S(5, 0),
							S(off + len[i] / 3, len[i] - len[i] / 3) };
				struct ibv_send_wr w = W(i, op ? RD : WR, s, 4, off * 2, SIG), *bad;
				struct ibv_wc wc = { 0 };

				pattern_fill(op ? b.buf : a.buf, i * 100 + off, 0, 2 * BIG);
				memset(op ? a.buf : b.buf, 0, 2 * BIG);
				if (any_post(a.qp, &w, &bad) || rc_poll_one(a.cq, &wc, 2000) != 1 || wc.status ||
				    (op && wc.byte_len != len[i]) || wc.wr_id != i)
					wrong++;
				if (memcmp(a.buf + off, b.buf + off * 2, len[i]))
					wrong++;
				uint8_t *d = op ? a.buf : b.buf;
				size_t o = op ? off : off * 2;
				for (size_t k = 0; k < 2 * BIG; k++)
					if (d[k] && (k < o || k >= o + len[i])) {
						wrong++;
						break;
					}
			}
	printf("  wrong: %d\n", wrong);
}

/* all of an lkey's memory but one element of another, dropped region */
static void deadlkey(void)
{
	uint8_t *mem = aligned_alloc(4096, BIG);
	struct ibv_mr *x = vb.reg_mr(a.dev.pd, mem, BIG, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge s[2] = { S(0, BIG / 2), { (uintptr_t)mem, BIG / 2, x->lkey } };
	struct ibv_send_wr w[3] = { W(1, WR, s, 2, 0, SIG), W(2, WR, s, 2, 0, SIG), W(3, WR, s, 1, 0, SIG) };

	fresh(NULL);
	memset(mem, 1, BIG);
	post(w);
	show(&a, "a", 1, 1000);
	vb.dereg_mr(x);
	chain(w + 1, 2);
	show(&a, "a", 2, 1000);
	free(mem);
}

/* one half of the local memory is outside its region */
static void halflocal(void)
{
	struct ibv_sge s = S(2 * BIG - BIG / 2 - 4096, BIG);
	struct ibv_send_wr w[3] = { W(1, WR, &s, 1, 0, SIG), W(2, WR, &s, 1, 0, 0), W(3, RD, &s, 1, 0, SIG) };

	fresh(NULL);
	chain(w, 3);
	show(&a, "a", 3, 1000);
	fresh(NULL);
	w[2].send_flags = 0;
	post(&w[2]);
	show(&a, "a", 1, 1000);
}

/* two PDs: keys of the wrong one */
static void twopds(void)
{
	struct ibv_pd *pd = vb.alloc_pd(b.dev.ctx), *pda = vb.alloc_pd(a.dev.ctx);
	struct ibv_mr *r = vb.reg_mr(pd, b.buf, BIG, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_mr *l = vb.reg_mr(pda, a.buf, BIG, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_sge s = S(0, BIG);
	struct ibv_send_wr w = W(1, WR, &s, 1, 0, SIG);

	fresh(NULL);
	mini_nap(m.settle_ms);
	w.wr.rdma.rkey = r->rkey;
	post(&w);
	show(&a, "a", 1, 1000);
	fresh(NULL);
	w.wr.rdma.rkey = b.mr->rkey;
	s.lkey = l->lkey;
	post(&w);
	show(&a, "a", 1, 1000);
	vb.dereg_mr(r);
	vb.dereg_mr(l);
	CHECK(!vb.dealloc_pd(pd), "dealloc_pd");
	CHECK(!vb.dealloc_pd(pda), "dealloc_pd");
}

/* posts exactly max_send_wr, of which every nth is signalled; then as many as one more, one at a time */
static void depth(int every, int inl)
{
	struct ibv_sge s = S(0, 20000), t = S(0, 8);
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	unsigned n = 0, full = 0, got = 0;
	uint64_t last = 0;

	fresh(NULL);
	for (int i = 0; i < 3000; i++) {
		struct ibv_send_wr w = i % 3 ? W(i, WR, &s, 1, (size_t)(i % 16) * 20000, 0) : W(i, WR, &t, 1, 0, 0);
		int err, tries = 0;

		if (!(i % 3) && inl)
			w.send_flags |= IBV_SEND_INLINE;
		if (i % every == every - 1)
			w.send_flags |= SIG;
		while ((err = any_post(a.qp, &w, &bad)) == ENOMEM) {
			full++;
			if (rc_poll_one(a.cq, &wc, 2000) != 1) {
				if (++tries == 1)
					printf("  stuck at %d\n", i);
				return;
			}
			if (wc.status || (got && wc.wr_id != last + (uint64_t)every))
				printf("  wrong completion %llu after %llu: %s\n", (unsigned long long)wc.wr_id,
				       (unsigned long long)last, vb.wc_status_str(wc.status));
			last = wc.wr_id;
			got++;
		}
		if (err)
			printf("  post %d: %s\n", i, strerror(err));
		n++;
	}
	while (rc_poll_one(a.cq, &wc, 300) == 1)
		got++;
	printf("  %u posted, %u completions\n", n, got);
	(void)full;
}
static void depth1(void) { depth(1, 0); }
static void depth8(void) { depth(8, 1); }
static void depth32(void) { depth(32, 1); }
static void depthnone(void) { depth(1000000, 1); }

static void one_wr(void)
{
	struct mend_want old = want;

	want.depth = 1;
	want.sge = 1;
	depth(1, 1);
	want = old;
}

/* flags that nobody's completion tells of, nobody polls: they must be seen at the peer */
static void nobody(void)
{
	struct ibv_sge s = S(0, BIG), t = S(BIG, 8);
	struct ibv_send_wr w[4] = { W(1, WR, &s, 1, 0, 0), W(2, WR, &t, 1, BIG, 0), W(3, WR, &s, 1, 0, 0),
				    W(4, WR, &t, 1, BIG + 8, 0) };

	fresh(NULL);
	memset(a.buf, 1, a.len);
	chain(w, 4);
	for (int i = 0; i < 100 && !*(volatile uint8_t *)(b.buf + BIG + 8); i++)
		mini_nap(20);
	printf("  flags %d %d\n", b.buf[BIG], b.buf[BIG + 8]);
}

/* program moves its QP to ERR with requests on their way and queued */
static void to_err(int sig)
{
	struct ibv_sge s = S(0, BIG), t = S(0, 8);
	struct ibv_send_wr w[20], *bad;
	struct ibv_wc wc;
	int n = 0, good = 0, bad_order = 0;

	fresh(NULL);
	for (int i = 0; i < 20; i++) {
		w[i] = i % 2 ? W((uint64_t)i, WR, &t, 1, BIG, sig ? SIG : 0) : W((uint64_t)i, WR, &s, 1, 0, sig || i == 10 ? SIG : 0);
		w[i].next = i < 19 ? &w[i + 1] : NULL;
	}
	any_post(a.qp, w, &bad);
	rc_to_state(a.qp, IBV_QPS_ERR);
	while (rc_poll_one(a.cq, &wc, n < 20 ? 1000 : 100) == 1) {
		if (!wc.status) {
			good++;
			if (n >= good)
				bad_order++;
		}
		n++;
	}
	printf("  order %s, %s, state %s\n", bad_order ? "bad" : "good", sig ? n == 20 ? "all" : "not all" : "-", mend_state(&a));
	w[0].next = NULL;
	post(w);
	show(&a, "a", 1, 1000);
}
static void err_sig(void) { to_err(1); }
static void err_unsig(void) { to_err(0); }

/* READ after WRITE, WRITE after READ with a fence, atomics in between */
static void rw(void)
{
	int wrong = 0;
	struct rng r = { 42 };

	fresh(NULL);
	for (int i = 0; i < 300; i++) {
		size_t off = rng_range(&r, 0, 60000), len = rng_range(&r, 1, 200000), o2 = rng_range(&r, 0, len - 1),
		       l2 = rng_range(&r, 1, len - o2);
		struct ibv_sge s = S(off, len), t = S(BIG + off, l2), at = S(BIG + BIG / 2, 8), u = S(BIG + off, l2);
		struct ibv_send_wr w[5] = { W(1, WR, &s, 1, off, 0), W(2, RD, &t, 1, off + o2, 0),
					    W(3, IBV_WR_ATOMIC_FETCH_AND_ADD, &at, 1, 0, 0),
					    W(4, WR, &u, 1, BIG + off, SIG | IBV_SEND_FENCE) }, *bad;
		struct ibv_wc wc = { 0 };

		pattern_fill(a.buf, (uint64_t)i, 0, BIG);
		memset(a.buf + BIG, 0, BIG);
		memset(b.buf, 0, 2 * BIG);
		w[2].wr.atomic.remote_addr = (uintptr_t)b.buf + BIG + BIG / 2;
		w[2].wr.atomic.compare_add = 1;
		w[2].wr.atomic.rkey = b.mr->rkey;
		w[0].next = &w[1];
		if (i & 1) {
			w[1].next = &w[2];
			w[2].next = &w[3];
		} else {
			w[1].next = &w[3];
		}
		if (any_post(a.qp, w, &bad) || rc_poll_one(a.cq, &wc, 2000) != 1 || wc.status || wc.wr_id != 4)
			wrong++;
		if (memcmp(b.buf + BIG + off, a.buf + off + o2, l2))
			wrong++;
	}
	printf("  wrong: %d\n", wrong);
}

static const struct mini_case cases[] = {
#define C(x) { #x, x }
	C(toomany), C(midbad), C(queuedbad), C(misatomic0), C(misatomic1), C(unsigbad), C(unsigmid), C(peerhears),
	C(sameids), C(sameids0), C(alias), C(top), C(wrap), C(sizes), C(deadlkey), C(halflocal), C(twopds), C(depth1),
	C(depth8),
	C(depth32), C(depthnone), C(one_wr), C(nobody), C(err_sig), C(err_unsig), C(rw),
};

int main(int argc, char **argv)
{
	mini_start(&m, argc, argv, "requests one by one");
	if (mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want))
		return 2;
	mini_cases(cases, sizeof(cases) / sizeof(cases[0]));
	mend_close(&a);
	mend_close(&b);
	fprintf(stderr, "failed %u\n", mini_failed);
	return mini_failed != 0;
}

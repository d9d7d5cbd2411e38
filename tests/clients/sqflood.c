// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What ibv_post_send refuses, and where bad_wr points. Lines on stdout have no number that differs from run to run, so
 * that runs with and without a preloaded library can be compared.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "mini.h"

#define DEPTH	16
#define UNPOLLED (2 * DEPTH)	/* some providers free a send slot before its completion is polled: spare the CQ */
#define BIG	(1u << 20)

static const struct mend_want want = { .len = BIG, .depth = DEPTH, .sge = 2, .inl = 64, .recvs = 4 };
static struct mini m = { .name = "sqflood", .count = 200, .timeout_s = 120 };
static struct mend a, b;

static bool begin(bool deaf)
{
	int err = mend_new_qp(&a, &want);
	struct ibv_wc wc;

	if (!err)
		err = mend_new_qp(&b, &want);
	/* what the QPs before these left in the CQs is not the business of the next case */
	while (ibv_poll_cq(a.cq, 1, &wc) > 0 || ibv_poll_cq(b.cq, 1, &wc) > 0)
		;
	if (!err)
		err = mend_join(&a, &b, NULL);
	CHECK(!err, "set-up: %s", strerror(-err));
	mini_nap(m.settle_ms);
	if (!err && deaf)
		err = rc_to_state(b.qp, IBV_QPS_RESET);
	mini_nap(deaf ? 50 : 0);
	return !err;
}

static void fill(struct ibv_send_wr *w, struct ibv_sge *s, uint64_t id, size_t len)
{
	*s = (struct ibv_sge){ (uintptr_t)a.buf, (uint32_t)len, a.mr->lkey };
	*w = (struct ibv_send_wr){ .wr_id = id, .sg_list = s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				   .send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)b.buf, b.mr->rkey } };
}

/* To ERR, then every posted WR must come back once, in order. */
static void flush(unsigned int posted)
{
	struct ibv_wc wc;
	unsigned int n = 0;

	CHECK(!rc_to_state(a.qp, IBV_QPS_ERR), "ERR");
	while (rc_poll_one(a.cq, &wc, n < posted ? 3000 : 100) == 1) {
		CHECK(wc.wr_id == n, "wr_id %llu instead of %u", (unsigned long long)wc.wr_id, n);
		CHECK(wc.status != IBV_WC_SUCCESS, "wr %u succeeded", n);
		n++;
	}
	CHECK(n == posted, "%u posted, %u completions", posted, n);
}

/* Nothing completes: the queue fills, and holds what create_qp said it would. */
static void flood(bool lists)
{
	struct ibv_send_wr w[4], *bad;
	struct ibv_sge s[4];
	unsigned int n = 0, i;
	int err = 0;

	if (!begin(true))
		return;
	printf("flood with nobody answering, %s\n", lists ? "lists of 4" : "one by one");
	while (!err && n < 100000) {
		for (i = 0; i < (lists ? 4 : 1); i++) {
			fill(&w[i], &s[i], n + i, n % 3 ? 100000 : 8);
			if (i)
				w[i - 1].next = &w[i];
		}
		bad = NULL;
		err = ibv_post_send(a.qp, &w[0], &bad);
		if (!err) {
			n += i;
			continue;
		}
		for (i = 0; i < 4 && &w[i] != bad; i++)
			;
		CHECK(i < 4, "bad_wr is not in the list");
		n += i;
	}
	printf("  refused with: %s\n", strerror(err));
	CHECK(err == ENOMEM, "%s after %u", strerror(err), n);
	CHECK(n >= a.cap.max_send_wr, "%u taken, max_send_wr is %u", n, a.cap.max_send_wr);
	printf("  taken: %s\n", n >= a.cap.max_send_wr ? "at least max_send_wr" : "fewer than max_send_wr");
	flush(n);
}

/* With a peer that answers: a WR is refused only while max_send_wr are not polled yet, and none is lost. */
static void stream(void)
{
	struct ibv_send_wr w, *bad;
	unsigned int posted = 0, polled = 0, refused = 0;
	struct ibv_wc wc[8];
	struct ibv_sge s;
	int err, n, i;

	if (!begin(false))
		return;
	printf("stream against a full queue\n");
	pattern_fill(a.buf, m.seed, 0, BIG);
	memset(b.buf, 0, BIG);
	while (polled < m.count && !mini_failed) {
		fill(&w, &s, posted, posted % 5 == 4 ? 8 : 70001);
		err = posted < m.count && posted - polled < UNPOLLED ? ibv_post_send(a.qp, &w, &bad) : -1;
		if (!err) {
			posted++;
			continue;
		}
		if (err > 0) {
			refused++;
			CHECK(err == ENOMEM && posted - polled >= a.cap.max_send_wr, "%s with %u outstanding of %u",
			      strerror(err), posted - polled, a.cap.max_send_wr);
		}
		n = ibv_poll_cq(a.cq, 8, wc);
		CHECK(n >= 0, "poll_cq gave %d", n);
		for (i = 0; i < n; i++, polled++)
			CHECK(wc[i].wr_id == polled && wc[i].status == IBV_WC_SUCCESS, "wr %llu %s instead of %u",
			      (unsigned long long)wc[i].wr_id, vb.wc_status_str(wc[i].status), polled);
		if (!n)
			mini_nap(1);
	}
	CHECK(!memcmp(a.buf, b.buf, 70001), "data");
	fprintf(stderr, "sqflood: %u posted, refused %u times\n", posted, refused);
}

static void opcode(struct ibv_send_wr *w)
{
	w->opcode = 0x5a;
}

/* One good WR, one bad, one good, in one list. */
static void bad_in_list(const char *what, void (*spoil)(struct ibv_send_wr *w), size_t len, bool must)
{
	struct ibv_send_wr w[3], *bad = NULL;
	struct ibv_sge s[3][3];
	unsigned int i, k, at = 3;
	struct ibv_wc wc;
	int err;

	if (!begin(false))
		return;
	for (i = 0; i < 3; i++) {
		fill(&w[i], s[i], i, len);
		for (k = 1; k < 3; k++)
			s[i][k] = s[i][0];
		w[i].next = i < 2 ? &w[i + 1] : NULL;
	}
	spoil(&w[1]);
	err = ibv_post_send(a.qp, &w[0], &bad);
	for (i = 0; i < 3; i++)
		if (&w[i] == bad)
			at = i;
	if (err)
		printf("%s: %s, bad_wr is number %u\n", what, strerror(err), at);
	else
		printf("%s: taken\n", what);
	CHECK(!must || (err && at == 1), "%s: %s", what, strerror(err));
	/* what becomes of an opcode that nobody knows is not the same in two runs on soft-RoCE */
	if (spoil == opcode)
		return;
	for (i = 0; rc_poll_one(a.cq, &wc, i ? 300 : 3000) == 1; i++)
		printf("  wr %llu: %s\n", (unsigned long long)wc.wr_id, vb.wc_status_str(wc.status));
}

static void many_sges(struct ibv_send_wr *w)
{
	w->num_sge = (int)a.cap.max_send_sge + 1;
}

static void much_inline(struct ibv_send_wr *w)
{
	w->send_flags |= IBV_SEND_INLINE;
	w->sg_list[0].length = a.cap.max_inline_data + 1;
}

static void inline_read(struct ibv_send_wr *w)
{
	w->opcode = IBV_WR_RDMA_READ;
	w->send_flags |= IBV_SEND_INLINE;
	w->sg_list[0].length = 8;
}

static void crooked_atomic(struct ibv_send_wr *w)
{
	w->opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	w->sg_list[0].length = 8;
	w->wr.atomic.remote_addr = (uintptr_t)b.buf + 3;
	w->wr.atomic.rkey = b.mr->rkey;
}

static void states(void)
{
	struct ibv_send_wr w, *bad;
	struct ibv_sge s;
	struct ibv_wc wc;
	int err, k;

	for (k = 0; k < 3; k++) {
		if (mend_new_qp(&a, &want))
			return;
		if (k == 1)
			rc_to_init(&a.dev, a.qp, NULL);
		if (k == 2 && (mend_new_qp(&b, &want) || mend_join(&a, &b, NULL) || rc_to_state(a.qp, IBV_QPS_ERR)))
			return;
		fill(&w, &s, 7, 100000);
		bad = NULL;
		err = ibv_post_send(a.qp, &w, &bad);
		printf("post in %s: %s%s\n", k == 0 ? "RESET" : k == 1 ? "INIT" : "ERR", err ? strerror(err) : "taken",
		       err && bad != &w ? ", bad_wr not set" : "");
		while (rc_poll_one(a.cq, &wc, 300) == 1)
			printf("  wr %llu: %s\n", (unsigned long long)wc.wr_id, vb.wc_status_str(wc.status));
	}
}

int main(int argc, char **argv)
{
	mini_start(&m, argc, argv, "The send queue filled to the brim; WRs that must be refused; bad_wr.");
	if (mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want))
		return 2;
	flood(false);
	flood(true);
	stream();
	bad_in_list("too many SGEs", many_sges, 20000, true);
	bad_in_list("too much inline", much_inline, 20000, true);
	bad_in_list("unknown opcode", opcode, 20000, false);
	bad_in_list("inline READ", inline_read, 20000, false);
	bad_in_list("atomic at an odd address", crooked_atomic, 20000, false);
	states();
	mend_close(&a);
	mend_close(&b);
	fflush(stdout);
	fprintf(stderr, "sqflood: %u failed\n", mini_failed);
	return mini_failed ? 1 : 0;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What a program does with the states of a QP while requests are on their way, and what is refused in each state. As text
 * without any number that differs from run to run: natively and with the library the same must be printed. CASE=name runs
 * one of them.
 */
#include <errno.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "ex.h"
#include "mini.h"

#define BIG (256u << 10)
#define MANY 12
static struct mend_want want = { .len = 16 * BIG, .depth = 64, .sge = 2, .inl = 64, .recvs = 16 };
static struct mini m = { .name = "states", .timeout_s = 100 };
static struct mend a, b;

#define SIG IBV_SEND_SIGNALED
#define WR IBV_WR_RDMA_WRITE

static void join(void)
{
	int err = mend_join(&a, &b, NULL);

	CHECK(!err, "join: %s", strerror(-err));
	mini_nap(m.settle_ms);
}

static void fresh(void)
{
	CHECK(!mend_new_qp(&a, &want) && !mend_new_qp(&b, &want), "create_qp");
	join();
	memset(a.buf, 0, a.len);
	memset(b.buf, 0, b.len);
}

static void write_at(uint64_t id, size_t at, size_t len, int flags)
{
	int err = mend_post(&a, &(struct mwr){ .op = WR, .off = at, .len = len, .raddr = (uintptr_t)b.buf + at, .rkey = b.mr->rkey,
					       .flags = flags, .id = id });

	CHECK(!err, "post %llu: %s", (unsigned long long)id, strerror(err));
}

/* Bulk and small ones in turn, all told of: ids first, first + 1, ... */
static void load(uint64_t first, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++)
		write_at(first + i, (size_t)(i % 15) * BIG, i % 3 == 2 ? 8 : BIG, SIG);
}

static void all_good(uint64_t first, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++)
		mend_expect(&a, first + i, IBV_WC_RDMA_WRITE, -1);
}

static void good_after(const char *what, uint64_t key)
{
	pattern_fill(a.buf, key, 0, BIG);
	write_at(key, 0, BIG, SIG);
	mend_expect(&a, key, IBV_WC_RDMA_WRITE, -1);
	printf("  %s: %s, data %d\n", what, mend_state(&a), !memcmp(a.buf, b.buf, BIG));
}

/* ---- SQD ---- */

static int draining(void)
{
	struct ibv_qp_init_attr ia;
	struct ibv_qp_attr qa;

	return vb.query_qp(a.qp, &qa, IBV_QP_STATE, &ia) ? -1 : qa.sq_draining;
}

static int to_sqd(bool notify)
{
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = notify };

	return vb.modify_qp(a.qp, &at, IBV_QP_STATE | (notify ? IBV_QP_EN_SQD_ASYNC_NOTIFY : 0));
}

/* The next event within ms; of which QP it is. */
static bool event(struct mend *e, int ms)
{
	struct pollfd p = { .fd = e->dev.ctx->async_fd, .events = POLLIN };
	struct ibv_async_event ev;

	if (poll(&p, 1, ms) != 1 || vb.get_async_event(e->dev.ctx, &ev))
		return false;
	printf("  event %d, of its qp %d\n", ev.event_type, ev.element.qp == e->qp);
	vb.ack_async_event(&ev);
	return true;
}

static void sqd_idle(void)
{
	fresh();
	good_after("before", 1);
	printf("  SQD: %d\n", to_sqd(true));
	CHECK(event(&a, 5000), "no event");
	printf("  %s, draining %d\n", mend_state(&a), draining());
	/* taken, and not begun */
	memset(b.buf, 0, b.len);
	memset(a.buf, 7, a.len);
	load(10, MANY);
	mini_nap(50);
	printf("  begun in SQD: %d\n", memchr(b.buf, 7, b.len) != NULL);
	printf("  RTS: %d\n", rc_to_state(a.qp, IBV_QPS_RTS));
	all_good(10, MANY);
	printf("  more events: %d\n", event(&a, 50));
	good_after("after", 2);
	printf("  SQD without notice: %d\n", to_sqd(false));
	printf("  events: %d\n", event(&a, 50));
	printf("  RTS: %d\n", rc_to_state(a.qp, IBV_QPS_RTS));
	good_after("after", 3);
}

/* With requests under way, and queued. */
static void sqd_busy(void)
{
	unsigned int moved = 0, fewer = 0;
	struct ibv_wc wc;

	fresh();
	for (unsigned int round = 0; round < 10; round++) {
		uint8_t *seen;
		uint64_t next = 100;

		memset(b.buf, 0, b.len);
		memset(a.buf, (int)round + 1, a.len);
		load(100, MANY);
		CHECK(!to_sqd(true), "SQD");
		CHECK(event(&a, 10000), "no event");
		CHECK(draining() == 0, "drained, and draining");
		/* drained is drained: nothing lands any more */
		seen = malloc(b.len);
		memcpy(seen, b.buf, b.len);
		while (rc_poll_one(a.cq, &wc, 50) == 1)
			CHECK(!wc.status && wc.wr_id == next++, "wr %llu: %d", (unsigned long long)wc.wr_id, wc.status);
		fewer += next < 100 + MANY;
		moved += memcmp(seen, b.buf, b.len) != 0;
		free(seen);
		CHECK(!rc_to_state(a.qp, IBV_QPS_RTS), "RTS");
		for (; next < 100 + MANY; next++)
			mend_expect(&a, next, IBV_WC_RDMA_WRITE, -1);
		CHECK(!memcmp(b.buf, a.buf, BIG), "data of round %u", round);
	}
	/* else there was nothing to see; the port must be slow enough */
	printf("  landed when drained: %u, something was left to do: %d\n", moved, fewer > 0);
}

static void sqd_ends(void)
{
	struct ibv_wc wc;
	unsigned int n = 0;

	fresh();
	CHECK(!to_sqd(false), "SQD");
	load(10, MANY);
	printf("  ERR: %d\n", rc_to_state(a.qp, IBV_QPS_ERR));
	while (rc_poll_one(a.cq, &wc, n < MANY ? 3000 : 100) == 1) {
		CHECK(wc.wr_id == 10 + n, "wr %llu", (unsigned long long)wc.wr_id);
		n++;
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR, "%s", vb.wc_status_str(wc.status));
	}
	printf("  flushed %u\n", n);
	fresh();
	CHECK(!to_sqd(false), "SQD");
	load(10, MANY);
	printf("  RESET: %d\n", rc_to_state(a.qp, IBV_QPS_RESET));
	CHECK(!rc_to_state(b.qp, IBV_QPS_RESET), "RESET");
	printf("  completions: %d\n", rc_poll_one(a.cq, &wc, 50));
	join();
	good_after("used again", 5);
}

/* ---- RESET ---- */

static void reset_busy(void)
{
	unsigned int late = 0, told = 0;
	struct ibv_wc wc;

	fresh();
	for (unsigned int round = 0; round < 6; round++) {
		memset(a.buf, 1, a.len);
		load(100, MANY + round);
		if (round % 2)
			mini_nap(round);
		CHECK(!rc_to_state(a.qp, IBV_QPS_RESET), "RESET");
		/* nothing of that QP may be told any more, nor may it write where the peer connects anew */
		told += rc_poll_one(a.cq, &wc, 20) == 1;
		CHECK(!rc_to_state(b.qp, IBV_QPS_RESET), "RESET");
		memset(b.buf, 0, b.len);
		join();
		late += memchr(b.buf, 1, b.len) != NULL;
		told += rc_poll_one(a.cq, &wc, 20) == 1;
		pattern_fill(a.buf, round, 0, BIG);
		write_at(round, 0, BIG, SIG);
		mend_expect(&a, round, IBV_WC_RDMA_WRITE, -1);
		CHECK(!memcmp(a.buf, b.buf, BIG), "data of round %u", round);
	}
	printf("  completions of before: %u, bytes of before: %u\n", told, late);
}

/* ---- an access error, at its responder ---- */

/* The second half is beyond the region. both: the responder sends, too. */
static void access_error(enum ibv_wr_opcode op, bool both)
{
	struct mwr w = { .op = op, .off = 0, .len = BIG, .raddr = (uintptr_t)b.buf + b.len - BIG / 2, .rkey = b.mr->rkey, .id = 1,
			 .flags = SIG };
	struct ibv_wc wc;
	unsigned int n = 0;

	fresh();
	for (uint64_t i = 50; i < 52; i++)
		CHECK(!mend_recv(&b, 0, 100, i), "post_recv");
	if (both) {
		struct mwr back = { .op = WR, .len = BIG, .raddr = (uintptr_t)a.buf, .rkey = a.mr->rkey, .id = 9, .flags = SIG };

		CHECK(!mend_post(&b, &back), "post");
		mend_expect(&b, 9, IBV_WC_RDMA_WRITE, -1);
	}
	CHECK(!mend_post(&a, &w), "post");
	CHECK(rc_poll_one(a.cq, &wc, 10000) == 1, "no completion");
	printf("  wr %d: %s\n", (int)wc.wr_id, vb.wc_status_str(wc.status));
	CHECK(event(&b, 10000), "no event");
	printf("  more events: %d\n", event(&b, 50));
	while (rc_poll_one(b.cq, &wc, n < 2 ? 5000 : 50) == 1) {
		n++;
		printf("  receive %d: %s\n", (int)wc.wr_id, vb.wc_status_str(wc.status));
	}
	printf("  %s %s\n", mend_state(&a), mend_state(&b));
	/* nothing is left behind that RESET would not clear */
	CHECK(!rc_to_state(a.qp, IBV_QPS_RESET) && !rc_to_state(b.qp, IBV_QPS_RESET), "RESET");
	join();
	good_after("used again", 4);
}

static void access_write(void) { access_error(WR, false); }
static void access_read(void) { access_error(IBV_WR_RDMA_READ, false); }
static void access_both(void) { access_error(WR, true); }

/* The QP goes before its event is read. */
static void access_destroy(void)
{
	struct pollfd p = { .fd = b.dev.ctx->async_fd, .events = POLLIN };
	struct ibv_async_event ev;
	struct mwr w = { .op = WR, .len = BIG, .raddr = (uintptr_t)b.buf + b.len - BIG / 2, .rkey = b.mr->rkey, .id = 1, .flags = SIG };
	struct ibv_wc wc;

	CHECK(!fcntl(p.fd, F_SETFL, O_NONBLOCK), "O_NONBLOCK");
	for (int i = 0; i < 3; i++) {
		fresh();
		CHECK(!mend_post(&a, &w), "post");
		CHECK(rc_poll_one(a.cq, &wc, 10000) == 1, "no completion");
		printf("  %s, told %d\n", vb.wc_status_str(wc.status), poll(&p, 1, 10000));
		CHECK(!mend_new_qp(&b, &want), "create_qp");
		printf("  told of what is gone: %d\n", !vb.get_async_event(b.dev.ctx, &ev));
	}
	CHECK(!fcntl(p.fd, F_SETFL, 0), "O_NONBLOCK");
}

/* ---- immediate data ---- */

static void imm(void)
{
	static const size_t lens[] = { 0, 1, 100, 4096, 8191, 8192, 65536, BIG - 1, BIG, 4 * BIG };
	unsigned int wrong = 0;
	struct ibv_wc wc;

	fresh();
	for (unsigned int i = 0; i < 3 * sizeof(lens) / sizeof(lens[0]); i++) {
		size_t len = lens[i / 3], at = 8 * BIG;
		struct ibv_sge s[2] = { { (uintptr_t)a.buf + at, (uint32_t)(len / 2), a.mr->lkey },
					{ (uintptr_t)a.buf + at + len / 2, (uint32_t)(len - len / 2), a.mr->lkey } };
		struct ibv_send_wr w = { .wr_id = i, .sg_list = s, .num_sge = len ? 2 : 0, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
			.send_flags = SIG, .imm_data = htonl(i + 77), .wr.rdma = { (uintptr_t)b.buf + at, b.mr->rkey } }, *bad;

		pattern_fill(a.buf, 2 * i, 0, BIG);
		pattern_fill(a.buf + at, 2 * i + 1, 0, 4 * BIG);
		CHECK(!mend_recv(&b, 15 * BIG, 8, i), "post_recv");
		if (i % 3)	/* behind bulk: whose completion the receive stands for, too */
			write_at(1000, 0, BIG, 0);
		if (i % 3 == 2)
			write_at(1001, BIG, BIG, 0);
		CHECK(!any_post(a.qp, &w, &bad), "post");
		CHECK(rc_poll_one(b.cq, &wc, 10000) == 1, "no receive");
		if (i % 3 == 0)
			printf("  %zu: %s, opcode %d, len %u, imm %u, flags %u\n", len, vb.wc_status_str(wc.status), wc.opcode,
			       wc.byte_len, ntohl(wc.imm_data), wc.wc_flags);
		wrong += wc.status || wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM || wc.byte_len != len || wc.imm_data != htonl(i + 77);
		wrong += memcmp(b.buf + at, a.buf + at, len) != 0 || (i % 3 && memcmp(b.buf, a.buf, BIG));
		mend_expect(&a, i, IBV_WC_RDMA_WRITE, -1);
	}
	printf("  wrong %u\n", wrong);
}

/* ---- what is refused at once ---- */

static struct ibv_send_wr bad_one(unsigned int kind, struct ibv_sge sges[8])
{
	struct ibv_send_wr w = { .wr_id = 2, .sg_list = sges, .num_sge = 1, .opcode = WR, .send_flags = SIG,
				 .wr.rdma = { (uintptr_t)b.buf, b.mr->rkey } };

	for (unsigned int i = 0; i < 8; i++)
		sges[i] = (struct ibv_sge){ (uintptr_t)a.buf, 16, a.mr->lkey };
	switch (kind) {
	case 0: w.num_sge = 3; break;
	case 1: w.num_sge = 1000; break;
	case 2: w.send_flags |= IBV_SEND_INLINE; sges[0].length = 65; break;
	case 3: w.send_flags |= IBV_SEND_INLINE; w.num_sge = 2; sges[0].length = sges[1].length = 40; break;
	case 4: w.opcode = (enum ibv_wr_opcode)31; break;
	case 5: w.opcode = IBV_WR_TSO; break;
	case 6: w.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD; sges[0].length = 16; break;
	default: break;		/* a good one */
	}
	return w;
}
static const char *const kinds[] = { "3 of 2 SGEs", "1000 SGEs", "65 of 64 bytes inline", "80 in two", "opcode 31", "TSO",
				     "atomic of 16 bytes", "a good one" };
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* As the only one, and as the second of three. before: behind bulk and a flag, still under way. told: they complete. */
static void refuse(const char *state, bool before, bool told)
{
	unsigned int odd = 0, wrong = 0;
	struct ibv_wc wc;

	printf("  %s\n", state);
	for (unsigned int k = 0; k < KINDS; k++) {
		struct ibv_sge good[8], sges[8];
		struct ibv_send_wr w[3] = { bad_one(KINDS - 1, good), bad_one(k, sges), bad_one(KINDS - 1, good) }, *bad = NULL;
		uint64_t want_id = 1;
		int one, list, at, left;

		w[0].wr_id = 1;
		w[2].wr_id = 3;
		if (before)
			load(50, 3);
		one = ibv_post_send(a.qp, &w[1], &bad);
		odd += one && bad != &w[1];
		/* told of in order, so the first of the rest is what the list began with */
		w[0].next = &w[1];
		w[1].next = &w[2];
		bad = NULL;
		if (before)
			load(50, 3);
		list = ibv_post_send(a.qp, w, &bad);
		at = bad ? (int)(bad - w) : -1;
		left = told ? !one + (list ? at : 3) : 0;
		if (before)
			all_good(50, 3);
		if (before && !one && left--)
			mend_expect(&a, 2, IBV_WC_RDMA_WRITE, -1);
		if (before)
			all_good(50, 3);
		while (rc_poll_one(a.cq, &wc, left > 0 ? 3000 : 5) == 1) {
			left--;
			wrong += before && wc.wr_id != want_id++;
		}
		wrong += left != 0;
		printf("    %s: %s; in a list: %s, bad_wr %d\n", kinds[k], strerror(one), strerror(list), at);
	}
	printf("    bad_wr elsewhere %u, wrong completions %u\n", odd, wrong);
}

static void refusals(void)
{
	struct rc_addr aa, ba;
	struct ibv_wc wc;

	/* the errors of ibv_wr_complete are another list */
	fresh();
	refuse("RTS", false, true);
	fresh();
	refuse("RTS, behind bulk", true, true);
	CHECK(!to_sqd(false), "SQD");
	refuse("SQD", false, false);
	CHECK(!rc_to_state(a.qp, IBV_QPS_ERR), "ERR");
	while (rc_poll_one(a.cq, &wc, 100) == 1)
		;
	refuse("ERR", false, true);
	CHECK(!mend_new_qp(&a, &want) && !mend_new_qp(&b, &want), "create_qp");
	refuse("RESET", false, false);
	CHECK(!rc_to_init(&a.dev, a.qp, NULL), "INIT");
	refuse("INIT", false, false);
	rc_addr_of(&b.dev, b.qp, b.psn, &ba);
	rc_addr_of(&a.dev, a.qp, a.psn, &aa);
	CHECK(!rc_to_rtr(&a.dev, a.qp, &ba, NULL), "RTR");
	mini_nap(m.settle_ms);
	refuse("RTR", false, false);
	CHECK(!rc_connect(&b.dev, b.qp, b.psn, &aa, NULL), "connect");
	mini_nap(m.settle_ms);
	refuse("RTR, the peer is up", false, false);
	CHECK(!rc_to_rts(a.qp, a.psn, NULL), "RTS");
	mini_nap(m.settle_ms);
	good_after("at last", 3);
}

/* Lists that are longer than what is left of the queue: how many go, and which is refused. */
static void full(void)
{
	struct ibv_send_wr w[100], *bad;
	struct ibv_sge sges[8];
	unsigned int posted = 0;

	fresh();
	for (unsigned int round = 0; round < 6; round++) {
		unsigned int n = 0, at;
		int err;

		for (unsigned int i = 0; i < 100; i++) {
			w[i] = bad_one(KINDS - 1, sges);
			w[i].wr_id = i;
			w[i].next = i < 99 ? &w[i + 1] : NULL;
		}
		/* bulk first, or in the middle, or none */
		posted = round % 3 == 0 ? 3 : 0;
		load(200, posted);
		if (round % 3 == 1) {
			sges[1].length = BIG;
			w[5].sg_list = w[9].sg_list = &sges[1];
		}
		bad = NULL;
		err = ibv_post_send(a.qp, w, &bad);
		at = bad ? (unsigned int)(bad - w) : 100;
		printf("  %s, all room used %d\n", strerror(err), posted + at == a.cap.max_send_wr);
		all_good(200, posted);
		for (n = 0; n < at; n++)
			mend_expect(&a, n, IBV_WC_RDMA_WRITE, -1);
	}
}

static const struct mini_case cases[] = {
#define C(x) { #x, x }
	C(sqd_idle), C(sqd_busy), C(sqd_ends), C(reset_busy), C(access_write), C(access_read), C(access_both),
	C(access_destroy), C(imm), C(refusals), C(full),
};

int main(int argc, char **argv)
{
	mini_start(&m, argc, argv, "states and refusals one by one");
	if (mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want))
		return 2;
	mini_cases(cases, sizeof(cases) / sizeof(cases[0]));
	mend_close(&a);
	mend_close(&b);
	fprintf(stderr, "failed %u\n", mini_failed);
	return mini_failed != 0;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Ports with a rate and a delay. Too fast is always a failure. How near they come to what was asked for is a matter of
 * bench/softnic-rate, since a busy machine may look away; what no load may change is the account that a port keeps.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test_peer.h"

#define RATE 20e6	/* of timing.sh */
#define DELAY 2e-3
#define QPS 4
#define MSG 32768u
#define MSGS 1200u	/* in each direction, 2 s: all are posted at once, so that the port is never without work */

struct plan {
	int qps;	/* of each process */
	bool both;	/* directions */
};

struct times {
	double begin, first, end;	/* before the first request, first completion, last one */
};

static uint32_t messages(const struct plan *p)
{
	return MSGS / (2 * (uint32_t)p->qps);
}

/* Sends so many messages over each QP that sends, and waits for them all. */
static struct times stream(struct end *e, struct far *f, const bool *sends, int n, uint32_t msgs)
{
	struct times t = { seconds(), 0, 0 };
	uint32_t left = 0;
	struct ibv_wc wc;

	for (int i = 0; i < n; i++) {
		for (uint32_t k = 0; sends[i] && k < msgs; k++)
			ck_assert_int_eq(post(&e[i], &f[i].end, 0, (struct wr){ IBV_WR_RDMA_WRITE, .len = MSG }), 0);
		left += sends[i] ? msgs : 0;
	}
	while (left)
		for (int i = 0; i < n; i++) {
			if (!sends[i] || !ibv_poll_cq(e[i].cq, 1, &wc))
				continue;
			ck_assert_int_eq(wc.status, IBV_WC_SUCCESS);
			if (t.first == 0)
				t.first = seconds();
			left--;
		}
	t.end = seconds();
	return t;
}

/* QPs in pairs: of the even ones this process is on device 0, of the odd ones the other is. */
static struct times one_side(int sock, const struct plan *p, int me)
{
	struct end e[2 * QPS];
	struct far f[2 * QPS];
	bool sends[2 * QPS];
	int n = 2 * p->qps;
	struct times t;

	for (int i = 0; i < n; i++) {
		int dev = (i & 1) ^ me;

		end_open(&e[i], dev, &(struct end_opts){ .sq = messages(p), .cqe = 2 * messages(p) });
		far_join(sock, &e[i], &f[i], &(struct conn_opts){ .timeout = 20 });
		sends[i] = !dev || p->both;
	}
	t = stream(e, f, sends, n, messages(p));
	meet(sock);
	for (int i = 0; i < n; i++)
		end_close(&e[i]);
	return t;
}

static void other_side(int sock, void *plan)
{
	struct times t = one_side(sock, plan, 1);

	tell(sock, &t, sizeof(t));
}

static const struct plan plans[] = { { 1, false }, { 1, true }, { QPS, true } };

/* Returns the seconds that a port was idle, or less than none: with something to send from the first message on. */
static double measure_rate(struct plan *p)
{
	double needs = 2.0 * p->qps * messages(p) * MSG / RATE, idle = -needs;
	struct times mine, theirs;
	pid_t pid;
	int sock = peer_start(&pid, other_side, p);

	mine = one_side(sock, p, 0);
	hear(sock, &theirs, sizeof(theirs));
	peer_end(pid);
	printf("rate, %d QP(s) in each of two processes, %s: %.4f of what was asked for\n", p->qps,
	       p->both ? "both ways" : "one way", needs / (fmax(mine.end, theirs.end) - fmin(mine.begin, theirs.begin)));
	ck_assert_double_ge(fmax(mine.end, theirs.end) - fmin(mine.begin, theirs.begin), needs);
	for (int dev = 0; dev <= p->both; dev++) {
		double sent = 1e-9 * (double)atomic_load(&shared_host()->devs[dev].port.tx_cursor[0]);

		ck_assert_double_ge(sent - fmin(mine.begin, theirs.begin), needs - 1e-6);
		/* when the first message was acknowledged, the port had long begun */
		idle = fmax(idle, sent - fmin(mine.first, theirs.first) - needs);
	}
	return idle;
}

/*
 * Two processes, each with QPs that send: what a port carries of them all, never more than its rate. A machine that gives
 * both processes their time once in a while sees that no time is lost either.
 */
START_TEST(rate)
{
	struct plan p = plans[_i];
	int tries = 8;

	while (measure_rate(&p) > 0)
		ck_assert_msg(--tries, "the port lost time in each try");
}
END_TEST

/* An answer is never back before its time, neither an acknowledgement nor a READ's response. */
START_TEST(delay)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	double best[3] = { 60, 60, 60 };
	struct end a, b;

	pair_open(&a, &b, NULL, NULL);
	for (int round = 0; round < 20; round++)
		for (int k = 0; k < 3; k++) {
			double t = seconds();

			ck_assert_int_eq(post(&a, &b, 1, (struct wr){ ops[k], .len = 8, .arg = 1 }), 0);
			want(&a, 1, IBV_WC_SUCCESS);
			t = seconds() - t;
			ck_assert_double_ge(t, 2 * DELAY);
			if (t < best[k])
				best[k] = t;
		}
	printf("delay, there and back, %.3f ms were asked for: WRITE %.3f, READ %.3f, atomic %.3f\n", 2e3 * DELAY,
	       1e3 * best[0], 1e3 * best[1], 1e3 * best[2]);
	/* a message takes its time on the wire, too */
	double t = seconds();

	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = LEN }), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	ck_assert_double_ge(seconds() - t, 2 * DELAY + LEN / RATE);
	pair_close(&a, &b);
}
END_TEST

/*
 * A timeout shorter than the way there and back: everything is asked for twice at least, and answered twice. Duplicates that
 * wait for their answers do not count against what may be outstanding at the responder.
 */
START_TEST(impatient)
{
	struct conn_opts o = { .timeout = 9, .rd = 2, .dest_rd = 2 }; /* 2.1 ms */
	struct end a, b;

	pair_open(&a, &b, NULL, &o);
	fill(b.buf, 20000, 6);
	for (uint64_t i = 0; i < 16; i++)
		ck_assert_int_eq(post(&a, &b, i, (struct wr){ IBV_WR_RDMA_READ, .len = 20000 }), 0);
	for (uint64_t i = 0; i < 16; i++)
		want(&a, i, IBV_WC_SUCCESS);
	check_filled(a.buf, 20000, 6);
	for (uint64_t i = 0; i < 64; i++)
		ck_assert_int_eq(post(&a, &b, i, (struct wr){ IBV_WR_ATOMIC_FETCH_AND_ADD, .to = LEN - 8, .len = 8, .arg = 1 }), 0);
	for (uint64_t i = 0; i < 64; i++)
		want(&a, i, IBV_WC_SUCCESS);
	ck_assert_uint_eq(b.buf[LEN - 8], 64);
	pair_close(&a, &b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("softnic: rate and delay");
	TCase *t = tcase_create("shape");

	setvbuf(stdout, NULL, _IONBF, 0);
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, rate, 0, (int)(sizeof(plans) / sizeof(plans[0])));
	tcase_add_test(t, delay);
	tcase_add_test(t, impatient);
	suite_add_tcase(s, t);
	return run_suite(s);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Ports with a rate and a delay. Too fast is always a failure; too slow may be the machine's fault, which is busy with
 * other things, so that may be tried again.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test_peer.h"

#define RATE 40e6	/* of timing.sh */
#define DELAY 2e-3
#define TRIES 5
#define QPS 4
#define MSG 32768u
#define DEPTH 400u	/* a backlog of 0.3 s, so that the machine may look away for a while */
#define BYTES (3 * RATE) /* of each direction */

struct plan {
	int qps;	/* of each process */
	bool both;	/* directions */
};

/* Sends so many messages over each QP that sends, and waits for them all. */
static void stream(struct end *e, struct far *f, const bool *sends, int n, uint32_t msgs)
{
	uint32_t posted[2 * QPS] = { 0 }, left = 0;
	struct ibv_wc wc;

	for (int i = 0; i < n; i++)
		left += sends[i] ? msgs : 0;
	while (left)
		for (int i = 0; i < n; i++) {
			for (; sends[i] && posted[i] < msgs && posted[i] < DEPTH; posted[i]++)
				ck_assert_int_eq(post(&e[i], &f[i].end, 0,
						      (struct wr){ IBV_WR_RDMA_WRITE, .len = MSG }), 0);
			if (!sends[i] || !ibv_poll_cq(e[i].cq, 1, &wc))
				continue;
			ck_assert_int_eq(wc.status, IBV_WC_SUCCESS);
			left--;
			if (posted[i] == msgs)
				continue;
			ck_assert_int_eq(post(&e[i], &f[i].end, 0, (struct wr){ IBV_WR_RDMA_WRITE, .len = MSG }), 0);
			posted[i]++;
		}
}

/* Of each QP that sends, so that each direction has about BYTES. */
static uint32_t messages(const struct plan *p)
{
	return (uint32_t)(BYTES / MSG / (2 * p->qps));
}

/* QPs in pairs: of the even ones this process is on device 0, of the odd ones the other is. */
static void one_side(int sock, const struct plan *p, int me, double times[2])
{
	struct end e[2 * QPS];
	struct far f[2 * QPS];
	bool sends[2 * QPS];
	int n = 2 * p->qps;

	for (int i = 0; i < n; i++) {
		int dev = (i & 1) ^ me;

		end_open(&e[i], dev, &(struct end_opts){ .sq = DEPTH });
		far_join(sock, &e[i], &f[i], &(struct conn_opts){ .timeout = 20 });
		sends[i] = !dev || p->both;
	}
	times[0] = seconds();
	stream(e, f, sends, n, messages(p));
	times[1] = seconds();
	meet(sock);
	for (int i = 0; i < n; i++)
		end_close(&e[i]);
}

static void other_side(int sock, void *plan)
{
	double times[2];

	one_side(sock, plan, 1, times);
	tell(sock, times, sizeof(times));
}

/* What each direction carried, relative to the rate. */
static double measure(struct plan *p)
{
	double mine[2], theirs[2];
	pid_t pid;
	int sock = peer_start(&pid, other_side, p);

	one_side(sock, p, 0, mine);
	hear(sock, theirs, sizeof(theirs));
	peer_end(pid);
	return 2.0 * p->qps * messages(p) * MSG / RATE / (fmax(mine[1], theirs[1]) - fmin(mine[0], theirs[0]));
}

static const struct plan plans[] = { { 1, false }, { 1, true }, { QPS, true } };

/* Two processes, each with QPs that send: what a port carries of them all. */
START_TEST(rate)
{
	struct plan p = plans[_i];
	double share;

	for (int try = 0; try < TRIES; try++) {
		share = measure(&p);
		printf("rate, %d QP(s) in each of two processes, %s: %.4f of what was asked for\n", p.qps,
		       p.both ? "both ways" : "one way", share);
		ck_assert_double_le(share, 1);
		if (share >= 0.995)
			return;
	}
	ck_abort_msg("too slow");
}
END_TEST

/* An answer is never back before its time, neither an acknowledgement nor a READ's response. */
START_TEST(delay)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	double best[3] = { 1, 1, 1 };
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
	for (int k = 0; k < 3; k++)
		ck_assert_double_le(best[k], 2 * DELAY + 1e-3);
	/* a message takes its time on the wire, too */
	double t = seconds();

	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = LEN }), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	ck_assert_double_ge(seconds() - t, 2 * DELAY + LEN / RATE);
	pair_close(&a, &b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("softnic: rate and delay");
	TCase *t = tcase_create("shape");

	setvbuf(stdout, NULL, _IONBF, 0);
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, rate, 0, (int)(sizeof(plans) / sizeof(plans[0])));
	tcase_add_test(t, delay);
	suite_add_tcase(s, t);
	return run_suite(s);
}

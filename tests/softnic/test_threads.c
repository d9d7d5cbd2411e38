// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Threads that share devices, PDs and CQs: each has queue pairs that come and go, with requests that are right and
 * wrong, and memory that goes away while it is used. Whoever polls takes what comes. Each request has one completion.
 */
#define _GNU_SOURCE /* sched_setaffinity */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "test_end.h"

#define THREADS 4u
#define ROUNDS 150u
#define DEPTH 32u
#define BYTES 65536u

static struct end shared[2];	/* their QPs are not used */

static struct seat {
	pthread_t thread;
	uint32_t number;
	_Atomic uint32_t done, failed;
	const char *wrong;	/* what was; NULL: nothing */
} seats[THREADS];

/* Of all threads. */
static void poll_all(struct seat *me)
{
	struct ibv_wc wc[8];
	int n = ibv_poll_cq(shared[me->number % 2].cq, 8, wc);

	for (int i = 0; i < n; i++) {
		struct seat *s = &seats[wc[i].wr_id % THREADS];

		if (wc[i].status != IBV_WC_SUCCESS)
			atomic_fetch_add(&s->failed, 1);
		atomic_fetch_add(&s->done, 1);
	}
	if (n < 0)
		me->wrong = "poll";
	if (!n)
		sched_yield();
}

static struct ibv_qp *new_qp(struct end *e)
{
	struct ibv_qp_init_attr init = { .send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { DEPTH, 1, 1, 1, 0 } };

	return ibv_create_qp(e->pd, &init);
}

static bool connected(struct end *a, struct end *b, struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct addr to = { .qpn = peer->qp_num, .psn = b->psn, .lid = b->lid, .gid = b->gid };
	struct conn_opts o = { .timeout = 18 };

	return !to_init(qp, &o) && !to_rtr(qp, &to, &o) && !to_rts(qp, a->psn, &o);
}

enum fate { GOOD, BAD_KEY, NO_MEMORY, TO_ERR, PEER_ERR, FATES };

static bool one_round(struct seat *me, unsigned int *seed)
{
	struct end *a = &shared[me->number % 2], *b = &shared[1 - me->number % 2];
	enum fate fate = (enum fate)(rand_r(seed) % FATES);
	struct ibv_qp *qp = new_qp(a), *peer = new_qp(b);
	uint32_t off = me->number * 2 * BYTES, n = 1 + (uint32_t)rand_r(seed) % DEPTH;
	struct ibv_mr *mr = ibv_reg_mr(b->pd, b->buf + off, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	struct ibv_sge sge = { (uintptr_t)a->buf + off + BYTES, 0, a->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = me->number, .sg_list = &sge, .num_sge = 1 }, *bad;
	bool ok = qp && peer && mr && connected(a, b, qp, peer) && connected(b, a, peer, qp);

	atomic_store(&me->done, 0);
	atomic_store(&me->failed, 0);
	for (uint32_t i = 0; ok && i < n; i++) {
		wr.opcode = rand_r(seed) % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
		sge.length = (uint32_t)rand_r(seed) % BYTES;
		wr.wr.rdma.remote_addr = (uintptr_t)b->buf + off;
		wr.wr.rdma.rkey = mr->rkey + (fate == BAD_KEY && i == n / 2);
		ok = !ibv_post_send(qp, &wr, &bad);
	}
	if (ok && fate == NO_MEMORY) {
		ok = !ibv_dereg_mr(mr);
		mr = NULL;
	}
	if (ok && (fate == TO_ERR || fate == PEER_ERR))
		ok = !to_state(fate == TO_ERR ? qp : peer, IBV_QPS_ERR);
	/* a peer that is gone would only be missed after the retries */
	if (ok && fate == PEER_ERR)
		ok = !to_state(qp, IBV_QPS_ERR);
	while (ok && !me->wrong && atomic_load(&me->done) < n)
		poll_all(me);
	if (ok && (atomic_load(&me->done) != n || (fate == GOOD && me->failed) || (fate == BAD_KEY && !me->failed)))
		me->wrong = "completions";
	ok = ok && (!mr || !ibv_dereg_mr(mr)) && !ibv_destroy_qp(qp) && !ibv_destroy_qp(peer);
	if (!ok && !me->wrong)
		me->wrong = "a call";
	return !me->wrong;
}

static void *thread(void *arg)
{
	struct seat *me = arg;
	unsigned int seed = me->number;

	for (uint32_t i = 0; i < ROUNDS && one_round(me, &seed); i++)
		;
	return NULL;
}

START_TEST(together)
{
	for (int i = 0; i < 2; i++)
		end_open(&shared[i], i, NULL);
	for (uint32_t i = 0; i < THREADS; i++) {
		seats[i].number = i;
		ck_assert_int_eq(pthread_create(&seats[i].thread, NULL, thread, &seats[i]), 0);
	}
	for (uint32_t i = 0; i < THREADS; i++) {
		pthread_join(seats[i].thread, NULL);
		ck_assert_msg(!seats[i].wrong, "thread %u: %s", i, seats[i].wrong);
	}
	for (int i = 0; i < 2; i++)
		end_close(&shared[i]);
}
END_TEST

/* ---- two that poll for each other on one CPU ---- */

#define TURNS 50u

static struct player {
	pthread_t thread;
	struct end end, *peer;
	bool first;
	uint64_t vain;
} players[2];

static void *play(void *arg)
{
	struct player *me = arg;
	struct ibv_wc wc;

	for (uint32_t i = 0; i < TURNS; i++) {
		if (me->first)
			ck_assert_int_eq(post(&me->end, me->peer, i, (struct wr){ .op = IBV_WR_SEND, .len = 8 }), 0);
		while (!ibv_poll_cq(me->end.cq, 1, &wc))
			me->vain++;
		ck_assert_int_eq(wc.opcode, IBV_WC_RECV);
		if (!me->first)
			ck_assert_int_eq(post(&me->end, me->peer, i, (struct wr){ .op = IBV_WR_SEND, .len = 8 }), 0);
	}
	return NULL;
}

/* Who polls in vain makes room for the one it waits for: else each turn would take what is left of a time slice. */
START_TEST(one_cpu)
{
	static const struct end_opts o = { .no_sig_all = 1 };
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
	pair_open(&players[0].end, &players[1].end, &o, NULL);
	for (int i = 0; i < 2; i++) {
		players[i].peer = &players[1 - i].end;
		players[i].first = !i;
		for (uint32_t k = 0; k < TURNS; k++)
			ck_assert_int_eq(post_rx(&players[i].end, k, 0, 8), 0);
	}
	for (int i = 1; i >= 0; i--)
		ck_assert_int_eq(pthread_create(&players[i].thread, NULL, play, &players[i]), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(players[i].thread, NULL);
	printf("polls in vain for each turn: %u and %u\n", (unsigned int)(players[0].vain / TURNS),
	       (unsigned int)(players[1].vain / TURNS));
	ck_assert_uint_lt(players[0].vain / TURNS, 2000);
	pair_close(&players[0].end, &players[1].end);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("softnic: threads");
	TCase *t = tcase_create("threads");

	tcase_set_timeout(t, 300);
	tcase_add_test(t, together);
	tcase_add_test(t, one_cpu);
	suite_add_tcase(s, t);
	return run_suite(s);
}

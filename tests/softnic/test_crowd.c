// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * As many devices as there may be, two processes on each, in pairs that write to each other and read it back. Some are
 * killed while they do, at any moment, and others take their places.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test_peer.h"

#define DEVS 32
#define PROCS 64
#define SIZE 50000u
#define WAVES 2

/* What the processes tell each other; of a place, not of a process. */
struct place {
	struct addr addr;
	uint64_t buf;
	uint32_t rkey;
	_Atomic int there;	/* the number of the wave, once the address is here */
	_Atomic int connected;
	_Atomic uint32_t done;	/* rounds */
	_Atomic int lost;	/* its peer is gone */
};

static struct place *places;
static _Atomic int *stop;

static void until(_Atomic int *p, int value)
{
	double end = seconds() + 60;

	while (*p < value) {
		ck_assert_msg(seconds() < end, "the others do not come");
		usleep(1000);
	}
}

/* False: the peer is gone. */
static bool step(struct end *e, struct end *peer, enum ibv_wr_opcode op, uint32_t at)
{
	struct ibv_wc wc;

	ck_assert_int_eq(post(e, peer, 1, (struct wr){ op, .at = at, .to = 2 * SIZE, .len = SIZE }), 0);
	while (!poll_one(e, &wc, 0))
		usleep(200); /* the machine is small */
	if (wc.status == IBV_WC_SUCCESS)
		return true;
	ck_assert_int_eq(wc.status, IBV_WC_RETRY_EXC_ERR);
	return false;
}

static void one(int i, int wave)
{
	struct place *mine = &places[i], *theirs = &places[i ^ 1];
	struct ibv_mr mr = { 0 };
	struct end e, peer = { .mr = &mr };
	bool there = true;

	/* both of a device, and their peers on the next one */
	end_open(&e, (i & 1 ? i / 2 + 1 : i / 2) % DEVS, NULL);
	mine->addr = end_addr(&e);
	mine->buf = (uintptr_t)e.buf;
	mine->rkey = e.mr->rkey;
	mine->lost = 0;
	mine->there = wave;
	until(&theirs->there, wave);
	peer.buf = (uint8_t *)(uintptr_t)theirs->buf;
	mr.rkey = theirs->rkey;
	connect_to(&e, &theirs->addr, &(struct conn_opts){ .timeout = 19, .retry = 2 });
	mine->connected = wave;
	until(&theirs->connected, wave);
	for (uint32_t round = 0; there && !*stop; round++) {
		fill(e.buf, SIZE, round);
		there = step(&e, &peer, IBV_WR_RDMA_WRITE, 0) && step(&e, &peer, IBV_WR_RDMA_READ, SIZE);
		if (there)
			check_filled(e.buf + SIZE, SIZE, round);
		mine->done += there;
	}
	mine->lost = !there;
	until(stop, 1);
	end_close(&e);
}

static pid_t start(int i, int wave)
{
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid)
		return pid;
	one(i, wave);
	_exit(0);
}

/* Of each pair that is not hit, both go on; of one that is hit, the other notices. */
START_TEST(killed)
{
	pid_t pids[PROCS];
	unsigned int seed = 1;
	int status;

	places = mmap(NULL, sizeof(*places) * PROCS + sizeof(*stop), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		      -1, 0);
	ck_assert_ptr_ne(places, MAP_FAILED);
	stop = (_Atomic int *)(places + PROCS);
	for (int wave = 1; wave <= WAVES; wave++) {
		bool hit[PROCS] = { false };
		uint32_t rounds = 0;

		*stop = 0;
		for (int i = 0; i < PROCS; i++)
			pids[i] = start(i, wave);
		for (int i = 0; i < PROCS; i++)
			until(&places[i].connected, wave);
		for (int i = 0; i < PROCS; i += 4) {
			int k = i + rand_r(&seed) % 2;

			usleep((unsigned int)rand_r(&seed) % 20000);
			ck_assert_int_eq(kill(pids[k], SIGKILL), 0);
			ck_assert_int_eq(waitpid(pids[k], &status, 0), pids[k]);
			ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
			hit[k] = true;
		}
		for (int i = 0; i < PROCS; i++) {
			uint32_t before = places[i].done;
			double end = seconds() + 60;

			while (!hit[i] && (hit[i ^ 1] ? !places[i].lost : places[i].done == before)) {
				ck_assert_msg(seconds() < end, "process %d stands still", i);
				usleep(1000);
			}
			rounds += places[i].done;
		}
		*stop = 1;
		for (int i = 0; i < PROCS; i++)
			if (!hit[i])
				peer_end(pids[i]);
		printf("wave %d: %u rounds, %d of %d killed\n", wave, rounds, PROCS / 4, PROCS);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("softnic: many processes");
	TCase *t = tcase_create("crowd");

	setvbuf(stdout, NULL, _IONBF, 0);
	tcase_set_timeout(t, 200);
	tcase_add_test(t, killed);
	suite_add_tcase(s, t);
	return run_suite(s);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The wire pattern of DeepEP over NVSHMEM's proxy: one thread, one queue pair for each peer, rounds of one WRITE to
 * each peer and then a FETCH_ADD there, all signalled, into one completion queue. A verbs program like any other:
 * bench/deepep.sh runs it with and without the library. The peers are one process.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "oob.h"
#include "rc_pair.h"

#define MAX_PEERS 64
#define BATCH 16
#define RTTS 21

enum flags { NONE, ATOMIC, DRAIN };

static struct {
	const char *dev, *peer_dev;
	size_t size;
	unsigned peers, rounds, window;
	enum flags flags;
} opt = { .dev = "mlx5_0", .peer_dev = "mlx5_0", .size = 65536, .peers = 8, .rounds = 100, .window = 16,
	  .flags = ATOMIC };

struct end {
	struct rc_dev dev;
	struct ibv_cq *cq;
	struct ibv_qp *qp[MAX_PEERS];
	struct ibv_mr *mr;
	uint8_t *buf;
	size_t len;
};

/* What an end tells of one of its queue pairs. */
struct hello {
	struct rc_addr addr;
	uint64_t buf, word;
	uint32_t rkey, pad;
};

struct peer {
	struct hello its;
	uint64_t posted, done; /* WRs */
};

static struct end me;
static struct peer peers[MAX_PEERS];

static void die(const char *what, int err)
{
	fprintf(stderr, "deepep: %s: %s\n", what, strerror(err < 0 ? -err : err));
	exit(2);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Per peer: the WRITEs' slots of a window, then one line for the word. */
static size_t stride(void)
{
	return opt.size * opt.window + 64;
}

static void open_end(const char *dev)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	int err = rc_open(&me.dev, dev, 1, -1);

	if (err)
		die(dev, err);
	me.len = stride() * opt.peers;
	if (posix_memalign((void **)&me.buf, 4096, me.len))
		die("memory", ENOMEM);
	memset(me.buf, 0, me.len);
	me.mr = vb.reg_mr(me.dev.pd, me.buf, me.len,
			  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	me.cq = vb.create_cq(me.dev.ctx, (int)(opt.peers * (2 * opt.window + 2)), NULL, NULL, 0);
	if (!me.mr || !me.cq)
		die("region or completion queue", errno);
	init.send_cq = init.recv_cq = me.cq;
	init.cap = (struct ibv_qp_cap){ .max_send_wr = 2 * opt.window + 2, .max_send_sge = 1, .max_recv_wr = 1,
					.max_recv_sge = 1 };
	for (unsigned i = 0; i < opt.peers; i++) {
		me.qp[i] = vb.create_qp(me.dev.pd, &init);
		if (!me.qp[i])
			die("queue pair", errno);
	}
}

static void join(int fd)
{
	for (unsigned i = 0; i < opt.peers; i++) {
		struct hello mine = { .buf = (uintptr_t)me.buf + i * stride(), .rkey = me.mr->rkey };
		int err;

		mine.word = mine.buf + opt.size * opt.window;
		rc_addr_of(&me.dev, me.qp[i], i, &mine.addr);
		err = oob_xchg(fd, &mine, &peers[i].its, sizeof(mine));
		if (!err)
			err = rc_connect(&me.dev, me.qp[i], i, &peers[i].its.addr, NULL);
		if (err)
			die("connect", err);
	}
	oob_sync(fd);
}

static void poll_some(void)
{
	struct ibv_wc wc[BATCH];
	int n = ibv_poll_cq(me.cq, BATCH, wc);

	for (int i = 0; i < n; i++) {
		if (wc[i].status) {
			fprintf(stderr, "deepep: completion: %s\n", vb.wc_status_str(wc[i].status));
			exit(1);
		}
		peers[wc[i].wr_id].done++;
	}
}

static void post(unsigned p, bool atomic, uint64_t round)
{
	struct hello *its = &peers[p].its;
	uint8_t *mine = me.buf + p * stride();
	size_t slot = atomic ? opt.size * opt.window : round % opt.window * opt.size;
	struct ibv_sge sge = { (uintptr_t)mine + slot, atomic ? 8 : (uint32_t)opt.size, me.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = p, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
	int err;

	if (atomic) {
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr.atomic.remote_addr = its->word;
		wr.wr.atomic.rkey = its->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.wr.rdma.remote_addr = its->buf + slot;
		wr.wr.rdma.rkey = its->rkey;
	}
	err = ibv_post_send(me.qp[p], &wr, &bad);
	if (err)
		die("post", err);
	peers[p].posted++;
}

static void wait_for(unsigned p, uint64_t open)
{
	while (peers[p].posted - peers[p].done > open)
		poll_some();
}

static void wait_for_all(void)
{
	for (unsigned p = 0; p < opt.peers; p++)
		wait_for(p, 0);
}

static void run_rounds(unsigned rounds)
{
	unsigned per = opt.flags == NONE ? 1 : 2;

	for (unsigned r = 0; r < rounds; r++)
		for (unsigned p = 0; p < opt.peers; p++) {
			wait_for(p, per * (opt.window - 1));
			post(p, false, r);
			if (opt.flags == DRAIN)
				wait_for(p, 0);
			if (opt.flags != NONE)
				post(p, true, r);
			poll_some();
		}
	wait_for_all();
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Median of lone FETCH_ADDs. */
static double rtt_us(unsigned *atomics)
{
	uint64_t t[RTTS];

	for (unsigned i = 0; i < RTTS; i++) {
		t[i] = now_ns();
		post(0, true, 0);
		wait_for(0, 0);
		t[i] = now_ns() - t[i];
	}
	*atomics = RTTS;
	qsort(t, RTTS, sizeof(t[0]), by_value);
	return (double)t[RTTS / 2] / 1e3;
}

static int sender(int fd)
{
	unsigned warm = opt.window < 8 ? opt.window : 8, extra;
	uint64_t want, got = 0, t;
	double rtt;

	open_end(opt.dev);
	join(fd);
	rtt = rtt_us(&extra);
	run_rounds(warm);
	t = now_ns();
	run_rounds(opt.rounds);
	t = now_ns() - t;
	want = opt.flags == NONE ? extra : extra + (uint64_t)opt.peers * (warm + opt.rounds);
	if (oob_sync(fd) || oob_recv(fd, &got, sizeof(got)))
		die("the peers", ECONNRESET);
	printf("{\"bench\":\"deepep\",\"size\":%zu,\"peers\":%u,\"rounds\":%u,\"seconds\":%.6f,\"mb_per_s\":%.2f,"
	       "\"rtt_us\":%.1f,\"atomics\":%llu}\n", opt.size, opt.peers, opt.rounds, (double)t / 1e9,
	       (double)opt.size * opt.peers * opt.rounds * 1e3 / (double)t, rtt, (unsigned long long)got);
	if (got != want)
		fprintf(stderr, "deepep: %llu atomics arrived, not %llu\n", (unsigned long long)got, (unsigned long long)want);
	return got != want;
}

static int receiver(int fd)
{
	uint64_t sum = 0, v;

	open_end(opt.peer_dev);
	join(fd);
	if (oob_sync(fd))
		return 2;
	for (unsigned i = 0; i < opt.peers; i++) {
		memcpy(&v, me.buf + i * stride() + opt.size * opt.window, sizeof(v));
		sum += v;
	}
	return oob_send(fd, &sum, sizeof(sum)) ? 2 : 0;
}

static unsigned number(const char *s, unsigned lo, unsigned hi)
{
	char *end;
	unsigned long v = strtoul(s, &end, 0);

	if (*end == 'k')
		v <<= 10, end++;
	if (end == s || *end || v < lo || v > hi) {
		fprintf(stderr, "deepep: %s is not within %u..%u\n", s, lo, hi);
		exit(2);
	}
	return (unsigned)v;
}

int main(int argc, char **argv)
{
	static const struct option opts[] = { { "dev", 1, NULL, 'd' }, { "peer-dev", 1, NULL, 'e' }, { "size", 1, NULL, 's' },
					      { "peers", 1, NULL, 'p' }, { "rounds", 1, NULL, 'r' },
					      { "window", 1, NULL, 'w' }, { "flags", 1, NULL, 'f' }, { NULL, 0, NULL, 0 } };
	int o, fds[2], status = 0, ret;
	pid_t pid;

	while ((o = getopt_long(argc, argv, "", opts, NULL)) != -1)
		switch (o) {
		case 'd': opt.dev = optarg; break;
		case 'e': opt.peer_dev = optarg; break;
		case 's': opt.size = number(optarg, 8, 1u << 24); break;
		case 'p': opt.peers = number(optarg, 1, MAX_PEERS); break;
		case 'r': opt.rounds = number(optarg, 1, 1000000); break;
		case 'w': opt.window = number(optarg, 1, 1024); break;
		case 'f':
			opt.flags = !strcmp(optarg, "none") ? NONE : !strcmp(optarg, "drain") ? DRAIN : ATOMIC;
			break;
		default:
			fputs("usage: deepep [--dev D] [--peer-dev D] [--size B] [--peers N] [--rounds N] [--window N] "
			      "[--flags atomic|drain|none]\n", stderr);
			return 2;
		}
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		die("socketpair", errno);
	if (verbs_load("link", NULL))
		return 2;
	pid = fork();
	if (pid < 0)
		die("fork", errno);
	if (!pid)
		exit(receiver(fds[1]));
	close(fds[1]);
	ret = sender(fds[0]);
	waitpid(pid, &status, 0);
	return ret ? ret : !WIFEXITED(status) || WEXITSTATUS(status);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ex.h"
#include "mini.h"

#define LEN  (64u << 10)
#define FLAG (2 * LEN)
#define WORD (FLAG + 64)
#define ALL  (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static const struct mend_want want = { .len = 2 * LEN + 4096, .depth = 32, .inl = 64, .recvs = 1 };
struct hello {
	struct rc_addr addr;
	uint64_t raddr;
	uint32_t rkey;
};

/* This process's end, and what the other one said of its own. The child receives. */
static struct mend e;
static struct hello peer;
static unsigned int early;
static int sock;

static void tell(const void *p, size_t n)
{
	CHECK(write(sock, p, n) == (ssize_t)n, "the other process is gone");
}

static bool hear(void *p, size_t n)
{
	return recv(sock, p, n, MSG_WAITALL) == (ssize_t)n;
}

static bool there(uint64_t key)
{
	static uint8_t w[LEN];

	pattern_fill(w, key, 0, LEN);
	return !memcmp(e.buf, w, LEN);
}

/* ---- the sender */

static void write_data(uint64_t key, int flags)
{
	pattern_fill(e.buf, key, 0, LEN);
	CHECK(!mend_post(&e, &(struct mwr){ .op = IBV_WR_RDMA_WRITE, .len = LEN, .id = key, .flags = flags,
					    .raddr = peer.raddr, .rkey = peer.rkey }), "post");
}

static void done(uint64_t key)
{
	mend_expect(&e, key, IBV_WC_RDMA_WRITE, -1);
}

static void send_loop(uint64_t key)
{
	write_data(key, IBV_SEND_SIGNALED);
	done(key);
	tell(&key, sizeof(key));
}

/* Regions that the peer may not read: everything works. */
static void send_noread(uint64_t key)
{
	write_data(key, 0);
	CHECK(!mend_post(&e, &(struct mwr){ .op = IBV_WR_ATOMIC_FETCH_AND_ADD, .off = LEN, .len = 8, .id = ~key, .arg = 1,
					    .flags = IBV_SEND_SIGNALED, .raddr = peer.raddr + WORD, .rkey = peer.rkey }),
	      "post");
	mend_expect(&e, ~key, IBV_WC_FETCH_ADD, 8);
	write_data(key, IBV_SEND_SIGNALED);
	done(key);
	tell(&key, sizeof(key));
}

/* A WRITE as a flag, into a region with relaxed ordering; the data go another way. */
static void send_relaxed(uint64_t key)
{
	tell(&key, sizeof(key));
	write_data(key, 0);
	memcpy(e.buf + FLAG, &key, 8);
	CHECK(!mend_post(&e, &(struct mwr){ .op = IBV_WR_RDMA_WRITE, .off = FLAG, .len = 8, .id = key,
					    .flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE, .raddr = peer.raddr + FLAG,
					    .rkey = peer.rkey }), "post");
	done(key);
}

static void send_all(const struct mini *m, void (*send_one)(uint64_t key))
{
	struct rng r = { m->seed };
	char c;

	for (unsigned int i = 0; i < m->count && !mini_failed; i++) {
		send_one(rng_u64(&r) | 1);
		if (!hear(&c, 1)) {
			CHECK(false, "the receiver has failed");
			break;
		}
	}
}

/* ---- the receiver */

/* A READ of four bytes on a QP of its own that is connected to itself makes visible what was acknowledged. */
static void flush_self(struct mend *c, uint64_t key)
{
	early += !there(key);
	CHECK(!mend_post(c, &(struct mwr){ .op = IBV_WR_RDMA_READ, .off = LEN, .len = 4, .id = ~key,
					   .flags = IBV_SEND_SIGNALED, .raddr = (uintptr_t)e.buf + LEN - 4,
					   .rkey = e.mr->rkey }), "post");
	mend_expect(c, ~key, IBV_WC_RDMA_READ, 4);
	CHECK(there(key), "flushed, but not all data is there");
}

static void await_flag(uint64_t key)
{
	volatile uint64_t *flag = (volatile uint64_t *)(e.buf + FLAG);
	struct timespec now, end;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += 20;
	do {
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (*flag != key && now.tv_sec < end.tv_sec);
	CHECK(*flag == key, "no flag within 20 s");
	CHECK(there(key), "a flag before its data");
}

static void receive_all(struct mend *c, bool relaxed)
{
	uint64_t key;

	while (!mini_failed && hear(&key, sizeof(key))) {
		if (c->qp)
			flush_self(c, key);
		else if (relaxed)
			await_flag(key);
		if (!mini_failed)
			tell("", 1);
	}
}

/* In place of the region that mend_open() made. */
static void reregister(int access)
{
	CHECK(!vb.dereg_mr(e.mr), "dereg_mr");
	e.mr = access & IBV_ACCESS_RELAXED_ORDERING ?
		       vb.reg_mr_iova2(e.dev.pd, e.buf, e.len, (uintptr_t)e.buf, (unsigned int)access) :
		       vb.reg_mr(e.dev.pd, e.buf, e.len, access);
	CHECK(e.mr, "registration: %s", strerror(errno));
}

int main(int argc, char **argv)
{
	struct mini m = { .name = "pushed", .count = 40, .timeout_s = 120 };
	const char *what = argc > 1 ? argv[1] : "";
	bool loops = !strcmp(what, "loop"), unread = !strcmp(what, "noread"), relaxed = !strcmp(what, "relaxed");
	int sv[2], err, status = 0;
	struct mend c = { 0 };
	struct hello mine;
	char extra[32];
	pid_t pid;

	if (!loops && !unread && !relaxed) {
		fprintf(stderr, "usage: pushed loop|noread|relaxed [OPTION...]\n");
		return 2;
	}
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sv))
		return 2;
	pid = fork();
	sock = sv[!pid];
	close(sv[!!pid]);
	mini_start(&m, argc - 1, argv + 1, "What was acknowledged, and when it can be seen.");
	err = mend_open(&e, &m, m.dev, &want);
	if (!err && !loops)
		reregister(unread ? ALL & ~IBV_ACCESS_REMOTE_READ : ALL | IBV_ACCESS_RELAXED_ORDERING);
	if (!err) {
		rc_addr_of(&e.dev, e.qp, e.psn, &mine.addr);
		mine.raddr = (uintptr_t)e.buf;
		mine.rkey = e.mr->rkey;
		tell(&mine, sizeof(mine));
		err = hear(&peer, sizeof(peer)) ? rc_connect(&e.dev, e.qp, e.psn, &peer.addr, NULL) : -EPIPE;
	}
	if (!err && loops && !pid) {
		/* a queue pair beside its own */
		c = e;
		c.qp = NULL;
		c.cq = any_create_cq(e.dev.ctx, 64, NULL, NULL, 0);
		err = c.cq ? mend_new_qp(&c, &want) : -errno;
		if (!err)
			err = mend_join(&c, &c, NULL);
	}
	CHECK(!err, "set-up: %s", strerror(-err));
	mini_nap(m.settle_ms);
	if (!mini_failed && pid)
		send_all(&m, loops ? send_loop : unread ? send_noread : send_relaxed);
	else if (!mini_failed)
		receive_all(&c, relaxed);
	close(sock);
	if (pid) {
		CHECK(waitpid(pid, &status, 0) == pid && !status, "the receiver ended with 0x%x", status);
	} else if (c.qp) {
		CHECK(!vb.destroy_qp(c.qp), "destroy_qp");
		CHECK(!vb.destroy_cq(c.cq), "destroy_cq");
	}
	if (!err)
		mend_close(&e);
	snprintf(extra, sizeof(extra), "\"early\":%u", early);
	return mini_end(&m, extra);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A server that answers each message, both with bulk before them, and send queues that hold what the credits allow and no
 * more. The client sends message k + credits when it has answer k, and its acknowledgement of that is on the wire before:
 * over one port the server's completion of answer k is in its CQ before the receive, so neither end is ever told ENOMEM.
 * Not so where acknowledgements may be late (softnic --adverse).
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ex.h"
#include "mini.h"
#include "oob.h"

#define LEN	(128u << 10)
#define SHORTEST (64u << 10)
#define ROOM	64u	/* for so many credits, if the provider makes the queue deeper than asked */
#define OUT(k)	((k) % ROOM * (size_t)LEN)
#define IN(k)	(ROOM * (size_t)LEN + OUT(k))
#define MSG_OUT(k) (2 * ROOM * (size_t)LEN + (k) % ROOM * sizeof(struct msg))
#define MSG_IN(k) (MSG_OUT(k) + ROOM * sizeof(struct msg))
#define NAP_MS	5

/* Behind the bulk that it tells of. */
struct msg {
	uint64_t k, len, key;
};

struct hello {
	struct rc_addr addr;
	uint64_t raddr, count;
	uint32_t rkey, depth;
};

static struct mini m = { .name = "echo", .count = 400, .timeout_s = 60 };
static const struct mend_want want = { .len = 2 * ROOM * ((size_t)LEN + sizeof(struct msg)), .depth = 16, .sge = 1,
				       .recvs = ROOM };

/* This process's end, and what the other one said of its own. The child is the server. */
static struct mend e;
static struct ibv_comp_channel *ch;
static struct hello peer;
static struct rng rng;
static bool server;
static unsigned int credits, naps;
static uint64_t count, said, heard;
static uint64_t next_id; /* of the sends' completions */

static bool bulk_signaled(uint64_t k)
{
	return k % 3 == 0;
}

static bool over(void)
{
	return heard == count && next_id / 2 == count;
}

static void say(void)
{
	struct msg msg = { said, rng_range(&rng, SHORTEST, LEN), rng_u64(&rng) };
	struct mwr bulk = { .op = IBV_WR_RDMA_WRITE, .off = OUT(said), .len = msg.len, .raddr = peer.raddr + IN(said),
			    .rkey = peer.rkey, .id = 2 * said, .flags = bulk_signaled(said) ? IBV_SEND_SIGNALED : 0 };
	struct mwr flag = { .op = IBV_WR_SEND, .off = MSG_OUT(said), .len = sizeof(msg), .id = 2 * said + 1,
			    .flags = IBV_SEND_SIGNALED };
	int err;

	pattern_fill(e.buf + bulk.off, msg.key, 0, msg.len);
	memcpy(e.buf + flag.off, &msg, sizeof(msg));
	err = mend_post(&e, &bulk);
	if (!err)
		err = mend_post(&e, &flag);
	CHECK(!err, "%s %llu: %s; of those before, %llu are completed", server ? "answer" : "message", (unsigned long long)said,
	      strerror(err), (unsigned long long)next_id / 2);
	said++;
}

static void post_recv(uint64_t k)
{
	CHECK(!mend_recv(&e, MSG_IN(k), sizeof(struct msg), k), "post_recv");
}

static void hear(const struct ibv_wc *wc)
{
	static uint8_t expected[LEN];
	struct msg msg;

	memcpy(&msg, e.buf + MSG_IN(heard), sizeof(msg));
	CHECK(wc->wr_id == heard && wc->byte_len == sizeof(msg) && msg.k == heard && msg.len <= LEN,
	      "receive %llu of %llu, %u bytes: message %llu", (unsigned long long)wc->wr_id, (unsigned long long)heard,
	      wc->byte_len, (unsigned long long)msg.k);
	if (mini_failed)
		return;
	pattern_fill(expected, msg.key, 0, msg.len);
	CHECK(!memcmp(e.buf + IN(heard), expected, msg.len), "message %llu before its data", (unsigned long long)heard);
	post_recv(heard + credits);
	heard++;
	/* what comes meanwhile is read ahead */
	if (server && rng_pct(&rng, 10)) {
		mini_nap(NAP_MS);
		naps++;
	}
	if (said < count)
		say();
}

static void take(const struct ibv_wc *wc)
{
	CHECK(wc->status == IBV_WC_SUCCESS, "0x%llx: %s", (unsigned long long)wc->wr_id, vb.wc_status_str(wc->status));
	if (mini_failed)
		return;
	if (wc->opcode == IBV_WC_RECV) {
		hear(wc);
		return;
	}
	CHECK(wc->wr_id == next_id && wc->opcode == (next_id % 2 ? IBV_WC_SEND : IBV_WC_RDMA_WRITE),
	      "wr_id 0x%llx, opcode %d instead of 0x%llx", (unsigned long long)wc->wr_id, wc->opcode,
	      (unsigned long long)next_id);
	next_id++;
	next_id |= !bulk_signaled(next_id / 2);
}

static void ask(void)
{
	struct ibv_wc wc;

	while (said < credits && said < count)
		say();
	while (!mini_failed && !over()) {
		int n = rc_poll_one(e.cq, &wc, 10000);

		CHECK(n == 1, "nothing within 10 s: %llu of %llu answers", (unsigned long long)heard,
		      (unsigned long long)count);
		if (n == 1)
			take(&wc);
	}
}

static void serve(void)
{
	struct ibv_wc wc[4];
	struct ibv_cq *cq;
	void *ctx;
	int n;

	while (!mini_failed) {
		CHECK(!ibv_req_notify_cq(e.cq, 0), "req_notify_cq");
		while (!mini_failed && (n = any_poll(e.cq, rng_pct(&rng, 10) ? 4 : 1, wc)) != 0) {
			CHECK(n > 0, "poll_cq gave %d", n);
			for (int i = 0; i < n; i++)
				take(&wc[i]);
		}
		if (mini_failed || over())
			break;
		CHECK(!vb.get_cq_event(ch, &cq, &ctx), "get_cq_event: %s", strerror(errno));
		vb.ack_cq_events(e.cq, 1);
	}
}

static int set_up(int sock)
{
	struct hello mine;
	int err = mend_open(&e, &m, server ? m.peer_dev : m.dev, &want);

	if (err)
		return err;
	if (server) {
		ch = vb.create_comp_channel(e.dev.ctx);
		err = ch ? mend_new_cq(&e, &want, 4 * ROOM, ch, NULL) : -errno;
		if (err)
			return err;
	}
	mine = (struct hello){ .raddr = (uintptr_t)e.buf, .count = m.count, .rkey = e.mr->rkey, .depth = e.cap.max_send_wr };
	rc_addr_of(&e.dev, e.qp, e.psn, &mine.addr);
	err = oob_xchg(sock, &mine, &peer, sizeof(mine));
	if (err)
		return err;
	count = server ? peer.count : m.count;
	credits = (server ? mine : peer).depth / 2;
	CHECK(credits && credits <= ROOM && 2 * credits <= mine.depth, "a depth of %u here and of %u there", mine.depth,
	      peer.depth);
	err = rc_connect(&e.dev, e.qp, e.psn, &peer.addr, NULL);
	for (unsigned int k = 0; !err && k < credits; k++)
		post_recv(k);
	mini_nap(m.settle_ms);
	return err ? err : oob_sync(sock);
}

int main(int argc, char **argv)
{
	int sv[2], err, status = 0;
	char extra[64];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sv))
		return 2;
	pid = fork();
	if (pid < 0)
		return 2;
	server = !pid;
	close(sv[!server]);
	mini_start(&m, argc, argv, "Each message is answered, with as many requests as the send queue holds.");
	rng.s = m.seed + server;
	next_id = !bulk_signaled(0);
	err = set_up(sv[server]);
	CHECK(!err, "set-up: %s", strerror(-err));
	if (!mini_failed && server)
		serve();
	else if (!mini_failed)
		ask();
	if (!mini_failed)
		CHECK(!oob_sync(sv[server]), "the other end is gone");
	close(sv[server]);
	if (!err && server) {
		CHECK(!mend_new_cq(&e, &want, 1, NULL, NULL), "create_qp");
		CHECK(!vb.destroy_comp_channel(ch), "destroy_comp_channel");
	}
	if (!err)
		mend_close(&e);
	if (server) {
		fprintf(stderr, "echo: %u naps\n", naps);
		return mini_failed ? 1 : 0;
	}
	/* it may wait for an event for ever */
	if (mini_failed)
		kill(pid, SIGTERM);
	CHECK(waitpid(pid, &status, 0) == pid && !status, "the server ended with 0x%x", status);
	snprintf(extra, sizeof(extra), "\"credits\":%u,\"answers\":%llu", credits, (unsigned long long)heard);
	return mini_end(&m, extra);
}

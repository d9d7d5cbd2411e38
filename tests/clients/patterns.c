// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * How transfer engines (DLSlime, Mooncake) use verbs: chains of which the last request is signalled, sleep on a channel
 * after empty polls, arithmetic on bad_wr, RESET and reuse, the CQ's context as a pointer; and channels as others use
 * them. Prints the same with the library as without.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "mini.h"

#define LEN 65536u
#define CHAIN 8u
static struct mini m = { .name = "patterns", .timeout_s = 100 };
static struct mend_want want = { .len = CHAIN * LEN, .depth = 32, .sge = 2, .recvs = 16 };
static struct mend a, b;
static struct ibv_comp_channel *ch;
static struct context { struct mend *end; unsigned int seen; } ctxs[2] = { { &a, 0 }, { &b, 0 } };

static void join(void)
{
	int err = mend_join(&a, &b, NULL);

	CHECK(!err, "join: %s", strerror(-err));
	mini_nap(m.settle_ms);
}

static void new_cq(struct mend *e, struct ibv_comp_channel *on)
{
	CHECK(!mend_new_cq(e, &want, 256, on, &ctxs[e == &b]), "create_qp");
}

/* Sleeps until the channel has an event, and checks whose it is. */
static void wait_event(struct mend *e, unsigned int ack)
{
	struct ibv_cq *cq;
	void *ctx;

	CHECK(!vb.get_cq_event(ch, &cq, &ctx), "get_cq_event: %s", strerror(errno));
	CHECK(cq == e->cq && ctx == &ctxs[e == &b] && ((struct context *)ctx)->end == e, "another CQ's event");
	ctxs[e == &b].seen++;
	if (ack)
		vb.ack_cq_events(cq, ack);
}

/* A chain of whole transfers; only the last tells. Sleeps where a few polls find nothing. */
static void chain(uint64_t id, enum ibv_wr_opcode op)
{
	struct ibv_send_wr wr[CHAIN], *bad = NULL;
	struct ibv_sge sge[CHAIN];
	struct ibv_wc wc;
	int n = 0;

	for (unsigned int i = 0; i < CHAIN; i++) {
		sge[i] = (struct ibv_sge){ (uintptr_t)a.buf + i * LEN, LEN, a.mr->lkey };
		wr[i] = (struct ibv_send_wr){ .wr_id = id + i, .sg_list = &sge[i], .num_sge = 1, .opcode = op,
			.next = i + 1 < CHAIN ? &wr[i + 1] : NULL, .send_flags = i + 1 < CHAIN ? 0 : IBV_SEND_SIGNALED,
			.wr.rdma = { (uintptr_t)b.buf + i * LEN, b.mr->rkey } };
	}
	CHECK(!ibv_req_notify_cq(a.cq, 0), "req_notify");
	CHECK(!ibv_post_send(a.qp, wr, &bad), "post: %s", strerror(errno));
	for (unsigned int empty = 0; n == 0;) {
		n = ibv_poll_cq(a.cq, 1, &wc);
		if (n == 0 && ++empty >= 3) {
			wait_event(&a, 1);
			CHECK(!ibv_req_notify_cq(a.cq, 0), "req_notify");
			empty = 0;
		}
	}
	CHECK(n == 1 && !wc.status && wc.wr_id == id + CHAIN - 1, "%d, status %d, wr_id %llu", n, wc.status,
	      (unsigned long long)wc.wr_id);
	CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0, "one completion too many");
}

static void chains(void)
{
	unsigned int wrong = 0;

	printf("chains\n");
	for (unsigned int i = 0; i < 40; i++) {
		enum ibv_wr_opcode op = i % 4 == 3 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;

		memset(op == IBV_WR_RDMA_READ ? b.buf : a.buf, (int)i + 1, CHAIN * LEN);
		chain(1000 * i, op);
		wrong += memcmp(a.buf, b.buf, CHAIN * LEN) != 0 || a.buf[LEN] != (uint8_t)(i + 1);
	}
	printf("  wrong %u\n", wrong);
}

/* One of an array is refused: those before it were posted, and how many is found by subtraction. */
static void bad_wr(void)
{
	struct ibv_send_wr wr[6], *bad = NULL;
	struct ibv_sge sge = { (uintptr_t)a.buf, LEN, a.mr->lkey };
	long posted;
	int err;

	printf("bad_wr\n");
	for (unsigned int at = 0; at < 6; at++) {
		for (unsigned int i = 0; i < 6; i++)
			wr[i] = (struct ibv_send_wr){ .wr_id = i, .sg_list = &sge, .num_sge = i == at ? 1000 : 1,
				.opcode = IBV_WR_RDMA_WRITE, .next = i < 5 ? &wr[i + 1] : NULL, .send_flags = IBV_SEND_SIGNALED,
				.wr.rdma = { (uintptr_t)b.buf, b.mr->rkey } };
		err = ibv_post_send(a.qp, wr, &bad);
		posted = bad - wr;
		printf("  refused %d, posted %ld\n", err != 0, posted);
		for (long i = 0; i < posted && i < 6; i++)
			mend_expect(&a, (uint64_t)i, IBV_WC_RDMA_WRITE, -1);
	}
	/* until the queue is full */
	for (posted = 0; posted < 100000; posted++) {
		wr[0].num_sge = 1;
		wr[0].next = NULL;
		wr[0].wr_id = (uint64_t)posted;
		bad = NULL;
		if (ibv_post_send(a.qp, wr, &bad))
			break;
	}
	printf("  full: bad_wr right %d, as many as it has %d\n", bad == wr, posted == (long)a.cap.max_send_wr);
	for (long i = 0; i < posted; i++)
		mend_expect(&a, (uint64_t)i, IBV_WC_RDMA_WRITE, -1);
}

static void reuse(void)
{
	struct ibv_wc wc;

	printf("reuse\n");
	for (unsigned int i = 0; i < 4; i++) {
		for (unsigned int k = 0; k < 5; k++)
			mend_post(&a, &(struct mwr){ .op = IBV_WR_RDMA_WRITE, .len = LEN, .raddr = (uintptr_t)b.buf,
						     .rkey = b.mr->rkey, .id = k, .flags = IBV_SEND_SIGNALED });
		if (i % 2)
			for (unsigned int k = 0; k < 5; k++)
				mend_expect(&a, k, IBV_WC_RDMA_WRITE, -1);
		CHECK(!rc_to_state(a.qp, IBV_QPS_RESET) && !rc_to_state(b.qp, IBV_QPS_RESET), "RESET");
		while (ibv_poll_cq(a.cq, 1, &wc) > 0)	/* providers drop them or not */
			CHECK(wc.status == 0 && wc.wr_id < 5, "status %d", wc.status);
		printf("  state %s\n", mend_state(&a));
		join();
		memset(a.buf, (int)i + 77, LEN);
		mend_post(&a, &(struct mwr){ .op = IBV_WR_RDMA_WRITE, .len = LEN, .raddr = (uintptr_t)b.buf,
					     .rkey = b.mr->rkey, .id = 99, .flags = IBV_SEND_SIGNALED });
		mend_expect(&a, 99, IBV_WC_RDMA_WRITE, -1);
		CHECK(!memcmp(a.buf, b.buf, LEN), "the bytes");
	}
}

static void send_one(int flags)
{
	CHECK(!mend_recv(&b, LEN, LEN, 5), "post_recv");
	CHECK(!mend_post(&a, &(struct mwr){ .op = IBV_WR_SEND, .len = 64, .id = 7, .flags = flags | IBV_SEND_SIGNALED }), "send");
}

static bool readable(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, ms) == 1;
}

/* The receiver's channel: solicited only, fd not blocking, edges, several events acknowledged at once. */
static void solicited(void)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
	int ep = epoll_create1(0);
	struct ibv_cq *cq;
	void *ctx;

	printf("solicited\n");
	CHECK(!fcntl(ch->fd, F_SETFL, fcntl(ch->fd, F_GETFL) | O_NONBLOCK), "O_NONBLOCK");
	CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, ch->fd, &ev), "epoll");
	CHECK(!ibv_req_notify_cq(b.cq, 1), "req_notify");
	send_one(0);
	mend_expect(&a, 7, IBV_WC_SEND, -1);
	mend_expect(&b, 5, IBV_WC_RECV, 64);
	printf("  not solicited: readable %d, EAGAIN %d\n", readable(ch->fd, 20),
	       vb.get_cq_event(ch, &cq, &ctx) && errno == EAGAIN);
	for (unsigned int i = 0; i < 3; i++) {
		send_one(IBV_SEND_SOLICITED);
		mend_expect(&a, 7, IBV_WC_SEND, -1);
		CHECK(epoll_wait(ep, &ev, 1, 10000) == 1, "no edge for event %u", i);
		wait_event(&b, 0);
		CHECK(!ibv_req_notify_cq(b.cq, 1), "req_notify");
		mend_expect(&b, 5, IBV_WC_RECV, 64);
	}
	printf("  then: EAGAIN %d\n", vb.get_cq_event(ch, &cq, &ctx) && errno == EAGAIN);
	vb.ack_cq_events(b.cq, 3);	/* destroy_cq would wait for ever for one that is missing */
	close(ep);
}

int main(int argc, char **argv)
{
	struct ibv_qp_init_attr ia;
	struct ibv_qp_attr qa;

	mini_start(&m, argc, argv, "as transfer engines use verbs");
	if (mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want))
		return 2;
	ch = vb.create_comp_channel(a.dev.ctx);
	CHECK(ch, "create_comp_channel: %s", strerror(errno));
	new_cq(&a, ch);
	join();
	chains();
	bad_wr();
	CHECK(!vb.query_qp(a.qp, &qa, IBV_QP_STATE | IBV_QP_DEST_QPN | IBV_QP_CAP, &ia), "query_qp");
	printf("query_qp: peer %d, depth %d, CQ %d, state %d\n", qa.dest_qp_num == b.qp->qp_num,
	       ia.cap.max_send_wr == a.cap.max_send_wr, ia.send_cq == a.cq, qa.qp_state);
	reuse();
	new_cq(&a, NULL);
	CHECK(!vb.destroy_comp_channel(ch), "destroy_comp_channel");
	ch = vb.create_comp_channel(b.dev.ctx);
	CHECK(ch, "create_comp_channel: %s", strerror(errno));
	new_cq(&b, ch);
	join();
	solicited();
	new_cq(&b, NULL);
	CHECK(!vb.destroy_comp_channel(ch), "destroy_comp_channel");
	mend_close(&a);
	mend_close(&b);
	return mini_end(&m, NULL);
}

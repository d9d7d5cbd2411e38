// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Completion channels in every way that programs use them: what is printed and checked is what one port does, so that a
 * program may take an event for a completion, and one completion for no more than one event.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

#include "mini.h"

#define LEN 65536u
#define QPS 2u
#define RECVS 16u

static struct mini m = { .name = "channels", .timeout_s = 100, .count = 40 };
static struct mend_want want = { .len = LEN, .depth = 4, .sge = 1, .recvs = RECVS };
static struct mend a, b;
static struct ibv_comp_channel *ch;
/* Of a: the last one is for receives, and no queue pair sends into it. All on the channel. b's has none. */
static struct ibv_cq *cqs[QPS + 1], *bcq;
static struct ibv_qp *aq[QPS], *bq[QPS];
static unsigned int unacked[QPS + 1];

static struct ibv_cq *new_cq(unsigned int i)
{
	struct ibv_cq *cq = vb.create_cq(a.dev.ctx, 64, &cqs[i], ch, 0);

	CHECK(cq && cq->channel == ch, "create_cq: %s", strerror(errno));
	return cq;
}

static struct ibv_qp *new_qp(struct mend *e, struct ibv_cq *scq, struct ibv_cq *rcq)
{
	struct ibv_qp_init_attr ia = {
		.send_cq = scq, .recv_cq = rcq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = want.depth, .max_recv_wr = RECVS, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = vb.create_qp(e->dev.pd, &ia);

	CHECK(qp, "create_qp: %s", strerror(errno));
	return qp;
}

static void join(unsigned int i)
{
	struct rc_addr at, bt;

	rc_addr_of(&a.dev, aq[i], a.psn, &at);
	rc_addr_of(&b.dev, bq[i], b.psn, &bt);
	CHECK(!rc_connect(&a.dev, aq[i], a.psn, &bt, NULL) && !rc_connect(&b.dev, bq[i], b.psn, &at, NULL), "connect");
}

static void write_to(unsigned int i, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)a.buf, LEN, a.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		.opcode = id % 3 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, .wr.rdma = { (uintptr_t)b.buf, b.mr->rkey } }, *bad;

	CHECK(!ibv_post_send(aq[i], &wr, &bad), "a full queue");
}

/* From b to a. */
static void send_to(unsigned int i, unsigned int flags)
{
	struct ibv_sge in = { (uintptr_t)a.buf, LEN, a.mr->lkey }, out = { (uintptr_t)b.buf, 64, b.mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 5, .sg_list = &in, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED | flags }, *bad;
	struct ibv_wc wc;

	CHECK(!ibv_post_recv(aq[i], &recv, &bad_recv), "post_recv");
	CHECK(!ibv_post_send(bq[i], &wr, &bad), "send");
	CHECK(rc_poll_one(bcq, &wc, 20000) == 1 && !wc.status && wc.wr_id == 7, "the sender's completion");
}

static void arm(unsigned int i, int solicited)
{
	CHECK(!ibv_req_notify_cq(cqs[i], solicited), "req_notify");
}

static void found(unsigned int i, uint64_t id)
{
	struct ibv_wc wc = { 0 };
	int n = ibv_poll_cq(cqs[i], 1, &wc);

	CHECK(n == 1 && !wc.status && wc.wr_id == id, "an event without its completion: %d, status %d, wr_id %llu", n,
	      wc.status, (unsigned long long)wc.wr_id);
	/* so that one mistake is one, and not a full queue later */
	if (n != 1)
		rc_poll_one(cqs[i], &wc, 20000);
}

static void blocking(bool on)
{
	int flags = fcntl(ch->fd, F_GETFL);

	CHECK(!fcntl(ch->fd, F_SETFL, on ? flags & ~O_NONBLOCK : flags | O_NONBLOCK), "F_SETFL");
}

enum { GET, POLL, POLL_BLOCKING, SELECT, EPOLL, EDGE, KINDS };
static const char *const kinds[] = { "get", "poll", "poll-blocking", "select", "epoll", "epoll-edge" };

/* Sleeps until the channel has an event; gives the number of its CQ. */
static unsigned int next_event(int kind, int ep)
{
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };
	struct ibv_cq *cq = NULL;
	struct epoll_event ev;
	void *ctx = NULL;
	unsigned int i;
	fd_set set;
	int n = 1, err = 1;

	FD_ZERO(&set);
	FD_SET(ch->fd, &set);
	if (kind == POLL || kind == POLL_BLOCKING)
		n = poll(&p, 1, 20000);
	else if (kind == SELECT)
		n = select(ch->fd + 1, &set, NULL, NULL, &(struct timeval){ 20, 0 });
	else if (kind == EDGE)
		/* there is no edge for one that was there with the one before */
		err = vb.get_cq_event(ch, &cq, &ctx);
	if (err && (kind == EDGE || kind == EPOLL))
		n = epoll_wait(ep, &ev, 1, 20000);
	CHECK(n == 1, "no event in 20 s");
	/* where it does not block, it must be there: readable means that there is one */
	CHECK(!err || !vb.get_cq_event(ch, &cq, &ctx), "get_cq_event: %s", strerror(errno));
	for (i = 0; i < QPS && cqs[i] != cq; i++)
		;
	CHECK(cqs[i] == cq && ctx == &cqs[i], "another CQ's event or context");
	unacked[i]++;
	return i;
}

static void ack(unsigned int i)
{
	if (unacked[i])
		vb.ack_cq_events(cqs[i], unacked[i]);
	unacked[i] = 0;
}

/* Nothing follows either: what could is over. */
static bool no_event(void)
{
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *ctx;
	bool none;

	mini_nap(5);
	none = poll(&p, 1, 0) == 0;
	blocking(false);
	if (vb.get_cq_event(ch, &cq, &ctx))
		return errno == EAGAIN && none;
	unacked[(struct ibv_cq **)ctx - cqs]++;
	return false;
}

/* As ib_read_lat: one request, one event, armed anew, one poll. */
static void one_by_one(int kind)
{
	struct epoll_event ev = { .events = EPOLLIN | (kind == EDGE ? EPOLLET : 0u) };
	int ep = epoll_create1(0);

	CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, ch->fd, &ev), "epoll");
	blocking(kind == GET || kind == POLL_BLOCKING);
	for (unsigned int i = 0; i < QPS; i++)
		arm(i, 0);
	for (unsigned int n = 0; n < m.count; n++) {
		unsigned int i = n % QPS;

		write_to(i, n);
		CHECK(next_event(kind, ep) == i, "another CQ's event");
		if (n % 5 == 4)
			ack(i);
		arm(i, 0);
		found(i, n);
	}
	printf("one by one, %s: no event left %d\n", kinds[kind], no_event());
	close(ep);
}

/* A window of several on all CQs, receives among them: no arm gives two events, and nothing is slept through. */
static void window(int kind)
{
	unsigned int posted = 0, got = 0, arms = QPS + 1, events = 0, on[QPS] = { 0 };
	struct epoll_event ev = { .events = EPOLLIN | (kind == EDGE ? EPOLLET : 0u) };
	int ep = epoll_create1(0);
	struct ibv_wc wc;

	CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, ch->fd, &ev), "epoll");
	blocking(kind == GET || kind == POLL_BLOCKING);
	for (unsigned int i = 0; i <= QPS; i++)
		arm(i, 0);
	while (got < 4 * m.count) {
		unsigned int i;

		for (i = 0; i < QPS; i++)
			for (; on[i] < want.depth && posted < 4 * m.count; on[i]++)
				write_to(i, posted++);
		if (posted % 7 == 0 && posted < 4 * m.count) {
			send_to(0, 0);
			posted++;
		}
		i = next_event(kind, ep);
		events++;
		arm(i, 0);
		arms++;
		while (ibv_poll_cq(cqs[i], 1, &wc) == 1) {
			CHECK(!wc.status, "status %d", wc.status);
			got++;
			if (i < QPS)
				on[i]--;
		}
		ack(i);
	}
	while (!no_event() && events <= arms)
		events++;
	/* those that came between arming and the poll are left */
	for (unsigned int i = 0; i <= QPS; i++)
		ack(i);
	printf("window, %s: all %d, events fit %d\n", kinds[kind], got == 4 * m.count, events <= arms);
	close(ep);
}

/* What is in a CQ that is armed is found by the poll that has to follow, after which there is no event. */
static void old_ones(void)
{
	struct ibv_wc wc;
	bool none = true;

	for (unsigned int n = 0; n < m.count; n++) {
		blocking(true);
		arm(0, 0);
		write_to(0, n);
		next_event(GET, -1);
		arm(0, 0);
		arm(0, 0);	/* twice is once */
		found(0, n);
		none &= no_event();
		/* whoever takes it, it makes an event */
		write_to(0, n + 1);
		CHECK(rc_poll_one(cqs[0], &wc, 20000) == 1 && wc.wr_id == n + 1, "completion");
		blocking(false);
		next_event(POLL, -1);
		none &= no_event();
		ack(0);
	}
	/* not armed */
	write_to(0, 1);
	CHECK(rc_poll_one(cqs[0], &wc, 20000) == 1, "completion");
	printf("old: no event %d, not armed: no event %d\n", none, no_event());
}

static void solicited(void)
{
	struct ibv_wc wc;
	bool none = true;

	/* spends what arms still stand */
	blocking(true);
	arm(QPS, 0);
	send_to(0, 0);
	next_event(GET, -1);
	found(QPS, 5);
	for (unsigned int n = 0; n < m.count / 4; n++) {
		/* neither a sender's completion nor a plain message */
		arm(0, 1);
		arm(QPS, 1);
		write_to(0, n);
		CHECK(rc_poll_one(cqs[0], &wc, 20000) == 1 && wc.wr_id == n, "completion");
		send_to(0, 0);
		CHECK(rc_poll_one(cqs[QPS], &wc, 20000) == 1 && wc.wr_id == 5, "receive");
		none &= no_event();
		send_to(0, IBV_SEND_SOLICITED);
		blocking(n & 1);
		CHECK(next_event(POLL, -1) == QPS, "another CQ's event");
		found(QPS, 5);
		/* an arm for any is not narrowed by one for solicited ones */
		arm(0, 0);
		arm(0, 1);
		write_to(0, n);
		CHECK(next_event(POLL, -1) == 0, "another CQ's event");
		found(0, n);
	}
	ack(0);
	ack(QPS);
	printf("solicited: no event for others %d, left %d\n", none, !no_event());
}

/* As rdma_get_send_comp() in librdmacm. */
static void as_rdmacm(void)
{
	unsigned int got = 0;
	struct ibv_wc wc;

	blocking(true);
	for (unsigned int n = 0; n < m.count; n++) {
		write_to(1, n);
		for (;;) {
			if (ibv_poll_cq(cqs[1], 1, &wc) == 1)
				break;
			arm(1, 0);
			if (ibv_poll_cq(cqs[1], 1, &wc) == 1)
				break;
			CHECK(next_event(GET, -1) == 1, "another CQ's event");
			ack(1);
		}
		got += !wc.status && wc.wr_id == n;
	}
	/* an event of an arm that was not waited for may be left */
	while (!no_event())
		;
	ack(1);
	printf("as librdmacm: all %d\n", got == m.count);
}

static atomic_uint taken, leaving;

static void *taker(void *arg)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *ctx;

	for (;;) {
		CHECK(!vb.get_cq_event(ch, &cq, &ctx), "get_cq_event: %s", strerror(errno));
		CHECK(ctx == &cqs[0] || ctx == &cqs[1], "context");
		vb.ack_cq_events(cq, 1);
		if (atomic_load(&leaving))
			return arg;
		CHECK(!ibv_req_notify_cq(cq, 0), "req_notify");
		while (ibv_poll_cq(cq, 1, &wc) == 1)
			atomic_fetch_add(&taken, 1);
	}
}

static void two_threads(void)
{
	struct ibv_wc wc;
	pthread_t t[2];

	blocking(true);
	arm(0, 0);
	arm(1, 0);
	for (unsigned int i = 0; i < 2; i++)
		CHECK(!pthread_create(&t[i], NULL, taker, NULL), "pthread_create");
	for (unsigned int n = 0; n < m.count; n++) {
		write_to(n % QPS, n);
		while (atomic_load(&taken) <= n)
			mini_nap(1);
	}
	mini_nap(20);	/* both are in get_cq_event again, so that CQs are armed */
	atomic_store(&leaving, 1);
	write_to(0, 1);
	write_to(1, 1);
	for (unsigned int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	for (unsigned int i = 0; i < QPS; i++)
		CHECK(rc_poll_one(cqs[i], &wc, 20000) == 1, "completion");
	printf("two threads: all %d, left %d\n", taken == m.count, !no_event());
}

static atomic_int acked;

static void *late_ack(void *arg)
{
	mini_nap(50);
	atomic_store(&acked, 1);
	vb.ack_cq_events(arg, 2);
	return NULL;
}

/* Events that were read must be acknowledged, those that were not go with their CQ. */
static void destroyed(void)
{
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };
	struct ibv_cq *cq;
	pthread_t t;
	void *ctx;

	blocking(true);
	for (unsigned int n = 0; n < 2; n++) {
		arm(0, 0);
		write_to(0, n);
		CHECK(next_event(GET, -1) == 0, "another CQ's event");
		found(0, n);
	}
	arm(0, 0);
	write_to(0, 2);
	CHECK(poll(&p, 1, 20000) == 1, "no event in 20 s");
	printf("destroyed: CQ in use %d, channel in use %d", vb.destroy_cq(cqs[0]) == EBUSY,
	       vb.destroy_comp_channel(ch) == EBUSY);
	/* a refused destroy_cq has not taken its event */
	CHECK(poll(&p, 1, 20000) == 1, "the event is gone");
	CHECK(!vb.destroy_qp(aq[0]), "destroy_qp");
	CHECK(!pthread_create(&t, NULL, late_ack, cqs[0]), "pthread_create");
	unacked[0] = 0;
	CHECK(!vb.destroy_cq(cqs[0]), "destroy_cq");
	/* softnic leaves the fd readable */
	blocking(false);
	printf(", waited for acknowledgements %d, event left %d\n", atomic_load(&acked), !vb.get_cq_event(ch, &cq, &ctx));
	pthread_join(t, NULL);
}

/* For solicited ones only is enough for an error; also one that has to wait until the queue pair has ended. */
static void error(void)
{
	struct ibv_sge sge = { (uintptr_t)a.buf, LEN, a.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 9, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		.opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { (uintptr_t)b.buf, b.mr->rkey ^ 0x800 } }, *bad;
	struct ibv_wc wc = { 0 };

	blocking(true);
	arm(1, 1);
	CHECK(!ibv_post_send(aq[1], &wr, &bad), "post");
	CHECK(next_event(POLL_BLOCKING, -1) == 1, "another CQ's event");
	CHECK(ibv_poll_cq(cqs[1], 1, &wc) == 1, "an event without its completion");
	ack(1);
	printf("error: status %d, wr_id %d, event left %d\n", wc.status, (int)wc.wr_id, !no_event());
}

int main(int argc, char **argv)
{
	mini_start(&m, argc, argv, "completion channels in every way");
	if (mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want))
		return 2;
	ch = vb.create_comp_channel(a.dev.ctx);
	bcq = vb.create_cq(b.dev.ctx, 64, NULL, NULL, 0);
	CHECK(ch && bcq, "create: %s", strerror(errno));
	for (unsigned int i = 0; i <= QPS; i++)
		cqs[i] = new_cq(i);
	for (unsigned int i = 0; i < QPS; i++) {
		aq[i] = new_qp(&a, cqs[i], cqs[QPS]);
		bq[i] = new_qp(&b, bcq, bcq);
		join(i);
	}
	mini_nap(m.settle_ms);
	for (int kind = 0; kind < KINDS; kind++) {
		one_by_one(kind);
		window(kind);
	}
	old_ones();
	solicited();
	as_rdmacm();
	two_threads();
	destroyed();
	error();
	CHECK(!vb.destroy_qp(aq[1]), "destroy_qp");
	for (unsigned int i = 1; i <= QPS; i++) {
		ack(i);
		CHECK(!vb.destroy_cq(cqs[i]), "destroy_cq");
	}
	CHECK(!vb.destroy_comp_channel(ch), "destroy_comp_channel");
	for (unsigned int i = 0; i < QPS; i++)
		CHECK(!vb.destroy_qp(bq[i]), "destroy_qp");
	CHECK(!vb.destroy_cq(bcq), "destroy_cq");
	mend_close(&a);
	mend_close(&b);
	return mini_end(&m, NULL);
}

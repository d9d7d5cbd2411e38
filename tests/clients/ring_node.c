// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "oob.h"
#include "ring.h"

#define DEPTH	16
#define RECVS	8
#define WARM	20		/* messages verified on each edge before the supervisor may count on it */
#define BEAT_NS	300000000ull

enum { M_DATA = 0x44415441, M_CREDIT = 0x43524544 };

struct msg {
	uint32_t type, len;
	uint64_t addr, key;		/* data: where the WRITE went, its pattern; credit: where to write next */
	uint32_t rkey, room;
};

struct hello {
	struct rc_addr rc;
	uint64_t addr;
	uint32_t rkey, room;
};

struct rqp {
	struct ibv_qp *qp;
	struct ibv_mr *mr;		/* what the peer may write to just now */
	uint8_t *area, *src;		/* area: 2 * size, the MR is somewhere in it */
	uint8_t *target;
	uint64_t to_addr, wr_seq, wr_done, recv_seq, recv_done;
	uint32_t to_rkey, to_room, room;
	bool busy;
};

struct edge {
	const struct ring_cfg *cfg;
	struct rc_dev *dev;
	unsigned int side;
	int listen_fd;
	struct rng rng;
	struct ibv_cq *cq;
	struct ibv_mr *src_mr, *msg_mr;
	uint8_t *src, *area, *msgs;
	struct rqp *q;
	bool up, broken;
	uint64_t beat;
	pthread_t thread;
};

static struct ring_report rep;
static _Atomic bool stopping, leaving;
static _Atomic unsigned int quiet;

static void bad(const struct edge *e, const char *what, uint64_t a, uint64_t b)
{
	if (__atomic_fetch_add(&rep.bad, 1, __ATOMIC_RELAXED) < 10)
		fprintf(stderr, "ring %d %s: BAD %s (%llu, %llu)\n", e->cfg->index, e->side ? "left" : "right", what,
			(unsigned long long)a, (unsigned long long)b);
}

static int post_recv(struct edge *e, struct rqp *q)
{
	unsigned int at = (unsigned int)((q - e->q) * RECVS + q->recv_seq % RECVS);
	struct ibv_sge s = { (uintptr_t)e->msgs + at * sizeof(struct msg), sizeof(struct msg), e->msg_mr->lkey };
	struct ibv_recv_wr w = { .wr_id = (1ull << 63) | q->recv_seq++, .sg_list = &s, .num_sge = 1 }, *b;

	return ibv_post_recv(q->qp, &w, &b);
}

/* A fresh registration somewhere in the QP's area; the one before is gone when this returns. */
static int new_mr(struct edge *e, struct rqp *q)
{
	uint32_t size = e->cfg->size;
	int err = 0;

	if (q->mr) {
		err = vb.dereg_mr(q->mr);
		if (err)
			bad(e, "dereg_mr", (uint64_t)err, 0);
	}
	q->room = (uint32_t)rng_range(&e->rng, size / 2, size);
	q->target = q->area + rng_range(&e->rng, 0, 2 * size - q->room);
	memset(q->area, 0, 2 * size);
	q->mr = vb.reg_mr(e->dev->pd, q->target, q->room, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	rep.mrs[e->side]++;
	return q->mr ? 0 : -errno;
}

static void tear_down(struct edge *e)
{
	unsigned int i;
	int err = 0;

	for (i = 0; i < e->cfg->qps; i++) {
		struct rqp *q = &e->q[i];

		if (q->qp)
			err |= vb.destroy_qp(q->qp);
		if (q->mr)
			err |= vb.dereg_mr(q->mr);
		*q = (struct rqp){ .area = q->area, .src = q->src };
	}
	if (e->cq)
		err |= vb.destroy_cq(e->cq);
	if (e->src_mr)
		err |= vb.dereg_mr(e->src_mr);
	if (e->msg_mr)
		err |= vb.dereg_mr(e->msg_mr);
	e->cq = NULL;
	e->src_mr = e->msg_mr = NULL;
	if (err)
		bad(e, "tearing down", (uint64_t)err, 0);
	rep.downs[e->side] += e->up;
	e->up = e->broken = false;
}

static int make(struct edge *e, struct hello *mine)
{
	unsigned int n = e->cfg->qps, i, k;
	int err = 0;

	e->cq = vb.create_cq(e->dev->ctx, (int)(n * (DEPTH + RECVS) + 16), NULL, NULL, 0);
	e->src_mr = vb.reg_mr(e->dev->pd, e->src, (size_t)n * e->cfg->size, IBV_ACCESS_LOCAL_WRITE);
	e->msg_mr = vb.reg_mr(e->dev->pd, e->msgs, (size_t)n * RECVS * sizeof(struct msg), IBV_ACCESS_LOCAL_WRITE);
	if (!e->cq || !e->src_mr || !e->msg_mr)
		return -ENOMEM;
	for (i = 0; !err && i < n; i++) {
		struct ibv_qp_init_attr a = {
			.send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC,
			.cap = { DEPTH, RECVS, 1, 1, sizeof(struct msg) },
		};
		struct rqp *q = &e->q[i];

		q->qp = vb.create_qp(e->dev->pd, &a);
		if (!q->qp)
			return errno ? -errno : -EIO;
		err = new_mr(e, q);
		rc_addr_of(e->dev, q->qp, (uint32_t)rng_u64(&e->rng), &mine[i].rc);
		if (!err)
			err = rc_to_init(e->dev, q->qp, NULL);
		for (k = 0; !err && k < RECVS; k++)
			err = post_recv(e, q);
		mine[i].addr = (uintptr_t)q->target;
		mine[i].rkey = q->mr ? q->mr->rkey : 0;
		mine[i].room = q->room;
	}
	return err;
}

static int join(struct edge *e, int fd)
{
	struct rc_opts o = { .timeout = (int)e->cfg->qp_timeout, .retry_cnt = 3 };
	struct hello *mine = calloc(2 * e->cfg->qps, sizeof(*mine)), *peer = mine + e->cfg->qps;
	unsigned int i;
	int err;

	if (!mine)
		return -ENOMEM;
	err = make(e, mine);
	if (err)
		fprintf(stderr, "ring %d: making an edge: %s\n", e->cfg->index, strerror(-err));
	if (!err)
		err = oob_xchg(fd, mine, peer, e->cfg->qps * sizeof(*mine));
	for (i = 0; !err && i < e->cfg->qps; i++) {
		e->q[i].to_addr = peer[i].addr;
		e->q[i].to_rkey = peer[i].rkey;
		e->q[i].to_room = peer[i].room;
		err = rc_to_rtr(e->dev, e->q[i].qp, &peer[i].rc, &o);
	}
	if (!err)
		err = oob_sync(fd);
	for (i = 0; !err && i < e->cfg->qps; i++)
		err = rc_to_rts(e->q[i].qp, mine[i].rc.psn, &o);
	if (!err)
		err = oob_sync(fd);
	free(mine);
	return err;
}

static void establish(struct edge *e)
{
	struct pollfd p = { .fd = e->listen_fd, .events = POLLIN };
	struct timeval tv = { .tv_sec = 5 };
	int fd, err;

	if (e->side)
		fd = poll(&p, 1, 100) == 1 ? oob_accept(e->listen_fd) : -EAGAIN;
	else
		fd = oob_connect("127.0.0.1", e->cfg->base_port + (e->cfg->index + 1) % (int)e->cfg->procs, 100);
	if (fd < 0)
		return;
	/* a peer that was killed in the middle must not hold us for ever */
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	err = join(e, fd);
	close(fd);
	if (err) {
		tear_down(e);
		return;
	}
	e->up = true;
	rep.ups[e->side]++;
}

static void send_wr(struct edge *e, struct rqp *q, struct ibv_send_wr *w, bool sig)
{
	struct ibv_send_wr *b;

	w->wr_id = q->wr_seq++;
	if (sig)
		w->send_flags |= IBV_SEND_SIGNALED;
	if (ibv_post_send(q->qp, w, &b)) {
		/* until its error completion was polled, a QP in ERR may refuse */
		e->broken = true;
	}
}

static void send_msg(struct edge *e, struct rqp *q, struct msg *m)
{
	struct ibv_sge s = { (uintptr_t)m, sizeof(*m), 0 };
	struct ibv_send_wr w = { .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE };

	send_wr(e, q, &w, true);
}

static void send_data(struct edge *e, struct rqp *q)
{
	uint32_t len = (uint32_t)rng_size(&e->rng, 1, q->to_room);
	struct msg m = { .type = M_DATA, .len = len, .key = rng_u64(&e->rng),
			 .addr = q->to_addr + rng_range(&e->rng, 0, q->to_room - len) };
	struct ibv_sge s = { (uintptr_t)q->src, len, e->src_mr->lkey };
	struct ibv_send_wr w = { .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				 .wr.rdma = { m.addr, q->to_rkey } };

	pattern_fill(q->src, m.key, 0, len);
	q->busy = true;
	send_wr(e, q, &w, rng_pct(&e->rng, 50));
	send_msg(e, q, &m);
	rep.sent[e->side]++;
}

static bool zero(const uint8_t *p, size_t n)
{
	return !n || (!p[0] && !memcmp(p, p + 1, n - 1));
}

static void verify(struct edge *e, struct rqp *q, const struct msg *m)
{
	uint64_t off = m->addr - (uintptr_t)q->target, at = m->addr - (uintptr_t)q->area, size = 2 * e->cfg->size;
	uint8_t want[1024];
	uint32_t done, n;
	struct msg c;

	if (off >= q->room || m->len > q->room - off) {
		bad(e, "message about memory outside the MR", off, m->len);
		return;
	}
	for (done = 0; done < m->len; done += n) {
		n = m->len - done < sizeof(want) ? m->len - done : sizeof(want);
		pattern_fill(want, m->key, done, n);
		if (memcmp(q->area + at + done, want, n)) {
			bad(e, "VIOLATION: flag seen, data not there", done, m->len);
			break;
		}
	}
	if (!zero(q->area, at) || !zero(q->area + at + m->len, size - at - m->len))
		bad(e, "VIOLATION: memory beside the target changed", at, m->len);
	__atomic_fetch_add(&rep.verified[e->side], 1, __ATOMIC_RELAXED);
	if (rng_pct(&e->rng, e->cfg->remr)) {
		if (new_mr(e, q)) {
			bad(e, "reg_mr", 0, 0);
			e->broken = true;
			return;
		}
	} else {
		memset(q->area + at, 0, m->len);
	}
	c = (struct msg){ .type = M_CREDIT, .addr = (uintptr_t)q->target, .rkey = q->mr->rkey, .room = q->room };
	send_msg(e, q, &c);
}

static void on_recv(struct edge *e, struct rqp *q, const struct ibv_wc *wc)
{
	struct msg m;

	if ((wc->wr_id & ~(1ull << 63)) != q->recv_done || wc->byte_len != sizeof(m))
		bad(e, "receive out of order or of a wrong length", wc->wr_id, wc->byte_len);
	memcpy(&m, e->msgs + (size_t)((q - e->q) * RECVS + q->recv_done++ % RECVS) * sizeof(m), sizeof(m));
	if (post_recv(e, q))
		e->broken = true;
	if (m.type == M_DATA) {
		verify(e, q, &m);
	} else if (m.type == M_CREDIT && q->busy) {
		q->to_addr = m.addr;
		q->to_rkey = m.rkey;
		q->to_room = m.room;
		q->busy = false;
	} else {
		bad(e, "message of unknown type", m.type, 0);
	}
}

/* A kernel that cleans up after a killed process may take its MRs away before its QPs. */
static bool peer_died(enum ibv_wc_status st)
{
	return st == IBV_WC_RETRY_EXC_ERR || st == IBV_WC_WR_FLUSH_ERR || st == IBV_WC_REM_ACCESS_ERR ||
	       st == IBV_WC_REM_OP_ERR || st == IBV_WC_REM_INV_REQ_ERR;
}

static void on_wc(struct edge *e, const struct ibv_wc *wc)
{
	unsigned int i;

	for (i = 0; i < e->cfg->qps && e->q[i].qp->qp_num != wc->qp_num; i++)
		;
	if (i == e->cfg->qps) {
		bad(e, "completion with an unknown qp_num", wc->qp_num, 0);
		return;
	}
	if (wc->status != IBV_WC_SUCCESS) {
		if (!rep.first_status[e->side][0])
			snprintf(rep.first_status[e->side], sizeof(rep.first_status[0]), "%s",
				 vb.wc_status_str(wc->status));
		if (!e->cfg->kill || !peer_died(wc->status))
			bad(e, "completion status", wc->status, wc->wr_id);
		__atomic_fetch_add(&rep.errors, 1, __ATOMIC_RELAXED);
		e->broken = true;
		return;
	}
	if (e->broken)
		return;
	if (wc->opcode & IBV_WC_RECV) {
		on_recv(e, &e->q[i], wc);
		return;
	}
	if (wc->wr_id < e->q[i].wr_done || wc->wr_id >= e->q[i].wr_seq)
		bad(e, "completion twice, out of order or of nothing", wc->wr_id, e->q[i].wr_done);
	e->q[i].wr_done = wc->wr_id + 1;
}

static bool step(struct edge *e)
{
	struct ibv_wc wc[16];
	bool did = false;
	unsigned int i;
	int n, k;

	n = ibv_poll_cq(e->cq, 16, wc);
	for (k = 0; k < n; k++)
		on_wc(e, &wc[k]);
	did = n > 0;
	if (e->broken)
		return true;
	for (i = 0; i < e->cfg->qps && !atomic_load(&stopping); i++) {
		if (e->q[i].busy || e->q[i].wr_seq - e->q[i].wr_done > DEPTH - 4)
			continue;
		send_data(e, &e->q[i]);
		did = true;
		break;
	}
	if (!did && !atomic_load(&stopping) && now_ns() - e->beat > BEAT_NS &&
	    e->q[0].wr_seq - e->q[0].wr_done <= DEPTH - 4) {
		/* everything may be acknowledged while a dead peer still owes us credits: ask the connection itself */
		struct ibv_send_wr w = { .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { e->q[0].to_addr, e->q[0].to_rkey } };

		e->beat = now_ns();
		send_wr(e, &e->q[0], &w, true);
	}
	return did;
}

static void *edge_main(void *arg)
{
	struct edge *e = arg;
	bool told = false, idle;
	unsigned int i;

	while (!atomic_load(&leaving)) {
		if (e->broken)
			tear_down(e);
		if (!e->up)
			establish(e);
		else if (!step(e))
			sched_yield();
		for (i = 0, idle = e->up && !e->broken; idle && i < e->cfg->qps; i++)
			idle = !e->q[i].busy;
		if (!told && idle && atomic_load(&stopping)) {
			told = true;
			atomic_fetch_add(&quiet, 1);
		}
	}
	if (!e->up)
		bad(e, "down at the end", 0, 0);
	e->up = false;
	tear_down(e);
	return NULL;
}

static int control(const struct ring_cfg *c)
{
	struct timespec nap = { .tv_nsec = 20000000 };
	char cmd = 0;
	int err;

	while (__atomic_load_n(&rep.verified[0], __ATOMIC_RELAXED) < WARM ||
	       __atomic_load_n(&rep.verified[1], __ATOMIC_RELAXED) < WARM)
		nanosleep(&nap, NULL);
	err = oob_send(c->ctl, "U", 1);
	if (!err)
		err = oob_recv(c->ctl, &cmd, 1);
	if (err || cmd != 'S')
		return err ? err : -EPROTO;
	atomic_store(&stopping, true);
	while (atomic_load(&quiet) < 2)
		nanosleep(&nap, NULL);
	err = oob_send(c->ctl, "Q", 1);
	if (!err)
		err = oob_recv(c->ctl, &cmd, 1);
	atomic_store(&leaving, true);
	return err;
}

int ring_node(const struct ring_cfg *c)
{
	char devs[256], *d, *save = NULL;
	unsigned int i, k, n = 0;
	struct edge e[2] = { 0 };
	struct rc_dev dev;
	int err, lfd;

	snprintf(devs, sizeof(devs), "%s", c->devs ? c->devs : "");
	for (d = devs; *d; d++)
		n += *d == ',';
	d = strtok_r(devs, ",", &save);
	for (i = 0; d && i < (unsigned int)c->index % (n + 1); i++)
		d = strtok_r(NULL, ",", &save);
	if (verbs_load(c->load, c->lib) || rc_open(&dev, d, c->ib_port, c->gid))
		return 2;
	lfd = oob_listen(c->base_port + c->index);
	if (lfd < 0) {
		fprintf(stderr, "ring %d: port %d: %s\n", c->index, c->base_port + c->index, strerror(-lfd));
		return 2;
	}
	for (i = 0; i < 2; i++) {
		e[i] = (struct edge){ .cfg = c, .dev = &dev, .side = i, .listen_fd = lfd,
				      .rng = { mix64(c->seed + (uint64_t)c->index * 2 + i + (uint64_t)getpid() * 1000) } };
		e[i].q = calloc(c->qps, sizeof(*e[i].q));
		e[i].src = aligned_alloc(4096, (size_t)c->qps * c->size);
		e[i].area = aligned_alloc(4096, (size_t)c->qps * c->size * 2);
		e[i].msgs = calloc((size_t)c->qps * RECVS, sizeof(struct msg));
		if (!e[i].q || !e[i].src || !e[i].area || !e[i].msgs)
			return 2;
		for (k = 0; k < c->qps; k++) {
			e[i].q[k].src = e[i].src + (size_t)k * c->size;
			e[i].q[k].area = e[i].area + (size_t)k * c->size * 2;
		}
		if (pthread_create(&e[i].thread, NULL, edge_main, &e[i]))
			return 2;
	}
	err = control(c);
	for (i = 0; i < 2; i++) {
		pthread_join(e[i].thread, NULL);
		free(e[i].q);
		free(e[i].src);
		free(e[i].area);
		free(e[i].msgs);
	}
	close(lfd);
	if (rc_close(&dev))
		rep.bad++;
	if (!err)
		err = oob_send(c->ctl, &rep, sizeof(rep));
	return err || rep.bad ? 1 : 0;
}

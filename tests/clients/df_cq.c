// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "df.h"
#include "ex.h"

#define RECV_BIT (1ull << 63)	/* in wr_id: an error completion has no opcode to tell a receive by */

void df_error(struct df_side *s, const char *fmt, ...)
{
	uint64_t n = atomic_fetch_add(&s->errors, 1);
	char line[512];
	va_list ap;

	if (n >= 20)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	fprintf(stderr, "dataflag %s: ERROR %s\n", s->role, line);
}

static uint64_t recv_id(const struct df_ep *ep, uint64_t n)
{
	return RECV_BIT | mix64(ep->side->cfg->seed ^ ((uint64_t)ep->idx << 48) ^ n);
}

int df_post_recv(struct df_ep *ep)
{
	unsigned int slot = (unsigned int)(ep->rq_posted % ep->rq_depth);
	struct ibv_sge sge = {
		.addr = (uintptr_t)ep->rbuf + (uint64_t)slot * DF_MSG,
		.length = DF_MSG,
		.lkey = ep->rbuf_mr->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = recv_id(ep, ep->rq_posted), .sg_list = &sge, .num_sge = 1 }, *bad;
	int err = ibv_post_recv(ep->qp, &wr, &bad);

	if (!err)
		ep->rq_posted++;
	return -err;
}

static struct df_ep *by_qpn(struct df_side *s, uint32_t qpn)
{
	unsigned int i;

	for (i = 0; i < s->cfg->qps; i++)
		if (s->ep[i].qp->qp_num == qpn)
			return &s->ep[i];
	return NULL;
}

static void on_send(struct df_side *s, struct df_ep *ep, const struct ibv_wc *wc)
{
	struct df_expect *e = &ep->expect[ep->exp_head % s->cfg->depth];

	if (ep->exp_head == ep->exp_tail) {
		df_error(s, "qp 0x%x: completion of wr_id 0x%llx, none is due", wc->qp_num,
			 (unsigned long long)wc->wr_id);
		return;
	}
	if (wc->wr_id != e->wr_id)
		df_error(s, "qp 0x%x: completion of wr_id 0x%llx instead of 0x%llx (position %llu)", wc->qp_num,
			 (unsigned long long)wc->wr_id, (unsigned long long)e->wr_id, (unsigned long long)e->pos);
	if (wc->status != IBV_WC_SUCCESS) {
		df_error(s, "qp 0x%x: position %llu: %s (vendor 0x%x)", wc->qp_num, (unsigned long long)e->pos,
			 vb.wc_status_str(wc->status), wc->vendor_err);
		atomic_store(&s->failed, true);
	} else {
		if (wc->opcode != e->opcode)
			df_error(s, "qp 0x%x: position %llu: opcode %d instead of %d", wc->qp_num,
				 (unsigned long long)e->pos, wc->opcode, e->opcode);
		if (e->byte_len >= 0 && wc->byte_len != (uint64_t)e->byte_len)
			df_error(s, "qp 0x%x: position %llu: byte_len %u instead of %lld", wc->qp_num,
				 (unsigned long long)e->pos, wc->byte_len, (long long)e->byte_len);
	}
	ep->exp_head++;
	atomic_fetch_add(&s->cqes, 1);
	atomic_store_explicit(&ep->done, e->pos + 1, memory_order_release);
}

static void on_recv(struct df_side *s, struct df_ep *ep, const struct ibv_wc *wc)
{
	const uint8_t *buf = ep->rbuf + (ep->rq_done % ep->rq_depth) * DF_MSG;
	struct df_msg m = { .kind = K_WRITE_IMM };
	uint64_t v[2];

	if (wc->wr_id != recv_id(ep, ep->rq_done))
		df_error(s, "qp 0x%x: receive %llu: wr_id 0x%llx instead of 0x%llx", wc->qp_num,
			 (unsigned long long)ep->rq_done, (unsigned long long)wc->wr_id,
			 (unsigned long long)recv_id(ep, ep->rq_done));
	ep->rq_done++;
	atomic_fetch_add(&s->recvs, 1);
	if (wc->status != IBV_WC_SUCCESS) {
		df_error(s, "qp 0x%x: receive: %s", wc->qp_num, vb.wc_status_str(wc->status));
		atomic_store(&s->failed, true);
		return;
	}
	if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
		m.round = ntohl(wc->imm_data);
		if (wc->byte_len || !(wc->wc_flags & IBV_WC_WITH_IMM))
			df_error(s, "qp 0x%x: write_imm: byte_len %u flags 0x%x", wc->qp_num, wc->byte_len, wc->wc_flags);
	} else if (wc->opcode == IBV_WC_RECV) {
		memcpy(v, buf, sizeof(v));
		m.kind = (enum df_kind)v[0];
		m.round = v[1];
		if (wc->byte_len != DF_MSG || (v[0] != K_SEND && v[0] != K_SEND_IMM && v[0] != K_MAX))
			df_error(s, "qp 0x%x: send: byte_len %u type %llu", wc->qp_num, wc->byte_len,
				 (unsigned long long)v[0]);
		if (!!(wc->wc_flags & IBV_WC_WITH_IMM) != (m.kind == K_SEND_IMM) ||
		    (m.kind == K_SEND_IMM && ntohl(wc->imm_data) != (uint32_t)m.round))
			df_error(s, "qp 0x%x: send: flags 0x%x imm 0x%x, round %llu", wc->qp_num, wc->wc_flags,
				 ntohl(wc->imm_data), (unsigned long long)m.round);
	} else {
		df_error(s, "qp 0x%x: receive: opcode %d", wc->qp_num, wc->opcode);
	}
	if (m.kind == K_MAX) {
		if (m.round <= atomic_load(&ep->tx_credit))
			df_error(s, "qp 0x%x: credit %llu after %llu", wc->qp_num, (unsigned long long)m.round,
				 (unsigned long long)atomic_load(&ep->tx_credit));
		atomic_store_explicit(&ep->tx_credit, m.round, memory_order_release);
	} else if (ep->msg_tail - ep->msg_head < ep->rq_depth) {
		ep->msgs[ep->msg_tail++ % ep->rq_depth] = m;
	} else {
		df_error(s, "qp 0x%x: more messages than the window allows", wc->qp_num);
	}
	if (df_post_recv(ep))
		df_error(s, "qp 0x%x: post_recv failed", wc->qp_num);
}

/* Of one queue they are in order: a completion that was held back has the time when it happened. */
static void check_stamp(struct df_side *s, struct df_ep *ep, bool recv, uint64_t stamp)
{
	uint64_t *last = recv ? &ep->rq_stamp : &ep->stamp;

	if (!stamp || stamp < *last)
		df_error(s, "qp 0x%x: %s completed at %llu, the one before at %llu", ep->qp->qp_num,
			 recv ? "receive" : "send", (unsigned long long)stamp, (unsigned long long)*last);
	*last = stamp;
}

static int drain(struct df_side *s, struct df_cq *cq, unsigned int batch)
{
	struct ibv_wc wc[16];
	uint64_t stamp[16];
	struct df_ep *ep;
	int n, i;

	n = s->cfg->cq_ex ? ex_poll(cq->cq, (int)batch, wc, s->cfg->stamps ? stamp : NULL) : ibv_poll_cq(cq->cq, (int)batch, wc);
	if (n < 0 || n > (int)batch) {
		df_error(s, "poll_cq(%u) gave %d", batch, n);
		atomic_store(&s->failed, true);
		return 0;
	}
	for (i = 0; i < n; i++) {
		ep = by_qpn(s, wc[i].qp_num);
		if (!ep) {
			df_error(s, "completion with qp 0x%x, which is none of ours", wc[i].qp_num);
			continue;
		}
		if (cq != (wc[i].wr_id & RECV_BIT ? ep->rcq : ep->scq))
			df_error(s, "qp 0x%x: completion in the wrong cq", wc[i].qp_num);
		pthread_mutex_lock(&ep->lock);
		if (s->cfg->cq_ex && s->cfg->stamps)
			check_stamp(s, ep, wc[i].wr_id & RECV_BIT, stamp[i]);
		if (wc[i].wr_id & RECV_BIT)
			on_recv(s, ep, &wc[i]);
		else
			on_send(s, ep, &wc[i]);
		pthread_mutex_unlock(&ep->lock);
	}
	return n;
}

int df_poll(struct df_side *s, struct df_cq *cq)
{
	static _Atomic unsigned int turn;
	int n;

	if (pthread_mutex_trylock(&cq->lock))
		return 0;
	n = drain(s, cq, 1 + atomic_fetch_add_explicit(&turn, 1, memory_order_relaxed) % 16);
	pthread_mutex_unlock(&cq->lock);
	return n;
}

static void on_event(struct df_side *s, struct ibv_cq *ibcq, void *arg)
{
	struct df_cq *cq = arg;
	int err;

	if (cq < s->cqs || cq >= s->cqs + s->ncqs || cq->cq != ibcq) {
		df_error(s, "event with a cq that is none of ours");
		return;
	}
	atomic_fetch_add(&s->events, 1);
	/* acknowledged in bunches, as programs do: destroy_cq must wait for no event that was never delivered */
	if (++cq->events == 8) {
		vb.ack_cq_events(cq->cq, cq->events);
		cq->events = 0;
	}
	err = ibv_req_notify_cq(cq->cq, 0);
	if (err)
		df_error(s, "req_notify_cq: %s", strerror(err));
	/* armed first, then drained to the bottom: only a completion after the drain may rely on the next event */
	pthread_mutex_lock(&cq->lock);
	while (drain(s, cq, 16))
		;
	pthread_mutex_unlock(&cq->lock);
}

static void *cq_thread(void *arg)
{
	struct df_side *s = arg;
	struct pollfd p[2] = { { .fd = s->chan->fd, .events = POLLIN }, { .fd = s->stop_fd, .events = POLLIN } };
	struct ibv_cq *cq;
	void *ctx;

	while (!atomic_load(&s->stop)) {
		if (s->cfg->wait == WAIT_FD && poll(p, 2, -1) < 0 && errno != EINTR) {
			df_error(s, "poll: %s", strerror(errno));
			break;
		}
		if (vb.get_cq_event(s->chan, &cq, &ctx)) {
			if (s->cfg->wait == WAIT_FD && (errno == EAGAIN || errno == EINTR))
				continue;
			df_error(s, "get_cq_event: %s", strerror(errno));
			break;
		}
		on_event(s, cq, ctx);
	}
	return NULL;
}

int df_cq_start(struct df_side *s)
{
	unsigned int i;
	int err;

	s->stop_fd = -1;
	if (s->cfg->wait == WAIT_POLL)
		return 0;
	s->stop_fd = eventfd(0, EFD_CLOEXEC);
	if (s->cfg->wait == WAIT_FD)
		fcntl(s->chan->fd, F_SETFL, fcntl(s->chan->fd, F_GETFL) | O_NONBLOCK);
	for (i = 0; i < s->ncqs; i++) {
		err = ibv_req_notify_cq(s->cqs[i].cq, 0);
		if (err) {
			fprintf(stderr, "dataflag: req_notify_cq: %s\n", strerror(err));
			return -err;
		}
	}
	return -pthread_create(&s->cq_thread, NULL, cq_thread, s);
}

/* With the blocking call only a completion can end the wait: the caller's last WR comes after s->stop is set. */
void df_cq_stop(struct df_side *s)
{
	uint64_t one = 1;

	if (s->cfg->wait == WAIT_POLL)
		return;
	if (write(s->stop_fd, &one, sizeof(one)) != sizeof(one))
		df_error(s, "eventfd: %s", strerror(errno));
	pthread_join(s->cq_thread, NULL);
	close(s->stop_fd);
}

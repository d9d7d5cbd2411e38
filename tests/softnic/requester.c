// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The side of a QP that sends requests and waits for their answers (IBTA 9.7). */
#include <string.h>

#include "adverse.h"
#include "engine.h"
#include "packet.h"

static bool is_read(const struct sn_wqe *w)
{
	return w->opcode == IBV_WR_RDMA_READ;
}

static bool is_atomic(const struct sn_wqe *w)
{
	return w->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || w->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/* Carried out here, nothing is sent. */
static bool is_local(const struct sn_wqe *w)
{
	return w->opcode == IBV_WR_LOCAL_INV || w->opcode == IBV_WR_BIND_MW;
}

/* It is done when its response is here, an acknowledgement is not enough. */
static bool has_response(const struct sn_wqe *w)
{
	return is_read(w) || is_atomic(w);
}

static enum ibv_wc_opcode wc_opcode(const struct sn_wqe *w)
{
	switch (w->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	case IBV_WR_LOCAL_INV:
		return IBV_WC_LOCAL_INV;
	case IBV_WR_BIND_MW:
		return IBV_WC_BIND_MW;
	default:
		return IBV_WC_SEND;
	}
}

static void complete(struct sn_qp *q, struct sn_wqe *w, uint32_t index, enum ibv_wc_status status)
{
	struct sn_cqe c = { .qp = q, .slot = index + 1 };

	if (!status && !w->signalled)
		return;
	c.wc.wr_id = w->wr_id;
	c.wc.status = status;
	c.wc.opcode = wc_opcode(w);
	c.wc.byte_len = has_response(w) ? w->len : 0;
	c.wc.qp_num = sn_ibqp(q)->qp_num;
	sn_cq_push(sn_cq(sn_ibqp(q)->send_cq), &c);
}

void sn_requester_flush(struct sn_qp *q)
{
	struct sn_sq *s = &q->sq;

	for (; s->una != s->tail; s->una++)
		complete(q, sn_wqe(s, s->una), s->una, IBV_WC_WR_FLUSH_ERR);
	s->cur = s->una;
	s->off = s->reads = 0;
	s->ack_at = s->rnr_until = 0;
}

/* The oldest WQE fails, and all behind it with it. */
static void fail(struct sn_qp *q, enum ibv_wc_status status)
{
	struct sn_sq *s = &q->sq;

	complete(q, sn_wqe(s, s->una), s->una, status);
	s->una++;
	if (!sn_unreliable(q)) {
		sn_qp_fail(q);
		return;
	}
	/* UC and UD go on receiving */
	q->state = IBV_QPS_SQE;
	sn_requester_flush(q);
}

void sn_requester_drained(struct sn_qp *q)
{
	struct sn_sq *s = &q->sq;

	if (q->state != IBV_QPS_SQD || !q->drain_wanted || (s->una != s->tail && sn_wqe(s, s->una)->numbered))
		return;
	q->drain_wanted = false;
	sn_qp_raise(q, IBV_EVENT_SQ_DRAINED);
}

/* What was carried out here is done when all ahead of it is. */
static void finish_local(struct sn_qp *q)
{
	struct sn_sq *s = &q->sq;

	for (; s->una != s->cur && is_local(sn_wqe(s, s->una)); s->una++)
		complete(q, sn_wqe(s, s->una), s->una, IBV_WC_SUCCESS);
}

/* UC, UD: what the port has sent is done. When to look again; UINT64_MAX: nothing is on its way. */
static uint64_t finish_sent(struct sn_qp *q, uint64_t now)
{
	struct sn_sq *s = &q->sq;

	for (; s->una != s->cur && sn_wqe(s, s->una)->left <= now; s->una++)
		complete(q, sn_wqe(s, s->una), s->una, IBV_WC_SUCCESS);
	sn_requester_drained(q);
	/* one that fails waits for its turn */
	if (s->una == s->cur && s->cur != s->tail)
		sn_qp_ready(q);
	return s->una != s->cur ? sn_wqe(s, s->una)->left : UINT64_MAX;
}

static uint64_t timeout_ns(const struct sn_qp *q)
{
	return q->attr.timeout ? 4096ull << q->attr.timeout : 0;
}

/* IBTA table 45, in units of 10 us */
static uint64_t rnr_ns(uint8_t code)
{
	static const uint16_t t[32] = {
		[1] = 1, [2] = 2, [3] = 3, [4] = 4, [5] = 6, [6] = 8, [7] = 12, [8] = 16, [9] = 24, [10] = 32,
		[11] = 48, [12] = 64, [13] = 96, [14] = 128, [15] = 192, [16] = 256, [17] = 384, [18] = 512, [19] = 768,
		[20] = 1024, [21] = 1536, [22] = 2048, [23] = 3072, [24] = 4096, [25] = 6144, [26] = 8192, [27] = 12288,
		[28] = 16384, [29] = 24576, [30] = 32768, [31] = 49152,
	};

	return (code ? t[code & 31] : 65536) * 10000ull;
}

/* The timer runs from when the port has sent what it was given. */
static void start_timer(struct sn_qp *q, uint64_t now)
{
	struct sn_sq *s = &q->sq;
	uint64_t t = timeout_ns(q);

	s->ack_at = 0;
	if (!t || (s->una == s->cur && !s->off))
		return;
	s->ack_at = (s->departed > now ? s->departed : now) + t;
	sn_timer_at(s->ack_at);
}

/* All from the oldest WQE on is sent again. */
static void rewind_to(struct sn_qp *q, uint32_t index)
{
	struct sn_sq *s = &q->sq;

	s->cur = index;
	s->off = s->reads = 0;
	for (uint32_t i = s->una; i != s->cur; i++)
		s->reads += has_response(sn_wqe(s, i));
	for (uint32_t i = s->cur; i != s->tail; i++)
		sn_wqe(s, i)->got = 0;
	sn_qp_ready(q);
}

static bool overrun(struct ibv_cq *cq)
{
	return cq && sn_cq(cq)->overrun;
}

/* One of the CQs that it completes in. */
static bool has_overrun(const struct sn_qp *q)
{
	const struct ibv_qp *i = &q->ex.qp_base;

	if (sn_is_xrc_recv(q))
		return q->srq && q->srq->cq->overrun;
	return overrun(i->send_cq) || overrun(i->recv_cq);
}

uint64_t sn_requester_timer(struct sn_qp *q, uint64_t now)
{
	struct sn_sq *s = &q->sq;

	if (q->state != IBV_QPS_RESET && q->state != IBV_QPS_ERR && has_overrun(q)) {
		sn_qp_fail(q);
		sn_qp_raise(q, IBV_EVENT_QP_FATAL);
	}
	if (q->state != IBV_QPS_RTS && q->state != IBV_QPS_SQD)
		return UINT64_MAX;
	if (sn_unreliable(q))
		return finish_sent(q, now);
	if (s->rnr_until) {
		if (now < s->rnr_until)
			return s->rnr_until;
		s->rnr_until = 0;
		sn_qp_ready(q);
	}
	if (!s->ack_at)
		return UINT64_MAX;
	if (now < s->ack_at)
		return s->ack_at;
	s->ack_at = 0;
	if (!s->retry_left) {
		fail(q, IBV_WC_RETRY_EXC_ERR);
		return UINT64_MAX;
	}
	s->retry_left--;
	rewind_to(q, s->una);
	return UINT64_MAX;
}

/* ---- sending ---- */

/* The memory of a WQE as a whole; the status that it fails with. */
static enum ibv_wc_status check_local(struct sn_qp *q, const struct sn_wqe *w)
{
	struct sn_span span;

	if (w->len > (sn_is_ud(q) ? SN_MTU : SN_MAX_MSG))
		return IBV_WC_LOC_LEN_ERR;
	if (sn_is_ud(q) && w->ud.pd != q->pd)
		return IBV_WC_LOC_QP_OP_ERR;
	if (has_response(w) && !q->attr.max_rd_atomic)
		return IBV_WC_LOC_QP_OP_ERR;
	for (int i = 0; i < w->nsge; i++) {
		const struct ibv_sge *g = &w->sge[i];
		enum ibv_wc_status st = g->length ? sn_local(q->dev, q->pd, g->lkey, g->addr, g->length,
							     has_response(w), &span) : IBV_WC_SUCCESS;

		if (st)
			return st;
	}
	return IBV_WC_SUCCESS;
}

/* Whether the next WQE may start now. */
static bool may_start(struct sn_qp *q, const struct sn_wqe *w)
{
	/* what was begun is finished in SQD, too, and sent again if need be */
	if (q->state != IBV_QPS_RTS && !w->numbered)
		return false;
	if ((w->flags & IBV_SEND_FENCE) && q->sq.reads)
		return false;
	return !has_response(w) || q->sq.reads < q->attr.max_rd_atomic || !q->attr.max_rd_atomic;
}

static enum sn_op op_of(const struct sn_wqe *w)
{
	switch (w->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return SN_WRITE;
	case IBV_WR_RDMA_READ:
		return SN_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return SN_CAS;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return SN_FAA;
	default:
		return SN_SEND;
	}
}

static void fill(const struct sn_qp *q, const struct sn_wqe *w, struct sn_pkt *p, uint32_t seg)
{
	const struct sn_sq *s = &q->sq;

	p->psn = sn_psn(w->psn + s->off / q->mtu);
	p->npsn = has_response(w) ? w->npsn : seg > q->mtu ? (seg + q->mtu - 1) / q->mtu : 1;
	p->off = s->off;
	p->total = w->len;
	p->raddr = w->raddr;
	p->rkey = w->rkey;
	p->srqn = w->srqn;
	p->compare_add = w->compare_add;
	p->swap = w->swap;
	if (!s->off)
		p->flags |= SN_FIRST;
	if (has_response(w) || s->off + seg == w->len) {
		p->flags |= SN_LAST;
		if (w->opcode == IBV_WR_SEND_WITH_IMM || w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
			p->flags |= SN_IMM;
			p->imm = w->imm;
		}
		if (w->opcode == IBV_WR_SEND_WITH_INV) {
			p->flags |= SN_INV;
			p->imm = w->imm;
		}
		if (w->flags & IBV_SEND_SOLICITED)
			p->flags |= SN_SOLICITED;
	}
	if (sn_is_ud(q))
		sn_ud_fill(q, w, p);
}

static void number(struct sn_qp *q, struct sn_wqe *w)
{
	if (w->numbered)
		return;
	w->numbered = true;
	w->psn = q->sq.psn;
	w->npsn = w->len > q->mtu && !is_atomic(w) ? (w->len + q->mtu - 1) / q->mtu : 1;
	q->sq.psn = sn_psn(w->psn + w->npsn);
}

static void sent(struct sn_qp *q, struct sn_wqe *w, uint32_t seg, uint64_t now)
{
	struct sn_sq *s = &q->sq;

	s->off += seg;
	if (has_response(w))
		s->reads++;
	if (has_response(w) || s->off == w->len) {
		s->cur++;
		s->off = 0;
		w->left = s->departed > now ? s->departed : now;
	}
	if (sn_unreliable(q))
		sn_timer_at(finish_sent(q, now));
	else if (!s->ack_at)
		start_timer(q, now);
}

/* After a retransmission it was done before. */
static enum sn_step carry_out(struct sn_qp *q, struct sn_wqe *w)
{
	struct sn_sq *s = &q->sq;
	enum ibv_wc_status st = IBV_WC_SUCCESS;

	if (!w->numbered)
		st = w->opcode == IBV_WR_BIND_MW ? sn_bind(q, w) : sn_invalidate(q, w->imm);
	if (st) {
		if (s->una == s->cur)
			fail(q, st);
		return SN_IDLE;
	}
	w->numbered = true;
	w->psn = s->psn;
	w->npsn = 0;
	s->cur++;
	finish_local(q);
	return SN_SENT;
}

enum sn_step sn_requester_step(struct sn_qp *q, uint64_t now, uint64_t *when)
{
	struct sn_sq *s = &q->sq;
	enum ibv_wc_status st;
	struct sn_pkt *p;
	struct sn_wqe *w;
	uint8_t *payload;
	uint32_t seg = 0;
	bool gone;

	if ((q->state != IBV_QPS_RTS && q->state != IBV_QPS_SQD) || s->rnr_until || s->cur == s->tail) {
		s->waited = false;
		return SN_IDLE;
	}
	w = sn_wqe(s, s->cur);
	if (!s->off) {
		if (!may_start(q, w)) {
			s->waited = false;
			return SN_IDLE;
		}
		if (is_local(w))
			return carry_out(q, w);
		st = check_local(q, w);
		if (st) {
			/* in its turn: what is ahead of it is not done yet */
			if (s->una == s->cur)
				fail(q, st);
			return SN_IDLE;
		}
		number(q, w);
		if (sn_is_ud(q)) {
			q->peer_dev = w->ud.dev;
			q->dest_qpn = w->ud.qpn;
		}
	}
	if (q->peer_dev >= 0) {
		*when = sn_port_when(q);
		if (*when > now) {
			s->waited = true;
			return SN_LATER;
		}
	}
	if (!has_response(w))
		seg = w->len - s->off < SN_SEG ? w->len - s->off : SN_SEG;
	p = sn_packet(q, op_of(w), seg, &payload, &gone);
	if (!p && !gone) {
		*when = UINT64_MAX;
		return SN_LATER;
	}
	if (p) {
		fill(q, w, p, seg);
		st = IBV_WC_SUCCESS;
		if (w->inl)
			memcpy(payload, w->inl + s->off, seg);
		else
			st = sn_gather(q, w->sge, w->nsge, s->off, payload, seg);
		if (st) {
			/* memory that went away while the message was on its way; in its turn, as above */
			sn_link_abandon();
			if (s->una == s->cur)
				fail(q, st);
			return SN_IDLE;
		}
		sn_port_charge(q, seg, s->waited, now, &s->departed, &p->due);
		if (!s->off)
			sn_adverse_message(&s->luck, q, p->op, w->len);
		sn_adverse_packet(&s->luck, p);
		if (p->due < s->last_due)
			p->due = s->last_due;
		s->last_due = p->due + (p->flags & SN_LAST ? p->gap : 0);
		sn_link_end();
	}
	sent(q, w, seg, now);
	return SN_SENT;
}

/* ---- answers ---- */

static void done(struct sn_qp *q)
{
	struct sn_sq *s = &q->sq;
	struct sn_wqe *w = sn_wqe(s, s->una);

	if (s->una == s->cur) {
		/* the answer to what was sent first came after it was begun again */
		s->cur++;
		s->off = 0;
	} else if (has_response(w)) {
		s->reads--;
	}
	complete(q, w, s->una, IBV_WC_SUCCESS);
	s->una++;
	finish_local(q);
}

static void progress(struct sn_qp *q, uint64_t now)
{
	q->sq.retry_left = q->attr.retry_cnt;
	q->sq.rnr_left = q->attr.rnr_retry;
	start_timer(q, now);
	sn_requester_drained(q);
	sn_qp_ready(q);
}

/* Whether psn is of something that was sent and is not done. */
static bool outstanding(const struct sn_qp *q, uint32_t psn)
{
	const struct sn_sq *s = &q->sq;
	const struct sn_wqe *w;

	if (s->una == s->tail)
		return false;
	w = &s->wqes[s->una % s->size];
	return w->numbered && sn_psn_diff(psn, w->psn) >= 0 && sn_psn_diff(psn, s->psn) < 0;
}

/* All up to psn has arrived. What waits for a response, and what is behind it, is not done by this. */
static void acknowledge(struct sn_qp *q, uint32_t psn, uint64_t now)
{
	struct sn_sq *s = &q->sq;

	/* of what was sent again and had arrived before, this is no news: or retries would never end */
	if (!outstanding(q, psn) || sn_psn_diff(psn, s->acked) < 0)
		return;
	s->acked = sn_psn(psn + 1);
	while (s->una != s->tail) {
		struct sn_wqe *w = sn_wqe(s, s->una);

		if (!w->numbered || has_response(w) || sn_psn_diff(psn, sn_psn(w->psn + w->npsn - 1)) < 0)
			break;
		done(q);
	}
	progress(q, now);
}

static struct sn_wqe *response_for(struct sn_qp *q, const struct sn_pkt *p, uint64_t now)
{
	struct sn_wqe *w;

	if (!outstanding(q, p->psn))
		return NULL;
	acknowledge(q, sn_psn(p->psn - 1), now);
	if (q->sq.una == q->sq.tail)
		return NULL;
	w = sn_wqe(&q->sq, q->sq.una);
	return w->numbered && w->psn == p->psn ? w : NULL;
}

static void read_response(struct sn_qp *q, const struct sn_pkt *p, const uint8_t *payload, uint64_t now)
{
	struct sn_wqe *w = response_for(q, p, now);
	enum ibv_wc_status st;

	if (!w || !is_read(w) || p->off != w->got || p->len > w->len - w->got)
		return;
	st = sn_scatter(q, q->pd, w->sge, w->nsge, w->got, payload, p->len);
	if (st) {
		fail(q, st);
		return;
	}
	w->got += p->len;
	if (w->got == w->len)
		done(q);
	progress(q, now);
}

static void atomic_response(struct sn_qp *q, const struct sn_pkt *p, uint64_t now)
{
	struct sn_wqe *w = response_for(q, p, now);
	enum ibv_wc_status st;

	if (!w || !is_atomic(w))
		return;
	st = sn_scatter(q, q->pd, w->sge, w->nsge, 0, &p->swap, sizeof(p->swap));
	if (st) {
		fail(q, st);
		return;
	}
	done(q);
	progress(q, now);
}

static enum ibv_wc_status nak_status(const struct sn_pkt *p)
{
	switch (p->nak) {
	case SN_NAK_ACCESS:
		return IBV_WC_REM_ACCESS_ERR;
	case SN_NAK_OP:
		return IBV_WC_REM_OP_ERR;
	default:
		return IBV_WC_REM_INV_REQ_ERR;
	}
}

static void nak(struct sn_qp *q, const struct sn_pkt *p, uint64_t now)
{
	struct sn_sq *s = &q->sq;

	if (!outstanding(q, p->psn))
		return;
	acknowledge(q, sn_psn(p->psn - 1), now);
	if (!outstanding(q, p->psn))
		return;
	switch (p->nak) {
	case SN_NAK_RNR:
		/* 7: without end */
		if (q->attr.rnr_retry != 7 && !s->rnr_left--) {
			fail(q, IBV_WC_RNR_RETRY_EXC_ERR);
			return;
		}
		rewind_to(q, s->una);
		s->ack_at = 0;
		s->rnr_until = now + rnr_ns(p->rnr_timer);
		sn_timer_at(s->rnr_until);
		return;
	case SN_NAK_SEQ:
		if (!s->retry_left) {
			fail(q, IBV_WC_RETRY_EXC_ERR);
			return;
		}
		s->retry_left--;
		rewind_to(q, s->una);
		return;
	default:
		fail(q, nak_status(p));
	}
}

void sn_requester_in(struct sn_qp *q, const struct sn_pkt *p, const uint8_t *payload, uint64_t now)
{
	if (q->state != IBV_QPS_RTS && q->state != IBV_QPS_SQD)
		return;
	switch (p->op) {
	case SN_READ_RSP:
		read_response(q, p, payload, now);
		break;
	case SN_ATOMIC_RSP:
		atomic_response(q, p, now);
		break;
	case SN_ACK:
		acknowledge(q, p->psn, now);
		break;
	case SN_NAK:
		nak(q, p, now);
		break;
	}
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The side of a QP that carries out what the peer asks for (IBTA 9.7). */
#include <string.h>

#include "adverse.h"
#include "engine.h"
#include "packet.h"
#include "place.h"

static struct sn_rsp *queue(struct sn_qp *q, enum sn_rsp_kind kind, uint32_t psn)
{
	struct sn_responder *r = &q->rsp;
	struct sn_rsp *e;

	if (r->rsp_tail - r->rsp_head == SN_RSPS)
		return NULL;
	e = &r->rsps[r->rsp_tail++ % SN_RSPS];
	memset(e, 0, sizeof(*e));
	e->kind = kind;
	e->psn = psn;
	sn_qp_ready(q);
	return e;
}

/* Nothing but the expected packet is taken from now on; after a fatal one, nothing. */
static void queue_nak(struct sn_qp *q, enum sn_nak code)
{
	struct sn_rsp *e;

	q->rsp.nak_sent = true;
	if (code != SN_NAK_SEQ && code != SN_NAK_RNR)
		q->rsp.closed = true;
	/* one place is kept for it: READs and atomics, asked for once and again, fill at most twice SN_MAX_RD_ATOMIC */
	e = queue(q, SN_RSP_NAK, q->rsp.epsn);
	if (!e)
		return;
	e->value = code;
	e->rnr_timer = q->attr.min_rnr_timer;
}

void sn_responder_flush(struct sn_qp *q)
{
	q->rsp.rsp_head = q->rsp.rsp_tail;
	q->rsp.ack_due = false;
	q->rsp.closed = true;
	sn_recv_flush(q);
}

/* ---- requests ---- */

static bool may(const struct sn_qp *q, unsigned int access)
{
	return q->attr.qp_access_flags & access;
}

/* Both ends must cut messages at the same places. */
static bool fits_mtu(const struct sn_qp *q, const struct sn_pkt *p)
{
	bool only = (p->flags & SN_FIRST) && (p->flags & SN_LAST) && p->npsn == 1;

	return only ? p->len <= q->mtu : p->mtu == q->mtu;
}

/* XRC: from now on keys are of the SRQ's PD (IBTA A14). False: there is no such SRQ. */
static bool in_domain_of(struct sn_qp *q, uint32_t srqn)
{
	struct sn_srq *s;

	if (!sn_is_xrc_recv(q))
		return true;
	s = sn_xrc_srq(q, srqn);
	q->pd = s ? s->pd : NULL;
	return s;
}

/* The rest of a message goes where its first packet went. */
static bool finds_srq(struct sn_qp *q, const struct sn_pkt *p)
{
	if (!sn_is_xrc_recv(q))
		return true;
	if (p->op != SN_SEND && p->op != SN_WRITE)
		return in_domain_of(q, p->srqn);
	if (p->flags & SN_FIRST)
		q->srq = sn_xrc_srq(q, p->srqn);
	q->pd = q->srq ? q->srq->pd : NULL;
	return q->srq;
}

static void send_in(struct sn_qp *q, const struct sn_pkt *p, const uint8_t *payload)
{
	struct sn_responder *r = &q->rsp;
	enum ibv_wc_status st;

	if (!sn_recv_take(q)) {
		queue_nak(q, SN_NAK_RNR);
		return;
	}
	if (p->len > r->rwqe.len - r->msg_off) {
		sn_recv_done(q, NULL, IBV_WC_LOC_LEN_ERR, IBV_WC_RECV, 0);
		queue_nak(q, SN_NAK_INVALID);
		return;
	}
	st = sn_recv_scatter(q, r->msg_off, payload, p->len);
	if (st) {
		sn_recv_done(q, NULL, st, IBV_WC_RECV, 0);
		queue_nak(q, SN_NAK_OP);
		return;
	}
	/* the key that the sender names must be of a window that is bound to this QP */
	if ((p->flags & SN_INV) && sn_invalidate(q, p->imm)) {
		queue_nak(q, SN_NAK_ACCESS);
		return;
	}
	r->msg_off += p->len;
	r->epsn = sn_psn(r->epsn + p->npsn);
	r->in_msg = !(p->flags & SN_LAST);
	if (!r->in_msg)
		sn_recv_done(q, p, IBV_WC_SUCCESS, IBV_WC_RECV, r->msg_off);
}

static void write_in(struct sn_qp *q, const struct sn_pkt *p, const uint8_t *payload)
{
	struct sn_responder *r = &q->rsp;
	struct sn_span span;
	uint32_t n;

	if (!may(q, IBV_ACCESS_REMOTE_WRITE)) {
		queue_nak(q, SN_NAK_INVALID);
		return;
	}
	if (p->flags & SN_FIRST) {
		r->msg_raddr = p->raddr;
		r->msg_rkey = p->rkey;
		r->msg_len = p->total;
	}
	/* all of it is checked, for each part again, since the memory may go away meanwhile; unless it is nothing */
	if (r->msg_len && (p->len > r->msg_len - r->msg_off ||
			   !sn_remote(q, r->msg_rkey, r->msg_raddr, r->msg_len,
				      IBV_ACCESS_REMOTE_WRITE, &span))) {
		queue_nak(q, SN_NAK_ACCESS);
		return;
	}
	if ((p->flags & SN_IMM) && !sn_recv_take(q)) {
		queue_nak(q, SN_NAK_RNR);
		return;
	}
	/* without what is there already */
	n = p->early <= p->off ? 0 : p->early - p->off < p->len ? p->early - p->off : p->len;
	if (n)
		sn_place(q->dev, &span, r->msg_off, payload, n);
	r->msg_off += p->len;
	r->epsn = sn_psn(r->epsn + p->npsn);
	r->in_msg = !(p->flags & SN_LAST);
	if (p->flags & SN_IMM)
		sn_recv_done(q, p, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, r->msg_len);
}

bool sn_responder_early(struct sn_qp *q, const struct sn_pkt *p, const uint8_t *payload)
{
	struct sn_responder *r = &q->rsp;
	uint32_t begin = sn_psn(r->epsn - (r->in_msg ? r->msg_off / q->mtu : 0));
	uint32_t skip = p->early > p->off ? p->early - p->off : 0;
	struct sn_span span;

	/* only of the message whose turn it is: nothing lands before all ahead of it was accepted */
	if (r->closed || begin != sn_psn(p->psn - p->off / q->mtu) || p->mtu != q->mtu ||
	    sn_psn_diff(p->psn, r->epsn) < 0 || !may(q, IBV_ACCESS_REMOTE_WRITE) ||
	    p->off + p->len > p->total || !in_domain_of(q, p->srqn) ||
	    !sn_remote(q, p->rkey, p->raddr, p->total, IBV_ACCESS_REMOTE_WRITE, &span))
		return false;
	if (skip < p->len)
		span.ops->write(span.addr + p->off + skip, payload + skip, p->len - skip);
	return true;
}

/*
 * Responses that wait, to requests of the first time or to duplicates. A requester that was answered sends new requests while
 * the duplicates that it had no patience to wait without are still queued: these take no new one's place (max_dest_rd_atomic).
 */
static uint32_t reads_queued(const struct sn_responder *r, bool again)
{
	uint32_t n = 0;

	for (uint32_t i = r->rsp_head; i != r->rsp_tail; i++)
		n += r->rsps[i % SN_RSPS].kind != SN_RSP_NAK && r->rsps[i % SN_RSPS].again == again;
	return n;
}

static void read_in(struct sn_qp *q, const struct sn_pkt *p, bool again)
{
	struct sn_responder *r = &q->rsp;
	struct sn_span span;
	struct sn_rsp *e;

	if (!may(q, IBV_ACCESS_REMOTE_READ) || (!again && reads_queued(r, false) >= q->attr.max_dest_rd_atomic)) {
		queue_nak(q, SN_NAK_INVALID);
		return;
	}
	if (p->total &&
	    !sn_remote(q, p->rkey, p->raddr, p->total, IBV_ACCESS_REMOTE_READ, &span)) {
		queue_nak(q, SN_NAK_ACCESS);
		return;
	}
	if (again && reads_queued(r, true) >= SN_MAX_RD_ATOMIC)
		return;
	e = queue(q, SN_RSP_READ, p->psn);
	if (!e)
		return;
	e->raddr = p->raddr;
	e->rkey = p->rkey;
	e->len = p->total;
	e->srqn = p->srqn;
	e->again = again;
	if (!again)
		r->epsn = sn_psn(r->epsn + p->npsn);
}

static void atomic_in(struct sn_qp *q, const struct sn_pkt *p)
{
	struct sn_responder *r = &q->rsp;
	struct sn_span span;
	struct sn_rsp *e;

	if (!may(q, IBV_ACCESS_REMOTE_ATOMIC) || (p->raddr & 7) ||
	    reads_queued(r, false) >= q->attr.max_dest_rd_atomic) {
		queue_nak(q, SN_NAK_INVALID);
		return;
	}
	if (!sn_remote(q, p->rkey, p->raddr, 8, IBV_ACCESS_REMOTE_ATOMIC, &span)) {
		queue_nak(q, SN_NAK_ACCESS);
		return;
	}
	e = queue(q, SN_RSP_ATOMIC, p->psn);
	if (!e)
		return;
	sn_place_push(q->dev);
	e->value = p->op == SN_CAS ? span.ops->compare_swap(span.addr, p->compare_add, p->swap) :
				     span.ops->fetch_add(span.addr, p->compare_add);
	r->done[r->done_at].psn = p->psn;
	r->done[r->done_at].value = e->value;
	r->done[r->done_at].valid = true;
	r->done_at = (r->done_at + 1) % SN_MAX_RD_ATOMIC;
	r->epsn = sn_psn(r->epsn + 1);
}

/* It was carried out before: READs are done once more, an atomic gets the result of then. */
static void duplicate(struct sn_qp *q, const struct sn_pkt *p)
{
	struct sn_responder *r = &q->rsp;

	switch (p->op) {
	case SN_READ:
		if (in_domain_of(q, p->srqn))
			read_in(q, p, true);
		break;
	case SN_CAS:
	case SN_FAA:
		for (uint32_t i = 0; i < SN_MAX_RD_ATOMIC; i++)
			if (r->done[i].valid && r->done[i].psn == p->psn && reads_queued(r, true) < SN_MAX_RD_ATOMIC) {
				struct sn_rsp *e = queue(q, SN_RSP_ATOMIC, p->psn);

				if (e) {
					e->value = r->done[i].value;
					e->again = true;
				}
				break;
			}
		break;
	default:
		r->ack_due = true;
		sn_qp_ready(q);
	}
}

void sn_responder_in(struct sn_qp *q, const struct sn_pkt *p, const uint8_t *payload, uint64_t now)
{
	struct sn_responder *r = &q->rsp;
	int32_t d = sn_psn_diff(p->psn, r->epsn);

	(void)now;
	if (r->closed)
		return;
	sn_recv_established(q);
	if (d < 0) {
		duplicate(q, p);
		return;
	}
	if (d > 0) {
		/* said once, until what is missing comes */
		if (!r->nak_sent)
			queue_nak(q, SN_NAK_SEQ);
		return;
	}
	r->nak_sent = false;
	if (p->flags & SN_FIRST)
		r->msg_off = 0;
	if (!fits_mtu(q, p) || r->in_msg == !!(p->flags & SN_FIRST)) {
		queue_nak(q, SN_NAK_INVALID);
		return;
	}
	if (!finds_srq(q, p)) {
		queue_nak(q, SN_NAK_INVALID);
		return;
	}
	switch (p->op) {
	case SN_SEND:
		send_in(q, p, payload);
		break;
	case SN_WRITE:
		write_in(q, p, payload);
		break;
	case SN_READ:
		read_in(q, p, false);
		return;
	case SN_CAS:
	case SN_FAA:
		atomic_in(q, p);
		return;
	}
	if (!r->nak_sent) {
		r->ack_due = true;
		sn_qp_ready(q);
	}
}

/* ---- responses ---- */

static void send_control(struct sn_qp *q, struct sn_pkt *p, uint64_t now)
{
	struct sn_responder *r = &q->rsp;

	sn_port_control(q->dev, (uint32_t)q->peer_dev, now, &p->due);
	sn_adverse_answer(p);
	if (p->due < r->last_due)
		p->due = r->last_due;
	r->last_due = p->due;
	sn_link_end();
}

static enum sn_step read_step(struct sn_qp *q, struct sn_rsp *e, uint64_t now, uint64_t *when)
{
	struct sn_responder *r = &q->rsp;
	uint32_t seg = e->len - e->off < SN_SEG ? e->len - e->off : SN_SEG;
	struct sn_span span;
	struct sn_pkt *p;
	uint8_t *payload;
	uint64_t left;
	bool gone;

	if (q->peer_dev >= 0) {
		*when = sn_port_when(q);
		if (*when > now) {
			r->waited = true;
			return SN_LATER;
		}
	}
	/* the memory is looked at only now: what the program writes meanwhile may be what the reader gets */
	if (seg && (!in_domain_of(q, e->srqn) ||
		    !sn_remote(q, e->rkey, e->raddr + e->off, seg, IBV_ACCESS_REMOTE_READ, &span))) {
		e->kind = SN_RSP_NAK;
		e->value = SN_NAK_ACCESS;
		r->closed = true;
		return SN_SENT;
	}
	p = sn_packet(q, SN_READ_RSP, seg, &payload, &gone);
	if (!p && !gone) {
		*when = UINT64_MAX;
		return SN_LATER;
	}
	if (p) {
		p->psn = e->psn;
		p->off = e->off;
		if (seg) {
			sn_place_push_region(q->dev, &span);
			span.ops->read(payload, span.addr, seg);
		}
		sn_port_charge(q, seg, r->waited, now, &left, &p->due);
		if (!e->off)
			sn_adverse_message(&r->luck, q, SN_READ_RSP, e->len);
		sn_adverse_packet(&r->luck, p);
		if (p->due < r->last_due)
			p->due = r->last_due;
		r->last_due = p->due;
		sn_link_end();
	}
	e->off += seg;
	if (e->off == e->len)
		r->rsp_head++;
	return SN_SENT;
}

enum sn_step sn_responder_step(struct sn_qp *q, uint64_t now, uint64_t *when)
{
	struct sn_responder *r = &q->rsp;
	struct sn_rsp *e = NULL;
	struct sn_pkt *p;
	uint8_t *payload;
	bool gone;

	if (q->state != IBV_QPS_RTR && q->state != IBV_QPS_RTS && q->state != IBV_QPS_SQD)
		return SN_IDLE;
	if (r->rsp_head != r->rsp_tail) {
		e = &r->rsps[r->rsp_head % SN_RSPS];
		if (e->kind == SN_RSP_READ)
			return read_step(q, e, now, when);
	} else {
		r->waited = false;
		if (!r->ack_due)
			return SN_IDLE;
	}
	p = sn_packet(q, !e ? SN_ACK : e->kind == SN_RSP_NAK ? SN_NAK : SN_ATOMIC_RSP, 0, &payload, &gone);
	if (!p && !gone) {
		*when = UINT64_MAX;
		return SN_LATER;
	}
	if (p) {
		p->psn = e ? e->psn : sn_psn(r->epsn - 1);
		if (e) {
			p->nak = (uint8_t)e->value;
			p->rnr_timer = e->rnr_timer;
			p->swap = e->value;
		}
		send_control(q, p, now);
	}
	if (!e) {
		r->ack_due = false;
		return SN_SENT;
	}
	r->rsp_head++;
	if (e->kind == SN_RSP_NAK && e->value != SN_NAK_SEQ && e->value != SN_NAK_RNR) {
		sn_qp_fail(q);
		sn_qp_raise(q, e->value == SN_NAK_ACCESS ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
	}
	return SN_SENT;
}

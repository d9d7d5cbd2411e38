// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Receive WQEs: from the QP's own queue or its SRQ to their completions. */
#include <string.h>

#include "engine.h"
#include "packet.h"

void sn_srq_check_limit(struct sn_srq *s)
{
	if (!s->limit || s->rq.tail - s->rq.head >= s->limit)
		return;
	s->limit = 0; /* said once, until it is set again */
	sn_async_raise(sn_ctx(s->srq.context), IBV_EVENT_SRQ_LIMIT_REACHED, &s->srq);
}

bool sn_recv_take(struct sn_qp *q)
{
	struct sn_rq *rq = q->srq ? &q->srq->rq : &q->rq;
	struct sn_responder *r = &q->rsp;

	if (r->have_rwqe)
		return true;
	if (rq->head == rq->tail)
		return false;
	/* of an SRQ the slot may be used again before this message ends */
	r->rwqe = rq->wqes[rq->head % rq->size];
	memcpy(r->rwqe_sge, r->rwqe.sge, r->rwqe.nsge * sizeof(*r->rwqe_sge));
	r->rwqe.sge = r->rwqe_sge;
	r->rwqe_slot = ++rq->head;
	r->have_rwqe = true;
	if (q->srq)
		sn_srq_check_limit(q->srq);
	return true;
}

void sn_recv_done(struct sn_qp *q, const struct sn_pkt *p, enum ibv_wc_status status, enum ibv_wc_opcode op,
		  uint32_t len)
{
	struct sn_responder *r = &q->rsp;
	/* of an XRC_RECV they outlive the QP */
	struct sn_cqe c = { .qp = sn_is_xrc_recv(q) ? NULL : q, .srq = q->srq, .slot = r->rwqe_slot, .recv = true };

	c.wc.wr_id = r->rwqe.wr_id;
	c.wc.status = status;
	c.wc.opcode = op;
	c.wc.byte_len = len;
	c.wc.qp_num = sn_ibqp(q)->qp_num;
	c.wc.src_qp = p ? p->src_qpn : q->dest_qpn;
	c.solicited = p && (p->flags & SN_SOLICITED);
	if (p && (p->flags & SN_IMM)) {
		c.wc.wc_flags |= IBV_WC_WITH_IMM;
		c.wc.imm_data = p->imm;
	}
	if (p && (p->flags & SN_INV)) {
		c.wc.wc_flags |= IBV_WC_WITH_INV;
		c.wc.invalidated_rkey = p->imm;
	}
	if (p && (p->flags & SN_GLOBAL)) {
		c.wc.wc_flags |= IBV_WC_GRH;
		c.wc.sl = sn_ud_sl(p);
	}
	if (p)
		c.wc.slid = sn_host_lid(p->src_dev);
	r->have_rwqe = false;
	sn_cq_push(sn_is_xrc_recv(q) ? q->srq->cq : sn_cq(sn_ibqp(q)->recv_cq), &c);
}

enum ibv_wc_status sn_recv_scatter(struct sn_qp *q, uint32_t off, const void *from, uint32_t len)
{
	return sn_scatter(q, q->srq ? q->srq->pd : q->pd, q->rsp.rwqe.sge, q->rsp.rwqe.nsge, off, from, len);
}

void sn_recv_flush(struct sn_qp *q)
{
	/* what lies in an SRQ is for the other QPs */
	while (q->srq || sn_is_xrc_recv(q) ? q->rsp.have_rwqe : sn_recv_take(q))
		sn_recv_done(q, NULL, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, 0);
	if (q->srq || sn_is_xrc_recv(q))
		sn_qp_raise(q, IBV_EVENT_QP_LAST_WQE_REACHED);
}

void sn_recv_drop(struct sn_qp *q)
{
	if (q->rsp.have_rwqe && q->srq)
		q->srq->rq.free++;
	q->rsp.have_rwqe = false;
}

void sn_recv_established(struct sn_qp *q)
{
	if (q->state != IBV_QPS_RTR || q->rsp.established)
		return;
	q->rsp.established = true;
	sn_qp_raise(q, IBV_EVENT_COMM_EST);
}

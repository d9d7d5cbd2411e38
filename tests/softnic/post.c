// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Posting: what is refused at once, and copying what is not. */
#include <errno.h>
#include <string.h>

#include "engine.h"
#include "packet.h"

/* Sum of the SGEs; false: more than 32 bits. */
static bool total(const struct ibv_sge *sge, int n, uint32_t *len)
{
	uint64_t sum = 0;

	for (int i = 0; i < n; i++)
		sum += sge[i].length;
	*len = (uint32_t)sum;
	return sum <= UINT32_MAX;
}

static bool is_atomic(enum ibv_wr_opcode op)
{
	return op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/* 0 or a positive errno */
static int check_send(const struct sn_qp *q, const struct ibv_send_wr *wr, uint32_t *len)
{
	const struct sn_sq *s = &q->sq;

	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_RDMA_READ:
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		break;
	default:
		return EINVAL;
	}
	if (s->tail - s->free >= q->cap.max_send_wr)
		return ENOMEM;
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->cap.max_send_sge || !total(wr->sg_list, wr->num_sge, len))
		return EINVAL;
	if (is_atomic(wr->opcode) && *len != 8)
		return EINVAL;
	if ((wr->send_flags & IBV_SEND_INLINE) &&
	    (*len > s->max_inline || is_atomic(wr->opcode) || wr->opcode == IBV_WR_RDMA_READ))
		return EINVAL;
	return 0;
}

static void copy_inline(struct sn_wqe *w, const struct ibv_send_wr *wr, uint8_t *to)
{
	w->inl = to;
	w->nsge = 0;
	for (int i = 0; i < wr->num_sge; i++) {
		memcpy(to, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		to += wr->sg_list[i].length;
	}
}

static void queue_send(struct sn_qp *q, const struct ibv_send_wr *wr, uint32_t len)
{
	struct sn_sq *s = &q->sq;
	uint32_t at = s->tail % s->size;
	struct sn_wqe *w = &s->wqes[at];

	memset(w, 0, sizeof(*w));
	w->wr_id = wr->wr_id;
	w->opcode = wr->opcode;
	w->flags = wr->send_flags;
	w->len = len;
	w->signalled = q->sig_all || (wr->send_flags & IBV_SEND_SIGNALED);
	w->imm = wr->imm_data;
	if (is_atomic(wr->opcode)) {
		w->raddr = wr->wr.atomic.remote_addr;
		w->rkey = wr->wr.atomic.rkey;
		w->compare_add = wr->wr.atomic.compare_add;
		w->swap = wr->wr.atomic.swap;
	} else {
		w->raddr = wr->wr.rdma.remote_addr;
		w->rkey = wr->wr.rdma.rkey;
	}
	w->nsge = (uint16_t)wr->num_sge;
	w->sge = &s->sges[at * s->max_sge];
	if (wr->send_flags & IBV_SEND_INLINE)
		copy_inline(w, wr, s->inl + at * s->max_inline);
	else if (wr->num_sge)
		memcpy(w->sge, wr->sg_list, (size_t)wr->num_sge * sizeof(*w->sge));
	s->tail++;
}

int sn_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct sn_qp *q = sn_qp(qp);
	uint32_t len;
	int ret;

	sn_lock();
	if (sn_ctx(qp->context)->epoch != sn_engine_epoch()) {
		*bad = wr;
		sn_unlock();
		return EIO;
	}
	ret = q->state < IBV_QPS_RTS ? EINVAL : 0;
	for (; wr && !ret; wr = wr->next) {
		ret = check_send(q, wr, &len);
		if (ret)
			break;
		queue_send(q, wr, len);
	}
	if (ret)
		*bad = wr;
	if (q->state == IBV_QPS_ERR)
		sn_requester_flush(q);
	if (q->state == IBV_QPS_RTS) {
		sn_qp_ready(q);
		sn_engine_push();
	}
	sn_unlock();
	return ret;
}

int sn_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct sn_qp *q = sn_qp(qp);
	struct sn_rq *r = &q->rq;
	int ret;

	sn_lock();
	if (sn_ctx(qp->context)->epoch != sn_engine_epoch()) {
		*bad = wr;
		sn_unlock();
		return EIO;
	}
	ret = q->state == IBV_QPS_RESET ? EINVAL : 0;
	for (; wr && !ret; wr = wr->next) {
		uint32_t at = r->tail % r->size;
		struct sn_rwqe *w = &r->wqes[at];

		if (r->tail - r->free >= q->cap.max_recv_wr)
			ret = ENOMEM;
		else if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->cap.max_recv_sge ||
			 !total(wr->sg_list, wr->num_sge, &w->len))
			ret = EINVAL;
		if (ret)
			break;
		w->wr_id = wr->wr_id;
		w->nsge = (uint16_t)wr->num_sge;
		w->sge = &r->sges[at * r->max_sge];
		if (wr->num_sge)
			memcpy(w->sge, wr->sg_list, (size_t)wr->num_sge * sizeof(*w->sge));
		r->tail++;
	}
	if (ret)
		*bad = wr;
	if (q->state == IBV_QPS_ERR)
		sn_responder_flush(q);
	sn_unlock();
	return ret;
}

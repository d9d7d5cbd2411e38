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

bool sn_op_offered(enum ibv_qp_type type, enum ibv_wr_opcode op)
{
	const unsigned int ud = 1u << IBV_WR_SEND | 1u << IBV_WR_SEND_WITH_IMM;
	const unsigned int uc = ud | 1u << IBV_WR_RDMA_WRITE | 1u << IBV_WR_RDMA_WRITE_WITH_IMM |
				1u << IBV_WR_LOCAL_INV | 1u << IBV_WR_BIND_MW;
	const unsigned int rc = uc | 1u << IBV_WR_RDMA_READ | 1u << IBV_WR_ATOMIC_CMP_AND_SWP |
				1u << IBV_WR_ATOMIC_FETCH_AND_ADD | 1u << IBV_WR_SEND_WITH_INV;
	unsigned int set = type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND ? rc : type == IBV_QPT_UC ? uc : ud;

	return (unsigned int)op < 32 && (set >> op & 1);
}

static bool is_atomic(enum ibv_wr_opcode op)
{
	return op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

int sn_wqe_check(const struct sn_qp *q, const struct sn_wqe *w)
{
	if (!sn_op_offered(q->ex.qp_base.qp_type, w->opcode) || (w->flags & IBV_SEND_IP_CSUM))
		return EINVAL;
	if (is_atomic(w->opcode) && w->len != 8)
		return EINVAL;
	if (w->inl && (is_atomic(w->opcode) || w->opcode == IBV_WR_RDMA_READ))
		return EINVAL;
	/* UD needs an address, which no number of a QP tells */
	if (sn_is_ud(q) && !w->ud.av.port_num)
		return EINVAL;
	return 0;
}

struct sn_wqe *sn_wqe_new(struct sn_qp *q, uint32_t n)
{
	struct sn_sq *s = &q->sq;
	uint32_t at = (s->tail + n) % s->size;

	if (s->tail + n - s->free >= q->cap.max_send_wr)
		return NULL;
	memset(&s->wqes[at], 0, sizeof(s->wqes[at]));
	s->wqes[at].sge = &s->sges[at * s->max_sge];
	return &s->wqes[at];
}

void sn_wqe_address(struct sn_wqe *w, struct ibv_ah *ibah, uint32_t qpn, uint32_t qkey)
{
	struct sn_ah *ah = (struct sn_ah *)ibah;

	/* copied: a program may destroy it when the request is done, which it learns late */
	w->ud.av = ah->attr;
	w->ud.dev = ah->dev;
	w->ud.pd = sn_base_pd(ibah->pd);
	w->ud.qpn = qpn;
	w->ud.qkey = qkey;
}

int sn_wqe_bind(struct sn_wqe *w, const struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	/* LOCAL_WRITE says nothing here, and programs give it */
	const unsigned int known = SN_REMOTE_ACCESS | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE;

	if (!mw || (info->mw_access_flags & ~known) || (info->length && !info->mr))
		return EINVAL;
	w->bind.old_rkey = mw->rkey;
	w->bind.new_rkey = rkey;
	w->bind.lkey = info->mr ? info->mr->lkey : 0;
	w->bind.addr = info->addr;
	w->bind.length = info->length;
	w->bind.access = info->mw_access_flags;
	return 0;
}

static int copy_data(struct sn_qp *q, struct sn_wqe *w, const struct ibv_send_wr *wr)
{
	uint8_t *to;

	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->cap.max_send_sge || !total(wr->sg_list, wr->num_sge, &w->len))
		return EINVAL;
	if (!(wr->send_flags & IBV_SEND_INLINE)) {
		w->nsge = (uint16_t)wr->num_sge;
		if (wr->num_sge)
			memcpy(w->sge, wr->sg_list, (size_t)wr->num_sge * sizeof(*w->sge));
		return 0;
	}
	if (w->len > q->sq.max_inline)
		return EINVAL;
	w->inl = to = sn_wqe_inline(q, w);
	for (int i = 0; i < wr->num_sge; i++) {
		memcpy(to, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		to += wr->sg_list[i].length;
	}
	return 0;
}

/* 0 or a positive errno */
static int fill(struct sn_qp *q, struct sn_wqe *w, const struct ibv_send_wr *wr)
{
	int ret = 0;

	/* before anything is read of what has another meaning for each */
	if (!sn_op_offered(sn_ibqp(q)->qp_type, wr->opcode))
		return EINVAL;
	w->wr_id = wr->wr_id;
	w->opcode = wr->opcode;
	w->flags = wr->send_flags;
	w->signalled = q->sig_all || (wr->send_flags & IBV_SEND_SIGNALED);
	w->imm = wr->imm_data;
	if (sn_is_xrc_send(q))
		w->srqn = wr->qp_type.xrc.remote_srqn;
	if (wr->opcode == IBV_WR_BIND_MW)
		ret = sn_wqe_bind(w, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
	else if (wr->opcode != IBV_WR_LOCAL_INV)
		ret = copy_data(q, w, wr);
	if (ret)
		return ret;
	if (is_atomic(wr->opcode)) {
		w->raddr = wr->wr.atomic.remote_addr;
		w->rkey = wr->wr.atomic.rkey;
		w->compare_add = wr->wr.atomic.compare_add;
		w->swap = wr->wr.atomic.swap;
	} else if (sn_is_ud(q)) {
		if (!wr->wr.ud.ah)
			return EINVAL;
		sn_wqe_address(w, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
	} else {
		w->raddr = wr->wr.rdma.remote_addr;
		w->rkey = wr->wr.rdma.rkey;
	}
	return sn_wqe_check(q, w);
}

void sn_sq_advance(struct sn_qp *q, uint32_t n)
{
	q->sq.tail += n;
	if (q->state == IBV_QPS_ERR || q->state == IBV_QPS_SQE)
		sn_requester_flush(q);
	if (q->state == IBV_QPS_RTS)
		sn_qp_ready(q);
	sn_engine_push();
}

int sn_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct sn_qp *q = sn_qp(qp);
	uint32_t n = 0;
	int ret;

	/* not between the requests that another thread is building */
	if (q->build.offered)
		pthread_mutex_lock(&q->build.lock);
	sn_lock();
	ret = sn_ctx(qp->context)->epoch != sn_engine_epoch() ? EIO : q->state < IBV_QPS_RTS ? EINVAL : 0;
	for (; wr && !ret; wr = wr->next) {
		struct sn_wqe *w = sn_wqe_new(q, n);

		ret = w ? fill(q, w, wr) : ENOMEM;
		if (ret)
			break;
		n++;
	}
	if (ret)
		*bad = wr;
	if (ret != EIO)
		sn_sq_advance(q, n);
	sn_unlock();
	if (q->build.offered)
		pthread_mutex_unlock(&q->build.lock);
	return ret;
}

/* ---- receives ---- */

/* What fits is posted. 0 or a positive errno. */
static int post_to(struct sn_rq *r, uint32_t max_wr, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	int ret = 0;

	for (; wr; wr = wr->next) {
		uint32_t at = r->tail % r->size;
		struct sn_rwqe *w = &r->wqes[at];

		if (r->tail - r->free >= max_wr)
			ret = ENOMEM;
		else if (wr->num_sge < 0 || (uint32_t)wr->num_sge > r->max_sge ||
			 !total(wr->sg_list, wr->num_sge, &w->len))
			ret = EINVAL;
		if (ret) {
			*bad = wr;
			break;
		}
		w->wr_id = wr->wr_id;
		w->nsge = (uint16_t)wr->num_sge;
		w->sge = &r->sges[at * r->max_sge];
		if (wr->num_sge)
			memcpy(w->sge, wr->sg_list, (size_t)wr->num_sge * sizeof(*w->sge));
		r->tail++;
	}
	return ret;
}

int sn_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct sn_qp *q = sn_qp(qp);
	int ret;

	sn_lock();
	ret = sn_ctx(qp->context)->epoch != sn_engine_epoch() ? EIO :
	      /* a handle of an XRC_RECV has no state */
	      q->state == IBV_QPS_RESET || q->srq || sn_is_xrc_send(q) ? EINVAL :
								  0;
	if (ret)
		*bad = wr;
	else
		ret = post_to(&q->rq, q->cap.max_recv_wr, wr, bad);
	if (ret != EIO && q->state == IBV_QPS_ERR) {
		sn_responder_flush(q);
		sn_engine_push();
	}
	sn_unlock();
	return ret;
}

int sn_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct sn_srq *s = (struct sn_srq *)srq;
	int ret = EIO;

	sn_lock();
	if (sn_ctx(srq->context)->epoch == sn_engine_epoch())
		ret = post_to(&s->rq, s->max_wr, wr, bad);
	else
		*bad = wr;
	sn_unlock();
	return ret;
}

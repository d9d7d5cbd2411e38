// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Queue pairs: their life and their states. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "packet.h"

static uint32_t at_least_one(uint32_t n)
{
	return n ? n : 1;
}

/* Counters of WQEs run over at 2^32, so the arrays must divide that. */
uint32_t sn_power_of_two(uint32_t n)
{
	uint32_t p = 1;

	while (p < n)
		p *= 2;
	return p;
}

int sn_rq_alloc(struct sn_rq *r, uint32_t max_wr, uint32_t max_sge)
{
	r->size = sn_power_of_two(max_wr);
	r->max_sge = max_sge;
	r->wqes = calloc(r->size, sizeof(*r->wqes));
	r->sges = calloc((size_t)r->size * at_least_one(max_sge), sizeof(*r->sges));
	return r->wqes && r->sges ? 0 : -ENOMEM;
}

void sn_rq_free(struct sn_rq *r)
{
	free(r->wqes);
	free(r->sges);
}

static int make_queues(struct sn_qp *q)
{
	struct sn_sq *s = &q->sq;

	s->size = sn_power_of_two(q->cap.max_send_wr);
	s->max_sge = at_least_one(q->cap.max_send_sge);
	s->max_inline = q->cap.max_inline_data;
	s->wqes = calloc(s->size, sizeof(*s->wqes));
	s->sges = calloc((size_t)s->size * s->max_sge, sizeof(*s->sges));
	s->inl = malloc(at_least_one(s->size * s->max_inline));
	if (!s->wqes || !s->sges || !s->inl)
		return -ENOMEM;
	return sn_rq_alloc(&q->rq, q->cap.max_recv_wr, q->cap.max_recv_sge);
}

void sn_qp_free(struct sn_qp *q)
{
	free(q->sq.wqes);
	free(q->sq.sges);
	free(q->sq.inl);
	sn_rq_free(&q->rq);
	free(q);
}

struct sn_qp *sn_qp_new(uint32_t dev, enum ibv_qp_type type, const struct ibv_qp_cap *cap)
{
	struct sn_qp *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	q->dev = dev;
	q->peer_dev = -1;
	q->cap = *cap;
	sn_ibqp(q)->qp_type = type;
	if (!make_queues(q))
		return q;
	sn_qp_free(q);
	return NULL;
}

static uint64_t serials;

bool sn_qp_begin(struct sn_qp *q, struct ibv_context *c)
{
	q->serial = ++serials;
	if (sn_ctx(c)->epoch == sn_engine_epoch())
		sn_ibqp(q)->qp_num = sn_host_qpn_take(q->dev);
	if (!sn_ibqp(q)->qp_num)
		return false;
	sn_ibqp(q)->handle = sn_ibqp(q)->qp_num;
	sn_qp_attach(q);
	return true;
}

void sn_qp_end(struct sn_qp *q, struct ibv_context *c)
{
	if (sn_ctx(c)->epoch != sn_engine_epoch())
		return;
	sn_qp_detach(q);
	sn_host_qpn_drop(q->dev, sn_ibqp(q)->qp_num);
}

static bool is_xrc_srq(const struct ibv_srq *srq)
{
	return ((const struct sn_srq *)srq)->xrcd;
}

static bool is_of(struct ibv_cq *cq, const struct ibv_pd *pd)
{
	return cq && cq->context == pd->context;
}

/* 0 or a positive errno */
static int check_init(struct ibv_pd *pd, const struct ibv_qp_init_attr *a)
{
	bool xrc = a->qp_type == IBV_QPT_XRC_SEND;

	/* it has no PD */
	if (a->qp_type == IBV_QPT_XRC_RECV)
		return EINVAL;
	if (a->qp_type != IBV_QPT_RC && a->qp_type != IBV_QPT_UC && a->qp_type != IBV_QPT_UD && !xrc)
		return EOPNOTSUPP;
	if (!pd || !is_of(a->send_cq, pd))
		return EINVAL;
	if (!xrc && (!is_of(a->recv_cq, pd) || (a->srq && (a->srq->context != pd->context || is_xrc_srq(a->srq)))))
		return EINVAL;
	if (a->cap.max_send_wr > SN_MAX_WR || a->cap.max_recv_wr > SN_MAX_WR || a->cap.max_send_sge > SN_MAX_SGE ||
	    a->cap.max_recv_sge > SN_MAX_SGE || a->cap.max_inline_data > SN_MAX_INLINE)
		return EINVAL;
	return 0;
}

static void fill(struct sn_qp *q, struct ibv_pd *pd, const struct ibv_qp_init_attr *a)
{
	struct ibv_qp *i = sn_ibqp(q);

	i->context = pd->context;
	i->qp_context = a->qp_context;
	i->pd = pd;
	i->send_cq = a->send_cq;
	pthread_mutex_init(&i->mutex, NULL);
	pthread_cond_init(&i->cond, NULL);
	q->sig_all = a->sq_sig_all;
	q->pd = sn_base_pd(pd);
	/* whatever it was given, it does not receive */
	if (sn_is_xrc_send(q))
		return;
	i->recv_cq = a->recv_cq;
	i->srq = a->srq;
	q->srq = (struct sn_srq *)a->srq;
}

static struct ibv_qp *create(struct ibv_pd *pd, struct ibv_qp_init_attr *a, const uint64_t *ops)
{
	int ret = check_init(pd, a);
	struct ibv_qp_cap cap = a->cap;
	struct sn_qp *q = NULL;

	if (ret)
		goto err;
	/* the QP has no receive queue of its own then */
	if (a->srq || a->qp_type == IBV_QPT_XRC_SEND)
		cap.max_recv_wr = cap.max_recv_sge = 0;
	ret = ENOMEM;
	q = sn_qp_new(sn_ctx(pd->context)->dev, a->qp_type, &cap);
	if (!q)
		goto err;
	fill(q, pd, a);
	ret = ops ? sn_wr_offer(q, *ops) : 0;
	if (ret)
		goto err;
	ret = ENOMEM;
	sn_lock();
	if (!sn_qp_begin(q, pd->context)) {
		sn_unlock();
		goto err;
	}
	sn_pd_use(pd);
	sn_cq(a->send_cq)->users++;
	if (sn_ibqp(q)->recv_cq)
		sn_cq(a->recv_cq)->users++;
	if (q->srq)
		q->srq->users++;
	sn_unlock();
	a->cap = q->cap;
	return sn_ibqp(q);
err:
	if (q)
		sn_qp_free(q);
	errno = ret;
	return NULL;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	return create(pd, a, NULL);
}

struct ibv_qp *sn_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *a)
{
	const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

	if (a->qp_type == IBV_QPT_XRC_RECV)
		return sn_xrc_create_recv(c, a);
	if ((a->comp_mask & ~known) || !(a->comp_mask & IBV_QP_INIT_ATTR_PD) || a->pd->context != c ||
	    ((a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) && a->create_flags)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return create(a->pd, (struct ibv_qp_init_attr *)a,
		      a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS ? &a->send_ops_flags : NULL);
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct sn_qp *q = sn_qp(qp);

	if (sn_is_xrc_recv(q))
		return sn_xrc_destroy_recv(qp);
	sn_lock();
	sn_qp_end(q, qp->context);
	sn_cq_forget(sn_cq(qp->send_cq), q);
	sn_cq_forget(sn_cq(qp->recv_cq), q);
	sn_recv_drop(q);
	sn_async_settle(sn_ctx(qp->context), qp, &q->async_taken, &qp->events_completed, &qp->mutex);
	sn_pd_drop(qp->pd);
	sn_cq(qp->send_cq)->users--;
	if (qp->recv_cq)
		sn_cq(qp->recv_cq)->users--;
	if (q->srq)
		q->srq->users--;
	sn_unlock();
	if (q->build.offered)
		pthread_mutex_destroy(&q->build.lock);
	pthread_mutex_destroy(&qp->mutex);
	pthread_cond_destroy(&qp->cond);
	sn_qp_free(q);
	return 0;
}

/* ---- states ---- */

void sn_qp_reset(struct sn_qp *q)
{
	sn_cq_forget(sn_cq(sn_ibqp(q)->send_cq), q);
	sn_cq_forget(sn_cq(sn_ibqp(q)->recv_cq), q);
	q->sq.free = q->sq.una = q->sq.cur = q->sq.tail;
	q->sq.off = q->sq.reads = 0;
	q->sq.ack_at = q->sq.rnr_until = q->sq.departed = q->sq.last_due = 0;
	q->rq.free = q->rq.head = q->rq.tail;
	q->drain_wanted = false;
	sn_recv_drop(q);
	if (sn_is_xrc_recv(q))
		q->srq = NULL;
	memset(&q->rsp, 0, sizeof(q->rsp));
	q->peer_dev = -1;
	memset(&q->attr, 0, sizeof(q->attr));
}

void sn_qp_connect(struct sn_qp *q)
{
	q->mtu = sn_is_ud(q) ? SN_MTU : 128u << q->attr.path_mtu;
	/* UD sends each message somewhere else */
	q->dest_qpn = q->attr.dest_qp_num;
	q->peer_dev = sn_is_ud(q) ? -1 : sn_av_device(&q->attr.ah_attr);
	memset(&q->rsp, 0, sizeof(q->rsp));
	q->rsp.epsn = sn_psn(q->attr.rq_psn);
	q->since = sn_now();
}

void sn_qp_rts(struct sn_qp *q)
{
	q->sq.psn = q->sq.acked = sn_psn(q->attr.sq_psn);
	q->sq.retry_left = q->attr.retry_cnt;
	q->sq.rnr_left = q->attr.rnr_retry;
}

/* The values, as the kernel checks them; 0 or a positive errno. */
static int check_values(struct sn_qp *q, const struct ibv_qp_attr *a, int mask)
{
	if ((mask & IBV_QP_PORT) && a->port_num != 1)
		return EINVAL;
	if ((mask & IBV_QP_PKEY_INDEX) && a->pkey_index)
		return EINVAL;
	if ((mask & IBV_QP_AV) && sn_av_check(q->dev, &a->ah_attr))
		return EINVAL;
	if ((mask & IBV_QP_PATH_MTU) && (a->path_mtu < IBV_MTU_256 || a->path_mtu > IBV_MTU_4096))
		return EINVAL;
	if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) && a->max_rd_atomic > SN_MAX_RD_ATOMIC)
		return EINVAL;
	if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) && a->max_dest_rd_atomic > SN_MAX_RD_ATOMIC)
		return EINVAL;
	if (((mask & IBV_QP_TIMEOUT) && a->timeout > 31) || ((mask & IBV_QP_RETRY_CNT) && a->retry_cnt > 7) ||
	    ((mask & IBV_QP_RNR_RETRY) && a->rnr_retry > 7) ||
	    ((mask & IBV_QP_MIN_RNR_TIMER) && a->min_rnr_timer > 31) ||
	    ((mask & IBV_QP_DEST_QPN) && a->dest_qp_num > 0xffffff))
		return EINVAL;
	if (mask & (IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_RATE_LIMIT))
		return EOPNOTSUPP;
	return 0;
}

static void take_values(struct ibv_qp_attr *to, const struct ibv_qp_attr *a, int mask)
{
#define TAKE(bit, field)		\
	do {				\
		if (mask & (bit))	\
			to->field = a->field; \
	} while (0)
	TAKE(IBV_QP_PORT, port_num);
	TAKE(IBV_QP_PKEY_INDEX, pkey_index);
	TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
	TAKE(IBV_QP_QKEY, qkey);
	TAKE(IBV_QP_AV, ah_attr);
	TAKE(IBV_QP_PATH_MTU, path_mtu);
	TAKE(IBV_QP_TIMEOUT, timeout);
	TAKE(IBV_QP_RETRY_CNT, retry_cnt);
	TAKE(IBV_QP_RNR_RETRY, rnr_retry);
	TAKE(IBV_QP_RQ_PSN, rq_psn);
	TAKE(IBV_QP_SQ_PSN, sq_psn);
	TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	TAKE(IBV_QP_DEST_QPN, dest_qp_num);
#undef TAKE
}

static int modify(struct sn_qp *q, const struct ibv_qp_attr *a, int mask)
{
	enum ibv_qp_state to = mask & IBV_QP_STATE ? a->qp_state : q->state;
	int ret;

	if ((mask & IBV_QP_CUR_STATE) && a->cur_qp_state != q->state)
		return EINVAL;
	if (!sn_modify_ok(sn_ibqp(q)->qp_type, q->state, to, mask))
		return EINVAL;
	ret = check_values(q, a, mask);
	if (ret)
		return ret;
	if (to == IBV_QPS_ERR) {
		sn_qp_fail(q);
		return 0;
	}
	if (to == IBV_QPS_SQD && q->state == IBV_QPS_RTS)
		q->drain_wanted = (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) && a->en_sqd_async_notify;
	if (to == IBV_QPS_RTS)
		q->drain_wanted = false;
	take_values(&q->attr, a, mask);
	/* the driver chooses a port anew when the state changes, before it can be told to use another */
	if (to != q->state && sn_shared->devs[q->dev].lag)
		q->lag = (uint8_t)(1 + (sn_ibqp(q)->qp_num + (uint32_t)to) % sn_shared->devs[q->dev].lag);
	if (to == IBV_QPS_RESET)
		sn_qp_reset(q);
	if (to == IBV_QPS_RTR)
		sn_qp_connect(q);
	if (to == IBV_QPS_RTS && q->state == IBV_QPS_RTR)
		sn_qp_rts(q);
	q->state = to;
	if (to == IBV_QPS_RTS)
		sn_qp_ready(q);
	if (to == IBV_QPS_SQD)
		sn_requester_drained(q);
	return 0;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask)
{
	struct sn_qp *q = sn_qp_behind(qp);
	int ret = EIO;

	sn_lock();
	if (sn_ctx(qp->context)->epoch == sn_engine_epoch()) {
		ret = modify(q, a, sn_modify_mask(qp->qp_type, mask));
		if (!ret)
			qp->state = q->state;
		sn_engine_push();
	}
	sn_unlock();
	errno = ret ? ret : errno;
	return ret;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *init)
{
	struct sn_qp *q = sn_qp_behind(qp);

	(void)mask;
	sn_lock();
	*a = q->attr;
	a->qp_state = a->cur_qp_state = qp->state = q->state;
	a->path_mig_state = IBV_MIG_MIGRATED;
	a->cap = q->cap;
	a->sq_draining = q->state == IBV_QPS_SQD && q->sq.una != q->sq.tail && sn_wqe(&q->sq, q->sq.una)->numbered;
	if (q->state >= IBV_QPS_RTR)
		a->rq_psn = q->rsp.epsn;
	if (q->state >= IBV_QPS_RTS)
		a->sq_psn = q->sq.psn;
	memset(init, 0, sizeof(*init));
	init->qp_context = qp->qp_context;
	init->send_cq = qp->send_cq;
	init->recv_cq = qp->recv_cq;
	init->srq = qp->srq;
	init->cap = q->cap;
	init->qp_type = qp->qp_type;
	init->sq_sig_all = q->sig_all;
	sn_unlock();
	return 0;
}

/* Nothing is promised of the order within a message. */
int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	(void)qp, (void)op, (void)flags;
	return 0;
}

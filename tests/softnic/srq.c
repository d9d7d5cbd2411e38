// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Shared receive queues. */
#include <errno.h>
#include <stdlib.h>

#include "engine.h"
#include "packet.h"

static LIST_HEAD(, sn_srq) all = LIST_HEAD_INITIALIZER(all);

struct sn_srq *sn_srq_find(uint32_t dev, uint32_t num)
{
	struct sn_srq *s;

	LIST_FOREACH(s, &all, in_all)
		if (s->dev == dev && s->num == num && s->epoch == sn_engine_epoch())
			break;
	return s;
}

/* The lowest that is free. With the lock. */
static void give_number(struct sn_srq *s)
{
	uint32_t n = 1;

	while (sn_srq_find(s->dev, n))
		n++;
	s->num = n;
	LIST_INSERT_HEAD(&all, s, in_all);
}

struct ibv_srq *sn_srq_new(struct ibv_pd *pd, void *srq_context, struct ibv_srq_attr *a, struct ibv_xrcd *xrcd,
			   struct ibv_cq *cq)
{
	struct sn_srq *s = NULL;

	if (!a->max_wr || a->max_wr > SN_MAX_WR || a->max_sge > SN_MAX_SGE) {
		errno = EINVAL;
		return NULL;
	}
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	if (!a->max_sge)
		a->max_sge = 1;
	if (sn_rq_alloc(&s->rq, a->max_wr, a->max_sge)) {
		sn_rq_free(&s->rq);
		free(s);
		errno = ENOMEM;
		return NULL;
	}
	s->pd = sn_base_pd(pd);
	s->max_wr = a->max_wr;
	s->dev = sn_ctx(pd->context)->dev;
	s->epoch = sn_ctx(pd->context)->epoch;
	s->xrcd = xrcd;
	s->cq = sn_cq(cq);
	s->srq.context = pd->context;
	s->srq.srq_context = srq_context;
	s->srq.pd = pd;
	pthread_mutex_init(&s->srq.mutex, NULL);
	pthread_cond_init(&s->srq.cond, NULL);
	sn_lock();
	sn_pd_use(pd);
	if (xrcd) {
		s->domain = sn_xrcd_use(xrcd);
		s->cq->users++;
	}
	give_number(s);
	sn_unlock();
	return &s->srq;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *a)
{
	return sn_srq_new(pd, a->srq_context, &a->attr, NULL, NULL);
}

int sn_get_srq_num(struct ibv_srq *srq, uint32_t *num)
{
	*num = ((struct sn_srq *)srq)->num;
	return 0;
}

void sn_srq_forget(const struct ibv_context *c)
{
	struct sn_srq *s, *next;

	for (s = LIST_FIRST(&all); s; s = next) {
		next = LIST_NEXT(s, in_all);
		if (s->srq.context != c)
			continue;
		LIST_REMOVE(s, in_all);
		sn_qp_srq_gone(s);
	}
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	struct sn_srq *s = (struct sn_srq *)srq;

	sn_lock();
	if (s->users) {
		sn_unlock();
		return EBUSY;
	}
	LIST_REMOVE(s, in_all);
	if (s->xrcd) {
		sn_qp_srq_gone(s);
		sn_cq_forget_srq(s->cq, s);
		s->cq->users--;
		sn_xrcd_drop(s->xrcd);
	}
	sn_async_settle(sn_ctx(srq->context), srq, &s->async_taken, &srq->events_completed, &srq->mutex);
	sn_pd_drop(srq->pd);
	sn_unlock();
	pthread_mutex_destroy(&srq->mutex);
	pthread_cond_destroy(&srq->cond);
	sn_rq_free(&s->rq);
	free(s);
	return 0;
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *a, int mask)
{
	struct sn_srq *s = (struct sn_srq *)srq;

	/* as with most devices the size stays */
	if (mask & ~IBV_SRQ_LIMIT)
		return EINVAL;
	if (!(mask & IBV_SRQ_LIMIT))
		return 0;
	if (a->srq_limit > s->max_wr)
		return EINVAL;
	sn_lock();
	s->limit = a->srq_limit;
	sn_srq_check_limit(s);
	sn_unlock();
	return 0;
}

int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *a)
{
	struct sn_srq *s = (struct sn_srq *)srq;

	sn_lock();
	a->max_wr = s->max_wr;
	a->max_sge = s->rq.max_sge;
	a->srq_limit = s->limit;
	sn_unlock();
	return 0;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Shared receive queues. */
#include <errno.h>
#include <stdlib.h>

#include "engine.h"
#include "packet.h"

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *a)
{
	struct sn_srq *s = NULL;

	if (!a->attr.max_wr || a->attr.max_wr > SN_MAX_WR || a->attr.max_sge > SN_MAX_SGE) {
		errno = EINVAL;
		return NULL;
	}
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	if (!a->attr.max_sge)
		a->attr.max_sge = 1;
	if (sn_rq_alloc(&s->rq, a->attr.max_wr, a->attr.max_sge)) {
		sn_rq_free(&s->rq);
		free(s);
		errno = ENOMEM;
		return NULL;
	}
	s->pd = sn_base_pd(pd);
	s->max_wr = a->attr.max_wr;
	s->srq.context = pd->context;
	s->srq.srq_context = a->srq_context;
	s->srq.pd = pd;
	pthread_mutex_init(&s->srq.mutex, NULL);
	pthread_cond_init(&s->srq.cond, NULL);
	sn_lock();
	sn_pd_use(pd);
	sn_unlock();
	return &s->srq;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	struct sn_srq *s = (struct sn_srq *)srq;

	sn_lock();
	if (s->users) {
		sn_unlock();
		return EBUSY;
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

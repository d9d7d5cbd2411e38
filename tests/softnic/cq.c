// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Completion queues and their channels. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "adverse.h"
#include "engine.h"
#include "packet.h"
#include "place.h"

/* ---- channels: the eventfd counts the events, the list says of which CQs they are ---- */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct sn_channel *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->ch.context = context;
	TAILQ_INIT(&c->raised);
	c->ch.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	if (c->ch.fd >= 0)
		return &c->ch;
	free(c);
	return NULL;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ch)
{
	int users;

	sn_lock();
	users = ch->refcnt;
	sn_unlock();
	if (users)
		return EBUSY;
	close(ch->fd);
	free(ch);
	return 0;
}

void sn_count_event(int fd)
{
	uint64_t one = 1;

	/* fails only when 2^64 - 2 events wait */
	if (write(fd, &one, sizeof(one)) != sizeof(one))
		sn_say("event lost: %m");
}

static void raise_event(struct sn_cq *cq)
{
	cq->armed = SN_UNARMED;
	if (!cq->channel)
		return;
	if (!cq->raised++)
		TAILQ_INSERT_TAIL(&cq->channel->raised, cq, in_channel);
	sn_count_event(cq->channel->ch.fd);
}

int ibv_get_cq_event(struct ibv_comp_channel *ibch, struct ibv_cq **cq, void **cq_context)
{
	struct sn_channel *ch = (struct sn_channel *)ibch;
	struct sn_cq *c = NULL;
	uint64_t n;

	sn_engine_take_over();
	while (!c) {
		if (read(ibch->fd, &n, sizeof(n)) != sizeof(n))
			return -1;
		sn_lock();
		/* none: its CQ was destroyed meanwhile */
		c = TAILQ_FIRST(&ch->raised);
		if (c) {
			TAILQ_REMOVE(&ch->raised, c, in_channel);
			if (--c->raised)
				TAILQ_INSERT_TAIL(&ch->raised, c, in_channel);
			c->taken++;
			*cq = &c->cq;
			*cq_context = c->cq.cq_context;
		}
		sn_unlock();
	}
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
	sn_lock();
	/* as libibverbs: see taken_of() in async.c */
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += n;
	pthread_mutex_unlock(&cq->mutex);
	pthread_cond_broadcast(&sn_acknowledged);
	sn_unlock();
}

/* ---- completion queues ---- */

struct sn_cq *sn_cq_new(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
			uint32_t vector)
{
	struct sn_cq *c;

	if (cqe < 1 || cqe > SN_MAX_CQE || vector >= (uint32_t)context->num_comp_vectors) {
		errno = EINVAL;
		return NULL;
	}
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->size = (uint32_t)cqe;
	c->ring = calloc(c->size, sizeof(*c->ring));
	if (!c->ring) {
		free(c);
		return NULL;
	}
	c->cq.context = context;
	c->cq.channel = channel;
	c->channel = (struct sn_channel *)channel;
	c->cq.cq_context = cq_context;
	c->cq.cqe = cqe;
	pthread_mutex_init(&c->cq.mutex, NULL);
	pthread_cond_init(&c->cq.cond, NULL);
	pthread_mutex_init(&c->polling, NULL);
	sn_lock();
	if (channel)
		channel->refcnt++;
	sn_unlock();
	return c;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
			     int comp_vector)
{
	struct sn_cq *c = sn_cq_new(context, cqe, cq_context, channel, (uint32_t)comp_vector);

	return c ? &c->cq : NULL;
}

int ibv_destroy_cq(struct ibv_cq *ibcq)
{
	struct sn_cq *c = sn_cq(ibcq);

	sn_lock();
	if (c->users) {
		sn_unlock();
		return EBUSY;
	}
	if (c->channel) {
		if (c->raised)
			TAILQ_REMOVE(&c->channel->raised, c, in_channel);
		c->raised = 0;
		c->channel->ch.refcnt--;
	}
	while (!sn_acked(&c->taken, &ibcq->comp_events_completed, &ibcq->mutex))
		sn_wait_unlocked(&sn_acknowledged);
	sn_async_settle(sn_ctx(ibcq->context), ibcq, &c->async_taken, &ibcq->async_events_completed, &ibcq->mutex);
	sn_unlock();
	pthread_mutex_destroy(&ibcq->mutex);
	pthread_cond_destroy(&ibcq->cond);
	pthread_mutex_destroy(&c->polling);
	free(c->ring);
	free(c);
	return 0;
}

int ibv_resize_cq(struct ibv_cq *ibcq, int cqe)
{
	struct sn_cq *c = sn_cq(ibcq);
	struct sn_cqe *ring;
	int ret = EINVAL;

	if (cqe < 1 || cqe > SN_MAX_CQE)
		return EINVAL;
	ring = calloc((size_t)cqe, sizeof(*ring));
	if (!ring)
		return ENOMEM;
	sn_lock();
	if (c->count + c->held <= (uint32_t)cqe) {
		for (uint32_t i = 0; i < c->count; i++)
			ring[i] = c->ring[(c->head + i) % c->size];
		free(c->ring);
		c->ring = ring;
		c->head = 0;
		c->size = (uint32_t)cqe;
		ibcq->cqe = cqe;
		ring = NULL;
		ret = 0;
	}
	sn_unlock();
	free(ring);
	return ret;
}

static uint64_t wall_clock(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Its QPs fail when the engine looks at their timers: their queues must not change under the caller. */
static void overrun(struct sn_cq *c)
{
	c->overrun = true;
	sn_say("a completion queue of %u overruns: it gives nothing more", c->size);
	sn_async_raise(sn_ctx(c->cq.context), IBV_EVENT_CQ_ERR, &c->cq);
	sn_timer_at(0);
}

void sn_cq_push(struct sn_cq *c, const struct sn_cqe *cqe)
{
	struct sn_cqe *e;

	if (c->overrun || sn_adverse_complete(c, cqe))
		return;
	sn_place_push(sn_ctx(c->cq.context)->dev);
	if (c->count + c->held == c->size) {
		if (!c->ignore_overrun)
			overrun(c);
		return;
	}
	e = &c->ring[(c->head + c->count) % c->size];
	*e = *cqe;
	if (c->stamps) {
		e->stamp = sn_now();
		e->wall = wall_clock();
	}
	c->count++;
	if (c->armed == SN_ARMED || (c->armed == SN_ARMED_SOLICITED && (cqe->solicited || cqe->wc.status)))
		raise_event(c);
}

/* Only now is there room again for what was posted up to here. */
static void free_slot(const struct sn_cqe *e)
{
	if (e->srq)
		e->srq->rq.free++;
	else if (e->recv)
		e->qp->rq.free = e->slot;
	else
		e->qp->sq.free = e->slot;
}

/* Those of a QP or of an SRQ. */
static void forget(struct sn_cq *c, const struct sn_qp *q, const struct sn_srq *s)
{
	uint32_t kept = 0;

	sn_adverse_settle(c);
	for (uint32_t i = 0; i < c->count; i++) {
		const struct sn_cqe *e = &c->ring[(c->head + i) % c->size];

		if (s ? e->srq != s : e->qp != q)
			c->ring[(c->head + kept++) % c->size] = *e;
		else if (e->srq)
			free_slot(e);
	}
	c->count = kept;
}

void sn_cq_forget(struct sn_cq *c, const struct sn_qp *q)
{
	if (c)
		forget(c, q, NULL);
}

void sn_cq_forget_srq(struct sn_cq *c, const struct sn_srq *s)
{
	forget(c, NULL, s);
}

bool sn_cq_take(struct sn_cq *c, struct sn_cqe *cqe)
{
	if (!c->count)
		return false;
	*cqe = c->ring[c->head];
	free_slot(cqe);
	c->head = (c->head + 1) % c->size;
	c->count--;
	return true;
}

int sn_poll_cq(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	struct sn_cq *c = sn_cq(ibcq);
	struct sn_cqe e;
	int got = 0;

	if (n > 1 && sn_shared->adverse)
		n = 1;
	if (!c->count)
		sn_engine_poll();
	if (!c->count)
		return 0;
	sn_lock();
	if (c->overrun) {
		sn_unlock();
		return -1;
	}
	for (; got < n && sn_cq_take(c, &e); got++)
		wc[got] = e.wc;
	sn_unlock();
	sn_polled(0);
	return got;
}

/* Only what comes from now on raises an event; what is there already does not. */
int sn_req_notify_cq(struct ibv_cq *ibcq, int solicited)
{
	struct sn_cq *c = sn_cq(ibcq);

	sn_lock();
	if (!solicited || c->armed == SN_ARMED)
		c->armed = SN_ARMED;
	else
		c->armed = SN_ARMED_SOLICITED;
	sn_unlock();
	sn_engine_take_over();
	return 0;
}

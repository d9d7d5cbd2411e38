// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Asynchronous events. */
#define _GNU_SOURCE /* preadv2 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "engine.h"

struct sn_async {
	STAILQ_ENTRY(sn_async) next;
	struct ibv_async_event ev;
};

pthread_cond_t sn_acknowledged = PTHREAD_COND_INITIALIZER;

void sn_async_raise(struct sn_ctx *c, enum ibv_event_type type, void *element)
{
	struct sn_async *a = calloc(1, sizeof(*a));

	if (!a) {
		sn_say("out of memory, an event is lost");
		return;
	}
	a->ev.event_type = type;
	a->ev.element.qp = element;
	STAILQ_INSERT_TAIL(&c->asyncs, a, next);
	sn_count_event(c->v.context.async_fd);
}

/*
 * Counters of the object that the event is of: NULL, it is of none that goes. What is completed is changed with the object's
 * mutex, as in libibverbs: both are in its headers, and others count there, too.
 */
static uint32_t *taken_of(const struct ibv_async_event *ev, uint32_t **completed, pthread_mutex_t **mutex)
{
	switch (ev->event_type) {
	case IBV_EVENT_CQ_ERR:
		*completed = &ev->element.cq->async_events_completed;
		*mutex = &ev->element.cq->mutex;
		return &sn_cq(ev->element.cq)->async_taken;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		*completed = &ev->element.qp->events_completed;
		*mutex = &ev->element.qp->mutex;
		return &sn_qp(ev->element.qp)->async_taken;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		*completed = &ev->element.srq->events_completed;
		*mutex = &ev->element.srq->mutex;
		return &((struct sn_srq *)ev->element.srq)->async_taken;
	default:
		return NULL;
	}
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *ev)
{
	struct sn_ctx *c = sn_ctx(context);
	struct sn_async *a = NULL;
	uint32_t *taken, *completed;
	pthread_mutex_t *mutex;
	uint64_t n;

	while (!a) {
		if (read(context->async_fd, &n, sizeof(n)) != sizeof(n))
			return -1;
		sn_lock();
		/* none: its object was destroyed meanwhile */
		a = STAILQ_FIRST(&c->asyncs);
		if (a) {
			STAILQ_REMOVE_HEAD(&c->asyncs, next);
			*ev = a->ev;
			taken = taken_of(ev, &completed, &mutex);
			if (taken)
				++*taken;
		}
		sn_unlock();
	}
	free(a);
	return 0;
}

void ibv_ack_async_event(struct ibv_async_event *ev)
{
	pthread_mutex_t *mutex;
	uint32_t *completed;

	sn_lock();
	if (taken_of(ev, &completed, &mutex)) {
		pthread_mutex_lock(mutex);
		++*completed;
		pthread_mutex_unlock(mutex);
	}
	pthread_cond_broadcast(&sn_acknowledged);
	sn_unlock();
}

void sn_async_drop(struct sn_ctx *c)
{
	struct sn_async *a;

	while ((a = STAILQ_FIRST(&c->asyncs))) {
		STAILQ_REMOVE_HEAD(&c->asyncs, next);
		free(a);
	}
}

bool sn_acked(const uint32_t *taken, const uint32_t *completed, pthread_mutex_t *mutex)
{
	bool all;

	pthread_mutex_lock(mutex);
	all = *taken == *completed;
	pthread_mutex_unlock(mutex);
	return all;
}

/* One event less, which nobody read: nobody may see the file readable for it any more. Who has read already finds none. */
static void uncount(int fd)
{
	uint64_t n;
	struct iovec v = { &n, sizeof(n) };

	/* the file may block, and another thread be about to read it */
	if (preadv2(fd, &v, 1, -1, RWF_NOWAIT) < 0 && errno != EAGAIN)
		sn_say("an event that is gone is still seen: %s", strerror(errno));
}

void sn_async_settle(struct sn_ctx *c, void *element, const uint32_t *taken, const uint32_t *completed,
		     pthread_mutex_t *mutex)
{
	struct sn_async *a, *next;

	for (a = STAILQ_FIRST(&c->asyncs); a; a = next) {
		next = STAILQ_NEXT(a, next);
		if (a->ev.element.qp != element)
			continue;
		STAILQ_REMOVE(&c->asyncs, a, sn_async, next);
		free(a);
		uncount(c->v.context.async_fd);
	}
	while (!sn_acked(taken, completed, mutex))
		sn_wait_unlocked(&sn_acknowledged);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Completion channels. A completion that is held back becomes deliverable when a sibling is done, and of that the
 * kernel knows nothing. So the program gets a shadow of its channel: an ibv_comp_channel whose fd is an epoll over
 * the real channel's fd and an eventfd, which is readable while events of our own wait.
 *
 * A completion that is held also has an event of the kernel, too early. From the time on when twins exist for a QP of one of
 * its CQs, the channel is watched: the real fd is not in that epoll any more, chanwatch.c sleeps on it, and what is
 * taken from there is looked at (arm.c) or, of other CQs, passed on through a list.
 */
#include "channel_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define KERNEL_RUN 16 /* events of the kernel in a row before one of ours has its turn */

static struct dp_hmap shadows = DP_HMAP_INIT; /* ibv_comp_channel pointer -> struct dp_channel */
static dp_lock shadows_lock = PTHREAD_MUTEX_INITIALIZER;

static void unlock_one(void *val, void *arg)
{
	(void)arg;
	dp_lock_init(&((struct dp_channel *)val)->lock);
}

void dp_channel_after_fork(void)
{
	dp_lock_init(&shadows_lock);
	dp_lock_init(&shadows.lock);
	dp_hmap_each(&shadows, unlock_one, NULL);
}

const struct dp_verbs *dp_channel_verbs(struct ibv_context *ctx)
{
	struct dp_ctx *c = dp_ctx_find(ctx);

	return c ? c->real : dp_stub->real_of(ctx);
}

struct dp_channel *dp_channel_hold(struct ibv_comp_channel *channel)
{
	struct dp_channel *ch;

	if (!dp_hmap_getp(&shadows, channel))
		return NULL;
	dp_take(&shadows_lock);
	ch = dp_hmap_getp(&shadows, channel);
	if (ch)
		ch->refs++;
	dp_drop(&shadows_lock);
	return ch;
}

void dp_channel_put(struct dp_channel *ch)
{
	unsigned left;

	dp_take(&shadows_lock);
	left = --ch->refs;
	dp_drop(&shadows_lock);
	if (left)
		return;
	close(ch->efd);
	dp_lock_fini(&ch->lock);
	free(ch);
}

static int watch_fd(int epfd, int fd)
{
	struct epoll_event ev = { .events = EPOLLIN };

	return epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev);
}

/* NULL with errno set: it cannot be made. */
static struct dp_channel *make_shadow(struct ibv_comp_channel *real, const struct dp_verbs *verbs)
{
	struct dp_channel *ch = calloc(1, sizeof(*ch));
	int flags = fcntl(real->fd, F_GETFL), err;

	if (!ch)
		return NULL;
	ch->shadow.context = real->context;
	ch->real = real;
	ch->real_fd = real->fd;
	ch->verbs = verbs;
	ch->raised_tail = &ch->raised;
	ch->passed_tail = &ch->passed;
	ch->refs = 1;
	dp_lock_init(&ch->lock);
	ch->efd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ch->shadow.fd = epoll_create1(EPOLL_CLOEXEC);
	if (ch->efd < 0 || ch->shadow.fd < 0 || watch_fd(ch->shadow.fd, ch->efd) ||
	    watch_fd(ch->shadow.fd, real->fd) || flags < 0)
		goto err;
	err = dp_hmap_put(&shadows, (uintptr_t)&ch->shadow, ch);
	if (err) {
		errno = -err;
		goto err;
	}
	/* last: a channel that the program gets without a shadow blocks as it should */
	if (!fcntl(real->fd, F_SETFL, flags | O_NONBLOCK))
		return ch;
	err = errno;
	dp_hmap_del(&shadows, (uintptr_t)&ch->shadow);
	errno = err;
err:
	err = errno;
	if (ch->efd >= 0)
		close(ch->efd);
	if (ch->shadow.fd >= 0)
		close(ch->shadow.fd);
	dp_lock_fini(&ch->lock);
	free(ch);
	errno = err;
	return NULL;
}

struct ibv_comp_channel *dp_create_comp_channel(struct ibv_context *ctx)
{
	struct dp_ctx *c = dp_ctx_get(ctx);
	const struct dp_verbs *verbs = c ? c->real : dp_stub->real_of(ctx);
	struct ibv_comp_channel *real = verbs->create_comp_channel(ctx);
	struct dp_channel *ch;

	if (!real || !c || !c->grouped)
		return real;
	ch = make_shadow(real, verbs);
	if (!ch) {
		dp_warn("%s: completion channel: %s; what completes into it uses one port", c->dev, strerror(errno));
		return real;
	}
	return &ch->shadow;
}

int dp_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	struct dp_channel *ch = dp_channel_hold(channel);
	bool watched;
	int ret;

	if (!ch)
		return dp_channel_verbs(channel->context)->destroy_comp_channel(channel);
	watched = atomic_load_explicit(&ch->watched, memory_order_relaxed);
	if (watched)
		dp_chanwatch_del(ch->real_fd);
	dp_take(&ch->lock);
	/* EBUSY while CQs are attached: the real one counts them, they were created with it */
	ret = ch->dead ? EINVAL : ch->verbs->destroy_comp_channel(ch->real);
	if (!ret)
		ch->dead = true;
	else if (watched && !ch->dead && dp_chanwatch_add(ch->real_fd, channel))
		dp_warn("completion channel: events are found only in get_cq_event");
	dp_drop(&ch->lock);
	if (!ret) {
		dp_hmap_del(&shadows, (uintptr_t)channel);
		close(ch->shadow.fd);
		dp_channel_put(ch);
	}
	dp_channel_put(ch);
	return ret;
}

struct ibv_comp_channel *dp_channel_real(struct ibv_comp_channel *channel, struct dp_channel **shadow)
{
	*shadow = channel ? dp_hmap_getp(&shadows, channel) : NULL;
	return *shadow ? (*shadow)->real : channel;
}

void dp_channel_attach_plain(struct dp_channel *ch, struct ibv_cq *cq)
{
	dp_take(&shadows_lock);
	ch->shadow.refcnt++;
	dp_drop(&shadows_lock);
	cq->channel = &ch->shadow;
}

/* With the channel's lock held, both. */
static void off(struct dp_channel *ch, struct ibv_cq *cq)
{
	/* the real destroy_cq counts down cq->channel->refcnt, under a mutex of libibverbs */
	cq->channel = ch->real;
	dp_take(&shadows_lock);
	ch->shadow.refcnt--;
	dp_drop(&shadows_lock);
}

static bool push(struct dp_channel *ch, struct dp_cq *cq)
{
	const uint64_t one = 1;

	if (cq->raised)
		return false;
	cq->raised = true;
	cq->raised_next = NULL;
	*ch->raised_tail = cq;
	ch->raised_tail = &cq->raised_next;
	if (write(ch->efd, &one, sizeof(one)) != sizeof(one))
		dp_warn("completion channel: eventfd: %s", strerror(errno));
	return true;
}

bool dp_channel_push(struct dp_cq *cq)
{
	struct dp_channel *ch = cq->channel;
	/* write(2) is a cancellation point, and a thread must not end here with the lock */
	int cancel = dp_no_cancel();
	bool pushed;

	dp_take(&ch->lock);
	pushed = cq->cq->channel == &ch->shadow && push(ch, cq);
	dp_drop(&ch->lock);
	dp_cancel_as(cancel);
	return pushed;
}

void dp_channel_attach(struct dp_channel *ch, struct dp_cq *cq)
{
	dp_take(&ch->lock);
	cq->channel = ch;
	dp_channel_attach_plain(ch, cq->cq);
	if (cq->owed)
		push(ch, cq);
	cq->owed = false;
	dp_drop(&ch->lock);
}

/* With the channel's lock held: after something was taken off its lists. */
static void lower(struct dp_channel *ch)
{
	uint64_t n;

	if (!ch->raised && !ch->passed && read(ch->efd, &n, sizeof(n)) != sizeof(n))
		dp_warn("completion channel: eventfd: %s", strerror(errno));
}

/* With the channel's lock held. Whether there was an event of ours. */
static bool take_back_event(struct dp_channel *ch, struct dp_cq *cq)
{
	struct dp_cq **p;

	if (!cq->raised)
		return false;
	for (p = &ch->raised; *p != cq; p = &(*p)->raised_next)
		;
	*p = cq->raised_next;
	if (ch->raised_tail == &cq->raised_next)
		ch->raised_tail = p;
	cq->raised = false;
	lower(ch);
	return true;
}

bool dp_channel_pull(struct dp_cq *cq)
{
	struct dp_channel *ch = cq->channel;
	int cancel = dp_no_cancel();
	bool ours;

	dp_take(&ch->lock);
	ours = take_back_event(ch, cq);
	if (ours) {
		ch->pulled = cq;
		ch->pulled_arms = atomic_load(&cq->arms);
	}
	dp_drop(&ch->lock);
	dp_cancel_as(cancel);
	return ours;
}

/* The same for events of the kernel that the program has not got, as the kernel does with those of a CQ that goes. */
static bool take_back_passed(struct dp_channel *ch, struct ibv_cq *cq)
{
	struct passed **p = &ch->passed, *e;
	bool any = false;

	while ((e = *p)) {
		if (e->cq != cq) {
			p = &e->next;
			continue;
		}
		*p = e->next;
		free(e);
		ch->verbs->ack_cq_events(cq, 1);
		any = true;
	}
	ch->passed_tail = p;
	if (any)
		lower(ch);
	return any;
}

/* cq->channel and owed stay, so that a CQ whose real destroy_cq fails can be attached again. */
void dp_channel_detach(struct dp_cq *cq)
{
	struct dp_channel *ch = cq->channel;
	bool ours;
	int cancel;

	if (!ch)
		return;
	cancel = dp_no_cancel();
	dp_take(&ch->lock);
	off(ch, cq->cq);
	if (ch->pulled == cq)
		ch->pulled = NULL;
	ours = take_back_event(ch, cq);
	cq->owed = take_back_passed(ch, cq->cq) || ours;
	dp_drop(&ch->lock);
	dp_cancel_as(cancel);
}

struct dp_channel *dp_channel_detach_plain(struct ibv_cq *cq)
{
	struct dp_channel *ch = cq->channel ? dp_hmap_getp(&shadows, cq->channel) : NULL;
	int cancel;

	if (!ch)
		return NULL;
	cancel = dp_no_cancel();
	dp_take(&ch->lock);
	off(ch, cq);
	take_back_passed(ch, cq);
	dp_drop(&ch->lock);
	dp_cancel_as(cancel);
	return ch;
}

void dp_channel_watch(struct dp_cq *cq)
{
	struct dp_channel *ch = cq->channel;
	int ret = 0;

	if (!ch)
		return;
	dp_take(&ch->lock);
	if (!ch->dead && !atomic_load_explicit(&ch->watched, memory_order_relaxed)) {
		ret = dp_chanwatch_add(ch->real_fd, &ch->shadow);
		if (!ret) {
			epoll_ctl(ch->shadow.fd, EPOLL_CTL_DEL, ch->real_fd, NULL);
			atomic_store_explicit(&ch->watched, true, memory_order_relaxed);
		}
	}
	dp_drop(&ch->lock);
	if (ret)
		dp_warn("completion channel: %s; it may wake the program too early", strerror(-ret));
}

/* Takes one event of the kernel and does with it what is to be done. False: there is none. */
static bool pump_one(struct dp_channel *ch)
{
	struct passed *e = malloc(sizeof(*e));
	struct dp_cq *q = NULL;
	const uint64_t one = 1;
	struct ibv_cq *cq;
	void *cq_context;
	uint32_t arms;
	bool looked_at;

	/* what is taken must be kept, so it stays where it is */
	if (!e)
		return false;
	dp_take(&ch->lock);
	errno = EAGAIN;
	if (ch->dead || ch->verbs->get_cq_event(ch->real, &cq, &cq_context)) {
		/* of a device that is gone: readable for ever */
		if (errno != EAGAIN && errno != EINTR)
			dp_chanwatch_mute(ch->real_fd);
		dp_drop(&ch->lock);
		free(e);
		return false;
	}
	/* until the event is acknowledged, the CQ cannot go, and so its record */
	q = dp_cq_find(cq);
	if (q && q->channel != ch)
		q = NULL;
	looked_at = q && dp_cq_holds(q);
	arms = q ? atomic_load(&q->arms) : 0;
	if (!looked_at && cq->channel == &ch->shadow && (!q || dp_arm_passes(q, take_back_event(ch, q)))) {
		e->cq = cq;
		e->next = NULL;
		*ch->passed_tail = e;
		ch->passed_tail = &e->next;
		e = NULL;
		if (write(ch->efd, &one, sizeof(one)) != sizeof(one))
			dp_warn("completion channel: eventfd: %s", strerror(errno));
	}
	dp_drop(&ch->lock);
	if (!e)
		return true;
	if (looked_at)
		dp_arm_kernel(q, arms);
	ch->verbs->ack_cq_events(cq, 1);
	free(e);
	return true;
}

void dp_channel_pump(struct ibv_comp_channel *shadow)
{
	struct dp_channel *ch = dp_channel_hold(shadow);
	int cancel;

	if (!ch)
		return;
	cancel = dp_no_cancel();
	if (atomic_load_explicit(&ch->watched, memory_order_relaxed))
		while (pump_one(ch))
			;
	dp_cancel_as(cancel);
	dp_channel_put(ch);
}

/* Gives one of ours to the program; with the channel's lock held. */
static void give_ours(struct dp_cq *q, struct ibv_cq **cq, void **cq_context)
{
	/*
	 * destroy_cq waits until as many events were acknowledged as the kernel has given. The program will
	 * acknowledge this one, too, which the kernel never gave: so it is taken off in advance, and destroy_cq
	 * waits for exactly the events that the program got, of both kinds, as it would if all were the kernel's.
	 */
	pthread_mutex_lock(&q->cq->mutex);
	q->cq->comp_events_completed--;
	pthread_mutex_unlock(&q->cq->mutex);
	*cq = q->cq;
	*cq_context = q->cq->cq_context;
}

/* Takes an event of ours; with the channel's lock held. 0 or -EAGAIN. */
static int take_ours(struct dp_channel *ch, struct ibv_cq **cq, void **cq_context)
{
	struct dp_cq *q = ch->raised;

	if (!q)
		return -EAGAIN;
	take_back_event(ch, q);
	ch->kernel_run = 0;
	give_ours(q, cq, cq_context);
	return 0;
}

/* Takes an event of the kernel; with the channel's lock held. 0 or -errno, -EAGAIN if there is none. */
static int take_kernels(struct dp_channel *ch, struct ibv_cq **cq, void **cq_context)
{
	for (;;) {
		struct dp_cq *q;

		errno = 0;
		if (ch->verbs->get_cq_event(ch->real, cq, cq_context))
			return errno ? -errno : -EIO;
		/* until the event is acknowledged, the CQ cannot go, and so its record */
		q = dp_cq_find(*cq);
		if (!q || q->channel != ch)
			break;
		if (dp_arm_passes(q, take_back_event(ch, q)))
			break;
		ch->verbs->ack_cq_events(*cq, 1);
	}
	ch->kernel_run++;
	return 0;
}

/* One that was passed on, likewise. */
static int take_passed(struct dp_channel *ch, struct ibv_cq **cq, void **cq_context)
{
	struct passed *e = ch->passed;

	if (!e)
		return -EAGAIN;
	ch->passed = e->next;
	if (!e->next)
		ch->passed_tail = &ch->passed;
	lower(ch);
	*cq = e->cq;
	*cq_context = e->cq->cq_context;
	free(e);
	ch->kernel_run++;
	return 0;
}

/*
 * The program may have seen the fd readable for an event that a poll of the CQ took back, and then blocked for ever: it gets
 * that event after all, as from a ConnectX, though not a second one for its arm. But not at once: one that arms before it
 * polls, never looks at the fd and counts on a completion for each event (ib_read_lat -e) is about to get its next one.
 */
bool dp_channel_take_pulled(struct dp_channel *ch, struct ibv_cq **cq, void **cq_context)
{
	struct dp_cq *q;

	dp_take(&ch->lock);
	q = ch->pulled;
	ch->pulled = NULL;
	if (q && atomic_load(&q->arms) == ch->pulled_arms && !dp_arm_spend(q))
		q = NULL;
	if (q)
		give_ours(q, cq, cq_context);
	dp_drop(&ch->lock);
	return q;
}

int dp_channel_take(struct dp_channel *ch, struct ibv_cq **cq, void **cq_context)
{
	bool watched = atomic_load_explicit(&ch->watched, memory_order_relaxed);
	int ret = -EAGAIN;

	/* not left to the thread: an event is there as soon as its completion is */
	if (watched)
		while (pump_one(ch))
			;
	dp_take(&ch->lock);
	if (ch->dead)
		ret = -EBADF;
	/* the kernel's first: it stands for ours on the same CQ, too */
	else if (ch->kernel_run < KERNEL_RUN || (ret = take_ours(ch, cq, cq_context)) == -EAGAIN)
		ret = watched ? take_passed(ch, cq, cq_context) : take_kernels(ch, cq, cq_context);
	if (ret == -EAGAIN)
		ret = take_ours(ch, cq, cq_context);
	if (!ret)
		ch->pulled = NULL;
	dp_drop(&ch->lock);
	return ret;
}

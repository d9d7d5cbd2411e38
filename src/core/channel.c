// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Completion channels. A completion that is held back becomes deliverable when a sibling is done, and of that the
 * kernel knows nothing. So the program gets a shadow of its channel: an ibv_comp_channel whose fd is an epoll over
 * the real channel's fd and an eventfd, which is readable while events of our own wait.
 *
 * dp_cq.armed goes
 *	any     -> ARM_ANY, ARM_SOLICITED	by req_notify_cq
 *	ARM_ANY -> ARM_SPENT			by an event of ours
 *	any     -> ARM_NONE			by an event of the kernel
 * An event of ours leaves the kernel's arm as it is. Its event, if it comes before the program has armed again,
 * would be the second one for one arm: it is swallowed.
 */
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { ARM_NONE, ARM_ANY, ARM_SOLICITED, ARM_SPENT };

#define KERNEL_RUN 16 /* events of the kernel in a row before one of ours has its turn */

struct dp_channel {
	struct ibv_comp_channel shadow; /* what the program sees; refcnt with shadows_lock */
	struct ibv_comp_channel *real;	/* its fd does not block; gone once dead is set */
	const struct dp_verbs *verbs;
	int efd;
	dp_lock lock;
	bool dead;
	struct dp_cq *raised, **raised_tail; /* CQs with an event of ours, oldest first */
	unsigned kernel_run;
	unsigned refs; /* one of the program, one of each thread inside dp_get_cq_event(); shadows_lock */
};

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

static const struct dp_verbs *real_of(struct ibv_context *ctx)
{
	struct dp_ctx *c = dp_ctx_find(ctx);

	return c ? c->real : dp_stub->real_of(ctx);
}

static struct dp_channel *hold(struct ibv_comp_channel *channel)
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

static void put(struct dp_channel *ch)
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
	ch->verbs = verbs;
	ch->raised_tail = &ch->raised;
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
	struct dp_channel *ch = hold(channel);
	int ret;

	if (!ch)
		return real_of(channel->context)->destroy_comp_channel(channel);
	dp_take(&ch->lock);
	/* EBUSY while CQs are attached: the real one counts them, they were created with it */
	ret = ch->dead ? EINVAL : ch->verbs->destroy_comp_channel(ch->real);
	if (!ret)
		ch->dead = true;
	dp_drop(&ch->lock);
	if (!ret) {
		dp_hmap_del(&shadows, (uintptr_t)channel);
		close(ch->shadow.fd);
		put(ch);
	}
	put(ch);
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

struct dp_channel *dp_channel_detach_plain(struct ibv_cq *cq)
{
	struct dp_channel *ch;

	/* the real destroy_cq counts down cq->channel->refcnt, under a mutex of libibverbs */
	cq->channel = dp_channel_real(cq->channel, &ch);
	if (!ch)
		return NULL;
	dp_take(&shadows_lock);
	ch->shadow.refcnt--;
	dp_drop(&shadows_lock);
	return ch;
}

void dp_channel_attach(struct dp_channel *ch, struct dp_cq *cq)
{
	dp_take(&ch->lock);
	cq->channel = ch;
	dp_channel_attach_plain(ch, cq->cq);
	dp_drop(&ch->lock);
}

/* With the channel's lock held. Whether there was an event of ours. */
static bool take_back_event(struct dp_channel *ch, struct dp_cq *cq)
{
	struct dp_cq **p;
	uint64_t n;

	if (!cq->raised)
		return false;
	for (p = &ch->raised; *p != cq; p = &(*p)->raised_next)
		;
	*p = cq->raised_next;
	if (ch->raised_tail == &cq->raised_next)
		ch->raised_tail = p;
	cq->raised = false;
	if (!ch->raised && read(ch->efd, &n, sizeof(n)) != sizeof(n))
		dp_warn("completion channel: eventfd: %s", strerror(errno));
	return true;
}

/* cq->channel stays, so that a CQ whose real destroy_cq fails can be attached again. */
void dp_channel_detach(struct dp_cq *cq)
{
	struct dp_channel *ch = cq->channel;
	int cancel, spent = ARM_SPENT;

	if (!ch)
		return;
	cancel = dp_no_cancel();
	dp_take(&ch->lock);
	dp_channel_detach_plain(cq->cq);
	if (take_back_event(ch, cq))
		atomic_compare_exchange_strong(&cq->armed, &spent, ARM_ANY);
	dp_drop(&ch->lock);
	dp_cancel_as(cancel);
}

/*
 * Memory order: a completion may become deliverable while the program arms. Here and in dp_req_notify_cq() armed
 * is changed by a read-modify-write, also where its value stays, so that one of the two comes first. If the arm
 * does, it is seen here and makes the event. If this does, the arm acquires what is released here, so the poll
 * that has to follow an arm finds the completion. A mere load here could miss both.
 */
static void raise_event(struct dp_cq *cq, bool solicited)
{
	struct dp_channel *ch = cq->channel;
	const uint64_t one = 1;
	int old, new, cancel;

	if (!ch)
		return;
	old = atomic_load_explicit(&cq->armed, memory_order_relaxed);
	do {
		new = old == ARM_ANY || (old == ARM_SOLICITED && solicited) ? ARM_SPENT : old;
	} while (!atomic_compare_exchange_weak(&cq->armed, &old, new));
	if (new == old)
		return;
	/* write(2) is a cancellation point, and a thread must not end here with the lock */
	cancel = dp_no_cancel();
	dp_take(&ch->lock);
	if (cq->cq->channel == &ch->shadow && !cq->raised) {
		cq->raised = true;
		cq->raised_next = NULL;
		*ch->raised_tail = cq;
		ch->raised_tail = &cq->raised_next;
		if (write(ch->efd, &one, sizeof(one)) != sizeof(one))
			dp_warn("completion channel: eventfd: %s", strerror(errno));
	}
	dp_drop(&ch->lock);
	dp_cancel_as(cancel);
}

void dp_channel_raise(struct dp_cq *cq)
{
	raise_event(cq, false);
}

void dp_channel_raise_error(struct dp_cq *cq)
{
	raise_event(cq, true);
}

int dp_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	struct dp_cq *q = dp_cq_find(cq);
	int old, new, spent = ARM_SPENT, ret;

	if (!q || !q->channel)
		return dp_ctx_find(cq->context)->ops.req_notify_cq(cq, solicited_only);
	/* the kernel's event for the arm that is about to be made is not to be swallowed */
	atomic_compare_exchange_strong(&q->armed, &spent, ARM_NONE);
	ret = q->c->ops.req_notify_cq(cq, solicited_only);
	if (ret)
		return ret;
	/* see raise_event(); as with devices, an arm for any completion outlives one for solicited ones */
	old = atomic_load_explicit(&q->armed, memory_order_relaxed);
	do {
		new = solicited_only && old != ARM_ANY ? ARM_SOLICITED : ARM_ANY;
	} while (!atomic_compare_exchange_weak(&q->armed, &old, new));
	if (atomic_load_explicit(&q->busy, memory_order_relaxed))
		dp_progress_hurry();
	return 0;
}

/* Takes an event of ours; with the channel's lock held. 0 or -EAGAIN. */
static int take_ours(struct dp_channel *ch, struct ibv_cq **cq, void **cq_context)
{
	struct dp_cq *q = ch->raised;

	if (!q)
		return -EAGAIN;
	take_back_event(ch, q);
	ch->kernel_run = 0;
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
	return 0;
}

/* Takes an event of the kernel; with the channel's lock held. 0 or -errno, -EAGAIN if there is none. */
static int take_kernels(struct dp_channel *ch, struct ibv_cq **cq, void **cq_context)
{
	for (;;) {
		struct dp_cq *q;
		int was;

		errno = 0;
		if (ch->verbs->get_cq_event(ch->real, cq, cq_context))
			return errno ? -errno : -EIO;
		/* until the event is acknowledged, the CQ cannot go, and so its record */
		q = dp_cq_find(*cq);
		if (!q || q->channel != ch)
			break;
		was = atomic_exchange(&q->armed, ARM_NONE);
		if (take_back_event(ch, q) || was != ARM_SPENT)
			break;
		ch->verbs->ack_cq_events(*cq, 1);
	}
	ch->kernel_run++;
	return 0;
}

static int take_event(struct dp_channel *ch, struct ibv_cq **cq, void **cq_context)
{
	int ret = -EAGAIN;

	dp_take(&ch->lock);
	if (ch->dead)
		ret = -EBADF;
	/* the kernel's first: it stands for ours on the same CQ, too */
	else if (ch->kernel_run < KERNEL_RUN || (ret = take_ours(ch, cq, cq_context)) == -EAGAIN)
		ret = take_kernels(ch, cq, cq_context);
	if (ret == -EAGAIN)
		ret = take_ours(ch, cq, cq_context);
	dp_drop(&ch->lock);
	return ret;
}

/*
 * poll(2) ends with EINTR after every signal handler; the read(2) that libibverbs waits in goes on after one that
 * was installed with SA_RESTART. Which handler ran cannot be known; it goes on if all that may have run agree. The
 * signals of faults are left out: they do not come to a thread that waits.
 */
static bool read_would_restart(void)
{
	static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS };
	bool restart = false;
	sigset_t blocked;

	if (pthread_sigmask(SIG_BLOCK, NULL, &blocked))
		return false;
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		sigaddset(&blocked, faults[i]);
	for (int sig = 1; sig < NSIG; sig++) {
		struct sigaction sa;

		if (sigismember(&blocked, sig) == 1 || sigaction(sig, NULL, &sa))
			continue;
		if (!(sa.sa_flags & SA_SIGINFO) && (sa.sa_handler == SIG_DFL || sa.sa_handler == SIG_IGN))
			continue;
		if (!(sa.sa_flags & SA_RESTART))
			return false;
		restart = true;
	}
	return restart;
}

/* The thread was cancelled while it waited; its clean-up handlers may call verbs, which are to be hooked. */
static void cancelled(void *ch)
{
	put(ch);
	dp_stub->inside(-1);
}

/* Waits until there may be an event. cancel: as the program has it. 0 or -errno. */
static int wait_event(struct dp_channel *ch, int fd, int cancel)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int err;

	pthread_cleanup_push(cancelled, ch);
	pthread_setcancelstate(cancel, NULL);
	err = poll(&p, 1, -1) < 0 ? errno : 0;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cleanup_pop(0);
	if (err)
		return err == EINTR && read_would_restart() ? 0 : -err;
	return p.revents & POLLNVAL ? -EBADF : 0;
}

int dp_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	struct dp_channel *ch = hold(channel);
	int ret, cancel, saved = errno;

	if (!ch)
		return real_of(channel->context)->get_cq_event(channel, cq, cq_context);
	/* only waiting may be cancelled, as in the real one: not where a lock is held or an event would be lost */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	while ((ret = take_event(ch, cq, cq_context)) == -EAGAIN) {
		int flags = fcntl(channel->fd, F_GETFL);

		if (flags < 0)
			ret = -errno;
		else if (!(flags & O_NONBLOCK))
			ret = wait_event(ch, channel->fd, cancel);
		if (ret)
			break;
	}
	put(ch);
	pthread_setcancelstate(cancel, NULL);
	errno = ret ? -ret : saved;
	return ret ? -1 : 0;
}

void dp_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
	/* events of ours were accounted for when they were given: see take_ours() */
	real_of(cq->context)->ack_cq_events(cq, nevents);
}

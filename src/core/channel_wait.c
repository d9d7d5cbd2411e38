// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* ibv_get_cq_event: waits as the program would for the real channel, by signal, cancellation and O_NONBLOCK. */
#include "channel_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>

#define PULLED_MS 1000 /* how long a blocking get_cq_event waits for another event than one that was taken back */

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
	dp_channel_put(ch);
	dp_stub->inside(-1);
}

static bool any_pulled(struct dp_channel *ch)
{
	bool any;

	dp_take(&ch->lock);
	any = ch->pulled;
	dp_drop(&ch->lock);
	return any;
}

/* Until one that was taken back is due, in ms; -1: there is none. until: when that is; 0: it is set. */
static int pulled_in(struct dp_channel *ch, uint64_t *until)
{
	uint64_t now;

	if (!any_pulled(ch))
		return -1;
	now = dp_now_ns();
	/* once: signals that come meanwhile do not begin it anew */
	if (!*until)
		*until = now + PULLED_MS * UINT64_C(1000000);
	return *until > now ? (int)((*until - now + 999999) / 1000000) : 0;
}

/*
 * Waits, `left` ms at most, until there may be an event. cancel: as the program has it. 0 or -errno, -EAGAIN: one that was
 * taken back is due.
 */
static int wait_event(struct dp_channel *ch, int fd, int cancel, int left)
{
	/* the real one, too, if it is not behind the other: that is shorter than by way of the thread that watches it */
	struct pollfd p[] = { { .fd = fd, .events = POLLIN }, { .fd = ch->real_fd, .events = POLLIN } };
	nfds_t n = atomic_load_explicit(&ch->watched, memory_order_relaxed) ? 2 : 1;
	int err, got;

	pthread_cleanup_push(cancelled, ch);
	pthread_setcancelstate(cancel, NULL);
	got = poll(p, n, left);
	err = got < 0 ? errno : 0;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cleanup_pop(0);
	if (err)
		return err == EINTR && read_would_restart() ? 0 : -err;
	if (!got)
		return -EAGAIN;
	return p[0].revents & POLLNVAL ? -EBADF : 0;
}

int dp_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	struct dp_channel *ch = dp_channel_hold(channel);
	int ret, cancel, saved = errno;
	uint64_t until = 0;

	if (!ch)
		return dp_channel_verbs(channel->context)->get_cq_event(channel, cq, cq_context);
	/* only waiting may be cancelled, as in the real one: not where a lock is held or an event would be lost */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	while ((ret = dp_channel_take(ch, cq, cq_context)) == -EAGAIN) {
		int flags = fcntl(channel->fd, F_GETFL);

		if (flags < 0)
			ret = -errno;
		if (flags < 0 || flags & O_NONBLOCK)
			break;
		ret = wait_event(ch, channel->fd, cancel, pulled_in(ch, &until));
		if (ret == -EAGAIN && dp_channel_take_pulled(ch, cq, cq_context)) {
			ret = 0;
			break;
		}
		if (ret == -EAGAIN)
			until = 0; /* if there is another, it waits as long */
		else if (ret)
			break;
	}
	dp_channel_put(ch);
	pthread_setcancelstate(cancel, NULL);
	errno = ret ? -ret : saved;
	return ret ? -1 : 0;
}

void dp_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
	/* events of ours were accounted for when they were given: see give_ours() */
	dp_channel_verbs(cq->context)->ack_cq_events(cq, nevents);
}

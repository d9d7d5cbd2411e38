/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * A reader that has gone is no reason for the program to die: between dp_sigpipe_off() and dp_sigpipe_back() writes of
 * this thread give EPIPE only. A SIGPIPE that was pending before stays.
 */
#ifndef DUALPORT_SIGPIPE_H
#define DUALPORT_SIGPIPE_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>

struct dp_sigpipe {
	sigset_t old;
	bool was_pending;
};

static inline void dp_sigpipe_off(struct dp_sigpipe *s)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &set, &s->old);
	sigpending(&set);
	s->was_pending = sigismember(&set, SIGPIPE);
}

static inline void dp_sigpipe_back(const struct dp_sigpipe *s)
{
	static const struct timespec now;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	if (!s->was_pending)
		while (sigtimedwait(&set, NULL, &now) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, &s->old, NULL);
}

#endif

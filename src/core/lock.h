/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef DUALPORT_LOCK_H
#define DUALPORT_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

typedef pthread_mutex_t dp_lock;

static inline void dp_lock_init(dp_lock *l)
{
	pthread_mutex_init(l, NULL);
}
static inline void dp_lock_fini(dp_lock *l)
{
	pthread_mutex_destroy(l);
}
static inline void dp_take(dp_lock *l)
{
	pthread_mutex_lock(l);
}
static inline bool dp_try(dp_lock *l)
{
	return pthread_mutex_trylock(l) == 0;
}
static inline void dp_drop(dp_lock *l)
{
	pthread_mutex_unlock(l);
}

/*
 * Waiting for a condition is a cancellation point, and a thread cancelled there ends with the mutex locked. Between
 * these two it is not cancelled; a request of before waits for the program's own next point.
 */
static inline int dp_no_cancel(void)
{
	int old;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	return old;
}
static inline void dp_cancel_as(int old)
{
	pthread_setcancelstate(old, &old);
}

static inline uint64_t dp_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif

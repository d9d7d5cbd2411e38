/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef DUALPORT_LOCK_H
#define DUALPORT_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

typedef pthread_mutex_t dp_lock;

/*
 * For posting and polling: a mutex of which the common case is inline, a dozen instructions for the 50 or so of the C
 * library's to take and to drop it. Neither recursive nor fair; not for conditions. All zero: free.
 */
typedef struct {
	_Atomic int v;
} dp_fast;
enum { DP_FAST_FREE, DP_FAST_TAKEN, DP_FAST_AWAITED /* taken, and somebody may be asleep */ };

/* lock.c: the rare cases. */
void dp_fast_wait(dp_fast *l);
void dp_fast_wake(dp_fast *l);

static inline void dp_lock_init_mutex(dp_lock *l)
{
	pthread_mutex_init(l, NULL);
}
static inline void dp_lock_fini_mutex(dp_lock *l)
{
	pthread_mutex_destroy(l);
}
static inline void dp_take_mutex(dp_lock *l)
{
	pthread_mutex_lock(l);
}
static inline bool dp_try_mutex(dp_lock *l)
{
	return pthread_mutex_trylock(l) == 0;
}
static inline void dp_drop_mutex(dp_lock *l)
{
	pthread_mutex_unlock(l);
}

static inline void dp_lock_init_fast(dp_fast *l)
{
	atomic_init(&l->v, DP_FAST_FREE);
}
static inline void dp_lock_fini_fast(dp_fast *l)
{
	(void)l;
}
static inline bool dp_try_fast(dp_fast *l)
{
	int was = DP_FAST_FREE;

	/* acquire: sees what the last holder did, which its release in dp_drop() made visible */
	return atomic_compare_exchange_strong_explicit(&l->v, &was, DP_FAST_TAKEN, memory_order_acquire,
						       memory_order_relaxed);
}
static inline void dp_take_fast(dp_fast *l)
{
	if (__builtin_expect(!dp_try_fast(l), 0))
		dp_fast_wait(l);
}
/* dp_drop() but for dp_fast_wake(), which is for the caller if it says true. */
static inline bool dp_fast_drop(dp_fast *l)
{
	/* one exchange says whether somebody sleeps: who comes to do so after it finds the lock free */
	return atomic_exchange_explicit(&l->v, DP_FAST_FREE, memory_order_release) == DP_FAST_AWAITED;
}
static inline void dp_drop_fast(dp_fast *l)
{
	if (__builtin_expect(dp_fast_drop(l), 0))
		dp_fast_wake(l);
}

/* as _Generic would, which cppcheck 2.10 cannot read */
#define DP_LOCK_OP(op, l)                                                                                             \
	(__builtin_types_compatible_p(__typeof__(*(l)), dp_fast) ? op##_fast((void *)(l)) : op##_mutex((void *)(l)))
#define dp_lock_init(l) DP_LOCK_OP(dp_lock_init, l)
#define dp_lock_fini(l) DP_LOCK_OP(dp_lock_fini, l)
#define dp_take(l) DP_LOCK_OP(dp_take, l)
#define dp_try(l) DP_LOCK_OP(dp_try, l)
#define dp_drop(l) DP_LOCK_OP(dp_drop, l)

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

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Preloaded into perftest -D by others.sh: its alarms come as they would, but its thread is interrupted some thousand times a
 * second, by a handler that takes memory of the C library, as perftest's own does when it opens a file. Whoever takes memory in
 * post_send or poll_cq, which no provider does, is interrupted there before long, and waits for itself.
 */
#include <dlfcn.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/time.h>
#include <time.h>

#define EVERY_US 300
#define ALIGN 64 /* more than malloc() has: it is not one that this thread freed before, for which no lock is taken */

static sighandler_t programs;
static _Atomic uint64_t due; /* of its alarm; 0: there is none */
void *alarm_took;

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000;
}

static void every(long us)
{
	const struct itimerval t = { { 0, us }, { 0, us } };

	setitimer(ITIMER_REAL, &t, NULL);
}

static void interrupt(int sig)
{
	alarm_took = memalign(ALIGN, 600);
	if (now_us() < atomic_load(&due))
		return;
	atomic_store(&due, 0);
	programs(sig);
	/* it has set no other: what it does from here on may well take memory */
	if (!atomic_load(&due))
		every(0);
}

unsigned int alarm(unsigned int seconds)
{
	struct sigaction act = { .sa_handler = interrupt, .sa_flags = SA_RESTART };

	atomic_store(&due, now_us() + seconds * UINT64_C(1000000));
	sigaction(SIGALRM, &act, NULL);
	every(EVERY_US);
	return 0;
}

sighandler_t signal(int sig, sighandler_t handler)
{
	sighandler_t (*next)(int, sighandler_t) = (sighandler_t (*)(int, sighandler_t))dlsym(RTLD_NEXT, "signal");
	sighandler_t was = programs;

	if (sig != SIGALRM)
		return next(sig, handler);
	programs = handler;
	return was;
}

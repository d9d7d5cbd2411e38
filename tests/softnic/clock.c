// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Preloaded into perftest by others.sh: a gettimeofday() that is 20 times too fast. At each report perftest spins for 0.2 s, by
 * this clock, to find the rate of the CPU's counter, and reports nothing if that was disturbed too often; with -a, at both ends,
 * this is most of what it does, and on a busy machine most of what goes wrong. What it measures is then wrong by the same factor.
 */
#include <sys/time.h>
#include <time.h>

#define FASTER 20

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	static long long first;
	struct timespec t;
	long long us;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &t);
	us = t.tv_sec * 1000000ll * FASTER + t.tv_nsec * FASTER / 1000;
	if (!first)
		first = us;
	us = first / FASTER + (us - first);
	tv->tv_sec = us / 1000000;
	tv->tv_usec = us % 1000000;
	return 0;
}

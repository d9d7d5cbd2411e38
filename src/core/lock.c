// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include "lock.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

static void futex(dp_fast *l, int op, int val)
{
	int err = errno;

	/* any return is right: who waited looks again. errno is the caller's */
	(void)syscall(SYS_futex, &l->v, op, val, NULL, NULL, 0);
	errno = err;
}

void dp_fast_wait(dp_fast *l)
{
	/* whoever comes through here takes it as awaited: others may have gone to sleep meanwhile */
	while (atomic_exchange_explicit(&l->v, DP_FAST_AWAITED, memory_order_acquire) != DP_FAST_FREE)
		futex(l, FUTEX_WAIT_PRIVATE, DP_FAST_AWAITED);
}

void dp_fast_wake(dp_fast *l)
{
	futex(l, FUTEX_WAKE_PRIVATE, 1);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include "known.h"

#include <stdlib.h>
#include <string.h>

#include "lock.h"

static dp_lock lock = PTHREAD_MUTEX_INITIALIZER;

void *dp_known_get(struct dp_known **spare, size_t size)
{
	struct dp_known *k;

	dp_take(&lock);
	k = *spare;
	if (k)
		*spare = k->next;
	dp_drop(&lock);
	if (!k)
		return calloc(1, size);
	/* but for the words that others may read */
	memset(&k->next, 0, size - offsetof(struct dp_known, next));
	return k;
}

void dp_known_put(struct dp_known **spare, struct dp_known *k)
{
	dp_known_gone(k);
	dp_take(&lock);
	k->next = *spare;
	*spare = k;
	dp_drop(&lock);
}

void dp_known_after_fork(void)
{
	dp_lock_init(&lock);
}

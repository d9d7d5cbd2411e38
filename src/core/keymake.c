// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Makes what has a remote key, never one that a peer still takes for that of a region that is gone. */
#include "rkeys.h"

#include <errno.h>
#include <string.h>

#define MAX_TRIES 64

static bool wait_free(const struct dp_key_maker *k, uint32_t rkey)
{
	uint64_t end = dp_now_ns() + dp_lease_bound();
	bool all = true;

	for (uint32_t t = 0; t < k->tags; t++)
		all &= dp_key_wait(k->dev, k->tags == 1 ? rkey : (rkey & ~(k->tags - 1)) | t, end);
	return all;
}

static bool blocked(const struct dp_key_maker *k, uint32_t rkey)
{
	return k->tags == 1 ? dp_key_blocked(k->dev, rkey) : dp_key_blocked_tags(k->dev, rkey);
}

/*
 * What was rejected stays while we try again, or the provider would give the same key again. When the tries (or the memory)
 * run out, the last one waits for its past holders.
 */
void *dp_key_make(const struct dp_key_maker *k, const void *arg, bool *reused)
{
	void *rejected[MAX_TRIES], *obj;
	unsigned int n = 0;
	bool wait = false;
	int err;

	while ((obj = k->make(arg)) && blocked(k, k->rkey(obj))) {
		rejected[n++] = obj;
		if (n == MAX_TRIES)
			break;
	}
	err = errno;
	if (n && (!obj || n == MAX_TRIES)) {
		obj = rejected[--n];
		wait = true;
	}
	while (n)
		if (k->drop(rejected[--n], arg))
			dp_warn("%s on trial could not be given up: %s", k->what, strerror(errno));
	*reused = wait && !wait_free(k, k->rkey(obj));
	errno = err;
	return obj;
}

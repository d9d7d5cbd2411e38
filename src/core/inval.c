// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The messages by which an owner takes keys back: one for many keys. */
#include "rkeys.h"

#include <stdlib.h>
#include "peer/wire.h"

static int by_peer(const void *a, const void *b)
{
	const struct dp_inval *x = a, *y = b;

	if (x->peer != y->peer)
		return (uintptr_t)x->peer < (uintptr_t)y->peer ? -1 : 1;
	return x->seq < y->seq ? -1 : x->seq > y->seq;
}

void dp_invals_send(struct dp_inval *v, size_t n)
{
	static uint8_t buf[2 + DP_KEYS_BATCH * 17]; /* [control] */
	size_t i, j;

	if (n)
		qsort(v, n, sizeof(*v), by_peer);
	for (i = 0; i < n; i = j) {
		struct dp_wbuf b = { .p = buf, .cap = sizeof(buf) };

		for (j = i; j < n && j - i < DP_KEYS_BATCH && v[j].peer == v[i].peer; j++)
			;
		dp_put16(&b, (uint16_t)(j - i));
		for (size_t k = i; k < j; k++) {
			dp_put32(&b, v[k].pd_id);
			dp_put32(&b, v[k].rkey);
			dp_put64(&b, v[k].seq);
			dp_put8(&b, v[k].flags);
		}
		dp_peer_send(v[i].peer, DP_MSG_KEYS_INVAL, buf, b.len); /* if it fails, gone() follows */
	}
}

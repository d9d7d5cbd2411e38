/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* What the files of completion channels share. */
#ifndef DUALPORT_CHANNEL_PRIV_H
#define DUALPORT_CHANNEL_PRIV_H

#include "core.h"

struct dp_channel {
	struct ibv_comp_channel shadow; /* what the program sees; refcnt with shadows_lock */
	struct ibv_comp_channel *real;	/* its fd does not block; gone once dead is set */
	int real_fd;
	const struct dp_verbs *verbs;
	int efd;
	dp_lock lock;
	bool dead;
	_Atomic bool watched; /* changed with lock; never back */
	struct dp_cq *raised, **raised_tail; /* CQs with an event of ours, oldest first */
	struct passed *passed, **passed_tail; /* events of the kernel that were taken from it, oldest first */
	struct dp_cq *pulled; /* the last one whose event was taken back, if the program has got none since then */
	uint32_t pulled_arms;
	unsigned kernel_run;
	unsigned refs; /* one of the program, one of each thread inside dp_get_cq_event(); shadows_lock */
};

/* The kernel counts it as given to us, so destroy_cq waits for the program's acknowledgement, or ours. */
struct passed {
	struct ibv_cq *cq;
	struct passed *next;
};

/* ---- channel.c */

const struct dp_verbs *dp_channel_verbs(struct ibv_context *ctx);
/* NULL: it has no shadow. Put it back; neither with a lock held. */
struct dp_channel *dp_channel_hold(struct ibv_comp_channel *channel);
void dp_channel_put(struct dp_channel *ch);
/* An event that may be given now, without waiting: 0, or -errno, -EAGAIN if there is none. */
int dp_channel_take(struct dp_channel *ch, struct ibv_cq **cq, void **cq_context);
/* The last one that was taken back, if the program is still owed it. */
bool dp_channel_take_pulled(struct dp_channel *ch, struct ibv_cq **cq, void **cq_context);

#endif

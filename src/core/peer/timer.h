/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* A heap of timers by due time; *root is the first one due. Pure: no clock, no thread. */
#ifndef DUALPORT_PEER_TIMER_H
#define DUALPORT_PEER_TIMER_H

#include "peer.h"

void dp_timers_insert(struct dp_timer **root, struct dp_timer *t); /* t->due is set, t is in no heap */
void dp_timers_remove(struct dp_timer **root, struct dp_timer *t); /* t is in this heap */

#endif

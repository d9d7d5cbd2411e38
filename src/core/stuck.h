/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* Says what a WR that is queued, or whose completion is held, for longer than dp_cfg.stuck_ns waits for. */
#ifndef DUALPORT_STUCK_H
#define DUALPORT_STUCK_H

#include <stddef.h>
#include <stdint.h>

struct dp_qp;

/*
 * Describes the oldest such WR of q that was not reported yet. Returns the length of the text in buf (cut to fit
 * n, always ended), 0 if there is none. now: dp_now_ns(). With q->lock held.
 */
int dp_stuck_describe(const struct dp_qp *q, uint64_t now, char *buf, size_t n);
/* All such WRs of q count as reported. With q->lock held. */
uint64_t dp_stuck_mark(struct dp_qp *q, uint64_t now);
/* Looks at every QP and logs one line for each with such a WR. Without locks; passes over QPs in use. */
void dp_stuck_check(void);

#endif

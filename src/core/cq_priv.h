/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* Between cq.c, ready.c and poll.c; all with cq->lock held, and where there is a q, its lock as well. */
#ifndef DUALPORT_CQ_PRIV_H
#define DUALPORT_CQ_PRIV_H

#include "qp.h"

extern DP_HIDDEN struct dp_hmap dp_cqs; /* ibv_cq pointer -> struct dp_cq */

/* ---- ready.c */

struct dp_qp *dp_cq_find_sender(struct dp_cq *cq, uint32_t qp_num);
/* The QP of that number that sends into cq, NULL if it is none of ours; without q's lock. */
static inline struct dp_qp *sender_of(struct dp_cq *cq, uint32_t qp_num)
{
	return __builtin_expect(cq->last_qpn == qp_num, 1) ? cq->last : dp_cq_find_sender(cq, qp_num);
}
/* Keeps the first of cq->unstashed, which was read ahead, for who polls; without q's lock. */
void dp_cq_stash(struct dp_cq *cq);
/* Gives up to n of what was read ahead, and of what QPs on the ready list have; without a q's lock. How many. */
int dp_cq_take_ready(struct dp_cq *cq, int n, struct ibv_wc *wc);

/* ---- poll.c */

/* Posts what may go now, and the flushes that are due. */
void dp_cq_release(struct dp_qp *q);
/* Raises the event of what q has, if there is news and cq is armed for it. */
void dp_cq_tell(struct dp_cq *cq, struct dp_qp *q);

#endif

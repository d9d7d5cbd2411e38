// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A send queue that drains (SQD): what was begun is finished, nothing more is begun, and when the program hears that it is
 * drained, nothing of its requests is on its way. So the twins drain first; what is posted meanwhile waits in their queues,
 * as the rest waits in the program's own.
 */
#include "qp.h"

#include <errno.h>
#include <string.h>

#define TICK_NS 20000
#define LIMIT_NS UINT64_C(2000000000) /* if the network takes longer, the program is told too early */

static int set_twins(struct dp_qp *q, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	int ret = 0, err;

	for (uint32_t r = 1; r < q->nrails; r++) {
		if (!q->rail[r].twin || q->rail[r].dead || !q->rail[r].rts)
			continue;
		err = q->c->real->modify_qp(q->rail[r].twin, &attr, IBV_QP_STATE);
		ret = ret ? ret : err;
	}
	return ret;
}

static bool draining(const struct dp_qp *q)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	for (uint32_t r = 1; r < q->nrails; r++)
		if (q->rail[r].twin && !q->rail[r].dead && !q->c->real->query_qp(q->rail[r].twin, &attr, IBV_QP_STATE, &init) &&
		    attr.qp_state == IBV_QPS_SQD && attr.sq_draining)
			return true;
	return false;
}

void dp_sqd_begin(struct dp_qp *q)
{
	const struct timespec tick = { .tv_nsec = TICK_NS };
	uint64_t end = dp_now_ns() + LIMIT_NS;

	if (q->qp_state != IBV_QPS_RTS || atomic_load_explicit(&q->state, memory_order_relaxed) != DP_QP_BONDED)
		return;
	q->twins_sqd = true;
	/* a provider that refuses it refuses the program's QP, too; a twin that broke is no reason not to wait for the others */
	set_twins(q, IBV_QPS_SQD);
	/* without ctl: the control thread must not wait for the network. Twins go only with the QP or its RESET. */
	dp_drop(&q->ctl);
	while (draining(q) && dp_now_ns() < end)
		nanosleep(&tick, NULL);
	dp_take(&q->ctl);
}

void dp_sqd_end(struct dp_qp *q)
{
	int ret;

	if (!q->twins_sqd)
		return;
	q->twins_sqd = false;
	if (atomic_load_explicit(&q->state, memory_order_relaxed) != DP_QP_BONDED)
		return;
	ret = set_twins(q, IBV_QPS_RTS);
	if (!ret)
		return;
	dp_warn("qp 0x%x: its twins cannot send any more: %s", q->qp_num, strerror(ret));
	dp_take(&q->scq->lock);
	dp_take(&q->lock);
	dp_fail_sibling(q, IBV_WC_LOC_QP_OP_ERR, UINT64_MAX);
	dp_drop(&q->lock);
	dp_drop(&q->scq->lock);
}

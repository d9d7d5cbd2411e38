// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The spare: one queue pair of ours beside the program's, over the same two ports, in its PDs, with a CQ of our own. Over
 * it READs push into memory what rail 0 wrote: the program's own queue pair carries nothing but the program's requests.
 * It exists only where a peer's ports reach its memory in different ways, so that what is acknowledged on one may be seen
 * later than what another one writes after that.
 */
#include "qp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void destroy(struct dp_qp *q, struct dp_rail *rail)
{
	if (rail->twin)
		dp_twin_destroy(q, rail); /* nobody finds it any more */
	if (rail->scratch && q->c->real->dereg_mr(rail->scratch))
		dp_warn("qp 0x%x: scratch memory could not be freed: %s", q->qp_num, strerror(errno));
	free(rail->chain.sge);
	free(rail);
}

int dp_spare_make(struct dp_qp *q, struct dp_twin_info *mine)
{
	struct dp_rail *rail;
	int ret = -ENOMEM;

	if (!q->c->own.ctx)
		return -ENODEV;
	rail = calloc(1, sizeof(*rail));
	if (!rail)
		return ret;
	rail->q = q;
	rail->sib = &q->c->own;
	rail->chain.sge = calloc(DP_BATCH, sizeof(*rail->chain.sge));
	if (!rail->chain.sge)
		goto free_rail;
	/* of its own, not of its PD: that is the program's, which could not give it back */
	rail->scratch = dp_scratch_reg(q->c->real, q->pd->pd);
	if (!rail->scratch) {
		ret = -errno;
		goto free_rail;
	}
	rail->scratch_lkey = rail->scratch->lkey;
	ret = dp_twin_make(q, rail, mine);
	if (ret)
		goto free_rail;
	q->spare = rail;
	return 0;

free_rail:
	mine->qpn = 0;
	destroy(q, rail);
	return ret;
}

void dp_spare_destroy(struct dp_qp *q)
{
	struct dp_rail *rail = q->spare;

	if (!rail)
		return;
	destroy(q, rail);
	q->spare = NULL;
}

void dp_spare_lost(struct dp_qp *q, enum ibv_wc_status status)
{
	bool used = q->order.flush & 1;

	q->spare->dead = true;
	if (!used)
		return;
	/* what waits already goes when it is acknowledged; nothing else may go ahead of rail 0 from here on */
	dp_order_unbond(&q->order);
	dp_order_flush_over(&q->order, 0);
	dp_warn("qp 0x%x: flush of %s over qp 0x%x: %s; one port from here on", q->qp_num, q->c->dev,
		q->spare->twin->qp_num, q->c->real->wc_status_str(status));
	dp_fallback(DP_FB_RAIL_LOST);
}

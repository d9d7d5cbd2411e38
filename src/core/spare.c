// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The spare: one queue pair of ours beside the program's, over the same two ports, in its PDs, with a CQ of our own. Over
 * it READs push into memory what rail 0 wrote: the program's own queue pair carries nothing but the program's requests.
 * It exists only where a peer's ports reach its memory in different ways, so that what is acknowledged on one may be seen
 * later than what another one writes after that.
 */
#include "bond.h"
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

/* One that nobody uses yet, or NULL with errno. */
static struct dp_rail *make(struct dp_qp *q, struct dp_twin_info *mine)
{
	struct dp_rail *rail;
	int ret = -ENOMEM;

	if (!q->c->own.ctx) {
		errno = ENODEV;
		return NULL;
	}
	rail = calloc(1, sizeof(*rail));
	if (!rail)
		return NULL;
	rail->q = q;
	rail->sib = &q->c->own;
	rail->chain.sge = calloc(DP_BATCH, sizeof(*rail->chain.sge));
	if (!rail->chain.sge)
		goto free_rail;
	/* of its own, not of its PD: that is the program's, which could not give it back */
	rail->scratch = dp_scratch_own(q->pd);
	if (!rail->scratch) {
		ret = -errno;
		goto free_rail;
	}
	rail->scratch_lkey = rail->scratch->lkey;
	ret = dp_twin_make(q, rail, mine);
	if (ret)
		goto free_rail;
	return rail;

free_rail:
	mine->qpn = 0;
	destroy(q, rail);
	errno = -ret;
	return NULL;
}

int dp_spare_make(struct dp_qp *q, struct dp_twin_info *mine)
{
	q->spare = make(q, mine);
	return q->spare ? 0 : -errno;
}

void dp_spare_destroy(struct dp_qp *q)
{
	struct dp_rail *rail = q->spare;

	if (!rail)
		return;
	destroy(q, rail);
	q->spare = NULL;
}

int dp_spare_renew(struct dp_qp *q, struct dp_twin_info *mine)
{
	struct dp_rail *rail = make(q, mine), *old = q->spare;

	if (!rail)
		return -errno;
	dp_take(&q->scq->lock);
	dp_take(&q->lock);
	/* nothing goes there before it is connected (dp_spare_up) */
	rail->dead = true;
	rail->flushes = old->flushes;
	memcpy(rail->dirty, old->dirty, sizeof(rail->dirty));
	rail->ndirty = old->ndirty;
	q->spare = rail;
	dp_order_flush_again(&q->order, 0);
	dp_drop(&q->lock);
	dp_drop(&q->scq->lock);
	destroy(q, old);
	return 0;
}

void dp_spare_up(struct dp_qp *q)
{
	struct dp_cq *cq = q->scq;

	dp_take(&cq->lock);
	dp_take(&q->lock);
	q->spare->dead = false;
	dp_cq_go_on(cq, q);
	dp_drop(&q->lock);
	dp_drop(&cq->lock);
}

void dp_spare_over(struct dp_qp *q, const char *why)
{
	bool used = q->order.flush & 1;

	q->spare->dead = true;
	if (!used)
		return;
	/* what waits already goes when it is acknowledged; nothing else may go ahead of rail 0 from here on */
	dp_order_unbond(&q->order);
	dp_order_flush_over(&q->order, 0);
	dp_warn("qp 0x%x: flush of %s over qp 0x%x: %s; one port from here on", q->qp_num, q->c->dev,
		q->spare->twin->qp_num, why);
	dp_fallback(DP_FB_RAIL_LOST);
}

/*
 * A READ of a region that the peer has deregistered meanwhile breaks the queue pair, and that is nobody's fault: the news
 * of it (DP_MSG_KEYS_INVAL) was still on its way. Whatever the reason, a new one is tried.
 */
void dp_spare_lost(struct dp_qp *q, enum ibv_wc_status status)
{
	if (q->spare->dead)
		return;
	q->spare->dead = true;
	/* the peer, if it uses it, begins */
	if (!(q->order.flush & 1) || q->going)
		return;
	if (atomic_load_explicit(&q->state, memory_order_relaxed) != DP_QP_BONDED || dp_bond_respare(q))
		dp_spare_over(q, q->c->real->wc_status_str(status));
}

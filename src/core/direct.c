// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* What else may be asked of a QP: the ways round what we see, after which it is of one port, and whether its data come in order. */
#include "bond.h"
#include "qp.h"

#include <errno.h>

/* The program leaves the path that we see: nothing may be striped from here on. */
static void pin_with_ctl(struct dp_qp *q, enum dp_fallback reason)
{
	if (q->fallback >= 0 || q->destroyed)
		return;
	q->fallback = (int)reason;
	dp_fallback(reason);
	dp_bond_end(q);
	if (!q->slot)
		return;
	dp_take(&q->scq->lock);
	dp_take(&q->lock);
	if (atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_PENDING)
		dp_qp_native(q);
	else
		dp_order_unbond(&q->order);
	dp_drop(&q->lock);
	dp_drop(&q->scq->lock);
}

static void pin_native(struct dp_qp *q, enum dp_fallback reason)
{
	dp_take(&q->ctl);
	pin_with_ctl(q, reason);
	dp_drop(&q->ctl);
}

struct ibv_qp_ex *dp_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct dp_qp *q = dp_qp_find(qp);
	struct dp_ctx *c = dp_ctx_find(qp->context);
	struct ibv_qp_ex *ex = (c ? c->real : dp_stub->real_of(qp->context))->qp_to_qp_ex(qp);

	/* one that create_qp made, and that has ibv_wr_* nevertheless */
	if (q && ex && !q->ex)
		pin_native(q, DP_FB_QP_EX);
	return ex;
}

int dp_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	struct dp_ctx *c = dp_ctx_find(qp->context);
	struct dp_qp *q = dp_qp_find(qp);
	int ret;

	if (!c)
		return dp_stub->real_of(qp->context)->query_qp_data_in_order(qp, op, flags);
	ret = c->real->query_qp_data_in_order(qp, op, flags);
	/*
	 * Without flags the answer is about the whole message, which striping breaks (I8). With
	 * IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS (bit 0) it is a mask: bit 0 whole message, bit 1 aligned 128
	 * bytes; cuts are at multiples of 128 bytes of the remote address.
	 */
	if (q && q->fallback < 0 && (op == IBV_WR_RDMA_WRITE || op == IBV_WR_RDMA_READ))
		ret = flags & 1 ? ret & ~1 : 0;
	return ret;
}

static void pin_if_of(struct dp_qp *q, void *arg)
{
	dp_take(&q->ctl);
	if (!q->destroyed && q->scq && q->scq->cq == arg)
		pin_with_ctl(q, DP_FB_DIRECT_ACCESS);
	dp_drop(&q->ctl);
}

void dp_direct_access(struct ibv_qp *qp, struct ibv_cq *cq)
{
	struct dp_qp *q = qp ? dp_qp_find(qp) : NULL;

	if (q) {
		if (atomic_load(&q->state) == DP_QP_BONDED)
			dp_warn("qp 0x%x: the program takes direct access to a bonded qp; one port from here on",
				q->qp_num);
		pin_native(q, DP_FB_DIRECT_ACCESS);
	}
	if (cq)
		dp_qp_each(pin_if_of, cq);
}

/*
 * The device counts what it completes, whether by then the siblings have done their parts or not, and the peer's parts
 * likewise. It can be attached before RTR only, so there is no bond yet.
 */
int dp_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *cntr, struct ibv_qp_attach_comp_cntr_attr *attr)
{
	const struct dp_verbs *real = dp_stub->real_of(qp->context);
	int ret = real->qp_attach_comp_cntr ? real->qp_attach_comp_cntr(qp, cntr, attr) : EOPNOTSUPP;

	if (!ret)
		dp_direct_access(qp, NULL);
	return ret;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * ibv_bind_mw: a request on the send queue that does not come through ibv_post_send. It takes its place in the order
 * like IBV_WR_BIND_MW. The provider makes the new key while it is called, so a bind cannot be queued: it waits here
 * until what stands before it has gone.
 */
#include "qp.h"

#include <errno.h>

#define WAIT_NS UINT64_C(1000000000)
#define TICK_NS 20000

/* Some providers post it through ops.post_send, which is our own function (rdma-core, providers/rxe/rxe.c). */
static _Thread_local const struct dp_qp *binding;

bool dp_bind_posts(const struct dp_qp *q)
{
	return binding == q;
}

static int call_real(struct dp_qp *q, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	int ret;

	binding = q;
	atomic_store_explicit(&q->binding, true, memory_order_relaxed);
	ret = q->c->ops.bind_mw(q->qp, mw, bind);
	atomic_store_explicit(&q->binding, false, memory_order_relaxed);
	binding = NULL;
	return ret;
}

/* With q->lock held. -EAGAIN: something before it has to go first. */
static int bind_in_order(struct dp_qp *q, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct dp_op_desc d = { .flags = DP_OP_ALL | dp_qp_signaled(q, bind->send_flags) };
	struct dp_order *o = &q->order;
	uint64_t pos;
	bool goes;
	int ret;

	if (!dp_qp_room(q))
		return ENOMEM;
	pos = dp_order_add(o, &d);
	*dp_qp_slot(q, pos) = (struct dp_slot){ .wr_id = bind->wr_id, .opcode = IBV_WR_BIND_MW };
	goes = o->post0 == pos && dp_order_may_post0(o);
	if (dp_qp_too_deep(q, pos, goes))
		ret = ENOMEM;
	else
		ret = goes ? call_real(q, mw, bind) : -EAGAIN;
	if (ret) {
		dp_order_undo(o);
		return ret;
	}
	dp_order_posted0(o);
	dp_count(&dp_counters.signals, 1);
	return 0;
}

static int try(struct dp_qp *q, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	int ret;

	dp_take(&q->lock);
	switch (atomic_load_explicit(&q->state, memory_order_relaxed)) {
	case DP_QP_FAILING:
	case DP_QP_PENDING:
		ret = call_real(q, mw, bind);
		if (!ret)
			dp_qp_record(q, bind->wr_id, IBV_WR_BIND_MW, bind->send_flags);
		break;
	case DP_QP_BONDED:
		ret = bind_in_order(q, mw, bind);
		break;
	default:
		ret = q->c->ops.bind_mw(q->qp, mw, bind);
	}
	dp_drop(&q->lock);
	return ret;
}

int dp_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct dp_qp *q = dp_qp_find(qp);
	struct timespec tick = { .tv_nsec = TICK_NS };
	uint64_t end;
	int ret;

	if (!q)
		return dp_ctx_find(qp->context)->ops.bind_mw(qp, mw, bind);
	/* acquire: as in dp_post_send() */
	if (atomic_load_explicit(&q->state, memory_order_acquire) == DP_QP_NATIVE)
		return q->c->ops.bind_mw(qp, mw, bind);
	end = dp_now_ns() + WAIT_NS;
	while ((ret = try(q, mw, bind)) == -EAGAIN) {
		/* as if the send queue were full */
		if (dp_now_ns() > end)
			return ENOMEM;
		dp_take(&q->scq->lock);
		dp_cq_progress(q->scq, true);
		dp_drop(&q->scq->lock);
		nanosleep(&tick, NULL);
	}
	return ret;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The life of a program's QPs: creation, state changes, destruction. */
#include "qp.h"
#include "rkeys.h"
#include "bond.h"
#include "peer_rules.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- creation ---------------------------------------------------------------------------------------------- */

static int why_native(const struct dp_qp *q, bool qp_ex)
{
	const char *single = getenv("MLX5_SINGLE_THREADED");
	bool sibling = false, promised;

	if (qp_ex)
		return DP_FB_QP_EX;
	if (!q->scq)
		return DP_FB_CQ_EX;
	/* without a shadow its channel could not be told of completions that were held back */
	if (q->scq->cq->channel && !q->scq->channel)
		return DP_FB_CHANNEL;
	/* PDs that did not come through alloc_pd are parent domains, whose thread domains promise one thread */
	promised = !q->pd || (single && !strcmp(single, "1")) || dp_cqex_single(q->scq) ||
		   (q->rcq && dp_cqex_single(q->rcq));
	if (promised && !dp_cfg.single_threaded)
		return DP_FB_SINGLE_THREADED;
	if (!q->pd)
		return DP_FB_NO_TWIN_DEVICE;
	dp_pd_settle(q->pd, NULL);
	if (atomic_load_explicit(&q->c->lag_refused, memory_order_relaxed))
		return DP_FB_LAG;
	if (!q->c->nsib)
		return DP_FB_NO_GROUP;
	for (uint32_t i = 0; i < q->c->nsib; i++)
		sibling |= q->c->sib[i].ctx && q->pd->twin[i];
	return sibling ? -1 : DP_FB_NO_TWIN_DEVICE;
}

/*
 * From create_qp on poll_cq looks at what it gets, long before there is anything to see: a thread about to poll
 * natively, because nothing had to be looked at yet, must not take the first completion of a connection unseen; from
 * there on all would be matched to wrong WRs. With scq->lock held.
 */
static void watch(struct dp_qp *q)
{
	if (!q->watched)
		atomic_fetch_add_explicit(&q->scq->active, 1, memory_order_relaxed);
	q->watched = true;
	dp_cqex_install(q->scq);
}

static void unwatch(struct dp_qp *q)
{
	if (q->watched)
		atomic_fetch_sub_explicit(&q->scq->active, 1, memory_order_relaxed);
	q->watched = false;
}

/* Makes q known. Its send completions are looked up in its CQ, under that one's lock: it may go at any other time. */
static int enter(struct dp_qp *q)
{
	if (dp_hmap_put(&q->c->qpns, q->qp_num, q))
		return -ENOMEM;
	if (dp_hmap_put(&dp_qps, (uintptr_t)q->qp, q))
		goto no_qp;
	if (q->fallback >= 0)
		return 0;
	dp_take(&q->scq->lock);
	q->scq->last_qpn = UINT64_MAX;
	if (dp_hmap_put(&q->scq->qpns, q->qp_num, q))
		goto no_cq;
	watch(q);
	dp_drop(&q->scq->lock);
	return 0;
no_cq:
	dp_drop(&q->scq->lock);
	dp_hmap_del(&dp_qps, (uintptr_t)q->qp);
no_qp:
	dp_hmap_del(&q->c->qpns, q->qp_num);
	return -ENOMEM;
}

/* The number and the pointer may be handed out anew as soon as the real QP is gone. */
static void forget(struct dp_qp *q)
{
	dp_hmap_del(&dp_qps, (uintptr_t)q->qp);
	dp_hmap_del_if(&q->c->qpns, q->qp_num, q);
	dp_qpex_hide(q);
}

/* The same of its completions, for which it stays until it is gone: those who poll meanwhile must know whose they are. */
static void forget_sender(struct dp_qp *q)
{
	if (!q->scq)
		return;
	dp_take(&q->scq->lock);
	q->scq->last_qpn = UINT64_MAX;
	dp_hmap_del_if(&q->scq->qpns, q->qp_num, q);
	dp_drop(&q->scq->lock);
}

/* A number is a new QP's: whoever had it before is gone, even if forget_sender() is only on its way. */
static void number_taken(struct dp_cq *cq, uint32_t qp_num)
{
	if (!cq)
		return;
	dp_take(&cq->lock);
	if (dp_hmap_del(&cq->qpns, qp_num))
		cq->last_qpn = UINT64_MAX;
	dp_drop(&cq->lock);
}

static void purge(struct dp_cq *cq, uint32_t qp_num)
{
	if (!cq)
		return;
	dp_take(&cq->lock);
	dp_cq_purge(cq, qp_num);
	dp_drop(&cq->lock);
}

/*
 * Makes the record of a QP that the program just created. Without memory for it the QP is native. send_ops: NULL:
 * it has no ibv_wr_*.
 */
static void adopt(struct dp_ctx *c, struct ibv_qp *qp, struct ibv_pd *pd, struct ibv_cq *scq, struct ibv_cq *rcq,
		  const struct ibv_qp_cap *cap, bool sq_sig_all, const uint64_t *send_ops)
{
	struct dp_qp *q;

	number_taken(scq ? dp_cq_find(scq) : NULL, qp->qp_num);
	if (rcq && rcq != scq)
		number_taken(dp_cq_find(rcq), qp->qp_num);
	if (qp->qp_type != IBV_QPT_RC) {
		dp_fallback(DP_FB_NOT_RC);
		return;
	}
	q = calloc(1, sizeof(*q));
	if (!q)
		return;
	q->qp = qp;
	q->qp_num = qp->qp_num;
	q->c = c;
	q->pd = pd ? dp_pd_find(pd) : NULL;
	/* dealloc_pd fails as long as there are QPs, unimport_pd does not */
	if (q->pd)
		dp_pd_use(q->pd);
	q->scq = scq ? dp_cq_find(scq) : NULL;
	q->rcq = rcq ? dp_cq_find(rcq) : NULL;
	q->post_send = c->ops.post_send;
	q->cap = *cap;
	q->spread_min = dp_cfg.spread_min;
	q->sig_all = sq_sig_all ? DP_OP_SIGNALED : 0;
	atomic_init(&q->refs, 1);
	dp_lock_init(&q->ctl);
	dp_lock_init(&q->lock);
	q->fallback = why_native(q, send_ops && (!dp_qpex_can(*send_ops) || dp_qpex_new(q)));
	if (q->fallback >= 0) {
		dp_fallback((enum dp_fallback)q->fallback);
		dp_info("qp 0x%x: one port: %s", q->qp_num, dp_fallback_str((enum dp_fallback)q->fallback));
	}
	if (enter(q))
		dp_qp_put(q);
}

struct ibv_qp *dp_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct dp_ctx *c = dp_ctx_find(pd->context);
	struct ibv_qp *qp;

	if (!c)
		return dp_stub->real_of(pd->context)->create_qp(pd, attr);
	qp = c->real->create_qp(pd, attr);
	if (qp && c->grouped)
		adopt(c, qp, pd, attr->send_cq, attr->recv_cq, &attr->cap, attr->sq_sig_all, NULL);
	else if (qp && qp->qp_type == IBV_QPT_RC)
		dp_fallback(DP_FB_NO_GROUP);
	return qp;
}

struct ibv_qp *dp_create_qp_ex(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr)
{
	struct dp_ctx *c = dp_ctx_find(ctx);
	struct ibv_qp *qp;

	dp_stub->inside(1);
	qp = c->create_qp_ex(ctx, attr);
	dp_stub->inside(-1);
	if (qp)
		adopt(c, qp, attr->comp_mask & IBV_QP_INIT_ATTR_PD ? attr->pd : NULL, attr->send_cq, attr->recv_cq,
		      &attr->cap, attr->sq_sig_all,
		      attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS ? &attr->send_ops_flags : NULL);
	return qp;
}

/* ---- tracking ---------------------------------------------------------------------------------------------- */

static uint64_t slots_for(uint32_t depth)
{
	uint64_t n = 16;

	while (n < (uint64_t)depth + 1)
		n *= 2;
	return n;
}

/* More than that only a program needs that signals hardly ever, on a provider that frees its queue by itself. */
#define ENOUGH_SLOTS (UINT64_C(1) << 16)

bool dp_qp_room(struct dp_qp *q)
{
	uint64_t n = q->order.mask + 1;
	struct dp_slot *slot;

	if (!dp_order_full(&q->order))
		return true;
	if (n * 2 > ENOUGH_SLOTS && n * 2 > 8 * slots_for(q->cap.max_send_wr))
		return false;
	slot = calloc(n * 2, sizeof(*slot));
	if (!slot || dp_order_grow(&q->order)) {
		free(slot);
		return false;
	}
	for (uint64_t p = q->order.tail; p < q->order.next; p++)
		slot[p & (n * 2 - 1)] = q->slot[p & (n - 1)];
	free(q->slot);
	q->slot = slot;
	return true;
}

static void set_state(struct dp_qp *q, enum dp_qp_state state)
{
	/* the short ways look at this alone */
	dp_order_shut(&q->order);
	/* post_send reads the state without the lock, then what was made ready for it; seq_cst: for dp_known_found() */
	atomic_store_explicit(&q->state, state, memory_order_seq_cst);
}

int dp_qp_track(struct dp_qp *q)
{
	uint64_t n = slots_for(q->cap.max_send_wr);
	int ret;

	q->slot = calloc(n, sizeof(*q->slot));
	if (!q->slot)
		return -ENOMEM;
	ret = dp_order_init(&q->order, 1, dp_cfg.ordering, n);
	if (ret) {
		free(q->slot);
		q->slot = NULL;
		return ret;
	}
	dp_take(&q->scq->lock);
	dp_take(&q->lock);
	q->unrecorded = false;
	q->shifted = q->unplaced = 0;
	q->fail_pos = q->fail_next = q->fake_pos = UINT64_MAX;
	set_state(q, DP_QP_PENDING);
	watch(q);
	dp_drop(&q->lock);
	dp_drop(&q->scq->lock);
	/* after the state: a session that begins in between would take the pointers away again */
	dp_qpex_install(q);
	return 0;
}

static void to_native(struct dp_qp *q)
{
	if (atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_NATIVE)
		return;
	set_state(q, DP_QP_NATIVE);
	/* its next wr_start looks for it and finds out; a session that began by now is played */
	dp_qpex_hide(q);
	dp_meter_drop(q);
	dp_queue_drop(q);
	dp_fail_end(q);
	dp_qp_update_busy(q);
}

void dp_qp_native(struct dp_qp *q)
{
	to_native(q);
	unwatch(q);
}

/* Frees what tracking needed; no post or poll can be looking at it any more. */
static void free_tracking(struct dp_qp *q)
{
	dp_order_fini(&q->order);
	dp_copies_free(q);
	free(q->slot);
	q->slot = NULL;
	for (uint32_t r = 0; r < q->nrails; r++)
		free(q->rail[r].chain.sge);
	free(q->rail);
	q->rail = NULL;
	q->nrails = q->ntwins = 0;
}

void dp_qp_teardown(struct dp_qp *q)
{
	if (q->rcq != q->scq)
		purge(q->rcq, q->qp_num);
	if (!q->scq)
		return;
	dp_take(&q->scq->lock);
	dp_take(&q->lock);
	to_native(q);
	/* until the program connects it anew, as after create_qp */
	if (!q->destroyed && q->fallback < 0)
		watch(q);
	else
		unwatch(q);
	q->retry = q->twins_sqd = false;
	dp_cq_unready(q->scq, q);
	dp_cq_purge(q->scq, q->qp_num);
	dp_drop(&q->lock);
	dp_drop(&q->scq->lock);
	for (uint32_t r = 1; r < q->ntwins; r++)
		if (q->rail[r].twin)
			dp_twin_destroy(q, &q->rail[r]);
	dp_spare_destroy(q);
	dp_tell_destroy(q);
	free_tracking(q);
}

void dp_qp_untrack(struct dp_qp *q, int reason)
{
	if (reason >= 0)
		dp_fallback((enum dp_fallback)reason);
	dp_take(&q->scq->lock);
	dp_take(&q->lock);
	dp_qp_native(q);
	/* memory stays until the QP goes: a post may be waiting for the lock, and then reads the state again */
	dp_cq_unready(q->scq, q);
	dp_drop(&q->lock);
	dp_drop(&q->scq->lock);
}

/* ---- state changes ----------------------------------------------------------------------------------------- */

/* The program changed what its peer may do on a connected QP. With ctl held. */
static void change_access(struct dp_qp *q, unsigned int access)
{
	if (q->init.qp_access_flags == access)
		return;
	q->init.qp_access_flags = access;
	/* else the peer's fragments there would be refused, or done against the program's will */
	if (dp_bond_access(q))
		dp_bond_end(q);
}

/* With ctl held, before anything is posted: the peer is known now. */
static void choose_ordering(struct dp_qp *q)
{
	const struct ibv_ah_attr *ah = &q->rtr.ah_attr;

	dp_take(&q->lock);
	q->order.mode = ah->is_global ? dp_peer_ordering(dp_cfg.peer_ordering, ah->grh.dgid.raw, dp_cfg.ordering) :
					dp_cfg.ordering;
	dp_drop(&q->lock);
}

/* With ctl held: the program's transition happened. */
static void followed(struct dp_qp *q, const struct ibv_qp_attr *attr, int mask, bool *wait)
{
	*wait = false;
	if (!(mask & IBV_QP_STATE)) {
		if (mask & IBV_QP_ACCESS_FLAGS)
			change_access(q, attr->qp_access_flags);
		return;
	}
	switch (attr->qp_state) {
	case IBV_QPS_INIT:
		/* from INIT to INIT each of them is optional */
		if (mask & IBV_QP_PORT)
			q->init.port_num = attr->port_num;
		if (mask & IBV_QP_PKEY_INDEX)
			q->init.pkey_index = attr->pkey_index;
		if (mask & IBV_QP_ACCESS_FLAGS)
			q->init.qp_access_flags = attr->qp_access_flags;
		break;
	case IBV_QPS_RTR:
		q->rtr = *attr;
		if (mask & IBV_QP_ACCESS_FLAGS)
			q->init.qp_access_flags = attr->qp_access_flags;
		if (q->fallback < 0 && !q->slot && !dp_qp_track(q)) {
			choose_ordering(q);
			dp_bond_rtr(q);
		}
		break;
	case IBV_QPS_RTS:
		if (q->qp_state == IBV_QPS_RTR)
			q->rts = *attr;
		if (mask & IBV_QP_ACCESS_FLAGS)
			change_access(q, attr->qp_access_flags);
		dp_sqd_end(q);
		if (q->qp_state != IBV_QPS_RTR)
			break;
		*wait = q->bond != NULL;
		q->qp_state = IBV_QPS_RTS;
		dp_bond_rts(q);
		break;
	case IBV_QPS_RESET:
		dp_bond_end(q);
		dp_qp_teardown(q);
		q->incarnation++;
		break;
	case IBV_QPS_ERR:
		dp_bond_end(q);
		if (!q->scq)
			break;
		dp_take(&q->scq->lock);
		dp_take(&q->lock);
		if (atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_PENDING) {
			dp_qp_native(q);
			dp_cq_unready(q->scq, q);
		}
		dp_fail_by_program(q);
		dp_drop(&q->lock);
		dp_drop(&q->scq->lock);
		break;
	default:
		break;
	}
	q->qp_state = attr->qp_state;
}

/*
 * Before the program destroys or resets q: who polls meanwhile in another thread must neither post what is queued on a
 * QP that is being freed (or, after RESET, is to be used again), nor move it to ERR. With ctl held.
 */
static void going(struct dp_qp *q)
{
	dp_take(&q->lock);
	q->going = true;
	dp_drop(&q->lock);
}

/* It stays after all, or its twins are gone. With ctl held. */
static void not_going(struct dp_qp *q)
{
	if (q->scq)
		dp_take(&q->scq->lock);
	dp_take(&q->lock);
	q->going = false;
	/* whoever took keys away meanwhile did not find q */
	dp_qp_forget_key(q);
	if (q->scq && atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_BONDED) {
		q->retry = true; /* what might have gone meanwhile */
		dp_cq_ready(q->scq, q);
		if (q->tail_wcs) /* it failed meanwhile */
			dp_fail_by_program(q);
	}
	dp_drop(&q->lock);
	if (q->scq)
		dp_drop(&q->scq->lock);
}

/* What was read ahead of a QP that has no record goes, too. */
static void purge_both(struct ibv_cq *scq, struct ibv_cq *rcq, uint32_t qp_num)
{
	purge(scq ? dp_cq_find(scq) : NULL, qp_num);
	if (rcq && rcq != scq)
		purge(dp_cq_find(rcq), qp_num);
}

int dp_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	struct dp_qp *q = dp_qp_find(qp);
	struct dp_ctx *c;
	bool wait, locked, reset = mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RESET;
	int ret;

	if (!q) {
		c = dp_ctx_find(qp->context);
		ret = (c ? c->real : dp_stub->real_of(qp->context))->modify_qp(qp, attr, mask);
		if (c && reset && !ret)
			purge_both(qp->send_cq, qp->recv_cq, qp->qp_num);
		return ret;
	}
	dp_take(&q->ctl);
	if (reset)
		going(q);
	if (mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_SQD)
		dp_sqd_begin(q);
	locked = dp_qpex_before_modify(q);
	ret = q->c->real->modify_qp(qp, attr, mask);
	dp_qpex_after_modify(q, locked);
	if (ret) {
		if (reset)
			not_going(q);
		if (q->qp_state != IBV_QPS_SQD)
			dp_sqd_end(q);
		dp_drop(&q->ctl);
		return ret;
	}
	followed(q, attr, mask, &wait);
	if (reset)
		not_going(q);
	dp_qp_hold(q);
	dp_drop(&q->ctl);
	if (wait)
		dp_bond_wait(q);
	dp_qp_put(q);
	return 0;
}

void dp_qp_abandon(struct dp_qp *q)
{
	dp_take(&q->ctl);
	if (!q->destroyed) {
		q->destroyed = true;
		forget(q);
		dp_qpex_close(q);
		forget_sender(q);
		dp_tell_forget(q);
		dp_bond_end(q);
		dp_qp_teardown(q);
		dp_qp_put(q);
	}
	dp_drop(&q->ctl);
}

int dp_destroy_qp(struct ibv_qp *qp)
{
	struct ibv_cq *scq = qp->send_cq, *rcq = qp->recv_cq;
	struct dp_qp *q = dp_qp_find(qp);
	uint32_t qp_num = qp->qp_num;
	struct dp_ctx *c;
	int ret;

	if (!q) {
		c = dp_ctx_find(qp->context);
		ret = (c ? c->real : dp_stub->real_of(qp->context))->destroy_qp(qp);
		if (c && !ret)
			purge_both(scq, rcq, qp_num);
		return ret;
	}
	dp_take(&q->ctl);
	forget(q);
	going(q);
	dp_tell_forget(q);
	dp_drop(&q->ctl);
	/* without ctl: it waits until the program has acknowledged the QP's events, and the control thread must not */
	ret = q->c->real->destroy_qp(qp);
	if (!ret) {
		dp_qpex_close(q);
		forget_sender(q);
	}
	dp_take(&q->ctl);
	if (ret) {
		if (enter(q))
			dp_warn("qp 0x%x: out of memory after a failed destroy", q->qp_num);
		not_going(q);
		dp_drop(&q->ctl);
		return ret;
	}
	q->destroyed = true;
	dp_bond_end(q);
	dp_qp_teardown(q);
	dp_drop(&q->ctl);
	dp_qp_put(q);
	return 0;
}

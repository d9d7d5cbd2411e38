// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The life of a program's QPs: creation, state changes, destruction. */
#include "qp.h"
#include "bond.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct dp_hmap dp_qps = DP_HMAP_INIT;

struct dp_qp *dp_qp_find(struct ibv_qp *qp)
{
	return dp_hmap_getp(&dp_qps, qp);
}

void dp_qp_hold(struct dp_qp *q)
{
	atomic_fetch_add_explicit(&q->refs, 1, memory_order_relaxed);
}

void dp_qp_put(struct dp_qp *q)
{
	/* acq_rel: whoever frees it sees what the others did to it */
	if (atomic_fetch_sub_explicit(&q->refs, 1, memory_order_acq_rel) != 1)
		return;
	dp_lock_fini(&q->ctl);
	dp_lock_fini(&q->lock);
	free(q);
}

static void unlock_one(void *val, void *arg)
{
	struct dp_qp *q = val;

	(void)arg;
	dp_lock_init(&q->ctl);
	dp_lock_init(&q->lock);
}

void dp_qp_after_fork(void)
{
	dp_lock_init(&dp_qps.lock);
	dp_hmap_each(&dp_qps, unlock_one, NULL);
}

struct qp_list {
	struct dp_qp **qp;
	size_t n, cap;
	uintptr_t after; /* only QPs at higher addresses */
	bool sorted;	 /* no memory for more: keep the cap lowest ones, in order */
};

static void insert_sorted(struct qp_list *l, struct dp_qp *q)
{
	size_t i = l->n;

	if (i == l->cap) {
		if (l->qp[i - 1] < q)
			return;
		dp_qp_put(l->qp[--i]);
		l->n--;
	}
	for (; i && l->qp[i - 1] > q; i--)
		l->qp[i] = l->qp[i - 1];
	l->qp[i] = q;
	l->n++;
	dp_qp_hold(q);
}

static void collect(void *val, void *arg)
{
	struct qp_list *l = arg;

	if ((uintptr_t)val <= l->after)
		return;
	if (l->sorted) {
		insert_sorted(l, val);
		return;
	}
	l->n++;
	if (l->n <= l->cap) {
		dp_qp_hold(val);
		l->qp[l->n - 1] = val;
	}
}

static void visit(struct qp_list *l, void (*fn)(struct dp_qp *q, void *arg), void *arg)
{
	for (size_t i = 0; i < l->n; i++) {
		fn(l->qp[i], arg);
		l->after = (uintptr_t)l->qp[i];
		dp_qp_put(l->qp[i]);
	}
}

/* All of them, even without memory: callers rely on having waited for every poster. */
void dp_qp_each(void (*fn)(struct dp_qp *q, void *arg), void *arg)
{
	struct dp_qp *few[64];
	struct qp_list l = { 0 };

	/* fn may take any lock, so none is held meanwhile */
	do {
		free(l.qp);
		l.cap = l.n + 64;
		l.n = 0;
		l.qp = malloc(l.cap * sizeof(*l.qp));
		if (!l.qp)
			break;
		dp_hmap_each(&dp_qps, collect, &l);
		if (l.n <= l.cap) {
			visit(&l, fn, arg);
			free(l.qp);
			return;
		}
		for (size_t i = 0; i < l.cap; i++)
			dp_qp_put(l.qp[i]);
	} while (1);
	l = (struct qp_list){ .qp = few, .cap = sizeof(few) / sizeof(few[0]), .sorted = true };
	do {
		l.n = 0;
		dp_hmap_each(&dp_qps, collect, &l);
		visit(&l, fn, arg);
	} while (l.n);
}

static bool port_has_gid(struct dp_qp *q, const union ibv_gid *want)
{
	uint8_t port = q->init.port_num;
	union ibv_gid gid;

	if (!port)
		return false;
	for (int i = 0; i < 32; i++)
		if (!q->c->real->query_gid(q->qp->context, port, i, &gid) && !memcmp(&gid, want, sizeof(gid)))
			return true;
	return false;
}

struct by_address {
	const union ibv_gid *gid;
	uint32_t qpn;
	struct dp_qp *found;
};

static void hold_it(void *val)
{
	dp_qp_hold(val);
}

static void match_address(struct dp_ctx *c, void *arg)
{
	struct by_address *a = arg;
	struct dp_qp *q = a->found ? NULL : dp_hmap_get_held(&c->qpns, a->qpn, hold_it);

	if (!q)
		return;
	dp_take(&q->ctl);
	if (!q->destroyed && port_has_gid(q, a->gid))
		a->found = q;
	dp_drop(&q->ctl);
	if (!a->found)
		dp_qp_put(q);
}

struct dp_qp *dp_qp_by_address(const union ibv_gid *gid, uint32_t qpn)
{
	struct by_address a = { .gid = gid, .qpn = qpn };

	dp_ctx_each(match_address, &a);
	return a.found;
}

/* ---- creation ---------------------------------------------------------------------------------------------- */

static int why_native(const struct dp_qp *q, bool qp_ex)
{
	const char *single = getenv("MLX5_SINGLE_THREADED");
	bool sibling = false;

	if (qp_ex)
		return DP_FB_QP_EX;
	if (!q->scq)
		return DP_FB_CQ_EX;
	/* without a shadow its channel could not be told of completions that were held back */
	if (q->scq->cq->channel && !q->scq->channel)
		return DP_FB_CHANNEL;
	/* PDs that did not come through alloc_pd are parent domains, whose thread domains promise one thread */
	if ((!q->pd || (single && !strcmp(single, "1"))) && !dp_cfg.single_threaded)
		return DP_FB_SINGLE_THREADED;
	if (!q->pd)
		return DP_FB_NO_TWIN_DEVICE;
	for (uint32_t i = 0; i < q->c->nsib; i++)
		sibling |= q->c->sib[i].ctx && q->pd->twin[i];
	return sibling ? -1 : DP_FB_NO_TWIN_DEVICE;
}

/*
 * From create_qp on poll_cq looks at what it gets, long before there is something to see: a thread that is about to poll
 * natively, because nothing had to be looked at yet, must not take the first completion of a connection unseen; from
 * there on all would be matched to wrong WRs. With scq->lock held.
 */
static void watch(struct dp_qp *q)
{
	if (!q->watched)
		atomic_fetch_add_explicit(&q->scq->active, 1, memory_order_relaxed);
	q->watched = true;
}

static void unwatch(struct dp_qp *q)
{
	if (q->watched)
		atomic_fetch_sub_explicit(&q->scq->active, 1, memory_order_relaxed);
	q->watched = false;
}

/* Makes the record of a QP that the program just created. Without memory for it the QP is native. */
static void adopt(struct dp_ctx *c, struct ibv_qp *qp, struct ibv_pd *pd, struct ibv_cq *scq,
		  const struct ibv_qp_cap *cap, bool sq_sig_all, bool qp_ex)
{
	struct dp_qp *q;

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
	q->scq = scq ? dp_cq_find(scq) : NULL;
	q->post_send = c->ops.post_send;
	q->cap = *cap;
	q->sq_sig_all = sq_sig_all;
	atomic_init(&q->refs, 1);
	dp_lock_init(&q->ctl);
	dp_lock_init(&q->lock);
	q->fallback = why_native(q, qp_ex);
	if (q->fallback >= 0) {
		dp_fallback((enum dp_fallback)q->fallback);
		dp_info("qp 0x%x: one port: %s", q->qp_num, dp_fallback_str((enum dp_fallback)q->fallback));
	}
	if (dp_hmap_put(&c->qpns, q->qp_num, q)) {
		dp_qp_put(q);
		return;
	}
	if (dp_hmap_put(&dp_qps, (uintptr_t)qp, q)) {
		dp_hmap_del(&c->qpns, q->qp_num);
		dp_qp_put(q);
		return;
	}
	if (q->fallback < 0) {
		dp_take(&q->scq->lock);
		watch(q);
		dp_drop(&q->scq->lock);
	}
}

struct ibv_qp *dp_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct dp_ctx *c = dp_ctx_find(pd->context);
	struct ibv_qp *qp;

	if (!c)
		return dp_stub->real_of(pd->context)->create_qp(pd, attr);
	qp = c->real->create_qp(pd, attr);
	if (qp && c->group)
		adopt(c, qp, pd, attr->send_cq, &attr->cap, attr->sq_sig_all, false);
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
		adopt(c, qp, attr->comp_mask & IBV_QP_INIT_ATTR_PD ? attr->pd : NULL, attr->send_cq, &attr->cap,
		      attr->sq_sig_all, attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
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

#define MAX_SLOTS (UINT64_C(1) << 20)

bool dp_qp_room(struct dp_qp *q)
{
	uint64_t n = q->order.mask + 1;
	struct dp_slot *slot;

	if (!dp_order_full(&q->order))
		return true;
	/* a program that signals hardly ever, on a provider that frees its queue by itself */
	if (n * 2 > MAX_SLOTS)
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
	/* release: post_send reads the state without the lock, then what was made ready for it */
	atomic_store_explicit(&q->state, state, memory_order_release);
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
	set_state(q, DP_QP_PENDING);
	watch(q);
	dp_drop(&q->lock);
	dp_drop(&q->scq->lock);
	return 0;
}

static void to_native(struct dp_qp *q)
{
	if (atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_NATIVE)
		return;
	set_state(q, DP_QP_NATIVE);
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
	free(q->slot);
	q->slot = NULL;
	for (uint32_t r = 0; r < q->nrails; r++)
		free(q->rail[r].chain.sge);
	free(q->rail);
	q->rail = NULL;
	q->nrails = 0;
}

void dp_qp_teardown(struct dp_qp *q)
{
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
	q->retry = false;
	dp_cq_unready(q->scq, q);
	dp_cq_purge(q->scq, q->qp_num);
	dp_drop(&q->lock);
	dp_drop(&q->scq->lock);
	for (uint32_t r = 1; r < q->nrails; r++)
		if (q->rail[r].twin)
			dp_twin_destroy(q, &q->rail[r]);
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

/* With ctl held: the program's transition happened. */
static void followed(struct dp_qp *q, const struct ibv_qp_attr *attr, int mask, bool *wait)
{
	*wait = false;
	if (!(mask & IBV_QP_STATE))
		return;
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
		if (q->fallback < 0 && !q->slot && !dp_qp_track(q))
			dp_bond_rtr(q);
		break;
	case IBV_QPS_RTS:
		if (q->qp_state != IBV_QPS_RTR)
			break;
		q->rts = *attr;
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
		} else {
			dp_fail_by_program(q);
		}
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

int dp_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	struct dp_qp *q = dp_qp_find(qp);
	struct dp_ctx *c;
	bool wait, reset = mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RESET;
	int ret;

	if (!q) {
		c = dp_ctx_find(qp->context);
		return (c ? c->real : dp_stub->real_of(qp->context))->modify_qp(qp, attr, mask);
	}
	dp_take(&q->ctl);
	if (reset)
		going(q);
	ret = q->c->real->modify_qp(qp, attr, mask);
	if (ret) {
		if (reset)
			not_going(q);
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

static void forget(struct dp_qp *q)
{
	dp_hmap_del(&dp_qps, (uintptr_t)q->qp);
	if (dp_hmap_get(&q->c->qpns, q->qp_num) == q)
		dp_hmap_del(&q->c->qpns, q->qp_num);
}

void dp_qp_abandon(struct dp_qp *q)
{
	dp_take(&q->ctl);
	if (!q->destroyed) {
		q->destroyed = true;
		forget(q);
		dp_bond_end(q);
		dp_qp_teardown(q);
		dp_qp_put(q);
	}
	dp_drop(&q->ctl);
}

int dp_destroy_qp(struct ibv_qp *qp)
{
	struct dp_qp *q = dp_qp_find(qp);
	struct dp_ctx *c;
	int ret;

	if (!q) {
		c = dp_ctx_find(qp->context);
		return (c ? c->real : dp_stub->real_of(qp->context))->destroy_qp(qp);
	}
	dp_take(&q->ctl);
	/* the number and the pointer may be handed out anew as soon as the real one is gone */
	forget(q);
	going(q);
	ret = q->c->real->destroy_qp(qp);
	if (ret) {
		not_going(q);
		if (dp_hmap_put(&q->c->qpns, q->qp_num, q) || dp_hmap_put(&dp_qps, (uintptr_t)qp, q))
			dp_warn("qp 0x%x: out of memory after a failed destroy", q->qp_num);
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

/* ---- what else may be asked of a QP ------------------------------------------------------------------------ */

/* The program leaves the path that we see: nothing may be striped from here on. */
static void pin_native(struct dp_qp *q, enum dp_fallback reason)
{
	dp_take(&q->ctl);
	if (q->fallback < 0) {
		q->fallback = (int)reason;
		dp_fallback(reason);
		dp_bond_end(q);
		if (q->scq && q->slot) {
			dp_take(&q->scq->lock);
			dp_take(&q->lock);
			if (atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_PENDING)
				dp_qp_native(q);
			else
				dp_order_unbond(&q->order);
			dp_drop(&q->lock);
			dp_drop(&q->scq->lock);
		}
	}
	dp_drop(&q->ctl);
}

struct ibv_qp_ex *dp_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct dp_qp *q = dp_qp_find(qp);
	struct dp_ctx *c = dp_ctx_find(qp->context);
	struct ibv_qp_ex *ex = (c ? c->real : dp_stub->real_of(qp->context))->qp_to_qp_ex(qp);

	if (q && ex)
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
	if (q->scq && q->scq->cq == arg)
		pin_native(q, DP_FB_DIRECT_ACCESS);
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

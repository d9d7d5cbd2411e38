// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* All QPs of the process: finding one, by pointer or by the address that peers know it by, and going through all. */
#include "qp.h"
#include "rkeys.h"

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
	dp_qpex_free(q);
	if (q->pd)
		dp_pd_unuse(q->pd);
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
	dp_qpex_after_fork(q);
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
	/* before RTR it is not known which of the port's GIDs the QP will have */
	if (q->qp_state >= IBV_QPS_RTR && !memcmp(&q->gid, want, sizeof(*want)))
		return true;
	for (int i = 0; i < 32; i++)
		if (!q->c->real->query_gid(q->c->ctx, port, i, &gid) && !memcmp(&gid, want, sizeof(gid)))
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

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include "provider_fake.h"

#include <check.h>
#include <stdlib.h>

const struct dp_stub *dp_stub;
static const struct dp_verbs *verbs;

int fake_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	(void)ctx;
	*attr = (struct ibv_device_attr){ .phys_port_cnt = 1 };
	return 0;
}

const char *fake_device_name(struct ibv_device *dev)
{
	(void)dev;
	return "fake0";
}

struct ibv_cq *fake_create_cq(struct ibv_context *ctx, int cqe, void *cq_context, struct ibv_comp_channel *ch, int v)
{
	struct ibv_cq *cq = calloc(1, sizeof(*cq));

	(void)cqe;
	(void)cq_context;
	(void)ch;
	(void)v;
	cq->context = ctx;
	return cq;
}

static const struct dp_verbs *real_of(struct ibv_context *ctx)
{
	(void)ctx;
	return verbs;
}

static void inside(int delta)
{
	(void)delta;
}

void fake_begin(const struct dp_verbs *real, struct verbs_context *program)
{
	static const struct dp_stub stub = { .abi = DP_CORE_ABI, .real_of = real_of, .inside = inside };
	static struct dp_port_group group = { .gpu = -1, .nports = 2,
					      .ports = { { .dev = "fake0", .port = 1 }, { .dev = "fake1", .port = 1 } } };

	verbs = real;
	dp_stub = &stub;
	dp_cfg.groups = &group;
	dp_cfg.ngroups = 1;
	dp_cfg.ordering = DP_ORDER_SIGNAL;
	program->sz = sizeof(*program);
	program->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
}

struct dp_qp *fake_qp(struct ibv_qp *qp, struct dp_cq *cq, struct ibv_qp_cap cap)
{
	struct dp_qp *q = calloc(1, sizeof(*q));

	q->qp = qp;
	q->qp_num = qp->qp_num;
	q->c = dp_ctx_find(qp->context);
	ck_assert_ptr_nonnull(q->c);
	q->scq = cq;
	q->cap = cap;
	q->fallback = -1;
	dp_lock_init(&q->ctl);
	dp_lock_init(&q->lock);
	ck_assert_int_eq(dp_hmap_put(&cq->qpns, q->qp_num, q), 0);
	return q;
}

void fake_bond(struct dp_qp *q)
{
	q->nrails = 2;
	q->rail = calloc(2, sizeof(*q->rail));
	for (uint32_t r = 0; r < 2; r++) {
		q->rail[r].q = q;
		q->rail[r].idx = r;
		q->rail[r].flow = dp_flow_get(r ? "fake1:1" : "fake0:1", "peer");
		q->rail[r].chain.sge = calloc(DP_BATCH * 2, sizeof(struct ibv_sge));
	}
	ck_assert_int_eq(dp_order_widen(&q->order, 2), 0);
	dp_order_bond(&q->order);
	atomic_store(&q->state, DP_QP_BONDED);
}

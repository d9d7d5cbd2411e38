// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * More of the fake libibverbs: two devices whose provider takes whatever it is asked for (XRC, device memory, importing, ECE, rate
 * limits), and what the core asks of any device. Objects that a verb gives are new and have nothing behind them.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fakeverbs.h"
#include "verbs.h"

#define EXPORT __attribute__((visibility("default")))
#define NEW(var, context_)                                                                                            \
	do {                                                                                                          \
		(var) = calloc(1, sizeof(*(var)));                                                                    \
		(var)->context = (context_);                                                                          \
	} while (0)

static struct ibv_device devices[] = {{.name = "fake0", .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB},
				      {.name = "fake1", .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB}};

/* ---- what goes through the context ---- */

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	/* refuses a list of two at the second */
	int ret = wr->next ? ENOMEM : 0;

	FAKE_RECORD("post_send", qp->context, (uint64_t)ret, FAKE_P(qp), FAKE_P(wr), wr->qp_type.xrc.remote_srqn);
	if (ret)
		*bad = wr->next;
	return ret;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	(void)cq;
	(void)n;
	(void)wc;
	return 0;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	(void)cq;
	(void)solicited;
	return 0;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr)
{
	struct ibv_qp_init_attr plain = {.qp_type = attr->qp_type, .send_cq = attr->send_cq, .recv_cq = attr->recv_cq};
	struct ibv_pd of_xrcd = {.context = ctx};
	struct ibv_qp *qp = ibv_create_qp(attr->comp_mask & IBV_QP_INIT_ATTR_PD ? attr->pd : &of_xrcd, &plain);

	if (qp->pd == &of_xrcd)
		qp->pd = NULL;
	FAKE_RECORD("create_qp_ex", ctx, FAKE_P(qp), FAKE_P(ctx), FAKE_P(attr), attr->comp_mask, FAKE_P(attr->xrcd));
	return qp;
}

static struct ibv_qp *open_qp(struct ibv_context *ctx, struct ibv_qp_open_attr *attr)
{
	struct ibv_qp *qp;

	NEW(qp, ctx);
	qp->qp_num = attr->qp_num;
	qp->qp_type = attr->qp_type;
	FAKE_RECORD("open_qp", ctx, FAKE_P(qp), FAKE_P(ctx), FAKE_P(attr), attr->qp_num);
	return qp;
}

static struct ibv_xrcd *open_xrcd(struct ibv_context *ctx, struct ibv_xrcd_init_attr *attr)
{
	struct ibv_xrcd *x;

	NEW(x, ctx);
	FAKE_RECORD("open_xrcd", ctx, FAKE_P(x), FAKE_P(ctx), FAKE_P(attr), attr->comp_mask);
	return x;
}

static int close_xrcd(struct ibv_xrcd *x)
{
	FAKE_RECORD("close_xrcd", x->context, EBUSY, FAKE_P(x));
	return EBUSY;
}

static struct ibv_srq *create_srq_ex(struct ibv_context *ctx, struct ibv_srq_init_attr_ex *attr)
{
	struct ibv_srq *srq;

	NEW(srq, ctx);
	FAKE_RECORD("create_srq_ex", ctx, FAKE_P(srq), FAKE_P(ctx), FAKE_P(attr), FAKE_P(attr->xrcd), FAKE_P(attr->cq));
	return srq;
}

static int get_srq_num(struct ibv_srq *srq, uint32_t *num)
{
	*num = 4711;
	FAKE_RECORD("get_srq_num", srq->context, 0, FAKE_P(srq), FAKE_P(num));
	return 0;
}

static int memcpy_to_dm(struct ibv_dm *dm, uint64_t offset, const void *addr, size_t length)
{
	FAKE_RECORD("memcpy_to_dm", dm->context, EFAULT, FAKE_P(dm), offset, FAKE_P(addr), length);
	return EFAULT;
}

static struct ibv_dm *new_dm(struct ibv_context *ctx)
{
	struct ibv_dm *dm;

	NEW(dm, ctx);
	dm->memcpy_to_dm = memcpy_to_dm;
	return dm;
}

static struct ibv_dm *alloc_dm(struct ibv_context *ctx, struct ibv_alloc_dm_attr *attr)
{
	struct ibv_dm *dm = new_dm(ctx);

	FAKE_RECORD("alloc_dm", ctx, FAKE_P(dm), FAKE_P(ctx), FAKE_P(attr), attr->length, attr->log_align_req);
	return dm;
}

static int free_dm(struct ibv_dm *dm)
{
	FAKE_RECORD("free_dm", dm->context, 0, FAKE_P(dm));
	free(dm);
	return 0;
}

static struct ibv_mr *new_mr(struct ibv_pd *pd)
{
	struct ibv_mr *mr;

	NEW(mr, pd->context);
	mr->pd = pd;
	mr->lkey = mr->rkey = 0xbeef;
	return mr;
}

static struct ibv_mr *reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, unsigned int access)
{
	struct ibv_mr *mr = length == 13 ? NULL : new_mr(pd);

	FAKE_RECORD("reg_dm_mr", pd->context, FAKE_P(mr), FAKE_P(pd), FAKE_P(dm), offset, length, access);
	if (!mr)
		errno = ERANGE;
	return mr;
}

static int modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attr)
{
	FAKE_RECORD("modify_qp_rate_limit", qp->context, ERANGE, FAKE_P(qp), FAKE_P(attr), attr->rate_limit);
	return ERANGE;
}

/* ---- what is exported ---- */

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *dev)
{
	struct ibv_context *ctx = fake_open();
	struct verbs_context *v = verbs_get_ctx(ctx);

	ctx->device = dev;
	ctx->cmd_fd = ctx->async_fd = -1;
	ctx->num_comp_vectors = 1;
	ctx->ops.post_send = post_send;
	ctx->ops.poll_cq = poll_cq;
	ctx->ops.req_notify_cq = req_notify_cq;
	v->create_qp_ex = create_qp_ex;
	v->open_qp = open_qp;
	v->open_xrcd = open_xrcd;
	v->close_xrcd = close_xrcd;
	v->create_srq_ex = create_srq_ex;
	v->get_srq_num = get_srq_num;
	v->alloc_dm = alloc_dm;
	v->free_dm = free_dm;
	v->reg_dm_mr = reg_dm_mr;
	v->modify_qp_rate_limit = modify_qp_rate_limit;
	return ctx;
}

EXPORT struct ibv_context *ibv_import_device(int fd)
{
	struct ibv_context *ctx = ibv_open_device(&devices[0]);

	FAKE_RECORD("import_device", ctx, FAKE_P(ctx), (unsigned int)fd);
	return ctx;
}

EXPORT struct ibv_pd *ibv_import_pd(struct ibv_context *ctx, uint32_t handle)
{
	struct ibv_pd *pd;

	NEW(pd, ctx);
	FAKE_RECORD("import_pd", ctx, FAKE_P(pd), FAKE_P(ctx), handle);
	return pd;
}

EXPORT struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle)
{
	struct ibv_mr *mr = new_mr(pd);

	FAKE_RECORD("import_mr", pd->context, FAKE_P(mr), FAKE_P(pd), handle);
	return mr;
}

EXPORT struct ibv_dm *ibv_import_dm(struct ibv_context *ctx, uint32_t handle)
{
	struct ibv_dm *dm = new_dm(ctx);

	FAKE_RECORD("import_dm", ctx, FAKE_P(dm), FAKE_P(ctx), handle);
	return dm;
}

EXPORT void ibv_unimport_dm(struct ibv_dm *dm)
{
	FAKE_RECORD("unimport_dm", dm->context, 0, FAKE_P(dm));
	free(dm);
}

EXPORT int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	*ece = (struct ibv_ece){.vendor_id = 1, .options = 2, .comp_mask = 3};
	FAKE_RECORD("query_ece", qp->context, 0, FAKE_P(qp), FAKE_P(ece));
	return 0;
}

EXPORT int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	FAKE_RECORD("set_ece", qp->context, EINVAL, FAKE_P(qp), FAKE_P(ece), ece->vendor_id, ece->options);
	return EINVAL;
}

/* which the inline ibv_create_srq_ex refers to */
EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	(void)pd;
	(void)attr;
	errno = EOPNOTSUPP;
	return NULL;
}

EXPORT struct ibv_device **ibv_get_device_list(int *num)
{
	struct ibv_device **list = calloc(3, sizeof(*list));

	list[0] = &devices[0];
	list[1] = &devices[1];
	if (num)
		*num = 2;
	return list;
}

EXPORT void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

EXPORT const char *ibv_get_device_name(struct ibv_device *dev)
{
	return dev->name;
}

EXPORT int ibv_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	(void)ctx;
	memset(attr, 0, sizeof(*attr));
	attr->phys_port_cnt = 1;
	attr->max_qp_wr = attr->max_cqe = 1024;
	attr->max_sge = 4;
	return 0;
}

EXPORT int ibv_query_port(struct ibv_context *ctx, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	struct ibv_port_attr *a = (struct ibv_port_attr *)attr;

	(void)ctx;
	(void)port;
	a->state = IBV_PORT_ACTIVE;
	return 0;
}

EXPORT int ibv_query_gid(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid)
{
	(void)ctx;
	(void)port;
	(void)index;
	memset(gid, 0, sizeof(*gid));
	return 0;
}

EXPORT int ibv_query_pkey(struct ibv_context *ctx, uint8_t port, int index, __be16 *pkey)
{
	(void)ctx;
	(void)port;
	(void)index;
	*pkey = 0xffff;
	return 0;
}

EXPORT int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	(void)mask;
	memset(attr, 0, sizeof(*attr));
	memset(init, 0, sizeof(*init));
	attr->qp_state = qp->state;
	return 0;
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
	(void)event;
}

EXPORT const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	(void)status;
	return "";
}

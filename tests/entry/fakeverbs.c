// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include "fakeverbs.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

#define EXPORT __attribute__((visibility("default")))

struct counter {
	const char *name;
	_Atomic int n;
};

static struct counter old_alloc_pd = {"alloc_pd@1.0", 0};
#define COUNTER(ret, verb, version, params, args) static struct counter c_##verb = {#verb, 0};
DP_VERBS_HOOKED(COUNTER)

EXPORT int fake_count(const char *verb)
{
	static struct counter *const all[] = {
#define REF(ret, verb, version, params, args) &c_##verb,
		DP_VERBS_HOOKED(REF) & old_alloc_pd,
	};
	size_t i;

	for (i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (!strcmp(verb, all[i]->name))
			return atomic_load(&all[i]->n);
	return -1;
}

static struct fake_call calls[FAKE_CALLS];
static int ncalls;
static pthread_mutex_t calls_lock = PTHREAD_MUTEX_INITIALIZER;

EXPORT void fake_record(const char *verb, const struct ibv_context *ctx, uint64_t ret, const uint64_t arg[6])
{
	pthread_mutex_lock(&calls_lock);
	if (ncalls < FAKE_CALLS) {
		calls[ncalls] = (struct fake_call){.verb = verb, .ctx = ctx, .ret = ret};
		memcpy(calls[ncalls++].arg, arg, sizeof(calls[0].arg));
	}
	pthread_mutex_unlock(&calls_lock);
}

EXPORT int fake_calls(struct fake_call out[FAKE_CALLS])
{
	int n;

	pthread_mutex_lock(&calls_lock);
	n = ncalls;
	memcpy(out, calls, sizeof(calls));
	pthread_mutex_unlock(&calls_lock);
	return n;
}

EXPORT void fake_forget(void)
{
	pthread_mutex_lock(&calls_lock);
	ncalls = 0;
	pthread_mutex_unlock(&calls_lock);
}

/* of regions and of queue pairs */
static uint32_t next_number(void)
{
	static _Atomic uint32_t last;

	return atomic_fetch_add(&last, 1) + 1;
}

#define HIT(verb) atomic_fetch_add(&c_##verb.n, 1)

static int query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr, size_t len)
{
	(void)ctx;
	(void)port;
	memset(attr, 0, len);
	return 0;
}

EXPORT struct ibv_context *fake_open(void)
{
	struct verbs_context *v = calloc(1, sizeof(*v));

	v->sz = sizeof(*v);
	v->query_port = query_port;
	v->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	return &v->context;
}

EXPORT struct ibv_context *fake_open_old(void)
{
	struct ibv_context *ctx = fake_open();

	ctx->abi_compat = NULL;
	return ctx;
}

EXPORT int ibv_close_device(struct ibv_context *ctx)
{
	HIT(close_device);
	free((char *)ctx - offsetof(struct verbs_context, context));
	return 0;
}

static struct ibv_pd *new_pd(struct ibv_context *ctx)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	pd->context = ctx;
	return pd;
}

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *ctx)
{
	HIT(alloc_pd);
	return new_pd(ctx);
}

struct ibv_pd *alloc_pd_1_0(struct ibv_context *ctx);
EXPORT struct ibv_pd *alloc_pd_1_0(struct ibv_context *ctx)
{
	atomic_fetch_add(&old_alloc_pd.n, 1);
	return new_pd(ctx);
}
__asm__(".symver alloc_pd_1_0, ibv_alloc_pd@IBVERBS_1.0");

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
	HIT(dealloc_pd);
	free(pd);
	return 0;
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	HIT(reg_mr_iova2);
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->lkey = mr->rkey = next_number();
	FAKE_RECORD("reg_mr_iova2", pd->context, FAKE_P(mr), FAKE_P(pd), FAKE_P(addr), length, iova, access);
	return mr;
}

/* through the PLT, as libibverbs does: it comes back into the stub */
EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	HIT(reg_mr);
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	HIT(reg_mr_iova);
	return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned int)access);
}

#ifndef BEFORE_1_12
EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
					int access)
{
	(void)offset;
	(void)fd;
	HIT(reg_dmabuf_mr);
	return ibv_reg_mr_iova2(pd, NULL, length, iova, (unsigned int)access);
}

EXPORT struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr)
{
	const struct dp_mr_init_attr *a = (const struct dp_mr_init_attr *)attr;

	HIT(reg_mr_ex);
	return ibv_reg_mr_iova2(pd, a->addr, a->length, a->iova, (unsigned int)a->access);
}

EXPORT struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access)
{
	struct dp_mr_init_attr a = {.length = length,
				    .access = access,
				    .comp_mask = DP_MR_INIT_ADDR | DP_MR_INIT_BUF,
				    .addr = addr,
				    .buf = buf};

	HIT(reg_buf_mr);
	return ibv_reg_mr_ex(pd, (struct ibv_mr_init_attr *)&a);
}

/* refuses what is attached to nothing */
EXPORT int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *cntr, struct ibv_qp_attach_comp_cntr_attr *attr)
{
	int ret = cntr ? 0 : EINVAL;

	HIT(qp_attach_comp_cntr);
	FAKE_RECORD("qp_attach_comp_cntr", qp->context, (uint64_t)ret, FAKE_P(qp), FAKE_P(cntr), FAKE_P(attr));
	return ret;
}
#endif

EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	(void)flags;
	(void)pd;
	(void)access;
	HIT(rereg_mr);
	mr->addr = addr;
	mr->length = length;
	return 0;
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
	HIT(dereg_mr);
	free(mr);
	return 0;
}

EXPORT void ibv_unimport_mr(struct ibv_mr *mr)
{
	HIT(unimport_mr);
	FAKE_RECORD("unimport_mr", mr->context, 0, FAKE_P(mr));
	free(mr);
}

EXPORT void ibv_unimport_pd(struct ibv_pd *pd)
{
	HIT(unimport_pd);
	FAKE_RECORD("unimport_pd", pd->context, 0, FAKE_P(pd));
	free(pd);
}

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *ctx)
{
	struct ibv_comp_channel *channel = calloc(1, sizeof(*channel));

	HIT(create_comp_channel);
	channel->context = ctx;
	return channel;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	HIT(destroy_comp_channel);
	free(channel);
	return 0;
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *ctx, int cqe, void *cq_context, struct ibv_comp_channel *channel,
				    int vector)
{
	struct ibv_cq *cq = calloc(1, sizeof(*cq));

	(void)vector;
	HIT(create_cq);
	cq->context = ctx;
	cq->channel = channel;
	cq->cq_context = cq_context;
	cq->cqe = cqe;
	return cq;
}

EXPORT int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
	HIT(resize_cq);
	cq->cqe = cqe;
	return 0;
}

EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
	HIT(destroy_cq);
	free(cq);
	return 0;
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	(void)channel;
	(void)cq;
	(void)cq_context;
	HIT(get_cq_event);
	return 0;
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
	(void)cq;
	(void)nevents;
	HIT(ack_cq_events);
}

EXPORT int ibv_get_async_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
	(void)ctx;
	(void)event;
	HIT(get_async_event);
	return 0;
}

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *qp = calloc(1, sizeof(*qp));

	HIT(create_qp);
	qp->context = pd->context;
	qp->pd = pd;
	qp->send_cq = attr->send_cq;
	qp->recv_cq = attr->recv_cq;
	qp->qp_type = attr->qp_type;
	qp->qp_num = next_number();
	FAKE_RECORD("create_qp", pd->context, FAKE_P(qp), FAKE_P(pd), FAKE_P(attr), attr->qp_type);
	return qp;
}

EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	HIT(modify_qp);
	FAKE_RECORD("modify_qp", qp->context, 0, FAKE_P(qp), FAKE_P(attr), (unsigned int)mask);
	if (mask & IBV_QP_STATE)
		qp->state = attr->qp_state;
	return 0;
}

EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
	HIT(destroy_qp);
	free(qp);
	return 0;
}

EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	(void)qp;
	HIT(qp_to_qp_ex);
	return NULL;
}

EXPORT int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	(void)qp;
	(void)op;
	(void)flags;
	HIT(query_qp_data_in_order);
	return 1;
}

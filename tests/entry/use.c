// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include "use.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(cond)                                                                                                    \
	do {                                                                                                          \
		if (!(cond)) {                                                                                        \
			fprintf(stderr, "entry: %s failed\n", #cond);                                                 \
			return -1;                                                                                    \
		}                                                                                                     \
	} while (0)

int use_all(const struct api *api)
{
	const struct dp_verbs *v = &api->v;
	struct ibv_context *ctx = api->open();
	struct ibv_async_event event;
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
	struct ibv_comp_channel *channel;
	struct ibv_mr *mr[6] = {NULL};
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_pd *pd, *imported;
	char buf[64];
	struct dp_mr_init_attr ex = {.length = sizeof(buf), .comp_mask = DP_MR_INIT_ADDR, .addr = buf};
	void *cookie;
	int i;

	MUST(pd = v->alloc_pd(ctx));
	MUST(pd->context == ctx);
	MUST(mr[0] = v->reg_mr(pd, buf, sizeof(buf), 0));
	MUST(mr[0]->addr == buf && mr[0]->length == sizeof(buf) && mr[0]->pd == pd);
	MUST(mr[1] = v->reg_mr_iova(pd, buf, sizeof(buf), 4096, 0));
	MUST(mr[2] = v->reg_mr_iova2(pd, buf, sizeof(buf), 4096, 0));
	if (v->reg_dmabuf_mr)
		MUST(mr[3] = v->reg_dmabuf_mr(pd, 0, sizeof(buf), 0, 3, 0));
	if (v->reg_mr_ex)
		MUST(mr[4] = v->reg_mr_ex(pd, (struct ibv_mr_init_attr *)&ex));
	if (v->reg_buf_mr)
		MUST(mr[5] = v->reg_buf_mr(pd, NULL, buf, sizeof(buf), 0));
	MUST(!v->rereg_mr(mr[0], IBV_REREG_MR_CHANGE_TRANSLATION, NULL, buf, 32, 0));
	MUST(mr[0]->length == 32);
	MUST(channel = v->create_comp_channel(ctx));
	MUST(cq = v->create_cq(ctx, 16, buf, channel, 0));
	MUST(cq->cq_context == buf && cq->channel == channel && cq->cqe == 16);
	MUST(!v->resize_cq(cq, 32));
	MUST(cq->cqe == 32);
	init.send_cq = init.recv_cq = cq;
	MUST(qp = v->create_qp(pd, &init));
	MUST(!v->qp_to_qp_ex(qp));
	MUST(v->query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0) == 1);
	if (v->qp_attach_comp_cntr)
		MUST(!v->qp_attach_comp_cntr(qp, (struct ibv_comp_cntr *)buf, NULL));
	MUST(!v->modify_qp(qp, &attr, IBV_QP_STATE));
	MUST(qp->state == IBV_QPS_INIT);
	MUST(!v->get_cq_event(channel, &cq, &cookie));
	v->ack_cq_events(cq, 1);
	MUST(!v->get_async_event(ctx, &event));
	MUST(!v->destroy_qp(qp));
	MUST(!v->destroy_cq(cq));
	MUST(!v->destroy_comp_channel(channel));
	for (i = 0; i < 6; i++)
		if (mr[i])
			MUST(!v->dereg_mr(mr[i]));
	MUST(mr[0] = calloc(1, sizeof(*mr[0])));
	mr[0]->context = ctx;
	v->unimport_mr(mr[0]);
	MUST(imported = calloc(1, sizeof(*imported)));
	imported->context = ctx;
	v->unimport_pd(imported);
	MUST(!v->dealloc_pd(pd));
	MUST(!v->close_device(ctx));
	return 0;
}

int use_calls(const char *verb)
{
	return strcmp(verb, "dereg_mr") ? 1 : 6;
}

int use_reaches(const char *verb)
{
	if (!strcmp(verb, "reg_mr_ex"))
		return 2; /* the fake's reg_buf_mr goes through it */
	/* the other registrations of the fake end in this one */
	return strcmp(verb, "reg_mr_iova2") ? use_calls(verb) : 6;
}

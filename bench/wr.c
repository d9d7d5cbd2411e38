// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * wr post_send|wr_ex signal|bulk: posts requests one by one and polls them one by one, for bench/post to count the
 * instructions of bench_post() and bench_poll(). Both ends are in this process. A poll is counted only when its
 * completion is there already: the devices are driven by another queue's polls.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../tests/clients/ex.h"
#include "../tests/clients/rc_pair.h"

#define DEPTH 32
#define ROUNDS 32
#define BULK 16384

static struct rc_dev dev[2];
static struct ibv_cq *cq[2];
static struct ibv_qp *qp[2];
static struct ibv_mr *mr[2];
static char buf[2][BULK];

__attribute__((noinline)) int bench_post(struct ibv_qp *q, struct ibv_send_wr *wr);
__attribute__((noinline)) int bench_post_ex(struct ibv_qp_ex *ex, const struct ibv_send_wr *wr);
__attribute__((noinline)) int bench_poll(struct ibv_cq *q, struct ibv_wc *wc);
__attribute__((noinline)) int bench_poll_ex(struct ibv_cq_ex *q, struct ibv_wc *wc);

int bench_post(struct ibv_qp *q, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	return ibv_post_send(q, wr, &bad);
}

int bench_post_ex(struct ibv_qp_ex *ex, const struct ibv_send_wr *wr)
{
	ibv_wr_start(ex);
	ex->wr_id = wr->wr_id;
	ex->wr_flags = wr->send_flags;
	ibv_wr_rdma_write(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
	ibv_wr_set_sge(ex, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
	return ibv_wr_complete(ex);
}

int bench_poll(struct ibv_cq *q, struct ibv_wc *wc)
{
	return ibv_poll_cq(q, 1, wc);
}

int bench_poll_ex(struct ibv_cq_ex *q, struct ibv_wc *wc)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int ret = ibv_start_poll(q, &attr);

	if (ret)
		return 0;
	wc->wr_id = q->wr_id;
	wc->status = q->status;
	wc->opcode = ibv_wc_read_opcode(q);
	wc->qp_num = ibv_wc_read_qp_num(q);
	ibv_end_poll(q);
	return 1;
}

static int die(const char *what)
{
	perror(what);
	return 2;
}

static struct ibv_cq *make_cq(struct ibv_context *ctx, bool ex)
{
	struct ibv_cq_init_attr_ex a = { .cqe = 2 * DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *q = ex ? ibv_create_cq_ex(ctx, &a) : NULL;

	return ex ? q ? ibv_cq_ex_to_cq(q) : NULL : vb.create_cq(ctx, 2 * DEPTH, NULL, NULL, 0);
}

int main(int argc, char **argv)
{
	bool ex = argc > 1 && !strcmp(argv[1], "wr_ex"), bulk = argc > 2 && !strcmp(argv[2], "bulk");
	struct rc_addr at[2];
	struct ibv_wc wc;

	if (verbs_load("link", NULL))
		return 2;
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr a = {
			.qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = DEPTH + 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		};

		if (rc_open(&dev[i], i ? "mlx5_2" : "mlx5_0", 1, -1))
			return 2;
		mr[i] = vb.reg_mr(dev[i].pd, buf[i], BULK, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		cq[i] = make_cq(dev[i].ctx, ex);
		if (!mr[i] || !cq[i])
			return die("reg_mr, create_cq");
		a.send_cq = a.recv_cq = cq[i];
		qp[i] = ex ? ex_create_qp(dev[i].pd, &a) : vb.create_qp(dev[i].pd, &a);
		if (!qp[i])
			return die("create_qp");
		rc_addr_of(&dev[i], qp[i], 7, &at[i]);
	}
	for (int i = 0; i < 2; i++)
		if (rc_to_init(&dev[i], qp[i], NULL) || rc_to_rtr(&dev[i], qp[i], &at[!i], NULL))
			return 2;
	for (int i = 0; i < 2; i++)
		if (rc_to_rts(qp[i], 7, NULL))
			return 2;
	for (int r = 0; r < ROUNDS; r++) {
		for (int k = 0; k < DEPTH; k++) {
			struct ibv_sge s = { (uintptr_t)buf[0], bulk ? BULK : 8, mr[0]->lkey };
			struct ibv_send_wr w = { .wr_id = (uint64_t)k, .sg_list = &s, .num_sge = 1,
						 .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
						 .wr.rdma = { (uintptr_t)buf[1], mr[1]->rkey } };

			if (ex ? bench_post_ex(vb.qp_to_qp_ex(qp[0]), &w) : bench_post(qp[0], &w))
				return die("post");
		}
		for (int i = 0; i < 100; i++)
			if (ibv_poll_cq(cq[1], 1, &wc))
				return die("the other end's cq");
		for (int k = 0; k < DEPTH;) {
			int n = ex ? bench_poll_ex((struct ibv_cq_ex *)cq[0], &wc) : bench_poll(cq[0], &wc);

			if (n && (wc.status || wc.wr_id != (uint64_t)k))
				return die("completion");
			k += n;
		}
	}
	printf("%d requests\n", ROUNDS * DEPTH);
	for (int i = 0; i < 2; i++)
		if (vb.destroy_qp(qp[i]) || vb.destroy_cq(cq[i]) || vb.dereg_mr(mr[i]) || rc_close(&dev[i]))
			return die("destroy");
	return 0;
}

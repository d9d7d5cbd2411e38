// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * XRC beside RC: one queue pair that sends and one that receives for two shared queues, of which one completes in the CQ that
 * an RC QP has, too. All kinds of requests, each with a WRITE of the RC QP under way.
 */
#include <errno.h>
#include <string.h>

#include "ex.h"
#include "mini.h"
#include "surface_xrc.h"

struct conn {
	struct mend *a, *b;
	size_t big;
	struct ibv_xrcd *x;
	struct ibv_cq *own;
	struct ibv_srq *srq[2];
	uint32_t srqn[2];
	struct ibv_qp *tx, *rx;
};

static const char *text(int err)
{
	return err ? strerror(err) : "ok";
}

static struct ibv_srq *new_srq(struct conn *c, struct ibv_cq *cq, uint32_t *num)
{
	struct ibv_srq_init_attr_ex a = { .attr = { .max_wr = 16, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = c->b->dev.pd,
		.xrcd = c->x, .cq = cq, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
						     IBV_SRQ_INIT_ATTR_CQ };
	struct ibv_srq *s = ibv_create_srq_ex(c->b->dev.ctx, &a);

	CHECK(s && !ibv_get_srq_num(s, num), "create_srq_ex: %s", strerror(errno));
	return s;
}

static bool make(struct conn *c, bool ex)
{
	struct ibv_xrcd_init_attr xa = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1 };
	struct ibv_qp_init_attr_ex ra = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD };
	struct ibv_qp_init_attr_ex sa = { .qp_type = IBV_QPT_XRC_SEND, .pd = c->a->dev.pd, .send_cq = c->a->cq,
		.cap = { .max_send_wr = 16, .max_send_sge = 1 }, .comp_mask = IBV_QP_INIT_ATTR_PD };

	if (ex) {
		sa.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		sa.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
				    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
				    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	}
	c->x = ibv_open_xrcd(c->b->dev.ctx, &xa);
	c->own = any_create_cq(c->b->dev.ctx, 16, NULL, NULL, 0);
	CHECK(c->x && c->own, "open_xrcd: %s", strerror(errno));
	if (!c->x || !c->own)
		return false;
	c->srq[0] = new_srq(c, c->b->cq, &c->srqn[0]);
	c->srq[1] = new_srq(c, c->own, &c->srqn[1]);
	ra.xrcd = c->x;
	c->rx = ibv_create_qp_ex(c->b->dev.ctx, &ra);
	c->tx = ibv_create_qp_ex(c->a->dev.ctx, &sa);
	CHECK(c->rx && c->tx, "create_qp_ex: %s", strerror(errno));
	return c->srq[0] && c->srq[1] && c->rx && c->tx;
}

static int up(struct mend *e, struct ibv_qp *qp, const struct mend *to, uint32_t qpn)
{
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = e->dev.port_num };
	int err;

	if (qp->qp_type == IBV_QPT_XRC_RECV)
		at.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	err = vb.modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qpn, .rq_psn = 7,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = e->dev.port_num, .grh = { .dgid = to->dev.gid, .hop_limit = 64,
			     .sgid_index = (uint8_t)e->dev.gid_index } } };
	/* the kernel leaves out what is the other side's */
	if (!err)
		err = vb.modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7,
				   .max_rd_atomic = 4 };
	return err ? err : vb.modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static int post_ex(struct ibv_qp_ex *x, const struct ibv_send_wr *wr)
{
	ibv_wr_start(x);
	x->wr_id = wr->wr_id;
	x->wr_flags = wr->send_flags;
	switch (wr->opcode) {
	case IBV_WR_SEND:
		ibv_wr_send(x);
		break;
	case IBV_WR_SEND_WITH_IMM:
		ibv_wr_send_imm(x, wr->imm_data);
		break;
	case IBV_WR_RDMA_WRITE:
		ibv_wr_rdma_write(x, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		ibv_wr_rdma_write_imm(x, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
		break;
	case IBV_WR_RDMA_READ:
		ibv_wr_rdma_read(x, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	default:
		ibv_wr_atomic_fetch_add(x, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add);
	}
	ibv_wr_set_xrc_srqn(x, wr->qp_type.xrc.remote_srqn);
	ibv_wr_set_sge(x, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
	return ibv_wr_complete(x);
}

/* From the second quarter of a's memory to the last of b's. */
static void post(struct conn *c, bool ex, enum ibv_wr_opcode op, size_t len, uint32_t srqn, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)c->a->buf + c->big, (uint32_t)len, c->a->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED,
				  .qp_type.xrc.remote_srqn = srqn }, *bad;
	uint64_t to = (uintptr_t)c->b->buf + 3 * c->big;
	int err;

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = to;
		wr.wr.atomic.rkey = c->b->mr->rkey;
		wr.wr.atomic.compare_add = 5;
	} else {
		wr.imm_data = (uint32_t)id;
		wr.wr.rdma.remote_addr = to;
		wr.wr.rdma.rkey = c->b->mr->rkey;
	}
	err = ex ? post_ex(ibv_qp_to_qp_ex(c->tx), &wr) : ibv_post_send(c->tx, &wr, &bad);
	CHECK(!err, "post %llu: %s", (unsigned long long)id, strerror(err));
}

static void recv_on(struct conn *c, int which, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)c->b->buf + 3 * c->big, (uint32_t)c->big, c->b->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!ibv_post_srq_recv(c->srq[which], &wr, &bad), "post_srq_recv");
}

static void received(struct conn *c, int which, uint64_t id)
{
	struct ibv_wc wc = { 0 };

	CHECK(rc_poll_one(which ? c->own : c->b->cq, &wc, 10000) == 1, "no receive");
	CHECK(wc.wr_id == id && wc.qp_num == c->rx->qp_num && wc.src_qp == c->tx->qp_num, "receive");
	printf("  received: %s, opcode %d, len %u, imm %u\n", vb.wc_status_str(wc.status), wc.opcode, wc.byte_len,
	       wc.wc_flags & IBV_WC_WITH_IMM ? wc.imm_data : 0);
}

/* Both requests' completions, in whatever order. bulk: the RC QP's wr_id, 0: it has none. */
static void sent(struct conn *c, uint64_t id, uint64_t bulk)
{
	for (int i = 0; i < (bulk ? 2 : 1); i++) {
		struct ibv_wc wc = { 0 };

		CHECK(rc_poll_one(c->a->cq, &wc, 10000) == 1, "no completion");
		if (wc.qp_num == c->tx->qp_num) {
			CHECK(wc.wr_id == id, "wr_id %llu", (unsigned long long)wc.wr_id);
			printf("  sent: %s, opcode %d\n", vb.wc_status_str(wc.status), wc.status ? 0 : (int)wc.opcode);
		} else {
			CHECK(wc.wr_id == bulk && !wc.status && wc.qp_num == c->a->qp->qp_num, "bulk %llu: %s",
			      (unsigned long long)wc.wr_id, vb.wc_status_str(wc.status));
		}
	}
}

static void one(struct conn *c, bool ex, enum ibv_wr_opcode op, int which, uint64_t id)
{
	bool recvs = op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_RDMA_WRITE_WITH_IMM;
	bool atomic = op == IBV_WR_ATOMIC_FETCH_AND_ADD;
	uint8_t *from = c->a->buf + c->big, *to = c->b->buf + 3 * c->big;
	size_t len = atomic ? 8 : c->big;
	uint64_t was, now;

	pattern_fill(c->a->buf, id, 0, c->big);
	pattern_fill(from, id + 1000, 0, c->big);
	if (op == IBV_WR_RDMA_READ || atomic)
		pattern_fill(to, id + 2000, 0, c->big);
	memcpy(&was, to, 8);
	if (recvs)
		recv_on(c, which, id);
	CHECK(!mend_post(c->a, &(struct mwr){ .op = IBV_WR_RDMA_WRITE, .len = c->big, .raddr = (uintptr_t)c->b->buf + 2 * c->big,
					      .rkey = c->b->mr->rkey, .flags = IBV_SEND_SIGNALED, .id = 500 + id }), "post");
	post(c, ex, op, len, c->srqn[which], id);
	sent(c, id, 500 + id);
	if (recvs)
		received(c, which, id);
	CHECK(!memcmp(c->a->buf, c->b->buf + 2 * c->big, c->big), "bulk beside %llu", (unsigned long long)id);
	if (!atomic) {
		CHECK(!memcmp(from, to, len), "data %llu", (unsigned long long)id);
		return;
	}
	memcpy(&now, to, 8);
	CHECK(!memcmp(from, &was, 8) && now == was + 5, "atomic %llu", (unsigned long long)id);
}

static void again(struct conn *c)
{
	struct ibv_qp_open_attr a = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
				      .qp_num = c->rx->qp_num, .xrcd = c->x, .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_qp *qp = ibv_open_qp(c->b->dev.ctx, &a);

	CHECK(qp, "open_qp: %s", strerror(errno));
	if (!qp)
		return;
	CHECK(qp != c->rx && qp->qp_num == c->rx->qp_num && !vb.destroy_qp(c->rx), "open_qp");
	c->rx = qp;
}

void surface_xrc(struct mend *a, struct mend *b, size_t big, bool ex)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND_WITH_IMM,
						  IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_WRITE_WITH_IMM };
	struct conn c = { .a = a, .b = b, .big = big };

	if (!make(&c, ex))
		return;
	CHECK(!up(a, c.tx, b, c.rx->qp_num) && !up(b, c.rx, a, c.tx->qp_num), "modify_qp");
	for (uint64_t i = 0; i < 24; i++) {
		if (i == 12)
			again(&c);
		one(&c, ex, ops[i % 6], i % 4 > 1, 1 + i);
	}
	printf("  in use: %s, %s\n", text(ibv_close_xrcd(c.x)), text(vb.destroy_cq(c.own)));
	post(&c, ex, IBV_WR_SEND, 8, 0xfffff, 90);
	sent(&c, 90, 0);
	CHECK(!vb.destroy_qp(c.tx) && !vb.destroy_qp(c.rx), "destroy_qp");
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_srq(c.srq[i]), "destroy_srq");
	printf("  destroy: %s, %s\n", text(vb.destroy_cq(c.own)), text(ibv_close_xrcd(c.x)));
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "test_end.h"

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static int opt(int v, int def)
{
	return v < 0 ? 0 : v ? v : def;
}

struct ibv_context *open_dev(int dev)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *ctx;

	ck_assert_int_gt(n, dev);
	ctx = ibv_open_device(list[dev]);
	ck_assert_ptr_nonnull(ctx);
	ibv_free_device_list(list);
	return ctx;
}

static void open_cq(struct end *e, const struct end_opts *o)
{
	struct ibv_cq_init_attr_ex a = { .cqe = o->cqe ? o->cqe : 1024, .wc_flags = o->wc_flags, .flags = o->cq_flags,
					 .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS };

	if (o->wc_flags || o->cq_flags)
		e->cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(e->ctx, &a));
	else
		e->cq = ibv_create_cq(e->ctx, (int)a.cqe, NULL, NULL, 0);
	ck_assert_ptr_nonnull(e->cq);
}

static void open_qp(struct end *e, const struct end_opts *o)
{
	struct ibv_qp_init_attr_ex a = { .qp_type = o->type ? (enum ibv_qp_type)o->type : IBV_QPT_RC, .pd = e->pd,
					 .comp_mask = IBV_QP_INIT_ATTR_PD, .send_ops_flags = o->send_ops };
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = o->srq, .max_sge = 4 } };

	if (o->srq) {
		e->srq = ibv_create_srq(e->pd, &sa);
		ck_assert_ptr_nonnull(e->srq);
	}
	if (o->send_ops)
		a.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	a.send_cq = a.recv_cq = e->cq;
	a.srq = e->srq;
	a.sq_sig_all = !o->no_sig_all;
	a.cap.max_send_wr = o->sq ? o->sq : 64;
	a.cap.max_recv_wr = o->rq ? o->rq : 64;
	a.cap.max_send_sge = a.cap.max_recv_sge = o->sge ? o->sge : 4;
	a.cap.max_inline_data = o->inl ? o->inl : 64;
	e->qp = ibv_create_qp_ex(e->ctx, &a);
	ck_assert_ptr_nonnull(e->qp);
}

void end_open(struct end *e, int dev, const struct end_opts *o)
{
	static const struct end_opts none;
	struct ibv_port_attr port;

	o = o ? o : &none;
	memset(e, 0, sizeof(*e));
	e->ctx = open_dev(dev);
	e->pd = ibv_alloc_pd(e->ctx);
	ck_assert_ptr_nonnull(e->pd);
	open_cq(e, o);
	open_qp(e, o);
	e->buf = aligned_alloc(4096, LEN);
	ck_assert_ptr_nonnull(e->buf);
	memset(e->buf, 0, LEN);
	e->mr = ibv_reg_mr(e->pd, e->buf, LEN, ALL);
	ck_assert_ptr_nonnull(e->mr);
	ck_assert_int_eq(ibv_query_port(e->ctx, 1, &port), 0);
	e->lid = port.lid;
	/* RoCE v2 with IPv4, or the port's GUID */
	ck_assert_int_eq(ibv_query_gid(e->ctx, 1, port.link_layer == IBV_LINK_LAYER_ETHERNET, &e->gid), 0);
	e->psn = 0xfffff0 + (uint32_t)dev; /* so that it runs over soon */
}

void end_close(struct end *e)
{
	if (e->qp)
		ck_assert_int_eq(ibv_destroy_qp(e->qp), 0);
	if (e->srq)
		ck_assert_int_eq(ibv_destroy_srq(e->srq), 0);
	ck_assert_int_eq(ibv_destroy_cq(e->cq), 0);
	if (e->mr)
		ck_assert_int_eq(ibv_dereg_mr(e->mr), 0);
	ck_assert_int_eq(ibv_dealloc_pd(e->pd), 0);
	ck_assert_int_eq(ibv_close_device(e->ctx), 0);
	free(e->buf);
}

struct addr end_addr(const struct end *e)
{
	return (struct addr){ .qpn = e->qp->qp_num, .psn = e->psn, .lid = e->lid, .gid = e->gid };
}

void address(struct ibv_ah_attr *a, const struct addr *peer)
{
	memset(a, 0, sizeof(*a));
	a->port_num = 1;
	a->dlid = peer->lid;
	if (peer->lid)
		return;
	a->is_global = 1;
	a->grh.dgid = peer->gid;
	a->grh.sgid_index = 1;
	a->grh.hop_limit = 64;
}

int to_init(struct ibv_qp *qp, const struct conn_opts *o)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	a.qp_access_flags = (unsigned int)opt(o ? o->access : 0, ALL);
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				     (qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

int to_rtr(struct ibv_qp *qp, const struct addr *peer, const struct conn_opts *o)
{
	static const struct conn_opts none;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR };
	int mask = IBV_QP_STATE;

	o = o ? o : &none;
	if (qp->qp_type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	a.path_mtu = (enum ibv_mtu)opt(o->mtu, IBV_MTU_4096);
	a.dest_qp_num = peer->qpn;
	a.rq_psn = peer->psn;
	a.max_dest_rd_atomic = (uint8_t)opt(o->dest_rd, 16);
	a.min_rnr_timer = (uint8_t)opt(o->rnr_timer, 1);
	address(&a.ah_attr, peer);
	return ibv_modify_qp(qp, &a, mask);
}

int to_rts(struct ibv_qp *qp, uint32_t psn, const struct conn_opts *o)
{
	static const struct conn_opts none;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS, .sq_psn = psn };
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;

	o = o ? o : &none;
	if (qp->qp_type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_TIMEOUT;
	if (qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_XRC_SEND)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	a.timeout = (uint8_t)opt(o->timeout, 17);
	a.retry_cnt = (uint8_t)opt(o->retry, 7);
	a.rnr_retry = (uint8_t)opt(o->rnr_retry, 7);
	a.max_rd_atomic = (uint8_t)opt(o->rd, 16);
	return ibv_modify_qp(qp, &a, mask);
}

int to_state(struct ibv_qp *qp, enum ibv_qp_state s)
{
	struct ibv_qp_attr a = { .qp_state = s };

	return ibv_modify_qp(qp, &a, IBV_QP_STATE);
}

void connect_to(struct end *e, const struct addr *peer, const struct conn_opts *o)
{
	ck_assert_int_eq(to_init(e->qp, o), 0);
	ck_assert_int_eq(to_rtr(e->qp, peer, o), 0);
	ck_assert_int_eq(to_rts(e->qp, e->psn, o), 0);
}

void join(struct end *a, struct end *b, const struct conn_opts *o)
{
	struct addr aa = end_addr(a), ba = end_addr(b);

	connect_to(a, &ba, o);
	if (a != b)
		connect_to(b, &aa, o);
}

void pair_open(struct end *a, struct end *b, const struct end_opts *eo, const struct conn_opts *co)
{
	end_open(a, 0, eo);
	end_open(b, 1, eo);
	join(a, b, co);
}

void pair_close(struct end *a, struct end *b)
{
	end_close(a);
	end_close(b);
}

int post(struct end *e, const struct end *peer, uint64_t id, struct wr w)
{
	struct ibv_sge sge = { (uintptr_t)e->buf + w.at, w.len, w.lkey ? w.lkey : e->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = w.op }, *bad = NULL;
	uint64_t to = (uintptr_t)peer->buf + w.to;
	uint32_t rkey = w.rkey ? w.rkey : peer->mr->rkey;
	int ret;

	wr.send_flags = (unsigned int)w.flags;
	wr.qp_type.xrc.remote_srqn = w.srqn;
	if (w.op == IBV_WR_ATOMIC_CMP_AND_SWP || w.op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = to;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = w.arg;
		wr.wr.atomic.swap = w.swap;
	} else {
		wr.wr.rdma.remote_addr = to;
		wr.wr.rdma.rkey = rkey;
		wr.imm_data = (uint32_t)w.arg;
	}
	ret = ibv_post_send(e->qp, &wr, &bad);
	ck_assert_ptr_eq(bad, ret ? &wr : NULL);
	return ret;
}

int post_rx(struct end *e, uint64_t id, uint32_t at, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)e->buf + at, len, e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;

	return e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->qp, &wr, &bad);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool poll_one(struct end *e, struct ibv_wc *wc, int ms)
{
	double end = now() + 1e-3 * ms;
	int n;

	do {
		n = ibv_poll_cq(e->cq, 1, wc);
		ck_assert_int_ge(n, 0);
	} while (!n && now() < end);
	return n;
}

struct ibv_wc want(struct end *e, uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc = { 0 };

	ck_assert_msg(poll_one(e, &wc, 20000), "no completion of %llu", (unsigned long long)id);
	ck_assert_msg(wc.status == status, "%llu: %s, not %s", (unsigned long long)wc.wr_id,
		      ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
	ck_assert_uint_eq(wc.wr_id, id);
	ck_assert_uint_eq(wc.qp_num, e->qp->qp_num);
	return wc;
}

void want_none(struct end *e, int ms)
{
	struct ibv_wc wc;

	ck_assert_msg(!poll_one(e, &wc, ms), "a completion of %llu: %s", (unsigned long long)wc.wr_id,
		      ibv_wc_status_str(wc.status));
}

static uint8_t byte_at(uint32_t i, uint32_t seed)
{
	return (uint8_t)((i ^ seed) * 2654435761u >> 13);
}

void fill(uint8_t *p, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		p[i] = byte_at(i, seed);
}

void check_filled(const uint8_t *p, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		if (p[i] != byte_at(i, seed))
			ck_abort_msg("byte %u of %u is %u, not %u", i, n, p[i], byte_at(i, seed));
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Objects that programs make beside the usual ones, each with traffic where there can be any: shared receive queues,
 * other transports, windows of type 2, domains, and what a device may refuse. As text without any number that differs
 * from run to run: natively and with the library the same must be printed. CASE=name runs one of them.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "ex.h"
#include "mini.h"
#include "surface_xrc.h"

#define BIG (256u << 10)
#define DM (96u << 10)
static struct mend_want want = { .len = 4 * BIG, .depth = 64, .sge = 2, .inl = 64, .recvs = 16 };
static struct mini m = { .name = "surface", .timeout_s = 100 };
static struct mend a, b;

static const char *text(int err)
{
	return err ? strerror(err) : "ok";
}

static bool is(const uint8_t *p, uint64_t key, size_t len)
{
	static uint8_t wanted[4 * BIG];

	pattern_fill(wanted, key, 0, len);
	return !memcmp(p, wanted, len);
}

static void join(void)
{
	int err = mend_join(&a, &b, NULL);

	CHECK(!err, "join: %s", strerror(-err));
	mini_nap(m.settle_ms);
}

static void fresh(void)
{
	CHECK(!mend_new_qp(&a, &want) && !mend_new_qp(&b, &want), "create_qp");
	join();
	memset(a.buf, 0, a.len);
	memset(b.buf, 0, b.len);
}

static void write_to(struct mend *from, struct mend *to, uint64_t id, enum ibv_wr_opcode op, size_t len, uint32_t rkey,
		     int flags)
{
	int err = mend_post(from, &(struct mwr){ .op = op, .len = len, .raddr = (uintptr_t)to->buf + 2 * BIG, .rkey = rkey,
						 .flags = flags, .id = id });

	CHECK(!err, "post %llu: %s", (unsigned long long)id, strerror(err));
}

/* Bulk, with a completion, seen at the other end. */
static void bulk(struct mend *from, struct mend *to, uint64_t key, uint32_t rkey)
{
	pattern_fill(from->buf, key, 0, BIG);
	write_to(from, to, key, IBV_WR_RDMA_WRITE, BIG, rkey, IBV_SEND_SIGNALED);
	mend_expect(from, key, IBV_WC_RDMA_WRITE, -1);
	CHECK(is(to->buf + 2 * BIG, key, BIG), "data %llu", (unsigned long long)key);
}

/* Until nothing has happened for a while, or without ms what has happened; events are acknowledged. */
static void events(struct mend *e, int ms)
{
	struct ibv_async_event ev;
	struct pollfd p = { .fd = e->dev.ctx->async_fd, .events = POLLIN };

	while (poll(&p, 1, ms) == 1 && !vb.get_async_event(e->dev.ctx, &ev)) {
		printf("  event %d%s\n", ev.event_type, ev.event_type <= IBV_EVENT_PATH_MIG_ERR && ev.event_type != IBV_EVENT_CQ_ERR ?
		       ev.element.qp == e->qp ? ", of its qp" : ", of another qp" : "");
		vb.ack_async_event(&ev);
		ms = 100;
	}
}

/* ---- shared receive queues ---- */

static int srq_recv(struct ibv_srq *srq, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)b.buf + BIG, 4096, b.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_srq_recv(srq, &wr, &bad);
}

static void srq(void)
{
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = 32, .max_sge = 1 } };
	struct ibv_srq_attr limit = { .srq_limit = 3 }, got = { 0 };
	struct ibv_qp_init_attr ia = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 32, .max_send_sge = 1 } };
	struct ibv_srq *s;
	uint64_t id = 1;

	CHECK(!mend_new_qp(&a, &want), "create_qp");
	s = ibv_create_srq(b.dev.pd, &sa);
	CHECK(s, "create_srq: %s", strerror(errno));
	CHECK(!vb.destroy_qp(b.qp), "destroy_qp");
	ia.send_cq = ia.recv_cq = b.cq;
	ia.srq = s;
	b.qp = vb.create_qp(b.dev.pd, &ia);
	CHECK(b.qp && b.qp->srq == s, "create_qp: %s", strerror(errno));
	if (!b.qp)
		return;
	join();
	for (int i = 0; i < 8; i++)
		CHECK(!srq_recv(s, 100 + (uint64_t)i), "post_srq_recv");
	for (int i = 0; i < 4; i++, id += 4) {
		/* bulk that nobody is told of, then what consumes a receive: the data must be there */
		pattern_fill(a.buf, id, 0, BIG);
		write_to(&a, &b, id, IBV_WR_RDMA_WRITE, BIG, b.mr->rkey, 0);
		write_to(&a, &b, id + 1, i % 2 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM, 100, b.mr->rkey, IBV_SEND_SIGNALED);
		mend_expect(&b, 100 + (uint64_t)i, i % 2 ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM, 100);
		CHECK(is(b.buf + 2 * BIG, id, BIG), "data of round %d", i);
		mend_expect(&a, id + 1, i % 2 ? IBV_WC_SEND : IBV_WC_RDMA_WRITE, -1);
		bulk(&b, &a, id + 2, a.mr->rkey);
	}
	printf("  limit: %s\n", text(ibv_modify_srq(s, &limit, IBV_SRQ_LIMIT)));
	CHECK(!ibv_query_srq(s, &got), "query_srq");
	printf("  query: max_wr %u, limit %u\n", got.max_wr, got.srq_limit);
	for (int i = 4; i < 6; i++) {
		write_to(&a, &b, id, IBV_WR_SEND, 10, 0, IBV_SEND_SIGNALED);
		mend_expect(&b, 100 + (uint64_t)i, IBV_WC_RECV, 10);
		mend_expect(&a, id++, IBV_WC_SEND, -1);
	}
	events(&b, 1000);
	CHECK(!rc_to_state(b.qp, IBV_QPS_ERR), "ERR");
	events(&b, 1000);
	CHECK(!mend_new_qp(&b, &want), "create_qp");
	printf("  destroy: %s\n", text(ibv_destroy_srq(s)));
}

/* ---- other transports ---- */

static void refused(const char *what, bool made)
{
	printf("  %s: %s\n", what, made ? "made" : strerror(errno));
}

static void xrc(void)
{
	struct ibv_xrcd_init_attr xa = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1 };
	struct ibv_srq_init_attr_ex sa = { .attr = { .max_wr = 8, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = a.dev.pd,
		.cq = a.cq, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ };
	struct ibv_qp_init_attr_ex qa = { .qp_type = IBV_QPT_XRC_SEND, .send_cq = a.cq, .pd = a.dev.pd,
		.cap = { .max_send_wr = 8, .max_send_sge = 1 }, .comp_mask = IBV_QP_INIT_ATTR_PD };
	struct ibv_qp_open_attr oa = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = a.qp->qp_num, .qp_type = IBV_QPT_XRC_RECV };

	struct ibv_xrcd *x;

	errno = 0;
	x = ibv_open_xrcd(a.dev.ctx, &xa);
	refused("open_xrcd", x);
	if (x) {
		CHECK(!ibv_close_xrcd(x), "close_xrcd");
		for (int ex = 0; ex < 2; ex++) {
			fresh();
			surface_xrc(&a, &b, BIG, ex);
			bulk(&a, &b, 1, b.mr->rkey);
			bulk(&b, &a, 2, a.mr->rkey);
		}
		return;
	}
	errno = 0;
	refused("XRC SRQ", ibv_create_srq_ex(a.dev.ctx, &sa));
	errno = 0;
	refused("XRC send QP", ibv_create_qp_ex(a.dev.ctx, &qa));
	errno = 0;
	refused("open_qp", ibv_open_qp(a.dev.ctx, &oa));
}

static struct ibv_qp *other_qp(struct mend *e, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr ia = { .qp_type = type, .send_cq = e->cq, .recv_cq = e->cq,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 } };

	errno = 0;
	return vb.create_qp(e->dev.pd, &ia);
}

static void raw(void)
{
	refused("raw packets", other_qp(&a, IBV_QPT_RAW_PACKET));
	refused("a type that nobody has", other_qp(&a, (enum ibv_qp_type)77));
}

static int uc_up(struct mend *e, struct ibv_qp *qp, const struct mend *to, uint32_t qpn)
{
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				  .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	int err = vb.modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qpn, .rq_psn = 7,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = to->dev.gid, .hop_limit = 64,
			     .sgid_index = (uint8_t)e->dev.gid_index } } };
	if (!err)
		err = vb.modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 7 };
	return err ? err : vb.modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

/* The QP takes its end's place, so that the end's functions are for it. */
static void uc(void)
{
	struct ibv_qp *rc[2] = { a.qp, b.qp };
	struct ibv_wc wc = { 0 };

	a.qp = other_qp(&a, IBV_QPT_UC);
	b.qp = other_qp(&b, IBV_QPT_UC);
	CHECK(a.qp && b.qp, "create_qp: %s", strerror(errno));
	CHECK(!uc_up(&a, a.qp, &b, b.qp->qp_num) && !uc_up(&b, b.qp, &a, a.qp->qp_num), "modify_qp");
	for (uint64_t i = 1; i < 4; i++) {
		CHECK(!mend_recv(&b, 0, 100, i), "post_recv");
		pattern_fill(a.buf, i, 0, BIG);
		write_to(&a, &b, i, IBV_WR_RDMA_WRITE_WITH_IMM, BIG, b.mr->rkey, IBV_SEND_SIGNALED);
		mend_expect(&a, i, IBV_WC_RDMA_WRITE, -1);
		CHECK(rc_poll_one(b.cq, &wc, 5000) == 1, "no receive");
		printf("  UC: %s, opcode %d, len %u, data %d\n", vb.wc_status_str(wc.status), wc.opcode, wc.byte_len,
		       is(b.buf + 2 * BIG, i, BIG));
	}
	CHECK(!vb.destroy_qp(a.qp) && !vb.destroy_qp(b.qp), "destroy_qp");
	a.qp = rc[0];
	b.qp = rc[1];
}

static int ud_up(struct ibv_qp *qp)
{
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 5 };
	int err = vb.modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);

	at.qp_state = IBV_QPS_RTR;
	if (!err)
		err = vb.modify_qp(qp, &at, IBV_QP_STATE);
	at.qp_state = IBV_QPS_RTS;
	at.sq_psn = 3;
	return err ? err : vb.modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

static void ud(void)
{
	struct ibv_qp *qa = other_qp(&a, IBV_QPT_UD), *qb = other_qp(&b, IBV_QPT_UD);
	struct ibv_ah_attr ha = { .is_global = 1, .port_num = 1, .grh = { .dgid = b.dev.gid, .hop_limit = 64,
				  .sgid_index = (uint8_t)a.dev.gid_index } };
	struct ibv_ah *ah = ibv_create_ah(a.dev.pd, &ha);
	struct ibv_sge sge = { (uintptr_t)a.buf, 1000, a.mr->lkey }, rs = { (uintptr_t)b.buf, 2000, b.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_recv_wr rr = { .wr_id = 2, .sg_list = &rs, .num_sge = 1 }, *rbad;
	struct ibv_wc wc = { 0 };

	CHECK(qa && qb && ah, "create: %s", strerror(errno));
	CHECK(!ud_up(qa) && !ud_up(qb), "modify_qp");
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qb->qp_num;
	wr.wr.ud.remote_qkey = 5;
	pattern_fill(a.buf, 9, 0, 1000);
	CHECK(!ibv_post_recv(qb, &rr, &rbad) && !ibv_post_send(qa, &wr, &bad), "post");
	CHECK(rc_poll_one(a.cq, &wc, 5000) == 1 && wc.wr_id == 1 && !wc.status, "send");
	CHECK(rc_poll_one(b.cq, &wc, 5000) == 1, "no receive");
	printf("  UD: %s, opcode %d, len %u, from the sender %d, data %d\n", vb.wc_status_str(wc.status), wc.opcode, wc.byte_len,
	       wc.src_qp == qa->qp_num, is(b.buf + 40, 9, 1000));
	CHECK(!vb.destroy_qp(qa) && !vb.destroy_qp(qb) && !ibv_destroy_ah(ah), "destroy");
}

/* ---- windows of type 2 ---- */

static int bind2(struct mend *e, struct ibv_mw *mw, struct ibv_mr *mr, uint32_t rkey, uint64_t id, size_t len)
{
	struct ibv_send_wr wr = { .wr_id = id, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;
	int err;

	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = rkey;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ .mr = mr, .addr = (uintptr_t)e->buf + 2 * BIG, .length = len,
		.mw_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE };
	err = any_post(e->qp, &wr, &bad);
	if (!err)
		mw->rkey = rkey;
	return err;
}

static int invalidate(struct mend *e, uint32_t rkey, uint64_t id)
{
	struct ibv_send_wr wr = { .wr_id = id, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED,
				  .invalidate_rkey = rkey }, *bad;

	return ibv_post_send(e->qp, &wr, &bad);
}

static void through(uint32_t rkey, uint64_t key)
{
	struct ibv_wc wc = { 0 };

	pattern_fill(a.buf, key, 0, BIG);
	write_to(&a, &b, key, IBV_WR_RDMA_WRITE, BIG, rkey, IBV_SEND_SIGNALED);
	CHECK(rc_poll_one(a.cq, &wc, 5000) == 1, "no completion");
	printf("  through it: %s, data %d\n", vb.wc_status_str(wc.status), is(b.buf + 2 * BIG, key, BIG));
}

/* Bound, used beside its region, made invalid by its owner or its peer. remote: by the peer. */
static void window2(bool remote)
{
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_wc wc = { 0 };
	uint64_t id = 1;

	fresh();
	mr = vb.reg_mr(b.dev.pd, b.buf, b.len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		       IBV_ACCESS_MW_BIND);
	mw = mr ? ibv_alloc_mw(b.dev.pd, IBV_MW_TYPE_2) : NULL;
	CHECK(mw, "alloc_mw: %s", strerror(errno));
	if (!mw)
		return;
	for (int i = 0; i < 3; i++) {
		uint32_t rkey = ibv_inc_rkey(mw->rkey);

		/* its own bulk stands before the bind, and may be under way yet */
		write_to(&b, &a, id, IBV_WR_RDMA_WRITE, BIG, a.mr->rkey, 0);
		CHECK(!bind2(&b, mw, mr, rkey, id + 1, BIG), "bind");
		mend_expect(&b, id + 1, IBV_WC_BIND_MW, -1);
		bulk(&a, &b, id + 2, mr->rkey);
		through(rkey, id + 3);
		if (remote) {
			struct ibv_sge sge = { (uintptr_t)a.buf, 8, a.mr->lkey };
			struct ibv_send_wr wr = { .wr_id = id + 4, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_INV,
						  .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = rkey }, *bad;

			CHECK(!mend_recv(&b, 0, 8, 50), "post_recv");
			write_to(&a, &b, id + 6, IBV_WR_RDMA_WRITE, BIG, rkey, 0);
			CHECK(!ibv_post_send(a.qp, &wr, &bad), "post");
			mend_expect(&a, id + 4, IBV_WC_SEND, -1);
			CHECK(rc_poll_one(b.cq, &wc, 5000) == 1, "no receive");
			printf("  receive: %s, invalidated it %d\n", vb.wc_status_str(wc.status),
			       (wc.wc_flags & IBV_WC_WITH_INV) && wc.invalidated_rkey == rkey);
		} else {
			write_to(&b, &a, id + 7, IBV_WR_RDMA_WRITE, BIG, a.mr->rkey, 0);
			CHECK(!invalidate(&b, rkey, id + 4), "invalidate");
			mend_expect(&b, id + 4, IBV_WC_LOCAL_INV, -1);
		}
		id += 10;
	}
	through(mw->rkey, id);
	while (rc_poll_one(a.cq, &wc, 100) == 1)
		;
	CHECK(!mend_new_qp(&a, &want) && !mend_new_qp(&b, &want), "create_qp");
	printf("  dealloc: %s", text(ibv_dealloc_mw(mw)));
	printf(", dereg: %s\n", text(vb.dereg_mr(mr)));
}

static void mw2_local(void) { window2(false); }
static void mw2_remote(void) { window2(true); }

/*
 * A device gives a key again that was a region's a moment ago: as a window's. The peer used the region. tag: a window's
 * program chooses the last byte.
 */
static void reused_key(void)
{
	unsigned int same = 0, wrong = 0;
	struct ibv_mr *mr;
	uint64_t id = 1;

	fresh();
	mr = vb.reg_mr(b.dev.pd, b.buf, b.len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND);
	CHECK(mr, "reg_mr");
	for (int i = 0; i < 40; i++) {
		struct ibv_mr *x = vb.reg_mr(b.dev.pd, b.buf, b.len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		struct ibv_mw *mw[4];
		struct ibv_wc wc = { 0 };
		uint32_t key = x->rkey;
		int n;

		for (int k = 0; k < 3; k++) {
			bulk(&a, &b, id++, key);
			mini_nap(k ? 0 : 2);
		}
		CHECK(!vb.dereg_mr(x), "dereg_mr");
		for (n = 0; n < 4; n++) {
			mw[n] = ibv_alloc_mw(b.dev.pd, IBV_MW_TYPE_2);
			CHECK(mw[n], "alloc_mw");
			if ((mw[n]->rkey ^ key) >> 8 == 0)
				break;
		}
		if (n < 4) {
			same++;
			CHECK(!bind2(&b, mw[n], mr, key, id, BIG), "bind");
			mend_expect(&b, id++, IBV_WC_BIND_MW, -1);
			pattern_fill(a.buf, id, 0, BIG);
			write_to(&a, &b, id, IBV_WR_RDMA_WRITE, BIG, key, IBV_SEND_SIGNALED);
			CHECK(rc_poll_one(a.cq, &wc, 5000) == 1, "no completion");
			wrong += wc.status != 0 || !is(b.buf + 2 * BIG, id, BIG);
			id++;
			if (wc.status)
				fresh();
			else if (!invalidate(&b, key, id))
				mend_expect(&b, id++, IBV_WC_LOCAL_INV, -1);
			n++;
		}
		while (n-- > 0)
			CHECK(!ibv_dealloc_mw(mw[n]), "dealloc_mw");
	}
	printf("  wrong %u\n", wrong);
	fprintf(stderr, "surface: %u keys used again\n", same);
	CHECK(!vb.dereg_mr(mr), "dereg_mr");
}

/* ---- domains ---- */

static void domains(void)
{
	struct ibv_td_init_attr ta = { 0 };
	struct ibv_td *td = ibv_alloc_td(a.dev.ctx, &ta);
	struct ibv_parent_domain_init_attr pa = { .pd = a.dev.pd, .td = td };
	struct ibv_pd *own = a.dev.pd, *domain = td ? ibv_alloc_parent_domain(a.dev.ctx, &pa) : NULL;
	struct ibv_mr *mr, *mr_own = a.mr;

	CHECK(domain, "alloc_parent_domain: %s", strerror(errno));
	if (!domain)
		return;
	mr = vb.reg_mr(domain, a.buf, a.len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(mr, "reg_mr: %s", strerror(errno));
	for (uint64_t i = 0; i < 4; i++) {
		/* QP and region, of the domain or of the PD below it */
		a.dev.pd = i & 1 ? domain : own;
		a.mr = i & 2 ? mr : mr_own;
		fresh();
		for (uint64_t k = 0; k < 4; k++) {
			bulk(&a, &b, 100 * i + 2 * k, b.mr->rkey);
			bulk(&b, &a, 100 * i + 2 * k + 1, a.mr->rkey);
		}
		printf("  %d %d: %s\n", (int)(i & 1), (int)(i >> 1), mend_state(&a));
	}
	printf("  in use: %s, %s\n", text(vb.dealloc_pd(own)), text(vb.dealloc_pd(domain)));
	a.dev.pd = own;
	a.mr = mr_own;
	fresh();
	printf("  dereg: %s", text(vb.dereg_mr(mr)));
	printf(", dealloc: %s", text(vb.dealloc_pd(domain)));
	printf(", td: %s\n", text(ibv_dealloc_td(td)));
	bulk(&a, &b, 1000, b.mr->rkey);
}

/* ---- what a device may not have ---- */

/* Written from afar, in pieces and with a flag behind them, and read by the host. */
static void device_memory(void)
{
	struct ibv_alloc_dm_attr da = { .length = DM };
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED;
	static uint8_t got[DM / 2 + 8];
	struct ibv_dm *dm;
	struct ibv_mr *mr;

	errno = 0;
	dm = ibv_alloc_dm(b.dev.ctx, &da);
	refused("device memory", dm);
	if (!dm)
		return;
	mr = ibv_reg_dm_mr(b.dev.pd, dm, 0, DM, access);
	CHECK(mr, "reg_dm_mr: %s", strerror(errno));
	for (uint64_t i = 0; mr && i < 8; i++) {
		struct mwr w = { .op = IBV_WR_RDMA_WRITE, .len = DM / 2, .raddr = 64, .rkey = mr->rkey, .id = i };

		pattern_fill(a.buf, 70 + i, 0, DM / 2 + 8);
		/* what went before to the host's memory is there, too */
		write_to(&a, &b, 50, IBV_WR_RDMA_WRITE, BIG, b.mr->rkey, 0);
		CHECK(!mend_post(&a, &w), "post");
		w.raddr += DM / 2;
		w.len = 8;
		w.flags = IBV_SEND_SIGNALED;
		CHECK(!mend_post(&a, &w), "post");
		mend_expect(&a, i, IBV_WC_RDMA_WRITE, -1);
		CHECK(!ibv_memcpy_from_dm(got, dm, 64, DM / 2 + 8), "memcpy_from_dm");
		CHECK(is(got, 70 + i, DM / 2) && !memcmp(got + DM / 2, got, 8) && is(b.buf + 2 * BIG, 70 + i, DM / 2),
		      "data %llu", (unsigned long long)i);
	}
	printf("  in use: %s\n", text(ibv_free_dm(dm)));
	if (mr)
		printf("  dereg: %s\n", text(vb.dereg_mr(mr)));
	printf("  free: %s\n", text(ibv_free_dm(dm)));
}

/* Memory that is brought in when it is asked for, all of the address space at last. */
static void on_demand(void)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ON_DEMAND;

	for (int all = 0; all < 2; all++) {
		struct ibv_sge sge = { (uintptr_t)b.buf, BIG, 0 };
		struct ibv_mr *mr;

		errno = 0;
		mr = all ? vb.reg_mr(b.dev.pd, NULL, SIZE_MAX, access) : vb.reg_mr(b.dev.pd, b.buf, b.len, access);
		refused(all ? "all of the address space" : "on demand", mr);
		if (!mr)
			continue;
		for (uint64_t i = 0; i < 8; i++) {
			bulk(&a, &b, 80 + i, mr->rkey);
			mini_nap(2);
		}
		sge.lkey = mr->lkey;
		printf("  advise_mr: %s\n", text(ibv_advise_mr(b.dev.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1)));
		printf("  dereg: %s\n", text(vb.dereg_mr(mr)));
	}
}

static void memory(void)
{
	struct ibv_sge sge = { (uintptr_t)a.buf, 4096, a.mr->lkey };
	struct ibv_device_attr_ex at;

	fresh();
	device_memory();
	on_demand();
	errno = 0;
	refused("null_mr", ibv_alloc_null_mr(a.dev.pd));
	printf("  advise_mr: %s\n", text(ibv_advise_mr(a.dev.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1)));
	CHECK(!ibv_query_device_ex(a.dev.ctx, NULL, &at), "query_device_ex");
	printf("  odp caps %llx, max_dm %llu\n", (unsigned long long)at.odp_caps.general_caps, (unsigned long long)at.max_dm_size);
	bulk(&a, &b, 1, b.mr->rkey);
}

/* What a device that imports says of its own objects; tests/clients/imports.c uses what it made. */
static void imports(void)
{
	struct ibv_mr *mr;
	struct ibv_pd *pd;

	errno = 0;
	refused("import_device", ibv_import_device(-1));
	errno = 0;
	pd = ibv_import_pd(a.dev.ctx, a.dev.pd->handle);
	refused("import_pd", pd);
	errno = 0;
	mr = ibv_import_mr(a.dev.pd, a.mr->handle);
	refused("import_mr", mr);
	if (mr)
		ibv_unimport_mr(mr);
	if (pd)
		ibv_unimport_pd(pd);
}

static void query(void)
{
	struct ibv_qp_init_attr ia;
	struct ibv_qp_attr q;

	memset(&q, 0, sizeof(q));
	CHECK(!vb.query_qp(a.qp, &q, IBV_QP_STATE | IBV_QP_CAP | IBV_QP_AV, &ia), "query_qp");
	printf("  state %d %d mig %d access %x mtu %d draining %d rd %u %u timer %u port %u timeout %u retry %u rnr %u hop %u\n",
	       q.qp_state, q.cur_qp_state, q.path_mig_state, q.qp_access_flags, q.path_mtu, q.sq_draining, q.max_rd_atomic,
	       q.max_dest_rd_atomic, q.min_rnr_timer, q.port_num, q.timeout, q.retry_cnt, q.rnr_retry, q.ah_attr.grh.hop_limit);
	printf("  cap %u %u %u %u %u as made %d, init %d, CQs %d %d, peer %d, context %d, sig %d, type %d\n", q.cap.max_send_wr,
	       q.cap.max_recv_wr, q.cap.max_send_sge, q.cap.max_recv_sge, q.cap.max_inline_data,
	       !memcmp(&q.cap, &a.cap, sizeof(q.cap)), !memcmp(&ia.cap, &a.cap, sizeof(q.cap)), ia.send_cq == a.cq,
	       ia.recv_cq == a.cq, q.dest_qp_num == b.qp->qp_num, ia.qp_context == NULL, ia.sq_sig_all, ia.qp_type);
}

static void attributes(void)
{
	struct ibv_qp_rate_limit_attr ra = { .rate_limit = 1000 };
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_RTS, .min_rnr_timer = 5 };
	struct ibv_ece ece = { .vendor_id = 1, .options = 1 }, none = { 0 };

	fresh();
	query();
	for (uint64_t i = 0; i < 4; i++)
		bulk(&a, &b, i, b.mr->rkey);
	query();
	printf("  RTS to RTS: %s\n", text(vb.modify_qp(a.qp, &at, IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_MIN_RNR_TIMER)));
	at.cur_qp_state = IBV_QPS_SQD;
	printf("  a wrong cur_qp_state: %s\n", text(vb.modify_qp(a.qp, &at, IBV_QP_STATE | IBV_QP_CUR_STATE)));
	query();
	printf("  set_ece: %s %s", text(ibv_set_ece(a.qp, &ece)), text(ibv_set_ece(a.qp, &none)));
	printf(", query_ece: %s", text(ibv_query_ece(a.qp, &ece)));
	printf(" %u %u\n", ece.vendor_id, ece.options);
	printf("  rate limit: %s\n", text(ibv_modify_qp_rate_limit(a.qp, &ra)));
	printf("  in order: %d %d\n", ibv_query_qp_data_in_order(a.qp, IBV_WR_RDMA_WRITE, 0),
	       ibv_query_qp_data_in_order(a.qp, IBV_WR_SEND, 0));
	bulk(&a, &b, 9, b.mr->rkey);
}

static const struct mini_case cases[] = {
#define C(x) { #x, x }
	C(srq), C(xrc), C(raw), C(uc), C(ud), C(mw2_local), C(mw2_remote), C(reused_key), C(domains), C(memory), C(imports),
	C(attributes),
};

int main(int argc, char **argv)
{
	mini_start(&m, argc, argv, "objects and attributes one by one");
	if (mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want))
		return 2;
	mini_cases(cases, sizeof(cases) / sizeof(cases[0]));
	mend_close(&a);
	mend_close(&b);
	fprintf(stderr, "failed %u\n", mini_failed);
	return mini_failed != 0;
}

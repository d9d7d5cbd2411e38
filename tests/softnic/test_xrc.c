// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Extended reliable connections. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test_end.h"

#define XA { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT }
#define SEND_OPS (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ)

/* One that sends, and one that receives for two SRQs, each with a CQ of its own. */
struct side {
	struct end e;		/* the device and what is not XRC's */
	struct ibv_xrcd *x;
	struct end tx, rx[2];
	uint32_t srqn[2];
};

static struct ibv_srq *srq_of(struct ibv_pd *pd, struct ibv_xrcd *x, struct ibv_cq *cq)
{
	struct ibv_srq_init_attr_ex a = { .attr = { 16, 4, 0 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = x, .cq = cq,
					  .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
						       IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ };

	return ibv_create_srq_ex(pd->context, &a);
}

static struct ibv_qp *recv_qp(struct ibv_context *c, struct ibv_xrcd *x)
{
	struct ibv_qp_init_attr_ex a = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = x };

	return ibv_create_qp_ex(c, &a);
}

static struct ibv_qp *send_qp(const struct end *e, uint64_t ops)
{
	struct ibv_qp_init_attr_ex a = { .qp_type = IBV_QPT_XRC_SEND, .send_cq = e->cq, .pd = e->pd, .sq_sig_all = 1,
					 .cap = { 64, 0, 4, 0, 64 }, .send_ops_flags = ops,
					 .comp_mask = IBV_QP_INIT_ATTR_PD | (ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0) };

	return ibv_create_qp_ex(e->ctx, &a);
}

static struct ibv_qp *open_again(struct ibv_context *c, struct ibv_xrcd *x, uint32_t num, enum ibv_qp_type type)
{
	struct ibv_qp_open_attr a = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
				      .qp_num = num, .xrcd = x, .qp_type = type };

	return ibv_open_qp(c, &a);
}

static void side_open(struct side *s, int dev, struct ibv_xrcd_init_attr xa, uint64_t ops)
{
	end_open(&s->e, dev, NULL);
	s->x = ibv_open_xrcd(s->e.ctx, &xa);
	ck_assert_ptr_nonnull(s->x);
	s->tx = s->e;
	s->tx.qp = send_qp(&s->e, ops);
	ck_assert_ptr_nonnull(s->tx.qp);
	ck_assert_ptr_null(s->tx.qp->recv_cq);
	for (int i = 0; i < 2; i++) {
		s->rx[i] = s->e;
		s->rx[i].cq = ibv_create_cq(s->e.ctx, 64, NULL, NULL, 0);
		s->rx[i].srq = srq_of(s->e.pd, s->x, s->rx[i].cq);
		ck_assert_ptr_nonnull(s->rx[i].srq);
		ck_assert_int_eq(ibv_get_srq_num(s->rx[i].srq, &s->srqn[i]), 0);
		s->rx[i].qp = i ? s->rx[0].qp : recv_qp(s->e.ctx, s->x);
		ck_assert_ptr_nonnull(s->rx[i].qp);
	}
	ck_assert_uint_ne(s->srqn[0], s->srqn[1]);
}

static void side_close(struct side *s)
{
	ck_assert_int_eq(ibv_close_xrcd(s->x), EBUSY);
	ck_assert_int_eq(ibv_destroy_qp(s->tx.qp), 0);
	if (s->rx[0].qp)
		ck_assert_int_eq(ibv_destroy_qp(s->rx[0].qp), 0);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(ibv_destroy_cq(s->rx[i].cq), s->rx[i].srq ? EBUSY : 0);
		if (!s->rx[i].srq)
			continue;
		ck_assert_int_eq(ibv_close_xrcd(s->x), EBUSY);
		ck_assert_int_eq(ibv_destroy_srq(s->rx[i].srq), 0);
		ck_assert_int_eq(ibv_destroy_cq(s->rx[i].cq), 0);
	}
	ck_assert_int_eq(ibv_close_xrcd(s->x), 0);
	end_close(&s->e);
}

static void join_sides(struct side *a, struct side *b)
{
	struct addr rx = end_addr(&b->rx[0]), tx = end_addr(&a->tx);

	connect_to(&b->rx[0], &tx, NULL);
	connect_to(&a->tx, &rx, NULL);
}

static void pair_of_sides(struct side *a, struct side *b)
{
	side_open(a, 0, (struct ibv_xrcd_init_attr)XA, 0);
	side_open(b, 1, (struct ibv_xrcd_init_attr)XA, 0);
	join_sides(a, b);
}

static void close_sides(struct side *a, struct side *b)
{
	side_close(a);
	side_close(b);
}

static struct ibv_async_event event(struct ibv_context *c)
{
	struct pollfd p = { .fd = c->async_fd, .events = POLLIN };
	struct ibv_async_event ev;

	ck_assert_msg(poll(&p, 1, 20000) == 1, "no event");
	ck_assert_int_eq(ibv_get_async_event(c, &ev), 0);
	ibv_ack_async_event(&ev);
	return ev;
}

static void want_event(struct ibv_context *c, enum ibv_event_type type, const void *element)
{
	struct ibv_async_event ev = event(c);

	ck_assert_str_eq(ibv_event_type_str(ev.event_type), ibv_event_type_str(type));
	ck_assert_ptr_eq(ev.element.qp, element);
}

START_TEST(moves_data)
{
	struct side a, b;
	struct ibv_wc wc;
	uint64_t word;

	pair_of_sides(&a, &b);
	/* nothing is there: it waits */
	fill(a.e.buf, 70000, 1);
	ck_assert_int_eq(post(&a.tx, &b.e, 1, (struct wr){ IBV_WR_SEND, .len = 70000, .srqn = b.srqn[1] }), 0);
	ck_assert_int_eq(post_rx(&b.rx[0], 100, 0, 100000), 0);
	want_none(&a.tx, 30);
	ck_assert_int_eq(post_rx(&b.rx[1], 101, 200000, 100000), 0);
	want(&a.tx, 1, IBV_WC_SUCCESS);
	wc = want(&b.rx[1], 101, IBV_WC_SUCCESS);
	ck_assert(wc.opcode == IBV_WC_RECV && wc.byte_len == 70000 && wc.src_qp == a.tx.qp->qp_num);
	check_filled(b.e.buf + 200000, 70000, 1);
	ck_assert_int_eq(post(&a.tx, &b.e, 2, (struct wr){ IBV_WR_SEND_WITH_IMM, .len = 9, .arg = 7, .srqn = b.srqn[0] }), 0);
	wc = want(&b.rx[0], 100, IBV_WC_SUCCESS);
	ck_assert(wc.byte_len == 9 && (wc.wc_flags & IBV_WC_WITH_IMM) && wc.imm_data == 7);
	want(&a.tx, 2, IBV_WC_SUCCESS);
	/* RDMA names a queue, too, of which only immediate data take something */
	ck_assert_int_eq(post(&a.tx, &b.e, 3, (struct wr){ IBV_WR_RDMA_WRITE, .to = 300000, .len = 70000, .srqn = b.srqn[0] }), 0);
	want(&a.tx, 3, IBV_WC_SUCCESS);
	check_filled(b.e.buf + 300000, 70000, 1);
	ck_assert_int_eq(post_rx(&b.rx[1], 102, 0, 0), 0);
	ck_assert_int_eq(post(&a.tx, &b.e, 4, (struct wr){ IBV_WR_RDMA_WRITE_WITH_IMM, .len = 5, .arg = 8, .srqn = b.srqn[1] }), 0);
	wc = want(&b.rx[1], 102, IBV_WC_SUCCESS);
	ck_assert(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == 5 && wc.imm_data == 8);
	want(&a.tx, 4, IBV_WC_SUCCESS);
	ck_assert_int_eq(post(&a.tx, &b.e, 5, (struct wr){ IBV_WR_RDMA_READ, .at = 500000, .to = 300000, .len = 70000,
							   .srqn = b.srqn[0] }), 0);
	want(&a.tx, 5, IBV_WC_SUCCESS);
	check_filled(a.e.buf + 500000, 70000, 1);
	memset(b.e.buf + 8, 0, 8);
	ck_assert_int_eq(post(&a.tx, &b.e, 6, (struct wr){ IBV_WR_ATOMIC_FETCH_AND_ADD, .at = 16, .to = 8, .len = 8, .arg = 5,
							   .srqn = b.srqn[1] }), 0);
	want(&a.tx, 6, IBV_WC_SUCCESS);
	ck_assert_int_eq(post(&a.tx, &b.e, 7, (struct wr){ IBV_WR_ATOMIC_CMP_AND_SWP, .at = 16, .to = 8, .len = 8, .arg = 5,
							   .swap = 77, .srqn = b.srqn[0] }), 0);
	want(&a.tx, 7, IBV_WC_SUCCESS);
	memcpy(&word, a.e.buf + 16, 8);
	ck_assert_uint_eq(word, 5);
	memcpy(&word, b.e.buf + 8, 8);
	ck_assert_uint_eq(word, 77);
	close_sides(&a, &b);
}
END_TEST

/* Many, of several packets, now for one queue and now for the other, with READs between them. */
START_TEST(two_queues)
{
	struct side a, b;

	pair_of_sides(&a, &b);
	fill(a.e.buf, 40000, 2);
	for (uint64_t i = 0; i < 20; i++) {
		struct end *rx = &b.rx[i % 3 == 0];

		ck_assert_int_eq(post_rx(rx, i, 100000 + 40000 * (uint32_t)i, 40000), 0);
		ck_assert_int_eq(post(&a.tx, &b.e, i, (struct wr){ IBV_WR_SEND, .len = 40000, .srqn = b.srqn[i % 3 == 0] }), 0);
		if (i % 2)
			ck_assert_int_eq(post(&a.tx, &b.e, 50 + i, (struct wr){ IBV_WR_RDMA_READ, .at = 500000, .to = 0, .len = 30000,
										.srqn = b.srqn[i % 2] }), 0);
	}
	for (uint64_t i = 0; i < 20; i++) {
		ck_assert_uint_eq(want(&b.rx[i % 3 == 0], i, IBV_WC_SUCCESS).byte_len, 40000);
		check_filled(b.e.buf + 100000 + 40000 * i, 40000, 2);
		want(&a.tx, i, IBV_WC_SUCCESS);
		if (i % 2)
			want(&a.tx, 50 + i, IBV_WC_SUCCESS);
	}
	close_sides(&a, &b);
}
END_TEST

START_TEST(built)
{
	struct side a, b;
	struct ibv_qp_ex *x;

	side_open(&a, 0, (struct ibv_xrcd_init_attr)XA, SEND_OPS);
	side_open(&b, 1, (struct ibv_xrcd_init_attr)XA, SEND_OPS);
	join_sides(&a, &b);
	x = ibv_qp_to_qp_ex(a.tx.qp);
	ck_assert_ptr_nonnull(x);
	ck_assert_int_eq(post_rx(&b.rx[1], 9, 4096, 100), 0);
	fill(a.e.buf, 100, 3);
	ibv_wr_start(x);
	x->wr_id = 1;
	x->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(x, b.e.mr->rkey, (uintptr_t)b.e.buf);
	ibv_wr_set_xrc_srqn(x, b.srqn[0]);
	ibv_wr_set_sge(x, a.e.mr->lkey, (uintptr_t)a.e.buf, 100);
	x->wr_id = 2;
	ibv_wr_send(x);
	ibv_wr_set_xrc_srqn(x, b.srqn[1]);
	ibv_wr_set_sge(x, a.e.mr->lkey, (uintptr_t)a.e.buf, 100);
	ck_assert_int_eq(ibv_wr_complete(x), 0);
	want(&a.tx, 1, IBV_WC_SUCCESS);
	want(&a.tx, 2, IBV_WC_SUCCESS);
	want(&b.rx[1], 9, IBV_WC_SUCCESS);
	check_filled(b.e.buf, 100, 3);
	check_filled(b.e.buf + 4096, 100, 3);
	close_sides(&a, &b);
}
END_TEST

/* ---- what is refused ---- */

#define REFUSED(err, call)				\
	do {						\
		errno = 0;				\
		ck_assert_ptr_null(call);		\
		ck_assert_int_eq(errno, err);		\
	} while (0)

START_TEST(domains)
{
	struct ibv_context *c = open_dev(0), *d = open_dev(0);
	char name[] = "/tmp/test_xrc.XXXXXX";
	struct ibv_xrcd_init_attr xa = XA;
	struct ibv_xrcd *x, *y;

	xa.comp_mask = IBV_XRCD_INIT_ATTR_FD;
	REFUSED(EINVAL, ibv_open_xrcd(c, &xa));
	xa.comp_mask = IBV_XRCD_INIT_ATTR_RESERVED;
	REFUSED(EOPNOTSUPP, ibv_open_xrcd(c, &xa));
	xa.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	xa.fd = 12345;
	REFUSED(EBADF, ibv_open_xrcd(c, &xa));
	xa.fd = mkstemp(name);
	ck_assert_int_ge(xa.fd, 0);
	unlink(name);
	xa.oflags = 0;
	REFUSED(EAGAIN, ibv_open_xrcd(c, &xa));
	xa.oflags = O_CREAT | O_EXCL;
	x = ibv_open_xrcd(c, &xa);
	ck_assert_ptr_nonnull(x);
	REFUSED(EINVAL, ibv_open_xrcd(d, &xa));
	xa.oflags = 0;
	y = ibv_open_xrcd(d, &xa);
	ck_assert_ptr_nonnull(y);
	ck_assert_int_eq(ibv_close_xrcd(x), 0);
	x = ibv_open_xrcd(c, &xa);
	ck_assert_ptr_nonnull(x);
	ck_assert(!ibv_close_xrcd(x) && !ibv_close_xrcd(y));
	REFUSED(EAGAIN, ibv_open_xrcd(c, &xa));
	close(xa.fd);
	ck_assert(!ibv_close_device(c) && !ibv_close_device(d));
}
END_TEST

START_TEST(objects)
{
	struct ibv_srq_init_attr_ex sa = { .attr = { 4, 1, 0 }, .srq_type = IBV_SRQT_XRC };
	struct ibv_qp_init_attr_ex qa = { .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_qp_init_attr plain = { .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_xrcd_init_attr xa = XA;
	struct ibv_device_attr dev;
	struct ibv_xrcd *other;
	struct side a, b;
	struct ibv_srq *s;
	uint32_t num;

	side_open(&a, 0, xa, 0);
	side_open(&b, 0, xa, 0);
	ck_assert_int_eq(ibv_query_device(a.e.ctx, &dev), 0);
	ck_assert(dev.device_cap_flags & IBV_DEVICE_XRC);
	sa.pd = a.e.pd;
	sa.cq = a.e.cq;
	sa.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ;
	REFUSED(EINVAL, ibv_create_srq_ex(a.e.ctx, &sa));
	sa.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
	sa.xrcd = b.x; /* of another context */
	REFUSED(EINVAL, ibv_create_srq_ex(a.e.ctx, &sa));
	sa.xrcd = a.x;
	sa.attr.max_wr = 0;
	REFUSED(EINVAL, ibv_create_srq_ex(a.e.ctx, &sa));
	sa.attr.max_wr = 4;
	sa.srq_type = IBV_SRQT_TM;
	REFUSED(EOPNOTSUPP, ibv_create_srq_ex(a.e.ctx, &sa));
	sa.srq_type = IBV_SRQT_BASIC;
	s = ibv_create_srq_ex(a.e.ctx, &sa);
	ck_assert_ptr_nonnull(s);
	ck_assert_int_eq(ibv_get_srq_num(s, &num), 0);
	ck_assert_int_eq(ibv_destroy_srq(s), 0);

	REFUSED(EINVAL, ibv_create_qp_ex(a.e.ctx, &qa));
	qa.comp_mask = IBV_QP_INIT_ATTR_XRCD;
	qa.xrcd = b.x;
	REFUSED(EINVAL, ibv_create_qp_ex(a.e.ctx, &qa));
	qa.xrcd = a.x;
	qa.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	qa.send_ops_flags = IBV_QP_EX_WITH_SEND;
	REFUSED(EOPNOTSUPP, ibv_create_qp_ex(a.e.ctx, &qa));
	plain.qp_type = IBV_QPT_XRC_RECV;
	plain.send_cq = plain.recv_cq = a.e.cq;
	REFUSED(EINVAL, ibv_create_qp(a.e.pd, &plain));
	plain.qp_type = IBV_QPT_RC;
	plain.srq = a.rx[0].srq;
	REFUSED(EINVAL, ibv_create_qp(a.e.pd, &plain));
	plain.qp_type = IBV_QPT_XRC_SEND;
	plain.send_cq = NULL;
	REFUSED(EINVAL, ibv_create_qp(a.e.pd, &plain));

	REFUSED(EINVAL, open_again(a.e.ctx, a.x, a.rx[0].qp->qp_num, IBV_QPT_RC));
	REFUSED(EINVAL, open_again(a.e.ctx, a.x, a.tx.qp->qp_num, IBV_QPT_XRC_RECV));
	REFUSED(EINVAL, open_again(a.e.ctx, a.x, a.e.qp->qp_num, IBV_QPT_XRC_RECV));
	REFUSED(EINVAL, open_again(a.e.ctx, a.x, 0xabcdef, IBV_QPT_XRC_RECV));
	REFUSED(EINVAL, open_again(b.e.ctx, a.x, a.rx[0].qp->qp_num, IBV_QPT_XRC_RECV));
	other = ibv_open_xrcd(a.e.ctx, &xa);
	REFUSED(EINVAL, open_again(a.e.ctx, other, a.rx[0].qp->qp_num, IBV_QPT_XRC_RECV));
	ck_assert_int_eq(ibv_close_xrcd(other), 0);
	close_sides(&a, &b);
}
END_TEST

START_TEST(states)
{
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024 }, got;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	struct ibv_recv_wr rr = { .wr_id = 1 }, *rbad;
	struct ibv_qp_init_attr init;
	struct side a, b;
	struct addr to;

	pair_of_sides(&a, &b);
	ck_assert_int_eq(ibv_post_send(b.rx[0].qp, &wr, &bad), EINVAL);
	ck_assert_ptr_eq(bad, &wr);
	ck_assert_int_eq(ibv_post_recv(b.rx[0].qp, &rr, &rbad), EINVAL);
	ck_assert_ptr_eq(rbad, &rr);
	ck_assert_int_eq(ibv_post_recv(a.tx.qp, &rr, &rbad), EINVAL);
	ck_assert_int_eq(ibv_query_qp(b.rx[0].qp, &got, IBV_QP_STATE, &init), 0);
	ck_assert(got.qp_state == IBV_QPS_RTS && b.rx[0].qp->state == IBV_QPS_RTS && init.qp_type == IBV_QPT_XRC_RECV &&
		  !init.cap.max_send_wr && !init.cap.max_recv_wr);

	/* each needs only its own side's attributes; the other's are ignored */
	to = end_addr(&b.rx[0]);
	ck_assert_int_eq(to_state(a.tx.qp, IBV_QPS_RESET), 0);
	ck_assert_int_eq(to_init(a.tx.qp, NULL), 0);
	at.dest_qp_num = to.qpn;
	address(&at.ah_attr, &to);
	ck_assert_int_eq(ibv_modify_qp(a.tx.qp, &at, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), EINVAL);
	ck_assert_int_eq(ibv_modify_qp(a.tx.qp, &at, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
	at.qp_state = IBV_QPS_RTS;
	ck_assert_int_eq(ibv_modify_qp(a.tx.qp, &at, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN), EINVAL);
	ck_assert_int_eq(to_rts(a.tx.qp, 5, NULL), 0);
	ck_assert_int_eq(to_state(b.rx[0].qp, IBV_QPS_RESET), 0);
	ck_assert_int_eq(to_init(b.rx[0].qp, NULL), 0);
	at.qp_state = IBV_QPS_RTR;
	ck_assert_int_eq(ibv_modify_qp(b.rx[0].qp, &at, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				       IBV_QP_RQ_PSN), EINVAL);
	to = end_addr(&a.tx);
	ck_assert_int_eq(to_rtr(b.rx[0].qp, &to, NULL), 0);
	at.qp_state = IBV_QPS_RTS;
	ck_assert_int_eq(ibv_modify_qp(b.rx[0].qp, &at, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN | IBV_QP_RETRY_CNT |
				       IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC), 0);
	close_sides(&a, &b);
}
END_TEST

/* A queue that is not there, is of another domain, or of no domain, or was there: by whatever request. */
enum bad_queue { UNKNOWN, OTHER_DOMAIN, BASIC, GONE, NBADS };

START_TEST(no_such_queue)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	struct ibv_srq_init_attr basic = { .attr = { 4, 1, 0 } };
	struct ibv_srq *s = NULL;
	struct side a, b, c;
	uint32_t n = 4711;

	pair_of_sides(&a, &b);
	side_open(&c, 1, (struct ibv_xrcd_init_attr)XA, 0);
	ck_assert_int_eq(post_rx(&c.rx[0], 1, 0, 100), 0);
	ck_assert_int_eq(post_rx(&b.rx[1], 2, 0, 100), 0);
	switch ((enum bad_queue)(_i % NBADS)) {
	case OTHER_DOMAIN:
		n = c.srqn[0];
		break;
	case BASIC:
		s = ibv_create_srq(b.e.pd, &basic);
		ck_assert_int_eq(ibv_get_srq_num(s, &n), 0);
		break;
	case GONE:
		n = b.srqn[1];
		ck_assert_int_eq(ibv_destroy_srq(b.rx[1].srq), 0);
		b.rx[1].srq = NULL;
		break;
	default:
		break;
	}
	ck_assert_int_eq(post(&a.tx, &b.e, 1, (struct wr){ ops[_i / NBADS], .at = 8, .len = 8, .srqn = n }), 0);
	want(&a.tx, 1, IBV_WC_REM_INV_REQ_ERR);
	want_event(b.e.ctx, IBV_EVENT_QP_LAST_WQE_REACHED, b.rx[0].qp);
	want_event(b.e.ctx, IBV_EVENT_QP_REQ_ERR, b.rx[0].qp);
	want_none(&b.rx[0], 0);
	want_none(&b.rx[1], 0);
	want_none(&c.rx[0], 0);
	if (s)
		ck_assert_int_eq(ibv_destroy_srq(s), 0);
	close_sides(&a, &b);
	side_close(&c);
}
END_TEST

/* The queue's PD counts, for its buffers and for remote keys. */
START_TEST(protection)
{
	struct ibv_pd *pd;
	struct side a, b;
	struct ibv_mr *mr;
	struct end rx;
	uint32_t n;

	pair_of_sides(&a, &b);
	rx = b.rx[0];
	pd = ibv_alloc_pd(b.e.ctx);
	mr = ibv_reg_mr(pd, b.e.buf, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	rx.srq = srq_of(pd, b.x, rx.cq);
	ck_assert_ptr_nonnull(rx.srq);
	ck_assert_int_eq(ibv_get_srq_num(rx.srq, &n), 0);
	for (int i = 0; i < 3; i++) {
		enum ibv_wr_opcode op = i == 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
		bool buffers = !i;

		if (i)
			join_sides(&a, &b);
		ck_assert_int_eq(post(&a.tx, &b.e, 1, (struct wr){ op, .len = 8, .rkey = mr->rkey, .srqn = n }), 0);
		want(&a.tx, 1, IBV_WC_SUCCESS);
		if (buffers) {
			/* a key of the other queue's PD */
			ck_assert_int_eq(post_rx(&rx, 2, 0, 100), 0);
			ck_assert_int_eq(post(&a.tx, &b.e, 2, (struct wr){ IBV_WR_SEND, .len = 8, .srqn = n }), 0);
			want(&a.tx, 2, IBV_WC_REM_OP_ERR);
			want(&rx, 2, IBV_WC_LOC_PROT_ERR);
		} else {
			ck_assert_int_eq(post(&a.tx, &b.e, 3, (struct wr){ op, .len = 8, .rkey = mr->rkey, .srqn = b.srqn[1] }), 0);
			want(&a.tx, 3, IBV_WC_REM_ACCESS_ERR);
		}
		ck_assert(!to_state(a.tx.qp, IBV_QPS_RESET) && !to_state(b.rx[0].qp, IBV_QPS_RESET));
	}
	ck_assert_int_eq(ibv_dealloc_pd(pd), EBUSY);
	ck_assert(!ibv_destroy_srq(rx.srq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
	close_sides(&a, &b);
}
END_TEST

/* ---- one queue pair for two contexts ---- */

START_TEST(opened_twice)
{
	char name[] = "/tmp/test_xrc.XXXXXX";
	struct ibv_xrcd_init_attr xa = XA;
	struct side a, b, c;
	struct ibv_qp *made, *again;
	uint32_t num;

	xa.fd = mkstemp(name);
	ck_assert_int_ge(xa.fd, 0);
	unlink(name);
	side_open(&a, 0, (struct ibv_xrcd_init_attr)XA, 0);
	side_open(&b, 1, xa, 0);
	side_open(&c, 1, xa, 0);
	close(xa.fd);
	made = b.rx[0].qp;
	num = made->qp_num;
	again = open_again(c.e.ctx, c.x, num, IBV_QPT_XRC_RECV);
	ck_assert_ptr_nonnull(again);
	ck_assert(again != made && again->qp_num == num && again->context == c.e.ctx && again->qp_type == IBV_QPT_XRC_RECV);
	ck_assert_int_eq(ibv_destroy_qp(c.rx[0].qp), 0);
	c.rx[0].qp = c.rx[1].qp = again;
	/* either connects it */
	ck_assert_int_eq(to_init(again, NULL), 0);
	ck_assert_int_eq(to_state(made, IBV_QPS_RESET), 0);
	join_sides(&a, &c);
	ck_assert_int_eq(to_init(made, NULL), EINVAL);
	for (uint64_t i = 0; i < 4; i++) {
		struct side *to = i & 1 ? &c : &b;

		a.e.buf[0] = (uint8_t)(40 + i);
		ck_assert_int_eq(post_rx(&to->rx[0], i, 64, 64), 0);
		ck_assert_int_eq(post(&a.tx, &to->e, i, (struct wr){ IBV_WR_SEND, .len = 9, .srqn = to->srqn[0] }), 0);
		want(&a.tx, i, IBV_WC_SUCCESS);
		want(&to->rx[0], i, IBV_WC_SUCCESS);
		ck_assert_uint_eq(to->e.buf[64], 40 + i);
	}
	/* as long as one has it */
	ck_assert_int_eq(ibv_destroy_qp(made), 0);
	b.rx[0].qp = NULL;
	ck_assert_int_eq(post(&a.tx, &b.e, 8, (struct wr){ IBV_WR_RDMA_WRITE, .len = 9, .srqn = b.srqn[0] }), 0);
	want(&a.tx, 8, IBV_WC_SUCCESS);
	made = open_again(b.e.ctx, b.x, num, IBV_QPT_XRC_RECV);
	ck_assert_ptr_nonnull(made);
	/* both are told */
	ck_assert_int_eq(to_state(again, IBV_QPS_ERR), 0);
	want_event(b.e.ctx, IBV_EVENT_QP_LAST_WQE_REACHED, made);
	want_event(c.e.ctx, IBV_EVENT_QP_LAST_WQE_REACHED, again);
	ck_assert(!ibv_destroy_qp(made) && !ibv_destroy_qp(again));
	c.rx[0].qp = NULL;
	REFUSED(EINVAL, open_again(b.e.ctx, b.x, num, IBV_QPT_XRC_RECV));
	side_close(&a);
	side_close(&b);
	side_close(&c);
}
END_TEST

static void *volatile lost[5]; /* where a leak checker finds them */

/* A context that goes with all that is its own: the other's queue pair goes on, without its queues. */
START_TEST(left_behind)
{
	char name[] = "/tmp/test_xrc.XXXXXX";
	struct ibv_xrcd_init_attr xa = XA;
	struct ibv_context *ctx;
	struct ibv_xrcd *x;
	struct ibv_srq *s;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct side a, b;
	uint32_t n;

	xa.fd = mkstemp(name);
	unlink(name);
	side_open(&a, 0, (struct ibv_xrcd_init_attr)XA, 0);
	side_open(&b, 1, xa, 0);
	ctx = open_dev(1);
	x = ibv_open_xrcd(ctx, &xa);
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	s = srq_of(pd, x, cq);
	qp = open_again(ctx, x, b.rx[0].qp->qp_num, IBV_QPT_XRC_RECV);
	ck_assert(s && qp);
	/* the program's loss: it cannot give them back without their context */
	lost[0] = x;
	lost[1] = s;
	lost[2] = pd;
	lost[3] = cq;
	lost[4] = qp;
	ck_assert_int_eq(ibv_get_srq_num(s, &n), 0);
	ck_assert_int_eq(ibv_close_device(ctx), 0);
	join_sides(&a, &b);
	ck_assert_int_eq(post(&a.tx, &b.e, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = 9, .srqn = b.srqn[0] }), 0);
	want(&a.tx, 1, IBV_WC_SUCCESS);
	ck_assert_int_eq(post(&a.tx, &b.e, 2, (struct wr){ IBV_WR_RDMA_WRITE, .len = 9, .srqn = n }), 0);
	want(&a.tx, 2, IBV_WC_REM_INV_REQ_ERR);
	close_sides(&a, &b);
	/* nobody has it any more */
	ctx = open_dev(1);
	xa.oflags = 0;
	REFUSED(EAGAIN, ibv_open_xrcd(ctx, &xa));
	ck_assert_int_eq(ibv_close_device(ctx), 0);
	close(xa.fd);
}
END_TEST

START_TEST(limits_and_ends)
{
	struct ibv_srq_attr limit = { .srq_limit = 2 };
	struct side a, b;

	pair_of_sides(&a, &b);
	for (uint64_t i = 0; i < 16; i++)
		ck_assert_int_eq(post_rx(&b.rx[0], i, 0, 64), 0);
	ck_assert_int_eq(post_rx(&b.rx[0], 16, 0, 64), ENOMEM);
	ck_assert_int_eq(ibv_modify_srq(b.rx[0].srq, &limit, IBV_SRQ_LIMIT), 0);
	for (uint64_t i = 0; i < 15; i++) {
		ck_assert_int_eq(post(&a.tx, &b.e, i, (struct wr){ IBV_WR_SEND, .len = 9, .srqn = b.srqn[0] }), 0);
		want(&a.tx, i, IBV_WC_SUCCESS);
	}
	want_event(b.e.ctx, IBV_EVENT_SRQ_LIMIT_REACHED, b.rx[0].srq);
	/* a slot is free when its completion is polled */
	ck_assert_int_eq(post_rx(&b.rx[0], 16, 0, 64), ENOMEM);
	want(&b.rx[0], 0, IBV_WC_SUCCESS);
	ck_assert_int_eq(post_rx(&b.rx[0], 16, 0, 64), 0);
	ck_assert_int_eq(to_state(b.rx[0].qp, IBV_QPS_ERR), 0);
	want_event(b.e.ctx, IBV_EVENT_QP_LAST_WQE_REACHED, b.rx[0].qp);
	/* completions stay when the QP goes, and go with their queue; what lies in it is for others */
	ck_assert_int_eq(ibv_destroy_qp(b.rx[0].qp), 0);
	b.rx[0].qp = b.rx[1].qp = recv_qp(b.e.ctx, b.x);
	ck_assert_int_eq(to_state(a.tx.qp, IBV_QPS_RESET), 0);
	join_sides(&a, &b);
	ck_assert_int_eq(post(&a.tx, &b.e, 20, (struct wr){ IBV_WR_SEND, .len = 9, .srqn = b.srqn[0] }), 0);
	want(&a.tx, 20, IBV_WC_SUCCESS);
	for (int i = 1; i < 15; i++) {
		struct ibv_wc wc;

		ck_assert_int_eq(ibv_poll_cq(b.rx[0].cq, 1, &wc), 1);
		ck_assert_uint_eq(wc.wr_id, i);
	}
	ck_assert_int_eq(ibv_destroy_srq(b.rx[0].srq), 0);
	b.rx[0].srq = NULL;
	want_none(&b.rx[0], 0);
	close_sides(&a, &b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("softnic: extended reliable connections");
	TCase *t = tcase_create("xrc");

	tcase_set_timeout(t, 120);
	tcase_add_test(t, moves_data);
	tcase_add_test(t, two_queues);
	tcase_add_test(t, built);
	tcase_add_test(t, domains);
	tcase_add_test(t, objects);
	tcase_add_test(t, states);
	tcase_add_loop_test(t, no_such_queue, 0, 4 * NBADS);
	tcase_add_test(t, protection);
	tcase_add_test(t, opened_twice);
	tcase_add_test(t, left_behind);
	tcase_add_test(t, limits_and_ends);
	suite_add_tcase(s, t);
	return run_suite(s);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* UC and UD, address handles, and a send queue that drains. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test_end.h"

#define GRH 40u

static void want_event(struct end *e, enum ibv_event_type type)
{
	struct ibv_async_event ev;
	struct pollfd p = { e->ctx->async_fd, POLLIN, 0 };

	ck_assert_int_eq(poll(&p, 1, 20000), 1);
	ck_assert_int_eq(ibv_get_async_event(e->ctx, &ev), 0);
	ck_assert_str_eq(ibv_event_type_str(ev.event_type), ibv_event_type_str(type));
	ck_assert_ptr_eq(ev.element.qp, e->qp);
	ibv_ack_async_event(&ev);
}

static void want_no_event(struct end *e)
{
	struct pollfd p = { e->ctx->async_fd, POLLIN, 0 };

	ck_assert_int_eq(poll(&p, 1, 50), 0);
}

static struct ibv_qp_attr query(struct end *e)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;

	ck_assert_int_eq(ibv_query_qp(e->qp, &a, IBV_QP_STATE, &i), 0);
	return a;
}

/* ---- UC ---- */

START_TEST(uc_data)
{
	static const uint32_t sizes[] = { 1, 96, 97, 4096, 4097, 16385, 300000 };
	struct end_opts o = { .type = IBV_QPT_UC };
	struct end a, b;
	struct ibv_wc wc;

	pair_open(&a, &b, &o, NULL);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint32_t n = sizes[i];

		fill(a.buf, n, n);
		/* a UC request is done when it was sent; the receiver knows when it is there */
		ck_assert_int_eq(post_rx(&b, 50, 500000, n), 0);
		ck_assert_int_eq(post_rx(&b, 51, 0, 0), 0);
		ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = n }), 0);
		ck_assert_int_eq(post(&a, &b, 2, (struct wr){ IBV_WR_SEND, .len = n }), 0);
		ck_assert_int_eq(post(&a, &b, 3, (struct wr){ IBV_WR_RDMA_WRITE_WITH_IMM, .len = n, .arg = 5 }), 0);
		ck_assert_int_eq(want(&a, 1, IBV_WC_SUCCESS).opcode, IBV_WC_RDMA_WRITE);
		want(&a, 2, IBV_WC_SUCCESS);
		want(&a, 3, IBV_WC_SUCCESS);
		wc = want(&b, 50, IBV_WC_SUCCESS);
		ck_assert_uint_eq(wc.byte_len, n);
		ck_assert_uint_eq(wc.src_qp, a.qp->qp_num);
		check_filled(b.buf + 500000, n, n);
		wc = want(&b, 51, IBV_WC_SUCCESS);
		check_filled(b.buf, n, n);
		ck_assert_int_eq(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
		ck_assert_uint_eq(wc.imm_data, 5);
		memset(b.buf, 0, LEN);
	}
	ck_assert_int_eq(post(&a, &b, 4, (struct wr){ IBV_WR_RDMA_READ, .len = 8 }), EINVAL);
	ck_assert_int_eq(post(&a, &b, 4, (struct wr){ IBV_WR_ATOMIC_FETCH_AND_ADD, .len = 8 }), EINVAL);
	ck_assert_int_eq(post(&a, &b, 4, (struct wr){ IBV_WR_SEND_WITH_INV, .len = 8 }), EINVAL);
	pair_close(&a, &b);
}
END_TEST

/* What does not fit is dropped; the sender hears nothing, and what comes behind it is taken. */
START_TEST(uc_drops)
{
	struct end_opts o = { .type = IBV_QPT_UC };
	struct conn_opts no_write = { .access = IBV_ACCESS_REMOTE_READ };
	struct addr ba;
	struct end a, b;

	pair_open(&a, &b, &o, NULL);
	fill(a.buf, 60000, 1);
	/* nowhere to go; too long; a bad key; out of bounds */
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_SEND, .len = 60000 }), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	want_none(&b, 30);
	ck_assert_int_eq(post_rx(&b, 50, 100000, 20000), 0);
	/* its last part would fit, but not without the one before */
	ck_assert_int_eq(post(&a, &b, 2, (struct wr){ IBV_WR_SEND, .len = 2 * 16384 + 1000 }), 0);
	want(&a, 2, IBV_WC_SUCCESS);
	want_none(&b, 30);
	ck_assert_int_eq(post(&a, &b, 3, (struct wr){ IBV_WR_RDMA_WRITE, .rkey = 7, .to = 200000, .len = 8 }), 0);
	ck_assert_int_eq(post(&a, &b, 4, (struct wr){ IBV_WR_RDMA_WRITE, .to = LEN - 8, .len = 16 }), 0);
	ck_assert_int_eq(post(&a, &b, 5, (struct wr){ IBV_WR_SEND_WITH_IMM, .len = 100, .arg = 6 }), 0);
	want(&a, 3, IBV_WC_SUCCESS);
	want(&a, 4, IBV_WC_SUCCESS);
	want(&a, 5, IBV_WC_SUCCESS);
	/* the receive that was too short serves the next message */
	ck_assert_uint_eq(want(&b, 50, IBV_WC_SUCCESS).imm_data, 6);
	check_filled(b.buf + 100000, 100, 1);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_uint_eq(b.buf[200000 + i] | b.buf[LEN - 8 + i], 0);
	ck_assert_int_eq(query(&b).qp_state, IBV_QPS_RTS);
	want_no_event(&b);
	/* no access at all */
	ba = end_addr(&a);
	ck_assert_int_eq(to_state(b.qp, IBV_QPS_RESET), 0);
	connect_to(&b, &ba, &no_write);
	ck_assert_int_eq(post(&a, &b, 6, (struct wr){ IBV_WR_RDMA_WRITE, .to = 200000, .len = 8 }), 0);
	want(&a, 6, IBV_WC_SUCCESS);
	want_none(&b, 30);
	ck_assert_uint_eq(b.buf[200000], 0);
	/* nobody there */
	ck_assert_int_eq(ibv_destroy_qp(b.qp), 0);
	b.qp = NULL;
	ck_assert_int_eq(post(&a, &b, 7, (struct wr){ IBV_WR_RDMA_WRITE, .len = 100000 }), 0);
	want(&a, 7, IBV_WC_SUCCESS);
	pair_close(&a, &b);
}
END_TEST

/* An error of the sender's own stops only its send queue. */
START_TEST(send_queue_error)
{
	struct end_opts o = { .type = IBV_QPT_UC };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	struct end a, b;

	pair_open(&a, &b, &o, NULL);
	ck_assert_int_eq(post_rx(&a, 50, 0, 8), 0);
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = LEN / 2 }), 0);
	ck_assert_int_eq(post(&a, &b, 2, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8, .lkey = 3 }), 0);
	ck_assert_int_eq(post(&a, &b, 3, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	want(&a, 2, IBV_WC_LOC_PROT_ERR);
	want(&a, 3, IBV_WC_WR_FLUSH_ERR);
	ck_assert_int_eq(query(&a).qp_state, IBV_QPS_SQE);
	ck_assert_int_eq(post(&a, &b, 4, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	want(&a, 4, IBV_WC_WR_FLUSH_ERR);
	b.buf[0] = 12;
	ck_assert_int_eq(post(&b, &a, 5, (struct wr){ IBV_WR_SEND, .len = 1 }), 0);
	want(&b, 5, IBV_WC_SUCCESS);
	want(&a, 50, IBV_WC_SUCCESS);
	ck_assert_uint_eq(a.buf[0], 12);
	/* and back */
	ck_assert_int_eq(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
	ck_assert_int_eq(post_rx(&b, 51, 0, 8), 0);
	ck_assert_int_eq(post(&a, &b, 6, (struct wr){ IBV_WR_SEND, .len = 8 }), 0);
	want(&a, 6, IBV_WC_SUCCESS);
	want(&b, 51, IBV_WC_SUCCESS);
	pair_close(&a, &b);
}
END_TEST

/* ---- UD ---- */

struct datagram {
	uint32_t at, len, qpn, qkey, imm;
	int flags, inl;
};

static int send_to(struct end *e, struct ibv_ah *ah, uint64_t id, struct datagram d)
{
	struct ibv_sge sge = { (uintptr_t)e->buf + d.at, d.len, e->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = (unsigned int)d.flags, .imm_data = d.imm }, *bad;

	if (d.imm)
		wr.opcode = IBV_WR_SEND_WITH_IMM;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = d.qpn;
	wr.wr.ud.remote_qkey = d.qkey ? d.qkey : QKEY;
	return ibv_post_send(e->qp, &wr, &bad);
}

static struct ibv_ah *ah_to(struct end *from, const struct end *to, bool global)
{
	struct addr peer = end_addr(to);
	struct ibv_ah_attr a;
	struct ibv_ah *ah;

	address(&a, &peer);
	if (global && !a.is_global) {
		a.is_global = 1;
		a.grh.dgid = to->gid;
		a.grh.sgid_index = 0;
	}
	a.grh.traffic_class = 0x20;
	a.grh.hop_limit = 9;
	a.grh.flow_label = 0x12345;
	ah = ibv_create_ah(from->pd, &a);
	ck_assert_ptr_nonnull(ah);
	return ah;
}

static uint16_t sum16(const uint8_t *p, int n)
{
	uint32_t sum = 0;

	for (int i = 0; i < n; i += 2)
		sum += (uint32_t)p[i] << 8 | p[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)sum;
}

START_TEST(ud_data)
{
	struct end_opts o = { .type = IBV_QPT_UD };
	struct ibv_ah_attr reply;
	struct ibv_ah *ah, *back;
	struct ibv_grh *grh;
	struct end a, b;
	struct ibv_wc wc;
	uint8_t *ip;

	pair_open(&a, &b, &o, NULL);
	ah = ah_to(&a, &b, true);
	fill(a.buf, 4096, 1);
	grh = (struct ibv_grh *)(b.buf + 1000);
	ip = b.buf + 1000 + 20;
	for (uint32_t n = 0; n <= 4096; n = n ? 8 * n : 1) {
		ck_assert_int_eq(post_rx(&b, 50, 1000, 5000), 0);
		ck_assert_int_eq(send_to(&a, ah, 1, (struct datagram){ .len = n, .qpn = b.qp->qp_num, .imm = n }), 0);
		ck_assert_int_eq(want(&a, 1, IBV_WC_SUCCESS).opcode, IBV_WC_SEND);
		wc = want(&b, 50, IBV_WC_SUCCESS);
		ck_assert_uint_eq(wc.byte_len, GRH + n);
		ck_assert_uint_eq(wc.src_qp, a.qp->qp_num);
		ck_assert_uint_eq(wc.slid, a.lid);
		ck_assert_uint_eq(wc.wc_flags, IBV_WC_GRH | (n ? (unsigned int)IBV_WC_WITH_IMM : 0));
		if (n)
			ck_assert_uint_eq(wc.imm_data, n);
		check_filled(b.buf + 1000 + GRH, n, 1);
		if (a.lid) {
			ck_assert_uint_eq(ntohl(grh->version_tclass_flow), 6u << 28 | 0x20u << 20 | 0x12345);
			ck_assert_mem_eq(grh->sgid.raw, a.gid.raw, 16);
			ck_assert_mem_eq(grh->dgid.raw, b.gid.raw, 16);
			ck_assert_uint_eq(grh->hop_limit, 9);
			ck_assert_uint_eq(grh->next_hdr, 0x1b);
		} else {
			ck_assert_uint_eq(ip[0], 0x45);
			ck_assert_uint_eq(ip[1], 0x20);
			ck_assert_uint_eq(ip[8], 9);
			ck_assert_uint_eq(ip[9], 17);
			ck_assert_uint_eq(sum16(ip, 20), 0xffff);
			ck_assert_uint_eq((uint32_t)ip[2] << 8 | ip[3],
					  20 + 8 + 12 + 8 + (n ? 4 : 0) + (n + 3) / 4 * 4 + 4);
			ck_assert_mem_eq(ip + 12, a.gid.raw + 12, 4);
			ck_assert_mem_eq(ip + 16, b.gid.raw + 12, 4);
		}
	}
	/* the way back is in it */
	ck_assert_int_eq(ibv_init_ah_from_wc(b.ctx, 1, &wc, grh, &reply), 0);
	ck_assert_int_eq(reply.is_global, 1);
	ck_assert_mem_eq(reply.grh.dgid.raw, a.gid.raw, 16);
	ck_assert_uint_eq(reply.grh.sgid_index, a.lid ? 0 : 1);
	ck_assert_uint_eq(reply.grh.traffic_class, 0x20);
	ck_assert_uint_eq(reply.dlid, a.lid);
	back = ibv_create_ah_from_wc(b.pd, &wc, grh, 1);
	ck_assert_ptr_nonnull(back);
	ck_assert_int_eq(post_rx(&a, 60, 8192, 100), 0);
	ck_assert_int_eq(send_to(&b, back, 2, (struct datagram){ .at = 1000 + GRH, .len = 8, .qpn = wc.src_qp }), 0);
	want(&b, 2, IBV_WC_SUCCESS);
	ck_assert_uint_eq(want(&a, 60, IBV_WC_SUCCESS).byte_len, GRH + 8);
	check_filled(a.buf + 8192 + GRH, 8, 1);
	ck_assert_int_eq(ibv_dealloc_pd(a.pd), EBUSY);
	ck_assert_int_eq(ibv_destroy_ah(back), 0);
	ck_assert_int_eq(ibv_destroy_ah(ah), 0);
	pair_close(&a, &b);
}
END_TEST

/* To several at once, by ibv_wr_*, inline, and to itself. */
START_TEST(ud_many)
{
	struct end_opts o = { .type = IBV_QPT_UD, .send_ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM };
	struct ibv_ah *to_b, *to_c, *to_a;
	struct ibv_qp_ex *x;
	struct end a, b, c;

	end_open(&a, 0, &o);
	end_open(&b, 1, &o);
	end_open(&c, 1, &o);
	connect_to(&a, &(struct addr){ 0 }, NULL);
	connect_to(&b, &(struct addr){ 0 }, NULL);
	connect_to(&c, &(struct addr){ 0 }, NULL);
	to_a = ah_to(&a, &a, false);
	to_b = ah_to(&a, &b, false);
	to_c = ah_to(&a, &c, false);
	for (uint64_t i = 0; i < 20; i++) {
		ck_assert_int_eq(post_rx(&a, i, 10000 + 100 * (uint32_t)i, 100), 0);
		ck_assert_int_eq(post_rx(&b, i, 10000 + 100 * (uint32_t)i, 100), 0);
		ck_assert_int_eq(post_rx(&c, i, 10000 + 100 * (uint32_t)i, 100), 0);
	}
	x = ibv_qp_to_qp_ex(a.qp);
	for (uint32_t i = 0; i < 20; i++) {
		memset(a.buf, (int)i + 1, 32);
		ibv_wr_start(x);
		x->wr_flags = 0;
		x->wr_id = i;
		ibv_wr_send(x);
		ibv_wr_set_ud_addr(x, to_b, b.qp->qp_num, QKEY);
		ibv_wr_set_inline_data(x, a.buf, 32);
		ibv_wr_send_imm(x, i);
		ibv_wr_set_ud_addr(x, to_c, c.qp->qp_num, QKEY);
		ibv_wr_set_inline_data(x, a.buf, 32);
		ibv_wr_send(x);
		ibv_wr_set_ud_addr(x, to_a, a.qp->qp_num, QKEY);
		ibv_wr_set_inline_data(x, a.buf, 32);
		ck_assert_int_eq(ibv_wr_complete(x), 0);
		want(&b, i, IBV_WC_SUCCESS);
		ck_assert_uint_eq(want(&c, i, IBV_WC_SUCCESS).imm_data, i);
		for (int k = 0; k < 4; k++) {
			struct ibv_wc wc;

			ck_assert(poll_one(&a, &wc, 1000));
			ck_assert_int_eq(wc.status, IBV_WC_SUCCESS);
		}
		ck_assert_uint_eq(a.buf[10000 + 100 * i + GRH + 31], i + 1);
		ck_assert_uint_eq(b.buf[10000 + 100 * i + GRH + 31], i + 1);
		ck_assert_uint_eq(c.buf[10000 + 100 * i + GRH + 31], i + 1);
	}
	/* without an address nothing goes */
	ibv_wr_start(x);
	ibv_wr_send(x);
	ibv_wr_set_inline_data(x, a.buf, 8);
	ck_assert_int_eq(ibv_wr_complete(x), EINVAL);
	ck_assert_int_eq(ibv_destroy_ah(to_a), 0);
	ck_assert_int_eq(ibv_destroy_ah(to_b), 0);
	ck_assert_int_eq(ibv_destroy_ah(to_c), 0);
	end_close(&a);
	end_close(&b);
	end_close(&c);
}
END_TEST

START_TEST(ud_drops)
{
	struct end_opts o = { .type = IBV_QPT_UD };
	struct datagram d = { .len = 8 };
	struct ibv_ah *ah, *other;
	struct ibv_pd *pd;
	struct end a, b;

	pair_open(&a, &b, &o, NULL);
	ah = ah_to(&a, &b, false);
	d.qpn = b.qp->qp_num;
	/* no receive; a wrong Q_Key; no such QP; too long for the receive: none is seen, and all are done */
	ck_assert_int_eq(send_to(&a, ah, 1, d), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	want_none(&b, 20);
	ck_assert_int_eq(post_rx(&b, 50, 0, GRH + 50), 0);
	d.qkey = QKEY + 1;
	ck_assert_int_eq(send_to(&a, ah, 2, d), 0);
	d.qkey = 0;
	d.qpn++;
	ck_assert_int_eq(send_to(&a, ah, 3, d), 0);
	d.qpn--;
	d.len = 51;
	ck_assert_int_eq(send_to(&a, ah, 4, d), 0);
	for (uint64_t i = 2; i <= 4; i++)
		want(&a, i, IBV_WC_SUCCESS);
	want_none(&b, 30);
	/* the highest bit: the sender's own Q_Key, which is the same here */
	d.len = 50;
	d.qkey = 0x80000001u;
	ck_assert_int_eq(send_to(&a, ah, 5, d), 0);
	want(&a, 5, IBV_WC_SUCCESS);
	ck_assert_uint_eq(want(&b, 50, IBV_WC_SUCCESS).byte_len, GRH + 50);
	/* the sender's fault: longer than a packet, or an address of another PD */
	d.len = 4097;
	ck_assert_int_eq(send_to(&a, ah, 6, d), 0);
	want(&a, 6, IBV_WC_LOC_LEN_ERR);
	ck_assert_int_eq(query(&a).qp_state, IBV_QPS_SQE);
	ck_assert_int_eq(ibv_modify_qp(a.qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS }, IBV_QP_STATE), 0);
	pd = a.pd;
	a.pd = ibv_alloc_pd(a.ctx);
	other = ah_to(&a, &b, false);
	d.len = 8;
	ck_assert_int_eq(send_to(&a, other, 7, d), 0);
	want(&a, 7, IBV_WC_LOC_QP_OP_ERR);
	ck_assert_int_eq(ibv_destroy_ah(other), 0);
	ck_assert_int_eq(ibv_dealloc_pd(a.pd), 0);
	a.pd = pd;
	ck_assert_int_eq(send_to(&a, NULL, 8, d), EINVAL);
	ck_assert_int_eq(post(&a, &b, 9, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), EINVAL);
	ck_assert_int_eq(ibv_destroy_ah(ah), 0);
	pair_close(&a, &b);
}
END_TEST

/* InfiniBand without a GRH: its place in the buffer is left alone. RoCE has one always. */
START_TEST(without_grh)
{
	struct end_opts o = { .type = IBV_QPT_UD };
	struct ibv_ah_attr reply, attr = { .port_num = 1, .dlid = 1 };
	struct ibv_ah *ah;
	struct end a, b;
	struct ibv_wc wc;

	pair_open(&a, &b, &o, NULL);
	if (!a.lid) {
		ck_assert_ptr_null(ibv_create_ah(a.pd, &attr));
		ck_assert_int_eq(errno, EINVAL);
	} else {
		ah = ah_to(&a, &b, false);
		memset(b.buf, 0x5a, 100);
		a.buf[0] = 3;
		ck_assert_int_eq(post_rx(&b, 50, 0, 100), 0);
		ck_assert_int_eq(send_to(&a, ah, 1, (struct datagram){ .len = 1, .qpn = b.qp->qp_num }), 0);
		want(&a, 1, IBV_WC_SUCCESS);
		wc = want(&b, 50, IBV_WC_SUCCESS);
		ck_assert_uint_eq(wc.wc_flags, 0);
		ck_assert_uint_eq(wc.byte_len, GRH + 1);
		for (uint32_t i = 0; i < GRH; i++)
			ck_assert_uint_eq(b.buf[i], 0x5a);
		ck_assert_uint_eq(b.buf[GRH], 3);
		ck_assert_int_eq(ibv_init_ah_from_wc(b.ctx, 1, &wc, NULL, &reply), 0);
		ck_assert_int_eq(reply.is_global, 0);
		ck_assert_uint_eq(reply.dlid, a.lid);
		ck_assert_int_eq(ibv_destroy_ah(ah), 0);
		attr.dlid = 0;
		ck_assert_ptr_null(ibv_create_ah(a.pd, &attr));
	}
	attr.is_global = 1;
	attr.grh.sgid_index = 3;
	ck_assert_ptr_null(ibv_create_ah(a.pd, &attr));
	attr.grh.sgid_index = 0;
	attr.port_num = 2;
	ck_assert_ptr_null(ibv_create_ah(a.pd, &attr));
	pair_close(&a, &b);
}
END_TEST

/* ---- a send queue that drains ---- */

START_TEST(drained)
{
	struct ibv_qp_attr to_sqd = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	struct conn_opts o = { .rnr_timer = 14 };
	struct end a, b;

	pair_open(&a, &b, NULL, &o);
	/* waits for a receive; what is behind it was begun, too, or not: it is only done once the QP goes on, if not */
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_SEND, .len = 8 }), 0);
	want_none(&a, 20);
	ck_assert_int_eq(ibv_modify_qp(a.qp, &to_sqd, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
	ck_assert_int_eq(query(&a).sq_draining, 1);
	want_no_event(&a);
	ck_assert_int_eq(post(&a, &b, 2, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	ck_assert_int_eq(post_rx(&b, 50, 0, 8), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	want_event(&a, IBV_EVENT_SQ_DRAINED);
	want_none(&a, 50);
	ck_assert_int_eq(query(&a).sq_draining, 0);
	ck_assert_int_eq(query(&a).qp_state, IBV_QPS_SQD);
	/* in this state the QP is still asked by others */
	ck_assert_int_eq(post(&b, &a, 60, (struct wr){ IBV_WR_RDMA_READ, .len = 100000 }), 0);
	want(&b, 50, IBV_WC_SUCCESS);
	want(&b, 60, IBV_WC_SUCCESS);
	ck_assert_int_eq(to_state(a.qp, IBV_QPS_RTS), 0);
	want(&a, 2, IBV_WC_SUCCESS);
	want_no_event(&a);
	/* nothing to drain: said at once; not asked for: not said */
	ck_assert_int_eq(ibv_modify_qp(a.qp, &to_sqd, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
	want_event(&a, IBV_EVENT_SQ_DRAINED);
	ck_assert_int_eq(to_state(a.qp, IBV_QPS_RTS), 0);
	ck_assert_int_eq(to_state(a.qp, IBV_QPS_SQD), 0);
	want_no_event(&a);
	pair_close(&a, &b);
}
END_TEST

START_TEST(not_offered)
{
	struct ibv_flow_attr flow = { .port = 1 };
	struct ibv_qp_init_attr init = { .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_srq_init_attr_ex sa = { .attr = { 1, 1, 0 }, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE |
					   IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
					   .srq_type = IBV_SRQT_TM, .tm_cap = { 1, 1 } };
	struct end a;

	end_open(&a, 0, NULL);
#define NOT(call)						\
	do {							\
		errno = 0;					\
		ck_assert_ptr_null(call);			\
		ck_assert_int_eq(errno, EOPNOTSUPP);		\
	} while (0)
	NOT(ibv_create_flow(a.qp, &flow));
	sa.pd = a.pd;
	sa.cq = a.cq;
	NOT(ibv_create_srq_ex(a.ctx, &sa));
	init.send_cq = init.recv_cq = a.cq;
	init.qp_type = IBV_QPT_RAW_PACKET;
	NOT(ibv_create_qp(a.pd, &init));
	ck_assert_int_eq(ibv_query_qp_data_in_order(a.qp, IBV_WR_RDMA_WRITE, 0), 0);
	end_close(&a);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("softnic: datagrams and unreliable connections");
	TCase *t = tcase_create("datagram");

	tcase_set_timeout(t, 120);
	tcase_add_test(t, uc_data);
	tcase_add_test(t, uc_drops);
	tcase_add_test(t, send_queue_error);
	tcase_add_test(t, ud_data);
	tcase_add_test(t, ud_many);
	tcase_add_test(t, ud_drops);
	tcase_add_test(t, without_grh);
	tcase_add_test(t, drained);
	tcase_add_test(t, not_offered);
	suite_add_tcase(s, t);
	return run_suite(s);
}

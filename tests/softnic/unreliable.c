// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* UC and UD: what comes in, and what UD adds to what goes out (IBTA 9.8). What does not fit is dropped in silence. */
#include <arpa/inet.h>
#include <endian.h>
#include <string.h>

#include "engine.h"
#include "packet.h"
#include "place.h"

/* A receive WQE that cannot be used: only that is no fault of the sender. */
static void receive_failed(struct sn_qp *q, enum ibv_wc_status st)
{
	sn_recv_done(q, NULL, st, IBV_WC_RECV, 0);
	sn_qp_fail(q);
}

static void uc_send_in(struct sn_qp *q, const struct sn_pkt *p, const uint8_t *payload)
{
	struct sn_responder *r = &q->rsp;
	enum ibv_wc_status st;

	/* too long, or nowhere to put it: a WQE that was taken is for the next message */
	if (!sn_recv_take(q) || p->len > r->rwqe.len - r->msg_off) {
		r->in_msg = false;
		return;
	}
	st = sn_recv_scatter(q, r->msg_off, payload, p->len);
	if (st) {
		receive_failed(q, st);
		return;
	}
	r->msg_off += p->len;
	if (p->flags & SN_LAST)
		sn_recv_done(q, p, IBV_WC_SUCCESS, IBV_WC_RECV, r->msg_off);
}

static void uc_write_in(struct sn_qp *q, const struct sn_pkt *p, const uint8_t *payload)
{
	struct sn_responder *r = &q->rsp;
	struct sn_span span;

	if (p->flags & SN_FIRST) {
		r->msg_raddr = p->raddr;
		r->msg_rkey = p->rkey;
		r->msg_len = p->total;
	}
	if (!(q->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) ||
	    (r->msg_len && (p->len > r->msg_len - r->msg_off ||
			    !sn_remote(q, r->msg_rkey, r->msg_raddr, r->msg_len, IBV_ACCESS_REMOTE_WRITE, &span))) ||
	    ((p->flags & SN_IMM) && !sn_recv_take(q))) {
		r->in_msg = false;
		return;
	}
	if (p->len)
		sn_place(q->dev, &span, r->msg_off, payload, p->len);
	r->msg_off += p->len;
	if (p->flags & SN_IMM)
		sn_recv_done(q, p, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, r->msg_len);
}

static void uc_in(struct sn_qp *q, const struct sn_pkt *p, const uint8_t *payload)
{
	struct sn_responder *r = &q->rsp;

	/* whatever was lost before: a message's first packet is always welcome, others only in their turn */
	if (p->flags & SN_FIRST) {
		r->in_msg = true;
		r->msg_off = 0;
	} else if (!r->in_msg || p->psn != r->epsn) {
		r->in_msg = false;
		return;
	}
	r->epsn = sn_psn(p->psn + p->npsn);
	if (p->mtu != q->mtu && p->len > q->mtu) {
		r->in_msg = false;
		return;
	}
	if (p->op == SN_SEND)
		uc_send_in(q, p, payload);
	else if (p->op == SN_WRITE)
		uc_write_in(q, p, payload);
	if (p->flags & SN_LAST)
		r->in_msg = false;
}

/* ---- UD ---- */

struct ipv4 {
	uint8_t version_ihl, tos;
	uint16_t len, id, frag;
	uint8_t ttl, protocol;
	uint16_t sum;
	uint8_t src[4], dst[4];
};

/* What the sender's address handle says, in fields of a packet that UD has no other use for. */
#define ROUTE_SGID(p) ((p)->raddr & 0xff)
#define ROUTE_HOPS(p) ((p)->raddr >> 8 & 0xff)
#define ROUTE_CLASS(p) ((p)->raddr >> 16 & 0xff)
#define ROUTE_FLOW(p) ((uint32_t)((p)->raddr >> 32) & 0xfffff)

void sn_ud_fill(const struct sn_qp *q, const struct sn_wqe *w, struct sn_pkt *p)
{
	const struct ibv_global_route *g = &w->ud.av.grh;

	/* the highest bit asks for the QP's own (IBTA 10.2.5) */
	p->rkey = w->ud.qkey & 0x80000000u ? q->attr.qkey : w->ud.qkey;
	p->raddr = (uint64_t)(g->flow_label & 0xfffff) << 32 | (uint64_t)g->traffic_class << 16 |
		   (uint64_t)g->hop_limit << 8 | g->sgid_index;
	memcpy(&p->compare_add, g->dgid.raw, 8);
	memcpy(&p->swap, g->dgid.raw + 8, 8);
	if (w->ud.av.is_global)
		p->flags |= SN_GLOBAL;
}

static uint16_t ip_sum(const void *header)
{
	const uint8_t *b = header;
	uint32_t sum = 0;

	for (int i = 0; i < 20; i += 2)
		sum += (uint32_t)b[i] << 8 | b[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return htobe16((uint16_t)~sum);
}

static bool is_v4(const uint8_t gid[16])
{
	static const uint8_t prefix[12] = { [10] = 0xff, [11] = 0xff };

	return !memcmp(gid, prefix, sizeof(prefix));
}

static bool is_ipv4(const struct sn_pkt *p)
{
	return !sn_shared->infiniband && is_v4(sn_host_gid(p->src_dev, ROUTE_SGID(p))->raw);
}

/* A ConnectX says there what kind of header RoCE v2 had, and UCX believes it: 2 is IPv4, 1 is IPv6. */
uint8_t sn_ud_sl(const struct sn_pkt *p)
{
	return sn_shared->infiniband ? 0 : is_ipv4(p) ? 2 : 1;
}

/* The 40 bytes ahead of the data: the GRH, or for RoCE v2 the IP header; IPv4's is in the last 20 (IBTA A17.4.5.1). */
static void make_grh(const struct sn_pkt *p, uint8_t grh[SN_GRH])
{
	const uint8_t *sgid = sn_host_gid(p->src_dev, ROUTE_SGID(p))->raw;
	struct ibv_grh v6 = { .hop_limit = (uint8_t)ROUTE_HOPS(p) };
	/* BTH, DETH, immediate data, padding, ICRC */
	uint32_t len = 12 + 8 + (p->flags & SN_IMM ? 4 : 0) + (p->len + 3) / 4 * 4 + 4;
	struct ipv4 v4 = { .version_ihl = 0x45, .protocol = IPPROTO_UDP };

	memset(grh, 0, SN_GRH);
	memcpy(v6.sgid.raw, sgid, 16);
	memcpy(v6.dgid.raw, &p->compare_add, 8);
	memcpy(v6.dgid.raw + 8, &p->swap, 8);
	if (is_ipv4(p)) {
		v4.tos = (uint8_t)ROUTE_CLASS(p);
		v4.len = htobe16((uint16_t)(20 + 8 + len));
		v4.frag = htobe16(0x4000);
		v4.ttl = (uint8_t)ROUTE_HOPS(p);
		memcpy(v4.src, sgid + 12, 4);
		memcpy(v4.dst, v6.dgid.raw + 12, 4);
		v4.sum = ip_sum(&v4);
		memcpy(grh + 20, &v4, sizeof(v4));
		return;
	}
	v6.version_tclass_flow = htobe32(6u << 28 | (uint32_t)ROUTE_CLASS(p) << 20 | ROUTE_FLOW(p));
	v6.paylen = htobe16((uint16_t)(len + (sn_shared->infiniband ? 0 : 8)));
	v6.next_hdr = sn_shared->infiniband ? 0x1b : IPPROTO_UDP;
	memcpy(grh, &v6, sizeof(v6));
}

static void ud_in(struct sn_qp *q, const struct sn_pkt *p, const uint8_t *payload)
{
	enum ibv_wc_status st = IBV_WC_SUCCESS;
	uint8_t grh[SN_GRH];

	if (p->op != SN_SEND || p->rkey != q->attr.qkey || !sn_recv_take(q) || p->len + SN_GRH > q->rsp.rwqe.len)
		return;
	/* without one, its place stays as it was */
	if (p->flags & SN_GLOBAL) {
		make_grh(p, grh);
		st = sn_recv_scatter(q, 0, grh, SN_GRH);
	}
	if (!st)
		st = sn_recv_scatter(q, SN_GRH, payload, p->len);
	if (st)
		receive_failed(q, st);
	else
		sn_recv_done(q, p, IBV_WC_SUCCESS, IBV_WC_RECV, p->len + SN_GRH);
}

void sn_unreliable_in(struct sn_qp *q, const struct sn_pkt *p, const uint8_t *payload)
{
	sn_recv_established(q);
	if (sn_is_ud(q))
		ud_in(q, p, payload);
	else
		uc_in(q, p, payload);
}

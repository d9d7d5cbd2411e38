// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "ex.h"
#include "verbs_load.h"

struct ibv_qp *ex_create_qp(struct ibv_pd *pd, const struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex a = {
		.qp_context = attr->qp_context,
		.send_cq = attr->send_cq,
		.recv_cq = attr->recv_cq,
		.srq = attr->srq,
		.cap = attr->cap,
		.qp_type = attr->qp_type,
		.sq_sig_all = attr->sq_sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
				  IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
				  IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
				  IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV,
	};

	return ibv_create_qp_ex(pd->context, &a);
}

static void give_data(struct ibv_qp_ex *ex, const struct ibv_send_wr *wr)
{
	struct ibv_data_buf buf[16];

	if (!(wr->send_flags & IBV_SEND_INLINE)) {
		if (wr->num_sge == 1)
			ibv_wr_set_sge(ex, wr->sg_list[0].lkey, wr->sg_list[0].addr, wr->sg_list[0].length);
		else
			ibv_wr_set_sge_list(ex, (size_t)wr->num_sge, wr->sg_list);
		return;
	}
	for (int i = 0; i < wr->num_sge && i < 16; i++)
		buf[i] = (struct ibv_data_buf){ (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length };
	if (wr->num_sge == 1)
		ibv_wr_set_inline_data(ex, buf[0].addr, buf[0].length);
	else
		ibv_wr_set_inline_data_list(ex, (size_t)wr->num_sge, buf);
}

static void give(struct ibv_qp_ex *ex, const struct ibv_send_wr *wr)
{
	ex->wr_id = wr->wr_id;
	ex->wr_flags = wr->send_flags & ~(unsigned int)IBV_SEND_INLINE;
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
		ibv_wr_rdma_write(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		ibv_wr_rdma_write_imm(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
		break;
	case IBV_WR_RDMA_READ:
		ibv_wr_rdma_read(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_SEND_WITH_IMM:
		ibv_wr_send_imm(ex, wr->imm_data);
		break;
	case IBV_WR_SEND_WITH_INV:
		ibv_wr_send_inv(ex, wr->invalidate_rkey);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		ibv_wr_atomic_cmp_swp(ex, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add,
				      wr->wr.atomic.swap);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		ibv_wr_atomic_fetch_add(ex, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add);
		break;
	case IBV_WR_LOCAL_INV:
		ibv_wr_local_inv(ex, wr->invalidate_rkey);
		return;
	case IBV_WR_BIND_MW:
		ibv_wr_bind_mw(ex, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
		/* who need not know if the list will be refused may do so here: providers have read it */
		if (wr->bind_mw.mw)
			wr->bind_mw.mw->rkey = wr->bind_mw.rkey;
		return;
	default:
		ibv_wr_send(ex);
	}
	give_data(ex, wr);
}

int ex_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct ibv_qp_ex *ex = vb.qp_to_qp_ex(qp);

	*bad = wr;
	ibv_wr_start(ex);
	for (; wr; wr = wr->next)
		give(ex, wr);
	return ibv_wr_complete(ex);
}

struct ibv_cq *ex_create_cq(struct ibv_context *ctx, int cqe, void *arg, struct ibv_comp_channel *ch, int vector, bool stamps)
{
	struct ibv_cq_init_attr_ex a = {
		.cqe = (uint32_t)cqe,
		.cq_context = arg,
		.channel = ch,
		.comp_vector = (uint32_t)vector,
		.wc_flags = IBV_WC_STANDARD_FLAGS,
	};
	struct ibv_cq_ex *ex;

	if (stamps)
		a.wc_flags |= IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	ex = ibv_create_cq_ex(ctx, &a);
	return ex ? ibv_cq_ex_to_cq(ex) : NULL;
}

int ex_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc, uint64_t *stamp)
{
	struct ibv_cq_ex *ex = (struct ibv_cq_ex *)cq;
	struct ibv_poll_cq_attr attr = { 0 };
	int got = 0, ret;

	ret = n > 0 ? ibv_start_poll(ex, &attr) : ENOENT;
	if (ret)
		return ret == ENOENT ? 0 : -1;
	do {
		wc[got] = (struct ibv_wc){
			.wr_id = ex->wr_id,
			.status = ex->status,
			.opcode = ibv_wc_read_opcode(ex),
			.vendor_err = ibv_wc_read_vendor_err(ex),
			.byte_len = ibv_wc_read_byte_len(ex),
			.imm_data = ibv_wc_read_imm_data(ex),
			.qp_num = ibv_wc_read_qp_num(ex),
			.src_qp = ibv_wc_read_src_qp(ex),
			.wc_flags = ibv_wc_read_wc_flags(ex),
			.slid = (uint16_t)ibv_wc_read_slid(ex),
			.sl = ibv_wc_read_sl(ex),
			.dlid_path_bits = ibv_wc_read_dlid_path_bits(ex),
		};
		if (stamp)
			stamp[got] = ibv_wc_read_completion_ts(ex);
		got++;
	} while (got < n && !(ret = ibv_next_poll(ex)));
	ibv_end_poll(ex);
	return ret && ret != ENOENT ? -1 : got;
}

static bool wanted(void)
{
	return getenv("CLIENTS_EX") != NULL;
}

struct ibv_qp *any_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return wanted() ? ex_create_qp(pd, attr) : vb.create_qp(pd, attr);
}

int any_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return wanted() ? ex_post(qp, wr, bad) : ibv_post_send(qp, wr, bad);
}

struct ibv_cq *any_create_cq(struct ibv_context *ctx, int cqe, void *arg, struct ibv_comp_channel *ch, int vector)
{
	return wanted() ? ex_create_cq(ctx, cqe, arg, ch, vector, true) : vb.create_cq(ctx, cqe, arg, ch, vector);
}

int any_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	uint64_t stamp[64];
	int got;

	if (!wanted())
		return ibv_poll_cq(cq, n, wc);
	got = ex_poll(cq, n < 64 ? n : 64, wc, stamp);
	/* also of what was flushed */
	for (int i = 0; i < got; i++)
		if (!stamp[i]) {
			fprintf(stderr, "ex: wr 0x%llx has no time stamp\n", (unsigned long long)wc[i].wr_id);
			return -1;
		}
	return got;
}

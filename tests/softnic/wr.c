// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * ibv_wr_*: requests are built in the slots behind the tail of the send queue, which nobody else looks at, and all of
 * them are posted by ibv_wr_complete(), or none.
 */
#include <errno.h>
#include <string.h>

#include "engine.h"
#include "packet.h"

static struct sn_qp *qp_of(struct ibv_qp_ex *ex)
{
	return sn_of(ex, struct sn_qp, ex);
}

static void went_wrong(struct sn_qp *q, int err)
{
	if (!q->build.err)
		q->build.err = err;
	q->build.wqe = NULL;
}

static struct sn_wqe *begin(struct ibv_qp_ex *ex, enum ibv_wr_opcode op)
{
	struct sn_qp *q = qp_of(ex);
	struct sn_wqe *w;

	/* pollers give slots back */
	sn_lock();
	w = q->build.err ? NULL : sn_wqe_new(q, q->build.n);
	sn_unlock();
	q->build.wqe = w;
	if (!w) {
		went_wrong(q, ENOMEM);
		return NULL;
	}
	q->build.n++;
	w->wr_id = ex->wr_id;
	w->opcode = op;
	w->flags = ex->wr_flags;
	w->signalled = q->sig_all || (ex->wr_flags & IBV_SEND_SIGNALED);
	return w;
}

static void begin_rdma(struct ibv_qp_ex *ex, enum ibv_wr_opcode op, uint32_t rkey, uint64_t raddr, uint32_t imm)
{
	struct sn_wqe *w = begin(ex, op);

	if (!w)
		return;
	w->rkey = rkey;
	w->raddr = raddr;
	w->imm = imm;
}

static void rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr)
{
	begin_rdma(ex, IBV_WR_RDMA_WRITE, rkey, raddr, 0);
}

static void rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr, __be32 imm)
{
	begin_rdma(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, raddr, imm);
}

static void rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr)
{
	begin_rdma(ex, IBV_WR_RDMA_READ, rkey, raddr, 0);
}

static void begin_send(struct ibv_qp_ex *ex)
{
	begin_rdma(ex, IBV_WR_SEND, 0, 0, 0);
}

static void send_imm(struct ibv_qp_ex *ex, __be32 imm)
{
	begin_rdma(ex, IBV_WR_SEND_WITH_IMM, 0, 0, imm);
}

static void send_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	begin_rdma(ex, IBV_WR_SEND_WITH_INV, 0, 0, rkey);
}

static void local_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	begin_rdma(ex, IBV_WR_LOCAL_INV, 0, 0, rkey);
}

static void begin_atomic(struct ibv_qp_ex *ex, enum ibv_wr_opcode op, uint32_t rkey, uint64_t raddr, uint64_t compare,
			 uint64_t swap)
{
	struct sn_wqe *w;

	begin_rdma(ex, op, rkey, raddr, 0);
	w = qp_of(ex)->build.wqe;
	if (!w)
		return;
	w->compare_add = compare;
	w->swap = swap;
}

static void cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr, uint64_t compare, uint64_t swap)
{
	begin_atomic(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, raddr, compare, swap);
}

static void fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr, uint64_t add)
{
	begin_atomic(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, raddr, add, 0);
}

static void bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	struct sn_wqe *w = begin(ex, IBV_WR_BIND_MW);
	int ret = w ? sn_wqe_bind(w, mw, rkey, info) : 0;

	if (ret)
		went_wrong(qp_of(ex), ret);
}

/* ---- data and addresses of the request that was begun last ---- */

static void set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list)
{
	struct sn_qp *q = qp_of(ex);
	struct sn_wqe *w = q->build.wqe;
	uint64_t len = 0;

	if (!w)
		return;
	/* of too long a list nothing is read: there need not be so many */
	for (size_t i = 0; n <= q->cap.max_send_sge && i < n; i++)
		len += list[i].length;
	if (n > q->cap.max_send_sge || len > UINT32_MAX) {
		went_wrong(q, EINVAL);
		return;
	}
	memcpy(w->sge, list, n * sizeof(*list));
	w->nsge = (uint16_t)n;
	w->len = (uint32_t)len;
}

static void set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge sge = { addr, length, lkey };

	set_sge_list(ex, 1, &sge);
}

static void set_inline_data_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list)
{
	struct sn_qp *q = qp_of(ex);
	struct sn_wqe *w = q->build.wqe;
	size_t len = 0;

	if (!w)
		return;
	w->inl = sn_wqe_inline(q, w);
	for (size_t i = 0; i < n; i++) {
		if (list[i].length > q->sq.max_inline - len) {
			went_wrong(q, EINVAL);
			return;
		}
		memcpy(w->inl + len, list[i].addr, list[i].length);
		len += list[i].length;
	}
	w->len = (uint32_t)len;
}

static void set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	struct ibv_data_buf b = { addr, length };

	set_inline_data_list(ex, 1, &b);
}

static void set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	if (qp_of(ex)->build.wqe)
		sn_wqe_address(qp_of(ex)->build.wqe, ah, qpn, qkey);
}

static void set_xrc_srqn(struct ibv_qp_ex *ex, uint32_t srqn)
{
	if (qp_of(ex)->build.wqe)
		qp_of(ex)->build.wqe->srqn = srqn;
}

/* ---- start and end ---- */

static void start(struct ibv_qp_ex *ex)
{
	struct sn_qp *q = qp_of(ex);

	pthread_mutex_lock(&q->build.lock);
	q->build.n = 0;
	q->build.err = 0;
	q->build.wqe = NULL;
}

static int complete(struct ibv_qp_ex *ex)
{
	struct sn_qp *q = qp_of(ex);
	int ret;

	sn_lock();
	ret = sn_ctx(ex->qp_base.context)->epoch != sn_engine_epoch() ? EIO : q->state < IBV_QPS_RTS ? EINVAL :
												       q->build.err;
	for (uint32_t i = 0; i < q->build.n && !ret; i++)
		ret = sn_wqe_check(q, sn_wqe(&q->sq, q->sq.tail + i));
	if (!ret)
		sn_sq_advance(q, q->build.n);
	sn_unlock();
	pthread_mutex_unlock(&q->build.lock);
	return ret;
}

static void abort_all(struct ibv_qp_ex *ex)
{
	pthread_mutex_unlock(&qp_of(ex)->build.lock);
}

static const struct {
	uint64_t flag;
	enum ibv_wr_opcode op;
} ops_of_flags[] = {
	{ IBV_QP_EX_WITH_RDMA_WRITE, IBV_WR_RDMA_WRITE },
	{ IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM },
	{ IBV_QP_EX_WITH_SEND, IBV_WR_SEND },
	{ IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_WR_SEND_WITH_IMM },
	{ IBV_QP_EX_WITH_RDMA_READ, IBV_WR_RDMA_READ },
	{ IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_CMP_AND_SWP },
	{ IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_FETCH_AND_ADD },
	{ IBV_QP_EX_WITH_LOCAL_INV, IBV_WR_LOCAL_INV },
	{ IBV_QP_EX_WITH_BIND_MW, IBV_WR_BIND_MW },
	{ IBV_QP_EX_WITH_SEND_WITH_INV, IBV_WR_SEND_WITH_INV },
};

/* Only what was asked for is there, as with other providers. */
int sn_wr_offer(struct sn_qp *q, uint64_t ops)
{
	struct ibv_qp_ex *ex = &q->ex;
	uint64_t known = 0;

	for (size_t i = 0; i < sizeof(ops_of_flags) / sizeof(ops_of_flags[0]); i++)
		if (sn_op_offered(ex->qp_base.qp_type, ops_of_flags[i].op))
			known |= ops_of_flags[i].flag;
	if (ops & ~known)
		return EOPNOTSUPP;
	pthread_mutex_init(&q->build.lock, NULL);
	q->build.offered = true;
#define OFFER(flag, slot, fn) (ex->slot = ops & (flag) ? (fn) : NULL)
	OFFER(IBV_QP_EX_WITH_RDMA_WRITE, wr_rdma_write, rdma_write);
	OFFER(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, wr_rdma_write_imm, rdma_write_imm);
	OFFER(IBV_QP_EX_WITH_SEND, wr_send, begin_send);
	OFFER(IBV_QP_EX_WITH_SEND_WITH_IMM, wr_send_imm, send_imm);
	OFFER(IBV_QP_EX_WITH_RDMA_READ, wr_rdma_read, rdma_read);
	OFFER(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, wr_atomic_cmp_swp, cmp_swp);
	OFFER(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, wr_atomic_fetch_add, fetch_add);
	OFFER(IBV_QP_EX_WITH_LOCAL_INV, wr_local_inv, local_inv);
	OFFER(IBV_QP_EX_WITH_BIND_MW, wr_bind_mw, bind_mw);
	OFFER(IBV_QP_EX_WITH_SEND_WITH_INV, wr_send_inv, send_inv);
#undef OFFER
	ex->wr_set_sge = set_sge;
	ex->wr_set_sge_list = set_sge_list;
	ex->wr_set_inline_data = set_inline_data;
	ex->wr_set_inline_data_list = set_inline_data_list;
	ex->wr_set_ud_addr = set_ud_addr;
	ex->wr_set_xrc_srqn = set_xrc_srqn;
	ex->wr_start = start;
	ex->wr_complete = complete;
	ex->wr_abort = abort_all;
	return 0;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	return sn_qp(qp)->build.offered ? &sn_qp(qp)->ex : NULL;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The provider's side of ibv_wr_*: its pointers are taken from the program's ibv_qp_ex and given back, and a session that was
 * collected (qpex.c) is played to them.
 */
#include "qpex_priv.h"

#include <errno.h>
#include <stdlib.h>

/* What a list of ibv_send_wr can say. TSO is for datagrams; of what came later there is no slot here. */
#define SAYABLE                                                                                                       \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |                       \
	 IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |                \
	 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |                    \
	 IBV_QP_EX_WITH_SEND_WITH_INV)

static void play_one(struct dp_qpex *x, const struct dp_ex_wr *w)
{
	const struct dp_ex_slots *r = &x->real;
	const struct ibv_send_wr *wr = &w->wr;
	struct ibv_qp_ex *ex = x->ex;

	ex->wr_id = wr->wr_id;
	ex->wr_flags = wr->send_flags & ~(unsigned int)IBV_SEND_INLINE;
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
		r->wr_rdma_write(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		r->wr_rdma_write_imm(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
		break;
	case IBV_WR_RDMA_READ:
		r->wr_rdma_read(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_SEND_WITH_IMM:
		r->wr_send_imm(ex, wr->imm_data);
		break;
	case IBV_WR_SEND_WITH_INV:
		r->wr_send_inv(ex, wr->invalidate_rkey);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		r->wr_atomic_cmp_swp(ex, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add,
				     wr->wr.atomic.swap);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		r->wr_atomic_fetch_add(ex, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add);
		break;
	case IBV_WR_LOCAL_INV:
		r->wr_local_inv(ex, wr->invalidate_rkey);
		break;
	case IBV_WR_BIND_MW:
		r->wr_bind_mw(ex, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
		break;
	default:
		r->wr_send(ex);
	}
	if (w->setter == DP_EX_INLINE)
		r->wr_set_inline_data(ex, (void *)(uintptr_t)wr->sg_list->addr, wr->sg_list->length);
	else if (w->setter == DP_EX_SGE || (w->setter == DP_EX_SGES && wr->num_sge == 1))
		r->wr_set_sge(ex, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
	else if (w->setter != DP_EX_NO_DATA)
		r->wr_set_sge_list(ex, (size_t)wr->num_sge, wr->sg_list);
}

int dp_qpex_play(struct dp_qp *q)
{
	struct dp_qpex *x = q->ex;
	uint64_t wr_id = x->ex->wr_id;
	unsigned int flags = x->ex->wr_flags;

	x->real.wr_start(x->ex);
	for (const struct dp_ex_wr *w = x->wrs; w < x->next; w++)
		play_one(x, w);
	/* they stay as the program has set them: it need not set them again for its next request */
	x->ex->wr_id = wr_id;
	x->ex->wr_flags = flags;
	return x->real.wr_complete(x->ex);
}

/* ---- its pointers -------------------------------------------------------------------------------------------- */

void dp_ex_restore(struct dp_qpex *x)
{
	/* the program's other threads may read them at this moment: aligned stores */
#define PUT_BACK(s)                                                                                                   \
	if (x->real.s)                                                                                                \
		__atomic_store_n(&x->ex->s, x->real.s, __ATOMIC_RELEASE);
	DP_EX_SLOTS(PUT_BACK)
#undef PUT_BACK
	x->installed = false;
	/* whoever comes by our wr_start all the same asks for installed */
	dp_known_hide(&x->known);
}

bool dp_qpex_can(uint64_t send_ops)
{
	return !(send_ops & ~(uint64_t)SAYABLE);
}

static struct dp_known *spare;

int dp_qpex_new(struct dp_qp *q)
{
	struct ibv_qp_ex *ex = q->c->real->qp_to_qp_ex ? q->c->real->qp_to_qp_ex(q->qp) : NULL;
	struct dp_qpex *x;

	if (!ex)
		return -EOPNOTSUPP;
	x = dp_known_get(&spare, sizeof(*x));
	if (!x)
		return -ENOMEM;
	x->ex = ex;
	x->q = q;
	x->max_sge = q->cap.max_send_sge;
	dp_lock_init(&x->session);
	q->ex = x;
	x->wrs = malloc(DP_EX_AT_FIRST * sizeof(*x->wrs));
	x->sges = malloc(DP_EX_AT_FIRST * sizeof(*x->sges));
	x->cap_sges = DP_EX_AT_FIRST;
	x->cap_bytes = q->cap.max_inline_data > DP_EX_AT_FIRST ? q->cap.max_inline_data : DP_EX_AT_FIRST;
	x->bytes = malloc(x->cap_bytes);
	if (!x->wrs || !x->sges || !x->bytes) {
		dp_qpex_free(q);
		return -ENOMEM;
	}
	x->next = x->wrs;
	x->last = x->wrs + DP_EX_AT_FIRST - 1;
	dp_ex_fresh(x);
	return 0;
}

void dp_qpex_free(struct dp_qp *q)
{
	struct dp_qpex *x = q->ex;

	if (!x)
		return;
	dp_lock_fini(&x->session);
	free(x->wrs);
	free(x->sges);
	free(x->bytes);
	dp_known_put(&spare, &x->known);
	q->ex = NULL;
}

void dp_qpex_hide(struct dp_qp *q)
{
	if (q->ex)
		dp_known_hide(&q->ex->known);
}

void dp_qpex_close(struct dp_qp *q)
{
	if (q->ex)
		dp_known_gone(&q->ex->known);
}

/* Takes the pointers that are not ours, which the provider has set. */
static void wrap(struct dp_qpex *x)
{
#define WRAP(s)                                                                                                       \
	if (x->ex->s && x->ex->s != dp_ex_ours.s) {                                                                   \
		x->real.s = x->ex->s;                                                                                 \
		__atomic_store_n(&x->ex->s, dp_ex_ours.s, __ATOMIC_RELEASE);                                          \
	}
	DP_EX_SLOTS(WRAP)
#undef WRAP
}

void dp_qpex_install(struct dp_qp *q)
{
	if (!q->ex)
		return;
	wrap(q->ex);
	q->ex->installed = true;
}

bool dp_qpex_before_modify(struct dp_qp *q)
{
	/* whoever has a session open may be the caller itself */
	return q->ex && dp_try(&q->ex->session);
}

void dp_qpex_after_modify(struct dp_qp *q, bool locked)
{
	if (q->ex && q->ex->installed)
		wrap(q->ex);
	if (locked)
		dp_drop(&q->ex->session);
}

void dp_qpex_after_fork(struct dp_qp *q)
{
	if (!q->ex)
		return;
	dp_ex_fresh(q->ex);
	dp_lock_init(&q->ex->session);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Memory windows: type 1, and type 2B, which only the QP that bound them serves. */
#include <errno.h>
#include <stdlib.h>

#include "engine.h"

static struct sn_mw *mw_of(struct sn_mr *win)
{
	return sn_of(win, struct sn_mw, win);
}

static void unbind(struct sn_mr *win)
{
	if (!win->pd)
		return;
	mw_of(win)->base->windows--;
	win->pd = NULL;
}

struct ibv_mw *sn_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct sn_ctx *c = sn_ctx(pd->context);
	struct sn_mw *mw;
	int ret;

	if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2) {
		errno = EINVAL;
		return NULL;
	}
	mw = calloc(1, sizeof(*mw));
	if (!mw)
		return NULL;
	mw->win.window = true;
	mw->win.mr.pd = pd;
	sn_lock();
	ret = c->epoch == sn_engine_epoch() ? sn_key_add(c->dev, &mw->win) : -EIO;
	if (!ret)
		sn_pd_use(pd);
	sn_unlock();
	if (ret) {
		free(mw);
		errno = -ret;
		return NULL;
	}
	mw->mw.context = pd->context;
	mw->mw.pd = pd;
	mw->mw.rkey = mw->win.mr.rkey;
	mw->mw.handle = mw->win.mr.handle;
	mw->mw.type = type;
	return &mw->mw;
}

int sn_dealloc_mw(struct ibv_mw *ibmw)
{
	struct sn_mw *mw = (struct sn_mw *)ibmw;
	struct sn_ctx *c = sn_ctx(ibmw->context);

	sn_lock();
	if (c->epoch == sn_engine_epoch()) {
		unbind(&mw->win);
		sn_key_drop(c->dev, &mw->win);
	}
	sn_pd_drop(ibmw->pd);
	sn_unlock();
	free(mw);
	return 0;
}

/* Type 1: each binding has a key of its own, known when it is posted. */
int sn_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr wr = { .wr_id = bind->wr_id, .opcode = IBV_WR_BIND_MW, .send_flags = bind->send_flags };
	struct ibv_send_wr *bad;
	int ret;

	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = bind->bind_info;
	ret = sn_post_send(qp, &wr, &bad);
	if (!ret)
		mw->rkey = wr.bind_mw.rkey;
	return ret;
}

static bool covers(const struct sn_mr *mr, uint64_t addr, uint64_t len)
{
	return addr >= mr->iova && addr - mr->iova <= mr->mr.length && len <= mr->mr.length - (addr - mr->iova);
}

enum ibv_wc_status sn_bind(struct sn_qp *q, const struct sn_wqe *w)
{
	struct sn_mr *win = sn_find_key(q->dev, w->bind.old_rkey), *mr = sn_find_key(q->dev, w->bind.lkey);
	bool type2;

	/* as soft-RoCE, which wants the key that the window has (the kernel's rxe_mw.c, rxe_bind_mw) */
	if (!win || !win->window || sn_base_pd(win->mr.pd) != q->pd || (uint8_t)w->bind.old_rkey != win->rtag ||
	    (w->bind.new_rkey ^ w->bind.old_rkey) >> 8)
		return IBV_WC_MW_BIND_ERR;
	/* type 2 must be made invalid first */
	type2 = mw_of(win)->mw.type == IBV_MW_TYPE_2;
	if (type2 && win->pd)
		return IBV_WC_MW_BIND_ERR;
	if (w->bind.length &&
	    (!mr || mr->window || mr->mr.lkey != w->bind.lkey || mr->pd != q->pd ||
	     !(mr->access & IBV_ACCESS_MW_BIND) || !covers(mr, w->bind.addr, w->bind.length) ||
	     ((w->bind.access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
	      !(mr->access & IBV_ACCESS_LOCAL_WRITE))))
		return IBV_WC_MW_BIND_ERR;
	unbind(win);
	win->rtag = (uint8_t)w->bind.new_rkey;
	if (!w->bind.length)
		return IBV_WC_SUCCESS;
	win->iova = w->bind.access & IBV_ACCESS_ZERO_BASED ? 0 : w->bind.addr;
	win->at = mr->at + (w->bind.addr - mr->iova);
	win->mr.length = w->bind.length;
	win->access = w->bind.access | (mr->access & IBV_ACCESS_ON_DEMAND);
	win->ops = mr->ops;
	win->only = type2 ? q->serial : 0;
	win->pd = q->pd;
	mw_of(win)->base = mr;
	mr->windows++;
	return IBV_WC_SUCCESS;
}

enum ibv_wc_status sn_invalidate(struct sn_qp *q, uint32_t rkey)
{
	struct sn_mr *win = sn_find_rkey(q->dev, rkey);

	/* regions of programs, and windows of type 1, have no such end */
	if (!win || !win->window || mw_of(win)->mw.type != IBV_MW_TYPE_2 || win->pd != q->pd ||
	    win->only != q->serial)
		return IBV_WC_MW_BIND_ERR;
	unbind(win);
	return IBV_WC_SUCCESS;
}

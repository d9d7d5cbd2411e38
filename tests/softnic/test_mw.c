// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* What keys stand for: windows, regions that change, other addresses, parent domains. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "test_end.h"

#define REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define WIN_AT 4096u
#define WIN_LEN 8192u

/* b's memory, without any remote access of its own, and a window for it. */
struct windowed {
	struct end a, b;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
};

static void win_open(struct windowed *w, enum ibv_mw_type type, int access)
{
	struct end_opts o = { .send_ops = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV |
					  IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_RDMA_WRITE };

	/* a retry would hide that something was forgotten */
	pair_open(&w->a, &w->b, &o, &(struct conn_opts){ .timeout = 20, .retry = -1 });
	w->mr = ibv_reg_mr(w->b.pd, w->b.buf, LEN, access);
	ck_assert_ptr_nonnull(w->mr);
	w->mw = ibv_alloc_mw(w->b.pd, type);
	ck_assert_ptr_nonnull(w->mw);
	ck_assert_int_eq(w->mw->type, type);
}

static void win_close(struct windowed *w)
{
	if (w->mw)
		ck_assert_int_eq(ibv_dealloc_mw(w->mw), 0);
	ck_assert_int_eq(ibv_dereg_mr(w->mr), 0);
	pair_close(&w->a, &w->b);
}

static struct ibv_mw_bind_info info(const struct windowed *w, unsigned int access)
{
	return (struct ibv_mw_bind_info){ w->mr, (uintptr_t)w->b.buf + WIN_AT, WIN_LEN, access };
}

static int bind1(struct windowed *w, uint64_t id, struct ibv_mw_bind_info i)
{
	struct ibv_mw_bind b = { id, IBV_SEND_SIGNALED, i };

	return ibv_bind_mw(w->b.qp, w->mw, &b);
}

static int bind2(struct windowed *w, uint64_t id, uint32_t rkey, struct ibv_mw_bind_info i)
{
	struct ibv_send_wr wr = { .wr_id = id, .opcode = IBV_WR_BIND_MW }, *bad;
	int ret;

	wr.bind_mw.mw = w->mw;
	wr.bind_mw.rkey = rkey;
	wr.bind_mw.bind_info = i;
	ret = ibv_post_send(w->b.qp, &wr, &bad);
	if (!ret)
		w->mw->rkey = rkey;
	return ret;
}

static int invalidate(struct end *e, uint64_t id, enum ibv_wr_opcode op, uint32_t rkey)
{
	struct ibv_send_wr wr = { .wr_id = id, .opcode = op, .invalidate_rkey = rkey }, *bad;

	return ibv_post_send(e->qp, &wr, &bad);
}

static struct wr write_to(uint32_t rkey, uint32_t to, uint32_t len)
{
	return (struct wr){ IBV_WR_RDMA_WRITE, .rkey = rkey, .to = to, .len = len };
}

/* One request at the window's key that must not pass; both ends begin anew. */
static void refused(struct windowed *w, struct wr wr)
{
	ck_assert_int_eq(post(&w->a, &w->b, 99, wr), 0);
	want(&w->a, 99, IBV_WC_REM_ACCESS_ERR);
	ck_assert_int_eq(to_state(w->a.qp, IBV_QPS_RESET), 0);
	ck_assert_int_eq(to_state(w->b.qp, IBV_QPS_RESET), 0);
	join(&w->a, &w->b, NULL);
}

START_TEST(type_1)
{
	struct windowed w;
	uint32_t unbound, first;

	win_open(&w, IBV_MW_TYPE_1, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	fill(w.a.buf, LEN, 1);
	unbound = w.mw->rkey;
	refused(&w, write_to(unbound, WIN_AT, 8));
	ck_assert_int_eq(bind1(&w, 1, info(&w, IBV_ACCESS_REMOTE_WRITE)), 0);
	ck_assert_int_eq(want(&w.b, 1, IBV_WC_SUCCESS).opcode, IBV_WC_BIND_MW);
	first = w.mw->rkey;
	ck_assert_uint_ne(first, unbound);
	ck_assert_int_eq(post(&w.a, &w.b, 2, write_to(first, WIN_AT, WIN_LEN)), 0);
	want(&w.a, 2, IBV_WC_SUCCESS);
	ck_assert_mem_eq(w.b.buf + WIN_AT, w.a.buf, WIN_LEN);
	/* its own bounds and access, and no key of a region */
	refused(&w, write_to(first, WIN_AT - 1, 8));
	refused(&w, write_to(first, WIN_AT + 1, WIN_LEN));
	refused(&w, (struct wr){ IBV_WR_RDMA_READ, .rkey = first, .to = WIN_AT, .len = 8 });
	refused(&w, write_to(w.mr->rkey, WIN_AT, 8));
	refused(&w, write_to(unbound, WIN_AT, 8));
	/* it is no local key */
	ck_assert_int_eq(post(&w.b, &w.a, 3, (struct wr){ IBV_WR_RDMA_WRITE, .lkey = first, .at = WIN_AT,
							  .len = 8 }), 0);
	want(&w.b, 3, IBV_WC_LOC_PROT_ERR);
	ck_assert_int_eq(to_state(w.a.qp, IBV_QPS_RESET), 0);
	ck_assert_int_eq(to_state(w.b.qp, IBV_QPS_RESET), 0);
	join(&w.a, &w.b, NULL);
	/* bound again: the key of before is no more; a region with windows stays */
	ck_assert_int_eq(bind1(&w, 4, info(&w, REMOTE)), 0);
	want(&w.b, 4, IBV_WC_SUCCESS);
	refused(&w, write_to(first, WIN_AT, 8));
	ck_assert_int_eq(post(&w.a, &w.b, 5, (struct wr){ IBV_WR_RDMA_READ, .rkey = w.mw->rkey, .to = WIN_AT,
							  .len = 8 }), 0);
	want(&w.a, 5, IBV_WC_SUCCESS);
	ck_assert_int_eq(ibv_dereg_mr(w.mr), EBUSY);
	ck_assert_int_eq(ibv_rereg_mr(w.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_MW_BIND),
			 IBV_REREG_MR_ERR_INPUT);
	/* unbound by a length of nothing */
	first = w.mw->rkey;
	ck_assert_int_eq(bind1(&w, 6, (struct ibv_mw_bind_info){ 0 }), 0);
	want(&w.b, 6, IBV_WC_SUCCESS);
	refused(&w, write_to(first, WIN_AT, 8));
	refused(&w, write_to(w.mw->rkey, WIN_AT, 8));
	win_close(&w);
}
END_TEST

START_TEST(type_2)
{
	struct windowed w;
	struct end a2, b2;
	uint32_t key, next;
	struct ibv_wc wc;

	win_open(&w, IBV_MW_TYPE_2, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	key = ibv_inc_rkey(w.mw->rkey);
	ck_assert_int_eq(bind1(&w, 1, info(&w, REMOTE)), EINVAL);
	ck_assert_int_eq(bind2(&w, 1, key, info(&w, REMOTE)), 0);
	ck_assert_int_eq(want(&w.b, 1, IBV_WC_SUCCESS).opcode, IBV_WC_BIND_MW);
	ck_assert_int_eq(post(&w.a, &w.b, 2, write_to(key, WIN_AT, WIN_LEN)), 0);
	want(&w.a, 2, IBV_WC_SUCCESS);

	/* only through the QP that bound it */
	end_open(&a2, 0, NULL);
	b2 = w.b;
	b2.qp = ibv_create_qp(w.b.pd, &(struct ibv_qp_init_attr){ .send_cq = w.b.cq, .recv_cq = w.b.cq,
						.qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 }, .sq_sig_all = 1 });
	ck_assert_ptr_nonnull(b2.qp);
	join(&a2, &b2, NULL);
	ck_assert_int_eq(invalidate(&b2, 3, IBV_WR_LOCAL_INV, key), 0);
	want(&b2, 3, IBV_WC_MW_BIND_ERR);
	ck_assert_int_eq(to_state(b2.qp, IBV_QPS_RESET), 0);
	ck_assert_int_eq(to_state(a2.qp, IBV_QPS_RESET), 0);
	join(&a2, &b2, NULL);
	ck_assert_int_eq(post(&a2, &b2, 4, write_to(key, WIN_AT, 8)), 0);
	want(&a2, 4, IBV_WC_REM_ACCESS_ERR);
	ck_assert_int_eq(ibv_destroy_qp(b2.qp), 0);
	end_close(&a2);

	/* made invalid here; bound again with a key of the program's choice; made invalid from afar */
	ck_assert_int_eq(invalidate(&w.b, 5, IBV_WR_LOCAL_INV, key), 0);
	ck_assert_int_eq(want(&w.b, 5, IBV_WC_SUCCESS).opcode, IBV_WC_LOCAL_INV);
	refused(&w, write_to(key, WIN_AT, 8));
	next = (key & ~0xffu) | 0x1a;
	ck_assert_int_eq(bind2(&w, 6, next, info(&w, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED)), 0);
	want(&w.b, 6, IBV_WC_SUCCESS);
	refused(&w, write_to(next, WIN_AT, 8));
	w.a.buf[0] = 42;
	{
		/* zero-based: address 5 is five bytes into the window */
		struct ibv_sge sge = { (uintptr_t)w.a.buf, 1, w.a.mr->lkey };
		struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1 }, *bad;

		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.wr.rdma.remote_addr = 5;
		wr.wr.rdma.rkey = next;
		ck_assert_int_eq(ibv_post_send(w.a.qp, &wr, &bad), 0);
		want(&w.a, 7, IBV_WC_SUCCESS);
		ck_assert_uint_eq(w.b.buf[WIN_AT + 5], 42);
	}
	ck_assert_int_eq(post_rx(&w.b, 50, 0, 8), 0);
	ck_assert_int_eq(invalidate(&w.a, 8, IBV_WR_SEND_WITH_INV, next), 0);
	want(&w.a, 8, IBV_WC_SUCCESS);
	wc = want(&w.b, 50, IBV_WC_SUCCESS);
	ck_assert_uint_eq(wc.wc_flags, IBV_WC_WITH_INV);
	ck_assert_uint_eq(wc.invalidated_rkey, next);
	refused(&w, write_to(next, 5, 1));
	/* what is no bound window cannot be made invalid */
	ck_assert_int_eq(post_rx(&w.b, 51, 0, 8), 0);
	ck_assert_int_eq(invalidate(&w.a, 9, IBV_WR_SEND_WITH_INV, w.b.mr->rkey), 0);
	want(&w.a, 9, IBV_WC_REM_ACCESS_ERR);
	want(&w.b, 51, IBV_WC_WR_FLUSH_ERR);
	win_close(&w);
}
END_TEST

enum bad_bind { NO_MW_BIND, READ_ONLY, TOO_LONG, BEFORE, OTHER_PD, BOUND, OTHER_INDEX, NOT_A_KEY, NBADS };

START_TEST(bad_binds)
{
	struct ibv_mw_bind_info i;
	struct ibv_pd *pd = NULL;
	struct ibv_mr *mr = NULL;
	struct windowed w;
	uint32_t key;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;

	if (_i == NO_MW_BIND)
		access = IBV_ACCESS_LOCAL_WRITE;
	if (_i == READ_ONLY)
		access = IBV_ACCESS_MW_BIND;
	win_open(&w, IBV_MW_TYPE_2, access);
	key = ibv_inc_rkey(w.mw->rkey);
	i = info(&w, IBV_ACCESS_REMOTE_WRITE);
	switch (_i) {
	case TOO_LONG:
		i.length = LEN - WIN_AT + 1;
		break;
	case BEFORE:
		i.addr = (uintptr_t)w.b.buf - 1;
		break;
	case OTHER_PD:
		pd = ibv_alloc_pd(w.b.ctx);
		mr = ibv_reg_mr(pd, w.b.buf, LEN, access);
		i.mr = mr;
		break;
	case BOUND:
		ck_assert_int_eq(bind2(&w, 1, key, i), 0);
		want(&w.b, 1, IBV_WC_SUCCESS);
		key = ibv_inc_rkey(key);
		break;
	case OTHER_INDEX:
		key += 0x100;
		break;
	}
	if (_i == NOT_A_KEY)
		ck_assert_int_eq(invalidate(&w.b, 2, IBV_WR_LOCAL_INV, w.mr->rkey), 0);
	else
		ck_assert_int_eq(bind2(&w, 2, key, i), 0);
	ck_assert_int_eq(post(&w.b, &w.a, 3, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	want(&w.b, 2, IBV_WC_MW_BIND_ERR);
	want(&w.b, 3, IBV_WC_WR_FLUSH_ERR);
	if (mr)
		ck_assert_int_eq(ibv_dereg_mr(mr), 0);
	if (pd)
		ck_assert_int_eq(ibv_dealloc_pd(pd), 0);
	win_close(&w);
}
END_TEST

/* Local operations among others: completions in order, and only signalled ones; through ibv_wr_*, too. */
START_TEST(among_others)
{
	struct ibv_send_wr wr[3], *bad;
	struct ibv_mw_bind_info i;
	struct ibv_qp_ex *x;
	struct ibv_sge sge;
	struct windowed w;
	uint32_t key;

	win_open(&w, IBV_MW_TYPE_2, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	i = info(&w, REMOTE);
	key = w.mw->rkey;
	for (int round = 0; round < 30; round++) {
		uint32_t n = 1 + (uint32_t)round * 20011 % 500000;

		fill(w.b.buf + LEN / 2, n, (uint32_t)round);
		key = ibv_inc_rkey(key);
		x = ibv_qp_to_qp_ex(w.b.qp);
		ibv_wr_start(x);
		x->wr_id = 1;
		x->wr_flags = 0;
		ibv_wr_rdma_write(x, w.a.mr->rkey, (uintptr_t)w.a.buf);
		ibv_wr_set_sge(x, w.b.mr->lkey, (uintptr_t)w.b.buf + LEN / 2, n);
		x->wr_id = 2;
		ibv_wr_bind_mw(x, w.mw, key, &i);
		x->wr_id = 3;
		ibv_wr_local_inv(x, key);
		x->wr_id = 4;
		ibv_wr_rdma_write(x, w.a.mr->rkey, (uintptr_t)w.a.buf + LEN / 2);
		ibv_wr_set_sge(x, w.b.mr->lkey, (uintptr_t)w.b.buf + LEN / 2, n);
		w.mw->rkey = key;
		ck_assert_int_eq(ibv_wr_complete(x), 0);
		for (uint64_t id = 1; id <= 4; id++)
			want(&w.b, id, IBV_WC_SUCCESS);
		check_filled(w.a.buf, n, (uint32_t)round);
		check_filled(w.a.buf + LEN / 2, n, (uint32_t)round);
		/* behind a response, and with nothing behind them */
		key = ibv_inc_rkey(key);
		sge = (struct ibv_sge){ (uintptr_t)w.b.buf, n, w.b.mr->lkey };
		wr[0] = (struct ibv_send_wr){ .wr_id = 5, .next = &wr[1], .sg_list = &sge, .num_sge = 1,
					      .opcode = IBV_WR_RDMA_READ };
		wr[0].wr.rdma.remote_addr = (uintptr_t)w.a.buf;
		wr[0].wr.rdma.rkey = w.a.mr->rkey;
		wr[1] = (struct ibv_send_wr){ .wr_id = 6, .next = &wr[2], .opcode = IBV_WR_BIND_MW };
		wr[1].bind_mw.mw = w.mw;
		wr[1].bind_mw.rkey = key;
		wr[1].bind_mw.bind_info = i;
		wr[2] = (struct ibv_send_wr){ .wr_id = 7, .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = key };
		ck_assert_int_eq(ibv_post_send(w.b.qp, wr, &bad), 0);
		w.mw->rkey = key;
		for (uint64_t id = 5; id <= 7; id++)
			want(&w.b, id, IBV_WC_SUCCESS);
	}
	win_close(&w);
}
END_TEST

/* ---- regions ---- */

START_TEST(reregister)
{
	const int rw = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	uint8_t *other = aligned_alloc(4096, 8192);
	uint32_t lkey, rkey;
	struct ibv_mr *mr;
	struct ibv_pd *pd;
	struct end a, b;

	memset(other, 0, 8192);
	pair_open(&a, &b, NULL, NULL);
	mr = ibv_reg_mr(b.pd, b.buf, 4096, IBV_ACCESS_LOCAL_WRITE);
	ck_assert_ptr_nonnull(mr);
	lkey = mr->lkey;
	rkey = mr->rkey;
	a.buf[0] = 9;
#define ANEW()									\
	do {									\
		ck_assert_int_eq(to_state(a.qp, IBV_QPS_RESET), 0);		\
		ck_assert_int_eq(to_state(b.qp, IBV_QPS_RESET), 0);		\
		join(&a, &b, NULL);						\
	} while (0)
#define TRY(status)								\
	do {									\
		ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_RDMA_WRITE, .rkey = rkey, .len = 1 }), 0); \
		want(&a, 1, status);						\
		if ((status) != IBV_WC_SUCCESS)					\
			ANEW();							\
	} while (0)
	TRY(IBV_WC_REM_ACCESS_ERR);
	ck_assert_int_eq(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, rw), 0);
	TRY(IBV_WC_SUCCESS);
	pd = ibv_alloc_pd(b.ctx);
	ck_assert_int_eq(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0), 0);
	ck_assert_ptr_eq(mr->pd, pd);
	TRY(IBV_WC_REM_ACCESS_ERR);
	ck_assert_int_eq(ibv_dealloc_pd(pd), EBUSY);
	ck_assert_int_eq(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, b.pd, NULL, 0, 0), 0);
	TRY(IBV_WC_SUCCESS);
	ck_assert_int_eq(ibv_dealloc_pd(pd), 0);
	/* the same keys, other memory */
	ck_assert_int_eq(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, 8192, 0), 0);
	ck_assert_ptr_eq(mr->addr, other);
	ck_assert_uint_eq(mr->length, 8192);
	ck_assert_uint_eq(mr->lkey, lkey);
	ck_assert_uint_eq(mr->rkey, rkey);
	TRY(IBV_WC_REM_ACCESS_ERR);
	sge = (struct ibv_sge){ (uintptr_t)a.buf, 1, a.mr->lkey };
	wr.wr.rdma.remote_addr = (uintptr_t)other + 8191;
	wr.wr.rdma.rkey = rkey;
	ck_assert_int_eq(ibv_post_send(a.qp, &wr, &bad), 0);
	want(&a, 2, IBV_WC_SUCCESS);
	ck_assert_uint_eq(other[8191], 9);
	ck_assert_int_eq(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	ck_assert_int_eq(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE),
			 IBV_REREG_MR_ERR_INPUT);
	ck_assert_int_eq(ibv_dereg_mr(mr), 0);
	pair_close(&a, &b);
	free(other);
}
END_TEST

/* Addresses that the program chose, or that begin at nothing; access flags that may be there or not. */
START_TEST(other_addresses)
{
	const unsigned int rw = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING;
	struct ibv_send_wr wr = { .wr_id = 1, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	struct ibv_sge sge;
	struct ibv_mr *mr;
	struct end a, b;

	pair_open(&a, &b, NULL, NULL);
	fill(a.buf, 100, 3);
	wr.sg_list = &sge;
	for (int i = 0; i < 3; i++) {
		uint64_t iova = i == 0 ? 0x123456789000 : i == 1 ? (uintptr_t)b.buf + 4096 : 0;

		mr = i < 2 ? ibv_reg_mr_iova(b.pd, b.buf + 8192, 4096, iova, rw) :
			     ibv_reg_mr(b.pd, b.buf + 8192, 4096, rw | IBV_ACCESS_ZERO_BASED);
		ck_assert_ptr_nonnull(mr);
		memset(b.buf, 0, 20000);
		wr.wr.rdma.remote_addr = iova + 100;
		wr.wr.rdma.rkey = mr->rkey;
		sge = (struct ibv_sge){ (uintptr_t)a.buf, 100, a.mr->lkey };
		ck_assert_int_eq(ibv_post_send(a.qp, &wr, &bad), 0);
		want(&a, 1, IBV_WC_SUCCESS);
		check_filled(b.buf + 8192 + 100, 100, 3);
		/* its own side uses these addresses, too */
		wr.wr.rdma.remote_addr = (uintptr_t)a.buf + 5000;
		wr.wr.rdma.rkey = a.mr->rkey;
		sge = (struct ibv_sge){ iova + 100, 100, mr->lkey };
		ck_assert_int_eq(ibv_post_send(b.qp, &wr, &bad), 0);
		want(&b, 1, IBV_WC_SUCCESS);
		check_filled(a.buf + 5000, 100, 3);
		memset(a.buf + 5000, 0, 100);
		ck_assert_int_eq(ibv_dereg_mr(mr), 0);
	}
	pair_close(&a, &b);
}
END_TEST

/* What is not there need not be, until somebody comes for it. */
START_TEST(on_demand)
{
	const unsigned int rw = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ON_DEMAND;
	struct ibv_send_wr wr = { .wr_id = 1, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	/* below everything else, where no other mmap() of the process takes what is given back */
	char *p = mmap((void *)0x40000000, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_device_attr_ex at;
	struct ibv_sge sge;
	struct ibv_mr *mr;
	struct end a, b;

	pair_open(&a, &b, NULL, NULL);
	ck_assert_int_eq(ibv_query_device_ex(b.ctx, NULL, &at), 0);
	ck_assert_uint_eq(at.odp_caps.general_caps, IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
	fill(a.buf, 100, 3);
	wr.sg_list = &sge;
	sge = (struct ibv_sge){ (uintptr_t)a.buf, 100, a.mr->lkey };
	ck_assert_ptr_null(ibv_reg_mr(b.pd, p, SIZE_MAX, rw));
	ck_assert_int_eq(errno, EINVAL);
	for (int i = 0; i < 2; i++) {
		struct ibv_sge there;

		mr = i ? ibv_reg_mr(b.pd, NULL, SIZE_MAX, rw) : ibv_reg_mr(b.pd, p, 8192, rw);
		ck_assert_ptr_nonnull(mr);
		ck_assert_int_eq(munmap(p + 4096, 4096), 0);
		there = (struct ibv_sge){ (uintptr_t)p, 4096, mr->lkey };
		ck_assert_int_eq(ibv_advise_mr(b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &there, 1), 0);
		there.addr += 4096;
		ck_assert_int_eq(ibv_advise_mr(b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &there, 1), EFAULT);
		there.lkey = b.mr->lkey;
		ck_assert_int_eq(ibv_advise_mr(b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &there, 1), ENOENT);
		memset(p, 0, 4096);
		wr.wr.rdma.rkey = mr->rkey;
		wr.wr.rdma.remote_addr = (uintptr_t)p + 1000;
		ck_assert_int_eq(ibv_post_send(a.qp, &wr, &bad), 0);
		want(&a, 1, IBV_WC_SUCCESS);
		check_filled((uint8_t *)p + 1000, 100, 3);
		wr.wr.rdma.remote_addr = (uintptr_t)p + 4050;
		ck_assert_int_eq(ibv_post_send(a.qp, &wr, &bad), 0);
		want(&a, 1, IBV_WC_REM_ACCESS_ERR);
		ck_assert_int_eq(to_state(a.qp, IBV_QPS_RESET), 0);
		ck_assert_int_eq(to_state(b.qp, IBV_QPS_RESET), 0);
		join(&a, &b, NULL);
		/* it comes back */
		ck_assert_ptr_eq(mmap(p + 4096, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
				 p + 4096);
		ck_assert_int_eq(ibv_post_send(a.qp, &wr, &bad), 0);
		want(&a, 1, IBV_WC_SUCCESS);
		check_filled((uint8_t *)p + 4050, 100, 3);
		ck_assert_int_eq(ibv_dereg_mr(mr), 0);
	}
	munmap(p, 8192);
	pair_close(&a, &b);
}
END_TEST

START_TEST(device_memory)
{
	const unsigned int rw = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_send_wr wr = { .wr_id = 1, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	struct ibv_alloc_dm_attr da = { .length = 4096 }, much = { .length = 1 << 20 };
	struct ibv_dm *dm, *more[64];
	struct ibv_sge sge;
	struct ibv_mr *mr;
	struct end a, b;
	uint8_t got[4096];
	int n = 0;

	pair_open(&a, &b, NULL, NULL);
	ck_assert_ptr_null(ibv_alloc_dm(b.ctx, &much));
	ck_assert_int_eq(errno, EINVAL);
	dm = ibv_alloc_dm(b.ctx, &da);
	ck_assert_ptr_nonnull(dm);
	while (n < 64 && (more[n] = ibv_alloc_dm(b.ctx, &da)))
		n++;
	ck_assert_int_eq(n, 31);
	ck_assert_int_eq(errno, ENOSPC);
	while (n)
		ck_assert_int_eq(ibv_free_dm(more[--n]), 0);
	/* its addresses begin at 0, and it is no longer than it is */
	ck_assert_ptr_null(ibv_reg_dm_mr(b.pd, dm, 0, 4096, rw));
	ck_assert_ptr_null(ibv_reg_dm_mr(b.pd, dm, 8, 4096, rw | IBV_ACCESS_ZERO_BASED));
	ck_assert_ptr_null(ibv_reg_dm_mr(a.pd, dm, 0, 4096, rw | IBV_ACCESS_ZERO_BASED));
	mr = ibv_reg_dm_mr(b.pd, dm, 1024, 2048, rw | IBV_ACCESS_ZERO_BASED);
	ck_assert_ptr_nonnull(mr);
	ck_assert_int_eq(ibv_free_dm(dm), EBUSY);
	fill(a.buf, 2048, 5);
	sge = (struct ibv_sge){ (uintptr_t)a.buf, 100, a.mr->lkey };
	wr.sg_list = &sge;
	wr.wr.rdma.rkey = mr->rkey;
	wr.wr.rdma.remote_addr = 200;
	ck_assert_int_eq(ibv_post_send(a.qp, &wr, &bad), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	ck_assert_int_eq(ibv_memcpy_from_dm(got, dm, 1224, 100), 0);
	check_filled(got, 100, 5);
	ck_assert_int_eq(ibv_memcpy_from_dm(got, dm, 1, 4), EINVAL);
	ck_assert_int_eq(ibv_memcpy_from_dm(got, dm, 4092, 8), EINVAL);
	ck_assert_int_eq(ibv_memcpy_to_dm(dm, 1024, a.buf + 100, 400), 0);
	wr.opcode = IBV_WR_RDMA_READ;
	wr.wr.rdma.remote_addr = 0;
	sge.addr += 8192;
	ck_assert_int_eq(ibv_post_send(a.qp, &wr, &bad), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	ck_assert_mem_eq(a.buf + 8192, a.buf + 100, 100);
	wr.wr.rdma.remote_addr = 2000;
	ck_assert_int_eq(ibv_post_send(a.qp, &wr, &bad), 0);
	want(&a, 1, IBV_WC_REM_ACCESS_ERR);
	ck_assert_int_eq(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	ck_assert_int_eq(ibv_dereg_mr(mr), 0);
	ck_assert_int_eq(ibv_free_dm(dm), 0);
	pair_close(&a, &b);
}
END_TEST

/* A parent domain is its PD as far as protection goes. */
START_TEST(parent_domain)
{
	struct ibv_td_init_attr ta = { 0 };
	struct ibv_parent_domain_init_attr pa = { 0 };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 }, .sq_sig_all = 1 };
	struct ibv_pd *parent;
	struct ibv_mr *mr;
	struct ibv_td *td;
	struct end a, b;

	end_open(&a, 0, NULL);
	end_open(&b, 1, NULL);
	td = ibv_alloc_td(b.ctx, &ta);
	ck_assert_ptr_nonnull(td);
	pa.pd = b.pd;
	pa.td = td;
	parent = ibv_alloc_parent_domain(b.ctx, &pa);
	ck_assert_ptr_nonnull(parent);
	pa.pd = parent;
	ck_assert_ptr_null(ibv_alloc_parent_domain(b.ctx, &pa));
	ck_assert_int_eq(ibv_destroy_qp(b.qp), 0);
	init.send_cq = init.recv_cq = b.cq;
	b.qp = ibv_create_qp(parent, &init);
	ck_assert_ptr_nonnull(b.qp);
	join(&a, &b, NULL);
	/* the region is of the PD itself */
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	mr = ibv_reg_mr(parent, b.buf, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	ck_assert_ptr_nonnull(mr);
	ck_assert_int_eq(post(&a, &b, 2, (struct wr){ IBV_WR_RDMA_WRITE, .rkey = mr->rkey, .len = 8 }), 0);
	want(&a, 2, IBV_WC_SUCCESS);
	ck_assert_int_eq(ibv_dealloc_pd(parent), EBUSY);
	ck_assert_int_eq(ibv_dealloc_td(td), EBUSY);
	ck_assert_int_eq(ibv_dealloc_pd(b.pd), EBUSY);
	ck_assert_int_eq(ibv_dereg_mr(mr), 0);
	ck_assert_int_eq(ibv_destroy_qp(b.qp), 0);
	b.qp = NULL;
	ck_assert_int_eq(ibv_dealloc_pd(parent), 0);
	ck_assert_int_eq(ibv_dealloc_td(td), 0);
	pair_close(&a, &b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("softnic: windows and regions");
	TCase *t = tcase_create("mw");

	tcase_set_timeout(t, 120);
	tcase_add_test(t, type_1);
	tcase_add_test(t, type_2);
	tcase_add_loop_test(t, bad_binds, 0, NBADS);
	tcase_add_test(t, among_others);
	tcase_add_test(t, reregister);
	tcase_add_test(t, other_addresses);
	tcase_add_test(t, on_demand);
	tcase_add_test(t, device_memory);
	tcase_add_test(t, parent_domain);
	suite_add_tcase(s, t);
	return run_suite(s);
}

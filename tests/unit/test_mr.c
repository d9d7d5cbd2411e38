// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* PDs and MRs, their twins, and how these leave the program's own calls as they were. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>

#include "keys_fake.h"
#include "run.h"

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

static char mem[1 << 16];
static struct ibv_pd *pd;

static uint64_t failed(void)
{
	return atomic_load(&dp_counters.fallback[DP_FB_MR_TWIN_FAILED]);
}

static void setup(void)
{
	fake_reset();
	atomic_store(&dp_counters.fallback[DP_FB_MR_TWIN_FAILED], 0);
	pd = dp_alloc_pd(fake_ctx.ctx);
	ck_assert_ptr_nonnull(pd);
}

static void teardown(void)
{
	fake_control_stop();
	fake_run();
	ck_assert_int_eq(dp_dealloc_pd(pd), 0);
	for (int i = 0; i < FAKE_DEVS; i++) {
		ck_assert_int_eq(fake_dev[i].nmr, 0);
		ck_assert_int_eq(fake_dev[i].npd, 0);
	}
	ck_assert_uint_eq(atomic_load(&fake_ctx.refs), 0);
}

/* The twins' keys of a usable MR are what the fake devices say. */
static void check_twins(struct ibv_mr *mr)
{
	const uint32_t *lkeys = dp_mr_lkeys(&fake_ctx, mr->lkey);
	struct dp_mr_how how = fake_how(0, mr->rkey);

	ck_assert_ptr_nonnull(lkeys);
	for (uint32_t i = 0; i < FAKE_DEVS - 1; i++) {
		struct dp_mr_how twin = fake_how(i + 1, lkeys[i]);

		ck_assert_ptr_nonnull(fake_key(i + 1, lkeys[i]));
		ck_assert_ptr_eq(twin.addr, how.addr);
		ck_assert_uint_eq(twin.length, how.length);
		ck_assert_uint_eq(twin.iova, how.iova);
		ck_assert_uint_eq(twin.access, how.access);
		ck_assert_uint_eq(twin.kind, how.kind);
		ck_assert_uint_eq(twin.offset, how.offset);
		ck_assert_int_eq(twin.fd, how.fd);
	}
}

START_TEST(test_pd)
{
	struct dp_pd *p = dp_pd_find(pd), *same;
	struct ibv_pd *second = dp_alloc_pd(fake_ctx.ctx);
	struct ibv_mr *mr;

	ck_assert_uint_eq(atomic_load(&fake_ctx.refs), 2);
	ck_assert_int_eq(fake_dev[1].npd, 0); /* not before they are needed */
	dp_pd_settle(p, NULL);
	dp_pd_settle(dp_pd_find(second), NULL);
	dp_pd_settle(p, NULL);
	ck_assert_int_eq(fake_dev[1].npd, 2);
	ck_assert_uint_ne(p->id, dp_pd_find(second)->id);
	same = dp_pd_by_id(p->id);
	ck_assert_ptr_eq(same, p);
	dp_pd_put(same);
	ck_assert_int_eq(dp_dealloc_pd(second), 0);
	ck_assert_int_eq(fake_dev[1].npd, 1);

	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	ck_assert_int_eq(dp_dealloc_pd(pd), EBUSY);
	ck_assert_ptr_eq(dp_pd_find(pd), p);
	ck_assert_int_eq(fake_dev[2].npd, 1);
	check_twins(mr);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

/* On ports of the program's own bond, twins are what the program made, and nothing is made or lost. */
START_TEST(test_shared)
{
	const uint32_t *lkeys;
	struct dp_pd *p;
	struct ibv_mr *mr;

	dp_ctx_open_siblings(&fake_ctx, NULL);
	for (uint32_t i = 0; i < fake_ctx.nsib; i++) {
		fake_ctx.sib[i].shared = true;
		fake_ctx.sib[i].ctx = fake_ctx.ctx;
	}
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	p = dp_pd_find(pd);
	ck_assert_int_eq(fake_dev[0].nmr, 1);
	for (int i = 1; i < FAKE_DEVS; i++) {
		ck_assert_int_eq(fake_dev[i].npd, 0);
		ck_assert_int_eq(fake_dev[i].nmr, 0);
		ck_assert_ptr_eq(p->twin[i - 1], pd);
	}
	lkeys = dp_mr_lkeys(&fake_ctx, mr->lkey);
	ck_assert_ptr_nonnull(lkeys);
	ck_assert(lkeys[0] == mr->lkey && lkeys[1] == mr->lkey);
	ck_assert_ptr_eq(dp_mr_find(mr)->m.twin[1], mr);
	/* what has no twins of its own has none to give back */
	ck_assert(!dp_mr_give_back(dp_now_ns() + 1000000000));
	ck_assert_int_eq(dp_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, mem + 200, 50, 0), 0);
	lkeys = dp_mr_lkeys(&fake_ctx, mr->lkey);
	ck_assert(lkeys && lkeys[0] == mr->lkey);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	ck_assert_int_eq(fake_dev[0].nmr, 0);
	/* flushes' memory is in the program's domain, which it must be able to free; but not under a twin */
	ck_assert_int_eq(dp_scratch_make(p, 0), 0);
	ck_assert_int_eq(fake_dev[0].nmr, 1);
	p->guests = 1;
	ck_assert_int_eq(dp_dealloc_pd(pd), EBUSY);
	ck_assert_int_eq(fake_dev[0].nmr, 1);
	p->guests = 0;
	/* the rest is teardown()'s */
}
END_TEST

/* What the program made in a PD that it leaves to another process goes on, and so do the twins under it. */
START_TEST(test_pd_left)
{
	struct ibv_pd *left = dp_alloc_pd(fake_ctx.ctx);
	struct dp_pd *p = dp_pd_find(left);
	bool shared = _i;
	struct ibv_mr *mr, *flushes;

	if (shared) {
		dp_ctx_open_siblings(&fake_ctx, NULL);
		fake_ctx.sib[0].shared = true;
		fake_ctx.sib[0].ctx = fake_ctx.ctx;
	}
	mr = dp_reg_mr(left, mem, 100, ACCESS);
	dp_pd_use(p); /* a queue pair */
	ck_assert_int_eq(dp_scratch_make(p, 0), 0);
	flushes = dp_scratch_own(p);
	ck_assert_ptr_nonnull(flushes);
	p->guests = shared;
	dp_unimport_pd(left);
	ck_assert_ptr_null(dp_pd_find(left));
	ck_assert_ptr_null(dp_pd_by_id(p->id));
	/* nothing is made in what is gone */
	errno = 0;
	ck_assert_ptr_null(dp_scratch_own(p));
	ck_assert_int_eq(errno, ENODEV);
	for (int i = 1 + shared; i < FAKE_DEVS; i++)
		ck_assert_int_eq(fake_dev[i].npd, 1);
	ck_assert_ptr_nonnull(fake_key(2, dp_mr_lkeys(&fake_ctx, mr->lkey)[1]));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	ck_assert_int_eq(fake_verbs.dereg_mr(flushes), 0);
	ck_assert_int_eq(fake_dev[2].npd, 1);
	ck_assert_ptr_nonnull(p->scratch[0]);
	p->guests = 0;
	dp_pd_unuse(p);
	ck_assert_uint_eq(atomic_load(&fake_ctx.refs), 1);
	/* the rest is teardown()'s */
}
END_TEST

/* A region that mlx5dv made gets twins from the same dma-buf, and counts where it cannot. */
START_TEST(test_made_elsewhere)
{
	struct ibv_mr *mr = fake_verbs.reg_dmabuf_mr(pd, 64, 100, 0x10000, 7, ACCESS);

	dp_dmabuf_made(pd, mr, 64, 100, 0x10000, 7, ACCESS);
	check_twins(mr);
	ck_assert_int_eq(fake_how(1, dp_mr_lkeys(&fake_ctx, mr->lkey)[0]).fd, 7);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	ck_assert_uint_eq(failed(), 0);
	mr = fake_verbs.reg_dmabuf_mr(pd, 64, 100, 0x10000, 7, ACCESS);
	fake_dev[2].fail_mr = EOPNOTSUPP;
	dp_dmabuf_made(pd, mr, 64, 100, 0x10000, 7, ACCESS);
	ck_assert_ptr_null(dp_mr_lkeys(&fake_ctx, mr->lkey));
	ck_assert_uint_eq(failed(), 1);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

START_TEST(test_pd_without_group)
{
	struct ibv_pd *plain;
	struct ibv_mr *mr;

	fake_ctx.grouped = false;
	plain = dp_alloc_pd(fake_ctx.ctx);
	fake_ctx.grouped = true;
	ck_assert_ptr_nonnull(plain);
	ck_assert_ptr_null(dp_pd_find(plain));
	mr = dp_reg_mr(plain, mem, 10, ACCESS);
	ck_assert_ptr_nonnull(mr);
	ck_assert_int_eq(fake_dev[1].npd, 0);
	ck_assert_int_eq(fake_dev[1].nmr, 0);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	ck_assert_int_eq(dp_dealloc_pd(plain), 0);

	/* a context that nothing is known of */
	plain = dp_alloc_pd(&fake_dev[2].ctx);
	ck_assert_ptr_nonnull(plain);
	ck_assert_int_eq(dp_dealloc_pd(plain), 0);
}
END_TEST

START_TEST(test_kinds)
{
	struct ibv_mr *mr[4] = {
		dp_reg_mr(pd, mem, 100, ACCESS),
		dp_reg_mr_iova(pd, mem + 1, 200, 0x1000, ACCESS),
		dp_reg_mr_iova2(pd, mem + 2, 300, 0x2000, ACCESS | IBV_ACCESS_RELAXED_ORDERING),
		dp_reg_dmabuf_mr(pd, 4096, 400, 0x3000, 17, ACCESS),
	};

	for (int i = 0; i < 4; i++) {
		ck_assert_ptr_nonnull(mr[i]);
		check_twins(mr[i]);
	}
	for (int i = 0; i < 4; i++) {
		uint32_t lkey = mr[i]->lkey;

		ck_assert_int_eq(dp_dereg_mr(mr[i]), 0);
		ck_assert_ptr_null(dp_mr_lkeys(&fake_ctx, lkey));
		ck_assert_int_eq(fake_dev[2].nmr, 3 - i);
	}
}
END_TEST

/* Rail 0's is registered by the verb that was called, with what it was given; twins as older verbs say the same. */
START_TEST(test_newer_kinds)
{
	struct dp_mr_init_attr attr[] = {
		{ .length = 100, .access = ACCESS, .comp_mask = DP_MR_INIT_ADDR, .addr = mem, .iova = 7 },
		{ .length = 100, .access = ACCESS, .comp_mask = DP_MR_INIT_ADDR | DP_MR_INIT_IOVA | DP_MR_INIT_DMAH,
		  .addr = mem, .iova = 0x1000, .dmah = mem },
		{ .length = 100, .access = ACCESS, .comp_mask = DP_MR_INIT_FD | DP_MR_INIT_FD_OFFSET | DP_MR_INIT_IOVA,
		  .addr = mem, .iova = 0x2000, .fd = 17, .fd_offset = 4096 },
		{ .length = 100, .access = ACCESS, .comp_mask = DP_MR_INIT_ADDR | DP_MR_INIT_BUF, .addr = mem,
		  .buf = (struct ibv_buf *)mem },
	};
	const struct dp_mr_how twins[] = {
		{ .kind = DP_MR_IOVA2, .addr = mem, .iova = (uintptr_t)mem, .fd = -1 },
		{ .kind = DP_MR_IOVA2, .addr = mem, .iova = 0x1000, .fd = -1 },
		{ .kind = DP_MR_DMABUF, .iova = 0x2000, .offset = 4096, .fd = 17 },
		{ .kind = DP_MR_IOVA2, .addr = mem, .iova = (uintptr_t)mem, .fd = -1 },
		{ .kind = DP_MR_IOVA2, .addr = mem, .iova = (uintptr_t)mem, .fd = -1 },
	};
	struct ibv_mr *mr;

	for (unsigned i = 0; i < 5; i++) {
		struct ibv_mr_init_attr *a = i < 4 ? (struct ibv_mr_init_attr *)&attr[i] : NULL;
		struct ibv_buf *buf = i < 4 ? NULL : (struct ibv_buf *)mem;
		struct dp_mr_how how;
		const uint32_t *lkeys;

		mr = a ? dp_reg_mr_ex(pd, a) : dp_reg_buf_mr(pd, buf, mem, 100, ACCESS);
		ck_assert_ptr_nonnull(mr);
		how = fake_how(0, mr->rkey);
		ck_assert(how.attr == a && how.buf == buf);
		lkeys = dp_mr_lkeys(&fake_ctx, mr->lkey);
		ck_assert_ptr_nonnull(lkeys);
		for (uint32_t s = 0; s < FAKE_DEVS - 1; s++) {
			how = fake_how(s + 1, lkeys[s]);
			ck_assert_uint_eq(how.kind, twins[i].kind);
			ck_assert_ptr_eq(how.addr, twins[i].addr);
			ck_assert_uint_eq(how.iova, twins[i].iova);
			ck_assert_uint_eq(how.offset, twins[i].offset);
			ck_assert_int_eq(how.fd, twins[i].fd);
			ck_assert_uint_eq(how.access, ACCESS);
			ck_assert_uint_eq(how.length, 100);
		}
		ck_assert_int_eq(dp_dereg_mr(mr), 0);
		ck_assert_int_eq(fake_dev[1].nmr, 0);
	}
	ck_assert_uint_eq(failed(), 0);
}
END_TEST

/* What a later version may add is rail 0's alone, and counted. */
START_TEST(test_unknown_kind)
{
	struct dp_mr_init_attr attr = { .length = 100, .access = ACCESS, .comp_mask = DP_MR_INIT_ADDR | 1 << 6, .addr = mem };
	struct ibv_mr *mr = dp_reg_mr_ex(pd, (struct ibv_mr_init_attr *)&attr);

	ck_assert_ptr_nonnull(mr);
	ck_assert_ptr_eq(fake_how(0, mr->rkey).attr, (void *)&attr);
	ck_assert_ptr_null(dp_mr_lkeys(&fake_ctx, mr->lkey));
	ck_assert_int_eq(fake_dev[1].nmr, 0);
	ck_assert_uint_eq(failed(), 1);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	ck_assert_int_eq(fake_dev[0].nmr, 0);
}
END_TEST

START_TEST(test_old_libibverbs)
{
	struct dp_mr_init_attr attr = { .length = 4, .access = ACCESS, .comp_mask = DP_MR_INIT_ADDR, .addr = mem };
	struct ibv_mr *mr;

	fake_verbs.reg_dmabuf_mr = NULL;
	fake_verbs.rereg_mr = NULL;
	errno = 0;
	ck_assert_ptr_null(dp_reg_dmabuf_mr(pd, 0, 4, 0, 3, ACCESS));
	ck_assert_int_eq(errno, EOPNOTSUPP);
	fake_verbs.reg_mr_ex = NULL;
	fake_verbs.reg_buf_mr = NULL;
	mr = dp_reg_mr_ex(pd, (struct ibv_mr_init_attr *)&attr);
	ck_assert_ptr_nonnull(mr);
	ck_assert_ptr_eq(fake_how(0, mr->rkey).addr, mem);
	ck_assert_ptr_nonnull(dp_mr_lkeys(&fake_ctx, mr->lkey));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	attr.comp_mask |= DP_MR_INIT_DMAH;
	errno = 0;
	ck_assert_ptr_null(dp_reg_mr_ex(pd, (struct ibv_mr_init_attr *)&attr));
	ck_assert_int_eq(errno, EOPNOTSUPP);
	errno = 0;
	ck_assert_ptr_null(dp_reg_buf_mr(pd, (struct ibv_buf *)mem, mem, 4, ACCESS));
	ck_assert_int_eq(errno, EOPNOTSUPP);
}
END_TEST

START_TEST(test_twin_fails)
{
	struct ibv_mr *mr;

	fake_dev[2].fail_mr = EOPNOTSUPP;
	errno = 0;
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	ck_assert_ptr_nonnull(mr);
	ck_assert_int_eq(errno, 0);
	ck_assert_ptr_null(dp_mr_lkeys(&fake_ctx, mr->lkey));
	ck_assert_int_eq(fake_dev[1].nmr, 0); /* given back at once */
	ck_assert_uint_eq(failed(), 1);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	ck_assert_uint_eq(failed(), 1);
}
END_TEST

/* A sibling that has no PD cannot be used by any QP, and is no reason not to use the others. */
START_TEST(test_pd_twin_fails)
{
	struct ibv_pd *other;
	struct ibv_mr *mr;

	fake_dev[2].fail_pd = ENOMEM;
	other = dp_alloc_pd(fake_ctx.ctx);
	dp_pd_settle(dp_pd_find(other), NULL);
	fake_dev[2].fail_pd = 0;
	mr = dp_reg_mr(other, mem, 100, ACCESS);
	ck_assert_ptr_nonnull(dp_mr_lkeys(&fake_ctx, mr->lkey));
	ck_assert_int_eq(fake_dev[1].nmr, 1);
	ck_assert_int_eq(fake_dev[2].nmr, 0);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	ck_assert_int_eq(dp_dealloc_pd(other), 0);
}
END_TEST

START_TEST(test_rail0_fails)
{
	fake_dev[0].fail_mr = EFAULT;
	ck_assert_ptr_null(dp_reg_mr(pd, mem, 100, ACCESS));
	ck_assert_int_eq(errno, EFAULT);
	ck_assert_int_eq(fake_dev[1].nmr, 0);
}
END_TEST

/* The program gets exactly what it would get without twins. */
START_TEST(test_memlock)
{
	struct ibv_mr *mr[8];

	fake_memlock = 8000;
	for (int i = 0; i < 8; i++) {
		mr[i] = dp_reg_mr(pd, mem, 1000, ACCESS);
		ck_assert_ptr_nonnull(mr[i]);
	}
	errno = 0;
	ck_assert_ptr_null(dp_reg_mr(pd, mem, 1000, ACCESS));
	ck_assert_int_eq(errno, ENOMEM);
	ck_assert_int_eq(fake_dev[1].nmr + fake_dev[2].nmr, 0);
	ck_assert_uint_eq(failed(), 8);
	for (int i = 0; i < 8; i++)
		ck_assert_int_eq(dp_dereg_mr(mr[i]), 0);
}
END_TEST

/* Those that peers do not know go first, then the largest. */
START_TEST(test_memlock_choice)
{
	struct ibv_mr *small = dp_reg_mr(pd, mem, 100, ACCESS), *large = dp_reg_mr(pd, mem, 1000, ACCESS), *mr;

	fake_memlock = fake_locked + 500;
	mr = dp_reg_mr(pd, mem, 1500, ACCESS);
	ck_assert_ptr_nonnull(mr);
	ck_assert_ptr_nonnull(dp_mr_lkeys(&fake_ctx, small->lkey));
	ck_assert_ptr_null(dp_mr_lkeys(&fake_ctx, large->lkey));
	ck_assert_ptr_null(dp_mr_lkeys(&fake_ctx, mr->lkey));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	ck_assert_int_eq(dp_dereg_mr(large), 0);
	ck_assert_int_eq(dp_dereg_mr(small), 0);
}
END_TEST

/* Fragments in flight keep their keys: no twin is taken while one is outstanding, and the call ends in time. */
START_TEST(test_memlock_in_flight)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 1000, ACCESS), *next;
	static struct dp_rail rails[3];
	static struct dp_cq cq;
	struct dp_qp *q = &fake_qp[0];
	uint64_t start = dp_now_ns();

	dp_lock_init(&cq.lock);
	q->c = &fake_ctx;
	q->scq = &cq;
	q->rail = rails;
	atomic_store(&q->state, DP_QP_BONDED);
	q->order.nrails = 3;
	q->order.planned[1] = 5;
	q->order.done[1] = 4;
	fake_memlock = 3500;
	ck_assert_ptr_null(dp_reg_mr(pd, mem, 1000, ACCESS));
	ck_assert_int_eq(errno, ENOMEM);
	ck_assert_uint_ge(dp_now_ns() - start, dp_cfg.lease_ns);
	ck_assert_uint_le(dp_now_ns() - start, dp_cfg.lease_ns + 2000000000u);
	ck_assert_uint_gt(atomic_load(&cq.polls), 0);
	ck_assert_ptr_nonnull(dp_mr_lkeys(&fake_ctx, mr->lkey));
	check_twins(mr);
	ck_assert_uint_eq(atomic_load(&q->refs), 0);

	q->order.done[1] = 5;
	next = dp_reg_mr(pd, mem, 1000, ACCESS);
	ck_assert_ptr_nonnull(next);
	ck_assert_ptr_null(dp_mr_lkeys(&fake_ctx, mr->lkey));
	ck_assert_int_eq(dp_dereg_mr(next), 0);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

START_TEST(test_dereg_busy)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);

	fake_dev[0].busy = EBUSY;
	ck_assert_int_eq(dp_dereg_mr(mr), EBUSY);
	check_twins(mr);
	ck_assert_ptr_nonnull(dp_mr_find(mr));
	fake_dev[0].busy = 0;
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

START_TEST(test_rereg)
{
	struct ibv_mr *mr = dp_reg_mr_iova(pd, mem, 100, 0x1000, ACCESS);
	struct ibv_pd *other = dp_alloc_pd(fake_ctx.ctx);
	const uint32_t *lkeys;

	ck_assert_int_eq(dp_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE), 0);
	check_twins(mr); /* the iova stays */
	ck_assert_uint_eq(fake_how(1, dp_mr_lkeys(&fake_ctx, mr->lkey)[0]).iova, 0x1000);

	ck_assert_int_eq(dp_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, mem + 64, 500, 0), 0);
	lkeys = dp_mr_lkeys(&fake_ctx, mr->lkey);
	ck_assert_ptr_nonnull(lkeys);
	ck_assert_ptr_eq(fake_how(2, lkeys[1]).addr, mem + 64);
	ck_assert_uint_eq(fake_how(2, lkeys[1]).length, 500);
	ck_assert_uint_eq(fake_how(2, lkeys[1]).access, IBV_ACCESS_LOCAL_WRITE);

	ck_assert_int_eq(dp_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0), 0);
	lkeys = dp_mr_lkeys(&fake_ctx, mr->lkey);
	ck_assert_ptr_eq(fake_key(1, lkeys[0])->pd, dp_pd_find(other)->twin[0]);
	ck_assert_ptr_eq(dp_hmap_get(&dp_pd_find(other)->rkeys, mr->rkey), dp_mr_find(mr));
	ck_assert_ptr_null(dp_hmap_get(&dp_pd_find(pd)->rkeys, mr->rkey));
	ck_assert_int_eq(fake_dev[1].nmr, 1);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	ck_assert_int_eq(dp_dealloc_pd(other), 0);
}
END_TEST

START_TEST(test_rereg_fails)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);
	static const struct {
		int ret, err;
		bool usable;
	} cases[] = {
		{ IBV_REREG_MR_ERR_INPUT, EINVAL, true },
		{ IBV_REREG_MR_ERR_DONT_FORK_NEW, EINVAL, true },
		{ IBV_REREG_MR_ERR_CMD, EOPNOTSUPP, true },
		{ IBV_REREG_MR_ERR_DO_FORK_OLD, EINVAL, true },
		{ IBV_REREG_MR_ERR_CMD, EINVAL, false },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fake_rereg_ret = cases[i].ret;
		fake_rereg_errno = cases[i].err;
		ck_assert_int_eq(dp_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, mem, 200, 0), cases[i].ret);
		ck_assert_int_eq(dp_mr_lkeys(&fake_ctx, mr->lkey) != NULL, cases[i].usable);
		if (cases[i].usable)
			check_twins(mr);
	}
	ck_assert_int_eq(fake_dev[1].nmr, 0);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

/* The descriptor may be anything by the time of a rereg. */
START_TEST(test_rereg_dmabuf)
{
	struct ibv_mr *mr = dp_reg_dmabuf_mr(pd, 0, 400, 0x3000, 17, ACCESS);

	ck_assert_int_eq(dp_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE), 0);
	ck_assert_ptr_null(dp_mr_lkeys(&fake_ctx, mr->lkey));
	ck_assert_int_eq(fake_dev[1].nmr, 0);
	ck_assert_uint_eq(failed(), 1);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

/* The same region, to the provider, as the one that was registered here; its address is not known. */
static struct ibv_mr *import(const struct ibv_mr *of)
{
	struct ibv_mr *mr = malloc(sizeof(*mr));

	ck_assert_ptr_nonnull(mr);
	*mr = *of;
	mr->addr = NULL;
	return mr;
}

/* What is done with an import is done to the region: its twins must not outlive it, nor say what it was. */
START_TEST(test_import)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS), *same = import(mr), *other = dp_reg_mr(pd, mem, 100, ACCESS);

	fake_dev[0].busy = EBUSY;
	ck_assert_int_eq(dp_dereg_mr(same), EBUSY);
	check_twins(mr);
	fake_dev[0].busy = 0;
	if (_i) {
		fake_rereg_ret = IBV_REREG_MR_ERR_INPUT;
		dp_rereg_mr(same, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, mem + 64, 500, 0);
		check_twins(mr);
		fake_rereg_ret = 0;
		ck_assert_int_eq(dp_rereg_mr(same, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, mem + 64, 500, 0), 0);
		ck_assert_ptr_null(dp_mr_lkeys(&fake_ctx, mr->lkey));
		ck_assert_ptr_null(dp_hmap_get(&dp_pd_find(pd)->rkeys, mr->rkey));
		ck_assert_int_eq(fake_dev[1].nmr, 1);
	}
	ck_assert_int_eq(dp_dereg_mr(same), 0);
	ck_assert_ptr_null(dp_mr_find(mr));
	ck_assert_ptr_null(dp_mr_lkeys(&fake_ctx, mr->lkey));
	ck_assert_ptr_null(dp_hmap_get(&dp_pd_find(pd)->rkeys, mr->rkey));
	ck_assert_int_eq(fake_dev[1].nmr, 1);
	free(mr);
	check_twins(other);
	ck_assert_int_eq(dp_dereg_mr(other), 0);
}
END_TEST

static void *churn(void *arg)
{
	unsigned seed = *(unsigned *)arg;
	struct ibv_mr *mr[16] = { 0 };

	for (int i = 0; i < 2000; i++) {
		int at = rand_r(&seed) % 16;

		if (!mr[at]) {
			mr[at] = dp_reg_mr(pd, mem, (size_t)(rand_r(&seed) % 1000) + 1, ACCESS);
			continue;
		}
		if (rand_r(&seed) % 8 == 0)
			dp_rereg_mr(mr[at], IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ACCESS);
		if (dp_mr_lkeys(&fake_ctx, mr[at]->lkey))
			check_twins(mr[at]);
		ck_assert_int_eq(dp_dereg_mr(mr[at]), 0);
		mr[at] = NULL;
	}
	for (int i = 0; i < 16; i++)
		if (mr[i])
			ck_assert_int_eq(dp_dereg_mr(mr[i]), 0);
	return NULL;
}

/* Two threads register, change and drop MRs; in one of the rounds memory runs out all the time. */
START_TEST(test_threads)
{
	unsigned seed[2] = { 1, 2 };
	pthread_t t[2];

	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, churn, &seed[i]);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	ck_assert_uint_eq(failed(), 0);
}
END_TEST

static void *churn_tight(void *arg)
{
	unsigned seed = *(unsigned *)arg;
	struct ibv_mr *mr[4] = { 0 };

	for (int i = 0; i < 500; i++) {
		int at = rand_r(&seed) % 4;

		if (mr[at]) {
			ck_assert_int_eq(dp_dereg_mr(mr[at]), 0);
			mr[at] = NULL;
		} else {
			mr[at] = dp_reg_mr(pd, mem, 1000, ACCESS);
		}
	}
	for (int i = 0; i < 4; i++)
		if (mr[i])
			ck_assert_int_eq(dp_dereg_mr(mr[i]), 0);
	return NULL;
}

START_TEST(test_threads_memlock)
{
	unsigned seed[2] = { 3, 4 };
	pthread_t t[2];

	fake_memlock = 9000;
	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, churn_tight, &seed[i]);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	ck_assert_uint_gt(failed(), 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("mr");
	TCase *tc = tcase_create("mr");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, test_pd);
	tcase_add_test(tc, test_shared);
	tcase_add_test(tc, test_made_elsewhere);
	tcase_add_test(tc, test_pd_without_group);
	tcase_add_test(tc, test_kinds);
	tcase_add_test(tc, test_newer_kinds);
	tcase_add_test(tc, test_unknown_kind);
	tcase_add_loop_test(tc, test_pd_left, 0, 2);
	tcase_add_test(tc, test_old_libibverbs);
	tcase_add_test(tc, test_twin_fails);
	tcase_add_test(tc, test_pd_twin_fails);
	tcase_add_test(tc, test_rail0_fails);
	tcase_add_test(tc, test_memlock);
	tcase_add_test(tc, test_memlock_choice);
	tcase_add_test(tc, test_memlock_in_flight);
	tcase_add_test(tc, test_dereg_busy);
	tcase_add_test(tc, test_rereg);
	tcase_add_test(tc, test_rereg_fails);
	tcase_add_test(tc, test_rereg_dmabuf);
	tcase_add_loop_test(tc, test_import, 0, 2);
	tcase_add_test(tc, test_threads);
	tcase_add_test(tc, test_threads_memlock);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

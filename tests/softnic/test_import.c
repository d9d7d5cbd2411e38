// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Devices, domains and regions that were imported. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "test_end.h"

/* An end whose device, domain and region are another's. */
static void import(struct end *e, const struct end *of)
{
	struct ibv_qp_init_attr qi = { .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 }, .sq_sig_all = 1 };

	*e = *of;
	e->ctx = ibv_import_device(dup(of->ctx->cmd_fd));
	ck_assert_ptr_nonnull(e->ctx);
	ck_assert_ptr_ne(e->ctx, of->ctx);
	ck_assert_ptr_eq(e->ctx->device, of->ctx->device);
	e->pd = ibv_import_pd(e->ctx, of->pd->handle);
	ck_assert_ptr_nonnull(e->pd);
	ck_assert_uint_eq(e->pd->handle, of->pd->handle);
	e->mr = ibv_import_mr(e->pd, of->mr->handle);
	ck_assert_ptr_nonnull(e->mr);
	ck_assert(e->mr->lkey == of->mr->lkey && e->mr->rkey == of->mr->rkey && e->mr->length == of->mr->length);
	ck_assert_ptr_null(e->mr->addr);
	e->cq = ibv_create_cq(e->ctx, 16, NULL, NULL, 0);
	ck_assert_ptr_nonnull(e->cq);
	qi.send_cq = qi.recv_cq = e->cq;
	e->qp = ibv_create_qp(e->pd, &qi);
	ck_assert_ptr_nonnull(e->qp);
	e->psn += 77;
}

static void write_and_read(struct end *e, struct end *peer, uint32_t seed)
{
	fill(e->buf, 5000, seed);
	ck_assert_int_eq(post(e, peer, 1, (struct wr){ .op = IBV_WR_RDMA_WRITE, .to = 8192, .len = 5000 }), 0);
	want(e, 1, IBV_WC_SUCCESS);
	check_filled(peer->buf + 8192, 5000, seed);
	ck_assert_int_eq(post(e, peer, 2, (struct wr){ .op = IBV_WR_RDMA_READ, .at = 16384, .to = 8192, .len = 5000 }), 0);
	want(e, 2, IBV_WC_SUCCESS);
	check_filled(e->buf + 16384, 5000, seed);
}

static void close_import(struct end *e)
{
	ck_assert_int_eq(ibv_destroy_cq(e->cq), 0);
	ck_assert_int_eq(ibv_close_device(e->ctx), 0);
}

START_TEST(moves_data)
{
	struct end a, b, i;
	struct ibv_mr *mr;

	pair_open(&a, &b, NULL, NULL);
	ck_assert_int_eq(to_state(b.qp, IBV_QPS_RESET), 0);
	import(&i, &a);
	join(&i, &b, NULL);
	write_and_read(&i, &b, 3);
	write_and_read(&b, &i, 4);
	/* the other one's domain and region are in use, and it goes on */
	ck_assert_int_eq(ibv_dealloc_pd(a.pd), EBUSY);
	mr = ibv_reg_mr(i.pd, i.buf, 4096, IBV_ACCESS_LOCAL_WRITE);
	ck_assert_ptr_nonnull(mr);
	ck_assert_int_eq(ibv_dereg_mr(mr), 0);
	ck_assert_int_eq(ibv_rereg_mr(i.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	ibv_unimport_mr(i.mr);
	ibv_unimport_pd(i.pd);
	ck_assert_int_eq(post(&b, &a, 9, (struct wr){ .op = IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	want(&b, 9, IBV_WC_SUCCESS);
	/* its queue pair was there longer than the import of its domain */
	ck_assert_int_eq(ibv_destroy_qp(i.qp), 0);
	close_import(&i);
	pair_close(&a, &b);
}
END_TEST

START_TEST(ended_by_either)
{
	struct end a, b, i;

	pair_open(&a, &b, NULL, NULL);
	import(&i, &b);
	ck_assert_int_eq(ibv_destroy_qp(i.qp), 0);
	/* for all */
	ck_assert_int_eq(ibv_dereg_mr(i.mr), 0);
	ck_assert_int_eq(ibv_dereg_mr(b.mr), ENOENT);
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ .op = IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	want(&a, 1, IBV_WC_REM_ACCESS_ERR);
	ck_assert_ptr_null(ibv_import_mr(i.pd, b.mr->handle));
	ck_assert_int_eq(errno, ENOENT);
	ck_assert_int_eq(ibv_destroy_qp(b.qp), 0);
	ck_assert_int_eq(ibv_dealloc_pd(i.pd), 0);
	ck_assert_int_eq(ibv_dealloc_pd(b.pd), ENOENT);
	close_import(&i);
	b.qp = NULL;
	free(b.mr);
	b.mr = NULL;
	ck_assert_int_eq(ibv_destroy_cq(b.cq), 0);
	ck_assert_int_eq(ibv_close_device(b.ctx), 0);
	free(b.pd);
	free(b.buf);
	end_close(&a);
}
END_TEST

START_TEST(the_domain_goes_first)
{
	struct ibv_context *ctx = open_dev(0), *im = ibv_import_device(dup(ctx->cmd_fd));
	struct ibv_pd *pd = ibv_alloc_pd(ctx), *p1 = ibv_import_pd(im, pd->handle), *p2 = ibv_import_pd(im, pd->handle);

	ck_assert(p1 && p2);
	ck_assert_int_eq(ibv_dealloc_pd(pd), 0);
	ck_assert_ptr_null(ibv_import_pd(im, p1->handle));
	ck_assert_int_eq(ibv_dealloc_pd(p1), ENOENT);
	ibv_unimport_pd(p1);
	ibv_unimport_pd(p2);
	ck_assert_int_eq(ibv_close_device(ctx), 0);
	/* a file is open as long as one has it */
	pd = ibv_alloc_pd(im);
	ck_assert_ptr_nonnull(pd);
	ck_assert_int_eq(ibv_dealloc_pd(pd), 0);
	ck_assert_int_eq(ibv_close_device(im), 0);
}
END_TEST

START_TEST(refuses)
{
	struct ibv_context *a = open_dev(0), *b = open_dev(0);
	struct ibv_pd *pa = ibv_alloc_pd(a), *pb = ibv_alloc_pd(b);
	int null = open("/dev/null", O_RDWR);
	char some[64];
	struct ibv_mr *mr = ibv_reg_mr(pa, some, sizeof(some), 0);

	ck_assert_ptr_null(ibv_import_device(-1));
	ck_assert_ptr_null(ibv_import_device(null));
	ck_assert_int_eq(errno, EINVAL);
	close(null);
	/* numbers are of the file */
	ck_assert_ptr_null(ibv_import_pd(b, pa->handle));
	ck_assert_int_eq(errno, ENOENT);
	ck_assert_ptr_null(ibv_import_pd(a, 12345));
	ck_assert_ptr_null(ibv_import_mr(pb, mr->handle));
	ck_assert_int_eq(errno, ENOENT);
	ck_assert_ptr_null(ibv_import_mr(pa, 12345));
	ck_assert_int_eq(ibv_dereg_mr(mr), 0);
	ck_assert(!ibv_dealloc_pd(pa) && !ibv_dealloc_pd(pb));
	ck_assert(!ibv_close_device(a) && !ibv_close_device(b));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("import");
	TCase *tc = tcase_create("import");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, moves_data);
	tcase_add_test(tc, ended_by_either);
	tcase_add_test(tc, the_domain_goes_first);
	tcase_add_test(tc, refuses);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Memory of a GPU under regions, reached through a CUDA driver that is loaded after the first region was made. */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "test_end.h"

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | \
	     IBV_ACCESS_RELAXED_ORDERING)
#define BYTES 262144u

static struct {
	int (*alloc)(uint64_t *addr, size_t n);
	int (*push)(void *c);
	int (*pop)(void **c);
	int (*retain)(void **c, int device);
	int (*stream)(void **s, unsigned int flags);
	int (*to_device)(uint64_t to, const void *from, size_t n, void *s);
	int (*to_host)(void *to, uint64_t from, size_t n, void *s);
} cu;
static struct end a, b;
static struct ibv_mr *mr, *mine;
static uint64_t gpu, gpu_mine;
static void *stream, *context;
static uint8_t host[BYTES];

static void load_driver(void)
{
	void *h = dlopen("tests/unit/fakecuda/libcuda.so.1", RTLD_NOW);

	ck_assert_msg(h != NULL, "%s", dlerror());
	*(void **)&cu.alloc = dlsym(h, "cuMemAlloc_v2");
	*(void **)&cu.push = dlsym(h, "cuCtxPushCurrent_v2");
	*(void **)&cu.pop = dlsym(h, "cuCtxPopCurrent_v2");
	*(void **)&cu.retain = dlsym(h, "cuDevicePrimaryCtxRetain");
	*(void **)&cu.stream = dlsym(h, "cuStreamCreate");
	*(void **)&cu.to_device = dlsym(h, "cuMemcpyHtoDAsync_v2");
	*(void **)&cu.to_host = dlsym(h, "cuMemcpyDtoHAsync_v2");
}

static void setup(void)
{
	pair_open(&a, &b, NULL, NULL); /* registers memory while there is no driver */
	load_driver();
	ck_assert_int_eq(cu.alloc(&gpu, BYTES), 0);
	ck_assert_int_eq(cu.alloc(&gpu_mine, BYTES), 0);
	mr = ibv_reg_mr(b.pd, (void *)(uintptr_t)gpu, BYTES, ALL);
	ck_assert_ptr_nonnull(mr);
	mine = ibv_reg_mr(a.pd, (void *)(uintptr_t)gpu_mine, BYTES, ALL);
	ck_assert_ptr_nonnull(mine);
	ck_assert_int_eq(cu.retain(&context, 3), 0);
	ck_assert_int_eq(cu.push(context), 0);
	ck_assert_int_eq(cu.stream(&stream, 1), 0);
}

static void teardown(void)
{
	ck_assert_int_eq(ibv_dereg_mr(mr), 0);
	ck_assert_int_eq(ibv_dereg_mr(mine), 0);
	pair_close(&a, &b);
}

static void post_gpu(enum ibv_wr_opcode op, uint64_t from, uint32_t lkey, uint32_t len, uint64_t to, uint64_t arg)
{
	struct ibv_sge sge = { .addr = from, .length = len, .lkey = lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = op }, *bad;

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = to;
		wr.wr.atomic.rkey = mr->rkey;
		wr.wr.atomic.compare_add = arg;
		wr.wr.atomic.swap = 77;
	} else {
		wr.wr.rdma.remote_addr = to;
		wr.wr.rdma.rkey = mr->rkey;
	}
	ck_assert_int_eq(ibv_post_send(a.qp, &wr, &bad), 0);
	want(&a, 1, IBV_WC_SUCCESS);
}

START_TEST(write_and_read)
{
	fill(host, BYTES, 7);
	ck_assert_int_eq(cu.to_device(gpu_mine, host, BYTES, stream), 0);
	post_gpu(IBV_WR_RDMA_WRITE, gpu_mine, mine->lkey, BYTES - 9, gpu + 9, 0);
	memset(host, 0, BYTES);
	ck_assert_int_eq(cu.to_host(host, gpu + 9, BYTES - 9, stream), 0);
	check_filled(host, BYTES - 9, 7);

	post_gpu(IBV_WR_RDMA_READ, gpu_mine + 1000, mine->lkey, 70000, gpu + 9, 0);
	memset(host, 0, BYTES);
	ck_assert_int_eq(cu.to_host(host, gpu_mine + 1000, 70000, stream), 0);
	check_filled(host, 70000, 7);

	/* between a GPU and the host */
	memset(a.buf, 0, 5000);
	post_gpu(IBV_WR_RDMA_READ, (uintptr_t)a.buf, a.mr->lkey, 5000, gpu + 9, 0);
	check_filled(a.buf, 5000, 7);
}
END_TEST

static uint64_t word(uint64_t at)
{
	uint64_t v;

	ck_assert_int_eq(cu.to_host(&v, at, 8, stream), 0);
	return v;
}

START_TEST(atomics)
{
	uint64_t v = 40;

	ck_assert_int_eq(cu.to_device(gpu + 64, &v, 8, stream), 0);
	post_gpu(IBV_WR_ATOMIC_FETCH_AND_ADD, gpu_mine, mine->lkey, 8, gpu + 64, 2);
	ck_assert_uint_eq(word(gpu_mine), 40);
	ck_assert_uint_eq(word(gpu + 64), 42);
	post_gpu(IBV_WR_ATOMIC_CMP_AND_SWP, gpu_mine, mine->lkey, 8, gpu + 64, 41);
	ck_assert_uint_eq(word(gpu_mine), 42);
	ck_assert_uint_eq(word(gpu + 64), 42);
	post_gpu(IBV_WR_ATOMIC_CMP_AND_SWP, gpu_mine, mine->lkey, 8, gpu + 64, 42);
	ck_assert_uint_eq(word(gpu + 64), 77);
}
END_TEST

START_TEST(dmabuf)
{
	int fd = dup(0);
	struct ibv_mr *d = ibv_reg_dmabuf_mr(b.pd, 0, BYTES, gpu, fd, ALL), *other = mr;

	ck_assert_ptr_nonnull(d);
	ck_assert_ptr_null(d->addr); /* the offset */
	fill(a.buf, 4096, 3);
	mr = d;
	post_gpu(IBV_WR_RDMA_WRITE, (uintptr_t)a.buf, a.mr->lkey, 4096, gpu + 4096, 0);
	mr = other;
	ck_assert_int_eq(cu.to_host(host, gpu + 4096, 4096, stream), 0);
	check_filled(host, 4096, 3);
	ck_assert_int_eq(ibv_dereg_mr(d), 0);

	ck_assert_ptr_null(ibv_reg_dmabuf_mr(b.pd, 0, BYTES, (uintptr_t)host, fd, ALL));
	ck_assert_int_eq(errno, EOPNOTSUPP);
	close(fd);
	ck_assert_ptr_null(ibv_reg_dmabuf_mr(b.pd, 0, BYTES, gpu, fd, ALL));
	ck_assert_int_eq(errno, EBADF);
}
END_TEST

/* The device's memory ends in the middle. */
START_TEST(not_all_of_it)
{
	ck_assert_ptr_null(ibv_reg_mr(b.pd, (void *)(uintptr_t)gpu_mine, 1ull << 40, ALL));
	ck_assert_int_eq(errno, EFAULT);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("softnic: memory of GPUs");
	TCase *t = tcase_create("gpu");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, write_and_read);
	tcase_add_test(t, atomics);
	tcase_add_test(t, dmabuf);
	tcase_add_test(t, not_all_of_it);
	suite_add_tcase(s, t);
	return run_suite(s);
}

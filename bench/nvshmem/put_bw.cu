// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * usage: put_bw [--time MS]
 *
 * In the manner of NVSHMEM's shmem_put_bw: PE 0 puts from the device, a window of messages and then quiet, over and
 * over. Prints per size: bytes, MB/s. scripts/gpu-check runs it on one port and on two. One way only: PEs of one host
 * share its ports, and NVSHMEM gives each another one, so that both ways there is nothing idle.
 */
#include "../../tests/gpu/common.cuh"

#define WINDOW 16

__global__ void puts_(char *dst, const char *src, size_t bytes, int windows, int to)
{
	for (int k = 0; k < windows; k++) {
		for (int i = 0; i < WINDOW; i++)
			nvshmemx_putmem_nbi_block(dst + i * bytes, src + i * bytes, bytes, to);
		__syncthreads();
		if (!threadIdx.x)
			nvshmem_quiet();
		__syncthreads();
	}
}

static const size_t sizes[] = { 16ul << 10, 64ul << 10, 256ul << 10, 1ul << 20, 4ul << 20 };
#define SIZES (int)(sizeof(sizes) / sizeof(sizes[0]))
static double ms = 400;

static double measure(char *dst, const char *src, size_t bytes, int windows, int to)
{
	double start;

	nvshmem_barrier_all();
	start = now();
	puts_<<<1, 256>>>(dst, src, bytes, windows, to);
	CUDA(cudaDeviceSynchronize());
	return now() - start;
}

static void body(struct shared *s, int pe, int pes)
{
	char *src, *dst;

	pe_begin(s, pe, pes);
	src = (char *)nvshmem_malloc(WINDOW * sizes[SIZES - 1]);
	dst = (char *)nvshmem_malloc(WINDOW * sizes[SIZES - 1]);
	for (int i = 0; i < SIZES; i++) {
		int windows = 2;
		double t = measure(dst, src, sizes[i], pe ? 0 : windows, !pe);

		if (!pe)
			windows = (int)(ms / 1e3 / t * windows) + 1;
		t = measure(dst, src, sizes[i], pe ? 0 : windows, !pe);
		if (!pe)
			printf("put %8zu bytes %10.1f MB/s\n", sizes[i],
			       (double)windows * WINDOW * (double)sizes[i] / t / 1e6);
		fflush(stdout);
	}
	nvshmem_free(dst);
	nvshmem_free(src);
	nvshmem_finalize();
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--time") && i + 1 < argc)
			ms = atof(argv[++i]);
		else
			return fprintf(stderr, "put_bw: what is %s?\n", argv[i]), 2;
	}
	return pes_run(2, 200, body, shared_new());
}

/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* What the programs here share: processing elements (PEs) as processes of one program, data that can be told apart. */
#ifndef GPU_COMMON_CUH
#define GPU_COMMON_CUH

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>

#define CUDA(call)									\
	do {										\
		cudaError_t err_ = (call);						\
		if (err_ != cudaSuccess) {						\
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,	\
				cudaGetErrorString(err_));				\
			_exit(3);							\
		}									\
	} while (0)

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The word at index i of what PE pe sends in a round: no two of them alike. */
__device__ __forceinline__ uint64_t word_of(uint64_t seed, uint64_t i)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15ull + i + 1;

	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static __host__ __device__ uint64_t seed_of(int pe, uint64_t round)
{
	return (uint64_t)(pe + 1) << 40 | (round + 1);
}

/* What any thread may see that another device has written. */
__device__ __forceinline__ uint64_t load(const uint64_t *p)
{
	return *(const volatile uint64_t *)p;
}

__device__ __forceinline__ void fill(uint64_t *to, size_t words, uint64_t seed)
{
	for (size_t i = threadIdx.x; i < words; i += blockDim.x)
		to[i] = word_of(seed, i);
	__threadfence_system();
	__syncthreads();
}

/* How many words are not what they should be; for one block, the answer in every thread. */
__device__ __forceinline__ unsigned int count_bad(const uint64_t *p, size_t words, uint64_t seed)
{
	__shared__ unsigned int bad;

	if (!threadIdx.x)
		bad = 0;
	__syncthreads();
	for (size_t i = threadIdx.x; i < words; i += blockDim.x)
		if (load(p + i) != word_of(seed, i))
			atomicAdd(&bad, 1u);
	__syncthreads();
	unsigned int n = bad;
	__syncthreads();
	return n;
}

/* What all PEs of the run share, on the host. */
struct shared {
	nvshmemx_uniqueid_t id;
	volatile int id_ready;
	volatile unsigned long long bad[64][16];	/* of a test, a PE */
	volatile double took[64][16];
	volatile char ran[64][16];
};

static struct shared *shared_new(void)
{
	void *p = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED) {
		perror("mmap");
		exit(3);
	}
	return (struct shared *)p;
}

/* In a process of its own. */
static void pe_begin(struct shared *s, int pe, int pes)
{
	nvshmemx_init_attr_t attr = NVSHMEMX_INIT_ATTR_INITIALIZER;
	nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
	int gpus = 0;

	CUDA(cudaGetDeviceCount(&gpus));
	CUDA(cudaSetDevice(pe % gpus));
	if (!pe) {
		nvshmemx_get_uniqueid(&id);
		memcpy(&s->id, &id, sizeof(id));
		__sync_synchronize();
		s->id_ready = 1;
	}
	while (!s->id_ready)
		usleep(1000);
	__sync_synchronize();
	memcpy(&id, &s->id, sizeof(id));
	if (nvshmemx_set_attr_uniqueid_args(pe, pes, &id, &attr) ||
	    nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attr)) {
		fprintf(stderr, "pe %d: NVSHMEM does not start\n", pe);
		_exit(3);
	}
}

/* Runs body in pes processes and waits for them: 0 if all ended well. The first that fails, or the time, ends all. */
static int pes_run(int pes, int limit, void (*body)(struct shared *s, int pe, int pes), struct shared *s)
{
	pid_t pids[16];
	int left = pes, bad = 0, status;
	double end = now() + limit;

	fflush(stdout);
	for (int i = 0; i < pes; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			body(s, i, pes);
			exit(0);
		}
	}
	while (left) {
		pid_t p = waitpid(-1, &status, WNOHANG);

		if (p > 0) {
			left--;
			for (int i = 0; i < pes; i++)
				if (pids[i] == p)
					pids[i] = 0;
			if (status)
				fprintf(stderr, "a PE ended with status 0x%x\n", status);
			bad |= status;
		} else {
			usleep(10000);
		}
		if ((bad || now() > end) && left) {
			if (!bad)
				fprintf(stderr, "no end after %d s\n", limit);
			for (int i = 0; i < pes; i++)
				if (pids[i])
					kill(pids[i], SIGKILL);
			bad |= 1;
		}
	}
	return bad;
}

#endif

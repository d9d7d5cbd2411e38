// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * usage: nvshmem_patterns [--rounds N] [--token BYTES] [--limit SECONDS] deepep|pplx...
 *
 * The ways in which two libraries of expert parallelism use NVSHMEM, without their arithmetic: the same calls in the
 * same order, and a receiver that believes what the flag says. Two PEs send to each other; every word of every slot is
 * checked as soon as its flag came.
 */
#include "common.cuh"

#define CHANNELS 4
#define CHUNK 8		/* tokens to a put */
#define SLOTS 64	/* of a channel's ring, in tokens */
#define TOKENS 48	/* pplx: at most to a round */

struct world {
	int me, other;
	size_t token;		/* bytes */
	uint64_t rounds;
	uint64_t *src, *dst, *tail, *head, *count, *recv;
	unsigned long long *bad;
};

__device__ __forceinline__ uint64_t token_seed(int pe, int channel, uint64_t n)
{
	return (uint64_t)(pe + 1) << 56 | (uint64_t)channel << 48 | n;
}

__device__ __forceinline__ bool is_token(const uint64_t *p, size_t words, uint64_t seed)
{
	bool good = true;

	for (size_t i = threadIdx.x % 32; i < words; i += 32)
		good &= load(p + i) == word_of(seed, i);
	return __all_sync(~0u, good);
}

__device__ __forceinline__ void make_token(uint64_t *p, size_t words, uint64_t seed)
{
	for (size_t i = threadIdx.x % 32; i < words; i += 32)
		p[i] = word_of(seed, i);
}

__device__ __forceinline__ void wait_for(const uint64_t *p, uint64_t least)
{
	if (!(threadIdx.x % 32))
		while (load(p) < least)
			;
	__syncwarp();
	__threadfence_system();
}

/*
 * DeepEP, dispatch between nodes: per channel a ring of slots at the receiver. The sender puts a chunk of tokens, fences,
 * and adds to the tail; the receiver trusts all slots below the tail, and gives them back by adding to the head.
 */
__global__ void deepep(struct world w)
{
	int channel = blockIdx.x / 2;
	size_t words = w.token / 8, ring = (size_t)channel * SLOTS * words;
	uint64_t tokens = w.rounds / CHANNELS * CHUNK;

	if (blockIdx.x % 2 == 0) {
		for (uint64_t n = 0; n < tokens; n += CHUNK) {
			uint64_t *slot = w.src + ring + n % SLOTS * words;

			if (n >= SLOTS)
				wait_for(w.head + channel, n + CHUNK - SLOTS);
			for (int k = 0; k < CHUNK; k++)
				make_token(slot + k * words, words, token_seed(w.me, channel, n + k));
			__threadfence_system();
			__syncwarp();
			nvshmemx_int8_put_nbi_warp((int8_t *)(w.dst + ring + n % SLOTS * words), (int8_t *)slot,
						   CHUNK * w.token, w.other);
			nvshmem_fence();
			__syncwarp();
			if (!threadIdx.x)
				nvshmemx_signal_op(w.tail + channel, CHUNK, NVSHMEM_SIGNAL_ADD, w.other);
			__syncwarp();
		}
		if (!threadIdx.x)
			nvshmem_quiet();
	} else {
		for (uint64_t n = 0; n < tokens; n++) {
			wait_for(w.tail + channel, n + 1);
			if (!is_token(w.dst + ring + n % SLOTS * words, words, token_seed(w.other, channel, n)) &&
			    !threadIdx.x)
				atomicAdd(w.bad, 1ull);
			if (n % CHUNK == CHUNK - 1 && !threadIdx.x)
				nvshmemx_signal_op(w.head + channel, CHUNK, NVSHMEM_SIGNAL_ADD, w.other);
			__syncwarp();
		}
	}
}

/* pplx-kernels: each token with a signal of its own, ADD; how many there are, by SET of a word that was 0. */
__global__ void pplx(struct world w, uint64_t round, int tokens, int expected)
{
	size_t words = w.token / 8;
	int warp = threadIdx.x / 32, warps = blockDim.x / 32;

	if (!round)
		return;
	if (!blockIdx.x) {
		for (int t = warp; t < tokens; t += warps) {
			make_token(w.src + t * words, words, token_seed(w.me, t, round));
			__threadfence_system();
			__syncwarp();
			nvshmemx_putmem_signal_nbi_warp(w.dst + t * words, w.src + t * words, w.token, w.recv, 1,
							NVSHMEM_SIGNAL_ADD, w.other);
		}
		if (!threadIdx.x)
			nvshmemx_signal_op(w.count, tokens + 1, NVSHMEM_SIGNAL_SET, w.other);
		__syncthreads();
		if (!threadIdx.x)
			nvshmem_quiet();
		return;
	}
	if (!threadIdx.x)
		nvshmem_uint64_wait_until(w.count, NVSHMEM_CMP_NE, 0);
	__syncthreads();
	int n = (int)load(w.count) - 1;

	if (!threadIdx.x) {
		if (n != expected)
			atomicAdd(w.bad, 1ull);
		nvshmem_uint64_wait_until(w.recv, NVSHMEM_CMP_EQ, (uint64_t)n);
	}
	__syncthreads();
	for (int t = warp; t < n; t += warps)
		if (!is_token(w.dst + t * words, words, token_seed(w.other, t, round)) && !(threadIdx.x % 32))
			atomicAdd(w.bad, 1ull);
	__syncthreads();
	if (!threadIdx.x) {
		*w.count = 0;
		*w.recv = 0;
		__threadfence_system();
	}
}

static size_t token_bytes = 7552; /* 7168 of FP8, scales and what DeepEP adds */
static uint64_t rounds = 10000;
static const char *names[] = { "deepep", "pplx" };
static bool wanted[2];

static int tokens_of(int pe, uint64_t round)
{
	return (int)((uint32_t)(round * 2654435761u + (uint64_t)pe * 40503u) >> 4) % TOKENS + 1;
}

static void body(struct shared *s, int pe, int pes)
{
	struct world w = {};
	size_t bytes = (size_t)CHANNELS * SLOTS * token_bytes;
	unsigned long long bad;
	uint64_t *words;

	pe_begin(s, pe, pes);
	w.me = pe;
	w.other = !pe;
	w.token = token_bytes;
	w.rounds = rounds;
	w.src = (uint64_t *)nvshmem_malloc(bytes);
	w.dst = (uint64_t *)nvshmem_calloc(1, bytes);
	words = (uint64_t *)nvshmem_calloc(64, 8);
	w.tail = words;
	w.head = words + 16;
	w.count = words + 32;
	w.recv = words + 48;
	CUDA(cudaMalloc(&w.bad, sizeof(*w.bad)));
	for (int t = 0; t < 2; t++) {
		double start;

		if (!wanted[t])
			continue;
		/* where PEs share a GPU, what a kernel needs must be there before another one waits for it */
		pplx<<<2, 256>>>(w, 0, 0, 0);
		CUDA(cudaMemset(w.bad, 0, sizeof(*w.bad)));
		CUDA(cudaMemset(words, 0, 64 * 8));
		CUDA(cudaDeviceSynchronize());
		nvshmem_barrier_all();
		start = now();
		if (!t) {
			deepep<<<2 * CHANNELS, 32>>>(w);
			CUDA(cudaDeviceSynchronize());
		}
		for (uint64_t r = 1; t && r <= rounds / 10; r++) {
			pplx<<<2, 256>>>(w, r, tokens_of(pe, r), tokens_of(!pe, r));
			CUDA(cudaDeviceSynchronize());
			s->bad[t][1 + pe] = r;
			nvshmem_barrier_all();
		}
		nvshmem_barrier_all();
		CUDA(cudaMemcpy(&bad, w.bad, sizeof(bad), cudaMemcpyDefault));
		__sync_fetch_and_add((unsigned long long *)&s->bad[t][0], bad);
		s->took[t][0] = now() - start;
		s->ran[t][0] = 1;
	}
	nvshmem_free(words);
	nvshmem_free(w.dst);
	nvshmem_free(w.src);
	nvshmem_finalize();
}

int main(int argc, char **argv)
{
	unsigned long long bad = 0;
	int limit = 120, ret;
	struct shared *s;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--rounds") && i + 1 < argc)
			rounds = strtoull(argv[++i], NULL, 0);
		else if (!strcmp(argv[i], "--token") && i + 1 < argc)
			token_bytes = strtoull(argv[++i], NULL, 0) / 16 * 16;
		else if (!strcmp(argv[i], "--limit") && i + 1 < argc)
			limit = atoi(argv[++i]);
		else if (!strcmp(argv[i], "deepep"))
			wanted[0] = true;
		else if (!strcmp(argv[i], "pplx"))
			wanted[1] = true;
		else
			return fprintf(stderr, "nvshmem_patterns: what is %s?\n", argv[i]), 2;
	}
	if (!wanted[0] && !wanted[1])
		wanted[0] = wanted[1] = true;
	s = shared_new();
	ret = pes_run(2, limit, body, s);
	for (int t = 0; t < 2; t++)
		if (wanted[t]) {
			printf("%s: %llu rounds, %llu wrong slots, %.2f s%s\n", names[t],
			       (unsigned long long)(t ? rounds / 10 : rounds), s->bad[t][0], s->took[t][0],
			       s->ran[t][0] ? "" : ", not finished");
			if (t && !s->ran[t][0])
				printf("pplx: PEs ended rounds %llu, %llu\n", s->bad[t][1], s->bad[t][2]);
			bad += s->bad[t][0] + !s->ran[t][0];
		}
	return bad || ret;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * usage: nvshmem_check [--pes N] [--max BYTES] [--rounds N] [--limit SECONDS] [TEST...]
 *
 * Every PE sends to the next one and is sent to by the one before it, with NVSHMEM's calls on the device; each byte is
 * compared on the GPU. A table at the end: per test and size the number of wrong words.
 */
#include "common.cuh"

#define MAX_WORDS(bytes) ((bytes) / 8)

struct world {
	int me, pes, to, from;
	uint64_t *src, *dst;	/* symmetric */
	uint64_t *sig;		/* symmetric words, 64 of them, 0 at the start of each case */
	unsigned long long *bad; /* on the device */
	uint64_t rounds;
};

enum scope { THREAD, WARP, BLOCK };

static __device__ void add_bad(unsigned long long *bad, unsigned int n)
{
	if (!threadIdx.x && n)
		atomicAdd(bad, (unsigned long long)n);
}

/* ---- kernels; one block each ---- */

__global__ void k_fill(uint64_t *p, size_t words, uint64_t seed)
{
	fill(p, words, seed);
}

__global__ void k_zero(uint64_t *p, size_t words)
{
	for (size_t i = threadIdx.x; i < words; i += blockDim.x)
		p[i] = 0;
	__threadfence_system();
}

__global__ void k_compare(const uint64_t *p, size_t words, uint64_t seed, unsigned long long *bad)
{
	add_bad(bad, count_bad(p, words, seed));
}

template <scope S, bool NBI> __global__ void k_put(struct world w, size_t bytes)
{
	if (S == THREAD && !threadIdx.x)
		NBI ? nvshmem_putmem_nbi(w.dst, w.src, bytes, w.to) : nvshmem_putmem(w.dst, w.src, bytes, w.to);
	if (S == WARP && threadIdx.x < 32)
		NBI ? nvshmemx_putmem_nbi_warp(w.dst, w.src, bytes, w.to) :
		      nvshmemx_putmem_warp(w.dst, w.src, bytes, w.to);
	if (S == BLOCK)
		NBI ? nvshmemx_putmem_nbi_block(w.dst, w.src, bytes, w.to) :
		      nvshmemx_putmem_block(w.dst, w.src, bytes, w.to);
	__syncthreads();
	if (!threadIdx.x)
		nvshmem_quiet();
}

template <scope S> __global__ void k_get(struct world w, size_t bytes)
{
	if (S == THREAD && !threadIdx.x)
		nvshmem_getmem(w.dst, w.src, bytes, w.from);
	if (S == WARP && threadIdx.x < 32)
		nvshmemx_getmem_warp(w.dst, w.src, bytes, w.from);
	if (S == BLOCK)
		nvshmemx_getmem_block(w.dst, w.src, bytes, w.from);
	__syncthreads();
	if (!threadIdx.x)
		nvshmem_quiet();
}

__global__ void k_p(struct world w, size_t words)
{
	for (size_t i = threadIdx.x; i < words; i += blockDim.x)
		nvshmem_uint64_p(w.dst + i, w.src[i], w.to);
	__syncthreads();
	if (!threadIdx.x)
		nvshmem_quiet();
}

__global__ void k_g(struct world w, size_t words, uint64_t seed)
{
	for (size_t i = threadIdx.x; i < words; i += blockDim.x)
		if (nvshmem_uint64_g(w.src + i, w.from) != word_of(seed, i))
			atomicAdd(w.bad, 1ull);
}

/*
 * Data and flag, in every way NVSHMEM has for it. The receiver spins on the flag and looks at the data at once; then it
 * says, by a word of its own, that the next round may come.
 */
enum flag { SIGNAL_ADD, SIGNAL_SET, FENCE_ADD, FENCE_SET, FENCE_P };

template <flag F> __global__ void k_signal(struct world w, size_t bytes, uint64_t rounds, uint64_t first)
{
	uint64_t *flag = w.sig, *free_ = w.sig + 8;
	size_t words = bytes / 8;

	for (uint64_t r = 1; r <= rounds; r++) {
		fill(w.src, words, seed_of(w.me, first + r));
		if (F == SIGNAL_ADD)
			nvshmemx_putmem_signal_nbi_block(w.dst, w.src, bytes, flag, 1, NVSHMEM_SIGNAL_ADD, w.to);
		else if (F == SIGNAL_SET)
			nvshmemx_putmem_signal_nbi_block(w.dst, w.src, bytes, flag, r, NVSHMEM_SIGNAL_SET, w.to);
		else
			nvshmemx_putmem_nbi_block(w.dst, w.src, bytes, w.to);
		__syncthreads();
		if (!threadIdx.x) {
			if (F >= FENCE_ADD)
				nvshmem_fence();
			if (F == FENCE_ADD)
				nvshmemx_signal_op(flag, 1, NVSHMEM_SIGNAL_ADD, w.to);
			else if (F == FENCE_SET)
				nvshmemx_signal_op(flag, r, NVSHMEM_SIGNAL_SET, w.to);
			else if (F == FENCE_P)
				nvshmem_uint64_p(flag, r, w.to);
			while (load(flag) < r)
				;
			__threadfence_system();
		}
		__syncthreads();
		add_bad(w.bad, count_bad(w.dst, words, seed_of(w.from, first + r)));
		if (!threadIdx.x) {
			nvshmemx_signal_op(free_, 1, NVSHMEM_SIGNAL_ADD, w.from);
			while (load(free_) < r)
				;
			nvshmem_quiet(); /* before the source is filled again */
		}
		__syncthreads();
	}
}

/* Without gdrcopy NVSHMEM's IBRC has no other atomics than these. */
__global__ void k_atomic(struct world w, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		for (int pe = 0; pe < w.pes; pe++)
			nvshmem_uint64_atomic_add(w.sig + 16 + threadIdx.x % 8, threadIdx.x + 1, pe);
	__syncthreads();
	if (!threadIdx.x)
		nvshmem_quiet();
}

__global__ void k_atomic_check(struct world w, uint64_t n, int threads)
{
	uint64_t want = 0;

	for (int t = (int)threadIdx.x; t < threads; t += 8)
		want += (uint64_t)(t + 1) * n * (uint64_t)w.pes;
	if (load(w.sig + 16 + threadIdx.x) != want)
		atomicAdd(w.bad, 1ull);
}

/*
 * Those that need gdrcopy. Words 48 and 49 of a PE are its predecessor's alone, so what comes back is known; word 50 of
 * PE 0 is everybody's.
 */
__global__ void k_fetch(struct world w, uint64_t n)
{
	uint32_t *half = (uint32_t *)(w.sig + 49);
	uint64_t *word = w.sig + 48, sum = 0;
	unsigned int bad = 0;

	for (uint64_t i = 0; i < n; i++) {
		bad += nvshmem_uint64_atomic_fetch_add(word, 3, w.to) != 0;
		bad += nvshmem_uint64_atomic_fetch_inc(word, w.to) != 3;
		bad += nvshmem_uint64_atomic_compare_swap(word, 5, 9, w.to) != 4; /* no */
		bad += nvshmem_uint64_atomic_compare_swap(word, 4, 12, w.to) != 4;
		bad += nvshmem_uint64_atomic_fetch_or(word, 3, w.to) != 12;
		bad += nvshmem_uint64_atomic_fetch_and(word, 6, w.to) != 15;
		bad += nvshmem_uint64_atomic_fetch_xor(word, 5, w.to) != 6;
		bad += nvshmem_uint64_atomic_fetch(word, w.to) != 3;
		bad += nvshmem_uint64_atomic_swap(word, 1ull << 40, w.to) != 3;
		nvshmem_uint64_atomic_set(word, 0, w.to);
		bad += nvshmem_uint32_atomic_fetch_add(half, 2, w.to) != (uint32_t)(2 * i);
		sum += nvshmem_uint64_atomic_fetch_add(w.sig + 50, 1, 0);
	}
	atomicAdd(w.bad, (unsigned long long)bad);
	nvshmem_uint64_atomic_add(w.sig + 51, sum, 0);
	nvshmem_quiet();
}

__global__ void k_fetch_check(struct world w, uint64_t n)
{
	uint64_t all = n * (uint64_t)w.pes;

	/* each of the numbers below it was handed out once */
	if (!w.me && (load(w.sig + 50) != all || load(w.sig + 51) != all * (all - 1) / 2))
		atomicAdd(w.bad, 1ull);
}

__global__ void k_barrier(struct world w, uint64_t n)
{
	for (uint64_t r = 1; r <= n; r++) {
		if (!threadIdx.x)
			nvshmem_uint64_p(w.sig + 32, r, w.to);
		nvshmemx_barrier_all_block();
		if (!threadIdx.x && load(w.sig + 32) != r)
			atomicAdd(w.bad, 1ull);
		nvshmemx_barrier_all_block();
	}
}

__global__ void k_alltoall_fill(struct world w, size_t words)
{
	for (int pe = 0; pe < w.pes; pe++)
		fill(w.src + pe * words, words, seed_of(w.me * 16 + pe, 7));
}

__global__ void k_alltoall(struct world w, size_t words)
{
	nvshmemx_uint64_alltoall_block(NVSHMEM_TEAM_WORLD, w.dst, w.src, words);
	for (int pe = 0; pe < w.pes; pe++)
		add_bad(w.bad, count_bad(w.dst + pe * words, words, seed_of(pe * 16 + w.me, 7)));
}

/* Many puts and one quiet; then a flag. What quiet let pass must be there. */
__global__ void k_quiet(struct world w, size_t bytes, uint64_t rounds)
{
	size_t words = bytes / 8;

	for (uint64_t r = 1; r <= rounds; r++) {
		for (int k = 0; k < 4; k++)
			fill(w.src + k * words, words, seed_of(w.me, r * 8 + k));
		if (!threadIdx.x) {
			for (int k = 0; k < 4; k++)
				nvshmem_putmem_nbi(w.dst + k * words, w.src + k * words, bytes, w.to);
			nvshmem_quiet();
			nvshmem_uint64_p(w.sig + 40, r, w.to);
			while (load(w.sig + 40) < r)
				;
			__threadfence_system();
		}
		__syncthreads();
		for (int k = 0; k < 4; k++)
			add_bad(w.bad, count_bad(w.dst + k * words, words, seed_of(w.from, r * 8 + k)));
		nvshmemx_barrier_all_block();
	}
}

/* ---- the cases ---- */

static void prepare(struct world *w, size_t bytes, uint64_t seed)
{
	k_fill<<<1, 1024>>>(w->src, MAX_WORDS(bytes), seed);
	k_zero<<<1, 1024>>>(w->dst, MAX_WORDS(bytes));
	k_zero<<<1, 64>>>(w->sig, 64);
	CUDA(cudaMemset(w->bad, 0, sizeof(*w->bad)));
	CUDA(cudaDeviceSynchronize());
	nvshmem_barrier_all();
}

static unsigned long long result(struct world *w)
{
	unsigned long long bad;

	CUDA(cudaDeviceSynchronize());
	CUDA(cudaMemcpy(&bad, w->bad, sizeof(bad), cudaMemcpyDefault));
	nvshmem_barrier_all();
	return bad;
}

static uint64_t case_no = 1000;

template <scope S, bool NBI> static unsigned long long put(struct world *w, size_t bytes)
{
	uint64_t round = case_no++;

	prepare(w, bytes, seed_of(w->me, round));
	k_put<S, NBI><<<1, 256>>>(*w, bytes);
	CUDA(cudaDeviceSynchronize());
	nvshmem_barrier_all();
	k_compare<<<1, 1024>>>(w->dst, MAX_WORDS(bytes), seed_of(w->from, round), w->bad);
	return result(w);
}

template <scope S> static unsigned long long get(struct world *w, size_t bytes)
{
	uint64_t round = case_no++;

	prepare(w, bytes, seed_of(w->me, round));
	k_get<S><<<1, 256>>>(*w, bytes);
	k_compare<<<1, 1024>>>(w->dst, MAX_WORDS(bytes), seed_of(w->from, round), w->bad);
	return result(w);
}

static unsigned long long p(struct world *w, size_t bytes)
{
	uint64_t round = case_no++;

	prepare(w, bytes, seed_of(w->me, round));
	k_p<<<1, 64>>>(*w, MAX_WORDS(bytes));
	CUDA(cudaDeviceSynchronize());
	nvshmem_barrier_all();
	k_compare<<<1, 1024>>>(w->dst, MAX_WORDS(bytes), seed_of(w->from, round), w->bad);
	return result(w);
}

static unsigned long long g(struct world *w, size_t bytes)
{
	uint64_t round = case_no++;

	prepare(w, bytes, seed_of(w->me, round));
	k_g<<<1, 64>>>(*w, MAX_WORDS(bytes), seed_of(w->from, round));
	return result(w);
}

template <flag F> static unsigned long long signal_(struct world *w, size_t bytes)
{
	uint64_t rounds = bytes > 1 << 20 ? 3 : w->rounds;

	prepare(w, bytes, 0);
	k_signal<F><<<1, 256>>>(*w, bytes, rounds, case_no);
	case_no += rounds + 1;
	return result(w);
}

static unsigned long long atomic(struct world *w, size_t)
{
	prepare(w, 8, 0);
	k_atomic<<<1, 64>>>(*w, w->rounds);
	CUDA(cudaDeviceSynchronize());
	nvshmem_barrier_all();
	k_atomic_check<<<1, 8>>>(*w, w->rounds, 64);
	return result(w);
}

static unsigned long long fetch(struct world *w, size_t)
{
	prepare(w, 8, 0);
	k_fetch<<<1, 1>>>(*w, w->rounds);
	CUDA(cudaDeviceSynchronize());
	nvshmem_barrier_all();
	k_fetch_check<<<1, 1>>>(*w, w->rounds);
	return result(w);
}

static unsigned long long barrier(struct world *w, size_t)
{
	prepare(w, 8, 0);
	k_barrier<<<1, 32>>>(*w, w->rounds);
	return result(w);
}

static unsigned long long alltoall(struct world *w, size_t bytes)
{
	size_t words = MAX_WORDS(bytes) / (size_t)w->pes;

	if (!words)
		words = 1;
	prepare(w, 8, 0);
	k_alltoall_fill<<<1, 1024>>>(*w, words);
	CUDA(cudaDeviceSynchronize());
	nvshmem_barrier_all();
	k_alltoall<<<1, 256>>>(*w, words);
	return result(w);
}

static unsigned long long quiet(struct world *w, size_t bytes)
{
	prepare(w, 8, 0);
	k_quiet<<<1, 256>>>(*w, bytes / 4 / 8 * 8, bytes > 1 << 20 ? 3 : w->rounds);
	return result(w);
}

#define SMALL (4ul << 10)
#define ANY (~0ul)

static const struct test {
	const char *name;
	unsigned long long (*run)(struct world *w, size_t bytes);
	size_t min, max;
} tests[] = {
	{ "put-thread", put<THREAD, false>, 8, ANY },
	{ "put-warp", put<WARP, false>, 8, ANY },
	{ "put-block", put<BLOCK, false>, 8, ANY },
	{ "put-nbi-thread", put<THREAD, true>, 8, ANY },
	{ "put-nbi-warp", put<WARP, true>, 8, ANY },
	{ "put-nbi-block", put<BLOCK, true>, 8, ANY },
	{ "get-thread", get<THREAD>, 8, ANY },
	{ "get-warp", get<WARP>, 8, ANY },
	{ "get-block", get<BLOCK>, 8, ANY },
	{ "p", p, 8, SMALL },
	{ "g", g, 8, SMALL },
	{ "signal-add", signal_<SIGNAL_ADD>, 8, ANY },
	{ "signal-set", signal_<SIGNAL_SET>, 8, ANY },
	{ "fence-add", signal_<FENCE_ADD>, 8, ANY },
	{ "fence-set", signal_<FENCE_SET>, 8, ANY },
	{ "fence-p", signal_<FENCE_P>, 8, ANY },
	{ "atomic-add", atomic, 8, 8 },
	{ "atomic-fetch", fetch, 8, 8 }, /* only if asked for: without gdrcopy NVSHMEM ends the program */
	{ "barrier", barrier, 8, 8 },
	{ "alltoall", alltoall, 64, ANY },
	{ "quiet", quiet, 64, ANY },
};
#define TESTS (int)(sizeof(tests) / sizeof(tests[0]))

static const size_t sizes[] = { 8, 64, 512, 4ul << 10, 8ul << 10, 12296, 64ul << 10, 1ul << 20, 4ul << 20, 64ul << 20 };
#define SIZES (int)(sizeof(sizes) / sizeof(sizes[0]))

static size_t max_bytes = 64ul << 20;
static uint64_t rounds = 20;
static bool wanted[TESTS];

static void body(struct shared *s, int pe, int pes)
{
	struct world w = {};

	pe_begin(s, pe, pes);
	w.me = pe;
	w.pes = pes;
	w.to = (pe + 1) % pes;
	w.from = (pe + pes - 1) % pes;
	w.rounds = rounds;
	w.src = (uint64_t *)nvshmem_malloc(max_bytes);
	w.dst = (uint64_t *)nvshmem_malloc(max_bytes);
	w.sig = (uint64_t *)nvshmem_malloc(64 * 8);
	CUDA(cudaMalloc(&w.bad, sizeof(*w.bad)));
	for (int t = 0; t < TESTS; t++)
		for (int i = 0; i < SIZES; i++) {
			double start = now();

			if (!wanted[t] || sizes[i] < tests[t].min || sizes[i] > tests[t].max || sizes[i] > max_bytes)
				continue;
			__sync_fetch_and_add((unsigned long long *)&s->bad[t][i], tests[t].run(&w, sizes[i]));
			if (!pe) {
				s->took[t][i] = now() - start;
				s->ran[t][i] = 1;
			}
		}
	nvshmem_free(w.sig);
	nvshmem_free(w.dst);
	nvshmem_free(w.src);
	nvshmem_finalize();
}

static int table(const struct shared *s)
{
	unsigned long long bad = 0;
	int ran = 0;

	printf("%-16s", "wrong words");
	for (int i = 0; i < SIZES; i++)
		printf(" %9zu", sizes[i]);
	printf("   seconds\n");
	for (int t = 0; t < TESTS; t++) {
		double took = 0;

		if (!wanted[t])
			continue;
		printf("%-16s", tests[t].name);
		for (int i = 0; i < SIZES; i++) {
			if (!s->ran[t][i]) {
				printf(" %9s", "-");
				continue;
			}
			printf(" %9llu", s->bad[t][i]);
			bad += s->bad[t][i];
			took += s->took[t][i];
			ran++;
		}
		printf(" %9.2f\n", took);
	}
	printf("%d cases, %llu wrong words\n", ran, bad);
	return bad || !ran;
}

int main(int argc, char **argv)
{
	int pes = 2, limit = 180, ret;
	bool some = false;
	struct shared *s;

	for (int i = 1; i < argc; i++) {
		bool known = false;

		if (!strcmp(argv[i], "--pes") && i + 1 < argc)
			pes = atoi(argv[++i]), known = true;
		else if (!strcmp(argv[i], "--max") && i + 1 < argc)
			max_bytes = strtoull(argv[++i], NULL, 0), known = true;
		else if (!strcmp(argv[i], "--rounds") && i + 1 < argc)
			rounds = strtoull(argv[++i], NULL, 0), known = true;
		else if (!strcmp(argv[i], "--limit") && i + 1 < argc)
			limit = atoi(argv[++i]), known = true;
		for (int t = 0; !known && t < TESTS; t++)
			if (!strcmp(argv[i], tests[t].name))
				wanted[t] = some = known = true;
		if (!known) {
			fprintf(stderr, "nvshmem_check: what is %s?\n", argv[i]);
			return 2;
		}
	}
	if (pes < 2 || pes > 16) {
		fprintf(stderr, "nvshmem_check: from 2 to 16 PEs\n");
		return 2;
	}
	for (int t = 0; t < TESTS && !some; t++)
		wanted[t] = tests[t].run != fetch;
	s = shared_new();
	ret = pes_run(pes, limit, body, s);
	return table(s) || ret;
}

/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef CLIENTS_RNG_H
#define CLIENTS_RNG_H

#include <stdint.h>
#include <string.h>
#include <time.h>

struct rng {
	uint64_t s;
};

static inline uint64_t mix64(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

/* splitmix64: any seed will do, so a stream can be keyed by mixing (seed, qp, round) into one word. */
static inline uint64_t rng_u64(struct rng *r)
{
	return mix64(r->s += 0x9e3779b97f4a7c15ull);
}

/* lo <= result <= hi */
static inline uint64_t rng_range(struct rng *r, uint64_t lo, uint64_t hi)
{
	return lo + rng_u64(r) % (hi - lo + 1);
}

static inline int rng_pct(struct rng *r, unsigned int pct)
{
	return rng_u64(r) % 100 < pct;
}

/* lo <= result <= hi, each power of two about as likely as the next, odd sizes most of the time. lo >= 1. */
static inline uint64_t rng_size(struct rng *r, uint64_t lo, uint64_t hi)
{
	uint64_t top = hi;

	while (top / 2 >= lo && rng_pct(r, 50))
		top /= 2;
	if (rng_pct(r, 10))
		return top;
	return rng_range(r, top / 2 > lo ? top / 2 : lo, top);
}

/*
 * Test pattern: byte `off` of the stream `key`. No byte is ever 0, so memory cleared beforehand shows every
 * byte that did not arrive, and every byte written where nothing should have been.
 */
static inline uint64_t pattern_word(uint64_t key, uint64_t idx)
{
	return mix64(key + idx * 0x9e3779b97f4a7c15ull) | 0x0101010101010101ull;
}

static inline void pattern_fill(void *dst, uint64_t key, uint64_t off, uint64_t len)
{
	unsigned char *p = dst;
	uint64_t w;

	while (len) {
		uint64_t in = off & 7, n = 8 - in < len ? 8 - in : len;

		w = pattern_word(key, off >> 3);
		memcpy(p, (unsigned char *)&w + in, n);
		p += n;
		off += n;
		len -= n;
	}
}

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

#endif

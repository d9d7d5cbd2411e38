// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include "plan.h"

#include <errno.h>
#include <string.h>

/* 2^31 bytes times a sum of 32 32-bit weights does not fit 64 bits */
__extension__ typedef unsigned __int128 wide;

static uint64_t round_to(uint64_t v, uint64_t align)
{
	return (v + align / 2) & ~(align - 1);
}

unsigned dp_plan_cut(const struct dp_plan_policy *pol, uint64_t raddr, uint64_t len, struct dp_part *part)
{
	/* seen from the last multiple of align: equal (raddr mod align, len) cannot but give equal cuts */
	uint64_t base = raddr & (pol->align - 1);
	uint64_t total = 0, sum = 0, from = 0;
	unsigned n = 0;

	memset(part, 0, pol->nrails * sizeof(*part));
	if (!len)
		return 0;
	for (uint32_t r = 0; r < pol->nrails; r++)
		total += pol->weight[r];
	if (len < pol->split_min || pol->nrails == 1 || !total || base + len <= pol->align) {
		part[0].len = len;
		return 1;
	}
	for (uint32_t i = 0; i < pol->nrails; i++) {
		uint32_t r = (pol->first + i) % pol->nrails;
		uint64_t to = len;

		/* not even the bytes up to the first multiple of align */
		if (!pol->weight[r])
			continue;
		sum += pol->weight[r];
		if (sum < total) {
			to = round_to(base + (uint64_t)((wide)len * sum / total), pol->align);
			to = to > base ? to - base : 0;
			if (to > len)
				to = len;
		}
		if (to == from)
			continue;
		part[r].offset = from;
		part[r].len = to - from;
		from = to;
		n++;
	}
	return n;
}

/* FNV-1a, and its upper half, whose bits all depend on every byte */
uint32_t dp_plan_first(const uint8_t *mine, const uint8_t *peers, size_t len, uint32_t nrails)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < 2 * len; i++)
		h = (h ^ (i < len ? mine[i] : peers[i - len])) * UINT64_C(0x100000001b3);
	return (uint32_t)((h >> 32) % nrails);
}

bool dp_plan_wait(const struct dp_patience *p)
{
	/* in bytes: what a port sends in two round trips */
	wide trips = (wide)p->rtt_ns * 2 * p->rate / 1000000000u;

	return p->rtt_ns && p->rate && p->part + trips <= (wide)p->bytes + p->others;
}

int dp_plan_sges(const struct ibv_sge *in, int nin, const struct dp_part *part, const uint32_t *keys,
		 struct ibv_sge *out, int max)
{
	uint64_t skip = part->offset, left = part->len, total = 0;
	int n = 0;

	/* by far the most frequent case */
	if (nin == 1 && left && max > 0 && skip <= in->length && left <= in->length - skip) {
		out->addr = in->addr + skip;
		out->length = (uint32_t)left;
		out->lkey = keys ? *keys : in->lkey;
		return 1;
	}

	for (int i = 0; i < nin; i++)
		total += in[i].length;
	if (skip > total || left > total - skip)
		return -EINVAL;
	for (int i = 0; left; i++) {
		uint64_t len = in[i].length;

		if (skip >= len) {
			skip -= len;
			continue;
		}
		len -= skip;
		if (len > left)
			len = left;
		if (n == max)
			return -E2BIG;
		out[n].addr = in[i].addr + skip;
		out[n].length = (uint32_t)len;
		out[n].lkey = keys ? keys[i] : in[i].lkey;
		n++;
		left -= len;
		skip = 0;
	}
	return n;
}

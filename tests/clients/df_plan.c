// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <string.h>

#include "df.h"

const char *const df_kind_name[K_MAX] = {
	"fetch_add", "cmp_swap", "inline", "write8", "send", "send_imm", "write_imm",
};

uint64_t df_area(const struct df_cfg *c)
{
	return (c->max_writes * (c->max + DF_GAP) + DF_GAP + 63) & ~63ull;
}

uint64_t df_src_stride(const struct df_cfg *c)
{
	return ((c->max_writes + 1) * (c->max + DF_MAX_SGE * DF_GAP) + 63) & ~63ull;
}

static enum df_kind pick_kind(const struct df_cfg *c, uint64_t round, struct rng *r)
{
	unsigned int n = (unsigned int)__builtin_popcount(c->kinds), want, k;

	want = (unsigned int)(c->kinds_random ? rng_u64(r) % n : round % n);
	for (k = 0; k < K_MAX; k++)
		if (c->kinds & (1u << k) && !want--)
			break;
	return k;
}

static void cut_sges(const struct df_cfg *c, struct df_write *w, struct rng *r)
{
	unsigned int i, n = (unsigned int)rng_range(r, 1, c->max_sge);
	uint64_t left = w->len;

	if (n > w->len)
		n = 1;
	w->nsge = n;
	for (i = 0; i < n; i++) {
		w->cut[i] = i == n - 1 ? left : rng_range(r, 1, left - (n - 1 - i));
		left -= w->cut[i];
	}
}

void df_plan(const struct df_cfg *c, unsigned int dir, unsigned int qp, uint64_t round, struct df_round *p)
{
	struct rng r = { mix64(c->seed ^ mix64(((uint64_t)dir << 62) + ((uint64_t)qp << 44) + round)) };
	uint64_t off = 0;
	unsigned int i, j;

	memset(p, 0, sizeof(*p));
	p->kind = pick_kind(c, round, &r);
	p->n = (unsigned int)rng_range(&r, 1, c->max_writes);
	for (i = 0; i < p->n; i++) {
		struct df_write *w = &p->w[i];

		w->len = rng_size(&r, c->min, c->max);
		w->off = off + rng_range(&r, 0, DF_GAP);
		off = w->off + w->len;
	}
	p->end = off;
	for (i = p->n - 1; i > 0; i--) {
		struct df_write t = p->w[i];

		j = (unsigned int)rng_range(&r, 0, i);
		p->w[i] = p->w[j];
		p->w[j] = t;
	}
	if (rng_pct(&r, c->overlap)) {
		/* over a part of an earlier target of this round: the later WRITE must win */
		const struct df_write *e = &p->w[rng_range(&r, 0, p->n - 1)];
		struct df_write *w = &p->w[p->n++];
		uint64_t skip = rng_range(&r, 0, e->len - 1);

		w->off = e->off + skip;
		w->len = rng_range(&r, 1, e->len - skip);
	}
	for (i = 0; i < p->n; i++) {
		struct df_write *w = &p->w[i];

		w->key = rng_u64(&r);
		w->inl = w->len <= c->inline_max && rng_pct(&r, 50);
		cut_sges(c, w, &r);
	}
}

void df_image(const struct df_round *p, uint8_t *slot, uint64_t slot_stride)
{
	unsigned int i;

	memset(slot, 0, slot_stride);
	for (i = 0; i < p->n; i++)
		pattern_fill(slot + DF_GUARD + p->w[i].off, p->w[i].key, 0, p->w[i].len);
}

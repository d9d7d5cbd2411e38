// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "df.h"

#define LATE_WAIT_NS 2000000000ull

static bool in_memory(enum df_kind k)
{
	return k == K_FETCH_ADD || k == K_CMP_SWAP || k == K_INLINE || k == K_WRITE8;
}

static struct df_round *plan_of(struct df_ep *ep, uint64_t round)
{
	return &ep->plan[round % ep->side->cfg->window];
}

static uint64_t span(const struct df_ep *ep, const struct df_round *p)
{
	uint64_t n = 2 * DF_GUARD + p->end;

	return n < ep->side->slot_stride ? n : ep->side->slot_stride;
}

/* A later flag may be seen before an earlier one only if the network put it there first. */
static void check_flag_order(struct df_ep *ep)
{
	const struct df_cfg *c = ep->side->cfg;
	uint64_t r = ep->rx_next;

	if (c->window < 2 || r + 1 >= c->rounds || r + 1 >= ep->rx_freed + c->window ||
	    !in_memory(plan_of(ep, r + 1)->kind))
		return;
	if (!atomic_load_explicit(df_flag(ep->flags, (r + 1) % c->window), memory_order_acquire))
		return;
	if (atomic_load_explicit(df_flag(ep->flags, r % c->window), memory_order_acquire))
		return;
	fprintf(stderr, "dataflag %s: VIOLATION qp 0x%x round %" PRIu64 ": flag %s seen before the flag %s of the round "
		"before\n", ep->side->role, ep->qp->qp_num, r + 1, df_kind_name[plan_of(ep, r + 1)->kind],
		df_kind_name[plan_of(ep, r)->kind]);
	atomic_fetch_add(&ep->side->violations, 1);
}

static bool flag_seen(struct df_ep *ep, const struct df_round *p)
{
	const struct df_cfg *c = ep->side->cfg;
	struct df_msg m = { 0 };
	bool got;
	uint64_t v;

	if (in_memory(p->kind)) {
		v = atomic_load_explicit(df_flag(ep->flags, ep->rx_next % c->window), memory_order_acquire);
		if (!v) {
			check_flag_order(ep);
			return false;
		}
		if (v != ep->rx_next + 1)
			df_error(ep->side, "qp 0x%x round %" PRIu64 ": flag %s is %" PRIu64, ep->qp->qp_num, ep->rx_next,
				 df_kind_name[p->kind], v);
		return true;
	}
	pthread_mutex_lock(&ep->lock);
	got = ep->msg_head != ep->msg_tail;
	if (got)
		m = ep->msgs[ep->msg_head++ % ep->rq_depth];
	pthread_mutex_unlock(&ep->lock);
	if (got && (m.kind != p->kind || m.round != ep->rx_next))
		df_error(ep->side, "qp 0x%x: message %s of round %" PRIu64 " instead of %s of %" PRIu64, ep->qp->qp_num,
			 m.kind < K_MAX ? df_kind_name[m.kind] : "?", m.round, df_kind_name[p->kind], ep->rx_next);
	return got;
}

static void report(struct df_ep *ep, const struct df_round *p, const uint8_t *slot, const uint8_t *image, uint64_t len)
{
	uint64_t i, first = len, last = 0, stale = 0, wrong = 0, guard = 0, t0 = now_ns(), n;
	unsigned int k;

	for (i = 0; i < len; i++) {
		if (slot[i] == image[i])
			continue;
		if (!image[i])
			guard++;
		else if (!slot[i])
			stale++;
		else
			wrong++;
		first = i < first ? i : first;
		last = i;
	}
	if (stale || wrong || !guard)
		n = atomic_fetch_add(&ep->side->violations, 1);
	else
		n = atomic_fetch_add(&ep->side->guards, 1);
	while (memcmp(slot, image, len) && now_ns() - t0 < LATE_WAIT_NS)
		;
	t0 = (now_ns() - t0) / 1000;
	if (n >= 20)
		return;
	for (k = 0; k < p->n; k++)
		if (first >= DF_GUARD + p->w[k].off && first < DF_GUARD + p->w[k].off + p->w[k].len)
			break;
	fprintf(stderr, "dataflag %s: VIOLATION qp 0x%x round %" PRIu64 " flag %s: %" PRIu64 " stale, %" PRIu64
		" wrong, %" PRIu64 " bytes outside; offset %" PRIu64 "..%" PRIu64, ep->side->role, ep->qp->qp_num,
		ep->rx_next, df_kind_name[p->kind], stale, wrong, guard, first, last);
	if (first == len)
		fprintf(stderr, " (seen by the first look only)");
	else if (k < p->n)
		fprintf(stderr, " (write %u of %u, +%" PRIu64 " of %" PRIu64 ")", k, p->n,
			first - DF_GUARD - p->w[k].off, p->w[k].len);
	fprintf(stderr, t0 * 1000 < LATE_WAIT_NS ? "; right after %" PRIu64 " us\n" :
						   "; still not right after %" PRIu64 " us\n", t0);
}

/*
 * A byte that is missing now may be there a moment later, and a full comparison takes a while: look at one word in
 * each 1 KiB first, from the end, where the last fragment of a cut WRITE lands.
 */
static bool quick_look(const uint8_t *slot, const uint8_t *image, uint64_t len)
{
	uint64_t o = len & ~1023ull;

	for (;;) {
		if (o + 8 <= len && memcmp(slot + o, image + o, 8))
			return false;
		if (!o)
			return true;
		o -= 1024;
	}
}

static void check_slot(struct df_ep *ep, const struct df_round *p)
{
	uint64_t idx = ep->rx_next % ep->side->cfg->window;
	uint8_t *slot = ep->slots + idx * ep->side->slot_stride;
	const uint8_t *image = ep->image + idx * ep->side->slot_stride;
	uint64_t len = ep->rx_next % 64 ? span(ep, p) : ep->side->slot_stride;

	if (!quick_look(slot, image, len) || memcmp(slot, image, len))
		report(ep, p, slot, image, len);
	/* from here on nobody may write to this slot until the credit: whatever does is seen in release() */
	memset(slot, 0, len);
	if (in_memory(p->kind))
		atomic_store_explicit(df_flag(ep->flags, (unsigned int)idx), 0, memory_order_release);
	ep->hold_since[idx] = now_ns();
	ep->rx_next++;
	atomic_fetch_add(&ep->side->rounds_seen, 1);
}

static bool all_zero(const uint8_t *p, uint64_t len)
{
	return !len || (!p[0] && !memcmp(p, p + 1, len - 1));
}

static bool flag_line_clean(struct df_ep *ep, unsigned int idx)
{
	return all_zero(ep->flags + (uint64_t)idx * DF_FLAG_STRIDE, DF_FLAG_STRIDE);
}

static void release(struct df_ep *ep)
{
	const struct df_cfg *c = ep->side->cfg;
	uint64_t r = ep->rx_freed, idx = r % c->window;
	uint8_t *slot = ep->slots + idx * ep->side->slot_stride;
	struct df_round *p = &ep->plan[idx];

	if (!all_zero(slot, r % 64 ? span(ep, p) : ep->side->slot_stride) || !flag_line_clean(ep, (unsigned int)idx)) {
		if (!atomic_fetch_add(&ep->side->ghosts, 1))
			fprintf(stderr, "dataflag %s: VIOLATION qp 0x%x round %" PRIu64
				": memory written again after the flag was seen\n", ep->side->role, ep->qp->qp_num, r);
		memset(slot, 0, ep->side->slot_stride);
	}
	if (r + c->window < c->rounds) {
		df_plan(c, !ep->side->dir, ep->idx, r + c->window, p);
		df_image(p, ep->image + idx * ep->side->slot_stride, ep->side->slot_stride);
	}
	ep->rx_freed++;
}

bool df_rx(struct df_ep *ep)
{
	const struct df_cfg *c = ep->side->cfg;
	struct df_round *p;
	bool did = false;

	if (!ep->side->receives)
		return false;
	while (ep->rx_next < c->rounds && ep->rx_next < ep->rx_freed + c->window) {
		p = plan_of(ep, ep->rx_next);
		if (!flag_seen(ep, p))
			break;
		check_slot(ep, p);
		did = true;
	}
	while (ep->rx_freed < ep->rx_next &&
	       now_ns() - ep->hold_since[ep->rx_freed % c->window] >= c->hold_us * 1000ull) {
		release(ep);
		did = true;
	}
	if (ep->rx_told < ep->rx_freed && !df_credit(ep, ep->rx_freed)) {
		ep->rx_told = ep->rx_freed;
		did = true;
	}
	return did;
}

bool df_rx_done(struct df_ep *ep)
{
	return !ep->side->receives || ep->rx_told == ep->side->cfg->rounds;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Twins double what counts against RLIMIT_MEMLOCK. When the program would fail for that, others give theirs back. */
#include "rkeys.h"

#include <time.h>

#define TICK_NS 1000000

struct choice {
	uint64_t round;
	struct dp_mr_rec *best;
	bool held; /* peers know best's keys */
};

/* The largest that no peer knows, else the largest. */
static void choose(struct dp_mr_rec *r, void *arg)
{
	struct choice *ch = arg;
	bool held, own = false;

	/* what is the program's own costs nothing */
	for (uint32_t i = 0; i < r->m.pd->c->nsib; i++)
		own |= r->m.twin[i] && r->m.twin[i] != r->m.mr;
	if (!own || !r->m.usable || r->kept == ch->round || atomic_load(&r->m.pd->c->closed))
		return;
	dp_take(&r->m.pd->lock);
	held = dp_holders_any(r->m.holders);
	dp_drop(&r->m.pd->lock);
	if (ch->best && (held > ch->held || (held == ch->held && r->how.length <= ch->best->how.length)))
		return;
	ch->best = r;
	ch->held = held;
}

static bool wait_drain(struct dp_drain *d, uint64_t deadline)
{
	struct timespec tick = { .tv_nsec = TICK_NS };

	if (!d)
		return false;
	while (!dp_drain_done(d)) {
		if (dp_now_ns() >= deadline)
			return false;
		nanosleep(&tick, NULL);
	}
	return true;
}

bool dp_mr_settle(struct dp_mr_rec *r, uint64_t deadline)
{
	struct dp_holder *h = dp_mr_unpublish(r);
	struct dp_drain *d;
	uint64_t seq = 0;
	bool ok;

	dp_holders_block(h, &seq);
	dp_holders_invalidate(h, DP_INVAL_DRAIN);
	d = dp_drain_start(r->m.pd->c, NULL);
	ok = wait_drain(d, deadline) && (!h || dp_holders_settled(seq, deadline));
	dp_drain_free(d);
	return ok;
}

static bool take_twins(struct dp_mr_rec *r, uint64_t deadline)
{
	if (!dp_mr_settle(r, deadline)) {
		dp_mr_publish(r);
		return false;
	}
	dp_mr_twins_drop(r);
	return true;
}

bool dp_mr_give_back(uint64_t deadline)
{
	static uint64_t round; /* dp_mr_life */
	struct choice ch = { 0 };
	static bool said; /* dp_mr_life */
	bool ok = false;

	pthread_rwlock_wrlock(&dp_mr_life);
	ch.round = ++round;
	while (!ok && dp_now_ns() < deadline) {
		ch.best = NULL;
		dp_mr_each(choose, &ch);
		if (!ch.best)
			break;
		ok = take_twins(ch.best, deadline);
		if (!ok)
			ch.best->kept = round;
	}
	if (ok) {
		dp_fallback(DP_FB_MR_TWIN_FAILED);
		if (!said)
			dp_warn("memory that may be locked (ulimit -l) ran out: memory regions give up their twins, "
				"the largest (%zu bytes) first", ch.best->how.length);
		said = true;
	}
	pthread_rwlock_unlock(&dp_mr_life);
	return ok;
}

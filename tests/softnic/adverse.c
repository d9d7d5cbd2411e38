// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <stdlib.h>

#include "adverse.h"

#define US 1000u
#define WHOLE 256u	   /* messages up to here land at once, and larger ones in blocks of this */
#define EPOCH_NS (1000 * US)
#define BEHIND_NS (5000 * US)
#define STALLED_OF 8	   /* one epoch of so many is spent asleep */

/* Completions that are not in their CQs yet, in the order of their time. */
struct late {
	TAILQ_ENTRY(late) next;
	uint64_t at;
	struct sn_cq *cq;
	struct sn_cqe cqe;
};

static TAILQ_HEAD(late_list, late) lates = TAILQ_HEAD_INITIALIZER(lates);
static bool given_now;	/* sn_cq_push() is called from here */

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t x = sn_shared->seed ^ a * 0x9e3779b97f4a7c15ull ^ b * 0xd6e8feb86659fd93ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

uint64_t sn_draw(uint32_t dev, enum sn_draw what, uint64_t *nth)
{
	uint64_t n = atomic_fetch_add(&sn_shared->devs[dev].port.drawn[what], 1);

	if (nth)
		*nth = n;
	return mix((uint64_t)what << 32 | (dev + 1), 1 + n);
}

uint32_t sn_below(uint64_t *drawn, uint32_t n)
{
	*drawn = *drawn * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((*drawn >> 32) % n);
}

/* 1 to 4, the same during a whole run. */
static uint32_t slowness(uint32_t dev)
{
	return 1 + (uint32_t)(mix(dev + 1, 0) >> 32) % 4;
}

void sn_adverse_message(struct sn_luck *l, const struct sn_qp *q, enum sn_op op, uint32_t len)
{
	uint32_t dev = q->dev;
	uint64_t drawn, nth;

	l->late = l->gap = 0;
	l->early = UINT32_MAX;
	if (!sn_shared->adverse)
		return;
	drawn = sn_draw(dev, SN_DRAW_MESSAGE, &nth);
	/* what is short is mostly in time: flags overtake data on other devices, and now and then it is the reverse */
	if (len > WHOLE)
		l->late = (300 + sn_below(&drawn, 500 * slowness(dev))) * US;
	else if (!sn_below(&drawn, 4))
		l->late = sn_below(&drawn, 100 * slowness(dev)) * US;
	if (op == SN_WRITE && !sn_shared->late && !sn_unreliable(q) && len > WHOLE && sn_below(&drawn, 4)) {
		l->gap = (100 + sn_below(&drawn, 400)) * US;
		l->early = sn_below(&drawn, len - 1);
	}
	if (nth < SN_LOTS)
		sn_shared->devs[dev].port.lots[nth] = (struct sn_lot){ (uint32_t)l->late, l->gap, l->early };
}

static uint64_t awake(uint32_t dev, uint64_t t)
{
	uint64_t began = sn_shared->began;

	t -= began;
	for (int i = 0; i < 4 && mix(dev + 101, t / EPOCH_NS) % STALLED_OF == 0; i++)
		t = (t / EPOCH_NS + 1) * EPOCH_NS;
	return t + began;
}

void sn_adverse_packet(const struct sn_luck *l, struct sn_pkt *p)
{
	uint32_t block;

	if (!sn_shared->adverse)
		return;
	p->due = awake(p->dst_dev, awake(p->src_dev, p->due + l->late));
	if (!l->gap)
		return;
	p->gap = l->gap;
	/* words that do not cross a block are never torn */
	block = (uint32_t)((p->raddr + l->early) % WHOLE);
	p->early = l->early > block ? l->early - block : l->early + WHOLE - block;
}

void sn_adverse_answer(struct sn_pkt *p)
{
	uint64_t drawn;

	if (!sn_shared->adverse)
		return;
	drawn = sn_draw(p->src_dev, SN_DRAW_ANSWER, NULL);
	p->due += sn_below(&drawn, sn_below(&drawn, 4) ? 20 : 500) * US;
	p->due = awake(p->dst_dev, awake(p->src_dev, p->due));
}

uint64_t sn_adverse_behind(uint64_t now, uint64_t due)
{
	static uint64_t behind;

	if (!sn_shared->adverse || due == UINT64_MAX)
		behind = 0;
	else if (due + behind < now)
		behind = now - due < BEHIND_NS ? now - due : BEHIND_NS;
	return behind;
}

static void give(struct late *l)
{
	TAILQ_REMOVE(&lates, l, next);
	given_now = true;
	sn_cq_push(l->cq, &l->cqe);
	given_now = false;
	free(l);
}

bool sn_adverse_complete(struct sn_cq *c, const struct sn_cqe *cqe)
{
	struct late *l, *at;
	uint64_t drawn;

	if (!sn_shared->adverse || given_now)
		return false;
	l = malloc(sizeof(*l));
	if (!l) {
		sn_adverse_settle(c);
		return false;
	}
	drawn = sn_draw(sn_ctx(c->cq.context)->dev, SN_DRAW_COMPLETION, NULL);
	l->at = sn_now() + sn_below(&drawn, 100) * US;
	l->cq = c;
	l->cqe = *cqe;
	/* in order within a CQ */
	TAILQ_FOREACH_REVERSE(at, &lates, late_list, next) {
		if (at->cq == c && l->at < at->at)
			l->at = at->at;
		if (at->at <= l->at)
			break;
	}
	if (at)
		TAILQ_INSERT_AFTER(&lates, at, l, next);
	else
		TAILQ_INSERT_HEAD(&lates, l, next);
	sn_timer_at(TAILQ_FIRST(&lates)->at);
	return true;
}

void sn_adverse_settle(struct sn_cq *c)
{
	struct late *l, *next;

	for (l = TAILQ_FIRST(&lates); l; l = next) {
		next = TAILQ_NEXT(l, next);
		if (l->cq == c)
			give(l);
	}
}

void sn_adverse_run(uint64_t now, uint64_t *next)
{
	struct late *l;

	while ((l = TAILQ_FIRST(&lates)) && l->at <= now)
		give(l);
	if (l && l->at < *next)
		*next = l->at;
}

void sn_adverse_after_fork(void)
{
	TAILQ_INIT(&lates);
}

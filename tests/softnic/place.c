// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <stdlib.h>
#include <string.h>

#include "adverse.h"
#include "place.h"

#define SOONEST_NS 1000000u
#define SPREAD_US 4000u

/* On its way into memory. */
struct posted {
	TAILQ_ENTRY(posted) next;
	uint64_t at, addr;
	const struct sn_mem_ops *ops;
	uint32_t len;
	bool relaxed;
	uint8_t data[];
};

TAILQ_HEAD(posteds, posted);

static struct card {
	struct posteds list;	/* the oldest first */
	uint64_t due;		/* nothing becomes visible by itself before */
} cards[SN_DEVS];

static struct card *card_of(uint32_t dev)
{
	struct card *c = &cards[sn_shared->devs[dev].card];

	if (!c->list.tqh_last)
		TAILQ_INIT(&c->list);
	return c;
}

static void arrive(struct card *c, struct posted *p)
{
	TAILQ_REMOVE(&c->list, p, next);
	p->ops->write(p->addr, p->data, p->len);
	free(p);
}

/* All up to this one. */
static void arrive_to(struct card *c, const struct posted *last)
{
	struct posted *p;

	do {
		p = TAILQ_FIRST(&c->list);
		arrive(c, p);
	} while (p != last);
}

void sn_place(uint32_t dev, const struct sn_span *span, uint32_t off, const void *from, uint32_t n)
{
	/* what is on demand may be gone by then: it is there now */
	bool waits = sn_shared->late && !(span->mr->access & IBV_ACCESS_ON_DEMAND);
	struct posted *p = waits ? malloc(sizeof(*p) + n) : NULL;
	struct card *c = card_of(dev);
	uint64_t drawn;

	if (!p) {
		if (sn_shared->late)
			sn_place_push(dev);
		span->ops->write(span->addr + off, from, n);
		return;
	}
	drawn = sn_draw(dev, SN_DRAW_PLACE, NULL);
	p->at = sn_now() + SOONEST_NS + sn_below(&drawn, SPREAD_US) * 1000u;
	p->ops = span->ops;
	p->addr = span->addr + off;
	p->len = n;
	p->relaxed = span->mr->access & IBV_ACCESS_RELAXED_ORDERING;
	memcpy(p->data, from, n);
	if (TAILQ_EMPTY(&c->list) || p->at < c->due)
		c->due = p->at;
	TAILQ_INSERT_TAIL(&c->list, p, next);
}

void sn_place_push(uint32_t dev)
{
	struct card *c;

	if (!sn_shared->late)
		return;
	c = card_of(dev);
	if (!TAILQ_EMPTY(&c->list))
		arrive_to(c, TAILQ_LAST(&c->list, posteds));
}

/* The same memory may be registered on each port of the card, so it is told by its addresses. */
void sn_place_push_region(uint32_t dev, const struct sn_span *span)
{
	uint64_t from = span->mr->at, to = from + span->mr->mr.length;
	struct posted *p;
	struct card *c;

	if (!sn_shared->late)
		return;
	c = card_of(dev);
	TAILQ_FOREACH_REVERSE(p, &c->list, posteds, next)
		if (p->addr < to && p->addr + p->len > from) {
			arrive_to(c, p);
			return;
		}
}

void sn_place_all(void)
{
	for (uint32_t i = 0; sn_shared->late && i < sn_shared->ndevs; i++)
		sn_place_push(i);
}

static void run(struct card *c, uint64_t now)
{
	struct posted *p, *after, *last = NULL;

	TAILQ_FOREACH(p, &c->list, next)
		if (!p->relaxed && p->at <= now)
			last = p;
	if (last)
		arrive_to(c, last);
	c->due = UINT64_MAX;
	for (p = TAILQ_FIRST(&c->list); p; p = after) {
		after = TAILQ_NEXT(p, next);
		if (p->relaxed && p->at <= now)
			arrive(c, p);
		else if (p->at < c->due)
			c->due = p->at;
	}
}

void sn_place_run(uint64_t now, uint64_t *next)
{
	for (uint32_t i = 0; sn_shared->late && i < sn_shared->ncards; i++) {
		struct card *c = &cards[i];

		if (!c->list.tqh_last || TAILQ_EMPTY(&c->list))
			continue;
		if (c->due <= now)
			run(c, now);
		if (c->due < *next)
			*next = c->due;
	}
}

/* They are the parent's. */
void sn_place_after_fork(void)
{
	memset(cards, 0, sizeof(cards));
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include "order_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int alloc_slots(struct dp_order *o, uint64_t slots)
{
	o->op = calloc(slots, sizeof(*o->op));
	o->rail = calloc(slots * o->nrails, sizeof(*o->rail));
	if (!o->op || !o->rail) {
		free(o->op);
		free(o->rail);
		o->op = NULL;
		o->rail = NULL;
		return -ENOMEM;
	}
	o->mask = slots - 1;
	o->rail_size = o->nrails * sizeof(*o->rail);
	return 0;
}

int dp_order_init(struct dp_order *o, uint32_t nrails, enum dp_ordering mode, uint64_t slots)
{
	memset(o, 0, sizeof(*o));
	o->nrails = nrails;
	o->mode = mode;
	o->search = DP_ORDER_SEARCH;
	o->barrier = UINT64_MAX;
	return alloc_slots(o, slots);
}

void dp_order_fini(struct dp_order *o)
{
	free(o->op);
	free(o->rail);
	o->op = NULL;
	o->rail = NULL;
}

void dp_order_reset(struct dp_order *o)
{
	struct dp_order n = {
		.nrails = o->nrails, .mode = o->mode, .search = o->search, .mask = o->mask, .op = o->op, .rail = o->rail,
		.rail_size = o->rail_size, .barrier = UINT64_MAX,
	};

	*o = n;
}

int dp_order_grow(struct dp_order *o)
{
	struct dp_order n = *o;
	int ret = alloc_slots(&n, (o->mask + 1) * 2);

	if (ret)
		return ret;
	for (uint64_t p = o->tail; p < o->next; p++) {
		*dp_order_op(&n, p) = *dp_order_op(o, p);
		memcpy(dp_order_rail(&n, p, 0), dp_order_rail(o, p, 0), o->nrails * sizeof(*o->rail));
	}
	dp_order_fini(o);
	*o = n;
	return 0;
}

int dp_order_widen(struct dp_order *o, uint32_t nrails)
{
	struct dp_op_rail *rail = calloc((o->mask + 1) * nrails, sizeof(*rail));

	if (!rail)
		return -ENOMEM;
	for (uint64_t p = o->tail; p < o->next; p++)
		rail[(p & o->mask) * nrails] = *dp_order_rail(o, p, 0);
	free(o->rail);
	o->rail = rail;
	o->nrails = nrails;
	o->rail_size = nrails * sizeof(*rail);
	return 0;
}

void dp_order_bond(struct dp_order *o)
{
	o->bonded = true;
	dp_order_shut(o);
	/* nobody knows which memory it was; the handshake took longer than any write does on its way there */
	o->visible[0] = o->done[0];
	o->last_write[0] = o->next;
	if (o->done[0] == o->next)
		return;
	for (uint64_t p = o->tail; p < o->next; p++)
		dp_order_op(o, p)->flags |= DP_OP_ALL;
	o->last_signal = o->last_all = o->next;
	o->last_read[0] = o->next;
	o->fenced[0] = o->last_fence = o->next;
	o->want[0] = o->next; /* their completions were not known to need it */
}

void dp_order_unbond(struct dp_order *o)
{
	o->bonded = false;
	dp_order_shut(o);
}

void dp_order_bar(struct dp_order *o, uint64_t pos)
{
	o->barrier = pos;
	dp_order_shut(o);
}

bool dp_order_done_before(const struct dp_order *o, uint64_t pos, uint32_t acked)
{
	if (pos <= o->tail)
		return true;
	for (uint32_t r = 0; r < o->nrails; r++) {
		uint64_t seq = dp_order_rail(o, pos - 1, r)->seq;

		if (acked >> r & 1 ? o->done[r] < seq : !dp_order_reached(o, r, seq, false))
			return false;
	}
	return true;
}

static void retire(struct dp_order *o);

void dp_order_flush_again(struct dp_order *o, uint32_t rail)
{
	dp_order_shut(o);
	o->asked[rail] = o->visible[rail];
}

void dp_order_flush_over(struct dp_order *o, uint32_t rail)
{
	if (!rail && !(o->flush & 1))
		return;
	o->flush &= ~(UINT32_C(1) << rail);
	/* of rail 0 nobody asks for more than acknowledgements now */
	if (rail)
		raise_to(&o->visible[rail], o->done[rail]);
	after_done(o, rail);
	retire(o);
}

bool dp_order_may_post0(const struct dp_order *o)
{
	const struct dp_op_rail *or = dp_order_rail(o, o->post0, 0);
	bool strong = dp_order_op(o, o->post0)->flags & DP_OP_STRONG;

	if (o->post0 == o->next || o->post0 >= o->barrier)
		return false;
	for (uint32_t r = 1; r < o->nrails; r++)
		if (!dp_order_reached(o, r, or[r].wait0, strong))
			return false;
	return true;
}

/* Everything of it is complete and given: nobody needs the op again. */
static bool finished(const struct dp_order *o, uint64_t pos)
{
	const struct dp_op_rail *or = dp_order_rail(o, pos, 0);

	if (pos >= o->post0 || pos >= o->deliver)
		return false;
	for (uint32_t r = 0; r < o->nrails; r++)
		if (!dp_order_reached(o, r, or[r].seq, false))
			return false;
	return true;
}

static void retire(struct dp_order *o)
{
	while (o->tail < o->next && finished(o, o->tail))
		o->tail++;
	/* nobody has passed over those without sibling parts while there were no siblings; their slots are used again */
	raise_to(&o->posts, o->tail);
}

void dp_order_posted0(struct dp_order *o)
{
	o->sent[0] += size_of(dp_order_rail(o, o->post0, 0)->remote);
	o->post0++;
}

void dp_order_unposted0(struct dp_order *o, uint64_t pos)
{
	dp_order_shut(o);
	while (o->post0 > pos)
		o->sent[0] -= size_of(dp_order_rail(o, --o->post0, 0)->remote);
}

bool dp_order_may_posts(struct dp_order *o)
{
	const struct dp_op_rail *or;

	while (o->posts < o->next && dp_order_op(o, o->posts)->whole)
		o->posts++;
	if (o->posts == o->next || o->posts >= o->barrier)
		return false;
	or = dp_order_rail(o, o->posts, 0);
	for (uint32_t r = 0; r < o->nrails; r++)
		if (!dp_order_reached(o, r, or[r].waits, false))
			return false;
	return true;
}

void dp_order_posteds(struct dp_order *o)
{
	for (uint32_t r = 1; r < o->nrails; r++)
		o->sent[r] += size_of(dp_order_rail(o, o->posts, r)->remote);
	o->posts++;
}

void dp_order_done(struct dp_order *o, uint32_t rail, uint64_t seq)
{
	raise_to(&o->done[rail], seq);
	/* what retired without bytes here was not passed over, and its slots are other ops' by now */
	raise_to(&o->counted[rail], o->tail);
	/* an op without bytes here has the number of one before it */
	for (uint64_t *p = &o->counted[rail]; *p < o->next && dp_order_rail(o, *p, rail)->seq <= seq; ++*p)
		if (!rail || !dp_order_op(o, *p)->whole)
			arrive(o, rail, size_of(dp_order_rail(o, *p, rail)->remote));
	after_done(o, rail);
	retire(o);
}

void dp_order_want(struct dp_order *o, uint32_t rail)
{
	dp_order_shut(o);
	raise_to(&o->want[rail], o->planned[rail]);
}

bool dp_order_flush_due(const struct dp_order *o, uint32_t rail, uint64_t posted)
{
	uint64_t covered = o->asked[rail] > o->visible[rail] ? o->asked[rail] : o->visible[rail];

	return o->want[rail] > covered && posted > covered;
}

void dp_order_flush_posted(struct dp_order *o, uint32_t rail, uint64_t posted)
{
	raise_to(&o->asked[rail], posted);
}

void dp_order_flushed(struct dp_order *o, uint32_t rail, uint64_t covers)
{
	/* RC: what stands before the READ has completed */
	dp_order_done(o, rail, covers);
	raise_to(&o->visible[rail], covers);
	after_done(o, rail);
	retire(o);
}

uint64_t dp_order_match(struct dp_order *o)
{
	/* before dp_order_held() passes over unsignalled ones, which only the next that is given tells of */
	o->given = dp_order_given(o);
	while (o->match < o->post0 && !(dp_order_op(o, o->match)->flags & DP_OP_SIGNALED))
		o->match++;
	if (o->match == o->post0)
		return UINT64_MAX;
	o->match++;
	dp_order_shut(o); /* unless it is given at once, it is held */
	dp_order_done(o, 0, o->match);
	return o->match - 1;
}

uint64_t dp_order_of(const struct dp_order *o, uint32_t rail, uint64_t seq)
{
	for (uint64_t p = o->tail; p < o->next; p++)
		if (dp_order_rail(o, p, rail)->seq >= seq)
			return dp_order_rail(o, p, rail)->seq == seq ? p : UINT64_MAX;
	return UINT64_MAX;
}

uint64_t dp_order_held(struct dp_order *o)
{
	while (o->deliver < o->match && !(dp_order_op(o, o->deliver)->flags & DP_OP_SIGNALED))
		o->deliver++;
	return o->deliver == o->match ? UINT64_MAX : o->deliver;
}

uint64_t dp_order_deliverable(struct dp_order *o)
{
	const struct dp_op_rail *or;

	if (dp_order_held(o) == UINT64_MAX)
		return UINT64_MAX;
	or = dp_order_rail(o, o->deliver, 0);
	for (uint32_t r = 0; r < o->nrails; r++)
		if (!dp_order_reached(o, r, or[r].seq, false))
			return UINT64_MAX;
	return o->deliver;
}

void dp_order_delivered(struct dp_order *o)
{
	/* who did not ask dp_order_deliverable() first still has the unsignalled ones before it */
	if (dp_order_held(o) == UINT64_MAX)
		return;
	o->given = ++o->deliver;
	retire(o);
}

bool dp_order_news(struct dp_order *o)
{
	uint64_t p = o->told > o->deliver ? o->told : o->deliver;
	bool news = false;

	/* what an op waits for is never less than what those before it wait for */
	for (; p < o->match; p++) {
		const struct dp_op_rail *or = dp_order_rail(o, p, 0);

		if (!(dp_order_op(o, p)->flags & DP_OP_SIGNALED))
			continue;
		for (uint32_t r = 0; r < o->nrails; r++)
			if (!dp_order_reached(o, r, or[r].seq, false))
				return news;
		o->told = p + 1;
		news = true;
	}
	return news;
}

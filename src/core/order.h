/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * The order machine: which part of which WR of one QP may go now, and which completion may be given. Pure: no
 * verbs, clocks or locks; the caller serialises.
 *
 * Ops stand in program order. Each has one WR on rail 0 (perhaps empty), so its sequence number there is its
 * position; on a sibling rail only fragments count. Numbers on a sibling are given at dp_order_add(), and its
 * fragments are posted in that order, so an op needs only a vector: the last number on each rail at or before
 * it. RC completes in order per QP, hence "completed up to" is one number per rail.
 *
 * An acknowledgement says that the peer's device has the bytes, not that they can be seen. On a sibling in `flush`, and
 * for an op with DP_OP_STRONG on every sibling, "completed" means visible: known so from a flush, a READ of ours on the
 * same rail behind the fragments that it covers. It has no number: it names the newest fragment before it. If rail 0 is
 * in `flush`, what siblings' parts and completions wait for there is the same. Its flushes go on a queue pair beside it, so
 * they cover what was acknowledged there when they were posted.
 *
 * Two queues drain independently: rail 0 strictly in program order, and the sibling parts in program order
 * among themselves. "Passing a signal" means that a sibling part goes while the signal still waits.
 */
#ifndef DUALPORT_ORDER_H
#define DUALPORT_ORDER_H

#include <stdbool.h>
#include <stdint.h>
#include "config.h"
#include "plan.h"

enum dp_op_flags {
	DP_OP_FENCE = 1 << 0,	 /* IBV_SEND_FENCE, its number too */
	DP_OP_SIGNALED = 1 << 1, /* rail 0 will give a completion; the number of IBV_SEND_SIGNALED */
	DP_OP_BULK = 1 << 2,	 /* may have parts on siblings; else it is a signal */
	DP_OP_READ = 1 << 3,	 /* reads the remote range, writes the local one */
	DP_OP_ATOMIC = 1 << 4,	 /* like READ for a later fence; writes both ranges */
	DP_OP_PLAIN = 1 << 5,	 /* WRITE or READ without immediate: mode relaxed lets it overtake data */
	DP_OP_ALL = 1 << 6,	 /* its ranges are unknown: conflicts with everything; on rail 0 alone */
	DP_OP_EVERY = 1 << 7,	 /* a signal that goes on every rail (part[]), at once on siblings; complete when all are */
	DP_OP_HASTE = 1 << 9,	 /* bulk: whole on rail 0 rather than wait for rail 0 (strict), or for anything (rc) */
	DP_OP_STRONG = 1 << 8,	 /* a signal that waits until what it waits for is visible, on every sibling */
};

struct dp_range {
	uint64_t lo, hi; /* [lo, hi); empty if lo >= hi */
};

struct dp_op_desc {
	unsigned flags;
	struct dp_range remote;	      /* all of the WR */
	struct dp_range local;	      /* written by the WR (READ, atomics): hull of its SGEs; else empty */
	const struct dp_part *part;   /* bulk and EVERY: [nrails]; NULL: all on rail 0 */
	const struct dp_range *lpart; /* READ with part: hull of the SGEs of each part, [nrails] */
};

struct dp_op_rail {
	struct dp_range remote, local; /* of the fragment there; local: of READs and atomics; of what went whole on rail 0 only */
	uint64_t seq;		       /* fragments planned on this rail at or before this op */
	uint64_t wait0;		       /* rail-0 part goes when this rail completed that many */
	uint64_t waits;		       /* sibling parts likewise */
	uint64_t last_read, last_write; /* for dp_order_undo() */
	uint64_t fenced;		/* the same of an op with DP_OP_FENCE */
};

struct dp_op_marks {
	uint64_t signal, signaled, all, fence;
};

struct dp_op {
	unsigned flags;
	bool whole;	/* all bytes on rail 0 */
	enum { DP_BEHIND_NOT, DP_BEHIND_UNTOLD, DP_BEHIND_HASTE } behind; /* why whole: nothing would tell; DP_OP_HASTE */
	struct dp_op_marks before; /* for dp_order_undo() */
	/*
	 * Bit per rail: more was outstanding there than is searched for overlaps, so that all of the rest is waited for, by
	 * the part on rail 0, and by those on siblings. The latter also if it went whole because of that.
	 */
	uint32_t full0, fulls;
	uint64_t unused[1]; /* 64 bytes: a shift finds it */
};

#define DP_ORDER_SEARCH 64 /* ops that one search for overlaps looks at */

struct dp_order {
	uint32_t nrails;
	enum dp_ordering mode;
	uint32_t search; /* DP_ORDER_SEARCH; tests make it less */
	bool bonded; /* false: nothing may go to siblings (before the switch, after un-bonding) */
	/*
	 * As dp_order_alone() found: ops before this position may be entered by dp_order_add_lone(), if nothing else is. Not 0:
	 * no rail is in `flush`, nothing is queued or held, and all that siblings have is complete.
	 */
	uint64_t open;
	/*
	 * The same of bulk, set by who knows what room there is (bulk.c): before this position there is some for a fragment on
	 * each rail, and nothing stands in the way of an op that dp_order_is_free().
	 */
	uint64_t roomy;

	/* positions of ops; a position p lives in slot p & mask */
	uint64_t tail;	/* oldest op still known */
	uint64_t next;	/* one past the newest */
	uint64_t match; /* no signalled op before this is unmatched */
	uint64_t post0; /* next to post on rail 0 */
	uint64_t deliver; /* no signalled op before this is not given */
	uint64_t given;	/* dp_order_given() while something is held */
	uint64_t posts; /* next whose sibling parts are to be posted; not before tail */
	uint64_t told;	/* dp_order_news() said of those before this that they may be given */
	uint64_t barrier; /* from this op on nothing is posted any more; UINT64_MAX: there is none */
	uint64_t mask;
	uint64_t rail_size; /* of what one op has on all rails, bytes */
	struct dp_op *op;
	struct dp_op_rail *rail; /* slot * nrails + rail */

	uint64_t planned[DP_MAX_RAILS]; /* [0] equals next */
	uint64_t done[DP_MAX_RAILS];
	uint64_t last_signal;	/* rail-0 number of the newest signal */
	uint64_t last_signaled; /* of the newest signalled op */
	uint64_t last_read[DP_MAX_RAILS]; /* number of the newest READ or atomic there */
	/*
	 * READs and atomics up to these numbers stand before a FENCE. On rail 0 what follows that stands behind it; on siblings it
	 * must wait for them, as it may be about to send what they read.
	 */
	uint64_t fenced[DP_MAX_RAILS];
	uint64_t last_fence; /* rail-0 number of the newest op with a FENCE */
	struct dp_range hull[DP_MAX_RAILS], lhull[DP_MAX_RAILS]; /* of what may be outstanding there */
	uint64_t bytes[DP_MAX_RAILS];	/* outstanding there */
	uint64_t counted[DP_MAX_RAILS]; /* ops before this one are no longer in bytes[] */
	uint64_t sent[DP_MAX_RAILS], arrived[DP_MAX_RAILS]; /* bytes posted, and of these completed, ever */
	uint64_t last_all; /* of the newest op whose ranges are unknown */

	/* Bit r: on rail r, acknowledged is not visible. Constant while bonded, but for bit 0 and rails that are lost. */
	uint32_t flush;
	uint64_t visible[DP_MAX_RAILS];	   /* "done" in the sense of visible, if in flush, and on siblings; never above done */
	uint64_t want[DP_MAX_RAILS];	   /* what somebody waits to be visible */
	uint64_t asked[DP_MAX_RAILS];	   /* flushes posted cover that many */
	uint64_t last_write[DP_MAX_RAILS]; /* number of the newest WRITE there: behind it there is nothing to flush */
};

/* slots: a power of two. 0 or -ENOMEM. */
int dp_order_init(struct dp_order *o, uint32_t nrails, enum dp_ordering mode, uint64_t slots);
void dp_order_fini(struct dp_order *o);
/* Forgets every op and number (QP reset); keeps memory, mode and rails. */
void dp_order_reset(struct dp_order *o);
/* Doubles the slots. The caller moves what it keeps by position. 0 or -ENOMEM. */
int dp_order_grow(struct dp_order *o);

static inline struct dp_op *dp_order_op(const struct dp_order *o, uint64_t pos)
{
	return &o->op[pos & o->mask];
}
static inline struct dp_op_rail *dp_order_rail(const struct dp_order *o, uint64_t pos, uint32_t rail)
{
	return (struct dp_op_rail *)((char *)o->rail + (pos & o->mask) * o->rail_size) + rail;
}
static inline bool dp_order_full(const struct dp_order *o)
{
	return o->next - o->tail > o->mask;
}
/* Fragments planned on a sibling that have not completed (posted or not). */
static inline uint64_t dp_order_outstanding(const struct dp_order *o, uint32_t rail)
{
	return o->planned[rail] - o->done[rail];
}
static inline bool dp_order_siblings_idle(const struct dp_order *o)
{
	for (uint32_t r = 1; r < o->nrails; r++)
		if (dp_order_outstanding(o, r))
			return false;
	return true;
}

/* Something changed: `open` and `roomy` have to be found again. */
static inline void dp_order_shut(struct dp_order *o)
{
	o->open = o->roomy = 0;
}
/* From one rail to nrails, with all ops as they are. 0 or -ENOMEM. */
int dp_order_widen(struct dp_order *o, uint32_t nrails);
/* From here on siblings are used; what is outstanding counts as one signal of unknown ranges (I9). */
void dp_order_bond(struct dp_order *o);
/* From here on nothing new goes to siblings; what was planned still does. */
void dp_order_unbond(struct dp_order *o);
/* What is not posted of the op at pos and later ones is not to be; UINT64_MAX: after all. */
void dp_order_bar(struct dp_order *o, uint64_t pos);
/* Are all ops before pos complete on every rail? On those in `acked` an acknowledgement is enough. */
bool dp_order_done_before(const struct dp_order *o, uint64_t pos, uint32_t acked);

/*
 * Appends a WR; not when full. Decides what it waits for, and whether it goes whole on rail 0. The caller then
 * asks dp_order_may_*(). Returns its position.
 */
uint64_t dp_order_add(struct dp_order *o, const struct dp_op_desc *d);
/*
 * May a signal be entered by dp_order_add_lone() (order_short.h)? strong: a DP_OP_STRONG. A yes is remembered in `open` until
 * something else is entered; then dp_order_open() says it, of those that are not strong.
 */
bool dp_order_alone(struct dp_order *o, bool strong);
static inline bool dp_order_open(const struct dp_order *o)
{
	return o->next < o->open;
}
/*
 * The same, dp_order_posted0() and dp_order_posteds(), for bulk with part[] on siblings and without FENCE, for the common
 * case that it need not wait for anything, where nothing is queued and no rail is in `flush`. local: where its bytes go, one
 * range (READ). UINT64_MAX: it is not that case, nothing was done.
 */
uint64_t dp_order_add_free(struct dp_order *o, unsigned flags, uint64_t remote, uint64_t local, const struct dp_part *part);
/*
 * Takes back the newest op, of which nothing went out (rail 0's provider refused it), even if dp_order_posted0()
 * or dp_order_posteds() were called for it.
 */
void dp_order_undo(struct dp_order *o);

/* May op o->post0 go to rail 0 now? False also if there is none. dp_order_posted0() says that it went. */
bool dp_order_may_post0(const struct dp_order *o);
void dp_order_posted0(struct dp_order *o);
/* Rail 0 took only the ops before pos of those said to be posted; the rest will be tried again. */
void dp_order_unposted0(struct dp_order *o, uint64_t pos);
/* The same for the sibling parts of op o->posts, all at once; ops without such parts are passed over. */
bool dp_order_may_posts(struct dp_order *o);
void dp_order_posteds(struct dp_order *o);

/* Sibling rail completed everything up to its fragment number seq. */
void dp_order_done(struct dp_order *o, uint32_t rail, uint64_t seq);
/* The flushes that were posted on this rail are lost, and more can be posted: who waits for one asks anew. */
void dp_order_flush_again(struct dp_order *o, uint32_t rail);
/*
 * There are no flushes of that rail any more: acknowledgements count. On a sibling, which is lost then and has nothing
 * outstanding, also for a DP_OP_STRONG.
 */
void dp_order_flush_over(struct dp_order *o, uint32_t rail);
/* What is planned on `rail` is to be visible, although no op asks for it. */
void dp_order_want(struct dp_order *o, uint32_t rail);
/*
 * Should a flush be posted on this rail now? posted: the newest fragment that was posted there (rail 0: acknowledged); it
 * is what the flush covers. dp_order_flush_posted() says that it was, dp_order_flushed() that it completed.
 */
bool dp_order_flush_due(const struct dp_order *o, uint32_t rail, uint64_t posted);
/* Would it be, if more were posted? */
static inline bool dp_order_flush_wanted(const struct dp_order *o, uint32_t rail)
{
	return o->want[rail] > o->asked[rail] && o->want[rail] > o->visible[rail];
}
void dp_order_flush_posted(struct dp_order *o, uint32_t rail, uint64_t posted);
void dp_order_flushed(struct dp_order *o, uint32_t rail, uint64_t covers);
/*
 * Rail 0 gave a good completion: that of the oldest unmatched signalled op. Returns its position, or UINT64_MAX
 * if no posted op expects one.
 */
uint64_t dp_order_match(struct dp_order *o);
/* The op that has fragment seq on a sibling rail; UINT64_MAX: it is not known any more. */
uint64_t dp_order_of(const struct dp_order *o, uint32_t rail, uint64_t seq);
/* The next completion that rail 0 gave and the program has not got, ready or not; UINT64_MAX if none. */
uint64_t dp_order_held(struct dp_order *o);
/* The next completion that may be given; UINT64_MAX if none. dp_order_delivered() says that it was. */
uint64_t dp_order_deliverable(struct dp_order *o);
void dp_order_delivered(struct dp_order *o);
/* May one be given that might not when this was last asked, or that came since? */
bool dp_order_news(struct dp_order *o);
/* Is fragment n of a rail as complete as later ops may need it? */
static inline bool dp_order_reached(const struct dp_order *o, uint32_t rail, uint64_t n, bool strong)
{
	bool visible = (o->flush >> rail & 1) || (rail && strong);

	return (visible ? o->visible[rail] : o->done[rail]) >= n;
}
/* Is there perhaps a completion that rail 0 gave and the program has not got? dp_order_held() says it for certain. */
static inline bool dp_order_may_hold(const struct dp_order *o)
{
	return o->match != o->deliver;
}
/* One past the newest op that the program was told of: those from there on fill its send queue, as far as it knows. */
static inline uint64_t dp_order_given(const struct dp_order *o)
{
	return dp_order_may_hold(o) ? o->given : o->deliver;
}
static inline bool dp_order_queued(const struct dp_order *o)
{
	return o->post0 < o->next || o->posts < o->next;
}

#endif

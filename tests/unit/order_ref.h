/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * Two independent views of the order machine, and the lockstep that compares them with it:
 * the reference says, pair by pair and slowly, what may go when; the world is what the rails do with it, and says
 * whether anybody could see a pair reversed that the mode does not list.
 */
#ifndef DUALPORT_ORDER_REF_H
#define DUALPORT_ORDER_REF_H

#include <stdbool.h>
#include <stdint.h>

#include "order.h"

#define REF_MAX 256 /* WRs of one program */
#define REF_RAILS 4

/* One sort of WR. */
struct ref_kind {
	char name[24];
	unsigned flags;
	struct dp_range remote, local;
	bool cut; /* part[] applies when bonded */
	struct dp_part part[REF_RAILS];
	struct dp_range lpart[REF_RAILS];
};

struct ref {
	const struct ref_kind *kinds;
	enum dp_ordering mode;
	uint32_t nrails;
	bool bonded;
	uint16_t n;
	uint16_t posted0, posts;     /* positions below are posted on rail 0, on the siblings */
	uint16_t placed[REF_RAILS];  /* fragments of positions below are visible */
	uint16_t acked[REF_RAILS];   /* ... are acknowledged, as far as a completion told */
	uint16_t delivered;	     /* positions below were given, or will never be */
	uint8_t kind[REF_MAX];
	bool whole[REF_MAX];
	uint32_t flush;		     /* rails whose acknowledgements say nothing of visibility; acked[] there: visible */
	uint32_t flush0;	     /* 1: rail 0 will be one of them from a bond on */
	uint16_t nic[REF_RAILS];     /* there: acknowledged, as far as a completion told */
	uint16_t flushing[REF_RAILS]; /* a flush is on its way that covers positions below; else 0 */
	uint64_t covers[REF_RAILS];  /* its number: by the time it completes, the op's slot may be another's */
	uint32_t full0[REF_MAX], fulls[REF_MAX]; /* as in struct dp_op: beyond what the machine searches it waits for all */
	uint32_t search;
	uint32_t lost;		     /* rails that tell nothing any more */
	uint16_t native[REF_MAX]; /* outstanding when bonding: looks like a signal from that position on; else 0 */
};

struct world {
	struct dp_order o;
	struct ref r;
};

/* Called with the reason; must not return. */
extern void (*ref_fail)(const char *why);
/* Leave the verdict to the world alone: what is seen, what is given, what is stuck. For mutate-order.sh. */
extern bool ref_world_only;

/* Fills in part[], lpart[]: nparts equal parts of the ranges, the first on rail `first`, the next on the next. */
void ref_cut(struct ref_kind *k, uint32_t nrails, uint32_t nparts, uint32_t first);

/* Makes it a signal that goes whole on every rail, and answers to the program on rail 0 alone. */
void ref_every(struct ref_kind *k, uint32_t nrails);

void world_init(struct world *w, const struct ref_kind *kinds, uint32_t nrails, enum dp_ordering mode, uint64_t slots);
void world_fini(struct world *w);
void world_add(struct world *w, unsigned kind);
/* Adds WRs, takes them back, and demands that nothing is left of them. */
void world_undo(struct world *w, const unsigned *kinds, int n);
void world_bond(struct world *w);
void world_unbond(struct world *w);
void world_reset(struct world *w);
/* Posts what may go: on rail 0, on the siblings, or on both until nothing goes any more. */
bool world_post0(struct world *w);
bool world_posts(struct world *w);
void world_drive(struct world *w);
/* The next fragment on that rail becomes visible. False if there is none. */
bool world_place(struct world *w, uint32_t rail);
/* The next completion of that rail arrives (siblings: of up to n fragments at once). False if there is none. */
bool world_ack(struct world *w, uint32_t rail, unsigned n);
bool world_can_place(const struct world *w, uint32_t rail);
bool world_can_ack(const struct world *w, uint32_t rail);
/* From a bond on: these rails need flushes. Bit per rail. */
void world_set_flush(struct world *w, uint32_t rails);
/* A flush is posted if one is due, or the one on its way completes. False if there is neither. */
bool world_flush(struct world *w, uint32_t rail);
bool world_can_flush(const struct world *w, uint32_t rail);
/* Rail 0 is flushed no more, and nothing new goes to siblings. */
void world_spare_lost(struct world *w);
/* It breaks, and there is a new one at once. */
void world_spare_again(struct world *w);
/*
 * That sibling tells nothing any more, nor of its flushes. What it has may be seen or not; what waits is dropped with the
 * queue pair, and what was told is given. The caller drives no more.
 */
void world_rail_lost(struct world *w, uint32_t rail);
/* Gives the next completion to the program. False if there is none. */
bool world_deliver(struct world *w);
/* Machine and reference agree on everything that the caller of the machine can see. */
void world_compare(struct world *w);
/* Nothing can happen any more without the program: nothing may be left undone. */
void world_quiescent(struct world *w);

#endif

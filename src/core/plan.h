/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * The planner: how the bytes of one bulk WR are cut over the rails. Pure: no verbs calls, clocks or locks; it
 * sees only lengths and addresses.
 */
#ifndef DUALPORT_PLAN_H
#define DUALPORT_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <infiniband/verbs.h>
#include "config.h"

struct dp_plan_policy {
	uint32_t nrails;	       /* 1..DP_MAX_RAILS */
	uint64_t split_min;	       /* bytes; shorter WRs are not cut */
	uint64_t align;		       /* cut points are multiples of this *remote address*; a power of two, >= 128 */
	uint32_t weight[DP_MAX_RAILS]; /* 0: the rail gets nothing; sum > 0 */
	uint32_t first;		       /* rail that gets the first bytes (rotation), < nrails */
};

/* Part of a WR: bytes [offset, offset + len) of it go over one rail; len 0: no part there. */
struct dp_part {
	uint64_t offset;
	uint64_t len;
};

/*
 * Cuts [raddr, raddr + len) by weight: part[r] for r < nrails. Parts are disjoint, cover everything, and lie in
 * the order first, first + 1, ... (modulo nrails) in the WR. Each inner cut is a multiple of align in remote
 * address space (round to nearest); parts that would round to nothing vanish. Equal (raddr mod align, len)
 * give equal cuts. len < split_min, or nothing to cut: everything on rail 0. len may be up to 2^31.
 * Returns the number of rails with bytes.
 */
unsigned dp_plan_cut(const struct dp_plan_policy *pol, uint64_t raddr, uint64_t len, struct dp_part *part);

/*
 * The rail that gets the first bytes, of nrails, between two processes: the same for all their QPs, and as good as drawn
 * anew for each other pair. Cuts are rounded, so first parts are longer; without this all that a receiver gets would be
 * longer on its first port. mine, peers: what each is known by, len bytes; in the other direction it is another one.
 */
uint32_t dp_plan_first(const uint8_t *mine, const uint8_t *peers, size_t len, uint32_t nrails);

/* Whether to cut a bulk WR whose sibling parts have to wait until rail 0 acknowledges what stands before it. */
struct dp_patience {
	uint64_t rtt_ns; /* 0: unknown */
	uint64_t rate;	 /* of a port, bytes per second; 0: unknown */
	uint64_t bytes;	 /* of the WR */
	uint64_t part;	 /* the longest of its sibling parts */
	uint64_t others; /* bytes that other QPs send on rail 0 for each such WR of this one */
};

/*
 * True: cut, and wait. A QP that always does sends one such WR in the time of the part, the round trip that
 * acknowledges it, and that of the signal behind it, for which the next WR's part waits. If nothing is cut, rail 0's
 * port takes the time of all bytes, everybody's, and nobody waits. So waiting pays if others keep the ports busy
 * meanwhile, or if the part is long. False, if nothing is known yet: whole is never worse than one port.
 */
bool dp_plan_wait(const struct dp_patience *p);

/*
 * Writes to out[] the SGEs (of in[0..nin)) that cover part, in order, without empty ones; returns their number
 * (<= max), or -EINVAL if the part does not lie within the list, -E2BIG if more than max were needed.
 * keys: if not NULL, out[i].lkey = keys[index in in[]] instead of in[]'s.
 */
int dp_plan_sges(const struct ibv_sge *in, int nin, const struct dp_part *part, const uint32_t *keys,
		 struct ibv_sge *out, int max);

#endif

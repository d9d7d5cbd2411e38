/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef CLIENTS_RING_H
#define CLIENTS_RING_H

#include <stdatomic.h>
#include <stdbool.h>

#include "rc_pair.h"
#include "rng.h"

struct ring_cfg {
	const char *devs, *load, *lib;
	unsigned int procs, qps, seconds, size, remr, timeout_s, qp_timeout;
	int base_port, ib_port, gid, index, ctl;
	uint64_t seed;
	bool kill;
};

/* What a node tells the supervisor at its end. Edge 0 leads to the right neighbour, edge 1 to the left. */
struct ring_report {
	uint64_t sent[2], verified[2], mrs[2];
	uint32_t ups[2], downs[2], bad, errors;
	char first_status[2][40];	/* of the first error completion on that edge */
};

/*
 * One member of the ring: tells the supervisor at cfg->ctl 'U' once data has been verified on both edges, then goes on
 * until that says stop ('S', answered by 'Q' when nothing of its own is
 * under way) and exit ('X', answered by the report). The exit status of the process.
 */
int ring_node(const struct ring_cfg *cfg);

#endif

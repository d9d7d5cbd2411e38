/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* The sorts of WRs of which the programs for the order machine are made. */
#ifndef DUALPORT_ORDER_KINDS_H
#define DUALPORT_ORDER_KINDS_H

#include "order_ref.h"

enum {
	A,	/* bulk WRITE, cut */
	B,	/* disjoint from A */
	C,	/* overlaps A's halves crosswise */
	Arot,	/* A, cut the other way round */
	Asib,	/* A, whole on a sibling */
	Awhole, /* A, not to be cut */
	U,	/* bulk WRITE, not to be cut, nobody knows where */
	R,	/* bulk READ of A into X, cut */
	Rrot,	/* bulk READ of B into X, the other way round */
	Rsib,
	Bf,	/* fenced */
	RBf,	/* bulk READ of B into Y, fenced */
	F,	/* small WRITE elsewhere */
	Fin,	/* small WRITE into A */
	Ff,	/* fenced */
	T,	/* atomic */
	Tin,	/* atomic that answers into X */
	S,	/* SEND, ranges unknown */
	I,	/* WRITE_WITH_IMM into B */
	r,	/* small READ into X */
	E,	/* small READ into X on every rail */
	NKINDS
};
#define SIG NKINDS /* kind + SIG: the signalled variant */

extern struct ref_kind order_kinds[2 * NKINDS];

/* Fills in order_kinds[], cut for nrails. */
void order_make_kinds(uint32_t nrails);

#endif

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include "order_kinds.h"

#include <string.h>

struct ref_kind order_kinds[2 * NKINDS];

static void kind(int id, const char *name, unsigned flags, uint64_t lo, uint64_t hi, uint64_t llo, uint64_t lhi)
{
	order_kinds[id] = (struct ref_kind){ .flags = flags, .remote = { lo, hi }, .local = { llo, lhi } };
	strcpy(order_kinds[id].name, name);
}

void order_make_kinds(uint32_t nr)
{
	const unsigned b = DP_OP_BULK, p = DP_OP_PLAIN;

	kind(A, "write-A", b | p, 0, 12, 0, 0);
	kind(B, "write-B", b | p, 12, 24, 0, 0);
	kind(C, "write-C", b | p, 6, 18, 0, 0);
	kind(Arot, "write-A-rotated", b | p, 0, 12, 0, 0);
	kind(Asib, "write-A-sibling", b | p, 0, 12, 0, 0);
	kind(Awhole, "write-A-whole", b | p, 0, 12, 0, 0);
	kind(U, "write-unplaced", b | p | DP_OP_ALL, 0, 12, 0, 0);
	kind(R, "read-A-to-X", b | p | DP_OP_READ, 0, 12, 100, 112);
	kind(Rrot, "read-B-to-X-rotated", b | p | DP_OP_READ, 12, 24, 100, 112);
	kind(Rsib, "read-A-to-X-sibling", b | p | DP_OP_READ, 0, 12, 100, 112);
	kind(Bf, "write-B-fenced", b | p | DP_OP_FENCE, 12, 24, 0, 0);
	kind(RBf, "read-B-to-Y-fenced", b | p | DP_OP_READ | DP_OP_FENCE, 12, 24, 120, 132);
	kind(F, "flag", p, 30, 31, 0, 0);
	kind(Fin, "flag-in-A", p, 9, 10, 0, 0);
	kind(Ff, "flag-fenced", p | DP_OP_FENCE, 30, 31, 0, 0);
	kind(T, "atomic", DP_OP_ATOMIC, 32, 40, 140, 148);
	kind(Tin, "atomic-to-X", DP_OP_ATOMIC, 32, 40, 104, 112);
	kind(S, "send", DP_OP_ALL, 0, 0, 0, 0);
	kind(I, "write-imm-in-B", 0, 20, 21, 0, 0);
	kind(r, "small-read-to-X", p | DP_OP_READ, 1, 2, 109, 110);
	kind(E, "read-on-every", p | DP_OP_READ, 1, 2, 109, 110);
	ref_every(&order_kinds[E], nr);
	for (int i = 0; i < NKINDS; i++) {
		if (i == Arot || i == Rrot)
			ref_cut(&order_kinds[i], nr, nr, 1);
		else if (i == Asib || i == Rsib)
			ref_cut(&order_kinds[i], nr, 1, nr - 1);
		else if ((order_kinds[i].flags & DP_OP_BULK) && i != Awhole && i != U)
			ref_cut(&order_kinds[i], nr, nr, 0);
		order_kinds[i + SIG] = order_kinds[i];
		order_kinds[i + SIG].flags |= DP_OP_SIGNALED;
		strcat(order_kinds[i + SIG].name, "!");
	}
}

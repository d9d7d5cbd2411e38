/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * Litmus tests of order: small patterns of requests, each with what nobody may see. One process has all ends: "a" posts,
 * its peer "b" has the memory, and "c", another queue pair of a's device, is the third party, at whose other end "b2" the same
 * memory is registered.
 */
#ifndef CLIENTS_LITMUS_H
#define CLIENTS_LITMUS_H

#include "mini.h"

enum mode { M_RC, M_STRICT, M_SIGNAL, M_RELAXED, M_MODES };
#define IN(m) (1u << (m))
#define ALL_MODES (IN(M_RC) | IN(M_STRICT) | IN(M_SIGNAL) | IN(M_RELAXED))
#define NOT_RELAXED (ALL_MODES & ~IN(M_RELAXED))

#define BULK 65536u	/* of one data WRITE */
#define WORDS (BULK / 8)

/* In b's memory, and at the same places in a's, which has the sources there. */
#define AT_DATA 0u
#define AT_MORE (4 * BULK)	/* disjoint from it */
#define AT_FLAGS (8 * BULK)	/* words 64 bytes apart */
#define AT_RESULT (9 * BULK)	/* of READs and atomics */
#define MEMORY (12 * BULK)
#define FLAG(i) (AT_FLAGS + 64u * (i))

struct litmus {
	struct mini m;
	struct mend a, b, c, b2;
	struct ibv_mr *shared;	/* b's memory for b2 */
	uint64_t round;		/* from 1 on; each has its own data */
	uint64_t base[8];	/* for patterns, as b's flags were before the round */
	unsigned int posted, done; /* signalled requests of a, and their completions, which come in order */
};

struct pattern {
	const char *name, *what;
	unsigned int never;	/* modes in which what is looked for must not be seen */
	/* One round: whether it was seen. Has no request under way at its end. */
	bool (*round)(struct litmus *l);
};

extern const struct pattern patterns[];
extern const unsigned int npatterns;

/* ---- what patterns are made of (litmus.c) ---- */

/* n WRs of end e in one list; each of them as in mend_post(). */
void post(struct litmus *l, struct mend *e, const struct mwr *w, unsigned int n);
/* Polls a's CQ once; its completions must come in order and be good. */
void look(struct litmus *l);
/* Polls until a's signalled requests are complete. */
void finish(struct litmus *l);
/* A request of c, from posting to completion. */
void third_party(struct litmus *l, struct mwr w);

/* A word of b's memory, as a program that polls it sees it. */
uint64_t at_b(const struct litmus *l, size_t off);
/* How many words of BULK bytes have this value. */
unsigned int count_words(const uint8_t *p, uint64_t value);

/* A WRITE of the round's data, whole or as a flag. */
struct mwr data(const struct litmus *l, size_t at, int flags);
struct mwr flag(const struct litmus *l, unsigned int i, enum ibv_wr_opcode op, int flags);
/* Waits until flag i has the value that flag() gives it in this round, polling a meanwhile. */
void wait_flag(struct litmus *l, unsigned int i);
bool flag_is_up(const struct litmus *l, unsigned int i);

#endif

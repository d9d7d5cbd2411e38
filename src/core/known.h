/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * Records of the program's extended QPs and CQs, of which each thread remembers the one that it used last and so is spared the
 * look-ups. Their memory is never given back, only used again for another of its kind: whatever became of the one that a
 * thread remembers, its first words can be read, and tell whether it is still that of the object in question.
 */
#ifndef DUALPORT_KNOWN_H
#define DUALPORT_KNOWN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * What a record begins with. All zero: of no object. Read relaxed: the program has made an object known to the thread that uses
 * it, and with it what went before, the end of another that had its address included.
 */
struct dp_known {
	_Atomic(const void *) ex;   /* the program's object, once it was used, until it is going to be destroyed */
	_Atomic(const void *) open; /* the same, while a session of it is collected here, or a polling is ours */
	struct dp_known *next;
};

/* size bytes, all zero, or NULL. spare: those of a kind, of one size, that are not in use. */
void *dp_known_get(struct dp_known **spare, size_t size);
void dp_known_put(struct dp_known **spare, struct dp_known *k);
void dp_known_after_fork(void);

static inline bool dp_known_is(const struct dp_known *k, const void *ex)
{
	return atomic_load_explicit(&k->ex, memory_order_relaxed) == ex;
}

static inline bool dp_known_open(const struct dp_known *k, const void *ex)
{
	return atomic_load_explicit(&k->open, memory_order_relaxed) == ex;
}

/* seq_cst: who looks afterwards whether it may still be found, and who hides it after having changed that, see each other. */
static inline void dp_known_found(struct dp_known *k, const void *ex)
{
	atomic_store_explicit(&k->ex, ex, memory_order_seq_cst);
}

/* ex NULL: it is not open any more. */
static inline void dp_known_set_open(struct dp_known *k, const void *ex)
{
	atomic_store_explicit(&k->open, ex, memory_order_relaxed);
}

/*
 * The object is going to be destroyed: nobody takes what gets its address for it. Should that be refused, a look-up finds it
 * again, and what is open is so still.
 */
static inline void dp_known_hide(struct dp_known *k)
{
	dp_known_found(k, NULL);
}

/* It was, maybe with something open. */
static inline void dp_known_gone(struct dp_known *k)
{
	dp_known_found(k, NULL);
	dp_known_set_open(k, NULL);
}

#endif

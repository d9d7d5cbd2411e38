/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * Number or pointer -> pointer, read without a lock. Looking up a key while that very key is removed may give
 * the old value or NULL; changes to other keys never disturb a look-up.
 */
#ifndef DUALPORT_HMAP_H
#define DUALPORT_HMAP_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include "hidden.h"
#include "lock.h"

struct dp_hslot {
	_Atomic uint64_t key; /* DP_HMAP_UNUSED: never used */
	_Atomic(void *) val;  /* NULL: removed */
};

#define DP_HMAP_UNUSED UINT64_MAX

struct dp_htab {
	struct dp_htab *retired; /* a smaller one that readers may still look at */
	size_t mask;		 /* of a slot's offset: (slots - 1) * its size; slots: a power of two, at most 2^28 */
	struct dp_hslot slot[];
};

struct dp_hmap {
	_Atomic(struct dp_htab *) tab;
	size_t live, used; /* used: slots with a key, removed ones included */
	dp_lock lock;
};

/* A map's table before the first key comes: look-ups need not ask whether there is one. */
extern DP_HIDDEN struct dp_htab dp_hmap_none;

#define DP_HMAP_INIT { .tab = &dp_hmap_none, .lock = PTHREAD_MUTEX_INITIALIZER }

void dp_hmap_init(struct dp_hmap *m);
void dp_hmap_fini(struct dp_hmap *m); /* no reader may be left */

/* Sets key (not UINT64_MAX) to val (not NULL). 0 or -ENOMEM. */
int dp_hmap_put(struct dp_hmap *m, uint64_t key, void *val);
/* Removes key and returns what it had, or NULL. */
void *dp_hmap_del(struct dp_hmap *m, uint64_t key);
/* Removes key if it has val. */
void dp_hmap_del_if(struct dp_hmap *m, uint64_t key, const void *val);
/* dp_hmap_get() with the map locked, and hold(value) before it is unlocked. */
void *dp_hmap_get_held(struct dp_hmap *m, uint64_t key, void (*hold)(void *val));
/* Calls fn for each value, with the map locked against changes. */
void dp_hmap_each(struct dp_hmap *m, void (*fn)(void *val, void *arg), void *arg);

/* The offset, in slot[], where the search for key begins. A byte offset: it spares post_send instructions. */
static inline size_t dp_hmap_hash(const struct dp_htab *t, uint64_t key)
{
	/* twice: one multiplication puts numbers that grow by steps side by side: for trim() a run without end */
	key *= UINT64_C(0x9e3779b97f4a7c15);
	return (size_t)((key >> 32) * (key >> 40)) & t->mask;
}

static inline size_t dp_hmap_next(const struct dp_htab *t, size_t at)
{
	return (at + sizeof(t->slot[0])) & t->mask;
}

static inline struct dp_hslot *dp_hmap_at(const struct dp_htab *t, size_t at)
{
	/* from the table's beginning: so its offset there costs nothing */
	return (struct dp_hslot *)((char *)t + at + offsetof(struct dp_htab, slot));
}

static inline void *dp_hmap_get(const struct dp_hmap *m, uint64_t key)
{
	/* acquire: the slots were filled before the table was published */
	const struct dp_htab *t = atomic_load_explicit(&m->tab, memory_order_acquire);

	for (size_t at = dp_hmap_hash(t, key);; at = dp_hmap_next(t, at)) {
		const struct dp_hslot *s = dp_hmap_at(t, at);
		uint64_t k = atomic_load_explicit(&s->key, memory_order_acquire);

		if (__builtin_expect(k == key, 1)) {
			/* acquire: what val points to was written before val was */
			void *val = atomic_load_explicit(&s->val, memory_order_acquire);

			/* the slot may be another key's by now: its key, or none, was stored before its val */
			return atomic_load_explicit(&s->key, memory_order_relaxed) == key ? val : NULL;
		}
		if (k == DP_HMAP_UNUSED)
			return NULL;
	}
}

static inline void *dp_hmap_getp(const struct dp_hmap *m, const void *p)
{
	return dp_hmap_get(m, (uint64_t)(uintptr_t)p);
}

#endif

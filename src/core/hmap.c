// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include "hmap.h"

#include <errno.h>
#include <stdlib.h>

#define FIRST_SLOTS 64

struct dp_htab dp_hmap_none = { .mask = 0, .slot = { { .key = DP_HMAP_UNUSED } } };

static size_t slots(const struct dp_htab *t)
{
	return t->mask / sizeof(t->slot[0]) + 1;
}

void dp_hmap_init(struct dp_hmap *m)
{
	atomic_init(&m->tab, &dp_hmap_none);
	m->live = m->used = 0;
	dp_lock_init(&m->lock);
}

void dp_hmap_fini(struct dp_hmap *m)
{
	struct dp_htab *t = atomic_load(&m->tab), *old;

	for (; t != &dp_hmap_none; t = old) {
		old = t->retired;
		free(t);
	}
	atomic_store(&m->tab, &dp_hmap_none);
	dp_lock_fini(&m->lock);
}

static void insert_new(struct dp_htab *t, uint64_t key, void *val)
{
	size_t at = dp_hmap_hash(t, key);

	while (atomic_load_explicit(&dp_hmap_at(t, at)->key, memory_order_relaxed) != DP_HMAP_UNUSED)
		at = dp_hmap_next(t, at);
	atomic_store_explicit(&dp_hmap_at(t, at)->val, val, memory_order_relaxed);
	atomic_store_explicit(&dp_hmap_at(t, at)->key, key, memory_order_relaxed);
}

/*
 * Moves what is live to a table of fitting size. Readers may be inside the old one at any time, so it stays
 * until the map goes. Slots of removed keys are used again or freed, hence mere churn does not lead here.
 */
static int rehash(struct dp_hmap *m)
{
	struct dp_htab *old = atomic_load_explicit(&m->tab, memory_order_relaxed), *t;
	size_t n = FIRST_SLOTS;

	while (n < m->live * 4)
		n *= 2;
	t = calloc(1, sizeof(*t) + n * sizeof(t->slot[0]));
	if (!t)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		atomic_init(&t->slot[i].key, DP_HMAP_UNUSED);
	t->mask = (n - 1) * sizeof(t->slot[0]);
	t->retired = old;
	for (size_t i = 0; i < slots(old); i++) {
		void *val = atomic_load_explicit(&old->slot[i].val, memory_order_relaxed);

		if (val)
			insert_new(t, atomic_load_explicit(&old->slot[i].key, memory_order_relaxed), val);
	}
	m->used = m->live;
	atomic_store_explicit(&m->tab, t, memory_order_release);
	return 0;
}

int dp_hmap_put(struct dp_hmap *m, uint64_t key, void *val)
{
	struct dp_hslot *free_slot = NULL, *s;
	struct dp_htab *t;
	int ret = 0;

	dp_take(&m->lock);
	t = atomic_load_explicit(&m->tab, memory_order_relaxed);
	if ((m->used + 1) * 4 > slots(t) * 3) {
		ret = rehash(m);
		if (ret)
			goto out;
		t = atomic_load_explicit(&m->tab, memory_order_relaxed);
	}
	for (size_t at = dp_hmap_hash(t, key);; at = dp_hmap_next(t, at)) {
		uint64_t k;

		s = dp_hmap_at(t, at);
		k = atomic_load_explicit(&s->key, memory_order_relaxed);
		if (k == key) {
			m->live += !atomic_load_explicit(&s->val, memory_order_relaxed);
			atomic_store_explicit(&s->val, val, memory_order_release);
			goto out;
		}
		if (k == DP_HMAP_UNUSED)
			break;
		if (!free_slot && !atomic_load_explicit(&s->val, memory_order_relaxed))
			free_slot = s;
	}
	m->live++;
	if (free_slot) {
		s = free_slot;
		/* a reader that sees the new key must not find the old one's value: it is NULL since removal */
		atomic_store_explicit(&s->key, key, memory_order_release);
		atomic_store_explicit(&s->val, val, memory_order_release);
	} else {
		m->used++;
		/* release: as above, for a reader that saw a key that stood here before */
		atomic_store_explicit(&s->val, val, memory_order_release);
		atomic_store_explicit(&s->key, key, memory_order_release);
	}
out:
	dp_drop(&m->lock);
	return ret;
}

/*
 * Slots of removed keys with nothing behind them are free again: no look-up has to pass them. Else churn with ever
 * new keys would fill the table with them, and each rehash leaves one more table behind.
 */
static void trim(struct dp_hmap *m, struct dp_htab *t, size_t i)
{
	size_t mask = slots(t) - 1;

	if (atomic_load_explicit(&t->slot[(i + 1) & mask].key, memory_order_relaxed) != DP_HMAP_UNUSED)
		return;
	for (;; i--) {
		struct dp_hslot *s = &t->slot[i & mask];

		if (atomic_load_explicit(&s->key, memory_order_relaxed) == DP_HMAP_UNUSED ||
		    atomic_load_explicit(&s->val, memory_order_relaxed))
			return;
		atomic_store_explicit(&s->key, DP_HMAP_UNUSED, memory_order_release);
		m->used--;
	}
}

/* only: NULL: whatever it has. */
static void *del(struct dp_hmap *m, uint64_t key, const void *only)
{
	struct dp_htab *t;
	void *val = NULL;

	dp_take(&m->lock);
	t = atomic_load_explicit(&m->tab, memory_order_relaxed);
	for (size_t at = dp_hmap_hash(t, key);; at = dp_hmap_next(t, at)) {
		struct dp_hslot *s = dp_hmap_at(t, at);
		uint64_t k = atomic_load_explicit(&s->key, memory_order_relaxed);

		if (k == DP_HMAP_UNUSED)
			break;
		if (k == key) {
			if (only && atomic_load_explicit(&s->val, memory_order_relaxed) != only)
				break;
			val = atomic_exchange_explicit(&s->val, NULL, memory_order_acq_rel);
			m->live -= val != NULL;
			trim(m, t, (size_t)(s - t->slot));
			break;
		}
	}
	dp_drop(&m->lock);
	return val;
}

void *dp_hmap_del(struct dp_hmap *m, uint64_t key)
{
	return del(m, key, NULL);
}

void dp_hmap_del_if(struct dp_hmap *m, uint64_t key, const void *val)
{
	del(m, key, val);
}

void *dp_hmap_get_held(struct dp_hmap *m, uint64_t key, void (*hold)(void *val))
{
	void *val;

	dp_take(&m->lock);
	val = dp_hmap_get(m, key);
	if (val)
		hold(val);
	dp_drop(&m->lock);
	return val;
}

void dp_hmap_each(struct dp_hmap *m, void (*fn)(void *val, void *arg), void *arg)
{
	struct dp_htab *t;

	dp_take(&m->lock);
	t = atomic_load_explicit(&m->tab, memory_order_relaxed);
	for (size_t i = 0; i < slots(t); i++) {
		void *val = atomic_load_explicit(&t->slot[i].val, memory_order_relaxed);

		if (val)
			fn(val, arg);
	}
	dp_drop(&m->lock);
}

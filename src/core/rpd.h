/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* Between rkeys.c and rkeys_msg.c: what is known of one PD of one peer. */
#ifndef DUALPORT_CORE_RPD_H
#define DUALPORT_CORE_RPD_H

#include "rkeys.h"

#include <stdlib.h>
#include "peer/wire.h"

#define MAX_ENTRIES (1u << 20) /* per remote PD */
#define MAX_UNASKED (1u << 17) /* as many as that are taken without having been asked for; the owner lists fewer */
#define NONE_NS 100000000u     /* how long "no twin" is believed */

/*
 * Absent, pending (a pull is on its way), none (the owner said so, or a pull is to be tried again) or known. Fields
 * other than keys: rpd->lock.
 */
struct entry {
	/* Set once: from NULL to what lives as long as the entry. */
	_Atomic(struct dp_rkeys *) keys;
	_Atomic uint64_t none_until; /* 0: a pull is on its way, or was when the keys came */
	uint32_t rkey;
	struct entry *next; /* to be freed */
};

struct dp_rpd {
	_Atomic(struct dp_peer *) peer; /* NULL: gone */
	uint32_t pd_id;
	bool self;
	uint32_t watch; /* [control] the id to be in the end mark */
	bool ready;	/* [control] it was */
	_Atomic uint32_t refs;
	_Atomic bool relaxed;	/* a key of memory of relaxed order was known */
	struct dp_hmap entries; /* rkey -> struct entry */
	dp_lock lock;
	uint32_t nentries, npending;
	uint32_t *pull; /* rkeys to ask for */
	uint32_t npull, cap_pull;
	bool pull_called, sweep_called;
	struct dp_rpd *next; /* rkeys.c, its lock */
};

struct dp_rpd *dp_rpd_find(struct dp_peer *peer, uint32_t pd_id); /* held, or NULL */

/* With rpd->lock. NULL: no memory, or max entries are there. */
struct entry *dp_entry_new(struct dp_rpd *rpd, uint32_t rkey, uint32_t max);
void dp_entry_free(void *entry, void *unused);

/* Waits until nobody uses what could be found before; without locks. */
void dp_key_barrier(void);
/* That, and frees them. */
void dp_entries_free(struct entry *dead);

static inline bool dp_entry_pending(const struct entry *e)
{
	return !atomic_load_explicit(&e->none_until, memory_order_relaxed) &&
	       !atomic_load_explicit(&e->keys, memory_order_relaxed);
}

#endif

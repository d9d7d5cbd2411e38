// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The holder's side of remote keys: pulls the keys of a peer's twins on first use, forgets them when told. */
#include "rkeys.h"

#include <stdlib.h>
#include "peer/wire.h"

#define MAX_ENTRIES (1u << 20) /* per remote PD */
#define MAX_PENDING 4096u      /* pulls without an answer, per remote PD */
#define NONE_NS 100000000u     /* how long "no twin" is believed */

/* Fields other than keys: rpd->lock. */
struct entry {
	/* Set once: from NULL to an array that lives as long as the entry. */
	_Atomic(uint32_t *) keys;
	uint32_t n;
	_Atomic uint64_t none_until; /* 0: a pull is on its way */
	uint32_t rkey;
	struct entry *next; /* to be freed */
};

struct dp_rpd {
	_Atomic(struct dp_peer *) peer; /* NULL: gone */
	uint32_t pd_id;
	bool self;
	_Atomic uint32_t refs;
	struct dp_hmap entries; /* rkey -> struct entry */
	dp_lock lock;
	uint32_t nentries, npending;
	uint32_t *pull; /* rkeys to ask for */
	uint32_t npull, cap_pull;
	bool pull_called, sweep_called;
	struct dp_rpd *next; /* rpds_lock */
};

static dp_lock rpds_lock = PTHREAD_MUTEX_INITIALIZER;
static struct dp_rpd *rpds;
static _Atomic uint32_t rpds_to_self;

/* ---- remote PDs */

static struct dp_rpd *find_held(struct dp_peer *peer, uint32_t pd_id)
{
	struct dp_rpd *r;

	dp_take(&rpds_lock);
	for (r = rpds; r; r = r->next)
		if (r->pd_id == pd_id && atomic_load_explicit(&r->peer, memory_order_relaxed) == peer)
			break;
	if (r)
		atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
	dp_drop(&rpds_lock);
	return r;
}

struct dp_rpd *dp_rpd_get(struct dp_peer *peer, uint32_t pd_id)
{
	struct dp_rpd *r = find_held(peer, pd_id);

	if (r)
		return r;
	r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	atomic_init(&r->peer, peer);
	atomic_init(&r->refs, 1);
	r->pd_id = pd_id;
	r->self = dp_peer_is_self(peer);
	if (r->self)
		atomic_fetch_add(&rpds_to_self, 1);
	dp_hmap_init(&r->entries);
	dp_lock_init(&r->lock);
	dp_take(&rpds_lock); /* only this thread adds */
	r->next = rpds;
	rpds = r;
	dp_drop(&rpds_lock);
	return r;
}

bool dp_rpd_none_to_self(void)
{
	return !atomic_load(&rpds_to_self);
}

static void free_entry(void *val, void *arg)
{
	struct entry *e = val;

	(void)arg;
	free(atomic_load_explicit(&e->keys, memory_order_relaxed));
	free(e);
}

static void rpd_hold(struct dp_rpd *rpd)
{
	atomic_fetch_add_explicit(&rpd->refs, 1, memory_order_relaxed);
}

void dp_rpd_put(struct dp_rpd *rpd)
{
	struct dp_rpd **at;

	dp_take(&rpds_lock); /* or it could be found again at its end */
	/* acq_rel: whoever frees it sees all that the others did with it */
	if (atomic_fetch_sub_explicit(&rpd->refs, 1, memory_order_acq_rel) != 1) {
		dp_drop(&rpds_lock);
		return;
	}
	for (at = &rpds; *at && *at != rpd; at = &(*at)->next)
		;
	if (*at)
		*at = rpd->next;
	dp_drop(&rpds_lock);
	if (rpd->self)
		atomic_fetch_sub(&rpds_to_self, 1);
	dp_hmap_each(&rpd->entries, free_entry, NULL);
	dp_hmap_fini(&rpd->entries);
	dp_lock_fini(&rpd->lock);
	free(rpd->pull);
	free(rpd);
}

/* ---- safe removal */

static void barrier_one(struct dp_qp *q, void *arg)
{
	(void)arg;
	dp_take(&q->lock);
	dp_drop(&q->lock);
}

/*
 * Whoever looked up a key before it was unlinked did so with the lock of its QP held, and has posted with it by
 * the time that we had that lock, too. After this no new fragment uses what was unlinked.
 */
static void barrier(void)
{
	dp_qp_each(barrier_one, NULL);
}

static void free_entries(struct entry *e)
{
	struct entry *next;

	for (; e; e = next) {
		next = e->next;
		free_entry(e, NULL);
	}
}

/* Pulls on their way are left alone: the answer is newer than whatever is invalidated now. */
static struct entry *unlink_known(struct dp_rpd *rpd, uint32_t rkey)
{
	struct entry *e;

	dp_take(&rpd->lock);
	e = dp_hmap_get(&rpd->entries, rkey);
	if (e && !atomic_load_explicit(&e->keys, memory_order_relaxed))
		e = NULL;
	if (e) {
		dp_hmap_del(&rpd->entries, rkey);
		rpd->nentries--;
	}
	dp_drop(&rpd->lock);
	return e;
}

struct sweep {
	uint64_t now;
	uint32_t n;
	struct dp_rpd *rpd;
	uint32_t rkeys[4096];
};

static void sweep_one(void *val, void *arg)
{
	struct sweep *s = arg;
	struct entry *e = val;
	uint64_t until = atomic_load_explicit(&e->none_until, memory_order_relaxed);

	if (!atomic_load_explicit(&e->keys, memory_order_relaxed) && until && until <= s->now &&
	    s->n < sizeof(s->rkeys) / sizeof(s->rkeys[0]))
		s->rkeys[s->n++] = e->rkey;
}

/* [control] Drops answers "no twin" that nobody asked for again. */
static void sweep(void *arg)
{
	static struct sweep s;
	struct dp_rpd *rpd = arg;
	struct entry *dead = NULL, *e;

	s.now = dp_now_ns();
	s.n = 0;
	dp_take(&rpd->lock);
	dp_hmap_each(&rpd->entries, sweep_one, &s);
	while (s.n) {
		e = dp_hmap_del(&rpd->entries, s.rkeys[--s.n]);
		e->next = dead;
		dead = e;
		rpd->nentries--;
	}
	rpd->sweep_called = false;
	dp_drop(&rpd->lock);
	if (dead)
		barrier();
	free_entries(dead);
	dp_rpd_put(rpd);
}

/* ---- pulls */

/* [control] */
static void pull(void *arg)
{
	struct dp_rpd *rpd = arg;
	struct dp_peer *peer = atomic_load_explicit(&rpd->peer, memory_order_relaxed);
	uint8_t buf[6 + 4 * DP_KEYS_BATCH];
	uint32_t n;

	do {
		struct dp_wbuf b = { .p = buf, .cap = sizeof(buf) };

		dp_take(&rpd->lock);
		n = rpd->npull < DP_KEYS_BATCH ? rpd->npull : DP_KEYS_BATCH;
		dp_put32(&b, rpd->pd_id);
		dp_put16(&b, (uint16_t)n);
		for (uint32_t i = 0; i < n; i++)
			dp_put32(&b, rpd->pull[--rpd->npull]);
		if (!rpd->npull)
			rpd->pull_called = false;
		dp_drop(&rpd->lock);
		if (n && peer)
			dp_peer_send(peer, DP_MSG_KEYS_PULL, buf, b.len); /* if it fails, gone() follows */
	} while (n == DP_KEYS_BATCH);
	dp_rpd_put(rpd);
}

static bool pending(const struct entry *e)
{
	return !atomic_load_explicit(&e->none_until, memory_order_relaxed) &&
	       !atomic_load_explicit(&e->keys, memory_order_relaxed);
}

static bool pull_add(struct dp_rpd *rpd, uint32_t rkey)
{
	if (rpd->npull == rpd->cap_pull) {
		uint32_t cap = rpd->cap_pull ? rpd->cap_pull * 2 : 16;
		uint32_t *p = realloc(rpd->pull, cap * sizeof(*p));

		if (!p)
			return false;
		rpd->pull = p;
		rpd->cap_pull = cap;
	}
	rpd->pull[rpd->npull++] = rkey;
	return true;
}

static void not_asked(struct dp_rpd *rpd)
{
	struct entry *e;

	dp_take(&rpd->lock);
	while (rpd->npull) {
		e = dp_hmap_get(&rpd->entries, rpd->pull[--rpd->npull]);
		if (!e || !pending(e)) /* answered without being asked */
			continue;
		atomic_store_explicit(&e->none_until, dp_now_ns() + NONE_NS, memory_order_relaxed);
		rpd->npending--;
	}
	rpd->pull_called = false;
	dp_drop(&rpd->lock);
	dp_rpd_put(rpd);
}

static struct entry *entry_new(struct dp_rpd *rpd, uint32_t rkey)
{
	struct entry *e;

	if (rpd->nentries == MAX_ENTRIES)
		return NULL;
	e = calloc(1, sizeof(*e));
	if (!e)
		return NULL;
	e->rkey = rkey;
	atomic_init(&e->none_until, 1); /* long ago */
	if (dp_hmap_put(&rpd->entries, rkey, e)) {
		free(e);
		return NULL;
	}
	rpd->nentries++;
	return e;
}

static enum dp_fallback ask(struct dp_rpd *rpd, uint32_t rkey)
{
	enum dp_fallback why = DP_FB_RKEY_PENDING;
	bool call_pull = false, call_sweep = false;
	struct entry *e;

	dp_take(&rpd->lock);
	e = dp_hmap_get(&rpd->entries, rkey);
	if (e && !atomic_load_explicit(&e->none_until, memory_order_relaxed))
		goto out; /* another thread was faster */
	if (rpd->npending == MAX_PENDING)
		goto out;
	if (!e)
		e = entry_new(rpd, rkey);
	if (!e) {
		call_sweep = rpd->nentries == MAX_ENTRIES && !rpd->sweep_called;
		rpd->sweep_called |= call_sweep;
		why = DP_FB_RKEY_NONE;
		goto out;
	}
	if (!pull_add(rpd, rkey))
		goto out;
	atomic_store_explicit(&e->none_until, 0, memory_order_relaxed);
	rpd->npending++;
	call_pull = !rpd->pull_called;
	rpd->pull_called = true;
out:
	dp_drop(&rpd->lock);
	if (call_pull) {
		rpd_hold(rpd);
		if (dp_peer_call(pull, rpd))
			not_asked(rpd);
	}
	if (call_sweep) {
		rpd_hold(rpd);
		if (dp_peer_call(sweep, rpd)) {
			dp_take(&rpd->lock);
			rpd->sweep_called = false;
			dp_drop(&rpd->lock);
			dp_rpd_put(rpd);
		}
	}
	return why;
}

const uint32_t *dp_rkey_get(struct dp_rpd *rpd, uint32_t rkey, uint32_t *n, enum dp_fallback *why)
{
	/* acquire: pairs with gone(), which waits for our QP's lock before the peer goes */
	struct dp_peer *peer = atomic_load_explicit(&rpd->peer, memory_order_acquire);
	const uint32_t *keys;
	struct entry *e;
	uint64_t until;

	if (__builtin_expect(!peer, 0)) {
		*why = DP_FB_PEER_GONE;
		return NULL;
	}
	if (__builtin_expect(!dp_peer_lease_valid(peer), 0)) {
		*why = DP_FB_LEASE_EXPIRED;
		return NULL;
	}
	e = dp_hmap_get(&rpd->entries, rkey);
	if (!e) {
		*why = ask(rpd, rkey);
		return NULL;
	}
	/* acquire: n and the array were written before */
	keys = atomic_load_explicit(&e->keys, memory_order_acquire);
	if (keys) {
		*n = e->n;
		return keys;
	}
	until = atomic_load_explicit(&e->none_until, memory_order_relaxed);
	if (!until)
		*why = DP_FB_RKEY_PENDING;
	else if (dp_now_ns() < until)
		*why = DP_FB_RKEY_NONE;
	else
		*why = ask(rpd, rkey);
	return NULL;
}

/* ---- messages */

static bool is_self(struct dp_peer *peer, void *arg)
{
	if (!dp_peer_is_self(peer))
		return true;
	*(struct dp_peer **)arg = peer;
	return false;
}

struct dp_peer *dp_self_peer(void)
{
	struct dp_peer *self = NULL;

	dp_peer_each(is_self, &self);
	return self;
}

void dp_keys_malformed(struct dp_peer *peer, uint16_t type, size_t len)
{
	static _Atomic bool said;

	if (!atomic_exchange(&said, true))
		dp_warn("peer %s: malformed message 0x%x of %zu bytes about remote keys: ignored, as are later ones",
			dp_peer_text(peer), type, len);
}

static void keys_are(struct dp_peer *peer, const uint8_t *data, size_t len)
{
	struct dp_rbuf b = { .p = data, .len = len };
	uint32_t id = dp_get32(&b), rkey = dp_get32(&b);
	uint8_t n = dp_get8(&b);
	uint32_t *keys = NULL;
	struct dp_rpd *rpd;
	struct entry *e;

	if (b.bad || n > DP_MAX_RAILS || b.len != n * 4u) {
		dp_keys_malformed(peer, DP_MSG_KEYS_ARE, len);
		return;
	}
	if (n)
		keys = malloc(n * sizeof(*keys)); /* without memory: as if there were no twins */
	for (uint32_t i = 0; keys && i < n; i++)
		keys[i] = dp_get32(&b);
	rpd = find_held(peer, id);
	if (!rpd)
		goto out; /* un-bonded meanwhile */
	dp_take(&rpd->lock);
	e = dp_hmap_get(&rpd->entries, rkey);
	if (e && pending(e)) {
		rpd->npending--;
		if (keys) {
			e->n = n;
			/* release: readers take no lock */
			atomic_store_explicit(&e->keys, keys, memory_order_release);
			keys = NULL;
		} else {
			atomic_store_explicit(&e->none_until, dp_now_ns() + NONE_NS, memory_order_relaxed);
		}
	}
	dp_drop(&rpd->lock);
	dp_rpd_put(rpd);
out:
	free(keys);
}

static void invalidate(struct dp_peer *peer, const uint8_t *data, size_t len)
{
	static uint8_t buf[2 + DP_KEYS_BATCH * 8];
	struct dp_rbuf b = { .p = data, .len = len }, again;
	struct dp_wbuf acks = { .p = buf, .cap = sizeof(buf) };
	uint16_t n = dp_get16(&b), nacks = 0;
	struct entry *dead = NULL, *e;
	struct dp_rpd *rpd;

	if (b.bad || !n || n > DP_KEYS_BATCH || b.len != n * 17u) {
		dp_keys_malformed(peer, DP_MSG_KEYS_INVAL, len);
		return;
	}
	again = b;
	for (uint16_t i = 0; i < n; i++) {
		uint32_t id = dp_get32(&b), rkey = dp_get32(&b);

		dp_get64(&b);
		dp_get8(&b);
		rpd = find_held(peer, id);
		if (!rpd)
			continue;
		e = unlink_known(rpd, rkey);
		if (e) {
			e->next = dead;
			dead = e;
		}
		dp_rpd_put(rpd);
	}
	if (dead)
		barrier();
	free_entries(dead);

	dp_put16(&acks, 0);
	for (uint16_t i = 0; i < n; i++) {
		uint32_t id = dp_get32(&again);
		uint64_t seq;
		uint8_t flags;

		dp_get32(&again);
		seq = dp_get64(&again);
		flags = dp_get8(&again);
		rpd = flags & DP_INVAL_DRAIN ? find_held(peer, id) : NULL;
		if (rpd) {
			dp_ack_later(peer, rpd, seq);
			dp_rpd_put(rpd);
		} else {
			dp_put64(&acks, seq);
			nacks++;
		}
	}
	buf[0] = (uint8_t)(nacks >> 8);
	buf[1] = (uint8_t)nacks;
	if (nacks)
		dp_peer_send(peer, DP_MSG_KEYS_ACK, buf, acks.len);
}

void dp_rkeys_message(struct dp_peer *peer, uint16_t type, const uint8_t *data, size_t len)
{
	switch (type) {
	case DP_MSG_KEYS_PULL:
		dp_owner_pull(peer, data, len);
		break;
	case DP_MSG_KEYS_ARE:
		keys_are(peer, data, len);
		break;
	case DP_MSG_KEYS_INVAL:
		invalidate(peer, data, len);
		break;
	case DP_MSG_KEYS_ACK:
		dp_owner_ack(peer, data, len);
		break;
	default:
		dp_keys_malformed(peer, type, len);
	}
}

void dp_rkeys_gone(struct dp_peer *peer)
{
	bool any = false;

	dp_take(&rpds_lock);
	for (struct dp_rpd *r = rpds; r; r = r->next) {
		if (atomic_load_explicit(&r->peer, memory_order_relaxed) != peer)
			continue;
		atomic_store_explicit(&r->peer, NULL, memory_order_release);
		any = true;
	}
	dp_drop(&rpds_lock);
	if (any)
		barrier(); /* posters may be looking at the peer's lease */
	dp_acks_gone(peer);
	dp_owner_gone(peer);
}

void dp_keys_after_fork(void)
{
	dp_lock_init(&rpds_lock);
	for (struct dp_rpd *r = rpds; r; r = r->next) {
		dp_lock_init(&r->lock);
		dp_lock_init(&r->entries.lock);
		atomic_store(&r->peer, NULL);
	}
	dp_acks_after_fork();
	dp_pd_after_fork();
	dp_mr_after_fork();
	dp_owner_after_fork();
}

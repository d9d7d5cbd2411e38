// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The holder's side of remote keys: watches the peer's PD, looks keys up, pulls what is used and not known.
 */
#include "rpd.h"

#define MAX_PENDING 4096u      /* pulls without an answer, per remote PD */

static dp_lock rpds_lock = PTHREAD_MUTEX_INITIALIZER;
static struct dp_rpd *rpds;
static _Atomic uint32_t rpds_to_self;

/* ---- remote PDs */

struct dp_rpd *dp_rpd_find(struct dp_peer *peer, uint32_t pd_id)
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
	struct dp_rpd *r = dp_rpd_find(peer, pd_id);
	static uint32_t last_watch; /* [control] */
	uint8_t buf[8];
	struct dp_wbuf b = { .p = buf, .cap = sizeof(buf) };

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
	r->watch = ++last_watch;
	dp_take(&rpds_lock); /* only this thread adds */
	r->next = rpds;
	rpds = r;
	dp_drop(&rpds_lock);
	dp_put32(&b, pd_id);
	dp_put32(&b, r->watch);
	dp_peer_send(peer, DP_MSG_KEYS_WATCH, buf, b.len); /* if it fails, gone() follows */
	return r;
}

bool dp_rpd_ready(const struct dp_rpd *rpd)
{
	return rpd->ready || !atomic_load_explicit(&rpd->peer, memory_order_relaxed);
}

bool dp_rpd_none_to_self(void)
{
	return !atomic_load(&rpds_to_self);
}

static void rpd_hold(struct dp_rpd *rpd)
{
	atomic_fetch_add_explicit(&rpd->refs, 1, memory_order_relaxed);
}

void dp_rpd_put(struct dp_rpd *rpd)
{
	struct dp_peer *peer;
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
	/* the last put is the control thread's: whoever else has one looks keys up for a QP, which has its own */
	peer = atomic_load_explicit(&rpd->peer, memory_order_relaxed);
	if (peer) {
		uint8_t buf[4];
		struct dp_wbuf b = { .p = buf, .cap = sizeof(buf) };

		dp_put32(&b, rpd->pd_id);
		dp_peer_send(peer, DP_MSG_KEYS_UNWATCH, buf, b.len);
	}
	if (rpd->self)
		atomic_fetch_sub(&rpds_to_self, 1);
	dp_hmap_each(&rpd->entries, dp_entry_free, NULL);
	dp_hmap_fini(&rpd->entries);
	dp_lock_fini(&rpd->lock);
	free(rpd->pull);
	free(rpd);
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
	dp_entries_free(dead);
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
		if (!e || !dp_entry_pending(e)) /* answered without being asked */
			continue;
		atomic_store_explicit(&e->none_until, dp_now_ns() + NONE_NS, memory_order_relaxed);
		rpd->npending--;
	}
	rpd->pull_called = false;
	dp_drop(&rpd->lock);
	dp_rpd_put(rpd);
}

static enum dp_fallback ask(struct dp_rpd *rpd, uint32_t rkey)
{
	enum dp_fallback why = DP_FB_RKEY_PENDING;
	bool call_pull = false, call_sweep = false;
	struct entry *e;

	dp_take(&rpd->lock);
	e = dp_hmap_get(&rpd->entries, rkey);
	if (e && (atomic_load_explicit(&e->keys, memory_order_relaxed) ||
		  !atomic_load_explicit(&e->none_until, memory_order_relaxed)))
		goto out; /* another thread was faster, or the answer */
	if (rpd->npending == MAX_PENDING)
		goto out;
	if (!e)
		e = dp_entry_new(rpd, rkey, MAX_ENTRIES);
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

bool dp_rpd_usable(const struct dp_rpd *rpd, enum dp_fallback *why)
{
	/* acquire: pairs with gone(), which waits for our QP's lock before the peer goes */
	struct dp_peer *peer = atomic_load_explicit(&rpd->peer, memory_order_acquire);

	if (__builtin_expect(!peer, 0)) {
		*why = DP_FB_PEER_GONE;
		return false;
	}
	if (__builtin_expect(!dp_peer_lease_valid(peer), 0)) {
		*why = DP_FB_LEASE_EXPIRED;
		return false;
	}
	return true;
}

const struct dp_rkeys *dp_rkey_get(struct dp_rpd *rpd, uint32_t rkey, enum dp_fallback *why)
{
	const struct dp_rkeys *keys;
	struct entry *e;
	uint64_t until;

	if (!dp_rpd_usable(rpd, why))
		return NULL;
	e = dp_hmap_get(&rpd->entries, rkey);
	if (!e) {
		*why = ask(rpd, rkey);
		return NULL;
	}
	/* acquire: what it points to was written before */
	keys = atomic_load_explicit(&e->keys, memory_order_acquire);
	if (keys)
		return keys;
	until = atomic_load_explicit(&e->none_until, memory_order_relaxed);
	if (!until)
		*why = DP_FB_RKEY_PENDING;
	else if (dp_now_ns() < until)
		*why = DP_FB_RKEY_NONE;
	else
		*why = ask(rpd, rkey);
	return NULL;
}

bool dp_rpd_relaxed(const struct dp_rpd *rpd)
{
	/* relaxed: whoever has found such a key sees this, which was stored before it was published */
	return atomic_load_explicit(&rpd->relaxed, memory_order_relaxed);
}

const struct dp_rkeys *dp_rkey_peek(struct dp_rpd *rpd, uint32_t rkey)
{
	struct entry *e = dp_hmap_get(&rpd->entries, rkey);

	/* acquire: as above */
	return e ? atomic_load_explicit(&e->keys, memory_order_acquire) : NULL;
}

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
		dp_key_barrier(); /* posters may be looking at the peer's lease */
	dp_acks_gone(peer);
	dp_push_gone(peer);
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
	dp_push_after_fork();
	dp_pd_after_fork();
	dp_mr_after_fork();
	dp_owner_after_fork();
}

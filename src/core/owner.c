// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The owner's side of remote keys: who was told them, and which must not be handed out again yet. */
#include "rkeys.h"

#include <stdlib.h>
#include <sys/queue.h>
#include "peer/wire.h"

#define BUCKETS 4096
#define TICK_NS 10000000u
#define RETRY_NS 100000000u
#define SEQ_KEY (UINT64_C(1) << 63)

/* A peer process that holds keys; outlives the struct dp_peer. */
struct kpeer {
	struct dp_peer *peer; /* NULL: gone. Of self only a mark: it changes unsaid when the peer layer restarts */
	bool self;
	uint64_t gone_until; /* when gone: it may write until then */
	uint32_t refs;
};

struct hold {
	struct kpeer *kp;
	uint64_t until; /* when sent: its lease, as granted before the invalidation was sent */
	bool sent, acked;
	struct hold *next;
};

struct qkey {
	uint64_t key; /* device << 32 | rkey, or SEQ_KEY | seq */
	struct dp_holder *h;
	struct qkey *next;
};

/* The holders of one MR; once the MR went, its record in quarantine. */
struct dp_holder {
	enum { IDLE, BLOCKED, UNSENT, SENT } state;
	uint64_t seq;
	uint32_t pd_id, rkey;
	uint8_t flags;
	struct hold *holds;
	TAILQ_ENTRY(dp_holder) all, unsent;
	uint32_t nkeys;
	struct qkey key[]; /* [0] for seq */
};

static dp_lock lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static pthread_once_t changed_once = PTHREAD_ONCE_INIT;
static struct dp_hmap kpeers = DP_HMAP_INIT; /* peer_key() -> struct kpeer */
static struct qkey *buckets[BUCKETS];
static TAILQ_HEAD(, dp_holder) quarantine = TAILQ_HEAD_INITIALIZER(quarantine);
static TAILQ_HEAD(, dp_holder) unsent = TAILQ_HEAD_INITIALIZER(unsent);
static _Atomic size_t quarantined; /* records in it: lets reg_mr pass without the lock */
static bool flush_called;
static struct dp_timer flush_timer;
static uint64_t last_seq;

/* ---- records; all with lock held */

static struct qkey **bucket(uint64_t key)
{
	return &buckets[(key * UINT64_C(0x9e3779b97f4a7c15)) >> 52];
}

static void kpeer_put(struct kpeer *kp)
{
	if (--kp->refs == 0)
		free(kp);
}

static bool hold_over(const struct hold *hd, uint64_t now)
{
	if (hd->acked)
		return true;
	if (!hd->kp->peer)
		return now >= hd->kp->gone_until;
	if (hd->kp->self) /* has no lease */
		return dp_rpd_none_to_self();
	return hd->sent && now >= hd->until;
}

static bool settled(const struct dp_holder *h, uint64_t now)
{
	if (h->state == BLOCKED)
		return false;
	for (const struct hold *hd = h->holds; hd; hd = hd->next)
		if (!hold_over(hd, now))
			return false;
	return true;
}

static void index_keys(struct dp_holder *h)
{
	for (uint32_t i = 0; i < h->nkeys; i++) {
		struct qkey **b = bucket(h->key[i].key);

		h->key[i].next = *b;
		*b = &h->key[i];
	}
	TAILQ_INSERT_TAIL(&quarantine, h, all);
	atomic_fetch_add(&quarantined, 1);
}

static void unindex_keys(struct dp_holder *h)
{
	for (uint32_t i = 0; i < h->nkeys; i++) {
		struct qkey **b = bucket(h->key[i].key);

		while (*b != &h->key[i])
			b = &(*b)->next;
		*b = h->key[i].next;
	}
	TAILQ_REMOVE(&quarantine, h, all);
	atomic_fetch_sub(&quarantined, 1);
}

static void free_holds(struct hold **at, bool only_over, uint64_t now)
{
	while (*at) {
		struct hold *hd = *at;

		if (only_over && !hold_over(hd, now)) {
			at = &hd->next;
			continue;
		}
		*at = hd->next;
		kpeer_put(hd->kp);
		free(hd);
	}
}

static void free_record(struct dp_holder *h)
{
	if (h->state == UNSENT)
		TAILQ_REMOVE(&unsent, h, unsent);
	if (h->state != IDLE)
		unindex_keys(h);
	free_holds(&h->holds, false, 0);
	free(h);
}

/* Keeps the quarantine bounded by what is really in it: each newcomer looks at some old ones. */
static void purge_some(uint64_t now)
{
	for (int i = 0; i < 4; i++) {
		struct dp_holder *h = TAILQ_FIRST(&quarantine);

		if (!h)
			return;
		if (settled(h, now)) {
			free_record(h);
		} else {
			TAILQ_REMOVE(&quarantine, h, all);
			TAILQ_INSERT_TAIL(&quarantine, h, all);
		}
	}
}

static bool blocked(uint64_t key, uint64_t now)
{
	struct qkey *k = *bucket(key);

	while (k) {
		if (k->key != key) {
			k = k->next;
		} else if (settled(k->h, now)) {
			free_record(k->h);
			k = *bucket(key);
		} else {
			return true;
		}
	}
	return false;
}

static uint64_t key_of(uint32_t dev, uint32_t rkey)
{
	return (uint64_t)dev << 32 | rkey;
}

bool dp_key_blocked(uint32_t dev, uint32_t rkey)
{
	bool ret;

	/*
	 * A key comes back from the provider only after the dereg_mr before which it was blocked, so the
	 * provider's own serialisation makes that visible here.
	 */
	if (!atomic_load(&quarantined))
		return false;
	dp_take(&lock);
	ret = blocked(key_of(dev, rkey), dp_now_ns());
	dp_drop(&lock);
	return ret;
}

bool dp_key_blocked_tags(uint32_t dev, uint32_t rkey)
{
	uint64_t now = dp_now_ns();
	bool ret = false;

	if (!atomic_load(&quarantined))
		return false;
	dp_take(&lock);
	for (uint32_t tag = 0; tag < 256 && !ret; tag++)
		ret = blocked(key_of(dev, (rkey & ~UINT32_C(255)) | tag), now);
	dp_drop(&lock);
	return ret;
}

/* ---- waiting */

static void init_changed(void)
{
	pthread_condattr_t a;

	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&changed, &a);
	pthread_condattr_destroy(&a);
}

static void kick(void);

static bool wait_free(uint64_t key, uint64_t deadline)
{
	int cancel = dp_no_cancel();
	bool is_free;

	pthread_once(&changed_once, init_changed);
	dp_take(&lock);
	for (;;) {
		uint64_t now = dp_now_ns(), until = now + TICK_NS;
		struct timespec ts;

		is_free = !blocked(key, now);
		if (is_free || now >= deadline)
			break;
		if (!TAILQ_EMPTY(&unsent) && !flush_called) { /* the call failed before */
			dp_drop(&lock);
			kick();
			dp_take(&lock);
		}
		if (until > deadline)
			until = deadline;
		ts.tv_sec = (time_t)(until / 1000000000u);
		ts.tv_nsec = (long)(until % 1000000000u);
		pthread_cond_timedwait(&changed, &lock, &ts);
	}
	dp_drop(&lock);
	dp_cancel_as(cancel);
	return is_free;
}

bool dp_key_wait(uint32_t dev, uint32_t rkey, uint64_t deadline)
{
	return wait_free(key_of(dev, rkey), deadline);
}

bool dp_holders_settled(uint64_t seq, uint64_t deadline)
{
	return wait_free(SEQ_KEY | seq, deadline);
}

static void notify(void)
{
	pthread_once(&changed_once, init_changed);
	pthread_cond_broadcast(&changed);
}

/* ---- an MR goes */

void dp_holders_block(struct dp_holder *h, uint64_t *seq)
{
	if (!h)
		return;
	dp_take(&lock);
	purge_some(dp_now_ns());
	h->state = BLOCKED;
	index_keys(h);
	if (seq)
		*seq = h->seq;
	dp_drop(&lock);
}

void dp_holders_unblock(struct dp_holder *h)
{
	if (!h)
		return;
	dp_take(&lock);
	unindex_keys(h);
	h->state = IDLE;
	notify();
	dp_drop(&lock);
}

void dp_holders_invalidate(struct dp_holder *h, unsigned int flags)
{
	if (!h)
		return;
	dp_take(&lock);
	h->flags = (uint8_t)flags;
	h->state = UNSENT;
	TAILQ_INSERT_TAIL(&unsent, h, unsent);
	dp_drop(&lock);
	kick();
}

bool dp_holders_any(const struct dp_holder *h)
{
	uint64_t now = dp_now_ns();
	bool any = false;

	if (!h)
		return false;
	dp_take(&lock);
	for (const struct hold *hd = h->holds; hd && !any; hd = hd->next)
		any = !hold_over(hd, now);
	dp_drop(&lock);
	return any;
}

static void flush_later(struct dp_timer *t);

/*
 * [control] The deadline is the lease granted so far: the peer reads what is sent to it in order, so by the time
 * that it sees a later grant, it has seen this invalidation.
 */
static void flush_unsent(void *arg)
{
	struct dp_peer *self = dp_self_peer();
	struct dp_holder *h;
	struct dp_inval *v = NULL;
	size_t n = 0, cap = 0;

	(void)arg;
	dp_take(&lock);
	flush_called = false;
	while ((h = TAILQ_FIRST(&unsent))) {
		size_t need = n;

		for (struct hold *hd = h->holds; hd; hd = hd->next)
			need++;
		if (need > cap) {
			struct dp_inval *grown = realloc(v, (need * 2) * sizeof(*v));

			if (!grown) {
				dp_timer_arm(&flush_timer, RETRY_NS, flush_later);
				break;
			}
			v = grown;
			cap = need * 2;
		}
		TAILQ_REMOVE(&unsent, h, unsent);
		h->state = SENT;
		for (struct hold *hd = h->holds; hd; hd = hd->next) {
			struct dp_peer *peer = hd->kp->self ? self : hd->kp->peer;

			if (!peer)
				continue;
			hd->until = dp_peer_granted_until(peer);
			hd->sent = true;
			v[n++] = (struct dp_inval){ peer, h->seq, h->pd_id, h->rkey, h->flags };
		}
	}
	dp_drop(&lock);
	dp_invals_send(v, n);
	free(v);
}

static void flush_later(struct dp_timer *t)
{
	(void)t;
	flush_unsent(NULL);
}

static void kick(void)
{
	bool call;

	dp_take(&lock);
	call = !flush_called && !TAILQ_EMPTY(&unsent);
	flush_called |= call;
	dp_drop(&lock);
	if (!call || dp_peer_call(flush_unsent, NULL) == 0)
		return;
	dp_take(&lock);
	flush_called = false; /* the next to invalidate or to wait tries again */
	dp_drop(&lock);
}

/* ---- messages */

/* The address of a former self may be another peer's now. */
static uint64_t peer_key(struct dp_peer *peer)
{
	return dp_peer_is_self(peer) ? 0 : (uint64_t)(uintptr_t)peer;
}

static struct kpeer *kpeer_get(struct dp_peer *peer)
{
	struct kpeer *kp = dp_hmap_get(&kpeers, peer_key(peer));

	if (kp)
		return kp;
	kp = calloc(1, sizeof(*kp));
	if (!kp)
		return NULL;
	kp->peer = peer;
	kp->self = dp_peer_is_self(peer);
	kp->refs = 1;
	if (dp_hmap_put(&kpeers, peer_key(peer), kp)) {
		free(kp);
		return NULL;
	}
	return kp;
}

static struct dp_holder *record_new(const struct dp_mr_rec *r)
{
	const struct dp_ctx *c = r->m.pd->c;
	struct dp_holder *h = calloc(1, sizeof(*h) + (c->nsib + 2) * sizeof(h->key[0]));

	if (!h)
		return NULL;
	h->seq = ++last_seq;
	h->pd_id = r->m.pd->id;
	h->rkey = r->m.rkey;
	h->key[h->nkeys++].key = SEQ_KEY | h->seq;
	h->key[h->nkeys++].key = key_of(r->dev, r->m.rkey);
	for (uint32_t i = 0; i < c->nsib; i++)
		if (r->m.twin[i] && r->m.twin[i] != r->m.mr)
			h->key[h->nkeys++].key = key_of(dp_key_dev(c->sib[i].port.dev), r->m.twin[i]->rkey);
	for (uint32_t i = 0; i < h->nkeys; i++)
		h->key[i].h = h;
	return h;
}

bool dp_holder_add(struct dp_mr_rec *r, struct dp_peer *peer)
{
	struct dp_holder *h;
	struct kpeer *kp;
	struct hold *hd;
	bool ok = false;

	dp_take(&lock);
	if (!r->m.holders)
		r->m.holders = record_new(r);
	h = r->m.holders;
	kp = kpeer_get(peer);
	if (!h || !kp)
		goto out;
	free_holds(&h->holds, true, dp_now_ns());
	for (hd = h->holds; hd && hd->kp != kp; hd = hd->next)
		;
	if (!hd) {
		hd = calloc(1, sizeof(*hd));
		if (!hd)
			goto out;
		hd->kp = kp;
		kp->refs++;
		hd->next = h->holds;
		h->holds = hd;
	}
	ok = true;
out:
	dp_drop(&lock);
	return ok;
}

/*
 * Addresses in this process tell whether two regions share memory. A dmabuf has none; its iova is what programs use in
 * place of it.
 */
static uint64_t shift_of(const struct dp_mr_how *how)
{
	return how->kind == DP_MR_DMABUF ? 0 : (uint64_t)(uintptr_t)how->addr - how->iova;
}

void dp_owner_put_key(struct dp_wbuf *b, const struct dp_mr_rec *r)
{
	unsigned access = (unsigned)r->m.access;

	dp_put8(b, (access & IBV_ACCESS_REMOTE_READ ? DP_RKEY_READ : 0) |
			   (access & IBV_ACCESS_RELAXED_ORDERING ? DP_RKEY_RELAXED : 0));
	dp_put64(b, shift_of(&r->how));
	for (uint32_t i = 0; i < r->m.pd->c->nsib; i++)
		dp_put32(b, r->m.twin[i] ? r->m.twin[i]->rkey : 0);
}

static void answer(struct dp_peer *peer, struct dp_pd *pd, uint32_t pd_id, uint32_t rkey)
{
	uint8_t buf[9 + DP_KEY_LEN(DP_MAX_RAILS)];
	struct dp_wbuf b = { .p = buf, .cap = sizeof(buf) };
	struct dp_mr_rec *r = NULL;

	dp_put32(&b, pd_id);
	dp_put32(&b, rkey);
	if (pd) {
		dp_take(&pd->lock);
		r = dp_hmap_get(&pd->rkeys, rkey);
		if (r && r->m.usable && pd->c->nsib <= DP_MAX_RAILS && dp_holder_add(r, peer)) {
			dp_put8(&b, (uint8_t)pd->c->nsib);
			dp_owner_put_key(&b, r);
		} else {
			r = NULL;
		}
		dp_drop(&pd->lock);
	}
	if (!r)
		dp_put8(&b, 0);
	/* An invalidation can only be sent by this thread, after this. */
	dp_peer_send(peer, DP_MSG_KEYS_ARE, buf, b.len);
}

void dp_owner_pull(struct dp_peer *peer, const uint8_t *data, size_t len)
{
	struct dp_rbuf b = { .p = data, .len = len };
	uint32_t id = dp_get32(&b);
	uint16_t n = dp_get16(&b);
	struct dp_pd *pd;

	if (b.bad || !n || n > DP_KEYS_BATCH || b.len != n * 4u) {
		dp_keys_malformed(peer, DP_MSG_KEYS_PULL, len);
		return;
	}
	pd = dp_pd_by_id(id);
	while (n--)
		answer(peer, pd, id, dp_get32(&b));
	if (pd)
		dp_pd_put(pd);
}

void dp_owner_ack(struct dp_peer *peer, const uint8_t *data, size_t len)
{
	struct dp_rbuf b = { .p = data, .len = len };
	uint16_t n = dp_get16(&b);
	uint64_t now;

	if (b.bad || !n || n > DP_KEYS_BATCH || b.len != n * 8u) {
		dp_keys_malformed(peer, DP_MSG_KEYS_ACK, len);
		return;
	}
	now = dp_now_ns();
	dp_take(&lock);
	while (n--) {
		uint64_t key = SEQ_KEY | dp_get64(&b);
		struct qkey *k;

		for (k = *bucket(key); k && k->key != key; k = k->next)
			;
		if (!k)
			continue; /* its lease ran out before */
		for (struct hold *hd = k->h->holds; hd; hd = hd->next)
			if ((hd->kp->self ? dp_peer_is_self(peer) : hd->kp->peer == peer) && hd->sent)
				hd->acked = true;
		if (settled(k->h, now))
			free_record(k->h);
	}
	notify();
	dp_drop(&lock);
}

void dp_owner_gone(struct dp_peer *peer)
{
	struct kpeer *kp;

	dp_take(&lock);
	kp = dp_hmap_del(&kpeers, peer_key(peer));
	if (kp) {
		/* out of reach need not mean ended: until then it may still write */
		kp->gone_until = dp_peer_granted_until(peer);
		kp->peer = NULL;
		kpeer_put(kp);
		notify();
	}
	dp_drop(&lock);
}

static void orphan(void *val, void *arg)
{
	struct kpeer *kp = val;

	(void)arg;
	kp->peer = NULL;
	kp->gone_until = 0;
}

void dp_owner_after_fork(void)
{
	dp_lock_init(&lock);
	dp_lock_init(&kpeers.lock);
	dp_hmap_each(&kpeers, orphan, NULL);
	dp_hmap_init(&kpeers);
	flush_called = false;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What the owner says about its keys. It is taken in the order in which it comes, asked for or not: push.c says why
 * that is right.
 */
#include "qp.h"
#include "rpd.h"

#include <string.h>

/* ---- entries */

struct entry *dp_entry_new(struct dp_rpd *rpd, uint32_t rkey, uint32_t max)
{
	struct entry *e;

	if (rpd->nentries >= max)
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

void dp_entry_free(void *entry, void *unused)
{
	struct entry *e = entry;

	(void)unused;
	free(atomic_load_explicit(&e->keys, memory_order_relaxed));
	free(e);
}

/* ---- safe removal */

static void barrier_one(struct dp_qp *q, void *arg)
{
	(void)arg;
	dp_take(&q->lock);
	dp_qp_forget_key(q);
	dp_drop(&q->lock);
}

/*
 * Whoever looked up a key before it was unlinked did so with the lock of its QP held, and has posted with it by
 * the time that we had that lock, too. After this no new fragment uses what was unlinked.
 */
void dp_key_barrier(void)
{
	dp_qp_each(barrier_one, NULL);
}

void dp_entries_free(struct entry *dead)
{
	struct entry *next;

	if (dead)
		dp_key_barrier();
	for (; dead; dead = next) {
		next = dead->next;
		dp_entry_free(dead, NULL);
	}
}

/* ---- messages */

void dp_keys_malformed(struct dp_peer *peer, uint16_t type, size_t len)
{
	static _Atomic bool said;

	if (!atomic_exchange(&said, true))
		dp_warn("peer %s: malformed message 0x%x of %zu bytes about remote keys: ignored, as are later ones",
			dp_peer_text(peer), type, len);
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

/* What the owner said of one key. */
struct told {
	uint32_t rkey;
	uint32_t key[DP_MAX_RAILS];
	struct dp_rkeys head; /* without its array; last */
};

static void get_told(struct dp_rbuf *b, struct told *t)
{
	uint32_t flags = dp_get8(b);

	t->head.flags = flags & (DP_RKEY_READ | DP_RKEY_RELAXED);
	t->head.shift = dp_get64(b);
	for (uint32_t i = 0; i < t->head.n; i++)
		t->key[i] = dp_get32(b);
}

static bool same(const struct dp_rkeys *keys, const struct told *t)
{
	return keys->shift == t->head.shift && keys->flags == t->head.flags && keys->n == t->head.n &&
	       !memcmp(keys->key, t->key, keys->n * sizeof(t->key[0]));
}

/* Takes what the owner said; n is 0: no twins. Returns what has to be freed after a barrier. */
static struct entry *take(struct dp_rpd *rpd, const struct told *t)
{
	uint32_t k = t->head.n, rkey = t->rkey;
	struct entry *e, *dead = NULL;
	struct dp_rkeys *copy;
	static uint64_t born; /* [control] */

	dp_take(&rpd->lock);
	e = dp_hmap_get(&rpd->entries, rkey);
	copy = e ? atomic_load_explicit(&e->keys, memory_order_relaxed) : NULL;
	if (copy) {
		/* no twins now, so an invalidation is on its way */
		if (!k || same(copy, t))
			goto out;
		dp_hmap_del(&rpd->entries, rkey);
		rpd->nentries--;
		dead = e;
		e = NULL;
	}
	copy = k ? malloc(sizeof(*copy) + k * sizeof(copy->key[0])) : NULL; /* without memory: as if there were no twins */
	if (!copy) {
		if (!e || !dp_entry_pending(e))
			goto out;
		atomic_store_explicit(&e->none_until, dp_now_ns() + NONE_NS, memory_order_relaxed);
		rpd->npending--;
		goto out;
	}
	if (!e)
		e = dp_entry_new(rpd, rkey, MAX_UNASKED);
	if (!e) {
		free(copy);
		goto out;
	}
	rpd->npending -= dp_entry_pending(e);
	*copy = t->head;
	copy->born = ++born;
	memcpy(copy->key, t->key, k * sizeof(t->key[0]));
	if (copy->flags & DP_RKEY_RELAXED)
		atomic_store_explicit(&rpd->relaxed, true, memory_order_relaxed);
	/* release: readers take no lock */
	atomic_store_explicit(&e->keys, copy, memory_order_release);
out:
	dp_drop(&rpd->lock);
	return dead;
}

static void keys_are(struct dp_peer *peer, const uint8_t *data, size_t len)
{
	struct dp_rbuf b = { .p = data, .len = len };
	uint32_t id = dp_get32(&b);
	struct told t = { .rkey = dp_get32(&b), .head.n = dp_get8(&b) };
	struct dp_rpd *rpd;

	if (b.bad || t.head.n > DP_MAX_RAILS || b.len != (t.head.n ? 9u + t.head.n * 4u : 0)) {
		dp_keys_malformed(peer, DP_MSG_KEYS_ARE, len);
		return;
	}
	if (t.head.n)
		get_told(&b, &t);
	rpd = dp_rpd_find(peer, id);
	if (!rpd)
		return; /* un-bonded meanwhile */
	dp_entries_free(take(rpd, &t));
	dp_rpd_put(rpd);
}

static void keys_table(struct dp_peer *peer, const uint8_t *data, size_t len)
{
	struct dp_rbuf b = { .p = data, .len = len };
	uint32_t id = dp_get32(&b);
	struct told t = { .head.n = dp_get8(&b) };
	uint16_t n = dp_get16(&b);
	uint32_t k = t.head.n;
	struct entry *dead = NULL, *e;
	struct dp_rpd *rpd;

	if (b.bad || !k || k > DP_MAX_RAILS || !n || n > DP_KEYS_BATCH || b.len != n * (13u + 4u * k)) {
		dp_keys_malformed(peer, DP_MSG_KEYS_TABLE, len);
		return;
	}
	rpd = dp_rpd_find(peer, id);
	if (!rpd)
		return;
	while (n--) {
		t.rkey = dp_get32(&b);
		get_told(&b, &t);
		e = take(rpd, &t);
		if (e) {
			e->next = dead;
			dead = e;
		}
	}
	dp_entries_free(dead);
	dp_rpd_put(rpd);
}

static void keys_end(struct dp_peer *peer, const uint8_t *data, size_t len)
{
	struct dp_rbuf b = { .p = data, .len = len };
	uint32_t id = dp_get32(&b), watch = dp_get32(&b);
	struct dp_rpd *rpd;

	if (!dp_rbuf_whole(&b)) {
		dp_keys_malformed(peer, DP_MSG_KEYS_END, len);
		return;
	}
	rpd = dp_rpd_find(peer, id);
	if (!rpd)
		return;
	/* else it is meant for a predecessor, which was given up meanwhile */
	if (rpd->watch == watch)
		rpd->ready = true;
	dp_rpd_put(rpd);
}

static void invalidate(struct dp_peer *peer, const uint8_t *data, size_t len)
{
	static uint8_t buf[2 + DP_KEYS_BATCH * 8];
	struct dp_rbuf b = { .p = data, .len = len }, again;
	struct dp_wbuf acks = { .p = buf, .cap = sizeof(buf) };
	uint16_t n = dp_get16(&b), nacks = 0;
	static uint64_t message; /* [control] */
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
		rpd = dp_rpd_find(peer, id);
		if (!rpd)
			continue;
		e = unlink_known(rpd, rkey);
		if (e) {
			e->next = dead;
			dead = e;
		}
		dp_rpd_put(rpd);
	}
	dp_entries_free(dead);

	message++;
	dp_put16(&acks, 0);
	for (uint16_t i = 0; i < n; i++) {
		uint32_t id = dp_get32(&again);
		uint64_t seq;
		uint8_t flags;

		dp_get32(&again);
		seq = dp_get64(&again);
		flags = dp_get8(&again);
		rpd = flags & DP_INVAL_DRAIN ? dp_rpd_find(peer, id) : NULL;
		if (rpd) {
			dp_ack_later(peer, rpd, seq, message);
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
	case DP_MSG_KEYS_WATCH:
		dp_owner_watch(peer, data, len);
		break;
	case DP_MSG_KEYS_UNWATCH:
		dp_owner_unwatch(peer, data, len);
		break;
	case DP_MSG_KEYS_TABLE:
		keys_table(peer, data, len);
		break;
	case DP_MSG_KEYS_END:
		keys_end(peer, data, len);
		break;
	default:
		dp_keys_malformed(peer, type, len);
	}
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The owner's side of remote keys in bulk: a peer that watches a PD is told all keys of it, then those that come.
 *
 * Why a holder may take whatever comes, in the order in which it comes: the control thread alone sends keys and
 * invalidations, and a connection keeps their order.
 * - The keys of an MR are sent only while it is published, and with pd->lock held its holder is recorded before that
 *   lock is dropped. Whoever unpublishes it later, with that lock, finds the holder and has it told. That cannot be
 *   overtaken: serve() sends before it returns to the control thread's loop, and only from there invalidations go.
 * - So what arrives is true until an invalidation arrives that was sent later, and an invalidation can only hit keys
 *   that were sent before it. If another MR, or the same one again, has the rkey by then, its keys come after the
 *   invalidation; only where nobody waited for the acknowledgement (memlock.c gave up, rereg.c's wait ended) can the
 *   invalidation come last. Then it removes keys that were good: they are pulled at the next use, and the holder
 *   is on the record twice.
 */
#include "rkeys.h"

#include <stddef.h>
#include <stdlib.h>
#include "peer/wire.h"

#define SLICE 256u	     /* MRs for which pd->lock is held at once */
#define RETRY_NS 100000000u

struct dp_watcher {
	struct dp_pd_rec *pd; /* held */
	struct dp_peer *peer; /* NULL: this process, whose dp_peer changes when the peer layer restarts */
	uint32_t id;	      /* the holder's name for it */
	bool ended;	      /* the end mark was sent */
	struct dp_mr_rec *next; /* to be told of, pd->lock; NULL: none but what is fresh */
	TAILQ_ENTRY(dp_watcher) in_pd; /* pd->lock to change it, and the control thread alone does */
	TAILQ_ENTRY(dp_watcher) all;
};

uint64_t dp_push_gap_ns = 1000000;
uint32_t dp_push_max = 65536;
static TAILQ_HEAD(, dp_watcher) watchers = TAILQ_HEAD_INITIALIZER(watchers); /* [control] */

void dp_push_init(struct dp_pd_rec *pd)
{
	TAILQ_INIT(&pd->listed);
	TAILQ_INIT(&pd->watchers);
	pd->nlisted = pd->nbehind = 0;
	pd->fresh = NULL;
}

/* ---- the list of a PD; with pd->lock */

bool dp_push_list(struct dp_mr_rec *r)
{
	struct dp_pd_rec *pd = dp_pd_rec(r->m.pd);

	if (!(r->m.access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)) || pd->p.c->nsib > DP_MAX_RAILS ||
	    pd->nlisted >= dp_push_max)
		return false;
	TAILQ_INSERT_TAIL(&pd->listed, r, in_pd);
	r->listed = true;
	pd->nlisted++;
	if (TAILQ_EMPTY(&pd->watchers))
		return false;
	if (!pd->fresh)
		pd->fresh = r;
	if (pd->queued)
		return false;
	pd->queued = true;
	dp_pd_hold(&pd->p);
	return true;
}

void dp_push_unlist(struct dp_mr_rec *r)
{
	struct dp_pd_rec *pd = dp_pd_rec(r->m.pd);
	struct dp_mr_rec *next;
	struct dp_watcher *w;

	if (!r->listed)
		return;
	next = TAILQ_NEXT(r, in_pd);
	if (pd->fresh == r)
		pd->fresh = next;
	if (pd->nbehind) {
		TAILQ_FOREACH(w, &pd->watchers, in_pd) {
			if (w->next != r)
				continue;
			w->next = next;
			pd->nbehind -= !next;
		}
	}
	TAILQ_REMOVE(&pd->listed, r, in_pd);
	r->listed = false;
	pd->nlisted--;
}

/* ---- telling [control] */

static void send_end(struct dp_peer *peer, uint32_t pd_id, uint32_t id)
{
	uint8_t buf[8];
	struct dp_wbuf b = { .p = buf, .cap = sizeof(buf) };

	dp_put32(&b, pd_id);
	dp_put32(&b, id);
	dp_peer_send(peer, DP_MSG_KEYS_END, buf, b.len);
}

/* Tells w of one slice. Whether there is more. */
static bool serve(struct dp_watcher *w)
{
	static uint8_t buf[7 + SLICE * (4 + DP_KEY_LEN(DP_MAX_RAILS))];
	struct dp_wbuf b = { .p = buf, .cap = sizeof(buf) };
	struct dp_peer *peer = w->peer ? w->peer : dp_self_peer();
	struct dp_pd_rec *pd = w->pd;
	uint32_t n = 0, nsib;
	struct dp_mr_rec *r;
	bool more;

	if (!peer)
		return false;
	dp_take(&pd->p.lock);
	r = w->next;
	if (r) {
		nsib = pd->p.c->nsib; /* with an MR there is a context */
		dp_put32(&b, pd->p.id);
		dp_put8(&b, (uint8_t)nsib);
		dp_put16(&b, 0);
		for (uint32_t looked = 0; r && looked < SLICE; looked++, r = TAILQ_NEXT(r, in_pd)) {
			if (!dp_holder_add(r, peer)) /* no memory: it may pull */
				continue;
			n++;
			dp_put32(&b, r->m.rkey);
			dp_owner_put_key(&b, r);
		}
		w->next = r;
		pd->nbehind -= !r;
	}
	more = r != NULL;
	dp_drop(&pd->p.lock);
	buf[5] = (uint8_t)(n >> 8);
	buf[6] = (uint8_t)n;
	/* here, and nowhere later: see the top. If it fails, gone() follows. */
	if (n)
		dp_peer_send(peer, DP_MSG_KEYS_TABLE, buf, b.len);
	if (!more && !w->ended) {
		w->ended = true;
		send_end(peer, pd->p.id, w->id);
	}
	return more;
}

static void push(void *arg);

static void push_later(struct dp_timer *t)
{
	struct dp_pd_rec *pd = (struct dp_pd_rec *)((char *)t - offsetof(struct dp_pd_rec, timer));

	pd->waiting = false;
	push(pd);
}

static void wait(struct dp_pd_rec *pd, uint64_t ns)
{
	pd->waiting = true;
	dp_timer_arm(&pd->timer, ns, push_later);
}

/* Another slice, but others have their turn before. */
static void go_on(struct dp_pd_rec *pd)
{
	if (dp_peer_call(push, pd))
		wait(pd, RETRY_NS);
}

static void push_over(struct dp_pd_rec *pd)
{
	dp_take(&pd->p.lock);
	pd->queued = false;
	dp_drop(&pd->p.lock);
	dp_pd_put(&pd->p);
}

/* pd is queued, which includes a reference. */
static void push(void *arg)
{
	struct dp_pd_rec *pd = arg;
	struct dp_watcher *w;
	bool more = false;

	dp_take(&pd->p.lock);
	if (pd->fresh) {
		TAILQ_FOREACH(w, &pd->watchers, in_pd) {
			if (w->next) /* gets there */
				continue;
			w->next = pd->fresh;
			pd->nbehind++;
		}
	}
	pd->fresh = NULL;
	dp_drop(&pd->p.lock);
	pd->pushed = dp_now_ns();
	TAILQ_FOREACH(w, &pd->watchers, in_pd)
		more |= serve(w);
	if (more)
		go_on(pd);
	else
		push_over(pd);
}

static void push_fresh(void *arg)
{
	struct dp_pd_rec *pd = arg;
	uint64_t now = dp_now_ns();

	if (pd->pushed && now - pd->pushed < dp_push_gap_ns)
		wait(pd, dp_push_gap_ns - (now - pd->pushed));
	else
		push(pd);
}

void dp_push_call(struct dp_pd *p)
{
	if (dp_peer_call(push_fresh, dp_pd_rec(p)))
		push_over(dp_pd_rec(p)); /* the next MR tries again */
}

/* ---- watchers [control] */

static struct dp_watcher *find(struct dp_pd_rec *pd, struct dp_peer *peer)
{
	struct dp_watcher *w;

	TAILQ_FOREACH(w, &pd->watchers, in_pd)
		if (w->peer == (dp_peer_is_self(peer) ? NULL : peer))
			break;
	return w;
}

static void add(struct dp_pd_rec *pd, struct dp_peer *peer, uint32_t id)
{
	struct dp_watcher *w = find(pd, peer);
	bool call = false;

	if (!w) {
		w = calloc(1, sizeof(*w));
		if (!w) { /* it pulls */
			send_end(peer, pd->p.id, id);
			return;
		}
		w->pd = pd;
		w->peer = dp_peer_is_self(peer) ? NULL : peer;
		dp_pd_hold(&pd->p);
		TAILQ_INSERT_TAIL(&watchers, w, all);
		dp_take(&pd->p.lock);
		TAILQ_INSERT_TAIL(&pd->watchers, w, in_pd);
		dp_drop(&pd->p.lock);
	}
	w->id = id;
	w->ended = false;
	dp_take(&pd->p.lock);
	pd->nbehind -= w->next != NULL;
	w->next = TAILQ_FIRST(&pd->listed);
	pd->nbehind += w->next != NULL;
	dp_drop(&pd->p.lock);
	if (!serve(w))
		return;
	dp_take(&pd->p.lock);
	if (!pd->queued) {
		call = pd->queued = true;
		dp_pd_hold(&pd->p);
	}
	dp_drop(&pd->p.lock);
	if (call)
		go_on(pd);
}

static void drop(struct dp_watcher *w)
{
	struct dp_pd_rec *pd = w->pd;
	bool last;

	dp_take(&pd->p.lock);
	TAILQ_REMOVE(&pd->watchers, w, in_pd);
	pd->nbehind -= w->next != NULL;
	last = TAILQ_EMPTY(&pd->watchers);
	if (last)
		pd->fresh = NULL;
	dp_drop(&pd->p.lock);
	TAILQ_REMOVE(&watchers, w, all);
	free(w);
	if (last && pd->waiting) { /* or it would wait for ever if the peer layer stops now */
		dp_timer_disarm(&pd->timer);
		pd->waiting = false;
		push_over(pd);
	}
	dp_pd_put(&pd->p);
}

void dp_owner_watch(struct dp_peer *peer, const uint8_t *data, size_t len)
{
	struct dp_rbuf b = { .p = data, .len = len };
	uint32_t pd_id = dp_get32(&b), id = dp_get32(&b);
	struct dp_pd *pd;

	if (!dp_rbuf_whole(&b)) {
		dp_keys_malformed(peer, DP_MSG_KEYS_WATCH, len);
		return;
	}
	pd = dp_pd_by_id(pd_id);
	if (!pd) {
		send_end(peer, pd_id, id);
		return;
	}
	add(dp_pd_rec(pd), peer, id);
	dp_pd_put(pd);
}

void dp_owner_unwatch(struct dp_peer *peer, const uint8_t *data, size_t len)
{
	struct dp_rbuf b = { .p = data, .len = len };
	uint32_t pd_id = dp_get32(&b);
	struct dp_watcher *w;

	if (!dp_rbuf_whole(&b)) {
		dp_keys_malformed(peer, DP_MSG_KEYS_UNWATCH, len);
		return;
	}
	/* by these lists: the PD may have been given up by the program */
	TAILQ_FOREACH(w, &watchers, all)
		if (w->pd->p.id == pd_id && w->peer == (dp_peer_is_self(peer) ? NULL : peer))
			break;
	if (w)
		drop(w);
}

void dp_push_gone(struct dp_peer *peer)
{
	struct dp_watcher *w, *next;

	for (w = TAILQ_FIRST(&watchers); w; w = next) {
		next = TAILQ_NEXT(w, all);
		if (w->peer == (dp_peer_is_self(peer) ? NULL : peer))
			drop(w);
	}
}

/*
 * Lists may have been half changed by threads that do not exist here: they begin afresh, and the keys of inherited
 * MRs can only be pulled. What was on its way to the control thread is lost.
 */
void dp_push_pd_after_fork(struct dp_pd_rec *pd)
{
	dp_push_init(pd);
	pd->waiting = false;
	if (pd->queued)
		push_over(pd);
}

void dp_push_after_fork(void)
{
	struct dp_watcher *w, *next;

	for (w = TAILQ_FIRST(&watchers); w; w = next) {
		next = TAILQ_NEXT(w, all);
		dp_pd_put(&w->pd->p);
		free(w);
	}
	TAILQ_INIT(&watchers);
}

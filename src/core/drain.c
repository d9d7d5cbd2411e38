// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Waits for what is planned now on the siblings of some QPs, while these go on. */
#include "rkeys.h"

#include <stdlib.h>
#include "peer/wire.h"

#define DRAIN_TICK_NS 2000000u

struct mark {
	struct dp_qp *q; /* held */
	uint32_t incarnation, nrails;
	uint64_t planned[DP_MAX_RAILS];
	bool done;
};

struct dp_drain {
	const struct dp_ctx *c;
	const struct dp_rpd *rpd;
	size_t n, cap;
	bool no_memory;
	struct mark *mark;
};

static bool in_use(const struct dp_qp *q)
{
	int state = atomic_load_explicit(&q->state, memory_order_relaxed);

	return (state == DP_QP_BONDED || state == DP_QP_FAILING) && q->rail;
}

/* One that was un-bonded has given up its rpd, but what it had queued and posted goes on. */
static bool concerned(const struct dp_drain *d, const struct dp_qp *q)
{
	return d->c ? q->c == d->c : !q->rpd || q->rpd == d->rpd;
}

static void add(struct dp_qp *q, void *arg)
{
	struct dp_drain *d = arg;
	struct mark *m;

	dp_take(&q->lock);
	if (!concerned(d, q) || !in_use(q) || dp_order_siblings_idle(&q->order))
		goto out;
	if (d->n == d->cap) {
		size_t cap = d->cap ? d->cap * 2 : 8;

		m = realloc(d->mark, cap * sizeof(*m));
		if (!m) {
			d->no_memory = true;
			goto out;
		}
		d->mark = m;
		d->cap = cap;
	}
	m = &d->mark[d->n++];
	m->q = q;
	m->incarnation = q->incarnation;
	m->nrails = q->order.nrails;
	m->done = false;
	for (uint32_t i = 1; i < m->nrails; i++)
		m->planned[i] = q->order.planned[i];
	dp_qp_hold(q);
out:
	dp_drop(&q->lock);
}

struct dp_drain *dp_drain_start(const struct dp_ctx *c, const struct dp_rpd *rpd)
{
	struct dp_drain *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	d->c = c;
	d->rpd = rpd;
	dp_qp_each(add, d);
	if (d->no_memory) {
		dp_drain_free(d);
		return NULL;
	}
	return d;
}

static bool mark_done(const struct mark *m)
{
	struct dp_qp *q = m->q;
	bool done = true;

	dp_take(&q->lock);
	if (!q->destroyed && q->incarnation == m->incarnation && in_use(q) && q->order.nrails >= m->nrails)
		for (uint32_t i = 1; i < m->nrails && done; i++)
			done = q->order.done[i] >= m->planned[i];
	dp_drop(&q->lock);
	return done;
}

/* Nobody may be polling: the program may be the one that waits for us. */
static void poll_for(struct dp_qp *q)
{
	if (!dp_try(&q->ctl))
		return;
	if (!q->destroyed && q->scq) { /* with ctl held its CQ cannot go */
		dp_take(&q->scq->lock);
		dp_cq_progress(q->scq, false);
		dp_drop(&q->scq->lock);
	}
	dp_drop(&q->ctl);
}

bool dp_drain_done(struct dp_drain *d)
{
	bool all = true;

	for (size_t i = 0; i < d->n; i++) {
		struct mark *m = &d->mark[i];

		if (m->done)
			continue;
		m->done = mark_done(m);
		if (!m->done) {
			poll_for(m->q);
			m->done = mark_done(m);
		}
		all &= m->done;
	}
	return all;
}

void dp_drain_free(struct dp_drain *d)
{
	if (!d)
		return;
	for (size_t i = 0; i < d->n; i++)
		dp_qp_put(d->mark[i].q);
	free(d->mark);
	free(d);
}

/* ---- acknowledgements that wait for a drain */

/* [control] */
struct late_ack {
	struct dp_peer *peer; /* NULL: this process, whose dp_peer changes when the peer layer restarts */
	uint64_t message;     /* what it answers, whole or as far as it is about one rpd: one drain serves all of it */
	uint64_t deadline;
	struct dp_drain *drain;
	const struct dp_rpd *rpd;
	struct late_ack *next;
	uint8_t buf[2 + DP_KEYS_BATCH * 8]; /* the acknowledgement: seqs, from 2 on */
	uint16_t n;
};

static struct late_ack *late_acks;
static struct dp_timer late_timer;

static void late_tick(struct dp_timer *t)
{
	struct late_ack **at = &late_acks, *a;
	uint64_t now = dp_now_ns();

	while ((a = *at)) {
		bool done = !a->drain || dp_drain_done(a->drain);

		if (!done && now < a->deadline) {
			at = &a->next;
			continue;
		}
		if (done && a->drain) {
			struct dp_peer *peer = a->peer ? a->peer : dp_self_peer();

			a->buf[0] = (uint8_t)(a->n >> 8);
			a->buf[1] = (uint8_t)a->n;
			if (peer)
				dp_peer_send(peer, DP_MSG_KEYS_ACK, a->buf, 2 + a->n * 8u);
		}
		*at = a->next;
		dp_drain_free(a->drain);
		free(a);
	}
	if (late_acks)
		dp_timer_arm(t, DRAIN_TICK_NS, late_tick);
}

static void add_seq(struct late_ack *a, uint64_t seq)
{
	struct dp_wbuf b = { .p = a->buf + 2 + a->n * 8u, .cap = 8 };

	dp_put64(&b, seq);
	a->n++;
}

/* Without memory there is no acknowledgement: the owner keeps its twins. */
void dp_ack_later(struct dp_peer *peer, struct dp_rpd *rpd, uint64_t seq, uint64_t message)
{
	struct late_ack *a;

	for (a = late_acks; a && a->message == message; a = a->next)
		if (a->rpd == rpd && a->n < DP_KEYS_BATCH) {
			add_seq(a, seq);
			return;
		}
	a = calloc(1, sizeof(*a));
	if (!a)
		return;
	a->peer = dp_peer_is_self(peer) ? NULL : peer;
	a->message = message;
	a->rpd = rpd;
	add_seq(a, seq);
	a->deadline = dp_now_ns() + dp_lease_bound();
	a->drain = dp_drain_start(NULL, rpd);
	a->next = late_acks;
	late_acks = a;
	dp_timer_arm(&late_timer, DRAIN_TICK_NS, late_tick);
}

void dp_acks_gone(struct dp_peer *peer)
{
	struct late_ack **at = &late_acks, *a;

	while ((a = *at)) {
		if (a->peer != peer) {
			at = &a->next;
			continue;
		}
		*at = a->next;
		dp_drain_free(a->drain);
		free(a);
	}
}

void dp_acks_after_fork(void)
{
	late_acks = NULL;
}

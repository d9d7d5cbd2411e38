// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Beginning and end of bonds, and of the peer layer that they need. */
#include "bond_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SAY_AFTER_NS UINT64_C(5000000000)
#define SAY_AT_END_NS UINT64_C(1000000000)

static dp_lock start_lock = PTHREAD_MUTEX_INITIALIZER;
static bool started;
static int live; /* bonds not freed yet */

static pthread_mutex_t wait_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wait_cond;
static pthread_once_t wait_once = PTHREAD_ONCE_INIT;
static uint64_t waited_ns; /* of the process's budget */

static void wait_init(void)
{
	pthread_condattr_t a;

	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&wait_cond, &a);
	pthread_condattr_destroy(&a);
}

void dp_bond_settled(struct dp_qp *q)
{
	pthread_once(&wait_once, wait_init);
	pthread_mutex_lock(&wait_lock);
	q->settled = true;
	pthread_cond_broadcast(&wait_cond);
	pthread_mutex_unlock(&wait_lock);
}

void dp_bond_wait(struct dp_qp *q)
{
	uint64_t begin, end;
	struct timespec t;
	int cancel;

	if (!dp_cfg.bond_wait_ns)
		return;
	cancel = dp_no_cancel();
	pthread_once(&wait_once, wait_init);
	pthread_mutex_lock(&wait_lock);
	begin = dp_now_ns();
	end = begin + (dp_cfg.bond_wait_ns > waited_ns ? dp_cfg.bond_wait_ns - waited_ns : 0);
	t.tv_sec = (time_t)(end / 1000000000u);
	t.tv_nsec = (long)(end % 1000000000u);
	while (!q->settled && pthread_cond_timedwait(&wait_cond, &wait_lock, &t) != ETIMEDOUT)
		;
	waited_ns += dp_now_ns() - begin;
	pthread_mutex_unlock(&wait_lock);
	dp_cancel_as(cancel);
}

/* ---- seeking ----------------------------------------------------------------------------------------------- */

/* In case nobody waits long enough to hear the final answer. */
static void say_no_answer(struct dp_bond *b)
{
	char text[64];

	dp_say_once(&b->peer_gid, "peer %s: no libdualport has answered; qp 0x%x and its like are on one port until one "
				  "does", dp_gid_text(&b->peer_gid, text, sizeof(text)), b->my_qpn);
	/* the final answer is no news then */
	b->said = true;
}

/* Nobody answers; or the owner of the peer's QP is known, but its program has not connected it to ours all the time. */
static void not_named(struct dp_timer *t)
{
	struct dp_bond *b = dp_bond_of(t);
	struct dp_qp *q = b->q;

	dp_take(&q->ctl);
	if (!b->ended && b->state == SEEKING && !b->peer) {
		say_no_answer(b);
	} else if (!b->ended && b->state == SEEKING) {
		dp_say_once(&b->peer_gid, "qp 0x%x: the peer's qp 0x%x was not connected to it; one port", b->my_qpn,
			    b->peer_qpn);
		dp_bond_give_up(b, DP_FB_PEER_REFUSED);
	}
	dp_drop(&q->ctl);
}

static void found(void *arg, struct dp_peer *peer, int status)
{
	struct dp_bond *b = arg;
	struct dp_qp *q = b->q;
	char text[64];

	dp_take(&q->ctl);
	b->locate = NULL;
	if (b->ended || b->state != SEEKING)
		goto out;
	if (status) {
		if (!b->said)
			dp_say_once(&b->peer_gid, "peer %s: %s; qp 0x%x and its like stay on one port",
			    dp_gid_text(&b->peer_gid, text, sizeof(text)),
			    status == -ECONNREFUSED ? "no libdualport answers (connection refused)" :
			    status == -ENOENT	    ? "libdualport there does not know the qp" :
			    status == -ETIMEDOUT    ? "no answer" :
			    status == -EACCES	    ? "authentication failed" :
						      strerror(-status),
			    b->my_qpn);
		dp_bond_give_up(b, status == -ENOENT || status == -EACCES ? DP_FB_PEER_REFUSED : DP_FB_NO_PEER);
		goto out;
	}
	b->peer = peer;
	dp_bond_tell(b, DP_BOND_ASK);
	dp_timer_arm(&b->timer, dp_cfg.peer_timeout_ns, not_named);
out:
	dp_drop(&q->ctl);
}

static void loop_to_self(struct dp_bond *b)
{
	struct dp_qp *q = b->q;
	char port[DP_PORT_TEXT];

	if (!b->peer || !dp_bond_make_twins(b, DP_MAX_RAILS - 1)) {
		dp_bond_give_up(b, DP_FB_TWIN_QP_FAILED);
		return;
	}
	b->peer_pd = q->pd->id;
	b->peer_upstream = dp_upstream(q->c->ctx);
	dp_rail_port(q, 0, port);
	snprintf(b->peer_port, sizeof(b->peer_port), "%s", port);
	q->loopback = true;
	b->peer_incarnation = b->my_incarnation;
	memcpy(b->theirs, b->mine, sizeof(b->theirs));
	for (uint32_t r = 1; r < q->nrails; r++)
		dp_rail_take(&q->rail[r], &b->theirs[r]);
	b->rpd = dp_rpd_get(b->peer, b->peer_pd);
	if (!dp_bond_connect_twins(b)) {
		dp_bond_give_up(b, DP_FB_TWIN_QP_FAILED);
		return;
	}
	if (dp_bond_wants_spare(dp_cfg.flush, q->nrails, b->peer_upstream, b->mine)) {
		dp_spare_make(q, &b->mine[0]);
		b->theirs[0] = b->mine[0];
		dp_bond_connect_spare(b);
	}
	dp_bond_connected(b);
}

static void seek(void *arg)
{
	struct dp_bond *b = arg;
	struct dp_qp *q = b->q;

	b->next = dp_bonds;
	dp_bonds = b;
	dp_take(&q->ctl);
	if (b->ended)
		goto out;
	dp_watch_siblings(q->c);
	dp_advertise_port(q->c->real, q->c->ctx, q->init.port_num);
	if (b->my_qpn == b->peer_qpn && !memcmp(&b->my_gid, &b->peer_gid, sizeof(b->my_gid))) {
		b->peer = dp_self_peer();
		loop_to_self(b);
		goto out;
	}
	dp_timer_arm(&b->timer, SAY_AFTER_NS, not_named);
	b->locate = dp_peer_locate(&b->peer_gid, b->netdev, b->peer_qpn, dp_cfg.peer_timeout_ns, found, b);
	if (!b->locate)
		dp_bond_give_up(b, DP_FB_NO_PEER);
out:
	dp_drop(&q->ctl);
}

static void rts_reached(void *arg)
{
	struct dp_bond *b = arg;

	dp_take(&b->q->ctl);
	if (!b->ended && b->state == CONNECTED)
		dp_bond_probe(b);
	dp_drop(&b->q->ctl);
}

static void finish(void *arg)
{
	struct dp_bond *b = arg, **p;

	dp_bond_stop_seeking(b);
	dp_timer_disarm(&b->timer);
	dp_bond_spare_end(b);
	dp_timer_disarm(&b->broken.timer);
	for (p = &dp_bonds; *p && *p != b; p = &(*p)->next)
		;
	if (*p)
		*p = b->next;
	dp_bond_tell(b, DP_BOND_BYE);
	dp_bond_put_keys(b);
	dp_qp_put(b->q);
	free(b);
	dp_take(&start_lock);
	live--;
	dp_drop(&start_lock);
}

/* ---- calls of the program's threads ------------------------------------------------------------------------ */

static void thread_init(void)
{
	dp_stub->inside(1);
}

static int start(void)
{
	int ret = 0;

	dp_take(&start_lock);
	if (!started)
		ret = dp_peer_start(&dp_bond_handler, thread_init);
	if (!ret) {
		started = true;
		live++;
	}
	dp_drop(&start_lock);
	return ret;
}

void dp_bond_stop(bool at_exit)
{
	bool stop = at_exit;

	/* finish() of the last bonds may still be on its way to the control thread */
	for (int i = 0; !stop && i < 200; i++) {
		bool idle;

		dp_take(&start_lock);
		idle = !live;
		dp_drop(&start_lock);
		if (idle)
			break;
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	dp_take(&start_lock);
	stop = started && (at_exit || !live);
	if (stop)
		started = false;
	dp_drop(&start_lock);
	if (!stop)
		return;
	dp_progress_stop();
	dp_peer_stop(at_exit);
}

void dp_bond_after_fork(void)
{
	dp_lock_init(&start_lock);
	pthread_mutex_init(&wait_lock, NULL);
	started = false;
	live = 0;
	dp_bonds = NULL;
}

void dp_bond_rtr(struct dp_qp *q)
{
	struct dp_bond *b;
	uint32_t type;
	int ret;

	q->settled = false;
	if (!q->rtr.ah_attr.is_global) {
		dp_say_once(NULL, "qp 0x%x: its peer has no gid, only a lid, and no rendezvous for infiniband is "
				  "configured; one port", q->qp_num);
		dp_qp_untrack(q, DP_FB_NO_PEER);
		dp_bond_settled(q);
		return;
	}
	b = calloc(1, sizeof(*b));
	if (!b)
		goto no;
	b->q = q;
	b->since = dp_now_ns();
	b->my_qpn = q->qp_num;
	b->my_incarnation = q->incarnation;
	b->peer_gid = q->rtr.ah_attr.grh.dgid;
	b->peer_qpn = q->rtr.dest_qp_num;
	if (dp_gid_of(q->c->real, q->c->ctx, q->init.port_num, q->rtr.ah_attr.grh.sgid_index, &b->my_gid, &type,
		      b->netdev))
		goto no;
	q->gid = b->my_gid;
	ret = start();
	if (ret) {
		dp_say_once(NULL, "cannot talk to peers: %s; one port", strerror(-ret));
		goto no;
	}
	dp_qp_hold(q);
	q->bond = b;
	if (!dp_peer_call(seek, b))
		return;
	q->bond = NULL;
	dp_qp_put(q);
	dp_take(&start_lock);
	live--;
	dp_drop(&start_lock);
no:
	free(b);
	dp_qp_untrack(q, DP_FB_NO_PEER);
	dp_bond_settled(q);
}

void dp_bond_rts(struct dp_qp *q)
{
	if (q->bond)
		dp_peer_call(rts_reached, q->bond);
}

void dp_bond_end(struct dp_qp *q)
{
	struct dp_bond *b = q->bond;
	struct dp_rpd *rpd;

	if (!b)
		return;
	q->bond = NULL;
	b->ended = true;
	if (b->state == SEEKING) {
		dp_fallback(DP_FB_NO_PEER);
		/* a QP that lived shorter than any answer takes says nothing of the peer */
		if (!b->peer && dp_now_ns() - b->since > SAY_AT_END_NS)
			say_no_answer(b);
	}
	dp_take(&q->lock);
	dp_order_unbond(&q->order);
	rpd = q->rpd;
	dp_qp_set_rpd(q, NULL);
	dp_drop(&q->lock);
	if (rpd) /* else it may still be b's */
		b->rpd = rpd;
	dp_peer_call(finish, b);
	dp_bond_settled(q);
}

struct unwatch {
	struct dp_ctx *c;
	bool done, left;
};

static void unwatch(void *arg)
{
	struct unwatch *u = arg;

	pthread_mutex_lock(&wait_lock);
	for (uint32_t i = 0; !u->left && i < u->c->nsib; i++)
		if (u->c->sib[i].watched)
			dp_peer_unwatch(u->c->sib[i].ctx->async_fd);
	u->done = true;
	pthread_cond_broadcast(&wait_cond);
	if (u->left)
		free(u);
	pthread_mutex_unlock(&wait_lock);
}

bool dp_bond_unwatch(struct dp_ctx *c)
{
	struct unwatch *u;
	struct timespec end;
	bool watched = false, done;
	int cancel;

	for (uint32_t i = 0; i < c->nsib; i++)
		watched |= c->sib[i].watched;
	if (!watched)
		return true;
	pthread_once(&wait_once, wait_init);
	u = calloc(1, sizeof(*u));
	if (!u)
		return false;
	u->c = c;
	if (dp_peer_call(unwatch, u)) {
		free(u);
		return true; /* no thread, so nobody watches */
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += 2;
	cancel = dp_no_cancel();
	pthread_mutex_lock(&wait_lock);
	while (!u->done && pthread_cond_timedwait(&wait_cond, &wait_lock, &end) != ETIMEDOUT)
		;
	done = u->done;
	u->left = !done;
	pthread_mutex_unlock(&wait_lock);
	dp_cancel_as(cancel);
	if (done)
		free(u);
	return done;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A spare that broke is made anew, on both sides, since it is one connection: whoever wants it begins a round, with a
 * higher number, and both tell each other of the queue pairs that they made for it, then that these can receive. What
 * waits for a flush meanwhile goes on waiting. On the control thread, with the QP's ctl lock.
 */
#include "bond_priv.h"

#include <errno.h>
#include <string.h>

#define ROUND_LIMIT_NS UINT64_C(2000000000)
/* A program that breaks it all the time is better off with one port. */
#define ROUNDS_MAX 32
#define ROUNDS_NS UINT64_C(1000000000)

static struct dp_bond *bond_of(struct dp_timer *t)
{
	return (struct dp_bond *)((char *)t - offsetof(struct dp_bond, spare.timer));
}

/* Twins of both sides are connected, or nearly, and the peer can be told. */
static bool in_use(const struct dp_bond *b)
{
	return !b->ended && b->peer && b->q->spare &&
	       (b->state == CONNECTED || b->state == PROBING || b->state == UP || b->state == RESPONDER);
}

static void tell(struct dp_bond *b, bool ready)
{
	struct dp_bond_msg m;

	dp_bond_head(b, &m);
	m.round = b->spare.round;
	m.ready = ready;
	m.spare = b->mine[0];
	dp_bond_send(b->peer, DP_BOND_SPARE, &m);
}

static void over(struct dp_bond *b, const char *why)
{
	struct dp_qp *q = b->q;

	dp_timer_disarm(&b->spare.timer);
	b->spare.state = SPARE_SET;
	dp_take(&q->scq->lock);
	dp_take(&q->lock);
	dp_spare_over(q, why);
	dp_cq_go_on(q->scq, q);
	dp_drop(&q->lock);
	dp_drop(&q->scq->lock);
}

static void give_up(struct dp_bond *b, const char *why)
{
	over(b, why);
	b->mine[0].qpn = 0;
	if (b->peer)
		tell(b, false);
}

static void too_late(struct dp_timer *t)
{
	struct dp_bond *b = bond_of(t);

	dp_take(&b->q->ctl);
	if (in_use(b) && b->spare.state != SPARE_SET)
		give_up(b, "it could not be connected anew in time");
	dp_drop(&b->q->ctl);
}

static void up(struct dp_bond *b)
{
	struct dp_qp *q = b->q;

	/* before the program's RTS, dp_bond_probe() does it */
	if (b->state != CONNECTED && dp_twin_rts(q, q->spare, &b->mine[0], &b->theirs[0]))
		return; /* it broke again: the next round, or the timer */
	dp_timer_disarm(&b->spare.timer);
	b->spare.state = SPARE_SET;
	dp_count(&dp_counters.spares_renewed, 1);
	dp_info("qp 0x%x: flushes of %s go over qp 0x%x from here on", q->qp_num, q->c->dev, q->spare->twin->qp_num);
	dp_spare_up(q);
}

static int connect_to(struct dp_bond *b, const struct dp_twin_info *theirs)
{
	struct dp_qp *q = b->q;
	int ret;

	b->theirs[0] = *theirs;
	ret = dp_twin_rtr(q, q->spare, &b->mine[0], &b->theirs[0]);
	if (!ret)
		dp_rail_take(q->spare, &b->theirs[0]);
	return ret;
}

static void begin(struct dp_bond *b, uint32_t round)
{
	uint64_t now = dp_now_ns();
	int ret;

	if (now - b->spare.since > ROUNDS_NS) {
		b->spare.since = now;
		b->spare.rounds = 0;
	}
	b->spare.round = round;
	if (b->spare.rounds++ == ROUNDS_MAX) {
		give_up(b, "it breaks all the time");
		return;
	}
	ret = dp_spare_renew(b->q, &b->mine[0]);
	if (ret) {
		give_up(b, strerror(-ret));
		return;
	}
	b->spare.state = SPARE_MADE;
	dp_timer_arm(&b->spare.timer, ROUND_LIMIT_NS, too_late);
	if (b->q->loopback) {
		ret = connect_to(b, &b->mine[0]);
		if (ret)
			over(b, strerror(-ret));
		else
			up(b);
		return;
	}
	tell(b, false);
}

void dp_bond_on_spare(struct dp_bond *b, const struct dp_bond_msg *m)
{
	int ret;

	if (!in_use(b) || (int32_t)(m->round - b->spare.round) < 0)
		return;
	if (!m->spare.qpn) {
		over(b, "the peer has none any more");
		return;
	}
	if (m->round != b->spare.round)
		begin(b, m->round);
	if (!m->ready && b->spare.state == SPARE_MADE) {
		ret = connect_to(b, &m->spare);
		if (ret) {
			give_up(b, strerror(-ret));
			return;
		}
		b->spare.state = SPARE_RTR;
		tell(b, true);
	} else if (m->ready && b->spare.state == SPARE_RTR) {
		up(b);
	}
}

static void again(void *arg)
{
	struct dp_qp *q = arg;
	struct dp_bond *b;

	dp_take(&q->ctl);
	b = q->destroyed ? NULL : q->bond;
	/* a round that the peer began meanwhile is for the same loss; without a peer lose_peer() has said what holds */
	if (b && in_use(b) && b->spare.state == SPARE_SET && q->spare->dead)
		begin(b, b->spare.round + 1);
	dp_drop(&q->ctl);
	dp_qp_put(q);
}

int dp_bond_respare(struct dp_qp *q)
{
	int ret;

	dp_qp_hold(q);
	ret = dp_peer_call(again, q);
	if (ret)
		dp_qp_put(q);
	return ret;
}

void dp_bond_spare_end(struct dp_bond *b)
{
	dp_timer_disarm(&b->spare.timer);
}

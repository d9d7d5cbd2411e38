// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* From connected twins to a bonded QP: probe each rail, then switch at a WR boundary. */
#include "bond_priv.h"

#include "lag.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PROBE_LIMIT_NS UINT64_C(3000000000)
#define PROBE_LOOK_NS UINT64_C(500000)
#define PROBE_SPIN_NS UINT64_C(30000)
/* how long a bond waits for the peer's keys: without them the program's first WRs all go on one rail */
#define KEYS_LIMIT_NS UINT64_C(200000000)

static uint32_t weight_of(uint32_t place, struct ibv_context *ctx, uint8_t port)
{
	if (dp_cfg.weights == DP_WEIGHTS_FIXED && place < DP_MAX_RAILS)
		return dp_cfg.weight[place];
	return dp_cfg.weights == DP_WEIGHTS_RATE ? dp_port_rate(ctx, port) : 1;
}

/* Nobody can be cut by rates of which one is unknown. */
static void set_weights(struct dp_qp *q)
{
	bool unknown = false;

	q->policy.weight[0] = weight_of(q->c->place, q->c->ctx, q->init.port_num);
	for (uint32_t r = 1; r < q->nrails; r++) {
		const struct dp_sib *sib = q->rail[r].sib;

		q->policy.weight[r] = weight_of(sib->place, sib->ctx, (uint8_t)sib->port.port);
	}
	for (uint32_t r = 0; r < q->nrails; r++)
		unknown |= !q->policy.weight[r];
	for (uint32_t r = 0; unknown && r < q->nrails; r++)
		q->policy.weight[r] = 1;
}

static void place(struct dp_qp *q, uint32_t r, const struct dp_rail *rail)
{
	q->rail[r] = *rail;
	q->rail[r].idx = r;
	if (rail->twin)
		dp_hmap_put(&rail->sib->twins, rail->twin->qp_num, &q->rail[r]);
	if (rail->flow)
		atomic_store_explicit(&rail->flow->rail, r, memory_order_relaxed);
}

/* Closes the gaps of rails without twins, or mute. With scq->lock and lock held: look-ups find rails by pointer. */
static void compact(struct dp_qp *q)
{
	uint32_t n = 1;

	for (uint32_t r = 1; r < q->nrails; r++) {
		struct dp_rail other;

		if (!q->rail[r].twin || q->rail[r].mute)
			continue;
		if (r != n) {
			other = q->rail[n];
			place(q, n, &q->rail[r]);
			place(q, r, &other);
		}
		n++;
	}
	q->nrails = n;
}

const char *dp_rail_port(const struct dp_qp *q, uint32_t r, char buf[DP_PORT_TEXT])
{
	return r ? strcpy(buf, q->rail[r].sib->text) : dp_port_text(q->c->dev, q->init.port_num, q->c->lag, buf);
}

/* With a bond of ports every rail is pinned to its own; changes of state before RTS would undo it. 0 or -errno. */
static int pin(struct dp_qp *q, uint32_t r)
{
	int lag = r ? q->rail[r].sib->port.lag : q->c->lag, ret = -ECANCELED;
	char port[DP_PORT_TEXT];

	if (!lag)
		return 0;
	if (r) {
		ret = dp_lag_pin(q->rail[r].twin, lag);
	} else {
		dp_take(&q->lock); /* so that the program does not destroy it meanwhile */
		if (!q->going)
			ret = dp_lag_pin(q->qp, lag);
		dp_drop(&q->lock);
	}
	if (ret && ret != -ECANCELED)
		dp_lag_refused(q->c, dp_rail_port(q, r, port), ret);
	return ret;
}

static int prepare_rails(struct dp_bond *b)
{
	struct dp_qp *q = b->q;
	char peer[64], from[64], port[DP_PORT_TEXT];

	dp_gid_text(&b->peer_gid, peer, sizeof(peer));
	dp_gid_text(&b->my_gid, from, sizeof(from));
	for (uint32_t r = 0; r < q->nrails; r++) {
		struct dp_rail *rail = &q->rail[r];

		if (r && (!rail->twin || rail->mute))
			continue;
		rail->chain.sge = calloc((size_t)DP_BATCH * (q->cap.max_send_sge ? q->cap.max_send_sge : 1),
					 sizeof(*rail->chain.sge));
		rail->flow = dp_flow_between(dp_rail_port(q, r, port), from, peer,
					     r ? b->theirs[r].text : b->peer_port);
		if (!rail->chain.sge || !rail->flow)
			return -ENOMEM;
		atomic_store_explicit(&rail->flow->rail, r, memory_order_relaxed);
	}
	q->flow0 = q->rail[0].flow;
	dp_qp_set_rpd(q, b->rpd ? b->rpd : dp_rpd_get(b->peer, b->peer_pd));
	b->rpd = NULL;
	return q->rpd ? 0 : -ENOMEM;
}

static void banner(const struct dp_bond *b)
{
	struct dp_qp *q = b->q;
	char peer[64], rails[1024], port[DP_PORT_TEXT];
	size_t at = 0;

	for (uint32_t r = 0; r < q->nrails && at < sizeof(rails); r++)
		at += (size_t)snprintf(rails + at, sizeof(rails) - at, "%s%s", r ? " + " : "", dp_rail_port(q, r, port));
	dp_log(DP_LOG_QUIET, "qp 0x%x to %s qp 0x%x: bonded over %s", b->my_qpn,
	       dp_gid_text(&b->peer_gid, peer, sizeof(peer)), b->peer_qpn, rails);
}

void dp_bond_only_respond(struct dp_bond *b, enum dp_fallback reason)
{
	char peer[64];

	dp_timer_disarm(&b->timer);
	b->state = RESPONDER;
	dp_bond_put_keys(b);
	if (reason != DP_FB_NO_REMOTE_ACCESS)
		dp_stats_unbonded(dp_gid_text(&b->peer_gid, peer, sizeof(peer)), reason);
	dp_qp_untrack(b->q, reason);
	dp_bond_settled(b->q);
}

static void switch_over(struct dp_bond *b)
{
	struct dp_qp *q = b->q;
	unsigned good = 0;
	int ret;

	for (uint32_t r = 1; r < q->nrails; r++) {
		if (!q->rail[r].twin)
			continue;
		if (q->rail[r].probe == DP_PROBE_OK && !q->rail[r].dead) {
			good++;
			continue;
		}
		dp_warn("qp 0x%x: no way from %s to %s: the probe %s", q->qp_num, q->rail[r].sib->text,
			b->theirs[r].text, q->rail[r].probe == DP_PROBE_SENT ? "was not answered" : "failed");
		/* the peer's may have been, and it may be sending already */
		q->rail[r].mute = true;
	}
	if (!good) {
		dp_bond_only_respond(b, DP_FB_PROBE_FAILED);
		return;
	}
	if (pin(q, 0)) {
		dp_bond_only_respond(b, DP_FB_LAG);
		return;
	}
	ret = prepare_rails(b);
	dp_take(&q->scq->lock);
	dp_take(&q->lock);
	/* in SQD twins that can send are not wanted */
	if (!ret && (q->unrecorded || q->qp_state == IBV_QPS_SQD ||
		     atomic_load_explicit(&q->state, memory_order_relaxed) != DP_QP_PENDING))
		ret = -ECANCELED;
	if (!ret) {
		compact(q);
		ret = dp_order_widen(&q->order, q->nrails);
	}
	if (!ret) {
		dp_copies_make(q);
		q->cut.len = 0;
		q->policy = (struct dp_plan_policy){
			.nrails = q->nrails,
			.split_min = dp_cfg.split_min,
			.align = dp_cfg.align,
			.first = dp_plan_first(dp_peer_instance(dp_self_peer()), dp_peer_instance(b->peer),
					       DP_INSTANCE_LEN, q->nrails),
		};
		set_weights(q);
		dp_flush_setup(q, b->peer_upstream);
		dp_order_bond(&q->order);
		/* release: see dp_post_send() */
		atomic_store_explicit(&q->state, DP_QP_BONDED, memory_order_release);
	}
	dp_drop(&q->lock);
	dp_drop(&q->scq->lock);
	if (ret) {
		dp_warn("qp 0x%x: cannot bond: %s", q->qp_num, strerror(-ret));
		dp_bond_only_respond(b, DP_FB_TWIN_QP_FAILED);
		return;
	}
	b->state = UP;
	dp_count(&dp_counters.bonds, 1);
	if (dp_cfg.diag || dp_log_level >= DP_LOG_INFO)
		banner(b);
	dp_bond_settled(q);
}

static bool probes_open(struct dp_qp *q)
{
	bool open = false;

	dp_take(&q->scq->lock);
	dp_cq_progress(q->scq, false);
	dp_take(&q->lock);
	for (uint32_t r = 1; r < q->nrails; r++)
		open |= q->rail[r].twin && q->rail[r].probe == DP_PROBE_SENT;
	dp_drop(&q->lock);
	dp_drop(&q->scq->lock);
	return open;
}

static void look_at_probes(struct dp_timer *t)
{
	struct dp_bond *b = dp_bond_of(t);
	struct dp_qp *q = b->q;
	uint64_t now;

	dp_take(&q->ctl);
	if (b->ended || b->state != PROBING)
		goto out;
	now = dp_now_ns();
	if ((probes_open(q) && now < b->probe_deadline) || (b->rpd && !dp_rpd_ready(b->rpd) && now < b->keys_deadline))
		dp_timer_arm(&b->timer, PROBE_LOOK_NS, look_at_probes);
	else
		switch_over(b);
out:
	dp_drop(&q->ctl);
}

/* The peer's READs are answered by the ports of a bond that they came for; else by whichever the driver chose. */
static void answer_by_all(struct dp_bond *b)
{
	struct dp_qp *q = b->q;

	for (uint32_t r = 1; r < q->nrails; r++)
		if (q->rail[r].twin && q->rail[r].sib->port.lag && !dp_twin_rts(q, &q->rail[r], &b->mine[r], &b->theirs[r]))
			pin(q, r);
	pin(q, 0);
}

/* Twins on both sides can receive, and the program's QP is at RTS: try whether anything gets through. */
void dp_bond_probe(struct dp_bond *b)
{
	struct dp_qp *q = b->q;
	bool access = false;

	for (uint32_t r = 1; r < q->nrails; r++)
		access |= q->rail[r].twin &&
			  (b->theirs[r].access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
	if (!access) {
		answer_by_all(b);
		dp_bond_only_respond(b, DP_FB_NO_REMOTE_ACCESS);
		return;
	}
	b->state = PROBING;
	b->probe_deadline = dp_now_ns() + PROBE_LIMIT_NS;
	b->keys_deadline = dp_now_ns() + KEYS_LIMIT_NS;
	for (uint32_t r = 1; r < q->nrails; r++) {
		int ret;

		if (!q->rail[r].twin)
			continue;
		ret = dp_twin_rts(q, &q->rail[r], &b->mine[r], &b->theirs[r]);
		if (!ret && pin(q, r)) {
			dp_bond_only_respond(b, DP_FB_LAG);
			return;
		}
		if (!ret)
			ret = dp_twin_probe(q, &q->rail[r], &b->theirs[r]);
		if (ret) {
			dp_warn("qp 0x%x: twin on %s: %s", q->qp_num, q->rail[r].sib->text, strerror(-ret));
			q->rail[r].probe = DP_PROBE_FAILED;
		}
	}
	if (q->spare && dp_twin_rts(q, q->spare, &b->mine[0], &b->theirs[0])) {
		dp_warn("qp 0x%x: spare queue pair on %s cannot send", q->qp_num, q->c->dev);
		q->spare->rts = false;
	}
	/* a short round trip can only be measured by looking at once */
	for (uint64_t end = dp_now_ns() + PROBE_SPIN_NS; dp_now_ns() < end && probes_open(q);)
		;
	dp_timer_arm(&b->timer, PROBE_LOOK_NS / 4, look_at_probes);
}

int dp_bond_access(struct dp_qp *q)
{
	struct dp_bond *b = q->bond;

	/* if it cannot be told, the peer does without */
	if (q->spare && q->spare->rts)
		dp_twin_access(q, q->spare);

	for (uint32_t r = 1; r < q->ntwins; r++) {
		struct dp_rail *rail = &q->rail[r];
		int ret = 0;

		if (!rail->twin)
			continue;
		if (rail->rts)
			ret = dp_twin_access(q, rail);
		else if (b && (b->state == CONNECTING || b->state == CONNECTED || b->state == RESPONDER))
			ret = dp_twin_rts(q, rail, &b->mine[r], &b->theirs[r]); /* in RTR they cannot be changed */
		if (ret) {
			dp_warn("qp 0x%x: %s: the new access flags cannot be set: %s; one port from here on", q->qp_num,
				rail->sib->text, strerror(-ret));
			return ret;
		}
	}
	return 0;
}

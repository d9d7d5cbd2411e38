// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Two QPs bond. Each asks at RTR for the owner of the QP that the program named; when both have named each
 * other, the leader (smaller instance id) offers its twins, the follower accepts with its own; both connect,
 * probe, and switch, each direction on its own probe. All of it happens on the control thread, with the QP's ctl
 * lock, behind the back of a program that runs natively meanwhile.
 */
#include "bond_priv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct dp_bond *dp_bonds;

/* ---- small parts ------------------------------------------------------------------------------------------- */

void dp_bond_head(const struct dp_bond *b, struct dp_bond_msg *m)
{
	memset(m, 0, sizeof(*m));
	m->src_gid = b->my_gid;
	m->dst_gid = b->peer_gid;
	m->src_qpn = b->my_qpn;
	m->dst_qpn = b->peer_qpn;
	m->src_incarnation = b->my_incarnation;
	m->dst_incarnation = b->peer_incarnation;
}

void dp_bond_tell(struct dp_bond *b, enum dp_bond_type type)
{
	struct dp_bond_msg m;

	if (!b->peer)
		return;
	dp_bond_head(b, &m);
	dp_bond_send(b->peer, type, &m);
}

void dp_bond_stop_seeking(struct dp_bond *b)
{
	if (b->locate)
		dp_peer_locate_cancel(b->locate);
	b->locate = NULL;
}

/* Native for good; reason -1: nothing went wrong. With ctl held, as all below. */
static void end_native(struct dp_bond *b, int reason)
{
	char peer[INET6_ADDRSTRLEN];

	if (reason >= 0)
		dp_stats_unbonded(dp_gid_text(&b->peer_gid, peer, sizeof(peer)), (enum dp_fallback)reason);
	dp_bond_stop_seeking(b);
	dp_timer_disarm(&b->timer);
	dp_bond_spare_end(b);
	b->state = NO;
	b->refuse = true;
	dp_qp_untrack(b->q, reason);
	for (uint32_t r = 1; r < b->q->ntwins; r++)
		if (b->q->rail[r].twin)
			dp_twin_destroy(b->q, &b->q->rail[r]);
	dp_spare_destroy(b->q);
	dp_bond_put_keys(b);
	dp_bond_settled(b->q);
}

void dp_bond_give_up(struct dp_bond *b, enum dp_fallback reason)
{
	end_native(b, (int)reason);
}

void dp_bond_put_keys(struct dp_bond *b)
{
	if (b->rpd)
		dp_rpd_put(b->rpd);
	b->rpd = NULL;
}

/* Exactly one side of a bond leads. */
static bool leads(const struct dp_bond *b)
{
	int c = memcmp(dp_peer_instance(dp_self_peer()), dp_peer_instance(b->peer), DP_INSTANCE_LEN);

	if (!c)
		c = memcmp(&b->my_gid, &b->peer_gid, sizeof(b->my_gid));
	return c ? c < 0 : b->my_qpn < b->peer_qpn;
}

/* Makes the twins; a rail that fails has qpn 0 in mine[]. Returns how many there are. */
unsigned dp_bond_make_twins(struct dp_bond *b, uint32_t limit)
{
	struct dp_qp *q = b->q;
	uint32_t n = 0;
	unsigned made = 0;

	q->rail = calloc(1 + q->c->nsib, sizeof(*q->rail));
	if (!q->rail)
		return 0;
	q->rail[0].q = q;
	for (uint32_t i = 0; i < q->c->nsib && n < limit; i++) {
		struct dp_rail *rail;
		struct dp_sib *sib = &q->c->sib[i];
		int ret;

		/* the program's own port of a two-port device is rail 0 */
		if (!sib->shared && !strcmp(sib->port.dev, q->c->dev) && sib->port.port == q->init.port_num)
			continue;
		rail = &q->rail[++n];
		*rail = (struct dp_rail){ .q = q, .idx = n, .sib = sib, .sib_idx = i };
		if (!sib->ctx || !q->pd->twin[i])
			continue;
		ret = dp_twin_make(q, rail, &b->mine[n]);
		if (ret) {
			b->mine[n].qpn = 0;
			dp_warn("qp 0x%x: no twin on %s: %s", q->qp_num, sib->text, strerror(-ret));
			continue;
		}
		made++;
	}
	q->nrails = q->ntwins = n + 1;
	return made;
}

static void drop_rail(struct dp_bond *b, uint32_t r)
{
	if (b->q->rail[r].twin)
		dp_twin_destroy(b->q, &b->q->rail[r]);
}

/* Connects each twin to the peer's; what fails is dropped. Returns how many are left. */
unsigned dp_bond_connect_twins(struct dp_bond *b)
{
	struct dp_qp *q = b->q;
	unsigned left = 0;

	for (uint32_t r = 1; r < q->nrails; r++) {
		int ret = q->rail[r].twin && b->theirs[r].qpn ? 0 : -ENOTCONN;

		if (!ret)
			ret = dp_twin_rtr(q, &q->rail[r], &b->mine[r], &b->theirs[r]);
		if (ret) {
			if (q->rail[r].twin)
				dp_warn("qp 0x%x: %s to %s: %s", q->qp_num, q->rail[r].sib->text,
					b->theirs[r].qpn ? b->theirs[r].text : "nothing", strerror(-ret));
			drop_rail(b, r);
			b->mine[r].qpn = 0;
			continue;
		}
		left++;
	}
	return left;
}

bool dp_bond_wants_spare(enum dp_flush flush, uint32_t nrails, uint64_t upstream, const struct dp_twin_info twin[])
{
	for (uint32_t r = 1; flush == DP_FLUSH_AUTO && r < nrails; r++)
		if (twin[r].qpn && twin[r].upstream != upstream)
			return true;
	return flush == DP_FLUSH_READ;
}

/* Without it acknowledgements of rail 0 count, which is said at the switch. */
static void make_spare(struct dp_bond *b)
{
	int ret = dp_spare_make(b->q, &b->mine[0]);

	if (ret)
		dp_warn("qp 0x%x: no spare queue pair on %s: %s", b->my_qpn, b->q->c->dev, strerror(-ret));
}

void dp_bond_connect_spare(struct dp_bond *b)
{
	struct dp_qp *q = b->q;
	int ret = -ENOTCONN;

	if (q->spare && b->theirs[0].qpn)
		ret = dp_twin_rtr(q, q->spare, &b->mine[0], &b->theirs[0]);
	if (!ret) {
		dp_rail_take(q->spare, &b->theirs[0]);
		return;
	}
	if (ret != -ENOTCONN)
		dp_warn("qp 0x%x: spare queue pair on %s: %s", b->my_qpn, q->c->dev, strerror(-ret));
	dp_spare_destroy(q);
	b->mine[0].qpn = 0;
}

void dp_bond_connected(struct dp_bond *b)
{
	dp_timer_disarm(&b->timer);
	b->state = CONNECTED;
	if (b->q->qp_state == IBV_QPS_RTS)
		dp_bond_probe(b);
}

/* ---- messages ---------------------------------------------------------------------------------------------- */

static void send_twins(struct dp_bond *b, enum dp_bond_type type)
{
	struct dp_bond_msg m;
	char port[DP_PORT_TEXT];

	dp_bond_head(b, &m);
	m.pd_id = b->q->pd->id;
	m.upstream = dp_upstream(b->q->c->ctx);
	dp_rail_port(b->q, 0, port);
	snprintf(m.port, sizeof(m.port), "%s", port);
	m.flush = (uint8_t)dp_cfg.flush;
	m.spare = b->mine[0];
	m.nrails = b->q->nrails - 1;
	for (uint32_t r = 1; r < b->q->nrails; r++)
		m.rail[r - 1] = b->mine[r];
	dp_bond_send(b->peer, type, &m);
}

static void tell_connected(struct dp_bond *b)
{
	struct dp_bond_msg m;

	dp_bond_head(b, &m);
	m.spare = b->mine[0];
	dp_bond_send(b->peer, DP_BOND_CONNECTED, &m);
}

static void refuse(struct dp_bond *b, const char *why)
{
	struct dp_bond_msg m;

	dp_bond_head(b, &m);
	snprintf(m.text, sizeof(m.text), "%s", why);
	dp_bond_send(b->peer, DP_BOND_NO, &m);
}

/* Its process lives, else its connection would have ended. */
static void unanswered(struct dp_timer *t)
{
	struct dp_bond *b = dp_bond_of(t);
	struct dp_qp *q = b->q;

	dp_take(&q->ctl);
	if (!b->ended && b->peer && (b->state == OFFERED || b->state == CONNECTING)) {
		dp_warn("qp 0x%x: peer %s did not answer in time; one port", b->my_qpn, dp_peer_text(b->peer));
		/* a follower's twins are connected: the leader may be on its way over them, and its answer late */
		if (b->state == CONNECTING && !leads(b)) {
			dp_bond_only_respond(b, DP_FB_PEER_REFUSED);
		} else {
			refuse(b, "no answer in time");
			dp_bond_give_up(b, DP_FB_PEER_REFUSED);
		}
	}
	dp_drop(&q->ctl);
}

static void offer(struct dp_bond *b)
{
	if (!dp_bond_make_twins(b, DP_MAX_RAILS - 1)) {
		refuse(b, "no twin could be made");
		dp_bond_give_up(b, DP_FB_TWIN_QP_FAILED);
		return;
	}
	b->state = OFFERED;
	dp_timer_arm(&b->timer, dp_cfg.peer_timeout_ns, unanswered);
	send_twins(b, DP_BOND_OFFER);
}

static void on_ask(struct dp_bond *b, const struct dp_bond_msg *m)
{
	if (b->state != SEEKING)
		return;
	b->peer_incarnation = m->src_incarnation;
	if (leads(b)) {
		offer(b);
	} else if (!m->reply) {
		struct dp_bond_msg r;

		dp_bond_head(b, &r);
		r.reply = 1;
		dp_bond_send(b->peer, DP_BOND_ASK, &r);
	}
}

static void take_theirs(struct dp_bond *b, const struct dp_bond_msg *m)
{
	b->peer_pd = m->pd_id;
	b->peer_upstream = m->upstream;
	memcpy(b->peer_port, m->port, sizeof(b->peer_port));
	memset(b->theirs, 0, sizeof(b->theirs));
	for (uint32_t i = 0; i < m->nrails; i++)
		b->theirs[i + 1] = m->rail[i];
	for (uint32_t r = 1; r < b->q->nrails; r++)
		dp_rail_take(&b->q->rail[r], &b->theirs[r]);
	b->theirs[0] = m->spare;
	b->rpd = dp_rpd_get(b->peer, b->peer_pd); /* NULL: tried again at the switch */
}

static void on_offer(struct dp_bond *b, const struct dp_bond_msg *m)
{
	if (b->state != SEEKING)
		return;
	b->peer_incarnation = m->src_incarnation;
	if (!dp_bond_make_twins(b, m->nrails)) {
		refuse(b, "no twin could be made");
		dp_bond_give_up(b, DP_FB_TWIN_QP_FAILED);
		return;
	}
	take_theirs(b, m);
	if (!dp_bond_connect_twins(b)) {
		refuse(b, "no twin could be connected");
		dp_bond_give_up(b, DP_FB_TWIN_QP_FAILED);
		return;
	}
	/* the leader has not seen our twins yet, so we decide for both */
	if (dp_bond_wants_spare(dp_cfg.flush, b->q->nrails, b->peer_upstream, b->theirs) ||
	    dp_bond_wants_spare((enum dp_flush)m->flush, b->q->nrails, dp_upstream(b->q->c->ctx), b->mine))
		make_spare(b);
	b->state = CONNECTING;
	dp_timer_arm(&b->timer, dp_cfg.peer_timeout_ns, unanswered);
	send_twins(b, DP_BOND_ACCEPT);
}

static void on_accept(struct dp_bond *b, const struct dp_bond_msg *m)
{
	if (b->state != OFFERED)
		return;
	take_theirs(b, m);
	if (!dp_bond_connect_twins(b)) {
		refuse(b, "no twin could be connected");
		dp_bond_give_up(b, DP_FB_TWIN_QP_FAILED);
		return;
	}
	if (!b->theirs[0].qpn) {
		tell_connected(b);
		dp_bond_connected(b);
		return;
	}
	make_spare(b);
	dp_bond_connect_spare(b);
	/* it cannot receive before it knows of ours: it says when it does */
	b->state = CONNECTING;
	tell_connected(b);
}

static void on_connected(struct dp_bond *b, const struct dp_bond_msg *m)
{
	if (b->state != CONNECTING)
		return;
	b->theirs[0] = m->spare;
	if (leads(b)) {
		if (!m->spare.qpn)
			dp_spare_destroy(b->q);
	} else if (b->mine[0].qpn) {
		dp_bond_connect_spare(b);
		tell_connected(b);
	}
	dp_bond_connected(b);
}

/* The peer has no use for this bond any more, or is gone. */
static void lose_peer(struct dp_bond *b, bool in_order)
{
	struct dp_qp *q = b->q;
	struct dp_rpd *rpd;

	b->peer = NULL;
	if (b->state == NO)
		return;
	if (b->state == RESPONDER) {
		b->state = NO;
		return;
	}
	if (b->state != UP) {
		if (in_order)
			end_native(b, -1);
		else
			dp_bond_give_up(b, DP_FB_PEER_GONE);
		b->refuse = false;
		return;
	}
	b->state = NO;
	if (!in_order)
		dp_fallback(DP_FB_PEER_GONE);
	dp_take(&q->scq->lock);
	dp_take(&q->lock);
	dp_order_unbond(&q->order);
	dp_order_flush_over(&q->order, 0); /* its end of the spare is, or soon will be, gone */
	rpd = q->rpd;
	dp_qp_set_rpd(q, NULL);
	if (!dp_order_queued(&q->order) && dp_order_held(&q->order) == UINT64_MAX &&
	    dp_order_siblings_idle(&q->order) &&
	    /* the byte_len of a cut READ is still to be put right */
	    q->order.last_signaled <= q->order.done[0] &&
	    atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_BONDED) {
		dp_qp_native(q);
		dp_cq_unready(q->scq, q);
	}
	dp_drop(&q->lock);
	dp_drop(&q->scq->lock);
	if (rpd)
		dp_rpd_put(rpd);
}

static void on_no(struct dp_bond *b, const struct dp_bond_msg *m)
{
	if (b->state == UP || b->state == NO)
		return;
	dp_info("qp 0x%x: peer %s refuses: %s", b->my_qpn, dp_peer_text(b->peer), m->text);
	dp_bond_give_up(b, DP_FB_PEER_REFUSED);
}

static void answer_no(struct dp_peer *peer, const struct dp_bond_msg *m, const char *why)
{
	struct dp_bond_msg r = {
		.src_gid = m->dst_gid,
		.dst_gid = m->src_gid,
		.src_qpn = m->dst_qpn,
		.dst_qpn = m->src_qpn,
	};

	snprintf(r.text, sizeof(r.text), "%s", why);
	dp_bond_send(peer, DP_BOND_NO, &r);
}

static bool named(const struct dp_bond *b, const struct dp_bond_msg *m)
{
	return b->peer_qpn == m->src_qpn && !memcmp(&b->peer_gid, &m->src_gid, sizeof(b->peer_gid));
}

/* For a QP of ours, with ctl held. */
static void dispatch(struct dp_peer *peer, enum dp_bond_type type, const struct dp_bond_msg *m, struct dp_qp *q)
{
	struct dp_bond *b = q->bond;

	if (!b) {
		/* it has not named anybody yet: it will ask by itself when it does */
		if (type == DP_BOND_ASK && (q->fallback >= 0 || q->qp_state >= IBV_QPS_RTR))
			answer_no(peer, m, q->fallback >= 0 ? dp_fallback_str((enum dp_fallback)q->fallback) :
							      "qp left its connection");
		return;
	}
	/*
	 * An ask from somebody else, or after a bond that ended: this QP is about to be reset and connected anew, and
	 * will ask by itself then. The asker waits for that as long as for any answer.
	 */
	if (!named(b, m))
		return;
	if (b->state == NO) {
		if (b->refuse && (type == DP_BOND_ASK || type == DP_BOND_OFFER))
			answer_no(peer, m, "one port for good");
		return;
	}
	/*
	 * Anybody may say that he is the one: believed if he is reached at the address that the program named. Else we
	 * go on looking for the owner there, and ask him; he has looked for us already, and answers.
	 */
	if (type == DP_BOND_ASK && b->state == SEEKING && !b->peer && dp_peer_at(peer, &b->peer_gid, b->netdev))
		b->peer = peer;
	if ((type == DP_BOND_ASK || type == DP_BOND_OFFER) && b->state == SEEKING && b->peer == peer) {
		dp_bond_stop_seeking(b);
		dp_timer_disarm(&b->timer);
	}
	/* only that process may go on; and only for what it knows */
	if (b->peer != peer || (type != DP_BOND_ASK && m->dst_incarnation != b->my_incarnation && m->dst_incarnation))
		return;
	switch (type) {
	case DP_BOND_ASK:
		on_ask(b, m);
		break;
	case DP_BOND_OFFER:
		on_offer(b, m);
		break;
	case DP_BOND_ACCEPT:
		on_accept(b, m);
		break;
	case DP_BOND_CONNECTED:
		on_connected(b, m);
		break;
	case DP_BOND_NO:
		on_no(b, m);
		break;
	case DP_BOND_BYE:
		if (m->src_incarnation == b->peer_incarnation)
			lose_peer(b, true);
		break;
	case DP_BOND_SPARE:
		dp_bond_on_spare(b, m);
		break;
	default:
		break;
	}
}

static void on_message(struct dp_peer *peer, uint16_t type, const uint8_t *data, size_t len)
{
	struct dp_bond_msg m;
	struct dp_qp *q;

	if (type >= DP_MSG_KEYS && type < DP_MSG_KEYS + 16) {
		dp_rkeys_message(peer, type, data, len);
		return;
	}
	if (type < DP_BOND_ASK || type >= DP_BOND_TYPES_END || !dp_bond_parse((enum dp_bond_type)type, data, len, &m)) {
		/* once: whoever sends one can send a million */
		dp_say_once(NULL, "peer %s: malformed message 0x%x of %zu bytes: ignored, as are later ones",
			    dp_peer_text(peer), type, len);
		return;
	}
	q = dp_qp_by_address(&m.dst_gid, m.dst_qpn);
	if (!q) {
		if (type == DP_BOND_ASK)
			answer_no(peer, &m, "no such qp");
		return;
	}
	dp_take(&q->ctl);
	if (!q->destroyed)
		dispatch(peer, (enum dp_bond_type)type, &m, q);
	dp_drop(&q->ctl);
	dp_qp_put(q);
}

static bool owns(const union ibv_gid *gid, uint32_t qpn)
{
	struct dp_qp *q = dp_qp_by_address(gid, qpn);

	if (q)
		dp_qp_put(q);
	return q != NULL;
}

static void on_gone(struct dp_peer *peer)
{
	bool in_order = dp_peer_said_bye(peer);
	unsigned n = 0;

	for (struct dp_bond *b = dp_bonds; b; b = b->next) {
		if (b->peer != peer)
			continue;
		dp_take(&b->q->ctl);
		n += b->state == UP && !b->ended;
		if (b->ended)
			b->peer = NULL;
		else
			lose_peer(b, in_order);
		dp_drop(&b->q->ctl);
	}
	if (n && !in_order)
		dp_warn("peer %s is gone: %u qps on one port", dp_peer_text(peer), n);
	dp_rkeys_gone(peer);
}

const struct dp_peer_handler dp_bond_handler = { .owns = owns, .message = on_message, .gone = on_gone };

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What is said on a connection: greeting, then leases, questions, the users' messages.
 *
 *   initiator                acceptor
 *   HELLO  ------------------>
 *          <------------------ HELLO
 *   READY  ------------------>            both know both nonces: from READY on messages carry MACs if there is a secret
 *          <------------------ READY or REFUSE
 *
 * One connection per pair of processes: both may connect at once, and neither knows whom it will find at an address. The
 * process with the smaller instance id decides, alone and therefore consistently: it commits to a connection by sending
 * READY and refuses every other while that one lives. The other process follows: a READY on a new connection tells
 * it that the decider has given the former one up. Users' messages flow only on open connections, so
 * none is lost when one of two crossing connections is refused.
 *
 * A lost connection means gone(): which of the last messages arrived is unknown, so nothing could go on exactly; users
 * locate the process again and begin afresh.
 *
 * Leases: the holder counts from the moment it sent what the owner's grant answers, the owner from the moment it sent the
 * grant, which is later; so the holder stops first, without synchronised clocks. READY answers HELLO and READY, PONG
 * answers PING.
 */
#include <errno.h>
#include <unistd.h>
#include "internal.h"

#define FLAG_AUTH 1
#define LEASE_MAX (3600 * DP_SEC)

uint64_t dp_own_lease(void)
{
	uint64_t l = dp_cfg.lease_ns;

	return l < 100 * DP_MS ? 100 * DP_MS : l > LEASE_MAX ? LEASE_MAX : l;
}

static int send_hello(struct dp_conn *c)
{
	struct dp_wbuf b = { .p = c->hello, .cap = sizeof(c->hello) };
	uint8_t nonce[DP_NONCE_LEN];

	if (dp_random(nonce, sizeof(nonce))) {
		dp_conn_fail(c, -EIO, NULL);
		return -EPIPE;
	}
	dp_put8(&b, dp_peering->auth.on ? FLAG_AUTH : 0);
	dp_put(&b, dp_peering->instance, DP_INSTANCE_LEN);
	dp_put32(&b, (uint32_t)getpid());
	dp_put16(&b, dp_peering->range_port ? dp_peering->range_port : dp_peering->port);
	dp_put(&b, nonce, sizeof(nonce));
	return dp_conn_send(c, DP_MSG_HELLO, c->hello, sizeof(c->hello));
}

void dp_session_begin(struct dp_conn *c)
{
	send_hello(c);
}

static void grant(struct dp_conn *c)
{
	uint64_t until = dp_now() + dp_own_lease();

	if (until > c->granted_until)
		c->granted_until = until;
}

static void send_ready(struct dp_conn *c)
{
	uint8_t buf[8];
	struct dp_wbuf b = { .p = buf, .cap = sizeof(buf) };

	dp_put64(&b, dp_own_lease());
	dp_conn_send(c, DP_MSG_READY, buf, b.len);
	/* after it is queued, so that our count ends later than the receiver's */
	grant(c);
}

static void refuse(struct dp_conn *c, enum dp_refuse why, int error)
{
	uint8_t code = (uint8_t)why;

	dp_conn_send(c, DP_MSG_REFUSE, &code, 1);
	dp_conn_fail(c, error, NULL);
}

static bool we_decide(const struct dp_conn *c)
{
	return memcmp(dp_peering->instance, c->instance, DP_INSTANCE_LEN) < 0;
}

static struct dp_conn *committed_to(const struct dp_conn *to)
{
	for (struct dp_conn *c = dp_peering->conns; c; c = c->next)
		if (c != to && c->committed && !c->doomed && !memcmp(c->instance, to->instance, DP_INSTANCE_LEN))
			return c;
	return NULL;
}

static void send_ping(struct dp_conn *c)
{
	uint8_t buf[8];
	struct dp_wbuf b = { .p = buf, .cap = sizeof(buf) };

	dp_put64(&b, dp_now());
	dp_conn_send(c, DP_MSG_PING, buf, b.len);
}

/* Ends a connection that the new one supersedes, and tells its users before the new peer can be seen. */
static void supersede(struct dp_conn *c)
{
	struct dp_peer *p = dp_peering->peers;
	struct dp_conn *next;

	while (p) {
		if (memcmp(p->instance, c->instance, DP_INSTANCE_LEN)) {
			p = p->next;
			continue;
		}
		dp_conn_drop(p->conn);
		p = dp_peering->peers; /* gone() may have ended others */
	}
	/* another process now answers at a port that only one can hold: the former owner has ended */
	for (struct dp_conn *o = c->port ? dp_peering->conns : NULL; o; o = next) {
		next = o->next;
		if (o != c && o->state == DP_CONN_OPEN && o->port == c->port && dp_addr_equal(&o->addr, &c->addr) &&
		    !strcmp(o->netdev, c->netdev) && memcmp(o->instance, c->instance, DP_INSTANCE_LEN))
			dp_conn_fail(o, -ECONNRESET, NULL);
	}
}

static uint64_t tick_ns(const struct dp_conn *c)
{
	uint64_t l = c->peer_lease < dp_own_lease() ? c->peer_lease : dp_own_lease();

	return l / 4 < 10 * DP_MS ? 10 * DP_MS : l / 4;
}

static void open_conn(struct dp_conn *c)
{
	supersede(c);
	if (c->doomed)
		return;
	c->peer = dp_peer_new(c);
	if (!c->peer) {
		dp_conn_fail(c, -ENOMEM, NULL);
		return;
	}
	c->state = DP_CONN_OPEN;
	dp_peer_set_lease(c->peer, c->lease_base, c->peer_lease);
	dp_timer_arm(&c->timer, tick_ns(c), dp_session_tick);
	dp_host_peer_new(c->peer);
	dp_conn_settle(c, c->peer, 0);
}

static void auth_mismatch(struct dp_conn *c, bool theirs)
{
	const char *why = theirs ? "demands a shared secret, and peer_secret is not set here" :
				   "has no shared secret, and peer_secret is set here";
	uint8_t code = DP_REFUSE_AUTH;

	if (c->inbound)
		dp_conn_send(c, DP_MSG_REFUSE, &code, 1);
	dp_conn_fail(c, -EACCES, why);
}

static void on_hello(struct dp_conn *c, const uint8_t *data, size_t len)
{
	struct dp_rbuf b = { .p = data, .len = len };
	uint8_t nonce[DP_NONCE_LEN], flags;

	flags = dp_get8(&b);
	dp_get(&b, c->instance, sizeof(c->instance));
	c->pid = dp_get32(&b);
	c->listen_port = dp_get16(&b);
	dp_get(&b, nonce, sizeof(nonce));
	if (!dp_rbuf_whole(&b) || flags > FLAG_AUTH || !c->listen_port) {
		dp_conn_fail(c, -EPROTO, "sent a malformed greeting");
		return;
	}
	c->greeted = true;
	if (!memcmp(c->instance, dp_peering->instance, DP_INSTANCE_LEN)) {
		if (c->inbound)
			refuse(c, DP_REFUSE_SELF, -EALREADY);
		else
			dp_conn_settle(c, &dp_peering->self, 0);
		dp_conn_fail(c, -EALREADY, NULL);
		return;
	}
	if ((flags & FLAG_AUTH) != (dp_peering->auth.on ? FLAG_AUTH : 0)) {
		auth_mismatch(c, flags & FLAG_AUTH);
		return;
	}
	if (c->inbound && send_hello(c))
		return;
	if (dp_peering->auth.on) {
		if (c->inbound)
			dp_auth_derive(&dp_peering->auth, &c->keys, data, c->hello, false);
		else
			dp_auth_derive(&dp_peering->auth, &c->keys, c->hello, data, true);
		c->keyed = true;
	}
	c->state = DP_CONN_READY;
	c->lease_base = dp_now();
	dp_conn_deadline(c, DP_READY_NS);
	if (c->inbound)
		return;
	if (dp_peer_find(c->instance)) {
		/* with a secret the claim "I am that one" is not proven here, but the answers come from the real one */
		dp_conn_settle(c, dp_peer_find(c->instance), 0);
		dp_conn_fail(c, -EALREADY, NULL);
	} else if (committed_to(c)) {
		dp_conn_fail(c, -EALREADY, NULL);
	} else {
		c->committed = we_decide(c);
		send_ready(c);
	}
}

static void on_ready(struct dp_conn *c, const uint8_t *data, size_t len)
{
	struct dp_rbuf b = { .p = data, .len = len };
	struct dp_conn *other = committed_to(c);
	struct dp_peer *known = dp_peer_find(c->instance);

	c->peer_lease = dp_get64(&b);
	if (!dp_rbuf_whole(&b) || !c->peer_lease || c->peer_lease > LEASE_MAX) {
		dp_conn_fail(c, -EPROTO, "sent a malformed greeting");
		return;
	}
	/*
	 * Without a secret a READY proves nothing: the one that we know must not be given up for a stranger who copies its
	 * greeting. If it is true, the ping is answered by a reset.
	 */
	if (c->inbound && !we_decide(c) && known && !dp_peering->auth.on) {
		send_ping(known->conn);
		refuse(c, DP_REFUSE_DUP, -EALREADY);
		return;
	}
	if (c->inbound && we_decide(c) && other) {
		/* if the other side has lost that one, this is answered by a reset, and the next attempt succeeds */
		if (other->state == DP_CONN_OPEN)
			send_ping(other);
		refuse(c, DP_REFUSE_DUP, -EALREADY);
		return;
	}
	if (c->inbound) {
		c->committed = we_decide(c);
		send_ready(c);
	}
	open_conn(c);
}

static void on_refuse(struct dp_conn *c, const uint8_t *data, size_t len)
{
	uint8_t why = len == 1 ? data[0] : 0;

	if (c->inbound || !why || why > DP_REFUSE_DUP) {
		dp_conn_fail(c, -EPROTO, "sent a malformed message");
	} else if (why == DP_REFUSE_AUTH) {
		dp_conn_fail(c, -EACCES, "refuses us: authentication failed");
	} else if (why == DP_REFUSE_SELF) {
		dp_conn_settle(c, &dp_peering->self, 0);
		dp_conn_fail(c, -EALREADY, NULL);
	} else {
		struct dp_peer *p = dp_peer_find(c->instance);

		if (p)
			dp_conn_settle(c, p, 0);
		dp_conn_fail(c, -EALREADY, NULL);
	}
}

static void on_ping(struct dp_conn *c, const uint8_t *data, size_t len)
{
	uint8_t buf[16];
	struct dp_wbuf b = { .p = buf, .cap = sizeof(buf) };

	if (len != 8) {
		dp_conn_fail(c, -EPROTO, "sent a malformed message");
		return;
	}
	dp_put(&b, data, 8);
	dp_put64(&b, dp_own_lease());
	dp_conn_send(c, DP_MSG_PONG, buf, b.len);
	grant(c);
}

static void on_pong(struct dp_conn *c, const uint8_t *data, size_t len)
{
	struct dp_rbuf b = { .p = data, .len = len };
	uint64_t sent = dp_get64(&b), lease = dp_get64(&b);

	if (!dp_rbuf_whole(&b) || sent > dp_now() || !lease || lease > LEASE_MAX) {
		dp_conn_fail(c, -EPROTO, "sent a malformed message");
		return;
	}
	c->peer_lease = lease;
	dp_peer_set_lease(c->peer, sent, lease);
}

static void on_who(struct dp_conn *c, const uint8_t *data, size_t len)
{
	static struct dp_dir_entry list[DP_DIR_SLOTS];
	uint8_t out[8 + 2 + DP_DIR_SLOTS * (DP_INSTANCE_LEN + 5)];
	struct dp_rbuf b = { .p = data, .len = len };
	struct dp_wbuf w = { .p = out, .cap = sizeof(out) };
	uint64_t id = dp_get64(&b);
	union ibv_gid gid;
	unsigned n;

	dp_get(&b, gid.raw, sizeof(gid.raw));
	if (!dp_rbuf_whole(&b)) {
		dp_conn_fail(c, -EPROTO, "sent a malformed message");
		return;
	}
	n = dp_dir_list(&gid, list);
	dp_put64(&w, id);
	dp_put16(&w, (uint16_t)n);
	for (unsigned i = 0; i < n; i++) {
		dp_put(&w, list[i].instance, DP_INSTANCE_LEN);
		dp_put16(&w, list[i].port);
		dp_put16(&w, list[i].range_port);
		dp_put8(&w, list[i].has_gid);
	}
	dp_conn_send(c, DP_MSG_WHO_REPLY, out, w.len);
}

static void on_owns(struct dp_conn *c, const uint8_t *data, size_t len)
{
	struct dp_rbuf b = { .p = data, .len = len };
	uint64_t id = dp_get64(&b);
	uint8_t buf[9];
	struct dp_wbuf w = { .p = buf, .cap = sizeof(buf) };
	union ibv_gid gid;
	uint32_t qpn;

	dp_get(&b, gid.raw, sizeof(gid.raw));
	qpn = dp_get32(&b);
	if (!dp_rbuf_whole(&b)) {
		dp_conn_fail(c, -EPROTO, "sent a malformed message");
		return;
	}
	dp_put64(&w, id);
	dp_put8(&w, dp_peering->handler.owns(&gid, qpn));
	dp_conn_send(c, DP_MSG_OWNS_REPLY, buf, w.len);
}

static void opening(struct dp_conn *c, uint16_t type, const uint8_t *data, size_t len)
{
	if (type == DP_MSG_REFUSE)
		on_refuse(c, data, len);
	else if (type == DP_MSG_HELLO && c->state == DP_CONN_HELLO)
		on_hello(c, data, len);
	else if (type == DP_MSG_READY && c->state == DP_CONN_READY)
		on_ready(c, data, len);
	else
		dp_conn_fail(c, -EPROTO, c->greeted ? "sent a message out of turn" : "sent no libdualport greeting");
}

void dp_session_message(struct dp_conn *c, uint16_t type, const uint8_t *data, size_t len)
{
	if (c->state != DP_CONN_OPEN) {
		opening(c, type, data, len);
		return;
	}
	if (type >= DP_MSG_USER) {
		dp_peering->handler.message(c->peer, type, data, len);
		return;
	}
	switch (type) {
	case DP_MSG_PING:
		on_ping(c, data, len);
		break;
	case DP_MSG_PONG:
		on_pong(c, data, len);
		break;
	case DP_MSG_WHO:
		on_who(c, data, len);
		break;
	case DP_MSG_WHO_REPLY:
		dp_host_who_reply(c->peer, data, len);
		break;
	case DP_MSG_OWNS:
		on_owns(c, data, len);
		break;
	case DP_MSG_OWNS_REPLY:
		dp_locate_answer(c->peer, data, len);
		break;
	case DP_MSG_BYE:
		c->peer->said_bye = true;
		dp_conn_fail(c, -ESHUTDOWN, NULL);
		break;
	default:
		dp_conn_fail(c, -EPROTO, "sent a malformed message");
	}
}

void dp_session_tick(struct dp_timer *t)
{
	struct dp_conn *c = (struct dp_conn *)((char *)t - offsetof(struct dp_conn, timer));
	uint64_t now = dp_now(), dead = c->peer_lease > dp_own_lease() ? c->peer_lease : dp_own_lease();

	if (c->partial_since && now - c->partial_since > DP_PARTIAL_NS) {
		dp_conn_fail(c, -ETIMEDOUT, "did not send the rest of a message");
		return;
	}
	/*
	 * Counted in ticks, too: after this process itself was stopped the clock alone would call every peer dead,
	 * before what they sent is read.
	 */
	if (now - c->heard > dead && c->silent_ticks >= 4) {
		char text[64];

		dp_info("peer %s pid %u: not heard of for %llu ms", dp_addr_text(&c->addr, text), c->pid,
			(unsigned long long)((now - c->heard) / DP_MS));
		dp_conn_fail(c, -ETIMEDOUT, NULL);
		return;
	}
	c->silent_ticks++;
	send_ping(c);
	dp_timer_arm(&c->timer, tick_ns(c), dp_session_tick);
}

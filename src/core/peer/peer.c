// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The table of peer processes and the public functions on them. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include "internal.h"

/*
 * dp_peer_lease_valid() reads the coarse clock, which lags by up to a tick of the kernel (10 ms at HZ=100); and the clocks
 * of two hosts may run apart by NTP's maximum slew of 0.05% each way. The holder gives both away.
 */
#define COARSE_NS (20 * DP_MS)
#define DRIFT_SHIFT 8

struct dp_self_msg {
	struct dp_self_msg *next;
	uint16_t type;
	size_t len;
	uint8_t data[];
};

struct dp_peer *dp_peer_find(const uint8_t *instance)
{
	for (struct dp_peer *p = dp_peering->peers; p; p = p->next)
		if (!p->conn->doomed && !memcmp(p->instance, instance, DP_INSTANCE_LEN))
			return p;
	return NULL;
}

struct dp_peer *dp_peer_new(struct dp_conn *c)
{
	struct dp_peer *p = calloc(1, sizeof(*p));
	char text[64];

	if (!p)
		return NULL;
	p->conn = c;
	memcpy(p->instance, c->instance, DP_INSTANCE_LEN);
	snprintf(p->text, sizeof(p->text), "%s pid %u", dp_addr_text(&c->addr, text), c->pid);
	p->next = dp_peering->peers;
	dp_peering->peers = p;
	return p;
}

void dp_peer_set_lease(struct dp_peer *p, uint64_t base, uint64_t lease)
{
	uint64_t less = COARSE_NS + (lease >> DRIFT_SHIFT);
	uint64_t until = lease > less ? base + lease - less : 0;

	/* relaxed: the value alone is the message; it only ever promises less than its owner granted */
	if (until > atomic_load_explicit(&p->lease_until, memory_order_relaxed))
		atomic_store_explicit(&p->lease_until, until, memory_order_relaxed);
}

void dp_peer_lost(struct dp_peer *p)
{
	struct dp_peer **at = &dp_peering->peers;

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	atomic_store_explicit(&p->lease_until, 0, memory_order_relaxed);
	dp_host_peer_gone(p);
	dp_locate_peer_gone(p);
	dp_peering->handler.gone(p);
	dp_later_free(p);
}

static int send_self(uint16_t type, const void *data, size_t len)
{
	struct dp_self_msg *m = malloc(sizeof(*m) + len);

	if (!m)
		return -EPIPE;
	m->next = NULL;
	m->type = type;
	m->len = len;
	if (len)
		memcpy(m->data, data, len);
	*dp_peering->self_last = m;
	dp_peering->self_last = &m->next;
	return 0;
}

void dp_self_deliver(void)
{
	struct dp_self_msg *m = dp_peering->self_first;

	/* answers to these are for the next round: two ends in one process must not keep the loop here */
	dp_peering->self_first = NULL;
	dp_peering->self_last = &dp_peering->self_first;
	while (m) {
		struct dp_self_msg *next = m->next;

		dp_peering->handler.message(&dp_peering->self, m->type, m->data, m->len);
		free(m);
		m = next;
	}
}

int dp_peer_send(struct dp_peer *peer, uint16_t type, const void *data, size_t len)
{
	if (len > DP_MSG_MAX)
		return -EMSGSIZE;
	if (type < DP_MSG_USER)
		return -EINVAL;
	if (!peer->conn)
		return send_self(type, data, len);
	return dp_conn_send(peer->conn, type, data, len);
}

const uint8_t *dp_peer_instance(const struct dp_peer *peer)
{
	return peer->instance;
}

const char *dp_peer_text(const struct dp_peer *peer)
{
	return peer->text;
}

bool dp_peer_said_bye(const struct dp_peer *peer)
{
	return peer->said_bye;
}

bool dp_peer_is_self(const struct dp_peer *peer)
{
	return !peer->conn;
}

bool dp_peer_at(const struct dp_peer *peer, const union ibv_gid *gid, const char *netdev)
{
	const struct dp_conn *c = peer->conn;
	struct dp_addr a;

	if (!c)
		return true;
	if (dp_addr_of_gid(&a, gid, netdev))
		return false;
	/* two fabrics may use the same addresses */
	if (dp_addr_equal(&a, &c->addr) && (!netdev[0] || !c->netdev[0] || !strcmp(netdev, c->netdev)))
		return true;
	return dp_addr_local(&a) && dp_addr_local(&c->addr);
}

bool dp_peer_lease_valid(const struct dp_peer *peer)
{
	struct timespec ts;

	if (!peer->conn)
		return true;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
	return (uint64_t)ts.tv_sec * DP_SEC + (uint64_t)ts.tv_nsec <
	       atomic_load_explicit(&peer->lease_until, memory_order_relaxed);
}

uint64_t dp_peer_granted_until(const struct dp_peer *peer)
{
	return peer->conn ? peer->conn->granted_until : 0;
}

void dp_peer_set_data(struct dp_peer *peer, void *data)
{
	peer->data = data;
}

void *dp_peer_data(const struct dp_peer *peer)
{
	return peer->data;
}

void dp_peer_each(bool (*fn)(struct dp_peer *peer, void *arg), void *arg)
{
	struct dp_peer *p, *next;

	if (!dp_peering || !fn(&dp_peering->self, arg))
		return;
	for (p = dp_peering->peers; p; p = next) {
		next = p->next;
		if (!fn(p, arg))
			return;
	}
}

void dp_peer_advertise(const union ibv_gid *gids, size_t n)
{
	union ibv_gid *copy = n ? malloc(n * sizeof(*copy)) : NULL;

	if (n && !copy)
		return;
	if (n)
		memcpy(copy, gids, n * sizeof(*copy));
	free(dp_peering->gids);
	dp_peering->gids = copy;
	dp_peering->ngids = n;
	dp_dir_publish();
}

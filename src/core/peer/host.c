// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Whom to ask at an address. All locates for one address share a "host": one walk of its well-known range at a time, one
 * capped back-off between walks (which is the negative cache, too), and the processes found there so far ("routes"), who
 * are asked first.
 *
 * A walk visits the ports of the range in order. Refused: next at once. Connected: "who has this GID?"; the answer names
 * all processes of that host that share its directory, so their ports in the range need no visit; those that have the GID
 * are connected to and asked for the QP themselves. A port that is silent does not hold up the walk: the next is tried
 * after STAGGER_NS. Ports that gave no greeting are left alone for a while.
 */
#include <errno.h>
#include <stdlib.h>
#include "internal.h"

#define STAGGER_NS (150 * DP_MS)
#define BACKOFF_MIN (10 * DP_MS)
#define BACKOFF_MAX (1 * DP_SEC)
#define ROUTES_FIRST_NS (20 * DP_MS) /* what known processes have to answer before a walk */
#define SHUN_NS (3 * DP_SEC)
#define HOST_IDLE_NS (30 * DP_SEC)

struct visit {
	struct visit *next;
	struct dp_host *host;
	struct dp_peer *peer; /* that WHO was sent to */
	uint64_t id;
	uint16_t port;
	int index; /* in the range; -1: a process that a directory named */
	struct dp_timer timer;
};

struct range_port {
	uint64_t shun_until;
	uint64_t round; /* in which it needs no visit */
	int shun_status;
};

struct dp_host {
	struct dp_host *next;
	union ibv_gid gid;
	struct dp_addr addr;
	char netdev[IFNAMSIZ]; /* "" when local: nothing to bind to */
	bool local, in_round, again;
	struct dp_locate *locates;
	struct dp_peer **routes;
	size_t nroutes, routes_cap;
	struct visit *visits;
	uint64_t round, backoff, next_at, used;
	int next_port, nports;
	int status, round_status;
	struct dp_timer round_timer, stagger, fresh;
	struct range_port ports[];
};

static void advance(struct dp_host *h);
static void begin_round(struct dp_timer *t);
static void visit_over(struct visit *v, int status);

#define HOST_OF(member, t) ((struct dp_host *)((char *)(t) - offsetof(struct dp_host, member)))

/* Which of two answers says more about the host. */
static int rank(int status)
{
	return status == -ENOENT ? 4 : status == -EACCES ? 3 : status == -ETIMEDOUT ? 2 : status ? 1 : 0;
}

static void merge(int *status, int other)
{
	if (rank(other) > rank(*status))
		*status = other;
}

int dp_host_status(const struct dp_host *h)
{
	int status = h->nroutes ? -ENOENT : h->status;

	merge(&status, h->round_status);
	return status ? status : -ETIMEDOUT;
}

static void add_route(struct dp_host *h, struct dp_peer *p)
{
	for (size_t i = 0; i < h->nroutes; i++)
		if (h->routes[i] == p)
			return;
	if (h->nroutes == h->routes_cap) {
		size_t cap = h->routes_cap ? 2 * h->routes_cap : 8;
		struct dp_peer **n = realloc(h->routes, cap * sizeof(*n));

		if (!n)
			return;
		h->routes = n;
		h->routes_cap = cap;
	}
	h->routes[h->nroutes++] = p;
	for (struct dp_locate *l = h->locates; l; l = l->next)
		dp_locate_ask(l, p);
}

static bool same_place(const struct dp_host *h, const struct dp_conn *c)
{
	return dp_addr_equal(&h->addr, &c->addr) &&
	       (h->local || !h->netdev[0] || !c->netdev[0] || !strcmp(h->netdev, c->netdev));
}

void dp_host_peer_new(struct dp_peer *p)
{
	struct dp_conn *c = p->conn;
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	struct dp_addr a;

	/* two fabrics may use the same addresses: the netdev that it came in by tells them apart */
	if (c->inbound && c->io.fd >= 0 && !getsockname(c->io.fd, (struct sockaddr *)&sa, &len) &&
	    !dp_addr_of_sa(&a, &sa))
		dp_addr_netdev(&a, c->netdev);
	for (struct dp_host *h = dp_peering->hosts; h; h = h->next)
		if (same_place(h, c))
			add_route(h, p);
}

static void round_over(struct dp_host *h)
{
	h->in_round = false;
	h->status = h->round_status;
	dp_timer_disarm(&h->stagger);
	h->next_at = dp_now() + h->backoff;
	if (!h->locates)
		return;
	dp_timer_arm(&h->round_timer, h->again ? BACKOFF_MIN : h->backoff, begin_round);
	if (!h->again)
		h->backoff = 2 * h->backoff < BACKOFF_MAX ? 2 * h->backoff : BACKOFF_MAX;
}

static void visit_timeout(struct dp_timer *t)
{
	struct visit *v = (struct visit *)((char *)t - offsetof(struct visit, timer));

	/* it greeted once but does not answer now: stopped, perhaps; others of its host may */
	visit_over(v, -ENOENT);
}

static int ask_who(struct visit *v, struct dp_peer *p)
{
	uint8_t buf[24];
	struct dp_wbuf b = { .p = buf, .cap = sizeof(buf) };

	dp_put64(&b, v->id);
	dp_put(&b, v->host->gid.raw, sizeof(v->host->gid.raw));
	if (dp_conn_send(p->conn, DP_MSG_WHO, buf, b.len))
		return -ENOENT;
	v->peer = p;
	dp_timer_arm(&v->timer, DP_ANSWER_NS, visit_timeout);
	return 0;
}

static void start_visit(struct dp_host *h, uint16_t port, int index);

static void note_entries(struct dp_host *h, const struct dp_dir_entry *e, unsigned n)
{
	for (; n--; e++) {
		int index = e->range_port - dp_cfg.peer_port;
		struct visit *v = h->visits;
		struct dp_peer *p;

		if (e->range_port && index >= 0 && index < h->nports)
			h->ports[index].round = h->round;
		if (!e->has_gid || !e->port || !memcmp(e->instance, dp_peering->instance, DP_INSTANCE_LEN))
			continue;
		p = dp_peer_find(e->instance);
		if (p) {
			add_route(h, p);
			continue;
		}
		while (v && v->port != e->port)
			v = v->next;
		if (!v)
			start_visit(h, e->port, -1);
	}
}

/* Status: what it says of the host, before those who have the GID, if any, speak for themselves. */
static int note_own_directory(struct dp_host *h)
{
	static struct dp_dir_entry list[DP_DIR_SLOTS];
	unsigned n = dp_dir_list(&h->gid, list);
	int status = n > 1 ? -ENOENT : -ECONNREFUSED;

	for (unsigned i = 1; i < n; i++)
		if (list[i].has_gid)
			status = -ECONNREFUSED;
	note_entries(h, list, n);
	return status;
}

static void shun(struct dp_host *h, int index, int status)
{
	if (index < 0)
		return;
	h->ports[index].shun_until = dp_now() + SHUN_NS;
	h->ports[index].shun_status = status;
}

/* What a failed connection says of the host. */
static int judge(struct visit *v, int status)
{
	switch (status) {
	case -EALREADY: /* the other connection of a crossing pair is the one; it is there in a moment */
		v->host->again = true;
		return -ENOENT;
	case -ECONNREFUSED:
		return -ECONNREFUSED;
	case -EACCES:
		shun(v->host, v->index, -EACCES);
		return -EACCES;
	case -ETIMEDOUT:
	case -EPROTO:
		shun(v->host, v->index, -ETIMEDOUT);
		return -ETIMEDOUT;
	default:
		return -ETIMEDOUT;
	}
}

static void connected(void *arg, struct dp_peer *peer, int status)
{
	struct visit *v = arg;
	struct dp_host *h = v->host;

	if (status) {
		visit_over(v, judge(v, status));
		return;
	}
	if (peer == &dp_peering->self) {
		visit_over(v, note_own_directory(h));
		return;
	}
	add_route(h, peer);
	if (v->index >= 0)
		peer->conn->listen_port = v->port; /* where the next walk finds it without connecting again */
	if (v->index < 0 || ask_who(v, peer))
		visit_over(v, -ENOENT);
}

static void start_visit(struct dp_host *h, uint16_t port, int index)
{
	struct visit *v = calloc(1, sizeof(*v));
	int err;

	if (!v)
		return;
	v->host = h;
	v->id = ++dp_peering->next_id;
	v->port = port;
	v->index = index;
	for (size_t i = 0; i < h->nroutes && index >= 0; i++) {
		if (h->routes[i]->conn->listen_port != port || ask_who(v, h->routes[i]))
			continue;
		goto started;
	}
	if (dp_conn_open(&h->addr, port, h->netdev, connected, v, &err))
		goto started;
	merge(&h->round_status, judge(v, err));
	free(v);
	return;
started:
	v->next = h->visits;
	h->visits = v;
}

static void visit_over(struct visit *v, int status)
{
	struct dp_host *h = v->host;
	struct visit **p = &h->visits;

	while (*p != v)
		p = &(*p)->next;
	*p = v->next;
	dp_timer_disarm(&v->timer);
	dp_later_free(v);
	merge(&h->round_status, status);
	if (h->in_round)
		advance(h);
}

static void stagger(struct dp_timer *t)
{
	advance(HOST_OF(stagger, t));
}

static void advance(struct dp_host *h)
{
	dp_timer_disarm(&h->stagger);
	while (h->locates && h->next_port < h->nports) {
		int index = h->next_port++;
		struct range_port *r = &h->ports[index];
		uint16_t port = (uint16_t)(dp_cfg.peer_port + index);
		struct visit *before = h->visits;

		if (r->round == h->round)
			continue;
		if (r->shun_until > dp_now()) {
			merge(&h->round_status, r->shun_status);
			continue;
		}
		start_visit(h, port, index);
		if (h->visits != before) {
			dp_timer_arm(&h->stagger, STAGGER_NS, stagger);
			return;
		}
	}
	if (!h->visits)
		round_over(h);
}

static void begin_round(struct dp_timer *t)
{
	struct dp_host *h = HOST_OF(round_timer, t);
	struct dp_locate *l, *next;

	h->used = dp_now();
	h->round++;
	h->next_port = 0;
	h->round_status = 0;
	h->again = false;
	h->in_round = true;
	for (l = h->locates; l; l = next) {
		next = l->next;
		if (dp_locate_ask_self(l))
			continue;
		for (size_t i = 0; i < h->nroutes; i++)
			dp_locate_ask(l, h->routes[i]);
	}
	if (h->local && h->locates) /* its processes are known without a network */
		merge(&h->round_status, note_own_directory(h));
	advance(h);
}

static void ask_fresh(struct dp_timer *t)
{
	struct dp_host *h = HOST_OF(fresh, t);
	struct dp_locate *l, *next;

	for (l = h->locates; l; l = next) {
		next = l->next;
		if (!l->fresh)
			continue;
		l->fresh = false;
		if (dp_locate_ask_self(l))
			continue;
		for (size_t i = 0; i < h->nroutes; i++)
			dp_locate_ask(l, h->routes[i]);
	}
}

void dp_host_add(struct dp_host *h, struct dp_locate *l)
{
	uint64_t now = dp_now(), at;

	l->host = h;
	l->prev = NULL;
	l->next = h->locates;
	if (l->next)
		l->next->prev = l;
	h->locates = l;
	h->used = now;
	/* not now: the user's owns() must not run inside the user's call */
	l->fresh = true;
	if (!h->fresh.armed)
		dp_timer_arm(&h->fresh, 0, ask_fresh);
	if (h->in_round || h->round_timer.armed)
		return;
	if (now > h->next_at + BACKOFF_MAX)
		h->backoff = BACKOFF_MIN;
	at = now + (h->nroutes ? ROUTES_FIRST_NS : 0);
	if (at < h->next_at)
		at = h->next_at;
	dp_timer_arm(&h->round_timer, at - now, begin_round);
}

void dp_host_remove(struct dp_host *h, struct dp_locate *l)
{
	if (l->prev)
		l->prev->next = l->next;
	else
		h->locates = l->next;
	if (l->next)
		l->next->prev = l->prev;
	l->next = l->prev = NULL;
	l->host = NULL;
	h->used = dp_now();
	if (!h->locates)
		dp_timer_disarm(&h->round_timer);
}

void dp_host_found(struct dp_host *h)
{
	h->backoff = BACKOFF_MIN;
	h->next_at = 0;
}

struct dp_host *dp_host_get(const union ibv_gid *gid, const char *netdev, const struct dp_addr *a)
{
	bool local = dp_addr_local(a);
	const char *dev = local ? "" : netdev;
	int nports = dp_cfg.peer_ports < 0 ? 0 : dp_cfg.peer_ports > DP_RANGE_MAX ? DP_RANGE_MAX : dp_cfg.peer_ports;
	struct dp_host *h;

	for (h = dp_peering->hosts; h; h = h->next)
		if (dp_addr_equal(&h->addr, a) && h->local == local && !strcmp(h->netdev, dev) &&
		    !memcmp(&h->gid, gid, sizeof(*gid)))
			return h;
	while (nports && dp_cfg.peer_port + nports > 65536)
		nports--;
	h = calloc(1, sizeof(*h) + (size_t)nports * sizeof(h->ports[0]));
	if (!h)
		return NULL;
	h->gid = *gid;
	h->addr = *a;
	h->local = local;
	snprintf(h->netdev, sizeof(h->netdev), "%s", dev);
	h->nports = dp_cfg.peer_port > 0 ? nports : 0;
	h->backoff = BACKOFF_MIN;
	h->next = dp_peering->hosts;
	dp_peering->hosts = h;
	for (struct dp_peer *p = dp_peering->peers; p; p = p->next)
		if (same_place(h, p->conn))
			add_route(h, p);
	return h;
}

void dp_host_who_reply(struct dp_peer *p, const uint8_t *data, size_t len)
{
	static struct dp_dir_entry list[DP_DIR_SLOTS];
	struct dp_rbuf b = { .p = data, .len = len };
	uint64_t id = dp_get64(&b);
	unsigned n = dp_get16(&b);
	struct visit *v = NULL;

	for (unsigned i = 0; i < n && n <= DP_DIR_SLOTS; i++) {
		dp_get(&b, list[i].instance, DP_INSTANCE_LEN);
		list[i].port = dp_get16(&b);
		list[i].range_port = dp_get16(&b);
		list[i].has_gid = dp_get8(&b);
	}
	if (n > DP_DIR_SLOTS || !dp_rbuf_whole(&b)) {
		dp_conn_fail(p->conn, -EPROTO, "sent a malformed message");
		return;
	}
	for (struct dp_host *h = dp_peering->hosts; h && !v; h = h->next)
		for (v = h->visits; v && (v->id != id || v->peer != p);)
			v = v->next;
	if (!v)
		return; /* too late, or never asked */
	note_entries(v->host, list, n);
	visit_over(v, -ENOENT);
}

void dp_host_peer_gone(struct dp_peer *p)
{
	for (struct dp_host *h = dp_peering->hosts; h; h = h->next) {
		struct visit *v, *next;

		for (size_t i = 0; i < h->nroutes; i++)
			if (h->routes[i] == p)
				h->routes[i--] = h->routes[--h->nroutes];
		for (v = h->visits; v; v = next) {
			next = v->next;
			if (v->peer == p) {
				visit_over(v, -ENOENT);
				next = h->visits; /* its end may have begun others */
			}
		}
	}
}

static void free_host(struct dp_host *h)
{
	dp_timer_disarm(&h->round_timer);
	dp_timer_disarm(&h->stagger);
	dp_timer_disarm(&h->fresh);
	free(h->routes);
	dp_later_free(h);
}

void dp_host_tick(void)
{
	uint64_t now = dp_now();

	for (struct dp_host **p = &dp_peering->hosts, *h; (h = *p);) {
		if (h->locates || h->visits || h->nroutes || now - h->used < HOST_IDLE_NS) {
			p = &h->next;
			continue;
		}
		*p = h->next;
		free_host(h);
	}
}

void dp_host_abort_all(void)
{
	for (struct dp_host *h = dp_peering->hosts; h; h = h->next)
		while (h->locates)
			dp_locate_finish(h->locates, NULL, -ESHUTDOWN);
}

void dp_host_stop(void)
{
	struct dp_host *h;

	while ((h = dp_peering->hosts)) {
		dp_peering->hosts = h->next;
		free_host(h);
	}
}

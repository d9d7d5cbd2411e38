// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Locates: one per QP that looks for its peer's process. host.c finds the processes at the address; here they are asked,
 * each about its own QPs, and the answer is handed over when no user call is on the stack.
 */
#include <errno.h>
#include <stdlib.h>
#include "internal.h"

struct dp_ask {
	struct dp_ask *next;	 /* of the bucket */
	struct dp_ask *of_locate; /* next of the locate */
	uint64_t id;
	struct dp_peer *peer;
	struct dp_locate *locate;
};

static void drop_ask(struct dp_ask *a)
{
	struct dp_ask **p = &dp_peering->asks[a->id % DP_ASK_BUCKETS];

	while (*p != a)
		p = &(*p)->next;
	*p = a->next;
	for (p = &a->locate->asks; *p != a; p = &(*p)->of_locate)
		;
	*p = a->of_locate;
	free(a);
}

void dp_locate_ask(struct dp_locate *l, struct dp_peer *p)
{
	uint8_t buf[28];
	struct dp_wbuf b = { .p = buf, .cap = sizeof(buf) };
	struct dp_ask *a;

	for (a = l->asks; a; a = a->of_locate)
		if (a->peer == p)
			return;
	a = malloc(sizeof(*a));
	if (!a)
		return;
	*a = (struct dp_ask){ .id = ++dp_peering->next_id, .peer = p, .locate = l, .of_locate = l->asks };
	dp_put64(&b, a->id);
	dp_put(&b, l->gid.raw, sizeof(l->gid.raw));
	dp_put32(&b, l->qpn);
	if (dp_conn_send(p->conn, DP_MSG_OWNS, buf, b.len)) {
		free(a);
		return;
	}
	l->asks = a;
	a->next = dp_peering->asks[a->id % DP_ASK_BUCKETS];
	dp_peering->asks[a->id % DP_ASK_BUCKETS] = a;
}

void dp_locate_finish(struct dp_locate *l, struct dp_peer *p, int status)
{
	while (l->asks)
		drop_ask(l->asks);
	dp_timer_disarm(&l->deadline);
	if (l->host)
		dp_host_remove(l->host, l);
	l->finished = true;
	l->peer = p;
	l->status = status;
	l->next = NULL;
	l->prev = dp_peering->finished_last;
	if (l->prev)
		l->prev->next = l;
	else
		dp_peering->finished = l;
	dp_peering->finished_last = l;
}

static void unlink_finished(struct dp_locate *l)
{
	if (l->prev)
		l->prev->next = l->next;
	else
		dp_peering->finished = l->next;
	if (l->next)
		l->next->prev = l->prev;
	else
		dp_peering->finished_last = l->prev;
	l->next = l->prev = NULL;
}

bool dp_locate_ask_self(struct dp_locate *l)
{
	if (!dp_peering->handler.owns(&l->gid, l->qpn))
		return false;
	dp_locate_finish(l, &dp_peering->self, 0);
	return true;
}

void dp_locate_answer(struct dp_peer *p, const uint8_t *data, size_t len)
{
	struct dp_rbuf b = { .p = data, .len = len };
	uint64_t id = dp_get64(&b);
	uint8_t yes = dp_get8(&b);
	struct dp_ask *a = dp_peering->asks[id % DP_ASK_BUCKETS];
	struct dp_locate *l;

	if (!dp_rbuf_whole(&b)) {
		dp_conn_fail(p->conn, -EPROTO, "sent a malformed message");
		return;
	}
	while (a && (a->id != id || a->peer != p))
		a = a->next;
	if (!a)
		return; /* answered or cancelled meanwhile */
	l = a->locate;
	drop_ask(a);
	if (!yes)
		return;
	dp_host_found(l->host);
	dp_locate_finish(l, p, 0);
}

static void too_late(struct dp_timer *t)
{
	struct dp_locate *l = (struct dp_locate *)((char *)t - offsetof(struct dp_locate, deadline));

	dp_locate_finish(l, NULL, dp_host_status(l->host));
}

static void wait_again(struct dp_locate *l)
{
	uint64_t now = dp_now(), due = l->deadline.due;
	struct dp_addr a;
	struct dp_host *h = NULL;

	if (!dp_peering->ending && !dp_addr_of_gid(&a, &l->gid, l->netdev))
		h = dp_host_get(&l->gid, l->netdev, &a);
	l->peer = NULL;
	l->status = -ENOENT;
	if (!h || due <= now)
		return;
	unlink_finished(l);
	l->finished = false;
	dp_host_add(h, l);
	dp_timer_arm(&l->deadline, due - now, too_late);
}

void dp_locate_peer_gone(struct dp_peer *p)
{
	struct dp_locate *l, *next;

	for (unsigned i = 0; i < DP_ASK_BUCKETS; i++)
		for (struct dp_ask *a = dp_peering->asks[i], *n; a; a = n) {
			n = a->next;
			if (a->peer == p)
				drop_ask(a);
		}
	/* found, but its user has not been told yet */
	for (l = dp_peering->finished; l; l = next) {
		next = l->next;
		if (l->peer == p)
			wait_again(l);
	}
}

void dp_locate_finish_all(void)
{
	struct dp_locate *l, *end = dp_peering->finished_last;
	bool more = end;

	/* those that callbacks add are for the next round */
	while (more && (l = dp_peering->finished)) {
		more = l != end;
		unlink_finished(l);
		/* a GID that is no address may still be one of our own: two QPs of this process */
		if (l->status == -EADDRNOTAVAIL && dp_peering->handler.owns(&l->gid, l->qpn)) {
			l->peer = &dp_peering->self;
			l->status = 0;
		}
		l->cb(l->arg, l->peer, l->status);
		free(l);
	}
}

struct dp_locate *dp_peer_locate(const union ibv_gid *gid, const char *netdev, uint32_t qpn, uint64_t timeout_ns,
				 void (*cb)(void *arg, struct dp_peer *peer, int status), void *arg)
{
	struct dp_locate *l = dp_peering && !dp_peering->ending ? calloc(1, sizeof(*l)) : NULL;
	struct dp_host *h = NULL;
	struct dp_addr a;
	int err;

	if (!l)
		return NULL;
	l->gid = *gid;
	l->qpn = qpn;
	snprintf(l->netdev, sizeof(l->netdev), "%s", netdev);
	l->cb = cb;
	l->arg = arg;
	err = dp_addr_of_gid(&a, gid, netdev);
	if (!err) {
		h = dp_host_get(gid, netdev, &a);
		err = -ETIMEDOUT;
	}
	if (!h) {
		dp_locate_finish(l, NULL, err);
		return l;
	}
	dp_host_add(h, l);
	dp_timer_arm(&l->deadline, timeout_ns, too_late);
	return l;
}

void dp_peer_locate_cancel(struct dp_locate *l)
{
	if (l->finished) {
		unlink_finished(l);
	} else {
		while (l->asks)
			drop_ask(l->asks);
		dp_timer_disarm(&l->deadline);
		dp_host_remove(l->host, l);
	}
	free(l);
}

void dp_locate_stop(void)
{
	dp_peering->ending = true;
	dp_host_abort_all();
	while (dp_peering->finished)
		dp_locate_finish_all();
}

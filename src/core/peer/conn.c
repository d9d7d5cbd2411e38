// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * One TCP connection: bytes in and out, frames, deadlines. A frame is magic (4), version (1), zero (1), type (2),
 * length of the payload (4), zero (4), sequence number (8), the payload, and a MAC (32) where the connection is keyed.
 *
 * Everything that comes in is a stranger's until proven otherwise. Before a connection is open it may send only two
 * short messages within two seconds; the first wrong byte ends it. dp_conn_feed() works on memory alone, so that tests
 * can throw anything at it.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <unistd.h>
#include "internal.h"

#define CONN_OF(member, p) ((struct dp_conn *)((char *)(p) - offsetof(struct dp_conn, member)))

struct dp_conn *dp_conn_new(bool inbound)
{
	struct dp_conn *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->io.fd = -1;
	c->inbound = inbound;
	c->state = inbound ? DP_CONN_HELLO : DP_CONN_CONNECTING;
	c->heard = dp_now();
	c->next = dp_peering->conns;
	if (c->next)
		c->next->prev = c;
	dp_peering->conns = c;
	dp_peering->nconns++;
	return c;
}

void dp_conn_settle(struct dp_conn *c, struct dp_peer *peer, int status)
{
	void (*done)(void *arg, struct dp_peer *peer, int status) = c->done;

	c->done = NULL;
	if (done)
		done(c->done_arg, peer, status);
}

void dp_conn_fail(struct dp_conn *c, int error, const char *why)
{
	char text[64];

	if (c->doomed)
		return;
	c->doomed = true;
	c->error = error;
	c->doomed_next = dp_peering->doomed;
	dp_peering->doomed = c;
	if (why && dp_addr_may_log(&c->addr)) {
		if (c->port)
			dp_warn("peer %s port %u: %s", dp_addr_text(&c->addr, text), c->port, why);
		else
			dp_warn("peer %s: %s", dp_addr_text(&c->addr, text), why);
	}
}

static void flush(struct dp_conn *c)
{
	while (c->io.fd >= 0 && c->state != DP_CONN_CONNECTING && c->out_len > c->out_off) {
		ssize_t n = send(c->io.fd, c->out + c->out_off, c->out_len - c->out_off, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			if (!c->doomed)
				dp_io_mod(&c->io, EPOLLIN | EPOLLOUT);
			return;
		}
		if (n < 0) {
			dp_conn_fail(c, -errno, NULL);
			return;
		}
		c->out_off += (size_t)n;
		dp_peering->unsent -= (size_t)n;
	}
	if (c->io.fd < 0)
		return; /* a test reads out[] itself */
	c->out_off = c->out_len = 0;
	if (c->out_cap > 65536) {
		free(c->out);
		c->out = NULL;
		c->out_cap = 0;
	}
}

void dp_conn_flush_all(void)
{
	struct dp_conn *c;

	while ((c = dp_peering->dirty)) {
		dp_peering->dirty = c->dirty_next;
		c->dirty = false;
		if (!c->doomed)
			flush(c);
	}
}

void dp_conn_drop(struct dp_conn *c)
{
	struct dp_conn **p;

	dp_conn_fail(c, -ECONNRESET, NULL);
	for (p = &dp_peering->doomed; *p != c; p = &(*p)->doomed_next)
		;
	*p = c->doomed_next;
	if (c->dirty) {
		for (p = &dp_peering->dirty; *p != c; p = &(*p)->dirty_next)
			;
		*p = c->dirty_next;
	}
	flush(c); /* a refusal or good-bye may still be there; flush() finds c doomed already */
	dp_peering->unsent -= c->out_len - c->out_off;
	if (c->prev)
		c->prev->next = c->next;
	else
		dp_peering->conns = c->next;
	if (c->next)
		c->next->prev = c->prev;
	dp_peering->nconns--;
	dp_timer_disarm(&c->timer);
	dp_io_close(&c->io);
	dp_conn_settle(c, NULL, c->error);
	if (c->peer)
		dp_peer_lost(c->peer);
	dp_auth_wipe(&c->keys, sizeof(c->keys));
	free(c->in);
	free(c->out);
	c->in = c->out = NULL;
	c->in_len = c->in_cap = c->out_off = c->out_len = c->out_cap = 0;
	dp_later_free(c);
}

void dp_conn_reap(void)
{
	while (dp_peering->doomed)
		dp_conn_drop(dp_peering->doomed);
}

static bool reserve(uint8_t **buf, size_t *cap, size_t need)
{
	size_t n = *cap ? *cap : 1024;
	uint8_t *p;

	if (need <= *cap)
		return true;
	while (n < need)
		n *= 2;
	p = realloc(*buf, n);
	if (!p)
		return false;
	*buf = p;
	*cap = n;
	return true;
}

static void give_up_greatest(void)
{
	struct dp_conn *worst = NULL;

	for (struct dp_conn *c = dp_peering->conns; c; c = c->next)
		if (!c->doomed && (!worst || c->out_len - c->out_off > worst->out_len - worst->out_off))
			worst = c;
	if (!worst)
		return;
	dp_conn_fail(worst, -ENOBUFS, "does not read what it is sent");
	dp_peering->unsent -= worst->out_len - worst->out_off;
	worst->out_off = worst->out_len = 0;
}

int dp_conn_send(struct dp_conn *c, uint16_t type, const void *data, size_t len)
{
	bool mac = c->keyed && type != DP_MSG_REFUSE;
	size_t total = DP_FRAME_HEAD + len + (mac ? DP_MAC_LEN : 0);
	struct dp_wbuf b;

	if (c->doomed)
		return -EPIPE;
	if (c->out_off && c->out_len + total > c->out_cap) {
		memmove(c->out, c->out + c->out_off, c->out_len - c->out_off);
		c->out_len -= c->out_off;
		c->out_off = 0;
	}
	if (c->out_len - c->out_off + total > DP_OUT_MAX) {
		dp_conn_fail(c, -ENOBUFS, "does not read what it is sent");
		return -EPIPE;
	}
	if (!reserve(&c->out, &c->out_cap, c->out_len + total)) {
		dp_conn_fail(c, -ENOMEM, NULL);
		return -EPIPE;
	}
	b = (struct dp_wbuf){ .p = c->out + c->out_len, .cap = total };
	dp_put32(&b, DP_FRAME_MAGIC);
	dp_put8(&b, DP_PEER_PROTOCOL);
	dp_put8(&b, 0);
	dp_put16(&b, type);
	dp_put32(&b, (uint32_t)len);
	dp_put32(&b, 0);
	dp_put64(&b, c->tx_seq++);
	if (len)
		dp_put(&b, data, len);
	if (mac)
		dp_auth_mac(c->keys.tx, b.p, b.len, b.p + b.len);
	c->out_len += total;
	dp_peering->unsent += total;
	if (dp_peering->unsent > DP_OUT_TOTAL)
		give_up_greatest();
	if (c->doomed)
		return -EPIPE;
	if (!c->dirty) {
		c->dirty = true;
		c->dirty_next = dp_peering->dirty;
		dp_peering->dirty = c;
	}
	return 0;
}

/* 0: need more bytes; else the frame's whole size; -1: c is doomed. */
static ssize_t parse_frame(struct dp_conn *c, const uint8_t *p, size_t len)
{
	static const uint8_t magic[4] = { DP_FRAME_MAGIC >> 24, DP_FRAME_MAGIC >> 16 & 255, DP_FRAME_MAGIC >> 8 & 255,
					  DP_FRAME_MAGIC & 255 };
	struct dp_rbuf b = { .p = p, .len = len };
	uint16_t type, zero;
	uint8_t version;
	uint32_t size, zero2;
	uint64_t seq;
	bool mac;

	if (memcmp(p, magic, len < 4 ? len : 4)) {
		dp_conn_fail(c, -EPROTO, c->greeted ? "sent a malformed message" : "sent no libdualport greeting");
		return -1;
	}
	if (len < DP_FRAME_HEAD)
		return 0;
	dp_get32(&b);
	version = dp_get8(&b);
	zero = dp_get8(&b);
	type = dp_get16(&b);
	size = dp_get32(&b);
	zero2 = dp_get32(&b);
	seq = dp_get64(&b);
	if (version != DP_PEER_PROTOCOL) {
		dp_conn_fail(c, -EPROTO, "speaks another version of the peer protocol");
		return -1;
	}
	if (zero || zero2 || size > (c->state == DP_CONN_OPEN ? DP_MSG_MAX : DP_HELLO_MAX)) {
		dp_conn_fail(c, -EPROTO, "sent a malformed or oversized message");
		return -1;
	}
	if (seq != c->rx_seq) {
		dp_conn_fail(c, -EPROTO, "sent a message out of sequence");
		return -1;
	}
	mac = c->keyed && type != DP_MSG_REFUSE;
	if (len < DP_FRAME_HEAD + size + (mac ? DP_MAC_LEN : 0))
		return 0;
	if (mac && !dp_auth_check(c->keys.rx, p, DP_FRAME_HEAD + size, p + DP_FRAME_HEAD + size)) {
		uint8_t why = DP_REFUSE_AUTH;

		if (c->state != DP_CONN_OPEN && c->inbound)
			dp_conn_send(c, DP_MSG_REFUSE, &why, 1);
		dp_conn_fail(c, -EACCES, "authentication failed (other secret, or a forged message)");
		return -1;
	}
	c->rx_seq++;
	c->heard = dp_now();
	c->silent_ticks = 0;
	dp_session_message(c, type, p + DP_FRAME_HEAD, size);
	return (ssize_t)(DP_FRAME_HEAD + size + (mac ? DP_MAC_LEN : 0));
}

void dp_conn_feed(struct dp_conn *c, const uint8_t *data, size_t len)
{
	size_t off = 0;

	if (c->doomed || !len)
		return;
	if (!reserve(&c->in, &c->in_cap, c->in_len + len)) {
		dp_conn_fail(c, -ENOMEM, NULL);
		return;
	}
	memcpy(c->in + c->in_len, data, len);
	c->in_len += len;
	while (!c->doomed && off < c->in_len) {
		ssize_t n = parse_frame(c, c->in + off, c->in_len - off);

		if (n <= 0)
			break;
		off += (size_t)n;
	}
	if (c->doomed)
		return;
	if (off || !c->partial_since)
		c->partial_since = dp_now();
	memmove(c->in, c->in + off, c->in_len - off);
	c->in_len -= off;
	if (!c->in_len) {
		c->partial_since = 0;
		if (c->in_cap > 4096) {
			free(c->in);
			c->in = NULL;
			c->in_cap = 0;
		}
	}
}

static void connected(struct dp_conn *c)
{
	int err = 0;
	socklen_t len = sizeof(err);

	if (getsockopt(c->io.fd, SOL_SOCKET, SO_ERROR, &err, &len) || err) {
		dp_conn_fail(c, err ? -err : -EIO, NULL);
		return;
	}
	c->state = DP_CONN_HELLO;
	dp_io_mod(&c->io, EPOLLIN);
	dp_session_begin(c);
}

static void event(struct dp_io *io, uint32_t events)
{
	struct dp_conn *c = CONN_OF(io, io);
	ssize_t n;

	if (c->doomed)
		return;
	if (c->state == DP_CONN_CONNECTING) {
		connected(c);
		return;
	}
	if (events & EPOLLOUT) {
		dp_io_mod(&c->io, EPOLLIN);
		flush(c);
	}
	if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)) || c->doomed)
		return;
	/* one read per round: no peer keeps the others waiting */
	n = recv(c->io.fd, dp_peering->scratch, DP_MSG_MAX, MSG_DONTWAIT);
	if (n > 0)
		dp_conn_feed(c, dp_peering->scratch, (size_t)n);
	else if (n == 0)
		dp_conn_fail(c, c->greeted ? -ECONNRESET : -EPROTO, NULL);
	else if (errno != EAGAIN && errno != EINTR)
		dp_conn_fail(c, -errno, NULL);
}

static void timed_out(struct dp_timer *t)
{
	struct dp_conn *c = CONN_OF(timer, t);

	/* silent, although the kernel there took the connection: a stranger, or a stopped process */
	dp_conn_fail(c, -ETIMEDOUT, c->state == DP_CONN_CONNECTING || c->greeted ? NULL :
		     "sent no libdualport greeting in time");
}

void dp_conn_deadline(struct dp_conn *c, uint64_t ns)
{
	dp_timer_arm(&c->timer, ns, timed_out);
}

static void tune(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

struct dp_conn *dp_conn_open(const struct dp_addr *a, uint16_t port, const char *netdev,
			     void (*done)(void *arg, struct dp_peer *peer, int status), void *arg, int *err)
{
	struct sockaddr_storage sa;
	socklen_t len = dp_addr_to_sa(a, port, &sa);
	struct dp_conn *c;
	int fd;

	if (dp_peering->nconns >= dp_peering->max_conns) {
		*err = -EMFILE;
		return NULL;
	}
	fd = dp_fd_own(socket(a->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	*err = -errno;
	if (fd < 0)
		return NULL;
	tune(fd);
	/* older kernels let only privileged processes bind to a device; then routing decides */
	if (netdev[0] && setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, netdev, (socklen_t)strlen(netdev)) &&
	    errno != EPERM)
		goto fail_errno;
	if (connect(fd, (struct sockaddr *)&sa, len) && errno != EINPROGRESS && errno != EINTR)
		goto fail_errno;
	*err = -ENOMEM;
	c = dp_conn_new(false);
	if (!c)
		goto fail;
	c->io = (struct dp_io){ .fd = fd, .fn = event };
	c->addr = *a;
	c->port = port;
	snprintf(c->netdev, sizeof(c->netdev), "%s", netdev);
	*err = dp_io_add(&c->io, EPOLLOUT);
	if (*err) {
		dp_conn_fail(c, *err, NULL);
		return NULL;
	}
	c->done = done;
	c->done_arg = arg;
	dp_conn_deadline(c, DP_ANSWER_NS);
	return c;
fail_errno:
	*err = -errno;
fail:
	dp_fd_close(fd);
	return NULL;
}

/* Makes room among those that have not greeted: the oldest goes, a real peer greets at once. */
static void bound_strangers(void)
{
	struct dp_conn *oldest = NULL;
	unsigned n = 0;

	for (struct dp_conn *c = dp_peering->conns; c; c = c->next) {
		if (!c->inbound || c->state == DP_CONN_OPEN || c->doomed)
			continue;
		n++;
		/* new ones are at the head of the list: the last one seen is the oldest */
		if (!c->greeted || !oldest || oldest->greeted)
			oldest = c;
	}
	if (n > DP_HELLO_CONNS)
		dp_conn_fail(oldest, -ENOBUFS, NULL);
}

/* One host must not take what the others need. */
static bool has_enough(const struct dp_addr *a)
{
	unsigned n = 0;

	for (const struct dp_conn *c = dp_peering->conns; c; c = c->next)
		n += c->inbound && dp_addr_equal(&c->addr, a);
	return n >= dp_peering->max_conns / 2;
}

void dp_conn_accept(int fd, const struct dp_addr *a)
{
	struct dp_conn *c;

	dp_fd_own(fd);
	c = dp_peering->nconns < dp_peering->max_conns && !has_enough(a) ? dp_conn_new(true) : NULL;
	if (!c) {
		dp_fd_close(fd);
		return;
	}
	tune(fd);
	c->io = (struct dp_io){ .fd = fd, .fn = event };
	c->addr = *a;
	if (dp_io_add(&c->io, EPOLLIN)) {
		dp_conn_fail(c, -EIO, NULL);
		return;
	}
	dp_conn_deadline(c, DP_HELLO_NS);
	bound_strangers();
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include "bond_priv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdarg.h>
#include <string.h>

const char *dp_gid_text(const union ibv_gid *g, char *buf, size_t n)
{
	static const uint8_t v4[12] = { [10] = 0xff, [11] = 0xff };

	if (!memcmp(g->raw, v4, sizeof(v4)))
		return inet_ntop(AF_INET, g->raw + 12, buf, (socklen_t)n);
	return inet_ntop(AF_INET6, g->raw, buf, (socklen_t)n);
}

void dp_say_once(const union ibv_gid *gid, const char *fmt, ...)
{
	static dp_lock lock = PTHREAD_MUTEX_INITIALIZER;
	static struct {
		union ibv_gid gid;
		const char *fmt;
	} said[256];
	static unsigned n;
	union ibv_gid none = { { 0 } };
	char text[512];
	bool known = false;
	va_list ap;

	dp_take(&lock);
	for (unsigned i = 0; i < n && !known; i++)
		known = said[i].fmt == fmt && !memcmp(&said[i].gid, gid ? gid : &none, sizeof(none));
	/* a process with more silent peers than that has heard enough */
	if (n == sizeof(said) / sizeof(said[0]))
		known = true;
	if (!known) {
		said[n].gid = gid ? *gid : none;
		said[n++].fmt = fmt;
	}
	dp_drop(&lock);
	if (known)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	dp_warn("%s", text);
}

int dp_set_nonblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) ? -errno : 0;
}

#define MAX_GIDS 256

void dp_advertise_port(const struct dp_verbs *real, struct ibv_context *ctx, uint8_t port)
{
	static union ibv_gid gids[MAX_GIDS]; /* control thread only */
	static size_t n;
	static const union ibv_gid none;
	size_t before = n;
	union ibv_gid g;

	for (int i = 0; i < 32 && n < MAX_GIDS; i++) {
		bool known = false;

		if (real->query_gid(ctx, port, i, &g) || !memcmp(&g, &none, sizeof(g)))
			continue;
		for (size_t k = 0; k < n; k++)
			known |= !memcmp(&gids[k], &g, sizeof(g));
		if (!known)
			gids[n++] = g;
	}
	if (n != before)
		dp_peer_advertise(gids, n);
}

/* What the peer has sent before, over its other ports, may still be on its way: one port would have taken it. */
#define BROKEN_NS UINT64_C(100000000)

/* With ctl held. Perhaps it is gone by now, and the address is another's. */
static bool has_twin(const struct dp_bond *b, const struct ibv_qp *twin)
{
	for (uint32_t r = 1; r < b->q->ntwins && !b->ended && !b->q->going; r++)
		if (b->q->rail[r].twin == twin)
			return true;
	return false;
}

static void on_broken(struct dp_timer *t)
{
	struct dp_bond *b = (struct dp_bond *)((char *)t - offsetof(struct dp_bond, broken.timer));
	struct ibv_qp *twin = b->broken.twin;

	b->broken.twin = NULL;
	dp_take(&b->q->ctl);
	if (has_twin(b, twin))
		dp_tell_twin(b->q, twin, b->broken.type);
	dp_drop(&b->q->ctl);
}

static void on_twin(struct ibv_qp *twin, enum ibv_event_type type)
{
	for (struct dp_bond *b = dp_bonds; b; b = b->next) {
		bool found;

		dp_take(&b->q->ctl);
		found = has_twin(b, twin);
		dp_drop(&b->q->ctl);
		if (!found)
			continue;
		if (!b->broken.twin) {
			b->broken.twin = twin;
			b->broken.type = type;
			dp_timer_arm(&b->broken.timer, BROKEN_NS, on_broken);
		}
		return;
	}
}

static void on_async(void *arg)
{
	struct dp_sib *sib = arg;
	struct ibv_async_event e;

	while (!sib->real->get_async_event(sib->ctx, &e)) {
		struct ibv_qp *twin = NULL;

		if (e.event_type == IBV_EVENT_PORT_ERR || e.event_type == IBV_EVENT_DEVICE_FATAL)
			dp_warn("%s: %s", sib->text,
				e.event_type == IBV_EVENT_PORT_ERR ? "the port went down" : "fatal device error");
		if (e.event_type == IBV_EVENT_QP_ACCESS_ERR || e.event_type == IBV_EVENT_QP_REQ_ERR)
			twin = e.element.qp;
		/* before any lock: who holds it may be waiting for that in destroy_qp */
		sib->real->ack_async_event(&e);
		if (twin)
			on_twin(twin, e.event_type);
	}
	/* a device that is gone is readable for ever */
	if (errno != EAGAIN && errno != EINTR) {
		dp_warn("%s: its events cannot be read any more: %s", sib->text, strerror(errno));
		dp_peer_unwatch(sib->ctx->async_fd);
	}
}

/* Nobody else reads the siblings' asynchronous events; those of a shared one are the program's. */
void dp_watch_siblings(struct dp_ctx *c)
{
	for (uint32_t i = 0; i < c->nsib; i++)
		if (c->sib[i].ctx && !c->sib[i].shared && !c->sib[i].watched && !dp_set_nonblock(c->sib[i].ctx->async_fd) &&
		    !dp_peer_watch(c->sib[i].ctx->async_fd, on_async, &c->sib[i]))
			c->sib[i].watched = true;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The program's contexts: found at first sight, patched if their port has siblings. A context without a port
 * group is left exactly as it was.
 */
#include "core.h"
#include "bond.h"
#include "gpu.h"
#include "lag.h"
#include "qp.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

static struct dp_hmap ctxs = DP_HMAP_INIT; /* ibv_context pointer -> struct dp_ctx */
static dp_lock ctxs_lock = PTHREAD_MUTEX_INITIALIZER;

struct dp_ctx *dp_ctx_find(struct ibv_context *ctx)
{
	return dp_hmap_getp(&ctxs, ctx);
}

/* The program may be calling through the slot at this moment: one aligned store. */
#define PATCH(slot, fn)                                                                                               \
	do {                                                                                                          \
		if (slot)                                                                                             \
			__atomic_store_n(&(slot), (fn), __ATOMIC_RELEASE);                                            \
	} while (0)

static void patch(struct dp_ctx *c)
{
	struct verbs_context *v = verbs_get_ctx(c->ctx);

	PATCH(c->ctx->ops.post_send, dp_post_send);
	PATCH(c->ctx->ops.poll_cq, dp_poll_cq);
	PATCH(c->ctx->ops.req_notify_cq, dp_req_notify_cq);
	PATCH(c->ctx->ops.bind_mw, dp_bind_mw);
	PATCH(v->create_qp_ex, dp_create_qp_ex);
	PATCH(v->create_cq_ex, dp_create_cq_ex);
	PATCH(c->ctx->ops.alloc_mw, dp_alloc_mw);
	/* it came later than the others */
	if (c->reg_dm_mr)
		PATCH(v->reg_dm_mr, dp_reg_dm_mr);
}

static int ports_of(struct dp_ctx *c)
{
	struct ibv_device_attr attr;

	return c->real->query_device(c->ctx, &attr) ? 1 : attr.phys_port_cnt;
}

/* Has the context anything to expect? Which group it gets is seen once the process's GPU is known. */
static void look_for_group(struct dp_ctx *c)
{
	struct dp_gpu gpu = dp_gpu_peek(&dp_cfg);
	int ports = ports_of(c);

	for (int p = 1; p <= ports && !c->grouped; p++)
		c->grouped = dp_gpu_known(&gpu) ? dp_config_group(&dp_cfg, &gpu, c->dev, p, &c->why) != NULL
						: dp_config_has_port(&dp_cfg, c->dev, p);
	if (!c->grouped && !c->why)
		c->why = dp_cfg.ngroups ? "the port is in no port group" : "there is no port group";
}

/* The siblings by name, in sib; their number or -ENOMEM. */
static int list_siblings(struct dp_ctx *c, const struct dp_port_group *g, int ports)
{
	char own[DP_PORT_TEXT];
	bool seen = false;
	uint32_t n = 0;

	c->sib = calloc((size_t)g->nports, sizeof(*c->sib));
	if (!c->sib)
		return -ENOMEM;
	for (int i = 0; i < g->nports; i++) {
		const struct dp_port_name *p = &g->ports[i];
		struct dp_sib *s = &c->sib[n];

		/* another port of a two-port device is a sibling like any other, through a context of our own */
		if (ports == 1 && !strcmp(p->dev, c->dev) && !seen) {
			c->place = (uint32_t)i;
			c->lag = p->lag;
			dp_stats_port(dp_port_text(p->dev, p->port, p->lag, own));
			seen = true;
			continue;
		}
		s->shared = ports == 1 && !strcmp(p->dev, c->dev);
		dp_port_text(p->dev, p->port, p->lag, s->text);
		s->port = *p;
		s->place = (uint32_t)i;
		s->real = c->real;
		dp_stats_port(s->text);
		dp_hmap_init(&s->twins);
		dp_lock_init(&s->meter.lock);
		n++;
	}
	return (int)n;
}

static void init_meters(struct dp_ctx *c)
{
	for (uint32_t i = 0; i < DP_OWN_METERS; i++)
		dp_lock_init(&c->meter[i].lock);
}

struct dp_ctx *dp_ctx_get(struct ibv_context *ctx)
{
	struct dp_ctx *c = dp_ctx_find(ctx);
	const struct dp_verbs *real;

	if (c)
		return c;
	real = dp_stub->real_of(ctx);
	if (!real || !verbs_get_ctx(ctx))
		return NULL;
	dp_take(&ctxs_lock);
	c = dp_ctx_find(ctx);
	if (c)
		goto out;
	c = calloc(1, sizeof(*c));
	if (!c)
		goto out;
	c->ctx = ctx;
	c->real = real;
	snprintf(c->dev, sizeof(c->dev), "%s", real->get_device_name(ctx->device));
	dp_lock_init(&c->lock);
	dp_hmap_init(&c->qpns);
	dp_hmap_init(&c->lkeys);
	dp_hmap_init(&c->own.twins);
	c->own.real = real;
	snprintf(c->own.text, sizeof(c->own.text), "%s", c->dev);
	c->ops = ctx->ops;
	c->create_qp_ex = verbs_get_ctx(ctx)->create_qp_ex;
	c->create_cq_ex = verbs_get_ctx(ctx)->create_cq_ex;
	if (verbs_get_ctx_op(ctx, reg_dm_mr))
		c->reg_dm_mr = verbs_get_ctx(ctx)->reg_dm_mr;
	look_for_group(c);
	init_meters(c);
	if (dp_hmap_put(&ctxs, (uintptr_t)ctx, c)) {
		free(c);
		c = NULL;
		goto out;
	}
	/* after the record can be found: our functions look for it */
	if (c->grouped)
		patch(c);
	else
		dp_info("%s: one port: %s", c->dev, c->why);
out:
	dp_drop(&ctxs_lock);
	return c;
}

struct each {
	void (*fn)(struct dp_ctx *c, void *arg);
	void *arg;
};

static void each_one(void *val, void *arg)
{
	struct dp_ctx *c = val;
	struct each *e = arg;

	if (c->grouped)
		e->fn(c, e->arg);
}

void dp_ctx_each(void (*fn)(struct dp_ctx *c, void *arg), void *arg)
{
	struct each e = { fn, arg };

	dp_hmap_each(&ctxs, each_one, &e);
}

static void unlock_one(void *val, void *arg)
{
	struct dp_ctx *c = val;

	(void)arg;
	dp_lock_init(&c->lock);
	init_meters(c);
	dp_lock_init(&c->qpns.lock);
	dp_lock_init(&c->lkeys.lock);
	dp_lock_init(&c->own.twins.lock);
	for (uint32_t i = 0; i < c->nsib; i++) {
		dp_lock_init(&c->sib[i].twins.lock);
		dp_lock_init(&c->sib[i].meter.lock);
	}
}

void dp_ctx_after_fork(void)
{
	dp_lock_init(&ctxs_lock);
	dp_lock_init(&ctxs.lock);
	dp_hmap_each(&ctxs, unlock_one, NULL);
}

static struct ibv_context *open_by_name(const struct dp_verbs *real, const char *name)
{
	struct ibv_context *ctx = NULL;
	struct ibv_device **list;
	int n;

	list = real->get_device_list(&n);
	errno = ENODEV;
	for (int i = 0; list && i < n && !ctx; i++)
		if (!strcmp(real->get_device_name(list[i]), name)) {
			ctx = real->open_device(list[i]);
			break;
		}
	if (list) {
		int err = errno;

		real->free_device_list(list);
		errno = err;
	}
	return ctx;
}

static void open_sibling(const struct dp_ctx *c, struct dp_sib *s)
{
	s->ctx = s->shared ? c->ctx : open_by_name(c->real, s->port.dev);
	if (s->ctx && c->real->query_device(s->ctx, &s->attr)) {
		if (!s->shared)
			c->real->close_device(s->ctx);
		s->ctx = NULL;
	}
	if (!s->ctx)
		dp_warn("%s: cannot open sibling %s: %s; it stays unused", c->dev, s->text, strerror(errno));
}

/* Are QPs of the group to be pinned, and can they not be? */
static bool cannot_pin(struct dp_ctx *c, uint32_t n)
{
	bool lag = c->lag;

	for (uint32_t i = 0; i < n; i++)
		lag |= c->sib[i].port.lag != 0;
	if (!lag || !dp_lag_missing(c->ctx))
		return false;
	dp_lag_refused(c, c->dev, -ENOSYS);
	return true;
}

void dp_lag_refused(struct dp_ctx *c, const char *port, int err)
{
	if (!atomic_exchange(&c->lag_refused, true))
		dp_warn("%s: queue pairs cannot be pinned to ports of a bond: %s: %s; one port", port, c->dev,
			dp_lag_error(err));
}

static void settle(struct dp_ctx *c, const void *addr)
{
	struct dp_gpu gpu = dp_gpu_get(&dp_cfg, addr);
	const struct dp_port_group *g = NULL;
	int ports = ports_of(c), n = 0;

	for (int p = 1; p <= ports && !g; p++)
		g = dp_config_group(&dp_cfg, &gpu, c->dev, p, &c->why);
	if (g && g->nports < 2) {
		g = NULL;
		c->why = "its port group has one port";
	}
	if (g) {
		n = list_siblings(c, g, ports);
		if (n < 0)
			c->why = "out of memory";
	}
	if (!g || n < 0) {
		dp_info("%s: one port: %s", c->dev, c->why);
		return;
	}
	if (cannot_pin(c, (uint32_t)n))
		return;
	for (int i = 0; i < n; i++)
		open_sibling(c, &c->sib[i]);
	if (!c->real->query_device(c->ctx, &c->own.attr))
		c->own.ctx = c->ctx;
	/* release: whoever sees the number sees them */
	atomic_store_explicit(&c->nsib, (uint32_t)n, memory_order_release);
}

void dp_ctx_open_siblings(struct dp_ctx *c, const void *addr)
{
	dp_take(&c->lock);
	if (!c->opened)
		settle(c, addr);
	c->opened = true;
	dp_drop(&c->lock);
}

static void abandon_if_of(struct dp_qp *q, void *arg)
{
	if (q->c == arg)
		dp_qp_abandon(q);
}

static void count_one(struct dp_ctx *c, void *arg)
{
	(void)c;
	++*(unsigned *)arg;
}

static void free_ctx(struct dp_ctx *c)
{
	for (uint32_t i = 0; i < c->nsib; i++)
		dp_hmap_fini(&c->sib[i].twins);
	dp_hmap_fini(&c->own.twins);
	dp_hmap_fini(&c->qpns);
	dp_hmap_fini(&c->lkeys);
	free(c->sib);
	free(c);
}

char dp_made_by_us;

static bool of_ours(const struct ibv_async_event *e)
{
	switch (e->event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
		return e->element.qp->qp_context == &dp_made_by_us;
	case IBV_EVENT_CQ_ERR:
		return e->element.cq->cq_context == &dp_made_by_us;
	default:
		return false;
	}
}

static bool is_readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

int dp_get_async_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
	const struct dp_verbs *real = dp_stub->real_of(ctx);
	/*
	 * Whoever saw the fd readable counts on not being kept waiting, though it be for an event of ours; who comes when it is
	 * not wants to wait.
	 */
	bool seen = is_readable(ctx->async_fd);
	int ret;

	/* an object is not destroyed before its event is acknowledged, so it can be looked at */
	while (!(ret = real->get_async_event(ctx, event)) && of_ours(event) && !dp_tell_take(real, event)) {
		real->ack_async_event(event);
		if (seen && !is_readable(ctx->async_fd)) {
			errno = EAGAIN;
			return -1;
		}
	}
	return ret;
}

int dp_close_device(struct ibv_context *ctx)
{
	unsigned left = 0;
	struct dp_ctx *c = dp_ctx_find(ctx);
	const struct dp_verbs *real = c ? c->real : dp_stub->real_of(ctx);
	int ret;

	if (!c)
		return real->close_device(ctx);
	dp_qp_each(abandon_if_of, c); /* QPs and CQs that the program left behind end with the context */
	dp_cq_abandon(c);
	dp_hmap_del(&ctxs, (uintptr_t)ctx);
	ret = real->close_device(ctx);
	if (ret) {
		dp_hmap_put(&ctxs, (uintptr_t)ctx, c);
		return ret;
	}
	atomic_store(&c->closed, true);
	if (!dp_bond_unwatch(c))
		return 0;
	for (uint32_t i = 0; i < c->nsib; i++)
		if (c->sib[i].ctx && !c->sib[i].shared)
			real->close_device(c->sib[i].ctx);
	/* PDs that the program left behind lead to it, and peers may still ask about their MRs */
	if (!atomic_load(&c->refs))
		free_ctx(c);
	dp_ctx_each(count_one, &left);
	if (!left)
		dp_bond_stop(false);
	return 0;
}

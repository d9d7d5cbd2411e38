// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr1, dlvsym */
#endif
#include "lag.h"
#include "lock.h"
#include "log.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>

#define NODE "MLX5_1.14"
#define COPIES 8 /* of the provider's library in one process */

struct provider {
	const void *key; /* one of its functions */
	int (*modify)(struct ibv_qp *qp, uint8_t port);
	int (*query)(struct ibv_qp *qp, uint8_t *port, uint8_t *active);
};

static struct provider providers[COPIES];
static dp_lock lock = PTHREAD_MUTEX_INITIALIZER;

/* dealloc_mw is a slot that every provider with RC queue pairs fills, and that nobody patches. */
static void look_up(struct provider *p, const void *key)
{
	struct link_map *map;
	Dl_info info;
	void *handle;

	p->key = key;
	if (!key || !dladdr1(key, &info, (void **)&map, RTLD_DL_LINKMAP) || !map)
		return;
	handle = dlopen(map->l_name[0] ? map->l_name : NULL, RTLD_LAZY | RTLD_NOLOAD);
	if (!handle)
		return;
	p->modify = (int (*)(struct ibv_qp *, uint8_t))dlvsym(handle, "mlx5dv_modify_qp_lag_port", NODE);
	p->query = (int (*)(struct ibv_qp *, uint8_t *, uint8_t *))dlvsym(handle, "mlx5dv_query_qp_lag_port", NODE);
	/* libibverbs holds the library as long as there is a context of it */
	dlclose(handle);
}

static struct provider provider_of(const struct ibv_context *ctx)
{
	const void *key = (const void *)ctx->ops.dealloc_mw;
	struct provider found = { 0 };
	int i;

	dp_take(&lock);
	for (i = 0; i < COPIES && providers[i].key && providers[i].key != key; i++)
		;
	if (i == COPIES) {
		look_up(&found, key);
	} else {
		if (!providers[i].key)
			look_up(&providers[i], key);
		found = providers[i];
	}
	dp_drop(&lock);
	return found;
}

bool dp_lag_missing(struct ibv_context *ctx)
{
	return !provider_of(ctx).modify;
}

int dp_lag_pin(struct ibv_qp *qp, int port)
{
	struct provider p = provider_of(qp->context);
	uint8_t configured = 0, active = 0;
	static _Atomic bool said;
	int ret;

	if (!p.modify)
		return -ENOSYS;
	ret = p.modify(qp, (uint8_t)port);
	if (ret)
		return ret > 0 ? -ret : ret;
	if (!p.query || p.query(qp, &configured, &active))
		return 0;
	if (configured != port)
		return -EIO;
	/* a bond moves what is pinned to a port that is down; it comes back by itself */
	if (active != configured && !atomic_exchange(&said, true))
		dp_warn("%s: what is pinned to port %d of the bond leaves by port %d: is its link down?",
			qp->context->device->name, port, active);
	return 0;
}

const char *dp_lag_error(int err)
{
	switch (err < 0 ? -err : err) {
	case ENOSYS:
		return "its libmlx5 has no mlx5dv_modify_qp_lag_port (rdma-core has it from version 30 on)";
	case EOPNOTSUPP:
		return "the device is no bond, or its firmware cannot pin queue pairs";
	case EIO:
		return "the device did not take the port";
	default:
		return strerror(err < 0 ? -err : err);
	}
}

void dp_lag_after_fork(void)
{
	dp_lock_init(&lock);
}

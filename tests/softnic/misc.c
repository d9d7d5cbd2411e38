// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Verbs of which there is nothing to do. */
#include <errno.h>
#include <string.h>

#include "softnic.h"

#define EXPORT __attribute__((visibility("default")))

/* Memory is not pinned and no other process touches it, so a fork is as harmless as for any program. */
int ibv_fork_init(void)
{
	return 0;
}

enum ibv_fork_status ibv_is_fork_initialized(void)
{
	return IBV_FORK_UNNEEDED;
}

int ibv_dontfork_range(void *base, size_t size);
int ibv_dofork_range(void *base, size_t size);

EXPORT int ibv_dontfork_range(void *base, size_t size)
{
	(void)base, (void)size;
	return 0;
}

EXPORT int ibv_dofork_range(void *base, size_t size)
{
	(void)base, (void)size;
	return 0;
}

int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp;
	memset(ece, 0, sizeof(*ece));
	return 0;
}

int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp;
	return ece->vendor_id || ece->options ? EOPNOTSUPP : 0;
}

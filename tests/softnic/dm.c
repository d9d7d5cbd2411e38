// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Memory of the device: each process has that of each device for itself. A region of it begins at 0, wherever it lies there. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

#define GRAIN 4u /* what is copied is a multiple of it, as with mlx5 */

struct sn_dm {
	struct ibv_dm dm;
	uint8_t *mem;
	size_t length;
	uint32_t users;
	uint32_t epoch; /* of the engine when it was taken: a forked child has its own to give back */
};

static size_t taken[SN_DEVS];

static bool outside(const struct sn_dm *dm, uint64_t off, size_t n)
{
	return off > dm->length || n > dm->length - off;
}

static bool cannot_copy(const struct sn_dm *dm, uint64_t off, size_t n)
{
	return off % GRAIN || n % GRAIN || outside(dm, off, n);
}

static int copy_to(struct ibv_dm *ibdm, uint64_t off, const void *from, size_t n)
{
	struct sn_dm *dm = (struct sn_dm *)ibdm;

	if (cannot_copy(dm, off, n))
		return EINVAL;
	sn_host_memory.write((uintptr_t)dm->mem + off, from, n);
	return 0;
}

static int copy_from(void *to, struct ibv_dm *ibdm, uint64_t off, size_t n)
{
	struct sn_dm *dm = (struct sn_dm *)ibdm;

	if (cannot_copy(dm, off, n))
		return EINVAL;
	sn_host_memory.read(to, (uintptr_t)dm->mem + off, n);
	return 0;
}

/* 0 or a positive errno */
static int take(uint32_t dev, struct sn_dm *dm)
{
	int ret = 0;

	sn_lock();
	if (dm->length > SN_DM_SIZE - taken[dev])
		ret = ENOSPC;
	else
		taken[dev] += dm->length;
	dm->epoch = sn_engine_epoch();
	sn_unlock();
	return ret;
}

struct ibv_dm *sn_alloc_dm(struct ibv_context *c, struct ibv_alloc_dm_attr *attr)
{
	struct sn_dm *dm = NULL;
	int ret = EINVAL;

	if (attr->comp_mask || !attr->length || attr->length > SN_DM_SIZE || attr->log_align_req > 12)
		goto err;
	dm = calloc(1, sizeof(*dm));
	ret = ENOMEM;
	if (!dm || posix_memalign((void **)&dm->mem, 4096, attr->length))
		goto err;
	dm->length = attr->length;
	ret = take(sn_ctx(c)->dev, dm);
	if (ret) {
		free(dm->mem);
		goto err;
	}
	memset(dm->mem, 0, dm->length);
	dm->dm = (struct ibv_dm){ .context = c, .memcpy_to_dm = copy_to, .memcpy_from_dm = copy_from };
	return &dm->dm;
err:
	free(dm);
	errno = ret;
	return NULL;
}

int sn_free_dm(struct ibv_dm *ibdm)
{
	struct sn_dm *dm = (struct sn_dm *)ibdm;
	uint32_t users;

	sn_lock();
	users = dm->users;
	if (!users && dm->epoch == sn_engine_epoch())
		taken[sn_ctx(ibdm->context)->dev] -= dm->length;
	sn_unlock();
	if (users)
		return EBUSY;
	free(dm->mem);
	free(dm);
	return 0;
}

struct ibv_mr *sn_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *ibdm, uint64_t off, size_t length, unsigned int access)
{
	struct sn_dm *dm = (struct sn_dm *)ibdm;
	struct ibv_mr *mr;

	if (!(access & IBV_ACCESS_ZERO_BASED) || (access & IBV_ACCESS_ON_DEMAND) || outside(dm, off, length) ||
	    pd->context != ibdm->context) {
		errno = EINVAL;
		return NULL;
	}
	mr = sn_reg_at(pd, (uintptr_t)dm->mem + off, length, access);
	if (!mr)
		return NULL;
	sn_lock();
	dm->users++;
	((struct sn_mr *)mr)->dm_users = &dm->users;
	sn_unlock();
	return mr;
}

void sn_dm_after_fork(void)
{
	memset(taken, 0, sizeof(taken));
}

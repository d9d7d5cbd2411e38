// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Which GPU this process works on. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "config.h"
#include "gpu.h"
#include "lock.h"
#include "log.h"
#include "ports.h"
#include "settings.h"

static struct dp_gpu mine = { .index = -1 };
static bool decided;
static dp_lock gpu_lock = PTHREAD_MUTEX_INITIALIZER;

static void complete(struct dp_gpu *gpu)
{
	struct dp_host_gpu *gpus;
	size_t n;

	if (dp_host_gpus_read(NULL, NULL, &gpus, &n))
		return;
	dp_gpu_complete(gpu, gpus, n);
	free(gpus);
}

static bool by_user(const struct dp_config *cfg)
{
	return cfg->in_env & UINT64_C(1) << DP_SET_GPU;
}

struct dp_gpu dp_gpu_of_config(const struct dp_config *cfg)
{
	struct dp_gpu gpu = { .index = cfg->gpu, .from = cfg->gpu_from, .guessed = cfg->gpu_from && !by_user(cfg) };

	if (!cfg->gpu_name[0] || dp_pci_canonical(cfg->gpu_name, gpu.pci))
		return gpu;
	strcpy(strncasecmp(cfg->gpu_name, "MIG-", 4) ? gpu.uuid : gpu.mig, cfg->gpu_name);
	return gpu;
}

static void say(const struct dp_gpu *gpu)
{
	char index[24] = "unknown index";

	if (gpu->index >= 0)
		snprintf(index, sizeof(index), "index %d", gpu->index);
	dp_info("this process's gpu: %s%s%s%s%s%s%s, from %s", index, gpu->pci[0] ? ", " : "", gpu->pci,
		gpu->uuid[0] ? ", " : "", gpu->uuid, gpu->mig[0] ? ", " : "", gpu->mig, gpu->from);
}

static void decide(const struct dp_config *cfg, const void *addr)
{
	if (by_user(cfg) || !dp_gpu_from_cuda(&mine, addr))
		mine = dp_gpu_of_config(cfg);
	if (dp_gpu_known(&mine))
		complete(&mine);
	/* What nobody knows yet may be known when the next context is needed. "none" stays. */
	decided = dp_gpu_known(&mine) || by_user(cfg);
	if (dp_gpu_known(&mine))
		say(&mine);
}

struct dp_gpu dp_gpu_get(const struct dp_config *cfg, const void *addr)
{
	struct dp_gpu gpu;
	int err = errno;

	dp_take(&gpu_lock);
	if (!decided)
		decide(cfg, addr);
	gpu = mine;
	dp_drop(&gpu_lock);
	errno = err;
	return gpu;
}

struct dp_gpu dp_gpu_peek(const struct dp_config *cfg)
{
	struct dp_gpu gpu;

	if (by_user(cfg))
		return dp_gpu_get(cfg, NULL);
	dp_take(&gpu_lock);
	gpu = mine;
	dp_drop(&gpu_lock);
	return gpu;
}

void dp_gpu_after_fork(void)
{
	dp_lock_init(&gpu_lock);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* What NVSHMEM sees of devices and of its environment. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dl_iterate_phdr */
#endif
#include "nvshmem.h"

#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "gpu.h"

#define PREFIX_DEFAULT "mlx5" /* NVSHMEM looks at no other devices */

/* ---- devices */

static bool is_set(const char *name)
{
	const char *v = getenv(name);

	return v && *v;
}

static int place_of(struct ibv_device **list, int n, const char *name)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(list[i]->name, name))
			return i;
	return -1;
}

/* Why all devices stay visible; NULL: they need not. */
static const char *why_all(const struct dp_port_group *g, struct ibv_device **list, int n)
{
	if (is_set("NVSHMEM_HCA_LIST"))
		return "NVSHMEM_HCA_LIST is set";
	if (is_set("NVSHMEM_HCA_PE_MAPPING"))
		return "NVSHMEM_HCA_PE_MAPPING is set";
	if (is_set("NVSHMEM_HCA_PREFIX"))
		return "NVSHMEM_HCA_PREFIX is set";
	if (!g)
		return "no port group names this process's gpu";
	for (int i = 0; i < g->nports; i++) {
		if (place_of(list, n, g->ports[i].dev) < 0)
			return "not every device of its group is there";
		if (strncmp(g->ports[i].dev, PREFIX_DEFAULT, strlen(PREFIX_DEFAULT)))
			return "NVSHMEM does not look at devices of such names";
	}
	return NULL;
}

/* Brings the device to place at, those between move on. */
static void bring(struct ibv_device **list, int n, const char *name, int at)
{
	int from = place_of(list, n, name);
	struct ibv_device *dev = list[from];

	memmove(&list[at + 1], &list[at], (size_t)(from - at) * sizeof(*list));
	list[at] = dev;
}

void dp_show_devices(struct ibv_device **list, int *n)
{
	struct dp_gpu gpu;
	const struct dp_port_group *g;
	const char *why;
	int shown = 0;

	if (dp_cfg.nvshmem_devices == DP_NVSHMEM_ALL)
		return;
	gpu = dp_gpu_get(&dp_cfg, NULL);
	g = dp_config_group_named(&dp_cfg, &gpu);
	why = why_all(g, list, *n);
	if (why) {
		dp_info("nvshmem sees all %d devices: %s", *n, why);
		return;
	}
	for (int i = 0; i < g->nports && (!i || dp_cfg.nvshmem_devices == DP_NVSHMEM_GROUP); i++)
		if (place_of(list, shown, g->ports[i].dev) < 0)
			bring(list, *n, g->ports[i].dev, shown++);
	/* the others keep a reference that nobody gives back, as all do for NVSHMEM, which never frees its list */
	list[shown] = NULL;
	dp_info("nvshmem sees %d of %d devices, %s first: the group of its gpu", shown, *n, list[0]->name);
	*n = shown;
}

/* ---- transports */

static const struct {
	const char *name;
	char value[8];
} forced[] = {
	{ "NVSHMEM_IB_ENABLE_IBGDA", "0" },
	{ "NVSHMEM_GPUNETIO_ENABLE_GDAKI", "0" },
	{ "NVSHMEM_REMOTE_TRANSPORT", "ibrc" },
};

/* As NVSHMEM reads it. */
static bool is_true(const char *v)
{
	return v && *v && !strchr("0nNfF", *v);
}

static int is_deepep(struct dl_phdr_info *info, size_t size, void *arg)
{
	const char *base = strrchr(info->dlpi_name, '/');

	(void)size;
	(void)arg;
	base = base ? base + 1 : info->dlpi_name;
	return !strncmp(base, "deep_ep_cpp", strlen("deep_ep_cpp"));
}

/*
 * DeepEP switches IBGDA on exactly when its kernels call it: always since the commit after a84a248, and before that in
 * low-latency mode. They would follow a pointer that NVSHMEM then never sets.
 */
static bool must_not(void)
{
	return is_true(getenv("NVSHMEM_IB_ENABLE_IBGDA")) && dl_iterate_phdr(is_deepep, NULL);
}

char *dp_nvshmem_env(const char *name, char *value)
{
	static _Atomic bool refused, said;

	if (!dp_cfg.force_ibrc)
		return value;
	for (size_t i = 0; i < sizeof(forced) / sizeof(*forced); i++) {
		if (strcmp(name, forced[i].name))
			continue;
		if (must_not()) {
			if (!atomic_exchange(&refused, true))
				dp_warn("nvshmem.force_ibrc is not followed: DeepEP has switched IBGDA on, whose "
					"device functions its kernels call, and would crash without it");
			return value;
		}
		if (!atomic_exchange(&said, true))
			dp_info("nvshmem is told to use IBRC, as nvshmem.force_ibrc wants");
		return (char *)forced[i].value;
	}
	return value;
}

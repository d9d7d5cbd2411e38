// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Programs that write work queues themselves: what their own switch is for the way that can be helped. */
#include <string.h>
#include "core.h"
#include "nvshmem.h"

#define SEEN 16

static const struct {
	const char *object; /* its file's name begins so */
	const char *way;
} ways[] = {
	{ "nvshmem_transport_ibgda", "NVSHMEM_IB_ENABLE_IBGDA=0 with NVSHMEM_REMOTE_TRANSPORT=ibrc" },
	{ "nvshmem_transport_gpunetio", "NVSHMEM_GPUNETIO_ENABLE_GDAKI=0 with NVSHMEM_REMOTE_TRANSPORT=ibrc" },
	{ "nvshmem_transport", "NVSHMEM_REMOTE_TRANSPORT=ibrc" },
	{ "libnccl", "NCCL_GIN_TYPE=2 with DUALPORT_NCCL=1" },
	{ "libdoca_gpunetio",
	  "NVSHMEM_REMOTE_TRANSPORT=ibrc of NVSHMEM, or NCCL_GIN_TYPE=2 with DUALPORT_NCCL=1 of NCCL," },
	{ "libuct_ib", "UCX_TLS=rc_verbs" },
};

static const char *way_of(const char *object)
{
	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++)
		if (!strncmp(object, ways[i].object, strlen(ways[i].object)))
			return ways[i].way;
	return NULL;
}

/* Is it the first time that this object does so? Many objects more than there is room for count as one. */
static bool first_of(const char *object)
{
	static char seen[SEEN][64];
	static dp_lock lock = PTHREAD_MUTEX_INITIALIZER;
	bool first = false;

	dp_take(&lock);
	for (int i = 0; i < SEEN; i++) {
		if (!strncmp(seen[i], object, sizeof(seen[i]) - 1) && seen[i][0])
			break;
		if (seen[i][0])
			continue;
		strncpy(seen[i], object, sizeof(seen[i]) - 1);
		first = true;
		break;
	}
	dp_drop(&lock);
	return first;
}

void dp_bypassed(const char *function, const char *object)
{
	const char *way = way_of(object), *name = *object ? object : "the program";

	if (strcmp(function, "mlx5dv_init_obj")) /* there the QP is known, and counted */
		dp_fallback(DP_FB_DIRECT_ACCESS);
	if (!first_of(name))
		return;
	if (way)
		dp_warn("%s writes its work queues itself (%s): one port; %s is the way that can use all", name,
			function, way);
	else
		dp_warn("%s writes its work queues itself (%s): one port", name, function);
}

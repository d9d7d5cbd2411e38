// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Which ports of a host put their writes into one order, because they reach memory through one PCIe upstream port. */
#include "qp.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define SOFTWARE 1 /* no PCI device: whoever acknowledges has written */

static bool is_pci_address(const char *name)
{
	unsigned domain, bus, dev, fn;
	int end = -1;

	return sscanf(name, "%x:%x:%x.%1u%n", &domain, &bus, &dev, &fn, &end) == 4 && end > 0 && !name[end];
}

/* FNV-1a */
static uint64_t hash(const char *s)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (; *s; s++)
		h = (h ^ (uint8_t)*s) * UINT64_C(0x100000001b3);
	return h > SOFTWARE ? h : SOFTWARE + 1;
}

uint64_t dp_upstream_of_path(char *path)
{
	char *name = strrchr(path, '/'), *above;

	if (name && strstr(name, ".sf.")) { /* a sub-function is an auxiliary device below its PCI function */
		*name = '\0';
		name = strrchr(path, '/');
	}
	if (!name || !is_pci_address(name + 1))
		return SOFTWARE;
	*name = '\0';
	above = strrchr(path, '/');
	/* functions of one slot share the bridge above it; on a root bus, which has none, they share their device number */
	if (!above || !is_pci_address(above + 1)) {
		*name = '/';
		*strrchr(path, '.') = '\0';
	}
	return hash(path);
}

uint64_t dp_upstream(struct ibv_context *ctx)
{
	char link[IBV_SYSFS_PATH_MAX + 16], path[PATH_MAX];

	snprintf(link, sizeof(link), "%s/device", ctx->device->ibdev_path);
	return realpath(link, path) ? dp_upstream_of_path(path) : SOFTWARE;
}

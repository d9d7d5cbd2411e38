// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The part of /sys that programs read of RDMA devices, below the host's directory. */
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"

static int make_dirs(char *path)
{
	for (char *s = path + 1; (s = strchr(s, '/')); s++) {
		*s = '\0';
		if (mkdir(path, 0700) && errno != EEXIST)
			return -errno;
		*s = '/';
	}
	return 0;
}

/* One file with one line; its directories are made. */
static int put(const char *root, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static int put(const char *root, const char *name, const char *fmt, ...)
{
	char path[PATH_MAX], new[PATH_MAX + 8];
	va_list ap;
	FILE *f;
	int ret;

	if (snprintf(path, sizeof(path), "%s/%s", root, name) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	ret = make_dirs(path);
	if (ret)
		return ret;
	/* readers see the old one or the new one whole */
	snprintf(new, sizeof(new), "%s.new", path);
	f = fopen(new, "we");
	if (!f)
		return -errno;
	va_start(ap, fmt);
	vfprintf(f, fmt, ap);
	va_end(ap);
	fputc('\n', f);
	return fclose(f) || rename(new, path) ? -errno : 0;
}

/* Where the kernel's file cannot be read, there is none here. */
static int put_or_remove(const char *root, const char *name, const char *text)
{
	char path[PATH_MAX];

	if (text)
		return put(root, name, "%s", text);
	if (snprintf(path, sizeof(path), "%s/%s", root, name) < (int)sizeof(path))
		unlink(path);
	return 0;
}

static void guid_text(char *buf, size_t n, uint64_t g)
{
	snprintf(buf, n, "%04x:%04x:%04x:%04x", (unsigned int)(g >> 48) & 0xffff, (unsigned int)(g >> 32) & 0xffff,
		 (unsigned int)(g >> 16) & 0xffff, (unsigned int)g & 0xffff);
}

static int make_gids(uint32_t dev, bool ib, const char *root)
{
	int ret = 0;

	for (uint32_t i = 0; !ret && i < SN_GIDS; i++) {
		const struct sn_gid *g = sn_host_gid(dev, i);
		const uint8_t *r = g->raw;
		char name[64], text[64] = "";

		for (int k = 0; k < 8; k++)
			snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%02x%02x", k ? ":" : "", r[2 * k],
				 r[2 * k + 1]);
		snprintf(name, sizeof(name), "ports/1/gids/%u", i);
		ret = put(root, name, "%s", text);
		snprintf(name, sizeof(name), "ports/1/gid_attrs/types/%u", i);
		if (!ret)
			ret = put_or_remove(root, name, g->valid ? ib ? "IB/RoCE v1" : "RoCE v2" : NULL);
		/* the only netdev that has the addresses */
		snprintf(name, sizeof(name), "ports/1/gid_attrs/ndevs/%u", i);
		if (!ret)
			ret = put_or_remove(root, name, g->valid && !ib ? "lo" : NULL);
	}
	return ret;
}

int sn_sysfs_port(const struct sn_host *h, uint32_t dev, const char *dir)
{
	bool down = atomic_load(&h->devs[dev].port.dark) & SN_DARK_DOWN;
	char ib[PATH_MAX];
	int ret;

	snprintf(ib, sizeof(ib), "%s/sys/class/infiniband/%s", dir, h->devs[dev].name);
	ret = put(ib, "ports/1/state", "%s", down ? "1: DOWN" : "4: ACTIVE");
	if (!ret)
		ret = put(ib, "ports/1/phys_state", "%s", down ? "3: Disabled" : "5: LinkUp");
	return ret ? ret : make_gids(dev, h->infiniband, ib);
}

static int make_device(const struct sn_host *h, uint32_t i, const char *dir)
{
	const struct sn_dev *d = &h->devs[i];
	uint32_t first = 0;
	char ib[PATH_MAX], verbs[PATH_MAX], pci[PATH_MAX], link[PATH_MAX], text[64];
	int ret;

	/* the ports of a card are functions of one PCI slot */
	while (h->devs[first].card != d->card)
		first++;
	snprintf(ib, sizeof(ib), "%s/sys/class/infiniband/%s", dir, d->name);
	snprintf(verbs, sizeof(verbs), "%s/sys/class/infiniband_verbs/uverbs%u", dir, i);
	snprintf(text, sizeof(text), "0000:%02x:%02x.%u", 0x3b + d->card, (i - first) / 8, (i - first) % 8);
	snprintf(pci, sizeof(pci), "%s/sys/devices/pci0000:%02x/%s", dir, 0x3a + d->card, text);
	if (snprintf(link, sizeof(link), "%s/device", ib) >= (int)sizeof(link))
		return -ENAMETOOLONG;
	if ((ret = put(pci, "class", "0x020000")) || (ret = put(pci, "vendor", "0x15b3")) ||
	    (ret = put(pci, "device", "0x%04x", h->part_id)) || (ret = put(pci, "numa_node", "-1")))
		return ret;
	guid_text(text, sizeof(text), d->node_guid);
	if ((ret = put(ib, "node_guid", "%s", text)))
		return ret;
	guid_text(text, sizeof(text), d->sys_image_guid);
	if ((ret = put(ib, "sys_image_guid", "%s", text)) || (ret = put(ib, "node_type", "1: CA")) ||
	    (ret = put(ib, "node_desc", "softnic")) || (ret = put(ib, "fw_ver", "0.1.0")) ||
	    (ret = put(ib, "board_id", "SOFTNIC")) || (ret = put(ib, "hca_type", "softnic")) ||
	    (ret = put(ib, "ports/1/link_layer", h->infiniband ? "InfiniBand" : "Ethernet")) ||
	    (ret = put(ib, "ports/1/rate", "100 Gb/sec (4X EDR)")) ||
	    (ret = put(ib, "ports/1/lid", "0x%x", sn_host_lid(i))) || (ret = put(ib, "ports/1/pkeys/0", "0xffff")) ||
	    (ret = put(verbs, "ibdev", "%s", d->name)) || (ret = put(verbs, "abi_version", "1")))
		return ret;
	/* programs only want to see that a device is there */
	snprintf(verbs, sizeof(verbs), "%s/dev/infiniband/uverbs%u", dir, i);
	ret = make_dirs(verbs);
	if (ret)
		return ret;
	if (symlink("/dev/null", verbs) && errno != EEXIST)
		return -errno;
	if (symlink(pci, link) && errno != EEXIST)
		return -errno;
	return sn_sysfs_port(h, i, dir);
}

int sn_sysfs_make(const struct sn_host *h, const char *dir)
{
	int ret = 0;

	for (uint32_t i = 0; !ret && i < h->ndevs; i++)
		ret = make_device(h, i, dir);
	if (ret)
		sn_say("%s/sys: %s", dir, strerror(-ret));
	return ret;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* What the host has of GPUs and RDMA ports, and where on PCI they are. */
#define _GNU_SOURCE /* strverscmp */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "ports.h"
#include "tool.h"

const char *dp_distance_name(enum dp_distance d)
{
	static const char *const names[] = { "PIX", "PXB", "PHB", "NODE", "SYS", "-" };

	return names[d];
}

/* From what /sys says of the link as it was trained: "16.0 GT/s PCIe", "16". */
static void read_link(struct dp_pci *pci, const char *dir)
{
	char speed[32], width[16];
	double gt;
	int lanes;

	dp_sysfs_line(speed, sizeof(speed), "%s/current_link_speed", dir);
	dp_sysfs_line(width, sizeof(width), "%s/current_link_width", dir);
	gt = strtod(speed, NULL);
	lanes = atoi(width);
	if (gt <= 0 || lanes <= 0)
		return;
	/* 8b/10b up to 5 GT/s, 128b/130b beyond; from 64 GT/s on flits, which cost about as much */
	pci->gbit = gt * lanes * (gt < 8 ? 0.8 : 128.0 / 130);
	snprintf(pci->link, sizeof(pci->link), "%g GT/s x%d", gt, lanes);
}

/* What stands above the host bridge is no PCI: "LNXSYSTM:00/.../VMBUS:00/<id>/pci0001:00/..." on Hyper-V. */
static const char *host_bridge(const char *path)
{
	const char *at = path;

	while (at && !(!strncmp(at, "pci", 3) && isxdigit((unsigned char)at[3]))) {
		at = strchr(at, '/');
		at += at != NULL;
	}
	return at ? at : path;
}

/* link: a path that leads to the device's directory */
static void read_pci(struct dp_pci *pci, const char *sysfs, const char *link)
{
	char real[PATH_MAX], root[PATH_MAX], text[16];
	const char *name;
	size_t n;

	memset(pci, 0, sizeof(*pci));
	pci->numa = -1;
	if (!realpath(link, real) || !realpath(sysfs, root))
		return;
	/* a sub-function is below its PCI device */
	for (name = strrchr(real, '/'); name && !dp_pci_canonical(name + 1, pci->addr); name = strrchr(real, '/'))
		real[name - real] = '\0';
	n = strlen(root);
	if (!pci->addr[0] || strncmp(real, root, n) || strncmp(real + n, "/devices/", 9))
		return;
	snprintf(pci->path, sizeof(pci->path), "%s", host_bridge(real + n + 9));
	dp_sysfs_line(text, sizeof(text), "%s/numa_node", real);
	if (text[0])
		pci->numa = atoi(text);
	read_link(pci, real);
}

static int components(const char *path)
{
	int n = 1;

	for (; *path; path++)
		n += *path == '/';
	return n;
}

enum dp_distance dp_topo_distance(const struct dp_pci *a, const struct dp_pci *b)
{
	const char *pa = a->path, *pb = b->path;
	int common = 0, beyond;

	if (!*pa || !*pb)
		return DP_FAR;
	while (*pa && *pb) {
		size_t na = strcspn(pa, "/"), nb = strcspn(pb, "/");

		if (na != nb || strncmp(pa, pb, na))
			break;
		common++;
		pa += na + (pa[na] == '/');
		pb += nb + (pb[nb] == '/');
	}
	beyond = *pa ? components(pa) : 0;
	if (*pb && components(pb) > beyond)
		beyond = components(pb);
	/* the first component is the host bridge, the second its root port */
	if (common >= 2)
		return beyond <= 2 ? DP_PIX : DP_PXB;
	if (common == 1)
		return DP_PHB;
	return a->numa == b->numa && a->numa >= 0 ? DP_NODE : DP_SYS;
}

static void append_type(char *list, size_t len, const char *type)
{
	size_t at = strlen(list);

	if (!strstr(list, type))
		snprintf(list + at, len - at, "%s%s", at ? ", " : "", type);
}

static void read_gid_types(struct dp_topo_port *p, const char *dir)
{
	char path[PATH_MAX], types[2][32] = { "IB/RoCE v1", "RoCE v2" }, text[32];
	bool has[2] = { false, false };
	struct dirent *e;
	DIR *d;

	if (snprintf(path, sizeof(path), "%s/ports/%d/gid_attrs/types", dir, p->fact.port) >= (int)sizeof(path))
		return;
	d = opendir(path);
	while (d && (e = readdir(d))) {
		if (!isdigit((unsigned char)e->d_name[0]))
			continue;
		dp_sysfs_line(text, sizeof(text), "%s/%s", path, e->d_name); /* an empty entry cannot be read */
		for (int i = 0; i < 2; i++)
			has[i] |= !strcmp(text, types[i]);
	}
	if (d)
		closedir(d);
	for (int i = 0; i < 2; i++)
		if (has[i])
			append_type(p->gids, sizeof(p->gids), types[i]);
}

/* The drivers of NVIDIA's own distribution show these below the netdev; the kernel's do not. */
static void read_qos(struct dp_topo_port *p, const char *net)
{
	char text[8];

	dp_sysfs_line(p->trust, sizeof(p->trust), "%s/qos/trust", net);
	dp_sysfs_line(p->pfc, sizeof(p->pfc), "%s/qos/pfc", net);
	for (int prio = 0; prio < 8; prio++) {
		size_t at = strlen(p->ecn);

		dp_sysfs_line(text, sizeof(text), "%s/ecn/roce_np/enable/%d", net, prio);
		if (text[0])
			snprintf(p->ecn + at, sizeof(p->ecn) - at, "%s%s", at ? "," : "", text);
	}
}

static void read_netdev(struct dp_topo_port *p, const char *sysfs)
{
	char net[PATH_MAX], text[64];

	if (!p->netdev[0] || snprintf(net, sizeof(net), "%s/class/net/%s", sysfs, p->netdev) >= (int)sizeof(net))
		return;
	dp_sysfs_line(text, sizeof(text), "%s/mtu", net);
	p->mtu = atoi(text);
	read_qos(p, net);
	dp_port_bond(sysfs, p->fact.dev, p->netdev, p->lag, sizeof(p->lag));
}

static void read_uverbs(struct dp_topo_port *p, const char *sysfs, const char *dev_root)
{
	char path[PATH_MAX], text[64];
	struct dirent *e;
	DIR *d;

	if (snprintf(path, sizeof(path), "%s/class/infiniband_verbs", sysfs) >= (int)sizeof(path))
		return;
	d = opendir(path);
	while (d && !p->uverbs[0] && (e = readdir(d))) {
		if (strncmp(e->d_name, "uverbs", 6) || strlen(e->d_name) >= sizeof(p->uverbs))
			continue;
		dp_sysfs_line(text, sizeof(text), "%s/%s/ibdev", path, e->d_name);
		if (!strcmp(text, p->fact.dev))
			strcpy(p->uverbs, e->d_name);
	}
	if (d)
		closedir(d);
	if (!p->uverbs[0] || snprintf(path, sizeof(path), "%s/infiniband", dev_root) >= (int)sizeof(path))
		return;
	/* where there is no such directory at all, no device of the host was given to this place */
	if (snprintf(path, sizeof(path), "%s/infiniband/%s", dev_root, p->uverbs) < (int)sizeof(path))
		p->node_missing = access(path, F_OK) != 0;
}

static void read_port(struct dp_topo_port *p, const char *sysfs, const char *dev_root)
{
	char dir[PATH_MAX], link[PATH_MAX + 16], text[64], *word;

	if (snprintf(dir, sizeof(dir), "%s/class/infiniband/%s", sysfs, p->fact.dev) >= (int)sizeof(dir))
		return;
	snprintf(link, sizeof(link), "%s/device", dir);
	read_pci(&p->pci, sysfs, link);
	dp_sysfs_line(text, sizeof(text), "%s/ports/%d/state", dir, p->fact.port); /* "4: ACTIVE" */
	word = strchr(text, ' ');
	snprintf(p->state, sizeof(p->state), "%.15s", word ? word + 1 : "?");
	dp_sysfs_line(text, sizeof(text), "%s/ports/%d/rate", dir, p->fact.port); /* "400 Gb/sec (4X NDR)" */
	p->gbit = strtod(text, NULL);
	dp_sysfs_line(p->fw, sizeof(p->fw), "%s/fw_ver", dir);
	if (!dp_port_netdev(dir, p->fact.port, p->netdev, sizeof(p->netdev)))
		p->netdev[0] = '\0';
	dp_printable(p->netdev);
	read_gid_types(p, dir);
	read_netdev(p, sysfs);
	read_uverbs(p, sysfs, dev_root);
}

static int by_name(const void *pa, const void *pb)
{
	const struct dp_topo_port *a = pa, *b = pb;
	int cmp = strverscmp(a->fact.dev, b->fact.dev);

	return cmp ? cmp : a->fact.port - b->fact.port;
}

static int read_ports(struct dp_topo *t, const char *sysfs, const char *dev_root)
{
	struct dp_port_fact *facts;
	size_t n;
	int ret = dp_port_facts_read(sysfs, &facts, &n);

	if (ret)
		return ret == -ENOMEM ? ret : 0;
	t->ports = calloc(n, sizeof(*t->ports));
	if (!t->ports) {
		free(facts);
		return -ENOMEM;
	}
	t->nports = n;
	for (size_t i = 0; i < n; i++) {
		t->ports[i].fact = facts[i];
		read_port(&t->ports[i], sysfs, dev_root);
	}
	free(facts);
	qsort(t->ports, n, sizeof(*t->ports), by_name);
	return 0;
}

int dp_topo_read(struct dp_topo *t, const char *sysfs)
{
	char link[PATH_MAX], proc[PATH_MAX] = "/proc", dev[PATH_MAX] = "/dev";
	struct dp_host_gpu *gpus;
	int ret;

	memset(t, 0, sizeof(*t));
	/* a recorded host's /proc and /dev lie beside its /sys */
	if (sysfs && (snprintf(proc, sizeof(proc), "%s/../proc", sysfs) >= (int)sizeof(proc) ||
		      snprintf(dev, sizeof(dev), "%s/../dev", sysfs) >= (int)sizeof(dev)))
		return -ENAMETOOLONG;
	if (!sysfs)
		sysfs = "/sys";
	ret = dp_host_gpus_read(sysfs, proc, &gpus, &t->ngpus);
	if (ret)
		return ret;
	t->gpus = calloc(t->ngpus + 1, sizeof(*t->gpus));
	if (!t->gpus) {
		free(gpus);
		return -ENOMEM;
	}
	for (size_t i = 0; i < t->ngpus; i++) {
		t->gpus[i].id = gpus[i];
		if (snprintf(link, sizeof(link), "%s/bus/pci/devices/%s", sysfs, gpus[i].pci) < (int)sizeof(link))
			read_pci(&t->gpus[i].pci, sysfs, link);
	}
	free(gpus);
	ret = read_ports(t, sysfs, dev);
	if (ret)
		dp_topo_free(t);
	return ret;
}

void dp_topo_free(struct dp_topo *t)
{
	free(t->gpus);
	free(t->ports);
	memset(t, 0, sizeof(*t));
}

const struct dp_topo_port *dp_topo_port(const struct dp_topo *t, const char *dev, int port)
{
	for (size_t i = 0; i < t->nports; i++)
		if (t->ports[i].fact.port == port && !strcmp(t->ports[i].fact.dev, dev))
			return &t->ports[i];
	return NULL;
}

bool dp_topo_usable(const struct dp_topo_port *p)
{
	return p->fact.active && p->fact.kind == DP_PORT_PHYSICAL;
}

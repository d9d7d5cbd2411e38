// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* dualport probe and dualport check: the host, and whether a configuration fits it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "ports.h"
#include "tool.h"

static const char *numa_text(int numa, char *buf, size_t len)
{
	if (numa < 0)
		return "-";
	snprintf(buf, len, "%d", numa);
	return buf;
}

static const char *or_dash(const char *s)
{
	return *s ? s : "-";
}

static void put_gpus(const struct dp_topo *t)
{
	char numa[16];

	if (!t->ngpus)
		printf("no GPU\n");
	else
		printf("%-4s %-14s %-5s %s\n", "GPU", "PCI", "NUMA", "UUID");
	for (size_t i = 0; i < t->ngpus; i++)
		printf("%-4zu %-14s %-5s %s\n", i, t->gpus[i].id.pci,
		       numa_text(t->gpus[i].pci.numa, numa, sizeof(numa)), or_dash(t->gpus[i].id.uuid));
}

static void put_ports(const struct dp_topo *t)
{
	char numa[16], port[DP_DEV_NAME + 8], rate[16], mtu[16];

	if (!t->nports) {
		printf("\nno RDMA device\n");
		return;
	}
	printf("\n%-14s %-14s %-5s %-10s %-7s %-5s %-10s %-13s %-14s %s\n", "port", "PCI", "NUMA", "state", "Gb/s",
	       "MTU", "netdev", "firmware", "PCIe", "kind");
	for (size_t i = 0; i < t->nports; i++) {
		const struct dp_topo_port *p = &t->ports[i];

		snprintf(port, sizeof(port), "%s:%d", p->fact.dev, p->fact.port);
		snprintf(rate, sizeof(rate), "%g", p->gbit);
		snprintf(mtu, sizeof(mtu), "%d", p->mtu);
		printf("%-14s %-14s %-5s %-10s %-7s %-5s %-10s %-13s %-14s %s%s\n", port, or_dash(p->pci.addr),
		       numa_text(p->pci.numa, numa, sizeof(numa)), p->state, rate, p->mtu ? mtu : "-",
		       or_dash(p->netdev), or_dash(p->fw), or_dash(p->pci.link), p->fact.ethernet ? "Ethernet" : "InfiniBand",
		       p->lag[0] ? ", a bond"
		       : p->fact.kind == DP_PORT_PHYSICAL ? ""
		       : p->fact.kind == DP_PORT_VF ? ", virtual function"
		       : p->fact.kind == DP_PORT_SF ? ", sub-function"
		       : p->fact.kind == DP_PORT_REPRESENTOR ? ", representor"
							     : ", management function");
	}
}

static void put_distances(const struct dp_topo *t)
{
	if (!t->ngpus || !t->nports)
		return;
	printf("\n%-15s", "");
	for (size_t g = 0; g < t->ngpus; g++)
		printf(" GPU %zu%s", g, g + 1 < t->ngpus && g < 10 ? " " : "");
	for (size_t i = 0; i < t->nports; i++) {
		if (i && !strcmp(t->ports[i].fact.dev, t->ports[i - 1].fact.dev))
			continue;
		printf("\n%-15s", t->ports[i].fact.dev);
		for (size_t g = 0; g < t->ngpus; g++)
			printf(" %*s", -(g + 1 < t->ngpus ? 6 : 0),
			       dp_distance_name(dp_topo_distance(&t->gpus[g].pci, &t->ports[i].pci)));
	}
	printf("\n");
}

/* The groups that the library makes of the host without a file. */
static int put_cards(const struct dp_topo *t, const char *sysfs)
{
	struct dp_config cfg = { 0 };
	char why[1024];
	int ret = dp_groups_from_card(&cfg, sysfs, why, sizeof(why)), remarks = 0;

	printf("\nremarks\n");
	remarks += dp_host_remarks(t, &cfg, sysfs, stdout);
	if (ret)
		printf("  no card with two ports: %s\n", why);
	for (int i = 0; i < cfg.ngroups; i++)
		remarks += dp_group_remarks(t, &cfg.groups[i], "  ", stdout);
	if (!ret && !remarks)
		printf("  none\n");
	free(cfg.groups);
	return ret == -ENOMEM ? ret : 0;
}

int tool_probe(int argc, char **argv)
{
	const char *sysfs;
	struct dp_topo t;
	int ret = tool_sysfs(&argc, argv, &sysfs);

	if (ret)
		return ret;
	if (argc != 1)
		return tool_error("probe takes no argument but --sysfs DIR");
	if (dp_topo_read(&t, sysfs))
		return tool_error("out of memory");
	put_gpus(&t);
	put_ports(&t);
	put_distances(&t);
	ret = put_cards(&t, sysfs);
	if (!ret) {
		printf("\nproposed configuration\n");
		ret = dp_propose(&t, stdout);
	}
	dp_topo_free(&t);
	return ret ? tool_error("out of memory") : TOOL_OK;
}

/* ---- check */

static void put_group_name(const struct dp_port_group *g)
{
	char name[DP_PORT_TEXT];

	if (g->gpu_name[0])
		printf("group of GPU %s:", g->gpu_name);
	else if (g->gpu >= 0)
		printf("group of GPU %d:", g->gpu);
	else
		printf("group of any GPU:");
	for (int i = 0; i < g->nports; i++)
		printf(" %s", dp_port_text(g->ports[i].dev, g->ports[i].port, g->ports[i].lag, name));
	printf("\n");
}

/* Returns how many errors there are. */
static int check_group(const struct dp_topo *t, const struct dp_port_group *g)
{
	int errors = 0;

	put_group_name(g);
	for (int i = 0; i < g->nports; i++) {
		const struct dp_port_name *n = &g->ports[i];
		const struct dp_topo_port *p = dp_topo_port(t, n->dev, n->port);

		errors += !p || n->lag > p->fact.lag_ports;
		if (!p)
			printf("  error: %s:%d is not there\n", n->dev, n->port);
		else if (n->lag && !p->fact.lag_ports)
			printf("  error: %s:%d is no bond, so it has no port %d\n", n->dev, n->port, n->lag);
		else if (n->lag > p->fact.lag_ports)
			printf("  error: %s:%d is a bond of %d ports, so it has no port %d\n", n->dev, n->port,
			       p->fact.lag_ports, n->lag);
	}
	dp_group_remarks(t, g, "  warning: ", stdout);
	return errors;
}

static bool is_for(const struct dp_port_group *g, const struct dp_gpu *gpu)
{
	struct dp_config one = { .ngroups = 1, .groups = (struct dp_port_group *)g };

	return dp_config_group_named(&one, gpu) != NULL;
}

/* What each GPU would use. Returns how many groups are for GPUs that are not there. */
static int check_gpus(const struct dp_topo *t, const struct dp_config *cfg)
{
	bool used[1024] = { false };
	char name[DP_PORT_TEXT];
	int errors = 0;

	for (size_t i = 0; i < t->ngpus; i++) {
		struct dp_gpu gpu = { .index = (int)i };
		const struct dp_port_group *g;
		enum dp_distance d;

		strcpy(gpu.pci, t->gpus[i].id.pci);
		strcpy(gpu.uuid, t->gpus[i].id.uuid);
		g = dp_config_group_named(cfg, &gpu);
		printf("GPU %zu (%s):", i, gpu.pci);
		for (int k = 0; g && k < g->nports; k++) {
			const struct dp_topo_port *p = dp_topo_port(t, g->ports[k].dev, g->ports[k].port);

			d = p ? dp_topo_distance(&t->gpus[i].pci, &p->pci) : DP_FAR;
			printf(" %s (%s)", dp_port_text(g->ports[k].dev, g->ports[k].port, g->ports[k].lag, name),
			       dp_distance_name(d));
		}
		printf("%s\n", g ? "" : " no group names it: the first for any GPU with the program's port, or none");
		for (int k = 0; k < cfg->ngroups && k < 1024; k++)
			used[k] |= is_for(&cfg->groups[k], &gpu);
	}
	for (int k = 0; k < cfg->ngroups && k < 1024; k++)
		if (!used[k] && (cfg->groups[k].gpu >= 0 || cfg->groups[k].gpu_name[0])) {
			/* without the driver's files a UUID says nothing */
			bool unknown = strchr(cfg->groups[k].gpu_name, '-') && (!t->ngpus || !t->gpus[0].id.uuid[0]);

			printf("%s: no GPU of this host: ", unknown ? "warning" : "error");
			put_group_name(&cfg->groups[k]);
			errors += !unknown;
		}
	return errors;
}

int tool_check(int argc, char **argv)
{
	char text[1024];
	struct dp_config cfg;
	struct dp_topo t;
	const char *sysfs;
	int errors = 0, ret = tool_sysfs(&argc, argv, &sysfs);

	if (ret)
		return ret;
	if (argc != 2)
		return tool_error("check takes the name of one file, and perhaps --sysfs DIR");
	if (access(argv[1], R_OK))
		return tool_error("%s: %s", argv[1], strerror(errno));
	ret = dp_config_load(&cfg, argv[1], text, sizeof(text));
	if (ret) {
		dp_printable(text);
		printf("error: %s\n", text);
		return TOOL_BAD;
	}
	if (dp_topo_read(&t, sysfs)) {
		dp_config_free(&cfg);
		return tool_error("out of memory");
	}
	if (!cfg.ngroups && dp_groups_from_card(&cfg, sysfs, text, sizeof(text))) {
		printf("error: no port group in the file, and none of this host's cards makes one: %s\n", text);
		errors++;
	}
	for (int i = 0; i < cfg.ngroups; i++)
		errors += check_group(&t, &cfg.groups[i]);
	if (cfg.ngroups)
		errors += check_gpus(&t, &cfg);
	if (!errors)
		printf("%s fits this host\n", argv[1]);
	else
		printf("%s does not fit this host: %d error%s\n", argv[1], errors, errors > 1 ? "s" : "");
	dp_topo_free(&t);
	dp_config_free(&cfg);
	return errors ? TOOL_BAD : TOOL_OK;
}

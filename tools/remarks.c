// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* What is odd about a host or a group: the usual causes of "two ports are slower". */
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include "tool.h"

struct teller {
	const char *prefix;
	FILE *f;
	int n;
};

static void tell(struct teller *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void tell(struct teller *t, const char *fmt, ...)
{
	va_list ap;

	fputs(t->prefix, t->f);
	va_start(ap, fmt);
	vfprintf(t->f, fmt, ap);
	va_end(ap);
	fputc('\n', t->f);
	t->n++;
}

#define NAME "%s:%d"
#define OF(p) (p)->fact.dev, (p)->fact.port

static void differ(struct teller *t, const struct dp_topo_port *a, const struct dp_topo_port *b, const char *what,
		   const char *va, const char *vb)
{
	if (*va && *vb && strcmp(va, vb))
		tell(t, NAME " and " NAME ": %s differ: \"%s\", \"%s\"", OF(a), OF(b), what, va, vb);
}

/* Two ports that are to work together. */
static void compare(struct teller *t, const struct dp_topo_port *a, const struct dp_topo_port *b)
{
	if (a->fact.ethernet != b->fact.ethernet)
		tell(t, NAME " and " NAME ": one is Ethernet, the other InfiniBand", OF(a), OF(b));
	if (a->gbit != b->gbit)
		tell(t,
		     NAME " and " NAME ": rates differ: %g, %g Gb/s; the slower one holds up requests cut into equal "
			  "parts",
		     OF(a), OF(b), a->gbit, b->gbit);
	if (a->mtu && b->mtu && a->mtu != b->mtu)
		tell(t, NAME " and " NAME ": MTUs differ: %s %d, %s %d", OF(a), OF(b), a->netdev, a->mtu, b->netdev,
		     b->mtu);
	differ(t, a, b, "GID types", a->gids, b->gids);
	differ(t, a, b, "firmware versions", a->fw, b->fw);
	differ(t, a, b, "trust modes", a->trust, b->trust);
	differ(t, a, b, "priorities with flow control", a->pfc, b->pfc);
	differ(t, a, b, "priorities with ECN", a->ecn, b->ecn);
	/* ports of one card that are one physical port: half of the traffic would go the long way for nothing */
	if (a->fact.sys_image_guid && dp_facts_same_card(&a->fact, &b->fact) && dp_facts_same_port(&a->fact, &b->fact))
		tell(t, NAME " and " NAME ": may be one physical port%s", OF(a), OF(b),
		     strcmp(a->pci.path, b->pci.path) ? " in two slots (Socket Direct)" : "");
	else if (a->fact.sys_image_guid != b->fact.sys_image_guid && a->fact.sys_image_guid && b->fact.sys_image_guid)
		tell(t,
		     NAME " and " NAME ": two cards: nothing orders what both write into memory, and a flag may be "
			  "seen before data of the other card",
		     OF(a), OF(b));
}

/* split: as ports of a bond, if it is one */
static void look_at_port(struct teller *t, const struct dp_topo_port *p, bool split)
{
	if (!p->fact.active)
		tell(t, NAME ": not active (%s)", OF(p), p->state);
	if (p->fact.kind != DP_PORT_PHYSICAL)
		tell(t, NAME ": is %s", OF(p), dp_port_kind_text(p->fact.kind));
	if (p->lag[0] && !split)
		tell(t,
		     NAME ": a bond of %s: one device for several ports, each queue pair on one of them; a group of "
			  NAME "::1, " NAME "::2 and so on, or lag = true, spreads them",
		     OF(p), p->lag, OF(p), OF(p));
	if (p->node_missing)
		tell(t,
		     NAME ": /dev/infiniband/%s is missing: the device cannot be opened here (in a container, give it, "
			  "too)",
		     OF(p), p->uverbs);
}

/* Functions of one card share its link. */
static bool same_slot(const struct dp_topo_port *a, const struct dp_topo_port *b)
{
	size_t n = strlen(a->pci.path);

	return n && n == strlen(b->pci.path) && !strncmp(a->pci.path, b->pci.path, n - 1); /* but for the function */
}

static void look_at_link(struct teller *t, const struct dp_topo_port *const *ports, int n)
{
	for (int i = 0; i < n; i++) {
		double sum = 0;
		bool first = true;
		int sharing = 0;

		for (int j = 0; j < n; j++) {
			if (!same_slot(ports[i], ports[j]))
				continue;
			first &= j >= i;
			sum += ports[j]->gbit;
			sharing++;
		}
		if (first && sharing > 1 && ports[i]->pci.gbit > 0 && ports[i]->pci.gbit < sum)
			tell(t,
			     NAME ": the PCIe link of its card (%s, %.0f Gb/s) cannot carry its %d ports (%.0f Gb/s)",
			     OF(ports[i]), ports[i]->pci.link, ports[i]->pci.gbit, sharing, sum);
	}
}

int dp_group_remarks(const struct dp_topo *t, const struct dp_port_group *g, const char *prefix, FILE *f)
{
	const struct dp_topo_port *ports[DP_MAX_RAILS];
	struct teller teller = { .prefix = prefix, .f = f };
	int n = 0;

	for (int i = 0; i < g->nports; i++) {
		const struct dp_topo_port *p = dp_topo_port(t, g->ports[i].dev, g->ports[i].port);
		bool seen = false;

		for (int k = 0; k < n; k++)
			seen |= ports[k] == p;
		if (!p || seen)
			continue;
		ports[n++] = p;
		look_at_port(&teller, p, g->ports[i].lag);
	}
	for (int i = 1; i < n; i++)
		compare(&teller, ports[0], ports[i]);
	look_at_link(&teller, ports, n);
	return teller.n;
}

static void look_at_memlock(struct teller *t)
{
	struct rlimit l;

	if (!getrlimit(RLIMIT_MEMLOCK, &l) && l.rlim_cur != RLIM_INFINITY)
		tell(t, "ulimit -l is %llu KiB: each registration counts against it once for each port of the group",
		     (unsigned long long)l.rlim_cur / 1024);
}

static void look_for_socket_direct(struct teller *t, const struct dp_topo *topo, size_t i)
{
	const struct dp_topo_port *a = &topo->ports[i];

	for (size_t k = i + 1; k < topo->nports; k++) {
		const struct dp_topo_port *b = &topo->ports[k];

		if (a->fact.kind != DP_PORT_PHYSICAL || b->fact.kind != DP_PORT_PHYSICAL || same_slot(a, b))
			continue;
		if (a->fact.sys_image_guid && dp_facts_same_card(&a->fact, &b->fact) &&
		    dp_facts_same_port(&a->fact, &b->fact))
			tell(t, NAME " and " NAME ": one physical port in two slots, it seems (Socket Direct)", OF(a),
			     OF(b));
	}
}

int dp_host_remarks(const struct dp_topo *t, const struct dp_config *cfg, const char *sysfs, FILE *f)
{
	struct teller teller = { .prefix = "  ", .f = f };

	for (size_t i = 0; i < t->nports; i++) {
		const struct dp_topo_port *p = &t->ports[i];

		if ((p->lag[0] || p->node_missing) && !dp_config_has_port(cfg, p->fact.dev, p->fact.port))
			look_at_port(&teller, p, false);
		look_for_socket_direct(&teller, t, i);
	}
	if (!sysfs && t->nports)
		look_at_memlock(&teller);
	return teller.n;
}

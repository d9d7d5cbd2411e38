// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#define _GNU_SOURCE /* strverscmp */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "group.h"
#include "ports.h"

static int by_name(const void *pa, const void *pb)
{
	const struct dp_port_fact *a = pa, *b = pb;
	int cmp = strverscmp(a->dev, b->dev);

	return cmp ? cmp : a->port - b->port;
}

const char *dp_port_kind_text(enum dp_port_kind kind)
{
	switch (kind) {
	case DP_PORT_VF:
		return "a virtual function";
	case DP_PORT_SF:
		return "a sub-function";
	case DP_PORT_REPRESENTOR:
		return "a representor";
	case DP_PORT_MANAGEMENT:
		return "a management function";
	default:
		return "physical";
	}
}

static bool usable(const struct dp_port_fact *f)
{
	return f->active && f->kind == DP_PORT_PHYSICAL && f->sys_image_guid;
}

bool dp_facts_same_card(const struct dp_port_fact *a, const struct dp_port_fact *b)
{
	return a->sys_image_guid == b->sys_image_guid && a->ethernet == b->ethernet;
}

bool dp_facts_same_port(const struct dp_port_fact *a, const struct dp_port_fact *b)
{
	if (a->phys_port[0] && b->phys_port[0] && !strcmp(a->phys_switch, b->phys_switch))
		return !strcmp(a->phys_port, b->phys_port);
	if (!strcmp(a->dev, b->dev))
		return a->port == b->port;
	return a->port == b->port && (a->pci_function < 0 || a->pci_function == b->pci_function);
}

static void say(char *why, size_t len, const struct dp_port_fact *f, const char *text, const char *other)
{
	size_t at = strlen(why);

	if (at < len)
		snprintf(why + at, len - at, "%s%s:%d %s%s", at ? ", " : "", f->dev, f->port, text, other);
}

/* The reason that f, which leads no group, is alone. */
static void say_why_not(const struct dp_port_fact *facts, size_t n, const struct dp_port_fact *f, char *why, size_t len)
{
	const struct dp_port_fact *twin = NULL;

	for (const struct dp_port_fact *o = facts; o < facts + n && !twin; o++)
		if (o != f && usable(o) && dp_facts_same_card(o, f))
			twin = o;
	if (f->kind != DP_PORT_PHYSICAL)
		say(why, len, f, "is ", dp_port_kind_text(f->kind));
	else if (!f->active)
		say(why, len, f, "is not active", "");
	else if (!f->sys_image_guid)
		say(why, len, f, "does not tell its card", "");
	else if (f->lag_ports)
		say(why, len, f, "is a bond, whose ports are used with lag = true, or when a file names them", "");
	else if (twin)
		say(why, len, f, "may be the same physical port as ", twin->dev);
	else
		say(why, len, f, "is alone on its card", "");
}

/* Fills g with f and what belongs to it. */
static void gather(struct dp_port_group *g, const struct dp_port_fact *facts, size_t n, const struct dp_port_fact *f)
{
	const struct dp_port_fact *in[DP_MAX_RAILS];

	for (const struct dp_port_fact *o = f; o < facts + n && g->nports < DP_MAX_RAILS; o++) {
		struct dp_port_name *p = &g->ports[g->nports];
		bool known = !usable(o) || !dp_facts_same_card(o, f);

		for (int i = 0; i < g->nports && !known; i++)
			known = dp_facts_same_port(in[i], o);
		if (known)
			continue;
		memcpy(p->dev, o->dev, sizeof(p->dev));
		p->port = o->port;
		p->gid_index = -1;
		in[g->nports++] = o;
	}
}

/* The same with the physical ports of a bond. */
static void gather_lag(struct dp_port_group *g, const struct dp_port_fact *f)
{
	for (int i = 1; i <= f->lag_ports && g->nports < DP_MAX_RAILS; i++) {
		struct dp_port_name *p = &g->ports[g->nports++];

		memcpy(p->dev, f->dev, sizeof(p->dev));
		p->port = f->port;
		p->gid_index = -1;
		p->lag = i;
	}
}

int dp_groups_from_facts(struct dp_config *cfg, struct dp_port_fact *facts, size_t n, char *why, size_t len)
{
	int before = cfg->ngroups, wrong_weights = 0;

	if (len)
		why[0] = '\0';
	qsort(facts, n, sizeof(*facts), by_name);
	for (size_t i = 0; i < n; i++) {
		const struct dp_port_fact *f = &facts[i];
		bool lag = cfg->lag && f->lag_ports > 1, first = usable(f);
		struct dp_port_group g = { .gpu = -1 }, *dst;

		for (size_t j = 0; j < i && first && !lag; j++)
			first = !usable(&facts[j]) || !dp_facts_same_card(&facts[j], f);
		if (!first)
			continue;
		if (lag)
			gather_lag(&g, f);
		else
			gather(&g, facts, n, f);
		if (g.nports < 2)
			continue;
		if (cfg->weights == DP_WEIGHTS_FIXED && cfg->nweights != g.nports) {
			wrong_weights = g.nports;
			continue;
		}
		dst = dp_group_new(cfg);
		if (!dst) {
			snprintf(why, len, "out of memory");
			return -ENOMEM;
		}
		*dst = g;
	}
	if (cfg->ngroups > before)
		return cfg->ngroups - before;
	if (wrong_weights) {
		snprintf(why, len, "there are %d weights, but the card has %d ports", cfg->nweights, wrong_weights);
		return 0;
	}
	if (!n)
		snprintf(why, len, "no RDMA device");
	for (size_t i = 0; i < n; i++)
		say_why_not(facts, n, &facts[i], why, len);
	return 0;
}

int dp_groups_from_card(struct dp_config *cfg, const char *sysfs, char *why, size_t len)
{
	struct dp_port_fact *facts;
	size_t n;
	int ret = dp_port_facts_read(sysfs, &facts, &n);

	if (ret) {
		snprintf(why, len, "%s/class/infiniband: %s", sysfs ? sysfs : "/sys",
			 ret == -ENOENT ? "no RDMA device" : strerror(-ret));
		return ret;
	}
	ret = dp_groups_from_facts(cfg, facts, n, why, len);
	free(facts);
	if (ret < 0)
		return ret;
	return ret ? 0 : -ENOENT;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Which ports each GPU should have: those of the nearest cards, shared out among GPUs that have the same ones near. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "ports.h"
#include "tool.h"

#define MAX_CARDS 64

/* Ports of one card that are different physical ports, as indices into the topology; of a bond the same one several times. */
struct card {
	int nports;
	bool bond;
	size_t port[DP_MAX_RAILS];
};

/* The cards near one GPU, as bits. */
struct near {
	uint64_t cards;
	enum dp_distance distance;
	bool done;
	bool grouped; /* proposed to have a group */
};

static int find_cards(const struct dp_topo *t, struct card *cards)
{
	int n = 0;

	for (size_t i = 0; i < t->nports; i++) {
		const struct dp_topo_port *p = &t->ports[i];
		bool same = false;
		int c;

		if (!dp_topo_usable(p))
			continue;
		for (c = 0; c < n; c++)
			if (!p->fact.lag_ports && !cards[c].bond && p->fact.sys_image_guid &&
			    dp_facts_same_card(&t->ports[cards[c].port[0]].fact, &p->fact))
				break;
		if (c == MAX_CARDS)
			continue;
		for (int k = 0; c < n && k < cards[c].nports; k++)
			same |= dp_facts_same_port(&t->ports[cards[c].port[k]].fact, &p->fact);
		if (same || (c < n && cards[c].nports == DP_MAX_RAILS))
			continue;
		cards[c].port[cards[c].nports++] = i;
		cards[c].bond = p->fact.lag_ports;
		while (cards[c].nports < p->fact.lag_ports && cards[c].nports < DP_MAX_RAILS)
			cards[c].port[cards[c].nports++] = i;
		n += c == n;
	}
	return n;
}

static struct near look_around(const struct dp_topo *t, const struct dp_topo_gpu *gpu, const struct card *cards, int n)
{
	struct near near = { .distance = DP_FAR };

	for (int c = 0; c < n; c++) {
		enum dp_distance d = dp_topo_distance(&gpu->pci, &t->ports[cards[c].port[0]].pci);

		if (d > near.distance || d == DP_FAR)
			continue;
		if (d < near.distance)
			near.cards = 0;
		near.distance = d;
		near.cards |= UINT64_C(1) << c;
	}
	return near;
}

static void put_ports(const struct dp_topo *t, const struct card *cards, const int *list, int n, FILE *f)
{
	int left = DP_MAX_RAILS;
	char name[DP_PORT_TEXT];

	fputs("ports = [", f);
	for (int i = 0; i < n; i++)
		for (int k = 0; k < cards[list[i]].nports && left; k++, left--) {
			const struct dp_port_fact *p = &t->ports[cards[list[i]].port[k]].fact;

			fprintf(f, "%s \"%s\"", left < DP_MAX_RAILS ? "," : "",
				dp_port_text(p->dev, p->port, cards[list[i]].bond ? k + 1 : 0, name));
		}
	fputs(" ];", f);
}

static void put_gpus(const size_t *gpus, int n, FILE *f)
{
	fprintf(f, "\t{ gpu = %s", n > 1 ? "[ " : "");
	for (int i = 0; i < n; i++)
		fprintf(f, "%s%zu", i ? ", " : "", gpus[i]);
	fputs(n > 1 ? " ]; " : "; ", f);
}

static int count_ports(const struct card *cards, const int *list, int n)
{
	int ports = 0;

	for (int i = 0; i < n; i++)
		ports += cards[list[i]].nports;
	return ports;
}

struct out {
	FILE *f;
	int entries;
};

static void begin_entry(struct out *o)
{
	fputs(o->entries++ ? ",\n" : "gpus = (\n", o->f);
}

/* The GPUs that have the same cards near, and these cards. Whether that makes groups. */
static bool share_out(const struct dp_topo *t, const struct card *cards, const size_t *gpus, int ngpus, const int *list,
		      int n, struct out *o)
{
	bool own = n >= ngpus;

	for (int i = 0; own && i < ngpus; i++)
		own = count_ports(cards, list + i * n / ngpus, (i + 1) * n / ngpus - i * n / ngpus) >= 2;
	for (int i = 0; own && i < ngpus; i++) {
		begin_entry(o);
		put_gpus(&gpus[i], 1, o->f);
		put_ports(t, cards, list + i * n / ngpus, (i + 1) * n / ngpus - i * n / ngpus, o->f);
		fputs(" }", o->f);
	}
	if (own)
		return true;
	if (count_ports(cards, list, n) < 2)
		return false;
	begin_entry(o);
	put_gpus(gpus, ngpus, o->f);
	put_ports(t, cards, list, n, o->f);
	fputs(ngpus > 1 ? " rotate = true; }" : " }", o->f);
	return true;
}

static void for_gpus(const struct dp_topo *t, const struct card *cards, int n, struct near *near, struct out *o)
{
	size_t *gpus = calloc(t->ngpus, sizeof(*gpus));
	int list[MAX_CARDS];

	for (size_t i = 0; gpus && i < t->ngpus; i++) {
		int ngpus = 0, nlist = 0;

		if (near[i].done || !near[i].cards)
			continue;
		for (size_t j = i; j < t->ngpus; j++)
			if (near[j].cards == near[i].cards && near[j].distance == near[i].distance) {
				near[j].done = true;
				gpus[ngpus++] = j;
			}
		for (int c = 0; c < n; c++)
			if (near[i].cards >> c & 1)
				list[nlist++] = c;
		if (!share_out(t, cards, gpus, ngpus, list, nlist, o))
			continue;
		for (int k = 0; k < ngpus; k++)
			near[gpus[k]].grouped = true;
	}
	free(gpus);
}

int dp_propose(const struct dp_topo *t, FILE *f)
{
	struct card *cards = calloc(MAX_CARDS, sizeof(*cards));
	struct near *near = calloc(t->ngpus + 1, sizeof(*near));
	struct out o = { .f = f };
	int n, ret = 0;

	if (!cards || !near) {
		ret = -ENOMEM;
		goto out;
	}
	n = find_cards(t, cards);
	for (size_t i = 0; i < t->ngpus; i++)
		near[i] = look_around(t, &t->gpus[i], cards, n);
	if (t->ngpus)
		for_gpus(t, cards, n, near, &o);
	for (int c = 0; !t->ngpus && c < n; c++) {
		if (cards[c].nports < 2)
			continue;
		begin_entry(&o);
		fputs("\t{ ", f);
		put_ports(t, cards, &c, 1, f);
		fputs(" }", f);
	}
	fputs(o.entries ? "\n);\n" : "// no two ports that could be used together\n", f);
	for (size_t i = 0; i < t->ngpus; i++)
		if (!near[i].grouped)
			fprintf(f, "// GPU %zu: there are no two ports near it\n", i);
out:
	free(cards);
	free(near);
	return ret;
}

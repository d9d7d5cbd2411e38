// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "ports.h"

#define BLANKS " \t"

/* Reads a decimal number of at most four digits up to the end of the text or a colon. */
static const char *small_number(const char *s, int *v)
{
	int digits = 0;

	for (*v = 0; isdigit((unsigned char)*s); s++) {
		if (++digits > 4)
			return NULL;
		*v = *v * 10 + (*s - '0');
	}
	return digits && (*s == ':' || !*s) ? s : NULL;
}

int dp_port_parse(const char *text, struct dp_port_name *port, char *why, size_t len)
{
	size_t dev = strcspn(text, ":");
	const char *s = text + dev;

	if (!dev || dev >= DP_DEV_NAME || strcspn(text, BLANKS ",;/\"") != strlen(text))
		goto bad;
	for (const char *c = text; *c; c++)
		if (*c < ' ' || *c > '~')
			goto bad;
	memset(port, 0, sizeof(*port));
	memcpy(port->dev, text, dev);
	port->port = 1;
	port->gid_index = -1;
	if (*s) {
		s = small_number(s + 1, &port->port);
		if (!s)
			goto bad;
		if (port->port < 1 || port->port > 255) {
			snprintf(why, len, "\"%s\": port number %d is not in 1..255", text, port->port);
			return -EINVAL;
		}
	}
	if (*s && s[1] == ':') { /* a bond's port, and any GID */
		s++;
	} else if (*s) {
		s = small_number(s + 1, &port->gid_index);
		if (!s)
			goto bad;
		if (port->gid_index > 255) {
			snprintf(why, len, "\"%s\": GID index %d is not in 0..255", text, port->gid_index);
			return -EINVAL;
		}
	}
	if (*s) {
		s = small_number(s + 1, &port->lag);
		if (!s || *s)
			goto bad;
		if (port->lag < 1 || port->lag > 255) {
			snprintf(why, len, "\"%s\": port %d of a bond is not in 1..255", text, port->lag);
			return -EINVAL;
		}
	}
	return 0;
bad:
	snprintf(why, len, "\"%s\" is not a port (device:number, device:number:gid_index or "
		 "device:number:gid_index:lag_port, as mlx5_0:1 or mlx5_bond_0:1::2)", text);
	return -EINVAL;
}

const char *dp_port_text(const char *dev, int port, int lag, char buf[DP_PORT_TEXT])
{
	if (lag)
		snprintf(buf, DP_PORT_TEXT, "%s:%d::%d", dev, port, lag);
	else
		snprintf(buf, DP_PORT_TEXT, "%s:%d", dev, port);
	return buf;
}

int dp_group_add_port(struct dp_port_group *g, const char *text, char *why, size_t len)
{
	struct dp_port_name port;
	char name[DP_PORT_TEXT];
	int ret = dp_port_parse(text, &port, why, len);

	if (ret)
		return ret;
	for (int i = 0; i < g->nports; i++) {
		if (g->ports[i].port != port.port || strcmp(g->ports[i].dev, port.dev))
			continue;
		if (g->ports[i].lag && port.lag && g->ports[i].lag != port.lag)
			continue;
		snprintf(why, len, "port %s is twice in one group", dp_port_text(port.dev, port.port, port.lag, name));
		return -EINVAL;
	}
	if (g->nports == DP_MAX_RAILS) {
		snprintf(why, len, "more than %d ports in one group", DP_MAX_RAILS);
		return -EINVAL;
	}
	g->ports[g->nports++] = port;
	return 0;
}

int dp_group_check(const struct dp_port_group *g, char *why, size_t len)
{
	if (g->nports >= 2)
		return 0;
	if (g->nports)
		snprintf(why, len, "only one port (%s:%d) in a group: a group has at least two, and a port in no "
			 "group is used alone", g->ports[0].dev, g->ports[0].port);
	else
		snprintf(why, len, "no port in a group");
	return -EINVAL;
}

bool dp_pci_canonical(const char *text, char out[24])
{
	unsigned domain = 0, bus, dev, fn;
	int end = -1;

	if (strspn(text, "0123456789abcdefABCDEF:.") != strlen(text) || strlen(text) > 16)
		return false;
	if (sscanf(text, "%8x:%2x:%2x.%1x%n", &domain, &bus, &dev, &fn, &end) != 4 || text[end]) {
		domain = 0;
		end = -1;
		if (sscanf(text, "%2x:%2x.%1x%n", &bus, &dev, &fn, &end) != 3 || text[end])
			return false;
	}
	if (dev > 31 || fn > 7)
		return false;
	snprintf(out, 24, "%04x:%02x:%02x.%x", domain, bus, dev, fn);
	return true;
}

static bool is_uuid(const char *text)
{
	size_t prefix = !strncasecmp(text, "GPU-", 4) || !strncasecmp(text, "MIG-", 4) ? 4 : 0;

	return prefix && text[prefix] && strspn(text + prefix, "0123456789abcdefABCDEF-") == strlen(text + prefix);
}

bool dp_uuid_fits(const char *abbreviated, const char *uuid)
{
	return *uuid && !strncasecmp(abbreviated, uuid, strlen(abbreviated));
}

int dp_gpu_parse(const char *text, int *index, char *name, size_t size, char *why, size_t len)
{
	char pci[24];

	name[0] = '\0';
	*index = -1;
	if (*text && strlen(text) <= 5 && strspn(text, "0123456789") == strlen(text)) {
		*index = atoi(text);
		return 0;
	}
	if (strlen(text) < size && (dp_pci_canonical(text, pci) || is_uuid(text))) {
		strcpy(name, text);
		return 0;
	}
	snprintf(why, len, "\"%s\" is not a GPU (an index as 0, a PCI address as 0000:9b:00.0, or a UUID as "
		 "GPU-...)", text);
	return -EINVAL;
}

bool dp_gpu_same(const char *a, const char *b)
{
	char pa[24], pb[24];

	if (dp_pci_canonical(a, pa) && dp_pci_canonical(b, pb))
		return !strcmp(pa, pb);
	return !strcasecmp(a, b);
}

struct dp_port_group *dp_group_new(struct dp_config *cfg)
{
	struct dp_port_group *g = realloc(cfg->groups, ((size_t)cfg->ngroups + 1) * sizeof(*g));

	if (!g)
		return NULL;
	cfg->groups = g;
	g += cfg->ngroups++;
	memset(g, 0, sizeof(*g));
	g->gpu = -1;
	return g;
}

void dp_groups_clear(struct dp_config *cfg)
{
	free(cfg->groups);
	cfg->groups = NULL;
	cfg->ngroups = 0;
	cfg->rotated = false;
}

static char *trim(char *s)
{
	size_t n;

	s += strspn(s, BLANKS);
	for (n = strlen(s); n && strchr(BLANKS, s[n - 1]);)
		s[--n] = '\0';
	return s;
}

int dp_groups_parse(struct dp_config *cfg, const char *text, char *why, size_t len)
{
	char *copy = strdup(text), *groups = copy, *ports, *port;
	struct dp_port_group *g;
	int ret = 0;

	dp_groups_clear(cfg);
	if (!copy)
		goto nomem;
	while (!ret && (ports = strsep(&groups, ";"))) {
		ports = trim(ports);
		if (!*ports && !groups) /* a semicolon at the end, or nothing at all */
			break;
		g = dp_group_new(cfg);
		if (!g)
			goto nomem;
		while (!ret && (port = strsep(&ports, ",")))
			ret = dp_group_add_port(g, trim(port), why, len);
		if (!ret)
			ret = dp_group_check(g, why, len);
	}
	goto out;
nomem:
	snprintf(why, len, "out of memory");
	ret = -ENOMEM;
out:
	if (ret)
		dp_groups_clear(cfg);
	free(copy);
	return ret;
}

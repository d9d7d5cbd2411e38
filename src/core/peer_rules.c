// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include "peer_rules.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct rule {
	uint8_t addr[16];
	unsigned bits; /* of addr that have to be the same */
	enum dp_ordering ordering;
};

/* ADDRESS or ADDRESS/BITS; false: it is neither. */
static bool parse_prefix(const char *text, size_t n, struct rule *r)
{
	char one[INET6_ADDRSTRLEN + sizeof("/128")], *slash, *end;
	unsigned most = 128, before = 0;
	long bits;

	if (n >= sizeof(one))
		return false;
	memcpy(one, text, n);
	one[n] = '\0';
	slash = strchr(one, '/');
	if (slash)
		*slash++ = '\0';
	if (inet_pton(AF_INET, one, r->addr + 12) == 1) {
		memset(r->addr, 0, 10);
		memset(r->addr + 10, 0xff, 2);
		most = 32;
		before = 96;
	} else if (inet_pton(AF_INET6, one, r->addr) != 1) {
		return false;
	}
	r->bits = before + most;
	if (!slash)
		return true;
	bits = isdigit((unsigned char)*slash) ? strtol(slash, &end, 10) : -1;
	if (bits < 0 || bits > (long)most || *end)
		return false;
	r->bits = before + (unsigned)bits;
	return true;
}

static bool parse_ordering(const char *text, size_t n, enum dp_ordering *ordering)
{
	static const char *const names[] = { "rc", "strict", "signal", "relaxed" };

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strlen(names[i]) == n && !strncasecmp(names[i], text, n)) {
			*ordering = (enum dp_ordering)i;
			return true;
		}
	return false;
}

/* The rule at *text, which then points behind it. 0; -ENOENT: there is none any more; or -EINVAL and why. */
static int next_rule(const char **text, struct rule *r, char *why, size_t len)
{
	const char *at = *text, *mode;
	size_t all, addr, n;

	at += strspn(at, " \t");
	if (!*at)
		return -ENOENT;
	all = strcspn(at, ",");
	addr = strcspn(at, " \t,");
	mode = at + addr + strspn(at + addr, " \t");
	n = strcspn(mode, " \t,");
	if (!parse_prefix(at, addr, r)) {
		snprintf(why, len, "\"%.*s\" is not an IP address, perhaps with /BITS", (int)addr, at);
		return -EINVAL;
	}
	if (!parse_ordering(mode, n, &r->ordering) || mode[n + strspn(mode + n, " \t")] != at[all]) {
		snprintf(why, len, "\"%.*s\": behind the address stands one of rc, strict, signal, relaxed", (int)all, at);
		return -EINVAL;
	}
	*text = at + all + (at[all] == ',');
	return 0;
}

int dp_peer_rules_check(const char *text, char *why, size_t len)
{
	struct rule r;
	int ret;

	while (!(ret = next_rule(&text, &r, why, len)))
		;
	return ret == -ENOENT ? 0 : ret;
}

static bool fits(const struct rule *r, const uint8_t gid[16])
{
	unsigned bytes = r->bits / 8, rest = r->bits % 8;

	return !memcmp(r->addr, gid, bytes) && (!rest || !((r->addr[bytes] ^ gid[bytes]) >> (8 - rest)));
}

enum dp_ordering dp_peer_ordering(const char *text, const uint8_t gid[16], enum dp_ordering otherwise)
{
	char why[128];
	struct rule r;

	while (!next_rule(&text, &r, why, sizeof(why)))
		if (fits(&r, gid))
			return r.ordering;
	return otherwise;
}

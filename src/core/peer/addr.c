// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Addresses: from a GID, from a socket, as text, and whether they are ours. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include "internal.h"

int dp_addr_of_gid(struct dp_addr *a, const union ibv_gid *gid, const char *netdev)
{
	struct in6_addr ip;

	memset(a, 0, sizeof(*a));
	memcpy(&ip, gid->raw, sizeof(ip));
	if (IN6_IS_ADDR_V4MAPPED(&ip)) {
		/* no address of one host: 0.x, 224.x and up */
		if (ip.s6_addr[12] == 0 || ip.s6_addr[12] >= 224)
			return -EADDRNOTAVAIL;
		a->family = AF_INET;
		memcpy(a->ip, ip.s6_addr + 12, 4);
		return 0;
	}
	if (IN6_IS_ADDR_UNSPECIFIED(&ip) || IN6_IS_ADDR_MULTICAST(&ip))
		return -EADDRNOTAVAIL;
	a->family = AF_INET6;
	memcpy(a->ip, ip.s6_addr, 16);
	if (IN6_IS_ADDR_LINKLOCAL(&ip)) {
		/* also every GID of an InfiniBand port with the default subnet prefix, which has no netdev */
		a->scope = netdev[0] ? if_nametoindex(netdev) : 0;
		if (!a->scope)
			return -EADDRNOTAVAIL;
	}
	return 0;
}

int dp_addr_of_sa(struct dp_addr *a, const struct sockaddr_storage *sa)
{
	const struct sockaddr_in *v4 = (const void *)sa;
	const struct sockaddr_in6 *v6 = (const void *)sa;

	memset(a, 0, sizeof(*a));
	if (sa->ss_family == AF_INET) {
		a->family = AF_INET;
		memcpy(a->ip, &v4->sin_addr, 4);
	} else if (sa->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
		a->family = AF_INET;
		memcpy(a->ip, v6->sin6_addr.s6_addr + 12, 4);
	} else if (sa->ss_family == AF_INET6) {
		a->family = AF_INET6;
		memcpy(a->ip, &v6->sin6_addr, 16);
		a->scope = IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) ? v6->sin6_scope_id : 0;
	} else {
		return -EAFNOSUPPORT;
	}
	return 0;
}

socklen_t dp_addr_to_sa(const struct dp_addr *a, uint16_t port, struct sockaddr_storage *sa)
{
	struct sockaddr_in *v4 = (void *)sa;
	struct sockaddr_in6 *v6 = (void *)sa;

	memset(sa, 0, sizeof(*sa));
	sa->ss_family = (sa_family_t)a->family;
	if (a->family == AF_INET) {
		v4->sin_port = htons(port);
		memcpy(&v4->sin_addr, a->ip, 4);
		return sizeof(*v4);
	}
	v6->sin6_port = htons(port);
	v6->sin6_scope_id = a->scope;
	memcpy(&v6->sin6_addr, a->ip, 16);
	return sizeof(*v6);
}

bool dp_addr_equal(const struct dp_addr *a, const struct dp_addr *b)
{
	return a->family == b->family && a->scope == b->scope && !memcmp(a->ip, b->ip, sizeof(a->ip));
}

const char *dp_addr_text(const struct dp_addr *a, char buf[64])
{
	if (!a->family || !inet_ntop(a->family, a->ip, buf, 64))
		strcpy(buf, "?");
	return buf;
}

/* The netdev of ours that has the address, into netdev if not NULL. */
static bool find_netdev(const struct dp_addr *a, char *netdev)
{
	struct ifaddrs *all, *i;
	bool found = false;

	if (getifaddrs(&all))
		return false;
	for (i = all; i && !found; i = i->ifa_next) {
		struct sockaddr_storage sa = { 0 };
		struct dp_addr b;

		if (!i->ifa_addr)
			continue;
		if (i->ifa_addr->sa_family == AF_INET)
			memcpy(&sa, i->ifa_addr, sizeof(struct sockaddr_in));
		else if (i->ifa_addr->sa_family == AF_INET6)
			memcpy(&sa, i->ifa_addr, sizeof(struct sockaddr_in6));
		found = !dp_addr_of_sa(&b, &sa) && dp_addr_equal(a, &b);
		if (found && netdev)
			snprintf(netdev, IFNAMSIZ, "%s", i->ifa_name);
	}
	freeifaddrs(all);
	return found;
}

bool dp_addr_local(const struct dp_addr *a)
{
	return (a->family == AF_INET && a->ip[0] == 127) || find_netdev(a, NULL);
}

void dp_addr_netdev(const struct dp_addr *a, char netdev[IFNAMSIZ])
{
	netdev[0] = '\0';
	find_netdev(a, netdev);
}

bool dp_addr_may_log(const struct dp_addr *a)
{
	struct dp_log_slot *s = dp_peering->logged, *oldest = s;
	uint64_t now = dp_now();

	for (size_t i = 0; i < sizeof(dp_peering->logged) / sizeof(*s); i++) {
		if (s[i].until > now && dp_addr_equal(&s[i].addr, a))
			return false;
		if (s[i].until < oldest->until)
			oldest = &s[i];
	}
	/* a flood from many addresses: the table is full of younger entries, and gets one line a second */
	if (oldest->until > now && dp_peering->log_until > now)
		return false;
	dp_peering->log_until = now + DP_SEC;
	oldest->addr = *a;
	oldest->until = now + 60 * DP_SEC;
	return true;
}

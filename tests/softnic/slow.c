// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Preloaded with libdualport under --adverse: what its processes tell each other over TCP is late, too, now and then by
 * more than data ever is. Each send() to or from one of its ports waits, so each connection keeps its order; other
 * sockets are left alone. As the seed says: the nth of a process. SOFTNIC_SLOW_COUNT names a file that gets a line with
 * how many were late from each process.
 */
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#define FIRST_PORT 13579u /* the library's defaults */
#define PORTS 16u
#define SHORT_US 500u	  /* seven of eight are late by less than this, */
#define LONG_US 10000u	  /* and the others by up to this */

static _Atomic uint64_t count;
static __typeof__(&send) next;

__attribute__((constructor)) static void find(void)
{
	next = (__typeof__(&send))dlsym(RTLD_NEXT, "send");
}

static uint64_t number(const char *name, uint64_t def)
{
	const char *s = getenv(name);

	return s && *s ? strtoull(s, NULL, 0) : def;
}

static int is_ours(const struct sockaddr_storage *a)
{
	uint64_t first = number("DUALPORT_PEER_PORT", FIRST_PORT), n = number("DUALPORT_PEER_PORTS", PORTS);
	uint16_t port;

	if (a->ss_family == AF_INET)
		port = ntohs(((const struct sockaddr_in *)(const void *)a)->sin_port);
	else if (a->ss_family == AF_INET6)
		port = ntohs(((const struct sockaddr_in6 *)(const void *)a)->sin6_port);
	else
		return 0;
	return port >= first && port - first < n;
}

static int control(int fd)
{
	struct sockaddr_storage a = { 0 };
	socklen_t n = sizeof(a);

	if (!getpeername(fd, (struct sockaddr *)&a, &n) && is_ours(&a))
		return 1;
	n = sizeof(a);
	return !getsockname(fd, (struct sockaddr *)&a, &n) && is_ours(&a);
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

ssize_t send(int fd, const void *buf, size_t len, int flags)
{
	int err = errno;
	uint64_t x;
	long us;

	if (!next)
		find();
	if (control(fd)) {
		x = mix(number("SOFTNIC_SEED", 0) ^ (1 + atomic_fetch_add(&count, 1)) * 0x9e3779b97f4a7c15ull);
		us = (long)((x >> 8) % (x % 8 ? SHORT_US : LONG_US));
		nanosleep(&(struct timespec){ .tv_nsec = 1000 * us }, NULL);
	}
	errno = err;
	return next(fd, buf, len, flags);
}

__attribute__((destructor)) static void tell(void)
{
	const char *path = getenv("SOFTNIC_SLOW_COUNT");
	FILE *f = path && count ? fopen(path, "ae") : NULL;

	if (!f)
		return;
	fprintf(f, "%llu\n", (unsigned long long)count);
	fclose(f);
}

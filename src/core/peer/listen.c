// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Where others reach this process. Every process listens: on the first free port of the well-known range, else on any
 * port, and then it tries the range again each second. So several processes of a host answer in the range, none of them
 * is *the* holder whose stop or death would matter, and a stranger on one port of the range costs that port only. Those
 * outside the range are found through the others (dir.c).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <unistd.h>
#include "internal.h"

#define MAX_BINDS 16

struct dp_listener {
	struct dp_io io;
	struct dp_listener *next;
	bool paused;
};

struct bind_list {
	struct dp_addr addr[MAX_BINDS];
	unsigned n;
	bool any;
};

static void incoming(struct dp_io *io, uint32_t events)
{
	struct dp_listener *l = (struct dp_listener *)io;

	(void)events;
	for (int i = 0; i < 64; i++) {
		struct sockaddr_storage sa;
		socklen_t len = sizeof(sa);
		struct dp_addr a;
		int fd = accept4(io->fd, (struct sockaddr *)&sa, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0) {
			/* out of descriptors: readable for ever; ask again at the next tick instead of spinning */
			if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
				l->paused = true;
				dp_io_mod(io, 0);
			}
			return;
		}
		if (dp_addr_of_sa(&a, &sa))
			close(fd);
		else
			dp_conn_accept(fd, &a);
	}
}

static int parse_binds(struct bind_list *list)
{
	char text[sizeof(dp_cfg.peer_bind)], *save, *word;

	memset(list, 0, sizeof(*list));
	snprintf(text, sizeof(text), "%s", dp_cfg.peer_bind);
	for (word = strtok_r(text, ", \t", &save); word; word = strtok_r(NULL, ", \t", &save)) {
		struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *ai;
		struct sockaddr_storage sa = { 0 };
		bool good = list->n < MAX_BINDS && !getaddrinfo(word, NULL, &hints, &ai);

		if (good) {
			memcpy(&sa, ai->ai_addr, ai->ai_addrlen);
			freeaddrinfo(ai);
			good = !dp_addr_of_sa(&list->addr[list->n++], &sa);
		}
		if (!good) {
			dp_warn("peering is off: peer_bind: %s is no address to listen on", word);
			return -EINVAL;
		}
	}
	list->any = !list->n;
	return 0;
}

static int listen_at(int family, const struct sockaddr_storage *sa, socklen_t len)
{
	int one = 1, zero = 0, err, fd = dp_fd_own(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));

	if (fd < 0)
		return -errno;
	/* connections of a former process in TIME_WAIT do not count; a listener does */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
	if (!bind(fd, (const struct sockaddr *)sa, len) && !listen(fd, 1024))
		return fd;
	err = -errno;
	dp_fd_close(fd);
	return err;
}

static int listen_one(const struct dp_addr *a, uint16_t port)
{
	struct sockaddr_storage sa;
	socklen_t len;
	int fd;

	if (a) {
		len = dp_addr_to_sa(a, port, &sa);
		return listen_at(a->family, &sa, len);
	}
	len = dp_addr_to_sa(&(struct dp_addr){ .family = AF_INET6 }, port, &sa);
	fd = listen_at(AF_INET6, &sa, len);
	if (fd != -EAFNOSUPPORT && fd != -EADDRNOTAVAIL)
		return fd;
	len = dp_addr_to_sa(&(struct dp_addr){ .family = AF_INET }, port, &sa); /* no IPv6 here */
	return listen_at(AF_INET, &sa, len);
}

static uint16_t port_of(int fd)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);

	if (getsockname(fd, (struct sockaddr *)&sa, &len))
		return 0;
	return ntohs(sa.ss_family == AF_INET ? ((struct sockaddr_in *)&sa)->sin_port :
					       ((struct sockaddr_in6 *)&sa)->sin6_port);
}

/* Listens on port (0: any) of all addresses, or of none. The port, or -errno. */
static int listen_all(const struct bind_list *list, uint16_t port)
{
	struct dp_listener *made = NULL, *l;
	int err = 0;

	for (unsigned i = 0; i < (list->any ? 1 : list->n) && !err; i++) {
		int fd = listen_one(list->any ? NULL : &list->addr[i], port);

		l = fd < 0 ? NULL : calloc(1, sizeof(*l));
		if (!l) {
			err = fd < 0 ? fd : -ENOMEM;
			dp_fd_close(fd);
			break;
		}
		l->io = (struct dp_io){ .fd = fd, .fn = incoming };
		l->next = made;
		made = l;
		if (!port)
			port = port_of(fd);
		err = dp_io_add(&l->io, EPOLLIN);
	}
	while ((l = made)) {
		made = l->next;
		if (err) {
			dp_io_close(&l->io);
			free(l);
		} else {
			l->next = dp_peering->listeners;
			dp_peering->listeners = l;
		}
	}
	return err ? err : port;
}

/* 0, or -errno of the last port tried. */
static int try_range(const struct bind_list *list)
{
	int port = -EADDRINUSE;

	for (int i = 0; i < dp_cfg.peer_ports && i < DP_RANGE_MAX && dp_cfg.peer_port + i < 65536; i++) {
		port = listen_all(list, (uint16_t)(dp_cfg.peer_port + i));
		if (port > 0) {
			dp_peering->range_port = (uint16_t)port;
			return 0;
		}
		if (port != -EADDRINUSE)
			break;
	}
	return port;
}

int dp_listen_start(void)
{
	struct bind_list list;
	int err = parse_binds(&list), port;

	if (err)
		return err;
	if (dp_cfg.peer_port > 0 && !try_range(&list)) {
		dp_peering->port = dp_peering->range_port;
		return 0;
	}
	port = -EADDRINUSE;
	/* a port that the first address gave may be taken on another */
	for (int i = 0; i < 16 && port == -EADDRINUSE; i++)
		port = listen_all(&list, 0);
	if (port < 0) {
		dp_warn("peering is off: cannot listen on %s: %s", list.any ? "any address" : dp_cfg.peer_bind,
			strerror(-port));
		return port;
	}
	dp_peering->port = (uint16_t)port;
	return 0;
}

void dp_listen_tick(void)
{
	struct bind_list list;

	for (struct dp_listener *l = dp_peering->listeners; l; l = l->next) {
		if (l->paused)
			dp_io_mod(&l->io, EPOLLIN);
		l->paused = false;
	}
	if (dp_peering->range_port || dp_cfg.peer_port <= 0 || parse_binds(&list) || try_range(&list))
		return;
	dp_dir_publish();
}

void dp_listen_stop(void)
{
	struct dp_listener *l;

	while ((l = dp_peering->listeners)) {
		dp_peering->listeners = l->next;
		dp_io_close(&l->io);
		dp_later_free(l);
	}
}

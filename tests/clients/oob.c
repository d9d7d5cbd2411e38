// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "oob.h"

int oob_listen(int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd, one = 1, err;

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 16)) {
		err = -errno;
		close(fd);
		return err;
	}
	return fd;
}

int oob_port(int listen_fd)
{
	struct sockaddr_in a;
	socklen_t len = sizeof(a);

	if (getsockname(listen_fd, (struct sockaddr *)&a, &len))
		return -errno;
	return ntohs(a.sin_port);
}

static void nodelay(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

int oob_accept(int listen_fd)
{
	int fd;

	do {
		fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
	} while (fd < 0 && errno == EINTR);
	if (fd < 0)
		return -errno;
	nodelay(fd);
	return fd;
}

int oob_connect(const char *host, int port, int timeout_ms)
{
	struct addrinfo hint = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *ai;
	struct timespec nap = { .tv_nsec = 50 * 1000 * 1000 };
	char serv[16];
	int fd, err;

	snprintf(serv, sizeof(serv), "%d", port);
	if (getaddrinfo(host, serv, &hint, &ai))
		return -EHOSTUNREACH;
	for (;;) {
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0) {
			err = -errno;
			break;
		}
		if (!connect(fd, ai->ai_addr, ai->ai_addrlen)) {
			nodelay(fd);
			err = fd;
			break;
		}
		err = -errno;
		close(fd);
		if (timeout_ms <= 0)
			break;
		nanosleep(&nap, NULL);
		timeout_ms -= 50;
	}
	freeaddrinfo(ai);
	return err;
}

int oob_send(int fd, const void *buf, size_t len)
{
	const char *p = buf;
	ssize_t n;

	while (len) {
		n = send(fd, p, len, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

int oob_recv(int fd, void *buf, size_t len)
{
	char *p = buf;
	ssize_t n;

	while (len) {
		n = recv(fd, p, len, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			return -ECONNRESET;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

int oob_xchg(int fd, const void *out, void *in, size_t len)
{
	int err = oob_send(fd, out, len);

	return err ? err : oob_recv(fd, in, len);
}

int oob_sync(int fd)
{
	char out = 's', in = 0;
	int err = oob_xchg(fd, &out, &in, 1);

	return err ? err : in == 's' ? 0 : -EPROTO;
}

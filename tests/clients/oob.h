/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef CLIENTS_OOB_H
#define CLIENTS_OOB_H

#include <stddef.h>

/*
 * The clients' own way to find each other: plain TCP (or any stream socket), both ends of one byte order.
 * Functions return 0 or a descriptor, or -errno.
 */
int oob_listen(int port);			/* on the loopback address; port 0 picks one */
int oob_port(int listen_fd);			/* the port that oob_listen got */
int oob_accept(int listen_fd);
int oob_connect(const char *host, int port, int timeout_ms); /* tries again until the timeout */
int oob_send(int fd, const void *buf, size_t len);
int oob_recv(int fd, void *buf, size_t len);	/* -ECONNRESET when the peer is gone */
int oob_xchg(int fd, const void *out, void *in, size_t len);
int oob_sync(int fd);				/* returns once the peer is there too */

#endif

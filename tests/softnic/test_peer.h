/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* A test's other process, and what two processes tell each other over a socket. */
#ifndef SOFTNIC_TEST_PEER_H
#define SOFTNIC_TEST_PEER_H

#include <sys/types.h>

#include "host.h"
#include "test_end.h"

/* Forks before any device is open; fn runs in the child, which then ends. The parent's end of the socket. */
int peer_start(pid_t *pid, void (*fn)(int sock, void *arg), void *arg);
void peer_end(pid_t pid);	/* which must end well */

void tell(int sock, const void *p, size_t n);
void hear(int sock, void *p, size_t n);
void meet(int sock);		/* both are here */

/* Connects one's own end to that of the other process, which calls this, too; gives it in the form that post() takes. */
struct far {
	struct end end;
	struct ibv_mr mr;
};
void far_join(int sock, struct end *e, struct far *f, const struct conn_opts *o);

double seconds(void);

/* The file that all processes under one scripts/softnic share, to look at once a device is open. */
const struct sn_host *shared_host(void);

#endif

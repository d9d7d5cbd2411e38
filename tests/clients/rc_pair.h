/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef CLIENTS_RC_PAIR_H
#define CLIENTS_RC_PAIR_H

#include <stdint.h>

#include "verbs_load.h"

/* One opened port. Owned by the caller; rc_close() frees what rc_open() made. */
struct rc_dev {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_port_attr port;
	union ibv_gid gid;
	uint8_t port_num;
	int gid_index;
	char name[64];
};

/* What the two ends of a connection tell each other; same host, so host byte order. */
struct rc_addr {
	uint32_t qpn, psn;
	uint16_t lid;
	uint8_t mtu, pad;
	uint32_t pad2;
	union ibv_gid gid;
};

/* Zero means: the largest MTU both ports have, timeout 18 (1 s), retry_cnt 7, rnr_retry 7, rd_atomic 8. */
struct rc_opts {
	int mtu, timeout, retry_cnt, rnr_retry, rd_atomic;
	int access;		/* of the QP; 0 means write, read and atomic */
};

/*
 * name NULL: the first device. gid_index < 0: the v4-mapped RoCE entry if there is one, else 0. Prints the cause
 * of a failure; -errno.
 */
int rc_open(struct rc_dev *d, const char *name, int port, int gid_index);
int rc_close(struct rc_dev *d);			/* first error of dealloc_pd and close_device, as -errno */

void rc_addr_of(const struct rc_dev *d, const struct ibv_qp *qp, uint32_t psn, struct rc_addr *a);
int rc_to_init(const struct rc_dev *d, struct ibv_qp *qp, const struct rc_opts *o);
int rc_to_rtr(const struct rc_dev *d, struct ibv_qp *qp, const struct rc_addr *peer, const struct rc_opts *o);
int rc_to_rts(struct ibv_qp *qp, uint32_t psn, const struct rc_opts *o);
int rc_to_state(struct ibv_qp *qp, enum ibv_qp_state st);	/* RESET, ERR, ...: state only */

/* RESET or freshly created to RTS in one go, when the peer's address is known. */
int rc_connect(const struct rc_dev *d, struct ibv_qp *qp, uint32_t psn, const struct rc_addr *peer,
	       const struct rc_opts *o);

/* Polls until one completion came or `ms` passed: 1, 0 or -errno. Yields at first, then sleeps between polls. */
int rc_poll_one(struct ibv_cq *cq, struct ibv_wc *wc, int ms);

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef CLIENTS_EX_H
#define CLIENTS_EX_H

#include <stdbool.h>

#include <infiniband/verbs.h>

/*
 * The extended interfaces behind the plain ones' arguments, so that a client can take either. All of a list goes in one
 * session of ibv_wr_*, and is posted as a whole or not at all.
 */

/* An RC QP that takes whatever ex_post() posts. NULL with errno. */
struct ibv_qp *ex_create_qp(struct ibv_pd *pd, const struct ibv_qp_init_attr *attr);
/* *bad is the first of the list if there is an error. */
int ex_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);

/* An extended CQ; with stamps it tells when something completed, by both clocks. NULL with errno. */
struct ibv_cq *ex_create_cq(struct ibv_context *ctx, int cqe, void *arg, struct ibv_comp_channel *ch, int vector, bool stamps);
/* As ibv_poll_cq; stamp: NULL, or [n], the device's clock. */
int ex_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc, uint64_t *stamp);

/* The same if CLIENTS_EX is set, the plain ones if not. */
struct ibv_qp *any_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int any_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
struct ibv_cq *any_create_cq(struct ibv_context *ctx, int cqe, void *arg, struct ibv_comp_channel *ch, int vector);
int any_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc);

#endif

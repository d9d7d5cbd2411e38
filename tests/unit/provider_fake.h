/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * What tests with a provider of their own share: the program's device "fake0", with one port, in a group with "fake1",
 * and a QP there.
 */
#ifndef UNIT_PROVIDER_FAKE_H
#define UNIT_PROVIDER_FAKE_H

#include "qp.h"

int fake_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr);
const char *fake_device_name(struct ibv_device *dev);
struct ibv_cq *fake_create_cq(struct ibv_context *ctx, int cqe, void *cq_context, struct ibv_comp_channel *ch, int v);

/* The stub, the configuration (mode signal) and the program's context, whose functions the caller fills in. */
void fake_begin(const struct dp_verbs *real, struct verbs_context *program);
/* A record as dp_create_qp() makes it, for a QP that sends into cq; not tracked yet. */
struct dp_qp *fake_qp(struct ibv_qp *qp, struct dp_cq *cq, struct ibv_qp_cap cap);
/* Bonds one that is tracked, over fake0 and fake1, without twins. */
void fake_bond(struct dp_qp *q);

#endif

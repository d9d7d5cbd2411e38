/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * The physical ports of a bond (RoCE LAG): one device with one port, whose queue pairs the driver spreads over them. A
 * queue pair can be pinned to one with mlx5dv_modify_qp_lag_port, which is looked up in the provider's own library.
 */
#ifndef DUALPORT_LAG_H
#define DUALPORT_LAG_H

#include <stdbool.h>
#include <infiniband/verbs.h>

/* Has the provider of ctx no such function? Thread-safe, as all here. */
bool dp_lag_missing(struct ibv_context *ctx);
/*
 * Pins qp, which must be at RTS, to that port of its bond. 0, or -errno: -ENOSYS where the function is missing,
 * -EOPNOTSUPP where the device is no bond.
 */
int dp_lag_pin(struct ibv_qp *qp, int port);
/* What an error of dp_lag_pin() means. Static string. */
const char *dp_lag_error(int err);
/* In a forked child: the lock is free. */
void dp_lag_after_fork(void);

#endif

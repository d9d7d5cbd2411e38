/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* What is done for programs that are known by name. All may be called by any thread. */
#ifndef DUALPORT_NVSHMEM_H
#define DUALPORT_NVSHMEM_H

#include "../preload/verbs.h"

/*
 * The devices that NVSHMEM's IBRC transport is about to see, n of them: with nvshmem.devices, those of its GPU's group,
 * first port first, and no others. Left as they are where that could take away a device that the user or IBRC counts
 * on. list stays one that ibv_free_device_list() takes.
 */
void dp_show_devices(struct ibv_device **list, int *n);

/* The value that NVSHMEM's host library sees of a variable: with nvshmem.force_ibrc, one that chooses IBRC. */
char *dp_nvshmem_env(const char *name, char *value);

/* bypass.c: that object called a function that makes or opens queue pairs past verbs. Said once for each object. */
void dp_bypassed(const char *function, const char *object);

#endif

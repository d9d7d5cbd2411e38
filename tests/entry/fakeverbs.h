/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * A library with libibverbs's hooked functions, their version nodes and nothing behind them: each counts its calls.
 * Built under several names, so that a test sees which copy a call reached.
 */
#ifndef FAKEVERBS_H
#define FAKEVERBS_H

#include <infiniband/verbs.h>

struct ibv_context *fake_open(void);	 /* as set_lib_ops leaves it */
struct ibv_context *fake_open_old(void); /* of a libibverbs that has no verbs_context */

/* Calls of the verb so far, name without ibv_; "alloc_pd@1.0" is the old version of alloc_pd. -1: no such verb. */
int fake_count(const char *verb);

#endif

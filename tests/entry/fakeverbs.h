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

/* A call of a verb that keeps its arguments; ctx is that of its object. */
struct fake_call {
	const char *verb;
	const struct ibv_context *ctx;
	uint64_t arg[6], ret;
};

/* Those since the last fake_forget(), oldest first; no more than FAKE_CALLS are kept. */
#define FAKE_CALLS 64
int fake_calls(struct fake_call out[FAKE_CALLS]);
void fake_forget(void);
void fake_record(const char *verb, const struct ibv_context *ctx, uint64_t ret, const uint64_t arg[6]);

#define FAKE_P(x) ((uint64_t)(uintptr_t)(x))
#define FAKE_RECORD(verb, ctx, ret, ...) fake_record(verb, ctx, ret, (const uint64_t[6]){__VA_ARGS__})

#endif

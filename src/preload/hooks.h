/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* What the files of hooks, and a core that only counts (tests/entry), share. */
#ifndef DUALPORT_HOOKS_H
#define DUALPORT_HOOKS_H

#include "stub.h"

struct inside {
	int delta;
};

static inline struct inside enter(void)
{
	dp_inside(1);
	return (struct inside){1};
}

static inline void leave(struct inside *guard)
{
	dp_inside(-guard->delta);
}

static inline struct ibv_context *dp_ctx_of_context(struct ibv_context *ctx)
{
	return ctx;
}
#define DP_CTX_OF_FN(type)                                                                                            \
	static inline struct ibv_context *dp_ctx_of_##type(struct ibv_##type *o)                                      \
	{                                                                                                             \
		return o ? o->context : NULL;                                                                         \
	}
DP_CTX_OF_FN(pd)
DP_CTX_OF_FN(mr)
DP_CTX_OF_FN(cq)
DP_CTX_OF_FN(qp)
DP_CTX_OF_FN(comp_channel)
#undef DP_CTX_OF_FN

/* The ibv_context of a verb's first argument: DP_CTX_OF(DP_FIRST args) with args as in DP_VERBS_HOOKED. */
#define DP_FIRST(first, ...) first
#define DP_CTX_OF(o)                                                                                                  \
	_Generic((o), struct ibv_context *: dp_ctx_of_context, struct ibv_pd *: dp_ctx_of_pd,                         \
		 struct ibv_mr *: dp_ctx_of_mr, struct ibv_cq *: dp_ctx_of_cq, struct ibv_qp *: dp_ctx_of_qp,         \
		 struct ibv_comp_channel *: dp_ctx_of_comp_channel)(o)

/* Our hook if p is that function of a libmlx5 in a version that we know, else p. */
void *dp_mlx5dv_hook_for(void *p, const char *name);

/* ibv_get_device_list of a libibverbs, as the object that caller lies in is to see it. */
void *dp_device_list_for(void *p, const void *caller);

/* The function of the libmlx5 that made ctx; where that cannot be told, what caller would have got without us. */
void *dp_mlx5dv_find(struct ibv_context *ctx, const char *name, const char *version, const void *caller);
struct dp_elf;
/* The same as dp_mlx5dv_hook_for() for functions that are only watched; elf: the object that p lies in. */
void *dp_mlx5dv_watch_for(void *p, const char *name, const struct dp_elf *elf);

#endif

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* mlx5dv_init_obj hands out a QP's or CQ's memory: from then on the program may bypass verbs; the core must know. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "hooks.h"

#include <errno.h>
#include <string.h>

#include "symtab.h"

/* The provider that made the context is the one to ask. dealloc_mw is a slot that it fills and nobody patches. */
void *dp_mlx5dv_find(struct ibv_context *ctx, const char *name, const char *version, const void *caller)
{
	struct dp_elf elf;
	void *p = NULL;

	if (ctx && ctx->ops.dealloc_mw && dp_elf_of((const void *)ctx->ops.dealloc_mw, &elf))
		p = dp_elf_sym(&elf, name, version);
	return p ? p : dp_guess(name, version, caller);
}

#ifdef HAVE_INFINIBAND_MLX5DV_H

#include <infiniband/mlx5dv.h>

#define NAME "mlx5dv_init_obj"

typedef int (*init_obj_fn)(struct mlx5dv_obj *obj, uint64_t obj_type);

int dp_mlx5dv_init_obj_1_0(struct mlx5dv_obj *obj, uint64_t obj_type);
int dp_mlx5dv_init_obj_1_2(struct mlx5dv_obj *obj, uint64_t obj_type);

static struct ibv_context *context_of(const struct mlx5dv_obj *obj, uint64_t type)
{
	if (type & MLX5DV_OBJ_QP)
		return obj->qp.in->context;
	if (type & MLX5DV_OBJ_CQ)
		return obj->cq.in->context;
	if (type & MLX5DV_OBJ_SRQ)
		return obj->srq.in->context;
	if (type & MLX5DV_OBJ_RWQ)
		return obj->rwq.in->context;
	return NULL;
}

static int init_obj(struct mlx5dv_obj *obj, uint64_t type, const char *version, const void *caller)
{
	const struct dp_core *core = dp_core_get(false);
	struct ibv_qp *qp = type & MLX5DV_OBJ_QP ? obj->qp.in : NULL;
	struct ibv_cq *cq = type & MLX5DV_OBJ_CQ ? obj->cq.in : NULL;
	init_obj_fn fn = (init_obj_fn)dp_mlx5dv_find(context_of(obj, type), NAME, version, caller);
	char name[DP_CALLER_LEN];

	if (core && core->direct_access && (qp || cq)) {
		struct inside guard __attribute__((cleanup(leave), unused)) = enter();

		core->direct_access(qp, cq);
		dp_caller_name(caller, name);
		if (qp && core->bypassed)
			core->bypassed(NAME, name);
	}
	if (fn)
		return fn(obj, type);
	errno = EOPNOTSUPP;
	return EOPNOTSUPP;
}

DP_EXPORT int dp_mlx5dv_init_obj_1_0(struct mlx5dv_obj *obj, uint64_t obj_type)
{
	return init_obj(obj, obj_type, "MLX5_1.0", __builtin_return_address(0));
}

DP_EXPORT int dp_mlx5dv_init_obj_1_2(struct mlx5dv_obj *obj, uint64_t obj_type)
{
	return init_obj(obj, obj_type, "MLX5_1.2", __builtin_return_address(0));
}

/* directives, not code: clang has no symver attribute */
__asm__(".symver dp_mlx5dv_init_obj_1_0, " NAME "@MLX5_1.0");
__asm__(".symver dp_mlx5dv_init_obj_1_2, " NAME "@@MLX5_1.2");

void *dp_mlx5dv_hook_for(void *p, const char *name)
{
	struct dp_elf elf;

	/* this object's own addresses come back for a handle of the whole program */
	if (strcmp(name, NAME))
		return dp_elf_of(p, &elf) ? dp_mlx5dv_watch_for(p, name, &elf) : p;
	if (p == (void *)dp_mlx5dv_init_obj_1_0 || p == (void *)dp_mlx5dv_init_obj_1_2 ||
	    !dp_elf_of(p, &elf))
		return p;
	if (dp_elf_sym(&elf, NAME, "MLX5_1.2") == p)
		return (void *)dp_mlx5dv_init_obj_1_2;
	if (dp_elf_sym(&elf, NAME, "MLX5_1.0") == p)
		return (void *)dp_mlx5dv_init_obj_1_0;
	return p;
}

#else

void *dp_mlx5dv_hook_for(void *p, const char *name)
{
	struct dp_elf elf;

	return dp_elf_of(p, &elf) ? dp_mlx5dv_watch_for(p, name, &elf) : p;
}

#endif

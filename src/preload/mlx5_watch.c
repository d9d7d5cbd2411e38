// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Ways past verbs that a program has with mlx5: queue pairs made by mlx5dv or devx, which nobody can split, and regions
 * made by mlx5dv. All is passed on as it is; the core is told.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "hooks.h"

#include <errno.h>
#include <string.h>

#include "symtab.h"

#define CREATE_QP 0x500 /* the command's opcode, the first two bytes of a devx command, big endian */

struct ibv_qp *mlx5dv_create_qp(struct ibv_context *ctx, void *attr, void *mlx5_attr);
void *mlx5dv_devx_obj_create(struct ibv_context *ctx, const void *in, size_t inlen, void *out, size_t outlen);
struct ibv_mr *mlx5dv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
				    int access, int mlx5_access);

static void tell(const char *function, const void *caller)
{
	const struct dp_core *core = dp_core_get(false);
	char name[DP_CALLER_LEN];

	if (!core || !core->bypassed)
		return;
	dp_caller_name(caller, name);
	core->bypassed(function, name);
}

DP_EXPORT struct ibv_qp *mlx5dv_create_qp(struct ibv_context *ctx, void *attr, void *mlx5_attr)
{
	const void *caller = __builtin_return_address(0);
	struct ibv_qp *(*fn)(struct ibv_context *, void *, void *) =
		(struct ibv_qp * (*)(struct ibv_context *, void *, void *))
			dp_mlx5dv_find(ctx, "mlx5dv_create_qp", "MLX5_1.3", caller);
	struct ibv_qp *qp;

	if (!fn) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	qp = fn(ctx, attr, mlx5_attr);
	if (qp)
		tell("mlx5dv_create_qp", caller);
	return qp;
}

DP_EXPORT void *mlx5dv_devx_obj_create(struct ibv_context *ctx, const void *in, size_t inlen, void *out, size_t outlen)
{
	const void *caller = __builtin_return_address(0);
	void *(*fn)(struct ibv_context *, const void *, size_t, void *, size_t) =
		(void *(*)(struct ibv_context *, const void *, size_t, void *, size_t))
			dp_mlx5dv_find(ctx, "mlx5dv_devx_obj_create", "MLX5_1.7", caller);
	const unsigned char *op = in;
	void *obj;

	if (!fn) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	obj = fn(ctx, in, inlen, out, outlen);
	if (obj && inlen >= 2 && (op[0] << 8 | op[1]) == CREATE_QP)
		tell("mlx5dv_devx_obj_create", caller);
	return obj;
}

DP_EXPORT struct ibv_mr *mlx5dv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
					      int access, int mlx5_access)
{
	struct ibv_mr *(*fn)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int, int) =
		(struct ibv_mr * (*)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int, int)) dp_mlx5dv_find(
			pd->context, "mlx5dv_reg_dmabuf_mr", "MLX5_1.25", __builtin_return_address(0));
	const struct dp_core *core = dp_core_get(false);
	struct ibv_mr *mr;

	if (!fn) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!core || !core->dmabuf_made)
		return fn(pd, offset, length, iova, fd, access, mlx5_access);
	struct inside guard __attribute__((cleanup(leave), unused)) = enter();

	mr = fn(pd, offset, length, iova, fd, access, mlx5_access);
	if (mr)
		core->dmabuf_made(pd, mr, offset, length, iova, fd, access);
	return mr;
}

void *dp_mlx5dv_watch_for(void *p, const char *name, const struct dp_elf *elf)
{
	static const struct {
		const char *name, *version;
		void *fn;
	} watched[] = {
		{"mlx5dv_create_qp", "MLX5_1.3", (void *)mlx5dv_create_qp},
		{"mlx5dv_devx_obj_create", "MLX5_1.7", (void *)mlx5dv_devx_obj_create},
		{"mlx5dv_reg_dmabuf_mr", "MLX5_1.25", (void *)mlx5dv_reg_dmabuf_mr},
	};
	size_t i;

	for (i = 0; i < sizeof(watched) / sizeof(watched[0]); i++)
		if (!strcmp(name, watched[i].name) && p != watched[i].fn &&
		    dp_elf_sym(elf, name, watched[i].version) == p)
			return watched[i].fn;
	return p;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The two versions of mlx5dv_init_obj, each of which returns its own number, in an object that also fills alloc_mw. */
#include <infiniband/verbs.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

static int hits_10, hits_12;

int fake_mlx5_hits(int version);
EXPORT int fake_mlx5_hits(int version)
{
	return version == 10 ? hits_10 : hits_12;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	(void)pd;
	(void)type;
	abort();
}

void fake_mlx5_fill(struct ibv_context *ctx);
EXPORT void fake_mlx5_fill(struct ibv_context *ctx)
{
	ctx->ops.alloc_mw = alloc_mw;
}

int init_obj_1_0(void *obj, uint64_t type);
EXPORT int init_obj_1_0(void *obj, uint64_t type)
{
	(void)obj;
	(void)type;
	hits_10++;
	return 10;
}

int init_obj_1_2(void *obj, uint64_t type);
EXPORT int init_obj_1_2(void *obj, uint64_t type)
{
	(void)obj;
	(void)type;
	hits_12++;
	return 12;
}

__asm__(".symver init_obj_1_0, mlx5dv_init_obj@MLX5_1.0");
__asm__(".symver init_obj_1_2, mlx5dv_init_obj@@MLX5_1.2");

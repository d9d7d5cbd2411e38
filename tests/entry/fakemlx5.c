// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The two versions of mlx5dv_init_obj, each of which returns its own number, in an object that also fills dealloc_mw. */
#include <infiniband/verbs.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

static int hits_10, hits_12;

int fake_mlx5_hits(int version);
EXPORT int fake_mlx5_hits(int version)
{
	return version == 10 ? hits_10 : hits_12;
}

static int dealloc_mw(struct ibv_mw *mw)
{
	(void)mw;
	abort();
}

void fake_mlx5_fill(struct ibv_context *ctx);
EXPORT void fake_mlx5_fill(struct ibv_context *ctx)
{
	ctx->ops.dealloc_mw = dealloc_mw;
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

EXPORT void *mlx5dv_create_qp(void *ctx, void *attr, void *mlx5_attr);
void *mlx5dv_create_qp(void *ctx, void *attr, void *mlx5_attr)
{
	(void)attr;
	(void)mlx5_attr;
	return ctx;
}

EXPORT void *mlx5dv_devx_obj_create(void *ctx, const void *in, size_t inlen, void *out, size_t outlen);
void *mlx5dv_devx_obj_create(void *ctx, const void *in, size_t inlen, void *out, size_t outlen)
{
	(void)ctx;
	(void)in;
	(void)inlen;
	(void)outlen;
	return out;
}

EXPORT void *mlx5dv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access,
				  int mlx5_access);
void *mlx5dv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access,
			   int mlx5_access)
{
	static struct ibv_mr mr;

	if (offset != 1 || length != 2 || iova != 3 || fd != 4 || access != 5 || mlx5_access != 6)
		abort();
	mr.pd = pd;
	return &mr;
}

__asm__(".symver init_obj_1_0, mlx5dv_init_obj@MLX5_1.0");
__asm__(".symver init_obj_1_2, mlx5dv_init_obj@@MLX5_1.2");

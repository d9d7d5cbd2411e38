// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What libibverbs has from 1.15 on, offered whatever the headers and the libibverbs at hand: regions described by a struct, and
 * memory for which a provider may have its own place (1.17); here it is the C library's.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "softnic.h"

/* Headers before 1.17 have none of these; to programs the handle is opaque. */
#pragma GCC visibility push(default)
struct ibv_buf;
struct ibv_mr_init_attr;
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr);
void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
void ibv_free_buf(struct ibv_buf *buf);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access);
#pragma GCC visibility pop

void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf)
{
	void *p = NULL;
	int ret = posix_memalign(&p, (size_t)sysconf(_SC_PAGESIZE), size);

	(void)pd;
	if (ret) {
		errno = ret;
		return NULL;
	}
	*buf = p;
	return p;
}

void ibv_free_buf(struct ibv_buf *buf)
{
	free(buf);
}

struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access)
{
	(void)buf;
	return (ibv_reg_mr)(pd, addr, length, access);
}

/* As struct ibv_mr_init_attr of rdma-core's verbs.h; what softnic has no use for (a DMA handle) ends it. */
struct init_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
};

enum { MASK_IOVA = 1, MASK_ADDR = 2, MASK_FD = 4, MASK_FD_OFFSET = 8, MASK_BUF = 32 };

/* The statuses are those of a provider without reg_mr_ex (dummy_ops.c). */
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr)
{
	const struct init_attr *a = (const struct init_attr *)attr;
	uint64_t mask = a->comp_mask;

	if (mask & ~(uint64_t)(MASK_IOVA | MASK_ADDR | MASK_FD | MASK_FD_OFFSET | MASK_BUF)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (mask == (MASK_FD | MASK_FD_OFFSET | MASK_IOVA))
		return ibv_reg_dmabuf_mr(pd, a->fd_offset, a->length, a->iova, a->fd, a->access);
	if (mask & (MASK_FD | MASK_FD_OFFSET) || !(mask & MASK_ADDR)) {
		errno = EINVAL;
		return NULL;
	}
	return ibv_reg_mr_iova2(pd, a->addr, a->length, mask & MASK_IOVA ? a->iova : (uint64_t)(uintptr_t)a->addr,
				(unsigned int)a->access);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Memory for which a provider may have its own place (libibverbs 1.17 and later); here it is the C library's. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "softnic.h"

/* Headers before 1.17 have none of these; to programs the handle is opaque. */
struct ibv_buf;
void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
void ibv_free_buf(struct ibv_buf *buf);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access);

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

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Memory regions. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine.h"
#include "gpu.h"
#include "place.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define KNOWN_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |		\
		      IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB)

/* 0 or a positive errno, as the kernel would refuse it. */
static int check_access(unsigned int access)
{
	if (access & ~(KNOWN_ACCESS | (unsigned int)IBV_ACCESS_OPTIONAL_RANGE))
		return access & IBV_ACCESS_ON_DEMAND ? EOPNOTSUPP : EINVAL;
	/* what may be written from afar must be writable here */
	if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(access & IBV_ACCESS_LOCAL_WRITE))
		return EINVAL;
	return 0;
}

/* Whether there is memory at all: the kernel would have to pin it. */
static bool is_mapped(const void *addr, size_t length)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)addr & ~(page - 1);
	uintptr_t end = (uintptr_t)addr + length;
	unsigned char vec[1024];

	for (; at < end; at += sizeof(vec) * page)
		if (mincore((void *)at, end - at < sizeof(vec) * page ? end - at : sizeof(vec) * page, vec))
			return false;
	return true;
}

/* How the memory is reached; NULL: there is none. */
static const struct sn_mem_ops *memory_of(uint64_t addr, size_t length)
{
	if (sn_gpu_has(addr, length))
		return &sn_gpu_memory;
	return is_mapped((void *)(uintptr_t)addr, length) ? &sn_host_memory : NULL;
}

/* at: where the memory is; addr: what the program is told; ops may be NULL, why is EFAULT then. */
static struct ibv_mr *reg(struct ibv_pd *pd, void *addr, uint64_t at, size_t length, uint64_t iova, unsigned int access,
			  const struct sn_mem_ops *ops)
{
	struct sn_ctx *c = sn_ctx(pd->context);
	struct sn_mr *mr;
	int ret = check_access(access);

	if (!length || iova + length < iova || at + length < at)
		ret = EINVAL;
	else if (!ret && !ops)
		ret = EFAULT;
	if (ret) {
		errno = ret;
		return NULL;
	}
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return NULL;
	mr->mr.context = pd->context;
	mr->mr.pd = pd;
	mr->pd = sn_base_pd(pd);
	mr->mr.addr = addr;
	mr->mr.length = length;
	mr->at = at;
	mr->iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova;
	mr->access = access;
	mr->ops = ops;
	sn_lock();
	ret = c->epoch == sn_engine_epoch() ? sn_key_add(c->dev, mr) : -EIO;
	if (!ret)
		((struct sn_pd *)pd)->users++;
	sn_unlock();
	if (ret) {
		free(mr);
		errno = -ret;
		return NULL;
	}
	return &mr->mr;
}

static struct ibv_mr *reg_virtual(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	uint64_t at = (uintptr_t)addr;

	return reg(pd, addr, at, length, iova, access, at + length < at ? NULL : memory_of(at, length));
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return reg_virtual(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return reg_virtual(pd, addr, length, iova, (unsigned int)access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	return reg_virtual(pd, addr, length, iova, access);
}

int ibv_dereg_mr(struct ibv_mr *ibmr)
{
	struct sn_mr *mr = (struct sn_mr *)ibmr;
	struct sn_ctx *c = sn_ctx(ibmr->context);

	sn_lock();
	if (mr->windows) {
		sn_unlock();
		return EBUSY;
	}
	if (c->epoch == sn_engine_epoch())
		sn_key_drop(c->dev, mr);
	((struct sn_pd *)ibmr->pd)->users--;
	sn_unlock();
	free(mr);
	return 0;
}

/* Both keys stay and mean something else at once, also to those who still use them. */
int ibv_rereg_mr(struct ibv_mr *ibmr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct sn_mr *mr = (struct sn_mr *)ibmr;
	unsigned int want = flags & IBV_REREG_MR_CHANGE_ACCESS ? (unsigned int)access : mr->access;
	const struct sn_mem_ops *ops = NULL;

	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION && length)
		ops = memory_of((uintptr_t)addr, length);
	if (!flags || (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) || check_access(want) ||
	    ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) && !ops) ||
	    ((flags & IBV_REREG_MR_CHANGE_PD) && (!pd || pd->context != ibmr->context))) {
		errno = EINVAL;
		return IBV_REREG_MR_ERR_INPUT;
	}
	sn_lock();
	if (mr->windows) {
		sn_unlock();
		errno = EBUSY;
		return IBV_REREG_MR_ERR_INPUT;
	}
	if (flags & IBV_REREG_MR_CHANGE_PD) {
		((struct sn_pd *)ibmr->pd)->users--;
		((struct sn_pd *)pd)->users++;
		ibmr->pd = pd;
		mr->pd = sn_base_pd(pd);
	}
	sn_place_all();
	mr->access = want;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		ibmr->addr = addr;
		ibmr->length = length;
		mr->at = (uintptr_t)addr;
		mr->ops = ops;
		mr->iova = want & IBV_ACCESS_ZERO_BASED ? 0 : (uintptr_t)addr;
	}
	sn_unlock();
	return 0;
}

/*
 * Nobody but the exporter can say what memory a dma-buf is of. GPU programs give the memory's own address as iova, as
 * NVSHMEM, NCCL and UCX do; other ones are not for softnic. The address that the program is told is the offset, as
 * libibverbs does.
 */
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	if (fcntl(fd, F_GETFD) < 0)
		return NULL; /* EBADF, as from the kernel */
	if (access & (IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND) || !sn_gpu_has(iova, length)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return reg(pd, (void *)(uintptr_t)offset, iova, length, iova, (unsigned int)access, &sn_gpu_memory);
}

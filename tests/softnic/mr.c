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
		      IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB |		\
		      IBV_ACCESS_ON_DEMAND)

/* 0 or a positive errno, as the kernel would refuse it. */
static int check_access(unsigned int access)
{
	if (access & ~(KNOWN_ACCESS | (unsigned int)IBV_ACCESS_OPTIONAL_RANGE))
		return EINVAL;
	/* what may be written from afar must be writable here */
	if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(access & IBV_ACCESS_LOCAL_WRITE))
		return EINVAL;
	return 0;
}

bool sn_is_mapped(const void *addr, size_t length)
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
static const struct sn_mem_ops *memory_of(uint64_t addr, size_t length, unsigned int access)
{
	if (addr + length < addr)
		return NULL;
	/* what is there, and whether anything is, is asked at each access */
	if (access & IBV_ACCESS_ON_DEMAND)
		return &sn_host_memory;
	if (sn_gpu_has(addr, length))
		return &sn_gpu_memory;
	/* the kernel would have to pin it */
	return sn_is_mapped((void *)(uintptr_t)addr, length) ? &sn_host_memory : NULL;
}

/* at: where the memory is; addr: what the program is told; ops may be NULL, why is EFAULT then. */
static struct ibv_mr *reg(struct ibv_pd *pd, void *addr, uint64_t at, size_t length, uint64_t iova, unsigned int access,
			  const struct sn_mem_ops *ops)
{
	struct sn_ctx *c = sn_ctx(pd->context);
	struct sn_mr *mr;
	int ret = check_access(access);

	if (iova + length < iova || at + length < at)
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
		sn_pd_use(pd);
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

	if (!length) {
		errno = EINVAL;
		return NULL;
	}
	return reg(pd, addr, at, length, iova, access, memory_of(at, length, access));
}

struct ibv_mr *sn_reg_at(struct ibv_pd *pd, uint64_t at, size_t length, unsigned int access)
{
	return reg(pd, NULL, at, length, 0, access, &sn_host_memory);
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
	int ret;

	sn_lock();
	ret = sn_mr_end((struct sn_mr *)ibmr);
	sn_unlock();
	if (!ret)
		free(ibmr);
	return ret;
}

/* Nothing is brought in ahead of time, but what is asked for must be there, if it may be faulted. */
int sn_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *sges, uint32_t n)
{
	struct sn_span span;
	int ret = 0;

	if (!n || flags & ~(uint32_t)IBV_ADVISE_MR_FLAG_FLUSH)
		return EINVAL;
	if (advice != IBV_ADVISE_MR_ADVICE_PREFETCH && advice != IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE &&
	    advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
		return EOPNOTSUPP;
	sn_lock();
	for (uint32_t i = 0; i < n && !ret; i++) {
		const struct sn_mr *mr = sn_find_key(sn_ctx(pd->context)->dev, sges[i].lkey);

		if (!mr || !(mr->access & IBV_ACCESS_ON_DEMAND))
			ret = ENOENT;
		else if (flags & IBV_ADVISE_MR_FLAG_FLUSH && advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT &&
			 sn_local(sn_ctx(pd->context)->dev, sn_base_pd(pd), sges[i].lkey, sges[i].addr, sges[i].length,
				  advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, &span))
			ret = EFAULT;
	}
	sn_unlock();
	return ret;
}

/* Both keys stay and mean something else at once, also to those who still use them. */
int ibv_rereg_mr(struct ibv_mr *ibmr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct sn_mr *mr = (struct sn_mr *)ibmr;
	unsigned int want = flags & IBV_REREG_MR_CHANGE_ACCESS ? (unsigned int)access : mr->access;
	const struct sn_mem_ops *ops = NULL;

	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION && length)
		ops = memory_of((uintptr_t)addr, length, want);
	/* the other kind of memory is another translation */
	if (!flags || (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) || check_access(want) || mr->dm_users || mr->import ||
	    ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) ? !ops : (want ^ mr->access) & IBV_ACCESS_ON_DEMAND) ||
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
		sn_pd_drop(ibmr->pd);
		sn_pd_use(pd);
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
	if (!length) {
		errno = EINVAL;
		return NULL;
	}
	if (access & (IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND) || !sn_gpu_has(iova, length)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return reg(pd, (void *)(uintptr_t)offset, iova, length, iova, (unsigned int)access, &sn_gpu_memory);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A libgdrapi.so.2 for machines without gdrcopy's kernel module, so that NVSHMEM sends its atomics as it does in production:
 * as SENDs into a shared receive queue, which the target's CPU carries out by loads and stores on mapped memory of the
 * GPU and answers with SENDs and WRITEs with immediate data. Only what NVSHMEM's IBRC uses. x86-64.
 *
 * Nothing can map the memory here. The "mapping" has no access; a load or store faults, the handler fetches the page by the
 * driver, lets the one instruction run (trap flag), and takes back what it changed. Slow, and right for one thread at a
 * time, which IBRC's lock sees to.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* REG_EFL */
#endif
#include <cuda.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define PAGE 4096ul
#define MAPS 64
#define TRAP_FLAG 0x100

typedef struct gdr *gdr_t;
typedef struct { unsigned long h; } gdr_mh_t;
struct gdr_info { /* the part that all versions have */
	uint64_t va, mapped_size;
	uint32_t page_size;
};

static struct map {
	CUdeviceptr at;
	size_t size;
	uint8_t *va;
} maps[MAPS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUstream stream;
static CUcontext context;
static struct sigaction old_segv, old_trap;

static struct step { /* the instruction that runs */
	uint8_t *page;
	CUdeviceptr at;
	uint8_t before[PAGE];
} step;

static void copy(void *to, CUdeviceptr from_gpu, CUdeviceptr to_gpu, const void *from, size_t n)
{
	CUcontext c;
	CUresult ret = cuCtxPushCurrent(context);

	if (!ret) {
		ret = to ? cuMemcpyDtoHAsync(to, from_gpu, n, stream) : cuMemcpyHtoDAsync(to_gpu, from, n, stream);
		if (!ret)
			ret = cuStreamSynchronize(stream);
		cuCtxPopCurrent(&c);
	}
	if (ret) {
		fprintf(stderr, "fakegdr: CUDA error %d\n", (int)ret);
		abort();
	}
}

static struct map *map_at(const uint8_t *p)
{
	for (int i = 0; i < MAPS; i++)
		if (maps[i].va && p >= maps[i].va && p < maps[i].va + maps[i].size)
			return &maps[i];
	return NULL;
}

static void on_segv(int sig, siginfo_t *info, void *uc)
{
	struct map *m = map_at(info->si_addr);

	if (!m || step.page) { /* not ours, or an instruction over a page's end: as without us */
		sigaction(sig, &old_segv, NULL);
		return;
	}
	step.page = (uint8_t *)((uintptr_t)info->si_addr & ~(PAGE - 1));
	step.at = m->at + (CUdeviceptr)(step.page - m->va);
	mprotect(step.page, PAGE, PROT_READ | PROT_WRITE);
	copy(step.page, step.at, 0, NULL, PAGE);
	memcpy(step.before, step.page, PAGE);
	((ucontext_t *)uc)->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void on_trap(int sig, siginfo_t *info, void *uc)
{
	(void)info;
	if (!step.page) {
		sigaction(sig, &old_trap, NULL);
		return;
	}
	((ucontext_t *)uc)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
	for (size_t i = 0; i < PAGE; i++)
		if (step.page[i] != step.before[i]) {
			size_t n = 1;

			for (size_t k = i; k < PAGE && k < i + 8; k++) /* one store, whole */
				if (step.page[k] != step.before[k])
					n = k - i + 1;
			copy(NULL, 0, step.at + i, step.page + i, n);
			i += n - 1;
		}
	mprotect(step.page, PAGE, PROT_NONE);
	step.page = NULL;
}

gdr_t gdr_open(void)
{
	struct sigaction segv = { .sa_sigaction = on_segv, .sa_flags = SA_SIGINFO };
	struct sigaction trap = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };

	if (cuCtxGetCurrent(&context) || !context || cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING))
		return NULL;
	sigaction(SIGSEGV, &segv, &old_segv);
	sigaction(SIGTRAP, &trap, &old_trap);
	return (gdr_t)&stream;
}

int gdr_close(gdr_t g)
{
	(void)g;
	return 0;
}

int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t token, uint32_t space, gdr_mh_t *handle)
{
	int ret = 12;

	(void)g, (void)token, (void)space;
	pthread_mutex_lock(&lock);
	for (unsigned long i = 0; i < MAPS && ret; i++)
		if (!maps[i].at) {
			maps[i].at = addr;
			maps[i].size = (size + PAGE - 1) / PAGE * PAGE;
			handle->h = i;
			ret = 0;
		}
	pthread_mutex_unlock(&lock);
	return ret;
}

int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle)
{
	(void)g;
	maps[handle.h].at = 0;
	return 0;
}

int gdr_map(gdr_t g, gdr_mh_t handle, void **va, size_t size)
{
	struct map *m = &maps[handle.h];
	void *p = mmap(NULL, m->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	(void)g, (void)size;
	if (p == MAP_FAILED)
		return 12;
	m->va = *va = p;
	return 0;
}

int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size)
{
	struct map *m = &maps[handle.h];

	(void)g, (void)size;
	munmap(va, m->size);
	m->va = NULL;
	return 0;
}

int gdr_get_info(gdr_t g, gdr_mh_t handle, struct gdr_info *info)
{
	(void)g;
	info->va = maps[handle.h].at;
	info->mapped_size = maps[handle.h].size;
	info->page_size = PAGE;
	return 0;
}

int gdr_copy_from_mapping(gdr_mh_t handle, void *to, const void *from, size_t n)
{
	struct map *m = &maps[handle.h];

	copy(to, m->at + (CUdeviceptr)((const uint8_t *)from - m->va), 0, NULL, n);
	return 0;
}

int gdr_copy_to_mapping(gdr_mh_t handle, void *to, const void *from, size_t n)
{
	struct map *m = &maps[handle.h];

	copy(NULL, 0, m->at + (CUdeviceptr)((uint8_t *)to - m->va), from, n);
	return 0;
}

void gdr_runtime_get_version(int *major, int *minor)
{
	*major = 2;
	*minor = 99;
}

int gdr_driver_get_version(gdr_t g, int *major, int *minor)
{
	(void)g;
	gdr_runtime_get_version(major, minor);
	return 0;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The fake driver's memory, of device 3, with just enough for softnic's gpu.c. It is there twice: at the address that
 * programs have for it nothing can be read or written, as on a real GPU without more; the driver's copies go to the other
 * one. Whatever softnic reaches in another way is a crash.
 */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fakecuda.h"

#define EXPORT __attribute__((visibility("default")))
#define MEMORY (4u << 20)

EXPORT int cuMemAlloc_v2(uint64_t *addr, size_t n);
EXPORT int cuDevicePrimaryCtxRetain(void **c, int device);
EXPORT int cuCtxPushCurrent_v2(void *c);
EXPORT int cuCtxPopCurrent_v2(void **c);
EXPORT int cuStreamCreate(void **s, unsigned int flags);
EXPORT int cuStreamSynchronize(void *s);
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *stream);
EXPORT int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *stream);

static uint8_t *seen, *real;
static size_t used;
static int pushed;

static int a_context, a_stream;

int cuMemAlloc_v2(uint64_t *addr, size_t n)
{
	if (!seen) {
		int fd = memfd_create("device memory", MFD_CLOEXEC);

		if (fd < 0 || ftruncate(fd, MEMORY))
			return 2;
		seen = mmap(NULL, MEMORY, PROT_NONE, MAP_SHARED, fd, 0);
		real = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (seen == MAP_FAILED || real == MAP_FAILED)
			return 2;
	}
	if (n > MEMORY - used)
		return 2;
	*addr = (uintptr_t)seen + used;
	used += n;
	return 0;
}

static uint8_t *where(uint64_t addr, size_t n)
{
	uint64_t at = addr - (uintptr_t)seen;

	return seen && at < used && n <= used - at ? real + at : NULL;
}

int fakecuda_attribute(void *to, int attribute, uint64_t addr)
{
	if (!where(addr, 1))
		return -1;
	switch (attribute) {
	case 1: /* its context: memory that is mapped by pieces has none */
		*(void **)to = NULL;
		return 0;
	case 2: /* what kind: of a device */
		*(unsigned int *)to = 2;
		return 0;
	case 9: /* which device */
		*(int *)to = 3;
		return 0;
	}
	return 1;
}

int cuDevicePrimaryCtxRetain(void **c, int device)
{
	*c = &a_context;
	return device == 3 ? 0 : 101;
}

int cuCtxPushCurrent_v2(void *c)
{
	if (c != &a_context)
		return 201;
	pushed++;
	return 0;
}

int cuCtxPopCurrent_v2(void **c)
{
	*c = &a_context;
	return --pushed < 0 ? 201 : 0;
}

int cuStreamCreate(void **s, unsigned int flags)
{
	*s = &a_stream;
	return flags == 1 && pushed ? 0 : 1;
}

int cuStreamSynchronize(void *s)
{
	return s == &a_stream ? 0 : 400;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *stream)
{
	uint8_t *p = where(to, n);

	if (!p || !pushed || stream != &a_stream)
		return 1;
	memcpy(p, from, n);
	return 0;
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *stream)
{
	uint8_t *p = where(from, n);

	if (!p || !pushed || stream != &a_stream)
		return 1;
	memcpy(to, p, n);
	return 0;
}

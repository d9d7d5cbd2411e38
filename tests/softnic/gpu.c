// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <dlfcn.h>
#include <pthread.h>

#include "engine.h"
#include "gpu.h"

/* What is used of the driver's interface, as NVIDIA documents it (cuda.h): no headers of CUDA are needed to build. */
typedef void *cu_context;
typedef void *cu_stream;

enum { CU_OK = 0, CU_DEINITIALIZED = 4 };
enum { CU_ATTR_CONTEXT = 1, CU_ATTR_MEMORY_TYPE = 2, CU_ATTR_DEVICE_ORDINAL = 9, CU_MEMORY_DEVICE = 2 };
#define CU_STREAM_NON_BLOCKING 1u

static struct {
	int (*pointer_attribute)(void *to, int attribute, uint64_t addr);
	int (*primary_retain)(cu_context *c, int device);
	int (*push)(cu_context c);
	int (*pop)(cu_context *c);
	int (*stream_create)(cu_stream *s, unsigned int flags);
	int (*stream_wait)(cu_stream s);
	int (*to_device)(uint64_t to, const void *from, size_t n, cu_stream s);
	int (*to_host)(void *to, uint64_t from, size_t n, cu_stream s);
} cu;

static pthread_mutex_t gpu_lock = PTHREAD_MUTEX_INITIALIZER;
static bool looked;
/* One of each for all GPUs: with unified addresses a copy finds its device by itself. */
static cu_context context;
static cu_stream stream;

static bool find_driver(void)
{
	void *h = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	const struct { void **to; const char *name; } names[] = {
		{ (void **)&cu.pointer_attribute, "cuPointerGetAttribute" },
		{ (void **)&cu.primary_retain, "cuDevicePrimaryCtxRetain" },
		{ (void **)&cu.push, "cuCtxPushCurrent_v2" },
		{ (void **)&cu.pop, "cuCtxPopCurrent_v2" },
		{ (void **)&cu.stream_create, "cuStreamCreate" },
		{ (void **)&cu.stream_wait, "cuStreamSynchronize" },
		{ (void **)&cu.to_device, "cuMemcpyHtoDAsync_v2" },
		{ (void **)&cu.to_host, "cuMemcpyDtoHAsync_v2" },
	};

	if (!h)
		return false;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		*names[i].to = dlsym(h, names[i].name);
		if (!*names[i].to) {
			sn_say("the CUDA driver has no %s: its memory is not for softnic", names[i].name);
			return false;
		}
	}
	return true;
}

static bool is_device(uint64_t addr)
{
	unsigned int type = 0;

	return cu.pointer_attribute(&type, CU_ATTR_MEMORY_TYPE, addr) == CU_OK && type == CU_MEMORY_DEVICE;
}

/* The context of the memory, or its device's own: memory that was mapped by pieces (cuMemMap) has none. */
static int open_stream(uint64_t addr)
{
	cu_context current;
	int ret, device = 0;

	if (stream)
		return 0;
	if (cu.pointer_attribute(&context, CU_ATTR_CONTEXT, addr) != CU_OK || !context) {
		ret = cu.pointer_attribute(&device, CU_ATTR_DEVICE_ORDINAL, addr);
		if (!ret)
			ret = cu.primary_retain(&context, device);
		if (ret)
			return ret;
	}
	ret = cu.push(context);
	if (ret)
		return ret;
	/* not blocked by the program's default stream, in which a kernel may wait for what comes here */
	ret = cu.stream_create(&stream, CU_STREAM_NON_BLOCKING);
	cu.pop(&current);
	return ret;
}

bool sn_gpu_has(uint64_t addr, size_t length)
{
	static bool found;
	bool is = false;
	int ret;

	pthread_mutex_lock(&gpu_lock);
	/* the driver may come later than the first region: only its presence is remembered */
	if (!looked)
		looked = found = find_driver();
	if (found && length && is_device(addr) && is_device(addr + length - 1)) {
		ret = open_stream(addr);
		if (ret)
			sn_say("memory of a GPU at %#llx: CUDA error %d", (unsigned long long)addr, ret);
		is = !ret;
	}
	pthread_mutex_unlock(&gpu_lock);
	return is;
}

/* Peers may write until the process has ended, and the driver ends before that: then there is nothing to say. */
static void check(int ret, uint64_t addr)
{
	static bool said;

	if (ret == CU_OK || ret == CU_DEINITIALIZED || said)
		return;
	said = true;
	sn_say("access to memory of a GPU at %#llx: CUDA error %d", (unsigned long long)addr, ret);
}

/* Also on threads of the program, with whatever context they have: theirs is back afterwards. */
static void access_gpu(uint64_t addr, void *to, const void *from, size_t n)
{
	cu_context current;
	int ret = cu.push(context);

	if (!ret) {
		ret = to ? cu.to_host(to, addr, n, stream) : cu.to_device(addr, from, n, stream);
		if (!ret)
			ret = cu.stream_wait(stream);
		cu.pop(&current);
	}
	check(ret, addr);
}

static void gpu_read(void *to, uint64_t from, size_t n)
{
	if (n)
		access_gpu(from, to, NULL, n);
}

static void gpu_write(uint64_t to, const void *from, size_t n)
{
	if (n)
		access_gpu(to, NULL, from, n);
}

static uint64_t gpu_compare_swap(uint64_t at, uint64_t compare, uint64_t swap)
{
	uint64_t was = 0;

	gpu_read(&was, at, sizeof(was));
	if (was == compare)
		gpu_write(at, &swap, sizeof(swap));
	return was;
}

static uint64_t gpu_fetch_add(uint64_t at, uint64_t add)
{
	uint64_t was = 0, sum;

	gpu_read(&was, at, sizeof(was));
	sum = was + add;
	gpu_write(at, &sum, sizeof(sum));
	return was;
}

const struct sn_mem_ops sn_gpu_memory = { gpu_read, gpu_write, gpu_compare_swap, gpu_fetch_add };

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What the CUDA driver says, if the program has loaded it. Loading or initialising it ourselves would change the
 * program: cuInit after a fork, or before CUDA_VISIBLE_DEVICES is set, cannot be taken back.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "gpu.h"
#include "ports.h"

#define MEMORY_TYPE 2	   /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
#define DEVICE_ORDINAL 9   /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */
#define MEMORY_DEVICE 2	   /* CU_MEMORYTYPE_DEVICE */
#define MAX_DEVICES 64

struct uuid {
	unsigned char bytes[16];
};

#ifdef HAVE_CUDA
#include <cuda.h>
_Static_assert(CUDA_SUCCESS == 0 && sizeof(CUresult) == sizeof(int) && sizeof(CUdevice) == sizeof(int), "results");
_Static_assert(CU_POINTER_ATTRIBUTE_MEMORY_TYPE == MEMORY_TYPE && CU_MEMORYTYPE_DEVICE == MEMORY_DEVICE, "types");
_Static_assert(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL == DEVICE_ORDINAL, "ordinal");
_Static_assert(sizeof(CUuuid) == sizeof(struct uuid) && sizeof(CUdeviceptr) == sizeof(unsigned long long), "sizes");
#endif

struct driver {
	int (*ctx_get_device)(int *dev);
	int (*pointer_get_attribute)(void *data, int attribute, unsigned long long ptr);
	int (*get_count)(int *count);
	int (*primary_ctx_get_state)(int dev, unsigned int *flags, int *active);
	int (*get_pci_bus_id)(char *text, int len, int dev);
	int (*get_uuid)(struct uuid *uuid, int dev);	/* of the GPU */
	int (*get_uuid_v2)(struct uuid *uuid, int dev); /* of the instance, if it is one; NULL: before CUDA 11.4 */
};

static bool load(struct driver *d, void *lib)
{
	d->ctx_get_device = (int (*)(int *))dlsym(lib, "cuCtxGetDevice");
	d->pointer_get_attribute = (int (*)(void *, int, unsigned long long))dlsym(lib, "cuPointerGetAttribute");
	d->get_count = (int (*)(int *))dlsym(lib, "cuDeviceGetCount");
	d->primary_ctx_get_state = (int (*)(int, unsigned int *, int *))dlsym(lib, "cuDevicePrimaryCtxGetState");
	d->get_pci_bus_id = (int (*)(char *, int, int))dlsym(lib, "cuDeviceGetPCIBusId");
	d->get_uuid = (int (*)(struct uuid *, int))dlsym(lib, "cuDeviceGetUuid");
	d->get_uuid_v2 = (int (*)(struct uuid *, int))dlsym(lib, "cuDeviceGetUuid_v2");
	return d->ctx_get_device && d->pointer_get_attribute && d->get_pci_bus_id;
}

static bool of_memory(const struct driver *d, const void *addr, int *dev)
{
	unsigned long long ptr = (unsigned long long)(uintptr_t)addr;
	unsigned int type = 0;

	return addr && !d->pointer_get_attribute(&type, MEMORY_TYPE, ptr) && type == MEMORY_DEVICE &&
	       !d->pointer_get_attribute(dev, DEVICE_ORDINAL, ptr);
}

/* Contexts belong to threads; one that registers memory may have none. */
static bool of_primary_context(const struct driver *d, int *dev)
{
	int count, found = 0;

	if (!d->get_count || !d->primary_ctx_get_state || d->get_count(&count))
		return false;
	for (int i = 0; i < count && i < MAX_DEVICES; i++) {
		unsigned int flags;
		int active;

		if (!d->primary_ctx_get_state(i, &flags, &active) && active) {
			*dev = i;
			found++;
		}
	}
	return found == 1;
}

static void uuid_text(char *buf, size_t len, const char *prefix, const struct uuid *u)
{
	const unsigned char *b = u->bytes;

	snprintf(buf, len, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", prefix, b[0],
		 b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static bool ask(const struct driver *d, struct dp_gpu *gpu, const void *addr)
{
	struct uuid uuid, instance;
	char text[64];
	int dev;

	if (of_memory(d, addr, &dev))
		gpu->from = "cuPointerGetAttribute";
	else if (!d->ctx_get_device(&dev))
		gpu->from = "cuCtxGetDevice";
	else if (of_primary_context(d, &dev))
		gpu->from = "cuDevicePrimaryCtxGetState";
	else
		return false;
	if (d->get_pci_bus_id(text, sizeof(text), dev) || !dp_pci_canonical(text, gpu->pci))
		return false;
	if (!d->get_uuid || d->get_uuid(&uuid, dev))
		return true;
	uuid_text(gpu->uuid, sizeof(gpu->uuid), "GPU", &uuid);
	if (d->get_uuid_v2 && !d->get_uuid_v2(&instance, dev) && memcmp(&uuid, &instance, sizeof(uuid)))
		uuid_text(gpu->mig, sizeof(gpu->mig), "MIG", &instance);
	return true;
}

bool dp_gpu_from_cuda(struct dp_gpu *gpu, const void *addr)
{
	void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	struct driver d;
	bool known;

	*gpu = (struct dp_gpu){ .index = -1 };
	if (!lib) {
		dlerror(); /* a failed look-up of ours is not the program's error */
		return false;
	}
	known = load(&d, lib) && ask(&d, gpu, addr);
	dlclose(lib);
	if (!known)
		*gpu = (struct dp_gpu){ .index = -1 };
	return known;
}

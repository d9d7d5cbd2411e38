// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* A CUDA driver for tests: a few devices, and contexts that the test sets. GPU k is 0000:k0:00.0. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fakecuda.h"

extern struct fakecuda fakecuda;
struct fakecuda fakecuda;

/* In programs that do not know it: FAKECUDA is the ordinal of a context's device, or "late", without any. */
__attribute__((constructor)) static void start(void)
{
	const char *v = getenv("FAKECUDA");

	if (!v)
		return;
	fakecuda = (struct fakecuda){ .ready = 1, .visible = FAKECUDA_GPUS, .first = 1, .current = -1 };
	if (*v >= '0' && *v <= '9')
		fakecuda.current = *v - '0';
}

int cuInit(unsigned int flags);
int cuCtxGetDevice(int *dev);
int cuPointerGetAttribute(void *data, int attribute, unsigned long long ptr);
int cuDeviceGetCount(int *count);
int cuDevicePrimaryCtxGetState(int dev, unsigned int *flags, int *active);
int cuDeviceGetPCIBusId(char *text, int len, int dev);
int cuDeviceGetUuid(unsigned char *uuid, int dev);
int cuDeviceGetUuid_v2(unsigned char *uuid, int dev);

enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201 };

static int check(int dev)
{
	if (!fakecuda.ready)
		return NOT_INITIALIZED;
	return dev >= 0 && dev < fakecuda.visible ? 0 : INVALID_DEVICE;
}

int cuInit(unsigned int flags)
{
	(void)flags;
	fakecuda.inits++;
	fakecuda.ready = 1;
	return 0;
}

int cuCtxGetDevice(int *dev)
{
	if (!fakecuda.ready)
		return NOT_INITIALIZED;
	if (fakecuda.current < 0)
		return INVALID_CONTEXT;
	*dev = fakecuda.current;
	return 0;
}

int cuPointerGetAttribute(void *data, int attribute, unsigned long long ptr)
{
	unsigned long long start = (unsigned long long)(size_t)fakecuda.memory;
	int ret = fakecuda_attribute(data, attribute, ptr);

	if (ret >= 0)
		return ret;
	if (!fakecuda.ready)
		return NOT_INITIALIZED;
	if (!start || ptr < start || ptr >= start + 4096)
		return INVALID_VALUE;
	switch (attribute) {
	case 2:
		*(unsigned int *)data = 2;
		return 0;
	case 9:
		*(int *)data = fakecuda.memory_of;
		return 0;
	default:
		return INVALID_VALUE;
	}
}

int cuDeviceGetCount(int *count)
{
	*count = fakecuda.visible;
	return fakecuda.ready ? 0 : NOT_INITIALIZED;
}

int cuDevicePrimaryCtxGetState(int dev, unsigned int *flags, int *active)
{
	*flags = 0;
	*active = fakecuda.primary >> dev & 1;
	return check(dev);
}

int cuDeviceGetPCIBusId(char *text, int len, int dev)
{
	if (check(dev))
		return check(dev);
	snprintf(text, (size_t)len, "00000000:%X0:00.0", dev + fakecuda.first); /* as the driver writes it */
	return 0;
}

int cuDeviceGetUuid(unsigned char *uuid, int dev)
{
	if (check(dev))
		return check(dev);
	memset(uuid, 0x11 * (dev + fakecuda.first), 16);
	return 0;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int dev)
{
	if (check(dev))
		return check(dev);
	memset(uuid, 0x11 * (dev + fakecuda.first) + fakecuda.instance, 16);
	return 0;
}

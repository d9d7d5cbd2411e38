// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What NVSHMEM alone gets: its IBRC transport sees the ports of its GPU, and its host library, where that was asked
 * for, a variable of the environment that chooses IBRC. Both are known by their file's name, and nobody else is served.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "hooks.h"
#include "symtab.h"

typedef struct ibv_device **(*list_fn)(int *num);
typedef char *(*getenv_fn)(const char *name);

static _Atomic(list_fn) real_list; /* of the copy of libibverbs that IBRC uses */

static struct ibv_device **get_device_list(int *num)
{
	const struct dp_core *core = dp_core_get(true);
	struct ibv_device **list;
	int n = 0;

	list = atomic_load_explicit(&real_list, memory_order_acquire)(&n);
	if (list && core && core->show_devices) {
		struct inside guard __attribute__((cleanup(leave), unused)) = enter();

		core->show_devices(list, &n);
	}
	if (num)
		*num = n;
	return list;
}

void *dp_device_list_for(void *p, const void *caller)
{
	list_fn none = NULL, fn = (list_fn)p;

	if (!dp_caller_is(caller, "nvshmem_transport_ibrc.so"))
		return p;
	/* a second copy would need a second function; there is none in sight */
	if (!atomic_compare_exchange_strong(&real_list, &none, fn) && none != fn)
		return p;
	return (void *)get_device_list;
}

/* The pointer is right once this object is relocated. */
static char here;
static char *const volatile relocated = &here;

/*
 * NVSHMEM reads its environment once, when it is initialised, after programs have set what they want there. So the
 * answer is changed, not the environment.
 */
DP_EXPORT char *getenv(const char *name)
{
	static _Atomic(getenv_fn) real_getenv;
	getenv_fn real = atomic_load_explicit(&real_getenv, memory_order_relaxed);
	const struct dp_core *core;
	char *value;

	if (!real) {
		/* called from an IFUNC resolver of an object that is relocated earlier: libc has no environment yet either */
		if (relocated != &here)
			return NULL;
		real = (getenv_fn)dp_elf_next("getenv");
		if (!real)
			return NULL;
		atomic_store_explicit(&real_getenv, real, memory_order_relaxed);
	}
	value = real(name);
	if (__builtin_expect(name[0] != 'N' || name[1] != 'V' || strncmp(name, "NVSHMEM_", 8) != 0, 1) ||
	    !dp_caller_is(__builtin_return_address(0), "libnvshmem_host"))
		return value;
	core = dp_core_get(true);
	if (core && core->nvshmem_env) {
		struct inside guard __attribute__((cleanup(leave), unused)) = enter();

		return core->nvshmem_env(name, value);
	}
	return value;
}

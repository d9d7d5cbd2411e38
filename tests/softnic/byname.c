// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A shared object that the build copies to the names of objects that the library knows: NVSHMEM's IBRC transport and
 * host library, NCCL, DeepEP. It asks what they ask, as they ask it.
 */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_get_device_list

int byname(const char *what);

/* "devices": the names that ibv_get_device_list gives; "pd": is alloc_pd the library's?; else a variable's value. */
__attribute__((visibility("default"))) int byname(const char *what)
{
	void *verbs = dlopen("libibverbs.so.1", RTLD_LAZY);
	struct ibv_device **(*list)(int *);
	struct ibv_device **devs;
	Dl_info info;
	int n = -1;

	if (!verbs)
		return 1;
	if (!strcmp(what, "pd")) {
		void *fn = dlvsym(verbs, "ibv_alloc_pd", "IBVERBS_1.1");

		if (!fn || !dladdr(fn, &info))
			return 1;
		/* the file's own name: directories may be called so, too */
		printf("%s\n", strstr(basename(info.dli_fname), "libdualport") ? "hooked" : "native");
		return 0;
	}
	if (strcmp(what, "devices")) {
		const char *v = getenv(what);

		printf("%s\n", v ? v : "unset");
		return 0;
	}
	list = (struct ibv_device * *(*)(int *)) dlsym(verbs, "ibv_get_device_list");
	devs = list ? list(&n) : NULL;
	if (!devs)
		return 1;
	for (int i = 0; i < n; i++)
		printf("%s%s", i ? " " : "", devs[i]->name);
	printf("%s\n", devs[n] ? " and no end" : "");
	return 0;
}

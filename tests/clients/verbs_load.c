// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "verbs_load.h"

struct verbs_fns vb;

/* A dlvsym that names a wrong version must not pass as "this library is older": only these may be absent. */
static int optional(const char *name)
{
	return !strcmp(name, "reg_dmabuf_mr") || !strcmp(name, "reg_mr_iova") || !strcmp(name, "reg_mr_iova2");
}

static int fill_dl(void *lib, int versioned)
{
	struct {
		const char *name, *sym, *ver;
		void **slot;
	} t[] = {
#define X(n, v) { #n, "ibv_" #n, v, (void **)&vb.n },
		VERBS_FNS(X)
#undef X
	};
	size_t i;

	for (i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		*t[i].slot = versioned ? dlvsym(lib, t[i].sym, t[i].ver) : dlsym(lib, t[i].sym);
		if (!*t[i].slot && !optional(t[i].name)) {
			fprintf(stderr, "verbs_load: %s@%s not found: %s\n", t[i].sym, versioned ? t[i].ver : "any",
				dlerror());
			return -ENOENT;
		}
	}
	return 0;
}

int verbs_load(const char *how, const char *path)
{
	int versioned = !strcmp(how, "dlvsym");
	void *lib;

	if (!strcmp(how, "link")) {
#ifdef VERBS_NO_LINK
		fprintf(stderr, "verbs_load: this binary is not linked with libibverbs\n");
		return -EINVAL;
#else
#define X(n, v) vb.n = ibv_##n;
		VERBS_FNS(X)
#undef X
		return 0;
#endif
	}
	if (!versioned && strcmp(how, "dlsym")) {
		fprintf(stderr, "verbs_load: unknown way to load: %s\n", how);
		return -EINVAL;
	}
	lib = dlopen(path ? path : "libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		fprintf(stderr, "verbs_load: %s\n", dlerror());
		return -ENOENT;
	}
	return fill_dl(lib, versioned);
}

struct ibv_mr *verbs_reg_mr_ex(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	/* struct ibv_mr_init_attr of rdma-core's verbs.h, which older headers do not have */
	struct {
		size_t length;
		int access;
		uint64_t comp_mask, iova;
		void *addr;
		int fd;
		uint64_t fd_offset;
		void *dmah, *buf;
	} attr = { .length = len, .access = access, .comp_mask = 1 << 1 /* IBV_REG_MR_MASK_ADDR */, .addr = addr };
	/* not from this program's scope, where a preloaded object may have what libibverbs does not */
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
	struct ibv_mr *(*reg)(struct ibv_pd *, void *) = NULL;
	struct ibv_mr *mr = NULL;

	if (lib)
		reg = (struct ibv_mr * (*)(struct ibv_pd *, void *)) dlvsym(lib, "ibv_reg_mr_ex", "IBVERBS_1.15");
	errno = ENOSYS;
	if (reg)
		mr = reg(pd, &attr);
	if (lib)
		dlclose(lib);
	return mr;
}

const char *verbs_where(void)
{
	Dl_info i;

	return vb.create_qp && dladdr((void *)vb.create_qp, &i) && i.dli_fname ? i.dli_fname : "?";
}

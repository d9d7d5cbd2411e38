// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* A core that passes everything on and counts it. TESTCORE in the environment: refuse, abi, slow (to start), sparse (reg_mr is native). */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hooks.h"

static const struct dp_stub *stub;
static _Atomic int starts, direct, bypassed, dmabufs;

#define COUNTER(ret, verb, version, params, args) static _Atomic int n_##verb;
DP_VERBS_HOOKED(COUNTER)

#define HOOK(ret, verb, version, params, args)                                                                        \
	static ret core_##verb params                                                                                 \
	{                                                                                                             \
		const struct dp_verbs *real = stub->real_of(DP_CTX_OF(DP_FIRST args));                                \
                                                                                                                      \
		atomic_fetch_add(&n_##verb, 1);                                                                       \
		if (!real || !real->verb)                                                                             \
			abort();                                                                                      \
		return real->verb args;                                                                               \
	}
DP_VERBS_HOOKED(HOOK)

static struct dp_verbs ours = {
#define MEMBER(ret, verb, version, params, args) .verb = core_##verb,
	DP_VERBS_HOOKED(MEMBER)
};

static void direct_access(struct ibv_qp *qp, struct ibv_cq *cq)
{
	if (qp || cq)
		atomic_fetch_add(&direct, 1);
}

static void on_bypass(const char *function, const char *object)
{
	/* the test's objects are the program itself, which has no name */
	if (!strncmp(function, "mlx5dv_", strlen("mlx5dv_")) && !*object)
		atomic_fetch_add(&bypassed, 1);
}

static void dmabuf_made(struct ibv_pd *pd, struct ibv_mr *mr, uint64_t offset, size_t length, uint64_t iova, int fd,
			int access)
{
	if (mr->pd == pd && offset == 1 && length == 2 && iova == 3 && fd == 4 && access == 5)
		atomic_fetch_add(&dmabufs, 1);
}

static struct dp_core core = {.abi = DP_CORE_ABI,
			      .ours = &ours,
			      .direct_access = direct_access,
			      .bypassed = on_bypass,
			      .dmabuf_made = dmabuf_made};

int testcore_count(const char *what);
DP_EXPORT int testcore_count(const char *what)
{
#define FIND(ret, verb, version, params, args)                                                                        \
	if (!strcmp(what, #verb))                                                                                     \
		return atomic_load(&n_##verb);
	DP_VERBS_HOOKED(FIND)
	if (!strcmp(what, "starts"))
		return atomic_load(&starts);
	if (!strcmp(what, "direct"))
		return atomic_load(&direct);
	if (!strcmp(what, "bypassed"))
		return atomic_load(&bypassed);
	if (!strcmp(what, "dmabufs"))
		return atomic_load(&dmabufs);
	return -1;
}

const char *testcore_dir(void);
DP_EXPORT const char *testcore_dir(void)
{
	return stub->dir;
}

const struct dp_core *dualport_core_start(const struct dp_stub *s)
{
	const char *mode = getenv("TESTCORE");

	stub = s;
	atomic_fetch_add(&starts, 1);
	if (!mode)
		return &core;
	if (!strcmp(mode, "refuse"))
		return NULL;
	if (!strcmp(mode, "abi"))
		core.abi++;
	if (!strcmp(mode, "sparse"))
		ours.reg_mr = NULL;
	if (!strcmp(mode, "slow"))
		nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
	return &core;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The hooks themselves, and which of them dlsym and dlvsym hand out. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "hooks.h"

/* The calls that come first in a program that will use RDMA. */
static inline bool loads(const char *verb)
{
	return !strcmp(verb, "alloc_pd") || !strcmp(verb, "create_comp_channel") || !strcmp(verb, "create_cq");
}

/* What a verb returns when its copy does not have it: NULL, an error number, or "no order is promised". */
static inline intptr_t failure(const char *verb, bool is_int)
{
	errno = EOPNOTSUPP;
	return is_int && strcmp(verb, "query_qp_data_in_order") ? EOPNOTSUPP : 0;
}

#define HOOK(ret, verb, version, params, args)                                                                        \
	DP_EXPORT ret ibv_##verb params                                                                               \
	{                                                                                                             \
		struct ibv_context *context = DP_CTX_OF(DP_FIRST args);                                                     \
		const struct dp_verbs *real = dp_real_of(context);                                                    \
		const struct dp_core *core = real ? dp_core_get(loads(#verb)) : NULL;                                 \
		ret(*fn) params;                                                                                      \
                                                                                                                      \
		fn = real ? real->verb : (ret(*) params)dp_guess("ibv_" #verb, version, __builtin_return_address(0)); \
		if (core) {                                                                                           \
			struct inside guard __attribute__((cleanup(leave), unused)) = enter();                        \
                                                                                                                      \
			if (core->ours->verb)                                                                         \
				fn = core->ours->verb;                                                                \
			if (fn)                                                                                       \
				return fn args;                                                                       \
		} else if (fn) {                                                                                      \
			return fn args;                                                                               \
		}                                                                                                     \
		return (ret)failure(#verb, _Generic((ret(*)(void))0, int (*)(void): true, default: false));           \
	}
DP_VERBS_HOOKED(HOOK)

struct hook {
	const char *name, *version;
	void *fn;
};

static const struct hook hooks[] = {
#define ENTRY(ret, verb, version, params, args) {"ibv_" #verb, version, (void *)ibv_##verb},
	DP_VERBS_HOOKED(ENTRY)
};

/* NCCL merges the ports of a card by itself; two that do so get in each other's way. */
static bool left_alone(const void *caller)
{
	return dp_caller_is(caller, "libnccl") && !dp_env_is("DUALPORT_NCCL", true);
}

static void *hook_for(void *p, const char *name, const void *caller)
{
	size_t i;

	if (!p || left_alone(caller))
		return p;
	if (!strcmp(name, "ibv_get_device_list"))
		return dp_is_real_verb(p, name, "IBVERBS_1.1") ? dp_device_list_for(p, caller) : p;
	if (!strncmp(name, "mlx5dv_", strlen("mlx5dv_")))
		return dp_mlx5dv_hook_for(p, name);
	for (i = 0; i < sizeof(hooks) / sizeof(hooks[0]); i++)
		if (!strcmp(name, hooks[i].name))
			return dp_is_real_verb(p, name, hooks[i].version) ? hooks[i].fn : p;
	return p;
}

/*
 * dlsym and dlvsym jump here, so the return address is still their caller's. Programs ask in this way whether their libibverbs
 * has a verb: what is found in this object alone is looked for behind it, which leaves the C library's own error, too.
 */
void *dp_serve_dlsym(void *handle, const char *name)
{
	void *p = dp_real_dlsym()(handle, name);

	if (p && dp_is_ours(p) && dp_only_ours(name, NULL))
		p = dp_real_dlsym()(RTLD_NEXT, name);
	return hook_for(p, name, __builtin_return_address(0));
}

void *dp_serve_dlvsym(void *handle, const char *name, const char *version)
{
	void *p = dp_real_dlvsym()(handle, name, version);

	if (p && dp_is_ours(p) && dp_only_ours(name, version))
		p = dp_real_dlvsym()(RTLD_NEXT, name, version);
	return hook_for(p, name, __builtin_return_address(0));
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* A shared object of the kind that programs open: linked with a copy of libibverbs that nobody else is linked with. */
#include "use.h"

#define EXPORT __attribute__((visibility("default")))

int plugin_use(void);
EXPORT int plugin_use(void)
{
	struct api a, *api = &a;

	API_LINKED(api);
	return use_all(api);
}

int plugin_count(const char *verb);
EXPORT int plugin_count(const char *verb)
{
	return fake_count(verb);
}

/* a context that does not tell its copy: what is found is what this object is linked with */
int plugin_old_context(void);
EXPORT int plugin_old_context(void)
{
	struct ibv_context *ctx = fake_open_old();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	/* not a jump: a caller that is gone from the stack cannot be told */
	volatile int ret = pd && pd->context == ctx ? ibv_dealloc_pd(pd) : -1;

	return ret;
}

#ifdef CONSTRUCTOR
void entry_in_constructor(void);
static void __attribute__((constructor)) start(void)
{
	entry_in_constructor();
	plugin_old_context();
	plugin_use();
}
#endif

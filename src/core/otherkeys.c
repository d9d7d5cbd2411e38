// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Remote keys that come to be without ibv_reg_mr and its like: windows', device memory's. They have no twins, but must not be
 * keys either that a peer still takes for a region's: it would send parts of a request to that region's twins.
 */
#include "rkeys.h"

#define TAGS 256u /* binding a window sets the lowest byte of its key, to what the program or the provider chooses */

/* ---- windows ---- */

struct mw_arg {
	const struct dp_ctx *c;
	struct ibv_pd *pd;
	enum ibv_mw_type type;
};

static void *make_mw(const void *arg)
{
	const struct mw_arg *a = arg;

	return a->c->ops.alloc_mw(a->pd, a->type);
}

static int drop_mw(void *mw, const void *arg)
{
	(void)arg;
	return ((struct ibv_mw *)mw)->context->ops.dealloc_mw(mw);
}

static uint32_t rkey_of_mw(const void *mw)
{
	return ((const struct ibv_mw *)mw)->rkey;
}

struct ibv_mw *dp_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct mw_arg a = { .c = dp_ctx_find(pd->context), .pd = pd, .type = type };
	struct dp_key_maker k = { .what = "a memory window allocated", .dev = dp_key_dev(a.c->dev), .tags = TAGS,
				  .rkey = rkey_of_mw, .make = make_mw, .drop = drop_mw };
	bool reused;

	return dp_key_make(&k, &a, &reused);
}

/* ---- device memory ---- */

struct dm_arg {
	const struct dp_ctx *c;
	struct ibv_pd *pd;
	struct ibv_dm *dm;
	uint64_t offset;
	size_t length;
	unsigned int access;
};

static void *make_dm_mr(const void *arg)
{
	const struct dm_arg *a = arg;

	return a->c->reg_dm_mr(a->pd, a->dm, a->offset, a->length, a->access);
}

static int drop_mr(void *mr, const void *arg)
{
	(void)arg;
	return dp_real_of(((struct ibv_mr *)mr)->context)->dereg_mr(mr);
}

struct ibv_mr *dp_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, unsigned int access)
{
	struct dm_arg a = { .c = dp_ctx_find(pd->context), .pd = pd, .dm = dm, .offset = offset, .length = length,
			    .access = access };
	struct dp_key_maker k = { .what = "a memory region registered", .dev = dp_key_dev(a.c->dev), .tags = 1,
				  .rkey = dp_rkey_of_mr, .make = make_dm_mr, .drop = drop_mr };
	bool reused;

	return dp_key_make(&k, &a, &reused);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Remote keys that come to be without ibv_reg_mr and its like: windows', device memory's. They have no twins, but must not be
 * keys either that a peer still takes for a region's: it would send parts of a request to that region's twins.
 */
#include "rkeys.h"

#include <errno.h>
#include <string.h>

#define MAX_TRIES 64
#define TAGS 256u /* binding a window sets the lowest byte of its key, to what the program or the provider chooses */

/* One object, whose key may have any of the tags in its lowest byte. */
struct other {
	uint32_t dev, tags;
	uint32_t (*rkey)(const void *object);
	void *(*make)(const void *arg);
	int (*drop)(void *object);
};

static bool blocked(const struct other *o, uint32_t rkey)
{
	if (o->tags == 1)
		return dp_key_blocked(o->dev, rkey);
	return dp_key_blocked_tags(o->dev, rkey);
}

static void wait_free(const struct other *o, uint32_t rkey)
{
	uint64_t end = dp_now_ns() + dp_lease_bound();

	for (uint32_t t = 0; t < o->tags; t++)
		dp_key_wait(o->dev, o->tags == 1 ? rkey : (rkey & ~(TAGS - 1)) | t, end);
}

/* As dp_mr_register(). */
static void *make(const struct other *o, const void *arg)
{
	void *rejected[MAX_TRIES], *obj;
	unsigned int n = 0;
	bool wait = false;
	int err;

	while ((obj = o->make(arg)) && blocked(o, o->rkey(obj))) {
		rejected[n++] = obj;
		if (n == MAX_TRIES)
			break;
	}
	err = errno;
	if (n && (!obj || n == MAX_TRIES)) {
		obj = rejected[--n];
		wait = true;
	}
	while (n)
		if (o->drop(rejected[--n]))
			dp_warn("what was made on trial for its remote key could not be given up: %s", strerror(errno));
	if (wait)
		wait_free(o, o->rkey(obj));
	errno = err;
	return obj;
}

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

static int drop_mw(void *mw)
{
	return ((struct ibv_mw *)mw)->context->ops.dealloc_mw(mw);
}

static uint32_t rkey_of_mw(const void *mw)
{
	return ((const struct ibv_mw *)mw)->rkey;
}

struct ibv_mw *dp_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct mw_arg a = { .c = dp_ctx_find(pd->context), .pd = pd, .type = type };
	struct other o = { .dev = dp_key_dev(a.c->dev), .tags = TAGS, .rkey = rkey_of_mw, .make = make_mw, .drop = drop_mw };

	return make(&o, &a);
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

static int drop_mr(void *mr)
{
	return dp_real_of(((struct ibv_mr *)mr)->context)->dereg_mr(mr);
}

static uint32_t rkey_of_mr(const void *mr)
{
	return ((const struct ibv_mr *)mr)->rkey;
}

struct ibv_mr *dp_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, unsigned int access)
{
	struct dm_arg a = { .c = dp_ctx_find(pd->context), .pd = pd, .dm = dm, .offset = offset, .length = length,
			    .access = access };
	struct other o = { .dev = dp_key_dev(a.c->dev), .tags = 1, .rkey = rkey_of_mr, .make = make_dm_mr, .drop = drop_mr };

	return make(&o, &a);
}

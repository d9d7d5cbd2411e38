// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Protection domains, also imported ones, thread domains, and parent domains, which are a PD with a thread domain. */
#include <errno.h>
#include <stdlib.h>

#include "engine.h"

struct sn_td {
	struct ibv_td td;
	uint32_t users;
};

/* A parent domain is a PD to the program, too. */
struct sn_parent {
	struct sn_pd pd;
	struct sn_td *td;
};

static LIST_HEAD(, sn_pd) all = LIST_HEAD_INITIALIZER(all);

void sn_pd_use(struct ibv_pd *ibpd)
{
	struct sn_pd *pd = (struct sn_pd *)ibpd;

	pd->users++;
	if (pd->import)
		pd->base->users++;
}

static void let_go(struct sn_pd *base)
{
	if (!--base->imports && base->left)
		free(base);
}

void sn_pd_drop(struct ibv_pd *ibpd)
{
	struct sn_pd *pd = (struct sn_pd *)ibpd;

	pd->users--;
	if (!pd->import)
		return;
	pd->base->users--;
	if (pd->users || !pd->left)
		return;
	let_go(pd->base);
	free(pd);
}

static struct sn_pd *fill(struct sn_pd *pd, struct ibv_context *c, struct sn_pd *base)
{
	static uint32_t handles;

	pd->pd.context = c;
	pd->base = base;
	pd->file = sn_ctx(c)->file;
	sn_lock();
	pd->pd.handle = base == pd ? ++handles : base->pd.handle;
	if (base == pd)
		LIST_INSERT_HEAD(&all, pd, in_all);
	sn_unlock();
	return pd;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct sn_pd *pd = calloc(1, sizeof(*pd));

	return pd ? &fill(pd, context, pd)->pd : NULL;
}

/* The domain itself, known by whatever name; 0 or a positive errno. */
static int end(struct sn_pd *base)
{
	if (base->gone)
		return ENOENT;
	if (base->users)
		return EBUSY;
	base->gone = true;
	LIST_REMOVE(base, in_all);
	return 0;
}

static int end_parent(struct sn_parent *p)
{
	if (p->pd.users)
		return EBUSY;
	p->pd.base->users--;
	if (p->td)
		p->td->users--;
	free(p);
	return 0;
}

int ibv_dealloc_pd(struct ibv_pd *ibpd)
{
	struct sn_pd *pd = (struct sn_pd *)ibpd;
	int ret;

	sn_lock();
	if (pd->base != pd && !pd->import) {
		ret = end_parent((struct sn_parent *)pd);
	} else {
		ret = end(pd->base);
		pd->left |= !ret;
		if (!ret && pd->import)
			let_go(pd->base);
		if (!ret && !pd->imports)
			free(pd);
	}
	sn_unlock();
	return ret;
}

struct ibv_pd *ibv_import_pd(struct ibv_context *c, uint32_t handle)
{
	struct sn_pd *pd = calloc(1, sizeof(*pd)), *of;

	if (!pd)
		return NULL;
	sn_lock();
	LIST_FOREACH(of, &all, in_all)
		if (of->pd.handle == handle && of->file == sn_ctx(c)->file)
			break;
	if (of)
		of->imports++;
	sn_unlock();
	if (!of) {
		free(pd);
		errno = ENOENT;
		return NULL;
	}
	pd->import = true;
	return &fill(pd, c, of)->pd;
}

/* It may have users still, whose domain goes on. */
void ibv_unimport_pd(struct ibv_pd *ibpd)
{
	struct sn_pd *pd = (struct sn_pd *)ibpd;

	sn_lock();
	pd->left = true;
	if (!pd->users) {
		let_go(pd->base);
		free(pd);
	}
	sn_unlock();
}

/* Nothing here is faster for knowing that only one thread uses it. */
struct ibv_td *sn_alloc_td(struct ibv_context *c, struct ibv_td_init_attr *attr)
{
	struct sn_td *td;

	if (attr->comp_mask) {
		errno = EINVAL;
		return NULL;
	}
	td = calloc(1, sizeof(*td));
	if (!td)
		return NULL;
	td->td.context = c;
	return &td->td;
}

int sn_dealloc_td(struct ibv_td *ibtd)
{
	struct sn_td *td = (struct sn_td *)ibtd;
	uint32_t users;

	sn_lock();
	users = td->users;
	sn_unlock();
	if (users)
		return EBUSY;
	free(td);
	return 0;
}

struct ibv_pd *sn_alloc_parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *a)
{
	struct sn_parent *p;

	/* the allocators are for buffers that a device reads, and there are none */
	if ((a->comp_mask & ~(uint32_t)(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
					IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)) || !a->pd || a->pd->context != c ||
	    (sn_base_pd(a->pd) != (struct sn_pd *)a->pd && !((struct sn_pd *)a->pd)->import)) {
		errno = EINVAL;
		return NULL;
	}
	p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	fill(&p->pd, c, ((struct sn_pd *)a->pd)->base);
	p->td = (struct sn_td *)a->td;
	sn_lock();
	p->pd.base->users++;
	if (p->td)
		p->td->users++;
	sn_unlock();
	return &p->pd.pd;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Protection domains, thread domains, and parent domains, which are a PD with a thread domain. */
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

static int drop(const uint32_t *users, void *object)
{
	uint32_t n;

	sn_lock();
	n = *users;
	sn_unlock();
	if (n)
		return EBUSY;
	free(object);
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct sn_pd *pd = calloc(1, sizeof(*pd));

	if (!pd)
		return NULL;
	pd->pd.context = context;
	pd->base = pd;
	return &pd->pd;
}

int ibv_dealloc_pd(struct ibv_pd *ibpd)
{
	struct sn_pd *pd = (struct sn_pd *)ibpd, *base = pd->base;
	struct sn_td *td = base == pd ? NULL : ((struct sn_parent *)pd)->td;
	int ret = drop(&pd->users, pd);

	if (ret || base == pd)
		return ret;
	sn_lock();
	base->users--;
	if (td)
		td->users--;
	sn_unlock();
	return 0;
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

int sn_dealloc_td(struct ibv_td *td)
{
	return drop(&((struct sn_td *)td)->users, td);
}

struct ibv_pd *sn_alloc_parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *a)
{
	struct sn_parent *p;

	/* the allocators are for buffers that a device reads, and there are none */
	if ((a->comp_mask & ~(uint32_t)(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
					IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)) || !a->pd || a->pd->context != c ||
	    sn_base_pd(a->pd) != (struct sn_pd *)a->pd) {
		errno = EINVAL;
		return NULL;
	}
	p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->pd.pd.context = c;
	p->pd.base = (struct sn_pd *)a->pd;
	p->td = (struct sn_td *)a->td;
	sn_lock();
	p->pd.base->users++;
	if (p->td)
		p->td->users++;
	sn_unlock();
	return &p->pd.pd;
}

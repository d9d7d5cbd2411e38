// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Addresses: of address handles, and of connected QPs. */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "packet.h"

int sn_av_check(uint32_t dev, const struct ibv_ah_attr *a)
{
	if (a->port_num != 1)
		return EINVAL;
	/* RoCE has no other addresses than GIDs */
	if (!a->is_global)
		return sn_shared->infiniband && a->dlid ? 0 : EINVAL;
	return sn_host_gid(dev, a->grh.sgid_index)->valid ? 0 : EINVAL;
}

int sn_av_device(const struct ibv_ah_attr *a)
{
	if (sn_shared->infiniband && a->dlid)
		return sn_host_find_lid(a->dlid);
	return sn_host_find_gid(a->grh.dgid.raw);
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct sn_ah *ah;

	errno = sn_av_check(sn_ctx(pd->context)->dev, attr);
	if (errno)
		return NULL;
	ah = calloc(1, sizeof(*ah));
	if (!ah)
		return NULL;
	ah->ah.context = pd->context;
	ah->ah.pd = pd;
	ah->attr = *attr;
	ah->dev = sn_av_device(attr);
	sn_lock();
	sn_pd_use(pd);
	sn_unlock();
	return &ah->ah;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	sn_lock();
	sn_pd_drop(ah->pd);
	sn_unlock();
	free(ah);
	return 0;
}

/* What the header of a received packet says: whether it is IPv4, who sent it, and to whom. */
static bool read_grh(const struct ibv_grh *grh, union ibv_gid *from, union ibv_gid *to, struct ibv_global_route *route)
{
	const uint8_t *ip = (const uint8_t *)grh + 20;
	uint32_t flow;

	if (!sn_shared->infiniband && ip[0] == 0x45 && be32toh(grh->version_tclass_flow) >> 28 != 6) {
		memset(from, 0, sizeof(*from));
		memset(to, 0, sizeof(*to));
		from->raw[10] = from->raw[11] = to->raw[10] = to->raw[11] = 0xff;
		memcpy(from->raw + 12, ip + 12, 4);
		memcpy(to->raw + 12, ip + 16, 4);
		route->traffic_class = ip[1];
		return true;
	}
	*from = grh->sgid;
	*to = grh->dgid;
	flow = be32toh(grh->version_tclass_flow);
	route->flow_label = flow & 0xfffff;
	route->traffic_class = (uint8_t)(flow >> 20);
	return flow >> 28 == 6;
}

int ibv_init_ah_from_wc(struct ibv_context *c, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh,
			struct ibv_ah_attr *a)
{
	union ibv_gid to;

	memset(a, 0, sizeof(*a));
	a->dlid = wc->slid;
	a->sl = wc->sl;
	a->src_path_bits = wc->dlid_path_bits;
	a->port_num = port;
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	a->is_global = 1;
	a->grh.hop_limit = 0xff;
	if (read_grh(grh, &a->grh.dgid, &to, &a->grh))
		for (uint8_t i = 0; i < SN_GIDS; i++) {
			const struct sn_gid *g = sn_host_gid(sn_ctx(c)->dev, i);

			if (g->valid && !memcmp(g->raw, to.raw, 16)) {
				a->grh.sgid_index = i;
				return 0;
			}
		}
	errno = EINVAL;
	return -1;
}

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr a;

	return ibv_init_ah_from_wc(pd->context, port, wc, grh, &a) ? NULL : ibv_create_ah(pd, &a);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Devices, contexts, and what can be asked of them. */
#include <endian.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "engine.h"

#define PORT_SPEED_EDR 32
#define WIDTH_4X 2

/* What ibv_query_port() was before it grew; the program's struct may end with these. */
#define SMALL_PORT_ATTR offsetof(struct ibv_port_attr, port_cap_flags2)

/* libibverbs' devices live until the process ends if they are opened; ours always do. */
static struct {
	struct ibv_device d;
	uint64_t none[16];	/* provider libraries look behind it for what is theirs */
} devices[SN_DEVS];

static uint32_t index_of(const struct ibv_device *d)
{
	return (uint32_t)(((const char *)d - (const char *)devices) / (ptrdiff_t)sizeof(devices[0]));
}

static void fill_device(struct ibv_device *d, uint32_t i)
{
	if (d->node_type == IBV_NODE_CA)
		return;
	snprintf(d->name, sizeof(d->name), "%s", sn_shared->devs[i].name);
	snprintf(d->dev_name, sizeof(d->dev_name), "uverbs%u", i);
	snprintf(d->dev_path, sizeof(d->dev_path), "%s/sys/class/infiniband_verbs/uverbs%u", sn_host_dir(), i);
	snprintf(d->ibdev_path, sizeof(d->ibdev_path), "%s/sys/class/infiniband/%s", sn_host_dir(),
		 sn_shared->devs[i].name); /* not d->name: compilers take all of *d for the destination */
	d->transport_type = IBV_TRANSPORT_IB;
	d->node_type = IBV_NODE_CA;
}

struct ibv_device **ibv_get_device_list(int *num)
{
	struct sn_host *h = sn_host();
	struct ibv_device **list;

	if (num)
		*num = 0;
	/* as where there are no RDMA devices: an empty list is no error */
	list = calloc((h ? h->ndevs : 0) + 1, sizeof(*list));
	if (!list || !h)
		return list;
	sn_lock();
	for (uint32_t i = 0; i < h->ndevs; i++) {
		fill_device(&devices[i].d, i);
		list[i] = &devices[i].d;
	}
	sn_unlock();
	if (num)
		*num = (int)h->ndevs;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *d)
{
	return d->name;
}

__be64 ibv_get_device_guid(struct ibv_device *d)
{
	return htobe64(sn_shared->devs[index_of(d)].node_guid);
}

int ibv_get_device_index(struct ibv_device *d)
{
	return (int)index_of(d);
}

static void set_slots(struct verbs_context *v)
{
	struct ibv_context *c = &v->context;

	v->sz = sizeof(*v);
	v->query_port = sn_query_port;
	v->query_device_ex = sn_query_device_ex;
	v->create_qp_ex = sn_create_qp_ex;
	v->open_xrcd = sn_open_xrcd;
	v->close_xrcd = sn_close_xrcd;
	v->create_srq_ex = sn_create_srq_ex;
	v->get_srq_num = sn_get_srq_num;
	v->open_qp = sn_open_qp;
	v->create_cq_ex = sn_create_cq_ex;
	v->modify_cq = sn_modify_cq;
	v->alloc_td = sn_alloc_td;
	v->dealloc_td = sn_dealloc_td;
	v->alloc_parent_domain = sn_alloc_parent_domain;
	v->query_rt_values = sn_query_rt_values;
	v->alloc_dm = sn_alloc_dm;
	v->free_dm = sn_free_dm;
	v->reg_dm_mr = sn_reg_dm_mr;
	v->advise_mr = sn_advise_mr;
	c->abi_compat = __VERBS_ABI_IS_EXTENDED;
	c->ops.poll_cq = sn_poll_cq;
	c->ops.req_notify_cq = sn_req_notify_cq;
	c->ops.post_send = sn_post_send;
	c->ops.post_recv = sn_post_recv;
	c->ops.post_srq_recv = sn_post_srq_recv;
	c->ops.alloc_mw = sn_alloc_mw;
	c->ops.bind_mw = sn_bind_mw;
	c->ops.dealloc_mw = sn_dealloc_mw;
}

struct ibv_context *sn_open(uint32_t dev, int cmd_fd, uint64_t file)
{
	struct sn_ctx *c = calloc(1, sizeof(*c));
	int ret;

	if (!c)
		return NULL;
	ret = sn_engine_open();
	if (ret) {
		free(c);
		errno = -ret;
		return NULL;
	}
	set_slots(&c->v);
	c->dev = dev;
	c->file = file;
	c->epoch = sn_engine_epoch();
	STAILQ_INIT(&c->asyncs);
	c->v.context.device = &devices[dev].d;
	c->v.context.num_comp_vectors = 1;
	pthread_mutex_init(&c->v.context.mutex, NULL);
	c->v.context.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	if (c->v.context.async_fd >= 0) {
		c->v.context.cmd_fd = cmd_fd;
		sn_engine_watch(c);
		return &c->v.context;
	}
	ret = errno;
	c->v.context.cmd_fd = -1; /* still the caller's */
	ibv_close_device(&c->v.context);
	errno = ret;
	return NULL;
}

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	uint32_t dev = index_of(d);
	struct ibv_context *c;
	uint64_t file;
	int fd = sn_file_new(dev, &file), err;

	if (fd < 0)
		return NULL;
	c = sn_open(dev, fd, file);
	if (!c) {
		err = errno;
		close(fd);
		errno = err;
	}
	return c;
}

int ibv_close_device(struct ibv_context *context)
{
	struct sn_ctx *c = sn_ctx(context);

	sn_engine_close(context);
	sn_async_drop(c);
	if (context->cmd_fd >= 0)
		close(context->cmd_fd);
	if (context->async_fd >= 0)
		close(context->async_fd);
	pthread_mutex_destroy(&context->mutex);
	free(c);
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *a)
{
	const struct sn_dev *d = &sn_shared->devs[sn_ctx(context)->dev];

	memset(a, 0, sizeof(*a));
	strcpy(a->fw_ver, "0.1.0");
	a->node_guid = htobe64(d->node_guid);
	a->sys_image_guid = htobe64(d->sys_image_guid);
	a->max_mr_size = UINT64_MAX;
	a->page_size_cap = UINT64_MAX & ~4095ull;
	/* programs take ways of their own with a ConnectX, so it is one only if that is wanted */
	a->vendor_id = sn_shared->part_id ? 0x2c9 : 0xffff00;
	a->vendor_part_id = sn_shared->part_id;
	a->max_qp = SN_QPNS;
	a->max_qp_wr = SN_MAX_WR;
	a->device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_PORT_ACTIVE_EVENT |
			      IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B |
			      IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_XRC;
	a->max_sge = a->max_sge_rd = SN_MAX_SGE;
	a->max_cq = 65536;
	a->max_cqe = SN_MAX_CQE;
	a->max_mr = 1 << 23;
	a->max_pd = 65536;
	a->max_mw = 1 << 23;
	a->max_ah = 65536;
	a->max_srq = 65536;
	a->max_srq_wr = SN_MAX_WR;
	a->max_srq_sge = SN_MAX_SGE;
	a->max_qp_rd_atom = a->max_qp_init_rd_atom = SN_MAX_RD_ATOMIC;
	a->max_res_rd_atom = SN_MAX_RD_ATOMIC * SN_QPNS;
	a->atomic_cap = IBV_ATOMIC_HCA;
	a->max_pkeys = 1;
	a->local_ca_ack_delay = 16;
	a->phys_port_cnt = 1;
	return 0;
}

int sn_query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in,
		       struct ibv_device_attr_ex *attr, size_t size)
{
	if (in && in->comp_mask)
		return EINVAL;
	if (size < sizeof(attr->orig_attr))
		return EINVAL;
	memset(attr, 0, size);
	ibv_query_device(c, &attr->orig_attr);
#define HAS(field) (size >= offsetof(struct ibv_device_attr_ex, field) + sizeof(attr->field))
	if (HAS(completion_timestamp_mask))
		attr->completion_timestamp_mask = UINT64_MAX;
	if (HAS(hca_core_clock))
		attr->hca_core_clock = 1000000; /* kHz: stamps are nanoseconds */
	if (HAS(device_cap_flags_ex))
		attr->device_cap_flags_ex = attr->orig_attr.device_cap_flags;
	if (HAS(phys_port_cnt_ex))
		attr->phys_port_cnt_ex = 1;
	if (HAS(max_dm_size))
		attr->max_dm_size = SN_DM_SIZE;
	if (HAS(xrc_odp_caps))
		attr->xrc_odp_caps = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV |
				     IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
	if (HAS(odp_caps)) {
		uint32_t ud = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;

		attr->odp_caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
		attr->odp_caps.per_transport_caps.ud_odp_caps = ud;
		attr->odp_caps.per_transport_caps.uc_odp_caps = ud | IBV_ODP_SUPPORT_WRITE;
		attr->odp_caps.per_transport_caps.rc_odp_caps = ud | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
								IBV_ODP_SUPPORT_ATOMIC;
	}
#undef HAS
	return 0;
}

int sn_query_rt_values(struct ibv_context *c, struct ibv_values_ex *v)
{
	(void)c;
	if (v->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
		return EOPNOTSUPP;
	/* the clock of completions' stamps */
	if (v->comp_mask)
		clock_gettime(CLOCK_MONOTONIC, &v->raw_clock);
	return 0;
}

int sn_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *attr, size_t size)
{
	struct ibv_port_attr a = {
		.state = IBV_PORT_ACTIVE,
		.max_mtu = IBV_MTU_4096,
		.active_mtu = IBV_MTU_4096,
		.gid_tbl_len = SN_GIDS,
		.port_cap_flags = IBV_PORT_CM_SUP,
		.max_msg_sz = SN_MAX_MSG,
		.pkey_tbl_len = 1,
		.max_vl_num = 1,
		.active_width = WIDTH_4X,
		.active_speed = PORT_SPEED_EDR,
		.phys_state = 5,
		.link_layer = IBV_LINK_LAYER_ETHERNET,
	};

	if (port != 1)
		return EINVAL;
	if (atomic_load(&sn_shared->devs[sn_ctx(c)->dev].port.dark) & SN_DARK_DOWN) {
		a.state = IBV_PORT_DOWN;
		a.phys_state = 3;
	}
	if (sn_shared->infiniband) {
		a.lid = sn_host_lid(sn_ctx(c)->dev);
		a.sm_lid = 1;
		a.link_layer = IBV_LINK_LAYER_INFINIBAND;
	} else {
		a.port_cap_flags |= IBV_PORT_IP_BASED_GIDS;
		a.flags = IBV_QPF_GRH_REQUIRED;
	}
	memset(attr, 0, size);
	memcpy(attr, &a, size < sizeof(a) ? size : sizeof(a));
	return 0;
}

/* What dlsym finds: programs that look it up pass the small struct. */
#undef ibv_query_port
int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	return sn_query_port(c, port, (struct ibv_port_attr *)attr, SMALL_PORT_ATTR);
}

static const struct sn_gid *gid_at(struct ibv_context *c, uint32_t port, uint32_t index)
{
	return port == 1 && index < SN_GIDS ? sn_host_gid(sn_ctx(c)->dev, index) : NULL;
}

int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *gid)
{
	const struct sn_gid *g = index < 0 ? NULL : gid_at(c, port, (uint32_t)index);

	if (!g) {
		errno = EINVAL;
		return -1;
	}
	/* an empty place is all zero */
	memcpy(gid->raw, g->raw, sizeof(gid->raw));
	return 0;
}

int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
		      uint32_t flags, size_t size)
{
	const struct sn_gid *g = gid_at(c, port, index);

	if (flags)
		return EOPNOTSUPP;
	if (!g || size < sizeof(*entry))
		return EINVAL;
	if (!g->valid)
		return ENODATA;
	memset(entry, 0, size);
	memcpy(entry->gid.raw, g->raw, sizeof(entry->gid.raw));
	entry->gid_index = index;
	entry->port_num = port;
	entry->gid_type = sn_shared->infiniband ? IBV_GID_TYPE_IB : IBV_GID_TYPE_ROCE_V2;
	entry->ndev_ifindex = sn_shared->infiniband ? 0 : if_nametoindex("lo");
	return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *entries, size_t max, uint32_t flags,
			     size_t size)
{
	size_t n = 0;

	if (flags || size < sizeof(*entries))
		return flags ? -EOPNOTSUPP : -EINVAL;
	for (uint32_t i = 0; i < SN_GIDS; i++) {
		if (!gid_at(c, 1, i)->valid)
			continue;
		if (n == max)
			return -EINVAL;
		_ibv_query_gid_ex(c, 1, i, (void *)((char *)entries + n++ * size), 0, size);
	}
	return (ssize_t)n;
}

/* Private to libibverbs' own tools: 0 is IB and RoCE v1, 1 is RoCE v2. */
int ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned int index, unsigned int *type);

__attribute__((visibility("default"))) int ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned int index,
							      unsigned int *type)
{
	if (!gid_at(c, port, index)) {
		errno = EINVAL;
		return -1;
	}
	*type = !sn_shared->infiniband;
	return 0;
}

int ibv_query_pkey(struct ibv_context *c, uint8_t port, int index, __be16 *pkey)
{
	(void)c;
	if (port != 1 || index) {
		errno = EINVAL;
		return -1;
	}
	*pkey = htobe16(SN_PKEY);
	return 0;
}

int ibv_get_pkey_index(struct ibv_context *c, uint8_t port, __be16 pkey)
{
	(void)c;
	if (port == 1 && pkey == htobe16(SN_PKEY))
		return 0;
	errno = ENOENT;
	return -1;
}

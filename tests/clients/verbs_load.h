/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef CLIENTS_VERBS_LOAD_H
#define CLIENTS_VERBS_LOAD_H

#include <infiniband/verbs.h>

/*
 * Every exported ibv_ function that the test clients call goes through `vb`, so that one binary can reach
 * libibverbs by each of the ways real programs use. Inline verbs (ibv_post_send, ibv_poll_cq, ...) need no
 * entry: they go through context->ops in every way of loading.
 *
 * The version is the default one of rdma-core's libibverbs.map; the completion channel calls never got a
 * version after IBVERBS_1.0.
 */
#define VERBS_FNS(X)				\
	X(get_device_list, "IBVERBS_1.1")	\
	X(free_device_list, "IBVERBS_1.1")	\
	X(get_device_name, "IBVERBS_1.1")	\
	X(open_device, "IBVERBS_1.1")		\
	X(close_device, "IBVERBS_1.1")		\
	X(query_device, "IBVERBS_1.1")		\
	X(query_port, "IBVERBS_1.1")		\
	X(query_gid, "IBVERBS_1.1")		\
	X(alloc_pd, "IBVERBS_1.1")		\
	X(dealloc_pd, "IBVERBS_1.1")		\
	X(reg_mr, "IBVERBS_1.1")		\
	X(reg_mr_iova, "IBVERBS_1.7")		\
	X(reg_mr_iova2, "IBVERBS_1.8")		\
	X(reg_dmabuf_mr, "IBVERBS_1.12")	\
	X(rereg_mr, "IBVERBS_1.1")		\
	X(dereg_mr, "IBVERBS_1.1")		\
	X(create_comp_channel, "IBVERBS_1.0")	\
	X(destroy_comp_channel, "IBVERBS_1.0")	\
	X(create_cq, "IBVERBS_1.1")		\
	X(resize_cq, "IBVERBS_1.1")		\
	X(destroy_cq, "IBVERBS_1.1")		\
	X(get_cq_event, "IBVERBS_1.1")		\
	X(ack_cq_events, "IBVERBS_1.1")		\
	X(get_async_event, "IBVERBS_1.1")	\
	X(ack_async_event, "IBVERBS_1.1")	\
	X(create_qp, "IBVERBS_1.1")		\
	X(query_qp, "IBVERBS_1.1")		\
	X(modify_qp, "IBVERBS_1.1")		\
	X(destroy_qp, "IBVERBS_1.1")		\
	X(qp_to_qp_ex, "IBVERBS_1.6")		\
	X(wc_status_str, "IBVERBS_1.1")

struct verbs_fns {
#define X(name, ver) __typeof__(ibv_##name) * name;
	VERBS_FNS(X)
#undef X
};

extern struct verbs_fns vb;

/*
 * how: "link" (the symbols this program was linked with), "dlsym" or "dlvsym" (dlopen + plain or versioned
 * look-up). path: what to dlopen; NULL is "libibverbs.so.1"; ignored with "link". Fills `vb`; 0, or -errno with
 * a line on stderr. Call once, before any thread starts.
 */
int verbs_load(const char *how, const char *path);

/* By ibv_reg_mr_ex, which came with libibverbs 1.15 and may be missing here: NULL and ENOSYS then. */
struct ibv_mr *verbs_reg_mr_ex(struct ibv_pd *pd, void *addr, size_t len, int access);

/* The file that holds the create_qp which `vb` reaches: says whether a preloaded object took the entry. */
const char *verbs_where(void);

/* ibv_query_port's exported entry fills only the first, oldest part of the struct. */
static inline int verbs_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
	*attr = (struct ibv_port_attr){ 0 };
	return vb.query_port(ctx, port, (struct _compat_ibv_port_attr *)attr);
}

#endif

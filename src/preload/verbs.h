/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * The table of verbs that libdualport touches. There are two kinds of tables of this one type:
 * "real", one per copy of libibverbs in the process, filled by the stub, and "ours", the core's hooks.
 *
 * A function that a copy of libibverbs does not have (an older one) is NULL in its real table.
 */
#ifndef DUALPORT_VERBS_H
#define DUALPORT_VERBS_H

#include <stdbool.h>
#include <infiniband/verbs.h>

/* verbs.h wraps these two in macros */
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port
#undef ibv_get_device_list

/*
 * Headers before libibverbs 1.15, 1.17 and 1.18 lack what follows. The struct is rdma-core's ibv_mr_init_attr
 * (libibverbs/verbs.h); a caller's may end before a member that its comp_mask does not name.
 */
struct ibv_mr_init_attr;
struct ibv_buf;
struct ibv_comp_cntr;
struct ibv_qp_attach_comp_cntr_attr;
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access);
int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *cntr, struct ibv_qp_attach_comp_cntr_attr *attr);

enum dp_mr_init_mask {
	DP_MR_INIT_IOVA = 1 << 0,
	DP_MR_INIT_ADDR = 1 << 1,
	DP_MR_INIT_FD = 1 << 2,
	DP_MR_INIT_FD_OFFSET = 1 << 3,
	DP_MR_INIT_DMAH = 1 << 4,
	DP_MR_INIT_BUF = 1 << 5,
	DP_MR_INIT_ALL = (1 << 6) - 1,
};

struct dp_mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
	struct ibv_buf *buf;
};

/*
 * DP_HOOKED(ret, name, version, params, args): functions that programs call and that we hook. The first
 * parameter of each leads to the ibv_context, the context to its copy of libibverbs.
 * DP_USED(...): functions that the core only calls.
 * name is without the ibv_ prefix, version is the node of libibverbs.map that it was added in.
 */
#define DP_VERBS_HOOKED(X)                                                                                            \
	X(struct ibv_pd *, alloc_pd, "IBVERBS_1.1", (struct ibv_context * ctx), (ctx))                                \
	X(int, dealloc_pd, "IBVERBS_1.1", (struct ibv_pd * pd), (pd))                                                 \
	X(struct ibv_mr *, reg_mr, "IBVERBS_1.1", (struct ibv_pd * pd, void *addr, size_t length, int access),        \
	  (pd, addr, length, access))                                                                                 \
	X(struct ibv_mr *, reg_mr_iova, "IBVERBS_1.7",                                                                \
	  (struct ibv_pd * pd, void *addr, size_t length, uint64_t iova, int access),                                 \
	  (pd, addr, length, iova, access))                                                                           \
	X(struct ibv_mr *, reg_mr_iova2, "IBVERBS_1.8",                                                               \
	  (struct ibv_pd * pd, void *addr, size_t length, uint64_t iova, unsigned int access),                        \
	  (pd, addr, length, iova, access))                                                                           \
	X(struct ibv_mr *, reg_dmabuf_mr, "IBVERBS_1.12",                                                             \
	  (struct ibv_pd * pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access),                    \
	  (pd, offset, length, iova, fd, access))                                                                     \
	X(struct ibv_mr *, reg_mr_ex, "IBVERBS_1.15", (struct ibv_pd * pd, struct ibv_mr_init_attr * attr), (pd, attr)) \
	X(struct ibv_mr *, reg_buf_mr, "IBVERBS_1.17",                                                                \
	  (struct ibv_pd * pd, struct ibv_buf * buf, void *addr, size_t length, int access),                          \
	  (pd, buf, addr, length, access))                                                                            \
	X(int, rereg_mr, "IBVERBS_1.1",                                                                               \
	  (struct ibv_mr * mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access),                  \
	  (mr, flags, pd, addr, length, access))                                                                      \
	X(int, dereg_mr, "IBVERBS_1.1", (struct ibv_mr * mr), (mr))                                                   \
	X(void, unimport_mr, "IBVERBS_1.10", (struct ibv_mr * mr), (mr))                                              \
	X(void, unimport_pd, "IBVERBS_1.10", (struct ibv_pd * pd), (pd))                                              \
	X(struct ibv_comp_channel *, create_comp_channel, "IBVERBS_1.0", (struct ibv_context * ctx), (ctx))           \
	X(int, destroy_comp_channel, "IBVERBS_1.0", (struct ibv_comp_channel * channel), (channel))                   \
	X(struct ibv_cq *, create_cq, "IBVERBS_1.1",                                                                  \
	  (struct ibv_context * ctx, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector),        \
	  (ctx, cqe, cq_context, channel, vector))                                                                    \
	X(int, resize_cq, "IBVERBS_1.1", (struct ibv_cq * cq, int cqe), (cq, cqe))                                    \
	X(int, destroy_cq, "IBVERBS_1.1", (struct ibv_cq * cq), (cq))                                                 \
	X(int, get_cq_event, "IBVERBS_1.1",                                                                           \
	  (struct ibv_comp_channel * channel, struct ibv_cq * *cq, void **cq_context), (channel, cq, cq_context))     \
	X(void, ack_cq_events, "IBVERBS_1.1", (struct ibv_cq * cq, unsigned int nevents), (cq, nevents))              \
	X(struct ibv_qp *, create_qp, "IBVERBS_1.1", (struct ibv_pd * pd, struct ibv_qp_init_attr * attr),            \
	  (pd, attr))                                                                                                 \
	X(int, modify_qp, "IBVERBS_1.1", (struct ibv_qp * qp, struct ibv_qp_attr * attr, int mask),                   \
	  (qp, attr, mask))                                                                                           \
	X(int, destroy_qp, "IBVERBS_1.1", (struct ibv_qp * qp), (qp))                                                 \
	X(struct ibv_qp_ex *, qp_to_qp_ex, "IBVERBS_1.6", (struct ibv_qp * qp), (qp))                                 \
	X(int, query_qp_data_in_order, "IBVERBS_1.14",                                                                \
	  (struct ibv_qp * qp, enum ibv_wr_opcode op, uint32_t flags), (qp, op, flags))                               \
	X(int, qp_attach_comp_cntr, "IBVERBS_1.18",                                                                   \
	  (struct ibv_qp * qp, struct ibv_comp_cntr * cntr, struct ibv_qp_attach_comp_cntr_attr * attr),              \
	  (qp, cntr, attr))                                                                                           \
	X(int, get_async_event, "IBVERBS_1.1", (struct ibv_context * ctx, struct ibv_async_event * event),            \
	  (ctx, event))                                                                                               \
	X(int, close_device, "IBVERBS_1.1", (struct ibv_context * ctx), (ctx))

#define DP_VERBS_USED(X)                                                                                              \
	X(struct ibv_device **, get_device_list, "IBVERBS_1.1", (int *num), (num))                                    \
	X(void, free_device_list, "IBVERBS_1.1", (struct ibv_device * *list), (list))                                 \
	X(const char *, get_device_name, "IBVERBS_1.1", (struct ibv_device * dev), (dev))                             \
	X(struct ibv_context *, open_device, "IBVERBS_1.1", (struct ibv_device * dev), (dev))                         \
	X(int, query_device, "IBVERBS_1.1", (struct ibv_context * ctx, struct ibv_device_attr * attr), (ctx, attr))   \
	X(int, query_port, "IBVERBS_1.1",                                                                             \
	  (struct ibv_context * ctx, uint8_t port, struct _compat_ibv_port_attr *attr), (ctx, port, attr))            \
	X(int, query_gid, "IBVERBS_1.1",                                                                              \
	  (struct ibv_context * ctx, uint8_t port, int index, union ibv_gid *gid), (ctx, port, index, gid))           \
	X(int, query_pkey, "IBVERBS_1.1",                                                                             \
	  (struct ibv_context * ctx, uint8_t port, int index, __be16 *pkey), (ctx, port, index, pkey))                \
	X(int, query_qp, "IBVERBS_1.1",                                                                               \
	  (struct ibv_qp * qp, struct ibv_qp_attr * attr, int mask, struct ibv_qp_init_attr *init),                   \
	  (qp, attr, mask, init))                                                                                     \
	X(void, ack_async_event, "IBVERBS_1.1", (struct ibv_async_event * event), (event))                            \
	X(int, _query_gid_ex, "IBVERBS_1.11",                                                                         \
	  (struct ibv_context * ctx, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags,      \
	   size_t size),                                                                                              \
	  (ctx, port, index, entry, flags, size))                                                                     \
	X(const char *, wc_status_str, "IBVERBS_1.1", (enum ibv_wc_status status), (status))

struct dp_verbs {
#define DP_VERBS_MEMBER(ret, name, version, params, args) ret(*name) params;
	DP_VERBS_HOOKED(DP_VERBS_MEMBER)
	DP_VERBS_USED(DP_VERBS_MEMBER)
#undef DP_VERBS_MEMBER
};

#define DP_CORE_ABI 5

/* What the stub gives the core. */
struct dp_stub {
	uint32_t abi;
	/*
	 * The real functions of the copy of libibverbs that ctx was opened by; NULL if that copy cannot be found.
	 * The answer is the same for the life of ctx. Thread-safe.
	 */
	const struct dp_verbs *(*real_of)(struct ibv_context *ctx);
	/*
	 * Adds delta to this thread's count of "inside": while it is not zero, every hook passes straight to
	 * the real function. libibverbs calls its own exports through the PLT, so a real function can
	 * re-enter a hook; the core's own threads stay inside for their whole life.
	 */
	void (*inside)(int delta);
	/* May lines be written to descriptor 2? It may have become something else than standard error. errno is kept. */
	bool (*stderr_is_ours)(void);
	const char *dir; /* where the stub lies, without a trailing slash */
};

/* What the core gives the stub; members of "ours" that the core leaves NULL pass natively. */
struct dp_core {
	uint32_t abi;
	const struct dp_verbs *ours;
	/* mlx5dv_init_obj was called with these objects; either may be NULL. Called before the real one. */
	void (*direct_access)(struct ibv_qp *qp, struct ibv_cq *cq);
	/* The n devices that NVSHMEM's IBRC transport is about to see: may reorder them and leave out some. */
	void (*show_devices)(struct ibv_device **list, int *n);
	/* What NVSHMEM is to see as its variable's value. */
	char *(*nvshmem_env)(const char *name, char *value);
	/* That object called that function, which makes or opens queue pairs past verbs. */
	void (*bypassed)(const char *function, const char *object);
	/* A region that mlx5dv_reg_dmabuf_mr made; called after the real one, with what it was given. */
	void (*dmabuf_made)(struct ibv_pd *pd, struct ibv_mr *mr, uint64_t offset, size_t length, uint64_t iova, int fd,
			    int access);
};

/* The core's one export. NULL if the core wants to stay out of this process (it has said why). */
__attribute__((visibility("default"))) const struct dp_core *dualport_core_start(const struct dp_stub *stub);
typedef const struct dp_core *(*dualport_core_start_fn)(const struct dp_stub *stub);

#endif

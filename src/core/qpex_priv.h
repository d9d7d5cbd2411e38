/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* Between qpex.c, which collects sessions of ibv_wr_*, and qpex_provider.c. */
#ifndef DUALPORT_QPEX_PRIV_H
#define DUALPORT_QPEX_PRIV_H

#include "known.h"
#include "qp.h"

#define DP_EX_SLOTS(X)                                                                                                      \
	X(wr_atomic_cmp_swp)                                                                                          \
	X(wr_atomic_fetch_add)                                                                                        \
	X(wr_bind_mw)                                                                                                 \
	X(wr_local_inv)                                                                                               \
	X(wr_rdma_read)                                                                                               \
	X(wr_rdma_write)                                                                                              \
	X(wr_rdma_write_imm)                                                                                          \
	X(wr_send)                                                                                                    \
	X(wr_send_imm)                                                                                                \
	X(wr_send_inv)                                                                                                \
	X(wr_set_inline_data)                                                                                         \
	X(wr_set_inline_data_list)                                                                                    \
	X(wr_set_sge)                                                                                                 \
	X(wr_set_sge_list)                                                                                            \
	X(wr_start)                                                                                                   \
	X(wr_complete)                                                                                                \
	X(wr_abort)

struct dp_ex_slots {
#define MEMBER(s) __typeof__(((struct ibv_qp_ex *)0)->s) s;
	DP_EX_SLOTS(MEMBER)
#undef MEMBER
};

enum dp_ex_setter { DP_EX_NO_DATA, DP_EX_SGE, DP_EX_SGES, DP_EX_TOO_MANY, DP_EX_INLINE };

#define DP_EX_AT_FIRST 64 /* requests, SGEs and inline bytes of a session; see struct dp_copies for why there is room before it */

/* A request of the open session. */
struct dp_ex_wr {
	struct ibv_send_wr wr; /* sg_list and next are set at the end, see dp_ex_fresh() for the first of a session */
	struct ibv_sge one;    /* DP_EX_SGE: it */
	union {
		size_t sge;		      /* _SGES, _INLINE: wr.sg_list, in sges */
		const struct ibv_sge *theirs; /* _TOO_MANY: the program's */
	};
	enum dp_ex_setter setter;
	struct ibv_mw mw; /* BIND_MW: the window as it was, see struct dp_qwr; wr.bind_mw.mw is set at the end */
};

struct dp_qpex {
	struct dp_known known; /* open: changed with session held */
	struct ibv_qp_ex *ex;
	struct dp_qp *q;
	struct dp_ex_slots real;
	uint32_t max_sge;
	dp_fast session;      /* held from wr_start to wr_complete or wr_abort, as providers do; before all others */
	_Atomic bool installed; /* set by modify_qp, unset with session */
	int err;		   /* then cur is NULL, or was begun later */
	struct dp_ex_wr *cur;	   /* the last request, NULL: there is none, or none that takes data */
	struct dp_ex_wr *wrs, *next, *last; /* next: the first that is free, of which there is one at least; last of all */
	struct ibv_sge *sges;	   /* an inline one: addr is an offset in bytes */
	size_t nsges, cap_sges;
	uint8_t *bytes;
	size_t nbytes, cap_bytes;
};

/*
 * What wr_start need not see to, since every end but that of one request of one SGE does: nothing is left of the last session, and
 * such a request will be a list as it is.
 */
static inline void dp_ex_fresh(struct dp_qpex *x)
{
	x->err = 0;
	x->nsges = x->nbytes = 0;
	x->wrs->wr.next = NULL;
	x->wrs->wr.sg_list = &x->wrs->one;
}

/* ---- qpex.c */

extern DP_HIDDEN const struct dp_ex_slots dp_ex_ours;

/* ---- qpex_provider.c */

/* Gives the provider its pointers back. With session held, in a thread of the program's. */
void dp_ex_restore(struct dp_qpex *x);

#endif

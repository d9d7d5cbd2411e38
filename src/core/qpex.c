// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * ibv_wr_*. The pointers in the program's ibv_qp_ex are ours from RTR on, until the QP is native again: a session
 * (wr_start to wr_complete) is collected into a list of WRs, and wr_complete decides what becomes of it, so that no
 * change of state can come between. A QP that is not bonded gets it played to the provider's pointers, whose answer
 * is the program's.
 *
 * The pointers are given back by the first wr_start that finds the QP native: only the program's threads, never one
 * of ours, change what the program reads without a lock.
 */
#include "qpex_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct dp_qpex none;
static DP_TLS struct dp_qpex *latest = &none; /* what this thread used last */

__attribute__((noinline)) static struct dp_qpex *find(const struct ibv_qp_ex *ex)
{
	/* qp_base is its first member */
	struct dp_qpex *x = ((struct dp_qp *)dp_hmap_getp(&dp_qps, ex))->ex;

	latest = x;
	return x;
}

/*
 * Is a session collected here? Otherwise it began with the provider's wr_start, and is the provider's. Whoever has begun one may
 * hand it to another thread (which then has seen it begin): providers' locks do not mind.
 */
static inline bool is_open(const struct dp_qpex *x, const struct ibv_qp_ex *ex)
{
	return dp_known_open(&x->known, ex);
}

#define UNPACK(...) __VA_ARGS__
/*
 * Begins our function for a slot that returns nothing, of which what follows is what is done in a session x that is collected.
 * The others are apart, so that nothing is kept for them.
 */
#define OURS(slot, args, ...)                                                                                         \
	static inline __attribute__((always_inline)) void collect_##slot(struct dp_qpex *x, __VA_ARGS__);             \
	__attribute__((noinline)) static void other_##slot(__VA_ARGS__)                                               \
	{                                                                                                             \
		struct dp_qpex *x = find(ex);                                                                         \
                                                                                                                      \
		if (is_open(x, ex))                                                                                   \
			collect_##slot(x, UNPACK args);                                                               \
		else                                                                                                  \
			x->real.slot args;                                                                            \
	}                                                                                                             \
	static void our_##slot(__VA_ARGS__)                                                                           \
	{                                                                                                             \
		struct dp_qpex *x = latest;                                                                           \
                                                                                                                      \
		if (__builtin_expect(is_open(x, ex), 1))                                                              \
			collect_##slot(x, UNPACK args);                                                               \
		else                                                                                                  \
			other_##slot args;                                                                            \
	}                                                                                                             \
	static inline __attribute__((always_inline)) void collect_##slot(struct dp_qpex *x, __VA_ARGS__)

__attribute__((noinline)) static bool make_room(void **array, size_t *cap, size_t have, size_t n, size_t size)
{
	size_t want = *cap ? *cap : DP_EX_AT_FIRST;
	void *p;

	while (want < have + n)
		want *= 2;
	p = realloc(*array, want * size);
	if (!p)
		return false;
	*array = p;
	*cap = want;
	return true;
}

/* Room for n more of size bytes each. */
static inline bool room(void **array, size_t *cap, size_t have, size_t n, size_t size)
{
	return __builtin_expect(have + n <= *cap, 1) || make_room(array, cap, have, n, size);
}

/* ---- the requests ------------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) struct dp_ex_wr *begin(const struct ibv_qp_ex *ex, struct dp_qpex *x,
								  enum ibv_wr_opcode op)
{
	struct dp_ex_wr *w = x->next;

	x->cur = w;
	w->wr.wr_id = ex->wr_id;
	w->wr.num_sge = 0;
	w->wr.opcode = op;
	/* here a setter says that data are inline, not the flag */
	w->wr.send_flags = ex->wr_flags & ~(unsigned int)IBV_SEND_INLINE;
	w->setter = DP_EX_NO_DATA;
	return w;
}

/* The session will be refused. Its last request takes no data any more, and is not one of one SGE whatever it had. */
static void refuse(struct dp_qpex *x, int err)
{
	x->err = err;
	if (x->cur)
		x->cur->setter = DP_EX_NO_DATA;
	x->cur = NULL;
}

/* Makes room for more requests, or takes the last one back. */
__attribute__((noinline)) static void more(struct dp_qpex *x)
{
	size_t n = (size_t)(x->next - x->wrs), cap = n;

	if (make_room((void **)&x->wrs, &cap, n, 1, sizeof(*x->wrs))) {
		x->next = x->wrs + n;
		x->last = x->wrs + cap - 1;
		x->cur = x->next - 1;
	} else {
		refuse(x, ENOMEM);
		x->next--;
	}
}

/* The request has all but its data. At the end of what a slot does, so that nothing is kept for it. */
static inline __attribute__((always_inline)) void begun(struct dp_qpex *x, struct dp_ex_wr *w)
{
	x->next = w + 1;
	if (__builtin_expect(w == x->last, 0))
		more(x);
}

static inline __attribute__((always_inline)) void rdma(const struct ibv_qp_ex *ex, struct dp_qpex *x, enum ibv_wr_opcode op,
							uint32_t rkey, uint64_t addr, __be32 imm)
{
	struct dp_ex_wr *w = begin(ex, x, op);

	if (op == IBV_WR_RDMA_WRITE_WITH_IMM)
		w->wr.imm_data = imm;
	w->wr.wr.rdma.remote_addr = addr;
	w->wr.wr.rdma.rkey = rkey;
	begun(x, w);
}

static void atomic(const struct ibv_qp_ex *ex, struct dp_qpex *x, enum ibv_wr_opcode op, uint32_t rkey, uint64_t addr,
		   uint64_t compare_add, uint64_t swap)
{
	struct dp_ex_wr *w = begin(ex, x, op);

	w->wr.wr.atomic.remote_addr = addr;
	w->wr.wr.atomic.rkey = rkey;
	w->wr.wr.atomic.compare_add = compare_add;
	w->wr.wr.atomic.swap = swap;
	begun(x, w);
}

static void inv(const struct ibv_qp_ex *ex, struct dp_qpex *x, enum ibv_wr_opcode op, uint32_t rkey)
{
	struct dp_ex_wr *w = begin(ex, x, op);

	w->wr.invalidate_rkey = rkey;
	begun(x, w);
}

OURS(wr_atomic_cmp_swp, (ex, rkey, addr, compare, swap), struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t compare,
     uint64_t swap)
{
	atomic(ex, x, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr, compare, swap);
}

OURS(wr_atomic_fetch_add, (ex, rkey, addr, add), struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t add)
{
	atomic(ex, x, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr, add, 0);
}

OURS(wr_bind_mw, (ex, mw, rkey, info), struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey,
     const struct ibv_mw_bind_info *info)
{
	struct dp_ex_wr *w = begin(ex, x, IBV_WR_BIND_MW);

	w->wr.bind_mw.mw = mw;
	if (mw)
		w->mw = *mw;
	w->wr.bind_mw.rkey = rkey;
	w->wr.bind_mw.bind_info = *info;
	begun(x, w);
	x->cur = NULL;
}

OURS(wr_local_inv, (ex, rkey), struct ibv_qp_ex *ex, uint32_t rkey)
{
	inv(ex, x, IBV_WR_LOCAL_INV, rkey);
}

OURS(wr_rdma_read, (ex, rkey, addr), struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	rdma(ex, x, IBV_WR_RDMA_READ, rkey, addr, 0);
}

OURS(wr_rdma_write, (ex, rkey, addr), struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	rdma(ex, x, IBV_WR_RDMA_WRITE, rkey, addr, 0);
}

OURS(wr_rdma_write_imm, (ex, rkey, addr, imm), struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, __be32 imm)
{
	rdma(ex, x, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr, imm);
}

OURS(wr_send, (ex), struct ibv_qp_ex *ex)
{
	begun(x, begin(ex, x, IBV_WR_SEND));
}

OURS(wr_send_imm, (ex, imm), struct ibv_qp_ex *ex, __be32 imm)
{
	struct dp_ex_wr *w = begin(ex, x, IBV_WR_SEND_WITH_IMM);

	w->wr.imm_data = imm;
	begun(x, w);
}

OURS(wr_send_inv, (ex, rkey), struct ibv_qp_ex *ex, uint32_t rkey)
{
	inv(ex, x, IBV_WR_SEND_WITH_INV, rkey);
}

/* ---- their data --------------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) struct ibv_sge *more_sges(struct dp_qpex *x, size_t n)
{
	struct dp_ex_wr *w = x->cur;

	if (!w)
		return NULL;
	/* a session of one request that was given data twice, these not the last, has left them */
	if (w == x->wrs)
		x->nsges = x->nbytes = 0;
	if (!room((void **)&x->sges, &x->cap_sges, x->nsges, n, sizeof(*x->sges))) {
		refuse(x, ENOMEM);
		return NULL;
	}
	w->sge = x->nsges;
	w->wr.num_sge = (int)n;
	x->nsges += n;
	return &x->sges[w->sge];
}

OURS(wr_set_sge, (ex, lkey, addr, length), struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct dp_ex_wr *w = x->cur;

	(void)ex;
	if (!w)
		return;
	w->one = (struct ibv_sge){ .addr = addr, .length = length, .lkey = lkey };
	w->wr.num_sge = 1;
	w->setter = DP_EX_SGE;
}

OURS(wr_set_sge_list, (ex, n, list), struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list)
{
	struct ibv_sge *s;

	(void)ex;
	/* the provider refuses it for its length, and must be the first to look at it */
	if (x->cur && n > x->max_sge) {
		x->cur->theirs = list;
		x->cur->wr.num_sge = n < INT32_MAX ? (int)n : INT32_MAX;
		x->cur->setter = DP_EX_TOO_MANY;
		return;
	}
	s = more_sges(x, n);
	if (!s)
		return;
	if (n)
		memcpy(s, list, n * sizeof(*s));
	x->cur->setter = DP_EX_SGES;
}

/* One piece of all, however many the program has: nobody can tell them apart any more. */
static void set_inline(struct dp_qpex *x, size_t n, const struct ibv_data_buf *list)
{
	size_t at, len = 0;
	struct ibv_sge *s;

	for (size_t i = 0; i < n; i++) {
		/* what no provider takes is not copied either */
		if (list[i].length > (size_t)UINT16_MAX - len) {
			refuse(x, EINVAL);
			return;
		}
		len += list[i].length;
	}
	s = more_sges(x, 1);
	if (!s)
		return;
	at = x->nbytes;
	if (!room((void **)&x->bytes, &x->cap_bytes, at, len, 1)) {
		refuse(x, ENOMEM);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		if (list[i].length)
			memcpy(x->bytes + x->nbytes, list[i].addr, list[i].length);
		x->nbytes += list[i].length;
	}
	*s = (struct ibv_sge){ .addr = at, .length = (uint32_t)len };
	x->cur->setter = DP_EX_INLINE;
}

OURS(wr_set_inline_data, (ex, addr, length), struct ibv_qp_ex *ex, void *addr, size_t length)
{
	struct ibv_data_buf b = { .addr = addr, .length = length };

	(void)ex;
	if (x->cur)
		set_inline(x, 1, &b);
}

OURS(wr_set_inline_data_list, (ex, n, list), struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list)
{
	(void)ex;
	if (x->cur)
		set_inline(x, n, list);
}

/* ---- start and end ------------------------------------------------------------------------------------------ */

/* The provider's session, with x's held, which is not of use here. */
__attribute__((noinline)) static void start_native(struct dp_qpex *x)
{
	if (x->installed)
		dp_ex_restore(x);
	dp_drop(&x->session);
	x->real.wr_start(x->ex);
}

/* With session held. */
static inline __attribute__((always_inline)) void start(struct dp_qpex *x, const struct ibv_qp_ex *ex)
{
	dp_known_set_open(&x->known, ex);
	x->next = x->wrs;
	x->cur = NULL;
}

__attribute__((noinline)) static void find_and_start(const struct ibv_qp_ex *ex)
{
	struct dp_qpex *x = find(ex);

	dp_take(&x->session);
	if (x->installed)
		dp_known_found(&x->known, ex);
	/* seq_cst: if it becomes native after this, it is hidden after it was found */
	if (!x->installed || atomic_load_explicit(&x->q->state, memory_order_seq_cst) == DP_QP_NATIVE)
		start_native(x);
	else
		start(x, ex);
}

static void our_wr_start(struct ibv_qp_ex *ex)
{
	struct dp_qpex *x = latest;

	/*
	 * NULL: the thread was being made while the core was opened, and the C library forgot to give it what its variables
	 * begin with
	 */
	if (__builtin_expect(x && dp_known_is(&x->known, ex) && dp_try(&x->session), 1))
		start(x, ex);
	else
		find_and_start(ex);
}

static void end(struct dp_qpex *x)
{
	dp_ex_fresh(x);
	dp_known_set_open(&x->known, NULL);
	dp_drop(&x->session);
}

/* The arrays have their places now. */
__attribute__((noinline)) static void link_list(struct dp_qpex *x)
{
	for (struct dp_ex_wr *w = x->wrs; w < x->next; w++) {
		w->wr.next = w + 1 < x->next ? &w[1].wr : NULL;
		if (w->setter == DP_EX_SGE)
			w->wr.sg_list = &w->one;
		else if (w->setter == DP_EX_TOO_MANY)
			w->wr.sg_list = (struct ibv_sge *)w->theirs;
		else
			w->wr.sg_list = w->wr.num_sge ? &x->sges[w->sge] : NULL;
		if (w->setter == DP_EX_INLINE) {
			w->wr.sg_list->addr += (uintptr_t)x->bytes;
			w->wr.send_flags |= IBV_SEND_INLINE;
		}
		if (w->wr.opcode == IBV_WR_BIND_MW && w->wr.bind_mw.mw)
			w->wr.bind_mw.mw = &w->mw;
	}
}

/* The list that was collected, NULL: it is empty. */
__attribute__((noinline)) static struct ibv_send_wr *list_of(struct dp_qpex *x)
{
	link_list(x);
	return x->next == x->wrs ? NULL : &x->wrs[0].wr;
}

__attribute__((noinline)) static int other_wr_complete(struct ibv_qp_ex *ex)
{
	struct dp_qpex *x = find(ex);
	int ret;

	if (!is_open(x, ex))
		return x->real.wr_complete(ex);
	ret = x->err ? x->err : dp_post_session(x->q, list_of(x));
	end(x);
	return ret;
}

/* With ret as it is, so that our_wr_complete() keeps it nowhere. */
__attribute__((noinline)) static int wake(struct dp_qpex *x, int ret)
{
	dp_fast_wake(&x->session);
	return ret;
}

static int our_wr_complete(struct ibv_qp_ex *ex)
{
	struct dp_qpex *x = latest;
	struct dp_ex_wr *w;
	int ret;

	if (__builtin_expect(!is_open(x, ex), 0))
		return other_wr_complete(ex);
	w = x->wrs;
	/* one of one SGE, the first being the last, is a list as it is */
	if (__builtin_expect(x->cur != w || w->setter != DP_EX_SGE, 0))
		return other_wr_complete(ex);
	ret = dp_may_go_alone(x->q, &w->wr, w->one.length) ? dp_post_session_lone(x->q, &w->wr, w->one.length)
							   : dp_post_session_rest(x->q, &w->wr, w->one.length);
	dp_known_set_open(&x->known, NULL);
	return __builtin_expect(dp_fast_drop(&x->session), 0) ? wake(x, ret) : ret;
}

OURS(wr_abort, (ex), struct ibv_qp_ex *ex)
{
	(void)ex;
	end(x);
}

const struct dp_ex_slots dp_ex_ours = {
#define OUR(s) .s = our_##s,
	DP_EX_SLOTS(OUR)
#undef OUR
};

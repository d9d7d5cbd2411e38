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
#include "qp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS(X)                                                                                                      \
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

struct slots {
#define MEMBER(s) __typeof__(((struct ibv_qp_ex *)0)->s) s;
	SLOTS(MEMBER)
#undef MEMBER
};

enum setter { NO_DATA, SGES, TOO_MANY, INLINE };

#define AT_FIRST 64 /* requests, SGEs and inline bytes of a session; see struct dp_copies for why there is room before it */

/* A request of the open session. */
struct ex_wr {
	struct ibv_send_wr wr; /* sg_list and next are set at the end, when the arrays do not move any more */
	size_t sge;	       /* of wr.sg_list, in sges; but where there are too many, wr.sg_list is the program's */
	enum setter setter;
	struct ibv_mw mw; /* BIND_MW: the window as it was, see struct dp_qwr; wr.bind_mw.mw is set at the end */
};

struct dp_qpex {
	struct ibv_qp_ex *ex;
	struct dp_qp *q;
	struct slots real;
	uint32_t max_sge;
	dp_fast session;      /* held from wr_start to wr_complete or wr_abort, as providers do; before all others */
	_Atomic bool installed; /* set by modify_qp, unset with session */
	_Atomic(void *) owner; /* the thread whose session is collected here; it alone reads its own value */
	int err;
	struct ex_wr *wrs, *cur; /* cur: of the last request, NULL: none that takes data */
	size_t n, cap;
	struct ibv_sge *sges; /* an inline one: addr is an offset in bytes */
	size_t nsges, cap_sges;
	uint8_t *bytes;
	size_t nbytes, cap_bytes;
};

/* What a list of ibv_send_wr can say. TSO is for datagrams; of what came later there is no slot here. */
#define SAYABLE                                                                                                       \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |                       \
	 IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |                \
	 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |                    \
	 IBV_QP_EX_WITH_SEND_WITH_INV)

/* The session that this thread opened last, if it is open: spares the look-ups, and its address names the thread. */
static DP_TLS struct {
	const struct ibv_qp_ex *ex;
	struct dp_qpex *x;
} latest;

static void *self(void)
{
	return &latest;
}

static inline struct dp_qpex *find(struct ibv_qp_ex *ex)
{
	if (__builtin_expect(latest.ex == ex, 1))
		return latest.x;
	/* qp_base is its first member */
	return ((struct dp_qp *)dp_hmap_getp(&dp_qps, ex))->ex;
}

/*
 * Is this call part of a session that is collected here? Otherwise it began with the provider's wr_start, and
 * whatever follows is the provider's.
 */
static inline bool mine(const struct dp_qpex *x)
{
	return atomic_load_explicit(&x->owner, memory_order_relaxed) == self();
}

__attribute__((noinline)) static bool make_room(void **array, size_t *cap, size_t have, size_t n, size_t size)
{
	size_t want = *cap ? *cap : AT_FIRST;
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

/* Inlined, as more_sges(): they are most of what a request costs here. */
static inline __attribute__((always_inline)) struct ibv_send_wr *begin(struct ibv_qp_ex *ex, struct dp_qpex *x,
									enum ibv_wr_opcode op)
{
	struct ex_wr *w;

	x->cur = NULL;
	if (!room((void **)&x->wrs, &x->cap, x->n, 1, sizeof(*x->wrs))) {
		x->err = ENOMEM;
		return NULL;
	}
	w = x->cur = &x->wrs[x->n++];
	w->wr.wr_id = ex->wr_id;
	w->wr.opcode = op;
	/* here a setter says that data are inline, not the flag */
	w->wr.send_flags = ex->wr_flags & ~(unsigned int)IBV_SEND_INLINE;
	w->wr.num_sge = 0;
	w->sge = 0;
	w->setter = NO_DATA;
	return &w->wr;
}

static inline __attribute__((always_inline)) void begin_rdma(struct ibv_qp_ex *ex, struct dp_qpex *x, enum ibv_wr_opcode op,
							      uint32_t rkey, uint64_t addr, __be32 imm)
{
	struct ibv_send_wr *wr = begin(ex, x, op);

	if (!wr)
		return;
	wr->imm_data = imm;
	wr->wr.rdma.remote_addr = addr;
	wr->wr.rdma.rkey = rkey;
}

static void begin_atomic(struct ibv_qp_ex *ex, struct dp_qpex *x, enum ibv_wr_opcode op, uint32_t rkey, uint64_t addr,
			 uint64_t compare_add, uint64_t swap)
{
	struct ibv_send_wr *wr = begin(ex, x, op);

	if (!wr)
		return;
	wr->wr.atomic.remote_addr = addr;
	wr->wr.atomic.rkey = rkey;
	wr->wr.atomic.compare_add = compare_add;
	wr->wr.atomic.swap = swap;
}

static void begin_inv(struct ibv_qp_ex *ex, struct dp_qpex *x, enum ibv_wr_opcode op, uint32_t rkey)
{
	struct ibv_send_wr *wr = begin(ex, x, op);

	if (wr)
		wr->invalidate_rkey = rkey;
}

#define PASS_UNLESS_MINE(x, slot, ...)                                                                                \
	do {                                                                                                          \
		if (!mine(x)) {                                                                                       \
			(x)->real.slot(__VA_ARGS__);                                                                  \
			return;                                                                                       \
		}                                                                                                     \
	} while (0)

static void our_wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap)
{
	struct dp_qpex *x = find(ex);

	PASS_UNLESS_MINE(x, wr_atomic_cmp_swp, ex, rkey, addr, compare, swap);
	begin_atomic(ex, x, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr, compare, swap);
}

static void our_wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t add)
{
	struct dp_qpex *x = find(ex);

	PASS_UNLESS_MINE(x, wr_atomic_fetch_add, ex, rkey, addr, add);
	begin_atomic(ex, x, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr, add, 0);
}

static void our_wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	struct dp_qpex *x = find(ex);
	struct ibv_send_wr *wr;

	PASS_UNLESS_MINE(x, wr_bind_mw, ex, mw, rkey, info);
	wr = begin(ex, x, IBV_WR_BIND_MW);
	if (!wr)
		return;
	wr->bind_mw.mw = mw;
	if (mw)
		x->wrs[x->n - 1].mw = *mw;
	wr->bind_mw.rkey = rkey;
	wr->bind_mw.bind_info = *info;
}

static void our_wr_local_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	struct dp_qpex *x = find(ex);

	PASS_UNLESS_MINE(x, wr_local_inv, ex, rkey);
	begin_inv(ex, x, IBV_WR_LOCAL_INV, rkey);
}

static void our_wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	struct dp_qpex *x = find(ex);

	PASS_UNLESS_MINE(x, wr_rdma_read, ex, rkey, addr);
	begin_rdma(ex, x, IBV_WR_RDMA_READ, rkey, addr, 0);
}

static void our_wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	struct dp_qpex *x = find(ex);

	PASS_UNLESS_MINE(x, wr_rdma_write, ex, rkey, addr);
	begin_rdma(ex, x, IBV_WR_RDMA_WRITE, rkey, addr, 0);
}

static void our_wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, __be32 imm)
{
	struct dp_qpex *x = find(ex);

	PASS_UNLESS_MINE(x, wr_rdma_write_imm, ex, rkey, addr, imm);
	begin_rdma(ex, x, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr, imm);
}

static void our_wr_send(struct ibv_qp_ex *ex)
{
	struct dp_qpex *x = find(ex);

	PASS_UNLESS_MINE(x, wr_send, ex);
	begin(ex, x, IBV_WR_SEND);
}

static void our_wr_send_imm(struct ibv_qp_ex *ex, __be32 imm)
{
	struct dp_qpex *x = find(ex);
	struct ibv_send_wr *wr;

	PASS_UNLESS_MINE(x, wr_send_imm, ex, imm);
	wr = begin(ex, x, IBV_WR_SEND_WITH_IMM);
	if (wr)
		wr->imm_data = imm;
}

static void our_wr_send_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	struct dp_qpex *x = find(ex);

	PASS_UNLESS_MINE(x, wr_send_inv, ex, rkey);
	begin_inv(ex, x, IBV_WR_SEND_WITH_INV, rkey);
}

/* ---- their data --------------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) struct ibv_sge *more_sges(struct dp_qpex *x, size_t n)
{
	struct ex_wr *w = x->cur;

	if (!w)
		return NULL;
	if (!room((void **)&x->sges, &x->cap_sges, x->nsges, n, sizeof(*x->sges))) {
		x->err = ENOMEM;
		return NULL;
	}
	w->sge = x->nsges;
	w->wr.num_sge = (int)n;
	x->nsges += n;
	return &x->sges[w->sge];
}

static void our_wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct dp_qpex *x = find(ex);
	struct ibv_sge *s;

	PASS_UNLESS_MINE(x, wr_set_sge, ex, lkey, addr, length);
	s = more_sges(x, 1);
	if (!s)
		return;
	*s = (struct ibv_sge){ .addr = addr, .length = length, .lkey = lkey };
	x->cur->setter = SGES;
}

static void our_wr_set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list)
{
	struct dp_qpex *x = find(ex);
	struct ibv_sge *s;

	PASS_UNLESS_MINE(x, wr_set_sge_list, ex, n, list);
	/* the provider refuses it for its length, and must be the first to look at it */
	if (x->cur && n > x->max_sge) {
		x->cur->wr.sg_list = (struct ibv_sge *)list;
		x->cur->wr.num_sge = n < INT32_MAX ? (int)n : INT32_MAX;
		x->cur->setter = TOO_MANY;
		return;
	}
	s = more_sges(x, n);
	if (!s)
		return;
	if (n)
		memcpy(s, list, n * sizeof(*s));
	x->cur->setter = SGES;
}

/* One piece of all, however many the program has: nobody can tell them apart any more. */
static void set_inline(struct dp_qpex *x, size_t n, const struct ibv_data_buf *list)
{
	size_t at = x->nbytes, len = 0;
	struct ibv_sge *s;

	for (size_t i = 0; i < n; i++) {
		/* what no provider takes is not copied either */
		if (list[i].length > (size_t)UINT16_MAX - len) {
			x->err = EINVAL;
			return;
		}
		len += list[i].length;
	}
	s = more_sges(x, 1);
	if (!s)
		return;
	if (!room((void **)&x->bytes, &x->cap_bytes, at, len, 1)) {
		x->err = ENOMEM;
		return;
	}
	for (size_t i = 0; i < n; i++) {
		if (list[i].length)
			memcpy(x->bytes + x->nbytes, list[i].addr, list[i].length);
		x->nbytes += list[i].length;
	}
	*s = (struct ibv_sge){ .addr = at, .length = (uint32_t)len };
	x->cur->setter = INLINE;
	x->cur->wr.send_flags |= IBV_SEND_INLINE;
}

static void our_wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	struct ibv_data_buf b = { .addr = addr, .length = length };
	struct dp_qpex *x = find(ex);

	PASS_UNLESS_MINE(x, wr_set_inline_data, ex, addr, length);
	if (x->cur)
		set_inline(x, 1, &b);
}

static void our_wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list)
{
	struct dp_qpex *x = find(ex);

	PASS_UNLESS_MINE(x, wr_set_inline_data_list, ex, n, list);
	if (x->cur)
		set_inline(x, n, list);
}

/* ---- start and end ------------------------------------------------------------------------------------------ */

static void restore(struct dp_qpex *x)
{
	/* the program's other threads may read them at this moment: aligned stores */
#define PUT_BACK(s)                                                                                                   \
	if (x->real.s)                                                                                                \
		__atomic_store_n(&x->ex->s, x->real.s, __ATOMIC_RELEASE);
	SLOTS(PUT_BACK)
#undef PUT_BACK
	x->installed = false;
}

static void our_wr_start(struct ibv_qp_ex *ex)
{
	struct dp_qp *q = dp_hmap_getp(&dp_qps, ex);
	struct dp_qpex *x = q->ex;

	dp_take(&x->session);
	/* acquire: as in dp_post_send() */
	if (x->installed && atomic_load_explicit(&q->state, memory_order_acquire) == DP_QP_NATIVE)
		restore(x);
	if (!x->installed) {
		dp_drop(&x->session);
		x->real.wr_start(ex);
		return;
	}
	atomic_store_explicit(&x->owner, self(), memory_order_relaxed);
	latest.ex = ex;
	latest.x = x;
	x->n = x->nsges = x->nbytes = 0;
	x->err = 0;
	x->cur = NULL;
}

static void end(struct dp_qpex *x)
{
	if (latest.x == x)
		latest.ex = NULL;
	atomic_store_explicit(&x->owner, NULL, memory_order_relaxed);
	dp_drop(&x->session);
}

/* The arrays have their places now. */
static void link_list(struct dp_qpex *x)
{
	for (size_t i = 0; i < x->n; i++) {
		struct ex_wr *w = &x->wrs[i];

		w->wr.next = i + 1 < x->n ? &x->wrs[i + 1].wr : NULL;
		if (w->setter != TOO_MANY)
			w->wr.sg_list = w->wr.num_sge ? &x->sges[w->sge] : NULL;
		if (w->setter == INLINE)
			w->wr.sg_list->addr += (uintptr_t)x->bytes;
		if (w->wr.opcode == IBV_WR_BIND_MW && w->wr.bind_mw.mw)
			w->wr.bind_mw.mw = &w->mw;
	}
}

static int our_wr_complete(struct ibv_qp_ex *ex)
{
	struct dp_qpex *x = find(ex);
	int ret;

	if (!mine(x))
		return x->real.wr_complete(ex);
	ret = x->err;
	if (!ret) {
		link_list(x);
		ret = dp_post_session(x->q, x->n ? &x->wrs[0].wr : NULL);
	}
	end(x);
	return ret;
}

static void our_wr_abort(struct ibv_qp_ex *ex)
{
	struct dp_qpex *x = find(ex);

	PASS_UNLESS_MINE(x, wr_abort, ex);
	end(x);
}

static void play_one(struct dp_qpex *x, const struct ex_wr *w)
{
	const struct slots *r = &x->real;
	const struct ibv_send_wr *wr = &w->wr;
	struct ibv_qp_ex *ex = x->ex;

	ex->wr_id = wr->wr_id;
	ex->wr_flags = wr->send_flags & ~(unsigned int)IBV_SEND_INLINE;
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
		r->wr_rdma_write(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		r->wr_rdma_write_imm(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
		break;
	case IBV_WR_RDMA_READ:
		r->wr_rdma_read(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_SEND_WITH_IMM:
		r->wr_send_imm(ex, wr->imm_data);
		break;
	case IBV_WR_SEND_WITH_INV:
		r->wr_send_inv(ex, wr->invalidate_rkey);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		r->wr_atomic_cmp_swp(ex, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add,
				     wr->wr.atomic.swap);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		r->wr_atomic_fetch_add(ex, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add);
		break;
	case IBV_WR_LOCAL_INV:
		r->wr_local_inv(ex, wr->invalidate_rkey);
		break;
	case IBV_WR_BIND_MW:
		r->wr_bind_mw(ex, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
		break;
	default:
		r->wr_send(ex);
	}
	if (w->setter == INLINE)
		r->wr_set_inline_data(ex, (void *)(uintptr_t)wr->sg_list->addr, wr->sg_list->length);
	else if (w->setter == SGES && wr->num_sge == 1)
		r->wr_set_sge(ex, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
	else if (w->setter != NO_DATA)
		r->wr_set_sge_list(ex, (size_t)wr->num_sge, wr->sg_list);
}

int dp_qpex_play(struct dp_qp *q)
{
	struct dp_qpex *x = q->ex;
	uint64_t wr_id = x->ex->wr_id;
	unsigned int flags = x->ex->wr_flags;

	x->real.wr_start(x->ex);
	for (size_t i = 0; i < x->n; i++)
		play_one(x, &x->wrs[i]);
	/* they stay as the program has set them: it need not set them again for its next request */
	x->ex->wr_id = wr_id;
	x->ex->wr_flags = flags;
	return x->real.wr_complete(x->ex);
}

/* ---- its life ----------------------------------------------------------------------------------------------- */

bool dp_qpex_can(uint64_t send_ops)
{
	return !(send_ops & ~(uint64_t)SAYABLE);
}

int dp_qpex_new(struct dp_qp *q)
{
	struct ibv_qp_ex *ex = q->c->real->qp_to_qp_ex ? q->c->real->qp_to_qp_ex(q->qp) : NULL;
	struct dp_qpex *x;

	if (!ex)
		return -EOPNOTSUPP;
	x = calloc(1, sizeof(*x));
	if (!x)
		return -ENOMEM;
	x->ex = ex;
	x->q = q;
	x->max_sge = q->cap.max_send_sge;
	dp_lock_init(&x->session);
	q->ex = x;
	if (!room((void **)&x->wrs, &x->cap, 0, AT_FIRST, sizeof(*x->wrs)) ||
	    !room((void **)&x->sges, &x->cap_sges, 0, AT_FIRST, sizeof(*x->sges)) ||
	    !room((void **)&x->bytes, &x->cap_bytes, 0, q->cap.max_inline_data + 1, 1)) {
		dp_qpex_free(q);
		return -ENOMEM;
	}
	return 0;
}

void dp_qpex_free(struct dp_qp *q)
{
	struct dp_qpex *x = q->ex;

	if (!x)
		return;
	if (latest.x == x) /* it was left open */
		latest.ex = NULL;
	dp_lock_fini(&x->session);
	free(x->wrs);
	free(x->sges);
	free(x->bytes);
	free(x);
	q->ex = NULL;
}

/* Takes the pointers that are not ours, which the provider has set. */
static void wrap(struct dp_qpex *x)
{
#define WRAP(s)                                                                                                       \
	if (x->ex->s && x->ex->s != our_##s) {                                                                        \
		x->real.s = x->ex->s;                                                                                 \
		__atomic_store_n(&x->ex->s, our_##s, __ATOMIC_RELEASE);                                               \
	}
	SLOTS(WRAP)
#undef WRAP
}

void dp_qpex_install(struct dp_qp *q)
{
	if (!q->ex)
		return;
	wrap(q->ex);
	q->ex->installed = true;
}

bool dp_qpex_before_modify(struct dp_qp *q)
{
	/* whoever has a session open may be the caller itself */
	return q->ex && dp_try(&q->ex->session);
}

void dp_qpex_after_modify(struct dp_qp *q, bool locked)
{
	if (q->ex && q->ex->installed)
		wrap(q->ex);
	if (locked)
		dp_drop(&q->ex->session);
}

void dp_qpex_after_fork(struct dp_qp *q)
{
	if (q->ex)
		dp_lock_init(&q->ex->session);
}

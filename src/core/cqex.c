// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Extended CQs. While a QP of ours sends into one, its pointers are ours: start_poll and next_poll take one
 * completion as poll_cq would, and the readers give its fields. What may be given is found with the CQ's lock,
 * which the program does not hold between start_poll and end_poll: it may post, or move a QP to ERR there.
 *
 * Of the program's CQ completions are read by the provider's poll_cq, except where the CQ was made to tell more
 * than an ibv_wc has room for: then by the provider's own start_poll, also by the progress thread, so that nothing
 * is lost of what is held. That writes status and wr_id, which are fields of the program's: never while the program
 * polls (polling).
 *
 * As with QPs (qpex.c), only threads of the program change its pointers.
 */
#include "known.h"
#include "qp.h"

#include <errno.h>
#include <stdlib.h>

#define READERS(X)                                                                                                    \
	X(enum ibv_wc_opcode, opcode, x->wc.opcode)                                                                   \
	X(uint32_t, vendor_err, x->wc.vendor_err)                                                                     \
	X(uint32_t, byte_len, x->wc.byte_len)                                                                         \
	X(__be32, imm_data, x->wc.imm_data)                                                                           \
	X(uint32_t, qp_num, x->wc.qp_num)                                                                             \
	X(uint32_t, src_qp, x->wc.src_qp)                                                                             \
	X(unsigned int, wc_flags, x->wc.wc_flags)                                                                     \
	X(uint32_t, slid, x->extra ? x->more.slid : x->wc.slid)                                                       \
	X(uint8_t, sl, x->wc.sl)                                                                                      \
	X(uint8_t, dlid_path_bits, x->wc.dlid_path_bits)                                                              \
	X(uint64_t, completion_ts, x->more.ts)                                                                        \
	X(uint16_t, cvlan, x->more.cvlan)                                                                             \
	X(uint32_t, flow_tag, x->more.flow_tag)                                                                       \
	X(uint64_t, completion_wallclock_ns, x->more.wall_ns)

struct slots {
#define MEMBER(type, name, value) type (*read_##name)(struct ibv_cq_ex *ex);
	READERS(MEMBER)
#undef MEMBER
	void (*read_tm_info)(struct ibv_cq_ex *ex, struct ibv_wc_tm_info *info);
	int (*start_poll)(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr);
	int (*next_poll)(struct ibv_cq_ex *ex);
	void (*end_poll)(struct ibv_cq_ex *ex);
};

struct dp_cqex {
	struct dp_known known; /* open: start_poll has given one, with polling held, until end_poll */
	struct ibv_cq_ex *ex;
	struct dp_cq *cq;
	struct slots real;
	bool extra;	       /* it tells more than an ibv_wc has room for */
	bool single;	       /* made for one thread */
	dp_fast polling;       /* from start_poll to end_poll, as providers do; before dp_cq.lock */
	_Atomic bool installed; /* changed with dp_cq.lock */
	_Atomic(void *) owner; /* the thread that holds it, where that is the program's; it alone reads its own value */
	struct ibv_wc wc;      /* what the readers give */
	struct dp_wc_more more;
	int err; /* of the last read */
};

static struct dp_cqex none;
static DP_TLS struct dp_cqex *latest = &none; /* what this thread used last. Its address names the thread. */
static struct dp_known *spare;

static void *self(void)
{
	return &latest;
}

__attribute__((noinline)) static struct dp_cqex *find(struct ibv_cq_ex *ex)
{
	struct dp_cqex *x = dp_cq_find(ibv_cq_ex_to_cq(ex))->ex;

	dp_known_found(&x->known, ex);
	latest = x;
	return x;
}

/* Otherwise the polling began with the provider's start_poll. It may have been handed to this thread, as with QPs. */
static inline bool is_open(const struct dp_cqex *x, const struct ibv_cq_ex *ex)
{
	return dp_known_open(&x->known, ex);
}

/* Does this thread hold polling? */
static bool mine(const struct dp_cqex *x)
{
	return atomic_load_explicit(&x->owner, memory_order_relaxed) == self();
}

/* ---- reading the program's CQ ------------------------------------------------------------------------------- */

static void fill_extra(struct dp_cqex *x, struct ibv_wc *wc, struct dp_wc_more *more)
{
	const struct slots *r = &x->real;
	struct ibv_cq_ex *ex = x->ex;

	*wc = (struct ibv_wc){ .wr_id = ex->wr_id, .status = ex->status, .qp_num = r->read_qp_num(ex) };
	*more = (struct dp_wc_more){ 0 };
	wc->opcode = r->read_opcode(ex);
	wc->wc_flags = r->read_wc_flags(ex);
#define TAKE(to, name)                                                                                                \
	if (r->read_##name)                                                                                           \
		to = r->read_##name(ex)
	TAKE(wc->byte_len, byte_len);
	TAKE(more->ts, completion_ts);
	TAKE(more->wall_ns, completion_wallclock_ns);
	/* a sender is told no more */
	if (wc->status == IBV_WC_SUCCESS && wc->opcode < IBV_WC_RECV)
		return;
	wc->vendor_err = r->read_vendor_err(ex);
	TAKE(wc->imm_data, imm_data);
	TAKE(wc->src_qp, src_qp);
	TAKE(more->slid, slid);
	TAKE(wc->sl, sl);
	TAKE(wc->dlid_path_bits, dlid_path_bits);
	TAKE(more->cvlan, cvlan);
	TAKE(more->flow_tag, flow_tag);
#undef TAKE
	wc->slid = (uint16_t)more->slid;
	if (r->read_tm_info) {
		struct ibv_wc_tm_info info = { 0 };

		r->read_tm_info(ex, &info);
		more->tag = info.tag;
		more->priv = info.priv;
	}
}

int dp_cqex_read(struct dp_cq *cq, int n, struct ibv_wc *wc)
{
	struct dp_cqex *x = cq->ex;
	struct ibv_poll_cq_attr attr = { 0 };
	enum ibv_wc_status status;
	uint64_t wr_id;

	x->err = 0;
	if (!x->extra) {
		n = cq->poll_cq(cq->cq, n, wc);
		if (n < 0)
			x->err = EIO;
		return n;
	}
	/* they are the program's if it polls this CQ by something else between start_poll and end_poll */
	status = x->ex->status;
	wr_id = x->ex->wr_id;
	x->err = x->real.start_poll(x->ex, &attr);
	if (!x->err) {
		fill_extra(x, wc, &cq->more);
		x->real.end_poll(x->ex);
	}
	x->ex->status = status;
	x->ex->wr_id = wr_id;
	if (!x->err)
		return 1;
	return x->err == ENOENT ? 0 : -1;
}

bool dp_cqex_enter(struct dp_cq *cq, bool wait)
{
	struct dp_cqex *x = cq->ex;

	if (!x->extra || mine(x))
		return true;
	if (!wait)
		return dp_try(&x->polling);
	dp_take(&x->polling);
	return true;
}

void dp_cqex_leave(struct dp_cq *cq)
{
	struct dp_cqex *x = cq->ex;

	if (x->extra && !mine(x))
		dp_drop(&x->polling);
}

/* ---- what the program calls --------------------------------------------------------------------------------- */

/* 0, ENOENT, or the provider's error. With polling held. */
static inline int take_one(struct dp_cqex *x)
{
	/* without `extra` there is nothing but the ibv_wc */
	int n = __builtin_expect(x->extra, 0) ? dp_cq_poll_one(x->cq, &x->wc, &x->more) : dp_cq_poll_plain(x->cq, &x->wc);

	if (__builtin_expect(n != 1, 0))
		return n ? x->extra ? x->err : EIO : ENOENT;
	x->ex->status = x->wc.status;
	x->ex->wr_id = x->wc.wr_id;
	return 0;
}

static void restore_if_unused(struct dp_cqex *x)
{
	struct dp_cq *cq = x->cq;

	dp_take(&cq->lock);
	if (!atomic_load_explicit(&cq->active, memory_order_relaxed)) {
		/* others may read them at this moment: aligned stores */
#define PUT_BACK(s)                                                                                                   \
	if (x->real.s)                                                                                                \
		__atomic_store_n(&x->ex->s, x->real.s, __ATOMIC_RELEASE);
#define PUT_READER(type, name, value) PUT_BACK(read_##name)
		READERS(PUT_READER)
#undef PUT_READER
		PUT_BACK(read_tm_info)
		PUT_BACK(start_poll)
		PUT_BACK(next_poll)
		PUT_BACK(end_poll)
#undef PUT_BACK
		x->installed = false;
	}
	dp_drop(&cq->lock);
}

/* With polling held, which is ours no more. */
static inline int give_up(struct dp_cqex *x, int err)
{
	dp_known_set_open(&x->known, NULL);
	atomic_store_explicit(&x->owner, NULL, memory_order_relaxed);
	dp_drop(&x->polling);
	return err;
}

/* No QP of ours sends into it, or so it seemed: with polling held. */
__attribute__((noinline)) static int start_native(struct dp_cqex *x, struct ibv_poll_cq_attr *attr);

/* With polling held. */
static inline __attribute__((always_inline)) int start(struct dp_cqex *x, struct ibv_poll_cq_attr *attr)
{
	int ret;

	/* before the poll: what is called from there must know whose the CQ is */
	atomic_store_explicit(&x->owner, self(), memory_order_relaxed);
	if (__builtin_expect(attr->comp_mask != 0, 0))
		return give_up(x, EINVAL);
	ret = take_one(x);
	if (__builtin_expect(ret, 0))
		return give_up(x, ret);
	dp_known_set_open(&x->known, x->ex);
	return 0;
}

static inline bool is_ours(const struct dp_cqex *x)
{
	return x->installed && atomic_load_explicit(&x->cq->active, memory_order_relaxed);
}

static int start_native(struct dp_cqex *x, struct ibv_poll_cq_attr *attr)
{
	if (x->installed)
		restore_if_unused(x);
	if (x->installed)
		return start(x, attr);
	dp_drop(&x->polling);
	return x->real.start_poll(x->ex, attr);
}

__attribute__((noinline)) static int find_and_start(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	struct dp_cqex *x = find(ex);

	dp_take(&x->polling);
	return is_ours(x) ? start(x, attr) : start_native(x, attr);
}

static int our_start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	struct dp_cqex *x = latest;

	/* NULL: as in qpex.c */
	if (__builtin_expect(!x || !dp_known_is(&x->known, ex) || !dp_try(&x->polling), 0))
		return find_and_start(ex, attr);
	return __builtin_expect(is_ours(x), 1) ? start(x, attr) : start_native(x, attr);
}

static int our_next_poll(struct ibv_cq_ex *ex)
{
	struct dp_cqex *x = latest;

	if (!is_open(x, ex)) {
		x = find(ex);
		if (!is_open(x, ex))
			return x->real.next_poll(ex);
	}
	/* it may have been handed to this thread, which may poll otherwise meanwhile */
	atomic_store_explicit(&x->owner, self(), memory_order_relaxed);
	return take_one(x);
}

__attribute__((noinline)) static void other_end_poll(struct ibv_cq_ex *ex)
{
	struct dp_cqex *x = find(ex);

	if (is_open(x, ex))
		give_up(x, 0);
	else
		x->real.end_poll(ex);
}

static void our_end_poll(struct ibv_cq_ex *ex)
{
	struct dp_cqex *x = latest;

	if (__builtin_expect(is_open(x, ex), 1))
		give_up(x, 0);
	else
		other_end_poll(ex);
}

/* The others are apart, so that nothing is kept for them. */
#define READER(type, name, value)                                                                                     \
	__attribute__((noinline)) static type other_read_##name(struct ibv_cq_ex *ex)                                 \
	{                                                                                                             \
		struct dp_cqex *x = find(ex);                                                                         \
                                                                                                                      \
		return is_open(x, ex) ? (value) : x->real.read_##name(ex);                                            \
	}                                                                                                             \
	static type our_read_##name(struct ibv_cq_ex *ex)                                                             \
	{                                                                                                             \
		struct dp_cqex *x = latest;                                                                           \
                                                                                                                      \
		return __builtin_expect(is_open(x, ex), 1) ? (value) : other_read_##name(ex);                         \
	}
READERS(READER)
#undef READER

static void our_read_tm_info(struct ibv_cq_ex *ex, struct ibv_wc_tm_info *info)
{
	struct dp_cqex *x = find(ex);

	if (!is_open(x, ex)) {
		x->real.read_tm_info(ex, info);
		return;
	}
	info->tag = x->more.tag;
	info->priv = x->more.priv;
}

/* ---- its life ----------------------------------------------------------------------------------------------- */

bool dp_cqex_single(const struct dp_cq *cq)
{
	return cq->ex && cq->ex->single;
}

void dp_cqex_install(struct dp_cq *cq)
{
	struct dp_cqex *x = cq->ex;

	if (!x || x->installed)
		return;
	x->installed = true;
#define WRAP(s)                                                                                                       \
	if (x->real.s)                                                                                                \
		__atomic_store_n(&x->ex->s, our_##s, __ATOMIC_RELEASE);
#define WRAP_READER(type, name, value) WRAP(read_##name)
	READERS(WRAP_READER)
#undef WRAP_READER
	WRAP(read_tm_info)
	WRAP(start_poll)
	WRAP(next_poll)
	WRAP(end_poll)
#undef WRAP
}

void dp_cqex_hide(struct dp_cq *cq)
{
	if (cq->ex)
		dp_known_hide(&cq->ex->known);
}

void dp_cqex_close(struct dp_cq *cq)
{
	if (cq->ex)
		dp_known_gone(&cq->ex->known);
}

void dp_cqex_free(struct dp_cq *cq)
{
	if (!cq->ex)
		return;
	dp_lock_fini(&cq->ex->polling);
	dp_known_put(&spare, &cq->ex->known);
	cq->ex = NULL;
}

void dp_cqex_after_fork(struct dp_cq *cq)
{
	if (cq->ex)
		dp_lock_init(&cq->ex->polling);
}

static struct dp_cqex *make(struct ibv_cq_ex *ex, const struct ibv_cq_init_attr_ex *attr)
{
	struct dp_cqex *x = dp_known_get(&spare, sizeof(*x));

	if (!x)
		return NULL;
	x->ex = ex;
	x->extra = attr->wc_flags & ~(uint64_t)IBV_WC_STANDARD_FLAGS;
	/* a CQ of a parent domain has a thread domain, whose promise is one thread, too */
	x->single = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD ||
		    (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS && attr->flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
	dp_lock_init(&x->polling);
#define KEEP_READER(type, name, value) x->real.read_##name = ex->read_##name;
	READERS(KEEP_READER)
#undef KEEP_READER
	x->real.read_tm_info = ex->read_tm_info;
	x->real.start_poll = ex->start_poll;
	x->real.next_poll = ex->next_poll;
	x->real.end_poll = ex->end_poll;
	return x;
}

/* What every provider that we know can give; more than that we would have to save without knowing what it is. */
#define KNOWN                                                                                                         \
	(IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_CVLAN |                         \
	 IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_TM_INFO | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

struct ibv_cq_ex *dp_create_cq_ex(struct ibv_context *ctx, struct ibv_cq_init_attr_ex *attr)
{
	struct dp_ctx *c = dp_ctx_find(ctx);
	struct ibv_cq_init_attr_ex a = *attr;
	struct dp_channel *shadow = NULL;
	struct dp_cqex *x = NULL;
	bool known = !(attr->wc_flags & ~(uint64_t)KNOWN), hidden;
	struct ibv_cq_ex *ex;

	a.channel = dp_channel_real(attr->channel, &shadow);
	/* whose a completion is has to be known here, too */
	hidden = known && (attr->wc_flags & ~(uint64_t)IBV_WC_STANDARD_FLAGS) &&
		 !(attr->wc_flags & IBV_WC_EX_WITH_QP_NUM);
	if (hidden)
		a.wc_flags |= IBV_WC_EX_WITH_QP_NUM;
	dp_stub->inside(1);
	ex = c->create_cq_ex(ctx, &a);
	if (!ex && hidden) {
		a.wc_flags = attr->wc_flags;
		known = false;
		ex = c->create_cq_ex(ctx, &a);
	}
	dp_stub->inside(-1);
	if (!ex)
		return NULL;
	if (known)
		x = make(ex, attr);
	if (x) {
		x->cq = dp_cq_adopt(c, ibv_cq_ex_to_cq(ex), x, shadow);
		if (x->cq)
			return ex;
		dp_lock_fini(&x->polling);
		dp_known_put(&spare, &x->known);
	}
	if (shadow)
		dp_channel_attach_plain(shadow, ibv_cq_ex_to_cq(ex));
	return ex;
}

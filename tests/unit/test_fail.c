// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Queued WRs that a provider refuses, takes late, or flushes: post.c is left out, the rest of the data path runs over a
 * provider of this file's own, whose every answer the test decides.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "provider_fake.h"
#include "run.h"

#define MANY 64
#define QPN 0x11
#define TWIN_QPN 0x22

/* ---- the provider */

struct fake_queue {
	struct ibv_wc wc[MANY];
	int n, taken;
};

static struct verbs_context program, sibling;
static struct ibv_qp qp0, twin, twin2;
static struct ibv_cq icq_cq;
static struct fake_queue cqes, icqes; /* of the program's CQ, of the internal one */
static uint64_t posted[MANY];	      /* wr_ids that rail 0 took, in order */
static int nposted, told;	      /* told: of these, how many have a completion */
static uint64_t refuse;		      /* wr_id that rail 0 never takes */
static int full;		      /* posts for which there is no room */
static bool deaf_in_err;	      /* takes nothing in ERR */
static bool in_err, cannot_err;
static int twin2_errs;
static int nto_twin; /* requests that the twin was given */

static void push(struct fake_queue *f, uint64_t wr_id, enum ibv_wc_status status, uint32_t qpn)
{
	f->wc[f->n++] = (struct ibv_wc){ .wr_id = wr_id, .status = status, .qp_num = qpn };
}

static int pull(struct fake_queue *f, int n, struct ibv_wc *wc)
{
	int got = 0;

	while (got < n && f->taken < f->n)
		wc[got++] = f->wc[f->taken++];
	return got;
}

static int f_post0(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp;
	for (; wr; wr = wr->next) {
		int err = wr->wr_id == refuse ? EINVAL : full ? ENOMEM : in_err && deaf_in_err ? EIO : 0;

		if (err) {
			full -= err == ENOMEM;
			*bad = wr;
			return err;
		}
		posted[nposted++] = wr->wr_id;
		if (in_err) {
			push(&cqes, wr->wr_id, IBV_WC_WR_FLUSH_ERR, QPN);
			told++;
		}
	}
	return 0;
}

static int f_post_twin(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp;
	(void)bad;
	for (; wr; wr = wr->next)
		nto_twin++;
	return 0;
}

static int f_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	return pull(cq == &icq_cq ? &icqes : &cqes, n, wc);
}

static struct twin_state {
	enum ibv_qp_state state; /* ERR: it broke */
	int draining, breaks;	 /* for so many looks; with so many of them left */
	int begun;		 /* how often it was moved to RTS */
} of_twin[2] = { { .breaks = -1 }, { .breaks = -1 } };

static struct twin_state *state_of(const struct ibv_qp *qp)
{
	ck_assert(qp == &twin || qp == &twin2);
	return &of_twin[qp == &twin2];
}

static int f_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct twin_state *t = state_of(qp);

	(void)mask;
	(void)init;
	if (t->draining && --t->draining == t->breaks)
		t->state = IBV_QPS_ERR;
	attr->qp_state = t->state;
	attr->sq_draining = t->state == IBV_QPS_SQD && t->draining;
	return 0;
}

/* As hardware does: what was not complete is flushed, in order. */
static int f_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	ck_assert_int_eq(mask, IBV_QP_STATE);
	if (attr->qp_state == IBV_QPS_SQD || attr->qp_state == IBV_QPS_RTS) {
		struct twin_state *t = state_of(qp);

		t->begun += attr->qp_state == IBV_QPS_RTS;
		if (t->state == IBV_QPS_ERR)
			return EINVAL;
		t->state = attr->qp_state;
		return 0;
	}
	ck_assert_int_eq(attr->qp_state, IBV_QPS_ERR);
	if (qp == &twin || qp == &twin2) {
		twin2_errs += qp == &twin2;
		return 0;
	}
	if (cannot_err)
		return EIO;
	in_err = true;
	while (told < nposted)
		push(&cqes, posted[told++], IBV_WC_WR_FLUSH_ERR, QPN);
	return 0;
}

/* Rail 0 completes its n oldest. */
static void complete0(int n)
{
	while (n--)
		push(&cqes, posted[told++], IBV_WC_SUCCESS, QPN);
}

static const char *f_status(enum ibv_wc_status s)
{
	(void)s;
	return "status";
}

static const struct dp_verbs real = {
	.query_device = fake_query_device,
	.get_device_name = fake_device_name,
	.create_cq = fake_create_cq,
	.modify_qp = f_modify_qp,
	.query_qp = f_query_qp,
	.wc_status_str = f_status,
};

/* ---- a bonded QP */

static struct dp_ctx *c;
static struct dp_cq *cq;
static struct dp_icq icq;
static struct dp_qp *q;

static void setup(void)
{
	fake_begin(&real, &program);
	sibling.sz = sizeof(sibling);
	sibling.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	program.context.ops.poll_cq = sibling.context.ops.poll_cq = f_poll;
	program.context.ops.post_send = f_post0;
	sibling.context.ops.post_send = f_post_twin;
	c = dp_ctx_get(&program.context);
	ck_assert_ptr_nonnull(c);
	ck_assert(c->grouped);
	c->sib = calloc(1, sizeof(*c->sib));
	ck_assert_ptr_nonnull(c->sib);
	strcpy(c->sib[0].text, "fake1:1");
	strcpy(c->sib[0].port.dev, "fake1");
	c->sib[0].port.port = 1;
	c->sib[0].place = 1;
	c->sib[0].real = &real;
	dp_hmap_init(&c->sib[0].twins);
	c->opened = true;
	c->nsib = 1;
	cq = dp_cq_find(dp_create_cq(&program.context, 16, NULL, NULL, 0));
	ck_assert_ptr_nonnull(cq);
	cq->progress_listed = true; /* so the progress thread never comes to look */
	qp0 = (struct ibv_qp){ .context = &program.context, .qp_num = QPN };
	twin = (struct ibv_qp){ .context = &sibling.context, .qp_num = TWIN_QPN };
	q = fake_qp(&qp0, cq, (struct ibv_qp_cap){ .max_send_wr = 16, .max_send_sge = 2 });
	q->post_send = f_post0;
	q->rts.timeout = 1;
	ck_assert_int_eq(dp_qp_track(q), 0);

	icq_cq.context = &sibling.context;
	icq = (struct dp_icq){ .cq = &icq_cq, .sib = &c->sib[0], .size = 64 };
	cq->icqs = &icq;
	fake_bond(q);
	q->rail[0].probe = q->rail[1].probe = DP_PROBE_OK;
	q->rail[1].sib = &c->sib[0];
	q->rail[1].twin = &twin;
	q->rail[1].icq = &icq;
	ck_assert_int_eq(dp_hmap_put(&c->sib[0].twins, TWIN_QPN, &q->rail[1]), 0);
}

enum went { WENT, LATER0, LATERS }; /* all of it; rail 0's part, or the siblings', is queued with a copy */

/* Enters an op as post.c does: what may go of it goes. wr: with d's parts, as for dp_qwr_new(), where some may be queued. */
static enum went enter(const struct ibv_send_wr *wr, const struct dp_op_desc *d)
{
	const uint32_t rkey[3] = { 0 }, lkey[3] = { 0 };
	struct dp_order *o = &q->order;
	struct ibv_send_wr *bad;
	enum went went = WENT;
	const struct dp_op *op;
	uint64_t pos;

	dp_take(&q->lock);
	pos = dp_order_add(o, d);
	op = dp_order_op(o, pos);
	*dp_qp_slot(q, pos) = (struct dp_slot){ .wr_id = wr->wr_id, .opcode = (uint8_t)wr->opcode };
	if (o->post0 != pos || !dp_order_may_post0(o))
		went = LATER0;
	else if (!op->whole && !dp_order_may_posts(o))
		went = LATERS;
	if (went != WENT) {
		dp_qp_slot(q, pos)->qwr = dp_qwr_new(q, (struct ibv_send_wr *)wr, op->whole ? NULL : d->part, rkey, lkey);
		dp_qp_slot(q, pos)->qwr->since = dp_now_ns();
	}
	if (went != LATER0) {
		ck_assert_int_eq(f_post0(&qp0, (struct ibv_send_wr *)wr, &bad), 0);
		dp_order_posted0(o);
	}
	if (went == WENT && !op->whole) {
		dp_order_posteds(o);
		for (uint32_t r = 1; r < q->nrails; r++) {
			q->rail[r].posted = dp_order_rail(o, pos, r)->seq;
			q->rail[r].signaled++;
			icq.pending++;
		}
	}
	dp_drop(&q->lock);
	return went;
}

/* WRITEs from [at, at + len), of which each rail has a part of 4 KiB; or all that goes, whole, on rail 0. */
static enum went write_at(uint64_t wr_id, uint64_t at, bool whole, bool signaled)
{
	const struct dp_part part[3] = { { 0, 4096 }, { 4096, 4096 }, { 8192, 4096 } };
	uint32_t len = q->nrails * 4096;
	struct dp_op_desc d = { .flags = DP_OP_BULK | DP_OP_PLAIN | (signaled ? DP_OP_SIGNALED : 0),
				.remote = { at, at + len }, .part = whole ? NULL : part };
	struct ibv_sge sge = { .addr = 4096, .length = len, .lkey = 1 };

	return enter(&(struct ibv_send_wr){ .wr_id = wr_id, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1 }, &d);
}

/* A signalled WRITE of which half went to the sibling. */
static void split(uint64_t wr_id)
{
	ck_assert_int_eq(write_at(wr_id, 0, false, true), WENT);
}

static enum went signal_op(uint64_t wr_id, bool signaled)
{
	struct dp_op_desc d = { .flags = signaled ? DP_OP_SIGNALED : 0 };

	return enter(&(struct ibv_send_wr){ .wr_id = wr_id, .opcode = IBV_WR_SEND }, &d);
}

/* The sibling's part of the n-th split is done. */
static void sibling_done(uint64_t n, enum ibv_wc_status status)
{
	push(&icqes, n, status, TWIN_QPN);
}

/* A signal behind splits that are not done: it waits. */
static void queued(uint64_t wr_id, bool signaled)
{
	ck_assert_int_eq(signal_op(wr_id, signaled), LATER0);
}

/* A signal that went at once (nothing is on the sibling). */
static void passed(uint64_t wr_id, bool signaled)
{
	ck_assert_int_eq(signal_op(wr_id, signaled), WENT);
}

/* What the program gets: wr_ids and statuses, until nothing comes for 50 ms (2 s where a deadline is involved). */
static void expect(const uint64_t *ids, const enum ibv_wc_status *st, int n, int patience_ms)
{
	struct timespec ms = { .tv_nsec = 1000000 };
	struct ibv_wc wc;
	int got = 0;

	for (int idle = 0; idle < (got < n ? patience_ms : 50);) {
		if (dp_poll_cq(cq->cq, 1, &wc) != 1) {
			nanosleep(&ms, NULL);
			idle++;
			continue;
		}
		idle = 0;
		ck_assert_msg(got < n, "more than %d: wr %llu", n, (unsigned long long)wc.wr_id);
		ck_assert_msg(wc.wr_id == ids[got] && wc.status == st[got], "number %d: wr %llu status %d", got,
			      (unsigned long long)wc.wr_id, wc.status);
		got++;
	}
	ck_assert_int_eq(got, n);
}

#define IDS(...) ((const uint64_t[]){ __VA_ARGS__ })
#define STATUSES(...) ((const enum ibv_wc_status[]){ __VA_ARGS__ })
#define GOOD IBV_WC_SUCCESS
#define FLUSH IBV_WC_WR_FLUSH_ERR
#define QP_ERR IBV_WC_LOC_QP_OP_ERR

/* 1 split, 2 passes before it can matter; 3 is refused when it is released, 4 and 5 wait behind it. */
static void refused_at_release(void)
{
	passed(1, true);
	split(2);
	queued(3, true);
	queued(4, false);
	queued(5, true);
	refuse = 3;
	sibling_done(1, IBV_WC_SUCCESS);
}

START_TEST(refused_then_flushed)
{
	refused_at_release();
	complete0(2);
	expect(IDS(1, 2, 3, 4, 5), STATUSES(GOOD, GOOD, QP_ERR, FLUSH, FLUSH), 5, 3000);
	ck_assert_int_eq(atomic_load(&q->state), DP_QP_NATIVE);
	/* what stood behind it went nowhere, or it would have been told of before it */
	ck_assert_int_eq(nposted, 2);
}
END_TEST

START_TEST(refused_by_a_provider_that_takes_nothing_in_err)
{
	deaf_in_err = true;
	refused_at_release();
	complete0(2);
	expect(IDS(1, 2, 3, 4, 5), STATUSES(GOOD, GOOD, QP_ERR, FLUSH, FLUSH), 5, 3000);
	ck_assert_int_eq(nposted, 2);
}
END_TEST

START_TEST(refused_while_others_are_on_their_way)
{
	refused_at_release();
	/* neither 1 nor 2 was complete when the QP went to ERR: the first of them is the culprit then */
	expect(IDS(1, 2, 3, 4, 5), STATUSES(QP_ERR, FLUSH, FLUSH, FLUSH, FLUSH), 5, 3000);
}
END_TEST

START_TEST(refused_with_good_ones_unread)
{
	refused_at_release();
	complete0(1);
	expect(IDS(1, 2, 3, 4, 5), STATUSES(GOOD, QP_ERR, FLUSH, FLUSH, FLUSH), 5, 3000);
}
END_TEST

START_TEST(queued_ones_stay_when_err_cannot_be_had)
{
	cannot_err = true;
	split(1);
	queued(2, true);
	queued(3, true);
	complete0(1);
	sibling_done(1, IBV_WC_REM_ACCESS_ERR);
	expect(IDS(1, 2, 3), STATUSES(IBV_WC_REM_ACCESS_ERR, FLUSH, FLUSH), 3, 5000);
	ck_assert_msg(nposted == 1, "posted on a QP that is not in ERR, behind data that did not arrive");
}
END_TEST

START_TEST(queued_ones_are_flushed_by_the_provider)
{
	split(1);
	queued(2, true);
	queued(3, false);
	complete0(1);
	sibling_done(1, IBV_WC_REM_ACCESS_ERR);
	expect(IDS(1, 2, 3), STATUSES(IBV_WC_REM_ACCESS_ERR, FLUSH, FLUSH), 3, 5000);
	ck_assert_int_eq(nposted, 3);
}
END_TEST

static void nothing_comes(void)
{
	struct timespec ms = { .tv_nsec = 1000000 };
	struct ibv_wc wc;

	for (int i = 0; i < 20; i++) {
		ck_assert_int_eq(dp_poll_cq(cq->cq, 1, &wc), 0);
		nanosleep(&ms, NULL);
	}
}

/*
 * Rail 0 fails at 3; 2, unsignalled, it has done: one port would have, so its part on the sibling is posted and waited for, and
 * only then 3 has its error. 4, posted meanwhile, is flushed behind it.
 */
START_TEST(silent_ones_before_the_error_are_done)
{
	struct ibv_send_wr *bad, wr = { .wr_id = 4, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };

	q->order.mode = DP_ORDER_STRICT;
	passed(1, true);
	/* its part on the sibling waits for that */
	ck_assert_int_eq(write_at(2, 0, false, false), LATERS);
	ck_assert_int_eq(write_at(3, 1 << 20, true, true), WENT);
	complete0(1);
	/* 2 is not told of */
	told = 2;
	push(&cqes, posted[told++], IBV_WC_REM_ACCESS_ERR, QPN);
	expect(IDS(1), STATUSES(GOOD), 1, 3000);
	nothing_comes();
	ck_assert_int_eq(atomic_load(&q->state), DP_QP_FAILING);
	ck_assert_int_eq(nto_twin, 1);
	ck_assert(!q->twins_err);
	ck_assert_int_eq(dp_post_tracked(q, &wr, &bad, false), 0);
	nothing_comes();
	if (_i) {
		/* it meets an error there: then that is the first */
		sibling_done(1, IBV_WC_REM_OP_ERR);
		expect(IDS(2, 3, 4), STATUSES(IBV_WC_REM_OP_ERR, FLUSH, FLUSH), 3, 3000);
	} else {
		sibling_done(1, GOOD);
		expect(IDS(3, 4), STATUSES(IBV_WC_REM_ACCESS_ERR, FLUSH), 2, 3000);
	}
	ck_assert_int_eq(atomic_load(&q->state), DP_QP_NATIVE);
}
END_TEST

/*
 * A sibling fails 2; 1 it has done, rail 0 not yet: that goes on, and nothing behind 2 is posted. 0: rail 0 does it. 1: it fails
 * it. 2: it says nothing of it, unsignalled as it is, and is not waited for long.
 */
START_TEST(earlier_ones_are_waited_for)
{
	struct ibv_send_wr *bad, wr = { .wr_id = 3, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };

	split(1);
	split(2);
	if (_i == 2)
		for (uint64_t p = 0; p < 2; p++)
			dp_order_op(&q->order, p)->flags &= ~(unsigned)DP_OP_SIGNALED;
	sibling_done(1, GOOD);
	sibling_done(2, IBV_WC_REM_ACCESS_ERR);
	if (_i == 2) {
		told = 2;
		expect(IDS(2), STATUSES(IBV_WC_REM_ACCESS_ERR), 1, 3000);
		return;
	}
	nothing_comes();
	ck_assert_int_eq(atomic_load(&q->state), DP_QP_BONDED);
	ck_assert(!in_err);
	ck_assert_int_eq(dp_post_tracked(q, &wr, &bad, false), 0);
	nothing_comes();
	ck_assert_int_eq(nposted, 2);
	if (!_i) {
		complete0(1);
		expect(IDS(1, 2, 3), STATUSES(GOOD, IBV_WC_REM_ACCESS_ERR, FLUSH), 3, 3000);
	} else {
		push(&cqes, posted[told++], IBV_WC_RETRY_EXC_ERR, QPN);
		expect(IDS(1, 2, 3), STATUSES(IBV_WC_RETRY_EXC_ERR, FLUSH, FLUSH), 3, 3000);
	}
	ck_assert(in_err && nposted == 3);
	ck_assert_int_eq(atomic_load(&q->state), DP_QP_NATIVE);
}
END_TEST

static void third_rail(void)
{
	dp_hmap_fini(&c->sib[0].twins);
	dp_hmap_init(&c->sib[0].twins);
	q->rail = realloc(q->rail, 3 * sizeof(*q->rail));
	twin2 = (struct ibv_qp){ .context = &sibling.context, .qp_num = TWIN_QPN + 1 };
	q->rail[2] = (struct dp_rail){ .q = q, .idx = 2, .sib = &c->sib[0], .twin = &twin2, .icq = &icq,
				       .probe = DP_PROBE_OK, .flow = q->rail[1].flow };
	q->rail[2].chain.sge = calloc(DP_BATCH * 2, sizeof(struct ibv_sge));
	q->nrails = q->ntwins = 3;
	ck_assert_int_eq(dp_hmap_put(&c->sib[0].twins, TWIN_QPN, &q->rail[1]), 0);
	ck_assert_int_eq(dp_hmap_put(&c->sib[0].twins, TWIN_QPN + 1, &q->rail[2]), 0);
	ck_assert_int_eq(dp_order_widen(&q->order, 3), 0);
}

/*
 * Rail 0 and sibling 1 fail 2, which one says first; sibling 2 has its part of 1 under way, unsignalled (0, 1) or signalled: it
 * finishes that.
 */
START_TEST(a_third_rail_finishes)
{
	bool signaled = _i >= 2, rail0_first = _i % 2;

	third_rail();
	ck_assert_int_eq(write_at(1, 1 << 20, false, signaled), WENT);
	ck_assert_int_eq(write_at(2, 2 << 20, false, true), WENT);
	told = 1;
	if (signaled)
		push(&cqes, 1, GOOD, QPN);
	push(&icqes, 1, GOOD, TWIN_QPN);
	for (int i = 0; i < 2; i++) {
		if (rail0_first == (i == 0)) {
			push(&cqes, 2, IBV_WC_REM_ACCESS_ERR, QPN);
			told = 2;
		} else {
			push(&icqes, 2, IBV_WC_REM_ACCESS_ERR, TWIN_QPN);
		}
		nothing_comes();
	}
	ck_assert_int_eq(twin2_errs, 0);
	push(&icqes, 1, GOOD, TWIN_QPN + 1);
	push(&icqes, 2, FLUSH, TWIN_QPN + 1);
	if (signaled)
		expect(IDS(1, 2), STATUSES(GOOD, IBV_WC_REM_ACCESS_ERR), 2, 3000);
	else
		expect(IDS(2), STATUSES(IBV_WC_REM_ACCESS_ERR), 1, 3000);
	ck_assert_int_ge(twin2_errs, 1);
}
END_TEST

/* What is refused when it is released stands behind data that a sibling has under way: it finishes them. */
START_TEST(refused_behind_others)
{
	struct ibv_wc wc;

	ck_assert_int_eq(write_at(1, 0, false, false), WENT);
	ck_assert_int_eq(write_at(2, 1 << 20, false, false), WENT);
	/* for the first of them there */
	ck_assert_int_eq(write_at(3, 0, true, true), LATER0);
	refuse = 3;
	told = 2; /* both are done there, which nobody is told */
	sibling_done(1, GOOD);
	ck_assert_int_eq(dp_poll_cq(cq->cq, 1, &wc), 0);
	dp_take(&q->lock);
	ck_assert(q->fail_waits);
	q->fail_since += UINT64_C(60000000000); /* however slow this machine is */
	dp_drop(&q->lock);
	nothing_comes();
	ck_assert(q->fail_waits && !in_err && !q->twins_err);
	sibling_done(2, GOOD);
	expect(IDS(3), STATUSES(QP_ERR), 1, 3000);
	ck_assert_int_eq(nposted, 2);
}
END_TEST

/*
 * The program's ERR: of what rail 0 has done and siblings have not, each is told of, the unsignalled between them, too; whichever
 * sibling says first how far it came.
 */
START_TEST(err_leaves_no_gap)
{
	third_rail();
	for (uint64_t i = 1; i <= 3; i++)
		ck_assert_int_eq(write_at(i, i << 20, false, i != 2), WENT);
	push(&cqes, 1, GOOD, QPN);
	push(&cqes, 3, GOOD, QPN);
	told = 3;
	nothing_comes();
	dp_take(&cq->lock);
	dp_take(&q->lock);
	dp_fail_by_program(q);
	dp_drop(&q->lock);
	dp_drop(&cq->lock);
	for (uint64_t i = 1; i <= 3; i++)
		push(&icqes, i, i < 3 ? GOOD : FLUSH, TWIN_QPN);
	for (uint64_t i = 1; i <= 3; i++)
		push(&icqes, i, FLUSH, TWIN_QPN + 1);
	expect(IDS(1, 2, 3), STATUSES(FLUSH, FLUSH, FLUSH), 3, 3000);
}
END_TEST

START_TEST(no_room_is_tried_again)
{
	uint64_t begin = dp_now_ns(), waited;

	split(1);
	queued(2, true);
	full = 5;
	sibling_done(1, IBV_WC_SUCCESS);
	complete0(1);
	expect(IDS(1), STATUSES(GOOD), 1, 3000);
	ck_assert_int_eq(nposted, 2);
	complete0(1);
	expect(IDS(2), STATUSES(GOOD), 1, 3000);
	waited = atomic_load(&dp_counters.signal_wait_ns);
	ck_assert_uint_gt(waited, 0);
	ck_assert_msg(waited <= dp_now_ns() - begin, "one signal waited for longer than the test took");
	ck_assert_int_eq(atomic_load(&q->state), DP_QP_BONDED);
}
END_TEST

/* ---- a send queue that drains ---- */

static void sqd(bool begin)
{
	q->rail[1].rts = true;
	q->qp_state = IBV_QPS_RTS;
	dp_take(&q->ctl);
	if (begin)
		dp_sqd_begin(q);
	else
		dp_sqd_end(q);
	dp_drop(&q->ctl);
}

/* One twin is broken already, which nobody knows yet: the others drain all the same. */
START_TEST(the_others_drain)
{
	q->rail = realloc(q->rail, 3 * sizeof(*q->rail));
	q->rail[2] = (struct dp_rail){ .q = q, .idx = 2, .sib = &c->sib[0], .twin = &twin2, .rts = true };
	q->nrails = 3;
	of_twin[_i].state = IBV_QPS_ERR;
	of_twin[!_i].draining = 5;
	sqd(true);
	ck_assert_int_eq(of_twin[!_i].state, IBV_QPS_SQD);
	ck_assert_int_eq(of_twin[!_i].draining, 0);
}
END_TEST

/* A twin breaks while it drains: nobody waits for it, and the request that it had is not taken for done. */
START_TEST(breaks_while_it_drains)
{
	split(1);
	queued(2, true);
	of_twin[0].draining = 1000000;
	of_twin[0].breaks = of_twin[0].draining - 3;
	sqd(true);
	ck_assert_int_eq(of_twin[0].draining, of_twin[0].breaks);
	complete0(1);
	sibling_done(1, IBV_WC_RETRY_EXC_ERR);
	expect(IDS(1, 2), STATUSES(IBV_WC_RETRY_EXC_ERR, FLUSH), 2, 5000);
	ck_assert_int_eq(atomic_load(&q->state), DP_QP_NATIVE);
	/* nothing begins any more */
	sqd(false);
	ck_assert_int_eq(of_twin[0].begun, 0);
}
END_TEST

/* It broke with nothing to do: the program goes on, on one port. */
START_TEST(breaks_when_drained)
{
	sqd(true);
	of_twin[0].state = IBV_QPS_ERR;
	sqd(false);
	ck_assert_int_eq(of_twin[0].begun, 1);
	ck_assert(!q->order.bonded);
	passed(1, true);
	complete0(1);
	expect(IDS(1), STATUSES(GOOD), 1, 3000);
}
END_TEST

/* It broke with a part that was posted in SQD. */
START_TEST(breaks_with_requests_in_its_queue)
{
	sqd(true);
	split(1);
	queued(2, true);
	of_twin[0].state = IBV_QPS_ERR;
	sqd(false);
	sibling_done(1, FLUSH);
	expect(IDS(1, 2), STATUSES(QP_ERR, FLUSH), 2, 5000);
	ck_assert_int_eq(atomic_load(&q->state), DP_QP_NATIVE);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fail");
	TCase *tc = tcase_create("fail");

	/* every test in a child of its own, so setup() starts from nothing */
	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, refused_then_flushed);
	tcase_add_test(tc, refused_by_a_provider_that_takes_nothing_in_err);
	tcase_add_test(tc, refused_while_others_are_on_their_way);
	tcase_add_test(tc, refused_with_good_ones_unread);
	tcase_add_test(tc, queued_ones_stay_when_err_cannot_be_had);
	tcase_add_test(tc, queued_ones_are_flushed_by_the_provider);
	tcase_add_loop_test(tc, silent_ones_before_the_error_are_done, 0, 2);
	tcase_add_loop_test(tc, earlier_ones_are_waited_for, 0, 3);
	tcase_add_loop_test(tc, a_third_rail_finishes, 0, 4);
	tcase_add_test(tc, refused_behind_others);
	tcase_add_test(tc, err_leaves_no_gap);
	tcase_add_test(tc, no_room_is_tried_again);
	tcase_add_loop_test(tc, the_others_drain, 0, 2);
	tcase_add_test(tc, breaks_while_it_drains);
	tcase_add_test(tc, breaks_when_drained);
	tcase_add_test(tc, breaks_with_requests_in_its_queue);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

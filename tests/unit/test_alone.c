// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A signal that goes the short way (alone.c), or bulk (bulk.c), leaves the same behind as one that goes the long way: two
 * QPs get the same requests, one by either, and are compared after each.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "order_short.h"
#include "peer/internal.h"
#include "provider_fake.h"
#include "rpd.h"
#include "run.h"

#define DEPTH 16
#define STEPS 5000

static struct verbs_context program;
static struct dp_cq *cq;
static struct ibv_qp qp[2];
static struct dp_qp *q[2];
static struct ibv_send_wr got[2]; /* what the provider got last, and how many */
static struct ibv_sge got_sge[2];
static unsigned ngot[2];
static unsigned nbinds, to_err;
static bool refuse;
static int refusal = ENOMEM;
static uint64_t sent_hash[2][2], nsent[2][2]; /* by QP and rail: of all that its provider got */
static struct ibv_context sib_ctx;
static struct ibv_qp twin[2];
static struct dp_icq icq;
static struct dp_sib sib[2]; /* by QP, as the port numbers are: their meters must not see the other's */
static struct dp_peer owner; /* this process itself: its lease does not end */
static struct dp_rpd rpd;
static struct ibv_wc cqe; /* the next completion, if there is one */
static bool have_cqe;

static int f_post(struct ibv_qp *p, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	unsigned i = p == &qp[1];

	ck_assert_ptr_null(wr->next);
	if (refuse) {
		*bad = wr;
		return refusal;
	}
	got[i] = *wr;
	got_sge[i] = wr->num_sge ? wr->sg_list[0] : (struct ibv_sge){ 0 };
	got[i].sg_list = NULL;
	ngot[i]++;
	return 0;
}

static int f_bind(struct ibv_qp *p, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	(void)p, (void)mw, (void)bind;
	nbinds++;
	return 0;
}

static int f_poll(struct ibv_cq *c, int n, struct ibv_wc *wc)
{
	(void)c;
	if (!have_cqe || n < 1)
		return 0;
	*wc = cqe;
	have_cqe = false;
	return 1;
}

static void mix(uint64_t *h, uint64_t v)
{
	*h = (*h ^ v) * UINT64_C(0x100000001b3);
}

/* Rail 0 and the twins, in the test of bulk. */
static int f_posts(struct ibv_qp *p, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	unsigned r = p == &twin[0] || p == &twin[1], i = p == &twin[1] || p == &qp[1];

	for (; wr; wr = wr->next) {
		uint64_t *h = &sent_hash[i][r];

		if (refuse && !r) {
			*bad = wr;
			return refusal;
		}
		mix(h, wr->wr_id);
		mix(h, (uint64_t)wr->opcode << 32 | wr->send_flags);
		mix(h, wr->wr.rdma.remote_addr);
		mix(h, wr->wr.rdma.rkey);
		for (int k = 0; k < wr->num_sge; k++) {
			if (!wr->sg_list[k].length)
				continue; /* makes a request go the long way */
			mix(h, wr->sg_list[k].addr);
			mix(h, (uint64_t)wr->sg_list[k].length << 32 | wr->sg_list[k].lkey);
		}
		nsent[i][r]++;
	}
	return 0;
}

/* Meanwhile somebody takes keys away. */
static int f_destroy(struct ibv_qp *p)
{
	(void)p;
	dp_key_barrier();
	return EBUSY;
}

static int f_modify(struct ibv_qp *p, struct ibv_qp_attr *attr, int mask)
{
	(void)p;
	to_err += mask == IBV_QP_STATE && attr->qp_state == IBV_QPS_ERR;
	return 0;
}

static const struct dp_verbs real = {
	.query_device = fake_query_device,
	.get_device_name = fake_device_name,
	.create_cq = fake_create_cq,
	.modify_qp = f_modify,
	.destroy_qp = f_destroy,
};

static struct dp_qp *bonded(unsigned i)
{
	struct dp_qp *p;

	qp[i] = (struct ibv_qp){ .context = &program.context, .qp_num = 0x11 + i };
	p = fake_qp(&qp[i], cq, (struct ibv_qp_cap){ .max_send_wr = DEPTH, .max_send_sge = 2, .max_inline_data = 64 });
	atomic_store(&p->refs, 1);
	ck_assert_int_eq(dp_hmap_put(&dp_qps, (uintptr_t)&qp[i], p), 0);
	p->post_send = f_post;
	ck_assert_int_eq(dp_qp_track(p), 0);
	p->nrails = 2;
	p->rail = calloc(2, sizeof(*p->rail));
	for (uint32_t r = 0; r < 2; r++) {
		p->rail[r].q = p;
		p->rail[r].idx = r;
		p->rail[r].flow = dp_flow_get(r ? "fake1:1" : "fake0:1", "peer");
		p->rail[r].chain.sge = calloc(DP_BATCH * 2, sizeof(struct ibv_sge));
	}
	p->flow0 = p->rail[0].flow;
	p->spread_min = dp_cfg.spread_min;
	ck_assert_int_eq(dp_order_widen(&p->order, 2), 0);
	dp_order_bond(&p->order);
	atomic_store(&p->state, DP_QP_BONDED);
	return p;
}

static void setup(void)
{
	struct dp_ctx *c;

	fake_begin(&real, &program);
	dp_cfg.spread_min = dp_cfg.split_min = 8192;
	ngot[0] = ngot[1] = 0;
	refuse = have_cqe = false;
	program.context.ops.post_send = f_post;
	program.context.ops.poll_cq = f_poll;
	program.context.ops.bind_mw = f_bind;
	c = dp_ctx_get(&program.context);
	ck_assert_ptr_nonnull(c);
	cq = dp_cq_find(dp_create_cq(&program.context, 2 * DEPTH, NULL, NULL, 0));
	ck_assert_ptr_nonnull(cq);
	for (unsigned i = 0; i < 2; i++)
		q[i] = bonded(i);
}

static void compare(void)
{
	struct dp_order a = q[0]->order, b = q[1]->order;

	for (uint64_t p = a.tail; p < a.next && p < b.next; p++) {
		const struct dp_op *x = dp_order_op(&a, p), *y = dp_order_op(&b, p);
		const struct dp_slot *s = dp_qp_slot(q[0], p), *t = dp_qp_slot(q[1], p);

		/* by the short ways no more is known of one that went than later ones ask for */
		ck_assert(!((x->flags ^ y->flags) & ~(unsigned)(x->whole ? DP_OP_PLAIN : 0)) && x->whole == y->whole);
		for (uint32_t r = 0; r < 2; r++) {
			const struct dp_op_rail *xr = dp_order_rail(&a, p, r), *yr = dp_order_rail(&b, p, r);

			ck_assert(xr->seq == yr->seq);
			ck_assert((x->whole && r) || !memcmp(&xr->remote, &yr->remote, sizeof(xr->remote)));
			ck_assert(!(x->flags & DP_OP_READ) || !memcmp(&xr->local, &yr->local, sizeof(xr->local)));
		}
		ck_assert(s->wr_id == t->wr_id && s->byte_len == t->byte_len && s->opcode == t->opcode);
		ck_assert(!s->qwr == !t->qwr);
	}
	a.open = b.open;
	a.roomy = b.roomy;
	a.op = b.op = NULL;
	a.rail = b.rail = NULL;
	ck_assert_mem_eq(&a, &b, sizeof(a));
	ck_assert_mem_eq(&got[0], &got[1], sizeof(got[0]));
	ck_assert_mem_eq(&got_sge[0], &got_sge[1], sizeof(got_sge[0]));
	ck_assert_uint_eq(ngot[0], ngot[1]);
	ck_assert_uint_eq(q[0]->busy, q[1]->busy);
}

/*
 * Refused: the long way entered it and took it back, which leaves its hulls larger, whole ops passed over, and written down
 * what it would have written.
 */
static void forget_refused(void)
{
	struct dp_order *a = &q[0]->order, *b = &q[1]->order;

	for (uint32_t r = 0; r < 2; r++) {
		const struct dp_range *x = &a->hull[r], *y = &b->hull[r], *lx = &a->lhull[r], *ly = &b->lhull[r];

		ck_assert(x->lo == x->hi || (y->lo <= x->lo && y->hi >= x->hi));
		ck_assert(lx->lo == lx->hi || (ly->lo <= lx->lo && ly->hi >= lx->hi));
		b->hull[r] = *x;
		b->lhull[r] = *lx;
	}
	for (unsigned i = 0; i < 2; i++) {
		struct dp_order *o = &q[i]->order;

		while (o->posts < o->next && dp_order_op(o, o->posts)->whole)
			o->posts++;
	}
	ck_assert(q[1]->rail[1].ndirty - q[0]->rail[1].ndirty <= 1);
	q[1]->rail[1].ndirty = q[0]->rail[1].ndirty;
	memcpy(q[1]->rail[1].dirty, q[0]->rail[1].dirty, sizeof(q[1]->rail[1].dirty));
}

static void post_both(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad[2] = { NULL, NULL };
	int ret = dp_post_send(q[0]->qp, wr, &bad[0]);

	ck_assert_int_eq(dp_post_tracked(q[1], wr, &bad[1], false), ret);
	ck_assert_ptr_eq(bad[0], bad[1]);
	if (ret)
		forget_refused();
	compare();
}

static void complete_both(uint64_t wr_id)
{
	for (unsigned i = 0; i < 2; i++) {
		struct ibv_wc wc;

		cqe = (struct ibv_wc){ .wr_id = wr_id, .qp_num = qp[i].qp_num };
		have_cqe = true;
		ck_assert_int_eq(dp_poll_cq(cq->cq, 1, &wc), 1);
		ck_assert(wc.wr_id == wr_id && wc.qp_num == qp[i].qp_num);
	}
	compare();
}

START_TEST(as_the_long_way)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
						  IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	static uint8_t mem[4096];
	uint64_t next = 0, done = 0;

	srand(1);
	for (int step = 0; step < STEPS; step++) {
		struct ibv_sge s = { (uintptr_t)mem, (uint32_t)rand() % 5 ? (uint32_t)rand() % 64 : 0, 7 };
		struct ibv_send_wr wr = { .wr_id = next, .sg_list = &s, .num_sge = rand() % 8 != 0,
					  .opcode = ops[(size_t)rand() % (sizeof(ops) / sizeof(ops[0]))] };
		bool posted;

		if (next - done == DEPTH || (next > done && rand() % 2)) {
			complete_both(done++);
			continue;
		}
		wr.send_flags = IBV_SEND_SIGNALED | (rand() % 4 ? 0 : IBV_SEND_FENCE);
		if (wr.opcode == IBV_WR_RDMA_WRITE && rand() % 2)
			wr.send_flags |= IBV_SEND_INLINE;
		if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			s.length = 8;
			wr.wr.atomic.remote_addr = (uint64_t)rand() * 8;
		} else {
			wr.wr.rdma.remote_addr = (uint64_t)rand();
		}
		refuse = rand() % 10 == 0;
		posted = !refuse;
		post_both(&wr);
		next += posted;
		ck_assert_uint_eq(q[0]->order.next, next);
		ck_assert_uint_eq(ngot[0], next);
	}
	ck_assert_uint_ge(next, STEPS / 4);
}
END_TEST

/* While a sibling has something outstanding, a signal is queued by either way. */
START_TEST(waits)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };

	for (unsigned i = 0; i < 2; i++)
		q[i]->order.planned[1] = 1;
	post_both(&wr);
	ck_assert_uint_eq(ngot[0], 0);
	ck_assert_ptr_nonnull(dp_qp_slot(q[0], 0)->qwr);
}
END_TEST

/* A number of SGEs that the list does not have: the provider's to refuse, and the list is not looked at. */
START_TEST(wrong_lists)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .num_sge = -1 };

	refuse = true;
	post_both(&wr);
	wr.num_sge = 1000;
	post_both(&wr);
	ck_assert_uint_eq(q[0]->order.next, 0);
}
END_TEST

static struct ibv_sge none; /* empty; what it stands in is not looked at by the short way */

/* wr: list[0..n), each of one SGE. */
static void bulk_both(struct ibv_send_wr *list, int n)
{
	struct ibv_sge two[4][2];
	struct ibv_send_wr longer[4], *bad[2] = { NULL, NULL };
	int ret;

	for (int k = 0; k < n; k++) {
		list[k].next = k + 1 < n ? &list[k + 1] : NULL;
		longer[k] = list[k];
		longer[k].next = k + 1 < n ? &longer[k + 1] : NULL;
		two[k][0] = list[k].sg_list[0];
		two[k][1] = none;
		longer[k].sg_list = two[k];
		longer[k].num_sge = 2;
	}
	ret = n == 1 ? dp_post_send(q[0]->qp, list, &bad[0]) : dp_post_tracked(q[0], list, &bad[0], false);
	ck_assert_int_eq(dp_post_tracked(q[1], longer, &bad[1], false), ret);
	if (ret) {
		ck_assert_int_eq(bad[0] - list, bad[1] - longer);
		forget_refused();
	}
}

static void compare_bulk(void)
{
	for (unsigned r = 0; r < 2; r++) {
		ck_assert_uint_eq(sent_hash[0][r], sent_hash[1][r]);
		ck_assert_uint_eq(nsent[0][r], nsent[1][r]);
		ck_assert_uint_eq(q[0]->rail[r].posted, q[1]->rail[r].posted);
		ck_assert_uint_eq(q[0]->rail[r].ndirty, q[1]->rail[r].ndirty);
		ck_assert_mem_eq(q[0]->rail[r].dirty, q[1]->rail[r].dirty, sizeof(q[0]->rail[r].dirty));
	}
	compare();
}

/* What its rails have acknowledged: a random number of what was posted. */
static void acknowledge(void)
{
	uint64_t to = q[0]->rail[1].posted, rail = (uint64_t)rand() % 2, some = (uint64_t)rand();

	for (unsigned i = 0; i < 2; i++) {
		struct dp_order *o = &q[i]->order;

		if (rail && to > o->done[1])
			dp_order_done(o, 1, o->done[1] + 1 + some % (to - o->done[1]));
		else if (!rail)
			dp_order_match(o);
		while (dp_order_deliverable(o) != UINT64_MAX)
			dp_order_delivered(o);
		ck_assert_int_eq(dp_qp_release(q[i]), DP_RELEASED);
		dp_qp_update_busy(q[i]);
	}
}

static void bulk_begin(unsigned i, enum dp_ordering mode)
{
	struct dp_qp *p = q[i];

	twin[i] = (struct ibv_qp){ .context = &sib_ctx, .qp_num = 0x21 + i };
	p->post_send = f_posts;
	p->order.mode = mode;
	p->policy = (struct dp_plan_policy){ .nrails = 2, .split_min = 8192, .align = 4096, .weight = { 1, 1 } };
	dp_qp_set_rpd(p, &rpd);
	p->rail[1].twin = &twin[i];
	p->rail[1].icq = &icq;
	p->rail[1].sib = &sib[i];
	p->init.port_num = (uint8_t)i;
	p->rail[1].max_sge = 2;
	p->rail[1].sq_size = 6;
	p->rail[1].flushes = true;
	p->rtt_ns = 1000;
}

static const enum dp_ordering modes[] = { DP_ORDER_RC, DP_ORDER_STRICT, DP_ORDER_SIGNAL, DP_ORDER_RELAXED };

static void bulk_setup(enum dp_ordering mode)
{
	static uint32_t lkeys[1] = { 77 };
	static struct dp_mr mr = { .lkey = 7, .lkeys = lkeys, .usable = true };
	struct dp_rkeys *keys = calloc(1, sizeof(*keys) + sizeof(keys->key[0]));
	struct entry *e;

	*keys = (struct dp_rkeys){ .n = 1, .flags = DP_RKEY_READ, .shift = 1 << 20 };
	keys->key[0] = 99;
	rpd = (struct dp_rpd){ .peer = &owner };
	dp_hmap_init(&rpd.entries);
	dp_lock_init(&rpd.lock);
	e = dp_entry_new(&rpd, 9, 10);
	ck_assert_ptr_nonnull(e);
	atomic_store(&e->keys, keys);
	ck_assert_int_eq(dp_hmap_put(&q[0]->c->lkeys, 7, &mr), 0);
	sib_ctx.ops.post_send = f_posts;
	dp_cfg.patience = DP_PATIENCE_ALWAYS; /* no clock has a say */
	memset(sent_hash, 0, sizeof(sent_hash));
	memset(nsent, 0, sizeof(nsent));
	for (unsigned i = 0; i < 2; i++)
		bulk_begin(i, mode);
}

START_TEST(bulk_as_the_long_way)
{
	static uint8_t mem[1 << 18];
	uint64_t splits = 0, whole = 0;

	bulk_setup(modes[_i]);
	srand((unsigned)_i + 1);
	for (int step = 0; step < STEPS; step++) {
		struct ibv_send_wr wr[3];
		struct ibv_sge s[3];
		int n = rand() % 3 ? 1 : 1 + rand() % 3;

		if (rand() % 2 || q[0]->order.next - q[0]->order.tail > DEPTH) {
			for (int k = rand() % 6; k >= 0; k--)
				acknowledge();
			compare_bulk();
			continue;
		}
		for (int k = 0; k < n; k++) {
			/* half of them where nothing else is */
			uint64_t own = rand() % 2 ? (uint64_t)(step * 4 + k) << 20 : 0;
			uint64_t at = own + (uint64_t)(rand() % 40) * 2048;

			s[k] = (struct ibv_sge){ (uintptr_t)mem + at, rand() % 4 ? 4096u << rand() % 3 : 8, 7 };
			wr[k] = (struct ibv_send_wr){
				.wr_id = (uint64_t)step * 4 + (uint64_t)k, .sg_list = &s[k], .num_sge = 1,
				.opcode = rand() % 3 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
				/* or nothing will ever tell of them */
				.send_flags = rand() % 3 || q[0]->order.next - q[0]->order.last_signaled > 4 ?
						      IBV_SEND_SIGNALED : 0,
				/* no other key: its first use asks the owner */
				.wr.rdma = { 0x10000 + own + (uint64_t)(rand() % 60) * 2048, 9 },
			};
			if (rand() % 10 == 0)
				wr[k].send_flags |= IBV_SEND_FENCE;
		}
		refuse = rand() % 10 == 0;
		bulk_both(wr, n);
		refuse = false;
		compare_bulk();
		if (q[0]->order.next > q[0]->order.tail)
			*(dp_order_op(&q[0]->order, q[0]->order.next - 1)->whole ? &whole : &splits) += 1;
	}
	/* all of it was seen */
	ck_assert_uint_gt(nsent[0][1], STEPS / 20);
	ck_assert_uint_gt(splits, STEPS / 20);
	ck_assert_uint_gt(whole, 0);
}
END_TEST

/* What goes the short way, and what does not. */
START_TEST(bulk_short)
{
	struct ibv_sge s = { 0x1000, 16384, 7 };
	struct ibv_send_wr wr = { .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { 0x10000, 9 } };

	bulk_setup(modes[_i]);
	s.lkey = 8;
	ck_assert(!dp_bulk_add(q[0], &wr));
	s.lkey = 7;
	s.length = 8191;
	ck_assert(!dp_bulk_add(q[0], &wr));
	s.length = 16384;
	wr.send_flags = IBV_SEND_FENCE;
	ck_assert(!dp_bulk_add(q[0], &wr));
	wr.send_flags = 0;
	q[0]->order.flush = 2;
	dp_order_shut(&q[0]->order); /* as dp_flush_setup() does */
	ck_assert(!dp_bulk_add(q[0], &wr));
	q[0]->order.flush = 0;
	ck_assert_uint_eq(q[0]->order.next, 0);
	ck_assert(dp_bulk_add(q[0], &wr) == (modes[_i] != DP_ORDER_RC));
	if (modes[_i] == DP_ORDER_RC)
		return;
	/* equal places never wait; half a place further a part lands where another rail's does */
	ck_assert(dp_bulk_add(q[0], &wr));
	wr.wr.rdma.remote_addr += 8192;
	ck_assert(dp_bulk_add(q[0], &wr) == (modes[_i] == DP_ORDER_RELAXED));
	wr.wr.rdma.remote_addr += 16384;
	dp_order_add_lone(&q[0]->order, 0, 0, 0);
	ck_assert(dp_bulk_add(q[0], &wr) == (modes[_i] != DP_ORDER_STRICT));
}
END_TEST

/*
 * A completion that is held has left room in the provider's queue, which the program has not got: it is refused at its own
 * depth, by bulk that could go the short way (0) as by signals (1), and by ibv_bind_mw (2).
 */
START_TEST(depth_while_held)
{
	static char mem[16384];
	struct ibv_sge s = { (uintptr_t)mem, sizeof(mem), 7 };
	struct ibv_send_wr *bad, wr = { .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { 1 << 20, 9 } };
	struct ibv_wc wc;
	unsigned n = 1;

	bulk_setup(DP_ORDER_SIGNAL);
	q[0]->rail[1].sq_size = 2 * DEPTH;
	ck_assert_int_eq(dp_post_send(q[0]->qp, &wr, &bad), 0);
	ck_assert_uint_eq(q[0]->rail[1].posted, 1);
	cqe = (struct ibv_wc){ .qp_num = qp[0].qp_num };
	have_cqe = true;
	ck_assert_int_eq(dp_poll_cq(cq->cq, 1, &wc), 0);
	if (_i) {
		dp_order_done(&q[0]->order, 1, 1);
		s.length = 8;
	}
	if (_i == 2) {
		struct ibv_mw mw = { .context = &program.context };
		struct ibv_mw_bind bind = { .wr_id = 1 };
		int ret;

		nbinds = 0;
		while (!(ret = dp_bind_mw(q[0]->qp, &mw, &bind)) && n < 2 * DEPTH)
			n++;
		ck_assert_int_eq(ret, ENOMEM);
		ck_assert_uint_eq(nbinds, DEPTH - 1);
		ck_assert_uint_eq(n, DEPTH);
		return;
	}
	while (n < 2 * DEPTH && !dp_post_send(q[0]->qp, &wr, &bad))
		n++;
	ck_assert_uint_eq(n, DEPTH);
	ck_assert_ptr_eq(bad, &wr);
	ck_assert_uint_eq(nsent[0][0], DEPTH);
}
END_TEST

static const int no_room[] = { ENOMEM, -ENOMEM }; /* some providers say it so */

/* Bulk (1), a signal that waits for it (2), and another (3), with which the first may go: rail 0 says err to that. */
static void refuse_when_posting(int err)
{
	static char mem[16384];
	struct ibv_sge s = { (uintptr_t)mem, sizeof(mem), 7 };
	struct ibv_send_wr *bad, wr = { .wr_id = 1, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { 1 << 20, 9 } };

	bulk_setup(DP_ORDER_SIGNAL);
	ck_assert_int_eq(dp_post_send(q[0]->qp, &wr, &bad), 0);
	s.length = 8;
	wr.wr_id = 2;
	ck_assert_int_eq(dp_post_send(q[0]->qp, &wr, &bad), 0);
	ck_assert_uint_eq(nsent[0][0], 1);
	/* the sibling is done, but nobody has looked yet */
	dp_order_done(&q[0]->order, 1, 1);
	refuse = true;
	refusal = err;
	wr.wr_id = 3;
	ck_assert_int_eq(dp_post_send(q[0]->qp, &wr, &bad), 0);
	ck_assert_uint_eq(nsent[0][0], 1);
}

/*
 * What waited may go when another request is posted, and rail 0 has no room for it then: whoever polls tries again, although
 * no completion comes any more.
 */
START_TEST(no_room_when_posting)
{
	struct ibv_wc wc;

	refuse_when_posting(no_room[_i]);
	ck_assert(q[0]->retry && q[0]->on_ready);
	ck_assert_int_eq(atomic_load(&q[0]->state), DP_QP_BONDED);
	refuse = false;
	ck_assert_int_eq(dp_poll_cq(cq->cq, 1, &wc), 0);
	ck_assert_uint_eq(nsent[0][0], 3);
	ck_assert(!q[0]->retry && !dp_order_queued(&q[0]->order));
}
END_TEST

/* The same, refused for good: the queue pair fails, and the program is told of what waited. */
START_TEST(refused_when_posting)
{
	const struct dp_stash *told;
	struct ibv_wc wc;

	to_err = 0;
	refuse_when_posting(EINVAL);
	ck_assert_int_eq(atomic_load(&q[0]->state), DP_QP_FAILING);
	ck_assert(!q[0]->retry && q[0]->on_ready);
	told = q[0]->fakes;
	cqe = (struct ibv_wc){ .wr_id = 1, .qp_num = qp[0].qp_num };
	have_cqe = true;
	ck_assert_int_eq(dp_poll_cq(cq->cq, 1, &wc), 1);
	ck_assert(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS);
	ck_assert_uint_eq(to_err, 1);
	/* what is given when the twins are in ERR, too: tests/unit/test_fail.c */
	ck_assert(told && told->next && !told->next->next);
	ck_assert(told->wc.wr_id == 2 && told->wc.status == IBV_WC_WR_FLUSH_ERR);
	ck_assert(told->next->wc.wr_id == 3 && told->next->wc.status == IBV_WC_WR_FLUSH_ERR);
}
END_TEST

/* What rail 0 has no room for is the program's to hear, as the provider says it, and no sibling's refusal. */
START_TEST(no_room_for_bulk)
{
	struct ibv_sge s = { 0x1000, 16384, 7 };
	struct ibv_send_wr *bad = NULL, wr = { .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { 1 << 20, 9 } };

	bulk_setup(DP_ORDER_SIGNAL);
	refuse = true;
	refusal = no_room[_i];
	ck_assert_int_eq(dp_post_send(q[0]->qp, &wr, &bad), refusal);
	ck_assert_ptr_eq(bad, &wr);
	ck_assert_int_eq(atomic_load(&q[0]->state), DP_QP_BONDED);
	ck_assert(q[0]->order.bonded && !q[0]->order.next && !nsent[0][1]);
	refuse = false;
	ck_assert_int_eq(dp_post_send(q[0]->qp, &wr, &bad), 0);
}
END_TEST

/* What is no range of memory goes the long way, which says so; the order machine would take it for nothing. */
START_TEST(beyond_the_last_address)
{
	struct ibv_sge s = { 0x1000, 16384, 7 };
	struct ibv_send_wr wr = { .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { UINT64_MAX - 16383, 9 } };

	bulk_setup(DP_ORDER_SIGNAL);
	/* of the place in memory, which is what the order machine looks at */
	wr.wr.rdma.remote_addr += 1 - dp_qp_rkeys(q[0], 9)->shift;
	ck_assert(!dp_bulk_add(q[0], &wr));
	ck_assert_uint_eq(q[0]->order.next, 0);
	wr.wr.rdma.remote_addr -= 4096;
	ck_assert(dp_bulk_add(q[0], &wr));
}
END_TEST

/* Each WR that waits is copied to memory that was there before, which is used again; as many as the send queue is deep. */
START_TEST(copies)
{
	static char mem[16384];
	struct ibv_sge s[3] = { { (uintptr_t)mem, 64, 7 }, { (uintptr_t)mem, 0, 7 }, { (uintptr_t)mem, 0, 7 } };
	struct ibv_send_wr *bad, wr = { .sg_list = s, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE };
	struct ibv_sge b = { (uintptr_t)mem, sizeof(mem), 7 };
	struct ibv_send_wr bulk = { .sg_list = &b, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { 1 << 20, 9 } };
	const struct dp_copies *c = &q[0]->copies;
	const struct dp_qwr *copy;

	bulk_setup(DP_ORDER_SIGNAL);
	dp_copies_make(q[0]);
	ck_assert_uint_eq(c->n, DEPTH);
	for (unsigned round = 0; round < 3; round++) {
		ck_assert_int_eq(dp_post_send(q[0]->qp, &bulk, &bad), 0);
		for (unsigned i = 0; i < DEPTH - 1; i++) {
			uint64_t pos = q[0]->order.next;

			/* 64 bytes is what it may have inline, and 2 what it may have of SGEs */
			wr.num_sge = i % 2 ? 2 : 1;
			ck_assert_int_eq(dp_post_send(q[0]->qp, &wr, &bad), 0);
			copy = dp_qp_slot(q[0], pos)->qwr;
			ck_assert_ptr_nonnull(copy);
			ck_assert((char *)copy >= c->mem && (char *)copy + c->room <= c->mem + c->n * c->room);
			ck_assert(!(((char *)copy - c->mem) % (ptrdiff_t)c->room));
			for (uint64_t p = pos - i; p < pos; p++)
				ck_assert_ptr_ne(dp_qp_slot(q[0], p)->qwr, copy);
		}
		ck_assert_uint_eq(c->begun, DEPTH - 1);
		dp_order_done(&q[0]->order, 1, q[0]->rail[1].posted);
		ck_assert_int_eq(dp_qp_release(q[0]), DP_RELEASED);
		ck_assert(!dp_order_queued(&q[0]->order));
		q[0]->order.done[0] = q[0]->order.match = q[0]->order.deliver = q[0]->order.tail = q[0]->order.next;
	}
	/* one that is larger is not among them */
	bulk.wr_id = 1;
	ck_assert_int_eq(dp_post_send(q[0]->qp, &bulk, &bad), 0);
	q[0]->cap.max_inline_data = 4096;
	s[0].length = 4096;
	ck_assert_int_eq(dp_post_send(q[0]->qp, &wr, &bad), 0);
	copy = dp_qp_slot(q[0], q[0]->order.next - 1)->qwr;
	ck_assert((char *)copy < c->mem || (char *)copy >= c->mem + c->n * c->room);
	dp_queue_drop(q[0]);
	dp_copies_free(q[0]);
}
END_TEST

static void know_key(struct dp_rkeys *keys)
{
	q[0]->known = keys;
	q[0]->known_rkey = 9;
	q[0]->lone_rkey = 9;
}

static void knows_no_key(void)
{
	ck_assert_ptr_null(q[0]->known);
	ck_assert_uint_eq(q[0]->lone_rkey, UINT64_MAX);
}

/* A key that was taken away is not known any more when dp_key_barrier() has returned. */
START_TEST(barrier_forgets)
{
	struct dp_rkeys keys = { .n = 1 };

	know_key(&keys);
	ck_assert_ptr_eq(dp_qp_rkeys(q[0], 9), &keys);
	ck_assert_ptr_null(dp_qp_rkeys(q[0], 8));
	know_key(&keys);
	dp_key_barrier();
	knows_no_key();
}
END_TEST

/* Nor when its queue pair could not be found meanwhile, since it was being destroyed; yet it stays. */
START_TEST(kept_forgets)
{
	struct dp_rkeys keys = { .n = 1 };

	know_key(&keys);
	ck_assert_int_eq(dp_destroy_qp(q[0]->qp), EBUSY);
	ck_assert_ptr_eq(dp_qp_find(q[0]->qp), q[0]);
	knows_no_key();
	ck_assert(!q[0]->going);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("alone");
	TCase *t = tcase_create("alone");

	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, setup, NULL);
	tcase_add_test(t, as_the_long_way);
	tcase_add_test(t, waits);
	tcase_add_test(t, wrong_lists);
	tcase_add_loop_test(t, bulk_as_the_long_way, 0, 4);
	tcase_add_loop_test(t, bulk_short, 0, 4);
	tcase_add_loop_test(t, depth_while_held, 0, 3);
	tcase_add_loop_test(t, no_room_when_posting, 0, 2);
	tcase_add_test(t, refused_when_posting);
	tcase_add_loop_test(t, no_room_for_bulk, 0, 2);
	tcase_add_test(t, beyond_the_last_address);
	tcase_add_test(t, copies);
	tcase_add_test(t, barrier_forgets);
	tcase_add_test(t, kept_forgets);
	suite_add_tcase(s, t);
	return run_suite(s);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* What else posting has to see to than the short ways: depth, refusals, copies, keys that come and go, queue pairs that end. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pair_fake.h"
#include "run.h"

/*
 * A completion that is held has left room in the provider's queue, which the program has not got: it is refused at its own
 * depth, by bulk that could go the short way (0) as by signals (1), and by ibv_bind_mw (2); from 3 on, unsignalled requests
 * stand before it, which the program does not know to be done either.
 */
START_TEST(depth_while_held)
{
	static char mem[16384];
	struct ibv_sge s = { (uintptr_t)mem, sizeof(mem), 7 };
	struct ibv_send_wr *bad, wr = { .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { 1 << 20, 9 } };
	struct ibv_wc wc;
	unsigned n = 1, quiet = _i < 3 ? 0 : 7, how = (unsigned)_i % 3;

	pair_bulk(DP_ORDER_SIGNAL);
	q[0]->rail[1].sq_size = 2 * DEPTH;
	wr.send_flags = 0;
	for (; n <= quiet; n++)
		ck_assert_int_eq(dp_post_send(q[0]->qp, &wr, &bad), 0);
	wr.send_flags = IBV_SEND_SIGNALED;
	ck_assert_int_eq(dp_post_send(q[0]->qp, &wr, &bad), 0);
	ck_assert_uint_eq(q[0]->rail[1].posted, n);
	cqe = (struct ibv_wc){ .qp_num = qp[0].qp_num };
	have_cqe = true;
	ck_assert_int_eq(dp_poll_cq(cq->cq, 1, &wc), 0);
	if (how) {
		dp_order_done(&q[0]->order, 1, n);
		s.length = 8;
	}
	if (how == 2) {
		struct ibv_mw mw = { .context = &program.context };
		struct ibv_mw_bind bind = { .wr_id = 1 };
		int ret;

		nbinds = 0;
		while (!(ret = dp_bind_mw(q[0]->qp, &mw, &bind)) && n < 2 * DEPTH)
			n++;
		ck_assert_int_eq(ret, ENOMEM);
		ck_assert_uint_eq(nbinds, DEPTH - 1 - quiet);
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

	pair_bulk(DP_ORDER_SIGNAL);
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

/* The same, refused for good: when 1 is done the queue pair fails, and the program is told of what waited. */
START_TEST(refused_when_posting)
{
	const struct dp_stash *told;
	struct ibv_wc wc;

	to_err = 0;
	refuse_when_posting(EINVAL);
	ck_assert_int_eq(atomic_load(&q[0]->state), DP_QP_BONDED);
	ck_assert(!q[0]->retry && q[0]->on_ready && !to_err);
	cqe = (struct ibv_wc){ .wr_id = 1, .qp_num = qp[0].qp_num };
	have_cqe = true;
	ck_assert_int_eq(dp_poll_cq(cq->cq, 1, &wc), 1);
	ck_assert(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS);
	ck_assert_int_eq(atomic_load(&q[0]->state), DP_QP_FAILING);
	ck_assert_uint_eq(to_err, 1);
	told = q[0]->fakes;
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

	pair_bulk(DP_ORDER_SIGNAL);
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

	pair_bulk(DP_ORDER_SIGNAL);
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
	while_destroyed = dp_key_barrier;
	ck_assert_int_eq(dp_destroy_qp(q[0]->qp), EBUSY);
	ck_assert_ptr_eq(dp_qp_find(q[0]->qp), q[0]);
	knows_no_key();
	ck_assert(!q[0]->going);
}
END_TEST

static struct ibv_wc polled;
static int npolled;

static void poll_meanwhile(void)
{
	npolled = dp_poll_cq(cq->cq, 1, &polled);
}

static void post_16k(uint64_t wr_id, enum ibv_wr_opcode op)
{
	static char mem[16384];
	struct ibv_sge s = { (uintptr_t)mem, sizeof(mem), 7 };
	struct ibv_send_wr *bad, wr = { .wr_id = wr_id, .sg_list = &s, .num_sge = 1, .opcode = op,
					.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { wr_id << 20, 9 } };

	ck_assert_int_eq(dp_post_send(q[0]->qp, &wr, &bad), 0);
}

static void rail0_completes(uint64_t wr_id, enum ibv_wc_opcode op, uint32_t len)
{
	cqe = (struct ibv_wc){ .wr_id = wr_id, .opcode = op, .qp_num = qp[0].qp_num, .byte_len = len };
	have_cqe = true;
}

/*
 * Another thread polls while a queue pair is being destroyed, which takes as long as its events are not acknowledged: what
 * siblings have not done is not given, and if it stays (0), nothing was missed.
 */
START_TEST(polled_while_destroyed)
{
	struct ibv_wc wc;

	pair_bulk(DP_ORDER_SIGNAL);
	post_16k(1, IBV_WR_RDMA_WRITE);
	post_16k(2, IBV_WR_RDMA_WRITE);
	rail0_completes(1, IBV_WC_RDMA_WRITE, 0);
	ck_assert_int_eq(dp_poll_cq(cq->cq, 1, &wc), 0);
	rail0_completes(2, IBV_WC_RDMA_WRITE, 0);
	while_destroyed = poll_meanwhile;
	destroy_ret = _i ? 0 : EBUSY;
	ck_assert_int_eq(dp_destroy_qp(q[0]->qp), destroy_ret);
	ck_assert_int_eq(npolled, 0);
	ck_assert(!have_cqe);
	ck_assert_ptr_eq(dp_hmap_get(&cq->qpns, qp[0].qp_num), _i ? NULL : q[0]);
	if (_i) {
		ck_assert_int_eq(dp_poll_cq(cq->cq, 1, &wc), 0);
		return;
	}
	dp_order_done(&q[0]->order, 1, 2);
	for (uint64_t id = 1; id <= 2; id++) {
		ck_assert_int_eq(dp_poll_cq(cq->cq, 1, &wc), 1);
		ck_assert_uint_eq(wc.wr_id, id);
	}
	post_16k(3, IBV_WR_RDMA_READ);
	rail0_completes(3, IBV_WC_RDMA_READ, 8192);
	ck_assert_int_eq(dp_poll_cq(cq->cq, 1, &wc), 0);
	dp_order_done(&q[0]->order, 1, 3);
	ck_assert_int_eq(dp_poll_cq(cq->cq, 1, &wc), 1);
	ck_assert(wc.wr_id == 3 && wc.byte_len == 16384);
}
END_TEST

/* What was read ahead of a queue pair that is none of ours goes when that is destroyed, or reset. */
START_TEST(read_ahead_of_others)
{
	struct ibv_cq *both = cq->cq;
	struct ibv_qp ud[2] = { { .context = &program.context, .qp_num = 0x77, .qp_type = IBV_QPT_UD, .send_cq = both, .recv_cq = both },
				{ .context = &program.context, .qp_num = 0x78, .qp_type = IBV_QPT_UD, .send_cq = both, .recv_cq = both } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_wc wc;

	pair_bulk(DP_ORDER_SIGNAL);
	for (unsigned i = 0; i < 2; i++) {
		cqe = (struct ibv_wc){ .wr_id = 10 + i, .qp_num = ud[i].qp_num };
		have_cqe = true;
		dp_take(&cq->lock);
		dp_cq_progress(cq, true);
		dp_drop(&cq->lock);
		ck_assert(!have_cqe);
	}
	ck_assert(cq->stash && cq->stash->next);
	destroy_ret = 0;
	if (_i)
		ck_assert_int_eq(dp_modify_qp(&ud[0], &attr, IBV_QP_STATE), 0);
	else
		ck_assert_int_eq(dp_destroy_qp(&ud[0]), 0);
	ck_assert_int_eq(dp_poll_cq(cq->cq, 1, &wc), 1);
	ck_assert_uint_eq(wc.wr_id, 11);
	ck_assert_int_eq(dp_poll_cq(cq->cq, 1, &wc), 0);
}
END_TEST

/* ---- memory of relaxed order */

/* Keys 100 and on, of a region each. */
static void know_regions(unsigned n, uint32_t flags)
{
	for (unsigned k = 0; k < n; k++) {
		struct entry *e = dp_entry_new(&rpd, 100 + k, 1000);
		struct dp_rkeys *keys = calloc(1, sizeof(*keys) + sizeof(keys->key[0]));

		*keys = (struct dp_rkeys){ .n = 1, .flags = (uint8_t)flags, .born = k + 1 };
		keys->key[0] = 1000 + k;
		atomic_store(&e->keys, keys);
	}
	atomic_store(&rpd.relaxed, flags & DP_RKEY_RELAXED);
	dp_cfg.flush = DP_FLUSH_AUTO;
	q[0]->cap.max_send_wr = 64;
	q[0]->rail[1].sq_size = 64;
	q[0]->rail[1].rd_atomic = 16;
	q[0]->rail[1].scratch_lkey = 5;
}

static void write_to(unsigned region, uint32_t len)
{
	static char mem[16384];
	struct ibv_sge s = { (uintptr_t)mem, len, 7 };
	struct ibv_send_wr *bad, wr = { .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
					.wr.rdma = { UINT64_C(1) << 20 << region, 100 + region } };

	ck_assert_int_eq(dp_post_send(q[0]->qp, &wr, &bad), 0);
}

/* The flush of n READs that was posted last answers. */
static void flushed(uint32_t n)
{
	struct dp_rail *rail = &q[0]->rail[1];

	ck_assert_uint_eq(rail->flushing, n);
	dp_flush_done(q[0], rail, DP_FLUSH_BIT | (uint64_t)n << 56 | q[0]->order.asked[1]);
	ck_assert_int_eq(dp_qp_release(q[0]), DP_RELEASED);
}

/*
 * A flag in such memory waits until all data are visible, in however many regions they are: what there is no place for to be
 * noted goes on rail 0, and a flush makes place.
 */
START_TEST(many_regions)
{
	uint64_t fallbacks = dp_counters.fallback[DP_FB_FLUSH_REGIONS];

	pair_bulk(DP_ORDER_SIGNAL);
	know_regions(13, DP_RKEY_READ | (_i ? DP_RKEY_RELAXED : 0));
	for (unsigned k = 0; k < DP_DIRTY; k++)
		write_to(k, 16384);
	ck_assert_uint_eq(nsent[0][1], DP_DIRTY);
	if (!_i) {
		/* nobody can ask for one */
		for (unsigned k = DP_DIRTY; k < 12; k++)
			write_to(k, 16384);
		write_to(0, 8);
		ck_assert(nsent[0][1] == 12 && !dp_counters.flushes && dp_counters.fallback[DP_FB_FLUSH_REGIONS] == fallbacks);
		return;
	}
	write_to(DP_DIRTY, 16384);
	ck_assert_uint_eq(dp_counters.fallback[DP_FB_FLUSH_REGIONS], fallbacks + 1);
	ck_assert_uint_eq(dp_counters.flushes, DP_DIRTY);
	ck_assert_uint_eq(nsent[0][1], 2 * DP_DIRTY);
	write_to(3, 16384); /* noted already */
	ck_assert_uint_eq(nsent[0][1], 2 * DP_DIRTY + 1);
	flushed(DP_DIRTY);
	ck_assert_uint_eq(q[0]->rail[1].ndirty, 1);
	for (unsigned k = DP_DIRTY + 1; k < 13; k++)
		write_to(k, 16384);
	ck_assert_uint_eq(nsent[0][1], 2 * DP_DIRTY + 1 + 4);
	ck_assert_uint_eq(dp_counters.fallback[DP_FB_FLUSH_REGIONS], fallbacks + 1);
	/* the flag */
	write_to(0, 8);
	ck_assert(dp_order_queued(&q[0]->order));
	ck_assert_uint_eq(dp_counters.flushes, DP_DIRTY + 5);
	dp_order_done(&q[0]->order, 1, q[0]->rail[1].posted);
	ck_assert_int_eq(dp_qp_release(q[0]), DP_RELEASED);
	ck_assert(dp_order_queued(&q[0]->order));
	flushed(5);
	ck_assert(!dp_order_queued(&q[0]->order));
	ck_assert_uint_eq(dp_counters.flush_acks, 0);
}
END_TEST

/* What cannot be read cannot be flushed: a flag behind it goes when it is acknowledged, which is counted. */
START_TEST(blind_regions)
{
	pair_bulk(DP_ORDER_SIGNAL);
	know_regions(2, DP_RKEY_RELAXED | (_i ? DP_RKEY_READ : 0));
	write_to(1, 16384);
	ck_assert_uint_eq(nsent[0][1], 1);
	ck_assert_uint_eq(dp_counters.flush_acks, 0);
	write_to(0, 8);
	ck_assert(dp_order_queued(&q[0]->order));
	ck_assert_uint_eq(dp_counters.flush_acks, !_i);
	ck_assert_uint_eq(dp_counters.flushes, _i);
}
END_TEST

/* ---- one memory, named by keys that need not agree in its addresses */

#define SHIFT (UINT64_C(1) << 20)

/* Key 9 has this shift; pending: until the answer comes. */
static struct dp_rkeys *key_of(uint64_t shift, bool pending)
{
	struct entry *e = dp_hmap_get(&rpd.entries, 9);
	struct dp_rkeys *keys = atomic_load(&e->keys);

	keys->shift = shift;
	dp_qp_forget_key(q[0]);
	if (pending) {
		atomic_store(&e->keys, NULL);
		atomic_store(&e->none_until, 0);
	}
	return keys;
}

static void key_comes(struct dp_rkeys *keys)
{
	struct entry *e = dp_hmap_get(&rpd.entries, 9);

	atomic_store(&e->keys, keys);
}

static int write_at(uint64_t wr_id, uint64_t addr, uint32_t len)
{
	static char mem[1 << 16];
	struct ibv_sge s = { (uintptr_t)mem, len, 7 };
	struct ibv_send_wr *bad, wr = { .wr_id = wr_id, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { addr, 9 } };

	return dp_post_send(q[0]->qp, &wr, &bad);
}

/* Everything posted so far is acknowledged and given. */
static void all_done(void)
{
	struct dp_order *o = &q[0]->order;

	dp_order_done(o, 1, q[0]->rail[1].posted);
	while (dp_order_match(o) != UINT64_MAX)
		;
	while (dp_order_deliverable(o) != UINT64_MAX)
		dp_order_delivered(o);
	ck_assert_int_eq(dp_qp_release(q[0]), DP_RELEASED);
}

/*
 * Bulk, or in mode signal a flag, goes by a key of which nothing is known yet; then it is. What overlaps with that must not
 * overtake it on the sibling, although it is named otherwise than the owner tells.
 */
START_TEST(key_comes_between)
{
	enum dp_ordering mode = modes[_i % 4];
	bool shifted = _i / 4 % 2, flag = _i / 8, apart = shifted && (mode == DP_ORDER_STRICT || mode == DP_ORDER_SIGNAL);
	struct dp_rkeys *keys;
	uint64_t pending;

	if (flag && mode != DP_ORDER_SIGNAL)
		return;
	pair_bulk(mode);
	keys = key_of(shifted ? SHIFT : 0, true);
	/* a flag where the sibling's part will be */
	ck_assert_int_eq(flag ? write_at(1, SHIFT + 8192, 8) : write_at(1, SHIFT, 16384), 0);
	ck_assert(nsent[0][0] == 1 && !nsent[0][1]);
	key_comes(keys);
	pending = dp_counters.fallback[DP_FB_RKEY_PENDING];
	ck_assert_int_eq(write_at(2, SHIFT, 16384), 0);
	ck_assert_uint_eq(nsent[0][1], mode == DP_ORDER_RELAXED);
	/* where it is known to be named otherwise, it is not even waited for */
	ck_assert_uint_eq(dp_counters.fallback[DP_FB_RKEY_PENDING], pending + apart);
	/* nor what comes behind that */
	ck_assert_int_eq(write_at(3, SHIFT, 16384), 0);
	ck_assert_uint_eq(nsent[0][1], mode == DP_ORDER_RELAXED ? 2 : 0);
	/* a matter of the first round trips */
	for (int i = 0; i < 4; i++)
		all_done();
	ck_assert(!dp_order_queued(&q[0]->order));
	pending = nsent[0][1];
	ck_assert_int_eq(write_at(4, SHIFT, 16384), 0);
	ck_assert_uint_eq(nsent[0][1], pending + 1);
}
END_TEST

/* The other way round: nothing is known any more, since the peer is gone. What goes on rail 0 waits for the sibling's part. */
START_TEST(key_goes_between)
{
	enum dp_ordering mode = modes[_i % 4];

	pair_bulk(mode);
	key_of(_i / 4 ? SHIFT : 0, false);
	ck_assert_int_eq(write_at(1, SHIFT, 16384), 0);
	ck_assert(nsent[0][0] == 1 && nsent[0][1] == 1);
	dp_order_unbond(&q[0]->order);
	dp_qp_set_rpd(q[0], NULL);
	ck_assert_int_eq(write_at(2, SHIFT, 16384), 0);
	ck_assert_uint_eq(nsent[0][0], mode == DP_ORDER_RELAXED ? 2 : 1);
	dp_order_done(&q[0]->order, 1, 1);
	ck_assert_int_eq(dp_qp_release(q[0]), DP_RELEASED);
	ck_assert_uint_eq(nsent[0][0], 2);
	ck_assert_int_eq(write_at(3, SHIFT, 16384), 0);
	ck_assert_uint_eq(nsent[0][0], 3);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("posts");
	TCase *t = tcase_create("posts");

	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, pair_setup, NULL);
	tcase_add_loop_test(t, depth_while_held, 0, 6);
	tcase_add_loop_test(t, no_room_when_posting, 0, 2);
	tcase_add_test(t, refused_when_posting);
	tcase_add_loop_test(t, no_room_for_bulk, 0, 2);
	tcase_add_test(t, copies);
	tcase_add_test(t, barrier_forgets);
	tcase_add_test(t, kept_forgets);
	tcase_add_loop_test(t, polled_while_destroyed, 0, 2);
	tcase_add_loop_test(t, read_ahead_of_others, 0, 2);
	tcase_add_loop_test(t, many_regions, 0, 2);
	tcase_add_loop_test(t, blind_regions, 0, 2);
	tcase_add_loop_test(t, key_comes_between, 0, 16);
	tcase_add_loop_test(t, key_goes_between, 0, 8);
	suite_add_tcase(s, t);
	return run_suite(s);
}

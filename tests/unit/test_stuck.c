// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The report about WRs that are queued or held for too long. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"
#include "stuck.h"
#include "run.h"

struct dp_config dp_cfg;

static void fake_inside(int delta)
{
	(void)delta;
}

static const struct dp_stub stub = { .abi = DP_CORE_ABI, .inside = fake_inside };
const struct dp_stub *dp_stub = &stub;

void dp_cq_progress(struct dp_cq *cq, bool take0)
{
	(void)cq;
	(void)take0;
}

static struct dp_qp *the_qp;

void dp_qp_each(void (*fn)(struct dp_qp *q, void *arg), void *arg)
{
	fn(the_qp, arg);
}

#define MS UINT64_C(1000000)

static struct stuck {
	struct dp_qp q;
	struct ibv_qp qp;
	struct dp_ctx c;
	struct dp_sib sib;
	struct dp_rail rail[2];
	struct dp_slot slot[16];
	struct dp_qwr qwr[16];
	struct dp_flow flow;
	struct dp_part part[2];
} st;

static void make_stuck(void)
{
	struct dp_qp *q = &st.q;

	dp_cfg.stuck_ns = 1000 * MS;
	q->qp = &st.qp;
	st.qp.qp_num = q->qp_num = 0x11;
	q->rtr.dest_qp_num = 0x12;
	q->c = &st.c;
	q->rail = st.rail;
	q->nrails = 2;
	q->slot = st.slot;
	q->state = DP_QP_BONDED;
	dp_lock_init(&q->lock);
	strcpy(st.flow.port, "ra0:1");
	strcpy(st.flow.peer, "10.0.0.2");
	strcpy(st.sib.text, "ra1:1");
	st.rail[0].flow = &st.flow;
	st.rail[1].sib = &st.sib;
	ck_assert_int_eq(dp_order_init(&q->order, 2, DP_ORDER_STRICT, 16), 0);
	dp_order_bond(&q->order);
}

static void end_stuck(void)
{
	dp_order_fini(&st.q.order);
}

/* Adds a WR as post.c does; half of a bulk one goes to rail 1, and posts what may go. */
static uint64_t add(uint8_t opcode, unsigned flags, uint64_t addr, uint64_t now)
{
	struct dp_order *o = &st.q.order;
	struct dp_op_desc d = { .flags = flags, .remote = { addr, addr + 8192 } };
	uint64_t pos;
	bool all = true;

	st.part[0] = (struct dp_part){ 0, 4096 };
	st.part[1] = (struct dp_part){ 4096, 4096 };
	if (flags & DP_OP_BULK)
		d.part = st.part;
	pos = dp_order_add(o, &d);
	st.slot[pos] = (struct dp_slot){ .opcode = opcode };
	st.qwr[pos] = (struct dp_qwr){ .since = now };
	while (o->post0 == pos && dp_order_may_post0(o))
		dp_order_posted0(o);
	while (dp_order_may_posts(o) && o->posts <= pos) {
		st.rail[1].posted = dp_order_rail(o, o->posts, 1)->seq;
		dp_order_posteds(o);
	}
	all = o->post0 > pos && (o->posts > pos || dp_order_op(o, pos)->whole);
	st.slot[pos].qwr = all ? NULL : &st.qwr[pos];
	return pos;
}

static char text[512];

static const char *describe(uint64_t now)
{
	int n = dp_stuck_describe(&st.q, now, text, sizeof(text));

	ck_assert_int_eq(n, (int)strlen(text));
	return text;
}

START_TEST(flag_behind_data)
{
	const char *want = "qp 0x11 to 10.0.0.2 qp 0x12: flag FETCH_ADD queued 1.2 s: waits for 3 fragments on ra1:1 "
			   "(posted 10, acknowledged 7); rails ra0:1 planned 11 posted 10 done 0, ra1:1 planned 10 "
			   "posted 10 done 7";
	uint64_t t0 = 5000 * MS, flag;
	char small[20];

	make_stuck();
	for (int i = 0; i < 10; i++)
		add(IBV_WR_RDMA_WRITE, DP_OP_BULK | DP_OP_PLAIN, (uint64_t)i << 20, t0);
	dp_order_done(&st.q.order, 1, 7);
	ck_assert_str_eq(describe(t0 + 5000 * MS), "");
	flag = add(IBV_WR_ATOMIC_FETCH_AND_ADD, DP_OP_ATOMIC | DP_OP_SIGNALED, 0x1000, t0);
	ck_assert_str_eq(describe(t0 + 999 * MS), "");
	ck_assert_str_eq(describe(t0 + 1000 * MS), "");
	ck_assert_str_eq(describe(t0 + 1234 * MS), want);
	dp_cfg.stuck_ns = 0;
	ck_assert_str_eq(describe(t0 + 1234 * MS), "");
	dp_cfg.stuck_ns = 1000 * MS;
	/* cut, never more than there is room for */
	ck_assert_int_eq(dp_stuck_describe(&st.q, t0 + 1234 * MS, small, sizeof(small)), (int)sizeof(small) - 1);
	ck_assert_int_eq(strncmp(small, want, sizeof(small) - 1), 0);
	ck_assert_int_eq(small[sizeof(small) - 1], 0);
	ck_assert_int_eq(dp_stuck_describe(&st.q, t0 + 1234 * MS, small, 0), 0);
	/* once, but others that become overdue later have their own line */
	add(IBV_WR_SEND, 0, 0, t0 + 500 * MS);
	dp_stuck_mark(&st.q, t0 + 1234 * MS);
	ck_assert(st.slot[flag].reported);
	ck_assert_str_eq(describe(t0 + 1235 * MS), "");
	ck_assert_ptr_nonnull(strstr(describe(t0 + 1600 * MS), "flag SEND queued 1.1 s: waits for 3 fragments"));
	dp_order_done(&st.q.order, 1, 10);
	ck_assert_ptr_nonnull(strstr(describe(t0 + 1600 * MS), "waits for an earlier request to be posted"));
	dp_order_posted0(&st.q.order);
	ck_assert_ptr_nonnull(strstr(describe(t0 + 1600 * MS), "may go: waits for room on ra0:1"));
	end_stuck();
}
END_TEST

START_TEST(sibling_part_behind_a_signal)
{
	uint64_t t0 = 5000 * MS;

	make_stuck();
	add(IBV_WR_RDMA_WRITE_WITH_IMM, DP_OP_SIGNALED, 0, t0);
	/* two of them: their rail-0 parts went, their other parts wait for the signal */
	add(IBV_WR_RDMA_WRITE, DP_OP_BULK | DP_OP_PLAIN, 1 << 20, t0);
	add(IBV_WR_RDMA_WRITE, DP_OP_BULK | DP_OP_PLAIN, 2 << 20, t0);
	ck_assert_str_eq(describe(t0 + 2000 * MS),
			 "qp 0x11 to 10.0.0.2 qp 0x12: bulk RDMA_WRITE queued 2.0 s: waits for 1 request on ra0:1 "
			 "(posted 3, acknowledged 0); 1 more waits; rails ra0:1 planned 3 posted 3 done 0, ra1:1 "
			 "planned 2 posted 0 done 0");
	end_stuck();
}
END_TEST

START_TEST(completion_held)
{
	uint64_t t0 = 5000 * MS, pos;

	make_stuck();
	add(IBV_WR_RDMA_READ, DP_OP_BULK | DP_OP_PLAIN | DP_OP_READ | DP_OP_SIGNALED, 0, t0);
	ck_assert_str_eq(describe(t0 + 2000 * MS), ""); /* under way on every rail: the network's time, not ours */
	pos = dp_order_match(&st.q.order);
	ck_assert_uint_eq(pos, 0);
	st.slot[pos].held_since = t0 + 100 * MS;
	ck_assert_str_eq(describe(t0 + 1050 * MS), "");
	st.rail[1].dead = true;
	ck_assert_str_eq(describe(t0 + 1400 * MS),
			 "qp 0x11 to 10.0.0.2 qp 0x12: bulk RDMA_READ held 1.3 s: waits for 1 fragment on ra1:1 (posted "
			 "1, acknowledged 0); rails ra0:1 planned 1 posted 1 done 1, ra1:1 planned 1 posted 1 done 0 "
			 "dead");
	st.q.state = DP_QP_FAILING;
	ck_assert_ptr_nonnull(strstr(describe(t0 + 1400 * MS), "held 1.3 s: the qp has failed; waits for 1 fragment"));
	/* it could be given: that the program does not poll is its own affair */
	dp_order_done(&st.q.order, 1, 1);
	ck_assert_str_eq(describe(t0 + 9000 * MS), "");
	end_stuck();
}
END_TEST

/* The report comes once, from the thread, also while somebody polls for ever. */
START_TEST(reported_once)
{
	struct dp_cq a = { .busy = 1 };
	char buf[4096];
	int p[2], saved;
	ssize_t n;

	make_stuck();
	dp_cfg.stuck_ns = 300 * MS;
	ck_assert_int_eq(pipe(p), 0);
	saved = dup(2);
	dup2(p[1], 2);
	dp_lock_init(&a.lock);
	the_qp = &st.q;
	add(IBV_WR_RDMA_WRITE, DP_OP_BULK | DP_OP_PLAIN, 0, dp_now_ns());
	add(IBV_WR_SEND, DP_OP_SIGNALED, 0, dp_now_ns());
	dp_progress_watch(&a);
	for (int i = 0; i < 1500; i++) {
		a.polls++;
		usleep(1000);
	}
	dp_progress_stop();
	dup2(saved, 2);
	close(p[1]);
	n = read(p[0], buf, sizeof(buf) - 1);
	ck_assert_int_gt(n, 0);
	buf[n] = '\0';
	ck_assert_ptr_nonnull(strstr(buf, "flag SEND queued 0."));
	ck_assert_ptr_eq(strchr(buf, '\n'), buf + n - 1);
	end_stuck();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("stuck");
	TCase *tc = tcase_create("stuck");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, flag_behind_data);
	tcase_add_test(tc, sibling_part_behind_a_signal);
	tcase_add_test(tc, completion_held);
	tcase_add_test(tc, reported_once);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

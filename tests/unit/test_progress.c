// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The progress thread over fake CQs, and the report about WRs that are stuck. */
#define _GNU_SOURCE /* gettid */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core.h"
#include "stuck.h"

/* ---- fakes of the rest of the core */

struct fake_cq {
	struct dp_cq cq;
	_Atomic int progressed, raised;
	_Atomic bool give;   /* something is deliverable */
	_Atomic bool finish; /* the next look leaves nothing to do */
	_Atomic bool churn;  /* every look moves something */
	_Atomic int slow_us;
	_Atomic bool in_it, unlocked, outside, take0;
	_Atomic int tid;
	_Atomic uint64_t last, shortest; /* gap between two looks */
};

/* ThreadSanitizer itself cannot make threads in a forked child */
#ifdef __SANITIZE_THREAD__
#define THREADS_IN_CHILD 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREADS_IN_CHILD 0
#endif
#endif
#ifndef THREADS_IN_CHILD
#define THREADS_IN_CHILD 1
#endif

struct dp_config dp_cfg;
static _Thread_local int inside_count;

static void fake_inside(int delta)
{
	inside_count += delta;
}

static const struct dp_stub stub = { .abi = DP_CORE_ABI, .inside = fake_inside };
const struct dp_stub *dp_stub = &stub;

static struct dp_icq icq;

bool dp_cq_progress(struct dp_cq *cq, bool take0)
{
	struct fake_cq *f = (struct fake_cq *)cq;

	uint64_t now = dp_now_ns();

	if (f->last && now - f->last < f->shortest)
		f->shortest = now - f->last;
	f->last = now;
	f->in_it = true;
	f->tid = (int)gettid();
	f->take0 = take0;
	if (dp_try(&cq->lock))
		f->unlocked = true;
	if (inside_count != 1)
		f->outside = true;
	if (f->slow_us)
		usleep((useconds_t)f->slow_us);
	if (f->finish)
		cq->busy = 0;
	if (f->churn)
		icq.pending++;
	f->progressed++;
	f->in_it = false;
	return f->give;
}

void dp_channel_raise(struct dp_cq *cq)
{
	((struct fake_cq *)cq)->raised++;
}

static struct dp_qp *the_qp;

void dp_qp_each(void (*fn)(struct dp_qp *q, void *arg), void *arg)
{
	if (the_qp)
		fn(the_qp, arg);
}

static void make_cq(struct fake_cq *f)
{
	memset(f, 0, sizeof(*f));
	f->shortest = UINT64_MAX;
	dp_lock_init(&f->cq.lock);
}

static void work(struct fake_cq *f)
{
	f->cq.busy = 1;
	dp_progress_watch(&f->cq);
}

/* Polls cond for up to 10 s. */
#define wait_for(cond)                                                                                                \
	do {                                                                                                          \
		int ms_ = 0;                                                                                          \
		while (!(cond) && ms_++ < 10000)                                                                      \
			usleep(1000);                                                                                 \
		ck_assert_msg((cond), "not within 10 s: %s", #cond);                                                  \
	} while (0)

/* Progress threads of this process, by name: sanitizers have threads of their own. */
static int threads(void)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;
	int n = 0;

	while ((e = readdir(d))) {
		char path[300], name[32] = "";
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
		f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
		if (!f)
			continue;
		n += fgets(name, sizeof(name), f) && !strcmp(name, "dualport-prog\n");
		fclose(f);
	}
	closedir(d);
	return n;
}

/* ---- the thread */

START_TEST(moves_what_nobody_polls)
{
	struct fake_cq a, b;
	int n;

	make_cq(&a);
	make_cq(&b);
	work(&a);
	work(&b);
	wait_for(a.progressed > 3 && b.progressed > 3);
	ck_assert_int_eq(threads(), 1);
	ck_assert_int_eq(a.raised, 0);
	a.give = true;
	wait_for(a.raised > 0);
	ck_assert_int_eq(b.raised, 0);
	a.finish = true;
	wait_for(!a.cq.busy);
	n = b.progressed;
	wait_for(b.progressed > n + 3);
	wait_for(!__atomic_load_n(&a.cq.progress_listed, __ATOMIC_SEQ_CST));
	n = a.progressed;
	usleep(20000);
	ck_assert_int_eq(a.progressed, n);
	/* long asleep, and once more */
	b.finish = true;
	wait_for(!__atomic_load_n(&b.cq.progress_listed, __ATOMIC_SEQ_CST));
	usleep(50000);
	a.finish = false;
	work(&a);
	wait_for(a.progressed > n);
	ck_assert(a.take0);
	ck_assert(!a.unlocked && !a.outside && !b.unlocked && !b.outside);
	ck_assert_int_eq(threads(), 1);
	dp_progress_stop();
	ck_assert_int_eq(threads(), 0);
}
END_TEST

START_TEST(leaves_alone_what_somebody_polls)
{
	struct fake_cq a;
	uint64_t begin, t, last;
	int n, excused = 1;

	make_cq(&a);
	work(&a);
	wait_for(a.progressed > 0);
	/* pollers are seen by the count */
	n = a.progressed;
	begin = last = dp_now_ns();
	while ((t = dp_now_ns()) - begin < 400000000) {
		a.cq.polls++;
		/* this thread was off the processor: nobody polled */
		if (t - last > 200000)
			excused += (int)((t - last) / 1000000) + 1;
		last = t;
	}
	ck_assert_int_le(a.progressed - n, excused);
	n = a.progressed;
	wait_for(a.progressed > n);
	/* and by the lock */
	dp_take(&a.cq.lock);
	n = a.progressed;
	usleep(20000);
	ck_assert_int_eq(a.progressed, n);
	dp_drop(&a.cq.lock);
	wait_for(a.progressed > n);
	dp_progress_stop();
}
END_TEST

START_TEST(pauses_grow_and_shrink)
{
	struct fake_cq a;

	make_cq(&a);
	work(&a);
	/* load makes gaps longer, never shorter: only the shortest ones are looked at */
	usleep(50000);
	a.shortest = UINT64_MAX;
	usleep(200000);
	ck_assert_msg(a.shortest >= 1000000, "%llu ns, nothing moves", (unsigned long long)a.shortest);
	dp_take(&a.cq.lock);
	a.cq.icqs = &icq;
	dp_drop(&a.cq.lock);
	a.churn = true;
	wait_for(a.shortest < 500000);
	a.churn = false;
	usleep(50000);
	a.shortest = UINT64_MAX;
	wait_for((dp_progress_hurry(), a.shortest < 500000));
	dp_progress_stop();
}
END_TEST

static void *forget(void *arg)
{
	dp_progress_forget(arg);
	return NULL;
}

START_TEST(forget_waits)
{
	struct fake_cq a, b;
	pthread_t t;
	int n;

	make_cq(&a);
	make_cq(&b);
	dp_progress_forget(&a.cq); /* never listed */
	a.slow_us = 50000;
	work(&a);
	work(&b);
	wait_for(a.in_it);
	ck_assert_int_eq(pthread_create(&t, NULL, forget, &a.cq), 0);
	pthread_join(t, NULL);
	ck_assert(!a.in_it);
	n = a.progressed;
	memset(&a.cq, 0xff, sizeof(a.cq)); /* it may be freed now */
	a.progressed = 0;
	usleep(20000);
	ck_assert_int_eq(a.progressed, 0);
	ck_assert_int_gt(n, 0);
	n = b.progressed;
	wait_for(b.progressed > n);
	/* forgotten and listed again: destroy_cq was refused */
	dp_progress_forget(&b.cq);
	work(&b);
	n = b.progressed;
	wait_for(b.progressed > n);
	dp_progress_stop();
}
END_TEST

START_TEST(is_a_quiet_guest)
{
	struct fake_cq a;
	sigset_t mine, after;
	char path[64], line[256], name[32] = "";
	unsigned long long blocked = 0;
	FILE *f;

	make_cq(&a);
	pthread_sigmask(SIG_BLOCK, NULL, &mine);
	work(&a);
	pthread_sigmask(SIG_BLOCK, NULL, &after);
	for (int sig = 1; sig < NSIG; sig++)
		ck_assert_int_eq(sigismember(&mine, sig), sigismember(&after, sig));
	wait_for(a.tid);
	ck_assert_int_ne(a.tid, (int)gettid());
	snprintf(path, sizeof(path), "/proc/self/task/%d/status", a.tid);
	f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f)) {
		sscanf(line, "Name: %31s", name);
		sscanf(line, "SigBlk: %llx", &blocked);
	}
	fclose(f);
	ck_assert_str_eq(name, "dualport-prog");
	for (int sig = 1; sig < 64; sig++)
		if (sig != SIGKILL && sig != SIGSTOP && sig != 32 && sig != 33)
			ck_assert_msg(blocked >> (sig - 1) & 1, "signal %d", sig);
	dp_progress_stop();
}
END_TEST

START_TEST(stops_and_starts)
{
	struct fake_cq a;
	uint64_t t;
	int n;

	dp_progress_stop();
	make_cq(&a);
	for (int i = 0; i < 20; i++) {
		n = a.progressed;
		work(&a);
		if (i & 1)
			wait_for(a.progressed > n);
		dp_progress_stop();
		dp_progress_stop();
		ck_assert_int_eq(threads(), 0);
		ck_assert(!a.cq.progress_listed);
	}
	/* a thread that hangs in a provider is not waited for; nor is another made beside it */
	a.slow_us = 1500000;
	work(&a);
	wait_for(a.in_it);
	t = dp_now_ns();
	dp_progress_stop();
	t = dp_now_ns() - t;
	ck_assert(a.in_it && t > 900000000 && t < 1400000000);
	work(&a);
	ck_assert_int_eq(threads(), 1);
	wait_for(!a.in_it);
	wait_for(threads() == 0);
}
END_TEST

/* Work that appears just as the thread finds the CQ idle is never left lying. */
START_TEST(watch_against_leave)
{
	struct fake_cq a;

	make_cq(&a);
	a.finish = true;
	for (int i = 0; i < 3000; i++) {
		work(&a);
		for (uint64_t t = dp_now_ns(); a.cq.busy;) {
			ck_assert_msg(dp_now_ns() - t < 10000000000u, "work %d was not seen", i);
			if (i & 1)
				usleep(50);
		}
	}
	dp_progress_stop();
}
END_TEST

static _Atomic bool end_hammer;

static void *hammer(void *arg)
{
	while (!end_hammer)
		dp_progress_hurry();
	return arg;
}

START_TEST(after_fork)
{
	struct fake_cq a, b;
	pthread_t t;
	int status;

	make_cq(&a);
	make_cq(&b);
	work(&a);
	wait_for(a.progressed);
	/* forks while another thread is about to take the lock, or has it */
	ck_assert_int_eq(pthread_create(&t, NULL, hammer, NULL), 0);
	for (int i = 0; i < 20; i++) {
		pid_t pid = fork();

		if (!pid) {
			alarm(20);
			dp_progress_after_fork();
			if (threads() || a.cq.progress_listed)
				_exit(1);
			dp_progress_stop();
			if (THREADS_IN_CHILD) {
				work(&b);
				while (!b.progressed)
					usleep(1000);
			}
			dp_progress_stop();
			_exit(threads() ? 2 : 0);
		}
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		ck_assert_msg(status == 0, "child: status 0x%x", (unsigned)status);
	}
	end_hammer = true;
	pthread_join(t, NULL);
	dp_progress_stop();
}
END_TEST

/* ---- stuck WRs */

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
	st.qp.qp_num = 0x11;
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
	struct fake_cq a;
	char buf[4096];
	int p[2], saved;
	ssize_t n;

	make_stuck();
	dp_cfg.stuck_ns = 300 * MS;
	ck_assert_int_eq(pipe(p), 0);
	saved = dup(2);
	dup2(p[1], 2);
	make_cq(&a);
	the_qp = &st.q;
	add(IBV_WR_RDMA_WRITE, DP_OP_BULK | DP_OP_PLAIN, 0, dp_now_ns());
	add(IBV_WR_SEND, DP_OP_SIGNALED, 0, dp_now_ns());
	work(&a);
	for (int i = 0; i < 1500; i++) {
		a.cq.polls++;
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
	Suite *s = suite_create("progress");
	TCase *tc = tcase_create("thread");
	SRunner *sr;
	int failed;

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, moves_what_nobody_polls);
	tcase_add_test(tc, leaves_alone_what_somebody_polls);
	tcase_add_test(tc, pauses_grow_and_shrink);
	tcase_add_test(tc, forget_waits);
	tcase_add_test(tc, is_a_quiet_guest);
	tcase_add_test(tc, stops_and_starts);
	tcase_add_test(tc, watch_against_leave);
	tcase_add_test(tc, after_fork);
	suite_add_tcase(s, tc);
	tc = tcase_create("stuck");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, flag_behind_data);
	tcase_add_test(tc, sibling_part_behind_a_signal);
	tcase_add_test(tc, completion_held);
	tcase_add_test(tc, reported_once);
	suite_add_tcase(s, tc);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

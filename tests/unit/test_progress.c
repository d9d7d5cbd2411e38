// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The progress thread over fake CQs. */
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
#include "run.h"

/* ---- fakes of the rest of the core */

struct fake_cq {
	struct dp_cq cq;
	_Atomic int progressed;
	_Atomic bool finish; /* the next look leaves nothing to do */
	_Atomic bool churn;  /* every look moves something */
	struct dp_cq *_Atomic polls_other; /* in every look, somebody polls that one */
	_Atomic int slow_us;
	_Atomic bool in_it, unlocked, outside, take0;
	_Atomic int tid;
	sigset_t blocked; /* valid with tid */
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

void dp_cq_progress(struct dp_cq *cq, bool take0)
{
	struct fake_cq *f = (struct fake_cq *)cq;

	uint64_t now = dp_now_ns();

	if (f->last && now - f->last < f->shortest)
		f->shortest = now - f->last;
	f->last = now;
	if (f->polls_other)
		f->polls_other->polls++;
	f->in_it = true;
	if (!f->tid)
		pthread_sigmask(SIG_BLOCK, NULL, &f->blocked);
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
}

void dp_qp_each(void (*fn)(struct dp_qp *q, void *arg), void *arg)
{
	(void)fn;
	(void)arg;
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

/*
 * Progress threads of this process, by name: sanitizers have threads of their own. One that was joined may be listed a
 * moment longer.
 */
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
	wait_for(threads() == 0);
}
END_TEST

START_TEST(leaves_alone_what_somebody_polls)
{
	struct fake_cq a, b;
	int n;

	make_cq(&a);
	make_cq(&b);
	work(&a);
	wait_for(a.progressed > 0);
	/* pollers are seen by the count: here somebody polls between any two rounds */
	b.polls_other = &a.cq;
	work(&b);
	wait_for(b.progressed > 2);
	n = a.progressed;
	wait_for(b.progressed > 100);
	ck_assert_int_eq(a.progressed, n);
	b.polls_other = NULL;
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
	int n;

	make_cq(&a);
	work(&a);
	/* load makes gaps longer, never shorter: only the shortest ones are looked at */
	wait_for(a.progressed > 20);
	a.shortest = UINT64_MAX;
	usleep(200000);
	ck_assert_msg(a.shortest >= 1000000, "%llu ns, nothing moves", (unsigned long long)a.shortest);
	dp_take(&a.cq.lock);
	a.cq.icqs = &icq;
	dp_drop(&a.cq.lock);
	a.churn = true;
	wait_for(a.shortest < 500000);
	a.churn = false;
	n = a.progressed;
	wait_for(a.progressed > n + 20);
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
	while (fgets(line, sizeof(line), f))
		sscanf(line, "Name: %31s", name);
	fclose(f);
	ck_assert_str_eq(name, "dualport-prog");
	for (int sig = 1; sig < 64; sig++)
		if (sig != SIGKILL && sig != SIGSTOP && sig != 32 && sig != 33)
			ck_assert_msg(sigismember(&a.blocked, sig) == 1, "signal %d", sig);
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
		wait_for(threads() == 0);
		ck_assert(!a.cq.progress_listed);
	}
	/* a thread that hangs in a provider is not waited for; nor is another made beside it */
	a.slow_us = 4000000;
	work(&a);
	wait_for(a.in_it);
	t = dp_now_ns();
	dp_progress_stop();
	t = dp_now_ns() - t;
	ck_assert(a.in_it && t > 900000000);
	work(&a);
	ck_assert_int_eq(threads(), 1);
	wait_for(!a.in_it);
	wait_for(threads() == 0);
}
END_TEST

/* Work that appears just as the thread finds the CQ idle is never left lying. */
START_TEST(watch_against_leave)
{
	static struct fake_cq cq[64];
	unsigned seed = 1;

	for (int k = 0; k < 64; k++) {
		make_cq(&cq[k]);
		cq[k].finish = true;
	}
	for (int i = 0; i < 400; i++) {
		uint64_t t;

		for (int k = 0; k < 64; k++)
			work(&cq[k]);
		t = dp_now_ns();
		for (int k = 0; k < 64; k++)
			while (cq[k].cq.busy)
				ck_assert_msg(dp_now_ns() - t < 10000000000u, "work %d on %d was not seen", i, k);
		for (t = dp_now_ns() + (unsigned)rand_r(&seed) % 150000; dp_now_ns() < t;)
			;
	}
	dp_progress_stop();
}
END_TEST

static _Atomic bool hammering, end_hammer;

static void *hammer(void *arg)
{
	hammering = true;
	while (!end_hammer)
		dp_progress_hurry();
	return arg;
}

/* Status of a child; one that hangs, with its signals blocked perhaps, is killed. */
static int end_of(pid_t pid)
{
	uint64_t until = dp_now_ns() + 20000000000u;
	int status;
	pid_t p;

	while (!(p = waitpid(pid, &status, WNOHANG)) && dp_now_ns() < until)
		usleep(1000);
	if (!p) {
		kill(pid, SIGKILL);
		p = waitpid(pid, &status, 0);
	}
	ck_assert_int_eq(p, pid);
	return status;
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
	/* a thread that starts holds a lock of ASan's, and a child that inherits it can make no thread */
	wait_for(hammering);
	for (int i = 0; i < 20; i++) {
		pid_t pid = fork();

		if (!pid) {
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
		status = end_of(pid);
		ck_assert_msg(status == 0, "child: status 0x%x", (unsigned)status);
	}
	end_hammer = true;
	pthread_join(t, NULL);
	dp_progress_stop();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("progress");
	TCase *tc = tcase_create("thread");

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
	return run_suite(s);
}

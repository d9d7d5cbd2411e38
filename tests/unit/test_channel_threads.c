// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Shadow channels over a fake kernel, several threads. */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "channel_fake.h"
#include "run.h"

struct late_ack {
	struct ibv_cq *cq;
	unsigned n;
};

static void *ack_later(void *arg)
{
	struct late_ack *l = arg;

	usleep(30000);
	dp_ack_cq_events(l->cq, l->n);
	return NULL;
}

START_TEST(destroy_waits_for_every_ack)
{
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct fake_cq a;
	struct late_ack late = { &a.cq, 1 };
	pthread_t t;

	/* 2 of ours and 2 of the kernel's, acknowledged in all ways of cutting 4 */
	for (unsigned first = 0; first <= 4; first++) {
		make_cq(&a, ch, true);
		for (int i = 0; i < 4; i++) {
			ibv_req_notify_cq(&a.cq, 0);
			if (i & 1)
				kernel_event(&a);
			else
				dp_arm_raise(&a.rec);
			expect(ch, &a);
			if (i == 2)
				dp_ack_cq_events(&a.cq, first < 3 ? first : 3);
		}
		late.n = first < 3 ? 4 - first : 1;
		ck_assert(!fake_destroy_cq(&a, 10));
		ck_assert_int_eq(pthread_create(&t, NULL, ack_later, &late), 0);
		ck_assert(destroy_cq(&a));
		pthread_join(t, NULL);
	}
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

struct waiter {
	pthread_t t;
	struct ibv_comp_channel *ch;
	struct ibv_cq *cq;
	int ret, err;
	_Atomic bool done;
};

static void *wait_for_event(void *arg)
{
	struct waiter *w = arg;
	void *cq_context;

	w->ret = dp_get_cq_event(w->ch, &w->cq, &cq_context);
	w->err = errno;
	w->done = true;
	return NULL;
}

static void start_waiter(struct waiter *w, struct ibv_comp_channel *ch)
{
	*w = (struct waiter){ .ch = ch };
	ck_assert_int_eq(pthread_create(&w->t, NULL, wait_for_event, w), 0);
}

START_TEST(several_wait)
{
	struct ibv_comp_channel *ch = dp_create_comp_channel(&context);
	struct waiter w[4];
	struct fake_cq cq[4];
	int of[4] = { 0 };

	for (int i = 0; i < 4; i++) {
		make_cq(&cq[i], ch, true);
		ibv_req_notify_cq(&cq[i].cq, 0);
		start_waiter(&w[i], ch);
	}
	usleep(20000);
	for (int i = 0; i < 4; i++)
		ck_assert(!w[i].done);
	for (int i = 0; i < 4; i++) {
		if (i == 2)
			kernel_event(&cq[i]);
		else
			dp_arm_raise(&cq[i].rec);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(w[i].t, NULL);
		ck_assert_int_eq(w[i].ret, 0);
		of[(struct fake_cq *)w[i].cq - cq]++;
	}
	for (int i = 0; i < 4; i++) {
		ck_assert_int_eq(of[i], 1);
		dp_ack_cq_events(&cq[i].cq, 1);
		ck_assert(destroy_cq(&cq[i]));
	}
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

static void on_signal(int sig)
{
	(void)sig;
}

/* SIGUSR1. Check itself and sanitizers have handlers, too, which are not what this is about. */
static void handle_alone(int flags)
{
	struct sigaction sa = { .sa_handler = on_signal, .sa_flags = flags };

	for (int sig = 1; sig < NSIG; sig++)
		if (sig != SIGUSR1 && sig != SIGKILL && sig != SIGSTOP)
			signal(sig, SIG_DFL);
	sigaction(SIGUSR1, &sa, NULL);
}

/* The fd was readable, and then somebody took what that was about: who blocks after that must not wait for ever. */
START_TEST(taken_back_after_poll)
{
	bool again = _i & 1, solicited = _i & 2, interrupted = _i & 4;
	struct ibv_comp_channel *ch = dp_create_comp_channel(&context);
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };
	struct fake_cq a, b;
	struct waiter w;

	make_cq(&a, ch, true);
	hold_in(&a);
	a.gives = a.gives_recv = true;
	ibv_req_notify_cq(&a.cq, solicited);
	ck_assert_int_eq(poll(&p, 1, 0), 1);
	polled(&a);
	ck_assert_int_eq(poll(&p, 1, 0), 0);
	if (again)
		ibv_req_notify_cq(&a.cq, solicited);
	if (interrupted)
		handle_alone(SA_RESTART);
	start_waiter(&w, ch);
	/* signals by which the call is begun anew do not make it longer */
	while (interrupted && !w.done) {
		pthread_kill(w.t, SIGUSR1);
		usleep(20000);
	}
	pthread_join(w.t, NULL);
	ck_assert_int_eq(w.ret, 0);
	ck_assert_ptr_eq(w.cq, &a.cq);
	/* that was the event of its arm, and not of a later one */
	dp_arm_raise_error(&a.rec);
	ck_assert_int_eq(poll(&p, 1, 0), again);
	if (!again) {
		ibv_req_notify_cq(&a.cq, solicited);
		dp_arm_raise_error(&a.rec);
	}
	expect(ch, &a);
	/* whoever got another one since then waits */
	a.gives = true;
	ibv_req_notify_cq(&a.cq, solicited);
	polled(&a);
	dp_arm_raise_error(&a.rec);
	expect(ch, &a);
	ibv_req_notify_cq(&a.cq, solicited);
	start_waiter(&w, ch);
	usleep(20000);
	ck_assert(!w.done);
	dp_arm_raise_error(&a.rec);
	pthread_join(w.t, NULL);
	ck_assert_int_eq(w.ret, 0);
	/* with the CQ it is gone */
	a.gives = true;
	ibv_req_notify_cq(&a.cq, solicited);
	polled(&a);
	dp_ack_cq_events(&a.cq, 4);
	ck_assert(destroy_cq(&a));
	make_cq(&b, ch, true);
	start_waiter(&w, ch);
	usleep(20000);
	ck_assert(!w.done);
	ibv_req_notify_cq(&b.cq, 0);
	dp_arm_raise(&b.rec);
	pthread_join(w.t, NULL);
	ck_assert_ptr_eq(w.cq, &b.cq);
	dp_ack_cq_events(&b.cq, 1);
	ck_assert(destroy_cq(&b));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

START_TEST(interrupted)
{
	struct ibv_comp_channel *ch = dp_create_comp_channel(&context);
	struct fake_cq a;
	struct waiter w;

	make_cq(&a, ch, true);
	ibv_req_notify_cq(&a.cq, 0);
	handle_alone(_i ? SA_RESTART : 0);
	start_waiter(&w, ch);
	usleep(20000);
	ck_assert(!w.done);
	pthread_kill(w.t, SIGUSR1);
	if (_i) {
		usleep(20000);
		ck_assert(!w.done);
		dp_arm_raise(&a.rec);
	}
	pthread_join(w.t, NULL);
	ck_assert_int_eq(w.ret, _i ? 0 : -1);
	if (!_i)
		ck_assert_int_eq(w.err, EINTR);
}
END_TEST

START_TEST(cancelled_while_waiting)
{
	struct ibv_comp_channel *ch = dp_create_comp_channel(&context);
	int before = open_fds();
	struct fake_cq a;
	struct waiter w;
	void *ret;

	make_cq(&a, ch, true);
	start_waiter(&w, ch);
	usleep(20000);
	ck_assert_int_eq(pthread_cancel(w.t), 0);
	pthread_join(w.t, &ret);
	ck_assert_ptr_eq(ret, PTHREAD_CANCELED);
	ck_assert_int_eq(inside_lowered, 1); /* its clean-up handlers are the program's */
	/* no lock was left behind */
	ibv_req_notify_cq(&a.cq, 0);
	dp_arm_raise(&a.rec);
	start_waiter(&w, ch);
	pthread_join(w.t, NULL);
	ck_assert_int_eq(w.ret, 0);
	dp_ack_cq_events(&a.cq, 1);
	ck_assert(destroy_cq(&a));
	ck_assert_int_eq(open_fds(), before);
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
	ck_assert_int_eq(open_fds(), before - 4);
}
END_TEST

/* A channel that goes while a thread is still in it: the thread does not touch what is gone. */
START_TEST(destroyed_under_a_waiter)
{
	struct sigaction sa = { .sa_handler = on_signal };
	struct ibv_comp_channel *ch = dp_create_comp_channel(&context);
	struct waiter w;

	sigaction(SIGUSR1, &sa, NULL);
	start_waiter(&w, ch);
	usleep(20000);
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
	usleep(5000);
	pthread_kill(w.t, SIGUSR1);
	pthread_join(w.t, NULL);
	ck_assert_int_eq(w.ret, -1);
	/* a pipe that is closed wakes it, a real channel does not */
	ck_assert(w.err == EINTR || w.err == EBADF);
}
END_TEST

/*
 * The program's loop (arm, poll until empty, sleep) against a thread that makes completions deliverable, and
 * sometimes the kernel: none may be slept through, and no arm may give two events of ours. Also where things are held.
 */
#define ROUNDS 4000

struct race {
	struct fake_cq *f;
	int deliverable; /* with f->rec.lock */
	bool held;
	_Atomic int made, taken;
};

static void *deliver(void *arg)
{
	struct race *r = arg;
	unsigned seed = 1;

	for (int i = 0; i < ROUNDS; i++) {
		bool locked = rand_r(&seed) & 1;

		/* the program is sometimes asleep, sometimes about to arm */
		if (rand_r(&seed) % 4 == 0)
			while (r->taken < r->made)
				sched_yield();
		dp_take(&r->f->rec.lock);
		r->deliverable++;
		r->made++;
		if (locked || r->held)
			dp_arm_raise(&r->f->rec);
		dp_drop(&r->f->rec.lock);
		if (!locked && !r->held)
			dp_arm_raise(&r->f->rec);
		/* rail 0's part of the next */
		if (r->held && rand_r(&seed) % 3 == 0)
			kernel_event(r->f);
	}
	return NULL;
}

START_TEST(arm_against_raise)
{
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };
	struct fake_cq a;
	struct race r = { .f = &a, .held = _i };
	unsigned events = 0;
	struct ibv_cq *cq;
	void *cq_context;
	pthread_t t;
	int n;

	make_cq(&a, ch, true);
	if (r.held)
		hold_in(&a);
	ck_assert_int_eq(pthread_create(&t, NULL, deliver, &r), 0);
	while (r.taken < ROUNDS) {
		ck_assert_int_eq(ibv_req_notify_cq(&a.cq, 0), 0);
		dp_take(&a.rec.lock);
		n = r.deliverable;
		r.deliverable = 0;
		dp_drop(&a.rec.lock);
		r.taken += n;
		if (r.taken == ROUNDS)
			break;
		ck_assert_msg(poll(&p, 1, 5000) == 1, "slept through completion %d", r.taken);
		if (dp_get_cq_event(ch, &cq, &cq_context))
			continue;
		events++;
	}
	pthread_join(t, NULL);
	while (!dp_get_cq_event(ch, &cq, &cq_context))
		events++;
	ck_assert_uint_le(events, (unsigned)a.arms);
	ck_assert_uint_gt(events, 0);
	dp_ack_cq_events(&a.cq, events);
	ck_assert(destroy_cq(&a));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("channel_threads");
	TCase *tc = tcase_create("channel");

	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, destroy_waits_for_every_ack);
	tcase_add_test(tc, several_wait);
	tcase_add_loop_test(tc, taken_back_after_poll, 0, 8);
	tcase_add_loop_test(tc, interrupted, 0, 2);
	tcase_add_test(tc, cancelled_while_waiting);
	tcase_add_test(tc, destroyed_under_a_waiter);
	tcase_add_loop_test(tc, arm_against_raise, 0, 2);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

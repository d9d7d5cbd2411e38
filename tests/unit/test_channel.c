// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Shadow channels over a fake kernel, one thread. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

#include "channel_fake.h"
#include "run.h"

START_TEST(native_without_a_group)
{
	struct ibv_comp_channel *ch;
	struct dp_channel *shadow = (void *)1;

	ctx.grouped = false;
	ch = dp_create_comp_channel(&context);
	ck_assert_ptr_eq(dp_channel_real(ch, &shadow), ch);
	ck_assert(!shadow);
	ck_assert_ptr_null(dp_channel_real(NULL, &shadow));
	ck_assert(!shadow);
	ck_assert_int_eq(fcntl(ch->fd, F_GETFL) & O_NONBLOCK, 0);
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

START_TEST(life_of_a_channel)
{
	int before = open_fds(), made = 0;
	bool was[64];
	struct ibv_comp_channel *ch, *real;
	struct dp_channel *shadow;
	struct fake_cq a, b;

	for (int fd = 0; fd < 64; fd++)
		was[fd] = fcntl(fd, F_GETFD) >= 0;
	ch = dp_create_comp_channel(&context);
	for (int fd = 0; fd < 64; fd++)
		if (!was[fd] && fcntl(fd, F_GETFD) >= 0) {
			made++;
			ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
		}
	ck_assert_int_eq(made, 4); /* two ends of the pipe, the eventfd, the epoll */
	real = dp_channel_real(ch, &shadow);
	ck_assert(shadow && real != ch && real->fd != ch->fd);
	ck_assert_ptr_eq(ch->context, &context);
	ck_assert_int_eq(ch->refcnt, 0);
	ck_assert_int_eq(fcntl(ch->fd, F_GETFL) & O_NONBLOCK, 0);
	ck_assert_int_ne(fcntl(real->fd, F_GETFL) & O_NONBLOCK, 0);
	make_cq(&a, ch, true);
	make_cq(&b, ch, false);
	ck_assert_ptr_eq(a.cq.channel, ch);
	ck_assert_ptr_eq(b.cq.channel, ch);
	ck_assert_int_eq(ch->refcnt, 2);
	ck_assert_int_eq(dp_destroy_comp_channel(ch), EBUSY);
	ck_assert(destroy_cq(&a));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), EBUSY);
	ck_assert(destroy_cq(&b));
	ck_assert_int_eq(ch->refcnt, 0);
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
	ck_assert_int_eq(open_fds(), before);
}
END_TEST

START_TEST(events_of_the_kernel)
{
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct fake_cq a, plain;

	make_cq(&a, ch, true);
	make_cq(&plain, ch, false);
	expect(ch, NULL);
	/* also of CQs that were never armed through us: programs may ring the doorbell themselves */
	kernel_event(&a);
	kernel_event(&plain);
	kernel_event(&a);
	expect(ch, &a);
	expect(ch, &plain);
	expect(ch, &a);
	expect(ch, NULL);
	ck_assert(!fake_destroy_cq(&a, 20));
	dp_ack_cq_events(&a.cq, 2);
	dp_ack_cq_events(&plain.cq, 1);
	ck_assert(destroy_cq(&a) && destroy_cq(&plain));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

START_TEST(one_event_of_ours_per_arm)
{
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct fake_cq a;

	make_cq(&a, ch, true);
	dp_arm_raise(&a.rec);
	expect(ch, NULL);
	ck_assert_int_eq(ibv_req_notify_cq(&a.cq, 0), 0);
	ck_assert_int_eq(a.arms, 1);
	ck_assert_int_eq(a.last_arm, 0);
	dp_arm_raise(&a.rec);
	dp_arm_raise(&a.rec);
	expect(ch, &a);
	expect(ch, NULL);
	dp_arm_raise(&a.rec);
	expect(ch, NULL);
	/* solicited arms are not for send completions, but for errors; and the wider arm stays */
	ibv_req_notify_cq(&a.cq, 1);
	ck_assert_int_eq(a.last_arm, 1);
	dp_arm_raise(&a.rec);
	expect(ch, NULL);
	dp_arm_raise_error(&a.rec);
	expect(ch, &a);
	ibv_req_notify_cq(&a.cq, 0);
	ibv_req_notify_cq(&a.cq, 1);
	dp_arm_raise(&a.rec);
	expect(ch, &a);
	ibv_req_notify_cq(&a.cq, 1);
	ibv_req_notify_cq(&a.cq, 0);
	dp_arm_raise(&a.rec);
	expect(ch, &a);
	/* what the provider refuses arms nothing */
	req_notify_ret = EINVAL;
	ck_assert_int_eq(ibv_req_notify_cq(&a.cq, 0), EINVAL);
	dp_arm_raise(&a.rec);
	expect(ch, NULL);
	dp_ack_cq_events(&a.cq, 4);
	ck_assert(destroy_cq(&a));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

START_TEST(kernel_and_ours_for_one_arm)
{
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct fake_cq a, b;

	make_cq(&a, ch, true);
	make_cq(&b, ch, true);
	/* both there: one event */
	ibv_req_notify_cq(&a.cq, 0);
	dp_arm_raise(&a.rec);
	kernel_event(&a);
	expect(ch, &a);
	expect(ch, NULL);
	/* armed twice, nothing read yet: still one */
	ibv_req_notify_cq(&a.cq, 0);
	dp_arm_raise(&a.rec);
	ibv_req_notify_cq(&a.cq, 0);
	kernel_event(&a);
	expect(ch, &a);
	dp_arm_raise(&a.rec);
	expect(ch, NULL);
	/* the kernel's was given: the arm is used up */
	ibv_req_notify_cq(&a.cq, 0);
	kernel_event(&a);
	expect(ch, &a);
	dp_arm_raise(&a.rec);
	expect(ch, NULL);
	/* ours was given: the kernel's for the same arm is swallowed, and acknowledged */
	ibv_req_notify_cq(&a.cq, 0);
	dp_arm_raise(&a.rec);
	expect(ch, &a);
	kernel_event(&a);
	errno = 0;
	ck_assert_int_eq(dp_get_cq_event(ch, &(struct ibv_cq *){ NULL }, &(void *){ NULL }), -1);
	ck_assert_int_eq(errno, EAGAIN);
	/* but not once the program has armed again, nor another CQ's */
	ibv_req_notify_cq(&a.cq, 0);
	dp_arm_raise(&a.rec);
	expect(ch, &a);
	ibv_req_notify_cq(&a.cq, 0);
	kernel_event(&a);
	kernel_event(&b);
	expect(ch, &a);
	expect(ch, &b);
	expect(ch, NULL);
	dp_ack_cq_events(&a.cq, 6);
	ck_assert_int_eq(a.cq.comp_events_completed, a.reported);
	dp_ack_cq_events(&b.cq, 1);
	ck_assert(destroy_cq(&a) && destroy_cq(&b));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

START_TEST(busy_kernel_does_not_starve_ours)
{
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct fake_cq a, b;
	struct ibv_cq *cq;
	void *cq_context;
	int n = 0;

	make_cq(&a, ch, true);
	make_cq(&b, ch, true);
	ibv_req_notify_cq(&a.cq, 0);
	dp_arm_raise(&a.rec);
	do {
		kernel_event(&b);
		ck_assert_int_eq(dp_get_cq_event(ch, &cq, &cq_context), 0);
		dp_ack_cq_events(cq, 1);
	} while (cq != &a.cq && ++n < 1000);
	ck_assert_ptr_eq(cq, &a.cq);
	ck_assert(destroy_cq(&a));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), EBUSY);
}
END_TEST

START_TEST(destroyed_with_an_event_pending)
{
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct fake_cq a, b;
	struct dp_channel *shadow;

	make_cq(&a, ch, true);
	make_cq(&b, ch, true);
	ibv_req_notify_cq(&a.cq, 0);
	ibv_req_notify_cq(&b.cq, 0);
	dp_arm_raise(&a.rec);
	dp_arm_raise(&b.rec);
	/* a's destroy_cq is refused after all: its event is there again */
	dp_channel_detach(&a.rec);
	dp_arm_raise(&a.rec);
	dp_channel_real(ch, &shadow);
	dp_channel_attach(shadow, &a.rec);
	ck_assert_int_eq(ch->refcnt, 2);
	expect(ch, &b);
	expect(ch, &a);
	expect(ch, NULL);
	ibv_req_notify_cq(&a.cq, 0);
	dp_arm_raise(&a.rec);
	dp_ack_cq_events(&a.cq, 1);
	ck_assert(destroy_cq(&a));
	expect(ch, NULL);
	dp_ack_cq_events(&b.cq, 1);
	ck_assert(destroy_cq(&b));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

/* A program's own epoll, edge triggered or not, and select, over the shadow's fd. */
START_TEST(nested)
{
	bool edge = _i & 1;
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct epoll_event ev = { .events = EPOLLIN | (edge ? EPOLLET : 0u) }, got;
	int ep = epoll_create1(EPOLL_CLOEXEC);
	struct timeval now = { 0, 0 };
	struct fake_cq a;
	fd_set set;

	ck_assert_int_eq(epoll_ctl(ep, EPOLL_CTL_ADD, ch->fd, &ev), 0);
	make_cq(&a, ch, true);
	if (_i & 2)
		hold_in(&a);
	ck_assert_int_eq(epoll_wait(ep, &got, 1, 0), 0);
	for (int i = 0; i < 6; i++) {
		ibv_req_notify_cq(&a.cq, 0);
		a.comes = i % 3 || !(_i & 2) ? 0 : a.looks + 1;
		if (i % 3 == 0)
			kernel_event(&a);
		else
			dp_arm_raise(&a.rec);
		ck_assert_int_eq(epoll_wait(ep, &got, 1, 10000), 1);
		ck_assert_int_eq(epoll_wait(ep, &got, 1, 0), edge ? 0 : 1);
		FD_ZERO(&set);
		FD_SET(ch->fd, &set);
		ck_assert_int_eq(select(ch->fd + 1, &set, NULL, NULL, &now), 1);
		expect(ch, &a);
		expect(ch, NULL);
		ck_assert_int_eq(epoll_wait(ep, &got, 1, 0), 0);
	}
	dp_ack_cq_events(&a.cq, 6);
	ck_assert(destroy_cq(&a));
	close(ep);
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

START_TEST(arming_wakes_the_progress_thread)
{
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct fake_cq a;

	make_cq(&a, ch, true);
	ibv_req_notify_cq(&a.cq, 0);
	ck_assert_int_eq(hurried, 0);
	a.rec.busy = 1;
	ibv_req_notify_cq(&a.cq, 0);
	ck_assert_int_eq(hurried, 1);
	ck_assert(destroy_cq(&a));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

/* Waits until the kernel's event was looked at, by whatever thread. */
static void looked_at(struct fake_cq *f, int looks)
{
	for (int ms = 0; f->looks < looks && ms < 10000; ms++)
		usleep(1000);
	ck_assert_int_ge(f->looks, looks);
	/* it is done with that */
	dp_chanwatch_settle();
}

START_TEST(what_is_held_makes_no_event)
{
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct fake_cq a;

	make_cq(&a, ch, true);
	hold_in(&a);
	ibv_req_notify_cq(&a.cq, 0);
	ck_assert_int_eq(a.looks, 1);
	/* armed again in place of the program, which sees nothing of it */
	kernel_event(&a);
	looked_at(&a, 3);
	expect(ch, NULL);
	ck_assert_int_eq(a.arms, 2);
	ck_assert_int_eq(a.last_arm, 0);
	ck_assert_int_eq(a.reported, 1);
	ck_assert_int_eq(a.cq.comp_events_completed, 1);
	/* the siblings are done, and the program's arm still stands */
	dp_arm_raise(&a.rec);
	expect(ch, &a);
	/* the kernel's event for the second arm, before the program has armed again, and after it has */
	for (int i = 0; i < 2; i++) {
		int looks = a.looks;

		kernel_event(&a);
		looked_at(&a, looks + (i ? 2 : 1));
		expect(ch, NULL);
		ck_assert_int_eq(a.arms, 2 + 2 * i);
		ibv_req_notify_cq(&a.cq, 0);
	}
	/* what it was about is there, or comes between the look and the arm */
	for (int i = 0; i < 2; i++) {
		a.comes_with_arm = i;
		a.comes = i ? 0 : a.looks + 1;
		kernel_event(&a);
		expect(ch, &a);
		expect(ch, NULL);
		ibv_req_notify_cq(&a.cq, 0);
	}
	/* what came before the arm is the event of the arm before */
	a.comes = a.looks + 1;
	ibv_req_notify_cq(&a.cq, 0);
	expect(ch, &a);
	expect(ch, NULL);
	dp_arm_raise(&a.rec);
	expect(ch, &a);
	dp_ack_cq_events(&a.cq, 5);
	ck_assert(destroy_cq(&a));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

START_TEST(held_and_solicited_only)
{
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct fake_cq a;

	make_cq(&a, ch, true);
	hold_in(&a);
	ibv_req_notify_cq(&a.cq, 1);
	/* a sender's error that is held */
	kernel_event(&a);
	looked_at(&a, 3);
	expect(ch, NULL);
	ck_assert_int_eq(a.arms, 2);
	ck_assert_int_eq(a.last_arm, 1);
	/* a receive that is not solicited has no event of the kernel */
	a.rec.recv_seen = true;
	dp_arm_raise(&a.rec);
	expect(ch, NULL);
	/* nor does it make one for another arm */
	ibv_req_notify_cq(&a.cq, 1);
	kernel_event(&a);
	looked_at(&a, 6);
	expect(ch, NULL);
	a.comes_recv = true;
	a.comes = a.looks + 1;
	kernel_event(&a);
	expect(ch, &a);
	/* the kernel's event of before the arm says nothing about it */
	ibv_req_notify_cq(&a.cq, 0);
	dp_arm_raise(&a.rec);
	expect(ch, &a);
	kernel_event(&a);
	ibv_req_notify_cq(&a.cq, 1);
	a.rec.recv_seen = true;
	expect(ch, NULL);
	dp_ack_cq_events(&a.cq, 2);
	ck_assert(destroy_cq(&a));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

START_TEST(unpolled_when_armed)
{
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct fake_cq a;

	make_cq(&a, ch, true);
	hold_in(&a);
	for (int sol = 0; sol < 2; sol++) {
		a.gives_recv = sol;
		/* who sleeps without a poll wakes */
		a.gives = true;
		ibv_req_notify_cq(&a.cq, sol);
		expect(ch, &a);
		expect(ch, NULL);
		dp_arm_raise_error(&a.rec);
		expect(ch, NULL);
		polled(&a);
		/* who polls does not, and the arm stands */
		a.gives = true;
		ibv_req_notify_cq(&a.cq, sol);
		ibv_req_notify_cq(&a.cq, sol);
		polled(&a);
		expect(ch, NULL);
		dp_arm_raise_error(&a.rec);
		expect(ch, &a);
		/* something new came: that is the arm's event, who ever polls */
		a.gives = true;
		ibv_req_notify_cq(&a.cq, sol);
		dp_arm_raise_error(&a.rec);
		polled(&a);
		expect(ch, &a);
		expect(ch, NULL);
		/* an event that is there already is not taken back */
		ibv_req_notify_cq(&a.cq, sol);
		dp_arm_raise_error(&a.rec);
		a.gives = true;
		ibv_req_notify_cq(&a.cq, sol);
		polled(&a);
		expect(ch, &a);
		expect(ch, NULL);
	}
	/* what cannot have been asked for does not count */
	a.gives = true;
	a.gives_recv = false;
	a.rec.armed = DP_ARM_NONE;
	ibv_req_notify_cq(&a.cq, 1);
	expect(ch, NULL);
	dp_ack_cq_events(&a.cq, 8);
	ck_assert(destroy_cq(&a));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

/* What the provider refuses leaves the arm of before as it was. */
START_TEST(refused)
{
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct fake_cq a;
	uint32_t before;

	make_cq(&a, ch, true);
	/* ours was given for it: the kernel's is still the second one */
	ibv_req_notify_cq(&a.cq, 0);
	dp_arm_raise(&a.rec);
	expect(ch, &a);
	req_notify_ret = EINVAL;
	ck_assert_int_eq(ibv_req_notify_cq(&a.cq, 0), EINVAL);
	kernel_event(&a);
	ck_assert_int_eq(dp_get_cq_event(ch, &(struct ibv_cq *){ NULL }, &(void *){ NULL }), -1);
	/* the kernel's event of the arm that stands is about to be looked at: that one has to be made anew */
	req_notify_ret = 0;
	hold_in(&a);
	ibv_req_notify_cq(&a.cq, 0);
	before = a.rec.arms;
	req_notify_ret = EINVAL;
	ck_assert_int_eq(ibv_req_notify_cq(&a.cq, 0), EINVAL);
	req_notify_ret = 0;
	a.arms = 0;
	dp_arm_kernel(&a.rec, before);
	ck_assert_int_eq(a.arms, 1);
	expect(ch, NULL);
	/* also if it came while the provider was about to refuse */
	a.arms = 0;
	dp_arm_kernel(&a.rec, before + 1);
	ck_assert_int_eq(a.arms, 1);
	/* and if it cannot, rather an event too early than none */
	req_notify_ret = EINVAL;
	kernel_event(&a);
	expect(ch, &a);
	expect(ch, NULL);
	dp_ack_cq_events(&a.cq, 2);
	ck_assert(destroy_cq(&a));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

/* Armed while nobody looked at its completions: the program may have taken what the event is about. */
START_TEST(armed_before_anything_could_be_held)
{
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct fake_cq a;

	make_cq(&a, ch, true);
	for (int i = 0; i < 2; i++) {
		a.rec.active = 0;
		ibv_req_notify_cq(&a.cq, 0);
		ck_assert_int_eq(a.looks, 0);
		hold_in(&a);
		a.rec.busy = (unsigned)i;
		kernel_event(&a);
		if (i)
			looked_at(&a, 2);
		expect(ch, i ? NULL : &a);
		a.looks = 0;
	}
	dp_ack_cq_events(&a.cq, 1);
	ck_assert(destroy_cq(&a));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

/* On a channel that is watched because of one, the events of others are as many as they were, and in their order. */
START_TEST(others_on_a_watched_channel)
{
	int before = open_fds();
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET }, got;
	int ep = epoll_create1(EPOLL_CLOEXEC);
	struct fake_cq a, b, plain;

	ck_assert_int_eq(epoll_ctl(ep, EPOLL_CTL_ADD, ch->fd, &ev), 0);
	make_cq(&a, ch, true);
	make_cq(&b, ch, true);
	make_cq(&plain, ch, false);
	kernel_event(&b); /* is there when the channel comes to be watched */
	hold_in(&a);
	expect(ch, &b);
	kernel_event(&b);
	kernel_event(&plain);
	kernel_event(&b);
	ck_assert_int_eq(epoll_wait(ep, &got, 1, 10000), 1);
	expect(ch, &b);
	expect(ch, &plain);
	expect(ch, &b);
	expect(ch, NULL);
	/* ours and the kernel's for one arm */
	ibv_req_notify_cq(&b.cq, 0);
	dp_arm_raise(&b.rec);
	kernel_event(&b);
	expect(ch, &b);
	expect(ch, NULL);
	dp_ack_cq_events(&b.cq, 4);
	dp_ack_cq_events(&plain.cq, 1);
	/* those that the program has not got go with their CQs, and no others */
	ibv_req_notify_cq(&a.cq, 0);
	kernel_event(&b);
	kernel_event(&plain);
	dp_arm_raise(&a.rec);
	kernel_event(&b);
	dp_channel_pump(ch);
	dp_chanwatch_settle();
	ck_assert(destroy_cq(&b));
	expect(ch, &plain);
	expect(ch, &a);
	expect(ch, NULL);
	kernel_event(&plain);
	dp_channel_pump(ch);
	dp_chanwatch_settle();
	dp_ack_cq_events(&plain.cq, 1);
	ck_assert(destroy_cq(&plain));
	expect(ch, NULL);
	ck_assert_int_eq(dp_destroy_comp_channel(ch), EBUSY);
	/* still watched */
	a.comes = a.looks + 2;
	ibv_req_notify_cq(&a.cq, 0);
	kernel_event(&a);
	expect(ch, &a);
	dp_ack_cq_events(&a.cq, 2);
	ck_assert(destroy_cq(&a));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
	close(ep);
	ck_assert_int_eq(open_fds(), before); /* and the thread has gone, with all it had */
}
END_TEST

/* Another thread polls an extended CQ, so that we cannot see what the event was about: rather one too many. */
START_TEST(what_cannot_be_read)
{
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct fake_cq a;

	make_cq(&a, ch, true);
	hold_in(&a);
	ibv_req_notify_cq(&a.cq, 0);
	a.rec.unread = true;
	kernel_event(&a);
	expect(ch, &a);
	dp_ack_cq_events(&a.cq, 1);
	ck_assert(destroy_cq(&a));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("channel");
	TCase *tc = tcase_create("channel");

	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, native_without_a_group);
	tcase_add_test(tc, life_of_a_channel);
	tcase_add_test(tc, events_of_the_kernel);
	tcase_add_test(tc, one_event_of_ours_per_arm);
	tcase_add_test(tc, kernel_and_ours_for_one_arm);
	tcase_add_test(tc, busy_kernel_does_not_starve_ours);
	tcase_add_test(tc, destroyed_with_an_event_pending);
	tcase_add_loop_test(tc, nested, 0, 4);
	tcase_add_test(tc, arming_wakes_the_progress_thread);
	tcase_add_test(tc, what_is_held_makes_no_event);
	tcase_add_test(tc, held_and_solicited_only);
	tcase_add_test(tc, unpolled_when_armed);
	tcase_add_test(tc, refused);
	tcase_add_test(tc, armed_before_anything_could_be_held);
	tcase_add_test(tc, others_on_a_watched_channel);
	tcase_add_test(tc, what_cannot_be_read);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

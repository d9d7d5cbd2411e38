// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Shadow channels over a fake kernel: a channel is a pipe through which CQ pointers come, and acknowledgements and
 * destroy_cq are counted as libibverbs counts them.
 */
#define _GNU_SOURCE /* pipe2 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

#include "core.h"

/* ---- the fake kernel and the fakes of the rest of the core */

struct fake_channel {
	struct ibv_comp_channel ch;
	int wr; /* the kernel's end */
};

struct fake_cq {
	struct ibv_cq cq;
	struct fake_channel *kernel_ch;
	uint32_t reported; /* events that were read */
	int arms, last_arm;
	struct dp_cq rec;
};

static struct ibv_context context;
static struct dp_ctx ctx;
static struct dp_port_group group;
static struct dp_hmap records = DP_HMAP_INIT; /* of the CQs that have one */
static _Thread_local int inside_count = 1;    /* hooks run inside */
static _Atomic int inside_lowered, hurried;
static int req_notify_ret;

static struct ibv_comp_channel *fake_create_channel(struct ibv_context *c)
{
	struct fake_channel *f = calloc(1, sizeof(*f));
	int p[2];

	ck_assert_int_eq(pipe2(p, O_CLOEXEC), 0);
	f->ch.context = c;
	f->ch.fd = p[0];
	f->wr = p[1];
	return &f->ch;
}

static int fake_destroy_channel(struct ibv_comp_channel *ch)
{
	struct fake_channel *f = (struct fake_channel *)ch;

	if (ch->refcnt)
		return EBUSY;
	close(ch->fd);
	close(f->wr);
	free(f);
	return 0;
}

static int fake_get_event(struct ibv_comp_channel *ch, struct ibv_cq **cq, void **cq_context)
{
	struct fake_cq *f;

	if (read(ch->fd, &f, sizeof(f)) != sizeof(f))
		return -1;
	pthread_mutex_lock(&f->cq.mutex);
	f->reported++;
	pthread_mutex_unlock(&f->cq.mutex);
	*cq = &f->cq;
	*cq_context = f->cq.cq_context;
	return 0;
}

static void fake_ack(struct ibv_cq *cq, unsigned int n)
{
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += n;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

/* True: it came to an end within ms. */
static bool fake_destroy_cq(struct fake_cq *f, unsigned ms)
{
	struct timespec t;
	bool ok = true;

	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_sec += ms / 1000;
	t.tv_nsec += (long)(ms % 1000) * 1000000;
	if (t.tv_nsec >= 1000000000) {
		t.tv_sec++;
		t.tv_nsec -= 1000000000;
	}
	pthread_mutex_lock(&f->cq.mutex);
	while (ok && f->cq.comp_events_completed != f->reported)
		ok = pthread_cond_timedwait(&f->cq.cond, &f->cq.mutex, &t) == 0;
	pthread_mutex_unlock(&f->cq.mutex);
	if (ok && f->cq.channel)
		f->cq.channel->refcnt--;
	return ok;
}

static int fake_req_notify(struct ibv_cq *cq, int solicited_only)
{
	struct fake_cq *f = (struct fake_cq *)cq;

	if (req_notify_ret)
		return req_notify_ret;
	f->arms++;
	f->last_arm = solicited_only;
	return 0;
}

static const struct dp_verbs verbs = {
	.create_comp_channel = fake_create_channel,
	.destroy_comp_channel = fake_destroy_channel,
	.get_cq_event = fake_get_event,
	.ack_cq_events = fake_ack,
};

static const struct dp_verbs *fake_real_of(struct ibv_context *c)
{
	(void)c;
	return &verbs;
}

static void fake_inside(int delta)
{
	inside_count += delta;
	if (delta < 0)
		inside_lowered++;
}

static const struct dp_stub stub = { .abi = DP_CORE_ABI, .real_of = fake_real_of, .inside = fake_inside };
const struct dp_stub *dp_stub = &stub;

struct dp_ctx *dp_ctx_get(struct ibv_context *c)
{
	return c == &context ? &ctx : NULL;
}

struct dp_ctx *dp_ctx_find(struct ibv_context *c)
{
	return dp_ctx_get(c);
}

struct dp_cq *dp_cq_find(struct ibv_cq *cq)
{
	return dp_hmap_getp(&records, cq);
}

void dp_progress_hurry(void)
{
	hurried++;
}

static void setup(void)
{
	ctx.ctx = &context;
	ctx.real = &verbs;
	ctx.group = &group;
	ctx.ops.req_notify_cq = fake_req_notify;
	context.ops.req_notify_cq = dp_req_notify_cq;
}

/* As create_cq does it. */
static void make_cq(struct fake_cq *f, struct ibv_comp_channel *channel, bool record)
{
	struct dp_channel *shadow;

	memset(f, 0, sizeof(*f));
	f->cq.context = &context;
	f->cq.cq_context = (char *)f + 1;
	f->cq.channel = dp_channel_real(channel, &shadow);
	f->kernel_ch = (struct fake_channel *)f->cq.channel;
	f->cq.channel->refcnt++;
	pthread_mutex_init(&f->cq.mutex, NULL);
	pthread_cond_init(&f->cq.cond, NULL);
	ck_assert(shadow);
	if (!record) {
		dp_channel_attach_plain(shadow, &f->cq);
		return;
	}
	f->rec.cq = &f->cq;
	f->rec.c = &ctx;
	dp_lock_init(&f->rec.lock);
	ck_assert_int_eq(dp_hmap_put(&records, (uintptr_t)&f->cq, &f->rec), 0);
	dp_channel_attach(shadow, &f->rec);
}

static bool destroy_cq(struct fake_cq *f, unsigned ms)
{
	if (dp_cq_find(&f->cq)) {
		dp_hmap_del(&records, (uintptr_t)&f->cq);
		dp_channel_detach(&f->rec);
	} else {
		ck_assert(dp_channel_detach_plain(&f->cq));
	}
	ck_assert_ptr_eq(f->cq.channel, &f->kernel_ch->ch);
	return fake_destroy_cq(f, ms);
}

static void kernel_event(struct fake_cq *f)
{
	ck_assert_int_eq(write(f->kernel_ch->wr, &f, sizeof(f)), sizeof(f));
}

static struct ibv_comp_channel *nonblocking_channel(void)
{
	struct ibv_comp_channel *ch = dp_create_comp_channel(&context);

	ck_assert(ch);
	ck_assert_int_eq(fcntl(ch->fd, F_SETFL, fcntl(ch->fd, F_GETFL) | O_NONBLOCK), 0);
	return ch;
}

/* Is there an event, and is it f's (NULL: there must be none)? */
static void expect(struct ibv_comp_channel *ch, struct fake_cq *f)
{
	struct ibv_cq *cq = NULL;
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };
	void *cq_context = NULL;

	errno = 0;
	if (!f) {
		ck_assert_int_eq(dp_get_cq_event(ch, &cq, &cq_context), -1);
		ck_assert_int_eq(errno, EAGAIN);
		ck_assert_int_eq(poll(&p, 1, 0), 0);
		return;
	}
	ck_assert_int_eq(poll(&p, 1, 0), 1);
	ck_assert_int_eq(dp_get_cq_event(ch, &cq, &cq_context), 0);
	ck_assert_int_eq(errno, 0);
	ck_assert_ptr_eq(cq, &f->cq);
	ck_assert_ptr_eq(cq_context, f->cq.cq_context);
}

static int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* ---- one thread */

START_TEST(native_without_a_group)
{
	struct ibv_comp_channel *ch;
	struct dp_channel *shadow = (void *)1;

	ctx.group = NULL;
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
	ck_assert(destroy_cq(&a, 0));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), EBUSY);
	ck_assert(destroy_cq(&b, 0));
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
	ck_assert(destroy_cq(&a, 0) && destroy_cq(&plain, 0));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

START_TEST(one_event_of_ours_per_arm)
{
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct fake_cq a;

	make_cq(&a, ch, true);
	dp_channel_raise(&a.rec);
	expect(ch, NULL);
	ck_assert_int_eq(ibv_req_notify_cq(&a.cq, 0), 0);
	ck_assert_int_eq(a.arms, 1);
	ck_assert_int_eq(a.last_arm, 0);
	dp_channel_raise(&a.rec);
	dp_channel_raise(&a.rec);
	expect(ch, &a);
	expect(ch, NULL);
	dp_channel_raise(&a.rec);
	expect(ch, NULL);
	/* solicited arms are not for send completions, but for errors; and the wider arm stays */
	ibv_req_notify_cq(&a.cq, 1);
	ck_assert_int_eq(a.last_arm, 1);
	dp_channel_raise(&a.rec);
	expect(ch, NULL);
	dp_channel_raise_error(&a.rec);
	expect(ch, &a);
	ibv_req_notify_cq(&a.cq, 0);
	ibv_req_notify_cq(&a.cq, 1);
	dp_channel_raise(&a.rec);
	expect(ch, &a);
	ibv_req_notify_cq(&a.cq, 1);
	ibv_req_notify_cq(&a.cq, 0);
	dp_channel_raise(&a.rec);
	expect(ch, &a);
	/* what the provider refuses arms nothing */
	req_notify_ret = EINVAL;
	ck_assert_int_eq(ibv_req_notify_cq(&a.cq, 0), EINVAL);
	dp_channel_raise(&a.rec);
	expect(ch, NULL);
	dp_ack_cq_events(&a.cq, 4);
	ck_assert(destroy_cq(&a, 0));
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
	dp_channel_raise(&a.rec);
	kernel_event(&a);
	expect(ch, &a);
	expect(ch, NULL);
	/* the kernel's was given: the arm is used up */
	ibv_req_notify_cq(&a.cq, 0);
	kernel_event(&a);
	expect(ch, &a);
	dp_channel_raise(&a.rec);
	expect(ch, NULL);
	/* ours was given: the kernel's for the same arm is swallowed, and acknowledged */
	ibv_req_notify_cq(&a.cq, 0);
	dp_channel_raise(&a.rec);
	expect(ch, &a);
	kernel_event(&a);
	errno = 0;
	ck_assert_int_eq(dp_get_cq_event(ch, &(struct ibv_cq *){ NULL }, &(void *){ NULL }), -1);
	ck_assert_int_eq(errno, EAGAIN);
	/* but not once the program has armed again, nor another CQ's */
	ibv_req_notify_cq(&a.cq, 0);
	dp_channel_raise(&a.rec);
	expect(ch, &a);
	ibv_req_notify_cq(&a.cq, 0);
	kernel_event(&a);
	kernel_event(&b);
	expect(ch, &a);
	expect(ch, &b);
	expect(ch, NULL);
	dp_ack_cq_events(&a.cq, 5);
	ck_assert_int_eq(a.cq.comp_events_completed, a.reported);
	dp_ack_cq_events(&b.cq, 1);
	ck_assert(destroy_cq(&a, 0) && destroy_cq(&b, 0));
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
	dp_channel_raise(&a.rec);
	do {
		kernel_event(&b);
		ck_assert_int_eq(dp_get_cq_event(ch, &cq, &cq_context), 0);
		dp_ack_cq_events(cq, 1);
	} while (cq != &a.cq && ++n < 1000);
	ck_assert_ptr_eq(cq, &a.cq);
	ck_assert(destroy_cq(&a, 0));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), EBUSY);
}
END_TEST

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
				dp_channel_raise(&a.rec);
			expect(ch, &a);
			if (i == 2)
				dp_ack_cq_events(&a.cq, first < 3 ? first : 3);
		}
		late.n = first < 3 ? 4 - first : 1;
		ck_assert(!fake_destroy_cq(&a, 10));
		ck_assert_int_eq(pthread_create(&t, NULL, ack_later, &late), 0);
		ck_assert(destroy_cq(&a, 5000));
		pthread_join(t, NULL);
	}
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
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
	dp_channel_raise(&a.rec);
	dp_channel_raise(&b.rec);
	/* a's destroy_cq is refused after all: the event comes when something raises it again */
	dp_channel_detach(&a.rec);
	dp_channel_raise(&a.rec);
	dp_channel_real(ch, &shadow);
	dp_channel_attach(shadow, &a.rec);
	ck_assert_int_eq(ch->refcnt, 2);
	expect(ch, &b);
	expect(ch, NULL);
	ibv_req_notify_cq(&a.cq, 0);
	dp_channel_raise(&a.rec);
	ck_assert(destroy_cq(&a, 0));
	expect(ch, NULL);
	dp_ack_cq_events(&b.cq, 1);
	ck_assert(destroy_cq(&b, 0));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

/* A program's own epoll, edge triggered or not, and select, over the shadow's fd. */
START_TEST(nested)
{
	bool edge = _i;
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct epoll_event ev = { .events = EPOLLIN | (edge ? EPOLLET : 0u) }, got;
	int ep = epoll_create1(EPOLL_CLOEXEC);
	struct timeval now = { 0, 0 };
	struct fake_cq a;
	fd_set set;

	ck_assert_int_eq(epoll_ctl(ep, EPOLL_CTL_ADD, ch->fd, &ev), 0);
	make_cq(&a, ch, true);
	ck_assert_int_eq(epoll_wait(ep, &got, 1, 0), 0);
	for (int i = 0; i < 6; i++) {
		ibv_req_notify_cq(&a.cq, 0);
		if (i % 3 == 0)
			kernel_event(&a);
		else
			dp_channel_raise(&a.rec);
		ck_assert_int_eq(epoll_wait(ep, &got, 1, 1000), 1);
		ck_assert_int_eq(epoll_wait(ep, &got, 1, 0), edge ? 0 : 1);
		FD_ZERO(&set);
		FD_SET(ch->fd, &set);
		ck_assert_int_eq(select(ch->fd + 1, &set, NULL, NULL, &now), 1);
		expect(ch, &a);
		expect(ch, NULL);
		ck_assert_int_eq(epoll_wait(ep, &got, 1, 0), 0);
	}
	dp_ack_cq_events(&a.cq, 6);
	ck_assert(destroy_cq(&a, 0));
	close(ep);
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

/* ---- several threads */

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
			dp_channel_raise(&cq[i].rec);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(w[i].t, NULL);
		ck_assert_int_eq(w[i].ret, 0);
		of[(struct fake_cq *)w[i].cq - cq]++;
	}
	for (int i = 0; i < 4; i++) {
		ck_assert_int_eq(of[i], 1);
		dp_ack_cq_events(&cq[i].cq, 1);
		ck_assert(destroy_cq(&cq[i], 0));
	}
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

static void on_signal(int sig)
{
	(void)sig;
}

START_TEST(interrupted)
{
	struct ibv_comp_channel *ch = dp_create_comp_channel(&context);
	struct sigaction sa = { .sa_handler = on_signal, .sa_flags = _i ? SA_RESTART : 0 };
	struct fake_cq a;
	struct waiter w;

	make_cq(&a, ch, true);
	ibv_req_notify_cq(&a.cq, 0);
	/* Check itself and sanitizers have handlers, which are not what this is about */
	for (int sig = 1; sig < NSIG; sig++)
		if (sig != SIGUSR1 && sig != SIGKILL && sig != SIGSTOP)
			signal(sig, SIG_DFL);
	sigaction(SIGUSR1, &sa, NULL);
	start_waiter(&w, ch);
	usleep(20000);
	ck_assert(!w.done);
	pthread_kill(w.t, SIGUSR1);
	if (_i) {
		usleep(20000);
		ck_assert(!w.done);
		dp_channel_raise(&a.rec);
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
	dp_channel_raise(&a.rec);
	start_waiter(&w, ch);
	pthread_join(w.t, NULL);
	ck_assert_int_eq(w.ret, 0);
	dp_ack_cq_events(&a.cq, 1);
	ck_assert(destroy_cq(&a, 0));
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
 * sometimes the kernel: none may be slept through, and no arm may give two events of ours.
 */
#define ROUNDS 4000

struct race {
	struct fake_cq *f;
	int deliverable; /* with f->rec.lock */
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
		if (locked)
			dp_channel_raise(&r->f->rec);
		dp_drop(&r->f->rec.lock);
		if (!locked)
			dp_channel_raise(&r->f->rec);
	}
	return NULL;
}

START_TEST(arm_against_raise)
{
	struct ibv_comp_channel *ch = nonblocking_channel();
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };
	struct fake_cq a;
	struct race r = { .f = &a };
	unsigned events = 0;
	struct ibv_cq *cq;
	void *cq_context;
	pthread_t t;
	int n;

	make_cq(&a, ch, true);
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
	ck_assert(destroy_cq(&a, 0));
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
	ck_assert(destroy_cq(&a, 0));
	ck_assert_int_eq(dp_destroy_comp_channel(ch), 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("channel");
	TCase *tc = tcase_create("channel");
	SRunner *sr;
	int failed;

	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, native_without_a_group);
	tcase_add_test(tc, life_of_a_channel);
	tcase_add_test(tc, events_of_the_kernel);
	tcase_add_test(tc, one_event_of_ours_per_arm);
	tcase_add_test(tc, kernel_and_ours_for_one_arm);
	tcase_add_test(tc, busy_kernel_does_not_starve_ours);
	tcase_add_test(tc, destroy_waits_for_every_ack);
	tcase_add_test(tc, destroyed_with_an_event_pending);
	tcase_add_loop_test(tc, nested, 0, 2);
	tcase_add_test(tc, several_wait);
	tcase_add_loop_test(tc, interrupted, 0, 2);
	tcase_add_test(tc, cancelled_while_waiting);
	tcase_add_test(tc, destroyed_under_a_waiter);
	tcase_add_test(tc, arm_against_raise);
	tcase_add_test(tc, arming_wakes_the_progress_thread);
	suite_add_tcase(s, tc);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

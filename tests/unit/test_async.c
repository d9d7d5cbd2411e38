// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Events of what the library made on the program's own device: they are not the program's, but they make its file readable. */
#include "core.h"
#include "run.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static int end; /* the kernel's, of the file of events */
static struct ibv_context ctx;
static struct ibv_qp theirs, ours = { .qp_context = &dp_made_by_us };
static int acked;

static int get(struct ibv_context *c, struct ibv_async_event *e)
{
	return read(c->async_fd, e, sizeof(*e)) == sizeof(*e) ? 0 : -1;
}

static void ack(struct ibv_async_event *e)
{
	ck_assert_ptr_eq(e->element.qp, &ours);
	acked++;
}

static const struct dp_verbs verbs = { .get_async_event = get, .ack_async_event = ack };

static const struct dp_verbs *real_of(struct ibv_context *c)
{
	(void)c;
	return &verbs;
}

static const struct dp_stub stub = { .abi = DP_CORE_ABI, .real_of = real_of };
const struct dp_stub *dp_stub = &stub;

static void raise_event(struct ibv_qp *qp)
{
	struct ibv_async_event e;

	memset(&e, 0, sizeof(e)); /* the bytes between its members, too, are written */
	e.element.qp = qp;
	e.event_type = IBV_EVENT_COMM_EST;
	ck_assert(write(end, &e, sizeof(e)) == sizeof(e));
}

static void setup(void)
{
	int fd[2];

	ck_assert_int_eq(pipe(fd), 0);
	ctx.async_fd = fd[0];
	end = fd[1];
	acked = 0;
}

/* A program that polls its file first is not kept waiting for ever when it was for an event of ours. */
START_TEST(seen)
{
	struct ibv_async_event e;

	raise_event(&ours);
	errno = 0;
	ck_assert_int_eq(dp_get_async_event(&ctx, &e), -1);
	ck_assert_int_eq(errno, EAGAIN);
	ck_assert_int_eq(acked, 1);
	raise_event(&ours);
	raise_event(&ours);
	raise_event(&theirs);
	ck_assert_int_eq(dp_get_async_event(&ctx, &e), 0);
	ck_assert_ptr_eq(e.element.qp, &theirs);
	ck_assert_int_eq(acked, 3);
}
END_TEST

static void *kernel(void *arg)
{
	(void)arg;
	usleep(50000);
	raise_event(&ours);
	usleep(50000);
	raise_event(&ours);
	usleep(50000);
	raise_event(&theirs);
	return NULL;
}

/* One that wants to wait does. */
START_TEST(waits)
{
	struct ibv_async_event e;
	pthread_t t;

	ck_assert_int_eq(pthread_create(&t, NULL, kernel, NULL), 0);
	ck_assert_int_eq(dp_get_async_event(&ctx, &e), 0);
	ck_assert_ptr_eq(e.element.qp, &theirs);
	ck_assert_int_eq(pthread_join(t, NULL), 0);
	ck_assert_int_eq(acked, 2);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("async");
	TCase *tc = tcase_create("async");

	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_add_test(tc, seen);
	tcase_add_test(tc, waits);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

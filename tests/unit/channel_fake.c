// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#define _GNU_SOURCE /* pipe2 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "channel_fake.h"

struct ibv_context context;
struct dp_ctx ctx;
static struct dp_hmap records = DP_HMAP_INIT; /* of the CQs that have one */
static _Thread_local int inside_count = 1;    /* hooks run inside */
_Atomic int inside_lowered, hurried;
int req_notify_ret;

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

bool fake_destroy_cq(struct fake_cq *f, unsigned ms)
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
	if (f->comes_with_arm)
		f->comes = f->looks + 1;
	f->comes_with_arm = false;
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

void dp_cq_progress(struct dp_cq *cq, bool take0)
{
	struct fake_cq *f = (struct fake_cq *)cq->cq;

	ck_assert(take0);
	ck_assert(!dp_try(&cq->lock));
	f->looks++;
	if (f->comes && f->looks >= f->comes) {
		f->comes = 0;
		if (f->comes_recv)
			cq->recv_seen = true;
		dp_arm_raise(cq);
	}
}

void dp_cq_all_told(struct dp_cq *cq)
{
	ck_assert(!dp_try(&cq->lock));
}

bool dp_cq_gives(struct dp_cq *cq, bool solicited_only)
{
	const struct fake_cq *f = (struct fake_cq *)cq->cq;

	ck_assert(!dp_try(&cq->lock));
	return f->gives && (!solicited_only || f->gives_recv);
}

void dp_progress_hurry(void)
{
	hurried++;
}

void setup(void)
{
	ctx.ctx = &context;
	ctx.real = &verbs;
	ctx.grouped = true;
	ctx.ops.req_notify_cq = fake_req_notify;
	context.ops.req_notify_cq = dp_req_notify_cq;
}

void make_cq(struct fake_cq *f, struct ibv_comp_channel *channel, bool record)
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

bool destroy_cq(struct fake_cq *f)
{
	if (dp_cq_find(&f->cq)) {
		dp_hmap_del(&records, (uintptr_t)&f->cq);
		dp_channel_detach(&f->rec);
	} else {
		ck_assert(dp_channel_detach_plain(&f->cq));
	}
	ck_assert_ptr_eq(f->cq.channel, &f->kernel_ch->ch);
	return fake_destroy_cq(f, 20000);
}

void hold_in(struct fake_cq *f)
{
	static struct dp_icq icq;

	dp_take(&f->rec.lock);
	f->rec.active = 1;
	f->rec.icqs = &icq;
	dp_channel_watch(&f->rec);
	dp_drop(&f->rec.lock);
}

void polled(struct fake_cq *f)
{
	f->gives = false;
	dp_take(&f->rec.lock);
	if (dp_cq_armed_old(&f->rec))
		dp_arm_polled(&f->rec);
	dp_drop(&f->rec.lock);
}

void kernel_event(struct fake_cq *f)
{
	ck_assert_int_eq(write(f->kernel_ch->wr, &f, sizeof(f)), sizeof(f));
}

struct ibv_comp_channel *nonblocking_channel(void)
{
	struct ibv_comp_channel *ch = dp_create_comp_channel(&context);

	ck_assert(ch);
	ck_assert_int_eq(fcntl(ch->fd, F_SETFL, fcntl(ch->fd, F_GETFL) | O_NONBLOCK), 0);
	return ch;
}

void expect(struct ibv_comp_channel *ch, struct fake_cq *f)
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
	/* of a watched channel, it comes by way of a thread */
	ck_assert_int_eq(poll(&p, 1, 10000), 1);
	ck_assert_int_eq(dp_get_cq_event(ch, &cq, &cq_context), 0);
	ck_assert_int_eq(errno, 0);
	ck_assert_ptr_eq(cq, &f->cq);
	ck_assert_ptr_eq(cq_context, f->cq.cq_context);
}

int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include "keys_fake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct item {
	void (*fn)(void *arg);
	void *arg;
	struct dp_peer *from;
	uint16_t type;
	size_t len;
	uint8_t *data;
	struct item *next;
};

struct fake_dev fake_dev[FAKE_DEVS];
struct dp_ctx fake_ctx;
size_t fake_memlock, fake_locked;
int fake_rereg_ret, fake_rereg_errno;
_Atomic unsigned fake_acks_at_rereg;
void (*fake_in_dereg)(struct ibv_mr *mr);
struct dp_peer fake_holder, fake_owner;
int fake_call_err;
bool fake_no_watch, fake_unseen;
struct dp_qp fake_qp[2];

struct dp_counters dp_counters;
struct dp_config dp_cfg;
static struct dp_sib sibs[FAKE_DEVS - 1];
static pthread_mutex_t dev_lock = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t q_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t q_cond = PTHREAD_COND_INITIALIZER;
static struct item *head, **tail = &head;
static struct dp_timer *timers;
static pthread_t control;
static bool control_runs, control_end, at_work;
static unsigned control_max_us;

/* ---- devices */

static struct fake_dev *dev_of(struct ibv_context *ctx)
{
	return (struct fake_dev *)ctx;
}

static struct ibv_pd *f_alloc_pd(struct ibv_context *ctx)
{
	struct fake_dev *d = dev_of(ctx);
	struct ibv_pd *pd;

	if (d->fail_pd) {
		errno = d->fail_pd;
		return NULL;
	}
	pd = calloc(1, sizeof(*pd));
	pd->context = ctx;
	pthread_mutex_lock(&dev_lock);
	d->npd++;
	pthread_mutex_unlock(&dev_lock);
	return pd;
}

static int f_dealloc_pd(struct ibv_pd *pd)
{
	struct fake_dev *d = dev_of(pd->context);
	bool busy = false;

	pthread_mutex_lock(&dev_lock);
	for (uint32_t i = 0; i < d->nkeys; i++)
		busy |= d->by_key[i] && d->by_key[i]->pd == pd;
	d->npd -= !busy;
	pthread_mutex_unlock(&dev_lock);
	if (busy)
		return EBUSY;
	free(pd);
	return 0;
}

/* Our struct goes; the object is another process's from here on. */
static void f_unimport_pd(struct ibv_pd *pd)
{
	pthread_mutex_lock(&dev_lock);
	dev_of(pd->context)->npd--;
	pthread_mutex_unlock(&dev_lock);
	free(pd);
}

static struct ibv_mr *make(struct ibv_pd *pd, struct dp_mr_how how)
{
	struct fake_dev *d = dev_of(pd->context);
	struct ibv_mr *mr = NULL;
	uint32_t i;

	pthread_mutex_lock(&dev_lock);
	for (i = 0; i < d->nkeys && d->by_key[i]; i++)
		;
	if (d->fail_mr || i == d->nkeys || (fake_memlock && fake_locked + how.length > fake_memlock)) {
		errno = d->fail_mr ? d->fail_mr : ENOMEM;
		goto out;
	}
	mr = calloc(1, sizeof(*mr));
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = how.addr;
	mr->length = how.length;
	mr->lkey = mr->rkey = d->base + i;
	d->by_key[i] = mr;
	d->how[i] = how;
	d->nmr++;
	fake_locked += how.length;
out:
	pthread_mutex_unlock(&dev_lock);
	return mr;
}

static struct ibv_mr *f_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return make(pd, (struct dp_mr_how){ DP_MR_REG, addr, length, 0, 0, -1, (unsigned int)access, NULL, NULL });
}

static struct ibv_mr *f_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return make(pd, (struct dp_mr_how){ DP_MR_IOVA, addr, length, iova, 0, -1, (unsigned int)access, NULL, NULL });
}

static struct ibv_mr *f_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	return make(pd, (struct dp_mr_how){ DP_MR_IOVA2, addr, length, iova, 0, -1, access, NULL, NULL });
}

static struct ibv_mr *f_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
				      int access)
{
	return make(pd, (struct dp_mr_how){ DP_MR_DMABUF, NULL, length, iova, offset, fd, (unsigned int)access, NULL, NULL });
}

/* the way of older libibverbs is the test's */
static struct ibv_mr *f_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr)
{
	const struct dp_mr_init_attr *a = (const struct dp_mr_init_attr *)attr;

	return make(pd, (struct dp_mr_how){ DP_MR_UNKNOWN, NULL, a->length, 0, 0, -1, (unsigned int)a->access, attr, NULL });
}

static struct ibv_mr *f_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access)
{
	return make(pd, (struct dp_mr_how){ DP_MR_UNKNOWN, addr, length, 0, 0, -1, (unsigned int)access, NULL, buf });
}

static const char *f_get_device_name(struct ibv_device *device)
{
	return device->name;
}

static void f_unimport_mr(struct ibv_mr *mr)
{
	struct fake_dev *d = dev_of(mr->context);

	pthread_mutex_lock(&dev_lock);
	fake_locked -= mr->length;
	d->by_key[mr->rkey - d->base] = NULL;
	d->nmr--;
	pthread_mutex_unlock(&dev_lock);
	free(mr);
}

static int f_dereg_mr(struct ibv_mr *mr)
{
	struct fake_dev *d = dev_of(mr->context);

	if (d->busy)
		return d->busy;
	if (fake_in_dereg)
		fake_in_dereg(mr);
	f_unimport_mr(mr);
	return 0;
}

/* Keeps the key, as a provider may. */
static int f_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct dp_mr_how *how = &dev_of(mr->context)->how[mr->rkey - dev_of(mr->context)->base];

	fake_acks_at_rereg = fake_sent(&fake_owner, DP_MSG_KEYS_ACK);
	if (fake_rereg_ret && fake_rereg_ret != IBV_REREG_MR_ERR_DO_FORK_OLD) {
		errno = fake_rereg_errno;
		return fake_rereg_ret;
	}
	pthread_mutex_lock(&dev_lock);
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		fake_locked += length - mr->length;
		mr->addr = how->addr = addr;
		mr->length = how->length = length;
	}
	if (flags & IBV_REREG_MR_CHANGE_ACCESS)
		how->access = (unsigned int)access;
	if (flags & IBV_REREG_MR_CHANGE_PD)
		mr->pd = pd;
	pthread_mutex_unlock(&dev_lock);
	return fake_rereg_ret;
}

struct dp_verbs fake_verbs;

struct ibv_mr *fake_key(uint32_t dev, uint32_t key)
{
	struct fake_dev *d = &fake_dev[dev];
	struct ibv_mr *mr = NULL;

	pthread_mutex_lock(&dev_lock);
	if (key - d->base < d->nkeys)
		mr = d->by_key[key - d->base];
	pthread_mutex_unlock(&dev_lock);
	return mr;
}

struct dp_mr_how fake_how(uint32_t dev, uint32_t key)
{
	struct fake_dev *d = &fake_dev[dev];
	struct dp_mr_how how = { 0 };

	pthread_mutex_lock(&dev_lock);
	if (key - d->base < d->nkeys && d->by_key[key - d->base])
		how = d->how[key - d->base];
	pthread_mutex_unlock(&dev_lock);
	return how;
}

/* ---- contexts and QPs */

static const struct dp_verbs *real_of(struct ibv_context *ctx)
{
	(void)ctx;
	return &fake_verbs;
}

static const struct dp_stub stub = { .abi = DP_CORE_ABI, .real_of = real_of };
const struct dp_stub *dp_stub = &stub;

struct dp_ctx *dp_ctx_find(struct ibv_context *ctx)
{
	return ctx == fake_ctx.ctx && !fake_unseen ? &fake_ctx : NULL;
}

struct dp_ctx *dp_ctx_get(struct ibv_context *ctx)
{
	fake_unseen = false;
	return dp_ctx_find(ctx);
}

void dp_ctx_open_siblings(struct dp_ctx *c, const void *addr)
{
	(void)addr;
	dp_take(&c->lock);
	if (!c->opened) {
		c->sib = sibs;
		c->nsib = FAKE_DEVS - 1;
	}
	c->opened = true;
	dp_drop(&c->lock);
}

void dp_qp_each(void (*fn)(struct dp_qp *q, void *arg), void *arg)
{
	for (size_t i = 0; i < sizeof(fake_qp) / sizeof(fake_qp[0]); i++)
		fn(&fake_qp[i], arg);
}

void dp_qp_hold(struct dp_qp *q)
{
	atomic_fetch_add(&q->refs, 1);
}

void dp_qp_put(struct dp_qp *q)
{
	atomic_fetch_sub(&q->refs, 1);
}

void dp_cq_progress(struct dp_cq *q, bool take0)
{
	(void)take0;
	atomic_fetch_add(&q->polls, 1);
}

/* ---- the peer layer */

static int enqueue(struct item it)
{
	struct item *p = malloc(sizeof(*p));

	*p = it;
	p->next = NULL;
	pthread_mutex_lock(&q_lock);
	*tail = p;
	tail = &p->next;
	pthread_cond_signal(&q_cond);
	pthread_mutex_unlock(&q_lock);
	return 0;
}

int dp_peer_call(void (*fn)(void *arg), void *arg)
{
	return fake_call_err ? fake_call_err : enqueue((struct item){ .fn = fn, .arg = arg });
}

int dp_peer_send(struct dp_peer *peer, uint16_t type, const void *data, size_t len)
{
	uint8_t *copy;

	if (peer->broken)
		return -EPIPE;
	if (fake_no_watch && type == DP_MSG_KEYS_WATCH)
		return 0;
	atomic_fetch_add(&peer->sent[(type - DP_MSG_KEYS) & 15], 1);
	copy = malloc(len ? len : 1);
	memcpy(copy, data, len);
	return enqueue((struct item){ .from = peer->other, .type = type, .len = len, .data = copy });
}

void dp_timer_arm(struct dp_timer *t, uint64_t ns, void (*fn)(struct dp_timer *t))
{
	t->fn = fn;
	t->due = dp_now_ns() + ns;
	if (!t->armed) {
		t->next = timers;
		timers = t;
	}
	t->armed = true;
}

void dp_timer_disarm(struct dp_timer *t)
{
	struct dp_timer **at = &timers;

	if (!t->armed)
		return;
	while (*at != t)
		at = &(*at)->next;
	*at = t->next;
	t->armed = false;
}

void fake_timers(void)
{
	struct dp_timer *t, *next;
	uint64_t now = dp_now_ns();

	for (t = timers; t; t = next) {
		next = t->next;
		if (t->due > now)
			continue;
		dp_timer_disarm(t);
		t->fn(t);
		next = timers;
	}
}

bool dp_peer_lease_valid(const struct dp_peer *peer)
{
	return peer->self || atomic_load_explicit(&peer->lease, memory_order_relaxed);
}

uint64_t dp_peer_granted_until(const struct dp_peer *peer)
{
	return peer->self ? 0 : atomic_load(&peer->granted);
}

bool dp_peer_is_self(const struct dp_peer *peer)
{
	return peer->self;
}

void dp_peer_each(bool (*fn)(struct dp_peer *peer, void *arg), void *arg)
{
	if (fn(&fake_holder, arg))
		fn(&fake_owner, arg);
}

const char *dp_peer_text(const struct dp_peer *peer)
{
	return peer == &fake_holder ? "holder" : "owner";
}

unsigned fake_sent(struct dp_peer *to, unsigned type)
{
	return atomic_load(&to->sent[type - DP_MSG_KEYS]);
}

bool fake_step(void)
{
	struct item *it;

	pthread_mutex_lock(&q_lock);
	it = head;
	if (it) {
		head = it->next;
		if (!head)
			tail = &head;
		at_work = true;
	}
	pthread_mutex_unlock(&q_lock);
	if (!it)
		return false;
	if (control_max_us) {
		struct timespec t = { .tv_nsec = (long)(random() % control_max_us) * 1000 };

		nanosleep(&t, NULL);
	}
	if (it->fn)
		it->fn(it->arg);
	else
		dp_rkeys_message(it->from, it->type, it->data, it->len);
	free(it->data);
	free(it);
	pthread_mutex_lock(&q_lock);
	at_work = false;
	pthread_mutex_unlock(&q_lock);
	return true;
}

void fake_run(void)
{
	while (fake_step())
		;
}

bool fake_idle(void)
{
	bool idle;

	pthread_mutex_lock(&q_lock);
	idle = !head && !at_work;
	pthread_mutex_unlock(&q_lock);
	return idle;
}

static void *control_main(void *arg)
{
	(void)arg;
	for (;;) {
		struct timespec ts;

		fake_run();
		fake_timers();
		clock_gettime(CLOCK_REALTIME, &ts);
		ts.tv_nsec += 1000000;
		if (ts.tv_nsec >= 1000000000) {
			ts.tv_sec++;
			ts.tv_nsec -= 1000000000;
		}
		pthread_mutex_lock(&q_lock);
		if (!head && control_end) {
			pthread_mutex_unlock(&q_lock);
			return NULL;
		}
		if (!head)
			pthread_cond_timedwait(&q_cond, &q_lock, &ts);
		pthread_mutex_unlock(&q_lock);
	}
}

void fake_control_start(unsigned max_us)
{
	control_max_us = max_us;
	control_end = false;
	if (pthread_create(&control, NULL, control_main, NULL))
		abort();
	control_runs = true;
}

void fake_control_stop(void)
{
	if (!control_runs)
		return;
	pthread_mutex_lock(&q_lock);
	control_end = true;
	pthread_cond_signal(&q_cond);
	pthread_mutex_unlock(&q_lock);
	pthread_join(control, NULL);
	control_runs = false;
	control_max_us = 0;
}

static void peer_init(struct dp_peer *p, struct dp_peer *other)
{
	memset(p, 0, sizeof(*p));
	p->other = other;
	atomic_init(&p->lease, true);
	atomic_init(&p->granted, UINT64_MAX);
}

void fake_reset(void)
{
	memset(fake_dev, 0, sizeof(fake_dev));
	memset(&fake_ctx, 0, sizeof(fake_ctx));
	memset(sibs, 0, sizeof(sibs));
	memset(fake_qp, 0, sizeof(fake_qp));
	for (unsigned i = 0; i < FAKE_DEVS; i++) {
		fake_dev[i].base = 1000 * (i + 1) * 10;
		fake_dev[i].nkeys = FAKE_KEYS;
		fake_dev[i].ctx.device = &fake_dev[i].device;
		snprintf(fake_dev[i].device.name, sizeof(fake_dev[i].device.name), "fake%u", i);
	}
	fake_verbs = (struct dp_verbs){
		.alloc_pd = f_alloc_pd, .dealloc_pd = f_dealloc_pd,   .reg_mr = f_reg_mr,
		.dereg_mr = f_dereg_mr, .reg_mr_iova = f_reg_mr_iova, .reg_mr_iova2 = f_reg_mr_iova2,
		.rereg_mr = f_rereg_mr, .reg_dmabuf_mr = f_reg_dmabuf_mr, .reg_mr_ex = f_reg_mr_ex, .reg_buf_mr = f_reg_buf_mr,
		.unimport_mr = f_unimport_mr, .unimport_pd = f_unimport_pd, .get_device_name = f_get_device_name,
	};
	fake_ctx.ctx = &fake_dev[0].ctx;
	fake_ctx.real = &fake_verbs;
	fake_ctx.grouped = true;
	strcpy(fake_ctx.dev, "fake0");
	dp_hmap_init(&fake_ctx.lkeys);
	for (unsigned i = 0; i < FAKE_DEVS - 1; i++) {
		snprintf(sibs[i].text, sizeof(sibs[i].text), "fake%u:1", i + 1);
		snprintf(sibs[i].port.dev, sizeof(sibs[i].port.dev), "fake%u", i + 1);
		sibs[i].ctx = &fake_dev[i + 1].ctx;
	}
	for (unsigned i = 0; i < 2; i++) {
		dp_lock_init(&fake_qp[i].lock);
		dp_lock_init(&fake_qp[i].ctl);
	}
	fake_memlock = fake_locked = 0;
	fake_rereg_ret = fake_rereg_errno = fake_call_err = 0;
	fake_in_dereg = NULL;
	fake_no_watch = fake_unseen = false;
	peer_init(&fake_holder, &fake_owner);
	peer_init(&fake_owner, &fake_holder);
	dp_cfg.lease_ns = 300000000;
	dp_log_level = DP_LOG_QUIET;
}

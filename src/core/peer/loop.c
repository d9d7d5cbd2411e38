// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What the control thread runs: an epoll loop with timers, watched descriptors and the round-wise work of the other
 * files. All sockets are non-blocking, so that no peer can stop the loop.
 *
 * Each round: descriptors first, timers second. After this process was stopped for a while (SIGSTOP, a debugger)
 * the messages that arrived meanwhile must count before a timer finds that nothing was heard.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include "internal.h"
#include "loop.h"
#include "timer.h"

struct dp_watch {
	struct dp_io io;
	struct dp_watch *next;
	void (*fn)(void *arg);
	void *arg;
};

struct dp_peering *dp_peering;

uint64_t dp_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * DP_SEC + (uint64_t)ts.tv_nsec;
}

/*
 * Our descriptors as a bitmap that a forked child can read whatever the control thread was doing at the fork: pages are
 * never freed, a bit is set after the descriptor was opened and cleared before it is closed. So the child may
 * miss one (they are CLOEXEC anyway) but never closes one of the program's.
 */
#define FD_PAGE_WORDS 64
#define FD_PAGES 1024
static _Atomic(_Atomic uint64_t *) fd_pages[FD_PAGES];

static _Atomic uint64_t *fd_word(int fd, bool make)
{
	unsigned page = (unsigned)fd / (FD_PAGE_WORDS * 64), word = (unsigned)fd / 64 % FD_PAGE_WORDS;
	_Atomic uint64_t *p, *none = NULL;

	if (fd < 0 || page >= FD_PAGES)
		return NULL;
	p = atomic_load(&fd_pages[page]);
	if (!p && make) {
		p = calloc(FD_PAGE_WORDS, sizeof(*p));
		if (p && !atomic_compare_exchange_strong(&fd_pages[page], &none, p)) {
			free((void *)p);
			p = none;
		}
	}
	return p ? &p[word] : NULL;
}

int dp_fd_own(int fd)
{
	_Atomic uint64_t *w = fd_word(fd, true);

	if (w)
		atomic_fetch_or(w, 1ULL << (fd % 64));
	return fd;
}

void dp_fd_close(int fd)
{
	_Atomic uint64_t *w = fd_word(fd, false);

	if (fd < 0)
		return;
	if (w)
		atomic_fetch_and(w, ~(1ULL << (fd % 64)));
	close(fd);
}

void dp_fd_close_all(void)
{
	for (int page = 0; page < FD_PAGES; page++) {
		_Atomic uint64_t *p = atomic_load(&fd_pages[page]);

		for (int i = 0; p && i < FD_PAGE_WORDS * 64; i++)
			if (atomic_load(&p[i / 64]) & 1ULL << (i % 64))
				dp_fd_close(page * FD_PAGE_WORDS * 64 + i);
	}
}

int dp_io_add(struct dp_io *io, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = io };

	return epoll_ctl(dp_peering->epfd, EPOLL_CTL_ADD, io->fd, &ev) ? -errno : 0;
}

int dp_io_mod(struct dp_io *io, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = io };

	return epoll_ctl(dp_peering->epfd, EPOLL_CTL_MOD, io->fd, &ev) ? -errno : 0;
}

void dp_io_close(struct dp_io *io)
{
	if (io->fd < 0)
		return;
	/* explicitly: a child of fork() that holds the descriptor would keep the registration alive */
	epoll_ctl(dp_peering->epfd, EPOLL_CTL_DEL, io->fd, NULL);
	dp_fd_close(io->fd);
	io->fd = -1;
}

void dp_later_free(void *p)
{
	struct dp_peering *g = dp_peering;

	if (g->ngarbage == g->garbage_cap) {
		size_t cap = g->garbage_cap ? 2 * g->garbage_cap : 64;
		void **n = realloc(g->garbage, cap * sizeof(*n));

		if (!n)
			return; /* out of memory: a leak is better than a use after free */
		g->garbage = n;
		g->garbage_cap = cap;
	}
	g->garbage[g->ngarbage++] = p;
}

static void free_garbage(void)
{
	if (dp_peer_leaving())
		return;
	while (dp_peering->ngarbage)
		free(dp_peering->garbage[--dp_peering->ngarbage]);
}

void dp_timer_arm(struct dp_timer *t, uint64_t ns, void (*fn)(struct dp_timer *t))
{
	uint64_t now = dp_now();

	dp_timer_disarm(t);
	t->due = ns > UINT64_MAX - now ? UINT64_MAX : now + ns;
	t->fn = fn;
	t->armed = true;
	t->owner = dp_peering;
	dp_timers_insert(&dp_peering->timers, t);
}

void dp_timer_disarm(struct dp_timer *t)
{
	if (!t->armed)
		return;
	t->armed = false;
	/* one that the parent of a fork() armed is in no heap of this process */
	if (dp_peering && t->owner == dp_peering)
		dp_timers_remove(&dp_peering->timers, t);
}

static void run_timers(void)
{
	uint64_t now = dp_now();
	struct dp_timer *t;

	/* now stays as it was: a timer that is armed for "at once" again and again does not keep the loop here */
	while ((t = dp_peering->timers) && t->due <= now) {
		dp_timer_disarm(t);
		t->fn(t);
	}
}

static void watch_event(struct dp_io *io, uint32_t events)
{
	struct dp_watch *w = (struct dp_watch *)io;

	(void)events;
	w->fn(w->arg);
}

int dp_peer_watch(int fd, void (*fn)(void *arg), void *arg)
{
	struct dp_watch *w;
	int err;

	if (!dp_peering)
		return -ESRCH;
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->io = (struct dp_io){ .fd = fd, .fn = watch_event };
	w->fn = fn;
	w->arg = arg;
	err = dp_io_add(&w->io, EPOLLIN);
	if (err) {
		free(w);
		return err;
	}
	w->next = dp_peering->watches;
	dp_peering->watches = w;
	return 0;
}

void dp_peer_unwatch(int fd)
{
	for (struct dp_watch **p = dp_peering ? &dp_peering->watches : NULL, *w; p && (w = *p); p = &w->next) {
		if (w->io.fd != fd)
			continue;
		*p = w->next;
		epoll_ctl(dp_peering->epfd, EPOLL_CTL_DEL, fd, NULL);
		w->io.fd = -1;
		dp_later_free(w);
		return;
	}
}

static void tick(struct dp_timer *t)
{
	dp_timer_arm(t, DP_SEC, tick);
	dp_listen_tick();
	dp_dir_tick();
	dp_host_tick();
}

static void drain_wake(struct dp_io *io, uint32_t events)
{
	uint64_t n;

	(void)events;
	if (read(io->fd, &n, sizeof(n)) < 0)
		return;
}

int dp_peering_new(const struct dp_peer_handler *handler)
{
	struct dp_peering *p = calloc(1, sizeof(*p));
	struct rlimit lim;
	int err;

	if (!p)
		return -ENOMEM;
	dp_peering = p;
	p->handler = *handler;
	p->epfd = p->dir_fd = p->wake.fd = -1;
	p->dir_slot = -1;
	p->self_last = &p->self_first;
	/* the descriptors are the program's; never take more than half of them */
	p->max_conns = getrlimit(RLIMIT_NOFILE, &lim) || lim.rlim_cur > 8192 ? 4096 : (unsigned)lim.rlim_cur / 2;
	err = -ENOMEM;
	p->scratch = malloc(DP_MSG_MAX);
	if (!p->scratch)
		goto fail;
	err = dp_random(p->instance, sizeof(p->instance));
	if (err)
		goto fail;
	memcpy(p->self.instance, p->instance, sizeof(p->instance));
	snprintf(p->self.text, sizeof(p->self.text), "this process");
	err = dp_auth_load(&p->auth, dp_cfg.peer_secret);
	if (err)
		goto fail;
	p->epfd = dp_fd_own(epoll_create1(EPOLL_CLOEXEC));
	p->wake = (struct dp_io){ .fd = dp_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), .fn = drain_wake };
	if (p->epfd < 0 || p->wake.fd < 0) {
		err = -errno;
		goto fail;
	}
	err = dp_io_add(&p->wake, EPOLLIN);
	if (err)
		goto fail;
	return 0;
fail:
	dp_peering_free();
	return err;
}

void dp_peering_free(void)
{
	struct dp_peering *p = dp_peering;

	while (p->watches)
		dp_peer_unwatch(p->watches->io.fd);
	free_garbage();
	while (p->timers) /* a timer of the users' must not point into a heap that is gone */
		dp_timer_disarm(p->timers);
	dp_fd_close(p->wake.fd);
	dp_fd_close(p->epfd);
	dp_auth_wipe(&p->auth, sizeof(p->auth));
	free(p->garbage);
	free(p->gids);
	free(p->scratch);
	dp_peering = NULL;
	free(p);
}

static int wait_ms(void)
{
	struct dp_timer *t = dp_peering->timers;
	uint64_t now, ms;

	if (dp_peering->doomed || dp_peering->self_first || dp_peering->finished)
		return 0;
	if (!t)
		return -1;
	now = dp_now();
	if (t->due <= now)
		return 0;
	ms = (t->due - now + DP_MS - 1) / DP_MS;
	return ms > 60000 ? 60000 : (int)ms;
}

/* Everything that callbacks left to be done when no user call is on the stack. */
static void settle(void)
{
	dp_self_deliver();
	dp_locate_finish_all();
	dp_conn_reap();
	dp_conn_flush_all();
	free_garbage();
}

void dp_loop_run(bool (*mail)(void))
{
	struct epoll_event ev[64];

	dp_timer_arm(&dp_peering->tick, DP_SEC, tick);
	while (mail()) {
		int n;

		settle();
		n = epoll_wait(dp_peering->epfd, ev, 64, wait_ms());
		for (int i = 0; i < n; i++) {
			struct dp_io *io = ev[i].data.ptr;

			if (io->fd >= 0)
				io->fn(io, ev[i].events);
		}
		run_timers();
	}
	dp_timer_disarm(&dp_peering->tick);
	dp_locate_stop();
	dp_listen_stop();
	dp_dir_stop();
	for (struct dp_conn *c = dp_peering->conns, *next; c; c = next) {
		next = c->next;
		if (c->state == DP_CONN_OPEN)
			dp_conn_send(c, DP_MSG_BYE, NULL, 0);
	}
	settle();
	while (dp_peering->conns)
		dp_conn_drop(dp_peering->conns);
	dp_host_stop();
	dp_self_deliver();
}

void dp_loop_wake(void)
{
	uint64_t one = 1;

	if (write(dp_peering->wake.fd, &one, sizeof(one)) < 0)
		return; /* only when the counter is full: then it is awake */
}

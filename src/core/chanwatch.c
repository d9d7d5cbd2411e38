// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The thread that looks at the kernel's events for channels on which completions are held, so that a program that sleeps
 * in poll(2) on its channel's fd is not woken by one. It exists as long as there is such a channel.
 */
#define _GNU_SOURCE /* pthread_timedjoin_np */
#include "core.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#define BATCH 16
#define STACK_SIZE (512 * 1024)
#define STOP_S 1

static struct {
	dp_lock lock; /* leaf; the thread drops it before it looks */
	pthread_cond_t settled;
	pthread_t thread;
	int epfd, stop_fd;
	unsigned fds;
	unsigned at_work; /* threads: one that is told to stop may still be */
	bool running;
} watch = { .lock = PTHREAD_MUTEX_INITIALIZER, .settled = PTHREAD_COND_INITIALIZER, .epfd = -1, .stop_fd = -1 };

static void *watch_main(void *arg)
{
	int epfd = (int)(intptr_t)arg;
	struct epoll_event ev[BATCH];
	bool stop = false;
	int n;

	prctl(PR_SET_NAME, "dualport-chan");
	/* never goes down again: everything that this thread calls passes to the real functions */
	dp_stub->inside(1);
	while (!stop) {
		n = epoll_wait(epfd, ev, BATCH, -1);
		if (n < 0 && errno != EINTR)
			break;
		dp_take(&watch.lock);
		watch.at_work++;
		dp_drop(&watch.lock);
		for (int i = 0; i < n; i++) {
			if (ev[i].data.ptr)
				/* one that was destroyed meanwhile is not found any more */
				dp_channel_pump(ev[i].data.ptr);
			else
				stop = true;
		}
		dp_take(&watch.lock);
		watch.at_work--;
		pthread_cond_broadcast(&watch.settled);
		dp_drop(&watch.lock);
	}
	return NULL;
}

static int watch_fd(int fd, void *ptr)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = ptr };

	return epoll_ctl(watch.epfd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

static void close_fds(int epfd, int stop_fd)
{
	if (epfd >= 0)
		close(epfd);
	if (stop_fd >= 0)
		close(stop_fd);
}

/* With the lock held. A thread and what it uses, that nobody else knows any more. */
struct leaving {
	pthread_t thread;
	int epfd, stop_fd;
	bool any;
};

static struct leaving send_away(void)
{
	struct leaving l = { watch.thread, watch.epfd, watch.stop_fd, watch.running };
	const uint64_t one = 1;

	if (!l.any)
		return l;
	watch.running = false;
	watch.fds = 0;
	watch.epfd = watch.stop_fd = -1;
	if (write(l.stop_fd, &one, sizeof(one)) != sizeof(one))
		dp_warn("completion channels: eventfd: %s", strerror(errno));
	return l;
}

static void wait_for(struct leaving l)
{
	int cancel = dp_no_cancel();
	struct timespec until;

	if (l.any) {
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += STOP_S;
		if (pthread_timedjoin_np(l.thread, NULL, &until))
			/* in some call of a provider: what it uses stays */
			pthread_detach(l.thread);
		else
			close_fds(l.epfd, l.stop_fd);
	}
	dp_cancel_as(cancel);
}

/* With the lock held. 0 or -errno. */
static int start(void)
{
	pthread_attr_t attr;
	sigset_t all, old;
	int ret;

	watch.epfd = epoll_create1(EPOLL_CLOEXEC);
	watch.stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (watch.epfd < 0 || watch.stop_fd < 0) {
		ret = -errno;
		goto err;
	}
	ret = watch_fd(watch.stop_fd, NULL);
	if (ret)
		goto err;
	/* the thread inherits the mask: no signal of the program's is ever delivered to it */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_SIZE);
	ret = pthread_create(&watch.thread, &attr, watch_main, (void *)(intptr_t)watch.epfd);
	/* a program with much thread-local storage may need more than that */
	if (ret == EINVAL)
		ret = pthread_create(&watch.thread, NULL, watch_main, (void *)(intptr_t)watch.epfd);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!ret) {
		watch.running = true;
		return 0;
	}
	ret = -ret;
err:
	close_fds(watch.epfd, watch.stop_fd);
	watch.epfd = watch.stop_fd = -1;
	return ret;
}

int dp_chanwatch_add(int fd, struct ibv_comp_channel *shadow)
{
	int ret = 0;

	dp_take(&watch.lock);
	if (!watch.running)
		ret = start();
	if (!ret)
		ret = watch_fd(fd, shadow);
	if (!ret)
		watch.fds++;
	dp_drop(&watch.lock);
	return ret;
}

void dp_chanwatch_mute(int fd)
{
	dp_take(&watch.lock);
	if (watch.epfd >= 0)
		epoll_ctl(watch.epfd, EPOLL_CTL_DEL, fd, NULL);
	dp_drop(&watch.lock);
}

void dp_chanwatch_del(int fd)
{
	struct leaving l = { .any = false };

	dp_take(&watch.lock);
	/* not of a parent: its thread goes on with the same epoll */
	if (watch.epfd >= 0 && !epoll_ctl(watch.epfd, EPOLL_CTL_DEL, fd, NULL))
		if (!--watch.fds)
			l = send_away();
	dp_drop(&watch.lock);
	wait_for(l);
}

void dp_chanwatch_settle(void)
{
	int cancel = dp_no_cancel();

	dp_take(&watch.lock);
	while (watch.at_work && !pthread_equal(watch.thread, pthread_self()))
		pthread_cond_wait(&watch.settled, &watch.lock);
	dp_drop(&watch.lock);
	dp_cancel_as(cancel);
}

void dp_chanwatch_stop(void)
{
	struct leaving l;

	dp_take(&watch.lock);
	l = send_away();
	dp_drop(&watch.lock);
	wait_for(l);
}

void dp_chanwatch_after_fork(void)
{
	dp_lock_init(&watch.lock);
	pthread_cond_init(&watch.settled, NULL);
	watch.running = false;
	watch.at_work = watch.fds = 0;
	close_fds(watch.epfd, watch.stop_fd);
	watch.epfd = watch.stop_fd = -1;
}

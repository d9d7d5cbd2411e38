// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Start and end of the control thread, and the one door into it (dp_peer_call). Only what stands here is touched by
 * more than one thread.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include "internal.h"
#include "loop.h"

struct mail {
	struct mail *next;
	void (*fn)(void *arg);
	void *arg;
};

/* life: starts, thread; held while a thread is being started or ended. box: the mailbox and whether it is open. */
static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t box = PTHREAD_MUTEX_INITIALIZER;
static unsigned starts;
static pthread_t thread;
static _Atomic bool leaving; /* nothing is freed any more */
static _Atomic bool thread_lives; /* also of one that was detached because it did not end in time */
static struct mail *first, **last = &first;
static bool box_open, ending;
static _Thread_local bool on_control;
static void *_Atomic inherited; /* state that a forked child cannot free: kept reachable */

bool dp_peer_on_control(void)
{
	return on_control;
}

int dp_peer_call(void (*fn)(void *arg), void *arg)
{
	struct mail *m = malloc(sizeof(*m));

	if (!m)
		return -ENOMEM;
	*m = (struct mail){ .fn = fn, .arg = arg };
	pthread_mutex_lock(&box);
	if (!box_open) {
		pthread_mutex_unlock(&box);
		free(m);
		return -ESRCH;
	}
	/* under the lock: the loop ends only after it has closed the box, so its descriptor is still there */
	if (!first)
		dp_loop_wake();
	*last = m;
	last = &m->next;
	pthread_mutex_unlock(&box);
	return 0;
}

static bool run_mail(void)
{
	struct mail *m;
	bool go_on;

	pthread_mutex_lock(&box);
	m = first;
	first = NULL;
	last = &first;
	/* what was accepted runs: the box closes only when it is empty */
	if (ending && !m)
		box_open = false;
	go_on = box_open;
	pthread_mutex_unlock(&box);
	while (m) {
		struct mail *next = m->next;

		m->fn(m->arg);
		free(m);
		m = next;
	}
	return go_on;
}

static void *control(void *arg)
{
	(void)arg;
	on_control = true;
	if (dp_peering->thread_init)
		dp_peering->thread_init();
	dp_loop_run(run_mail);
	/* at exit(), threads of the program go on, and may be looking at a peer */
	if (!leaving)
		dp_peering_free();
	atomic_store(&thread_lives, false);
	return NULL;
}

static int start_thread(void)
{
	sigset_t all, old;
	int err;

	/* the program's signals are not for us: its handlers must run on its own threads */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = -pthread_create(&thread, NULL, control, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!err)
		pthread_setname_np(thread, "dualport-ctl");
	return err;
}

int dp_peer_start(const struct dp_peer_handler *handler, void (*thread_init)(void))
{
	int err = 0;

	/* on the control thread itself the lock may be held by who waits for this thread to end */
	if (on_control ? pthread_mutex_trylock(&life) : pthread_mutex_lock(&life))
		return -EBUSY;
	if (starts) {
		starts++;
		goto out;
	}
	if (atomic_load(&thread_lives)) {
		err = -EBUSY;
		goto out;
	}
	err = dp_peering_new(handler);
	if (err)
		goto out;
	dp_peering->thread_init = thread_init;
	err = dp_listen_start();
	if (err)
		goto fail;
	dp_dir_start();
	pthread_mutex_lock(&box);
	box_open = true;
	ending = false;
	pthread_mutex_unlock(&box);
	atomic_store(&thread_lives, true);
	err = start_thread();
	if (!err) {
		starts = 1;
		goto out;
	}
	atomic_store(&thread_lives, false);
	pthread_mutex_lock(&box);
	box_open = false;
	pthread_mutex_unlock(&box);
	dp_dir_stop();
	dp_listen_stop();
fail:
	dp_peering_free();
out:
	pthread_mutex_unlock(&life);
	return err;
}

bool dp_peer_leaving(void)
{
	return leaving;
}

void dp_peer_stop(bool at_exit)
{
	struct timespec until;

	if (on_control ? pthread_mutex_trylock(&life) : pthread_mutex_lock(&life))
		return;
	if (!starts || --starts)
		goto out;
	pthread_mutex_lock(&box);
	ending = true;
	leaving = at_exit;
	if (box_open)
		dp_loop_wake();
	pthread_mutex_unlock(&box);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec++;
	if (on_control || pthread_timedjoin_np(thread, NULL, &until)) {
		if (!on_control)
			dp_warn("the control thread did not end within a second");
		pthread_detach(thread);
	}
out:
	pthread_mutex_unlock(&life);
}

void dp_peer_after_fork(void)
{
	/* the locks may have been held, and the lists half changed, by threads that do not exist here */
	pthread_mutex_init(&life, NULL);
	pthread_mutex_init(&box, NULL);
	starts = 0;
	box_open = ending = false;
	leaving = false;
	first = NULL;
	last = &first;
	on_control = false;
	atomic_store(&thread_lives, false);
	dp_fd_close_all();
	if (dp_peering) {
		dp_auth_wipe(&dp_peering->auth, sizeof(dp_peering->auth));
		atomic_store(&inherited, dp_peering);
		dp_peering = NULL;
	}
}

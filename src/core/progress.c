// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The progress thread: moves queued WRs and held completions while the program does not poll. There is one for the
 * process, made when a CQ first has something queued or held; it sleeps as long as none has. It runs wherever the
 * process may run: its affinity is the one of the thread that made it.
 */
#include "core.h"
#include "stuck.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

#define PAUSE_MIN_NS UINT64_C(50000)
#define PAUSE_MAX_NS UINT64_C(1000000)
#define LINGER_NS UINT64_C(10000000)  /* from the last work on, rounds go on for so long */
#define STUCK_NS UINT64_C(250000000)  /* between two looks for stuck WRs */
#define STOP_NS UINT64_C(1000000000)
#define STACK_SIZE (512 * 1024)

static struct {
	dp_lock lock; /* leaf: taken with a CQ's and a QP's lock held; the thread drops it before it takes those */
	pthread_cond_t wake, let_go, gone; /* CLOCK_MONOTONIC, all of them */
	bool conds_made;
	pthread_t thread;
	bool running, stop, ended, failed;
	bool asleep;	     /* until wake: nothing is listed */
	bool hurry;	     /* the next pause is a short one */
	struct dp_cq *list;
	struct dp_cq *using; /* the thread is at it, without the lock */
} prog = { .lock = PTHREAD_MUTEX_INITIALIZER };

static struct timespec at(uint64_t ns)
{
	return (struct timespec){ .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };
}

static void make_conds(void)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&prog.wake, &attr);
	pthread_cond_init(&prog.let_go, &attr);
	pthread_cond_init(&prog.gone, &attr);
	pthread_condattr_destroy(&attr);
	prog.conds_made = true;
}

static void unlink_cq(struct dp_cq *cq)
{
	struct dp_cq **p;

	for (p = &prog.list; *p && *p != cq; p = &(*p)->progress_next)
		;
	if (*p)
		*p = cq->progress_next;
}

/* What has to change when anything of cq moves. With cq->lock held. */
static uint64_t fingerprint(struct dp_cq *cq)
{
	uint64_t f = atomic_load_explicit(&cq->busy, memory_order_relaxed);

	for (const struct dp_icq *i = cq->icqs; i; i = i->next)
		f = f * 31 + atomic_load_explicit(&i->pending, memory_order_relaxed);
	return f;
}

/* Returns whether something moved. Without prog.lock. */
static bool look_at(struct dp_cq *cq)
{
	uint64_t before;
	bool moved;

	/* who holds it polls */
	if (!dp_try(&cq->lock))
		return false;
	before = fingerprint(cq);
	dp_cq_progress(cq, true);
	moved = fingerprint(cq) != before;
	dp_drop(&cq->lock);
	return moved;
}

/* With prog.lock held. False: it has something to do after all. */
static bool leave(struct dp_cq *cq)
{
	if (atomic_load_explicit(&cq->busy, memory_order_relaxed))
		return false;
	/*
	 * Against dp_progress_watch(), which others call after they made busy rise: both exchange. Either they
	 * find false and list it again, or this exchange comes after theirs and acquires what they made of busy.
	 */
	(void)__atomic_exchange_n(&cq->progress_listed, false, __ATOMIC_ACQ_REL);
	if (atomic_load_explicit(&cq->busy, memory_order_relaxed) &&
	    !__atomic_exchange_n(&cq->progress_listed, true, __ATOMIC_ACQ_REL))
		return false;
	unlink_cq(cq);
	return true;
}

/* With prog.lock held, which is dropped meanwhile. Returns whether something moved. */
static bool go_round(void)
{
	bool moved = false;
	struct dp_cq *cq, *next;

	for (cq = prog.list; cq && !prog.stop; cq = next) {
		uint64_t polls = atomic_load_explicit(&cq->polls, memory_order_relaxed);

		next = cq->progress_next;
		if (leave(cq))
			continue;
		if (polls != cq->progress_polls) {
			cq->progress_polls = polls;
			continue;
		}
		prog.using = cq;
		dp_drop(&prog.lock);
		moved |= look_at(cq);
		dp_take(&prog.lock);
		prog.using = NULL;
		/* others may have gone, but not this one: dp_progress_forget() waits */
		next = cq->progress_next;
		pthread_cond_broadcast(&prog.let_go);
	}
	return moved;
}

static void *progress_main(void *arg)
{
	uint64_t pause = PAUSE_MIN_NS, worked = 0, stuck_due = 0, now;

	(void)arg;
	prctl(PR_SET_NAME, "dualport-prog");
	/* never goes down again: everything that this thread calls passes to the real functions */
	dp_stub->inside(1);
	dp_take(&prog.lock);
	while (!prog.stop) {
		struct timespec until;

		now = dp_now_ns();
		if (prog.list)
			worked = now;
		if (!prog.list && now - worked > LINGER_NS) {
			prog.asleep = true;
			while (!prog.list && !prog.stop)
				pthread_cond_wait(&prog.wake, &prog.lock);
			prog.asleep = false;
			pause = PAUSE_MIN_NS;
			continue;
		}
		if (go_round() || prog.hurry)
			pause = PAUSE_MIN_NS;
		else if ((pause += pause / 2) > PAUSE_MAX_NS)
			pause = PAUSE_MAX_NS;
		prog.hurry = false;
		now = dp_now_ns();
		if (dp_cfg.stuck_ns && prog.list && now >= stuck_due) {
			stuck_due = now + STUCK_NS;
			dp_drop(&prog.lock);
			dp_stuck_check();
			dp_take(&prog.lock);
		}
		until = at(now + pause);
		if (!prog.stop && !prog.hurry)
			pthread_cond_timedwait(&prog.wake, &prog.lock, &until);
	}
	prog.ended = true;
	pthread_cond_broadcast(&prog.gone);
	dp_drop(&prog.lock);
	return NULL;
}

/* With prog.lock held. */
static void start(void)
{
	pthread_attr_t attr;
	sigset_t all, old;
	int ret;

	if (prog.running)
		return;
	if (!prog.conds_made)
		make_conds();
	prog.stop = prog.ended = false;
	/* the thread inherits the mask: no signal of the program's is ever delivered to it */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_SIZE);
	ret = pthread_create(&prog.thread, &attr, progress_main, NULL);
	/* a program with much thread-local storage may need more than that */
	if (ret == EINVAL)
		ret = pthread_create(&prog.thread, NULL, progress_main, NULL);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	prog.running = !ret;
	if (ret && !prog.failed)
		dp_warn("progress thread: %s: what waits moves only when the program polls", strerror(ret));
	prog.failed = ret;
}

/* With prog.lock held. */
static void hurry(void)
{
	if (!prog.running || prog.hurry)
		return;
	prog.hurry = true;
	pthread_cond_signal(&prog.wake);
}

void dp_progress_watch(struct dp_cq *cq)
{
	/* see leave() */
	if (__atomic_exchange_n(&cq->progress_listed, true, __ATOMIC_ACQ_REL))
		return;
	dp_take(&prog.lock);
	cq->progress_polls = atomic_load_explicit(&cq->polls, memory_order_relaxed);
	cq->progress_next = prog.list;
	prog.list = cq;
	start();
	/* otherwise the thread is in a short pause, and a wake-up would cost the program's thread for little */
	if (prog.asleep)
		pthread_cond_signal(&prog.wake);
	else if (dp_cq_armed(cq))
		hurry();
	dp_drop(&prog.lock);
}

void dp_progress_hurry(void)
{
	dp_take(&prog.lock);
	hurry();
	dp_drop(&prog.lock);
}

void dp_progress_forget(struct dp_cq *cq)
{
	int cancel = dp_no_cancel();

	dp_take(&prog.lock);
	while (prog.using == cq)
		pthread_cond_wait(&prog.let_go, &prog.lock);
	unlink_cq(cq);
	__atomic_store_n(&cq->progress_listed, false, __ATOMIC_RELEASE);
	dp_drop(&prog.lock);
	dp_cancel_as(cancel);
}

static void forget_all(void)
{
	struct dp_cq *cq;

	while ((cq = prog.list)) {
		prog.list = cq->progress_next;
		__atomic_store_n(&cq->progress_listed, false, __ATOMIC_RELEASE);
	}
}

void dp_progress_stop(void)
{
	struct timespec until = at(dp_now_ns() + STOP_NS);
	int cancel = dp_no_cancel();
	pthread_t thread;
	bool ended;

	dp_take(&prog.lock);
	if (!prog.running || prog.stop) {
		dp_drop(&prog.lock);
		dp_cancel_as(cancel);
		return;
	}
	prog.stop = true;
	pthread_cond_signal(&prog.wake);
	while (!prog.ended && pthread_cond_timedwait(&prog.gone, &prog.lock, &until) != ETIMEDOUT)
		;
	ended = prog.ended;
	thread = prog.thread;
	/* a thread that did not end stays "running" with stop set: no second one may be made beside it */
	prog.running = !ended;
	forget_all();
	dp_drop(&prog.lock);
	if (ended)
		pthread_join(thread, NULL);
	else
		pthread_detach(thread);
	dp_cancel_as(cancel);
}

void dp_progress_after_fork(void)
{
	dp_lock_init(&prog.lock);
	forget_all();
	prog.running = prog.stop = prog.ended = prog.asleep = prog.hurry = prog.failed = false;
	prog.using = NULL;
	prog.conds_made = false;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * How processes, threads and libraries come and go around verbs: devices opened again and again, fork, exec, dlclose, threads
 * that end, exit while others send. Not linked with libibverbs. As text without any number that differs from run to run:
 * natively and with the library the same must be printed. CASE=name runs one of them.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mini.h"

#define BIG (128u << 10)
static const struct mend_want want = { .len = 4 * BIG, .depth = 32, .sge = 1, .inl = 64, .recvs = 4 };
static struct mini m = { .name = "life", .timeout_s = 150, .count = 12 };
static char **args;
extern char **environ;

struct pair {
	struct mend a, b;
	_Atomic unsigned int bad;
};

static bool up(struct pair *p)
{
	int err;

	memset(p, 0, sizeof(*p));
	err = mend_open(&p->a, &m, m.dev, &want);
	if (!err)
		err = mend_open(&p->b, &m, m.peer_dev, &want);
	if (!err)
		err = mend_join(&p->a, &p->b, NULL);
	CHECK(!err, "set-up: %s", strerror(-err));
	mini_nap(m.settle_ms);
	return !err;
}

static void down(struct pair *p)
{
	mend_close(&p->a);
	mend_close(&p->b);
}

/* Data and a flag: neither is told of before the other. */
static void post(struct pair *p, uint64_t id)
{
	struct mwr data = { .op = IBV_WR_RDMA_WRITE, .len = BIG, .raddr = (uintptr_t)p->b.buf, .rkey = p->b.mr->rkey, .id = id,
			    .flags = IBV_SEND_SIGNALED };
	struct mwr flag = { .op = IBV_WR_RDMA_WRITE, .off = BIG, .len = 8, .raddr = (uintptr_t)p->b.buf + BIG, .rkey = p->b.mr->rkey,
			    .id = id + 1, .flags = IBV_SEND_SIGNALED };

	p->bad += mend_post(&p->a, &data) != 0;
	p->bad += mend_post(&p->a, &flag) != 0;
}

static void take(struct pair *p, uint64_t id)
{
	struct ibv_wc wc;

	for (uint64_t i = id; i < id + 2; i++)
		p->bad += rc_poll_one(p->a.cq, &wc, 20000) != 1 || wc.status || wc.wr_id != i;
}

static unsigned int traffic(struct pair *p, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		pattern_fill(p->a.buf, i, 0, BIG);
		post(p, 2 * i);
		take(p, 2 * i);
		p->bad += memcmp(p->a.buf, p->b.buf, BIG) != 0;
	}
	return p->bad;
}

/* ---- devices ---- */

static unsigned int count_of(const char *dir)
{
	DIR *d = opendir(dir);
	unsigned int n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

static void reopen(void)
{
	unsigned int bad = 0, fds = 0, threads = 0;
	struct pair p;

	for (unsigned int i = 0; i < m.count; i++) {
		if (!up(&p))
			return;
		bad += traffic(&p, 3);
		down(&p);
		if (i == 2) {
			fds = count_of("/proc/self/fd");
			threads = count_of("/proc/self/task");
		}
	}
	/* threads that were told to end may need a moment to be gone */
	for (int i = 0; i < 100 && count_of("/proc/self/task") > threads; i++)
		mini_nap(20);
	printf("  bad %u, descriptors left %d, threads left %d\n", bad, count_of("/proc/self/fd") > fds,
	       count_of("/proc/self/task") > threads);
}

/* ---- fork and exec ---- */

static int status_of(pid_t pid)
{
	int st = -1;

	if (pid < 0 || waitpid(pid, &st, 0) != pid)
		return -1;
	return WIFEXITED(st) ? WEXITSTATUS(st) : 1000 + WTERMSIG(st);
}

/* This program anew, for one case. */
static pid_t self(const char *name)
{
	char var[64], *env[512];
	unsigned int n = 0;
	pid_t pid;

	for (; environ[n] && n < 510; n++)
		env[n] = environ[n];
	snprintf(var, sizeof(var), "CASE=%s", name);
	/* of two the first counts */
	memmove(env + 1, env, n * sizeof(env[0]));
	env[0] = var;
	env[n + 1] = NULL;
	return posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, env) ? -1 : pid;
}

static int child_anew(void)
{
	struct pair p;

	if (!up(&p))
		return 1;
	if (traffic(&p, 4))
		return 2;
	down(&p);
	return mini_failed ? 3 : 0;
}

static void forks(bool init)
{
	int (*fork_init)(void) = (int (*)(void))dlsym(dlopen("libibverbs.so.1", RTLD_NOW), "ibv_fork_init");
	static const char *const what[] = { "_exit", "exec", "verbs anew", "exit" };
	struct pair p;

	if (init)
		printf("  fork_init: %d\n", fork_init ? fork_init() : -1);
	if (!up(&p))
		return;
	traffic(&p, 2);
	for (unsigned int i = 0; i < 4; i++) {
		pid_t pid;

		post(&p, 100);
		fflush(NULL);
#ifdef __SANITIZE_ADDRESS__
		/* a child of a process in which another thread allocates inherits ASan's lock, and hangs */
		mini_nap(20);
#endif
		pid = fork();
		if (!pid) {
			if (i == 1)
				execl("/bin/true", "true", NULL);
			if (i == 2)
				_exit(child_anew());
			if (i == 3)
				exit(5);
			_exit(4);
		}
		take(&p, 100);
		printf("  %s: %d\n", what[i], status_of(pid));
		traffic(&p, 4);
	}
	printf("  bad %u\n", p.bad);
	down(&p);
}

static void fork_plain(void) { forks(false); }
static void fork_safe(void) { forks(true); }

/* What self() runs for others. */
static void one_run(void)
{
	struct pair p;

	if (!up(&p))
		_exit(1);
	printf("  bad %u\n", traffic(&p, 4));
	down(&p);
}

/* The image is replaced while requests are on their way, and its memory is gone with it. */
static void becomes(void)
{
	struct pair p;

	if (!up(&p))
		_exit(1);
	traffic(&p, 2);
	post(&p, 0);
	post(&p, 2);
	fflush(NULL);
	setenv("CASE", "one_run", 1);
	execv("/proc/self/exe", args);
	_exit(2);
}

static void exec_busy(void)
{
	for (int i = 0; i < 3; i++) {
		pid_t pid = self("becomes");

		printf("  ended %d\n", status_of(pid));
	}
}

/* ---- threads ---- */

static void *posts_and_ends(void *arg)
{
	post(arg, 0);
	post(arg, 2);
	return NULL;
}

static void *polls_until_cancelled(void *arg)
{
	struct pair *p = arg;
	struct ibv_wc wc;

	/* the sleep is where it ends: it has nothing then */
	for (uint64_t i = 0;; i++) {
		if (i < 2)
			p->bad += rc_poll_one(p->a.cq, &wc, 20000) != 1 || wc.status || wc.wr_id != i;
		else
			mini_nap(1000);
	}
	return NULL;
}

static void threads_end(void)
{
	struct pair p;
	pthread_t t;

	if (!up(&p))
		return;
	for (int i = 0; i < 10; i++) {
		/* what was queued in a thread that is gone goes nevertheless */
		CHECK(!pthread_create(&t, NULL, posts_and_ends, &p) && !pthread_join(t, NULL), "thread");
		take(&p, 0);
		take(&p, 2);
		CHECK(!pthread_create(&t, NULL, polls_until_cancelled, &p), "thread");
		post(&p, 0);
		mini_nap(20);
		pthread_cancel(t);
		CHECK(!pthread_join(t, NULL), "thread");
		while (traffic(&p, 0) == 0 && p.a.cq) {
			struct ibv_wc wc;

			/* what the cancelled one did not come to */
			if (rc_poll_one(p.a.cq, &wc, 100) != 1)
				break;
		}
		traffic(&p, 1);
	}
	printf("  bad %u\n", p.bad);
	down(&p);
}

/* ---- exit ---- */

static _Atomic int running;

static void *sends_for_ever(void *arg)
{
	struct pair *p = arg;

	if (!up(p))
		_exit(1);
	for (uint64_t i = 0;; i++) {
		post(p, 2 * i);
		take(p, 2 * i);
		if (p->bad)
			_exit(2);
		if (i == 4)
			running++;
	}
	return NULL;
}

static void *exits(void *arg)
{
	(void)arg;
	while (running < 2)
		mini_nap(1);
	mini_nap(7);
	exit(7);
}

/* Two send; a third calls exit, or main returns. */
static void ends_sending(bool by_thread)
{
	static struct pair p[2];
	pthread_t t[3];

	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&t[i], NULL, sends_for_ever, &p[i]), "thread");
	if (by_thread && !pthread_create(&t[2], NULL, exits, NULL))
		pthread_join(t[0], NULL);
	while (running < 2)
		mini_nap(1);
	exit(7);
}

static void exits_in_main(void) { ends_sending(false); }
static void exits_in_thread(void) { ends_sending(true); }

static void exit_busy(void)
{
	for (int i = 0; i < 6; i++)
		printf("  %s: %d\n", i % 2 ? "thread" : "main", status_of(self(i % 2 ? "exits_in_thread" : "exits_in_main")));
}

/* ---- a program that gives libibverbs back ---- */

static void unload(void)
{
	struct pair p;

	for (int i = 0; i < 4; i++) {
		void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);

		CHECK(lib && !verbs_load(i % 2 ? "dlsym" : "dlvsym", NULL), "dlopen");
		if (!up(&p))
			return;
		printf("  bad %u", traffic(&p, 3));
		down(&p);
		/* one is verbs_load()'s */
		for (int k = 0; k < 2; k++)
			printf(", dlclose %d", dlclose(lib));
		printf("\n");
		memset(&vb, 0, sizeof(vb));
	}
	CHECK(!verbs_load("dlsym", NULL), "dlopen");
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

#ifdef __SANITIZE_ADDRESS__
/* what libraries keep for the life of the process is no leak in a child that ends by exit() */
const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__asan_default_options(void)
{
	return "detect_leaks=0";
}
#endif

static const struct { const char *name; void (*fn)(void); bool inner; } cases[] = {
#define C(x) { #x, x, false }
#define INNER(x) { #x, x, true }
	C(reopen),
#ifndef __SANITIZE_THREAD__ /* it cannot start threads in the child of a process with threads */
	C(fork_plain), C(fork_safe),
#endif
#ifndef __SANITIZE_ADDRESS__ /* it takes the stack of a cancelled thread for poisoned when that ends */
	C(threads_end),
#endif
	C(exec_busy), C(exit_busy), C(unload),
	INNER(one_run), INNER(becomes), INNER(exits_in_main), INNER(exits_in_thread),
};

int main(int argc, char **argv)
{
	const char *only = getenv("CASE");

	args = argv;
#ifdef __SANITIZE_THREAD__
	(void)fork_plain;
	(void)fork_safe;
#endif
#ifdef __SANITIZE_ADDRESS__
	(void)threads_end;
#endif
	mini_start(&m, argc, argv, "processes and threads come and go");
	for (unsigned int i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (only ? !strcmp(only, cases[i].name) : !cases[i].inner) {
			printf("%s\n", cases[i].name);
			fflush(stdout);
			cases[i].fn();
		}
	fprintf(stderr, "failed %u\n", mini_failed);
	return mini_failed != 0;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* How many threads and descriptors a process has before it touches verbs, while it works, and after it closed all. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mini.h"

static const struct mend_want want = { .len = 1 << 20, .depth = 32, .inl = 64, .recvs = 4 };

static unsigned int entries(const char *dir, bool list)
{
	char path[300], to[256];
	struct dirent *e;
	unsigned int n = 0;
	ssize_t len;
	DIR *d = opendir(dir);

	if (!d)
		return 0;
	while ((e = readdir(d))) {
		if (e->d_name[0] == '.' || atoi(e->d_name) == dirfd(d))
			continue;
		n++;
		if (!list)
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
		len = readlink(path, to, sizeof(to) - 1);
		if (len > 0) {
			to[len] = 0;
			fprintf(stderr, "fdthreads: fd %s: %s\n", e->d_name, to);
		}
	}
	closedir(d);
	return n;
}

static void count(const char *when, unsigned int *threads, unsigned int *fds)
{
	*threads = entries("/proc/self/task", false);
	*fds = entries("/proc/self/fd", false);
	printf("fdthreads: %s: threads %u, fds %u\n", when, *threads, *fds);
}

static int traffic(const struct mini *m, const char *da, const char *db, const char *when)
{
	struct timespec nap = { m->settle_ms / 1000, m->settle_ms % 1000 * 1000000L };
	unsigned int i, t, f;
	struct mend a, b;
	int err;

	err = mend_open(&a, m, da, &want);
	if (!err)
		err = mend_open(&b, m, db, &want);
	if (!err)
		err = mend_join(&a, &b, NULL);
	if (err)
		return err;
	nanosleep(&nap, NULL);
	for (i = 0; i < m->count; i++) {
		CHECK(!mend_post(&a, &(struct mwr){ .op = IBV_WR_RDMA_WRITE, .len = 1 << 20, .id = i, .rkey = b.mr->rkey,
						    .raddr = (uintptr_t)b.buf, .flags = IBV_SEND_SIGNALED }), "post");
		mend_expect(&a, i, IBV_WC_RDMA_WRITE, -1);
	}
	count(when, &t, &f);
	mend_close(&a);
	mend_close(&b);
	return 0;
}

int main(int argc, char **argv)
{
	struct mini m = { .name = "fdthreads", .count = 10, .timeout_s = 120 };
	unsigned int t0, f0, t1, f1, t2, f2, i;
	struct timespec nap = { .tv_nsec = 100000000 };

	mini_start(&m, argc, argv, "Threads and descriptors before, while running, and after everything was closed.");
	count("before the first verbs call", &t0, &f0);
	if (traffic(&m, m.dev, m.peer_dev, "running"))
		return 2;
	count("after closing all", &t1, &f1);
	if (traffic(&m, m.dev, m.peer_dev, "running again"))
		return 2;
	/* threads that are on their way out may take a moment */
	for (i = 0; i < 20; i++) {
		nanosleep(&nap, NULL);
		if (entries("/proc/self/task", false) <= t0)
			break;
	}
	count("after closing all again", &t2, &f2);
	CHECK(f2 <= f1, "descriptors grow with each use: %u, then %u", f1, f2);
	CHECK(t2 <= t0 && f2 <= f0, "threads %u then %u, descriptors %u then %u", t0, t2, f0, f2);
	if (f2 > f0)
		entries("/proc/self/fd", true);
	return mini_end(&m, NULL);
}

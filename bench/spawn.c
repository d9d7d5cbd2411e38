// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * spawn run N PRELOAD PROGRAM: median wall time of starting PROGRAM and waiting for it, without and with the preload, in turns,
 * so that whatever else the machine does meets both alike. spawn dlsym N: nanoseconds per dlsym call, in this process.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

static double now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static double once(const char *program, char **env)
{
	char *argv[] = {(char *)program, NULL};
	double start = now_us();
	int status;
	pid_t pid;

	if (posix_spawn(&pid, program, NULL, NULL, argv, env) || waitpid(pid, &status, 0) != pid || status) {
		fprintf(stderr, "spawn: %s did not run\n", program);
		exit(1);
	}
	return now_us() - start;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof(*v), by_value);
	return (v[(n - 1) / 2] + v[n / 2]) / 2;
}

static int run(int n, const char *preload, const char *program)
{
	char *without[] = {NULL}, var[4096], *with[] = {var, NULL};
	double *a = calloc((size_t)n, sizeof(*a)), *b = calloc((size_t)n, sizeof(*b)), ma, mb;
	int i;

	if (!a || !b)
		return 1;
	snprintf(var, sizeof(var), "LD_PRELOAD=%s", preload);
	for (i = 0; i < n; i++) {
		a[i] = once(program, without);
		b[i] = once(program, with);
	}
	ma = median(a, n);
	mb = median(b, n);
	printf("%-28s %10.1f us %10.1f us %+10.1f us   median of %d\n", program, ma, mb, mb - ma, n);
	free(a);
	free(b);
	return 0;
}

static int look_up(int n)
{
	static const char *const names[] = {"getpid", "ibv_no_such_verb"};
	double start;
	size_t k;
	int i;

	for (k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
		start = now_us();
		for (i = 0; i < n; i++)
			if (!dlsym(RTLD_DEFAULT, names[k]) && k == 0)
				return 1;
		printf("dlsym(RTLD_DEFAULT, \"%s\") %.1f ns\n", names[k], (now_us() - start) * 1e3 / n);
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "run") && atoi(argv[2]) > 0)
		return run(atoi(argv[2]), argv[3], argv[4]);
	if (argc == 3 && !strcmp(argv[1], "dlsym") && atoi(argv[2]) > 0)
		return look_up(atoi(argv[2]));
	return 64;
}

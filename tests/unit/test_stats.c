// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <check.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "stats.h"
#include "run.h"

static char dir[64];
static char text[65536];

static void setup(void)
{
	strcpy(dir, "/tmp/test_stats.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	ck_assert_int_eq(chdir(dir), 0);
}

static void teardown(void)
{
	char cmd[192];

	ck_assert_int_eq(chdir("/"), 0);
	snprintf(cmd, sizeof(cmd), "chmod -R u+w %s; rm -rf %s", dir, dir);
	ck_assert_int_eq(system(cmd), 0);
}

static const char *slurp(const char *path)
{
	FILE *f = fopen(path, "r");
	size_t n;

	ck_assert_msg(f != NULL, "%s: %s", path, strerror(errno));
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = '\0';
	fclose(f);
	return text;
}

static const char *print(void)
{
	FILE *f = fmemopen(text, sizeof(text), "w");

	ck_assert_ptr_nonnull(f);
	dp_stats_print(f);
	fclose(f);
	return text;
}

static void traffic(const char *port, const char *peer, uint64_t bytes, uint64_t msgs)
{
	struct dp_flow *f = dp_flow_get(port, peer);

	ck_assert_ptr_nonnull(f);
	dp_count(&f->bytes, bytes);
	dp_count(&f->msgs, msgs);
}

static void some_traffic(void)
{
	dp_stats_port("mlx5_0:1");
	dp_stats_port("mlx5_10:1");
	dp_stats_port("mlx5_2:1");
	traffic("mlx5_0:1", "10.0.0.2", 750, 3);
	traffic("mlx5_2:1", "10.0.0.2", 250, 1);
	traffic("mlx5_0:1", "10.0.0.3", 5, 2);
	dp_count(&dp_counters.bonds, 2);
	dp_count(&dp_counters.splits, 11);
	dp_count(&dp_counters.spreads, 12);
	dp_count(&dp_counters.signals, 13);
	dp_count(&dp_counters.signals_waited, 4);
	dp_signal_waited(1000, DP_WAIT_ACK);
	dp_signal_waited(2300, DP_WAIT_FLUSH);
	dp_signal_waited(2300, DP_WAIT_FLUSH);
	dp_signal_waited(4400, DP_WAIT_ROOM);
	dp_count(&dp_counters.deferred, 15);
	dp_count(&dp_counters.held, 16);
	dp_count(&dp_counters.flushes, 17);
	dp_count(&dp_counters.flush_waits, 18);
	dp_count(&dp_counters.flush_acks, 19);
	dp_count(&dp_counters.full_waits, 20);
	dp_count(&dp_counters.spares_renewed, 21);
	dp_fallback(DP_FB_NO_PEER);
	dp_fallback(DP_FB_SQ_FULL);
	dp_fallback(DP_FB_SQ_FULL);
}

START_TEST(reasons)
{
	for (int i = 0; i < DP_FB_COUNT; i++) {
		const char *s = dp_fallback_str((enum dp_fallback)i);

		ck_assert_uint_gt(strlen(s), 0);
		ck_assert_uint_eq(strspn(s, "abcdefghijklmnopqrstuvwxyz-"), strlen(s));
		for (int j = 0; j < i; j++)
			ck_assert_str_ne(s, dp_fallback_str((enum dp_fallback)j));
	}
	ck_assert_str_eq(dp_fallback_str(DP_FB_RKEY_NONE), "rkey-none");
	ck_assert_str_eq(dp_fallback_str(DP_FB_COUNT), "unknown");
}
END_TEST

START_TEST(flows_are_found_again)
{
	char big[200];
	struct dp_flow *a = dp_flow_get("a:1", "p"), *b = dp_flow_get("a:1", "q"), *c = dp_flow_get("b:1", "p"), *l;

	ck_assert(a && b && c && a != b && b != c && a != c);
	ck_assert_ptr_eq(dp_flow_get("a:1", "p"), a);
	ck_assert_ptr_eq(dp_flow_get("a:1", "q"), b);
	ck_assert_ptr_eq(dp_flow_get("b:1", "p"), c);
	memset(big, 'x', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	l = dp_flow_get(big, big);
	ck_assert_ptr_nonnull(l);
	ck_assert_ptr_eq(dp_flow_get(big, big), l);
	ck_assert_uint_eq(strlen(l->port), sizeof(l->port) - 1);
	ck_assert_uint_eq(strlen(l->peer), sizeof(l->peer) - 1);
}
END_TEST

#define THREADS 4
#define NAMES 200

static struct dp_flow *got[THREADS][NAMES];
static pthread_barrier_t barrier;

static void *get_all(void *arg)
{
	struct dp_flow **mine = arg;

	for (int i = 0; i < NAMES; i++) {
		char name[16];

		snprintf(name, sizeof(name), "d%d:1", i);
		if (i % 20 == 0)
			pthread_barrier_wait(&barrier);
		mine[i] = dp_flow_get(name, "peer");
		if (mine[i])
			dp_count(&mine[i]->bytes, 1);
	}
	return NULL;
}

START_TEST(flows_by_many_threads)
{
	pthread_t t[THREADS];

	ck_assert_int_eq(pthread_barrier_init(&barrier, NULL, THREADS), 0);
	for (int i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&t[i], NULL, get_all, got[i]), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < NAMES; i++) {
		ck_assert_ptr_nonnull(got[0][i]);
		for (int j = 1; j < THREADS; j++)
			ck_assert_ptr_eq(got[j][i], got[0][i]);
		ck_assert_uint_eq(atomic_load(&got[0][i]->bytes), THREADS);
	}
	pthread_barrier_destroy(&barrier);
}
END_TEST

START_TEST(table)
{
	char head[64];
	const char *t;

	some_traffic();
	t = print();
	snprintf(head, sizeof(head), "dualport[%d]: traffic of bonded queue pairs\n", (int)getpid());
	ck_assert(!strncmp(t, head, strlen(head)));
	ck_assert_str_eq(t + strlen(head),
			 "  peer      port           messages               bytes    share\n"
			 "  -         mlx5_10:1             0                   0        -\n"
			 "  10.0.0.2  mlx5_0:1              3                 750    75.0%\n"
			 "  10.0.0.2  mlx5_2:1              1                 250    25.0%\n"
			 "  10.0.0.3  mlx5_0:1              2                   5   100.0%\n"
			 "  bonds                      2\n"
			 "  splits                    11\n"
			 "  spreads                   12\n"
			 "  signals                   13\n"
			 "  signals waited             4  (2.50 us each on average, 10.00 us in all)\n"
			 "  signal wait     median 2.30 us, 99% 4.61 us; let go by ack 1, flush 2, turn 0, room 1\n"
			 "  deferred                  15\n"
			 "  full waits                20\n"
			 "  held                      16\n"
			 "  flushes                   17  (18 waited for, 19 impossible; spares renewed 21)\n"
			 "  fall-backs to one port: no-peer 1, twin-sq-full 2\n");
}
END_TEST

START_TEST(empty_table)
{
	const char *t = print();

	ck_assert_ptr_nonnull(strstr(t, "\n  signals waited             0\n"));
	ck_assert_ptr_nonnull(strstr(t, "\n  fall-backs to one port: none\n"));
}
END_TEST

/* Standard error of the program is a pipe that nobody reads any more. */
START_TEST(table_into_closed_pipe)
{
	sigset_t set;
	int fds[2];
	FILE *f;

	some_traffic();
	ck_assert_int_eq(pipe(fds), 0);
	close(fds[0]);
	f = fdopen(fds[1], "w");
	ck_assert_ptr_nonnull(f);
	dp_stats_print(f);
	ck_assert(ferror(f));
	fclose(f);
	sigpending(&set);
	ck_assert(!sigismember(&set, SIGPIPE));
	pthread_sigmask(SIG_BLOCK, NULL, &set);
	ck_assert(!sigismember(&set, SIGPIPE));
}
END_TEST

static void want_json(const char *path)
{
	static const char ports[] =
		",\"ports\":[{\"port\":\"mlx5_0:1\",\"tx_bytes\":755,\"tx_msgs\":5},"
		"{\"port\":\"mlx5_2:1\",\"tx_bytes\":250,\"tx_msgs\":1},{\"port\":\"mlx5_10:1\",\"tx_bytes\":0,"
		"\"tx_msgs\":0}],\"flows\":[";
	char want[128];

	snprintf(want, sizeof(want), "{\"pid\":%d,\"bonds\":2,\"version\":\"" PACKAGE_VERSION "\",\"host\":\"",
		 (int)getpid());
	slurp(path);
	ck_assert_msg(!strncmp(text, want, strlen(want)), "%s\n%s", text, want);
	ck_assert_msg(strstr(text, ports) != NULL, "%s", text);
	ck_assert_ptr_nonnull(
		strstr(text, "{\"port\":\"mlx5_0:1\",\"peer\":\"10.0.0.3\",\"tx_bytes\":5,\"tx_msgs\":2}"));
	ck_assert_ptr_nonnull(strstr(
		text, "],\"splits\":11,\"spreads\":12,\"signals\":13,\"signals_waited\":4,\"signal_wait_ns\":10000,"
		      "\"signal_wait_median_ns\":2304,\"signal_wait_99_ns\":4608,\"signal_waits\":{\"ack\":1,\"flush\":2,\"turn\":0,\"room\":1},"
		      "\"deferred\":15,\"full_waits\":20,\"held\":16,\"flushes\":17,\"flush_waits\":18,\"flush_acks\":19,"
		      "\"spares_renewed\":21,\"fallbacks\":{\"no-peer\":1,\"twin-sq-full\":2}}\n"));
}

static int count_files(void)
{
	DIR *d = opendir(".");
	int n = 0;

	ck_assert_ptr_nonnull(d);
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

START_TEST(json)
{
	char name[64];

	some_traffic();
	ck_assert_int_eq(dp_stats_write_json("a.%p.%%.json"), 0);
	snprintf(name, sizeof(name), "a.%d.%%.json", (int)getpid());
	want_json(name);
	ck_assert_int_eq(count_files(), 1);
	ck_assert_int_eq(dp_stats_write_json("a.%p.%%.json"), 0); /* over the old one */
	want_json(name);
	ck_assert_int_eq(count_files(), 1);
}
END_TEST

/* What the files of a job are compared by. */
START_TEST(json_of_a_job)
{
	dp_stats_unbonded("10.0.0.7", DP_FB_NO_PEER);
	dp_stats_unbonded("10.0.0.7", DP_FB_PROBE_FAILED);
	dp_stats_unbonded("10.0.0.7", DP_FB_NO_PEER);
	ck_assert_int_eq(dp_stats_write_json("j"), 0);
	slurp("j");
	ck_assert_ptr_nonnull(strstr(text, "\"ordering\":\"rc\""));
	ck_assert_ptr_null(strstr(text, "\"debug\"")); /* may differ */
	ck_assert_ptr_nonnull(strstr(text, "{\"peer\":\"10.0.0.7\",\"reason\":\"no-peer\",\"qps\":2}"));
	ck_assert_ptr_nonnull(strstr(text, "{\"peer\":\"10.0.0.7\",\"reason\":\"probe-failed\",\"qps\":1}"));
	dp_stats_after_fork();
	ck_assert_int_eq(dp_stats_write_json("j"), 0);
	ck_assert_ptr_nonnull(strstr(slurp("j"), "\"unbonded\":[],"));
}
END_TEST

START_TEST(json_is_json)
{
	traffic("od\"d\\:1", "new\nline\x7f", 1, 1);
	ck_assert_int_eq(dp_stats_write_json("j"), 0);
	slurp("j");
	ck_assert_ptr_nonnull(strstr(
		text, "\"flows\":[{\"port\":\"od\\\"d\\\\:1\",\"peer\":\"new\\u000aline\\u007f\",\"tx_bytes\":1"));
	ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
	ck_assert_ptr_nonnull(strstr(text, "\"fallbacks\":{}}"));
}
END_TEST

/* A link and what it leads to stay; a directory that takes no new file does not matter. */
START_TEST(json_in_place)
{
	struct stat st;

	some_traffic();
	ck_assert_int_eq(symlink("target", "link"), 0);
	ck_assert_int_eq(dp_stats_write_json("link"), 0);
	ck_assert_int_eq(lstat("link", &st), 0);
	ck_assert(S_ISLNK(st.st_mode));
	want_json("target");
	ck_assert_int_eq(mkfifo("fifo", 0600), 0);
	ck_assert_int_eq(dp_stats_write_json("fifo"), -ENXIO); /* nobody reads: no waiting for one */
	ck_assert_int_eq(dp_stats_write_json("/dev/null"), 0);
	ck_assert_int_eq(stat("/dev/null", &st), 0);
	ck_assert(S_ISCHR(st.st_mode));
}
END_TEST

START_TEST(json_read_only_directory)
{
	ck_assert_int_eq(mkdir("ro", 0755), 0);
	some_traffic();
	fclose(fopen("ro/old", "w"));
	ck_assert_int_eq(chmod("ro/old", 0666), 0);
	ck_assert_int_eq(chmod("ro", 0555), 0);
	if (geteuid() == 0) { /* root may write everywhere */
		ck_assert_int_eq(chmod(".", 0755), 0);
		ck_assert_int_eq(setegid(65534), 0);
		ck_assert_int_eq(seteuid(65534), 0);
	}
	ck_assert_int_eq(dp_stats_write_json("ro/new"), -EACCES);
	ck_assert_int_eq(dp_stats_write_json("ro/old"), 0);
	want_json("ro/old");
	if (getuid() == 0)
		ck_assert_int_eq(seteuid(0), 0);
}
END_TEST

START_TEST(json_errors)
{
	char *name = malloc(5000);

	ck_assert_int_eq(dp_stats_write_json("nowhere/x"), -ENOENT);
	ck_assert_int_eq(dp_stats_write_json(""), -ENOENT);
	ck_assert_int_eq(dp_stats_write_json("/dev/full"), -ENOSPC);
	memset(name, 'x', 4999);
	name[4999] = '\0';
	ck_assert_int_eq(dp_stats_write_json(name), -ENAMETOOLONG);
	ck_assert_int_eq(count_files(), 0);
	free(name);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("stats");
	TCase *tc = tcase_create("all");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, reasons);
	tcase_add_test(tc, flows_are_found_again);
	tcase_add_test(tc, flows_by_many_threads);
	tcase_add_test(tc, table);
	tcase_add_test(tc, empty_table);
	tcase_add_test(tc, table_into_closed_pipe);
	tcase_add_test(tc, json);
	tcase_add_test(tc, json_of_a_job);
	tcase_add_test(tc, json_is_json);
	tcase_add_test(tc, json_in_place);
	tcase_add_test(tc, json_read_only_directory);
	tcase_add_test(tc, json_errors);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

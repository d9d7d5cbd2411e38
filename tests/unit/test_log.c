// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "log.h"
#include "nvshmem.h"
#include "run.h"

/* One line, control characters harmless, errno kept. */
START_TEST(log_lines)
{
	int fds[2], saved = dup(2);
	char buf[4096], want[128], big[3000];
	ssize_t n;

	ck_assert_int_eq(pipe(fds), 0);
	ck_assert_int_ge(dup2(fds[1], 2), 0);
	errno = EBADMSG;
	dp_warn("qp 0x%x: %s", 0x1a, "two\nlines\n");
	ck_assert_int_eq(errno, EBADMSG);
	dp_info("not said");
	memset(big, 'b', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	dp_warn("%s", big);
	dup2(saved, 2);
	close(fds[1]);
	n = read(fds[0], buf, sizeof(buf) - 1);
	ck_assert_int_gt(n, 0);
	buf[n] = '\0';
	snprintf(want, sizeof(want), "dualport[%d]: qp 0x1a: two?lines\n", (int)getpid());
	ck_assert(!strncmp(buf, want, strlen(want)));
	ck_assert_int_eq(n - (ssize_t)strlen(want), 1023);
	ck_assert_str_eq(buf + n - 5, "b...\n");
	close(fds[0]);
	close(saved);
}
END_TEST

/* Nobody reads standard error any more: no reason for the program to die of SIGPIPE. */
START_TEST(log_closed_pipe)
{
	int fds[2], saved = dup(2);

	ck_assert_int_eq(pipe(fds), 0);
	ck_assert_int_ge(dup2(fds[1], 2), 0);
	close(fds[0]);
	close(fds[1]);
	dp_warn("nobody hears");
	dup2(saved, 2);
	close(saved);
}
END_TEST

/* Who writes its work queues itself is told its own switch, once. */
START_TEST(bypassed)
{
	static const struct {
		const char *object, *says;
	} known[] = {
		{ "nvshmem_transport_ibgda.so.3.0.0", "NVSHMEM_IB_ENABLE_IBGDA=0 with NVSHMEM_REMOTE_TRANSPORT=ibrc is the way" },
		{ "nvshmem_transport_gpunetio.so.3", "NVSHMEM_GPUNETIO_ENABLE_GDAKI=0 with NVSHMEM_REMOTE_TRANSPORT=ibrc is" },
		{ "libnccl.so.2", "NCCL_GIN_TYPE=2 with DUALPORT_NCCL=1 is the way" },
		{ "libuct_ib.so.0", "UCX_TLS=rc_verbs is the way" },
		{ "libother.so.1", "(mlx5dv_create_qp): one port\n" },
		{ "", "the program writes its work queues itself" },
	};
	int fds[2], saved = dup(2);
	char buf[4096], *at;
	ssize_t n;

	ck_assert_int_eq(pipe(fds), 0);
	ck_assert_int_ge(dup2(fds[1], 2), 0);
	for (int twice = 0; twice < 2; twice++)
		for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
			dp_bypassed("mlx5dv_create_qp", known[i].object);
	dup2(saved, 2);
	close(fds[1]);
	n = read(fds[0], buf, sizeof(buf) - 1);
	ck_assert_int_gt(n, 0);
	buf[n] = '\0';
	at = buf;
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
		char *end = strchr(at, '\n');

		ck_assert_ptr_nonnull(end);
		ck_assert_msg(strstr(at, known[i].object) && strstr(at, known[i].says), "%s: %s", known[i].object, at);
		ck_assert_msg(strstr(at, known[i].says) < end, "%s: %s", known[i].object, at);
		at = end + 1;
	}
	ck_assert_str_eq(at, "");
	close(fds[0]);
	close(saved);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("log");
	TCase *tc = tcase_create("all");

	tcase_add_test(tc, log_lines);
	tcase_add_test(tc, log_closed_pipe);
	tcase_add_test(tc, bypassed);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

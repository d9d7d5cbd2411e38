// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Is descriptor 2 still standard error? A program that was started with it closed, or closes it, gets it back as a
 * socket or data file of its own, in which lines of ours would do harm.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall */
#endif
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stub.h"

/* Not by fstat(), which became a symbol of its own in glibc 2.33. On 64-bit machines both have one struct stat. */
static bool stat_of(int fd, struct stat *st)
{
	return !syscall(SYS_fstat, fd, st);
}

static struct stat at_start;
static bool was_open;

__attribute__((constructor)) static void note_stderr(void)
{
	int saved = errno;

	was_open = stat_of(STDERR_FILENO, &at_start);
	errno = saved;
}

bool dp_stderr_is_ours(void)
{
	int saved = errno;
	struct stat st;
	bool ret = false;

	if (!stat_of(STDERR_FILENO, &st))
		goto out;
	ret = was_open && st.st_dev == at_start.st_dev && st.st_ino == at_start.st_ino;
	/* turned to a terminal, /dev/null or a log file since */
	ret |= S_ISCHR(st.st_mode) || (S_ISREG(st.st_mode) && fcntl(STDERR_FILENO, F_GETFL) & O_APPEND);
out:
	errno = saved;
	return ret;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "lock.h"
#include "log.h"
#include "sigpipe.h"

enum dp_log_level dp_log_level = DP_LOG_WARN;
bool (*dp_log_may)(void);

static void write_quietly(int fd, const char *buf, size_t len)
{
	struct dp_sigpipe sigpipe;
	ssize_t n;
	/* write(2) is a cancellation point, and many a caller holds a lock */
	int cancel = dp_no_cancel();

	dp_sigpipe_off(&sigpipe);
	do {
		n = write(fd, buf, len);
	} while (n < 0 && errno == EINTR);
	dp_sigpipe_back(&sigpipe);
	dp_cancel_as(cancel);
}

void dp_log(enum dp_log_level level, const char *fmt, ...)
{
	char line[1024];
	int saved = errno;
	size_t len, room;
	va_list ap;
	int n;

	if (level > dp_log_level || (dp_log_may && !dp_log_may()))
		return;
	len = (size_t)snprintf(line, sizeof(line), "dualport[%d]: ", (int)getpid());
	room = sizeof(line) - len - 1; /* one for the newline */
	errno = saved;		       /* for %m */
	va_start(ap, fmt);
	n = vsnprintf(line + len, room, fmt, ap);
	va_end(ap);
	if (n < 0)
		goto out;

	/* One message is one line, whatever text of a peer or a file is in it. */
	for (char *c = line + len; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = c[1] ? '?' : '\0';
	if ((size_t)n >= room)
		memcpy(line + sizeof(line) - 5, "...", 4);
	len = strlen(line);
	line[len++] = '\n';
	write_quietly(STDERR_FILENO, line, len);
out:
	errno = saved;
}

/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * One line per message on stderr, "dualport[pid]: text", lower case, QP numbers in hex, the exact cause, once.
 * Thread-safe; one write(2) per line; errno is kept.
 */
#ifndef DUALPORT_LOG_H
#define DUALPORT_LOG_H

#include <stdbool.h>
#include "hidden.h"

enum dp_log_level { DP_LOG_QUIET, DP_LOG_WARN, DP_LOG_INFO, DP_LOG_TRACE };

extern DP_HIDDEN enum dp_log_level dp_log_level; /* DP_LOG_WARN until the configuration says otherwise */
/* NULL, or says whether descriptor 2 may be written to. Set before there are threads. */
extern bool (*dp_log_may)(void);

void dp_log(enum dp_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3), cold));

#define dp_log_at(level, ...)                                                                                         \
	do {                                                                                                          \
		if (__builtin_expect(dp_log_level >= (level), 0))                                                     \
			dp_log((level), __VA_ARGS__);                                                                 \
	} while (0)
#define dp_warn(...) dp_log_at(DP_LOG_WARN, __VA_ARGS__)
#define dp_info(...) dp_log_at(DP_LOG_INFO, __VA_ARGS__)
#define dp_trace(...) dp_log_at(DP_LOG_TRACE, __VA_ARGS__)

#endif

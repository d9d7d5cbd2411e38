/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* For programs with one source file: what is not so is told on stderr, and counted. */
#ifndef ENTRY_CHECK_H
#define ENTRY_CHECK_H

#include <stdio.h>

static int failures;

#define CHECK(cond, ...)                                                                                              \
	do {                                                                                                          \
		if (!(cond)) {                                                                                        \
			fprintf(stderr, "entry: %s:%d: %s: ", __FILE__, __LINE__, #cond);                             \
			fprintf(stderr, __VA_ARGS__);                                                                 \
			fputc('\n', stderr);                                                                          \
			failures++;                                                                                   \
		}                                                                                                     \
	} while (0)

#endif

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include "tree.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void tree_put(const char *text, const char *fmt, ...)
{
	char path[512];
	va_list ap;
	FILE *f;

	va_start(ap, fmt);
	vsnprintf(path, sizeof(path), fmt, ap);
	va_end(ap);
	for (char *c = path + 1; (c = strchr(c, '/')); c++) {
		*c = '\0';
		mkdir(path, 0755);
		*c = '/';
	}
	if (!strncmp(text, "->", 2)) {
		ck_assert_int_eq(symlink(text + 2, path), 0);
		return;
	}
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fprintf(f, "%s\n", text);
	fclose(f);
}

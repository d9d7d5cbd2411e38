// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The dualport command. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "tool.h"

static const struct {
	const char *name;
	int (*fn)(int argc, char **argv);
	const char *usage;
} commands[] = {
	{ "probe", tool_probe, "probe [--sysfs DIR]                   what this host has, and a configuration for it" },
	{ "check", tool_check, "check FILE [--sysfs DIR]              does a configuration fit this host?" },
	{ "config", tool_config, "config [--sysfs DIR]                  every setting, and where its value is from" },
	{ "report", tool_report, "report FILE...                        what the JSON files of a job say together" },
	{ "run", tool_run, "run [NAME=VALUE...] -- COMMAND...     runs a command with the library" },
};
#define COMMANDS (sizeof(commands) / sizeof(*commands))

int tool_error(const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	fputs("dualport: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	return TOOL_USAGE;
}

int tool_sysfs(int *argc, char **argv, const char **dir)
{
	struct stat st;
	int n = 1;

	*dir = NULL;
	for (int i = 1; i < *argc; i++) {
		if (strcmp(argv[i], "--sysfs")) {
			if (argv[i][0] == '-')
				return tool_error("unknown option %s", argv[i]);
			argv[n++] = argv[i];
			continue;
		}
		if (++i == *argc)
			return tool_error("--sysfs wants a directory");
		*dir = argv[i];
		if (stat(*dir, &st))
			return tool_error("%s: %s", *dir, strerror(errno));
		if (!S_ISDIR(st.st_mode))
			return tool_error("%s: %s", *dir, strerror(ENOTDIR));
	}
	*argc = n;
	return 0;
}

static int usage(FILE *f)
{
	for (size_t i = 0; i < COMMANDS; i++)
		fprintf(f, "%s dualport %s\n", i ? "      " : "usage:", commands[i].usage);
	return TOOL_USAGE;
}

/* What stands behind "--" is another program's. */
static bool asks_for_help(int argc, char **argv)
{
	for (int i = 2; i < argc && strcmp(argv[i], "--"); i++)
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return true;
	return false;
}

static int help(size_t command)
{
	printf("usage: dualport %s\nMore in dualport(1).\n", commands[command].usage);
	return TOOL_OK;
}

static int answer(int argc, char **argv)
{
	if (argc < 2)
		return usage(stderr);
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
		usage(stdout);
		return TOOL_OK;
	}
	if (!strcmp(argv[1], "--version")) {
		printf("dualport %s\n", PACKAGE_VERSION);
		return TOOL_OK;
	}
	for (size_t i = 0; i < COMMANDS; i++)
		if (!strcmp(argv[1], commands[i].name))
			return asks_for_help(argc, argv) ? help(i) : commands[i].fn(argc - 1, argv + 1);
	tool_error("no command \"%s\"", argv[1]);
	return usage(stderr);
}

int main(int argc, char **argv)
{
	int ret = answer(argc, argv);

	if (fflush(stdout) || ferror(stdout))
		return tool_error("cannot write the answer");
	return ret;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* dualport run: sets the environment, then becomes the program. dualport config: what the settings are. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "settings.h"
#include "tool.h"

#define STUB "libdualport.so"

static bool readable(char *path, size_t len, const char *dir, const char *rest)
{
	return snprintf(path, len, "%s%s", dir, rest) < (int)len && !access(path, R_OK);
}

/* In a build directory as beside it, else where it was installed. */
static int find_stub(char *path, size_t len)
{
	char exe[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	char *slash;

	if (n > 0) {
		exe[n] = '\0';
		slash = strrchr(exe, '/');
		if (slash)
			*slash = '\0';
		if (readable(path, len, exe, "/../.libs/" STUB))
			return 0;
	}
	return readable(path, len, LIBDIR, "/" STUB) ? 0 : -ENOENT;
}

/* "stripe.align", "align" or "DUALPORT_ALIGN". */
static const struct dp_setting *find_setting(const char *name, size_t len)
{
	char full[64];

	for (int i = 0; i < DP_SET_COUNT; i++) {
		const struct dp_setting *s = &dp_settings[i];
		const char *names[] = { dp_setting_name(s, full, sizeof(full)), s->env, s->env + strlen("DUALPORT_") };

		for (size_t k = 0; k < sizeof(names) / sizeof(*names); k++)
			if (strlen(names[k]) == len && !strncasecmp(names[k], name, len))
				return s;
	}
	return NULL;
}

static int set_one(const char *arg)
{
	const char *eq = strchr(arg, '=');
	const struct dp_setting *s = eq ? find_setting(arg, (size_t)(eq - arg)) : NULL;

	if (!s)
		return tool_error("run: \"%s\" is no setting (NAME=VALUE, as ordering=signal; dualport config lists "
				  "them)", arg);
	return setenv(s->env, eq + 1, 1) ? tool_error("%s", strerror(errno)) : 0;
}

static int preload(void)
{
	char path[PATH_MAX], real[PATH_MAX], *text;
	const char *old = getenv("LD_PRELOAD");
	int ret;

	if (find_stub(path, sizeof(path)) || !realpath(path, real))
		return tool_error(STUB " is neither beside this command nor in " LIBDIR);
	if (strpbrk(real, " :"))
		return tool_error("%s: LD_PRELOAD takes blanks and colons for separators", real);
	text = malloc(strlen(real) + (old ? strlen(old) : 0) + 2);
	if (!text)
		return tool_error("out of memory");
	/* other libraries that wrap verbs, and sanitizers' run times, stand first */
	sprintf(text, "%s%s%s", old && *old ? old : "", old && *old ? ":" : "", real);
	ret = setenv("LD_PRELOAD", text, 1) ? tool_error("%s", strerror(errno)) : 0;
	free(text);
	return ret;
}

int tool_run(int argc, char **argv)
{
	struct dp_config cfg;
	char err[1024];
	int i, ret;

	for (i = 1; i < argc && strcmp(argv[i], "--"); i++) {
		ret = set_one(argv[i]);
		if (ret)
			return ret;
	}
	if (i + 1 >= argc)
		return tool_error("run: no command; it stands after --");
	/* said here, once, and not by each process */
	if (dp_config_load(&cfg, NULL, err, sizeof(err)))
		return tool_error("%s", err);
	dp_config_free(&cfg);
	ret = preload();
	if (ret)
		return ret;
	execvp(argv[i + 1], argv + i + 1);
	ret = errno;
	tool_error("%s: %s", argv[i + 1], strerror(ret));
	return ret == ENOENT ? 127 : 126;
}

int tool_config(int argc, char **argv)
{
	struct dp_config cfg;
	char text[1024];
	const char *sysfs;
	int ret = tool_sysfs(&argc, argv, &sysfs);

	if (ret)
		return ret;
	if (argc != 1)
		return tool_error("config takes no argument but --sysfs DIR");
	if (dp_config_load(&cfg, NULL, text, sizeof(text))) {
		dp_printable(text);
		printf("error: %s\n", text);
		return TOOL_BAD;
	}
	if (!cfg.ngroups && dp_groups_from_card(&cfg, sysfs, text, sizeof(text)))
		printf("# no port group: %s\n", text);
	dp_config_print(&cfg, stdout);
	dp_config_free(&cfg);
	return TOOL_OK;
}

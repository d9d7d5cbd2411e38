// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * settings-man [--update] [FILE]: compares the part of the man page FILE between its marks with the table of
 * settings, or rewrites it. FILE is by default $srcdir/doc/dualport.conf.5, so that "make check" can call this as it
 * is. Exit status: 0 it is (now) current, 1 it is not, 2 trouble.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "settings.h"

static const char begin[] = ".\\\" settings: begin (written by settings-man)\n";
static const char end[] = ".\\\" settings: end\n";

/* Text in which nothing is markup. */
static void put_text(FILE *f, const char *s)
{
	bool line_start = true;

	for (; *s; s++) {
		if (line_start && (*s == '.' || *s == '\''))
			fputs("\\&", f);
		if (*s == '\\')
			fputs("\\e", f);
		else if (*s == '-')
			fputs("\\-", f);
		else
			fputc(*s, f);
		line_start = *s == '\n';
	}
}

/* The help, each sentence on a line of its own. */
static void put_help(FILE *f, const char *help)
{
	char *copy = strdup(help);

	if (!copy)
		exit(2);
	for (char *c = copy; (c = strstr(c, ". "));)
		c[1] = '\n';
	put_text(f, copy);
	fputc('\n', f);
	free(copy);
}

static void put_range(FILE *f, const struct dp_setting *s)
{
	struct dp_config *cfg = calloc(1, sizeof(*cfg));
	uint64_t bounds[2] = { s->min, s->max };
	char text[2][32];

	if (!cfg)
		exit(2);
	for (int i = 0; i < 2; i++) {
		char *member = (char *)cfg + s->offset;

		if (s->type == DP_T_INT)
			*(int *)member = (int)bounds[i];
		else
			*(uint64_t *)member = bounds[i];
		dp_setting_format(s, cfg, text[i], sizeof(text[i]));
	}
	fprintf(f, ", %s to %s", text[0], text[1]);
	free(cfg);
}

static void put_type(FILE *f, const struct dp_setting *s)
{
	static const char *const names[] = {
		[DP_T_BOOL] = "boolean",
		[DP_T_SIZE] = "size",
		[DP_T_TIME] = "time",
		[DP_T_INT] = "number",
		[DP_T_CHOICE] = "one of ",
		[DP_T_TEXT] = "string",
		[DP_T_WEIGHTS] = "equal, rate or a list of numbers",
		[DP_T_PORTS] = "groups",
		[DP_T_GPU] = "GPU or none",
		[DP_T_FILE] = "file name",
	};

	put_text(f, names[s->type]);
	for (const char *c = s->choices; c && *c; c++)
		if (*c == '|')
			fputs(", ", f);
		else
			fputc(*c, f);
	if (s->type == DP_T_SIZE || s->type == DP_T_TIME || s->type == DP_T_INT)
		put_range(f, s);
}

static void put_setting(FILE *f, const struct dp_setting *s)
{
	char name[64];

	fputs(".TP\n", f);
	if (s->key) {
		fputs(".BR ", f);
		put_text(f, dp_setting_name(s, name, sizeof(name)));
		fputs(" \", \" ", f);
	} else {
		fputs(".B ", f);
	}
	put_text(f, s->env);
	fputs("\n(", f);
	put_type(f, s);
	if (!s->def)
		fputs("; default: that of split_min", f);
	else if (*s->def)
		fprintf(f, "; default: %s", s->def);
	fputs(")\n", f);
	fputs(".br\n", f);
	put_help(f, s->help);
}

static char *settings_text(void)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	if (!f)
		exit(2);
	for (int i = 0; i < DP_SET_COUNT; i++)
		put_setting(f, &dp_settings[i]);
	if (fclose(f))
		exit(2);
	return text;
}

static char *read_all(const char *path)
{
	FILE *f = fopen(path, "r");
	char *text;
	size_t n;
	long size;

	if (!f || fseek(f, 0, SEEK_END) || (size = ftell(f)) < 0 || fseek(f, 0, SEEK_SET)) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		exit(2);
	}
	text = malloc((size_t)size + 1);
	if (!text)
		exit(2);
	n = fread(text, 1, (size_t)size, f);
	text[n] = '\0';
	fclose(f);
	return text;
}

int main(int argc, char **argv)
{
	bool update = argc > 1 && !strcmp(argv[1], "--update");
	const char *srcdir = getenv("srcdir");
	char *text, *want, *from, *to, path[4096];
	int ret = 0;

	argv += 1 + update;
	argc -= 1 + update;
	if (argc > 1 || (argc && argv[0][0] == '-')) {
		fprintf(stderr, "usage: settings-man [--update] [FILE]\n");
		return 2;
	}
	if (argc)
		snprintf(path, sizeof(path), "%s", argv[0]);
	else
		snprintf(path, sizeof(path), "%s/doc/dualport.conf.5", srcdir ? srcdir : ".");
	text = read_all(path);
	want = settings_text();
	from = strstr(text, begin);
	to = from ? strstr(from, end) : NULL;
	if (!to) {
		fprintf(stderr, "%s: no marks where the settings belong\n", path);
		return 2;
	}
	from += strlen(begin);
	if ((size_t)(to - from) != strlen(want) || memcmp(from, want, strlen(want))) {
		FILE *f = update ? fopen(path, "w") : NULL;

		if (update && (!f || fprintf(f, "%.*s%s%s", (int)(from - text), text, want, to) < 0 || fclose(f))) {
			fprintf(stderr, "%s: %s\n", path, strerror(errno));
			return 2;
		}
		if (!update) {
			fprintf(stderr, "%s: not current, run: settings-man --update %s\n", path, path);
			ret = 1;
		}
	}
	free(text);
	free(want);
	return ret;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <inttypes.h>
#include <libconfig.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "config_file.h"
#include "ports.h"

struct reader {
	struct dp_config *cfg;
	const char *path;
	struct dp_places *places;
	char *err;
	size_t errlen;
};

int dp_place_set(struct dp_places *places, enum dp_setting_id id, const char *place)
{
	char *copy = strdup(place);

	if (!copy)
		return -ENOMEM;
	free(places->of[id]);
	places->of[id] = copy;
	return 0;
}

void dp_places_free(struct dp_places *places)
{
	for (int i = 0; i < DP_SET_COUNT; i++)
		free(places->of[i]);
	memset(places, 0, sizeof(*places));
}

/* What was read from the stream itself, not from a file that it includes, has no file name. */
static const char *file_of(const struct reader *r, const config_setting_t *c)
{
	const char *file = config_setting_source_file(c);

	return file ? file : r->path;
}

static int fail(const struct reader *r, const config_setting_t *c, const char *key, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static int fail(const struct reader *r, const config_setting_t *c, const char *key, const char *fmt, ...)
{
	int n = snprintf(r->err, r->errlen, "%s:%u: %s: ", file_of(r, c), config_setting_source_line(c), key);
	va_list ap;

	if (n >= 0 && (size_t)n < r->errlen) {
		va_start(ap, fmt);
		vsnprintf(r->err + n, r->errlen - (size_t)n, fmt, ap);
		va_end(ap);
	}
	return -EINVAL;
}

static const char *type_name(const config_setting_t *c)
{
	switch (config_setting_type(c)) {
	case CONFIG_TYPE_INT:
	case CONFIG_TYPE_INT64:
		return "a number";
	case CONFIG_TYPE_FLOAT:
		return "a number with a fraction";
	case CONFIG_TYPE_STRING:
		return "a string";
	case CONFIG_TYPE_BOOL:
		return "a boolean";
	case CONFIG_TYPE_ARRAY:
		return "an array [ ]";
	case CONFIG_TYPE_LIST:
		return "a list ( )";
	default:
		return "a group { }";
	}
}

/* The scalar as text; false: it is none. */
static bool scalar_text(const config_setting_t *c, char *buf, size_t len)
{
	switch (config_setting_type(c)) {
	case CONFIG_TYPE_INT:
	case CONFIG_TYPE_INT64:
		snprintf(buf, len, "%lld", config_setting_get_int64(c));
		return true;
	case CONFIG_TYPE_BOOL:
		snprintf(buf, len, "%s", config_setting_get_bool(c) ? "true" : "false");
		return true;
	case CONFIG_TYPE_STRING:
		snprintf(buf, len, "%s", config_setting_get_string(c));
		return true;
	default:
		return false;
	}
}

static bool is_number(const config_setting_t *c)
{
	return config_setting_type(c) == CONFIG_TYPE_INT || config_setting_type(c) == CONFIG_TYPE_INT64;
}

static bool type_fits(const struct dp_setting *s, const config_setting_t *c)
{
	bool string = config_setting_type(c) == CONFIG_TYPE_STRING;

	switch (s->type) {
	case DP_T_BOOL:
		return config_setting_type(c) == CONFIG_TYPE_BOOL || is_number(c);
	case DP_T_INT:
		return is_number(c);
	case DP_T_SIZE:
	case DP_T_TIME:
		return string || is_number(c);
	default:
		return string;
	}
}

static const char *type_wanted(const struct dp_setting *s)
{
	switch (s->type) {
	case DP_T_BOOL:
		return "true or false";
	case DP_T_INT:
		return "a number";
	case DP_T_SIZE:
		return "a size (a number, or a string as \"8k\")";
	case DP_T_TIME:
		return "a time (a string as \"2s\", or a number of seconds)";
	case DP_T_WEIGHTS:
		return "\"equal\", \"rate\" or a list of numbers";
	default:
		return "a string";
	}
}

/* [ 1, 2 ] or ( 1, 2 ) as "1,2", the form of the environment. */
static int weights_text(const struct reader *r, const config_setting_t *c, const char *name, char *buf, size_t len)
{
	size_t at = 0;
	int n = config_setting_length(c);

	if (!n)
		return fail(r, c, name, "an empty list");
	for (int i = 0; i < n; i++) {
		const config_setting_t *e = config_setting_get_elem(c, (unsigned)i);

		if (!is_number(e))
			return fail(r, e, name, "a weight is a number, not %s", type_name(e));
		at += (size_t)snprintf(buf + at, len - at, "%s%lld", i ? "," : "", config_setting_get_int64(e));
		if (at >= len)
			return fail(r, c, name, "more than %d weights", DP_MAX_RAILS);
	}
	return 0;
}

static int note_place(const struct reader *r, const config_setting_t *c, enum dp_setting_id id)
{
	char place[512];

	snprintf(place, sizeof(place), "%s:%u", file_of(r, c), config_setting_source_line(c));
	r->cfg->in_file |= UINT64_C(1) << id;
	if (!dp_place_set(r->places, id, place))
		return 0;
	snprintf(r->err, r->errlen, "%s: out of memory", r->path);
	return -ENOMEM;
}

static int read_scalar(const struct reader *r, const struct dp_setting *s, const config_setting_t *c, const char *name)
{
	char text[1024], why[512];
	int ret;

	if (s->type == DP_T_WEIGHTS && (config_setting_is_array(c) || config_setting_is_list(c))) {
		ret = weights_text(r, c, name, text, sizeof(text));
		if (ret)
			return ret;
	} else if (!type_fits(s, c) || !scalar_text(c, text, sizeof(text))) {
		return fail(r, c, name, "must be %s, not %s", type_wanted(s), type_name(c));
	}
	if (!*text && s->type != DP_T_TEXT)
		return fail(r, c, name, "an empty string");
	if (s->type == DP_T_BOOL && is_number(c) && strcmp(text, "0") && strcmp(text, "1"))
		return fail(r, c, name, "must be true or false, not %s", text);
	if (dp_setting_parse(s, r->cfg, text, why, sizeof(why)))
		return fail(r, c, name, "%s", why);
	return 0;
}

#define MAX_GPUS 64 /* in one entry */

/* One entry of gpus, as written. */
struct entry {
	int ngpus;
	struct dp_port_group gpu[MAX_GPUS]; /* only what names the GPU */
	struct dp_port_group group;	    /* only the ports */
	bool has_ports, rotate;
};

static bool same_gpu(const struct dp_port_group *a, const struct dp_port_group *b)
{
	return b->gpu_name[0] ? dp_gpu_same(a->gpu_name, b->gpu_name) : a->gpu == b->gpu;
}

static int read_gpu(const struct reader *r, const config_setting_t *c, struct entry *e, const char *name)
{
	struct dp_port_group *g = &e->gpu[e->ngpus];
	char text[256], why[512];
	bool twice = false;

	if ((!is_number(c) && config_setting_type(c) != CONFIG_TYPE_STRING) || !scalar_text(c, text, sizeof(text)))
		return fail(r, c, name, "must be an index or a string, or a list of such, not %s", type_name(c));
	if (dp_gpu_parse(text, &g->gpu, g->gpu_name, sizeof(g->gpu_name), why, sizeof(why)))
		return fail(r, c, name, "%s", why);
	for (int i = 0; i < r->cfg->ngroups && !twice; i++)
		twice = same_gpu(&r->cfg->groups[i], g);
	for (int i = 0; i < e->ngpus && !twice; i++)
		twice = same_gpu(&e->gpu[i], g);
	if (twice)
		return fail(r, c, name, "GPU %s is in two groups", text);
	e->ngpus++;
	return 0;
}

static int read_gpu_list(const struct reader *r, const config_setting_t *c, struct entry *e, const char *name)
{
	int n = config_setting_length(c), ret = 0;

	if (!config_setting_is_array(c) && !config_setting_is_list(c))
		return read_gpu(r, c, e, name);
	if (!n)
		return fail(r, c, name, "an empty list");
	if (n > MAX_GPUS)
		return fail(r, c, name, "more than %d GPUs", MAX_GPUS);
	for (int i = 0; i < n && !ret; i++)
		ret = read_gpu(r, config_setting_get_elem(c, (unsigned)i), e, name);
	return ret;
}

static int read_rotate(const struct reader *r, const config_setting_t *c, struct entry *e, const char *name)
{
	if (config_setting_type(c) != CONFIG_TYPE_BOOL)
		return fail(r, c, name, "must be true or false, not %s", type_name(c));
	e->rotate = config_setting_get_bool(c);
	return 0;
}

/*
 * The group of the entry's k-th GPU. Rotated, the GPUs begin at places spread over the ports, so that those that share
 * them do not all have their first rail, signals and short requests on the same one.
 */
static void fill_group(struct dp_port_group *g, const struct entry *e, int k)
{
	int n = e->group.nports, first = e->rotate ? k * n / e->ngpus : 0;

	if (e->ngpus)
		*g = e->gpu[k];
	g->nports = n;
	for (int i = 0; i < n; i++)
		g->ports[i] = e->group.ports[(first + i) % n];
}

static int read_ports(const struct reader *r, const config_setting_t *c, struct dp_port_group *g, const char *name)
{
	char why[512];

	if (!config_setting_is_array(c) && !config_setting_is_list(c))
		return fail(r, c, name, "must be an array as [ \"mlx5_0:1\", \"mlx5_1:1\" ], not %s", type_name(c));
	for (int i = 0; i < config_setting_length(c); i++) {
		const config_setting_t *e = config_setting_get_elem(c, (unsigned)i);

		if (config_setting_type(e) != CONFIG_TYPE_STRING)
			return fail(r, e, name, "a port is a string as \"mlx5_0:1\", not %s", type_name(e));
		if (dp_group_add_port(g, config_setting_get_string(e), why, sizeof(why)))
			return fail(r, e, name, "%s", why);
	}
	if (dp_group_check(g, why, sizeof(why)))
		return fail(r, c, name, "%s", why);
	return 0;
}

static int read_entry(const struct reader *r, const config_setting_t *c, int index, struct entry *e)
{
	char name[320];
	int ret = 0;

	for (int i = 0; i < config_setting_length(c) && !ret; i++) {
		const config_setting_t *s = config_setting_get_elem(c, (unsigned)i);
		const char *key = config_setting_name(s);

		snprintf(name, sizeof(name), "gpus[%d].%.255s", index, key);
		if (!strcmp(key, "gpu"))
			ret = read_gpu_list(r, s, e, name);
		else if (!strcmp(key, "ports"))
			ret = read_ports(r, s, &e->group, name);
		else if (!strcmp(key, "rotate"))
			ret = read_rotate(r, s, e, name);
		else
			ret = fail(r, s, name, "unknown key; an entry of gpus has gpu, ports and rotate");
		e->has_ports |= !strcmp(key, "ports");
	}
	if (ret)
		return ret;
	snprintf(name, sizeof(name), "gpus[%d].ports", index);
	if (!e->has_ports)
		return fail(r, c, name, "missing");
	snprintf(name, sizeof(name), "gpus[%d].rotate", index);
	if (e->rotate && e->ngpus < 2)
		return fail(r, c, name, "there is nothing to rotate: it is for a list of GPUs that share these ports");
	r->cfg->rotated |= e->rotate;
	return 0;
}

static int read_group(const struct reader *r, const config_setting_t *c, int index)
{
	struct dp_port_group *g;
	struct entry *e;
	char name[320];
	int ret;

	snprintf(name, sizeof(name), "gpus[%d]", index);
	if (!config_setting_is_group(c))
		return fail(r, c, name, "must be a group { gpu = ...; ports = [ ... ]; }, not %s", type_name(c));
	e = calloc(1, sizeof(*e));
	if (!e)
		goto no_memory;
	ret = read_entry(r, c, index, e);
	for (int k = 0; !ret && k < (e->ngpus ? e->ngpus : 1); k++) {
		g = dp_group_new(r->cfg);
		if (!g)
			goto no_memory;
		fill_group(g, e, k);
	}
	free(e);
	return ret;

no_memory:
	free(e);
	snprintf(r->err, r->errlen, "%s: out of memory", r->path);
	return -ENOMEM;
}

static int read_gpus(const struct reader *r, const config_setting_t *c)
{
	int ret = 0;

	if (!config_setting_is_list(c))
		return fail(r, c, "gpus", "must be a list ( { gpu = 0; ports = [ ... ]; }, ... ), not %s",
			    type_name(c));
	for (int i = 0; i < config_setting_length(c) && !ret; i++)
		ret = read_group(r, config_setting_get_elem(c, (unsigned)i), i);
	return ret;
}

static bool is_section(const char *name)
{
	for (int i = 0; i < DP_SET_COUNT; i++)
		if (*dp_settings[i].section && !strcmp(dp_settings[i].section, name))
			return true;
	return false;
}

/* Says where a key belongs, or what there is where it stands. */
static int fail_unknown(const struct reader *r, const config_setting_t *c, const char *section, const char *key,
			const char *name)
{
	char known[512] = "";

	if (!*section && (!strcmp(key, "gpu") || !strcmp(key, "ports")))
		return fail(r, c, name, "belongs in an entry of gpus");
	for (int i = 0; i < DP_SET_COUNT; i++) {
		const struct dp_setting *s = &dp_settings[i];
		size_t at = strlen(known);

		if (!s->key)
			continue;
		if (!strcmp(s->key, key) && *s->section)
			return fail(r, c, name, "belongs in %s = { ... }", s->section);
		if (!strcmp(s->key, key))
			return fail(r, c, name, "belongs at the top level of the file");
		if (!strcmp(s->section, section))
			snprintf(known + at, sizeof(known) - at, "%s%s", at ? ", " : "", s->key);
	}
	if (!*section && config_setting_is_group(c))
		return fail(r, c, name, "unknown section; there are stripe, peer and nvshmem");
	return fail(r, c, name, "unknown key; %s has %s", *section ? section : "the top level", known);
}

static int read_key(const struct reader *r, const char *section, const config_setting_t *c)
{
	const char *key = config_setting_name(c);
	char name[320];
	int ret;

	snprintf(name, sizeof(name), "%s%s%.255s", section, *section ? "." : "", key);
	for (int i = 0; i < DP_SET_COUNT; i++) {
		const struct dp_setting *s = &dp_settings[i];

		if (!s->key || strcmp(s->section, section) || strcmp(s->key, key))
			continue;
		ret = s->type == DP_T_PORTS ? read_gpus(r, c) : read_scalar(r, s, c, name);
		return ret ? ret : note_place(r, c, (enum dp_setting_id)i);
	}
	return fail_unknown(r, c, section, key, name);
}

static int read_root(const struct reader *r, const config_setting_t *root)
{
	int ret = 0;

	for (int i = 0; i < config_setting_length(root) && !ret; i++) {
		const config_setting_t *c = config_setting_get_elem(root, (unsigned)i);
		const char *name = config_setting_name(c);

		if (!is_section(name)) {
			ret = read_key(r, "", c);
			continue;
		}
		if (!config_setting_is_group(c))
			return fail(r, c, name, "must be a section %s = { ... }, not %s", name, type_name(c));
		for (int j = 0; j < config_setting_length(c) && !ret; j++)
			ret = read_key(r, name, config_setting_get_elem(c, (unsigned)j));
	}
	return ret;
}

int dp_config_file_read(struct dp_config *cfg, FILE *f, const char *path, struct dp_places *places, char *err,
			size_t errlen)
{
	struct reader r = { .cfg = cfg, .path = path, .places = places, .err = err, .errlen = errlen };
	char *dir = strdup(path);
	config_t file;
	int ret;

	config_init(&file);
	if (!dir) {
		snprintf(err, errlen, "%s: out of memory", path);
		ret = -ENOMEM;
		goto out;
	}
	config_set_include_dir(&file, dirname(dir));
	if (config_read(&file, f)) {
		ret = read_root(&r, config_root_setting(&file));
	} else {
		const char *in = config_error_file(&file);

		snprintf(err, errlen, "%s:%d: %s", in ? in : path, config_error_line(&file), config_error_text(&file));
		ret = -EINVAL;
	}
out:
	config_destroy(&file);
	free(dir);
	fclose(f);
	return ret;
}

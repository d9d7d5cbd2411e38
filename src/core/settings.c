// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "peer_rules.h"
#include "ports.h"
#include "settings.h"

const struct dp_setting dp_settings[DP_SET_COUNT] = {
#define DP_SETTING_ROW(id, section_, key_, env_, type_, member, min_, max_, def_, choices_, help_)                     \
	[DP_SET_##id] = { .section = section_,                                                                         \
			  .key = key_,                                                                                 \
			  .env = env_,                                                                                 \
			  .type = type_,                                                                               \
			  .offset = offsetof(struct dp_config, member),                                                \
			  .min = min_,                                                                                 \
			  .max = max_,                                                                                 \
			  .def = def_,                                                                                 \
			  .choices = choices_,                                                                         \
			  .help = help_ },
	DP_SETTINGS(DP_SETTING_ROW)
#undef DP_SETTING_ROW
};

/* Every member behind DP_T_TEXT and DP_T_CHOICE has the size that the code below assumes. */
_Static_assert(sizeof(((struct dp_config *)0)->diag_json) == DP_TEXT_LEN, "diag_json");
_Static_assert(sizeof(((struct dp_config *)0)->peer_bind) == DP_TEXT_LEN, "peer_bind");
_Static_assert(sizeof(((struct dp_config *)0)->peer_ordering) == DP_TEXT_LEN, "peer_ordering");
_Static_assert(sizeof(((struct dp_config *)0)->peer_secret) == DP_TEXT_LEN, "peer_secret");
_Static_assert(sizeof(enum dp_ordering) == sizeof(int), "ordering");
_Static_assert(sizeof(enum dp_nvshmem_devices) == sizeof(int), "nvshmem_devices");

struct unit {
	const char *name;
	uint64_t factor;
};
/* The first of each factor is what dp_setting_format() writes; largest first. */
static const struct unit size_units[] = {
	{ "g", 1 << 30 }, { "gib", 1 << 30 }, { "m", 1 << 20 }, { "mib", 1 << 20 },
	{ "k", 1 << 10 }, { "kib", 1 << 10 }, { "", 1 },	{ NULL, 0 },
};
static const struct unit time_units[] = {
	{ "min", 60 * DP_SEC }, { "s", DP_SEC }, { "", DP_SEC }, { "ms", 1000000 },
	{ "us", 1000 },		{ "ns", 1 },	 { NULL, 0 },
};

static const struct unit *units_of(const struct dp_setting *s)
{
	return s->type == DP_T_TIME ? time_units : size_units;
}

static void format_units(const struct unit *units, uint64_t v, char *buf, size_t len)
{
	while (units->name && (!v || !*units->name || v % units->factor))
		units++;
	if (units->name)
		snprintf(buf, len, "%" PRIu64 "%s", v / units->factor, units->name);
	else
		snprintf(buf, len, "%" PRIu64, v); /* bytes, or 0 of anything */
}

static void format_value(const struct dp_setting *s, uint64_t v, char *buf, size_t len)
{
	if (s->type == DP_T_SIZE || s->type == DP_T_TIME)
		format_units(units_of(s), v, buf, len);
	else
		snprintf(buf, len, "%" PRIu64, v);
}

static int check_range(const struct dp_setting *s, uint64_t v, const char *text, char *why, size_t len)
{
	char bound[32];

	if (v < s->min || v > s->max) {
		format_value(s, v < s->min ? s->min : s->max, bound, sizeof(bound));
		snprintf(why, len, "\"%s\" is %s than %s", text, v < s->min ? "less" : "more", bound);
		return -EINVAL;
	}
	return 0;
}

/* Digits, then perhaps a unit; units NULL: none. */
static int parse_number(const struct unit *units, const char *what, const char *text, uint64_t *v, char *why,
			size_t len)
{
	uint64_t factor = 1;
	char *end;

	if (*text == '-' && isdigit((unsigned char)text[1])) {
		snprintf(why, len, "\"%s\" is negative", text);
		return -EINVAL;
	}
	if (!isdigit((unsigned char)*text)) {
		snprintf(why, len, "\"%s\" is not %s", text, what);
		return -EINVAL;
	}
	errno = 0;
	*v = strtoull(text, &end, 10);
	if (units) {
		while (units->name && strcasecmp(units->name, end))
			units++;
		if (!units->name && (*end == '.' || *end == ',')) {
			snprintf(why, len, "\"%s\": only whole numbers, take a smaller unit", text);
			return -EINVAL;
		}
		if (!units->name) {
			snprintf(why, len, "\"%s\": \"%s\" is no unit of %s", text, end, what);
			return -EINVAL;
		}
		factor = units->factor;
	} else if (*end) {
		snprintf(why, len, "\"%s\" is not %s", text, what);
		return -EINVAL;
	}
	if (errno || *v > UINT64_MAX / factor) {
		snprintf(why, len, "\"%s\" is too large", text);
		return -EINVAL;
	}
	*v *= factor;
	return 0;
}

static int parse_bool(const char *text, bool *v, char *why, size_t len)
{
	static const char *const words[] = { "0", "1", "false", "true", "no", "yes", "off", "on" };

	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		if (!strcasecmp(text, words[i])) {
			*v = i & 1;
			return 0;
		}
	snprintf(why, len, "\"%s\" is neither true nor false", text);
	return -EINVAL;
}

static int parse_choice(const struct dp_setting *s, const char *text, int *v, char *why, size_t len)
{
	const char *c = s->choices;

	for (int i = 0; c; i++) {
		size_t n = strcspn(c, "|");

		if (strlen(text) == n && !strncasecmp(text, c, n)) {
			*v = i;
			return 0;
		}
		c = c[n] ? c + n + 1 : NULL;
	}
	snprintf(why, len, "\"%s\" is none of ", text);
	for (c = s->choices; *c; c++) {
		size_t n = strlen(why);

		if (n + 3 < len)
			strcpy(why + n, *c == '|' ? ", " : (const char[]){ *c, '\0' });
	}
	return -EINVAL;
}

static int parse_weights(const struct dp_setting *s, struct dp_config *cfg, const char *text, char *why, size_t len)
{
	uint64_t v;
	int n = 0;

	cfg->nweights = 0;
	memset(cfg->weight, 0, sizeof(cfg->weight));
	if (!strcasecmp(text, "equal") || !strcasecmp(text, "rate")) {
		cfg->weights = !strcasecmp(text, "equal") ? DP_WEIGHTS_EQUAL : DP_WEIGHTS_RATE;
		return 0;
	}
	if (*text == '-' && isdigit((unsigned char)text[1])) {
		snprintf(why, len, "\"%s\" is negative", text);
		return -EINVAL;
	}
	if (!isdigit((unsigned char)*text)) {
		snprintf(why, len, "\"%s\" is none of equal, rate, or a list of numbers", text);
		return -EINVAL;
	}
	for (const char *t = text; t;) {
		size_t k = strcspn(t, ",");
		char one[24];
		int ret;

		if (k >= sizeof(one) || n == DP_MAX_RAILS) {
			snprintf(why, len, "\"%s\": more than %d weights, or one that is too long", text, DP_MAX_RAILS);
			return -EINVAL;
		}
		memcpy(one, t, k);
		one[k] = '\0';
		ret = parse_number(NULL, "a weight", one + strspn(one, " "), &v, why, len);
		if (ret)
			return ret;
		if (v < s->min || v > s->max) {
			snprintf(why, len,
				 "weight %s is not in 1..65535 (a port that is to get nothing does not "
				 "belong in the group)",
				 one);
			return -EINVAL;
		}
		cfg->weight[n++] = (uint32_t)v;
		t = t[k] ? t + k + 1 : NULL;
	}
	if (n < 2) {
		snprintf(why, len, "one weight only: there is one for each port of a group");
		return -EINVAL;
	}
	cfg->weights = DP_WEIGHTS_FIXED;
	cfg->nweights = n;
	return 0;
}

static int check_addresses(const char *text, char *why, size_t len)
{
	for (const char *t = text; *text && t;) {
		size_t n = strcspn(t, ","), host;
		char one[64], addr[16];

		host = strcspn(t, ",%"); /* what follows % is an interface */
		if (n < sizeof(one)) {
			memcpy(one, t, host);
			one[host] = '\0';
		}
		if (n >= sizeof(one) ||
		    (!inet_pton(AF_INET6, one, addr) && !(host == n && inet_pton(AF_INET, one, addr)))) {
			snprintf(why, len, "\"%.*s\" is not an IP address", (int)n, t);
			return -EINVAL;
		}
		t = t[n] ? t + n + 1 : NULL;
	}
	return 0;
}

static int check_pattern(const char *text, char *why, size_t len)
{
	for (const char *t = text; (t = strchr(t, '%')); t += 2)
		if (t[1] != 'p' && t[1] != '%') {
			snprintf(why, len, "\"%s\": %% is followed by neither p nor %%", text);
			return -EINVAL;
		}
	return 0;
}

static int parse_text(const struct dp_setting *s, char *dst, const char *text, char *why, size_t len)
{
	int ret = 0;

	if (strlen(text) > s->max) {
		snprintf(why, len, "longer than %d characters", (int)s->max);
		return -EINVAL;
	}
	if (s == &dp_settings[DP_SET_PEER_BIND])
		ret = check_addresses(text, why, len);
	else if (s == &dp_settings[DP_SET_PEER_ORDERING])
		ret = dp_peer_rules_check(text, why, len);
	else if (s == &dp_settings[DP_SET_DIAG_JSON])
		ret = check_pattern(text, why, len);
	if (!ret)
		strcpy(dst, text);
	return ret;
}

static int parse_gpu(struct dp_config *cfg, const char *text, char *why, size_t len)
{
	if (!*text || !strcasecmp(text, "none")) {
		cfg->gpu = -1;
		cfg->gpu_name[0] = '\0';
		return 0;
	}
	return dp_gpu_parse(text, &cfg->gpu, cfg->gpu_name, sizeof(cfg->gpu_name), why, len);
}

int dp_setting_parse(const struct dp_setting *s, struct dp_config *cfg, const char *text, char *why, size_t len)
{
	char *member = (char *)cfg + s->offset;
	uint64_t v = 0;
	int ret = 0;

	if (!*text && s->def)
		text = s->def;
	switch (s->type) {
	case DP_T_BOOL:
		return parse_bool(text, (bool *)member, why, len);
	case DP_T_CHOICE:
		return parse_choice(s, text, (int *)member, why, len);
	case DP_T_TEXT:
		return parse_text(s, member, text, why, len);
	case DP_T_WEIGHTS:
		return parse_weights(s, cfg, text, why, len);
	case DP_T_PORTS:
		return dp_groups_parse(cfg, text, why, len);
	case DP_T_GPU:
		return parse_gpu(cfg, text, why, len);
	case DP_T_FILE:
		return 0;
	case DP_T_SIZE:
	case DP_T_TIME:
		if (*text)
			ret = parse_number(units_of(s),
					   s->type == DP_T_SIZE ? "a size (as 4096, 8k, 1m)"
								: "a time (as 2s, 500ms, 10us)",
					   text, &v, why, len);
		if (!ret && *text)
			ret = check_range(s, v, text, why, len);
		if (!ret)
			*(uint64_t *)member = v;
		break;
	case DP_T_INT:
		ret = parse_number(NULL, "a number", text, &v, why, len);
		if (!ret)
			ret = check_range(s, v, text, why, len);
		if (!ret)
			*(int *)member = (int)v;
		break;
	}
	if (!ret && s == &dp_settings[DP_SET_ALIGN] && (v & (v - 1))) {
		snprintf(why, len, "\"%s\" is not a power of two", text);
		ret = -EINVAL;
	}
	return ret;
}

static void format_list(const uint32_t *v, int n, char *buf, size_t len)
{
	size_t at = 0;

	*buf = '\0';
	for (int i = 0; i < n && at < len; i++)
		at += (size_t)snprintf(buf + at, len - at, "%s%" PRIu32, i ? "," : "", v[i]);
}

static void format_groups(const struct dp_config *cfg, char *buf, size_t len)
{
	size_t at = 0;

	*buf = '\0';
	for (int i = 0; i < cfg->ngroups; i++)
		for (int j = 0; j < cfg->groups[i].nports && at < len; j++) {
			const struct dp_port_name *p = &cfg->groups[i].ports[j];

			at += (size_t)snprintf(buf + at, len - at, "%s%s:%d", j ? "," : i ? ";" : "", p->dev, p->port);
			if (p->gid_index >= 0 && at < len)
				at += (size_t)snprintf(buf + at, len - at, ":%d", p->gid_index);
			if (p->lag && at < len)
				at += (size_t)snprintf(buf + at, len - at, "%s:%d", p->gid_index < 0 ? ":" : "", p->lag);
		}
}

void dp_setting_format(const struct dp_setting *s, const struct dp_config *cfg, char *buf, size_t len)
{
	const char *member = (const char *)cfg + s->offset, *c;

	switch (s->type) {
	case DP_T_BOOL:
		snprintf(buf, len, "%s", *(const bool *)member ? "true" : "false");
		break;
	case DP_T_SIZE:
	case DP_T_TIME:
		format_value(s, *(const uint64_t *)member, buf, len);
		break;
	case DP_T_INT:
		format_value(s, (uint64_t)*(const int *)member, buf, len);
		break;
	case DP_T_CHOICE:
		c = s->choices;
		for (int i = *(const int *)member; i > 0 && c; i--)
			c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL;
		snprintf(buf, len, "%.*s", c ? (int)strcspn(c, "|") : 0, c ? c : "");
		break;
	case DP_T_TEXT:
		snprintf(buf, len, "%s", member);
		break;
	case DP_T_WEIGHTS:
		if (cfg->weights == DP_WEIGHTS_FIXED)
			format_list(cfg->weight, cfg->nweights, buf, len);
		else
			snprintf(buf, len, "%s", cfg->weights == DP_WEIGHTS_RATE ? "rate" : "equal");
		break;
	case DP_T_PORTS:
		format_groups(cfg, buf, len);
		break;
	case DP_T_GPU:
		if (cfg->gpu_name[0])
			snprintf(buf, len, "%s", cfg->gpu_name);
		else if (cfg->gpu >= 0)
			snprintf(buf, len, "%d", cfg->gpu);
		else
			snprintf(buf, len, "none");
		break;
	case DP_T_FILE:
		snprintf(buf, len, "%s", cfg->source ? cfg->source : "");
		break;
	}
}

const char *dp_setting_name(const struct dp_setting *s, char *buf, size_t len)
{
	if (s->key)
		snprintf(buf, len, "%s%s%s", s->section, *s->section ? "." : "", s->key);
	else
		snprintf(buf, len, "%s", s->env);
	return buf;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>
#include "config_file.h"
#include "gpu.h"
#include "log.h"
#include "ports.h"
#include "settings.h"

#define CONF_NAME "dualport.conf"
#define ENV_PREFIX "DUALPORT_"

extern char **environ;

struct dp_config dp_cfg;

struct loader {
	struct dp_config *cfg;
	struct dp_places places;
	char *err;
	size_t errlen;
};

static int fail(const struct loader *l, const char *where, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static int fail(const struct loader *l, const char *where, const char *fmt, ...)
{
	int n = snprintf(l->err, l->errlen, "%s: ", where);
	va_list ap;

	if (n >= 0 && (size_t)n < l->errlen) {
		va_start(ap, fmt);
		vsnprintf(l->err + n, l->errlen - (size_t)n, fmt, ap);
		va_end(ap);
	}
	return -EINVAL;
}

static int set_defaults(const struct loader *l)
{
	char why[256];

	for (int i = 0; i < DP_SET_COUNT; i++) {
		int ret = dp_setting_parse(&dp_settings[i], l->cfg, "", why, sizeof(why));

		if (ret) {
			fail(l, dp_settings[i].env, "%s", why);
			return ret;
		}
	}
	return 0;
}

/* A program may be started in a directory of somebody else's, and a file can name files to write. */
static bool trusted(FILE *f)
{
	struct stat st;

	return !fstat(fileno(f), &st) && (st.st_uid == geteuid() || !st.st_uid) && !(st.st_mode & S_IWOTH);
}

/* Opens path for reading, or returns NULL and errno; *empty: there is nothing to read in it. */
static FILE *open_file(const char *path, bool *empty)
{
	struct stat st;
	FILE *f;
	int fd;

	*empty = false;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang the program */
	if (fd < 0)
		return NULL;
	if (fstat(fd, &st))
		goto err;
	*empty = S_ISCHR(st.st_mode) && !strcmp(path, "/dev/null");
	if (!S_ISREG(st.st_mode) && !*empty) {
		errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
		goto err;
	}
	f = fdopen(fd, "re");
	if (f)
		return f;
err:
	close(fd);
	return NULL;
}

/* must: the user named this file. 1: read, 0: not there, or negative errno. */
static int try_file(struct loader *l, const char *path, bool must)
{
	struct stat st;
	bool empty;
	FILE *f = open_file(path, &empty);
	int ret;

	if (!f) {
		ret = -errno;
		/* A directory that may not be searched (somebody else's HOME in a container) holds no file for us. */
		if (!must && (ret == -ENOENT || ret == -ENOTDIR || (ret == -EACCES && stat(path, &st))))
			return 0;
		fail(l, path, "%s", ret == -EINVAL ? "not a regular file" : strerror(-ret));
		return ret;
	}
	if (!must && path[0] == '.' && !trusted(f)) {
		fclose(f);
		fail(l, path, "belongs to another user, or anybody may write it; if it is meant, name it in DUALPORT_CONF");
		return -EPERM;
	}
	l->cfg->source = strdup(path);
	if (!l->cfg->source) {
		fclose(f);
		fail(l, path, "out of memory");
		return -ENOMEM;
	}
	if (empty) {
		fclose(f);
		return 1;
	}
	ret = dp_config_file_read(l->cfg, f, path, &l->places, l->err, l->errlen);
	return ret ? ret : 1;
}

static int read_usual_places(struct loader *l, bool secure)
{
	const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
	char path[4096];
	int ret = 0;

	if (secure)
		goto etc;
	ret = try_file(l, "./" CONF_NAME, false);
	if (ret)
		return ret;
	path[0] = '\0';
	if (xdg && *xdg == '/')
		snprintf(path, sizeof(path), "%s/" CONF_NAME, xdg);
	else if (home && *home == '/')
		snprintf(path, sizeof(path), "%s/.config/" CONF_NAME, home);
	if (path[0] && strlen(path) < sizeof(path) - 1)
		ret = try_file(l, path, false);
	if (ret)
		return ret;
etc:
	return try_file(l, "/etc/" CONF_NAME, false);
}

static const struct dp_setting *setting_of_env(const char *name, size_t len)
{
	for (int i = 0; i < DP_SET_COUNT; i++)
		if (strlen(dp_settings[i].env) == len && !memcmp(dp_settings[i].env, name, len))
			return &dp_settings[i];
	return NULL;
}

/* DUALPORT_TEST_* and DUALPORT_LAB* are for the project's own tests. */
static bool env_reserved(const char *name)
{
	return !strncmp(name, ENV_PREFIX "TEST_", 14) || !strncmp(name, ENV_PREFIX "LAB", 12);
}

static int read_environment(struct loader *l)
{
	char name[128], why[512];

	for (char **e = environ; e && *e; e++) {
		const char *eq = strchr(*e, '=');
		const struct dp_setting *s;
		int ret;

		if (!eq || strncmp(*e, ENV_PREFIX, strlen(ENV_PREFIX)) || env_reserved(*e))
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)(eq - *e), *e);
		s = setting_of_env(*e, (size_t)(eq - *e));
		if (!s) {
			/* not an error as in the file: the environment is not ours alone, a site may have DUALPORT_HOME */
			dp_warn("%s: no such setting; ignored", name);
			continue;
		}
		ret = dp_setting_parse(s, l->cfg, eq + 1, why, sizeof(why));
		if (!ret)
			ret = dp_place_set(&l->places, (enum dp_setting_id)(s - dp_settings), name);
		if (ret == -ENOMEM)
			snprintf(why, sizeof(why), "out of memory");
		if (ret) {
			fail(l, name, "%s", why);
			return ret;
		}
		l->cfg->in_env |= UINT64_C(1) << (s - dp_settings);
	}
	return 0;
}

/* The GPU of a process that does not name it: job launchers count the processes of a host. */
static void guess_gpu(struct dp_config *cfg)
{
	static const char *const ranks[] = { "LOCAL_RANK",	   "OMPI_COMM_WORLD_LOCAL_RANK",
					     "MPI_LOCALRANKID",	   "MV2_COMM_WORLD_LOCAL_RANK",
					     "SLURM_LOCALID",	   "PMI_LOCAL_RANK",
					     "PALS_LOCAL_RANKID",  "JSM_NAMESPACE_LOCAL_RANK",
					     "FLUX_TASK_LOCAL_ID", "PMIX_LOCAL_RANK" };

	for (size_t i = 0; i < sizeof(ranks) / sizeof(*ranks); i++) {
		const char *v = getenv(ranks[i]);

		if (v && *v && strlen(v) <= 5 && strspn(v, "0123456789") == strlen(v)) {
			/* the rank counts what CUDA shows the process; groups are for the host's GPUs */
			if (!dp_gpu_visible(getenv("CUDA_VISIBLE_DEVICES"), atoi(v), &cfg->gpu, cfg->gpu_name,
					    sizeof(cfg->gpu_name)))
				cfg->gpu_from = ranks[i];
			return;
		}
	}
}

/* Of two settings that contradict each other, the place of the one more likely meant: environment before file. */
static const char *place_of(const struct loader *l, enum dp_setting_id a, enum dp_setting_id b, char *buf, size_t len)
{
	enum dp_setting_id id = a;
	char name[64];

	if (!(l->cfg->in_env & UINT64_C(1) << a) && (l->cfg->in_env & UINT64_C(1) << b))
		id = b;
	else if (!l->places.of[a])
		id = b;
	if (l->cfg->in_env & UINT64_C(1) << id || !l->places.of[id])
		snprintf(buf, len, "%s", dp_settings[id].env);
	else
		snprintf(buf, len, "%s: %s", l->places.of[id], dp_setting_name(&dp_settings[id], name, sizeof(name)));
	return buf;
}

static int check_together(const struct loader *l)
{
	const struct dp_config *cfg = l->cfg;
	char where[1024], a[32], b[32];

	dp_setting_format(&dp_settings[DP_SET_SPLIT_MIN], cfg, a, sizeof(a));
	if (cfg->split_min < cfg->align) {
		dp_setting_format(&dp_settings[DP_SET_ALIGN], cfg, b, sizeof(b));
		return fail(l, place_of(l, DP_SET_SPLIT_MIN, DP_SET_ALIGN, where, sizeof(where)),
			    "split_min (%s) is less than align (%s): nothing as short as that can be cut", a, b);
	}
	if (cfg->spread_min > cfg->split_min) {
		dp_setting_format(&dp_settings[DP_SET_SPREAD_MIN], cfg, b, sizeof(b));
		return fail(l, place_of(l, DP_SET_SPREAD_MIN, DP_SET_SPLIT_MIN, where, sizeof(where)),
			    "spread_min (%s) is more than split_min (%s)", b, a);
	}
	if (cfg->peer_port + cfg->peer_ports - 1 > 65535)
		return fail(l, place_of(l, DP_SET_PEER_PORT, DP_SET_PEER_PORTS, where, sizeof(where)),
			    "%d ports from %d on go beyond 65535", cfg->peer_ports, cfg->peer_port);
	if (cfg->rotated && cfg->weights == DP_WEIGHTS_FIXED)
		return fail(l, place_of(l, DP_SET_WEIGHTS, DP_SET_GPUS, where, sizeof(where)),
			    "weights by place, and gpus with rotate, which changes the places");
	for (int i = 0; i < cfg->ngroups && cfg->weights == DP_WEIGHTS_FIXED; i++)
		if (cfg->groups[i].nports != cfg->nweights)
			return fail(l, place_of(l, DP_SET_WEIGHTS, DP_SET_GPUS, where, sizeof(where)),
				    "%d weights, but the group of %s:%d has %d ports", cfg->nweights,
				    cfg->groups[i].ports[0].dev, cfg->groups[i].ports[0].port, cfg->groups[i].nports);
	return 0;
}

int dp_config_load(struct dp_config *cfg, const char *path, char *err, size_t errlen)
{
	struct loader l = { .cfg = cfg, .err = err, .errlen = errlen };
	/* A program that runs with more rights than its caller takes nothing from that caller. */
	bool secure = getauxval(AT_SECURE);
	const char *named = secure ? NULL : getenv("DUALPORT_CONF");
	int ret;

	memset(cfg, 0, sizeof(*cfg));
	if (errlen)
		err[0] = '\0';
	ret = set_defaults(&l);
	if (ret)
		goto out;
	if (path)
		ret = try_file(&l, path, true);
	else if (named && *named)
		ret = try_file(&l, named, true);
	else
		ret = read_usual_places(&l, secure);
	if (ret < 0)
		goto out;
	ret = secure ? 0 : read_environment(&l);
	if (ret)
		goto out;

	if (cfg->in_env & UINT64_C(1) << DP_SET_GPU && (cfg->gpu >= 0 || cfg->gpu_name[0]))
		cfg->gpu_from = "DUALPORT_GPU";
	else if (!(cfg->in_env & UINT64_C(1) << DP_SET_GPU))
		guess_gpu(cfg);
	if (!cfg->spread_min)
		cfg->spread_min = cfg->split_min;
	ret = check_together(&l);
out:
	dp_places_free(&l.places);
	if (ret)
		dp_config_free(cfg);
	return ret;
}

void dp_config_free(struct dp_config *cfg)
{
	dp_groups_clear(cfg);
	free((char *)cfg->source);
	memset(cfg, 0, sizeof(*cfg));
	cfg->gpu = -1;
}

static void print_groups(const struct dp_config *cfg, FILE *f)
{
	for (int i = 0; i < cfg->ngroups; i++) {
		const struct dp_port_group *g = &cfg->groups[i];

		if (g->gpu_name[0])
			fprintf(f, "# group of gpu %s:", g->gpu_name);
		else if (g->gpu >= 0)
			fprintf(f, "# group of gpu %d:", g->gpu);
		else
			fprintf(f, "# group of any gpu:");
		for (int j = 0; j < g->nports; j++) {
			fprintf(f, " %s:%d", g->ports[j].dev, g->ports[j].port);
			if (g->ports[j].gid_index >= 0)
				fprintf(f, ":%d", g->ports[j].gid_index);
			if (g->ports[j].lag)
				fprintf(f, "%s:%d", g->ports[j].gid_index < 0 ? ":" : "", g->ports[j].lag);
		}
		fputc('\n', f);
	}
}

void dp_config_print(const struct dp_config *cfg, FILE *f)
{
	char name[64], value[4096];

	fprintf(f, "# file: %s\n", cfg->source ? cfg->source : "none");
	fprintf(f, "%-20s %-24s %-12s %s\n", "# setting", "value", "default", "from");
	for (int i = 0; i < DP_SET_COUNT; i++) {
		const struct dp_setting *s = &dp_settings[i];
		const char *from = "default", *def = s->def ? s->def : "split_min";

		if (s->type == DP_T_FILE)
			continue;
		dp_setting_format(s, cfg, value, sizeof(value));
		if (cfg->in_env & UINT64_C(1) << i)
			from = s->env;
		else if (cfg->in_file & UINT64_C(1) << i)
			from = cfg->source;
		else if (i == DP_SET_GPU && cfg->gpu_from)
			from = cfg->gpu_from;
		else if (i == DP_SET_GPUS && cfg->ngroups)
			from = "card";
		fprintf(f, "%-20s %-24s %-12s %s\n", dp_setting_name(s, name, sizeof(name)), *value ? value : "-",
			*def ? def : "-", from);
	}
	print_groups(cfg, f);
}

enum fit { FIT_NO, FIT_MAYBE, FIT_YES };

/* Names of different kinds can be compared only if the host or the driver told both. */
static enum fit gpu_fits(const struct dp_gpu *gpu, const struct dp_port_group *g)
{
	char pci[24];

	if ((g->gpu < 0 && !g->gpu_name[0]) || !dp_gpu_known(gpu))
		return FIT_YES;
	if (!g->gpu_name[0])
		return gpu->index < 0 ? FIT_MAYBE : g->gpu == gpu->index ? FIT_YES : FIT_NO;
	if (dp_pci_canonical(g->gpu_name, pci))
		return !gpu->pci[0] ? FIT_MAYBE : !strcmp(pci, gpu->pci) ? FIT_YES : FIT_NO;
	if (dp_uuid_fits(g->gpu_name, gpu->uuid) || dp_uuid_fits(g->gpu_name, gpu->mig))
		return FIT_YES;
	if (!strncasecmp(g->gpu_name, "MIG-", 4))
		return gpu->mig[0] || gpu->uuid[0] ? FIT_NO : FIT_MAYBE;
	return gpu->uuid[0] ? FIT_NO : FIT_MAYBE;
}

static bool has_port(const struct dp_port_group *g, const char *dev, int port)
{
	for (int i = 0; i < g->nports; i++)
		if (g->ports[i].port == port && !strcmp(g->ports[i].dev, dev))
			return true;
	return false;
}

bool dp_config_has_port(const struct dp_config *cfg, const char *dev, int port)
{
	for (int i = 0; i < cfg->ngroups; i++)
		if (has_port(&cfg->groups[i], dev, port))
			return true;
	return false;
}

const struct dp_port_group *dp_config_group_named(const struct dp_config *cfg, const struct dp_gpu *gpu)
{
	for (int i = 0; dp_gpu_known(gpu) && i < cfg->ngroups; i++) {
		const struct dp_port_group *g = &cfg->groups[i];

		if ((g->gpu >= 0 || g->gpu_name[0]) && gpu_fits(gpu, g) == FIT_YES)
			return g;
	}
	return NULL;
}

const struct dp_port_group *dp_config_group(const struct dp_config *cfg, const struct dp_gpu *gpu, const char *dev,
					    int port, const char **why)
{
	const struct dp_port_group *maybe = NULL, *other = NULL;
	bool gpu_listed = false;

	for (int i = 0; i < cfg->ngroups; i++) {
		const struct dp_port_group *g = &cfg->groups[i];
		enum fit fit = gpu_fits(gpu, g);

		gpu_listed |= fit == FIT_YES && (g->gpu >= 0 || g->gpu_name[0]);
		if (!has_port(g, dev, port))
			continue;
		if (fit == FIT_YES)
			return g;
		if (fit == FIT_MAYBE && !maybe)
			maybe = g;
		if (!other)
			other = g;
	}
	if (!cfg->ngroups)
		*why = "there is no port group";
	else if (!other)
		*why = "the port is in no port group";
	else if (gpu_listed)
		*why = "the port is in the group of another gpu than this process's";
	else if (maybe)
		return maybe;
	else if (gpu->guessed)
		return other; /* the rank of a process need not be the number of a GPU */
	else
		*why = "the gpu of this process is in no port group";
	return NULL;
}

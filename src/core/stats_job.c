// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The part of the JSON that a whole job's files are compared by (dualport report). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "config.h"
#include "lock.h"
#include "settings.h"
#include "stats.h"

/* QPs to one peer that stay on one port for one reason. */
struct unbonded {
	char peer[80];
	enum dp_fallback reason;
	uint64_t qps;
	struct unbonded *next;
};

static struct unbonded *unbonded; /* with the lock; only ever grows */
static dp_lock unbonded_lock = PTHREAD_MUTEX_INITIALIZER;

void dp_stats_unbonded(const char *peer, enum dp_fallback reason)
{
	struct unbonded *u;

	dp_take(&unbonded_lock);
	for (u = unbonded; u; u = u->next)
		if (u->reason == reason && !strcmp(u->peer, peer))
			break;
	if (!u) {
		u = calloc(1, sizeof(*u));
		if (!u)
			goto out;
		snprintf(u->peer, sizeof(u->peer), "%s", peer);
		u->reason = reason;
		u->next = unbonded;
		unbonded = u;
	}
	u->qps++;
out:
	dp_drop(&unbonded_lock);
}

void dp_stats_job_after_fork(void)
{
	dp_lock_init(&unbonded_lock);
	for (struct unbonded *u = unbonded; u; u = u->next)
		u->qps = 0;
}

/* What may differ from process to process of a job, or says nothing about what it does. */
static bool of_one_process(int id)
{
	switch (id) {
	case DP_SET_CONF:
	case DP_SET_GPUS:
	case DP_SET_GPU:
	case DP_SET_PEER_BIND:
	case DP_SET_PEER_SECRET:
	case DP_SET_DIAG:
	case DP_SET_DIAG_JSON:
	case DP_SET_DEBUG:
		return true;
	}
	return false;
}

void dp_stats_job_json(FILE *f)
{
	char host[256] = "", name[64], value[1024];
	bool first = true;

	gethostname(host, sizeof(host) - 1);
	fputs(",\"version\":", f);
	dp_json_string(f, PACKAGE_VERSION);
	fputs(",\"host\":", f);
	dp_json_string(f, host);
	fputs(",\"settings\":{", f);
	for (int i = 0; i < DP_SET_COUNT; i++) {
		if (of_one_process(i))
			continue;
		dp_setting_format(&dp_settings[i], &dp_cfg, value, sizeof(value));
		fputs(first ? "" : ",", f);
		dp_json_string(f, dp_setting_name(&dp_settings[i], name, sizeof(name)));
		fputc(':', f);
		dp_json_string(f, value);
		first = false;
	}
	fputs("},\"unbonded\":[", f);
	first = true;
	dp_take(&unbonded_lock);
	for (struct unbonded *u = unbonded; u; u = u->next) {
		if (!u->qps)
			continue;
		fprintf(f, "%s{\"peer\":", first ? "" : ",");
		dp_json_string(f, u->peer);
		fprintf(f, ",\"reason\":\"%s\",\"qps\":%" PRIu64 "}", dp_fallback_str(u->reason), u->qps);
		first = false;
	}
	dp_drop(&unbonded_lock);
	fputc(']', f);
}

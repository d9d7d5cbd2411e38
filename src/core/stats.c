// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#define _GNU_SOURCE /* strverscmp */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "sigpipe.h"
#include "stats.h"

struct dp_counters dp_counters;

/* Flows are only ever added, at the head. A port known without a peer is a flow with peer "". */
static struct dp_flow *_Atomic flows;

static const char *const fallback_strs[DP_FB_COUNT] = {
#define DP_FALLBACK_STR(name, str) [DP_FB_##name] = str,
	DP_FALLBACKS(DP_FALLBACK_STR)
#undef DP_FALLBACK_STR
};

const char *dp_fallback_str(enum dp_fallback reason)
{
	return (unsigned)reason < DP_FB_COUNT ? fallback_strs[reason] : "unknown";
}

static const char *const wait_strs[DP_WAIT_CAUSES] = {
#define DP_WAIT_STR(name, str) [DP_WAIT_##name] = str,
	DP_WAIT_CAUSE_LIST(DP_WAIT_STR)
#undef DP_WAIT_STR
};

/* Two bits behind the leading one: a bucket is at most a quarter wide. */
static unsigned bucket_of(uint64_t ns)
{
	unsigned log;

	if (ns < 4)
		return (unsigned)ns;
	log = 63u - (unsigned)__builtin_clzll(ns);
	return 4 * log + (unsigned)(ns >> (log - 2) & 3);
}

/* The middle of a bucket. */
static uint64_t ns_of(unsigned bucket)
{
	unsigned log = bucket / 4;
	uint64_t width;

	if (log < 2)
		return bucket;
	width = UINT64_C(1) << (log - 2);
	return (4 + bucket % 4) * width + width / 2;
}

void dp_signal_waited(uint64_t ns, enum dp_wait_cause cause)
{
	dp_count(&dp_counters.signal_wait_ns, ns);
	dp_count(&dp_counters.signal_wait_hist[bucket_of(ns)], 1);
	dp_count(&dp_counters.wait_by[cause], 1);
}

static uint64_t load(const _Atomic uint64_t *c);

/* The time below which `percent` of the waits lie; 0: there were none. */
static uint64_t wait_percentile(const struct dp_counters *c, unsigned percent)
{
	uint64_t n = 0, below = 0;

	for (unsigned i = 0; i < DP_WAIT_BUCKETS; i++)
		n += load(&c->signal_wait_hist[i]);
	for (unsigned i = 0; n && i < DP_WAIT_BUCKETS; i++) {
		below += load(&c->signal_wait_hist[i]);
		if (below * 100 >= n * percent)
			return ns_of(i);
	}
	return 0;
}

static uint64_t load(const _Atomic uint64_t *c)
{
	return atomic_load_explicit((_Atomic uint64_t *)c, memory_order_relaxed);
}

static void copy_name(char *dst, size_t size, const char *src)
{
	size_t n = strlen(src);

	if (n >= size)
		n = size - 1;
	memcpy(dst, src, n);
	dst[n] = '\0';
}

struct dp_flow *dp_flow_get(const char *port, const char *peer)
{
	return dp_flow_between(port, "", peer, "");
}

struct dp_flow *dp_flow_between(const char *port, const char *from, const char *peer, const char *to)
{
	struct dp_flow *head = atomic_load_explicit(&flows, memory_order_acquire);
	struct dp_flow *seen = NULL, *flow = NULL;
	char key_port[sizeof(flow->port)], key_peer[sizeof(flow->peer)], key_from[sizeof(flow->from)];
	char key_to[sizeof(flow->to)];

	copy_name(key_port, sizeof(key_port), port);
	copy_name(key_peer, sizeof(key_peer), peer);
	copy_name(key_from, sizeof(key_from), from);
	copy_name(key_to, sizeof(key_to), to);
	for (;;) {
		for (struct dp_flow *f = head; f != seen; f = f->next)
			if (!strcmp(f->port, key_port) && !strcmp(f->peer, key_peer) && !strcmp(f->to, key_to) &&
			    !strcmp(f->from, key_from)) {
				free(flow);
				return f;
			}
		if (!flow)
			flow = calloc(1, sizeof(*flow));
		if (!flow)
			return NULL;
		strcpy(flow->port, key_port);
		strcpy(flow->peer, key_peer);
		strcpy(flow->from, key_from);
		strcpy(flow->to, key_to);
		dp_lock_init(&flow->lock);
		/*
		 * A head that changed means that others added flows in front of it, perhaps this one: look through
		 * those. Release: whoever finds the flow by the head also sees its names and its next.
		 */
		flow->next = head;
		seen = head;
		if (atomic_compare_exchange_strong_explicit(&flows, &head, flow, memory_order_release,
							    memory_order_acquire))
			return flow;
	}
}

void dp_stats_port(const char *port)
{
	dp_flow_get(port, "");
}

/* A flow as it was at one moment. */
struct row {
	struct dp_flow *flow;
	uint64_t bytes, msgs;
};

void dp_stats_after_fork(void)
{
	dp_stats_job_after_fork();
	memset(&dp_counters, 0, sizeof(dp_counters));
	for (struct dp_flow *f = atomic_load_explicit(&flows, memory_order_relaxed); f; f = f->next) {
		atomic_store_explicit(&f->bytes, 0, memory_order_relaxed);
		atomic_store_explicit(&f->msgs, 0, memory_order_relaxed);
		atomic_store_explicit(&f->read_bytes, 0, memory_order_relaxed);
		dp_lock_init(&f->lock);
		f->open = f->acked = f->busy_ns = 0;
	}
}

bool dp_stats_any(void)
{
	bool any = load(&dp_counters.bonds);

	for (int i = 0; i < DP_FB_COUNT; i++)
		any |= load(&dp_counters.fallback[i]) != 0;
	return any;
}

static int by_peer_port(const void *pa, const void *pb)
{
	const struct dp_flow *a = ((const struct row *)pa)->flow, *b = ((const struct row *)pb)->flow;
	int cmp = strverscmp(a->peer, b->peer);

	return cmp ? cmp : strverscmp(a->port, b->port);
}

static int by_port(const void *pa, const void *pb)
{
	return strverscmp(((const struct row *)pa)->flow->port, ((const struct row *)pb)->flow->port);
}

/* All flows; the caller frees *rows. 0 or -ENOMEM. */
static int take_rows(struct row **rows, size_t *n, int (*order)(const void *, const void *))
{
	struct dp_flow *head = atomic_load_explicit(&flows, memory_order_acquire);

	*n = 0;
	for (struct dp_flow *f = head; f; f = f->next)
		++*n;
	*rows = calloc(*n + 1, sizeof(**rows));
	if (!*rows)
		return -ENOMEM;
	*n = 0;
	for (struct dp_flow *f = head; f; f = f->next)
		(*rows)[(*n)++] = (struct row){ .flow = f, .bytes = load(&f->bytes), .msgs = load(&f->msgs) };
	qsort(*rows, *n, sizeof(**rows), order);
	return 0;
}

static bool port_has_peer(const struct row *rows, size_t n, const char *port)
{
	for (size_t i = 0; i < n; i++)
		if (rows[i].flow->peer[0] && !strcmp(rows[i].flow->port, port))
			return true;
	return false;
}

static uint64_t peer_bytes(const struct row *rows, size_t n, const char *peer)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < n; i++)
		if (!strcmp(rows[i].flow->peer, peer))
			sum += rows[i].bytes;
	return sum;
}

static void print_flows(FILE *f, const struct row *rows, size_t n)
{
	int wport = 4, wpeer = 4;

	for (size_t i = 0; i < n; i++) {
		int p = (int)strlen(rows[i].flow->port), q = (int)strlen(rows[i].flow->peer);

		wport = p > wport ? p : wport;
		wpeer = q > wpeer ? q : wpeer;
	}
	fprintf(f, "  %-*s  %-*s  %12s  %18s  %7s\n", wpeer, "peer", wport, "port", "messages", "bytes", "share");
	for (size_t i = 0; i < n; i++) {
		const struct dp_flow *flow = rows[i].flow;
		uint64_t sum = peer_bytes(rows, n, flow->peer);

		if (!flow->peer[0] && port_has_peer(rows, n, flow->port))
			continue;
		fprintf(f, "  %-*s  %-*s  %12" PRIu64 "  %18" PRIu64 "  ", wpeer, flow->peer[0] ? flow->peer : "-",
			wport, flow->port, rows[i].msgs, rows[i].bytes);
		if (sum)
			fprintf(f, "%6.1f%%\n", 100.0 * (double)rows[i].bytes / (double)sum);
		else
			fprintf(f, "%7s\n", "-");
	}
}

static void print_ns(FILE *f, double ns)
{
	if (ns >= 1e9)
		fprintf(f, "%.2f s", ns / 1e9);
	else if (ns >= 1e6)
		fprintf(f, "%.2f ms", ns / 1e6);
	else
		fprintf(f, "%.2f us", ns / 1e3);
}

void dp_stats_print(FILE *f)
{
	const struct dp_counters *c = &dp_counters;
	uint64_t waited = load(&c->signals_waited), wait_ns = load(&c->signal_wait_ns);
	struct dp_sigpipe sigpipe;
	struct row *rows;
	size_t n;
	bool any = false;

	dp_sigpipe_off(&sigpipe);
	fprintf(f, "dualport[%d]: traffic of bonded queue pairs\n", (int)getpid());
	if (take_rows(&rows, &n, by_peer_port)) {
		fprintf(f, "  (out of memory)\n");
	} else {
		print_flows(f, rows, n);
		free(rows);
	}
	fprintf(f, "  bonds           %12" PRIu64 "\n", load(&c->bonds));
	fprintf(f, "  splits          %12" PRIu64 "\n", load(&c->splits));
	fprintf(f, "  spreads         %12" PRIu64 "\n", load(&c->spreads));
	fprintf(f, "  signals         %12" PRIu64 "\n", load(&c->signals));
	fprintf(f, "  signals waited  %12" PRIu64, waited);
	if (waited) {
		fprintf(f, "  (");
		print_ns(f, (double)wait_ns / (double)waited);
		fprintf(f, " each on average, ");
		print_ns(f, (double)wait_ns);
		fprintf(f, " in all)\n  signal wait     median ");
		print_ns(f, (double)wait_percentile(c, 50));
		fprintf(f, ", 99%% ");
		print_ns(f, (double)wait_percentile(c, 99));
		fprintf(f, "; let go by");
		for (int i = 0; i < DP_WAIT_CAUSES; i++)
			fprintf(f, "%s %s %" PRIu64, i ? "," : "", wait_strs[i], load(&c->wait_by[i]));
	}
	fprintf(f, "\n  deferred        %12" PRIu64 "\n", load(&c->deferred));
	fprintf(f, "  full waits      %12" PRIu64 "\n", load(&c->full_waits));
	fprintf(f, "  held            %12" PRIu64 "\n", load(&c->held));
	fprintf(f, "  flushes         %12" PRIu64 "  (%" PRIu64 " waited for, %" PRIu64 " impossible; spares renewed %" PRIu64 ")\n",
		load(&c->flushes), load(&c->flush_waits), load(&c->flush_acks), load(&c->spares_renewed));
	fprintf(f, "  fall-backs to one port:");
	for (int i = 0; i < DP_FB_COUNT; i++) {
		uint64_t v = load(&c->fallback[i]);

		if (v)
			fprintf(f, "%s %s %" PRIu64, any ? "," : "", fallback_strs[i], v);
		any |= v != 0;
	}
	fprintf(f, "%s\n", any ? "" : " none");
	fflush(f);
	dp_sigpipe_back(&sigpipe);
}

void dp_json_string(FILE *f, const char *s)
{
	fputc('"', f);
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			fprintf(f, "\\%c", *s);
		else if ((unsigned char)*s < ' ' || (unsigned char)*s >= 0x7f)
			fprintf(f, "\\u%04x", (unsigned)(unsigned char)*s);
		else
			fputc(*s, f);
	}
	fputc('"', f);
}

static void json_ports(FILE *f, const struct row *rows, size_t n)
{
	bool first = true;

	for (size_t i = 0; i < n;) {
		uint64_t bytes = 0, msgs = 0;
		size_t j;

		for (j = i; j < n && !strcmp(rows[i].flow->port, rows[j].flow->port); j++) {
			bytes += rows[j].bytes;
			msgs += rows[j].msgs;
		}
		fprintf(f, "%s{\"port\":", first ? "" : ",");
		dp_json_string(f, rows[i].flow->port);
		fprintf(f, ",\"tx_bytes\":%" PRIu64 ",\"tx_msgs\":%" PRIu64 "}", bytes, msgs);
		first = false;
		i = j;
	}
}

/* What dualport report knows rail pairs by, and how fast they were. */
static void json_pair(FILE *f, struct dp_flow *flow)
{
	uint64_t acked, busy;

	if (!flow->to[0])
		return;
	dp_take(&flow->lock);
	acked = flow->acked;
	busy = flow->busy_ns;
	dp_drop(&flow->lock);
	fputs(",\"from\":", f);
	dp_json_string(f, flow->from);
	fputs(",\"to\":", f);
	dp_json_string(f, flow->to);
	fprintf(f, ",\"rail\":%u,\"read_bytes\":%" PRIu64 ",\"acked_bytes\":%" PRIu64 ",\"busy_ns\":%" PRIu64,
		(unsigned)atomic_load_explicit(&flow->rail, memory_order_relaxed), load(&flow->read_bytes), acked, busy);
}

static void json_flows(FILE *f, const struct row *rows, size_t n)
{
	bool first = true;

	for (size_t i = 0; i < n; i++) {
		if (!rows[i].flow->peer[0])
			continue;
		fprintf(f, "%s{\"port\":", first ? "" : ",");
		dp_json_string(f, rows[i].flow->port);
		fprintf(f, ",\"peer\":");
		dp_json_string(f, rows[i].flow->peer);
		fprintf(f, ",\"tx_bytes\":%" PRIu64 ",\"tx_msgs\":%" PRIu64, rows[i].bytes, rows[i].msgs);
		json_pair(f, rows[i].flow);
		fputc('}', f);
		first = false;
	}
}

static int write_object(FILE *f)
{
	const struct dp_counters *c = &dp_counters;
	bool first = true;
	struct row *rows;
	size_t n;
	int ret = take_rows(&rows, &n, by_port);

	if (ret)
		return ret;
	fprintf(f, "{\"pid\":%d,\"bonds\":%" PRIu64, (int)getpid(), load(&c->bonds));
	dp_stats_job_json(f);
	fputs(",\"ports\":[", f);
	json_ports(f, rows, n);
	fprintf(f, "],\"flows\":[");
	json_flows(f, rows, n);
	free(rows);
	fprintf(f, "],\"splits\":%" PRIu64 ",\"spreads\":%" PRIu64 ",\"signals\":%" PRIu64, load(&c->splits),
		load(&c->spreads), load(&c->signals));
	fprintf(f, ",\"signals_waited\":%" PRIu64 ",\"signal_wait_ns\":%" PRIu64, load(&c->signals_waited),
		load(&c->signal_wait_ns));
	fprintf(f, ",\"signal_wait_median_ns\":%" PRIu64 ",\"signal_wait_99_ns\":%" PRIu64 ",\"signal_waits\":{",
		wait_percentile(c, 50), wait_percentile(c, 99));
	for (int i = 0; i < DP_WAIT_CAUSES; i++)
		fprintf(f, "%s\"%s\":%" PRIu64, i ? "," : "", wait_strs[i], load(&c->wait_by[i]));
	fprintf(f, "},\"deferred\":%" PRIu64 ",\"full_waits\":%" PRIu64 ",\"held\":%" PRIu64, load(&c->deferred),
		load(&c->full_waits), load(&c->held));
	fprintf(f, ",\"flushes\":%" PRIu64 ",\"flush_waits\":%" PRIu64 ",\"flush_acks\":%" PRIu64, load(&c->flushes),
		load(&c->flush_waits), load(&c->flush_acks));
	fprintf(f, ",\"spares_renewed\":%" PRIu64 ",\"fallbacks\":{", load(&c->spares_renewed));
	for (int i = 0; i < DP_FB_COUNT; i++) {
		uint64_t v = load(&c->fallback[i]);

		if (!v)
			continue;
		fprintf(f, "%s\"%s\":%" PRIu64, first ? "" : ",", fallback_strs[i], v);
		first = false;
	}
	fprintf(f, "}}\n");
	return ferror(f) ? -EIO : 0;
}

/* %p: the pid, %%: a percent sign. 0 or -ENAMETOOLONG. */
static int expand(const char *pattern, char *buf, size_t len)
{
	size_t at = 0;

	for (const char *p = pattern; *p; p++) {
		int n;

		if (p[0] == '%' && p[1] == 'p') {
			n = snprintf(buf + at, len - at, "%d", (int)getpid());
			p++;
		} else {
			n = snprintf(buf + at, len - at, "%c", *p);
			p += p[0] == '%' && p[1] == '%';
		}
		at += (size_t)n;
		if (at >= len)
			return -ENAMETOOLONG;
	}
	return 0;
}

static int write_to(const char *path, int flags)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC | flags, 0666), ret;
	FILE *f;

	if (fd < 0)
		return -errno;
	f = fdopen(fd, "w");
	if (!f) {
		ret = -errno;
		close(fd);
		return ret;
	}
	errno = 0;
	ret = write_object(f);
	if (fflush(f) && !ret)
		ret = errno ? -errno : -EIO;
	if (fclose(f) && !ret)
		ret = errno ? -errno : -EIO;
	return ret;
}

static int write_json(const char *pattern)
{
	char path[4096], tmp[sizeof(path) + 32];
	struct stat st;
	int ret = *pattern ? expand(pattern, path, sizeof(path)) : -ENOENT;

	if (ret)
		return ret;
	/* Renaming over a device, a pipe or a symbolic link would destroy it. */
	if (!lstat(path, &st) && !S_ISREG(st.st_mode))
		return write_to(path, O_CREAT | O_TRUNC | O_NONBLOCK);
	snprintf(tmp, sizeof(tmp), "%s.%d.tmp", path, (int)getpid());
	ret = write_to(tmp, O_CREAT | O_EXCL);
	if (ret == -EACCES || ret == -EPERM || ret == -EROFS || ret == -EEXIST || ret == -ENAMETOOLONG)
		return write_to(path, O_CREAT | O_TRUNC);
	if (!ret && rename(tmp, path))
		ret = -errno;
	if (ret)
		unlink(tmp);
	return ret;
}

int dp_stats_write_json(const char *pattern)
{
	struct dp_sigpipe sigpipe;
	int ret;

	dp_sigpipe_off(&sigpipe);
	ret = write_json(pattern);
	dp_sigpipe_back(&sigpipe);
	return ret;
}

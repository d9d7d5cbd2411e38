// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* dualport report: what the DUALPORT_DIAG_JSON files of all processes of a job say together. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tool.h"

/* A port that carries less than this part of an even share of a peer's bytes is named. */
#define UNEVEN 0.8
#define SLOWEST 5 /* rail pairs that are printed */
/*
 * A rail with less than this part of the rate of the fastest one to the same peer is named. The program's own port also
 * waits for what is on no other, signals among it.
 */
#define SLOW 0.8
#define SLOW_OWN 0.6

/* One file. */
struct rank {
	const char *file;
	json_t *json;
};

struct job {
	struct rank *ranks;
	int n;
	int findings;
};

static void finding(struct job *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void finding(struct job *j, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	j->findings++;
}

static const char *text_of(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "?";
}

static double number_of(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

/* At s, in UTF-8: also those from U+0080 to U+009F. */
static bool is_control(const char *s)
{
	unsigned char c = (unsigned char)s[0], next = c ? (unsigned char)s[1] : 0;

	return c < ' ' || c == 0x7f || (c == 0xc2 && next >= 0x80 && next <= 0x9f);
}

static bool has_control(const char *s)
{
	for (; s && *s; s++)
		if (is_control(s))
			return true;
	return false;
}

/* What the parser says quotes the file. */
static void make_printable(char *s)
{
	for (; *s; s++) {
		if (!is_control(s))
			continue;
		if (*s == '\xc2')
			*s++ = '?';
		*s = '?';
	}
}

/* Nothing in a file may move the cursor, or pass for a line of the report. Depth: what the parser allows. */
static bool printable(const json_t *v)
{
	const char *key;
	json_t *part;
	size_t i;

	json_array_foreach(v, i, part)
		if (!printable(part))
			return false;
	json_object_foreach((json_t *)v, key, part)
		if (has_control(key) || !printable(part))
			return false;
	return !has_control(json_string_value(v));
}

/* A pipe that nobody writes to would be waited for for ever: only where the user says that there is one, by "-". */
static int read_json(struct rank *r, json_error_t *err)
{
	struct stat st;
	int fd;

	if (!strcmp(r->file, "standard input")) {
		r->json = json_loadf(stdin, JSON_REJECT_DUPLICATES, err);
		return 0;
	}
	fd = open(r->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return tool_error("%s: %s", r->file, strerror(errno));
	if (!fstat(fd, &st) && S_ISREG(st.st_mode)) {
		r->json = json_loadfd(fd, JSON_REJECT_DUPLICATES, err);
		close(fd);
		return 0;
	}
	close(fd);
	return tool_error("%s: not a regular file (\"-\" stands for standard input)", r->file);
}

static int open_rank(struct rank *r, const char *file)
{
	json_error_t err;
	int ret;

	r->file = !strcmp(file, "-") ? "standard input" : file;
	file = r->file;
	ret = read_json(r, &err);
	if (ret)
		return ret;
	make_printable(err.text);
	if (!r->json)
		return err.line < 0 ? tool_error("%s", err.text) : tool_error("%s:%d: %s", file, err.line, err.text);
	if (!json_is_object(r->json) || !json_is_array(json_object_get(r->json, "flows")) ||
	    !json_is_object(json_object_get(r->json, "fallbacks")))
		return tool_error("%s: not written by libdualport", file);
	if (!printable(r->json))
		return tool_error("%s: control characters in a string", file);
	return 0;
}

static void put_totals(const struct job *j)
{
	static const char *const keys[] = { "bonds",	      "splits",	  "spreads", "signals",
					    "signals_waited", "deferred", "held" };

	printf("%d process%s\n", j->n, j->n == 1 ? "" : "es");
	for (size_t k = 0; k < sizeof(keys) / sizeof(*keys); k++) {
		double sum = 0;

		for (int i = 0; i < j->n; i++)
			sum += number_of(j->ranks[i].json, keys[k]);
		printf("  %-16s %.0f\n", keys[k], sum);
	}
}

/* ---- what all must have in common */

static void compare_value(struct job *j, const char *what, const char *a, const char *b, const struct rank *rb)
{
	if (strcmp(a, b))
		finding(j, "%s differs: %s in %s, %s in %s", what, a, j->ranks[0].file, b, rb->file);
}

static void compare_settings(struct job *j, const struct rank *r)
{
	const json_t *a = json_object_get(j->ranks[0].json, "settings"), *b = json_object_get(r->json, "settings");
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)a, key, v) {
		const char *vb = json_string_value(json_object_get(b, key));

		if (vb && json_string_value(v))
			compare_value(j, key, json_string_value(v), vb, r);
	}
}

static void compare(struct job *j)
{
	for (int i = 1; i < j->n; i++) {
		compare_value(j, "version", text_of(j->ranks[0].json, "version"), text_of(j->ranks[i].json, "version"),
			      &j->ranks[i]);
		compare_settings(j, &j->ranks[i]);
	}
}

/* ---- peers without a bond, reasons */

static void put_unbonded(struct job *j)
{
	size_t k;
	json_t *u;

	for (int i = 0; i < j->n; i++)
		json_array_foreach(json_object_get(j->ranks[i].json, "unbonded"), k, u)
			finding(j, "not bonded: %s to %s: %.0f queue pair%s: %s", j->ranks[i].file, text_of(u, "peer"),
				number_of(u, "qps"), number_of(u, "qps") == 1 ? "" : "s", text_of(u, "reason"));
	for (int i = 0; i < j->n; i++)
		if (!number_of(j->ranks[i].json, "bonds"))
			finding(j, "no bond at all: %s", j->ranks[i].file);
}

static void put_fallbacks(const struct job *j)
{
	json_t *sums = json_object(), *v;
	const char *key;

	for (int i = 0; i < j->n; i++)
		json_object_foreach(json_object_get(j->ranks[i].json, "fallbacks"), key, v)
			json_object_set_new(sums, key,
					    json_real(number_of(sums, key) + json_number_value(v)));
	printf("fall-backs to one port:%s\n", json_object_size(sums) ? "" : " none");
	json_object_foreach(sums, key, v)
		printf("  %-16s %.0f\n", key, json_number_value(v));
	json_decref(sums);
}

/* ---- shares of what each peer receives */

/* Bytes to one peer over the ports of one place, as all senders name them. */
struct share {
	const char *peer, *port;
	double bytes;
	int senders;
};

static int by_peer_port(const void *pa, const void *pb)
{
	const struct share *a = pa, *b = pb;
	int cmp = strcmp(a->peer, b->peer);

	return cmp ? cmp : strcmp(a->port, b->port);
}

/* Sorts them, and adds up those of one port. How many are left. */
static size_t merge(struct share *s, size_t n)
{
	size_t m = 0;

	qsort(s, n, sizeof(*s), by_peer_port);
	for (size_t k = 0; k < n; k++)
		if (m && !by_peer_port(&s[m - 1], &s[k])) {
			s[m - 1].bytes += s[k].bytes;
			s[m - 1].senders++;
		} else {
			s[m++] = s[k];
		}
	return m;
}

static size_t collect(const struct job *j, struct share **shares)
{
	size_t n = 0, k;
	json_t *flow;

	for (int i = 0; i < j->n; i++)
		n += json_array_size(json_object_get(j->ranks[i].json, "flows"));
	*shares = calloc(n + 1, sizeof(**shares));
	if (!*shares)
		return 0;
	n = 0;
	for (int i = 0; i < j->n; i++)
		json_array_foreach(json_object_get(j->ranks[i].json, "flows"), k, flow)
			(*shares)[n++] = (struct share){ text_of(flow, "peer"), text_of(flow, "port"),
							 number_of(flow, "tx_bytes"), 1 };
	return merge(*shares, n);
}

static void put_shares(struct job *j)
{
	struct share *shares;
	size_t n = collect(j, &shares), to;

	if (n)
		printf("%-40s %-16s %18s %7s\n", "to", "sender's port", "bytes", "share");
	for (size_t from = 0; from < n; from = to) {
		double sum = 0, even;

		for (to = from; to < n && !strcmp(shares[to].peer, shares[from].peer); to++)
			sum += shares[to].bytes;
		even = sum / (double)(to - from);
		for (size_t k = from; k < to; k++)
			printf("%-40s %-16s %18.0f %6.1f%%\n", shares[k].peer, shares[k].port, shares[k].bytes,
			       sum > 0 ? 100 * shares[k].bytes / sum : 0);
		for (size_t k = from; k < to && sum > 0; k++)
			if (shares[k].bytes < UNEVEN * even)
				finding(j, "uneven: %s gets %.1f%% of its bytes from %s, of %zu ports", shares[k].peer,
					100 * shares[k].bytes / sum, shares[k].port, to - from);
	}
	free(shares);
}

/* ---- which ports of the receivers take it in */

/* Bytes that arrive at one port of the one that is known by that address. */
static void add_received(struct share *s, size_t *n, const char *who, const char *port, double bytes)
{
	if (bytes > 0)
		s[(*n)++] = (struct share){ who, port, bytes, 1 };
}

static void put_received(struct job *j)
{
	struct share *s;
	size_t n = 0, k, m = 0, to;
	json_t *flow;

	for (int i = 0; i < j->n; i++)
		n += 2 * json_array_size(json_object_get(j->ranks[i].json, "flows"));
	s = calloc(n + 1, sizeof(*s));
	if (!s)
		return;
	n = 0;
	for (int i = 0; i < j->n; i++)
		json_array_foreach(json_object_get(j->ranks[i].json, "flows"), k, flow) {
			double reads = number_of(flow, "read_bytes");

			if (!json_object_get(flow, "to"))
				continue;
			/* what a READ asks for comes to the port that asked */
			add_received(s, &n, text_of(flow, "peer"), text_of(flow, "to"), number_of(flow, "tx_bytes") - reads);
			add_received(s, &n, text_of(flow, "from"), text_of(flow, "port"), reads);
		}
	m = merge(s, n);
	if (m)
		printf("%-40s %-16s %18s %7s\n", "received by", "its port", "bytes", "share");
	for (size_t from = 0; from < m; from = to) {
		double sum = 0;

		for (to = from; to < m && !strcmp(s[to].peer, s[from].peer); to++)
			sum += s[to].bytes;
		for (k = from; k < to; k++)
			printf("%-40s %-16s %18.0f %6.1f%%\n", s[k].peer, s[k].port, s[k].bytes, 100 * s[k].bytes / sum);
		for (k = from; k < to; k++)
			if (s[k].bytes < UNEVEN * sum / (double)(to - from))
				finding(j, "uneven: %s takes %.1f%% of its bytes in by %s, of %zu ports", s[k].peer,
					100 * s[k].bytes / sum, s[k].port, to - from);
	}
	free(s);
}

/* ---- rail pairs: how fast each is */

struct pair {
	const char *file, *port, *peer, *to;
	double rate;	/* bytes a second, of the time in which it had something to send */
	double fastest; /* of the rails to that peer */
	bool own;	/* the program's own port */
};

static int by_rate(const void *pa, const void *pb)
{
	const struct pair *a = pa, *b = pb;

	return a->rate < b->rate ? -1 : a->rate > b->rate;
}

static size_t pairs_of(const struct rank *r, struct pair *p)
{
	const json_t *flows = json_object_get(r->json, "flows");
	size_t n = 0, k;
	json_t *flow;

	json_array_foreach(flows, k, flow) {
		double ns = number_of(flow, "busy_ns");

		if (ns > 0)
			p[n++] = (struct pair){ .file = r->file,
						.port = text_of(flow, "port"),
						.peer = text_of(flow, "peer"),
						.to = text_of(flow, "to"),
						.rate = number_of(flow, "acked_bytes") * 1e9 / ns,
						.own = !number_of(flow, "rail") };
	}
	for (size_t i = 0; i < n; i++)
		for (k = 0; k < n; k++)
			if (!strcmp(p[i].peer, p[k].peer) && p[k].rate > p[i].fastest)
				p[i].fastest = p[k].rate;
	return n;
}

static void put_slowest(struct job *j)
{
	struct pair *p;
	size_t n = 0;

	for (int i = 0; i < j->n; i++)
		n += json_array_size(json_object_get(j->ranks[i].json, "flows"));
	p = calloc(n + 1, sizeof(*p));
	if (!p)
		return;
	n = 0;
	for (int i = 0; i < j->n; i++)
		n += pairs_of(&j->ranks[i], p + n);
	qsort(p, n, sizeof(*p), by_rate);
	if (n)
		printf("%-40s %-16s %-16s %9s %s\n", "slowest rails to", "from", "at", "Gb/s", "file");
	for (size_t i = 0; i < n && i < SLOWEST; i++)
		printf("%-40s %-16s %-16s %9.3f %s\n", p[i].peer, p[i].port, p[i].to, p[i].rate * 8e-9, p[i].file);
	for (size_t i = 0; i < n; i++)
		if (p[i].rate < (p[i].own ? SLOW_OWN : SLOW) * p[i].fastest)
			finding(j, "slow: %s: from %s to %s of %s with %.0f%% of the rate of the fastest rail", p[i].file,
				p[i].port, p[i].to, p[i].peer, 100 * p[i].rate / p[i].fastest);
	free(p);
}

int tool_report(int argc, char **argv)
{
	struct job j = { .n = argc - 1 };
	int ret = 0;

	if (argc < 2)
		return tool_error("report takes the files that DUALPORT_DIAG_JSON names");
	j.ranks = calloc((size_t)j.n, sizeof(*j.ranks));
	if (!j.ranks)
		return tool_error("out of memory");
	for (int i = 0; i < j.n && !ret; i++)
		ret = open_rank(&j.ranks[i], argv[i + 1]);
	if (!ret) {
		put_totals(&j);
		put_fallbacks(&j);
		put_shares(&j);
		put_received(&j);
		put_slowest(&j);
		put_unbonded(&j);
		compare(&j);
		printf("%d finding%s\n", j.findings, j.findings == 1 ? "" : "s");
	}
	for (int i = 0; i < j.n; i++)
		json_decref(j.ranks[i].json);
	free(j.ranks);
	return ret ? ret : j.findings ? TOOL_BAD : TOOL_OK;
}

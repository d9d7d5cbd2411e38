// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * One process of the multi-process tests of the peer layer: takes commands from stdin, a line each, and writes events to
 * stdout. peer_procs.py starts many of these and plays the strangers.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "config.h"
#include "log.h"
#include "peer.h"
#include "wire.h"

/* TSan itself cannot start a thread in a child of a process with threads */
#if defined(__SANITIZE_THREAD__)
#define NO_THREAD_AFTER_FORK 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NO_THREAD_AFTER_FORK 1
#endif
#endif
#ifndef NO_THREAD_AFTER_FORK
#define NO_THREAD_AFTER_FORK 0
#endif

#define MAX_OWNED 256
#define MAX_TAGS 256
#define MSG_NUMBERED 0x100
#define MSG_MAXLEN 3000

static struct {
	union ibv_gid gid;
	uint32_t qpn;
} owned[MAX_OWNED];
static int nowned;

static struct locate_req {
	char tag[32];
	union ibv_gid gid;
	uint32_t qpn;
	uint64_t timeout;
	struct dp_locate *l;
	struct dp_peer *peer;
	uint64_t start;
} tags[MAX_TAGS];
static _Atomic int ntags; /* raised by the main thread once the entry is whole */

struct peer_data {
	uint32_t next_in, next_out;
};

static struct peer_data self_data; /* there is no gone() for oneself */
static uint64_t received, misordered, goners;

static void say(const char *fmt, ...)
{
	char buf[512];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(buf, sizeof(buf) - 1, fmt, ap);
	va_end(ap);
	buf[n++] = '\n';
	if (write(1, buf, (size_t)n) != n)
		_exit(9);
}

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec;
}

static const char *hex(const uint8_t *p)
{
	static char buf[2 * DP_INSTANCE_LEN + 1];

	for (int i = 0; i < DP_INSTANCE_LEN; i++)
		sprintf(buf + 2 * i, "%02x", p[i]);
	return buf;
}

static bool owns(const union ibv_gid *gid, uint32_t qpn)
{
	if (!dp_peer_on_control())
		abort();
	for (int i = 0; i < nowned; i++)
		if (owned[i].qpn == qpn && !memcmp(&owned[i].gid, gid, sizeof(*gid)))
			return true;
	return false;
}

static struct peer_data *data_of(struct dp_peer *p)
{
	if (dp_peer_is_self(p))
		return &self_data;
	if (!dp_peer_data(p))
		dp_peer_set_data(p, calloc(1, sizeof(struct peer_data)));
	return dp_peer_data(p);
}

/* What message seq holds: a window of one fixed pattern, so that it costs the control thread little. */
static const uint8_t *filler(uint32_t seq)
{
	static uint8_t pattern[MSG_MAXLEN + 251];

	if (!pattern[1])
		for (size_t i = 0; i < sizeof(pattern); i++)
			pattern[i] = (uint8_t)(i * i * 7 + i / 256 + 1);
	return pattern + seq % 251;
}

static void message(struct dp_peer *peer, uint16_t type, const uint8_t *data, size_t len)
{
	struct dp_rbuf b = { .p = data, .len = len };
	uint32_t seq = dp_get32(&b);
	struct peer_data *d = data_of(peer);
	bool good = type == MSG_NUMBERED && seq == d->next_in && !b.bad && b.len == seq * 37 % MSG_MAXLEN;

	if (good && memcmp(b.p, filler(seq), b.len))
		good = false;
	misordered += !good;
	d->next_in = seq + 1;
	received++;
}

static void gone(struct dp_peer *peer)
{
	for (int i = 0; i < ntags; i++)
		if (tags[i].peer == peer)
			tags[i].peer = NULL;
	goners++;
	say("gone %s lease %d granted %d", hex(dp_peer_instance(peer)), dp_peer_lease_valid(peer),
	    dp_peer_granted_until(peer) > now());
	free(dp_peer_data(peer));
}

static void located(void *arg, struct dp_peer *peer, int status)
{
	struct locate_req *r = arg;

	r->l = NULL;
	r->peer = peer;
	say("located %s %d %s %s %llu %s", r->tag, status, peer ? (dp_peer_is_self(peer) ? "self" : "other") : "none",
	    peer ? hex(dp_peer_instance(peer)) : "-", (unsigned long long)(now() - r->start) / 1000000,
	    peer ? dp_peer_text(peer) : "-");
}

static void do_locate(void *arg)
{
	struct locate_req *r = arg;

	r->start = now();
	r->l = dp_peer_locate(&r->gid, "", r->qpn, r->timeout, located, r);
	if (!r->l)
		say("located %s -12 none - 0 -", r->tag);
}

static void do_cancel(void *arg)
{
	struct locate_req *r = arg;

	if (r->l)
		dp_peer_locate_cancel(r->l);
	r->l = NULL;
	say("cancelled %s", r->tag);
}

static void send_numbered(struct dp_peer *p, unsigned n)
{
	struct peer_data *d = data_of(p);
	uint8_t buf[4 + MSG_MAXLEN];

	while (n--) {
		struct dp_wbuf b = { .p = buf, .cap = sizeof(buf) };
		uint32_t seq = d->next_out++;
		size_t len = seq * 37 % MSG_MAXLEN;

		dp_put32(&b, seq);
		dp_put(&b, filler(seq), len);
		if (dp_peer_send(p, MSG_NUMBERED, buf, b.len)) {
			say("send failed");
			return;
		}
	}
}

static bool send_one(struct dp_peer *p, void *arg)
{
	if (!dp_peer_is_self(p))
		send_numbered(p, *(unsigned *)arg);
	return true;
}

static void do_sendall(void *arg)
{
	dp_peer_each(send_one, arg);
	free(arg);
	say("sent");
}

struct send_req {
	struct locate_req *r;
	unsigned n;
};

static void do_send(void *arg)
{
	struct send_req *s = arg;

	if (s->r->peer)
		send_numbered(s->r->peer, s->n);
	say("sent %d", s->r->peer != NULL);
	free(s);
}

struct own_req {
	union ibv_gid gid;
	uint32_t qpn;
};

static void do_own(void *arg)
{
	union ibv_gid gids[MAX_OWNED];
	struct own_req *r = arg;

	if (nowned == MAX_OWNED)
		abort();
	owned[nowned].gid = r->gid;
	owned[nowned++].qpn = r->qpn;
	free(r);
	for (int i = 0; i < nowned; i++)
		gids[i] = owned[i].gid;
	dp_peer_advertise(gids, (size_t)nowned);
	say("ok");
}

static bool count_peer(struct dp_peer *p, void *arg)
{
	int *n = arg;

	n[0] += !dp_peer_is_self(p);
	n[1] += !dp_peer_is_self(p) && dp_peer_lease_valid(p);
	n[2] += !dp_peer_is_self(p) && dp_peer_granted_until(p) > now();
	return true;
}

static void do_count(void *arg)
{
	int n[3] = { 0 };

	(void)arg;
	dp_peer_each(count_peer, n);
	say("count %llu %llu %d %d %d %llu", (unsigned long long)received, (unsigned long long)misordered, n[0], n[1], n[2],
	    (unsigned long long)goners);
}

static void do_hang(void *arg)
{
	(void)arg;
	usleep(1500000);
}

static int count_dir(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

static void do_fork(void)
{
	int status = 0, before = count_dir("/proc/self/fd");
	pid_t pid = fork();

	if (pid == 0) {
		static const struct dp_peer_handler h = { owns, message, gone };
		int n, err = 0;

		dp_peer_after_fork();
		n = before - count_dir("/proc/self/fd");
		if (dp_peer_call(do_count, NULL) != -ESRCH)
			_exit(101);
		dp_peer_stop(false); /* nothing was started here */
		if (!NO_THREAD_AFTER_FORK) {
			err = dp_peer_start(&h, NULL);
			dp_peer_stop(false);
		}
		_exit(err ? 100 : n);
	}
	waitpid(pid, &status, 0);
	say("forked %d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

static struct locate_req *tag_of(const char *tag)
{
	for (int i = ntags; i-- > 0;)
		if (!strcmp(tags[i].tag, tag))
			return &tags[i];
	return NULL;
}

static char line_read[1024];

static union ibv_gid gid_of(const char *ip)
{
	union ibv_gid g;
	char text[64];

	snprintf(text, sizeof(text), strchr(ip, ':') ? "%s" : "::ffff:%s", ip);
	if (inet_pton(AF_INET6, text, g.raw) != 1)
		abort();
	return g;
}

static void call(void (*fn)(void *), void *arg)
{
	int err = dp_peer_call(fn, arg);

	if (err)
		say("call failed %d", err);
}

static void command(char *line)
{
	static const struct dp_peer_handler handler = { owns, message, gone };
	char word[16] = "", a[256] = "", b[256] = "";
	unsigned n = 0, m = 0, lease = 0;

	sscanf(line, "%15s", word);
	if (!strcmp(word, "start") && sscanf(line, "%*s %u %u %u %255s %255s", &n, &m, &lease, a, b) == 5) {
		static char configured[sizeof(line_read)];

		/* not again with the same values: read-only while a thread lives, a detached one too */
		if (strcmp(configured, line)) {
			dp_cfg.peer_port = (int)n;
			dp_cfg.peer_ports = (int)m;
			dp_cfg.lease_ns = lease * 1000000ULL;
			snprintf(dp_cfg.peer_bind, sizeof(dp_cfg.peer_bind), "%s", a[0] == '-' ? "" : a);
			snprintf(dp_cfg.peer_secret, sizeof(dp_cfg.peer_secret), "%s", b[0] == '-' ? "" : b);
		}
		snprintf(configured, sizeof(configured), "%s", line);
		say("started %d", dp_peer_start(&handler, NULL));
	} else if (!strcmp(word, "own") && sscanf(line, "%*s %255s %u", a, &n) == 2) {
		struct own_req *r = malloc(sizeof(*r));

		*r = (struct own_req){ gid_of(a), n };
		call(do_own, r);
	} else if (!strcmp(word, "locate") && sscanf(line, "%*s %31s %255s %u %u", a, b, &n, &m) == 4 && ntags < MAX_TAGS) {
		struct locate_req *r = &tags[ntags];

		memset(r, 0, sizeof(*r));
		snprintf(r->tag, sizeof(r->tag), "%.31s", a);
		r->gid = gid_of(b);
		r->qpn = n;
		r->timeout = m * 1000000ULL;
		ntags++;
		call(do_locate, r);
	} else if (!strcmp(word, "cancel") && sscanf(line, "%*s %31s", a) == 1 && tag_of(a)) {
		call(do_cancel, tag_of(a));
	} else if (!strcmp(word, "send") && sscanf(line, "%*s %31s %u", a, &n) == 2 && tag_of(a)) {
		struct send_req *s = malloc(sizeof(*s));

		*s = (struct send_req){ tag_of(a), n };
		call(do_send, s);
	} else if (!strcmp(word, "sendall") && sscanf(line, "%*s %u", &n) == 1) {
		unsigned *arg = malloc(sizeof(*arg));

		*arg = n;
		call(do_sendall, arg);
	} else if (!strcmp(word, "count")) {
		call(do_count, NULL);
	} else if (!strcmp(word, "hang")) {
		call(do_hang, NULL);
	} else if (!strcmp(word, "fork")) {
		do_fork();
	} else if (!strcmp(word, "stop")) {
		uint64_t t = now();

		dp_peer_stop(false);
		say("stopped %llu", (unsigned long long)(now() - t) / 1000000);
	} else if (!strcmp(word, "stat")) {
		say("stat %d %d", count_dir("/proc/self/task"), count_dir("/proc/self/fd"));
	} else {
		say("bad command: %s", line);
	}
}

int main(void)
{
	if (getenv("PEER_LOG"))
		dp_log_level = DP_LOG_TRACE;
	while (fgets(line_read, sizeof(line_read), stdin))
		command(line_read);
	return 0;
}

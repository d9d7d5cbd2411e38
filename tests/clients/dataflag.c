// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What this program takes as right, and checks: a receiver that sees a flag (a memory word, or a receive completion)
 * sees every byte of the WRITEs posted before it on that QP; after that nothing writes there again until the slot
 * is given back; nothing outside the targets changes; atomics found what the last round left; each signalled WR
 * gives one completion, in order, with its wr_id, opcode, byte_len and qp_num, and nothing else gives any.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "df_opts.h"
#include "oob.h"

struct worker {
	struct df_side *side;
	unsigned int idx;
	pthread_t thread;
};

static struct df_side sides[2];
static struct df_cfg cfg;

/* Looks at what others write, without a lock that one of them may hold for ever: numbers for a person to read. */
__attribute__((no_sanitize("thread"))) static void where(const struct df_side *s)
{
	unsigned int i;

	for (i = 0; s->ep && i < s->cfg->qps; i++) {
		const struct df_ep *e = &s->ep[i];

		if (!e->qp || (e->tx_next == s->cfg->rounds * s->sends && e->rx_told == s->cfg->rounds * s->receives &&
			       e->done == e->posted))
			continue;
		fprintf(stderr, "dataflag %s: qp 0x%x: sent %llu, seen %llu, freed %llu, credited %llu; WRs posted %llu, done "
			"%llu, completions due %llu; receives %llu of %llu; read batches %u\n", s->role, e->qp->qp_num,
			(unsigned long long)e->tx_next, (unsigned long long)e->rx_next, (unsigned long long)e->rx_freed,
			(unsigned long long)e->rx_told, (unsigned long long)e->posted, (unsigned long long)e->done,
			(unsigned long long)(e->exp_tail - e->exp_head), (unsigned long long)e->rq_done,
			(unsigned long long)e->rq_posted, e->reads_done);
	}
}

static void *watchdog(void *arg)
{
	(void)arg;
	sleep(cfg.timeout_s);
	fprintf(stderr, "dataflag: no end after %u s (seed %llu)\n", cfg.timeout_s, (unsigned long long)cfg.seed);
	where(&sides[0]);
	where(&sides[1]);
	_exit(3);
}

static bool poll_mine(struct df_side *s, unsigned int first, unsigned int step)
{
	bool did = false;
	unsigned int i;

	if (s->cfg->wait != WAIT_POLL)
		return false;
	for (i = s->cfg->cq_all ? 0 : first; i < s->ncqs; i += s->cfg->cq_all ? 1 : step)
		did |= df_poll(s, &s->cqs[i]) > 0;
	return did;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct df_side *s = w->side;
	unsigned int i, step = s->cfg->threads;
	bool did, left;

	do {
		did = poll_mine(s, w->idx, step);
		left = false;
		for (i = w->idx; i < s->cfg->qps; i += step) {
			did |= df_rx(&s->ep[i]);
			did |= df_tx(&s->ep[i]);
			left |= !df_tx_done(&s->ep[i]) || !df_rx_done(&s->ep[i]);
		}
		if (!did)
			sched_yield();
	} while (left && !atomic_load(&s->failed));
	return NULL;
}

static void drain_all(struct df_side *s, bool last)
{
	unsigned int i;
	bool left;

	do {
		left = false;
		for (i = 0; last && i < s->cfg->qps; i++)
			while (!atomic_load(&s->failed) && df_last(&s->ep[i]) == -EAGAIN)
				if (s->cfg->wait == WAIT_POLL)
					df_poll(s, s->ep[i].scq);
		last = false;
		for (i = 0; s->cfg->wait == WAIT_POLL && i < s->ncqs; i++)
			df_poll(s, &s->cqs[i]);
		for (i = 0; i < s->cfg->qps; i++)
			left |= atomic_load(&s->ep[i].done) != s->ep[i].posted;
		if (left)
			sched_yield();
	} while (left && !atomic_load(&s->failed));
}

static bool zero(const uint8_t *p, uint64_t n)
{
	return !n || (!p[0] && !memcmp(p, p + 1, n - 1));
}

static void final_checks(struct df_side *s)
{
	const struct df_cfg *c = s->cfg;
	unsigned int i, k;
	uint8_t *want = malloc(s->rsrc_len);

	for (i = 0; i < s->ncqs; i++)
		while (df_poll(s, &s->cqs[i]) > 0)
			;
	for (i = 0; i < c->qps; i++) {
		struct df_ep *ep = &s->ep[i];

		df_checks(ep);
		if (ep->exp_head != ep->exp_tail)
			df_error(s, "qp 0x%x: %llu completions never came", ep->qp->qp_num,
				 (unsigned long long)(ep->exp_tail - ep->exp_head));
		if (ep->chk_head != ep->chk_tail)
			df_error(s, "qp 0x%x: atomics or read-backs left unchecked", ep->qp->qp_num);
		if (ep->msg_head != ep->msg_tail)
			df_error(s, "qp 0x%x: a message more than there were rounds", ep->qp->qp_num);
		pattern_fill(want, df_rsrc_key(c, s->dir, i), 0, s->rsrc_len);
		if (memcmp(want, ep->rsrc, s->rsrc_len) ||
		    (s->receives && !zero(ep->slots, c->window * s->slot_stride))) {
			fprintf(stderr, "dataflag %s: VIOLATION qp 0x%x: memory changed outside all targets\n", s->role,
				ep->qp->qp_num);
			atomic_fetch_add(&s->guards, 1);
		}
		for (k = 0; k <= c->window; k++)
			if (!zero(ep->flags + (uint64_t)k * DF_FLAG_STRIDE + (k == c->window ? 8 : 0),
				  DF_FLAG_STRIDE - (k == c->window ? 8 : 0))) {
				df_error(s, "qp 0x%x: flag line %u changed", ep->qp->qp_num, k);
				atomic_fetch_add(&s->guards, 1);
			}
	}
	free(want);
}

static int run(struct df_side *s)
{
	struct timespec nap = { .tv_sec = s->cfg->settle_ms / 1000,
				.tv_nsec = s->cfg->settle_ms % 1000 * 1000000L }, grace = { .tv_nsec = 50000000 };
	struct worker *w = calloc(s->cfg->threads, sizeof(*w));
	unsigned int i;
	int err;

	if (!w)
		return -ENOMEM;
	nanosleep(&nap, NULL);
	err = df_cq_start(s);
	if (err)
		goto out;
	for (i = 0; i < s->cfg->threads; i++) {
		w[i] = (struct worker){ .side = s, .idx = i };
		err = -pthread_create(&w[i].thread, NULL, work, &w[i]);
		if (err)
			goto out;
	}
	for (i = 0; i < s->cfg->threads; i++)
		pthread_join(w[i].thread, NULL);
	/* the receive side of the channel thread is wanted until the peer has sent all it has to say */
	drain_all(s, true);
	if (oob_sync(s->oob))
		df_error(s, "the peer is gone");
	nanosleep(&grace, NULL);
	atomic_store(&s->stop, true);
	if (s->cfg->wait == WAIT_EVENT && !atomic_load(&s->failed))
		df_last(&s->ep[0]);
	if (s->cfg->wait == WAIT_EVENT && atomic_load(&s->failed))
		goto out; /* its thread cannot be woken any more; the process is about to end with an error */
	df_cq_stop(s);
	for (i = 0; i < s->ncqs; i++)
		while (df_poll(s, &s->cqs[i]) > 0)
			;
	final_checks(s);
	if (oob_sync(s->oob))
		df_error(s, "the peer is gone");
out:
	free(w);
	return err;
}

static int verdict(struct df_side *s, uint64_t t0)
{
	double sec = (double)(now_ns() - t0) / 1e9;
	bool ok;

	if (s->cqes != s->signalled && !s->failed)
		df_error(s, "%llu signalled WRs, %llu completions", (unsigned long long)s->signalled,
			 (unsigned long long)s->cqes);
	ok = !s->violations && !s->guards && !s->ghosts && !s->errors && !s->failed &&
	     s->rounds_seen == (uint64_t)s->receives * s->cfg->rounds * s->cfg->qps &&
	     s->rounds_sent == (uint64_t)s->sends * s->cfg->rounds * s->cfg->qps;
	printf("{\"client\":\"dataflag\",\"role\":\"%s\",\"ok\":%s,\"seed\":%llu,\"load\":\"%s\",\"verbs\":\"%s\",\"qps\":%u,"
	       "\"rounds_sent\":%llu,\"rounds_seen\":%llu,\"wrs\":%llu,\"posts\":%llu,\"signalled\":%llu,\"cqes\":%llu,"
	       "\"recvs\":%llu,\"reads\":%llu,\"events\":%llu,\"bytes\":%llu,\"violations\":%llu,\"guards\":%llu,"
	       "\"ghosts\":%llu,\"errors\":%llu,\"seconds\":%.3f}\n",
	       s->role, ok ? "true" : "false", (unsigned long long)s->cfg->seed, s->cfg->load, verbs_where(), s->cfg->qps,
	       (unsigned long long)s->rounds_sent, (unsigned long long)s->rounds_seen, (unsigned long long)s->wrs,
	       (unsigned long long)s->posts, (unsigned long long)s->signalled, (unsigned long long)s->cqes,
	       (unsigned long long)s->recvs, (unsigned long long)s->reads, (unsigned long long)s->events,
	       (unsigned long long)s->bytes, (unsigned long long)s->violations, (unsigned long long)s->guards,
	       (unsigned long long)s->ghosts, (unsigned long long)s->errors, sec);
	fflush(stdout);
	return ok ? 0 : 1;
}

/* The whole life of one end: 0, 1 or 2 as the exit status. */
static int side_main(struct df_side *s)
{
	uint64_t t0;
	int ret = 2;

	if (df_side_init(s))
		return 2;
	t0 = now_ns();
	if (!run(s))
		ret = 0;
	if (s->failed)
		where(s);
	if (s->failed && s->cfg->wait == WAIT_EVENT) {
		verdict(s, t0);
		return 1;
	}
	df_side_fini(s);
	return ret ? ret : verdict(s, t0);
}

static void *side_thread(void *arg)
{
	return (void *)(intptr_t)side_main(arg);
}

static void side_prepare(struct df_side *s, unsigned int dir, int oob)
{
	s->cfg = &cfg;
	s->dir = dir;
	s->oob = oob;
	s->role = dir ? "server" : "client";
	s->sends = !dir || cfg.bidir;
	s->receives = dir || cfg.bidir;
}

static int meet(void)
{
	uint64_t mine[2] = { cfg.seed, df_digest(&cfg) }, peer[2];
	int fd, lfd;

	if (cfg.mode == MODE_SERVER) {
		lfd = oob_listen(cfg.tcp_port);
		if (lfd < 0) {
			fprintf(stderr, "dataflag: listening on port %d: %s\n", cfg.tcp_port, strerror(-lfd));
			return lfd;
		}
		fd = oob_accept(lfd);
		close(lfd);
	} else {
		fd = oob_connect(cfg.host, cfg.tcp_port, 10000);
	}
	if (fd < 0 || oob_xchg(fd, mine, peer, sizeof(mine))) {
		fprintf(stderr, "dataflag: no peer at %s port %d\n", cfg.host ? cfg.host : "(any)", cfg.tcp_port);
		return -ENOTCONN;
	}
	if (peer[1] != mine[1]) {
		fprintf(stderr, "dataflag: the peer runs with other options\n");
		return -EINVAL;
	}
	if (cfg.mode == MODE_SERVER)
		cfg.seed = peer[0];
	return fd;
}

static int both_same(const int sv[2])
{
	pthread_t t;
	void *ret;
	int mine;

	side_prepare(&sides[0], 0, sv[0]);
	side_prepare(&sides[1], 1, sv[1]);
	if (pthread_create(&t, NULL, side_thread, &sides[1]))
		return 2;
	mine = side_main(&sides[0]);
	if (mine)
		shutdown(sv[0], SHUT_RDWR);
	pthread_join(t, &ret);
	return mine > (int)(intptr_t)ret ? mine : (int)(intptr_t)ret;
}

int main(int argc, char **argv)
{
	int sv[2], fd, status = 0, mine;
	unsigned int dir;
	pthread_t wd;
	pid_t pid = 0;

	df_options(&cfg, argc, argv);
	if (cfg.mode == MODE_SERVER || cfg.mode == MODE_CLIENT) {
		fd = meet();
		if (fd < 0)
			return 2;
		dir = cfg.mode == MODE_SERVER;
		if (dir)
			cfg.peer_dev = NULL;
	} else {
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv))
			return 2;
		/* before any verbs call: a forked child must not inherit anything of a device */
		pid = cfg.mode == MODE_FORK ? fork() : 0;
		if (pid < 0)
			return 2;
		dir = cfg.mode == MODE_FORK && !pid;
		fd = sv[dir];
		if (cfg.mode == MODE_FORK)
			close(sv[!dir]);
	}
	fprintf(stderr, "dataflag: seed %llu\n", (unsigned long long)cfg.seed);
	if (verbs_load(cfg.load, cfg.lib) || pthread_create(&wd, NULL, watchdog, NULL))
		return 2;
	if (cfg.mode == MODE_SAME)
		return both_same(sv);
	side_prepare(&sides[dir], dir, fd);
	mine = side_main(&sides[dir]);
	if (cfg.mode == MODE_FORK && pid) {
		close(fd);
		waitpid(pid, &status, 0);
		status = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	}
	return mine > status ? mine : status;
}

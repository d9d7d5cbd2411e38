// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "df_opts.h"

static const char help[] =
"usage: dataflag [options]            both ends, forked (or in one process with --same)\n"
"       dataflag --server [options]   one end, waits on loopback TCP\n"
"       dataflag --client ADDR [options]\n"
"Data WRITEs, then one flag; whoever sees the flag must see all the data. Both ends need the same options.\n"
"Exit: 0 all right, 1 a violation or an error, 2 could not set up, 3 timed out.\n\n"
"  --dev NAME --peer-dev NAME   device of the client and of the server (--server uses --dev)\n"
"  --ib-port N --gid N          port (1), GID index (-1: the v4-mapped RoCE entry)\n"
"  --tcp-port N                 of the rendezvous (18600)\n"
"  --load link|dlsym|dlvsym     how libibverbs is reached (link)\n"
"  --lib PATH                   what dlopen gets instead of libibverbs.so.1\n"
"  --seed N                     0: from the clock; printed; the server takes the client's\n"
"  --qps N --threads N          queue pairs (1), threads that post (1)\n"
"  --rounds N --window N        rounds per queue pair and direction (200), in flight (4)\n"
"  --min B --max B              size of a WRITE (1, 64k)\n"
"  --writes N --sges N          at most so many WRITEs per round (8), SGEs per WRITE (4)\n"
"  --flags LIST|all             of fetch_add,cmp_swap,inline,write8,send,send_imm,write_imm (all, in turn)\n"
"  --flags-random               kinds drawn at random instead of in turn\n"
"  --post chain|single|random   how WRs are put into lists (random)\n"
"  --wr --cq-ex                 post through ibv_wr_*, poll through ibv_cq_ex with time stamps\n"
"  --no-stamps                  without them: soft-RoCE has none\n"
"  --signal all|flag|random     which WRs are signalled (random)\n"
"  --signal-every N             at least every Nth (8)\n"
"  --depth N                    send queue (64)\n"
"  --inline N                   data WRITEs up to N bytes go inline half of the time (64; 0 never)\n"
"  --cq qp|all --cq-split       a CQ per queue pair (default) or one for all; split: send and receive apart\n"
"  --wait poll|event|fd         poll, block in get_cq_event, or poll(2) on a non-blocking channel (poll)\n"
"  --credit write|send          how rounds are given back (write)\n"
"  --bidir                      both ends send\n"
"  --reads N --mixed            batches of 1-8 READs per queue pair (0), after the rounds or among them\n"
"  --read-back P --overlap P --fence P   percent of rounds with a READ of fresh data before the flag (0), a\n"
"                               WRITE over part of an earlier one (0), a fenced flag (0)\n"
"  --hold-us N                  how long a slot must stay untouched before it is given back (200)\n"
"  --settle-ms N                pause between connecting and the first round (0)\n"
"  --reg reg_mr|iova|iova2|ex --relaxed  registration call, relaxed ordering\n"
"  --mtu N --qp-timeout N       path MTU in bytes (the ports'), local ACK timeout exponent (18)\n"
"  --break flag-first|outside|lost|ghost  the sender breaks a rule in each round: the run must end with 1\n"
"  --timeout S                  give up and say where (120)\n";

struct word {
	const char *name;
	int value;
};

static int word(const struct word *w, const char *s, const char *opt)
{
	for (; w->name; w++)
		if (!strcmp(w->name, s))
			return w->value;
	fprintf(stderr, "dataflag: --%s: %s?\n", opt, s);
	exit(2);
}

static uint64_t number(const char *s, const char *opt, uint64_t lo, uint64_t hi)
{
	char *end;
	uint64_t v;

	errno = 0;
	v = strtoull(s, &end, 0);
	if (*end == 'k' || *end == 'K')
		v <<= 10, end++;
	else if (*end == 'm' || *end == 'M')
		v <<= 20, end++;
	if (errno || end == s || *end || *s == '-' || v < lo || v > hi) {
		fprintf(stderr, "dataflag: --%s: %s is not within %llu..%llu\n", opt, s, (unsigned long long)lo,
			(unsigned long long)hi);
		exit(2);
	}
	return v;
}

static unsigned int kinds(const char *s)
{
	char copy[128], *tok, *save = NULL;
	unsigned int mask = 0, k;

	if (!strcmp(s, "all"))
		return (1u << K_MAX) - 1;
	snprintf(copy, sizeof(copy), "%s", s);
	for (tok = strtok_r(copy, ",", &save); tok; tok = strtok_r(NULL, ",", &save)) {
		for (k = 0; k < K_MAX; k++)
			if (!strcmp(tok, df_kind_name[k]))
				break;
		if (k == K_MAX) {
			fprintf(stderr, "dataflag: --flags: %s?\n", tok);
			exit(2);
		}
		mask |= 1u << k;
	}
	if (!mask)
		exit(2);
	return mask;
}

enum { O_HELP = 256, O_SERVER, O_CLIENT, O_SAME, O_DEV, O_PEERDEV, O_IBPORT, O_GID, O_TCPPORT, O_LOAD, O_LIB, O_SEED,
	O_QPS, O_THREADS, O_ROUNDS, O_WINDOW, O_MIN, O_MAX, O_WRITES, O_SGES, O_FLAGS, O_FLAGSRND, O_POST, O_SIGNAL,
	O_SIGEVERY, O_DEPTH, O_INLINE, O_CQ, O_CQSPLIT, O_WAIT, O_CREDIT, O_BIDIR, O_READS, O_MIXED, O_READBACK,
	O_OVERLAP, O_FENCE, O_HOLD, O_SETTLE, O_REG, O_RELAXED, O_MTU, O_QPTIMEOUT, O_TIMEOUT, O_BREAK, O_WR,
	O_CQEX, O_NOSTAMPS };

static const struct option opts[] = {
	{ "help", 0, NULL, O_HELP }, { "server", 0, NULL, O_SERVER }, { "client", 1, NULL, O_CLIENT },
	{ "same", 0, NULL, O_SAME }, { "dev", 1, NULL, O_DEV }, { "peer-dev", 1, NULL, O_PEERDEV },
	{ "ib-port", 1, NULL, O_IBPORT }, { "gid", 1, NULL, O_GID }, { "tcp-port", 1, NULL, O_TCPPORT },
	{ "load", 1, NULL, O_LOAD }, { "lib", 1, NULL, O_LIB }, { "seed", 1, NULL, O_SEED }, { "qps", 1, NULL, O_QPS },
	{ "threads", 1, NULL, O_THREADS }, { "rounds", 1, NULL, O_ROUNDS }, { "window", 1, NULL, O_WINDOW },
	{ "min", 1, NULL, O_MIN }, { "max", 1, NULL, O_MAX }, { "writes", 1, NULL, O_WRITES },
	{ "sges", 1, NULL, O_SGES }, { "flags", 1, NULL, O_FLAGS }, { "flags-random", 0, NULL, O_FLAGSRND },
	{ "post", 1, NULL, O_POST }, { "signal", 1, NULL, O_SIGNAL }, { "signal-every", 1, NULL, O_SIGEVERY },
	{ "depth", 1, NULL, O_DEPTH }, { "inline", 1, NULL, O_INLINE }, { "cq", 1, NULL, O_CQ },
	{ "cq-split", 0, NULL, O_CQSPLIT }, { "wait", 1, NULL, O_WAIT }, { "credit", 1, NULL, O_CREDIT },
	{ "bidir", 0, NULL, O_BIDIR }, { "reads", 1, NULL, O_READS }, { "mixed", 0, NULL, O_MIXED },
	{ "read-back", 1, NULL, O_READBACK }, { "overlap", 1, NULL, O_OVERLAP }, { "fence", 1, NULL, O_FENCE },
	{ "hold-us", 1, NULL, O_HOLD }, { "settle-ms", 1, NULL, O_SETTLE }, { "reg", 1, NULL, O_REG },
	{ "relaxed", 0, NULL, O_RELAXED }, { "mtu", 1, NULL, O_MTU }, { "qp-timeout", 1, NULL, O_QPTIMEOUT },
	{ "timeout", 1, NULL, O_TIMEOUT }, { "break", 1, NULL, O_BREAK },
	{ "wr", 0, NULL, O_WR }, { "cq-ex", 0, NULL, O_CQEX }, { "no-stamps", 0, NULL, O_NOSTAMPS }, { NULL, 0, NULL, 0 },
};

static const struct word w_post[] = { { "chain", POST_CHAIN }, { "single", POST_SINGLE }, { "random", POST_RANDOM },
				      { NULL, 0 } };
static const struct word w_sig[] = { { "all", SIG_ALL }, { "flag", SIG_FLAG }, { "random", SIG_RANDOM }, { NULL, 0 } };
static const struct word w_cq[] = { { "qp", 0 }, { "all", 1 }, { NULL, 0 } };
static const struct word w_wait[] = { { "poll", WAIT_POLL }, { "event", WAIT_EVENT }, { "fd", WAIT_FD }, { NULL, 0 } };
static const struct word w_credit[] = { { "write", 0 }, { "send", 1 }, { NULL, 0 } };
static const struct word w_reg[] = { { "reg_mr", REG_MR }, { "iova", REG_IOVA }, { "iova2", REG_IOVA2 }, { "ex", REG_EX },
				     { NULL, 0 } };
static const struct word w_break[] = { { "flag-first", BREAK_FLAG_FIRST }, { "outside", BREAK_OUTSIDE },
				       { "lost", BREAK_LOST }, { "ghost", BREAK_GHOST }, { NULL, 0 } };
static const struct word w_mtu[] = { { "256", IBV_MTU_256 }, { "512", IBV_MTU_512 }, { "1024", IBV_MTU_1024 },
				     { "2048", IBV_MTU_2048 }, { "4096", IBV_MTU_4096 }, { NULL, 0 } };

static void one(struct df_cfg *c, int o, const char *name, const char *a)
{
	switch (o) {
	case O_HELP: fputs(help, stdout); exit(0);
	case O_SERVER: c->mode = MODE_SERVER; break;
	case O_CLIENT: c->mode = MODE_CLIENT; c->host = a; break;
	case O_SAME: c->mode = MODE_SAME; break;
	case O_DEV: c->dev = a; break;
	case O_PEERDEV: c->peer_dev = a; break;
	case O_IBPORT: c->ib_port = (int)number(a, name, 1, 255); break;
	case O_GID: c->gid = strcmp(a, "-1") ? (int)number(a, name, 0, 65535) : -1; break;
	case O_TCPPORT: c->tcp_port = (int)number(a, name, 1, 65535); break;
	case O_LOAD: c->load = a; break;
	case O_LIB: c->lib = a; break;
	case O_SEED: c->seed = number(a, name, 0, UINT64_MAX); break;
	case O_QPS: c->qps = (unsigned int)number(a, name, 1, 4096); break;
	case O_THREADS: c->threads = (unsigned int)number(a, name, 1, 64); break;
	case O_ROUNDS: c->rounds = (unsigned int)number(a, name, 1, 100000000); break;
	case O_WINDOW: c->window = (unsigned int)number(a, name, 1, 1024); break;
	case O_MIN: c->min = number(a, name, 1, 1u << 30); break;
	case O_MAX: c->max = number(a, name, 1, 1u << 30); break;
	case O_WRITES: c->max_writes = (unsigned int)number(a, name, 1, DF_MAX_WRITES); break;
	case O_SGES: c->max_sge = (unsigned int)number(a, name, 1, DF_MAX_SGE); break;
	case O_FLAGS: c->kinds = kinds(a); break;
	case O_FLAGSRND: c->kinds_random = true; break;
	case O_POST: c->post = (enum df_post)word(w_post, a, name); break;
	case O_SIGNAL: c->signal = (enum df_signal)word(w_sig, a, name); break;
	case O_SIGEVERY: c->signal_every = (unsigned int)number(a, name, 1, 4096); break;
	case O_DEPTH: c->depth = (unsigned int)number(a, name, 16, 16384); break;
	case O_INLINE: c->inline_max = (unsigned int)number(a, name, 0, 1024); break;
	case O_CQ: c->cq_all = word(w_cq, a, name); break;
	case O_CQSPLIT: c->cq_split = true; break;
	case O_WAIT: c->wait = (enum df_wait)word(w_wait, a, name); break;
	case O_CREDIT: c->credit_send = word(w_credit, a, name); break;
	case O_BIDIR: c->bidir = true; break;
	case O_READS: c->reads = (unsigned int)number(a, name, 0, 100000000); break;
	case O_MIXED: c->mixed = true; break;
	case O_READBACK: c->readback = (unsigned int)number(a, name, 0, 100); break;
	case O_OVERLAP: c->overlap = (unsigned int)number(a, name, 0, 100); break;
	case O_FENCE: c->fence = (unsigned int)number(a, name, 0, 100); break;
	case O_HOLD: c->hold_us = (unsigned int)number(a, name, 0, 10000000); break;
	case O_SETTLE: c->settle_ms = (unsigned int)number(a, name, 0, 600000); break;
	case O_REG: c->reg = (enum df_reg)word(w_reg, a, name); break;
	case O_WR: c->wr = true; break;
	case O_CQEX: c->cq_ex = true; break;
	case O_NOSTAMPS: c->stamps = false; break;
	case O_RELAXED: c->relaxed = true; break;
	case O_MTU: c->mtu = (unsigned int)word(w_mtu, a, name); break;
	case O_QPTIMEOUT: c->qp_timeout = (unsigned int)number(a, name, 1, 31); break;
	case O_BREAK: c->sabotage = (enum df_break)word(w_break, a, name); break;
	case O_TIMEOUT: c->timeout_s = (unsigned int)number(a, name, 1, 86400); break;
	default: fputs("dataflag: try --help\n", stderr); exit(2);
	}
}

void df_options(struct df_cfg *c, int argc, char **argv)
{
	int o, idx = 0;

	*c = (struct df_cfg){ .load = "link", .mode = MODE_FORK, .tcp_port = 18600, .ib_port = 1, .gid = -1, .stamps = true, .qps = 1,
			      .threads = 1, .window = 4, .rounds = 200, .max_writes = 8, .max_sge = 4, .depth = 64,
			      .min = 1, .max = 65536, .kinds = (1u << K_MAX) - 1, .post = POST_RANDOM,
			      .signal = SIG_RANDOM, .signal_every = 8, .hold_us = 200, .timeout_s = 120,
			      .inline_max = 64, .qp_timeout = 18 };
	while ((o = getopt_long(argc, argv, "h", opts, &idx)) != -1)
		one(c, o == 'h' ? O_HELP : o, opts[idx].name, optarg);
	if (optind < argc || c->min > c->max || c->signal_every + DF_MAX_WRS > c->depth) {
		fprintf(stderr, "dataflag: %s\n", optind < argc ? "too many arguments" : c->min > c->max ?
			"--min is above --max" : "--depth is below --signal-every + 12");
		exit(2);
	}
	if (!c->seed)
		c->seed = mix64(now_ns()) >> 16;
}

uint64_t df_digest(const struct df_cfg *c)
{
	uint64_t v[] = { c->qps, c->window, c->rounds, c->max_writes, c->max_sge, c->min, c->max, c->kinds,
			 c->kinds_random, c->inline_max, c->overlap, c->credit_send, c->bidir, c->reads }, h = 0;
	size_t i;

	for (i = 0; i < sizeof(v) / sizeof(v[0]); i++)
		h = mix64(h + v[i] + 1);
	return h;
}

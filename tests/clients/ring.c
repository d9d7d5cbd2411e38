// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Processes in a ring, many QPs to each neighbour: data WRITE, then a SEND that tells of it; the receiver checks the
 * data, often replaces the MR, and tells the new rkey with its credit. With --kill one process is killed and a new one
 * takes its place; its neighbours must learn of that from their completions alone.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "oob.h"
#include "ring.h"

#define MAX_PROCS 16

struct node {
	pid_t pid;
	int ctl;
	bool fresh;		/* in place of one that was killed */
	struct ring_report rep;
};

static struct node nodes[MAX_PROCS];
static char **saved_argv;
static int saved_argc;

static const char help[] =
"usage: ring [--devs A,B,..] [--procs N] [--qps N] [--seconds S] [--size B] [--new-mr PERCENT] [--kill]\n"
"            [--base-port N] [--ib-port N] [--gid N] [--load link|dlsym|dlvsym] [--lib PATH] [--seed N] [--timeout S]\n"
"            [--qp-timeout N: local ACK timeout exponent (18: about 1 s), 3 retries]\n"
"Process i takes the device i modulo their number. Exit: 0 all right, 1 not, 2 no set-up, 3 timed out.\n";

static void options(struct ring_cfg *c, int argc, char **argv)
{
	static const struct option o[] = {
		{ "devs", 1, NULL, 'd' }, { "procs", 1, NULL, 'n' }, { "qps", 1, NULL, 'q' }, { "seconds", 1, NULL, 's' },
		{ "size", 1, NULL, 'z' }, { "new-mr", 1, NULL, 'm' }, { "kill", 0, NULL, 'k' },
		{ "base-port", 1, NULL, 'b' }, { "ib-port", 1, NULL, 'i' }, { "gid", 1, NULL, 'g' },
		{ "load", 1, NULL, 'l' }, { "lib", 1, NULL, 'L' }, { "seed", 1, NULL, 'e' }, { "timeout", 1, NULL, 't' },
		{ "qp-timeout", 1, NULL, 'T' },
		{ "index", 1, NULL, 'I' }, { "ctl", 1, NULL, 'C' }, { "help", 0, NULL, 'h' }, { NULL, 0, NULL, 0 },
	};
	int k;

	*c = (struct ring_cfg){ .load = "link", .procs = 3, .qps = 64, .seconds = 20, .size = 32768, .remr = 20,
				.timeout_s = 180, .qp_timeout = 18, .base_port = 18700, .ib_port = 1, .gid = -1, .index = -1 };
	while ((k = getopt_long(argc, argv, "h", o, NULL)) != -1) {
		switch (k) {
		case 'd': c->devs = optarg; break;
		case 'n': c->procs = (unsigned int)atoi(optarg); break;
		case 'q': c->qps = (unsigned int)atoi(optarg); break;
		case 's': c->seconds = (unsigned int)atoi(optarg); break;
		case 'z': c->size = (unsigned int)strtoul(optarg, NULL, 0); break;
		case 'm': c->remr = (unsigned int)atoi(optarg); break;
		case 'k': c->kill = true; break;
		case 'b': c->base_port = atoi(optarg); break;
		case 'i': c->ib_port = atoi(optarg); break;
		case 'g': c->gid = atoi(optarg); break;
		case 'l': c->load = optarg; break;
		case 'L': c->lib = optarg; break;
		case 'e': c->seed = strtoull(optarg, NULL, 0); break;
		case 't': c->timeout_s = (unsigned int)atoi(optarg); break;
		case 'T': c->qp_timeout = (unsigned int)atoi(optarg); break;
		case 'I': c->index = atoi(optarg); break;
		case 'C': c->ctl = atoi(optarg); break;
		default:
			fputs(help, k == 'h' ? stdout : stderr);
			exit(k == 'h' ? 0 : 2);
		}
	}
	if (optind < argc || c->procs < 2 || c->procs > MAX_PROCS || !c->qps || c->size < 64 || c->size % 4096) {
		fprintf(stderr, "ring: 2..%d processes, size a multiple of 4096; try --help\n", MAX_PROCS);
		exit(2);
	}
	if (!c->seed)
		c->seed = mix64(now_ns()) >> 16;
}

/* A process of its own, not a fork of one that might have touched a device. */
static int start(const struct ring_cfg *c, unsigned int i)
{
	char idx[12], ctl[12], seed[24], **v;
	int sv[2], n;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sv))
		return -errno;
	nodes[i].pid = fork();
	if (nodes[i].pid < 0)
		return -errno;
	if (nodes[i].pid) {
		close(sv[1]);
		nodes[i].ctl = sv[0];
		return 0;
	}
	close(sv[0]);
	for (n = 0; n < (int)c->procs; n++)
		if (nodes[n].ctl > 0 && (unsigned int)n != i)
			close(nodes[n].ctl);
	snprintf(idx, sizeof(idx), "%u", i);
	snprintf(ctl, sizeof(ctl), "%d", sv[1]);
	snprintf(seed, sizeof(seed), "%llu", (unsigned long long)c->seed);
	v = calloc((size_t)saved_argc + 7, sizeof(*v));
	if (!v)
		_exit(2);
	for (n = 0; n < saved_argc; n++)
		v[n] = saved_argv[n];
	v[n++] = "--index";
	v[n++] = idx;
	v[n++] = "--ctl";
	v[n++] = ctl;
	v[n++] = "--seed";
	v[n++] = seed;
	execv("/proc/self/exe", v);
	_exit(2);
}

static void on_alarm(int sig)
{
	static const char text[] = "ring: no end in time\n";
	unsigned int i;

	(void)sig;
	for (i = 0; i < MAX_PROCS; i++)
		if (nodes[i].pid > 0)
			kill(nodes[i].pid, SIGKILL);
	if (write(2, text, sizeof(text) - 1) < 0)
		_exit(4);
	_exit(3);
}

static void nap(uint64_t ms)
{
	struct timespec t = { (time_t)(ms / 1000), (long)(ms % 1000) * 1000000 };

	nanosleep(&t, NULL);
}

static int wait_up(const struct node *n)
{
	char u = 0;
	int err = oob_recv(n->ctl, &u, 1);

	if (err || u != 'U')
		fprintf(stderr, "ring: pid %d: no traffic on both sides\n", n->pid);
	return err ? err : u == 'U' ? 0 : -EPROTO;
}

static int kill_one(const struct ring_cfg *c, struct rng *r)
{
	unsigned int v = (unsigned int)rng_range(r, 0, c->procs - 1);
	int status, err;

	nap(rng_range(r, c->seconds * 200, c->seconds * 500));
	fprintf(stderr, "ring: killing %u (pid %d)\n", v, nodes[v].pid);
	kill(nodes[v].pid, SIGKILL);
	waitpid(nodes[v].pid, &status, 0);
	if (!WIFSIGNALED(status)) {
		fprintf(stderr, "ring: %u had ended by itself\n", v);
		return -ECHILD;
	}
	close(nodes[v].ctl);
	nap(rng_range(r, 0, 1500));
	nodes[v].fresh = true;
	err = start(c, v);
	return err ? err : wait_up(&nodes[v]);
}

static int finish(const struct ring_cfg *c)
{
	unsigned int i;
	int err = 0, status, ok = 1;
	char q;

	for (i = 0; i < c->procs; i++)
		err |= oob_send(nodes[i].ctl, "S", 1);
	for (i = 0; !err && i < c->procs; i++)
		err |= oob_recv(nodes[i].ctl, &q, 1);
	for (i = 0; !err && i < c->procs; i++)
		err |= oob_send(nodes[i].ctl, "X", 1);
	for (i = 0; i < c->procs; i++) {
		if (!err && oob_recv(nodes[i].ctl, &nodes[i].rep, sizeof(nodes[i].rep))) {
			fprintf(stderr, "ring: no report from %u\n", i);
			ok = 0;
		}
		close(nodes[i].ctl);
		waitpid(nodes[i].pid, &status, 0);
		if (!WIFEXITED(status) || WEXITSTATUS(status)) {
			fprintf(stderr, "ring: %u: wait status 0x%x\n", i, status);
			ok = 0;
		}
		nodes[i].pid = 0;
	}
	if (err)
		fprintf(stderr, "ring: a process is gone\n");
	return ok && !err;
}

static bool judge(const struct ring_cfg *c, unsigned int i, bool killed)
{
	const struct ring_report *r = &nodes[i].rep;
	bool ok = !r->bad;
	unsigned int side, other;

	for (side = 0; side < 2; side++) {
		other = (side ? i + c->procs - 1 : i + 1) % c->procs;
		ok &= r->sent[side] && r->verified[side] && r->ups[side] == r->downs[side] + 1;
		if (!killed)
			ok &= !r->downs[side];
		else if (nodes[other].fresh)
			ok &= r->downs[side] >= 1 && r->first_status[side][0];
	}
	printf("{\"client\":\"ring\",\"node\":%u,\"ok\":%s,\"replaced\":%s,\"sent\":[%llu,%llu],\"verified\":[%llu,%llu],"
	       "\"mrs\":[%llu,%llu],\"ups\":[%u,%u],\"downs\":[%u,%u],\"error_cqes\":%u,\"bad\":%u,"
	       "\"first_status\":[\"%s\",\"%s\"]}\n", i, ok ? "true" : "false", nodes[i].fresh ? "true" : "false",
	       (unsigned long long)r->sent[0], (unsigned long long)r->sent[1], (unsigned long long)r->verified[0],
	       (unsigned long long)r->verified[1], (unsigned long long)r->mrs[0], (unsigned long long)r->mrs[1], r->ups[0],
	       r->ups[1], r->downs[0], r->downs[1], r->errors, r->bad, r->first_status[0], r->first_status[1]);
	return ok;
}

int main(int argc, char **argv)
{
	struct ring_cfg c;
	struct rng r;
	unsigned int i;
	int ok, err = 0;

	saved_argc = argc;
	saved_argv = argv;
	options(&c, argc, argv);
	if (c.index >= 0)
		return ring_node(&c);
	fprintf(stderr, "ring: seed %llu\n", (unsigned long long)c.seed);
	signal(SIGALRM, on_alarm);
	alarm(c.timeout_s);
	r.s = c.seed;
	for (i = 0; !err && i < c.procs; i++)
		err = start(&c, i);
	for (i = 0; !err && i < c.procs; i++)
		err = wait_up(&nodes[i]);
	if (!err && c.kill)
		err = kill_one(&c, &r);
	if (err) {
		for (i = 0; i < c.procs; i++)
			if (nodes[i].pid > 0)
				kill(nodes[i].pid, SIGKILL);
		return 2;
	}
	nap(c.kill ? c.seconds * 600 : c.seconds * 1000);
	ok = finish(&c);
	for (i = 0; i < c.procs; i++)
		ok &= judge(&c, i, c.kill);
	return ok ? 0 : 1;
}

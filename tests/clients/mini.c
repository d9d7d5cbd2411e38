// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ex.h"
#include "mini.h"

unsigned int mini_failed;

static void *watchdog(void *arg)
{
	const struct mini *m = arg;

	sleep(m->timeout_s);
	fprintf(stderr, "%s: no end after %u s (seed %llu)\n", m->name, m->timeout_s, (unsigned long long)m->seed);
	_exit(3);
}

void mini_start(struct mini *m, int argc, char **argv, const char *what)
{
	static const struct option opts[] = {
		{ "help", 0, NULL, 'h' }, { "dev", 1, NULL, 'd' }, { "peer-dev", 1, NULL, 'p' },
		{ "ib-port", 1, NULL, 'i' }, { "gid", 1, NULL, 'g' }, { "load", 1, NULL, 'l' }, { "lib", 1, NULL, 'L' },
		{ "seed", 1, NULL, 's' }, { "count", 1, NULL, 'n' }, { "settle-ms", 1, NULL, 'w' },
		{ "timeout", 1, NULL, 't' }, { NULL, 0, NULL, 0 },
	};
	pthread_t t;
	int o;

	setvbuf(stdout, NULL, _IOLBF, 0);
	m->load = "link";
	m->gid = -1;
	m->ib_port = 1;
	while ((o = getopt_long(argc, argv, "h", opts, NULL)) != -1) {
		switch (o) {
		case 'd': m->dev = optarg; break;
		case 'p': m->peer_dev = optarg; break;
		case 'i': m->ib_port = atoi(optarg); break;
		case 'g': m->gid = atoi(optarg); break;
		case 'l': m->load = optarg; break;
		case 'L': m->lib = optarg; break;
		case 's': m->seed = strtoull(optarg, NULL, 0); break;
		case 'n': m->count = (unsigned int)strtoul(optarg, NULL, 0); break;
		case 'w': m->settle_ms = (unsigned int)strtoul(optarg, NULL, 0); break;
		case 't': m->timeout_s = (unsigned int)strtoul(optarg, NULL, 0); break;
		default:
			printf("usage: %s [--dev NAME] [--peer-dev NAME] [--ib-port N] [--gid N] [--load link|dlsym|dlvsym]\n"
			       "\t[--lib PATH] [--seed N] [--count N] [--settle-ms N] [--timeout S]\n%s\n", m->name, what);
			exit(o == 'h' ? 0 : 2);
		}
	}
	if (optind < argc || !m->timeout_s) {
		fprintf(stderr, "%s: try --help\n", m->name);
		exit(2);
	}
	if (!m->seed)
		m->seed = mix64(now_ns()) >> 16;
	if (!m->peer_dev)
		m->peer_dev = m->dev;
	fprintf(stderr, "%s: seed %llu\n", m->name, (unsigned long long)m->seed);
	if (verbs_load(m->load, m->lib) || pthread_create(&t, NULL, watchdog, m))
		exit(2);
	pthread_detach(t);
}

void mini_nap(unsigned int ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

	nanosleep(&t, NULL);
}

int mini_end(const struct mini *m, const char *extra)
{
	printf("{\"client\":\"%s\",\"ok\":%s,\"seed\":%llu,\"load\":\"%s\",\"verbs\":\"%s\",\"failed\":%u%s%s}\n", m->name,
	       mini_failed ? "false" : "true", (unsigned long long)m->seed, m->load, verbs_where(), mini_failed,
	       extra ? "," : "", extra ? extra : "");
	fflush(stdout);
	return mini_failed ? 1 : 0;
}

int mend_new_qp(struct mend *e, const struct mend_want *w)
{
	struct ibv_qp_init_attr a = {
		.send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = w->depth, .max_recv_wr = w->recvs ? w->recvs : 1,
			 .max_send_sge = w->sge ? w->sge : 1, .max_recv_sge = 1, .max_inline_data = w->inl },
	};

	if (e->qp) {
		int err = vb.destroy_qp(e->qp);

		CHECK(!err, "destroy_qp: %s", strerror(err));
	}
	e->qp = any_create_qp(e->dev.pd, &a);
	if (!e->qp) {
		fprintf(stderr, "create_qp on %s: %s\n", e->dev.name, strerror(errno));
		return errno ? -errno : -EIO;
	}
	e->cap = a.cap;
	return 0;
}

int mend_new_cq(struct mend *e, const struct mend_want *w, int cqe, struct ibv_comp_channel *on, void *cq_context)
{
	if (e->qp)
		CHECK(!vb.destroy_qp(e->qp), "destroy_qp");
	e->qp = NULL;
	CHECK(!vb.destroy_cq(e->cq), "destroy_cq");
	e->cq = any_create_cq(e->dev.ctx, cqe, cq_context, on, 0);
	CHECK(e->cq && e->cq->channel == on, "create_cq: %s", strerror(errno));
	return e->cq ? mend_new_qp(e, w) : -EIO;
}

int mend_open(struct mend *e, const struct mini *m, const char *dev, const struct mend_want *w)
{
	int err;

	memset(e, 0, sizeof(*e));
	err = rc_open(&e->dev, dev, m->ib_port, m->gid);
	if (err)
		return err;
	e->len = (w->len + 4095) & ~4095ull;
	e->buf = aligned_alloc(4096, e->len);
	if (!e->buf)
		return -ENOMEM;
	memset(e->buf, 0, e->len);
	e->mr = vb.reg_mr(e->dev.pd, e->buf, e->len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	e->cq = e->mr ? any_create_cq(e->dev.ctx, (int)(2 * w->depth + 2 * w->recvs + 16), NULL, NULL, 0) : NULL;
	if (!e->cq) {
		fprintf(stderr, "%s on %s: %s\n", e->mr ? "create_cq" : "reg_mr", dev ? dev : "the first device",
			strerror(errno));
		return errno ? -errno : -EIO;
	}
	e->psn = 0x1000;
	return mend_new_qp(e, w);
}

int mend_join(struct mend *a, struct mend *b, const struct rc_opts *o)
{
	struct rc_addr aa, ba;
	int err;

	rc_addr_of(&a->dev, a->qp, a->psn, &aa);
	rc_addr_of(&b->dev, b->qp, b->psn, &ba);
	err = rc_connect(&a->dev, a->qp, a->psn, &ba, o);
	if (!err && a != b)
		err = rc_connect(&b->dev, b->qp, b->psn, &aa, o);
	return err;
}

void mend_close(struct mend *e)
{
	int err = e->qp ? vb.destroy_qp(e->qp) : 0;

	CHECK(!err, "destroy_qp: %s", strerror(err));
	err = e->cq ? vb.destroy_cq(e->cq) : 0;
	CHECK(!err, "destroy_cq: %s", strerror(err));
	err = e->mr ? vb.dereg_mr(e->mr) : 0;
	CHECK(!err, "dereg_mr: %s", strerror(err));
	err = rc_close(&e->dev);
	CHECK(!err, "close: %s", strerror(-err));
	free(e->buf);
	memset(e, 0, sizeof(*e));
}

const char *mend_state(struct mend *e)
{
	static const char *const names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };
	struct ibv_qp_init_attr ia;
	struct ibv_qp_attr qa;

	if (vb.query_qp(e->qp, &qa, IBV_QP_STATE, &ia))
		return "query failed";
	return qa.qp_state <= IBV_QPS_ERR ? names[qa.qp_state] : "?";
}

int mend_post(struct mend *e, const struct mwr *w)
{
	struct ibv_sge sge = { (uintptr_t)e->buf + w->off, (uint32_t)w->len, e->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = w->id, .sg_list = &sge, .num_sge = w->len ? 1 : 0, .opcode = w->op,
				  .send_flags = (unsigned int)w->flags }, *bad = NULL;
	int err;

	if (w->op == IBV_WR_ATOMIC_FETCH_AND_ADD || w->op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = w->raddr;
		wr.wr.atomic.rkey = w->rkey;
		wr.wr.atomic.compare_add = w->op == IBV_WR_ATOMIC_FETCH_AND_ADD ? w->arg : w->compare;
		wr.wr.atomic.swap = w->arg;
	} else {
		wr.wr.rdma.remote_addr = w->raddr;
		wr.wr.rdma.rkey = w->rkey;
	}
	err = any_post(e->qp, &wr, &bad);
	CHECK(!err || bad == &wr, "bad_wr is not the refused WR");
	return err;
}

int mend_recv(struct mend *e, size_t off, size_t len, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)e->buf + off, (uint32_t)len, e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(e->qp, &wr, &bad);
}

void mend_expect(struct mend *e, uint64_t id, enum ibv_wc_opcode op, int64_t byte_len)
{
	struct ibv_wc wc = { 0 };
	int n = rc_poll_one(e->cq, &wc, 10000);

	CHECK(n == 1, "no completion of 0x%llx within 10 s", (unsigned long long)id);
	if (n != 1)
		return;
	CHECK(wc.status == IBV_WC_SUCCESS, "0x%llx: %s", (unsigned long long)id, vb.wc_status_str(wc.status));
	CHECK(wc.wr_id == id, "wr_id 0x%llx instead of 0x%llx", (unsigned long long)wc.wr_id, (unsigned long long)id);
	CHECK(wc.qp_num == e->qp->qp_num, "qp_num 0x%x instead of 0x%x", wc.qp_num, e->qp->qp_num);
	CHECK(wc.status || wc.opcode == op, "opcode %d instead of %d", wc.opcode, op);
	CHECK(wc.status || byte_len < 0 || wc.byte_len == byte_len, "byte_len %u instead of %lld", wc.byte_len,
	      (long long)byte_len);
}

void mini_cases(const struct mini_case *c, size_t n)
{
	const char *only = getenv("CASE"), *skip = getenv("SKIP");

	for (size_t i = 0; i < n; i++)
		if ((!only || !strcmp(only, c[i].name)) && !(skip && strstr(skip, c[i].name))) {
			printf("%s\n", c[i].name);
			c[i].fn();
		}
}

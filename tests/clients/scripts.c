// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A script of verbs by chance, as the seed says, on some pairs of RC QPs; what a program sees of it on stdout. Nothing there
 * depends on timing, so natively and with the library the same must be printed. Each step has a seed of its own:
 * SCRIPTS_ONLY=3,7 leaves out the others.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "scripts.h"

struct mini sm = { .name = "scripts", .count = 24, .timeout_s = 90 };
struct side sides[2];
struct way ways[2 * PAIRS];
unsigned int nways;
bool ex_qp, sig_all;
struct rng luck;

static struct rc_opts opts = { .timeout = 16, .retry_cnt = 7, .rnr_retry = 3 };
static uint64_t epoch;
static const int REMOTE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
			  IBV_ACCESS_MW_BIND;

static void *need(void *p, const char *what)
{
	if (p)
		return p;
	fprintf(stderr, "scripts: %s: %s\n", what, strerror(errno));
	exit(2);
}

static void *memory_of(size_t len)
{
	return memset(need(aligned_alloc(4096, len), "memory"), 0, len);
}

/* ---- what there is ---- */

static void open_side(unsigned int i, struct rng *r)
{
	struct side *s = &sides[i];
	bool channel = rng_pct(r, 60);

	if (rc_open(&s->dev, i ? sm.peer_dev : sm.dev, sm.ib_port, sm.gid))
		exit(2);
	if (channel)
		s->ch = need(vb.create_comp_channel(s->dev.ctx), "create_comp_channel");
	s->ncq = (unsigned int)rng_range(r, 1, CQS);
	for (unsigned int c = 0; c < s->ncq; c++) {
		s->ex[c] = rng_pct(r, 30);
		s->stamps[c] = rng_pct(r, 40);
		s->cq[c] = need(s->ex[c] ? ex_create_cq(s->dev.ctx, 1000, NULL, s->ch, 0, s->stamps[c]) :
				vb.create_cq(s->dev.ctx, 1000, NULL, s->ch, 0), "create_cq");
	}
	if (rng_pct(r, 30)) {
		struct ibv_srq_init_attr a = { .attr = { .max_wr = SLOTS, .max_sge = 2 } };

		s->srq = need(ibv_create_srq(s->dev.pd, &a), "create_srq");
		s->srq_slots = memory_of((size_t)SLOTS * SLOT);
		s->srq_mr = need(vb.reg_mr(s->dev.pd, s->srq_slots, (size_t)SLOTS * SLOT, IBV_ACCESS_LOCAL_WRITE), "reg_mr");
	}
	say("side %d: %u cqs, channel %d, srq %d\n", i, s->ncq, channel, s->srq != NULL);
}

static void new_qp(struct way *w)
{
	struct side *s = &sides[w->side];
	struct ibv_qp_init_attr a = {
		.send_cq = s->cq[w->scq], .recv_cq = s->cq[w->rcq], .srq = s->srq, .qp_type = IBV_QPT_RC, .sq_sig_all = sig_all,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = s->srq ? 0 : RECVS, .max_send_sge = SGES, .max_recv_sge = 2,
			 .max_inline_data = INL },
	};

	w->qp = need(ex_qp ? ex_create_qp(s->dev.pd, &a) : vb.create_qp(s->dev.pd, &a), "create_qp");
	w->avail = w->used = w->nreads = 0;
}

static void new_target(struct way *w)
{
	w->target_mr = need(vb.reg_mr(sides[!w->side].dev.pd, w->target, AREA, REMOTE), "reg_mr");
	w->target_base = (uintptr_t)w->target;
}

static void open_way(unsigned int i, struct rng *r)
{
	struct way *w = &ways[i];
	struct ibv_pd *pd;

	*w = (struct way){ .no = i, .pair = i / 2, .side = i % 2, .peer = &ways[i ^ 1] };
	snprintf(w->name, sizeof(w->name), "%c%u", "AB"[w->side], w->pair % 10);
	pd = sides[w->side].dev.pd;
	w->scq = (unsigned int)rng_range(r, 0, sides[w->side].ncq - 1);
	w->rcq = (unsigned int)rng_range(r, 0, sides[w->side].ncq - 1);
	w->src = memory_of(AREA);
	w->land = memory_of(AREA);
	w->target = memory_of(AREA);
	w->slots = memory_of((size_t)SLOTS * SLOT);
	w->target_dark = memory_of(AREA);
	w->land_dark = memory_of(AREA);
	w->src_mr = need(vb.reg_mr(pd, w->src, AREA, 0), "reg_mr");
	w->src_mr2 = need(vb.reg_mr(pd, w->src, AREA, 0), "reg_mr");
	w->land_mr = need(vb.reg_mr(pd, w->land, AREA, IBV_ACCESS_LOCAL_WRITE), "reg_mr");
	w->slots_mr = need(vb.reg_mr(pd, w->slots, (size_t)SLOTS * SLOT, IBV_ACCESS_LOCAL_WRITE), "reg_mr");
	new_target(w);
	new_qp(w);
}

static void join(unsigned int pair, struct rng *r)
{
	static const unsigned int naps[] = { 0, 0, 5, 30, 100 };
	struct way *a = &ways[2 * pair], *b = a->peer;
	struct rc_addr aa, ba;
	int err;

	rc_addr_of(&sides[0].dev, a->qp, 0x1000, &aa);
	rc_addr_of(&sides[1].dev, b->qp, 0x2000, &ba);
	err = rc_connect(&sides[0].dev, a->qp, 0x1000, &ba, &opts);
	if (!err)
		err = rc_connect(&sides[1].dev, b->qp, 0x2000, &aa, &opts);
	say("  pair %u connected: %d\n", pair, err);
	mini_nap(naps[rng_range(r, 0, 4)] * (sm.settle_ms ? sm.settle_ms : 100) / 100);
}

static void close_all(void)
{
	for (unsigned int i = 0; i < nways; i++) {
		struct way *w = &ways[i];

		CHECK(!vb.destroy_qp(w->qp), "destroy_qp");
		w->qp = NULL;
		CHECK(!vb.dereg_mr(w->target_mr) && !vb.dereg_mr(w->src_mr) && !vb.dereg_mr(w->src_mr2) && !vb.dereg_mr(w->land_mr) &&
		      !vb.dereg_mr(w->slots_mr), "dereg_mr");
		free(w->src);
		free(w->land);
		free(w->target);
		free(w->slots);
		free(w->target_dark);
		free(w->land_dark);
	}
	for (unsigned int i = 0; i < 2; i++) {
		struct side *s = &sides[i];

		if (s->srq)
			CHECK(!ibv_destroy_srq(s->srq) && !vb.dereg_mr(s->srq_mr), "destroy_srq");
		free(s->srq_slots);
		for (unsigned int c = 0; c < s->ncq; c++)
			CHECK(!vb.destroy_cq(s->cq[c]), "destroy_cq");
		if (s->ch)
			CHECK(!vb.destroy_comp_channel(s->ch), "destroy_comp_channel");
		CHECK(!rc_close(&s->dev), "close");
	}
}

/* ---- what is common to the steps ---- */

static const char *state_of(struct way *w)
{
	struct mend e = { .qp = w->qp };

	return mend_state(&e);
}

static void query(struct way *w)
{
	struct ibv_qp_init_attr ia;
	struct ibv_qp_attr a;
	int err = vb.query_qp(w->qp, &a, IBV_QP_STATE | IBV_QP_CAP | IBV_QP_PATH_MTU | IBV_QP_RETRY_CNT | IBV_QP_ACCESS_FLAGS |
			      IBV_QP_DEST_QPN | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT | IBV_QP_MAX_QP_RD_ATOMIC, &ia);

	say("  %s query %d: state %d mtu %d retry %d rnr %d timeout %d access %x rd %d peer %d cap %u %u %u %u %u, cqs %d srq %d all %d\n",
	    w->name, err, a.qp_state, a.path_mtu, a.retry_cnt, a.rnr_retry, a.timeout, a.qp_access_flags, a.max_rd_atomic,
	    a.dest_qp_num == w->peer->qp->qp_num, a.cap.max_send_wr, a.cap.max_recv_wr, a.cap.max_send_sge, a.cap.max_recv_sge,
	    a.cap.max_inline_data, ia.send_cq == sides[w->side].cq[w->scq] && ia.recv_cq == sides[w->side].cq[w->rcq],
	    ia.srq == sides[w->side].srq, ia.sq_sig_all);
}

/* Everything that was posted is done, and told. */
static bool quiesce(void)
{
	unsigned int taken;
	struct req q;
	bool ok;

	for (unsigned int i = 0; i < nways; i++) {
		struct way *w = &ways[i];
		uint64_t mark = i;
		int err;

		if (!w->used)
			continue;
		req_flag(w, &q, &mark, AREA - 64);
		err = post_only(w, &q, 1, &taken);
		if (err)
			say("  %s quiesce: %s\n", w->name, strerror(err));
	}
	ok = wait_wanted();
	report();
	for (unsigned int i = 0; i < nways / 2; i++)
		memory(i);
	say_events();
	for (unsigned int i = 0; i < nways; i++) {
		ways[i].used = ways[i].nreads = 0;
		if (ok)
			pattern_fill(ways[i].src, sm.seed + epoch++, 0, AREA);
	}
	return ok;
}

static struct way *any_way(struct rng *r)
{
	return &ways[rng_range(r, 0, nways - 1)];
}

/* Posts n requests by chance, in some lists; say what posting did. */
static void load(struct way *w, struct rng *r, unsigned int n, bool recvs)
{
	struct req q[8];
	unsigned int taken, k;
	int err;

	for (; n; n -= k) {
		k = (unsigned int)rng_range(r, 1, n < 8 ? n : 8);
		for (unsigned int i = 0; i < k; i++) {
			do
				req_any(w, r, &q[i]);
			while (!recvs && req_takes_recv(&q[i]));
		}
		err = post_reqs(w, q, k, &taken);
		if (err)
			say("  %s post %u: %s, taken %u\n", w->name, k, strerror(err), taken);
	}
}

/* ---- steps ---- */

static void traffic(struct rng *r)
{
	unsigned int rounds = (unsigned int)rng_range(r, 1, 3);

	for (unsigned int i = 0; i < nways; i++)
		if (ways[i].used + 24 > DEPTH) {
			quiesce();
			break;
		}
	for (unsigned int i = 0; i < rounds; i++)
		for (unsigned int k = 0; k < nways; k++) {
			struct way *w = any_way(r);

			if (w->used + 9 > DEPTH)
				continue;
			if (rng_pct(r, 20) && w->peer->avail + 8 < RECVS / 2 && !sides[w->peer->side].srq)
				post_recvs(w->peer, r, (unsigned int)rng_range(r, 1, 8));
			load(w, r, (unsigned int)rng_range(r, 1, 8), true);
			if (rng_pct(r, 20))
				mini_nap((unsigned int)rng_range(r, 1, 3));
			if (rng_pct(r, 30))
				pump();
			if (rng_pct(r, 5))
				query(w);
		}
	if (rng_pct(r, 70)) {
		quiesce();
	} else {
		wait_wanted();
		report();
	}
}

/* Data, then what tells of it; who was told looks at once. */
static void message(struct rng *r)
{
	struct way *w = any_way(r);
	unsigned int n = (unsigned int)rng_range(r, 1, 5), kind = (unsigned int)rng_range(r, 0, 3), taken;
	volatile uint64_t *flag = (volatile uint64_t *)(w->target + AREA - 32);
	uint64_t value = rng_u64(r) | 1, until, was;
	struct req q[8];

	quiesce();
	*flag = was = 0;
	for (unsigned int i = 0; i < n; i++)
		req_make(w, r, &q[i], IBV_WR_RDMA_WRITE, rng_pct(r, 70));
	if (kind == 0)
		req_make(w, r, &q[n], IBV_WR_SEND, rng_pct(r, 20));
	else if (kind == 1)
		req_make(w, r, &q[n], IBV_WR_RDMA_WRITE_WITH_IMM, rng_pct(r, 20));
	else if (kind == 2)
		req_flag(w, &q[n], &value, AREA - 32);
	else {
		req_make(w, r, &q[n], IBV_WR_ATOMIC_FETCH_AND_ADD, false);
		q[n].is.roff = AREA - 32;
		q[n].wr.wr.atomic.remote_addr = w->target_base + AREA - 32;
		q[n].wr.wr.atomic.compare_add = value;
	}
	say("  %s %u WRITEs and a %s: %d\n", w->name, n, (const char *[]){ "SEND", "number", "flag", "sum" }[kind],
	    post_reqs(w, q, n + 1, &taken));
	until = now_ns() + UINT64_C(10000000000);
	while (kind < 2 ? !w->peer->nrecvs : *flag == was) {
		if (now_ns() > until) {
			say("  nobody was told\n");
			break;
		}
		if (kind < 2)
			pump();
	}
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	say("  then there is %llx\n", (unsigned long long)sum_of(w->target, w->target_dark, AREA));
	quiesce();
}

/* The pair goes through ERR, and begins anew. */
static void recover(unsigned int pair, struct rng *r, bool told)
{
	struct way *two[2] = { &ways[2 * pair], &ways[2 * pair + 1] };
	bool anew = rng_pct(r, 40), early = rng_pct(r, 20);
	unsigned int taken;
	struct req q;

	for (unsigned int i = 0; i < 2 && told; i++) {
		say("  %s to ERR: %d\n", two[i]->name, rc_to_state(two[i]->qp, IBV_QPS_ERR));
		if (!sides[i].srq)
			two[i]->want_recvs += two[i]->avail;
	}
	if (told) {
		wait_wanted();
		report();
	}
	for (unsigned int i = 0; i < 2; i++) {
		struct way *w = two[i];

		if (anew) {
			collect_events(0);
			say("  %s destroyed: %d\n", w->name, vb.destroy_qp(w->qp));
		} else {
			say("  %s to RESET: %d\n", w->name, rc_to_state(w->qp, IBV_QPS_RESET));
		}
		pump();
		if (!told) {
			/* whether it was told of some before is nobody's promise */
			while (pump())
				;
			w->nsends = w->nrecvs = w->want_sends = w->want_recvs = w->nlog = 0;
		}
		if (anew) {
			w->qp = NULL;
			new_qp(w);
		}
		w->avail = w->used = w->nreads = 0;
		memset(w->target, 0, AREA);
		memset(w->land, 0, AREA);
		memset(w->target_dark, 0, AREA);
		memset(w->land_dark, 0, AREA);
	}
	if (early) {
		req_at(two[0], r, &q, 0, 100);
		say("  post in RESET: %s\n", strerror(post_only(two[0], &q, 1, &taken)));
	}
	join(pair, r);
	/* nothing of its earlier life comes now */
	pump();
	report();
	say_events();
}

enum wrong { BAD_RKEY, BAD_LKEY, BEYOND, LOCAL_BEYOND, NO_RECEIVE, TOO_LONG, NO_RIGHT, GONE, WRONGS };

static void fail(struct rng *r)
{
	static const char *const names[] = { "bad rkey", "bad lkey", "beyond the region", "beyond the local region", "no receive",
					     "too long to receive", "no right", "region gone" };
	struct way *w = any_way(r), *other = any_way(r);
	enum wrong kind = (enum wrong)rng_range(r, 0, WRONGS - 1);
	unsigned int before = (unsigned int)rng_range(r, 0, 4), after = (unsigned int)rng_range(r, 0, 3), n, taken, told = 0;
	struct side *ps = &sides[w->peer->side];
	unsigned int *avail = ps->srq ? &ps->srq_avail : &w->peer->avail;
	struct req q[8], *bad;
	enum ibv_wr_opcode op;
	bool at_peer, company;
	int err;

	quiesce();
	if (kind == NO_RECEIVE && *avail)
		kind = BAD_RKEY;
	company = other->pair != w->pair && kind != NO_RECEIVE && kind != TOO_LONG && rng_pct(r, 50);
	if (company)
		load(other, r, (unsigned int)rng_range(r, 1, 8), true);
	for (unsigned int i = 0; i < before; i++)
		req_any(w, r, &q[i]);
	bad = &q[before];
	switch (kind) {
	case NO_RECEIVE:
	case TOO_LONG:
		op = rng_pct(r, 50) ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM;
		break;
	default:
		switch (rng_range(r, 0, 7)) {
		case 0: op = IBV_WR_RDMA_READ; break;
		case 1: op = IBV_WR_ATOMIC_FETCH_AND_ADD; break;
		default: op = IBV_WR_RDMA_WRITE;
		}
	}
	do
		req_make(w, r, bad, op, rng_pct(r, 70));
	while ((kind == BAD_LKEY || kind == LOCAL_BEYOND || kind == BEYOND || kind == BAD_RKEY || kind == NO_RIGHT || kind == GONE) &&
	       (bad->wr.num_sge < 1 || bad->wr.send_flags & IBV_SEND_INLINE || bad->is.rlen < 2 || !bad->sge[0].length));
	switch (kind) {
	case BAD_RKEY:
		if (op == IBV_WR_ATOMIC_FETCH_AND_ADD)
			bad->wr.wr.atomic.rkey ^= 0x5a5a00;
		else
			bad->wr.wr.rdma.rkey ^= 0x5a5a00;
		break;
	case BAD_LKEY:
		bad->sge[0].lkey ^= 0x5a5a00;
		break;
	case BEYOND:
		if (op == IBV_WR_ATOMIC_FETCH_AND_ADD)
			bad->wr.wr.atomic.remote_addr = w->target_base + AREA;
		else
			bad->wr.wr.rdma.remote_addr = w->target_base + AREA - bad->is.rlen / 2;
		/* in part it may be written */
		bad->is.roff = AREA - bad->is.rlen / 2;
		bad->is.rlen /= 2;
		break;
	case LOCAL_BEYOND:
		bad->sge[0].addr = (op == IBV_WR_RDMA_WRITE ? (uintptr_t)w->src : (uintptr_t)w->land) + AREA - bad->sge[0].length / 2;
		break;
	case TOO_LONG:
		bad->sge[0] = (struct ibv_sge){ (uintptr_t)w->src, SLOT + (uint32_t)rng_range(r, 1, 100000), w->src_mr->lkey };
		bad->wr.num_sge = 1;
		bad->wr.send_flags &= ~(unsigned int)IBV_SEND_INLINE;
		break;
	default:
		break;
	}
	for (n = before + 1; n <= before + after; n++)
		req_any(w, r, &q[n]);
	if (rng_pct(r, 50) && !sig_all) {
		q[n - 1].wr.send_flags |= IBV_SEND_SIGNALED;
		q[n - 1].is.sig = true;
	}
	at_peer = kind == BAD_RKEY || kind == BEYOND || kind == TOO_LONG || kind == NO_RIGHT || kind == GONE;
	say("  %s %s, opcode %d, request %u of %u, company %d\n", w->name, names[kind], op, before, n, company);
	/* the receives that those before it take, and what it must find */
	for (unsigned int i = 0; i < before; i++)
		told += req_takes_recv(&q[i]);
	if (kind == TOO_LONG)
		told++;
	if (*avail < told)
		post_recvs(w->peer, r, told - *avail);
	if (kind == NO_RIGHT || kind == GONE) {
		/* those before must be done with it */
		err = before ? post_only(w, q, before, &taken) : 0;
		if (err)
			say("  before: %s\n", strerror(err));
		w->peer->want_recvs += told;
		*avail -= told;
		told = 0;
		quiesce();
		if (kind == GONE)
			say("  dereg: %d\n", vb.dereg_mr(w->target_mr));
		else
			say("  rereg: %d\n", ibv_rereg_mr(w->target_mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
		err = post_only(w, bad, n - before, &taken);
	} else if (rng_pct(r, 50)) {
		err = post_only(w, q, n, &taken);
	} else {
		err = post_only(w, q, before + 1, &taken);
		if (!err && after)
			err = post_only(w, bad + 1, after, &taken);
	}
	if (err)
		say("  post: %s\n", strerror(err));
	/* from it on all are told of */
	for (unsigned int i = 0, seen = 0; i < w->nlog; i++) {
		seen |= w->log[i].id == bad->is.id;
		if (seen && !w->log[i].sig)
			w->want_sends++;
		if (seen)
			darken(w, &w->log[i]);
	}
	*avail -= told;
	w->peer->want_recvs += told;
	if (at_peer && !ps->srq) {
		w->peer->want_recvs += w->peer->avail;
		w->peer->avail = 0;
	}
	/* its own are flushed */
	if (!sides[w->side].srq)
		w->want_recvs += w->avail;
	w->avail = 0;
	wait_wanted();
	if (at_peer) {
		enum ibv_event_type t = kind == TOO_LONG ? IBV_EVENT_QP_REQ_ERR : IBV_EVENT_QP_ACCESS_ERR;

		say("  told of by an event: %d\n", wait_event(w->peer, t, 5000));
	}
	report();
	say("  states %s %s\n", state_of(w), state_of(w->peer));
	memory(w->pair);
	if (rng_pct(r, 40)) {
		/* nothing that is posted now begins */
		w->want_sends++;
		req_any(w, r, &q[0]);
		q[0].is.sig = false;
		darken(w, &q[0].is);
		say("  afterwards: %s\n", strerror(post_only(w, q, 1, &taken)));
		wait_wanted();
		report();
	}
	if (kind == GONE)
		new_target(w);
	else if (kind == NO_RIGHT)
		say("  rereg: %d\n", ibv_rereg_mr(w->target_mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, REMOTE));
	recover(w->pair, r, true);
	quiesce();
}

/* To ERR with requests under way: those told of are the first, and all from the first that is flushed. */
static void leave(struct rng *r)
{
	struct way *w = any_way(r);
	bool recvs = !sides[w->peer->side].srq;
	unsigned int n = (unsigned int)rng_range(r, 1, 24), posted, next = 0, taken;
	bool flushed = false, good = true;
	struct req q;

	quiesce();
	load(w, r, n, recvs);
	req_any(w, r, &q);
	if (req_takes_recv(&q) && !recvs)
		req_at(w, r, &q, 0, 50000);
	q.wr.send_flags |= IBV_SEND_SIGNALED;
	q.is.sig = true;
	post_reqs(w, &q, 1, &taken);
	posted = w->nlog;
	if (rng_pct(r, 60))
		mini_nap((unsigned int)rng_range(r, 0, 2));
	say("  %s to ERR with %u: %d\n", w->name, posted, rc_to_state(w->qp, IBV_QPS_ERR));
	w->peer->avail += w->peer->want_recvs;
	w->peer->want_recvs = 0;
	for (uint64_t until = now_ns() + UINT64_C(10000000000); now_ns() < until; pump())
		if (w->nsends && w->sends[w->nsends - 1].wc.wr_id == q.is.id)
			break;
	for (unsigned int i = 0; i < w->nsends; i++) {
		const struct ibv_wc *wc = &w->sends[i].wc;

		while (next < posted && w->log[next].id != wc->wr_id) {
			if (flushed || w->log[next].sig) {
				good = false;
				say("  not told of %u\n", next);
			}
			next++;
		}
		if (next == posted) {
			good = false;
			say("  out of order: %u\n", (unsigned int)(wc->wr_id & 0xffff));
			break;
		}
		if (wc->status == IBV_WC_SUCCESS ? flushed || !w->log[next].sig : wc->status != IBV_WC_WR_FLUSH_ERR) {
			good = false;
			say("  request %u, signalled %d: %s\n", next, w->log[next].sig, vb.wc_status_str(wc->status));
		}
		flushed |= wc->status != IBV_WC_SUCCESS;
		next++;
	}
	say("  told %s, of the last %d, state %s\n", good ? "well" : "badly", next == posted, state_of(w));
	w->nsends = w->want_sends = w->nlog = 0;
	if (recvs) {
		say("  %s to ERR: %d\n", w->peer->name, rc_to_state(w->peer->qp, IBV_QPS_ERR));
		w->peer->want_recvs = w->peer->avail;
		wait_wanted();
		good = true;
		for (unsigned int i = 0; i < w->peer->nrecvs; i++) {
			enum ibv_wc_status st = w->peer->recvs[i].wc.status;

			good &= st == IBV_WC_WR_FLUSH_ERR || (!st && (!i || !w->peer->recvs[i - 1].wc.status));
		}
		say("  %u receives, told %s\n", w->peer->nrecvs, good ? "well" : "badly");
		w->peer->nrecvs = w->peer->want_recvs = w->peer->avail = 0;
	}
	recover(w->pair, r, true);
	quiesce();
}

/* RESET, or destroyed, with requests under way. */
static void abandon(struct rng *r)
{
	struct way *w = any_way(r);

	quiesce();
	load(w, r, (unsigned int)rng_range(r, 1, 24), false);
	if (rng_pct(r, 50))
		load(w->peer, r, (unsigned int)rng_range(r, 1, 12), false);
	if (rng_pct(r, 60))
		mini_nap((unsigned int)rng_range(r, 0, 2));
	recover(w->pair, r, false);
	quiesce();
}

static void drain(struct rng *r)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	struct way *w = any_way(r), *other = any_way(r);
	unsigned int taken;
	struct req q;
	int err;

	quiesce();
	if (rng_pct(r, 50))
		load(w, r, (unsigned int)rng_range(r, 1, 16), true);
	if (other != w)
		load(other, r, (unsigned int)rng_range(r, 1, 8), true);
	err = vb.modify_qp(w->qp, &a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
	say("  %s to SQD: %d, drained %d\n", w->name, err, wait_event(w, IBV_EVENT_SQ_DRAINED, 5000));
	load(w, r, (unsigned int)rng_range(r, 1, 8), true);
	req_at(w, r, &q, 0, 70000);
	post_reqs(w, &q, 1, &taken);
	mini_nap((unsigned int)rng_range(r, 0, 3));
	say("  state %s\n", state_of(w));
	say("  back: %d, state %s\n", rc_to_state(w->qp, IBV_QPS_RTS), state_of(w));
	if (rng_pct(r, 50))
		load(w, r, (unsigned int)rng_range(r, 1, 8), true);
	quiesce();
}

/* The peer's region goes, and another comes, perhaps at another address. */
static void region(struct rng *r)
{
	struct way *w = any_way(r);
	struct ibv_pd *pd = sides[!w->side].dev.pd;
	unsigned int kind = (unsigned int)rng_range(r, 0, 2);
	int err;

	quiesce();
	if (kind < 2) {
		err = vb.dereg_mr(w->target_mr);
		if (kind)
			w->target_base = (rng_range(r, 1, 1000) << 32) | ((uintptr_t)w->target & 0xfff);
		w->target_mr = kind ? vb.reg_mr_iova2(pd, w->target, AREA, w->target_base, REMOTE) : NULL;
		if (kind)
			need(w->target_mr, "reg_mr_iova2");
		else
			new_target(w);
	} else {
		err = ibv_rereg_mr(w->target_mr, IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION, NULL, w->target, AREA, REMOTE);
		w->target_base = (uintptr_t)w->target;
	}
	say("  %s has another region to write to, %u: %d\n", w->name, kind, err);
	load(w, r, (unsigned int)rng_range(r, 1, 16), true);
	quiesce();
}

/* A list with one in it that is refused. */
static void refuse(struct rng *r)
{
	struct way *w = any_way(r);
	unsigned int before = (unsigned int)rng_range(r, 0, 4), after = (unsigned int)rng_range(r, 0, 3), taken;
	bool busy = rng_pct(r, 50);
	struct req q[8];
	int err;

	if (busy)
		quiesce();
	if (w->used + 26 > DEPTH)
		quiesce();
	load(w, r, (unsigned int)rng_range(r, 1, 8), true);
	for (unsigned int i = 0; i < before; i++)
		req_any(w, r, &q[i]);
	req_at(w, r, &q[before], 0, 100000);
	switch (rng_range(r, 0, 2)) {
	case 0:
		for (unsigned int i = 1; i < 8; i++)
			q[before].sge[i] = q[before].sge[0];
		q[before].wr.num_sge = (int)rng_range(r, SGES + 1, 8);
		break;
	case 1:
		q[before].wr.send_flags |= IBV_SEND_INLINE;
		break;
	default:
		q[before].sge[0].length = INL + 1 + (uint32_t)rng_range(r, 0, 1000);
		q[before].wr.send_flags |= IBV_SEND_INLINE;
	}
	for (unsigned int i = 0; i < after; i++)
		req_any(w, r, &q[before + 1 + i]);
	err = post_reqs(w, q, before + 1 + after, &taken);
	say("  %s refused at %u of %u: %s, taken %u\n", w->name, before, before + 1 + after, strerror(err), taken);
	quiesce();
}

/* More than there is room for. */
static void overfull(struct rng *r)
{
	static struct req q[DEPTH * 2];
	unsigned int n = DEPTH + (unsigned int)rng_range(r, 1, 8), taken, every = (unsigned int)rng_range(r, 1, 16), left;
	struct way *w = any_way(r);
	int err;

	quiesce();
	for (unsigned int i = 0; i < n; i++) {
		req_at(w, r, &q[i], rng_range(r, 0, 100000), rng_pct(r, 30) ? rng_range(r, 8192, 100000) : rng_range(r, 1, 5000));
		q[i].wr.send_flags = i % every == every - 1 ? IBV_SEND_SIGNALED : 0;
		q[i].is.sig = q[i].wr.send_flags || sig_all;
	}
	err = post_only(w, q, n, &taken);
	say("  %s more than it takes: %s, refused %d\n", w->name, strerror(err), taken < n);
	left = n - taken;
	wait_wanted();
	if (!taken || left > n - DEPTH + 40) {
		w->used = 0;
		return;
	}
	/* what was told of makes room */
	wait_wanted();
	w->used = taken % every || sig_all ? 0 : 0;
	report();
	w->used = 1;
	quiesce();
}

/* A window on the peer's memory, by which to write. */
static void window(struct rng *r)
{
	struct way *w = any_way(r), *p = w->peer;
	struct ibv_mr *mr = w->target_mr, fake;
	struct ibv_mw *mw;
	unsigned int taken;
	struct req q;

	quiesce();
	mw = ibv_alloc_mw(sides[p->side].dev.pd, IBV_MW_TYPE_2);
	if (!mw) {
		say("  no window: %s\n", strerror(errno));
		return;
	}
	req_at(p, r, &q, 0, 0);
	q.is.op = q.wr.opcode = IBV_WR_BIND_MW;
	q.is.sig = true;
	q.wr.send_flags = IBV_SEND_SIGNALED;
	q.wr.bind_mw.mw = mw;
	q.wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	q.wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ .mr = mr, .addr = w->target_base, .length = AREA,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	say("  %s binds: %s\n", p->name, strerror(post_only(p, &q, 1, &taken)));
	wait_wanted();
	report();
	fake = *mr;
	fake.rkey = q.wr.bind_mw.rkey;
	w->target_mr = &fake;
	load(w, r, (unsigned int)rng_range(r, 1, 12), true);
	w->target_mr = mr;
	load(w, r, (unsigned int)rng_range(r, 1, 8), true);
	quiesce();
	req_at(p, r, &q, 0, 0);
	q.is.op = q.wr.opcode = IBV_WR_LOCAL_INV;
	q.wr.num_sge = 0;
	q.wr.invalidate_rkey = fake.rkey;
	load(p, r, 2, true);
	say("  %s invalidates: %s\n", p->name, strerror(post_only(p, &q, 1, &taken)));
	quiesce();
	say("  dealloc: %d\n", ibv_dealloc_mw(mw));
}

static const struct step {
	const char *name;
	void (*fn)(struct rng *r);
	unsigned int weight;
} steps[] = {
	{ "traffic", traffic, 40 }, { "message", message, 16 }, { "fail", fail, 10 }, { "leave", leave, 6 },
	{ "abandon", abandon, 5 }, { "drain", drain, 5 }, { "region", region, 6 }, { "refuse", refuse, 6 },
	{ "overfull", overfull, 3 }, { "window", window, 3 },
};

static bool wanted(unsigned int n)
{
	const char *only = getenv("SCRIPTS_ONLY");
	char *end;

	while (only && *only) {
		if (strtoul(only, &end, 10) == n)
			return true;
		if (end == only)
			return false;
		only = *end ? end + 1 : end;
	}
	return !only;
}

int main(int argc, char **argv)
{
	struct rng r, s;

	mini_start(&sm, argc, argv, "a script of verbs by chance");
	r.s = mix64(sm.seed);
	luck.s = now_ns();
	ex_qp = rng_pct(&r, 35);
	sig_all = rng_pct(&r, 15);
	nways = 2 * (unsigned int)rng_range(&r, 1, PAIRS);
	say("ibv_wr_* %d, all signalled %d, %u pairs\n", ex_qp, sig_all, nways / 2);
	open_side(0, &r);
	open_side(1, &r);
	for (unsigned int i = 0; i < nways; i++)
		open_way(i, &r);
	for (unsigned int i = 0; i < nways; i += 2)
		join(i / 2, &r);
	quiesce();
	for (unsigned int n = 0; n < sm.count && !mini_failed; n++) {
		unsigned int k, sum = 0;

		s.s = mix64(sm.seed * 1000 + n);
		k = (unsigned int)rng_range(&s, 0, 99);
		for (unsigned int i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
			sum += steps[i].weight;
			if (k >= sum)
				continue;
			if (wanted(n)) {
				say("%u %s\n", n, steps[i].name);
				steps[i].fn(&s);
			}
			break;
		}
	}
	if (mini_failed)
		report();
	quiesce();
	close_all();
	fprintf(stderr, "scripts: failed %u\n", mini_failed);
	return mini_failed != 0;
}

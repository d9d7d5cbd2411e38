// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A script of verbs by chance, as the seed says, on some pairs of RC QPs; what a program sees of it on stdout. Nothing there
 * depends on timing, so natively and with the library the same must be printed. Each step has a seed of its own:
 * SCRIPTS_ONLY=3,7 leaves out the others, SCRIPTS_SHOW=1 says on stderr what is posted.
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

void *need(void *p, const char *what)
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

void new_qp(struct way *w)
{
	struct side *s = &sides[w->side];
	struct ibv_qp_init_attr a = {
		.send_cq = s->cq[w->scq], .recv_cq = s->cq[w->rcq], .srq = s->srq, .qp_type = IBV_QPT_RC, .sq_sig_all = sig_all,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = s->srq ? 0 : RECVS, .max_send_sge = SGES, .max_recv_sge = 2,
			 .max_inline_data = INL },
	};

	w->qp = need(ex_qp ? ex_create_qp(s->dev.pd, &a) : vb.create_qp(s->dev.pd, &a), "create_qp");
	w->cap = a.cap;
	w->avail = w->used = w->nreads = 0;
}

void new_target(struct way *w)
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
	w->other_target = memory_of(AREA);
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

void join(unsigned int pair, struct rng *r)
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
		free(w->other_target);
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

static const struct step {
	const char *name;
	void (*fn)(struct rng *r);
	unsigned int weight;
} steps[] = {
	{ "traffic", step_traffic, 30 }, { "message", step_message, 13 }, { "fail", step_fail, 10 }, { "leave", step_leave, 6 },
	{ "abandon", step_abandon, 5 }, { "drain", step_drain, 5 }, { "region", step_region, 6 }, { "refuse", step_refuse, 6 },
	{ "overfull", step_overfull, 2 }, { "window", step_window, 4 },
	{ "silence", step_silence, 2 }, { "swap", step_swap, 5 }, { "full", step_full, 5 }, { "storm", step_storm, 8 },
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
		unsigned int k, sum = 0, all = 0;

		s.s = mix64(sm.seed * 1000 + n);
		for (unsigned int i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
			all += steps[i].weight;
		k = (unsigned int)rng_range(&s, 0, all - 1);
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

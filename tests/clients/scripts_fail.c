// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Requests that fail, and queue pairs that go with requests under way. */
#include <string.h>

#include "scripts.h"

static void end(unsigned int pair, struct rng *r, bool told)
{
	struct way *two[2] = { &ways[2 * pair], ways[2 * pair].peer };
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
	}
	/* from now on nothing of theirs arrives */
	for (unsigned int i = 0; i < 2; i++) {
		struct way *w = two[i];

		memset(w->target, 0, AREA);
		memset(w->land, 0, AREA);
		memset(w->target_dark, 0, AREA);
		memset(w->land_dark, 0, AREA);
	}
	if (early) {
		req_at(two[0], r, &q, 0, 100);
		say("  post in RESET: %s\n", strerror(post_only(two[0], &q, 1, &taken)));
	}
}

static void again(unsigned int pair, struct rng *r)
{
	join(pair, r);
	/* nothing of its earlier life comes now */
	pump();
	report();
	say_events();
}

void recover(unsigned int pair, struct rng *r, bool told)
{
	end(pair, r, told);
	again(pair, r);
}

enum wrong { BAD_RKEY, BAD_LKEY, BEYOND, LOCAL_BEYOND, NO_RECEIVE, TOO_LONG, NO_RIGHT, NO_QP_RIGHT, GONE, WRONGS };

void step_fail(struct rng *r)
{
	static const char *const names[] = { "bad rkey", "bad lkey", "beyond the region", "beyond the local region", "no receive",
					     "too long to receive", "no right", "no right of the queue pair", "region gone" };
	struct way *w = any_way(r), *other = any_way(r);
	enum wrong kind = (enum wrong)rng_range(r, 0, WRONGS - 1);
	unsigned int before = (unsigned int)rng_range(r, 0, 4), after = (unsigned int)rng_range(r, 0, 3), n, taken, told = 0;
	struct side *ps = &sides[w->peer->side];
	unsigned int *avail = ps->srq ? &ps->srq_avail : &w->peer->avail;
	struct ibv_mr gone;
	struct ibv_qp_attr none = { .qp_access_flags = IBV_ACCESS_LOCAL_WRITE };
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
	if (rng_pct(r, 30))
		load(w, r, (unsigned int)rng_range(r, 1, 24), true);
	for (unsigned int i = 0; i < before; i++)
		req_any(w, r, &q[i], true);
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
	while (kind != NO_RECEIVE && kind != TOO_LONG &&
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
		req_any(w, r, &q[n], true);
	if (rng_pct(r, 50) && !sig_all) {
		q[n - 1].wr.send_flags |= IBV_SEND_SIGNALED;
		q[n - 1].is.sig = true;
	}
	at_peer = kind == BAD_RKEY || kind == BEYOND || kind == TOO_LONG || kind == NO_RIGHT || kind == NO_QP_RIGHT || kind == GONE;
	say("  %s %s, opcode %d, request %u of %u, company %d\n", w->name, names[kind], op, before, n, company);
	/* the receives that those before it take, and what it must find */
	for (unsigned int i = 0; i < before; i++)
		told += req_takes_recv(&q[i]);
	if (kind == TOO_LONG)
		told++;
	if (*avail < told)
		post_recvs(w->peer, r, told - *avail);
	if (kind == NO_RIGHT || kind == NO_QP_RIGHT || kind == GONE) {
		/* those before must be done with it */
		err = before ? post_only(w, q, before, &taken) : 0;
		if (err)
			say("  before: %s\n", strerror(err));
		w->peer->want_recvs += told;
		*avail -= told;
		told = 0;
		quiesce();
		if (kind == GONE) {
			gone = *w->target_mr;
			say("  dereg: %d\n", vb.dereg_mr(w->target_mr));
			w->target_mr = &gone;
		} else if (kind == NO_QP_RIGHT) {
			say("  no right: %d\n", vb.modify_qp(w->peer->qp, &none, IBV_QP_ACCESS_FLAGS));
		} else {
			say("  rereg: %d\n", ibv_rereg_mr(w->target_mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
		}
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
		enum ibv_event_type t = kind == TOO_LONG || kind == NO_QP_RIGHT ? IBV_EVENT_QP_REQ_ERR : IBV_EVENT_QP_ACCESS_ERR;

		say("  told of by an event: %d\n", wait_event(w->peer, t, 5000));
	}
	report();
	say("  states %s %s\n", state_of(w), state_of(w->peer));
	memory(w->pair);
	if (rng_pct(r, 40)) {
		/* nothing that is posted now begins */
		w->want_sends++;
		req_any(w, r, &q[0], true);
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

/* Those that were done are the first, the next has that status, all behind it were flushed; all of these are told of. */
static void told(struct way *w, unsigned int posted, enum ibv_wc_status first)
{
	bool flushed = false, good = true;
	unsigned int next = 0;

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
		if (wc->status == IBV_WC_SUCCESS ? flushed || !w->log[next].sig : wc->status != (flushed ? IBV_WC_WR_FLUSH_ERR : first)) {
			good = false;
			say("  request %u, signalled %d: %s\n", next, w->log[next].sig, vb.wc_status_str(wc->status));
		}
		flushed |= wc->status != IBV_WC_SUCCESS;
		next++;
	}
	say("  told %s, of the last %d, state %s\n", good ? "well" : "badly", next == posted, state_of(w));
	w->nsends = w->want_sends = w->nlog = 0;
}

static void until_told(struct way *w, uint64_t id)
{
	for (uint64_t until = now_ns() + UINT64_C(15000000000); now_ns() < until; pump())
		if (w->nsends && w->sends[w->nsends - 1].wc.wr_id == id)
			break;
}

/* To ERR with requests under way: those told of are the first, and all from the first that is flushed. */
void step_leave(struct rng *r)
{
	struct way *w = any_way(r);
	bool recvs = !sides[w->peer->side].srq;
	unsigned int n = (unsigned int)rng_range(r, 1, 24), posted, taken;
	bool good;
	struct req q;

	quiesce();
	load(w, r, n, recvs);
	req_any(w, r, &q, recvs);
	q.wr.send_flags |= IBV_SEND_SIGNALED;
	q.is.sig = true;
	post_reqs(w, &q, 1, &taken);
	posted = w->nlog;
	if (rng_pct(r, 60))
		mini_nap((unsigned int)rng_range(r, 0, 2));
	say("  %s to ERR with %u: %d\n", w->name, posted, rc_to_state(w->qp, IBV_QPS_ERR));
	w->peer->avail += w->peer->want_recvs;
	w->peer->want_recvs = 0;
	until_told(w, q.is.id);
	told(w, posted, IBV_WC_WR_FLUSH_ERR);
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
void step_abandon(struct rng *r)
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

/* The peer does not answer any more, with requests under way. */
void step_silence(struct rng *r)
{
	struct way *w = any_way(r);
	unsigned int kind = (unsigned int)rng_range(r, 0, 1), posted, taken;
	struct req q[2];

	quiesce();
	load(w, r, (unsigned int)rng_range(r, 1, 16), false);
	if (rng_pct(r, 60))
		mini_nap((unsigned int)rng_range(r, 0, 2));
	say("  %s goes: %d\n", w->peer->name, rc_to_state(w->peer->qp, kind ? IBV_QPS_ERR : IBV_QPS_RESET));
	/* which cannot be done */
	req_any(w, r, &q[0], false);
	req_at(w, r, &q[1], 0, 50000);
	q[1].wr.send_flags |= IBV_SEND_SIGNALED;
	q[1].is.sig = true;
	say("  post: %s\n", strerror(post_only(w, q, 2, &taken)));
	posted = w->nlog;
	until_told(w, q[1].is.id);
	told(w, posted, IBV_WC_RETRY_EXC_ERR);
	w->peer->want_recvs = 0;
	recover(w->pair, r, false);
	quiesce();
}

/* Two pairs begin anew, each QP with the peer of the other. */
void step_swap(struct rng *r)
{
	struct way *a = any_way(r), *b = any_way(r), *t;
	bool busy = rng_pct(r, 50);

	quiesce();
	if (a->pair == b->pair)
		return;
	a = a->side ? a->peer : a;
	b = b->side ? b->peer : b;
	if (busy) {
		load(a, r, (unsigned int)rng_range(r, 1, 16), false);
		load(b->peer, r, (unsigned int)rng_range(r, 1, 16), false);
	}
	end(a->pair, r, !busy);
	end(b->pair, r, !busy);
	t = a->peer;
	a->peer = b->peer;
	b->peer = t;
	a->peer->peer = a;
	b->peer->peer = b;
	a->peer->pair = a->pair;
	b->peer->pair = b->pair;
	say("  %s and %s, %s and %s\n", a->name, a->peer->name, b->name, b->peer->name);
	again(a->pair, r);
	again(b->pair, r);
	quiesce();
}

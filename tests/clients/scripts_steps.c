// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* What a script consists of: traffic, and what changes between. */
#include <errno.h>
#include <string.h>

#include "scripts.h"

static uint64_t epoch;

/* ---- what is common to the steps ---- */

const char *state_of(struct way *w)
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

	say("  %s query %d: state %d mtu %d retry %d rnr %d timeout %d access %x rd %d peer %d "
	    "cap %u %u %u %u %u, cqs %d srq %d all %d\n",
	    w->name, err, a.qp_state, a.path_mtu, a.retry_cnt, a.rnr_retry, a.timeout, a.qp_access_flags, a.max_rd_atomic,
	    a.dest_qp_num == w->peer->qp->qp_num, a.cap.max_send_wr, a.cap.max_recv_wr, a.cap.max_send_sge, a.cap.max_recv_sge,
	    a.cap.max_inline_data, ia.send_cq == sides[w->side].cq[w->scq] && ia.recv_cq == sides[w->side].cq[w->rcq],
	    ia.srq == sides[w->side].srq, ia.sq_sig_all);
}

bool quiesce(void)
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
		for (uint64_t until = now_ns() + UINT64_C(10000000000);;) {
			memcpy(q.inl, &mark, 8);
			err = post_only(w, &q, 1, &taken);
			if (err != ENOMEM || now_ns() > until)
				break;
			pump();
		}
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

struct way *any_way(struct rng *r)
{
	return &ways[rng_range(r, 0, nways - 1)];
}

void load(struct way *w, struct rng *r, unsigned int n, bool recvs)
{
	struct req q[8];
	unsigned int taken, k;
	int err;

	for (; n; n -= k) {
		k = (unsigned int)rng_range(r, 1, n < 8 ? n : 8);
		for (unsigned int i = 0; i < k; i++) {
			req_any(w, r, &q[i], recvs);
		}
		err = post_reqs(w, q, k, &taken);
		if (err)
			say("  %s post %u: %s, taken %u\n", w->name, k, strerror(err), taken);
	}
}

/* ---- steps ---- */

void step_traffic(struct rng *r)
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
void step_message(struct rng *r)
{
	struct way *w = any_way(r);
	unsigned int n = (unsigned int)rng_range(r, 1, 5), kind = (unsigned int)rng_range(r, 0, 3), taken;
	uint64_t *flag = (uint64_t *)(w->target + AREA - 32);
	uint64_t value = rng_u64(r) | 1, until, was;
	bool gone = kind < 2 && rng_pct(r, 40);
	struct req q[8];

	quiesce();
	__atomic_store_n(flag, was = 0, __ATOMIC_RELAXED);
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
	/* not a fence behind a volatile load, which ThreadSanitizer does not know */
	while (kind < 2 ? !w->peer->nrecvs : __atomic_load_n(flag, __ATOMIC_ACQUIRE) == was) {
		if (now_ns() > until) {
			say("  nobody was told\n");
			break;
		}
		if (kind < 2)
			pump();
	}
	/* nothing needs the region any more */
	if (gone) {
		say("  dereg: %d\n", vb.dereg_mr(w->target_mr));
		new_target(w);
	}
	say("  then there is %llx\n", (unsigned long long)sum_of(w->target, w->target_dark, AREA));
	quiesce();
}

void step_drain(struct rng *r)
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
	err = rc_to_state(w->qp, IBV_QPS_RTS);
	say("  back: %d, state %s\n", err, state_of(w));
	if (rng_pct(r, 50))
		load(w, r, (unsigned int)rng_range(r, 1, 8), true);
	quiesce();
}

/* The peer's region goes, and another comes, perhaps at another address. */
void step_region(struct rng *r)
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
		uint8_t *was = w->target;

		w->target = w->other_target;
		w->other_target = was;
		err = ibv_rereg_mr(w->target_mr, IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION, NULL, w->target,
				   AREA, REMOTE);
		w->target_base = (uintptr_t)w->target;
	}
	say("  %s has another region to write to, %u: %d\n", w->name, kind, err);
	load(w, r, (unsigned int)rng_range(r, 1, 16), true);
	quiesce();
}

/* A list with one in it that is refused. */
void step_refuse(struct rng *r)
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
		req_any(w, r, &q[i], true);
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
		req_any(w, r, &q[before + 1 + i], true);
	err = post_reqs(w, q, before + 1 + after, &taken);
	say("  %s refused at %u of %u: %s, taken %u\n", w->name, before, before + 1 + after, strerror(err), taken);
	quiesce();
}

/* More than there is room for. */
void step_overfull(struct rng *r)
{
	static struct req q[DEPTH * 2];
	unsigned int n = DEPTH + (unsigned int)rng_range(r, 1, 8), taken, every = (unsigned int)rng_range(r, 1, 16);
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
	wait_wanted();
	report();
	w->used = taken > 0;
	quiesce();
}

/* Fills the send queue to its last place; each completion that is read makes as much room as it tells of, and no more. */
void step_full(struct rng *r)
{
	unsigned int taken, n, free, at = 0, refused = 0, wrong = 0;
	struct way *w = any_way(r);
	struct req q;
	int err;

	quiesce();
	/* what is not bonded yet takes more when its completions were read ahead */
	mini_nap(200);
	free = w->cap.max_send_wr;
	for (unsigned int round = 0; round < 5; round++) {
		for (n = free; n; n--) {
			req_any(w, r, &q, false);
			if (n == 1) {
				q.wr.send_flags |= IBV_SEND_SIGNALED;
				q.is.sig = true;
			}
			err = post_only(w, &q, 1, &taken);
			wrong += err != 0;
		}
		if (rng_pct(r, 30))
			mini_nap((unsigned int)rng_range(r, 1, 20));
		n = w->nreads;
		req_at(w, r, &q, 0, 10);
		/* for which nothing waits */
		w->nreads = n;
		err = post_only(w, &q, 1, &taken);
		refused += err == ENOMEM;
		if (round == 4)
			break;
		n = w->nsends;
		for (uint64_t until = now_ns() + UINT64_C(10000000000); w->nsends == n && now_ns() < until; )
			pump_one(w->side, w->scq);
		if (w->nsends != n + 1) {
			say("  no completion of a full queue\n");
			break;
		}
		for (n = at; n < w->nlog && w->log[n].id != w->sends[w->nsends - 1].wc.wr_id; )
			n++;
		free = n + 1 - at;
		at = n + 1;
	}
	say("  %s full: taken, but %u; refused %u\n", w->name, wrong, refused);
	wait_wanted();
	report();
	quiesce();
}

/* As much as there is room for, while others' regions come and go, and completion queues change. */
void step_storm(struct rng *r)
{
	struct way *of[3] = { any_way(r), any_way(r), any_way(r) }, *still = any_way(r);
	unsigned int lists = (unsigned int)rng_range(r, 3, 16), taken, n, done;
	struct req q[8];
	int err;

	quiesce();
	for (unsigned int l = 0; l < lists; l++)
		for (unsigned int k = 0; k < 3; k++) {
			struct way *w = of[k];

			n = (unsigned int)rng_range(r, 1, 8);
			for (unsigned int i = 0; i < n; i++)
				req_any(w, r, &q[i], false);
			q[n - 1].wr.send_flags |= IBV_SEND_SIGNALED;
			q[n - 1].is.sig = true;
			for (done = 0; done < n; done += taken) {
				uint8_t kept[8][INL];

				for (unsigned int i = done; i < n; i++)
					memcpy(kept[i], q[i].inl, INL);
				err = post_only(w, q + done, n - done, &taken);
				if (err && err != ENOMEM) {
					say("  %s post: %s\n", w->name, strerror(err));
					break;
				}
				for (unsigned int i = done + taken; i < n; i++)
					memcpy(q[i].inl, kept[i], INL);
				if (err)
					pump();
			}
			if (rng_pct(r, 5)) {
				unsigned int side = (unsigned int)rng_range(r, 0, 1);

				err = vb.resize_cq(sides[side].cq[rng_range(r, 0, sides[side].ncq - 1)], (int)rng_range(r, 1900, 3000));
				say("  resize: %d\n", err);
			}
			if (rng_pct(r, 10) && still != of[0] && still != of[1] && still != of[2] && !still->used) {
				say("  %s has another region: %d\n", still->name, vb.dereg_mr(still->target_mr));
				new_target(still);
				load(still, r, (unsigned int)rng_range(r, 1, 8), true);
			}
			if (rng_pct(r, 10))
				mini_nap((unsigned int)rng_range(r, 1, 10));
		}
	quiesce();
}

/* A window on the peer's memory, by which to write. */
void step_window(struct rng *r)
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
	if (rng_pct(r, 50)) {
		load(p, r, 2, true);
		req_at(p, r, &q, 0, 0);
		q.is.op = q.wr.opcode = IBV_WR_LOCAL_INV;
		q.wr.num_sge = 0;
		q.wr.invalidate_rkey = fake.rkey;
		say("  %s invalidates: %s\n", p->name, strerror(post_only(p, &q, 1, &taken)));
	} else {
		load(w, r, 2, true);
		req_make(w, r, &q, IBV_WR_SEND, rng_pct(r, 30));
		q.is.op = q.wr.opcode = IBV_WR_SEND_WITH_INV;
		q.wr.invalidate_rkey = fake.rkey;
		say("  %s invalidates: %s\n", w->name, strerror(post_reqs(w, &q, 1, &taken)));
	}
	quiesce();
	if (rng_pct(r, 40)) {
		req_at(w, r, &q, 0, rng_range(r, 1, 100000));
		q.wr.wr.rdma.rkey = fake.rkey;
		q.wr.send_flags |= IBV_SEND_SIGNALED;
		darken(w, &q.is);
		w->want_sends += !q.is.sig;
		say("  %s by the window that was: %s\n", w->name, strerror(post_only(w, &q, 1, &taken)));
		wait_wanted();
		say("  told of by an event: %d\n", wait_event(p, IBV_EVENT_QP_ACCESS_ERR, 5000));
		recover(w->pair, r, true);
		quiesce();
	}
	say("  dealloc: %d\n", ibv_dealloc_mw(mw));
}

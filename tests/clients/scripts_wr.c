// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Requests by chance, whose results do not depend on timing: what no order is promised for has a fence between. */
#include <stdlib.h>
#include <string.h>

#include "scripts.h"

static bool overlap(size_t a, size_t alen, size_t b, size_t blen)
{
	return a < b + blen && b < a + alen;
}

static bool changes(enum ibv_wr_opcode op)
{
	return op == IBV_WR_RDMA_WRITE || op == IBV_WR_RDMA_WRITE_WITH_IMM || op == IBV_WR_ATOMIC_FETCH_AND_ADD ||
	       op == IBV_WR_ATOMIC_CMP_AND_SWP;
}

static bool answered(enum ibv_wr_opcode op)
{
	return op == IBV_WR_RDMA_READ || op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP;
}

bool req_takes_recv(const struct req *q)
{
	enum ibv_wr_opcode op = q->wr.opcode;

	return op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_RDMA_WRITE_WITH_IMM || op == IBV_WR_SEND_WITH_INV;
}

/* Where, mostly over something that was touched lately. */
static size_t place(struct way *w, struct rng *r, size_t len)
{
	size_t at = rng_range(r, 0, USED - len);

	if (rng_pct(r, 60)) {
		const struct sent *s = &w->recent[rng_range(r, 0, 3)];
		size_t lo = s->roff > len ? s->roff - len + 1 : 0, hi = s->roff + s->rlen;

		at = rng_range(r, lo, hi > lo ? hi : lo);
		if (at > USED - len)
			at = USED - len;
	}
	return at;
}

/* One piece of memory as some elements, perhaps with empty ones among them. */
static int pieces(struct rng *r, struct ibv_sge *s, uint8_t *from, size_t len, uint32_t key, uint32_t key2, int max)
{
	int n = (int)rng_range(r, 1, (uint64_t)max);
	size_t left = len;

	for (int i = 0; i < n; i++) {
		size_t k = i == n - 1 ? left : rng_range(r, 0, left);

		s[i] = (struct ibv_sge){ (uintptr_t)from, (uint32_t)k, rng_pct(r, 50) ? key : key2 };
		from += k;
		left -= k;
	}
	return n;
}

static void begin(struct way *w, struct req *q, enum ibv_wr_opcode op)
{
	memset(q, 0, sizeof(*q));
	q->is = (struct sent){ .id = (uint64_t)w->no << 32 | ++w->next_id, .op = op };
	q->wr = (struct ibv_send_wr){ .wr_id = q->is.id, .opcode = op, .sg_list = q->sge };
}

static void end(struct way *w, struct req *q, bool sig)
{
	bool fence = q->wr.send_flags & IBV_SEND_FENCE;

	q->is.sig = sig || sig_all;
	if (sig)
		q->wr.send_flags |= IBV_SEND_SIGNALED;
	for (unsigned int i = 0; changes(q->is.op) && i < w->nreads; i++)
		if (overlap(w->reads[i].roff, w->reads[i].rlen, q->is.roff, q->is.rlen))
			fence = true;
	if (w->nreads >= LOG - 1)
		fence = true;
	if (fence) {
		q->wr.send_flags |= IBV_SEND_FENCE;
		w->nreads = 0;
	}
	w->recent[w->nrecent++ % 4] = q->is;
	if (answered(q->is.op))
		w->reads[w->nreads++] = q->is;
}

void req_at(struct way *w, struct rng *r, struct req *q, size_t roff, size_t len)
{
	begin(w, q, IBV_WR_RDMA_WRITE);
	q->is.roff = roff;
	q->is.rlen = len;
	q->sge[0] = (struct ibv_sge){ (uintptr_t)w->src + rng_range(r, 0, USED - len), (uint32_t)len, w->src_mr->lkey };
	q->wr.num_sge = 1;
	q->wr.wr.rdma.remote_addr = w->target_base + roff;
	q->wr.wr.rdma.rkey = w->target_mr->rkey;
	end(w, q, rng_pct(r, 50));
}

void req_flag(struct way *w, struct req *q, const uint64_t *value, size_t roff)
{
	begin(w, q, IBV_WR_RDMA_WRITE);
	memcpy(q->inl, value, 8);
	q->is.roff = roff;
	q->is.rlen = 8;
	q->sge[0] = (struct ibv_sge){ (uintptr_t)q->inl, 8, 0 };
	q->wr.num_sge = 1;
	q->wr.send_flags = IBV_SEND_INLINE;
	q->wr.wr.rdma.remote_addr = w->target_base + roff;
	q->wr.wr.rdma.rkey = w->target_mr->rkey;
	end(w, q, true);
}

static size_t length(struct rng *r, bool bulk)
{
	static const size_t edges[] = { 8191, 8192, 8193, 4096, 65536, 12288, 16384 };

	if (rng_pct(r, 10))
		return edges[rng_range(r, 0, sizeof(edges) / sizeof(edges[0]) - 1)];
	if (!bulk)
		return rng_pct(r, 8) ? 0 : rng_size(r, 1, 8000);
	return rng_size(r, 8192, rng_pct(r, 30) ? 256u << 10 : 64u << 10);
}

void req_make(struct way *w, struct rng *r, struct req *q, enum ibv_wr_opcode op, bool bulk)
{
	size_t len = length(r, bulk);

	begin(w, q, op);
	if (rng_pct(r, 10))
		q->wr.send_flags |= IBV_SEND_FENCE;
	if (rng_pct(r, 20) && req_takes_recv(q))
		q->wr.send_flags |= IBV_SEND_SOLICITED;
	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		q->is.roff = place(w, r, 16) & ~7ull;
		q->is.rlen = q->is.llen = 8;
		q->is.loff = rng_range(r, 0, USED - 8) & ~7ull;
		q->sge[0] = (struct ibv_sge){ (uintptr_t)w->land + q->is.loff, 8, w->land_mr->lkey };
		q->wr.num_sge = 1;
		q->wr.wr.atomic.remote_addr = w->target_base + q->is.roff;
		q->wr.wr.atomic.rkey = w->target_mr->rkey;
		q->wr.wr.atomic.compare_add = rng_pct(r, 30) ? 0 : rng_u64(r);
		q->wr.wr.atomic.swap = rng_u64(r);
		end(w, q, rng_pct(r, 50));
		return;
	}
	if (op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM) {
		if (len > SLOT)
			len = SLOT;
	} else {
		q->is.roff = place(w, r, len);
		q->is.rlen = len;
		q->wr.wr.rdma.remote_addr = w->target_base + q->is.roff;
		q->wr.wr.rdma.rkey = w->target_mr->rkey;
	}
	q->wr.imm_data = (uint32_t)rng_u64(r);
	if (op == IBV_WR_RDMA_READ) {
		q->is.loff = place(w, r, len);
		q->is.llen = len;
		q->wr.num_sge = pieces(r, q->sge, w->land + q->is.loff, len, w->land_mr->lkey, w->land_mr->lkey, SGES);
	} else if (len <= INL && rng_pct(r, 60)) {
		/* which may be changed as soon as it was posted */
		pattern_fill(q->inl, rng_u64(r), 0, INL);
		q->wr.send_flags |= IBV_SEND_INLINE;
		q->wr.num_sge = pieces(r, q->sge, q->inl, len, 0, 0, SGES);
	} else {
		q->wr.num_sge = pieces(r, q->sge, w->src + rng_range(r, 0, USED - len), len, w->src_mr->lkey, w->src_mr2->lkey, SGES);
	}
	if (!len && rng_pct(r, 50))
		q->wr.num_sge = 0;
	end(w, q, rng_pct(r, 45));
}

void req_any(struct way *w, struct rng *r, struct req *q, bool recvs)
{
	unsigned int k = (unsigned int)rng_range(r, 0, 99);

	/* none is made and thrown away: its fence is counted on */
	if (!recvs && k >= 52 && k < 73)
		k -= 50;
	if (k < 24)
		req_make(w, r, q, IBV_WR_RDMA_WRITE, false);
	else if (k < 52)
		req_make(w, r, q, IBV_WR_RDMA_WRITE, true);
	else if (k < 60)
		req_make(w, r, q, IBV_WR_RDMA_WRITE_WITH_IMM, rng_pct(r, 40));
	else if (k < 68)
		req_make(w, r, q, IBV_WR_SEND, rng_pct(r, 30));
	else if (k < 73)
		req_make(w, r, q, IBV_WR_SEND_WITH_IMM, rng_pct(r, 30));
	else if (k < 88)
		req_make(w, r, q, IBV_WR_RDMA_READ, rng_pct(r, 70));
	else
		req_make(w, r, q, k < 94 ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP, false);
}

void darken(struct way *w, const struct sent *s)
{
	memset(w->target_dark + s->roff, 1, s->rlen);
	memset(w->land_dark + s->loff, 1, s->llen);
}

void post_recvs(struct way *w, struct rng *r, unsigned int n)
{
	struct side *s = &sides[w->side];
	struct ibv_recv_wr wr[RECVS], *bad = NULL;
	struct ibv_sge sge[RECVS][2];
	int err;

	for (unsigned int i = 0; i < n; i++) {
		unsigned int slot = s->srq ? s->srq_next++ % SLOTS : w->next_slot++ % SLOTS;
		uint8_t *at = (s->srq ? s->srq_slots : w->slots) + (size_t)slot * SLOT;
		uint32_t key = s->srq ? s->srq_mr->lkey : w->slots_mr->lkey, first = r && rng_pct(r, 30) ? 100 : 0;

		sge[i][0] = (struct ibv_sge){ (uintptr_t)at, first ? first : SLOT, key };
		sge[i][1] = (struct ibv_sge){ (uintptr_t)at + first, SLOT - first, key };
		wr[i] = (struct ibv_recv_wr){ .wr_id = RECV_ID | (uint64_t)w->no << 32 | slot, .sg_list = sge[i],
					      .num_sge = first ? 2 : 1, .next = i + 1 < n ? &wr[i + 1] : NULL };
	}
	if (!n)
		return;
	err = s->srq ? ibv_post_srq_recv(s->srq, wr, &bad) : ibv_post_recv(w->qp, wr, &bad);
	if (err)
		say("  %s receives: %s, bad %d\n", w->name, strerror(err), bad ? (int)(bad - wr) : -1);
	else if (s->srq)
		s->srq_avail += n;
	else
		w->avail += n;
}

int post_only(struct way *w, struct req *q, unsigned int n, unsigned int *taken)
{
	struct ibv_send_wr *bad = NULL;
	unsigned int ok = n;
	int err;

	for (unsigned int i = 0; i < n; i++) {
		q[i].wr.next = i + 1 < n ? &q[i + 1].wr : NULL;
		if (getenv("SCRIPTS_SHOW"))
			fprintf(stderr, "%s %u: opcode %d flags %x, %zu at %zu, %zu to %zu, %d sges\n", w->name, (unsigned int)q[i].is.id,
				q[i].is.op, q[i].wr.send_flags, q[i].is.rlen, q[i].is.roff, q[i].is.llen, q[i].is.loff, q[i].wr.num_sge);
	}
	err = ex_qp ? ex_post(w->qp, &q->wr, &bad) : ibv_post_send(w->qp, &q->wr, &bad);
	if (err)
		for (ok = 0; ok < n && bad != &q[ok].wr; )
			ok++;
	for (unsigned int i = 0; i < n; i++)
		memset(q[i].inl, 0xee, INL);
	for (unsigned int i = 0; i < ok; i++) {
		if (w->nlog == LOG) {
			fprintf(stderr, "scripts: too many requests\n");
			break;
		}
		w->log[w->nlog++] = q[i].is;
		w->want_sends += q[i].is.sig;
	}
	w->used += ok;
	*taken = ok;
	return err;
}

int post_reqs(struct way *w, struct req *q, unsigned int n, unsigned int *taken)
{
	struct side *s = &sides[w->peer->side];
	unsigned int need = 0, *avail = s->srq ? &s->srq_avail : &w->peer->avail;
	int err;

	for (unsigned int i = 0; i < n; i++)
		need += req_takes_recv(&q[i]);
	if (*avail < need)
		post_recvs(w->peer, NULL, need - *avail);
	err = post_only(w, q, n, taken);
	for (unsigned int i = 0; i < *taken; i++)
		if (req_takes_recv(&q[i])) {
			w->peer->want_recvs++;
			(*avail)--;
		}
	return err;
}

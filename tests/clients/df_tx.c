// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "df.h"
#include "ex.h"

struct batch {
	struct ibv_send_wr wr[DF_MAX_WRS];
	struct ibv_sge sge[DF_MAX_WRS][DF_MAX_SGE];
	unsigned int n;
	bool force;		/* the last one is signalled */
};

static struct ibv_send_wr *add(struct batch *b, enum ibv_wr_opcode op, uint64_t raddr, uint32_t rkey)
{
	struct ibv_send_wr *wr = &b->wr[b->n];

	memset(wr, 0, sizeof(*wr));
	wr->opcode = op;
	wr->sg_list = b->sge[b->n];
	wr->wr.rdma.remote_addr = raddr;
	wr->wr.rdma.rkey = rkey;
	b->n++;
	return wr;
}

static void add_sge(struct ibv_send_wr *wr, const void *buf, uint64_t len, uint32_t lkey)
{
	wr->sg_list[wr->num_sge++] = (struct ibv_sge){
		.addr = (uintptr_t)buf,
		.length = (uint32_t)len,
		/* an inline WR's keys are not looked at: a wrong one must do no harm */
		.lkey = wr->send_flags & IBV_SEND_INLINE ? 0xdead : lkey,
	};
}

static enum ibv_wc_opcode wc_opcode(enum ibv_wr_opcode op)
{
	switch (op) {
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
		return IBV_WC_SEND;
	default:
		return IBV_WC_RDMA_WRITE;
	}
}

static bool room(const struct df_ep *ep, unsigned int n)
{
	return ep->posted + n - atomic_load_explicit(&ep->done, memory_order_acquire) <= ep->side->cfg->depth;
}

static uint64_t wr_id_of(const struct df_ep *ep, uint64_t pos)
{
	return mix64(ep->side->cfg->seed ^ 0x77725f6964ull ^ ((uint64_t)ep->idx << 48) ^ pos) & ~(1ull << 63);
}

static bool signalled(struct df_ep *ep, const struct batch *b, unsigned int i)
{
	const struct df_cfg *c = ep->side->cfg;

	if ((b->force && i == b->n - 1) || c->signal == SIG_ALL || ep->unsig_run + 1 >= c->signal_every)
		return true;
	if (c->signal == SIG_FLAG)
		return b->n > 1 && i == b->n - 1;
	return rng_pct(&ep->rng, 30);
}

static int post_list(struct df_ep *ep, struct ibv_send_wr *first)
{
	struct ibv_send_wr *bad = NULL;
	int err = ep->side->cfg->wr ? ex_post(ep->qp, first, &bad) : ibv_post_send(ep->qp, first, &bad);

	atomic_fetch_add(&ep->side->posts, 1);
	if (err) {
		df_error(ep->side, "qp 0x%x: post_send: %s, %s", ep->qp->qp_num, strerror(err),
			 bad == first ? "first of its list" : "inside its list");
		atomic_store(&ep->side->failed, true);
	}
	return err;
}

/* ep->lock held; room() was asked. */
static int submit(struct df_ep *ep, struct batch *b)
{
	struct df_side *s = ep->side;
	enum df_post how = s->cfg->post;
	unsigned int i, k, first = 0;
	bool cut;

	for (i = 0; i < b->n; i++) {
		struct ibv_send_wr *wr = &b->wr[i];

		wr->wr_id = wr_id_of(ep, ep->posted);
		if (signalled(ep, b, i)) {
			struct df_expect *e = &ep->expect[ep->exp_tail++ % s->cfg->depth];

			wr->send_flags |= IBV_SEND_SIGNALED;
			ep->unsig_run = 0;
			*e = (struct df_expect){ wr->wr_id, ep->posted, wc_opcode(wr->opcode), -1 };
			if (wr->opcode == IBV_WR_RDMA_READ) {
				e->byte_len = 0;
				for (k = 0; k < (unsigned int)wr->num_sge; k++)
					e->byte_len += wr->sg_list[k].length;
			} else if (e->opcode == IBV_WC_FETCH_ADD || e->opcode == IBV_WC_COMP_SWAP) {
				e->byte_len = 8;
			}
			atomic_fetch_add(&s->signalled, 1);
		} else {
			ep->unsig_run++;
		}
		ep->posted++;
	}
	atomic_fetch_add(&s->wrs, b->n);
	for (i = 0; i < b->n; i++) {
		cut = i == b->n - 1 || how == POST_SINGLE || (how == POST_RANDOM && rng_pct(&ep->rng, 40));
		b->wr[i].next = cut ? NULL : &b->wr[i + 1];
		if (!cut)
			continue;
		if (post_list(ep, &b->wr[first]))
			return -EIO;
		first = i + 1;
	}
	return 0;
}

static bool pattern_same(const uint8_t *p, uint64_t key, uint64_t off, uint64_t len)
{
	uint8_t want[512];
	uint64_t n;

	for (; len; len -= n, off += n, p += n) {
		n = len < sizeof(want) ? len : sizeof(want);
		pattern_fill(want, key, off, n);
		if (memcmp(p, want, n))
			return false;
	}
	return true;
}

/* Results of atomics and read-backs whose WR has completed. ep->lock held. */
static void checks_locked(struct df_ep *ep)
{
	uint64_t done = atomic_load_explicit(&ep->done, memory_order_acquire), v;
	unsigned int cap = ep->side->cfg->depth + 1;

	for (; ep->chk_head != ep->chk_tail; ep->chk_head++) {
		const struct df_check *k = &ep->checks[ep->chk_head % cap];

		if (k->pos >= done)
			return;
		if (!k->len) {
			memcpy(&v, k->buf, sizeof(v));
			if (v)
				df_error(ep->side, "qp 0x%x: position %llu: atomic found %llu, not 0", ep->qp->qp_num,
					 (unsigned long long)k->pos, (unsigned long long)v);
		} else if (!pattern_same(k->buf, k->key, k->off, k->len)) {
			df_error(ep->side, "qp 0x%x: position %llu: read-back of %llu bytes is not what was written before",
				 ep->qp->qp_num, (unsigned long long)k->pos, (unsigned long long)k->len);
			atomic_fetch_add(&ep->side->violations, 1);
		}
	}
}

static void add_check(struct df_ep *ep, const struct df_check *k)
{
	ep->checks[ep->chk_tail++ % (ep->side->cfg->depth + 1)] = *k;
}

static uint8_t *small_buf(struct df_ep *ep, uint64_t pos)
{
	uint8_t *p = ep->small + pos % ep->side->cfg->depth * 64;

	memset(p, 0, 64);
	return p;
}

static void add_flag(struct df_ep *ep, struct batch *b, enum df_kind kind, uint64_t round)
{
	const struct df_cfg *c = ep->side->cfg;
	uint64_t pos = ep->posted + b->n, v = round + 1;
	uint64_t raddr = ep->peer.flags + round % c->window * DF_FLAG_STRIDE;
	uint8_t *buf = small_buf(ep, pos);
	struct ibv_send_wr *wr;

	switch (kind) {
	case K_FETCH_ADD:
	case K_CMP_SWAP:
		wr = add(b, kind == K_FETCH_ADD ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP, 0, 0);
		wr->wr.atomic.remote_addr = raddr;
		wr->wr.atomic.rkey = ep->peer.flags_rkey;
		wr->wr.atomic.compare_add = kind == K_FETCH_ADD ? v : 0;
		wr->wr.atomic.swap = kind == K_FETCH_ADD ? 0 : v;
		memset(buf, 0xff, 8);
		add_sge(wr, buf, 8, ep->small_mr->lkey);
		add_check(ep, &(struct df_check){ .pos = pos, .buf = buf });
		break;
	case K_INLINE:
	case K_WRITE8:
		wr = add(b, IBV_WR_RDMA_WRITE, raddr, ep->peer.flags_rkey);
		if (kind == K_INLINE)
			wr->send_flags = IBV_SEND_INLINE;
		memcpy(buf, &v, 8);
		add_sge(wr, buf, 8, ep->small_mr->lkey);
		break;
	case K_WRITE_IMM:
		wr = add(b, IBV_WR_RDMA_WRITE_WITH_IMM, ep->peer.slots, ep->peer.slots_rkey);
		wr->imm_data = htonl((uint32_t)round);
		break;
	default:
		wr = add(b, kind == K_SEND_IMM ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, 0, 0);
		if (kind == K_SEND_IMM)
			wr->imm_data = htonl((uint32_t)round);
		memcpy(buf, (uint64_t[]){ kind, round }, 16);
		if (rng_pct(&ep->rng, 50))
			wr->send_flags = IBV_SEND_INLINE;
		add_sge(wr, buf, DF_MSG, ep->small_mr->lkey);
		break;
	}
	if (rng_pct(&ep->rng, c->fence))
		wr->send_flags |= IBV_SEND_FENCE;
}

/* A READ of part of the round's last WRITE, behind it in the queue: it must return the new bytes. */
static bool add_readback(struct df_ep *ep, struct batch *b, const struct df_write *w)
{
	uint64_t done = atomic_load_explicit(&ep->done, memory_order_acquire), off, len;
	uint64_t pos = ep->posted + b->n;
	struct ibv_send_wr *wr;
	unsigned int i;

	for (i = 0; i < DF_RB_RING && ep->rb_busy[i] > done; i++)
		;
	if (i == DF_RB_RING)
		return false;
	off = rng_range(&ep->rng, 0, w->len - 1);
	len = rng_range(&ep->rng, 1, w->len - off < DF_RB_MAX ? w->len - off : DF_RB_MAX);
	ep->rb_busy[i] = pos + 1;
	memset(ep->rb + i * DF_RB_MAX, 0, len);
	wr = add(b, IBV_WR_RDMA_READ, 0, ep->peer.slots_rkey);
	wr->wr.rdma.remote_addr = ep->peer.slots + ep->tx_next % ep->side->cfg->window * ep->side->slot_stride +
				  DF_GUARD + w->off + off;
	add_sge(wr, ep->rb + i * DF_RB_MAX, len, ep->rb_mr->lkey);
	add_check(ep, &(struct df_check){ pos, w->key, off, len, ep->rb + i * DF_RB_MAX });
	return true;
}

/* Breaks one rule in each round, so that it can be seen that the receiver notices. */
static void sabotage(const struct df_cfg *c, struct batch *b)
{
	struct ibv_send_wr *flag = &b->wr[b->n - 1], *data = &b->wr[0], tmp;

	switch (c->sabotage) {
	case BREAK_FLAG_FIRST:
		/* a checked result belongs to its position: only kinds without one can change places */
		if (flag->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || flag->opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
			return;
		tmp = *flag;
		*flag = *data;
		*data = tmp;
		break;
	case BREAK_OUTSIDE:
		data->wr.rdma.remote_addr -= 1;
		break;
	case BREAK_LOST:
		data->sg_list[data->num_sge - 1].length -= 1;
		break;
	case BREAK_GHOST:
		b->wr[b->n] = *data;
		b->n++;
		break;
	default:
		break;
	}
}

static bool send_round(struct df_ep *ep)
{
	struct df_side *s = ep->side;
	const struct df_cfg *c = s->cfg;
	uint64_t slot = ep->tx_next % c->window, cur = 0, at;
	uint8_t *src = ep->src + slot * ep->src_stride;
	struct batch b = { .n = 0 };
	struct ibv_send_wr *wr;
	struct df_round p;
	unsigned int i, k;
	bool fence;

	df_plan(c, s->dir, ep->idx, ep->tx_next, &p);
	for (i = 0; i < p.n; i++) {
		const struct df_write *w = &p.w[i];

		wr = add(&b, IBV_WR_RDMA_WRITE, ep->peer.slots + slot * s->slot_stride + DF_GUARD + w->off,
			 ep->peer.slots_rkey);
		if (w->inl)
			wr->send_flags = IBV_SEND_INLINE;
		for (k = 0, at = 0; k < w->nsge; at += w->cut[k++]) {
			cur += rng_range(&ep->rng, 0, DF_GAP);
			pattern_fill(src + cur, w->key, at, w->cut[k]);
			add_sge(wr, src + cur, w->cut[k], ep->src_mr->lkey);
			cur += w->cut[k];
		}
		atomic_fetch_add(&s->bytes, w->len);
	}
	fence = rng_pct(&ep->rng, c->readback) && add_readback(ep, &b, &p.w[p.n - 1]);
	add_flag(ep, &b, p.kind, ep->tx_next);
	/* the receiver clears the slot: a READ may be carried out after what is behind it (IBTA table 79), but for a fence */
	if (fence)
		b.wr[b.n - 1].send_flags |= IBV_SEND_FENCE;
	if (c->sabotage)
		sabotage(c, &b);
	ep->tx_next++;
	atomic_fetch_add(&s->rounds_sent, 1);
	submit(ep, &b);
	return true;
}

static bool send_reads(struct df_ep *ep)
{
	const struct df_cfg *c = ep->side->cfg;
	unsigned int n = (unsigned int)rng_range(&ep->rng, 1, c->max_writes), i, k, nsge;
	uint64_t cur = 0, off, len, left, cut;
	struct batch b = { .force = true };
	struct ibv_send_wr *wr;

	memset(ep->rdst, 0, df_src_stride(c));
	ep->rd_n = 0;
	for (i = 0; i < n; i++) {
		len = rng_size(&ep->rng, c->min, c->max);
		off = rng_range(&ep->rng, 0, ep->side->rsrc_len - len);
		wr = add(&b, IBV_WR_RDMA_READ, ep->peer.rsrc + off, ep->peer.rsrc_rkey);
		nsge = (unsigned int)rng_range(&ep->rng, 1, c->max_sge);
		nsge = nsge > len ? 1 : nsge;
		for (k = 0, left = len; k < nsge; k++, left -= cut, off += cut, cur += cut) {
			cut = k == nsge - 1 ? left : rng_range(&ep->rng, 1, left - (nsge - 1 - k));
			cur += rng_range(&ep->rng, 0, DF_GAP);
			add_sge(wr, ep->rdst + cur, cut, ep->rdst_mr->lkey);
			ep->rd[ep->rd_n].dst = cur;
			ep->rd[ep->rd_n].off = off;
			ep->rd[ep->rd_n++].len = cut;
		}
	}
	ep->rd_pos = ep->posted + n - 1;
	atomic_fetch_add(&ep->side->reads, n);
	submit(ep, &b);
	return true;
}

static void check_reads(struct df_ep *ep)
{
	const struct df_cfg *c = ep->side->cfg;
	uint64_t key = df_rsrc_key(c, !ep->side->dir, ep->idx), cur = 0, j;
	unsigned int i;

	for (i = 0; i <= ep->rd_n; i++) {
		uint64_t to = i < ep->rd_n ? ep->rd[i].dst : df_src_stride(c);

		for (j = cur; j < to && !ep->rdst[j]; j++)
			;
		if (j < to) {
			df_error(ep->side, "qp 0x%x: read batch %u wrote beside its target", ep->qp->qp_num,
				 ep->reads_done);
			atomic_fetch_add(&ep->side->guards, 1);
		}
		if (i == ep->rd_n)
			break;
		if (!pattern_same(ep->rdst + to, key, ep->rd[i].off, ep->rd[i].len)) {
			df_error(ep->side, "VIOLATION qp 0x%x read batch %u piece %u: completed, bytes missing",
				 ep->qp->qp_num, ep->reads_done, i);
			atomic_fetch_add(&ep->side->violations, 1);
		}
		cur = to + ep->rd[i].len;
	}
	ep->rd_n = 0;
	ep->reads_done++;
}

static uint64_t credits(struct df_ep *ep)
{
	const struct df_cfg *c = ep->side->cfg;
	uint64_t n = c->credit_send ? atomic_load_explicit(&ep->tx_credit, memory_order_acquire) :
				      atomic_load_explicit(df_flag(ep->flags, c->window), memory_order_acquire);

	if (n > ep->tx_next) {
		df_error(ep->side, "qp 0x%x: credit %llu, only %llu rounds sent", ep->qp->qp_num, (unsigned long long)n,
			 (unsigned long long)ep->tx_next);
		n = ep->tx_next;
	}
	return n;
}

bool df_tx(struct df_ep *ep)
{
	const struct df_cfg *c = ep->side->cfg;
	bool did = false;

	if (!ep->side->sends)
		return false;
	pthread_mutex_lock(&ep->lock);
	checks_locked(ep);
	if (ep->rd_n && atomic_load_explicit(&ep->done, memory_order_acquire) > ep->rd_pos) {
		check_reads(ep);
		did = true;
	}
	if (ep->tx_next < c->rounds && ep->tx_next < credits(ep) + c->window && room(ep, DF_MAX_WRS))
		did = send_round(ep);
	if (!ep->rd_n && ep->reads_done < c->reads && room(ep, DF_MAX_WRS) &&
	    (c->mixed || credits(ep) == c->rounds))
		did = send_reads(ep);
	pthread_mutex_unlock(&ep->lock);
	return did;
}

bool df_tx_done(struct df_ep *ep)
{
	const struct df_cfg *c = ep->side->cfg;

	return !ep->side->sends || (ep->tx_next == c->rounds && credits(ep) == c->rounds && ep->reads_done == c->reads);
}

int df_credit(struct df_ep *ep, uint64_t total)
{
	const struct df_cfg *c = ep->side->cfg;
	struct batch b = { .n = 0 };
	struct ibv_send_wr *wr;
	int err = -EAGAIN;
	uint8_t *buf;

	pthread_mutex_lock(&ep->lock);
	checks_locked(ep);
	if (!room(ep, 1))
		goto out;
	buf = small_buf(ep, ep->posted);
	if (c->credit_send) {
		wr = add(&b, IBV_WR_SEND, 0, 0);
		memcpy(buf, (uint64_t[]){ K_MAX, total }, 16);
		add_sge(wr, buf, DF_MSG, ep->small_mr->lkey);
	} else {
		wr = add(&b, IBV_WR_RDMA_WRITE, ep->peer.flags + (uint64_t)c->window * DF_FLAG_STRIDE,
			 ep->peer.flags_rkey);
		wr->send_flags = IBV_SEND_INLINE;
		memcpy(buf, &total, 8);
		add_sge(wr, buf, 8, ep->small_mr->lkey);
	}
	err = submit(ep, &b);
out:
	pthread_mutex_unlock(&ep->lock);
	return err;
}

void df_checks(struct df_ep *ep)
{
	pthread_mutex_lock(&ep->lock);
	checks_locked(ep);
	pthread_mutex_unlock(&ep->lock);
}

int df_last(struct df_ep *ep)
{
	struct batch b = { .force = true };
	int err = -EAGAIN;

	pthread_mutex_lock(&ep->lock);
	if (room(ep, 1)) {
		add(&b, IBV_WR_RDMA_WRITE, ep->peer.slots, ep->peer.slots_rkey);
		err = submit(ep, &b);
	}
	checks_locked(ep);
	pthread_mutex_unlock(&ep->lock);
	return err;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Chains: the WRs that go to one rail with one call, so that each rail gets one doorbell per batch. */
#include "qp.h"

#include <string.h>

static struct ibv_send_wr *append(struct dp_chain *ch, const struct ibv_send_wr *wr, uint64_t len)
{
	struct ibv_send_wr *w = &ch->wr[ch->n];

	*w = *wr;
	w->next = NULL;
	if (ch->n)
		ch->wr[ch->n - 1].next = w;
	ch->n++;
	ch->msgs++;
	ch->bytes += len;
	if (wr->opcode == IBV_WR_RDMA_READ)
		ch->reads += len;
	return w;
}

bool dp_chain_full(const struct dp_qp *q, uint32_t rail)
{
	return q->rail[rail].chain.n == DP_BATCH;
}

static void fill(struct dp_qp *q, struct dp_chain *ch, const struct ibv_send_wr *wr, const struct dp_part *part,
		 const uint32_t *lkeys)
{
	struct ibv_send_wr *w = append(ch, wr, part->len);
	struct ibv_sge *out = &ch->sge[ch->nsge];
	int n = 0;

	if (part->len)
		n = dp_plan_sges(wr->sg_list, wr->num_sge, part, lkeys, out, (int)q->cap.max_send_sge);
	w->sg_list = out;
	w->num_sge = n < 0 ? 0 : n; /* cannot fail: the part lies within, and never needs more SGEs than the WR has */
	w->wr.rdma.remote_addr += part->offset;
	ch->nsge += (unsigned)w->num_sge;
}

void dp_chain_add0(struct dp_qp *q, const struct ibv_send_wr *wr, const struct dp_part *part, uint64_t len)
{
	struct dp_rail *rail = &q->rail[0];

	if (part)
		fill(q, &rail->chain, wr, part, NULL);
	else
		append(&rail->chain, wr, len);
}

void dp_chain_add(struct dp_qp *q, uint32_t r, const struct ibv_send_wr *wr, const struct dp_part *part,
		  const uint32_t *lkeys, uint32_t rkey, uint64_t seq, bool scratch)
{
	struct dp_rail *rail = &q->rail[r];
	struct ibv_send_wr *w;

	fill(q, &rail->chain, wr, part, lkeys);
	w = &rail->chain.wr[rail->chain.n - 1];
	w->wr_id = seq;
	w->wr.rdma.rkey = rkey;
	/* only the last of a chain tells; the program's own flags do not matter here, but for the fence */
	w->send_flags = wr->send_flags & IBV_SEND_FENCE;
	if (scratch)
		dp_scratch_sge(rail, w, (uint32_t)part->len);
}

static void empty(struct dp_chain *ch)
{
	ch->n = ch->nsge = ch->msgs = 0;
	ch->bytes = ch->reads = 0;
}

/* Only the first n are left, none of them a flush. */
static void shorten(struct dp_chain *ch, unsigned n)
{
	ch->n = ch->msgs = n;
	ch->bytes = ch->reads = 0;
	for (unsigned i = 0; i < n; i++)
		for (int k = 0; k < ch->wr[i].num_sge; k++) {
			ch->bytes += ch->wr[i].sg_list[k].length;
			if (ch->wr[i].opcode == IBV_WR_RDMA_READ)
				ch->reads += ch->wr[i].sg_list[k].length;
		}
	if (n)
		ch->wr[n - 1].next = NULL;
}

void dp_chain_take_back(struct dp_qp *q)
{
	for (uint32_t r = 1; r < q->nrails; r++) {
		struct dp_chain *ch = &q->rail[r].chain;
		unsigned n = ch->n;

		while (n && ch->wr[n - 1].wr_id > q->order.planned[r])
			n--;
		shorten(ch, n);
	}
}

int dp_chain_post0(struct dp_qp *q, unsigned *accepted)
{
	struct dp_chain *ch = &q->rail[0].chain;
	struct ibv_send_wr *bad = NULL;
	int ret;

	*accepted = ch->n;
	if (!ch->n)
		return 0;
	ret = q->post_send(q->qp, ch->wr, &bad);
	if (__builtin_expect(ret, 0)) {
		*accepted = bad ? (unsigned)(bad - ch->wr) : 0;
		shorten(ch, *accepted);
	}
	dp_flow_count(q->rail[0].flow, ch->bytes, ch->msgs, ch->reads);
	empty(ch);
	return ret;
}

static bool post_sibling(struct dp_rail *rail)
{
	struct dp_chain *ch = &rail->chain;
	struct ibv_send_wr *last;
	bool ok;

	if (!ch->n)
		return true;
	last = &ch->wr[ch->n - 1];
	last->send_flags |= IBV_SEND_SIGNALED;
	ok = dp_rail_post(rail, ch->wr, dp_flush_covers(last->wr_id));
	if (ok && rail->flow)
		dp_flow_count(rail->flow, ch->bytes, ch->msgs, ch->reads);
	empty(ch);
	return ok;
}

bool dp_chain_posts(struct dp_qp *q)
{
	bool ok = true;

	for (uint32_t r = 1; r < q->nrails; r++) {
		bool more;

		if (!dp_order_flush_wanted(&q->order, r)) {
			ok &= post_sibling(&q->rail[r]);
			continue;
		}
		do {
			more = !dp_flush_chain(q, r);
			ok &= post_sibling(&q->rail[r]);
		} while (more && ok);
	}
	if (q->order.flush & 1) {
		dp_flush_spare(q);
		if (!post_sibling(q->spare)) {
			dp_order_flush_over(&q->order, 0);
			ok = false;
		}
	}
	return ok;
}

void dp_chain_drop(struct dp_qp *q)
{
	for (uint32_t r = 0; r < q->nrails; r++)
		empty(&q->rail[r].chain);
}

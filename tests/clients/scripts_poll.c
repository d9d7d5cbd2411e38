// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Completions and events: taken whenever they come, told in an order that does not depend on that. */
#include <arpa/inet.h>
#include <poll.h>
#include <sched.h>
#include <string.h>

#include "scripts.h"

#define PATIENCE_NS (UINT64_C(12) * 1000000000)

uint64_t sum_of(const uint8_t *p, const uint8_t *dark, size_t len)
{
	uint64_t h = len, w;
	size_t i;

	for (i = 0; i + 8 <= len; i += 8) {
		if (dark && memchr(dark + i, 1, 8))
			continue;
		memcpy(&w, p + i, 8);
		h = (h ^ w) * 0x9e3779b97f4a7c15ull;
		h ^= h >> 29;
	}
	for (; i < len; i++)
		if (!dark || !dark[i])
			h = (h ^ p[i]) * 0x100000001b3ull;
	return mix64(h);
}

static struct way *owner(unsigned int side, uint32_t qpn)
{
	for (unsigned int i = 0; i < nways; i++)
		if (ways[i].side == side && ways[i].qp && ways[i].qp->qp_num == qpn)
			return &ways[i];
	return NULL;
}

static void deliver(unsigned int side, unsigned int cq, const struct ibv_wc *wc)
{
	struct side *s = &sides[side];
	bool recv = wc->wr_id & RECV_ID;
	struct way *w = owner(side, wc->qp_num), *by_id = &ways[(wc->wr_id & ~RECV_ID) >> 32];
	struct got *g;

	if (!w || (!(recv && s->srq) && by_id != w)) {
		say("  a completion of nobody: side %u, id %llx\n", side, (unsigned long long)wc->wr_id);
		return;
	}
	if (recv ? w->nrecvs == LOG : w->nsends == LOG) {
		say("  too many completions\n");
		return;
	}
	g = recv ? &w->recvs[w->nrecvs++] : &w->sends[w->nsends++];
	*g = (struct got){ .wc = *wc, .cq = cq };
	if (recv && !wc->status && wc->opcode == IBV_WC_RECV)
		g->sum = sum_of((s->srq ? s->srq_slots : w->slots) + (wc->wr_id & 0xffff) * SLOT, NULL, wc->byte_len);
}

static bool pump_some(unsigned int side, unsigned int cq, int n)
{
	struct side *s = &sides[side];
	struct ibv_wc wc[16];
	uint64_t stamp[16];
	int got;

	if (s->ex[cq])
		got = ex_poll(s->cq[cq], n, wc, s->stamps[cq] ? stamp : NULL);
	else
		got = ibv_poll_cq(s->cq[cq], n, wc);
	if (got < 0 || got > n)
		say("  polling: %d\n", got);
	for (int i = 0; i < got; i++)
		deliver(side, cq, &wc[i]);
	return got > 0;
}

bool pump_one(unsigned int side, unsigned int cq)
{
	return pump_some(side, cq, 1);
}

bool pump(void)
{
	bool any = false;

	for (unsigned int side = 0; side < 2; side++)
		for (unsigned int c = 0; c < sides[side].ncq; c++)
			any |= pump_some(side, c, (int)rng_range(&luck, 1, 16));
	return any;
}

static bool satisfied(void)
{
	for (unsigned int i = 0; i < nways; i++)
		if (ways[i].nsends < ways[i].want_sends || ways[i].nrecvs < ways[i].want_recvs)
			return false;
	return true;
}

static bool take_event(struct side *s)
{
	struct ibv_cq *cq;
	void *context;

	if (vb.get_cq_event(s->ch, &cq, &context))
		return false;
	vb.ack_cq_events(cq, 1);
	for (unsigned int c = 0; c < s->ncq; c++)
		if (s->cq[c] == cq)
			s->armed[c] = false;
	return true;
}

/* Sleeps until one of the channels has an event; false: none came, although there was something. */
static bool sleep_on_channels(void)
{
	struct pollfd p[2] = { { .fd = sides[0].ch->fd, .events = POLLIN }, { .fd = sides[1].ch->fd, .events = POLLIN } };

	for (unsigned int side = 0; side < 2; side++)
		for (unsigned int c = 0; c < sides[side].ncq; c++)
			if (!sides[side].armed[c]) {
				sides[side].armed[c] = true;
				if (ibv_req_notify_cq(sides[side].cq[c], 0))
					say("  cannot be armed\n");
			}
	/* what came before is told by no event */
	if (pump())
		return true;
	if (poll(p, 2, 6000) > 0) {
		for (unsigned int side = 0; side < 2; side++)
			if (p[side].revents && !take_event(&sides[side]))
				say("  no event, although there was one\n");
		return true;
	}
	return !pump();
}

bool wait_wanted(void)
{
	bool events = sides[0].ch && sides[1].ch && rng_pct(&luck, 50);
	uint64_t last = now_ns();

	while (!satisfied()) {
		if (pump()) {
			last = now_ns();
			continue;
		}
		if (now_ns() - last > PATIENCE_NS) {
			for (unsigned int i = 0; i < nways; i++)
				if (ways[i].nsends < ways[i].want_sends || ways[i].nrecvs < ways[i].want_recvs)
					say("  MISSING at %s: %u of %u sent, %u of %u received\n", ways[i].name, ways[i].nsends,
					    ways[i].want_sends, ways[i].nrecvs, ways[i].want_recvs);
			mini_failed++;
			return false;
		}
		if (events) {
			if (!sleep_on_channels()) {
				say("  an event is MISSING\n");
				mini_failed++;
				return false;
			}
		} else if (rng_pct(&luck, 80)) {
			sched_yield();
		} else {
			mini_nap(1);
		}
	}
	/* is there more than was wanted? */
	pump();
	return true;
}

static void tell(const struct way *w, const struct got *g, bool recv)
{
	const struct ibv_wc *wc = &g->wc;

	say("  %s cq %u %s ", w->name, g->cq, recv ? "recv" : "send");
	if (recv && sides[w->side].srq)
		say("srq");
	else
		say("%u", (unsigned int)(wc->wr_id & 0xffff));
	say(" %s", vb.wc_status_str(wc->status));
	if (!wc->status) {
		say(" op %d", wc->opcode);
		if (recv || wc->opcode == IBV_WC_RDMA_READ || wc->opcode == IBV_WC_COMP_SWAP || wc->opcode == IBV_WC_FETCH_ADD)
			say(" len %u", wc->byte_len);
		say(" flags %x", wc->wc_flags);
		if (wc->wc_flags & IBV_WC_WITH_IMM)
			say(" imm %x", ntohl(wc->imm_data)); /* else it may be a key */
		if (recv && wc->opcode == IBV_WC_RECV)
			say(" data %llx", (unsigned long long)g->sum);
	}
	say("\n");
}

void report(void)
{
	for (unsigned int i = 0; i < nways; i++) {
		struct way *w = &ways[i];

		for (unsigned int k = 0; k < w->nsends; k++)
			tell(w, &w->sends[k], false);
		for (unsigned int k = 0; k < w->nrecvs; k++)
			tell(w, &w->recvs[k], true);
		w->nsends = w->nrecvs = w->want_sends = w->want_recvs = w->nlog = 0;
	}
}

void memory(unsigned int pair)
{
	for (unsigned int i = 0; i < nways; i++)
		if (ways[i].pair == pair)
			say("  %s memory %llx %llx\n", ways[i].name, (unsigned long long)sum_of(ways[i].target, ways[i].target_dark, AREA),
			    (unsigned long long)sum_of(ways[i].land, ways[i].land_dark, AREA));
}

void collect_events(int ms)
{
	struct ibv_async_event e;
	struct way *w;

	for (unsigned int side = 0; side < 2; side++) {
		struct pollfd p = { .fd = sides[side].dev.ctx->async_fd, .events = POLLIN };

		while (poll(&p, 1, ms) == 1 && !vb.get_async_event(sides[side].dev.ctx, &e)) {
			w = NULL;
			for (unsigned int i = 0; i < nways; i++)
				if (e.event_type != IBV_EVENT_CQ_ERR && ways[i].qp == e.element.qp)
					w = &ways[i];
			if (!w || e.event_type >= 32)
				say("  an event of nobody: %d\n", e.event_type);
			else
				w->events[e.event_type] = true;
			vb.ack_async_event(&e);
			ms = 0;
		}
	}
}

bool wait_event(struct way *w, enum ibv_event_type t, int ms)
{
	for (int i = 0; i < ms && !w->events[t]; i += 10)
		collect_events(5);
	return w->events[t];
}

void say_events(void)
{
	collect_events(0);
	for (unsigned int i = 0; i < nways; i++)
		for (int t = 0; t < 32; t++)
			if (ways[i].events[t]) {
				say("  %s event %d\n", ways[i].name, t);
				ways[i].events[t] = false;
			}
}

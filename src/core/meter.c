// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What the modes that wait for rail 0 have to know to decide whether waiting pays: how fast a port is, who else uses
 * it, and how long a round trip takes. Measured, since links may be slower than they say.
 */
#include "qp.h"

#include <string.h>

#define WINDOW_NS 2000000u
#define LOOKS 8
#define EPOCH_NS 1000000000u

static struct dp_meter *meter_of(const struct dp_qp *q, uint32_t r)
{
	return r ? &q->rail[r].sib->meter : &q->c->meter[q->init.port_num % DP_OWN_METERS];
}

/*
 * The best of this and the last second. What completes while requests wait for one another is less than the port could
 * carry; taken for its rate, it would make waiting look cheap, and that would go on for ever.
 */
static void sample(struct dp_meter *m, uint64_t rate, uint64_t now)
{
	if (now - m->epoch >= EPOCH_NS) {
		m->last_best = now - m->epoch < 2 * (uint64_t)EPOCH_NS ? m->best : 0;
		m->best = 0;
		m->epoch = now;
	}
	if (rate > m->best)
		m->best = rate;
	m->rate = m->best > m->last_best ? m->best : m->last_best;
}

/*
 * The rate is what completes while there is always something outstanding, from a completion to one at least a window
 * and some polls later, since each poll may find what came long before. What waits in our queues is not outstanding.
 */
static void completed(struct dp_meter *m, uint64_t bytes, uint64_t now)
{
	m->open -= bytes;
	if (!m->since) {
		m->since = now;
		m->got = m->looks = 0;
	} else {
		m->got += bytes;
		m->looks++;
		if (now - m->since >= WINDOW_NS && m->looks >= LOOKS) {
			sample(m, (uint64_t)((double)m->got * 1e9 / (double)(now - m->since)), now);
			/* go on with the younger half of it */
			m->since += (now - m->since) / 2;
			m->got /= 2;
			m->looks /= 2;
		}
	}
	if (!m->open)
		m->since = 0;
}

/*
 * Of a flow: how long it had something to send. Signals alone are no work for a port: what they take is the round trip.
 */
static void advance(struct dp_flow *f, uint64_t sent, uint64_t arrived, uint64_t now)
{
	bool was;

	dp_take(&f->lock);
	was = f->open >= dp_cfg.align;
	f->open += sent - arrived;
	f->acked += arrived;
	if (was)
		f->busy_ns += now - f->busy_since;
	f->busy_since = now;
	dp_drop(&f->lock);
}

/* Reading the clock for each list of requests is only worth it where somebody will read the answer. */
static bool timed(void)
{
	return dp_cfg.diag_json[0];
}

/* *now: the time; 0: it was not asked for yet. What was only posted needs none. */
static void update(struct dp_qp *q, uint32_t r, uint64_t *now)
{
	const struct dp_order *o = &q->order;
	struct dp_rail *rail = &q->rail[r];
	uint64_t sent = o->sent[r] - rail->metered_sent, arrived = o->arrived[r] - rail->metered_arrived;
	struct dp_meter *m = meter_of(q, r);
	bool flow = timed() && rail->flow;

	if (!*now && (arrived || flow))
		*now = dp_now_ns();
	if (flow)
		advance(rail->flow, sent, arrived, *now);
	/* refused requests were taken back: then sent may have fallen */
	dp_take(&m->lock);
	m->open += sent;
	if (arrived)
		completed(m, arrived, *now);
	m->planned += o->bytes[r] - rail->metered_planned;
	m->qps += (o->bytes[r] != 0) - (rail->metered_planned != 0);
	dp_drop(&m->lock);
	rail->metered_sent = o->sent[r];
	rail->metered_arrived = o->arrived[r];
	rail->metered_planned = o->bytes[r];
	/* from more than half of it to less than twice as much */
	rail->quiet_from = o->bytes[r] ? o->bytes[r] / 2 + 1 : 0;
	rail->quiet_n = (o->bytes[r] > DP_METER_LITTLE / 2 ? 2 * o->bytes[r] : DP_METER_LITTLE) - rail->quiet_from;
}

void dp_meter_update(struct dp_qp *q)
{
	uint64_t now = 0;

	if (!dp_meter_needed(q) && !timed())
		return;
	for (uint32_t r = 0; r < q->nrails; r++)
		if (dp_meter_of_note(q, r))
			update(q, r, &now);
}

void dp_trip_ended(struct dp_qp *q, const struct dp_slot *s)
{
	dp_meter_rtt(q, dp_now_ns() - s->posted_ns);
}

void dp_meter_drop(struct dp_qp *q)
{
	for (uint32_t r = 0; q->rail && r < q->nrails; r++) {
		struct dp_rail *rail = &q->rail[r];
		struct dp_meter *m;

		if (r && !rail->sib)
			continue;
		if (timed() && rail->flow)
			advance(rail->flow, rail->metered_arrived - rail->metered_sent, 0, dp_now_ns());
		m = meter_of(q, r);
		dp_take(&m->lock);
		m->open -= rail->metered_sent - rail->metered_arrived;
		m->planned -= rail->metered_planned;
		m->qps -= rail->metered_planned != 0;
		m->since = 0;
		dp_drop(&m->lock);
		rail->metered_sent = rail->metered_arrived = rail->metered_planned = 0;
		rail->quiet_n = 0;
	}
	q->rtt_ns = 0;
}

void dp_meter_rtt(struct dp_qp *q, uint64_t ns)
{
	if (ns && (!q->rtt_ns || ns < q->rtt_ns))
		q->rtt_ns = ns;
}

bool dp_meter_haste(const struct dp_qp *q, const struct dp_part *part, uint64_t len)
{
	struct dp_meter *m = meter_of(q, 0);
	struct dp_patience p = { .rtt_ns = q->rtt_ns, .bytes = len };
	uint64_t others, most;

	if (dp_cfg.patience != DP_PATIENCE_AUTO)
		return dp_cfg.patience == DP_PATIENCE_NEVER;
	for (uint32_t r = 1; r < q->nrails; r++)
		if (part[r].len > p.part)
			p.part = part[r].len;
	dp_take(&m->lock);
	p.rate = m->rate;
	others = m->planned - q->rail[0].metered_planned;
	most = (m->qps - (q->rail[0].metered_planned != 0)) * len;
	dp_drop(&m->lock);
	p.others = others < most ? others : most;
	return !dp_plan_wait(&p);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include "stuck.h"
#include "core.h"

#include <stdarg.h>
#include <string.h>

#define LINE_MAX_LEN 512
#define LINES 8 /* in one go; the other QPs are looked at the next time */
/* A slow network makes a program wait all the time: further lines about a QP are news only now and then. */
#define AGAIN_NS UINT64_C(30000000000)
#define ENOUGH 32 /* lines of the process in that time */

struct text {
	char *buf;
	size_t n, len;
};

static void __attribute__((format(printf, 2, 3))) say(struct text *t, const char *fmt, ...)
{
	va_list ap;
	int k;

	va_start(ap, fmt);
	k = vsnprintf(t->buf + t->len, t->n - t->len, fmt, ap);
	va_end(ap);
	if (k < 0)
		return;
	t->len += (size_t)k;
	if (t->len >= t->n)
		t->len = t->n - 1;
}

static const char *opcode_name(uint8_t opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
		return "RDMA_WRITE";
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return "RDMA_WRITE_WITH_IMM";
	case IBV_WR_SEND:
		return "SEND";
	case IBV_WR_SEND_WITH_IMM:
		return "SEND_WITH_IMM";
	case IBV_WR_RDMA_READ:
		return "RDMA_READ";
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return "CMP_SWAP";
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return "FETCH_ADD";
	case IBV_WR_LOCAL_INV:
		return "LOCAL_INV";
	case IBV_WR_BIND_MW:
		return "BIND_MW";
	case IBV_WR_SEND_WITH_INV:
		return "SEND_WITH_INV";
	default:
		return "request";
	}
}

static const char *rail_name(const struct dp_qp *q, uint32_t r)
{
	if (r)
		return q->rail[r].sib->text;
	return q->rail[0].flow ? q->rail[0].flow->port : q->c->dev;
}

static uint64_t posted(const struct dp_qp *q, uint32_t r)
{
	return r ? q->rail[r].posted : q->order.post0;
}

static const struct dp_slot *slot_of(const struct dp_qp *q, uint64_t pos)
{
	return &q->slot[pos & q->order.mask];
}

/* Is the completion of op pos here, but not to be given, because a sibling is not done? */
static bool held_back(const struct dp_qp *q, uint64_t pos)
{
	const struct dp_order *o = &q->order;

	if (pos < o->deliver || pos >= o->match || !(dp_order_op(o, pos)->flags & DP_OP_SIGNALED))
		return false;
	for (uint32_t r = 1; r < o->nrails; r++)
		if (!dp_order_reached(o, r, dp_order_rail(o, pos, r)->seq, false))
			return true;
	return false;
}

/* Since when op pos waits; 0: it does not. */
static uint64_t waits_since(const struct dp_qp *q, uint64_t pos)
{
	const struct dp_slot *s = slot_of(q, pos);

	if (s->qwr)
		return s->qwr->since;
	return held_back(q, pos) ? s->held_since : 0;
}

static bool overdue(const struct dp_qp *q, uint64_t pos, uint64_t now)
{
	uint64_t since = waits_since(q, pos);

	return since && since < now && now - since > dp_cfg.stuck_ns && !slot_of(q, pos)->reported;
}

/* Between parts of a list. */
static void separate(struct text *t, bool *any)
{
	say(t, "%s", *any ? ", " : "waits for ");
	*any = true;
}

static void say_rail(struct text *t, const struct dp_qp *q, uint32_t r, uint64_t upto, bool *any)
{
	uint64_t n = upto - q->order.done[r];

	separate(t, any);
	say(t, "%llu %s%s on %s (posted %llu, acknowledged %llu)", (unsigned long long)n,
	    r ? "fragment" : "request", n == 1 ? "" : "s", rail_name(q, r), (unsigned long long)posted(q, r),
	    (unsigned long long)q->order.done[r]);
}

static void say_what_for(struct text *t, const struct dp_qp *q, uint64_t pos)
{
	const struct dp_order *o = &q->order;
	const struct dp_op_rail *or = dp_order_rail(o, pos, 0);
	bool any = false, queued = slot_of(q, pos)->qwr, on0 = pos >= o->post0;

	for (uint32_t r = 0; r < o->nrails; r++) {
		uint64_t upto = !queued ? (r ? or[r].seq : 0) : on0 ? (r ? or[r].wait0 : 0) : or[r].waits;

		if (o->done[r] < upto) {
			say_rail(t, q, r, upto, &any);
		} else if (!dp_order_reached(o, r, upto, dp_order_op(o, pos)->flags & DP_OP_STRONG)) {
			separate(t, &any);
			say(t, "a flush of %s", rail_name(q, r));
		}
	}
	if (any)
		return;
	if (on0 ? pos > o->post0 : pos > o->posts)
		say(t, "waits for an earlier request to be posted");
	else
		say(t, "may go: waits for room on %s", on0 ? rail_name(q, 0) : "its siblings");
}

static void say_peer(struct text *t, const struct dp_qp *q)
{
	say(t, "qp 0x%x to %s qp 0x%x: ", q->qp_num, q->rail[0].flow ? q->rail[0].flow->peer : "its peer",
	    q->rtr.dest_qp_num);
}

int dp_stuck_describe(const struct dp_qp *q, uint64_t now, char *buf, size_t n)
{
	const struct dp_order *o = &q->order;
	struct text t = { buf, n, 0 };
	uint64_t first = UINT64_MAX, others = 0, age;

	if (!n)
		return 0;
	buf[0] = '\0';
	if (!dp_cfg.stuck_ns || !q->slot || !q->rail || q->nrails < o->nrails)
		return 0;
	for (uint64_t p = o->tail; p < o->next; p++) {
		if (!overdue(q, p, now))
			continue;
		if (first == UINT64_MAX)
			first = p;
		else
			others++;
	}
	if (first == UINT64_MAX)
		return 0;
	say_peer(&t, q);
	age = (now - waits_since(q, first)) / 100000000u; /* tenths of a second */
	say(&t, "%s %s %s %llu.%llu s: ", dp_order_op(o, first)->flags & DP_OP_BULK ? "bulk" : "flag",
	    opcode_name(slot_of(q, first)->opcode), slot_of(q, first)->qwr ? "queued" : "held",
	    (unsigned long long)(age / 10), (unsigned long long)(age % 10));
	if (atomic_load_explicit(&q->state, memory_order_relaxed) == DP_QP_FAILING)
		say(&t, "the qp has failed; ");
	say_what_for(&t, q, first);
	if (others)
		say(&t, "; %llu more wait%s", (unsigned long long)others, others == 1 ? "s" : "");
	say(&t, "; rails");
	for (uint32_t r = 0; r < o->nrails; r++) {
		say(&t, "%s %s planned %llu posted %llu done %llu%s", r ? "," : "", rail_name(q, r),
		    (unsigned long long)o->planned[r], (unsigned long long)posted(q, r),
		    (unsigned long long)o->done[r], r && q->rail[r].dead ? " dead" : "");
		if (o->flush >> r & 1)
			say(&t, " visible %llu flushing %llu wanted %llu", (unsigned long long)o->visible[r],
			    (unsigned long long)o->asked[r], (unsigned long long)o->want[r]);
	}
	return (int)t.len;
}

uint64_t dp_stuck_mark(struct dp_qp *q, uint64_t now)
{
	uint64_t n = 0;

	for (uint64_t p = q->order.tail; p < q->order.next; p++)
		if (overdue(q, p, now)) {
			q->slot[p & q->order.mask].reported = true;
			n++;
		}
	return n;
}

struct report {
	uint64_t now;
	unsigned n;
	char line[LINES][LINE_MAX_LEN];
};

static void look(struct dp_qp *q, void *arg)
{
	struct report *rep = arg;
	int state, n;

	/* never waits: whoever holds it posts or polls, and the next look is soon */
	if (rep->n == LINES || !dp_try(&q->lock))
		return;
	state = atomic_load_explicit(&q->state, memory_order_relaxed);
	if (state != DP_QP_BONDED && state != DP_QP_FAILING)
		goto out;
	if (q->stuck_said && rep->now - q->stuck_said < AGAIN_NS) {
		if (q->slot)
			q->stuck_more += dp_stuck_mark(q, rep->now);
		goto out;
	}
	n = dp_stuck_describe(q, rep->now, rep->line[rep->n], LINE_MAX_LEN);
	if (!n)
		goto out;
	if (q->stuck_more)
		snprintf(rep->line[rep->n] + n, LINE_MAX_LEN - (size_t)n, "; %llu others since the last such line",
			 (unsigned long long)q->stuck_more);
	dp_stuck_mark(q, rep->now);
	q->stuck_said = rep->now;
	q->stuck_more = 0;
	rep->n++;
out:
	dp_drop(&q->lock);
}

void dp_stuck_check(void)
{
	static uint64_t begin;
	static unsigned written; /* since begin, by all QPs; progress thread only */
	struct report rep = { .now = dp_now_ns() };

	if (rep.now - begin > AGAIN_NS) {
		begin = rep.now;
		written = 0;
	}
	/* those that are left out are looked at again when the time has come */
	if (written >= ENOUGH)
		return;
	dp_qp_each(look, &rep);
	written += rep.n;
	/* only now: stderr may block, and nobody is to wait for it in post_send or destroy_qp */
	for (unsigned i = 0; i < rep.n; i++)
		dp_warn("%s", rep.line[i]);
}

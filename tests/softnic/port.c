// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Each port has two clocks, for what it sends and what it takes in. A packet starts when the port has sent all before
 * it. The clocks may run ahead of the time by AHEAD_NS; what is beyond that stays in the queues of the QPs, which take
 * turns. A QP that waited for its turn and then wakes up late starts where the clock stands, in the past if need be, so
 * the rate is exact however late the engine is; but nothing arrives before its delay is over.
 *
 * The rate is of payload: a request or a READ's response counts as at least MIN_BYTES, an acknowledgement as nothing.
 */
#include "packet.h"

#define AHEAD_NS 1000000u
#define LATE_NS 1000000000u /* later than this, time is lost */
#define MIN_BYTES 64u

static uint64_t cost(const struct sn_port *p, uint32_t bytes)
{
	if (bytes < MIN_BYTES)
		bytes = MIN_BYTES;
	return p->rate ? (uint64_t)bytes * 1000000000u / p->rate : 0;
}

static uint64_t max64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Moves a clock that others move, too, by ns; not before start. The time that it shows then. */
static uint64_t advance(_Atomic uint64_t *clock, uint64_t start, uint64_t end, uint64_t ns)
{
	uint64_t old = atomic_load_explicit(clock, memory_order_relaxed), new;

	do {
		new = max64(end, max64(old, start) + ns);
	} while (!atomic_compare_exchange_weak_explicit(clock, &old, new, memory_order_relaxed, memory_order_relaxed));
	return new;
}

/* The port of a bond by which a QP's packets leave, and the one by which they come in, as if cables joined equal ones. */
static uint32_t tx_lane(const struct sn_qp *q)
{
	return q->lag ? q->lag - 1u : 0;
}

static uint32_t rx_lane(const struct sn_qp *q)
{
	uint32_t lag = sn_shared->devs[q->peer_dev].lag;

	return lag ? (q->lag ? q->lag - 1u : q->dev) % lag : 0;
}

uint64_t sn_port_when(const struct sn_qp *q)
{
	struct sn_port *from = &sn_shared->devs[q->dev].port, *to = &sn_shared->devs[q->peer_dev].port;
	uint64_t tx = atomic_load_explicit(&from->tx_cursor[tx_lane(q)], memory_order_relaxed);
	uint64_t rx = atomic_load_explicit(&to->rx_cursor[rx_lane(q)], memory_order_relaxed);
	uint64_t ahead;

	rx = rx > from->delay ? rx - from->delay : 0;
	ahead = max64(tx, rx);
	return ahead > AHEAD_NS ? ahead - AHEAD_NS : 0;
}

void sn_port_charge(const struct sn_qp *q, uint32_t bytes, bool waited, uint64_t now, uint64_t *left, uint64_t *due)
{
	struct sn_port *from = &sn_shared->devs[q->dev].port, *to = &sn_shared->devs[q->peer_dev].port;
	uint64_t ns = cost(to, bytes), end;

	atomic_fetch_add_explicit(&from->tx_bytes[tx_lane(q)], bytes, memory_order_relaxed);
	*left = advance(&from->tx_cursor[tx_lane(q)], waited ? now - LATE_NS : now, 0, cost(from, bytes));
	/* the first byte comes in when it was sent, so two equal ports cost the time of one */
	end = *left + from->delay;
	*due = max64(now + from->delay, advance(&to->rx_cursor[rx_lane(q)], end > ns ? end - ns : 0, end, ns));
}

void sn_port_control(uint32_t dev, uint32_t peer, uint64_t now, uint64_t *due)
{
	(void)peer;
	*due = now + sn_shared->devs[dev].port.delay;
}

/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * --adverse: what a network and a device may do, done often. Each QP still delivers in order. Everything else is drawn
 * from the host's seed: how slow each device is against the others, when it stalls, which messages are late. All of it
 * is with the engine's lock.
 */
#ifndef SOFTNIC_ADVERSE_H
#define SOFTNIC_ADVERSE_H

#include "packet.h"

/* The next of a device, as the seed says. Then numbers from it, below n. */
uint64_t sn_draw(uint32_t dev, enum sn_draw what, uint64_t *nth);
uint32_t sn_below(uint64_t *drawn, uint32_t n);
/* Draws anew for a message that is about to be sent. */
void sn_adverse_message(struct sn_luck *l, const struct sn_qp *q, enum sn_op op, uint32_t len);
/* Makes its packets late; all packets of one message in the same way. */
void sn_adverse_packet(const struct sn_luck *l, struct sn_pkt *p);
/* An acknowledgement is made late. */
void sn_adverse_answer(struct sn_pkt *p);

/*
 * By how much packets come later than they are due, when the first that waits is due then. A thread that wakes up late
 * would let everything land at once that should have landed one after the other; so when it is late, all that waits is
 * late, too. At most by some milliseconds, or senders would repeat it.
 */
uint64_t sn_adverse_behind(uint64_t now, uint64_t due);

/* Whether a completion was taken, to be given to the CQ later by sn_adverse_run(). */
bool sn_adverse_complete(struct sn_cq *c, const struct sn_cqe *cqe);
void sn_adverse_settle(struct sn_cq *c);	/* all of this CQ are given now */
void sn_adverse_run(uint64_t now, uint64_t *next);
void sn_adverse_after_fork(void);

#endif

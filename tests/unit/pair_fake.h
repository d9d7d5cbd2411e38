/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* Two bonded queue pairs of two rails, without peers, over a provider that notes what it is given. */
#ifndef DUALPORT_PAIR_FAKE_H
#define DUALPORT_PAIR_FAKE_H

#include "peer/internal.h"
#include "provider_fake.h"
#include "rpd.h"

#define DEPTH 16

extern struct verbs_context program;
extern struct dp_cq *cq;
extern struct ibv_qp qp[2];
extern struct dp_qp *q[2];
extern struct ibv_send_wr got[2]; /* what the provider got last, and how many */
extern struct ibv_sge got_sge[2];
extern unsigned ngot[2];
extern unsigned nbinds, to_err;
extern bool refuse;
extern int refusal;
extern uint64_t sent_hash[2][2], nsent[2][2]; /* by QP and rail: of all that its provider got */
extern struct ibv_context sib_ctx;
extern struct ibv_qp twin[2];
extern struct dp_icq icq;
extern struct dp_sib sib[2]; /* by QP, as the port numbers are: their meters must not see the other's */
extern struct dp_peer owner; /* this process itself: its lease does not end */
extern struct dp_rpd rpd;
extern struct ibv_wc cqe; /* the next completion, if there is one */
extern bool have_cqe;
extern void (*while_destroyed)(void); /* what others do meanwhile */
extern int destroy_ret; /* what it says then */
extern const enum dp_ordering modes[4];

void pair_setup(void);
/* Before bulk is posted, or signals while some is outstanding: the peer's key 9 and the local key 7 are known. */
void pair_bulk(enum dp_ordering mode);

#endif

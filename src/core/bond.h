/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* How two QPs find each other and connect their twins. Calls of the program's threads into the control thread. */
#ifndef DUALPORT_BOND_H
#define DUALPORT_BOND_H

#include "core.h"

/* q reached RTR (tracked already) or RTS. With ctl held. */
void dp_bond_rtr(struct dp_qp *q);
void dp_bond_rts(struct dp_qp *q);
/*
 * q's access flags changed after RTR: the twins get them before the program tells its peer. With ctl held. 0 or -errno:
 * they could not be given (said).
 */
int dp_bond_access(struct dp_qp *q);
/* q is reset, broken or destroyed: tell the peer. With ctl held. */
void dp_bond_end(struct dp_qp *q);
/* Waits until q's fate is known or the process's budget for it (bond_wait) is spent. Without locks. */
void dp_bond_wait(struct dp_qp *q);
/* The spare broke: see that there is a new one (bond_spare.c). Any thread, with lock held. 0 or -errno. */
int dp_bond_respare(struct dp_qp *q);
/* c's siblings are about to be closed. False: the control thread did not let go in time; leave them open. */
bool dp_bond_unwatch(struct dp_ctx *c);
/* Ends the threads if nothing needs them any more; at_exit: in any case. */
void dp_bond_stop(bool at_exit);
void dp_bond_after_fork(void);

#endif

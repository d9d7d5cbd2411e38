/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * Where WRITEs go. With --placement late they are acknowledged before they can be seen, as with a device behind PCIe,
 * whose acknowledgement says only that it has the data. The rule is that of PCIe:
 *
 * Writes that leave the host's devices through one upstream port, that of their card, are posted, and stay in order;
 * what is sent through one card says nothing of another one's. So a WRITE is seen some milliseconds later, but never
 * after a younger one of its card; not to memory with IBV_ACCESS_RELAXED_ORDERING, though, where it may be. It is seen
 * at once if the card reads memory of the same region, since a read does not pass a write on its way there, and if the
 * card does anything that is not held up here: atomics, what goes into receive buffers, responses to its own READs,
 * completions.
 */
#ifndef SOFTNIC_PLACE_H
#define SOFTNIC_PLACE_H

#include "engine.h"

void sn_place(uint32_t dev, const struct sn_span *span, uint32_t off, const void *from, uint32_t n);
void sn_place_push(uint32_t dev);
void sn_place_push_region(uint32_t dev, const struct sn_span *span);
void sn_place_all(void);	/* memory goes away: what goes there must have arrived */
void sn_place_run(uint64_t now, uint64_t *next);
void sn_place_after_fork(void);

#endif

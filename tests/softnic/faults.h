/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * --faults: what happens to ports, and when. The list is in the host, where each fault is carried out once, by the first
 * process whose engine sees that it is time; then each process does what concerns its own objects.
 */
#ifndef SOFTNIC_FAULTS_H
#define SOFTNIC_FAULTS_H

#include "softnic.h"

int sn_faults_read(struct sn_host *h, const char *path);	/* -errno, having said why */
void sn_faults_join(void);	/* what happened before is no news */
/* With the engine's lock. */
void sn_faults_run(uint64_t now, uint64_t *next);
void sn_faults_count(uint32_t dev);	/* a packet of the port is sent */

/* Packets are lost, on their way out and in. */
static inline bool sn_port_dark(uint32_t dev)
{
	return atomic_load_explicit(&sn_shared->devs[dev].port.dark, memory_order_relaxed) & (SN_DARK_DOWN | SN_DARK_SILENT);
}

static inline bool sn_port_deaf(uint32_t dev)
{
	return atomic_load_explicit(&sn_shared->devs[dev].port.dark, memory_order_relaxed) & SN_DARK_DEAF;
}

#endif

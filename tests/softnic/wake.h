/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef SOFTNIC_WAKE_H
#define SOFTNIC_WAKE_H

#include <stdint.h>

void sn_wake(uint32_t proc); /* the engine of that process has something to do */

#endif

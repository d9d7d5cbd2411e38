/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * For variables that more than one file of the core reads on the hot path. -fvisibility=hidden says of what a file defines that
 * nobody outside the library sees it, but not of what it only declares: that it would reach by way of the GOT, a load more.
 */
#ifndef DUALPORT_HIDDEN_H
#define DUALPORT_HIDDEN_H

#define DP_HIDDEN __attribute__((visibility("hidden")))

#endif

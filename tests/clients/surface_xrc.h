/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef CLIENTS_SURFACE_XRC_H
#define CLIENTS_SURFACE_XRC_H

#include "mini.h"

/* XRC from a to b while their RC QPs, which are joined, carry bulk; each has 4 * big bytes. Prints what came of it. */
void surface_xrc(struct mend *a, struct mend *b, size_t big, bool ex);

#endif

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What the owner says about its keys. It is taken in the order in which it comes, asked for or not: push.c says why
 * that is right.
 */
#include "rpd.h"

#include <string.h>


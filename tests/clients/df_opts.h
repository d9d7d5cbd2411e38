/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef CLIENTS_DF_OPTS_H
#define CLIENTS_DF_OPTS_H

#include "df.h"

/* Fills *c from the command line; ends the process with 2 (0 after --help) if it cannot. */
void df_options(struct df_cfg *c, int argc, char **argv);

/* Equal at both ends if and only if they will make the same rounds (seed apart). */
uint64_t df_digest(const struct df_cfg *c);

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* Names of ports and GPUs, and lists of port groups. Functions that can fail put a reason into why. */
#ifndef DUALPORT_PORTS_H
#define DUALPORT_PORTS_H

#include <stdbool.h>
#include <stddef.h>
#include "config.h"

/* "mlx5_0:1", "mlx5_0:1:3", "mlx5_0", "mlx5_bond_0:1::2", "mlx5_bond_0:1:3:2". 0 or -EINVAL. */
int dp_port_parse(const char *text, struct dp_port_name *port, char *why, size_t len);
/* What a port is called in messages and tables, which is enough to tell it from others: "mlx5_0:1", "mlx5_bond_0:1::2". */
#define DP_PORT_TEXT (DP_DEV_NAME + 16)
const char *dp_port_text(const char *dev, int port, int lag, char buf[DP_PORT_TEXT]);
/* Appends a port to g. 0 or -EINVAL: spelled wrong, there already, no room. */
int dp_group_add_port(struct dp_port_group *g, const char *text, char *why, size_t len);
/* Is this a group to work with? 0 or -EINVAL. */
int dp_group_check(const struct dp_port_group *g, char *why, size_t len);

/*
 * "3" gives index 3 and name ""; a PCI address or UUID gives index -1 and the name as written (size bytes of room).
 * 0 or -EINVAL.
 */
int dp_gpu_parse(const char *text, int *index, char *name, size_t size, char *why, size_t len);
/* The canonical spelling of a PCI address ("0000:9b:00.0"); false, out unchanged, if it is none. */
bool dp_pci_canonical(const char *text, char out[24]);
/* Is abbreviated the beginning of a UUID, letter case aside? */
bool dp_uuid_fits(const char *abbreviated, const char *uuid);
/* Do two names mean one GPU? Letter case, and a PCI domain that is missing or longer, do not matter. */
bool dp_gpu_same(const char *a, const char *b);

/* A new, empty group for any GPU at the end of cfg->groups. Moves the others. NULL: out of memory. */
struct dp_port_group *dp_group_new(struct dp_config *cfg);
void dp_groups_clear(struct dp_config *cfg);
/* Replaces cfg's groups by "ra0:1,ra1:1;rb0:1,rb1:1", each for any GPU. 0, -EINVAL or -ENOMEM. */
int dp_groups_parse(struct dp_config *cfg, const char *text, char *why, size_t len);

#endif

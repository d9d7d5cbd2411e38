/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * Settings for some peers only: "10.1.0.0/16 signal, fe80::1 rc", the first that fits counts. A peer is known by the GID
 * that the program connects to: with RoCE an IP address, IPv4 in its mapped form. Pure.
 */
#ifndef DUALPORT_PEER_RULES_H
#define DUALPORT_PEER_RULES_H

#include <stddef.h>
#include <stdint.h>
#include "config.h"

/* 0, or -EINVAL and in why what is wrong with text. */
int dp_peer_rules_check(const char *text, char *why, size_t len);
/* What text, which was checked, says of the peer with this GID; `otherwise` if nothing. */
enum dp_ordering dp_peer_ordering(const char *text, const uint8_t gid[16], enum dp_ordering otherwise);

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* Port groups without a file: the distinct physical ports of one card. */
#ifndef DUALPORT_GROUP_H
#define DUALPORT_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "config.h"

enum dp_port_kind {
	DP_PORT_PHYSICAL,
	DP_PORT_VF,	     /* virtual function */
	DP_PORT_SF,	     /* sub-function */
	DP_PORT_REPRESENTOR, /* the switch's side of a virtual or sub-function */
	DP_PORT_MANAGEMENT,  /* a PCI function that is no network controller */
};

/* What is known of one port of one RDMA device. */
struct dp_port_fact {
	char dev[DP_DEV_NAME];
	int port;
	uint64_t sys_image_guid; /* 0: unknown; such ports are never grouped */
	bool active;
	bool ethernet; /* link layer; groups do not mix them */
	enum dp_port_kind kind;
	int pci_function;     /* the last digit of its PCI address; -1: not a PCI device */
	char phys_port[32];   /* phys_port_name of its netdev; "": unknown */
	char phys_switch[68]; /* phys_switch_id of its netdev; "": unknown */
	int lag_ports;	      /* a bond of so many physical ports; 0: it is none */
};

/* "a virtual function", "physical" */
const char *dp_port_kind_text(enum dp_port_kind kind);
/* Are both ports, of which the card is known, on one card, with one link layer? */
bool dp_facts_same_card(const struct dp_port_fact *a, const struct dp_port_fact *b);
/* Two of one card: may they be the same physical port? What cannot be told apart counts as the same. */
bool dp_facts_same_port(const struct dp_port_fact *a, const struct dp_port_fact *b);
/*
 * The netdev of a port of the device with that directory: the one of its first GID; where there is none, as with
 * InfiniBand, the one of its device with the number of the port. Whether there is one.
 */
bool dp_port_netdev(const char *dev_dir, int port, char *name, size_t len);
/* The members of the bond that a port is ("eth0 eth1"), whose netdev this is; "": it is none. */
void dp_port_bond(const char *sysfs, const char *dev, const char *netdev, char *members, size_t len);

/*
 * Appends one group, for any GPU, for each card with two or more different physical ports, in the order of the
 * device names; sorts facts so. Which ports are different: those with different phys_port_name; where that is
 * unknown, those with a different PCI function or port number (the functions of one port in two slots, as with
 * Socket Direct, have the same function number). With cfg->lag, the physical ports of a bond are a group, too. If none was found, why says why not. Returns the number of
 * groups or -ENOMEM.
 */
int dp_groups_from_facts(struct dp_config *cfg, struct dp_port_fact *facts, size_t n, char *why, size_t len);

/* Reads all ports below sysfs (NULL: "/sys"). The caller frees *facts. 0, or -errno: -ENOENT without RDMA devices. */
int dp_port_facts_read(const char *sysfs, struct dp_port_fact **facts, size_t *n);

/*
 * Both, for a configuration without groups. 0: there is a group now; else -ENOENT (none was found) or another -errno,
 * with a reason in why. Not thread-safe with regard to cfg.
 */
int dp_groups_from_card(struct dp_config *cfg, const char *sysfs, char *why, size_t len);

/* Puts a question mark for each byte that a terminal might obey. */
void dp_printable(char *text);
/* The first line of the file whose path fmt gives, so made printable; "" and -errno if it cannot be read. group_sysfs.c */
int dp_sysfs_line(char *buf, size_t len, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif

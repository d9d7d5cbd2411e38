/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* What the files of the dualport command share. It has one thread. */
#ifndef DUALPORT_TOOL_H
#define DUALPORT_TOOL_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "config.h"
#include "gpu.h"
#include "group.h"

/* Exit statuses. */
enum { TOOL_OK = 0, TOOL_BAD = 1, TOOL_USAGE = 2 };

int tool_probe(int argc, char **argv);
int tool_check(int argc, char **argv);
int tool_report(int argc, char **argv);
int tool_config(int argc, char **argv);
int tool_run(int argc, char **argv);

/* One line on standard error, "dualport: ..."; returns TOOL_USAGE. */
int tool_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Takes "--sysfs DIR" out of the arguments from argv[1] on; *dir is NULL without. 0, or TOOL_USAGE, said, also where
 * DIR is no directory. */
int tool_sysfs(int *argc, char **argv, const char **dir);

/* ---- topology (topo.c, remarks.c, propose.c) ---- */

/* How far two PCI devices are from each other, as nvidia-smi topo names it. */
enum dp_distance {
	DP_PIX,	 /* at most one PCIe switch between them */
	DP_PXB,	 /* several switches, no host bridge */
	DP_PHB,	 /* one host bridge */
	DP_NODE, /* one NUMA node */
	DP_SYS,	 /* between NUMA nodes */
	DP_FAR,	 /* unknown */
};
const char *dp_distance_name(enum dp_distance d);

struct dp_pci {
	char addr[24];	     /* "": not a PCI device */
	char path[PATH_MAX]; /* below sysfs/devices, resolved; "": unknown */
	int numa;	     /* -1: unknown */
	double gbit;	     /* of its link in one direction; 0: unknown */
	char link[48];	     /* "16.0 GT/s x16" */
};

struct dp_topo_gpu {
	struct dp_host_gpu id;
	struct dp_pci pci;
};

struct dp_topo_port {
	struct dp_port_fact fact;
	struct dp_pci pci;
	char state[16];	    /* "ACTIVE" */
	double gbit;	    /* 0: unknown */
	int mtu;	    /* of the netdev; 0: unknown */
	char netdev[32];
	char fw[32];
	char gids[64];	    /* the types in its GID table, each once: "IB/RoCE v1, RoCE v2" */
	char trust[32];	    /* "": not readable */
	char pfc[64];
	char ecn[64];
	char lag[64];	    /* the bond's members, if it is one; "" */
	char uverbs[32];    /* its node below /dev/infiniband; "": unknown */
	bool node_missing;
};

struct dp_topo {
	size_t ngpus, nports;
	struct dp_topo_gpu *gpus;
	struct dp_topo_port *ports; /* by name */
};

/* Reads the host's. The caller calls dp_topo_free(). 0 or -ENOMEM. */
int dp_topo_read(struct dp_topo *t, const char *sysfs);
void dp_topo_free(struct dp_topo *t);
enum dp_distance dp_topo_distance(const struct dp_pci *a, const struct dp_pci *b);
/* NULL: there is none. */
const struct dp_topo_port *dp_topo_port(const struct dp_topo *t, const char *dev, int port);
bool dp_topo_usable(const struct dp_topo_port *p);

/* The groups that fit the host, as a list; -ENOMEM. */
int dp_propose(const struct dp_topo *t, FILE *f);

/* What is odd about the ports of a group, a line each with prefix before it. Returns how many. */
int dp_group_remarks(const struct dp_topo *t, const struct dp_port_group *g, const char *prefix, FILE *f);
/* The same of the host, without the ports of cfg's groups; sysfs as for dp_topo_read(). */
int dp_host_remarks(const struct dp_topo *t, const struct dp_config *cfg, const char *sysfs, FILE *f);

#endif

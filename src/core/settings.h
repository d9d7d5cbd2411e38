/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* The one table of settings: the parsers of file and environment, the listing and the man page come from it. */
#ifndef DUALPORT_SETTINGS_H
#define DUALPORT_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "config.h"

enum dp_setting_type {
	DP_T_BOOL,
	DP_T_SIZE,    /* uint64_t, bytes */
	DP_T_TIME,    /* uint64_t, ns */
	DP_T_INT,     /* int */
	DP_T_CHOICE,  /* int or enum: place in the list of choices */
	DP_T_TEXT,    /* char[DP_TEXT_LEN] */
	DP_T_WEIGHTS, /* weights, weight, nweights */
	DP_T_PORTS,   /* groups, ngroups; dp_setting_parse() knows the form of the environment only */
	DP_T_GPU,     /* gpu, gpu_name */
	DP_T_FILE,    /* handled before all others; kept nowhere */
};

#define DP_TEXT_LEN 256
#define DP_SEC UINT64_C(1000000000)

/* min and max are in bytes, ns or units; for texts max is the longest. */
/* X(id, section, key, environment, type, member, min, max, default, choices, help); key NULL: environment only */
#define DP_SETTINGS(X)                                                                                                 \
	X(CONF, "", NULL, "DUALPORT_CONF", DP_T_FILE, source, 0, 0, "", NULL,                                          \
	  "The file to read instead of the usual places. It must be readable; /dev/null stands for an empty one.")     \
	X(ENABLE, "", "enable", "DUALPORT_ENABLE", DP_T_BOOL, enable, 0, 0, "true", NULL,                              \
	  "If false, the library stays out of the process: everything goes as if it were not loaded.")                 \
	X(GPUS, "", "gpus", "DUALPORT_PORTS", DP_T_PORTS, groups, 0, 0, "", NULL,                                      \
	  "The port groups. Without any, the active physical ports of each card form a group. See PORT GROUPS.")       \
	X(LAG, "", "lag", "DUALPORT_LAG", DP_T_BOOL, lag, 0, 0, "false", NULL,                                         \
	  "If true, and no file or variable names port groups: the physical ports of a bond (RoCE LAG, mlx5_bond_0) "  \
	  "form a group. See BONDS.")                                                                                  \
	X(GPU, "", NULL, "DUALPORT_GPU", DP_T_GPU, gpu, 0, 0, "", NULL,                                                \
	  "The GPU of this process: an index, a PCI address, a UUID, or none. By default what the CUDA driver says, "  \
	  "else the local rank that a job launcher gives. See WHICH GROUP IS USED.")                                   \
	X(ORDERING, "", "ordering", "DUALPORT_ORDERING", DP_T_CHOICE, ordering, 0, 0, "strict",                        \
	  "rc|strict|signal|relaxed",                                                                                  \
	  "Which two work requests of one queue pair may be seen reversed at the peer. rc: none. strict: two bulk "    \
	  "requests with disjoint remote ranges. signal: also a signal and a later bulk request. relaxed: also a bulk "\
	  "request and a later plain WRITE or READ shorter than spread_min; programs that use such a WRITE as a flag " \
	  "break in this mode.")                                                                                       \
	X(PATIENCE, "", "patience", "DUALPORT_PATIENCE", DP_T_CHOICE, patience, 0, 0, "auto", "auto|always|never",          \
	  "In ordering strict and rc: whether a bulk request is cut although its parts on siblings then have to wait " \
	  "for the port that the program uses. auto: if that pays, by what is measured; else it goes whole on that "   \
	  "port.")                                                                                                     \
	X(FLUSH, "", "flush", "DUALPORT_FLUSH", DP_T_CHOICE, flush, 0, 0, "auto", "auto|ack|read",                     \
	  "When bytes on a sibling port count as arrived. ack: when they were acknowledged. read: when a READ behind " \
	  "them has pushed them into memory. auto: read for ports that are not behind the same PCIe upstream port at " \
	  "the peer as the port that the program uses, and, before a WRITE shorter than spread_min into memory with "  \
	  "relaxed ordering, for all; else ack.")                                                                      \
	X(BOND_WAIT, "", "bond_wait", "DUALPORT_BOND_WAIT", DP_T_TIME, bond_wait_ns, 0, 3600 * DP_SEC, "0", NULL,      \
	  "How long the process may, in all, wait in ibv_modify_qp() to RTS for its peers' answers. With 0 it never "  \
	  "waits, and a queue pair starts on one port until its peer has answered. For tests and short runs.")         \
	X(STUCK, "", "stuck", "DUALPORT_STUCK", DP_T_TIME, stuck_ns, 0, 86400 * DP_SEC, "1s", NULL,                    \
	  "A work request queued, or a completion held back, for longer is reported once, with what it waits for. "    \
	  "0: never.")                                                                                                 \
	X(SINGLE_THREADED, "", "single_threaded", "DUALPORT_SINGLE_THREADED", DP_T_BOOL, single_threaded, 0, 0,        \
	  "false", NULL,                                                                                               \
	  "If true, queue pairs whose objects the program declared single-threaded (thread domains, "                  \
	  "single-threaded completion queues, MLX5_SINGLE_THREADED) use all ports as well.")                           \
	X(DIAG, "", "diag", "DUALPORT_DIAG", DP_T_BOOL, diag, 0, 0, "false", NULL,                                     \
	  "If true, one line on standard error for each bond, and a table of the traffic at exit.")                    \
	X(DIAG_JSON, "", "diag_json", "DUALPORT_DIAG_JSON", DP_T_TEXT, diag_json, 0, DP_TEXT_LEN - 1, "", NULL,        \
	  "A file to which the counters are written at exit, as one JSON object. %p stands for the process id, %% "    \
	  "for a percent sign.")                                                                                       \
	X(DEBUG, "", "debug", "DUALPORT_DEBUG", DP_T_CHOICE, debug, 0, 0, "WARN", "QUIET|WARN|INFO|TRACE",             \
	  "How much is said on standard error.")                                                                       \
	X(SPLIT_MIN, "stripe", "split_min", "DUALPORT_SPLIT_MIN", DP_T_SIZE, split_min, 256, UINT64_C(1) << 32, "8k",  \
	  NULL, "WRITEs and READs from this size are cut, one fragment for each port. Not less than align.")           \
	X(SPREAD_MIN, "stripe", "spread_min", "DUALPORT_SPREAD_MIN", DP_T_SIZE, spread_min, 1, UINT64_C(1) << 32,      \
	  NULL, NULL,                                                                                                  \
	  "WRITEs and READs from this size, but shorter than split_min, go whole over the least busy port. Shorter "   \
	  "ones are signals and stay on the port that the program chose. Not more than split_min, which is its "       \
	  "default. Lower it only for programs whose WRITEs of that size are never flags.")                            \
	X(ALIGN, "stripe", "align", "DUALPORT_ALIGN", DP_T_SIZE, align, 128, UINT64_C(1) << 30, "4k", NULL,            \
	  "Cuts lie at multiples of this in the remote address. A power of two.")                                      \
	X(WEIGHTS, "stripe", "weights", "DUALPORT_WEIGHTS", DP_T_WEIGHTS, weights, 1, 65535, "equal", NULL,            \
	  "The shares of the ports: equal, rate (by link rate), or one number for each port, in the order of the "     \
	  "group. Every group must then have as many ports as there are numbers.")                                     \
	X(PEER_PORT, "peer", "port", "DUALPORT_PEER_PORT", DP_T_INT, peer_port, 1, 65535, "13579", NULL,               \
	  "First of the TCP ports at which libraries find each other. The same on all hosts.")                         \
	X(PEER_PORTS, "peer", "ports", "DUALPORT_PEER_PORTS", DP_T_INT, peer_ports, 1, 1024, "16", NULL,               \
	  "How many TCP ports are tried, from peer.port on.")                                                          \
	X(PEER_BIND, "peer", "bind", "DUALPORT_PEER_BIND", DP_T_TEXT, peer_bind, 0, DP_TEXT_LEN - 1, "", NULL,         \
	  "Addresses to listen on, separated by commas. By default all.")                                              \
	X(PEER_SECRET, "peer", "secret", "DUALPORT_PEER_SECRET", DP_T_TEXT, peer_secret, 0, DP_TEXT_LEN - 1, "", NULL, \
	  "A file, readable by its owner only, with the secret that all processes share. With it, every message "      \
	  "between libraries is authenticated.")                                                                       \
	X(PEER_ORDERING, "peer", "ordering", "DUALPORT_PEER_ORDERING", DP_T_TEXT, peer_ordering, 0, DP_TEXT_LEN - 1,    \
	  "", NULL,                                                                                                    \
	  "Another ordering for what is sent to some peers: a comma-separated list of an address, perhaps with a "     \
	  "number of bits, and an ordering, as \"10.1.0.0/16 signal, 10.2.0.7 rc\". The first that fits the address "   \
	  "(GID) that the program connects to counts; for all others ordering does.")                                  \
	X(PEER_TIMEOUT, "peer", "timeout", "DUALPORT_PEER_TIMEOUT", DP_T_TIME, peer_timeout_ns, 1000000,               \
	  86400 * DP_SEC, "30s", NULL,                                                                                 \
	  "How long a queue pair waits, on one port meanwhile, for its peer's answer.")                                \
	X(LEASE, "peer", "lease", "DUALPORT_PEER_LEASE", DP_T_TIME, lease_ns, 100000000, 3600 * DP_SEC, "10s", NULL,   \
	  "How long a peer may use this process's memory keys without hearing from it.")                               \
	X(NVSHMEM_DEVICES, "nvshmem", "devices", "DUALPORT_NVSHMEM_DEVICES", DP_T_CHOICE, nvshmem_devices, 0, 0,       \
	  "group", "group|first|all",                                                                                  \
	  "Which devices NVSHMEM's IBRC transport sees where a group names the process's GPU: those of the "           \
	  "group, its first port first; the first one only; or all. Others see all in any case, and so does "          \
	  "IBRC where NVSHMEM_HCA_LIST, NVSHMEM_HCA_PE_MAPPING or NVSHMEM_HCA_PREFIX is set or a device of the "       \
	  "group is missing. With first, every process of the job must see one device only, or NVSHMEM's start "       \
	  "hangs.")                                                                                                    \
	X(FORCE_IBRC, "nvshmem", "force_ibrc", "DUALPORT_NVSHMEM_FORCE_IBRC", DP_T_BOOL, force_ibrc, 0, 0, "false",    \
	  NULL,                                                                                                        \
	  "If true, NVSHMEM's host library is made to see NVSHMEM_REMOTE_TRANSPORT=ibrc, "                             \
	  "NVSHMEM_IB_ENABLE_IBGDA=0 and NVSHMEM_GPUNETIO_ENABLE_GDAKI=0, whatever the program has set. Not for "      \
	  "programs whose kernels call IBGDA unconditionally, which crash without it; where that is DeepEP, it "       \
	  "is refused.")                                                                                               \
	X(NCCL, "", NULL, "DUALPORT_NCCL", DP_T_BOOL, nccl, 0, 0, "false", NULL,                                       \
	  "If true, NCCL's queue pairs use all ports of the group, too. By default they do not, since NCCL uses "      \
	  "the ports of a card by itself.")

enum dp_setting_id {
#define DP_SETTING_ENUM(id, ...) DP_SET_##id,
	DP_SETTINGS(DP_SETTING_ENUM)
#undef DP_SETTING_ENUM
	DP_SET_COUNT
};
_Static_assert(DP_SET_COUNT <= 64, "in_file and in_env have 64 bits");

struct dp_setting {
	const char *section; /* "": top level */
	const char *key;     /* NULL: only in the environment */
	const char *env;
	enum dp_setting_type type;
	size_t offset; /* in struct dp_config */
	uint64_t min, max;
	const char *def;     /* as in the environment; NULL: spread_min's, which is split_min */
	const char *choices; /* separated by '|' */
	const char *help;
};
extern const struct dp_setting dp_settings[DP_SET_COUNT];

/*
 * Sets s in cfg from text as it stands in the environment; "" means the default. 0, or -EINVAL or -ENOMEM and a
 * reason, without the setting's name, in why.
 */
int dp_setting_parse(const struct dp_setting *s, struct dp_config *cfg, const char *text, char *why, size_t len);
/* The value as text that dp_setting_parse() takes. */
void dp_setting_format(const struct dp_setting *s, const struct dp_config *cfg, char *buf, size_t len);
/* "stripe.align", or the variable if it has no key. */
const char *dp_setting_name(const struct dp_setting *s, char *buf, size_t len);

#endif

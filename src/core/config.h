/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* Settings: libconfig file, then DUALPORT_<NAME> of the environment, which wins. */
#ifndef DUALPORT_CONFIG_H
#define DUALPORT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "hidden.h"

#define DP_MAX_RAILS 32
#define DP_DEV_NAME 64

enum dp_ordering { DP_ORDER_RC, DP_ORDER_STRICT, DP_ORDER_SIGNAL, DP_ORDER_RELAXED };
enum dp_nvshmem_devices { DP_NVSHMEM_GROUP, DP_NVSHMEM_FIRST, DP_NVSHMEM_ALL };
enum dp_flush { DP_FLUSH_AUTO, DP_FLUSH_ACK, DP_FLUSH_READ };
enum dp_patience_setting { DP_PATIENCE_AUTO, DP_PATIENCE_ALWAYS, DP_PATIENCE_NEVER };
enum dp_weights { DP_WEIGHTS_EQUAL, DP_WEIGHTS_FIXED, DP_WEIGHTS_RATE };

/* "mlx5_0:1", "mlx5_0:1:3" (GID index) or "mlx5_bond_0:1::2" (port of a bond); "mlx5_0" means port 1 */
struct dp_port_name {
	char dev[DP_DEV_NAME];
	int port;
	int gid_index; /* -1: the one that fits the program's */
	int lag;       /* the physical port of a bond of ports (LAG), from 1 on; 0: whichever the device chooses */
};

/* One port group. */
struct dp_port_group {
	int gpu;		/* index; -1 if named by pci or uuid, or if for any GPU */
	char gpu_name[64];	/* "0000:9b:00.0" or "GPU-..." as written; "" if by index or for any GPU */
	int nports;
	struct dp_port_name ports[DP_MAX_RAILS];
};

struct dp_gpu;

struct dp_config {
	bool enable;	    /* false: the library stays out of the process */
	const char *source; /* the file read, or NULL */
	int ngroups;	    /* 0: groups come from the card */
	struct dp_port_group *groups;
	bool rotated;	    /* some group's ports are not in the order of the file */
	int gpu;	    /* DUALPORT_GPU, else LOCAL_RANK and its relatives, else -1 */
	uint64_t split_min; /* bytes */
	uint64_t spread_min;
	uint64_t align;
	bool lag;	    /* without groups: the ports of a bond form one */
	enum dp_weights weights;
	uint32_t weight[DP_MAX_RAILS]; /* weights = fixed: by place in the group; 1..65535 */
	enum dp_ordering ordering;
	enum dp_flush flush;
	enum dp_patience_setting patience;
	uint64_t bond_wait_ns;	  /* budget of the process */
	uint64_t peer_timeout_ns; /* how long a QP waits, native, for its peer's answer */
	uint64_t lease_ns;	  /* how long a peer may use remote keys without hearing from their owner */
	int peer_port;		  /* first of the range of well-known TCP ports */
	int peer_ports;		  /* size of that range */
	char peer_bind[256];	  /* addresses to listen on, comma separated; "": all */
	char peer_ordering[256];  /* peer_rules.h; "": ordering for all */
	char peer_secret[256];	  /* path of the shared secret; "": none */
	bool single_threaded;	  /* true: work on objects that the program declared single-threaded, too */
	enum dp_nvshmem_devices nvshmem_devices;
	bool force_ibrc;	  /* NVSHMEM is to take its IBRC transport */
	bool nccl;		  /* the stub's: serve NCCL, too */
	uint64_t stuck_ns;	  /* report a WR queued or held for longer; 0: never */
	bool diag;
	char diag_json[256]; /* "": none; %p stands for the pid */
	int debug;	     /* enum dp_log_level */

	char gpu_name[64];    /* DUALPORT_GPU if it is a PCI address or UUID; "" otherwise */
	const char *gpu_from; /* variable that gpu or gpu_name came from (static); NULL: none did */
	int nweights;	      /* weights = fixed: entries of weight[] */
	uint64_t in_file;     /* bit DP_SET_* of settings.h: set by the file */
	uint64_t in_env;      /* set by the environment */
};

/*
 * Reads file (path, or NULL for the usual places) and the environment into cfg, which the caller frees with
 * dp_config_free(). Returns 0, or -EINVAL (bad setting), or -errno of the file; then err holds one line with
 * file, line and key, and cfg is as after dp_config_free(). No file in the usual places is no error; a file
 * named by DUALPORT_CONF that cannot be read is one.
 */
int dp_config_load(struct dp_config *cfg, const char *path, char *err, size_t errlen);
void dp_config_free(struct dp_config *cfg);

/* Prints every setting: name, value, default, where it came from. */
void dp_config_print(const struct dp_config *cfg, FILE *f);

/*
 * The group for a program that uses dev:port on this GPU; if nothing is known of it, the first group that has the port.
 * NULL and *why (static string) when there is none. A GPU that no group names gives NULL; if it is only a guess from
 * a local rank, the first group that has the port.
 */
const struct dp_port_group *dp_config_group(const struct dp_config *cfg, const struct dp_gpu *gpu, const char *dev,
					    int port, const char **why);
/* The first group that names this GPU, not one for any; NULL: there is none, or nothing is known of the GPU. */
const struct dp_port_group *dp_config_group_named(const struct dp_config *cfg, const struct dp_gpu *gpu);
/* Is the port in any group, whatever the GPU? */
bool dp_config_has_port(const struct dp_config *cfg, const char *dev, int port);

/* The process's configuration; read-only after dualport_core_start(). */
extern DP_HIDDEN struct dp_config dp_cfg;

#endif

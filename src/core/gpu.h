/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* Which GPU this process works on, and which ones the host has. */
#ifndef DUALPORT_GPU_H
#define DUALPORT_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dp_config;

/* One GPU by all names that are known of it. */
struct dp_gpu {
	int index;	  /* on the host, by PCI address, as nvidia-smi counts; -1: unknown */
	char pci[24];	  /* "0000:9b:00.0"; "": unknown */
	char uuid[64];	  /* "GPU-..."; "": unknown */
	char mig[64];	  /* "MIG-...", if it is an instance of one; else "" */
	bool guessed;	  /* from a local rank, which need not count GPUs */
	const char *from; /* static string; NULL: nothing is known */
};

/* Is any name known? */
static inline bool dp_gpu_known(const struct dp_gpu *gpu)
{
	return gpu->index >= 0 || gpu->pci[0] || gpu->uuid[0] || gpu->mig[0];
}

/*
 * The process's GPU, from the first of these that tells: DUALPORT_GPU; the CUDA driver, if the program has loaded it
 * (the GPU that the memory at addr is on, the one of this thread's context, the only one with a primary context); the
 * local rank. Once known it stays so, whatever the program does later. addr may be NULL, or no GPU memory at all.
 * Never initialises or loads the driver. Thread-safe; errno is kept.
 */
struct dp_gpu dp_gpu_get(const struct dp_config *cfg, const void *addr);
/* The same, without looking for it. */
struct dp_gpu dp_gpu_peek(const struct dp_config *cfg);
/* In a forked child: the lock is free. What is known stays. */
void dp_gpu_after_fork(void);

/* What a configuration alone says: DUALPORT_GPU or a local rank. */
struct dp_gpu dp_gpu_of_config(const struct dp_config *cfg);

/* gpu_cuda.c: asks the driver as above. Returns whether it knows. */
bool dp_gpu_from_cuda(struct dp_gpu *gpu, const void *addr);

/* ---- the host's GPUs (gpu_host.c) ---- */

struct dp_host_gpu {
	char pci[24];
	char uuid[64]; /* "": the driver does not say */
};

/*
 * NVIDIA's GPUs below sysfs (NULL: "/sys"), in the order of their PCI addresses; UUIDs from proc (NULL: "/proc" if
 * sysfs is NULL, else none are known). The caller frees *gpus. 0, with *n 0 if there is none, or -ENOMEM.
 */
int dp_host_gpus_read(const char *sysfs, const char *proc, struct dp_host_gpu **gpus, size_t *n);
/* Fills in what is unknown in gpu but known of the host. */
void dp_gpu_complete(struct dp_gpu *gpu, const struct dp_host_gpu *gpus, size_t n);

/*
 * The device that CUDA calls ordinal in a process with this CUDA_VISIBLE_DEVICES (NULL: not set): its index, or its
 * UUID in name (size bytes). An ordinal beyond the only visible one is that one: launchers show each process its own.
 * 0, or -ENOENT: no such device.
 */
int dp_gpu_visible(const char *visible, int ordinal, int *index, char *name, size_t size);

#endif

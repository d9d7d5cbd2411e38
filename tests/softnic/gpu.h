/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * Memory of a GPU, reached through the CUDA driver that the program has loaded. Its words are those that a kernel
 * which runs meanwhile sees: every access is over when it returns. An atomic is one among softnic's, not against the
 * GPU's own, which is what IBV_ATOMIC_HCA promises.
 */
#ifndef SOFTNIC_GPU_H
#define SOFTNIC_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Whether all of it is memory of a GPU, which sn_gpu_memory then reaches; false also where there is no CUDA driver. To
 * be called without the engine's lock: the driver may allocate.
 */
bool sn_gpu_has(uint64_t addr, size_t length);

extern const struct sn_mem_ops sn_gpu_memory;

#endif

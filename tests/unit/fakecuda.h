/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <stdint.h>

#define FAKECUDA_GPUS 4

/* What the fake driver answers; its one object is fakecuda. */
struct fakecuda {
	int ready;		     /* 0: not initialised, everything fails */
	int inits;		     /* calls of cuInit */
	int visible;		     /* devices that the process sees, of which ordinal 0 is GPU first */
	int first;
	int current;		     /* ordinal of the context's device; -1: no context */
	unsigned int primary;	     /* ordinals with an active primary context */
	const char *memory;	     /* device memory: 4096 bytes of ordinal memory_of */
	int memory_of;
	int instance;		     /* are the devices instances of their GPUs? */
};

/* cuPointerGetAttribute() of memory that cuMemAlloc() gave; -1: it is none of that. */
__attribute__((visibility("hidden"))) int fakecuda_attribute(void *to, int attribute, uint64_t addr);

#endif

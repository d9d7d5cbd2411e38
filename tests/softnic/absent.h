/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* For the generated list of exports that softnic does not offer. */
#ifndef SOFTNIC_ABSENT_H
#define SOFTNIC_ABSENT_H

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))

static inline intptr_t absent(_Atomic int *said, const char *name, intptr_t ret)
{
	if (!atomic_exchange(said, 1))
		fprintf(stderr, "softnic: %s is not offered\n", name);
	errno = EOPNOTSUPP;
	return ret;
}

#define ABSENT(fn, name, ret)			\
	EXPORT intptr_t fn(void);		\
	EXPORT intptr_t fn(void)		\
	{					\
		static _Atomic int said;	\
						\
		return absent(&said, name, ret); \
	}

/* Providers that the program is linked with announce themselves when they are loaded, and log; they get no device. */
#define QUIET(fn)				\
	EXPORT void fn(const void *ops);	\
	EXPORT void fn(const void *ops)		\
	{					\
		(void)ops;			\
	}

#endif

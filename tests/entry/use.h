/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* One use of every hooked verb, through function pointers that were got in one way or another. */
#ifndef ENTRY_USE_H
#define ENTRY_USE_H

#include <stdbool.h>

#include "fakeverbs.h"
#include "verbs.h"

struct api {
	struct ibv_context *(*open)(void);
	int (*count)(const char *verb);
	struct dp_verbs v; /* the hooked members only; a NULL member is not used */
};

/* Fills from the caller's own linkage. */
#define API_LINKED(api)                                                                                               \
	do {                                                                                                          \
		(api)->open = fake_open;                                                                              \
		(api)->count = fake_count;                                                                            \
		DP_VERBS_HOOKED(API_LINK)                                                                             \
	} while (0)
#define API_LINK(ret, verb, version, params, args) api->v.verb = ibv_##verb;

/* Uses everything once; -1 with a line on stderr when a verb misbehaves. */
int use_all(const struct api *api);

/* How often use_all() calls the verb itself, and how often a copy's function is reached by it. */
int use_calls(const char *verb);
int use_reaches(const char *verb);

#endif

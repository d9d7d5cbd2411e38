/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* The file half of dp_config_load(). */
#ifndef DUALPORT_CONFIG_FILE_H
#define DUALPORT_CONFIG_FILE_H

#include "settings.h"

/* Where settings were given, for messages: "file:line" or a variable's name, allocated; NULL: nowhere. */
struct dp_places {
	char *of[DP_SET_COUNT];
};

/* Replaces a place. 0 or -ENOMEM. */
int dp_place_set(struct dp_places *places, enum dp_setting_id id, const char *place);
void dp_places_free(struct dp_places *places);

/* Reads an open file. 0 or -EINVAL or -ENOMEM with one line in err; closes f in any case. */
int dp_config_file_read(struct dp_config *cfg, FILE *f, const char *path, struct dp_places *places, char *err,
			size_t errlen);

#endif

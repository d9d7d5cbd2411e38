// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Which object of the process calls: some programs are known by the name of theirs. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "stub.h"
#include "symtab.h"

void dp_caller_name(const void *addr, char name[DP_CALLER_LEN])
{
	const char *base;
	struct dp_elf elf;
	size_t n;

	name[0] = '\0';
	if (!dp_elf_of(addr, &elf) || !elf.name)
		return;
	base = strrchr(elf.name, '/');
	base = base ? base + 1 : elf.name;
	n = strlen(base);
	if (n >= DP_CALLER_LEN)
		n = DP_CALLER_LEN - 1;
	memcpy(name, base, n);
	name[n] = '\0';
}

bool dp_caller_is(const void *addr, const char *prefix)
{
	char name[DP_CALLER_LEN];

	dp_caller_name(addr, name);
	return !strncmp(name, prefix, strlen(prefix));
}

/* As a program, a file and a user may write it; the same words as for the settings of the file. */
bool dp_env_is(const char *name, bool wanted)
{
	static const char *const words[] = {"0", "1", "no", "yes", "off", "on", "false", "true"};
	const char *v = getenv(name);
	size_t i;

	for (i = 0; v && i < sizeof(words) / sizeof(words[0]); i++)
		if (!strcasecmp(v, words[i]))
			return (i & 1) == wanted;
	return false;
}

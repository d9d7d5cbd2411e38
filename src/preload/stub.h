/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* What the files of the stub share. Everything is thread-safe. */
#ifndef DUALPORT_STUB_H
#define DUALPORT_STUB_H

#include <stdbool.h>

#include "verbs.h"

#define DP_EXPORT __attribute__((visibility("default")))

typedef void *(*dp_dlsym_fn)(void *handle, const char *name);
typedef void *(*dp_dlopen_fn)(const char *file, int mode);
typedef void *(*dp_dlvsym_fn)(void *handle, const char *name, const char *version);

/* The next dlsym and dlvsym behind this object's own. Never NULL. */
dp_dlsym_fn dp_real_dlsym(void);
dp_dlvsym_fn dp_real_dlvsym(void);

bool dp_is_ours(const void *p); /* is it in this object? */
/* Only this object has it: without us, nobody would find it. version may be NULL: the default one. */
bool dp_only_ours(const char *name, const char *version);

/* The real answer for a name that may be hooked, or our hook in its place. RTLD_DEFAULT only for what dp_only_ours(). */
void *dp_serve_dlsym(void *handle, const char *name);
void *dp_serve_dlvsym(void *handle, const char *name, const char *version);

/*
 * The table of the copy of libibverbs that opened ctx; NULL if ctx does not tell. The table is never freed, and the
 * copy never unloaded.
 */
const struct dp_verbs *dp_real_of(struct ibv_context *ctx);

/*
 * name@version for a caller whose objects do not tell their copy: what it would have got without us. caller is an
 * address in the calling object. NULL if there is none.
 */
void *dp_guess(const char *name, const char *version, const void *caller);

/* Whether p is name@version of a libibverbs, recognised by what it defines, whatever its file is called. */
bool dp_is_real_verb(const void *p, const char *name, const char *version);

/*
 * The core, NULL if this thread is inside or the core is not there. With load, the first call opens it, and calls
 * at the same time wait up to two seconds for that. errno is kept.
 */
const struct dp_core *dp_core_get(bool load);

void dp_inside(int delta);

/* ---- deepbind.c ---- */

extern _Atomic bool dp_deepbind_open; /* there was a dlopen() that dp_deepbind_look() has not looked at */
void dp_deepbind_note(void);	      /* before a dlopen() with RTLD_DEEPBIND */
void dp_deepbind_look(void);	      /* says what it loaded past us, once per process */

/* ---- callers (caller.c) ---- */

#define DP_CALLER_LEN 128

/* The file name, without its directory, of the object that addr lies in; "" if none, or if it is the program itself. */
void dp_caller_name(const void *addr, char name[DP_CALLER_LEN]);
bool dp_caller_is(const void *addr, const char *prefix);
/* Is the variable set to a word for yes (wanted) or no (!wanted)? */
bool dp_env_is(const char *name, bool wanted);

/* May lines be written to descriptor 2? errno is kept. */
bool dp_stderr_is_ours(void);

#endif

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Opens the core, which lies beside the stub, once per process. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "symtab.h"
#include "stub.h"

#define CORE_NAME "libdualport-core.so"
#define WAIT_MS 2000

enum { CORE_NONE, CORE_LOADING, CORE_UP, CORE_OFF };

static _Atomic int64_t state;	   /* CORE_LOADING with the process in the bits above, see loading() */
static const struct dp_core *core; /* constant once state is CORE_UP */
static char dir[PATH_MAX];	   /* constant once the core was asked to start */

/* initial-exec: a preloaded object is there at start, and __tls_get_addr may allocate */
static __thread int inside __attribute__((tls_model("initial-exec")));

void dp_inside(int delta)
{
	inside += delta;
}

static const struct dp_stub stub = {
	.abi = DP_CORE_ABI,
	.real_of = dp_real_of,
	.inside = dp_inside,
	.stderr_is_ours = dp_stderr_is_ours,
	.dir = dir,
};

static void complain(const char *path, const char *reason)
{
	char line[2 * PATH_MAX];
	int len;

	len = snprintf(line, sizeof(line), "dualport[%d]: cannot load %s: %s; running on one port\n", (int)getpid(), path,
		       reason);
	if (len >= (int)sizeof(line))
		len = sizeof(line) - 1;
	if (len > 0 && dp_stderr_is_ours() && write(STDERR_FILENO, line, (size_t)len) < 0)
		return; /* nobody to tell */
}

static void parent_of(char *path)
{
	char *slash = strrchr(path, '/');

	if (slash)
		*slash = '\0';
}

/*
 * The loader keeps the directory of an object as it was when it was loaded, so a relative LD_PRELOAD is right also
 * after a chdir. Where the stub is a link and the core does not lie beside the link, it lies beside the file.
 */
static bool find_dir(void)
{
	int (*dladdr1_fn)(const void *, Dl_info *, void **, int) =
		(int (*)(const void *, Dl_info *, void **, int))dp_elf_next("dladdr1");
	int (*dlinfo_fn)(void *, int, void *) = (int (*)(void *, int, void *))dp_elf_next("dlinfo");
	char path[PATH_MAX + sizeof(CORE_NAME) + 1], file[PATH_MAX];
	struct link_map *map = NULL;
	Dl_info info;

	if (!dladdr1_fn || !dlinfo_fn || !dladdr1_fn(&state, &info, (void **)&map, RTLD_DL_LINKMAP) || !map ||
	    dlinfo_fn(map, RTLD_DI_ORIGIN, dir))
		return false;
	snprintf(path, sizeof(path), "%s/" CORE_NAME, dir);
	if (!access(path, F_OK) || !realpath(map->l_name, file))
		return true;
	parent_of(file);
	snprintf(path, sizeof(path), "%s/" CORE_NAME, file);
	if (!access(path, F_OK))
		memcpy(dir, file, sizeof(dir));
	return true;
}

static const struct dp_core *open_core(void)
{
	void *(*open)(const char *, int) = (void *(*)(const char *, int))dp_elf_next("dlopen");
	char *(*error)(void) = (char *(*)(void))dp_elf_next("dlerror");
	char path[PATH_MAX + sizeof(CORE_NAME) + 1];
	const struct dp_core *c;
	dualport_core_start_fn start;
	const char *why;
	void *handle;

	if (dp_env_is("DUALPORT_ENABLE", false))
		return NULL;
	if (!open || !error || !find_dir()) {
		complain(CORE_NAME, "this C library has no dlopen, dlerror, dladdr1 or dlinfo");
		return NULL;
	}
	snprintf(path, sizeof(path), "%s/" CORE_NAME, dir);
	handle = open(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		why = error();
		complain(path, why ? why : "unknown error");
		return NULL;
	}
	start = (dualport_core_start_fn)dp_real_dlsym()(handle, "dualport_core_start");
	if (!start) {
		error();
		complain(path, "it does not define dualport_core_start");
		return NULL;
	}
	c = start(&stub);
	if (!c)
		return NULL; /* it has said why */
	if (c->abi != DP_CORE_ABI || !c->ours) {
		complain(path, "it belongs to another version of libdualport");
		return NULL;
	}
	return c;
}

static __attribute__((cold)) void load_core(void)
{
	const struct dp_core *c;

	inside++; /* what constructors in the core do with verbs is not the program's doing */
	c = open_core();
	inside--;
	core = c;
	/* release: whoever sees CORE_UP sees core and all that starting it wrote */
	atomic_store_explicit(&state, c ? CORE_UP : CORE_OFF, memory_order_release);
}

static int64_t loading(void)
{
	return (int64_t)getpid() << 2 | CORE_LOADING;
}

/*
 * Waiting has a limit because the caller may be a constructor under the loader's lock, which the loading thread
 * waits for; and there is nothing to wait for in the child of a fork that caught another thread loading, whose
 * state names the parent.
 */
static int64_t wait_loaded(void)
{
	const struct timespec ms = {.tv_nsec = 1000000};
	int64_t s = atomic_load_explicit(&state, memory_order_acquire);
	int i;

	for (i = 0; i < WAIT_MS && s == loading(); i++) {
		nanosleep(&ms, NULL);
		s = atomic_load_explicit(&state, memory_order_acquire);
	}
	return s;
}

const struct dp_core *dp_core_get(bool load)
{
	int64_t s = atomic_load_explicit(&state, memory_order_acquire);
	int saved = errno;

	if (inside)
		return NULL;
	if (s == CORE_NONE && load) {
		if (atomic_compare_exchange_strong_explicit(&state, &s, loading(), memory_order_acq_rel,
							    memory_order_acquire))
			load_core();
		s = atomic_load_explicit(&state, memory_order_acquire);
	}
	if (load && s != CORE_UP && s != CORE_OFF)
		s = wait_loaded();
	errno = saved;
	return s == CORE_UP ? core : NULL;
}

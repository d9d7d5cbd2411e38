// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * To preload, for programs that look for devices by themselves: /sys/class/infiniband* and /dev/infiniband/uverbs* are
 * those of softnic. Nothing else changes.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *moved(const char *path, char buf[PATH_MAX])
{
	static const char *const prefixes[] = { "/sys/class/infiniband", "/dev/infiniband/uverbs" };
	const char *dir = getenv("SOFTNIC_DIR");

	for (size_t i = 0; dir && path && i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
		if (!strncmp(path, prefixes[i], strlen(prefixes[i])) &&
		    snprintf(buf, PATH_MAX, "%s%s", dir, path) < PATH_MAX)
			return buf;
	return path;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* The ways by which glibc's headers let programs open and look at files; each with all that they declare. */
#define WITH_PATH(ret, name, args, ...)		\
	ret name args				\
	{					\
		char buf[PATH_MAX];		\
						\
		return NEXT(name)(moved(path, buf), ##__VA_ARGS__); \
	}

#define OPENS(name)							\
	int name(const char *path, int flags, ...)			\
	{								\
		char buf[PATH_MAX];					\
		mode_t mode = 0;					\
		va_list ap;						\
									\
		if (flags & (O_CREAT | O_TMPFILE)) {			\
			va_start(ap, flags);				\
			mode = va_arg(ap, mode_t);			\
			va_end(ap);					\
		}							\
		return NEXT(name)(moved(path, buf), flags, mode);	\
	}

char *__realpath_chk(const char *path, char *resolved, size_t size);

OPENS(open)
WITH_PATH(int, access, (const char *path, int mode), mode)
WITH_PATH(int, stat, (const char *path, struct stat *st), st)
WITH_PATH(FILE *, fopen, (const char *path, const char *mode), mode)
WITH_PATH(DIR *, opendir, (const char *path))
WITH_PATH(ssize_t, readlink, (const char *path, char *to, size_t n), to, n)
WITH_PATH(char *, realpath, (const char *path, char *resolved), resolved)
WITH_PATH(char *, __realpath_chk, (const char *path, char *resolved, size_t size), resolved, size)
#ifdef __USE_LARGEFILE64
OPENS(open64)
WITH_PATH(int, stat64, (const char *path, struct stat64 *st), st)
WITH_PATH(FILE *, fopen64, (const char *path, const char *mode), mode)
#endif

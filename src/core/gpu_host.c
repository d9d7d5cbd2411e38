// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The host's GPUs, without their driver's library, and CUDA's way of counting them. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>
#include <strings.h>
#include "gpu.h"
#include "group.h"
#include "ports.h"

static void read_text(char *buf, size_t len, const char *path)
{
	/* a copy of /proc may hold anything, a pipe too */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t n;

	buf[0] = '\0';
	if (fd < 0)
		return;
	n = read(fd, buf, len - 1);
	buf[n > 0 ? n : 0] = '\0';
	close(fd);
}

/* "GPU UUID: \t GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", or question marks as long as the GPU sleeps */
static void read_uuid(struct dp_host_gpu *gpu, const char *proc)
{
	char path[PATH_MAX], text[4096], *at;
	size_t n;

	if (snprintf(path, sizeof(path), "%s/driver/nvidia/gpus/%s/information", proc, gpu->pci) >= (int)sizeof(path))
		return;
	read_text(text, sizeof(text), path);
	at = strstr(text, "GPU UUID:");
	if (!at)
		return;
	at += strlen("GPU UUID:");
	at += strspn(at, " \t");
	n = strcspn(at, " \t\n");
	if (n < sizeof(gpu->uuid) && !memchr(at, '?', n)) {
		memcpy(gpu->uuid, at, n);
		gpu->uuid[n] = '\0';
		dp_printable(gpu->uuid);
	}
}

static bool is_gpu(const char *dir, const char *name)
{
	char path[PATH_MAX], text[32];

	if (snprintf(path, sizeof(path), "%s/%s/vendor", dir, name) >= (int)sizeof(path))
		return false;
	read_text(text, sizeof(text), path);
	if (strncmp(text, "0x10de", 6))
		return false;
	if (snprintf(path, sizeof(path), "%s/%s/class", dir, name) >= (int)sizeof(path))
		return false;
	read_text(text, sizeof(text), path);
	return !strncmp(text, "0x0300", 6) || !strncmp(text, "0x0302", 6); /* VGA, 3D controller */
}

static int by_pci(const void *a, const void *b)
{
	return strcmp(((const struct dp_host_gpu *)a)->pci, ((const struct dp_host_gpu *)b)->pci);
}

int dp_host_gpus_read(const char *sysfs, const char *proc, struct dp_host_gpu **gpus, size_t *n)
{
	char dir[PATH_MAX];
	struct dirent *e;
	int ret = 0;
	DIR *d;

	*gpus = NULL;
	*n = 0;
	if (!proc && !sysfs)
		proc = "/proc";
	if (snprintf(dir, sizeof(dir), "%s/bus/pci/devices", sysfs ? sysfs : "/sys") >= (int)sizeof(dir))
		return 0;
	d = opendir(dir);
	while (d && (e = readdir(d))) {
		struct dp_host_gpu gpu = { 0 }, *grown;

		if (!dp_pci_canonical(e->d_name, gpu.pci) || !is_gpu(dir, e->d_name))
			continue;
		if (proc)
			read_uuid(&gpu, proc);
		grown = realloc(*gpus, (*n + 1) * sizeof(gpu));
		if (!grown) {
			free(*gpus);
			*gpus = NULL;
			*n = 0;
			ret = -ENOMEM;
			break;
		}
		*gpus = grown;
		grown[(*n)++] = gpu;
	}
	if (d)
		closedir(d);
	if (*n)
		qsort(*gpus, *n, sizeof(**gpus), by_pci);
	return ret;
}

void dp_gpu_complete(struct dp_gpu *gpu, const struct dp_host_gpu *gpus, size_t n)
{
	size_t found = n;

	for (size_t i = 0; i < n && found == n; i++)
		if (gpu->pci[0] ? !strcmp(gpu->pci, gpus[i].pci)
		    : gpu->uuid[0] ? dp_uuid_fits(gpu->uuid, gpus[i].uuid)
				   : gpu->index >= 0 && (size_t)gpu->index == i)
			found = i;
	if (found == n)
		return;
	gpu->index = (int)found;
	strcpy(gpu->pci, gpus[found].pci);
	if (gpus[found].uuid[0])
		strcpy(gpu->uuid, gpus[found].uuid);
}

/*
 * CUDA's rules: indices or UUIDs (as long a part of them as is unique) between commas; it stops at the first entry that
 * is no device. Whether an index exists only the driver knows.
 */
static int next_visible(const char **at, int *index, char *name, size_t size)
{
	size_t n;
	char text[80], why[128];

	*at += strspn(*at, " \t");
	n = strcspn(*at, ",");
	if (!n || n >= sizeof(text))
		return -ENOENT;
	memcpy(text, *at, n);
	while (n && strchr(" \t", text[n - 1]))
		n--;
	text[n] = '\0';
	*at += strcspn(*at, ",");
	if (**at)
		++*at;
	if (!strncasecmp(text, "MIG-GPU-", 8)) { /* before driver 470: MIG-GPU-<UUID>/<instance>/<instance> */
		memmove(text, text + 4, strlen(text + 4) + 1);
		text[strcspn(text, "/")] = '\0';
	}
	/* a PCI address is none of CUDA's names */
	if (dp_gpu_parse(text, index, name, size, why, sizeof(why)) || (*index < 0 && !strchr(name, '-')))
		return -ENOENT;
	return 0;
}

int dp_gpu_visible(const char *visible, int ordinal, int *index, char *name, size_t size)
{
	int count = 0;

	name[0] = '\0';
	*index = ordinal;
	if (!visible)
		return 0;
	for (const char *at = visible; *at; count++) {
		if (next_visible(&at, index, name, size))
			break;
		if (count == ordinal)
			return 0;
	}
	if (count == 1) {
		const char *at = visible;

		return next_visible(&at, index, name, size);
	}
	*index = -1;
	name[0] = '\0';
	return -ENOENT;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A device, domains and regions that somebody else has opened, by its file (context.cmd_fd) and their numbers in it. Others than
 * the kernel's would be of this process alone, and so they are here: its file says whose it is.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine.h"

#define MAGIC UINT64_C(0x736f66746e6963)

struct file {
	uint64_t magic, id;
	uint32_t dev;
	pid_t pid;
};

int sn_file_new(uint32_t dev, uint64_t *id)
{
	static uint64_t ids;
	struct file f = { .magic = MAGIC, .dev = dev, .pid = getpid() };
	int fd = memfd_create("softnic", MFD_CLOEXEC);

	if (fd < 0)
		return -1;
	sn_lock();
	f.id = ++ids;
	sn_unlock();
	if (pwrite(fd, &f, sizeof(f), 0) != (ssize_t)sizeof(f)) {
		close(fd);
		errno = ENOSPC;
		return -1;
	}
	*id = f.id;
	return fd;
}

/* As with libibverbs the file is the context's, and closed with it. */
struct ibv_context *ibv_import_device(int cmd_fd)
{
	struct file f;

	if (pread(cmd_fd, &f, sizeof(f), 0) != (ssize_t)sizeof(f) || f.magic != MAGIC || !sn_host() || f.dev >= sn_host()->ndevs) {
		errno = EINVAL;
		return NULL;
	}
	if (f.pid != getpid()) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return sn_open(f.dev, cmd_fd, f.id);
}

struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle)
{
	struct sn_mr *mr = calloc(1, sizeof(*mr)), *of;

	if (!mr)
		return NULL;
	sn_lock();
	of = sn_find_handle(sn_ctx(pd->context)->dev, handle);
	if (!of || of->window || of->pd != sn_base_pd(pd)) {
		sn_unlock();
		free(mr);
		errno = ENOENT;
		return NULL;
	}
	/* the address is the other's to know */
	mr->mr = of->mr;
	mr->mr.context = pd->context;
	mr->mr.pd = pd;
	mr->mr.addr = NULL;
	mr->import = true;
	sn_unlock();
	return &mr->mr;
}

void ibv_unimport_mr(struct ibv_mr *mr)
{
	free(mr);
}

/* Whoever knows a region's number ends it for all; 0 or a positive errno. With the lock. */
int sn_mr_end(struct sn_mr *mr)
{
	struct sn_ctx *c = sn_ctx(mr->mr.context);
	struct sn_mr *of = mr;

	if (c->epoch == sn_engine_epoch()) {
		of = sn_find_handle(c->dev, mr->mr.handle);
		if (!of || of->mr.lkey != mr->mr.lkey || of->pd != sn_base_pd(mr->mr.pd))
			return ENOENT;
	} else if (mr->import) {
		return 0;
	}
	if (of->windows)
		return EBUSY;
	if (c->epoch == sn_engine_epoch())
		sn_key_drop(c->dev, of);
	sn_pd_drop(of->mr.pd);
	if (of->dm_users)
		--*of->dm_users;
	of->dm_users = NULL;
	return 0;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Which processes of this host listen where, and for which GIDs: a file in /dev/shm per user and peer_port, one slot per
 * process. It lets any process that is reached in the well-known range name the others. Who owns which QP does not stand
 * here: the owner itself is asked, so there is no record that could be stale.
 *
 * A process holds its slot by an OFD lock on the slot's bytes, so the kernel frees it however the process ends, in whatever
 * pid namespace. Nobody ever waits for a lock: a stopped process holds up nobody. Slots are read and written with
 * pread and pwrite, not mapped (no SIGBUS when the file shrinks, nothing for a forked child to inherit); a checksum
 * tells a half-written or damaged slot, which is skipped. Where the file cannot be had, a process knows of itself only.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "internal.h"

#define SLOT_SIZE 1024
#define SLOT_MAGIC 0x44504431u /* "DPD1" */
#define SLOT_GIDS 56
#define SLOT_ANY_GID 0xffff /* too many to list: ask the process itself */

static void dir_path(char *buf, size_t len)
{
	snprintf(buf, len, "/dev/shm/dualport-%u-%d", (unsigned)geteuid(), dp_cfg.peer_port);
}

static uint64_t checksum(const uint8_t *p, size_t len)
{
	uint64_t h = 0xcbf29ce484222325ULL; /* FNV-1a: against accidents, the file is ours alone */

	while (len--)
		h = (h ^ *p++) * 0x100000001b3ULL;
	return h;
}

/* Own slot only: what stands there is ours alone to change. */
void dp_dir_publish(void)
{
	static uint8_t slot[SLOT_SIZE];
	struct dp_wbuf b = { .p = slot + 8, .cap = SLOT_SIZE - 8 };
	size_t n = dp_peering->ngids <= SLOT_GIDS ? dp_peering->ngids : 0;
	struct dp_wbuf sum = { .p = slot, .cap = 8 };

	if (dp_peering->dir_slot < 0)
		return;
	memset(slot, 0, sizeof(slot));
	dp_put32(&b, SLOT_MAGIC);
	dp_put(&b, dp_peering->instance, DP_INSTANCE_LEN);
	dp_put16(&b, dp_peering->port);
	dp_put16(&b, dp_peering->range_port);
	dp_put16(&b, n == dp_peering->ngids ? (uint16_t)n : SLOT_ANY_GID);
	for (size_t i = 0; i < n; i++)
		dp_put(&b, dp_peering->gids[i].raw, 16);
	dp_put64(&sum, checksum(slot + 8, SLOT_SIZE - 8));
	if (pwrite(dp_peering->dir_fd, slot, sizeof(slot), (off_t)dp_peering->dir_slot * SLOT_SIZE) != sizeof(slot))
		dp_info("the directory of this host's processes cannot be written: %s", strerror(errno));
}

static struct flock slot_lock(int slot)
{
	return (struct flock){
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)slot * SLOT_SIZE, .l_len = SLOT_SIZE
	};
}

static int open_dir(const char *path)
{
	const off_t size = (off_t)DP_DIR_SLOTS * SLOT_SIZE;
	struct stat st;
	int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);

	if (fd < 0)
		return -errno;
	dp_fd_own(fd);
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077) &&
	    st.st_nlink <= 1 && (st.st_size == size || (st.st_size == 0 && !ftruncate(fd, size))))
		return fd;
	dp_fd_close(fd);
	return -EPERM;
}

void dp_dir_start(void)
{
	char path[64];
	int fd;

	dir_path(path, sizeof(path));
	fd = open_dir(path);
	if (fd < 0) {
		dp_info("no directory of this host's processes: %s: %s", path,
			fd == -EPERM ? "not a private file of this user" : strerror(-fd));
		return;
	}
	dp_peering->dir_fd = fd;
	for (int i = 0; i < DP_DIR_SLOTS; i++) {
		struct flock lock = slot_lock(i);

		if (fcntl(fd, F_OFD_SETLK, &lock))
			continue;
		dp_peering->dir_slot = i;
		dp_dir_publish();
		return;
	}
	dp_info("no slot is free in %s", path);
}

static void leave(void)
{
	static const uint8_t empty[SLOT_SIZE];

	if (dp_peering->dir_slot >= 0 &&
	    pwrite(dp_peering->dir_fd, empty, sizeof(empty), (off_t)dp_peering->dir_slot * SLOT_SIZE) < 0)
		dp_trace("the directory of this host's processes cannot be written");
	dp_fd_close(dp_peering->dir_fd);
	dp_peering->dir_fd = dp_peering->dir_slot = -1;
}

/* The file may be unlinked under us: by the last process that left, or by a clean-up at logout. */
void dp_dir_tick(void)
{
	struct stat st;

	if (dp_peering->dir_fd >= 0 && !fstat(dp_peering->dir_fd, &st) && st.st_nlink)
		return;
	if (dp_peering->dir_fd < 0)
		return; /* it could not be had at the start; said once, not every second */
	leave();
	dp_dir_start();
}

static bool anyone_else(void)
{
	struct flock lock = slot_lock(0);

	lock.l_len = (off_t)DP_DIR_SLOTS * SLOT_SIZE;
	return fcntl(dp_peering->dir_fd, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

void dp_dir_stop(void)
{
	struct stat mine, there;
	char path[64];

	if (dp_peering->dir_fd < 0)
		return;
	dir_path(path, sizeof(path));
	/* who opens it in between sees within a second that it has no name any more (dp_dir_tick) */
	if (!anyone_else() && !fstat(dp_peering->dir_fd, &mine) && !lstat(path, &there) && mine.st_ino == there.st_ino &&
	    mine.st_dev == there.st_dev)
		unlink(path);
	leave();
}

static bool read_slot(int i, const union ibv_gid *gid, struct dp_dir_entry *e)
{
	static uint8_t slot[SLOT_SIZE];
	struct dp_rbuf b = { .p = slot, .len = sizeof(slot) };
	struct flock lock = slot_lock(i);
	uint16_t n;

	if (pread(dp_peering->dir_fd, slot, sizeof(slot), (off_t)i * SLOT_SIZE) != sizeof(slot))
		return false;
	if (dp_get64(&b) != checksum(slot + 8, SLOT_SIZE - 8) || dp_get32(&b) != SLOT_MAGIC)
		return false;
	/* after a look at the contents: most slots are empty, and cost no system call then */
	if (fcntl(dp_peering->dir_fd, F_OFD_GETLK, &lock) || lock.l_type == F_UNLCK)
		return false;
	memset(e, 0, sizeof(*e));
	dp_get(&b, e->instance, DP_INSTANCE_LEN);
	e->port = dp_get16(&b);
	e->range_port = dp_get16(&b);
	n = dp_get16(&b);
	if (!e->port || (n > SLOT_GIDS && n != SLOT_ANY_GID))
		return false;
	e->has_gid = n == SLOT_ANY_GID;
	while (!e->has_gid && n--) {
		union ibv_gid g;

		dp_get(&b, g.raw, sizeof(g.raw));
		e->has_gid = !memcmp(g.raw, gid->raw, sizeof(g.raw));
	}
	return !b.bad;
}

unsigned dp_dir_list(const union ibv_gid *gid, struct dp_dir_entry out[DP_DIR_SLOTS])
{
	unsigned n = 1;

	memset(&out[0], 0, sizeof(out[0]));
	memcpy(out[0].instance, dp_peering->instance, DP_INSTANCE_LEN);
	out[0].port = dp_peering->port;
	out[0].range_port = dp_peering->range_port;
	for (size_t i = 0; i < dp_peering->ngids; i++)
		out[0].has_gid |= !memcmp(dp_peering->gids[i].raw, gid->raw, sizeof(gid->raw));
	for (int i = 0; i < DP_DIR_SLOTS && n < DP_DIR_SLOTS && dp_peering->dir_fd >= 0; i++)
		if (i != dp_peering->dir_slot && read_slot(i, gid, &out[n]))
			n++;
	return n;
}

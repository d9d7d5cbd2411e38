// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "test_peer.h"

int peer_start(pid_t *pid, void (*fn)(int sock, void *arg), void *arg)
{
	int s[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
	*pid = fork();
	ck_assert_int_ge(*pid, 0);
	if (!*pid) {
		close(s[0]);
		fn(s[1], arg);
		/* a failed assertion has ended it before */
		_exit(0);
	}
	close(s[1]);
	return s[0];
}

void peer_end(pid_t pid)
{
	int status = 0;

	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status) && !WEXITSTATUS(status), "the other process ended with %#x", status);
}

void tell(int sock, const void *p, size_t n)
{
	ck_assert_int_eq(send(sock, p, n, MSG_NOSIGNAL), (ssize_t)n);
}

void hear(int sock, void *p, size_t n)
{
	ck_assert_int_eq(recv(sock, p, n, MSG_WAITALL), (ssize_t)n);
}

void meet(int sock)
{
	char c = 'x';

	tell(sock, &c, 1);
	hear(sock, &c, 1);
}

void far_join(int sock, struct end *e, struct far *f, const struct conn_opts *o)
{
	struct { struct addr addr; uint64_t buf; uint32_t rkey; } mine = { end_addr(e), (uintptr_t)e->buf,
									   e->mr->rkey }, theirs;

	memset(f, 0, sizeof(*f));
	tell(sock, &mine, sizeof(mine));
	hear(sock, &theirs, sizeof(theirs));
	f->mr.rkey = theirs.rkey;
	f->end.buf = (uint8_t *)(uintptr_t)theirs.buf;
	f->end.mr = &f->mr;
	connect_to(e, &theirs.addr, o);
	meet(sock);
}

double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const struct sn_host *shared_host(void)
{
	static const struct sn_host *h;
	char path[512];
	int fd;
	void *p;

	if (h)
		return h;
	snprintf(path, sizeof(path), "%s/host", getenv("SOFTNIC_DIR"));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	p = mmap(NULL, sizeof(*h), PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	close(fd);
	h = p;
	return h;
}

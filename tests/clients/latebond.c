// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A program that sends from the first moment of a connection on, pauses, and goes on: the QPs bond in the pause. Every
 * WRITE must be placed once, and not after its completion.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mini.h"

#define LEN 8192
static struct mini m = { .name = "latebond", .timeout_s = 120, .count = 20 };
static struct mend a, b;

static void write_one(size_t len, unsigned int id)
{
	mend_post(&a, &(struct mwr){ .op = IBV_WR_RDMA_WRITE, .len = len, .raddr = (uintptr_t)b.buf, .rkey = b.mr->rkey,
				     .flags = IBV_SEND_SIGNALED, .id = id });
	mend_expect(&a, id, IBV_WC_RDMA_WRITE, -1);
}

int main(int argc, char **argv)
{
	struct mend_want want = { .len = 2 * LEN, .depth = 8, .sge = 1, .recvs = 1 };
	unsigned int wrong = 0;

	mini_start(&m, argc, argv, "writes, a pause, large writes");
	if (mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want))
		return 2;
	for (unsigned int i = 1; i <= m.count; i++) {
		unsigned int n = i % 2 ? 30 : 400;

		if (mend_new_qp(&a, &want) || mend_new_qp(&b, &want) || mend_join(&a, &b, NULL))
			return 2;
		for (unsigned int k = 0; k < n; k++)
			write_one(8, k);
		nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
		for (unsigned int k = 0; k < 50; k++) {
			a.buf[0] = a.buf[LEN - 1] = (uint8_t)(k + i);
			write_one(LEN, k);
			wrong += b.buf[0] != (uint8_t)(k + i) || b.buf[LEN - 1] != (uint8_t)(k + i);
		}
	}
	CHECK(!wrong, "%u completions before their data", wrong);
	mend_close(&a);
	mend_close(&b);
	return mini_end(&m, NULL);
}

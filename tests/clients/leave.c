// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A bonded QP is destroyed with requests on their way; the next one on the same CQ must work. With three
 * ports or more it also shows what happens between the ends of two twins.
 */
#include <string.h>
#include <time.h>

#include "mini.h"

#define LEN 65536u

int main(int argc, char **argv)
{
	struct mini m = { .name = "leave", .timeout_s = 120, .count = 200 };
	struct mend_want want = { .len = LEN, .depth = 16, .sge = 1, .recvs = 1 };
	struct mend a, b;

	mini_start(&m, argc, argv, "destroy with requests on their way");
	if (mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want))
		return 2;
	for (unsigned int i = 0; i < m.count; i++) {
		if (mend_new_qp(&a, &want) || mend_new_qp(&b, &want) || mend_join(&a, &b, NULL))
			return 2;
		nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
		mend_post(&a, &(struct mwr){ .op = IBV_WR_RDMA_WRITE, .len = LEN, .raddr = (uintptr_t)b.buf, .rkey = b.mr->rkey,
					     .flags = IBV_SEND_SIGNALED, .id = i });
		mend_expect(&a, i, IBV_WC_RDMA_WRITE, -1);
		/* data and flags: what is queued and held makes the library poll in our place */
		for (int k = 0; k < 12; k++)
			mend_post(&a, &(struct mwr){ .op = IBV_WR_RDMA_WRITE, .len = k % 3 ? LEN : 8, .raddr = (uintptr_t)b.buf,
						     .rkey = b.mr->rkey, .flags = k % 4 ? 0 : IBV_SEND_SIGNALED, .id = i });
		nanosleep(&(struct timespec){ .tv_nsec = 50000 * (i % 80) }, NULL);
	}
	mend_close(&a);
	mend_close(&b);
	return mini_end(&m, NULL);
}

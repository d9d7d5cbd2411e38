// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Asynchronous events: what a program hears of is its own queue pair, and nothing else. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "mini.h"

int main(int argc, char **argv)
{
	struct mini m = { .name = "events", .timeout_s = 60, .count = 5 };
	struct mend_want want = { .len = 4096, .depth = 8, .sge = 1, .recvs = 1 };
	struct mend a = { 0 }, b = { 0 };
	struct rc_opts o = { 0 };
	struct rc_addr at, bt;

	mini_start(&m, argc, argv, "a queue pair that waits for its first message, which is told of as an event");
	if (mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want))
		return 2;
	for (unsigned int i = 0; i < m.count; i++) {
		struct ibv_async_event ev;
		int got = 0;

		if (mend_new_qp(&a, &want) || mend_new_qp(&b, &want))
			return 2;
		rc_addr_of(&a.dev, a.qp, a.psn, &at);
		rc_addr_of(&b.dev, b.qp, b.psn, &bt);
		/* b stays where every first message raises an event; the library may wait in a's step to RTS */
		CHECK(!rc_to_init(&b.dev, b.qp, &o) && !rc_to_rtr(&b.dev, b.qp, &at, &o), "b");
		CHECK(!rc_connect(&a.dev, a.qp, a.psn, &bt, &o), "a");
		CHECK(!mend_post(&a, &(struct mwr){ .op = IBV_WR_RDMA_WRITE, .len = 8, .raddr = (uintptr_t)b.buf,
						    .rkey = b.mr->rkey, .flags = IBV_SEND_SIGNALED, .id = i }), "post");
		mend_expect(&a, i, IBV_WC_RDMA_WRITE, -1);
		CHECK(!fcntl(b.dev.ctx->async_fd, F_SETFL, O_NONBLOCK), "fcntl");
		while (!vb.get_async_event(b.dev.ctx, &ev)) {
			CHECK(ev.event_type == IBV_EVENT_COMM_EST, "event %d", ev.event_type);
			CHECK(ev.element.qp == b.qp, "an event of a queue pair that is not the program's");
			got++;
			vb.ack_async_event(&ev);
		}
		CHECK(errno == EAGAIN, "%s", strerror(errno));
		CHECK(got == 1, "%d events", got);
	}
	mend_close(&a);
	mend_close(&b);
	return mini_end(&m, NULL);
}

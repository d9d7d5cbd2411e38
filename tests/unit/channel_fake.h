/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * A fake kernel for tests of channels: a channel is a pipe through which CQ pointers come, and acknowledgements and
 * destroy_cq are counted as libibverbs counts them. And fakes of the rest of the core.
 */
#ifndef CHANNEL_FAKE_H
#define CHANNEL_FAKE_H

#include "core.h"

struct fake_channel {
	struct ibv_comp_channel ch;
	int wr; /* the kernel's end */
};

struct fake_cq {
	struct ibv_cq cq;
	struct fake_channel *kernel_ch;
	uint32_t reported; /* events that were read */
	int arms, last_arm;
	struct dp_cq rec;
};

extern struct ibv_context context;
extern struct dp_ctx ctx;
extern _Atomic int inside_lowered, hurried;
extern int req_notify_ret;

/* True: it came to an end within ms. */
bool fake_destroy_cq(struct fake_cq *f, unsigned ms);
void setup(void);
/* As create_cq does it. */
void make_cq(struct fake_cq *f, struct ibv_comp_channel *channel, bool record);
bool destroy_cq(struct fake_cq *f, unsigned ms);
void kernel_event(struct fake_cq *f);
struct ibv_comp_channel *nonblocking_channel(void);
/* Is there an event, and is it f's (NULL: there must be none)? */
void expect(struct ibv_comp_channel *ch, struct fake_cq *f);
int open_fds(void);

#endif

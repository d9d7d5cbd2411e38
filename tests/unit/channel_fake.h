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
	_Atomic int arms, last_arm;
	_Atomic int looks, comes; /* in which look something becomes deliverable; 0: none */
	bool gives, gives_recv; /* is there something that was not polled? */
	bool comes_recv, comes_with_arm; /* a receive; in the look after the next arm */
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
/* Waits, as the real one: a thread may have taken an event that it acknowledges only now. */
bool destroy_cq(struct fake_cq *f);
/* As when it gets its first twin. */
void hold_in(struct fake_cq *f);
/* As dp_poll_cq() does after it has given what there was. */
void polled(struct fake_cq *f);
void kernel_event(struct fake_cq *f);
struct ibv_comp_channel *nonblocking_channel(void);
/* Is there an event, and is it f's (NULL: there must be none)? */
void expect(struct ibv_comp_channel *ch, struct fake_cq *f);
int open_fds(void);

#endif

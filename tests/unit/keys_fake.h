/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * Devices that reuse every key at once, and a peer layer whose control thread is either the test itself
 * (fake_run()) or a thread (fake_control_start()).
 */
#ifndef DUALPORT_TESTS_KEYS_FAKE_H
#define DUALPORT_TESTS_KEYS_FAKE_H

#include "rkeys.h"

#define FAKE_DEVS 3
#define FAKE_KEYS 4096

struct fake_dev {
	struct ibv_context ctx;
	struct ibv_device device;
	uint32_t base;	     /* first key */
	uint32_t nkeys;	     /* how many there are */
	int npd, nmr;
	int fail_mr, fail_pd; /* errno of the next ones; 0: none */
	int busy;	     /* errno of dereg_mr */
	struct ibv_mr *by_key[FAKE_KEYS];
	struct dp_mr_how how[FAKE_KEYS];
};

extern struct fake_dev fake_dev[FAKE_DEVS]; /* [0] is the program's, "fake0"; fake1 and fake2 are siblings */
extern struct dp_ctx fake_ctx;
extern size_t fake_memlock, fake_locked; /* bytes of all devices; 0: no limit */
extern int fake_rereg_ret, fake_rereg_errno; /* what the next rereg_mr does, if not 0 */
/* how many acknowledgements had been sent when the real rereg_mr was called */
extern _Atomic unsigned fake_acks_at_rereg;
extern void (*fake_in_dereg)(struct ibv_mr *mr); /* called by the real dereg_mr */
extern struct dp_verbs fake_verbs;

/* Two ends of one connection: what is sent to one comes from the other. */
struct dp_peer {
	struct dp_peer *other;
	bool self;
	_Atomic bool lease;
	_Atomic uint64_t granted;
	_Atomic unsigned sent[16]; /* messages, by type - DP_MSG_KEYS */
	bool broken;		   /* dp_peer_send() fails */
};
extern struct dp_peer fake_holder, fake_owner; /* the holder as the owner sees it, and the other way round */

extern int fake_call_err; /* dp_peer_call() fails */
extern bool fake_no_watch; /* the owner never hears of watchers */
extern bool fake_unseen; /* the context is not known before it is asked for by dp_ctx_get() */
extern struct dp_qp fake_qp[2];

void fake_reset(void);
void fake_run(void); /* all that the control thread has to do now */
bool fake_step(void); /* one thing of it; false: there was none */
void fake_timers(void);
bool fake_idle(void);
/* Runs it in a thread, with a random delay before each item of up to max_us. */
void fake_control_start(unsigned max_us);
void fake_control_stop(void);
struct ibv_mr *fake_key(uint32_t dev, uint32_t key); /* the MR that has this key on that device now, or NULL */
struct dp_mr_how fake_how(uint32_t dev, uint32_t key);
unsigned fake_sent(struct dp_peer *to, unsigned type);

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * What pd.c, mr.c, memlock.c, rereg.c, owner.c, push.c and rkeys*.c share.
 *
 * Owner side: a peer that was told the keys of an MR is a holder of it. When the MR goes, its keys stay in
 * quarantine until each holder has acknowledged the news or may not use remote keys any more because its lease
 * ran out. While a key is in quarantine, reg_mr does not hand it out.
 *
 * A peer that uses keys of a PD watches it: it is told the keys that there are, and those of later MRs. Each told key
 * makes it a holder, as a pull does.
 *
 * Locks: mr_life (mr.c) > dp_pd.lock > owner.c's lock; rkeys.c's locks are leaves. None of them is held while a
 * dp_qp.lock is taken, except mr_life, which the control thread never takes.
 */
#ifndef DUALPORT_CORE_RKEYS_H
#define DUALPORT_CORE_RKEYS_H

#include <sys/queue.h>
#include "core.h"

#define DP_KEYS_BATCH 1024 /* keys in one message */

enum {
	DP_MSG_KEYS_PULL = DP_MSG_KEYS, /* u32 pd, u16 n, n * u32 rkey */
	DP_MSG_KEYS_ARE,		/* u32 pd, u32 rkey, u8 n (0: no twins, and no more), key as below */
	DP_MSG_KEYS_INVAL,		/* u16 n, n * { u32 pd, u32 rkey, u64 seq, u8 flags } */
	DP_MSG_KEYS_ACK,		/* u16 n, n * u64 seq */
	DP_MSG_KEYS_WATCH,		/* u32 pd, u32 id: tell all keys, then END with that id, then what comes */
	DP_MSG_KEYS_UNWATCH,		/* u32 pd */
	DP_MSG_KEYS_TABLE,		/* u32 pd, u8 k, u16 n, n * { rkey, key: u8 flags, u64 shift, k * u32 twin's } */
	DP_MSG_KEYS_END,		/* u32 pd, u32 id */
};
/* Acknowledge only when fragments that use the key are complete: the MR stays, only its twins go. */
#define DP_INVAL_DRAIN 1

/* ---- pd.c */

struct dp_mr_rec;
struct dp_watcher;

struct dp_pd_rec {
	struct dp_pd p;
	_Atomic uint32_t refs; /* the program's, its MRs', its watchers', and the control thread's while it uses it */
	_Atomic uint32_t users; /* of these, the program and what it made in it, which may have twins */
	_Atomic bool left;	/* by ibv_unimport_pd: the last user ends it */

	/* push.c, with p.lock */
	TAILQ_HEAD(, dp_mr_rec) listed;	   /* published, remote access allowed, oldest first */
	TAILQ_HEAD(, dp_watcher) watchers;
	uint32_t nlisted, nbehind;	   /* nbehind: watchers that are not at the end of listed */
	struct dp_mr_rec *fresh;	   /* this and those after it: no watcher was told since they came */
	bool queued;			   /* a push is on its way; holds a reference */
	/* push.c, [control] */
	struct dp_timer timer;
	bool waiting; /* for the timer */
	uint64_t pushed; /* when, CLOCK_MONOTONIC ns */
};

static inline struct dp_pd_rec *dp_pd_rec(struct dp_pd *pd)
{
	return (struct dp_pd_rec *)pd;
}

/* The real functions for ctx, whether it is recorded or not; NULL only if its copy of libibverbs is unknown. */
const struct dp_verbs *dp_real_of(struct ibv_context *ctx);
void dp_pd_hold(struct dp_pd *pd);
void dp_pd_put(struct dp_pd *pd);
/* The same for MRs and QPs. */
void dp_pd_use(struct dp_pd *pd);
void dp_pd_unuse(struct dp_pd *pd);
struct dp_pd *dp_pd_by_id(uint32_t id); /* held, or NULL */

/* ---- mr.c */

enum dp_mr_kind { DP_MR_REG, DP_MR_IOVA, DP_MR_IOVA2, DP_MR_DMABUF, DP_MR_UNKNOWN };

/* How an MR was registered. */
struct dp_mr_how {
	enum dp_mr_kind kind;
	void *addr;
	size_t length;
	uint64_t iova;
	uint64_t offset; /* dmabuf */
	int fd;		 /* dmabuf; valid only during the registration: the program may close it after */
	unsigned int access;
	/* rail 0's was made by ibv_reg_mr_ex, or from ibv_alloc_buf's memory; valid only during the registration */
	struct ibv_mr_init_attr *attr;
	struct ibv_buf *buf;
};

struct dp_mr_rec {
	struct dp_mr m;
	struct dp_mr_how how;
	uint32_t dev; /* dp_key_dev() of rail 0's device */
	uint64_t kept; /* memlock.c: the round in which its twins could not be given back */
	TAILQ_ENTRY(dp_mr_rec) all;
	bool listed; /* push.c */
	TAILQ_ENTRY(dp_mr_rec) in_pd;
};

/* Excludes dereg and rereg (read) from giving back twins of MRs that the program did not touch (write). */
extern DP_HIDDEN pthread_rwlock_t dp_mr_life;

/* A number for the device whose keys these are; 0, shared, when there are too many. */
uint32_t dp_key_dev(const char *dev);
struct dp_mr_rec *dp_mr_find(struct ibv_mr *mr);
struct dp_mr_rec *dp_mr_of(struct ibv_mr *mr); /* the same, or that of which mr is an import; NULL: neither */
void dp_mr_new_keys(struct dp_mr_rec *r); /* takes those that its ibv_mr has now */
/* keymake.c: one kind of object that has a remote key. */
struct dp_key_maker {
	const char *what; /* "a memory region registered" */
	uint32_t dev;
	uint32_t tags; /* 1, or 256: the lowest byte of its key may be any; dp_key_blocked_tags() */
	uint32_t (*rkey)(const void *object);
	void *(*make)(const void *arg);
	int (*drop)(void *object, const void *arg); /* as dereg_mr */
};
/* Never one with a key in quarantine. *reused: but this has one, past holders did not answer in time. NULL and errno. */
void *dp_key_make(const struct dp_key_maker *k, const void *arg, bool *reused);
/* Registers, never with a key in quarantine on dev. NULL and errno. */
struct ibv_mr *dp_mr_register(const struct dp_verbs *real, struct ibv_pd *pd, uint32_t dev,
			      const struct dp_mr_how *how);
uint32_t dp_rkey_of_mr(const void *mr); /* for a struct dp_key_maker */
/* Registers the twins and sets usable; r must be unpublished. Counts and says why if one fails. */
void dp_mr_twins_make(struct dp_mr_rec *r);
void dp_mr_twins_drop(struct dp_mr_rec *r); /* likewise unpublished */
/* Into and out of the maps of the hot path and of the peers. Unpublishing takes the holders off r. */
void dp_mr_publish(struct dp_mr_rec *r);
struct dp_holder *dp_mr_unpublish(struct dp_mr_rec *r);
/* Calls fn for each MR, newest first, with the list locked. */
void dp_mr_each(void (*fn)(struct dp_mr_rec *r, void *arg), void *arg);
/* Forgets r, which is unpublished and has no twins; the ibv_mr is not touched. */
void dp_mr_forget(struct dp_mr_rec *r);

/*
 * memlock.c: makes another MR rail-0-only, so that something is left of RLIMIT_MEMLOCK. False: none could be had
 * before the deadline (CLOCK_MONOTONIC ns).
 */
bool dp_mr_give_back(uint64_t deadline);
/*
 * Nobody looks r up any more, then what uses its twins' keys already, here and at the peers, is waited for: r stays valid for
 * the program or its peers, so that nothing in flight may lose its keys. False: not before the deadline. With dp_mr_life.
 */
bool dp_mr_settle(struct dp_mr_rec *r, uint64_t deadline);

/* ---- owner.c */

bool dp_key_blocked(uint32_t dev, uint32_t rkey);
bool dp_key_blocked_tags(uint32_t dev, uint32_t rkey); /* or one that differs from it in the lowest byte */
/* Waits until the key is free, at most until deadline (CLOCK_MONOTONIC ns). Whether it is. */
bool dp_key_wait(uint32_t dev, uint32_t rkey, uint64_t deadline);

/*
 * The keys of h enter quarantine; NULL is allowed here and below. Nothing is sent yet, and nothing expires.
 * seq, if not NULL, gets a name for dp_holders_settled().
 */
void dp_holders_block(struct dp_holder *h, uint64_t *seq);
void dp_holders_unblock(struct dp_holder *h); /* takes that back; h can be used again */
/* Tells the holders, in the background; h is no longer the caller's. */
void dp_holders_invalidate(struct dp_holder *h, unsigned int flags);
/* Waits until h, invalidated, is settled: all acknowledged or lost their lease. Whether that happened. */
bool dp_holders_settled(uint64_t seq, uint64_t deadline);
bool dp_holders_any(const struct dp_holder *h); /* is there one that may use the keys? with pd->lock */

/* How long anything waits for a lease to end: no peer was granted a longer one, and dp_peer_start() wants 100 ms. */
static inline uint64_t dp_lease_bound(void)
{
	return (dp_cfg.lease_ns < 100000000u ? 100000000u : dp_cfg.lease_ns) + 20000000u;
}

/* [control] */
void dp_owner_pull(struct dp_peer *peer, const uint8_t *data, size_t len);
void dp_owner_ack(struct dp_peer *peer, const uint8_t *data, size_t len);
void dp_owner_gone(struct dp_peer *peer);
/* [control] With pd->lock held: the MR cannot go before the peer is recorded. False: out of memory. */
bool dp_holder_add(struct dp_mr_rec *r, struct dp_peer *peer);
struct dp_wbuf;
/* What the messages say of an MR's key, DP_KEY_LEN(siblings) bytes. */
#define DP_KEY_LEN(n) (9 + 4 * (n))
void dp_owner_put_key(struct dp_wbuf *b, const struct dp_mr_rec *r);
void dp_owner_after_fork(void);

/* ---- push.c */

extern uint32_t dp_push_max; /* MRs of one PD that are told in bulk; the keys of others are pulled. Tests lower it. */
extern uint64_t dp_push_gap_ns; /* between pushes of one PD: MRs that live shorter need not be told of */

void dp_push_init(struct dp_pd_rec *pd);
/* Both with pd->lock. If list returns true, call dp_push_call() after that lock was dropped. */
bool dp_push_list(struct dp_mr_rec *r);
void dp_push_unlist(struct dp_mr_rec *r);
void dp_push_call(struct dp_pd *pd);
/* [control] */
void dp_owner_watch(struct dp_peer *peer, const uint8_t *data, size_t len);
void dp_owner_unwatch(struct dp_peer *peer, const uint8_t *data, size_t len);
void dp_push_gone(struct dp_peer *peer);
/* In a forked child, in this order. */
void dp_push_after_fork(void);
void dp_push_pd_after_fork(struct dp_pd_rec *pd);
void dp_mr_after_fork(void);
void dp_pd_after_fork(void);

/* ---- rkeys.c, rkeys_msg.c */

/* Does nothing in this process use keys of this process? */
bool dp_rpd_none_to_self(void);
struct dp_peer *dp_self_peer(void); /* [control] NULL while the peer layer does not run */
void dp_keys_malformed(struct dp_peer *peer, uint16_t type, size_t len);

/* ---- inval.c: [control] */

struct dp_inval {
	struct dp_peer *peer;
	uint64_t seq;
	uint32_t pd_id, rkey;
	uint8_t flags;
};

/* Sends them, sorted. */
void dp_invals_send(struct dp_inval *v, size_t n);

/* ---- drain.c: fragments planned now on siblings, of bonded QPs of one context or towards one remote PD */

struct dp_drain;
/* c or rpd is NULL. Also a barrier: what held a dp_qp.lock before has left it. NULL: out of memory. */
struct dp_drain *dp_drain_start(const struct dp_ctx *c, const struct dp_rpd *rpd);
bool dp_drain_done(struct dp_drain *d); /* polls for it */
void dp_drain_free(struct dp_drain *d);
/*
 * [control] Acknowledges to peer when what is planned now towards rpd is complete. message: a number of the message that
 * is being acknowledged, greater than those of earlier ones.
 */
void dp_ack_later(struct dp_peer *peer, struct dp_rpd *rpd, uint64_t seq, uint64_t message);
void dp_acks_gone(struct dp_peer *peer);
void dp_acks_after_fork(void);

#endif

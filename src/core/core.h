/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * The objects of the core and who locks what.
 *
 * Locks, in the order in which they are taken:
 *   dp_qp.ctl   the life of a QP's twins: modify_qp and destroy_qp of the program against the control thread.
 *               May be held over slow verbs (create_qp), never over the network.
 *   dp_cq.lock  polling: the program's CQ, the internal CQs behind it, the list of QPs to look at
 *   dp_qp.lock  posting: order machine, queue, rails
 * Other locks (dp_pd.lock, registries) are leaves.
 */
#ifndef DUALPORT_CORE_H
#define DUALPORT_CORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <infiniband/verbs.h>

#include "../preload/verbs.h"
#include "config.h"
#include "hidden.h"
#include "hmap.h"
#include "lock.h"
#include "log.h"
#include "order.h"
#include "peer/peer.h"
#include "plan.h"
#include "ports.h"
#include "stats.h"

#define DP_BATCH 16 /* WRs posted with one call */

/*
 * For a few bytes on the hot path: two instructions to reach. The C library keeps some room for such variables of objects
 * that are opened late; where there is none left, the core cannot be opened, and the program runs on one port.
 */
#define DP_TLS __thread __attribute__((tls_model("initial-exec")))

extern DP_HIDDEN const struct dp_stub *dp_stub;

/* ---- contexts (ctx.c) ------------------------------------------------------------------------------------- */

/* Of one port, as seen from one context of the program; meter.c. */
struct dp_meter {
	dp_fast lock; /* a leaf */
	uint64_t rate;	  /* bytes per second; 0: unknown */
	uint64_t open;	  /* bytes posted and not completed */
	uint64_t planned; /* the same and those that wait */
	uint64_t qps;	  /* QPs with such bytes */
	uint64_t since, got, looks; /* bytes completed since that time, in so many polls; since 0: no window is open */
	uint64_t best, last_best, epoch; /* of rates measured since then, and in the second before */
};
#define DP_OWN_METERS 4 /* ports of one device that are told apart */

/* A sibling port as seen from one context of the program. */
struct dp_sib {
	struct dp_port_name port;
	char text[DP_PORT_TEXT]; /* "mlx5_1:1" */
	uint32_t place;		 /* in the group */
	const struct dp_verbs *real;
	/*
	 * Opened by us, never patched; NULL: could not be opened (said). shared: another port of the program's bond: it is
	 * the program's context, and twins' PDs and MRs are the program's own.
	 */
	struct ibv_context *ctx;
	bool shared;
	struct ibv_device_attr attr;
	struct dp_hmap twins; /* qp_num there -> struct dp_rail */
	struct dp_meter meter;
	bool watched;	      /* its async events are drained by the control thread */
};

/* A context of the program. */
struct dp_ctx {
	struct ibv_context *ctx;
	const struct dp_verbs *real;
	struct ibv_context_ops ops; /* the provider's */
	struct ibv_qp *(*create_qp_ex)(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr);
	struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *ctx, struct ibv_cq_init_attr_ex *attr);
	struct ibv_mr *(*reg_dm_mr)(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length,
				    unsigned int access);
	char dev[DP_DEV_NAME];
	bool grouped;		/* a port is in some group; false: nothing to do here, why says so */
	const char *why;
	bool opened;		/* with lock: its group was chosen, and the siblings were looked for */
	_Atomic uint32_t nsib;	/* 0 until then, and if there is no group for this process */
	struct dp_sib *sib;	/* the other ports of the group, in its order */
	struct dp_sib own;	/* the program's own context, for spares; ctx is NULL if there are none */
	uint32_t place;		/* of the program's own port in the group */
	int lag;		/* that port of its bond, to which bonded QPs are pinned; 0: they are not */
	_Atomic bool lag_refused; /* pinning is not possible (said) */
	struct dp_meter meter[DP_OWN_METERS];
	struct dp_hmap qpns;	/* qp_num -> struct dp_qp, RC QPs of this context; dp_hmap_get_held() only */
	struct dp_hmap lkeys;	/* lkey -> struct dp_mr */
	_Atomic uint64_t lkeys_gen; /* raised when something comes there or goes */
	_Atomic uint32_t refs;	/* PDs, CQs, channels, QPs */
	_Atomic bool closed;	/* the siblings are closed or about to be; objects that the program left behind stay */
	dp_lock lock;
};

/*
 * The context's record, made and patched at first sight. NULL: it cannot be ours (no copy of libibverbs found,
 * no extended ABI, no memory); then everything passes natively.
 */
struct dp_ctx *dp_ctx_get(struct ibv_context *ctx);
/* Only if it is known. */
struct dp_ctx *dp_ctx_find(struct ibv_context *ctx);
/* Calls fn for each context whose port is in a group; contexts neither come nor go meanwhile. */
void dp_ctx_each(void (*fn)(struct dp_ctx *c, void *arg), void *arg);
/*
 * Chooses the context's group and opens the siblings' devices, if that has not been done; nsib and sib are stable
 * afterwards. addr: memory about to be registered, which may tell the GPU; NULL: none.
 */
void dp_ctx_open_siblings(struct dp_ctx *c, const void *addr);
int dp_close_device(struct ibv_context *ctx);
/* As the real one, but events of objects that we made in the program's own context (shared siblings) are not given. */
int dp_get_async_event(struct ibv_context *ctx, struct ibv_async_event *event);
/* The qp_context and cq_context of all that we make. */
extern char dp_made_by_us;
/* A QP could not be pinned (an error of dp_lag_pin()), and no other of c will be bonded: says so, once. */
void dp_lag_refused(struct dp_ctx *c, const char *port, int err);
/* In a forked child: locks are free again that other threads of the parent held. */
void dp_ctx_after_fork(void);
void dp_qp_after_fork(void);
void dp_tell_after_fork(void);
void dp_cq_after_fork(void);
void dp_channel_after_fork(void);

/* ---- protection domains and memory regions (mr.c) ---------------------------------------------------------- */

struct dp_pd {
	struct ibv_pd *pd;     /* with settling, where something is made in it: NULL once the program has left it to another */
	struct dp_ctx *c;
	uint32_t id;	       /* unique in the process; names the PD towards peers */
	struct ibv_pd *twin[DP_MAX_RAILS]; /* by sibling; NULL where it failed, and until dp_pd_settle() */
	_Atomic bool settled;
	dp_lock settling;      /* held over verbs; taken before dp_ctx.lock, nothing else */
	struct ibv_mr *scratch[DP_MAX_RAILS]; /* by sibling; memory of ours in them; NULL where there is none; flush.c */
	uint32_t guests;       /* twins of QPs in the program's own PD, on shared siblings; with settling */
	dp_lock lock;
	struct dp_hmap rkeys;  /* rkey -> struct dp_mr: what peers ask for */
};

struct dp_mr {
	struct ibv_mr *mr;
	struct dp_pd *pd;
	int access;
	uint32_t lkey, rkey;  /* rail 0's, as in the maps */
	struct ibv_mr **twin; /* [nsib]; NULL where it failed; mr itself on a shared sibling */
	uint32_t *lkeys;      /* [nsib] of the twins */
	bool usable;	      /* every twin is there */
	struct dp_holder *holders; /* peers that know the keys; rkeys.c */
};

/* flush.c. Memory of ours in the twin of pd on that sibling: where flushes read to. 0 or -errno. [control] */
int dp_scratch_make(struct dp_pd *pd, uint32_t sib_idx);
/* Only in the program's own PD (shared siblings), or only in the others. */
void dp_scratch_drop(struct dp_pd *pd, bool shared);
/* In the program's own PD, for one queue pair. NULL with errno. */
struct ibv_mr *dp_scratch_own(struct dp_pd *pd);
#define DP_EVERY_MAX 64 /* bytes of it */

struct dp_pd *dp_pd_find(struct ibv_pd *pd);
/*
 * Makes the twins, if that has not been done: at the first MR (addr, else NULL) or RC QP, not before, since many
 * programs make a PD on each device of the host, and use one.
 */
void dp_pd_settle(struct dp_pd *pd, const void *addr);
struct ibv_pd *dp_alloc_pd(struct ibv_context *ctx);
int dp_dealloc_pd(struct ibv_pd *pd);
struct ibv_mr *dp_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
struct ibv_mr *dp_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access);
struct ibv_mr *dp_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access);
struct ibv_mr *dp_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access);
int dp_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *cntr, struct ibv_qp_attach_comp_cntr_attr *attr);
void dp_unimport_mr(struct ibv_mr *mr);
void dp_unimport_pd(struct ibv_pd *pd);
struct ibv_mr *dp_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr);
struct ibv_mr *dp_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access);
int dp_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access);
int dp_dereg_mr(struct ibv_mr *mr);
/* A region that the program had made past verbs: it gets twins as one of dp_reg_dmabuf_mr(). */
void dp_dmabuf_made(struct ibv_pd *pd, struct ibv_mr *mr, uint64_t offset, size_t length, uint64_t iova, int fd,
		    int access);

/* otherkeys.c: memory without twins, whose keys no peer may take for those of a region that is gone. */
struct ibv_mw *dp_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
struct ibv_mr *dp_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, unsigned int access);

/* The twins' local keys ([nsib of c], by sibling), or NULL: no such MR or not all twins. Lock-free. */
static inline const uint32_t *dp_mr_lkeys(const struct dp_ctx *c, uint32_t lkey)
{
	const struct dp_mr *mr = dp_hmap_get(&c->lkeys, lkey);

	return mr && mr->usable ? mr->lkeys : NULL;
}

/* ---- remote keys (rkeys.c) --------------------------------------------------------------------------------- */

/* What is known of one PD of one peer process. */
struct dp_rpd;

/* [control] Finds or makes it, and then asks the peer for all its keys; counted, dp_rpd_put() gives it back. */
struct dp_rpd *dp_rpd_get(struct dp_peer *peer, uint32_t pd_id);
void dp_rpd_put(struct dp_rpd *rpd);
/* [control] Did all keys that the peer had at dp_rpd_get() arrive? Also if there are none, or the peer is gone. */
bool dp_rpd_ready(const struct dp_rpd *rpd);

enum { DP_RKEY_READ = 1, DP_RKEY_RELAXED = 2 }; /* IBV_ACCESS_REMOTE_READ, IBV_ACCESS_RELAXED_ORDERING */

/* What the owner said of one of its rkeys. */
struct dp_rkeys {
	uint64_t shift;	/* a remote address plus this, modulo 2^64, is one that two keys of one memory agree in */
	uint32_t flags;	/* DP_RKEY_* */
	uint32_t n;
	uint64_t born;	/* no two answers of owners have the same: a key may name another region than it did */
	uint32_t key[];	/* of its twins, by the owner's sibling number */
};

/*
 * The keys of the peer's twins for its rkey; NULL and *why when they cannot be used now. Asks the owner, in the
 * background, if they are not known. Call with the qp.lock of a QP that holds the rpd; valid while it is held.
 * Lock-free but for the first use of a key.
 */
const struct dp_rkeys *dp_rkey_get(struct dp_rpd *rpd, uint32_t rkey, enum dp_fallback *why);
/* May its keys be used now? As for dp_rkey_get(). */
bool dp_rpd_usable(const struct dp_rpd *rpd, enum dp_fallback *why);
/* Has the peer told of memory of relaxed order (IBV_ACCESS_RELAXED_ORDERING)? Then signals may be DP_OP_STRONG. */
bool dp_rpd_relaxed(const struct dp_rpd *rpd);
/* The same without asking, and whether it may be used for new fragments or not; NULL: not known. */
const struct dp_rkeys *dp_rkey_peek(struct dp_rpd *rpd, uint32_t rkey);
/* [control] Messages of type DP_MSG_KEYS + 0..15, and the end of a peer. */
void dp_rkeys_message(struct dp_peer *peer, uint16_t type, const uint8_t *data, size_t len);
void dp_rkeys_gone(struct dp_peer *peer);
/* In a forked child: PDs, MRs and keys can be given up, without a word to the peers. */
void dp_keys_after_fork(void);

enum { DP_MSG_KEYS = 0x100, DP_MSG_BOND = 0x120 };

/* ---- completion queues (cq.c, ready.c, poll.c) and channels (channel.c) ---------------------------------------- */

/* An internal CQ, into which twins on one sibling complete. */
struct dp_icq {
	struct ibv_cq *cq;
	struct dp_sib *sib;
	uint32_t size, used;	 /* entries, and entries that twins may need */
	_Atomic uint32_t pending; /* signalled WRs posted whose completion was not polled */
	struct dp_icq *next;
};

struct dp_channel;
struct dp_cqex;

/* What an ibv_wc has no room for; 0 where an extended CQ was not made to tell it. */
struct dp_wc_more {
	uint64_t ts, wall_ns; /* when it completed, in the device's clock and in real time */
	uint64_t tag;
	uint32_t priv, flow_tag, slid;
	uint16_t cvlan;
};

struct dp_cq {
	dp_fast lock; /* the first: its address is at hand */
	struct ibv_cq *cq;
	struct dp_ctx *c;
	int (*poll_cq)(struct ibv_cq *cq, int n, struct ibv_wc *wc); /* the provider's */
	/*
	 * How many QPs that send into this CQ need their completions looked at, and one more for the stash if there is
	 * something in it; 0: poll_cq goes straight to the provider. Changed with lock held.
	 */
	_Atomic uint32_t active;
	_Atomic uint32_t busy;	  /* of these, QPs with something queued or held: progress.c polls when nobody does */
	_Atomic uint64_t polls;	  /* calls of poll_cq, for progress.c to see whether somebody polls */
	struct dp_hmap qpns;	  /* qp_num -> struct dp_qp that sends into it; changed, and used, with lock held */
	struct dp_qp *last;	  /* found in qpns last, number last_qpn; with lock, and unset by changes */
	uint64_t last_qpn;	  /* UINT64_MAX: none */
	struct dp_cqex *ex;	  /* cqex.c; NULL: not an extended one */
	struct dp_wc_more more;	  /* of the completion that was read or taken last; with lock */
	struct dp_icq *icqs;
	struct dp_qp *ready;	  /* QPs that may have completions to give; list by dp_qp.ready_next */
	struct dp_qp **ready_tail;
	struct dp_stash *stash, **stash_tail; /* CQEs read from the program's CQ by progress.c */
	struct dp_stash *unstashed; /* that were given, for others to come */
	uint64_t turn;		  /* of the next that comes on either list; from 1 on */

	struct dp_channel *channel; /* NULL: made without one */
	_Atomic int armed;	    /* enum dp_arm; by the program, or for it by arm.c while active: with lock */
	_Atomic uint32_t arms;	    /* of the program; also counts those that the provider refused */
	_Atomic bool arm_seen;	    /* dp_cq_holds() when it was armed: whatever came since was seen */
	bool recv_seen;		    /* a receive came since then; with lock */
	bool unread;		    /* the last dp_cq_progress() could not read the program's CQ; with lock */
	bool raised;		    /* on the channel's list of CQs with an event of ours; the channel's lock */
	bool owed;		    /* dp_channel_detach() took events off the list; the channel's lock */
	struct dp_cq *raised_next;

	bool progress_listed;	    /* progress.c, its lock */
	struct dp_cq *progress_next;
	uint64_t progress_polls;    /* polls as of the last round */
};

enum dp_arm {
	DP_ARM_NONE,
	DP_ARM_ANY,
	DP_ARM_SOLICITED,
	DP_ARM_SPENT,	      /* by an event of ours */
	DP_ARM_OLD_ANY,	      /* there is an event, but for what was there already: see arm.c */
	DP_ARM_OLD_SOLICITED,
};

/* Does an arm stand? With lock this is certain while active is not 0. */
static inline bool dp_cq_armed(const struct dp_cq *cq)
{
	int a = atomic_load_explicit(&cq->armed, memory_order_relaxed);

	return a != DP_ARM_NONE && a != DP_ARM_SPENT;
}

static inline bool dp_cq_armed_old(const struct dp_cq *cq)
{
	return atomic_load_explicit(&cq->armed, memory_order_relaxed) >= DP_ARM_OLD_ANY;
}

/* Is something of it held at times, so that the kernel's events for it do not say that there is a completion? */
static inline bool dp_cq_holds(const struct dp_cq *cq)
{
	return atomic_load_explicit(&cq->active, memory_order_relaxed) && __atomic_load_n(&cq->icqs, __ATOMIC_ACQUIRE);
}

struct dp_stash {
	struct ibv_wc wc;
	struct dp_wc_more more;
	uint64_t turn; /* on dp_cq.stash */
	struct dp_stash *next;
};

struct dp_cq *dp_cq_find(struct ibv_cq *cq);
struct ibv_cq *dp_create_cq(struct ibv_context *ctx, int cqe, void *cq_context, struct ibv_comp_channel *channel,
			    int vector);
int dp_destroy_cq(struct ibv_cq *cq);
int dp_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
/* Forgets the CQs that the program leaves behind when it closes their context; no QP of ours uses them any more. */
void dp_cq_abandon(struct dp_ctx *c);

/*
 * With lock held: polls the internal CQs, releases what may go, puts QPs with something to give on the ready
 * list. take0: also reads the program's own CQ (into QPs' held completions and the stash), for progress.c.
 * Raises an event if the CQ is armed and a completion became deliverable, as polling does.
 */
void dp_cq_progress(struct dp_cq *q, bool take0);
/* With lock and q's held: something changed for q other than by a completion. */
void dp_cq_go_on(struct dp_cq *cq, struct dp_qp *q);
/* With lock held: what may be given now is old, as one that is in a CQ when it is armed. */
void dp_cq_all_told(struct dp_cq *q);
/* With lock held: can something be given now, solicited only: that may be asked for so? */
bool dp_cq_gives(struct dp_cq *q, bool solicited_only);
/* With lock held: q may have completions to give. */
void dp_cq_ready(struct dp_cq *cq, struct dp_qp *q);

/* An internal CQ with room for n more; NULL when none can be made. */
struct dp_icq *dp_icq_get(struct dp_cq *cq, struct dp_sib *sib, uint32_t n);
void dp_icq_put(struct dp_cq *cq, struct dp_icq *icq, uint32_t n);

/*
 * channel.c. A program's channel is a shadow: an ibv_comp_channel of ours whose fd is an epoll over an eventfd and, as
 * long as nothing is held in any of its CQs, the real channel's fd.
 */
struct ibv_comp_channel *dp_create_comp_channel(struct ibv_context *ctx);
int dp_destroy_comp_channel(struct ibv_comp_channel *channel);
int dp_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
void dp_ack_cq_events(struct ibv_cq *cq, unsigned int nevents);
/* The real channel behind a shadow, and itself otherwise; *shadow tells. For create_cq. */
struct ibv_comp_channel *dp_channel_real(struct ibv_comp_channel *channel, struct dp_channel **shadow);
void dp_channel_attach(struct dp_channel *ch, struct dp_cq *cq); /* sets cq->cq->channel to the shadow */
void dp_channel_detach(struct dp_cq *cq);			 /* and back, for the real destroy_cq */
/* The same for a CQ without a record of ours (extended). detach returns the shadow it was on, or NULL. */
void dp_channel_attach_plain(struct dp_channel *ch, struct ibv_cq *cq);
struct dp_channel *dp_channel_detach_plain(struct ibv_cq *cq);
/* An event of ours; with or without cq->lock. False: there is one already. */
bool dp_channel_push(struct dp_cq *cq);
bool dp_channel_pull(struct dp_cq *cq); /* takes it back; false: the program has it */
/* From now on the kernel's events for CQs of this channel are looked at before the program sees them. cq may have none. */
void dp_channel_watch(struct dp_cq *cq);
/* Looks at what the kernel has, if shadow still is one that is watched. For chanwatch.c. */
void dp_channel_pump(struct ibv_comp_channel *shadow);

/* arm.c: when a CQ has an event. */
int dp_req_notify_cq(struct ibv_cq *cq, int solicited_only);
/* A completion became deliverable on cq (with or without cq->lock): an event if it is armed. */
void dp_arm_raise(struct dp_cq *cq);
/* The same for a completion in error: armed for solicited ones only is enough. */
void dp_arm_raise_error(struct dp_cq *cq);
/*
 * The kernel has an event for cq, in which things are held: what that was about is found by looking. arms: as it was when
 * the event was taken from the kernel.
 */
void dp_arm_kernel(struct dp_cq *cq, uint32_t arms);
/* The kernel's event is to be given as it is; with the channel's lock. False: it is the second one for one arm. */
bool dp_arm_passes(struct dp_cq *cq, bool raised);
/* An event is given for the arm that stands. False: none does, or it has one. */
bool dp_arm_spend(struct dp_cq *cq);
/* With lock held: the program has polled, and dp_cq_armed_old(). */
void dp_arm_polled(struct dp_cq *cq);

/* chanwatch.c: a thread that sleeps on the real fds of watched channels. 0 or -errno. */
int dp_chanwatch_add(int fd, struct ibv_comp_channel *shadow);
void dp_chanwatch_del(int fd);
void dp_chanwatch_mute(int fd); /* it is readable for nothing; still to be deleted */
void dp_chanwatch_settle(void); /* waits until it is done with what it is at */
void dp_chanwatch_stop(void);
void dp_chanwatch_after_fork(void);

/* progress.c: cq has something queued or held: see that it moves even if nobody polls. Cheap when listed. */
void dp_progress_watch(struct dp_cq *cq);
void dp_progress_forget(struct dp_cq *cq); /* before cq is freed; waits for the thread to let go of it */
void dp_progress_hurry(void);		   /* somebody is about to sleep until something happens */
void dp_progress_stop(void);
void dp_progress_after_fork(void);

/* ---- queue pairs ------------------------------------------------------------------------------------------- */

enum dp_qp_state {
	DP_QP_NATIVE,  /* passes; nothing is recorded */
	DP_QP_PENDING, /* passes; ops are recorded, for the switch */
	DP_QP_BONDED,
	DP_QP_FAILING, /* an error was seen: completions of before it are still to be given */
};

/* A copy of a WR of which some part waits. */
struct dp_qwr {
	struct dp_qwr *next; /* on dp_copies.unused */
	struct ibv_send_wr wr; /* sg_list points to sge[]; next NULL; bind_mw.mw is ours */
	struct ibv_mw mw;      /* the window as it was: the program may give it its new key as soon as post_send returned */
	bool inlined;	       /* sg_list[0] points to the bytes behind the arrays */
	struct dp_part *part;  /* [nrails], NULL: whole */
	uint32_t *rkey;	       /* [nrails] */
	uint32_t *lkey;	       /* [nrails][num_sge] */
	uint64_t since;	       /* ns, when queued */
	struct ibv_sge sge[];
};

/*
 * Memory for as many of them as the send queue is deep, up to a limit, from when a QP is bonded on. Providers take none when a
 * program posts, so neither do we: a program may be interrupted there by a handler of its own that takes some, as perftest's
 * does with -D, and that handler, if it came within malloc(), waits for ever for what it has interrupted.
 */
struct dp_copies {
	char *mem;
	size_t room;	   /* bytes of each; what is larger, as what is beyond n, is the C library's */
	size_t n, begun;   /* so many were used at least once */
	struct dp_qwr *unused;
};

/* What the shim knows of one op beside the order machine; slot = position & mask. */
struct dp_slot {
	uint64_t wr_id;
	uint32_t byte_len;  /* of the whole WR, given at poll for READs */
	uint8_t opcode;	    /* enum ibv_wr_opcode */
	bool reported;	    /* stuck.c; unset when it begins to wait */
	struct dp_qwr *qwr; /* while some part waits; NULL else, also where there is no op */
	uint64_t posted_ns; /* on rail 0, where the round trip is measured; 0: it is not. dp_trip_ends() */
	/* while its completion is held: */
	struct ibv_wc wc;   /* rail 0's */
	uint64_t ts, wall_ns; /* as in dp_wc_more: of a sender's nothing else is told */
	uint64_t held_since;
	uint64_t turn; /* as of dp_cq.turn */
	uint64_t unused[2]; /* 128 bytes: a shift finds it */
};

/* WRs of one rail that go with one call. */
struct dp_chain {
	unsigned n, nsge, msgs;	/* msgs: those that are not flushes */
	uint64_t bytes, reads;	/* of these, and of the READs among them */
	struct ibv_send_wr wr[DP_BATCH];
	struct ibv_sge *sge; /* DP_BATCH * max_send_sge */
};

#define DP_DIRTY 8	 /* regions on one sibling whose bytes are to be flushed */
#define DP_FLUSH_SLOTS 16 /* of a twin's send queue, for flushes */

/* A region of the peer that fragments of one sibling wrote to: not all of them are known to be visible. */
struct dp_dirty {
	uint32_t rkey0, rkey; /* the program's key, and its twin's */
	uint64_t born;	      /* of the region that these named */
	uint64_t addr;	      /* some byte that was written there */
	uint64_t first, last; /* numbers of the oldest and newest such fragment */
};

/* rail[0] is the program's own port: only chain, flow and text are used there. */
struct dp_rail {
	struct dp_qp *q;
	uint32_t idx;
	struct dp_sib *sib;
	uint32_t sib_idx;      /* in ctx->sib: index into local keys */
	uint32_t peer_sib_idx; /* index into the peer's keys */
	uint64_t peer_upstream;
	bool peer_reads;	   /* the peer's twin allows READs */
	bool flushes;		   /* flushes are possible */
	uint32_t rd_atomic;	   /* READs that may be outstanding */
	struct dp_dirty dirty[DP_DIRTY];
	uint32_t ndirty, flushing; /* flushing: READs of flushes outstanding */
	uint64_t blind;		   /* number of the newest fragment that no flush would make visible */
	uint32_t scratch_lkey;	   /* 0: there is no scratch memory */
	struct ibv_mr *scratch;	   /* the spare's own; twins share their PD's */
	struct ibv_qp *twin;
	struct dp_icq *icq;
	uint32_t icq_used; /* entries of it that are set apart */
	uint32_t sq_size, max_sge;
	uint64_t posted; /* number of the newest fragment posted */
	uint64_t seen;	 /* newest number that a completion, good or bad, was polled for */
	uint32_t signaled; /* WRs posted whose completion counts in icq->pending */
	uint64_t metered_sent, metered_arrived, metered_planned; /* what the port's meter was told */
	uint64_t quiet_from, quiet_n; /* while so many bytes, or up to n more, are under way, it need not be told; n 0: never */
	uint64_t probe_ns; /* when it was posted */
	enum { DP_PROBE_NONE, DP_PROBE_SENT, DP_PROBE_OK, DP_PROBE_FAILED } probe;
	bool rts, dead;
	bool mute; /* its probe was not answered: nothing goes there, but the peer's may come */
	struct dp_flow *flow;
	struct ibv_send_wr way_wr; /* the part here of what goes dp_qp.way */
	struct ibv_sge way_sge;
	bool way_noted; /* what it writes may have to be flushed */
	struct dp_chain chain;
};

/* bulk.c: how the last bulk WR went that was cut the short way. Another of this kind has other addresses only. */
struct dp_way {
	uint64_t rkey; /* UINT64_MAX: there was none */
	uint64_t base; /* as in dp_qp.cut */
	uint64_t sge;  /* length and local key of its SGE */
	uint64_t gen;	/* dp_ctx.lkeys_gen, when its local keys were looked up */
	enum ibv_wr_opcode opcode;
	unsigned flags; /* of its op, but for SIGNALED */
	unsigned bytes_on; /* so many rails */
	bool pair;	   /* there are two rails, and each has a part */
	bool noted;	   /* .way_noted of some rail */
	const struct dp_rkeys *keys; /* of no shift */
	struct dp_part part[DP_MAX_RAILS]; /* of rail[].way_wr */
};

struct dp_bond; /* bond.c */
struct dp_tell; /* tell.c */
struct dp_qpex;

struct dp_qp {
	dp_fast lock; /* the first: its address is at hand */
	struct ibv_qp *qp; /* not to be followed once destroyed is set */
	uint32_t qp_num;
	struct dp_ctx *c;
	struct dp_pd *pd;
	struct dp_cq *scq, *rcq; /* valid until destroyed */
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr); /* the provider's */
	_Atomic int state; /* enum dp_qp_state; written with ctl, scq->lock and lock held */
	dp_lock ctl;
	_Atomic uint32_t refs;
	bool destroyed;
	bool going; /* with lock: the program's destroy or RESET is under way, nothing of ours may touch qp any more */
	int fallback; /* enum dp_fallback why it can never bond, or -1 */

	/* from the program */
	struct ibv_qp_cap cap;
	unsigned sig_all; /* sq_sig_all: DP_OP_SIGNALED, else 0 */
	enum ibv_qp_state qp_state; /* as the program set it */
	struct ibv_qp_attr init, rtr, rts; /* the attributes of these transitions, valid by qp_state */
	uint32_t incarnation; /* raised at each RESET */
	union ibv_gid gid; /* by which peers know it; with ctl, from RTR on */

	/* with lock */
	uint32_t nrails;
	uint32_t ntwins; /* with rail 0, and those that are mute, which stand last */
	struct dp_rail *rail; /* [ntwins] */
	struct dp_rail *spare; /* spare.c, idx 0; NULL: there is none */
	struct dp_order order;
	struct dp_slot *slot;	   /* [order.mask + 1] */
	struct dp_plan_policy policy;
	struct {
		uint64_t base, len; /* len 0: none */
		unsigned n;
		struct dp_part part[DP_MAX_RAILS];
	} cut;			   /* the last of dp_plan_cut(): equal places and lengths are cut equally */
	uint64_t rtt_ns;	   /* the shortest seen; 0: unknown */
	struct dp_rpd *rpd;	   /* the peer's remote keys; dp_qp_set_rpd() */
	const struct dp_rkeys *known; /* the last that were found there, of known_rkey; NULL: none. rkeys.c unsets it */
	uint32_t known_rkey;
	uint64_t lone_rkey;	   /* known_rkey, if it is known and asks for nothing, shifts included; else UINT64_MAX */
	/* One past the newest op that was placed with a shift, or by a key of which nothing was known, which may have one; 0: none. */
	uint64_t shifted, unplaced;
	struct dp_way way;
	uint64_t spread_min;	   /* dp_cfg's, at hand */
	struct dp_flow *flow0;	   /* rail[0].flow; NULL: before it is bonded */
	bool busy;		   /* counted in scq->busy */
	uint64_t stuck_said;	   /* stuck.c: when its last line was written, and how many WRs were overdue since */
	uint64_t stuck_more;
	struct dp_copies copies;
	struct ibv_send_wr *bad;   /* of a session, which nobody reads */
	bool retry;		   /* rail 0's queue had no room for what may go: on the ready list until it has */
	enum dp_wait_cause event;  /* what may let the first of the queue go */
	bool sibling_refused;	   /* a twin took not what it should have taken */
	bool unrecorded;	   /* an op could not be recorded: never bond */
	_Atomic bool binding;	   /* bind.c: the provider's bind_mw may post the request that is being recorded */
	bool watched;		   /* counted in scq->active; with scq->lock */

	/* failing (fail.c), with scq->lock and lock */
	enum ibv_wc_status fail_status; /* of the sibling's error, for the first op it hit */
	uint64_t fail_wr_id;
	uint64_t fail_pos, fail_next; /* that op, UINT64_MAX: unknown; the next from it on that must be told of */
	bool fail_reported;
	bool fail_told;		   /* an arm found something to be given; until that was all given */
	bool fail_waits;	   /* BONDED: a sibling has failed fail_pos, and what stands before it is waited for */
	uint64_t fail_before;	   /* rail 0 has done all ops before this one well; 0: that is not known */
	bool fail_seen0;	   /* rail 0's first error was read: no good completion follows */
	bool fail_refused;	   /* what began it: the provider took not what was queued */
	uint64_t fail_pos0, fail_errors0; /* the op of that error, and how many errors of sends were read */
	bool twins_err;		   /* the twins were moved to ERR */
	uint64_t fail_since, fail_deadline;
	struct dp_stash *tail_wcs, **tail_end; /* CQEs from the first error on, given unchanged at the end */
	struct dp_stash *fakes, **fakes_end; /* then of what the provider never took, from op fake_pos on */
	uint64_t fake_pos; /* UINT64_MAX: there was none */

	bool on_ready;
	uint64_t ready_turn;
	uint64_t stash_turn; /* of what was read ahead of it last, 0: nothing; with scq->lock */
	struct dp_qp *ready_next;

	struct dp_qpex *ex; /* qpex.c; NULL: it has no ibv_wr_* */
	struct dp_bond *bond; /* with ctl */
	struct dp_tell *tell; /* with ctl */
	bool loopback;	      /* connected to itself; set before it is bonded */
	bool twins_sqd;	      /* they drain, with the program's QP; with ctl */
	bool settled;	      /* bonded, or never will be; bond_life.c, its lock */
};

extern DP_HIDDEN struct dp_hmap dp_qps; /* ibv_qp pointer -> struct dp_qp */

struct dp_qp *dp_qp_find(struct ibv_qp *qp);
void dp_qp_hold(struct dp_qp *q);
void dp_qp_put(struct dp_qp *q);
/* The QP of this process with that number on the port with that GID, held; NULL if there is none. */
struct dp_qp *dp_qp_by_address(const union ibv_gid *gid, uint32_t qpn);
void dp_qp_each(void (*fn)(struct dp_qp *q, void *arg), void *arg);

struct ibv_qp *dp_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *dp_create_qp_ex(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr);
int dp_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int dp_destroy_qp(struct ibv_qp *qp);
struct ibv_qp_ex *dp_qp_to_qp_ex(struct ibv_qp *qp);
int dp_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags);
void dp_direct_access(struct ibv_qp *qp, struct ibv_cq *cq);

/* post.c */
int dp_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);

/* bind.c */
int dp_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
/* Is this thread in the provider's bind_mw for q, and what it posts recorded already? */
bool dp_bind_posts(const struct dp_qp *q);

/* release.c. Posts what may go of q's queue; with q->lock held. When a rail refuses, the QP has to fail (fail.c). */
enum dp_release { DP_RELEASED, DP_REFUSED0, DP_REFUSED };
enum dp_release dp_qp_release(struct dp_qp *q);
/* With q->lock held: keeps q->busy and scq->busy up to date and wakes progress.c. */
void dp_qp_update_busy(struct dp_qp *q);

#endif

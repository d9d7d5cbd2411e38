/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef CLIENTS_DF_H
#define CLIENTS_DF_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "rc_pair.h"
#include "rng.h"

/*
 * dataflag: data WRITEs, then one flag; whoever sees the flag must see all the data. See dataflag.c for the rules.
 * Everything about a round (targets, sizes, pattern, kind of flag) follows from (seed, direction, qp, round), so
 * both ends know it without telling each other.
 */
#define DF_MAX_WRITES	8
#define DF_MAX_WRS	12	/* of one round: writes, one overlap, one read-back, the flag, one of --break */
#define DF_MAX_SGE	4
#define DF_GUARD	4096	/* bytes around each slot that nobody may write */
#define DF_GAP		96	/* at most, between two targets and between two SGEs */
#define DF_RB_MAX	32768	/* largest read-back */
#define DF_RB_RING	8
#define DF_FLAG_STRIDE	64	/* one flag word per line, the rest of the line must stay 0 */
#define DF_MSG		32	/* bytes of a SEND */

enum df_kind { K_FETCH_ADD, K_CMP_SWAP, K_INLINE, K_WRITE8, K_SEND, K_SEND_IMM, K_WRITE_IMM, K_MAX };
enum df_post { POST_CHAIN, POST_SINGLE, POST_RANDOM };
enum df_signal { SIG_ALL, SIG_FLAG, SIG_RANDOM };
enum df_wait { WAIT_POLL, WAIT_EVENT, WAIT_FD };
enum df_mode { MODE_FORK, MODE_SAME, MODE_SERVER, MODE_CLIENT };
enum df_reg { REG_MR, REG_IOVA, REG_IOVA2, REG_EX };
enum df_break { BREAK_NONE, BREAK_FLAG_FIRST, BREAK_OUTSIDE, BREAK_LOST, BREAK_GHOST };

extern const char *const df_kind_name[K_MAX];

struct df_cfg {
	const char *load, *lib, *dev, *peer_dev, *host;
	enum df_mode mode;
	int tcp_port, ib_port, gid;
	uint64_t seed;
	unsigned int qps, threads, window, rounds, max_writes, max_sge, depth;
	uint64_t min, max;
	unsigned int kinds;		/* bit mask of df_kind */
	bool kinds_random;
	enum df_post post;
	enum df_signal signal;
	unsigned int signal_every;
	bool cq_all, cq_split;
	enum df_wait wait;
	bool credit_send, bidir, mixed, relaxed;
	bool wr, cq_ex, stamps;		/* ibv_wr_*, extended CQs, with time stamps */
	enum df_reg reg;
	enum df_break sabotage;
	unsigned int reads, readback, overlap, fence;	/* reads: batches per QP; the others: percent of rounds */
	unsigned int hold_us, settle_ms, timeout_s, inline_max, mtu, qp_timeout;
};

struct df_write {
	uint64_t off, len, key;		/* off: from the start of the slot's data area */
	unsigned int nsge;
	uint64_t cut[DF_MAX_SGE];	/* length of each SGE */
	bool inl;
};

struct df_round {
	unsigned int n;
	struct df_write w[DF_MAX_WRITES + 1];
	enum df_kind kind;
	uint64_t end;			/* no target reaches beyond this offset */
};

/* What one end tells the other about one QP. */
struct df_ep_addr {
	struct rc_addr rc;
	uint64_t slots, flags, rsrc;
	uint32_t slots_rkey, flags_rkey, rsrc_rkey, pad;
};

struct df_expect {
	uint64_t wr_id, pos;
	enum ibv_wc_opcode opcode;
	int64_t byte_len;		/* -1: not defined for this opcode */
};

struct df_msg {
	enum df_kind kind;
	uint64_t round;
};

/* Something local that is right only once the WR at `pos` has completed. */
struct df_check {
	uint64_t pos, key, off, len;	/* len 0: an atomic's result, which must be 0 */
	const void *buf;
};

struct df_cq {
	struct ibv_cq *cq;
	pthread_mutex_t lock;		/* poll and dispatch are one step, or order could not be checked */
	unsigned int events;		/* not acknowledged yet */
};

struct df_side;

struct df_ep {
	struct df_side *side;
	unsigned int idx;
	struct ibv_qp *qp;
	struct df_cq *scq, *rcq;
	struct df_ep_addr peer;
	pthread_mutex_t lock;		/* everything below that posting and dispatch share */

	/* send queue */
	uint64_t posted;
	_Atomic uint64_t done;
	unsigned int unsig_run;
	struct df_expect *expect;	/* ring of depth */
	uint64_t exp_head, exp_tail;
	uint64_t stamp, rq_stamp;	/* of the last completion */
	struct rng rng;
	struct df_check *checks;	/* ring of depth */
	uint64_t chk_head, chk_tail;

	/* receive queue */
	uint8_t *rbuf;
	struct ibv_mr *rbuf_mr;
	unsigned int rq_depth;
	uint64_t rq_posted, rq_done;
	struct df_msg *msgs;		/* ring of rq_depth */
	uint64_t msg_head, msg_tail;

	/* sender */
	uint8_t *src, *small, *rb, *rdst;
	struct ibv_mr *src_mr, *small_mr, *rb_mr, *rdst_mr;
	uint64_t src_stride, tx_next;
	_Atomic uint64_t tx_credit;	/* by SEND; the word in `flags` by WRITE */
	uint64_t rb_busy[DF_RB_RING];	/* position + 1 of the READ that fills it */
	unsigned int reads_done, rd_n;
	uint64_t rd_pos;
	struct { uint64_t dst, off, len; } rd[DF_MAX_WRITES * DF_MAX_SGE];

	/* receiver */
	uint8_t *slots, *image, *rsrc;
	uint8_t *flags;
	struct ibv_mr *slots_mr, *flags_mr, *rsrc_mr;
	uint64_t rx_next, rx_freed, rx_told;
	struct df_round *plan;		/* rings of window: what is awaited, and when it was seen */
	uint64_t *hold_since;
};

struct df_side {
	const struct df_cfg *cfg;
	struct rc_dev dev;
	const char *role;
	unsigned int dir;		/* 0: client to server; what this side sends has direction `dir` */
	bool sends, receives;
	int oob;
	uint64_t slot_stride, flags_len, rsrc_len;
	struct df_ep *ep;
	struct df_cq *cqs;
	unsigned int ncqs;
	struct ibv_comp_channel *chan;
	pthread_t cq_thread;
	int stop_fd;
	_Atomic bool stop, failed;
	_Atomic uint64_t rounds_sent, rounds_seen, wrs, signalled, cqes, recvs, reads, bytes, posts;
	_Atomic uint64_t violations, guards, ghosts, errors, events;
};

/* df_plan.c */
void df_plan(const struct df_cfg *c, unsigned int dir, unsigned int qp, uint64_t round, struct df_round *r);
uint64_t df_area(const struct df_cfg *c);	/* bytes of a slot's data area */
uint64_t df_src_stride(const struct df_cfg *c);
void df_image(const struct df_round *r, uint8_t *slot, uint64_t slot_stride); /* what the slot must look like */

/* df_setup.c */
int df_side_init(struct df_side *s);		/* -errno after a line that says why */
void df_side_fini(struct df_side *s);		/* counts errors of destroy calls in s->errors */

/* df_cq.c */
int df_poll(struct df_side *s, struct df_cq *cq); /* completions handled; takes cq->lock, 0 if another has it */
int df_cq_start(struct df_side *s);		/* the thread that waits on the channel, if one is wanted */
void df_cq_stop(struct df_side *s);
int df_post_recv(struct df_ep *ep);		/* ep->lock held, or nobody else knows the QP yet */
void df_error(struct df_side *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* df_tx.c, df_rx.c: one step; true if anything was done */
bool df_tx(struct df_ep *ep);
bool df_tx_done(struct df_ep *ep);
bool df_rx(struct df_ep *ep);
bool df_rx_done(struct df_ep *ep);
int df_credit(struct df_ep *ep, uint64_t total);	/* -EAGAIN: no room in the send queue */
void df_checks(struct df_ep *ep);		/* what completions have made checkable */
int df_last(struct df_ep *ep);			/* a signalled empty WRITE that everything unsignalled rides on */

static inline _Atomic uint64_t *df_flag(uint8_t *flags, unsigned int slot)
{
	return (_Atomic uint64_t *)(void *)(flags + (uint64_t)slot * DF_FLAG_STRIDE);
}

static inline uint64_t df_rsrc_key(const struct df_cfg *c, unsigned int dir, unsigned int qp)
{
	return mix64(c->seed ^ mix64(0x7265616400000000ull + (dir << 16) + qp));
}

#endif

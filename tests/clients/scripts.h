/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef CLIENTS_SCRIPTS_H
#define CLIENTS_SCRIPTS_H

#include "ex.h"
#include "mini.h"

#define PAIRS 3
#define CQS 3			/* of each side, at most */
#define AREA (320u << 10)	/* of memory to send from, to read into, to write to */
#define USED (AREA - 64)	/* the rest is for flags */
#define SLOT (24u << 10)	/* of memory to receive into */
#define SLOTS 64
#define DEPTH 64
#define RECVS 40
#define INL 64
#define SGES 4
#define LOG 600			/* requests, and completions, of one QP between two reports */

/* What is known of a request. */
struct sent {
	uint64_t id;
	enum ibv_wr_opcode op;
	bool sig;
	size_t roff, rlen, loff, llen;	/* what it touches at the peer; where its response lands */
};

struct req {
	struct ibv_send_wr wr;
	struct ibv_sge sge[8];
	struct sent is;
	uint8_t inl[INL];
};

struct got {
	struct ibv_wc wc;
	uint64_t sum;		/* of what was received */
	unsigned int cq;
};

/* One QP, and the memory that its requests use: of its side, and of the peer's. */
struct way {
	unsigned int no, pair, side;
	char name[4];
	struct way *peer;
	struct ibv_qp *qp;
	struct ibv_qp_cap cap;
	unsigned int scq, rcq;
	uint8_t *src, *land, *slots;
	struct ibv_mr *src_mr, *src_mr2, *land_mr, *slots_mr;
	uint8_t *target, *other_target;
	struct ibv_mr *target_mr;
	uint64_t target_base;		/* what the peer's region calls it */
	uint8_t *target_dark, *land_dark; /* a byte for each: not known since requests failed */
	uint64_t next_id;
	struct sent log[LOG];		/* posted since the last report */
	unsigned int nlog;
	struct got sends[LOG], recvs[LOG];
	unsigned int nsends, nrecvs, want_sends, want_recvs;
	unsigned int avail;		/* receives that nothing that was sent will take */
	unsigned int next_slot;
	unsigned int used;		/* of the send queue since it was last known to be empty */
	struct sent reads[LOG];		/* which nothing has waited for */
	unsigned int nreads;
	struct sent recent[4];		/* made lately */
	unsigned int nrecent;
	bool events[32];
};

struct side {
	struct rc_dev dev;
	struct ibv_comp_channel *ch;
	struct ibv_cq *cq[CQS];
	bool ex[CQS], stamps[CQS], armed[CQS];
	unsigned int ncq;
	struct ibv_srq *srq;
	uint8_t *srq_slots;
	struct ibv_mr *srq_mr;
	unsigned int srq_avail, srq_next;
};

extern struct mini sm;
extern struct side sides[2];
extern struct way ways[2 * PAIRS];
extern unsigned int nways;
extern bool ex_qp, sig_all;
extern struct rng luck;			/* for what depends on timing anyway: how often is polled */

#define REMOTE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | \
		IBV_ACCESS_MW_BIND)
#define RECV_ID (UINT64_C(1) << 63)
#define say printf

uint64_t sum_of(const uint8_t *p, const uint8_t *dark, size_t len);

/* ---- scripts_wr.c ---- */
void req_make(struct way *w, struct rng *r, struct req *q, enum ibv_wr_opcode op, bool bulk);
void req_any(struct way *w, struct rng *r, struct req *q, bool recvs); /* recvs: perhaps one that takes a receive */
void req_at(struct way *w, struct rng *r, struct req *q, size_t roff, size_t len);	/* a WRITE, of one SGE, not inline */
void req_flag(struct way *w, struct req *q, const uint64_t *value, size_t roff);	/* inline, signalled */
bool req_takes_recv(const struct req *q);
/* Posts receives for those that take one, then the list; returns what posting did. taken: how many were. */
int post_reqs(struct way *w, struct req *q, unsigned int n, unsigned int *taken);
int post_only(struct way *w, struct req *q, unsigned int n, unsigned int *taken);	/* without receives */
void post_recvs(struct way *w, struct rng *r, unsigned int n);
void darken(struct way *w, const struct sent *s);

/* ---- scripts_poll.c ---- */
bool pump(void);			/* reads something of each CQ */
bool pump_one(unsigned int side, unsigned int cq); /* one completion */
bool wait_wanted(void);			/* until each QP has what it wants; false: not so */
void report(void);			/* what has come, for each QP; nothing is wanted then */
void memory(unsigned int pair);		/* sums of what is there */
void collect_events(int ms);
bool wait_event(struct way *w, enum ibv_event_type t, int ms);
void say_events(void);

/* ---- scripts.c ---- */
void *need(void *p, const char *what);
void new_qp(struct way *w);
void new_target(struct way *w);		/* registers it */
void join(unsigned int pair, struct rng *r);

/* ---- scripts_steps.c ---- */
const char *state_of(struct way *w);
struct way *any_way(struct rng *r);
bool quiesce(void);			/* everything that was posted is done, and told */
/* Posts n requests by chance, in some lists, and receives for them; recvs: there may be some that take one. */
void load(struct way *w, struct rng *r, unsigned int n, bool recvs);
void step_traffic(struct rng *r);
void step_message(struct rng *r);
void step_drain(struct rng *r);
void step_region(struct rng *r);
void step_refuse(struct rng *r);
void step_overfull(struct rng *r);
void step_window(struct rng *r);
void step_full(struct rng *r);
void step_storm(struct rng *r);

/* ---- scripts_fail.c ---- */
void recover(unsigned int pair, struct rng *r, bool told);	/* through ERR and RESET, or with new ones */
void step_fail(struct rng *r);
void step_leave(struct rng *r);
void step_abandon(struct rng *r);
void step_silence(struct rng *r);
void step_swap(struct rng *r);

#endif

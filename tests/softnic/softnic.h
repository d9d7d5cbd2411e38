/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * The objects of verbs as softnic has them. Each begins with what the program sees. All of a process's objects are
 * under one lock, the engine's; see engine.h.
 */
#ifndef SOFTNIC_H
#define SOFTNIC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

/* libibverbs' functions are what this library exports; everything else is hidden. */
#pragma GCC visibility push(default)
#include <infiniband/verbs.h>
#pragma GCC visibility pop

#include "host.h"

#define SN_MAX_MSG (1u << 30)
#define SN_DM_SIZE ((size_t)128 << 10) /* memory of a device, as ConnectX-5 */
#define SN_MAX_SGE 16
#define SN_MAX_WR 32768
#define SN_MAX_CQE 4194303
#define SN_MAX_INLINE 512
#define SN_MAX_RD_ATOMIC 16
#define SN_PKEY 0xffff
#define SN_MTU 4096
#define SN_GRH 40

#define sn_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))

struct sn_async;
struct sn_event;
struct sn_domain;

struct sn_ctx {
	struct verbs_context v; /* context, which the program sees, is its last member */
	uint32_t dev;
	uint32_t epoch;		/* of the engine when it was opened: a forked child cannot use it */
	STAILQ_HEAD(, sn_async) asyncs;
	LIST_ENTRY(sn_ctx) in_all;
	bool watched;		/* is in the list of all */
	uint64_t file;		/* whose numbers its objects have; an imported context has that of the other */
};

struct sn_pd {
	struct ibv_pd pd;
	uint32_t users;
	struct sn_pd *base;	/* whose objects may use each other: itself, or what it is the parent domain or an import of */
	bool import;
	bool gone;		/* it is no domain any more */
	bool left;		/* by the program; kept for its imports, or for its users, being one */
	uint32_t imports;
	uint64_t file;
	LIST_ENTRY(sn_pd) in_all;
};

/*
 * How registered memory is reached. Always in the process that owns it, so that memory that no other process can map
 * fits in. Addresses are of the memory itself, not IO virtual ones.
 */
struct sn_mem_ops {
	void (*read)(void *to, uint64_t from, size_t n);
	void (*write)(uint64_t to, const void *from, size_t n);
	/* both give what was there; addresses are multiples of 8 */
	uint64_t (*compare_swap)(uint64_t at, uint64_t compare, uint64_t swap);
	uint64_t (*fetch_add)(uint64_t at, uint64_t add);
};

/* What a key stands for: a memory region, or the part of one that a window is bound to. */
struct sn_mr {
	struct ibv_mr mr;
	const struct sn_pd *pd;	/* NULL: nothing, an unbound window */
	uint64_t iova;
	uint64_t at;		/* the memory's own address; mr.addr is what the program is told */
	unsigned int access;
	const struct sn_mem_ops *ops;
	uint8_t rtag;		/* low byte of its rkey */
	bool window;		/* has no lkey */
	bool import;		/* only numbers, of another's */
	uint64_t only;		/* the serial of the one QP that may use it; 0: all */
	uint32_t windows;	/* bound to it */
	uint32_t *dm_users;	/* of the device memory that it is of; NULL: the host's, or a GPU's */
};

struct sn_mw {
	struct ibv_mw mw;
	struct sn_mr win;
	struct sn_mr *base;	/* what it is bound to */
};

struct sn_ah {
	struct ibv_ah ah;
	struct ibv_ah_attr attr;
	int dev;		/* that has the address; -1: none */
};

struct sn_channel {
	struct ibv_comp_channel ch;
	TAILQ_HEAD(, sn_cq) raised; /* CQs with events that nobody took */
};

struct sn_qp;
struct sn_srq;

struct sn_cqe {
	struct ibv_wc wc;
	struct sn_qp *qp;
	struct sn_srq *srq;	/* one of its slots is free once this is polled; NULL: it is the QP's own queue */
	uint32_t slot;		/* SQ or RQ is free up to here then */
	uint64_t stamp, wall;	/* only if the CQ wants them */
	bool recv, solicited;
};

struct sn_cq {
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex ex;
	};
	bool single_threaded, ignore_overrun, stamps;
	pthread_mutex_t polling; /* from start_poll to end_poll */
	struct sn_cqe now;	/* that start_poll or next_poll found */
	uint32_t held;		/* taken, but their room is only given back by end_poll */
	struct sn_channel *channel; /* cq.channel is for the program, which may put another one there */
	struct sn_cqe *ring;
	uint32_t size, head;
	_Atomic uint32_t count;	/* read without the lock by poll_cq */
	enum { SN_UNARMED, SN_ARMED_SOLICITED, SN_ARMED } armed;
	bool overrun;
	uint32_t users;
	uint32_t raised;	/* events in the channel */
	uint32_t taken;		/* events that the program took; acknowledged: cq.comp_events_completed */
	uint32_t async_taken;
	TAILQ_ENTRY(sn_cq) in_channel;
};

/* What --adverse has drawn for a message; see adverse.h. */
struct sn_luck {
	uint64_t late;
	uint32_t gap, early;
};

struct sn_wqe {
	uint64_t wr_id, raddr, compare_add, swap;
	enum ibv_wr_opcode opcode;
	unsigned int flags;
	uint32_t len, rkey, imm;
	uint32_t srqn;		/* XRC: whose queue it is for */
	uint32_t psn, npsn;
	uint32_t got;		/* bytes of the response so far */
	uint64_t left;		/* UC, UD: when the port has sent it */
	union {
		struct {
			struct ibv_ah_attr av;
			const struct sn_pd *pd;
			int dev;
			uint32_t qpn, qkey;
		} ud;
		struct {
			uint32_t old_rkey, new_rkey, lkey;
			uint64_t addr, length;
			unsigned int access;
		} bind;
	};
	uint16_t nsge;
	bool signalled, numbered; /* numbered: has its psn */
	struct ibv_sge *sge;
	uint8_t *inl;
};

/*
 * Send queue. Counters of WQEs run free: free <= una <= cur <= tail. A slot is free only when a completion at or behind
 * it was polled, so free moves in poll_cq.
 */
struct sn_sq {
	struct sn_wqe *wqes;
	uint32_t size, max_sge, max_inline;
	struct ibv_sge *sges;
	uint8_t *inl;
	uint32_t free;
	uint32_t una;		/* oldest without its acknowledgement */
	uint32_t cur;		/* the next to send, or being sent */
	uint32_t off;		/* bytes of it that were sent */
	uint32_t tail;
	uint32_t psn;		/* of the next WQE that is sent for the first time */
	uint32_t acked;		/* the first PSN that was never acknowledged */
	uint32_t reads;		/* READs and atomics between una and cur */
	uint32_t retry_left, rnr_left;
	uint64_t rnr_until;	/* nothing is sent until then */
	uint64_t ack_at;	/* 0: no timer */
	uint64_t departed;	/* when the port will have sent what it was given */
	uint64_t last_due;
	bool waited;		/* for the port */
	struct sn_luck luck;
};

struct sn_rwqe {
	uint64_t wr_id;
	uint32_t len;
	uint16_t nsge;
	struct ibv_sge *sge;
};

/* Receive queue: of a QP, or shared. Counters run free: free <= head <= tail. */
struct sn_rq {
	struct sn_rwqe *wqes;
	struct ibv_sge *sges;
	uint32_t size, max_sge;
	uint32_t free, head, tail;
};

struct sn_srq {
	struct ibv_srq srq;
	const struct sn_pd *pd;
	struct sn_rq rq;	/* its counter "free" counts completions that were polled, of whatever slot */
	uint32_t max_wr, limit, users, async_taken;
	uint32_t num, dev, epoch;
	/* XRC: who may send to it, and where its completions go, whichever QP they are of */
	struct ibv_xrcd *xrcd;
	const struct sn_domain *domain;
	struct sn_cq *cq;
	LIST_ENTRY(sn_srq) in_all;
};

/* What a responder has to send, in order. */
enum sn_rsp_kind { SN_RSP_READ, SN_RSP_ATOMIC, SN_RSP_NAK };

struct sn_rsp {
	enum sn_rsp_kind kind;
	uint32_t psn;
	uint64_t raddr;
	uint32_t rkey, len, off;
	uint32_t srqn;		/* XRC: whose PD is to be looked at */
	uint64_t value;		/* of an atomic; of a NAK its code */
	uint8_t rnr_timer;
	bool again;		/* to a duplicate */
};

#define SN_RSPS (2 * SN_MAX_RD_ATOMIC + 4)

struct sn_responder {
	uint32_t epsn;
	bool nak_sent;		/* nothing but epsn is wanted now */
	bool closed;		/* a fatal NAK is queued or sent */
	bool ack_due;
	bool in_msg;
	uint32_t msg_off;	/* bytes of the message so far */
	uint64_t msg_raddr;
	uint32_t msg_rkey, msg_len;
	bool established;	/* the event was raised */
	bool have_rwqe;
	struct sn_rwqe rwqe;	/* copied when it was taken */
	struct ibv_sge rwqe_sge[SN_MAX_SGE];
	uint32_t rwqe_slot;
	struct sn_rsp rsps[SN_RSPS];
	uint32_t rsp_head, rsp_tail;
	/* results of atomics, for those that are asked again */
	struct { uint32_t psn; uint64_t value; bool valid; } done[SN_MAX_RD_ATOMIC];
	uint32_t done_at;
	uint64_t last_due;
	bool waited;		/* for the port */
	struct sn_luck luck;	/* of the response to a READ */
};

struct sn_qp {
	struct ibv_qp_ex ex;	/* its first member is what the program sees */
	uint64_t serial;	/* never used again, unlike its number */
	const struct sn_pd *pd;	/* XRC_RECV: of the SRQ that the request at hand is for */
	enum ibv_qp_state state; /* qp.state is what the program was told last */
	struct ibv_qp_attr attr;
	struct ibv_qp_cap cap;
	bool sig_all, drain_wanted;
	uint32_t dev, mtu;
	uint8_t lag;		/* the port of a bond that it leaves by, from 1 on; 0: its device is none */
	uint32_t async_taken;
	uint64_t since;		/* it can receive */
	int peer_dev;		/* -1: nobody has that address */
	uint32_t dest_qpn;
	struct sn_sq sq;
	struct sn_rq rq;
	struct sn_srq *srq;	/* in place of rq; XRC_RECV: of the message at hand, NULL: none */
	struct {
		bool offered;
		pthread_mutex_t lock;	/* from ibv_wr_start() to ibv_wr_complete() */
		uint32_t n;		/* WQEs behind the tail of the SQ that are being filled */
		struct sn_wqe *wqe;	/* the last of them; NULL: it went wrong */
		int err;
	} build;
	struct sn_responder rsp;
	bool ready, requests_turn;
	TAILQ_ENTRY(sn_qp) in_ready;
	LIST_ENTRY(sn_qp) in_all;
	/* XRC_RECV: what the program has are handles, of which only this is used */
	struct sn_qp *behind;	/* NULL: it is no handle */
	struct ibv_xrcd *xrcd;
	LIST_ENTRY(sn_qp) in_handles;
	/* and of what is behind them, without a context, this */
	LIST_HEAD(, sn_qp) handles;
	const struct sn_domain *domain;
};

static inline struct sn_ctx *sn_ctx(struct ibv_context *c)
{
	return sn_of(c, struct sn_ctx, v.context);
}

static inline struct sn_qp *sn_qp(struct ibv_qp *q)
{
	return (struct sn_qp *)q;
}

static inline struct ibv_qp *sn_ibqp(struct sn_qp *q)
{
	return &q->ex.qp_base;
}

static inline const struct sn_pd *sn_base_pd(struct ibv_pd *pd)
{
	return ((struct sn_pd *)pd)->base;
}

static inline struct sn_cq *sn_cq(struct ibv_cq *c)
{
	return (struct sn_cq *)c;
}

/* What a program's QP stands for. */
static inline struct sn_qp *sn_qp_behind(struct ibv_qp *q)
{
	return sn_qp(q)->behind ? sn_qp(q)->behind : sn_qp(q);
}

/* It neither waits for acknowledgements nor sends any. */
static inline bool sn_unreliable(const struct sn_qp *q)
{
	return q->ex.qp_base.qp_type == IBV_QPT_UC || q->ex.qp_base.qp_type == IBV_QPT_UD;
}

static inline bool sn_is_xrc_send(const struct sn_qp *q)
{
	return q->ex.qp_base.qp_type == IBV_QPT_XRC_SEND;
}

static inline bool sn_is_xrc_recv(const struct sn_qp *q)
{
	return q->ex.qp_base.qp_type == IBV_QPT_XRC_RECV;
}

static inline bool sn_is_ud(const struct sn_qp *q)
{
	return q->ex.qp_base.qp_type == IBV_QPT_UD;
}

static inline bool sn_receives(const struct sn_qp *q)
{
	return q->state >= IBV_QPS_RTR && q->state <= IBV_QPS_SQE;
}

static inline struct sn_wqe *sn_wqe(struct sn_sq *s, uint32_t i)
{
	return &s->wqes[i % s->size];
}

/* Where its inline data go. */
static inline uint8_t *sn_wqe_inline(struct sn_qp *q, const struct sn_wqe *w)
{
	return q->sq.inl + (size_t)(w - q->sq.wqes) * q->sq.max_inline;
}

/* ---- front end, called by verbs_context's slots ---- */

int sn_query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in,
		       struct ibv_device_attr_ex *attr, size_t size);
int sn_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *attr, size_t size);
int sn_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int sn_req_notify_cq(struct ibv_cq *cq, int solicited);
struct ibv_cq_ex *sn_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *attr);
int sn_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);
int sn_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int sn_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int sn_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct ibv_qp *sn_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr);
struct ibv_xrcd *sn_open_xrcd(struct ibv_context *c, struct ibv_xrcd_init_attr *attr);
int sn_close_xrcd(struct ibv_xrcd *xrcd);
struct ibv_srq *sn_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *attr);
int sn_get_srq_num(struct ibv_srq *srq, uint32_t *num);
struct ibv_qp *sn_open_qp(struct ibv_context *c, struct ibv_qp_open_attr *attr);
struct ibv_mw *sn_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int sn_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
int sn_dealloc_mw(struct ibv_mw *mw);
struct ibv_td *sn_alloc_td(struct ibv_context *c, struct ibv_td_init_attr *attr);
int sn_dealloc_td(struct ibv_td *td);
struct ibv_pd *sn_alloc_parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *attr);
int sn_query_rt_values(struct ibv_context *c, struct ibv_values_ex *values);
struct ibv_dm *sn_alloc_dm(struct ibv_context *c, struct ibv_alloc_dm_attr *attr);
int sn_free_dm(struct ibv_dm *dm);
struct ibv_mr *sn_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t off, size_t length, unsigned int access);
int sn_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *sges, uint32_t n);

/* Without the attributes that the kernel's uverbs ignores since the QP has no use for them. */
int sn_modify_mask(enum ibv_qp_type type, int mask);
/* May the state change so, with these attributes? (IBTA 11.2.5.2; the kernel's ib_modify_qp_is_ok) */
bool sn_modify_ok(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to, int mask);

/* ---- within the front end ---- */

#define SN_REMOTE_ACCESS (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* An object of the domain begins or ends. With the lock. */
void sn_pd_use(struct ibv_pd *pd);
void sn_pd_drop(struct ibv_pd *pd);
/* 0 or a positive errno; the struct is the caller's. With the lock. */
int sn_mr_end(struct sn_mr *mr);
/* A context of that device and file; cmd_fd is its own from then on. */
struct ibv_context *sn_open(uint32_t dev, int cmd_fd, uint64_t file);
/* A file descriptor, and the number of its file; -1: errno says why. */
int sn_file_new(uint32_t dev, uint64_t *file);
/* A QP without a context, and its end; NULL: no memory. */
struct sn_qp *sn_qp_new(uint32_t dev, enum ibv_qp_type type, const struct ibv_qp_cap *cap);
void sn_qp_free(struct sn_qp *q);
/* Gives it a number, and takes it back. c: on whose behalf. False: none is left. With the lock. */
bool sn_qp_begin(struct sn_qp *q, struct ibv_context *c);
void sn_qp_end(struct sn_qp *q, struct ibv_context *c);
struct ibv_qp *sn_xrc_create_recv(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr);
int sn_xrc_destroy_recv(struct ibv_qp *qp);
/* An object of the domain begins or ends. With the lock. */
const struct sn_domain *sn_xrcd_use(struct ibv_xrcd *x);
void sn_xrcd_drop(struct ibv_xrcd *x);
/* xrcd, cq: NULL, or those of an XRC SRQ. */
struct ibv_srq *sn_srq_new(struct ibv_pd *pd, void *srq_context, struct ibv_srq_attr *attr, struct ibv_xrcd *xrcd,
			   struct ibv_cq *cq);
int sn_rq_alloc(struct sn_rq *rq, uint32_t max_wr, uint32_t max_sge);
void sn_rq_free(struct sn_rq *rq);
uint32_t sn_power_of_two(uint32_t at_least);
/* The slot for the WQE that is n behind the tail, cleared; NULL: there is no room. */
struct sn_wqe *sn_wqe_new(struct sn_qp *q, uint32_t n);
/* Whether a filled WQE may be posted; 0 or a positive errno. */
int sn_wqe_check(const struct sn_qp *q, const struct sn_wqe *w);
void sn_wqe_address(struct sn_wqe *w, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey);
int sn_wqe_bind(struct sn_wqe *w, const struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info);
/* n more WQEs are in the SQ. */
void sn_sq_advance(struct sn_qp *q, uint32_t n);
/* Offers ibv_wr_*; 0 or a positive errno. */
int sn_wr_offer(struct sn_qp *q, uint64_t ops);
bool sn_op_offered(enum ibv_qp_type type, enum ibv_wr_opcode op);
int sn_av_check(uint32_t dev, const struct ibv_ah_attr *a); /* 0 or a positive errno */
int sn_av_device(const struct ibv_ah_attr *a);		    /* that has the address; -1: none */
/* Takes the first completion, which frees its slot. With the lock. */
bool sn_cq_take(struct sn_cq *cq, struct sn_cqe *cqe);
struct sn_cq *sn_cq_new(struct ibv_context *c, int cqe, void *cq_context, struct ibv_comp_channel *channel,
			uint32_t vector);
void sn_count_event(int fd);
extern pthread_cond_t sn_acknowledged;	/* of events, of any object */

/* ---- front end, called by the engine with the lock held ---- */

/* Memory windows; MW_BIND_ERR if it cannot be. */
enum ibv_wc_status sn_bind(struct sn_qp *q, const struct sn_wqe *w);
enum ibv_wc_status sn_invalidate(struct sn_qp *q, uint32_t rkey);

void sn_cq_push(struct sn_cq *cq, const struct sn_cqe *cqe);
void sn_cq_forget(struct sn_cq *cq, const struct sn_qp *qp);	/* drops a QP's completions */
void sn_cq_forget_srq(struct sn_cq *cq, const struct sn_srq *srq);
void sn_async_raise(struct sn_ctx *c, enum ibv_event_type type, void *element);
void sn_qp_raise(struct sn_qp *q, enum ibv_event_type type);
/* What a context leaves behind when it goes. False: others have this QP still. */
bool sn_xrc_forget(struct sn_qp *q, const struct ibv_context *c);
void sn_xrcd_forget(const struct ibv_context *c);
void sn_srq_forget(const struct ibv_context *c);
void sn_async_drop(struct sn_ctx *c);	/* the context goes: drops what nobody took */
/* Before an object goes: drops its events that nobody took, and waits until the others are acknowledged. */
void sn_async_settle(struct sn_ctx *c, void *element, const uint32_t *taken, const uint32_t *completed,
		     pthread_mutex_t *mutex);
/* Are as many events acknowledged as were taken? */
bool sn_acked(const uint32_t *taken, const uint32_t *completed, pthread_mutex_t *mutex);

#endif

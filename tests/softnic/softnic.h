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
#define SN_MAX_SGE 16
#define SN_MAX_WR 32768
#define SN_MAX_CQE 4194303
#define SN_MAX_INLINE 512
#define SN_MAX_RD_ATOMIC 16
#define SN_PKEY 0xffff

#define sn_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))

struct sn_async;
struct sn_event;

struct sn_ctx {
	struct verbs_context v; /* context, which the program sees, is its last member */
	uint32_t dev;
	uint32_t epoch;		/* of the engine when it was opened: a forked child cannot use it */
	STAILQ_HEAD(, sn_async) asyncs;
};

struct sn_pd {
	struct ibv_pd pd;
	uint32_t users;
	struct sn_pd *base;	/* whose objects may use each other: itself, or what it is the parent domain of */
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
	unsigned int access;
	const struct sn_mem_ops *ops;
	uint8_t rtag;		/* low byte of its rkey */
	bool window;		/* has no lkey */
	uint64_t only;		/* the serial of the one QP that may use it; 0: all */
	uint32_t windows;	/* bound to it */
};

struct sn_channel {
	struct ibv_comp_channel ch;
	TAILQ_HEAD(, sn_cq) raised; /* CQs with events that nobody took */
};

struct sn_qp;

struct sn_cqe {
	struct ibv_wc wc;
	struct sn_qp *qp;	/* NULL: it is gone */
	uint32_t slot;		/* SQ or RQ is free up to here once this is polled */
	bool recv, solicited;
};

struct sn_cq {
	struct ibv_cq cq;
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

struct sn_wqe {
	uint64_t wr_id, raddr, compare_add, swap;
	enum ibv_wr_opcode opcode;
	unsigned int flags;
	uint32_t len, rkey, imm;
	uint32_t psn, npsn;
	uint32_t got;		/* bytes of the response so far */
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

/* What a responder has to send, in order. */
enum sn_rsp_kind { SN_RSP_READ, SN_RSP_ATOMIC, SN_RSP_NAK };

struct sn_rsp {
	enum sn_rsp_kind kind;
	uint32_t psn;
	uint64_t raddr;
	uint32_t rkey, len, off;
	uint64_t value;		/* of an atomic; of a NAK its code */
	uint8_t rnr_timer;
};

#define SN_RSPS (SN_MAX_RD_ATOMIC + 4)

struct sn_responder {
	uint32_t epsn;
	bool nak_sent;		/* nothing but epsn is wanted now */
	bool closed;		/* a fatal NAK is queued or sent */
	bool ack_due;
	bool in_msg;
	uint32_t msg_off;	/* bytes of the message so far */
	uint64_t msg_raddr;
	uint32_t msg_rkey, msg_len;
	bool have_rwqe;
	struct sn_rwqe rwqe;	/* copied when it was taken */
	uint32_t rwqe_slot;
	struct sn_rsp rsps[SN_RSPS];
	uint32_t rsp_head, rsp_tail;
	/* results of atomics, for those that are asked again */
	struct { uint32_t psn; uint64_t value; bool valid; } done[SN_MAX_RD_ATOMIC];
	uint32_t done_at;
	uint64_t last_due;
	bool waited;		/* for the port */
};

struct sn_qp {
	struct ibv_qp_ex ex;	/* its first member is what the program sees */
	uint64_t serial;	/* never used again, unlike its number */
	const struct sn_pd *pd;
	enum ibv_qp_state state; /* qp.state is what the program was told last */
	struct ibv_qp_attr attr;
	struct ibv_qp_cap cap;
	bool sig_all;
	uint32_t dev, mtu;
	uint32_t async_taken;
	int peer_dev;		/* -1: nobody has that address */
	uint32_t dest_qpn;
	struct sn_sq sq;
	struct sn_rq rq;
	struct sn_responder rsp;
	bool ready, requests_turn;
	TAILQ_ENTRY(sn_qp) in_ready;
	LIST_ENTRY(sn_qp) in_all;
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

static inline struct sn_wqe *sn_wqe(struct sn_sq *s, uint32_t i)
{
	return &s->wqes[i % s->size];
}

/* ---- front end, called by verbs_context's slots ---- */

int sn_query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in,
		       struct ibv_device_attr_ex *attr, size_t size);
int sn_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *attr, size_t size);
int sn_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int sn_req_notify_cq(struct ibv_cq *cq, int solicited);
int sn_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int sn_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct ibv_qp *sn_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr);

/* May the state change so, with these attributes? (IBTA 11.2.5.2; the kernel's ib_modify_qp_is_ok) */
bool sn_modify_ok(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to, int mask);

/* ---- front end, called by the engine with the lock held ---- */

void sn_cq_push(struct sn_cq *cq, const struct sn_cqe *cqe);
void sn_cq_forget(struct sn_cq *cq, struct sn_qp *qp);	/* drops a QP's completions */
void sn_async_raise(struct sn_ctx *c, enum ibv_event_type type, void *element);
/* Before an object goes: drops its events that nobody took, and waits until the others are acknowledged. */
void sn_async_settle(struct sn_ctx *c, void *element, const uint32_t *taken, const uint32_t *completed);

#endif

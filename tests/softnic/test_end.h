/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* What softnic's own tests share: ends of connections, each on a device, in one process or several. */
#ifndef SOFTNIC_TEST_END_H
#define SOFTNIC_TEST_END_H

#include <check.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

#include "../unit/run.h"

#define LEN (1u << 20)

struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	union ibv_gid gid;
	uint8_t *buf;		/* LEN bytes, registered with all access */
	uint32_t psn;
	uint16_t lid;
};

/* Zero: what most tests want. */
struct end_opts {
	uint32_t sq, rq, sge, inl;	/* 64, 64, 4, 64 */
	int no_sig_all;
	int type;			/* RC */
	uint32_t srq;			/* receives go to a shared queue of this size */
	uint32_t cqe;			/* 1024 */
	uint64_t send_ops;		/* for ibv_wr_* */
	uint64_t wc_flags;		/* an extended CQ with these */
	uint32_t cq_flags;
};

struct conn_opts {
	int mtu;			/* 4096 */
	int timeout, retry, rnr_retry;	/* 17 (0.5 s), 7, 7; minus one: zero */
	int rnr_timer;			/* 1 (10 us) */
	int rd, dest_rd;		/* 16; minus one: zero */
	int access;			/* WRITE, READ, atomic; minus one: none */
};

struct addr {
	uint32_t qpn, psn;
	uint16_t lid;			/* 0: RoCE */
	union ibv_gid gid;
};

struct ibv_context *open_dev(int dev);
void end_open(struct end *e, int dev, const struct end_opts *o);
void end_close(struct end *e);
struct addr end_addr(const struct end *e);

#define QKEY 0x11111111u

void address(struct ibv_ah_attr *a, const struct addr *peer);
int to_init(struct ibv_qp *qp, const struct conn_opts *o);
int to_rtr(struct ibv_qp *qp, const struct addr *peer, const struct conn_opts *o);
int to_rts(struct ibv_qp *qp, uint32_t psn, const struct conn_opts *o);
int to_state(struct ibv_qp *qp, enum ibv_qp_state s);
void connect_to(struct end *e, const struct addr *peer, const struct conn_opts *o);
void join(struct end *a, struct end *b, const struct conn_opts *o);

/* Both ends, on devices 0 and 1. */
void pair_open(struct end *a, struct end *b, const struct end_opts *eo, const struct conn_opts *co);
void pair_close(struct end *a, struct end *b);

/* Posts one WR: local and remote memory are the two ends' buffers, from the given bytes on. */
struct wr {
	enum ibv_wr_opcode op;
	uint32_t at, to, len;
	int flags;
	uint64_t arg, swap;
	uint32_t rkey, lkey;	/* in place of the right ones */
	uint32_t srqn;		/* XRC */
};
int post(struct end *e, const struct end *peer, uint64_t id, struct wr w);
int post_rx(struct end *e, uint64_t id, uint32_t at, uint32_t len);

bool poll_one(struct end *e, struct ibv_wc *wc, int ms);
/* The next completion, which must have this id and status. */
struct ibv_wc want(struct end *e, uint64_t id, enum ibv_wc_status status);
void want_none(struct end *e, int ms);

void fill(uint8_t *p, uint32_t n, uint32_t seed);
void check_filled(const uint8_t *p, uint32_t n, uint32_t seed);

#endif

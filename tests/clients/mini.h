/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef CLIENTS_MINI_H
#define CLIENTS_MINI_H

#include <stddef.h>
#include <stdbool.h>
#include <stdio.h>

#include "rc_pair.h"
#include "rng.h"

/* What the small clients share: options, and two ends of a connection in one process. */
struct mini {
	const char *name, *dev, *peer_dev, *load, *lib;
	int ib_port, gid;
	uint64_t seed;
	unsigned int count, settle_ms, timeout_s;
};

/*
 * Parses the options, loads libibverbs, starts a watchdog (exit status 3). Ends the process with 2 when it cannot.
 * Set name, count and timeout_s beforehand.
 */
void mini_start(struct mini *m, int argc, char **argv, const char *what);

extern unsigned int mini_failed;

/* A wrong result: counted, and said on stderr. */
#define CHECK(cond, ...)						\
	do {								\
		if (!(cond)) {						\
			mini_failed++;					\
			fprintf(stderr, "%s:%d: FAILED %s: ", __FILE__, __LINE__, #cond); \
			fprintf(stderr, __VA_ARGS__);			\
			fputc('\n', stderr);				\
		}							\
	} while (0)

void mini_nap(unsigned int ms);

int mini_end(const struct mini *m, const char *extra);	/* prints the summary, gives the exit status */

struct mend {
	struct rc_dev dev;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_qp_cap cap;
	uint8_t *buf;
	size_t len;
	struct ibv_mr *mr;
	uint32_t psn;
};

struct mend_want {
	size_t len;
	unsigned int depth, sge, inl, recvs;
};

/* Device, CQ, one QP in RESET and `len` bytes of zeroed, registered memory. 0 or -errno; prints the cause. */
int mend_open(struct mend *e, const struct mini *m, const char *dev, const struct mend_want *w);
int mend_new_qp(struct mend *e, const struct mend_want *w);	/* in place of e->qp, which is destroyed if there is one */
/* A CQ on the channel, or on none, and a QP, in place of what the end has. */
int mend_new_cq(struct mend *e, const struct mend_want *w, int cqe, struct ibv_comp_channel *on, void *cq_context);
int mend_join(struct mend *a, struct mend *b, const struct rc_opts *o);	/* a == b: a QP connected to itself */
void mend_close(struct mend *e);

/* The state that the QP is in, as query_qp tells it: "RTS", ... */
const char *mend_state(struct mend *e);

/* Posts one WR with one SGE in e's memory; returns what ibv_post_send returned. */
struct mwr {
	enum ibv_wr_opcode op;
	size_t off, len;		/* local */
	uint64_t raddr;
	uint32_t rkey;
	int flags;
	uint64_t id, arg;		/* arg: add or swap */
	uint64_t compare;
};
int mend_post(struct mend *e, const struct mwr *w);
int mend_recv(struct mend *e, size_t off, size_t len, uint64_t id);

/* Waits for one completion and checks its wr_id, status, qp_num and opcode. */
void mend_expect(struct mend *e, uint64_t id, enum ibv_wc_opcode op, int64_t byte_len);

/* Runs the cases one by one, each after its name: the one that CASE names, or all, but those named in SKIP. */
struct mini_case {
	const char *name;
	void (*fn)(void);
};
void mini_cases(const struct mini_case *c, size_t n);

#endif

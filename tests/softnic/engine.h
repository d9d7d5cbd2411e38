/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * The engine moves packets: it sends what is in the send queues at the pace of the ports, and takes in what is due.
 * It runs in program threads that post and poll, and in one thread of its own that sleeps while there is nothing to do
 * or while somebody polls.
 *
 * The front end (device.c, mr.c, cq.c, qp.c, post.c) makes objects, checks what the program gives, fills queues and
 * hands out completions; requester.c, responder.c, link.c and engine.c do the rest.
 */
#ifndef SOFTNIC_ENGINE_H
#define SOFTNIC_ENGINE_H

#include "softnic.h"

/* A context comes and goes; the engine's thread runs while there are any. 0 or -errno. */
int sn_engine_open(void);
void sn_engine_close(struct ibv_context *c);
void sn_engine_watch(struct sn_ctx *c);	/* it is ready for events of its port */
/* Another one after each fork: what belongs to an old one cannot be used. */
uint32_t sn_engine_epoch(void);

/* The lock of everything. Never held while the program's code runs or a call sleeps. */
void sn_lock(void);
void sn_unlock(void);
void sn_wait_unlocked(pthread_cond_t *c);	/* gives up the lock while it waits */

/* A poller found nothing: does a share of the engine's work if there is any. Without the lock. */
void sn_engine_poll(void);
void sn_polled(uint64_t when);	/* a poll in vain; 0: it found something, the program has other things to do */
/* Something was queued: does a share of the work. With the lock. */
void sn_engine_push(void);
/* The program is about to sleep: the engine's own thread takes over at once. */
void sn_engine_take_over(void);

/* With the lock, from here on. */

void sn_qp_attach(struct sn_qp *q);	/* it has its number now */
void sn_qp_detach(struct sn_qp *q);
struct sn_qp *sn_qp_find(uint32_t dev, uint32_t qpn);	/* NULL: there is none */
void sn_qp_srq_gone(const struct sn_srq *s);		/* it was an XRC one */
void sn_qp_ready(struct sn_qp *q);	/* it may have something to send */
void sn_qp_reset(struct sn_qp *q);	/* queues emptied, without completions */
void sn_qp_connect(struct sn_qp *q);	/* RTR: attr says to whom */
void sn_qp_rts(struct sn_qp *q);
void sn_qp_fail(struct sn_qp *q);	/* to ERR: all that is queued is flushed */

void sn_event_all(uint32_t dev, enum ibv_event_type type);	/* of the port, to all contexts of the device */
void sn_qp_break(uint32_t dev, uint32_t qpn);			/* fatal error of one; 0: of all of the device */

/* ---- keys and memory ---- */

extern const struct sn_mem_ops sn_host_memory;

int sn_key_add(uint32_t dev, struct sn_mr *mr);	/* sets lkey and rkey; -errno */
void sn_key_drop(uint32_t dev, struct sn_mr *mr);
void sn_keys_after_fork(void);
void sn_dm_after_fork(void);
/* Whether there is memory at all. */
bool sn_is_mapped(const void *addr, size_t length);
/* A region of length bytes at at, which the program reaches from 0 on. NULL: errno. */
struct ibv_mr *sn_reg_at(struct ibv_pd *pd, uint64_t at, size_t length, unsigned int access);

struct sn_span {
	const struct sn_mem_ops *ops;
	uint64_t addr;
	const struct sn_mr *mr;
};

/* The region or window, whether or not it may be used; NULL: none has this key, or (_key) one that differs in more
   than the low byte. */
struct sn_mr *sn_find_handle(uint32_t dev, uint32_t handle);
struct sn_mr *sn_find_key(uint32_t dev, uint32_t key);
struct sn_mr *sn_find_rkey(uint32_t dev, uint32_t rkey);
/* Local and remote access; IBV_WC_SUCCESS, or the status that the one at fault gets. Sets where the memory is. */
enum ibv_wc_status sn_local(uint32_t dev, const struct sn_pd *pd, uint32_t lkey, uint64_t addr, uint32_t len,
			    bool write, struct sn_span *span);
bool sn_remote(struct sn_qp *q, uint32_t rkey, uint64_t addr, uint32_t len, unsigned int access, struct sn_span *span);
/* Between a list of SGEs, from byte off on, and a buffer. pd: the QP's, or the SRQ's. */
enum ibv_wc_status sn_scatter(struct sn_qp *q, const struct sn_pd *pd, const struct ibv_sge *sge, int nsge,
			      uint32_t off, const void *from, uint32_t len);
enum ibv_wc_status sn_gather(struct sn_qp *q, const struct ibv_sge *sge, int nsge, uint32_t off, void *to,
			     uint32_t len);

#endif

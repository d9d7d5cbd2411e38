/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * Packets, and how they get from process to process. A packet here is up to SN_SEG bytes of one message, that is
 * several packets of a wire, and says of how many (npsn).
 *
 * From each process to each other there is one ring of headers and an array of payload slots in a shared file. The
 * sender owns the free slots; a receiver keeps a slot until its packet is due, so a late packet blocks no other.
 */
#ifndef SOFTNIC_PACKET_H
#define SOFTNIC_PACKET_H

#include "softnic.h"

#define SN_SEG 16384u
#define SN_TINY 96u	/* payload up to here travels in the header */
#define SN_NO_SLOT UINT32_MAX

enum sn_op {
	SN_SEND, SN_WRITE, SN_READ, SN_CAS, SN_FAA,	/* requests */
	SN_READ_RSP, SN_ATOMIC_RSP, SN_ACK, SN_NAK,	/* responses */
};

enum sn_nak { SN_NAK_SEQ, SN_NAK_RNR, SN_NAK_INVALID, SN_NAK_ACCESS, SN_NAK_OP };

enum sn_pkt_flags {
	SN_FIRST = 1,
	SN_LAST = 2,
	SN_IMM = 4,
	SN_SOLICITED = 8,
	SN_INV = 16,		/* imm is a key that the receiver makes invalid */
	SN_GLOBAL = 32,		/* UD: with a GRH */
};

struct sn_pkt {
	uint64_t due, sent;
	uint8_t op, flags, nak, rnr_timer;
	uint8_t src_dev, dst_dev, qp_type;
	uint16_t mtu;
	uint32_t src_qpn, dst_qpn;
	uint32_t psn, npsn;
	uint32_t gap, early;	/* from due until it is taken, ns; what is placed before that: the message from there on */
	uint32_t off, len;	/* of the message: where the payload belongs, and its length */
	uint32_t total, rkey;	/* of a WRITE, READ or SEND: the message's length, from its first packet on */
	uint64_t raddr;
	uint64_t compare_add, swap; /* the result of an atomic is in swap */
	uint32_t imm;
	uint32_t srqn;		/* XRC: of a request */
	uint32_t slot;
	uint8_t tiny[SN_TINY];
};

/* ---- link.c ---- */

/* Room for one packet to a process; NULL: none now, the bell will be rung. *payload: where its payload goes. */
struct sn_pkt *sn_link_begin(uint32_t proc, uint32_t gen, uint32_t payload_len, uint8_t **payload, bool *gone);
void sn_link_end(void);		/* the packet begun last is filled: sends it */
void sn_link_abandon(void);	/* or is not wanted */

/* Calls fn for each packet that came in, at most max. The packet is good during the call, its payload until freed. */
struct sn_from;
typedef void sn_link_fn(struct sn_from *from, const struct sn_pkt *p);
uint32_t sn_link_receive(sn_link_fn *fn, uint32_t max);
const uint8_t *sn_link_payload(struct sn_from *from, const struct sn_pkt *p);
void sn_link_hold(struct sn_from *from);	/* it is not freed in the call */
void sn_link_free(struct sn_from *from, const struct sn_pkt *p, bool held);
bool sn_link_pending(void);
void sn_link_flush(void);	/* rings the bells of those who got packets */
void sn_link_tidy(void);	/* rings of processes that are gone */
void sn_link_after_fork(void);

/* ---- port.c: clocks ---- */

/* From when on the port takes a packet of q for its peer, which is there. */
uint64_t sn_port_when(const struct sn_qp *q);
/* Charges both ports; gives when the packet has left, and when it is due. waited: for sn_port_when(), not for work. */
void sn_port_charge(const struct sn_qp *q, uint32_t bytes, bool waited, uint64_t now, uint64_t *left, uint64_t *due);
/* Control packets go between data, as on a wire where packets of many QPs alternate. */
void sn_port_control(uint32_t dev, uint32_t peer, uint64_t now, uint64_t *due);

/* ---- requester.c, responder.c ---- */

enum sn_step { SN_SENT, SN_IDLE, SN_LATER };

/* Sends one packet if there is one. SN_LATER: not before *when; UINT64_MAX: a bell will be rung. */
enum sn_step sn_requester_step(struct sn_qp *q, uint64_t now, uint64_t *when);
enum sn_step sn_responder_step(struct sn_qp *q, uint64_t now, uint64_t *when);
void sn_requester_in(struct sn_qp *q, const struct sn_pkt *p, const uint8_t *payload, uint64_t now);
void sn_responder_in(struct sn_qp *q, const struct sn_pkt *p, const uint8_t *payload, uint64_t now);
/* Acts if the timer has run out. When it must be called next; UINT64_MAX: never. */
uint64_t sn_requester_timer(struct sn_qp *q, uint64_t now);
/* A WRITE's packet lies here before its time: places what --adverse wants to be seen early. False: nothing yet. */
bool sn_responder_early(struct sn_qp *q, const struct sn_pkt *p, const uint8_t *payload);
void sn_requester_flush(struct sn_qp *q);
void sn_responder_flush(struct sn_qp *q);

/* Drained, in state SQD: says so if that is wanted. */
void sn_requester_drained(struct sn_qp *q);

/* ---- receive.c: receive WQEs, of the QP or its SRQ ---- */

bool sn_recv_take(struct sn_qp *q);	/* the next one into rsp.rwqe, unless there is one; false: none left */
/* It is done; p: what the last packet said, NULL: nothing. */
void sn_recv_done(struct sn_qp *q, const struct sn_pkt *p, enum ibv_wc_status status, enum ibv_wc_opcode op,
		  uint32_t len);
enum ibv_wc_status sn_recv_scatter(struct sn_qp *q, uint32_t off, const void *from, uint32_t len);
void sn_recv_flush(struct sn_qp *q);
void sn_recv_drop(struct sn_qp *q);	/* the one that was taken, without completion */
void sn_recv_established(struct sn_qp *q); /* a packet came */
void sn_srq_check_limit(struct sn_srq *s);
struct sn_srq *sn_srq_find(uint32_t dev, uint32_t num);
struct sn_srq *sn_xrc_srq(const struct sn_qp *q, uint32_t num); /* the one in its domain; NULL: none is */

/* ---- unreliable.c: UC and UD, what comes in, and what UD adds to what goes out ---- */

void sn_unreliable_in(struct sn_qp *q, const struct sn_pkt *p, const uint8_t *payload);
void sn_ud_fill(const struct sn_qp *q, const struct sn_wqe *w, struct sn_pkt *p);
/* What a completion says as service level. */
uint8_t sn_ud_sl(const struct sn_pkt *p);

/* Starts a packet from q to its peer. NULL: no room now (*gone: never, it is lost). */
struct sn_pkt *sn_packet(struct sn_qp *q, enum sn_op op, uint32_t payload_len, uint8_t **payload, bool *gone);
void sn_timer_at(uint64_t when);	/* sn_requester_timer() is called no later */

/* 24 bits, as on the wire */
static inline uint32_t sn_psn(uint32_t v)
{
	return v & 0xffffff;
}

static inline int32_t sn_psn_diff(uint32_t a, uint32_t b)
{
	return (int32_t)((a - b) << 8) >> 8;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* Between the bond*.c files. Everything on the control thread, with the QP's ctl lock, unless said otherwise. */
#ifndef DUALPORT_BOND_PRIV_H
#define DUALPORT_BOND_PRIV_H

#include <stddef.h>
#include "bond.h"
#include "bond_msg.h"
#include "qp.h"
#include "rkeys.h"

enum bond_state {
	SEEKING,    /* for the peer, or for it to name us */
	OFFERED,    /* leader: waits for ACCEPT */
	CONNECTING, /* follower: waits for CONNECTED */
	CONNECTED,  /* twins can receive; waits for the program's RTS */
	PROBING,
	UP,
	RESPONDER, /* nothing of ours goes to the twins (no remote access, no answer), but the peer's may */
	NO,
};

struct dp_bond {
	struct dp_qp *q; /* held */
	enum bond_state state;
	uint64_t since; /* RTR */
	bool said;   /* that nobody answers */
	bool refuse; /* NO for our own reasons: answer asks with it */
	bool ended; /* the program's side is over; the control thread frees it */
	union ibv_gid my_gid, peer_gid;
	uint32_t my_qpn, peer_qpn;
	uint32_t my_incarnation, peer_incarnation;
	char netdev[IFNAMSIZ];
	struct dp_locate *locate;
	struct dp_peer *peer;
	uint32_t peer_pd;
	uint64_t peer_upstream; /* of its own port */
	char peer_port[80];	/* what it calls that */
	struct dp_twin_info mine[DP_MAX_RAILS], theirs[DP_MAX_RAILS]; /* by rail; 0: the spare */
	uint64_t probe_deadline, keys_deadline;
	struct dp_rpd *rpd; /* until the switch moves it to the QP, and again at the end; put by the control thread */
	struct dp_timer timer;
	struct {
		enum { SPARE_SET, SPARE_MADE, SPARE_RTR } state; /* of the round */
		uint32_t round;	 /* 0: the one that came with the bond */
		unsigned rounds; /* since then: */
		uint64_t since;
		struct dp_timer timer;
	} spare; /* bond_spare.c */
	struct {
		struct ibv_qp *twin; /* NULL: none */
		enum ibv_event_type type;
		struct dp_timer timer;
	} broken; /* a twin that met an access error as responder; bond_util.c */
	struct dp_bond *next; /* of all, control thread */
};

static inline struct dp_bond *dp_bond_of(struct dp_timer *t)
{
	return (struct dp_bond *)((char *)t - offsetof(struct dp_bond, timer));
}

/* What later matters of the peer's twin. */
static inline void dp_rail_take(struct dp_rail *rail, const struct dp_twin_info *theirs)
{
	rail->peer_sib_idx = theirs->sib_idx;
	rail->peer_upstream = theirs->upstream;
	rail->peer_reads = theirs->access & IBV_ACCESS_REMOTE_READ;
}

/* bond.c */
extern const struct dp_peer_handler dp_bond_handler;
extern struct dp_bond *dp_bonds;
void dp_bond_head(const struct dp_bond *b, struct dp_bond_msg *m);
void dp_bond_tell(struct dp_bond *b, enum dp_bond_type type);
void dp_bond_give_up(struct dp_bond *b, enum dp_fallback reason); /* native for good */
void dp_bond_stop_seeking(struct dp_bond *b);
void dp_bond_put_keys(struct dp_bond *b);
unsigned dp_bond_make_twins(struct dp_bond *b, uint32_t limit);
unsigned dp_bond_connect_twins(struct dp_bond *b);
/* Connects the spare to the peer's, if both sides have one; else ours is dropped, and mine[0].qpn is 0. */
void dp_bond_connect_spare(struct dp_bond *b);
/* Would what this requester does to that peer need flushes of rail 0? upstream: of the peer's port and, by rail, twins. */
bool dp_bond_wants_spare(enum dp_flush flush, uint32_t nrails, uint64_t upstream, const struct dp_twin_info twin[]);
/* Twins on both sides can receive. */
void dp_bond_connected(struct dp_bond *b);

/* bond_switch.c: twins to RTS, probe, switch or give up */
void dp_bond_probe(struct dp_bond *b);
/* Nothing goes to the peer's twins, for that reason, but what it sends over them is answered. */
void dp_bond_only_respond(struct dp_bond *b, enum dp_fallback reason);
/* What rail r's port is called. */
const char *dp_rail_port(const struct dp_qp *q, uint32_t r, char buf[DP_PORT_TEXT]);

/* bond_spare.c */
void dp_bond_on_spare(struct dp_bond *b, const struct dp_bond_msg *m);
void dp_bond_spare_end(struct dp_bond *b);

/* bond_life.c, any thread */
void dp_bond_settled(struct dp_qp *q);

/* bond_util.c */
const char *dp_gid_text(const union ibv_gid *g, char *buf, size_t n);
/* A line at most once per GID (NULL: per format). */
void dp_say_once(const union ibv_gid *gid, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int dp_set_nonblock(int fd);
/* The GIDs of that port become addresses under which peers may look for this process's QPs. */
void dp_advertise_port(const struct dp_verbs *real, struct ibv_context *ctx, uint8_t port);
void dp_watch_siblings(struct dp_ctx *c);

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* The messages by which two QPs bond; one head for all, twins' descriptions behind it in OFFER and ACCEPT. */
#ifndef DUALPORT_BOND_MSG_H
#define DUALPORT_BOND_MSG_H

#include "core.h"
#include "qp.h"

enum dp_bond_type {
	DP_BOND_ASK = DP_MSG_BOND, /* "I am at RTR and named you" */
	DP_BOND_OFFER,		   /* leader: my twins are made */
	DP_BOND_ACCEPT,		   /* follower: mine are made and connected to yours */
	DP_BOND_CONNECTED,	   /* leader: so are mine; then the follower, if its ACCEPT had a spare */
	DP_BOND_NO,		   /* this QP will not bond */
	DP_BOND_BYE,		   /* this QP is reset, broken or gone */
	DP_BOND_SPARE,		   /* the spare that I made for this round, qpn 0: none; ready: it can receive */
	DP_BOND_TYPES_END,
};

struct dp_bond_msg {
	union ibv_gid src_gid, dst_gid;
	uint32_t src_qpn, dst_qpn;
	uint32_t src_incarnation;
	uint32_t dst_incarnation; /* as the sender knows it; not in ASK */
	uint8_t reply;		  /* ASK: in answer to an ASK */
	uint64_t upstream;	  /* OFFER, ACCEPT: dp_upstream() of the sender's own port */
	char port[80];		  /* OFFER, ACCEPT: what the sender calls that port */
	uint8_t flush;		  /* OFFER: the sender's enum dp_flush */
	uint32_t round;		  /* SPARE */
	uint8_t ready;		  /* SPARE */
	struct dp_twin_info spare; /* ACCEPT, CONNECTED, SPARE: qpn 0: none */
	uint32_t pd_id;		  /* names the sender's remote keys */
	uint32_t nrails;
	struct dp_twin_info rail[DP_MAX_RAILS]; /* qpn 0: none there */
	char text[80];				/* NO: why */
};

/* 0 or -errno. */
int dp_bond_send(struct dp_peer *peer, enum dp_bond_type type, const struct dp_bond_msg *m);
/* False: malformed. */
bool dp_bond_parse(enum dp_bond_type type, const uint8_t *data, size_t len, struct dp_bond_msg *m);

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* Counters of the process and what is printed of them. Everything here is thread-safe and never blocks. */
#ifndef DUALPORT_STATS_H
#define DUALPORT_STATS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "hidden.h"
#include "lock.h"

/* Why a QP, a memory region or a WR went as on one port. The strings are keys of the JSON. */
#define DP_FALLBACKS(X)                                                                                               \
	X(NO_GROUP, "no-port-group")	       /* QP: its port is in no group */                                      \
	X(NO_TWIN_DEVICE, "no-sibling-device") /* QP: no sibling device could be opened */                            \
	X(NOT_RC, "not-rc")		       /* QP: transport other than RC */                                      \
	X(QP_EX, "qp-ex")		       /* QP: ibv_wr_* interface */                                           \
	X(CQ_EX, "cq-ex")		       /* QP: extended CQ */                                                  \
	X(CHANNEL, "channel")		       /* QP: completion channel that could not be shadowed */                 \
	X(SINGLE_THREADED, "single-threaded")  /* QP: thread domain or single-threaded objects */                    \
	X(DIRECT_ACCESS, "direct-access")      /* QP: mlx5dv_init_obj and relatives */                                \
	X(NO_PEER, "no-peer")		       /* QP: nobody answers at the peer's address */                         \
	X(PEER_REFUSED, "peer-refused")	       /* QP: the peer's library cannot bond it */                            \
	X(NO_REMOTE_ACCESS, "no-remote-access") /* QP: its peer allows neither WRITE nor READ */                      \
	X(LAG, "lag-refused")		       /* QP: it could not be pinned to one port of a bond */                 \
	X(PROBE_FAILED, "probe-failed")	       /* QP: no sibling path works */                                        \
	X(TWIN_QP_FAILED, "twin-qp-failed")    /* QP: twin could not be created or connected */                       \
	X(RAIL_LOST, "rail-lost")	       /* QP: a sibling failed while in use */                                \
	X(PEER_GONE, "peer-gone")	       /* QP: the peer's process ended or un-bonded */                        \
	X(MR_TWIN_FAILED, "mr-twin-failed")    /* MR: registration on a sibling failed */                             \
	X(LKEY_UNKNOWN, "lkey-unknown")	       /* WR: local key has no twin */                                        \
	X(RKEY_PENDING, "rkey-pending")	       /* WR: remote key not known yet */                                     \
	X(RKEY_NONE, "rkey-none")	       /* WR: remote key has no twin */                                       \
	X(LEASE_EXPIRED, "lease-expired")      /* WR: the owner of the remote keys was not heard of */                \
	X(BEHIND_SIGNAL, "behind-signal")      /* WR: bulk behind a signal that no completion will tell of */         \
	X(HASTE, "behind-signal-hurry")	       /* WR: bulk for which to wait for a signal does not pay */                 \
	X(FLUSH_REGIONS, "flush-regions")      /* WR: too many regions wait for a flush on a sibling */               \
	X(SQ_FULL, "twin-sq-full")	       /* WR: no room on a twin's send queue */

enum dp_fallback {
#define DP_FALLBACK_ENUM(name, str) DP_FB_##name,
	DP_FALLBACKS(DP_FALLBACK_ENUM)
#undef DP_FALLBACK_ENUM
	DP_FB_COUNT
};
const char *dp_fallback_str(enum dp_fallback reason);

/* Traffic of bonded QPs from one port of ours to one peer. Writers add with relaxed atomics. */
struct dp_flow {
	_Atomic uint64_t bytes; /* payload of the WRs posted, READs included */
	_Atomic uint64_t read_bytes; /* of READs, which come from there */
	_Atomic uint64_t msgs;	/* fragments posted that carry payload, and signals */
	char port[80];		/* "mlx5_0:1" */
	char peer[80];		/* address of the peer's rail-0 port as text */
	char from[80];		/* the same of ours; "": unknown */
	char to[80];		/* what the peer calls its port at the other end; "": unknown */
	_Atomic uint32_t rail;	/* of the QPs; 0: the program's own port */
	dp_fast lock;		/* a leaf; of the rest, which meter.c keeps if it is to be written */
	uint64_t open, acked;	/* bytes posted and not completed; completed */
	uint64_t busy_ns, busy_since; /* there was something to send; until then */
	struct dp_flow *next;	/* private */
};

/* What a queued signal waited for last. */
#define DP_WAIT_CAUSE_LIST(X)                                                                                         \
	X(ACK, "ack")	  /* a sibling's acknowledgement */                                                           \
	X(FLUSH, "flush") /* a flush behind it */                                                                     \
	X(TURN, "turn")	  /* an earlier request that waited */                                                        \
	X(ROOM, "room")	  /* room in rail 0's send queue */
enum dp_wait_cause {
#define DP_WAIT_ENUM(name, str) DP_WAIT_##name,
	DP_WAIT_CAUSE_LIST(DP_WAIT_ENUM)
#undef DP_WAIT_ENUM
	DP_WAIT_CAUSES
};
#define DP_WAIT_BUCKETS 256 /* four for each power of two of ns */

struct dp_counters {
	_Atomic uint64_t bonds;	  /* QPs that became bonded */
	_Atomic uint64_t splits;  /* WRs with bytes on more than one rail */
	_Atomic uint64_t spreads; /* WRs sent whole on a sibling */
	_Atomic uint64_t signals; /* signals posted on bonded QPs */
	_Atomic uint64_t signals_waited;
	_Atomic uint64_t signal_wait_ns;
	_Atomic uint64_t signal_wait_hist[DP_WAIT_BUCKETS]; /* dp_signal_waited() */
	_Atomic uint64_t wait_by[DP_WAIT_CAUSES];	    /* signals, by what let them go at last */
	_Atomic uint64_t deferred; /* sibling parts that waited for a signal's acknowledgement or an overlap */
	_Atomic uint64_t full_waits; /* bulk WRs for which more was outstanding than is searched for overlaps */
	_Atomic uint64_t held;	   /* completions held back */
	_Atomic uint64_t flushes;     /* READs of ours that push what was written into the peer's memory */
	_Atomic uint64_t flush_waits; /* signals, siblings' parts and completions that went when such a READ had completed */
	_Atomic uint64_t flush_acks;  /* QPs and WRs for which no such READ is possible, although it should be */
	_Atomic uint64_t spares_renewed; /* queue pairs for such READs that broke and were made anew */
	_Atomic uint64_t fallback[DP_FB_COUNT];
};
extern DP_HIDDEN struct dp_counters dp_counters;

static inline void dp_count(_Atomic uint64_t *c, uint64_t n)
{
	atomic_fetch_add_explicit(c, n, memory_order_relaxed);
}
/* A queued signal went after ns. */
void dp_signal_waited(uint64_t ns, enum dp_wait_cause cause);
static inline void dp_fallback(enum dp_fallback reason)
{
	dp_count(&dp_counters.fallback[reason], 1);
}

/* Finds or makes the flow; lives until the process ends. NULL when out of memory. */
struct dp_flow *dp_flow_get(const char *port, const char *peer);
/* The same where both ends of the rail are known: a flow of its own. */
struct dp_flow *dp_flow_between(const char *port, const char *from, const char *peer, const char *to);
/* Makes the port known, so that it is printed even if nothing went over it. */
void dp_stats_port(const char *port);

/* A QP to peer (as in dp_flow_get()) stays on one port for that reason. */
void dp_stats_unbonded(const char *peer, enum dp_fallback reason);

/* ---- private to stats.c and stats_job.c ---- */
void dp_json_string(FILE *f, const char *s);
void dp_stats_job_json(FILE *f); /* members of the object, with a comma before each */
void dp_stats_job_after_fork(void);
/* ---- */

/* In a forked child: what it does is counted from zero. */
void dp_stats_after_fork(void);
/* Has any QP, region or WR been counted? */
bool dp_stats_any(void);

void dp_stats_print(FILE *f);		     /* the table at exit */
int dp_stats_write_json(const char *pattern); /* %p in pattern: the pid. 0 or -errno */

#endif

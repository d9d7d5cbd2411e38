/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * Talks to libdualport in other processes, on this host and on others: finds the process that owns a QP, carries
 * messages to it, keeps leases. One control thread per process does all of it; functions marked [control] are
 * for that thread alone, i.e. for callbacks and for what dp_peer_call() runs. The others are thread-safe.
 */
#ifndef DUALPORT_PEER_H
#define DUALPORT_PEER_H

#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <infiniband/verbs.h>

#define DP_INSTANCE_LEN 16
#define DP_MSG_MAX 65536 /* bytes of one message's payload */

struct dp_peer; /* a peer process; valid until gone() returned */

struct dp_peer_handler { /* all [control] */
	/* Does this process own a QP with that number on a port with that GID? */
	bool (*owns)(const union ibv_gid *gid, uint32_t qpn);
	/* A message of dp_peer_send(); types below 0x100 are the peer layer's own and never seen here. */
	void (*message)(struct dp_peer *peer, uint16_t type, const uint8_t *data, size_t len);
	/* The process has ended or has not been heard of for a lease. */
	void (*gone)(struct dp_peer *peer);
};

/*
 * Starts the control thread and the listener if they are not there (counted: each start needs a stop). Settings
 * come from dp_cfg. thread_init runs first on the new thread. 0 or -errno.
 */
int dp_peer_start(const struct dp_peer_handler *handler, void (*thread_init)(void));
/*
 * The last stop closes every connection and joins the thread (within a second, else detaches it). at_exit: other threads may
 * still use what they have of peers, so nothing of that is freed.
 */
void dp_peer_stop(bool at_exit);
/* In a forked child: closes what was inherited, without a thread or a message; then as never started. */
void dp_peer_after_fork(void);

/* Runs fn(arg) on the control thread, in the order of the calls. 0 or -errno (then it will not run). */
int dp_peer_call(void (*fn)(void *arg), void *arg);
bool dp_peer_on_control(void);

struct dp_timer {
	uint64_t due; /* private, as is the rest */
	void (*fn)(struct dp_timer *t);
	struct dp_timer *next, *prev, *child;
	const void *owner;
	bool armed;
};
/* [control] fn(t) once, ns from now; arming again moves it. */
void dp_timer_arm(struct dp_timer *t, uint64_t ns, void (*fn)(struct dp_timer *t));
void dp_timer_disarm(struct dp_timer *t);

/* [control] fn(arg) whenever fd is readable. 0 or -errno. */
int dp_peer_watch(int fd, void (*fn)(void *arg), void *arg);
void dp_peer_unwatch(int fd);

/* [control] GIDs of this process's own ports: it is asked about QPs on these. Replaces the former list. */
void dp_peer_advertise(const union ibv_gid *gids, size_t n);

/*
 * [control] Finds the process that owns QP qpn on the port with this GID, retrying until timeout_ns. netdev: the
 * local netdev of the asking port ("" if unknown): gives link-local addresses their scope, and binds the
 * connection to that fabric unless the address is one of this host. cb(arg, peer, status) is called exactly once,
 * never from within dp_peer_locate() itself, unless cancelled:
 *   0              peer is the owner (perhaps this very process)
 *   -ENOENT        libdualport answers there, but no process of it owns the QP
 *   -ECONNREFUSED  nobody listens
 *   -ETIMEDOUT     no answer, or a stranger on every port
 *   -EACCES        authentication failed
 *   -EADDRNOTAVAIL the GID is no address that could be asked
 */
struct dp_locate;
struct dp_locate *dp_peer_locate(const union ibv_gid *gid, const char *netdev, uint32_t qpn, uint64_t timeout_ns,
				 void (*cb)(void *arg, struct dp_peer *peer, int status), void *arg);
void dp_peer_locate_cancel(struct dp_locate *l);

/* [control] 0, or -EMSGSIZE, or -EPIPE (it is going; gone() follows). Order is kept. Data are copied. */
int dp_peer_send(struct dp_peer *peer, uint16_t type, const void *data, size_t len);

const uint8_t *dp_peer_instance(const struct dp_peer *peer); /* DP_INSTANCE_LEN bytes */
const char *dp_peer_text(const struct dp_peer *peer);	     /* "10.0.0.2 pid 4711", for log lines */
bool dp_peer_is_self(const struct dp_peer *peer);
/*
 * [control] Is it reached at that GID's address (netdev as for dp_peer_locate())? True for oneself, and between
 * addresses of this host. False does not mean that it is elsewhere: a host has many addresses, and dp_peer_locate()
 * finds out.
 */
bool dp_peer_at(const struct dp_peer *peer, const union ibv_gid *gid, const char *netdev);
/* [control] In gone(): it has ended in good order, as far as this layer is concerned. */
bool dp_peer_said_bye(const struct dp_peer *peer);

/* May this process use the peer's remote keys now? Any thread, lock-free, a few ns; true for oneself. */
bool dp_peer_lease_valid(const struct dp_peer *peer);
/* [control] Until when the peer may use ours, CLOCK_MONOTONIC ns; 0 for oneself. */
uint64_t dp_peer_granted_until(const struct dp_peer *peer);

/* [control] One pointer for the user of this layer. */
void dp_peer_set_data(struct dp_peer *peer, void *data);
void *dp_peer_data(const struct dp_peer *peer);
/* [control] Every known peer, oneself included; fn returns false to stop. */
void dp_peer_each(bool (*fn)(struct dp_peer *peer, void *arg), void *arg);

#endif

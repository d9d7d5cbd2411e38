/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * What the files of the peer layer share. Unless said otherwise everything here is for the control thread alone,
 * so there are no locks; objects that an event handler may still hold are freed only between two rounds of the loop
 * (dp_later_free), and connections are closed there too (dp_conn_fail only marks them), so that no callback of the
 * user runs inside a call that the user made.
 */
#ifndef DUALPORT_PEER_INTERNAL_H
#define DUALPORT_PEER_INTERNAL_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include "peer.h"
#include "wire.h"
#include "../config.h"
#include "../log.h"

#define DP_MS 1000000ULL
#define DP_SEC 1000000000ULL

#define DP_PEER_PROTOCOL 3
#define DP_FRAME_MAGIC 0x44504c31u /* "DPL1" */
#define DP_FRAME_HEAD 24
#define DP_MAC_LEN 32
#define DP_NONCE_LEN 32
#define DP_HELLO_LEN (1 + DP_INSTANCE_LEN + 4 + 2 + DP_NONCE_LEN)
#define DP_HELLO_MAX 256	    /* payload of a message before a connection is open */
#define DP_OUT_MAX (16u << 20)	    /* bytes waiting to be sent to one peer */
#define DP_OUT_TOTAL (64u << 20)    /* and to all: then whoever has most of them waiting is given up */
#define DP_HELLO_CONNS 64	    /* connections that have not greeted yet */
#define DP_HELLO_NS (2 * DP_SEC)    /* time to greet, of who connected to us */
#define DP_ANSWER_NS (1 * DP_SEC)   /* time to greet or to answer, of whom we ask */
#define DP_READY_NS (3 * DP_SEC)    /* and for the rest, once it has greeted: it is no stranger, perhaps busy */
#define DP_PARTIAL_NS (5 * DP_SEC)  /* time to send the rest of a message */
#define DP_DIR_SLOTS 256
#define DP_RANGE_MAX 256

enum dp_msg_type {
	DP_MSG_HELLO = 1, /* flags, instance, pid, port, nonce */
	DP_MSG_READY,	  /* lease in ns: first message with a MAC */
	DP_MSG_REFUSE,	  /* enum dp_refuse; before READY only, never with a MAC */
	DP_MSG_PING,	  /* time of the sender */
	DP_MSG_PONG,	  /* that time, lease in ns */
	DP_MSG_WHO,	  /* id, GID: which processes of your host have that GID? */
	DP_MSG_WHO_REPLY, /* id, count, entries */
	DP_MSG_OWNS,	  /* id, GID, QPN: do you own it? */
	DP_MSG_OWNS_REPLY, /* id, yes or no */
	DP_MSG_BYE,
	DP_MSG_USER = 0x100,
};

enum dp_refuse { DP_REFUSE_AUTH = 1, DP_REFUSE_SELF, DP_REFUSE_DUP };

/* An IP address without a port; v4-mapped v6 is held as v4, so equal addresses compare equal. */
struct dp_addr {
	int family; /* AF_INET, AF_INET6 */
	uint8_t ip[16];
	uint32_t scope;
};

/* addr.c */
int dp_addr_of_gid(struct dp_addr *a, const union ibv_gid *gid, const char *netdev); /* 0 or -EADDRNOTAVAIL */
int dp_addr_of_sa(struct dp_addr *a, const struct sockaddr_storage *sa);
socklen_t dp_addr_to_sa(const struct dp_addr *a, uint16_t port, struct sockaddr_storage *sa);
bool dp_addr_equal(const struct dp_addr *a, const struct dp_addr *b);
const char *dp_addr_text(const struct dp_addr *a, char buf[64]);
bool dp_addr_local(const struct dp_addr *a);
void dp_addr_netdev(const struct dp_addr *a, char netdev[IFNAMSIZ]); /* "" when no netdev of ours has it */
/* May a line about this address be written now? At most once a minute each, and a bounded number in all. */
bool dp_addr_may_log(const struct dp_addr *a);

/* loop.c */
struct dp_io {
	int fd; /* -1: closed, events still in flight are dropped */
	void (*fn)(struct dp_io *io, uint32_t events);
};
uint64_t dp_now(void); /* CLOCK_MONOTONIC, ns */
int dp_io_add(struct dp_io *io, uint32_t events);
int dp_io_mod(struct dp_io *io, uint32_t events);
void dp_io_close(struct dp_io *io);
/* Descriptors known here are closed by dp_peer_after_fork(). dp_fd_own(fd) returns fd, also a negative one. */
int dp_fd_own(int fd);
void dp_fd_close(int fd);
void dp_later_free(void *p);

/* auth.c */
struct dp_auth {
	bool on;
	uint8_t key[32];
};
struct dp_keys {
	uint8_t tx[32], rx[32];
};
int dp_auth_load(struct dp_auth *a, const char *path); /* path "": off. 0 or -errno, with a line */
void dp_auth_wipe(void *p, size_t len);
void dp_auth_derive(const struct dp_auth *a, struct dp_keys *k, const uint8_t *initiator_hello,
		    const uint8_t *acceptor_hello, bool initiator);
void dp_auth_mac(const uint8_t key[32], const uint8_t *frame, size_t len, uint8_t mac[DP_MAC_LEN]);
bool dp_auth_check(const uint8_t key[32], const uint8_t *frame, size_t len, const uint8_t mac[DP_MAC_LEN]);
int dp_random(void *p, size_t len);

/* listen.c */
int dp_listen_start(void);
void dp_listen_tick(void); /* every second */
void dp_listen_stop(void);

/* dir.c */
struct dp_dir_entry {
	uint8_t instance[DP_INSTANCE_LEN];
	uint16_t port, range_port; /* range_port 0: none */
	bool has_gid;
};
void dp_dir_start(void);
void dp_dir_publish(void); /* what we say of ourselves has changed */
void dp_dir_tick(void);
void dp_dir_stop(void);
/* The live processes of this host, ourselves first; returns their number, 1..DP_DIR_SLOTS. */
unsigned dp_dir_list(const union ibv_gid *gid, struct dp_dir_entry out[DP_DIR_SLOTS]);

/* conn.c and session.c */
enum dp_conn_state { DP_CONN_CONNECTING, DP_CONN_HELLO, DP_CONN_READY, DP_CONN_OPEN };

struct dp_conn {
	struct dp_io io;
	struct dp_conn *next, *prev;
	enum dp_conn_state state; /* HELLO, READY: waits for that message */
	bool inbound, dirty, doomed, greeted;
	bool committed; /* we are the side that decides which connection is the one, and it is this one */
	bool keyed;	/* messages carry MACs from here on, in both directions */
	int error;
	struct dp_conn *dirty_next, *doomed_next;
	struct dp_addr addr;
	uint16_t port; /* that we connected to; 0 if inbound */
	char netdev[IFNAMSIZ];
	uint8_t instance[DP_INSTANCE_LEN];
	uint32_t pid;
	uint16_t listen_port;
	uint8_t hello[DP_HELLO_LEN]; /* ours */
	struct dp_keys keys;
	uint64_t rx_seq, tx_seq;
	uint8_t *in, *out;
	size_t in_len, in_cap, out_off, out_len, out_cap;
	uint64_t partial_since, heard, lease_base, granted_until;
	uint64_t peer_lease;
	unsigned silent_ticks;
	struct dp_timer timer;
	struct dp_peer *peer;
	/* [once] What became of a connection that we opened: peer (perhaps oneself), or NULL and -errno. */
	void (*done)(void *arg, struct dp_peer *peer, int status);
	void *done_arg;
};

struct dp_conn *dp_conn_open(const struct dp_addr *a, uint16_t port, const char *netdev,
			     void (*done)(void *arg, struct dp_peer *peer, int status), void *arg, int *err);
void dp_conn_accept(int fd, const struct dp_addr *a);
struct dp_conn *dp_conn_new(bool inbound); /* without a socket */
void dp_conn_fail(struct dp_conn *c, int error, const char *why); /* why NULL: nothing to log */
void dp_conn_settle(struct dp_conn *c, struct dp_peer *peer, int status); /* calls done, once */
void dp_conn_feed(struct dp_conn *c, const uint8_t *data, size_t len);	  /* bytes that came in */
int dp_conn_send(struct dp_conn *c, uint16_t type, const void *data, size_t len); /* 0 or -EPIPE */
void dp_conn_flush_all(void);
void dp_conn_reap(void);
void dp_conn_drop(struct dp_conn *c); /* closes now: only where no user call is on the stack */

void dp_conn_deadline(struct dp_conn *c, uint64_t ns); /* to become open */

void dp_session_begin(struct dp_conn *c);
void dp_session_message(struct dp_conn *c, uint16_t type, const uint8_t *data, size_t len);
void dp_session_tick(struct dp_timer *t); /* of an open connection */

/* peer.c */
struct dp_peer {
	struct dp_peer *next;
	struct dp_conn *conn; /* NULL: oneself */
	uint8_t instance[DP_INSTANCE_LEN];
	char text[96];
	void *data;
	bool said_bye;
	_Atomic uint64_t lease_until; /* CLOCK_MONOTONIC ns; read by any thread */
};
struct dp_peer *dp_peer_find(const uint8_t *instance);
struct dp_peer *dp_peer_new(struct dp_conn *c);
void dp_peer_set_lease(struct dp_peer *p, uint64_t base, uint64_t lease);
void dp_peer_lost(struct dp_peer *p); /* calls gone() */
void dp_self_deliver(void);
uint64_t dp_own_lease(void);

/* locate.c, host.c */
struct dp_host;
struct dp_ask;
struct dp_locate {
	struct dp_locate *next, *prev; /* of the host, or of the finished ones */
	struct dp_host *host;
	struct dp_ask *asks;
	union ibv_gid gid;
	char netdev[IFNAMSIZ];
	uint32_t qpn;
	bool finished, fresh;
	int status;
	struct dp_peer *peer;
	struct dp_timer deadline;
	void (*cb)(void *arg, struct dp_peer *peer, int status);
	void *arg;
};
void dp_locate_answer(struct dp_peer *p, const uint8_t *data, size_t len); /* OWNS_REPLY */
void dp_locate_ask(struct dp_locate *l, struct dp_peer *p);
bool dp_locate_ask_self(struct dp_locate *l);
void dp_locate_peer_gone(struct dp_peer *p);
void dp_locate_finish_all(void);
void dp_locate_stop(void);
void dp_locate_finish(struct dp_locate *l, struct dp_peer *p, int status); /* cb runs later, in dp_locate_finish_all */

struct dp_host *dp_host_get(const union ibv_gid *gid, const char *netdev, const struct dp_addr *a);
void dp_host_add(struct dp_host *h, struct dp_locate *l);
void dp_host_remove(struct dp_host *h, struct dp_locate *l);
int dp_host_status(const struct dp_host *h);
void dp_host_found(struct dp_host *h);
void dp_host_who_reply(struct dp_peer *p, const uint8_t *data, size_t len);
void dp_host_peer_new(struct dp_peer *p);
void dp_host_peer_gone(struct dp_peer *p);
void dp_host_tick(void);
void dp_host_abort_all(void); /* ends every locate */
void dp_host_stop(void);

#define DP_ASK_BUCKETS 1024

struct dp_self_msg;
struct dp_listener;
struct dp_watch;
struct dp_log_slot {
	struct dp_addr addr;
	uint64_t until;
};

/* All of the layer's state between a first start and a last stop. */
struct dp_peering {
	struct dp_peer_handler handler;
	void (*thread_init)(void);
	int epfd;
	struct dp_io wake;
	struct dp_timer *timers; /* root of a pairing heap */
	struct dp_timer tick;
	struct dp_watch *watches;
	void **garbage;
	size_t ngarbage, garbage_cap;
	bool ending; /* no new locates */

	uint8_t instance[DP_INSTANCE_LEN];
	struct dp_auth auth;
	union ibv_gid *gids;
	size_t ngids;

	struct dp_listener *listeners;
	uint16_t port, range_port;

	int dir_fd, dir_slot;

	struct dp_conn *conns, *dirty, *doomed;
	unsigned nconns, max_conns;
	size_t unsent;
	uint8_t *scratch; /* for reading from sockets */

	struct dp_peer self, *peers;
	struct dp_self_msg *self_first, **self_last;

	struct dp_host *hosts;
	struct dp_locate *finished, *finished_last;
	struct dp_ask *asks[DP_ASK_BUCKETS];
	uint64_t next_id;

	struct dp_log_slot logged[64];
	uint64_t log_until; /* lines about further addresses wait until then */
};
extern struct dp_peering *dp_peering;

/* For tests, too: all but the thread, the listener and the directory. 0 or -errno. */
int dp_peering_new(const struct dp_peer_handler *handler);
void dp_peering_free(void);

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * The simulated host: one file that every process under one scripts/softnic maps. It holds what the processes share:
 * devices and ports with their clocks, who owns which QP number, and who is there. Everything in it stays usable when a
 * process is killed at any moment: words that are changed in one atomic step, or under a robust mutex.
 */
#ifndef SOFTNIC_HOST_H
#define SOFTNIC_HOST_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SN_PROCS 256
#define SN_DEVS 32
#define SN_GIDS 4
#define SN_QPNS 8192
#define SN_FAULTS 64
#define SN_LAGS 4 /* physical ports of a bond */
#define SN_QPN_FIRST 0x40u
#define SN_CACHELINE __attribute__((aligned(64)))

struct sn_gid {
	uint8_t raw[16];
	uint8_t valid;
};

/* Why a port neither sends nor takes anything; deaf: why it takes no responses. */
enum sn_dark { SN_DARK_DOWN = 1, SN_DARK_SILENT = 2, SN_DARK_DEAF = 4 };

/* What is drawn for, each in a row of its own: the nth message has the same lot whatever else there is. */
enum sn_draw { SN_DRAW_MESSAGE, SN_DRAW_ANSWER, SN_DRAW_COMPLETION, SN_DRAW_PLACE, SN_DRAWS };
#define SN_LOTS 64

/* Each device has one port, number 1. */
struct sn_port {
	/* when the port has sent, or taken in, everything that it was given so far: ns, CLOCK_MONOTONIC */
	SN_CACHELINE _Atomic uint64_t tx_cursor[SN_LAGS]; /* [0], or of each port of a bond */
	SN_CACHELINE _Atomic uint64_t rx_cursor[SN_LAGS];
	_Atomic uint64_t tx_bytes[SN_LAGS]; /* payload sent */
	SN_CACHELINE uint64_t rate;	/* bytes a second in each direction; 0: no limit */
	uint64_t delay;			/* ns, one way */
	struct sn_gid gids[SN_GIDS];	/* never change; */
	_Atomic uint8_t shown[SN_GIDS];	/* but which is where does: its number plus one, or 0; see sn_host_gid() */
	_Atomic uint32_t dark;		/* enum sn_dark */
	_Atomic uint64_t packets;	/* sent, if there are faults that wait for them */
	_Atomic uint64_t drawn[SN_DRAWS]; /* how often, for each of them */
	/* of the messages that it sent first with --adverse: how late, ns, and what lands early; for tests */
	struct sn_lot { uint32_t late, gap, early; } lots[SN_LOTS];
};

/* Who has the QP number: sn_owner(); 0: nobody. */
struct sn_qpn {
	_Atomic uint64_t owner;
	uint64_t freed_at;
};

struct sn_dev {
	struct sn_port port;
	uint64_t node_guid, sys_image_guid; /* host byte order */
	uint32_t card;
	uint32_t lag;		/* a bond of so many physical ports; 0: it is none */
	char name[16];
	struct sn_qpn qpns[SN_QPNS];
};

/* It dozes while the program polls in vain and so does the work; then it looks soon in any case. */
enum sn_sleep { SN_AWAKE, SN_DOZES, SN_SLEEPS };

struct sn_proc {
	/* the thread of this process sleeps on the bell, which is rung with a system call only while it sleeps for long */
	SN_CACHELINE _Atomic uint32_t bell;
	_Atomic uint32_t sleeping;
	_Atomic uint64_t polled;	/* when the program polled in vain last; 0: it does something else now */
	/* by number of the sender: a ring is there to be attached */
	_Atomic uint64_t inbox[SN_PROCS / 64];
	_Atomic uint32_t gen;		/* 0: free */
	int32_t pid;
	uint64_t started;		/* of /proc/PID/stat, since pids are reused */
};

enum sn_fault_what { SN_FAULT_DOWN, SN_FAULT_UP, SN_FAULT_SILENCE, SN_FAULT_DEAF, SN_FAULT_QP_ERROR, SN_FAULT_EVENT,
		     SN_FAULT_GID_MOVE };

/* A line of the file that --faults names. */
struct sn_fault {
	uint64_t at;		/* ns since the host began or the fault before this, or packets that the port has sent */
	bool packets, after;
	_Atomic uint64_t when;	/* it happened; 0: not yet */
	enum sn_fault_what what;
	uint32_t dev, a, b;
	bool quiet;
	_Atomic uint32_t done;
};

struct sn_host {
	_Atomic uint32_t ready;
	uint32_t ndevs, ncards;
	uint32_t infiniband;		/* not RoCE v2 */
	uint64_t seed;
	uint32_t adverse, late;		/* --placement late */
	uint32_t part_id;
	pthread_mutex_t lock;		/* robust, between processes: for what happens rarely */
	uint32_t next_gen;
	uint64_t began;
	uint32_t nfaults;
	struct sn_fault faults[SN_FAULTS];
	uint32_t happened[SN_FAULTS];	/* their numbers, in the order in which it was done */
	_Atomic uint32_t nhappened;
	struct sn_proc procs[SN_PROCS];
	struct sn_dev devs[SN_DEVS];
};

/* NULL with errno set: no softnic here, or it cannot be mapped; says why once. */
struct sn_host *sn_host(void);
extern struct sn_host *sn_shared; /* the same, for those that run only after it was found */
const char *sn_host_dir(void);

/* This process's number in the host, taken at the first call; -errno. After a fork the child takes its own. */
int sn_host_join(void);
/* The three handlers of pthread_atfork(); nobody is in sn_host() during a fork(). */
enum sn_fork { SN_BEFORE_FORK, SN_FORK_PARENT, SN_FORK_CHILD };
void sn_host_fork(enum sn_fork when);
uint32_t sn_host_gen(void);

static inline uint64_t sn_owner(uint32_t proc, uint32_t gen)
{
	return (uint64_t)gen << 32 | (proc + 1);
}

/* It does the engine's work by itself, and need not be woken. */
static inline bool sn_is_polled(struct sn_proc *p, uint64_t now)
{
	return now < atomic_load_explicit(&p->polled, memory_order_relaxed) + 20000;
}

bool sn_host_alive(uint32_t proc, uint32_t gen);

/* A free QP number of the device, the lowest that was not used just before; 0: none left. */
uint32_t sn_host_qpn_take(uint32_t dev);
void sn_host_qpn_drop(uint32_t dev, uint32_t qpn);
bool sn_host_qpn_owner(uint32_t dev, uint32_t qpn, uint32_t *proc, uint32_t *gen);

int sn_host_find_gid(const uint8_t raw[16]);	/* the device that has it; -1 */
int sn_host_find_lid(uint16_t lid);
uint16_t sn_host_lid(uint32_t dev);		/* 0 with RoCE */

/* What the port has at that index, perhaps nothing (not valid, all zero). */
const struct sn_gid *sn_host_gid(uint32_t dev, uint32_t index);

/* Robust; taken last. */
void sn_host_lock(void);
void sn_host_unlock(void);

/* The tree that ibdev_path and dev_path of the devices point into. 0 or -errno. */
int sn_sysfs_make(const struct sn_host *h, const char *dir);
int sn_sysfs_port(const struct sn_host *h, uint32_t dev, const char *dir); /* what may change of it */

uint64_t sn_now(void);
void sn_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif

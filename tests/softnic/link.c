// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Rings between processes; see packet.h. All under the engine's lock. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "packet.h"
#include "wake.h"

#define PKTS 4096u
#define SLOTS 1024u

struct ring {
	SN_CACHELINE _Atomic uint32_t head;	 /* packets that the sender gave */
	SN_CACHELINE _Atomic uint32_t tail;	 /* packets that the receiver took */
	_Atomic uint32_t free_head;		 /* slots that the receiver gave back */
	SN_CACHELINE _Atomic uint32_t free_tail; /* slots that the sender took back */
	_Atomic uint32_t starved;		 /* the sender waits for room */
	uint16_t free[SLOTS];
	struct sn_pkt pkts[PKTS];
	uint8_t slots[SLOTS][SN_SEG];
};

/* What this process sends to another one. */
struct out {
	struct ring *r;
	uint32_t gen;
	uint16_t slots[SLOTS];	/* free ones; the last that came back goes first, it is in the cache */
	uint32_t nslots;
	bool ring_bell;
};

/* What another one sends to this. Kept, after the other is gone, while packets of it wait to be due. */
struct sn_from {
	struct ring *r;
	uint32_t proc, held;
	bool replaced;
};

static struct out outs[SN_PROCS];
static struct sn_from *ins[SN_PROCS];
static uint32_t nins; /* the highest number of an attached ring, plus one */
static bool any_bell;
static struct out *filling; /* from sn_link_begin() on */

static struct sn_proc *proc_of(uint32_t p)
{
	return &sn_shared->procs[p];
}

static uint32_t self(void)
{
	return (uint32_t)sn_host_join();
}

void sn_wake(uint32_t proc)
{
	struct sn_proc *p = proc_of(proc);

	atomic_fetch_add(&p->bell, 1);
	if (atomic_load(&p->sleeping) == SN_SLEEPS)
		syscall(SYS_futex, &p->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void ring_path(char *path, size_t n, uint32_t from, uint32_t from_gen, uint32_t to, uint32_t to_gen)
{
	snprintf(path, n, "%s/ring.%u.%u.%u.%u", sn_host_dir(), from, from_gen, to, to_gen);
}

static struct ring *map_ring(const char *path, int flags)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
	struct ring *r = NULL;

	if (fd < 0)
		return NULL;
	if (!(flags & O_CREAT) || !ftruncate(fd, sizeof(*r)))
		r = mmap(NULL, sizeof(*r), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return r == MAP_FAILED ? NULL : r;
}

static struct out *out_to(uint32_t proc, uint32_t gen)
{
	struct out *o = &outs[proc];
	char path[PATH_MAX];

	if (o->r && o->gen == gen)
		return o;
	if (o->r)
		munmap(o->r, sizeof(*o->r));
	memset(o, 0, sizeof(*o));
	ring_path(path, sizeof(path), self(), sn_host_gen(), proc, gen);
	o->r = map_ring(path, O_CREAT | O_EXCL);
	if (!o->r) {
		sn_say("%s: %s", path, strerror(errno));
		return NULL;
	}
	o->gen = gen;
	for (uint32_t i = 0; i < SLOTS; i++)
		o->slots[o->nslots++] = (uint16_t)(SLOTS - 1 - i);
	atomic_fetch_or(&proc_of(proc)->inbox[self() / 64], 1ull << self() % 64);
	return o;
}

static void take_back(struct out *o)
{
	uint32_t tail = atomic_load_explicit(&o->r->free_tail, memory_order_relaxed);
	uint32_t head = atomic_load(&o->r->free_head);

	while (tail != head)
		o->slots[o->nslots++] = o->r->free[tail++ % SLOTS];
	atomic_store_explicit(&o->r->free_tail, tail, memory_order_release);
}

static bool has_room(struct out *o, bool slot)
{
	uint32_t head = atomic_load_explicit(&o->r->head, memory_order_relaxed);

	if (slot && !o->nslots)
		take_back(o);
	return (!slot || o->nslots) && head - atomic_load(&o->r->tail) < PKTS;
}

static struct sn_pkt *next_pkt(struct out *o)
{
	return &o->r->pkts[atomic_load_explicit(&o->r->head, memory_order_relaxed) % PKTS];
}

struct sn_pkt *sn_link_begin(uint32_t proc, uint32_t gen, uint32_t len, uint8_t **payload, bool *gone)
{
	bool slot = len > SN_TINY;
	struct sn_pkt *p;
	struct out *o;

	*gone = atomic_load(&proc_of(proc)->gen) != gen;
	if (*gone)
		return NULL;
	o = out_to(proc, gen);
	if (!o) {
		*gone = true;
		return NULL;
	}
	if (!has_room(o, slot)) {
		/* told before the second look, so that either this or the receiver sees the other */
		atomic_store(&o->r->starved, 1);
		if (!has_room(o, slot))
			return NULL;
	}
	filling = o;
	p = next_pkt(o);
	p->slot = slot ? o->slots[--o->nslots] : SN_NO_SLOT;
	*payload = slot ? o->r->slots[p->slot] : p->tiny;
	return p;
}

void sn_link_end(void)
{
	atomic_fetch_add_explicit(&filling->r->head, 1, memory_order_release);
	filling->ring_bell = any_bell = true;
}

void sn_link_abandon(void)
{
	struct sn_pkt *p = next_pkt(filling);

	if (p->slot != SN_NO_SLOT)
		filling->slots[filling->nslots++] = (uint16_t)p->slot;
}

void sn_link_flush(void)
{
	if (!any_bell)
		return;
	any_bell = false;
	for (uint32_t i = 0; i < SN_PROCS; i++)
		if (outs[i].ring_bell) {
			outs[i].ring_bell = false;
			if (i != self())
				sn_wake(i);
		}
}

static void put_from(struct sn_from *f)
{
	if (!f->replaced || f->held)
		return;
	munmap(f->r, sizeof(*f->r));
	free(f);
}

static void attach(uint32_t from)
{
	struct sn_from *f = calloc(1, sizeof(*f));
	char path[PATH_MAX];

	ring_path(path, sizeof(path), from, atomic_load(&proc_of(from)->gen), self(), sn_host_gen());
	if (f)
		f->r = map_ring(path, 0);
	if (!f || !f->r) {
		sn_say("%s: %s", path, strerror(errno));
		free(f);
		return;
	}
	unlink(path); /* both ends have it */
	f->proc = from;
	if (ins[from]) {
		ins[from]->replaced = true;
		put_from(ins[from]);
	}
	ins[from] = f;
	if (from >= nins)
		nins = from + 1;
}

/* Maps the rings that others have made for this process. */
static void attach_new(void)
{
	struct sn_proc *p = proc_of(self());

	for (uint32_t w = 0; w < SN_PROCS / 64; w++) {
		uint64_t bits = atomic_load_explicit(&p->inbox[w], memory_order_relaxed);

		if (bits)
			bits = atomic_exchange(&p->inbox[w], 0);
		for (; bits; bits &= bits - 1)
			attach(w * 64 + (uint32_t)__builtin_ctzll(bits));
	}
}

static bool has_packet(const struct sn_from *f)
{
	return f && atomic_load_explicit(&f->r->head, memory_order_acquire) !=
			    atomic_load_explicit(&f->r->tail, memory_order_relaxed);
}

bool sn_link_pending(void)
{
	for (uint32_t w = 0; w < SN_PROCS / 64; w++)
		if (atomic_load_explicit(&proc_of(self())->inbox[w], memory_order_relaxed))
			return true;
	for (uint32_t i = 0; i < nins; i++)
		if (has_packet(ins[i]))
			return true;
	return false;
}

/* After room was made. All four accesses are in one order, here and in sn_link_begin(): one sees the other. */
static void unstarve(struct sn_from *f)
{
	if (atomic_load(&f->r->starved) && atomic_exchange(&f->r->starved, 0))
		sn_wake(f->proc);
}

uint32_t sn_link_receive(sn_link_fn *fn, uint32_t max)
{
	static uint32_t turn;
	uint32_t n = 0, end;

	attach_new();
	end = nins;
	for (uint32_t k = 0; k < end && n < max; k++) {
		struct sn_from *f = ins[(turn + k) % end];

		if (!has_packet(f))
			continue;
		for (; n < max && has_packet(f); n++) {
			uint32_t tail = atomic_load_explicit(&f->r->tail, memory_order_relaxed);

			fn(f, &f->r->pkts[tail % PKTS]);
			atomic_store(&f->r->tail, tail + 1);
		}
		unstarve(f);
	}
	turn++;
	return n;
}

const uint8_t *sn_link_payload(struct sn_from *f, const struct sn_pkt *p)
{
	return p->slot == SN_NO_SLOT ? p->tiny : f->r->slots[p->slot % SLOTS];
}

void sn_link_hold(struct sn_from *f)
{
	f->held++;
}

void sn_link_free(struct sn_from *f, const struct sn_pkt *p, bool held)
{
	uint32_t head;

	if (p->slot != SN_NO_SLOT) {
		head = atomic_load_explicit(&f->r->free_head, memory_order_relaxed);
		f->r->free[head % SLOTS] = (uint16_t)(p->slot % SLOTS);
		atomic_store(&f->r->free_head, head + 1);
		unstarve(f);
	}
	f->held -= held;
	put_from(f);
}

void sn_link_tidy(void)
{
	for (uint32_t i = 0; i < SN_PROCS; i++)
		if (outs[i].r && !sn_host_alive(i, outs[i].gen)) {
			char path[PATH_MAX];

			/* it may have gone before it saw the ring */
			ring_path(path, sizeof(path), self(), sn_host_gen(), i, outs[i].gen);
			unlink(path);
			munmap(outs[i].r, sizeof(*outs[i].r));
			memset(&outs[i], 0, sizeof(outs[i]));
		}
}

void sn_link_after_fork(void)
{
	memset(outs, 0, sizeof(outs));
	memset(ins, 0, sizeof(ins));
	nins = 0;
	any_bell = false;
}

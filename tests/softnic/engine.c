// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "adverse.h"
#include "engine.h"
#include "faults.h"
#include "packet.h"
#include "place.h"
#include "wake.h"

/* What one turn does at most, so that nobody waits long for the lock. */
#define TURN_IN 64u
#define TURN_OUT 32u
/* The engine's thread leaves the work to a program that polls in vain, and looks itself this often. */
#define POLLED_LOOK_NS 100000u
/*
 * Who polls in vain gives its CPU away now and then: on a machine with fewer CPUs than pollers, the one that has something to
 * send may be waiting for it, and would wait for a time slice.
 */
#define VAIN_YIELD 64u
#define TIDY_NS 1000000000u
#define HELD_FIRST 1024u /* seldom are there more */

/* A packet that is not due yet. */
struct held {
	struct held *next;		/* on e.unused */
	uint64_t due, seq;
	struct sn_from *from;
	struct sn_pkt pkt;
};

TAILQ_HEAD(ready_list, sn_qp);
LIST_HEAD(qp_list, sn_qp);
LIST_HEAD(ctx_list, sn_ctx);

/* Not part of what a fork() empties: the child gives up what it took before, as the parent does. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
	_Atomic bool running, stop;
	bool joined;			/* has its place in the host */
	pthread_t thread;
	uint32_t contexts;		/* the thread runs while there are any */
	uint32_t epoch, proc;
	struct sn_qp **by_qpn[SN_DEVS];
	struct ready_list ready;
	struct qp_list all;
	struct ctx_list watched;
	struct held **heap;
	size_t nheap, heap_size;
	/*
	 * For the heap: a program that polls runs a turn, and no NIC's driver takes memory then. perftest -D opens a file
	 * in a signal handler, for which the C library wants memory and, if it was interrupted so, waits for itself.
	 */
	struct held *unused;
	uint64_t seq;
	uint64_t timers;		/* no QP's timer runs out before */
	uint64_t tidy;
	_Atomic uint64_t next;		/* nothing to do until then, unless the bell is rung */
	_Atomic uint32_t seen;		/* the bell as it was when the last turn began */
} e;

void sn_lock(void)
{
	pthread_mutex_lock(&lock);
}

void sn_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

void sn_wait_unlocked(pthread_cond_t *c)
{
	pthread_cond_wait(c, &lock);
}

uint32_t sn_engine_epoch(void)
{
	return e.epoch;
}

static _Atomic uint32_t *bell(void)
{
	return &sn_shared->procs[e.proc].bell;
}

/* ---- packets that are not due: a binary heap, the first to be due on top; equal ones in the order they came ---- */

static bool before(const struct held *a, const struct held *b)
{
	return a->due != b->due ? a->due < b->due : a->seq < b->seq;
}

static struct held *get_held(void)
{
	struct held *h = e.unused;

	if (!h)
		return malloc(sizeof(*h));
	e.unused = h->next;
	return h;
}

static void put_held(struct held *h)
{
	h->next = e.unused;
	e.unused = h;
}

static void heap_push(struct held *h)
{
	size_t i = e.nheap;

	if (e.nheap == e.heap_size) {
		size_t size = 2 * e.heap_size;
		struct held **grown = realloc(e.heap, size * sizeof(*grown));

		if (!grown) {
			sn_say("out of memory, a packet is lost");
			sn_link_free(h->from, &h->pkt, true);
			put_held(h);
			return;
		}
		e.heap = grown;
		e.heap_size = size;
	}
	e.nheap++;
	for (; i && before(h, e.heap[(i - 1) / 2]); i = (i - 1) / 2)
		e.heap[i] = e.heap[(i - 1) / 2];
	e.heap[i] = h;
}

static struct held *heap_pop(void)
{
	struct held *top = e.heap[0], *last = e.heap[--e.nheap];
	size_t i = 0, kid;

	while ((kid = 2 * i + 1) < e.nheap) {
		if (kid + 1 < e.nheap && before(e.heap[kid + 1], e.heap[kid]))
			kid++;
		if (!before(e.heap[kid], last))
			break;
		e.heap[i] = e.heap[kid];
		i = kid;
	}
	if (e.nheap)
		e.heap[i] = last;
	return top;
}

/* ---- QPs ---- */

void sn_qp_attach(struct sn_qp *q)
{
	e.by_qpn[q->dev][sn_ibqp(q)->qp_num - SN_QPN_FIRST] = q;
	LIST_INSERT_HEAD(&e.all, q, in_all);
}

void sn_qp_detach(struct sn_qp *q)
{
	e.by_qpn[q->dev][sn_ibqp(q)->qp_num - SN_QPN_FIRST] = NULL;
	LIST_REMOVE(q, in_all);
	if (q->ready)
		TAILQ_REMOVE(&e.ready, q, in_ready);
	q->ready = false;
}

struct sn_qp *sn_qp_find(uint32_t dev, uint32_t qpn)
{
	if (dev >= SN_DEVS || !e.by_qpn[dev] || qpn < SN_QPN_FIRST || qpn >= SN_QPN_FIRST + SN_QPNS)
		return NULL;
	return e.by_qpn[dev][qpn - SN_QPN_FIRST];
}

void sn_qp_srq_gone(const struct sn_srq *s)
{
	struct sn_qp *q;

	LIST_FOREACH(q, &e.all, in_all) {
		if (!sn_is_xrc_recv(q) || q->srq != s)
			continue;
		sn_recv_drop(q);
		q->srq = NULL;
		q->pd = NULL;
	}
}

void sn_qp_ready(struct sn_qp *q)
{
	if (q->ready)
		return;
	q->ready = true;
	TAILQ_INSERT_TAIL(&e.ready, q, in_ready);
}

void sn_qp_fail(struct sn_qp *q)
{
	if (q->state == IBV_QPS_ERR)
		return;
	q->state = IBV_QPS_ERR;
	sn_requester_flush(q);
	sn_responder_flush(q);
}

void sn_qp_break(uint32_t dev, uint32_t qpn)
{
	struct sn_qp *q;

	LIST_FOREACH(q, &e.all, in_all) {
		if (q->dev != dev || (qpn && sn_ibqp(q)->qp_num != qpn) || q->state == IBV_QPS_ERR ||
		    q->state == IBV_QPS_RESET)
			continue;
		sn_qp_fail(q);
		sn_qp_raise(q, IBV_EVENT_QP_FATAL);
	}
}

void sn_event_all(uint32_t dev, enum ibv_event_type type)
{
	struct ibv_async_event ev = { .element.port_num = 1 };
	struct sn_ctx *c;

	LIST_FOREACH(c, &e.watched, in_all)
		if (c->dev == dev)
			sn_async_raise(c, type, ev.element.qp);
}

static uint64_t turn_now, turn_due; /* the time; what is due by when is taken */

struct sn_pkt *sn_packet(struct sn_qp *q, enum sn_op op, uint32_t len, uint8_t **payload, bool *gone)
{
	uint32_t proc, gen;
	struct sn_pkt *p;

	*gone = q->peer_dev < 0 || !sn_host_qpn_owner((uint32_t)q->peer_dev, q->dest_qpn, &proc, &gen);
	*gone = *gone || sn_port_dark(q->dev) || sn_port_dark((uint32_t)q->peer_dev);
	if (*gone)
		return NULL;
	p = sn_link_begin(proc, gen, len, payload, gone);
	if (!p)
		return NULL;
	sn_faults_count(q->dev);
	p->sent = turn_now;
	p->op = (uint8_t)op;
	p->flags = p->nak = p->rnr_timer = 0;
	p->qp_type = (uint8_t)sn_ibqp(q)->qp_type;
	p->src_dev = (uint8_t)q->dev;
	p->dst_dev = (uint8_t)q->peer_dev;
	p->mtu = (uint16_t)q->mtu;
	p->src_qpn = sn_ibqp(q)->qp_num;
	p->dst_qpn = q->dest_qpn;
	p->npsn = 1;
	p->gap = 0;
	p->early = UINT32_MAX;
	p->off = p->total = 0;
	p->len = len;
	return p;
}

/* ---- one turn ---- */

/* XRC has a side that asks and one that answers. */
static int other_type(const struct sn_qp *q)
{
	enum ibv_qp_type own = q->ex.qp_base.qp_type;

	return own == IBV_QPT_XRC_SEND ? IBV_QPT_XRC_RECV : own == IBV_QPT_XRC_RECV ? IBV_QPT_XRC_SEND : own;
}

/* Who takes it; NULL: nobody. */
static struct sn_qp *receiver(const struct sn_pkt *p)
{
	struct sn_qp *q;

	q = sn_qp_find(p->dst_dev, p->dst_qpn);
	if (!q || sn_port_dark(p->dst_dev) || !sn_receives(q) || p->qp_type != other_type(q))
		return NULL;
	/* of an earlier life of one of the two: nothing is on a real wire for so long */
	if (p->sent < q->since)
		return NULL;
	/* a connected QP takes only what its own peer sends */
	return sn_is_ud(q) || (q->dest_qpn == p->src_qpn && q->peer_dev == p->src_dev) ? q : NULL;
}

static void handle(const struct sn_pkt *p, const uint8_t *payload, uint64_t now)
{
	struct sn_qp *q = receiver(p);

	if (!q)
		return;
	if (sn_unreliable(q))
		sn_unreliable_in(q, p, payload);
	else if (p->op < SN_READ_RSP)
		sn_responder_in(q, p, payload, now);
	else if (!sn_port_deaf(q->dev))
		sn_requester_in(q, p, payload, now);
}

static void came_in(struct sn_from *from, const struct sn_pkt *p)
{
	struct held *h;

	if (p->due <= turn_due && !e.nheap && !p->gap) {
		handle(p, sn_link_payload(from, p), turn_now);
		sn_link_free(from, p, false);
		return;
	}
	h = get_held();
	if (!h) {
		sn_say("out of memory, a packet is lost");
		sn_link_free(from, p, false);
		return;
	}
	h->due = p->due;
	h->seq = e.seq++;
	h->from = from;
	h->pkt = *p;
	sn_link_hold(from);
	heap_push(h);
}

/* The first half of a packet that comes in two; the second half when the gap is over. */
static void take_early(struct held *h)
{
	struct sn_qp *q = receiver(&h->pkt);

	if (!q || !sn_responder_early(q, &h->pkt, sn_link_payload(h->from, &h->pkt)))
		h->pkt.early = UINT32_MAX;
	/* counted from due, however late it is: the sender's next message is due just behind it */
	h->due += h->pkt.gap;
	h->pkt.gap = 0;
	heap_push(h);
}

static uint32_t take_due(void)
{
	uint32_t n = 0;

	for (; n < TURN_IN && e.nheap && e.heap[0]->due <= turn_due; n++) {
		struct held *h = heap_pop();

		if (h->pkt.gap) {
			take_early(h);
			continue;
		}
		handle(&h->pkt, sn_link_payload(h->from, &h->pkt), turn_now);
		sn_link_free(h->from, &h->pkt, true);
		put_held(h);
	}
	return n;
}

/* Requests and responses of a QP take turns, too: each may fill the port. */
static enum sn_step step(struct sn_qp *q, uint64_t now, uint64_t *next)
{
	enum sn_step ret = SN_IDLE;

	for (int i = 0; i < 2; i++) {
		uint64_t when = UINT64_MAX;
		enum sn_step st;

		q->requests_turn = !q->requests_turn;
		st = q->requests_turn ? sn_requester_step(q, now, &when) : sn_responder_step(q, now, &when);
		if (st == SN_SENT)
			return st;
		if (st == SN_LATER) {
			ret = st;
			if (when < *next)
				*next = when;
		}
	}
	return ret;
}

/* QPs take turns by one packet. */
static uint32_t send_out(uint64_t now, uint64_t *next)
{
	struct sn_qp *q, *first_idle = NULL;
	uint32_t n = 0;

	while (n < TURN_OUT && (q = TAILQ_FIRST(&e.ready)) && q != first_idle) {
		TAILQ_REMOVE(&e.ready, q, in_ready);
		q->ready = false;
		switch (step(q, now, next)) {
		case SN_SENT:
			n++;
			first_idle = NULL;
			sn_qp_ready(q);
			break;
		case SN_LATER:
			sn_qp_ready(q);
			if (!first_idle)
				first_idle = q;
			break;
		case SN_IDLE:
			break;
		}
	}
	return n;
}

static void run_timers(uint64_t now)
{
	struct sn_qp *q;
	uint64_t t;

	if (now < e.timers)
		return;
	e.timers = UINT64_MAX;
	LIST_FOREACH(q, &e.all, in_all) {
		t = sn_requester_timer(q, now);
		if (t < e.timers)
			e.timers = t;
	}
}

void sn_timer_at(uint64_t when)
{
	if (when < e.timers)
		e.timers = when;
}

/* True: there is more to do at once. */
static bool turn(void)
{
	uint64_t next = UINT64_MAX;
	uint32_t n;

	/* before anything is looked at: who rings later is seen next time */
	atomic_store(&e.seen, atomic_load(bell()));
	turn_now = sn_now();
	turn_due = turn_now - sn_adverse_behind(turn_now, e.nheap ? e.heap[0]->due : UINT64_MAX);
	sn_faults_run(turn_now, &next);
	sn_adverse_run(turn_now, &next);
	n = take_due();
	if (n < TURN_IN)
		n += sn_link_receive(came_in, TURN_IN - n);
	sn_place_run(turn_now, &next);
	run_timers(turn_now);
	n += send_out(turn_now, &next);
	sn_link_flush();
	if (e.nheap && e.heap[0]->due + (turn_now - turn_due) < next)
		next = e.heap[0]->due + (turn_now - turn_due);
	if (e.timers < next)
		next = e.timers;
	if (n)
		next = 0;
	atomic_store(&e.next, next);
	return n;
}

/* The clock is asked only if there is something to wait for. */
static bool has_work(void)
{
	uint64_t next = atomic_load_explicit(&e.next, memory_order_relaxed);
	uint32_t seen = atomic_load_explicit(&e.seen, memory_order_relaxed);

	return atomic_load_explicit(bell(), memory_order_acquire) != seen ||
	       (next != UINT64_MAX && next <= sn_now());
}

void sn_engine_poll(void)
{
	static _Thread_local unsigned int vain;

	/* not in a forked child, which has no engine yet */
	if (!atomic_load_explicit(&e.running, memory_order_acquire))
		return;
	sn_polled(sn_now());
	if (has_work() && !pthread_mutex_trylock(&lock)) {
		turn();
		pthread_mutex_unlock(&lock);
	} else if (++vain % VAIN_YIELD == 0) {
		sched_yield();
	}
}

void sn_polled(uint64_t when)
{
	if (atomic_load_explicit(&e.running, memory_order_acquire))
		atomic_store_explicit(&sn_shared->procs[e.proc].polled, when, memory_order_relaxed);
}

void sn_engine_push(void)
{
	if (turn())
		sn_wake(e.proc);
}

void sn_engine_take_over(void)
{
	if (!atomic_load_explicit(&e.running, memory_order_acquire))
		return;
	sn_polled(0);
	atomic_fetch_add(bell(), 1);
	syscall(SYS_futex, bell(), FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void sleep_on_bell(uint32_t was, uint64_t ns)
{
	struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

	syscall(SYS_futex, bell(), FUTEX_WAIT, was, &t, NULL, 0);
}

static void *engine_thread(void *arg)
{
	struct sn_proc *self = &sn_shared->procs[e.proc];

	(void)arg;
	prctl(PR_SET_NAME, "softnic");
	prctl(PR_SET_TIMERSLACK, 1ul); /* packets are due to the microsecond */
	while (!atomic_load(&e.stop)) {
		uint32_t was = atomic_load(&self->bell);
		uint64_t now = sn_now(), next;
		bool dozes;

		sn_lock();
		if (turn()) {
			sn_unlock();
			continue;
		}
		if (now >= e.tidy) {
			sn_link_tidy();
			e.tidy = now + TIDY_NS;
		}
		sn_unlock();
		next = atomic_load(&e.next);
		now = sn_now();
		dozes = sn_is_polled(self, now);
		if (dozes)
			next = now + POLLED_LOOK_NS;
		if (next <= now)
			continue;
		atomic_store(&self->sleeping, dozes ? SN_DOZES : SN_SLEEPS);
		/* with the bell rung since, or about to see that we sleep: the futex compares it */
		sleep_on_bell(was, next - now < TIDY_NS ? next - now : TIDY_NS);
		atomic_store(&self->sleeping, SN_AWAKE);
	}
	return NULL;
}

/* ---- start, fork ---- */

/* In the order in which they are taken elsewhere. */
static void before_fork(void)
{
	sn_lock();
	sn_host_fork(SN_BEFORE_FORK);
}

static void after_fork_parent(void)
{
	sn_host_fork(SN_FORK_PARENT);
	sn_unlock();
}

/* The child has none of this: its contexts are of an old epoch, and the parent's rings are not its own. */
static void after_fork_child(void)
{
	uint32_t epoch = e.epoch;
	struct held *h;

	while ((h = e.unused)) {
		e.unused = h->next;
		free(h);
	}
	for (size_t i = 0; i < e.nheap; i++)
		free(e.heap[i]);
	free(e.heap);
	for (uint32_t i = 0; i < SN_DEVS; i++)
		free(e.by_qpn[i]);
	memset(&e, 0, sizeof(e));
	e.epoch = epoch + 1;
	/* who waited on it is not here */
	sn_acknowledged = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	sn_link_after_fork();
	sn_keys_after_fork();
	sn_dm_after_fork();
	sn_adverse_after_fork();
	sn_place_after_fork();
	sn_host_fork(SN_FORK_CHILD);
	sn_unlock();
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static int join_host(void)
{
	int ret;

	if (e.joined)
		return 0;
	if (!sn_host())
		return -errno;
	ret = sn_host_join();
	if (ret < 0)
		return ret;
	e.proc = (uint32_t)ret;
	TAILQ_INIT(&e.ready);
	LIST_INIT(&e.all);
	LIST_INIT(&e.watched);
	sn_faults_join();
	e.timers = UINT64_MAX;
	if (!e.heap)
		e.heap = calloc(HELD_FIRST, sizeof(*e.heap));
	if (!e.heap)
		return -ENOMEM;
	e.heap_size = HELD_FIRST;
	for (uint32_t i = 0; i < HELD_FIRST; i++) {
		struct held *h = calloc(1, sizeof(*h));

		if (!h)
			return -ENOMEM;
		put_held(h);
	}
	for (uint32_t i = 0; i < sn_shared->ndevs; i++) {
		if (!e.by_qpn[i])
			e.by_qpn[i] = calloc(SN_QPNS, sizeof(*e.by_qpn[i]));
		if (!e.by_qpn[i])
			return -ENOMEM;
	}
	e.joined = true;
	return 0;
}

static int start_thread(void)
{
	sigset_t all, old;
	int ret;

	/* the program's handlers run in its own threads */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	atomic_store(&e.stop, false);
	ret = -pthread_create(&e.thread, NULL, engine_thread, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	atomic_store(&e.running, !ret);
	return ret;
}

void sn_engine_watch(struct sn_ctx *c)
{
	sn_lock();
	LIST_INSERT_HEAD(&e.watched, c, in_all);
	c->watched = true;
	sn_unlock();
}

int sn_engine_open(void)
{
	int ret;

	sn_lock();
	ret = join_host();
	if (!ret && !e.contexts)
		ret = start_thread();
	if (!ret)
		e.contexts++;
	sn_unlock();
	return ret;
}

void sn_engine_close(struct ibv_context *c)
{
	struct sn_qp *q, *next;
	pthread_t thread;
	bool last;

	sn_lock();
	sn_place_all();
	/* as when the kernel takes back what the program left behind; the memory is the program's loss */
	for (q = LIST_FIRST(&e.all); q; q = next) {
		next = LIST_NEXT(q, in_all);
		if (sn_is_xrc_recv(q) ? !sn_xrc_forget(q, c) : sn_ibqp(q)->context != c)
			continue;
		sn_qp_detach(q);
		sn_host_qpn_drop(q->dev, sn_ibqp(q)->qp_num);
	}
	sn_srq_forget(c);
	sn_xrcd_forget(c);
	if (sn_ctx(c)->watched && sn_ctx(c)->epoch == e.epoch)
		LIST_REMOVE(sn_ctx(c), in_all);
	last = sn_ctx(c)->epoch == e.epoch && !--e.contexts;
	thread = e.thread;
	if (last) {
		atomic_store(&e.stop, true);
		atomic_store(&e.running, false);
		atomic_fetch_add(bell(), 1);
		syscall(SYS_futex, bell(), FUTEX_WAKE, 1, NULL, NULL, 0);
	}
	sn_unlock();
	if (last)
		pthread_join(thread, NULL);
}

/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* Between the files that deal with queue pairs: qp.c, twin.c, post.c, chain.c, release.c, fail.c, poll.c. */
#ifndef DUALPORT_QP_H
#define DUALPORT_QP_H

#include "core.h"

/* ---- qp.c; dp_qps and look-ups in qps.c */

/* The program will not use q again, without a real destroy_qp (close_device). */
void dp_qp_abandon(struct dp_qp *q);
/*
 * Ends whatever the shim does for q: drops the queue and held completions, destroys the twins, native from here
 * on. With ctl held, scq->lock and lock not.
 */
void dp_qp_teardown(struct dp_qp *q);
/* From RTR on: record ops, native otherwise. With ctl held. 0 or -ENOMEM. */
int dp_qp_track(struct dp_qp *q);
/* The answer was no, with reason (enum dp_fallback, or -1: no failure); nothing is kept. With ctl held. */
void dp_qp_untrack(struct dp_qp *q, int reason);

/* Nothing is left to do for completions: native from here on. With scq->lock and lock held. */
void dp_qp_native(struct dp_qp *q);

static inline struct dp_slot *dp_qp_slot(struct dp_qp *q, uint64_t pos)
{
	return &q->slot[pos & q->order.mask];
}
static inline void dp_slot_name(struct dp_slot *s, uint64_t wr_id, uint32_t byte_len, enum ibv_wr_opcode op)
{
	s->wr_id = wr_id;
	s->byte_len = byte_len;
	s->opcode = (uint8_t)op;
}
/* The rest of a slot is written before it is read: when it is queued, or its completion is held. */
static inline void dp_slot_fill(struct dp_slot *s, uint64_t wr_id, uint32_t byte_len, enum ibv_wr_opcode op)
{
	dp_slot_name(s, wr_id, byte_len, op);
	s->posted_ns = 0;
}
/* Room for one more op; with lock held. */
bool dp_qp_room(struct dp_qp *q);

/*
 * The depth as the program knows it: what it was not told of still fills its send queue, unsignalled ones included. Is the op
 * at pos, which was added last, beyond it? Where nothing is held, the provider knows of one that goes at once, and may have more
 * room than it says.
 */
static inline bool dp_qp_too_deep(struct dp_qp *q, uint64_t pos, bool goes)
{
	return (!goes || dp_order_held(&q->order) != UINT64_MAX) && pos - dp_order_given(&q->order) >= q->cap.max_send_wr;
}

/* Of the op that a request with these send_flags is. */
static inline unsigned dp_qp_signaled(const struct dp_qp *q, unsigned int send_flags)
{
	_Static_assert((unsigned)IBV_SEND_SIGNALED == (unsigned)DP_OP_SIGNALED, "one bit for both");
	return (send_flags & IBV_SEND_SIGNALED) | q->sig_all;
}
/* The same, and whether it is fenced. */
static inline unsigned dp_qp_op_flags(const struct dp_qp *q, unsigned int send_flags)
{
	_Static_assert((unsigned)IBV_SEND_FENCE == (unsigned)DP_OP_FENCE, "one bit for both");
	return dp_qp_signaled(q, send_flags) | (send_flags & IBV_SEND_FENCE);
}
/*
 * PENDING, FAILING: records a request that passed natively. False: there is no room, so q cannot bond any more, and completions
 * pass as they come; or it failed with some that the provider was never given. With lock held. post.c.
 */
bool dp_qp_record(struct dp_qp *q, uint64_t wr_id, enum ibv_wr_opcode op, unsigned int send_flags);

/* What dp_qp_rkeys() found may be unlinked; with lock held. */
static inline void dp_qp_forget_key(struct dp_qp *q)
{
	q->known = NULL;
	q->lone_rkey = q->way.rkey = UINT64_MAX;
}
/* The peer's keys are another's from here on; with lock held. */
static inline void dp_qp_set_rpd(struct dp_qp *q, struct dp_rpd *rpd)
{
	q->rpd = rpd;
	dp_qp_forget_key(q);
}
/*
 * What a WRITE that is no bulk adds to its op's flags, by its key (NULL: not known): within one connection atomics and
 * SENDs are not bypassed where order is relaxed, WRITEs are.
 */
static inline unsigned dp_qp_strong(const struct dp_rkeys *keys)
{
	return keys && (keys->flags & DP_RKEY_RELAXED) && dp_cfg.flush == DP_FLUSH_AUTO ? DP_OP_STRONG : 0;
}
/*
 * dp_rkey_peek(), which programs mostly ask for the same over and over; with lock held. Whoever takes a key away comes for
 * the lock before its keys are freed (dp_key_barrier()), and then it is not known here any more either.
 */
static inline const struct dp_rkeys *dp_qp_rkeys(struct dp_qp *q, uint32_t rkey)
{
	if (__builtin_expect(!q->known || q->known_rkey != rkey, 0)) {
		q->known = q->rpd ? dp_rkey_peek(q->rpd, rkey) : NULL;
		q->known_rkey = rkey;
		q->lone_rkey = q->known && !q->known->shift && !dp_qp_strong(q->known) ? rkey : UINT64_MAX;
	}
	return q->known;
}
/*
 * Where the order machine is told that the next op is, which names its memory by addr and rkey: two keys of one memory need not
 * agree in the addresses by which WRs name it. What is not known of a key (it has no twins, or the answer is on its way) is taken
 * as it is named; *apart: others that are outstanding are placed in the other way, so that overlaps with them cannot be seen.
 * With lock held. post.c.
 */
uint64_t dp_qp_place(struct dp_qp *q, uint64_t addr, uint32_t rkey, bool *apart);
/* dp_plan_cut() into q->cut, which programs mostly ask for the same over and over. Rails with bytes. */
static inline unsigned dp_qp_cut(struct dp_qp *q, uint64_t raddr, uint64_t len)
{
	uint64_t base = raddr & (q->policy.align - 1);

	if (q->cut.len != len || q->cut.base != base) {
		q->cut.n = dp_plan_cut(&q->policy, raddr, len, q->cut.part);
		q->cut.base = base;
		q->cut.len = len;
	}
	return q->cut.n;
}
/* Has sibling r room for one more fragment? */
static inline bool dp_qp_room_on(const struct dp_qp *q, uint32_t r)
{
	return dp_order_outstanding(&q->order, r) < q->rail[r].sq_size;
}

/* ---- meter.c: with lock held */

/* By its mode. */
static inline bool dp_meter_needed(const struct dp_qp *q)
{
	return q->order.mode == DP_ORDER_STRICT || q->order.mode == DP_ORDER_RC;
}
/*
 * Small requests that come and go with nothing large beside them tell nothing of a port, and must not cost a look at the
 * clock each: the meter hears of them when something as large as DP_METER_LITTLE is under way, or when they have summed up.
 * Of the rest it hears when what is under way has doubled or halved, begins or ends, and each DP_METER_STEP.
 */
#define DP_METER_LITTLE 4096u
#define DP_METER_STEP 65536u
/* After anything was posted or completed. */
void dp_meter_update(struct dp_qp *q);
/* Has the meter of this rail's port to hear of what q posted since it was told last? */
static inline bool dp_meter_of_post(const struct dp_qp *q, uint32_t r)
{
	const struct dp_rail *rail = &q->rail[r];

	return q->order.bytes[r] - rail->quiet_from >= rail->quiet_n;
}
/* The same, also of what completed. What was told is told to be gone. */
static inline bool dp_meter_of_note(const struct dp_qp *q, uint32_t r)
{
	const struct dp_rail *rail = &q->rail[r];

	return dp_meter_of_post(q, r) || q->order.arrived[r] - rail->metered_arrived >= DP_METER_STEP;
}
/* Nothing of q is outstanding any more, or will be told of. */
void dp_meter_drop(struct dp_qp *q);
void dp_meter_rtt(struct dp_qp *q, uint64_t ns); /* one was seen */
/* Is a bulk WR of len bytes, cut so, better whole than waiting for rail 0? */
bool dp_meter_haste(const struct dp_qp *q, const struct dp_part *part, uint64_t len);

#define TRIP_EVERY 128 /* of so many signals posted at once one tells how long a round trip takes: two looks at the clock */

/* Is the one at pos timed? What waited is in any case. */
static inline bool dp_trip_timed(const struct dp_qp *q, uint64_t pos)
{
	return __builtin_expect(!(pos % TRIP_EVERY), 0) && dp_meter_needed(q);
}
void dp_trip_ended(struct dp_qp *q, const struct dp_slot *s);
/*
 * The completion of the op at pos was read. lone: it is one of which no more is written than dp_slot_name() does, but at
 * positions that are timed. A time of an op before it in its slot would be a longer one, which means nothing.
 */
static inline void dp_trip_ends(struct dp_qp *q, uint64_t pos, bool lone)
{
	if ((lone ? dp_trip_timed(q, pos) : dp_meter_needed(q)) && dp_qp_slot(q, pos)->posted_ns)
		dp_trip_ended(q, dp_qp_slot(q, pos));
}

/* ---- upstream.c */

/*
 * Names the PCIe upstream port of a device: of one host, equal numbers mean that what both write is seen in the order
 * in which they acknowledged it. Means nothing to other hosts. Never 0.
 */
uint64_t dp_upstream(struct ibv_context *ctx);
uint64_t dp_upstream_of_path(char *path); /* of where the device link leads; destroys path */

/* ---- flush.c: with lock held */

#define DP_FLUSH_BIT (UINT64_C(1) << 63) /* in the wr_id of a twin: a flush, else the number of a fragment */

/* At the switch: on which siblings acknowledged is not visible. rail0: dp_upstream() of the peer's own port. */
void dp_flush_setup(struct dp_qp *q, uint64_t rail0);
/* May a WRITE with this key of the program go to sibling r? False: too many regions there wait for a flush, which is asked for. */
bool dp_flush_room(struct dp_qp *q, uint32_t r, uint32_t rkey0);
/* Fragment seq of sibling r will write there, also the byte at addr; keys: what is known of the program's key. */
void dp_flush_wrote(struct dp_qp *q, uint32_t r, uint64_t seq, uint64_t addr, uint32_t rkey0,
		    const struct dp_rkeys *keys);
/*
 * Appends to sibling r's chain the flush that is due behind what stands there. False: the chain has no room for it;
 * post it, and call again.
 */
bool dp_flush_chain(struct dp_qp *q, uint32_t r);
/* The same for what rail 0 wrote, on the spare, whose chain always has room. order.flush has bit 0. */
void dp_flush_spare(struct dp_qp *q);
/* A signal that is DP_OP_STRONG is about to be added: counts, and says once, if it could not be told when all before it is visible. */
void dp_flush_strong(struct dp_qp *q);
/* The op of that number on rail 0 writes there, also the byte at addr, with the program's key. order.flush has bit 0. */
void dp_flush_wrote0(struct dp_qp *q, uint64_t seq, uint64_t addr, uint32_t rkey0);
/* The newest fragment that a flush with this wr_id covers; of others their own number. */
uint64_t dp_flush_covers(uint64_t wr_id);
/* What the good completion of a flush with this wr_id says. */
void dp_flush_done(struct dp_qp *q, struct dp_rail *rail, uint64_t wr_id);
/* Makes wr, which has room for an SGE, read to it. */
void dp_scratch_sge(const struct dp_rail *rail, struct ibv_send_wr *wr, uint32_t len);

/* ---- spare.c: a queue pair of ours over the program's own port, for flushes of what rail 0 wrote */

struct dp_twin_info;
/* Makes it, in INIT. With ctl held. 0 or -errno. */
int dp_spare_make(struct dp_qp *q, struct dp_twin_info *mine);
/* With ctl held, scq->lock and lock not. No spare: nothing. */
void dp_spare_destroy(struct dp_qp *q);
/* It broke: nothing tells when rail 0's bytes are visible until there is a new one. With scq->lock and lock held. */
void dp_spare_lost(struct dp_qp *q, enum ibv_wc_status status);
/* There will be no new one, and acknowledgements count. With scq->lock and lock held. */
void dp_spare_over(struct dp_qp *q, const char *why);
/* Makes another in the place of one that broke, in INIT, which takes over what is to be flushed. As dp_spare_make(). */
int dp_spare_renew(struct dp_qp *q, struct dp_twin_info *mine);
/* That is connected. With ctl held, scq->lock and lock not. */
void dp_spare_up(struct dp_qp *q);

/* ---- alone.c, qpex.c and qpex_provider.c: ibv_wr_* */

/*
 * Posts a session that was collected, wr the first of it (NULL: it is empty): all, or none and the error. The
 * session is open, no lock of q held.
 */
int dp_post_session(struct dp_qp *q, struct ibv_send_wr *wr);
/* The same of one request of one SGE, len bytes, by what dp_may_go_alone() says of it. */
int dp_post_session_lone(struct dp_qp *q, struct ibv_send_wr *wr, uint32_t len);
int dp_post_session_rest(struct dp_qp *q, struct ibv_send_wr *wr, uint32_t len);

_Static_assert(IBV_WR_RDMA_WRITE == 0 && IBV_WR_RDMA_WRITE_WITH_IMM == 1 && IBV_WR_SEND == 2 && IBV_WR_SEND_WITH_IMM == 3 &&
	       IBV_WR_RDMA_READ == 4, "kinds of requests are told apart by their order");

/* Of one SGE or none, len bytes: is it a signal of a kind that needs no closer look? */
static inline bool dp_may_go_alone(const struct dp_qp *q, const struct ibv_send_wr *wr, uint32_t len)
{
	if (wr->opcode == IBV_WR_RDMA_WRITE)
		return len < q->spread_min || (wr->send_flags & IBV_SEND_INLINE);
	return wr->opcode <= IBV_WR_SEND_WITH_IMM;
}

/* Gives the session to the provider. Returns its error: then it took none. With lock held or not. */
int dp_qpex_play(struct dp_qp *q);
/* Can a QP made for these IBV_QP_EX_WITH_* be bonded? */
bool dp_qpex_can(uint64_t send_ops);
int dp_qpex_new(struct dp_qp *q); /* 0, or -errno: the QP stays native */
void dp_qpex_free(struct dp_qp *q);
/*
 * No session is collected without a look-up: it is native, or is going to be destroyed and nobody takes what gets its address for
 * it. Close: it was destroyed, maybe with an open session.
 */
void dp_qpex_hide(struct dp_qp *q);
void dp_qpex_close(struct dp_qp *q);
/*
 * From here on sessions are collected. In a thread of the program's, as all that changes its pointers; with ctl
 * held.
 */
void dp_qpex_install(struct dp_qp *q);
/* Around the real modify_qp, which may set the provider's pointers anew; with ctl held. */
bool dp_qpex_before_modify(struct dp_qp *q);
void dp_qpex_after_modify(struct dp_qp *q, bool locked);
void dp_qpex_after_fork(struct dp_qp *q);

/* What post_send does for a QP that is not native; session: wr is what ibv_wr_* collected. No lock held. */
int dp_post_tracked(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad, bool session);
/* A twin took not what it should have taken: q fails. No lock of q held. */
void dp_qp_sibling_refused(struct dp_qp *q);

/* ---- bulk.c: the short way of bulk */

/* Of one SGE, len bytes: can wr go there? */
static inline bool dp_bulk_like(const struct ibv_send_wr *wr, uint32_t len)
{
	return (wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_READ) && len >= dp_cfg.spread_min &&
	       !(wr->send_flags & (IBV_SEND_INLINE | IBV_SEND_FENCE));
}
/* With lock held, BONDED, chains not full: enters wr and puts its parts into the chains. False: nothing was done. */
bool dp_bulk_add(struct dp_qp *q, const struct ibv_send_wr *wr);
/* As dp_post_one(), for what is dp_bulk_like() and has an SGE. */
int dp_bulk_post(struct dp_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad, bool session);

/* ---- chain.c: with lock held */

/* Appends a WR of len bytes to rail 0's chain: part NULL: as it is; else cut to part. */
void dp_chain_add0(struct dp_qp *q, const struct ibv_send_wr *wr, const struct dp_part *part, uint64_t len);
/* Appends part of wr to a sibling's chain. lkeys: [num_sge] of that sibling. A READ goes to our memory if scratch. */
void dp_chain_add(struct dp_qp *q, uint32_t rail, const struct ibv_send_wr *wr, const struct dp_part *part,
		  const uint32_t *lkeys, uint32_t rkey, uint64_t seq, bool scratch);
bool dp_chain_full(const struct dp_qp *q, uint32_t rail);
/* Takes the fragments out of the siblings' chains that are not planned any more. */
void dp_chain_take_back(struct dp_qp *q);
/* Posts rail 0's chain and empties it. Returns the provider's error; *accepted: how many WRs it took. */
int dp_chain_post0(struct dp_qp *q, unsigned *accepted);
/* Posts the siblings' chains and empties them. False: a provider refused. */
bool dp_chain_posts(struct dp_qp *q);
void dp_chain_drop(struct dp_qp *q); /* empties all */
static inline void dp_flow_count(struct dp_flow *f, uint64_t bytes, unsigned msgs, uint64_t reads)
{
	dp_count(&f->bytes, bytes);
	dp_count(&f->msgs, msgs);
	if (reads)
		dp_count(&f->read_bytes, reads);
}
/* Posts wr to a sibling, of which the last, and it alone, is signalled; it tells of fragments up to seq. False: refused. */
static inline bool dp_rail_post(struct dp_rail *rail, struct ibv_send_wr *wr, uint64_t seq)
{
	struct ibv_send_wr *bad;

	atomic_fetch_add_explicit(&rail->icq->pending, 1, memory_order_relaxed);
	if (rail->dead || rail->twin->context->ops.post_send(rail->twin, wr, &bad)) {
		atomic_fetch_sub_explicit(&rail->icq->pending, 1, memory_order_relaxed);
		rail->dead = true;
		return false;
	}
	rail->posted = seq;
	rail->signaled++;
	return true;
}

/* Has anybody to come back to q, although nothing of it can be given? BONDED, with lock held. */
static inline bool dp_qp_again(const struct dp_qp *q)
{
	return q->retry || q->fail_waits;
}

/* ---- release.c: with lock held */

/* A copy of wr for the queue; part/rkey/lkey as in struct dp_qwr, NULL if whole. NULL: no memory. */
struct dp_qwr *dp_qwr_new(struct dp_qp *q, const struct ibv_send_wr *wr, const struct dp_part *part,
			  const uint32_t *rkey, const uint32_t *lkey);
void dp_qwr_drop(struct dp_qp *q, uint64_t pos); /* of the op at pos, if there is one, it is not needed any more */
void dp_queue_drop(struct dp_qp *q);		 /* the same of all */
void dp_copies_make(struct dp_qp *q);		 /* nrails is known; without memory each is the C library's */
void dp_copies_free(struct dp_qp *q);
/* May something go that dp_qp_release() has not posted? So it is when a flush was due and found nothing to read. */
static inline bool dp_queue_may_go(struct dp_qp *q)
{
	return dp_order_queued(&q->order) && !q->retry && (dp_order_may_post0(&q->order) || dp_order_may_posts(&q->order));
}
/*
 * Posts whatever is queued on rail 0 alone, whole, without waiting: the QP is in ERR, the provider flushes it. If it is
 * not (in_err), or the provider takes none, dp_fail_fake() for each. What siblings have not got of ops before `end` stays.
 */
void dp_queue_flush(struct dp_qp *q, bool in_err, uint64_t end);
/* Gives it to them as far as it may go; false: a provider refused. */
bool dp_queue_settle(struct dp_qp *q, uint64_t end);

/* ---- fail.c: with scq->lock and lock held */

/* Rail 0 gave an error completion. It is taken in charge. */
void dp_fail_rail0(struct dp_qp *q, const struct ibv_wc *wc);
/*
 * A sibling gave an error completion, for the op at pos, or a provider refused what it should have taken (pos
 * UINT64_MAX).
 */
void dp_fail_sibling(struct dp_qp *q, enum ibv_wc_status status, uint64_t pos);
/* A provider refused a WR at release. */
void dp_fail_refused(struct dp_qp *q);
/* The program moved the QP to ERR. */
void dp_fail_by_program(struct dp_qp *q);
/* A twin met an access error as responder: so would the program's QP have, which is moved to ERR. */
void dp_fail_by_peer(struct dp_qp *q);
/* FAILING: the next completion that the program may get; false: none now. */
bool dp_fail_next(struct dp_qp *q, struct ibv_wc *wc);
/* FAILING: something completed. */
void dp_fail_go_on(struct dp_qp *q);
/* fail_waits: so it did, or time has passed. */
void dp_fail_waited(struct dp_qp *q);
/* Is there one? */
bool dp_fail_ready(struct dp_qp *q);
void dp_fail_end(struct dp_qp *q); /* frees what it kept */
/* The op at pos never went: it is given as flushed after all before it. */
void dp_fail_fake(struct dp_qp *q, uint64_t pos);

/* ---- tell.c: a twin met an access error as responder */

/* Moves q to ERR and has its program told, if twin is in ERR. On the control thread, with ctl held; not if it is going. */
void dp_tell_twin(struct dp_qp *q, struct ibv_qp *twin, enum ibv_event_type type);
/* An event of a QP of ours: if it tells of a program's, that is made of it. */
bool dp_tell_take(const struct dp_verbs *real, struct ibv_async_event *event);
void dp_tell_forget(struct dp_qp *q);  /* the program's QP goes */
void dp_tell_destroy(struct dp_qp *q); /* with ctl held, scq->lock and lock not */

/* ---- sqd.c: with ctl held, in the program's thread */

/* Before the program's QP goes from RTS to SQD; lets go of ctl meanwhile. */
void dp_sqd_begin(struct dp_qp *q);
/* It is in RTS again, or never left it. */
void dp_sqd_end(struct dp_qp *q);

/* ---- twin.c: with ctl held */

struct dp_twin_info {
	union ibv_gid gid;
	uint16_t lid;
	uint8_t link_layer;
	uint8_t mtu; /* enum ibv_mtu */
	uint32_t qpn, psn;
	uint8_t rd_atomic; /* what this side can take as responder */
	uint8_t access;	   /* IBV_ACCESS_REMOTE_* that the program gave its QP */
	uint64_t upstream;  /* dp_upstream() of its device */
	uint8_t sib_idx;    /* of the sender's siblings: which of its keys belong to this twin */
	uint8_t sgid_index; /* not sent */
	char text[80];
};

/* Makes a twin of q for rail (sib set; idx 0: the spare) in INIT, and describes it. 0 or -errno. */
int dp_twin_make(struct dp_qp *q, struct dp_rail *rail, struct dp_twin_info *mine);
int dp_twin_rtr(struct dp_qp *q, struct dp_rail *rail, const struct dp_twin_info *mine,
		const struct dp_twin_info *peer);
int dp_twin_rts(struct dp_qp *q, struct dp_rail *rail, const struct dp_twin_info *mine,
		const struct dp_twin_info *peer);
/* Gives it the access flags of the program's QP. It is not possible in RTR (IBTA 11.2.5.2). 0 or -errno. */
int dp_twin_access(struct dp_qp *q, struct dp_rail *rail);
/* Posts the probe, an empty signalled WRITE, or READ where the peer takes no WRITEs. 0 or -errno. */
int dp_twin_probe(struct dp_qp *q, struct dp_rail *rail, const struct dp_twin_info *peer);
/* Posts wr in a probe's stead: its completion is taken as one. 0 or -errno. */
int dp_twin_post_probe(struct dp_qp *q, struct dp_rail *rail, struct ibv_send_wr *wr);
/* What the port carries, in units of 100 Mbit/s; 0: unknown. */
uint32_t dp_port_rate(struct ibv_context *ctx, uint8_t port);
/* Destroys it and takes its completions out of the internal CQ. */
void dp_twin_destroy(struct dp_qp *q, struct dp_rail *rail);
/* The GID entry of the program's port that its AH uses, its type and netdev ("" if unknown). */
int dp_gid_of(const struct dp_verbs *real, struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid,
	      uint32_t *type, char *netdev);

/* ---- cq.c, ready.c, poll.c */
void dp_cq_unready(struct dp_cq *cq, struct dp_qp *q); /* with cq->lock held */
/* Drops what was read ahead of a QP that was reset or destroyed, as providers do in the CQ; with cq->lock held. */
void dp_cq_purge(struct dp_cq *cq, uint32_t qp_num);
/*
 * Makes the record of a CQ that the program created, x its extended part or NULL. NULL: no memory; then x is not
 * taken.
 */
struct dp_cq *dp_cq_adopt(struct dp_ctx *c, struct ibv_cq *cq, struct dp_cqex *x, struct dp_channel *shadow);
/* poll_cq of one, from an extended CQ with active QPs. more: of the completion given. */
int dp_cq_poll_one(struct dp_cq *cq, struct ibv_wc *wc, struct dp_wc_more *more);
/* The same, from one that tells no more than an ibv_wc, extended or not. */
int dp_cq_poll_plain(struct dp_cq *cq, struct ibv_wc *wc);

/* ---- cqex.c */
struct ibv_cq_ex *dp_create_cq_ex(struct ibv_context *ctx, struct ibv_cq_init_attr_ex *attr);
/*
 * Reads up to n completions of the program's own CQ, one at a time where it tells more than an ibv_wc; cq->more is
 * of that one. With lock held, inside dp_cqex_enter(). As poll_cq.
 */
int dp_cqex_read(struct dp_cq *cq, int n, struct ibv_wc *wc);
/* Nobody else is between start_poll and end_poll. False only without wait; with wait before lock is taken. */
bool dp_cqex_enter(struct dp_cq *cq, bool wait);
void dp_cqex_leave(struct dp_cq *cq);
/* A QP of ours sends into it. In a thread of the program's; with lock held. */
void dp_cqex_install(struct dp_cq *cq);
bool dp_cqex_single(const struct dp_cq *cq); /* made for one thread? False if it is not extended. */
void dp_cqex_free(struct dp_cq *cq);
void dp_cqex_hide(struct dp_cq *cq); /* as dp_qpex_hide() and _close() */
void dp_cqex_close(struct dp_cq *cq);
void dp_cqex_after_fork(struct dp_cq *cq);

#endif

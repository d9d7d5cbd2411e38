// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * When a CQ has an event. One port raises one for each arm, when the first completion comes behind it, whoever takes that
 * completion and if it is taken at once. A completion comes, for the program, when it is first seen to be deliverable
 * (poll.c), so nothing that waits in the CQ when it is armed makes an event. dp_cq.armed goes
 *	any     -> ARM_ANY, ARM_SOLICITED	by req_notify_cq
 *	ARM_ANY -> ARM_SPENT			by an event of ours
 *	any     -> ARM_NONE			by an event of the kernel that the program gets
 *
 * Devices differ where a completion that nobody has polled yet is there at the arm: by IBTA (11.4.2.2) it makes no event;
 * a ConnectX, which is told how far the program has polled, makes one, and there are programs that sleep without another
 * poll. So there is an event (ARM_OLD_*), and it is taken back if a poll leaves nothing of that, as long as nothing new came.
 *
 * While things are held in a CQ, the kernel's event says only that rail 0 has something: it is taken by us, and the CQ
 * looked at. If nothing came of it, the provider is armed again for the program's arm, which still stands.
 *
 * Otherwise the program gets it. An event of ours leaves the provider's arm as it is; the kernel's, if it comes before the
 * program has armed again, would be the second one for one arm: it is swallowed.
 */
#include "core.h"

static bool for_solicited(int arm)
{
	return arm == DP_ARM_SOLICITED || arm == DP_ARM_OLD_SOLICITED;
}

/*
 * Memory order, where the CQ's lock is not held: a completion may become deliverable while the program arms. Here and in
 * dp_req_notify_cq() armed is changed by a read-modify-write, also where its value stays, so that one of the two comes
 * first. If the arm does, it is seen here and makes the event. If this does, the arm acquires what is released here, so the
 * poll that has to follow an arm finds the completion. A mere load here could miss both.
 */
static void raise_event(struct dp_cq *cq, bool solicited)
{
	int old, new;

	if (!cq->channel)
		return;
	old = atomic_load_explicit(&cq->armed, memory_order_relaxed);
	do {
		new = old == DP_ARM_ANY || old == DP_ARM_OLD_ANY || (solicited && for_solicited(old)) ? DP_ARM_SPENT : old;
	} while (!atomic_compare_exchange_weak(&cq->armed, &old, new));
	if (new != old && old < DP_ARM_OLD_ANY)
		dp_channel_push(cq);
}

void dp_arm_raise(struct dp_cq *cq)
{
	raise_event(cq, false);
}

void dp_arm_raise_error(struct dp_cq *cq)
{
	raise_event(cq, true);
}

/* The caller has cq->lock if the CQ is active. */
static int arm(struct dp_cq *q, int solicited_only)
{
	int old, new, spent = DP_ARM_SPENT, none = DP_ARM_NONE, ret;
	bool was_spent;

	/* the kernel's event for the arm that is about to be made is not to be swallowed */
	was_spent = atomic_compare_exchange_strong(&q->armed, &spent, DP_ARM_NONE);
	/* before: an event of this arm is not to be taken for one of the arm before, after which nothing would arm again */
	atomic_fetch_add(&q->arms, 1);
	ret = q->c->ops.req_notify_cq(q->cq, solicited_only);
	if (ret) {
		/* the arm of before is the last one still: its event of the kernel is looked at, or swallowed, as if nothing was */
		atomic_fetch_sub(&q->arms, 1);
		if (was_spent)
			atomic_compare_exchange_strong(&q->armed, &none, DP_ARM_SPENT);
		return ret;
	}
	/* see raise_event(); as with devices, an arm for any completion outlives one for solicited ones */
	old = atomic_load_explicit(&q->armed, memory_order_relaxed);
	do {
		new = solicited_only && old != DP_ARM_ANY ? DP_ARM_SOLICITED : DP_ARM_ANY;
	} while (!atomic_compare_exchange_weak(&q->armed, &old, new));
	return 0;
}

/* Is there an event already, it will do; and if that was an old one, it can still be taken back. */
static void raise_old(struct dp_cq *q, bool was_old)
{
	int old = atomic_load_explicit(&q->armed, memory_order_relaxed);

	if (old != DP_ARM_ANY && old != DP_ARM_SOLICITED)
		return;
	if (!dp_channel_push(q) && !was_old)
		return;
	/* if the program has it by now, it was the arm's: taken back it cannot be any more (dp_channel_pull) */
	atomic_compare_exchange_strong(&q->armed, &old, old == DP_ARM_ANY ? DP_ARM_OLD_ANY : DP_ARM_OLD_SOLICITED);
}

void dp_arm_polled(struct dp_cq *q)
{
	int old = atomic_load_explicit(&q->armed, memory_order_relaxed);

	if (old < DP_ARM_OLD_ANY || dp_cq_gives(q, for_solicited(old)))
		return;
	if (dp_channel_pull(q))
		atomic_compare_exchange_strong(&q->armed, &old, old == DP_ARM_OLD_ANY ? DP_ARM_ANY : DP_ARM_SOLICITED);
	else
		atomic_compare_exchange_strong(&q->armed, &old, DP_ARM_SPENT);
}

__attribute__((noinline)) static int arm_active(struct dp_cq *q, int solicited_only)
{
	bool holds, was_old;
	int ret;

	/*
	 * An event of the kernel for the arm of before says nothing new. If it is looked at later, that is found out where any
	 * completion is asked for; where only solicited ones are, it would not be known that what came was not. With the
	 * channel's lock, dp_arm_kernel() is told which arm was the last.
	 */
	if (solicited_only && dp_cq_holds(q))
		dp_channel_pump(q->cq->channel);
	dp_take(&q->lock);
	/* what rail 0 and the siblings have done so far is old; if the arm of before still stands, it is that one's event */
	holds = dp_cq_holds(q);
	if (holds)
		dp_cq_progress(q, true);
	dp_cq_all_told(q);
	was_old = dp_cq_armed_old(q);
	ret = arm(q, solicited_only);
	if (!ret) {
		atomic_store_explicit(&q->arm_seen, holds, memory_order_relaxed);
		q->recv_seen = false;
		if (dp_cq_gives(q, for_solicited(atomic_load_explicit(&q->armed, memory_order_relaxed))))
			raise_old(q, was_old);
	}
	dp_drop(&q->lock);
	return ret;
}

int dp_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	struct dp_cq *q = dp_cq_find(cq);
	int ret;

	if (!q || !q->channel)
		return dp_ctx_find(cq->context)->ops.req_notify_cq(cq, solicited_only);
	if (atomic_load_explicit(&q->active, memory_order_relaxed)) {
		ret = arm_active(q, solicited_only);
	} else {
		atomic_store_explicit(&q->arm_seen, false, memory_order_relaxed);
		ret = arm(q, solicited_only);
	}
	if (!ret && atomic_load_explicit(&q->busy, memory_order_relaxed))
		dp_progress_hurry();
	return ret;
}

/* Looks what the kernel's event was about. False: nothing that this arm would tell of. */
static bool look(struct dp_cq *q)
{
	bool solicited, missed;

	dp_cq_progress(q, true);
	if (!dp_cq_armed(q))
		return true;
	/* no event of ours for it: completions of senders are not solicited */
	solicited = for_solicited(atomic_load_explicit(&q->armed, memory_order_relaxed)) && q->recv_seen;
	/* armed when its completions made no events of ours: the program may have got one already. But not one that is held. */
	missed = !atomic_load_explicit(&q->arm_seen, memory_order_relaxed) &&
		 !atomic_load_explicit(&q->busy, memory_order_relaxed);
	if (!solicited && !missed && !q->unread)
		return false;
	raise_event(q, true);
	return true;
}

void dp_arm_kernel(struct dp_cq *q, uint32_t arms)
{
	dp_take(&q->lock);
	/* fewer by now: the program tried to arm meanwhile, and was refused */
	if ((int32_t)(atomic_load(&q->arms) - arms) <= 0 && !look(q)) {
		if (q->c->ops.req_notify_cq(q->cq, for_solicited(atomic_load_explicit(&q->armed, memory_order_relaxed))))
			/* nothing else would wake the program any more */
			raise_event(q, true);
		else
			/* what came before this arm makes no event, as for any program */
			look(q);
	}
	dp_drop(&q->lock);
}

bool dp_arm_passes(struct dp_cq *q, bool raised)
{
	return atomic_exchange(&q->armed, DP_ARM_NONE) != DP_ARM_SPENT || raised;
}

bool dp_arm_spend(struct dp_cq *q)
{
	int old = atomic_load_explicit(&q->armed, memory_order_relaxed);

	/* also where dp_arm_polled() has not yet said that the arm stands */
	while (old != DP_ARM_NONE && old != DP_ARM_SPENT)
		if (atomic_compare_exchange_weak(&q->armed, &old, DP_ARM_SPENT))
			return true;
	return false;
}

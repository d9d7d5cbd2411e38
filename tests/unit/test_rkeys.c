// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Remote keys: pulls, invalidation, leases, and that no key comes back before its past holders are done. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "keys_fake.h"
#include "peer/wire.h"
#include "run.h"

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
#define MS 1000000u

/* ck_assert() is not for several threads */
#define must(cond)                                                                                                    \
	do {                                                                                                          \
		if (!(cond)) {                                                                                        \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                                    \
			abort();                                                                                      \
		}                                                                                                     \
	} while (0)

static char mem[1 << 16];
static struct ibv_pd *pd;
static struct dp_rpd *rpd;

static void setup_watch(void)
{
	fake_reset();
	pd = dp_alloc_pd(fake_ctx.ctx);
	rpd = dp_rpd_get(&fake_owner, dp_pd_find(pd)->id);
	ck_assert_ptr_nonnull(rpd);
	for (int i = 0; i < 2; i++)
		fake_qp[i].rpd = rpd;
}

/* Pulls alone. */
static void setup(void)
{
	setup_watch();
	fake_no_watch = true;
	dp_rpd_put(rpd);
	fake_run();
	rpd = dp_rpd_get(&fake_owner, dp_pd_find(pd)->id);
	for (int i = 0; i < 2; i++)
		fake_qp[i].rpd = rpd;
	for (int i = 0; i < 16; i++) {
		atomic_store(&fake_owner.sent[i], 0);
		atomic_store(&fake_holder.sent[i], 0);
	}
}

static void end_both(void)
{
	fake_run();
	dp_rkeys_gone(&fake_owner);
	atomic_store(&fake_holder.granted, 0);
	dp_rkeys_gone(&fake_holder);
}

static void teardown(void)
{
	fake_control_stop();
	end_both();
	dp_rpd_put(rpd);
	ck_assert_int_eq(dp_dealloc_pd(pd), 0);
	for (int i = 0; i < FAKE_DEVS; i++)
		ck_assert_int_eq(fake_dev[i].nmr, 0);
}

static const uint32_t *look(uint32_t rkey, enum dp_fallback *why)
{
	const struct dp_rkeys *keys;

	dp_take(&fake_qp[0].lock);
	keys = dp_rkey_get(rpd, rkey, why);
	dp_drop(&fake_qp[0].lock);
	if (!keys)
		return NULL;
	ck_assert_uint_eq(keys->n, FAKE_DEVS - 1);
	return keys->key;
}

static const uint32_t *learn(uint32_t rkey)
{
	enum dp_fallback why = DP_FB_COUNT;

	ck_assert_ptr_null(look(rkey, &why));
	ck_assert_int_eq(why, DP_FB_RKEY_PENDING);
	fake_run();
	return look(rkey, &why);
}

static void wait_ns(uint64_t ns)
{
	struct timespec t = { .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };

	nanosleep(&t, NULL);
}

START_TEST(test_pull)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);
	enum dp_fallback why = DP_FB_COUNT;
	uint32_t rkey = mr->rkey;
	const uint32_t *keys;

	/* however often it is asked for, one pull */
	for (int i = 0; i < 3; i++) {
		ck_assert_ptr_null(look(mr->rkey, &why));
		ck_assert_int_eq(why, DP_FB_RKEY_PENDING);
	}
	fake_run();
	ck_assert_uint_eq(fake_sent(&fake_owner, DP_MSG_KEYS_PULL), 1);
	ck_assert_uint_eq(fake_sent(&fake_holder, DP_MSG_KEYS_ARE), 1);
	keys = look(mr->rkey, &why);
	ck_assert_ptr_nonnull(keys);
	ck_assert_ptr_eq(fake_how(1, keys[0]).addr, mem);
	ck_assert_ptr_eq(fake_how(2, keys[1]).addr, mem);

	/* without a lease nothing may be used, known or not, and nothing is asked */
	atomic_store(&fake_owner.lease, false);
	ck_assert_ptr_null(look(mr->rkey, &why));
	ck_assert_int_eq(why, DP_FB_LEASE_EXPIRED);
	ck_assert_ptr_null(look(4711, &why));
	ck_assert_int_eq(why, DP_FB_LEASE_EXPIRED);
	atomic_store(&fake_owner.lease, true);
	ck_assert_ptr_eq(look(mr->rkey, &why), keys);

	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	fake_run();
	ck_assert_uint_eq(fake_sent(&fake_holder, DP_MSG_KEYS_INVAL), 1);
	ck_assert_uint_eq(fake_sent(&fake_owner, DP_MSG_KEYS_ACK), 1);
	ck_assert_ptr_null(look(rkey, &why));
	ck_assert_int_eq(why, DP_FB_RKEY_PENDING);
}
END_TEST

START_TEST(test_none)
{
	enum dp_fallback why = DP_FB_COUNT;
	struct ibv_mr *mr;

	ck_assert_ptr_null(learn(10000));
	ck_assert_ptr_null(look(10000, &why));
	ck_assert_int_eq(why, DP_FB_RKEY_NONE);
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	ck_assert_uint_eq(mr->rkey, 10000);
	ck_assert_uint_eq(fake_sent(&fake_owner, DP_MSG_KEYS_PULL), 1);
	wait_ns(120 * MS);
	ck_assert_ptr_nonnull(learn(10000));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

START_TEST(test_none_for_rail0_only)
{
	struct ibv_mr *mr;

	fake_dev[1].fail_mr = EOPNOTSUPP;
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	ck_assert_ptr_null(learn(mr->rkey));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	fake_run();
	ck_assert_uint_eq(fake_sent(&fake_holder, DP_MSG_KEYS_INVAL), 0);
}
END_TEST

START_TEST(test_call_fails)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);
	enum dp_fallback why = DP_FB_COUNT;

	fake_call_err = -ENOMEM;
	ck_assert_ptr_null(look(mr->rkey, &why));
	ck_assert_ptr_null(look(mr->rkey, &why));
	ck_assert_int_eq(why, DP_FB_RKEY_NONE);
	fake_call_err = 0;
	wait_ns(120 * MS);
	ck_assert_ptr_nonnull(learn(mr->rkey));

	/* the news of the end is not lost, either */
	fake_call_err = -ENOMEM;
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	fake_call_err = 0;
	fake_run();
	ck_assert_uint_eq(fake_sent(&fake_holder, DP_MSG_KEYS_INVAL), 0);
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	ck_assert_ptr_nonnull(learn(mr->rkey));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	fake_run();
	ck_assert_uint_eq(fake_sent(&fake_owner, DP_MSG_KEYS_ACK), 1); /* both in one */
	ck_assert(!dp_key_blocked(dp_key_dev("fake0"), 10000));
}
END_TEST

/* Neither rail 0's key nor a twin's is handed out while the holder has not answered. */
START_TEST(test_reuse)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS), *again;
	uint32_t rkey = mr->rkey, keys[2], now[2];

	memcpy(keys, learn(rkey), sizeof(keys));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(fake_dev[i].nmr, 0);

	again = dp_reg_mr(pd, mem, 100, ACCESS);
	ck_assert_uint_ne(again->rkey, rkey);
	memcpy(now, dp_mr_lkeys(&fake_ctx, again->lkey), sizeof(now));
	for (int i = 0; i < 2; i++)
		ck_assert_uint_ne(now[i], keys[i]);
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(fake_dev[i].nmr, 1); /* what was rejected is gone */
	fake_run(); /* invalidated and acknowledged */
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	ck_assert_uint_eq(mr->rkey, rkey);
	ck_assert_int_eq(memcmp(dp_mr_lkeys(&fake_ctx, mr->lkey), keys, sizeof(keys)), 0);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	ck_assert_int_eq(dp_dereg_mr(again), 0);
}
END_TEST

static unsigned blocked_in_dereg;

static void count_blocked(struct ibv_mr *mr)
{
	blocked_in_dereg += dp_key_blocked(dp_key_dev("fake0"), mr->rkey) ||
			    dp_key_blocked(dp_key_dev("fake1"), mr->rkey) ||
			    dp_key_blocked(dp_key_dev("fake2"), mr->rkey);
}

/* From the real dereg_mr on another thread may be given the key: it is blocked before. */
START_TEST(test_blocked_in_time)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);

	ck_assert_ptr_nonnull(learn(mr->rkey));
	fake_in_dereg = count_blocked;
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	ck_assert_uint_eq(blocked_in_dereg, FAKE_DEVS);
}
END_TEST

/* Keys that no peer was told are used again at once. */
START_TEST(test_reuse_without_holder)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);
	uint32_t rkey = mr->rkey;

	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	ck_assert_uint_eq(mr->rkey, rkey);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

/* The holder is silent: its lease decides, as granted when the invalidation was sent. */
START_TEST(test_lease)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);
	uint64_t until = dp_now_ns() + 150 * MS;
	uint32_t rkey = mr->rkey;

	ck_assert_ptr_nonnull(learn(rkey));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	fake_holder.broken = true;
	atomic_store(&fake_holder.granted, until);
	fake_run();
	atomic_store(&fake_holder.granted, UINT64_MAX);
	ck_assert(dp_key_blocked(dp_key_dev("fake0"), rkey));
	wait_ns(160 * MS);
	ck_assert(!dp_key_blocked(dp_key_dev("fake0"), rkey));
}
END_TEST

/* One that is out of reach may write until its lease ends, even if the MR goes only after it was given up. */
START_TEST(test_gone_holder)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS), *late = dp_reg_mr(pd, mem, 100, ACCESS);
	uint32_t rkey = mr->rkey, late_rkey = late->rkey, dev = dp_key_dev("fake0");

	ck_assert_ptr_nonnull(learn(rkey));
	ck_assert_ptr_nonnull(learn(late_rkey));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	atomic_store(&fake_holder.granted, dp_now_ns() + 150 * MS);
	dp_rkeys_gone(&fake_holder);
	ck_assert_int_eq(dp_dereg_mr(late), 0);
	fake_run();
	ck_assert_uint_eq(fake_sent(&fake_holder, DP_MSG_KEYS_INVAL), 0);
	ck_assert(dp_key_blocked(dev, rkey));
	ck_assert(dp_key_blocked(dev, late_rkey));
	wait_ns(160 * MS);
	ck_assert(!dp_key_blocked(dev, rkey));
	ck_assert(!dp_key_blocked(dev, late_rkey));
}
END_TEST

START_TEST(test_gone_owner)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);
	enum dp_fallback why = DP_FB_COUNT;

	ck_assert_ptr_nonnull(learn(mr->rkey));
	dp_rkeys_gone(&fake_owner);
	ck_assert_ptr_null(look(mr->rkey, &why));
	ck_assert_int_eq(why, DP_FB_PEER_GONE);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	fake_run(); /* the holder knows nothing of it any more: acknowledged */
	ck_assert_uint_eq(fake_sent(&fake_owner, DP_MSG_KEYS_ACK), 1);
}
END_TEST

/* No other key is to be had: the call waits, for the lease at most. */
START_TEST(test_key_space_full)
{
	struct ibv_mr *mr;
	uint64_t until;

	fake_dev[0].nkeys = fake_dev[1].nkeys = fake_dev[2].nkeys = 1;
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	ck_assert_ptr_nonnull(learn(mr->rkey));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	fake_holder.broken = true;
	until = dp_now_ns() + 100 * MS;
	atomic_store(&fake_holder.granted, until);
	fake_run();
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	ck_assert_uint_ge(dp_now_ns(), until);
	ck_assert_ptr_nonnull(mr);
	ck_assert_uint_eq(mr->rkey, 10000);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

/* And if nothing can be learnt, as the control thread does not run, it ends, too. */
START_TEST(test_wait_is_bounded)
{
	struct ibv_mr *mr;
	uint64_t start;

	fake_dev[0].nkeys = fake_dev[1].nkeys = fake_dev[2].nkeys = 1;
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	ck_assert_ptr_nonnull(learn(mr->rkey));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	start = dp_now_ns();
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	ck_assert_ptr_nonnull(mr);
	ck_assert_uint_ge(dp_now_ns() - start, dp_cfg.lease_ns);
	/* far from any machine's load, and from the lease that the holder has */
	ck_assert_uint_lt(dp_now_ns() - start, 60000 * MS);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

START_TEST(test_dereg_busy)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);
	enum dp_fallback why;
	uint32_t rkey = mr->rkey;

	ck_assert_ptr_nonnull(learn(rkey));
	fake_dev[0].busy = EBUSY;
	ck_assert_int_eq(dp_dereg_mr(mr), EBUSY);
	fake_run();
	ck_assert_uint_eq(fake_sent(&fake_holder, DP_MSG_KEYS_INVAL), 0);
	ck_assert_ptr_nonnull(look(rkey, &why));
	ck_assert(!dp_key_blocked(dp_key_dev("fake0"), rkey));
	fake_dev[0].busy = 0;
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	ck_assert(dp_key_blocked(dp_key_dev("fake0"), rkey)); /* the holder was not forgotten */
	fake_run();
	ck_assert_uint_eq(fake_sent(&fake_holder, DP_MSG_KEYS_INVAL), 1);
	ck_assert(!dp_key_blocked(dp_key_dev("fake0"), rkey));
}
END_TEST

/* The rkey stays over a rereg; the holder must not go on with the old twins' keys. */
START_TEST(test_rereg)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);
	const uint32_t *keys;
	enum dp_fallback why;
	uint64_t until;

	ck_assert_ptr_nonnull(learn(mr->rkey));
	fake_control_start(3000);
	ck_assert_int_eq(dp_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, mem + 512, 100, 0), 0);
	fake_control_stop();
	ck_assert_uint_eq(fake_acks_at_rereg, 1);
	keys = learn(mr->rkey);
	ck_assert_ptr_nonnull(keys);
	ck_assert_ptr_eq(fake_how(1, keys[0]).addr, mem + 512);

	/* a failed one: as before */
	fake_control_start(0);
	fake_rereg_ret = IBV_REREG_MR_ERR_CMD;
	fake_rereg_errno = EOPNOTSUPP;
	ck_assert_int_eq(dp_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_CMD);
	fake_control_stop();
	keys = learn(mr->rkey);
	ck_assert_ptr_nonnull(keys);
	ck_assert_ptr_eq(fake_how(1, keys[0]).addr, mem + 512);

	/* a silent holder */
	fake_rereg_ret = 0;
	until = dp_now_ns() + 100 * MS;
	atomic_store(&fake_holder.granted, until);
	fake_holder.broken = true;
	fake_control_start(0);
	ck_assert_int_eq(dp_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, mem, 100, 0), 0);
	ck_assert_uint_ge(dp_now_ns(), until);
	fake_control_stop();
	(void)look(mr->rkey, &why);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

static void *run_control(void *arg)
{
	(void)arg;
	fake_run();
	return NULL;
}

/* A poster that holds the lock of its QP can finish with the key: there is no acknowledgement before. */
START_TEST(test_barrier)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);
	const struct dp_rkeys *keys;
	enum dp_fallback why;
	pthread_t t;

	ck_assert_ptr_nonnull(learn(mr->rkey));
	dp_take(&fake_qp[1].lock);
	keys = dp_rkey_get(rpd, mr->rkey, &why);
	ck_assert_ptr_nonnull(keys);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	pthread_create(&t, NULL, run_control, NULL);
	for (int i = 0; i < 1000 && !fake_sent(&fake_holder, DP_MSG_KEYS_INVAL); i++)
		wait_ns(10 * MS);
	ck_assert_uint_eq(fake_sent(&fake_holder, DP_MSG_KEYS_INVAL), 1);
	wait_ns(50 * MS);
	ck_assert_uint_eq(fake_sent(&fake_owner, DP_MSG_KEYS_ACK), 0);
	ck_assert_uint_eq(keys->key[0], 20000);
	dp_drop(&fake_qp[1].lock);
	pthread_join(t, NULL);
	ck_assert_uint_eq(fake_sent(&fake_owner, DP_MSG_KEYS_ACK), 1);
}
END_TEST

/* Twins taken from an MR that the program goes on using: fragments in flight at the peer finish first. */
START_TEST(test_give_back)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 1000, ACCESS), *next;
	static struct dp_rail rails[3];
	static struct dp_ctx elsewhere;
	enum dp_fallback why;
	struct dp_qp *q = &fake_qp[0];
	uint64_t start;

	ck_assert_ptr_nonnull(learn(mr->rkey));
	q->c = &elsewhere; /* the holder's, not the owner's */
	q->rail = rails;
	atomic_store(&q->state, DP_QP_BONDED);
	q->order.nrails = 3;
	q->order.planned[2] = 9;
	q->order.done[2] = 8;
	fake_memlock = 3500;
	fake_control_start(0);
	start = dp_now_ns();
	ck_assert_ptr_null(dp_reg_mr(pd, mem, 1000, ACCESS));
	ck_assert_uint_ge(dp_now_ns() - start, dp_cfg.lease_ns);
	ck_assert_ptr_nonnull(dp_mr_lkeys(&fake_ctx, mr->lkey));
	fake_control_stop();
	ck_assert_uint_eq(fake_sent(&fake_owner, DP_MSG_KEYS_ACK), 0);

	ck_assert_ptr_nonnull(learn(mr->rkey));
	dp_take(&q->lock);
	q->order.done[2] = 9;
	dp_drop(&q->lock);
	fake_control_start(0);
	next = dp_reg_mr(pd, mem, 1000, ACCESS);
	ck_assert_ptr_nonnull(next);
	fake_control_stop();
	ck_assert_uint_ge(fake_sent(&fake_owner, DP_MSG_KEYS_ACK), 1);
	ck_assert_ptr_null(dp_mr_lkeys(&fake_ctx, mr->lkey));
	ck_assert_ptr_null(learn(mr->rkey));
	(void)look(mr->rkey, &why);
	ck_assert_int_eq(why, DP_FB_RKEY_NONE);
	ck_assert_int_eq(dp_dereg_mr(next), 0);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

/*
 * A region that another process goes on using: its twins go when nothing of a peer is on its way to them any more, at the
 * latest when the peer's lease is over, and the key is not one in quarantine for ever.
 */
static unsigned twins_gone;

static void twin_gone(struct ibv_mr *mr)
{
	twins_gone += mr->context != fake_ctx.ctx;
}

START_TEST(test_unimport_held)
{
	static struct dp_rail rails[3];
	static struct dp_ctx elsewhere;
	struct dp_qp *q = &fake_qp[0];
	enum dp_fallback why;
	uint64_t start;

	q->c = &elsewhere;
	q->rail = rails;
	atomic_store(&q->state, DP_QP_BONDED);
	q->order.nrails = 3;
	fake_in_dereg = twin_gone;
	for (int stuck = 0; stuck < 2; stuck++) {
		struct ibv_mr *mr = dp_reg_mr(pd, mem, 1000, ACCESS);
		uint32_t rkey = mr->rkey;

		ck_assert_ptr_nonnull(learn(rkey));
		dp_take(&q->lock);
		q->order.planned[2] = 9;
		q->order.done[2] = stuck ? 8 : 9;
		dp_drop(&q->lock);
		twins_gone = 0;
		fake_control_start(0);
		start = dp_now_ns();
		dp_unimport_mr(mr);
		if (stuck)
			ck_assert_uint_ge(dp_now_ns() - start, dp_cfg.lease_ns);
		else
			ck_assert_uint_ge(fake_sent(&fake_owner, DP_MSG_KEYS_ACK), 1);
		fake_control_stop();
		ck_assert_uint_eq(twins_gone, FAKE_DEVS - 1);
		ck_assert_ptr_null(dp_mr_find(mr));
		for (int i = 0; i < FAKE_DEVS; i++)
			ck_assert_int_eq(fake_dev[i].nmr, 0);
		dp_take(&q->lock);
		q->order.done[2] = 9;
		dp_drop(&q->lock);
		fake_run();
		ck_assert_ptr_null(learn(rkey));
		(void)look(rkey, &why);
		ck_assert_int_eq(why, DP_FB_RKEY_NONE);
		wait_ns(120 * MS);
	}
}
END_TEST

static struct ibv_mr *reg_unknown_kind(void)
{
	struct dp_mr_init_attr attr = { .length = 100, .access = ACCESS, .comp_mask = DP_MR_INIT_ADDR | 1 << 6, .addr = mem };

	return dp_reg_mr_ex(pd, (struct ibv_mr_init_attr *)&attr);
}

/* A domain that was imported, on a context of which no verb was called through us before. */
static struct ibv_mr *reg_imported(void)
{
	static struct ibv_pd imported;

	imported.context = fake_ctx.ctx;
	fake_unseen = true;
	return dp_reg_mr(&imported, mem, 100, ACCESS);
}

/* What has no twins has no key either that a peer still takes for another's. */
START_TEST(test_reuse_without_twins)
{
	struct ibv_mr *(*const reg[])(void) = { reg_unknown_kind, reg_imported };
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS), *other;
	uint32_t rkey = mr->rkey;

	ck_assert_ptr_nonnull(learn(rkey));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	other = reg[_i]();
	ck_assert_ptr_nonnull(other);
	ck_assert_ptr_null(dp_mr_find(other));
	ck_assert_uint_ne(other->rkey, rkey);
	ck_assert_int_eq(dp_dereg_mr(other), 0);
	/* the key is the first to come, once it may */
	fake_run();
	other = reg[_i]();
	ck_assert_uint_eq(other->rkey, rkey);
	ck_assert_int_eq(dp_dereg_mr(other), 0);
}
END_TEST

/* Unknown PD ids get the same answer as unknown keys. */
START_TEST(test_unknown_pd)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);
	struct dp_rpd *other = dp_rpd_get(&fake_owner, dp_pd_find(pd)->id + 1), *mine = rpd;

	rpd = other;
	ck_assert_ptr_null(learn(mr->rkey));
	rpd = mine;
	dp_rpd_put(other);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

START_TEST(test_self)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);
	uint32_t rkey = mr->rkey;

	/* one peer in both roles, no lease */
	dp_rpd_put(rpd);
	fake_holder.self = true;
	fake_holder.other = &fake_holder;
	rpd = dp_rpd_get(&fake_holder, dp_pd_find(pd)->id);
	ck_assert_ptr_nonnull(learn(rkey));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	ck_assert(dp_key_blocked(dp_key_dev("fake0"), rkey));
	fake_run();
	ck_assert(!dp_key_blocked(dp_key_dev("fake0"), rkey));
	ck_assert_uint_eq(fake_sent(&fake_holder, DP_MSG_KEYS_ACK), 1);

	/* the peer layer ends with the last QP: whoever could hold keys is gone, too */
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	rkey = mr->rkey;
	ck_assert_ptr_nonnull(learn(rkey));
	dp_rpd_put(rpd);
	fake_call_err = -ESRCH;
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	ck_assert(!dp_key_blocked(dp_key_dev("fake0"), rkey));
	fake_call_err = 0;
	rpd = dp_rpd_get(&fake_holder, dp_pd_find(pd)->id);
}
END_TEST

/* The child can free what it inherited, whatever other threads of its parent were at. */
START_TEST(test_fork)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);
	struct dp_pd *p __attribute__((unused)) = dp_pd_find(pd);
	enum dp_fallback why;
	int status;
	pid_t pid;

	ck_assert_ptr_nonnull(learn(mr->rkey));
#ifndef __SANITIZE_THREAD__ /* it takes a lock that is made anew in the child for one still held */
	pthread_rwlock_wrlock(&dp_mr_life);
	dp_take(&p->lock);
#endif
	pid = fork();
	if (pid == 0) {
		alarm(10);
		dp_keys_after_fork();
		fake_call_err = -ESRCH;
		if (look(mr->rkey, &why) || why != DP_FB_PEER_GONE)
			_exit(1);
		if (dp_dereg_mr(mr) || dp_key_blocked(dp_key_dev("fake0"), 10000))
			_exit(2);
		mr = dp_reg_mr(pd, mem, 100, ACCESS);
		_exit(!mr || mr->rkey != 10000 || dp_dereg_mr(mr) || dp_dealloc_pd(pd) ? 3 : 0);
	}
#ifndef __SANITIZE_THREAD__
	dp_drop(&p->lock);
	pthread_rwlock_unlock(&dp_mr_life);
#endif
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

START_TEST(test_many)
{
	static struct ibv_mr *mr[3000];
	enum dp_fallback why;

	for (int i = 0; i < 3000; i++) {
		mr[i] = dp_reg_mr(pd, mem, (size_t)i + 1, ACCESS);
		look(mr[i]->rkey, &why);
		ck_assert_int_eq(why, DP_FB_RKEY_PENDING);
	}
	fake_run();
	ck_assert_uint_eq(fake_sent(&fake_owner, DP_MSG_KEYS_PULL), 3);
	for (int i = 0; i < 3000; i++) {
		const uint32_t *keys = look(mr[i]->rkey, &why);

		ck_assert_ptr_nonnull(keys);
		ck_assert_uint_eq(fake_how(2, keys[1]).length, (size_t)i + 1);
	}
	for (int i = 0; i < 3000; i++)
		ck_assert_int_eq(dp_dereg_mr(mr[i]), 0);
	fake_run();
	ck_assert_uint_eq(fake_sent(&fake_holder, DP_MSG_KEYS_INVAL), 3);
	ck_assert_uint_eq(fake_sent(&fake_owner, DP_MSG_KEYS_ACK), 3);
	for (int i = 0; i < 3000; i++)
		ck_assert(!dp_key_blocked(dp_key_dev("fake1"), 20000 + (uint32_t)i));
}
END_TEST

/* More pulls at once than are allowed: those beyond wait for their turn. */
START_TEST(test_pull_bound)
{
	enum dp_fallback why;

	for (uint32_t i = 0; i < 10000; i++) {
		ck_assert_ptr_null(look(50000 + i, &why));
		ck_assert_int_eq(why, DP_FB_RKEY_PENDING);
	}
	fake_run();
	ck_assert_uint_eq(fake_sent(&fake_holder, DP_MSG_KEYS_ARE), 4096);
	ck_assert_ptr_null(look(59999, &why));
	fake_run();
	ck_assert_uint_eq(fake_sent(&fake_holder, DP_MSG_KEYS_ARE), 4097);
}
END_TEST

/* ---- in bulk */

static bool known(uint32_t rkey, const void *addr)
{
	enum dp_fallback why = DP_FB_COUNT;
	const uint32_t *keys = look(rkey, &why);

	if (!keys)
		return false;
	ck_assert_ptr_eq(fake_how(1, keys[0]).addr, addr);
	ck_assert_ptr_eq(fake_how(2, keys[1]).addr, addr);
	return true;
}

/* All that is to be done, pushes that wait for their turn included. */
static void settle(void)
{
	for (int i = 0; i < 3; i++) {
		fake_run();
		wait_ns(2 * MS);
		fake_timers();
	}
	fake_run();
}

#define PULLS() fake_sent(&fake_owner, DP_MSG_KEYS_PULL)
#define TABLES() fake_sent(&fake_holder, DP_MSG_KEYS_TABLE)
#define INVALS() fake_sent(&fake_holder, DP_MSG_KEYS_INVAL)

START_TEST(test_bulk)
{
	struct ibv_mr *mr[3], *only0, *local;
	enum dp_fallback why = DP_FB_COUNT;

	for (int i = 0; i < 3; i++)
		mr[i] = dp_reg_mr(pd, mem + i, 100, i == 1 ? IBV_ACCESS_REMOTE_READ : ACCESS);
	local = dp_reg_mr(pd, mem + 3, 100, IBV_ACCESS_LOCAL_WRITE);
	fake_dev[2].fail_mr = ENOSPC;
	only0 = dp_reg_mr(pd, mem + 4, 100, ACCESS);
	ck_assert(!dp_rpd_ready(rpd));
	fake_run();
	ck_assert(dp_rpd_ready(rpd));
	for (int i = 0; i < 3; i++)
		ck_assert(known(mr[i]->rkey, mem + i));
	ck_assert_uint_eq(TABLES(), 1);
	ck_assert_uint_eq(fake_sent(&fake_holder, DP_MSG_KEYS_END), 1);
	fake_run();
	ck_assert_uint_eq(PULLS(), 0);
	ck_assert_ptr_null(look(local->rkey, &why));
	ck_assert_int_eq(why, DP_FB_RKEY_PENDING);
	ck_assert_ptr_null(look(only0->rkey, &why));
	ck_assert_int_eq(why, DP_FB_RKEY_PENDING);

	/* who was told is a holder */
	ck_assert_int_eq(dp_dereg_mr(mr[1]), 0);
	ck_assert(dp_key_blocked(dp_key_dev("fake0"), 10001));
	ck_assert(dp_key_blocked(dp_key_dev("fake2"), 30001));
	fake_run();
	ck_assert(!dp_key_blocked(dp_key_dev("fake0"), 10001));
	ck_assert_ptr_null(look(10001, &why));
	ck_assert_int_eq(dp_dereg_mr(mr[0]), 0);
	ck_assert_int_eq(dp_dereg_mr(mr[2]), 0);
	ck_assert_int_eq(dp_dereg_mr(local), 0);
	ck_assert_int_eq(dp_dereg_mr(only0), 0);
	fake_run();
	ck_assert_uint_eq(INVALS(), 2); /* one for both that were told, and one that pulled */
}
END_TEST

/* In slices; MRs go and come between them. */
START_TEST(test_bulk_slices)
{
	static struct ibv_mr *mr[3001];
	enum dp_fallback why;

	for (int i = 0; i < 3000; i++)
		mr[i] = dp_reg_mr(pd, mem + i, 100, ACCESS);
	while (!TABLES())
		ck_assert(fake_step());
	/* the next in turn, its neighbour, one that was told and the last one */
	ck_assert_int_eq(dp_dereg_mr(mr[256]), 0);
	ck_assert_int_eq(dp_dereg_mr(mr[257]), 0);
	ck_assert_int_eq(dp_dereg_mr(mr[3]), 0);
	ck_assert_int_eq(dp_dereg_mr(mr[2999]), 0);
	ck_assert(!dp_key_blocked(dp_key_dev("fake0"), 10256));
	ck_assert(dp_key_blocked(dp_key_dev("fake0"), 10003));
	mr[3000] = dp_reg_mr(pd, mem + 3000, 100, ACCESS);
	while (TABLES() < 11)
		ck_assert(fake_step());
	ck_assert(!dp_rpd_ready(rpd));
	fake_run();
	ck_assert(dp_rpd_ready(rpd));
	ck_assert_uint_eq(TABLES(), 12);
	ck_assert_uint_eq(INVALS(), 1);
	for (int i = 0; i < 3001; i++) {
		if (i == 256 || i == 257 || i == 3 || i == 2999)
			continue;
		ck_assert(known(mr[i]->rkey, mem + i));
	}
	ck_assert_ptr_null(look(10003, &why));
	ck_assert_ptr_null(look(10257, &why));
	for (int i = 0; i < 3001; i++)
		if (i != 256 && i != 257 && i != 3 && i != 2999)
			ck_assert_int_eq(dp_dereg_mr(mr[i]), 0);
}
END_TEST

/* The last one in turn goes: the end mark still comes. */
START_TEST(test_bulk_end)
{
	static struct ibv_mr *mr[257];

	for (int i = 0; i < 257; i++)
		mr[i] = dp_reg_mr(pd, mem + i, 100, ACCESS);
	while (!TABLES())
		ck_assert(fake_step());
	ck_assert_int_eq(dp_dereg_mr(mr[256]), 0);
	fake_run();
	ck_assert(dp_rpd_ready(rpd));
	ck_assert_uint_eq(TABLES(), 1);
	for (int i = 0; i < 256; i++)
		ck_assert_int_eq(dp_dereg_mr(mr[i]), 0);
}
END_TEST

START_TEST(test_push)
{
	static struct ibv_mr *mr[101];

	fake_run();
	ck_assert(dp_rpd_ready(rpd));
	ck_assert_uint_eq(TABLES(), 0);
	mr[0] = dp_reg_mr(pd, mem, 100, ACCESS);
	fake_run();
	ck_assert_uint_eq(TABLES(), 1);
	ck_assert(known(mr[0]->rkey, mem));
	/* those that come at once go together */
	for (int i = 1; i < 101; i++) {
		mr[i] = dp_reg_mr(pd, mem + i, 100, ACCESS);
		if (i < 5)
			fake_run();
	}
	settle();
	ck_assert_uint_le(TABLES(), 5);
	for (int i = 0; i < 101; i++)
		ck_assert(known(mr[i]->rkey, mem + i));
	ck_assert_uint_eq(PULLS(), 0);
	ck_assert_uint_eq(fake_sent(&fake_holder, DP_MSG_KEYS_END), 1);
	for (int i = 0; i < 101; i++)
		ck_assert_int_eq(dp_dereg_mr(mr[i]), 0);
}
END_TEST

START_TEST(test_push_dereg_before)
{
	struct ibv_mr *mr, *keep;

	fake_run();
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	mr = dp_reg_mr(pd, mem + 1, 100, ACCESS);
	ck_assert_uint_eq(mr->rkey, 10000); /* nobody holds it */
	keep = dp_reg_mr(pd, mem + 2, 100, ACCESS);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	settle();
	ck_assert_uint_eq(INVALS(), 0);
	ck_assert_uint_eq(TABLES(), 1);
	ck_assert(known(keep->rkey, mem + 2));
	ck_assert_int_eq(dp_dereg_mr(keep), 0);
}
END_TEST

START_TEST(test_push_dereg_after)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS), *again;
	enum dp_fallback why;
	uint32_t rkey = mr->rkey;

	settle();
	ck_assert(known(rkey, mem));
	for (int i = 1; i < 4; i++) {
		ck_assert_int_eq(dp_dereg_mr(mr), 0);
		again = dp_reg_mr(pd, mem + 10, 100, ACCESS);
		ck_assert_uint_ne(again->rkey, rkey);
		ck_assert_int_eq(dp_dereg_mr(again), 0);
		fake_run();
		mr = dp_reg_mr(pd, mem + i, 100, ACCESS);
		ck_assert_uint_eq(mr->rkey, rkey);
		settle();
		ck_assert(known(rkey, mem + i));
		ck_assert_uint_eq(INVALS(), (unsigned)i);
	}
	/* nobody looked it up meanwhile */
	ck_assert_uint_eq(PULLS(), 0);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	fake_run();
	ck_assert_ptr_null(look(rkey, &why));
	ck_assert_int_eq(why, DP_FB_RKEY_PENDING);
}
END_TEST

/* A silent holder of a pushed key keeps it out of use until its lease ends. */
START_TEST(test_push_lease)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);
	uint64_t until = dp_now_ns() + 150 * MS;

	settle();
	fake_holder.broken = true;
	atomic_store(&fake_holder.granted, until);
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	fake_run();
	ck_assert(dp_key_blocked(dp_key_dev("fake1"), 20000));
	wait_ns(160 * MS);
	ck_assert(!dp_key_blocked(dp_key_dev("fake1"), 20000));
	fake_holder.broken = false;
}
END_TEST

START_TEST(test_push_rereg)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);
	enum dp_fallback why;

	settle();
	fake_control_start(0);
	ck_assert_int_eq(dp_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, mem + 512, 100, 0), 0);
	ck_assert_uint_eq(fake_acks_at_rereg, 1);
	wait_ns(20 * MS);
	fake_control_stop();
	settle();
	ck_assert(known(mr->rkey, mem + 512));
	ck_assert_uint_eq(PULLS(), 0);
	/* remote access goes: nobody is told any more */
	fake_control_start(0);
	ck_assert_int_eq(dp_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE), 0);
	fake_control_stop();
	settle();
	ck_assert_ptr_null(look(mr->rkey, &why));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

/* The real dereg fails: it stays, and those who were told are told no nonsense. */
START_TEST(test_push_dereg_busy)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);

	settle();
	fake_dev[0].busy = EBUSY;
	ck_assert_int_eq(dp_dereg_mr(mr), EBUSY);
	settle();
	ck_assert(known(mr->rkey, mem));
	ck_assert_uint_eq(INVALS(), 0);
	fake_dev[0].busy = 0;
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	ck_assert(dp_key_blocked(dp_key_dev("fake0"), 10000));
	fake_run();
	ck_assert_uint_eq(INVALS(), 1);
	ck_assert(!dp_key_blocked(dp_key_dev("fake0"), 10000));
}
END_TEST

static void say(uint16_t type, uint32_t rkey, int k, uint32_t key)
{
	uint8_t buf[64];
	struct dp_wbuf b = { .p = buf, .cap = sizeof(buf) };

	if (type == DP_MSG_KEYS_INVAL)
		dp_put16(&b, 1);
	dp_put32(&b, dp_pd_find(pd)->id);
	if (type == DP_MSG_KEYS_TABLE) {
		dp_put8(&b, (uint8_t)k);
		dp_put16(&b, 1);
	}
	dp_put32(&b, rkey);
	if (type == DP_MSG_KEYS_ARE)
		dp_put8(&b, (uint8_t)k);
	if (k) {
		dp_put8(&b, 0);
		dp_put64(&b, 0);
	}
	for (int i = 0; i < k; i++)
		dp_put32(&b, key + (uint32_t)i);
	if (type == DP_MSG_KEYS_INVAL) {
		dp_put64(&b, 1u << 30);
		dp_put8(&b, 0);
	}
	ck_assert(!b.bad);
	dp_rkeys_message(&fake_owner, type, buf, b.len);
}

/* What the holder needs to know beside the keys: may it read there, is order relaxed, and where is it really. */
START_TEST(test_told_how)
{
	static const struct {
		int access;
		uint64_t iova;
		uint32_t flags;
	} cases[] = {
		{ IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, 0, 0 },
		{ IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, 0x1000, DP_RKEY_READ },
		{ IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING, UINT64_MAX - 99,
		  DP_RKEY_RELAXED },
	};

	for (size_t i = 0; i < 2 * (sizeof(cases) / sizeof(cases[0])); i++) {
		struct ibv_mr *mr = dp_reg_mr_iova2(pd, mem, 100, cases[i / 2].iova, (unsigned int)cases[i / 2].access);
		const struct dp_rkeys *keys;

		/* pulled, and told in bulk */
		if (i % 2)
			settle();
		else
			ck_assert_ptr_nonnull(learn(mr->rkey));
		dp_take(&fake_qp[0].lock);
		keys = dp_rkey_peek(rpd, mr->rkey);
		ck_assert_ptr_nonnull(keys);
		ck_assert_uint_eq(keys->flags, cases[i / 2].flags);
		ck_assert_uint_eq(keys->shift + cases[i / 2].iova, (uint64_t)(uintptr_t)mem);
		dp_drop(&fake_qp[0].lock);
		ck_assert_int_eq(dp_dereg_mr(mr), 0);
		settle();
	}
}
END_TEST

/* What comes last counts, whatever the holder thought before. */
START_TEST(test_arrival)
{
	enum dp_fallback why = DP_FB_COUNT;
	const uint32_t *keys;

	fake_run();
	for (int t = 0; t < 2; t++) {
		uint16_t type = t ? DP_MSG_KEYS_ARE : DP_MSG_KEYS_TABLE;

		/* absent */
		say(type, 77, 2, 500);
		keys = look(77, &why);
		ck_assert_uint_eq(keys[1], 501);
		/* known, the same again: nothing moves */
		say(type, 77, 2, 500);
		ck_assert_ptr_eq(look(77, &why), keys);
		/* known, others */
		say(type, 77, 2, 600);
		ck_assert_uint_eq(look(77, &why)[0], 600);
		/* known, "none" of an answer */
		say(DP_MSG_KEYS_ARE, 77, 0, 0);
		ck_assert_uint_eq(look(77, &why)[0], 600);
		/* gone, asked for, and told before the question is out; the answers come late */
		say(DP_MSG_KEYS_INVAL, 77, 0, 0);
		ck_assert_ptr_null(look(77, &why));
		ck_assert_int_eq(why, DP_FB_RKEY_PENDING);
		say(type, 77, 2, 700);
		ck_assert_uint_eq(look(77, &why)[0], 700);
		fake_run(); /* the true owner says that there is none */
		ck_assert_uint_eq(look(77, &why)[0], 700);
		/* none */
		say(DP_MSG_KEYS_INVAL, 77, 0, 0);
		ck_assert_ptr_null(learn(77));
		(void)look(77, &why);
		ck_assert_int_eq(why, DP_FB_RKEY_NONE);
		say(type, 77, 2, 800);
		ck_assert_uint_eq(look(77, &why)[0], 800);
		/* an invalidation leaves a pull on its way alone */
		say(DP_MSG_KEYS_INVAL, 77, 0, 0);
		ck_assert_ptr_null(look(77, &why));
		say(DP_MSG_KEYS_INVAL, 77, 0, 0);
		say(type, 77, 2, 900);
		ck_assert_uint_eq(look(77, &why)[0], 900);
		say(DP_MSG_KEYS_INVAL, 77, 0, 0);
		fake_run();
	}
	/* pulls that were answered unasked do not use up the number of those allowed */
	for (uint32_t i = 0; i < 10000; i++) {
		ck_assert_ptr_null(look(1000 + i, &why));
		ck_assert_int_eq(why, DP_FB_RKEY_PENDING);
		say(DP_MSG_KEYS_TABLE, 1000 + i, 2, 500);
		say(DP_MSG_KEYS_INVAL, 1000 + i, 0, 0);
	}
	fake_run();
	ck_assert_ptr_null(learn(99999));
	(void)look(99999, &why);
	ck_assert_int_eq(why, DP_FB_RKEY_NONE);
}
END_TEST

/* An owner that tells without end does not fill the memory. */
START_TEST(test_unasked_bound)
{
	enum dp_fallback why = DP_FB_COUNT;

	for (uint32_t i = 0; i < (1u << 17) + 10; i++)
		say(DP_MSG_KEYS_TABLE, i, 2, 500);
	ck_assert_ptr_nonnull(look((1u << 17) - 1, &why));
	ck_assert_ptr_null(look(1u << 17, &why));
	ck_assert_ptr_null(look((1u << 17) + 9, &why));
	ck_assert_int_eq(why, DP_FB_RKEY_PENDING); /* what is used is asked for */
}
END_TEST

START_TEST(test_push_bound)
{
	struct ibv_mr *mr[12];
	uint32_t max = dp_push_max;

	dp_push_max = 8;
	for (int i = 0; i < 10; i++)
		mr[i] = dp_reg_mr(pd, mem + i, 100, ACCESS);
	settle();
	ck_assert(dp_rpd_ready(rpd));
	for (int i = 0; i < 8; i++)
		ck_assert(known(mr[i]->rkey, mem + i));
	ck_assert_uint_eq(PULLS(), 0);
	ck_assert(!known(mr[8]->rkey, NULL));
	fake_run();
	ck_assert(known(mr[8]->rkey, mem + 8)); /* pulled */
	ck_assert_int_eq(dp_dereg_mr(mr[9]), 0);
	ck_assert_int_eq(dp_dereg_mr(mr[0]), 0);
	settle();
	mr[0] = dp_reg_mr(pd, mem + 20, 100, ACCESS);
	settle();
	ck_assert(known(mr[0]->rkey, mem + 20));
	ck_assert_uint_eq(PULLS(), 1);
	for (int i = 0; i < 9; i++)
		ck_assert_int_eq(dp_dereg_mr(mr[i]), 0);
	dp_push_max = max;
}
END_TEST

START_TEST(test_unwatch)
{
	struct ibv_mr *mr;

	fake_run();
	dp_rpd_put(rpd);
	fake_run();
	ck_assert_uint_eq(fake_sent(&fake_owner, DP_MSG_KEYS_UNWATCH), 1);
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	settle();
	ck_assert_uint_eq(TABLES(), 0);
	rpd = dp_rpd_get(&fake_owner, dp_pd_find(pd)->id);
	fake_run();
	ck_assert(dp_rpd_ready(rpd));
	ck_assert(known(mr->rkey, mem));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);

	/* while a push waits for its turn */
	dp_push_gap_ns = UINT64_C(60000000000);
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	fake_run();
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	fake_run();
	ck_assert(dp_pd_rec(dp_pd_find(pd))->queued);
	dp_rpd_put(rpd);
	fake_run(); /* without its timer, which may never come when the peer layer stops */
	ck_assert(!dp_pd_rec(dp_pd_find(pd))->queued);
	dp_push_gap_ns = 1000000;
	rpd = dp_rpd_get(&fake_owner, dp_pd_find(pd)->id);
	settle();
	ck_assert(known(mr->rkey, mem));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	mr = dp_reg_mr(pd, mem + 1, 100, ACCESS);
	settle();
	ck_assert(known(mr->rkey, mem + 1));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

/* Only the end mark of its own watch makes a rpd ready. */
START_TEST(test_old_end)
{
	dp_rpd_put(rpd);
	rpd = dp_rpd_get(&fake_owner, dp_pd_find(pd)->id);
	while (fake_sent(&fake_holder, DP_MSG_KEYS_END) < 2)
		ck_assert(fake_step());
	ck_assert(fake_step());
	ck_assert(!dp_rpd_ready(rpd));
	ck_assert(fake_step());
	ck_assert(dp_rpd_ready(rpd));
}
END_TEST

START_TEST(test_ready)
{
	struct dp_rpd *other = dp_rpd_get(&fake_owner, dp_pd_find(pd)->id + 1);

	/* no such PD; and a peer that is gone has nothing to say */
	ck_assert(!dp_rpd_ready(other));
	fake_run();
	ck_assert(dp_rpd_ready(other));
	dp_rpd_put(other);
	fake_run();
	other = dp_rpd_get(&fake_owner, dp_pd_find(pd)->id + 1);
	ck_assert(!dp_rpd_ready(other));
	dp_rkeys_gone(&fake_owner);
	ck_assert(dp_rpd_ready(other));
	dp_rpd_put(other);
}
END_TEST

START_TEST(test_watcher_gone)
{
	static struct ibv_mr *mr[600];

	for (int i = 0; i < 600; i++)
		mr[i] = dp_reg_mr(pd, mem + i, 100, ACCESS);
	while (!TABLES())
		ck_assert(fake_step());
	atomic_store(&fake_holder.granted, 0);
	dp_rkeys_gone(&fake_holder);
	fake_run();
	ck_assert_uint_eq(TABLES(), 1);
	ck_assert(!dp_rpd_ready(rpd));
	for (int i = 0; i < 600; i++)
		ck_assert_int_eq(dp_dereg_mr(mr[i]), 0);
	fake_run();
	ck_assert_uint_eq(INVALS(), 0);
	ck_assert(!dp_key_blocked(dp_key_dev("fake0"), 10000));
}
END_TEST

/* The program gives up a PD that peers watch. */
START_TEST(test_watched_pd_goes)
{
	struct ibv_pd *second = dp_alloc_pd(fake_ctx.ctx);
	uint32_t id = dp_pd_find(second)->id;
	struct dp_rpd *other = dp_rpd_get(&fake_owner, id), *third;
	struct ibv_mr *mr;

	fake_run();
	mr = dp_reg_mr(second, mem, 100, ACCESS);
	fake_run();
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	mr = dp_reg_mr(second, mem, 100, ACCESS);
	fake_run(); /* waits for its turn */
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	ck_assert_int_eq(dp_dealloc_pd(second), 0);
	settle();
	third = dp_rpd_get(&fake_owner, id);
	ck_assert_ptr_eq(third, other);
	dp_rpd_put(third);
	dp_rpd_put(other);
	fake_run();
	ck_assert_uint_eq(fake_sent(&fake_owner, DP_MSG_KEYS_UNWATCH), 1);
}
END_TEST

START_TEST(test_push_call_fails)
{
	struct ibv_mr *mr[2];

	fake_run();
	fake_call_err = -ENOMEM;
	mr[0] = dp_reg_mr(pd, mem, 100, ACCESS);
	fake_call_err = 0;
	settle();
	ck_assert_uint_eq(TABLES(), 0);
	mr[1] = dp_reg_mr(pd, mem + 1, 100, ACCESS);
	settle();
	for (int i = 0; i < 2; i++) {
		ck_assert(known(mr[i]->rkey, mem + i));
		ck_assert_int_eq(dp_dereg_mr(mr[i]), 0);
	}
}
END_TEST

START_TEST(test_watch_self)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS), *later;

	dp_rpd_put(rpd);
	fake_run();
	fake_holder.self = true;
	fake_holder.other = &fake_holder;
	rpd = dp_rpd_get(&fake_holder, dp_pd_find(pd)->id);
	fake_run();
	ck_assert(dp_rpd_ready(rpd));
	ck_assert(known(mr->rkey, mem));
	later = dp_reg_mr(pd, mem + 1, 100, ACCESS);
	settle();
	ck_assert(known(later->rkey, mem + 1));
	ck_assert_uint_eq(fake_sent(&fake_holder, DP_MSG_KEYS_PULL), 0);
	ck_assert_int_eq(dp_dereg_mr(later), 0);
	ck_assert(dp_key_blocked(dp_key_dev("fake0"), 10001));
	fake_run();
	ck_assert(!dp_key_blocked(dp_key_dev("fake0"), 10001));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

/* Nonsense of every length and type, and cut or altered real messages, harm nothing. */
START_TEST(test_malformed)
{
	struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);
	unsigned seed = 42;
	uint8_t buf[256];
	struct dp_wbuf b;
	enum dp_fallback why;

	fake_control_stop();
	for (int i = 0; i < 200000; i++) {
		size_t len = (size_t)(rand_r(&seed) % (int)sizeof(buf));

		for (size_t k = 0; k < len; k++)
			buf[k] = (uint8_t)rand_r(&seed);
		b = (struct dp_wbuf){ .p = buf, .cap = sizeof(buf) };
		switch (rand_r(&seed) % 6) { /* let some look real */
		case 0:
			dp_put32(&b, dp_pd_find(pd)->id);
			dp_put16(&b, (uint16_t)(rand_r(&seed) % 8));
			break;
		case 1:
			dp_put32(&b, dp_pd_find(pd)->id);
			dp_put32(&b, mr->rkey);
			dp_put8(&b, (uint8_t)(rand_r(&seed) % 40));
			break;
		case 2:
			dp_put16(&b, (uint16_t)(rand_r(&seed) % 8));
			dp_put32(&b, dp_pd_find(pd)->id);
			dp_put32(&b, mr->rkey);
			break;
		case 3:
			dp_put32(&b, dp_pd_find(pd)->id);
			dp_put8(&b, (uint8_t)(rand_r(&seed) % 4));
			dp_put16(&b, (uint16_t)(rand_r(&seed) % 4));
			dp_put32(&b, mr->rkey + (uint32_t)(rand_r(&seed) % 4));
			len = 7 + (size_t)(rand_r(&seed) % 48);
			break;
		case 4:
			dp_put32(&b, dp_pd_find(pd)->id);
			dp_put32(&b, (uint32_t)(rand_r(&seed) % 4));
			len = 4 + 4 * (size_t)(rand_r(&seed) % 2);
			break;
		}
		dp_rkeys_message(rand_r(&seed) % 2 ? &fake_owner : &fake_holder,
				 (uint16_t)(DP_MSG_KEYS + rand_r(&seed) % 9), buf, len);
		if (i % 16 == 0) {
			dp_take(&fake_qp[0].lock);
			dp_rkey_get(rpd, mr->rkey, &why); /* whatever it was told */
			dp_drop(&fake_qp[0].lock);
			fake_run();
		}
	}
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
	fake_run();
	/* whoever it was that said those things, the next MR works */
	mr = dp_reg_mr(pd, mem, 100, ACCESS);
	dp_rkeys_gone(&fake_owner);
	dp_rpd_put(rpd);
	rpd = dp_rpd_get(&fake_owner, dp_pd_find(pd)->id);
	ck_assert_ptr_nonnull(learn(mr->rkey));
	ck_assert_int_eq(dp_dereg_mr(mr), 0);
}
END_TEST

/*
 * A program registers, lets its peer use the MR, and drops it, over and over, on devices that reuse keys at
 * once; the peer's poster must never get keys of another MR than the one it was told of.
 */
struct shared {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	uint32_t rkey; /* 0: none */
	void *addr;
	bool end;
	unsigned used;
};

static void *poster(void *arg)
{
	struct shared *s = arg;
	struct dp_qp *q = &fake_qp[0];

	for (;;) {
		pthread_mutex_lock(&s->lock);
		while (!s->rkey && !s->end)
			pthread_cond_wait(&s->cond, &s->lock);
		if (s->end) {
			pthread_mutex_unlock(&s->lock);
			return NULL;
		}
		for (int i = 0; i < 20; i++) {
			const struct dp_rkeys *keys;
			enum dp_fallback why;

			dp_take(&q->lock);
			keys = dp_rkey_get(rpd, s->rkey, &why);
			if (keys) {
				must(keys->n == 2);
				must(fake_how(1, keys->key[0]).addr == s->addr);
				must(fake_how(2, keys->key[1]).addr == s->addr);
				s->used++;
			}
			dp_drop(&q->lock);
			wait_ns(keys ? 0 : 20000);
		}
		s->rkey = 0;
		pthread_cond_broadcast(&s->cond);
		pthread_mutex_unlock(&s->lock);
	}
}

static void *stranger(void *arg)
{
	struct shared *s = arg;
	struct ibv_mr *mr[8] = { 0 };
	bool end = false;

	for (unsigned i = 0; !end; i++) {
		struct ibv_mr **m = &mr[i % 8];

		if (*m)
			must(dp_dereg_mr(*m) == 0);
		*m = dp_reg_mr(pd, mem, 100, ACCESS);
		must(*m);
		pthread_mutex_lock(&s->lock);
		end = s->end;
		pthread_mutex_unlock(&s->lock);
	}
	for (int i = 0; i < 8; i++)
		if (mr[i])
			must(dp_dereg_mr(mr[i]) == 0);
	return NULL;
}

START_TEST(test_churn)
{
	struct shared s = { .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };
	pthread_t t[2];

	fake_control_start(300);
	pthread_create(&t[0], NULL, poster, &s);
	pthread_create(&t[1], NULL, stranger, &s);
	for (int i = 0; i < 400; i++) {
		char *addr = mem + 1 + i;
		struct ibv_mr *mr = dp_reg_mr(pd, addr, 100, ACCESS);

		must(mr);
		pthread_mutex_lock(&s.lock);
		s.addr = addr;
		s.rkey = mr->rkey;
		pthread_cond_broadcast(&s.cond);
		while (s.rkey)
			pthread_cond_wait(&s.cond, &s.lock);
		pthread_mutex_unlock(&s.lock);
		if (i % 5 == 0)
			must(dp_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ACCESS) == 0);
		if (i % 8)
			must(dp_dereg_mr(mr) == 0);
		else
			dp_unimport_mr(mr);
	}
	pthread_mutex_lock(&s.lock);
	s.end = true;
	pthread_cond_broadcast(&s.cond);
	pthread_mutex_unlock(&s.lock);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	fake_control_stop();
	ck_assert_uint_gt(s.used, 0);
	ck_assert_uint_gt(fake_sent(&fake_holder, DP_MSG_KEYS_INVAL), 0);
}
END_TEST

/* Ever new keys, as registrations without end make them: all that live are found, and tables do not pile up. */
START_TEST(test_map_churn)
{
	static const uint64_t live[] = { 1, 16, 64, 101 }, steps[] = { 1, 7, 256, 384, 4096, 1000003 };
	size_t nlive = sizeof(live) / sizeof(live[0]);

	for (size_t i = 0; i < nlive * sizeof(steps) / sizeof(steps[0]); i++) {
		size_t n = i % nlive;
		uint64_t step = steps[i / nlive];
		struct dp_hmap m;
		unsigned tables = 0;

		dp_hmap_init(&m);
		for (uint64_t k = 0; k < 60000; k++) {
			ck_assert_int_eq(dp_hmap_put(&m, k * step + n, mem + k % 1000), 0);
			if (k < live[n])
				continue;
			ck_assert_ptr_eq(dp_hmap_del(&m, (k - live[n]) * step + n), mem + (k - live[n]) % 1000);
			ck_assert_ptr_null(dp_hmap_get(&m, (k - live[n]) * step + n));
			if (k % 97)
				continue;
			for (uint64_t o = k - live[n] + 1; o <= k; o++)
				ck_assert_ptr_eq(dp_hmap_get(&m, o * step + n), mem + o % 1000);
		}
		for (const struct dp_htab *t = atomic_load(&m.tab); t; t = t->retired)
			tables++;
		ck_assert_uint_le(tables, 8);
		dp_hmap_fini(&m);
	}
}
END_TEST

/* Pulls for keys of MRs that go at the same time: whoever was told is recorded, and the key comes free. */
static void *puller(void *arg)
{
	struct shared *s = arg;
	bool end = false;

	for (uint32_t i = 0; !end; i++) {
		enum dp_fallback why;

		dp_take(&fake_qp[1].lock);
		dp_rkey_get(rpd, 10000 + i % 4, &why);
		dp_drop(&fake_qp[1].lock);
		wait_ns(1000);
		pthread_mutex_lock(&s->lock);
		end = s->end;
		pthread_mutex_unlock(&s->lock);
	}
	return NULL;
}

START_TEST(test_pull_races_dereg)
{
	struct shared s = { .lock = PTHREAD_MUTEX_INITIALIZER };
	pthread_t t;

	fake_control_start(0);
	pthread_create(&t, NULL, puller, &s);
	for (int i = 0; i < 3000; i++) {
		struct ibv_mr *mr = dp_reg_mr(pd, mem, 100, ACCESS);

		must(mr);
		if (i % 3 == 0)
			wait_ns(100000);
		must(dp_dereg_mr(mr) == 0);
	}
	pthread_mutex_lock(&s.lock);
	s.end = true;
	pthread_mutex_unlock(&s.lock);
	pthread_join(t, NULL);
	fake_control_stop();
	fake_run();
	for (uint32_t i = 0; i < FAKE_KEYS; i++)
		ck_assert(!dp_key_blocked(dp_key_dev("fake0"), 10000 + i));
	ck_assert_uint_gt(fake_sent(&fake_holder, DP_MSG_KEYS_INVAL), 0);
}
END_TEST

static void watch_again(void *arg)
{
	struct dp_rpd *r = dp_rpd_get(&fake_owner, *(uint32_t *)arg);

	dp_rpd_put(r);
}

struct churner {
	struct ibv_pd *pd;
	unsigned seed;
};

static void *churn(void *arg)
{
	struct churner *c = arg;
	struct ibv_mr *mr[16] = { 0 };

	for (int i = 0; i < 3000; i++) {
		int at = rand_r(&c->seed) % 16;

		if (mr[at]) {
			if (rand_r(&c->seed) % 64 == 0)
				must(dp_rereg_mr(mr[at], IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ACCESS) == 0);
			must(dp_dereg_mr(mr[at]) == 0);
			mr[at] = NULL;
		} else {
			mr[at] = dp_reg_mr(c->pd, mem + at, 100, ACCESS);
			must(mr[at]);
		}
		if (i % 64 == 0)
			wait_ns(500000);
	}
	for (int i = 0; i < 16; i++)
		if (mr[i])
			must(dp_dereg_mr(mr[i]) == 0);
	return NULL;
}

/* Two threads of the program, the control thread, and a peer that comes and goes as a watcher of one of two PDs. */
START_TEST(test_push_races)
{
	struct ibv_pd *second = dp_alloc_pd(fake_ctx.ctx);
	uint32_t id = dp_pd_find(second)->id;
	struct churner c[2] = { { pd, 1 }, { second, 2 } };
	pthread_t t[2];

	fake_control_start(0);
	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, churn, &c[i]);
	for (int i = 0; i < 200; i++) {
		dp_peer_call(watch_again, &id);
		wait_ns(200000);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	fake_control_stop();
	settle();
	ck_assert_uint_gt(TABLES(), 0);
	ck_assert_uint_gt(INVALS(), 0);
	for (uint32_t i = 0; i < FAKE_KEYS; i++) {
		ck_assert(!dp_key_blocked(dp_key_dev("fake0"), 10000 + i));
		ck_assert(!dp_key_blocked(dp_key_dev("fake2"), 30000 + i));
	}
	ck_assert_int_eq(dp_dealloc_pd(second), 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("rkeys");
	TCase *tc = tcase_create("rkeys"), *bulk = tcase_create("bulk");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, test_pull);
	tcase_add_test(tc, test_none);
	tcase_add_test(tc, test_none_for_rail0_only);
	tcase_add_test(tc, test_call_fails);
	tcase_add_test(tc, test_reuse);
	tcase_add_test(tc, test_blocked_in_time);
	tcase_add_test(tc, test_reuse_without_holder);
	tcase_add_test(tc, test_lease);
	tcase_add_test(tc, test_gone_holder);
	tcase_add_test(tc, test_gone_owner);
	tcase_add_test(tc, test_key_space_full);
	tcase_add_test(tc, test_wait_is_bounded);
	tcase_add_test(tc, test_dereg_busy);
	tcase_add_test(tc, test_rereg);
	tcase_add_test(tc, test_barrier);
	tcase_add_test(tc, test_give_back);
	tcase_add_test(tc, test_unimport_held);
	tcase_add_loop_test(tc, test_reuse_without_twins, 0, 2);
	tcase_add_test(tc, test_unknown_pd);
	tcase_add_test(tc, test_self);
	tcase_add_test(tc, test_fork);
	tcase_add_test(tc, test_many);
	tcase_add_test(tc, test_pull_bound);
	tcase_add_test(tc, test_malformed);
	tcase_add_test(tc, test_churn);
	tcase_add_test(tc, test_map_churn);
	tcase_add_test(tc, test_pull_races_dereg);
	suite_add_tcase(s, tc);

	tcase_add_checked_fixture(bulk, setup_watch, teardown);
	tcase_set_timeout(bulk, 120);
	tcase_add_test(bulk, test_bulk);
	tcase_add_test(bulk, test_bulk_slices);
	tcase_add_test(bulk, test_bulk_end);
	tcase_add_test(bulk, test_push);
	tcase_add_test(bulk, test_push_dereg_before);
	tcase_add_test(bulk, test_push_dereg_after);
	tcase_add_test(bulk, test_push_lease);
	tcase_add_test(bulk, test_push_rereg);
	tcase_add_test(bulk, test_push_dereg_busy);
	tcase_add_test(bulk, test_told_how);
	tcase_add_test(bulk, test_arrival);
	tcase_add_test(bulk, test_unasked_bound);
	tcase_add_test(bulk, test_push_bound);
	tcase_add_test(bulk, test_unwatch);
	tcase_add_test(bulk, test_old_end);
	tcase_add_test(bulk, test_ready);
	tcase_add_test(bulk, test_watcher_gone);
	tcase_add_test(bulk, test_watched_pd_goes);
	tcase_add_test(bulk, test_push_call_fails);
	tcase_add_test(bulk, test_watch_self);
	tcase_add_test(bulk, test_fork);
	tcase_add_test(bulk, test_malformed);
	tcase_add_test(bulk, test_churn);
	tcase_add_test(bulk, test_pull_races_dereg);
	tcase_add_test(bulk, test_push_races);
	suite_add_tcase(s, bulk);
	return run_suite(s);
}

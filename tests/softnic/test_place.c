// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * --placement late, with devices 0 and 1 on one card, 2 and 3 on others. Device 3 sends, so that its completions push
 * nothing of what is looked at. What must be visible is so in each round; what need not be is not, in most.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test_peer.h"

#define ROUNDS 40u
#define MOST (20 * ROUNDS) /* what need not be seen is, if the machine looks away between two steps */
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* Connections from device 3 to 0, 1 and 2; the memory of the first is registered for the others, too. */
struct net {
	struct end from[3], to[3];
	struct ibv_mr *same[3];
};

static void open_net(struct net *n, int access)
{
	for (int i = 0; i < 3; i++) {
		end_open(&n->from[i], 3, NULL);
		end_open(&n->to[i], i, NULL);
		join(&n->from[i], &n->to[i], NULL);
	}
	for (int i = 0; i < 3; i++) {
		n->same[i] = ibv_reg_mr(n->to[i].pd, n->to[0].buf, LEN, ALL | access);
		ck_assert_ptr_nonnull(n->same[i]);
	}
}

static void close_net(struct net *n)
{
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(ibv_dereg_mr(n->same[i]), 0);
	for (int i = 0; i < 3; i++) {
		end_close(&n->from[i]);
		end_close(&n->to[i]);
	}
}

static uint64_t word(const struct end *e, uint32_t at)
{
	return __atomic_load_n((const uint64_t *)(const void *)(e->buf + at), __ATOMIC_ACQUIRE);
}

/* A WRITE into the memory of the first, through a device. */
static void begin_put(struct net *n, int dev, uint32_t at, uint64_t value)
{
	struct wr w = { IBV_WR_RDMA_WRITE, .to = at, .len = 8, .rkey = n->same[dev]->rkey, .flags = IBV_SEND_INLINE };

	memcpy(n->from[dev].buf, &value, 8);
	ck_assert_int_eq(post(&n->from[dev], &n->to[0], 1, w), 0);
}

/* Until it is acknowledged. */
static void put(struct net *n, int dev, uint32_t at, uint64_t value)
{
	begin_put(n, dev, at, value);
	want(&n->from[dev], 1, IBV_WC_SUCCESS);
}

/* A READ of it through a device, in its name there or another region's of that device. What it got. */
static uint64_t get(struct net *n, int dev, bool same)
{
	struct wr w = { IBV_WR_RDMA_READ, .at = 64, .len = 8, .rkey = same ? n->same[dev]->rkey : 0 };

	ck_assert_int_eq(post(&n->from[dev], &n->to[same ? 0 : dev], 2, w), 0);
	want(&n->from[dev], 2, IBV_WC_SUCCESS);
	return word(&n->from[dev], 64);
}

static void wait_for(const struct end *e, uint32_t at, uint64_t value)
{
	double end = seconds() + 20;

	while (word(e, at) != value)
		ck_assert_msg(seconds() < end, "a WRITE is never seen");
}

enum push { NOTHING, READ_0, READ_1, READ_2, READ_OTHER, ATOMIC_1, ATOMIC_2, SEND_1, SEND_2, WRITE_1, WRITE_2, PUSHES };

static const struct {
	const char *name;
	bool must;
} pushes[PUSHES] = {
	[NOTHING] = { "nothing", false },
	[READ_0] = { "a READ through the same port", true },
	[READ_1] = { "a READ through the other port of the card", true },
	[READ_2] = { "a READ through another card", false },
	[READ_OTHER] = { "a READ of another region through the other port", false },
	[ATOMIC_1] = { "an atomic through the other port", true },
	[ATOMIC_2] = { "an atomic through another card", false },
	[SEND_1] = { "a SEND through the other port", true },
	[SEND_2] = { "a SEND through another card", false },
	[WRITE_1] = { "a WRITE through the other port, once it is seen", true },
	[WRITE_2] = { "a WRITE through another card, once it is seen", false },
};

/* Does it; what it saw itself must agree with what must be visible. */
static void push(struct net *n, enum push p, uint64_t value)
{
	int dev = p == READ_2 || p == ATOMIC_2 || p == SEND_2 || p == WRITE_2 ? 2 : p == READ_0 ? 0 : 1;
	uint64_t got;

	switch (p) {
	case READ_0:
	case READ_1:
	case READ_2:
		got = get(n, dev, true);
		if (dev != 2)
			ck_assert_uint_eq(got, value);
		break;
	case READ_OTHER:
		get(n, 1, false);
		break;
	case ATOMIC_1:
	case ATOMIC_2:
		ck_assert_int_eq(post(&n->from[dev], &n->to[dev], 3, (struct wr){ IBV_WR_ATOMIC_FETCH_AND_ADD,
				      .at = 128, .len = 8, .arg = 1 }), 0);
		want(&n->from[dev], 3, IBV_WC_SUCCESS);
		break;
	case SEND_1:
	case SEND_2:
		ck_assert_int_eq(post_rx(&n->to[dev], 5, 4096, 8), 0);
		ck_assert_int_eq(post(&n->from[dev], &n->to[dev], 4, (struct wr){ IBV_WR_SEND, .len = 8 }), 0);
		want(&n->to[dev], 5, IBV_WC_SUCCESS);
		break;
	case WRITE_1:
	case WRITE_2:
		put(n, dev, 512, value);
		wait_for(&n->to[0], 512, value);
		break;
	default:
		break;
	}
}

START_TEST(late)
{
	uint32_t seen = 0, unseen = 0, wanted = _i == WRITE_2 ? 1 : ROUNDS / 2;
	struct net n;

	open_net(&n, 0);
	for (uint64_t v = 1; v <= (pushes[_i].must ? ROUNDS : MOST) && unseen < wanted; v++) {
		put(&n, 0, 0, v);
		push(&n, (enum push)_i, v);
		if (word(&n.to[0], 0) == v)
			seen++;
		else
			unseen++;
		wait_for(&n.to[0], 0, v);
		/* what a SEND or an atomic leaves on the sender's side is polled in its own time */
		for (int i = 0; i < 3; i++) {
			struct ibv_wc wc;

			while (poll_one(&n.from[i], &wc, 0))
				ck_assert_int_eq(wc.status, IBV_WC_SUCCESS);
		}
	}
	printf("late, then %s: seen in %u of %u rounds\n", pushes[_i].name, seen, seen + unseen);
	if (pushes[_i].must)
		ck_assert_uint_eq(unseen, 0);
	else
		ck_assert_uint_eq(unseen, wanted);
	close_net(&n);
}
END_TEST

/* To such memory, a younger WRITE may be seen before an older one of the same queue pair. An atomic still pushes. */
START_TEST(relaxed)
{
	uint32_t early = 0;
	struct net n;
	uint64_t v;

	open_net(&n, IBV_ACCESS_RELAXED_ORDERING);
	for (v = 1; v <= MOST && early <= ROUNDS / 8; v++) {
		begin_put(&n, 0, 0, v);
		begin_put(&n, 0, 512, v);
		want(&n.from[0], 1, IBV_WC_SUCCESS);
		want(&n.from[0], 1, IBV_WC_SUCCESS);
		wait_for(&n.to[0], 512, v);
		early += word(&n.to[0], 0) != v;
		wait_for(&n.to[0], 0, v);
		put(&n, 0, 0, v + MOST);
		push(&n, ATOMIC_1, v);
		ck_assert_uint_eq(word(&n.to[0], 0), v + MOST);
	}
	printf("relaxed ordering: a flag before data in %u of %llu rounds\n", early, (unsigned long long)v - 1);
	ck_assert_uint_gt(early, ROUNDS / 8);
	close_net(&n);
}
END_TEST

/* What was acknowledged is in memory once that is no longer registered. */
START_TEST(gone)
{
	struct net n;

	open_net(&n, 0);
	for (uint64_t v = 1; v <= ROUNDS; v++) {
		put(&n, 0, 0, v);
		ck_assert_int_eq(ibv_dereg_mr(n.same[0]), 0);
		ck_assert_uint_eq(word(&n.to[0], 0), v);
		n.same[0] = ibv_reg_mr(n.to[0].pd, n.to[0].buf, LEN, ALL);
		ck_assert_ptr_nonnull(n.same[0]);
		put(&n, 0, 0, v + 1000);
		ck_assert_int_eq(ibv_rereg_mr(n.same[0], IBV_REREG_MR_CHANGE_TRANSLATION, NULL, n.to[0].buf, LEN, 0),
				 0);
		ck_assert_uint_eq(word(&n.to[0], 0), v + 1000);
	}
	close_net(&n);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("softnic: late placement");
	TCase *t = tcase_create("place");

	setvbuf(stdout, NULL, _IONBF, 0);
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, late, 0, PUSHES);
	tcase_add_test(t, relaxed);
	tcase_add_test(t, gone);
	suite_add_tcase(s, t);
	return run_suite(s);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What --adverse does, and what it does not: another process looks at its memory while this one writes there. Run with
 * and without it; devices 0 and 1 are this process's, 2 and 3 the other's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test_peer.h"

#define ROUNDS 200u
#define MOST (10 * ROUNDS) /* who watches sees nothing while the machine does other things */
#define DATA 65536u
#define FLAG (LEN - 64)	/* where in the buffer */

enum watch { STOP, FLAG_THEN_DATA, LAST_THEN_FIRST };

struct order {
	enum watch watch;
	uint32_t flag_end, data_end;	/* which of the other's ends */
	uint64_t round;
};

struct ends {
	struct end e[2];
	struct far f[2];
	int sock;
	pid_t pid;
};

static bool adverse(void)
{
	const char *s = getenv("SOFTNIC_ADVERSE");

	return s && *s == '1';
}

static uint64_t word(const uint8_t *p)
{
	return __atomic_load_n((const uint64_t *)(const void *)p, __ATOMIC_ACQUIRE);
}

static void watch(const uint8_t *p, uint64_t value)
{
	double end = seconds() + 60;

	while (word(p) != value)
		ck_assert_msg(seconds() < end, "%llu did not come", (unsigned long long)value);
}

/* Tells for each round whether something was seen too early. */
static void watcher(int sock, void *arg)
{
	struct end e[2];
	struct far f[2];
	struct order o;
	char ready = 'r';

	(void)arg;
	for (int i = 0; i < 2; i++) {
		end_open(&e[i], 2 + i, NULL);
		far_join(sock, &e[i], &f[i], NULL);
	}
	for (;;) {
		bool early;

		hear(sock, &o, sizeof(o));
		if (o.watch == STOP)
			break;
		const uint8_t *data = e[o.data_end].buf, *flag = e[o.flag_end].buf + FLAG;

		tell(sock, &ready, 1);
		watch(o.watch == FLAG_THEN_DATA ? flag : data + DATA - 8, o.round);
		early = word(data) != o.round || word(data + DATA - 8) != o.round;
		watch(data, o.round);
		watch(data + DATA - 8, o.round);
		/* the whole of it is right in the end */
		for (uint32_t i = 8; i < DATA - 8; i += 8)
			watch(data + i, o.round + i);
		tell(sock, &early, sizeof(early));
	}
	meet(sock);
	for (int i = 0; i < 2; i++)
		end_close(&e[i]);
}

static void begin(struct ends *s)
{
	s->sock = peer_start(&s->pid, watcher, NULL);
	for (int i = 0; i < 2; i++) {
		end_open(&s->e[i], i, NULL);
		far_join(s->sock, &s->e[i], &s->f[i], NULL);
	}
}

static void end(struct ends *s)
{
	tell(s->sock, &(struct order){ STOP, 0, 0, 0 }, sizeof(struct order));
	meet(s->sock);
	for (int i = 0; i < 2; i++)
		end_close(&s->e[i]);
	peer_end(s->pid);
}

static bool one_round(struct ends *s, struct order o, bool atomic)
{
	struct end *data = &s->e[o.data_end], *flag = &s->e[o.flag_end];
	struct wr f = { IBV_WR_RDMA_WRITE, .at = FLAG, .to = FLAG, .len = 8, .flags = IBV_SEND_INLINE };
	uint64_t w;
	bool early;
	char c;

	tell(s->sock, &o, sizeof(o));
	hear(s->sock, &c, 1);
	for (uint32_t i = 0; i < DATA; i += 8) {
		w = o.round + (i < DATA - 8 ? i : 0);
		memcpy(data->buf + i, &w, 8);
	}
	memcpy(flag->buf + FLAG, &o.round, 8);
	if (atomic)
		f = (struct wr){ IBV_WR_ATOMIC_FETCH_AND_ADD, .at = FLAG + 8, .to = FLAG, .len = 8, .arg = 1 };
	ck_assert_int_eq(post(data, &s->f[o.data_end].end, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = DATA }), 0);
	if (o.watch == FLAG_THEN_DATA)
		ck_assert_int_eq(post(flag, &s->f[o.flag_end].end, 2, f), 0);
	/* not polling: who watches needs the machine */
	hear(s->sock, &early, sizeof(early));
	want(data, 1, IBV_WC_SUCCESS);
	if (o.watch == FLAG_THEN_DATA)
		want(flag, 2, IBV_WC_SUCCESS);
	return early;
}

/* All ROUNDS, and if that were too few with --adverse, more of them. */
static uint32_t rounds(struct ends *s, struct order o, uint32_t wanted, const char *what)
{
	uint32_t n = 0;

	for (o.round = 1; o.round <= ROUNDS || (adverse() && n < wanted && o.round <= MOST); o.round++)
		n += one_round(s, o, o.round & 1);
	printf("%sadverse, %s: %u of %u rounds\n", adverse() ? "" : "not ", what, n, (uint32_t)o.round - 1);
	return n;
}

/* Flags are counted from 1 on again. */
START_TEST(other_device)
{
	struct ends s;
	uint32_t n;

	begin(&s);
	n = rounds(&s, (struct order){ FLAG_THEN_DATA, (uint32_t)_i, 1 - (uint32_t)_i, 0 }, ROUNDS / 2,
		   _i ? "a flag on device 1 before the data on device 0" :
			"a flag on device 0 before the data on device 1");
	if (adverse())
		ck_assert_uint_ge(n, ROUNDS / 2);
	else
		ck_assert_uint_lt(n, ROUNDS / 10);
	end(&s);
}
END_TEST

START_TEST(same_queue_pair)
{
	struct ends s;

	begin(&s);
	ck_assert_uint_eq(rounds(&s, (struct order){ FLAG_THEN_DATA, 0, 0, 0 }, 0, "a flag before the data on its QP"), 0);
	end(&s);
}
END_TEST

START_TEST(last_bytes)
{
	struct ends s;
	uint32_t n;

	begin(&s);
	n = rounds(&s, (struct order){ LAST_THEN_FIRST, 0, 0, 0 }, ROUNDS / 4, "a WRITE's last bytes before its first");
	if (adverse())
		ck_assert_uint_ge(n, ROUNDS / 4);
	else
		ck_assert_uint_eq(n, 0);
	end(&s);
}
END_TEST

/* They come in order, and with --adverse never two at once. */
START_TEST(completions)
{
	struct ibv_wc wc[32];
	struct end a, b;
	int most = 0, n;

	pair_open(&a, &b, NULL, NULL);
	for (int round = 0; round < 20 || (!adverse() && most < 2 && round < 1000); round++) {
		double until = seconds() + 5e-3;

		for (uint64_t i = 0; i < 32; i++)
			ck_assert_int_eq(post(&a, &b, i, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
		while (seconds() < until)
			;
		for (int got = 0; got < 32; got += n) {
			n = ibv_poll_cq(a.cq, 32, wc);
			ck_assert_int_ge(n, 0);
			most = n > most ? n : most;
			for (int i = 0; i < n; i++) {
				ck_assert_uint_eq(wc[i].wr_id, (uint64_t)(got + i));
				ck_assert_int_eq(wc[i].status, IBV_WC_SUCCESS);
			}
		}
	}
	printf("%sadverse: at most %d completions at once\n", adverse() ? "" : "not ", most);
	if (adverse())
		ck_assert_int_eq(most, 1);
	else
		ck_assert_int_gt(most, 1);
	pair_close(&a, &b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create(adverse() ? "softnic: adverse" : "softnic: not adverse");
	TCase *t = tcase_create("adverse");

	setvbuf(stdout, NULL, _IONBF, 0);
	tcase_set_timeout(t, 200);
	tcase_add_loop_test(t, other_device, 0, 2);
	tcase_add_test(t, same_queue_pair);
	tcase_add_test(t, last_bytes);
	tcase_add_test(t, completions);
	suite_add_tcase(s, t);
	return run_suite(s);
}

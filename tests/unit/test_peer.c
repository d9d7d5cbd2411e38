// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * The peer layer without sockets: timers against a slow reference, addresses, key derivation, and a connection's parser under
 * a hundred thousand random and mutated inputs. Processes are in peer_procs.py.
 */
#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "internal.h"
#include "timer.h"
#include "run.h"

static uint64_t rng_state = 88172645463325252ULL;

static uint64_t rnd(void)
{
	rng_state ^= rng_state << 13;
	rng_state ^= rng_state >> 7;
	rng_state ^= rng_state << 17;
	return rng_state;
}

static unsigned messages, goners, asked;

static bool owns(const union ibv_gid *gid, uint32_t qpn)
{
	(void)gid;
	asked++;
	return qpn == 7;
}

static void message(struct dp_peer *peer, uint16_t type, const uint8_t *data, size_t len)
{
	volatile uint8_t sum = 0;

	ck_assert_uint_ge(type, DP_MSG_USER);
	ck_assert_uint_le(len, DP_MSG_MAX);
	for (size_t i = 0; i < len; i++)
		sum = (uint8_t)(sum + data[i]);
	messages++;
	if (type == 0x103)
		dp_peer_send(peer, 0x104, data, len);
}

static void gone(struct dp_peer *peer)
{
	ck_assert_int_eq(dp_peer_send(peer, 0x100, "x", 1), -EPIPE);
	ck_assert(!dp_peer_lease_valid(peer));
	goners++;
}

static const struct dp_peer_handler handler = { owns, message, gone };

static void setup(void)
{
	memset(&dp_cfg, 0, sizeof(dp_cfg));
	dp_cfg.lease_ns = 2 * DP_SEC;
	messages = goners = asked = 0;
	dp_log_level = DP_LOG_QUIET;
	ck_assert_int_eq(dp_peering_new(&handler), 0);
	dp_peering->port = 4711;
}

static void teardown(void)
{
	while (dp_peering->conns)
		dp_conn_drop(dp_peering->conns);
	dp_host_stop();
	dp_peering_free();
}

/* ---- timers ---- */

#define NTIMERS 200

START_TEST(timers_like_reference)
{
	static struct dp_timer t[NTIMERS];
	bool in[NTIMERS] = { false };
	struct dp_timer *root = NULL;

	for (int step = 0; step < 200000; step++) {
		int i = (int)(rnd() % NTIMERS);

		if (in[i]) {
			dp_timers_remove(&root, &t[i]);
		} else {
			t[i].due = rnd() % 1000;
			dp_timers_insert(&root, &t[i]);
		}
		in[i] = !in[i];
		if (step % 16)
			continue;
		uint64_t least = UINT64_MAX;

		for (int j = 0; j < NTIMERS; j++)
			if (in[j] && t[j].due < least)
				least = t[j].due;
		ck_assert(root ? root->due == least : least == UINT64_MAX);
	}
	uint64_t last = 0;

	while (root) {
		struct dp_timer *first = root;

		ck_assert_uint_ge(first->due, last);
		last = first->due;
		dp_timers_remove(&root, first);
		in[first - t] = !in[first - t];
	}
	for (int j = 0; j < NTIMERS; j++)
		ck_assert(!in[j]);
}
END_TEST

/* ---- addresses ---- */

static int of_text(const char *text, const char *netdev, struct dp_addr *a)
{
	union ibv_gid g;

	ck_assert_int_eq(inet_pton(AF_INET6, text, g.raw), 1);
	return dp_addr_of_gid(a, &g, netdev);
}

START_TEST(addresses)
{
	struct sockaddr_storage sa;
	struct dp_addr a, b;
	char text[64];

	ck_assert_int_eq(of_text("::ffff:10.0.0.2", "", &a), 0);
	ck_assert_int_eq(a.family, AF_INET);
	ck_assert_str_eq(dp_addr_text(&a, text), "10.0.0.2");
	dp_addr_to_sa(&a, 80, &sa);
	ck_assert_int_eq(dp_addr_of_sa(&b, &sa), 0);
	ck_assert(dp_addr_equal(&a, &b));
	ck_assert_int_eq(of_text("2001:db8::1", "", &a), 0);
	ck_assert_int_eq(a.family, AF_INET6);
	dp_addr_to_sa(&a, 80, &sa);
	ck_assert_int_eq(dp_addr_of_sa(&b, &sa), 0);
	ck_assert(dp_addr_equal(&a, &b));
	ck_assert_int_eq(of_text("fe80::1", "lo", &a), 0);
	ck_assert_uint_eq(a.scope, if_nametoindex("lo"));
	ck_assert_int_eq(of_text("fe80::1", "", &a), -EADDRNOTAVAIL);
	ck_assert_int_eq(of_text("fe80::1", "nonesuch0", &a), -EADDRNOTAVAIL);
	ck_assert_int_eq(of_text("::", "", &a), -EADDRNOTAVAIL);
	ck_assert_int_eq(of_text("ff02::1", "lo", &a), -EADDRNOTAVAIL);
	ck_assert_int_eq(of_text("::ffff:0.0.0.0", "", &a), -EADDRNOTAVAIL);
	ck_assert_int_eq(of_text("::ffff:224.0.0.1", "", &a), -EADDRNOTAVAIL);
	ck_assert_int_eq(of_text("::ffff:255.255.255.255", "", &a), -EADDRNOTAVAIL);
	of_text("::ffff:127.0.0.9", "", &a);
	ck_assert(dp_addr_local(&a));
	of_text("::ffff:192.0.2.1", "", &a);
	ck_assert(!dp_addr_local(&a));
	of_text("::1", "", &a);
	dp_addr_netdev(&a, text);
}
END_TEST

static bool at(const struct dp_peer *p, const char *text, const char *netdev)
{
	union ibv_gid g;

	ck_assert_int_eq(inet_pton(AF_INET6, text, g.raw), 1);
	return dp_peer_at(p, &g, netdev);
}

START_TEST(peer_at_an_address)
{
	struct dp_conn *c = dp_conn_new(true);
	struct dp_peer p = { .conn = c };

	of_text("::ffff:192.0.2.1", "", &c->addr);
	ck_assert(at(&p, "::ffff:192.0.2.1", ""));
	ck_assert(at(&p, "::ffff:192.0.2.1", "eth1"));
	ck_assert(!at(&p, "::ffff:192.0.2.2", ""));
	ck_assert(!at(&p, "::ffff:127.0.0.1", ""));
	ck_assert(!at(&p, "fe80::1", ""));
	/* equal addresses on two fabrics */
	strcpy(c->netdev, "eth0");
	ck_assert(at(&p, "::ffff:192.0.2.1", "eth0"));
	ck_assert(at(&p, "::ffff:192.0.2.1", ""));
	ck_assert(!at(&p, "::ffff:192.0.2.1", "eth1"));
	/* any address of this host is as good as any other, but for others */
	of_text("::ffff:127.0.0.1", "", &c->addr);
	ck_assert(at(&p, "::ffff:127.0.0.9", ""));
	ck_assert(!at(&p, "::ffff:192.0.2.1", ""));
	ck_assert(at(&dp_peering->self, "::ffff:192.0.2.1", ""));
}
END_TEST

START_TEST(log_is_bounded)
{
	struct dp_addr a = { .family = AF_INET };
	unsigned lines = 0;

	ck_assert(dp_addr_may_log(&a));
	ck_assert(!dp_addr_may_log(&a));
	for (unsigned i = 1; i < 5000; i++) {
		memcpy(a.ip, &i, 4);
		lines += dp_addr_may_log(&a);
	}
	ck_assert_uint_ge(lines, 63);
	ck_assert_uint_le(lines, 66);
}
END_TEST

/* ---- keys ---- */

START_TEST(keys)
{
	struct dp_auth secret = { .on = true, .key = { 1, 2, 3 } }, other = { .on = true, .key = { 1, 2, 4 } };
	uint8_t hi[DP_HELLO_LEN] = { 1 }, ha[DP_HELLO_LEN] = { 2 }, mac[DP_MAC_LEN];
	struct dp_keys i, a, x;

	dp_auth_derive(&secret, &i, hi, ha, true);
	dp_auth_derive(&secret, &a, hi, ha, false);
	ck_assert_mem_eq(i.tx, a.rx, 32);
	ck_assert_mem_eq(i.rx, a.tx, 32);
	ck_assert_mem_ne(i.tx, i.rx, 32);
	dp_auth_derive(&other, &x, hi, ha, true);
	ck_assert_mem_ne(x.tx, i.tx, 32);
	ha[DP_HELLO_LEN - 1] ^= 1;
	dp_auth_derive(&secret, &x, hi, ha, true);
	ck_assert_mem_ne(x.tx, i.tx, 32);
	dp_auth_mac(i.tx, hi, sizeof(hi), mac);
	ck_assert(dp_auth_check(a.rx, hi, sizeof(hi), mac));
	ck_assert(!dp_auth_check(a.tx, hi, sizeof(hi), mac));
	mac[5] ^= 1;
	ck_assert(!dp_auth_check(a.rx, hi, sizeof(hi), mac));
}
END_TEST

/* ---- the parser ---- */

static size_t put_frame(uint8_t *p, uint16_t type, const void *data, size_t len, uint64_t seq)
{
	struct dp_wbuf b = { .p = p, .cap = DP_FRAME_HEAD + len };

	dp_put32(&b, DP_FRAME_MAGIC);
	dp_put8(&b, DP_PEER_PROTOCOL);
	dp_put8(&b, 0);
	dp_put16(&b, type);
	dp_put32(&b, (uint32_t)len);
	dp_put32(&b, 0);
	dp_put64(&b, seq);
	dp_put(&b, data, len);
	return b.len;
}

static size_t put_hello(uint8_t *p, uint8_t flags)
{
	uint8_t h[DP_HELLO_LEN];

	for (size_t i = 0; i < sizeof(h); i++)
		h[i] = (uint8_t)rnd();
	h[0] = flags;
	h[1 + DP_INSTANCE_LEN + 5] |= 1; /* a port */
	return put_frame(p, DP_MSG_HELLO, h, sizeof(h), 0);
}

static size_t put_ready(uint8_t *p)
{
	uint8_t lease[8] = { 0, 0, 0, 0, 0x77, 0x35, 0x94, 0 }; /* 2 s */

	return put_frame(p, DP_MSG_READY, lease, 8, 1);
}

/* A right conversation, as the other side would send it; returns its length. */
static size_t conversation(uint8_t *p, size_t cap)
{
	static uint8_t payload[DP_MSG_MAX];
	uint64_t seq = 2;
	size_t n = put_hello(p, 0);

	n += put_ready(p + n);
	while (rnd() % 8 && n + 4096 < cap) {
		static const uint16_t types[] = { DP_MSG_PING, DP_MSG_PONG, DP_MSG_WHO, DP_MSG_WHO_REPLY, DP_MSG_OWNS,
						  DP_MSG_OWNS_REPLY, 0x100, 0x103, 0xffff, DP_MSG_BYE };
		static const size_t lens[] = { 8, 16, 24, 10, 28, 9, 0, 0, 0, 0 };
		unsigned i = (unsigned)(rnd() % 128 ? rnd() % 9 : 9);
		size_t len = lens[i];

		if (types[i] >= DP_MSG_USER)
			len = rnd() % 2000;
		for (size_t j = 0; j < len; j++)
			payload[j] = (uint8_t)rnd();
		if (types[i] == DP_MSG_PONG) {
			memset(payload, 0, 16);
			payload[7] = payload[12] = 1;
		}
		if (types[i] == DP_MSG_WHO_REPLY)
			payload[8] = payload[9] = 0;
		n += put_frame(p + n, types[i], payload, len, seq++);
	}
	return n;
}

static void feed_in_pieces(struct dp_conn *c, const uint8_t *p, size_t n)
{
	while (n) {
		size_t part = rnd() % 4 ? n : 1 + rnd() % n;
		uint8_t *exact = malloc(part); /* a read past the end is seen by ASan */

		memcpy(exact, p, part);
		dp_conn_feed(c, exact, part);
		free(exact);
		p += part;
		n -= part;
	}
}

static void between_rounds(void)
{
	dp_conn_reap();
	dp_conn_flush_all();
	dp_self_deliver();
	while (dp_peering->ngarbage)
		free(dp_peering->garbage[--dp_peering->ngarbage]);
}

START_TEST(parser_takes_a_right_conversation)
{
	uint8_t *buf = malloc(65536 * 2), payload[] = { 0, 0, 0, 7 };
	struct dp_conn *c = dp_conn_new(true);
	size_t n = put_hello(buf, 0);

	n += put_ready(buf + n);
	n += put_frame(buf + n, 0x103, payload, 4, 2);
	for (size_t i = 0; i < n; i++) /* a byte at a time */
		dp_conn_feed(c, buf + i, 1);
	ck_assert(!c->doomed);
	ck_assert_int_eq(c->state, DP_CONN_OPEN);
	ck_assert_uint_eq(messages, 1);
	ck_assert(dp_peer_lease_valid(c->peer));
	ck_assert_uint_gt(dp_peer_granted_until(c->peer), dp_now());
	/* HELLO, READY, and the echo */
	ck_assert_uint_eq(c->out_len, 3 * DP_FRAME_HEAD + DP_HELLO_LEN + 8 + 4);
	memset(buf + DP_FRAME_HEAD, 5, DP_MSG_MAX);
	n = put_frame(buf, 0x100, buf + DP_FRAME_HEAD, DP_MSG_MAX, 3);
	feed_in_pieces(c, buf, n);
	ck_assert_uint_eq(messages, 2);
	n = put_frame(buf, 0x100, payload, 4, 3);
	dp_conn_feed(c, buf, n);
	ck_assert_msg(c->doomed, "a replayed message was taken");
	ck_assert_uint_eq(goners, 0);
	between_rounds();
	ck_assert_uint_eq(goners, 1);
	free(buf);
}
END_TEST

START_TEST(output_is_bounded)
{
	static uint8_t big[DP_MSG_MAX];
	uint8_t buf[1024];
	struct dp_conn *c = dp_conn_new(true);
	size_t n = put_hello(buf, 0);
	int sent = 0;

	n += put_ready(buf + n);
	dp_conn_feed(c, buf, n);
	ck_assert_int_eq(dp_peer_send(c->peer, 0x100, big, sizeof(big) + 1), -EMSGSIZE);
	while (!dp_peer_send(c->peer, 0x100, big, sizeof(big)))
		ck_assert_int_lt(++sent, 1000);
	ck_assert_int_gt(sent, 200);
	ck_assert(c->doomed);
	between_rounds();
	ck_assert_uint_eq(goners, 1);
}
END_TEST

START_TEST(output_to_all_is_bounded)
{
	static uint8_t big[DP_MSG_MAX];
	struct dp_conn *c[8];
	uint8_t buf[1024];
	unsigned alive = 0;

	for (int i = 0; i < 8; i++) {
		size_t n = put_hello(buf, 0);

		n += put_ready(buf + n);
		c[i] = dp_conn_new(true);
		dp_conn_feed(c[i], buf, n);
		ck_assert_int_eq(c[i]->state, DP_CONN_OPEN);
	}
	for (int i = 0; i < 8; i++)
		for (int k = 0; k < 240 - i && !c[i]->doomed; k++)
			dp_peer_send(c[i]->peer, 0x100, big, sizeof(big));
	for (int i = 0; i < 8; i++)
		alive += !c[i]->doomed;
	ck_assert_msg(c[0]->doomed, "the greatest is given up first");
	ck_assert_uint_ge(alive, 3);
	ck_assert_uint_le(alive, 4);
	between_rounds();
	ck_assert_uint_le(dp_peering->unsent, DP_OUT_TOTAL);
	for (struct dp_conn *left = dp_peering->conns; left; left = left->next)
		dp_conn_fail(left, -ECONNRESET, NULL);
	between_rounds();
	ck_assert_uint_eq(dp_peering->unsent, 0);
}
END_TEST

/* Whoever once spoke to a process can copy its greeting. */
START_TEST(copied_greeting_cuts_nobody)
{
	uint8_t buf[1024], payload[4] = { 0 };

	for (int decider = 0; decider < 2; decider++) {
		struct dp_conn *real = dp_conn_new(true), *copy;
		size_t n = put_hello(buf, 0), m;

		memset(buf + DP_FRAME_HEAD + 1, decider ? 0 : 0xff, DP_INSTANCE_LEN);
		n += put_ready(buf + n);
		dp_conn_feed(real, buf, n);
		ck_assert_int_eq(real->state, DP_CONN_OPEN);
		copy = dp_conn_new(true);
		dp_conn_feed(copy, buf, n);
		ck_assert(copy->doomed);
		ck_assert(!copy->peer);
		between_rounds();
		ck_assert(!real->doomed);
		ck_assert_uint_eq(goners, 0);
		m = put_frame(buf + n, 0x103, payload, 4, 2);
		dp_conn_feed(real, buf + n, m);
		ck_assert_uint_eq(messages, (unsigned)decider + 1);
		/* once that one is gone, it is believed */
		dp_conn_fail(real, -ECONNRESET, NULL);
		between_rounds();
		ck_assert_uint_eq(goners, 1);
		copy = dp_conn_new(true);
		dp_conn_feed(copy, buf, n);
		ck_assert_int_eq(copy->state, DP_CONN_OPEN);
		dp_conn_fail(copy, -ECONNRESET, NULL);
		between_rounds();
		goners = 0;
	}
}
END_TEST

START_TEST(parser_survives_anything)
{
	size_t cap = 65536;
	uint8_t *buf = malloc(cap);
	unsigned opened = 0, cut = 0;

	for (int i = 0; i < 100000; i++) {
		struct dp_conn *c = dp_conn_new(rnd() % 8);
		size_t n = i % 4 ? conversation(buf, i % 16 == 1 ? cap : 8192) : rnd() % 300;
		unsigned flips = (unsigned)(rnd() % 4);

		if (!c->inbound) {
			c->state = DP_CONN_HELLO;
			dp_session_begin(c);
		}
		if (!(i % 4))
			for (size_t j = 0; j < n; j++)
				buf[j] = (uint8_t)rnd();
		if (!(i % 8) && n > 4)
			memcpy(buf, "DPL1", 4);
		while (flips-- && n > 1) {
			size_t at = rnd() % (rnd() % 2 ? n : n < 200 ? n : 200);

			if (rnd() % 4) {
				buf[at] ^= (uint8_t)(1 << rnd() % 8);
			} else {
				size_t len = 1 + rnd() % (n - at);

				if (rnd() % 2) {
					memmove(buf + at, buf + at + len, n - at - len);
					n -= len;
				} else if (n + len < cap) {
					memmove(buf + at + len, buf + at, n - at);
					n += len;
				}
			}
		}
		feed_in_pieces(c, buf, n);
		opened += c->state == DP_CONN_OPEN;
		cut += c->doomed;
		if (rnd() % 4 || dp_peering->nconns > 200)
			dp_conn_fail(c, -ECONNRESET, NULL);
		while (dp_peering->nconns > 200 && !dp_peering->doomed)
			dp_conn_fail(dp_peering->conns, -ECONNRESET, NULL);
		between_rounds();
	}
	free(buf);
	/* the inputs reach the depths: many connections open, many are cut */
	ck_assert_uint_gt(opened, 10000);
	ck_assert_uint_gt(cut, 20000);
	ck_assert_uint_gt(messages, 10000);
	ck_assert_uint_gt(asked, 1000);
}
END_TEST

START_TEST(keyed_parser_rejects_without_mac)
{
	uint8_t buf[1024];
	struct dp_conn *c;
	size_t n;

	dp_peering->auth.on = true;
	for (int i = 0; i < 2000; i++) {
		c = dp_conn_new(true);
		n = put_hello(buf, 1);
		n += put_ready(buf + n);
		for (int j = 0; j < DP_MAC_LEN; j++)
			buf[n++] = (uint8_t)rnd();
		feed_in_pieces(c, buf, n);
		ck_assert(c->doomed);
		ck_assert(!c->peer);
		ck_assert_int_eq(c->error, -EACCES);
		between_rounds();
	}
	c = dp_conn_new(true);
	n = put_hello(buf, 0);
	dp_conn_feed(c, buf, n);
	ck_assert_int_eq(c->error, -EACCES);
	ck_assert_uint_eq(messages, 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("peer");
	TCase *pure = tcase_create("pure"), *state = tcase_create("state");

	tcase_add_test(pure, timers_like_reference);
	suite_add_tcase(s, pure);
	tcase_add_checked_fixture(state, setup, teardown);
	tcase_set_timeout(state, 120);
	tcase_add_test(state, addresses);
	tcase_add_test(state, peer_at_an_address);
	tcase_add_test(state, log_is_bounded);
	tcase_add_test(state, keys);
	tcase_add_test(state, parser_takes_a_right_conversation);
	tcase_add_test(state, output_is_bounded);
	tcase_add_test(state, output_to_all_is_bounded);
	tcase_add_test(state, copied_greeting_cuts_nobody);
	tcase_add_test(state, parser_survives_anything);
	tcase_add_test(state, keyed_parser_rejects_without_mac);
	suite_add_tcase(s, state);
	return run_suite(s);
}

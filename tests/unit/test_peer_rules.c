// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Which peers a rule is for, and what is wrong with rules. */
#include <arpa/inet.h>
#include <check.h>
#include <stdlib.h>

#include "peer_rules.h"
#include "run.h"

static enum dp_ordering of(const char *rules, const char *addr)
{
	uint8_t gid[16] = { [10] = 0xff, [11] = 0xff };
	char why[256];

	ck_assert_msg(!dp_peer_rules_check(rules, why, sizeof(why)), "%s: %s", rules, why);
	ck_assert(inet_pton(AF_INET, addr, gid + 12) == 1 || inet_pton(AF_INET6, addr, gid) == 1);
	return dp_peer_ordering(rules, gid, DP_ORDER_RC);
}

START_TEST(fits)
{
	static const struct {
		const char *rules, *addr;
		enum dp_ordering want;
	} t[] = {
		{ "", "10.0.0.1", DP_ORDER_RC },
		{ " ", "10.0.0.1", DP_ORDER_RC },
		{ "10.0.0.1 signal", "10.0.0.1", DP_ORDER_SIGNAL },
		{ "10.0.0.1 signal", "10.0.0.2", DP_ORDER_RC },
		{ "10.0.0.1 signal", "::10.0.0.1", DP_ORDER_RC },
		{ "10.0.0.0/8 strict", "10.255.0.1", DP_ORDER_STRICT },
		{ "10.0.0.0/8 strict", "11.0.0.1", DP_ORDER_RC },
		{ "10.0.0.128/25 strict", "10.0.0.200", DP_ORDER_STRICT },
		{ "10.0.0.128/25 strict", "10.0.0.127", DP_ORDER_RC },
		{ "10.0.0.77/25 strict", "10.0.0.1", DP_ORDER_STRICT },
		{ "0.0.0.0/0 signal", "1.2.3.4", DP_ORDER_SIGNAL },
		{ "0.0.0.0/0 signal", "fe80::1", DP_ORDER_RC },
		{ "::/0 RELAXED", "1.2.3.4", DP_ORDER_RELAXED },
		{ "::/0 RELAXED", "fe80::1", DP_ORDER_RELAXED },
		{ "fe80::/10 signal", "febf::1", DP_ORDER_SIGNAL },
		{ "fe80::/10 signal", "fec0::1", DP_ORDER_RC },
		{ "fe80::1/128 signal", "fe80::1", DP_ORDER_SIGNAL },
		{ "fe80::1/128 signal", "fe80::2", DP_ORDER_RC },
		/* the first counts */
		{ "10.0.0.7 rc, 10.0.0.0/24 strict,10.0.0.0/8\tsignal ,", "10.0.0.7", DP_ORDER_RC },
		{ "10.0.0.7 rc, 10.0.0.0/24 strict,10.0.0.0/8\tsignal ,", "10.0.0.8", DP_ORDER_STRICT },
		{ "10.0.0.7 rc, 10.0.0.0/24 strict,10.0.0.0/8\tsignal ,", "10.0.1.8", DP_ORDER_SIGNAL },
	};

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++)
		ck_assert_msg(of(t[i].rules, t[i].addr) == t[i].want, "\"%s\", %s", t[i].rules, t[i].addr);
}
END_TEST

START_TEST(broken)
{
	static const struct {
		const char *rules, *why;
	} t[] = {
		{ "signal", "\"signal\" is not an IP address, perhaps with /BITS" },
		{ "10.0.0 signal", "\"10.0.0\" is not an IP address, perhaps with /BITS" },
		{ "10.0.0.0/33 signal", "\"10.0.0.0/33\" is not an IP address, perhaps with /BITS" },
		{ "10.0.0.0/ signal", "\"10.0.0.0/\" is not an IP address, perhaps with /BITS" },
		{ "10.0.0.0/-1 signal", "\"10.0.0.0/-1\" is not an IP address, perhaps with /BITS" },
		{ "10.0.0.0/8x signal", "\"10.0.0.0/8x\" is not an IP address, perhaps with /BITS" },
		{ "fe80::/129 rc", "\"fe80::/129\" is not an IP address, perhaps with /BITS" },
		{ "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255/128/128/12 rc",
		  "\"ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255/128/128/12\" is not an IP address, perhaps with /BITS" },
		{ ",10.0.0.1 rc", "\"\" is not an IP address, perhaps with /BITS" },
		{ "10.0.0.1", "\"10.0.0.1\": behind the address stands one of rc, strict, signal, relaxed" },
		{ "10.0.0.1 fast", "\"10.0.0.1 fast\": behind the address stands one of rc, strict, signal, relaxed" },
		{ "10.0.0.1 rc rc", "\"10.0.0.1 rc rc\": behind the address stands one of rc, strict, signal, relaxed" },
		{ "10.0.0.1 rc,10.0.0.2", "\"10.0.0.2\": behind the address stands one of rc, strict, signal, relaxed" },
	};
	char why[256];

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		ck_assert_msg(dp_peer_rules_check(t[i].rules, why, sizeof(why)), "%s", t[i].rules);
		ck_assert_str_eq(why, t[i].why);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("peer_rules");
	TCase *tc = tcase_create("rules");

	tcase_add_test(tc, fits);
	tcase_add_test(tc, broken);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

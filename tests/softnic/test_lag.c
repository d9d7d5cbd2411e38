// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Bonds of ports; runs with two devices, --lag 2. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dlvsym */
#endif
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>

#include "host.h"
#include "test_end.h"
#include "test_peer.h"

static int (*pin)(struct ibv_qp *qp, uint8_t port);
static int (*query)(struct ibv_qp *qp, uint8_t *port, uint8_t *active);

static void look_up(void)
{
	pin = (int (*)(struct ibv_qp *, uint8_t))dlvsym(RTLD_DEFAULT, "mlx5dv_modify_qp_lag_port", "MLX5_1.14");
	query = (int (*)(struct ibv_qp *, uint8_t *, uint8_t *))dlvsym(RTLD_DEFAULT, "mlx5dv_query_qp_lag_port",
								       "MLX5_1.14");
	ck_assert(pin && query);
}

START_TEST(refusals)
{
	uint8_t port, active;
	struct end a, b;
	struct addr at, bt;

	end_open(&a, 0, NULL);
	end_open(&b, 1, NULL);
	ck_assert_str_eq(ibv_get_device_name(a.ctx->device), "mlx5_bond_0");
	ck_assert_str_eq(ibv_get_device_name(b.ctx->device), "mlx5_bond_1");
	at = end_addr(&a);
	bt = end_addr(&b);
	ck_assert_int_eq(query(a.qp, &port, &active), EOPNOTSUPP);
	ck_assert_int_eq(pin(a.qp, 1), EOPNOTSUPP);
	ck_assert_int_eq(to_init(a.qp, NULL), 0);
	ck_assert_int_eq(query(a.qp, &port, &active), 0);
	ck_assert_int_eq(pin(a.qp, 1), EOPNOTSUPP);
	ck_assert_int_eq(to_rtr(a.qp, &bt, NULL), 0);
	ck_assert_int_eq(pin(a.qp, 1), EOPNOTSUPP);
	ck_assert_int_eq(to_rts(a.qp, a.psn, NULL), 0);
	ck_assert_int_eq(pin(a.qp, 0), EINVAL);
	ck_assert_int_eq(pin(a.qp, 3), EINVAL);
	for (uint8_t p = 1; p <= 2; p++) {
		ck_assert_int_eq(pin(a.qp, p), 0);
		ck_assert_int_eq(query(a.qp, &port, &active), 0);
		ck_assert(port == p && active == p);
	}
	connect_to(&b, &at, NULL);
	end_close(&a);
	end_close(&b);
}
END_TEST

static uint64_t sent(int port)
{
	return atomic_load(&shared_host()->devs[0].port.tx_bytes[port - 1]);
}

START_TEST(leaves_by)
{
	uint64_t before[3];
	struct end a, b;

	pair_open(&a, &b, NULL, NULL);
	for (int p = 1; p <= 2; p++) {
		before[1] = sent(1);
		before[2] = sent(2);
		ck_assert_int_eq(pin(a.qp, (uint8_t)p), 0);
		ck_assert_int_eq(post(&a, &b, 1, (struct wr){ .op = IBV_WR_RDMA_WRITE, .len = LEN }), 0);
		want(&a, 1, IBV_WC_SUCCESS);
		/* more only if it was sent twice */
		ck_assert_uint_ge(sent(p) - before[p], LEN);
		ck_assert_uint_eq(sent(3 - p), before[3 - p]);
	}
	pair_close(&a, &b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("softnic: bonds");
	TCase *t = tcase_create("bonds");

	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, look_up, NULL);
	tcase_add_test(t, refusals);
	tcase_add_test(t, leaves_by);
	suite_add_tcase(s, t);
	return run_suite(s);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Prints what --adverse has drawn for the first messages of each device, for timing.sh to compare between runs. Between
 * them is work of other kinds, as much of it as time allows, which must not matter.
 */
#include <stdio.h>
#include <stdlib.h>

#include "test_peer.h"

START_TEST(lots)
{
	struct end e[4];

	for (int i = 0; i < 4; i += 2) {
		end_open(&e[i], i / 2, NULL);
		end_open(&e[i + 1], 1 - i / 2, NULL);
		join(&e[i], &e[i + 1], &(struct conn_opts){ .timeout = 20 });
	}
	for (uint64_t n = 0; n < SN_LOTS; n++)
		for (int i = 0; i < 4; i += 2) {
			struct ibv_wc wc;

			ck_assert_int_eq(post(&e[i], &e[i + 1], n, (struct wr){ IBV_WR_RDMA_WRITE, .len = n % 3 ? 5000 : 8 }), 0);
			want(&e[i], n, IBV_WC_SUCCESS);
			for (int k = rand() % 100; k; k--)
				ck_assert_int_eq(ibv_poll_cq(e[i].cq, 1, &wc), 0);
		}
	for (int i = 0; i < 4; i++)
		end_close(&e[i]);
	for (int dev = 0; dev < 2; dev++)
		for (int n = 0; n < SN_LOTS; n++) {
			const struct sn_lot *l = &shared_host()->devs[dev].port.lots[n];

			printf("lot: device %d, message %d: late %u ns, %u more from byte %u on\n", dev, n, l->late, l->gap,
			       l->early);
		}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("softnic: seeds");
	TCase *t = tcase_create("seed");

	tcase_set_timeout(t, 120);
	tcase_add_test(t, lots);
	suite_add_tcase(s, t);
	return run_suite(s);
}

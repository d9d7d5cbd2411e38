// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Which devices reach memory through the same PCIe upstream port. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "qp.h"
#include "run.h"

const struct dp_stub *dp_stub;
struct dp_config dp_cfg;
struct dp_hmap dp_qps = DP_HMAP_INIT;

static uint64_t of(const char *text)
{
	char path[256];

	strcpy(path, text);
	return dp_upstream_of_path(path);
}

#define BUS "/sys/devices/pci0000:3a"

static const struct {
	const char *a, *b;
	bool same;
} cases[] = {
	/* functions of one card */
	{ BUS "/0000:3a:00.0/0000:3b:00.0", BUS "/0000:3a:00.0/0000:3b:00.1", true },
	/* more than eight functions, as the bridge's only device */
	{ BUS "/0000:3a:00.0/0000:3b:00.0", BUS "/0000:3a:00.0/0000:3b:01.2", true },
	/* a sub-function writes where its function does */
	{ BUS "/0000:3a:00.0/0000:3b:00.0/mlx5_core.sf.4", BUS "/0000:3a:00.0/0000:3b:00.1", true },
	/* two cards: behind two root ports, behind two ports of one switch, on one root bus */
	{ BUS "/0000:3a:00.0/0000:3b:00.0", BUS "/0000:3a:02.0/0000:3c:00.0", false },
	{ BUS "/0000:3a:00.0/0000:3b:00.0/0000:3c:00.0/0000:3d:00.0",
	  BUS "/0000:3a:00.0/0000:3b:00.0/0000:3c:01.0/0000:3e:00.0", false },
	{ BUS "/0000:3a:00.0", BUS "/0000:3a:01.0", false },
	{ BUS "/0000:3a:00.0", BUS "/0000:3a:00.1", true },
	/* Socket Direct: one card in two slots of two sockets */
	{ BUS "/0000:3a:00.0/0000:3b:00.0", "/sys/devices/pci0000:ba/0000:ba:00.0/0000:bb:00.0", false },
	/* without PCI */
	{ "/sys/devices/virtual/net/lo", "/sys/devices/pci0000:00/0000:00:03.0/virtio1", true },
	{ "/sys/devices/virtual/net/lo", BUS "/0000:3a:00.0", false },
};

START_TEST(test_upstream)
{
	uint64_t a = of(cases[_i].a), b = of(cases[_i].b);

	ck_assert_uint_ne(a, 0);
	ck_assert_uint_ne(b, 0);
	ck_assert_int_eq(a == b, cases[_i].same);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("upstream");
	TCase *tc = tcase_create("paths");

	tcase_add_loop_test(tc, test_upstream, 0, sizeof(cases) / sizeof(cases[0]));
	suite_add_tcase(s, tc);
	return run_suite(s);
}

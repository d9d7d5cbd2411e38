// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "group.h"
#include "tree.h"
#include "run.h"

static char root[64];
static char why[1024];
static struct dp_config cfg;

static void setup(void)
{
	strcpy(root, "/tmp/test_group.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(root));
	ck_assert_int_eq(chdir(root), 0);
	memset(&cfg, 0, sizeof(cfg));
}

static void teardown(void)
{
	char cmd[128];

	free(cfg.groups);
	ck_assert_int_eq(chdir("/"), 0);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", root);
	ck_assert_int_eq(system(cmd), 0);
}

/* ---- facts ---- */

#define FACT(d, p, guid, fn, ...)                                                                                      \
	{                                                                                                              \
		.dev = d, .port = p, .sys_image_guid = guid, .pci_function = fn, .active = true, .ethernet = true,     \
		__VA_ARGS__                                                                                            \
	}
#define GROUPS(facts) dp_groups_from_facts(&cfg, facts, sizeof(facts) / sizeof(*facts), why, sizeof(why))

/* The groups as "a:1,b:1;c:1,d:1". */
static const char *groups_text(void)
{
	static char buf[1024];
	size_t at = 0;

	buf[0] = '\0';
	for (int i = 0; i < cfg.ngroups; i++)
		for (int j = 0; j < cfg.groups[i].nports; j++) {
			ck_assert_int_eq(cfg.groups[i].ports[j].gid_index, -1);
			at += (size_t)snprintf(buf + at, sizeof(buf) - at, "%s%s:%d",
					       j   ? ","
					       : i ? ";"
						   : "",
					       cfg.groups[i].ports[j].dev, cfg.groups[i].ports[j].port);
		}
	return buf;
}

START_TEST(two_functions)
{
	struct dp_port_fact f[] = { FACT("mlx5_1", 1, 0x11, 1), FACT("mlx5_0", 1, 0x11, 0) };

	ck_assert_int_eq(GROUPS(f), 1);
	ck_assert_str_eq(groups_text(), "mlx5_0:1,mlx5_1:1");
	ck_assert_int_eq(cfg.groups[0].gpu, -1);
	ck_assert_str_eq(cfg.groups[0].gpu_name, "");
	ck_assert_str_eq(why, "");
}
END_TEST

START_TEST(two_ports_of_a_device)
{
	struct dp_port_fact f[] = { FACT("mlx4_0", 2, 0x11, 0), FACT("mlx4_0", 1, 0x11, 0) };

	ck_assert_int_eq(GROUPS(f), 1);
	ck_assert_str_eq(groups_text(), "mlx4_0:1,mlx4_0:2");
}
END_TEST

START_TEST(two_cards)
{
	struct dp_port_fact f[] = { FACT("mlx5_10", 1, 0x33, 0), FACT("mlx5_2", 1, 0x22, 0), FACT("mlx5_3", 1, 0x22, 1),
				    FACT("mlx5_11", 1, 0x33, 1), FACT("mlx5_4", 1, 0x44, 0) };

	ck_assert_int_eq(GROUPS(f), 2);
	ck_assert_str_eq(groups_text(), "mlx5_2:1,mlx5_3:1;mlx5_10:1,mlx5_11:1");
}
END_TEST

START_TEST(soft_roce)
{
	struct dp_port_fact f[] = { FACT("ra0", 1, 0x5054, -1), FACT("ra1", 1, 0x5055, -1) };

	ck_assert_int_eq(GROUPS(f), 0);
	ck_assert_str_eq(why, "ra0:1 is alone on its card, ra1:1 is alone on its card");
	ck_assert_ptr_null(cfg.groups);
}
END_TEST

START_TEST(no_card_known)
{
	struct dp_port_fact f[] = { FACT("siw0", 1, 0, 0), FACT("siw1", 1, 0, 1) };

	ck_assert_int_eq(GROUPS(f), 0);
	ck_assert_str_eq(why, "siw0:1 does not tell its card, siw1:1 does not tell its card");
}
END_TEST

START_TEST(what_does_not_count)
{
	struct dp_port_fact f[] = {
		FACT("mlx5_0", 1, 0x11, 0),
		FACT("mlx5_1", 1, 0x11, 1),
		FACT("mlx5_2", 1, 0x11, 2, .kind = DP_PORT_VF),
		FACT("mlx5_3", 1, 0x11, 3, .kind = DP_PORT_SF),
		FACT("mlx5_4", 1, 0x11, 4, .kind = DP_PORT_REPRESENTOR),
		FACT("mlx5_5", 1, 0x11, 5, .kind = DP_PORT_MANAGEMENT),
	};

	f[1].active = false;
	ck_assert_int_eq(GROUPS(f), 0);
	ck_assert_str_eq(why,
			 "mlx5_0:1 is alone on its card, mlx5_1:1 is not active, mlx5_2:1 is a virtual function, "
			 "mlx5_3:1 is a sub-function, mlx5_4:1 is a representor, mlx5_5:1 is a management function");
}
END_TEST

/* One port in two slots; then a card with two ports in two slots each. */
START_TEST(socket_direct)
{
	struct dp_port_fact one[] = { FACT("mlx5_0", 1, 0x11, 0), FACT("mlx5_1", 1, 0x11, 0) };
	struct dp_port_fact two[] = { FACT("mlx5_0", 1, 0x11, 0), FACT("mlx5_1", 1, 0x11, 1),
				      FACT("mlx5_2", 1, 0x11, 0), FACT("mlx5_3", 1, 0x11, 1) };
	/* Names win over function numbers. */
	struct dp_port_fact named[] = { FACT("mlx5_0", 1, 0x11, 0, .phys_port = "p0", .phys_switch = "aa"),
					FACT("mlx5_1", 1, 0x11, 1, .phys_port = "p0", .phys_switch = "aa"),
					FACT("mlx5_2", 1, 0x11, 0, .phys_port = "p1", .phys_switch = "aa") };

	ck_assert_int_eq(GROUPS(one), 0);
	ck_assert_str_eq(why, "mlx5_0:1 may be the same physical port as mlx5_1, "
			      "mlx5_1:1 may be the same physical port as mlx5_0");
	ck_assert_int_eq(GROUPS(two), 1);
	ck_assert_str_eq(groups_text(), "mlx5_0:1,mlx5_1:1");
	ck_assert_int_eq(GROUPS(named), 1);
	ck_assert_str_eq(groups_text(), "mlx5_0:1,mlx5_1:1;mlx5_0:1,mlx5_2:1");
}
END_TEST

/* Soft-RoCE over two VLANs of one NIC: one GUID, nothing that tells the ports apart. */
START_TEST(not_proven_different)
{
	struct dp_port_fact f[] = { FACT("rxe0", 1, 0x11, -1), FACT("rxe1", 1, 0x11, -1) };

	ck_assert_int_eq(GROUPS(f), 0);
	ck_assert_str_eq(why,
			 "rxe0:1 may be the same physical port as rxe1, rxe1:1 may be the same physical port as rxe0");
}
END_TEST

START_TEST(link_layers_apart)
{
	struct dp_port_fact f[] = { FACT("mlx5_0", 1, 0x11, 0), FACT("mlx5_1", 1, 0x11, 1) };

	f[1].ethernet = false;
	ck_assert_int_eq(GROUPS(f), 0);
}
END_TEST

START_TEST(bond)
{
	struct dp_port_fact facts[] = {
		FACT("m_bond_0", 1, 7, 0, .lag_ports = 2),
		FACT("m_2", 1, 8, 0),
		FACT("m_3", 1, 8, 1),
	};

	ck_assert_int_eq(GROUPS(facts), 1);
	ck_assert_str_eq(groups_text(), "m_2:1,m_3:1");
	free(cfg.groups);
	memset(&cfg, 0, sizeof(cfg));
	cfg.lag = true;
	ck_assert_int_eq(GROUPS(facts), 2);
	ck_assert_str_eq(groups_text(), "m_2:1,m_3:1;m_bond_0:1,m_bond_0:1");
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(cfg.groups[0].ports[i].lag, 0);
		ck_assert_int_eq(cfg.groups[1].ports[i].lag, i + 1);
	}
}
END_TEST

START_TEST(bond_alone)
{
	struct dp_port_fact facts[] = { FACT("m_bond_0", 1, 7, 0, .lag_ports = 2) };

	ck_assert_int_eq(GROUPS(facts), 0);
	ck_assert_str_eq(why, "m_bond_0:1 is a bond, whose ports are used with lag = true, or when a file names them");
	/* one whose link is down has no ports to use */
	cfg.lag = true;
	facts[0].active = false;
	ck_assert_int_eq(GROUPS(facts), 0);
	ck_assert_str_eq(why, "m_bond_0:1 is not active");
}
END_TEST

START_TEST(weights_must_fit)
{
	struct dp_port_fact f[] = { FACT("mlx5_0", 1, 0x11, 0), FACT("mlx5_1", 1, 0x11, 1) };

	cfg.weights = DP_WEIGHTS_FIXED;
	cfg.nweights = 3;
	ck_assert_int_eq(GROUPS(f), 0);
	ck_assert_str_eq(why, "there are 3 weights, but the card has 2 ports");
	cfg.nweights = 2;
	ck_assert_int_eq(GROUPS(f), 1);
}
END_TEST

START_TEST(many_ports)
{
	struct dp_port_fact f[40] = { 0 };

	for (int i = 0; i < 40; i++) {
		f[i] = (struct dp_port_fact)FACT("sw0", 40 - i, 0x11, 0);
	}
	ck_assert_int_eq(GROUPS(f), 1);
	ck_assert_int_eq(cfg.groups[0].nports, DP_MAX_RAILS);
	ck_assert_int_eq(cfg.groups[0].ports[31].port, 32);
}
END_TEST

/* ---- sysfs ---- */

/* A device below parent (a path below devices/), with one port, and its netdev if there is one. */
static void make_device(const char *dev, const char *parent, const char *guid, const char *state, const char *netdev,
			const char *phys_port)
{
	char link[256], net[256];

	snprintf(link, sizeof(link), "->../../devices/%s/infiniband/%s", parent, dev);
	snprintf(net, sizeof(net), "->../../devices/%s/net/%s", parent, netdev);
	tree_put(guid, "devices/%s/infiniband/%s/sys_image_guid", parent, dev);
	tree_put("->../../", "devices/%s/infiniband/%s/device", parent, dev);
	tree_put(state, "devices/%s/infiniband/%s/ports/1/state", parent, dev);
	tree_put(netdev ? "Ethernet" : "InfiniBand", "devices/%s/infiniband/%s/ports/1/link_layer", parent, dev);
	tree_put(link, "class/infiniband/%s", dev);
	if (!netdev)
		return;
	tree_put("0", "devices/%s/net/%s/dev_port", parent, netdev);
	if (phys_port) {
		tree_put(phys_port, "devices/%s/net/%s/phys_port_name", parent, netdev);
		tree_put("1cb26500a1420c", "devices/%s/net/%s/phys_switch_id", parent, netdev);
	}
	tree_put(net, "class/net/%s", netdev);
}

static const char card[] = "0c42:a103:0065:b21c";

static void make_card(void)
{
	make_device("mlx5_0", "pci0000:3a/0000:3b:00.0", card, "4: ACTIVE", "eth0", "p0");
	tree_put("0x020000", "devices/pci0000:3a/0000:3b:00.0/class");
	tree_put("eth0", "class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0");
	make_device("mlx5_1", "pci0000:3a/0000:3b:00.1", card, "4: ACTIVE", "eth1", "p1");
	tree_put("0x020000", "devices/pci0000:3a/0000:3b:00.1/class");
}

START_TEST(sysfs_card)
{
	struct dp_port_fact *facts;
	size_t n;

	make_card();
	ck_assert_int_eq(dp_port_facts_read(root, &facts, &n), 0);
	ck_assert_uint_eq(n, 2);
	for (size_t i = 0; i < n; i++) {
		int fn = facts[i].dev[5] - '0';

		ck_assert_uint_eq(facts[i].sys_image_guid, 0x0c42a1030065b21cULL);
		ck_assert_int_eq(facts[i].port, 1);
		ck_assert(facts[i].active && facts[i].ethernet);
		ck_assert_int_eq(facts[i].kind, DP_PORT_PHYSICAL);
		ck_assert_int_eq(facts[i].pci_function, fn);
		ck_assert_str_eq(facts[i].phys_port, fn ? "p1" : "p0");
		ck_assert_str_eq(facts[i].phys_switch, "1cb26500a1420c");
	}
	free(facts);
	ck_assert_int_eq(dp_groups_from_card(&cfg, root, why, sizeof(why)), 0);
	ck_assert_str_eq(groups_text(), "mlx5_0:1,mlx5_1:1");
}
END_TEST

START_TEST(sysfs_infiniband)
{
	make_device("ibp1s0f0", "pci0000:00/0000:01:00.0", card, "4: ACTIVE", NULL, NULL);
	tree_put("0x020700", "devices/pci0000:00/0000:01:00.0/class");
	make_device("ibp1s0f1", "pci0000:00/0000:01:00.1", card, "4: ACTIVE", NULL, NULL);
	ck_assert_int_eq(dp_groups_from_card(&cfg, root, why, sizeof(why)), 0);
	ck_assert_str_eq(groups_text(), "ibp1s0f0:1,ibp1s0f1:1");
}
END_TEST

START_TEST(sysfs_socket_direct)
{
	make_device("mlx5_0", "pci0000:00/0000:05:00.0", card, "4: ACTIVE", NULL, NULL);
	make_device("mlx5_1", "pci0000:80/0000:84:00.0", card, "4: ACTIVE", NULL, NULL);
	ck_assert_int_eq(dp_groups_from_card(&cfg, root, why, sizeof(why)), -ENOENT);
	ck_assert_ptr_nonnull(strstr(why, "mlx5_0:1 may be the same physical port as mlx5_1"));
}
END_TEST

START_TEST(sysfs_not_physical)
{
	make_device("mlx5_0", "pci0000:3a/0000:3b:00.0", card, "4: ACTIVE", "eth0", "p0");
	make_device("mlx5_1", "pci0000:3a/0000:3b:00.1", card, "1: DOWN", "eth1", "p1");
	make_device("mlx5_2", "pci0000:3a/0000:3b:00.2", card, "4: ACTIVE", "eth2", NULL);
	tree_put("->../0000:3b:00.0", "devices/pci0000:3a/0000:3b:00.2/physfn");
	make_device("mlx5_3", "pci0000:3a/0000:3b:00.0/mlx5_core.sf.4", card, "4: ACTIVE", "eth3", NULL);
	tree_put("88", "devices/pci0000:3a/0000:3b:00.0/mlx5_core.sf.4/sfnum");
	make_device("mlx5_4", "pci0000:3a/0000:3b:00.3", card, "4: ACTIVE", "eth4", "pf0vf1");
	make_device("mlx5_5", "pci0000:3a/0000:3b:00.4", card, "4: ACTIVE", "eth5", NULL);
	tree_put("0x0801ff", "devices/pci0000:3a/0000:3b:00.4/class");
	make_device("mlx5_6", "pci0000:3a/0000:3b:00.5", card, "5: ACTIVE_DEFER", "eth6", NULL);
	ck_assert_int_eq(dp_groups_from_card(&cfg, root, why, sizeof(why)), -ENOENT);
	ck_assert_str_eq(why,
			 "mlx5_0:1 is alone on its card, mlx5_1:1 is not active, mlx5_2:1 is a virtual function, "
			 "mlx5_3:1 is a sub-function, mlx5_4:1 is a representor, mlx5_5:1 is a management function, "
			 "mlx5_6:1 is not active");
}
END_TEST

START_TEST(sysfs_soft_roce)
{
	make_device("ra0", "virtual", "5054:00ff:fe12:3456", "4: ACTIVE", "veth0", NULL);
	make_device("ra1", "virtual", "5054:00ff:fe12:3457", "4: ACTIVE", "veth1", NULL);
	ck_assert_int_eq(dp_groups_from_card(&cfg, root, why, sizeof(why)), -ENOENT);
	ck_assert_str_eq(why, "ra0:1 is alone on its card, ra1:1 is alone on its card");
}
END_TEST

START_TEST(sysfs_odd)
{
	ck_assert_int_eq(dp_groups_from_card(&cfg, root, why, sizeof(why)), -ENOENT);
	ck_assert_ptr_nonnull(strstr(why, "/class/infiniband: no RDMA device"));
	tree_put("0000:0000:0000:0000", "class/infiniband/a/sys_image_guid");
	tree_put("4: ACTIVE", "class/infiniband/a/ports/1/state");
	tree_put("nonsense", "class/infiniband/b/sys_image_guid");
	tree_put("4: ACTIVE", "class/infiniband/b/ports/1/state");
	tree_put("4: ACTIVE", "class/infiniband/c/ports/1/state");
	tree_put("7", "class/infiniband/d/no_ports");
	tree_put("a file", "class/infiniband/e");
	tree_put("a file", "class/infiniband/f/ports");
	tree_put("4: ACTIVE", "class/infiniband/%0100d/ports/1/state", 0);
	tree_put("4: ACTIVE", "class/infiniband/a/ports/0/state");
	tree_put("4: ACTIVE", "class/infiniband/a/ports/1x/state");
	tree_put("4: ACTIVE", "class/infiniband/a/ports/99999999999999999999/state");
	ck_assert_int_eq(dp_groups_from_card(&cfg, root, why, sizeof(why)), -ENOENT);
	ck_assert_str_eq(why, "a:1 does not tell its card, b:1 does not tell its card, c:1 does not tell its card");
	ck_assert_int_eq(dp_groups_from_card(&cfg, root, why, 8), -ENOENT);
	ck_assert_str_eq(why, "a:1 doe");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("group");
	TCase *tc = tcase_create("all");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, two_functions);
	tcase_add_test(tc, two_ports_of_a_device);
	tcase_add_test(tc, two_cards);
	tcase_add_test(tc, soft_roce);
	tcase_add_test(tc, no_card_known);
	tcase_add_test(tc, what_does_not_count);
	tcase_add_test(tc, socket_direct);
	tcase_add_test(tc, not_proven_different);
	tcase_add_test(tc, link_layers_apart);
	tcase_add_test(tc, bond);
	tcase_add_test(tc, bond_alone);
	tcase_add_test(tc, weights_must_fit);
	tcase_add_test(tc, many_ports);
	tcase_add_test(tc, sysfs_card);
	tcase_add_test(tc, sysfs_infiniband);
	tcase_add_test(tc, sysfs_socket_direct);
	tcase_add_test(tc, sysfs_not_physical);
	tcase_add_test(tc, sysfs_soft_roce);
	tcase_add_test(tc, sysfs_odd);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

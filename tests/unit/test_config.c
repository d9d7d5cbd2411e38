// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "config.h"
#include "config_broken.h"
#include "gpu.h"
#include "log.h"
#include "settings.h"
#include "run.h"

extern char **environ;

static char home[] = "/tmp/test_config.XXXXXX";
static char srcdir[4096];
static char err[1024];
static struct dp_config cfg;

#define MS UINT64_C(1000000)
#define S (1000 * MS)

/* Each test runs in a process of its own, in an empty directory, with nothing of ours in the environment. */
static void setup(void)
{
	static const char *const ranks[] = { "LOCAL_RANK",	   "OMPI_COMM_WORLD_LOCAL_RANK",
					     "SLURM_LOCALID",	   "PMI_LOCAL_RANK",
					     "MPI_LOCALRANKID",	   "MV2_COMM_WORLD_LOCAL_RANK",
					     "PMIX_LOCAL_RANK",	   "PALS_LOCAL_RANKID",
					     "FLUX_TASK_LOCAL_ID", "JSM_NAMESPACE_LOCAL_RANK" };
	const char *src = getenv("srcdir");
	char name[128];

	ck_assert_ptr_nonnull(realpath(src ? src : ".", srcdir));
again:
	for (char **e = environ; *e; e++)
		if (!strncmp(*e, "DUALPORT_", 9)) {
			snprintf(name, sizeof(name), "%.*s", (int)strcspn(*e, "="), *e);
			unsetenv(name);
			goto again;
		}
	for (size_t i = 0; i < sizeof(ranks) / sizeof(*ranks); i++)
		unsetenv(ranks[i]);
	unsetenv("CUDA_VISIBLE_DEVICES");
	strcpy(home, "/tmp/test_config.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(home));
	ck_assert_int_eq(chdir(home), 0);
	setenv("HOME", home, 1);
	unsetenv("XDG_CONFIG_HOME");
}

static void teardown(void)
{
	char cmd[64];

	dp_config_free(&cfg);
	ck_assert_int_eq(chdir("/"), 0);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", home);
	ck_assert_int_eq(system(cmd), 0);
}

static void put(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(text, f), 0);
	ck_assert_int_eq(fclose(f), 0);
}

static void load_ok(void)
{
	int ret = dp_config_load(&cfg, NULL, err, sizeof(err));

	ck_assert_msg(!ret, "%d: %s", ret, err);
	ck_assert_str_eq(err, "");
}

START_TEST(defaults)
{
	load_ok();
	ck_assert(cfg.enable);
	ck_assert_ptr_null(cfg.source);
	ck_assert_int_eq(cfg.ngroups, 0);
	ck_assert_int_eq(cfg.gpu, -1);
	ck_assert_uint_eq(cfg.split_min, 8192);
	ck_assert_uint_eq(cfg.spread_min, 8192);
	ck_assert_uint_eq(cfg.align, 4096);
	ck_assert_int_eq(cfg.weights, DP_WEIGHTS_EQUAL);
	ck_assert_int_eq(cfg.ordering, DP_ORDER_STRICT);
	ck_assert_uint_eq(cfg.bond_wait_ns, 0);
	ck_assert_uint_eq(cfg.peer_timeout_ns, 30 * S);
	ck_assert_uint_eq(cfg.lease_ns, 10 * S);
	ck_assert_uint_eq(cfg.stuck_ns, S);
	ck_assert_int_eq(cfg.peer_port, 13579);
	ck_assert_int_eq(cfg.peer_ports, 16);
	ck_assert_str_eq(cfg.peer_bind, "");
	ck_assert_str_eq(cfg.peer_secret, "");
	ck_assert_str_eq(cfg.diag_json, "");
	ck_assert(!cfg.diag && !cfg.single_threaded);
	ck_assert_int_eq(cfg.debug, DP_LOG_WARN);
}
END_TEST

static const char whole[] =
	"enable = false;\n"
	"gpus = ( { gpu = 0; ports = [ \"mlx5_0:1\", \"mlx5_1\" ]; },\n"
	"         { ports = ( \"mlx5_4:2:3\", \"mlx5_5:1\" ); gpu = \"0000:9B:00.0\"; },\n"
	"         { ports = [ \"a:1\", \"b:1\" ]; } );\n"
	"stripe = { split_min = \"64k\"; spread_min = 4096; align = \"512\"; weights = [ 2, 1 ]; };\n"
	"ordering = \"signal\"; bond_wait = \"2s\"; stuck = 0; single_threaded = true;\n"
	"peer = { port = 2000; ports = 4; bind = \"10.0.0.1,fe80::1%eth0\"; secret = \"/s\";\n"
	"         timeout = \"500ms\"; lease = 3; ordering = \"10.0.0.0/8 rc\"; };\n"
	"diag = 1; diag_json = \"/tmp/x.%p\"; debug = \"trace\";\n";

START_TEST(whole_file)
{
	put("dualport.conf", whole);
	load_ok();
	ck_assert_str_eq(cfg.source, "./dualport.conf");
	ck_assert(!cfg.enable && cfg.diag && cfg.single_threaded);
	ck_assert_int_eq(cfg.ngroups, 3);
	ck_assert_int_eq(cfg.groups[0].gpu, 0);
	ck_assert_int_eq(cfg.groups[0].nports, 2);
	ck_assert_str_eq(cfg.groups[0].ports[1].dev, "mlx5_1");
	ck_assert_int_eq(cfg.groups[0].ports[1].port, 1);
	ck_assert_int_eq(cfg.groups[0].ports[1].gid_index, -1);
	ck_assert_int_eq(cfg.groups[1].gpu, -1);
	ck_assert_str_eq(cfg.groups[1].gpu_name, "0000:9B:00.0");
	ck_assert_int_eq(cfg.groups[1].ports[0].port, 2);
	ck_assert_int_eq(cfg.groups[1].ports[0].gid_index, 3);
	ck_assert_int_eq(cfg.groups[2].gpu, -1);
	ck_assert_str_eq(cfg.groups[2].gpu_name, "");
	ck_assert_uint_eq(cfg.split_min, 65536);
	ck_assert_uint_eq(cfg.spread_min, 4096);
	ck_assert_uint_eq(cfg.align, 512);
	ck_assert_int_eq(cfg.weights, DP_WEIGHTS_FIXED);
	ck_assert_int_eq(cfg.nweights, 2);
	ck_assert_uint_eq(cfg.weight[0], 2);
	ck_assert_uint_eq(cfg.weight[1], 1);
	ck_assert_int_eq(cfg.ordering, DP_ORDER_SIGNAL);
	ck_assert_uint_eq(cfg.bond_wait_ns, 2 * S);
	ck_assert_uint_eq(cfg.stuck_ns, 0);
	ck_assert_int_eq(cfg.peer_port, 2000);
	ck_assert_int_eq(cfg.peer_ports, 4);
	ck_assert_str_eq(cfg.peer_bind, "10.0.0.1,fe80::1%eth0");
	ck_assert_str_eq(cfg.peer_secret, "/s");
	ck_assert_str_eq(cfg.peer_ordering, "10.0.0.0/8 rc");
	ck_assert_uint_eq(cfg.peer_timeout_ns, 500 * MS);
	ck_assert_uint_eq(cfg.lease_ns, 3 * S);
	ck_assert_str_eq(cfg.diag_json, "/tmp/x.%p");
	ck_assert_int_eq(cfg.debug, DP_LOG_TRACE);
}
END_TEST

START_TEST(environment_wins)
{
	put("dualport.conf", whole);
	setenv("DUALPORT_ENABLE", "yes", 1);
	setenv("DUALPORT_PORTS", "ra0:1, ra1:1 ; rb0:1,rb1:2:7;", 1);
	setenv("DUALPORT_SPLIT_MIN", "1M", 1);
	setenv("DUALPORT_SPREAD_MIN", "", 1); /* the default: split_min */
	setenv("DUALPORT_ALIGN", "16KiB", 1);
	setenv("DUALPORT_WEIGHTS", "3,5", 1);
	setenv("DUALPORT_ORDERING", "Relaxed", 1);
	setenv("DUALPORT_BOND_WAIT", "10us", 1);
	setenv("DUALPORT_STUCK", "2min", 1);
	setenv("DUALPORT_SINGLE_THREADED", "off", 1);
	setenv("DUALPORT_PEER_PORT", "3000", 1);
	setenv("DUALPORT_PEER_PORTS", "1", 1);
	setenv("DUALPORT_PEER_BIND", "", 1);
	setenv("DUALPORT_PEER_SECRET", "/other", 1);
	setenv("DUALPORT_PEER_ORDERING", "fe80::/10 signal", 1);
	setenv("DUALPORT_PEER_TIMEOUT", "7", 1);
	setenv("DUALPORT_PEER_LEASE", "250ms", 1);
	setenv("DUALPORT_DIAG", "0", 1);
	setenv("DUALPORT_DIAG_JSON", "j%%", 1);
	setenv("DUALPORT_DEBUG", "INFO", 1);
	setenv("DUALPORT_TEST_ANYTHING", "1", 1);
	setenv("DUALPORT_LAB", "1", 1);
	load_ok();
	ck_assert(cfg.enable && !cfg.diag && !cfg.single_threaded);
	ck_assert_int_eq(cfg.ngroups, 2);
	ck_assert_str_eq(cfg.groups[0].ports[1].dev, "ra1");
	ck_assert_str_eq(cfg.groups[1].ports[0].dev, "rb0");
	ck_assert_int_eq(cfg.groups[1].ports[1].port, 2);
	ck_assert_int_eq(cfg.groups[1].ports[1].gid_index, 7);
	ck_assert_uint_eq(cfg.split_min, 1 << 20);
	ck_assert_uint_eq(cfg.spread_min, 1 << 20);
	ck_assert_uint_eq(cfg.align, 16384);
	ck_assert_int_eq(cfg.nweights, 2);
	ck_assert_uint_eq(cfg.weight[1], 5);
	ck_assert_int_eq(cfg.ordering, DP_ORDER_RELAXED);
	ck_assert_uint_eq(cfg.bond_wait_ns, 10000);
	ck_assert_uint_eq(cfg.stuck_ns, 120 * S);
	ck_assert_int_eq(cfg.peer_port, 3000);
	ck_assert_int_eq(cfg.peer_ports, 1);
	ck_assert_str_eq(cfg.peer_bind, "");
	ck_assert_str_eq(cfg.peer_secret, "/other");
	ck_assert_str_eq(cfg.peer_ordering, "fe80::/10 signal");
	ck_assert_uint_eq(cfg.peer_timeout_ns, 7 * S);
	ck_assert_uint_eq(cfg.lease_ns, 250 * MS);
	ck_assert_str_eq(cfg.diag_json, "j%%");
	ck_assert_int_eq(cfg.debug, DP_LOG_INFO);
}
END_TEST

START_TEST(ports_of_a_bond)
{
	const struct dp_port_name *p;
	char text[256];

	setenv("DUALPORT_PORTS", "m_bond_0:1::1,m_bond_0:1::2;m_bond_0:1:3:2,m_bond_0:1:5:1,x:2", 1);
	ck_assert_msg(!dp_config_load(&cfg, NULL, err, sizeof(err)), "%s", err);
	ck_assert_int_eq(cfg.ngroups, 2);
	p = cfg.groups[0].ports;
	ck_assert(p[0].lag == 1 && p[0].gid_index == -1 && p[1].lag == 2 && p[1].port == 1);
	p = cfg.groups[1].ports;
	ck_assert(p[0].lag == 2 && p[0].gid_index == 3 && p[1].lag == 1 && p[1].gid_index == 5 && !p[2].lag);
	/* as it is written, it is read */
	dp_setting_format(&dp_settings[DP_SET_GPUS], &cfg, text, sizeof(text));
	ck_assert_str_eq(text, getenv("DUALPORT_PORTS"));
}
END_TEST

START_TEST(order_of_files)
{
	char path[128];

	ck_assert_int_eq(mkdir(".config", 0755), 0);
	ck_assert_int_eq(mkdir("xdg", 0755), 0);
	put(".config/dualport.conf", "stripe = { split_min = \"16k\"; };");
	load_ok();
	ck_assert_uint_eq(cfg.split_min, 16384);
	dp_config_free(&cfg);

	snprintf(path, sizeof(path), "%s/xdg", home);
	setenv("XDG_CONFIG_HOME", path, 1);
	load_ok();
	ck_assert_uint_eq(cfg.split_min, 8192);
	dp_config_free(&cfg);
	put("xdg/dualport.conf", "stripe = { split_min = \"32k\"; };");
	load_ok();
	ck_assert_uint_eq(cfg.split_min, 32768);
	dp_config_free(&cfg);

	put("dualport.conf", "stripe = { split_min = \"64k\"; };");
	load_ok();
	ck_assert_uint_eq(cfg.split_min, 65536);
	dp_config_free(&cfg);

	put("named", "stripe = { split_min = \"128k\"; };");
	setenv("DUALPORT_CONF", "named", 1);
	load_ok();
	ck_assert_uint_eq(cfg.split_min, 131072);
	dp_config_free(&cfg);

	setenv("DUALPORT_CONF", "/dev/null", 1);
	load_ok();
	ck_assert_uint_eq(cfg.split_min, 8192);
	dp_config_free(&cfg);

	ck_assert_int_eq(dp_config_load(&cfg, "dualport.conf", err, sizeof(err)), 0);
	ck_assert_uint_eq(cfg.split_min, 65536);
}
END_TEST

START_TEST(include)
{
	ck_assert_int_eq(mkdir("d", 0755), 0);
	put("d/main", "debug = \"INFO\";\n@include \"part\"\n");
	put("d/part", "\nstripe = {\n\talign = 3000; };\n");
	ck_assert_int_eq(dp_config_load(&cfg, "d/main", err, sizeof(err)), -EINVAL);
	/* versions of libconfig differ in whether they prefix the directory */
	ck_assert_str_eq(strstr(err, "part"), "part:3: stripe.align: \"3000\" is not a power of two");
}
END_TEST

#define N_FILES ((int)(sizeof(broken_files) / sizeof(*broken_files)))

static void check_failed(int ret)
{
	ck_assert_int_eq(ret, -EINVAL);
	ck_assert_ptr_null(cfg.groups);
	ck_assert_ptr_null(cfg.source);
	ck_assert(!cfg.enable);
	ck_assert_int_eq(cfg.ngroups, 0);
}

START_TEST(broken_file)
{
	put("dualport.conf", broken_files[_i].text);
	check_failed(dp_config_load(&cfg, NULL, err, sizeof(err)));
	ck_assert_str_eq(err, broken_files[_i].err);
}
END_TEST

#define N_ENVS ((int)(sizeof(broken_envs) / sizeof(*broken_envs)))

/* A site's own variables may look like ours: a line, not an error. */
START_TEST(foreign_env)
{
	setenv("DUALPORT_HOME", "/opt/dualport", 1);
	setenv("DUALPORT_ORDERING", "signal", 1);
	ck_assert_int_eq(dp_config_load(&cfg, NULL, err, sizeof(err)), 0);
	ck_assert_int_eq(cfg.ordering, DP_ORDER_SIGNAL);
}
END_TEST

START_TEST(broken_env)
{
	put("dualport.conf", "gpus = ( { ports = [ \"f0:1\", \"f1:1\" ]; } );");
	setenv(broken_envs[_i].name, broken_envs[_i].value, 1);
	check_failed(dp_config_load(&cfg, NULL, err, sizeof(err)));
	ck_assert_str_eq(err, broken_envs[_i].err);
}
END_TEST

START_TEST(unreadable)
{
	setenv("DUALPORT_CONF", "nowhere.conf", 1);
	ck_assert_int_eq(dp_config_load(&cfg, NULL, err, sizeof(err)), -ENOENT);
	ck_assert_str_eq(err, "nowhere.conf: No such file or directory");
	setenv("DUALPORT_CONF", ".", 1);
	ck_assert_int_eq(dp_config_load(&cfg, NULL, err, sizeof(err)), -EISDIR);
	ck_assert_str_eq(err, ".: Is a directory");
	ck_assert_int_eq(mkfifo("fifo", 0644), 0);
	setenv("DUALPORT_CONF", "fifo", 1);
	ck_assert_int_eq(dp_config_load(&cfg, NULL, err, sizeof(err)), -EINVAL);
	ck_assert_str_eq(err, "fifo: not a regular file");
}
END_TEST

/* A long message is cut, never written beyond its buffer. */
START_TEST(short_buffer)
{
	char small[8] = "xxxxxxx";

	put("dualport.conf", "colour = 3;");
	ck_assert_int_eq(dp_config_load(&cfg, NULL, small, 5), -EINVAL);
	ck_assert_str_eq(small, "./du");
	ck_assert_str_eq(small + 5, "xx");
}
END_TEST

static const char two_gpus[] = "gpus = ( { gpu = 0; ports = [ \"a:1\", \"b:1\" ]; },"
			       "         { gpu = 1; ports = [ \"b:1\", \"c:1\" ]; } );";

static const struct dp_port_group *pick(const char *text, const char *dev, const char **why)
{
	struct dp_gpu gpu;

	put("dualport.conf", text);
	dp_config_free(&cfg);
	load_ok();
	*why = NULL;
	gpu = dp_gpu_of_config(&cfg);
	return dp_config_group(&cfg, &gpu, dev, 1, why);
}

#define PICK(text, dev, n)                                                                                             \
	do {                                                                                                           \
		const char *why_;                                                                                      \
		const struct dp_port_group *g_ = pick(text, dev, &why_);                                               \
		ck_assert_msg(g_ == &cfg.groups[n], "%s", why_);                                                       \
	} while (0)
#define PICK_NONE(text, dev, reason)                                                                                   \
	do {                                                                                                           \
		const char *why_;                                                                                      \
		ck_assert_ptr_null(pick(text, dev, &why_));                                                            \
		ck_assert_str_eq(why_, reason);                                                                        \
	} while (0)

static const char not_its[] = "the port is in the group of another gpu than this process's";
static const char no_gpu[] = "the gpu of this process is in no port group";

START_TEST(group_by_index)
{
	PICK(two_gpus, "b", 0);
	PICK(two_gpus, "c", 1);
	PICK_NONE(two_gpus, "d", "the port is in no port group");
	PICK_NONE("", "a", "there is no port group");
	setenv("LOCAL_RANK", "1", 1);
	PICK(two_gpus, "b", 1);
	PICK_NONE(two_gpus, "a", not_its);
	setenv("DUALPORT_GPU", "0", 1);
	PICK(two_gpus, "b", 0);
	PICK_NONE(two_gpus, "c", not_its);
	setenv("DUALPORT_GPU", "none", 1);
	PICK(two_gpus, "c", 1);
}
END_TEST

/* A rank is a guess, DUALPORT_GPU is none. */
START_TEST(group_of_unknown_gpu)
{
	setenv("LOCAL_RANK", "7", 1);
	PICK(two_gpus, "c", 1);
	setenv("DUALPORT_GPU", "7", 1);
	PICK_NONE(two_gpus, "c", no_gpu);
}
END_TEST

START_TEST(group_of_port_number)
{
	const struct dp_gpu none = { .index = -1 };
	const char *why;

	put("dualport.conf", "gpus = ( { ports = [ \"a:1\", \"a:2\" ]; } );");
	load_ok();
	ck_assert_ptr_eq(dp_config_group(&cfg, &none, "a", 2, &why), cfg.groups);
	ck_assert_ptr_null(dp_config_group(&cfg, &none, "a", 3, &why));
	ck_assert(dp_config_has_port(&cfg, "a", 2));
	ck_assert(!dp_config_has_port(&cfg, "a", 3));
	ck_assert(!dp_config_has_port(&cfg, "b", 1));
}
END_TEST

START_TEST(group_by_name)
{
	static const char names[] = "gpus = ( { gpu = \"0000:9b:00.0\"; ports = [ \"a:1\", \"b:1\" ]; },"
				    "         { gpu = \"GPU-00ff\"; ports = [ \"b:1\", \"c:1\" ]; },"
				    "         { gpu = 0; ports = [ \"b:1\", \"d:1\" ]; } );";

	setenv("DUALPORT_GPU", "00000000:9B:00.0", 1);
	PICK(names, "b", 0);
	PICK_NONE(names, "c", not_its);
	setenv("DUALPORT_GPU", "gpu-00FF", 1);
	PICK(names, "b", 1);
	setenv("DUALPORT_GPU", "0000:aa:00.0", 1);
	PICK(names, "d", 2); /* may be GPU 0 */
	PICK_NONE(names, "a", no_gpu);
	unsetenv("DUALPORT_GPU");
	setenv("SLURM_LOCALID", "0", 1);
	PICK(names, "b", 2);
	PICK_NONE(names, "a", not_its);
	setenv("SLURM_LOCALID", "3", 1);
	PICK(names, "c", 1); /* GPU 3 may be either */
}
END_TEST

/* A GPU of which everything is known, as the driver and the host tell it. */
START_TEST(group_of_known_gpu)
{
	static const char names[] = "gpus = ( { gpu = \"9b:00.0\"; ports = [ \"a:1\", \"b:1\" ]; },"
				    "         { gpu = \"GPU-00ff\"; ports = [ \"b:1\", \"c:1\" ]; },"
				    "         { gpu = \"MIG-77\"; ports = [ \"b:1\", \"e:1\" ]; },"
				    "         { gpu = 3; ports = [ \"b:1\", \"d:1\" ]; } );";
	struct dp_gpu gpu = { .index = 2, .pci = "0000:9b:00.0", .uuid = "GPU-11", .from = "test" };
	const char *why;

	put("dualport.conf", names);
	load_ok();
	ck_assert_ptr_eq(dp_config_group(&cfg, &gpu, "b", 1, &why), &cfg.groups[0]);
	strcpy(gpu.pci, "0000:aa:00.0");
	ck_assert_ptr_null(dp_config_group(&cfg, &gpu, "b", 1, &why));
	ck_assert_str_eq(why, no_gpu);
	strcpy(gpu.uuid, "gpu-00ff1122");
	ck_assert_ptr_eq(dp_config_group(&cfg, &gpu, "b", 1, &why), &cfg.groups[1]);
	strcpy(gpu.uuid, "GPU-11");
	strcpy(gpu.mig, "MIG-7788");
	ck_assert_ptr_eq(dp_config_group(&cfg, &gpu, "b", 1, &why), &cfg.groups[2]);
	gpu.mig[0] = '\0';
	gpu.index = 3;
	ck_assert_ptr_eq(dp_config_group(&cfg, &gpu, "b", 1, &why), &cfg.groups[3]);
	ck_assert_ptr_null(dp_config_group(&cfg, &gpu, "a", 1, &why));
	ck_assert_str_eq(why, not_its);
}
END_TEST

/* PXB: GPUs that share the ports of two cards. */
START_TEST(gpus_that_share)
{
	static const char shared[] = "gpus = ( { gpu = ( 0, \"0000:9b:00.0\" );"
				     " ports = [ \"a:1\", \"b:1\", \"c:1\", \"d:1\" ]; rotate = %s; } );";
	char text[256];

	snprintf(text, sizeof(text), shared, "true");
	put("dualport.conf", text);
	load_ok();
	ck_assert_int_eq(cfg.ngroups, 2);
	ck_assert_int_eq(cfg.groups[0].gpu, 0);
	ck_assert_str_eq(cfg.groups[1].gpu_name, "0000:9b:00.0");
	ck_assert_int_eq(cfg.groups[1].nports, 4);
	for (int i = 0; i < 4; i++) {
		ck_assert_int_eq(cfg.groups[0].ports[i].dev[0], "abcd"[i]);
		ck_assert_int_eq(cfg.groups[1].ports[i].dev[0], "cdab"[i]);
	}
	dp_config_free(&cfg);
	snprintf(text, sizeof(text), shared, "false");
	put("dualport.conf", text);
	load_ok();
	ck_assert_int_eq(cfg.ngroups, 2);
	ck_assert_str_eq(cfg.groups[1].ports[0].dev, "a");
	dp_config_free(&cfg);
	put("dualport.conf", "gpus = ( { gpu = ( 4, 5, 6, 7 ); rotate = true; ports = [ \"a:1\", \"b:1\" ]; } );");
	load_ok();
	ck_assert_int_eq(cfg.ngroups, 4);
	for (int i = 0; i < 4; i++) {
		ck_assert_int_eq(cfg.groups[i].gpu, 4 + i);
		ck_assert_int_eq(cfg.groups[i].ports[0].dev[0], "aabb"[i]);
	}
}
END_TEST

/* A rank counts what CUDA shows the process. */
START_TEST(rank_among_visible)
{
	setenv("SLURM_LOCALID", "1", 1);
	setenv("CUDA_VISIBLE_DEVICES", "6,7", 1);
	load_ok();
	ck_assert_int_eq(cfg.gpu, 7);
	ck_assert_str_eq(cfg.gpu_from, "SLURM_LOCALID");
	dp_config_free(&cfg);
	setenv("CUDA_VISIBLE_DEVICES", "GPU-12,GPU-34", 1);
	load_ok();
	ck_assert_int_eq(cfg.gpu, -1);
	ck_assert_str_eq(cfg.gpu_name, "GPU-34");
	ck_assert_str_eq(dp_gpu_of_config(&cfg).uuid, "GPU-34");
	dp_config_free(&cfg);
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	load_ok();
	ck_assert_int_eq(cfg.gpu, -1);
	ck_assert_ptr_null(cfg.gpu_from);
	dp_config_free(&cfg);
	setenv("DUALPORT_GPU", "2", 1); /* the host's, whatever is visible */
	load_ok();
	ck_assert_int_eq(cfg.gpu, 2);
}
END_TEST

START_TEST(group_of_any_gpu)
{
	static const char any[] =
		"gpus = ( { gpu = 0; ports = [ \"a:1\", \"b:1\" ]; }, { ports = [ \"a:1\", \"c:1\" ]; } );";

	PICK(any, "a", 0);
	setenv("LOCAL_RANK", "5", 1);
	PICK(any, "a", 1);
	setenv("DUALPORT_PORTS", "x:1,y:1;z:1,a:1", 1);
	PICK(any, "a", 1);
	PICK_NONE(any, "b", "the port is in no port group");
}
END_TEST

START_TEST(gpu_variables)
{
	static const char *const vars[] = { "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
					    "SLURM_LOCALID", "PMI_LOCAL_RANK" };

	for (int i = 4; i >= 0; i--) { /* from the weakest */
		char n[2] = { (char)('0' + i), 0 };

		setenv(vars[i], n, 1);
		load_ok();
		ck_assert_int_eq(cfg.gpu, i);
		ck_assert_str_eq(cfg.gpu_from, vars[i]);
		dp_config_free(&cfg);
	}
	setenv("LOCAL_RANK", "rank", 1); /* not ours to complain about */
	load_ok();
	ck_assert_int_eq(cfg.gpu, 1);
}
END_TEST

static char *print_config(void)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	ck_assert_ptr_nonnull(f);
	dp_config_print(&cfg, f);
	ck_assert_int_eq(fclose(f), 0);
	return text;
}

START_TEST(listing)
{
	char *text;

	put("dualport.conf", "stripe = { align = \"128\"; weights = [ 3, 4 ]; };");
	setenv("DUALPORT_BOND_WAIT", "1500ms", 1);
	setenv("LOCAL_RANK", "2", 1);
	setenv("DUALPORT_PORTS", "a:1,b:2:3", 1);
	load_ok();
	text = print_config();
	ck_assert_ptr_nonnull(strstr(text, "# file: ./dualport.conf\n"));
	ck_assert_ptr_nonnull(
		strstr(text, "stripe.align         128                      4k           ./dualport.conf\n"));
	ck_assert_ptr_nonnull(
		strstr(text, "stripe.weights       3,4                      equal        ./dualport.conf\n"));
	ck_assert_ptr_nonnull(strstr(text, "stripe.spread_min    8k                       split_min    default\n"));
	ck_assert_ptr_nonnull(
		strstr(text, "bond_wait            1500ms                   0            DUALPORT_BOND_WAIT\n"));
	ck_assert_ptr_nonnull(strstr(text, "DUALPORT_GPU         2                        -            LOCAL_RANK\n"));
	ck_assert_ptr_nonnull(strstr(text, "# group of any gpu: a:1 b:2:3\n"));
	for (int i = 0; i < DP_SET_COUNT; i++) {
		char name[64];

		dp_setting_name(&dp_settings[i], name, sizeof(name));
		ck_assert_msg(dp_settings[i].type == DP_T_FILE || strstr(text, name), "%s is not listed", name);
	}
	free(text);
}
END_TEST

/* What is printed can be read again, and means the same. */
START_TEST(format_parses)
{
	struct dp_config again;
	char text[4096], text2[4096], why[256];

	put("dualport.conf", whole);
	load_ok();
	memset(&again, 0, sizeof(again));
	for (int i = 0; i < DP_SET_COUNT; i++) {
		const struct dp_setting *s = &dp_settings[i];

		if (s->type == DP_T_FILE)
			continue;
		dp_setting_format(s, &cfg, text, sizeof(text));
		ck_assert_msg(!dp_setting_parse(s, &again, text, why, sizeof(why)), "%s: %s: %s", s->env, text, why);
		dp_setting_format(s, &again, text2, sizeof(text2));
		ck_assert_str_eq(text, text2);
	}
	ck_assert_uint_eq(again.bond_wait_ns, cfg.bond_wait_ns);
	ck_assert_uint_eq(again.split_min, cfg.split_min);
	dp_config_free(&again);
}
END_TEST

START_TEST(format_units)
{
	static const struct {
		enum dp_setting_id id;
		const char *in, *out;
	} t[] = {
		{ DP_SET_BOND_WAIT, "0", "0" },		  { DP_SET_BOND_WAIT, "10us", "10us" },
		{ DP_SET_BOND_WAIT, "1001ns", "1001ns" }, { DP_SET_BOND_WAIT, "90", "90s" },
		{ DP_SET_BOND_WAIT, "120s", "2min" },	  { DP_SET_BOND_WAIT, "2500ms", "2500ms" },
		{ DP_SET_SPLIT_MIN, "8192", "8k" },	  { DP_SET_SPLIT_MIN, "8193", "8193" },
		{ DP_SET_SPLIT_MIN, "1024k", "1m" },	  { DP_SET_SPLIT_MIN, "2g", "2g" },
	};
	char buf[32], why[128];

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		const struct dp_setting *s = &dp_settings[t[i].id];

		ck_assert_msg(!dp_setting_parse(s, &cfg, t[i].in, why, sizeof(why)), "%s", why);
		dp_setting_format(s, &cfg, buf, sizeof(buf));
		ck_assert_str_eq(buf, t[i].out);
	}
}
END_TEST

/* The example has every setting, and all but the groups at their defaults. */
START_TEST(example)
{
	char path[5000], *text, value[64], def[64];
	struct dp_config plain;
	size_t len;
	FILE *f;

	snprintf(path, sizeof(path), "%s/conf/dualport.conf.example", srcdir);
	ck_assert_msg(!dp_config_load(&cfg, path, err, sizeof(err)), "%s", err);
	ck_assert_int_eq(dp_config_load(&plain, NULL, err, sizeof(err)), 0);
	ck_assert_int_eq(cfg.ngroups, 2);
	for (int i = 0; i < DP_SET_COUNT; i++) {
		const struct dp_setting *s = &dp_settings[i];

		if (!s->key)
			continue;
		ck_assert_msg(cfg.in_file & UINT64_C(1) << i, "%s is not in the example", s->key);
		if (s->type == DP_T_PORTS)
			continue;
		dp_setting_format(s, &cfg, value, sizeof(value));
		dp_setting_format(s, &plain, def, sizeof(def));
		ck_assert_str_eq(value, def);
	}
	dp_config_free(&plain);

	/* What stands there as a comment for the other kinds of groups works as well. */
	f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	text = calloc(1, 1 << 16);
	len = fread(text, 1, (1 << 16) - 1, f);
	fclose(f);
	ck_assert_uint_gt(len, 0);
	for (char *c = text; (c = strstr(c, "// { "));)
		memcpy(c, "   ", 3);
	put("all", text);
	free(text);
	dp_config_free(&cfg);
	ck_assert_msg(!dp_config_load(&cfg, "all", err, sizeof(err)), "%s", err);
	ck_assert_int_eq(cfg.ngroups, 7);
	ck_assert_int_eq(cfg.groups[1].ports[1].gid_index, 3);
	ck_assert_int_eq(cfg.groups[4].ports[1].lag, 2);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("config");
	TCase *tc = tcase_create("all");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, defaults);
	tcase_add_test(tc, whole_file);
	tcase_add_test(tc, environment_wins);
	tcase_add_test(tc, ports_of_a_bond);
	tcase_add_test(tc, order_of_files);
	tcase_add_test(tc, include);
	tcase_add_loop_test(tc, broken_file, 0, N_FILES);
	tcase_add_test(tc, foreign_env);
	tcase_add_loop_test(tc, broken_env, 0, N_ENVS);
	tcase_add_test(tc, unreadable);
	tcase_add_test(tc, short_buffer);
	tcase_add_test(tc, group_by_index);
	tcase_add_test(tc, group_of_unknown_gpu);
	tcase_add_test(tc, group_of_port_number);
	tcase_add_test(tc, group_by_name);
	tcase_add_test(tc, group_of_known_gpu);
	tcase_add_test(tc, gpus_that_share);
	tcase_add_test(tc, rank_among_visible);
	tcase_add_test(tc, group_of_any_gpu);
	tcase_add_test(tc, gpu_variables);
	tcase_add_test(tc, listing);
	tcase_add_test(tc, format_parses);
	tcase_add_test(tc, format_units);
	tcase_add_test(tc, example);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

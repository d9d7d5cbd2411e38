// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* The process's GPU: by the driver (a fake one), by local rank, by what the host shows. */
#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "config.h"
#include "fakecuda.h"
#include "gpu.h"
#include "settings.h"
#include "tree.h"
#include "run.h"

static char root[64];
static struct dp_config cfg;
static char memory[4096];

static void setup(void)
{
	memset(&cfg, 0, sizeof(cfg));
	cfg.gpu = -1;
}

/* As a program does it, which may or may not initialise it. Never unloaded: each test has its process. */
static struct fakecuda *load(void)
{
	void *lib = dlopen("tests/unit/fakecuda/libcuda.so.1", RTLD_NOW);
	struct fakecuda *f;

	ck_assert_msg(lib != NULL, "%s", dlerror());
	f = dlsym(lib, "fakecuda");
	ck_assert_ptr_nonnull(f);
	*f = (struct fakecuda){ .ready = 1, .visible = FAKECUDA_GPUS, .first = 1, .current = -1 };
	return f;
}

START_TEST(not_loaded)
{
	struct dp_gpu gpu;

	ck_assert(!dp_gpu_from_cuda(&gpu, memory));
	ck_assert(!dp_gpu_known(&gpu));
	gpu = dp_gpu_get(&cfg, NULL);
	ck_assert(!dp_gpu_known(&gpu));
	ck_assert_ptr_null(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD));
}
END_TEST

START_TEST(not_initialised)
{
	struct fakecuda *f = load();
	struct dp_gpu gpu;

	f->ready = 0;
	f->current = 2;
	f->primary = 1;
	f->memory = memory;
	ck_assert(!dp_gpu_from_cuda(&gpu, memory));
	ck_assert_int_eq(f->inits, 0);
}
END_TEST

START_TEST(by_context)
{
	struct fakecuda *f = load();
	struct dp_gpu gpu;

	ck_assert(!dp_gpu_from_cuda(&gpu, NULL));
	f->current = 2;
	errno = EXDEV;
	gpu = dp_gpu_get(&cfg, memory); /* not the driver's memory */
	ck_assert_int_eq(errno, EXDEV);
	ck_assert_str_eq(gpu.pci, "0000:30:00.0");
	ck_assert_str_eq(gpu.uuid, "GPU-33333333-3333-3333-3333-333333333333");
	ck_assert_str_eq(gpu.mig, "");
	ck_assert_str_eq(gpu.from, "cuCtxGetDevice");
	ck_assert(!gpu.guessed);
	f->current = 0; /* it stays */
	gpu = dp_gpu_get(&cfg, NULL);
	ck_assert_str_eq(gpu.pci, "0000:30:00.0");
	ck_assert_int_eq(f->inits, 0);
}
END_TEST

START_TEST(by_memory)
{
	struct fakecuda *f = load();
	struct dp_gpu gpu;

	f->current = 2;
	f->memory = memory;
	f->memory_of = 3;
	gpu = dp_gpu_get(&cfg, memory + 100);
	ck_assert_str_eq(gpu.pci, "0000:40:00.0");
	ck_assert_str_eq(gpu.from, "cuPointerGetAttribute");
}
END_TEST

START_TEST(by_primary_context)
{
	struct fakecuda *f = load();
	struct dp_gpu gpu;

	f->primary = 1 << 1 | 1 << 3;
	gpu = dp_gpu_get(&cfg, NULL); /* two: neither, and it may yet be known */
	ck_assert(!dp_gpu_known(&gpu));
	gpu = dp_gpu_peek(&cfg);
	ck_assert(!dp_gpu_known(&gpu));
	f->primary = 1 << 1;
	gpu = dp_gpu_get(&cfg, NULL);
	ck_assert_str_eq(gpu.pci, "0000:20:00.0");
	ck_assert_str_eq(gpu.from, "cuDevicePrimaryCtxGetState");
	gpu = dp_gpu_peek(&cfg);
	ck_assert_str_eq(gpu.pci, "0000:20:00.0");
}
END_TEST

START_TEST(instance)
{
	struct fakecuda *f = load();
	struct dp_gpu gpu;

	f->current = 0;
	f->instance = 1;
	gpu = dp_gpu_get(&cfg, NULL);
	ck_assert_str_eq(gpu.uuid, "GPU-11111111-1111-1111-1111-111111111111");
	ck_assert_str_eq(gpu.mig, "MIG-12121212-1212-1212-1212-121212121212");
}
END_TEST

/* DUALPORT_GPU wins over the driver, the driver over a rank, and "none" over both. */
START_TEST(who_wins)
{
	struct fakecuda *f = load();
	struct dp_gpu gpu;

	cfg.gpu = 5;
	cfg.gpu_from = "LOCAL_RANK";
	gpu = dp_gpu_of_config(&cfg);
	ck_assert(gpu.guessed);
	f->current = _i == 3 ? -1 : 1;
	if (_i == 1 || _i == 2)
		cfg.in_env = UINT64_C(1) << DP_SET_GPU;
	if (_i == 1)
		cfg.gpu_from = "DUALPORT_GPU";
	if (_i == 2) {
		cfg.gpu = -1;
		cfg.gpu_from = NULL;
	}
	gpu = dp_gpu_get(&cfg, NULL);
	switch (_i) {
	case 0:
		ck_assert_str_eq(gpu.pci, "0000:20:00.0");
		break;
	case 2:
		ck_assert(!dp_gpu_known(&gpu));
		break;
	default:
		ck_assert_int_eq(gpu.index, 5);
		ck_assert_int_eq(gpu.guessed, _i == 3);
	}
	/* nor does a context that comes later change anything */
	f->current = 3;
	ck_assert_int_eq(dp_gpu_get(&cfg, NULL).index, gpu.index);
	ck_assert_str_eq(dp_gpu_get(&cfg, NULL).pci, gpu.pci);
}
END_TEST

START_TEST(visible_devices)
{
	static const struct {
		const char *visible;
		int ordinal, index;
		const char *name; /* NULL: there is no such device */
	} t[] = {
		{ NULL, 3, 3, "" },
		{ "4,5,6,7", 0, 4, "" },
		{ "4,5,6,7", 3, 7, "" },
		{ "4,5,6,7", 4, -1, NULL },
		{ " 4 , 5", 1, 5, "" },
		{ "6", 3, 6, "" }, /* each process has its own */
		{ "", 0, -1, NULL },
		{ "-1", 0, -1, NULL },
		{ "0,1,-1,2", 1, 1, "" },
		{ "0,1,-1,2", 2, -1, NULL },
		{ "0,,2", 2, 0, "" },
		{ "NoDevFiles", 0, -1, NULL },
		{ "GPU-8932f937,GPU-46ab", 1, -1, "GPU-46ab" },
		{ "MIG-5d1b2ff3-0000-1111-2222-333344445555", 0, -1, "MIG-5d1b2ff3-0000-1111-2222-333344445555" },
		{ "MIG-GPU-8932f937/1/0", 0, -1, "GPU-8932f937" },
		{ "0000:9b:00.0", 0, -1, NULL },
	};

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		char name[64];
		int index, ret = dp_gpu_visible(t[i].visible, t[i].ordinal, &index, name, sizeof(name));

		ck_assert_msg(ret == (t[i].name ? 0 : -ENOENT), "%s: %d", t[i].visible, ret);
		ck_assert_int_eq(index, t[i].index);
		ck_assert_str_eq(name, t[i].name ? t[i].name : "");
	}
}
END_TEST

static void pci(const char *addr, const char *vendor, const char *class)
{
	tree_put(vendor, "%s/bus/pci/devices/%s/vendor", root, addr);
	tree_put(class, "%s/bus/pci/devices/%s/class", root, addr);
}

START_TEST(host)
{
	struct dp_gpu by_index = { .index = 1 }, by_pci = { .index = -1, .pci = "0001:05:00.0" },
		      by_uuid = { .index = -1, .uuid = "gpu-8932" }, unknown = { .index = 7 };
	struct dp_host_gpu *gpus;
	char cmd[128], proc[128];
	size_t n;

	strcpy(root, "/tmp/test_gpu.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(root));
	snprintf(proc, sizeof(proc), "%s/proc", root);
	ck_assert_int_eq(dp_host_gpus_read(root, proc, &gpus, &n), 0);
	ck_assert_uint_eq(n, 0);
	pci("0001:05:00.0", "0x10de\n", "0x030200\n");
	pci("0000:9b:00.0", "0x10de\n", "0x030200\n");
	pci("0000:1b:00.0", "0x10de\n", "0x030000\n");
	pci("0000:1b:00.1", "0x10de\n", "0x040300\n"); /* its sound */
	pci("0000:02:00.0", "0x1a03\n", "0x030000\n"); /* the console */
	tree_put("Model: \t\t H200\nGPU UUID: \t GPU-8932f937-d72c-4106-c12f-20bd9faed9f6\nBus Type: \t PCIe\n",
	    "%s/driver/nvidia/gpus/0000:9b:00.0/information", proc);
	tree_put("GPU UUID: \t GPU-?\n",
	    "%s/driver/nvidia/gpus/0001:05:00.0/information", proc);
	ck_assert_int_eq(dp_host_gpus_read(root, proc, &gpus, &n), 0);
	ck_assert_uint_eq(n, 3);
	ck_assert_str_eq(gpus[0].pci, "0000:1b:00.0");
	ck_assert_str_eq(gpus[1].uuid, "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6");
	ck_assert_str_eq(gpus[2].uuid, "");
	dp_gpu_complete(&by_index, gpus, n);
	ck_assert_str_eq(by_index.pci, "0000:9b:00.0");
	ck_assert_str_eq(by_index.uuid, gpus[1].uuid);
	dp_gpu_complete(&by_pci, gpus, n);
	ck_assert_int_eq(by_pci.index, 2);
	dp_gpu_complete(&by_uuid, gpus, n);
	ck_assert_int_eq(by_uuid.index, 1);
	ck_assert_str_eq(by_uuid.uuid, gpus[1].uuid);
	dp_gpu_complete(&unknown, gpus, n);
	ck_assert_int_eq(unknown.index, 7);
	ck_assert_str_eq(unknown.pci, "");
	free(gpus);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", root);
	ck_assert_int_eq(system(cmd), 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("gpu");
	TCase *tc = tcase_create("all");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_add_test(tc, not_loaded);
	tcase_add_test(tc, not_initialised);
	tcase_add_test(tc, by_context);
	tcase_add_test(tc, by_memory);
	tcase_add_test(tc, by_primary_context);
	tcase_add_test(tc, instance);
	tcase_add_loop_test(tc, who_wins, 0, 4);
	tcase_add_test(tc, visible_devices);
	tcase_add_test(tc, host);
	suite_add_tcase(s, tc);
	return run_suite(s);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * client MODE [PATH...]: gets at verbs in one way, uses them, and checks whom the calls reached. ENTRY_CORE is the path
 * of the test core that is expected to see them; "none": nobody is. LINKED is defined in the build that is linked with
 * the fake libibverbs.so.1.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "use.h"

#define THREADS 16

#ifndef LINKED
#pragma weak ibv_reg_dmabuf_mr
#endif

static void *must_open(const char *path, int flags)
{
	void *h = dlopen(path, flags);

	if (!h) {
		fprintf(stderr, "entry: %s\n", dlerror());
		exit(2);
	}
	return h;
}

static void *must_sym(void *h, const char *name)
{
	void *p = dlsym(h, name);

	if (!p) {
		fprintf(stderr, "entry: %s\n", dlerror());
		exit(2);
	}
	return p;
}

static const char *file_of(void *p)
{
	Dl_info info;

	return dladdr(p, &info) && info.dli_fname ? info.dli_fname : "?";
}

/* ---- whom calls reached ---- */

static int (*core_count(void))(const char *)
{
	const char *path = getenv("ENTRY_CORE");
	void *h = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;

	return h ? (int (*)(const char *))must_sym(h, "testcore_count") : NULL;
}

static bool core_expected(void)
{
	const char *path = getenv("ENTRY_CORE");

	return path && strcmp(path, "none");
}

/* after n uses of one copy; core_n of them through the core, all copies together */
static void check_counts(int (*copy)(const char *), int n, int core_n)
{
	int (*core)(const char *) = core_count();

	CHECK(!!core == core_expected(), "core %sloaded", core ? "" : "not ");
#define COUNTS(ret, verb, version, params, args)                                                                      \
	CHECK(copy(#verb) == n * use_reaches(#verb), "%d", copy(#verb));                                              \
	if (core)                                                                                                     \
		CHECK(core(#verb) == core_n * use_calls(#verb), "%d", core(#verb));
	DP_VERBS_HOOKED(COUNTS)
	CHECK(copy("alloc_pd@1.0") == 0, "%d", copy("alloc_pd@1.0"));
	if (core)
		CHECK(core("starts") == 1, "%d", core("starts"));
}

static void use(const struct api *api)
{
	CHECK(!use_all(api), "see above");
}

/* ---- ways to get at verbs ---- */

static void by_dlsym(struct api *api, void *h)
{
	api->open = (struct ibv_context * (*)(void)) must_sym(h, "fake_open");
	api->count = (int (*)(const char *))must_sym(h, "fake_count");
#define SYM(ret, verb, version, params, args) api->v.verb = (ret(*) params)must_sym(h, "ibv_" #verb);
	DP_VERBS_HOOKED(SYM)
}

static void by_dlvsym(struct api *api, void *h)
{
	by_dlsym(api, h);
#define VSYM(ret, verb, version, params, args)                                                                        \
	api->v.verb = (ret(*) params)dlvsym(h, "ibv_" #verb, version);                                                \
	CHECK(api->v.verb, "dlvsym %s %s", #verb, version);
	DP_VERBS_HOOKED(VSYM)
}

static int flags_of(const char *mode)
{
	int flags = RTLD_NOW;

	if (strstr(mode, "-global"))
		flags |= RTLD_GLOBAL;
	if (strstr(mode, "-deepbind"))
		flags |= RTLD_DEEPBIND;
	return flags;
}

static void one(const char *mode, const char *path)
{
	struct api api;
	void *h = must_open(path, flags_of(mode));

	if (strstr(mode, "dlvsym"))
		by_dlvsym(&api, h);
	else
		by_dlsym(&api, h);
	use(&api);
	check_counts(api.count, 1, 1);
}

static void two(const char *a_path, const char *b_path, int flags)
{
	struct api a, b;

	by_dlsym(&a, must_open(a_path, RTLD_NOW | flags));
	by_dlvsym(&b, must_open(b_path, RTLD_NOW | flags));
	CHECK(a.count != b.count, "the same copy");
	use(&a);
	check_counts(a.count, 1, 1);
	check_counts(b.count, 0, 1);
	use(&b);
	use(&b);
	check_counts(a.count, 1, 3);
	check_counts(b.count, 2, 3);
}

static void plugin(const char *path, const char *other)
{
	void *h, *o = other ? must_open(other, RTLD_NOW | RTLD_LOCAL) : NULL;
	int (*use_fn)(void), (*old)(void), (*count)(const char *);
	struct api api;

	h = must_open(path, RTLD_NOW | RTLD_LOCAL);
	use_fn = (int (*)(void))must_sym(h, "plugin_use");
	old = (int (*)(void))must_sym(h, "plugin_old_context");
	count = (int (*)(const char *))must_sym(h, "plugin_count");
	CHECK(!use_fn(), "see above");
	check_counts(count, 1, 1);
	if (o) {
		by_dlsym(&api, o);
		CHECK(count != api.count, "the same copy");
		use(&api);
		check_counts(api.count, 1, 2);
		check_counts(count, 1, 2);
	}
	CHECK(!old(), "a context that does not tell its copy");
	CHECK(count("alloc_pd") == 2 && count("dealloc_pd") == 2, "%d", count("alloc_pd"));
}

/* Its verbs cannot be had. */
static void deep_plugin(const char *path)
{
	void *h = must_open(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
	int (*use_fn)(void) = (int (*)(void))must_sym(h, "plugin_use");
	int (*count)(const char *) = (int (*)(const char *))must_sym(h, "plugin_count");

	CHECK(!use_fn(), "see above");
	check_counts(count, 1, 0);
	must_open(path, RTLD_NOW | RTLD_DEEPBIND);
	must_sym(h, "plugin_use");
}

/* What a program looks up to learn whether its libibverbs has it. */
static bool absent(const char *name, const char *version)
{
	void *self = dlopen(NULL, RTLD_NOW);
	bool ok = true;

	dlerror();
	ok &= !dlsym(RTLD_DEFAULT, name) && strstr(dlerror(), name);
	ok &= !dlsym(self, name) && strstr(dlerror(), name);
	ok &= !dlvsym(RTLD_DEFAULT, name, version) && strstr(dlerror(), version);
	ok &= !dlvsym(self, name, version) && strstr(dlerror(), version);
	dlclose(self);
	return ok;
}

static void is_bare(void *f, const char *how)
{
	/* of RTLD_DEFAULT the hook is found, which reads it and goes on to the one that is there */
	static struct ibv_context none;

	CHECK(f && ((int (*)(struct ibv_context *))f)(&none) == 7, "%s does not find the one that is there", how);
}

/* An object without versions has a verb's name: the C library takes it for any version. */
static void bare(const char *path)
{
	void *h = must_open(path, RTLD_NOW | RTLD_GLOBAL);

	is_bare(dlsym(h, "ibv_alloc_pd"), "dlsym");
	is_bare(dlvsym(h, "ibv_alloc_pd", "IBVERBS_1.1"), "dlvsym");
	is_bare(dlsym(RTLD_DEFAULT, "ibv_alloc_pd"), "dlsym of RTLD_DEFAULT");
	is_bare(dlvsym(RTLD_DEFAULT, "ibv_alloc_pd", "IBVERBS_1.1"), "dlvsym of RTLD_DEFAULT");
}

/* In another namespace there is no object of ours. */
static void namespace(const char *path)
{
	void *h = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);

	CHECK(h, "dlmopen: %s", h ? "" : dlerror());
	is_bare(dlsym(h, "ibv_alloc_pd"), "dlsym");
	is_bare(dlvsym(h, "ibv_alloc_pd", "IBVERBS_1.1"), "dlvsym");
}

static void versions(const char *path)
{
	/* nobody has a verb yet, whatever the stub exports */
	bool none = absent("ibv_alloc_pd", "IBVERBS_1.1") && absent("mlx5dv_create_qp", "MLX5_1.3");
	void *h = must_open(path, RTLD_NOW), *def = dlsym(h, "ibv_alloc_pd"), *v1 = dlvsym(h, "ibv_alloc_pd", "IBVERBS_1.1");
	int (*count)(const char *) = (int (*)(const char *))must_sym(h, "fake_count");
	struct ibv_pd *(*v0)(struct ibv_context *) =
		(struct ibv_pd * (*)(struct ibv_context *)) dlvsym(h, "ibv_alloc_pd", "IBVERBS_1.0");
	struct ibv_context *ctx = ((struct ibv_context * (*)(void)) must_sym(h, "fake_open"))();

	CHECK(none, "a verb is found before there is a libibverbs");
	CHECK(dlsym(RTLD_DEFAULT, "ibv_alloc_pd") == def, "not found where it is");
	CHECK(def == v1, "default and IBVERBS_1.1 differ");
	CHECK(v0 && (void *)v0 != def, "IBVERBS_1.0");
	CHECK(!strcmp(file_of((void *)v0), file_of((void *)count)), "IBVERBS_1.0 is served from %s", file_of((void *)v0));
	CHECK(v0(ctx) && count("alloc_pd@1.0") == 1 && count("alloc_pd") == 0, "the old version was not reached");
	CHECK(strcmp(file_of(def), file_of((void *)count)), "IBVERBS_1.1 is not hooked");
	CHECK(!dlsym(h, "ibv_no_such_verb") && dlerror(), "dlsym of an unknown name");
	CHECK(!dlvsym(h, "ibv_alloc_pd", "IBVERBS_9.9") && dlerror(), "dlvsym of an unknown version");
	CHECK(!core_count(), "the core was loaded without need");
}

/* ---- a copy that lacks a newer verb ---- */

static void older(const char *path)
{
	void *h = must_open(path, RTLD_NOW | RTLD_GLOBAL);
	int (*count)(const char *) = (int (*)(const char *))must_sym(h, "fake_count");
	struct ibv_context *ctx = ((struct ibv_context * (*)(void)) must_sym(h, "fake_open"))();
	struct ibv_pd *pd = ((struct ibv_pd * (*)(struct ibv_context *)) must_sym(h, "ibv_alloc_pd"))(ctx);

	CHECK(pd && pd->context == ctx, "alloc_pd");
	CHECK(!dlsym(h, "ibv_reg_dmabuf_mr"), "a verb that the copy does not have");
	CHECK(absent("ibv_reg_dmabuf_mr", "IBVERBS_1.12"), "another copy's verb");
	CHECK(!absent("ibv_reg_mr", "IBVERBS_1.1"), "a verb that it has");
#ifndef LINKED
	/* a weak reference finds the stub's own export, and then nothing behind it */
	errno = 0;
	CHECK(ibv_reg_dmabuf_mr, "the stub's own export");
	if (ibv_reg_dmabuf_mr && !core_expected()) /* this core's hook insists on a real function */
		CHECK(!ibv_reg_dmabuf_mr(pd, 0, 64, 0, 3, 0) && errno == EOPNOTSUPP, "errno %d", errno);
#endif
	CHECK(count("alloc_pd") == 1, "%d", count("alloc_pd"));
}

/* ---- threads ---- */

static pthread_barrier_t barrier;
static struct api shared;

static void *first_use(void *arg)
{
	(void)arg;
	pthread_barrier_wait(&barrier);
	if (use_all(&shared))
		abort();
	return NULL;
}

static void threads(const char *path)
{
	pthread_t t[THREADS];
	int i;

	by_dlsym(&shared, must_open(path, RTLD_NOW));
	pthread_barrier_init(&barrier, NULL, THREADS);
	for (i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, first_use, NULL);
	for (i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	check_counts(shared.count, THREADS, THREADS);
}

static void *other_first_use(void *arg)
{
	struct ibv_context *ctx = shared.open();

	(void)arg;
	if (!shared.v.alloc_pd(ctx))
		abort();
	return NULL;
}

static pthread_t other;

/* Called by the plugin's constructor, under the loader's lock: another thread is made to want that lock for the core. */
void entry_in_constructor(void);
__attribute__((visibility("default"))) void entry_in_constructor(void)
{
	pthread_create(&other, NULL, other_first_use, NULL);
	nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
}

static void constructor(const char *plugin_path, const char *path)
{
	struct timespec a, b;

	by_dlsym(&shared, must_open(path, RTLD_NOW));
	clock_gettime(CLOCK_MONOTONIC, &a);
	must_open(plugin_path, RTLD_NOW);
	pthread_join(other, NULL);
	clock_gettime(CLOCK_MONOTONIC, &b);
	CHECK(b.tv_sec - a.tv_sec < 10, "%ld s", (long)(b.tv_sec - a.tv_sec));
	CHECK(core_count() && core_count()("starts") == 1, "the core did not start after all");
}

/* ---- fork, vfork, exec ---- */

static void wait_for(pid_t pid)
{
	int status = -1;

	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status), "status 0x%x",
	      status);
}

static void forks(const char *path)
{
	struct api api;
	pid_t pid;

	by_dlsym(&api, must_open(path, RTLD_NOW));
	pid = fork(); /* the child loads first */
	if (!pid) {
		use(&api);
		check_counts(api.count, 1, 1);
		_exit(failures);
	}
	wait_for(pid);
	use(&api);
	check_counts(api.count, 1, 1);
	pid = fork(); /* the child has the core from its parent */
	if (!pid) {
		use(&api);
		check_counts(api.count, 2, 2);
		_exit(failures);
	}
	wait_for(pid);
	pid = vfork();
	if (!pid) {
		execl("/bin/true", "true", (char *)NULL);
		_exit(127);
	}
	wait_for(pid);
	CHECK(!system("exit 0"), "system");
	use(&api);
	check_counts(api.count, 2, 2);
}

/* ---- others ---- */

/* the preloaded objects that wrap getppid must form a chain of two that ends in the C library */
static void next(void)
{
	int (*a)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "wrap_a_calls");
	int (*b)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "wrap_b_calls");
	int (*c)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "wrap_b_dlsym_calls");
	pid_t p = getppid();
	char line[64] = "";
	FILE *f = fopen("/proc/self/stat", "r");
	int ppid = -1;

	CHECK(f && fgets(line, sizeof(line), f) && sscanf(strrchr(line, ')'), ") %*c %d", &ppid) == 1, "no stat");
	CHECK(p == ppid, "%d, not %d", (int)p, ppid);
	CHECK(a && a() == 1, "the wrapper before the stub");
	CHECK(b && b() == 1, "the wrapper behind the stub");
	CHECK(c && c() > 0, "a dlsym behind the stub was passed by");
}

/* What makes queue pairs or regions past verbs is passed on as it is, and the core is told of it. */
static void mlx5_watched(void *h, const char *path, struct ibv_context *ctx)
{
	void *(*create)(void *, void *, void *) = (void *(*)(void *, void *, void *))must_sym(h, "mlx5dv_create_qp");
	void *(*devx)(void *, const void *, size_t, void *, size_t) =
		(void *(*)(void *, const void *, size_t, void *, size_t))dlvsym(h, "mlx5dv_devx_obj_create",
										"MLX5_1.7");
	struct ibv_mr *(*reg)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int, int) =
		(struct ibv_mr * (*)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int, int))
			must_sym(h, "mlx5dv_reg_dmabuf_mr");
	static const unsigned char qp[] = {0x05, 0x00, 0}, cq[] = {0x04, 0x00, 0};
	struct ibv_pd pd = {.context = ctx};
	int before = core_count()("bypassed");
	char out[1];

	CHECK(strcmp(file_of((void *)create), path) && strcmp(file_of((void *)devx), path) &&
		      strcmp(file_of((void *)reg), path), "not hooked");
	CHECK(create(ctx, NULL, NULL) == ctx && core_count()("bypassed") == before + 1, "mlx5dv_create_qp");
	CHECK(devx(ctx, qp, sizeof(qp), out, 1) == out && core_count()("bypassed") == before + 2, "devx QP");
	CHECK(devx(ctx, cq, sizeof(cq), out, 1) == out && core_count()("bypassed") == before + 2, "devx CQ");
	CHECK(!devx(ctx, qp, sizeof(qp), NULL, 0) && core_count()("bypassed") == before + 2, "devx failure");
	CHECK(reg(&pd, 1, 2, 3, 4, 5, 6) && core_count()("dmabufs") == 1, "mlx5dv_reg_dmabuf_mr");
}

static void mlx5(const char *verbs, const char *path)
{
	void *h = must_open(path, RTLD_NOW);
	void (*fill)(struct ibv_context *) = (void (*)(struct ibv_context *))must_sym(h, "fake_mlx5_fill");
	int (*hits)(int) = (int (*)(int))must_sym(h, "fake_mlx5_hits");
	int (*v2)(void *, uint64_t) = (int (*)(void *, uint64_t))must_sym(h, "mlx5dv_init_obj");
	int (*v0)(void *, uint64_t) = (int (*)(void *, uint64_t))dlvsym(h, "mlx5dv_init_obj", "MLX5_1.0");
	struct {
		void *in, *out;
	} obj[4] = {{NULL, NULL}};
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC};
	struct ibv_context *ctx;
	struct api api;

	by_dlsym(&api, must_open(verbs, RTLD_NOW));
	ctx = api.open();
	fill(ctx);
	obj[0].in = api.v.create_qp(api.v.alloc_pd(ctx), &init);
	CHECK((void *)v2 == dlvsym(h, "mlx5dv_init_obj", "MLX5_1.2"), "default version");
	CHECK((void *)v0 != (void *)v2 && strcmp(file_of((void *)v0), path) && strcmp(file_of((void *)v2), path),
	      "not hooked");
	CHECK(v2(obj, 1) == 12 && hits(12) == 1 && hits(10) == 0, "MLX5_1.2");
	CHECK(v0(obj, 1) == 10 && hits(12) == 1 && hits(10) == 1, "MLX5_1.0");
	CHECK(v2(obj, 0) == 12, "no object at all");
	CHECK(core_count() && core_count()("direct") == 2, "the core was not told");
	mlx5_watched(h, path, ctx);
}

/* the system's libibverbs, if it has devices or not: what dlsym gives and where it leads */
static void system_copy(void)
{
	void *h = must_open("libibverbs.so.1", RTLD_NOW), *fn = must_sym(h, "ibv_alloc_pd");
	void *list = must_sym(h, "ibv_get_device_list"), *old = dlvsym(h, "ibv_alloc_pd", "IBVERBS_1.0");

	CHECK(strstr(file_of(fn), "libdualport.so"), "%s", file_of(fn));
	CHECK(strstr(file_of(list), "libibverbs"), "%s", file_of(list));
	CHECK(old && strstr(file_of(old), "libibverbs"), "%s", file_of(old));
	CHECK(fn == dlvsym(h, "ibv_alloc_pd", "IBVERBS_1.1"), "dlvsym");
	CHECK(fn == dlsym(RTLD_DEFAULT, "ibv_alloc_pd"), "RTLD_DEFAULT");
}

#ifdef LINKED
static void linked(int core_n)
{
	struct api a, *api = &a;

	API_LINKED(api);
	use(api);
	check_counts(fake_count, 1, core_n);
}

/* the core was opened, but did not take part */
static void linked_native(void)
{
	struct api a, *api = &a;
	int (*core)(const char *);

	API_LINKED(api);
	use(api);
	core = core_count();
	CHECK(core && core("starts") == 1 && core("alloc_pd") == 0, "%d", core ? core("alloc_pd") : -1);
	CHECK(fake_count("alloc_pd") == 1, "%d", fake_count("alloc_pd"));
}

static void linked_old(void)
{
	struct ibv_context *ctx = fake_open_old();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);

	CHECK(pd && pd->context == ctx && fake_count("alloc_pd") == 1, "%d", fake_count("alloc_pd"));
	CHECK(!core_count(), "the core was loaded for a context that it cannot know");
}

/* reg_mr is the program's, native in this core; what the copy does inside it is not the program's either way */
static void sparse(void)
{
	struct ibv_context *ctx = fake_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int) = ibv_reg_mr;
	char buf[8];

	CHECK(reg(pd, buf, sizeof(buf), 0), "reg_mr");
	CHECK(fake_count("reg_mr") == 1 && fake_count("reg_mr_iova2") == 1, "%d", fake_count("reg_mr"));
	CHECK(core_count() && core_count()("reg_mr") == 0 && core_count()("reg_mr_iova2") == 0, "%d",
	      core_count() ? core_count()("reg_mr_iova2") : -1);
	CHECK(ibv_reg_mr_iova2(pd, buf, sizeof(buf), 0, 0) && core_count()("reg_mr_iova2") == 1, "inside for ever");
}
#endif

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "", *a = argc > 2 ? argv[2] : "", *b = argc > 3 ? argv[3] : NULL;
	const char *data = getenv("ENTRY_TAKE_FD2");

	/* the next file that a program opens after it closed stderr is descriptor 2 */
	if (data && (close(2) || open(data, O_RDWR | O_CREAT, 0600) != 2))
		return 3;

	if (!strncmp(mode, "dlsym", 5) || !strncmp(mode, "dlvsym", 6))
		one(mode, a);
	else if (!strcmp(mode, "two"))
		two(a, b, RTLD_LOCAL);
	else if (!strcmp(mode, "two-global"))
		two(a, b, RTLD_GLOBAL);
	else if (!strcmp(mode, "plugin"))
		plugin(a, b);
	else if (!strcmp(mode, "plugin-deepbind"))
		deep_plugin(a);
	else if (!strcmp(mode, "bare"))
		bare(a);
	else if (!strcmp(mode, "namespace"))
		namespace(a);
	else if (!strcmp(mode, "versions"))
		versions(a);
	else if (!strcmp(mode, "older"))
		older(a);
	else if (!strcmp(mode, "threads"))
		threads(a);
	else if (!strcmp(mode, "constructor"))
		constructor(a, b);
	else if (!strcmp(mode, "forks"))
		forks(a);
	else if (!strcmp(mode, "next"))
		next();
	else if (!strcmp(mode, "mlx5"))
		mlx5(a, b);
	else if (!strcmp(mode, "system"))
		system_copy();
#ifdef LINKED
	else if (!strcmp(mode, "linked"))
		linked(core_expected());
	else if (!strcmp(mode, "linked-chdir")) {
		if (chdir("/"))
			return 2;
		linked(1);
	} else if (!strcmp(mode, "linked-native"))
		linked_native();
	else if (!strcmp(mode, "linked-old"))
		linked_old();
	else if (!strcmp(mode, "sparse"))
		sparse();
#endif
	else
		return 64;
	return failures ? 1 : 0;
}

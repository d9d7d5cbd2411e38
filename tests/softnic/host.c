// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "faults.h"
#include "host.h"

/* A QP number that was just given back rests for so long, as with real devices. */
#define QPN_REST_NS 50000000u

struct sn_host *sn_shared;
static pthread_mutex_t host_once = PTHREAD_MUTEX_INITIALIZER;
static char host_dir[256];
static int host_err;
static int me = -1;
static uint32_t me_gen;

uint64_t sn_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void sn_say(const char *fmt, ...)
{
	int err = errno;
	char line[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	fprintf(stderr, "softnic[%d]: %s\n", (int)getpid(), line);
	errno = err;
}

/* A whole number in the environment; false: it is there and is none, or out of range. */
static bool env_number(const char *name, uint64_t def, uint64_t min, uint64_t max, uint64_t *v)
{
	const char *s = getenv(name);
	char *end;

	*v = def;
	if (!s || !*s)
		return true;
	errno = 0;
	*v = strtoull(s, &end, 0);
	if (!errno && !*end && *v >= min && *v <= max)
		return true;
	sn_say("%s=%s: not a number from %llu to %llu", name, s, (unsigned long long)min, (unsigned long long)max);
	return false;
}

/* The nth number of a list between commas, which is used again from its beginning; false: one of them is none. */
static bool rate_of(uint32_t nth, uint64_t *v)
{
	const char *list = getenv("SOFTNIC_RATE"), *s = list;
	char *end;

	*v = 0;
	if (!list || !*list)
		return true;
	for (uint32_t i = 0; i <= nth; i++) {
		errno = 0;
		*v = strtoull(s, &end, 10);
		if (errno || end == s || (*end && *end != ',')) {
			sn_say("SOFTNIC_RATE=%s: not numbers between commas", list);
			return false;
		}
		s = *end ? end + 1 : list;
	}
	return true;
}

static void gid_link_local(struct sn_gid *g, uint64_t guid)
{
	g->valid = 1;
	g->raw[0] = 0xfe;
	g->raw[1] = 0x80;
	for (int i = 0; i < 8; i++)
		g->raw[8 + i] = (uint8_t)(guid >> (56 - 8 * i));
}

static void gid_v4(struct sn_gid *g, const uint8_t ip[4])
{
	g->valid = 1;
	g->raw[10] = g->raw[11] = 0xff;
	memcpy(g->raw + 12, ip, 4);
}

static int init_lock(pthread_mutex_t *m)
{
	pthread_mutexattr_t a;
	int ret;

	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	ret = pthread_mutex_init(m, &a);
	pthread_mutexattr_destroy(&a);
	return -ret;
}

/* Fills the host as the environment says; the file is locked, and all zero. */
static int init_host(struct sn_host *h)
{
	uint64_t lag, lag_cards, bonds = 0, ports, cards, delay, part, ib, adverse, late;
	unsigned int a = 0, b = 0;
	const char *net = getenv("SOFTNIC_NET"), *faults;
	int ret;

	if (!env_number("SOFTNIC_PORTS", 2, 1, SN_DEVS, &ports) ||
	    !env_number("SOFTNIC_CARDS", 1, 1, SN_DEVS, &cards) ||
	    !env_number("SOFTNIC_DELAY", 0, 0, 10000000000ull, &delay) ||
	    !env_number("SOFTNIC_SEED", 0, 0, UINT64_MAX, &h->seed) ||
	    !env_number("SOFTNIC_PART_ID", 0, 0, UINT32_MAX, &part) ||
	    !env_number("SOFTNIC_INFINIBAND", 0, 0, 1, &ib) ||
	    !env_number("SOFTNIC_ADVERSE", 0, 0, 1, &adverse) ||
	    !env_number("SOFTNIC_LATE", 0, 0, 1, &late) ||
	    !env_number("SOFTNIC_LAG", 0, 0, SN_LAGS, &lag) ||
	    !env_number("SOFTNIC_LAG_CARDS", cards, 0, cards, &lag_cards))
		return -EINVAL;
	if (!net || sscanf(net, "%u.%u", &a, &b) != 2 || a < 1 || a > 254 || b > 255) {
		sn_say("SOFTNIC_NET=%s: not the middle of a loopback address, as 1.0", net ? net : "");
		return -EINVAL;
	}
	ret = init_lock(&h->lock);
	if (ret)
		return ret;
	h->ndevs = (uint32_t)ports;
	h->ncards = (uint32_t)cards;
	h->part_id = (uint32_t)part;
	h->infiniband = (uint32_t)ib;
	h->adverse = (uint32_t)adverse;
	h->late = (uint32_t)late;
	for (uint32_t i = 0; i < h->ndevs; i++) {
		struct sn_dev *d = &h->devs[i];
		uint8_t ip[4] = { 127, (uint8_t)a, (uint8_t)b, (uint8_t)(i + 1) };

		/* ports 0, 1 on card 0, ports 2, 3 on card 1 and so on */
		d->card = (uint32_t)(i * cards / ports);
		if (lag && d->card + lag_cards >= cards) {
			d->lag = (uint32_t)lag;
			snprintf(d->name, sizeof(d->name), "mlx5_bond_%u", (unsigned int)bonds++);
		} else {
			snprintf(d->name, sizeof(d->name), "mlx5_%u", i);
		}
		d->sys_image_guid = 0x5057f10000000000ull | (uint64_t)a << 24 | b << 16 | (uint64_t)d->card << 8;
		d->node_guid = d->sys_image_guid | (i + 1);
		if (!rate_of(i, &d->port.rate))
			return -EINVAL;
		d->port.delay = delay;
		gid_link_local(&d->port.gids[0], d->node_guid);
		if (!ib)
			gid_v4(&d->port.gids[1], ip);
	}
	for (uint32_t i = 0; i < h->ndevs; i++)
		for (uint32_t k = 0; k < SN_GIDS; k++)
			h->devs[i].port.shown[k] = h->devs[i].port.gids[k].valid ? (uint8_t)(k + 1) : 0;
	h->began = sn_now();
	faults = getenv("SOFTNIC_FAULTS");
	ret = faults && *faults ? sn_faults_read(h, faults) : 0;
	return ret ? ret : sn_sysfs_make(h, host_dir);
}

static int map_host(void)
{
	const char *dir = getenv("SOFTNIC_DIR");
	char path[PATH_MAX];
	struct stat st;
	int fd = -1, ret;
	void *p;

	if (!dir || !*dir) {
		sn_say("no devices: SOFTNIC_DIR is not set, start the program through scripts/softnic");
		return -ENODEV;
	}
	if (snprintf(host_dir, sizeof(host_dir), "%s", dir) >= 200) {
		sn_say("SOFTNIC_DIR is too long: %s", dir);
		return -ENAMETOOLONG;
	}
	snprintf(path, sizeof(path), "%s/host", host_dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		goto err;
	/* whoever comes first fills it, the others wait for that; a lock ends with its process */
	if (flock(fd, LOCK_EX) || fstat(fd, &st) || (!st.st_size && ftruncate(fd, sizeof(struct sn_host))))
		goto err;
	p = mmap(NULL, sizeof(struct sn_host), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		goto err;
	sn_shared = p;
	ret = 0;
	if (!atomic_load(&sn_shared->ready)) {
		ret = init_host(sn_shared);
		atomic_store(&sn_shared->ready, !ret);
	}
	flock(fd, LOCK_UN);
	close(fd);
	if (ret) {
		munmap(p, sizeof(struct sn_host));
		sn_shared = NULL;
	}
	return ret;
err:
	ret = -errno;
	sn_say("%s: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return ret;
}

struct sn_host *sn_host(void)
{
	pthread_mutex_lock(&host_once);
	if (!sn_shared && !host_err)
		host_err = map_host();
	pthread_mutex_unlock(&host_once);
	if (!sn_shared)
		errno = -host_err;
	return sn_shared;
}

const char *sn_host_dir(void)
{
	return host_dir;
}

void sn_host_lock(void)
{
	/* who died with it can only have left a QP number or a process entry half taken: harmless */
	if (pthread_mutex_lock(&sn_shared->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&sn_shared->lock);
}

void sn_host_unlock(void)
{
	pthread_mutex_unlock(&sn_shared->lock);
}

/* When the process began, in ticks since boot; 0: it is gone, or only its parent has not yet looked. */
static uint64_t start_time(int pid)
{
	char path[64], buf[1024], *s, state;
	unsigned long long t;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, buf, sizeof(buf) - 1);
	close(fd);
	if (n <= 0)
		return 0;
	buf[n] = '\0';
	s = strrchr(buf, ')'); /* the name before it may hold anything */
	if (!s || sscanf(s + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
			 &state, &t) != 2)
		return 0;
	return state == 'Z' || state == 'X' ? 0 : t;
}

static bool alive(const struct sn_proc *p)
{
	return start_time(p->pid) == p->started;
}

bool sn_host_alive(uint32_t proc, uint32_t gen)
{
	struct sn_proc *p = &sn_shared->procs[proc];

	return atomic_load(&p->gen) == gen && alive(p);
}

static void reclaim(uint32_t proc, uint32_t gen)
{
	for (uint32_t d = 0; d < sn_shared->ndevs; d++)
		for (uint32_t i = 0; i < SN_QPNS; i++)
			if (atomic_load(&sn_shared->devs[d].qpns[i].owner) == sn_owner(proc, gen))
				atomic_store(&sn_shared->devs[d].qpns[i].owner, 0);
	atomic_store(&sn_shared->procs[proc].gen, 0);
}

int sn_host_join(void)
{
	struct sn_proc *p;

	if (me >= 0)
		return me;
	sn_host_lock();
	for (uint32_t i = 0; i < SN_PROCS && me < 0; i++) {
		uint32_t gen;

		p = &sn_shared->procs[i];
		gen = atomic_load(&p->gen);
		if (gen && !alive(p)) {
			reclaim(i, gen);
			gen = 0;
		}
		if (gen)
			continue;
		p->pid = getpid();
		p->started = start_time(p->pid);
		for (size_t k = 0; k < SN_PROCS / 64; k++)
			atomic_store(&p->inbox[k], 0);
		atomic_store(&p->sleeping, 0);
		atomic_store(&p->polled, 0);
		me_gen = ++sn_shared->next_gen;
		atomic_store(&p->gen, me_gen);
		me = (int)i;
	}
	sn_host_unlock();
	if (me < 0)
		sn_say("more than %d processes", SN_PROCS);
	return me < 0 ? -EAGAIN : me;
}

void sn_host_fork(enum sn_fork when)
{
	if (when == SN_BEFORE_FORK) {
		pthread_mutex_lock(&host_once);
		return;
	}
	if (when == SN_FORK_CHILD)
		me = -1;
	pthread_mutex_unlock(&host_once);
}

uint32_t sn_host_gen(void)
{
	return me_gen;
}

uint32_t sn_host_qpn_take(uint32_t dev)
{
	struct sn_qpn *q = sn_shared->devs[dev].qpns;
	uint64_t now = sn_now();
	uint32_t qpn = 0;

	sn_host_lock();
	for (uint32_t i = 0; i < SN_QPNS && !qpn; i++) {
		if (atomic_load(&q[i].owner) || (q[i].freed_at && q[i].freed_at + QPN_REST_NS > now))
			continue;
		atomic_store(&q[i].owner, sn_owner((uint32_t)me, me_gen));
		qpn = SN_QPN_FIRST + i;
	}
	sn_host_unlock();
	return qpn;
}

void sn_host_qpn_drop(uint32_t dev, uint32_t qpn)
{
	struct sn_qpn *q = &sn_shared->devs[dev].qpns[qpn - SN_QPN_FIRST];

	sn_host_lock();
	q->freed_at = sn_now();
	atomic_store(&q->owner, 0);
	sn_host_unlock();
}

bool sn_host_qpn_owner(uint32_t dev, uint32_t qpn, uint32_t *proc, uint32_t *gen)
{
	uint64_t owner;

	if (qpn < SN_QPN_FIRST || qpn >= SN_QPN_FIRST + SN_QPNS)
		return false;
	owner = atomic_load(&sn_shared->devs[dev].qpns[qpn - SN_QPN_FIRST].owner);
	*proc = (uint32_t)owner - 1;
	*gen = (uint32_t)(owner >> 32);
	return owner;
}

const struct sn_gid *sn_host_gid(uint32_t dev, uint32_t index)
{
	static const struct sn_gid none;
	struct sn_port *p = &sn_shared->devs[dev].port;
	uint8_t which = index < SN_GIDS ? atomic_load(&p->shown[index]) : 0;

	return which ? &p->gids[which - 1] : &none;
}

int sn_host_find_gid(const uint8_t raw[16])
{
	for (uint32_t i = 0; i < sn_shared->ndevs; i++)
		for (uint32_t k = 0; k < SN_GIDS; k++) {
			const struct sn_gid *g = sn_host_gid(i, k);

			if (g->valid && !memcmp(g->raw, raw, 16))
				return (int)i;
		}
	return -1;
}

/* As the numbers of the devices, and none is 0. */
int sn_host_find_lid(uint16_t lid)
{
	return lid && lid <= sn_shared->ndevs ? lid - 1 : -1;
}

uint16_t sn_host_lid(uint32_t dev)
{
	return sn_shared->infiniband ? (uint16_t)(dev + 1) : 0;
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "faults.h"
#include "wake.h"

static uint32_t heard; /* of the host's faults, in the order in which they happened */

static const struct {
	const char *name;
	enum ibv_event_type type;
} events[] = {
	{ "DEVICE_FATAL", IBV_EVENT_DEVICE_FATAL }, { "PORT_ACTIVE", IBV_EVENT_PORT_ACTIVE },
	{ "PORT_ERR", IBV_EVENT_PORT_ERR }, { "LID_CHANGE", IBV_EVENT_LID_CHANGE },
	{ "PKEY_CHANGE", IBV_EVENT_PKEY_CHANGE }, { "SM_CHANGE", IBV_EVENT_SM_CHANGE },
	{ "CLIENT_REREGISTER", IBV_EVENT_CLIENT_REREGISTER }, { "GID_CHANGE", IBV_EVENT_GID_CHANGE },
};

/* ---- the file ---- */

static bool number(const char *s, uint64_t max, char **end, uint64_t *v)
{
	if (*s < '0' || *s > '9')
		return false;
	errno = 0;
	*v = strtoull(s, end, 0);
	return !errno && *v <= max;
}

static bool whole_number(const char *s, uint64_t max, uint32_t *v)
{
	uint64_t n;
	char *end;

	if (!number(s, max, &end, &n) || *end)
		return false;
	*v = (uint32_t)n;
	return true;
}

/* "250ms", "1000p", "+250ms" */
static bool parse_at(const char *s, struct sn_fault *f)
{
	static const struct { const char *name; uint64_t ns; } units[] = {
		{ "p", 1 }, { "us", 1000 }, { "ms", 1000000 }, { "s", 1000000000 },
	};
	char *unit;

	f->after = *s == '+';
	if (!number(s + f->after, UINT32_MAX, &unit, &f->at))
		return false;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (!strcmp(unit, units[i].name)) {
			f->at *= units[i].ns;
			f->packets = !i;
			return !(f->packets && f->after);
		}
	return false;
}

/* "mlx5_1", "1" */
static bool parse_port(const char *s, uint32_t ndevs, struct sn_fault *f)
{
	return whole_number(strncmp(s, "mlx5_", 5) ? s : s + 5, ndevs - 1, &f->dev);
}

static bool parse_what(char **w, int n, struct sn_fault *f)
{
	if (n == 1 && !strcmp(w[0], "down")) {
		f->what = SN_FAULT_DOWN;
	} else if (n == 1 && !strcmp(w[0], "up")) {
		f->what = SN_FAULT_UP;
	} else if (n == 1 && !strcmp(w[0], "silence")) {
		f->what = SN_FAULT_SILENCE;
	} else if (n == 1 && !strcmp(w[0], "deaf")) {
		f->what = SN_FAULT_DEAF;
	} else if (n == 2 && !strcmp(w[0], "qp-error")) {
		f->what = SN_FAULT_QP_ERROR;
		f->a = 0; /* all */
		return !strcmp(w[1], "all") || (whole_number(w[1], 0xffffff, &f->a) && f->a);
	} else if (n == 3 && !strcmp(w[0], "gid-move")) {
		f->what = SN_FAULT_GID_MOVE;
		return whole_number(w[1], SN_GIDS - 1, &f->a) && whole_number(w[2], SN_GIDS - 1, &f->b) &&
		       f->a != f->b;
	} else if (n == 2 && !strcmp(w[0], "event")) {
		f->what = SN_FAULT_EVENT;
		for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
			if (!strcmp(w[1], events[i].name)) {
				f->a = events[i].type;
				return true;
			}
		return false;
	} else {
		return false;
	}
	return true;
}

static bool parse_line(char *line, uint32_t ndevs, struct sn_fault *f)
{
	char *w[6], *save = NULL;
	int n = 0;

	for (char *s = strtok_r(line, " \t\n", &save); s && n < 6; s = strtok_r(NULL, " \t\n", &save))
		w[n++] = s;
	return n >= 3 && n < 6 && parse_at(w[0], f) && parse_port(w[1], ndevs, f) && parse_what(w + 2, n - 2, f);
}

int sn_faults_read(struct sn_host *h, const char *path)
{
	FILE *file = fopen(path, "re");
	int line_no = 0, ret = 0;
	char line[256];

	if (!file) {
		ret = -errno;
		sn_say("%s: %s", path, strerror(-ret));
		return ret;
	}
	while (!ret && fgets(line, sizeof(line), file)) {
		line_no++;
		if (line[strspn(line, " \t\n")] == '\0' || line[0] == '#')
			continue;
		if (h->nfaults == SN_FAULTS) {
			sn_say("%s:%d: more than %d faults", path, line_no, SN_FAULTS);
			ret = -EINVAL;
		} else if (!parse_line(line, h->ndevs, &h->faults[h->nfaults++]) ||
			   (h->nfaults == 1 && h->faults[0].after)) {
			sn_say("%s:%d: not AT PORT WHAT, see scripts/softnic --help", path, line_no);
			ret = -EINVAL;
		}
	}
	fclose(file);
	return ret;
}

/* ---- what all see ---- */

static void change_port(const struct sn_fault *f)
{
	struct sn_port *p = &sn_shared->devs[f->dev].port;
	uint8_t gid;

	switch (f->what) {
	case SN_FAULT_DOWN:
		atomic_store(&p->dark, SN_DARK_DOWN);
		break;
	case SN_FAULT_SILENCE:
		atomic_fetch_or(&p->dark, SN_DARK_SILENT);
		break;
	case SN_FAULT_DEAF:
		atomic_fetch_or(&p->dark, SN_DARK_DEAF);
		break;
	case SN_FAULT_UP:
		atomic_store(&p->dark, 0);
		break;
	case SN_FAULT_GID_MOVE:
		gid = atomic_load(&p->shown[f->a]);
		/* none: somebody was killed in the middle of this */
		if (gid) {
			atomic_store(&p->shown[f->b], gid);
			atomic_store(&p->shown[f->a], 0);
		}
		break;
	default:
		return;
	}
	sn_sysfs_port(sn_shared, f->dev, sn_host_dir());
}

static void happen(struct sn_fault *f)
{
	uint32_t n;

	sn_host_lock();
	if (!atomic_load(&f->done)) {
		/* "up" after nothing but silence is no event */
		f->quiet = f->what == SN_FAULT_UP &&
			   !(atomic_load(&sn_shared->devs[f->dev].port.dark) & SN_DARK_DOWN);
		change_port(f);
		n = atomic_load(&sn_shared->nhappened);
		sn_shared->happened[n] = (uint32_t)(f - sn_shared->faults);
		atomic_store(&sn_shared->nhappened, n + 1);
		atomic_store(&f->when, sn_now());
		atomic_store(&f->done, 1);
	}
	sn_host_unlock();
	for (uint32_t i = 0; i < SN_PROCS; i++)
		if (atomic_load(&sn_shared->procs[i].gen))
			sn_wake(i);
}

void sn_faults_count(uint32_t dev)
{
	uint64_t n;

	if (!sn_shared->nfaults)
		return;
	n = 1 + atomic_fetch_add(&sn_shared->devs[dev].port.packets, 1);
	for (uint32_t i = 0; i < sn_shared->nfaults; i++) {
		struct sn_fault *f = &sn_shared->faults[i];

		if (f->packets && f->dev == dev && n >= f->at && !atomic_load(&f->done))
			happen(f);
	}
}

/* ---- what each process does ---- */

static void hear_of(const struct sn_fault *f)
{
	switch (f->what) {
	case SN_FAULT_DOWN:
		sn_event_all(f->dev, IBV_EVENT_PORT_ERR);
		break;
	case SN_FAULT_UP:
		if (!f->quiet)
			sn_event_all(f->dev, IBV_EVENT_PORT_ACTIVE);
		break;
	case SN_FAULT_EVENT:
		sn_event_all(f->dev, (enum ibv_event_type)f->a);
		break;
	case SN_FAULT_GID_MOVE:
		sn_event_all(f->dev, IBV_EVENT_GID_CHANGE);
		break;
	case SN_FAULT_QP_ERROR:
		sn_qp_break(f->dev, f->a);
		break;
	case SN_FAULT_SILENCE:
	case SN_FAULT_DEAF:
		break;
	}
}

void sn_faults_join(void)
{
	heard = atomic_load(&sn_shared->nhappened);
}

void sn_faults_run(uint64_t now, uint64_t *next)
{
	for (uint32_t i = 0; i < sn_shared->nfaults; i++) {
		struct sn_fault *f = &sn_shared->faults[i];
		uint64_t from = f->after ? atomic_load(&f[-1].when) : sn_shared->began;

		/* whoever makes the one before happen wakes all */
		if (f->packets || !from || atomic_load(&f->done))
			continue;
		if (from + f->at <= now)
			happen(f);
		else if (from + f->at < *next)
			*next = from + f->at;
	}
	while (heard != atomic_load(&sn_shared->nhappened))
		hear_of(&sn_shared->faults[sn_shared->happened[heard++]]);
}

// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "group.h"

void dp_printable(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || (unsigned char)*text >= 0x7f)
			*text = '?';
}

int dp_sysfs_line(char *buf, size_t len, const char *fmt, ...)
{
	char path[PATH_MAX];
	va_list ap;
	ssize_t n;
	int fd;

	buf[0] = '\0';
	va_start(ap, fmt);
	n = vsnprintf(path, sizeof(path), fmt, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= sizeof(path))
		return -ENAMETOOLONG;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	n = read(fd, buf, len - 1);
	if (n < 0)
		n = -errno;
	close(fd);
	if (n < 0)
		return (int)n;
	buf[n] = '\0';
	buf[strcspn(buf, "\n")] = '\0';
	dp_printable(buf);
	return 0;
}

static bool exists(const char *dir, const char *name)
{
	char path[PATH_MAX];

	return snprintf(path, sizeof(path), "%s/%s", dir, name) < (int)sizeof(path) && !access(path, F_OK);
}

/* "0c42:a103:0065:b21c" */
static uint64_t read_guid(const char *dev_dir)
{
	char text[64];
	uint64_t v = 0;
	int digits = 0;

	dp_sysfs_line(text, sizeof(text), "%s/sys_image_guid", dev_dir);
	for (const char *c = text; *c; c++) {
		if (*c == ':')
			continue;
		if (!isxdigit((unsigned char)*c))
			return 0;
		v = v << 4 | (uint64_t)(isdigit((unsigned char)*c) ? *c - '0' : tolower((unsigned char)*c) - 'a' + 10);
		digits++;
	}
	return digits == 16 ? v : 0;
}

/* The function number of a PCI address; -1: it is none. */
static int pci_function(const char *name)
{
	unsigned domain, bus, dev, fn;
	int end = -1;

	if (sscanf(name, "%x:%x:%x.%1u%n", &domain, &bus, &dev, &fn, &end) != 4 || end < 0 || name[end] || fn > 7)
		return -1;
	return (int)fn;
}

/* The kind and PCI function of a device, from what its "device" link leads to. */
static void read_parent(struct dp_port_fact *f, const char *dev_dir)
{
	char link[PATH_MAX], parent[PATH_MAX], class[32];
	const char *name;

	f->kind = DP_PORT_PHYSICAL;
	f->pci_function = -1;
	if (snprintf(link, sizeof(link), "%s/device", dev_dir) >= (int)sizeof(link) || !realpath(link, parent))
		return;
	name = strrchr(parent, '/') + 1;
	f->pci_function = pci_function(name);
	if (exists(parent, "physfn"))
		f->kind = DP_PORT_VF;
	else if (exists(parent, "sfnum") || strstr(name, ".sf.")) /* an auxiliary device as mlx5_core.sf.4 */
		f->kind = DP_PORT_SF;
	else if (!dp_sysfs_line(class, sizeof(class), "%s/class", parent) && strncmp(class, "0x02", 4))
		f->kind = DP_PORT_MANAGEMENT;
}

bool dp_port_netdev(const char *dev_dir, int port, char *name, size_t len)
{
	char path[PATH_MAX], text[32];
	struct dirent *e;
	bool found = false;
	DIR *d;

	if (!dp_sysfs_line(name, len, "%s/ports/%d/gid_attrs/ndevs/0", dev_dir, port) && name[0])
		return true;
	if (snprintf(path, sizeof(path), "%s/device/net", dev_dir) >= (int)sizeof(path))
		return false;
	d = opendir(path);
	while (d && !found && (e = readdir(d))) {
		if (e->d_name[0] == '.' || strlen(e->d_name) >= len)
			continue;
		if (!dp_sysfs_line(text, sizeof(text), "%s/%s/dev_port", path, e->d_name) && atoi(text) == port - 1) {
			strcpy(name, e->d_name);
			found = true;
		}
	}
	if (d)
		closedir(d);
	return found;
}

/* "pf0vf3", "pf0sf88", "c1pf0vf3": what the switch calls the port of a virtual or sub-function. */
static bool is_representor(const char *phys_port)
{
	const char *pf = strstr(phys_port, "pf");

	return pf && (strstr(pf, "vf") || strstr(pf, "sf"));
}

void dp_port_bond(const char *sysfs, const char *dev, const char *netdev, char *members, size_t len)
{
	dp_sysfs_line(members, len, "%s/class/net/%s/bonding/slaves", sysfs, netdev);
	/* mlx5_bond_0's netdev may be shown as the first member */
	if (!members[0] && strstr(dev, "bond"))
		dp_sysfs_line(members, len, "%s/class/net/%s/master/bonding/slaves", sysfs, netdev);
}

static int words(const char *text)
{
	int n = 0;

	for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
		text += strcspn(text, " ");
		n++;
	}
	return n;
}

static void read_port(struct dp_port_fact *f, const char *sysfs, const char *dev_dir)
{
	char text[256], netdev[64];

	dp_sysfs_line(text, sizeof(text), "%s/ports/%d/state", dev_dir, f->port);
	f->active = strstr(text, "ACTIVE") && !strstr(text, "DEFER"); /* "4: ACTIVE", "5: ACTIVE_DEFER" */
	dp_sysfs_line(text, sizeof(text), "%s/ports/%d/link_layer", dev_dir, f->port);
	f->ethernet = !strcmp(text, "Ethernet");
	if (!dp_port_netdev(dev_dir, f->port, netdev, sizeof(netdev)))
		return;
	dp_sysfs_line(f->phys_port, sizeof(f->phys_port), "%s/class/net/%s/phys_port_name", sysfs, netdev);
	dp_sysfs_line(f->phys_switch, sizeof(f->phys_switch), "%s/class/net/%s/phys_switch_id", sysfs, netdev);
	if (f->kind == DP_PORT_PHYSICAL && is_representor(f->phys_port))
		f->kind = DP_PORT_REPRESENTOR;
	dp_port_bond(sysfs, f->dev, netdev, text, sizeof(text));
	f->lag_ports = words(text) > 1 ? words(text) : 0;
}

static int read_device(const char *sysfs, const char *dev, struct dp_port_fact **facts, size_t *n)
{
	struct dp_port_fact f = { 0 }, *grown;
	char dev_dir[PATH_MAX], path[PATH_MAX];
	struct dirent *e;
	char *end;
	int ret = 0;
	DIR *d;

	memcpy(f.dev, dev, strnlen(dev, sizeof(f.dev) - 1));
	dp_printable(f.dev);
	/* what no list of ports could name: */
	if (strcmp(f.dev, dev) || strpbrk(dev, " :,;\"") ||
	    snprintf(dev_dir, sizeof(dev_dir), "%s/class/infiniband/%s", sysfs, dev) >= (int)sizeof(dev_dir) ||
	    snprintf(path, sizeof(path), "%s/ports", dev_dir) >= (int)sizeof(path))
		return 0;
	f.sys_image_guid = read_guid(dev_dir);
	read_parent(&f, dev_dir);
	d = opendir(path);
	if (!d)
		return 0; /* gone meanwhile, or not to be read: the others are still there */
	while ((e = readdir(d))) {
		unsigned long port = strtoul(e->d_name, &end, 10);

		if (!isdigit((unsigned char)e->d_name[0]) || *end || !port || port > UINT8_MAX)
			continue;
		grown = realloc(*facts, (*n + 1) * sizeof(**facts));
		if (!grown) {
			ret = -ENOMEM;
			break;
		}
		*facts = grown;
		grown[*n] = f;
		grown[*n].port = (int)port;
		read_port(&grown[*n], sysfs, dev_dir);
		++*n;
	}
	closedir(d);
	return ret;
}

int dp_port_facts_read(const char *sysfs, struct dp_port_fact **facts, size_t *n)
{
	char path[PATH_MAX];
	struct dirent *e;
	int ret = 0;
	DIR *d;

	if (!sysfs)
		sysfs = "/sys";
	*facts = NULL;
	*n = 0;
	if (snprintf(path, sizeof(path), "%s/class/infiniband", sysfs) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	d = opendir(path);
	if (!d)
		return -errno;
	while (!ret && (e = readdir(d)))
		if (e->d_name[0] != '.')
			ret = read_device(sysfs, e->d_name, facts, n);
	closedir(d);
	if (!ret && !*n)
		ret = -ENOENT;
	if (ret) {
		free(*facts);
		*facts = NULL;
		*n = 0;
	}
	return ret;
}

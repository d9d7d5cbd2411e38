// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* byname_main [-w OBJECT]... OBJECT WHAT...: loads the objects of -w, then asks the last one; see byname.c. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void *open_it(const char *path)
{
	void *h = dlopen(path, RTLD_NOW);

	if (!h)
		fprintf(stderr, "byname: %s\n", dlerror());
	return h;
}

int main(int argc, char **argv)
{
	int (*ask)(const char *);
	int i = 1;
	void *h;

	for (; i + 1 < argc && !strcmp(argv[i], "-w"); i += 2)
		if (!open_it(argv[i + 1]))
			return 2;
	h = i < argc ? open_it(argv[i++]) : NULL;
	ask = h ? (int (*)(const char *))dlsym(h, "byname") : NULL;
	if (!ask)
		return 2;
	for (; i < argc; i++)
		if (ask(argv[i]))
			return 1;
	return 0;
}

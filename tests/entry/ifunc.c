// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Three objects in one file. RESOLVER: a function that is chosen by a variable of the environment. BINDER: an object that
 * is linked with it, and so has the choice made while it is relocated, before any preloaded object is. Else a program.
 */
#include <stdlib.h>

int chosen(void);
int bound(void);

#if defined(RESOLVER)
static int one(void)
{
	return 1;
}

static int two(void)
{
	return 2;
}

static __attribute__((used)) int (*resolve(void))(void) /* clang does not count the use below */
{
	return getenv("HOME") ? one : two;
}

int chosen(void) __attribute__((ifunc("resolve")));
#elif defined(BINDER)
int bound(void)
{
	return chosen();
}
#else
int main(void)
{
	return bound();
}
#endif

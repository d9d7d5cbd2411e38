/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* How the unit tests and softnic's own end. */
#ifndef DUALPORT_TESTS_RUN_H
#define DUALPORT_TESTS_RUN_H

#include <check.h>
#include <stdlib.h>

/* Runs it, frees it; main()'s result. */
static inline int run_suite(Suite *s)
{
	SRunner *r = srunner_create(s);
	int failed;

	srunner_run_all(r, CK_ENV);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif

/* Checks for tests: silent when they pass, one closing line "N passed, N failed". */
#ifndef OCC_TESTS_CHECK_H
#define OCC_TESTS_CHECK_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int check_passed, check_failed;

/* CHECK(cond, "format", ...): the message says which row of which table failed. */
#define CHECK(cond, ...)                                                                           \
	do {                                                                                       \
		if (cond) {                                                                        \
			__atomic_add_fetch(&check_passed, 1, __ATOMIC_RELAXED);                    \
		} else if (__atomic_add_fetch(&check_failed, 1, __ATOMIC_RELAXED) <= 20) {         \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond);                 \
			fprintf(stderr, __VA_ARGS__);                                              \
			fputc('\n', stderr);                                                       \
		}                                                                                  \
	} while (0)

#define CHECK_NEAR(a, b, tol, ...) CHECK(fabs((double)(a) - (double)(b)) <= (tol), __VA_ARGS__)

/* The device under test: that of the environment (run-tests sets it where GPU code runs on the
 * CPU), else `usual`. */
static inline const char *check_device(const char *usual)
{
	const char *name = getenv("OCC_TEST_DEVICE");
	return name && *name ? name : usual;
}

/* Last statement of main: return check_done(); */
static inline int check_done(void)
{
	printf("%d passed, %d failed\n", check_passed, check_failed);
	return check_failed ? 1 : 0;
}

#endif

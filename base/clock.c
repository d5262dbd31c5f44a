/* POSIX's monotonic clock: no step when the time of day is set. */
#include "base/clock.h"

#include <time.h>

double occ_clock_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

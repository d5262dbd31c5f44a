/* The handler only sets a flag: saving is collective and happens at a step boundary. */
#include "trainer/stop.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t wanted;

static void on_signal(int sig)
{
	if (wanted)
		_exit(128 + sig);
	wanted = 1;
}

void occ_stop_install(void)
{
	struct sigaction a;
	memset(&a, 0, sizeof(a));
	a.sa_handler = on_signal;
	a.sa_flags = SA_RESTART;
	sigaction(SIGTERM, &a, NULL);
	sigaction(SIGUSR1, &a, NULL);
}

int occ_stop_wanted(double margin_s)
{
	const char *end = getenv("SLURM_JOB_END_TIME");
	if (wanted)
		return 1;
	return end && atoll(end) > 0 && (double)time(NULL) + margin_s > (double)atoll(end);
}

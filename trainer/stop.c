/* The handler only sets a flag: saving is collective and happens at a step boundary. */
#include "trainer/stop.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"

static volatile sig_atomic_t wanted, installed;
static volatile time_t first; /* when the first signal came */

static void on_signal(int sig)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (wanted && now.tv_sec > first + 5)
		_exit(128 + sig);
	if (!wanted)
		first = now.tv_sec;
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
	installed = 1;
}

int occ_stop_wanted(double margin_s)
{
	const char *end = getenv("SLURM_JOB_END_TIME");
	if (wanted)
		return 1;
	return installed && end && atoll(end) > 0 &&
	       (double)time(NULL) + margin_s > (double)atoll(end);
}

static void on_bus(int sig, siginfo_t *info, void *context)
{
	static const char line[] =
		"occ-train: a data, weights or checkpoint file became shorter while "
		"it was in use\n";
	(void)sig;
	(void)context;
	if (info->si_code != BUS_ADRERR)
		abort();
	ssize_t done = write(STDERR_FILENO, line, sizeof(line) - 1);
	(void)done;
	_exit(OCC_E_DATA);
}

void occ_process_guard(void)
{
	struct sigaction a;
	for (int fd = 0; fd <= 2; fd++) /* read-only, so that writing still fails */
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd)
			_exit(OCC_E_BUG);
	memset(&a, 0, sizeof(a));
	a.sa_sigaction = on_bus;
	a.sa_flags = SA_SIGINFO;
	sigaction(SIGBUS, &a, NULL);
	signal(SIGXFSZ, SIG_IGN);
}

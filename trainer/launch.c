/* Launchers are recognised by what they put into the environment. */
#include "trainer/launch.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trainer/config.h"
#include "trainer/stop.h"

enum transport { SELF, THREAD, MPI };

/* The first of some variables that holds a positive number; 0 if none does. */
static int number_of(const char *const *names)
{
	for (; *names; names++) {
		const char *v = getenv(*names);
		if (v && atoi(v) > 0)
			return atoi(v);
	}
	return 0;
}

static int under_launcher(void)
{
	static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
					    "SLURM_STEP_NUM_TASKS", NULL};
	return number_of(names) > 1 || getenv("OMPI_COMM_WORLD_RANK") || getenv("PMIX_RANK");
}

int occ_launch_speaks(void)
{
	const char *rank = getenv("OMPI_COMM_WORLD_RANK");
	if (!rank)
		rank = getenv("PMIX_RANK");
	if (!rank && getenv("SLURM_STEP_NUM_TASKS"))
		rank = getenv("SLURM_PROCID");
	return !rank || atoi(rank) == 0;
}

int occ_launch_refuse(const struct occ_err *e)
{
	if (occ_launch_speaks())
		occ_err_print(e);
	else
		occ_comm_hold(2); /* the launcher then ends it, with the speaker */
	return e->code;
}

static int choose(const struct occ_args *a, const char *wish, enum transport *t, struct occ_err *e)
{
	int64_t threads = a->mode == OCC_PLAN ? 0 : a->ranks; /* plan's are not of this process */
	if (!strcmp(wish, "thread") || (!strcmp(wish, "auto") && threads > 0))
		*t = THREAD;
	else if (!strcmp(wish, "mpi") || !strcmp(wish, "nccl") || under_launcher())
		*t = MPI;
	else
		*t = SELF;
	if (threads > 0 && *t == MPI && !under_launcher())
		return occ_fail(e, OCC_E_CONFIG,
				"parallel.transport %s joins processes: start them with mpirun or "
				"srun, without --ranks, which makes threads of one",
				wish);
	if (threads > 0 && (*t == MPI || under_launcher()))
		return occ_fail(e, OCC_E_CONFIG,
				"--ranks makes ranks as threads of one process; under a launcher "
				"it counts them");
	if (*t == THREAD && under_launcher())
		return occ_fail(e, OCC_E_LAUNCH,
				"parallel.transport thread makes its ranks in one process: start "
				"it without mpirun or srun");
	if (threads > 1024)
		return occ_fail(e, OCC_E_CONFIG, "--ranks %lld: at most 1024 rank threads",
				(long long)threads);
	return 0;
}

/* libgomp reads the policy when it is loaded, before main. Threads that spin while they wait cost
 * up to 6x as soon as anything else runs on their cores, another rank or a browser. Set once, then
 * executed again; OMP_WAIT_POLICY=active in the environment wins. */
static void wait_passively(char **argv)
{
	char self[4096]; /* by its own name, so that ps and pkill know the program */
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (n <= 0 || getenv("OMP_WAIT_POLICY"))
		return;
	self[n] = '\0';
	setenv("OMP_WAIT_POLICY", "passive", 1);
	execv(self, argv); /* where it fails, the run is slower and right all the same */
}

int occ_launch(const struct occ_args *a, int (*body)(struct occ_comm *, void *), char **argv)
{
	struct occ_config c;
	struct occ_err ignored = {0}, e = {0};
	enum transport t;
	int ok = !occ_config_load(&c, a->config, a->sets, a->nsets, &ignored);
	double timeout = ok ? c.train.timeout_s : 60;
	int saves = ok && a->mode == OCC_TRAIN && c.checkpoint.dir[0];
	int bad = choose(a, ok && a->mode != OCC_PLAN ? c.parallel.transport : "auto", &t, &e);
	occ_config_release(&c);
	if (bad)
		return occ_launch_refuse(&e);
	wait_passively(argv);
	if (saves) /* from here on a stop is heard, also while the ranks meet */
		occ_stop_install();
	if (t == THREAD)
		return occ_comm_run_threads(a->ranks > 0 ? (int)a->ranks : 1, timeout, body,
					    (void *)(uintptr_t)a);
	struct occ_comm *world =
		t == MPI ? occ_comm_open_mpi(timeout, &e) : occ_comm_open_self(timeout);
	if (!world)
		return occ_launch_refuse(&e);
	int code = body(world, (void *)(uintptr_t)a);
	occ_comm_close(world);
	return code;
}

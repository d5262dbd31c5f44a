/* How ranks end: each scenario in a process of its own, its exit code and the one line that it
 * says. faults mpi SCENARIO: that scenario on the world of mpirun, for tests/cli/transports.sh.
 * TIME: 60 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parallel/comm.h"
#include "tests/check.h"

/* Rank 2 sleeps while rank 0 waits for it and the others wait for rank 0. */
static void stuck(struct occ_comm *c)
{
	if (c->rank == 2)
		sleep(20);
	occ_comm_barrier(c);
}

/* Each waits for the next: nobody is silent. */
static void circle(struct occ_comm *c)
{
	struct occ_req r = {0};
	int x;
	occ_comm_post_recv(c, &x, sizeof(x), (c->rank + 1) % c->size, OCC_TAG_GRAD, &r);
	occ_comm_wait(c, &r);
}

/* Groups wait as well: rank 3 is silent in a group of the odd ranks. */
static void group(struct occ_comm *c)
{
	struct occ_comm *s = c->ops->split(c, c->rank & 1, 0);
	if (c->rank == 3)
		sleep(20);
	occ_comm_barrier(s);
	occ_comm_barrier(c);
}

/* A send too long for anybody to hold, and nobody who takes it. */
static void untaken(struct occ_comm *c)
{
	static char x[1 << 20];
	struct occ_req r = {0};
	if (c->rank == 1)
		sleep(20);
	if (c->rank)
		occ_comm_barrier(c);
	occ_comm_post_send(c, x, sizeof(x), 1, OCC_TAG_ACT, &r);
	occ_comm_wait(c, &r);
}

static void dies(struct occ_comm *c)
{
	if (c->rank == 1)
		occ_die(OCC_E_NUMERIC, "the loss is not a number");
	occ_comm_barrier(c);
}

/* Both ends disagree on how long a message is. */
static void sizes(struct occ_comm *c)
{
	char x[8] = "";
	struct occ_req r = {0};
	if (c->rank == 0)
		occ_comm_post_recv(c, x, 8, 1, OCC_TAG_TEST, &r);
	if (c->rank == 1)
		occ_comm_post_send(c, x, 4, 0, OCC_TAG_TEST, &r);
	occ_comm_wait(c, &r);
	occ_comm_barrier(c);
}

static void twice(struct occ_comm *c)
{
	char x[8];
	struct occ_req r = {0};
	occ_comm_post_recv(c, x, 8, 0, OCC_TAG_TEST, &r);
	occ_comm_post_recv(c, x, 8, 0, OCC_TAG_TEST, &r);
}

static const struct scenario {
	const char *name;
	void (*run)(struct occ_comm *c);
	int code;
	const char *says; /* in its one line */
} scenarios[] = {
	{"stuck", stuck, 7, "rank 0: rank 2 sent nothing for 0.3 s (tag agree"},
	{"circle", circle, 7, "rank 0: rank 1 sent nothing for 0.3 s (tag grad"},
	{"group", group, 7, "rank 1: rank 3 sent nothing for 0.3 s (tag agree"},
	{"untaken", untaken, 7, "rank 0: rank 1 took nothing for 0.3 s (tag act, 1048576 bytes"},
	{"dies", dies, 6, "rank 1: the loss is not a number"},
	{"sizes", sizes, 70, "rank 1 sen"},
	{"twice", twice, 70, "request posted twice"},
};
enum { SCENARIOS = sizeof(scenarios) / sizeof(scenarios[0]) };

static int body(struct occ_comm *c, void *arg)
{
	const struct scenario *s = arg;
	char place[32];
	snprintf(place, sizeof(place), "rank %d", c->rank);
	occ_err_place(place);
	s->run(c);
	return 0;
}

/* Standard error of run() in a child; returns its exit code. */
static int child(int (*run)(const void *arg), const void *arg, char *said, size_t size)
{
	int pipe_of[2], status;
	size_t n = 0;
	ssize_t got;
	if (pipe(pipe_of))
		return -1;
	pid_t pid = fork();
	if (pid == 0) {
		dup2(pipe_of[1], STDERR_FILENO);
		_exit(run(arg));
	}
	close(pipe_of[1]);
	while ((got = read(pipe_of[0], said + n, size - 1 - n)) > 0)
		n += (size_t)got;
	said[n] = '\0';
	close(pipe_of[0]);
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int on_threads(const void *arg)
{
	struct scenario s = *(const struct scenario *)arg;
	return occ_comm_run_threads(4, 0.3, body, &s);
}

static int one_line(const char *text)
{
	const char *end = strchr(text, '\n');
	return end && end[1] == '\0';
}

static void check_threads(const struct scenario *s)
{
	char said[4096];
	int code = child(on_threads, s, said, sizeof(said));
	CHECK(code == s->code && one_line(said) && strstr(said, s->says), "%s: exit %d, said '%s'",
	      s->name, code, said);
}

/* srun that made N worlds of one rank; without MPI in the build it is refused anyway. */
static int open_mpi(const void *arg)
{
	struct occ_err e = {0};
	(void)arg;
	unsetenv("OMPI_COMM_WORLD_SIZE");
	setenv("SLURM_STEP_NUM_TASKS", "4", 1);
	if (occ_comm_open_mpi(5, &e))
		return 0;
	occ_err_print(&e);
	return e.code;
}

static void check_srun(void)
{
	char said[4096];
	int code = child(open_mpi, NULL, said, sizeof(said));
	int no_mpi = code == OCC_E_CONFIG && strstr(said, "no MPI");
	int alone = code == OCC_E_LAUNCH && strstr(said, "srun --mpi=pmix -n 4") &&
		    strstr(said, "mpirun -n 4");
	CHECK(one_line(said) && (no_mpi || alone), "srun's singletons: exit %d, said '%s'", code,
	      said);
}

static int run_mpi(const char *name)
{
	struct occ_err e = {0};
	struct occ_comm *c = occ_comm_open_mpi(0.3, &e);
	for (int i = 0; c && i < SCENARIOS; i++)
		if (strcmp(scenarios[i].name, name) == 0) {
			struct scenario s = scenarios[i];
			body(c, &s);
		}
	occ_comm_close(c);
	return e.code;
}

int main(int argc, char **argv)
{
	if (argc > 2)
		return run_mpi(argv[2]);
	for (int i = 0; i < SCENARIOS; i++)
		check_threads(&scenarios[i]);
	check_srun();
	return check_done();
}

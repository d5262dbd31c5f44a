/* Ranks as MPI processes: the only file that knows mpi.h. A long message travels in several parts
 * at once; how many is a pure function of its size, so both ends agree. MPI's own collectives have
 * no time limit: ours, which has one, goes before each.
 *
 * MPI moves messages only while it is called, and this thread computes for long times; so where
 * ranks are on several nodes a ticker calls it meanwhile. One thread at a time is in MPI: whoever
 * holds the gate. */
#include "parallel/comm.h"

#include <limits.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "parallel/ticker.h"

/* Naps after so many yields: soon where ranks share cores, later where one would only be late. */
enum { PART_BYTES = 256 << 10, CROWDED = 200, ROOMY = 5000, NAP_NS = 20 * 1000 };
enum { TICK_US = 500 };

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static int under_way; /* parts of messages; within the gate */
static struct occ_ticker *ticker;

static void enter(void)
{
	pthread_mutex_lock(&gate);
}

static void leave(void)
{
	pthread_mutex_unlock(&gate);
}

/* Any call moves what is under way; this one finds nothing. */
static void tick(void)
{
	int found;
	if (pthread_mutex_trylock(&gate))
		return;
	if (under_way)
		MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE);
	leave();
}

struct mpi_comm {
	MPI_Comm comm;
	int yields, patience; /* since something completed; how many before naps */
};

_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "a request fits a part");

static MPI_Comm handle(const struct occ_comm *c)
{
	return ((struct mpi_comm *)c->impl)->comm;
}

/* The rank that caused a failure is heard first: it did not have to wait. */
static void must(int e, const char *call)
{
	char why[MPI_MAX_ERROR_STRING] = "";
	int n;
	if (e == MPI_SUCCESS)
		return;
	occ_comm_hold(2);
	MPI_Error_string(e, why, &n);
	occ_die(OCC_E_COMM, "%s: %s", call, why);
}

static int parts_of(size_t bytes)
{
	size_t n = bytes / PART_BYTES;
	return n < 1 ? 1 : n > OCC_REQ_PARTS ? OCC_REQ_PARTS : (int)n;
}

/* Bytes before part i. */
static size_t part_begin(const struct occ_req *r, int i)
{
	size_t n = (size_t)r->nparts, k = (size_t)i;
	return r->bytes / n * k + r->bytes % n * k / n;
}

static int part_size(const struct occ_req *r, int i)
{
	return (int)(part_begin(r, i + 1) - part_begin(r, i));
}

static void cut(struct occ_req *r)
{
	r->nparts = parts_of(r->bytes);
	if (r->bytes / (size_t)r->nparts >= INT_MAX)
		occ_die(OCC_E_COMM, "message of %zu bytes: at most %zu at once", r->bytes,
			(size_t)OCC_REQ_PARTS * INT_MAX);
}

static void post_send(struct occ_comm *c, const void *x, size_t bytes, int peer, enum occ_tag tag,
		      struct occ_req *r)
{
	(void)bytes;
	cut(r);
	enter();
	under_way += r->nparts;
	for (int i = 0; i < r->nparts; i++) {
		MPI_Request q;
		must(MPI_Isend((const char *)x + part_begin(r, i), part_size(r, i), MPI_BYTE, peer,
			       (int)tag, handle(c), &q),
		     "MPI_Isend");
		memcpy(&r->part[i], &q, sizeof(q));
	}
	leave();
}

static void post_recv(struct occ_comm *c, void *x, size_t bytes, int peer, enum occ_tag tag,
		      struct occ_req *r)
{
	(void)bytes;
	cut(r);
	enter();
	under_way += r->nparts;
	for (int i = 0; i < r->nparts; i++) {
		MPI_Request q;
		must(MPI_Irecv((char *)x + part_begin(r, i), part_size(r, i), MPI_BYTE, peer,
			       (int)tag, handle(c), &q),
		     "MPI_Irecv");
		memcpy(&r->part[i], &q, sizeof(q));
	}
	leave();
}

/* All parts are there: a shorter message than expected is our bug. */
static void check_sizes(const struct occ_req *r, const MPI_Status *status)
{
	for (int i = 0; r->dst && i < r->nparts; i++) {
		int got = 0;
		MPI_Get_count(&status[i], MPI_BYTE, &got);
		occ_check(got == part_size(r, i), "rank %d sent %d bytes of %d (tag %d)",
			  r->comm->world[r->peer], got, part_size(r, i), (int)r->tag);
	}
}

static int test(struct occ_comm *c, struct occ_req *r)
{
	struct mpi_comm *m = c->impl;
	MPI_Request q[OCC_REQ_PARTS];
	MPI_Status status[OCC_REQ_PARTS];
	int done = 0;
	for (int i = 0; i < r->nparts; i++)
		memcpy(&q[i], &r->part[i], sizeof(q[i]));
	enter();
	int e = MPI_Testall(r->nparts, q, &done, status);
	under_way -= done ? r->nparts : 0;
	leave();
	for (int i = 0; e == MPI_ERR_IN_STATUS && i < r->nparts; i++)
		if (status[i].MPI_ERROR != MPI_ERR_PENDING)
			must(status[i].MPI_ERROR, r->dst ? "receive" : "send");
	must(e, "MPI_Testall");
	for (int i = 0; i < r->nparts; i++)
		memcpy(&r->part[i], &q[i], sizeof(q[i]));
	if (!done)
		return 0;
	m->yields = 0;
	check_sizes(r, status);
	return 1;
}

/* Yields at first; then naps, so that a rank that computes gets the core. */
static void idle(struct occ_comm *c)
{
	struct mpi_comm *m = c->impl;
	if (m->yields < m->patience) {
		m->yields++;
		sched_yield();
		return;
	}
	nanosleep(&(struct timespec){0, NAP_NS}, NULL);
}

static int node(struct occ_comm *c)
{
	MPI_Comm near;
	int lowest = c->rank;
	occ_comm_barrier(c);
	enter();
	must(MPI_Comm_split_type(handle(c), MPI_COMM_TYPE_SHARED, c->rank, MPI_INFO_NULL, &near),
	     "MPI_Comm_split_type");
	must(MPI_Bcast(&lowest, 1, MPI_INT, 0, near), "MPI_Bcast");
	must(MPI_Comm_free(&near), "MPI_Comm_free");
	leave();
	return lowest;
}

/* Ranks of this node. */
static int neighbours(void)
{
	MPI_Comm near;
	int ranks;
	must(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &near),
	     "MPI_Comm_split_type");
	must(MPI_Comm_size(near, &ranks), "MPI_Comm_size");
	must(MPI_Comm_free(&near), "MPI_Comm_free");
	return ranks;
}

/* More ranks of this node than the cores that they may use together, as far as one of them can see.
 */
static int patience_of(int ranks)
{
	cpu_set_t cores;
	int mine = 1;
	if (sched_getaffinity(0, sizeof(cores), &cores) == 0)
		mine = CPU_COUNT(&cores);
	return ranks > mine ? CROWDED : ROOMY;
}

static void abort_mpi(int code)
{
	MPI_Abort(MPI_COMM_WORLD, code);
}

static struct occ_comm *split(struct occ_comm *c, int color, int key);

static void close_mpi(struct occ_comm *c)
{
	struct mpi_comm *m = c->impl;
	if (m->comm == MPI_COMM_WORLD) {
		occ_comm_barrier(c);
		occ_err_on_abort(NULL);
		occ_ticker_close(ticker);
		ticker = NULL;
		MPI_Finalize();
	} else {
		enter();
		MPI_Comm_free(&m->comm);
		leave();
	}
	occ_free(m);
}

static const struct occ_comm_ops mpi_ops = {
	.name = "mpi",
	.post_send = post_send,
	.post_recv = post_recv,
	.test = test,
	.idle = idle,
	.split = split,
	.node = node,
	.close = close_mpi,
	.abort = abort_mpi,
};

static struct occ_comm *wrap(MPI_Comm comm, double timeout_s, int patience)
{
	struct occ_comm *c = occ_alloc(1, sizeof(*c));
	struct mpi_comm *m = occ_alloc(1, sizeof(*m));
	m->comm = comm;
	m->patience = patience;
	c->ops = &mpi_ops;
	c->impl = m;
	c->root = c;
	c->timeout_s = timeout_s;
	must(MPI_Comm_rank(comm, &c->rank), "MPI_Comm_rank");
	must(MPI_Comm_size(comm, &c->size), "MPI_Comm_size");
	c->world = occ_alloc((size_t)c->size, sizeof(*c->world));
	return c;
}

static struct occ_comm *split(struct occ_comm *c, int color, int key)
{
	MPI_Comm comm;
	int me = c->world[c->rank];
	struct occ_comm *s = NULL;
	occ_comm_barrier(c);
	enter();
	must(MPI_Comm_split(handle(c), color < 0 ? MPI_UNDEFINED : color, key, &comm),
	     "MPI_Comm_split");
	if (color >= 0) {
		s = wrap(comm, c->timeout_s, ((struct mpi_comm *)c->impl)->patience);
		must(MPI_Allgather(&me, 1, MPI_INT, s->world, 1, MPI_INT, comm), "MPI_Allgather");
	}
	leave();
	if (!s)
		return NULL;
	s->root = c->root;
	s->node_of = c->node_of;
	return s;
}

static int tasks_of_step(void)
{
	const char *n = getenv("SLURM_STEP_NUM_TASKS");
	return n && !getenv("OMPI_COMM_WORLD_SIZE") ? atoi(n) : 0;
}

/* srun without a process manager that MPI knows starts N separate worlds of one rank. */
static int refuse_singletons(struct occ_err *e)
{
	int n = tasks_of_step();
	return occ_fail(
		e, OCC_E_LAUNCH,
		"srun started %d tasks but MPI sees one rank, so each would train alone: use "
		"`srun --mpi=pmix -n %d occ-train ...`, or `mpirun -n %d occ-train ...` inside "
		"salloc or sbatch",
		n, n, n);
}

struct occ_comm *occ_comm_open_mpi(double timeout_s, struct occ_err *e)
{
	int level, alone = tasks_of_step() > 1;
	if (alone && !getenv("PMIX_RANK") && !getenv("PMI_RANK")) {
		refuse_singletons(
			e); /* before MPI starts: it would end the task with a page of text */
		return NULL;
	}
	setenv("OMPI_MCA_mpi_yield_when_idle", "1",
	       0); /* else 5 x slower where ranks exceed cores */
	setenv("OMPI_MCA_btl_tcp_flags", "1",
	       0); /* else two that send at each other get half a line */
	must(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
	must(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
	int near = neighbours();
	struct occ_comm *c = wrap(MPI_COMM_WORLD, timeout_s, patience_of(near));
	for (int r = 0; r < c->size; r++)
		c->world[r] = r;
	if (alone && c->size == 1) {
		refuse_singletons(e);
		occ_comm_close(c);
		return NULL;
	}
	occ_err_on_abort(abort_mpi);
	if (level >= MPI_THREAD_SERIALIZED && near < c->size)
		ticker = occ_ticker_open(tick, TICK_US);
	return c;
}

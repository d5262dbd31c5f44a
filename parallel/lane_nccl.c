/* Lanes by NCCL: the only file that knows nccl.h. One communicator a lane. All calls are
 * non-blocking: whatever NCCL says is in progress is asked for again until the time limit. */
#include <nccl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cuda.h"
#include "base/mem.h"
#include "parallel/lane.h"
#include "parallel/ticker.h"

struct occ_lane {
	ncclComm_t nccl;
	struct occ_comm *world; /* borrowed, as what follows */
	struct occ_device *dev;
	const char *what;
	double timeout_s;
	int peer; /* world rank of a pair's other end; else the world's size */
	int is_pair;
	cudaStream_t own, at; /* of a pair; where the group in hand goes */
	cudaEvent_t before;   /* of a pair: what its group waits for */
	void *last;           /* mark: the end of the last group */
	struct occ_watch watch;
};

int occ_lane_built(void)
{
	return 1;
}

/* The lowest two ranks of c that have one GPU: 1, and those ranks. */
static int twins(const struct occ_comm *c, const char *unit, size_t each, int *a, int *b)
{
	for (*a = 0; *a < c->size; ++*a)
		for (*b = *a + 1; *b < c->size; ++*b)
			if (!strcmp(unit + (size_t)*a * each, unit + (size_t)*b * each))
				return 1;
	return 0;
}

/* Tests on a machine with one GPU: OCC_NCCL_SHARE=1 leaves it to NCCL whether ranks may share one,
 * which it allows them if each says another NCCL_HOSTID. */
static int may_share(void)
{
	const char *e = getenv("OCC_NCCL_SHARE");
	return e && !strcmp(e, "1");
}

/* Everybody's units, in the order of ranks. */
static char *gather_units(struct occ_comm *c, const struct occ_device *d)
{
	size_t each = sizeof(d->unit);
	char *unit = occ_alloc((size_t)c->size, each);
	size_t *bytes = occ_alloc((size_t)c->size, sizeof(*bytes));
	for (int r = 0; r < c->size; r++)
		bytes[r] = each;
	memcpy(unit + (size_t)c->rank * each, d->unit, each);
	occ_comm_gather(c, unit, bytes);
	occ_free(bytes);
	return unit;
}

/* Each transfer would be waited for when it is enqueued, at both ends at once. */
static int blocks(struct occ_comm *c)
{
	const char *e = getenv("CUDA_LAUNCH_BLOCKING");
	int64_t any = e && *e && strcmp(e, "0") != 0;
	occ_comm_max_int64(c, &any, 1);
	return any != 0;
}

int occ_lane_serves(struct occ_comm *c, struct occ_device *d, struct occ_err *e)
{
	struct occ_err ignored = {0};
	size_t each = sizeof(d->unit);
	int a, b, none = 0;
	e = e ? e : &ignored;
	if (strcmp(c->ops->name, "mpi") != 0) {
		occ_fail(e, OCC_E_LAUNCH,
			 "parallel.transport nccl: ranks must be processes, started by mpirun or "
			 "srun");
		return 0;
	}
	char *unit = gather_units(c, d);
	for (int r = 0; r < c->size; r++)
		none |= !unit[(size_t)r * each];
	if (blocks(c))
		occ_fail(e, OCC_E_LAUNCH,
			 "parallel.transport nccl: not with CUDA_LAUNCH_BLOCKING in the "
			 "environment");
	else if (none)
		occ_fail(e, OCC_E_LAUNCH, "parallel.transport nccl: some rank has no GPU");
	else if (!may_share() && twins(c, unit, each, &a, &b))
		occ_fail(e, OCC_E_LAUNCH,
			 "parallel.transport nccl: ranks %d and %d have one GPU, %s: start at most "
			 "as "
			 "many ranks on a node as it has GPUs, or leave the transport to \"auto\"",
			 c->world[a], c->world[b], unit + (size_t)a * each);
	occ_free(unit);
	return e->code == 0;
}

/* The rank that caused it speaks first, or else one of those that noticed. The end of the processes
 * ends the communicators: ncclCommAbort may wait for one whose kernel waits for a peer that is
 * gone. */
static void fail(struct occ_lane *l, ncclResult_t r) __attribute__((noreturn));
static void fail(struct occ_lane *l, ncclResult_t r)
{
	const char *more = l->nccl ? ncclGetLastError(l->nccl) : "";
	char why[256];
	snprintf(why, sizeof(why), "%s%s%s", ncclGetErrorString(r), more && *more ? ": " : "",
		 more ? more : "");
	occ_comm_hold(1);
	occ_comm_compare_notes(l->world, l->world->size);
	occ_die(OCC_E_COMM, "NCCL, %s: %s", l->what, why);
}

static void late(struct occ_lane *l) __attribute__((noreturn));
static void late(struct occ_lane *l)
{
	occ_comm_compare_notes(l->world, l->peer);
	occ_die(OCC_E_COMM, "NCCL, %s: nothing moved for %g s: a rank is gone or stuck", l->what,
		l->timeout_s);
}

/* Until NCCL is done with the call in hand. */
static void settle(struct occ_lane *l, ncclResult_t r)
{
	double begin = occ_clock_ms();
	while (r == ncclInProgress) {
		ncclResult_t e = ncclCommGetAsyncError(l->nccl, &r);
		if (e != ncclSuccess)
			fail(l, e);
		if (r != ncclInProgress)
			break;
		if (occ_clock_ms() - begin > 1e3 * l->timeout_s)
			late(l);
		sched_yield();
	}
	if (r != ncclSuccess)
		fail(l, r);
}

static void look(void *self, double waited_ms)
{
	struct occ_lane *l = self;
	ncclResult_t r = ncclSuccess, e = ncclCommGetAsyncError(l->nccl, &r);
	if (e != ncclSuccess || (r != ncclSuccess && r != ncclInProgress))
		fail(l, e != ncclSuccess ? e : r);
	if (waited_ms > 1e3 * l->timeout_s && cudaEventQuery(l->last) == cudaErrorNotReady)
		late(l);
}

/* ---- Who looks after a host that is inside a call. One device a process has lanes. ---- */

enum { GUARD_US = 200 * 1000 };

static struct {
	struct occ_ticker *ticker;
	struct occ_comm *world;
	struct occ_device *dev;
	int lanes, on; /* on: atomic */
	int64_t beats;
	double last, waited; /* ms */
} guard;

static void look_after_host(void)
{
	int64_t beats = occ_cuda_beats(guard.dev);
	double now = occ_clock_ms(), past = now - guard.last;
	int on = __atomic_load_n(&guard.on, __ATOMIC_ACQUIRE);
	guard.last = now;
	guard.waited += past > 1e3 ? 0 : past; /* this process was stopped */
	if (!on || beats != guard.beats)
		guard.waited = 0;
	guard.beats = beats;
	if (guard.waited < 1.5e3 * guard.world->timeout_s)
		return;
	occ_comm_compare_notes(guard.world, guard.world->size);
	occ_die(OCC_E_COMM,
		"NCCL, rank %d: a call of CUDA did not return for %.0f s: a rank is gone or stuck",
		guard.world->rank, guard.waited / 1e3);
}

void occ_lane_guard(int on)
{
	__atomic_store_n(&guard.on, on, __ATOMIC_RELEASE);
}

static void guard_open(struct occ_comm *world, struct occ_device *d)
{
	if (guard.lanes++)
		return;
	guard.world = world;
	guard.dev = d;
	guard.last = occ_clock_ms();
	guard.ticker = occ_ticker_open(look_after_host, GUARD_US);
}

static void guard_close(void)
{
	if (--guard.lanes)
		return;
	occ_ticker_close(guard.ticker);
	guard.ticker = NULL;
}

/* A transfer holds a multiprocessor for each of its channels while it waits for the other end, so
 * between stages it is given few. How few are enough has not been measured. */
enum { PAIR_CHANNELS = 4 };

static struct occ_lane *start(struct occ_comm *world, struct occ_device *d, const ncclUniqueId *id,
			      int size, int rank, int is_pair, const char *what)
{
	struct occ_lane *l = occ_alloc(1, sizeof(*l));
	ncclConfig_t conf = NCCL_CONFIG_INITIALIZER;
	conf.blocking = 0;
	if (is_pair) {
		conf.minCTAs = 1;
		conf.maxCTAs = PAIR_CHANNELS;
	}
	l->is_pair = is_pair;
	l->world = world;
	l->dev = d;
	l->what = what;
	l->timeout_s = world->timeout_s;
	l->peer = world->size;
	l->last = d->ops->mark_open(d);
	settle(l, ncclCommInitRankConfig(&l->nccl, size, *id, rank, &conf));
	l->watch = (struct occ_watch){look, l, d->watch};
	d->watch = &l->watch;
	guard_open(world, d);
	return l;
}

/* NCCL joins two ranks when they first exchange something, and both wait for it. A receive that is
 * posted ahead would wait for a rank that waits for this one; so all meet here, once. */
static void greet(struct occ_lane *l, int size, int rank)
{
	char *d_x = l->dev->ops->alloc(l->dev, (size_t)size * 2 * sizeof(float));
	occ_lane_begin(l, NULL);
	for (int r = 0; r < size; r++) {
		if (r == rank)
			continue;
		occ_lane_send(l, d_x + (size_t)rank * sizeof(float), sizeof(float), r);
		occ_lane_recv(l, d_x + (size_t)(size + r) * sizeof(float), sizeof(float), r);
	}
	occ_lane_end(l, NULL);
	l->dev->ops->after(l->dev, l->last);
	l->dev->ops->sync(l->dev);
	l->dev->ops->free(l->dev, d_x);
}

static ncclUniqueId new_id(const char *what)
{
	ncclUniqueId id;
	ncclResult_t r = ncclGetUniqueId(&id);
	if (r != ncclSuccess)
		occ_die(OCC_E_COMM, "NCCL, %s: %s", what, ncclGetErrorString(r));
	return id;
}

struct occ_lane *occ_lane_open(struct occ_comm *c, struct occ_device *d, const char *what)
{
	struct occ_traffic *t = c->traffic;
	ncclUniqueId id;
	memset(&id, 0, sizeof(id));
	if (c->rank == 0)
		id = new_id(what);
	c->traffic = NULL; /* no part of a step */
	occ_comm_bcast(c, &id, sizeof(id), 0);
	c->traffic = t;
	struct occ_lane *l = start(c->root, d, &id, c->size, c->rank, 0, what);
	greet(l, c->size, c->rank);
	return l;
}

struct occ_lane *occ_lane_open_pair(struct occ_comm *world, struct occ_device *d, int peer,
				    const char *what)
{
	struct occ_req r = {0};
	ncclUniqueId id;
	int rank = world->rank > peer;
	memset(&id, 0, sizeof(id));
	if (rank == 0) {
		id = new_id(what);
		occ_comm_post_send(world, &id, sizeof(id), peer, OCC_TAG_COLL, &r);
	} else {
		occ_comm_post_recv(world, &id, sizeof(id), peer, OCC_TAG_COLL, &r);
	}
	occ_comm_wait(world, &r);
	struct occ_lane *l = start(world, d, &id, 2, rank, 1, what);
	l->peer = peer;
	occ_cuda_must(occ_cuda_stream_open(&l->own, 1), "cudaStreamCreateWithPriority");
	l->before = d->ops->mark_open(d);
	greet(l, 2, rank);
	return l;
}

static void unwatch(struct occ_lane *l)
{
	struct occ_watch **w = &l->dev->watch;
	while (*w != &l->watch)
		w = &(*w)->next;
	*w = l->watch.next;
}

void occ_lane_close(struct occ_lane *l)
{
	if (!l)
		return;
	unwatch(l);
	guard_close();
	settle(l, ncclCommFinalize(l->nccl));
	ncclCommDestroy(l->nccl);
	if (l->is_pair) {
		cudaStreamDestroy(l->own);
		l->dev->ops->mark_close(l->dev, l->before);
	}
	l->dev->ops->mark_close(l->dev, l->last);
	occ_free(l);
}

static void must(struct occ_lane *l, ncclResult_t r)
{
	if (r != ncclSuccess && r != ncclInProgress)
		fail(l, r);
}

void occ_lane_begin(struct occ_lane *l, void *after)
{
	l->at = l->is_pair ? l->own : occ_cuda_stream(l->dev);
	if (l->is_pair && !after) {
		after = l->before;
		l->dev->ops->mark(l->dev, after);
	}
	if (l->is_pair)
		occ_cuda_must(cudaStreamWaitEvent(l->own, after, 0), "cudaStreamWaitEvent");
	must(l, ncclGroupStart());
}

void occ_lane_send(struct occ_lane *l, const void *d_x, size_t bytes, int peer)
{
	if (bytes)
		must(l, ncclSend(d_x, bytes, ncclUint8, peer, l->nccl, l->at));
}

void occ_lane_recv(struct occ_lane *l, void *d_x, size_t bytes, int peer)
{
	if (bytes)
		must(l, ncclRecv(d_x, bytes, ncclUint8, peer, l->nccl, l->at));
}

void occ_lane_end(struct occ_lane *l, void *mark)
{
	settle(l, ncclGroupEnd());
	occ_cuda_must(cudaEventRecord(l->last, l->at), "cudaEventRecord");
	if (mark)
		occ_cuda_must(cudaEventRecord(mark, l->at), "cudaEventRecord");
	occ_cuda_pulse(l->dev);
}

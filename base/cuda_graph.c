/* Work that repeats, as CUDA graphs (OCC_GRAPHS=on): the first time it runs as it comes, so that
 * plans, kernels and scratch are there; the second time it is recorded; from then on the record is
 * launched. A record holds the addresses of scratch and the kernels of cuDNN's plans: where these
 * have changed, it all begins again. A recording that fails has executed nothing: the work then
 * runs as it comes, and is not recorded again. */
#include <stdio.h>

#include "base/cuda.h"
#include "base/cuda_cudnn.h"
#include "base/log.h"
#include "base/mem.h"

struct record {
	int off;                      /* it could not be recorded */
	cudaGraphExec_t exec;         /* NULL: not recorded yet */
	struct occ_cuda_queue *queue; /* where it ran as it comes; NULL: nowhere yet... */
	int64_t age;                  /* ...and when */
};

/* What this thread records: a rank is a thread, and calls that fail do not know for which device
 * they were. */
static _Thread_local struct {
	int on;
	char why[160]; /* the first failure; "": none */
} recording;

int occ_cuda_recording(void)
{
	return recording.on;
}

int occ_cuda_excused(const char *what, const char *why)
{
	if (recording.on && !recording.why[0])
		snprintf(recording.why, sizeof(recording.why), "%s: %s", what, why);
	return recording.on;
}

void *occ_cuda_repeat_open(struct occ_device *d)
{
	(void)d;
	return occ_cuda_asked("OCC_GRAPHS", "on") ? occ_alloc(1, sizeof(struct record)) : NULL;
}

/* A graph that still runs goes when it has ended. */
static void forget(struct record *r)
{
	if (r->exec)
		occ_cuda_must(cudaGraphExecDestroy(r->exec), "cudaGraphExecDestroy");
	r->exec = NULL;
}

void occ_cuda_repeat_close(struct occ_device *d, void *r)
{
	(void)d;
	if (r)
		forget(r);
	occ_free(r);
}

/* Changes with all that a record of the current queue points to and that is not the caller's. */
static int64_t age(const struct occ_cuda *c)
{
	return c->now->grown + (c->cudnn ? occ_cudnn_given_up(c->cudnn) : 0);
}

/* The graph of the work, or NULL; what failed is kept. */
static cudaGraph_t capture(cudaStream_t s, void (*work)(void *arg), void *arg)
{
	cudaGraph_t graph = NULL;
	cudaError_t e = cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
	if (e) {
		occ_cuda_must(e, "cudaStreamBeginCapture");
		return NULL;
	}
	work(arg);
	occ_cuda_must(cudaStreamEndCapture(s, &graph), "cudaStreamEndCapture");
	return graph;
}

/* Whether r can be launched now. */
static int record(struct occ_cuda *c, struct record *r, void (*work)(void *arg), void *arg)
{
	recording.on = 1;
	recording.why[0] = 0;
	cudaGraph_t graph = capture(r->queue->stream, work, arg);
	if (!recording.why[0])
		occ_cuda_must(cudaGraphInstantiate(&r->exec, graph, 0), "cudaGraphInstantiate");
	if (recording.why[0])
		r->exec = NULL;
	if (graph)
		occ_cuda_must(cudaGraphDestroy(graph), "cudaGraphDestroy");
	recording.on = 0;
	c->recorded += !recording.why[0];
	return !recording.why[0];
}

static int launch(struct occ_cuda *c, struct record *r)
{
	cudaError_t e = cudaGraphLaunch(r->exec, r->queue->stream);
	if (e)
		snprintf(recording.why, sizeof(recording.why), "cudaGraphLaunch: %s",
			 cudaGetErrorString(e));
	c->launched += !e;
	return !e;
}

/* What is wrong with the GPU itself shows again in the calls that follow. */
static void give_up(struct occ_cuda *c, struct record *r)
{
	(void)cudaGetLastError();
	forget(r);
	r->off = 1;
	if (!c->graphs_refused++)
		occ_log(OCC_LOG_INFO, "no CUDA graph of a part of the work: %s", recording.why);
}

void occ_cuda_repeat(struct occ_device *d, void *repeated, void (*work)(void *arg), void *arg)
{
	struct occ_cuda *c = occ_cuda_of(d);
	struct record *r = repeated;
	if (!r || r->off) {
		work(arg);
		return;
	}
	if (r->queue != c->now || r->age != age(c)) {
		forget(r);
		work(arg);
		r->queue = c->now;
		r->age = age(c);
		return;
	}
	if ((r->exec || record(c, r, work, arg)) && launch(c, r)) {
		occ_cuda_pulse(d);
		return;
	}
	give_up(c, r);
	work(arg);
}

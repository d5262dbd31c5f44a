/* trace.json: what each rank did in some steps, in the format of Chrome's tracing page and of
 * Perfetto; one track a rank. The same file is written by a run (log.trace_iters) and by
 * `plan --trace` (docs/metrics.md). */
#ifndef OCC_TRAINER_TRACE_H
#define OCC_TRAINER_TRACE_H

#include <stdio.h>

#include "base/trace.h"
#include "trainer/run.h"

struct occ_trace_file {
	FILE *f;
	const char *path; /* borrowed */
	int events;       /* written so far */
};

/* A file that is whole JSON after every call. A failure to write it ends the job (4). */
void occ_trace_file_open(struct occ_trace_file *t, const char *path);
void occ_trace_file_close(struct occ_trace_file *t); /* one that is not open: no-op */
void occ_trace_file_track(struct occ_trace_file *t, int track, const char *name);
/* Events as occ_trace_events made them. */
void occ_trace_file_put(struct occ_trace_file *t, const char *events);
/* The spans of a step (from 1) as JSON text; time 0 of the spans is `at_ms` of the file. The
 * caller frees it with free(). */
char *occ_trace_events(const struct occ_trace *t, int track, int64_t iter, double zero_ms,
		       double at_ms);

/* Traces the steps of log.trace_iters of a run. */
struct occ_tracer {
	struct occ_run *run; /* borrowed */
	struct occ_trace trace;
	struct occ_trace_file file; /* rank 0, from the first traced step on */
	char path[4096];
	double began_ms;       /* rank 0: when the first traced step began */
	double zero_ms, at_ms; /* this step's start, on the rank's own clock and in the file */
};
void occ_tracer_open(struct occ_tracer *t, struct occ_run *run);
void occ_tracer_close(struct occ_tracer *t);
/* Around a step. Collective over the world, and no-ops, where the step is not traced. All ranks
 * begin at once: that is time 0 of each clock. */
void occ_tracer_begin(struct occ_tracer *t);
void occ_tracer_end(struct occ_tracer *t);

#endif

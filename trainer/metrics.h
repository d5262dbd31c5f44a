/* What a run tells: metrics.jsonl for programs (docs/metrics.md), one line a step for people. */
#ifndef OCC_TRAINER_METRICS_H
#define OCC_TRAINER_METRICS_H

#include "trainer/run.h"

struct occ_metrics {
	struct occ_run *run; /* borrowed */
	FILE *jsonl;         /* rank 0 with log.dir; else NULL */
	FILE *board;         /* TensorBoard's event file: rank 0 with log.tensorboard; else NULL */
	double since_ms;     /* time of the last line */
	int64_t since_step;
	double started_ms; /* when training began */
	int64_t started_step;
};

struct occ_step_report {
	double loss, grad_norm, lr;
};

/* Collective. Creates log.dir, writes config.json, opens metrics.jsonl (a resumed run appends,
 * lines past the resumed step dropped) and puts the start event and the start lines. Refusal 4,
 * agreed. */
int occ_metrics_open(struct occ_metrics *m, struct occ_run *run);
void occ_metrics_close(struct occ_metrics *m, const char *why); /* the end event */
/* Collective: sums the traffic of all ranks since the last line. */
void occ_metrics_step(struct occ_metrics *m, const struct occ_step_report *s);
/* Time spent outside steps (evaluation, checkpoints) does not count as step time. */
void occ_metrics_pause(struct occ_metrics *m, double ms);
void occ_metrics_eval(struct occ_metrics *m, double loss, int64_t tokens);
void occ_metrics_checkpoint(struct occ_metrics *m, double ms);

/* Rank 0 only, others at once 0: prepares log.dir and opens its files (metrics_file.c). */
int occ_metrics_files(struct occ_metrics *m, struct occ_err *e);

#endif

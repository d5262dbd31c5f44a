/* One rank of a plan, alone in this process: the run's own parts over a transport that only counts,
 * on a device that only counts, or on the real one. */
#ifndef OCC_TRAINER_PLAN_RANK_H
#define OCC_TRAINER_PLAN_RANK_H

#include "trainer/plan.h"

struct occ_plan_rank {
	struct occ_comm *world;
	struct occ_topo topo;
	struct occ_device *dev;
	struct occ_group tp;
	struct occ_gpt gpt;
	struct occ_stage stage;
	struct occ_optim optim; /* opened by who wants it */
	struct occ_exec exec;
	struct occ_schedule sched; /* marked */
	int32_t *tokens;
	int nmicro;
	struct occ_trace trace; /* by the clock of the device; set on it by who wants it */
};

/* All but executor and optimizer. device NULL: dry, at the plan's rates. The list is of `nmicro`
 * micro-batches. A device that cannot be had ends the process. */
void occ_plan_rank_open(struct occ_plan_rank *r, const struct occ_plan *p,
			const struct occ_policy *policy, int rank, const char *device, int nmicro);
void occ_plan_rank_exec(struct occ_plan_rank *r, const struct occ_plan *p,
			const struct occ_policy *policy);
void occ_plan_rank_close(struct occ_plan_rank *r);
/* A training step after every start_iter; r->topo.traffic then holds what it sent. */
void occ_plan_rank_step(struct occ_plan_rank *r, const struct occ_policy *policy);
int64_t occ_plan_late_step(const struct occ_policy *policy); /* that step */

#endif

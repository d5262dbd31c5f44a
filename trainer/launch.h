/* From a process to ranks: which transport, how many, and what the environment must look like. */
#ifndef OCC_TRAINER_LAUNCH_H
#define OCC_TRAINER_LAUNCH_H

#include "parallel/comm.h"
#include "trainer/args.h"

/* 1 in the process that speaks for a job whose ranks have not met (rank 0, or no launcher at all).
 */
int occ_launch_speaks(void);
/* A refusal that every such process has found for itself: one speaks, the others stay a moment,
 * because launchers kill all ranks when the first one fails. Returns the exit code. */
int occ_launch_refuse(const struct occ_err *e);

/* Runs body(world, args) on every rank of this process and returns the exit code. Reads only
 * parallel.transport, train.timeout_s and checkpoint.dir (stop signals) from the configuration;
 * what is wrong with the rest is the body's to agree on. Transport auto: --ranks N threads, else
 * MPI under a launcher, else one rank. May execute the program again, once, to make waiting OpenMP
 * threads passive. */
int occ_launch(const struct occ_args *a, int (*body)(struct occ_comm *world, void *args),
	       char **argv);

#endif

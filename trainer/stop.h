/* Stopping on request: SIGTERM, SIGUSR1 or the batch system's time limit, agreed at a step
 * boundary. */
#ifndef OCC_TRAINER_STOP_H
#define OCC_TRAINER_STOP_H

/* Installs the handlers; they set a flag. A second signal ends the process at once. Only where a
 * checkpoint can be written: without checkpoint.dir the signals keep their default meaning. */
void occ_stop_install(void);
/* Seconds of work that must still fit before the time limit (SLURM_JOB_END_TIME): a step and a
 * save. */
int occ_stop_wanted(double margin_s);

#endif

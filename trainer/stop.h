/* Stopping on request: SIGTERM, SIGUSR1 or the batch system's time limit, agreed at a step
 * boundary; and what the process does with other signals. */
#ifndef OCC_TRAINER_STOP_H
#define OCC_TRAINER_STOP_H

/* Installs the handlers of SIGTERM and SIGUSR1; they set a flag. Launchers and timeout(1) deliver a
 * signal twice, so a repetition within five seconds is the same wish; a later one ends the process
 * at once. Only where a checkpoint can be written: without checkpoint.dir the signals keep their
 * default meaning, and no time limit is looked at. */
void occ_stop_install(void);
/* Nonzero once a stop is wanted. margin_s: seconds of work that must still fit before the time
 * limit (SLURM_JOB_END_TIME): a step and a save. */
int occ_stop_wanted(double margin_s);

/* For every mode, at the start of main: a file that shrinks while it is mapped ends in one line and
 * exit code 3, one that grows past a size limit is an error of the write; closed standard streams
 * are kept from being given to other files. */
void occ_process_guard(void);

#endif

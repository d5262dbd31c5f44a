/* Failures on demand, for tests: OCC_FAULT=POINT:RANK:NTH[,POINT:RANK:NTH...] in the environment
 * makes the NTH call (from 1) of that point fail on that rank ("*": on every rank). Each thread
 * reads the variable once, at its first call, and counts for itself, so ranks that are threads are
 * told apart.
 *
 * Points: ckpt.write (each mkdir, open, write, fsync, rename of a checkpoint), loss.nan. */
#ifndef OCC_BASE_FAULT_H
#define OCC_BASE_FAULT_H

/* 1: the caller must act as if what it is about to do had failed. Costs a compare when unset. */
int occ_fault(const char *point, int rank);

#endif

/* Collectives on device arrays: a communicator, a device and what is between them, a lane or host
 * memory. The bits are the same either way: sums are made in rank order, in fp32, and rounded once.
 *
 * All are collective over g->comm, in place, and no-ops for one rank. By a lane they are enqueued
 * on the current queue, which must be the same one every time; through host memory they wait. */
#ifndef OCC_PARALLEL_GROUP_H
#define OCC_PARALLEL_GROUP_H

#include "base/device.h"
#include "parallel/comm.h"
#include "parallel/lane.h"

struct occ_group {
	struct occ_comm *comm;  /* borrowed */
	struct occ_device *dev; /* borrowed */
	struct occ_lane *lane;  /* owned; NULL: through host memory */
	void *d_parts;          /* owned: all ranks' values of the own slice, by a lane */
	size_t parts_bytes;
	/* Owned host memory; staging only where the device is not host-visible. */
	void *staging, *scratch;
	size_t max_bytes;
	size_t staging_bytes, scratch_bytes; /* grow to what the first step needs */
};

/* max_bytes: the largest piece moved at once; longer arrays go in pieces of it. Collective. */
void occ_group_init(struct occ_group *g, struct occ_comm *comm, struct occ_device *dev,
		    size_t max_bytes);
void occ_group_release(struct occ_group *g);

void occ_group_sum(struct occ_group *g, void *d_x, int64_t n, enum occ_type type);
void occ_group_max(struct occ_group *g, float *d_x, int64_t n);
/* fp32 of rank 0 to all. */
void occ_group_bcast(struct occ_group *g, float *d_x, int64_t n);
/* d_x (rows, C) of the device's type: rank t holds rows floor(t*rows/T) .. floor((t+1)*rows/T). */
void occ_group_gather_rows(struct occ_group *g, void *d_x, int64_t rows, int64_t C);

#endif

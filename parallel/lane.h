/* Lanes: device memory from rank to rank in the order of a device's queue, the host in between
 * neither copying nor waiting. On GPUs that is NCCL; other devices have none, and their arrays
 * travel through host memory (parallel/group.h, parallel/link.h).
 *
 * Transfers stand between begin and end: one group, of which no transfer waits for another. A group
 * lane works on the queue that is current at `begin`; its `after` is NULL. A pair lane has a queue
 * of its own: the group waits for the mark `after`, or, if that is NULL, for what is enqueued on
 * the current queue so far, and holds up nothing; `mark` says when it is over. Errors and peers
 * that are gone end the run (7) from within the next wait for the device, after the time limit of
 * the communicator at the latest. */
#ifndef OCC_PARALLEL_LANE_H
#define OCC_PARALLEL_LANE_H

#include "base/device.h"
#include "parallel/comm.h"

struct occ_lane;

int occ_lane_built(void); /* 1: this program has lanes */

/* Collective over c. Whether lanes can serve it: device cuda, ranks that are processes, each with a
 * GPU of its own; the same answer on all ranks. If not, `e`, which may be NULL, says why: with code
 * 5, both ranks and their GPU where two have one. */
int occ_lane_serves(struct occ_comm *c, struct occ_device *d, struct occ_err *e);

/* Collective over c, in the same order on all ranks. `what` names it in messages; borrowed. */
struct occ_lane *occ_lane_open(struct occ_comm *c, struct occ_device *d, const char *what);
/* Collective over this rank and world rank `peer`; the lower of both is rank 0 of the lane. */
struct occ_lane *occ_lane_open_pair(struct occ_comm *world, struct occ_device *d, int peer,
				    const char *what);
void occ_lane_close(struct occ_lane *l); /* NULL is allowed */

/* In a step the host only enqueues, which may wait for room as long as the queues stand still. From
 * `on` 1 to 0 another thread ends the run (7) if a call does not come back in one and a half times
 * the time limit; where no lane is open, nothing happens. */
void occ_lane_guard(int on);

void occ_lane_begin(struct occ_lane *l, void *after);
/* Device memory; `peer` counts within the lane. 0 bytes move nothing, at both ends. */
void occ_lane_send(struct occ_lane *l, const void *d_x, size_t bytes, int peer);
void occ_lane_recv(struct occ_lane *l, void *d_x, size_t bytes, int peer);
void occ_lane_end(struct occ_lane *l, void *mark); /* a mark of the device, or NULL */

#endif

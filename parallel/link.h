/* One direction between this stage and a neighbour: wires, what is in flight, counters.
 * A transfer is scattered over tp: tp rank t moves its slice of token rows (occ_slice_row), and the
 * receiver's tp group gathers. The route (codec, error feedback) of a transfer will live here. */
#ifndef OCC_PARALLEL_LINK_H
#define OCC_PARALLEL_LINK_H

#include "parallel/group.h"

struct occ_link {
	struct occ_comm *comm;       /* borrowed: the world */
	struct occ_group *tp;        /* borrowed */
	struct occ_traffic *traffic; /* borrowed */
	int peer;                    /* world rank of the same (tp, dp) on the neighbour stage */
	enum occ_tag tag;
	int64_t rows, C; /* of the whole [b*S, h] matrix */
	size_t bytes;    /* of this rank's slice */
	void *wire[2];   /* owned host memory */
	struct occ_req req[2];
	int64_t posted, taken; /* messages so far; wire = count % 2 */
};

void occ_link_init(struct occ_link *l, struct occ_comm *world, struct occ_group *tp, int peer,
		   enum occ_tag tag, int64_t rows, int64_t C, struct occ_traffic *traffic);
void occ_link_release(struct occ_link *l);
void occ_link_drain(struct occ_link *l); /* waits for what is in flight */

/* d_x (rows, C): copied to a wire and posted; waits only while the wire's last message travels. */
void occ_link_send(struct occ_link *l, const void *d_x, unsigned flags);
/* Posts the next receives ahead: at most two, and never more than the `left` that will come. */
void occ_link_expect(struct occ_link *l, int64_t left);
/* d_x (rows, C): waits, puts this rank's slice, gathers over tp. */
void occ_link_recv(struct occ_link *l, void *d_x, unsigned flags);

#endif

/* One direction between this stage and a neighbour: wires, what is in flight, counters, and the
 * route of each transfer. By a lane where ranks have GPUs of their own, and then nothing waits on
 * the host but for lengths of wires that vary; else through host memory.
 *
 * Packing and unpacking is enqueued on OCC_PIPE, so that passes go on meanwhile; streams are used
 * there only, until occ_exec_step has joined the queues.
 *
 * A transfer is scattered over tp: tp rank t moves its slice of token rows (occ_slice_row), the
 * matrix that is compressed, and the receiver's tp group gathers. How a transfer travels is asked
 * of occ_route by both ends; a stream holds what compressed ones leave behind (lazy error
 * propagation), plain ones neither read nor renew it. */
#ifndef OCC_PARALLEL_LINK_H
#define OCC_PARALLEL_LINK_H

#include "compress/stream.h"
#include "parallel/group.h"
#include "parallel/route.h"

struct occ_link_conf {
	enum occ_kind kind; /* OCC_PP_FORWARD, OCC_PP_BACKWARD */
	int sends;          /* 1 at the sending end */
	int sender;         /* the sending end's stage */
	int peer;           /* world rank of the same (tp, dp) on the neighbour stage */
	int64_t rows, C;    /* of the whole [b*S, h] matrix */
	int slots;          /* micro-batches between a forward and its backward at most */
	const struct occ_policy *policy; /* borrowed */
	uint32_t id;                     /* of the stream's random numbers */
};

/* Supports of forward transfers, kept until the gradients follow them: a queue on the device. */
struct occ_supports {
	char *d_at; /* [slots][bytes]; owned */
	size_t bytes;
	int slots;
	int64_t pushed, popped;
};

struct occ_link {
	struct occ_link_conf conf;
	struct occ_comm *comm;       /* borrowed: the world; NULL: no neighbour */
	struct occ_group *tp;        /* borrowed */
	struct occ_traffic *traffic; /* borrowed */
	int inter_node;
	int64_t n;    /* rows of this rank's slice */
	size_t bytes; /* of the slice, dense */
	struct occ_stream stream;
	int has_stream;                /* some transfer may be compressed */
	struct occ_lane *lane;         /* owned; NULL: through host memory */
	void *d_wire[2];               /* owned; [1] of lanes only; NULL: not needed */
	void *ready;                   /* mark: OCC_PIPE's turn or OCC_COMPUTE's */
	void *busy[2], *emptied[2];    /* marks of a lane's wires: moved; unpacked */
	struct occ_supports supports;  /* forward links that gradients follow */
	struct occ_supports *followed; /* backward links: of the forward link; borrowed */
	void *wire[2];                 /* owned host memory; not of lanes */
	int64_t length[2];             /* of a wire that varies, sent before it */
	struct occ_req req[2], head[2];
	int64_t posted, taken; /* messages so far; wire = count % 2 */
	/* This step. */
	const struct occ_schedule *list; /* borrowed until the next begin */
	int posted_at, taken_at;         /* instructions of the list that are behind */
	int64_t left, step;              /* not yet posted */
	int training;
};

/* Collective over both ends where they have lanes. `followed`: of the forward link between the same
 * stages where gradients follow, else NULL. */
void occ_link_init(struct occ_link *l, const struct occ_link_conf *conf, struct occ_comm *world,
		   struct occ_group *tp, struct occ_supports *followed,
		   struct occ_traffic *traffic);
void occ_link_release(struct occ_link *l);
void occ_link_drain(struct occ_link *l); /* waits for what is in flight */

/* How a transfer of this link travels, and how long a compressed one is at most. Pure. */
struct occ_route occ_link_route(const struct occ_link *l, int critical, int64_t step);
size_t occ_link_bound(const struct occ_link *l);

/* A step begins: its transfers on this link are those of the list's instructions `op`. A receiver
 * posts its first receives. */
void occ_link_begin(struct occ_link *l, const struct occ_schedule *list, enum occ_op op,
		    int64_t step);
/* d_x (rows, C), made on OCC_COMPUTE: packed to a wire and posted; waits only while the wire's last
 * message travels. Once the mark `read` is passed d_x may be overwritten. */
void occ_link_send(struct occ_link *l, const void *d_x, void *read);
/* d_x (rows, C), not before the mark `free`: waits, unpacks this rank's slice, gathers over tp on
 * OCC_COMPUTE, posts the next receive. */
void occ_link_recv(struct occ_link *l, void *d_x, void *free);

#endif

/* The sums of weight gradients over replicas, and of the tied embedding over its copies.
 *
 * Every tensor travels as its route says: dense ones as one flat sum over all replicas, in rank
 * order; compressed ones are summed inside each node first, and only what crosses nodes is
 * compressed (Optimus-CC sections 6 and 7). The contributor to a compressed sum is the node: with X
 * = the sum of the node's gradients + E, the result is the sum over contributors of what each got
 * across, and nothing is lost: sum of E + result = sum of (gradients + old E). With compress.scope
 * "all" every replica is a contributor. Gradients are scaled by 1/(tokens of the global batch)
 * before, so that sums are means.
 *
 * Codecs that add up (powersgd) sum all their tensors in one flat buffer a round; the wires of the
 * others are gathered and decoded in rank order, so that all replicas hold the same bits. */
#ifndef OCC_PARALLEL_REDUCE_H
#define OCC_PARALLEL_REDUCE_H

#include "compress/stream.h"
#include "parallel/group.h"
#include "parallel/route.h"
#include "parallel/topo.h"

/* One weight's gradient in the flat array. */
struct occ_tensor {
	const char *name;
	int64_t at, n, m; /* (n, m) row-major; n 1: a vector */
	uint32_t id;      /* in the whole model */
	int replicated;   /* whole on every tensor rank: these must stay equal */
	int embedding;    /* the tied embedding, or its copy */
	void *ready; /* borrowed mark: a step's gradient is there; NULL: at the end of passes */
};

/* A tensor that may travel compressed. */
struct occ_reduce_item {
	struct occ_tensor tensor;
	struct occ_stream stream; /* of contributors only */
	const float *d_x;         /* what it is to send in this step */
};

struct occ_reduce {
	struct occ_topo *topo;           /* borrowed */
	struct occ_device *dev;          /* borrowed */
	const struct occ_policy *policy; /* borrowed */
	struct occ_group dp, embed, node, leaders;
	const struct occ_tensor *tensor; /* borrowed */
	int ntensors;
	struct occ_reduce_item *item; /* owned */
	int nitems, contributes;      /* 1: this rank speaks for its node */
	float *d_part;                /* owned: all tensors' parts of a round */
	void *d_wire;                 /* owned: wires of a batch */
	char *wire;                   /* owned: the wires of all contributors; host, or of a lane */
	size_t wire_bytes;            /* of one contributor's batch */
	size_t *length, *bytes; /* owned: [contributors][tensors of a batch], [contributors] */
	const char **at;        /* owned: [contributors] in `wire` */
	int64_t rank;           /* codec "auto": now in use, at most the site's */
	int adapts;             /* 1: this step ends with a new choice of the rank */
};

void occ_reduce_init(struct occ_reduce *r, struct occ_topo *topo, struct occ_device *dev,
		     const struct occ_policy *policy, const struct occ_tensor *tensor,
		     int ntensors);
void occ_reduce_release(struct occ_reduce *r);

/* Collective over the dp group: d_grad becomes the sum over replicas, the fused embedding left out.
 * step from 0. Enqueued on the current queue, which waits for each tensor's `ready` and, where that
 * is NULL, for the mark `passed`: so sums begin while earlier layers are still at work. */
void occ_reduce_grads(struct occ_reduce *r, float *d_grad, int64_t step, void *passed);
/* Collective over those that share the tied embedding; no-op on other stages. */
void occ_reduce_embedding(struct occ_reduce *r, float *d_grad);
/* The step counts, or nothing of it does. The same on all ranks. With codec "auto" every tenth step
 * is collective over the world: the rank is halved while more than half of the squared norm of X
 * gets across, and doubled where less than a quarter does; residuals stay (after GraVAC). */
void occ_reduce_end(struct occ_reduce *r, int keep);
/* codec "auto": all tensors at this rank. Not collective; the same on all ranks. */
void occ_reduce_set_rank(struct occ_reduce *r, int64_t rank);
/* The route of a tensor in a step. Pure but for what init found out of the topology. */
struct occ_route occ_reduce_route(const struct occ_reduce *r, const struct occ_tensor *t,
				  int64_t step);

#endif

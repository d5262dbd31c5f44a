/* The executor: one loop and one switch over a schedule's instructions. It knows the model only as
 * a struct occ_stage, which model/ fills in, and moves data only through links and groups. */
#ifndef OCC_PARALLEL_EXEC_H
#define OCC_PARALLEL_EXEC_H

#include "parallel/link.h"
#include "parallel/reduce.h"
#include "parallel/schedule.h"
#include "parallel/topo.h"

struct occ_stage {
	void *self;
	/* One micro-batch. d_in, d_out (rows, C) of the device's type; d_in is NULL on the first
	 * stage, d_out NULL on the last. `slot` < slots names where the micro-batch's activations
	 * are kept from its forward to its backward; d_in stays as it is until then. */
	void (*forward)(void *self, int mb, int slot, const void *d_in, void *d_out);
	/* d_dout is NULL on the last stage, d_din NULL on the first. Adds to d_grad. */
	void (*backward)(void *self, int mb, int slot, const void *d_in, const void *d_dout,
			 void *d_din);
	float *d_grad; /* all weight gradients of this rank, flat fp32 */
	int64_t n_grad;
	/* Its tensors, which cover it without gaps; owned by the model. */
	const struct occ_tensor *tensor;
	int ntensors;
};

struct occ_exec_conf {
	int64_t rows, C;                 /* micro * seq_len, hidden */
	int slots;                       /* as the training schedule needs */
	const struct occ_policy *policy; /* borrowed; how things travel */
	struct occ_stage *stage;         /* borrowed */
};

/* What leaves or enters a stage, and a mark: it may be overwritten. */
struct occ_boundary {
	void *d_x, *free;
};

struct occ_exec {
	struct occ_topo *topo;  /* borrowed */
	struct occ_device *dev; /* borrowed */
	struct occ_group *tp;   /* borrowed */
	struct occ_exec_conf conf;
	struct occ_reduce reduce;
	struct occ_link act_in, act_out, grad_in, grad_out; /* owned; unused at the ends */
	/* Owned. Inputs of micro-batches in flight, [slots], NULL on the first stage; and what two
	 * micro-batches in turn leave or bring, so that one is on its way while the next is made.
	 */
	struct occ_boundary *in, out[2], dout[2], din[2];
	void *turn[OCC_NQUEUES]; /* owned: marks by which queues meet */
};

void occ_exec_init(struct occ_exec *x, struct occ_topo *topo, struct occ_device *dev,
		   struct occ_group *tp, const struct occ_exec_conf *conf);
void occ_exec_release(struct occ_exec *x);
/* Collective over the world. Runs the list of step `step` (from 0); waits for all that it posted.
 * A list without backward passes changes nothing that streams keep. */
void occ_exec_step(struct occ_exec *x, const struct occ_schedule *s, int64_t step);
/* After agreement: the step counts (keep 1), or residuals and codecs go back to its start. */
void occ_exec_end(struct occ_exec *x, int keep);

/* Streams of this rank, for metrics and checkpoints: `visit` gets each that keeps something, with a
 * name that is the same in every run of this layout ("grad_out", or a weight's name). */
typedef void occ_exec_visit(void *arg, enum occ_kind kind, const char *name,
			    struct occ_stream *stream);
void occ_exec_streams(struct occ_exec *x, occ_exec_visit *visit, void *arg);

#endif

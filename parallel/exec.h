/* The executor: one loop and one switch over a schedule's instructions. It knows the model only as
 * a struct occ_stage, which model/ fills in, and moves data only through links and groups. */
#ifndef OCC_PARALLEL_EXEC_H
#define OCC_PARALLEL_EXEC_H

#include "parallel/link.h"
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
	/* The tied word embedding in d_grad; embed_n 0 where nothing is tied. */
	int64_t embed_at, embed_n;
};

struct occ_exec {
	struct occ_topo *topo;                              /* borrowed */
	struct occ_device *dev;                             /* borrowed */
	struct occ_group *tp;                               /* borrowed */
	struct occ_group dp, embed;                         /* owned */
	struct occ_link act_in, act_out, grad_in, grad_out; /* owned; unused at the ends */
	int64_t rows, C;
	int slots;
	void **d_in;                  /* [slots] inputs, owned; NULL on the first stage */
	void *d_out, *d_dout, *d_din; /* owned */
};

/* rows = micro * seq_len, C = hidden. `slots` as the training schedule needs. */
void occ_exec_init(struct occ_exec *x, struct occ_topo *topo, struct occ_device *dev,
		   struct occ_group *tp, int64_t rows, int64_t C, int slots);
void occ_exec_release(struct occ_exec *x);
/* Collective over the world. Runs the list; waits for all that it posted. */
void occ_exec_step(struct occ_exec *x, const struct occ_schedule *s, struct occ_stage *stage);

#endif

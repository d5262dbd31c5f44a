/* AdamW with fp32 states, clipping by the global norm, learning-rate schedules. */
#ifndef OCC_TRAINER_OPTIM_H
#define OCC_TRAINER_OPTIM_H

#include "model/gpt.h"
#include "trainer/config.h"

struct occ_optim {
	struct occ_gpt *gpt; /* borrowed */
	float *d_m, *d_v;    /* owned device arrays, flat as the weights; zero at first */
	float *d_master; /* owned; NULL where the compute type is fp32: the weights are the master
			  */
	struct occ_piece *d_pieces; /* owned: of what is trained */
	struct occ_pieces all;      /* of those */
	struct occ_pieces norm;     /* the first of them: what counts in the norm */
	int *tensor;                /* owned: which weight each piece is of */
	double *d_sum, *sum;        /* owned: squares of the norm's pieces, device and host */
	int64_t steps;              /* updates applied: Adam's t */
};

/* Learning rate of step t (from 0) out of total = train.iters. Pure; design.md 7.2. */
double occ_lr_at(const struct occ_config_optimizer *o, int64_t iters, int64_t t);

void occ_optim_init(struct occ_optim *o, struct occ_gpt *g);
void occ_optim_release(struct occ_optim *o);

/* This rank's part of the squared global norm: replicated tensors count on tp rank 0 only, the tied
 * embedding on the first stage only. *worst (may be NULL) = the first tensor with a non-finite sum.
 */
double occ_optim_norm2(const struct occ_optim *o, const struct occ_weight **worst);
/* One update of every tensor with gradients scaled by `scale`. */
void occ_optim_update(struct occ_optim *o, const struct occ_config_optimizer *c, double lr,
		      double scale);

/* Host fp32 values for checkpoints, flat, weights.size each. Master from the compute-type weights
 * where those are fp32. put also sets the compute-type weights. m, v NULL: master only. */
void occ_optim_get(const struct occ_optim *o, float *master, float *m, float *v);
void occ_optim_put(struct occ_optim *o, const float *master, const float *m, const float *v);

#endif

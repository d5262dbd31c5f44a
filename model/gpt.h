/* GPT-2 over tensor and pipeline ranks: this rank's part, as a struct occ_stage. */
#ifndef OCC_MODEL_GPT_H
#define OCC_MODEL_GPT_H

#include "model/weights.h"
#include "parallel/exec.h"

struct occ_gpt {
	struct occ_gpt_shape shape;
	struct occ_weights weights;
	struct occ_device *dev; /* borrowed */
	struct occ_group *tp;   /* borrowed */
	int stage, nstages;
	int64_t first_layer, nlayers;
	int64_t micro, T;          /* sequences a micro-batch, tokens a sequence now (<= seq_len) */
	void *d_w;                 /* flat weights, device's type; owned, like all below */
	float *d_grad;             /* flat gradients; NULL if opened for evaluation only */
	double loss_sum;           /* last stage: token losses since begin that were fetched */
	int64_t loss_tokens;       /* tokens that counted */
	struct occ_tensor *tensor; /* [weights.n] of d_grad; NULL for evaluation */
	void *impl;                /* activations and scratch (gpt_internal.h) */
};

/* What a pass works on; borrowed by the gpt until the next begin. */
struct occ_gpt_batch {
	const int32_t *tokens; /* [M][micro][T + 1] host; id < 0: padding, counts nothing */
	int nmicro;
	int64_t row0, row_step; /* global row (sample * T) of micro-batch k: row0 + k * row_step */
	float grad_scale;       /* of each token's loss: 1 / (global_batch * T) */
	uint32_t step;          /* from 0: dropout */
	uint64_t dropout_key;   /* occ_rng_key(seed, OCC_RNG_DROPOUT) */
	int train;              /* 0: no dropout, nothing saved for a backward pass */
};

/* slots: forward passes kept for backward at once; 0 opens for evaluation only (no gradients). Sums
 * over tp go through `tp`. Weights are zero until put. */
void occ_gpt_init(struct occ_gpt *g, const struct occ_gpt_shape *s, struct occ_topo *topo,
		  struct occ_device *dev, struct occ_group *tp, int64_t micro, int slots);
void occ_gpt_release(struct occ_gpt *g);
void occ_gpt_stage(struct occ_gpt *g, struct occ_stage *out);
/* Starts a pass: resets the loss; for training zeroes the gradients. Waits for the pass before. */
void occ_gpt_begin(struct occ_gpt *g, const struct occ_gpt_batch *b);
/* Sum of token losses since begin, in the order of rows; 0 but on the last stage, where tp ranks
 * agree. Waits. */
double occ_gpt_loss(struct occ_gpt *g);
/* Puts fp32 host values (flat, weights.size) as weights of the compute type. Waits. */
void occ_gpt_put(struct occ_gpt *g, const float *flat);

/* Logits of one sequence of n <= seq_len tokens on one rank (P = T = 1): fp32 host, vocab values,
 * for the token that follows the last. Only between passes: no begin may wait for its backward. */
void occ_gpt_next(struct occ_gpt *g, const int32_t *tokens, int64_t n, float *logits);

/* Device memory of rank `place`, in bytes. */
struct occ_gpt_memory {
	size_t weights;     /* compute type */
	size_t gradients;   /* fp32; 0 for evaluation */
	size_t activations; /* with all scratch */
};
/* Pure: what occ_gpt_init would allocate. */
void occ_gpt_measure(const struct occ_gpt_shape *s, const struct occ_layout *l,
		     struct occ_place place, enum occ_type type, int64_t micro, int slots,
		     struct occ_gpt_memory *out);

#endif

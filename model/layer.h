/* One transformer block as two plain functions. All they know of the world is struct occ_ctx.
 * Letters: R = B*T rows of a micro-batch, C hidden, t tensor ranks, H local heads, D head size. */
#ifndef OCC_MODEL_LAYER_H
#define OCC_MODEL_LAYER_H

#include "model/weights.h"
#include "parallel/group.h"

struct occ_ctx {
	struct occ_device *dev; /* borrowed, like all pointers here */
	struct occ_group *tp;
	const struct occ_weights *w;
	void *d_w;             /* flat weights, compute type */
	float *d_grad;         /* flat gradients, fp32 */
	int64_t B, T, C, H, D; /* H * D = C / t */
	struct occ_drop drop;  /* p, key, step, row0 of this micro-batch; site is set by each use */
};

/* What a layer keeps from forward to backward (device arrays of the compute type but for the
 * floats). */
struct occ_layer_acts {
	void *y1;                             /* (R, C) ln_1(x) */
	void *qkv;                            /* (R, 3C/t) */
	void *att;                            /* (R, C/t) */
	void *xb;                             /* (R, C) after the attention's residual */
	void *y2;                             /* (R, C) ln_2(xb) */
	void *h, *g;                          /* (R, 4C/t) before and after GELU */
	float *mean1, *rstd1, *mean2, *rstd2; /* (R) */
	float *lse;                           /* (B, H, T) */
};

/* Scratch of a backward pass, one set for all layers. */
struct occ_layer_scratch {
	void *delta;   /* (R, C) forward: a row-parallel product; backward: masked gradient */
	void *dx, *dy; /* (R, C) at the first stage's input; at a norm's output */
	void *dqkv, *datt, *dh; /* (R, 3C/t), (R, C/t), (R, 4C/t) */
};

/* The weight at a table index, and its gradient. */
const void *occ_ctx_weight(const struct occ_ctx *c, int index);
float *occ_ctx_grad(const struct occ_ctx *c, int index);

/* Layers. `layer` is the global index (dropout sites), `first` the index of its first row in the
 * weight table. Collective over tp.
 *
 * Fills `a` from x (R, C): all but the last product, so all that the way back needs. */
void occ_layer_inside(const struct occ_ctx *c, int64_t layer, int first, const void *x,
		      const struct occ_layer_acts *a, const struct occ_layer_scratch *s);
/* out (R, C) = block(x); out may be x where no backward pass follows. */
void occ_layer_forward(const struct occ_ctx *c, int64_t layer, int first, const void *x,
		       const struct occ_layer_acts *a, const struct occ_layer_scratch *s,
		       void *out);
/* dx (R, C) = gradient at x, from dout (R, C), which may be dx. */
void occ_layer_backward(const struct occ_ctx *c, int64_t layer, int first, const void *x,
			const struct occ_layer_acts *a, const struct occ_layer_scratch *s,
			const void *dout, void *dx);

/* Sums (R, C) over tp, in place. */
void occ_ctx_sum(const struct occ_ctx *c, void *d_x);

#endif

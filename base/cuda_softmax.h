/* The kernels of attention without cuDNN (base/cuda_attention.c). */
#ifndef OCC_BASE_CUDA_SOFTMAX_H
#define OCC_BASE_CUDA_SOFTMAX_H

#include "base/cuda.h"

/* Heads h0 .. h0+heads-1 of H of sequence b. Scores and probabilities are (heads,T,T). */
struct occ_cuda_heads {
	int64_t T, H, D, b, h0, heads;
	float scale;
	struct occ_drop drop;
};

#ifdef __cplusplus
extern "C" {
#endif

/* p (type T) = causal softmax of the scores times the dropout mask; lse of a's (B,H,T). p may be
 * the scores where T is fp32. */
void occ_cuda_softmax(struct occ_device *d, const struct occ_cuda_heads *s, const float *d_score,
		      void *d_p, float *d_lse);
/* From dp, the gradient of p: p again, and ds, the gradient of q.k (both of type T). p may be the
 * scores and ds may be dp where T is fp32. out and dout are the whole (R, H*D). */
void occ_cuda_softmax_backward(struct occ_device *d, const struct occ_cuda_heads *s,
			       const float *d_score, const float *d_lse, const void *d_out,
			       const void *d_dout, const float *d_dp, void *d_p, void *d_ds);

#ifdef __cplusplus
}
#endif

#endif

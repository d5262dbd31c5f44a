/* Products with a bias in one pass over the result, by cublasLt. */
#ifndef OCC_BASE_CUDA_GEMM_BIAS_H
#define OCC_BASE_CUDA_GEMM_BIAS_H

#include "base/cuda.h"

/* The slot `gemm` where g->bias. 1: enqueued; 0: cublasLt has no way for this shape, its types or
 * addresses, or OCC_BIAS=plain stands in the environment; nothing was done. */
int occ_cuda_gemm_bias(struct occ_device *d, const struct occ_gemm *g, const void *d_a,
		       const void *d_b, const void *d_bias, void *d_c);
void occ_cuda_lt_close(struct occ_cuda_lt *lt); /* NULL is allowed */

#endif

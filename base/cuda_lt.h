/* Products with something done to the result on its way out, by cublasLt ("epilogues"). */
#ifndef OCC_BASE_CUDA_LT_H
#define OCC_BASE_CUDA_LT_H

#include "base/cuda.h"

enum occ_cuda_way {
	OCC_LT_BIAS,     /* c = product + bias */
	OCC_LT_GELU,     /* h = product + bias, c = gelu(h); only with OCC_GELU=fused */
	OCC_LT_GELU_BACK /* c = product * gelu'(h); the same */
};

/* g's product with its bias, if it has one, into d_c; d_h (m,n), rows as far apart as d_c's, or
 * NULL. 1: enqueued; 0: cublasLt has no way for this shape, its types or addresses, or the
 * environment wants none (OCC_BIAS=plain: of all three); nothing was done. */
int occ_cuda_lt(struct occ_device *d, enum occ_cuda_way way, const struct occ_gemm *g,
		const void *d_a, const void *d_b, const void *d_bias, const void *d_h, void *d_c);
void occ_cuda_lt_close(struct occ_cuda_lt *lt); /* NULL is allowed */

#endif

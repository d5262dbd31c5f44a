/* Products by cuBLAS, which is column-major: it sees each array as its transpose, so c = a b is
 * asked for as c' = b' a'. fp32 stays fp32: no TF32, and no
 * part of a sum is rounded to bf16 on its way (the handles' math mode). Where cublasLt cannot add
 * the bias on the way, it is written into c first and the product added to it, with one rounding at
 * the end. */
#include <limits.h>

#include "base/cuda_lt.h"

static cudaDataType type_of(enum occ_type t)
{
	return t == OCC_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

void occ_cuda_gemm(struct occ_device *d, const struct occ_gemm *g, const void *d_a, const void *d_b,
		   const void *d_bias, void *d_c)
{
	enum occ_type t = g->f32 ? OCC_F32 : d->type;
	float one = 1, beta = g->bias ? 1 : g->beta;
	if (g->m == 0 || g->n == 0)
		return;
	occ_check(g->m <= INT_MAX && g->n <= INT_MAX && g->k <= INT_MAX && g->lda <= INT_MAX &&
			  g->ldb <= INT_MAX && g->ldc <= INT_MAX,
		  "product of %lld x %lld x %lld", (long long)g->m, (long long)g->n,
		  (long long)g->k);
	occ_cuda_pulse(d); /* products are most of all work */
	if (g->bias && occ_cuda_lt(d, OCC_LT_BIAS, g, d_a, d_b, d_bias, NULL, d_c))
		return;
	if (g->bias)
		occ_cuda_rows(d, g->m, g->n, t, d_bias, g->c_type, d_c, g->ldc);
	occ_cuda_blas(cublasGemmEx(occ_cuda_of(d)->now->blas, g->tb ? CUBLAS_OP_T : CUBLAS_OP_N,
				   g->ta ? CUBLAS_OP_T : CUBLAS_OP_N, (int)g->n, (int)g->m,
				   (int)g->k, &one, d_b, type_of(t), (int)g->ldb, d_a, type_of(t),
				   (int)g->lda, &beta, d_c, type_of(g->c_type), (int)g->ldc,
				   CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
		      "cublasGemmEx");
}

void occ_cuda_gemm_gelu(struct occ_device *d, const struct occ_gemm *g, const void *d_a,
			const void *d_b, const void *d_bias, void *d_h, void *d_y)
{
	if (!occ_cuda_lt(d, OCC_LT_GELU, g, d_a, d_b, d_bias, d_h, d_y))
		occ_gemm_gelu(d, g, d_a, d_b, d_bias, d_h, d_y);
}

void occ_cuda_gemm_gelu_backward(struct occ_device *d, const struct occ_gemm *g, const void *d_a,
				 const void *d_b, const void *d_h, void *d_dx)
{
	if (!occ_cuda_lt(d, OCC_LT_GELU_BACK, g, d_a, d_b, NULL, d_h, d_dx))
		occ_gemm_gelu_backward(d, g, d_a, d_b, d_h, d_dx);
}

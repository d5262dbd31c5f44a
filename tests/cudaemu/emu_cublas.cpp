/* Test-only cuBLAS + cublasLt subset on OpenBLAS. bf16/fp16 inputs are widened to fp32, products
 * are accumulated in fp32, results rounded to nearest even: what CUBLAS_COMPUTE_32F promises, up to
 * summation order. */
#define CUBLASAPI
#include <cublas_v2.h>
#include <cublasLt.h>
#include <cblas.h>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "tests/cudaemu/emu_runtime.h"
using occ_emu::enqueue;
struct cublasContext {
	cudaStream_t s;
	cublasPointerMode_t pm;
};
namespace
{
size_t esz(cudaDataType t)
{
	return t == CUDA_R_32F ? 4 : t == CUDA_R_16BF || t == CUDA_R_16F ? 2 : 0;
}
float ld(const void *p, size_t i, cudaDataType t)
{
	if (t == CUDA_R_32F)
		return ((const float *)p)[i];
	if (t == CUDA_R_16BF)
		return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
	return __half2float(((const __half *)p)[i]);
}
void st(void *p, size_t i, cudaDataType t, float v)
{
	if (t == CUDA_R_32F)
		((float *)p)[i] = v;
	else if (t == CUDA_R_16BF)
		((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(v);
	else
		((__half *)p)[i] = __float2half_rn(v);
}
struct Mat {
	const void *p;
	cudaDataType t;
	long ldm;
	long long stride;
};
/* column-major, like cuBLAS.  acc (m x n, packed) = op(A) op(B) */
void gemm_acc(std::vector<float> &acc, bool ta, bool tb, long m, long n, long k, Mat A, Mat B)
{
	long ar = ta ? k : m, ac = ta ? m : k, br = tb ? n : k, bc = tb ? k : n;
	std::vector<float> a((size_t)ar * ac), b((size_t)br * bc);
	for (long j = 0; j < ac; j++)
		for (long i = 0; i < ar; i++)
			a[j * ar + i] = ld(A.p, (size_t)j * A.ldm + i, A.t);
	for (long j = 0; j < bc; j++)
		for (long i = 0; i < br; i++)
			b[j * br + i] = ld(B.p, (size_t)j * B.ldm + i, B.t);
	acc.assign((size_t)m * n, 0.0f);
	cblas_sgemm(CblasColMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans,
		    m, n, k, 1.0f, a.data(), ar, b.data(), br, 0.0f, acc.data(), m);
}
const void *off(const void *p, cudaDataType t, long long e)
{
	return (const char *)p + (long long)esz(t) * e;
}
cublasStatus_t gemm(cudaStream_t s, cublasOperation_t ta, cublasOperation_t tb, long m, long n,
		    long k, float al, Mat A, Mat B, float be, Mat C, int batch)
{
	if (!esz(A.t) || !esz(B.t) || !esz(C.t))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	if (m < 0 || n < 0 || k < 0 || A.ldm < (ta ? k : m) || B.ldm < (tb ? n : k) || C.ldm < m)
		return CUBLAS_STATUS_INVALID_VALUE;
	if (m && n && batch && !occ_emu::is_device(C.p, 1)) {
		fprintf(stderr, "cublas-emu: C is not device memory\n");
		return CUBLAS_STATUS_EXECUTION_FAILED;
	}
	enqueue(s, [=] {
		std::vector<float> acc;
		for (int b = 0; b < batch; b++) {
			Mat a2 = A, b2 = B;
			a2.p = off(A.p, A.t, A.stride * b);
			b2.p = off(B.p, B.t, B.stride * b);
			void *c = (void *)off(C.p, C.t, C.stride * b);
			gemm_acc(acc, ta != CUBLAS_OP_N, tb != CUBLAS_OP_N, m, n, k, a2, b2);
			for (long j = 0; j < n; j++)
				for (long i = 0; i < m; i++) {
					size_t o = (size_t)j * C.ldm + i;
					st(c, o, C.t,
					   al * acc[(size_t)j * m + i] +
						   (be != 0.0f ? be * ld(c, o, C.t) : 0.0f));
				}
		}
		return true;
	});
	return CUBLAS_STATUS_SUCCESS;
}
float gelu(float x)
{
	return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}
float dgelu(float x)
{
	float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
	return 0.5f * (1 + t) +
	       0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}
struct LtDesc {
	cublasComputeType_t ct;
	cudaDataType st;
	int ta = 0, tb = 0;
	int epi = CUBLASLT_EPILOGUE_DEFAULT;
	void *bias = nullptr, *aux = nullptr;
	int64_t auxld = 0;
	int bias_t = -1;
	int aux_t = -1;
};
struct LtLayout {
	cudaDataType t;
	uint64_t r, c;
	int64_t ld;
	int batch = 1;
	int64_t stride = 0;
};
} // namespace
extern "C" {
cublasStatus_t cublasCreate_v2(cublasHandle_t *h)
{
	*h = new cublasContext{nullptr, CUBLAS_POINTER_MODE_HOST};
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t h)
{
	delete h;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t s)
{
	h->s = s;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t)
{
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void *, size_t)
{
	return CUBLAS_STATUS_SUCCESS;
}
const char *cublasGetStatusString(cublasStatus_t s)
{
	return s == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS error (emulated)";
}
cublasStatus_t cublasSgemm_v2(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m,
			      int n, int k, const float *al, const float *A, int lda,
			      const float *B, int ldb, const float *be, float *C, int ldc)
{
	return gemm(h->s, ta, tb, m, n, k, *al, {A, CUDA_R_32F, lda, 0}, {B, CUDA_R_32F, ldb, 0},
		    *be, {C, CUDA_R_32F, ldc, 0}, 1);
}
cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m,
			    int n, int k, const void *al, const void *A, cudaDataType At, int lda,
			    const void *B, cudaDataType Bt, int ldb, const void *be, void *C,
			    cudaDataType Ct, int ldc, cublasComputeType_t, cublasGemmAlgo_t)
{
	return gemm(h->s, ta, tb, m, n, k, *(const float *)al, {A, At, lda, 0}, {B, Bt, ldb, 0},
		    *(const float *)be, {C, Ct, ldc, 0}, 1);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta,
					  cublasOperation_t tb, int m, int n, int k, const void *al,
					  const void *A, cudaDataType At, int lda, long long sa,
					  const void *B, cudaDataType Bt, int ldb, long long sb,
					  const void *be, void *C, cudaDataType Ct, int ldc,
					  long long sc, int batch, cublasComputeType_t,
					  cublasGemmAlgo_t)
{
	return gemm(h->s, ta, tb, m, n, k, *(const float *)al, {A, At, lda, sa}, {B, Bt, ldb, sb},
		    *(const float *)be, {C, Ct, ldc, sc}, batch);
}
/* ---- cublasLt ---- */
cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
	*h = (cublasLtHandle_t) new int(1);
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
	delete (int *)h;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t c,
					cudaDataType s)
{
	*d = (cublasLtMatmulDesc_t) new LtDesc{c, s};
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
	delete (LtDesc *)d;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d0,
					      cublasLtMatmulDescAttributes_t a, const void *b,
					      size_t n)
{
	LtDesc *d = (LtDesc *)d0;
	auto get = [&](void *o, size_t w) {
		if (n < w)
			return CUBLAS_STATUS_INVALID_VALUE;
		memcpy(o, b, w);
		return CUBLAS_STATUS_SUCCESS;
	};
	switch (a) {
	case CUBLASLT_MATMUL_DESC_TRANSA:
		return get(&d->ta, 4);
	case CUBLASLT_MATMUL_DESC_TRANSB:
		return get(&d->tb, 4);
	case CUBLASLT_MATMUL_DESC_EPILOGUE:
		return get(&d->epi, 4);
	case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
		return get(&d->bias, 8);
	case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
		return get(&d->aux, 8);
	case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
		return get(&d->auxld, 8);
	case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
		return get(&d->bias_t, 4);
	case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
		return get(&d->aux_t, 4);
	default:
		return CUBLAS_STATUS_NOT_SUPPORTED;
	}
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType t, uint64_t r,
					  uint64_t c, int64_t ldm)
{
	*l = (cublasLtMatrixLayout_t) new LtLayout{t, r, c, ldm};
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
	delete (LtLayout *)l;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l0,
						cublasLtMatrixLayoutAttribute_t a, const void *b,
						size_t)
{
	LtLayout *l = (LtLayout *)l0;
	if (a == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
		memcpy(&l->batch, b, 4);
	else if (a == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
		memcpy(&l->stride, b, 8);
	else
		return CUBLAS_STATUS_NOT_SUPPORTED;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
	*p = (cublasLtMatmulPreference_t) new int(0);
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
	delete (int *)p;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
						    cublasLtMatmulPreferenceAttributes_t,
						    const void *, size_t)
{
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
					      cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
					      cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
					      cublasLtMatmulPreference_t, int req,
					      cublasLtMatmulHeuristicResult_t *r, int *n)
{
	if (req < 1)
		return CUBLAS_STATUS_INVALID_VALUE;
	memset(r, 0, sizeof *r);
	r->state = CUBLAS_STATUS_SUCCESS;
	*n = 1;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d0, const void *al,
			      const void *A, cublasLtMatrixLayout_t la, const void *B,
			      cublasLtMatrixLayout_t lb, const void *be, const void *C,
			      cublasLtMatrixLayout_t lc, void *D, cublasLtMatrixLayout_t ldd,
			      const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t s)
{
	LtDesc d = *(LtDesc *)d0;
	LtLayout a = *(LtLayout *)la, b = *(LtLayout *)lb, c = *(LtLayout *)lc,
		 o = *(LtLayout *)ldd;
	long m = o.r, n = o.c, k = d.ta ? a.r : a.c;
	if ((long)(d.ta ? a.c : a.r) != m || (long)(d.tb ? b.r : b.c) != n ||
	    (long)(d.tb ? b.c : b.r) != k)
		return CUBLAS_STATUS_INVALID_VALUE;
	if (d.epi & 128 && (!d.aux || d.auxld < m))
		return CUBLAS_STATUS_INVALID_VALUE;
	float alpha = *(const float *)al, beta = *(const float *)be;
	cudaDataType bt = d.bias_t < 0 ? (d.epi & (16 | 256 | 512) ? o.t : o.t)
				       : (cudaDataType)d.bias_t,
		     at = d.aux_t < 0 ? o.t : (cudaDataType)d.aux_t;
	enqueue(s, [=] {
		std::vector<float> acc;
		for (int q = 0; q < o.batch; q++) {
			Mat ma{off(A, a.t, a.stride * q), a.t, (long)a.ld, 0},
				mb{off(B, b.t, b.stride * q), b.t, (long)b.ld, 0};
			gemm_acc(acc, d.ta, d.tb, m, n, k, ma, mb);
			void *dd = (void *)off(D, o.t, o.stride * q);
			const void *cc = off(C, c.t, c.stride * q);
			std::vector<float> bg(d.epi & 16 ? m : 0, 0.0f);
			for (long j = 0; j < n; j++)
				for (long i = 0; i < m; i++) {
					float v =
						alpha * acc[(size_t)j * m + i] +
						(beta != 0.0f
							 ? beta * ld(cc, (size_t)j * c.ld + i, c.t)
							 : 0.0f);
					if (d.epi & 4)
						v += ld(d.bias, i, bt);
					if (d.epi & 32) {
						if (d.epi & 128)
							st(d.aux, (size_t)j * d.auxld + i, at, v);
						v = gelu(v);
					}
					if (d.epi & 64)
						v *= dgelu(ld(d.aux, (size_t)j * d.auxld + i, at));
					if (d.epi & 16)
						bg[i] += v;
					st(dd, (size_t)j * o.ld + i, o.t, v);
				}
			if (d.epi & 16)
				for (long i = 0; i < m; i++)
					st(d.bias, i, bt, bg[i]);
			if (d.epi & 256)
				for (long i = 0; i < m; i++) {
					float v = 0;
					for (long l = 0; l < k; l++)
						v += ld(ma.p,
							d.ta ? (size_t)i * a.ld + l
							     : (size_t)l * a.ld + i,
							a.t);
					st(d.bias, i, bt, v);
				}
			if (d.epi & 512)
				for (long j = 0; j < n; j++) {
					float v = 0;
					for (long l = 0; l < k; l++)
						v += ld(mb.p,
							d.tb ? (size_t)l * b.ld + j
							     : (size_t)j * b.ld + l,
							b.t);
					st(d.bias, j, bt, v);
				}
		}
		return true;
	});
	return CUBLAS_STATUS_SUCCESS;
}
}

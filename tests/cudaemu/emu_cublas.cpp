/* Test-only cuBLAS: products of one and of many matrices. */
#define CUBLASAPI
#include <cublas_v2.h>

#include "tests/cudaemu/emu_gemm.h"
#include "tests/cudaemu/emu_runtime.h"

struct cublasContext {
	cudaStream_t stream;
	cublasMath_t mode;
};

using namespace occ_emu;

namespace
{
Matrix operand(bool transposed, int64_t rows, int64_t columns, Matrix x)
{
	x.rows = transposed ? columns : rows;
	x.columns = transposed ? rows : columns;
	return x;
}

/* Unless it is told not to, cuBLAS may round parts of a sum to the type of the result. */
bool sums_stay_fp32(const char *call, cublasHandle_t h, const Product &p)
{
	if (p.d.type == CUDA_R_32F || (h->mode & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION))
		return true;
	say("%s: the handle's math mode allows reductions in bf16", call);
	return false;
}

cublasStatus_t product(const char *call, cublasHandle_t h, Product p)
{
	Lock l;
	if (fails(call))
		return CUBLAS_STATUS_EXECUTION_FAILED;
	p.a = operand(p.ta, p.m, p.k, p.a);
	p.b = operand(p.tb, p.k, p.n, p.b);
	p.c = p.d = operand(false, p.m, p.n, p.d);
	if (!types_fit(call, p) || !sums_stay_fp32(call, h, p))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	if (!shapes_fit(call, p))
		return CUBLAS_STATUS_INVALID_VALUE;
	first_use(code_of(call, p), stream_of(h->stream));
	cudaError_t e = enqueue_work(h->stream, [p] {
		std::vector<float> out;
		for (int i = 0; i < p.batch; i++) {
			Matrix d = member(p.d, i);
			multiply(p, i, out);
			for (int64_t j = 0; j < p.n; j++)
				store((void *)d.data, d.type, j * d.ld, p.m, out.data() + j * p.m);
		}
	});
	return e ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

bool sums_in_fp32(const char *call, cublasComputeType_t type)
{
	if (type == CUBLAS_COMPUTE_32F || type == CUBLAS_COMPUTE_32F_PEDANTIC)
		return true;
	say("%s: compute type %d is not emulated", call, (int)type);
	return false;
}
} // namespace

extern "C" {
cublasStatus_t cublasCreate_v2(cublasHandle_t *h)
{
	Lock l;
	if (fails("cublasCreate"))
		return CUBLAS_STATUS_ALLOC_FAILED;
	*h = new cublasContext{nullptr, CUBLAS_DEFAULT_MATH};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t h)
{
	delete h;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t stream)
{
	Lock l;
	if (!stream_of(stream))
		return CUBLAS_STATUS_INVALID_VALUE;
	h->stream = stream;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t h, cudaStream_t *stream)
{
	*stream = h->stream;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t mode)
{
	h->mode = mode; /* products stay fp32: TF32 is not imitated */
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t h, cublasMath_t *mode)
{
	*mode = h->mode;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void *workspace, size_t bytes)
{
	Lock l;
	return !bytes || is_device(workspace, bytes) ? CUBLAS_STATUS_SUCCESS
						     : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int *version)
{
	*version = CUBLAS_VERSION;
	return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusString(cublasStatus_t s)
{
	switch (s) {
	case CUBLAS_STATUS_SUCCESS:
		return "the operation completed successfully";
	case CUBLAS_STATUS_NOT_INITIALIZED:
		return "the library was not initialized";
	case CUBLAS_STATUS_ALLOC_FAILED:
		return "the resource allocation failed";
	case CUBLAS_STATUS_INVALID_VALUE:
		return "an invalid value was passed";
	case CUBLAS_STATUS_EXECUTION_FAILED:
		return "the function failed to launch on the GPU";
	case CUBLAS_STATUS_NOT_SUPPORTED:
		return "the functionality is not supported";
	default:
		return "an error of cuBLAS";
	}
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m,
			      int n, int k, const float *alpha, const float *a, int lda,
			      const float *b, int ldb, const float *beta, float *c, int ldc)
{
	Matrix ma = {a, CUDA_R_32F, 0, 0, lda, 0}, mb = {b, CUDA_R_32F, 0, 0, ldb, 0};
	Matrix mc = {c, CUDA_R_32F, 0, 0, ldc, 0};
	return product(
		"cublasSgemm", h,
		{ta != CUBLAS_OP_N, tb != CUBLAS_OP_N, m, n, k, *alpha, *beta, ma, mb, mc, mc, 1});
}

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m,
			    int n, int k, const void *alpha, const void *a, cudaDataType a_type,
			    int lda, const void *b, cudaDataType b_type, int ldb, const void *beta,
			    void *c, cudaDataType c_type, int ldc, cublasComputeType_t compute,
			    cublasGemmAlgo_t)
{
	Matrix ma = {a, a_type, 0, 0, lda, 0}, mb = {b, b_type, 0, 0, ldb, 0};
	Matrix mc = {c, c_type, 0, 0, ldc, 0};
	if (!sums_in_fp32(__func__, compute))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	return product(__func__, h,
		       {ta != CUBLAS_OP_N, tb != CUBLAS_OP_N, m, n, k, *(const float *)alpha,
			*(const float *)beta, ma, mb, mc, mc, 1});
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta,
					  cublasOperation_t tb, int m, int n, int k,
					  const void *alpha, const void *a, cudaDataType a_type,
					  int lda, long long a_stride, const void *b,
					  cudaDataType b_type, int ldb, long long b_stride,
					  const void *beta, void *c, cudaDataType c_type, int ldc,
					  long long c_stride, int batch,
					  cublasComputeType_t compute, cublasGemmAlgo_t)
{
	Matrix ma = {a, a_type, 0, 0, lda, a_stride}, mb = {b, b_type, 0, 0, ldb, b_stride};
	Matrix mc = {c, c_type, 0, 0, ldc, c_stride};
	if (!sums_in_fp32(__func__, compute))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	return product(__func__, h,
		       {ta != CUBLAS_OP_N, tb != CUBLAS_OP_N, m, n, k, *(const float *)alpha,
			*(const float *)beta, ma, mb, mc, mc, batch});
}
}

/* Test-only cublasLt: one product with what it does to its result on the way ("epilogue"). */
#include <cublasLt.h>

#include <cmath>
#include <cstring>

#include "tests/cudaemu/emu_gemm.h"
#include "tests/cudaemu/emu_runtime.h"

using namespace occ_emu;

namespace
{
/* The epilogues of cublasLt are sums of these. */
enum {
	BIAS = 4,
	ROW_SUMS = 16, /* into the bias, of the result */
	GELU = 32,
	DGELU = 64,
	AUX = 128,
	A_SUMS = 256, /* into the bias, of the operand over k */
	B_SUMS = 512
};

struct Description {
	cublasComputeType_t compute;
	int32_t ta, tb, epilogue, bias_type, aux_type;
	void *bias, *aux;
	int64_t aux_ld;
};

struct Layout {
	cudaDataType type;
	uint64_t rows, columns;
	int64_t ld;
	int32_t batch;
	int64_t stride;
};

Matrix matrix(const void *data, cublasLtMatrixLayout_t layout)
{
	const Layout &x = *(const Layout *)layout;
	return {data, x.type, (int64_t)x.rows, (int64_t)x.columns, x.ld, x.stride};
}

struct Work {
	Product p;
	Description d;
	cudaDataType bias_type, aux_type;
};

Work gather(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
	    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d)
{
	Work w = {};
	w.d = *(const Description *)desc;
	w.p.ta = w.d.ta != CUBLAS_OP_N;
	w.p.tb = w.d.tb != CUBLAS_OP_N;
	w.p.a = matrix(nullptr, a);
	w.p.b = matrix(nullptr, b);
	w.p.c = matrix(nullptr, c);
	w.p.d = matrix(nullptr, d);
	w.p.m = w.p.d.rows;
	w.p.n = w.p.d.columns;
	w.p.k = w.p.ta ? w.p.a.rows : w.p.a.columns;
	w.p.batch = ((const Layout *)d)->batch;
	w.bias_type = w.d.bias_type < 0 ? w.p.d.type : (cudaDataType)w.d.bias_type;
	w.aux_type = w.d.aux_type < 0 ? w.p.d.type : (cudaDataType)w.d.aux_type;
	return w;
}

bool epilogue_fits(const Work &w)
{
	switch (w.d.epilogue) {
	case CUBLASLT_EPILOGUE_DEFAULT:
	case CUBLASLT_EPILOGUE_BIAS:
	case CUBLASLT_EPILOGUE_GELU:
	case CUBLASLT_EPILOGUE_GELU_BIAS:
	case CUBLASLT_EPILOGUE_GELU_AUX:
	case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
	case CUBLASLT_EPILOGUE_DGELU:
	case CUBLASLT_EPILOGUE_DGELU_BGRAD:
	case CUBLASLT_EPILOGUE_BGRADA:
	case CUBLASLT_EPILOGUE_BGRADB:
		break;
	default:
		say("cublasLt: epilogue %d is not emulated", w.d.epilogue);
		return false;
	}
	if (!(w.d.epilogue & AUX) || (w.d.aux_ld >= w.p.m && w.d.aux_ld % 8 == 0))
		return true;
	say("cublasLt: the auxiliary matrix of %lld rows has leading dimension %lld (a multiple of "
	    "8, at least the rows)",
	    (long long)w.p.m, (long long)w.d.aux_ld);
	return false;
}

bool work_fits(const Work &w)
{
	const Product &p = w.p;
	int64_t m = p.ta ? p.a.columns : p.a.rows, n = p.tb ? p.b.rows : p.b.columns;
	int64_t k = p.tb ? p.b.columns : p.b.rows;
	if (m != p.m || n != p.n || k != p.k || p.c.rows != p.m || p.c.columns != p.n) {
		say("cublasLt: a gives %lld rows, b gives %lld columns, the result is %lld x %lld",
		    (long long)m, (long long)n, (long long)p.m, (long long)p.n);
		return false;
	}
	return types_fit("cublasLt", p) && epilogue_fits(w);
}

bool buffers_fit(const Work &w)
{
	const Product &p = w.p;
	int64_t bias = w.d.epilogue & B_SUMS ? p.n : p.m;
	size_t unit = w.bias_type == CUDA_R_32F ? 4 : 2,
	       aux_unit = w.aux_type == CUDA_R_32F ? 4 : 2;
	if (!shapes_fit("cublasLtMatmul", p))
		return false;
	if ((w.d.epilogue & (BIAS | ROW_SUMS | A_SUMS | B_SUMS)) &&
	    !is_device(w.d.bias, (size_t)bias * unit)) {
		say("cublasLtMatmul: the bias does not lie in one allocation of device memory");
		return false;
	}
	if ((w.d.epilogue & AUX) &&
	    !is_device(w.d.aux, (size_t)(w.d.aux_ld * (p.n - 1) + p.m) * aux_unit)) {
		say("cublasLtMatmul: the auxiliary matrix does not lie in one allocation");
		return false;
	}
	return true;
}

/* Kernels read and write a bias and an auxiliary matrix in vectors of 16 bytes. */
bool aligned(const Work &w)
{
	bool bias = w.d.epilogue & (BIAS | ROW_SUMS | A_SUMS | B_SUMS), aux = w.d.epilogue & AUX;
	if ((!bias || (uintptr_t)w.d.bias % 16 == 0) && (!aux || (uintptr_t)w.d.aux % 16 == 0))
		return true;
	say("cublasLtMatmul: the bias at %p, the auxiliary matrix at %p: not 16-byte aligned",
	    bias ? w.d.bias : nullptr, aux ? w.d.aux : nullptr);
	return false;
}

/* Unless it is told not to, cublasLt may round parts of a sum to the type of the result. */
bool sums_stay_fp32(const Work &w, uint32_t schemes)
{
	if (w.p.d.type == CUDA_R_32F || !(schemes & ~CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE))
		return true;
	say("cublasLtMatmulAlgoGetHeuristic: the preference allows reductions in bf16");
	return false;
}

/* What the heuristic believes of their alignment it takes from the pointers. */
bool pointers_known(const Work &w)
{
	bool bias = w.d.epilogue & (BIAS | ROW_SUMS | A_SUMS | B_SUMS), aux = w.d.epilogue & AUX;
	if ((!bias || w.d.bias) && (!aux || w.d.aux))
		return true;
	say("cublasLtMatmulAlgoGetHeuristic: asked before it knows the epilogue's pointers");
	return false;
}

float inner(float x)
{
	return tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
}

float gelu(float x)
{
	return 0.5f * x * (1.0f + inner(x));
}

float gelu_slope(float x)
{
	float t = inner(x);
	return 0.5f * (1.0f + t) +
	       0.5f * x * (1.0f - t * t) * 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
}

void finish_column(const Work &w, int64_t j, float *column)
{
	std::vector<float> aux((size_t)w.p.m);
	int64_t m = w.p.m, at = j * w.d.aux_ld;
	if (w.d.epilogue & BIAS)
		for (int64_t i = 0; i < m; i++)
			column[i] += element(w.d.bias, w.bias_type, i);
	if (w.d.epilogue & GELU) {
		if (w.d.epilogue & AUX)
			store(w.d.aux, w.aux_type, at, m, column);
		for (int64_t i = 0; i < m; i++)
			column[i] = gelu(column[i]);
	}
	if (w.d.epilogue & DGELU) {
		load(w.d.aux, w.aux_type, at, m, aux.data());
		for (int64_t i = 0; i < m; i++)
			column[i] *= gelu_slope(aux[(size_t)i]);
	}
}

/* Of op(x) over k: element (i, l) of it stands at i * step + l * next. */
void operand_sums(const Work &w, const Matrix &x, int64_t n, int64_t step, int64_t next)
{
	for (int64_t i = 0; i < n; i++) {
		float sum = 0;
		for (int64_t l = 0; l < w.p.k; l++)
			sum += element(x.data, x.type, i * step + l * next);
		store(w.d.bias, w.bias_type, i, 1, &sum);
	}
}

void run(const Work &w)
{
	const Product &p = w.p;
	std::vector<float> out, sums((size_t)p.m, 0.0f);
	for (int b = 0; b < p.batch; b++) {
		Matrix d = member(p.d, b);
		multiply(p, b, out);
		for (int64_t j = 0; j < p.n; j++) {
			float *column = out.data() + j * p.m;
			finish_column(w, j, column);
			for (int64_t i = 0; i < p.m; i++)
				sums[(size_t)i] += column[i];
			store((void *)d.data, d.type, j * d.ld, p.m, column);
		}
	}
	if (w.d.epilogue & ROW_SUMS)
		store(w.d.bias, w.bias_type, 0, p.m, sums.data());
	if (w.d.epilogue & A_SUMS)
		operand_sums(w, p.a, p.m, p.ta ? p.a.ld : 1, p.ta ? 1 : p.a.ld);
	if (w.d.epilogue & B_SUMS)
		operand_sums(w, p.b, p.n, p.tb ? 1 : p.b.ld, p.tb ? p.b.ld : 1);
}

template <class T> cublasStatus_t set(T *field, const void *value, size_t bytes)
{
	if (bytes < sizeof(T))
		return CUBLAS_STATUS_INVALID_VALUE;
	memcpy(field, value, sizeof(T));
	return CUBLAS_STATUS_SUCCESS;
}
} // namespace

extern "C" {
cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
	*h = (cublasLtHandle_t) new int(0);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
	delete (int *)h;
	return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
	return CUBLAS_VERSION;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute,
					cudaDataType scale)
{
	if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	*d = (cublasLtMatmulDesc_t) new Description{
		compute, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
		-1,      -1,          nullptr,     nullptr,
		0};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
	delete (Description *)d;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
					      cublasLtMatmulDescAttributes_t attribute,
					      const void *value, size_t bytes)
{
	Description *d = (Description *)desc;
	switch (attribute) {
	case CUBLASLT_MATMUL_DESC_TRANSA:
		return set(&d->ta, value, bytes);
	case CUBLASLT_MATMUL_DESC_TRANSB:
		return set(&d->tb, value, bytes);
	case CUBLASLT_MATMUL_DESC_EPILOGUE:
		return set(&d->epilogue, value, bytes);
	case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
		return set(&d->bias, value, bytes);
	case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
		return set(&d->bias_type, value, bytes);
	case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
		return set(&d->aux, value, bytes);
	case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
		return set(&d->aux_ld, value, bytes);
	case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
		return set(&d->aux_type, value, bytes);
	default:
		return CUBLAS_STATUS_NOT_SUPPORTED;
	}
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type,
					  uint64_t rows, uint64_t columns, int64_t ld)
{
	*l = (cublasLtMatrixLayout_t) new Layout{type, rows, columns, ld, 1, 0};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
	delete (Layout *)l;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
						cublasLtMatrixLayoutAttribute_t attribute,
						const void *value, size_t bytes)
{
	if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
		return set(&((Layout *)l)->batch, value, bytes);
	if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
		return set(&((Layout *)l)->stride, value, bytes);
	return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
	*p = (cublasLtMatmulPreference_t) new uint32_t(CUBLASLT_REDUCTION_SCHEME_MASK);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
	delete (uint32_t *)p;
	return CUBLAS_STATUS_SUCCESS;
}

/* Of what can be preferred the emulation heeds the ways in which split sums may meet. */
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
						    cublasLtMatmulPreferenceAttributes_t attribute,
						    const void *value, size_t bytes)
{
	if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
		return set((uint32_t *)p, value, bytes);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
					      cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
					      cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
					      cublasLtMatmulPreference_t preference, int wanted,
					      cublasLtMatmulHeuristicResult_t *results, int *found)
{
	Lock l;
	*found = 0;
	if (wanted < 1)
		return CUBLAS_STATUS_INVALID_VALUE;
	Work w = gather(desc, a, b, c, d);
	if (fails(__func__) || !work_fits(w) || !pointers_known(w) ||
	    !sums_stay_fp32(w, *(const uint32_t *)preference))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	memset(results, 0, sizeof(*results));
	results->state = CUBLAS_STATUS_SUCCESS;
	*found = 1;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha,
			      const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
			      cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
			      cublasLtMatrixLayout_t c_layout, void *d,
			      cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *,
			      void *workspace, size_t bytes, cudaStream_t stream)
{
	Lock l;
	Work w = gather(desc, a_layout, b_layout, c_layout, d_layout);
	if (fails(__func__))
		return CUBLAS_STATUS_EXECUTION_FAILED;
	if (fails("cublasLtMatmul-refuses"))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	w.p.alpha = *(const float *)alpha;
	w.p.beta = *(const float *)beta;
	w.p.a.data = a;
	w.p.b.data = b;
	w.p.c.data = c;
	w.p.d.data = d;
	if (!work_fits(w) || !buffers_fit(w) || (bytes && !is_device(workspace, bytes)))
		return CUBLAS_STATUS_INVALID_VALUE;
	first_use(code_of(__func__, w.p), stream_of(stream));
	int device = current_device();
	bool faults = !aligned(w);
	if (enqueue_work(stream, [=] {
		    if (faults)
			    devices()[(size_t)device].fault = cudaErrorMisalignedAddress;
		    else
			    run(w);
	    }))
		return CUBLAS_STATUS_EXECUTION_FAILED;
	return CUBLAS_STATUS_SUCCESS;
}
}

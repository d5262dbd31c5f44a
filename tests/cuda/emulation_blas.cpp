/* The emulated cuBLAS and cublasLt against plain loops: random shapes, both types, every epilogue;
 * and what they refuse. Compiled as .cu files are. */
#include "tests/check.h"
#include "tests/cuda/child.h"
#include "tests/cuda/quiet.h"

#include <cmath>
#include <fcntl.h>
#include <random>
#include <unistd.h>
#include <vector>

#include <cublasLt.h>
#include <cublas_v2.h>

namespace
{
std::mt19937 rng(5);

int pick(int from, int to)
{
	return from + (int)(rng() % (unsigned)(to - from + 1));
}

float rounded(float v, cudaDataType t)
{
	return t == CUDA_R_32F ? v : __bfloat162float(__float2bfloat16_rn(v));
}

/* A matrix on the device, column-major, and the same numbers in fp32 here. */
struct Array {
	cudaDataType type = CUDA_R_32F;
	int64_t rows = 0, columns = 0, ld = 0;
	std::vector<float> v;
	void *d = nullptr;

	size_t unit() const
	{
		return type == CUDA_R_32F ? 4 : 2;
	}

	Array(cudaDataType t, int64_t r, int64_t c, int gap, bool drawn)
	    : type(t), rows(r), columns(c)
	{
		ld = (r ? r : 1) + gap;
		v.assign((size_t)(ld * (c ? c : 1)), NAN);
		for (float &x : v)
			x = drawn ? rounded(std::normal_distribution<float>()(rng), t) : NAN;
		cudaMalloc(&d, v.size() * unit());
		put();
	}

	~Array()
	{
		cudaFree(d);
	}
	Array(const Array &) = delete;

	void put()
	{
		std::vector<__nv_bfloat16> half(v.size());
		for (size_t i = 0; i < v.size(); i++)
			half[i] = __float2bfloat16_rn(v[i]);
		const void *from = unit() == 4 ? (const void *)v.data() : (const void *)half.data();
		cudaMemcpy(d, from, v.size() * unit(), cudaMemcpyHostToDevice);
	}

	void get()
	{
		std::vector<__nv_bfloat16> half(v.size());
		void *to = unit() == 4 ? (void *)v.data() : (void *)half.data();
		cudaMemcpy(to, d, v.size() * unit(), cudaMemcpyDeviceToHost);
		for (size_t i = 0; i < v.size() && unit() == 2; i++)
			v[i] = __bfloat162float(half[i]);
	}

	float at(int64_t i, int64_t j, bool transposed = false) const
	{
		return v[(size_t)(transposed ? i * ld + j : j * ld + i)];
	}
};

double dot(const Array &a, bool ta, const Array &b, bool tb, int64_t k, int64_t i, int64_t j)
{
	double sum = 0;
	for (int64_t l = 0; l < k; l++)
		sum += (double)a.at(i, l, ta) * b.at(l, j, tb);
	return sum;
}

double tolerance(cudaDataType t, double v)
{
	return (t == CUDA_R_32F ? 1e-5 : 0.0045) * (fabs(v) + 1);
}

struct Shape {
	bool ta, tb;
	int m, n, k;
};

Shape draw_shape()
{
	return {(rng() & 1) != 0, (rng() & 1) != 0, pick(1, 20), pick(1, 20), pick(0, 20)};
}

cublasOperation_t operation(bool transposed)
{
	return transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

void check_product(cublasHandle_t h, int round)
{
	Shape s = draw_shape();
	cudaDataType in = rng() & 1 ? CUDA_R_16BF : CUDA_R_32F;
	cudaDataType out = in == CUDA_R_32F || (rng() & 1) ? CUDA_R_32F : CUDA_R_16BF;
	float alpha = 0.5f, beta = rng() & 1 ? 0.0f : 2.0f;
	Array a(in, s.ta ? s.k : s.m, s.ta ? s.m : s.k, pick(0, 3), true);
	Array b(in, s.tb ? s.n : s.k, s.tb ? s.k : s.n, pick(0, 3), true);
	Array c(out, s.m, s.n, pick(0, 3), beta != 0); /* beta 0: c holds NaN */
	Array before(out, 0, 0, 0, false);
	before.v = c.v;
	before.ld = c.ld;
	CHECK(!cublasGemmEx(h, operation(s.ta), operation(s.tb), s.m, s.n, s.k, &alpha, a.d, in,
			    (int)a.ld, b.d, in, (int)b.ld, &beta, c.d, out, (int)c.ld,
			    CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
	      "round %d", round);
	c.get();
	for (int j = 0; j < s.n; j++)
		for (int i = 0; i < s.m; i++) {
			double v = alpha * dot(a, s.ta, b, s.tb, s.k, i, j);
			if (beta != 0)
				v += beta * before.at(i, j);
			CHECK_NEAR(c.at(i, j), v, tolerance(out, v), "round %d: %g, not %g", round,
				   c.at(i, j), v);
		}
}

/* Heads side by side, as attention has them: their strides are shorter than a matrix. */
void check_batch(cublasHandle_t h)
{
	enum { HEADS = 3, T = 5, S = 4 };
	float one = 1, zero = 0;
	Array a(CUDA_R_16BF, HEADS * S, T, 0, true), b(CUDA_R_16BF, HEADS * S, T, 0, true);
	Array c(CUDA_R_32F, T, T * HEADS, 0, false);
	CHECK(!cublasGemmStridedBatchedEx(h, CUBLAS_OP_T, CUBLAS_OP_N, T, T, S, &one, a.d, a.type,
					  HEADS * S, S, b.d, b.type, HEADS * S, S, &zero, c.d,
					  c.type, T, T * T, HEADS, CUBLAS_COMPUTE_32F,
					  CUBLAS_GEMM_DEFAULT),
	      "batch");
	c.get();
	for (int x = 0; x < HEADS; x++)
		for (int j = 0; j < T; j++)
			for (int i = 0; i < T; i++) {
				double v = 0;
				for (int l = 0; l < S; l++)
					v += (double)a.at(x * S + l, i) * b.at(x * S + l, j);
				CHECK_NEAR(c.at(i, x * T + j), v, 1e-5, "head %d", x);
			}
}

void check_sgemm(cublasHandle_t h)
{
	float one = 1;
	Array a(CUDA_R_32F, 3, 4, 1, true), b(CUDA_R_32F, 4, 5, 2, true);
	Array c(CUDA_R_32F, 3, 5, 0, true), before(CUDA_R_32F, 0, 0, 0, false);
	before.v = c.v;
	before.ld = c.ld;
	CHECK(!cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 3, 5, 4, &one, (float *)a.d, (int)a.ld,
			   (float *)b.d, (int)b.ld, &one, (float *)c.d, (int)c.ld),
	      "sgemm");
	c.get();
	for (int j = 0; j < 5; j++)
		for (int i = 0; i < 3; i++)
			CHECK_NEAR(c.at(i, j), dot(a, false, b, false, 4, i, j) + before.at(i, j),
				   1e-5, "%d, %d", i, j);
}

cublasStatus_t ask(cublasHandle_t h, const Array &a, const Array &b, const Array &c, int lda, int m)
{
	float one = 1, zero = 0;
	Quiet q;
	return cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, m, 4, 4, &one, a.d, a.type, lda, b.d,
			    b.type, 4, &zero, c.d, c.type, m, CUBLAS_COMPUTE_32F,
			    CUBLAS_GEMM_DEFAULT);
}

void check_refusals(cublasHandle_t h)
{
	Array a(CUDA_R_32F, 4, 4, 0, true), half(CUDA_R_16BF, 4, 4, 0, true);
	CHECK(ask(h, a, a, a, 4, 4) == CUBLAS_STATUS_SUCCESS, "right");
	CHECK(ask(h, a, a, a, 3, 4) == CUBLAS_STATUS_INVALID_VALUE, "leading dimension");
	CHECK(ask(h, a, a, a, 5, 4) == CUBLAS_STATUS_INVALID_VALUE, "past the allocation");
	CHECK(ask(h, a, a, a, 4, -1) == CUBLAS_STATUS_INVALID_VALUE, "shape");
	CHECK(ask(h, a, a, half, 4, 4) == CUBLAS_STATUS_NOT_SUPPORTED, "fp32 to bf16");
	CHECK(ask(h, a, half, a, 4, 4) == CUBLAS_STATUS_NOT_SUPPORTED, "mixed operands");
	CHECK(ask(h, half, half, a, 4, 4) == CUBLAS_STATUS_SUCCESS, "bf16 to fp32");
	CHECK(ask(h, half, half, half, 4, 4) == CUBLAS_STATUS_SUCCESS, "bf16");
	CHECK(!cublasSetMathMode(h, CUBLAS_DEFAULT_MATH), "mode");
	CHECK(ask(h, half, half, half, 4, 4) == CUBLAS_STATUS_NOT_SUPPORTED, "sums in bf16");
	CHECK(ask(h, a, a, a, 4, 4) == CUBLAS_STATUS_SUCCESS, "fp32 in any mode");
}

/* ---- cublasLt ---- */

template <class T>
void set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute, T value)
{
	CHECK(!cublasLtMatmulDescSetAttribute(d, attribute, &value, sizeof(value)), "attribute %d",
	      (int)attribute);
}

struct Layout {
	cublasLtMatrixLayout_t l = nullptr;
	explicit Layout(const Array &x)
	{
		cublasLtMatrixLayoutCreate(&l, x.type, (uint64_t)x.rows, (uint64_t)x.columns, x.ld);
	}
	~Layout()
	{
		cublasLtMatrixLayoutDestroy(l);
	}
};

uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

cublasStatus_t matmul(cublasLtHandle_t h, const Shape &s, int epilogue, const Array &a,
		      const Array &b, const Array &c, const Array *bias, const Array *aux)
{
	cublasLtMatmulDesc_t d;
	cublasLtMatmulPreference_t preference;
	cublasLtMatmulHeuristicResult_t found;
	Layout la(a), lb(b), lc(c);
	int n = 0;
	float one = 1, zero = 0;
	Quiet q;
	cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F);
	set(d, CUBLASLT_MATMUL_DESC_TRANSA, operation(s.ta));
	set(d, CUBLASLT_MATMUL_DESC_TRANSB, operation(s.tb));
	set(d, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
	if (bias)
		set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias->d);
	if (aux) {
		set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux->d);
		set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux->ld);
	}
	cublasLtMatmulPreferenceCreate(&preference);
	cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
					     &schemes, sizeof(schemes));
	cublasStatus_t r = cublasLtMatmulAlgoGetHeuristic(h, d, la.l, lb.l, lc.l, lc.l, preference,
							  1, &found, &n);
	if (!r)
		r = cublasLtMatmul(h, d, &one, a.d, la.l, b.d, lb.l, &zero, c.d, lc.l, c.d, lc.l,
				   &found.algo, nullptr, 0, nullptr);
	cublasLtMatmulPreferenceDestroy(preference);
	cublasLtMatmulDescDestroy(d);
	return r;
}

double gelu(double x)
{
	return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

double gelu_slope(double x)
{
	return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5;
}

void check_forward(cublasLtHandle_t h, cudaDataType t, bool with_bias, bool with_gelu)
{
	Shape s = draw_shape();
	Array a(t, s.ta ? s.k : s.m, s.ta ? s.m : s.k, 0, true);
	Array b(t, s.tb ? s.n : s.k, s.tb ? s.k : s.n, 1, true), c(t, s.m, s.n, 0, false);
	Array bias(t, s.m, 1, 0, true), aux(t, s.m, s.n, (8 - s.m % 8) % 8, false);
	int epilogue = !with_gelu ? (with_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT)
		       : with_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
				   : CUBLASLT_EPILOGUE_GELU_AUX;
	CHECK(!matmul(h, s, epilogue, a, b, c, with_bias ? &bias : nullptr,
		      with_gelu ? &aux : nullptr),
	      "epilogue %d", epilogue);
	c.get();
	aux.get();
	for (int j = 0; j < s.n; j++)
		for (int i = 0; i < s.m; i++) {
			double v = dot(a, s.ta, b, s.tb, s.k, i, j);
			v += with_bias ? bias.at(i, 0) : 0;
			if (with_gelu)
				CHECK_NEAR(aux.at(i, j), v, tolerance(t, v), "aux %d", epilogue);
			v = with_gelu ? gelu(v) : v;
			CHECK_NEAR(c.at(i, j), v, tolerance(t, v), "epilogue %d", epilogue);
		}
}

void check_gelu_backward(cublasLtHandle_t h, cudaDataType t)
{
	Shape s = draw_shape();
	Array a(t, s.ta ? s.k : s.m, s.ta ? s.m : s.k, 0, true);
	Array b(t, s.tb ? s.n : s.k, s.tb ? s.k : s.n, 0, true), c(t, s.m, s.n, 0, false);
	Array bias(t, s.m, 1, 0, false), aux(t, s.m, s.n, (8 - s.m % 8) % 8, true);
	CHECK(!matmul(h, s, CUBLASLT_EPILOGUE_DGELU_BGRAD, a, b, c, &bias, &aux), "dgelu");
	c.get();
	bias.get();
	for (int i = 0; i < s.m; i++) {
		double sum = 0, size = 0;
		for (int j = 0; j < s.n; j++) {
			double v = dot(a, s.ta, b, s.tb, s.k, i, j) * gelu_slope(aux.at(i, j));
			CHECK_NEAR(c.at(i, j), v, tolerance(t, v), "dgelu");
			sum += v;
			size += fabs(v);
		}
		CHECK_NEAR(bias.at(i, 0), sum, tolerance(t, size), "sums of rows");
	}
}

void check_operand_sums(cublasLtHandle_t h, cudaDataType t, bool of_a)
{
	Shape s = draw_shape();
	Array a(t, s.ta ? s.k : s.m, s.ta ? s.m : s.k, 2, true);
	Array b(t, s.tb ? s.n : s.k, s.tb ? s.k : s.n, 1, true), c(t, s.m, s.n, 0, false);
	int n = of_a ? s.m : s.n;
	Array bias(t, n, 1, 0, false);
	CHECK(!matmul(h, s, of_a ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB, a, b, c,
		      &bias, nullptr),
	      "sums");
	bias.get();
	for (int i = 0; i < n; i++) {
		double sum = 0, size = 0;
		for (int l = 0; l < s.k; l++) {
			double v = of_a ? a.at(i, l, s.ta) : b.at(l, i, s.tb);
			sum += v;
			size += fabs(v);
		}
		CHECK_NEAR(bias.at(i, 0), sum, tolerance(t, size), "sums of an operand");
	}
}

void check_lt_refusals(cublasLtHandle_t h)
{
	Shape s = {false, false, 4, 4, 4};
	Array a(CUDA_R_16BF, 4, 4, 0, true), wide(CUDA_R_16BF, 4, 5, 0, true);
	Array aux(CUDA_R_16BF, 4, 4, 4, true), short_bias(CUDA_R_16BF, 3, 1, 0, true);
	CHECK(!matmul(h, s, CUBLASLT_EPILOGUE_GELU_AUX, a, a, a, nullptr, &aux), "right");
	CHECK(matmul(h, s, CUBLASLT_EPILOGUE_GELU_AUX, a, a, a, nullptr, &a), "aux of 4 rows");
	CHECK(matmul(h, s, CUBLASLT_EPILOGUE_DEFAULT, a, wide, a, nullptr, nullptr), "shape");
	CHECK(matmul(h, s, CUBLASLT_EPILOGUE_BIAS, a, a, a, &short_bias, nullptr), "short bias");
	CHECK(matmul(h, s, CUBLASLT_EPILOGUE_RELU, a, a, a, nullptr, nullptr), "epilogue");
	CHECK(matmul(h, s, CUBLASLT_EPILOGUE_BIAS, a, a, a, nullptr, nullptr), "no pointer");
	schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
	CHECK(matmul(h, s, CUBLASLT_EPILOGUE_DEFAULT, a, a, a, nullptr, nullptr), "sums in bf16");
	schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

/* A bias, or what GELU was of, that vectors of 16 bytes cannot take: a GPU is broken by it. */
void misaligned(int epilogue, size_t bias_at, size_t aux_at)
{
	Shape s = {false, false, 8, 8, 8};
	Array a(CUDA_R_16BF, 8, 8, 0, true), c(CUDA_R_16BF, 8, 8, 0, false);
	Array bias(CUDA_R_16BF, 24, 1, 0, true), aux(CUDA_R_16BF, 24, 8, 0, true);
	cublasLtHandle_t h;
	REQUIRE(!cublasLtCreate(&h));
	(char *&)bias.d += bias_at;
	(char *&)aux.d += aux_at;
	aux.ld = 8;
	matmul(h, s, epilogue, a, a, c, &bias, &aux);
	bool fits = bias_at % 16 == 0 && aux_at % 16 == 0;
	REQUIRE(cudaDeviceSynchronize() == (fits ? cudaSuccess : cudaErrorMisalignedAddress));
	_exit(0);
}

void misaligned_bias()
{
	misaligned(CUBLASLT_EPILOGUE_BIAS, 2, 0);
}

void misaligned_aux()
{
	misaligned(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 16, 8);
}

void aligned()
{
	misaligned(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 32, 16);
}

const std::vector<Case> cases = {
	{"misaligned-bias", misaligned_bias, "", ""},
	{"misaligned-aux", misaligned_aux, "", ""},
	{"aligned", aligned, "", ""},
};
} // namespace

int main(int argc, char **argv)
{
	cublasHandle_t h;
	cublasLtHandle_t lt;
	cudaStream_t stream;
	run_if_child(argc, argv, cases);
	for (const Case &c : cases)
		check_case(c, "");
	cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
	CHECK(!cublasCreate(&h) && !cublasLtCreate(&lt), "handles");
	CHECK(!cublasSetMathMode(h,
				 (cublasMath_t)(CUBLAS_DEFAULT_MATH |
						CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)),
	      "mode");
	for (int i = 0; i < 100; i++)
		check_product(h, i);
	check_batch(h);
	check_sgemm(h);
	check_refusals(h);
	for (int i = 0; i < 40; i++) {
		cudaDataType t = i & 1 ? CUDA_R_16BF : CUDA_R_32F;
		check_forward(lt, t, i & 2, i & 4);
		check_gelu_backward(lt, t);
		check_operand_sums(lt, t, i & 2);
	}
	check_lt_refusals(lt);
	CHECK(!cublasDestroy(h) && !cublasLtDestroy(lt) && !cudaStreamDestroy(stream), "end");
	return check_done();
}

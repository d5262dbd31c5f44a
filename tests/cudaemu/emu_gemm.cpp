#include "tests/cudaemu/emu_gemm.h"

#include <cblas.h>
#include <cuda_bf16.h>

#include "tests/cudaemu/emu_runtime.h"

namespace occ_emu
{
namespace
{
size_t size_of(cudaDataType t)
{
	return t == CUDA_R_32F ? 4 : 2;
}

bool known(cudaDataType t)
{
	return t == CUDA_R_32F || t == CUDA_R_16BF;
}

bool matrix_fits(const char *call, const char *name, const Matrix &x, int batch)
{
	if (x.rows < 0 || x.columns < 0 || x.ld < (x.rows > 1 ? x.rows : 1)) {
		say("%s: %s is %lld x %lld with leading dimension %lld", call, name,
		    (long long)x.rows, (long long)x.columns, (long long)x.ld);
		return false;
	}
	if (!x.rows || !x.columns || !batch)
		return true;
	int64_t n = x.ld * (x.columns - 1) + x.rows + x.stride * (batch - 1);
	if (is_device(x.data, (size_t)n * size_of(x.type)))
		return true;
	say("%s: %s does not lie in one allocation of device memory (%lld elements at %p)", call,
	    name, (long long)n, x.data);
	return false;
}

/* fp32, with no columns between which something else lies unless it is fp32 as it stands. */
const float *widened(const Matrix &x, std::vector<float> &room, int64_t *ld)
{
	*ld = x.ld;
	if (x.type == CUDA_R_32F)
		return (const float *)x.data;
	*ld = x.rows > 1 ? x.rows : 1;
	room.resize((size_t)(*ld * x.columns));
	for (int64_t j = 0; j < x.columns; j++)
		load(x.data, x.type, j * x.ld, x.rows, room.data() + j * *ld);
	return room.data();
}
} // namespace

Matrix member(const Matrix &x, int i)
{
	Matrix out = x;
	out.data = (const char *)x.data + x.stride * i * (int64_t)size_of(x.type);
	return out;
}

void load(const void *x, cudaDataType type, int64_t at, int64_t n, float *to)
{
	for (int64_t i = 0; i < n; i++)
		to[i] = element(x, type, at + i);
}

float element(const void *x, cudaDataType type, int64_t at)
{
	if (type == CUDA_R_32F)
		return ((const float *)x)[at];
	return __bfloat162float(((const __nv_bfloat16 *)x)[at]);
}

void store(void *x, cudaDataType type, int64_t at, int64_t n, const float *from)
{
	for (int64_t i = 0; i < n; i++) {
		if (type == CUDA_R_32F)
			((float *)x)[at + i] = from[i];
		else
			((__nv_bfloat16 *)x)[at + i] = __float2bfloat16_rn(from[i]);
	}
}

bool types_fit(const char *call, const Product &p)
{
	if (known(p.a.type) && p.a.type == p.b.type && known(p.c.type) && p.c.type == p.d.type &&
	    (p.a.type == CUDA_R_16BF || p.d.type == CUDA_R_32F))
		return true;
	say("%s: cuBLAS has no product of types %d and %d with a result of type %d", call,
	    (int)p.a.type, (int)p.b.type, (int)p.d.type);
	return false;
}

bool shapes_fit(const char *call, const Product &p)
{
	if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0) {
		say("%s: %lld x %lld x %lld", call, (long long)p.m, (long long)p.n, (long long)p.k);
		return false;
	}
	return matrix_fits(call, "a", p.a, p.batch) && matrix_fits(call, "b", p.b, p.batch) &&
	       (p.beta == 0 || matrix_fits(call, "c", p.c, p.batch)) &&
	       matrix_fits(call, "d", p.d, p.batch);
}

void multiply(const Product &p, int i, std::vector<float> &out)
{
	std::vector<float> a_room, b_room, c_column((size_t)p.m);
	Matrix a = member(p.a, i), b = member(p.b, i), c = member(p.c, i);
	int64_t lda, ldb;
	out.assign((size_t)(p.m * p.n), 0.0f);
	if (p.m && p.n && p.k && p.alpha != 0) {
		const float *fa = widened(a, a_room, &lda), *fb = widened(b, b_room, &ldb);
		cblas_sgemm(CblasColMajor, p.ta ? CblasTrans : CblasNoTrans,
			    p.tb ? CblasTrans : CblasNoTrans, (int)p.m, (int)p.n, (int)p.k, p.alpha,
			    fa, (int)lda, fb, (int)ldb, 0.0f, out.data(), (int)p.m);
	}
	for (int64_t j = 0; p.beta != 0 && j < p.n; j++) { /* else c is not read: it may be NaN */
		load(c.data, c.type, j * c.ld, p.m, c_column.data());
		for (int64_t r = 0; r < p.m; r++)
			out[(size_t)(j * p.m + r)] += p.beta * c_column[(size_t)r];
	}
}

std::string code_of(const char *call, const Product &p)
{
	std::string code = call;
	for (int64_t x : {(int64_t)p.ta, (int64_t)p.tb, p.m, p.n, p.k, (int64_t)p.a.type,
			  (int64_t)p.d.type, (int64_t)p.batch})
		code += " " + std::to_string(x);
	return code;
}
} // namespace occ_emu

/* Matrix products on the CPU, for the emulated cuBLAS and cublasLt: inputs are widened to fp32,
 * products are summed in fp32, results rounded once. Column-major, as cuBLAS. */
#ifndef OCC_TESTS_EMU_GEMM_H
#define OCC_TESTS_EMU_GEMM_H

#include <cstdint>
#include <string>
#include <vector>

#include <library_types.h>

namespace occ_emu
{
struct Matrix {
	const void *data;
	cudaDataType type;
	int64_t rows, columns, ld; /* as stored */
	int64_t stride;            /* elements between those of a batch */
};

/* d = alpha op(a) op(b) + beta c */
struct Product {
	bool ta, tb;
	int64_t m, n, k;
	float alpha, beta;
	Matrix a, b, c, d;
	int batch;
};

Matrix member(const Matrix &x, int i); /* the i-th of a batch */
void load(const void *x, cudaDataType type, int64_t at, int64_t n, float *to);
void store(void *x, cudaDataType type, int64_t at, int64_t n, const float *from);
float element(const void *x, cudaDataType type, int64_t at);

/* Whether cuBLAS multiplies these types. */
bool types_fit(const char *call, const Product &p);
/* Whether shapes, leading dimensions and the sizes of the allocations fit each other. */
bool shapes_fit(const char *call, const Product &p);
/* Which code multiplies: other types, layouts and sizes, other code. */
std::string code_of(const char *call, const Product &p);
/* The i-th result before it is rounded, m x n without gaps. */
void multiply(const Product &p, int i, std::vector<float> &out);
} // namespace occ_emu

#endif

/* Small fp32 products for attention: c (rows, cols) = or += a (rows, K) * b (K, cols), on padded
 * blocks that lie in the first caches: rows come in tiles of MR, columns in tiles of NR, buffers
 * are large enough for whole tiles. */
#ifndef OCC_BASE_CPU_TILE_H
#define OCC_BASE_CPU_TILE_H

#include "base/vmath.h"

/* The accumulators of a tile fill half of the registers or more: MR * NV independent sums. */
enum { MR = VW == 8 ? 4 : 8, NV = 2, NR = NV * VW };

/* One tile. Element (r, k) of a is a[r * lda + k], or a[k * lda + r] where a is stored transposed.
 */
INLINE void tile(int transposed, int add, int64_t K, const float *a, int64_t lda, const float *b,
		 int64_t ldb, float *c, int64_t ldc)
{
	vf acc[MR][NV];
#pragma GCC unroll 8
	for (int r = 0; r < MR; r++)
#pragma GCC unroll 8
		for (int v = 0; v < NV; v++)
			acc[r][v] = add ? vload(OCC_F32, c, r * ldc + v * VW) : vset(0);
	for (int64_t k = 0; k < K; k++) {
		vf row[NV];
#pragma GCC unroll 8
		for (int v = 0; v < NV; v++)
			row[v] = vload(OCC_F32, b, k * ldb + v * VW);
#pragma GCC unroll 8
		for (int r = 0; r < MR; r++) {
			float x = transposed ? a[k * lda + r] : a[r * lda + k];
#pragma GCC unroll 8
			for (int v = 0; v < NV; v++)
				acc[r][v] += x * row[v];
		}
	}
#pragma GCC unroll 8
	for (int r = 0; r < MR; r++)
#pragma GCC unroll 8
		for (int v = 0; v < NV; v++)
			vstore(OCC_F32, c, r * ldc + v * VW, acc[r][v]);
}

#endif

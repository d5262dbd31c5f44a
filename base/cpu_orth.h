/* Inside of the cpu device's orthonormalise: products of one piece of the columns. A piece is LD
 * floats of each column, one column after the other; a is the panel's WIDE columns in it. */
#ifndef OCC_BASE_CPU_ORTH_H
#define OCC_BASE_CPU_ORTH_H

#include "base/vmath.h"

enum { WIDE = 16, PIECE = 512 };
enum { LD = PIECE + 16 }; /* so that columns do not share cache sets */
enum { DW = VW / 2 };

typedef double vd __attribute__((vector_size(8 * DW)));
typedef float vhalf __attribute__((vector_size(4 * DW)));

INLINE vd wide(const float *x)
{
	vhalf h;
	memcpy(&h, x, sizeof(h));
	return __builtin_convertvector(h, vd);
}

INLINE double total(vd a)
{
	double sum = 0;
	for (int i = 0; i < DW; i++)
		sum += a[i];
	return sum;
}

/* out[i][j] = row i of q * row j of a, 4 by 4, over n elements. */
INLINE void dots4(int64_t n, const float *q, const float *a, double *out)
{
	vf sum[4][4] = {{{0}}};
	for (int64_t t = 0; t < n; t += VW) {
		vf x[4], y[4];
		for (int i = 0; i < 4; i++) {
			x[i] = vload(OCC_F32, q + i * LD, t);
			y[i] = vload(OCC_F32, a + i * LD, t);
		}
		for (int i = 0; i < 4; i++)
			for (int j = 0; j < 4; j++)
				sum[i][j] += x[i] * y[j];
	}
	for (int i = 0; i < 4; i++)
		for (int j = 0; j < 4; j++)
			out[i * WIDE + j] = (double)vsum(sum[i][j]);
}

static inline void dots(int64_t n, int64_t before, const float *q, const float *a, double *out)
{
	for (int64_t i = 0; i < before; i += 4)
		for (int j = 0; j < WIDE; j += 4)
			dots4(n, q + i * LD, a + j * LD, out + i * WIDE + j);
}

/* a -= along^T q */
static inline void take_out(int64_t n, int64_t before, const float *q, const float *along, float *a)
{
	for (int64_t t = 0; t < n; t += VW) {
		vf sum[WIDE] = {{0}};
		for (int64_t i = 0; i < before; i++) {
			vf x = vload(OCC_F32, q + i * LD, t);
			for (int j = 0; j < WIDE; j++)
				sum[j] += x * along[i * WIDE + j];
		}
		for (int j = 0; j < WIDE; j++)
			vstore(OCC_F32, a + j * LD, t, vload(OCC_F32, a + j * LD, t) - sum[j]);
	}
}

/* The tile of the panel's Gram matrix at (i, j), 4 by 4, in double. */
INLINE void gram4(int64_t n, const float *x, const float *y, double *out)
{
	vd sum[4][4] = {{{0}}};
	for (int64_t t = 0; t < n; t += DW)
		for (int i = 0; i < 4; i++)
			for (int j = 0; j < 4; j++)
				sum[i][j] += wide(x + i * LD + t) * wide(y + j * LD + t);
	for (int i = 0; i < 4; i++)
		for (int j = 0; j < 4; j++)
			out[i * WIDE + j] = total(sum[i][j]);
}

static inline void gram(int64_t n, const float *a, double *out)
{
	for (int i = 0; i < WIDE; i += 4)
		for (int j = i; j < WIDE; j += 4)
			gram4(n, a + i * LD, a + j * LD, out + i * WIDE + j);
}

/* Columns become combinations of themselves and those before, the last one first. */
static inline void combine(int64_t n, double factor[WIDE][WIDE], float *a)
{
	for (int64_t t = 0; t < n; t += DW) {
		vd x[WIDE];
		for (int j = 0; j < WIDE; j++)
			x[j] = wide(a + j * LD + t);
		for (int j = WIDE - 1; j >= 0; j--) {
			vd y = x[j] * factor[j][j];
			for (int i = 0; i < j; i++)
				y += x[i] * factor[i][j];
			vhalf h = __builtin_convertvector(y, vhalf);
			memcpy(a + j * LD + t, &h, sizeof(h));
		}
	}
}

#endif

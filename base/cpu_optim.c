/* cpu: AdamW in one pass over memory, and the sum of squares in fixed blocks. */
#include <math.h>

#include "base/cpu.h"

enum { PIECE = 1 << 14 };

static void adamw_piece(const struct occ_adamw *a, int64_t n, const float *g, float *m, float *v,
			float *w)
{
	float b1 = a->beta1, b2 = a->beta2, scale = a->scale, eps = a->eps;
	float step = a->lr / a->c1, root = 1.0f / sqrtf(a->c2), decay = a->lr * a->decay;
#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		float x = g[i] * scale;
		float mi = b1 * m[i] + (1.0f - b1) * x, vi = b2 * v[i] + (1.0f - b2) * x * x;
		m[i] = mi;
		v[i] = vi;
		w[i] -= step * mi / (sqrtf(vi) * root + eps) + decay * w[i];
	}
}

void occ_cpu_adamw(struct occ_device *d, const struct occ_adamw *a, int64_t n, const float *d_g,
		   float *d_m, float *d_v, float *d_master, void *d_w)
{
	occ_check(d_master || d->type == OCC_F32, "bf16 weights need a master copy");
	float *w = d_master ? d_master : d_w;
	OCC_CPU_FOR(d, k, (n + PIECE - 1) / PIECE)
	{
		int64_t at = k * PIECE, len = n - at < PIECE ? n - at : PIECE;
		adamw_piece(a, len, d_g + at, d_m + at, d_v + at, w + at);
		if (d->type == OCC_BF16)
			cpu_store(len, w + at, (uint16_t *)d_w + at);
	}
}

void occ_cpu_sum_squares(struct occ_device *d, int64_t n, const float *d_x, double *sum)
{
	int64_t blocks = (n + PIECE - 1) / PIECE;
	occ_cpu_reserve(d, 0, (size_t)blocks * sizeof(double));
	double *partial = occ_cpu_shared(d);
	OCC_CPU_FOR(d, k, blocks)
	{
		int64_t at = k * PIECE, end = at + PIECE < n ? at + PIECE : n;
		double s = 0;
#pragma omp simd reduction(+ : s)
		for (int64_t i = at; i < end; i++)
			s += (double)d_x[i] * (double)d_x[i];
		partial[k] = s;
	}
	*sum = 0;
	for (int64_t k = 0; k < blocks; k++)
		*sum += partial[k];
}

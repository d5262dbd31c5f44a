/* cpu: token and position embedding. Backward divides columns or positions among threads, so that
 * each output element is added to by one thread, in order of rows. */
#include <string.h>

#include "base/cpu.h"

void occ_cpu_embed_forward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
			   const int32_t *d_tokens, const void *d_wte, void *d_out)
{
	size_t bytes = (size_t)C * occ_type_size(d->type);
	OCC_CPU_FOR(d, r, R)
	{
		int64_t id = d_tokens[r] - v0;
		char *out = (char *)d_out + (size_t)r * bytes;
		if (id >= 0 && id < V)
			memcpy(out, (const char *)d_wte + (size_t)id * bytes, bytes);
		else
			memset(out, 0, bytes);
	}
}

void occ_cpu_embed_backward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
			    const int32_t *d_tokens, const void *d_dout, float *d_dwte)
{
	enum { COLUMNS = 128 };
	OCC_CPU_FOR(d, k, (C + COLUMNS - 1) / COLUMNS)
	{
		int64_t from = k * COLUMNS, n = C - from < COLUMNS ? C - from : COLUMNS;
		float *buf = occ_cpu_mine(d);
		for (int64_t r = 0; r < R; r++) {
			int64_t id = d_tokens[r] - v0;
			if (id < 0 || id >= V)
				continue;
			const float *dout = cpu_in(d, d_dout, r * C + from, n, buf);
			float *dw = d_dwte + id * C + from;
#pragma omp simd
			for (int64_t c = 0; c < n; c++)
				dw[c] += dout[c];
		}
	}
}

void occ_cpu_position_forward(struct occ_device *d, int64_t R, int64_t C, int64_t T,
			      const void *d_wpe, const struct occ_drop *drop, void *d_x)
{
	occ_cpu_reserve(d, (size_t)(3 * C) * sizeof(float), 0);
	OCC_CPU_FOR(d, r, R)
	{
		float *buf = occ_cpu_mine(d);
		const float *wpe = cpu_in(d, d_wpe, r % T * C, C, buf);
		const float *in = cpu_in(d, d_x, r * C, C, buf + C);
		float *x = cpu_out(d, d_x, r * C, buf + 2 * C);
#pragma omp simd
		for (int64_t c = 0; c < C; c++)
			x[c] = in[c] + wpe[c];
		if (drop->p > 0)
			occ_cpu_mask(drop, r, C, x);
		cpu_done(d, d_x, r * C, C, x);
	}
}

void occ_cpu_position_backward(struct occ_device *d, int64_t R, int64_t C, int64_t T,
			       const struct occ_drop *drop, void *d_dx, float *d_dwpe)
{
	occ_cpu_reserve(d, (size_t)C * sizeof(float), 0);
	OCC_CPU_FOR(d, t, T)
	{
		float *buf = occ_cpu_mine(d), *dwpe = d_dwpe + t * C;
		for (int64_t r = t; r < R; r += T) {
			float *dx = cpu_out(d, d_dx, r * C, buf);
			cpu_in(d, d_dx, r * C, C, buf);
			if (drop->p > 0) {
				occ_cpu_mask(drop, r, C, dx);
				cpu_done(d, d_dx, r * C, C, dx);
				cpu_in(d, d_dx, r * C, C, buf);
			}
#pragma omp simd
			for (int64_t c = 0; c < C; c++)
				dwpe[c] += dx[c];
		}
	}
}

/* cpu: residual, dropout and layer norm fused, row by row. */
#include <math.h>

#include "base/cpu.h"

enum { BLOCK = 32 }; /* rows of a block: the unit of work, and of partial sums over rows */

static float row_sum(int64_t n, const float *x)
{
	float sum = 0;
#pragma omp simd reduction(+ : sum)
	for (int64_t i = 0; i < n; i++)
		sum += x[i];
	return sum;
}

static float row_squares(int64_t n, const float *x, float mean)
{
	float sum = 0;
#pragma omp simd reduction(+ : sum)
	for (int64_t i = 0; i < n; i++)
		sum += (x[i] - mean) * (x[i] - mean);
	return sum;
}

/* xo = x + drop(delta + bias) */
static void residual_row(const struct occ_drop *drop, int64_t r, int64_t C, const float *x,
			 const float *delta, const float *bias, float *tmp, float *xo)
{
#pragma omp simd
	for (int64_t c = 0; c < C; c++)
		tmp[c] = delta[c] + bias[c];
	if (drop->p > 0)
		occ_cpu_mask(drop, r, C, tmp);
#pragma omp simd
	for (int64_t c = 0; c < C; c++)
		xo[c] = x[c] + tmp[c];
}

static void norm_row(int64_t C, const float *x, const float *w, const float *b, float *y,
		     float *mean, float *rstd)
{
	float m = row_sum(C, x) / (float)C;
	float s = 1.0f / sqrtf(row_squares(C, x, m) / (float)C + 1e-5f);
#pragma omp simd
	for (int64_t c = 0; c < C; c++)
		y[c] = (x[c] - m) * s * w[c] + b[c];
	*mean = m;
	*rstd = s;
}

/* Parameters as fp32 rows in the shared scratch: [3][C]. */
static void load_rows(struct occ_device *d, int64_t C, const void *const rows[3],
		      const float *out[3])
{
	float *shared = occ_cpu_shared(d);
	for (int i = 0; i < 3; i++)
		out[i] = rows[i] ? cpu_in(d, rows[i], 0, C, shared + i * C) : NULL;
	for (int64_t c = 0; !rows[0] && c < C; c++)
		shared[c] = 0;
	if (!rows[0])
		out[0] = shared; /* no bias: zeros */
}

void occ_cpu_residual_norm_forward(struct occ_device *d, int64_t R, int64_t C, const void *d_x,
				   const void *d_delta, const void *d_bias,
				   const struct occ_drop *drop, const void *d_w, const void *d_b,
				   void *d_xo, void *d_y, float *d_mean, float *d_rstd)
{
	const float *row[3];
	occ_cpu_reserve(d, (size_t)(5 * C) * sizeof(float), (size_t)(3 * C) * sizeof(float));
	load_rows(d, C, (const void *const[]){d_bias, d_w, d_b}, row);
	OCC_CPU_FOR(d, r, R)
	{
		float *buf = occ_cpu_mine(d);
		const float *x = cpu_in(d, d_x, r * C, C, buf);
		if (d_delta) {
			float *xo = cpu_out(d, d_xo, r * C, buf + 3 * C);
			residual_row(drop, r, C, x, cpu_in(d, d_delta, r * C, C, buf + C), row[0],
				     buf + 2 * C, xo);
			cpu_done(d, d_xo, r * C, C, xo);
			/* what is stored is what is normalised */
			x = cpu_in(d, d_xo, r * C, C, buf);
		}
		if (d_w) {
			float *y = cpu_out(d, d_y, r * C, buf + 4 * C);
			norm_row(C, x, row[1], row[2], y, &d_mean[r], &d_rstd[r]);
			cpu_done(d, d_y, r * C, C, y);
		}
	}
}

/* dx = dres + the norm's gradient; dw and db of the block are added to. */
static void norm_back_row(int64_t C, const float *dy, const float *dres, const float *x,
			  const float *w, float mean, float rstd, float *dx, float *dw, float *db)
{
	float g0 = 0, g1 = 0;
#pragma omp simd reduction(+ : g0, g1)
	for (int64_t c = 0; c < C; c++) {
		float g = dy[c] * w[c];
		g0 += g;
		g1 += g * (x[c] - mean);
	}
	g0 /= (float)C;
	g1 = g1 * rstd / (float)C;
#pragma omp simd
	for (int64_t c = 0; c < C; c++) {
		float xhat = (x[c] - mean) * rstd;
		dw[c] += dy[c] * xhat;
		db[c] += dy[c];
		dx[c] = dres[c] + (dy[c] * w[c] - g0 - xhat * g1) * rstd;
	}
}

/* Arguments of a backward pass, and where its blocks put their partial sums. */
struct back {
	struct occ_device *d;
	int64_t C;
	const void *dy, *dres, *x;
	const float *w;
	const float *mean, *rstd;
	const struct occ_drop *drop;
	void *dx, *ddelta;
	float *partial; /* [blocks][3][C]: dw, db, dbias */
};

static void zero_row(int64_t C, float *x)
{
#pragma omp simd
	for (int64_t c = 0; c < C; c++)
		x[c] = 0;
}

static void branch_row(const struct back *k, int64_t r, const float *dx, float *buf, float *dbias)
{
	int64_t C = k->C;
	float *out = cpu_out(k->d, k->ddelta, r * C, buf);
	if (out != dx) {
#pragma omp simd
		for (int64_t c = 0; c < C; c++)
			out[c] = dx[c];
	}
	if (k->drop && k->drop->p > 0)
		occ_cpu_mask(k->drop, r, C, out);
	if (k->ddelta != k->dx)
		cpu_done(k->d, k->ddelta, r * C, C, out);
	const float *sum = cpu_in(k->d, k->ddelta, r * C, C, out);
#pragma omp simd
	for (int64_t c = 0; c < C; c++)
		dbias[c] += sum[c];
}

static void back_row(const struct back *k, int64_t r, float *buf, float *partial)
{
	int64_t C = k->C, at = r * C;
	const float *dres = buf + 5 * C; /* zeros */
	float *dx = cpu_out(k->d, k->dx, at, buf);
	if (k->dres)
		dres = cpu_in(k->d, k->dres, at, C, buf + C);
	else
		zero_row(C, buf + 5 * C);
	if (k->w) {
		norm_back_row(C, cpu_in(k->d, k->dy, at, C, buf + 2 * C), dres,
			      cpu_in(k->d, k->x, at, C, buf + 3 * C), k->w, k->mean[r], k->rstd[r],
			      dx, partial, partial + C);
		cpu_done(k->d, k->dx, at, C, dx);
	} else if (k->dx != k->dres) {
#pragma omp simd
		for (int64_t c = 0; c < C; c++)
			dx[c] = dres[c];
		cpu_done(k->d, k->dx, at, C, dx);
	}
	if (k->ddelta)
		branch_row(k, r, cpu_in(k->d, k->dx, at, C, buf), buf + 4 * C, partial + 2 * C);
}

void occ_cpu_residual_norm_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
				    const void *d_dres, const void *d_x, const void *d_w,
				    const float *d_mean, const float *d_rstd,
				    const struct occ_drop *drop, void *d_dx, void *d_ddelta,
				    float *d_dw, float *d_db, float *d_dbias)
{
	int64_t blocks = (R + BLOCK - 1) / BLOCK;
	size_t floats = (size_t)(C + blocks * 3 * C);
	const float *w = NULL;
	occ_cpu_reserve(d, (size_t)(6 * C) * sizeof(float), floats * sizeof(float));
	float *shared = occ_cpu_shared(d);
	if (d_w)
		w = cpu_in(d, d_w, 0, C, shared);
	struct back k = {d,      C,      d_dy, d_dres, d_x,      w,
			 d_mean, d_rstd, drop, d_dx,   d_ddelta, shared + C};
	OCC_CPU_FOR(d, b, blocks)
	{
		float *partial = k.partial + b * 3 * C;
		int64_t end = (b + 1) * BLOCK < R ? (b + 1) * BLOCK : R;
		zero_row(3 * C, partial);
		for (int64_t r = b * BLOCK; r < end; r++)
			back_row(&k, r, occ_cpu_mine(d), partial);
	}
	if (d_w) {
		occ_cpu_fold(d, blocks, C, k.partial, 3 * C, d_dw);
		occ_cpu_fold(d, blocks, C, k.partial + C, 3 * C, d_db);
	}
	if (d_ddelta && d_dbias)
		occ_cpu_fold(d, blocks, C, k.partial + 2 * C, 3 * C, d_dbias);
}

void occ_cpu_bias_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
			   float *d_db)
{
	int64_t blocks = (R + BLOCK - 1) / BLOCK;
	occ_cpu_reserve(d, (size_t)C * sizeof(float), (size_t)(blocks * C) * sizeof(float));
	float *partial = occ_cpu_shared(d);
	OCC_CPU_FOR(d, b, blocks)
	{
		float *sum = partial + b * C;
		int64_t end = (b + 1) * BLOCK < R ? (b + 1) * BLOCK : R;
		zero_row(C, sum);
		for (int64_t r = b * BLOCK; r < end; r++) {
			const float *dy = cpu_in(d, d_dy, r * C, C, occ_cpu_mine(d));
#pragma omp simd
			for (int64_t c = 0; c < C; c++)
				sum[c] += dy[c];
		}
	}
	occ_cpu_fold(d, blocks, C, partial, C, d_db);
}

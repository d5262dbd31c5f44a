/* Ref: residual, dropout and layer norm, forward and back. */
#include "base/ref.h"

#include <math.h>

/* xo = x + drop(delta + bias) of one row */
static void residual_row(const struct occ_device *d, int64_t r, int64_t C, const void *x,
			 const void *delta, const void *bias, const struct occ_drop *drop, void *xo)
{
	for (int64_t c = 0; c < C; c++) {
		double v = ref_get(d->type, delta, r * C + c);
		if (bias)
			v += ref_get(d->type, bias, c);
		v = ref_get(d->type, x, r * C + c) + v * ref_mask(drop, r, c);
		ref_set(d->type, xo, r * C + c, v);
	}
}

static void norm_row(const struct occ_device *d, int64_t r, int64_t C, const void *x, const void *w,
		     const void *b, void *y, float *mean, float *rstd)
{
	double sum = 0, squares = 0;
	for (int64_t c = 0; c < C; c++)
		sum += ref_get(d->type, x, r * C + c);
	double m = sum / (double)C;
	for (int64_t c = 0; c < C; c++) {
		double v = ref_get(d->type, x, r * C + c) - m;
		squares += v * v;
	}
	double s = 1 / sqrt(squares / (double)C + 1e-5);
	for (int64_t c = 0; c < C; c++) {
		double v = (ref_get(d->type, x, r * C + c) - m) * s;
		ref_set(d->type, y, r * C + c, v * ref_get(d->type, w, c) + ref_get(d->type, b, c));
	}
	mean[r] = (float)m;
	rstd[r] = (float)s;
}

void occ_ref_residual_norm_forward(struct occ_device *d, int64_t R, int64_t C, const void *d_x,
				   const void *d_delta, const void *d_bias,
				   const struct occ_drop *drop, const void *d_w, const void *d_b,
				   void *d_xo, void *d_y, float *d_mean, float *d_rstd)
{
	for (int64_t r = 0; r < R; r++) {
		if (d_delta)
			residual_row(d, r, C, d_x, d_delta, d_bias, drop, d_xo);
		if (d_w)
			norm_row(d, r, C, d_delta ? d_xo : d_x, d_w, d_b, d_y, d_mean, d_rstd);
	}
}

/* Adds one row to dw and db; gives the two means that dx needs: of g = dy * w, and of g * xhat. */
static void norm_sums(const struct occ_device *d, int64_t r, int64_t C, const void *dy,
		      const void *x, const void *w, const float *mean, const float *rstd, float *dw,
		      float *db, double out[2])
{
	out[0] = out[1] = 0;
	for (int64_t c = 0; c < C; c++) {
		double xhat = (ref_get(d->type, x, r * C + c) - (double)mean[r]) * (double)rstd[r];
		double y = ref_get(d->type, dy, r * C + c), g = y * ref_get(d->type, w, c);
		out[0] += g / (double)C;
		out[1] += g * xhat / (double)C;
		dw[c] += (float)(y * xhat);
		db[c] += (float)y;
	}
}

void occ_ref_residual_norm_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
				    const void *d_dres, const void *d_x, const void *d_w,
				    const float *d_mean, const float *d_rstd,
				    const struct occ_drop *drop, void *d_dx, void *d_ddelta,
				    float *d_dw, float *d_db, float *d_dbias)
{
	for (int64_t r = 0; r < R; r++) {
		double mean[2] = {0, 0};
		if (d_w)
			norm_sums(d, r, C, d_dy, d_x, d_w, d_mean, d_rstd, d_dw, d_db, mean);
		for (int64_t c = 0, i = r * C; c < C; c++, i++) {
			double v = d_dres ? ref_get(d->type, d_dres, i) : 0;
			if (d_w) {
				double s = (double)d_rstd[r];
				double xhat = (ref_get(d->type, d_x, i) - (double)d_mean[r]) * s;
				double g = ref_get(d->type, d_dy, i) * ref_get(d->type, d_w, c);
				v += (g - mean[0] - xhat * mean[1]) * s;
			}
			ref_set(d->type, d_dx, i, v);
			if (!d_ddelta)
				continue;
			/* of what is stored in dx, so that ddelta may be dx */
			v = ref_get(d->type, d_dx, i) * ref_mask(drop, r, c);
			ref_set(d->type, d_ddelta, i, v);
			if (d_dbias)
				d_dbias[c] += (float)ref_get(d->type, d_ddelta, i);
		}
	}
}

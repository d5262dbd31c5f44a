/* Cpu: the optimizer's pass over the weights, and the sum of squares for the gradient norm. */
#include "base/cpu.h"

#include "base/vmath.h"

/* `master` holds the weights in fp32; w gets a copy unless it is the master itself. */
INLINE void adamw(enum occ_type t, const struct occ_adamw *a, int64_t i, int64_t end,
		  const float *g, float *m, float *v, float *master, void *w)
{
	float b1 = a->beta1, b2 = a->beta2, by1 = 1 / a->c1, by2 = 1 / a->c2;
	for (; i < end; i += VW) {
		int64_t n = end - i;
		vf gi = vget(OCC_F32, g, i, n) * a->scale, wi = vget(OCC_F32, master, i, n);
		vf mi = vget(OCC_F32, m, i, n) * b1 + gi * (1 - b1);
		vf vi_ = vget(OCC_F32, v, i, n) * b2 + gi * gi * (1 - b2);
		vf step = mi * by1 / (vsqrt(vi_ * by2) + a->eps);
		wi -= (step + wi * a->decay) * a->lr;
		vput(OCC_F32, m, i, n, mi);
		vput(OCC_F32, v, i, n, vi_);
		vput(OCC_F32, master, i, n, wi);
		if (w != (void *)master)
			vput(t, w, i, n, wi);
	}
}

void occ_cpu_adamw(struct occ_device *d, const struct occ_adamw *a, const struct occ_pieces *p,
		   const float *d_g, float *d_m, float *d_v, float *d_master, void *d_w)
{
	occ_check(d_master || d->type == OCC_F32, "bf16 weights need a master copy");
	float *master = d_master ? d_master : d_w;
	int nt = cpu_team(d, p->total);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int k = 0; k < p->n; k++) {
		int64_t at = p->d_at[k].at, end = at + p->d_at[k].n;
		struct occ_adamw own = *a;
		own.decay *= p->d_at[k].decay;
		BY_TYPE(d->type, adamw, &own, at, end, d_g, d_m, d_v, master, d_w);
	}
}

/* In double: a square of fp32 is exact there. */
static double squares(int64_t n, const float *x)
{
	enum { LANES = 16 };
	double sum[LANES] = {0};
	int64_t i = 0;
	for (; i + LANES <= n; i += LANES)
		for (int k = 0; k < LANES; k++)
			sum[k] += (double)x[i + k] * (double)x[i + k];
	for (int k = 0; i + k < n; k++)
		sum[k] += (double)x[i + k] * (double)x[i + k];
	for (int k = 1; k < LANES; k++)
		sum[0] += sum[k];
	return sum[0];
}

void occ_cpu_sum_squares(struct occ_device *d, int64_t n, const float *d_x, double *sum)
{
	enum { BLOCKS = 256 };
	double part[BLOCKS] = {0};
	int64_t step = (n + BLOCKS - 1) / BLOCKS;
	int nt = cpu_team(d, n);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t k = 0; k < BLOCKS; k++)
		if (k * step < n)
			part[k] =
				squares(n - k * step < step ? n - k * step : step, d_x + k * step);
	*sum = 0;
	for (int k = 0; k < BLOCKS; k++)
		*sum += part[k];
}

void occ_cpu_piece_squares(struct occ_device *d, const struct occ_pieces *p, const float *d_x,
			   double *sum)
{
	int nt = cpu_team(d, p->total);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int k = 0; k < p->n; k++)
		sum[k] = squares(p->d_at[k].n, d_x + p->d_at[k].at);
}

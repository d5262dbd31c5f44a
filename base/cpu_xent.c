/* Cpu: cross-entropy over a shard of the vocabulary, in its three passes; rows in parallel. */
#include "base/cpu.h"

#include "base/vmath.h"

enum { STRETCH = 1024 }; /* columns summed in fp32 before they enter a sum in double */

/* Columns of this shard that are not padding. */
static int64_t columns(const struct occ_xent *x)
{
	int64_t n = x->valid - x->v0;
	return n < 0 ? 0 : n < x->V ? n : x->V;
}

/* The column of a target, or -1 if it is not of this shard or its row counts nothing. */
static int64_t hit_column(const struct occ_xent *x, int32_t target)
{
	int64_t c = target - x->v0;
	return target >= 0 && c >= 0 && c < columns(x) ? c : -1;
}

INLINE float row_max(enum occ_type t, const void *x, int64_t at, int64_t n)
{
	vf top[2] = {vset(-INFINITY), vset(-INFINITY)};
	for (int64_t c = 0; c < n; c += 2 * VW)
		for (int k = 0; k < 2; k++)
			top[k] = vmax(top[k],
				      vget_or(t, x, at + c + k * VW, n - c - k * VW, -INFINITY));
	return vtop(vmax(top[0], top[1]));
}

INLINE double exp_sum(enum occ_type t, const void *x, int64_t at, int64_t n, float max)
{
	double sum = 0;
	for (int64_t c0 = 0; c0 < n; c0 += STRETCH) {
		int64_t end = c0 + STRETCH < n ? c0 + STRETCH : n;
		vf part = vset(0);
		for (int64_t c = c0; c < end; c += VW)
			part += vexp(vget_or(t, x, at + c, end - c, -INFINITY) - max);
		sum += (double)vsum(part);
	}
	return sum;
}

INLINE float element(enum occ_type t, const void *x, int64_t i)
{
	return vget_or(t, x, i, 1, 0)[0];
}

INLINE void stats_row(enum occ_type t, const struct occ_xent *x, const void *logits, int64_t r,
		      int64_t hit, float *max, float *sum, float *at_target)
{
	int64_t at = r * x->ld, n = columns(x);
	*max = row_max(t, logits, at, n);
	*sum = (float)exp_sum(t, logits, at, n, *max);
	*at_target = hit < 0 ? 0 : element(t, logits, at + hit);
}

void occ_cpu_xent_stats(struct occ_device *d, const struct occ_xent *x, const void *d_logits,
			const int32_t *d_targets, float *d_max, float *d_sum, float *d_hit)
{
	int nt = cpu_team(d, x->rows * columns(x));
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t r = 0; r < x->rows; r++)
		BY_TYPE(d->type, stats_row, x, d_logits, r, hit_column(x, d_targets[r]), d_max + r,
			d_sum + r, d_hit + r);
}

void occ_cpu_xent_rescale(struct occ_device *d, int64_t rows, const float *d_max,
			  const float *d_top, float *d_sum)
{
	(void)d;
	for (int64_t r = 0; r < rows; r++)
		d_sum[r] *= expf(d_max[r] - d_top[r]);
}

/* dlogits of one row: e^(x - top) * scale / sum for n columns, 0 up to V. The target's own column
 * is (p - 1) * scale, rounded once; out may be x. */
INLINE void gradient_row(enum occ_type t, int64_t n, int64_t V, int64_t hit, const void *x,
			 float top, float sum, float scale, void *out, int64_t at)
{
	int64_t c = 0;
	float target = hit < 0 ? 0 : element(t, x, at + hit);
	for (; c < n; c += VW) {
		vf v = vexp(vget_or(t, x, at + c, n - c, -INFINITY) - top) * (scale / sum);
		vput(t, out, at + c, V - c, v);
	}
	for (; c < V; c += VW)
		vput(t, out, at + c, V - c, vset(0));
	if (hit >= 0) {
		double p = exp((double)target - (double)top) / (double)sum;
		vput(t, out, at + hit, 1, vset((float)((p - 1) * (double)scale)));
	}
}

void occ_cpu_xent_finish(struct occ_device *d, const struct occ_xent *x, const void *d_logits,
			 const int32_t *d_targets, const float *d_top, const float *d_sum,
			 const float *d_hit, float scale, float *d_loss, void *d_dlogits)
{
	int nt = cpu_team(d, d_dlogits ? x->rows * x->V : 0);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t r = 0; r < x->rows; r++) {
		int counts = d_targets[r] >= 0;
		double top = (double)d_top[r], sum = (double)d_sum[r];
		d_loss[r] = counts ? (float)(log(sum) + (top - (double)d_hit[r])) : 0;
		if (d_dlogits)
			BY_TYPE(d->type, gradient_row, counts ? columns(x) : 0, x->V,
				hit_column(x, d_targets[r]), d_logits, d_top[r], d_sum[r], scale,
				d_dlogits, r * x->ld);
	}
}

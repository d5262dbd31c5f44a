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

void occ_cpu_xent_max(struct occ_device *d, const struct occ_xent *x, const float *d_logits,
		      float *d_max)
{
	int64_t n = columns(x);
	int nt = cpu_team(d, x->rows * n);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t r = 0; r < x->rows; r++) {
		vf top[2] = {vset(-INFINITY), vset(-INFINITY)};
		for (int64_t c = 0; c < n; c += 2 * VW)
			for (int k = 0; k < 2; k++)
				top[k] = vmax(top[k],
					      vget_or(OCC_F32, d_logits + r * x->ld, c + k * VW,
						      n - c - k * VW, -INFINITY));
		d_max[r] = vtop(vmax(top[0], top[1]));
	}
}

static double exp_sum(const float *x, int64_t n, float max)
{
	double sum = 0;
	for (int64_t c0 = 0; c0 < n; c0 += STRETCH) {
		int64_t end = c0 + STRETCH < n ? c0 + STRETCH : n;
		vf part = vset(0);
		for (int64_t c = c0; c < end; c += VW)
			part += vexp(vget_or(OCC_F32, x, c, end - c, -INFINITY) - max);
		sum += (double)vsum(part);
	}
	return sum;
}

void occ_cpu_xent_sum(struct occ_device *d, const struct occ_xent *x, const float *d_logits,
		      const int32_t *d_targets, const float *d_max, float *d_sum, float *d_hit)
{
	int64_t n = columns(x);
	int nt = cpu_team(d, x->rows * n);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t r = 0; r < x->rows; r++) {
		const float *row = d_logits + r * x->ld;
		int64_t c = hit_column(x, d_targets[r]);
		d_sum[r] = (float)exp_sum(row, n, d_max[r]);
		d_hit[r] = c < 0 ? 0 : row[c] - d_max[r];
	}
}

/* dlogits of one row: e^(x - max) * scale / sum for n columns, 0 up to V */
INLINE void gradient_row(enum occ_type t, int64_t n, int64_t V, const float *x, float max,
			 float scale, void *out, int64_t at)
{
	int64_t c = 0;
	for (; c < n; c += VW) {
		vf v = vexp(vget_or(OCC_F32, x, c, n - c, -INFINITY) - max) * scale;
		vput(t, out, at + c, V - c, v);
	}
	for (; c < V; c += VW)
		vput(t, out, at + c, V - c, vset(0));
}

/* The target's own column: (p - 1) * scale, rounded once. */
static void gradient_hit(enum occ_type t, float x, float max, float sum, float scale, void *out,
			 int64_t at)
{
	double p = exp((double)x - (double)max) / (double)sum;
	vput(t, out, at, 1, vset((float)((p - 1) * (double)scale)));
}

void occ_cpu_xent_finish(struct occ_device *d, const struct occ_xent *x, const float *d_logits,
			 const int32_t *d_targets, const float *d_max, const float *d_sum,
			 const float *d_hit, float scale, float *d_loss, void *d_dlogits)
{
	int nt = cpu_team(d, d_dlogits ? x->rows * x->V : 0);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t r = 0; r < x->rows; r++) {
		int counts = d_targets[r] >= 0;
		d_loss[r] = counts ? (float)(log((double)d_sum[r]) - (double)d_hit[r]) : 0;
		if (!d_dlogits)
			continue;
		const float *row = d_logits + r * x->ld;
		int64_t hit = hit_column(x, d_targets[r]), n = counts ? columns(x) : 0;
		float target = hit < 0 ? 0 : row[hit]; /* dlogits may be logits */
		BY_TYPE(d->type, gradient_row, n, x->V, row, d_max[r], scale / d_sum[r], d_dlogits,
			r * x->ld);
		if (hit >= 0)
			BY_TYPE(d->type, gradient_hit, target, d_max[r], d_sum[r], scale, d_dlogits,
				r * x->ld + hit);
	}
}

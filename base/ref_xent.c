/* Ref: cross-entropy over a shard of the vocabulary, in its three passes. */
#include "base/ref.h"

#include <math.h>

/* Columns of this shard that are not padding. */
static int64_t columns(const struct occ_xent *x)
{
	int64_t n = x->valid - x->v0;
	return n < 0 ? 0 : n < x->V ? n : x->V;
}

/* The column of row r's target, or -1 if it is not of this shard or the row counts nothing. */
static int64_t target(const struct occ_xent *x, const int32_t *targets, int64_t r)
{
	int64_t c = targets[r] - x->v0;
	return targets[r] >= 0 && c >= 0 && c < columns(x) ? c : -1;
}

static double row_max(enum occ_type t, const void *row, int64_t at, int64_t n)
{
	double max = -INFINITY;
	for (int64_t c = 0; c < n; c++)
		if (ref_get(t, row, at + c) > max || isnan(ref_get(t, row, at + c)))
			max = ref_get(t, row, at + c);
	return max;
}

void occ_ref_xent_stats(struct occ_device *d, const struct occ_xent *x, const void *d_logits,
			const int32_t *d_targets, float *d_max, float *d_sum, float *d_hit)
{
	for (int64_t r = 0; r < x->rows; r++) {
		int64_t at = r * x->ld, hit = target(x, d_targets, r);
		double max = row_max(d->type, d_logits, at, columns(x)), sum = 0;
		for (int64_t c = 0; c < columns(x); c++)
			sum += exp(ref_get(d->type, d_logits, at + c) - max);
		d_max[r] = (float)max;
		d_sum[r] = (float)sum;
		d_hit[r] = hit < 0 ? 0 : (float)ref_get(d->type, d_logits, at + hit);
	}
}

void occ_ref_xent_rescale(struct occ_device *d, int64_t rows, const float *d_max,
			  const float *d_top, float *d_sum)
{
	(void)d;
	for (int64_t r = 0; r < rows; r++)
		d_sum[r] = (float)((double)d_sum[r] * exp((double)d_max[r] - (double)d_top[r]));
}

void occ_ref_xent_finish(struct occ_device *d, const struct occ_xent *x, const void *d_logits,
			 const int32_t *d_targets, const float *d_top, const float *d_sum,
			 const float *d_hit, float scale, float *d_loss, void *d_dlogits)
{
	for (int64_t r = 0; r < x->rows; r++) {
		int counts = d_targets[r] >= 0;
		double top = (double)d_top[r], sum = (double)d_sum[r];
		d_loss[r] = counts ? (float)(log(sum) + (top - (double)d_hit[r])) : 0;
		if (!d_dlogits)
			continue;
		int64_t hit = target(x, d_targets, r), n = counts ? columns(x) : 0;
		for (int64_t c = 0; c < x->V; c++) {
			double p = 0;
			if (c < n)
				p = exp(ref_get(d->type, d_logits, r * x->ld + c) - top) / sum;
			ref_set(d->type, d_dlogits, r * x->ld + c,
				(p - (c == hit)) * (double)scale);
		}
	}
}

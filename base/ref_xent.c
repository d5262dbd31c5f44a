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

void occ_ref_xent_max(struct occ_device *d, const struct occ_xent *x, const float *d_logits,
		      float *d_max)
{
	(void)d;
	for (int64_t r = 0; r < x->rows; r++) {
		d_max[r] = -INFINITY;
		for (int64_t c = 0; c < columns(x); c++)
			if (d_logits[r * x->ld + c] > d_max[r] || isnan(d_logits[r * x->ld + c]))
				d_max[r] = d_logits[r * x->ld + c];
	}
}

void occ_ref_xent_sum(struct occ_device *d, const struct occ_xent *x, const float *d_logits,
		      const int32_t *d_targets, const float *d_max, float *d_sum, float *d_hit)
{
	(void)d;
	for (int64_t r = 0; r < x->rows; r++) {
		const float *row = d_logits + r * x->ld;
		double sum = 0;
		for (int64_t c = 0; c < columns(x); c++)
			sum += exp((double)row[c] - (double)d_max[r]);
		int64_t c = target(x, d_targets, r);
		d_sum[r] = (float)sum;
		d_hit[r] = c < 0 ? 0 : row[c] - d_max[r];
	}
}

void occ_ref_xent_finish(struct occ_device *d, const struct occ_xent *x, const float *d_logits,
			 const int32_t *d_targets, const float *d_max, const float *d_sum,
			 const float *d_hit, float scale, float *d_loss, void *d_dlogits)
{
	for (int64_t r = 0; r < x->rows; r++) {
		int counts = d_targets[r] >= 0;
		d_loss[r] = counts ? (float)(log((double)d_sum[r]) - (double)d_hit[r]) : 0;
		if (!d_dlogits)
			continue;
		int64_t hit = target(x, d_targets, r), n = counts ? columns(x) : 0;
		for (int64_t c = 0; c < x->V; c++) {
			double p = 0;
			if (c < n)
				p = exp((double)d_logits[r * x->ld + c] - (double)d_max[r]) /
				    (double)d_sum[r];
			ref_set(d->type, d_dlogits, r * x->ld + c,
				(p - (c == hit)) * (double)scale);
		}
	}
}

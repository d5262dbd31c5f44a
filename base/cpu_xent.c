/* cpu: vocabulary-parallel cross-entropy, a row a task. */
#include <math.h>

#include "base/cpu.h"
#include "base/vmath.h"

/* Columns of this shard that are not padding. */
static int64_t columns(const struct occ_xent *x)
{
	int64_t n = x->valid - x->v0;
	return n < 0 ? 0 : n < x->V ? n : x->V;
}

/* Column of row r's target in this shard, or -1. */
static int64_t column_of(const struct occ_xent *x, int32_t target)
{
	int64_t c = target - x->v0;
	return target >= 0 && c >= 0 && c < columns(x) ? c : -1;
}

void occ_cpu_xent_max(struct occ_device *d, const struct occ_xent *x, const float *d_logits,
		      float *d_max)
{
	int64_t n = columns(x);
	OCC_CPU_FOR(d, r, x->rows)
	{
		const float *row = d_logits + r * x->ld;
		float max = -INFINITY, poison = 0; /* 0 * NaN and 0 * inf stay visible */
#pragma omp simd reduction(max : max) reduction(+ : poison)
		for (int64_t c = 0; c < n; c++) {
			max = row[c] > max ? row[c] : max;
			poison += row[c] * 0.0f;
		}
		d_max[r] = isnan(poison) ? NAN : max;
	}
}

void occ_cpu_xent_sum(struct occ_device *d, const struct occ_xent *x, const float *d_logits,
		      const int32_t *d_targets, const float *d_max, float *d_sum, float *d_hit)
{
	int64_t n = columns(x);
	OCC_CPU_FOR(d, r, x->rows)
	{
		const float *row = d_logits + r * x->ld;
		float max = d_max[r], sum = 0;
#pragma omp simd reduction(+ : sum)
		for (int64_t c = 0; c < n; c++)
			sum += occ_exp(row[c] - max);
		int64_t c = column_of(x, d_targets[r]);
		d_sum[r] = sum;
		d_hit[r] = c < 0 ? 0.0f : row[c] - max;
	}
}

/* n gradients of a row as type T at out: softmax * scale, zeros from `n` to V. */
static void gradient_row(const struct occ_device *d, const struct occ_xent *x, const float *row,
			 float max, float factor, int64_t n, void *out, int64_t at)
{
	float *g = (float *)out + at; /* used for fp32 only, as h for bf16 only */
	uint16_t *h = (uint16_t *)out + at;
	if (d->type == OCC_F32) {
#pragma omp simd
		for (int64_t c = 0; c < n; c++)
			g[c] = occ_exp(row[c] - max) * factor;
#pragma omp simd
		for (int64_t c = n; c < x->V; c++)
			g[c] = 0;
		return;
	}
#pragma omp simd
	for (int64_t c = 0; c < n; c++)
		h[c] = occ_f32_to_bf16(occ_exp(row[c] - max) * factor);
#pragma omp simd
	for (int64_t c = n; c < x->V; c++)
		h[c] = 0;
}

void occ_cpu_xent_finish(struct occ_device *d, const struct occ_xent *x, const float *d_logits,
			 const int32_t *d_targets, const float *d_max, const float *d_sum,
			 const float *d_hit, float scale, float *d_loss, void *d_dlogits)
{
	OCC_CPU_FOR(d, r, x->rows)
	{
		const float *row = d_logits + r * x->ld;
		int counts = d_targets[r] >= 0;
		int64_t hit = column_of(x, d_targets[r]), at = r * x->ld;
		d_loss[r] = counts ? (float)(log((double)d_sum[r]) - (double)d_hit[r]) : 0.0f;
		if (!d_dlogits)
			continue;
		float p = hit >= 0 ? occ_exp(row[hit] - d_max[r]) / d_sum[r] : 0.0f;
		gradient_row(d, x, row, d_max[r], scale / d_sum[r], counts ? columns(x) : 0,
			     d_dlogits, at);
		if (hit >= 0 && d->type == OCC_F32)
			((float *)d_dlogits)[at + hit] = (p - 1.0f) * scale;
		else if (hit >= 0)
			((uint16_t *)d_dlogits)[at + hit] = occ_f32_to_bf16((p - 1.0f) * scale);
	}
}

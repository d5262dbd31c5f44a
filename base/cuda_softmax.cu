/* Attention without cuDNN: causal softmax over rows of scores, one warp a row, and its way back. */
#include "base/cuda_softmax.h"

#include "base/cuda.cuh"

enum { WARPS = 4 };

/* Which query a warp has: of head `head` of this call (a's head h0 + head), token t. */
struct query {
	int64_t head, t, at; /* at: its row of (heads, T, T), in elements */
	int lane, none;
};

__device__ static inline struct query query_of(int64_t T, int64_t heads)
{
	struct query q;
	int64_t row = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
	q.lane = threadIdx.x & 31;
	q.none = row >= heads * T;
	q.head = row / T;
	q.t = row % T;
	q.at = row * T;
	return q;
}

__device__ static inline float mask_of(const struct occ_cuda_heads *s, const struct query *q,
				       int64_t j)
{
	if (!(s->drop.p > 0))
		return 1;
	return occ_drop_at(&s->drop, s->b * s->T + q->t, (s->h0 + q->head) * s->T + j);
}

/* p (heads,T,T) = softmax of the scores of keys 0..t, times the mask, 0 after them. p may be the
 * scores where T is float. */
template <class T>
__global__ void __launch_bounds__(32 * WARPS)
	k_softmax(struct occ_cuda_heads s, const float *score, T *p, float *lse)
{
	struct query q = query_of(s.T, s.heads);
	float max = -INFINITY, sum = 0;
	if (q.none) /* a whole warp */
		return;
	const float *x = score + q.at;
	for (int64_t j = q.lane; j <= q.t; j += 32)
		max = fmaxf(max, x[j]);
	max = occ_warp_max(max);
	for (int64_t j = q.lane; j <= q.t; j += 32)
		sum += expf(x[j] - max);
	sum = occ_warp_sum(sum);
	if (q.lane == 0)
		lse[(s.b * s.H + s.h0 + q.head) * s.T + q.t] = max + logf(sum);
	for (int64_t j = q.lane; j < s.T; j += 32)
		occ_store(p, q.at + j,
			  j <= q.t ? expf(x[j] - max) / sum * mask_of(&s, &q, j) : 0.0f);
}

/* Of the gradient dp of the masked probabilities: p = those, ds = gradient of q.k. p may be the
 * scores and ds may be dp where T is float. */
template <class T>
__global__ void __launch_bounds__(32 * WARPS)
	k_softmax_backward(struct occ_cuda_heads s, const float *score, const float *lse, const T *out,
			   const T *dout, const float *dp, T *p, T *ds)
{
	struct query q = query_of(s.T, s.heads);
	if (q.none)
		return;
	int64_t at = (s.b * s.T + q.t) * s.H * s.D + (s.h0 + q.head) * s.D;
	float top = lse[(s.b * s.H + s.h0 + q.head) * s.T + q.t], delta = 0;
	for (int64_t i = q.lane; i < s.D; i += 32)
		delta += occ_load(out, at + i) * occ_load(dout, at + i);
	delta = occ_warp_sum(delta);
	for (int64_t j = q.lane; j < s.T; j += 32) {
		float v = 0, m = 0, g = 0;
		if (j <= q.t) {
			v = expf(score[q.at + j] - top);
			m = mask_of(&s, &q, j);
			g = v * (dp[q.at + j] * m - delta) * s.scale;
		}
		occ_store(p, q.at + j, v * m);
		occ_store(ds, q.at + j, g);
	}
}

extern "C" void occ_cuda_softmax(struct occ_device *d, const struct occ_cuda_heads *s,
				 const float *d_score, void *d_p, float *d_lse)
{
	unsigned blocks = occ_blocks(s->heads * s->T, WARPS, INT32_MAX);
	OCC_TYPED(d->type, T,
		  OCC_LAUNCH(d, (k_softmax<T>), blocks, 32 * WARPS, 0, *s, d_score, (T *)d_p,
			     d_lse));
}

extern "C" void occ_cuda_softmax_backward(struct occ_device *d, const struct occ_cuda_heads *s,
					  const float *d_score, const float *d_lse,
					  const void *d_out, const void *d_dout, const float *d_dp,
					  void *d_p, void *d_ds)
{
	unsigned blocks = occ_blocks(s->heads * s->T, WARPS, INT32_MAX);
	OCC_TYPED(d->type, T,
		  OCC_LAUNCH(d, (k_softmax_backward<T>), blocks, 32 * WARPS, 0, *s, d_score, d_lse,
			     (const T *)d_out, (const T *)d_dout, d_dp, (T *)d_p, (T *)d_ds));
}

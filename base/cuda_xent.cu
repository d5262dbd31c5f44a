/* Cross-entropy over a shard of the vocabulary: a block for each row, which the first and the last
 * pass read once. */
#include "base/cuda_vec.cuh"

/* Columns of this shard that are not padding. */
static __host__ __device__ inline int64_t columns(const struct occ_xent &x)
{
	int64_t n = x.valid - x.v0;
	return n < 0 ? 0 : n < x.V ? n : x.V;
}

/* The column of a target, or -1 if it is not of this shard or its row counts nothing. */
__device__ static inline int64_t hit_column(const struct occ_xent &x, int32_t target)
{
	int64_t c = target - x.v0;
	return target >= 0 && c >= 0 && c < columns(x) ? c : -1;
}

/* The larger one; NaN if one is, which fmaxf would drop. */
__device__ static inline float top(float a, float b)
{
	return b > a || b != b ? b : a;
}

/* A maximum, and the sum of exp(x - maximum) over what it was taken of. */
struct stats {
	float max, sum;
};

/* exp(a - b) for b >= a; 1 where both are -inf, of nothing. */
__device__ static inline float shrink(float a, float b)
{
	return a == b ? 1 : expf(a - b);
}

__device__ static inline struct stats join(const struct stats &a, const struct stats &b)
{
	float m = top(a.max, b.max);
	return {m, a.sum * shrink(a.max, m) + b.sum * shrink(b.max, m)};
}

template <int N, class T>
__device__ static inline struct stats of_pack(const occ_vec<T, N> &v, int64_t valid)
{
	struct stats s = {-INFINITY, 0};
#pragma unroll
	for (int k = 0; k < N; k++)
		s.max = k < valid ? top(s.max, occ_load(v.v, k)) : s.max;
#pragma unroll
	for (int k = 0; k < N; k++)
		s.sum += k < valid ? shrink(occ_load(v.v, k), s.max) : 0;
	return s;
}

template <int N, class T>
__global__ void k_xent_stats(struct occ_xent x, const T *logits, const int32_t *targets, float *max,
			     float *sum, float *hit)
{
	__shared__ struct stats part[8];
	const T *row = logits + blockIdx.x * x.ld;
	int64_t n = columns(x);
	struct stats s = {-INFINITY, 0};
#pragma unroll 4
	for (int64_t c = threadIdx.x * N; c < n; c += blockDim.x * N)
		s = join(s, of_pack(occ_get_of<N>(row, c, n), n - c));
	for (int o = 16; o > 0; o >>= 1)
		s = join(s, {__shfl_xor_sync(occ_all_lanes, s.max, o),
			     __shfl_xor_sync(occ_all_lanes, s.sum, o)});
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = s;
	__syncthreads();
	if (threadIdx.x > 0)
		return;
	for (unsigned w = 1; w < blockDim.x / 32; w++)
		s = join(s, part[w]);
	int64_t c = hit_column(x, targets[blockIdx.x]);
	max[blockIdx.x] = s.max;
	sum[blockIdx.x] = s.sum;
	hit[blockIdx.x] = c < 0 ? 0 : occ_load(row, c);
}

__global__ void k_xent_rescale(int64_t rows, const float *max, const float *top, float *sum)
{
	int64_t r = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
	if (r < rows)
		sum[r] *= expf(max[r] - top[r]);
}

__global__ void k_xent_loss(int64_t rows, const int32_t *targets, const float *top,
			    const float *sum, const float *hit, float *loss)
{
	int64_t r = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
	if (r < rows)
		loss[r] = targets[r] >= 0 ? logf(sum[r]) + (top[r] - hit[r]) : 0;
}

/* out may be logits: each thread has read what it overwrites. */
template <int N, class T>
__global__ void k_xent_gradient(struct occ_xent x, const T *logits, const int32_t *targets,
				const float *top, const float *sum, float scale, T *out)
{
	int64_t at = blockIdx.x * x.ld, hit = hit_column(x, targets[blockIdx.x]);
	int64_t n = targets[blockIdx.x] >= 0 ? columns(x) : 0;
	float m = top[blockIdx.x], inv = 1 / sum[blockIdx.x];
#pragma unroll 2
	for (int64_t c = threadIdx.x * N; c < x.V; c += blockDim.x * N) {
		occ_vec<T, N> v = occ_get_of<N>(logits + at, c, n);
#pragma unroll
		for (int k = 0; k < N; k++) {
			float p = c + k < n ? expf(occ_load(v.v, k) - m) : 0;
			p = c + k < n ? fmaf(p, inv, c + k == hit ? -1.0f : 0.0f) : 0;
			occ_store(v.v, k, p * scale);
		}
		occ_put_of(out + at, c, x.V, v);
	}
}

static unsigned threads(int64_t n, int N)
{
	return occ_threads((n / N + 3) / 4);
}

static int wide(const struct occ_device *d, const struct occ_xent *x, const void *a, const void *b)
{
	return x->ld % (16 / (int64_t)occ_type_size(d->type)) == 0 && occ_aligned(a, b);
}

void occ_cuda_xent_stats(struct occ_device *d, const struct occ_xent *x, const void *d_logits,
			 const int32_t *d_targets, float *d_max, float *d_sum, float *d_hit)
{
	if (x->rows <= 0)
		return;
	OCC_TYPED(d->type, T,
		  OCC_WIDE(wide(d, x, d_logits, d_logits), N, T,
			   OCC_LAUNCH(d, (k_xent_stats<N, T>), (unsigned)x->rows,
				      threads(columns(*x), N), 0, *x, (const T *)d_logits,
				      d_targets, d_max, d_sum, d_hit)));
}

void occ_cuda_xent_rescale(struct occ_device *d, int64_t rows, const float *d_max,
			   const float *d_top, float *d_sum)
{
	if (rows > 0)
		OCC_LAUNCH(d, k_xent_rescale, occ_blocks(rows, 128, INT32_MAX), 128, 0, rows, d_max,
			   d_top, d_sum);
}

void occ_cuda_xent_finish(struct occ_device *d, const struct occ_xent *x, const void *d_logits,
			  const int32_t *d_targets, const float *d_top, const float *d_sum,
			  const float *d_hit, float scale, float *d_loss, void *d_dlogits)
{
	if (x->rows <= 0)
		return;
	OCC_LAUNCH(d, k_xent_loss, occ_blocks(x->rows, 128, INT32_MAX), 128, 0, x->rows, d_targets,
		   d_top, d_sum, d_hit, d_loss);
	if (d_dlogits && x->V > 0)
		OCC_TYPED(d->type, T,
			  OCC_WIDE(wide(d, x, d_logits, d_dlogits), N, T,
				   OCC_LAUNCH(d, (k_xent_gradient<N, T>), (unsigned)x->rows,
					      threads(x->V, N), 0, *x, (const T *)d_logits,
					      d_targets, d_top, d_sum, scale, (T *)d_dlogits)));
}

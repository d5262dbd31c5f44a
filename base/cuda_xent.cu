/* Cross-entropy over a shard of the vocabulary, in its three passes: a block for each row, which
 * each pass reads once. */
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

template <int N> __global__ void k_xent_max(struct occ_xent x, const float *logits, float *max)
{
	__shared__ float part[8];
	const float *row = logits + blockIdx.x * x.ld;
	int64_t n = columns(x);
	float m = -INFINITY;
#pragma unroll 4
	for (int64_t c = threadIdx.x * N; c < n; c += blockDim.x * N) {
		occ_vec<float, N> v = occ_get_of<N>(row, c, n, -INFINITY);
#pragma unroll
		for (int k = 0; k < N; k++)
			m = top(m, v.v[k]);
	}
	for (int o = 16; o > 0; o >>= 1)
		m = top(m, __shfl_xor_sync(occ_all_lanes, m, o));
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = m;
	__syncthreads();
	for (unsigned w = 0; w < blockDim.x / 32; w++)
		m = top(m, part[w]);
	if (threadIdx.x == 0)
		max[blockIdx.x] = m;
}

template <int N>
__global__ void k_xent_sum(struct occ_xent x, const float *logits, const int32_t *targets,
			   const float *max, float *sum, float *hit)
{
	const float *row = logits + blockIdx.x * x.ld;
	int64_t n = columns(x);
	float m = max[blockIdx.x], s[1] = {0};
#pragma unroll 4
	for (int64_t c = threadIdx.x * N; c < n; c += blockDim.x * N) {
		occ_vec<float, N> v = occ_get_of<N>(row, c, n, -INFINITY);
		float pack = 0;
#pragma unroll
		for (int k = 0; k < N; k++)
			pack += c + k < n ? expf(v.v[k] - m) : 0;
		s[0] += pack;
	}
	occ_row_sum(s);
	if (threadIdx.x == 0) {
		int64_t c = hit_column(x, targets[blockIdx.x]);
		sum[blockIdx.x] = s[0];
		hit[blockIdx.x] = c < 0 ? 0 : row[c] - m;
	}
}

__global__ void k_xent_loss(int64_t rows, const int32_t *targets, const float *sum,
			    const float *hit, float *loss)
{
	int64_t r = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
	if (r < rows)
		loss[r] = targets[r] >= 0 ? logf(sum[r]) - hit[r] : 0;
}

/* out may be logits: each thread has read what it overwrites. */
template <int N, class T>
__global__ void k_xent_gradient(struct occ_xent x, const float *logits, const int32_t *targets,
				const float *max, const float *sum, float scale, T *out)
{
	int64_t at = blockIdx.x * x.ld, hit = hit_column(x, targets[blockIdx.x]);
	int64_t n = targets[blockIdx.x] >= 0 ? columns(x) : 0;
	float m = max[blockIdx.x], inv = 1 / sum[blockIdx.x];
	for (int64_t c = threadIdx.x * N; c < x.V; c += blockDim.x * N) {
		occ_vec<T, N> g;
		occ_vec<float, N> v = occ_get_of<N>(logits + at, c, n);
#pragma unroll
		for (int k = 0; k < N; k++) {
			float p = c + k < n ? expf(v.v[k] - m) : 0;
			p = c + k < n ? fmaf(p, inv, c + k == hit ? -1.0f : 0.0f) : 0;
			occ_store(g.v, k, p * scale);
		}
		occ_put_of(out + at, c, x.V, g);
	}
}

static unsigned threads(int64_t n, int N)
{
	return occ_threads((n / N + 3) / 4);
}

void occ_cuda_xent_max(struct occ_device *d, const struct occ_xent *x, const float *d_logits,
		       float *d_max)
{
	if (x->rows > 0)
		OCC_WIDE(x->ld % 4 == 0 && occ_aligned(d_logits), N, float,
			 OCC_LAUNCH(d, (k_xent_max<N>), (unsigned)x->rows, threads(columns(*x), N),
				    0, *x, d_logits, d_max));
}

void occ_cuda_xent_sum(struct occ_device *d, const struct occ_xent *x, const float *d_logits,
		       const int32_t *d_targets, const float *d_max, float *d_sum, float *d_hit)
{
	if (x->rows > 0)
		OCC_WIDE(x->ld % 4 == 0 && occ_aligned(d_logits), N, float,
			 OCC_LAUNCH(d, (k_xent_sum<N>), (unsigned)x->rows, threads(columns(*x), N),
				    0, *x, d_logits, d_targets, d_max, d_sum, d_hit));
}

void occ_cuda_xent_finish(struct occ_device *d, const struct occ_xent *x, const float *d_logits,
			  const int32_t *d_targets, const float *d_max, const float *d_sum,
			  const float *d_hit, float scale, float *d_loss, void *d_dlogits)
{
	if (x->rows <= 0)
		return;
	OCC_LAUNCH(d, k_xent_loss, occ_blocks(x->rows, 128, INT32_MAX), 128, 0, x->rows, d_targets,
		   d_sum, d_hit, d_loss);
	if (d_dlogits && x->V > 0)
		OCC_TYPED(d->type, T,
			  OCC_WIDE(x->ld % 4 == 0 && occ_aligned(d_logits, d_dlogits), N, float,
				   OCC_LAUNCH(d, (k_xent_gradient<N, T>), (unsigned)x->rows,
					      threads(x->V, N), 0, *x, d_logits, d_targets, d_max,
					      d_sum, scale, (T *)d_dlogits)));
}

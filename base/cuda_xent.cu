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

/* A maximum, and the sum of exp(x - maximum) over what it was taken of. The maximum passes over
 * NaN, which the sum keeps. */
struct stats {
	float max, sum;
};

/* e^x of x = logit - maximum, which is exact where it counts: a fused logit * log2(e) - maximum *
 * log2(e), an instruction less, would be 1e-5 off where logits are about 100. */
__device__ static inline float exp_of(float x)
{
	return occ_exp2(x * 1.4426950408889634f);
}

/* exp(a - b) for b >= a; 1 where both are the same infinity. */
__device__ static inline float shrink(float a, float b)
{
	return a == b ? 1 : exp_of(a - b);
}

__device__ static inline struct stats join(const struct stats &a, const struct stats &b)
{
	float m = fmaxf(a.max, b.max);
	return {m, a.sum * shrink(a.max, m) + b.sum * shrink(b.max, m)};
}

/* K packs that lie `step` apart join s. All of them are under way at once, and the sum so far is
 * multiplied once for them, and seldom. */
template <int K, int N, class T>
__device__ static inline void take(struct stats &s, const T *x, int step)
{
	occ_vec<T, N> v[K];
#pragma unroll
	for (int k = 0; k < K; k++)
		v[k] = occ_get<N>(x, k * step);
	float m = s.max;
#pragma unroll
	for (int k = 0; k < K * N; k++)
		m = fmaxf(m, occ_load(v[k / N].v, k % N));
	if (m > s.max) {
		s.sum *= exp_of(s.max - m);
		s.max = m;
	}
	float base = fabsf(m) == INFINITY ? 0 : m; /* inf - inf would be NaN */
#pragma unroll
	for (int k = 0; k < K * N; k++)
		s.sum += exp_of(occ_load(v[k / N].v, k % N) - base);
}

/* What this thread has of a row's n columns. */
template <int N, class T> __device__ static inline struct stats of_thread(const T *row, int n)
{
	struct stats s = {-INFINITY, 0};
	int step = blockDim.x * N, whole = n / N * N, c = threadIdx.x * N;
	for (; c + step < whole; c += 2 * step)
		take<2, N>(s, row + c, step);
	if (c < whole)
		take<1, N>(s, row + c, step);
	if (whole + (int)threadIdx.x < n)
		take<1, 1>(s, row + whole + threadIdx.x, 0);
	return s;
}

template <int N, class T>
__global__ void k_xent_stats(struct occ_xent x, const T *logits, const int32_t *targets, float *max,
			     float *sum, float *hit)
{
	__shared__ struct stats part[8];
	const T *row = logits + blockIdx.x * x.ld;
	int n = (int)columns(x);
	struct stats s = of_thread<N>(row, n);
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
	if (s.sum != s.sum)
		s.max = s.sum;
	else if (n > 0 && fabsf(s.max) == INFINITY)
		s.sum = NAN; /* exp(inf - inf) */
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

/* A row's gradient: by * exp(x - top) in its first n of V columns, 0 behind, less `scale` in the
 * target's. out may be x: each thread has read what it overwrites. */
template <class T> struct slope {
	const T *x;
	T *out;
	int n, V, hit;
	float top, by, scale;
};

/* Whether a pack is nothing but exp(x - top) * by. */
template <int N, class T> __device__ static inline int plain(const struct slope<T> &g, int c)
{
	return c + N <= g.n && (unsigned)(g.hit - c) >= N;
}

template <int K, int N, class T>
__device__ static inline void put_plain(const struct slope<T> &g, int c, int step)
{
	occ_vec<T, N> v[K];
#pragma unroll
	for (int k = 0; k < K; k++)
		v[k] = occ_get<N>(g.x, c + k * step);
#pragma unroll
	for (int k = 0; k < K; k++) {
#pragma unroll
		for (int i = 0; i < N; i++)
			occ_store(v[k].v, i, exp_of(occ_load(v[k].v, i) - g.top) * g.by);
		occ_put(g.out, c + k * step, v[k]);
	}
}

/* Any pack: at the end, in the padding, or with the target. */
template <int N, class T> __device__ static inline void put_any(const struct slope<T> &g, int c)
{
	if (plain<N>(g, c))
		return put_plain<1, N>(g, c, 0);
	int end = c + N < g.V ? c + N : g.V;
#pragma unroll 1
	for (; c < end; c++) {
		float p = c < g.n ? exp_of(occ_load(g.x, c) - g.top) : 0;
		p = c < g.n ? fmaf(p, g.by, c == g.hit ? -g.scale : 0.0f) : 0;
		occ_store(g.out, c, p);
	}
}

template <int N, class T>
__global__ void k_xent_gradient(struct occ_xent x, const T *logits, const int32_t *targets,
				const float *top, const float *sum, float scale, T *out)
{
	int64_t r = blockIdx.x, at = r * x.ld;
	struct slope<T> g = {
		logits + at, out + at, targets[r] >= 0 ? (int)columns(x) : 0, (int)x.V,
			(int)hit_column(x, targets[r]), top[r], scale / sum[r], scale
	};
	int step = blockDim.x * N;
	for (int c = threadIdx.x * N; c < g.V; c += 2 * step) {
		/* with && the second load would wait for the first */
		if (plain<N>(g, c) & plain<N>(g, c + step)) {
			put_plain<2, N>(g, c, step);
		} else {
			put_any<N>(g, c);
			put_any<N>(g, c + step);
		}
	}
}

static unsigned threads(int64_t n, int N)
{
	return occ_threads((n / N + 3) / 4);
}

static int wide(const struct occ_device *d, const struct occ_xent *x, const void *a, const void *b)
{
	occ_check(x->V < 1 << 30, "%lld columns: kernels count in int", (long long)x->V);
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

/* AdamW over an arena, and sums of squares in fixed order. */
#include "base/cuda_vec.cuh"

enum { THREADS = 256 };

struct arena {
	const float *g;
	float *m, *v, *master;
};

/* A piece of n elements from `at` on, by its block. */
template <int N, class T>
__device__ static inline void update(const struct occ_adamw &a, float decay, const struct arena &p,
				     T *w, int64_t at, int64_t n)
{
	for (int64_t i = at + threadIdx.x * N; i < at + n; i += THREADS * N) {
		int64_t end = at + n;
		occ_vec<float, N> g = occ_get_of<N>(p.g, i, end), m = occ_get_of<N>(p.m, i, end);
		occ_vec<float, N> v = occ_get_of<N>(p.v, i, end), now;
		occ_vec<T, N> out;
		if (p.master)
			now = occ_get_of<N>(p.master, i, end);
		else
			out = occ_get_of<N>(w, i, end);
#pragma unroll
		for (int k = 0; k < N; k++) {
			float x = g.v[k] * a.scale;
			float y = p.master ? now.v[k] : occ_load(out.v, k);
			m.v[k] = a.beta1 * m.v[k] + (1 - a.beta1) * x;
			v.v[k] = a.beta2 * v.v[k] + (1 - a.beta2) * x * x;
			float step = m.v[k] / a.c1 / (sqrtf(v.v[k] / a.c2) + a.eps);
			now.v[k] = y - a.lr * (step + decay * y);
			occ_store(out.v, k, now.v[k]);
		}
		occ_put_of(p.m, i, end, m);
		occ_put_of(p.v, i, end, v);
		if (p.master)
			occ_put_of(p.master, i, end, now);
		occ_put_of(w, i, end, out);
	}
}

/* wide: the arrays' starts allow wide accesses; whether a piece does too is its place's matter. */
template <class T>
__global__ void __launch_bounds__(THREADS)
	k_adamw(struct occ_adamw a, const struct occ_piece *pieces, int wide, struct arena p, T *w)
{
	const struct occ_piece own = pieces[blockIdx.x];
	float decay = a.decay * own.decay;
	if (wide && own.at % 4 == 0)
		update<4>(a, decay, p, w, own.at, own.n);
	else
		update<1>(a, decay, p, w, own.at, own.n);
}

void occ_cuda_adamw(struct occ_device *d, const struct occ_adamw *a, const struct occ_pieces *p,
		    const float *d_g, float *d_m, float *d_v, float *d_master, void *d_w)
{
	struct arena arena = {d_g, d_m, d_v, d_master};
	int wide = occ_aligned(d_g, d_m, d_v, d_master, d_w);
	occ_check(d_master || d->type == OCC_F32, "bf16 weights need a master copy");
	if (p->n > 0)
		OCC_TYPED(d->type, T,
			  OCC_LAUNCH(d, (k_adamw<T>), (unsigned)p->n, THREADS, 0, *a, p->d_at, wide,
				     arena, (T *)d_w));
}

/* A thread's share of the sum of squares of x (n): four neighbours from i on, and so forth. Which
 * thread takes which depends on n only, whether or not one access can read them. */
__device__ static inline double squares(int64_t n, int wide, const float *x, int64_t i,
					int64_t step)
{
	double sum = 0;
#pragma unroll 4
	for (; i < n; i += step) {
		occ_vec<float, 4> v = {};
		if (wide)
			v = occ_get_of<4>(x, i, n);
		else
			for (int k = 0; k < 4 && i + k < n; k++)
				v.v[k] = x[i + k];
#pragma unroll
		for (int k = 0; k < 4; k++)
			sum += (double)v.v[k] * (double)v.v[k];
	}
	return sum;
}

__global__ void k_squares(int64_t n, int wide, const float *x, double *part)
{
	double sum = squares(n, wide, x, (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * 4,
			     (int64_t)gridDim.x * blockDim.x * 4);
	sum = occ_block_sum<256>(sum);
	if (threadIdx.x == 0)
		part[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(THREADS)
	k_piece_squares(const struct occ_piece *pieces, int wide, const float *x, double *to)
{
	const struct occ_piece own = pieces[blockIdx.x];
	double sum = squares(own.n, wide && own.at % 4 == 0, x + own.at, threadIdx.x * 4,
			     THREADS * 4);
	sum = occ_block_sum<THREADS>(sum);
	if (threadIdx.x == 0)
		to[blockIdx.x] = sum;
}

void occ_cuda_piece_squares(struct occ_device *d, const struct occ_pieces *p, const float *d_x,
			    double *d_sum)
{
	if (p->n > 0)
		OCC_LAUNCH(d, k_piece_squares, (unsigned)p->n, THREADS, 0, p->d_at,
			   occ_aligned(d_x), d_x, d_sum);
}

__global__ void k_sum(int64_t n, const double *part, double *to)
{
	double sum = 0;
	for (int64_t i = threadIdx.x; i < n; i += 256)
		sum += part[i];
	sum = occ_block_sum<256>(sum);
	if (threadIdx.x == 0)
		*to = sum;
}

void occ_cuda_sum_squares(struct occ_device *d, int64_t n, const float *d_x, double *d_sum)
{
	unsigned blocks = occ_blocks(n, 4096, 1024);
	double *part = (double *)occ_cuda_scratch(d, blocks * sizeof(*part));
	if (n > 0)
		OCC_LAUNCH(d, k_squares, blocks, 256, 0, n, occ_aligned(d_x), d_x, part);
	OCC_LAUNCH(d, k_sum, 1, 256, 0, n > 0 ? blocks : 0, part, d_sum);
}

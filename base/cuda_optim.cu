/* AdamW over an arena, and the sum of squares in fixed order. */
#include "base/cuda_vec.cuh"

struct arena {
	int64_t n;
	const float *g;
	float *m, *v, *master;
};

template <int N, class T> __global__ void k_adamw(struct occ_adamw a, struct arena p, T *w)
{
	for (int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * N; i < p.n;
	     i += (int64_t)gridDim.x * blockDim.x * N) {
		occ_vec<float, N> g = occ_get_of<N>(p.g, i, p.n), m = occ_get_of<N>(p.m, i, p.n);
		occ_vec<float, N> v = occ_get_of<N>(p.v, i, p.n), now;
		occ_vec<T, N> out;
		if (p.master)
			now = occ_get_of<N>(p.master, i, p.n);
		else
			out = occ_get_of<N>(w, i, p.n);
#pragma unroll
		for (int k = 0; k < N; k++) {
			float x = g.v[k] * a.scale;
			float y = p.master ? now.v[k] : occ_load(out.v, k);
			m.v[k] = a.beta1 * m.v[k] + (1 - a.beta1) * x;
			v.v[k] = a.beta2 * v.v[k] + (1 - a.beta2) * x * x;
			float step = m.v[k] / a.c1 / (sqrtf(v.v[k] / a.c2) + a.eps);
			now.v[k] = y - a.lr * (step + a.decay * y);
			occ_store(out.v, k, now.v[k]);
		}
		occ_put_of(p.m, i, p.n, m);
		occ_put_of(p.v, i, p.n, v);
		if (p.master)
			occ_put_of(p.master, i, p.n, now);
		occ_put_of(w, i, p.n, out);
	}
}

void occ_cuda_adamw(struct occ_device *d, const struct occ_adamw *a, int64_t n, const float *d_g,
		    float *d_m, float *d_v, float *d_master, void *d_w)
{
	struct arena p = {n, d_g, d_m, d_v, d_master};
	occ_check(d_master || d->type == OCC_F32, "bf16 weights need a master copy");
	if (n > 0)
		OCC_TYPED(d->type, T,
			  OCC_WIDE(occ_aligned(d_g, d_m, d_v, d_master, d_w), N, float,
				   OCC_LAUNCH(d, (k_adamw<N, T>), occ_blocks(n, 256 * N, 1 << 16),
					      256, 0, *a, p, (T *)d_w)));
}

/* Which thread takes which four neighbours depends on n only, whether or not one access can read
 * them. */
__global__ void k_squares(int64_t n, int wide, const float *x, double *part)
{
	double sum = 0;
#pragma unroll 4
	for (int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * 4; i < n;
	     i += (int64_t)gridDim.x * blockDim.x * 4) {
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
	sum = occ_block_sum<256>(sum);
	if (threadIdx.x == 0)
		part[blockIdx.x] = sum;
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

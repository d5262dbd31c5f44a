/* AdamW over an arena, and the sum of squares in fixed order. */
#include "base/cuda.cuh"

template <class T> __global__ void k_adamw(struct occ_adamw a, int64_t n, const float *g, float *m, float *v,
					   float *master, T *w)
{
	for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
	     i += (int64_t)gridDim.x * blockDim.x) {
		float x = g[i] * a.scale;
		float mi = a.beta1 * m[i] + (1 - a.beta1) * x;
		float vi = a.beta2 * v[i] + (1 - a.beta2) * x * x;
		float now = master ? master[i] : occ_load(w, i);
		float step = mi / a.c1 / (sqrtf(vi / a.c2) + a.eps);
		now -= a.lr * (step + a.decay * now);
		m[i] = mi;
		v[i] = vi;
		if (master)
			master[i] = now;
		occ_store(w, i, now);
	}
}

void occ_cuda_adamw(struct occ_device *d, const struct occ_adamw *a, int64_t n, const float *d_g,
		    float *d_m, float *d_v, float *d_master, void *d_w)
{
	if (n > 0)
		OCC_TYPED(d->type, T,
			  OCC_LAUNCH(d, (k_adamw<T>), occ_blocks(n, 256, 1 << 16), 256, 0, *a, n, d_g, d_m, d_v, d_master,
				     (T *)d_w));
}

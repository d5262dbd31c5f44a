/* Sums and largest values of what several ranks hold, in the order of ranks. */
#include "base/cuda.cuh"

template <class T>
__global__ void k_fold(int k, int64_t n, int max, const T *x, T *y)
{
	for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
	     i += (int64_t)gridDim.x * blockDim.x) {
		float v = occ_load(x, i);
		for (int r = 1; r < k; r++) {
			float w = occ_load(x, r * n + i);
			v = !max ? v + w : w > v || w != w ? w : v;
		}
		occ_store(y, i, v);
	}
}

void occ_cuda_fold(struct occ_device *d, int k, int64_t n, enum occ_type type, int max,
		   const void *d_x, void *d_y)
{
	if (n > 0)
		OCC_TYPED(type, T,
			  OCC_LAUNCH(d, (k_fold<T>), occ_blocks(n, 256, 1 << 16), 256, 0, k, n, max,
				     (const T *)d_x, (T *)d_y));
}

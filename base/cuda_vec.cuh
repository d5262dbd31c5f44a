/* What the kernels of layers share: neighbours moved at once, dropout, blocks over rows, and sums
 * of columns. Rows whose length or address does not allow wide accesses take N = 1. */
#ifndef OCC_BASE_CUDA_VEC_CUH
#define OCC_BASE_CUDA_VEC_CUH

#include "base/cuda.cuh"

/* N elements side by side as they lie in memory, moved by accesses of up to 16 bytes. */
template <class T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) occ_vec {
	T v[N];
};

template <int N, class T> __device__ static inline occ_vec<T, N> occ_get(const T *x, int64_t i)
{
	return *(const occ_vec<T, N> *)(x + i);
}

template <class T, int N>
__device__ static inline void occ_put(T *x, int64_t i, const occ_vec<T, N> &v)
{
	*(occ_vec<T, N> *)(x + i) = v;
}

template <int N> __device__ static inline occ_vec<float, N> occ_floats(const float (&x)[N])
{
	occ_vec<float, N> v;
#pragma unroll
	for (int k = 0; k < N; k++)
		v.v[k] = x[k];
	return v;
}

/* The same at the end of an array of n elements: what lies behind reads as `fill`. */
template <int N, class T>
__device__ static inline occ_vec<T, N> occ_get_of(const T *x, int64_t i, int64_t n, float fill = 0)
{
	if (i + N <= n)
		return occ_get<N>(x, i);
	occ_vec<T, N> v;
#pragma unroll
	for (int k = 0; k < N; k++)
		occ_store(v.v, k, i + k < n ? occ_load(x, i + k) : fill);
	return v;
}

template <class T, int N>
__device__ static inline void occ_put_of(T *x, int64_t i, int64_t n, const occ_vec<T, N> &v)
{
	if (i + N <= n)
		occ_put(x, i, v);
	else
#pragma unroll
		for (int k = 0; k < N; k++)
			if (i + k < n)
				x[i + k] = v.v[k];
}

/* 2^x in one instruction; what is not a normal number (below 2^-126) becomes 0. */
__device__ static inline float occ_exp2(float x)
{
#ifdef __CUDA_ARCH__
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
#else /* the tests' build */
	return exp2f(x);
#endif
}

template <class... P> static inline int occ_aligned(P... p)
{
	return ((((uintptr_t)p & 15) == 0) && ...);
}

/* The statements with N as 16 bytes of T, or as 1. Where a kernel moves both types, T is the one
 * with more bytes: its accesses then lie side by side in a warp. */
#define OCC_WIDE(wide, N, T, ...)                                                                  \
	do {                                                                                       \
		if (wide) {                                                                        \
			constexpr int N = 16 / sizeof(T);                                          \
			__VA_ARGS__;                                                               \
		} else {                                                                           \
			constexpr int N = 1;                                                       \
			__VA_ARGS__;                                                               \
		}                                                                                  \
	} while (0)

/* Dropout where the caller may give none; its factors for N columns from local column c on. N > 1
 * wants c and col0 to be multiples of 4. */
static inline struct occ_drop occ_drop_or_none(const struct occ_drop *drop)
{
	struct occ_drop none = {};
	return drop ? *drop : none;
}

static inline int occ_drop_wide(const struct occ_drop &drop)
{
	return !(drop.p > 0) || drop.col0 % 4 == 0;
}

template <int N>
__device__ static inline void occ_factors(const struct occ_drop &drop, int64_t r, int64_t c,
					  float (&f)[N])
{
	if (!(drop.p > 0)) {
#pragma unroll
		for (int k = 0; k < N; k++)
			f[k] = 1;
	} else if constexpr (N == 1) {
		f[0] = occ_drop_at(&drop, r, c);
	} else {
#pragma unroll
		for (int k = 0; k < N; k += 4)
			occ_drop_quad(&drop, drop.row0 + r, (drop.col0 + c + k) >> 2, f + k);
	}
}

/* Blocks for kernels that go over rows of `packs` packs: x along a row, y over rows. */
struct occ_shape {
	dim3 grid, block;
};

static inline unsigned occ_threads(int64_t packs)
{
	return packs >= 256 ? 256 : packs < 1 ? 32 : (unsigned)((packs + 31) / 32 * 32);
}

static inline struct occ_shape occ_over_rows(int64_t R, int64_t packs)
{
	unsigned nx = occ_threads(packs), most = 256 / nx, ny = R < most ? (unsigned)R : most;
	return {dim3((unsigned)((R + ny - 1) / ny)), dim3(nx, ny)};
}

/* K sums over the threads of a row: a warp, or a whole block of up to 8 warps. All get them. */
template <int K> __device__ static inline void occ_row_sum(float (&v)[K])
{
	__shared__ float part[8][K];
	unsigned warps = blockDim.x / 32;
#pragma unroll
	for (int k = 0; k < K; k++)
		v[k] = occ_warp_sum(v[k]);
	if (warps == 1)
		return;
	if (threadIdx.x % 32 == 0)
#pragma unroll
		for (int k = 0; k < K; k++)
			part[threadIdx.x / 32][k] = v[k];
	__syncthreads();
#pragma unroll
	for (int k = 0; k < K; k++) {
		v[k] = 0;
		for (unsigned w = 0; w < warps; w++)
			v[k] += part[w][k];
	}
	__syncthreads(); /* part may be used again */
}

/* Sums over threadIdx.y of a block of up to 8 warps, one warp each y; those with y = 0 get them. */
template <int N> __device__ static inline void occ_sum_over_y(float (&v)[N])
{
	__shared__ float part[8][N][32];
	if (blockDim.y == 1)
		return;
#pragma unroll
	for (int k = 0; k < N; k++)
		part[threadIdx.y][k][threadIdx.x] = v[k];
	__syncthreads();
	for (unsigned y = 1; threadIdx.y == 0 && y < blockDim.y; y++)
#pragma unroll
		for (int k = 0; k < N; k++)
			v[k] += part[y][k][threadIdx.x];
	__syncthreads();
}

/* to[k] (C) += the sum of part (P, K, C) over P, in double and fixed order; not where to[k] is
 * NULL. */
struct occ_sums {
	float *to[3];
};

void occ_cuda_fold_parts(struct occ_device *d, int64_t P, int K, int64_t C, const float *d_part,
			 struct occ_sums sums);

#endif

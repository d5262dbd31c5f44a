/* What every .cu file includes first: launching, access to arrays of either type, and sums over
 * warps and blocks. */
#ifndef OCC_BASE_CUDA_CUH
#define OCC_BASE_CUDA_CUH

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cuda_bf16.h>

#include "base/cuda.h"

#ifndef OCC_LAUNCH_ON /* the tests' build has its own */
#include <cuda_runtime.h>
#define OCC_LAUNCH_ON(stream, kernel, grid, block, smem, ...)                                      \
	kernel<<<(grid), (block), (smem), (stream)>>>(__VA_ARGS__)
#define OCC_DYN_SMEM(type, name)                                                                   \
	extern __shared__ __align__(16) unsigned char occ_dyn_smem_[];                             \
	type *name = (type *)occ_dyn_smem_
#endif

/* Enqueues kernel<<<grid, block, smem>>>(...) on d's current queue; dies (8) if it cannot be launched. A
 * template stands in parentheses: OCC_LAUNCH(d, (k<float>), ...). Grids must not be empty. */
#define OCC_LAUNCH(d, kernel, grid, block, smem, ...)                                              \
	do {                                                                                       \
		OCC_LAUNCH_ON(occ_cuda_stream(d), kernel, grid, block, smem, __VA_ARGS__);     \
		occ_cuda_must(cudaGetLastError(), #kernel);                                        \
	} while (0)

/* The statements with T as the element type that `type` names. */
#define OCC_TYPED(type, T, ...)                                                                    \
	do {                                                                                       \
		if ((type) == OCC_F32) {                                                           \
			typedef float T;                                                           \
			__VA_ARGS__;                                                               \
		} else {                                                                           \
			typedef __nv_bfloat16 T;                                                   \
			__VA_ARGS__;                                                               \
		}                                                                                  \
	} while (0)

static const unsigned occ_all_lanes = 0xffffffffu;

__device__ static inline float occ_load(const float *x, int64_t i)
{
	return x[i];
}

__device__ static inline float occ_load(const __nv_bfloat16 *x, int64_t i)
{
	return __bfloat162float(x[i]);
}

__device__ static inline void occ_store(float *x, int64_t i, float v)
{
	x[i] = v;
}

__device__ static inline void occ_store(__nv_bfloat16 *x, int64_t i, float v)
{
	x[i] = __float2bfloat16_rn(v);
}

/* Blocks of `per` that cover n, at most `most`: a kernel whose work may be cut anyhow strides. */
static inline unsigned occ_blocks(int64_t n, int64_t per, int64_t most)
{
	int64_t b = (n + per - 1) / per;
	return (unsigned)(b < 1 ? 1 : b > most ? most : b);
}

__device__ static inline float occ_warp_sum(float v)
{
	for (int o = 16; o > 0; o >>= 1)
		v += __shfl_xor_sync(occ_all_lanes, v, o);
	return v;
}

__device__ static inline double occ_warp_sum(double v)
{
	for (int o = 16; o > 0; o >>= 1)
		v += __shfl_xor_sync(occ_all_lanes, v, o);
	return v;
}

__device__ static inline float occ_warp_max(float v)
{
	for (int o = 16; o > 0; o >>= 1)
		v = fmaxf(v, __shfl_xor_sync(occ_all_lanes, v, o));
	return v;
}

/* Sum over a block of NT threads, a multiple of 32; every thread calls it and gets it. */
template <int NT, class V> __device__ static inline V occ_block_sum(V v)
{
	__shared__ V part[NT / 32];
	v = occ_warp_sum(v);
	if (NT == 32)
		return v;
	if ((threadIdx.x & 31) == 0)
		part[threadIdx.x >> 5] = v;
	__syncthreads();
	v = (threadIdx.x & 31) < NT / 32 ? part[threadIdx.x & 31] : V(0);
	v = occ_warp_sum(v);
	__syncthreads(); /* part may be used again */
	return v;
}

/* Sum over the threads before this one of a block of NT threads; *all is that of the block. */
template <int NT, class V> __device__ static inline V occ_block_scan(V v, V *all)
{
	__shared__ V part[NT / 32];
	const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
	V sum = v, before = 0, total = 0;
	for (int o = 1; o < 32; o <<= 1) {
		V u = __shfl_up_sync(occ_all_lanes, sum, o);
		sum += lane >= o ? u : 0;
	}
	if (lane == 31)
		part[warp] = sum;
	__syncthreads();
	for (int w = 0; w < NT / 32; w++) {
		before += w < warp ? part[w] : 0;
		total += part[w];
	}
	__syncthreads(); /* part may be used again */
	*all = total;
	return before + sum - v;
}

/* ---- Codecs. ---- */

/* Magnitudes are compared as bits. */
__device__ static inline unsigned occ_magnitude(float x)
{
	return __float_as_uint(x) & 0x7fffffffu;
}

/* y =, += or -= v, where v is a product as a rule: the sum must not be fused with it, so that every
 * device has the same bits. */
__device__ static inline void occ_put(enum occ_how how, float v, float *y)
{
	*y = how == OCC_SET ? v : __fadd_rn(*y, how == OCC_ADD ? v : -v);
}

#endif

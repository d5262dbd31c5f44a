/* Dense wires of the codecs: drawn numbers, sums, fp16 and quantised values, sparse values in and
 * out. Every byte is what ref writes: the same operations, none fused with another. */
#include "base/cuda.cuh"

enum { NT = 256, MOST = 1 << 16 };     /* threads of a block, blocks */
enum { PIECE = 8192, GROUPED = 4096 }; /* values of one block's maximum; longest group of a warp */

/* Four elements at once. */
template <class T> struct alignas(4 * sizeof(T)) quad {
	T v[4];
};

static int aligned(const void *p, size_t to)
{
	return (uintptr_t)p % to == 0;
}

__host__ __device__ static inline int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

__device__ static inline int64_t first_of(void)
{
	return blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
}

__device__ static inline int64_t stride(void)
{
	return gridDim.x * (int64_t)blockDim.x;
}

/* N values from x, of which `left` are there: zeros behind them. */
template <int N> __device__ static inline void fetch(const float *x, int64_t left, float *v)
{
	if (left >= N && (uintptr_t)x % 16 == 0) {
#pragma unroll
		for (int i = 0; i < N; i += 4)
			*(float4 *)(v + i) = *(const float4 *)(x + i);
		return;
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		v[i] = i < left ? x[i] : 0;
}

/* N results meet y, of which `left` are there. */
template <int N>
__device__ static inline void put_all(enum occ_how how, const float *v, int64_t left, float *y)
{
	if (left >= N && (uintptr_t)y % 16 == 0) {
#pragma unroll
		for (int i = 0; i < N; i += 4) {
			float4 r = {0, 0, 0, 0};
			if (how != OCC_SET)
				r = *(float4 *)(y + i);
			occ_put(how, v[i], &r.x);
			occ_put(how, v[i + 1], &r.y);
			occ_put(how, v[i + 2], &r.z);
			occ_put(how, v[i + 3], &r.w);
			*(float4 *)(y + i) = r;
		}
		return;
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		if (i < left)
			occ_put(how, v[i], &y[i]);
}

/* ---- Elementwise. ---- */

__global__ void k_draw(int64_t n, uint64_t key, uint32_t id, float *x)
{
	for (int64_t i = first_of(); i < n; i += stride())
		x[i] = occ_rng_normal_inline(key, id, (uint64_t)i);
}

void occ_cuda_draw(struct occ_device *d, int64_t n, uint64_t key, uint32_t id, float *d_x)
{
	if (n > 0)
		OCC_LAUNCH(d, k_draw, occ_blocks(n, NT, MOST), NT, 0, n, key, id, d_x);
}

/* The first `quads` groups of four are aligned. */
__global__ void k_scale(int64_t n, int64_t quads, float a, float *x)
{
	for (int64_t i = first_of(); i < quads; i += stride()) {
		float4 v = ((float4 *)x)[i];
		((float4 *)x)[i] = make_float4(v.x * a, v.y * a, v.z * a, v.w * a);
	}
	for (int64_t i = 4 * quads + first_of(); i < n; i += stride())
		x[i] *= a;
}

void occ_cuda_scale(struct occ_device *d, int64_t n, float a, float *d_x)
{
	if (n > 0)
		OCC_LAUNCH(d, k_scale, occ_blocks(n, 4 * NT, MOST), NT, 0, n,
			   aligned(d_x, 16) ? n / 4 : 0, a, d_x);
}

template <class T>
__global__ void k_accumulate(int64_t n, int64_t quads, const T *x, enum occ_how how, float *y)
{
	for (int64_t i = first_of(); i < quads; i += stride()) {
		quad<T> q = ((const quad<T> *)x)[i];
		float v[4];
#pragma unroll
		for (int k = 0; k < 4; k++)
			v[k] = occ_load(q.v, k);
		put_all<4>(how, v, 4, y + 4 * i);
	}
	for (int64_t i = 4 * quads + first_of(); i < n; i += stride())
		occ_put(how, occ_load(x, i), &y[i]);
}

void occ_cuda_accumulate(struct occ_device *d, int64_t n, enum occ_type type, const void *d_x,
			 enum occ_how how, float *d_y)
{
	int whole = aligned(d_y, 16) && aligned(d_x, 4 * occ_type_size(type));
	if (n > 0)
		OCC_TYPED(type, T,
			  OCC_LAUNCH(d, (k_accumulate<T>), occ_blocks(n, 4 * NT, MOST), NT, 0, n,
				     whole ? n / 4 : 0, (const T *)d_x, how, d_y));
}

/* ---- Sparse. ---- */

template <class I>
__global__ void k_pick(int64_t n, int64_t C, int64_t k, const I *at, const float *x, float *value)
{
	for (int64_t i = first_of(); i < n; i += stride())
		value[i] = x[i / k * C + at[i]];
}

void occ_cuda_pick(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width,
		   const void *d_at, const float *d_x, float *d_value)
{
	unsigned blocks = occ_blocks(R * k, NT, MOST);
	if (R * k <= 0)
		return;
	if (width == 2)
		OCC_LAUNCH(d, (k_pick<uint16_t>), blocks, NT, 0, R * k, C, k,
			   (const uint16_t *)d_at, d_x, d_value);
	else
		OCC_LAUNCH(d, (k_pick<int32_t>), blocks, NT, 0, R * k, C, k, (const int32_t *)d_at,
			   d_x, d_value);
}

template <class I>
__global__ void k_place(int64_t n, int64_t C, int64_t k, const I *at, const float *value,
			enum occ_how how, float *y)
{
	for (int64_t i = first_of(); i < n; i += stride())
		occ_put(how, value[i], &y[i / k * C + at[i]]);
}

void occ_cuda_place(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width,
		    const void *d_at, const float *d_value, enum occ_how how, float *d_y)
{
	unsigned blocks = occ_blocks(R * k, NT, MOST);
	if (how == OCC_SET && R > 0 && C > 0)
		d->ops->zero(d, d_y, (size_t)(R * C) * sizeof(*d_y));
	if (R * k <= 0)
		return;
	if (width == 2)
		OCC_LAUNCH(d, (k_place<uint16_t>), blocks, NT, 0, R * k, C, k,
			   (const uint16_t *)d_at, d_value, how, d_y);
	else
		OCC_LAUNCH(d, (k_place<int32_t>), blocks, NT, 0, R * k, C, k, (const int32_t *)d_at,
			   d_value, how, d_y);
}

/* ---- The largest magnitude of groups. ---- */

/* `lanes` lanes, a power of two, share one group. */
__device__ static inline unsigned top_of_lanes(unsigned most, int lanes)
{
	for (int o = lanes / 2; o > 0; o >>= 1)
		most = max(most, __shfl_xor_sync(occ_all_lanes, most, o));
	return most;
}

__global__ void k_tops_short(int64_t n, int64_t group, const float *x, int lanes, unsigned *top)
{
	int64_t groups = (n + group - 1) / group, per = blockDim.x / lanes;
	int lane = threadIdx.x % lanes;
	for (int64_t g0 = blockIdx.x * per; g0 < groups; g0 += gridDim.x * per) {
		int64_t g = g0 + threadIdx.x / lanes, end = least((g + 1) * group, n);
		unsigned most = 0;
		for (int64_t i = g * group + lane; i < end; i += lanes)
			most = max(most, occ_magnitude(x[i]));
		most = top_of_lanes(most, lanes);
		if (g < groups && lane == 0)
			top[g] = most;
	}
}

/* top was zeroed; blocks share a group. */
__global__ void k_tops(int64_t n, int64_t group, const float *x, unsigned *top)
{
	for (int64_t g = blockIdx.y; g * group < n; g += gridDim.y) {
		int64_t end = least((g + 1) * group, n);
		int64_t step = 4 * stride();
		unsigned most = 0;
		for (int64_t i = g * group + 4 * first_of(); i < end; i += step) {
			float v[4];
			fetch<4>(x + i, end - i, v);
#pragma unroll
			for (int k = 0; k < 4; k++)
				most = max(most, occ_magnitude(v[k]));
		}
		most = __reduce_max_sync(occ_all_lanes, most);
		if ((threadIdx.x & 31) == 0 && most)
			atomicMax(&top[g], most);
	}
}

static void tops(struct occ_device *d, int64_t n, int64_t group, const float *d_x, unsigned *d_top)
{
	int64_t groups = (n + group - 1) / group;
	int lanes = 1;
	while (lanes < 32 && lanes < group)
		lanes *= 2;
	if (group <= GROUPED) {
		OCC_LAUNCH(d, k_tops_short, occ_blocks(groups, NT / lanes, MOST), NT, 0, n, group,
			   d_x, lanes, d_top);
		return;
	}
	dim3 grid(occ_blocks(least(group, n), PIECE, 2048), occ_blocks(groups, 1, 65535));
	d->ops->zero(d, d_top, (size_t)groups * sizeof(*d_top));
	OCC_LAUNCH(d, k_tops, grid, NT, 0, n, group, d_x, d_top);
}

/* ---- Quantised: each thread makes a word of codes, of PER values. ---- */

template <int BITS> struct codes {
	enum { PER = 32 / BITS, MASK = (1 << BITS) - 1, L = (1 << (BITS - 1)) - 1 };
};

__device__ static inline float scale_of(unsigned top)
{
	return __uint_as_float(top < 0x7f800000u ? top : 0x7fc00000u);
}

template <int BITS> __device__ static inline unsigned field(float x, float scale)
{
	int q = scale > 0 ? __float2int_rn(__fmul_rn(x / scale, (float)codes<BITS>::L)) : 0;
	return (unsigned)q & codes<BITS>::MASK;
}

/* Word w of a wire of `bytes` bytes. */
__device__ static inline void store_word(int64_t w, unsigned word, int64_t bytes, uint8_t *code)
{
	if (4 * w + 4 <= bytes) {
		((uint32_t *)code)[w] = word;
		return;
	}
	for (int64_t b = 4 * w; b < bytes; b++, word >>= 8)
		code[b] = (uint8_t)word;
}

/* Where words do not cross groups, `lanes` lanes take a group: its values are read twice, the
 * second time from a cache. */
template <int BITS>
__global__ void k_quantise(int64_t n, int64_t group, const float *x, int lanes, float *scale)
{
	const int PER = codes<BITS>::PER;
	int64_t groups = (n + group - 1) / group, per = blockDim.x / lanes;
	uint8_t *code = (uint8_t *)(scale + groups);
	int lane = threadIdx.x % lanes;
	float v[PER];
	for (int64_t g0 = blockIdx.x * per; g0 < groups; g0 += gridDim.x * per) {
		int64_t g = g0 + threadIdx.x / lanes, end = least((g + 1) * group, n);
		int64_t first = g * group + lane * PER, step = (int64_t)lanes * PER;
		unsigned most = 0;
		for (int64_t i = first; i < end; i += step) {
			fetch<PER>(x + i, end - i, v);
#pragma unroll
			for (int k = 0; k < PER; k++)
				most = max(most, occ_magnitude(v[k]));
		}
		float s = scale_of(top_of_lanes(most, lanes));
		if (g < groups && lane == 0)
			scale[g] = s;
		for (int64_t i = first; i < end; i += step) {
			unsigned word = 0;
			fetch<PER>(x + i, end - i, v);
#pragma unroll
			for (int k = 0; k < PER; k++)
				word |= field<BITS>(v[k], s) << (k * BITS);
			store_word(i / PER, word, (n * BITS + 7) / 8, code);
		}
	}
}

/* Any group: the scales are there as magnitudes. */
template <int BITS>
__global__ void k_codes(int64_t n, int64_t group, const float *x, const unsigned *top,
			uint8_t *code)
{
	const int PER = codes<BITS>::PER;
	for (int64_t w = first_of(); w * PER < n; w += stride()) {
		int64_t i = w * PER, g = i / group, next = (g + 1) * group;
		float v[PER], s = scale_of(top[g]);
		unsigned word = 0;
		fetch<PER>(x + i, n - i, v);
#pragma unroll
		for (int k = 0; k < PER; k++) {
			if (i + k == next && next < n) {
				s = scale_of(top[++g]);
				next += group;
			}
			word |= field<BITS>(v[k], s) << (k * BITS);
		}
		store_word(w, word, (n * BITS + 7) / 8, code);
	}
}

__global__ void k_scales(int64_t groups, unsigned *top)
{
	for (int64_t g = first_of(); g < groups; g += stride())
		top[g] = __float_as_uint(scale_of(top[g]));
}

template <int BITS>
static void quantise(struct occ_device *d, int64_t n, int64_t group, const float *d_x, void *d_wire)
{
	const int PER = codes<BITS>::PER;
	int64_t groups = (n + group - 1) / group, words = group / PER;
	unsigned *top = (unsigned *)d_wire;
	int lanes = 1;
	while (lanes < 32 && lanes < words)
		lanes *= 2;
	if (group <= GROUPED && group % PER == 0) {
		OCC_LAUNCH(d, (k_quantise<BITS>), occ_blocks(groups, NT / lanes, MOST), NT, 0, n,
			   group, d_x, lanes, (float *)d_wire);
		return;
	}
	tops(d, n, group, d_x, top);
	OCC_LAUNCH(d, (k_codes<BITS>), occ_blocks(n, NT * PER, MOST), NT, 0, n, group, d_x, top,
		   (uint8_t *)(top + groups));
	OCC_LAUNCH(d, k_scales, occ_blocks(groups, NT, MOST), NT, 0, groups, top);
}

void occ_cuda_quantise(struct occ_device *d, int64_t n, int bits, int64_t group, const float *d_x,
		       void *d_wire)
{
	if (n <= 0)
		return;
	if (bits == 2)
		quantise<2>(d, n, group, d_x, d_wire);
	else if (bits == 4)
		quantise<4>(d, n, group, d_x, d_wire);
	else
		quantise<8>(d, n, group, d_x, d_wire);
}

template <int BITS>
__global__ void k_dequantise(int64_t n, int64_t group, const float *scale, enum occ_how how,
			     float *y)
{
	const int PER = codes<BITS>::PER;
	const uint8_t *code = (const uint8_t *)(scale + (n + group - 1) / group);
	int64_t bytes = (n * BITS + 7) / 8;
	for (int64_t w = first_of(); w * PER < n; w += stride()) {
		int64_t i = w * PER, g = i / group, next = (g + 1) * group;
		float v[PER], s = scale[g];
		unsigned word = 0;
		if (4 * w + 4 <= bytes)
			word = ((const uint32_t *)code)[w];
		else
			for (int64_t b = 4 * w; b < bytes; b++)
				word |= (unsigned)code[b] << 8 * (b - 4 * w);
#pragma unroll
		for (int k = 0; k < PER; k++) {
			/* the field's top bit is the sign */
			int q = (int)(word << (32 - BITS * (k + 1))) >> (32 - BITS);
			if (i + k == next && next < n) {
				s = scale[++g];
				next += group;
			}
			v[k] = __fmul_rn(s, (float)q / (float)codes<BITS>::L);
		}
		put_all<PER>(how, v, n - i, y + i);
	}
}

void occ_cuda_dequantise(struct occ_device *d, int64_t n, int bits, int64_t group,
			 const void *d_wire, enum occ_how how, float *d_y)
{
	const float *scale = (const float *)d_wire;
	unsigned blocks = occ_blocks(n * bits, NT * 32, MOST);
	if (n <= 0)
		return;
	if (bits == 2)
		OCC_LAUNCH(d, (k_dequantise<2>), blocks, NT, 0, n, group, scale, how, d_y);
	else if (bits == 4)
		OCC_LAUNCH(d, (k_dequantise<4>), blocks, NT, 0, n, group, scale, how, d_y);
	else
		OCC_LAUNCH(d, (k_dequantise<8>), blocks, NT, 0, n, group, scale, how, d_y);
}

/* ---- fp16 with one scale. ---- */

/* The power of two that puts the largest magnitude in 2^14 .. 2^15, 2^126 at most. */
__device__ static inline float half_scale(unsigned top)
{
	int e = (int)(top >> 23) - 126; /* the largest lies in 2^(e-1) .. 2^e */
	if (top == 0 || top >= 0x7f800000u)
		return 1;
	return __uint_as_float((unsigned)((top < 0x800000u ? 126 : min(15 - e, 126)) + 127) << 23);
}

/* Halves lie 4 bytes behind the wire's start: two of them are the most that is aligned. */
__global__ void k_half_pack(int64_t n, const float *x, const unsigned *top, float *wire)
{
	uint16_t *half = (uint16_t *)(wire + 1);
	float scale = half_scale(*top);
	for (int64_t i = 2 * first_of(); i < n; i += 2 * stride()) {
		unsigned h = occ_f32_to_f16(__fmul_rn(x[i], scale));
		if (i + 1 < n)
			((uint32_t *)half)[i / 2] =
				h | (unsigned)occ_f32_to_f16(__fmul_rn(x[i + 1], scale)) << 16;
		else
			half[i] = (uint16_t)h;
	}
	if (first_of() == 0)
		*wire = scale;
}

void occ_cuda_half_pack(struct occ_device *d, int64_t n, const float *d_x, void *d_wire)
{
	unsigned *d_top = (unsigned *)occ_cuda_scratch(d, sizeof(*d_top));
	if (n > 0)
		tops(d, n, n, d_x, d_top);
	else
		d->ops->zero(d, d_top, sizeof(*d_top));
	OCC_LAUNCH(d, k_half_pack, occ_blocks(n, 2 * NT, MOST), NT, 0, n, d_x, d_top,
		   (float *)d_wire);
}

__global__ void k_half_unpack(int64_t n, const float *wire, enum occ_how how, float *y)
{
	const uint32_t *two = (const uint32_t *)(wire + 1);
	float scale = *wire;
	for (int64_t i = 2 * first_of(); i < n; i += 2 * stride()) {
		unsigned h = i + 1 < n ? two[i / 2] : ((const uint16_t *)two)[i];
		occ_put(how, occ_f16_to_f32((uint16_t)h) / scale, &y[i]);
		if (i + 1 < n)
			occ_put(how, occ_f16_to_f32((uint16_t)(h >> 16)) / scale, &y[i + 1]);
	}
}

void occ_cuda_half_unpack(struct occ_device *d, int64_t n, const void *d_wire, enum occ_how how,
			  float *d_y)
{
	if (n > 0)
		OCC_LAUNCH(d, k_half_unpack, occ_blocks(n, 2 * NT, MOST), NT, 0, n,
			   (const float *)d_wire, how, d_y);
}

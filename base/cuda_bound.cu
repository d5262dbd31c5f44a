/* The wire of bounded error. How many bits each block of 64 values needs says where its codes lie:
 * heads first, then sums of the blocks' bytes over batches, then the codes. A warp takes a block,
 * whose codes of `bits` bits are 2 * bits words of 32 bits, low bits first. */
#include "base/cuda.cuh"

enum { BLOCK = OCC_BOUND_BLOCK, RAW = OCC_BOUND_RAW };
enum { NT = 256, BATCH = 128, MOST = 1 << 20 }; /* threads; blocks of a batch; batches in a grid */

__host__ __device__ static inline int64_t blocks_of(int64_t n)
{
	return (n + BLOCK - 1) / BLOCK;
}

__host__ __device__ static inline int64_t batches_of(int64_t n)
{
	return (blocks_of(n) + BATCH - 1) / BATCH;
}

/* Where the codes start: behind a byte for each block. */
__host__ __device__ static inline int64_t codes_at(int64_t n)
{
	return (blocks_of(n) + 3) / 4 * 4;
}

__device__ static inline unsigned block_bytes(unsigned head)
{
	return head == RAW ? BLOCK * 4 : head * (BLOCK / 8);
}

__device__ static inline float code_value(unsigned u, double twice)
{
	int q = (int)(u >> 1) ^ -(int)(u & 1);
	return (float)(q * twice);
}

/* x / twice to nearest. A product is off by less than 2^-21 where the result is below 2^30, so that
 * a division, which costs more than memory's time, is left for what lies near a half. */
__device__ static inline double nearest(float x, double twice, double inverse)
{
	double y = (double)x * inverse, q = rint(y), off = fabs(y - q);
	if (off < 0.5 - 0x1p-20 && fabs(q) < 0x1p30)
		return q;
	return rint((double)x / twice);
}

/* The code of x, zigzag; *missed where it does not come within eps = twice / 2. */
__device__ static inline unsigned code_of(float x, double twice, double inverse, bool *missed)
{
	double q = nearest(x, twice, inverse);
	bool fits = fabs(q) < 0x1p30;
	int k = fits ? (int)q : 0;
	unsigned u = (unsigned)k << 1 ^ (0u - (k < 0));
	*missed |= !fits || !(fabs((double)x - (double)code_value(u, twice)) <= twice / 2);
	return u;
}

/* Bytes of the codes of each batch's blocks, from the heads. */
__device__ static inline void batch_bytes(int64_t n, const uint8_t *head, int64_t batch,
					  unsigned *start, int64_t *bytes)
{
	int64_t b = batch * BATCH + threadIdx.x;
	bool mine = threadIdx.x < BATCH && b < blocks_of(n);
	unsigned all, before = occ_block_scan<NT>(mine ? block_bytes(head[b]) : 0u, &all);
	if (start && threadIdx.x < BATCH)
		start[threadIdx.x] = before;
	if (bytes && threadIdx.x == 0)
		bytes[batch] = all;
	__syncthreads();
}

__global__ void k_heads(int64_t n, double twice, const float *x, uint8_t *head, int64_t *bytes)
{
	int lane = threadIdx.x & 31;
	double inverse = 1 / twice;
	for (int64_t batch = blockIdx.x; batch < batches_of(n); batch += gridDim.x) {
		for (int k = threadIdx.x / 32; k < BATCH; k += NT / 32) {
			int64_t b = batch * BATCH + k, i = b * BLOCK + lane;
			bool missed = false;
			unsigned all = 0;
			if (i < n)
				all = code_of(x[i], twice, inverse, &missed);
			if (i + 32 < n)
				all |= code_of(x[i + 32], twice, inverse, &missed);
			all = __reduce_or_sync(occ_all_lanes, all);
			missed = __any_sync(occ_all_lanes, missed);
			if (lane == 0 && b < codes_at(n)) /* its padding too */
				head[b] = (uint8_t)(missed ? RAW : 32 - __clz((int)all));
		}
		__syncthreads();
		batch_bytes(n, head, batch, NULL, bytes);
	}
}

__global__ void k_batch_bytes(int64_t n, const uint8_t *head, int64_t *bytes)
{
	for (int64_t batch = blockIdx.x; batch < batches_of(n); batch += gridDim.x)
		batch_bytes(n, head, batch, NULL, bytes);
}

/* at[i] becomes the sum of those before it, and at[n] that of all; by one block. */
__global__ void k_starts(int64_t n, int64_t *at)
{
	int64_t sum = 0, all;
	for (int64_t i0 = 0; i0 < n; i0 += 1024) {
		int64_t i = i0 + threadIdx.x, mine = i < n ? at[i] : 0;
		int64_t before = occ_block_scan<1024>(mine, &all);
		if (i < n)
			at[i] = sum + before;
		sum += all;
	}
	if (threadIdx.x == 0)
		at[n] = sum;
}

/* Word w of a block's codes of `bits` bits. */
__device__ static inline unsigned code_word(const unsigned *code, int bits, int w)
{
	int i = 32 * w / bits, at = i * bits - 32 * w; /* the first one may have begun before */
	unsigned word = at < 0 ? code[i] >> -at : code[i];
	for (at += bits, i++; at < 32 && i < BLOCK; at += bits, i++)
		word |= code[i] << at;
	return word;
}

__global__ void k_bound_pack(int64_t n, double twice, const float *x, uint8_t *wire,
			     const int64_t *batch_at)
{
	__shared__ unsigned start[BATCH], codes[NT / 32][BLOCK];
	int lane = threadIdx.x & 31;
	unsigned *code = codes[threadIdx.x / 32];
	double inverse = 1 / twice;
	for (int64_t batch = blockIdx.x; batch < batches_of(n); batch += gridDim.x) {
		batch_bytes(n, wire, batch, start, NULL);
		for (int k = threadIdx.x / 32; k < BATCH; k += NT / 32) {
			int64_t b = batch * BATCH + k, i = b * BLOCK + lane;
			if (b >= blocks_of(n))
				break;
			int bits = wire[b];
			uint32_t *to =
				(uint32_t *)(wire + codes_at(n) + batch_at[batch] + start[k]);
			float u = i < n ? x[i] : 0, v = i + 32 < n ? x[i + 32] : 0;
			bool missed = false; /* known from the head */
			code[lane] = bits == RAW ? __float_as_uint(u)
						 : code_of(u, twice, inverse, &missed);
			code[lane + 32] = bits == RAW ? __float_as_uint(v)
						      : code_of(v, twice, inverse, &missed);
			__syncwarp(occ_all_lanes);
			if (bits == RAW)
				bits = 32;
			for (int w = lane; w < 2 * bits; w += 32)
				to[w] = code_word(code, bits, w);
			__syncwarp(occ_all_lanes);
		}
		__syncthreads();
	}
}

__global__ void k_bound_unpack(int64_t n, double twice, const uint8_t *wire,
			       const int64_t *batch_at, enum occ_how how, float *y)
{
	__shared__ unsigned start[BATCH], words[NT / 32][BLOCK + 1];
	int lane = threadIdx.x & 31;
	unsigned *word = words[threadIdx.x / 32];
	for (int64_t batch = blockIdx.x; batch < batches_of(n); batch += gridDim.x) {
		batch_bytes(n, wire, batch, start, NULL);
		for (int k = threadIdx.x / 32; k < BATCH; k += NT / 32) {
			int64_t b = batch * BATCH + k;
			if (b >= blocks_of(n))
				break;
			int head = wire[b], bits = head > 32 ? 32 : head;
			const uint32_t *from =
				(const uint32_t *)(wire + codes_at(n) + batch_at[batch] + start[k]);
			for (int w = lane; w < 2 * bits; w += 32)
				word[w] = from[w];
			__syncwarp(occ_all_lanes);
			for (int c = lane; c < BLOCK && b * BLOCK + c < n; c += 32) {
				int w = c * bits / 32, at = c * bits % 32;
				unsigned u = bits ? word[w] >> at : 0;
				if (at + bits > 32)
					u |= word[w + 1] << (32 - at);
				if (bits < 32)
					u &= (1u << bits) - 1;
				occ_put(how,
					head == RAW ? __uint_as_float(u) : code_value(u, twice),
					&y[b * BLOCK + c]);
			}
			__syncwarp(occ_all_lanes);
		}
		__syncthreads();
	}
}

void occ_cuda_bound_pack(struct occ_device *d, int64_t n, double eps, const float *d_x,
			 void *d_wire, int64_t *bytes)
{
	int64_t batches = batches_of(n);
	unsigned grid = occ_blocks(batches, 1, MOST);
	uint8_t *wire = (uint8_t *)d_wire;
	int64_t *at = (int64_t *)occ_cuda_scratch(d, (size_t)(batches + 1) * sizeof(*at));
	*bytes = 0;
	if (n <= 0)
		return;
	OCC_LAUNCH(d, k_heads, grid, NT, 0, n, 2 * eps, d_x, wire, at);
	OCC_LAUNCH(d, k_starts, 1, 1024, 0, batches, at);
	OCC_LAUNCH(d, k_bound_pack, grid, NT, 0, n, 2 * eps, d_x, wire, at);
	occ_cuda_read(d, bytes, at + batches, sizeof(*bytes));
	*bytes += codes_at(n);
}

void occ_cuda_bound_unpack(struct occ_device *d, int64_t n, double eps, const void *d_wire,
			   enum occ_how how, float *d_y)
{
	int64_t batches = batches_of(n);
	unsigned grid = occ_blocks(batches, 1, MOST);
	const uint8_t *wire = (const uint8_t *)d_wire;
	int64_t *at = (int64_t *)occ_cuda_scratch(d, (size_t)(batches + 1) * sizeof(*at));
	if (n <= 0)
		return;
	OCC_LAUNCH(d, k_batch_bytes, grid, NT, 0, n, wire, at);
	OCC_LAUNCH(d, k_starts, 1, 1024, 0, batches, at);
	OCC_LAUNCH(d, k_bound_unpack, grid, NT, 0, n, 2 * eps, wire, at, how, d_y);
}

/* Word and position embeddings.
 *
 * The gradient of the word table needs the rows of each token in their order. A stable radix sort
 * (8 bits a pass, so 2 passes for up to 65,535 ids and 3 for more) brings them together: it moves
 * 16 bytes a row and pass. Then one warp for each token and 32 packs of columns adds them up. All
 * work is O(R), whatever V is; the rows of one token form one chain of additions, so that the most
 * frequent one is the last to end: 16 of its rows are under way at once. */
#include "base/cuda_vec.cuh"

/* Rows of the table by 16 bytes, or by elements. */
template <int N, class T>
__global__ void k_embed_forward(int64_t R, int64_t C, int64_t v0, int64_t V, const int32_t *tokens,
				const T *wte, T *out)
{
	int64_t r = blockIdx.x * (int64_t)blockDim.y + threadIdx.y;
	if (r >= R)
		return;
	int64_t id = tokens[r] - v0;
	int here = id >= 0 && id < V;
	occ_vec<T, N> v;
#pragma unroll
	for (int k = 0; k < N; k++)
		occ_store(v.v, k, 0);
	for (int64_t c = threadIdx.x * N; c < C; c += blockDim.x * N) {
		if (here)
			v = occ_get<N>(wte, id * C + c);
		occ_put(out, r * C + c, v);
	}
}

void occ_cuda_embed_forward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
			    const int32_t *d_tokens, const void *d_wte, void *d_out)
{
	if (R <= 0 || C <= 0)
		return;
	OCC_TYPED(d->type, T, {
		int wide = C % (16 / (int)sizeof(T)) == 0 && occ_aligned(d_wte, d_out);
		OCC_WIDE(wide, N, T, {
			struct occ_shape s = occ_over_rows(R, C / N);
			OCC_LAUNCH(d, (k_embed_forward<N, T>), s.grid, s.block, 0, R, C, v0, V,
				   d_tokens, (const T *)d_wte, (T *)d_out);
		});
	});
}

/* ---- Sorting rows by token: keys are ids of this shard, V for all others. ---- */

enum { BITS = 8, BINS = 1 << BITS, WARPS = 8, STEPS = 8, TILE = WARPS * STEPS * 32 };

struct sorted {
	int32_t *key, *row;
};

__global__ void k_keys(int64_t R, int64_t v0, int64_t V, const int32_t *tokens, struct sorted to)
{
	int64_t r = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
	if (r >= R)
		return;
	int64_t id = tokens[r] - v0;
	to.key[r] = (int32_t)(id >= 0 && id < V ? id : V);
	to.row[r] = (int32_t)r;
}

/* count (BINS, tiles) = keys of a tile with each digit */
__global__ void k_count(int64_t R, int shift, struct sorted from, int32_t *count)
{
	__shared__ int32_t bins[BINS];
	bins[threadIdx.x] = 0;
	__syncthreads();
	int64_t first = blockIdx.x * (int64_t)TILE;
	for (int64_t i = first + threadIdx.x; i < first + TILE && i < R; i += BINS)
		atomicAdd(&bins[from.key[i] >> shift & (BINS - 1)], 1);
	__syncthreads();
	count[threadIdx.x * (int64_t)gridDim.x + blockIdx.x] = bins[threadIdx.x];
}

/* Counts become places: sums of all that stand before. One block, a bin for each thread. */
__global__ void k_places(int64_t tiles, int32_t *count)
{
	__shared__ int32_t total[BINS];
	int32_t *mine = count + threadIdx.x * tiles, sum = 0;
	for (int64_t t = 0; t < tiles; t++)
		sum += mine[t];
	total[threadIdx.x] = sum;
	__syncthreads();
	sum = 0;
	for (unsigned b = 0; b < threadIdx.x; b++)
		sum += total[b];
	for (int64_t t = 0; t < tiles; t++) {
		int32_t n = mine[t];
		mine[t] = sum;
		sum += n;
	}
}

/* Lanes with the same digit as this one's. */
__device__ static inline unsigned peers_of(int bin)
{
	return __match_any_sync(occ_all_lanes, bin);
}

/* Each warp takes STEPS * 32 neighbours in order, so equal digits keep theirs. */
__global__ void k_scatter(int64_t R, int shift, struct sorted from, const int32_t *place,
			  struct sorted to)
{
	__shared__ int32_t at[WARPS][BINS + 1]; /* the last bin: behind the end */
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, bin[STEPS];
	int64_t first = blockIdx.x * (int64_t)TILE + warp * STEPS * 32 + lane;
	for (int b = lane; b <= BINS; b += 32)
		at[warp][b] = 0;
	__syncwarp(occ_all_lanes);
#pragma unroll
	for (int s = 0; s < STEPS; s++) {
		int64_t i = first + s * 32;
		bin[s] = i < R ? from.key[i] >> shift & (BINS - 1) : BINS;
		unsigned peers = peers_of(bin[s]);
		if (lane == __ffs(peers) - 1)
			at[warp][bin[s]] += __popc(peers);
		__syncwarp(occ_all_lanes);
	}
	__syncthreads();
	int32_t sum = place[threadIdx.x * (int64_t)gridDim.x + blockIdx.x];
	for (int w = 0; w < WARPS; w++) {
		int32_t n = at[w][threadIdx.x];
		at[w][threadIdx.x] = sum;
		sum += n;
	}
	__syncthreads();
#pragma unroll
	for (int s = 0; s < STEPS; s++) {
		int64_t i = first + s * 32;
		unsigned peers = peers_of(bin[s]);
		int32_t p = at[warp][bin[s]] + __popc(peers & ((1u << lane) - 1));
		__syncwarp(occ_all_lanes);
		if (lane == __ffs(peers) - 1)
			at[warp][bin[s]] += __popc(peers);
		__syncwarp(occ_all_lanes);
		if (i < R) {
			to.key[p] = from.key[i];
			to.row[p] = from.row[i];
		}
	}
}

static struct sorted sort_rows(struct occ_device *d, int64_t R, int64_t v0, int64_t V,
			       const int32_t *d_tokens)
{
	int64_t tiles = (R + TILE - 1) / TILE;
	int32_t *all =
		(int32_t *)occ_cuda_scratch(d, (size_t)(4 * R + BINS * tiles) * sizeof(*all));
	struct sorted from = {all, all + R}, to = {all + 2 * R, all + 3 * R};
	int32_t *count = all + 4 * R;
	OCC_LAUNCH(d, k_keys, (unsigned)((R + 255) / 256), 256, 0, R, v0, V, d_tokens, from);
	for (int shift = 0; V >> shift; shift += BITS) {
		OCC_LAUNCH(d, k_count, (unsigned)tiles, BINS, 0, R, shift, from, count);
		OCC_LAUNCH(d, k_places, 1, BINS, 0, tiles, count);
		OCC_LAUNCH(d, k_scatter, (unsigned)tiles, BINS, 0, R, shift, from, count, to);
		struct sorted t = from;
		from = to;
		to = t;
	}
	return from;
}

/* The warp at the first row of a token adds up all of them, one after the other. */
template <int N, class T>
__global__ void __launch_bounds__(256, 2)
	k_embed_backward(int64_t R, int64_t C, int64_t V, struct sorted s, const T *dout,
			 float *dwte)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
	enum { DEEP = 8 }; /* 16 spill there */
#else
	enum { DEEP = 16 };
#endif
	int64_t at = blockIdx.x * (int64_t)blockDim.y + threadIdx.y;
	int64_t c = (blockIdx.y * (int64_t)32 + threadIdx.x) * N;
	if (at >= R)
		return;
	int32_t key = s.key[at];
	if (key >= V || (at > 0 && s.key[at - 1] == key))
		return;
	occ_vec<float, N> sum;
	if (c < C)
		sum = occ_get<N>(dwte, key * C + c);
	for (int many = 32; many == 32; at += 32) {
		int64_t i = at + threadIdx.x;
		int mine = i < R && s.key[i] == key, row = mine ? s.row[i] : 0;
		many = __popc(__ballot_sync(occ_all_lanes, mine));
		for (int j = 0; j < many; j += DEEP) {
			occ_vec<T, N> v[DEEP];
#pragma unroll
			for (int k = 0; k < DEEP; k++) {
				int64_t r = __shfl_sync(occ_all_lanes, row, j + k);
#pragma unroll
				for (int e = 0; e < N; e++)
					occ_store(v[k].v, e, -0.0f); /* changes no sum */
				if (j + k < many && c < C)
					v[k] = occ_get<N>(dout, r * C + c);
			}
#pragma unroll
			for (int k = 0; k < DEEP; k++)
				for (int e = 0; e < N; e++)
					sum.v[e] += occ_load(v[k].v, e);
		}
	}
	if (c < C)
		occ_put(dwte, key * C + c, sum);
}

void occ_cuda_embed_backward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
			     const int32_t *d_tokens, const void *d_dout, float *d_dwte)
{
	if (R <= 0 || C <= 0 || V <= 0)
		return;
	occ_check(R < INT32_MAX && V < INT32_MAX, "%lld rows", (long long)R);
	struct sorted s = sort_rows(d, R, v0, V, d_tokens);
	OCC_TYPED(d->type, T, {
		int wide = C % (16 / (int)sizeof(T)) == 0 && occ_aligned(d_dout, d_dwte);
		OCC_WIDE(wide, N, T, {
			dim3 grid((unsigned)((R + 7) / 8), (unsigned)((C + 32 * N - 1) / (32 * N)));
			OCC_LAUNCH(d, (k_embed_backward<N, T>), grid, dim3(32, 8), 0, R, C, V, s,
				   (const T *)d_dout, d_dwte);
		});
	});
}

/* ---- Positions ---- */

template <int N, class T>
__global__ void k_position_forward(int64_t R, int64_t C, int64_t T_, const T *wpe,
				   struct occ_drop drop, T *x)
{
	int64_t r = blockIdx.x * (int64_t)blockDim.y + threadIdx.y;
	if (r >= R)
		return;
	const T *p = wpe + r % T_ * C;
	for (int64_t c = threadIdx.x * N; c < C; c += blockDim.x * N) {
		occ_vec<T, N> v = occ_get<N>(x, r * C + c), add = occ_get<N>(p, c);
		float f[N];
		occ_factors<N>(drop, r, c, f);
#pragma unroll
		for (int k = 0; k < N; k++)
			occ_store(v.v, k, (occ_load(v.v, k) + occ_load(add.v, k)) * f[k]);
		occ_put(x, r * C + c, v);
	}
}

void occ_cuda_position_forward(struct occ_device *d, int64_t R, int64_t C, int64_t T,
			       const void *d_wpe, const struct occ_drop *drop, void *d_x)
{
	struct occ_drop dr = occ_drop_or_none(drop);
	if (R <= 0 || C <= 0)
		return;
	OCC_TYPED(d->type, E, {
		int wide = C % (16 / (int)sizeof(E)) == 0 && occ_drop_wide(dr) &&
			   occ_aligned(d_wpe, d_x);
		OCC_WIDE(wide, N, E, {
			struct occ_shape s = occ_over_rows(R, C / N);
			OCC_LAUNCH(d, (k_position_forward<N, E>), s.grid, s.block, 0, R, C, T,
				   (const E *)d_wpe, dr, (E *)d_x);
		});
	});
}

/* A thread goes through the rows of one position in N columns, DEEP of them under way at once. */
template <int N, class T>
__global__ void k_position_backward(int64_t R, int64_t C, int64_t T_, struct occ_drop drop, T *dx,
				    float *dwpe)
{
	enum { DEEP = 4 };
	int64_t t = blockIdx.x * (int64_t)blockDim.y + threadIdx.y;
	int64_t c = (blockIdx.y * (int64_t)blockDim.x + threadIdx.x) * N;
	if (t >= T_ || t >= R || c >= C)
		return;
	occ_vec<float, N> sum = occ_get<N>(dwpe, t * C + c);
	for (int64_t r = t; r < R; r += DEEP * T_) {
		occ_vec<T, N> v[DEEP];
#pragma unroll
		for (int j = 0; j < DEEP; j++)
			if (r + j * T_ < R)
				v[j] = occ_get<N>(dx, (r + j * T_) * C + c);
#pragma unroll
		for (int j = 0; j < DEEP; j++) {
			float f[N];
			if (r + j * T_ >= R)
				break;
			occ_factors<N>(drop, r + j * T_, c, f);
#pragma unroll
			for (int k = 0; k < N; k++) {
				occ_store(v[j].v, k, occ_load(v[j].v, k) * f[k]);
				sum.v[k] += occ_load(v[j].v, k);
			}
			if (drop.p > 0)
				occ_put(dx, (r + j * T_) * C + c, v[j]);
		}
	}
	occ_put(dwpe, t * C + c, sum);
}

void occ_cuda_position_backward(struct occ_device *d, int64_t R, int64_t C, int64_t T,
				const struct occ_drop *drop, void *d_dx, float *d_dwpe)
{
	struct occ_drop dr = occ_drop_or_none(drop);
	if (R <= 0 || C <= 0)
		return;
	OCC_TYPED(d->type, E, {
		int wide = C % (16 / (int)sizeof(E)) == 0 && occ_drop_wide(dr) &&
			   occ_aligned(d_dx, d_dwpe);
		OCC_WIDE(wide, N, E, {
			struct occ_shape s = occ_over_rows(R < T ? R : T, C / N);
			s.grid.y = (unsigned)((C / N + s.block.x - 1) / s.block.x);
			OCC_LAUNCH(d, (k_position_backward<N, E>), s.grid, s.block, 0, R, C, T, dr,
				   (E *)d_dx, d_dwpe);
		});
	});
}

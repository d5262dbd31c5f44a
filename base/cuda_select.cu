/* Sparse codecs: top-k of rows. The k-th largest magnitude is found digit by digit with histograms
 * of the bits: of one block in its own memory for usual rows, of many blocks for a few long ones.
 * Then the elements at or above it are written in the order of their columns: each block counts
 * what stands before by a scan. Counts are integers, so atomic ones are exact. */
#include "base/cuda.cuh"

enum { ITEMS = 4, CACHED = 8192 };       /* elements of a thread at a time; longest row on chip */
enum { LONG = 16384, FEW = 264 };        /* rows that are cut: columns from, rows below */
enum { PIECES = 1024, SHORTEST = 8192 }; /* most pieces of a row, length of the shortest */
enum { NT = 512 };                       /* threads of a piece's block */
enum { ALL = 0x7fffffff };

/* What is kept of a piece: magnitudes above `limit` and the first `ties` equal to it; `first` is
 * the place of the first one. */
struct kept {
	unsigned limit, ties, first;
};

struct found {
	unsigned above, equal; /* elements of a piece above the limit, and at it */
};

struct digits {
	unsigned head, left; /* bits known so far; how many are still to keep below them */
};

/* Up to ITEMS elements of `left`; returns their number. */
__device__ static inline int fetch(const float *x, int64_t left, float v[ITEMS])
{
	if (left >= ITEMS && (uintptr_t)x % 16 == 0) {
		float4 f = *(const float4 *)x;
		v[0] = f.x;
		v[1] = f.y;
		v[2] = f.z;
		v[3] = f.w;
		return ITEMS;
	}
#pragma unroll
	for (int k = 0; k < ITEMS; k++)
		v[k] = k < left ? x[k] : 0;
	return left < 0 ? 0 : left < ITEMS ? (int)left : ITEMS;
}

/* ---- By one block of N threads. ---- */

/* The digit in which the left-th largest lies, by counts of each digit; left becomes how many are
 * to keep of that digit. */
template <int N, int BINS>
__device__ static struct digits find_digit(const unsigned *bin, unsigned left)
{
	const int PER = BINS < N ? 1 : BINS / N;
	__shared__ struct digits found;
	int top = BINS - 1 - (int)threadIdx.x * PER;
	unsigned sum = 0, all;
	for (int k = 0; k < PER && top >= k; k++)
		sum += bin[top - k];
	unsigned before = occ_block_scan<N>(sum, &all);
	if (before < left && left <= before + sum)
		for (int k = 0; k < PER; k++) {
			if (left <= before + bin[top - k]) {
				found.head = (unsigned)(top - k);
				found.left = left - before;
				break;
			}
			before += bin[top - k];
		}
	__syncthreads();
	struct digits r = found;
	__syncthreads(); /* found and bin may be used again */
	return r;
}

/* The k-th largest of a row, 8 bits at a time. */
template <int N> __device__ static struct kept kth(int64_t C, const float *row, unsigned k)
{
	__shared__ unsigned bin[256];
	unsigned head = 0, left = k;
	for (int top = 31; top > 0; top -= 8) {
		int shift = top > 8 ? top - 8 : 0;
		unsigned mask = (1u << (top - shift)) - 1;
		for (int b = threadIdx.x; b < 256; b += N)
			bin[b] = 0;
		__syncthreads();
		for (int64_t c = threadIdx.x; c < C; c += N) {
			unsigned u = occ_magnitude(row[c]);
			if (u >> top == head)
				atomicAdd(&bin[u >> shift & mask], 1u);
		}
		__syncthreads();
		struct digits d = find_digit<N, 256>(bin, left);
		head = head << (top - shift) | d.head;
		left = d.left;
	}
	struct kept r = {head, left, 0};
	return r;
}

/* Columns c .. end-1 that are kept, places below `most` only. */
template <int N>
__device__ static void write_kept(int width, int64_t c, int64_t end, const float *x,
				  struct kept kept, unsigned most, void *at, float *value)
{
	unsigned above = 0, equal = 0, all; /* before this turn */
	for (; c < end && kept.first + above + min(equal, kept.ties) < most; c += N * ITEMS) {
		int64_t mine = c + threadIdx.x * ITEMS;
		float v[ITEMS];
		int n = fetch(x + mine, end - mine, v);
		unsigned count = 0; /* two numbers of 16 bits */
#pragma unroll
		for (int k = 0; k < ITEMS; k++) {
			unsigned u = occ_magnitude(v[k]);
			if (k < n)
				count += u > kept.limit ? 1u << 16 : u == kept.limit;
		}
		unsigned before = occ_block_scan<N>(count, &all);
		unsigned a = above + (before >> 16), e = equal + (before & 0xffff);
#pragma unroll
		for (int k = 0; k < ITEMS; k++) {
			unsigned u = occ_magnitude(v[k]);
			unsigned place = kept.first + a + min(e, kept.ties);
			bool over = k < n && u > kept.limit, tie = k < n && u == kept.limit;
			if ((over || (tie && e < kept.ties)) && place < most) {
				if (width == 2)
					((uint16_t *)at)[place] = (uint16_t)(mine + k);
				else
					((int32_t *)at)[place] = (int32_t)(mine + k);
				value[place] = v[k];
			}
			a += over;
			e += tie;
		}
		above += all >> 16;
		equal += all & 0xffff;
	}
}

template <int N>
__global__ void k_select(int64_t R, int64_t C, int64_t k, const float *x, int width, void *at,
			 float *value, float *least)
{
	OCC_DYN_SMEM(float, copy);
	for (int64_t r = blockIdx.x; r < R; r += gridDim.x) {
		const float *row = x + r * C;
		if (C <= CACHED) {
			for (int64_t c = threadIdx.x; c < C; c += N)
				copy[c] = row[c];
			row = copy; /* a barrier follows before others read it */
		}
		struct kept kept = kth<N>(C, row, (unsigned)k);
		write_kept<N>(width, 0, C, row, kept, (unsigned)k, (char *)at + r * k * width,
			      value + r * k);
		if (least && threadIdx.x == 0)
			least[r] = __uint_as_float(kept.limit);
		__syncthreads();
	}
}

/* ---- By many: each has a piece of a row. ---- */

static int64_t piece_length(int64_t C)
{
	int64_t n = (C + PIECES - 1) / PIECES;
	n = (n + ITEMS - 1) / ITEMS * ITEMS;
	return n < SHORTEST ? (int64_t)SHORTEST : n;
}

/* Digits are of 11, 10 and 10 bits. */
template <int PASS> struct digit {
	enum { SHIFT = 20 - 10 * PASS, BITS = PASS ? 10 : 11, BINS = 1 << BITS };
	enum { AT = PASS ? 1024 + 1024 * PASS : 0 }; /* its counts in those of the row */
};

enum { ROW_BINS = 4096, LAST_BINS = 1024 };

/* Adds the piece's counts of digit PASS, among elements with the row's head above it, to those of
 * the row. The last pass keeps them for each piece too, and counts what lies above the head. */
template <int PASS>
__global__ void k_digits(int64_t R, int64_t C, int64_t piece, const float *x,
			 const struct digits *d, unsigned *row_bin, struct found *found,
			 unsigned *piece_bin)
{
	typedef digit<PASS> G;
	__shared__ unsigned bin[G::BINS];
	int64_t start = blockIdx.x * piece, end = start + piece < C ? start + piece : C;
	for (int64_t r = blockIdx.y; r < R; r += gridDim.y) {
		unsigned head = PASS ? d[r].head : 0, zeros = 0, above = 0;
		for (int b = threadIdx.x; b < G::BINS; b += NT)
			bin[b] = 0;
		__syncthreads();
		for (int64_t c = start + threadIdx.x * ITEMS; c < end; c += NT * ITEMS) {
			float v[ITEMS];
			int n = fetch(x + r * C + c, end - c, v);
#pragma unroll
			for (int k = 0; k < ITEMS; k++) {
				unsigned u = occ_magnitude(v[k]);
				unsigned over = u >> G::SHIFT >> G::BITS;
				above += over > head && k < n;
				if (u == 0)
					zeros += k < n; /* there may be many: no atomics */
				else if (over == head && k < n)
					atomicAdd(&bin[u >> G::SHIFT & (G::BINS - 1)], 1u);
			}
		}
		zeros = __reduce_add_sync(occ_all_lanes, zeros);
		if (zeros && head == 0 && (threadIdx.x & 31) == 0)
			atomicAdd(&bin[0], zeros);
		unsigned all;
		occ_block_scan<NT>(above, &all); /* and a barrier */
		int64_t p = r * gridDim.x + blockIdx.x;
		for (int b = threadIdx.x; b < G::BINS; b += NT) {
			if (bin[b])
				atomicAdd(&row_bin[r * ROW_BINS + G::AT + b], bin[b]);
			if (PASS == 2)
				piece_bin[p * LAST_BINS + b] = bin[b];
		}
		if (PASS == 2 && threadIdx.x == 0)
			found[p].above = all;
		__syncthreads();
	}
}

template <int PASS>
__global__ void k_find(int64_t R, unsigned k, const unsigned *row_bin, struct digits *d)
{
	typedef digit<PASS> G;
	for (int64_t r = blockIdx.x; r < R; r += gridDim.x) {
		struct digits old = {0, k};
		if (PASS)
			old = d[r];
		struct digits now =
			find_digit<1024, G::BINS>(row_bin + r * ROW_BINS + G::AT, old.left);
		now.head |= old.head << G::BITS;
		if (threadIdx.x == 0)
			d[r] = now;
	}
}

/* What each piece has above the row's limit and at it; a warp for each. */
__global__ void k_found(int64_t all, int64_t pieces, const struct digits *d,
			const unsigned *piece_bin, struct found *found)
{
	int lane = threadIdx.x & 31;
	int64_t step = gridDim.x * (int64_t)(blockDim.x / 32);
	for (int64_t p = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32; p < all;
	     p += step) {
		const unsigned *bin = piece_bin + p * LAST_BINS;
		int last = (int)(d[p / pieces].head & (LAST_BINS - 1));
		unsigned above = 0;
		for (int b = last + 1 + lane; b < LAST_BINS; b += 32)
			above += bin[b];
		above = __reduce_add_sync(occ_all_lanes, above);
		if (lane == 0) {
			found[p].above += above;
			found[p].equal = bin[last];
		}
	}
}

/* Where each of at most PIECES pieces of a row writes. */
__global__ void k_places(int64_t R, int pieces, const struct digits *d, const struct found *found,
			 struct kept *kept, float *least, unsigned long long *count)
{
	int t = threadIdx.x;
	for (int64_t r = blockIdx.x; r < R; r += gridDim.x) {
		struct digits g = d[r];
		unsigned long long mine = 0, all;
		if (t < pieces)
			mine = (unsigned long long)found[r * pieces + t].above << 32 |
			       found[r * pieces + t].equal;
		unsigned long long before = occ_block_scan<PIECES>(mine, &all);
		unsigned ties = min((unsigned)before, g.left);
		if (t < pieces) {
			struct kept mine_kept = {g.head, g.left - ties,
						 (unsigned)(before >> 32) + ties};
			kept[r * pieces + t] = mine_kept;
		}
		if (least && t == 0)
			least[r] = __uint_as_float(g.head);
		if (count && t == 0)
			*count = (all >> 32) + (unsigned)all;
	}
}

__global__ void k_write(int64_t R, int64_t C, int64_t piece, const float *x, unsigned most,
			const struct kept *kept, int width, void *at, float *value)
{
	int64_t start = blockIdx.x * piece, end = start + piece < C ? start + piece : C;
	for (int64_t r = blockIdx.y; r < R; r += gridDim.y)
		write_kept<NT>(width, start, end, x + r * C, kept[r * gridDim.x + blockIdx.x], most,
			       (char *)at + r * most * width, value + r * most);
}

/* ---- The slots. ---- */

static void select_long(struct occ_device *d, int64_t R, int64_t C, int64_t k, const float *d_x,
			int width, void *d_at, float *d_value, float *d_least)
{
	int64_t piece = piece_length(C), pieces = (C + piece - 1) / piece, all = R * pieces;
	size_t bins = (size_t)(R * ROW_BINS), last = (size_t)(all * LAST_BINS);
	unsigned *row_bin = (unsigned *)occ_cuda_scratch(
		d, (bins + last + 2 * (size_t)R + 5 * (size_t)all) * sizeof(*row_bin));
	unsigned *piece_bin = row_bin + bins;
	struct digits *g = (struct digits *)(piece_bin + last);
	struct found *found = (struct found *)(g + R);
	struct kept *kept = (struct kept *)(found + all);
	dim3 grid((unsigned)pieces, occ_blocks(R, 1, 65535));
	unsigned rows = occ_blocks(R, 1, 65535);
	d->ops->zero(d, row_bin, bins * sizeof(*row_bin));
	OCC_LAUNCH(d, (k_digits<0>), grid, NT, 0, R, C, piece, d_x, g, row_bin, found, piece_bin);
	OCC_LAUNCH(d, (k_find<0>), rows, 1024, 0, R, (unsigned)k, row_bin, g);
	OCC_LAUNCH(d, (k_digits<1>), grid, NT, 0, R, C, piece, d_x, g, row_bin, found, piece_bin);
	OCC_LAUNCH(d, (k_find<1>), rows, 1024, 0, R, (unsigned)k, row_bin, g);
	OCC_LAUNCH(d, (k_digits<2>), grid, NT, 0, R, C, piece, d_x, g, row_bin, found, piece_bin);
	OCC_LAUNCH(d, (k_find<2>), rows, 1024, 0, R, (unsigned)k, row_bin, g);
	OCC_LAUNCH(d, k_found, occ_blocks(all, 8, 4096), 256, 0, all, pieces, g, piece_bin, found);
	OCC_LAUNCH(d, k_places, rows, PIECES, 0, R, (int)pieces, g, found, kept, d_least,
		   (unsigned long long *)NULL);
	OCC_LAUNCH(d, k_write, grid, NT, 0, R, C, piece, d_x, (unsigned)k, kept, width, d_at,
		   d_value);
}

void occ_cuda_select(struct occ_device *d, int64_t R, int64_t C, int64_t k, const float *d_x,
		     int width, void *d_at, float *d_value, float *d_least)
{
	unsigned rows = occ_blocks(R, 1, 1 << 20);
	size_t smem = C <= CACHED ? (size_t)C * sizeof(float) : 0;
	if (R <= 0 || k <= 0)
		return;
	occ_check(C <= ALL, "top-k of %lld columns", (long long)C);
	if (C >= LONG && R < FEW)
		select_long(d, R, C, k, d_x, width, d_at, d_value, d_least);
	else if (C <= 256)
		OCC_LAUNCH(d, (k_select<64>), rows, 64, smem, R, C, k, d_x, width, d_at, d_value,
			   d_least);
	else if (C <= CACHED)
		OCC_LAUNCH(d, (k_select<256>), rows, 256, smem, R, C, k, d_x, width, d_at, d_value,
			   d_least);
	else
		OCC_LAUNCH(d, (k_select<1024>), rows, 1024, smem, R, C, k, d_x, width, d_at,
			   d_value, d_least);
}

/* Each piece's elements above the limit and at it; all of them are kept. */
__global__ void k_above(int64_t n, int64_t piece, const float *x, const float *least,
			struct digits *d, struct found *found)
{
	int64_t start = blockIdx.x * piece, end = start + piece < n ? start + piece : n;
	unsigned limit = occ_magnitude(*least), count = 0, all;
	for (int64_t c = start + threadIdx.x * ITEMS; c < end; c += NT * ITEMS) {
		float v[ITEMS];
		int m = fetch(x + c, end - c, v);
#pragma unroll
		for (int k = 0; k < ITEMS; k++)
			count += k < m && occ_magnitude(v[k]) >= limit;
	}
	occ_block_scan<NT>(count, &all);
	if (threadIdx.x == 0) {
		found[blockIdx.x].above = 0;
		found[blockIdx.x].equal = all;
		d->head = limit; /* all blocks write the same */
		d->left = ALL;
	}
}

void occ_cuda_above(struct occ_device *d, int64_t n, const float *d_x, const float *d_least,
		    int64_t cap, int32_t *d_at, float *d_value, int64_t *count)
{
	int64_t piece = piece_length(n), pieces = (n + piece - 1) / piece;
	*count = 0;
	if (n <= 0)
		return;
	occ_check(n <= ALL, "a threshold over %lld values", (long long)n);
	unsigned long long *all = (unsigned long long *)occ_cuda_scratch(
		d, sizeof(*all) + sizeof(struct digits) +
			   (size_t)pieces * (sizeof(struct found) + sizeof(struct kept)));
	struct digits *g = (struct digits *)(all + 1);
	struct found *found = (struct found *)(g + 1);
	struct kept *kept = (struct kept *)(found + pieces);
	unsigned most = (unsigned)(cap < n ? cap : n);
	OCC_LAUNCH(d, k_above, (unsigned)pieces, NT, 0, n, piece, d_x, d_least, g, found);
	OCC_LAUNCH(d, k_places, 1, PIECES, 0, 1, (int)pieces, g, found, kept, (float *)NULL, all);
	if (most > 0)
		OCC_LAUNCH(d, k_write, dim3((unsigned)pieces, 1), NT, 0, 1, n, piece, d_x, most,
			   kept, 4, d_at, d_value);
	occ_cuda_read(d, count, all, sizeof(*count));
}

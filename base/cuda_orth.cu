/* Orthonormal columns, panel by panel, as base/cpu_orth.c does it: a pass takes out what lies along
 * the columns before the panel (fp32, summed over pieces in double), then a Cholesky factor of the
 * panel's Gram matrix (in double) makes its columns orthonormal. Two passes in a row that replace
 * nothing are enough. All is decided on the device: two passes are enqueued for each panel, and one
 * block does what further ones a panel with dependent columns needs.
 *
 * q is the matrix with rows of whole panels and whole pieces, zeros behind: no phase asks for
 * bounds. Each phase is a function of the piece, called by a grid or by that one block. */
#include "base/cuda.cuh"

enum { WIDE = 16, PIECE = 256, NT = 256 }; /* columns of a panel, rows of a piece, threads */
enum { TILE = 64, STEP = 32 };             /* columns before, or rows, of one product on chip */
enum { TRIES = 16 };

struct panel {
	int col, r;                /* its first column, columns of the matrix */
	int clean;                 /* passes in a row that replaced nothing */
	unsigned bad;              /* columns that the last pass replaces */
	unsigned draws[WIDE];      /* directions that each has tried */
	double factor[WIDE][WIDE]; /* upper: column j becomes the sum of factor[i][j] * column i */
};

struct orth {
	int64_t n, ld, pieces; /* length of columns, floats of a row of q */
	int r;
	uint64_t key;
	float *q;        /* (pieces * PIECE, ld) */
	float *part;     /* (pieces, ld, WIDE): along the columns before, of each piece */
	float *along;    /* (ld, WIDE) */
	double *gram;    /* (pieces, WIDE, WIDE) */
	double *length;  /* (ld) */
	double *squares; /* (pieces, ld) */
	struct panel *now;
};

/* ---- In and out. ---- */

/* Of a piece's rows, WIDE columns: each thread sums every 16th row of one. */
__global__ void k_orth_squares(struct orth o, const float *a)
{
	__shared__ double part[NT / WIDE][WIDE];
	int strand = threadIdx.x / WIDE, at = threadIdx.x % WIDE;
	int64_t start = blockIdx.x * (int64_t)PIECE, j = blockIdx.y * WIDE + at;
	double sum = 0;
	for (int64_t t = start + strand; t < start + PIECE && t < o.n && j < o.r; t += NT / WIDE)
		sum += (double)a[t * o.r + j] * (double)a[t * o.r + j];
	part[strand][at] = sum;
	__syncthreads();
	for (int s = 1; s < NT / WIDE && strand == 0; s++)
		sum += part[s][at];
	if (strand == 0)
		o.squares[blockIdx.x * o.ld + j] = sum;
}

/* A block for each column; a length of 0 stands for one that is not finite too. */
__global__ void k_orth_lengths(struct orth o)
{
	double sum = 0;
	for (int64_t p = threadIdx.x; p < o.pieces; p += NT)
		sum += o.squares[p * o.ld + blockIdx.x];
	sum = occ_block_sum<NT>(sum);
	if (threadIdx.x == 0)
		o.length[blockIdx.x] = sum <= 1.7e308 ? sqrt(sum) : 0;
}

__global__ void k_orth_in(struct orth o, const float *a)
{
	int64_t all = o.pieces * PIECE * o.ld, step = gridDim.x * (int64_t)NT;
	for (int64_t i = blockIdx.x * (int64_t)NT + threadIdx.x; i < all; i += step) {
		int64_t t = i / o.ld, j = i % o.ld;
		double length = t < o.n && j < o.r ? o.length[j] : 0;
		o.q[i] = length > 0 ? (float)((double)a[t * o.r + j] / length) : 0;
	}
}

__global__ void k_orth_out(struct orth o, float *a)
{
	int64_t all = o.n * o.r, step = gridDim.x * (int64_t)NT;
	for (int64_t i = blockIdx.x * (int64_t)NT + threadIdx.x; i < all; i += step)
		a[i] = o.q[i / o.r * o.ld + i % o.r];
}

/* ---- The phases of a pass. ---- */

/* Rows of a piece up to a whole tile: what lies behind is zero and stays so. */
__device__ static inline int rows_of(const struct orth &o, int64_t p, int tile)
{
	int64_t left = o.n - p * PIECE;
	return left >= PIECE ? PIECE : ((int)left + tile - 1) / tile * tile;
}

/* Products of the panel's columns with TILE of those before, from column i0 on. */
__device__ static void products(const struct orth &o, int col, int64_t p, int i0)
{
	__shared__ float q[STEP][TILE], a[STEP][WIDE];
	int t = threadIdx.x, j = t % WIDE, i = t / WIDE * 4; /* mine: 4 columns before, one of a */
	const float *rows = o.q + p * PIECE * o.ld;
	float sum[4] = {0, 0, 0, 0};
	for (int row = 0, end = rows_of(o, p, STEP); row < end; row += STEP) {
		for (int k = t; k < STEP * TILE; k += NT) {
			int c = i0 + k % TILE;
			q[k / TILE][k % TILE] = c < col ? rows[(row + k / TILE) * o.ld + c] : 0;
		}
		for (int k = t; k < STEP * WIDE; k += NT)
			a[k / WIDE][k % WIDE] = rows[(row + k / WIDE) * o.ld + col + k % WIDE];
		__syncthreads();
#pragma unroll 8
		for (int k = 0; k < STEP; k++) {
#pragma unroll
			for (int m = 0; m < 4; m++)
				sum[m] += q[k][i + m] * a[k][j];
		}
		__syncthreads();
	}
	for (int m = 0; m < 4; m++)
		if (i0 + i + m < col)
			o.part[(p * o.ld + i0 + i + m) * WIDE + j] = sum[m];
}

/* Sums those of all pieces: 32 numbers from number e0 on, 8 threads for each. */
__device__ static void add_products(const struct orth &o, int64_t e0)
{
	__shared__ double part[8][32];
	int lane = threadIdx.x % 32, strand = threadIdx.x / 32;
	double sum = 0;
#pragma unroll 4
	for (int64_t p = strand; p < o.pieces; p += 8)
		sum += (double)o.part[p * o.ld * WIDE + e0 + lane];
	part[strand][lane] = sum;
	__syncthreads();
	for (int s = 1; s < 8 && strand == 0; s++)
		sum += part[s][lane];
	if (strand == 0)
		o.along[e0 + lane] = (float)sum;
	__syncthreads();
}

/* What the columns before hold of TILE rows of the panel, 4 rows of one column to each thread. */
__device__ static void held(const struct orth &o, int col, const float *rows, float sum[4])
{
	__shared__ float q[TILE][STEP + 4], along[STEP][WIDE];
	int t = threadIdx.x, j = t % WIDE, row = t / WIDE * 4;
	for (int i0 = 0; i0 < col; i0 += STEP) {
		for (int k = t; k < TILE * STEP; k += NT) {
			int c = i0 + k % STEP;
			q[k / STEP][k % STEP] = c < col ? rows[k / STEP * o.ld + c] : 0;
		}
		for (int k = t; k < STEP * WIDE; k += NT)
			along[k / WIDE][k % WIDE] =
				i0 + k / WIDE < col ? o.along[i0 * WIDE + k] : 0;
		__syncthreads();
#pragma unroll 8
		for (int k = 0; k < STEP; k++) {
#pragma unroll
			for (int m = 0; m < 4; m++)
				sum[m] += q[row + m][k] * along[k][j];
		}
		__syncthreads();
	}
}

/* Takes that out of a piece; the panel's Gram matrix. */
__device__ static void rest_and_gram(const struct orth &o, int col, int64_t p)
{
	__shared__ float rest[TILE][WIDE + 1];
	int t = threadIdx.x, j = t % WIDE, i = t / WIDE;
	double gram = 0;
	for (int tile = 0, end = rows_of(o, p, TILE); tile < end; tile += TILE) {
		float *rows = o.q + (p * PIECE + tile) * o.ld, sum[4] = {0, 0, 0, 0};
		held(o, col, rows, sum);
		for (int m = 0; m < 4; m++) {
			float *x = &rows[(4 * i + m) * o.ld + col + j];
			*x = rest[4 * i + m][j] = *x - sum[m];
		}
		__syncthreads();
#pragma unroll 8
		for (int k = 0; k < TILE; k++)
			gram += (double)rest[k][i] * (double)rest[k][j];
		__syncthreads();
	}
	o.gram[(p * WIDE + i) * WIDE + j] = gram;
}

/* g becomes its upper Cholesky factor. Returns the columns that lie in the span of others as bits;
 * their rows and columns become those of the identity. */
__device__ static unsigned cholesky(double g[WIDE][WIDE])
{
	int j = threadIdx.x % WIDE, i = threadIdx.x / WIDE;
	unsigned bad = 0;
	for (int k = 0; k < WIDE; k++) {
		double left = g[k][k], v = g[k][j], w = g[k][i];
		int good = left > 1e-12; /* of a length of 1 */
		bad |= good ? 0 : 1u << k;
		__syncthreads();
		if (i == k)
			g[k][j] = j < k ? g[k][j] : good ? v / sqrt(left) : j == k;
		else if (i > k && j >= i && good)
			g[i][j] -= v * w / left;
		else if (i < k && j == k && !good)
			g[i][j] = 0;
		__syncthreads();
	}
	return bad;
}

/* The factor of the panel from its Gram matrix, by one block. */
__device__ static void factorise(const struct orth &o)
{
	__shared__ double g[WIDE][WIDE], inverse[WIDE][WIDE];
	struct panel *now = o.now;
	int t = threadIdx.x, j = t % WIDE, i = t / WIDE;
	double sum = 0;
#pragma unroll 8
	for (int64_t p = 0; p < o.pieces; p++)
		sum += o.gram[p * NT + t];
	g[i][j] = sum;
	__syncthreads();
	unsigned bad = cholesky(g);
	if (t < WIDE) /* column t of the inverse */
		for (int k = WIDE - 1; k >= 0; k--) {
			double v = k == t;
			for (int m = k + 1; m <= t; m++)
				v -= g[k][m] * inverse[m][t];
			inverse[k][t] = k > t ? 0 : v / g[k][k];
		}
	__syncthreads();
	now->factor[i][j] = inverse[i][j];
	if (t == 0) {
		int left = now->r - now->col;
		now->bad = bad & ((left < WIDE ? 1u << left : 1u << WIDE) - 1);
		now->clean = now->bad ? 0 : now->clean + 1;
	}
	__syncthreads();
	if (t < WIDE)
		now->draws[t] += now->bad >> t & 1;
}

/* Applies the factor to a piece; bad columns get their next direction, of about unit length. */
__device__ static void combine(const struct orth &o, int col, int64_t p)
{
	__shared__ float x[WIDE][WIDE + 1];
	__shared__ double factor[WIDE][WIDE];
	int j = threadIdx.x % WIDE, i = threadIdx.x / WIDE;
	unsigned bad = o.now->bad >> j & 1, id = (unsigned)(col + j);
	factor[i][j] = o.now->factor[i][j];
	if (bad)
		id += (o.now->draws[j] - 1) << 24;
	for (int row = 0, end = rows_of(o, p, WIDE); row < end; row += WIDE) {
		int64_t t = p * PIECE + row + i;
		x[i][j] = o.q[t * o.ld + col + j];
		__syncthreads();
		double y = 0;
		for (int k = 0; k < WIDE; k++)
			y += (double)x[i][k] * factor[k][j];
		if (bad)
			y = t < o.n ? (double)occ_rng_normal_inline(o.key, id, (uint64_t)t) /
					      sqrt((double)o.n)
				    : 0;
		o.q[t * o.ld + col + j] = (float)y;
		__syncthreads();
	}
}

/* ---- By a grid, and by one block. ---- */

__global__ void k_orth_products(struct orth o, int col)
{
	products(o, col, blockIdx.x, (int)blockIdx.y * TILE);
}

__global__ void k_orth_along(struct orth o)
{
	add_products(o, blockIdx.x * (int64_t)32);
}

__global__ void k_orth_rest(struct orth o, int col)
{
	rest_and_gram(o, col, blockIdx.x);
}

__global__ void k_orth_factor(struct orth o, int col, int first)
{
	if (first && threadIdx.x < WIDE) {
		o.now->draws[threadIdx.x] = 0;
		o.now->clean = 0;
		o.now->col = col;
		o.now->r = o.r;
	}
	__syncthreads();
	factorise(o);
}

__global__ void k_orth_combine(struct orth o, int col)
{
	combine(o, col, blockIdx.x);
}

/* The passes that are still due; as a rule there are none. */
__global__ void k_orth_more(struct orth o, int col)
{
	for (int tries = 0; o.now->clean < 2 && tries < TRIES; tries++) {
		for (int64_t p = 0; p < o.pieces; p++)
			for (int i = 0; i < col; i += TILE)
				products(o, col, p, i);
		__syncthreads();
		for (int64_t e = 0; e < (int64_t)col * WIDE; e += 32)
			add_products(o, e);
		for (int64_t p = 0; p < o.pieces; p++)
			rest_and_gram(o, col, p);
		__syncthreads();
		factorise(o);
		__syncthreads();
		for (int64_t p = 0; p < o.pieces; p++)
			combine(o, col, p);
		__syncthreads();
	}
}

static void pass(struct occ_device *d, const struct orth *o, int col, int first)
{
	unsigned pieces = (unsigned)o->pieces;
	if (col) {
		dim3 grid(pieces, (unsigned)(col + TILE - 1) / TILE);
		OCC_LAUNCH(d, k_orth_products, grid, NT, 0, *o, col);
		OCC_LAUNCH(d, k_orth_along, (unsigned)col * WIDE / 32, NT, 0, *o);
	}
	OCC_LAUNCH(d, k_orth_rest, pieces, NT, 0, *o, col);
	OCC_LAUNCH(d, k_orth_factor, 1, NT, 0, *o, col, first);
	OCC_LAUNCH(d, k_orth_combine, pieces, NT, 0, *o, col);
}

/* Room for all arrays, doubles first. */
static void cut(struct occ_device *d, struct orth *o)
{
	size_t ld = (size_t)o->ld, pieces = (size_t)o->pieces, state = 512;
	size_t doubles = pieces * (WIDE * WIDE + ld) + ld + state;
	size_t floats = pieces * ld * (PIECE + WIDE) + ld * WIDE;
	o->gram = (double *)occ_cuda_scratch(d, doubles * sizeof(double) + floats * sizeof(float));
	o->squares = o->gram + pieces * WIDE * WIDE;
	o->length = o->squares + pieces * ld;
	o->now = (struct panel *)(o->length + ld);
	o->q = (float *)(o->gram + doubles);
	o->part = o->q + pieces * PIECE * ld;
	o->along = o->part + pieces * ld * WIDE;
	static_assert(sizeof(struct panel) <= 512 * sizeof(double), "room for a panel");
}

void occ_cuda_orthonormalise(struct occ_device *d, int64_t n, int64_t r, float *d_a)
{
	struct orth o;
	memset(&o, 0, sizeof(o));
	occ_check(r <= n && r < 1 << 20, "%lld columns of %lld rows", (long long)r, (long long)n);
	if (r <= 0)
		return;
	o.n = n;
	o.r = (int)r;
	o.ld = (r + WIDE - 1) / WIDE * WIDE;
	o.pieces = (n + PIECE - 1) / PIECE;
	o.key = occ_rng_key((uint64_t)n, OCC_RNG_CODEC);
	cut(d, &o);
	dim3 grid((unsigned)o.pieces, (unsigned)(o.ld / WIDE));
	OCC_LAUNCH(d, k_orth_squares, grid, NT, 0, o, d_a);
	OCC_LAUNCH(d, k_orth_lengths, (unsigned)r, NT, 0, o);
	OCC_LAUNCH(d, k_orth_in, occ_blocks(n * o.ld, NT, 1 << 16), NT, 0, o, d_a);
	for (int col = 0; col < r; col += WIDE) {
		pass(d, &o, col, 1);
		pass(d, &o, col, 0);
		OCC_LAUNCH(d, k_orth_more, 1, NT, 0, o, col);
	}
	OCC_LAUNCH(d, k_orth_out, occ_blocks(n * r, NT, 1 << 16), NT, 0, o, d_a);
}

/* Cpu: orthonormal columns, block by block.
 *
 * The matrix is transposed into rows q (r of them, n long), so that a column is contiguous. A panel
 * of WIDE columns takes passes until two in a row have replaced nothing: take out what lies along
 * the columns before the panel (products in fp32, summed over pieces in double), then a Cholesky
 * factor of the panel's Gram matrix (in double) makes its columns orthonormal. The first pass loses
 * digits where columns nearly depend on others; the second starts from columns that hardly do.
 * Lengths are 1 before the first pass, so that its factor shows which columns depend on others.
 *
 * n is cut in pieces of PIECE, whose sums are added in their order; each piece of q is contiguous,
 * which is what prefetchers and page tables like. Rows are padded with zeros to whole vectors and
 * whole panels. */
#include "base/cpu.h"

#include "base/cpu_orth.h"
#include "base/err.h"

enum { DRAWS = 8 }; /* directions that are tried for one column */

struct orth {
	int64_t n, r, rows, pieces; /* length of columns, their number; r padded */
	int nt;
	float *q;                  /* (pieces, rows, LD) */
	double *part;              /* (pieces, rows + WIDE, WIDE): sums of each piece */
	double *sum;               /* (rows + WIDE, WIDE) */
	float *along;              /* (rows, WIDE): sum in fp32 */
	int64_t due;               /* panel that `factor` has still to be applied to, or -1 */
	double factor[WIDE][WIDE]; /* upper: column j becomes the sum of factor[i][j] * column i */
	uint32_t draw[WIDE];       /* directions that column j of the panel has tried */
};

static int64_t up(int64_t n, int64_t to)
{
	return (n + to - 1) / to * to;
}

/* ---- A pass over one panel. ---- */

static int64_t piece_length(const struct orth *o, int64_t p)
{
	int64_t left = up(o->n - p * PIECE, 16);
	return left < PIECE ? left : PIECE;
}

static float *row_of(const struct orth *o, int64_t p, int64_t j)
{
	return o->q + (p * o->rows + j) * LD;
}

static double *part_of(const struct orth *o, int64_t p, int64_t j)
{
	return o->part + (p * (o->rows + WIDE) + j) * WIDE;
}

/* Rows j .. j+n-1 of sum: those of the pieces. */
static void add_parts(struct orth *o, int64_t j, int64_t n)
{
	double *sum = o->sum + j * WIDE;
	memset(sum, 0, (size_t)(n * WIDE) * sizeof(*sum));
	for (int64_t p = 0; p < o->pieces; p++)
		for (int64_t i = 0; i < n * WIDE; i++)
			sum[i] += part_of(o, p, j)[i];
}

/* A team meets once less where the factor is applied by whoever needs the piece next. */
static void settle(struct orth *o, int64_t p)
{
	if (o->due >= 0)
		combine(piece_length(o, p), o->factor, row_of(o, p, o->due));
}

static void along_before(struct orth *o, int64_t col)
{
#pragma omp parallel for num_threads(o->nt) if (o->nt > 1) schedule(static)
	for (int64_t p = 0; p < o->pieces; p++) {
		settle(o, p);
		dots(piece_length(o, p), col, row_of(o, p, 0), row_of(o, p, col), part_of(o, p, 0));
	}
	o->due = -1;
	add_parts(o, 0, col);
	for (int64_t i = 0; i < col * WIDE; i++)
		o->along[i] = (float)o->sum[i];
}

/* Takes those components out; the panel's Gram matrix. */
static void rest_and_gram(struct orth *o, int64_t col)
{
#pragma omp parallel for num_threads(o->nt) if (o->nt > 1) schedule(static)
	for (int64_t p = 0; p < o->pieces; p++) {
		int64_t n = piece_length(o, p);
		settle(o, p);
		if (col)
			take_out(n, col, row_of(o, p, 0), o->along, row_of(o, p, col));
		gram(n, row_of(o, p, col), part_of(o, p, col));
	}
	o->due = -1;
	add_parts(o, col, WIDE);
}

/* Cholesky of the Gram matrix: g becomes its upper factor. Returns the columns that lie in the
 * span of others as bits; their rows and columns become those of the identity. */
static unsigned cholesky(double *g)
{
	unsigned bad = 0;
	for (int j = 0; j < WIDE; j++) {
		double left = g[j * WIDE + j];
		for (int i = 0; i < j; i++) {
			double v = g[i * WIDE + j];
			for (int k = 0; k < i; k++)
				v -= g[k * WIDE + i] * g[k * WIDE + j];
			g[i * WIDE + j] = v = bad >> i & 1 ? 0 : v / g[i * WIDE + i];
			left -= v * v;
		}
		if (left > 1e-12) { /* of a length of 1 */
			g[j * WIDE + j] = sqrt(left);
			continue;
		}
		bad |= 1u << j;
		for (int i = 0; i < j; i++)
			g[i * WIDE + j] = 0;
		g[j * WIDE + j] = 1;
	}
	return bad;
}

/* The inverse of the upper factor; columns of zeros stay so. */
static void invert(const double *g, double inverse[WIDE][WIDE])
{
	for (int j = 0; j < WIDE; j++)
		for (int i = WIDE - 1; i >= 0; i--) {
			double v = i == j;
			for (int k = i + 1; k <= j; k++)
				v -= g[i * WIDE + k] * inverse[k][j];
			inverse[i][j] = i > j ? 0 : v / g[i * WIDE + i];
		}
}

/* Scales a column to length 1; one that is zero or not finite becomes zero. */
static void normalise(const struct orth *o, int64_t j)
{
	vd squares = {0};
	for (int64_t p = 0; p < o->pieces; p++)
		for (int64_t i = 0; i < piece_length(o, p); i += DW) {
			vd x = wide(row_of(o, p, j) + i);
			squares += x * x;
		}
	double length = sqrt(total(squares));
	for (int64_t p = 0; p < o->pieces; p++) {
		float *x = row_of(o, p, j);
		for (int64_t i = 0; i < piece_length(o, p); i++)
			x[i] = length > 0 && isfinite(length) ? (float)((double)x[i] / length) : 0;
	}
}

/* Gives the columns of the panel in `bad` their next direction. */
static void replace(struct orth *o, int64_t col, unsigned bad)
{
	uint64_t key = occ_rng_key((uint64_t)o->n, OCC_RNG_CODEC);
	for (int64_t p = 0; p < o->pieces; p++)
		settle(o, p);
	o->due = -1;
	for (int j = 0; j < WIDE; j++) {
		if (!(bad >> j & 1))
			continue;
		uint32_t id = (uint32_t)(col + j) + (o->draw[j]++ << 24);
#pragma omp parallel for num_threads(o->nt) if (o->nt > 1) schedule(static)
		for (int64_t i = 0; i < o->n; i++)
			row_of(o, i / PIECE, col + j)[i % PIECE] =
				occ_rng_normal(key, id, (uint64_t)i);
		normalise(o, col + j);
	}
}

/* Returns the columns that were replaced, as bits. */
static unsigned pass(struct orth *o, int64_t col)
{
	int64_t left = o->r - col;
	double *g = o->sum + col * WIDE;
	if (col)
		along_before(o, col);
	rest_and_gram(o, col);
	unsigned bad = cholesky(g) & ((left < WIDE ? 1u << left : 1u << WIDE) - 1);
	invert(g, o->factor);
	o->due = col;
	if (bad)
		replace(o, col, bad);
	return bad;
}

static void panel(struct orth *o, int64_t col)
{
	memset(o->draw, 0, sizeof(o->draw));
	for (int tries = 0, clean = 0; clean < 2 && tries < 2 * DRAWS; tries++)
		clean = pass(o, col) ? 0 : clean + 1;
}

/* ---- The whole. ---- */

/* Piece p of a (n,r) to q. */
static void read_piece(struct orth *o, int64_t p, const float *a)
{
	int64_t n = o->n - p * PIECE < PIECE ? o->n - p * PIECE : PIECE;
	memset(row_of(o, p, 0), 0, (size_t)(o->rows * LD) * sizeof(*a));
	for (int64_t j = 0; j < o->r; j += WIDE)
		for (int64_t t = 0; t < n; t++)
			for (int64_t k = j; k < j + WIDE && k < o->r; k++)
				row_of(o, p, k)[t] = a[(p * PIECE + t) * o->r + k];
}

static void write_piece(const struct orth *o, int64_t p, float *a)
{
	int64_t n = o->n - p * PIECE < PIECE ? o->n - p * PIECE : PIECE;
	for (int64_t j = 0; j < o->r; j += WIDE)
		for (int64_t t = 0; t < n; t++)
			for (int64_t k = j; k < j + WIDE && k < o->r; k++)
				a[(p * PIECE + t) * o->r + k] = row_of(o, p, k)[t];
}

void occ_cpu_orthonormalise(struct occ_device *d, int64_t n, int64_t r, float *d_a)
{
	struct orth o = {
		.n = n, .r = r, .due = -1, .rows = up(r, WIDE), .nt = cpu_team(d, n * r / 4)};
	int64_t tall = (o.rows + WIDE) * WIDE;
	occ_check(r <= n, "%lld columns of %lld rows", (long long)r, (long long)n);
	o.pieces = (n + PIECE - 1) / PIECE;
	o.q = occ_cpu_scratch(
		d, (size_t)(o.pieces * o.rows * LD + o.rows * WIDE + 2 * (o.pieces + 1) * tall));
	o.along = o.q + o.pieces * o.rows * LD;
	o.part = (void *)(o.along + o.rows * WIDE);
	o.sum = o.part + o.pieces * tall;
#pragma omp parallel for num_threads(o.nt) if (o.nt > 1) schedule(static)
	for (int64_t p = 0; p < o.pieces; p++)
		read_piece(&o, p, d_a);
#pragma omp parallel for num_threads(o.nt) if (o.nt > 1) schedule(static)
	for (int64_t j = 0; j < r; j++)
		normalise(&o, j);
	for (int64_t col = 0; col < r; col += WIDE)
		panel(&o, col);
#pragma omp parallel for num_threads(o.nt) if (o.nt > 1) schedule(static)
	for (int64_t p = 0; p < o.pieces; p++) {
		settle(&o, p);
		write_piece(&o, p, d_a);
	}
}

/* Cpu: residual, dropout and layer norm, forward and back, in one pass over the rows each; and the
 * column sums that gradients of vectors are. Column sums go through partial sums of row blocks,
 * whose cut depends on the number of rows only. */
#include "base/cpu.h"

#include "base/vmath.h"

enum { PIECE = 256 }; /* columns whose dropout factors are held at once */

/* xo = x + drop(delta + bias) of row r, whose first element is `at` */
INLINE void residual_row(enum occ_type t, int64_t C, int64_t r, const void *x, const void *delta,
			 const void *bias, const struct occ_drop *drop, void *xo)
{
	float factor[PIECE];
	for (int64_t c0 = 0; c0 < C; c0 += PIECE) {
		int64_t end = c0 + PIECE < C ? c0 + PIECE : C;
		if (drop)
			occ_cpu_drop(drop, r, c0, end - c0, factor);
		for (int64_t c = c0, i = r * C + c0; c < end; c += VW, i += VW) {
			vf v = vget(t, delta, i, end - c);
			if (bias)
				v += vget(t, bias, c, end - c);
			if (drop)
				v *= vget(OCC_F32, factor, c - c0, end - c);
			vput(t, xo, i, end - c, vget(t, x, i, end - c) + v);
		}
	}
}

INLINE void norm_row(enum occ_type t, int64_t C, int64_t at, const void *x, const void *w,
		     const void *b, void *y, float *mean, float *rstd)
{
	vf sum = vset(0), squares = vset(0);
	for (int64_t c = 0; c < C; c += VW)
		sum += vget(t, x, at + c, C - c);
	*mean = vsum(sum) / (float)C;
	for (int64_t c = 0; c < C; c += VW) {
		vf v = vget_or(t, x, at + c, C - c, *mean) - *mean;
		squares += v * v;
	}
	*rstd = 1 / sqrtf(vsum(squares) / (float)C + 1e-5f);
	for (int64_t c = 0; c < C; c += VW) {
		vf v = (vget(t, x, at + c, C - c) - *mean) * *rstd;
		v = v * vget(t, w, c, C - c) + vget(t, b, c, C - c);
		vput(t, y, at + c, C - c, v);
	}
}

/* Dropout that does nothing is none. */
static const struct occ_drop *active(const struct occ_drop *drop)
{
	return drop && drop->p > 0 ? drop : NULL;
}

void occ_cpu_residual_norm_forward(struct occ_device *d, int64_t R, int64_t C, const void *d_x,
				   const void *d_delta, const void *d_bias,
				   const struct occ_drop *drop, const void *d_w, const void *d_b,
				   void *d_xo, void *d_y, float *d_mean, float *d_rstd)
{
	const void *normed = d_delta ? d_xo : d_x;
	int nt = cpu_team(d, R * C);
	drop = active(drop);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t r = 0; r < R; r++) {
		if (d_delta)
			BY_TYPE(d->type, residual_row, C, r, d_x, d_delta, d_bias, drop, d_xo);
		if (d_w)
			BY_TYPE(d->type, norm_row, C, r * C, normed, d_w, d_b, d_y, &d_mean[r],
				&d_rstd[r]);
	}
}

/* Rows in at most 64 blocks of at least 16, each with its own partial sums of `width` columns. */
struct fold {
	int64_t rows, blocks, width;
	float *at; /* [blocks][width] */
};

static struct fold fold_open(struct occ_device *d, int64_t R, int64_t width)
{
	struct fold f = {.rows = (R + 63) / 64, .width = width};
	if (f.rows < 16)
		f.rows = 16;
	f.blocks = (R + f.rows - 1) / f.rows;
	f.at = occ_cpu_scratch(d, (size_t)(f.blocks * width));
	return f;
}

static float *fold_block(const struct fold *f, int64_t block)
{
	float *at = f->at + block * f->width;
	memset(at, 0, (size_t)f->width * sizeof(*at));
	return at;
}

/* out (C) += the sums over blocks of columns first .. first+C-1; out may be NULL. */
static void fold_into(struct occ_device *d, const struct fold *f, int64_t first, int64_t C,
		      float *out)
{
	int nt = cpu_team(d, f->blocks * C);
	if (!out)
		return;
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t c = 0; c < C; c += VW) {
		vf sum = vset(0);
		for (int64_t k = 0; k < f->blocks; k++)
			sum += vget(OCC_F32, f->at, k * f->width + first + c, C - c);
		vput(OCC_F32, out, c, C - c, vget(OCC_F32, out, c, C - c) + sum);
	}
}

INLINE void add_row(enum occ_type t, int64_t C, const void *x, int64_t at, float *sums)
{
	for (int64_t c = 0; c < C; c += VW)
		vput(OCC_F32, sums, c, C - c,
		     vget(OCC_F32, sums, c, C - c) + vget(t, x, at + c, C - c));
}

void occ_cpu_bias_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
			   float *d_db)
{
	struct fold f = fold_open(d, R, C);
	int nt = cpu_team(d, R * C);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t k = 0; k < f.blocks; k++) {
		float *sums = fold_block(&f, k);
		for (int64_t r = k * f.rows; r < R && r < (k + 1) * f.rows; r++)
			BY_TYPE(d->type, add_row, C, d_dy, r * C, sums);
	}
	fold_into(d, &f, 0, C, d_db);
}

/* What the rows of a backward pass have in common. */
struct back {
	int64_t C;
	const void *dy, *dres, *x, *w;
	const float *mean, *rstd;
	const struct occ_drop *drop;
	void *dx, *ddelta;
};

enum { GROUP = 4 }; /* rows that pass over the column sums together */

/* The means of g = dy w and of g xhat of row r. */
INLINE void means_back(enum occ_type t, const struct back *s, int64_t r, float *mg, float *mgx)
{
	int64_t C = s->C, at = r * C;
	vf a = vset(0), b = vset(0);
	for (int64_t c = 0; c < C; c += VW) {
		vf xhat = (vget(t, s->x, at + c, C - c) - s->mean[r]) * s->rstd[r];
		vf g = vget(t, s->dy, at + c, C - c) * vget(t, s->w, c, C - c);
		a += g;
		b += g * xhat;
	}
	*mg = vsum(a) / (float)C;
	*mgx = vsum(b) / (float)C;
}

/* dx = dres + rstd (g - mean(g) - xhat mean(g xhat)) of n rows from r; sums: dw, then db */
INLINE void norm_rows_back(enum occ_type t, int n, const struct back *s, int64_t r, float *sums)
{
	int64_t C = s->C;
	float mg[GROUP], mgx[GROUP];
	for (int i = 0; i < n; i++)
		means_back(t, s, r + i, &mg[i], &mgx[i]);
	for (int64_t c = 0; c < C; c += VW) {
		vf w = vget(t, s->w, c, C - c);
		vf dw = vget(OCC_F32, sums, c, C - c), db = vget(OCC_F32, sums, C + c, C - c);
		for (int i = 0; i < n; i++) {
			int64_t at = (r + i) * C + c;
			vf y = vget(t, s->dy, at, C - c);
			vf xhat = (vget(t, s->x, at, C - c) - s->mean[r + i]) * s->rstd[r + i];
			vf v = (y * w - mg[i] - xhat * mgx[i]) * s->rstd[r + i];
			dw += y * xhat;
			db += y;
			if (s->dres)
				v += vget(t, s->dres, at, C - c);
			vput(t, s->dx, at, C - c, v);
		}
		vput(OCC_F32, sums, c, C - c, dw);
		vput(OCC_F32, sums, C + c, C - c, db);
	}
}

/* Without a norm: dx = dres or 0 */
INLINE void plain_rows_back(enum occ_type t, int n, const struct back *s, int64_t r)
{
	int64_t end = (r + n) * s->C;
	for (int64_t i = r * s->C; i < end; i += VW)
		vput(t, s->dx, i, end - i, s->dres ? vget(t, s->dres, i, end - i) : vset(0));
}

/* ddelta = dx * mask of what is stored; sums: dbias */
INLINE void delta_rows_back(enum occ_type t, int n, const struct back *s, int64_t r, float *sums)
{
	float factor[GROUP][PIECE];
	int64_t C = s->C;
	for (int64_t c0 = 0; c0 < C; c0 += PIECE) {
		int64_t end = c0 + PIECE < C ? c0 + PIECE : C;
		for (int i = 0; i < n && s->drop; i++)
			occ_cpu_drop(s->drop, r + i, c0, end - c0, factor[i]);
		for (int64_t c = c0; c < end; c += VW) {
			vf sum = vget(OCC_F32, sums, c, end - c);
			for (int i = 0; i < n; i++) {
				int64_t at = (r + i) * C + c;
				vf v = vget(t, s->dx, at, end - c);
				if (s->drop)
					v *= vget(OCC_F32, factor[i], c - c0, end - c);
				if (s->ddelta != s->dx)
					vput(t, s->ddelta, at, end - c, v);
				sum += s->drop ? vget(t, s->ddelta, at, end - c) : v;
			}
			vput(OCC_F32, sums, c, end - c, sum);
		}
	}
}

/* n rows from r, n at most GROUP */
INLINE void rows_back(enum occ_type t, int n, const struct back *s, int64_t r, float *sums)
{
	if (s->w)
		norm_rows_back(t, n, s, r, sums);
	else
		plain_rows_back(t, n, s, r);
	if (s->ddelta)
		delta_rows_back(t, n, s, r, sums + 2 * s->C);
}

static void block_back(enum occ_type type, const struct back *s, int64_t r, int64_t end,
		       float *sums)
{
	for (; r + GROUP <= end; r += GROUP)
		BY_TYPE(type, rows_back, GROUP, s, r, sums);
	for (; r < end; r++)
		BY_TYPE(type, rows_back, 1, s, r, sums);
}

void occ_cpu_residual_norm_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
				    const void *d_dres, const void *d_x, const void *d_w,
				    const float *d_mean, const float *d_rstd,
				    const struct occ_drop *drop, void *d_dx, void *d_ddelta,
				    float *d_dw, float *d_db, float *d_dbias)
{
	struct back s = {C, d_dy, d_dres, d_x, d_w, d_mean, d_rstd, active(drop), d_dx, d_ddelta};
	struct fold f = fold_open(d, R, 3 * C);
	int nt = cpu_team(d, R * C);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t k = 0; k < f.blocks; k++) {
		int64_t r = k * f.rows, end = r + f.rows < R ? r + f.rows : R;
		block_back(d->type, &s, r, end, fold_block(&f, k));
	}
	fold_into(d, &f, 0, C, d_w ? d_dw : NULL);
	fold_into(d, &f, C, C, d_w ? d_db : NULL);
	fold_into(d, &f, 2 * C, C, d_ddelta ? d_dbias : NULL);
}

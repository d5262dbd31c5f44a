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
	const struct occ_drop *drop;
	void *dx, *ddelta;
};

/* dx = dres + rstd (g - mean(g) - xhat mean(g xhat)) with g = dy w; sums: dw, then db */
INLINE void norm_row_back(enum occ_type t, const struct back *s, int64_t at, float mean, float rstd,
			  float *sums)
{
	int64_t C = s->C;
	vf a = vset(0), b = vset(0);
	for (int64_t c = 0; c < C; c += VW) {
		vf y = vget(t, s->dy, at + c, C - c);
		vf xhat = (vget(t, s->x, at + c, C - c) - mean) * rstd;
		vf g = y * vget(t, s->w, c, C - c);
		a += g;
		b += g * xhat;
		vput(OCC_F32, sums, c, C - c, vget(OCC_F32, sums, c, C - c) + y * xhat);
		vput(OCC_F32, sums, C + c, C - c, vget(OCC_F32, sums, C + c, C - c) + y);
	}
	float mg = vsum(a) / (float)C, mgx = vsum(b) / (float)C;
	for (int64_t c = 0; c < C; c += VW) {
		vf xhat = (vget(t, s->x, at + c, C - c) - mean) * rstd;
		vf g = vget(t, s->dy, at + c, C - c) * vget(t, s->w, c, C - c);
		vf v = (g - mg - xhat * mgx) * rstd;
		if (s->dres)
			v += vget(t, s->dres, at + c, C - c);
		vput(t, s->dx, at + c, C - c, v);
	}
}

/* Without a norm: dx = dres or 0 */
INLINE void plain_row_back(enum occ_type t, const struct back *s, int64_t at)
{
	for (int64_t c = 0; c < s->C; c += VW)
		vput(t, s->dx, at + c, s->C - c,
		     s->dres ? vget(t, s->dres, at + c, s->C - c) : vset(0));
}

/* ddelta = dx * mask of what is stored; sums: dbias */
INLINE void delta_row_back(enum occ_type t, const struct back *s, int64_t r, float *sums)
{
	float factor[PIECE];
	for (int64_t c0 = 0; c0 < s->C; c0 += PIECE) {
		int64_t end = c0 + PIECE < s->C ? c0 + PIECE : s->C;
		if (s->drop)
			occ_cpu_drop(s->drop, r, c0, end - c0, factor);
		for (int64_t c = c0, i = r * s->C + c0; c < end; c += VW, i += VW) {
			vf v = vget(t, s->dx, i, end - c);
			if (s->drop)
				v *= vget(OCC_F32, factor, c - c0, end - c);
			vput(t, s->ddelta, i, end - c, v);
		}
	}
	add_row(t, s->C, s->ddelta, r * s->C, sums);
}

void occ_cpu_residual_norm_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
				    const void *d_dres, const void *d_x, const void *d_w,
				    const float *d_mean, const float *d_rstd,
				    const struct occ_drop *drop, void *d_dx, void *d_ddelta,
				    float *d_dw, float *d_db, float *d_dbias)
{
	struct back s = {C, d_dy, d_dres, d_x, d_w, active(drop), d_dx, d_ddelta};
	struct fold f = fold_open(d, R, 3 * C);
	int nt = cpu_team(d, R * C);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t k = 0; k < f.blocks; k++) {
		float *sums = fold_block(&f, k);
		for (int64_t r = k * f.rows; r < R && r < (k + 1) * f.rows; r++) {
			if (d_w)
				BY_TYPE(d->type, norm_row_back, &s, r * C, d_mean[r], d_rstd[r],
					sums);
			else
				BY_TYPE(d->type, plain_row_back, &s, r * C);
			if (d_ddelta)
				BY_TYPE(d->type, delta_row_back, &s, r, sums + 2 * C);
		}
	}
	fold_into(d, &f, 0, C, d_w ? d_dw : NULL);
	fold_into(d, &f, C, C, d_w ? d_db : NULL);
	fold_into(d, &f, 2 * C, C, d_ddelta ? d_dbias : NULL);
}

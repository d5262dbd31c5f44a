/* Cpu: word and position embeddings. Gradients of tables are summed by whoever owns the columns or
 * the position, in the order of the rows. */
#include "base/cpu.h"

#include "base/vmath.h"

enum { COLUMNS = 64 }; /* of a table's gradient that one thread owns at least */

void occ_cpu_embed_forward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
			   const int32_t *d_tokens, const void *d_wte, void *d_out)
{
	size_t bytes = (size_t)C * occ_type_size(d->type);
	int nt = cpu_team(d, R * C);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t r = 0; r < R; r++) {
		int64_t id = d_tokens[r] - v0;
		char *out = (char *)d_out + (size_t)r * bytes;
		if (id >= 0 && id < V)
			memcpy(out, (const char *)d_wte + (size_t)id * bytes, bytes);
		else
			memset(out, 0, bytes);
	}
}

/* to (n) += from (n) */
INLINE void add_to(enum occ_type t, int64_t n, const void *from, int64_t at, float *to)
{
	for (int64_t i = 0; i < n; i += VW)
		vput(OCC_F32, to, i, n - i,
		     vget(OCC_F32, to, i, n - i) + vget(t, from, at + i, n - i));
}

void occ_cpu_embed_backward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
			    const int32_t *d_tokens, const void *d_dout, float *d_dwte)
{
	int nt = cpu_team(d, R * C);
	int64_t most = (C + COLUMNS - 1) / COLUMNS, parts = nt < most ? nt : most;
	int64_t width = (most + parts - 1) / parts * COLUMNS;
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t c = 0; c < C; c += width) {
		int64_t n = C - c < width ? C - c : width;
		for (int64_t r = 0; r < R; r++) {
			int64_t id = d_tokens[r] - v0;
			if (id >= 0 && id < V)
				BY_TYPE(d->type, add_to, n, d_dout, r * C + c, d_dwte + id * C + c);
		}
	}
}

enum { PIECE = 256 }; /* columns whose dropout factors are held at once */

/* x = (x + p) * mask of a row; p NULL: nothing is added */
INLINE void masked_row(enum occ_type t, int64_t C, int64_t r, const void *p, int64_t p_at,
		       const struct occ_drop *drop, void *x)
{
	float factor[PIECE];
	for (int64_t c0 = 0; c0 < C; c0 += PIECE) {
		int64_t end = c0 + PIECE < C ? c0 + PIECE : C;
		if (drop->p > 0)
			occ_cpu_drop(drop, r, c0, end - c0, factor);
		for (int64_t c = c0, i = r * C + c0; c < end; c += VW, i += VW) {
			vf v = vget(t, x, i, end - c);
			if (p)
				v += vget(t, p, p_at + c, end - c);
			if (drop->p > 0)
				v *= vget(OCC_F32, factor, c - c0, end - c);
			vput(t, x, i, end - c, v);
		}
	}
}

void occ_cpu_position_forward(struct occ_device *d, int64_t R, int64_t C, int64_t T,
			      const void *d_wpe, const struct occ_drop *drop, void *d_x)
{
	static const struct occ_drop none;
	int nt = cpu_team(d, R * C);
	drop = drop ? drop : &none;
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t r = 0; r < R; r++)
		BY_TYPE(d->type, masked_row, C, r, d_wpe, r % T * C, drop, d_x);
}

void occ_cpu_position_backward(struct occ_device *d, int64_t R, int64_t C, int64_t T,
			       const struct occ_drop *drop, void *d_dx, float *d_dwpe)
{
	int nt = cpu_team(d, R * C);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t t = 0; t < T; t++)
		for (int64_t r = t; r < R; r += T) {
			if (drop && drop->p > 0)
				BY_TYPE(d->type, masked_row, C, r, NULL, 0, drop, d_dx);
			BY_TYPE(d->type, add_to, C, d_dx, r * C, d_dwpe + t * C);
		}
}

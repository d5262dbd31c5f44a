/* Products of bf16 matrices through an fp32 library: fp32 copies in, one rounding out. */
#include "base/gemm.h"

#include "base/mem.h"

static float *room(struct occ_widen *s, size_t n)
{
	if (n > s->cap) {
		occ_free(s->at);
		s->at = occ_alloc(n, sizeof(float));
		s->cap = n;
	}
	return s->at;
}

/* Dense fp32 copy of a stored matrix. */
static void widen(enum occ_type type, int64_t rows, int64_t cols, const void *x, int64_t ld,
		  float *out)
{
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			int64_t i = r * ld + c;
			out[r * cols + c] = type == OCC_F32
						    ? ((const float *)x)[i]
						    : occ_bf16_to_f32(((const uint16_t *)x)[i]);
		}
}

static void narrow(enum occ_type type, int64_t rows, int64_t cols, const float *x, void *out,
		   int64_t ld)
{
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			float v = x[r * cols + c];
			if (type == OCC_F32)
				((float *)out)[r * ld + c] = v;
			else
				((uint16_t *)out)[r * ld + c] = occ_f32_to_bf16(v);
		}
}

void occ_gemm_widened(struct occ_widen *s, const struct occ_gemm *g, enum occ_type type,
		      const void *const abbias[3], void *c, occ_gemm_f32 *product, void *lib)
{
	int64_t m = g->m, n = g->n, k = g->k;
	struct occ_gemm w = *g;
	w.lda = g->ta ? m : k;
	w.ldb = g->tb ? k : n;
	w.ldc = n;
	w.c_type = OCC_F32;
	float *a = room(s, (size_t)(m * k + k * n + n + m * n));
	float *b = a + m * k, *bias = b + k * n, *out = bias + n;
	widen(type, g->ta ? k : m, w.lda, abbias[0], g->lda, a);
	widen(type, g->tb ? n : k, w.ldb, abbias[1], g->ldb, b);
	if (g->bias)
		widen(type, 1, n, abbias[2], n, bias);
	if (g->beta != 0)
		widen(g->c_type, m, n, c, g->ldc, out);
	product(lib, &w, a, b, g->bias ? bias : NULL, out);
	narrow(g->c_type, m, n, out, c, g->ldc);
}

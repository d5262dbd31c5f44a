/* Products through cblas_sgemm; bf16 in fp32 on copies. */
#include "base/gemm.h"

#include <cblas.h>
#include <limits.h>
#include <string.h>

#include "base/mem.h"

const char *const occ_gemm_name = "OpenBLAS";

struct occ_gemm_lib {
	enum occ_type type;
	struct occ_widen widen;
};

struct occ_gemm_lib *occ_gemm_open(enum occ_type type, int threads)
{
	struct occ_gemm_lib *lib = occ_alloc(1, sizeof(*lib));
	lib->type = type;
	openblas_set_num_threads(threads); /* of the process; its sums do not depend on it */
	return lib;
}

void occ_gemm_close(struct occ_gemm_lib *lib)
{
	occ_free(lib->widen.at);
	occ_free(lib);
}

static int to_int(int64_t x)
{
	if (x > INT_MAX)
		occ_die(OCC_E_DEVICE, "OpenBLAS: a dimension of %lld is too large", (long long)x);
	return (int)x;
}

static void product(void *lib, const struct occ_gemm *g, const float *a, const float *b,
		    const float *bias, float *c)
{
	(void)lib;
	for (int64_t i = 0; bias && i < g->m; i++)
		memcpy(c + i * g->ldc, bias, (size_t)g->n * sizeof(*c));
	cblas_sgemm(CblasRowMajor, g->ta ? CblasTrans : CblasNoTrans,
		    g->tb ? CblasTrans : CblasNoTrans, to_int(g->m), to_int(g->n), to_int(g->k), 1,
		    a, to_int(g->lda), b, to_int(g->ldb), bias ? 1 : g->beta, c, to_int(g->ldc));
}

void occ_gemm_run(struct occ_gemm_lib *lib, const struct occ_gemm *g, const void *a, const void *b,
		  const void *bias, void *c)
{
	if (!g->m || !g->n)
		return;
	enum occ_type type = g->f32 ? OCC_F32 : lib->type;
	if (type == OCC_F32 && g->c_type == OCC_F32)
		product(lib, g, a, b, bias, c);
	else
		occ_gemm_widened(&lib->widen, g, type, (const void *[]){a, b, bias}, c, product,
				 lib);
}

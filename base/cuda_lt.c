/* Products whose bias is added on the way out, by cublasLt. What it needs to know of a shape is
 * found once and kept. */
#include "base/cuda_gemm_bias.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { KEPT = 64, FINEST = 256 };

/* What a plan depends on; compared as bytes, so made of equal fields. */
struct key {
	int64_t ta, tb, m, n, k, lda, ldb, ldc, type, c_type;
	int64_t align_a, align_b, align_c, align_bias;
};

struct plan {
	struct key key;
	int usable;
	cublasLtMatmulDesc_t what;
	cublasLtMatrixLayout_t a, b, c;
	cublasLtMatmulAlgo_t algo;
};

struct occ_cuda_lt {
	cublasLtHandle_t handle;
	int n, next; /* plans, and which goes when there is no room */
	struct plan plan[KEPT];
};

/* The largest power of two that divides an address, up to FINEST. */
static int64_t alignment(const void *x)
{
	uintptr_t at = (uintptr_t)x | FINEST;
	return (int64_t)(at & (~at + 1));
}

static cudaDataType type_of(int64_t t)
{
	return t == OCC_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static void forget(struct plan *p)
{
	cublasLtMatmulDescDestroy(p->what);
	cublasLtMatrixLayoutDestroy(p->a);
	cublasLtMatrixLayoutDestroy(p->b);
	cublasLtMatrixLayoutDestroy(p->c);
	memset(p, 0, sizeof(*p));
}

/* Column-major, as cuBLAS sees it: c' (n,m) = b' a', and the bias runs along its columns. */
static int describe(struct plan *p)
{
	const struct key *k = &p->key;
	cublasOperation_t tb = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasOperation_t ta = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
	uint64_t n = (uint64_t)k->n, m = (uint64_t)k->m, depth = (uint64_t)k->k;
	return cublasLtMatmulDescCreate(&p->what, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
	       cublasLtMatmulDescSetAttribute(p->what, CUBLASLT_MATMUL_DESC_TRANSA, &tb,
					      sizeof(tb)) ||
	       cublasLtMatmulDescSetAttribute(p->what, CUBLASLT_MATMUL_DESC_TRANSB, &ta,
					      sizeof(ta)) ||
	       cublasLtMatmulDescSetAttribute(p->what, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias,
					      sizeof(bias)) ||
	       cublasLtMatrixLayoutCreate(&p->b, type_of(k->type), k->tb ? depth : n,
					  k->tb ? n : depth, k->ldb) ||
	       cublasLtMatrixLayoutCreate(&p->a, type_of(k->type), k->ta ? m : depth,
					  k->ta ? depth : m, k->lda) ||
	       cublasLtMatrixLayoutCreate(&p->c, type_of(k->c_type), n, m, k->ldc);
}

static int prefer(cublasLtMatmulPreference_t want, cublasLtMatmulPreferenceAttributes_t what,
		  int64_t align)
{
	uint32_t bytes = (uint32_t)align;
	return cublasLtMatmulPreferenceSetAttribute(want, what, &bytes, sizeof(bytes)) != 0;
}

static int choose(struct occ_cuda_lt *lt, struct plan *p, uint64_t room)
{
	cublasLtMatmulPreference_t want;
	cublasLtMatmulHeuristicResult_t found;
	const struct key *k = &p->key;
	int n = 0;
	if (cublasLtMatmulPreferenceCreate(&want))
		return -1;
	int failed = cublasLtMatmulPreferenceSetAttribute(
			     want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof(room)) ||
		     prefer(want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, k->align_b) ||
		     prefer(want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, k->align_a) ||
		     prefer(want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, k->align_c) ||
		     prefer(want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, k->align_c) ||
		     cublasLtMatmulAlgoGetHeuristic(lt->handle, p->what, p->b, p->a, p->c, p->c,
						    want, 1, &found, &n);
	cublasLtMatmulPreferenceDestroy(want);
	if (failed || n < 1 || found.state != CUBLAS_STATUS_SUCCESS)
		return -1;
	p->algo = found.algo;
	return 0;
}

static struct plan *plan_of(struct occ_cuda_lt *lt, const struct key *key, uint64_t room)
{
	for (int i = 0; i < lt->n; i++)
		if (!memcmp(&lt->plan[i].key, key, sizeof(*key)))
			return &lt->plan[i];
	struct plan *p = &lt->plan[lt->next];
	if (lt->n == KEPT)
		forget(p);
	else
		lt->n++;
	lt->next = (lt->next + 1) % KEPT;
	p->key = *key;
	p->usable = !describe(p) && !choose(lt, p, room);
	return p;
}

static struct occ_cuda_lt *open_lt(struct occ_cuda *c)
{
	if (c->lt_asked)
		return c->lt;
	const char *way = getenv("OCC_BIAS");
	struct occ_cuda_lt *lt = occ_alloc(1, sizeof(*lt));
	c->lt_asked = 1;
	if ((way && !strcmp(way, "plain")) || cublasLtCreate(&lt->handle))
		occ_free(lt);
	else
		c->lt = lt;
	return c->lt;
}

int occ_cuda_gemm_bias(struct occ_device *d, const struct occ_gemm *g, const void *d_a,
		       const void *d_b, const void *d_bias, void *d_c)
{
	struct occ_cuda *c = occ_cuda_of(d);
	enum occ_type t = g->f32 ? OCC_F32 : d->type;
	struct occ_cuda_lt *lt = t == g->c_type ? open_lt(c) : NULL;
	float one = 1, zero = 0;
	if (!lt)
		return 0;
	struct key key = {g->ta,
			  g->tb,
			  g->m,
			  g->n,
			  g->k,
			  g->lda,
			  g->ldb,
			  g->ldc,
			  t,
			  g->c_type,
			  alignment(d_a),
			  alignment(d_b),
			  alignment(d_c),
			  alignment(d_bias)};
	struct plan *p = plan_of(lt, &key, OCC_CUDA_WORKSPACE);
	if (!p->usable || cublasLtMatmulDescSetAttribute(p->what, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
							 &d_bias, sizeof(d_bias)))
		return 0;
	occ_cuda_blas(cublasLtMatmul(lt->handle, p->what, &one, d_b, p->b, d_a, p->a, &zero, d_c,
				     p->c, d_c, p->c, &p->algo, c->now->workspace,
				     OCC_CUDA_WORKSPACE, c->now->stream),
		      "cublasLtMatmul");
	return 1;
}

void occ_cuda_lt_close(struct occ_cuda_lt *lt)
{
	if (!lt)
		return;
	for (int i = 0; i < lt->n; i++)
		forget(&lt->plan[i]);
	cublasLtDestroy(lt->handle);
	occ_free(lt);
}

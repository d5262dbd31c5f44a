/* What cublasLt needs to know of a shape is found once and kept. */
#include "base/cuda_lt.h"

#include <cublasLt.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

/* Epilogues move biases and h in vectors of 16 bytes. cublasLt lets preferences say how a to d lie,
 * but not those. */
enum { KEPT = 64, FINEST = 256, VECTOR = 16 };

/* What a plan depends on; compared as bytes, so made of equal fields. */
struct key {
	int64_t way, ta, tb, m, n, k, lda, ldb, ldc, type, c_type, bias;
	int64_t align_a, align_b, align_c, align_bias, align_h;
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
	int gelu;    /* 1: GELU on the way too */
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

static cublasLtEpilogue_t epilogue(const struct key *k)
{
	if (k->way == OCC_LT_GELU_BACK)
		return CUBLASLT_EPILOGUE_DGELU;
	if (k->way == OCC_LT_GELU)
		return k->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
	return CUBLASLT_EPILOGUE_BIAS;
}

static int tell(struct plan *p, cublasLtMatmulDescAttributes_t what, const void *value,
		size_t bytes)
{
	return cublasLtMatmulDescSetAttribute(p->what, what, value, bytes) != 0;
}

/* The other array: h, which lies as c does. cublasLt wants rows of multiples of 8. */
static int describe_h(struct plan *p)
{
	if (p->key.way == OCC_LT_BIAS)
		return 0;
	return p->key.ldc % 8 ||
	       tell(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &p->key.ldc, sizeof(p->key.ldc));
}

/* Column-major, as cuBLAS sees it: c' (n,m) = b' a', and the bias runs along its columns. */
static int describe(struct plan *p)
{
	const struct key *k = &p->key;
	cublasOperation_t tb = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasOperation_t ta = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasLtEpilogue_t then = epilogue(k);
	uint64_t n = (uint64_t)k->n, m = (uint64_t)k->m, depth = (uint64_t)k->k;
	return cublasLtMatmulDescCreate(&p->what, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
	       tell(p, CUBLASLT_MATMUL_DESC_TRANSA, &tb, sizeof(tb)) ||
	       tell(p, CUBLASLT_MATMUL_DESC_TRANSB, &ta, sizeof(ta)) ||
	       tell(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &then, sizeof(then)) || describe_h(p) ||
	       cublasLtMatrixLayoutCreate(&p->b, type_of(k->type), k->tb ? depth : n,
					  k->tb ? n : depth, k->ldb) ||
	       cublasLtMatrixLayoutCreate(&p->a, type_of(k->type), k->ta ? m : depth,
					  k->ta ? depth : m, k->lda) ||
	       cublasLtMatrixLayoutCreate(&p->c, type_of(k->c_type), n, m, k->ldc);
}

static int prefer(cublasLtMatmulPreference_t want, cublasLtMatmulPreferenceAttributes_t what,
		  int64_t number)
{
	uint32_t value = (uint32_t)number;
	return cublasLtMatmulPreferenceSetAttribute(want, what, &value, sizeof(value)) != 0;
}

/* Sums that are split over k meet in fp32, never in the result's bf16. */
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
		     prefer(want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
			    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) ||
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

/* Where the arrays of this call lie. */
static int aim(struct plan *p, const void *d_bias, const void *d_h)
{
	return (p->key.bias &&
		tell(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &d_bias, sizeof(d_bias))) ||
	       (p->key.way != OCC_LT_BIAS &&
		tell(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &d_h, sizeof(d_h)));
}

static void give_up(struct plan *p)
{
	const struct key *k = &p->key;
	p->usable = 0;
	occ_log(OCC_LOG_INFO, "cublasLt: no product of %lld x %lld x %lld with its %s",
		(long long)k->m, (long long)k->n, (long long)k->k,
		k->way == OCC_LT_BIAS ? "bias" : "GELU");
}

/* An algorithm is chosen for arrays that lie as those of this call: the heuristic looks at the
 * pointers too. */
static struct plan *plan_of(struct occ_cuda_lt *lt, const struct key *key, const void *d_bias,
			    const void *d_h)
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
	p->usable = 1;
	if (describe(p) || aim(p, d_bias, d_h) || choose(lt, p, OCC_CUDA_WORKSPACE))
		give_up(p);
	return p;
}

static struct occ_cuda_lt *open_lt(struct occ_cuda *c)
{
	if (c->lt_asked)
		return c->lt;
	struct occ_cuda_lt *lt = occ_alloc(1, sizeof(*lt));
	c->lt_asked = 1;
	lt->gelu = occ_cuda_asked("OCC_GELU", "fused");
	if (occ_cuda_asked("OCC_BIAS", "plain") || cublasLtCreate(&lt->handle))
		occ_free(lt);
	else
		c->lt = lt;
	return c->lt;
}

static struct key key_of(const struct occ_gemm *g, enum occ_cuda_way way, enum occ_type type)
{
	return (struct key){
		.way = way,
		.ta = g->ta,
		.tb = g->tb,
		.m = g->m,
		.n = g->n,
		.k = g->k,
		.lda = g->lda,
		.ldb = g->ldb,
		.ldc = g->ldc,
		.type = type,
		.c_type = g->c_type,
		.bias = g->bias,
	};
}

/* 1: enqueued. What the heuristic found and cublasLt then refuses is not asked for again. */
static int multiply(struct occ_cuda *c, struct plan *p, const void *d_a, const void *d_b, void *d_c)
{
	float one = 1, zero = 0;
	cublasStatus_t e = cublasLtMatmul(c->lt->handle, p->what, &one, d_b, p->b, d_a, p->a, &zero,
					  d_c, p->c, d_c, p->c, &p->algo, c->now->workspace,
					  OCC_CUDA_WORKSPACE, c->now->stream);
	if (e == CUBLAS_STATUS_NOT_SUPPORTED || e == CUBLAS_STATUS_INVALID_VALUE) {
		give_up(p);
		return 0;
	}
	occ_cuda_blas(e, "cublasLtMatmul");
	return 1;
}

int occ_cuda_lt(struct occ_device *d, enum occ_cuda_way way, const struct occ_gemm *g,
		const void *d_a, const void *d_b, const void *d_bias, const void *d_h, void *d_c)
{
	struct occ_cuda *c = occ_cuda_of(d);
	enum occ_type t = g->f32 ? OCC_F32 : d->type;
	struct occ_cuda_lt *lt = t == g->c_type ? open_lt(c) : NULL;
	if (!lt || (way != OCC_LT_BIAS && !lt->gelu))
		return 0;
	struct key key = key_of(g, way, t);
	key.align_a = alignment(d_a);
	key.align_b = alignment(d_b);
	key.align_c = alignment(d_c);
	key.align_bias = alignment(d_bias);
	key.align_h = alignment(d_h);
	if (key.align_bias < VECTOR || key.align_h < VECTOR)
		return 0;
	struct plan *p = plan_of(lt, &key, d_bias, d_h);
	if (!p->usable || aim(p, d_bias, d_h))
		return 0;
	return multiply(c, p, d_a, d_b, d_c);
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

/* Products through oneDNN's matmul primitive, for fp32 and bf16, on strided matrices as they stand.
 * A primitive is made once per shape and kept; only the addresses change from call to call. What
 * the library cannot do on this CPU (bf16 without AVX-512) runs in fp32 on copies. */
#include "base/gemm.h"

#include <dnnl.h>
#include <omp.h>
#include <string.h>

#include "base/mem.h"

const char *const occ_gemm_name = "oneDNN";

enum { A, B, BIAS, C, SCRATCH, NOPERANDS };

struct entry {
	struct occ_gemm g;
	enum occ_type type;
	dnnl_primitive_t prim; /* NULL: not offered */
	dnnl_memory_t mem[NOPERANDS];
	size_t scratch;
};

struct occ_gemm_lib {
	enum occ_type type;
	int threads;
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	struct entry *at;
	int n, cap;
	char *arena; /* scratch of the hungriest primitive */
	size_t arena_bytes;
	struct occ_widen widen;
};

static void need(dnnl_status_t status, const char *what)
{
	if (status != dnnl_success)
		occ_die(OCC_E_DEVICE, "oneDNN: %s failed with status %d", what, (int)status);
}

struct occ_gemm_lib *occ_gemm_open(enum occ_type type, int threads)
{
	struct occ_gemm_lib *lib = occ_alloc(1, sizeof(*lib));
	lib->type = type;
	lib->threads = threads;
	need(dnnl_engine_create(&lib->engine, dnnl_cpu, 0), "engine");
	need(dnnl_stream_create(&lib->stream, lib->engine, dnnl_stream_default_flags), "stream");
	return lib;
}

void occ_gemm_close(struct occ_gemm_lib *lib)
{
	for (int i = 0; i < lib->n; i++) {
		struct entry *x = &lib->at[i];
		if (x->prim)
			dnnl_primitive_destroy(x->prim);
		for (int k = 0; k < NOPERANDS; k++)
			if (x->mem[k])
				dnnl_memory_destroy(x->mem[k]);
	}
	dnnl_stream_destroy(lib->stream);
	dnnl_engine_destroy(lib->engine);
	occ_free(lib->at);
	occ_free(lib->arena);
	occ_free(lib->widen.at);
	occ_free(lib);
}

static int same(const struct entry *x, const struct occ_gemm *g, enum occ_type type)
{
	const struct occ_gemm *h = &x->g;
	return h->m == g->m && h->n == g->n && h->k == g->k && h->ta == g->ta && h->tb == g->tb &&
	       h->lda == g->lda && h->ldb == g->ldb && h->ldc == g->ldc && h->beta == g->beta &&
	       h->bias == g->bias && h->c_type == g->c_type && x->type == type;
}

/* Descriptor of a rows x cols matrix, stored as it is or as its transpose. */
static void describe(dnnl_memory_desc_t *md, int64_t rows, int64_t cols, int transposed, int64_t ld,
		     enum occ_type type)
{
	dnnl_dims_t dims = {rows, cols}, strides = {transposed ? 1 : ld, transposed ? ld : 1};
	need(dnnl_memory_desc_init_by_strides(md, 2, dims, type == OCC_BF16 ? dnnl_bf16 : dnnl_f32,
					      strides),
	     "matrix layout");
}

static dnnl_primitive_attr_t attributes(const struct occ_gemm *g)
{
	dnnl_primitive_attr_t attr;
	dnnl_post_ops_t ops;
	need(dnnl_primitive_attr_create(&attr), "attributes");
	need(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "scratch");
	if (g->beta == 0)
		return attr;
	need(dnnl_post_ops_create(&ops), "post-ops");
	need(dnnl_post_ops_append_sum(ops, g->beta), "sum");
	need(dnnl_primitive_attr_set_post_ops(attr, ops), "post-ops");
	dnnl_post_ops_destroy(ops);
	return attr;
}

/* Makes the primitive and its memory objects; leaves prim NULL where there is none. */
static void make(struct occ_gemm_lib *lib, struct entry *x)
{
	const struct occ_gemm *g = &x->g;
	dnnl_memory_desc_t md[NOPERANDS];
	dnnl_matmul_desc_t desc;
	dnnl_primitive_desc_t pd;
	describe(&md[A], g->m, g->k, g->ta, g->lda, x->type);
	describe(&md[B], g->k, g->n, g->tb, g->ldb, x->type);
	describe(&md[BIAS], 1, g->n, 0, g->n, x->type);
	describe(&md[C], g->m, g->n, 0, g->ldc, g->c_type);
	need(dnnl_matmul_desc_init(&desc, &md[A], &md[B], g->bias ? &md[BIAS] : NULL, &md[C]),
	     "matmul");
	dnnl_primitive_attr_t attr = attributes(g);
	dnnl_status_t got = dnnl_primitive_desc_create(&pd, &desc, attr, lib->engine, NULL);
	dnnl_primitive_attr_destroy(attr);
	if (got != dnnl_success)
		return;
	need(dnnl_primitive_create(&x->prim, pd), "primitive");
	md[SCRATCH] = *dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
	x->scratch = dnnl_memory_desc_get_size(&md[SCRATCH]);
	for (int k = 0; k < NOPERANDS; k++)
		if (k != BIAS || g->bias)
			need(dnnl_memory_create(&x->mem[k], &md[k], lib->engine, DNNL_MEMORY_NONE),
			     "memory");
	dnnl_primitive_desc_destroy(pd);
}

static struct entry *append(struct occ_gemm_lib *lib)
{
	if (lib->n == lib->cap) {
		lib->cap = lib->cap ? 2 * lib->cap : 32;
		struct entry *at = occ_alloc((size_t)lib->cap, sizeof(*at));
		if (lib->n)
			memcpy(at, lib->at, (size_t)lib->n * sizeof(*at));
		occ_free(lib->at);
		lib->at = at;
	}
	return &lib->at[lib->n++];
}

static struct entry *entry_of(struct occ_gemm_lib *lib, const struct occ_gemm *g,
			      enum occ_type type)
{
	for (int i = 0; i < lib->n; i++)
		if (same(&lib->at[i], g, type))
			return &lib->at[i];
	struct entry *x = append(lib);
	x->g = *g;
	x->type = type;
	make(lib, x);
	if (x->scratch > lib->arena_bytes) {
		occ_free(lib->arena);
		lib->arena = occ_alloc(x->scratch, 1);
		lib->arena_bytes = x->scratch;
	}
	return x;
}

static void execute(struct occ_gemm_lib *lib, struct entry *x, void *const at[NOPERANDS])
{
	static const int role[NOPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS,
					    DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};
	dnnl_exec_arg_t args[NOPERANDS];
	int n = 0;
	for (int k = 0; k < NOPERANDS; k++) {
		if (!x->mem[k])
			continue;
		need(dnnl_memory_set_data_handle(x->mem[k], at[k]), "operand");
		args[n++] = (dnnl_exec_arg_t){role[k], x->mem[k]};
	}
	need(dnnl_primitive_execute(x->prim, lib->stream, n, args), "matmul");
}

static void product_f32(void *to, const struct occ_gemm *g, const float *a, const float *b,
			const float *bias, float *c)
{
	struct occ_gemm_lib *lib = to;
	struct entry *x = entry_of(lib, g, OCC_F32);
	if (!x->prim)
		occ_die(OCC_E_DEVICE, "oneDNN offers no fp32 product");
	execute(lib, x, (void *[]){(void *)a, (void *)b, (void *)bias, c, lib->arena});
}

void occ_gemm_run(struct occ_gemm_lib *lib, const struct occ_gemm *g, const void *a, const void *b,
		  const void *bias, void *c)
{
	if (!g->m || !g->n)
		return;
	omp_set_num_threads(lib->threads); /* of the calling thread: other devices may differ */
	enum occ_type type = g->f32 ? OCC_F32 : lib->type;
	struct entry *x = entry_of(lib, g, type);
	if (x->prim)
		execute(lib, x, (void *[]){(void *)a, (void *)b, (void *)bias, c, lib->arena});
	else
		occ_gemm_widened(&lib->widen, g, type, (const void *[]){a, b, bias}, c, product_f32,
				 lib);
}

/* oneDNN's matmul primitive on plain strided layouts: transposes are strides, beta is a sum post-op. */
#include <dnnl.h>
#include <string.h>

#include "base/gemm.h"
#include "base/mem.h"

enum { A, B, C, BIAS, NMEM };

struct product {
	struct occ_gemm key;
	dnnl_primitive_t prim;
	dnnl_memory_t mem[NMEM], scratch;
	struct product *next;
};

enum { NBUCKETS = 256 };

struct occ_gemm_cache {
	enum occ_type type;
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	struct product *buckets[NBUCKETS];
	void *scratch; /* shared by all products: they run one after the other */
	size_t scratch_bytes;
};

static void check(dnnl_status_t s, const char *what)
{
	if (s != dnnl_success)
		occ_die(OCC_E_DEVICE, "oneDNN: %s failed with status %d", what, (int)s);
}

struct occ_gemm_cache *occ_gemm_open(enum occ_type type)
{
	struct occ_gemm_cache *c = occ_alloc(1, sizeof(*c));
	c->type = type;
	check(dnnl_engine_create(&c->engine, dnnl_cpu, 0), "engine");
	check(dnnl_stream_create(&c->stream, c->engine, dnnl_stream_default_flags), "stream");
	return c;
}

static void destroy(struct product *p)
{
	for (int i = 0; i < NMEM; i++)
		if (p->mem[i])
			dnnl_memory_destroy(p->mem[i]);
	dnnl_memory_destroy(p->scratch);
	dnnl_primitive_destroy(p->prim);
	occ_free(p);
}

void occ_gemm_close(struct occ_gemm_cache *c)
{
	if (!c)
		return;
	for (int i = 0; i < NBUCKETS; i++)
		for (struct product *p = c->buckets[i], *next; p; p = next) {
			next = p->next;
			destroy(p);
		}
	dnnl_stream_destroy(c->stream);
	dnnl_engine_destroy(c->engine);
	occ_free(c->scratch);
	occ_free(c);
}

static dnnl_data_type_t data_type(enum occ_type t)
{
	return t == OCC_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* A (rows, cols) operand; `t`: the stored matrix is its transpose, ld elements between stored rows. */
static dnnl_memory_desc_t operand(int64_t rows, int64_t cols, int t, int64_t ld, enum occ_type type)
{
	dnnl_memory_desc_t md;
	dnnl_dims_t dims = {rows, cols}, strides = {t ? 1 : ld, t ? ld : 1};
	check(dnnl_memory_desc_init_by_strides(&md, 2, dims, data_type(type), strides), "layout");
	return md;
}

static dnnl_memory_t memory(struct occ_gemm_cache *c, const dnnl_memory_desc_t *md)
{
	dnnl_memory_t m;
	check(dnnl_memory_create(&m, md, c->engine, DNNL_MEMORY_NONE), "memory");
	return m;
}

static dnnl_primitive_attr_t attributes(const struct occ_gemm *g)
{
	dnnl_primitive_attr_t attr;
	dnnl_post_ops_t ops;
	check(dnnl_primitive_attr_create(&attr), "attributes");
	check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "scratchpad");
	if (g->beta != 0) {
		check(dnnl_post_ops_create(&ops), "post-ops");
		check(dnnl_post_ops_append_sum(ops, g->beta), "sum");
		check(dnnl_primitive_attr_set_post_ops(attr, ops), "post-ops");
		dnnl_post_ops_destroy(ops);
	}
	return attr;
}

static void grow(struct occ_gemm_cache *c, size_t bytes)
{
	if (bytes <= c->scratch_bytes)
		return;
	occ_free(c->scratch);
	c->scratch = occ_alloc(bytes, 1);
	c->scratch_bytes = bytes;
}

static struct product *prepare(struct occ_gemm_cache *c, const struct occ_gemm *g)
{
	struct product *p = occ_alloc(1, sizeof(*p));
	dnnl_matmul_desc_t desc;
	dnnl_primitive_desc_t pd;
	dnnl_memory_desc_t md[NMEM] = {
		[A] = operand(g->m, g->k, g->ta, g->lda, c->type),
		[B] = operand(g->k, g->n, g->tb, g->ldb, c->type),
		[C] = operand(g->m, g->n, 0, g->ldc, g->c_type),
		[BIAS] = operand(1, g->n, 0, g->n, c->type),
	};
	dnnl_primitive_attr_t attr = attributes(g);
	check(dnnl_matmul_desc_init(&desc, &md[A], &md[B], g->bias ? &md[BIAS] : NULL, &md[C]), "matmul");
	check(dnnl_primitive_desc_create(&pd, &desc, attr, c->engine, NULL), "matmul of this shape");
	check(dnnl_primitive_create(&p->prim, pd), "matmul primitive");
	const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
	grow(c, dnnl_memory_desc_get_size(scratch));
	p->scratch = memory(c, scratch);
	for (int i = 0; i < NMEM; i++)
		p->mem[i] = memory(c, &md[i]);
	p->key = *g;
	dnnl_primitive_desc_destroy(pd);
	dnnl_primitive_attr_destroy(attr);
	return p;
}

static int same(const struct occ_gemm *x, const struct occ_gemm *y)
{
	return x->ta == y->ta && x->tb == y->tb && x->m == y->m && x->n == y->n && x->k == y->k &&
	       x->lda == y->lda && x->ldb == y->ldb && x->ldc == y->ldc && x->c_type == y->c_type &&
	       x->beta == y->beta && x->bias == y->bias; /* two betas: equal bits or not the same */
}

static struct product *find(struct occ_gemm_cache *c, const struct occ_gemm *g)
{
	uint64_t h = (uint64_t)g->m * 0x9e3779b97f4a7c15u + (uint64_t)g->n * 0xc2b2ae3d27d4eb4fu +
		     (uint64_t)g->k * 0x165667b19e3779f9u + (uint64_t)(g->ta * 2 + g->tb);
	struct product **bucket = &c->buckets[(h >> 32) % NBUCKETS];
	for (struct product *p = *bucket; p; p = p->next)
		if (same(&p->key, g))
			return p;
	struct product *p = prepare(c, g);
	p->next = *bucket;
	return *bucket = p;
}

void occ_gemm_run(struct occ_gemm_cache *c, const struct occ_gemm *g, const void *a, const void *b,
		  const void *bias, void *out)
{
	const void *handle[NMEM] = {a, b, out, bias};
	static const int name[NMEM] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS};
	dnnl_exec_arg_t args[NMEM + 1];
	int n = 0;
	if (g->m == 0 || g->n == 0)
		return;
	struct product *p = find(c, g);
	for (int i = 0; i < (g->bias ? NMEM : BIAS); i++) {
		dnnl_memory_set_data_handle(p->mem[i], (void *)(uintptr_t)handle[i]);
		args[n++] = (dnnl_exec_arg_t){name[i], p->mem[i]};
	}
	dnnl_memory_set_data_handle(p->scratch, c->scratch);
	args[n++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, p->scratch};
	check(dnnl_primitive_execute(p->prim, c->stream, n, args), "execution");
	dnnl_stream_wait(c->stream);
}

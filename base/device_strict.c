/* The strict device: ref's kernels on memory that the host cannot touch, so that a missing copy
 * crashes on a laptop as it would on a GPU.
 *
 * Every block has two places: an address range without access rights, from which its device
 * pointers come, and the real bytes elsewhere. A slot translates its pointers with the extent that
 * it will touch: a host pointer, a freed block or a range that leaves its block is a bug named on
 * the spot. Fresh memory holds 0x7fc0 7fc0: a NaN in both types, and as a token an id that is
 * refused here. */
#include "base/device.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"

enum { POISON = 0x7fc0, POISON_ID = 0x7fc07fc0 };

struct block {
	char *fake;         /* start of the range without rights; page aligned */
	size_t bytes, span; /* asked for; length of the range, at least a page longer */
	void *real;
};

/* Blocks in the order of their addresses. */
struct strict {
	struct block *at;
	int n, cap;
};

/* Index of the first block that ends behind address p. */
static int find(const struct strict *s, const char *p)
{
	int lo = 0, hi = s->n;
	while (lo < hi) {
		int mid = (lo + hi) / 2;
		if (s->at[mid].fake + s->at[mid].span <= p)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static struct block *block_of(struct occ_device *d, const void *d_x, const char *what)
{
	struct strict *s = d->impl;
	int i = find(s, d_x);
	occ_check(i < s->n && s->at[i].fake <= (const char *)d_x, "%s: %p is not device memory",
		  what, d_x);
	return &s->at[i];
}

/* The real place of `bytes` bytes at device pointer d_x. NULL and empty ranges pass. */
static void *real(struct occ_device *d, const void *d_x, size_t bytes, const char *what)
{
	if (!d_x || !bytes)
		return NULL;
	struct block *b = block_of(d, d_x, what);
	size_t at = (size_t)((const char *)d_x - b->fake);
	occ_check(at <= b->bytes && bytes <= b->bytes - at,
		  "%s: %zu bytes at offset %zu leave their block of %zu", what, bytes, at,
		  b->bytes);
	return (char *)b->real + at;
}

/* n elements of the compute type, of fp32, of ids; __func__ names the slot. */
#define TYPE(x, n) real(d, x, occ_size_mul((size_t)(n), occ_type_size(d->type)), __func__)
#define F32(x, n) real(d, x, occ_size_mul((size_t)(n), sizeof(float)), __func__)
#define BYTES(x, n) real(d, x, (size_t)(n), __func__)
#define IDS(x, n) ids(d, x, n, __func__)
#define REF occ_device_ref.

static const int32_t *ids(struct occ_device *d, const int32_t *d_x, int64_t n, const char *what)
{
	const int32_t *x = real(d, d_x, occ_size_mul((size_t)n, sizeof(*x)), what);
	for (int64_t i = 0; i < n; i++)
		occ_check(x[i] != POISON_ID, "%s: id %lld was never written", what, (long long)i);
	return x;
}

static int strict_open(struct occ_device *d, struct occ_err *e)
{
	(void)e;
	d->impl = occ_alloc(1, sizeof(struct strict));
	return 0;
}

static void release(struct block *b)
{
	munmap(b->fake, b->span);
	occ_free(b->real);
}

static void strict_close(struct occ_device *d)
{
	struct strict *s = d->impl;
	for (int i = 0; i < s->n; i++)
		release(&s->at[i]);
	occ_free(s->at);
	occ_free(s);
}

static void grow(struct strict *s)
{
	if (s->n < s->cap)
		return;
	s->cap = s->cap ? 2 * s->cap : 64;
	struct block *at = occ_alloc((size_t)s->cap, sizeof(*at));
	if (s->n)
		memcpy(at, s->at, (size_t)s->n * sizeof(*at));
	occ_free(s->at);
	s->at = at;
}

static void *strict_alloc(struct occ_device *d, size_t bytes)
{
	struct strict *s = d->impl;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct block b = {.bytes = bytes, .span = (bytes / page + 2) * page};
	b.real = occ_alloc(bytes, 1);
	b.fake = mmap(NULL, b.span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (b.fake == MAP_FAILED)
		occ_die(OCC_E_DEVICE, "no address range for %zu bytes of strict memory", bytes);
	for (size_t i = 0; i < bytes / 2; i++)
		((uint16_t *)b.real)[i] = POISON;
	grow(s);
	int i = find(s, b.fake);
	memmove(&s->at[i + 1], &s->at[i], (size_t)(s->n - i) * sizeof(b));
	s->at[i] = b;
	s->n++;
	return b.fake;
}

static void strict_free(struct occ_device *d, void *d_x)
{
	struct strict *s = d->impl;
	if (!d_x)
		return;
	struct block *b = block_of(d, d_x, __func__);
	occ_check(b->fake == (char *)d_x, "%p is not the start of a block", d_x);
	release(b);
	s->n--;
	memmove(b, b + 1, (size_t)(&s->at[s->n] - b) * sizeof(*b));
}

static void strict_put(struct occ_device *d, void *d_dst, const void *src, size_t bytes)
{
	REF put(d, real(d, d_dst, bytes, __func__), src, bytes);
}

static void strict_get(struct occ_device *d, void *dst, const void *d_src, size_t bytes)
{
	REF get(d, dst, real(d, d_src, bytes, __func__), bytes);
}

static void strict_copy(struct occ_device *d, void *d_dst, const void *d_src, size_t bytes)
{
	REF copy(d, real(d, d_dst, bytes, __func__), real(d, d_src, bytes, __func__), bytes);
}

static void strict_zero(struct occ_device *d, void *d_dst, size_t bytes)
{
	REF zero(d, real(d, d_dst, bytes, __func__), bytes);
}

static void strict_sync(struct occ_device *d)
{
	REF sync(d);
}

static void strict_cast(struct occ_device *d, int64_t n, enum occ_type from, const void *d_x,
			enum occ_type to, void *d_y)
{
	const void *x = real(d, d_x, occ_size_mul((size_t)n, occ_type_size(from)), __func__);
	void *y = real(d, d_y, occ_size_mul((size_t)n, occ_type_size(to)), __func__);
	REF cast(d, n, from, x, to, y);
}

static void strict_add(struct occ_device *d, int64_t n, const void *d_x, void *d_y)
{
	REF add(d, n, TYPE(d_x, n), TYPE(d_y, n));
}

static void strict_gelu_forward(struct occ_device *d, int64_t n, const void *d_x, void *d_y)
{
	REF gelu_forward(d, n, TYPE(d_x, n), TYPE(d_y, n));
}

static void strict_gelu_backward(struct occ_device *d, int64_t n, const void *d_x, const void *d_dy,
				 void *d_dx)
{
	REF gelu_backward(d, n, TYPE(d_x, n), TYPE(d_dy, n), TYPE(d_dx, n));
}

/* Elements from the first to the last of a matrix with rows ld apart. */
static int64_t extent(int64_t rows, int64_t cols, int64_t ld)
{
	occ_check(ld >= cols, "rows of %lld elements stand %lld apart", (long long)cols,
		  (long long)ld);
	return rows && cols ? (rows - 1) * ld + cols : 0;
}

static void strict_gemm(struct occ_device *d, const struct occ_gemm *g, const void *d_a,
			const void *d_b, const void *d_bias, void *d_c)
{
	int64_t a = g->ta ? extent(g->k, g->m, g->lda) : extent(g->m, g->k, g->lda);
	int64_t b = g->tb ? extent(g->n, g->k, g->ldb) : extent(g->k, g->n, g->ldb);
	size_t c = (size_t)extent(g->m, g->n, g->ldc) * occ_type_size(g->c_type);
	occ_check(!g->bias == !d_bias && !(g->bias && g->beta != 0), "bias %d, beta %g", g->bias,
		  (double)g->beta);
	size_t each = occ_type_size(g->f32 ? OCC_F32 : d->type);
	occ_check(!g->f32 || g->c_type == OCC_F32, "an fp32 product into another type");
	REF gemm(d, g, real(d, d_a, (size_t)a * each, __func__),
		 real(d, d_b, (size_t)b * each, __func__),
		 real(d, d_bias, (size_t)g->n * each, __func__), real(d, d_c, c, __func__));
}

static void strict_bias_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
				 float *d_db)
{
	REF bias_backward(d, R, C, TYPE(d_dy, R * C), F32(d_db, C));
}

static void strict_residual_norm_forward(struct occ_device *d, int64_t R, int64_t C,
					 const void *d_x, const void *d_delta, const void *d_bias,
					 const struct occ_drop *drop, const void *d_w,
					 const void *d_b, void *d_xo, void *d_y, float *d_mean,
					 float *d_rstd)
{
	REF residual_norm_forward(d, R, C, TYPE(d_x, R * C), TYPE(d_delta, R * C), TYPE(d_bias, C),
				  drop, TYPE(d_w, C), TYPE(d_b, C), TYPE(d_xo, R * C),
				  TYPE(d_y, R * C), F32(d_mean, R), F32(d_rstd, R));
}

static void strict_residual_norm_backward(struct occ_device *d, int64_t R, int64_t C,
					  const void *d_dy, const void *d_dres, const void *d_x,
					  const void *d_w, const float *d_mean, const float *d_rstd,
					  const struct occ_drop *drop, void *d_dx, void *d_ddelta,
					  float *d_dw, float *d_db, float *d_dbias)
{
	occ_check(d_ddelta != d_dx || !drop || drop->p == 0, "dropout would spoil dx");
	REF residual_norm_backward(d, R, C, TYPE(d_dy, R * C), TYPE(d_dres, R * C),
				   TYPE(d_x, R * C), TYPE(d_w, C), F32(d_mean, R), F32(d_rstd, R),
				   drop, TYPE(d_dx, R * C), TYPE(d_ddelta, R * C), F32(d_dw, C),
				   F32(d_db, C), F32(d_dbias, C));
}

static void strict_attention_forward(struct occ_device *d, const struct occ_attention *a,
				     const void *d_qkv, void *d_out, float *d_lse)
{
	int64_t n = a->B * a->T * a->H * a->D;
	REF attention_forward(d, a, TYPE(d_qkv, 3 * n), TYPE(d_out, n),
			      F32(d_lse, a->B * a->H * a->T));
}

static void strict_attention_backward(struct occ_device *d, const struct occ_attention *a,
				      const void *d_qkv, const void *d_out, const float *d_lse,
				      const void *d_dout, void *d_dqkv)
{
	int64_t n = a->B * a->T * a->H * a->D;
	REF attention_backward(d, a, TYPE(d_qkv, 3 * n), TYPE(d_out, n),
			       F32(d_lse, a->B * a->H * a->T), TYPE(d_dout, n),
			       TYPE(d_dqkv, 3 * n));
}

static void strict_embed_forward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
				 const int32_t *d_tokens, const void *d_wte, void *d_out)
{
	REF embed_forward(d, R, C, v0, V, IDS(d_tokens, R), TYPE(d_wte, V * C), TYPE(d_out, R * C));
}

static void strict_embed_backward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
				  const int32_t *d_tokens, const void *d_dout, float *d_dwte)
{
	REF embed_backward(d, R, C, v0, V, IDS(d_tokens, R), TYPE(d_dout, R * C),
			   F32(d_dwte, V * C));
}

static void strict_position_forward(struct occ_device *d, int64_t R, int64_t C, int64_t T,
				    const void *d_wpe, const struct occ_drop *drop, void *d_x)
{
	int64_t used = R < T ? R : T;
	REF position_forward(d, R, C, T, TYPE(d_wpe, used * C), drop, TYPE(d_x, R * C));
}

static void strict_position_backward(struct occ_device *d, int64_t R, int64_t C, int64_t T,
				     const struct occ_drop *drop, void *d_dx, float *d_dwpe)
{
	int64_t used = R < T ? R : T;
	REF position_backward(d, R, C, T, drop, TYPE(d_dx, R * C), F32(d_dwpe, used * C));
}

static void strict_xent_stats(struct occ_device *d, const struct occ_xent *x, const void *d_logits,
			      const int32_t *d_targets, float *d_max, float *d_sum, float *d_hit)
{
	int64_t n = extent(x->rows, x->V, x->ld);
	REF xent_stats(d, x, TYPE(d_logits, n), IDS(d_targets, x->rows), F32(d_max, x->rows),
		       F32(d_sum, x->rows), F32(d_hit, x->rows));
}

static void strict_xent_rescale(struct occ_device *d, int64_t rows, const float *d_max,
				const float *d_top, float *d_sum)
{
	REF xent_rescale(d, rows, F32(d_max, rows), F32(d_top, rows), F32(d_sum, rows));
}

static void strict_xent_finish(struct occ_device *d, const struct occ_xent *x, const void *d_logits,
			       const int32_t *d_targets, const float *d_top, const float *d_sum,
			       const float *d_hit, float scale, float *d_loss, void *d_dlogits)
{
	int64_t n = extent(x->rows, x->V, x->ld);
	REF xent_finish(d, x, TYPE(d_logits, n), IDS(d_targets, x->rows), F32(d_top, x->rows),
			F32(d_sum, x->rows), F32(d_hit, x->rows), scale, F32(d_loss, x->rows),
			TYPE(d_dlogits, n));
}

/* The pieces as ref can read them, and in *n the elements of the arrays up to the last piece. */
static struct occ_pieces pieces(struct occ_device *d, const struct occ_pieces *p, int64_t *n,
				const char *what)
{
	struct occ_pieces q = *p;
	int64_t total = 0;
	q.d_at = real(d, p->d_at, occ_size_mul((size_t)p->n, sizeof(*q.d_at)), what);
	*n = 0;
	for (int k = 0; k < q.n; k++) {
		const struct occ_piece *at = &q.d_at[k];
		occ_check(at->at >= 0 && at->n > 0 && at->n <= OCC_PIECE,
			  "%s: piece %d has %d elements from %lld on", what, k, at->n,
			  (long long)at->at);
		total += at->n;
		*n = at->at + at->n > *n ? at->at + at->n : *n;
	}
	occ_check(total == q.total, "%s: pieces of %lld elements, not %lld", what, (long long)total,
		  (long long)q.total);
	return q;
}

static void strict_adamw(struct occ_device *d, const struct occ_adamw *a,
			 const struct occ_pieces *p, const float *d_g, float *d_m, float *d_v,
			 float *d_master, void *d_w)
{
	int64_t n;
	struct occ_pieces q = pieces(d, p, &n, __func__);
	REF adamw(d, a, &q, F32(d_g, n), F32(d_m, n), F32(d_v, n), F32(d_master, n), TYPE(d_w, n));
}

static void strict_sum_squares(struct occ_device *d, int64_t n, const float *d_x, double *d_sum)
{
	REF sum_squares(d, n, F32(d_x, n), real(d, d_sum, sizeof(*d_sum), __func__));
}

static void strict_piece_squares(struct occ_device *d, const struct occ_pieces *p, const float *d_x,
				 double *d_sum)
{
	int64_t n;
	struct occ_pieces q = pieces(d, p, &n, __func__);
	REF piece_squares(d, &q, F32(d_x, n),
			  real(d, d_sum, occ_size_mul((size_t)q.n, sizeof(*d_sum)), __func__));
}

static void strict_draw(struct occ_device *d, int64_t n, uint64_t key, uint32_t id, float *d_x)
{
	REF draw(d, n, key, id, F32(d_x, n));
}

static void strict_scale(struct occ_device *d, int64_t n, float a, float *d_x)
{
	REF scale(d, n, a, F32(d_x, n));
}

static void strict_accumulate(struct occ_device *d, int64_t n, enum occ_type type, const void *d_x,
			      enum occ_how how, float *d_y)
{
	const void *x = real(d, d_x, occ_size_mul((size_t)n, occ_type_size(type)), __func__);
	REF accumulate(d, n, type, x, how, F32(d_y, n));
}

static void strict_fold(struct occ_device *d, int k, int64_t n, enum occ_type type, int max,
			const void *d_x, void *d_y)
{
	size_t row = occ_size_mul((size_t)n, occ_type_size(type));
	const void *x = real(d, d_x, occ_size_mul((size_t)k, row), __func__);
	REF fold(d, k, n, type, max, x, real(d, d_y, row, __func__));
}

static void strict_orthonormalise(struct occ_device *d, int64_t n, int64_t r, float *d_a)
{
	REF orthonormalise(d, n, r, F32(d_a, n * r));
}

static void strict_select(struct occ_device *d, int64_t R, int64_t C, int64_t k, const float *d_x,
			  int width, void *d_at, float *d_value, float *d_least)
{
	REF select(d, R, C, k, F32(d_x, R * C), width, BYTES(d_at, R * k * width),
		   F32(d_value, R * k), F32(d_least, R));
}

static void strict_above(struct occ_device *d, int64_t n, const float *d_x, const float *d_least,
			 int64_t cap, int32_t *d_at, float *d_value, int64_t *count)
{
	REF above(d, n, F32(d_x, n), F32(d_least, 1), cap, BYTES(d_at, cap * 4), F32(d_value, cap),
		  count);
}

static void strict_pick(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width,
			const void *d_at, const float *d_x, float *d_value)
{
	REF pick(d, R, C, k, width, BYTES(d_at, R * k * width), F32(d_x, R * C),
		 F32(d_value, R * k));
}

static void strict_place(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width,
			 const void *d_at, const float *d_value, enum occ_how how, float *d_y)
{
	REF place(d, R, C, k, width, BYTES(d_at, R * k * width), F32(d_value, R * k), how,
		  F32(d_y, R * C));
}

/* Bytes of a quantised wire. */
static int64_t quant_bytes(int64_t n, int bits, int64_t group)
{
	return (n + group - 1) / group * 4 + (n * bits + 7) / 8;
}

static void strict_quantise(struct occ_device *d, int64_t n, int bits, int64_t group,
			    const float *d_x, void *d_wire)
{
	REF quantise(d, n, bits, group, F32(d_x, n), BYTES(d_wire, quant_bytes(n, bits, group)));
}

static void strict_dequantise(struct occ_device *d, int64_t n, int bits, int64_t group,
			      const void *d_wire, enum occ_how how, float *d_y)
{
	REF dequantise(d, n, bits, group, BYTES(d_wire, quant_bytes(n, bits, group)), how,
		       F32(d_y, n));
}

static void strict_half_pack(struct occ_device *d, int64_t n, const float *d_x, void *d_wire)
{
	REF half_pack(d, n, F32(d_x, n), BYTES(d_wire, 4 + 2 * n));
}

static void strict_half_unpack(struct occ_device *d, int64_t n, const void *d_wire,
			       enum occ_how how, float *d_y)
{
	REF half_unpack(d, n, BYTES(d_wire, 4 + 2 * n), how, F32(d_y, n));
}

/* The wire's length is not known before: its start must be device memory. */
static void strict_bound_pack(struct occ_device *d, int64_t n, double eps, const float *d_x,
			      void *d_wire, int64_t *bytes)
{
	REF bound_pack(d, n, eps, F32(d_x, n), BYTES(d_wire, 1), bytes);
	BYTES(d_wire, *bytes);
}

static void strict_bound_unpack(struct occ_device *d, int64_t n, double eps, const void *d_wire,
				enum occ_how how, float *d_y)
{
	REF bound_unpack(d, n, eps, BYTES(d_wire, 1), how, F32(d_y, n));
}

const struct occ_device_ops occ_device_strict = {
	.name = "strict",
	.host_visible = 0,
	.open = strict_open,
	.close = strict_close,
	.alloc = strict_alloc,
	.free = strict_free,
	.put = strict_put,
	.get = strict_get,
	.copy = strict_copy,
	.zero = strict_zero,
	.sync = strict_sync,
	OCC_HOST_SLOTS,
	.cast = strict_cast,
	.add = strict_add,
	.gelu_forward = strict_gelu_forward,
	.gelu_backward = strict_gelu_backward,
	.gemm = strict_gemm,
	.gemm_gelu = occ_gemm_gelu,
	.gemm_gelu_backward = occ_gemm_gelu_backward,
	.bias_backward = strict_bias_backward,
	.residual_norm_forward = strict_residual_norm_forward,
	.residual_norm_backward = strict_residual_norm_backward,
	.attention_forward = strict_attention_forward,
	.attention_backward = strict_attention_backward,
	.embed_forward = strict_embed_forward,
	.embed_backward = strict_embed_backward,
	.position_forward = strict_position_forward,
	.position_backward = strict_position_backward,
	.xent_stats = strict_xent_stats,
	.xent_rescale = strict_xent_rescale,
	.xent_finish = strict_xent_finish,
	.adamw = strict_adamw,
	.sum_squares = strict_sum_squares,
	.piece_squares = strict_piece_squares,
	.draw = strict_draw,
	.scale = strict_scale,
	.accumulate = strict_accumulate,
	.fold = strict_fold,
	.orthonormalise = strict_orthonormalise,
	.select = strict_select,
	.above = strict_above,
	.pick = strict_pick,
	.place = strict_place,
	.quantise = strict_quantise,
	.dequantise = strict_dequantise,
	.half_pack = strict_half_pack,
	.half_unpack = strict_half_unpack,
	.bound_pack = strict_bound_pack,
	.bound_unpack = strict_bound_unpack,
};

/* The dry device: nothing is computed and no memory is touched; what would be allocated is counted,
 * and what it would take is added to a clock. With the dry transport (parallel/comm_dry.c) a step
 * runs in full and leaves only its counters and its trace behind, which is how `plan` knows what a
 * run does.
 *
 * The time of a call is the longest of its matrix products, its other arithmetic and its memory
 * traffic at the given rates, and what a call costs in itself. */
#include "base/device.h"

#include "base/mem.h"

struct dry {
	size_t bytes;  /* held now */
	char *address; /* of the next block: addresses are told apart, never used */
	struct occ_rates rates;
	double seconds;
};

enum { FIRST = 1 << 20, GAP = 64 };

static int dry_open(struct occ_device *d, struct occ_err *e)
{
	(void)e;
	struct dry *s = occ_alloc(1, sizeof(*s));
	s->address = (char *)(uintptr_t)FIRST;
	d->impl = s;
	return 0;
}

static void dry_close(struct occ_device *d)
{
	occ_free(d->impl);
}

static void *dry_alloc(struct occ_device *d, size_t bytes)
{
	struct dry *s = d->impl;
	char *at = s->address;
	s->address += (bytes / GAP + 1) * GAP;
	s->bytes += bytes;
	return at;
}

static void dry_free(struct occ_device *d, void *d_x)
{
	(void)d, (void)d_x;
}

size_t occ_device_dry_bytes(const struct occ_device *d)
{
	return ((const struct dry *)d->impl)->bytes;
}

void occ_device_dry_rates(struct occ_device *d, const struct occ_rates *r)
{
	((struct dry *)d->impl)->rates = *r;
}

double occ_device_dry_ms(void *device)
{
	return 1e3 * ((const struct dry *)((struct occ_device *)device)->impl)->seconds;
}

static double longer(double a, double b)
{
	return a > b ? a : b;
}

/* amount / rate; a rate of 0 stands for no limit. */
static double at_rate(double amount, double rate)
{
	return rate > 0 ? amount / rate : 0;
}

static void spend(struct occ_device *d, enum occ_type type, double products, double others,
		  double bytes)
{
	struct dry *s = d->impl;
	double t = longer(at_rate(products, s->rates.products[type]),
			  at_rate(others, s->rates.others));
	s->seconds += longer(t, at_rate(bytes, s->rates.bytes)) + s->rates.call_s;
}

/* A slot that does nothing but take its time: products and other operations (in the device's type)
 * and bytes moved, in terms of its arguments; T: bytes of a value of the device's type. */
#define SLOT(name, args, products, others, bytes)                                                  \
	static void dry_##name args                                                                \
	{                                                                                          \
		const double T = (double)occ_type_size(d->type);                                   \
		(void)T;                                                                           \
		spend(d, d->type, products, others, bytes);                                        \
	}
#define N ((double)n)
#define RC ((double)R * (double)C)
#define RK ((double)R * (double)k)

/* The table fixes what a slot is given, not what it needs. NOLINTBEGIN(misc-unused-parameters) */
#pragma GCC diagnostic ignored "-Wunused-parameter"
SLOT(put, (struct occ_device * d, void *y, const void *x, size_t n), 0, 0, 2 * N)
SLOT(copy, (struct occ_device * d, void *y, const void *x, size_t n), 0, 0, 2 * N)
SLOT(zero, (struct occ_device * d, void *y, size_t n), 0, 0, N)
SLOT(cast,
     (struct occ_device * d, int64_t n, enum occ_type s, const void *x, enum occ_type t, void *y),
     0, N, N *(double)(occ_type_size(s) + occ_type_size(t)))
SLOT(add, (struct occ_device * d, int64_t n, const void *x, void *y), 0, N, 3 * N * T)
SLOT(gelu_forward, (struct occ_device * d, int64_t n, const void *x, void *y), 0, 20 * N, 2 * N * T)
SLOT(gelu_backward, (struct occ_device * d, int64_t n, const void *x, const void *dy, void *dx), 0,
     30 * N, 3 * N * T)
SLOT(bias_backward, (struct occ_device * d, int64_t R, int64_t C, const void *dy, float *db), 0, RC,
     RC *T)
SLOT(residual_norm_forward,
     (struct occ_device * d, int64_t R, int64_t C, const void *x, const void *delta,
      const void *bias, const struct occ_drop *drop, const void *w, const void *b, void *xo,
      void *y, float *mean, float *rstd),
     0, 10 * RC, (delta ? 4 : 2) * RC * T)
SLOT(residual_norm_backward,
     (struct occ_device * d, int64_t R, int64_t C, const void *dy, const void *dres, const void *x,
      const void *w, const float *mean, const float *rstd, const struct occ_drop *drop, void *dx,
      void *ddelta, float *dw, float *db, float *dbias),
     0, 16 * RC, (ddelta ? 5 : 4) * RC * T)
/* Causal: half of the scores. */
SLOT(attention_forward,
     (struct occ_device * d, const struct occ_attention *a, const void *qkv, void *out, float *lse),
     2.0 * (double)(a->B * a->H * a->T) * (double)(a->T * a->D),
     8.0 * (double)(a->B * a->H * a->T) * (double)a->T,
     4.0 * (double)(a->B * a->T) * (double)(a->H * a->D) * T)
SLOT(attention_backward,
     (struct occ_device * d, const struct occ_attention *a, const void *qkv, const void *out,
      const float *lse, const void *dout, void *dqkv),
     5.0 * (double)(a->B * a->H * a->T) * (double)(a->T * a->D),
     12.0 * (double)(a->B * a->H * a->T) * (double)a->T,
     8.0 * (double)(a->B * a->T) * (double)(a->H * a->D) * T)
SLOT(embed_forward,
     (struct occ_device * d, int64_t R, int64_t C, int64_t v0, int64_t V, const int32_t *tokens,
      const void *wte, void *out),
     0, 0, 2 * RC * T)
SLOT(embed_backward,
     (struct occ_device * d, int64_t R, int64_t C, int64_t v0, int64_t V, const int32_t *tokens,
      const void *dout, float *dwte),
     0, RC, RC *(T + 8))
SLOT(position_forward,
     (struct occ_device * d, int64_t R, int64_t C, int64_t T_, const void *wpe,
      const struct occ_drop *drop, void *x),
     0, RC, 2 * RC * T)
SLOT(position_backward,
     (struct occ_device * d, int64_t R, int64_t C, int64_t T_, const struct occ_drop *drop,
      void *dx, float *dwpe),
     0, RC, 2 * RC * T)
SLOT(xent_stats,
     (struct occ_device * d, const struct occ_xent *x, const void *logits, const int32_t *targets,
      float *max, float *sum, float *hit),
     0, 13.0 * (double)x->rows * (double)x->V, T *(double)x->rows *(double)x->V)
SLOT(xent_rescale,
     (struct occ_device * d, int64_t n, const float *max, const float *top, float *sum), 0, 12 * N,
     16 * N)
SLOT(xent_finish,
     (struct occ_device * d, const struct occ_xent *x, const void *logits, const int32_t *targets,
      const float *top, const float *sum, const float *hit, float scale, float *loss,
      void *dlogits),
     0, 14.0 * (double)x->rows * (double)x->V, 2 * T * (double)x->rows * (double)x->V)
SLOT(adamw,
     (struct occ_device * d, const struct occ_adamw *a, const struct occ_pieces *p, const float *g,
      float *m, float *v, float *master, void *w),
     0, 15.0 * (double)p->total, (double)p->total *(20 + (master ? 8 : 0) + 2 * T))
SLOT(draw, (struct occ_device * d, int64_t n, uint64_t key, uint32_t id, float *x), 0, 60 * N,
     4 * N)
SLOT(scale, (struct occ_device * d, int64_t n, float a, float *x), 0, N, 8 * N)
SLOT(accumulate,
     (struct occ_device * d, int64_t n, enum occ_type type, const void *x, enum occ_how how,
      float *y),
     0, N, N *(double)(occ_type_size(type) + (how == OCC_SET ? 4 : 8)))
SLOT(fold,
     (struct occ_device * d, int k, int64_t n, enum occ_type type, int max, const void *x, void *y),
     0, k *N, (k + 1) * N * (double)occ_type_size(type))
SLOT(select,
     (struct occ_device * d, int64_t R, int64_t C, int64_t k, const float *x, int width, void *at,
      float *value, float *least),
     0, 20 * RC, 12 * RC)
SLOT(pick,
     (struct occ_device * d, int64_t R, int64_t C, int64_t k, int width, const void *at,
      const float *x, float *value),
     0, 4 * RK, 12 * RK)
SLOT(place,
     (struct occ_device * d, int64_t R, int64_t C, int64_t k, int width, const void *at,
      const float *value, enum occ_how how, float *y),
     0, 4 * RK, 16 * RK + (how == OCC_SET ? 4 * RC : 0))
SLOT(quantise,
     (struct occ_device * d, int64_t n, int bits, int64_t group, const float *x, void *wire), 0,
     8 * N, 5 * N)
SLOT(dequantise,
     (struct occ_device * d, int64_t n, int bits, int64_t group, const void *wire, enum occ_how how,
      float *y),
     0, 4 * N, (how == OCC_SET ? 5 : 9) * N)
SLOT(half_pack, (struct occ_device * d, int64_t n, const float *x, void *wire), 0, 6 * N, 10 * N)
SLOT(half_unpack, (struct occ_device * d, int64_t n, const void *wire, enum occ_how how, float *y),
     0, 4 * N, (how == OCC_SET ? 6 : 10) * N)
SLOT(bound_unpack,
     (struct occ_device * d, int64_t n, double eps, const void *wire, enum occ_how how, float *y),
     0, 6 * N, (how == OCC_SET ? 5 : 9) * N)

/* NOLINTEND(misc-unused-parameters) */

static void dry_sync(struct occ_device *d)
{
	(void)d;
}

static void dry_gemm(struct occ_device *d, const struct occ_gemm *g, const void *a, const void *b,
		     const void *bias, void *c)
{
	(void)a, (void)b, (void)bias, (void)c;
	enum occ_type type = g->f32 ? OCC_F32 : d->type;
	double m = (double)g->m, n = (double)g->n, k = (double)g->k;
	double in = (m * k + k * n) * (double)occ_type_size(type);
	spend(d, type, 2 * m * n * k, 0,
	      in + m * n * (double)occ_type_size(g->c_type) * (g->beta != 0 ? 2 : 1));
}

/* Two passes of products with the columns before. */
static void dry_orthonormalise(struct occ_device *d, int64_t n, int64_t r, float *a)
{
	(void)a;
	double values = (double)n * (double)r;
	spend(d, OCC_F32, 4 * values * (double)r, 0, 16 * values);
}

static void dry_sum_squares(struct occ_device *d, int64_t n, const float *x, double *sum)
{
	(void)x, (void)sum;
	spend(d, OCC_F32, 0, 2 * N, 4 * N);
}

static void dry_piece_squares(struct occ_device *d, const struct occ_pieces *p, const float *x,
			      double *sum)
{
	dry_sum_squares(d, p->total, x, sum);
}

static void dry_above(struct occ_device *d, int64_t n, const float *x, const float *least,
		      int64_t cap, int32_t *at, float *value, int64_t *count)
{
	(void)x, (void)least, (void)at, (void)value;
	spend(d, OCC_F32, 0, 2 * N, 4 * N + 8 * (double)cap);
	*count = 0;
}

/* What cannot be known: a guess of 8 bits a value. */
static void dry_bound_pack(struct occ_device *d, int64_t n, double eps, const float *x, void *wire,
			   int64_t *bytes)
{
	(void)eps, (void)x, (void)wire;
	int64_t blocks = (n + OCC_BOUND_BLOCK - 1) / OCC_BOUND_BLOCK;
	spend(d, OCC_F32, 0, 8 * N, 5 * N);
	*bytes = (blocks + 3) / 4 * 4 + blocks * OCC_BOUND_BLOCK;
}

const struct occ_device_ops occ_device_dry = {
	.name = "dry",
	.host_visible = 1,
	.dry = 1,
	.open = dry_open,
	.close = dry_close,
	.alloc = dry_alloc,
	.free = dry_free,
	.put = dry_put,
	.get = dry_put,
	.copy = dry_copy,
	.zero = dry_zero,
	.sync = dry_sync,
	OCC_HOST_SLOTS,
	.cast = dry_cast,
	.add = dry_add,
	.gelu_forward = dry_gelu_forward,
	.gelu_backward = dry_gelu_backward,
	.gemm = dry_gemm,
	.gemm_gelu = occ_gemm_gelu,
	.gemm_gelu_backward = occ_gemm_gelu_backward,
	.bias_backward = dry_bias_backward,
	.residual_norm_forward = dry_residual_norm_forward,
	.residual_norm_backward = dry_residual_norm_backward,
	.attention_forward = dry_attention_forward,
	.attention_backward = dry_attention_backward,
	.embed_forward = dry_embed_forward,
	.embed_backward = dry_embed_backward,
	.position_forward = dry_position_forward,
	.position_backward = dry_position_backward,
	.xent_stats = dry_xent_stats,
	.xent_rescale = dry_xent_rescale,
	.xent_finish = dry_xent_finish,
	.adamw = dry_adamw,
	.sum_squares = dry_sum_squares,
	.piece_squares = dry_piece_squares,
	.draw = dry_draw,
	.scale = dry_scale,
	.accumulate = dry_accumulate,
	.fold = dry_fold,
	.orthonormalise = dry_orthonormalise,
	.select = dry_select,
	.above = dry_above,
	.pick = dry_pick,
	.place = dry_place,
	.quantise = dry_quantise,
	.dequantise = dry_dequantise,
	.half_pack = dry_half_pack,
	.half_unpack = dry_half_unpack,
	.bound_pack = dry_bound_pack,
	.bound_unpack = dry_bound_unpack,
};

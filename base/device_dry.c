/* The dry device: nothing is computed and no memory is touched; what would be allocated is counted.
 * With the dry transport (parallel/comm_dry.c) a step runs in full and leaves only its counters
 * behind, which is how `plan` knows what a run does. */
#include "base/device.h"

#include "base/mem.h"

struct dry {
	size_t bytes;  /* held now */
	char *address; /* of the next block: addresses are told apart, never used */
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

/* Every other slot does nothing, whatever its arguments are. */
#define NOTHING(name, ...)                                                                         \
	static void dry_##name(__VA_ARGS__)                                                        \
	{                                                                                          \
	}

#pragma GCC diagnostic ignored "-Wunused-parameter"
NOTHING(put, struct occ_device *d, void *y, const void *x, size_t n)
NOTHING(copy, struct occ_device *d, void *y, const void *x, size_t n)
NOTHING(zero, struct occ_device *d, void *y, size_t n)
NOTHING(sync, struct occ_device *d)
NOTHING(cast, struct occ_device *d, int64_t n, enum occ_type s, const void *x, enum occ_type t,
	void *y)
NOTHING(add, struct occ_device *d, int64_t n, const void *x, void *y)
NOTHING(gelu_backward, struct occ_device *d, int64_t n, const void *x, const void *dy, void *dx)
NOTHING(gemm, struct occ_device *d, const struct occ_gemm *g, const void *a, const void *b,
	const void *bias, void *c)
NOTHING(bias_backward, struct occ_device *d, int64_t R, int64_t C, const void *dy, float *db)
NOTHING(residual_norm_forward, struct occ_device *d, int64_t R, int64_t C, const void *x,
	const void *delta, const void *bias, const struct occ_drop *drop, const void *w,
	const void *b, void *xo, void *y, float *mean, float *rstd)
NOTHING(residual_norm_backward, struct occ_device *d, int64_t R, int64_t C, const void *dy,
	const void *dres, const void *x, const void *w, const float *mean, const float *rstd,
	const struct occ_drop *drop, void *dx, void *ddelta, float *dw, float *db, float *dbias)
NOTHING(attention_forward, struct occ_device *d, const struct occ_attention *a, const void *qkv,
	void *out, float *lse)
NOTHING(attention_backward, struct occ_device *d, const struct occ_attention *a, const void *qkv,
	const void *out, const float *lse, const void *dout, void *dqkv)
NOTHING(embed_forward, struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
	const int32_t *tokens, const void *wte, void *out)
NOTHING(embed_backward, struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
	const int32_t *tokens, const void *dout, float *dwte)
NOTHING(position_forward, struct occ_device *d, int64_t R, int64_t C, int64_t T, const void *wpe,
	const struct occ_drop *drop, void *x)
NOTHING(position_backward, struct occ_device *d, int64_t R, int64_t C, int64_t T,
	const struct occ_drop *drop, void *dx, float *dwpe)
NOTHING(xent_max, struct occ_device *d, const struct occ_xent *x, const float *logits, float *max)
NOTHING(xent_sum, struct occ_device *d, const struct occ_xent *x, const float *logits,
	const int32_t *targets, const float *max, float *sum, float *hit)
NOTHING(xent_finish, struct occ_device *d, const struct occ_xent *x, const float *logits,
	const int32_t *targets, const float *max, const float *sum, const float *hit, float scale,
	float *loss, void *dlogits)
NOTHING(adamw, struct occ_device *d, const struct occ_adamw *a, int64_t n, const float *g, float *m,
	float *v, float *master, void *w)
NOTHING(draw, struct occ_device *d, int64_t n, uint64_t key, uint32_t id, float *x)
NOTHING(scale, struct occ_device *d, int64_t n, float a, float *x)
NOTHING(accumulate, struct occ_device *d, int64_t n, enum occ_type type, const void *x,
	enum occ_how how, float *y)
NOTHING(orthonormalise, struct occ_device *d, int64_t n, int64_t r, float *a)
NOTHING(select, struct occ_device *d, int64_t R, int64_t C, int64_t k, const float *x, int width,
	void *at, float *value, float *least)
NOTHING(pick, struct occ_device *d, int64_t R, int64_t C, int64_t k, int width, const void *at,
	const float *x, float *value)
NOTHING(place, struct occ_device *d, int64_t R, int64_t C, int64_t k, int width, const void *at,
	const float *value, enum occ_how how, float *y)
NOTHING(quantise, struct occ_device *d, int64_t n, int bits, int64_t group, const float *x,
	void *wire)
NOTHING(dequantise, struct occ_device *d, int64_t n, int bits, int64_t group, const void *wire,
	enum occ_how how, float *y)
NOTHING(half_pack, struct occ_device *d, int64_t n, const float *x, void *wire)
NOTHING(half_unpack, struct occ_device *d, int64_t n, const void *wire, enum occ_how how, float *y)
NOTHING(bound_unpack, struct occ_device *d, int64_t n, double eps, const void *wire,
	enum occ_how how, float *y)

static void dry_sum_squares(struct occ_device *d, int64_t n, const float *x, double *sum)
{
	(void)d, (void)n, (void)x;
	*sum = 0;
}

static void dry_above(struct occ_device *d, int64_t n, const float *x, const float *least,
		      int64_t cap, int32_t *at, float *value, int64_t *count)
{
	(void)d, (void)n, (void)x, (void)least, (void)cap, (void)at, (void)value;
	*count = 0;
}

/* What cannot be known: a guess of 8 bits a value. */
static void dry_bound_pack(struct occ_device *d, int64_t n, double eps, const float *x, void *wire,
			   int64_t *bytes)
{
	(void)d, (void)eps, (void)x, (void)wire;
	int64_t blocks = (n + OCC_BOUND_BLOCK - 1) / OCC_BOUND_BLOCK;
	*bytes = (blocks + 3) / 4 * 4 + blocks * OCC_BOUND_BLOCK;
}

const struct occ_device_ops occ_device_dry = {
	.name = "dry",
	.host_visible = 1,
	.open = dry_open,
	.close = dry_close,
	.alloc = dry_alloc,
	.free = dry_free,
	.put = dry_put,
	.get = dry_put,
	.copy = dry_copy,
	.zero = dry_zero,
	.sync = dry_sync,
	.cast = dry_cast,
	.add = dry_add,
	.gelu_forward = dry_add,
	.gelu_backward = dry_gelu_backward,
	.gemm = dry_gemm,
	.bias_backward = dry_bias_backward,
	.residual_norm_forward = dry_residual_norm_forward,
	.residual_norm_backward = dry_residual_norm_backward,
	.attention_forward = dry_attention_forward,
	.attention_backward = dry_attention_backward,
	.embed_forward = dry_embed_forward,
	.embed_backward = dry_embed_backward,
	.position_forward = dry_position_forward,
	.position_backward = dry_position_backward,
	.xent_max = dry_xent_max,
	.xent_sum = dry_xent_sum,
	.xent_finish = dry_xent_finish,
	.adamw = dry_adamw,
	.sum_squares = dry_sum_squares,
	.draw = dry_draw,
	.scale = dry_scale,
	.accumulate = dry_accumulate,
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

/* The ref device: plain loops on host memory, sums in double: the truth that the other devices are
 * tested against. Not fast, not parallel; keeps nothing between calls. */
#include "base/ref.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

static int ref_open(struct occ_device *d, struct occ_err *e)
{
	(void)d;
	(void)e;
	return 0;
}

static void ref_close(struct occ_device *d)
{
	(void)d;
}

static void *ref_alloc(struct occ_device *d, size_t bytes)
{
	(void)d;
	return occ_alloc(bytes, 1);
}

static void ref_free(struct occ_device *d, void *d_x)
{
	(void)d;
	occ_free(d_x);
}

static void ref_put(struct occ_device *d, void *d_dst, const void *src, size_t bytes)
{
	(void)d;
	if (bytes)
		memcpy(d_dst, src, bytes);
}

static void ref_zero(struct occ_device *d, void *d_dst, size_t bytes)
{
	(void)d;
	if (bytes)
		memset(d_dst, 0, bytes);
}

static void ref_sync(struct occ_device *d)
{
	(void)d;
}

static void ref_cast(struct occ_device *d, int64_t n, enum occ_type from, const void *d_x,
		     enum occ_type to, void *d_y)
{
	(void)d;
	for (int64_t i = 0; i < n; i++)
		ref_set(to, d_y, i, ref_get(from, d_x, i));
}

static void ref_add(struct occ_device *d, int64_t n, const void *d_x, void *d_y)
{
	for (int64_t i = 0; i < n; i++)
		ref_set(d->type, d_y, i, ref_get(d->type, d_y, i) + ref_get(d->type, d_x, i));
}

static const double gelu_a = 0.7978845608028654 /* sqrt(2/pi) */, gelu_b = 0.044715;

static void ref_gelu_forward(struct occ_device *d, int64_t n, const void *d_x, void *d_y)
{
	for (int64_t i = 0; i < n; i++) {
		double x = ref_get(d->type, d_x, i);
		double t = tanh(gelu_a * (x + gelu_b * x * x * x));
		ref_set(d->type, d_y, i, 0.5 * x * (1 + t));
	}
}

static void ref_gelu_backward(struct occ_device *d, int64_t n, const void *d_x, const void *d_dy,
			      void *d_dx)
{
	for (int64_t i = 0; i < n; i++) {
		double x = ref_get(d->type, d_x, i);
		double t = tanh(gelu_a * (x + gelu_b * x * x * x));
		double slope = gelu_a * (1 + 3 * gelu_b * x * x);
		double g = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope;
		ref_set(d->type, d_dx, i, ref_get(d->type, d_dy, i) * g);
	}
}

static void ref_gemm(struct occ_device *d, const struct occ_gemm *g, const void *d_a,
		     const void *d_b, const void *d_bias, void *d_c)
{
	enum occ_type t = g->f32 ? OCC_F32 : d->type;
	int64_t ai = g->ta ? 1 : g->lda, ak = g->ta ? g->lda : 1;
	int64_t bk = g->tb ? 1 : g->ldb, bj = g->tb ? g->ldb : 1;
	for (int64_t i = 0; i < g->m; i++)
		for (int64_t j = 0; j < g->n; j++) {
			double sum = 0;
			for (int64_t k = 0; k < g->k; k++)
				sum += ref_get(t, d_a, i * ai + k * ak) *
				       ref_get(t, d_b, k * bk + j * bj);
			if (g->bias)
				sum += ref_get(t, d_bias, j);
			if (g->beta != 0)
				sum += (double)g->beta * ref_get(g->c_type, d_c, i * g->ldc + j);
			ref_set(g->c_type, d_c, i * g->ldc + j, sum);
		}
}

static void ref_bias_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
			      float *d_db)
{
	for (int64_t c = 0; c < C; c++) {
		double sum = 0;
		for (int64_t r = 0; r < R; r++)
			sum += ref_get(d->type, d_dy, r * C + c);
		d_db[c] = (float)((double)d_db[c] + sum);
	}
}

static void ref_embed_forward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
			      const int32_t *d_tokens, const void *d_wte, void *d_out)
{
	for (int64_t r = 0; r < R; r++) {
		int64_t id = d_tokens[r] - v0;
		int here = id >= 0 && id < V;
		for (int64_t c = 0; c < C; c++)
			ref_set(d->type, d_out, r * C + c,
				here ? ref_get(d->type, d_wte, id * C + c) : 0);
	}
}

static void ref_embed_backward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
			       const int32_t *d_tokens, const void *d_dout, float *d_dwte)
{
	for (int64_t r = 0; r < R; r++) {
		int64_t id = d_tokens[r] - v0;
		for (int64_t c = 0; id >= 0 && id < V && c < C; c++)
			d_dwte[id * C + c] += (float)ref_get(d->type, d_dout, r * C + c);
	}
}

static void ref_position_forward(struct occ_device *d, int64_t R, int64_t C, int64_t T,
				 const void *d_wpe, const struct occ_drop *drop, void *d_x)
{
	for (int64_t r = 0; r < R; r++)
		for (int64_t c = 0; c < C; c++) {
			double v = ref_get(d->type, d_x, r * C + c) +
				   ref_get(d->type, d_wpe, r % T * C + c);
			ref_set(d->type, d_x, r * C + c, v * ref_mask(drop, r, c));
		}
}

static void ref_position_backward(struct occ_device *d, int64_t R, int64_t C, int64_t T,
				  const struct occ_drop *drop, void *d_dx, float *d_dwpe)
{
	for (int64_t r = 0; r < R; r++)
		for (int64_t c = 0; c < C; c++) {
			double v = ref_get(d->type, d_dx, r * C + c) * ref_mask(drop, r, c);
			ref_set(d->type, d_dx, r * C + c, v);
			d_dwpe[r % T * C + c] += (float)ref_get(d->type, d_dx, r * C + c);
		}
}

/* A weight's new value, from its gradient and moments. */
static double adamw(const struct occ_adamw *a, double decay, double g, float *m, float *v, double w)
{
	double b1 = (double)a->beta1, b2 = (double)a->beta2;
	double mi = b1 * (double)*m + (1 - b1) * g;
	double vi = b2 * (double)*v + (1 - b2) * g * g;
	double step = mi / (double)a->c1 / (sqrt(vi / (double)a->c2) + (double)a->eps);
	*m = (float)mi;
	*v = (float)vi;
	return w - (double)a->lr * (step + decay * w);
}

static void ref_adamw(struct occ_device *d, const struct occ_adamw *a, const struct occ_pieces *p,
		      const float *d_g, float *d_m, float *d_v, float *d_master, void *d_w)
{
	occ_check(d_master || d->type == OCC_F32, "bf16 weights need a master copy");
	float *master = d_master ? d_master : d_w;
	for (int k = 0; k < p->n; k++) {
		const struct occ_piece *at = &p->d_at[k];
		double decay = (double)a->decay * (double)at->decay;
		for (int64_t i = at->at; i < at->at + at->n; i++) {
			double g = (double)d_g[i] * (double)a->scale, w = (double)master[i];
			master[i] = (float)adamw(a, decay, g, &d_m[i], &d_v[i], w);
			ref_set(d->type, d_w, i, (double)master[i]);
		}
	}
}

static void ref_sum_squares(struct occ_device *d, int64_t n, const float *d_x, double *sum)
{
	(void)d;
	*sum = 0;
	for (int64_t i = 0; i < n; i++)
		*sum += (double)d_x[i] * (double)d_x[i];
}

static void ref_piece_squares(struct occ_device *d, const struct occ_pieces *p, const float *d_x,
			      double *sum)
{
	for (int k = 0; k < p->n; k++)
		ref_sum_squares(d, p->d_at[k].n, d_x + p->d_at[k].at, &sum[k]);
}

const struct occ_device_ops occ_device_ref = {
	.name = "ref",
	.host_visible = 1,
	.open = ref_open,
	.close = ref_close,
	.alloc = ref_alloc,
	.free = ref_free,
	.put = ref_put,
	.get = ref_put,
	.copy = ref_put,
	.zero = ref_zero,
	.sync = ref_sync,
	OCC_HOST_SLOTS,
	.cast = ref_cast,
	.add = ref_add,
	.gelu_forward = ref_gelu_forward,
	.gelu_backward = ref_gelu_backward,
	.gemm = ref_gemm,
	.gemm_gelu = occ_gemm_gelu,
	.gemm_gelu_backward = occ_gemm_gelu_backward,
	.bias_backward = ref_bias_backward,
	.residual_norm_forward = occ_ref_residual_norm_forward,
	.residual_norm_backward = occ_ref_residual_norm_backward,
	.attention_forward = occ_ref_attention_forward,
	.attention_backward = occ_ref_attention_backward,
	.embed_forward = ref_embed_forward,
	.embed_backward = ref_embed_backward,
	.position_forward = ref_position_forward,
	.position_backward = ref_position_backward,
	.xent_stats = occ_ref_xent_stats,
	.xent_rescale = occ_ref_xent_rescale,
	.xent_finish = occ_ref_xent_finish,
	.adamw = ref_adamw,
	.sum_squares = ref_sum_squares,
	.piece_squares = ref_piece_squares,
	.draw = occ_ref_draw,
	.scale = occ_ref_scale,
	.accumulate = occ_ref_accumulate,
	.fold = occ_ref_fold,
	.orthonormalise = occ_ref_orthonormalise,
	.select = occ_ref_select,
	.above = occ_ref_above,
	.pick = occ_ref_pick,
	.place = occ_ref_place,
	.quantise = occ_ref_quantise,
	.dequantise = occ_ref_dequantise,
	.half_pack = occ_ref_half_pack,
	.half_unpack = occ_ref_half_unpack,
	.bound_pack = occ_ref_bound_pack,
	.bound_unpack = occ_ref_bound_unpack,
};

/* Megatron's split: column-parallel into qkv and fc, row-parallel out of attention and mlp, so that
 * one sum over tp closes each half of the block, in either direction. Knows nothing of stages. */
#include "model/layer.h"

enum { EMBEDDING, ATTENTION, ATTENTION_OUT, MLP_OUT }; /* dropout sites of a layer */

static const struct occ_weight *row(const struct occ_ctx *c, int index)
{
	occ_check(index >= 0 && index < c->w->n, "weight %d of %d", index, c->w->n);
	return &c->w->at[index];
}

const void *occ_ctx_weight(const struct occ_ctx *c, int index)
{
	return (const char *)c->d_w + (size_t)row(c, index)->at * occ_type_size(c->dev->type);
}

float *occ_ctx_grad(const struct occ_ctx *c, int index)
{
	return c->d_grad + row(c, index)->at;
}

void occ_ctx_sum(const struct occ_ctx *c, void *d_x)
{
	occ_group_sum(c->tp, d_x, c->B * c->T * c->C, c->dev->type);
}

static struct occ_drop site(const struct occ_ctx *c, int64_t layer, int which)
{
	struct occ_drop d = c->drop;
	d.site = (uint32_t)(4 * layer + which);
	return d;
}

/* The product of x (R, in) and w^T, w (out, in) at table index `w`. */
static struct occ_gemm forward_product(const struct occ_ctx *c, int w, int bias)
{
	int64_t out = row(c, w)->lrows, in = row(c, w)->lcols;
	return (struct occ_gemm){
		.tb = 1,
		.m = c->B * c->T,
		.n = out,
		.k = in,
		.lda = in,
		.ldb = in,
		.ldc = out,
		.c_type = c->dev->type,
		.bias = bias,
	};
}

/* y (R, out) = x * w^T; `b` its bias's index or -1. */
static void linear_forward(const struct occ_ctx *c, int w, int b, const void *x, void *y)
{
	struct occ_gemm g = forward_product(c, w, b >= 0);
	c->dev->ops->gemm(c->dev, &g, x, occ_ctx_weight(c, w), b >= 0 ? occ_ctx_weight(c, b) : NULL,
			  y);
}

/* dw += dy^T * x */
static void weight_backward(const struct occ_ctx *c, int w, const void *x, const void *dy)
{
	int64_t out = row(c, w)->lrows, in = row(c, w)->lcols;
	struct occ_gemm g = {
		.ta = 1,
		.m = out,
		.n = in,
		.k = c->B * c->T,
		.lda = out,
		.ldb = in,
		.ldc = in,
		.c_type = OCC_F32,
		.beta = 1,
	};
	c->dev->ops->gemm(c->dev, &g, dy, x, NULL, occ_ctx_grad(c, w));
}

/* The product of dy (R, out) and w. */
static struct occ_gemm backward_product(const struct occ_ctx *c, int w)
{
	int64_t out = row(c, w)->lrows, in = row(c, w)->lcols;
	return (struct occ_gemm){
		.m = c->B * c->T,
		.n = in,
		.k = out,
		.lda = out,
		.ldb = in,
		.ldc = in,
		.c_type = c->dev->type,
	};
}

/* dw += dy^T * x; dx (R, in) = dy * w. */
static void linear_backward(const struct occ_ctx *c, int w, const void *x, const void *dy, void *dx)
{
	struct occ_gemm g = backward_product(c, w);
	weight_backward(c, w, x, dy);
	c->dev->ops->gemm(c->dev, &g, dy, occ_ctx_weight(c, w), NULL, dx);
}

static void bias_backward(const struct occ_ctx *c, int b, const void *dy)
{
	c->dev->ops->bias_backward(c->dev, c->B * c->T, row(c, b)->lcols, dy, occ_ctx_grad(c, b));
}

static struct occ_attention attention(const struct occ_ctx *c, int64_t layer)
{
	struct occ_attention a = {c->B, c->T, c->H, c->D, site(c, layer, ATTENTION)};
	a.drop.col0 = c->w->tp * c->H * c->T; /* columns are head * T + key over all heads */
	return a;
}

void occ_layer_inside(const struct occ_ctx *c, int64_t layer, int first, const void *x,
		      const struct occ_layer_acts *a, const struct occ_layer_scratch *s)
{
	const struct occ_device_ops *o = c->dev->ops;
	int64_t R = c->B * c->T, C = c->C;
	struct occ_attention att = attention(c, layer);
	struct occ_drop d = site(c, layer, ATTENTION_OUT);
	o->residual_norm_forward(
		c->dev, R, C, x, NULL, NULL, &d, occ_ctx_weight(c, first + OCC_LN1_W),
		occ_ctx_weight(c, first + OCC_LN1_B), NULL, a->y1, a->mean1, a->rstd1);
	linear_forward(c, first + OCC_QKV_W, first + OCC_QKV_B, a->y1, a->qkv);
	o->attention_forward(c->dev, &att, a->qkv, a->att, a->lse);
	linear_forward(c, first + OCC_PROJ_W, -1, a->att, s->delta);
	occ_ctx_sum(c, s->delta);
	o->residual_norm_forward(c->dev, R, C, x, s->delta, occ_ctx_weight(c, first + OCC_PROJ_B),
				 &d, occ_ctx_weight(c, first + OCC_LN2_W),
				 occ_ctx_weight(c, first + OCC_LN2_B), a->xb, a->y2, a->mean2,
				 a->rstd2);
	struct occ_gemm fc = forward_product(c, first + OCC_FC_W, 1);
	o->gemm_gelu(c->dev, &fc, a->y2, occ_ctx_weight(c, first + OCC_FC_W),
		     occ_ctx_weight(c, first + OCC_FC_B), a->h, a->g);
}

void occ_layer_forward(const struct occ_ctx *c, int64_t layer, int first, const void *x,
		       const struct occ_layer_acts *a, const struct occ_layer_scratch *s, void *out)
{
	struct occ_drop d = site(c, layer, MLP_OUT);
	occ_layer_inside(c, layer, first, x, a, s);
	linear_forward(c, first + OCC_FC2_W, -1, a->g, s->delta);
	occ_ctx_sum(c, s->delta);
	c->dev->ops->residual_norm_forward(c->dev, c->B * c->T, c->C, a->xb, s->delta,
					   occ_ctx_weight(c, first + OCC_FC2_B), &d, NULL, NULL,
					   out, NULL, NULL, NULL);
}

/* The masked gradient of a residual branch: dx itself where nothing is dropped. */
static void *masked(const struct occ_ctx *c, const struct occ_layer_scratch *s, void *dx)
{
	return c->drop.p > 0 ? s->delta : dx;
}

static void mlp_backward(const struct occ_ctx *c, int64_t layer, int first,
			 const struct occ_layer_acts *a, const struct occ_layer_scratch *s,
			 const void *dout, void *dx)
{
	const struct occ_device_ops *o = c->dev->ops;
	struct occ_drop d = site(c, layer, MLP_OUT);
	void *ddelta = masked(c, s, dx);
	o->residual_norm_backward(c->dev, c->B * c->T, c->C, NULL, dout, NULL, NULL, NULL, NULL, &d,
				  dx, ddelta, NULL, NULL, occ_ctx_grad(c, first + OCC_FC2_B));
	struct occ_gemm fc2 = backward_product(c, first + OCC_FC2_W);
	weight_backward(c, first + OCC_FC2_W, a->g, ddelta);
	o->gemm_gelu_backward(c->dev, &fc2, ddelta, occ_ctx_weight(c, first + OCC_FC2_W), a->h,
			      s->dh);
	bias_backward(c, first + OCC_FC_B, s->dh);
	linear_backward(c, first + OCC_FC_W, a->y2, s->dh, s->dy);
	occ_ctx_sum(c, s->dy);
}

static void attention_backward(const struct occ_ctx *c, int64_t layer, int first,
			       const struct occ_layer_acts *a, const struct occ_layer_scratch *s,
			       void *dx)
{
	const struct occ_device_ops *o = c->dev->ops;
	struct occ_attention att = attention(c, layer);
	struct occ_drop d = site(c, layer, ATTENTION_OUT);
	void *ddelta = masked(c, s, dx);
	o->residual_norm_backward(
		c->dev, c->B * c->T, c->C, s->dy, dx, a->xb, occ_ctx_weight(c, first + OCC_LN2_W),
		a->mean2, a->rstd2, &d, dx, ddelta, occ_ctx_grad(c, first + OCC_LN2_W),
		occ_ctx_grad(c, first + OCC_LN2_B), occ_ctx_grad(c, first + OCC_PROJ_B));
	linear_backward(c, first + OCC_PROJ_W, a->att, ddelta, s->datt);
	o->attention_backward(c->dev, &att, a->qkv, a->att, a->lse, s->datt, s->dqkv);
	bias_backward(c, first + OCC_QKV_B, s->dqkv);
	linear_backward(c, first + OCC_QKV_W, a->y1, s->dqkv, s->dy);
	occ_ctx_sum(c, s->dy);
}

void occ_layer_backward(const struct occ_ctx *c, int64_t layer, int first, const void *x,
			const struct occ_layer_acts *a, const struct occ_layer_scratch *s,
			const void *dout, void *dx)
{
	mlp_backward(c, layer, first, a, s, dout, dx);
	attention_backward(c, layer, first, a, s, dx);
	c->dev->ops->residual_norm_backward(
		c->dev, c->B * c->T, c->C, s->dy, dx, x, occ_ctx_weight(c, first + OCC_LN1_W),
		a->mean1, a->rstd1, &c->drop, dx, NULL, occ_ctx_grad(c, first + OCC_LN1_W),
		occ_ctx_grad(c, first + OCC_LN1_B), NULL);
}

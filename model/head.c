/* Forward and backward of the head run together, chunk by chunk: the backward of the last stage
 * follows its forward at once in 1F1B, and logits kept for later would be the largest array of all.
 */
#include "model/head.h"

int64_t occ_head_rows(const struct occ_device *d, int64_t rows, int64_t V)
{
	int64_t most = d->ops && d->ops->wide ? d->ops->wide : 64 << 20;
	int64_t fit = most / (V * (int64_t)occ_type_size(d->type));
	return fit < 1 ? 1 : fit < rows ? fit : rows;
}

static const void *row_at(const struct occ_ctx *c, const void *x, int64_t r)
{
	return (const char *)x + (size_t)(r * c->C) * occ_type_size(c->dev->type);
}

/* logits (n, V) of type t = y (n, C) * w^T */
static void logits(const struct occ_ctx *c, const struct occ_head *h, const void *y, int64_t n,
		   enum occ_type t)
{
	struct occ_gemm g = {
		.tb = 1,
		.m = n,
		.n = h->V,
		.k = c->C,
		.lda = c->C,
		.ldb = c->C,
		.ldc = h->V,
		.c_type = t,
	};
	c->dev->ops->gemm(c->dev, &g, y, occ_ctx_weight(c, h->w), NULL, h->logits);
}

static void products_backward(const struct occ_ctx *c, const struct occ_head *h, const void *y,
			      int64_t n, void *dy)
{
	struct occ_gemm gw = {
		.ta = 1,
		.m = h->V,
		.n = c->C,
		.k = n,
		.lda = h->V,
		.ldb = c->C,
		.ldc = c->C,
		.c_type = OCC_F32,
		.beta = 1,
	};
	struct occ_gemm gy = {
		.m = n,
		.n = c->C,
		.k = h->V,
		.lda = h->V,
		.ldb = c->C,
		.ldc = c->C,
		.c_type = c->dev->type,
	};
	c->dev->ops->gemm(c->dev, &gw, h->logits, y, NULL, occ_ctx_grad(c, h->w));
	c->dev->ops->gemm(c->dev, &gy, h->logits, occ_ctx_weight(c, h->w), NULL, dy);
}

static void chunk(const struct occ_ctx *c, const struct occ_head *h, const void *y,
		  const int32_t *targets, int64_t n, float scale, void *dy, float *loss)
{
	const struct occ_device_ops *o = c->dev->ops;
	struct occ_xent x = {n, h->V, h->V, c->w->tp * h->V, h->valid};
	float *max = h->stats, *top = max + n, *sum = top + n, *hit = sum + n;
	logits(c, h, y, n, c->dev->type);
	o->xent_stats(c->dev, &x, h->logits, targets, max, sum, hit);
	o->copy(c->dev, top, max, (size_t)n * sizeof(*top));
	occ_group_max(c->tp, top, n);
	o->xent_rescale(c->dev, n, max, top, sum);
	occ_group_sum(c->tp, sum, 2 * n, OCC_F32);
	o->xent_finish(c->dev, &x, h->logits, targets, top, sum, hit, scale, loss,
		       dy ? h->logits : NULL);
	if (dy)
		products_backward(c, h, y, n, dy);
}

void occ_head_run(const struct occ_ctx *c, const struct occ_head *h, const void *y,
		  const int32_t *d_targets, float scale, void *dy, float *d_loss)
{
	int64_t R = c->B * c->T;
	for (int64_t r = 0; r < R; r += h->rows) {
		int64_t n = R - r < h->rows ? R - r : h->rows;
		void *dy_at = dy ? (void *)(uintptr_t)row_at(c, dy, r) : NULL;
		chunk(c, h, row_at(c, y, r), d_targets + r, n, scale, dy_at, d_loss + r);
	}
	if (dy)
		occ_ctx_sum(c, dy);
}

void occ_head_row(const struct occ_ctx *c, const struct occ_head *h, const void *y, int64_t r)
{
	logits(c, h, row_at(c, y, r), 1, OCC_F32);
}

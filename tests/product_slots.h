/* Runs of the slots that are products of matrices, for the test of devices. */
#ifndef OCC_TESTS_PRODUCT_SLOTS_H
#define OCC_TESTS_PRODUCT_SLOTS_H

#include <stdlib.h>

#include "tests/slot_run.h"

#define OPS r->d->ops
#define T_ r->d->type

static void run_gemm(struct run *r)
{
	int64_t most = r->big ? 150 : 40, gap = pick(r, 0, 1) ? pick(r, 0, 20) : 0;
	struct occ_gemm g = {.ta = (int)pick(r, 0, 1), .tb = (int)pick(r, 0, 1)};
	g.m = pick(r, 1, most);
	g.n = pick(r, 1, most);
	g.k = pick(r, 1, most);
	g.lda = (g.ta ? g.m : g.k) + gap;
	g.ldb = (g.tb ? g.k : g.n) + gap;
	g.ldc = g.n + gap;
	g.c_type = T_ == OCC_BF16 && pick(r, 0, 1) ? OCC_BF16 : OCC_F32;
	g.beta = (float)pick(r, 0, 1);
	g.bias = g.beta == 0 && pick(r, 0, 1);
	void *a = in(r, (g.ta ? g.k : g.m) * g.lda), *b = in(r, (g.tb ? g.n : g.k) * g.ldb);
	void *bias = g.bias ? in(r, g.n) : NULL;
	void *c = g.beta != 0 || gap ? inout(r, g.m * g.ldc, g.c_type)
				     : out(r, g.m * g.ldc, g.c_type);
	OPS->gemm(r->d, &g, a, b, bias, c);
}

/* Dense, rows of multiples of 8 as often as not; with GELU on the way out, where there is such. */
static struct occ_gemm gelu_product(struct run *r)
{
	int64_t most = r->big ? 150 : 40;
	struct occ_gemm g = {.tb = (int)pick(r, 0, 1), .c_type = T_};
	setenv("OCC_GELU", pick(r, 0, 1) ? "fused" : "apart", 1);
	g.m = pick(r, 1, most);
	g.n = pick(r, 1, most);
	g.n = pick(r, 0, 1) ? g.n : (g.n + 7) / 8 * 8;
	g.k = g.lda = pick(r, 1, most);
	g.ldb = g.tb ? g.k : g.n;
	g.ldc = g.n;
	return g;
}

static void run_gemm_gelu(struct run *r)
{
	struct occ_gemm g = gelu_product(r);
	g.bias = (int)pick(r, 0, 1);
	void *a = in(r, g.m * g.k), *b = in(r, g.n * g.k), *bias = g.bias ? in(r, g.n) : NULL;
	void *h = out(r, g.m * g.n, T_);
	OPS->gemm_gelu(r->d, &g, a, b, bias, h, out(r, g.m * g.n, T_));
}

static void run_gemm_gelu_backward(struct run *r)
{
	struct occ_gemm g = gelu_product(r);
	void *a = in(r, g.m * g.k), *b = in(r, g.n * g.k), *h = in(r, g.m * g.n);
	OPS->gemm_gelu_backward(r->d, &g, a, b, h, out(r, g.m * g.n, T_));
}

/* The same product each time, with OCC_GELU as it stands here. */
static const char *gelu_way = "apart";

static void run_gelu_way(struct run *r)
{
	struct occ_gemm g = {.m = 24, .n = 32, .k = 16, .lda = 16, .ldb = 32, .ldc = 32};
	setenv("OCC_GELU", gelu_way, 1);
	g.c_type = T_;
	void *a = in(r, 24 * 16), *b = in(r, 16 * 32), *bias = in(r, 32), *h = out(r, 24 * 32, T_);
	g.bias = 1;
	OPS->gemm_gelu(r->d, &g, a, b, bias, h, out(r, 24 * 32, T_));
	g.bias = 0;
	OPS->gemm_gelu_backward(r->d, &g, a, b, h, out(r, 24 * 32, T_));
}

#endif

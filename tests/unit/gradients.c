/* Each backward slot against central differences of its forward, on the ref device in fp32: the
 * loss is a weighted sum of the outputs, made in double. Every element of every input is moved. */
#include "base/device.h"

#include <string.h>

#include "base/mem.h"
#include "tests/check.h"

enum { MAX_INPUTS = 6 };

/* One layer with its inputs, the gradient that backward gives, and what both need. */
struct problem {
	struct occ_device *d;
	uint64_t key, drawn;
	int n;
	int64_t len[MAX_INPUTS];
	float *x[MAX_INPUTS], *dx[MAX_INPUTS];
	int64_t R, C, T, V; /* shapes */
	struct occ_drop drop;
	struct occ_attention a;
	float *y[4]; /* outputs, freed with the problem */
	float *g[2]; /* weights of the outputs in the loss */
	int32_t *ids;
};

static int64_t pick(struct problem *p, int64_t lo, int64_t hi)
{
	return lo + (int64_t)(occ_rng_u64(p->key, p->drawn++) % (uint64_t)(hi - lo + 1));
}

/* Normal numbers on a grid of 2^-12, so that steps of 2^-5 are exact. */
static float *draw(struct problem *p, int64_t n)
{
	float *x = occ_alloc((size_t)n, sizeof(*x));
	for (int64_t i = 0; i < n; i++) {
		float v = occ_rng_normal(p->key, (uint32_t)p->drawn, (uint64_t)i);
		x[i] = roundf(v * 4096) / 4096;
	}
	p->drawn++;
	return x;
}

static float *room(int64_t n)
{
	return occ_alloc((size_t)n, sizeof(float));
}

static float *input(struct problem *p, int64_t n)
{
	p->len[p->n] = n;
	p->x[p->n] = draw(p, n);
	p->dx[p->n] = room(n);
	return p->x[p->n++];
}

static void draw_drop(struct problem *p)
{
	p->drop = (struct occ_drop){.p = pick(p, 0, 1) ? 0.3f : 0, .key = p->key, .site = 6};
}

static double dot(int64_t n, const float *a, const float *b)
{
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += (double)a[i] * (double)b[i];
	return sum;
}

#define OPS p->d->ops

/* ---- gelu ---- */

static void gelu_setup(struct problem *p)
{
	p->C = pick(p, 1, 30);
	input(p, p->C);
	p->y[0] = room(p->C);
	p->g[0] = draw(p, p->C);
}

static double gelu_loss(struct problem *p)
{
	OPS->gelu_forward(p->d, p->C, p->x[0], p->y[0]);
	return dot(p->C, p->y[0], p->g[0]);
}

static void gelu_back(struct problem *p)
{
	OPS->gelu_backward(p->d, p->C, p->x[0], p->g[0], p->dx[0]);
}

/* ---- linear: y (R,V) = x (R,C) w^T (V,C) + bias, by the three products that a layer makes ---- */

static void linear_setup(struct problem *p)
{
	p->R = pick(p, 1, 6);
	p->C = pick(p, 1, 6);
	p->V = pick(p, 1, 6);
	input(p, p->R * p->C);
	input(p, p->V * p->C);
	input(p, p->V);
	p->y[0] = room(p->R * p->V);
	p->g[0] = draw(p, p->R * p->V);
}

static double linear_loss(struct problem *p)
{
	struct occ_gemm g = {0, 1, p->R, p->V, p->C, p->C, p->C, p->V, OCC_F32, 0, 1, 0};
	OPS->gemm(p->d, &g, p->x[0], p->x[1], p->x[2], p->y[0]);
	return dot(p->R * p->V, p->y[0], p->g[0]);
}

static void linear_back(struct problem *p)
{
	struct occ_gemm dx = {0, 0, p->R, p->C, p->V, p->V, p->C, p->C, OCC_F32, 0, 0, 0};
	struct occ_gemm dw = {1, 0, p->V, p->C, p->R, p->V, p->C, p->C, OCC_F32, 1, 0, 0};
	OPS->gemm(p->d, &dx, p->g[0], p->x[1], NULL, p->dx[0]);
	OPS->gemm(p->d, &dw, p->g[0], p->x[0], NULL, p->dx[1]);
	OPS->bias_backward(p->d, p->R, p->V, p->g[0], p->dx[2]);
}

/* ---- residual + norm: inputs x, delta, bias, w, b ---- */

static void norm_setup(struct problem *p)
{
	p->R = pick(p, 1, 4);
	p->C = pick(p, 3, 9);
	draw_drop(p);
	input(p, p->R * p->C);
	input(p, p->R * p->C);
	for (int i = 0; i < 3; i++)
		input(p, p->C);
	p->y[0] = room(p->R * p->C);
	p->y[1] = room(p->R * p->C);
	p->y[2] = room(p->R);
	p->y[3] = room(p->R);
	p->g[0] = draw(p, p->R * p->C);
	p->g[1] = draw(p, p->R * p->C);
}

static double norm_loss(struct problem *p)
{
	OPS->residual_norm_forward(p->d, p->R, p->C, p->x[0], p->x[1], p->x[2], &p->drop, p->x[3],
				   p->x[4], p->y[0], p->y[1], p->y[2], p->y[3]);
	return dot(p->R * p->C, p->y[0], p->g[0]) + dot(p->R * p->C, p->y[1], p->g[1]);
}

static void norm_back(struct problem *p)
{
	OPS->residual_norm_backward(p->d, p->R, p->C, p->g[1], p->g[0], p->y[0], p->x[3], p->y[2],
				    p->y[3], &p->drop, p->dx[0], p->dx[1], p->dx[3], p->dx[4],
				    p->dx[2]);
}

/* ---- norm alone ---- */

static void plain_norm_setup(struct problem *p)
{
	p->R = pick(p, 1, 4);
	p->C = pick(p, 3, 9);
	input(p, p->R * p->C);
	input(p, p->C);
	input(p, p->C);
	p->y[0] = room(p->R * p->C);
	p->y[1] = room(p->R);
	p->y[2] = room(p->R);
	p->g[0] = draw(p, p->R * p->C);
}

static double plain_norm_loss(struct problem *p)
{
	OPS->residual_norm_forward(p->d, p->R, p->C, p->x[0], NULL, NULL, NULL, p->x[1], p->x[2],
				   NULL, p->y[0], p->y[1], p->y[2]);
	return dot(p->R * p->C, p->y[0], p->g[0]);
}

static void plain_norm_back(struct problem *p)
{
	OPS->residual_norm_backward(p->d, p->R, p->C, p->g[0], NULL, p->x[0], p->x[1], p->y[1],
				    p->y[2], NULL, p->dx[0], NULL, p->dx[1], p->dx[2], NULL);
}

/* ---- residual alone: inputs x, delta, bias ---- */

static void residual_setup(struct problem *p)
{
	p->R = pick(p, 1, 4);
	p->C = pick(p, 1, 9);
	draw_drop(p);
	input(p, p->R * p->C);
	input(p, p->R * p->C);
	input(p, p->C);
	p->y[0] = room(p->R * p->C);
	p->g[0] = draw(p, p->R * p->C);
}

static double residual_loss(struct problem *p)
{
	OPS->residual_norm_forward(p->d, p->R, p->C, p->x[0], p->x[1], p->x[2], &p->drop, NULL,
				   NULL, p->y[0], NULL, NULL, NULL);
	return dot(p->R * p->C, p->y[0], p->g[0]);
}

static void residual_back(struct problem *p)
{
	OPS->residual_norm_backward(p->d, p->R, p->C, NULL, p->g[0], NULL, NULL, NULL, NULL,
				    &p->drop, p->dx[0], p->dx[1], NULL, NULL, p->dx[2]);
}

/* ---- attention ---- */

static void attention_setup(struct problem *p)
{
	draw_drop(p);
	p->a = (struct occ_attention){.B = pick(p, 1, 2), .H = pick(p, 1, 2), .drop = p->drop};
	p->a.T = pick(p, 1, 6);
	p->a.D = pick(p, 1, 5);
	p->R = p->a.B * p->a.T * p->a.H * p->a.D;
	input(p, 3 * p->R);
	p->y[0] = room(p->R);
	p->y[1] = room(p->a.B * p->a.H * p->a.T);
	p->g[0] = draw(p, p->R);
}

static double attention_loss(struct problem *p)
{
	OPS->attention_forward(p->d, &p->a, p->x[0], p->y[0], p->y[1]);
	return dot(p->R, p->y[0], p->g[0]);
}

static void attention_back(struct problem *p)
{
	OPS->attention_backward(p->d, &p->a, p->x[0], p->y[0], p->y[1], p->g[0], p->dx[0]);
}

/* ---- embeddings: inputs wte (two shards of the vocabulary, one after the other), wpe ---- */

static void embed_setup(struct problem *p)
{
	p->R = pick(p, 1, 8);
	p->C = pick(p, 1, 5);
	p->V = 2 * pick(p, 1, 4);
	p->T = pick(p, 1, p->R);
	draw_drop(p);
	input(p, p->V * p->C);
	input(p, p->T * p->C);
	p->y[0] = room(p->R * p->C);
	p->y[1] = room(p->R * p->C);
	p->g[0] = draw(p, p->R * p->C);
	p->ids = occ_alloc((size_t)p->R, sizeof(*p->ids));
	for (int64_t r = 0; r < p->R; r++)
		p->ids[r] = (int32_t)pick(p, 0, p->V - 1);
}

static double embed_loss(struct problem *p)
{
	int64_t half = p->V / 2;
	OPS->embed_forward(p->d, p->R, p->C, 0, half, p->ids, p->x[0], p->y[0]);
	OPS->embed_forward(p->d, p->R, p->C, half, half, p->ids, p->x[0] + half * p->C, p->y[1]);
	OPS->add(p->d, p->R * p->C, p->y[1], p->y[0]);
	OPS->position_forward(p->d, p->R, p->C, p->T, p->x[1], &p->drop, p->y[0]);
	return dot(p->R * p->C, p->y[0], p->g[0]);
}

static void embed_back(struct problem *p)
{
	int64_t half = p->V / 2;
	float *d = p->y[1];
	OPS->copy(p->d, d, p->g[0], (size_t)(p->R * p->C) * sizeof(*d));
	OPS->position_backward(p->d, p->R, p->C, p->T, &p->drop, d, p->dx[1]);
	OPS->embed_backward(p->d, p->R, p->C, 0, half, p->ids, d, p->dx[0]);
	OPS->embed_backward(p->d, p->R, p->C, half, half, p->ids, d, p->dx[0] + half * p->C);
}

/* ---- cross-entropy over two shards, the second with padding; loss = 0.37 * sum over rows ---- */

static void xent_setup(struct problem *p)
{
	p->R = pick(p, 1, 4);
	p->V = 2 * pick(p, 1, 6);
	input(p, p->R * p->V);
	p->y[0] = room(3 * p->R); /* maxima of the shards, and of both */
	p->y[1] = room(4 * p->R); /* sum and hit of each */
	p->y[2] = room(p->R);
	p->ids = occ_alloc((size_t)p->R, sizeof(*p->ids));
	for (int64_t r = 0; r < p->R; r++)
		p->ids[r] = (int32_t)pick(p, -1, p->V - 2);
}

static struct occ_xent shard(const struct problem *p, int k)
{
	int64_t half = p->V / 2;
	return (struct occ_xent){p->R, half, p->V, k * half, p->V - 1};
}

/* Sums of both shards to the first's place, as a tensor group would. */
static double xent_loss(struct problem *p)
{
	int64_t R = p->R, half = p->V / 2;
	float *max = p->y[0], *top = max + 2 * R, *sums = p->y[1];
	double loss = 0;
	for (int k = 0; k < 2; k++) {
		struct occ_xent x = shard(p, k);
		OPS->xent_stats(p->d, &x, p->x[0] + k * half, p->ids, max + k * R, sums + 2 * R * k,
				sums + 2 * R * k + R);
	}
	for (int64_t r = 0; r < R; r++)
		top[r] = fmaxf(max[r], max[R + r]);
	for (int k = 0; k < 2; k++)
		OPS->xent_rescale(p->d, R, max + k * R, top, sums + 2 * R * k);
	for (int64_t i = 0; i < 2 * R; i++)
		sums[i] += sums[2 * R + i];
	struct occ_xent x = shard(p, 0);
	OPS->xent_finish(p->d, &x, p->x[0], p->ids, top, sums, sums + R, 1, p->y[2], NULL);
	for (int64_t r = 0; r < R; r++)
		loss += 0.37 * (double)p->y[2][r];
	return loss;
}

static void xent_back(struct problem *p)
{
	int64_t half = p->V / 2;
	for (int k = 0; k < 2; k++) {
		struct occ_xent x = shard(p, k);
		OPS->xent_finish(p->d, &x, p->x[0] + k * half, p->ids, p->y[0] + 2 * p->R, p->y[1],
				 p->y[1] + p->R, 0.37f, p->y[2], p->dx[0] + k * half);
	}
}

/* ---- */

static const struct layer {
	const char *name;
	void (*setup)(struct problem *p);
	double (*loss)(struct problem *p);
	void (*back)(struct problem *p); /* after a loss: uses its outputs */
} layers[] = {
	{"gelu", gelu_setup, gelu_loss, gelu_back},
	{"linear", linear_setup, linear_loss, linear_back},
	{"residual and norm", norm_setup, norm_loss, norm_back},
	{"norm", plain_norm_setup, plain_norm_loss, plain_norm_back},
	{"residual", residual_setup, residual_loss, residual_back},
	{"attention", attention_setup, attention_loss, attention_back},
	{"embedding", embed_setup, embed_loss, embed_back},
	{"cross-entropy", xent_setup, xent_loss, xent_back},
};

/* Slope at *x by the five-point rule: error h^4 f''''' / 30, and 1e-7 / h from fp32 outputs. */
static double slope(const struct layer *l, struct problem *p, float *x)
{
	static const double weight[] = {1, -8, 0, 8, -1};
	const float h = 0x1p-5f, at = *x;
	double sum = 0;
	for (int k = -2; k <= 2; k++) {
		*x = at + (float)k * h;
		if (k)
			sum += weight[k + 2] * l->loss(p);
	}
	*x = at;
	return sum / (12 * (double)h);
}

static void check_layer(const struct layer *l, struct occ_device *d, int round)
{
	struct problem p = {.d = d, .key = occ_rng_u64((uint64_t)(l - layers), (uint64_t)round)};
	l->setup(&p);
	l->loss(&p);
	l->back(&p);
	for (int k = 0; k < p.n; k++)
		for (int64_t i = 0; i < p.len[k]; i++) {
			double want = slope(l, &p, &p.x[k][i]), got = (double)p.dx[k][i];
			CHECK(fabs(got - want) <= 1e-4 * (1 + fabs(want)),
			      "%s, round %d, input %d[%lld]: %g, not %g", l->name, round, k,
			      (long long)i, got, want);
		}
	for (int k = 0; k < p.n; k++) {
		occ_free(p.x[k]);
		occ_free(p.dx[k]);
	}
	for (int k = 0; k < 4; k++)
		occ_free(p.y[k]);
	occ_free(p.g[0]);
	occ_free(p.g[1]);
	occ_free(p.ids);
}

int main(void)
{
	struct occ_err e = {0};
	struct occ_device *d = occ_device_open("ref", OCC_F32, 1, &e);
	CHECK(d, "%s", e.text);
	for (size_t i = 0; i < sizeof(layers) / sizeof(layers[0]); i++)
		for (int round = 0; round < 12; round++)
			check_layer(&layers[i], d, round);
	occ_device_close(d);
	CHECK(occ_mem_live() == 0, "%lld bytes left", (long long)occ_mem_live());
	return check_done();
}

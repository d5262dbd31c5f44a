/* Every slot of cpu and strict against ref: random shapes with odd edges, both compute types, 1 to
 * 3 threads. cpu agrees within the slot's bound (of the largest value of the output; bf16 in units
 * of its last place) and gives the same bits for every thread count; strict gives ref's bits. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/check.h"
#include "base/device.h"

enum { MAX_ARRAYS = 12 };

/* One array of a call: what it holds before, and whether the call writes it. */
struct array {
	size_t n;
	int is_float; /* fp32 whatever the compute type */
	int out;
	float *values; /* [n] initial values */
	void *d_x;
};

/* A call of one slot: its arrays, and ids or sizes that the slot's runner knows. */
struct call {
	struct array a[MAX_ARRAYS];
	int narrays;
	int64_t R, C, T, B, H, D, V, v0, valid;
	int32_t *ids, *d_ids;
	struct occ_drop drop;
	int variant;
	double sum;
};

static uint64_t seed = 1;

static uint64_t draw(void)
{
	return occ_rng_u64(7, seed++);
}

static int64_t pick(int64_t lo, int64_t hi)
{
	return lo + (int64_t)(draw() % (uint64_t)(hi - lo + 1));
}

/* Adds an array of n normal values around `mean`. */
static void add(struct call *c, int64_t n, int is_float, int out, float mean)
{
	struct array *a = &c->a[c->narrays++];
	*a = (struct array){(size_t)n, is_float, out, occ_alloc((size_t)n, sizeof(float)), NULL};
	for (int64_t i = 0; i < n; i++)
		a->values[i] = mean + occ_rng_normal(11, 0, seed++);
}

static void add_ids(struct call *c, int64_t n, int64_t lo, int64_t hi)
{
	c->ids = occ_alloc((size_t)n, sizeof(int32_t));
	for (int64_t i = 0; i < n; i++)
		c->ids[i] = (int32_t)pick(lo, hi);
}

/* ---- slots: make the arrays, run them ---- */

#define X(i) (c->a[i].d_x)

static void make_pair(struct call *c)
{
	c->R = pick(1, 9000);
	add(c, c->R, 0, 0, 0);
	add(c, c->R, 0, 1, 0);
}

static void make_three(struct call *c)
{
	make_pair(c);
	add(c, c->R, 0, 1, 0);
}

static void run_add(struct occ_device *d, struct call *c)
{
	d->ops->add(d, c->R, X(0), X(1));
}

static void run_gelu(struct occ_device *d, struct call *c)
{
	d->ops->gelu_forward(d, c->R, X(0), X(1));
}

static void run_gelu_back(struct occ_device *d, struct call *c)
{
	d->ops->gelu_backward(d, c->R, X(0), X(1), c->variant ? X(1) : X(2));
}

static void make_cast(struct call *c)
{
	c->R = pick(1, 9000);
	add(c, c->R, 0, 0, 0);
	add(c, c->R, 1, 1, 0);
	add(c, c->R, 0, 1, 0);
}

static void run_cast(struct occ_device *d, struct call *c)
{
	d->ops->cast(d, c->R, d->type, X(0), OCC_F32, X(1));
	d->ops->cast(d, c->R, OCC_F32, X(1), d->type, X(2));
}

static void make_gemm(struct call *c)
{
	c->R = pick(1, 70);
	c->C = pick(1, 70);
	c->D = pick(1, 90);
	add(c, c->R * c->D, 0, 0, 0);
	add(c, c->D * c->C, 0, 0, 0);
	add(c, c->C, 0, 0, 0);
	add(c, c->R * (c->C + 3), c->variant & 1, 1, 0);
}

static void run_gemm(struct occ_device *d, struct call *c)
{
	struct occ_gemm g = {
		.ta = c->variant >> 1 & 1,
		.tb = c->variant >> 2 & 1,
		.m = c->R,
		.n = c->C,
		.k = c->D,
		.ldc = c->C + 3,
		.c_type = c->variant & 1 ? OCC_F32 : d->type,
		.beta = c->variant & 1 && c->variant & 8 ? 1 : 0,
	};
	g.bias = g.beta == 0 && c->variant & 16;
	g.lda = g.ta ? g.m : g.k;
	g.ldb = g.tb ? g.k : g.n;
	d->ops->gemm(d, &g, X(0), X(1), g.bias ? X(2) : NULL, X(3));
}

static void make_rows(struct call *c)
{
	c->R = pick(1, 150);
	c->C = pick(1, 150);
	add(c, c->R * c->C, 0, 0, 0);
	add(c, c->C, 1, 1, 0);
}

static void run_bias(struct occ_device *d, struct call *c)
{
	d->ops->bias_backward(d, c->R, c->C, X(0), X(1));
}

static struct occ_drop a_drop(float p)
{
	return (struct occ_drop){p, 99, 3, 5, pick(0, 1 << 20), 0};
}

static void make_norm(struct call *c)
{
	c->R = pick(1, 100);
	c->C = pick(2, 150);
	c->drop = a_drop(c->variant & 1 ? 0.3f : 0.0f);
	int64_t n = c->R * c->C;
	add(c, n, 0, 0, 3);    /* x: a mean far from 0 */
	add(c, n, 0, 0, 0);    /* delta */
	add(c, c->C, 0, 0, 0); /* bias */
	add(c, c->C, 0, 0, 1); /* w */
	add(c, c->C, 0, 0, 0); /* b */
	add(c, n, 0, 1, 0);    /* xo */
	add(c, n, 0, 1, 0);    /* y */
	add(c, c->R, 1, 1, 0);
	add(c, c->R, 1, 1, 0);
}

static void run_norm(struct occ_device *d, struct call *c)
{
	int residual = c->variant & 2, norm = c->variant & 4 || !residual;
	d->ops->residual_norm_forward(d, c->R, c->C, X(0), residual ? X(1) : NULL,
				      residual ? X(2) : NULL, &c->drop, norm ? X(3) : NULL,
				      norm ? X(4) : NULL, residual ? X(5) : NULL, X(6), X(7), X(8));
}

static void make_norm_back(struct call *c)
{
	c->R = pick(1, 100);
	c->C = pick(2, 150);
	c->drop = a_drop(c->variant & 1 ? 0.3f : 0.0f);
	int64_t n = c->R * c->C;
	add(c, n, 0, 0, 0);    /* dy */
	add(c, n, 0, 1, 0);    /* dres, and dx where they are one */
	add(c, n, 0, 0, 0);    /* x */
	add(c, c->C, 0, 0, 1); /* w */
	add(c, c->R, 1, 0, 0); /* mean */
	add(c, c->R, 1, 0, 1); /* rstd */
	add(c, n, 0, 1, 0);    /* dx */
	add(c, n, 0, 1, 0);    /* ddelta */
	add(c, c->C, 1, 1, 0);
	add(c, c->C, 1, 1, 0);
	add(c, c->C, 1, 1, 0);
}

static void run_norm_back(struct occ_device *d, struct call *c)
{
	int norm = !(c->variant & 2), in_place = c->variant & 4, branch = c->variant & 8;
	void *dx = in_place ? X(1) : X(6), *ddelta = c->drop.p > 0 ? X(7) : dx;
	int no_residual = !in_place && c->variant & 16 && norm;
	d->ops->residual_norm_backward(d, c->R, c->C, X(0), no_residual ? NULL : X(1), X(2),
				       norm ? X(3) : NULL, X(4), X(5), &c->drop, dx,
				       branch ? ddelta : NULL, X(8), X(9), X(10));
}

static void make_attention(struct call *c)
{
	static const int64_t sizes[] = {1, 3, 8, 16, 33, 64, 80};
	c->B = pick(1, 2);
	c->T = pick(1, 150);
	c->H = pick(1, 3);
	c->D = sizes[pick(0, 6)];
	c->drop = a_drop(c->variant & 1 ? 0.2f : 0.0f);
	c->drop.col0 = 2 * c->T;
	int64_t R = c->B * c->T, W = c->H * c->D;
	add(c, R * 3 * W, 0, 0, 0);
	add(c, R * W, 0, 1, 0);
	add(c, c->B * c->H * c->T, 1, 1, 0);
	add(c, R * W, 0, 0, 0);
	add(c, R * 3 * W, 0, 1, 0);
}

static void run_attention(struct occ_device *d, struct call *c)
{
	struct occ_attention a = {c->B, c->T, c->H, c->D, c->drop};
	d->ops->attention_forward(d, &a, X(0), X(1), X(2));
	d->ops->attention_backward(d, &a, X(0), X(1), X(2), X(3), X(4));
}

static void make_embed(struct call *c)
{
	c->R = pick(1, 120);
	c->C = pick(1, 150);
	c->V = pick(1, 40);
	c->v0 = pick(0, 40);
	add(c, c->V * c->C, 0, 0, 0);
	add(c, c->R * c->C, 0, 1, 0);
	add(c, c->R * c->C, 0, 0, 0);
	add(c, c->V * c->C, 1, 1, 0);
	add_ids(c, c->R, 0, 80);
}

static void run_embed(struct occ_device *d, struct call *c)
{
	d->ops->embed_forward(d, c->R, c->C, c->v0, c->V, c->d_ids, X(0), X(1));
	d->ops->embed_backward(d, c->R, c->C, c->v0, c->V, c->d_ids, X(2), X(3));
}

static void make_position(struct call *c)
{
	c->T = pick(1, 40);
	c->R = c->T * pick(1, 3);
	c->C = pick(1, 150);
	c->drop = a_drop(c->variant & 1 ? 0.4f : 0.0f);
	add(c, c->T * c->C, 0, 0, 0);
	add(c, c->R * c->C, 0, 1, 0);
	add(c, c->R * c->C, 0, 1, 0);
	add(c, c->T * c->C, 1, 1, 0);
}

static void run_position(struct occ_device *d, struct call *c)
{
	d->ops->position_forward(d, c->R, c->C, c->T, X(0), &c->drop, X(1));
	d->ops->position_backward(d, c->R, c->C, c->T, &c->drop, X(2), X(3));
}

static void make_xent(struct call *c)
{
	c->R = pick(1, 60);
	c->V = pick(1, 130);
	c->v0 = pick(0, 1) * c->V;
	c->valid =
		pick(c->v0 / 2 + 1, c->v0 + c->V + 5); /* sometimes all of the shard is padding */
	add(c, c->R * c->V, 1, 1, 0);
	add(c, c->R, 1, 1, 0);
	add(c, c->R, 1, 1, 0);
	add(c, c->R, 1, 1, 0);
	add(c, c->R, 1, 1, 0);
	add(c, c->R * c->V, 0, 1, 0);
	add_ids(c, c->R, -1, c->valid - 1);
}

static void run_xent(struct occ_device *d, struct call *c)
{
	struct occ_xent x = {c->R, c->V, c->V, c->v0, c->valid};
	int in_place = d->type == OCC_F32 && c->variant & 1;
	float host[64];
	d->ops->xent_max(d, &x, X(0), X(1));
	d->ops->get(d, host, X(1), (size_t)c->R * sizeof(float));
	for (int64_t r = 0; r < c->R; r++) /* what another shard would bring */
		host[r] = host[r] < 0.5f ? 0.5f : host[r];
	d->ops->put(d, X(1), host, (size_t)c->R * sizeof(float));
	d->ops->xent_sum(d, &x, X(0), c->d_ids, X(1), X(2), X(3));
	d->ops->get(d, host, X(2), (size_t)c->R * sizeof(float));
	for (int64_t r = 0; r < c->R; r++)
		host[r] += 1.0f;
	d->ops->put(d, X(2), host, (size_t)c->R * sizeof(float));
	d->ops->xent_finish(d, &x, X(0), c->d_ids, X(1), X(2), X(3), 0.25f, X(4),
			    in_place ? X(0) : X(5));
}

static void make_adamw(struct call *c)
{
	c->R = pick(1, 40000);
	add(c, c->R, 1, 0, 0);
	add(c, c->R, 1, 1, 0);
	add(c, c->R, 1, 1, 3);
	add(c, c->R, 1, 1, 0);
	add(c, c->R, 0, 1, 0);
	for (int64_t i = 0; i < c->R; i++)
		c->a[2].values[i] = fabsf(c->a[2].values[i]);
}

static void run_adamw(struct occ_device *d, struct call *c)
{
	struct occ_adamw a = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 0.2f, 0.1f};
	d->ops->adamw(d, &a, c->R, X(0), X(1), X(2), d->type == OCC_F32 ? NULL : X(3), X(4));
}

static void run_squares(struct occ_device *d, struct call *c)
{
	d->ops->sum_squares(d, c->R, X(0), &c->sum);
}

/* Bounds: of fp32 outputs, relative to the largest value; bf16 outputs add one unit of bf16. */
static const struct slot {
	const char *name;
	void (*make)(struct call *c);
	void (*run)(struct occ_device *d, struct call *c);
	int variants;
	double bound;
} slots[] = {
	{"cast", make_cast, run_cast, 1, 0},
	{"add", make_pair, run_add, 1, 1e-7},
	{"gelu_forward", make_pair, run_gelu, 1, 4e-7},
	{"gelu_backward", make_three, run_gelu_back, 2, 4e-7},
	{"gemm", make_gemm, run_gemm, 32, 2e-6},
	{"bias_backward", make_rows, run_bias, 1, 2e-6},
	{"residual_norm_forward", make_norm, run_norm, 8, 2e-6},
	{"residual_norm_backward", make_norm_back, run_norm_back, 32, 5e-6},
	{"attention", make_attention, run_attention, 2, 1e-5},
	{"embed", make_embed, run_embed, 1, 1e-6},
	{"position", make_position, run_position, 2, 1e-6},
	{"xent", make_xent, run_xent, 2, 3e-6},
	{"adamw", make_adamw, run_adamw, 1, 2e-6},
	{"sum_squares", make_adamw, run_squares, 1, 1e-12},
};

/* ---- running a call on a device, comparing outputs ---- */

static size_t bytes_of(const struct occ_device *d, const struct array *a)
{
	return a->n * occ_type_size(a->is_float ? OCC_F32 : d->type);
}

static void to_device(struct occ_device *d, struct array *a)
{
	uint16_t *h = occ_alloc(a->n, sizeof(*h));
	for (size_t i = 0; i < a->n; i++)
		h[i] = occ_f32_to_bf16(a->values[i]);
	a->d_x = d->ops->alloc(d, bytes_of(d, a));
	d->ops->put(d, a->d_x, a->is_float || d->type == OCC_F32 ? (void *)a->values : (void *)h,
		    bytes_of(d, a));
	occ_free(h);
}

/* Values of array i after the call; fp32; the caller frees. */
static float *from_device(struct occ_device *d, const struct array *a)
{
	float *out = occ_alloc(a->n, sizeof(*out));
	if (a->is_float || d->type == OCC_F32) {
		d->ops->get(d, out, a->d_x, bytes_of(d, a));
		return out;
	}
	uint16_t *h = occ_alloc(a->n, sizeof(*h));
	d->ops->get(d, h, a->d_x, bytes_of(d, a));
	for (size_t i = 0; i < a->n; i++)
		out[i] = occ_bf16_to_f32(h[i]);
	occ_free(h);
	return out;
}

/* Runs the call on a fresh device; all arrays afterwards in out[]. */
static void run(const char *device, enum occ_type type, int threads, const struct slot *s,
		struct call *c, int64_t nids, float *out[MAX_ARRAYS])
{
	struct occ_err e = {0};
	struct occ_device *d = occ_device_open(device, type, threads, &e);
	CHECK(d, "%s", e.text);
	for (int i = 0; i < c->narrays; i++)
		to_device(d, &c->a[i]);
	if (nids) {
		c->d_ids = d->ops->alloc(d, (size_t)nids * sizeof(int32_t));
		d->ops->put(d, c->d_ids, c->ids, (size_t)nids * sizeof(int32_t));
	}
	s->run(d, c);
	for (int i = 0; i < c->narrays; i++) {
		out[i] = from_device(d, &c->a[i]);
		d->ops->free(d, c->a[i].d_x);
	}
	if (nids)
		d->ops->free(d, c->d_ids);
	occ_device_close(d);
}

static void compare(const struct slot *s, enum occ_type type, const struct call *c,
		    float *const ref[], float *const got[], double bound, const char *what)
{
	for (int i = 0; i < c->narrays; i++) {
		double scale = 1e-30, worst = 0;
		int strange = 0;
		for (size_t k = 0; k < c->a[i].n; k++)
			if (isfinite(ref[i][k]))
				scale = fmax(scale, fabs((double)ref[i][k]));
		for (size_t k = 0; k < c->a[i].n; k++) {
			double x = (double)ref[i][k], y = (double)got[i][k];
			/* a bf16 output may round the other way: one unit, 2^-7 of its own size */
			double room = type == OCC_BF16 ? 0.0079 * fabs(x) : 0;
			if (!isfinite(x) || !isfinite(y))
				strange += memcmp(&ref[i][k], &got[i][k], sizeof(float)) != 0;
			else if (fabs(x - y) > room)
				worst = fmax(worst, (fabs(x - y) - room) / scale);
		}
		/* bf16 values that enter a second operation in a slot differ by their units too */
		double most = type == OCC_BF16 && bound > 0 ? bound + 0.008 : bound;
		CHECK(worst <= most && !strange, "%s, %s, variant %d, array %d: off by %g of %g%s",
		      s->name, what, c->variant, i, worst, most, strange ? ", not finite" : "");
		CHECK(c->a[i].out || !memcmp(ref[i], got[i], c->a[i].n * sizeof(float)),
		      "%s, %s: input %d was written", s->name, what, i);
	}
}

static void release(struct call *c, float *out[4][MAX_ARRAYS])
{
	for (int i = 0; i < c->narrays; i++) {
		occ_free(c->a[i].values);
		for (int k = 0; k < 4; k++)
			occ_free(out[k][i]);
	}
	occ_free(c->ids);
}

static void test_slot(const struct slot *s, enum occ_type type, int variant)
{
	struct call c = {.variant = variant};
	float *out[4][MAX_ARRAYS] = {{0}}; /* ref, strict, cpu with 1 and with 2 or 3 threads */
	s->make(&c);
	int64_t nids = c.ids ? c.R : 0;
	double sums[4];
	const char *const device[4] = {"ref", "strict", "cpu", "cpu"};
	for (int k = 0; k < 4; k++) {
		run(device[k], type, k < 3 ? 1 : (int)pick(2, 3), s, &c, nids, out[k]);
		sums[k] = c.sum;
	}
	compare(s, type, &c, out[0], out[1], 0, "strict");
	compare(s, type, &c, out[0], out[2], s->bound, "cpu");
	for (int i = 0; i < c.narrays && s->run != run_gemm; i++)
		CHECK(!memcmp(out[2][i], out[3][i], c.a[i].n * sizeof(float)),
		      "%s, variant %d, array %d: the thread count changes bits", s->name, variant,
		      i);
	compare(s, type, &c, out[0], out[3], s->bound, "cpu with threads");
	CHECK(sums[0] == sums[1] && sums[2] == sums[3], "%s: sums", s->name);
	CHECK_NEAR(sums[0], sums[2], s->bound * (sums[0] + 1), "%s: sum", s->name);
	release(&c, out);
}

static void test_opening(void)
{
	static const struct {
		const char *name;
		int code;
		const char *says;
	} rows[] = {
		{"cuda", OCC_E_CONFIG, "CUDA=1"},
		{"gpu", OCC_E_CONFIG, "strict"},
		{"auto", 0, ""},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct occ_err e = {0};
		struct occ_device *d = occ_device_open(rows[i].name, OCC_F32, 1, &e);
		CHECK(!d == !!rows[i].code && e.code == rows[i].code, "%s: %d", rows[i].name,
		      e.code);
		CHECK(strstr(e.text, rows[i].says), "%s: %s", rows[i].name, e.text);
		occ_device_close(d);
	}
	struct occ_device_ops holed = occ_device_ref;
	holed.adamw = NULL;
	CHECK(!strcmp(occ_device_missing(&holed), "adamw"), "the empty slot is named");
	CHECK(!occ_device_missing(&occ_device_cpu) && !occ_device_missing(&occ_device_strict),
	      "full tables");
}

int main(void)
{
	test_opening();
	for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++)
		for (int round = 0; round < 3; round++)
			for (int v = 0; v < slots[i].variants; v++)
				for (int type = OCC_F32; type <= OCC_BF16; type++)
					test_slot(&slots[i], (enum occ_type)type, v);
	CHECK(occ_mem_live() == 0, "%lld bytes are still held", (long long)occ_mem_live());
	return check_done();
}

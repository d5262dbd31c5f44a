/* How fast the device's passes over memory are, against the bytes that they cannot avoid to move
 * and the bytes a second of a plain copy. Each slot's result is compared with ref's before it is
 * timed, and what is only written must be the same bits again afterwards.
 *
 *     gpu_kernels DEVICE tiny|full [NAME]        rows of bench/gpu.h; NAME: slots with that in
 * their name
 *
 * Shapes are those of GPT-2 124M: 32 x 1024 tokens of 768 channels, 124 M parameters, a quarter of
 * the tokens before the 50304 logits. bf16. */
#include "bench/gpu_run.h"

#define OPS r->d->ops

/* ---- The slots. Bytes: e is an element of bf16, 2 bytes; fp32 is 4. ---- */

static void copy(struct run *r)
{
	int64_t n = r->N * 8 * r->C;
	void *x = in(r, n);
	OPS->copy(r->d, out(r, n), x, (size_t)n * 2);
	r->bytes = 4.0 * (double)n;
}

static void cast(struct run *r)
{
	int64_t n = r->N * 4 * r->C;
	float *x = in_f32(r, n);
	OPS->cast(r->d, n, OCC_F32, x, OCC_BF16, out(r, n));
	r->bytes = 6.0 * (double)n;
}

static void add(struct run *r)
{
	int64_t n = r->N * 4 * r->C;
	void *x = in(r, n);
	OPS->add(r->d, n, x, numbers(r, n, OCC_BF16, INOUT, 1));
	r->bytes = 6.0 * (double)n;
}

static void gelu_forward(struct run *r)
{
	int64_t n = r->N * 4 * r->C;
	void *x = in(r, n);
	OPS->gelu_forward(r->d, n, x, out(r, n));
	r->bytes = 4.0 * (double)n;
}

static void gelu_backward(struct run *r)
{
	int64_t n = r->N * 4 * r->C;
	void *x = in(r, n), *dy = in(r, n);
	OPS->gelu_backward(r->d, n, x, dy, out(r, n));
	r->bytes = 6.0 * (double)n;
}

static void bias_backward(struct run *r)
{
	int64_t C = 4 * r->C;
	void *dy = in(r, r->N * C);
	OPS->bias_backward(r->d, r->N, C, dy, inout_f32(r, C));
	r->bytes = 2.0 * (double)(r->N * C);
}

static void norm_forward(struct run *r)
{
	int64_t n = r->N * r->C;
	void *x = in(r, n), *delta = in(r, n), *bias = in(r, r->C), *w = in(r, r->C);
	void *b = in(r, r->C), *xo = out(r, n), *y = out(r, n);
	float *mean = out_f32(r, r->N), *rstd = out_f32(r, r->N);
	OPS->residual_norm_forward(r->d, r->N, r->C, x, delta, bias, NULL, w, b, xo, y, mean, rstd);
	r->bytes = 8.0 * (double)n;
}

static void norm_backward(struct run *r)
{
	int64_t n = r->N * r->C;
	void *dy = in(r, n), *dres = in(r, n), *x = in(r, n), *w = in(r, r->C);
	float *mean = in_f32(r, r->N), *rstd = in_f32(r, r->N);
	void *dx = out(r, n);
	float *dw = inout_f32(r, r->C), *db = inout_f32(r, r->C), *dbias = inout_f32(r, r->C);
	OPS->residual_norm_backward(r->d, r->N, r->C, dy, dres, x, w, mean, rstd, NULL, dx, dx, dw,
				    db, dbias);
	r->bytes = 8.0 * (double)n;
}

/* Tokens that come again now and then. */
static int32_t *tokens(struct run *r)
{
	return ids(r, r->N, 7919, 3, r->V);
}

static void embed_forward(struct run *r)
{
	int32_t *t = tokens(r);
	void *wte = in(r, r->V * r->C);
	OPS->embed_forward(r->d, r->N, r->C, 0, r->V, t, wte, out(r, r->N * r->C));
	r->bytes = 4.0 * (double)(r->N * r->C);
}

/* dwte: each row that some token has is read and written. */
static void embed_backward(struct run *r)
{
	int32_t *t = tokens(r);
	void *dout = in(r, r->N * r->C);
	float *dwte = inout_f32(r, r->V * r->C);
	OPS->embed_backward(r->d, r->N, r->C, 0, r->V, t, dout, dwte);
	if (first_time(r)) {
		char *seen = occ_alloc((size_t)r->V, 1);
		int32_t *x = gpu_fetch(r->d, t, (size_t)r->N * 4);
		int64_t rows = 0;
		for (int64_t i = 0; i < r->N; i++) {
			rows += !seen[x[i]];
			seen[x[i]] = 1;
		}
		r->bytes = (double)(2 * r->N + 8 * rows) * (double)r->C;
		occ_free(seen);
		occ_free(x);
	}
}

static void position_forward(struct run *r)
{
	int64_t T = r->N < 1024 ? r->N : 1024;
	void *wpe = in(r, T * r->C);
	OPS->position_forward(r->d, r->N, r->C, T, wpe, NULL,
			      numbers(r, r->N * r->C, OCC_BF16, INOUT, 1));
	r->bytes = 4.0 * (double)(r->N * r->C);
}

/* Without dropout dx stays as it is. */
static void position_backward(struct run *r)
{
	int64_t T = r->N < 1024 ? r->N : 1024;
	void *dx = numbers(r, r->N * r->C, OCC_BF16, INOUT, 1);
	OPS->position_backward(r->d, r->N, r->C, T, NULL, dx, inout_f32(r, T * r->C));
	r->bytes = 2.0 * (double)(r->N * r->C) + 8.0 * (double)(T * r->C);
}

/* The passes take what the ones before gave. */
struct loss {
	struct occ_xent x;
	void *logits;
	float *max, *sum, *hit;
	int32_t *targets;
};

static struct loss loss_of(struct run *r, int passes)
{
	int64_t ld = (r->V + 127) / 128 * 128, R = r->N / 4;
	struct loss l = {.x = {.rows = R, .V = ld, .ld = ld, .valid = r->V}};
	l.logits = in(r, R * ld);
	l.targets = ids(r, R, 7919, 3, r->V);
	l.max = numbers(r, R, OCC_F32, passes ? IN : OUT, 1);
	l.sum = numbers(r, R, OCC_F32, passes ? IN : OUT, 1);
	l.hit = numbers(r, R, OCC_F32, passes ? IN : OUT, 1);
	if (first_time(r) && passes)
		OPS->xent_stats(r->d, &l.x, l.logits, l.targets, l.max, l.sum, l.hit);
	r->bytes = 2.0 * (double)(R * ld);
	return l;
}

static void xent_stats(struct run *r)
{
	struct loss l = loss_of(r, 0);
	OPS->xent_stats(r->d, &l.x, l.logits, l.targets, l.max, l.sum, l.hit);
}

static void xent_finish(struct run *r)
{
	struct loss l = loss_of(r, 1);
	float *each = out_f32(r, l.x.rows);
	OPS->xent_finish(r->d, &l.x, l.logits, l.targets, l.max, l.sum, l.hit, 1, each,
			 out(r, l.x.rows * l.x.ld));
	r->bytes *= 2;
}

static void adamw(struct run *r)
{
	struct occ_adamw a = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 0.1f, 0.05f};
	struct occ_pieces p = pieces(r);
	float *g = in_f32(r, r->P), *m = numbers(r, r->P, OCC_F32, INOUT, 0);
	float *v = numbers(r, r->P, OCC_F32, INOUT, 0), *master = inout_f32(r, r->P);
	OPS->adamw(r->d, &a, &p, g, m, v, master, out(r, r->P));
	r->bytes = 30.0 * (double)r->P;
}

/* The sum of n sums, to be compared. */
static void take_sum(struct run *r, int n, const double *d_sum)
{
	if (!first_time(r))
		return;
	double *sum = gpu_fetch(r->d, d_sum, (size_t)n * sizeof(*sum));
	for (int k = 0; k < n; k++)
		r->value += sum[k];
	occ_free(sum);
}

static void sum_squares(struct run *r)
{
	float *x = in_f32(r, r->P);
	double *d_sum = wire(r, sizeof(*d_sum), IN);
	OPS->sum_squares(r->d, r->P, x, d_sum);
	take_sum(r, 1, d_sum);
	r->bytes = 4.0 * (double)r->P;
}

static void piece_squares(struct run *r)
{
	struct occ_pieces p = pieces(r);
	float *x = in_f32(r, r->P);
	double *d_sum = wire(r, p.n * (int64_t)sizeof(*d_sum), IN);
	OPS->piece_squares(r->d, &p, x, d_sum);
	take_sum(r, p.n, d_sum);
	r->bytes = 4.0 * (double)r->P;
}

static void draw(struct run *r)
{
	OPS->draw(r->d, r->P / 4, 7, 3, out_f32(r, r->P / 4));
	r->bytes = (double)r->P;
}

static void scale(struct run *r)
{
	OPS->scale(r->d, r->P, 1, inout_f32(r, r->P));
	r->bytes = 8.0 * (double)r->P;
}

static void accumulate(struct run *r)
{
	void *x = in(r, r->P);
	OPS->accumulate(r->d, r->P, OCC_BF16, x, OCC_ADD, inout_f32(r, r->P));
	r->bytes = 10.0 * (double)r->P;
}

static void fold(struct run *r)
{
	int64_t n = r->P / 4;
	void *x = in(r, 4 * n);
	OPS->fold(r->d, 4, n, OCC_BF16, 0, x, out(r, n));
	r->bytes = 10.0 * (double)n;
}

/* A hundredth of each row. */
static void select_(struct run *r)
{
	int64_t R = r->P / r->C, k = r->C / 100 + 1;
	float *x = in_f32(r, R * r->C);
	void *at = wire(r, 2 * R * k, OUT);
	OPS->select(r->d, R, r->C, k, x, 2, at, out_f32(r, R * k), out_f32(r, R));
	r->bytes = 4.0 * (double)(R * r->C) + 6.0 * (double)(R * k);
}

static void above(struct run *r)
{
	int64_t cap = r->P / 20 + 1, count = 0;
	float *x = in_f32(r, r->P), *least = in_f32(r, 1), two = 2;
	int32_t *at = wire(r, 4 * cap, OUT);
	if (first_time(r))
		OPS->put(r->d, least, &two, sizeof(two));
	OPS->above(r->d, r->P, x, least, cap, at, numbers(r, cap, OCC_F32, OUT, 0), &count);
	r->value = (double)count;
	r->bytes = 4.0 * (double)r->P + 8.0 * r->value;
}

static void pick(struct run *r)
{
	int64_t k = r->P / 100;
	int32_t *at = ids(r, k, 100, k, r->P);
	float *x = in_f32(r, r->P);
	OPS->pick(r->d, 1, r->P, k, 4, at, x, out_f32(r, k));
	r->bytes = (4.0 + 32 + 4) * (double)k; /* a sector for each */
}

static void place(struct run *r)
{
	int64_t k = r->P / 100;
	int32_t *at = ids(r, k, 100, k, r->P);
	float *x = in_f32(r, k);
	OPS->place(r->d, 1, r->P, k, 4, at, x, OCC_SET, out_f32(r, r->P));
	r->bytes = 4.0 * (double)r->P + (8.0 + 32) * (double)k;
}

static double quantised(const struct run *r)
{
	return (double)r->P / 2 + 4.0 * (double)((r->P + 127) / 128);
}

static void quantise(struct run *r)
{
	float *x = in_f32(r, r->P);
	OPS->quantise(r->d, r->P, 4, 128, x, wire(r, (int64_t)quantised(r) + 4, OUT));
	r->bytes = 4.0 * (double)r->P + quantised(r);
}

static void dequantise(struct run *r)
{
	float *x = in_f32(r, r->P);
	void *w = wire(r, (int64_t)quantised(r) + 4, IN);
	if (first_time(r))
		OPS->quantise(r->d, r->P, 4, 128, x, w);
	OPS->dequantise(r->d, r->P, 4, 128, w, OCC_SET, out_f32(r, r->P));
	r->bytes = 4.0 * (double)r->P + quantised(r);
}

static void half_pack(struct run *r)
{
	float *x = in_f32(r, r->P);
	OPS->half_pack(r->d, r->P, x, wire(r, 2 * r->P + 4, OUT));
	r->bytes = 10.0 * (double)r->P; /* the largest must be known first */
}

static void half_unpack(struct run *r)
{
	float *x = in_f32(r, r->P);
	void *w = wire(r, 2 * r->P + 4, IN);
	if (first_time(r))
		OPS->half_pack(r->d, r->P, x, w);
	OPS->half_unpack(r->d, r->P, w, OCC_SET, out_f32(r, r->P));
	r->bytes = 6.0 * (double)r->P;
}

static void bound_pack(struct run *r)
{
	int64_t bytes = 0;
	float *x = in_f32(r, r->P);
	OPS->bound_pack(r->d, r->P, 1e-3, x, wire(r, 5 * r->P + 64, OUT), &bytes);
	r->value = (double)bytes;
	r->bytes = 4.0 * (double)r->P + r->value;
}

static void bound_unpack(struct run *r)
{
	int64_t bytes = 0;
	float *x = in_f32(r, r->P);
	void *w = wire(r, 5 * r->P + 64, IN);
	if (first_time(r)) {
		OPS->bound_pack(r->d, r->P, 1e-3, x, w, &bytes);
		r->value = (double)bytes;
	}
	OPS->bound_unpack(r->d, r->P, 1e-3, w, OCC_SET, out_f32(r, r->P));
	r->bytes = 4.0 * (double)r->P + r->value;
}

/* Bound by products of columns rather than by memory: the bytes are those of one pass. */
static void orthonormalise(struct run *r)
{
	int64_t n = 4 * r->C, k = tiny ? 4 : 32;
	OPS->orthonormalise(r->d, n, k, numbers(r, n * k, OCC_F32, INOUT, 1));
	r->bytes = 8.0 * (double)(n * k);
}

/* known: memory is the bound. prefix: results of the first rows do not depend on the rest, so that
 * ref needs to do only those. */
static const struct slot {
	const char *name;
	void (*call)(struct run *r);
	int known, prefix;
	double bf16, f32; /* distance from ref */
} slots[] = {
	{"copy", copy, 1, 1, 0, 0},
	{"cast", cast, 1, 1, 0, 0},
	{"add", add, 1, 1, 0, 0},
	{"gelu_forward", gelu_forward, 1, 1, 1e-3, 0},
	{"gelu_backward", gelu_backward, 1, 1, 1e-3, 0},
	{"bias_backward", bias_backward, 1, 0, 0, 1e-4},
	{"residual_norm_forward", norm_forward, 1, 1, 1e-3, 1e-4},
	{"residual_norm_backward", norm_backward, 1, 0, 1e-3, 1e-4},
	{"embed_forward", embed_forward, 1, 1, 0, 0},
	{"embed_backward", embed_backward, 1, 0, 0, 1e-5},
	{"position_forward", position_forward, 1, 1, 0, 0},
	{"position_backward", position_backward, 1, 0, 0, 1e-5},
	{"xent_stats", xent_stats, 1, 1, 0, 1e-4},
	{"xent_finish", xent_finish, 1, 1, 1e-3, 1e-4},
	{"adamw", adamw, 1, 1, 1e-3, 1e-5},
	{"sum_squares", sum_squares, 1, 0, 0, 0},
	{"piece_squares", piece_squares, 1, 0, 0, 0},
	{"draw", draw, 0, 1, 0, 1e-5},
	{"scale", scale, 1, 1, 0, 0},
	{"accumulate", accumulate, 1, 1, 0, 0},
	{"fold", fold, 1, 0, 1e-3, 0},
	{"select", select_, 0, 1, 0, 0},
	{"above", above, 0, 0, 0, 0},
	{"pick", pick, 0, 0, 0, 0},
	{"place", place, 0, 0, 0, 0},
	{"quantise", quantise, 0, 0, 0, 0},
	{"dequantise", dequantise, 0, 0, 0, 1e-6},
	{"half_pack", half_pack, 0, 0, 0, 0},
	{"half_unpack", half_unpack, 0, 0, 0, 0},
	{"bound_pack", bound_pack, 0, 0, 0, 0},
	{"bound_unpack", bound_unpack, 0, 0, 0, 0},
	{"orthonormalise", orthonormalise, 0, 0, 0, 1e-3},
};

enum { NSLOTS = sizeof(slots) / sizeof(slots[0]) };

static void release(struct run *r)
{
	for (int i = 0; i < r->made; i++)
		OPS->free(r->d, r->array[i].d_x);
	OPS->sync(r->d);
	r->made = 0;
}

/* The largest distance of any result from ref's first rows; `raw`: one of bytes differs. */
static int agrees(const struct slot *s, const struct run *r, const struct run *want, double *far)
{
	int right = fabs(r->value - want->value) <= 1e-6 * fabs(want->value) || s->prefix;
	for (int i = 0; i < want->made; i++) {
		const struct array *a = &want->array[i];
		size_t bytes = (size_t)a->n * occ_type_size(a->type);
		if (a->role == IN)
			continue;
		void *got = gpu_fetch(r->d, r->array[i].d_x, bytes);
		if (a->raw) {
			right &= !memcmp(got, a->d_x, bytes);
		} else {
			double far_i = gpu_distance(a->type, got, a->d_x, a->n);
			right &= far_i <= (a->type == OCC_BF16 ? s->bf16 : s->f32);
			*far = far_i <= *far ? *far : far_i;
		}
		occ_free(got);
	}
	return right;
}

/* Sums of all bytes of what is only written, to see whether it comes out again. */
static uint64_t bits(const struct run *r)
{
	uint64_t sum = 0;
	for (int i = 0; i < r->made; i++) {
		const struct array *a = &r->array[i];
		size_t bytes = (size_t)a->n * occ_type_size(a->type);
		if (a->role != OUT || a->type != OCC_BF16 || bytes > 64 << 20)
			continue;
		unsigned char *x = gpu_fetch(r->d, a->d_x, bytes);
		for (size_t k = 0; k < bytes; k++)
			sum = (sum ^ x[k]) * 1099511628211u;
		occ_free(x);
	}
	return sum;
}

struct call {
	const struct slot *s;
	struct run *r;
};

static void again(void *arg)
{
	struct call *c = arg;
	c->r->at = 0;
	c->s->call(c->r);
}

static struct run sized(struct occ_device *d, int64_t rows)
{
	struct run r = {.d = d, .C = tiny ? 72 : 768, .V = tiny ? 250 : 50257, .N = rows};
	r.P = rows * (tiny ? 72 : 768 * 5);
	return r;
}

/* GB/s of the slot; `best` is that of a copy, 0: this is it. */
static double measure(const struct slot *s, double best)
{
	int64_t rows = tiny ? 48 : 32768;
	struct run r = sized(dev, rows), want = sized(ref, s->prefix && !tiny ? 512 : rows);
	struct call call = {s, &r}, truth = {s, &want};
	double far = 0;
	char bound[64];
	again(&call);
	again(&truth);
	int right = agrees(s, &r, &want, &far), changes = 0;
	for (int i = 0; i < r.made; i++)
		changes |= r.array[i].role == INOUT;
	uint64_t before = bits(&r);
	double ms = gpu_time(again, &call), rate = r.bytes / ms / 1e6;
	right &= changes || bits(&r) == before;
	snprintf(bound, sizeof(bound), "%.4g ms", best > 0 ? r.bytes / best / 1e6 : 0);
	if (best > 0)
		gpu_row(s->name, ms, "ms", bound, gpu_verdict(right, s->known ? rate / best : 0),
			"bytes=%.0f gb_per_s=%.4g share=%.3f distance=%.2g", r.bytes, rate,
			rate / best, far);
	else
		gpu_row(s->name, rate, "GB/s", "-", gpu_verdict(right, 0), "bytes=%.0f ms=%.4g",
			r.bytes, ms);
	release(&want);
	release(&r);
	return rate;
}

int main(int argc, char **argv)
{
	const char *only = argc > 3 ? argv[3] : "";
	int code = gpu_begin(argc, argv, "gpu_kernels DEVICE tiny|full [NAME]");
	if (code)
		return code;
	double best = measure(&slots[0], 0);
	for (int i = 1; i < NSLOTS; i++)
		if (strstr(slots[i].name, only))
			measure(&slots[i], best);
	return gpu_end();
}

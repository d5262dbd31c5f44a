/* What the cpu device's kernels reach: products at the shapes of GPT-2 124M against the best
 * product found here, attention, and the memory rates of the passes. Every kernel's output is
 * compared with ref's on sampled places right after it was timed: a fast wrong answer exits 1.
 *
 *   kernels [fp32|bf16] [threads] [B] [T] */
#include "base/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/gemm.h"
#include "base/mem.h"

static struct occ_device *dev;
static int wrong;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Normal numbers times scale in the device's type, or fp32. */
static void *draw(int64_t n, enum occ_type type, float scale)
{
	enum { PERIOD = 65521 }; /* numbers are repeated: drawing is slow */
	static float table[PERIOD];
	float *x = occ_alloc((size_t)n, sizeof(*x));
	if (table[0] == 0)
		for (int i = 0; i < PERIOD; i++)
			table[i] = occ_rng_normal(7, 0, (uint64_t)i);
	for (int64_t i = 0; i < n; i++)
		x[i] = table[i % PERIOD] * scale;
	void *d_x = dev->ops->alloc(dev, (size_t)n * occ_type_size(type));
	dev->ops->cast(dev, n, OCC_F32, x, type, d_x);
	occ_free(x);
	return d_x;
}

static double value(enum occ_type type, const void *x, int64_t i)
{
	return type == OCC_F32 ? (double)((const float *)x)[i]
			       : (double)occ_bf16_to_f32(((const uint16_t *)x)[i]);
}

static void verify(const char *what, double got, double want, double scale, enum occ_type type)
{
	double tol = (type == OCC_BF16 ? 0x1p-7 : 2e-5) * (fabs(want) + scale);
	if (fabs(got - want) <= tol)
		return;
	printf("%s is wrong: %g, not %g\n", what, got, want);
	wrong = 1;
}

/* Best and median seconds of f(arg) over repeats that fill about half a second. */
struct timing {
	double best, median;
};

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static struct timing measure(void (*f)(void *arg), void *arg)
{
	double all[100], start = now();
	int n = 0;
	f(arg); /* the first call allocates */
	while (n < 5 || (n < 100 && now() - start < 0.5)) {
		double t = now();
		f(arg);
		all[n++] = now() - t;
	}
	qsort(all, (size_t)n, sizeof(*all), by_size);
	return (struct timing){all[0], all[n / 2]};
}

/* ---- Products. ---- */

struct product {
	struct occ_gemm g;
	void *a, *b, *bias, *c;
};

static void run_product(void *arg)
{
	struct product *p = arg;
	dev->ops->gemm(dev, &p->g, p->a, p->b, p->bias, p->c);
}

static double element(const struct product *p, int64_t i, int64_t j)
{
	const struct occ_gemm *g = &p->g;
	double sum = g->bias ? value(dev->type, p->bias, j) : 0;
	for (int64_t k = 0; k < g->k; k++)
		sum += value(dev->type, p->a, g->ta ? k * g->lda + i : i * g->lda + k) *
		       value(dev->type, p->b, g->tb ? j * g->ldb + k : k * g->ldb + j);
	return sum;
}

static double time_product(struct occ_gemm g, struct timing *t)
{
	g.lda = g.ta ? g.m : g.k;
	g.ldb = g.tb ? g.k : g.n;
	g.ldc = g.n;
	struct product p = {g, draw(g.m * g.k, dev->type, 1), draw(g.k * g.n, dev->type, 1),
			    g.bias ? draw(g.n, dev->type, 1) : NULL, draw(g.m * g.n, g.c_type, 0)};
	*t = measure(run_product, &p);
	for (int64_t s = 0; s < 50 && g.beta == 0; s++) {
		int64_t i = s * 7919 % g.m, j = s * 104729 % g.n;
		verify("gemm", value(g.c_type, p.c, i * g.n + j), element(&p, i, j),
		       sqrt((double)g.k), g.c_type);
	}
	dev->ops->free(dev, p.a);
	dev->ops->free(dev, p.b);
	dev->ops->free(dev, p.bias);
	dev->ops->free(dev, p.c);
	return 2e-9 * (double)g.m * (double)g.n * (double)g.k;
}

/* The best rate of a square-ish product: what percentages refer to. */
static double find_peak(void)
{
	static const int64_t sizes[] = {512, 768, 1024, 1536, 2048};
	double peak = 0;
	for (int i = 0; i < 5; i++)
		for (int tb = 0; tb < 2; tb++) {
			struct timing t;
			struct occ_gemm g = {0, tb, sizes[i], sizes[i], sizes[i], 0,
					     0, 0,  OCC_F32,  0,        0,        0};
			double work = time_product(g, &t);
			peak = fmax(peak, work / t.best);
		}
	return peak;
}

enum { C = 768, H = 12, D = 64, V = 50304 };

static void products(int64_t R, double peak)
{
	const struct row {
		const char *name;
		int ta, tb;
		int64_t m, n, k;
		float beta;
		int bias, wide; /* wide: c is fp32 */
	} rows[] = {
		{"qkv", 0, 1, R, 3 * C, C, 0, 1, 0},
		{"attention out", 0, 1, R, C, C, 0, 0, 0},
		{"mlp up", 0, 1, R, 4 * C, C, 0, 1, 0},
		{"mlp down", 0, 1, R, C, 4 * C, 0, 0, 0},
		{"logits", 0, 1, R, V, C, 0, 0, 1},
		{"d qkv", 0, 0, R, C, 3 * C, 0, 0, 0},
		{"d mlp up", 0, 0, R, C, 4 * C, 0, 0, 0},
		{"d logits", 0, 0, R, C, V, 0, 0, 0},
		{"dW qkv", 1, 0, 3 * C, C, R, 1, 0, 1},
		{"dW mlp up", 1, 0, 4 * C, C, R, 1, 0, 1},
		{"dW mlp down", 1, 0, C, 4 * C, R, 1, 0, 1},
		{"dW logits", 1, 0, V, C, R, 1, 0, 1},
	};
	double work = 0, seconds = 0;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct row *w = &rows[i];
		struct occ_gemm g = {.ta = w->ta, .tb = w->tb, .m = w->m, .n = w->n, .k = w->k};
		struct timing t;
		g.c_type = w->wide ? OCC_F32 : dev->type;
		g.beta = w->beta;
		g.bias = w->bias;
		double gf = time_product(g, &t);
		work += gf;
		seconds += t.best;
		printf("gemm %-13s %c%c %6lld %6lld %6lld  best %6.1f, median %6.1f GFLOP/s  %3.0f "
		       "%%\n",
		       w->name, w->ta ? 'T' : 'N', w->tb ? 'T' : 'N', (long long)w->m,
		       (long long)w->n, (long long)w->k, gf / t.best, gf / t.median,
		       100 * gf / t.best / peak);
	}
	printf("gemm all %37.1f GFLOP/s  %3.0f %%\n", work / seconds, 100 * work / seconds / peak);
}

/* ---- Attention. ---- */

struct attention {
	struct occ_attention a;
	void *qkv, *out, *dout, *dqkv;
	float *lse;
};

static void run_forward(void *arg)
{
	struct attention *x = arg;
	dev->ops->attention_forward(dev, &x->a, x->qkv, x->out, x->lse);
}

static void run_backward(void *arg)
{
	struct attention *x = arg;
	dev->ops->attention_backward(dev, &x->a, x->qkv, x->out, x->lse, x->dout, x->dqkv);
}

/* The last head of the last sequence by itself, on ref. */
static void verify_attention(const struct attention *x)
{
	struct occ_err e = {0};
	struct occ_device *ref = occ_device_open("ref", dev->type, 1, &e);
	int64_t B = x->a.B, T = x->a.T, n = T * D;
	size_t e1 = occ_type_size(dev->type), row = D * e1;
	struct occ_attention one = {.B = 1, .T = T, .H = 1, .D = D};
	char *qkv = occ_alloc((size_t)(3 * n), e1), *dqkv = occ_alloc((size_t)(3 * n), e1);
	char *out = occ_alloc((size_t)n, e1), *dout = occ_alloc((size_t)n, e1);
	float *lse = occ_alloc((size_t)T, sizeof(*lse));
	for (int64_t t = 0; t < T; t++) {
		size_t r = (size_t)((B - 1) * T + t), h = H - 1, o = (r * H + h) * row;
		for (size_t p = 0; p < 3; p++)
			memcpy(qkv + ((size_t)t * 3 + p) * row,
			       (char *)x->qkv + ((r * 3 + p) * H + h) * row, row);
		memcpy(dout + (size_t)t * row, (char *)x->dout + o, row);
	}
	ref->ops->attention_forward(ref, &one, qkv, out, lse);
	ref->ops->attention_backward(ref, &one, qkv, out, lse, dout, dqkv);
	for (int64_t i = 0; i < n; i += 13) {
		int64_t r = (B - 1) * T + i / D, at = (r * H + H - 1) * D + i % D;
		verify("attention forward", value(dev->type, x->out, at), value(dev->type, out, i),
		       0.1, dev->type);
		for (int64_t p = 0; p < 3; p++)
			verify("attention backward",
			       value(dev->type, x->dqkv, ((r * 3 + p) * H + H - 1) * D + i % D),
			       value(dev->type, dqkv, (i / D * 3 + p) * D + i % D), 0.1, dev->type);
	}
	occ_free(qkv);
	occ_free(dqkv);
	occ_free(out);
	occ_free(dout);
	occ_free(lse);
	occ_device_close(ref);
}

static void report_attention(const char *name, struct timing t, double work, double peak)
{
	printf("%-26s best %8.3f, median %8.3f ms  %6.1f GFLOP/s  %3.0f %% of fp32 peak\n", name,
	       t.best * 1e3, t.median * 1e3, work / t.best, 100 * work / t.best / peak);
}

/* Work: the products over the lower triangle: 2 forward, 5 backward. */
static void attentions(int64_t B, int64_t T, double peak)
{
	int64_t n = B * T * H * D;
	struct attention x = {.a = {.B = B, .T = T, .H = H, .D = D}};
	x.qkv = draw(3 * n, dev->type, 1);
	x.dout = draw(n, dev->type, 1);
	x.out = draw(n, dev->type, 0);
	x.dqkv = draw(3 * n, dev->type, 0);
	x.lse = draw(B * H * T, OCC_F32, 0);
	double product = 1e-9 * (double)(B * H * D) * (double)T * (double)(T + 1);
	struct timing f = measure(run_forward, &x), b = measure(run_backward, &x);
	verify_attention(&x);
	report_attention("attention forward", f, 2 * product, peak);
	report_attention("attention backward", b, 5 * product, peak);
	dev->ops->free(dev, x.qkv);
	dev->ops->free(dev, x.dout);
	dev->ops->free(dev, x.out);
	dev->ops->free(dev, x.dqkv);
	dev->ops->free(dev, x.lse);
}

/* ---- Passes over memory. ---- */

struct pass {
	int64_t R, n;
	void *x[6];
	float *f[6];
	const char *what;
};

static void norm_forward(void *arg)
{
	struct pass *p = arg;
	dev->ops->residual_norm_forward(dev, p->R, C, p->x[0], p->x[1], p->x[2], NULL, p->x[2],
					p->x[2], p->x[3], p->x[4], p->f[0], p->f[1]);
}

static void norm_backward(void *arg)
{
	struct pass *p = arg;
	dev->ops->residual_norm_backward(dev, p->R, C, p->x[0], p->x[1], p->x[3], p->x[2], p->f[0],
					 p->f[1], NULL, p->x[4], p->x[4], p->f[2], p->f[3],
					 p->f[4]);
}

static void gelu_forward(void *arg)
{
	struct pass *p = arg;
	dev->ops->gelu_forward(dev, p->n, p->x[0], p->x[3]);
}

static void gelu_backward(void *arg)
{
	struct pass *p = arg;
	dev->ops->gelu_backward(dev, p->n, p->x[0], p->x[1], p->x[3]);
}

static void report(const char *name, struct timing t, double bytes)
{
	printf("%-26s best %8.3f, median %8.3f ms  %6.1f GB/s\n", name, t.best * 1e3,
	       t.median * 1e3, 1e-9 * bytes / t.best);
}

static void verify_norm(const struct pass *p)
{
	double sum = 0, squares = 0;
	int64_t at = (p->R - 1) * C;
	for (int64_t c = 0; c < C; c++) {
		double v = value(dev->type, p->x[3], at + c);
		sum += v / C;
		squares += v * v / C;
	}
	double rstd = 1 / sqrt(squares - sum * sum + 1e-5);
	for (int64_t c = 0; c < C; c += 7) {
		double w = value(dev->type, p->x[2], c), x = value(dev->type, p->x[3], at + c);
		verify("norm", value(dev->type, p->x[4], at + c), (x - sum) * rstd * w + w, 1,
		       dev->type);
	}
}

static void verify_gelu(const struct pass *p)
{
	for (int64_t i = 0; i < p->n; i += p->n / 100 + 1) {
		double x = value(dev->type, p->x[0], i);
		double u = 0.7978845608028654 * (x + 0.044715 * x * x * x);
		verify("gelu", value(dev->type, p->x[3], i), 0.5 * x * (1 + tanh(u)), 1e-3,
		       dev->type);
	}
}

static void passes(int64_t R)
{
	struct pass p = {.R = R, .n = R * 4 * C};
	double e = (double)occ_type_size(dev->type), n = (double)(R * C);
	for (int i = 0; i < 6; i++) {
		p.x[i] = draw(p.n, dev->type, 1);
		p.f[i] = draw(R > C ? R : C, OCC_F32, 1);
	}
	struct timing t = measure(norm_forward, &p);
	verify_norm(&p);
	report("residual + norm forward", t, 4 * n * e);
	report("residual + norm backward", measure(norm_backward, &p), 4 * n * e);
	t = measure(gelu_forward, &p);
	verify_gelu(&p);
	report("gelu forward (R, 4C)", t, 8 * n * e);
	report("gelu backward (R, 4C)", measure(gelu_backward, &p), 12 * n * e);
	for (int i = 0; i < 6; i++) {
		dev->ops->free(dev, p.x[i]);
		dev->ops->free(dev, p.f[i]);
	}
}

/* ---- Loss and optimizer. ---- */

struct loss {
	struct occ_xent x;
	void *logits, *dlogits;
	float *max, *sum, *hit, *loss;
	int32_t *targets;
};

static void run_loss(void *arg)
{
	struct loss *l = arg;
	dev->ops->xent_stats(dev, &l->x, l->logits, l->targets, l->max, l->sum, l->hit);
	dev->ops->xent_rescale(dev, l->x.rows, l->max, l->max, l->sum);
	dev->ops->xent_finish(dev, &l->x, l->logits, l->targets, l->max, l->sum, l->hit, 1, l->loss,
			      l->dlogits);
}

static void losses(int64_t R)
{
	struct loss l = {.x = {.rows = R, .V = V, .ld = V, .valid = 50257}};
	l.logits = draw(R * V, dev->type, 1);
	l.dlogits = draw(R * V, dev->type, 0);
	l.max = draw(4 * R, OCC_F32, 0);
	l.sum = l.max + R;
	l.hit = l.sum + R;
	l.loss = l.hit + R;
	l.targets = dev->ops->alloc(dev, (size_t)R * sizeof(*l.targets)); /* zeros */
	struct timing t = measure(run_loss, &l);
	double sum = 0;
	for (int64_t c = 0; c < l.x.valid; c++)
		sum += exp(value(dev->type, l.logits, (R - 1) * V + c));
	verify("loss", (double)l.loss[R - 1], log(sum) - value(dev->type, l.logits, (R - 1) * V), 1,
	       OCC_F32);
	report("cross-entropy", t, (double)(R * V) * 3 * occ_type_size(dev->type));
	dev->ops->free(dev, l.logits);
	dev->ops->free(dev, l.dlogits);
	dev->ops->free(dev, l.max);
	dev->ops->free(dev, l.targets);
}

struct optimizer {
	struct occ_adamw a;
	struct occ_pieces p;
	struct occ_piece *pieces;
	double *squares;
	int64_t n;
	float *g, *m, *v, *master;
	void *w;
};

/* Host devices: pieces are read where they are. */
static void cut(struct optimizer *o)
{
	size_t most = (size_t)(o->n / OCC_PIECE + 1);
	o->pieces = occ_alloc(most, sizeof(*o->pieces));
	o->squares = occ_alloc(most, sizeof(*o->squares));
	o->p = (struct occ_pieces){occ_pieces_cut(0, o->n, 1, o->pieces), o->n, o->pieces};
}

static void run_adamw(void *arg)
{
	struct optimizer *o = arg;
	dev->ops->adamw(dev, &o->a, &o->p, o->g, o->m, o->v, o->master, o->w);
}

static void run_norm(void *arg)
{
	struct optimizer *o = arg;
	dev->ops->piece_squares(dev, &o->p, o->g, o->squares);
}

static void run_zero(void *arg)
{
	struct optimizer *o = arg;
	dev->ops->zero(dev, o->g, (size_t)o->n * sizeof(float));
}

static void optimizers(int64_t n)
{
	int bf16 = dev->type == OCC_BF16;
	struct optimizer o = {.n = n, .a = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 0.1f, 0.05f}};
	o.g = draw(n, OCC_F32, 1);
	o.m = draw(n, OCC_F32, 0);
	o.v = draw(n, OCC_F32, 0);
	o.w = draw(n, dev->type, 1);
	o.master = bf16 ? draw(n, OCC_F32, 1) : NULL;
	cut(&o);
	struct timing t = measure(run_norm, &o);
	double want = 0, norm = 0;
	for (int64_t i = 0; i < n; i++)
		want += (double)o.g[i] * (double)o.g[i];
	for (int k = 0; k < o.p.n; k++)
		norm += o.squares[k];
	verify("sum of squares", norm, want, 0, OCC_F32);
	report("sum of squares", t, 4.0 * (double)n);
	t = measure(run_adamw, &o);
	for (int64_t i = 0; i < n;
	     i += n / 100 + 1) /* m tends to g, and the moments' signs agree */
		verify("adamw", (double)(o.m[i] * o.g[i] > 0 || o.g[i] == 0), 1, 0, OCC_F32);
	report("adamw", t, (bf16 ? 30.0 : 28.0) * (double)n);
	report("zero", measure(run_zero, &o), 4.0 * (double)n);
	dev->ops->free(dev, o.g);
	dev->ops->free(dev, o.m);
	dev->ops->free(dev, o.v);
	dev->ops->free(dev, o.w);
	dev->ops->free(dev, o.master);
	occ_free(o.pieces);
	occ_free(o.squares);
}

int main(int argc, char **argv)
{
	struct occ_err e = {0};
	int bf16 = argc > 1 && !strcmp(argv[1], "bf16");
	int threads = argc > 2 ? atoi(argv[2]) : 2;
	int64_t B = argc > 3 ? atoll(argv[3]) : 4, T = argc > 4 ? atoll(argv[4]) : 256;
	dev = occ_device_open("cpu", OCC_F32, threads, &e);
	double peak32 = find_peak(), peak = peak32;
	if (bf16) {
		occ_device_close(dev);
		dev = occ_device_open("cpu", OCC_BF16, threads, &e);
		peak = find_peak();
	}
	printf("%s, %s, %d threads, B %lld, T %lld; best product %.1f GFLOP/s\n", occ_gemm_name,
	       bf16 ? "bf16" : "fp32", threads, (long long)B, (long long)T, peak);
	products(B * T, peak);
	attentions(B, T, peak32);
	passes(B * T);
	losses(B * T < 256 ? B * T : 256);
	optimizers(124475904);
	occ_device_close(dev);
	return wrong;
}

/* Matrix products and attention of the device, and the versions of what it stands on.
 *
 *     gpu_matrix DEVICE tiny|full gemm|attention|check|versions        rows of bench/gpu.h
 *
 * gemm: the products of a layer of GPT-2 124M ("A": 32 x 1024 tokens of 768) and of 1.3B ("B": 8 x
 * 2048 of 2048), against the best product there is; elements are compared with sums made here.
 * Those that meet GELU also in one pass (OCC_GELU=fused), whose results are compared with the usual
 * way's. attention: as fast as the device does it by itself (cuDNN), and by the way without cuDNN.
 * check: both ways against ref, forward and backward, and the same bits twice, with NaN in
 * between in all the memory that the first call left. */
#include "bench/gpu.h"

#include <dlfcn.h>

#include "parallel/lane.h"

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

static double number(uint32_t id, int64_t i)
{
	return (double)occ_bf16_to_f32(occ_f32_to_bf16(gpu_normal(id, i % GPU_PERIOD)));
}

/* Places of c against sums of what gpu_draw wrote; c held zeros. */
static int right_product(const struct product *p)
{
	const struct occ_gemm *g = &p->g;
	size_t unit = occ_type_size(g->c_type);
	for (int64_t s = 0; s < 40; s++) {
		int64_t i = s * 7919 % g->m, j = s * 104729 % g->n;
		double sum = g->bias ? number(3, j) : 0;
		float got = 0;
		for (int64_t k = 0; k < g->k; k++)
			sum += number(1, g->ta ? k * g->lda + i : i * g->lda + k) *
			       number(2, g->tb ? j * g->ldb + k : k * g->ldb + j);
		dev->ops->get(dev, &got, (char *)p->c + (size_t)(i * g->ldc + j) * unit, unit);
		double tol =
			(g->c_type == OCC_BF16 ? 0x1p-7 : 1e-4) * (fabs(sum) + sqrt((double)g->k));
		if (!(fabs(gpu_value(g->c_type, &got, 0) - sum) <= tol))
			return 0;
	}
	return 1;
}

struct shape {
	const char *name;
	int ta, tb;
	int64_t m, n, k;
	int bias, wide; /* wide: c is fp32 */
};

/* TFLOP/s; `best` that of the best product, 0: this is it. */
static double time_product(const char *model, const struct shape *s, double best)
{
	struct product p = {
		{.ta = s->ta, .tb = s->tb, .m = s->m, .n = s->n, .k = s->k}, 0, 0, 0, 0};
	char name[64], bound[64] = "-";
	p.g.lda = s->ta ? s->m : s->k;
	p.g.ldb = s->tb ? s->k : s->n;
	p.g.ldc = s->n;
	p.g.c_type = s->wide ? OCC_F32 : OCC_BF16;
	p.g.bias = s->bias;
	p.g.beta = (float)s->ta; /* gradients of weights are added up */
	p.a = gpu_draw(dev, s->m * s->k, OCC_BF16, 1, 1);
	p.b = gpu_draw(dev, s->k * s->n, OCC_BF16, 2, 1);
	p.bias = s->bias ? gpu_draw(dev, s->n, OCC_BF16, 3, 1) : NULL;
	p.c = gpu_draw(dev, s->m * s->n, p.g.c_type, 4, 0);
	run_product(&p);
	int right = right_product(&p);
	double ms = gpu_time(run_product, &p);
	double rate = 2e-9 * (double)s->m * (double)s->n * (double)s->k / ms;
	snprintf(name, sizeof(name), "gemm %s %s", model, s->name);
	if (best > 0)
		snprintf(bound, sizeof(bound), "%.4g TFLOP/s", best);
	gpu_row(name, rate, "TFLOP/s", bound, gpu_verdict(right, best > 0 ? rate / best : 0),
		"m=%lld n=%lld k=%lld ms=%.4g share=%.3f", (long long)s->m, (long long)s->n,
		(long long)s->k, ms, best > 0 ? rate / best : 1);
	void *all[] = {p.a, p.b, p.bias, p.c};
	for (int i = 0; i < 4; i++)
		dev->ops->free(dev, all[i]);
	return rate;
}

static double best_product(void)
{
	int64_t n = tiny ? 48 : 8192;
	return time_product("square", &(struct shape){"bf16", 0, 1, n, n, n, 0, 0}, 0);
}

static void products(const char *model, int64_t N, int64_t C, int64_t V, double best)
{
	const struct shape shapes[] = {
		{"qkv", 0, 1, N, 3 * C, C, 1, 0},         {"proj", 0, 1, N, C, C, 0, 0},
		{"fc", 0, 1, N, 4 * C, C, 1, 0},          {"fcproj", 0, 1, N, C, 4 * C, 0, 0},
		{"d fc", 0, 0, N, C, 4 * C, 0, 0},        {"dW fc", 1, 0, 4 * C, C, N, 0, 1},
		{"logits, N/4", 0, 1, N / 4, V, C, 0, 0},
	};
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		time_product(model, &shapes[i], best);
}

/* ---- Products that meet GELU. ---- */

struct meeting {
	struct occ_device *d;
	struct occ_gemm g;
	void *a, *b, *bias, *h, *y;
};

static void gelu_forward(void *arg)
{
	struct meeting *x = arg;
	x->d->ops->gemm_gelu(x->d, &x->g, x->a, x->b, x->bias, x->h, x->y);
}

static void gelu_backward(void *arg)
{
	struct meeting *x = arg;
	x->d->ops->gemm_gelu_backward(x->d, &x->g, x->a, x->b, x->h, x->y);
}

/* fc on the way in, and the gradient through fcproj on the way back. Values of GELU's size. */
static struct meeting meeting_of(struct occ_device *d, int back, int64_t N, int64_t C)
{
	struct meeting x = {.d = d, .g = {.tb = !back, .m = N, .n = 4 * C, .k = C, .lda = C}};
	float small = 1 / sqrtf((float)C);
	x.g.ldb = back ? 4 * C : C;
	x.g.ldc = 4 * C;
	x.g.c_type = OCC_BF16;
	x.g.bias = !back;
	x.a = gpu_draw(d, N * C, OCC_BF16, 1, 1);
	x.b = gpu_draw(d, 4 * C * C, OCC_BF16, 2, small);
	x.bias = back ? NULL : gpu_draw(d, 4 * C, OCC_BF16, 3, 1);
	x.h = gpu_draw(d, N * 4 * C, OCC_BF16, 4, 1);
	x.y = gpu_draw(d, N * 4 * C, OCC_BF16, 5, NAN);
	return x;
}

/* Its milliseconds; *y (N, 4C) is the result, the caller's. */
static double time_gelu(const char *way, int back, int64_t N, int64_t C, uint16_t **y)
{
	struct occ_err e = {0};
	setenv("OCC_GELU", way, 1);
	struct occ_device *d = occ_device_open(dev->ops->name, OCC_BF16, 1, &e);
	occ_check(d, "%s", e.text);
	struct meeting x = meeting_of(d, back, N, C);
	struct occ_device *usual = dev;
	dev = d; /* what gpu_time waits for */
	double ms = gpu_time(back ? gelu_backward : gelu_forward, &x);
	dev = usual;
	*y = gpu_fetch(d, x.y, (size_t)(N * 4 * C) * 2);
	void *all[] = {x.a, x.b, x.bias, x.h, x.y};
	for (int i = 0; i < 5; i++)
		d->ops->free(d, all[i]);
	occ_device_close(d);
	return ms;
}

static void gelus(const char *model, int64_t N, int64_t C)
{
	for (int back = 0; back < 2; back++) {
		uint16_t *apart, *fused;
		char name[64];
		double usual = time_gelu("apart", back, N, C, &apart);
		double ms = time_gelu("fused", back, N, C, &fused);
		double far = gpu_distance(OCC_BF16, fused, apart, N * 4 * C);
		snprintf(name, sizeof(name), "gemm %s %s", model,
			 back ? "d fcproj, gelu'" : "fc, gelu");
		gpu_row(name, ms / usual, "of apart", "-", gpu_verdict(far <= 0.01, 0),
			"apart_ms=%.4g fused_ms=%.4g distance=%.3g", usual, ms, far);
		occ_free(apart);
		occ_free(fused);
	}
}

/* ---- Attention. ---- */

struct attention {
	struct occ_device *d;
	struct occ_attention a;
	void *qkv, *dout, *out, *dqkv;
	float *lse;
};

static void run_forward(void *arg)
{
	struct attention *x = arg;
	x->d->ops->attention_forward(x->d, &x->a, x->qkv, x->out, x->lse);
}

static void run_backward(void *arg)
{
	struct attention *x = arg;
	x->d->ops->attention_backward(x->d, &x->a, x->qkv, x->out, x->lse, x->dout, x->dqkv);
}

static int64_t values(const struct attention *x)
{
	return x->a.B * x->a.T * x->a.H * x->a.D;
}

/* Results hold NaN. */
static struct attention attention_of(struct occ_device *d, const int64_t *s, float scale)
{
	struct attention x = {.d = d, .a = {.B = s[0], .H = s[1], .T = s[2], .D = s[3]}};
	int64_t n = values(&x);
	x.qkv = gpu_draw(d, 3 * n, OCC_BF16, 1, scale);
	x.dout = gpu_draw(d, n, OCC_BF16, 2, scale);
	x.out = gpu_draw(d, n, OCC_BF16, 3, NAN);
	x.dqkv = gpu_draw(d, 3 * n, OCC_BF16, 4, NAN);
	x.lse = gpu_draw(d, s[0] * s[1] * s[2], OCC_F32, 5, NAN);
	return x;
}

static void release(struct attention *x)
{
	void *all[] = {x->qkv, x->dout, x->out, x->dqkv, x->lse};
	for (int i = 0; i < 5; i++)
		x->d->ops->free(x->d, all[i]);
	x->d->ops->sync(x->d);
}

/* Without cuDNN, or as the device likes. */
static void way(int plain)
{
	if (plain)
		setenv("OCC_ATTENTION", "plain", 1);
	else
		unsetenv("OCC_ATTENTION");
}

/* Both directions, and all results on the host: out, dq, dk, dv, lse. */
struct results {
	uint16_t *x[4];
	float *lse;
};

static struct results results_of(struct attention *x)
{
	struct results r;
	int64_t n = values(x), row = x->a.H * x->a.D;
	run_forward(x);
	run_backward(x);
	r.x[0] = gpu_fetch(x->d, x->out, (size_t)n * 2);
	uint16_t *all = gpu_fetch(x->d, x->dqkv, (size_t)n * 6);
	for (int p = 0; p < 3; p++) {
		r.x[1 + p] = occ_alloc((size_t)n, 2);
		for (int64_t i = 0; i < n; i++)
			r.x[1 + p][i] = all[i / row * 3 * row + p * row + i % row];
	}
	r.lse = gpu_fetch(x->d, x->lse, (size_t)(x->a.B * x->a.H * x->a.T) * 4);
	occ_free(all);
	return r;
}

static void forget(struct results *r)
{
	for (int i = 0; i < 4; i++)
		occ_free(r->x[i]);
	occ_free(r->lse);
}

static int same(const struct results *a, const struct results *b, const struct attention *x)
{
	int same = !memcmp(a->lse, b->lse, (size_t)(x->a.B * x->a.H * x->a.T) * 4);
	for (int i = 0; i < 4; i++)
		same &= !memcmp(a->x[i], b->x[i], (size_t)values(x) * 2);
	return same;
}

/* The largest distance; out counts double, lse by more digits. */
static double distance(const struct results *a, const struct results *b, const struct attention *x)
{
	double far = 20 * gpu_distance(OCC_F32, a->lse, b->lse, x->a.B * x->a.H * x->a.T);
	for (int i = 0; i < 4; i++) {
		double d = (i ? 1 : 2) * gpu_distance(OCC_BF16, a->x[i], b->x[i], values(x));
		far = d <= far ? far : d;
	}
	return far;
}

/* NaN wherever the plain way keeps something. */
static void soil(const int64_t *s)
{
	struct attention x = attention_of(dev, s, NAN);
	way(1);
	run_forward(&x);
	run_backward(&x);
	way(0);
	release(&x);
}

static void check(const int64_t *s)
{
	const double far = 0.02;
	struct attention x = attention_of(dev, s, 1), y = attention_of(ref, s, 1);
	char name[64];
	soil(s);
	struct results a = results_of(&x);
	soil(s);
	struct results b = results_of(&x), truth = results_of(&y);
	way(1);
	struct results plain = results_of(&x);
	way(0);
	/* Another order of sums gives other bits somewhere: equal ones are one way's. */
	int fused = !same(&a, &plain, &x), again = same(&a, &b, &x);
	double of_own = distance(&a, &truth, &x), of_plain = distance(&plain, &truth, &x);
	int right = of_own <= far && of_plain <= far && again;
	const char *verdict = gpu_verdict(right, 0);
	snprintf(name, sizeof(name), "attention B%d H%d T%d D%d", (int)s[0], (int)s[1], (int)s[2],
		 (int)s[3]);
	gpu_row(name, of_own, "of rms", "0.02", right && !fused && !tiny ? "no plan" : verdict,
		"plain=%.3g apart=%.3g cudnn=%d twice_equal=%d", of_plain, distance(&a, &plain, &x),
		fused, again);
	forget(&a);
	forget(&b);
	forget(&truth);
	forget(&plain);
	release(&x);
	release(&y);
}

/* B, H, T, D */
static const int64_t shapes[][4] = {{2, 3, 64, 64},   {2, 3, 100, 64},   {1, 2, 1000, 64},
				    {1, 2, 1024, 64}, {2, 3, 100, 80},   {1, 2, 1024, 80},
				    {2, 3, 64, 128},  {1, 2, 1000, 128}, {1, 2, 1024, 128},
				    {2, 3, 100, 256}, {1, 1, 1024, 256}},
		     small[][4] = {{2, 2, 8, 16},   {1, 2, 20, 64}, {1, 1, 33, 80},
				   {1, 1, 12, 128}, {1, 1, 9, 256}, {1, 2, 24, 20}};

static void checks(void)
{
	size_t n = tiny ? sizeof(small) / sizeof(small[0]) : sizeof(shapes) / sizeof(shapes[0]);
	for (size_t i = 0; i < n; i++)
		check(tiny ? small[i] : shapes[i]);
}

/* Both ways, both directions: products below the diagonal. */
static void time_attention(const char *model, const int64_t *s, double best)
{
	struct attention x = attention_of(dev, s, 1);
	double work = 2e-9 * (double)values(&x) * (double)s[2];
	for (int plain = 0; plain < 2; plain++)
		for (int back = 0; back < 2; back++) {
			char name[64], bound[64];
			way(plain);
			double ms = gpu_time(back ? run_backward : run_forward, &x);
			double rate = work * (back ? 2.5 : 1) / ms, share = rate / best;
			snprintf(name, sizeof(name), "attention %s %s %s", model,
				 plain ? "plain" : "as it comes", back ? "backward" : "forward");
			snprintf(bound, sizeof(bound), "%.4g TFLOP/s", 0.5 * best);
			gpu_row(name, rate, "TFLOP/s", plain ? "-" : bound,
				gpu_verdict(1, plain ? 0 : 2 * GPU_SLOW * share),
				"ms=%.4g share=%.3f", ms, share);
		}
	way(0);
	release(&x);
}

/* ---- Versions. ---- */

static void *symbol(const char *name)
{
	return dlsym(RTLD_DEFAULT, name);
}

/* By name, so that this file builds without CUDA's headers. */
static void versions(void)
{
	int (*get)(int *), n = 0;
	int (*property)(int, int *);
	size_t (*number_of)(void);
	printf("version\tlanes\t%d\n", occ_lane_built()); /* NCCL is loaded for it */
	/* The emulation's GPU is called OCCEMU. */
	printf("version\temulated\t%d\n", !strncmp(dev->unit, "GPU-4f434345-4d55", 17));
	static const char *const names[] = {"cudaDriverGetVersion", "cudaRuntimeGetVersion",
					    "ncclGetVersion"};
	static const char *const words[] = {"driver_cuda", "runtime", "nccl"};
	for (int i = 0; i < 3; i++)
		if ((*(void **)&get = symbol(names[i])) && !get(&n))
			printf("version\t%s\t%d\n", words[i], n);
	if ((*(void **)&number_of = symbol("cudnnGetVersion")))
		printf("version\tcudnn\t%zu\n", number_of());
	if ((*(void **)&property = symbol("cublasGetProperty"))) {
		int part[3] = {0};
		for (int i = 0; i < 3; i++)
			property(i, &part[i]);
		printf("version\tcublas\t%d.%d.%d\n", part[0], part[1], part[2]);
	}
}

int main(int argc, char **argv)
{
	const char *part = argc > 3 ? argv[3] : "";
	static const int64_t A[] = {32, 12, 1024, 64}, B[] = {8, 16, 2048, 128};
	int code =
		gpu_begin(argc, argv, "gpu_matrix DEVICE tiny|full gemm|attention|check|versions");
	if (code)
		return code;
	if (!strcmp(part, "versions")) {
		versions();
	} else if (!strcmp(part, "check")) {
		checks();
	} else if (!strcmp(part, "gemm")) {
		double best = best_product();
		products("A", tiny ? 32 : 32768, tiny ? 24 : 768, tiny ? 64 : 50304, best);
		products("B", tiny ? 16 : 16384, tiny ? 32 : 2048, tiny ? 64 : 50304, best);
		gelus("A", tiny ? 32 : 32768, tiny ? 24 : 768);
		gelus("B", tiny ? 16 : 16384, tiny ? 32 : 2048);
	} else if (!strcmp(part, "attention")) {
		double best = best_product();
		time_attention("A", tiny ? small[0] : A, best);
		time_attention("B", tiny ? small[1] : B, best);
	}
	return gpu_end();
}

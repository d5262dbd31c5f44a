/* Attention's graphs for cuDNN, without a GPU (make CUDA=1 cudnn-plans): the tables are sound, they
 * mean attention (computed here by hand, beside the ref device), cuDNN has plans for them, and it
 * refuses wrong ones in words. -v lists the kernels; -s takes a few shapes only.
 * TIME: 300 */
#include "tests/check.h"

#include "base/cuda_sdpa.h"
#include "base/mem.h"
#include "base/ref.h"

static int verbose, brief;

/* ---- computing a graph by hand: every tensor in double, laid out as cuDNN is told ---- */

struct hand {
	const struct occ_attention *a;
	double *at[SDPA_TENSORS];
	double *own[SDPA_TENSORS]; /* those that are only between operations */
};

static int64_t span(const struct occ_attention *a, enum sdpa_tensor t)
{
	int64_t dim[4], stride[4], n = 1;
	occ_sdpa_shape(a, t, dim, stride);
	for (int i = 0; i < 4; i++)
		n += (dim[i] - 1) * stride[i];
	return n;
}

/* Element at index i; a dimension of 1 is repeated. */
static double *element(const struct hand *m, enum sdpa_tensor t, const int64_t i[4])
{
	int64_t dim[4], stride[4], at = 0;
	occ_sdpa_shape(m->a, t, dim, stride);
	for (int k = 0; k < 4; k++)
		at += dim[k] == 1 ? 0 : i[k] * stride[k];
	return &m->at[t][at];
}

static double product(const struct hand *m, const struct sdpa_node *n, const int64_t i[4])
{
	int64_t dim[4], stride[4], left[4], right[4];
	double sum = 0;
	occ_sdpa_shape(m->a, n->x, dim, stride);
	memcpy(left, i, sizeof(left));
	memcpy(right, i, sizeof(right));
	for (int64_t k = 0; k < dim[3]; k++) {
		left[3] = right[2] = k;
		sum += *element(m, n->x, left) * *element(m, n->b, right);
	}
	return sum;
}

/* Over dimension 3, the only one these graphs reduce. */
static double reduced(const struct hand *m, const struct sdpa_node *n, const int64_t i[4])
{
	int64_t dim[4], stride[4], j[4] = {i[0], i[1], i[2], 0};
	double v = n->op == SDPA_MAXIMUM ? -INFINITY : 0;
	occ_sdpa_shape(m->a, n->x, dim, stride);
	for (; j[3] < dim[3]; j[3]++) {
		double x = *element(m, n->x, j);
		v = n->op == SDPA_TOTAL ? v + x : fmax(v, x);
	}
	return v;
}

static double value(const struct hand *m, const struct sdpa_node *n, const int64_t i[4])
{
	if (n->op == SDPA_MATMUL) /* i need not be an index of what it multiplies */
		return product(m, n, i);
	double x = *element(m, n->x, i);
	double b = n->b == SDPA_NONE ? 0 : *element(m, n->b, i);
	switch (n->op) {
	case SDPA_MAXIMUM:
	case SDPA_TOTAL:
		return reduced(m, n, i);
	case SDPA_ADD:
		return x + b;
	case SDPA_SUB:
		return x - b;
	case SDPA_MUL:
		return x * b;
	case SDPA_DIV:
		return x / b;
	case SDPA_EXPONENTIAL:
		return exp(x);
	case SDPA_LOGARITHM:
		return log(x);
	case SDPA_QUERY:
		return (double)i[2];
	case SDPA_KEY:
		return (double)i[3];
	case SDPA_GE:
		return x >= b;
	case SDPA_SELECT:
		return *element(m, n->t, i) != 0 ? x : b;
	default:
		return x;
	}
}

static void step(struct hand *m, const struct sdpa_node *n)
{
	int64_t dim[4], stride[4], i[4];
	if (n->op == SDPA_RESHAPE) {
		memcpy(m->at[n->y], m->at[n->x], (size_t)span(m->a, n->x) * sizeof(double));
		return;
	}
	occ_sdpa_shape(m->a, n->y, dim, stride);
	for (i[0] = 0; i[0] < dim[0]; i[0]++)
		for (i[1] = 0; i[1] < dim[1]; i[1]++)
			for (i[2] = 0; i[2] < dim[2]; i[2]++)
				for (i[3] = 0; i[3] < dim[3]; i[3]++)
					*element(m, n->y, i) = value(m, n, i);
}

static void compute(struct hand *m, const struct sdpa_graph *g)
{
	for (int t = SDPA_BOUND; t < SDPA_TENSORS; t++)
		m->at[t] = m->own[t] =
			occ_alloc((size_t)span(m->a, (enum sdpa_tensor)t), sizeof(double));
	for (int i = 0; i < g->n; i++)
		step(m, &g->node[i]);
	for (int t = SDPA_BOUND; t < SDPA_TENSORS; t++)
		occ_free(m->own[t]);
}

/* ---- what the graphs mean ---- */

enum { B = 2, H = 3, L = 7, D = 8, R = B * L, C = H * D };

struct numbers { /* the same run, by hand and by ref */
	double qkv[R * 3 * C], out[R * C], lse[B * H * L], dout[R * C], dqkv[R * 3 * C];
	double rowsum[B * H * L], acc[R * C], scale, neg, one;
	float f_qkv[R * 3 * C], f_out[R * C], f_lse[B * H * L], f_dout[R * C], f_dqkv[R * 3 * C];
};

static void fill(int n, uint64_t seed, double *x, float *f)
{
	for (int i = 0; i < n; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		f[i] = (float)((double)(seed >> 40) / (1 << 23) - 1);
		x[i] = (double)f[i];
	}
}

static double worst(int n, const double *x, const float *f)
{
	double far = 0;
	for (int i = 0; i < n; i++) {
		double d = fabs(x[i] - (double)f[i]);
		far = d <= far ? far : d; /* a NaN counts */
	}
	return far;
}

static void start(struct numbers *s, struct hand *m, const struct occ_attention *a)
{
	static struct occ_device ref = {.type = OCC_F32, .threads = 1};
	fill(R * 3 * C, 1, s->qkv, s->f_qkv);
	fill(R * C, 2, s->dout, s->f_dout);
	s->scale = 1 / sqrt((double)D);
	s->neg = -INFINITY;
	s->one = 1;
	occ_ref_attention_forward(&ref, a, s->f_qkv, s->f_out, s->f_lse);
	occ_ref_attention_backward(&ref, a, s->f_qkv, s->f_out, s->f_lse, s->f_dout, s->f_dqkv);
	*m = (struct hand){.a = a,
			   .at = {[SDPA_Q] = s->qkv,
				  [SDPA_KT] = s->qkv + C,
				  [SDPA_V] = s->qkv + 2 * C,
				  [SDPA_VT] = s->qkv + 2 * C,
				  [SDPA_O] = s->out,
				  [SDPA_STATS] = s->lse,
				  [SDPA_DO] = s->dout,
				  [SDPA_DQ] = s->dqkv,
				  [SDPA_DK] = s->dqkv + C,
				  [SDPA_DV] = s->dqkv + 2 * C,
				  [SDPA_ROWSUM] = s->rowsum,
				  [SDPA_ACC] = s->acc,
				  [SDPA_SCALE] = &s->scale,
				  [SDPA_NEG] = &s->neg,
				  [SDPA_ONE] = &s->one}};
}

/* Lets the mask pass everything: a graph of attention that is not causal. */
static void unmask(struct sdpa_graph *g)
{
	for (int i = 0; i < g->n; i++)
		if (g->node[i].op == SDPA_SELECT)
			g->node[i].b = g->node[i].x;
}

static void test_meaning(void)
{
	static struct numbers s;
	const struct occ_attention a = {.B = B, .T = L, .H = H, .D = D};
	struct sdpa_graph g;
	struct hand m;
	start(&s, &m, &a);
	occ_sdpa_graph(SDPA_FORWARD, &g);
	compute(&m, &g);
	CHECK_NEAR(worst(R * C, s.out, s.f_out), 0, 1e-6, "output");
	CHECK_NEAR(worst(B * H * L, s.lse, s.f_lse), 0, 1e-6, "log of the sum");
	for (int way = SDPA_BACKWARD; way <= SDPA_BACKWARD_REPEATABLE; way++) {
		memset(s.dqkv, 0xff, sizeof(s.dqkv));
		occ_sdpa_graph((enum sdpa_way)way, &g);
		compute(&m, &g);
		CHECK_NEAR(worst(R * 3 * C, s.dqkv, s.f_dqkv), 0, 1e-5, "gradients, way %d", way);
	}
	occ_sdpa_graph(SDPA_FORWARD, &g);
	unmask(&g);
	compute(&m, &g);
	CHECK(worst(R * C, s.out, s.f_out) > 0.01, "a graph without the mask is told apart");
}

/* ---- the tables ---- */

static void test_order(const struct sdpa_graph *g, int way)
{
	int written[SDPA_TENSORS + 1] = {0};
	for (int i = 0; i < g->n; i++) {
		const enum sdpa_tensor in[3] = {g->node[i].x, g->node[i].b, g->node[i].t};
		for (int k = 0; k < 3; k++)
			CHECK(in[k] < SDPA_BOUND || in[k] == SDPA_NONE || written[in[k]],
			      "way %d, node %d reads tensor %d before it is there", way, i, in[k]);
		CHECK(!written[g->node[i].y]++, "way %d, node %d writes again", way, i);
	}
	for (int t = SDPA_BOUND; t < SDPA_TENSORS; t++)
		CHECK(occ_sdpa_used(g, (enum sdpa_tensor)t) == written[t], "way %d tensor %d", way,
		      t);
}

static void test_tables(void)
{
	static const int nodes[] = {14, 22, 21};
	struct sdpa_graph g;
	for (int way = 0; way < 3; way++) {
		occ_sdpa_graph((enum sdpa_way)way, &g);
		CHECK(g.n == nodes[way], "way %d: %d nodes", way, g.n);
		test_order(&g, way);
		CHECK(occ_sdpa_used(&g, SDPA_ACC) == (way == SDPA_BACKWARD), "way %d", way);
		CHECK(occ_sdpa_used(&g, SDPA_NEG) == 1, "way %d has no mask", way);
	}
}

/* ---- plans ---- */

static const struct gpu {
	const char *name, *kernels; /* its kernels' names begin so; NULL: older ones serve too */
	int version, sms, shared;
	int64_t largest; /* head size with a way back */
	int nlengths;
} gpus[] = {
	{"NVIDIA H200", "sm90", 900, 132, 232448, 256, 4},
	{"NVIDIA A100-SXM4-80GB", "sm80", 800, 108, 166912, 128, 2},
	{"NVIDIA B200", NULL, 1000, 148, 232448, 128, 2},
};

static const int64_t lengths[] = {1024, 100, 64, 2048};
static const int64_t sizes[] = {16, 64, 80, 128, 256};

static cudnnBackendDescriptor_t describe(const struct gpu *u)
{
	char json[2048];
	snprintf(json, sizeof(json),
		 "{\"deviceVer\": %d, \"multiProcessorCount\": %d, \"deviceName\": \"%s\", "
		 "\"maxSharedMemoryPerBlockOptin\": %d, \"maxGridSize\": [2147483647, 65535, "
		 "65535], "
		 "\"maxBlockSize\": [1024, 1024, 64], \"driverVer\": 13000, "
		 "\"totalGlobalMem\": 85899345920, \"regsPerBlock\": 65536, "
		 "\"smClockRateKHz\": 1500000, \"memClockRateKHz\": 2000000, "
		 "\"l2CacheSize\": 52428800, \"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152, "
		 "\"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, "
		 "\"pciDeviceId\": 0, \"maxCtasPerSM\": 32, \"maxThreadsPerBlock\": 1024, "
		 "\"maxThreadsPerSM\": 2048, \"isTccDriver\": 0, \"supportCoopLaunch\": 1, "
		 "\"cudaDeviceId\": 0}",
		 u->version, u->sms, u->name, u->shared);
	return occ_sdpa_gpu(json);
}

/* Pointers of the right alignment are accepted; nothing is read. */
static void test_bind(struct sdpa_plan *p)
{
	static float memory[SDPA_BOUND + 1][4] __attribute__((aligned(256)));
	void *at[SDPA_BOUND];
	for (int i = 0; i < SDPA_BOUND; i++)
		at[i] = memory[i];
	cudnnBackendDescriptor_t d = occ_sdpa_bind(p, at, memory[SDPA_BOUND]);
	CHECK(d != NULL, "%s", p->words);
	if (d)
		cudnnBackendDestroyDescriptor(d);
}

/* What cuDNN may ask for: fp32 sums of dQ, and dS in bf16 where dQ is to repeat. */
static void test_workspace(const struct sdpa_plan *p, const struct occ_attention *a,
			   enum sdpa_way way)
{
	int64_t n = (a->T + 127) / 128 * 128, sums = 4 * a->B * a->H * n * (a->D + 64);
	int64_t ds = way == SDPA_BACKWARD_REPEATABLE ? 2 * a->B * a->H * n * n : 0;
	int64_t least = ds ? 2 * a->B * a->H * a->T * a->T : 0;
	CHECK(p->workspace >= least && p->workspace <= ds + sums + (1 << 20),
	      "T %d D %d way %d: %ld bytes", (int)a->T, (int)a->D, way, (long)p->workspace);
}

static void test_plan(const struct gpu *u, cudnnBackendDescriptor_t d,
		      const struct occ_attention *a, enum sdpa_way way)
{
	struct sdpa_graph g;
	struct sdpa_plan p;
	char name[SDPA_NAME];
	occ_sdpa_graph(way, &g);
	int none = occ_sdpa_plan(&p, &g, a, NULL, d) != 0;
	int refused = way != SDPA_FORWARD && a->D > u->largest;
	occ_sdpa_name(&p, name);
	CHECK(none == refused, "%s T %d D %d way %d: %s", u->name, (int)a->T, (int)a->D, way,
	      none ? p.words : "a plan");
	CHECK(none == (p.words[0] != 0), "words: %s", p.words);
	if (verbose)
		printf("sm_%d T %4d D %3d way %d: %ld bytes, %s\n", u->version / 10, (int)a->T,
		       (int)a->D, way, (long)p.workspace, none ? p.words : name);
	if (!none) {
		CHECK(strstr(name, way == SDPA_FORWARD ? "fprop" : "bprop"), "%s", name);
		CHECK(!u->kernels || strstr(name, u->kernels), "%s", name);
		test_workspace(&p, a, way);
		test_bind(&p);
	}
	occ_sdpa_close(&p);
}

static void test_plans(const struct gpu *u, cudnnBackendDescriptor_t d)
{
	for (int t = 0; t < u->nlengths; t++)
		for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++)
			for (int way = 0; way < 3; way++) {
				struct occ_attention a = {
					.B = 2, .H = 3, .T = lengths[t], .D = sizes[k]};
				if (brief && (t || a.D != 64 || u != gpus))
					continue;
				test_plan(u, d, &a, (enum sdpa_way)way);
			}
}

/* ---- what cuDNN must not take ---- */

static void scale_last(struct sdpa_graph *g) /* after the softmax, which is no attention */
{
	g->node[1] = g->node[g->n - 1];
}

static void swap_mask(struct sdpa_graph *g) /* the comparison before what it compares */
{
	struct sdpa_node n = g->node[2];
	g->node[2] = g->node[4];
	g->node[4] = n;
}

static void no_maximum(struct sdpa_graph *g) /* an index is no maximum */
{
	g->node[6].op = SDPA_KEY;
}

static void keep(struct sdpa_graph *g)
{
	(void)g;
}

static void test_refusals(cudnnBackendDescriptor_t d)
{
	static const struct {
		const char *what;
		int64_t T, D;
		void (*spoil)(struct sdpa_graph *g);
		int refused;
	} rows[] = {
		{"as it is", 256, 64, keep, 0},
		{"head size 300", 256, 300, keep, 1},
		{"head size 20", 256, 20, keep, 1},
		{"no tokens", 0, 64, keep, 1},
		{"two last products", 256, 64, scale_last, 1},
		{"no maximum", 256, 64, no_maximum, 1},
		{"another order", 256, 64, swap_mask, 0},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct occ_attention a = {.B = 2, .H = 3, .T = rows[i].T, .D = rows[i].D};
		struct sdpa_graph g;
		struct sdpa_plan p;
		occ_sdpa_graph(SDPA_FORWARD, &g);
		rows[i].spoil(&g);
		int none = occ_sdpa_plan(&p, &g, &a, NULL, d) != 0;
		CHECK(none == rows[i].refused, "%s: %s", rows[i].what, none ? p.words : "a plan");
		CHECK(none == (p.words[0] != 0), "%s: words \"%s\"", rows[i].what, p.words);
		if (verbose)
			printf("%s: %s\n", rows[i].what, none ? p.words : "a plan");
		occ_sdpa_close(&p);
	}
}

int main(int argc, char **argv)
{
	verbose = argc > 1 && !strcmp(argv[1], "-v");
	brief = argc > 1 && !strcmp(argv[1], "-s");
	test_tables();
	test_meaning();
	for (size_t i = 0; i < sizeof(gpus) / sizeof(*gpus); i++) {
		cudnnBackendDescriptor_t d = describe(&gpus[i]);
		CHECK(d, "cuDNN does not take a description of %s", gpus[i].name);
		if (!d)
			continue;
		test_plans(&gpus[i], d);
		if (i == 0)
			test_refusals(d);
		occ_sdpa_gpu_close(d);
	}
	return check_done();
}

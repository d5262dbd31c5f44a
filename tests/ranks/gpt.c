/* The whole model over ranks that are threads: loss and every gradient do not depend on how it is
 * split, in micro-batches or over ranks, and are those of the function by finite differences.
 * Padding rows of the vocabulary hold large weights here, so that they would be seen. Argument: the
 * device (cpu). */
#include "model/gpt.h"

#include "base/mem.h"
#include "tests/check.h"
#include "tests/whole.h"

enum { T = 16, VOCAB = 61, GLOBAL = 12, MAX_P = 4 };

static const char *device = "cpu";

/* A training step on global samples of which the first `real` are not padding. */
struct setting {
	struct occ_layout layout;
	struct occ_gpt_shape shape;
	const char *device;
	enum occ_type type;
	int64_t micro, global, real;
	int zero;     /* all weights 0 */
	double *loss; /* out: mean token loss of `global` samples */
	float *grad;  /* out: as struct occ_weights of one rank with the vocabulary unpadded */
};

static const struct occ_gpt_shape base = {
	.layers = 4,
	.hidden = 32,
	.heads = 4,
	.seq_len = T,
	.vocab = VOCAB,
	.tied = 1,
	.init_std = 0.02,
};

/* One rank's model with all that it stands on. */
struct rig {
	const struct setting *set;
	struct occ_comm *world;
	struct occ_topo topo;
	struct occ_device *dev;
	struct occ_group tp;
	struct occ_gpt gpt;
	struct occ_exec exec;
	struct occ_schedule list;
	struct occ_stage stage;
	int M;
	int32_t *tokens;
	float *flat;
};

static struct setting setting(int tp, int pp, int dp)
{
	return (struct setting){
		.layout = {tp, pp, dp},
		.shape = base,
		.device = device,
		.type = OCC_F32,
		.micro = 1,
		.global = GLOBAL,
		.real = GLOBAL,
	};
}

/* The model of one rank, unpadded: the order of struct setting's grad. */
static void whole_table(struct occ_weights *w, const struct occ_gpt_shape *shape)
{
	struct occ_gpt_shape s = *shape;
	struct occ_layout one = {1, 1, 1};
	s.vocab_padded = s.vocab;
	occ_weights_init(w, &s, &one, (struct occ_place){0, 0, 0});
}

static int64_t whole_size(const struct occ_gpt_shape *shape)
{
	struct occ_weights w;
	whole_table(&w, shape);
	int64_t n = w.size;
	occ_weights_release(&w);
	return n;
}

/* Values of about a quarter, norms around 1, padding 7. */
static void fill(const struct occ_weights *w, float *flat)
{
	whole_fill(w, 5, flat);
	for (int i = 0; i < w->n; i++) {
		const struct occ_weight *p = &w->at[i];
		for (int64_t k = 0; k < p->lrows * p->lcols; k++) {
			float *x = &flat[p->at + k];
			int64_t row = occ_weight_row(w, p, k / p->lcols);
			*x = row < p->real_rows ? *x * 0x1p-33f + p->init_fill : 7.0f;
		}
	}
}

static void deal_tokens(struct rig *r)
{
	const struct setting *s = r->set;
	for (int64_t i = 0; i < r->M * s->micro; i++) {
		int64_t k = i / s->micro,
			sample = (k * s->layout.data + r->topo.place.dp) * s->micro + i % s->micro;
		for (int64_t t = 0; t <= T; t++)
			r->tokens[i * (T + 1) + t] =
				sample < s->real
					? (int32_t)(whole_mix((uint64_t)(sample * 100 + t)) % VOCAB)
					: -1;
	}
}

static void rig_open(struct rig *r, struct occ_comm *world, const struct setting *s)
{
	struct occ_err e = {0};
	struct occ_gpt_shape shape = s->shape;
	int pp, P = s->layout.pipeline;
	*r = (struct rig){
		.set = s, .world = world, .M = (int)(s->global / s->micro / s->layout.data)};
	occ_topo_init(&r->topo, world, &s->layout, 0);
	pp = r->topo.place.pp;
	r->dev = occ_device_open(s->device, s->type, 1, &e);
	occ_check(r->dev, "%s", e.text);
	occ_group_init(&r->tp, r->topo.tp, r->dev, 1 << 20);
	shape.vocab_padded = occ_vocab_padded(VOCAB, 8, s->layout.tensor);
	occ_schedule_1f1b(&r->list, pp, P, r->M);
	occ_gpt_init(&r->gpt, &shape, &r->topo, r->dev, &r->tp, s->micro, r->list.slots);
	occ_exec_init(&r->exec, &r->topo, r->dev, &r->tp, s->micro * T, shape.hidden,
		      r->list.slots);
	occ_gpt_stage(&r->gpt, &r->stage);
	r->tokens = occ_alloc((size_t)(r->M * s->micro * (T + 1)), sizeof(int32_t));
	r->flat = occ_alloc((size_t)r->gpt.weights.size, sizeof(float));
	deal_tokens(r);
}

static void rig_close(struct rig *r)
{
	occ_free(r->flat);
	occ_free(r->tokens);
	occ_exec_release(&r->exec);
	occ_schedule_release(&r->list);
	occ_gpt_release(&r->gpt);
	occ_group_release(&r->tp);
	occ_device_close(r->dev);
	occ_topo_release(&r->topo);
}

/* One step with the weights in r->flat. Collective; every rank returns the mean loss. */
static double rig_step(struct rig *r)
{
	const struct setting *s = r->set;
	struct occ_gpt_batch b = {
		.tokens = r->tokens,
		.nmicro = r->M,
		.row0 = r->topo.place.dp * s->micro * T,
		.row_step = s->layout.data * s->micro * T,
		.grad_scale = (float)(1.0 / (double)(s->global * T)),
		.step = 3,
		.dropout_key = occ_rng_key(9, OCC_RNG_DROPOUT),
		.train = 1,
	};
	int counts = r->topo.place.pp == s->layout.pipeline - 1 && r->topo.place.tp == 0;
	occ_gpt_put(&r->gpt, r->flat);
	occ_gpt_begin(&r->gpt, &b);
	occ_exec_step(&r->exec, &r->list, &r->stage);
	double v[2] = {counts ? r->gpt.loss_sum : 0, counts ? (double)r->gpt.loss_tokens : 0};
	occ_comm_sum_double(r->world, v, 2);
	CHECK(v[1] == (double)(s->real * T), "%g tokens counted", v[1]);
	return v[0] / (double)(s->global * T);
}

/* Element k of local tensor p in the whole tensor; -1 for padding. */
static int64_t whole_index(const struct occ_weights *w, const struct occ_weight *p, int64_t k)
{
	int64_t row = occ_weight_row(w, p, k / p->lcols), col = occ_weight_col(w, p, k % p->lcols);
	return row < p->real_rows ? row * p->cols + col : -1;
}

/* Writes this rank's gradients into the whole, or compares them: ranks that hold the same part of a
 * tensor hold the same bits. */
static void rig_gather(struct rig *r, float *grad, int write)
{
	const struct occ_weights *w = &r->gpt.weights;
	struct occ_weights all;
	int wrong = 0;
	whole_table(&all, &r->set->shape);
	r->dev->ops->get(r->dev, r->flat, r->gpt.d_grad, (size_t)w->size * sizeof(float));
	for (int i = 0; i < w->n; i++) {
		const struct occ_weight *p = &w->at[i];
		float *to = grad + occ_weights_find(&all, p->name)->at;
		int mine =
			r->topo.place.dp == 0 && !p->copy && (p->split != OCC_WHOLE || w->tp == 0);
		for (int64_t k = 0; k < p->lrows * p->lcols; k++) {
			int64_t at = whole_index(w, p, k);
			float x = r->flat[p->at + k];
			if (at >= 0 && write && mine)
				to[at] = x;
			else if (!write)
				wrong += at < 0 ? x != 0 : memcmp(&to[at], &x, sizeof(x)) != 0;
		}
	}
	CHECK(!wrong, "rank %d: %d gradients differ from their copies, or padding has some",
	      r->world->rank, wrong);
	occ_weights_release(&all);
}

static int body(struct occ_comm *world, void *arg)
{
	const struct setting *s = arg;
	struct rig r;
	rig_open(&r, world, s);
	if (!s->zero)
		fill(&r.gpt.weights, r.flat);
	double loss = rig_step(&r);
	if (world->rank == 0)
		*s->loss = loss;
	rig_gather(&r, s->grad, 1);
	occ_comm_barrier(world);
	rig_gather(&r, s->grad, 0);
	rig_close(&r);
	return 0;
}

struct result {
	struct occ_gpt_shape shape;
	char name[96];
	double loss;
	float *grad; /* owned */
};

static struct result run(struct setting s)
{
	struct result r = {.shape = s.shape};
	const struct occ_layout *l = &s.layout;
	snprintf(r.name, sizeof(r.name), "%s tp %d pp %d dp %d tied %d dropout %g micro %d of %d",
		 s.device, l->tensor, l->pipeline, l->data, s.shape.tied, s.shape.dropout,
		 (int)s.micro, (int)s.global);
	r.grad = occ_alloc((size_t)whole_size(&s.shape), sizeof(float));
	s.loss = &r.loss;
	s.grad = r.grad;
	occ_comm_run_threads(l->tensor * l->pipeline * l->data, 60, body, &s);
	return r;
}

static double norm(const float *a, const float *b, int64_t n)
{
	double sum = 0;
	for (int64_t i = 0; i < n; i++) {
		double d = (double)a[i] - (b ? (double)b[i] : 0);
		sum += d * d;
	}
	return sqrt(sum);
}

/* ‖a-b‖ <= tol ‖a‖. The key third of a qkv bias has gradient 0 but for rounding: it is measured
 * against the whole bias. */
static void near_tensor(const struct result *a, const struct result *b, const struct occ_weight *p,
			double tol)
{
	const float *x = a->grad + p->at, *y = b->grad + p->at;
	int64_t n = p->rows * p->cols, third = n / 3;
	double all = norm(x, NULL, n);
	int keyed = p->ndim == 1 && p->groups == 3;
	CHECK(all > 0 && isfinite(all), "%s: %s: norm %g", a->name, p->name, all);
	CHECK(norm(x, y, n) <= tol * all, "%s: %s: %g", b->name, p->name, norm(x, y, n) / all);
	for (int i = 0; keyed && i < 3; i += 2)
		CHECK(norm(x + i * third, y + i * third, third) <=
			      tol * norm(x + i * third, NULL, third),
		      "%s: %s, third %d", b->name, p->name, i);
	if (keyed)
		CHECK(norm(y + third, NULL, third) <= tol * all, "%s: %s: keys have gradient %g",
		      b->name, p->name, norm(y + third, NULL, third) / all);
}

static void near(const struct result *a, const struct result *b, double tol)
{
	struct occ_weights w;
	whole_table(&w, &a->shape);
	CHECK_NEAR(a->loss, b->loss, tol * a->loss, "%s: loss %.9g, not %.9g", b->name, b->loss,
		   a->loss);
	CHECK(norm(a->grad, b->grad, w.size) <= tol * norm(a->grad, NULL, w.size), "%s: all %g",
	      b->name, norm(a->grad, b->grad, w.size) / norm(a->grad, NULL, w.size));
	for (int i = 0; i < w.n; i++)
		near_tensor(a, b, &w.at[i], tol);
	occ_weights_release(&w);
}

static void equal(const struct result *a, const struct result *b)
{
	CHECK(a->loss == b->loss && a->loss > 1, "%s: loss %.17g, not %.17g", b->name, b->loss,
	      a->loss);
	CHECK(!memcmp(a->grad, b->grad, (size_t)whole_size(&a->shape) * sizeof(float)),
	      "%s: other bits than %s", b->name, a->name);
}

/* Runs both, compares, frees. */
static void compare(struct setting a, struct setting b, double tol)
{
	struct result x = run(a), y = run(b);
	if (tol > 0)
		near(&x, &y, tol);
	else
		equal(&x, &y);
	occ_free(x.grad);
	occ_free(y.grad);
}

static struct setting variant(int tp, int pp, int dp, int tied)
{
	struct setting s = setting(tp, pp, dp);
	s.shape.tied = tied;
	s.shape.dropout = tied ? 0 : 0.1;
	return s;
}

/* Every layout of at most 8 ranks; dropout comes with the untied ones, whose pp alone changes no
 * bit. */
static void test_layouts(int tied)
{
	struct result one = run(variant(1, 1, 1, tied));
	for (int tp = 1; tp <= 4; tp *= 2)
		for (int pp = 1; tp * pp <= 8 && pp <= MAX_P; pp++)
			for (int dp = 1; tp * pp * dp <= 8; dp++) {
				if (GLOBAL % dp)
					continue;
				struct result r = run(variant(tp, pp, dp, tied));
				if (tp * dp == 1 && !tied)
					equal(&one, &r);
				near(&one, &r, 1e-5);
				occ_free(r.grad);
			}
	occ_free(one.grad);
}

/* pp alone with tp and dp held; and fewer micro-batches than stages. */
static void test_pipeline(void)
{
	compare(variant(2, 1, 2, 0), variant(2, 2, 2, 0), 0);
	for (int64_t global = 1; global < MAX_P; global++) {
		struct setting one = variant(1, 1, 1, 0), four = variant(1, MAX_P, 1, 0);
		one.global = one.real = four.global = four.real = global;
		compare(one, four, 0);
	}
}

static void test_recompute(void)
{
	static const struct occ_layout layouts[] = {{1, 1, 1}, {2, 2, 2}, {1, 4, 1}};
	for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
		for (int tied = 0; tied <= 1; tied++) {
			struct setting none = setting(1, 1, 1), full;
			none.layout = layouts[i];
			none.shape.tied = tied;
			none.shape.dropout = 0.1;
			full = none;
			full.shape.recompute = 1;
			compare(none, full, 0);
		}
}

static void test_micro(void)
{
	static const struct {
		int64_t micro;
		int pp, dp;
	} rows[] = {
		{2, 1, 1},  {3, 1, 1}, {4, 1, 1}, {6, 1, 1},
		{12, 1, 1}, {2, 2, 3}, {3, 4, 2}, {6, 2, 2},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct setting one = variant(1, 1, 1, i % 2),
			       s = variant(1, rows[i].pp, rows[i].dp, i % 2);
		s.micro = rows[i].micro;
		compare(one, s, 1e-5);
	}
}

/* Dropout changes the loss, and its mask moves with the sample: else its invariance says little. */
static void test_dropout_matters(void)
{
	struct setting s = setting(1, 1, 1);
	struct result without = run(s);
	s.shape.dropout = 0.1;
	struct result with = run(s);
	CHECK(fabs(with.loss - without.loss) > 1e-4, "dropout does nothing");
	occ_free(with.grad);
	occ_free(without.grad);
}

/* Uniform logits: the loss is that of the real vocabulary, not of the padded one. */
static void test_zero(void)
{
	for (int tp = 1; tp <= 4; tp *= 2)
		for (int tied = 0; tied <= 1; tied++) {
			struct setting s = variant(tp, 1, 1, tied);
			s.zero = 1;
			struct result r = run(s);
			CHECK_NEAR(r.loss, log(VOCAB), 1e-6, "%s: %.9g, not ln(V)", r.name, r.loss);
			occ_free(r.grad);
		}
}

/* Padding samples change nothing but the divisor, whether they fill a micro-batch or a part of one.
 */
static void test_padding(void)
{
	static const struct {
		int64_t micro;
		int tp, pp, dp;
	} rows[] = {
		{1, 1, 1, 1}, {2, 1, 1, 1}, {4, 1, 2, 1}, {1, 2, 2, 2}, {1, 1, 1, 4}, {3, 1, 1, 4},
	};
	struct setting bare = variant(1, 1, 1, 0);
	bare.global = bare.real = 9;
	struct result want = run(bare);
	want.loss *= 9.0 / GLOBAL;
	for (int64_t i = whole_size(&bare.shape); i-- > 0;)
		want.grad[i] *= 9.0f / GLOBAL;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct setting s = variant(rows[i].tp, rows[i].pp, rows[i].dp, 0);
		s.micro = rows[i].micro;
		s.real = 9;
		struct result got = run(s);
		near(&want, &got, 1e-5);
		occ_free(got.grad);
	}
	occ_free(want.grad);
}

static void test_strict(void)
{
	static const struct occ_layout layouts[] = {{1, 1, 1}, {2, 2, 2}, {4, 1, 1}, {1, 3, 1}};
	for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
		for (int bf16 = 0; bf16 <= 1; bf16++) {
			struct setting ref = setting(1, 1, 1), strict;
			ref.layout = layouts[i];
			ref.device = "ref";
			ref.type = bf16 ? OCC_BF16 : OCC_F32;
			ref.shape.tied = i % 2;
			ref.shape.dropout = 0.1;
			ref.shape.recompute = i == 2;
			ref.global = ref.real = 4;
			strict = ref;
			strict.device = "strict";
			compare(ref, strict, 0);
		}
}

/* bf16 keeps 8 bits: half a unit is 2^-9 a rounding; a few dozen roundings stand in a row here. */
static void test_bf16(void)
{
	static const struct occ_layout layouts[] = {{1, 1, 1}, {2, 2, 2}, {4, 2, 1}};
	struct setting s = variant(1, 1, 1, 1);
	struct result want = run(s);
	int64_t n = whole_size(&s.shape);
	s.type = OCC_BF16;
	for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
		s.layout = layouts[i];
		struct result got = run(s);
		double off = norm(want.grad, got.grad, n) / norm(want.grad, NULL, n);
		CHECK_NEAR(got.loss, want.loss, 2e-3 * want.loss, "%s in bf16: loss %g, not %g",
			   got.name, got.loss, want.loss);
		CHECK(off <= 0.03 && off > 1e-4, "%s in bf16: gradients off by %g", got.name, off);
		occ_free(got.grad);
	}
	occ_free(want.grad);
}

/* Derivative of the loss along u, a unit vector over tensor p: five-point central differences. */
static double slope(struct rig *r, const float *weights, const struct occ_weight *p, const float *u)
{
	static const double coefficient[] = {1.0 / 12, -8.0 / 12, 0, 8.0 / 12, -1.0 / 12};
	const double h = 0.05;
	double sum = 0;
	for (int k = -2; k <= 2; k++) {
		if (k == 0)
			continue;
		memcpy(r->flat, weights, (size_t)r->gpt.weights.size * sizeof(float));
		for (int64_t i = 0; i < p->lrows * p->lcols; i++)
			r->flat[p->at + i] += (float)(k * h) * u[i];
		sum += coefficient[k + 2] * rig_step(r);
	}
	return sum / h;
}

static void unit(float *u, int64_t n)
{
	double all = norm(u, NULL, n);
	for (int64_t i = 0; all > 0 && i < n; i++)
		u[i] = (float)((double)u[i] / all);
}

/* Along the gradient itself, which is the largest slope there is, and along a random direction. */
static void differences(struct rig *r, const float *weights, const float *grad,
			const struct occ_weight *p)
{
	int64_t n = p->real_rows * p->cols;
	float *u = occ_alloc((size_t)(p->lrows * p->lcols), sizeof(float));
	const float *g = grad + p->at;
	double all = norm(g, NULL, n);
	for (int random = 0; random <= 1; random++) {
		double want = 0;
		for (int64_t i = 0; i < n; i++)
			u[i] = random ? (float)(int32_t)whole_mix((uint64_t)i) : g[i];
		unit(u, n);
		for (int64_t i = 0; i < n; i++)
			want += (double)u[i] * (double)g[i];
		CHECK_NEAR(slope(r, weights, p, u), want, 2e-3 * all + 5e-6,
			   "%s, %s: slope %g, not %g", p->name, random ? "random" : "gradient",
			   slope(r, weights, p, u), want);
	}
	occ_free(u);
}

static int differences_body(struct occ_comm *world, void *arg)
{
	struct rig r;
	rig_open(&r, world, arg);
	const struct occ_weights *w = &r.gpt.weights;
	size_t n = (size_t)w->size;
	float *weights = occ_alloc(n, sizeof(float)), *grad = occ_alloc(n, sizeof(float));
	fill(w, weights);
	memcpy(r.flat, weights, n * sizeof(float));
	rig_step(&r);
	r.dev->ops->get(r.dev, grad, r.gpt.d_grad, n * sizeof(float));
	for (int i = 0; i < w->n; i++)
		differences(&r, weights, grad, &w->at[i]);
	occ_free(grad);
	occ_free(weights);
	rig_close(&r);
	return 0;
}

static void test_differences(void)
{
	for (int tied = 0; tied <= 1; tied++) {
		struct setting s = variant(1, 1, 1, tied);
		s.device = "ref";
		s.shape.layers = 2;
		s.micro = s.global = s.real = 2;
		occ_comm_run_threads(1, 60, differences_body, &s);
	}
}

int main(int argc, char **argv)
{
	if (argc > 1)
		device = argv[1];
	test_layouts(0);
	test_layouts(1);
	test_pipeline();
	test_recompute();
	test_micro();
	test_dropout_matters();
	test_zero();
	test_padding();
	test_strict();
	test_bf16();
	test_differences();
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}

/* Compression in whole training steps of the tiny GPT over ranks: what stays exact, what a link
 * loses and gives back, runs against an emulation in one thread, replicas that stay equal, steps
 * that do not count.
 *
 * TIME: 240 */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/tiny_gpt.h"

enum { FORWARD, BACKWARD, NWAYS };                  /* a link's directions, as kinds of traffic */
enum { GIVEN_X, MADE_X, GIVEN_DX, MADE_DX, NWHAT }; /* what passes a stage's ends */

/* A run of some steps with plain SGD, which the test applies itself. */
struct plan {
	struct setting set;
	int steps;
	float lr;
	int tape;      /* everything that passes the stages' ends is kept */
	int fresh;     /* new tokens in every step */
	int disturbed; /* now and then a step with NaN, which does not count, and an evaluation */
};

/* What a rank saw. */
struct trace {
	int64_t size;   /* weights */
	float *grad;    /* [steps][size] */
	float *weights; /* [size] at the end */
	double *loss;   /* [steps] */
	float *tape;    /* [steps][NWHAT][M][rows * C] */
	float *e;      /* [steps][NWAYS][rows * C]: residuals after the step, 0 outside the slice */
	uint8_t *sent; /* [NWAYS][M] 1: marked */
};

struct job {
	const struct plan *plan;
	struct trace at[MAX_RANKS];
};

/* Stands between the executor and the model. */
struct shim {
	struct occ_stage inner;
	struct rank *rank;
	struct trace *trace;
	const struct plan *plan;
	int step;
};

static int nmicro(const struct setting *s)
{
	return s->global / (s->micro * s->layout.data);
}

static int64_t matrix(const struct setting *s)
{
	return (int64_t)s->micro * T * HIDDEN;
}

static int nranks(const struct setting *s)
{
	return s->layout.tensor * s->layout.pipeline * s->layout.data;
}

static float *tape(const struct plan *p, const struct trace *t, int step, int what, int mb)
{
	return t->tape + ((step * NWHAT + what) * nmicro(&p->set) + mb) * matrix(&p->set);
}

static float *residual(const struct plan *p, const struct trace *t, int step, int way)
{
	return t->e + (step * NWAYS + way) * matrix(&p->set);
}

static void record(const struct shim *h, int what, int mb, const void *d_x)
{
	if (!d_x || !h->plan->tape)
		return;
	struct occ_device *d = h->rank->dev;
	d->ops->get(d, tape(h->plan, h->trace, h->step, what, mb), d_x,
		    (size_t)matrix(&h->plan->set) * sizeof(float));
}

static void shim_forward(void *self, int mb, int slot, const void *d_in, void *d_out)
{
	struct shim *h = self;
	record(h, GIVEN_X, mb, d_in);
	h->inner.forward(h->inner.self, mb, slot, d_in, d_out);
	record(h, MADE_X, mb, d_out);
}

static void shim_backward(void *self, int mb, int slot, const void *d_in, const void *d_dout,
			  void *d_din)
{
	struct shim *h = self;
	record(h, GIVEN_DX, mb, d_dout);
	h->inner.backward(h->inner.self, mb, slot, d_in, d_dout, d_din);
	record(h, MADE_DX, mb, d_din);
}

static void shim_open(struct shim *h, struct rank *r, const struct plan *p, struct trace *t)
{
	*h = (struct shim){.inner = r->stage, .rank = r, .trace = t, .plan = p};
	r->stage.self = h;
	r->stage.forward = shim_forward;
	r->stage.backward = shim_backward;
}

static void note_marks(const struct rank *r, struct trace *t)
{
	for (int i = 0; i < r->sched.n; i++) {
		const struct occ_instr *in = &r->sched.at[i];
		int critical = (in->flags & OCC_CRITICAL) != 0;
		if (in->op == OCC_SEND_ACT)
			t->sent[in->mb] = (uint8_t)critical;
		if (in->op == OCC_SEND_GRAD)
			t->sent[r->sched.nmicro + in->mb] = (uint8_t)critical;
	}
}

static void trace_open(struct trace *t, const struct plan *p, const struct rank *r)
{
	size_t steps = (size_t)p->steps, M = (size_t)nmicro(&p->set), x = (size_t)matrix(&p->set);
	t->size = r->gpt.weights.size;
	t->grad = occ_alloc(steps * (size_t)t->size, sizeof(float));
	t->weights = occ_alloc((size_t)t->size, sizeof(float));
	t->loss = occ_alloc(steps, sizeof(double));
	t->sent = occ_alloc(NWAYS * M, 1);
	if (p->tape) {
		t->tape = occ_alloc(steps * NWHAT * M * x, sizeof(float));
		t->e = occ_alloc(steps * NWAYS * x, sizeof(float));
	}
	note_marks(r, t);
}

static void job_release(struct job *j)
{
	for (int i = 0; i < MAX_RANKS; i++) {
		struct trace *t = &j->at[i];
		occ_free(t->grad);
		occ_free(t->weights);
		occ_free(t->loss);
		occ_free(t->tape);
		occ_free(t->e);
		occ_free(t->sent);
	}
}

static void keep_residuals(const struct rank *r, const struct plan *p, struct trace *t, int step)
{
	const struct occ_link *links[NWAYS] = {&r->exec.act_out, &r->exec.grad_out};
	int64_t at = occ_slice_row(p->set.micro * T, r->topo.place.tp, r->topo.layout.tensor);
	for (int way = 0; way < NWAYS && p->tape; way++)
		if (links[way]->stream.d_e)
			r->dev->ops->get(r->dev, residual(p, t, step, way) + at * HIDDEN,
					 links[way]->stream.d_e,
					 (size_t)links[way]->n * HIDDEN * sizeof(float));
}

static void draw_tokens(struct rank *r, int step)
{
	int n = nmicro(r->set) * r->set->micro * (T + 1);
	for (int i = 0; i < n; i++)
		r->tokens[i] = (int32_t)(occ_rng_u64((uint64_t)(1000 + r->topo.place.dp),
						     (uint64_t)(step * n + i)) %
					 VOCAB);
}

static void descend(struct rank *r, const float *grad, float lr)
{
	for (int64_t i = 0; i < r->gpt.weights.size; i++)
		r->flat[i] -= lr * grad[i];
	occ_gpt_put(&r->gpt, r->flat);
}

/* All weights NaN for a step: nothing of it may be left. */
static void spoil(struct rank *r, int step)
{
	float *bad = occ_alloc((size_t)r->gpt.weights.size, sizeof(*bad));
	for (int64_t i = 0; i < r->gpt.weights.size; i++)
		bad[i] = NAN;
	occ_gpt_put(&r->gpt, bad);
	rank_step(r, (uint32_t)step, 1);
	occ_exec_end(&r->exec, 0);
	occ_gpt_put(&r->gpt, r->flat);
	occ_free(bad);
}

/* As the trainer does: another list, the same streams. */
static void evaluate(struct rank *r, int step)
{
	struct occ_schedule list;
	const struct occ_policy *p = &r->set->policy;
	occ_schedule_forward(&list, r->topo.place.pp, r->topo.layout.pipeline, nmicro(r->set));
	const struct occ_codec_ops *c = p->site[OCC_PP_FORWARD].knobs.codec;
	if (c && !c->state) /* only these may be frozen */
		occ_schedule_mark(&list, OCC_SEND_ACT, p->site[OCC_PP_FORWARD].mark);
	rank_begin(r, (uint32_t)step, 0);
	occ_exec_step(&r->exec, &list, step);
	occ_exec_end(&r->exec, 1);
	occ_schedule_release(&list);
}

static void train_step(struct rank *r, struct shim *h, int step)
{
	const struct plan *p = h->plan;
	struct trace *t = h->trace;
	float *grad = t->grad + step * t->size;
	if (p->fresh)
		draw_tokens(r, step);
	if (p->disturbed && p->set.policy.undo && step % 3 != 1)
		spoil(r, step);
	if (p->disturbed && step % 2)
		evaluate(r, step);
	h->step = step;
	rank_step(r, (uint32_t)step, 1);
	r->dev->ops->get(r->dev, grad, r->gpt.d_grad, (size_t)t->size * sizeof(float));
	t->loss[step] = r->gpt.loss_sum;
	keep_residuals(r, p, t, step);
	occ_exec_end(&r->exec, 1);
	descend(r, grad, p->lr);
}

static int body(struct occ_comm *world, void *arg)
{
	struct job *j = arg;
	struct trace *t = &j->at[world->rank];
	struct rank r;
	struct shim h;
	rank_open(&r, &j->plan->set, world, 1);
	trace_open(t, j->plan, &r);
	shim_open(&h, &r, j->plan, t);
	for (int step = 0; step < j->plan->steps; step++)
		train_step(&r, &h, step);
	memcpy(t->weights, r.flat, (size_t)t->size * sizeof(float));
	rank_close(&r);
	return 0;
}

static struct job run(const struct plan *p)
{
	struct job j = {.plan = p};
	occ_comm_run_threads(nranks(&p->set), 60, body, &j);
	return j;
}

static void describe(const struct plan *p, char *text, size_t bytes)
{
	const struct setting *s = &p->set;
	snprintf(text, bytes, "%s, tp %d pp %d dp %d, %d of %d", s->name, s->layout.tensor,
		 s->layout.pipeline, s->layout.data, nmicro(s), s->micro);
}

/* Mean over the batch. */
static double loss_of(const struct job *j, int step)
{
	double sum = 0;
	for (int r = 0; r < nranks(&j->plan->set); r++)
		if (occ_place_of(&j->plan->set.layout, r).tp == 0)
			sum += j->at[r].loss[step];
	return sum / (j->plan->set.global * T);
}

static const struct plan plain = {
	.set = {.name = "dense",
		.layout = {1, 1, 1},
		.device = "ref",
		.global = 4,
		.micro = 1,
		.tied = 1,
		.policy = {.scope = OCC_SCOPE_ALL, .undo = 1, .key = 123}},
	.steps = 3,
	.lr = 0.1f,
};

static const struct method {
	const char *name;
	struct occ_knobs knobs;
} methods[] = {
	{"powersgd", {.codec = &occ_codec_powersgd, .rank = 2, .iterations = 1}},
	{"topk", {.codec = &occ_codec_topk, .fraction = 0.1}},
	{"quant", {.codec = &occ_codec_quant, .bits = 4, .group = 16}},
	{"errbound", {.codec = &occ_codec_errbound, .epsilon = 1e-4}},
	{"dct", {.codec = &occ_codec_dct_rows, .fraction = 0.2}},
};

enum { POWERSGD, TOPK, QUANT, ERRBOUND, DCT, NMETHODS };

static struct occ_site link_site(int method, enum occ_mark mark)
{
	return (struct occ_site){.knobs = methods[method].knobs, .mark = mark, .feedback = 1};
}

static struct occ_site sum_site(int64_t rank)
{
	struct occ_site s = {.knobs = methods[POWERSGD].knobs, .feedback = 1, .stages = 99};
	s.knobs.rank = rank;
	return s;
}

/* ---- Full rank: as if nothing were compressed. ---- */

static void check_full_rank(struct occ_layout l)
{
	struct plan p = plain;
	p.set.layout = l;
	p.set.global = 4 * l.data;
	p.steps = 50;
	p.lr = 0.01f; /* with more, a rounding error alone grows to 1e-4 in 50 steps */
	struct job dense = run(&p);
	p.set.name = "full rank";
	for (int kind = 0; kind < OCC_NSITES; kind++) {
		p.set.policy.site[kind] = sum_site(64);
		p.set.policy.site[kind].mark = OCC_MARK_ALL;
	}
	struct job full = run(&p);
	double worst = 0;
	for (int i = 0; i < p.steps; i++) {
		double d = fabs(loss_of(&full, i) / loss_of(&dense, i) - 1);
		worst = d <= worst ? worst : d;
	}
	CHECK(worst <= 1e-4, "%dx%dx%d: the loss at full rank is off by %.3g", l.tensor, l.pipeline,
	      l.data, worst);
	CHECK(loss_of(&dense, p.steps - 1) < 0.9 * loss_of(&dense, 0), "nothing was learned");
	job_release(&dense);
	job_release(&full);
}

/* ---- Tail marks: all that comes before the first compressed gradient is exact. ---- */

static int equal(const struct plan *p, const struct job *x, const struct job *y, int rank, int what,
		 int mb)
{
	return !memcmp(tape(p, &x->at[rank], 0, what, mb), tape(p, &y->at[rank], 0, what, mb),
		       (size_t)matrix(&p->set) * sizeof(float));
}

/* What one rank was given in step 0: marked gradients differ from the dense run's, no others. */
static void compare_transfers(const struct plan *p, const struct job *x, const struct job *y,
			      int rank)
{
	const struct occ_layout *l = &p->set.layout;
	struct occ_place at = occ_place_of(l, rank);
	int last = at.pp == l->pipeline - 1, M = nmicro(&p->set);
	at.pp++;
	for (int mb = 0; mb < M; mb++) {
		CHECK(equal(p, x, y, rank, GIVEN_X, mb), "rank %d: activation %d", rank, mb);
		if (last)
			continue;
		int marked = y->at[occ_rank_of(l, at)].sent[M + mb];
		CHECK(equal(p, x, y, rank, GIVEN_DX, mb) == !marked,
		      "P %d M %d, rank %d: gradient %d, %s", l->pipeline, M, rank, mb,
		      marked ? "marked, is exact" : "not marked, is not");
	}
	if (last)
		CHECK(x->at[rank].loss[0] == y->at[rank].loss[0] &&
			      !memcmp(x->at[rank].grad, y->at[rank].grad,
				      (size_t)x->at[rank].size * sizeof(float)),
		      "P %d M %d, rank %d: the last stage is not exact", l->pipeline, M, rank);
}

static void check_tail(int tp, int pp, int M)
{
	struct plan p = plain;
	p.set.layout = (struct occ_layout){tp, pp, 1};
	p.set.global = M;
	p.set.tied = 0;
	p.tape = 1;
	p.steps = 1;
	struct job dense = run(&p);
	p.set.policy.site[OCC_PP_BACKWARD] = link_site(POWERSGD, OCC_MARK_TAIL);
	p.set.policy.site[OCC_PP_BACKWARD].knobs.rank = 1;
	struct job tail = run(&p);
	for (int rank = 0; rank < tp * pp; rank++)
		compare_transfers(&p, &dense, &tail, rank);
	job_release(&dense);
	job_release(&tail);
}

/* ---- Lazy error propagation: what a link loses, it sends later. ---- */

/* A link of one tensor rank: its slice of the rows is n elements from `at` on. */
struct line {
	const struct trace *from, *to;
	int way;
	int64_t at, n;
};

static double off(const double *x, const double *y, int64_t n)
{
	double diff = 0, norm = 0;
	for (int64_t i = 0; i < n; i++) {
		diff += (x[i] - y[i]) * (x[i] - y[i]);
		norm += y[i] * y[i];
	}
	return sqrt(diff / norm);
}

static void add(double *to, const float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		to[i] += (double)x[i];
}

/* Over steps first .. end-1: what was to go + old residual = what arrived + new residual. */
static void balance(const struct plan *p, const struct line *l, int first, int end)
{
	double in[2 * T * HIDDEN] = {0}, out[2 * T * HIDDEN] = {0}; /* micro is at most 2 */
	int M = nmicro(&p->set), way = l->way;
	char text[96];
	if (first > 0)
		add(in, residual(p, l->from, first - 1, way) + l->at, l->n);
	add(out, residual(p, l->from, end - 1, way) + l->at, l->n);
	for (int i = first * M; i < end * M; i++) {
		int step = i / M, mb = i % M;
		if (!l->from->sent[way * M + mb])
			continue;
		add(in, tape(p, l->from, step, way ? MADE_DX : MADE_X, mb) + l->at, l->n);
		add(out, tape(p, l->to, step, way ? GIVEN_DX : GIVEN_X, mb) + l->at, l->n);
	}
	describe(p, text, sizeof(text));
	CHECK(off(out, in, l->n) <= 1e-5, "%s: %s of stream in steps %d to %d: %.3g is lost", text,
	      way ? "gradients" : "activations", first, end, off(out, in, l->n));
}

static void check_line(const struct job *j, int rank, int way)
{
	const struct plan *p = j->plan;
	const struct occ_layout *l = &p->set.layout;
	struct occ_place to = occ_place_of(l, rank);
	int64_t rows = p->set.micro * T, at = occ_slice_row(rows, to.tp, l->tensor);
	to.pp += way == FORWARD ? 1 : -1;
	if (to.pp < 0 || to.pp == l->pipeline)
		return;
	struct line line = {&j->at[rank], &j->at[occ_rank_of(l, to)], way, at * HIDDEN, 0};
	line.n = occ_slice_row(rows, to.tp + 1, l->tensor) * HIDDEN - line.at;
	for (int step = 0; step < p->steps; step++)
		balance(p, &line, step, step + 1);
	balance(p, &line, 0, p->steps);
}

static void check_links(struct occ_layout l, int method, int M, int micro)
{
	struct plan p = plain;
	enum occ_mark mark = M % 3 ? OCC_MARK_TAIL : OCC_MARK_ALL;
	p.set.name = methods[method].name;
	p.set.layout = l;
	p.set.micro = micro;
	p.set.global = M * micro;
	p.tape = p.fresh = 1;
	p.lr = 0.01f; /* activations that come a micro-batch late make the model worse */
	p.set.policy.site[OCC_PP_FORWARD] = link_site(method, mark);
	p.set.policy.site[OCC_PP_BACKWARD] = link_site(method, mark);
	struct job j = run(&p);
	for (int rank = 0; rank < nranks(&p.set); rank++)
		for (int way = 0; way < NWAYS; way++)
			check_line(&j, rank, way);
	job_release(&j);
}

/* ---- dct: gradients follow the support of their activations. ---- */

static void check_support(const struct job *j, int rank, int step, int mb)
{
	const struct plan *p = j->plan;
	struct occ_place up = occ_place_of(&p->set.layout, rank);
	up.pp--;
	const struct trace *before = &j->at[occ_rank_of(&p->set.layout, up)];
	const float *x = tape(p, &j->at[rank], step, GIVEN_X, mb);
	const float *dx = tape(p, before, step, GIVEN_DX, mb);
	int k = (int)occ_codec_kept(methods[DCT].knobs.fraction, HIDDEN), wrong = 0, outside = 0;
	int marked = before->sent[mb];
	for (int64_t row = 0; row < p->set.micro * T; row++) {
		int kept = 0;
		for (int64_t i = row * HIDDEN; i < (row + 1) * HIDDEN; i++) {
			kept += x[i] != 0;
			outside += x[i] == 0 && dx[i] != 0;
		}
		wrong += kept != (marked ? k : HIDDEN);
	}
	CHECK(!wrong && !outside, "rank %d, step %d, %d: %d rows do not keep %d, %d values outside",
	      rank, step, mb, wrong, marked ? k : HIDDEN, outside);
}

static void check_dct(struct occ_layout l, enum occ_mark mark, int feedback)
{
	struct plan p = plain;
	int M = 5;
	p.set.name = "dct";
	p.set.layout = l;
	p.set.micro = 2;
	p.set.global = M * 2 * l.data;
	p.tape = p.fresh = 1;
	p.set.policy.site[OCC_PP_FORWARD] = link_site(DCT, mark);
	p.set.policy.site[OCC_PP_FORWARD].feedback = feedback;
	struct job j = run(&p);
	for (int rank = 0; rank < nranks(&p.set); rank++)
		for (int i = 0; i < p.steps * M && occ_place_of(&l, rank).pp; i++)
			check_support(&j, rank, i / M, i % M);
	job_release(&j);
}

/* ---- Replicas hold the same bits. ---- */

static struct plan all_compressed(int forward, int backward)
{
	struct plan p = plain;
	p.set.name = methods[backward].name;
	p.set.policy.site[OCC_PP_FORWARD] = link_site(forward, OCC_MARK_ALL);
	p.set.policy.site[OCC_PP_BACKWARD] = link_site(backward, OCC_MARK_TAIL);
	p.set.policy.site[OCC_DP] = sum_site(2);
	p.fresh = 1;
	return p;
}

static void check_replicas(struct occ_layout l, int ranks_per_node, int fused)
{
	struct plan p = all_compressed(QUANT, POWERSGD);
	p.set.layout = l;
	p.set.ranks_per_node = ranks_per_node;
	p.set.policy.scope = ranks_per_node ? OCC_SCOPE_INTER_NODE : OCC_SCOPE_ALL;
	p.set.policy.fused = fused;
	p.set.global = 2 * l.data;
	p.steps = 100;
	struct job j = run(&p);
	for (int rank = 0; rank < nranks(&p.set); rank++) {
		struct occ_place first = occ_place_of(&l, rank);
		first.dp = 0;
		const struct trace *x = &j.at[rank], *y = &j.at[occ_rank_of(&l, first)];
		CHECK(!memcmp(x->weights, y->weights, (size_t)x->size * sizeof(float)),
		      "%dx%dx%d: rank %d is unlike its first replica", l.tensor, l.pipeline, l.data,
		      rank);
	}
	double loss = loss_of(&j, p.steps - 1);
	CHECK(loss > 0 && loss < 1.5 * loss_of(&j, 0), "%dx%dx%d: the loss is %g", l.tensor,
	      l.pipeline, l.data, loss);
	job_release(&j);
}

/* ---- Steps that do not count, and evaluations, leave nothing behind. ---- */

static void check_undisturbed(struct occ_layout l, int undo, int forward, int backward)
{
	struct plan p = all_compressed(forward, backward);
	p.set.layout = l;
	p.set.global = 3 * l.data;
	p.set.policy.undo = undo;
	p.steps = 6;
	struct job quiet = run(&p);
	p.disturbed = 1;
	struct job disturbed = run(&p);
	for (int rank = 0; rank < nranks(&p.set); rank++) {
		const struct trace *x = &quiet.at[rank], *y = &disturbed.at[rank];
		for (int step = 0; step < p.steps; step++)
			CHECK(!memcmp(x->grad + step * x->size, y->grad + step * x->size,
				      (size_t)x->size * sizeof(float)),
			      "%s forward, %s backward, rank %d: step %d differs",
			      methods[forward].name, methods[backward].name, rank, step);
	}
	job_release(&quiet);
	job_release(&disturbed);
}

/* ---- The same in one thread, by hand. ---- */

/* A stage of a replica, and the links that leave it. */
struct part {
	struct rank rank;
	struct occ_comm *self;
	struct occ_stream out[NWAYS];
	char *d_wire, *d_support;            /* [M] supports of activations that left */
	float *d_x, *d_din, *d_out, *d_dout; /* d_x: [M] inputs */
};

struct emulation {
	const struct plan *plan;
	struct part part[MAX_RANKS]; /* by rank */
};

static void part_links(struct part *q, const struct setting *s, int rank)
{
	const struct occ_policy *p = &s->policy;
	struct occ_device *d = q->rank.dev;
	for (int way = 0; way < NWAYS; way++) {
		int follows = p->site[FORWARD].knobs.codec == &occ_codec_dct_rows;
		const struct occ_site *site = &p->site[follows ? FORWARD : way];
		struct occ_stream_conf conf = {.knobs = site->knobs, .feedback = site->feedback};
		conf.key = p->key;
		conf.id = ((uint32_t)(2 * rank) | 1u << 31) + (uint32_t)way;
		if (site->knobs.codec)
			occ_stream_init(&q->out[way], d, &conf, s->micro * T, HIDDEN, OCC_F32);
	}
	size_t bytes = (size_t)matrix(s) * sizeof(float), M = (size_t)nmicro(s);
	q->d_wire = d->ops->alloc(d, 2 * bytes + 1024);
	q->d_support = d->ops->alloc(d, M * bytes);
	q->d_x = d->ops->alloc(d, M * bytes);
	q->d_din = d->ops->alloc(d, bytes);
	q->d_out = d->ops->alloc(d, bytes);
	q->d_dout = d->ops->alloc(d, bytes);
}

static void part_open(struct part *q, const struct setting *s, int rank)
{
	struct rank *r = &q->rank;
	struct occ_gpt_shape shape = shape_of(s, 1);
	struct occ_err e = {0};
	int M = nmicro(s), P = s->layout.pipeline;
	r->set = s;
	q->self = occ_comm_open_self(60);
	r->topo = (struct occ_topo){.layout = s->layout, .place = occ_place_of(&s->layout, rank)};
	r->dev = occ_device_open(s->device, OCC_F32, 1, &e);
	occ_check(r->dev != NULL, "%s", e.text);
	occ_group_init(&r->tp, q->self, r->dev, 1 << 12);
	occ_schedule_1f1b(&r->sched, r->topo.place.pp, P, M);
	occ_schedule_mark(&r->sched, OCC_SEND_ACT, s->policy.site[FORWARD].mark);
	if (s->policy.site[FORWARD].knobs.codec == &occ_codec_dct_rows)
		occ_schedule_follow(&r->sched);
	else
		occ_schedule_mark(&r->sched, OCC_SEND_GRAD, s->policy.site[BACKWARD].mark);
	occ_gpt_init(&r->gpt, &shape, &r->topo, r->dev, &r->tp, s->micro, M);
	occ_gpt_stage(&r->gpt, &r->stage);
	r->flat = occ_alloc((size_t)r->gpt.weights.size, sizeof(float));
	fill_weights(&r->gpt.weights, r->flat);
	occ_gpt_put(&r->gpt, r->flat);
	fill_tokens(r);
	part_links(q, s, rank);
}

static void part_close(struct part *q)
{
	struct rank *r = &q->rank;
	void *all[] = {q->d_wire, q->d_support, q->d_x, q->d_din, q->d_out, q->d_dout};
	for (int i = 0; i < 6; i++)
		r->dev->ops->free(r->dev, all[i]);
	for (int way = 0; way < NWAYS; way++)
		occ_stream_release(&q->out[way]);
	occ_free(r->tokens);
	occ_free(r->flat);
	occ_schedule_release(&r->sched);
	occ_gpt_release(&r->gpt);
	occ_group_release(&r->tp);
	occ_device_close(r->dev);
	occ_comm_close(q->self);
}

static int is_marked(const struct rank *r, enum occ_op op, int mb)
{
	for (int i = 0; i < r->sched.n; i++)
		if (r->sched.at[i].op == op && r->sched.at[i].mb == mb)
			return (r->sched.at[i].flags & OCC_CRITICAL) != 0;
	return 0;
}

/* Micro-batch mb leaves part q: d_from becomes d_to at part `peer`, which made the support that
 * gradients follow. */
static void carry(struct part *q, const struct part *peer, int way, int mb, const float *d_from,
		  float *d_to)
{
	struct occ_device *d = q->rank.dev;
	struct occ_stream *s = &q->out[way];
	int follows = s->codec.ops == &occ_codec_dct_rows;
	size_t each = (size_t)matrix(q->rank.set) * sizeof(float), at = (size_t)mb * each;
	int marked = is_marked(&q->rank, way == FORWARD ? OCC_SEND_ACT : OCC_SEND_GRAD, mb);
	if (!s->codec.ops || !marked) {
		d->ops->copy(d, d_to, d_from, each);
	} else if (way == BACKWARD && follows) {
		occ_stream_follow(s, peer->d_support + at, d_from, q->d_wire);
		occ_stream_decode_follow(s, peer->d_support + at, q->d_wire, d_to);
	} else {
		occ_stream_decode(s, q->d_wire, occ_stream_encode(s, d_from, q->d_wire), d_to);
		if (follows)
			d->ops->copy(d, q->d_support + at, q->d_wire,
				     s->codec.ops->support(&s->codec));
	}
}

/* One micro-batch through all stages of replica dp. */
static void pass(struct emulation *e, int dp, int mb, int way)
{
	const struct setting *s = &e->plan->set;
	int P = s->layout.pipeline, D = s->layout.data;
	for (int k = 0; k < P; k++) {
		int pp = way == FORWARD ? k : P - 1 - k;
		struct part *q = &e->part[pp * D + dp], *next = q + D, *before = q - D;
		struct occ_stage *g = &q->rank.stage;
		float *d_x = pp ? q->d_x + mb * matrix(s) : NULL;
		if (way == FORWARD) {
			g->forward(g->self, mb, mb, d_x, pp < P - 1 ? q->d_out : NULL);
			if (pp < P - 1)
				carry(q, next, way, mb, q->d_out, next->d_x + mb * matrix(s));
			continue;
		}
		g->backward(g->self, mb, mb, d_x, pp < P - 1 ? q->d_dout : NULL,
			    pp ? q->d_din : NULL);
		if (pp)
			carry(q, before, way, mb, q->d_din, before->d_dout);
	}
}

/* x and those behind it, `stride` parts apart, become their sum, made in that order. */
static void add_up(float *const *x, int n, int64_t size)
{
	for (int64_t i = 0; i < size; i++) {
		float sum = x[0][i];
		for (int k = 1; k < n; k++)
			sum += x[k][i];
		for (int k = 0; k < n; k++)
			x[k][i] = sum;
	}
}

static const struct occ_tensor *tied_tensor(const struct rank *r)
{
	for (int i = 0; i < r->stage.ntensors; i++)
		if (r->stage.tensor[i].embedding)
			return &r->stage.tensor[i];
	return NULL;
}

/* Over replicas, then over the two copies of the embedding. */
static void sum_gradients(struct emulation *e, float *const *grad)
{
	const struct occ_layout *l = &e->plan->set.layout;
	int D = l->data, P = l->pipeline;
	for (int pp = 0; pp < P; pp++)
		add_up(grad + pp * D, D, e->part[pp * D].rank.gpt.weights.size);
	for (int dp = 0; dp < D; dp++) {
		int last = (P - 1) * D + dp;
		const struct occ_tensor *a = tied_tensor(&e->part[dp].rank);
		const struct occ_tensor *b = tied_tensor(&e->part[last].rank);
		float *copies[2] = {grad[dp] + a->at, grad[last] + b->at};
		add_up(copies, 2, a->n * a->m);
	}
}

static void emulate_step(struct emulation *e, int step, float *const *grad)
{
	const struct setting *s = &e->plan->set;
	int n = nranks(s);
	for (int i = 0; i < n; i++) {
		draw_tokens(&e->part[i].rank, step);
		rank_begin(&e->part[i].rank, (uint32_t)step, 1);
	}
	for (int dp = 0; dp < s->layout.data; dp++)
		for (int k = 0; k < 2 * nmicro(s); k++)
			pass(e, dp, k % nmicro(s), k / nmicro(s));
	for (int i = 0; i < n; i++) {
		struct rank *r = &e->part[i].rank;
		r->dev->ops->get(r->dev, grad[i], r->gpt.d_grad,
				 (size_t)r->gpt.weights.size * sizeof(float));
	}
	sum_gradients(e, grad);
	for (int i = 0; i < n; i++)
		descend(&e->part[i].rank, grad[i], e->plan->lr);
}

static void compare_step(const struct emulation *e, const struct job *j, int step,
			 float *const *grad)
{
	char text[96];
	describe(e->plan, text, sizeof(text));
	for (int i = 0; i < nranks(&e->plan->set); i++) {
		const struct trace *t = &j->at[i];
		CHECK(!memcmp(grad[i], t->grad + step * t->size, (size_t)t->size * sizeof(float)),
		      "%s: gradients of rank %d, step %d, are not those by hand", text, i, step);
		CHECK(t->loss[step] == e->part[i].rank.gpt.loss_sum,
		      "%s: loss of rank %d, step %d, is not that by hand", text, i, step);
	}
}

static void check_emulation(struct occ_layout l, int M, int forward, int backward,
			    enum occ_mark mark)
{
	struct plan p = plain;
	struct emulation *e = occ_alloc(1, sizeof(*e));
	float *grad[MAX_RANKS];
	p.set.layout = l;
	p.set.global = M * l.data;
	p.steps = 5;
	p.fresh = 1;
	p.set.name = methods[forward >= 0 ? forward : backward].name;
	if (forward >= 0)
		p.set.policy.site[FORWARD] = link_site(forward, mark);
	if (backward >= 0)
		p.set.policy.site[BACKWARD] = link_site(backward, mark);
	struct job j = run(&p);
	e->plan = &p;
	for (int i = 0; i < nranks(&p.set); i++) {
		part_open(&e->part[i], &p.set, i);
		grad[i] = occ_alloc((size_t)j.at[i].size, sizeof(float));
	}
	for (int step = 0; step < p.steps; step++) {
		emulate_step(e, step, grad);
		compare_step(e, &j, step, grad);
	}
	for (int i = 0; i < nranks(&p.set); i++) {
		occ_free(grad[i]);
		part_close(&e->part[i]);
	}
	occ_free(e);
	job_release(&j);
}

/* ---- What is sent late is as good as independent of what changes meanwhile. ---- */

enum { STAT_STEPS = 30 };

static double cosine(const float *e, const float *x, const float *y, int64_t n)
{
	double ed = 0, ee = 0, dd = 0;
	for (int64_t i = 0; i < n; i++) {
		double d = (double)y[i] - (double)x[i];
		ed += (double)e[i] * d;
		ee += (double)e[i] * (double)e[i];
		dd += d * d;
	}
	return ed / sqrt(ee * dd);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* |cos| of the residual after a step with the change of the stage's input from the last
 * micro-batch to the next one whose gradient is compressed: their product is the error of the
 * weight gradients (Optimus-CC section 4). */
static double median_cosine(const struct job *j, int rank)
{
	const struct plan *p = j->plan;
	const struct trace *t = &j->at[rank];
	double all[STAT_STEPS - 1];
	int M = nmicro(&p->set), next = 0;
	while (!t->sent[M + next])
		next++;
	for (int step = 0; step + 1 < p->steps; step++)
		all[step] = fabs(cosine(residual(p, t, step, BACKWARD),
					tape(p, t, step, GIVEN_X, M - 1),
					tape(p, t, step + 1, GIVEN_X, next), matrix(&p->set)));
	qsort(all, STAT_STEPS - 1, sizeof(all[0]), by_size);
	return all[(STAT_STEPS - 1) / 2];
}

/* Directions that know nothing of each other, in N dimensions: cos is about normal with deviation
 * 1/sqrt(N), the median of |cos| 0.67/sqrt(N); that of 29 of them is within 0.15/sqrt(N).
 * Activations are correlated, which leaves fewer dimensions than elements, so a little more is
 * allowed. */
static void check_statistics(int method)
{
	struct plan p = plain;
	p.set.name = methods[method].name;
	p.set.layout = (struct occ_layout){1, 4, 1};
	p.set.micro = 2;
	p.set.global = 2 * 6;
	p.tape = p.fresh = 1;
	p.steps = STAT_STEPS;
	p.set.policy.site[BACKWARD] = link_site(method, OCC_MARK_TAIL);
	struct job j = run(&p);
	for (int rank = 1; rank < 4; rank++) {
		double c = median_cosine(&j, rank), most = 1.5 / sqrt((double)matrix(&p.set));
		CHECK(c <= most, "%s, stage %d: |cos| is %.3g", p.set.name, rank, c);
	}
	job_release(&j);
}

/* ---- Tables. ---- */

/* Deep pipelines take turns with the size of a micro-batch. */
static void run_links(void)
{
	static const struct occ_layout layouts[] = {{1, 2, 1}, {2, 2, 1}, {1, 4, 1}, {2, 4, 1}};
	for (int i = 0; i < 4; i++)
		for (int method = 0; method < NMETHODS; method++)
			for (int M = 1; M <= 6; M++)
				for (int micro = 1; micro <= 2; micro++)
					if (i < 2 || (M + method + micro) % 2)
						check_links(layouts[i], method, M, micro);
	for (int method = 0; method < NMETHODS; method++)
		check_links((struct occ_layout){4, 2, 1}, method, 3, 1); /* 5 rows a rank */
}

static void run_emulation(void)
{
	static const struct {
		int forward, backward;
		enum occ_mark mark;
	} rows[] = {
		{-1, POWERSGD, OCC_MARK_TAIL},    {-1, POWERSGD, OCC_MARK_ALL},
		{-1, QUANT, OCC_MARK_ALL},        {-1, TOPK, OCC_MARK_TAIL},
		{-1, ERRBOUND, OCC_MARK_ALL},     {DCT, -1, OCC_MARK_ALL},
		{DCT, -1, OCC_MARK_TAIL},         {QUANT, TOPK, OCC_MARK_ALL},
		{POWERSGD, QUANT, OCC_MARK_TAIL},
	};
	for (int pp = 2; pp <= 4; pp += 2)
		for (int dp = 1; dp <= 2; dp++)
			for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
				check_emulation((struct occ_layout){1, pp, dp}, i % 3 ? 6 : 3,
						rows[i].forward, rows[i].backward, rows[i].mark);
}

int main(void)
{
	check_full_rank((struct occ_layout){1, 2, 2});
	check_full_rank((struct occ_layout){2, 2, 2});
	check_full_rank((struct occ_layout){1, 4, 1});
	for (int M = 1; M <= 6; M++)
		for (int pp = 2; pp <= 4; pp++)
			check_tail(1 + M % 2, pp, M);
	run_links();
	for (int i = 0; i < 8; i++) /* two layouts, marks, with feedback and without */
		check_dct(i & 1 ? (struct occ_layout){2, 2, 2} : (struct occ_layout){1, 4, 1},
			  i & 2 ? OCC_MARK_ALL : OCC_MARK_TAIL, i >> 2);
	check_replicas((struct occ_layout){1, 1, 4}, 2, 0);
	check_replicas((struct occ_layout){1, 2, 3}, 0, 0);
	check_replicas((struct occ_layout){2, 2, 2}, 2, 1);
	for (int forward = 0; forward < NMETHODS; forward++)
		check_undisturbed((struct occ_layout){1, 2, 2}, 1, forward,
				  forward == DCT ? POWERSGD : (forward + 1) % DCT);
	check_undisturbed((struct occ_layout){1, 2, 1}, 0, POWERSGD, QUANT);
	run_emulation();
	for (int method = 0; method < DCT; method++)
		check_statistics(method);
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}

/* A run of the tiny GPT over rank threads, with compression and plain SGD, of which everything is
 * kept: gradients, losses, what passes the ends of stages, residuals of links. */
#ifndef OCC_TESTS_TRACED_GPT_H
#define OCC_TESTS_TRACED_GPT_H

#include <stdio.h>

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

static inline int nmicro(const struct setting *s)
{
	return s->global / (s->micro * s->layout.data);
}

static inline int64_t matrix(const struct setting *s)
{
	return (int64_t)s->micro * T * HIDDEN;
}

static inline int nranks(const struct setting *s)
{
	return s->layout.tensor * s->layout.pipeline * s->layout.data;
}

static inline float *tape(const struct plan *p, const struct trace *t, int step, int what, int mb)
{
	return t->tape + ((step * NWHAT + what) * nmicro(&p->set) + mb) * matrix(&p->set);
}

static inline float *residual(const struct plan *p, const struct trace *t, int step, int way)
{
	return t->e + (step * NWAYS + way) * matrix(&p->set);
}

static inline void record(const struct shim *h, int what, int mb, const void *d_x)
{
	if (!d_x || !h->plan->tape)
		return;
	struct occ_device *d = h->rank->dev;
	d->ops->get(d, tape(h->plan, h->trace, h->step, what, mb), d_x,
		    (size_t)matrix(&h->plan->set) * sizeof(float));
}

static inline void shim_forward(void *self, int mb, int slot, const void *d_in, void *d_out)
{
	struct shim *h = self;
	record(h, GIVEN_X, mb, d_in);
	h->inner.forward(h->inner.self, mb, slot, d_in, d_out);
	record(h, MADE_X, mb, d_out);
}

static inline void shim_backward(void *self, int mb, int slot, const void *d_in, const void *d_dout,
				 void *d_din)
{
	struct shim *h = self;
	record(h, GIVEN_DX, mb, d_dout);
	h->inner.backward(h->inner.self, mb, slot, d_in, d_dout, d_din);
	record(h, MADE_DX, mb, d_din);
}

static inline void shim_open(struct shim *h, struct rank *r, const struct plan *p, struct trace *t)
{
	*h = (struct shim){.inner = r->stage, .rank = r, .trace = t, .plan = p};
	r->stage.self = h;
	r->stage.forward = shim_forward;
	r->stage.backward = shim_backward;
}

static inline void note_marks(const struct rank *r, struct trace *t)
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

static inline void trace_open(struct trace *t, const struct plan *p, const struct rank *r)
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

static inline void job_release(struct job *j)
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

static inline void keep_residuals(const struct rank *r, const struct plan *p, struct trace *t,
				  int step)
{
	const struct occ_link *links[NWAYS] = {&r->exec.act_out, &r->exec.grad_out};
	int64_t at = occ_slice_row(p->set.micro * T, r->topo.place.tp, r->topo.layout.tensor);
	for (int way = 0; way < NWAYS && p->tape; way++)
		if (links[way]->stream.d_e)
			r->dev->ops->get(r->dev, residual(p, t, step, way) + at * HIDDEN,
					 links[way]->stream.d_e,
					 (size_t)links[way]->n * HIDDEN * sizeof(float));
}

static inline void draw_tokens(struct rank *r, int step)
{
	int n = nmicro(r->set) * r->set->micro * (T + 1);
	for (int i = 0; i < n; i++)
		r->tokens[i] = (int32_t)(occ_rng_u64((uint64_t)(1000 + r->topo.place.dp),
						     (uint64_t)(step * n + i)) %
					 VOCAB);
}

static inline void descend(struct rank *r, const float *grad, float lr)
{
	for (int64_t i = 0; i < r->gpt.weights.size; i++)
		r->flat[i] -= lr * grad[i];
	occ_gpt_put(&r->gpt, r->flat);
}

/* All weights NaN for a step: nothing of it may be left. */
static inline void spoil(struct rank *r, int step)
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
static inline void evaluate(struct rank *r, int step)
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

static inline void train_step(struct rank *r, struct shim *h, int step)
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
	t->loss[step] = occ_gpt_loss(&r->gpt);
	keep_residuals(r, p, t, step);
	occ_exec_end(&r->exec, 1);
	descend(r, grad, p->lr);
}

static inline int body(struct occ_comm *world, void *arg)
{
	struct job *j = arg;
	struct trace *t = &j->at[world->rank];
	struct setting set = j->plan->set;
	struct rank r;
	struct shim h;
	set.device = check_device(set.device);
	rank_open(&r, &set, world, 1);
	trace_open(t, j->plan, &r);
	shim_open(&h, &r, j->plan, t);
	for (int step = 0; step < j->plan->steps; step++)
		train_step(&r, &h, step);
	memcpy(t->weights, r.flat, (size_t)t->size * sizeof(float));
	rank_close(&r);
	return 0;
}

static inline struct job run(const struct plan *p)
{
	struct job j = {.plan = p};
	occ_comm_run_threads(nranks(&p->set), 60, body, &j);
	return j;
}

static inline void describe(const struct plan *p, char *text, size_t bytes)
{
	const struct setting *s = &p->set;
	snprintf(text, bytes, "%s, tp %d pp %d dp %d, %d of %d", s->name, s->layout.tensor,
		 s->layout.pipeline, s->layout.data, nmicro(s), s->micro);
}

/* Mean over the batch. */
static inline double loss_of(const struct job *j, int step)
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
		.device = "ref", /* or the environment's */
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

static inline struct occ_site link_site(int method, enum occ_mark mark)
{
	return (struct occ_site){.knobs = methods[method].knobs, .mark = mark, .feedback = 1};
}

static inline struct occ_site sum_site(int64_t rank)
{
	struct occ_site s = {.knobs = methods[POWERSGD].knobs, .feedback = 1, .stages = 99};
	s.knobs.rank = rank;
	return s;
}

#endif

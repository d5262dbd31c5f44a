/* Compressed training steps over ranks against the same steps made by hand in one thread, bit for
 * bit: the order of messages on each link, streams and their random numbers, marks, supports that
 * gradients follow, the order of sums. */
#include "tests/check.h"
#include "tests/traced_gpt.h"

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

static void compare_step(struct emulation *e, const struct job *j, int step, float *const *grad)
{
	char text[96];
	describe(e->plan, text, sizeof(text));
	for (int i = 0; i < nranks(&e->plan->set); i++) {
		const struct trace *t = &j->at[i];
		CHECK(!memcmp(grad[i], t->grad + step * t->size, (size_t)t->size * sizeof(float)),
		      "%s: gradients of rank %d, step %d, are not those by hand", text, i, step);
		CHECK(t->loss[step] == occ_gpt_loss(&e->part[i].rank.gpt),
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
	run_emulation();
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}

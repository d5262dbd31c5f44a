/* Compressed sums of gradients over replicas: what one loses stays in the residuals, which stay
 * bounded, replicas hold the same bits, a low rank is that of the sum, a step that does not count
 * leaves nothing behind.
 *
 * RUN: mpi=4
 * CUDA: 1 */
#include "tests/made_up_sums.h"

/* ---- Nothing is lost. ---- */

static void add_residuals(struct worker *w, double *to)
{
	float e[SIZE];
	for (int i = 0; i < w->reduce.nitems && w->reduce.contributes; i++) {
		const struct occ_reduce_item *it = &w->reduce.item[i];
		int64_t n = it->tensor.n * it->tensor.m;
		w->dev->ops->get(w->dev, e, it->stream.d_e, (size_t)n * sizeof(float));
		for (int64_t k = 0; k < n; k++)
			to[it->tensor.at + k] += (double)e[k];
	}
}

static void check_kept(const struct worker *w, const double *got, const double *want, int step)
{
	char text[128];
	describe(w, text, sizeof(text));
	for (int i = 0; i < w->ntensors; i++) {
		const struct occ_tensor *t = &w->tensor[i];
		double d = distance(got + t->at, want + t->at, t->n * t->m);
		CHECK(d <= 1e-5, "%s: %s after step %d: %.3g is lost", text, t->name, step, d);
	}
}

struct balance {
	double in[SIZE], out[SIZE];         /* a step's */
	double all_in[SIZE], all_out[SIZE]; /* the run's, without residuals */
	double total[SIZE];
};

static void conserve_step(struct worker *w, struct balance *b, int step)
{
	fill(w, step);
	memset(b, 0, offsetof(struct balance, all_in));
	for (int64_t i = 0; i < w->size; i++)
		b->in[i] = (double)w->g[i];
	occ_comm_sum_double(w->topo.dp, b->in, (int)w->size);
	for (int64_t i = 0; i < w->size; i++) {
		b->all_in[i] += b->in[i];
		b->in[i] += b->total[i];
	}
	sum(w, step);
	occ_reduce_end(&w->reduce, 1);
	add_residuals(w, b->out);
	occ_comm_sum_double(w->topo.dp, b->out, (int)w->size);
	memcpy(b->total, b->out, sizeof(b->out));
	for (int64_t i = 0; i < w->size; i++) {
		b->out[i] += (double)w->result[i];
		b->all_out[i] += (double)w->result[i];
	}
	check_kept(w, b->out, b->in, step);
}

static int conserve_body(struct occ_comm *world, void *arg)
{
	struct worker w;
	const struct setting *set = arg;
	struct balance *b = occ_alloc(1, sizeof(*b));
	worker_open(&w, set, world);
	for (int step = 0; step < set->steps; step++) {
		conserve_step(&w, b, step);
		CHECK(!occ_differs(w.topo.dp, hash(w.result, (size_t)w.size * sizeof(float))),
		      "%s: replicas differ in step %d", set->method->name, step);
	}
	for (int64_t i = 0; i < w.size; i++)
		b->all_out[i] += b->total[i];
	check_kept(&w, b->all_out, b->all_in, set->steps);
	CHECK(w.reduce.contributes == (set->scope == OCC_SCOPE_ALL || w.topo.dp_leaders != NULL),
	      "who contributes");
	worker_close(&w);
	occ_free(b);
	return 0;
}

/* ---- The low rank of a sum is that of the summed gradients. ---- */

static void check_low_rank(struct worker *w, struct occ_stream *alone, void *d_wire, int step)
{
	const struct occ_device_ops *o = w->dev->ops;
	float want[SIZE];
	double x[SIZE], y[SIZE];
	int64_t n = alone->codec.n * alone->codec.m;
	memcpy(want, w->g, sizeof(want));
	plain_sum(w, w->topo.dp, want, w->size);
	o->put(w->dev, w->d_grad, want, (size_t)n * sizeof(float));
	occ_stream_decode(alone, d_wire, occ_stream_encode(alone, w->d_grad, d_wire), w->d_grad);
	o->get(w->dev, want, w->d_grad, (size_t)n * sizeof(float));
	for (int64_t i = 0; i < n; i++) {
		x[i] = (double)w->result[i];
		y[i] = (double)want[i];
	}
	CHECK(distance(x, y, n) <= 1e-5, "%s, D %d, step %d: off by %.3g", w->set->method->name,
	      w->set->layout.data, step, distance(x, y, n));
}

/* Of tensor "a", which lies first. */
static int low_rank_body(struct occ_comm *world, void *arg)
{
	const struct setting *set = arg;
	struct worker w;
	struct occ_stream alone;
	worker_open(&w, set, world);
	struct occ_stream_conf conf = {
		.knobs = set->method->knobs, .key = w.policy.key, .id = w.tensor[0].id};
	occ_stream_init(&alone, w.dev, &conf, w.tensor[0].n, w.tensor[0].m, OCC_F32);
	void *d_wire = w.dev->ops->alloc(w.dev, alone.codec.ops->bound(&alone.codec));
	for (int step = 0; step < 5; step++) {
		fill(&w, step);
		sum(&w, step);
		occ_reduce_end(&w.reduce, 1);
		check_low_rank(&w, &alone, d_wire, step);
	}
	w.dev->ops->free(w.dev, d_wire);
	occ_stream_release(&alone);
	worker_close(&w);
	return 0;
}

/* ---- Residuals stay bounded. ---- */

static double mean_residual(struct worker *w)
{
	double sum2 = sqrt(occ_stream_residual2(&w->reduce.item[0].stream));
	occ_comm_sum_double(w->topo.dp, &sum2, 1);
	return sum2 / w->topo.dp->size;
}

/* Means over the 20 steps that end at step 100 and at the last. */
static int bounded_body(struct occ_comm *world, void *arg)
{
	struct worker w;
	const struct setting *set = arg;
	double early = 0, late = 0;
	worker_open(&w, set, world);
	for (int step = 1; step <= set->steps; step++) {
		fill(&w, step);
		sum(&w, step);
		occ_reduce_end(&w.reduce, 1);
		double e = mean_residual(&w) / 20;
		early += step > 80 && step <= 100 ? e : 0;
		late += step > set->steps - 20 ? e : 0;
	}
	CHECK(late <= 1.5 * early, "%s: residuals grow from %g to %g", set->method->name, early,
	      late);
	worker_close(&w);
	return 0;
}

/* ---- A step that does not count. ---- */

static void check_same_streams(struct worker *x, struct worker *y, int step)
{
	float a[SIZE], b[SIZE];
	char text[128];
	describe(x, text, sizeof(text));
	for (int i = 0; i < x->reduce.nitems && x->reduce.contributes; i++) {
		struct occ_stream *s = &x->reduce.item[i].stream, *t = &y->reduce.item[i].stream;
		size_t bytes = (size_t)(s->codec.n * s->codec.m) * sizeof(float);
		size_t state = (size_t)occ_codec_state(&s->codec) * sizeof(float);
		x->dev->ops->get(x->dev, a, s->d_e, bytes);
		y->dev->ops->get(y->dev, b, t->d_e, bytes);
		CHECK(!memcmp(a, b, bytes), "%s: residual %d after step %d", text, i, step);
		CHECK(s->codec.calls == t->codec.calls, "%s: calls of %d", text, i);
		if (!state)
			continue;
		x->dev->ops->get(x->dev, a, s->codec.d_state, state);
		y->dev->ops->get(y->dev, b, t->codec.d_state, state);
		CHECK(!memcmp(a, b, state), "%s: state %d after step %d", text, i, step);
	}
}

/* A NaN in every tensor of one rank. */
static void spoil(struct worker *w, int step)
{
	fill(w, step + 1000);
	for (int i = 0; i < w->ntensors && w->topo.place.dp == w->set->layout.data - 1; i++)
		w->g[w->tensor[i].at + 3] = NAN;
	sum(w, step);
	CHECK(isnan(w->result[w->tensor[1].at + 3]), "a NaN is lost");
	occ_reduce_end(&w->reduce, 0);
}

static int undo_body(struct occ_comm *world, void *arg)
{
	const struct setting *set = arg;
	struct worker w[2];
	for (int i = 0; i < 2; i++)
		worker_open(&w[i], set, world);
	for (int step = 0; step < (is_slow() ? 4 : 15); step++) {
		if (step == 0 || step == 2 || step == 9)
			spoil(&w[0], step);
		for (int i = 0; i < 2; i++) {
			fill(&w[i], step);
			sum(&w[i], step);
			occ_reduce_end(&w[i].reduce, 1);
		}
		CHECK(!memcmp(w[0].result, w[1].result, (size_t)w[0].size * sizeof(float)),
		      "%s: step %d differs after one that did not count", set->method->name, step);
		check_same_streams(&w[0], &w[1], step);
	}
	for (int i = 1; i >= 0; i--)
		worker_close(&w[i]);
	return 0;
}

/* ---- Wires that do not fit one batch. ---- */

enum { BIG_N = 1100, BIG_M = 1000, BIG = BIG_N * BIG_M };

static int batches_body(struct occ_comm *world, void *arg)
{
	const struct setting *set = arg;
	struct occ_err e = {0};
	struct occ_topo topo;
	struct occ_reduce r;
	struct occ_policy policy = policy_of(set);
	const struct occ_tensor tensor[] = {
		{.name = "a", .at = 0, .n = BIG_N, .m = BIG_M, .id = 1},
		{.name = "b", .at = BIG, .n = BIG_N, .m = BIG_M, .id = 2},
		{.name = "c", .at = 2 * BIG, .n = BIG_M, .m = BIG_N, .id = 3},
	};
	policy.undo = 0;
	occ_topo_init(&topo, world, &set->layout, 0, 0);
	struct occ_device *dev = occ_device_open("ref", OCC_F32, 1, &e);
	occ_reduce_init(&r, &topo, dev, &policy, tensor, 3);
	float *d_grad = dev->ops->alloc(dev, 3 * BIG * sizeof(float));
	for (int i = 0; i < 3 * BIG; i++)
		d_grad[i] = (float)(i % 127 - 63 + world->rank); /* exact in bf16 */
	occ_reduce_grads(&r, d_grad, 0, NULL);
	int wrong = 0, D = world->size;
	for (int i = 0; i < 3 * BIG; i++)
		wrong += d_grad[i] != (float)((i % 127 - 63) * D + D * (D - 1) / 2);
	CHECK(!wrong, "%s: %d wrong in several batches", set->method->name, wrong);
	dev->ops->free(dev, d_grad);
	occ_reduce_release(&r);
	occ_device_close(dev);
	occ_topo_release(&topo);
	return 0;
}

/* ---- Tables. ---- */

static void run_conserve(struct occ_comm *world)
{
	static const struct setting rows[] = {
		{.layout = {1, 1, 2}, .scope = OCC_SCOPE_ALL, .steps = 20},
		{.layout = {1, 1, 3}, .scope = OCC_SCOPE_ALL, .steps = 1000},
		{.layout = {1, 1, 4}, .scope = OCC_SCOPE_ALL, .steps = 20},
		{.layout = {1, 1, 4}, .ranks_per_node = 2, .steps = 1000},
		{.layout = {1, 1, 8}, .ranks_per_node = 2, .steps = 20},
		{.layout = {1, 1, 4}, .ranks_per_node = 3, .steps = 100},
		{.layout = {1, 1, 4}, .ranks_per_node = 3, .steps = 20, .device = "strict"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		for (int k = 0; k < NMETHODS; k++) {
			struct setting set = rows[i];
			if (is_slow() && (set.device || (k + (int)i) % 3))
				continue;
			set.method = &methods[k];
			set.steps = is_slow() ? 3 : set.steps;
			run(world, conserve_body, set);
		}
}

static void run_low_rank(struct occ_comm *world)
{
	for (int D = 2; D <= (is_slow() ? 2 : 4); D++)
		for (int k = 0; k < 2; k++) {
			struct setting set = {.layout = {1, 1, D}, .scope = OCC_SCOPE_ALL};
			set.method = &methods[k];
			set.no_feedback = 1;
			run(world, low_rank_body, set);
		}
}

static void run_undo(struct occ_comm *world)
{
	for (int k = 0; k < NMETHODS; k++) {
		struct setting set = {.method = &methods[k], .layout = {1, 1, 3}};
		set.scope = OCC_SCOPE_ALL;
		run(world, undo_body, set);
		set.layout.data = 4;
		set.scope = OCC_SCOPE_INTER_NODE;
		set.ranks_per_node = 2;
		run(world, undo_body, set);
	}
}

static void run_rest(struct occ_comm *world)
{
	static const struct method wide[] = {
		{"cast", {.codec = &occ_codec_cast}},
		{"none", {.codec = &occ_codec_none}},
		{"errbound", {.codec = &occ_codec_errbound, .epsilon = 1e-9}},
	};
	struct setting set = {.method = &methods[0], .layout = {1, 1, 4}};
	set.scope = OCC_SCOPE_ALL;
	set.steps = 1600;
	run(world, bounded_body, set);
	for (int k = 0; k < 3; k++) {
		set.method = &wide[k];
		set.layout.data = 2 + (world != NULL) * 2;
		run(world, batches_body, set);
	}
}

static void run_all(struct occ_comm *world)
{
	run_conserve(world);
	run_low_rank(world);
	run_undo(world);
	if (!is_slow()) /* and its arrays are the host's */
		run_rest(world);
}

int main(void)
{
	return run_everywhere(run_all);
}

/* Sums of gradients over replicas, on made-up tensors: which travel dense, that what a compressed
 * sum loses stays in the residuals, that all replicas hold the same bits, that a skipped step
 * leaves nothing behind, and the fused sum of the tied embedding.
 *
 * RUN: mpi=4 */
#include "parallel/reduce.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/check.h"

enum { NTENSORS = 7, SIZE = 12 * 10 + 7 + 5 * 31 + 11 * 6 + 33 * 3 + 13 + 4 * 4 };

/* The embedding stands on the first and the last stage; "d" is whole on every tensor rank. */
static const struct occ_tensor shapes[NTENSORS] = {
	{.name = "a", .n = 12, .m = 10},
	{.name = "bias", .n = 1, .m = 7},
	{.name = "b", .n = 5, .m = 31},
	{.name = "embedding", .n = 11, .m = 6, .embedding = 1},
	{.name = "c", .n = 33, .m = 3},
	{.name = "gain", .n = 1, .m = 13},
	{.name = "d", .n = 4, .m = 4, .replicated = 1},
};

static const struct method {
	const char *name;
	struct occ_knobs knobs;
} methods[] = {
	{"powersgd", {.codec = &occ_codec_powersgd, .rank = 2, .iterations = 1}},
	{"powersgd, 2 iterations", {.codec = &occ_codec_powersgd, .rank = 3, .iterations = 2}},
	{"topk", {.codec = &occ_codec_topk, .fraction = 0.1}},
	{"dct", {.codec = &occ_codec_dct, .fraction = 0.1, .period = 10}},
	{"quant", {.codec = &occ_codec_quant, .bits = 4, .group = 16}},
	{"cast", {.codec = &occ_codec_cast}},
	{"cast to fp16", {.codec = &occ_codec_cast, .fp16 = 1}},
	{"errbound", {.codec = &occ_codec_errbound, .epsilon = 0.1}},
};

enum { NMETHODS = sizeof(methods) / sizeof(methods[0]) };

struct setting {
	const struct method *method; /* NULL: all dense */
	struct occ_layout layout;
	const char *device;
	enum occ_scope scope;
	int ranks_per_node, stages, dense_steps, no_feedback, fused, steps;
};

/* One rank's sums. Host arrays hold SIZE elements at most. */
struct worker {
	const struct setting *set;
	struct occ_topo topo;
	struct occ_device *dev;
	struct occ_policy policy;
	struct occ_tensor tensor[NTENSORS];
	struct occ_reduce reduce;
	int ntensors;
	int64_t size;
	float *d_grad;
	float g[SIZE], result[SIZE];
};

static struct occ_policy policy_of(const struct setting *s)
{
	struct occ_policy p = {.scope = s->scope, .fused = s->fused, .undo = 1, .key = 77};
	if (s->method)
		p.site[OCC_DP] = (struct occ_site){
			.knobs = s->method->knobs,
			.feedback = !s->no_feedback,
			.start_iter = s->dense_steps,
			.stages = s->stages ? s->stages : 99,
		};
	return p;
}

static int at_end(const struct occ_topo *t)
{
	return t->layout.pipeline > 1 &&
	       (t->place.pp == 0 || t->place.pp == t->layout.pipeline - 1);
}

static void lay_out(struct worker *w)
{
	for (int i = 0; i < NTENSORS; i++) {
		struct occ_tensor *t = &w->tensor[w->ntensors];
		if (shapes[i].embedding && !at_end(&w->topo))
			continue;
		*t = shapes[i];
		t->at = w->size;
		t->id = (uint32_t)(100 * w->topo.place.pp + i);
		w->size += t->n * t->m;
		w->ntensors++;
	}
}

static void worker_open(struct worker *w, const struct setting *s, struct occ_comm *world)
{
	struct occ_err e = {0};
	memset(w, 0, sizeof(*w));
	w->set = s;
	w->policy = policy_of(s);
	occ_topo_init(&w->topo, world, &s->layout, s->ranks_per_node, s->fused);
	w->dev = occ_device_open(s->device ? s->device : "ref", OCC_F32, 1, &e);
	occ_check(w->dev != NULL, "%s", e.text);
	lay_out(w);
	w->d_grad = w->dev->ops->alloc(w->dev, SIZE * sizeof(float));
	occ_reduce_init(&w->reduce, &w->topo, w->dev, &w->policy, w->tensor, w->ntensors);
}

static void worker_close(struct worker *w)
{
	occ_reduce_release(&w->reduce);
	w->dev->ops->free(w->dev, w->d_grad);
	occ_device_close(w->dev);
	occ_topo_release(&w->topo);
}

/* A gradient of this replica: a part that all share, drifting slowly, and noise of its own. */
static float gradient(const struct worker *w, const struct occ_tensor *t, int64_t i, int step)
{
	struct occ_place p = w->topo.place;
	int tp = t->replicated ? 0 : p.tp;
	uint32_t own = (uint32_t)(((step * 8 + p.dp) * 8 + p.pp) * 8 + tp);
	uint64_t at = (uint64_t)(t - w->tensor) * 1000 + (uint64_t)i;
	float common = occ_rng_normal(5, (uint32_t)(p.pp * 8 + tp), at);
	float next = occ_rng_normal(6, (uint32_t)(p.pp * 8 + tp), at), turn = (float)step / 400;
	return 0.3f * (common * cosf(turn) + next * sinf(turn)) + occ_rng_normal(7, own, at);
}

static void fill(struct worker *w, int step)
{
	for (int k = 0; k < w->ntensors; k++)
		for (int64_t i = 0; i < w->tensor[k].n * w->tensor[k].m; i++)
			w->g[w->tensor[k].at + i] = gradient(w, &w->tensor[k], i, step);
}

/* Sums w->g to w->result. */
static void sum(struct worker *w, int step)
{
	size_t bytes = (size_t)w->size * sizeof(float);
	w->dev->ops->put(w->dev, w->d_grad, w->g, bytes);
	occ_reduce_grads(&w->reduce, w->d_grad, step);
	occ_reduce_embedding(&w->reduce, w->d_grad);
	w->dev->ops->get(w->dev, w->result, w->d_grad, bytes);
}

static void plain_sum(struct worker *w, struct occ_comm *c, float *x, int64_t n)
{
	struct occ_traffic *t = c->traffic;
	void *scratch = occ_alloc(occ_comm_scratch(c, n, OCC_F32) + 1, 1);
	(void)w;
	c->traffic = NULL;
	occ_comm_sum(c, x, n, OCC_F32, scratch);
	c->traffic = t;
	occ_free(scratch);
}

static uint64_t hash(const void *x, size_t bytes)
{
	const unsigned char *p = x;
	uint64_t h = 1469598103934665603u;
	for (size_t i = 0; i < bytes; i++)
		h = (h ^ p[i]) * 1099511628211u;
	return h;
}

static void describe(const struct worker *w, char *text, size_t bytes)
{
	const struct setting *s = w->set;
	snprintf(text, bytes, "%s, tp %d pp %d dp %d, scope %d, %d a node, rank %d",
		 s->method ? s->method->name : "dense", s->layout.tensor, s->layout.pipeline,
		 s->layout.data, (int)s->scope, s->ranks_per_node, w->topo.world->rank);
}

/* ---- Who travels how. ---- */

static int is_item(const struct worker *w, const struct occ_tensor *t)
{
	for (int i = 0; i < w->reduce.nitems; i++)
		if (w->reduce.item[i].tensor.id == t->id)
			return 1;
	return 0;
}

/* As the rules say, written down a second time. */
static int may_compress(const struct worker *w, const struct occ_tensor *t)
{
	const struct setting *s = w->set;
	int all = s->scope == OCC_SCOPE_ALL, stages = s->stages ? s->stages : 99;
	int peers = all ? s->layout.data : w->topo.dp_nodes;
	return s->method && t->n > 1 && w->topo.place.pp < stages && peers > 1 &&
	       !(t->embedding && s->fused) && !(t->replicated && w->topo.tp_differ && !all);
}

static void check_routes(struct worker *w, int step)
{
	char text[128];
	float want[SIZE];
	describe(w, text, sizeof(text));
	memcpy(want, w->g, sizeof(want));
	plain_sum(w, w->topo.dp, want, w->size);
	for (int i = 0; i < w->ntensors; i++) {
		const struct occ_tensor *t = &w->tensor[i];
		int may = may_compress(w, t), late = step >= w->set->dense_steps;
		int same = !memcmp(want + t->at, w->result + t->at,
				   (size_t)(t->n * t->m) * sizeof(float));
		CHECK(is_item(w, t) == may, "%s: %s %s", text, t->name,
		      may ? "has no stream" : "has a stream");
		if (!t->embedding || !w->topo.embed)
			CHECK(same == !(may && late), "%s: %s in step %d is %s", text, t->name,
			      step, same ? "dense" : "not the plain sum");
	}
}

static int routes_body(struct occ_comm *world, void *arg)
{
	struct worker w;
	const struct setting *set = arg;
	worker_open(&w, set, world);
	for (int step = 0; step < set->dense_steps + 2; step++) {
		fill(&w, step);
		sum(&w, step);
		check_routes(&w, step);
		CHECK(!occ_differs(w.topo.dp, hash(w.result, (size_t)w.size * sizeof(float))),
		      "replicas differ in step %d", step);
		occ_reduce_end(&w.reduce, 1);
	}
	worker_close(&w);
	return 0;
}

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

static double distance(const double *x, const double *y, int64_t n)
{
	double diff = 0, norm = 0;
	for (int64_t i = 0; i < n; i++) {
		diff += (x[i] - y[i]) * (x[i] - y[i]);
		norm += y[i] * y[i];
	}
	return sqrt(diff / norm);
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
	for (int step = 0; step < 15; step++) {
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

/* ---- The tied embedding. ---- */

static const struct occ_tensor *embedding_of(const struct worker *w)
{
	for (int i = 0; i < w->ntensors; i++)
		if (w->tensor[i].embedding)
			return &w->tensor[i];
	return NULL;
}

/* Bytes that each of the 2D ranks that share shard 0 of the embedding sent, by the counters, of the
 * sum over dp and of that over copies. */
static void count_bytes(const struct worker *w, double bytes[2])
{
	int sharing = w->topo.embed && w->topo.place.tp == 0;
	bytes[0] = sharing ? (double)w->topo.traffic[OCC_DP].wire_bytes : 0;
	bytes[1] = sharing ? (double)w->topo.traffic[OCC_EMBEDDING].wire_bytes : 0;
	occ_comm_sum_double(w->topo.world, bytes, 2);
	for (int i = 0; i < 2; i++)
		bytes[i] /= 2 * w->set->layout.data;
}

/* One step; the embedding's sum to `out`. */
static void embedding_step(const struct setting *set, struct occ_comm *world, float *out)
{
	struct worker w;
	double bytes[2], D = set->layout.data;
	worker_open(&w, set, world);
	fill(&w, 0);
	sum(&w, 0);
	const struct occ_tensor *t = embedding_of(&w);
	double V = 4 * 11 * 6, others = (double)(SIZE * 4) - V, dp = 2 * (D - 1) / D;
	count_bytes(&w, bytes);
	if (!set->method)
		CHECK_NEAR(bytes[0] + bytes[1] - dp * others,
			   (set->fused ? 2 * D - 1 : 3 * D - 2) / D * V, 1e-6,
			   "%s dp %g: %g bytes a rank", set->fused ? "fused" : "unfused", D,
			   bytes[0] + bytes[1] - dp * others);
	CHECK_NEAR(bytes[1], (set->fused ? 2 * D - 1 : D) / D * V, 1e-6, "dp %g: %g bytes", D,
		   bytes[1]);
	if (t) {
		size_t n = (size_t)(t->n * t->m) * sizeof(float);
		memcpy(out, w.result + t->at, n);
		CHECK(!occ_differs(w.topo.embed, hash(out, n)), "copies differ");
	}
	worker_close(&w);
}

/* Unfused, fused, and fused beside compressed gradients. */
static int embedding_body(struct occ_comm *world, void *arg)
{
	struct setting set = *(const struct setting *)arg;
	float sums[3][11 * 6] = {{0}};
	double x[3][11 * 6];
	set.method = NULL;
	embedding_step(&set, world, sums[0]);
	set.fused = 1;
	embedding_step(&set, world, sums[1]);
	set.method = &methods[0];
	embedding_step(&set, world, sums[2]);
	for (int k = 0; k < 3; k++)
		for (int i = 0; i < 11 * 6; i++)
			x[k][i] = (double)sums[k][i];
	int pp = occ_place_of(&set.layout, world->rank).pp;
	int end = pp == 0 || pp == set.layout.pipeline - 1;
	CHECK((x[0][0] != 0) == end, "stage %d: an embedding", pp);
	for (int k = 1; k < 3 && end; k++)
		CHECK(distance(x[k], x[0], 11 * 6) <= 1e-6, "tp %d pp %d dp %d: fused, off by %.3g",
		      set.layout.tensor, set.layout.pipeline, set.layout.data,
		      distance(x[k], x[0], 11 * 6));
	CHECK(!memcmp(sums[1], sums[2], sizeof(sums[1])), "the embedding was compressed");
	return 0;
}

/* ---- Tensors that tensor ranks share stay equal. ---- */

static int replicated_body(struct occ_comm *world, void *arg)
{
	struct worker w;
	worker_open(&w, arg, world);
	const struct occ_tensor *t = &w.tensor[w.ntensors - 1];
	for (int step = 0; step < 5; step++) {
		fill(&w, step);
		sum(&w, step);
		check_routes(&w, step);
		CHECK(!occ_differs(w.topo.tp,
				   hash(w.result + t->at, (size_t)(t->n * t->m) * sizeof(float))),
		      "tensor ranks differ in step %d", step);
		occ_reduce_end(&w.reduce, 1);
	}
	worker_close(&w);
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
	occ_reduce_grads(&r, d_grad, 0);
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

static void run(struct occ_comm *world, int (*body)(struct occ_comm *, void *), struct setting set)
{
	int n = set.layout.tensor * set.layout.pipeline * set.layout.data;
	if (!world)
		occ_comm_run_threads(n, 60, body, &set);
	else if (world->size == n)
		body(world, &set);
}

static void run_routes(struct occ_comm *world)
{
	static const struct setting rows[] = {
		{.layout = {1, 1, 1}, .scope = OCC_SCOPE_ALL},
		{.layout = {1, 2, 1}, .scope = OCC_SCOPE_ALL},
		{.layout = {1, 1, 4}, .scope = OCC_SCOPE_INTER_NODE},
		{.layout = {1, 1, 4}, .scope = OCC_SCOPE_NONE},
		{.layout = {1, 1, 4}, .scope = OCC_SCOPE_ALL, .dense_steps = 2},
		{.layout = {1, 1, 4}, .scope = OCC_SCOPE_INTER_NODE, .ranks_per_node = 1},
		{.layout = {1, 2, 2}, .scope = OCC_SCOPE_ALL, .stages = 1},
		{.layout = {1, 3, 2}, .scope = OCC_SCOPE_ALL, .stages = 2, .dense_steps = 1},
		{.layout = {2, 2, 2}, .scope = OCC_SCOPE_INTER_NODE, .ranks_per_node = 2},
		{.layout = {1, 4, 2}, .scope = OCC_SCOPE_ALL, .stages = 4, .fused = 1},
		{.layout = {1, 1, 2}, .scope = OCC_SCOPE_ALL, .device = "strict"},
		{.layout = {1, 1, 4},
		 .scope = OCC_SCOPE_INTER_NODE,
		 .ranks_per_node = 2,
		 .device = "strict"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		for (int k = 0; k < NMETHODS; k++) {
			struct setting set = rows[i];
			set.method = &methods[k];
			run(world, routes_body, set);
		}
}

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
			set.method = &methods[k];
			run(world, conserve_body, set);
		}
}

static void run_low_rank(struct occ_comm *world)
{
	for (int D = 2; D <= 4; D++)
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

static void run_embedding(struct occ_comm *world)
{
	for (int tp = 1; tp <= 4; tp *= 2)
		for (int dp = 1; dp <= 4; dp *= 2)
			for (int pp = 2; pp <= 4 && tp * dp * pp <= 16; pp += 2) {
				struct setting set = {.layout = {tp, pp, dp}};
				set.scope = OCC_SCOPE_ALL;
				run(world, embedding_body, set);
			}
}

static void run_replicated(struct occ_comm *world)
{
	/* 3 a node: the two tensor ranks of the middle replica are on different nodes. */
	for (int k = 0; k < NMETHODS; k++)
		for (int per_node = 2; per_node <= 4; per_node++)
			for (int all = 0; all < 2; all++) {
				struct setting set = {.method = &methods[k], .layout = {2, 1, 3}};
				set.ranks_per_node = per_node;
				set.scope = all ? OCC_SCOPE_ALL : OCC_SCOPE_INTER_NODE;
				run(world, replicated_body, set);
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
	run_routes(world);
	run_conserve(world);
	run_low_rank(world);
	run_undo(world);
	run_embedding(world);
	run_replicated(world);
	run_rest(world);
}

static int run_mpi(void)
{
	struct occ_err e = {0};
	struct occ_comm *world = occ_comm_open_mpi(60, &e);
	if (!world) {
		occ_err_print(&e);
		return e.code;
	}
	int speaks = world->rank == 0;
	run_all(world);
	double failed = check_failed;
	occ_comm_sum_double(world, &failed, 1);
	check_failed = (int)failed;
	occ_comm_close(world);
	return speaks ? check_done() : failed > 0;
}

int main(void)
{
	if (getenv("OMPI_COMM_WORLD_SIZE"))
		return run_mpi();
	run_all(NULL);
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}

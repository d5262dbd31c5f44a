/* Gradients of made-up tensors, summed over ranks: as threads, or on a world of that size. */
#ifndef OCC_TESTS_MADE_UP_SUMS_H
#define OCC_TESTS_MADE_UP_SUMS_H

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/lane.h"
#include "parallel/reduce.h"
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

/* GPU code on the CPU: a part of the settings, fewer steps. */
static inline int is_slow(void)
{
	return check_device(NULL) != NULL;
}

static inline struct occ_policy policy_of(const struct setting *s)
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

static inline int at_end(const struct occ_topo *t)
{
	return t->layout.pipeline > 1 &&
	       (t->place.pp == 0 || t->place.pp == t->layout.pipeline - 1);
}

static inline void lay_out(struct worker *w)
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

static inline void worker_open(struct worker *w, const struct setting *s, struct occ_comm *world)
{
	struct occ_err e = {0};
	char name[32];
	memset(w, 0, sizeof(*w));
	w->set = s;
	w->policy = policy_of(s);
	occ_topo_init(&w->topo, world, &s->layout, s->ranks_per_node, s->fused);
	snprintf(name, sizeof(name), "%s:%d", s->device ? s->device : check_device("ref"),
		 world->rank);
	w->dev = occ_device_open(name, OCC_F32, 1, &e);
	occ_check(w->dev != NULL, "%s", e.text);
	if (occ_lane_built())
		world->lanes = occ_lane_serves(world, w->dev, NULL);
	lay_out(w);
	w->d_grad = w->dev->ops->alloc(w->dev, SIZE * sizeof(float));
	occ_reduce_init(&w->reduce, &w->topo, w->dev, &w->policy, w->tensor, w->ntensors);
}

static inline void worker_close(struct worker *w)
{
	occ_reduce_release(&w->reduce);
	w->dev->ops->free(w->dev, w->d_grad);
	occ_device_close(w->dev);
	occ_topo_release(&w->topo);
}

/* A gradient of this replica: a part that all share, drifting slowly, and noise of its own. */
static inline float gradient(const struct worker *w, const struct occ_tensor *t, int64_t i,
			     int step)
{
	struct occ_place p = w->topo.place;
	int tp = t->replicated ? 0 : p.tp;
	uint32_t own = (uint32_t)(((step * 8 + p.dp) * 8 + p.pp) * 8 + tp);
	uint64_t at = (uint64_t)(t - w->tensor) * 1000 + (uint64_t)i;
	float common = occ_rng_normal(5, (uint32_t)(p.pp * 8 + tp), at);
	float next = occ_rng_normal(6, (uint32_t)(p.pp * 8 + tp), at), turn = (float)step / 400;
	return 0.3f * (common * cosf(turn) + next * sinf(turn)) + occ_rng_normal(7, own, at);
}

static inline void fill(struct worker *w, int step)
{
	for (int k = 0; k < w->ntensors; k++)
		for (int64_t i = 0; i < w->tensor[k].n * w->tensor[k].m; i++)
			w->g[w->tensor[k].at + i] = gradient(w, &w->tensor[k], i, step);
}

/* Sums w->g to w->result. */
static inline void sum(struct worker *w, int step)
{
	size_t bytes = (size_t)w->size * sizeof(float);
	w->dev->ops->put(w->dev, w->d_grad, w->g, bytes);
	occ_reduce_grads(&w->reduce, w->d_grad, step, NULL);
	occ_reduce_embedding(&w->reduce, w->d_grad);
	w->dev->ops->get(w->dev, w->result, w->d_grad, bytes);
}

static inline void plain_sum(struct worker *w, struct occ_comm *c, float *x, int64_t n)
{
	struct occ_traffic *t = c->traffic;
	void *scratch = occ_alloc(occ_comm_scratch(c, n, OCC_F32) + 1, 1);
	(void)w;
	c->traffic = NULL;
	occ_comm_sum(c, x, n, OCC_F32, scratch);
	c->traffic = t;
	occ_free(scratch);
}

static inline uint64_t hash(const void *x, size_t bytes)
{
	const unsigned char *p = x;
	uint64_t h = 1469598103934665603u;
	for (size_t i = 0; i < bytes; i++)
		h = (h ^ p[i]) * 1099511628211u;
	return h;
}

static inline void describe(const struct worker *w, char *text, size_t bytes)
{
	const struct setting *s = w->set;
	snprintf(text, bytes, "%s, tp %d pp %d dp %d, scope %d, %d a node, rank %d",
		 s->method ? s->method->name : "dense", s->layout.tensor, s->layout.pipeline,
		 s->layout.data, (int)s->scope, s->ranks_per_node, w->topo.world->rank);
}

static inline double distance(const double *x, const double *y, int64_t n)
{
	double diff = 0, norm = 0;
	for (int64_t i = 0; i < n; i++) {
		diff += (x[i] - y[i]) * (x[i] - y[i]);
		norm += y[i] * y[i];
	}
	return sqrt(diff / norm);
}

static inline void run(struct occ_comm *world, int (*body)(struct occ_comm *, void *),
		       struct setting set)
{
	int n = set.layout.tensor * set.layout.pipeline * set.layout.data;
	if (!world)
		occ_comm_run_threads(n, 60, body, &set);
	else if (world->size == n)
		body(world, &set);
}

typedef void all_runs(struct occ_comm *world);

static inline int run_mpi(all_runs *all)
{
	struct occ_err e = {0};
	struct occ_comm *world = occ_comm_open_mpi(60, &e);
	if (!world) {
		occ_err_print(&e);
		return e.code;
	}
	int speaks = world->rank == 0;
	all(world);
	double failed = check_failed;
	occ_comm_sum_double(world, &failed, 1);
	check_failed = (int)failed;
	occ_comm_close(world);
	return speaks ? check_done() : failed > 0;
}

/* Everything, and the closing line. */
static inline int run_everywhere(all_runs *all)
{
	if (getenv("OMPI_COMM_WORLD_SIZE"))
		return run_mpi(all);
	all(NULL);
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}

#endif

/* Which gradients travel dense, to the bit, and which compressed; tensors that tensor ranks share
 * stay equal; the fused sum of the tied embedding.
 *
 * RUN: mpi=4
 * CUDA: 2 */
#include "tests/made_up_sums.h"

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

/* ---- Tables. ---- */

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
			if (is_slow() && (set.device || (k + (int)i) % 4))
				continue;
			set.method = &methods[k];
			run(world, routes_body, set);
		}
}

static void run_embedding(struct occ_comm *world)
{
	int most = is_slow() ? 2 : 4;
	for (int tp = 1; tp <= most; tp *= 2)
		for (int dp = 1; dp <= most; dp *= 2)
			for (int pp = 2; pp <= most && tp * dp * pp <= 16; pp += 2) {
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
				if (is_slow() && (k + per_node + all) % 6)
					continue;
				set.ranks_per_node = per_node;
				set.scope = all ? OCC_SCOPE_ALL : OCC_SCOPE_INTER_NODE;
				run(world, replicated_body, set);
			}
}

static void run_all(struct occ_comm *world)
{
	run_routes(world);
	run_embedding(world);
	run_replicated(world);
}

int main(void)
{
	return run_everywhere(run_all);
}

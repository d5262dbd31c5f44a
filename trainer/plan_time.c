/* How long a step takes: what plan_work.c found out, played by the simulator. Pure. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/plan.h"
#include "trainer/trace.h"

const char *const occ_plan_mark_name[OCC_PLAN_MARKS] = {
	[OCC_MARK_NONE] = "none",
	[OCC_MARK_TAIL] = "tail",
	[OCC_MARK_SLACK] = "slack",
	[OCC_MARK_ALL] = "all",
};

const char *const occ_plan_because =
	"the fewest compressed transfers within 1 % of the shortest step";

const double occ_plan_slower[OCC_PLAN_RATES] = {1, 2, 8, 20};

/* ---- Rungs: the configuration's techniques, added one by one. ---- */

/* What a policy makes of a step, with every transfer marked. */
static void work(const struct occ_plan *p, const char *name, const struct occ_policy *policy,
		 struct occ_plan_rung *out)
{
	struct occ_policy all = *policy;
	all.site[OCC_PP_FORWARD].mark = all.site[OCC_PP_BACKWARD].mark = OCC_MARK_ALL;
	out->name = name;
	out->policy = *policy;
	occ_plan_work(p, &all, out);
}

static void release_rung(struct occ_plan_rung *r)
{
	occ_free(r->stage);
	occ_free(r->sent);
}

static void add_rung(struct occ_plan *p, const char *name, const struct occ_policy *policy)
{
	work(p, name, policy, &p->rung[p->nrungs++]);
}

/* Transfers that are not marked travel dense: as on the first rung. */
static void take_dense(const struct occ_plan *p, struct occ_plan_rung *r)
{
	static const enum occ_op ops[] = {OCC_SEND_ACT, OCC_RECV_ACT, OCC_SEND_GRAD, OCC_RECV_GRAD};
	for (int s = 0; s < p->layout.pipeline; s++)
		for (int i = 0; i < 4; i++) {
			const struct occ_sim_stage *dense = &p->rung[0].stage[s];
			struct occ_sim_stage *g = &r->stage[s];
			enum occ_op op = ops[i];
			int critical = dense->bytes[op][1] > 0 || dense->compute[op][1] > 0;
			g->compute[op][0] = dense->compute[op][critical];
			g->bytes[op][0] = dense->bytes[op][critical];
			g->delay[op][0] = dense->delay[op][critical];
			if (g->compute[op][1] <= 0 && g->bytes[op][1] <= 0) {
				g->compute[op][1] = g->compute[op][0];
				g->bytes[op][1] = g->bytes[op][0];
				g->delay[op][1] = g->delay[op][0];
			}
		}
}

void occ_plan_rungs(struct occ_plan *p)
{
	struct occ_policy q = p->policy;
	q.fused = 0;
	for (int k = 0; k < OCC_NSITES; k++)
		q.site[k].knobs.codec = NULL;
	add_rung(p, "dense", &q);
	const struct occ_site *from = p->policy.site;
	if (from[OCC_PP_FORWARD].knobs.codec) {
		q.site[OCC_PP_FORWARD] = from[OCC_PP_FORWARD];
		add_rung(p, "+ activations", &q);
	}
	if (from[OCC_PP_BACKWARD].knobs.codec) {
		q.site[OCC_PP_BACKWARD] = from[OCC_PP_BACKWARD];
		add_rung(p, "+ back-propagation", &q);
	}
	if (p->policy.fused) {
		q.fused = 1;
		add_rung(p, "+ fused embedding", &q);
	}
	if (from[OCC_DP].knobs.codec) {
		q.site[OCC_DP] = from[OCC_DP];
		add_rung(p, "+ data-parallel", &q);
	}
	for (int i = p->nrungs - 1; i >= 0; i--)
		take_dense(p, &p->rung[i]);
}

void occ_plan_rungs_release(struct occ_plan *p)
{
	for (int i = 0; i < p->nrungs; i++)
		release_rung(&p->rung[i]);
}

/* ---- A step. ---- */

/* Which instructions a step is played with. */
enum part { PASSES, TRANSFERS, SUMS, ALL };

static void leave_out(struct occ_sim_stage *g, enum occ_op op)
{
	for (int k = 0; k < 2; k++)
		g->compute[op][k] = g->delay[op][k] = g->bytes[op][k] = 0;
}

static void keep_part(struct occ_sim_stage *g, enum part part)
{
	if (part < TRANSFERS)
		for (int op = 0; op < OCC_NOPS; op++)
			if (op != OCC_FORWARD && op != OCC_BACKWARD)
				leave_out(g, (enum occ_op)op);
	if (part < SUMS)
		leave_out(g, OCC_REDUCE_GRADS);
	if (part < ALL)
		leave_out(g, OCC_REDUCE_EMBED);
}

static void build_lists(const struct occ_plan *p, const struct occ_plan_rung *r, enum occ_mark mark,
			struct occ_schedule *all)
{
	struct occ_policy q = r->policy;
	q.site[OCC_PP_BACKWARD].mark = mark;
	for (int s = 0; s < p->layout.pipeline; s++) {
		occ_schedule_1f1b(&all[s], s, p->layout.pipeline, (int)p->nmicro);
		occ_policy_mark(&p->conf, &q, &all[s]);
	}
}

static void release_lists(const struct occ_plan *p, struct occ_schedule *all)
{
	for (int s = 0; s < p->layout.pipeline; s++)
		occ_schedule_release(&all[s]);
	occ_free(all);
}

static struct occ_sim_net net_at(const struct occ_plan *p, double node)
{
	return (struct occ_sim_net){
		.node = node,
		.inside = 1e9 * p->hw.inside.gbytes_per_s,
		.hosts = (int)p->hw.host.machines,
		.nodes = p->nodes,
		.cores = p->hw.host.cores,
	};
}

static double play(const struct occ_plan *p, const struct occ_plan_rung *r,
		   const struct occ_schedule *all, enum part part, double node)
{
	size_t P = (size_t)p->layout.pipeline;
	struct occ_sim_stage *stage = occ_alloc(P, sizeof(*stage));
	struct occ_sim_conf conf = {all, (int)P, OCC_SEND_POSTED, 2, stage, net_at(p, node), NULL};
	struct occ_sim sim;
	memcpy(stage, r->stage, P * sizeof(*stage));
	for (size_t s = 0; s < P; s++)
		keep_part(&stage[s], part);
	occ_sim_play(&conf, &sim);
	occ_free(stage);
	return sim.total;
}

static double longest_passes(const struct occ_plan *p, const struct occ_plan_rung *r)
{
	double most = 0;
	for (int s = 0; s < p->layout.pipeline; s++)
		most = fmax(most, r->stage[s].compute[OCC_FORWARD][0] +
					  r->stage[s].compute[OCC_BACKWARD][0]);
	return most * (double)p->nmicro;
}

/* Ranks that update at once on a machine share its cores. */
static double optimizer_s(const struct occ_plan *p, const struct occ_plan_rung *r)
{
	double machines = p->hw.host.machines ? (double)p->hw.host.machines : p->nodes;
	double ranks = p->ranks / machines, cores = p->hw.host.cores;
	return r->optimizer_s * (cores > 0 && ranks > cores ? ranks / cores : 1);
}

void occ_plan_time(const struct occ_plan *p, const struct occ_plan_rung *r, enum occ_mark mark,
		   double node, struct occ_plan_time *out)
{
	struct occ_schedule *all = occ_alloc((size_t)p->layout.pipeline, sizeof(*all));
	double t[ALL + 1];
	build_lists(p, r, mark, all);
	for (int part = PASSES; part <= ALL; part++)
		t[part] = play(p, r, all, (enum part)part, node);
	release_lists(p, all);
	*out = (struct occ_plan_time){
		.compute = longest_passes(p, r),
		.pipeline = t[TRANSFERS] - t[PASSES],
		.data = t[SUMS] - t[TRANSFERS],
		.embedding = t[ALL] - t[SUMS],
		.optimizer = optimizer_s(p, r),
	};
	out->bubble = t[PASSES] - out->compute;
	out->total = t[ALL] + out->optimizer;
}

enum occ_mark occ_plan_mark(const struct occ_plan *p)
{
	return p->policy.site[OCC_PP_BACKWARD].mark;
}

enum occ_mark occ_plan_recommend(const double ms[OCC_PLAN_MARKS])
{
	double least = ms[0];
	for (int i = 1; i < OCC_PLAN_MARKS; i++)
		least = fmin(least, ms[i]);
	for (int i = 0; i < OCC_PLAN_MARKS; i++)
		if (ms[i] <= 1.01 * least)
			return (enum occ_mark)i;
	return OCC_MARK_NONE;
}

/* The whole step of a rung, by one simulation. */
static double total(const struct occ_plan *p, const struct occ_plan_rung *r, double node)
{
	struct occ_schedule *all = occ_alloc((size_t)p->layout.pipeline, sizeof(*all));
	build_lists(p, r, occ_plan_mark(p), all);
	double t = play(p, r, all, ALL, node) + optimizer_s(p, r);
	release_lists(p, all);
	return t;
}

static int pays(const struct occ_plan *p, double node)
{
	return total(p, &p->rung[p->nrungs - 1], node) < total(p, &p->rung[0], node) * (1 - 1e-6);
}

double occ_plan_break_even(const struct occ_plan *p)
{
	double low = 1e4, high = 1e14;
	if (p->nrungs < 2 || !pays(p, low))
		return 0;
	if (pays(p, high))
		return INFINITY;
	while (high / low > 1.01) {
		double middle = sqrt(low * high);
		if (pays(p, middle))
			low = middle;
		else
			high = middle;
	}
	return low;
}

int occ_plan_stages(const struct occ_plan *p, double *seconds)
{
	int P = p->layout.pipeline, best = 0;
	size_t bytes = (size_t)P * sizeof(*p->rung[0].stage);
	struct occ_policy q = p->policy;
	struct occ_plan_rung every, mixed = p->rung[p->nrungs - 1];
	if (!q.site[OCC_DP].knobs.codec)
		return -1;
	q.site[OCC_DP].stages = P;
	work(p, "", &q, &every);
	take_dense(p, &every);
	mixed.stage = occ_alloc(1, bytes);
	memcpy(mixed.stage, p->rung[p->nrungs - 2].stage, bytes);
	for (int k = 0; k <= P; k++) {
		if (k > 0)
			mixed.stage[k - 1] = every.stage[k - 1];
		seconds[k] = total(p, &mixed, 1e9 * p->hw.node.gbytes_per_s);
		if (seconds[k] < 0.99 * seconds[best])
			best = k;
	}
	occ_free(mixed.stage);
	release_rung(&every);
	return best;
}

void occ_plan_trace(const struct occ_plan *p, const char *path)
{
	size_t P = (size_t)p->layout.pipeline;
	const struct occ_plan_rung *r = &p->rung[p->nrungs - 1];
	struct occ_schedule *all = occ_alloc(P, sizeof(*all));
	struct occ_trace *trace = occ_alloc(P, sizeof(*trace));
	struct occ_sim_conf conf = {all,  (int)P,   OCC_SEND_POSTED,
				    2,    r->stage, net_at(p, 1e9 * p->hw.node.gbytes_per_s),
				    trace};
	struct occ_trace_file file;
	struct occ_sim sim;
	build_lists(p, r, occ_plan_mark(p), all);
	occ_sim_play(&conf, &sim);
	occ_trace_file_open(&file, path);
	for (size_t s = 0; s < P; s++) {
		char name[64], *events = occ_trace_events(&trace[s], (int)s, 1, 0, 0);
		snprintf(name, sizeof(name), "stage %zu", s);
		occ_trace_file_track(&file, (int)s, name);
		occ_trace_file_put(&file, events);
		free(events);
		occ_trace_release(&trace[s]);
		occ_schedule_release(&all[s]);
	}
	occ_trace_file_close(&file);
	occ_free(trace);
	occ_free(all);
}

/* ---- Figures of links and sums. ---- */

static void add_link(const struct occ_plan *p, const struct occ_schedule *s, enum occ_op op, int to,
		     struct occ_plan_link *l)
{
	const struct occ_sim_stage *g = &p->rung[p->nrungs - 1].stage[s->stage];
	*l = (struct occ_plan_link){
		.from = s->stage,
		.to = to,
		.kind = op == OCC_SEND_ACT ? OCC_PP_FORWARD : OCC_PP_BACKWARD,
		.crosses = g->crosses[op],
	};
	for (int i = 0; i < s->n; i++)
		if (s->at[i].op == op) {
			int critical = s->at[i].flags & OCC_CRITICAL ? 1 : 0;
			l->transfers++;
			l->compressed += critical && g->codec[op][1];
		}
	int ranks = l->crosses ? occ_plan_neighbours(p, s->stage) : 1; /* whose bytes these are */
	l->dense_bytes = g->bytes[op][0] / ranks;
	l->wire_bytes = g->bytes[op][1] / ranks;
	double rate = l->crosses ? 1e9 * p->hw.node.gbytes_per_s / ranks
				 : 1e9 * p->hw.inside.gbytes_per_s;
	l->dense_ms = 1e3 * l->dense_bytes / rate;
	l->wire_ms = 1e3 * l->wire_bytes / rate;
}

int occ_plan_links(const struct occ_plan *p, struct occ_plan_link *link)
{
	int P = p->layout.pipeline, n = 0;
	struct occ_schedule *all = occ_alloc((size_t)P, sizeof(*all));
	build_lists(p, &p->rung[p->nrungs - 1], occ_plan_mark(p), all);
	for (int s = 0; s < P; s++) {
		if (s + 1 < P)
			add_link(p, &all[s], OCC_SEND_ACT, s + 1, &link[n++]);
		if (s > 0)
			add_link(p, &all[s], OCC_SEND_GRAD, s - 1, &link[n++]);
	}
	release_lists(p, all);
	return n;
}

double occ_plan_sum_ms(const struct occ_plan *p, int stage, double bytes)
{
	int crosses = p->rung[0].stage[stage].crosses[OCC_REDUCE_GRADS];
	double node = 1e9 * p->hw.node.gbytes_per_s / occ_plan_neighbours(p, stage);
	return 1e3 * bytes / (crosses ? node : 1e9 * p->hw.inside.gbytes_per_s);
}

struct occ_plan_embedding occ_plan_embedding(const struct occ_plan *p)
{
	const struct occ_config_model *m = &p->conf.model;
	double D = p->layout.data;
	int64_t T = p->layout.tensor;
	int64_t rows = occ_vocab_padded(m->vocab_size, m->vocab_multiple, (int)T) / T;
	double shard = (double)(rows * m->hidden) * sizeof(float);
	if (!m->tie_embeddings || p->layout.pipeline < 2)
		return (struct occ_plan_embedding){0};
	return (struct occ_plan_embedding){shard, shard * (3 * D - 2) / D, shard * (2 * D - 1) / D};
}

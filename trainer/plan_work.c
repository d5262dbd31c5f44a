/* What the ranks of a stage do with each instruction, from the trace of a step: bytes as counted,
 * seconds as the calls of a dry device take at the given rates, or as they took on the real one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/plan_rank.h"

static int is_sum(int op)
{
	return op == OCC_REDUCE_GRADS || op == OCC_REDUCE_EMBED;
}

static int is_send(int op)
{
	return op == OCC_SEND_ACT || op == OCC_SEND_GRAD;
}

/* Seconds that a collective of `size` ranks keeps this one. What sums send out of a node is left
 * out: the simulator's flow. */
static double exchange_s(const struct occ_plan *p, int stage, int op, const struct occ_span *s,
			 int size)
{
	double inter = (double)s->inter_node_bytes, inside = (double)s->wire_bytes - inter;
	double turns = size > 1 ? (double)s->messages / (size - 1) : 0;
	double t = inside / (1e9 * p->hw.inside.gbytes_per_s);
	if (is_sum(op))
		return t;
	t += inter * occ_plan_neighbours(p, stage) / (1e9 * p->hw.node.gbytes_per_s);
	return t + turns * 1e-6 * (inter > 0 ? p->hw.node.latency_us : p->hw.inside.latency_us);
}

/* A dense sum also adds up on the host: all values are read, sent ones written and read. */
static double fold_s(const struct occ_plan *p, const struct occ_span *s, int size)
{
	double values = size > 1 ? (double)s->wire_bytes * size / (2.0 * (size - 1)) : 0;
	return 3 * values / (1e9 * p->hw.device.memory_gbytes_per_s);
}

static void note_span(const struct occ_plan *p, int stage, int op, const struct occ_span *s,
		      struct occ_sim_stage *out)
{
	int critical = s->critical;
	int size = op == OCC_REDUCE_GRADS   ? p->layout.data
		   : op == OCC_REDUCE_EMBED ? 2 * p->layout.data
					    : p->layout.tensor;
	double inter = (double)s->inter_node_bytes;
	double latency = 1e-6 * (inter > 0 ? p->hw.node.latency_us : p->hw.inside.latency_us);
	out->codec[op][critical] = s->codec;
	if (is_send(op)) {
		out->bytes[op][critical] = (double)s->wire_bytes;
		out->delay[op][critical] = latency;
		out->crosses[op] = inter > 0;
		return;
	}
	out->compute[op][critical] += exchange_s(p, stage, op, s, size);
	if (!is_sum(op))
		return;
	out->compute[op][critical] += fold_s(p, s, size);
	out->bytes[op][critical] = inter;
	out->crosses[op] = inter > 0;
	out->delay[op][critical] = size > 1 ? latency * (double)s->messages / (size - 1) : 0;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* The median of what instructions of one kind took; < 0 if there are none. */
static double median_s(const struct occ_plan_rank *r, int op, int critical)
{
	double *t = occ_alloc((size_t)r->trace.n, sizeof(*t)), middle;
	int n = 0, at = 0;
	for (int i = 0; i < r->trace.n; i++) {
		const struct occ_span *s = &r->trace.at[i];
		if (s->depth > 0)
			continue;
		const struct occ_instr *in = &r->sched.at[at++ % r->sched.n];
		if (in->op == op && s->critical == critical)
			t[n++] = 1e-3 * (s->end_ms - s->begin_ms);
	}
	qsort(t, (size_t)n, sizeof(*t), by_size);
	middle = n ? t[n / 2] : -1;
	occ_free(t);
	return middle;
}

static void read_seconds(const struct occ_plan_rank *r, struct occ_sim_stage *out)
{
	for (int op = 0; op < OCC_NOPS; op++)
		for (int critical = 0; critical < 2; critical++) {
			double t = median_s(r, op, critical);
			if (t >= 0)
				out->compute[op][critical] = t;
		}
}

/* The last instruction of each kind tells what all of them send. */
static void read_bytes(const struct occ_plan *p, const struct occ_plan_rank *r,
		       struct occ_sim_stage *out)
{
	const struct occ_span *last[OCC_NOPS][2] = {0};
	int at = 0;
	for (int i = 0; i < r->trace.n && at < r->sched.n; i++)
		if (r->trace.at[i].depth == 0)
			last[r->sched.at[at++].op][r->trace.at[i].critical] = &r->trace.at[i];
	for (int op = 0; op < OCC_NOPS; op++)
		for (int critical = 0; critical < 2; critical++)
			if (last[op][critical])
				note_span(p, r->topo.place.pp, op, last[op][critical], out);
}

static double optimizer_s(struct occ_plan_rank *r, const struct occ_plan *p)
{
	double begin = r->trace.now_ms(r->trace.clock);
	occ_optim_norm2(&r->optim, NULL);
	occ_optim_update(&r->optim, &p->conf.optimizer, 1e-4, 1);
	return 1e-3 * (r->trace.now_ms(r->trace.clock) - begin);
}

/* ---- The same on the real device. ---- */

/* What a wire brings is not all zero: codecs would have it easier than they do. */
static void fill_wires(struct occ_link *l, const struct occ_device *d)
{
	int sums = !l->has_stream || l->stream.codec.ops->rounds;
	for (int w = 0; w < 2 && l->comm && sums; w++)
		for (size_t i = 0; i < l->bytes / occ_type_size(d->type); i++) {
			float x = 1e-3f * (float)((int64_t)(i * 2654435761u % 2001) - 1000);
			if (d->type == OCC_F32)
				((float *)l->wire[w])[i] = x;
			else
				((uint16_t *)l->wire[w])[i] = occ_f32_to_bf16(x);
		}
}

static void draw_weights(const struct occ_plan *p, struct occ_plan_rank *r)
{
	float *flat = occ_alloc((size_t)r->gpt.weights.size, sizeof(*flat));
	occ_weights_draw(&r->gpt.weights, (uint64_t)p->conf.train.seed, flat);
	occ_gpt_put(&r->gpt, flat);
	occ_free(flat);
}

enum { WARM = 1, TIMED = 3 }; /* steps */

/* Times a rank's instructions; the list is only as long as each kind of them needs. */
static void measure_rank(const struct occ_plan *p, const struct occ_policy *policy, int rank,
			 struct occ_sim_stage *out, double *optimizer)
{
	struct occ_plan_rank r;
	int slots = p->layout.pipeline + 2,
	    nmicro = (int)p->nmicro < slots ? (int)p->nmicro : slots;
	occ_plan_rank_open(&r, p, policy, rank, p->conf.train.device, nmicro);
	occ_plan_rank_exec(&r, p, policy);
	occ_optim_init(&r.optim, &r.gpt);
	draw_weights(p, &r);
	fill_wires(&r.exec.act_in, r.dev);
	fill_wires(&r.exec.grad_in, r.dev);
	for (int i = 0; i < WARM + TIMED; i++) {
		r.dev->trace = i < WARM ? NULL : &r.trace;
		occ_plan_rank_step(&r, policy);
	}
	r.dev->trace = NULL;
	read_seconds(&r, out);
	for (int i = 0; i < 2; i++)
		*optimizer = optimizer_s(&r, p);
	occ_plan_rank_close(&r);
}

/* A traced step of one rank: seconds, bytes, the optimizer's seconds. */
static void trace_rank(const struct occ_plan *p, const struct occ_policy *policy, int rank,
		       struct occ_sim_stage *out, struct occ_plan_sent *sent, double *optimizer)
{
	struct occ_plan_rank r;
	occ_plan_rank_open(&r, p, policy, rank, NULL, (int)p->nmicro);
	occ_plan_rank_exec(&r, p, policy);
	occ_optim_init(&r.optim, &r.gpt);
	r.dev->trace = &r.trace;
	occ_plan_rank_step(&r, policy);
	r.dev->trace = NULL;
	read_seconds(&r, out);
	*optimizer = optimizer_s(&r, p);
	if (p->measured)
		measure_rank(p, policy, rank, out, optimizer);
	read_bytes(p, &r, out);
	sent->data = (double)r.topo.traffic[OCC_DP].wire_bytes;
	sent->embedding = (double)r.topo.traffic[OCC_EMBEDDING].wire_bytes;
	occ_plan_rank_close(&r);
}

/* Ranks of a stage on the node of its first: they share what leaves it. Flows are a node's. */
static void add_neighbours(const struct occ_plan *p, const struct occ_policy *policy, int first,
			   struct occ_sim_stage *out)
{
	int node = first / p->per_node, stage = occ_place_of(&p->layout, first).pp, crosses = 0;
	for (int op = 0; op < OCC_NOPS; op++)
		crosses |= out->crosses[op];
	int last = (node + 1) * p->per_node;
	struct occ_plan reckoned = *p; /* their bytes are wanted only */
	struct occ_plan_sent theirs;
	double unused;
	reckoned.measured = 0;
	for (int rank = first + 1; rank < p->ranks && rank < last && crosses; rank++) {
		struct occ_sim_stage one = {0};
		if (occ_place_of(&p->layout, rank).pp != stage)
			continue;
		trace_rank(&reckoned, policy, rank, &one, &theirs, &unused);
		for (int op = 0; op < OCC_NOPS; op++)
			for (int k = 0; k < 2 && out->crosses[op]; k++)
				out->bytes[op][k] += one.bytes[op][k];
	}
}

static int first_rank(const struct occ_plan *p, int stage)
{
	return occ_rank_of(&p->layout, (struct occ_place){.pp = stage});
}

/* Stages lie one behind the other: ranks of this one on nodes from..to. */
static int ranks_on(const struct occ_plan *p, int stage, int from, int to)
{
	int at = first_rank(p, stage), end = at + p->layout.tensor * p->layout.data;
	int low = from * p->per_node, high = (to + 1) * p->per_node;
	return (end < high ? end : high) - (at > low ? at : low);
}

int occ_plan_neighbours(const struct occ_plan *p, int stage)
{
	int node = first_rank(p, stage) / p->per_node;
	return ranks_on(p, stage, node, node);
}

/* Ranks of a stage on the machine of its first: they want cores at the same time. */
static int sharers(const struct occ_plan *p, int stage)
{
	int64_t machines = p->hw.host.machines;
	int node = first_rank(p, stage) / p->per_node, last = node;
	while (machines > 0 && last + 1 < p->nodes &&
	       (last + 1) * machines / p->nodes == node * machines / p->nodes)
		last++;
	return ranks_on(p, stage, node, last);
}

void occ_plan_work(const struct occ_plan *p, const struct occ_policy *policy,
		   struct occ_plan_rung *out)
{
	out->stage = occ_alloc((size_t)p->layout.pipeline, sizeof(*out->stage));
	out->sent = occ_alloc((size_t)p->layout.pipeline, sizeof(*out->sent));
	out->optimizer_s = 0;
	for (int s = 0; s < p->layout.pipeline; s++) {
		int first = first_rank(p, s);
		struct occ_sim_stage *g = &out->stage[s];
		double optimizer;
		g->node = first / p->per_node;
		g->sharers = sharers(p, s);
		trace_rank(p, policy, first, g, &out->sent[s], &optimizer);
		out->optimizer_s = fmax(out->optimizer_s, optimizer);
		add_neighbours(p, policy, first, g);
	}
}

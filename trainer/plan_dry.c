/* A step of each rank on a device and a transport that only count. Nothing is reckoned twice: the
 * schedule, the routes, the model, the sums and the codecs are the run's own code, so messages,
 * bytes and memory are the run's; seconds are what the device's calls take at the given rates, or,
 * with the real device in the dry one's place, what they took. */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "trainer/plan.h"

/* One rank, alone. */
struct dry_rank {
	struct occ_comm *world;
	struct occ_topo topo;
	struct occ_device *dev;
	struct occ_group tp;
	struct occ_gpt gpt;
	struct occ_stage stage;
	struct occ_optim optim;
	struct occ_exec exec;
	struct occ_schedule sched;
	int32_t *tokens;
	int nmicro;
	size_t counted;
	struct occ_trace trace;
};

/* ---- Opening. ---- */

/* Bytes that a dry device was asked for since the last call. */
static double taken(struct dry_rank *r)
{
	size_t all = occ_device_dry_bytes(r->dev), since = all - r->counted;
	r->counted = all;
	return (double)since;
}

static void open_place(const struct occ_plan *p, const struct occ_policy *policy, int rank,
		       struct dry_rank *r)
{
	r->world = occ_comm_open_dry(rank, p->ranks);
	occ_topo_init(&r->topo, r->world, &p->layout, p->per_node, policy->fused);
}

static double machine_ms(void *clock)
{
	(void)clock;
	return occ_clock_ms();
}

/* As a run where all ranks of a node may use the same cores. */
static int threads_for(const struct occ_plan *p)
{
	cpu_set_t mine;
	CPU_ZERO(&mine);
	sched_getaffinity(0, sizeof(mine), &mine);
	int share = CPU_COUNT(&mine) / p->per_node;
	return p->conf.train.threads > 0 ? (int)p->conf.train.threads : share > 1 ? share : 1;
}

/* device NULL: dry, and its clock is the trace's. */
static void open_device(const struct occ_plan *p, const char *device, struct dry_rank *r)
{
	struct occ_rates rates = occ_hardware_rates(&p->hw);
	struct occ_err e = {0};
	int threads = threads_for(p);
	r->dev = occ_device_open(device ? device : "dry", p->type, threads, &e);
	if (!r->dev)
		occ_die(e.code, "%s", e.text);
	if (!device)
		occ_device_dry_rates(r->dev, &rates);
	occ_trace_init(&r->trace, device ? machine_ms : occ_device_dry_ms, r->dev);
}

static void open_model(const struct occ_plan *p, const struct occ_policy *policy, int nmicro,
		       struct dry_rank *r)
{
	const struct occ_config *c = &p->conf;
	size_t n = (size_t)(nmicro * c->batch.micro * (c->model.seq_len + 1));
	r->nmicro = nmicro;
	occ_group_init(&r->tp, r->topo.tp, r->dev, SIZE_MAX / 4);
	occ_schedule_1f1b(&r->sched, r->topo.place.pp, p->layout.pipeline, nmicro);
	occ_policy_mark(c, policy, &r->sched);
	occ_gpt_init(&r->gpt, &p->shape, &r->topo, r->dev, &r->tp, c->batch.micro, r->sched.slots);
	occ_gpt_stage(&r->gpt, &r->stage);
	r->tokens = occ_alloc(n, sizeof(*r->tokens));
	for (size_t i = 0; i < n && !r->dev->ops->dry; i++)
		r->tokens[i] = (int32_t)((int64_t)i * 7919 % c->model.vocab_size);
}

static void open_exec(const struct occ_plan *p, const struct occ_policy *policy, struct dry_rank *r)
{
	struct occ_exec_conf x = {p->rows, p->conf.model.hidden, r->sched.slots, policy, &r->stage};
	occ_exec_init(&r->exec, &r->topo, r->dev, &r->tp, &x);
}

static void open_rank(const struct occ_plan *p, const struct occ_policy *policy, int rank,
		      struct dry_rank *r)
{
	memset(r, 0, sizeof(*r));
	open_place(p, policy, rank, r);
	open_device(p, NULL, r);
	open_model(p, policy, (int)p->nmicro, r);
}

static void close_rank(struct dry_rank *r)
{
	occ_free(r->tokens);
	occ_trace_release(&r->trace);
	occ_optim_release(&r->optim);
	occ_exec_release(&r->exec);
	occ_schedule_release(&r->sched);
	occ_gpt_release(&r->gpt);
	occ_group_release(&r->tp);
	occ_device_close(r->dev);
	occ_topo_release(&r->topo);
	occ_comm_close(r->world);
}

/* A step after every start_iter. */
static int64_t late_step(const struct occ_policy *p)
{
	int64_t step = 0;
	for (int k = 0; k < OCC_NSITES; k++)
		if (p->site[k].start_iter > step)
			step = p->site[k].start_iter;
	return step;
}

static void run_step(struct dry_rank *r, const struct occ_policy *policy)
{
	struct occ_gpt_batch b = {
		.tokens = r->tokens, .nmicro = r->nmicro, .grad_scale = 1e-3f, .train = 1};
	memset(r->topo.traffic, 0, sizeof(r->topo.traffic));
	occ_gpt_begin(&r->gpt, &b);
	occ_exec_step(&r->exec, &r->sched, late_step(policy));
}

/* ---- Counting: memory, traffic, reasons. ---- */

static void keep_largest(struct occ_plan_memory *m, const struct occ_plan_memory *one)
{
	m->weights = fmax(m->weights, one->weights);
	m->activations = fmax(m->activations, one->activations);
	m->optimizer = fmax(m->optimizer, one->optimizer);
	m->compression = fmax(m->compression, one->compression);
}

/* Opens the parts one by one; what each takes is the stage's memory. The executor is opened without
 * compression first: what it takes more with it is compression's. */
static void open_measured(struct occ_plan *p, int rank, struct dry_rank *r)
{
	struct occ_gpt_memory m;
	struct occ_policy dense = {0};
	open_rank(p, &p->policy, rank, r);
	occ_gpt_measure(&p->shape, &p->layout, r->topo.place, p->type, p->conf.batch.micro,
			r->sched.slots, &m);
	taken(r);
	open_exec(p, &dense, r);
	double plain = taken(r);
	occ_exec_release(&r->exec);
	open_exec(p, &p->policy, r);
	struct occ_plan_memory one = {
		.weights = (double)(m.weights + m.gradients),
		.activations = (double)m.activations + plain,
		.compression = taken(r) - plain,
	};
	occ_optim_init(&r->optim, &r->gpt);
	one.optimizer = taken(r);
	keep_largest(&p->stage[r->topo.place.pp], &one);
}

static void add_reason(struct occ_plan *p, enum occ_kind kind, struct occ_route route, double raw,
		       double wire)
{
	struct occ_plan_reason *at = p->reason[kind];
	const char *codec = route.codec ? route.codec->name : "none";
	while (at->codec && (strcmp(at->codec, codec) || strcmp(at->why, route.why)) &&
	       at < p->reason[kind] + OCC_PLAN_REASONS - 1)
		at++;
	p->compresses |= route.codec != NULL;
	at->codec = codec;
	at->why = route.why;
	at->messages++;
	at->raw += raw;
	at->wire += wire;
}

/* The transfers that this rank sends over a link, by route. */
static void explain_link(struct occ_plan *p, struct occ_link *l, const struct occ_schedule *s,
			 enum occ_op op, int64_t step)
{
	for (int i = 0; i < s->n && l->comm && l->bytes; i++) {
		if (s->at[i].op != op)
			continue;
		struct occ_route r = occ_link_route(l, s->at[i].flags & OCC_CRITICAL ? 1 : 0, step);
		size_t wire = r.codec ? occ_link_bound(l) : l->bytes;
		add_reason(p, l->conf.kind, r, (double)l->bytes, (double)wire);
	}
}

/* The tensors of this rank's stage, by route; bytes are of one contributor's message. */
static void explain_sums(struct occ_plan *p, const struct dry_rank *r, int64_t step)
{
	for (int i = 0; i < r->stage.ntensors; i++) {
		const struct occ_tensor *t = &r->stage.tensor[i];
		struct occ_route route = occ_reduce_route(&r->exec.reduce, t, step);
		double raw = (double)(t->n * t->m) * sizeof(float);
		add_reason(p, OCC_DP, route, raw,
			   route.codec ? (double)occ_codec_bound(&p->policy.site[OCC_DP].knobs,
								 t->n, t->m, OCC_F32)
				       : raw);
	}
}

/* The matrices of a layer, of a stage that no embedding is part of where there is one. */
static void note_tensors(struct occ_plan *p, const struct dry_rank *r, int64_t step)
{
	int stage = p->layout.pipeline > 1 ? 1 : 0;
	if (r->topo.place.pp != stage || r->topo.place.dp || r->topo.place.tp)
		return;
	for (int i = 0; i < r->stage.ntensors && p->ntensors < OCC_PLAN_TENSORS; i++) {
		const struct occ_tensor *t = &r->stage.tensor[i];
		struct occ_route route = occ_reduce_route(&r->exec.reduce, t, step);
		if (t->n == 1 || strncmp(t->name, "h.", 2) != 0)
			continue;
		struct occ_plan_tensor *out = &p->tensor[p->ntensors++];
		*out = (struct occ_plan_tensor){.n = t->n, .m = t->m, .codec = "none", .ratio = 1};
		snprintf(out->name, sizeof(out->name), "%s", t->name);
		if (!route.codec)
			continue;
		out->codec = route.codec->name;
		out->ratio =
			(double)(t->n * t->m) * sizeof(float) /
			(double)occ_codec_bound(&p->policy.site[OCC_DP].knobs, t->n, t->m, OCC_F32);
	}
}

static void add_traffic(struct occ_traffic *sum, const struct occ_traffic *t)
{
	sum->messages += t->messages;
	sum->raw_bytes += t->raw_bytes;
	sum->wire_bytes += t->wire_bytes;
	sum->inter_node_raw_bytes += t->inter_node_raw_bytes;
	sum->inter_node_wire_bytes += t->inter_node_wire_bytes;
}

/* All passes of a stage send the same: the first of each kind is run, the others only counted. */
struct counted_stage {
	struct occ_stage real;
	struct occ_traffic *traffic; /* of the rank: sums inside a layer */
	struct occ_traffic sent[2];  /* by a forward, a backward pass */
	int seen[2];
};

/* 1: the pass was counted; 0: it has to be run, and noted. */
static int is_known(struct counted_stage *c, int back)
{
	if (c->seen[back])
		add_traffic(c->traffic, &c->sent[back]);
	else
		c->sent[back] = *c->traffic;
	return c->seen[back];
}

static void note_pass(struct counted_stage *c, int back)
{
	struct occ_traffic before = c->sent[back], *t = &c->sent[back];
	*t = *c->traffic;
	t->messages -= before.messages;
	t->raw_bytes -= before.raw_bytes;
	t->wire_bytes -= before.wire_bytes;
	t->inter_node_raw_bytes -= before.inter_node_raw_bytes;
	t->inter_node_wire_bytes -= before.inter_node_wire_bytes;
	c->seen[back] = 1;
}

static void count_forward(void *self, int mb, int slot, const void *d_in, void *d_out)
{
	struct counted_stage *c = self;
	if (is_known(c, 0))
		return;
	c->real.forward(c->real.self, mb, slot, d_in, d_out);
	note_pass(c, 0);
}

static void count_backward(void *self, int mb, int slot, const void *d_in, const void *d_dout,
			   void *d_din)
{
	struct counted_stage *c = self;
	if (is_known(c, 1))
		return;
	c->real.backward(c->real.self, mb, slot, d_in, d_dout, d_din);
	note_pass(c, 1);
}

void occ_plan_count(struct occ_plan *p)
{
	int64_t step = late_step(&p->policy);
	for (int rank = 0; rank < p->ranks; rank++) {
		struct dry_rank r;
		open_measured(p, rank, &r);
		struct counted_stage c = {.real = r.stage, .traffic = &r.topo.traffic[OCC_TP]};
		r.stage.self = &c;
		r.stage.forward = count_forward;
		r.stage.backward = count_backward;
		run_step(&r, &p->policy);
		for (int k = 0; k < OCC_NKINDS; k++)
			add_traffic(&p->traffic[k], &r.topo.traffic[k]);
		explain_link(p, &r.exec.act_out, &r.sched, OCC_SEND_ACT, step);
		explain_link(p, &r.exec.grad_out, &r.sched, OCC_SEND_GRAD, step);
		explain_sums(p, &r, step);
		note_tensors(p, &r, step);
		close_rank(&r);
	}
}

/* ---- Work: what a rank does with each instruction, from its trace. ---- */

static int is_sum(int op)
{
	return op == OCC_REDUCE_GRADS || op == OCC_REDUCE_EMBED;
}

static int is_send(int op)
{
	return op == OCC_SEND_ACT || op == OCC_SEND_GRAD;
}

/* Seconds that a collective of `size` ranks keeps this one: what is not a flow of its own in the
 * simulator. */
static double exchange_s(const struct occ_plan *p, const struct occ_span *s, int size, int sharers,
			 int flows)
{
	double inter = (double)s->inter_node_bytes, inside = (double)s->wire_bytes - inter;
	double turns = size > 1 ? (double)s->messages / (size - 1) : 0;
	double t = inside / (1e9 * p->hw.inside.gbytes_per_s);
	if (flows)
		return t;
	t += inter * sharers / (1e9 * p->hw.node.gbytes_per_s);
	return t + turns * 1e-6 * (inter > 0 ? p->hw.node.latency_us : p->hw.inside.latency_us);
}

/* A dense sum also adds up on the host: all values are read, sent ones written and read. */
static double fold_s(const struct occ_plan *p, const struct occ_span *s, int size)
{
	double values = size > 1 ? (double)s->wire_bytes * size / (2.0 * (size - 1)) : 0;
	return 3 * values / (1e9 * p->hw.device.memory_gbytes_per_s);
}

static void note_span(const struct occ_plan *p, const struct occ_instr *in,
		      const struct occ_span *s, struct occ_sim_stage *out)
{
	int op = in->op, critical = s->critical;
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
	out->compute[op][critical] += exchange_s(p, s, size, out->sharers, is_sum(op));
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
static double median_s(const struct dry_rank *r, int op, int critical)
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

static void read_seconds(const struct dry_rank *r, struct occ_sim_stage *out)
{
	for (int op = 0; op < OCC_NOPS; op++)
		for (int critical = 0; critical < 2; critical++) {
			double t = median_s(r, op, critical);
			if (t >= 0)
				out->compute[op][critical] = t;
		}
}

/* The last instruction of each kind tells what all of them send. */
static void read_bytes(const struct occ_plan *p, const struct dry_rank *r,
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
				note_span(p, &(struct occ_instr){.op = (uint8_t)op},
					  last[op][critical], out);
}

static double optimizer_s(struct dry_rank *r, const struct occ_plan *p)
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

static void draw_weights(const struct occ_plan *p, struct dry_rank *r)
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
	struct dry_rank r = {0};
	int slots = p->layout.pipeline + 2;
	open_place(p, policy, rank, &r);
	open_device(p, p->conf.train.device, &r);
	open_model(p, policy, (int)p->nmicro < slots ? (int)p->nmicro : slots, &r);
	open_exec(p, policy, &r);
	occ_optim_init(&r.optim, &r.gpt);
	draw_weights(p, &r);
	fill_wires(&r.exec.act_in, r.dev);
	fill_wires(&r.exec.grad_in, r.dev);
	for (int i = 0; i < WARM + TIMED; i++) {
		r.dev->trace = i < WARM ? NULL : &r.trace;
		run_step(&r, policy);
	}
	r.dev->trace = NULL;
	read_seconds(&r, out);
	for (int i = 0; i < 2; i++)
		*optimizer = optimizer_s(&r, p);
	close_rank(&r);
}

/* A traced step of one rank: seconds, bytes, the optimizer's seconds. */
static void trace_rank(const struct occ_plan *p, const struct occ_policy *policy, int rank,
		       struct occ_sim_stage *out, struct occ_plan_sent *sent, double *optimizer)
{
	struct dry_rank r;
	open_rank(p, policy, rank, &r);
	open_exec(p, policy, &r);
	occ_optim_init(&r.optim, &r.gpt);
	r.dev->trace = &r.trace;
	run_step(&r, policy);
	r.dev->trace = NULL;
	read_seconds(&r, out);
	*optimizer = optimizer_s(&r, p);
	if (p->measured)
		measure_rank(p, policy, rank, out, optimizer);
	read_bytes(p, &r, out);
	sent->data = (double)r.topo.traffic[OCC_DP].wire_bytes;
	sent->embedding = (double)r.topo.traffic[OCC_EMBEDDING].wire_bytes;
	close_rank(&r);
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
		struct occ_sim_stage one = {.sharers = out->sharers};
		if (occ_place_of(&p->layout, rank).pp != stage)
			continue;
		trace_rank(&reckoned, policy, rank, &one, &theirs, &unused);
		for (int op = 0; op < OCC_NOPS; op++)
			for (int k = 0; k < 2 && out->crosses[op]; k++)
				out->bytes[op][k] += one.bytes[op][k];
	}
}

static int sharers(const struct occ_plan *p, int first)
{
	int stage = occ_place_of(&p->layout, first).pp, n = 0;
	int last = (first / p->per_node + 1) * p->per_node;
	for (int rank = first; rank < p->ranks && rank < last; rank++)
		n += occ_place_of(&p->layout, rank).pp == stage;
	return n;
}

void occ_plan_work(const struct occ_plan *p, const struct occ_policy *policy,
		   struct occ_plan_rung *out)
{
	out->stage = occ_alloc((size_t)p->layout.pipeline, sizeof(*out->stage));
	out->sent = occ_alloc((size_t)p->layout.pipeline, sizeof(*out->sent));
	out->optimizer_s = 0;
	for (int s = 0; s < p->layout.pipeline; s++) {
		int first = occ_rank_of(&p->layout, (struct occ_place){.pp = s});
		struct occ_sim_stage *g = &out->stage[s];
		double optimizer;
		g->node = first / p->per_node;
		g->sharers = sharers(p, first);
		trace_rank(p, policy, first, g, &out->sent[s], &optimizer);
		out->optimizer_s = fmax(out->optimizer_s, optimizer);
		add_neighbours(p, policy, first, g);
	}
}

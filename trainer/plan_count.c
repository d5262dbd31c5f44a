/* What all ranks of a step send and hold: nothing is reckoned twice, the schedule, the routes, the
 * model and the sums are the run's own code, so messages, bytes and memory are the run's. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/plan_rank.h"

/* Bytes that the dry device was asked for since *counted was set. */
static double taken(const struct occ_plan_rank *r, size_t *counted)
{
	size_t all = occ_device_dry_bytes(r->dev), since = all - *counted;
	*counted = all;
	return (double)since;
}

static void keep_largest(struct occ_plan_memory *m, const struct occ_plan_memory *one)
{
	m->weights = fmax(m->weights, one->weights);
	m->activations = fmax(m->activations, one->activations);
	m->optimizer = fmax(m->optimizer, one->optimizer);
	m->compression = fmax(m->compression, one->compression);
}

/* Opens the parts one by one; what each takes is the stage's memory. The executor is opened without
 * compression first: what it takes more with it is compression's. */
static void open_measured(struct occ_plan *p, int rank, struct occ_plan_rank *r)
{
	struct occ_gpt_memory m;
	struct occ_policy dense = {0};
	size_t counted = 0;
	occ_plan_rank_open(r, p, &p->policy, rank, NULL, (int)p->nmicro);
	occ_gpt_measure(&p->shape, &p->layout, r->topo.place, p->type, p->conf.batch.micro,
			r->sched.slots, &m);
	taken(r, &counted);
	occ_plan_rank_exec(r, p, &dense);
	double plain = taken(r, &counted);
	occ_exec_release(&r->exec);
	occ_plan_rank_exec(r, p, &p->policy);
	struct occ_plan_memory one = {
		.weights = (double)(m.weights + m.gradients),
		.activations = (double)m.activations + plain,
		.compression = taken(r, &counted) - plain,
	};
	occ_optim_init(&r->optim, &r->gpt);
	one.optimizer = taken(r, &counted);
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
static void explain_sums(struct occ_plan *p, const struct occ_plan_rank *r, int64_t step)
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
static void note_tensors(struct occ_plan *p, const struct occ_plan_rank *r, int64_t step)
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
	int64_t step = occ_plan_late_step(&p->policy);
	for (int rank = 0; rank < p->ranks; rank++) {
		struct occ_plan_rank r;
		open_measured(p, rank, &r);
		struct counted_stage c = {.real = r.stage, .traffic = &r.topo.traffic[OCC_TP]};
		r.stage.self = &c;
		r.stage.forward = count_forward;
		r.stage.backward = count_backward;
		occ_plan_rank_step(&r, &p->policy);
		for (int k = 0; k < OCC_NKINDS; k++)
			add_traffic(&p->traffic[k], &r.topo.traffic[k]);
		explain_link(p, &r.exec.act_out, &r.sched, OCC_SEND_ACT, step);
		explain_link(p, &r.exec.grad_out, &r.sched, OCC_SEND_GRAD, step);
		explain_sums(p, &r, step);
		note_tensors(p, &r, step);
		occ_plan_rank_close(&r);
	}
}

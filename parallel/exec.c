/* Runs one stage's list. Knows what each instruction moves, not what a stage computes.
 *
 * A micro-batch's input stays in slot mb % slots until its backward is done: 1F1B never has more
 * than `slots` in flight, and takes mb + slots in only after mb's backward. One buffer of each kind
 * is enough for what leaves a stage, because a link copies it to a wire at once. */
#include "parallel/exec.h"

#include <string.h>

#include "base/mem.h"

static void *buffer(const struct occ_exec *x)
{
	size_t bytes = occ_size_mul((size_t)x->conf.rows, (size_t)x->conf.C);
	return x->dev->ops->alloc(x->dev, occ_size_mul(bytes, occ_type_size(x->dev->type)));
}

/* The links to and from a neighbour stage. Gradients may follow the supports of the activations
 * between the same two stages. */
static void connect(struct occ_exec *x, int stage, struct occ_link *act, struct occ_link *grad)
{
	struct occ_topo *t = x->topo;
	struct occ_place p = t->place;
	int own = p.pp;
	p.pp = stage;
	struct occ_link_conf c = {
		.kind = OCC_PP_FORWARD,
		.sends = stage > own,
		.sender = stage > own ? own : stage,
		.peer = occ_rank_of(&t->layout, p),
		.rows = x->conf.rows,
		.C = x->conf.C,
		.slots = x->conf.slots,
		.policy = x->conf.policy,
		.id = (uint32_t)(2 * t->world->rank) | 1u << 31,
	};
	occ_link_init(act, &c, t->world, x->tp, NULL, &t->traffic[OCC_PP_FORWARD]);
	c.kind = OCC_PP_BACKWARD;
	c.sends = !c.sends;
	c.sender = stage > own ? stage : own;
	c.id++;
	occ_link_init(grad, &c, t->world, x->tp,
		      occ_route_follows(c.policy) ? &act->supports : NULL,
		      &t->traffic[OCC_PP_BACKWARD]);
}

void occ_exec_init(struct occ_exec *x, struct occ_topo *topo, struct occ_device *dev,
		   struct occ_group *tp, const struct occ_exec_conf *conf)
{
	int stage = topo->place.pp;
	*x = (struct occ_exec){.topo = topo, .dev = dev, .tp = tp, .conf = *conf};
	occ_reduce_init(&x->reduce, topo, dev, conf->policy, conf->stage->tensor,
			conf->stage->ntensors);
	if (stage > 0) {
		connect(x, stage - 1, &x->act_in, &x->grad_out);
		x->d_in = occ_alloc((size_t)conf->slots, sizeof(*x->d_in));
		for (int i = 0; i < conf->slots; i++)
			x->d_in[i] = buffer(x);
		x->d_din = buffer(x);
	}
	if (stage < topo->layout.pipeline - 1) {
		connect(x, stage + 1, &x->act_out, &x->grad_in);
		x->d_out = buffer(x);
		x->d_dout = buffer(x);
	}
}

void occ_exec_release(struct occ_exec *x)
{
	struct occ_device *d = x->dev;
	void *last[] = {x->d_out, x->d_dout, x->d_din};
	occ_link_release(&x->act_in);
	occ_link_release(&x->act_out);
	occ_link_release(&x->grad_in);
	occ_link_release(&x->grad_out);
	for (int i = 0; x->d_in && i < x->conf.slots; i++)
		d->ops->free(d, x->d_in[i]);
	for (int i = 0; i < 3; i++)
		if (last[i])
			d->ops->free(d, last[i]);
	occ_free(x->d_in);
	occ_reduce_release(&x->reduce);
	memset(x, 0, sizeof(*x));
}

static const enum occ_act act_of[OCC_NOPS] = {
	[OCC_RECV_ACT] = OCC_ACT_RECEIVE,    [OCC_FORWARD] = OCC_ACT_FORWARD,
	[OCC_SEND_ACT] = OCC_ACT_SEND,       [OCC_RECV_GRAD] = OCC_ACT_RECEIVE,
	[OCC_BACKWARD] = OCC_ACT_BACKWARD,   [OCC_SEND_GRAD] = OCC_ACT_SEND,
	[OCC_REDUCE_GRADS] = OCC_ACT_REDUCE, [OCC_REDUCE_EMBED] = OCC_ACT_EMBEDDING,
};

static void do_instr(struct occ_exec *x, const struct occ_schedule *s, const struct occ_instr *in,
		     int64_t step)
{
	const struct occ_stage *g = x->conf.stage;
	int slot = in->mb < 0 ? 0 : in->mb % s->slots;
	void *d_in = x->d_in ? x->d_in[slot] : NULL;
	switch ((enum occ_op)in->op) {
	case OCC_RECV_ACT:
		occ_link_recv(&x->act_in, d_in);
		break;
	case OCC_FORWARD:
		g->forward(g->self, in->mb, slot, d_in, x->d_out);
		break;
	case OCC_SEND_ACT:
		occ_link_send(&x->act_out, x->d_out);
		break;
	case OCC_RECV_GRAD:
		occ_link_recv(&x->grad_in, x->d_dout);
		break;
	case OCC_BACKWARD:
		g->backward(g->self, in->mb, slot, d_in, x->d_dout, x->d_din);
		break;
	case OCC_SEND_GRAD:
		occ_link_send(&x->grad_out, x->d_din);
		break;
	case OCC_REDUCE_GRADS:
		occ_reduce_grads(&x->reduce, g->d_grad, step);
		break;
	case OCC_REDUCE_EMBED:
		occ_reduce_embedding(&x->reduce, g->d_grad);
		break;
	case OCC_NOPS:
		occ_check(0, "instruction %d", in->op);
	}
}

/* All that this rank has sent so far goes to the span; `sign` -1 takes it off again. */
static void tell_sent(const struct occ_topo *t, struct occ_span *span, int sign)
{
	for (int k = 0; k < OCC_NKINDS; k++) {
		span->raw_bytes += sign * t->traffic[k].raw_bytes;
		span->wire_bytes += sign * t->traffic[k].wire_bytes;
		span->inter_node_bytes += sign * t->traffic[k].inter_node_wire_bytes;
		span->messages += sign * t->traffic[k].messages;
	}
}

static void run(struct occ_exec *x, const struct occ_schedule *s, const struct occ_instr *in,
		int64_t step)
{
	struct occ_trace *trace = x->dev->trace;
	occ_trace_begin(trace, act_of[in->op]);
	struct occ_span *span = occ_trace_span(trace);
	if (span) {
		span->mb = in->mb;
		span->peer = in->peer;
		span->critical = in->flags & OCC_CRITICAL ? 1 : 0;
		tell_sent(x->topo, span, -1);
	}
	do_instr(x, s, in, step);
	if (trace)
		tell_sent(x->topo, occ_trace_span(trace), 1);
	occ_trace_end(trace);
}

void occ_exec_step(struct occ_exec *x, const struct occ_schedule *s, int64_t step)
{
	occ_check(s->slots <= x->conf.slots && s->stage == x->topo->place.pp &&
			  s->nstages == x->topo->layout.pipeline,
		  "list of stage %d of %d with %d slots run on stage %d with %d", s->stage,
		  s->nstages, s->slots, x->topo->place.pp, x->conf.slots);
	occ_link_begin(&x->act_in, s, OCC_RECV_ACT, step);
	occ_link_begin(&x->grad_in, s, OCC_RECV_GRAD, step);
	occ_link_begin(&x->act_out, s, OCC_SEND_ACT, step);
	occ_link_begin(&x->grad_out, s, OCC_SEND_GRAD, step);
	for (int i = 0; i < s->n; i++)
		run(x, s, &s->at[i], step);
	occ_link_drain(&x->act_out);
	occ_link_drain(&x->grad_out);
}

void occ_exec_end(struct occ_exec *x, int keep)
{
	occ_stream_end(&x->act_out.stream, keep);
	occ_stream_end(&x->grad_out.stream, keep);
	occ_reduce_end(&x->reduce, keep);
}

void occ_exec_streams(struct occ_exec *x, occ_exec_visit *visit, void *arg)
{
	struct occ_reduce *r = &x->reduce;
	if (x->act_out.has_stream)
		visit(arg, OCC_PP_FORWARD, "act_out", &x->act_out.stream);
	if (x->grad_out.has_stream)
		visit(arg, OCC_PP_BACKWARD, "grad_out", &x->grad_out.stream);
	for (int i = 0; i < r->nitems && r->contributes; i++)
		visit(arg, OCC_DP, r->item[i].tensor.name, &r->item[i].stream);
}

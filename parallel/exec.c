/* Runs one stage's list. Knows what each instruction moves, not what a stage computes.
 *
 * A micro-batch's input stays in slot mb % slots until its backward is done: 1F1B never has more
 * than `slots` in flight, and takes mb + slots in only after mb's backward. What leaves a stage has
 * two buffers of each kind, used in turn.
 *
 * Passes are enqueued on OCC_COMPUTE, links work on OCC_PIPE, sums over replicas on OCC_DATA; marks
 * order what they share. A step ends with all three joined. */
#include "parallel/exec.h"

#include <string.h>

#include "base/mem.h"

static struct occ_boundary boundary(const struct occ_exec *x)
{
	size_t n = occ_size_mul((size_t)x->conf.rows, (size_t)x->conf.C);
	size_t bytes = occ_size_mul(n, occ_type_size(x->dev->type));
	return (struct occ_boundary){x->dev->ops->alloc(x->dev, bytes),
				     x->dev->ops->mark_open(x->dev)};
}

static void close_boundaries(const struct occ_exec *x, struct occ_boundary *b, int n)
{
	for (int i = 0; i < n && b; i++) {
		x->dev->ops->mark_close(x->dev, b[i].free);
		if (b[i].d_x)
			x->dev->ops->free(x->dev, b[i].d_x);
	}
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
	for (int q = 0; q < OCC_NQUEUES; q++)
		x->turn[q] = dev->ops->mark_open(dev);
	if (stage > 0) {
		connect(x, stage - 1, &x->act_in, &x->grad_out);
		x->in = occ_alloc((size_t)conf->slots, sizeof(*x->in));
		for (int i = 0; i < conf->slots; i++)
			x->in[i] = boundary(x);
	}
	if (stage < topo->layout.pipeline - 1)
		connect(x, stage + 1, &x->act_out, &x->grad_in);
	for (int i = 0; i < 2; i++) {
		if (stage > 0)
			x->din[i] = boundary(x);
		if (stage == topo->layout.pipeline - 1)
			continue;
		x->out[i] = boundary(x);
		x->dout[i] = boundary(x);
	}
}

void occ_exec_release(struct occ_exec *x)
{
	occ_link_release(&x->act_in);
	occ_link_release(&x->grad_out);
	occ_link_release(&x->act_out);
	occ_link_release(&x->grad_in);
	close_boundaries(x, x->in, x->conf.slots);
	close_boundaries(x, x->out, 2);
	close_boundaries(x, x->dout, 2);
	close_boundaries(x, x->din, 2);
	occ_free(x->in);
	occ_reduce_release(&x->reduce);
	for (int q = 0; q < OCC_NQUEUES; q++)
		x->dev->ops->mark_close(x->dev, x->turn[q]);
	memset(x, 0, sizeof(*x));
}

static const enum occ_act act_of[OCC_NOPS] = {
	[OCC_RECV_ACT] = OCC_ACT_RECEIVE,    [OCC_FORWARD] = OCC_ACT_FORWARD,
	[OCC_SEND_ACT] = OCC_ACT_SEND,       [OCC_RECV_GRAD] = OCC_ACT_RECEIVE,
	[OCC_BACKWARD] = OCC_ACT_BACKWARD,   [OCC_SEND_GRAD] = OCC_ACT_SEND,
	[OCC_REDUCE_GRADS] = OCC_ACT_REDUCE, [OCC_REDUCE_EMBED] = OCC_ACT_EMBEDDING,
};

/* What is enqueued on `to` from here on waits for all of `from` so far; `to` is then current. */
static void turn_to(struct occ_exec *x, enum occ_queue from, enum occ_queue to)
{
	const struct occ_device_ops *o = x->dev->ops;
	o->queue(x->dev, from);
	o->mark(x->dev, x->turn[from]);
	o->queue(x->dev, to);
	o->after(x->dev, x->turn[from]);
}

static void forward(struct occ_exec *x, int mb, int slot)
{
	const struct occ_stage *g = x->conf.stage;
	struct occ_boundary *in = x->in ? &x->in[slot] : NULL, *out = &x->out[mb & 1];
	x->dev->ops->after(x->dev, out->free);
	g->forward(g->self, mb, slot, in ? in->d_x : NULL, out->d_x);
	if (in) /* the backward, if there is one, moves it on */
		x->dev->ops->mark(x->dev, in->free);
}

static void backward(struct occ_exec *x, int mb, int slot)
{
	const struct occ_stage *g = x->conf.stage;
	struct occ_boundary *in = x->in ? &x->in[slot] : NULL;
	struct occ_boundary *dout = &x->dout[mb & 1], *din = &x->din[mb & 1];
	x->dev->ops->after(x->dev, din->free);
	g->backward(g->self, mb, slot, in ? in->d_x : NULL, dout->d_x, din->d_x);
	if (in)
		x->dev->ops->mark(x->dev, in->free);
	if (dout->d_x)
		x->dev->ops->mark(x->dev, dout->free);
}

static void do_instr(struct occ_exec *x, const struct occ_schedule *s, const struct occ_instr *in,
		     int64_t step)
{
	const struct occ_stage *g = x->conf.stage;
	int slot = in->mb < 0 ? 0 : in->mb % s->slots, turn = in->mb & 1;
	switch ((enum occ_op)in->op) {
	case OCC_RECV_ACT:
		occ_link_recv(&x->act_in, x->in[slot].d_x, x->in[slot].free);
		break;
	case OCC_FORWARD:
		forward(x, in->mb, slot);
		break;
	case OCC_SEND_ACT:
		occ_link_send(&x->act_out, x->out[turn].d_x, x->out[turn].free);
		break;
	case OCC_RECV_GRAD:
		occ_link_recv(&x->grad_in, x->dout[turn].d_x, x->dout[turn].free);
		break;
	case OCC_BACKWARD:
		backward(x, in->mb, slot);
		break;
	case OCC_SEND_GRAD:
		occ_link_send(&x->grad_out, x->din[turn].d_x, x->din[turn].free);
		break;
	case OCC_REDUCE_GRADS:
		x->dev->ops->mark(x->dev, x->turn[OCC_COMPUTE]);
		x->dev->ops->queue(x->dev, OCC_DATA);
		occ_reduce_grads(&x->reduce, g->d_grad, step, x->turn[OCC_COMPUTE]);
		x->dev->ops->queue(x->dev, OCC_COMPUTE);
		break;
	case OCC_REDUCE_EMBED:
		turn_to(x, OCC_COMPUTE, OCC_DATA);
		occ_reduce_embedding(&x->reduce, g->d_grad);
		x->dev->ops->queue(x->dev, OCC_COMPUTE);
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
	turn_to(x, OCC_COMPUTE, OCC_PIPE); /* what came between steps stays between them */
	x->dev->ops->queue(x->dev, OCC_COMPUTE);
	occ_link_begin(&x->act_in, s, OCC_RECV_ACT, step);
	occ_link_begin(&x->grad_in, s, OCC_RECV_GRAD, step);
	occ_link_begin(&x->act_out, s, OCC_SEND_ACT, step);
	occ_link_begin(&x->grad_out, s, OCC_SEND_GRAD, step);
	occ_lane_guard(1);
	for (int i = 0; i < s->n; i++)
		run(x, s, &s->at[i], step);
	occ_lane_guard(0);
	occ_link_drain(&x->act_out);
	occ_link_drain(&x->grad_out);
	turn_to(x, OCC_PIPE, OCC_COMPUTE);
	turn_to(x, OCC_DATA, OCC_COMPUTE);
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

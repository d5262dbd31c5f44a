/* Runs one stage's list. Knows what each instruction moves, not what a stage computes.
 *
 * A micro-batch's input stays in slot mb % slots until its backward is done: 1F1B never has more
 * than `slots` in flight, and takes mb + slots in only after mb's backward. One buffer of each kind
 * is enough for what leaves a stage, because a link copies it to a wire at once. */
#include "parallel/exec.h"

#include <string.h>

#include "base/mem.h"

enum { REDUCE_BYTES = 32 << 20 }; /* staged at once by the gradient sums */

/* What is still to be received in this step: receives are posted ahead, but never too many. */
struct step {
	const struct occ_schedule *list;
	const struct occ_stage *stage;
	int64_t acts, grads;
};

static void *buffer(const struct occ_exec *x)
{
	size_t bytes = occ_size_mul((size_t)x->rows, (size_t)x->C) * occ_type_size(x->dev->type);
	return x->dev->ops->alloc(x->dev, bytes);
}

static void connect(struct occ_exec *x, struct occ_link *l, int stage, enum occ_tag tag)
{
	struct occ_topo *t = x->topo;
	struct occ_place p = t->place;
	enum occ_kind kind = tag == OCC_TAG_ACT ? OCC_PP_FORWARD : OCC_PP_BACKWARD;
	p.pp = stage;
	occ_link_init(l, t->world, x->tp, occ_rank_of(&t->layout, p), tag, x->rows, x->C,
		      &t->traffic[kind]);
}

void occ_exec_init(struct occ_exec *x, struct occ_topo *topo, struct occ_device *dev,
		   struct occ_group *tp, int64_t rows, int64_t C, int slots)
{
	int stage = topo->place.pp;
	*x = (struct occ_exec){.topo = topo, .dev = dev, .tp = tp};
	x->rows = rows;
	x->C = C;
	x->slots = slots;
	occ_group_init(&x->dp, topo->dp, dev, REDUCE_BYTES);
	if (topo->embed)
		occ_group_init(&x->embed, topo->embed, dev, REDUCE_BYTES);
	if (stage > 0) {
		connect(x, &x->act_in, stage - 1, OCC_TAG_ACT);
		connect(x, &x->grad_out, stage - 1, OCC_TAG_GRAD);
		x->d_in = occ_alloc((size_t)slots, sizeof(*x->d_in));
		for (int i = 0; i < slots; i++)
			x->d_in[i] = buffer(x);
		x->d_din = buffer(x);
	}
	if (stage < topo->layout.pipeline - 1) {
		connect(x, &x->act_out, stage + 1, OCC_TAG_ACT);
		connect(x, &x->grad_in, stage + 1, OCC_TAG_GRAD);
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
	for (int i = 0; x->d_in && i < x->slots; i++)
		d->ops->free(d, x->d_in[i]);
	for (int i = 0; i < 3; i++)
		if (last[i])
			d->ops->free(d, last[i]);
	occ_free(x->d_in);
	occ_group_release(&x->embed);
	occ_group_release(&x->dp);
	memset(x, 0, sizeof(*x));
}

static void receive(struct occ_link *l, void *d_x, unsigned flags, int64_t *left)
{
	occ_link_recv(l, d_x, flags);
	occ_link_expect(l, --*left);
}

static void run(struct occ_exec *x, struct step *s, const struct occ_instr *in)
{
	const struct occ_stage *g = s->stage;
	int slot = in->mb < 0 ? 0 : in->mb % s->list->slots;
	void *d_in = x->d_in ? x->d_in[slot] : NULL;
	switch ((enum occ_op)in->op) {
	case OCC_RECV_ACT:
		receive(&x->act_in, d_in, in->flags, &s->acts);
		break;
	case OCC_FORWARD:
		g->forward(g->self, in->mb, slot, d_in, x->d_out);
		break;
	case OCC_SEND_ACT:
		occ_link_send(&x->act_out, x->d_out, in->flags);
		break;
	case OCC_RECV_GRAD:
		receive(&x->grad_in, x->d_dout, in->flags, &s->grads);
		break;
	case OCC_BACKWARD:
		g->backward(g->self, in->mb, slot, d_in, x->d_dout, x->d_din);
		break;
	case OCC_SEND_GRAD:
		occ_link_send(&x->grad_out, x->d_din, in->flags);
		break;
	case OCC_REDUCE_GRADS:
		occ_group_sum(&x->dp, g->d_grad, g->n_grad, OCC_F32);
		break;
	case OCC_REDUCE_EMBED:
		if (x->topo->embed && g->embed_n)
			occ_group_sum(&x->embed, g->d_grad + g->embed_at, g->embed_n, OCC_F32);
		break;
	case OCC_NOPS:
		occ_check(0, "instruction %d", in->op);
	}
}

static int64_t count(const struct occ_schedule *s, enum occ_op op)
{
	int64_t n = 0;
	for (int i = 0; i < s->n; i++)
		n += s->at[i].op == op;
	return n;
}

void occ_exec_step(struct occ_exec *x, const struct occ_schedule *s, struct occ_stage *stage)
{
	struct step step = {s, stage, count(s, OCC_RECV_ACT), count(s, OCC_RECV_GRAD)};
	occ_check(s->slots <= x->slots && s->stage == x->topo->place.pp &&
			  s->nstages == x->topo->layout.pipeline,
		  "list of stage %d of %d with %d slots run on stage %d with %d", s->stage,
		  s->nstages, s->slots, x->topo->place.pp, x->slots);
	if (step.acts)
		occ_link_expect(&x->act_in, step.acts);
	if (step.grads)
		occ_link_expect(&x->grad_in, step.grads);
	for (int i = 0; i < s->n; i++)
		run(x, &step, &s->at[i]);
	if (x->act_out.comm)
		occ_link_drain(&x->act_out);
	if (x->grad_out.comm)
		occ_link_drain(&x->grad_out);
}

/* A stage of the pipeline: the order of embedding, layers and head, forward and backward. What it
 * works on lies where gpt_memory.c put it. */
#include <string.h>

#include "base/mem.h"
#include "model/gpt_internal.h"

void occ_gpt_put(struct occ_gpt *g, const float *flat)
{
	struct occ_device *d = g->dev;
	size_t bytes = (size_t)g->weights.size * sizeof(float);
	if (d->type == OCC_F32) {
		d->ops->put(d, g->d_w, flat, bytes);
		d->ops->sync(d);
		return;
	}
	float *d_flat = d->ops->alloc(d, bytes);
	d->ops->put(d, d_flat, flat, bytes);
	d->ops->cast(d, g->weights.size, OCC_F32, d_flat, d->type, g->d_w);
	d->ops->sync(d);
	d->ops->free(d, d_flat);
}

void occ_gpt_begin(struct occ_gpt *g, const struct occ_gpt_batch *b)
{
	struct occ_gpt_impl *m = g->impl;
	m->batch = *b;
	m->ctx.B = g->micro;
	m->ctx.T = g->T;
	m->ctx.drop = (struct occ_drop){
		.p = b->train ? (float)g->shape.dropout : 0.0f,
		.key = b->dropout_key,
		.step = b->step,
	};
	g->loss_sum = 0;
	m->nlosses = 0;
	g->loss_tokens = 0;
	if (occ_gpt_is_first(g) || occ_gpt_is_last(g))
		occ_gpt_room(g, b->nmicro);
	occ_check(!b->train || g->d_grad, "training with a model opened for evaluation");
	if (b->train)
		g->dev->ops->zero(g->dev, g->d_grad, (size_t)g->weights.size * sizeof(float));
}

/* Where the host keeps a micro-batch's inputs, and behind them its targets. */
static int32_t *ids_of(const struct occ_gpt *g, int mb)
{
	const struct occ_gpt_impl *m = g->impl;
	occ_check(mb < m->nids, "micro-batch %d of %d", mb, m->nids);
	return m->ids + 2 * mb * g->micro * g->shape.seq_len;
}

/* Inputs and targets of a micro-batch; padding reads token 0 and counts nothing. */
static void stage_tokens(struct occ_gpt *g, int mb)
{
	struct occ_gpt_impl *m = g->impl;
	int64_t B = m->ctx.B, T = m->ctx.T, R = B * T;
	int32_t *ids = ids_of(g, mb);
	const int32_t *from = m->batch.tokens + (int64_t)mb * B * (T + 1);
	for (int64_t b = 0; b < B; b++)
		for (int64_t t = 0; t < T; t++) {
			int32_t in = from[b * (T + 1) + t], next = from[b * (T + 1) + t + 1];
			occ_check(in < g->shape.vocab && next < g->shape.vocab, "token %d, %d", in,
				  next);
			ids[b * T + t] = in < 0 ? 0 : in;
			ids[R + b * T + t] = in < 0 ? -1 : next;
			g->loss_tokens += occ_gpt_is_last(g) && in >= 0 && next >= 0;
		}
}

static void embed_forward(struct occ_gpt *g, int mb, struct occ_gpt_slot *s)
{
	struct occ_gpt_impl *m = g->impl;
	const struct occ_device_ops *o = g->dev->ops;
	int64_t R = m->ctx.B * m->ctx.T, V = m->head.V, v0 = g->weights.tp * V;
	o->put(g->dev, s->tokens, ids_of(g, mb), (size_t)R * sizeof(int32_t));
	o->embed_forward(g->dev, R, m->ctx.C, v0, V, s->tokens, occ_ctx_weight(&m->ctx, m->wte),
			 s->x[0]);
	occ_ctx_sum(&m->ctx, s->x[0]);
	o->position_forward(g->dev, R, m->ctx.C, m->ctx.T, occ_ctx_weight(&m->ctx, m->wpe),
			    &m->ctx.drop, s->x[0]);
}

static void embed_backward(struct occ_gpt *g, struct occ_gpt_slot *s, void *dx)
{
	struct occ_gpt_impl *m = g->impl;
	const struct occ_device_ops *o = g->dev->ops;
	int64_t R = m->ctx.B * m->ctx.T, V = m->head.V, v0 = g->weights.tp * V;
	o->position_backward(g->dev, R, m->ctx.C, m->ctx.T, &m->ctx.drop, dx,
			     occ_ctx_grad(&m->ctx, m->wpe));
	o->embed_backward(g->dev, R, m->ctx.C, v0, V, s->tokens, dx, occ_ctx_grad(&m->ctx, m->wte));
}

static void norm_forward(struct occ_gpt *g, struct occ_gpt_slot *s)
{
	struct occ_gpt_impl *m = g->impl;
	g->dev->ops->residual_norm_forward(
		g->dev, m->ctx.B * m->ctx.T, m->ctx.C, s->x[g->nlayers], NULL, NULL, &m->ctx.drop,
		occ_ctx_weight(&m->ctx, m->lnf), occ_ctx_weight(&m->ctx, m->lnf + 1), NULL, m->yf,
		s->meanf, s->rstdf);
}

static const void *input(const struct occ_gpt *g, const struct occ_gpt_slot *s, int64_t i,
			 const void *d_in)
{
	return i == 0 && !occ_gpt_is_first(g) ? d_in : s->x[i];
}

/* Table index of local layer i's first tensor. */
static int layer_row(const struct occ_gpt_impl *m, int64_t i)
{
	return m->first_row + (int)i * OCC_NLAYER_KINDS;
}

/* All layers; the last one's output goes to `out`. */
static void layers_forward(struct occ_gpt *g, struct occ_gpt_slot *s, const void *d_in, void *out)
{
	struct occ_gpt_impl *m = g->impl;
	for (int64_t i = 0; i < g->nlayers; i++)
		occ_layer_forward(&m->ctx, g->first_layer + i, layer_row(m, i),
				  input(g, s, i, d_in), &s->acts[i], &m->scratch,
				  i + 1 < g->nlayers ? s->x[i + 1] : out);
}

/* `last`: of the step, whose gradients are then complete. */
static void layers_backward(struct occ_gpt *g, struct occ_gpt_slot *s, int last, const void *d_in,
			    const void *dout, void *dx)
{
	struct occ_gpt_impl *m = g->impl;
	for (int64_t i = g->nlayers - 1; i >= 0; i--, dout = dx) {
		const void *x = input(g, s, i, d_in);
		int64_t layer = g->first_layer + i;
		if (m->recompute)
			occ_layer_inside(&m->ctx, layer, layer_row(m, i), x, &s->acts[i],
					 &m->scratch);
		occ_layer_backward(&m->ctx, layer, layer_row(m, i), x, &s->acts[i], &m->scratch,
				   dout, dx);
		if (last)
			g->dev->ops->mark(g->dev, m->ready[i]);
	}
}

double occ_gpt_loss(struct occ_gpt *g)
{
	struct occ_gpt_impl *m = g->impl;
	size_t n = (size_t)m->nlosses * (size_t)(m->ctx.B * m->ctx.T);
	if (n)
		g->dev->ops->get(g->dev, m->loss, m->d_loss, n * sizeof(*m->loss));
	for (size_t i = 0; i < n; i++)
		g->loss_sum += (double)m->loss[i];
	m->nlosses = 0;
	return g->loss_sum;
}

static void set_row0(struct occ_gpt_impl *m, int mb)
{
	m->ctx.drop.row0 = m->batch.row0 + mb * m->batch.row_step;
	m->ctx.drop.site = 0;
}

/* A pass through the layers as the device's repeat takes it. */
struct work {
	struct occ_gpt *g;
	struct occ_gpt_slot *s;
	struct occ_gpt_pass pass;
	int last; /* as in layers_backward */
};

static void work_forward(void *arg)
{
	struct work *w = arg;
	layers_forward(w->g, w->s, w->pass.d_in, w->pass.d_out);
}

static void work_backward(void *arg)
{
	struct work *w = arg;
	layers_backward(w->g, w->s, w->last, w->pass.d_in, w->pass.d_dout, w->pass.d_out);
}

/* NULL where the calls are not the same each time or not the device's alone: dropout counts steps
 * and rows (which nothing reads without), tensor ranks exchange sums, a step's last backward pass
 * puts marks. */
static void *record_of(struct occ_gpt *g, struct occ_gpt_record *kept, const struct work *w)
{
	const struct occ_device_ops *o = g->dev->ops;
	if (((struct occ_gpt_impl *)g->impl)->ctx.drop.p > 0 || g->weights.T > 1 || w->last)
		return NULL;
	if (memcmp(&kept->pass, &w->pass, sizeof(w->pass))) {
		o->repeat_close(g->dev, kept->r);
		*kept = (struct occ_gpt_record){w->pass, o->repeat_open(g->dev)};
	}
	return kept->r;
}

/* All layers, forward or `back`, as one piece of work of the device. */
static void pass_layers(struct occ_gpt *g, int mb, int slot, int back, struct occ_gpt_pass pass)
{
	struct occ_gpt_impl *m = g->impl;
	struct work w = {g, &m->slots[slot], pass, back && mb == m->batch.nmicro - 1};
	w.pass.B = m->ctx.B;
	w.pass.T = m->ctx.T;
	g->dev->ops->repeat(g->dev, record_of(g, &w.s->record[mb & 1][back], &w),
			    back ? work_backward : work_forward, &w);
}

static void forward(void *self, int mb, int slot, const void *d_in, void *d_out)
{
	struct occ_gpt *g = self;
	struct occ_gpt_impl *m = g->impl;
	struct occ_gpt_slot *s = &m->slots[slot];
	size_t R = (size_t)(m->ctx.B * m->ctx.T);
	occ_check(slot < m->nslots, "slot %d of %d", slot, m->nslots);
	set_row0(m, mb);
	if (occ_gpt_is_first(g) || occ_gpt_is_last(g))
		stage_tokens(g, mb);
	if (occ_gpt_is_first(g))
		embed_forward(g, mb, s);
	pass_layers(g, mb, slot, 0,
		    (struct occ_gpt_pass){
			    .d_in = d_in,
			    .d_out = occ_gpt_is_last(g) ? s->x[g->nlayers] : d_out,
		    });
	if (!occ_gpt_is_last(g))
		return;
	if (m->nlosses == OCC_GPT_LOSSES)
		occ_gpt_loss(g);
	norm_forward(g, s);
	g->dev->ops->put(g->dev, m->d_targets, ids_of(g, mb) + R, R * sizeof(int32_t));
	occ_head_run(&m->ctx, &m->head, m->yf, m->d_targets, m->batch.grad_scale,
		     m->batch.train ? s->dyf : NULL, m->d_loss + (size_t)m->nlosses++ * R);
}

/* Where the gradient at the stage's output lies; the last stage makes it from the head's. */
static const void *output_gradient(struct occ_gpt *g, struct occ_gpt_slot *s, const void *d_dout,
				   void *dx)
{
	struct occ_gpt_impl *m = g->impl;
	if (!occ_gpt_is_last(g))
		return d_dout;
	g->dev->ops->residual_norm_backward(
		g->dev, m->ctx.B * m->ctx.T, m->ctx.C, s->dyf, NULL, s->x[g->nlayers],
		occ_ctx_weight(&m->ctx, m->lnf), s->meanf, s->rstdf, &m->ctx.drop, dx, NULL,
		occ_ctx_grad(&m->ctx, m->lnf), occ_ctx_grad(&m->ctx, m->lnf + 1), NULL);
	return dx;
}

static void backward(void *self, int mb, int slot, const void *d_in, const void *d_dout,
		     void *d_din)
{
	struct occ_gpt *g = self;
	struct occ_gpt_impl *m = g->impl;
	struct occ_gpt_slot *s = &m->slots[slot];
	void *dx = occ_gpt_is_first(g) ? m->scratch.dx : d_din;
	occ_check(m->batch.train && slot < m->nslots, "backward of slot %d of %d", slot, m->nslots);
	set_row0(m, mb);
	pass_layers(g, mb, slot, 1,
		    (struct occ_gpt_pass){
			    .d_in = d_in,
			    .d_dout = output_gradient(g, s, d_dout, dx),
			    .d_out = dx,
		    });
	if (occ_gpt_is_first(g))
		embed_backward(g, s, dx);
}

void occ_gpt_stage(struct occ_gpt *g, struct occ_stage *out)
{
	*out = (struct occ_stage){
		.self = g,
		.forward = forward,
		.backward = backward,
		.d_grad = g->d_grad,
		.n_grad = g->weights.size,
		.tensor = g->tensor,
		.ntensors = g->tensor ? g->weights.n : 0,
	};
}

void occ_gpt_next(struct occ_gpt *g, const int32_t *tokens, int64_t n, float *logits)
{
	struct occ_gpt_impl *m = g->impl;
	int64_t T = (n + 15) / 16 * 16; /* few lengths, so that few product shapes are prepared */
	occ_check(g->nstages == 1 && g->weights.T == 1 && n >= 1 && n <= g->shape.seq_len,
		  "the token after %lld on %d stages of %d", (long long)n, g->nstages,
		  g->weights.T);
	if (T > g->shape.seq_len)
		T = g->shape.seq_len;
	occ_gpt_room(g, 1);
	memset(m->ids, 0, (size_t)T * sizeof(int32_t));
	memcpy(m->ids, tokens, (size_t)n * sizeof(int32_t));
	m->ctx.B = 1;
	m->ctx.T = T;
	m->ctx.drop = (struct occ_drop){.p = 0};
	embed_forward(g, 0, &m->slots[0]);
	layers_forward(g, &m->slots[0], NULL, m->slots[0].x[g->nlayers]);
	norm_forward(g, &m->slots[0]);
	occ_head_row(&m->ctx, &m->head, m->yf, n - 1);
	g->dev->ops->get(g->dev, logits, m->head.logits, (size_t)g->shape.vocab * sizeof(float));
}

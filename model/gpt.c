/* A stage of the pipeline: memory, and the order of embedding, layers and head. */
#include "model/gpt.h"

#include <string.h>

#include "base/mem.h"
#include "model/head.h"

/* What one micro-batch keeps until its backward pass. */
struct slot {
	int32_t *tokens;              /* (R) device: first stage, for the embedding's backward */
	void **x;                     /* [nlayers + 1] layer inputs; x[0] of later stages is the executor's */
	struct occ_layer_acts *acts;  /* [nlayers]; with recompute all share one set */
	void *yf, *dyf;               /* last stage: (R, C) ln_f output and the gradient there */
	float *meanf, *rstdf;
};

struct impl {
	struct occ_ctx ctx;
	struct occ_layer_scratch scratch;
	struct occ_head head;
	struct occ_gpt_batch batch;
	int nslots, recompute, train_memory;
	struct slot *slots;
	int first_row;                /* table index of the first layer's first tensor */
	int wte, wpe, lnf;            /* table indices, -1 where this stage has none */
	int32_t *d_targets;           /* (R) */
	int32_t *ids;                 /* [2R] host staging: inputs, then targets */
	char *arena;                  /* device */
	size_t used;
};

static int is_first(const struct occ_gpt *g)
{
	return g->stage == 0;
}

static int is_last(const struct occ_gpt *g)
{
	return g->stage == g->nstages - 1;
}

/* Carving: the same function runs twice, first with arena NULL to measure. */
static void *carve(struct impl *m, size_t bytes)
{
	char *p = m->arena ? m->arena + m->used : NULL;
	m->used += (bytes + 63) & ~(size_t)63;
	return p;
}

static void carve_acts(struct occ_gpt *g, struct occ_layer_acts *a)
{
	struct impl *m = g->impl;
	size_t e = occ_type_size(g->dev->type), R = (size_t)(g->micro * g->shape.seq_len);
	size_t C = (size_t)m->ctx.C, c = (size_t)(m->ctx.H * m->ctx.D);
	void **wide[] = {&a->y1, &a->xb, &a->y2};
	float **stats[] = {&a->mean1, &a->rstd1, &a->mean2, &a->rstd2};
	for (int i = 0; i < 3; i++)
		*wide[i] = carve(m, R * C * e);
	for (int i = 0; i < 4; i++)
		*stats[i] = carve(m, R * sizeof(float));
	a->qkv = carve(m, R * 3 * c * e);
	a->att = carve(m, R * c * e);
	a->h = carve(m, R * 4 * c * e);
	a->g = carve(m, R * 4 * c * e);
	a->lse = carve(m, R * (size_t)m->ctx.H * sizeof(float));
}

static void carve_slot(struct occ_gpt *g, struct slot *s, const struct occ_layer_acts *shared)
{
	struct impl *m = g->impl;
	size_t R = (size_t)(g->micro * g->shape.seq_len);
	size_t whole = R * (size_t)m->ctx.C * occ_type_size(g->dev->type);
	s->tokens = is_first(g) ? carve(m, R * sizeof(int32_t)) : NULL;
	for (int64_t i = is_first(g) ? 0 : 1; i < g->nlayers + is_last(g); i++)
		s->x[i] = carve(m, whole);
	for (int64_t i = 0; i < g->nlayers; i++) {
		if (m->recompute)
			s->acts[i] = *shared;
		else
			carve_acts(g, &s->acts[i]);
	}
	if (!is_last(g))
		return;
	s->yf = carve(m, whole);
	s->dyf = m->train_memory ? carve(m, whole) : NULL;
	s->meanf = carve(m, R * sizeof(float));
	s->rstdf = carve(m, R * sizeof(float));
}

static void carve_scratch(struct occ_gpt *g)
{
	struct impl *m = g->impl;
	struct occ_layer_scratch *s = &m->scratch;
	size_t e = occ_type_size(g->dev->type), R = (size_t)(g->micro * g->shape.seq_len);
	size_t C = (size_t)m->ctx.C, c = (size_t)(m->ctx.H * m->ctx.D);
	s->delta = carve(m, R * C * e);
	if (!m->train_memory)
		return;
	s->dx = carve(m, R * C * e);
	s->dy = carve(m, R * C * e);
	s->dqkv = carve(m, R * 3 * c * e);
	s->datt = carve(m, R * c * e);
	s->dh = carve(m, R * 4 * c * e);
}

static void carve_head(struct occ_gpt *g)
{
	struct impl *m = g->impl;
	struct occ_head *h = &m->head;
	if (!is_last(g))
		return;
	size_t n = (size_t)h->rows, V = (size_t)h->V;
	m->d_targets = carve(m, (size_t)(g->micro * g->shape.seq_len) * sizeof(int32_t));
	h->logits = carve(m, n * V * sizeof(float));
	h->dlogits = h->logits;
	if (g->dev->type != OCC_F32 && m->train_memory)
		h->dlogits = carve(m, n * V * occ_type_size(g->dev->type));
	h->stats = carve(m, 4 * n * sizeof(float));
}

static void carve_all(struct occ_gpt *g)
{
	struct impl *m = g->impl;
	struct occ_layer_acts shared = {0};
	m->used = 0;
	if (m->recompute)
		carve_acts(g, &shared);
	for (int i = 0; i < m->nslots; i++)
		carve_slot(g, &m->slots[i], &shared);
	carve_scratch(g);
	carve_head(g);
}

static int index_of(const struct occ_weights *w, const char *name)
{
	const struct occ_weight *p = occ_weights_find(w, name);
	return p ? (int)(p - w->at) : -1;
}

static void init_table(struct occ_gpt *g, const struct occ_topo *topo)
{
	struct impl *m = g->impl;
	const struct occ_weights *w = &g->weights;
	int first;
	g->stage = topo->place.pp;
	g->nstages = topo->layout.pipeline;
	g->nlayers = occ_stage_layers((int)g->shape.layers, g->nstages, g->stage, &first);
	g->first_layer = first;
	occ_weights_init(&g->weights, &g->shape, &topo->layout, topo->place);
	m->first_row = is_first(g) ? 2 : 0;
	m->wte = index_of(w, "wte.weight");
	m->wpe = index_of(w, "wpe.weight");
	m->lnf = index_of(w, "ln_f.weight");
	m->head.w = g->shape.tied ? m->wte : index_of(w, "lm_head.weight");
	m->head.V = g->shape.vocab_padded / w->T;
	m->head.valid = g->shape.vocab;
	m->head.rows = occ_head_rows(g->micro * g->shape.seq_len, m->head.V);
}

static void init_memory(struct occ_gpt *g, int slots)
{
	struct impl *m = g->impl;
	struct occ_device *d = g->dev;
	size_t n = (size_t)g->weights.size, e = occ_type_size(d->type);
	size_t R = (size_t)(g->micro * g->shape.seq_len);
	m->train_memory = slots > 0;
	m->nslots = slots > 0 ? slots : 1;
	m->recompute = g->shape.recompute || slots == 0;
	m->slots = occ_alloc((size_t)m->nslots, sizeof(*m->slots));
	for (int i = 0; i < m->nslots; i++) {
		m->slots[i].x = occ_alloc((size_t)g->nlayers + 1, sizeof(void *));
		m->slots[i].acts = occ_alloc((size_t)g->nlayers, sizeof(struct occ_layer_acts));
	}
	m->ids = occ_alloc(2 * R, sizeof(int32_t));
	m->head.loss = occ_alloc((size_t)m->head.rows, sizeof(float));
	carve_all(g);
	m->arena = d->ops->alloc(d, m->used);
	carve_all(g);
	g->d_w = d->ops->alloc(d, n * e);
	d->ops->zero(d, g->d_w, n * e);
	if (m->train_memory) {
		g->d_grad = d->ops->alloc(d, n * sizeof(float));
		d->ops->zero(d, g->d_grad, n * sizeof(float));
	}
}

void occ_gpt_init(struct occ_gpt *g, const struct occ_gpt_shape *s, struct occ_topo *topo,
		  struct occ_device *dev, struct occ_group *tp, int64_t micro, int slots)
{
	struct impl *m = occ_alloc(1, sizeof(*m));
	memset(g, 0, sizeof(*g));
	g->shape = *s;
	g->dev = dev;
	g->tp = tp;
	g->micro = micro;
	g->T = s->seq_len;
	g->impl = m;
	init_table(g, topo);
	m->ctx = (struct occ_ctx){
		.dev = dev, .tp = tp, .w = &g->weights, .B = micro, .T = g->T, .C = s->hidden,
		.H = s->heads / topo->layout.tensor, .D = s->hidden / s->heads,
	};
	init_memory(g, slots);
	m->ctx.d_w = g->d_w;
	m->ctx.d_grad = g->d_grad;
}

void occ_gpt_release(struct occ_gpt *g)
{
	struct impl *m = g->impl;
	if (!m)
		return;
	for (int i = 0; i < m->nslots; i++) {
		occ_free(m->slots[i].x);
		occ_free(m->slots[i].acts);
	}
	occ_free(m->slots);
	occ_free(m->ids);
	occ_free(m->head.loss);
	g->dev->ops->free(g->dev, m->arena);
	g->dev->ops->free(g->dev, g->d_w);
	if (g->d_grad)
		g->dev->ops->free(g->dev, g->d_grad);
	occ_weights_release(&g->weights);
	occ_free(m);
	memset(g, 0, sizeof(*g));
}

void occ_gpt_put(struct occ_gpt *g, const float *flat)
{
	struct occ_device *d = g->dev;
	size_t bytes = (size_t)g->weights.size * sizeof(float);
	if (d->type == OCC_F32) {
		d->ops->put(d, g->d_w, flat, bytes);
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
	struct impl *m = g->impl;
	m->batch = *b;
	m->ctx.B = g->micro;
	m->ctx.T = g->T;
	m->ctx.drop = (struct occ_drop){
		.p = b->train ? (float)g->shape.dropout : 0.0f, .key = b->dropout_key, .step = b->step,
	};
	g->loss_sum = 0;
	g->loss_tokens = 0;
	occ_check(!b->train || g->d_grad, "training with a model opened for evaluation");
	if (b->train)
		g->dev->ops->zero(g->dev, g->d_grad, (size_t)g->weights.size * sizeof(float));
}

/* Inputs and targets of a micro-batch; padding samples read token 0 and count nothing. */
static void stage_tokens(struct occ_gpt *g, int mb)
{
	struct impl *m = g->impl;
	int64_t B = m->ctx.B, T = m->ctx.T, R = B * T;
	const int32_t *from = m->batch.tokens + (int64_t)mb * B * (T + 1);
	for (int64_t b = 0; b < B; b++)
		for (int64_t t = 0; t < T; t++) {
			int32_t in = from[b * (T + 1) + t], next = from[b * (T + 1) + t + 1];
			m->ids[b * T + t] = in < 0 ? 0 : in;
			m->ids[R + b * T + t] = next;
			g->loss_tokens += is_last(g) && next >= 0;
		}
}

static void embed_forward(struct occ_gpt *g, struct slot *s)
{
	struct impl *m = g->impl;
	const struct occ_device_ops *o = g->dev->ops;
	int64_t R = m->ctx.B * m->ctx.T, V = m->head.V, v0 = g->weights.tp * V;
	o->put(g->dev, s->tokens, m->ids, (size_t)R * sizeof(int32_t));
	o->embed_forward(g->dev, R, m->ctx.C, v0, V, s->tokens, occ_ctx_weight(&m->ctx, m->wte), s->x[0]);
	occ_ctx_sum(&m->ctx, s->x[0]);
	o->position_forward(g->dev, R, m->ctx.C, m->ctx.T, occ_ctx_weight(&m->ctx, m->wpe), &m->ctx.drop,
			    s->x[0]);
}

static void embed_backward(struct occ_gpt *g, struct slot *s, void *dx)
{
	struct impl *m = g->impl;
	const struct occ_device_ops *o = g->dev->ops;
	int64_t R = m->ctx.B * m->ctx.T, V = m->head.V, v0 = g->weights.tp * V;
	o->position_backward(g->dev, R, m->ctx.C, m->ctx.T, &m->ctx.drop, dx,
			     occ_ctx_grad(&m->ctx, m->wpe));
	o->embed_backward(g->dev, R, m->ctx.C, v0, V, s->tokens, dx, occ_ctx_grad(&m->ctx, m->wte));
}

static void norm_forward(struct occ_gpt *g, struct slot *s)
{
	struct impl *m = g->impl;
	g->dev->ops->residual_norm_forward(
		g->dev, m->ctx.B * m->ctx.T, m->ctx.C, s->x[g->nlayers], NULL, NULL, &m->ctx.drop,
		occ_ctx_weight(&m->ctx, m->lnf), occ_ctx_weight(&m->ctx, m->lnf + 1), NULL, s->yf, s->meanf,
		s->rstdf);
}

static const void *input(const struct occ_gpt *g, const struct slot *s, int64_t i, const void *d_in)
{
	return i == 0 && !is_first(g) ? d_in : s->x[i];
}

/* All layers; the last one's output goes to `out`. */
static void layers_forward(struct occ_gpt *g, struct slot *s, const void *d_in, void *out)
{
	struct impl *m = g->impl;
	for (int64_t i = 0; i < g->nlayers; i++)
		occ_layer_forward(&m->ctx, g->first_layer + i,
				  m->first_row + (int)i * OCC_NLAYER_KINDS, input(g, s, i, d_in),
				  &s->acts[i], &m->scratch, i + 1 < g->nlayers ? s->x[i + 1] : out);
}

static void set_row0(struct impl *m, int mb)
{
	m->ctx.drop.row0 = m->batch.row0 + mb * m->batch.row_step;
	m->ctx.drop.site = 0;
}

static void forward(void *self, int mb, int slot, const void *d_in, void *d_out)
{
	struct occ_gpt *g = self;
	struct impl *m = g->impl;
	struct slot *s = &m->slots[slot];
	size_t R = (size_t)(m->ctx.B * m->ctx.T);
	occ_check(slot < m->nslots, "slot %d of %d", slot, m->nslots);
	set_row0(m, mb);
	if (is_first(g) || is_last(g))
		stage_tokens(g, mb);
	if (is_first(g))
		embed_forward(g, s);
	layers_forward(g, s, d_in, is_last(g) ? s->x[g->nlayers] : d_out);
	if (!is_last(g))
		return;
	norm_forward(g, s);
	g->dev->ops->put(g->dev, m->d_targets, m->ids + R, R * sizeof(int32_t));
	occ_head_run(&m->ctx, &m->head, s->yf, m->d_targets, m->batch.grad_scale,
		     m->batch.train ? s->dyf : NULL, &g->loss_sum);
}

/* The layer's activations again, in the shared set; its output (scratch dy) is of no use. */
static void recompute(struct occ_gpt *g, struct slot *s, int64_t i, const void *x)
{
	struct impl *m = g->impl;
	occ_layer_forward(&m->ctx, g->first_layer + i, m->first_row + (int)i * OCC_NLAYER_KINDS, x,
			  &s->acts[i], &m->scratch, m->scratch.dy);
}

static void backward(void *self, int mb, int slot, const void *d_in, const void *d_dout, void *d_din)
{
	struct occ_gpt *g = self;
	struct impl *m = g->impl;
	struct slot *s = &m->slots[slot];
	struct occ_device *d = g->dev;
	int64_t R = m->ctx.B * m->ctx.T, C = m->ctx.C;
	void *dx = m->scratch.dx;
	set_row0(m, mb);
	if (is_last(g))
		d->ops->residual_norm_backward(
			d, R, C, s->dyf, NULL, s->x[g->nlayers], occ_ctx_weight(&m->ctx, m->lnf), s->meanf,
			s->rstdf, &m->ctx.drop, dx, NULL, occ_ctx_grad(&m->ctx, m->lnf),
			occ_ctx_grad(&m->ctx, m->lnf + 1), NULL);
	else
		d->ops->copy(d, dx, d_dout, (size_t)(R * C) * occ_type_size(d->type));
	for (int64_t i = g->nlayers - 1; i >= 0; i--) {
		const void *x = input(g, s, i, d_in);
		if (m->recompute)
			recompute(g, s, i, x);
		occ_layer_backward(&m->ctx, g->first_layer + i, m->first_row + (int)i * OCC_NLAYER_KINDS, x,
				   &s->acts[i], &m->scratch, dx);
	}
	if (is_first(g))
		embed_backward(g, s, dx);
	else
		d->ops->copy(d, d_din, dx, (size_t)(R * C) * occ_type_size(d->type));
}

void occ_gpt_stage(struct occ_gpt *g, struct occ_stage *out)
{
	struct impl *m = g->impl;
	int shares = g->shape.tied && g->nstages > 1 && m->wte >= 0;
	const struct occ_weight *wte = shares ? &g->weights.at[m->wte] : NULL;
	*out = (struct occ_stage){
		.self = g, .forward = forward, .backward = backward, .d_grad = g->d_grad,
		.n_grad = g->weights.size, .embed_at = wte ? wte->at : 0,
		.embed_n = wte ? wte->lrows * wte->lcols : 0,
	};
}

void occ_gpt_next(struct occ_gpt *g, const int32_t *tokens, int64_t n, float *logits)
{
	struct impl *m = g->impl;
	int64_t T = (n + 15) / 16 * 16; /* few lengths, so that few product shapes are prepared */
	occ_check(g->nstages == 1 && g->weights.T == 1, "next token on %d stages", g->nstages);
	if (T > g->shape.seq_len)
		T = g->shape.seq_len;
	memset(m->ids, 0, (size_t)T * sizeof(int32_t));
	memcpy(m->ids, tokens, (size_t)n * sizeof(int32_t));
	m->ctx.B = 1;
	m->ctx.T = T;
	m->ctx.drop = (struct occ_drop){.p = 0};
	embed_forward(g, &m->slots[0]);
	layers_forward(g, &m->slots[0], NULL, m->slots[0].x[g->nlayers]);
	norm_forward(g, &m->slots[0]);
	occ_head_row(&m->ctx, &m->head, m->slots[0].yf, n - 1);
	g->dev->ops->get(g->dev, logits, m->head.logits, (size_t)g->shape.vocab * sizeof(float));
}

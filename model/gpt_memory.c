/* Where everything of a stage lies: one arena on the device, carved by the code that measures it,
 * so that a plan's figures are the run's. Of the device nothing is allocated after occ_gpt_init. */
#include <string.h>

#include "base/mem.h"
#include "model/gpt_internal.h"

/* The next `bytes` of the arena; while there is none, only counted. */
static void *carve(struct occ_gpt_impl *m, size_t bytes)
{
	char *p = m->arena ? m->arena + m->used : NULL;
	m->used += (bytes + 63) & ~(size_t)63;
	return p;
}

/* (R, n) of the compute type. */
static void *carve_rows(struct occ_gpt *g, int64_t n)
{
	size_t rows = (size_t)(g->micro * g->shape.seq_len);
	size_t row = occ_size_mul((size_t)n, occ_type_size(g->dev->type));
	return carve(g->impl, occ_size_mul(rows, row));
}

/* (R, n) fp32. */
static float *carve_floats(struct occ_gpt *g, int64_t n)
{
	size_t rows = (size_t)(g->micro * g->shape.seq_len);
	return carve(g->impl, occ_size_mul(rows, (size_t)n * sizeof(float)));
}

static struct occ_layer_acts carve_acts(struct occ_gpt *g)
{
	const struct occ_ctx *c = &((struct occ_gpt_impl *)g->impl)->ctx;
	int64_t local = c->H * c->D;
	return (struct occ_layer_acts){
		.y1 = carve_rows(g, c->C),
		.qkv = carve_rows(g, 3 * local),
		.att = carve_rows(g, local),
		.xb = carve_rows(g, c->C),
		.y2 = carve_rows(g, c->C),
		.h = carve_rows(g, 4 * local),
		.g = carve_rows(g, 4 * local),
		.mean1 = carve_floats(g, 1),
		.rstd1 = carve_floats(g, 1),
		.mean2 = carve_floats(g, 1),
		.rstd2 = carve_floats(g, 1),
		.lse = carve_floats(g, c->H),
	};
}

/* Inputs of the layers, and of ln_f on the last stage. Without a backward pass all are one array: a
 * layer's output may be written over its input. */
static void carve_inputs(struct occ_gpt *g, struct occ_gpt_slot *s)
{
	struct occ_gpt_impl *m = g->impl;
	int first = !occ_gpt_is_first(g);
	for (int64_t i = first; i < g->nlayers + occ_gpt_is_last(g); i++)
		s->x[i] = m->trains || i == first ? carve_rows(g, m->ctx.C) : s->x[i - 1];
}

static void carve_slot(struct occ_gpt *g, struct occ_gpt_slot *s,
		       const struct occ_layer_acts *shared)
{
	struct occ_gpt_impl *m = g->impl;
	if (occ_gpt_is_first(g))
		s->tokens = (int32_t *)(void *)carve_floats(g, 1);
	carve_inputs(g, s);
	for (int64_t i = 0; i < g->nlayers; i++)
		s->acts[i] = m->recompute ? *shared : carve_acts(g);
	if (!occ_gpt_is_last(g))
		return;
	s->dyf = m->trains ? carve_rows(g, m->ctx.C) : NULL;
	s->meanf = carve_floats(g, 1);
	s->rstdf = carve_floats(g, 1);
}

static void carve_scratch(struct occ_gpt *g)
{
	struct occ_gpt_impl *m = g->impl;
	struct occ_layer_scratch *s = &m->scratch;
	int64_t C = m->ctx.C, local = m->ctx.H * m->ctx.D;
	s->delta = carve_rows(g, C);
	if (!m->trains)
		return;
	s->dx = occ_gpt_is_first(g) ? carve_rows(g, C) : NULL; /* later stages: the executor's */
	s->dy = carve_rows(g, C);
	s->dqkv = carve_rows(g, 3 * local);
	s->datt = carve_rows(g, local);
	s->dh = carve_rows(g, 4 * local);
}

static void carve_head(struct occ_gpt *g)
{
	struct occ_gpt_impl *m = g->impl;
	struct occ_head *h = &m->head;
	size_t n = occ_size_mul((size_t)h->rows, (size_t)h->V);
	if (!occ_gpt_is_last(g))
		return;
	m->yf = carve_rows(g, m->ctx.C);
	m->d_targets = (int32_t *)(void *)carve_floats(g, 1);
	size_t bytes = n * occ_type_size(g->dev->type), row = (size_t)h->V * sizeof(float);
	h->logits = carve(m, bytes > row ? bytes : row); /* occ_head_row's are fp32 */
	h->stats = carve(m, 4 * (size_t)h->rows * sizeof(float));
	m->d_loss = carve_floats(g, OCC_GPT_LOSSES);
}

static void carve_all(struct occ_gpt *g)
{
	struct occ_gpt_impl *m = g->impl;
	struct occ_layer_acts shared = {0};
	m->used = 0;
	if (m->recompute)
		shared = carve_acts(g);
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

static void describe_table(struct occ_gpt *g, const struct occ_layout *l, struct occ_place place)
{
	struct occ_gpt_impl *m = g->impl;
	const struct occ_weights *w = &g->weights;
	int first;
	g->stage = place.pp;
	g->nstages = l->pipeline;
	g->nlayers = occ_stage_layers((int)g->shape.layers, l->pipeline, place.pp, &first);
	g->first_layer = first;
	occ_weights_init(&g->weights, &g->shape, l, place);
	m->wte = index_of(w, "wte.weight");
	m->wpe = index_of(w, "wpe.weight");
	m->lnf = index_of(w, "ln_f.weight");
	m->first_row = m->wpe + 1;
	m->head.w = g->shape.tied ? m->wte : index_of(w, "lm_head.weight");
	m->head.V = g->shape.vocab_padded / l->tensor;
	m->head.valid = g->shape.vocab;
	m->head.rows = occ_head_rows(g->dev, g->micro * g->shape.seq_len, m->head.V);
	m->ctx = (struct occ_ctx){
		.dev = g->dev,
		.tp = g->tp,
		.w = w,
		.B = g->micro,
		.T = g->T,
		.C = g->shape.hidden,
		.H = g->shape.heads / l->tensor,
		.D = g->shape.hidden / g->shape.heads,
	};
}

/* All but device memory, whose size is measured. */
static void describe(struct occ_gpt *g, const struct occ_gpt_shape *s, const struct occ_layout *l,
		     struct occ_place place, struct occ_device *dev, int64_t micro, int slots)
{
	struct occ_gpt_impl *m = occ_alloc(1, sizeof(*m));
	*g = (struct occ_gpt){.shape = *s, .dev = dev, .micro = micro, .T = s->seq_len, .impl = m};
	describe_table(g, l, place);
	m->trains = slots > 0;
	m->nslots = slots > 0 ? slots : 1;
	m->recompute = s->recompute || !m->trains;
	m->slots = occ_alloc((size_t)m->nslots, sizeof(*m->slots));
	for (int i = 0; i < m->nslots; i++) {
		m->slots[i].x = occ_alloc((size_t)g->nlayers + 1, sizeof(*m->slots[i].x));
		m->slots[i].acts = occ_alloc((size_t)g->nlayers, sizeof(*m->slots[i].acts));
	}
	carve_all(g);
}

/* fp32 or compute type, for every element of the flat arrays. */
static size_t flat_bytes(const struct occ_gpt *g, enum occ_type type)
{
	return occ_size_mul((size_t)g->weights.size, occ_type_size(type));
}

/* How the reduction sees the weight table. */
static void describe_tensors(struct occ_gpt *g)
{
	struct occ_gpt_impl *m = g->impl;
	g->tensor = occ_alloc((size_t)g->weights.n, sizeof(*g->tensor));
	for (int i = 0; i < g->weights.n; i++) {
		const struct occ_weight *w = &g->weights.at[i];
		int shared = g->shape.tied && g->nstages > 1 && !strcmp(w->name, "wte.weight");
		g->tensor[i] = (struct occ_tensor){
			.name = w->name,
			.at = w->at,
			.n = w->ndim == 1 ? 1 : w->lrows,
			.m = w->ndim == 1 ? w->lrows * w->lcols : w->lcols,
			.id = w->id,
			.replicated = w->split == OCC_WHOLE,
			.embedding = shared,
		};
	}
	m->ready = occ_alloc((size_t)g->nlayers, sizeof(*m->ready));
	for (int64_t i = 0; i < g->nlayers; i++) {
		int first = m->first_row + (int)i * OCC_NLAYER_KINDS;
		m->ready[i] = g->dev->ops->mark_open(g->dev);
		for (int k = 0; k < OCC_NLAYER_KINDS; k++)
			g->tensor[first + k].ready = m->ready[i];
	}
}

void occ_gpt_init(struct occ_gpt *g, const struct occ_gpt_shape *s, struct occ_topo *topo,
		  struct occ_device *dev, struct occ_group *tp, int64_t micro, int slots)
{
	const struct occ_device_ops *o = dev->ops;
	describe(g, s, &topo->layout, topo->place, dev, micro, slots);
	struct occ_gpt_impl *m = g->impl;
	g->tp = m->ctx.tp = tp;
	m->arena = o->alloc(dev, m->used);
	carve_all(g);
	if (occ_gpt_is_last(g))
		m->loss = occ_alloc((size_t)(OCC_GPT_LOSSES * micro * s->seq_len), sizeof(float));
	g->d_w = m->ctx.d_w = o->alloc(dev, flat_bytes(g, dev->type));
	o->zero(dev, g->d_w, flat_bytes(g, dev->type));
	if (!m->trains)
		return;
	describe_tensors(g);
	g->d_grad = m->ctx.d_grad = o->alloc(dev, flat_bytes(g, OCC_F32));
	o->zero(dev, g->d_grad, flat_bytes(g, OCC_F32));
}

void occ_gpt_room(struct occ_gpt *g, int n)
{
	struct occ_gpt_impl *m = g->impl;
	const struct occ_device_ops *o = g->dev->ops;
	size_t bytes = 2 * (size_t)(g->micro * g->shape.seq_len) * sizeof(*m->ids);
	o->sync(g->dev);
	if (n <= m->nids)
		return;
	if (m->ids)
		o->free_host(g->dev, m->ids);
	m->ids = o->alloc_host(g->dev, occ_size_mul((size_t)n, bytes));
	m->nids = n;
}

static void close_records(struct occ_gpt *g, struct occ_gpt_slot *s)
{
	for (int i = 0; i < 4; i++)
		if (s->record[i / 2][i % 2].r)
			g->dev->ops->repeat_close(g->dev, s->record[i / 2][i % 2].r);
}

void occ_gpt_release(struct occ_gpt *g)
{
	struct occ_gpt_impl *m = g->impl;
	if (!m)
		return;
	for (int i = 0; i < m->nslots; i++) {
		close_records(g, &m->slots[i]);
		occ_free(m->slots[i].x);
		occ_free(m->slots[i].acts);
	}
	for (int64_t i = 0; m->ready && i < g->nlayers; i++)
		g->dev->ops->mark_close(g->dev, m->ready[i]);
	occ_free(m->ready);
	occ_free(m->slots);
	occ_free(g->tensor);
	if (m->ids)
		g->dev->ops->free_host(g->dev, m->ids);
	occ_free(m->loss);
	void *device[] = {m->arena, g->d_w, g->d_grad};
	for (int i = 0; i < 3; i++)
		if (device[i])
			g->dev->ops->free(g->dev, device[i]);
	occ_weights_release(&g->weights);
	occ_free(m);
	*g = (struct occ_gpt){0};
}

void occ_gpt_measure(const struct occ_gpt_shape *s, const struct occ_layout *l,
		     struct occ_place place, enum occ_type type, int64_t micro, int slots,
		     struct occ_gpt_memory *out)
{
	struct occ_device typed = {.type = type}; /* nothing of it is called */
	struct occ_gpt g;
	describe(&g, s, l, place, &typed, micro, slots);
	*out = (struct occ_gpt_memory){
		.weights = flat_bytes(&g, type),
		.gradients = slots > 0 ? flat_bytes(&g, OCC_F32) : 0,
		.activations = ((struct occ_gpt_impl *)g.impl)->used,
	};
	occ_gpt_release(&g);
}

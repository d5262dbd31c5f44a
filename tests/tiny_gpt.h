/* A tiny GPT on one rank of a test: opened for a setting, given weights and tokens that depend on
 * global positions only, stepped through the real schedule and executor. */
#ifndef OCC_TESTS_TINY_GPT_H
#define OCC_TESTS_TINY_GPT_H

#include <string.h>

#include "base/mem.h"
#include "model/gpt.h"

enum { T = 20, HEADS = 4, HIDDEN = 32, LAYERS = 4, VOCAB = 61, MAX_RANKS = 8 };

struct setting {
	const char *name;
	struct occ_layout layout;
	const char *device;
	enum occ_type type;
	int global, micro;
	int tied, recompute;
	double dropout;
	int padding; /* the last samples of the batch are padding */
	int threads;
	struct occ_policy policy; /* zero: all travels dense */
	int ranks_per_node;
};

/* One rank, opened for steps. */
struct rank {
	const struct setting *set;
	struct occ_topo topo;
	struct occ_device *dev;
	struct occ_group tp;
	struct occ_gpt gpt;
	struct occ_exec exec;
	struct occ_schedule sched;
	struct occ_stage stage;
	int32_t *tokens;
	float *flat;
};

static inline struct occ_gpt_shape shape_of(const struct setting *s, int tp)
{
	return (struct occ_gpt_shape){
		.layers = LAYERS,
		.hidden = HIDDEN,
		.heads = HEADS,
		.seq_len = T,
		.vocab = VOCAB,
		.vocab_padded = occ_vocab_padded(VOCAB, 1, tp),
		.tied = s->tied,
		.init_std = 0.15,
		.dropout = s->dropout,
		.recompute = s->recompute,
	};
}

static inline int32_t token(const struct setting *s, int64_t sample, int64_t t)
{
	if (sample >= s->global - s->padding)
		return -1;
	return (int32_t)(occ_rng_u64(99, (uint64_t)(sample * (T + 1) + t)) % VOCAB);
}

static inline void fill_tokens(struct rank *r)
{
	const struct setting *s = r->set;
	int M = s->global / (s->micro * s->layout.data);
	r->tokens = occ_alloc((size_t)M * (size_t)s->micro * (T + 1), sizeof(int32_t));
	for (int k = 0, at = 0; k < M; k++)
		for (int i = 0; i < s->micro; i++)
			for (int t = 0; t <= T; t++)
				r->tokens[at++] = token(
					s, (k * s->layout.data + r->topo.place.dp) * s->micro + i,
					t);
}

/* Unlike at a training's start no vector is constant, so that a wrong one is seen. */
static inline void fill_weights(const struct occ_weights *w, float *flat)
{
	uint64_t key = occ_rng_key(3, OCC_RNG_INIT);
	occ_weights_draw(w, 5, flat);
	for (int i = 0; i < w->n; i++) {
		const struct occ_weight *p = &w->at[i];
		for (int64_t c = 0; p->ndim == 1 && c < p->lcols; c++)
			flat[p->at + c] += 0.1f * occ_rng_normal(key, p->id,
								 (uint64_t)occ_weight_col(w, p, c));
	}
}

static inline void rank_open(struct rank *r, const struct setting *s, struct occ_comm *world,
			     int slots)
{
	struct occ_gpt_shape shape = shape_of(s, s->layout.tensor);
	struct occ_err e = {0};
	int M = s->global / (s->micro * s->layout.data);
	memset(r, 0, sizeof(*r));
	r->set = s;
	occ_topo_init(&r->topo, world, &s->layout, s->ranks_per_node, s->policy.fused);
	r->dev = occ_device_open(s->device, s->type, s->threads ? s->threads : 1, &e);
	occ_check(r->dev != NULL, "%s", e.text);
	occ_group_init(&r->tp, r->topo.tp, r->dev, 1 << 12);
	if (slots)
		occ_schedule_1f1b(&r->sched, r->topo.place.pp, s->layout.pipeline, M);
	else
		occ_schedule_forward(&r->sched, r->topo.place.pp, s->layout.pipeline, M);
	occ_schedule_mark(&r->sched, OCC_SEND_ACT, s->policy.site[OCC_PP_FORWARD].mark);
	if (occ_route_follows(&s->policy))
		occ_schedule_follow(&r->sched);
	else
		occ_schedule_mark(&r->sched, OCC_SEND_GRAD, s->policy.site[OCC_PP_BACKWARD].mark);
	occ_gpt_init(&r->gpt, &shape, &r->topo, r->dev, &r->tp, s->micro,
		     slots ? r->sched.slots : 0);
	occ_gpt_stage(&r->gpt, &r->stage);
	struct occ_exec_conf x = {s->micro * T, HIDDEN, r->sched.slots, &s->policy, &r->stage};
	occ_exec_init(&r->exec, &r->topo, r->dev, &r->tp, &x);
	r->flat = occ_alloc((size_t)r->gpt.weights.size, sizeof(float));
	fill_weights(&r->gpt.weights, r->flat);
	occ_gpt_put(&r->gpt, r->flat);
	fill_tokens(r);
}

static inline void rank_close(struct rank *r)
{
	occ_free(r->tokens);
	occ_free(r->flat);
	occ_exec_release(&r->exec);
	occ_schedule_release(&r->sched);
	occ_gpt_release(&r->gpt);
	occ_group_release(&r->tp);
	occ_device_close(r->dev);
	occ_topo_release(&r->topo);
}

static inline void rank_begin(struct rank *r, uint32_t step, int train)
{
	const struct setting *s = r->set;
	struct occ_gpt_batch b = {
		.tokens = r->tokens,
		.nmicro = s->global / (s->micro * s->layout.data),
		.row0 = (int64_t)r->topo.place.dp * s->micro * T,
		.row_step = (int64_t)s->layout.data * s->micro * T,
		.grad_scale = 1.0f / (float)((s->global - s->padding) * T),
		.step = step,
		.dropout_key = occ_rng_key(11, OCC_RNG_DROPOUT),
		.train = train,
	};
	occ_gpt_begin(&r->gpt, &b);
}

static inline void rank_step(struct rank *r, uint32_t step, int train)
{
	rank_begin(r, step, train);
	occ_exec_step(&r->exec, &r->sched, step);
}

#endif

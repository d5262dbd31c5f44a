/* The optimizer over a padded vocabulary: padding rows have no part in norms or updates, whatever
 * their gradients hold (compressed sums may bring some), in any shard, with and without master
 * weights. Tensors of several pieces count and move as those of one do, and the norm names
 * a tensor that is not finite. CUDA: 1 */
#include "trainer/optim.h"

#include "base/mem.h"
#include "tests/check.h"

enum { VOCAB = 11, MULTIPLE = 8 };

static const struct row {
	int tensor, tied;
	enum occ_type type;
	int hidden;
} rows[] = {
	{1, 1, OCC_F32, 4},   {1, 0, OCC_F32, 4},  {2, 1, OCC_F32, 4},
	{4, 0, OCC_F32, 4},   {2, 1, OCC_BF16, 4}, {1, 1, OCC_F32, 72}, /* some of two pieces */
	{2, 0, OCC_BF16, 96},
};

static struct occ_gpt_shape shape_of(const struct row *r)
{
	return (struct occ_gpt_shape){
		.layers = 1,
		.hidden = r->hidden,
		.heads = 4,
		.seq_len = 3,
		.vocab = VOCAB,
		.vocab_padded = occ_vocab_padded(VOCAB, MULTIPLE, r->tensor),
		.tied = r->tied,
		.init_std = 0.1,
	};
}

static int is_padding(const struct occ_weights *w, const struct occ_weight *p, int64_t i)
{
	return occ_weight_row(w, p, i / p->lcols) >= p->real_rows;
}

static int64_t trained(const struct occ_weights *w, const struct occ_weight *p)
{
	return occ_weight_real_rows(w, p) * p->lcols;
}

/* Other tensor ranks count it. (No stage here has a copy.) */
static int elsewhere(const struct occ_weights *w, const struct occ_weight *p)
{
	return p->split == OCC_WHOLE && w->tp != 0;
}

/* A gradient that is not finite at a tensor's end names it, where it counts. */
static void check_worst(const struct occ_optim *o)
{
	const struct occ_gpt *g = o->gpt;
	const struct occ_weights *all = &g->weights;
	const float one = 1, bad[] = {INFINITY, NAN};
	for (int i = 0; i < all->n; i++) {
		const struct occ_weight *p = &all->at[i], *worst = NULL;
		float *d_last = g->d_grad + p->at + trained(all, p) - 1;
		if (trained(all, p) == 0)
			continue;
		g->dev->ops->put(g->dev, d_last, &bad[i % 2], sizeof(one));
		double norm2 = occ_optim_norm2(o, &worst);
		CHECK(worst == (elsewhere(all, p) ? NULL : p) && !isfinite(norm2) == !!worst,
		      "tp %d: %s, not %s", all->tp, worst ? worst->name : "none", p->name);
		g->dev->ops->put(g->dev, d_last, &one, sizeof(one));
		g->dev->ops->sync(g->dev);
	}
}

/* Weights w became `now`: by a first step of 0.1 each, and what decays by half of itself too. */
static void check_moves(const struct occ_weights *all, const float *w, const float *now)
{
	for (int i = 0; i < all->n; i++) {
		const struct occ_weight *p = &all->at[i];
		int wrong = 0;
		for (int64_t k = 0; k < p->lrows * p->lcols; k++) {
			float x = w[p->at + k], step = 0.1f * (1 + (p->decay ? 0.5f * x : 0));
			float want = is_padding(all, p, k) ? 0 : x - step;
			wrong += !(fabsf(now[p->at + k] - want) <= (want == 0 ? 0 : 1e-6f));
		}
		CHECK(wrong == 0, "tp %d of %d: %d values of %s are wrong", all->tp, all->T, wrong,
		      p->name);
	}
}

/* All gradients are 1: the squared norm counts what is trained, and only that moves. */
static void check_update(const struct row *r, struct occ_gpt *g)
{
	int64_t n = g->weights.size, real = 0;
	struct occ_optim o;
	struct occ_config_optimizer c = {
		.lr = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.5};
	float *ones = occ_alloc((size_t)n, sizeof(*ones)), *w = occ_alloc((size_t)n, sizeof(*w));
	float *now = occ_alloc((size_t)n, sizeof(*now));
	for (int64_t i = 0; i < n; i++)
		ones[i] = 1;
	occ_optim_init(&o, g);
	occ_weights_draw(&g->weights, 3, w);
	occ_optim_put(&o, w, NULL, NULL);
	g->dev->ops->put(g->dev, g->d_grad, ones, (size_t)n * sizeof(*ones));
	for (int i = 0; i < g->weights.n; i++) {
		const struct occ_weight *p = &g->weights.at[i];
		for (int64_t k = 0; k < p->lrows * p->lcols; k++)
			real += !is_padding(&g->weights, p, k) && !elsewhere(&g->weights, p);
	}
	double norm2 = occ_optim_norm2(&o, NULL);
	CHECK(norm2 == (double)real, "tp %d of %d: squared norm %g of %lld ones", g->weights.tp,
	      r->tensor, norm2, (long long)real);
	check_worst(&o);
	occ_optim_update(&o, &c, 0.1, 1);
	occ_optim_get(&o, now, NULL, NULL);
	check_moves(&g->weights, w, now);
	occ_optim_release(&o);
	occ_free(now);
	occ_free(w);
	occ_free(ones);
}

static int body(struct occ_comm *world, void *arg)
{
	const struct row *r = arg;
	struct occ_gpt_shape shape = shape_of(r);
	struct occ_layout l = {r->tensor, 1, 1};
	struct occ_topo topo;
	struct occ_group tp;
	struct occ_gpt g;
	struct occ_err e = {0};
	occ_topo_init(&topo, world, &l, 0, 0);
	struct occ_device *d = occ_device_open(check_device("ref"), r->type, 1, &e);
	occ_group_init(&tp, topo.tp, d, 1 << 12);
	occ_gpt_init(&g, &shape, &topo, d, &tp, 1, 1);
	check_update(r, &g);
	occ_gpt_release(&g);
	occ_group_release(&tp);
	occ_device_close(d);
	occ_topo_release(&topo);
	return 0;
}

int main(void)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		occ_comm_run_threads(rows[i].tensor, 30, body, (void *)&rows[i]);
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}

/* The optimizer cuts the weight table in pieces; arithmetic is the device's, one call for all. */
#include "trainer/optim.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

double occ_lr_at(const struct occ_config_optimizer *o, int64_t iters, int64_t t)
{
	int64_t decay = o->decay_iters > 0 ? o->decay_iters : iters, warm = o->warmup_iters;
	if (t < warm)
		return o->lr * (double)(t + 1) / (double)warm;
	if (!strcmp(o->schedule, "constant"))
		return o->lr;
	if (t >= decay)
		return o->min_lr;
	if (!strcmp(o->schedule, "wsd")) {
		int64_t from = decay - o->wsd_iters;
		if (t < from)
			return o->lr;
		return o->lr - (double)(t - from) / (double)o->wsd_iters * (o->lr - o->min_lr);
	}
	double r = (double)(t - warm) / (double)(decay - warm);
	if (!strcmp(o->schedule, "linear"))
		return o->lr - r * (o->lr - o->min_lr);
	return o->min_lr + 0.5 * (1.0 + cos(3.14159265358979323846 * r)) * (o->lr - o->min_lr);
}

static float *zeroed(struct occ_device *d, int64_t n)
{
	size_t bytes = occ_size_mul((size_t)n, sizeof(float));
	float *d_x = d->ops->alloc(d, bytes);
	d->ops->zero(d, d_x, bytes);
	return d_x;
}

/* Elements of a tensor that are trained. Padding stays 0, though what compression makes of its
 * gradients need not be. */
static int64_t trained(const struct occ_gpt *g, const struct occ_weight *w)
{
	return occ_weight_real_rows(&g->weights, w) * w->lcols;
}

/* Copies, and what other tensor ranks hold too, count once. */
static int counts(const struct occ_gpt *g, const struct occ_weight *w)
{
	return !w->copy && (w->split != OCC_WHOLE || g->weights.tp == 0);
}

/* The pieces of weight k, behind those there are. */
static void cut(struct occ_optim *o, int k, struct occ_piece *pieces)
{
	const struct occ_weight *w = &o->gpt->weights.at[k];
	int64_t n = trained(o->gpt, w);
	int many = occ_pieces_cut(w->at, n, w->decay ? 1 : 0, pieces + o->all.n);
	for (int i = 0; i < many; i++)
		o->tensor[o->all.n++] = k;
	o->all.total += n;
}

/* All that is trained, in the order of the table but for what does not count, which comes last. */
static void cut_all(struct occ_optim *o)
{
	const struct occ_weights *w = &o->gpt->weights;
	struct occ_device *d = o->gpt->dev;
	size_t most = (size_t)w->n + (size_t)(w->size / OCC_PIECE);
	struct occ_piece *pieces = occ_alloc(most, sizeof(*pieces));
	o->tensor = occ_alloc(most, sizeof(*o->tensor));
	for (int k = 0; k < w->n; k++)
		if (counts(o->gpt, &w->at[k]))
			cut(o, k, pieces);
	o->norm = o->all;
	for (int k = 0; k < w->n; k++)
		if (!counts(o->gpt, &w->at[k]))
			cut(o, k, pieces);
	size_t bytes = (size_t)o->all.n * sizeof(*pieces);
	o->d_pieces = d->ops->alloc(d, bytes);
	o->all.d_at = o->norm.d_at = o->d_pieces;
	d->ops->put(d, o->d_pieces, pieces, bytes);
	d->ops->sync(d);
	occ_free(pieces);
}

void occ_optim_init(struct occ_optim *o, struct occ_gpt *g)
{
	memset(o, 0, sizeof(*o));
	o->gpt = g;
	o->d_m = zeroed(g->dev, g->weights.size);
	o->d_v = zeroed(g->dev, g->weights.size);
	cut_all(o);
	o->d_sum = g->dev->ops->alloc(g->dev, (size_t)o->norm.n * sizeof(*o->d_sum));
	o->sum = occ_alloc((size_t)o->norm.n, sizeof(*o->sum));
	if (g->dev->type != OCC_F32)
		o->d_master = zeroed(g->dev, g->weights.size);
}

void occ_optim_release(struct occ_optim *o)
{
	if (!o->gpt)
		return;
	struct occ_device *d = o->gpt->dev;
	d->ops->free(d, o->d_m);
	d->ops->free(d, o->d_v);
	if (o->d_master)
		d->ops->free(d, o->d_master);
	d->ops->free(d, o->d_pieces);
	d->ops->free(d, o->d_sum);
	occ_free(o->tensor);
	occ_free(o->sum);
	memset(o, 0, sizeof(*o));
}

/* The sum over weight k, whose pieces begin at *i; *i moves behind them. */
static double tensor_sum(const struct occ_optim *o, int k, int *i)
{
	double sum = 0;
	for (; *i < o->norm.n && o->tensor[*i] == k; ++*i)
		sum += o->sum[*i];
	return sum;
}

double occ_optim_norm2(const struct occ_optim *o, const struct occ_weight **worst)
{
	const struct occ_gpt *g = o->gpt;
	double all = 0;
	g->dev->ops->piece_squares(g->dev, &o->norm, g->d_grad, o->d_sum);
	g->dev->ops->get(g->dev, o->sum, o->d_sum, (size_t)o->norm.n * sizeof(*o->sum));
	for (int i = 0; i < o->norm.n;) {
		int k = o->tensor[i];
		double sum = tensor_sum(o, k, &i);
		if (worst && !*worst && !isfinite(sum))
			*worst = &g->weights.at[k];
		all += sum;
	}
	return all;
}

void occ_optim_update(struct occ_optim *o, const struct occ_config_optimizer *c, double lr,
		      double scale)
{
	struct occ_gpt *g = o->gpt;
	double t = (double)++o->steps;
	struct occ_adamw a = {
		.lr = (float)lr,
		.beta1 = (float)c->beta1,
		.beta2 = (float)c->beta2,
		.eps = (float)c->eps,
		.decay = (float)c->weight_decay,
		.scale = (float)scale,
		.c1 = (float)(1.0 - pow(c->beta1, t)),
		.c2 = (float)(1.0 - pow(c->beta2, t)),
	};
	g->dev->ops->adamw(g->dev, &a, &o->all, g->d_grad, o->d_m, o->d_v, o->d_master, g->d_w);
}

void occ_optim_get(const struct occ_optim *o, float *master, float *m, float *v)
{
	const struct occ_gpt *g = o->gpt;
	size_t bytes = (size_t)g->weights.size * sizeof(float);
	g->dev->ops->get(g->dev, master, o->d_master ? (void *)o->d_master : g->d_w, bytes);
	if (m)
		g->dev->ops->get(g->dev, m, o->d_m, bytes);
	if (v)
		g->dev->ops->get(g->dev, v, o->d_v, bytes);
}

void occ_optim_put(struct occ_optim *o, const float *master, const float *m, const float *v)
{
	struct occ_gpt *g = o->gpt;
	size_t bytes = (size_t)g->weights.size * sizeof(float);
	occ_gpt_put(g, master);
	if (o->d_master)
		g->dev->ops->put(g->dev, o->d_master, master, bytes);
	if (m)
		g->dev->ops->put(g->dev, o->d_m, m, bytes);
	if (v)
		g->dev->ops->put(g->dev, o->d_v, v, bytes);
	g->dev->ops->sync(g->dev);
}

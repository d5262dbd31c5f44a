/* Ref: causal attention, one (sequence, head) after the other; scores are computed again wherever
 * they are needed, so that none is kept. */
#include "base/ref.h"

#include <math.h>

enum { MAX_D = 256 };

/* One head of one sequence: where its rows lie, and the scale of its scores. */
struct head {
	const struct occ_attention *a;
	enum occ_type type;
	int64_t b, h;
	double scale;
};

enum { Q, K, V };

/* Index of element 0 of q, k or v of token t. */
static int64_t at(const struct head *s, int64_t t, int which)
{
	int64_t H = s->a->H, D = s->a->D;
	return ((s->b * s->a->T + t) * 3 + which) * H * D + s->h * D;
}

static int64_t out_at(const struct head *s, int64_t t)
{
	return (s->b * s->a->T + t) * s->a->H * s->a->D + s->h * s->a->D;
}

static double dot(enum occ_type type, int64_t n, const void *x, int64_t i, const void *y, int64_t j)
{
	double sum = 0;
	for (int64_t k = 0; k < n; k++)
		sum += ref_get(type, x, i + k) * ref_get(type, y, j + k);
	return sum;
}

static double score(const struct head *s, const void *qkv, int64_t t, int64_t j)
{
	return s->scale * dot(s->type, s->a->D, qkv, at(s, t, Q), qkv, at(s, j, K));
}

static double mask(const struct head *s, int64_t t, int64_t j)
{
	return ref_mask(&s->a->drop, s->b * s->a->T + t, s->h * s->a->T + j);
}

/* log of the sum of exp(score) over keys 0..t */
static double log_sum(const struct head *s, const void *qkv, int64_t t)
{
	double max = -INFINITY, sum = 0;
	for (int64_t j = 0; j <= t; j++) {
		double v = score(s, qkv, t, j), top = fmax(max, v);
		sum = sum * exp(max - top) + exp(v - top);
		max = top;
	}
	return max + log(sum);
}

static void query_forward(const struct head *s, const void *qkv, int64_t t, void *out, float *lse)
{
	double acc[MAX_D] = {0}, all = log_sum(s, qkv, t);
	for (int64_t j = 0; j <= t; j++) {
		double p = exp(score(s, qkv, t, j) - all) * mask(s, t, j);
		for (int64_t i = 0; i < s->a->D; i++)
			acc[i] += p * ref_get(s->type, qkv, at(s, j, V) + i);
	}
	for (int64_t i = 0; i < s->a->D; i++)
		ref_set(s->type, out, out_at(s, t) + i, acc[i]);
	lse[(s->b * s->a->H + s->h) * s->a->T + t] = (float)all;
}

void occ_ref_attention_forward(struct occ_device *d, const struct occ_attention *a,
			       const void *d_qkv, void *d_out, float *d_lse)
{
	occ_check(a->D <= MAX_D, "head size %lld", (long long)a->D);
	struct head s = {a, d->type, 0, 0, 1 / sqrt((double)a->D)};
	for (s.b = 0; s.b < a->B; s.b++)
		for (s.h = 0; s.h < a->H; s.h++)
			for (int64_t t = 0; t < a->T; t++)
				query_forward(&s, d_qkv, t, d_out, d_lse);
}

struct backward {
	const void *qkv, *out, *dout;
	const float *lse;
	void *dqkv;
};

/* p = probability after dropout, ds = gradient of the score, of query t and key j */
static void probability(const struct head *s, const struct backward *g, int64_t t, int64_t j,
			double *p, double *ds)
{
	int64_t o = out_at(s, t), D = s->a->D;
	double lse = (double)g->lse[(s->b * s->a->H + s->h) * s->a->T + t];
	double clean = exp(score(s, g->qkv, t, j) - lse), m = mask(s, t, j);
	double dp = m * dot(s->type, D, g->dout, o, g->qkv, at(s, j, V));
	*p = clean * m;
	*ds = clean * (dp - dot(s->type, D, g->dout, o, g->out, o)) * s->scale;
}

static void query_backward(const struct head *s, const struct backward *g, int64_t t)
{
	double acc[MAX_D] = {0}, p, ds;
	for (int64_t j = 0; j <= t; j++) {
		probability(s, g, t, j, &p, &ds);
		for (int64_t i = 0; i < s->a->D; i++)
			acc[i] += ds * ref_get(s->type, g->qkv, at(s, j, K) + i);
	}
	for (int64_t i = 0; i < s->a->D; i++)
		ref_set(s->type, g->dqkv, at(s, t, Q) + i, acc[i]);
}

static void key_backward(const struct head *s, const struct backward *g, int64_t j)
{
	double dk[MAX_D] = {0}, dv[MAX_D] = {0}, p, ds;
	for (int64_t t = j; t < s->a->T; t++) {
		probability(s, g, t, j, &p, &ds);
		for (int64_t i = 0; i < s->a->D; i++) {
			dk[i] += ds * ref_get(s->type, g->qkv, at(s, t, Q) + i);
			dv[i] += p * ref_get(s->type, g->dout, out_at(s, t) + i);
		}
	}
	for (int64_t i = 0; i < s->a->D; i++) {
		ref_set(s->type, g->dqkv, at(s, j, K) + i, dk[i]);
		ref_set(s->type, g->dqkv, at(s, j, V) + i, dv[i]);
	}
}

void occ_ref_attention_backward(struct occ_device *d, const struct occ_attention *a,
				const void *d_qkv, const void *d_out, const float *d_lse,
				const void *d_dout, void *d_dqkv)
{
	occ_check(a->D <= MAX_D, "head size %lld", (long long)a->D);
	struct head s = {a, d->type, 0, 0, 1 / sqrt((double)a->D)};
	struct backward g = {d_qkv, d_out, d_dout, d_lse, d_dqkv};
	for (s.b = 0; s.b < a->B; s.b++)
		for (s.h = 0; s.h < a->H; s.h++)
			for (int64_t t = 0; t < a->T; t++) {
				query_backward(&s, &g, t);
				key_backward(&s, &g, t);
			}
}

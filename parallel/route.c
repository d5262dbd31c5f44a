/* The table of rules: the first that speaks against compression decides. */
#include "parallel/route.h"

const struct occ_site *occ_route_site(const struct occ_policy *p, enum occ_kind kind)
{
	if (kind == OCC_PP_BACKWARD && occ_route_follows(p))
		kind = OCC_PP_FORWARD;
	return &p->site[kind];
}

int occ_route_follows(const struct occ_policy *p)
{
	return p->site[OCC_PP_FORWARD].knobs.codec == &occ_codec_dct_rows;
}

double occ_route_ratio(const struct occ_site *s, const struct occ_transfer *t)
{
	const struct occ_codec_ops *c = s->knobs.codec;
	double n = (double)t->n, m = (double)t->m;
	if (c->rounds) /* a ring either way; of one power iteration */
		return n * m / ((double)occ_codec_rank(&s->knobs, t->n, t->m) * (n + m));
	if (c->varies && c->expected == 0)
		return 0;
	double wire = (double)occ_codec_bound(&s->knobs, t->n, t->m, t->type);
	wire *= c->varies ? c->expected : 1;
	return 2 * n * m * (double)occ_type_size(t->type) / (t->peers * wire);
}

static int no_codec(const struct occ_policy *p, const struct occ_site *s,
		    const struct occ_transfer *t)
{
	(void)p;
	(void)t;
	return !s->knobs.codec;
}

static int out_of_scope(const struct occ_policy *p, const struct occ_site *s,
			const struct occ_transfer *t)
{
	(void)s;
	(void)t;
	return p->scope == OCC_SCOPE_NONE;
}

static int alone(const struct occ_policy *p, const struct occ_site *s, const struct occ_transfer *t)
{
	(void)p;
	(void)s;
	return t->peers < 2;
}

static int inside(const struct occ_policy *p, const struct occ_site *s,
		  const struct occ_transfer *t)
{
	(void)s;
	return p->scope == OCC_SCOPE_INTER_NODE && !t->inter_node;
}

static int early(const struct occ_policy *p, const struct occ_site *s, const struct occ_transfer *t)
{
	(void)p;
	return t->step < s->start_iter;
}

static int hidden(const struct occ_policy *p, const struct occ_site *s,
		  const struct occ_transfer *t)
{
	(void)p;
	(void)s;
	return t->kind != OCC_DP && !t->critical;
}

static int late_stage(const struct occ_policy *p, const struct occ_site *s,
		      const struct occ_transfer *t)
{
	(void)p;
	return t->kind == OCC_DP && t->stage >= s->stages;
}

static int vector(const struct occ_policy *p, const struct occ_site *s,
		  const struct occ_transfer *t)
{
	(void)p;
	(void)s;
	return t->kind == OCC_DP && t->n == 1;
}

static int no_saving(const struct occ_policy *p, const struct occ_site *s,
		     const struct occ_transfer *t)
{
	(void)p;
	if (t->kind != OCC_DP || s->min_ratio <= 0)
		return 0;
	double ratio = occ_route_ratio(s, t);
	return ratio > 0 && ratio <= s->min_ratio;
}

static const struct rule {
	int (*dense)(const struct occ_policy *p, const struct occ_site *s,
		     const struct occ_transfer *t);
	const char *why;
} rules[] = {
	{no_codec, "no codec is set"},
	{out_of_scope, "compress.scope is none"},
	{alone, "nothing travels"},
	{inside, "stays inside a node"},
	{early, "before start_iter"},
	{hidden, "not on the critical path"},
	{late_stage, "a later stage: hidden by the end of the pipeline"},
	{vector, "a vector"},
	{no_saving, "saves no more than min_ratio"},
};

struct occ_route occ_route(const struct occ_policy *p, const struct occ_transfer *t)
{
	if (t->kind > OCC_DP)
		return (struct occ_route){NULL, "this kind always travels dense"};
	const struct occ_site *s = occ_route_site(p, t->kind);
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		if (rules[i].dense(p, s, t))
			return (struct occ_route){NULL, rules[i].why};
	int follows = t->kind == OCC_PP_BACKWARD && occ_route_follows(p);
	return (struct occ_route){s->knobs.codec, t->kind == OCC_DP ? "an early stage"
						  : follows ? "follows its activation's support"
							    : "on the critical path"};
}

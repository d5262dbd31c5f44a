/* The compress section of a configuration as a policy. */
#include "trainer/policy.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

static enum occ_mark mark_of(const char *name)
{
	return !strcmp(name, "tail")    ? OCC_MARK_TAIL
	       : !strcmp(name, "slack") ? OCC_MARK_SLACK
					: OCC_MARK_ALL;
}

static struct occ_knobs knobs_of(const struct occ_config_site *s, enum occ_use use)
{
	return (struct occ_knobs){
		.codec = occ_codec_find(s->codec, use),
		.adaptive = !strcmp(s->codec, "auto"),
		.fp16 = !strcmp(s->type, "fp16"),
		.bits = (int)s->bits,
		.group = s->group,
		.fraction = s->fraction,
		.period = s->period,
		.rank = s->rank,
		.iterations = s->iterations,
		.epsilon = s->epsilon,
	};
}

static struct occ_site link_of(const struct occ_config_site *s)
{
	return (struct occ_site){
		.knobs = knobs_of(s, OCC_USE_TOKENS),
		.mark = mark_of(s->mark),
		.feedback = !strcmp(s->feedback, "lazy"),
		.forget = (float)s->forget,
		.start_iter = s->start_iter,
	};
}

int occ_policy_stages(double stages, int pipeline)
{
	if (stages < 0)
		return pipeline;
	if (stages >= 1)
		return (int)stages;
	int n = (int)lround(stages * pipeline);
	return n > 1 ? n : 1;
}

void occ_policy_of(const struct occ_config *c, struct occ_policy *p)
{
	const struct occ_config_compress *k = &c->compress;
	const struct occ_config_site *dp = &k->data_parallel;
	*p = (struct occ_policy){
		.scope = !strcmp(k->scope, "all")    ? OCC_SCOPE_ALL
			 : !strcmp(k->scope, "none") ? OCC_SCOPE_NONE
						     : OCC_SCOPE_INTER_NODE,
		.undo = c->train.max_skipped > 0,
		.bucket_bytes = (int64_t)(c->parallel.bucket_mb * (1 << 20)),
		.key = occ_rng_key((uint64_t)c->train.seed, OCC_RNG_CODEC),
	};
	p->fused = k->embedding_fused && p->scope != OCC_SCOPE_NONE && c->model.tie_embeddings &&
		   c->parallel.pipeline > 1;
	p->site[OCC_PP_FORWARD] = link_of(&k->pipeline_forward);
	p->site[OCC_PP_BACKWARD] = link_of(&k->pipeline_backward);
	p->site[OCC_DP] = (struct occ_site){
		.knobs = knobs_of(dp, OCC_USE_WEIGHTS),
		.feedback = dp->feedback_on,
		.start_iter = dp->start_iter,
		.min_ratio = dp->min_ratio,
		.stages = occ_policy_stages(dp->stages, (int)c->parallel.pipeline),
	};
}

const char *occ_policy_inactive(const struct occ_policy *p, int compresses)
{
	int set = 0;
	for (int k = 0; k < OCC_NSITES; k++)
		set |= p->site[k].knobs.codec != NULL;
	if (!set || compresses)
		return NULL;
	if (p->scope == OCC_SCOPE_NONE)
		return "compress.scope is none";
	return p->scope == OCC_SCOPE_INTER_NODE
		       ? "no transfer that a codec is set for leaves a node (compress.scope "
			 "\"all\" compresses inside nodes too)"
		       : "no transfer that a codec is set for would gain by it";
}

/* What `slack` reckons with where nothing is measured: the rate of a rank in FLOP/s and its share
 * of the network in bytes/s. */
static const struct profile {
	const char *device;
	double flops, net;
} profiles[] = {
	{"cuda", 1.5e14, 25e9 / 8}, {"", 1e11, 1.25e9}, /* the others */
};

static const struct profile *profile_of(const struct occ_config *c)
{
	const struct profile *at = profiles;
	while (at->device[0] && strcmp(at->device, c->train.device) != 0)
		at++;
	return at;
}

double occ_policy_net(const struct occ_config *c)
{
	return profile_of(c)->net;
}

double occ_policy_flops(const struct occ_config *c)
{
	return profile_of(c)->flops;
}

struct occ_cost occ_policy_cost(const struct occ_config *c)
{
	const struct occ_config_model *m = &c->model;
	double tokens = (double)(c->batch.micro * m->seq_len), h = (double)m->hidden;
	double layers = (double)m->layers / (double)c->parallel.pipeline;
	double flops = tokens * layers * h * (24 * h + 4 * (double)m->seq_len);
	double bytes = tokens * h * (strcmp(c->train.precision, "bf16") ? 4 : 2);
	double T = (double)c->parallel.tensor, send = bytes / T / occ_policy_net(c);
	double forward = flops / T / profile_of(c)->flops;
	return (struct occ_cost){forward, 2 * forward, send, send, send};
}

static void mark(const struct occ_config *c, const struct occ_site *site, enum occ_op send,
		 struct occ_schedule *s)
{
	struct occ_cost cost = occ_policy_cost(c);
	if (site->mark == OCC_MARK_SLACK)
		occ_schedule_mark_slack(s, send, s->nstages, s->nmicro, &cost);
	else
		occ_schedule_mark(s, send, site->mark);
}

/* Activations that no codec is set for are not marked: the default, all, would say nothing. */
void occ_policy_mark(const struct occ_config *c, const struct occ_policy *p, struct occ_schedule *s)
{
	if (p->site[OCC_PP_FORWARD].knobs.codec)
		mark(c, &p->site[OCC_PP_FORWARD], OCC_SEND_ACT, s);
	if (occ_route_follows(p))
		occ_schedule_follow(s);
	else
		mark(c, &p->site[OCC_PP_BACKWARD], OCC_SEND_GRAD, s);
}

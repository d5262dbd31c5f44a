/* What must hold between keys. Each rule is a function; all are tried in order, the first fault
 * counts. */
#include <string.h>

#include "parallel/lane.h"
#include "parallel/topo.h"
#include "trainer/config.h"

#define LL(x) ((long long)(x))

/* Far above any machine and far below where a size in bytes would overflow. */
#define MOST_PARAMETERS 0x1p50
#define MOST_ACTIVATIONS 0x1p46

/* In doubles, which do not wrap: about as many as there will be, padding of the vocabulary
 * included. */
static double parameters(const struct occ_config *c)
{
	const struct occ_config_model *m = &c->model;
	double h = (double)m->hidden,
	       padding = (double)m->vocab_multiple * (double)c->parallel.tensor;
	double rows = (double)m->vocab_size + padding + (double)m->seq_len;
	return 12 * (double)m->layers * h * h + rows * h;
}

static int check_shape(struct occ_config *c, struct occ_err *e)
{
	const struct occ_config_model *m = &c->model;
	if (m->hidden % m->heads)
		return occ_fail(e, OCC_E_CONFIG,
				"model.hidden %lld is not divisible by model.heads %lld",
				LL(m->hidden), LL(m->heads));
	if (m->hidden / m->heads > 256)
		return occ_fail(e, OCC_E_CONFIG,
				"model.hidden %lld / model.heads %lld: heads of more than 256 are "
				"not supported",
				LL(m->hidden), LL(m->heads));
	if (m->heads % c->parallel.tensor)
		return occ_fail(e, OCC_E_CONFIG,
				"model.heads %lld is not divisible by parallel.tensor %lld",
				LL(m->heads), LL(c->parallel.tensor));
	if (m->layers < c->parallel.pipeline)
		return occ_fail(e, OCC_E_CONFIG,
				"model.layers %lld is less than parallel.pipeline %lld: each stage "
				"needs one",
				LL(m->layers), LL(c->parallel.pipeline));
	if (parameters(c) > MOST_PARAMETERS)
		return occ_fail(
			e, OCC_E_CONFIG,
			"model.layers %lld, model.hidden %lld, model.vocab_size %lld padded to a "
			"multiple of %lld x %lld: the model is too large, %.3g parameters",
			LL(m->layers), LL(m->hidden), LL(m->vocab_size), LL(m->vocab_multiple),
			LL(c->parallel.tensor), parameters(c));
	return 0;
}

static int check_ranks(struct occ_config *c, int ranks, struct occ_err *e)
{
	struct occ_layout l = {(int)c->parallel.tensor, (int)c->parallel.pipeline,
			       (int)c->parallel.data};
	if (occ_layout_fit(&l, ranks, e))
		return -1;
	c->parallel.data = l.data;
	return 0;
}

static int check_batch(struct occ_config *c, struct occ_err *e)
{
	int64_t unit = c->batch.micro * c->parallel.data;
	if (c->batch.global % unit) {
		int64_t below = c->batch.global / unit * unit;
		int64_t near =
			below > 0 && c->batch.global - below <= unit / 2 ? below : below + unit;
		return occ_fail(
			e, OCC_E_CONFIG,
			"batch.global %lld is not divisible by batch.micro %lld x %lld replicas; "
			"the nearest that is: %lld",
			LL(c->batch.global), LL(c->batch.micro), LL(c->parallel.data), LL(near));
	}
	double tokens = (double)c->batch.micro * (double)c->model.seq_len;
	if (tokens * (double)c->model.hidden * 64 > MOST_ACTIVATIONS)
		return occ_fail(e, OCC_E_CONFIG,
				"batch.micro %lld x model.seq_len %lld: a micro-batch is too large",
				LL(c->batch.micro), LL(c->model.seq_len));
	return 0;
}

/* Positions in the data are counted in int64_t. */
static int check_length(struct occ_config *c, struct occ_err *e)
{
	int64_t tokens = c->batch.global * c->model.seq_len; /* both are at most 2^24 */
	if (c->train.iters > INT64_MAX / tokens)
		return occ_fail(e, OCC_E_CONFIG,
				"train.iters %lld x batch.global %lld x model.seq_len %lld: more "
				"tokens than can be counted; at most %lld steps",
				LL(c->train.iters), LL(c->batch.global), LL(c->model.seq_len),
				LL(INT64_MAX / tokens));
	return 0;
}

static int check_files(struct occ_config *c, struct occ_err *e)
{
	if (c->checkpoint.every > 0 && !c->checkpoint.dir[0])
		return occ_fail(e, OCC_E_CONFIG, "checkpoint.every %lld needs checkpoint.dir",
				LL(c->checkpoint.every));
	if (c->log.tensorboard && !c->log.dir[0])
		return occ_fail(e, OCC_E_CONFIG, "log.tensorboard needs log.dir");
	if (c->log.trace_iters.n > 0 && !c->log.dir[0])
		return occ_fail(e, OCC_E_CONFIG, "log.trace_iters needs log.dir");
	return 0;
}

/* NCCL moves what GPUs hold. */
static int check_transport(const struct occ_config *c, struct occ_err *e)
{
	const char *device = c->train.device;
	if (strcmp(c->parallel.transport, "nccl") != 0)
		return 0;
	if (!occ_lane_built())
		return occ_fail(
			e, OCC_E_CONFIG,
			"parallel.transport nccl: this program was built without CUDA: `make "
			"CUDA=1` builds one with it");
	if (strcmp(device, "cuda") != 0 && strcmp(device, "auto") != 0)
		return occ_fail(e, OCC_E_CONFIG,
				"parallel.transport nccl joins GPUs: train.device \"%s\" needs mpi",
				device);
	return 0;
}

/* What a link's site may not be. */
static int check_link(const struct occ_config *c, const char *name, const struct occ_config_site *s,
		      struct occ_err *e)
{
	double slice = (double)(c->batch.micro * c->model.seq_len) * (double)c->model.hidden;
	if (!strcmp(s->mark, "slack") && c->parallel.pipeline > 64)
		return occ_fail(e, OCC_E_CONFIG,
				"compress.%s.mark: slack simulates at most 64 stages, "
				"parallel.pipeline is %lld",
				name, LL(c->parallel.pipeline));
	if (!strcmp(s->codec, "topk") && slice / (double)c->parallel.tensor > INT32_MAX)
		return occ_fail(e, OCC_E_CONFIG,
				"compress.%s.codec: topk counts at most 2^31 - 1 values of a "
				"micro-batch",
				name);
	return 0;
}

/* Gradients follow the support of activations: no codec of their own. */
static int check_follow(const struct occ_config *c, struct occ_err *e)
{
	const char *back = c->compress.pipeline_backward.codec;
	if (!strcmp(c->compress.pipeline_forward.codec, "dct") && strcmp(back, "none") != 0 &&
	    strcmp(back, "dct") != 0)
		return occ_fail(e, OCC_E_CONFIG,
				"compress.pipeline_backward.codec %s: with dct on "
				"compress.pipeline_forward gradients follow its support; set none "
				"or dct",
				back);
	return 0;
}

static int check_sum(const struct occ_config *c, struct occ_err *e)
{
	const struct occ_config_site *s = &c->compress.data_parallel;
	double T = (double)c->parallel.tensor, h = (double)c->model.hidden;
	double rows = (double)c->model.vocab_size / T + (double)c->model.vocab_multiple;
	rows = rows > 4 * h / T ? rows : 4 * h / T;
	rows = rows > (double)c->model.seq_len ? rows : (double)c->model.seq_len;
	if ((!strcmp(s->codec, "topk") || !strcmp(s->codec, "dct")) && rows * h > INT32_MAX)
		return occ_fail(e, OCC_E_CONFIG,
				"compress.data_parallel.codec: %s counts at most 2^31 - 1 values "
				"of a tensor, and this model has larger ones",
				s->codec);
	if (!strcmp(s->codec, "auto") && !s->feedback_on)
		return occ_fail(e, OCC_E_CONFIG,
				"compress.data_parallel.codec auto needs compress.data_parallel."
				"feedback: the residual is what it goes by");
	if (s->stages > (double)c->parallel.pipeline)
		return occ_fail(
			e, OCC_E_CONFIG,
			"compress.data_parallel.stages %g is more than parallel.pipeline %lld",
			s->stages, LL(c->parallel.pipeline));
	return 0;
}

static int check_compress(struct occ_config *c, struct occ_err *e)
{
	const struct {
		const char *name;
		const struct occ_config_site *site;
	} rows[] = {
		{"pipeline_backward", &c->compress.pipeline_backward},
		{"pipeline_forward", &c->compress.pipeline_forward},
		{"data_parallel", &c->compress.data_parallel},
	};
	for (int i = 0; i < 3; i++) {
		int64_t bits = rows[i].site->bits;
		if (bits != 2 && bits != 4 && bits != 8)
			return occ_fail(e, OCC_E_CONFIG,
					"compress.%s.bits: %lld is not one of 2, 4, 8",
					rows[i].name, LL(bits));
	}
	if (check_link(c, "pipeline_forward", &c->compress.pipeline_forward, e) ||
	    check_link(c, "pipeline_backward", &c->compress.pipeline_backward, e))
		return -1;
	return check_follow(c, e) || check_sum(c, e) ? -1 : 0;
}

int occ_config_check(struct occ_config *c, int ranks, struct occ_err *e)
{
	if (check_shape(c, e) || check_ranks(c, ranks, e) || check_batch(c, e) ||
	    check_length(c, e) || check_files(c, e) || check_compress(c, e) ||
	    check_transport(c, e))
		return -1;
	if (c->optimizer.decay_iters == 0)
		c->optimizer.decay_iters = c->train.iters;
	return 0;
}

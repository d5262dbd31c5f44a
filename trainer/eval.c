/* Validation loss: forward passes over the first global batches of data.valid. */
#include <math.h>
#include <string.h>

#include "trainer/metrics.h"
#include "trainer/run.h"
#include "trainer/stop.h"

/* Samples of data.valid; middle stages have not opened it. Collective. */
static int64_t count_samples(struct occ_run *r)
{
	int64_t n = r->valid ? occ_data_samples(r->valid) : 0;
	occ_comm_max_int64(r->world, &n, 1);
	return n;
}

static void forward_batch(struct occ_run *r, int64_t batch, int64_t limit,
			  const struct occ_schedule *list)
{
	struct occ_gpt_batch b = {
		.tokens = r->tokens,
		.nmicro = (int)r->nmicro,
		.grad_scale = 1.0f,
		.train = 0,
	};
	occ_run_tokens(r, r->valid, batch, 0, limit);
	occ_gpt_begin(&r->gpt, &b);
	occ_exec_step(&r->exec, list, r->step);
}

/* Activations travel masked in training, by a codec that keeps nothing from one to the next: the
 * model may have learnt to rely on it. */
static int is_masked(const struct occ_run *r)
{
	const struct occ_site *s = &r->policy.site[OCC_PP_FORWARD];
	return r->compresses && s->knobs.codec && !s->knobs.codec->state;
}

/* Mean loss over `batches` with one list; adds to v what is known. Collective. */
static double pass(struct occ_run *r, const struct occ_schedule *list, int stoppable,
		   struct occ_eval *v)
{
	int64_t n = count_samples(r), stop = 0;
	int64_t batches = (n + r->conf.batch.global - 1) / r->conf.batch.global;
	int counts = r->topo.place.pp == r->topo.layout.pipeline - 1 && r->topo.place.tp == 0;
	double sum[2] = {0, 0};
	if (batches > r->conf.eval.iters)
		batches = r->conf.eval.iters;
	for (int64_t i = 0; i < batches && !stop; i++) {
		forward_batch(r, i, n, list);
		sum[0] += counts ? occ_gpt_loss(&r->gpt) : 0;
		sum[1] += counts ? (double)r->gpt.loss_tokens : 0;
		stop = stoppable && occ_stop_wanted(0);
		occ_comm_max_int64(r->world, &stop, 1);
	}
	occ_comm_sum_double(r->world, sum, 2);
	v->tokens = (int64_t)sum[1];
	v->stopped |= (int)stop;
	return sum[1] > 0 ? sum[0] / sum[1] : NAN;
}

struct occ_eval occ_run_eval(struct occ_run *r, int stoppable)
{
	struct occ_eval v = {.masked_loss = NAN};
	struct occ_traffic before[OCC_NKINDS];
	/* a step's figures are of training alone */
	memcpy(before, r->topo.traffic, sizeof(before));
	v.loss = pass(r, &r->eval_sched, stoppable, &v);
	if (is_masked(r) && !v.stopped)
		v.masked_loss = pass(r, &r->masked_sched, stoppable, &v);
	memcpy(r->topo.traffic, before, sizeof(before));
	return v;
}

static void say(const struct occ_eval *v)
{
	printf("loss %.6f  perplexity %.4f  (%lld tokens of data.valid)\n", v->loss, exp(v->loss),
	       (long long)v->tokens);
	if (isfinite(v->masked_loss))
		printf("with activations compressed: loss %.6f  perplexity %.4f\n", v->masked_loss,
		       exp(v->masked_loss));
}

int occ_eval_main(struct occ_comm *world, void *args)
{
	struct occ_run r;
	int code = occ_run_open(&r, args, world, OCC_NEED_VALID);
	if (!code) {
		struct occ_eval v = occ_run_eval(&r, 0);
		if (world->rank == 0)
			say(&v);
		struct occ_err e = {0};
		if (!isfinite(v.loss))
			occ_fail(&e, OCC_E_NUMERIC, "the validation loss is not finite");
		code = occ_agree(world, &e);
	}
	occ_run_close(&r);
	return code;
}

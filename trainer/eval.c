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

static void forward_batch(struct occ_run *r, int64_t batch, int64_t limit, struct occ_stage *stage)
{
	struct occ_gpt_batch b = {
		.tokens = r->tokens,
		.nmicro = (int)r->nmicro,
		.grad_scale = 1.0f,
		.train = 0,
	};
	occ_run_tokens(r, r->valid, batch, 0, limit);
	occ_gpt_begin(&r->gpt, &b);
	occ_exec_step(&r->exec, &r->eval_sched, stage);
}

int occ_run_eval(struct occ_run *r, int stoppable, double *loss, int64_t *tokens)
{
	const struct occ_config *c = &r->conf;
	int64_t n = count_samples(r), stop = 0;
	int64_t batches = (n + c->batch.global - 1) / c->batch.global;
	int counts = r->topo.place.pp == r->topo.layout.pipeline - 1 && r->topo.place.tp == 0;
	struct occ_traffic before[OCC_NKINDS];
	struct occ_stage stage;
	double sum[2] = {0, 0};
	if (batches > c->eval.iters)
		batches = c->eval.iters;
	memcpy(before, r->topo.traffic,
	       sizeof(before)); /* a step's figures are of training alone */
	occ_gpt_stage(&r->gpt, &stage);
	for (int64_t i = 0; i < batches && !stop; i++) {
		forward_batch(r, i, n, &stage);
		sum[0] += counts ? r->gpt.loss_sum : 0;
		sum[1] += counts ? (double)r->gpt.loss_tokens : 0;
		stop = stoppable && occ_stop_wanted(0);
		occ_comm_max_int64(r->world, &stop, 1);
	}
	memcpy(r->topo.traffic, before, sizeof(before));
	occ_comm_sum_double(r->world, sum, 2);
	*loss = sum[1] > 0 ? sum[0] / sum[1] : NAN;
	*tokens = (int64_t)sum[1];
	return (int)stop;
}

int occ_eval_main(struct occ_comm *world, void *args)
{
	struct occ_run r;
	double loss;
	int64_t tokens;
	int code = occ_run_open(&r, args, world, OCC_NEED_VALID);
	if (!code) {
		occ_run_eval(&r, 0, &loss, &tokens);
		if (world->rank == 0)
			printf("loss %.6f  perplexity %.4f  (%lld tokens of data.valid)\n", loss,
			       exp(loss), (long long)tokens);
		struct occ_err e = {0};
		if (!isfinite(loss))
			occ_fail(&e, OCC_E_NUMERIC, "the validation loss is not finite");
		code = occ_agree(world, &e);
	}
	occ_run_close(&r);
	return code;
}

/* The training loop: read a batch, run the schedule, agree on loss and norm, update, report, save.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "trainer/files.h"
#include "trainer/metrics.h"
#include "trainer/run.h"
#include "trainer/stop.h"
#include "trainer/trace.h"

struct loop {
	struct occ_run run;
	struct occ_metrics metrics;
	struct occ_tracer tracer;
	double step_ms, save_ms; /* of the last step and save: what must fit before a time limit */
	int stopped;
};

/* What all ranks know after a step. */
struct verdict {
	double loss, norm;
	int stop;
};

static void run_schedule(struct loop *l)
{
	struct occ_run *r = &l->run;
	const struct occ_config *c = &r->conf;
	int64_t T = c->model.seq_len, micro = c->batch.micro;
	struct occ_gpt_batch b = {
		.tokens = r->tokens,
		.nmicro = (int)r->nmicro,
		.row0 = r->topo.place.dp * micro * T,
		.row_step = r->topo.layout.data * micro * T,
		.grad_scale = (float)(1.0 / (double)(c->batch.global * T)),
		.step = (uint32_t)r->step,
		.train = 1,
		.dropout_key = occ_rng_key((uint64_t)c->train.seed, OCC_RNG_DROPOUT),
	};
	occ_run_tokens(r, r->train, r->step, c->data.shuffle, -1);
	occ_gpt_begin(&r->gpt, &b);
	occ_exec_step(&r->exec, &r->sched, r->step);
}

/* Loss, norm and the wish to stop, summed over all ranks in rank order. Replicas hold equal
 * gradients after the reduction, so the norm takes replica 0's. Collective. */
static struct verdict agree_step(struct loop *l, const struct occ_weight **worst)
{
	struct occ_run *r = &l->run;
	int last = r->topo.place.pp == r->topo.layout.pipeline - 1 && r->topo.place.tp == 0;
	double tokens = (double)(r->conf.batch.global * r->conf.model.seq_len);
	occ_trace_begin(r->dev->trace, OCC_ACT_OPTIMIZER);
	double part = occ_optim_norm2(&r->optim, worst);
	occ_trace_end(r->dev->trace);
	double v[3] = {
		last ? occ_gpt_loss(&r->gpt) : 0,
		r->topo.place.dp == 0 ? part : 0,
		occ_stop_wanted(60 + 2e-3 * (l->step_ms + l->save_ms)),
	};
	if (occ_fault("loss.nan", r->world->rank))
		v[0] = NAN;
	occ_trace_begin(r->dev->trace, OCC_ACT_WAIT);
	occ_comm_sum_double(r->world, v, 3);
	occ_trace_end(r->dev->trace);
	return (struct verdict){v[0] / tokens, sqrt(v[1]), v[2] > 0};
}

/* A step that is not finite changes nothing; one more than max_skipped in a row ends the run. */
static int skip_step(struct loop *l, const struct verdict *v, const struct occ_weight *worst)
{
	struct occ_run *r = &l->run;
	struct occ_err e = {0};
	r->skipped++;
	if (++r->skipped_in_row > r->conf.train.max_skipped) {
		const char *what = isfinite(v->loss) ? "gradient norm" : "loss";
		if (worst)
			occ_fail(&e, OCC_E_NUMERIC,
				 "step %lld: the %s is not finite (first in the gradient of %s); "
				 "train.max_skipped is %lld",
				 (long long)r->step + 1, what, worst->name,
				 (long long)r->conf.train.max_skipped);
		else if (r->world->rank == r->world->size - 1)
			occ_fail(&e, OCC_E_NUMERIC,
				 "step %lld: the %s is not finite; train.max_skipped is %lld",
				 (long long)r->step + 1, what,
				 (long long)r->conf.train.max_skipped);
	}
	return occ_agree(r->world, &e);
}

/* Passes, sums, agreement, update; returns an exit code, 0 to go on. */
static int advance(struct loop *l, double lr, struct verdict *v)
{
	struct occ_run *r = &l->run;
	const struct occ_config_optimizer *o = &r->conf.optimizer;
	const struct occ_weight *worst = NULL;
	int code = 0;
	run_schedule(l);
	*v = agree_step(l, &worst);
	int counts = isfinite(v->loss) && isfinite(v->norm);
	occ_exec_end(&r->exec, counts || !r->policy.undo);
	if (counts) {
		double clip = o->clip_grad > 0 ? fmin(1.0, o->clip_grad / (v->norm + 1e-6)) : 1.0;
		occ_trace_begin(r->dev->trace, OCC_ACT_OPTIMIZER);
		occ_optim_update(&r->optim, o, lr, clip);
		r->dev->ops->sync(r->dev);
		occ_trace_end(r->dev->trace);
		r->skipped_in_row = 0;
	} else {
		code = skip_step(l, v, worst);
	}
	r->step++;
	return code;
}

/* One step, timed and told; what tracing takes is not its time. */
static int step(struct loop *l, struct verdict *v)
{
	struct occ_run *r = &l->run;
	double lr = occ_lr_at(&r->conf.optimizer, r->conf.train.iters, r->step);
	double before = occ_clock_ms();
	occ_tracer_begin(&l->tracer);
	double from = occ_clock_ms();
	int code = advance(l, lr, v);
	double to = occ_clock_ms();
	l->step_ms = to - from;
	occ_tracer_end(&l->tracer);
	occ_metrics_pause(&l->metrics, from - before + occ_clock_ms() - to);
	if (code || r->step % r->conf.log.every == 0 || r->step == r->conf.train.iters || v->stop)
		occ_metrics_step(&l->metrics, &(struct occ_step_report){v->loss, v->norm, lr});
	return code;
}

/* Bug check: replicas, and the two copies of a tied embedding, hold the same bits. Collective. */
static void check_replicas(struct occ_run *r, const float *master)
{
	struct occ_sum all, tied;
	occ_sum_init(&all);
	occ_sum_init(&tied);
	for (int i = 0; i < r->gpt.weights.n; i++) {
		const struct occ_weight *w = &r->gpt.weights.at[i];
		size_t bytes = (size_t)(w->lrows * w->lcols) * sizeof(*master);
		occ_sum_add(&all, master + w->at, bytes);
		if (!strcmp(w->name, "wte.weight"))
			occ_sum_add(&tied, master + w->at, bytes);
	}
	occ_check(!occ_differs(r->topo.dp, occ_sum_get(&all)),
		  "replicas hold different weights after step %lld", (long long)r->step);
	if (r->topo.embed && r->shape.tied)
		occ_check(!occ_differs(r->topo.embed, occ_sum_get(&tied)),
			  "the copies of the tied embedding differ after step %lld",
			  (long long)r->step);
}

/* Weights that are not finite would be the newest checkpoint, and every resumed run would fail. */
static void check_finite(struct occ_run *r, const float *master, struct occ_err *e)
{
	for (int i = 0; i < r->gpt.weights.n; i++) {
		const struct occ_weight *w = &r->gpt.weights.at[i];
		float poison = 0;
		for (int64_t k = 0; k < w->lrows * w->lcols; k++)
			poison += master[w->at + k] * 0.0f;
		if (poison != 0)
			occ_fail(
				e, OCC_E_NUMERIC,
				"after step %lld: %s is not finite; no checkpoint of it is written",
				(long long)r->step, w->name);
	}
}

/* Collective. Returns the agreed code. */
static int save(struct loop *l)
{
	struct occ_run *r = &l->run;
	struct occ_err e = {0};
	size_t n = (size_t)r->gpt.weights.size;
	double from = occ_clock_ms();
	float *flat = occ_alloc(3 * n, sizeof(float));
	struct occ_ckpt_state s = {
		.weights = &r->gpt.weights,
		.shape = &r->shape,
		.master = flat,
		.m = flat + n,
		.v = flat + 2 * n,
		.step = r->step,
		.skipped = r->skipped,
		.streams = &r->streams,
		.skipped_in_row = r->skipped_in_row,
	};
	occ_optim_get(&r->optim, s.master, s.m, s.v);
	check_replicas(r, s.master);
	check_finite(r, s.master, &e);
	int code = occ_agree(r->world, &e);
	if (!code) {
		occ_ckpt_save(r->conf.checkpoint.dir, r->conf.checkpoint.keep, &r->topo, &s, &e);
		code = occ_agree(r->world, &e);
	}
	occ_free(flat);
	l->save_ms = occ_clock_ms() - from;
	if (!code)
		occ_metrics_checkpoint(&l->metrics, l->save_ms);
	occ_metrics_pause(&l->metrics, l->save_ms);
	return code;
}

/* Collective. After the last step nothing is left to stop: the evaluation is then made in full. */
static int evaluate(struct loop *l, int last)
{
	struct occ_run *r = &l->run;
	struct occ_err e = {0};
	double from = occ_clock_ms();
	struct occ_eval v = occ_run_eval(r, !last);
	l->stopped |= v.stopped;
	if (!l->stopped) /* of fewer batches than asked for, the value would mislead */
		occ_metrics_eval(&l->metrics, &v);
	occ_metrics_pause(&l->metrics, occ_clock_ms() - from);
	if (!isfinite(v.loss) && !l->stopped)
		occ_fail(&e, OCC_E_NUMERIC, "after step %lld: the validation loss is not finite",
			 (long long)r->step);
	return occ_agree(r->world, &e);
}

/* checkpoint.dir is tried before the first step: at the first save a run would be lost. Collective.
 */
static int check_dir(struct occ_run *r)
{
	const char *dir = r->conf.checkpoint.dir;
	struct occ_err e = {0};
	if (dir[0] && !occ_dir_make(dir, (struct occ_io){.code = OCC_E_CKPT}, &e) &&
	    access(dir, W_OK | X_OK))
		occ_fail(&e, OCC_E_CKPT, "checkpoint.dir %s: cannot be written: %s", dir,
			 strerror(errno));
	return occ_agree(r->world, &e);
}

/* 1 if the checkpoint that the run began with lies in checkpoint.dir. */
static int is_home(const struct occ_run *r)
{
	const char *dir = r->conf.checkpoint.dir;
	return r->resumed[0] && !strncmp(r->resumed, dir, strlen(dir));
}

static int due(int64_t step, int64_t every)
{
	return every > 0 && step % every == 0;
}

static int loop(struct loop *l)
{
	struct occ_run *r = &l->run;
	const struct occ_config *c = &r->conf;
	int code = 0, saves = c->checkpoint.dir[0] != '\0', saved = 0;
	if (r->step >= c->train.iters && r->world->rank == 0)
		printf("nothing to train: step %lld of %lld is done\n", (long long)r->step,
		       (long long)c->train.iters);
	while (!code && !l->stopped && r->step < c->train.iters) {
		struct verdict v = {0};
		if ((code = step(l, &v)))
			break;
		l->stopped = v.stop;
		int last = r->step == c->train.iters;
		if (!l->stopped && c->data.valid.n && (due(r->step, c->eval.every) || last))
			code = evaluate(l, last);
		if (code)
			break;
		saved = saves && (l->stopped || last || due(r->step, c->checkpoint.every));
		if (saved)
			code = save(l);
		if (last)
			l->stopped = 0; /* nothing is left to stop */
	}
	/* no step was to be done: what was loaded is saved all the same; iters 0 also in this
	 * layout where the directory has it already */
	int wanted = !is_home(r) || c->train.iters == 0;
	if (!code && saves && !saved && !l->stopped && wanted)
		code = save(l);
	return code;
}

int occ_train_main(struct occ_comm *world, void *args)
{
	struct loop l = {0};
	int code = occ_run_open(&l.run, args, world, OCC_NEED_TRAIN | OCC_NEED_VALID);
	if (!code)
		code = check_dir(&l.run);
	if (!code)
		code = occ_metrics_open(&l.metrics, &l.run);
	if (!code) {
		occ_tracer_open(&l.tracer, &l.run);
		code = loop(&l);
		const char *why = code ? "failed" : l.stopped ? "stopped" : "finished";
		occ_metrics_close(&l.metrics, why);
		if (!code && l.stopped)
			code = OCC_E_STOPPED;
	}
	occ_tracer_close(&l.tracer);
	occ_run_close(&l.run);
	return code;
}

/* Rank 0 speaks. Numbers come from all ranks by one reduction a line. */
#include "trainer/metrics.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "trainer/tensorboard.h"
#include "trainer/version.h"

/* Floating-point operations of one token, forward and backward: 6 x parameters without positions,
 * plus attention's 12 x layers x hidden x seq_len. */
static double flops_per_token(const struct occ_gpt_shape *s)
{
	double n = (double)(occ_gpt_parameters(s) - s->seq_len * s->hidden);
	return 6.0 * n + 12.0 * (double)s->layers * (double)s->hidden * (double)s->seq_len;
}

/* A number, or null for what JSON cannot hold. */
static void add_number(cJSON *o, const char *key, double v)
{
	if (isfinite(v))
		cJSON_AddNumberToObject(o, key, v);
	else
		cJSON_AddNullToObject(o, key);
}

static void put_event(struct occ_metrics *m, cJSON *o)
{
	char *line = m->jsonl ? cJSON_PrintUnformatted(o) : NULL;
	if (line && (fprintf(m->jsonl, "%s\n", line) < 0 || fflush(m->jsonl)))
		occ_die(OCC_E_CKPT, "%s/metrics.jsonl: cannot be written: %s", m->run->conf.log.dir,
			strerror(errno));
	cJSON_free(line);
	cJSON_Delete(o);
}

static cJSON *event(const char *name)
{
	cJSON *o = cJSON_CreateObject();
	cJSON_AddStringToObject(o, "event", name);
	return o;
}

/* The checkpoint that the run goes on from has residuals, or the run will have. */
static int has_resumed_streams(const struct occ_run *r)
{
	return r->resumed[0] && (r->compresses || r->resumed_streams.norm > 0);
}

static void put_start(struct occ_metrics *m)
{
	struct occ_run *r = m->run;
	const struct occ_layout *l = &r->topo.layout;
	cJSON *o = event("start"), *layout = cJSON_AddObjectToObject(o, "layout");
	cJSON_AddStringToObject(o, "version", OCC_VERSION);
	add_number(o, "ranks", r->world->size);
	add_number(layout, "tensor", l->tensor);
	add_number(layout, "pipeline", l->pipeline);
	add_number(layout, "data", l->data);
	add_number(layout, "micro_batches", (double)r->nmicro);
	add_number(o, "parameters", (double)occ_gpt_parameters(&r->shape));
	add_number(o, "iter", (double)r->step);
	add_number(o, "iters", (double)r->conf.train.iters);
	add_number(o, "threads", r->dev->threads);
	cJSON_AddStringToObject(o, "device", r->dev->ops->name);
	cJSON_AddStringToObject(o, "precision", r->conf.train.precision);
	cJSON_AddStringToObject(o, "transport", r->world->ops->name);
	cJSON_AddStringToObject(o, "resumed", r->resumed);
	if (has_resumed_streams(r)) {
		cJSON *c = cJSON_AddObjectToObject(o, "compression_state");
		add_number(c, "kept", r->resumed_streams.exact);
		add_number(c, "moved", r->resumed_streams.moved);
		add_number(c, "new", r->resumed_streams.fresh);
		add_number(c, "norm", r->resumed_streams.norm);
		add_number(c, "dropped_norm", r->resumed_streams.dropped);
	}
	char *text = occ_opts_json(&occ_config_opts, &r->conf);
	cJSON_AddItemToObject(o, "config", cJSON_Parse(text));
	occ_free(text);
	put_event(m, o);
}

/* What became of the residuals of a checkpoint. */
static void say_streams(const struct occ_run *r)
{
	if (!has_resumed_streams(r))
		return;
	printf("compression state: %.0f residuals kept as they were, %.0f moved to this layout, "
	       "%.0f new; norm %.4g, of which %.4g dropped\n",
	       r->resumed_streams.exact, r->resumed_streams.moved, r->resumed_streams.fresh,
	       r->resumed_streams.norm, r->resumed_streams.dropped);
}

static void say_start(const struct occ_run *r)
{
	const struct occ_layout *l = &r->topo.layout;
	printf("%.2fM parameters, %lld layers; %d rank%s = tp %d x pp %d x dp %d over %s, "
	       "%d thread%s each, %s %s\n",
	       (double)occ_gpt_parameters(&r->shape) / 1e6, (long long)r->shape.layers,
	       r->world->size, r->world->size == 1 ? "" : "s", l->tensor, l->pipeline, l->data,
	       r->world->ops->name, r->dev->threads, r->dev->threads == 1 ? "" : "s",
	       r->dev->ops->name, r->conf.train.precision);
	if (l->pipeline > 1) {
		printf("layers of each stage:");
		for (int s = 0; s < l->pipeline; s++) {
			int first,
				n = occ_stage_layers((int)r->shape.layers, l->pipeline, s, &first);
			printf(" %d (%d-%d)", n, first, first + n - 1);
		}
		printf("; %lld micro-batches\n", (long long)r->nmicro);
	}
	const char *dense = occ_policy_inactive(&r->policy, r->compresses);
	if (dense)
		printf("compression inactive: %s\n", dense);
	if (r->resumed[0])
		printf("resumed from %s at step %lld\n", r->resumed, (long long)r->step);
	say_streams(r);
	fflush(stdout);
}

int occ_metrics_open(struct occ_metrics *m, struct occ_run *run)
{
	struct occ_err e = {0};
	memset(m, 0, sizeof(*m));
	m->run = run;
	occ_metrics_files(m, &e);
	int code = occ_agree(run->world, &e);
	if (code)
		return code;
	m->since_ms = m->started_ms = occ_clock_ms();
	m->since_step = m->started_step = run->step;
	if (run->world->rank == 0) {
		put_start(m);
		say_start(run);
	}
	return 0;
}

void occ_metrics_close(struct occ_metrics *m, const char *why)
{
	if (!m->run)
		return;
	if (m->run->world->rank == 0 && why) {
		cJSON *o = event("end");
		add_number(o, "iter", (double)m->run->step);
		cJSON_AddStringToObject(o, "why", why);
		add_number(o, "seconds", 1e-3 * (occ_clock_ms() - m->started_ms));
		put_event(m, o);
	}
	if (m->board)
		fclose(m->board); /* each record was flushed */
	if (m->jsonl && fclose(m->jsonl))
		occ_die(OCC_E_CKPT, "%s/metrics.jsonl: cannot be written: %s", m->run->conf.log.dir,
			strerror(errno));
	memset(m, 0, sizeof(*m));
}

/* The sums of all ranks; what is derived from them stands in traffic_json. */
enum field {
	MESSAGES,
	RAW,
	WIRE,
	INTER_RAW,
	INTER_WIRE,
	ENCODE_MS,
	DECODE_MS,
	EXPOSED_MS,
	RESIDUAL2, /* of all streams: ||E||^2, and the mean ||X + E||^2 of a message */
	INPUT2,
	NFIELDS
};
static const char *const field_name[RESIDUAL2] = {
	"messages",  "raw_bytes", "wire_bytes", "inter_node_raw_bytes", "inter_node_wire_bytes",
	"encode_ms", "decode_ms", "exposed_ms",
};

static void take_stream(void *arg, enum occ_kind kind, const char *name, struct occ_stream *s)
{
	double(*sum)[NFIELDS] = arg;
	(void)name;
	sum[kind][RESIDUAL2] += occ_stream_residual2(s);
	occ_stream_settle(s);
	sum[kind][INPUT2] += s->x_count ? s->x_norm2 / (double)s->x_count : 0;
	s->x_norm2 = 0;
	s->x_count = 0;
}

/* Sums of all ranks since the last call, [kind][field]; resets the counters. Collective. */
static void take_traffic(struct occ_run *r, double sum[OCC_NKINDS][NFIELDS])
{
	memset(sum, 0, OCC_NKINDS * sizeof(*sum));
	for (int k = 0; k < OCC_NKINDS; k++) {
		const struct occ_traffic *t = &r->topo.traffic[k];
		const double row[RESIDUAL2] = {
			[MESSAGES] = (double)t->messages,
			[RAW] = (double)t->raw_bytes,
			[WIRE] = (double)t->wire_bytes,
			[INTER_RAW] = (double)t->inter_node_raw_bytes,
			[INTER_WIRE] = (double)t->inter_node_wire_bytes,
			[ENCODE_MS] = t->encode_ms,
			[DECODE_MS] = t->decode_ms,
			[EXPOSED_MS] = t->exposed_ms,
		};
		memcpy(sum[k], row, sizeof(row));
	}
	memset(r->topo.traffic, 0, sizeof(r->topo.traffic));
	occ_exec_streams(&r->exec, take_stream, sum);
	occ_comm_sum_double(r->world, &sum[0][0], OCC_NKINDS * NFIELDS);
}

static cJSON *traffic_json(double sum[OCC_NKINDS][NFIELDS])
{
	cJSON *all = cJSON_CreateObject();
	for (int k = 0; k < OCC_NKINDS; k++) {
		cJSON *o = cJSON_AddObjectToObject(all, occ_kind_name[k]);
		for (int f = 0; f < RESIDUAL2; f++)
			add_number(o, field_name[f], sum[k][f]);
		add_number(o, "ratio", sum[k][WIRE] > 0 ? sum[k][RAW] / sum[k][WIRE] : 1);
		add_number(o, "residual_norm", sqrt(sum[k][RESIDUAL2]));
		add_number(o, "input_norm", sqrt(sum[k][INPUT2]));
	}
	return all;
}

static void board_step(const struct occ_metrics *m, const struct occ_step_report *s, double per_s)
{
	const struct {
		const char *tag;
		double value;
	} rows[] = {
		{"loss", s->loss},
		{"grad_norm", s->grad_norm},
		{"lr", s->lr},
		{"tokens_per_s", per_s},
	};
	for (size_t i = 0; m->board && i < sizeof(rows) / sizeof(rows[0]); i++)
		occ_tensorboard_scalar(m->board, rows[i].tag, m->run->step, (float)rows[i].value);
}

/* Percentage of all payload that did not have to be sent. */
static double saved_percent(double sum[OCC_NKINDS][NFIELDS])
{
	double raw = 0, wire = 0;
	for (int k = 0; k < OCC_NKINDS; k++) {
		raw += sum[k][RAW];
		wire += sum[k][WIRE];
	}
	return raw > 0 ? 100 * (1 - wire / raw) : 0;
}

/* NaN without the sign that printf would show. */
static double plain(double v)
{
	return isnan(v) ? (double)NAN : v;
}

static int counted(const struct occ_step_report *s)
{
	return isfinite(s->loss) && isfinite(s->grad_norm);
}

static void say_step(const struct occ_metrics *m, const struct occ_step_report *s, double per_s,
		     double saved)
{
	const struct occ_run *r = m->run;
	int64_t left = r->conf.train.iters - r->step, done = r->step - m->started_step;
	long eta = lround(1e-3 * (occ_clock_ms() - m->started_ms) / (double)done * (double)left);
	char bar[48] = "";
	if (isatty(STDOUT_FILENO) &&
	    strcmp(r->world->ops->name, "mpi")) { /* mpirun gives ranks a pty */
		int full = (int)(20 * r->step / r->conf.train.iters);
		snprintf(bar, sizeof(bar), " [%.*s%.*s]", full, "####################", 20 - full,
			 "....................");
	}
	printf("step %lld/%lld  loss %.4f  norm %.3f%s  lr %.3g  %.0f tok/s  wire saved %.0f%%  "
	       "eta %ld:%02ld%s\n",
	       (long long)r->step, (long long)r->conf.train.iters, plain(s->loss),
	       plain(s->grad_norm), counted(s) ? "" : "  skipped", s->lr, per_s, saved, eta / 60,
	       eta % 60, bar);
	fflush(stdout);
}

void occ_metrics_step(struct occ_metrics *m, const struct occ_step_report *s)
{
	struct occ_run *r = m->run;
	double sum[OCC_NKINDS][NFIELDS], now = occ_clock_ms();
	double step_ms = (now - m->since_ms) / (double)(r->step - m->since_step);
	double tokens = (double)(r->conf.batch.global * r->conf.model.seq_len),
	       per_s = 1e3 * tokens / step_ms;
	double peak = r->conf.log.peak_gflops * 1e9 * r->world->size;
	take_traffic(r, sum);
	m->since_ms = now;
	m->since_step = r->step;
	if (r->world->rank != 0)
		return;
	cJSON *o = event("train");
	add_number(o, "iter", (double)r->step);
	add_number(o, "loss", s->loss);
	add_number(o, "grad_norm", s->grad_norm);
	add_number(o, "lr", s->lr);
	add_number(o, "tokens", tokens * (double)r->step);
	add_number(o, "step_ms", step_ms);
	add_number(o, "tokens_per_s", per_s);
	add_number(o, "mfu", peak > 0 ? per_s * flops_per_token(&r->shape) / peak : NAN);
	add_number(o, "skipped", (double)r->skipped);
	if (!counted(s))
		cJSON_AddTrueToObject(o, "nonfinite");
	cJSON_AddItemToObject(o, "comm", traffic_json(sum));
	put_event(m, o);
	board_step(m, s, per_s);
	say_step(m, s, per_s, saved_percent(sum));
}

void occ_metrics_pause(struct occ_metrics *m, double ms)
{
	m->since_ms += ms;
}

static void say_eval(const struct occ_run *r, const struct occ_eval *v)
{
	printf("eval at step %lld  loss %.4f  perplexity %.3f  (%lld tokens)", (long long)r->step,
	       plain(v->loss), plain(exp(v->loss)), (long long)v->tokens);
	if (isfinite(v->masked_loss))
		printf("  with activations compressed %.4f", v->masked_loss);
	putchar('\n');
	fflush(stdout);
}

void occ_metrics_eval(struct occ_metrics *m, const struct occ_eval *v)
{
	if (m->run->world->rank != 0)
		return;
	cJSON *o = event("eval");
	add_number(o, "iter", (double)m->run->step);
	add_number(o, "loss", v->loss);
	add_number(o, "perplexity", exp(v->loss));
	add_number(o, "tokens", (double)v->tokens);
	if (isfinite(v->masked_loss))
		add_number(o, "masked_loss", v->masked_loss);
	if (!isfinite(v->loss))
		cJSON_AddTrueToObject(o, "nonfinite");
	put_event(m, o);
	if (m->board)
		occ_tensorboard_scalar(m->board, "valid_loss", m->run->step, (float)v->loss);
	say_eval(m->run, v);
}

void occ_metrics_checkpoint(struct occ_metrics *m, double ms)
{
	if (m->run->world->rank != 0)
		return;
	cJSON *o = event("checkpoint");
	add_number(o, "iter", (double)m->run->step);
	add_number(o, "seconds", 1e-3 * ms);
	put_event(m, o);
	printf("checkpoint of step %lld in %s (%.1f s)\n", (long long)m->run->step,
	       m->run->conf.checkpoint.dir, 1e-3 * ms);
	fflush(stdout);
}

/* `occ-train plan`: what a step will send and hold, found by running one, rank by rank, on a device
 * and a transport that only count. Nothing is reckoned twice: the schedule, the routes, the model
 * and the sums are the run's own code, so messages and bytes are the run's. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/run.h"

struct stage_memory {
	double weights, optimizer, activations, compression;
};

/* Why tensors or transfers of a kind travel as they do: codec and reason, counted. */
struct reason {
	const char *codec, *why;
	int64_t messages;
	double raw, wire;
};

enum { MOST_REASONS = 32 };

struct plan {
	struct occ_config conf;
	int ranks;
	struct occ_layout layout;
	struct occ_gpt_shape shape;
	struct occ_policy policy;
	int64_t nmicro, rows; /* rows: of a micro-batch */
	enum occ_type type;
	int compresses;                         /* some transfer is */
	struct occ_traffic traffic[OCC_NKINDS]; /* of one step, all ranks */
	struct stage_memory *stage;             /* [pipeline], the largest rank's; owned */
	struct reason reason[OCC_NSITES][MOST_REASONS + 1]; /* the last stays empty */
};

/* One rank of a dry run. */
struct dry_rank {
	struct occ_comm *world;
	struct occ_topo topo;
	struct occ_device *dev;
	struct occ_group tp;
	struct occ_gpt gpt;
	struct occ_stage stage;
	struct occ_optim optim;
	struct occ_exec exec;
	struct occ_schedule sched;
	int32_t *tokens;
	size_t counted;
};

/* Bytes that the device was asked for since the last call. */
static double taken(struct dry_rank *r)
{
	size_t all = occ_device_dry_bytes(r->dev), since = all - r->counted;
	r->counted = all;
	return (double)since;
}

static void keep_largest(struct stage_memory *m, const struct stage_memory *one)
{
	m->weights = fmax(m->weights, one->weights);
	m->activations = fmax(m->activations, one->activations);
	m->optimizer = fmax(m->optimizer, one->optimizer);
	m->compression = fmax(m->compression, one->compression);
}

/* Rank, device and schedule. */
static void dry_place(struct plan *p, int rank, struct dry_rank *r)
{
	const struct occ_config *c = &p->conf;
	struct occ_err never = {0};
	int per_node = (int)c->parallel.ranks_per_node;
	memset(r, 0, sizeof(*r));
	r->world = occ_comm_open_dry(rank, p->ranks);
	occ_topo_init(&r->topo, r->world, &p->layout, per_node > 0 ? per_node : p->ranks,
		      p->policy.fused);
	r->dev = occ_device_open("dry", p->type, 1, &never);
	occ_group_init(&r->tp, r->topo.tp, r->dev, SIZE_MAX / 4);
	occ_schedule_1f1b(&r->sched, r->topo.place.pp, p->layout.pipeline, (int)p->nmicro);
	occ_policy_mark(c, &p->policy, &r->sched);
}

/* Opens the parts one by one; what each takes is the stage's memory. The executor is opened without
 * compression first: what it takes more with it is compression's. */
static void dry_open(struct plan *p, int rank, struct dry_rank *r)
{
	const struct occ_config *c = &p->conf;
	struct occ_gpt_memory m;
	struct occ_policy dense = {0};
	dry_place(p, rank, r);
	int slots = r->sched.slots;
	occ_gpt_measure(&p->shape, &p->layout, r->topo.place, p->type, c->batch.micro, slots, &m);
	occ_gpt_init(&r->gpt, &p->shape, &r->topo, r->dev, &r->tp, c->batch.micro, slots);
	occ_gpt_stage(&r->gpt, &r->stage);
	struct occ_exec_conf x = {p->rows, c->model.hidden, slots, &dense, &r->stage};
	taken(r);
	occ_exec_init(&r->exec, &r->topo, r->dev, &r->tp, &x);
	double plain = taken(r);
	occ_exec_release(&r->exec);
	x.policy = &p->policy;
	occ_exec_init(&r->exec, &r->topo, r->dev, &r->tp, &x);
	struct stage_memory one = {
		.weights = (double)(m.weights + m.gradients),
		.activations = (double)m.activations + plain,
		.compression = taken(r) - plain,
	};
	occ_optim_init(&r->optim, &r->gpt);
	one.optimizer = taken(r);
	keep_largest(&p->stage[r->topo.place.pp], &one);
	r->tokens = occ_alloc((size_t)(p->nmicro * c->batch.micro * (c->model.seq_len + 1)),
			      sizeof(*r->tokens));
}

static void dry_close(struct dry_rank *r)
{
	occ_free(r->tokens);
	occ_optim_release(&r->optim);
	occ_exec_release(&r->exec);
	occ_schedule_release(&r->sched);
	occ_gpt_release(&r->gpt);
	occ_group_release(&r->tp);
	occ_device_close(r->dev);
	occ_topo_release(&r->topo);
	occ_comm_close(r->world);
}

static void add_reason(struct plan *p, enum occ_kind kind, struct occ_route route, double raw,
		       double wire)
{
	struct reason *at = p->reason[kind];
	const char *codec = route.codec ? route.codec->name : "none";
	while (at->codec && (strcmp(at->codec, codec) || strcmp(at->why, route.why)) &&
	       at < p->reason[kind] + MOST_REASONS - 1)
		at++;
	p->compresses |= route.codec != NULL;
	at->codec = codec;
	at->why = route.why;
	at->messages++;
	at->raw += raw;
	at->wire += wire;
}

/* The transfers that this rank sends over a link, by route. */
static void explain_link(struct plan *p, struct occ_link *l, const struct occ_schedule *s,
			 enum occ_op op, int64_t step)
{
	for (int i = 0; i < s->n && l->comm && l->bytes; i++) {
		if (s->at[i].op != op)
			continue;
		struct occ_route r = occ_link_route(l, s->at[i].flags & OCC_CRITICAL ? 1 : 0, step);
		size_t wire = r.codec ? occ_link_bound(l) : l->bytes;
		add_reason(p, l->conf.kind, r, (double)l->bytes, (double)wire);
	}
}

/* The tensors of this rank's stage, by route; bytes are of one contributor's message. */
static void explain_sums(struct plan *p, const struct dry_rank *r, int64_t step)
{
	for (int i = 0; i < r->stage.ntensors; i++) {
		const struct occ_tensor *t = &r->stage.tensor[i];
		struct occ_route route = occ_reduce_route(&r->exec.reduce, t, step);
		double raw = (double)(t->n * t->m) * sizeof(float);
		add_reason(p, OCC_DP, route, raw,
			   route.codec ? (double)occ_codec_bound(&p->policy.site[OCC_DP].knobs,
								 t->n, t->m, OCC_F32)
				       : raw);
	}
}

static void add_traffic(struct occ_traffic *sum, const struct occ_traffic *t)
{
	sum->messages += t->messages;
	sum->raw_bytes += t->raw_bytes;
	sum->wire_bytes += t->wire_bytes;
	sum->inter_node_raw_bytes += t->inter_node_raw_bytes;
	sum->inter_node_wire_bytes += t->inter_node_wire_bytes;
}

/* A step after every start_iter. */
static int64_t late_step(const struct plan *p)
{
	int64_t step = 0;
	for (int k = 0; k < OCC_NSITES; k++)
		if (p->policy.site[k].start_iter > step)
			step = p->policy.site[k].start_iter;
	return step;
}

static void run_rank(struct plan *p, int rank)
{
	struct dry_rank r;
	int64_t step = late_step(p);
	dry_open(p, rank, &r);
	struct occ_gpt_batch b = {.tokens = r.tokens, .nmicro = (int)p->nmicro, .train = 1};
	memset(r.topo.traffic, 0, sizeof(r.topo.traffic));
	occ_gpt_begin(&r.gpt, &b);
	occ_exec_step(&r.exec, &r.sched, step);
	for (int k = 0; k < OCC_NKINDS; k++)
		add_traffic(&p->traffic[k], &r.topo.traffic[k]);
	explain_link(p, &r.exec.act_out, &r.sched, OCC_SEND_ACT, step);
	explain_link(p, &r.exec.grad_out, &r.sched, OCC_SEND_GRAD, step);
	explain_sums(p, &r, step);
	dry_close(&r);
}

/* ---- The predicted step: the simulator's, and what follows it. ---- */

/* Raw over wire bytes of a gradient that travels compressed; 1 without a codec. */
static double link_ratio(const struct plan *p)
{
	const struct occ_site *site = occ_route_site(&p->policy, OCC_PP_BACKWARD);
	int64_t n = occ_slice_row(p->rows, 1, p->layout.tensor), m = p->conf.model.hidden;
	if (!site->knobs.codec || n == 0)
		return 1;
	return (double)(n * m) * (double)occ_type_size(p->type) /
	       (double)occ_codec_bound(&site->knobs, n, m, p->type);
}

/* Milliseconds with gradients marked by `mark`. */
static double step_ms(const struct plan *p, enum occ_mark mark)
{
	struct occ_cost cost = occ_policy_cost(&p->conf);
	int P = p->layout.pipeline, M = (int)p->nmicro;
	struct occ_schedule *all = occ_alloc((size_t)P, sizeof(*all));
	struct occ_sim sim;
	cost.send_critical = cost.send_grad / link_ratio(p);
	for (int s = 0; s < P; s++) {
		occ_schedule_1f1b(&all[s], s, P, M);
		if (mark == OCC_MARK_SLACK)
			occ_schedule_mark_slack(&all[s], OCC_SEND_GRAD, P, M, &cost);
		else
			occ_schedule_mark(&all[s], OCC_SEND_GRAD, mark);
	}
	occ_simulate(all, P, &cost, OCC_SEND_POSTED, &sim);
	for (int s = 0; s < P; s++)
		occ_schedule_release(&all[s]);
	occ_free(all);
	double sums =
		(double)(p->traffic[OCC_DP].wire_bytes + p->traffic[OCC_EMBEDDING].wire_bytes) /
		p->ranks / occ_policy_net(&p->conf);
	return (sim.total + sums) * 1e3;
}

static const struct {
	const char *name;
	enum occ_mark mark;
} marks[] = {{"none", OCC_MARK_NONE},
	     {"tail", OCC_MARK_TAIL},
	     {"slack", OCC_MARK_SLACK},
	     {"all", OCC_MARK_ALL}};
enum { NMARKS = sizeof(marks) / sizeof(marks[0]) };

/* The first that is not beaten by more than 1 %: what compresses less is preferred. */
static int recommend(const double ms[NMARKS])
{
	double least = ms[0];
	for (int i = 1; i < NMARKS; i++)
		least = fmin(least, ms[i]);
	for (int i = 0; i < NMARKS; i++)
		if (ms[i] <= 1.01 * least)
			return i;
	return 0;
}

/* ---- Output. ---- */

static double total(const struct stage_memory *m)
{
	return m->weights + m->optimizer + m->activations + m->compression;
}

static cJSON *comm_json(const struct plan *p)
{
	cJSON *all = cJSON_CreateObject();
	for (int k = 0; k < OCC_NKINDS; k++) {
		const struct occ_traffic *t = &p->traffic[k];
		cJSON *o = cJSON_AddObjectToObject(all, occ_kind_name[k]);
		cJSON_AddNumberToObject(o, "messages", (double)t->messages);
		cJSON_AddNumberToObject(o, "raw_bytes", (double)t->raw_bytes);
		cJSON_AddNumberToObject(o, "wire_bytes", (double)t->wire_bytes);
		cJSON_AddNumberToObject(o, "inter_node_raw_bytes", (double)t->inter_node_raw_bytes);
		cJSON_AddNumberToObject(o, "inter_node_wire_bytes",
					(double)t->inter_node_wire_bytes);
		if (k >= OCC_NSITES)
			continue;
		cJSON *routes = cJSON_AddArrayToObject(o, "routes");
		for (const struct reason *r = p->reason[k]; r->codec; r++) {
			cJSON *one = cJSON_CreateObject();
			cJSON_AddStringToObject(one, "codec", r->codec);
			cJSON_AddStringToObject(one, "why", r->why);
			cJSON_AddNumberToObject(one, "count", (double)r->messages);
			cJSON_AddNumberToObject(one, "raw_bytes", r->raw);
			cJSON_AddNumberToObject(one, "wire_bytes", r->wire);
			cJSON_AddItemToArray(routes, one);
		}
	}
	return all;
}

static cJSON *memory_json(const struct plan *p)
{
	cJSON *all = cJSON_CreateArray();
	for (int s = 0; s < p->layout.pipeline; s++) {
		const struct stage_memory *m = &p->stage[s];
		cJSON *o = cJSON_CreateObject();
		cJSON_AddNumberToObject(o, "stage", s);
		cJSON_AddNumberToObject(o, "weights_bytes", m->weights);
		cJSON_AddNumberToObject(o, "optimizer_bytes", m->optimizer);
		cJSON_AddNumberToObject(o, "activation_bytes", m->activations);
		cJSON_AddNumberToObject(o, "compression_bytes", m->compression);
		cJSON_AddNumberToObject(o, "total_bytes", total(m));
		cJSON_AddItemToArray(all, o);
	}
	return all;
}

static const char *const because =
	"the fewest compressed transfers within 1 % of the shortest step";

static void print_json(const struct plan *p, const double ms[NMARKS])
{
	cJSON *o = cJSON_CreateObject();
	cJSON_AddNumberToObject(o, "parameters", (double)occ_gpt_parameters(&p->shape));
	cJSON_AddNumberToObject(o, "ranks", p->ranks);
	cJSON *l = cJSON_AddObjectToObject(o, "layout");
	cJSON_AddNumberToObject(l, "tensor", p->layout.tensor);
	cJSON_AddNumberToObject(l, "pipeline", p->layout.pipeline);
	cJSON_AddNumberToObject(l, "data", p->layout.data);
	cJSON_AddNumberToObject(l, "micro_batches", (double)p->nmicro);
	cJSON_AddItemToObject(o, "memory", memory_json(p));
	cJSON_AddItemToObject(o, "comm", comm_json(p));
	const char *dense = occ_policy_inactive(&p->policy, p->compresses);
	if (dense)
		cJSON_AddStringToObject(o, "inactive", dense);
	cJSON *t = cJSON_AddObjectToObject(o, "step_ms");
	for (int i = 0; i < NMARKS; i++)
		cJSON_AddNumberToObject(t, marks[i].name, ms[i]);
	cJSON *r = cJSON_AddObjectToObject(o, "recommended");
	cJSON_AddStringToObject(r, "mark", marks[recommend(ms)].name);
	cJSON_AddStringToObject(r, "why", because);
	char *text = cJSON_Print(o);
	puts(text);
	cJSON_free(text);
	cJSON_Delete(o);
}

static void print_routes(const struct plan *p)
{
	puts("\nhow it travels (transfers of a step and all ranks; tensors of all ranks for dp)");
	printf("  %-12s %-9s %10s %14s %14s  %s\n", "kind", "codec", "count", "raw bytes",
	       "wire bytes", "why");
	for (int k = 0; k < OCC_NSITES; k++)
		for (const struct reason *r = p->reason[k]; r->codec; r++)
			printf("  %-12s %-9s %10lld %14.0f %14.0f  %s\n", occ_kind_name[k],
			       r->codec, (long long)r->messages, r->raw, r->wire, r->why);
}

static void print_text(const struct plan *p, const double ms[NMARKS])
{
	printf("%lld parameters; %d ranks = tp %d x pp %d x dp %d, %lld micro-batches\n\n",
	       (long long)occ_gpt_parameters(&p->shape), p->ranks, p->layout.tensor,
	       p->layout.pipeline, p->layout.data, (long long)p->nmicro);
	printf("memory of the largest rank of a stage, MB\n  %-6s %10s %10s %12s %12s %10s\n",
	       "stage", "weights", "optimizer", "activations", "compression", "total");
	for (int s = 0; s < p->layout.pipeline; s++) {
		const struct stage_memory *m = &p->stage[s];
		printf("  %-6d %10.1f %10.1f %12.1f %12.1f %10.1f\n", s, m->weights / 1e6,
		       m->optimizer / 1e6, m->activations / 1e6, m->compression / 1e6,
		       total(m) / 1e6);
	}
	printf("\nsent in a step, over all ranks\n  %-12s %10s %14s %14s %14s %7s\n", "kind",
	       "messages", "raw bytes", "wire bytes", "between nodes", "ratio");
	for (int k = 0; k < OCC_NKINDS; k++) {
		const struct occ_traffic *t = &p->traffic[k];
		printf("  %-12s %10lld %14lld %14lld %14lld %7.2f\n", occ_kind_name[k],
		       (long long)t->messages, (long long)t->raw_bytes, (long long)t->wire_bytes,
		       (long long)t->inter_node_wire_bytes,
		       t->wire_bytes ? (double)t->raw_bytes / (double)t->wire_bytes : 1);
	}
	const char *dense = occ_policy_inactive(&p->policy, p->compresses);
	if (dense)
		printf("\ncompression inactive: %s\n", dense);
	print_routes(p);
	printf("\npredicted step, by the marks of pipeline gradients, at %.3g FLOP/s and %.3g "
	       "bytes/s a "
	       "rank (train.device %s)\n",
	       occ_policy_flops(&p->conf), occ_policy_net(&p->conf), p->conf.train.device);
	for (int i = 0; i < NMARKS; i++)
		printf("  %-6s %12.3f ms\n", marks[i].name, ms[i]);
	printf("recommended: mark %s, %s\n", marks[recommend(ms)].name, because);
}

static int load(struct plan *p, const struct occ_args *a, struct occ_err *e)
{
	struct occ_config *c = &p->conf;
	if (occ_config_load(c, a->config, a->sets, a->nsets, e))
		return -1;
	int64_t model = c->parallel.tensor * c->parallel.pipeline;
	int64_t least = model * (c->parallel.data > 0 ? c->parallel.data : 1);
	p->ranks = (int)(a->ranks > 0 ? a->ranks : least);
	if (c->parallel.pipeline > 64)
		return occ_fail(e, OCC_E_CONFIG,
				"parallel.pipeline %lld: plan simulates at most 64 stages",
				(long long)c->parallel.pipeline);
	return occ_config_check(c, p->ranks, e);
}

int occ_plan_main(const struct occ_args *a)
{
	struct plan p = {0};
	struct occ_err e = {0};
	double ms[NMARKS];
	if (load(&p, a, &e)) {
		occ_err_print(&e);
		occ_config_release(&p.conf);
		return e.code;
	}
	const struct occ_config *c = &p.conf;
	p.layout = (struct occ_layout){(int)c->parallel.tensor, (int)c->parallel.pipeline,
				       (int)c->parallel.data};
	p.nmicro = c->batch.global / (c->batch.micro * c->parallel.data);
	p.rows = c->batch.micro * c->model.seq_len;
	p.type = strcmp(c->train.precision, "bf16") ? OCC_F32 : OCC_BF16;
	p.shape = occ_run_shape(c, p.layout.tensor);
	occ_policy_of(c, &p.policy);
	p.stage = occ_alloc((size_t)p.layout.pipeline, sizeof(*p.stage));
	for (int r = 0; r < p.ranks; r++)
		run_rank(&p, r);
	for (int i = 0; i < NMARKS; i++)
		ms[i] = step_ms(&p, marks[i].mark);
	if (a->json)
		print_json(&p, ms);
	else
		print_text(&p, ms);
	occ_free(p.stage);
	occ_config_release(&p.conf);
	return 0;
}

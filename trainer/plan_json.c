/* `plan --json`: one object; its fields are in docs/metrics.md. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "trainer/plan.h"

#define NUMBER(o, key, v) cJSON_AddNumberToObject(o, key, (double)(v))

static cJSON *append(cJSON *array)
{
	cJSON *o = cJSON_CreateObject();
	cJSON_AddItemToArray(array, o);
	return o;
}

static void add_routes(const struct occ_plan *p, int kind, cJSON *to)
{
	cJSON *routes = cJSON_AddArrayToObject(to, "routes");
	for (const struct occ_plan_reason *r = p->reason[kind]; r->codec; r++) {
		cJSON *o = append(routes);
		cJSON_AddStringToObject(o, "codec", r->codec);
		cJSON_AddStringToObject(o, "why", r->why);
		NUMBER(o, "count", r->messages);
		NUMBER(o, "raw_bytes", r->raw);
		NUMBER(o, "wire_bytes", r->wire);
	}
}

static void add_comm(const struct occ_plan *p, cJSON *to)
{
	cJSON *all = cJSON_AddObjectToObject(to, "comm");
	for (int k = 0; k < OCC_NKINDS; k++) {
		const struct occ_traffic *t = &p->traffic[k];
		cJSON *o = cJSON_AddObjectToObject(all, occ_kind_name[k]);
		NUMBER(o, "messages", t->messages);
		NUMBER(o, "raw_bytes", t->raw_bytes);
		NUMBER(o, "wire_bytes", t->wire_bytes);
		NUMBER(o, "inter_node_raw_bytes", t->inter_node_raw_bytes);
		NUMBER(o, "inter_node_wire_bytes", t->inter_node_wire_bytes);
		if (k < OCC_NSITES)
			add_routes(p, k, o);
	}
}

static void add_memory(const struct occ_plan *p, cJSON *to)
{
	cJSON *all = cJSON_AddArrayToObject(to, "memory");
	for (int s = 0; s < p->layout.pipeline; s++) {
		const struct occ_plan_memory *m = &p->stage[s];
		cJSON *o = append(all);
		NUMBER(o, "stage", s);
		NUMBER(o, "weights_bytes", m->weights);
		NUMBER(o, "optimizer_bytes", m->optimizer);
		NUMBER(o, "activation_bytes", m->activations);
		NUMBER(o, "compression_bytes", m->compression);
		NUMBER(o, "total_bytes", occ_plan_memory_total(m));
	}
}

static void add_placement(const struct occ_plan *p, cJSON *to)
{
	cJSON *all = cJSON_AddArrayToObject(to, "placement");
	for (int r = 0; r < p->ranks; r++) {
		struct occ_place at = occ_place_of(&p->layout, r);
		int node = r / p->per_node;
		cJSON *o = append(all);
		NUMBER(o, "rank", r);
		NUMBER(o, "node", node);
		NUMBER(o, "tensor", at.tp);
		NUMBER(o, "data", at.dp);
		NUMBER(o, "pipeline", at.pp);
	}
}

static void add_schedule(const struct occ_plan *p, cJSON *to)
{
	cJSON *all = cJSON_AddArrayToObject(to, "schedule");
	for (int s = 0; s < p->layout.pipeline; s++) {
		char *text = occ_plan_schedule(p, s);
		cJSON_AddItemToArray(all, cJSON_CreateString(text));
		free(text);
	}
}

static void add_links(const struct occ_plan *p, cJSON *to)
{
	cJSON *all = cJSON_AddArrayToObject(to, "links");
	struct occ_plan_link *l = occ_alloc(2 * (size_t)p->layout.pipeline, sizeof(*l));
	int n = occ_plan_links(p, l);
	for (int i = 0; i < n; i++) {
		cJSON *o = append(all);
		cJSON_AddStringToObject(o, "kind", occ_kind_name[l[i].kind]);
		NUMBER(o, "from_stage", l[i].from);
		NUMBER(o, "to_stage", l[i].to);
		cJSON_AddBoolToObject(o, "inter_node", l[i].crosses);
		NUMBER(o, "transfers", l[i].transfers);
		NUMBER(o, "compressed", l[i].compressed);
		NUMBER(o, "dense_bytes", l[i].dense_bytes);
		NUMBER(o, "compressed_bytes", l[i].wire_bytes);
		NUMBER(o, "dense_ms", l[i].dense_ms);
		NUMBER(o, "compressed_ms", l[i].wire_ms);
	}
	occ_free(l);
}

static void add_sums(const struct occ_plan *p, cJSON *to)
{
	const struct occ_plan_rung *last = &p->rung[p->nrungs - 1];
	cJSON *all = cJSON_AddArrayToObject(to, "sums");
	for (int s = 0; s < p->layout.pipeline; s++) {
		double dense = p->rung[0].sent[s].data, wire = last->sent[s].data;
		cJSON *o = append(all);
		NUMBER(o, "stage", s);
		NUMBER(o, "dense_bytes", dense);
		NUMBER(o, "wire_bytes", wire);
		NUMBER(o, "dense_ms", occ_plan_sum_ms(p, s, dense));
		NUMBER(o, "wire_ms", occ_plan_sum_ms(p, s, wire));
	}
	struct occ_plan_embedding e = occ_plan_embedding(p);
	cJSON *o = cJSON_AddObjectToObject(to, "embedding_sum");
	NUMBER(o, "shard_bytes", e.shard_bytes);
	NUMBER(o, "unfused_bytes", e.unfused_bytes);
	NUMBER(o, "fused_bytes", e.fused_bytes);
	NUMBER(o, "unfused_ms", occ_plan_sum_ms(p, 0, e.unfused_bytes));
	NUMBER(o, "fused_ms", occ_plan_sum_ms(p, 0, e.fused_bytes));
}

static void add_tensors(const struct occ_plan *p, cJSON *to)
{
	cJSON *all = cJSON_AddArrayToObject(to, "tensors");
	for (int i = 0; i < p->ntensors; i++) {
		const struct occ_plan_tensor *t = &p->tensor[i];
		cJSON *o = append(all);
		cJSON_AddStringToObject(o, "name", t->name);
		NUMBER(o, "rows", t->n);
		NUMBER(o, "columns", t->m);
		cJSON_AddStringToObject(o, "codec", t->codec);
		NUMBER(o, "ratio", t->ratio);
	}
}

static void put_time(cJSON *o, const struct occ_plan_time *t)
{
	NUMBER(o, "compute_ms", 1e3 * t->compute);
	NUMBER(o, "bubble_ms", 1e3 * t->bubble);
	NUMBER(o, "pipeline_ms", 1e3 * t->pipeline);
	NUMBER(o, "data_parallel_ms", 1e3 * t->data);
	NUMBER(o, "embedding_ms", 1e3 * t->embedding);
	NUMBER(o, "optimizer_ms", 1e3 * t->optimizer);
	NUMBER(o, "total_ms", 1e3 * t->total);
}

static void add_times(const struct occ_plan *p, cJSON *to)
{
	cJSON *totals = cJSON_AddObjectToObject(to, "step_ms");
	cJSON *parts = cJSON_AddObjectToObject(to, "time");
	double ms[OCC_PLAN_MARKS], even = occ_plan_break_even(p);
	for (int i = 0; i < OCC_PLAN_MARKS; i++) {
		struct occ_plan_time t;
		occ_plan_time(p, &p->rung[p->nrungs - 1], (enum occ_mark)i,
			      1e9 * p->hw.node.gbytes_per_s, &t);
		ms[i] = 1e3 * t.total;
		NUMBER(totals, occ_plan_mark_name[i], ms[i]);
		put_time(cJSON_AddObjectToObject(parts, occ_plan_mark_name[i]), &t);
	}
	cJSON *r = cJSON_AddObjectToObject(to, "recommended");
	cJSON_AddStringToObject(r, "mark", occ_plan_mark_name[occ_plan_recommend(ms)]);
	cJSON_AddStringToObject(r, "why", occ_plan_because);
	double *stages = occ_alloc((size_t)p->layout.pipeline + 1, sizeof(*stages));
	int best = occ_plan_stages(p, stages);
	if (best >= 0) {
		cJSON *by = cJSON_AddArrayToObject(to, "stages_ms");
		for (int k = 0; k <= p->layout.pipeline; k++)
			cJSON_AddItemToArray(by, cJSON_CreateNumber(1e3 * stages[k]));
		NUMBER(r, "stages", best);
	}
	occ_free(stages);
	if (isinf(even))
		cJSON_AddNullToObject(to, "break_even_gbytes_per_s");
	else
		NUMBER(to, "break_even_gbytes_per_s", 1e-9 * even);
}

static void add_rungs(const struct occ_plan *p, cJSON *to)
{
	cJSON *all = cJSON_AddArrayToObject(to, "ladder");
	for (int i = 0; i < p->nrungs; i++) {
		cJSON *o = append(all);
		cJSON_AddStringToObject(o, "name", p->rung[i].name);
		cJSON *at = cJSON_AddArrayToObject(o, "at");
		for (int k = 0; k < OCC_PLAN_RATES; k++) {
			struct occ_plan_time t;
			double rate = p->hw.node.gbytes_per_s / occ_plan_slower[k];
			cJSON *one = append(at);
			occ_plan_time(p, &p->rung[i], occ_plan_mark(p), 1e9 * rate, &t);
			NUMBER(one, "node_gbytes_per_s", rate);
			put_time(one, &t);
		}
	}
}

void occ_plan_json(const struct occ_plan *p)
{
	cJSON *o = cJSON_CreateObject();
	NUMBER(o, "parameters", occ_gpt_parameters(&p->shape));
	NUMBER(o, "ranks", p->ranks);
	NUMBER(o, "nodes", p->nodes);
	cJSON *l = cJSON_AddObjectToObject(o, "layout");
	NUMBER(l, "tensor", p->layout.tensor);
	NUMBER(l, "pipeline", p->layout.pipeline);
	NUMBER(l, "data", p->layout.data);
	NUMBER(l, "micro_batches", p->nmicro);
	add_memory(p, o);
	add_comm(p, o);
	const char *dense = occ_policy_inactive(&p->policy, p->compresses);
	if (dense)
		cJSON_AddStringToObject(o, "inactive", dense);
	add_times(p, o);
	add_rungs(p, o);
	add_links(p, o);
	add_sums(p, o);
	add_tensors(p, o);
	add_schedule(p, o);
	add_placement(p, o);
	cJSON_AddStringToObject(o, "measured", occ_plan_measured_what[p->measured]);
	char *hw = occ_opts_json(&occ_hardware_opts, &p->hw);
	cJSON_AddItemToObject(o, "hardware", cJSON_Parse(hw));
	occ_free(hw);
	char *text = cJSON_Print(o);
	puts(text);
	cJSON_free(text);
	cJSON_Delete(o);
}

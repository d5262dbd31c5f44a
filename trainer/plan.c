/* `occ-train plan`: from a configuration and a number of ranks to what a step sends, holds and
 * takes. Opens no data and no weights, needs neither MPI nor a GPU. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/plan.h"

static int load(struct occ_plan *p, struct occ_comm *world, struct occ_err *e)
{
	const struct occ_args *a = p->args;
	struct occ_config *c = &p->conf;
	if (occ_config_load(c, a->config, a->sets, a->nsets, e) ||
	    occ_hardware_load(&p->hw, a->hardware, a->nhardware, e))
		return -1;
	int64_t model = c->parallel.tensor * c->parallel.pipeline;
	int64_t least = model * (c->parallel.data > 0 ? c->parallel.data : 1);
	int64_t started = world && world->size > 1 ? world->size : least;
	if (a->ranks > 1 << 24)
		return occ_fail(e, OCC_E_CONFIG, "--ranks %lld: at most %d", (long long)a->ranks,
				1 << 24);
	if (c->parallel.pipeline > OCC_SIM_STAGES)
		return occ_fail(e, OCC_E_CONFIG,
				"parallel.pipeline %lld: plan simulates at most %d stages",
				(long long)c->parallel.pipeline, OCC_SIM_STAGES);
	p->ranks = (int)(a->ranks > 0 ? a->ranks : started);
	return occ_config_check(c, p->ranks, e);
}

static void derive(struct occ_plan *p)
{
	const struct occ_config *c = &p->conf;
	int64_t set = c->parallel.ranks_per_node, node = set > 0 ? set : p->hw.node.ranks;
	p->layout = (struct occ_layout){(int)c->parallel.tensor, (int)c->parallel.pipeline,
					(int)c->parallel.data};
	p->per_node = node > 0 && node < p->ranks ? (int)node : p->ranks;
	p->nodes = (p->ranks + p->per_node - 1) / p->per_node;
	p->nmicro = c->batch.global / (c->batch.micro * c->parallel.data);
	p->rows = c->batch.micro * c->model.seq_len;
	p->type = strcmp(c->train.precision, "bf16") ? OCC_F32 : OCC_BF16;
	p->shape = occ_run_shape(c, p->layout.tensor);
	occ_policy_of(c, &p->policy);
}

static void show(struct occ_plan *p)
{
	p->stage = occ_alloc((size_t)p->layout.pipeline, sizeof(*p->stage));
	occ_plan_count(p);
	occ_plan_rungs(p);
	if (p->args->trace)
		occ_plan_trace(p, p->args->trace);
	if (p->args->json)
		occ_plan_json(p);
	else
		occ_plan_text(p);
	occ_plan_rungs_release(p);
	occ_free(p->stage);
}

static void release(struct occ_plan *p)
{
	occ_hardware_release(&p->hw);
	occ_config_release(&p->conf);
}

int occ_plan_main(const struct occ_args *a)
{
	struct occ_plan p = {.args = a};
	struct occ_err e = {0};
	if (load(&p, NULL, &e)) {
		occ_err_print(&e);
	} else {
		derive(&p);
		show(&p);
	}
	release(&p);
	return e.code;
}

int occ_plan_measure_main(struct occ_comm *world, void *args)
{
	struct occ_plan p = {.args = args};
	struct occ_err e = {0};
	load(&p, world, &e);
	int code = occ_agree(world, &e);
	if (!code) {
		occ_plan_measure_net(&p, world);
		derive(&p);
		if (world->rank == 0)
			show(&p);
		occ_plan_measured(world);
	}
	release(&p);
	return code;
}

/* Opening, running and closing one rank without the others. */
#include "trainer/plan_rank.h"

#include <sched.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

static void open_place(const struct occ_plan *p, const struct occ_policy *policy, int rank,
		       struct occ_plan_rank *r)
{
	r->world = occ_comm_open_dry(rank, p->ranks);
	occ_topo_init(&r->topo, r->world, &p->layout, p->per_node, policy->fused);
}

static double machine_ms(void *clock)
{
	(void)clock;
	return occ_clock_ms();
}

/* As a run where all ranks of a node may use the same cores. */
static int threads_for(const struct occ_plan *p)
{
	cpu_set_t mine;
	CPU_ZERO(&mine);
	sched_getaffinity(0, sizeof(mine), &mine);
	int share = CPU_COUNT(&mine) / p->per_node;
	return p->conf.train.threads > 0 ? (int)p->conf.train.threads : share > 1 ? share : 1;
}

/* device NULL: dry, and its clock is the trace's. */
static void open_device(const struct occ_plan *p, const char *device, struct occ_plan_rank *r)
{
	struct occ_rates rates = occ_hardware_rates(&p->hw);
	struct occ_err e = {0};
	int threads = threads_for(p);
	r->dev = occ_device_open(device ? device : "dry", p->type, threads, &e);
	if (!r->dev)
		occ_die(e.code, "%s", e.text);
	if (!device)
		occ_device_dry_rates(r->dev, &rates);
	occ_trace_init(&r->trace, device ? machine_ms : occ_device_dry_ms, r->dev);
}

static void open_model(const struct occ_plan *p, const struct occ_policy *policy, int nmicro,
		       struct occ_plan_rank *r)
{
	const struct occ_config *c = &p->conf;
	size_t n = (size_t)(nmicro * c->batch.micro * (c->model.seq_len + 1));
	r->nmicro = nmicro;
	occ_group_init(&r->tp, r->topo.tp, r->dev, SIZE_MAX / 4);
	occ_schedule_1f1b(&r->sched, r->topo.place.pp, p->layout.pipeline, nmicro);
	occ_policy_mark(c, policy, &r->sched);
	occ_gpt_init(&r->gpt, &p->shape, &r->topo, r->dev, &r->tp, c->batch.micro, r->sched.slots);
	occ_gpt_stage(&r->gpt, &r->stage);
	r->tokens = occ_alloc(n, sizeof(*r->tokens));
	for (size_t i = 0; i < n && !r->dev->ops->dry; i++)
		r->tokens[i] = (int32_t)((int64_t)i * 7919 % c->model.vocab_size);
}

void occ_plan_rank_exec(struct occ_plan_rank *r, const struct occ_plan *p,
			const struct occ_policy *policy)
{
	struct occ_exec_conf x = {p->rows, p->conf.model.hidden, r->sched.slots, policy, &r->stage};
	occ_exec_init(&r->exec, &r->topo, r->dev, &r->tp, &x);
}

void occ_plan_rank_open(struct occ_plan_rank *r, const struct occ_plan *p,
			const struct occ_policy *policy, int rank, const char *device, int nmicro)
{
	memset(r, 0, sizeof(*r));
	open_place(p, policy, rank, r);
	open_device(p, device, r);
	open_model(p, policy, nmicro, r);
}

void occ_plan_rank_close(struct occ_plan_rank *r)
{
	occ_free(r->tokens);
	occ_trace_release(&r->trace);
	occ_optim_release(&r->optim);
	occ_exec_release(&r->exec);
	occ_schedule_release(&r->sched);
	occ_gpt_release(&r->gpt);
	occ_group_release(&r->tp);
	occ_device_close(r->dev);
	occ_topo_release(&r->topo);
	occ_comm_close(r->world);
}

/* A step after every start_iter. */
int64_t occ_plan_late_step(const struct occ_policy *p)
{
	int64_t step = 0;
	for (int k = 0; k < OCC_NSITES; k++)
		if (p->site[k].start_iter > step)
			step = p->site[k].start_iter;
	return step;
}

void occ_plan_rank_step(struct occ_plan_rank *r, const struct occ_policy *policy)
{
	struct occ_gpt_batch b = {
		.tokens = r->tokens, .nmicro = r->nmicro, .grad_scale = 1e-3f, .train = 1};
	memset(r->topo.traffic, 0, sizeof(r->topo.traffic));
	occ_gpt_begin(&r->gpt, &b);
	occ_exec_step(&r->exec, &r->sched, occ_plan_late_step(policy));
}

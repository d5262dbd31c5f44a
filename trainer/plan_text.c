/* What `plan` prints for people. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "trainer/plan.h"

const char *const occ_plan_measured_what[] = {"no", "device", "device and network"};

static void print_head(const struct occ_plan *p)
{
	printf("%lld parameters; %d rank%s = tp %d x pp %d x dp %d on %d node%s, %lld "
	       "micro-batches\n",
	       (long long)occ_gpt_parameters(&p->shape), p->ranks, p->ranks == 1 ? "" : "s",
	       p->layout.tensor, p->layout.pipeline, p->layout.data, p->nodes,
	       p->nodes == 1 ? "" : "s", (long long)p->nmicro);
	if (p->measured)
		printf("measured on this machine: %s\n", occ_plan_measured_what[p->measured]);
	else
		printf("reckoned for: %s\n", p->hw.name);
}

enum { MOST_LINES = 64 }; /* of a table that grows with the ranks */

/* A node's ranks are numbered in a row, so are their stages and, within one, replicas. */
static void print_placement(const struct occ_plan *p)
{
	printf("\nwhere ranks are\n  %-6s %-13s %-10s %-10s %s\n", "node", "ranks", "stage",
	       "replica", "tensor");
	for (int k = 0; k < p->nodes && k < MOST_LINES; k++) {
		int first = k * p->per_node, end = first + p->per_node;
		int last = (end < p->ranks ? end : p->ranks) - 1;
		struct occ_place a = occ_place_of(&p->layout, first),
				 b = occ_place_of(&p->layout, last);
		int same = a.pp == b.pp;
		printf("  %-6d %5d .. %-5d %2d .. %-4d %2d .. %-4d %2d .. %d\n", k, first, last,
		       a.pp, b.pp, same ? a.dp : 0, same ? b.dp : p->layout.data - 1,
		       same && a.dp == b.dp ? a.tp : 0,
		       same && a.dp == b.dp ? b.tp : p->layout.tensor - 1);
	}
	if (p->nodes > MOST_LINES)
		printf("  ... %d more; --json lists all ranks\n", p->nodes - MOST_LINES);
}

double occ_plan_memory_total(const struct occ_plan_memory *m)
{
	return m->weights + m->optimizer + m->activations + m->compression;
}

static void print_memory(const struct occ_plan *p)
{
	printf("\nmemory of the largest rank of a stage, MB\n  %-6s %10s %10s %12s %12s %10s\n",
	       "stage", "weights", "optimizer", "activations", "compression", "total");
	for (int s = 0; s < p->layout.pipeline; s++) {
		const struct occ_plan_memory *m = &p->stage[s];
		printf("  %-6d %10.1f %10.1f %12.1f %12.1f %10.1f\n", s, m->weights / 1e6,
		       m->optimizer / 1e6, m->activations / 1e6, m->compression / 1e6,
		       occ_plan_memory_total(m) / 1e6);
	}
}

/* F3 B0 B1* ...: passes in order; a star: the gradient that follows is critical. */
char *occ_plan_schedule(const struct occ_plan *p, int stage)
{
	struct occ_schedule s;
	char *text = NULL;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);
	if (!out)
		occ_die(OCC_E_DEVICE, "no memory for the text of a schedule");
	occ_schedule_1f1b(&s, stage, p->layout.pipeline, (int)p->nmicro);
	occ_policy_mark(&p->conf, &p->policy, &s);
	for (int i = 0; i < s.n; i++) {
		const struct occ_instr *in = &s.at[i];
		int critical = in->flags & OCC_CRITICAL ? 1 : 0;
		if (in->op == OCC_FORWARD || in->op == OCC_BACKWARD)
			fprintf(out, "%s%c%d", i ? " " : "", in->op == OCC_FORWARD ? 'F' : 'B',
				in->mb);
		else if (critical && (in->op == OCC_SEND_ACT || in->op == OCC_SEND_GRAD))
			fputc('*', out);
	}
	occ_schedule_release(&s);
	fclose(out);
	return text;
}

static void print_schedule(const struct occ_plan *p)
{
	if (p->layout.pipeline == 1)
		return;
	puts("\nschedule: F forward, B backward of a micro-batch; * what it sends is critical");
	for (int s = 0; s < p->layout.pipeline && p->nmicro <= MOST_LINES; s++) {
		char *text = occ_plan_schedule(p, s);
		printf("  stage %d: %s\n", s, text + (text[0] == ' '));
		free(text);
	}
	if (p->nmicro > MOST_LINES)
		puts("  too long to print; --json has it");
}

static void print_traffic(const struct occ_plan *p)
{
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
}

static void print_links(const struct occ_plan *p)
{
	struct occ_plan_link *l = occ_alloc(2 * (size_t)p->layout.pipeline, sizeof(*l));
	int n = occ_plan_links(p, l);
	if (n)
		printf("\nlinks, of one tensor rank and replica in a step\n  %-12s %-8s %9s %10s "
		       "%12s %12s %10s %10s\n",
		       "kind", "stages", "transfers", "compressed", "dense bytes", "wire bytes",
		       "dense ms", "wire ms");
	for (int i = 0; i < n; i++)
		printf("  %-12s %2d > %-3d %9d %10d %12.0f %12.0f %10.3f %10.3f\n",
		       occ_kind_name[l[i].kind], l[i].from, l[i].to, l[i].transfers,
		       l[i].compressed, l[i].dense_bytes, l[i].wire_bytes, l[i].dense_ms,
		       l[i].wire_ms);
	occ_free(l);
}

static void print_sums(const struct occ_plan *p)
{
	const struct occ_plan_rung *last = &p->rung[p->nrungs - 1];
	struct occ_plan_embedding e = occ_plan_embedding(p);
	if (p->layout.data > 1)
		printf("\nsums over replicas, of one rank in a step\n  %-6s %14s %14s %10s %10s\n",
		       "stage", "dense bytes", "wire bytes", "dense ms", "wire ms");
	for (int s = 0; s < p->layout.pipeline && p->layout.data > 1; s++) {
		double dense = p->rung[0].sent[s].data, wire = last->sent[s].data;
		printf("  %-6d %14.0f %14.0f %10.3f %10.3f\n", s, dense, wire,
		       occ_plan_sum_ms(p, s, dense), occ_plan_sum_ms(p, s, wire));
	}
	if (e.shard_bytes > 0)
		printf("the tied embedding's part, a shard of %.1f MB: unfused %.3f ms, fused "
		       "%.3f ms (%.2f times)\n",
		       e.shard_bytes / 1e6, occ_plan_sum_ms(p, 0, e.unfused_bytes),
		       occ_plan_sum_ms(p, 0, e.fused_bytes), e.unfused_bytes / e.fused_bytes);
}

static void print_routes(const struct occ_plan *p)
{
	puts("\nhow it travels (transfers of a step and all ranks; tensors of all ranks for dp)");
	printf("  %-12s %-9s %10s %14s %14s  %s\n", "kind", "codec", "count", "raw bytes",
	       "wire bytes", "why");
	for (int k = 0; k < OCC_NSITES; k++)
		for (const struct occ_plan_reason *r = p->reason[k]; r->codec; r++)
			printf("  %-12s %-9s %10lld %14.0f %14.0f  %s\n", occ_kind_name[k],
			       r->codec, (long long)r->messages, r->raw, r->wire, r->why);
}

static void print_time(const char *name, const struct occ_plan_time *t)
{
	printf("  %-18s %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f %11.3f\n", name, 1e3 * t->compute,
	       1e3 * t->bubble, 1e3 * t->pipeline, 1e3 * t->data, 1e3 * t->embedding,
	       1e3 * t->optimizer, 1e3 * t->total);
}

static void print_time_head(const char *what)
{
	printf("\n%s, ms\n  %-18s %10s %10s %10s %10s %10s %10s %11s\n", what, "", "compute",
	       "bubble", "pipeline", "data", "embedding", "optimizer", "step");
}

static void print_marks(const struct occ_plan *p)
{
	double ms[OCC_PLAN_MARKS], even = occ_plan_break_even(p);
	char head[128];
	snprintf(head, sizeof(head),
		 "predicted step by the marks of pipeline gradients, %.4g GB/s out of a node",
		 p->hw.node.gbytes_per_s);
	print_time_head(head);
	for (int i = 0; i < OCC_PLAN_MARKS; i++) {
		struct occ_plan_time t;
		occ_plan_time(p, &p->rung[p->nrungs - 1], (enum occ_mark)i,
			      1e9 * p->hw.node.gbytes_per_s, &t);
		ms[i] = 1e3 * t.total;
		print_time(occ_plan_mark_name[i], &t);
	}
	printf("recommended: mark %s, %s\n", occ_plan_mark_name[occ_plan_recommend(ms)],
	       occ_plan_because);
	if (p->nrungs < 2)
		return;
	if (isinf(even))
		puts("this compression shortens the step at any rate");
	else if (even <= 0)
		puts("this compression does not shorten the step at any rate");
	else
		printf("this compression shortens the step below %.4g GB/s out of a node\n",
		       1e-9 * even);
}

static void print_stages(const struct occ_plan *p)
{
	double *seconds = occ_alloc((size_t)p->layout.pipeline + 1, sizeof(*seconds));
	int best = occ_plan_stages(p, seconds);
	if (best >= 0) {
		puts("\nstep by data_parallel.stages, ms");
		for (int k = 0; k <= p->layout.pipeline; k++)
			printf("  %-18d %10.3f\n", k, 1e3 * seconds[k]);
		printf("recommended: stages %d; more are taken only for 1 %% of the step\n", best);
	}
	occ_free(seconds);
}

static void print_ladder(const struct occ_plan *p)
{
	struct occ_plan_time t;
	if (p->nrungs < 2)
		return;
	printf("\nwhat each technique leaves of the step, ms (and of the dense one), at GB/s out "
	       "of a node\n  %-18s",
	       "");
	for (int k = 0; k < OCC_PLAN_RATES; k++)
		printf(" %18.3g", p->hw.node.gbytes_per_s / occ_plan_slower[k]);
	for (int i = 0; i < p->nrungs; i++) {
		printf("\n  %-18s", p->rung[i].name);
		for (int k = 0; k < OCC_PLAN_RATES; k++) {
			double rate = 1e9 * p->hw.node.gbytes_per_s / occ_plan_slower[k], dense;
			occ_plan_time(p, &p->rung[0], occ_plan_mark(p), rate, &t);
			dense = t.total;
			occ_plan_time(p, &p->rung[i], occ_plan_mark(p), rate, &t);
			printf(" %11.2f (%3.0f%%)", 1e3 * t.total, 1e2 * t.total / dense);
		}
	}
	putchar('\n');
}

void occ_plan_text(const struct occ_plan *p)
{
	print_head(p);
	print_placement(p);
	print_memory(p);
	print_schedule(p);
	print_traffic(p);
	print_routes(p);
	print_links(p);
	print_sums(p);
	print_marks(p);
	print_stages(p);
	print_ladder(p);
}

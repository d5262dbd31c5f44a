/* The simulator: what shares an interface or a core takes as long as it must, what shares nothing
 * is not held up; spans tell the same; nothing is faster than its bytes and its work allow. */
#include "parallel/simulate.h"

#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/check.h"

enum { MAX_P = 8, MAX_M = 32 };

/* A step under test. */
struct step {
	struct occ_schedule all[MAX_P];
	struct occ_instr at[MAX_P][8]; /* of lists written by hand */
	struct occ_sim_stage stage[MAX_P];
	struct occ_trace trace[MAX_P];
	struct occ_sim_conf conf;
	struct occ_sim sim;
	int P;
};

/* Stages on nodes of their own, an interface of rate 1, 10 inside. */
static void init(struct step *t, int P)
{
	memset(t, 0, sizeof(*t));
	t->P = P;
	for (int s = 0; s < P; s++) {
		t->all[s] = (struct occ_schedule){
			.stage = s, .nstages = P, .nmicro = 4, .slots = 1, .at = t->at[s]};
		t->stage[s].sharers = 1;
		t->stage[s].node = s;
		for (int op = 0; op < OCC_NOPS; op++)
			t->stage[s].crosses[op] = 1;
	}
	t->conf = (struct occ_sim_conf){.all = t->all,
					.P = P,
					.mode = OCC_SEND_POSTED,
					.wires = 1,
					.stage = t->stage,
					.net = {.node = 1, .inside = 10, .nodes = P}};
}

static void init_1f1b(struct step *t, int P, int M)
{
	init(t, P);
	for (int s = 0; s < P; s++)
		occ_schedule_1f1b(&t->all[s], s, P, M);
}

static void release_1f1b(struct step *t)
{
	for (int s = 0; s < t->P; s++)
		occ_schedule_release(&t->all[s]);
}

/* The next instruction of a list written by hand; micro-batches are counted for each kind. */
static void add(struct step *t, int s, enum occ_op op, int peer)
{
	struct occ_schedule *l = &t->all[s];
	int mb = 0;
	for (int i = 0; i < l->n; i++)
		mb += l->at[i].op == op;
	l->at[l->n++] = (struct occ_instr){.op = (uint8_t)op, .peer = (int16_t)peer, .mb = mb};
}

/* A transfer from stage s to a neighbour: both instructions. */
static void add_transfer(struct step *t, int s, int to)
{
	add(t, s, to > s ? OCC_SEND_ACT : OCC_SEND_GRAD, to);
	add(t, to, to > s ? OCC_RECV_ACT : OCC_RECV_GRAD, s);
}

static double play(struct step *t)
{
	occ_sim_play(&t->conf, &t->sim);
	return t->sim.total;
}

/* ---- Passes. ---- */

static double most(double a, double b)
{
	return a > b ? a : b;
}

static double least(double a, double b)
{
	return a < b ? a : b;
}

static void check_passes(int P, int M)
{
	static const double times[][2] = {{1, 1}, {1, 2}, {3, 1}};
	struct step t;
	double f = 0, b = 0, before = 0, low = 0;
	init_1f1b(&t, P, M);
	for (int i = 0; i < 3; i++) {
		for (int s = 0; s < P; s++) {
			t.stage[s].compute[OCC_FORWARD][0] = times[i][0];
			t.stage[s].compute[OCC_BACKWARD][0] = times[i][1];
		}
		CHECK_NEAR(play(&t), (M + P - 1) * (times[i][0] + times[i][1]), 1e-9,
			   "P %d M %d, f %g b %g: %g", P, M, times[i][0], times[i][1], t.sim.total);
	}
	for (int s = 0; s < P; s++) { /* unequal: the path over each stage bounds it below */
		double x = 1 + (s * 7 + M) % 5, y = 1 + (s * 3 + M) % 4;
		t.stage[s].compute[OCC_FORWARD][0] = x;
		t.stage[s].compute[OCC_BACKWARD][0] = y;
		low = most(low, before + M * (x + y));
		before += x + y;
		f = most(f, x);
		b = most(b, y);
	}
	low = most(low, before);
	play(&t);
	CHECK(t.sim.total >= low - 1e-9 && t.sim.total <= (M + P - 1) * (f + b) + 1e-9,
	      "P %d M %d unequal: %g is not in [%g, %g]", P, M, t.sim.total, low,
	      (M + P - 1) * (f + b));
	release_1f1b(&t);
}

/* ---- Interfaces. ---- */

/* Transfers that begin at once, between stages on these nodes, of these bytes; how long they take
 * with an interface of rate 1. */
struct sharing {
	const char *what;
	int node[4];
	int from[2], to[2]; /* to = from: a sum of the stage's */
	double bytes[2], total;
};

static const struct sharing sharings[] = {
	{"one alone", {0, 1, 2, 3}, {1, -1}, {2, -1}, {6, 0}, 6},
	{"a middle stage sends both ways", {0, 1, 2, 3}, {1, 1}, {2, 0}, {6, 6}, 12},
	{"a middle stage is sent to from both sides", {0, 1, 2, 3}, {0, 2}, {1, 1}, {6, 6}, 12},
	{"out and in do not share", {0, 1, 2, 3}, {0, 1}, {1, 0}, {6, 6}, 6},
	{"pairs of their own", {0, 1, 2, 3}, {0, 2}, {1, 3}, {6, 6}, 6},
	{"two senders on a node", {0, 1, 0, 3}, {0, 2}, {1, 3}, {6, 6}, 12},
	{"two receivers on a node", {0, 1, 2, 1}, {0, 2}, {1, 3}, {6, 6}, 12},
	{"the longer one alone at last", {0, 1, 2, 3}, {1, 1}, {2, 0}, {2, 6}, 8},
	{"a sum alone", {0, 1, 2, 3}, {2, -1}, {2, -1}, {6, 0}, 6},
	{"sums on a node", {0, 0, 2, 3}, {0, 1}, {0, 1}, {6, 6}, 12},
	{"sums on two nodes", {0, 1, 2, 3}, {0, 1}, {0, 1}, {6, 6}, 6},
	{"a sum and a transfer", {0, 0, 2, 3}, {0, 1}, {0, 2}, {6, 6}, 12},
	{"nodes far apart", {0, 70, 1000, 70}, {0, 2}, {1, 3}, {6, 6}, 12},
	{"nodes far apart, alone", {900, 70, 1000, 5}, {0, 2}, {1, 3}, {6, 6}, 6},
};

static void begin_sharing(struct step *t, const struct sharing *c, int crosses)
{
	init(t, 4);
	t->conf.net.nodes = 2000;
	for (int s = 0; s < 4; s++) {
		t->stage[s].node = c->node[s];
		for (int op = 0; op < OCC_NOPS; op++)
			t->stage[s].crosses[op] = crosses;
	}
	for (int k = 0; k < 2 && c->from[k] >= 0; k++) {
		enum occ_op op = c->to[k] == c->from[k]  ? OCC_REDUCE_GRADS
				 : c->to[k] > c->from[k] ? OCC_SEND_ACT
							 : OCC_SEND_GRAD;
		t->stage[c->from[k]].bytes[op][0] = c->bytes[k];
		if (op == OCC_REDUCE_GRADS)
			add(t, c->from[k], op, -1);
		else /* all sends before all receives */
			add(t, c->from[k], op, c->to[k]);
	}
	for (int k = 0; k < 2 && c->from[k] >= 0; k++)
		if (c->to[k] != c->from[k])
			add(t, c->to[k], c->to[k] > c->from[k] ? OCC_RECV_ACT : OCC_RECV_GRAD,
			    c->from[k]);
}

static void check_interfaces(void)
{
	for (int i = 0; i < (int)(sizeof(sharings) / sizeof(sharings[0])); i++) {
		const struct sharing *c = &sharings[i];
		struct step t;
		begin_sharing(&t, c, 1);
		CHECK_NEAR(play(&t), c->total, 1e-9, "%s: %g", c->what, t.sim.total);
		/* Inside nodes nothing is shared. */
		begin_sharing(&t, c, 0);
		CHECK_NEAR(play(&t), most(c->bytes[0], c->bytes[1]) / 10, 1e-9, "%s, inside: %g",
			   c->what, t.sim.total);
	}
}

/* ---- Cores. ---- */

/* Stages with one pass each. */
struct crowd {
	int P, node[6], sharers, hosts, nodes;
	double work[6], cores, total;
};

static const struct crowd crowds[] = {
	{3, {0, 0, 0}, 1, 0, 1, {4, 4, 4}, 0, 4},
	{3, {0, 0, 0}, 1, 0, 1, {4, 4, 4}, 3, 4},
	{3, {0, 0, 0}, 1, 0, 1, {4, 4, 4}, 2, 6},
	{6, {0, 0, 0, 0, 0, 0}, 1, 0, 1, {4, 4, 4, 4, 4, 4}, 2, 12},
	{2, {0, 0}, 4, 0, 1, {4, 4}, 2, 16},
	{1, {0}, 8, 0, 1, {4}, 2, 16},
	{1, {0}, 8, 0, 1, {4}, 16, 4},                            /* no faster than a core */
	{2, {0, 0}, 1, 0, 1, {2, 6}, 1, 8},                       /* the longer one alone at last */
	{2, {0, 1}, 1, 0, 2, {4, 4}, 1, 4},                       /* machines of their own */
	{2, {0, 1}, 1, 1, 2, {4, 4}, 1, 8},                       /* both nodes on one */
	{4, {0, 1, 2, 3}, 1, 2, 4, {4, 4, 6, 6}, 1, 12},          /* two machines, two nodes each */
	{3, {0, 1, 2}, 1, 2, 3, {4, 4, 6}, 1, 8},                 /* 0 and 1 on the first */
	{4, {0, 300, 600, 900}, 1, 2, 1000, {4, 4, 6, 6}, 1, 12}, /* more nodes than stages */
};

static void check_cores(void)
{
	for (int i = 0; i < (int)(sizeof(crowds) / sizeof(crowds[0])); i++) {
		const struct crowd *c = &crowds[i];
		struct step t;
		init(&t, c->P);
		t.conf.net.cores = c->cores;
		t.conf.net.hosts = c->hosts;
		t.conf.net.nodes = c->nodes;
		for (int s = 0; s < c->P; s++) {
			add(&t, s, OCC_FORWARD, -1);
			t.stage[s].node = c->node[s];
			t.stage[s].sharers = c->sharers;
			t.stage[s].compute[OCC_FORWARD][0] = c->work[s];
		}
		CHECK_NEAR(play(&t), c->total, 1e-9, "crowd %d: %g", i, t.sim.total);
	}
}

/* ---- Delays and wires. ---- */

static void check_delays(void)
{
	struct step t;
	init(&t, 2);
	add_transfer(&t, 0, 1);
	t.stage[0].compute[OCC_SEND_ACT][0] = 1; /* encodes 1, waits 3, sends 5, decodes 2 */
	t.stage[0].delay[OCC_SEND_ACT][0] = 3;
	t.stage[0].bytes[OCC_SEND_ACT][0] = 5;
	t.stage[1].compute[OCC_RECV_ACT][0] = 2;
	CHECK_NEAR(play(&t), 11, 1e-9, "a delayed transfer: %g", t.sim.total);
	init(&t, 2);
	add(&t, 0, OCC_REDUCE_GRADS, -1);
	t.stage[0].compute[OCC_REDUCE_GRADS][0] = 1;
	t.stage[0].delay[OCC_REDUCE_GRADS][0] = 3;
	t.stage[0].bytes[OCC_REDUCE_GRADS][0] = 5;
	CHECK_NEAR(play(&t), 9, 1e-9, "a delayed sum: %g", t.sim.total);
	/* Two sums on a node: while one stands in its delay the other has the whole interface. */
	add(&t, 1, OCC_REDUCE_GRADS, -1);
	t.stage[1].node = 0;
	t.stage[1].bytes[OCC_REDUCE_GRADS][0] = 4;
	CHECK_NEAR(play(&t), 9, 1e-9, "a delay takes no share: %g", t.sim.total);
}

/* Two sends in a row between two passes: with one wire the second keeps its sender. */
static void check_wires(void)
{
	static const double want[] = {8, 7, 7};
	struct step t;
	for (int wires = 1; wires <= 3; wires++) {
		init(&t, 2);
		t.conf.wires = wires;
		add(&t, 0, OCC_FORWARD, -1);
		add_transfer(&t, 0, 1);
		add_transfer(&t, 0, 1);
		add(&t, 0, OCC_FORWARD, -1);
		t.stage[0].compute[OCC_FORWARD][0] = 3;
		t.stage[0].bytes[OCC_SEND_ACT][0] = 2;
		CHECK_NEAR(play(&t), want[wires - 1], 1e-9, "%d wires: %g", wires, t.sim.total);
	}
	for (int P = 2; P <= MAX_P; P++)
		for (int M = 1; M <= MAX_M; M += 3) {
			double before = 0;
			init_1f1b(&t, P, M);
			for (int s = 0; s < P; s++) {
				t.stage[s].compute[OCC_FORWARD][0] = 1 + (s + M) % 3;
				t.stage[s].compute[OCC_BACKWARD][0] = 2;
				t.stage[s].crosses[OCC_SEND_ACT] = 0;
				t.stage[s].crosses[OCC_SEND_GRAD] = 0;
				t.stage[s].bytes[OCC_SEND_ACT][0] = 25;
				t.stage[s].bytes[OCC_SEND_GRAD][0] = 10 * (s % 4);
			}
			for (int wires = 3; wires >= 1; wires--) {
				t.conf.wires = wires;
				CHECK(play(&t) >= before - 1e-9, "P %d M %d: %d wires are faster",
				      P, M, wires);
				before = t.sim.total;
			}
			release_1f1b(&t);
		}
}

/* ---- Deadlocks. ---- */

static void check_stuck(void)
{
	struct step t;
	init(&t, 3);
	add(&t, 1, OCC_FORWARD, -1);
	add(&t, 1, OCC_RECV_ACT, 0); /* which nobody sends */
	add(&t, 2, OCC_FORWARD, -1);
	t.stage[2].compute[OCC_FORWARD][0] = 1;
	play(&t);
	CHECK(t.sim.total < 0 && t.sim.stuck_stage == 1 && t.sim.stuck_at == 1,
	      "nothing comes: %g, stage %d at %d", t.sim.total, t.sim.stuck_stage, t.sim.stuck_at);
	init(&t, 2); /* each sends before it receives */
	add(&t, 0, OCC_SEND_ACT, 1);
	add(&t, 1, OCC_SEND_GRAD, 0);
	add(&t, 0, OCC_RECV_GRAD, 1);
	add(&t, 1, OCC_RECV_ACT, 0);
	t.stage[0].bytes[OCC_SEND_ACT][0] = t.stage[1].bytes[OCC_SEND_GRAD][0] = 1;
	CHECK_NEAR(play(&t), 1, 1e-9, "posted sends pass each other: %g", t.sim.total);
	t.conf.mode = OCC_SEND_RENDEZVOUS;
	play(&t);
	CHECK(t.sim.total < 0 && t.sim.stuck_stage == 0 && t.sim.stuck_at == 0,
	      "blocking sends: %g, stage %d at %d", t.sim.total, t.sim.stuck_stage, t.sim.stuck_at);
}

/* ---- Any step: spans, and what cannot be beaten. ---- */

static double draw(int n)
{
	static uint64_t drawn;
	return (double)(occ_rng_u64(7, drawn++) % (uint64_t)n);
}

static void make_any(struct step *t, int P, int M)
{
	static const enum occ_op moving[] = {OCC_SEND_ACT, OCC_SEND_GRAD, OCC_REDUCE_GRADS,
					     OCC_REDUCE_EMBED};
	init_1f1b(t, P, M);
	int nodes = 1 + (int)draw(P), far = draw(2) > 0 ? 100 : 1;
	t->conf.net = (struct occ_sim_net){.node = 1 + draw(4),
					   .inside = 5,
					   .hosts = (int)draw(3),
					   .nodes = nodes * far,
					   .cores = draw(3)};
	t->conf.wires = 1 + (int)draw(2);
	t->conf.trace = t->trace;
	for (int s = 0; s < P; s++) {
		struct occ_sim_stage *g = &t->stage[s];
		occ_schedule_mark(&t->all[s], OCC_SEND_GRAD, OCC_MARK_TAIL);
		g->node = s * nodes / P * far;
		g->sharers = 1 + (int)draw(3);
		for (int op = 0; op < OCC_NOPS; op++)
			for (int k = 0; k < 2; k++)
				g->compute[op][k] = draw(4);
		for (int i = 0; i < 4; i++)
			for (int k = 0; k < 2; k++) {
				g->bytes[moving[i]][k] = draw(8);
				g->delay[moving[i]][k] = draw(2) / 4;
				g->crosses[moving[i]] = draw(2) > 0;
			}
	}
}

static int is_pass(const struct occ_span *s)
{
	return s->act == OCC_ACT_FORWARD || s->act == OCC_ACT_BACKWARD;
}

/* The spans of a stage; returns the end of the last. */
static double check_spans(const struct step *t, int s, int M)
{
	const struct occ_trace *tr = &t->trace[s];
	const struct occ_schedule *list = &t->all[s];
	double end = 0, passes = 0, bytes = 0, want = 0;
	int n = 0;
	CHECK(tr->open == -1, "stage %d: a span is open", s);
	for (int i = 0; i < tr->n; i++) {
		const struct occ_span *a = &tr->at[i];
		CHECK(a->end_ms >= a->begin_ms && a->begin_ms >= 0, "stage %d: span %d", s, i);
		if (a->depth > 0) {
			const struct occ_span *outer = &tr->at[tr->outer[i]];
			CHECK(a->act == OCC_ACT_WAIT && a->depth == 1 && outer->depth == 0 &&
				      (outer->act == OCC_ACT_SEND ||
				       outer->act == OCC_ACT_RECEIVE) &&
				      a->begin_ms >= outer->begin_ms && a->end_ms <= outer->end_ms,
			      "stage %d: span %d inside another", s, i);
			continue;
		}
		const struct occ_instr *in = &list->at[n++];
		CHECK(a->begin_ms >= end && a->mb == in->mb && a->peer == in->peer &&
			      a->critical == (in->flags & OCC_CRITICAL ? 1 : 0),
		      "stage %d: span %d begins at %g, before %g", s, i, a->begin_ms, end);
		end = a->end_ms;
		passes += is_pass(a) ? a->end_ms - a->begin_ms : 0;
		bytes += (double)a->wire_bytes;
		want += t->stage[s].bytes[in->op][a->critical];
	}
	CHECK(n == list->n, "stage %d: %d spans of %d instructions", s, n, list->n);
	CHECK(bytes == want, "stage %d: spans send %g of %g", s, bytes, want);
	double each = t->stage[s].compute[OCC_FORWARD][0] + t->stage[s].compute[OCC_BACKWARD][0];
	if (t->conf.net.cores <= 0)
		CHECK_NEAR(passes, 1e3 * M * each, 1e-6, "stage %d: passes take %g", s, passes);
	else
		CHECK(passes >= 1e3 * M * each * (1 - 1e-12), "stage %d: passes take %g", s,
		      passes);
	return end;
}

/* Work of stage s, and the bytes that it sends out of its node (to stage `to`, or its sums: -1). */
static double work_of(const struct step *t, int s)
{
	double sum = 0;
	for (int i = 0; i < t->all[s].n; i++) {
		const struct occ_instr *in = &t->all[s].at[i];
		sum += t->stage[s].compute[in->op][in->flags & OCC_CRITICAL ? 1 : 0];
	}
	return sum;
}

static double bytes_out(const struct step *t, int s, int to)
{
	double sum = 0;
	for (int i = 0; i < t->all[s].n; i++) {
		const struct occ_instr *in = &t->all[s].at[i];
		int goes =
			in->op == OCC_SEND_ACT || in->op == OCC_SEND_GRAD ? in->peer == to : to < 0;
		if (goes && t->stage[s].crosses[in->op])
			sum += t->stage[s].bytes[in->op][in->flags & OCC_CRITICAL ? 1 : 0];
	}
	return sum;
}

static int machine(const struct step *t, int s)
{
	const struct occ_sim_net *n = &t->conf.net;
	return n->hosts ? t->stage[s].node * n->hosts / n->nodes : t->stage[s].node;
}

/* No node sends or takes more than its rate, no machine works more than its cores. */
static void check_conservation(const struct step *t)
{
	for (int s = 0; s < t->P; s++) {
		double out = 0, in = 0, work = 0;
		for (int a = 0; a < t->P; a++) {
			int here = t->stage[a].node == t->stage[s].node;
			work += machine(t, a) == machine(t, s) ? t->stage[a].sharers * work_of(t, a)
							       : 0;
			for (int b = -1; b < t->P; b++) {
				int into = t->stage[b < 0 ? a : b].node == t->stage[s].node;
				out += here ? bytes_out(t, a, b) : 0;
				in += into ? bytes_out(t, a, b) : 0;
			}
		}
		double need = most(most(out, in) / t->conf.net.node, work_of(t, s));
		if (t->conf.net.cores > 0)
			need = most(need, work / t->conf.net.cores);
		CHECK(t->sim.total >= need * (1 - 1e-9), "P %d: node of stage %d, %g of %g s", t->P,
		      s, t->sim.total, need);
	}
}

static void check_any(int P, int M)
{
	struct step t;
	double end = 0, shortest = 1e30;
	make_any(&t, P, M);
	play(&t);
	CHECK(t.sim.total > 0 && t.sim.stuck_stage == -1, "P %d M %d: %g", P, M, t.sim.total);
	for (int s = 0; s < P; s++) {
		double last = check_spans(&t, s, M);
		end = most(end, last);
		shortest = least(shortest, last);
	}
	CHECK_NEAR(1e-3 * end, t.sim.total, 1e-9 * t.sim.total, "P %d M %d: spans end at %g", P, M,
		   end);
	CHECK(shortest > 0, "P %d M %d: a stage without time", P, M);
	check_conservation(&t);
	double traced = t.sim.total;
	t.conf.trace = NULL;
	CHECK(play(&t) == traced, "P %d M %d: a trace changes the time", P, M);
	for (int s = 0; s < P; s++)
		occ_trace_release(&t.trace[s]);
	release_1f1b(&t);
}

int main(void)
{
	for (int P = 1; P <= MAX_P; P++)
		for (int M = 1; M <= MAX_M; M++)
			check_passes(P, M);
	check_interfaces();
	check_cores();
	check_delays();
	check_wires();
	check_stuck();
	for (int i = 0; i < 400; i++)
		check_any(1 + i % MAX_P, 1 + i / 3 % 12);
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}

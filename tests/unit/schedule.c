/* Schedules for all P <= 8 and M <= 32: pairs, marks, slots, deadlocks and times. */
#include "parallel/simulate.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/check.h"

enum { MAX_P = 8, MAX_M = 32 };

static int least(int a, int b)
{
	return a < b ? a : b;
}

/* The k-th instruction `op` of a list, or NULL. */
static const struct occ_instr *find(const struct occ_schedule *s, enum occ_op op, int k)
{
	for (int i = 0; i < s->n; i++)
		if (s->at[i].op == op && k-- == 0)
			return &s->at[i];
	return NULL;
}

/* Message k of each link is micro-batch k at both ends, with the same flags, and no more come. */
static void check_link(const struct occ_schedule *a, enum occ_op send, const struct occ_schedule *b,
		       enum occ_op recv, int M, enum occ_mark rule)
{
	int P = a->nstages;
	for (int k = 0; k < M; k++) {
		const struct occ_instr *s = find(a, send, k), *r = find(b, recv, k);
		CHECK(s && r && s->mb == k && r->mb == k && s->peer == b->stage &&
			      r->peer == a->stage && s->flags == r->flags,
		      "P %d M %d: %s %d of stage %d", P, M, occ_op_name[send], k, a->stage);
		if (!s || send != OCC_SEND_GRAD)
			continue;
		int want = rule == OCC_MARK_ALL ||
			   (rule == OCC_MARK_TAIL && k >= M - least(P - a->stage, M));
		CHECK((s->flags & OCC_CRITICAL) == (want ? OCC_CRITICAL : 0),
		      "P %d M %d rule %d: mark of gradient %d of stage %d", P, M, (int)rule, k,
		      a->stage);
	}
	CHECK(!find(a, send, M) && !find(b, recv, M), "P %d M %d: more than M messages", P, M);
}

/* Written apart from the code: how often a list may hold each operation. */
static void check_counts(const struct occ_schedule *s, int M)
{
	int P = s->nstages, last = s->stage == P - 1, first = s->stage == 0;
	int want[OCC_NOPS] = {
		[OCC_RECV_ACT] = first ? 0 : M,
		[OCC_FORWARD] = M,
		[OCC_SEND_ACT] = last ? 0 : M,
		[OCC_RECV_GRAD] = last ? 0 : M,
		[OCC_BACKWARD] = M,
		[OCC_SEND_GRAD] = first ? 0 : M,
		[OCC_REDUCE_GRADS] = 1,
		[OCC_REDUCE_EMBED] = P > 1 && (first || last),
	};
	int got[OCC_NOPS] = {0};
	for (int i = 0; i < s->n; i++)
		got[s->at[i].op]++;
	for (int op = 0; op < OCC_NOPS; op++)
		CHECK(got[op] == want[op], "P %d M %d stage %d: %d x %s", P, M, s->stage, got[op],
		      occ_op_name[op]);
}

/* No micro-batch enters a slot that another still holds, and every backward finds its own. */
static void check_slots(const struct occ_schedule *s, int M)
{
	int held[MAX_P + 1];
	CHECK(s->slots == least(s->nstages - s->stage, M), "%d slots on stage %d of %d", s->slots,
	      s->stage, s->nstages);
	memset(held, -1, sizeof(held));
	for (int i = 0; i < s->n; i++) {
		const struct occ_instr *in = &s->at[i];
		int first = s->stage == 0 ? OCC_FORWARD : OCC_RECV_ACT;
		if (in->op == first) {
			CHECK(held[in->mb % s->slots] < 0, "stage %d: slot of %d taken", s->stage,
			      in->mb);
			held[in->mb % s->slots] = in->mb;
		} else if (in->op == OCC_BACKWARD) {
			CHECK(held[in->mb % s->slots] == in->mb, "stage %d: %d lost", s->stage,
			      in->mb);
			held[in->mb % s->slots] = -1;
		}
	}
}

static void check_play(const struct occ_schedule *all, int P, int M)
{
	static const double times[][2] = {{1, 1}, {1, 2}, {3, 1}, {0.5, 0.75}};
	struct occ_sim sim;
	for (int i = 0; i < 4; i++) {
		struct occ_cost cost = {times[i][0], times[i][1], 0, 0, 0};
		double each = cost.forward + cost.backward, total = (M + P - 1) * each;
		occ_simulate(all, P, &cost, OCC_SEND_POSTED, &sim);
		CHECK_NEAR(sim.total, total, 1e-9, "P %d M %d f %g b %g: %g", P, M, cost.forward,
			   cost.backward, sim.total);
		CHECK_NEAR(sim.bubble, (P - 1.0) / (M + P - 1.0), 1e-12, "P %d M %d", P, M);
		CHECK(sim.stuck_stage == -1 && sim.stuck_at == -1, "P %d M %d stuck", P, M);
		for (int s = 0; s < P; s++)
			CHECK(sim.max_slots[s] == least(P - s, M), "P %d M %d stage %d: %d slots",
			      P, M, s, sim.max_slots[s]);
	}
	struct occ_cost slow = {1, 2, 5, 7, 1};
	occ_simulate(all, P, &slow, OCC_SEND_POSTED, &sim);
	CHECK(sim.total >= (M + P - 1) * 3.0, "P %d M %d: slow links, %g", P, M, sim.total);
	occ_simulate(all, P, &slow, OCC_SEND_RENDEZVOUS, &sim);
	CHECK((sim.total < 0) == (P >= 2 && M >= 2), "P %d M %d: blocking sends give %g", P, M,
	      sim.total);
	CHECK((sim.stuck_stage >= 0) == (sim.total < 0), "P %d M %d: who is stuck", P, M);
}

static void mark(struct occ_schedule *s, enum occ_mark rule)
{
	occ_schedule_mark(s, OCC_SEND_GRAD, rule);
}

static void check_shape(int P, int M)
{
	static const enum occ_mark rules[] = {OCC_MARK_TAIL, OCC_MARK_ALL, OCC_MARK_NONE};
	struct occ_schedule all[MAX_P];
	for (int s = 0; s < P; s++)
		occ_schedule_1f1b(&all[s], s, P, M);
	for (int s = 0; s < P; s++) {
		check_counts(&all[s], M);
		check_slots(&all[s], M);
	}
	for (int r = 0; r < 3; r++) {
		for (int s = 0; s < P; s++)
			mark(&all[s], rules[r]);
		for (int s = 0; s + 1 < P; s++) {
			check_link(&all[s], OCC_SEND_ACT, &all[s + 1], OCC_RECV_ACT, M, rules[r]);
			check_link(&all[s + 1], OCC_SEND_GRAD, &all[s], OCC_RECV_GRAD, M, rules[r]);
		}
	}
	check_play(all, P, M);
	for (int s = 0; s < P; s++)
		occ_schedule_release(&all[s]);
}

static void check_forward_only(int P, int M)
{
	struct occ_schedule all[MAX_P];
	struct occ_cost cost = {1, 9, 0, 0, 0};
	struct occ_sim sim;
	for (int s = 0; s < P; s++) {
		occ_schedule_forward(&all[s], s, P, M);
		CHECK(all[s].slots == 1 && !find(&all[s], OCC_BACKWARD, 0), "stage %d of %d", s, P);
	}
	occ_simulate(all, P, &cost, OCC_SEND_POSTED, &sim);
	CHECK_NEAR(sim.total, M + P - 1, 1e-9, "P %d M %d forward only: %g", P, M, sim.total);
	for (int s = 0; s < P; s++)
		occ_schedule_release(&all[s]);
}

/* Two stages by hand: warm-up of one, transfer times 1 (tail 0.5), so every number can be checked.
 */
static void check_by_hand(void)
{
	struct occ_schedule all[2];
	struct occ_cost cost = {.forward = 1, .backward = 2, 1, 1, 0.5};
	struct occ_sim sim;
	for (int s = 0; s < 2; s++) {
		occ_schedule_1f1b(&all[s], s, 2, 1);
		mark(&all[s], OCC_MARK_TAIL);
	}
	/* forward 1, travel 1, forward 1, backward 2, travel 0.5, backward 2 */
	for (int mode = OCC_SEND_POSTED; mode <= OCC_SEND_RENDEZVOUS; mode++) {
		occ_simulate(all, 2, &cost, (enum occ_send_mode)mode, &sim);
		CHECK_NEAR(sim.total, 7.5, 1e-12, "mode %d: %g", mode, sim.total);
		CHECK_NEAR(sim.bubble, 1 - 6 / 15.0, 1e-12, "mode %d: %g", mode, sim.bubble);
	}
	/* A list cut short is a deadlock of the stage that waits. */
	all[1].n = 2;
	occ_simulate(all, 2, &cost, OCC_SEND_POSTED, &sim);
	CHECK(sim.total < 0 && sim.stuck_stage == 0 && sim.stuck_at == 2, "stuck at %d of stage %d",
	      sim.stuck_at, sim.stuck_stage);
	for (int s = 0; s < 2; s++)
		occ_schedule_release(&all[s]);
}

/* A slow wire: 3 messages of 5 follow each other, the first sent at 1. */
static void check_wire(void)
{
	struct occ_schedule all[2];
	struct occ_cost cost = {.forward = 1, .send_act = 5};
	struct occ_sim sim;
	for (int s = 0; s < 2; s++)
		occ_schedule_forward(&all[s], s, 2, 3);
	occ_simulate(all, 2, &cost, OCC_SEND_POSTED, &sim);
	CHECK_NEAR(sim.total, 1 + 3 * 5 + 1, 1e-12, "one wire: %g", sim.total);
	for (int s = 0; s < 2; s++)
		occ_schedule_release(&all[s]);
}

static const char golden[] = "stage 1 of 3, 3 micro-batches, 2 slots\n"
			     "  recv_act     mb 0 stage 0\n"
			     "  forward      mb 0\n"
			     "  send_act     mb 0 stage 2\n"
			     "  recv_act     mb 1 stage 0\n"
			     "  forward      mb 1\n"
			     "  send_act     mb 1 stage 2\n"
			     "  recv_grad    mb 0 stage 2\n"
			     "  backward     mb 0\n"
			     "  send_grad    mb 0 stage 0\n"
			     "  recv_act     mb 2 stage 0\n"
			     "  forward      mb 2\n"
			     "  send_act     mb 2 stage 2\n"
			     "  recv_grad    mb 1 stage 2\n"
			     "  backward     mb 1\n"
			     "  send_grad    mb 1 stage 0 critical\n"
			     "  recv_grad    mb 2 stage 2 critical\n"
			     "  backward     mb 2\n"
			     "  send_grad    mb 2 stage 0 critical\n"
			     "  reduce_grads\n";

static void check_print(void)
{
	struct occ_schedule s;
	char *text = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);
	occ_schedule_1f1b(&s, 1, 3, 3);
	mark(&s, OCC_MARK_TAIL);
	occ_schedule_print(&s, out);
	fclose(out);
	CHECK(strcmp(text, golden) == 0, "printed:\n%s", text);
	free(text);
	occ_schedule_release(&s);
}

int main(void)
{
	for (int P = 1; P <= MAX_P; P++)
		for (int M = 1; M <= MAX_M; M++) {
			check_shape(P, M);
			check_forward_only(P, M);
		}
	check_by_hand();
	check_wire();
	check_print();
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}

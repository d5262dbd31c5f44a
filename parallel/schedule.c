/* The lists of a training step and of an evaluation step, their marks, and how they are printed.
 * Pure: knows no transport, no model and no clock. */
#include "parallel/schedule.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"

const char *const occ_op_name[OCC_NOPS] = {
	[OCC_RECV_ACT] = "recv_act",         [OCC_FORWARD] = "forward",
	[OCC_SEND_ACT] = "send_act",         [OCC_RECV_GRAD] = "recv_grad",
	[OCC_BACKWARD] = "backward",         [OCC_SEND_GRAD] = "send_grad",
	[OCC_REDUCE_GRADS] = "reduce_grads", [OCC_REDUCE_EMBED] = "reduce_embed",
};

static int least(int a, int b)
{
	return a < b ? a : b;
}

static void init(struct occ_schedule *s, int stage, int P, int M, int slots)
{
	occ_check(P >= 1 && P < INT16_MAX && stage >= 0 && stage < P && M >= 1,
		  "stage %d of %d, %d micro-batches", stage, P, M);
	memset(s, 0, sizeof(*s));
	s->stage = stage;
	s->nstages = P;
	s->nmicro = M;
	s->slots = slots;
	s->cap = 6 * M + 2; /* every instruction of a step, so nothing ever grows */
	s->at = occ_alloc((size_t)s->cap, sizeof(*s->at));
}

static void add(struct occ_schedule *s, enum occ_op op, int peer, int mb)
{
	occ_check(s->n < s->cap, "%d instructions", s->cap);
	s->at[s->n++] = (struct occ_instr){(uint8_t)op, 0, (int16_t)peer, mb};
}

/* Micro-batch mb in, through and on to the next stage. */
static void forward(struct occ_schedule *s, int mb)
{
	if (s->stage > 0)
		add(s, OCC_RECV_ACT, s->stage - 1, mb);
	add(s, OCC_FORWARD, -1, mb);
	if (s->stage < s->nstages - 1)
		add(s, OCC_SEND_ACT, s->stage + 1, mb);
}

static void backward(struct occ_schedule *s, int mb)
{
	if (s->stage < s->nstages - 1)
		add(s, OCC_RECV_GRAD, s->stage + 1, mb);
	add(s, OCC_BACKWARD, -1, mb);
	if (s->stage > 0)
		add(s, OCC_SEND_GRAD, s->stage - 1, mb);
}

void occ_schedule_1f1b(struct occ_schedule *s, int stage, int P, int M)
{
	int warm = least(P - stage - 1, M);
	init(s, stage, P, M, least(P - stage, M));
	for (int mb = 0; mb < warm; mb++)
		forward(s, mb);
	for (int mb = 0; mb < M; mb++) {
		if (mb + warm < M)
			forward(s, mb + warm);
		backward(s, mb);
	}
	add(s, OCC_REDUCE_GRADS, -1, -1);
	if (P > 1 && (stage == 0 || stage == P - 1))
		add(s, OCC_REDUCE_EMBED, -1, -1);
}

void occ_schedule_forward(struct occ_schedule *s, int stage, int P, int M)
{
	init(s, stage, P, M, 1);
	for (int mb = 0; mb < M; mb++)
		forward(s, mb);
}

/* The receiver takes the last min(P - sender, M) gradients of a link in its cool-down, and the
 * first min(P - receiver, M) activations in its warm-up. */
static int in_tail(const struct occ_schedule *s, enum occ_op send, int sender, int mb)
{
	int M = s->nmicro, P = s->nstages;
	if (send == OCC_SEND_GRAD)
		return mb >= M - least(P - sender, M);
	return mb < least(P - sender - 1, M);
}

/* What sends the transfer that an instruction is an end of; OCC_NOPS: it is none. */
static enum occ_op sends(const struct occ_instr *in)
{
	switch ((enum occ_op)in->op) {
	case OCC_SEND_ACT:
	case OCC_RECV_ACT:
		return OCC_SEND_ACT;
	case OCC_SEND_GRAD:
	case OCC_RECV_GRAD:
		return OCC_SEND_GRAD;
	default:
		return OCC_NOPS;
	}
}

static void set_critical(struct occ_instr *in, int critical)
{
	in->flags = (uint8_t)((in->flags & ~OCC_CRITICAL) | (critical ? OCC_CRITICAL : 0));
}

void occ_schedule_mark(struct occ_schedule *s, enum occ_op send, enum occ_mark rule)
{
	occ_check(rule != OCC_MARK_SLACK, "slack needs costs");
	for (int i = 0; i < s->n; i++) {
		struct occ_instr *in = &s->at[i];
		if (sends(in) != send)
			continue;
		int sender = in->op == send ? s->stage : in->peer;
		set_critical(in, rule == OCC_MARK_ALL || (rule == OCC_MARK_TAIL &&
							  in_tail(s, send, sender, in->mb)));
	}
}

void occ_schedule_follow(struct occ_schedule *s)
{
	int M = s->nmicro;
	uint8_t *critical =
		occ_alloc(2 * (size_t)M, 1); /* by link (the one above first), micro-batch */
	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < s->n; i++) {
			struct occ_instr *in = &s->at[i];
			uint8_t *c = &critical[(in->peer > s->stage ? M : 0) +
					       (in->mb < 0 ? 0 : in->mb)];
			if (pass == 0 && sends(in) == OCC_SEND_ACT)
				*c = in->flags & OCC_CRITICAL;
			else if (pass == 1 && sends(in) == OCC_SEND_GRAD)
				set_critical(in, *c);
		}
	occ_free(critical);
}

static void print_instr(const struct occ_instr *in, FILE *out)
{
	fprintf(out, "  %-12s", occ_op_name[in->op]);
	if (in->mb >= 0)
		fprintf(out, " mb %d", in->mb);
	if (in->peer >= 0)
		fprintf(out, " stage %d", in->peer);
	fputs(in->flags & OCC_CRITICAL ? " critical\n" : "\n", out);
}

void occ_schedule_print(const struct occ_schedule *s, FILE *out)
{
	fprintf(out, "stage %d of %d, %d micro-batches, %d slots\n", s->stage, s->nstages,
		s->nmicro, s->slots);
	for (int i = 0; i < s->n; i++)
		print_instr(&s->at[i], out);
}

void occ_schedule_release(struct occ_schedule *s)
{
	occ_free(s->at);
	memset(s, 0, sizeof(*s));
}

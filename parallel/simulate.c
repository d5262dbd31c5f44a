/* Plays the lists of all stages of a step without a transport: times, slots in flight, deadlocks.
 *
 * A link and direction has one wire at each end. Posted: message k starts when it has been sent and
 * the receiver has taken k-1, and the sender may send k+1 once k has arrived. Rendezvous: both ends
 * stand still until the transfer is over. A time depends only on earlier ones, so stages may be
 * advanced in any order; when none can go on the step is over or stuck. */
#include "parallel/schedule.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"

/* One direction of a link; [messages] times, < 0 until they are known. */
struct wire {
	double *sent, *cost;
	double *taken;  /* rendezvous: when the receiver was ready */
	double *waited; /* posted: how long the receiver waited for the transfer itself */
	int nsent, ntaken;
};

struct stage {
	double clock, busy;
	int pc, slots;
};

struct play {
	const struct occ_schedule *all;
	const struct occ_cost *cost;
	enum occ_send_mode mode;
	struct stage *stage;
	struct wire *wire; /* [2 * stage] to the next stage, [2 * stage + 1] to the one before */
	struct occ_sim *out;
};

static double later(double a, double b)
{
	return a > b ? a : b;
}

/* When message k is on the receiver's wire, < 0 if that is not settled yet. */
static double arrival(const struct wire *w, int k)
{
	if (w->sent[k] < 0 || (k && w->taken[k - 1] < 0))
		return -1;
	return later(w->sent[k], k ? w->taken[k - 1] : 0) + w->cost[k];
}

static double send_cost(const struct occ_cost *c, const struct occ_instr *in)
{
	if (in->flags & OCC_CRITICAL)
		return c->send_critical;
	return in->op == OCC_SEND_ACT ? c->send_act : c->send_grad;
}

/* The end of a meeting of both ends; < 0 while one is missing. */
static double meeting(const struct wire *w, int k)
{
	return w->sent[k] < 0 || w->taken[k] < 0 ? -1 : later(w->sent[k], w->taken[k]) + w->cost[k];
}

static int send(struct play *p, struct stage *g, struct wire *w, const struct occ_instr *in)
{
	int k = w->nsent;
	if (p->mode == OCC_SEND_RENDEZVOUS) {
		w->cost[k] = send_cost(p->cost, in);
		w->sent[k] = w->sent[k] < 0 ? g->clock : w->sent[k];
		double end = meeting(w, k);
		if (end < 0)
			return 0;
		g->clock = end;
	} else {
		double free = k ? arrival(w, k - 1) : 0;
		if (free < 0)
			return 0;
		g->clock = w->sent[k] = later(g->clock, free);
		w->cost[k] = send_cost(p->cost, in);
	}
	w->nsent++;
	return 1;
}

static int recv(struct play *p, struct stage *g, struct wire *w)
{
	int k = w->ntaken;
	double end;
	if (p->mode == OCC_SEND_RENDEZVOUS) {
		w->taken[k] = w->taken[k] < 0 ? g->clock : w->taken[k];
		end = meeting(w, k);
	} else {
		end = arrival(w, k);
	}
	if (end < 0)
		return 0;
	double wait = later(end - g->clock, 0);
	w->waited[k] = wait < w->cost[k] ? wait : w->cost[k];
	g->clock = later(g->clock, end);
	if (p->mode == OCC_SEND_POSTED)
		w->taken[k] = g->clock;
	w->ntaken++;
	return 1;
}

static void compute(struct play *p, int s, double time, int slots)
{
	struct stage *g = &p->stage[s];
	g->clock += time;
	g->busy += time;
	g->slots += slots;
	if (g->slots > p->out->max_slots[s])
		p->out->max_slots[s] = g->slots;
}

/* One instruction of stage s; 0 if it cannot be done yet. */
static int advance(struct play *p, int s)
{
	struct stage *g = &p->stage[s];
	if (g->pc == p->all[s].n)
		return 0;
	const struct occ_instr *in = &p->all[s].at[g->pc];
	int done = 1;
	switch ((enum occ_op)in->op) {
	case OCC_FORWARD:
		compute(p, s, p->cost->forward, 1);
		break;
	case OCC_BACKWARD:
		compute(p, s, p->cost->backward, -1);
		break;
	case OCC_SEND_ACT:
		done = send(p, g, &p->wire[2 * s], in);
		break;
	case OCC_SEND_GRAD:
		done = send(p, g, &p->wire[2 * s + 1], in);
		break;
	case OCC_RECV_ACT:
		done = recv(p, g, &p->wire[2 * in->peer]);
		break;
	case OCC_RECV_GRAD:
		done = recv(p, g, &p->wire[2 * in->peer + 1]);
		break;
	case OCC_REDUCE_GRADS:
	case OCC_REDUCE_EMBED:
	case OCC_NOPS:
		break;
	}
	g->pc += done;
	return done;
}

static void wire_init(struct wire *w, int messages)
{
	size_t n = (size_t)messages;
	w->sent = occ_alloc(n, sizeof(double));
	w->cost = occ_alloc(n, sizeof(double));
	w->taken = occ_alloc(n, sizeof(double));
	w->waited = occ_alloc(n, sizeof(double));
	for (int k = 0; k < messages; k++)
		w->sent[k] = w->taken[k] = -1;
}

static void wire_release(struct wire *w)
{
	occ_free(w->sent);
	occ_free(w->cost);
	occ_free(w->taken);
	occ_free(w->waited);
}

static void judge(const struct play *p, int P, struct occ_sim *out)
{
	double busy = 0;
	for (int s = 0; s < P; s++) {
		busy += p->stage[s].busy;
		out->total = later(out->total, p->stage[s].clock);
		if (out->stuck_stage < 0 && p->stage[s].pc < p->all[s].n) {
			out->stuck_stage = s;
			out->stuck_at = p->stage[s].pc;
		}
	}
	out->bubble = out->total > 0 ? 1 - busy / (P * out->total) : 0;
	if (out->stuck_stage >= 0)
		out->total = -1;
}

static void play_init(struct play *p, int P)
{
	size_t stages = (size_t)P;
	p->stage = occ_alloc(stages, sizeof(*p->stage));
	p->wire = occ_alloc(2 * stages, sizeof(*p->wire));
	for (int i = 0; i < 2 * P; i++)
		wire_init(&p->wire[i], p->all[0].nmicro);
}

static void play(struct play *p, int P)
{
	for (int moved = 1; moved;) {
		moved = 0;
		for (int s = 0; s < P; s++)
			while (advance(p, s))
				moved = 1;
	}
	judge(p, P, p->out);
}

static void play_release(struct play *p, int P)
{
	for (int i = 0; i < 2 * P; i++)
		wire_release(&p->wire[i]);
	occ_free(p->wire);
	occ_free(p->stage);
}

void occ_simulate(const struct occ_schedule *all, int P, const struct occ_cost *cost,
		  enum occ_send_mode mode, struct occ_sim *out)
{
	struct play p = {.all = all, .cost = cost, .mode = mode, .out = out};
	occ_check(P >= 1 && P <= 64, "%d stages", P);
	*out = (struct occ_sim){.stuck_stage = -1, .stuck_at = -1};
	play_init(&p, P);
	play(&p, P);
	play_release(&p, P);
}

/* The wire of the transfer that instruction `in` of list s is an end of. */
static const struct wire *wire_of(const struct play *p, const struct occ_schedule *s,
				  const struct occ_instr *in, enum occ_op send)
{
	int sender = in->op == send ? s->stage : in->peer;
	return &p->wire[2 * sender + (send == OCC_SEND_GRAD)];
}

void occ_schedule_mark_slack(struct occ_schedule *s, enum occ_op send, int P, int M,
			     const struct occ_cost *cost)
{
	enum occ_op recv = send == OCC_SEND_GRAD ? OCC_RECV_GRAD : OCC_RECV_ACT;
	struct occ_sim sim = {.stuck_stage = -1, .stuck_at = -1};
	struct occ_schedule *all = occ_alloc((size_t)P, sizeof(*all));
	struct play p = {.all = all, .cost = cost, .mode = OCC_SEND_POSTED, .out = &sim};
	for (int i = 0; i < P; i++)
		occ_schedule_1f1b(&all[i], i, P, M);
	play_init(&p, P);
	play(&p, P);
	for (int i = 0; i < s->n; i++) {
		struct occ_instr *in = &s->at[i];
		if (in->op != send && in->op != recv)
			continue;
		int waits = wire_of(&p, s, in, send)->waited[in->mb] > 0;
		in->flags = (uint8_t)((in->flags & ~OCC_CRITICAL) | (waits ? OCC_CRITICAL : 0));
	}
	play_release(&p, P);
	for (int i = 0; i < P; i++)
		occ_schedule_release(&all[i]);
	occ_free(all);
}

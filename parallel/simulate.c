/* Event by event: first all that can go on at once does (settle), then time passes until the next
 * pass or transfer is over (pass_time). When nothing is under way the step is over or stuck. */
#include "parallel/simulate.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"

/* Something that takes time: `left` of it at a rate that may change. */
struct flow {
	double delay, left, full, rate;
};

/* One direction of a link. Messages travel one after the other. */
struct wire {
	int posted, arrived, taken;
	int moving;  /* message `arrived` is under way */
	int waiting; /* the receiver stands still for it */
	struct flow flow;
	double began, waiting_since;
	double *bytes, *delay; /* [messages] */
	double *waited;        /* [messages] how long the receiver waited for the transfer itself */
};

/* Within an instruction. */
enum phase { START, WORK, POSTED, MOVE };

struct stage {
	enum phase phase;
	struct flow flow;
	double busy;
	int pc, slots, waits; /* waits: a span of waiting is open */
};

struct play {
	const struct occ_sim_conf *conf;
	struct stage *stage;
	struct wire *wire; /* [2 * stage] to the next stage, [2 * stage + 1] to the one before */
	double now;
	struct occ_sim *out;
};

static double now_ms(void *clock)
{
	return 1e3 * *(const double *)clock;
}

static int sends(enum occ_op op)
{
	return op == OCC_SEND_ACT || op == OCC_SEND_GRAD;
}

static int receives(enum occ_op op)
{
	return op == OCC_RECV_ACT || op == OCC_RECV_GRAD;
}

static int sums(enum occ_op op)
{
	return op == OCC_REDUCE_GRADS || op == OCC_REDUCE_EMBED;
}

/* The wire that an instruction of stage s is an end of. */
static struct wire *wire_at(const struct play *p, int s, const struct occ_instr *in)
{
	int sender = sends((enum occ_op)in->op) ? s : in->peer;
	int back = in->op == OCC_SEND_GRAD || in->op == OCC_RECV_GRAD;
	return &p->wire[2 * sender + back];
}

static int is_over(const struct flow *f)
{
	return f->delay <= 0 && f->left <= 1e-12 * f->full;
}

static void start(struct flow *f, double delay, double amount)
{
	*f = (struct flow){.delay = delay, .left = amount, .full = amount};
}

/* ---- Spans, where a trace is wanted. ---- */

static struct occ_trace *trace_of(const struct play *p, int s)
{
	return p->conf->trace ? &p->conf->trace[s] : NULL;
}

static enum occ_act act_of(enum occ_op op)
{
	if (op == OCC_FORWARD || op == OCC_BACKWARD)
		return op == OCC_FORWARD ? OCC_ACT_FORWARD : OCC_ACT_BACKWARD;
	if (sums(op))
		return op == OCC_REDUCE_GRADS ? OCC_ACT_REDUCE : OCC_ACT_EMBEDDING;
	return sends(op) ? OCC_ACT_SEND : OCC_ACT_RECEIVE;
}

static void open_span(const struct play *p, int s, const struct occ_instr *in)
{
	const struct occ_sim_stage *c = &p->conf->stage[s];
	int critical = in->flags & OCC_CRITICAL ? 1 : 0;
	occ_trace_begin(trace_of(p, s), act_of((enum occ_op)in->op));
	struct occ_span *span = occ_trace_span(trace_of(p, s));
	if (!span)
		return;
	span->mb = in->mb;
	span->peer = in->peer;
	span->critical = critical;
	span->codec = c->codec[in->op][critical];
	span->wire_bytes = (int64_t)c->bytes[in->op][critical];
	span->inter_node_bytes = c->crosses[in->op] ? span->wire_bytes : 0;
	span->messages = span->wire_bytes > 0;
}

/* Waiting is a span of its own while it lasts. */
static int stand(struct play *p, int s, int blocked)
{
	struct stage *g = &p->stage[s];
	if (blocked && !g->waits)
		occ_trace_begin(trace_of(p, s), OCC_ACT_WAIT);
	if (!blocked && g->waits)
		occ_trace_end(trace_of(p, s));
	g->waits = blocked;
	return blocked;
}

/* ---- One instruction. ---- */

/* What has to be there before the instruction's own work; 1: it is not. */
static int is_blocked(struct play *p, int s, const struct occ_instr *in)
{
	struct wire *w;
	if (sends((enum occ_op)in->op)) {
		w = wire_at(p, s, in);
		return w->posted - w->arrived >= p->conf->wires;
	}
	if (!receives((enum occ_op)in->op))
		return 0;
	w = wire_at(p, s, in);
	if (w->arrived > w->taken)
		return w->waiting = 0;
	if (!w->waiting)
		w->waiting_since = p->now;
	return w->waiting = 1;
}

static void post(struct play *p, int s, const struct occ_instr *in)
{
	const struct occ_sim_stage *c = &p->conf->stage[s];
	struct wire *w = wire_at(p, s, in);
	int critical = in->flags & OCC_CRITICAL ? 1 : 0;
	w->bytes[w->posted] = c->bytes[in->op][critical];
	w->delay[w->posted] = c->delay[in->op][critical];
	w->posted++;
}

/* The instruction's own work is done; its slots, wires and flows follow. Returns the next phase. */
static enum phase finish_work(struct play *p, int s, const struct occ_instr *in)
{
	struct stage *g = &p->stage[s];
	const struct occ_sim_stage *c = &p->conf->stage[s];
	if (in->op == OCC_FORWARD && ++g->slots > p->out->max_slots[s])
		p->out->max_slots[s] = g->slots;
	g->slots -= in->op == OCC_BACKWARD;
	if (in->op == OCC_FORWARD || in->op == OCC_BACKWARD)
		g->busy += c->compute[in->op][0];
	if (sends((enum occ_op)in->op))
		post(p, s, in);
	if (receives((enum occ_op)in->op))
		wire_at(p, s, in)->taken++;
	if (sums((enum occ_op)in->op)) {
		start(&g->flow, c->delay[in->op][0], c->bytes[in->op][0]);
		return MOVE;
	}
	return POSTED;
}

/* 1 while a posted message keeps its sender. */
static int is_kept(const struct play *p, int s, const struct occ_instr *in)
{
	if (p->conf->mode == OCC_SEND_POSTED || !sends((enum occ_op)in->op))
		return 0;
	const struct wire *w = wire_at(p, s, in);
	return w->arrived < w->posted;
}

/* Takes stage s on; 1 if it got anywhere. */
static int advance(struct play *p, int s)
{
	struct stage *g = &p->stage[s];
	const struct occ_schedule *list = &p->conf->all[s];
	if (g->pc == list->n)
		return 0;
	const struct occ_instr *in = &list->at[g->pc];
	int critical = in->flags & OCC_CRITICAL ? 1 : 0;
	switch (g->phase) {
	case START:
		if (!g->waits)
			open_span(p, s, in);
		if (stand(p, s, is_blocked(p, s, in)))
			return 0;
		start(&g->flow, 0, p->conf->stage[s].compute[in->op][critical]);
		g->phase = WORK;
		return 1;
	case WORK:
		if (!is_over(&g->flow))
			return 0;
		g->phase = finish_work(p, s, in);
		return 1;
	case POSTED:
		if (is_kept(p, s, in))
			return 0;
		break;
	case MOVE:
		if (!is_over(&g->flow))
			return 0;
		break;
	}
	occ_trace_end(trace_of(p, s));
	g->phase = START;
	g->pc++;
	return 1;
}

/* Takes the message at the head of a wire on; 1 if it left or arrived. */
static int carry(struct play *p, struct wire *w)
{
	int k = w->arrived;
	if (!w->moving) {
		int room = p->conf->mode == OCC_SEND_POSTED ? k - w->taken < p->conf->wires
							    : w->waiting;
		if (w->posted == k || !room)
			return 0;
		start(&w->flow, w->delay[k], w->bytes[k]);
		w->began = p->now;
		w->moving = 1;
		return 1;
	}
	if (!is_over(&w->flow))
		return 0;
	if (w->waiting)
		w->waited[k] = p->now - (w->began > w->waiting_since ? w->began : w->waiting_since);
	w->arrived++;
	w->moving = 0;
	return 1;
}

static void settle(struct play *p)
{
	for (int moved = 1; moved;) {
		moved = 0;
		for (int s = 0; s < p->conf->P; s++) {
			while (advance(p, s))
				moved = 1;
			while (carry(p, &p->wire[2 * s]) || carry(p, &p->wire[2 * s + 1]))
				moved = 1;
		}
	}
}

/* ---- Rates. ---- */

static int host_of(const struct occ_sim_net *n, int node)
{
	return n->hosts ? node * n->hosts / n->nodes : node;
}

/* Ranks of a stage that want a core now. */
static int wants_core(const struct play *p, int s)
{
	const struct stage *g = &p->stage[s];
	return g->pc < p->conf->all[s].n && g->phase == WORK ? p->conf->stage[s].sharers : 0;
}

static double core_share(const struct play *p, int s)
{
	const struct occ_sim_conf *c = p->conf;
	int host = host_of(&c->net, c->stage[s].node), wanted = 0;
	if (c->net.cores <= 0)
		return 1;
	for (int t = 0; t < c->P; t++)
		if (host_of(&c->net, c->stage[t].node) == host)
			wanted += wants_core(p, t);
	return wanted > c->net.cores ? c->net.cores / wanted : 1;
}

/* Stands for the node of stage s: the first stage there. Nodes may be more than there are stages.
 */
static int node_at(const struct play *p, int s)
{
	const struct occ_sim_stage *c = p->conf->stage;
	int t = 0;
	while (c[t].node != c[s].node)
		t++;
	return t;
}

/* One transfer that leaves or enters a node: from the node of stage s to that of stage `to`. */
static void load_node(const struct play *p, int s, int to, double *out, double *in)
{
	out[node_at(p, s)]++;
	in[node_at(p, to)]++;
}

static double node_share(const struct play *p, int s, int to, const double *out, const double *in)
{
	double a = out[node_at(p, s)], b = in[node_at(p, to)], users = a > b ? a : b;
	return users > 0 ? p->conf->net.node / users : p->conf->net.node;
}

static enum occ_op op_of(int wire)
{
	return wire % 2 ? OCC_SEND_GRAD : OCC_SEND_ACT;
}

static int is_summing(const struct play *p, int s)
{
	return p->stage[s].pc < p->conf->all[s].n && p->stage[s].phase == MOVE;
}

/* Visits every transfer that is under way: its flow, its op, its two stages. */
static struct flow *transfer(const struct play *p, int i, enum occ_op *op, int *from, int *to)
{
	int P = p->conf->P;
	if (i < 2 * P) {
		*op = op_of(i);
		*from = i / 2;
		*to = i % 2 ? *from - 1 : *from + 1;
		return p->wire[i].moving ? &p->wire[i].flow : NULL;
	}
	*from = *to = i - 2 * P;
	if (!is_summing(p, *from))
		return NULL;
	*op = (enum occ_op)p->conf->all[*from].at[p->stage[*from].pc].op;
	return &p->stage[*from].flow;
}

static void share_out(struct play *p)
{
	double out[OCC_SIM_STAGES] = {0}, in[OCC_SIM_STAGES] = {0};
	const struct occ_sim_conf *c = p->conf;
	enum occ_op op;
	int from, to;
	for (int i = 0; i < 3 * c->P; i++) {
		const struct flow *f = transfer(p, i, &op, &from, &to);
		if (f && f->delay <= 0 && c->stage[from].crosses[op])
			load_node(p, from, to, out, in);
	}
	for (int i = 0; i < 3 * c->P; i++) {
		struct flow *f = transfer(p, i, &op, &from, &to);
		if (f)
			f->rate = c->stage[from].crosses[op] ? node_share(p, from, to, out, in)
							     : c->net.inside;
	}
	for (int s = 0; s < c->P; s++)
		if (wants_core(p, s))
			p->stage[s].flow.rate = core_share(p, s);
}

/* ---- Time. ---- */

/* The i-th thing under way: transfers, then passes; NULL if there is none. */
static struct flow *under_way(struct play *p, int i)
{
	enum occ_op op;
	int P = p->conf->P, from, to;
	if (i < 3 * P)
		return transfer(p, i, &op, &from, &to);
	return wants_core(p, i - 3 * P) ? &p->stage[i - 3 * P].flow : NULL;
}

/* To the next event; 0 if nothing is under way. */
static int pass_time(struct play *p)
{
	double dt = -1;
	int n = 4 * p->conf->P;
	share_out(p);
	for (int i = 0; i < n; i++) {
		const struct flow *f = under_way(p, i);
		double t = !f ? -1 : f->delay > 0 ? f->delay : f->left / f->rate;
		if (f && (dt < 0 || t < dt))
			dt = t;
	}
	if (dt < 0)
		return 0;
	for (int i = 0; i < n; i++) {
		struct flow *f = under_way(p, i);
		if (!f)
			continue;
		if (f->delay > 0)
			f->delay = f->delay - dt < 1e-12 * dt ? 0 : f->delay - dt;
		else
			f->left -= dt * f->rate;
	}
	p->now += dt;
	return 1;
}

static void judge(const struct play *p)
{
	struct occ_sim *out = p->out;
	double busy = 0;
	int P = p->conf->P;
	for (int s = 0; s < P; s++) {
		busy += p->stage[s].busy;
		if (out->stuck_stage < 0 && p->stage[s].pc < p->conf->all[s].n) {
			out->stuck_stage = s;
			out->stuck_at = p->stage[s].pc;
		}
	}
	out->bubble = p->now > 0 ? 1 - busy / (P * p->now) : 0;
	out->total = out->stuck_stage >= 0 ? -1 : p->now;
}

static void play_init(struct play *p, const struct occ_sim_conf *conf, struct occ_sim *out)
{
	size_t P = (size_t)conf->P;
	occ_check(conf->P >= 1 && conf->P <= OCC_SIM_STAGES, "%d stages", conf->P);
	*out = (struct occ_sim){.stuck_stage = -1, .stuck_at = -1};
	*p = (struct play){.conf = conf, .out = out};
	p->stage = occ_alloc(P, sizeof(*p->stage));
	p->wire = occ_alloc(2 * P, sizeof(*p->wire));
	for (size_t i = 0; i < 2 * P; i++) {
		size_t n = (size_t)conf->all[0].nmicro;
		p->wire[i].bytes = occ_alloc(n, sizeof(double));
		p->wire[i].delay = occ_alloc(n, sizeof(double));
		p->wire[i].waited = occ_alloc(n, sizeof(double));
	}
	for (int s = 0; s < conf->P && conf->trace; s++)
		occ_trace_init(&conf->trace[s], now_ms, &p->now);
}

static void play(struct play *p)
{
	do
		settle(p);
	while (pass_time(p));
	judge(p);
}

static void play_release(struct play *p)
{
	for (int i = 0; i < 2 * p->conf->P; i++) {
		occ_free(p->wire[i].bytes);
		occ_free(p->wire[i].delay);
		occ_free(p->wire[i].waited);
	}
	occ_free(p->wire);
	occ_free(p->stage);
}

void occ_sim_play(const struct occ_sim_conf *conf, struct occ_sim *out)
{
	struct play p;
	play_init(&p, conf, out);
	play(&p);
	play_release(&p);
}

/* ---- All alike. ---- */

/* Nothing crosses and a byte inside a node takes a second: times are given as bytes. */
static struct occ_sim_stage *alike(const struct occ_cost *cost, int P)
{
	struct occ_sim_stage one = {.sharers = 1};
	one.compute[OCC_FORWARD][0] = cost->forward;
	one.compute[OCC_BACKWARD][0] = cost->backward;
	one.bytes[OCC_SEND_ACT][0] = cost->send_act;
	one.bytes[OCC_SEND_GRAD][0] = cost->send_grad;
	one.bytes[OCC_SEND_ACT][1] = one.bytes[OCC_SEND_GRAD][1] = cost->send_critical;
	struct occ_sim_stage *all = occ_alloc((size_t)P, sizeof(*all));
	for (int s = 0; s < P; s++)
		all[s] = one;
	return all;
}

void occ_simulate(const struct occ_schedule *all, int P, const struct occ_cost *cost,
		  enum occ_send_mode mode, struct occ_sim *out)
{
	struct occ_sim_stage *stage = alike(cost, P);
	struct occ_sim_conf conf = {all, P, mode, 1, stage, {.inside = 1}, NULL};
	occ_sim_play(&conf, out);
	occ_free(stage);
}

void occ_schedule_mark_slack(struct occ_schedule *s, enum occ_op send, int P, int M,
			     const struct occ_cost *cost)
{
	enum occ_op recv = send == OCC_SEND_GRAD ? OCC_RECV_GRAD : OCC_RECV_ACT;
	struct occ_schedule *all = occ_alloc((size_t)P, sizeof(*all));
	struct occ_sim_stage *stage = alike(cost, P);
	struct occ_sim_conf conf = {all, P, OCC_SEND_POSTED, 1, stage, {.inside = 1}, NULL};
	struct occ_sim sim;
	struct play p;
	for (int i = 0; i < P; i++)
		occ_schedule_1f1b(&all[i], i, P, M);
	play_init(&p, &conf, &sim);
	play(&p);
	for (int i = 0; i < s->n; i++) {
		struct occ_instr *in = &s->at[i];
		if (in->op != send && in->op != recv)
			continue;
		int waits = wire_at(&p, s->stage, in)->waited[in->mb] > 0;
		in->flags = (uint8_t)((in->flags & ~OCC_CRITICAL) | (waits ? OCC_CRITICAL : 0));
	}
	play_release(&p);
	for (int i = 0; i < P; i++)
		occ_schedule_release(&all[i]);
	occ_free(stage);
	occ_free(all);
}

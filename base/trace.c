/* Spans in an array that grows; a step's are a few hundred. */
#include "base/trace.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"

const char *const occ_act_name[OCC_NACTS] = {
	[OCC_ACT_FORWARD] = "forward",     [OCC_ACT_BACKWARD] = "backward",
	[OCC_ACT_SEND] = "send",           [OCC_ACT_RECEIVE] = "receive",
	[OCC_ACT_REDUCE] = "reduce",       [OCC_ACT_EMBEDDING] = "embedding",
	[OCC_ACT_OPTIMIZER] = "optimizer", [OCC_ACT_WAIT] = "wait",
	[OCC_ACT_ENCODE] = "encode",       [OCC_ACT_DECODE] = "decode",
};

void occ_trace_init(struct occ_trace *t, double (*now_ms)(void *clock), void *clock)
{
	*t = (struct occ_trace){.now_ms = now_ms, .clock = clock, .open = -1};
}

void occ_trace_release(struct occ_trace *t)
{
	occ_free(t->at);
	occ_free(t->outer);
	memset(t, 0, sizeof(*t));
}

void occ_trace_clear(struct occ_trace *t)
{
	occ_check(t->open < 0, "a trace is cleared within %s", occ_act_name[t->at[t->open].act]);
	t->n = 0;
}

static void grow(struct occ_trace *t)
{
	int cap = t->cap ? 2 * t->cap : 256;
	struct occ_span *at = occ_alloc((size_t)cap, sizeof(*at));
	int *outer = occ_alloc((size_t)cap, sizeof(*outer));
	if (t->n) {
		memcpy(at, t->at, (size_t)t->n * sizeof(*at));
		memcpy(outer, t->outer, (size_t)t->n * sizeof(*outer));
	}
	occ_free(t->at);
	occ_free(t->outer);
	t->at = at;
	t->outer = outer;
	t->cap = cap;
}

void occ_trace_begin(struct occ_trace *t, enum occ_act act)
{
	if (!t)
		return;
	if (t->n == t->cap)
		grow(t);
	t->at[t->n] = (struct occ_span){
		.act = act,
		.depth = t->open < 0 ? 0 : t->at[t->open].depth + 1,
		.mb = -1,
		.peer = -1,
		.begin_ms = t->now_ms(t->clock),
	};
	t->outer[t->n] = t->open;
	t->open = t->n++;
}

void occ_trace_end(struct occ_trace *t)
{
	if (!t)
		return;
	occ_check(t->open >= 0, "no span is open");
	t->at[t->open].end_ms = t->now_ms(t->clock);
	t->open = t->outer[t->open];
}

struct occ_span *occ_trace_span(struct occ_trace *t)
{
	return t && t->open >= 0 ? &t->at[t->open] : NULL;
}

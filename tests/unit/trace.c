/* Spans: nesting, growth, order, clearing, and no trace at all. */
#include "base/trace.h"

#include <string.h>

#include "base/mem.h"
#include "tests/check.h"

/* A clock that passes by one with each look. */
static double look(void *clock)
{
	return ++*(double *)clock;
}

/* Nested to `depth`, `n` times: begin and end times are a counter's, so all of them are known. */
static void check_nesting(int depth, int n)
{
	double clock = 0;
	struct occ_trace t;
	occ_trace_init(&t, look, &clock);
	for (int i = 0; i < n; i++) {
		for (int k = 0; k < depth; k++) {
			occ_trace_begin(&t, (enum occ_act)(k % OCC_NACTS));
			CHECK(occ_trace_span(&t) == &t.at[t.n - 1], "%d x %d: innermost", n, depth);
			occ_trace_span(&t)->mb = i;
		}
		for (int k = 0; k < depth; k++)
			occ_trace_end(&t);
		CHECK(!occ_trace_span(&t), "%d x %d: all are closed", n, depth);
	}
	CHECK(t.n == n * depth && t.cap >= t.n && t.open == -1, "%d x %d: %d spans", n, depth, t.n);
	for (int i = 0; i < t.n; i++) {
		const struct occ_span *s = &t.at[i];
		int k = i % depth, begin = i / depth * 2 * depth + k + 1;
		CHECK(s->depth == k && s->mb == i / depth && s->peer == -1 && !s->codec &&
			      !s->critical && !s->wire_bytes && (int)s->act == k % OCC_NACTS,
		      "%d x %d: span %d, depth %d", n, depth, i, s->depth);
		CHECK(s->begin_ms == begin && s->end_ms == begin + 2 * (depth - k) - 1,
		      "%d x %d: span %d, %g to %g", n, depth, i, s->begin_ms, s->end_ms);
	}
	occ_trace_clear(&t);
	CHECK(t.n == 0, "cleared");
	occ_trace_begin(&t, OCC_ACT_WAIT);
	occ_trace_end(&t);
	CHECK(t.n == 1 && t.at[0].depth == 0 && t.at[0].mb == -1, "after clearing");
	occ_trace_release(&t);
}

/* A span goes on after one inside it has ended, and then is the innermost one again. */
static void check_siblings(void)
{
	double clock = 0;
	struct occ_trace t;
	occ_trace_init(&t, look, &clock);
	occ_trace_begin(&t, OCC_ACT_SEND);
	for (int i = 0; i < 2; i++) {
		occ_trace_begin(&t, OCC_ACT_ENCODE);
		occ_trace_end(&t);
		occ_trace_span(&t)->messages++;
	}
	occ_trace_end(&t);
	CHECK(t.n == 3 && t.at[0].messages == 2 && t.at[1].depth == 1 && t.at[2].depth == 1 &&
		      t.at[0].end_ms == 6,
	      "two inside one");
	occ_trace_release(&t);
}

int main(void)
{
	static const int shapes[][2] = {{1, 1}, {1, 255}, {1, 257}, {3, 1}, {10, 1000}, {300, 2}};
	for (int i = 0; i < (int)(sizeof(shapes) / sizeof(shapes[0])); i++)
		check_nesting(shapes[i][0], shapes[i][1]);
	check_siblings();
	occ_trace_begin(NULL, OCC_ACT_WAIT);
	occ_trace_end(NULL);
	CHECK(!occ_trace_span(NULL), "no trace, no span");
	for (int a = 0; a < OCC_NACTS; a++)
		for (int b = 0; b < a; b++)
			CHECK(occ_act_name[a] && strcmp(occ_act_name[a], occ_act_name[b]) != 0,
			      "acts %d and %d have one name", a, b);
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}

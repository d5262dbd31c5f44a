/* What a rank did when: spans of one clock, nested. Recorded only while a trace is set on the
 * device handle (base/device.h); without one a call costs a test.
 *
 * The clock is the machine's, or that of a dry device, whose time passes as its rates say: then a
 * trace is a forecast (trainer/plan.c). */
#ifndef OCC_BASE_TRACE_H
#define OCC_BASE_TRACE_H

#include <stdint.h>

enum occ_act {
	OCC_ACT_FORWARD,
	OCC_ACT_BACKWARD,
	OCC_ACT_SEND,    /* encodes, waits for a free wire, posts */
	OCC_ACT_RECEIVE, /* waits, decodes, gathers over tp */
	OCC_ACT_REDUCE,
	OCC_ACT_EMBEDDING,
	OCC_ACT_OPTIMIZER,
	OCC_ACT_WAIT, /* inside others: nothing to do but wait for a message */
	OCC_ACT_ENCODE,
	OCC_ACT_DECODE,
	OCC_NACTS
};
extern const char *const occ_act_name[OCC_NACTS];

struct occ_span {
	enum occ_act act;
	int depth;         /* of spans that enclose it */
	int critical;      /* 1: a transfer that the marks chose */
	int mb, peer;      /* micro-batch, stage of the other end; -1: none */
	const char *codec; /* that the transfer travels by; NULL: none */
	/* Sent by this rank within the span: before compression, as sent, the part of that which
	 * left the node, messages. */
	int64_t raw_bytes, wire_bytes, inter_node_bytes, messages;
	double begin_ms, end_ms;
};

struct occ_trace {
	double (*now_ms)(void *clock);
	void *clock;         /* borrowed */
	struct occ_span *at; /* owned; in the order of their beginnings */
	int n, cap, open;    /* open: the innermost open span, -1 */
	int *outer;          /* owned: [n] span that encloses each, -1 */
};

void occ_trace_init(struct occ_trace *t, double (*now_ms)(void *clock), void *clock);
void occ_trace_release(struct occ_trace *t);
void occ_trace_clear(struct occ_trace *t); /* no spans; none may be open */

/* A NULL trace makes both no-ops. Spans nest: `end` closes the innermost one. */
void occ_trace_begin(struct occ_trace *t, enum occ_act act);
void occ_trace_end(struct occ_trace *t);
/* The innermost open span, to be told more of; NULL: not traced. Valid until the next begin. */
struct occ_span *occ_trace_span(struct occ_trace *t);

#endif

/* Spans as JSON events; each rank makes its own text and rank 0 writes it down. */
#include "trainer/trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

static const char *const head = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
static const char *const tail = "\n]}\n"; /* taken back before more is written */

static void check(const struct occ_trace_file *t, int ok)
{
	if (!ok)
		occ_die(OCC_E_CKPT, "%s: cannot be written: %s", t->path, strerror(errno));
}

void occ_trace_file_open(struct occ_trace_file *t, const char *path)
{
	*t = (struct occ_trace_file){.f = fopen(path, "w"), .path = path};
	check(t, t->f && fprintf(t->f, "%s%s", head, tail) > 0 && !fflush(t->f));
}

void occ_trace_file_close(struct occ_trace_file *t)
{
	if (t->f)
		check(t, !fclose(t->f));
	t->f = NULL;
}

void occ_trace_file_put(struct occ_trace_file *t, const char *events)
{
	if (!*events)
		return;
	check(t, !fseek(t->f, -(long)strlen(tail), SEEK_END));
	check(t, fprintf(t->f, "%s%s%s", t->events++ ? ",\n" : "", events, tail) > 0);
	check(t, !fflush(t->f));
}

void occ_trace_file_track(struct occ_trace_file *t, int track, const char *name)
{
	char text[256];
	snprintf(text, sizeof(text),
		 "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":0,\"tid\":%d,"
		 "\"args\":{\"name\":\"%s\"}},\n"
		 "{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":0,\"tid\":%d,"
		 "\"args\":{\"sort_index\":%d}}",
		 track, name, track, track);
	occ_trace_file_put(t, text);
}

/* Colours of Chrome's page; Perfetto takes its own by the name, so a critical transfer has one. */
static const char *const color[OCC_NACTS] = {
	[OCC_ACT_FORWARD] = "thread_state_running",
	[OCC_ACT_BACKWARD] = "thread_state_runnable",
	[OCC_ACT_SEND] = "rail_load",
	[OCC_ACT_RECEIVE] = "rail_load",
	[OCC_ACT_REDUCE] = "rail_animation",
	[OCC_ACT_EMBEDDING] = "rail_animation",
	[OCC_ACT_OPTIMIZER] = "rail_response",
	[OCC_ACT_WAIT] = "grey",
	[OCC_ACT_ENCODE] = "yellow",
	[OCC_ACT_DECODE] = "olive",
};

static void put_args(const struct occ_span *s, int64_t iter, FILE *out)
{
	fprintf(out, "\"args\":{\"iter\":%lld", (long long)iter);
	if (s->mb >= 0)
		fprintf(out, ",\"micro_batch\":%d", s->mb);
	if (s->peer >= 0)
		fprintf(out, ",\"peer_stage\":%d", s->peer);
	if (s->codec)
		fprintf(out, ",\"codec\":\"%s\"", s->codec);
	if (s->messages)
		fprintf(out,
			",\"messages\":%lld,\"wire_bytes\":%lld,\"inter_node_wire_bytes\":%lld",
			(long long)s->messages, (long long)s->wire_bytes,
			(long long)s->inter_node_bytes);
	if (s->raw_bytes) /* a simulated sum does not know them */
		fprintf(out, ",\"raw_bytes\":%lld", (long long)s->raw_bytes);
	fputs("}}", out);
}

char *occ_trace_events(const struct occ_trace *t, int track, int64_t iter, double zero_ms,
		       double at_ms)
{
	char *text = NULL;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);
	for (int i = 0; out && i < t->n; i++) {
		const struct occ_span *s = &t->at[i];
		fprintf(out,
			"%s{\"ph\":\"X\",\"name\":\"%s%s\",\"cname\":\"%s\",\"pid\":0,\"tid\":%d,"
			"\"ts\":%.3f,\"dur\":%.3f,",
			i ? ",\n" : "", s->critical ? "critical " : "", occ_act_name[s->act],
			s->critical ? "terrible" : color[s->act], track,
			1e3 * (s->begin_ms - zero_ms + at_ms), 1e3 * (s->end_ms - s->begin_ms));
		put_args(s, iter, out);
	}
	if (!out || fclose(out))
		occ_die(OCC_E_DEVICE, "no memory for the text of a trace of %d spans", t->n);
	return text;
}

/* ---- Of a run. ---- */

static double machine_ms(void *clock)
{
	(void)clock;
	return occ_clock_ms();
}

void occ_tracer_open(struct occ_tracer *t, struct occ_run *run)
{
	memset(t, 0, sizeof(*t));
	t->run = run;
	occ_trace_init(&t->trace, machine_ms, NULL);
	snprintf(t->path, sizeof(t->path), "%s/trace.json", run->conf.log.dir);
}

void occ_tracer_close(struct occ_tracer *t)
{
	if (!t->run)
		return;
	occ_trace_file_close(&t->file);
	occ_trace_release(&t->trace);
}

static int is_traced(const struct occ_run *r)
{
	const struct occ_ints *steps = &r->conf.log.trace_iters;
	for (int i = 0; i < steps->n; i++)
		if (steps->at[i] == r->step + 1)
			return 1;
	return 0;
}

static void start_file(struct occ_tracer *t)
{
	struct occ_run *r = t->run;
	char name[64];
	t->began_ms = occ_clock_ms();
	occ_trace_file_open(&t->file, t->path);
	for (int k = 0; k < r->world->size; k++) {
		struct occ_place p = occ_place_of(&r->topo.layout, k);
		snprintf(name, sizeof(name), "rank %d: stage %d, replica %d, tensor %d", k, p.pp,
			 p.dp, p.tp);
		occ_trace_file_track(&t->file, k, name);
	}
}

void occ_tracer_begin(struct occ_tracer *t)
{
	struct occ_run *r = t->run;
	if (!is_traced(r))
		return;
	if (r->world->rank == 0 && !t->file.f)
		start_file(t);
	t->at_ms = occ_clock_ms() - t->began_ms;
	occ_comm_bcast(r->world, &t->at_ms, sizeof(t->at_ms), 0);
	occ_comm_barrier(r->world);
	t->zero_ms = occ_clock_ms();
	occ_trace_clear(&t->trace);
	r->dev->trace = &t->trace;
}

static void send_text(struct occ_comm *c, const char *text)
{
	struct occ_req length = {0}, body = {0};
	int64_t bytes = (int64_t)strlen(text) + 1;
	occ_comm_post_send(c, &bytes, sizeof(bytes), 0, OCC_TAG_TRACE, &length);
	occ_comm_post_send(c, text, (size_t)bytes, 0, OCC_TAG_TRACE, &body);
	occ_comm_wait(c, &length);
	occ_comm_wait(c, &body);
}

static void recv_text(struct occ_comm *c, int from, struct occ_trace_file *to)
{
	struct occ_req r = {0};
	int64_t bytes = 0;
	occ_comm_post_recv(c, &bytes, sizeof(bytes), from, OCC_TAG_TRACE, &r);
	occ_comm_wait(c, &r);
	char *text = occ_alloc((size_t)bytes, 1);
	occ_comm_post_recv(c, text, (size_t)bytes, from, OCC_TAG_TRACE, &r);
	occ_comm_wait(c, &r);
	occ_trace_file_put(to, text);
	occ_free(text);
}

void occ_tracer_end(struct occ_tracer *t)
{
	struct occ_run *r = t->run;
	if (!r->dev->trace)
		return;
	r->dev->trace = NULL;
	char *text = occ_trace_events(&t->trace, r->world->rank, r->step, t->zero_ms, t->at_ms);
	if (r->world->rank > 0)
		send_text(r->world, text);
	else
		occ_trace_file_put(&t->file, text);
	free(text);
	for (int k = 1; k < r->world->size && r->world->rank == 0; k++)
		recv_text(r->world, k, &t->file);
}

/* One direction between two stages. Knows the device of its tensor group, not what the rows mean.
 */
#include "parallel/link.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

static struct occ_device *device(const struct occ_link *l)
{
	return l->tp->dev;
}

static size_t row_bytes(const struct occ_link *l)
{
	return (size_t)l->conf.C * occ_type_size(device(l)->type);
}

/* Where this rank's slice lies in the whole matrix. */
static size_t slice_offset(const struct occ_link *l)
{
	return (size_t)occ_slice_row(l->conf.rows, l->tp->comm->rank, l->tp->comm->size) *
	       row_bytes(l);
}

struct occ_route occ_link_route(const struct occ_link *l, int critical, int64_t step)
{
	struct occ_transfer t = {
		.kind = l->conf.kind,
		.stage = l->conf.sender,
		.peers = 2,
		.inter_node = l->inter_node,
		.critical = critical,
		.step = step,
		.n = l->n,
		.m = l->conf.C,
		.type = device(l)->type,
	};
	return occ_route(l->conf.policy, &t);
}

size_t occ_link_bound(const struct occ_link *l)
{
	const struct occ_codec *c = &l->stream.codec;
	return l->followed ? c->ops->follow_bound(c) : c->ops->bound(c);
}

static void open_stream(struct occ_link *l)
{
	const struct occ_policy *p = l->conf.policy;
	const struct occ_site *s = occ_route_site(p, l->conf.kind);
	struct occ_stream_conf conf = {
		.knobs = s->knobs,
		.feedback = s->feedback,
		.forget = s->forget,
		.undo = p->undo,
		.decodes = !l->conf.sends,
		.key = p->key,
		.id = l->conf.id,
	};
	struct occ_supports *q = &l->supports;
	occ_stream_init(&l->stream, device(l), &conf, l->n, l->conf.C, device(l)->type);
	l->d_wire = device(l)->ops->alloc(device(l), occ_link_bound(l));
	if (l->conf.kind != OCC_PP_FORWARD || !occ_route_follows(p))
		return;
	q->slots = l->conf.slots;
	q->bytes = l->stream.codec.ops->support(&l->stream.codec);
	q->d_at = device(l)->ops->alloc(device(l), occ_size_mul((size_t)q->slots, q->bytes));
}

void occ_link_init(struct occ_link *l, const struct occ_link_conf *conf, struct occ_comm *world,
		   struct occ_group *tp, struct occ_supports *followed, struct occ_traffic *traffic)
{
	int t = tp->comm->rank, T = tp->comm->size;
	memset(l, 0, sizeof(*l));
	l->conf = *conf;
	l->comm = world;
	l->tp = tp;
	l->followed = followed;
	l->traffic = traffic;
	l->inter_node = occ_comm_crosses(world, conf->peer);
	l->n = occ_slice_row(conf->rows, t + 1, T) - occ_slice_row(conf->rows, t, T);
	l->bytes = (size_t)l->n * row_bytes(l);
	l->has_stream = l->n && occ_link_route(l, 1, INT64_MAX).codec;
	if (l->has_stream)
		open_stream(l);
	size_t longest =
		l->has_stream && occ_link_bound(l) > l->bytes ? occ_link_bound(l) : l->bytes;
	for (int i = 0; i < 2; i++)
		l->wire[i] = occ_alloc(device(l)->ops->dry ? 0 : longest, 1);
}

/* The time spent here is what the schedule could not hide. */
static void wait_for(struct occ_link *l, struct occ_req *r)
{
	struct occ_trace *trace = r->active ? device(l)->trace : NULL;
	double begin = occ_clock_ms();
	occ_trace_begin(trace, OCC_ACT_WAIT);
	occ_comm_wait(l->comm, r);
	occ_trace_end(trace);
	l->traffic->exposed_ms += occ_clock_ms() - begin;
}

void occ_link_drain(struct occ_link *l)
{
	for (int i = 0; i < 2; i++) {
		if (l->head[i].active)
			wait_for(l, &l->head[i]);
		if (l->req[i].active)
			wait_for(l, &l->req[i]);
	}
}

void occ_link_release(struct occ_link *l)
{
	if (!l->comm)
		return;
	occ_link_drain(l);
	for (int i = 0; i < 2; i++)
		occ_free(l->wire[i]);
	occ_stream_release(&l->stream);
	if (l->d_wire)
		device(l)->ops->free(device(l), l->d_wire);
	if (l->supports.d_at)
		device(l)->ops->free(device(l), l->supports.d_at);
	memset(l, 0, sizeof(*l));
}

static enum occ_tag tag_of(const struct occ_link *l, const struct occ_route *r)
{
	enum occ_tag dense = l->conf.kind == OCC_PP_FORWARD ? OCC_TAG_ACT : OCC_TAG_GRAD;
	return r->codec && r->codec->varies ? dense + 2 : dense;
}

static enum occ_tag length_tag_of(const struct occ_link *l)
{
	return l->conf.kind == OCC_PP_FORWARD ? OCC_TAG_ACT_LENGTH : OCC_TAG_GRAD_LENGTH;
}

/* The next instruction of the list that is a transfer of this link, and its route. */
static struct occ_route next_route(const struct occ_link *l, enum occ_op op, int *at)
{
	while (l->list->at[*at].op != op)
		++*at;
	return occ_link_route(l, l->list->at[(*at)++].flags & OCC_CRITICAL, l->step);
}

/* Lengths of wires that vary go before them. */
static int varies(const struct occ_route *r)
{
	return r->codec && r->codec->varies;
}

static enum occ_op recv_op(const struct occ_link *l)
{
	return l->conf.kind == OCC_PP_FORWARD ? OCC_RECV_ACT : OCC_RECV_GRAD;
}

static enum occ_op send_op(const struct occ_link *l)
{
	return l->conf.kind == OCC_PP_FORWARD ? OCC_SEND_ACT : OCC_SEND_GRAD;
}

/* Posts receives ahead: two at most, and never more than the step has. */
static void expect(struct occ_link *l)
{
	for (; l->left && l->posted - l->taken < 2; l->posted++, l->left--) {
		int w = (int)(l->posted % 2);
		struct occ_route r = next_route(l, recv_op(l), &l->posted_at);
		if (!l->bytes)
			continue;
		l->length[w] =
			r.codec ? (int64_t)occ_link_bound(l) : 0; /* what a dry run takes it for */
		if (varies(&r))
			occ_comm_post_recv(l->comm, &l->length[w], sizeof(l->length[w]),
					   l->conf.peer, length_tag_of(l), &l->head[w]);
		else
			occ_comm_post_recv(l->comm, l->wire[w],
					   r.codec ? occ_link_bound(l) : l->bytes, l->conf.peer,
					   tag_of(l, &r), &l->req[w]);
	}
}

void occ_link_begin(struct occ_link *l, const struct occ_schedule *list, enum occ_op op,
		    int64_t step)
{
	if (!l->comm)
		return;
	l->list = list;
	l->step = step;
	l->left = 0;
	l->training = 0;
	l->posted_at = l->taken_at = 0;
	for (int i = 0; i < list->n; i++) {
		l->left += list->at[i].op == op;
		l->training |= list->at[i].op == OCC_BACKWARD;
	}
	l->stream.frozen = !l->training;
	if (op == recv_op(l))
		expect(l);
}

/* The place of the next support in the queue, at its end or at its start. */
static char *support_at(const struct occ_supports *q, int64_t count)
{
	return q->d_at + (size_t)(count % q->slots) * q->bytes;
}

/* A training step's forward transfer leaves its support behind. */
static void push_support(struct occ_link *l)
{
	struct occ_supports *q = &l->supports;
	if (!q->slots || !l->training)
		return;
	occ_check(q->pushed - q->popped < q->slots, "%d supports", q->slots);
	device(l)->ops->copy(device(l), support_at(q, q->pushed++), l->d_wire, q->bytes);
}

static size_t encode(struct occ_link *l, const void *d_slice)
{
	if (l->followed)
		return occ_stream_follow(&l->stream, support_at(l->followed, l->followed->popped++),
					 d_slice, l->d_wire);
	size_t bytes = occ_stream_encode(&l->stream, d_slice, l->d_wire);
	push_support(l);
	return bytes;
}

static void decode(struct occ_link *l, size_t bytes, void *d_slice)
{
	if (l->followed) {
		occ_stream_decode_follow(&l->stream, support_at(l->followed, l->followed->popped++),
					 l->d_wire, d_slice);
		return;
	}
	occ_stream_decode(&l->stream, l->d_wire, bytes, d_slice);
	push_support(l);
}

/* What the stream spends goes to the counters of this kind, and to the trace. */
static size_t pack(struct occ_link *l, const void *d_slice)
{
	occ_trace_begin(device(l)->trace, OCC_ACT_ENCODE);
	size_t bytes = encode(l, d_slice);
	occ_trace_end(device(l)->trace);
	l->traffic->encode_ms += l->stream.encode_ms;
	l->stream.encode_ms = 0;
	return bytes;
}

static void unpack(struct occ_link *l, size_t bytes, void *d_slice)
{
	occ_trace_begin(device(l)->trace, OCC_ACT_DECODE);
	decode(l, bytes, d_slice);
	occ_trace_end(device(l)->trace);
	l->traffic->decode_ms += l->stream.decode_ms;
	l->stream.decode_ms = 0;
}

static void tell_codec(const struct occ_link *l, const struct occ_route *r)
{
	struct occ_span *s = occ_trace_span(device(l)->trace);
	if (s && r->codec)
		s->codec = r->codec->name;
}

void occ_link_send(struct occ_link *l, const void *d_x)
{
	struct occ_device *d = device(l);
	int w = (int)(l->posted++ % 2);
	struct occ_route r = next_route(l, send_op(l), &l->posted_at);
	const char *d_slice = (const char *)d_x + slice_offset(l);
	size_t bytes = l->bytes;
	if (bytes == 0)
		return;
	tell_codec(l, &r);
	wait_for(l, &l->head[w]);
	wait_for(l, &l->req[w]);
	if (r.codec)
		bytes = pack(l, d_slice);
	d->ops->get(d, l->wire[w], r.codec ? l->d_wire : d_slice, bytes);
	l->length[w] = (int64_t)bytes;
	if (varies(&r))
		occ_comm_post_send(l->comm, &l->length[w], sizeof(l->length[w]), l->conf.peer,
				   length_tag_of(l), &l->head[w]);
	occ_comm_post_send(l->comm, l->wire[w], bytes, l->conf.peer, tag_of(l, &r), &l->req[w]);
	occ_traffic_count(l->traffic, l->bytes, bytes, l->inter_node);
}

/* Waits for wire w; returns its length. */
static size_t arrive(struct occ_link *l, int w, const struct occ_route *r)
{
	size_t bytes = r->codec ? occ_link_bound(l) : l->bytes;
	if (varies(r)) {
		wait_for(l, &l->head[w]);
		if (l->length[w] < 1 || (size_t)l->length[w] > bytes)
			occ_die(OCC_E_COMM, "rank %d announced a wire of %lld bytes, at most %zu",
				l->conf.peer, (long long)l->length[w], bytes);
		bytes = (size_t)l->length[w];
		occ_comm_post_recv(l->comm, l->wire[w], bytes, l->conf.peer, tag_of(l, r),
				   &l->req[w]);
	}
	wait_for(l, &l->req[w]);
	return bytes;
}

void occ_link_recv(struct occ_link *l, void *d_x)
{
	struct occ_device *d = device(l);
	int w = (int)(l->taken % 2);
	struct occ_route r = next_route(l, recv_op(l), &l->taken_at);
	char *d_slice = (char *)d_x + slice_offset(l);
	tell_codec(l, &r);
	if (l->bytes) {
		size_t bytes = arrive(l, w, &r);
		d->ops->put(d, r.codec ? l->d_wire : d_slice, l->wire[w], bytes);
		d->ops->sync(d); /* the wire may be posted again */
		if (r.codec)
			unpack(l, bytes, d_slice);
	}
	l->taken++;
	expect(l);
	occ_group_gather_rows(l->tp, d_x, l->conf.rows, l->conf.C);
}

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
	if (l->conf.kind != OCC_PP_FORWARD || !occ_route_follows(p))
		return;
	q->slots = l->conf.slots;
	q->bytes = l->stream.codec.ops->support(&l->stream.codec);
	q->d_at = device(l)->ops->alloc(device(l), occ_size_mul((size_t)q->slots, q->bytes));
}

static size_t longest(const struct occ_link *l)
{
	return l->has_stream && occ_link_bound(l) > l->bytes ? occ_link_bound(l) : l->bytes;
}

/* A lane takes wires from the device and brings them there; else they are copied from one. */
static void open_wires(struct occ_link *l)
{
	struct occ_device *d = device(l);
	l->ready = d->ops->mark_open(d);
	if (l->comm->root->lanes) {
		l->lane = occ_lane_open_pair(l->comm, d, l->conf.peer,
					     l->conf.kind == OCC_PP_FORWARD
						     ? "activations between stages"
						     : "gradients between stages");
		for (int i = 0; i < 2; i++) {
			l->d_wire[i] = d->ops->alloc(d, longest(l));
			l->busy[i] = d->ops->mark_open(d);
			l->emptied[i] = d->ops->mark_open(d);
		}
		return;
	}
	if (l->has_stream)
		l->d_wire[0] = d->ops->alloc(d, occ_link_bound(l));
	for (int i = 0; i < 2; i++)
		l->wire[i] = d->ops->alloc_host(d, d->ops->dry ? 0 : longest(l));
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
	open_wires(l);
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
	struct occ_device *d = device(l);
	occ_link_drain(l);
	occ_lane_close(l->lane);
	for (int i = 0; i < 2; i++) {
		if (l->wire[i])
			d->ops->free_host(d, l->wire[i]);
		d->ops->mark_close(d, l->busy[i]);
		d->ops->mark_close(d, l->emptied[i]);
		if (l->d_wire[i])
			d->ops->free(d, l->d_wire[i]);
	}
	d->ops->mark_close(d, l->ready);
	occ_stream_release(&l->stream);
	if (l->supports.d_at)
		d->ops->free(d, l->supports.d_at);
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

/* Where the other end stands in a lane of two. */
static int across(const struct occ_link *l)
{
	return l->comm->rank < l->conf.peer;
}

/* Wire w of `bytes` may come: by a lane once what was there before has been unpacked. */
static void post_wire(struct occ_link *l, int w, size_t bytes, const struct occ_route *r)
{
	if (!l->lane) {
		occ_comm_post_recv(l->comm, l->wire[w], bytes, l->conf.peer, tag_of(l, r),
				   &l->req[w]);
		return;
	}
	occ_lane_begin(l->lane, l->emptied[w]);
	occ_lane_recv(l->lane, l->d_wire[w], bytes, across(l));
	occ_lane_end(l->lane, l->busy[w]);
}

/* Posts receives ahead: two at most, and never more than the step has. Not those of a lane: CUDA
 * may let the GPU run empty before it loads code that is used for the first time, and a receive
 * waits for what this host has yet to enqueue. Where the host runs ahead they are early all the
 * same. */
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
		else if (!l->lane)
			post_wire(l, w, r.codec ? occ_link_bound(l) : l->bytes, &r);
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
static void push_support(struct occ_link *l, const void *d_wire)
{
	struct occ_supports *q = &l->supports;
	if (!q->slots || !l->training)
		return;
	occ_check(q->pushed - q->popped < q->slots, "%d supports", q->slots);
	device(l)->ops->copy(device(l), support_at(q, q->pushed++), d_wire, q->bytes);
}

static size_t encode(struct occ_link *l, const void *d_slice, void *d_wire)
{
	if (l->followed)
		return occ_stream_follow(&l->stream, support_at(l->followed, l->followed->popped++),
					 d_slice, d_wire);
	size_t bytes = occ_stream_encode(&l->stream, d_slice, d_wire);
	push_support(l, d_wire);
	return bytes;
}

static void decode(struct occ_link *l, const void *d_wire, size_t bytes, void *d_slice)
{
	if (l->followed) {
		occ_stream_decode_follow(&l->stream, support_at(l->followed, l->followed->popped++),
					 d_wire, d_slice);
		return;
	}
	occ_stream_decode(&l->stream, d_wire, bytes, d_slice);
	push_support(l, d_wire);
}

/* What the stream spends goes to the counters of this kind, and to the trace. */
static size_t pack(struct occ_link *l, const void *d_slice, void *d_wire)
{
	occ_trace_begin(device(l)->trace, OCC_ACT_ENCODE);
	size_t bytes = encode(l, d_slice, d_wire);
	occ_trace_end(device(l)->trace);
	l->traffic->encode_ms += l->stream.encode_ms;
	l->stream.encode_ms = 0;
	return bytes;
}

static void unpack(struct occ_link *l, const void *d_wire, size_t bytes, void *d_slice)
{
	occ_trace_begin(device(l)->trace, OCC_ACT_DECODE);
	decode(l, d_wire, bytes, d_slice);
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

/* What is enqueued next on `to` waits for all of `from` so far; `to` is then current. */
static void turn_to(struct occ_link *l, enum occ_queue to)
{
	struct occ_device *d = device(l);
	d->ops->mark(d, l->ready);
	d->ops->queue(d, to);
	d->ops->after(d, l->ready);
}

static void send_by_lane(struct occ_link *l, int w, size_t bytes)
{
	occ_lane_begin(l->lane, NULL);
	occ_lane_send(l->lane, l->d_wire[w], bytes, across(l));
	occ_lane_end(l->lane, l->busy[w]);
}

/* The slice to wire w; returns its length. */
static size_t fill(struct occ_link *l, int w, const struct occ_route *r, const char *d_slice)
{
	struct occ_device *d = device(l);
	void *d_wire = l->d_wire[l->lane ? w : 0];
	size_t bytes = l->bytes;
	if (l->lane)
		d->ops->after(d, l->busy[w]);
	if (r->codec)
		bytes = pack(l, d_slice, d_wire);
	else if (l->lane)
		d->ops->copy(d, d_wire, d_slice, bytes);
	if (!l->lane)
		d->ops->get(d, l->wire[w], r->codec ? d_wire : d_slice, bytes);
	return bytes;
}

void occ_link_send(struct occ_link *l, const void *d_x, void *read)
{
	struct occ_device *d = device(l);
	int w = (int)(l->posted++ % 2);
	struct occ_route r = next_route(l, send_op(l), &l->posted_at);
	if (l->bytes == 0)
		return;
	tell_codec(l, &r);
	wait_for(l, &l->head[w]);
	wait_for(l, &l->req[w]);
	turn_to(l, OCC_PIPE);
	size_t bytes = fill(l, w, &r, (const char *)d_x + slice_offset(l));
	d->ops->mark(d, read);
	l->length[w] = (int64_t)bytes;
	if (varies(&r))
		occ_comm_post_send(l->comm, &l->length[w], sizeof(l->length[w]), l->conf.peer,
				   length_tag_of(l), &l->head[w]);
	if (l->lane)
		send_by_lane(l, w, bytes);
	else
		occ_comm_post_send(l->comm, l->wire[w], bytes, l->conf.peer, tag_of(l, &r),
				   &l->req[w]);
	d->ops->queue(d, OCC_COMPUTE);
	occ_traffic_count(l->traffic, l->bytes, bytes, l->inter_node);
}

/* Waits for wire w, or for its length where that varies; returns the length. */
static size_t arrive(struct occ_link *l, int w, const struct occ_route *r)
{
	size_t bytes = r->codec ? occ_link_bound(l) : l->bytes;
	if (varies(r)) {
		wait_for(l, &l->head[w]);
		if (l->length[w] < 1 || (size_t)l->length[w] > bytes)
			occ_die(OCC_E_COMM, "rank %d announced a wire of %lld bytes, at most %zu",
				l->conf.peer, (long long)l->length[w], bytes);
		bytes = (size_t)l->length[w];
	}
	if (varies(r) || l->lane)
		post_wire(l, w, bytes, r);
	wait_for(l, &l->req[w]);
	return bytes;
}

/* Wire w, of `bytes`, to the slice. */
static void take(struct occ_link *l, int w, size_t bytes, const struct occ_route *r, char *d_slice)
{
	struct occ_device *d = device(l);
	void *d_wire = l->d_wire[l->lane ? w : 0];
	if (l->lane)
		d->ops->after(d, l->busy[w]);
	else
		d->ops->put(d, r->codec ? d_wire : d_slice, l->wire[w], bytes);
	if (!l->lane)
		d->ops->sync(d); /* the wire may be posted again */
	if (r->codec)
		unpack(l, d_wire, bytes, d_slice);
	else if (l->lane)
		d->ops->copy(d, d_slice, d_wire, bytes);
	if (l->lane)
		d->ops->mark(d, l->emptied[w]);
}

void occ_link_recv(struct occ_link *l, void *d_x, void *free)
{
	struct occ_device *d = device(l);
	int w = (int)(l->taken % 2);
	struct occ_route r = next_route(l, recv_op(l), &l->taken_at);
	tell_codec(l, &r);
	if (l->bytes) {
		size_t bytes = arrive(l, w, &r);
		d->ops->queue(d, OCC_PIPE);
		d->ops->after(d, free);
		take(l, w, bytes, &r, (char *)d_x + slice_offset(l));
		turn_to(l, OCC_COMPUTE);
	}
	l->taken++;
	expect(l);
	occ_group_gather_rows(l->tp, d_x, l->conf.rows, l->conf.C);
}

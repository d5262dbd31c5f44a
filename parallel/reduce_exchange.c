/* Compressed sums over contributors: in rounds where the codec adds up, else by gathering wires. */
#include "parallel/reduce_internal.h"

#include <string.h>

#include "base/clock.h"

/* ---- Codecs that add up. ---- */

static void offer_all(struct occ_reduce *r, int round)
{
	float *d_part = r->d_part;
	for (int i = 0; i < r->nitems; i++) {
		struct occ_codec *c = &r->item[i].stream.codec;
		c->ops->offer(c, round, r->item[i].d_x, d_part);
		d_part += c->ops->part(c, round);
	}
}

static void take_all(struct occ_reduce *r, int round)
{
	const float *d_part = r->d_part;
	for (int i = 0; i < r->nitems; i++) {
		struct occ_codec *c = &r->item[i].stream.codec;
		c->ops->take(c, round, d_part);
		d_part += c->ops->part(c, round);
	}
}

static void exchange_sums(struct occ_reduce *r, float *d_grad, struct occ_traffic *t)
{
	double begin = occ_clock_ms();
	struct occ_trace *trace = r->dev->trace;
	const struct occ_codec *first = &r->item[0].stream.codec;
	int rounds = first->ops->rounds(first);
	occ_trace_begin(trace, OCC_ACT_ENCODE);
	for (int i = 0; i < r->nitems; i++)
		r->item[i].d_x =
			occ_stream_sum_begin(&r->item[i].stream, gradient(&r->item[i], d_grad));
	for (int k = 0; k < rounds; k++) {
		offer_all(r, k);
		for (int i = 0; i < r->nitems && k == rounds - 1; i++)
			occ_stream_sum_own(&r->item[i].stream);
		r->dev->ops->sync(r->dev);
		t->encode_ms += occ_clock_ms() - begin;
		occ_trace_end(trace);
		occ_group_sum(&r->leaders, r->d_part, parts(r, k), OCC_F32);
		begin = occ_clock_ms();
		occ_trace_begin(trace, k == rounds - 1 ? OCC_ACT_DECODE : OCC_ACT_ENCODE);
		take_all(r, k);
	}
	for (int i = 0; i < r->nitems; i++)
		occ_stream_sum_finish(&r->item[i].stream, gradient(&r->item[i], d_grad));
	r->dev->ops->sync(r->dev);
	occ_trace_end(trace);
	t->decode_ms += occ_clock_ms() - begin;
}

/* ---- Codecs whose wires are gathered. ---- */

/* Items from..to-1 travel together: their wires, one behind the other, fit the buffer. */
static int batch_end(const struct occ_reduce *r, int from)
{
	size_t bytes = 0;
	int to = from;
	while (to < r->nitems && (to == from || bytes + bound_of(&r->item[to]) <= r->wire_bytes))
		bytes += bound_of(&r->item[to++]);
	return to;
}

/* Own wires to r->wire + at; their lengths. */
static void encode_batch(struct occ_reduce *r, int from, int to, float *d_grad, size_t *length)
{
	size_t at = 0;
	occ_trace_begin(r->dev->trace, OCC_ACT_ENCODE);
	for (int i = from; i < to; i++) {
		struct occ_stream *s = &r->item[i].stream;
		length[i - from] =
			occ_stream_encode(s, gradient(&r->item[i], d_grad), (char *)r->d_wire + at);
		at += padded(length[i - from]);
	}
	occ_trace_end(r->dev->trace);
}

/* All contributors' wires of item i are added up in rank order; r->at[k], where the next wire of
 * contributor k lies, moves on. `length` and `stride`: of item i, and from one contributor to the
 * next. */
static void decode_item(struct occ_reduce *r, int i, const size_t *length, int stride, float *d_y)
{
	struct occ_codec *c = &r->item[i].stream.codec;
	for (int k = 0; k < r->leaders.comm->size; k++) {
		size_t bytes = length[k * stride];
		if (!r->leaders.lane)
			r->dev->ops->put(r->dev, r->d_wire, r->at[k], bytes);
		c->ops->decode(c, r->leaders.lane ? r->at[k] : r->d_wire, bytes,
			       k ? OCC_ADD : OCC_SET, d_y);
		if (!r->leaders.lane)
			r->dev->ops->sync(r->dev);
		r->at[k] += padded(bytes);
	}
}

/* Lengths of the n wires of every contributor: those that vary are asked for. */
static void gather_lengths(struct occ_reduce *r, int n)
{
	struct occ_comm *c = r->leaders.comm;
	const size_t *own = r->length + c->rank * n;
	for (int k = 0; k < c->size; k++)
		r->bytes[k] = (size_t)n * sizeof(*r->length);
	if (r->item[0].stream.codec.ops->varies)
		occ_comm_gather(c, r->length, r->bytes);
	else
		for (int k = 0; k < c->size; k++)
			if (k != c->rank)
				memcpy(r->length + k * n, own, r->bytes[k]);
}

/* Everybody's wires to r->wire, by the lane: r->bytes of each, one contributor's after the other's.
 */
static void gather_by_lane(struct occ_reduce *r)
{
	struct occ_comm *c = r->leaders.comm;
	char *at = r->wire;
	occ_lane_begin(r->leaders.lane, NULL);
	for (int k = 0; k < c->size; k++) {
		if (k != c->rank) {
			occ_lane_send(r->leaders.lane, r->d_wire, r->bytes[c->rank], k);
			occ_lane_recv(r->leaders.lane, at, r->bytes[k], k);
		}
		at += r->bytes[k];
	}
	occ_lane_end(r->leaders.lane, NULL);
	occ_comm_count_gather(c, r->bytes[c->rank]);
}

/* Everybody's wires to r->wire; r->at says where those of each lie. */
static void gather_wires(struct occ_reduce *r, int n)
{
	struct occ_comm *c = r->leaders.comm;
	char *at = r->wire;
	gather_lengths(r, n);
	for (int k = 0; k < c->size; k++) {
		r->bytes[k] = 0;
		for (int i = 0; i < n; i++)
			r->bytes[k] += padded(r->length[k * n + i]);
		r->at[k] = at;
		if (k == c->rank && r->leaders.lane)
			r->dev->ops->copy(r->dev, at, r->d_wire, r->bytes[k]);
		else if (k == c->rank)
			r->dev->ops->get(r->dev, at, r->d_wire, r->bytes[k]);
		at += r->bytes[k];
	}
	if (r->leaders.lane)
		gather_by_lane(r);
	else
		occ_comm_gather(c, r->wire, r->bytes);
}

static void exchange_batch(struct occ_reduce *r, int from, int to, float *d_grad,
			   struct occ_traffic *t)
{
	int n = to - from;
	occ_check(r->leaders.comm != NULL, "an exchange of wires by a rank that speaks for none");
	encode_batch(r, from, to, d_grad, r->length + r->leaders.comm->rank * n);
	gather_wires(r, n);
	double begin = occ_clock_ms();
	occ_trace_begin(r->dev->trace, OCC_ACT_DECODE);
	for (int i = from; i < to; i++)
		decode_item(r, i, r->length + (i - from), n, gradient(&r->item[i], d_grad));
	occ_trace_end(r->dev->trace);
	t->decode_ms += occ_clock_ms() - begin;
}

static void exchange_wires(struct occ_reduce *r, float *d_grad, struct occ_traffic *t)
{
	for (int from = 0, to; from < r->nitems; from = to) {
		to = batch_end(r, from);
		exchange_batch(r, from, to, d_grad, t);
	}
	for (int i = 0; i < r->nitems; i++) {
		t->encode_ms += r->item[i].stream.encode_ms;
		r->item[i].stream.encode_ms = 0;
	}
}

void occ_reduce_exchange(struct occ_reduce *r, float *d_grad, struct occ_traffic *t)
{
	if (r->item[0].stream.codec.ops->rounds)
		exchange_sums(r, d_grad, t);
	else
		exchange_wires(r, d_grad, t);
}

/* Error feedback and the undoing of a step, once for all codecs. */
#include "compress/stream.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

enum { SQUARES = 64 }; /* messages between two waits for what was measured */

static int64_t elements(const struct occ_stream *s)
{
	return s->codec.n * s->codec.m;
}

static float *floats(struct occ_device *d, int64_t n)
{
	return n ? d->ops->alloc(d, occ_size_mul((size_t)n, sizeof(float))) : NULL;
}

void occ_stream_init(struct occ_stream *s, struct occ_device *dev,
		     const struct occ_stream_conf *conf, int64_t n, int64_t m, enum occ_type type)
{
	memset(s, 0, sizeof(*s));
	occ_codec_init(&s->codec, dev, &conf->knobs, n, m, type);
	if (!conf->decodes)
		occ_codec_start(&s->codec, conf->key, conf->id);
	s->feedback = conf->feedback && !conf->decodes;
	s->forget = conf->forget;
	s->undo = conf->undo && !conf->decodes;
	if (s->feedback) {
		s->d_e = floats(dev, n * m);
		dev->ops->zero(dev, s->d_e, (size_t)(n * m) * sizeof(float));
	}
	if (!conf->decodes)
		s->d_squares = dev->ops->alloc(dev, SQUARES * sizeof(*s->d_squares));
	if (type != OCC_F32)
		s->d_x = floats(dev, n * m);
	if (type != OCC_F32 && s->feedback)
		s->d_half = dev->ops->alloc(dev, (size_t)(n * m) * occ_type_size(type));
	if (s->undo) {
		s->d_e0 = s->feedback ? floats(dev, n * m) : NULL;
		s->d_state0 = floats(dev, occ_codec_state(&s->codec));
	}
}

void occ_stream_release(struct occ_stream *s)
{
	struct occ_device *d = s->codec.dev;
	void *all[] = {s->d_e, s->d_x, s->d_half, s->d_e0, s->d_state0, s->d_squares};
	if (!d)
		return;
	for (int i = 0; i < 6; i++)
		if (all[i])
			d->ops->free(d, all[i]);
	occ_codec_release(&s->codec);
	memset(s, 0, sizeof(*s));
}

static void copy(const struct occ_stream *s, float *d_to, const float *d_from, int64_t n)
{
	if (d_to)
		s->codec.dev->ops->copy(s->codec.dev, d_to, d_from, (size_t)n * sizeof(float));
}

void occ_stream_settle(struct occ_stream *s)
{
	double x[SQUARES] = {0};
	if (s->nsquares)
		s->codec.dev->ops->get(s->codec.dev, x, s->d_squares,
				       (size_t)s->nsquares * sizeof(*x));
	for (int i = 0; i < s->nsquares; i++) {
		s->x_last2 = x[i];
		s->x_norm2 += x[i];
		s->x_count++;
	}
	s->nsquares = 0;
}

/* Before a step's first change. */
static void touch(struct occ_stream *s)
{
	if (s->touched++ || !s->undo)
		return;
	occ_stream_settle(s);
	copy(s, s->d_e0, s->d_e, elements(s));
	copy(s, s->d_state0, s->codec.d_state, occ_codec_state(&s->codec));
	s->calls0 = s->codec.calls;
	s->x_norm20 = s->x_norm2;
	s->x_count0 = s->x_count;
}

void occ_stream_end(struct occ_stream *s, int keep)
{
	if (s->touched && !keep) {
		occ_check(s->undo, "a step undone in a stream that keeps no copy");
		if (s->d_e0)
			copy(s, s->d_e, s->d_e0, elements(s));
		if (s->d_state0)
			copy(s, s->codec.d_state, s->d_state0, occ_codec_state(&s->codec));
		s->codec.calls = s->calls0;
		s->x_norm2 = s->x_norm20;
		s->x_count = s->x_count0;
		s->nsquares = 0;
	}
	s->touched = 0;
}

/* What the codec is to see, in fp32: X + E, made in E itself; or X. */
static const float *input(struct occ_stream *s, const void *d_x)
{
	struct occ_device *d = s->codec.dev;
	const float *d_in = d_x;
	int fed = s->feedback && !s->frozen;
	occ_check(!s->frozen || !s->codec.ops->state, "a frozen stream of codec %s",
		  s->codec.ops->name);
	if (!s->frozen)
		touch(s);
	if (fed && s->forget > 0)
		d->ops->scale(d, elements(s), 1 - s->forget, s->d_e);
	if (fed || s->codec.type != OCC_F32) {
		float *d_to = fed ? s->d_e : s->d_x;
		d->ops->accumulate(d, elements(s), s->codec.type, d_x, fed ? OCC_ADD : OCC_SET,
				   d_to);
		d_in = d_to;
	}
	if (s->measure && !s->frozen) {
		if (s->nsquares == SQUARES)
			occ_stream_settle(s);
		d->ops->sum_squares(d, elements(s), d_in, s->d_squares + s->nsquares++);
	}
	return d_in;
}

/* E -= y, of which d_x holds the fp32 values that a receiver narrows. */
static void subtract_narrowed(struct occ_stream *s)
{
	struct occ_device *d = s->codec.dev;
	d->ops->cast(d, elements(s), OCC_F32, s->d_x, s->codec.type, s->d_half);
	d->ops->accumulate(d, elements(s), s->codec.type, s->d_half, OCC_SUB, s->d_e);
}

size_t occ_stream_encode(struct occ_stream *s, const void *d_x, void *d_wire)
{
	double begin = occ_clock_ms();
	struct occ_codec *c = &s->codec;
	size_t bytes = c->ops->encode(c, input(s, d_x), d_wire);
	int narrow = c->type != OCC_F32, fed = s->feedback && !s->frozen;
	if (fed)
		c->ops->decode(c, d_wire, bytes, narrow ? OCC_SET : OCC_SUB,
			       narrow ? s->d_x : s->d_e);
	if (fed && narrow)
		subtract_narrowed(s);
	s->encode_ms += occ_clock_ms() - begin;
	return bytes;
}

size_t occ_stream_follow(struct occ_stream *s, const void *d_support, const void *d_x, void *d_wire)
{
	double begin = occ_clock_ms();
	struct occ_codec *c = &s->codec;
	c->ops->follow_encode(c, d_support, input(s, d_x), d_wire);
	int narrow = c->type != OCC_F32, fed = s->feedback && !s->frozen;
	if (fed)
		c->ops->follow_decode(c, d_support, d_wire, narrow ? OCC_SET : OCC_SUB,
				      narrow ? s->d_x : s->d_e);
	if (fed && narrow)
		subtract_narrowed(s);
	s->encode_ms += occ_clock_ms() - begin;
	return c->ops->follow_bound(c);
}

/* Where a decoded matrix is made: at once in d_y, or in fp32 before it is narrowed. */
static float *output(const struct occ_stream *s, void *d_y)
{
	return s->codec.type == OCC_F32 ? d_y : s->d_x;
}

static void narrow_to(struct occ_stream *s, void *d_y)
{
	struct occ_device *d = s->codec.dev;
	if (s->codec.type != OCC_F32)
		d->ops->cast(d, elements(s), OCC_F32, s->d_x, s->codec.type, d_y);
}

void occ_stream_decode(struct occ_stream *s, const void *d_wire, size_t bytes, void *d_y)
{
	double begin = occ_clock_ms();
	s->codec.ops->decode(&s->codec, d_wire, bytes, OCC_SET, output(s, d_y));
	narrow_to(s, d_y);
	s->decode_ms += occ_clock_ms() - begin;
}

void occ_stream_decode_follow(struct occ_stream *s, const void *d_support, const void *d_wire,
			      void *d_y)
{
	double begin = occ_clock_ms();
	s->codec.ops->follow_decode(&s->codec, d_support, d_wire, OCC_SET, output(s, d_y));
	narrow_to(s, d_y);
	s->decode_ms += occ_clock_ms() - begin;
}

const float *occ_stream_sum_begin(struct occ_stream *s, const float *d_x)
{
	occ_check(s->codec.type == OCC_F32, "sums of another type than fp32");
	return input(s, d_x);
}

void occ_stream_sum_own(struct occ_stream *s)
{
	if (s->feedback)
		s->codec.ops->decode_own(&s->codec, OCC_SUB, s->d_e);
}

void occ_stream_sum_finish(struct occ_stream *s, float *d_x)
{
	s->codec.ops->decode_sum(&s->codec, OCC_SET, d_x);
}

double occ_stream_residual2(struct occ_stream *s)
{
	return s->feedback ? occ_sum_squares(s->codec.dev, elements(s), s->d_e) : 0;
}

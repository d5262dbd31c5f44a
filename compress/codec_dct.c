/* Hard thresholding of weight gradients (DCT, section 3.1): every value at or above a threshold is
 * sent. The threshold is that of the k largest, found anew only every `period` encodings, because
 * finding it costs most; between, the number of values floats. It is found early when that number
 * leaves k/2 .. 2k. Wire: indices of 4 bytes, then as many fp32 values. */
#include "compress/codec.h"

static int64_t elements(const struct occ_codec *c)
{
	return c->n * c->m;
}

static int64_t target(const struct occ_codec *c)
{
	return occ_codec_kept(c->knobs.fraction, elements(c));
}

static int64_t cap(const struct occ_codec *c)
{
	int64_t k = 2 * target(c);
	return k < elements(c) ? k : elements(c);
}

static size_t bound(const struct occ_codec *c)
{
	return 8 * (size_t)cap(c);
}

static int64_t state(const struct occ_codec *c)
{
	(void)c;
	return 1; /* the threshold */
}

static void start(struct occ_codec *c)
{
	c->calls = 0;
	c->dev->ops->zero(c->dev, c->d_state, sizeof(float));
}

static int64_t scratch(const struct occ_codec *c)
{
	return cap(c); /* values, until their number is known */
}

static size_t encode(struct occ_codec *c, const float *d_x, void *d_wire)
{
	const struct occ_device_ops *o = c->dev->ops;
	int64_t n = elements(c), k = target(c), count = -1;
	occ_check(n <= INT32_MAX, "dct of %lld values", (long long)n);
	if (c->calls++ % c->knobs.period)
		o->above(c->dev, n, d_x, c->d_state, cap(c), d_wire, c->d_scratch, &count);
	if (2 * count < k || count > cap(c)) {
		o->select(c->dev, 1, n, k, d_x, 4, d_wire, c->d_scratch, c->d_state);
		count = k;
	}
	o->copy(c->dev, (char *)d_wire + 4 * count, c->d_scratch, 4 * (size_t)count);
	return 8 * (size_t)count;
}

static void decode(struct occ_codec *c, const void *d_wire, size_t bytes, enum occ_how how,
		   float *d_y)
{
	int64_t count = (int64_t)(bytes / 8);
	const void *d_values = (const char *)d_wire + 4 * count;
	c->dev->ops->place(c->dev, 1, elements(c), count, 4, d_wire, d_values, how, d_y);
}

const struct occ_codec_ops occ_codec_dct = {
	.name = "dct",
	.varies = 1,
	.expected = 0.5, /* the target, but for the drift of the threshold */
	.bound = bound,
	.state = state,
	.scratch = scratch,
	.start = start,
	.encode = encode,
	.decode = decode,
};

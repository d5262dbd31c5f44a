/* The largest magnitudes: of the whole matrix (topk), or of each row (dct on tokens: DCT, section
 * 3.2, a row is a token). Wire: indices, padded to 4 bytes, then values.
 *
 * The support is the indices. A gradient that follows its activation's support is the exact
 * derivative of the masked forward pass, and travels as values only. */
#include "compress/codec.h"

/* R rows of C, k kept of each; indices of `width` bytes. */
struct sparse {
	int64_t R, C, k;
	int width;
};

static struct sparse sparse_of(const struct occ_codec *c)
{
	int rows = c->ops == &occ_codec_dct_rows;
	struct sparse s = {rows ? c->n : 1, rows ? c->m : c->n * c->m, 0, 0};
	s.k = occ_codec_kept(c->knobs.fraction, s.C);
	s.width = s.C <= 65536 ? 2 : 4;
	occ_check(s.C <= INT32_MAX, "topk of %lld values", (long long)s.C);
	return s;
}

static size_t support(const struct occ_codec *c)
{
	struct sparse s = sparse_of(c);
	return (size_t)(s.R * s.k * s.width + 3) / 4 * 4;
}

static size_t value_bytes(const struct occ_codec *c)
{
	struct sparse s = sparse_of(c);
	return (size_t)(s.R * s.k) * occ_type_size(c->type);
}

static size_t bound(const struct occ_codec *c)
{
	return support(c) + value_bytes(c);
}

/* fp32 values on their way to or from a narrower wire. */
static int64_t scratch(const struct occ_codec *c)
{
	struct sparse s = sparse_of(c);
	return c->type == OCC_F32 ? 0 : s.R * s.k;
}

/* Where values are made: on the wire itself if it holds fp32. */
static float *values(const struct occ_codec *c, void *d_to)
{
	return c->type == OCC_F32 ? d_to : c->d_scratch;
}

static void narrow(struct occ_codec *c, void *d_to)
{
	struct sparse s = sparse_of(c);
	if (c->type != OCC_F32)
		c->dev->ops->cast(c->dev, s.R * s.k, OCC_F32, c->d_scratch, c->type, d_to);
}

static const float *widen(struct occ_codec *c, const void *d_from)
{
	struct sparse s = sparse_of(c);
	if (c->type == OCC_F32)
		return d_from;
	c->dev->ops->cast(c->dev, s.R * s.k, c->type, d_from, OCC_F32, c->d_scratch);
	return c->d_scratch;
}

static size_t encode(struct occ_codec *c, const float *d_x, void *d_wire)
{
	struct sparse s = sparse_of(c);
	size_t indices = (size_t)(s.R * s.k * s.width), pad = support(c) - indices;
	void *d_to = (char *)d_wire + support(c);
	if (pad)
		c->dev->ops->zero(c->dev, (char *)d_wire + indices, pad);
	c->dev->ops->select(c->dev, s.R, s.C, s.k, d_x, s.width, d_wire, values(c, d_to), NULL);
	narrow(c, d_to);
	return bound(c);
}

static void follow_encode(struct occ_codec *c, const void *d_support, const float *d_x,
			  void *d_wire)
{
	struct sparse s = sparse_of(c);
	c->dev->ops->pick(c->dev, s.R, s.C, s.k, s.width, d_support, d_x, values(c, d_wire));
	narrow(c, d_wire);
}

static void follow_decode(struct occ_codec *c, const void *d_support, const void *d_wire,
			  enum occ_how how, float *d_y)
{
	struct sparse s = sparse_of(c);
	c->dev->ops->place(c->dev, s.R, s.C, s.k, s.width, d_support, widen(c, d_wire), how, d_y);
}

static void decode(struct occ_codec *c, const void *d_wire, size_t bytes, enum occ_how how,
		   float *d_y)
{
	(void)bytes;
	follow_decode(c, d_wire, (const char *)d_wire + support(c), how, d_y);
}

/* What a row is stands in sparse_of. */
#define SPARSE(codec)                                                                              \
	{                                                                                          \
		.name = codec, .bound = bound, .scratch = scratch, .encode = encode,               \
		.decode = decode, .support = support, .follow_bound = value_bytes,                 \
		.follow_encode = follow_encode, .follow_decode = follow_decode,                    \
	}

const struct occ_codec_ops occ_codec_topk = SPARSE("topk");
const struct occ_codec_ops occ_codec_dct_rows = SPARSE("dct");

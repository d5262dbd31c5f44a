/* Half the bits: bf16, or fp16 with one power of two as scale, so that nothing overflows. */
#include "compress/codec.h"

static int64_t elements(const struct occ_codec *c)
{
	return c->n * c->m;
}

static size_t bound(const struct occ_codec *c)
{
	return 2 * (size_t)elements(c) + (c->knobs.fp16 ? sizeof(float) : 0);
}

static size_t encode(struct occ_codec *c, const float *d_x, void *d_wire)
{
	if (c->knobs.fp16)
		c->dev->ops->half_pack(c->dev, elements(c), d_x, d_wire);
	else
		c->dev->ops->cast(c->dev, elements(c), OCC_F32, d_x, OCC_BF16, d_wire);
	return bound(c);
}

static void decode(struct occ_codec *c, const void *d_wire, size_t bytes, enum occ_how how,
		   float *d_y)
{
	(void)bytes;
	if (c->knobs.fp16)
		c->dev->ops->half_unpack(c->dev, elements(c), d_wire, how, d_y);
	else
		c->dev->ops->accumulate(c->dev, elements(c), OCC_BF16, d_wire, how, d_y);
}

const struct occ_codec_ops occ_codec_cast = {
	.name = "cast",
	.bound = bound,
	.encode = encode,
	.decode = decode,
};

/* Codes of 2, 4 or 8 bits in groups that share a scale; 0 and the largest of a group are exact. */
#include "compress/codec.h"

static size_t bound(const struct occ_codec *c)
{
	int64_t n = c->n * c->m, groups = (n + c->knobs.group - 1) / c->knobs.group;
	return (size_t)groups * sizeof(float) + (size_t)((n * c->knobs.bits + 7) / 8);
}

static size_t encode(struct occ_codec *c, const float *d_x, void *d_wire)
{
	c->dev->ops->quantise(c->dev, c->n * c->m, c->knobs.bits, c->knobs.group, d_x, d_wire);
	return bound(c);
}

static void decode(struct occ_codec *c, const void *d_wire, size_t bytes, enum occ_how how,
		   float *d_y)
{
	(void)bytes;
	c->dev->ops->dequantise(c->dev, c->n * c->m, c->knobs.bits, c->knobs.group, d_wire, how,
				d_y);
}

const struct occ_codec_ops occ_codec_quant = {
	.name = "quant",
	.bound = bound,
	.encode = encode,
	.decode = decode,
};

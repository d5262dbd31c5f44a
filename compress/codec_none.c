/* No compression: values as they are, in the wire's type. The file to copy for a new codec
 * (docs/adding-a-codec.md). */
#include "compress/codec.h"

static size_t bound(const struct occ_codec *c)
{
	return (size_t)(c->n * c->m) * occ_type_size(c->type);
}

static size_t encode(struct occ_codec *c, const float *d_x, void *d_wire)
{
	c->dev->ops->cast(c->dev, c->n * c->m, OCC_F32, d_x, c->type, d_wire);
	return bound(c);
}

static void decode(struct occ_codec *c, const void *d_wire, size_t bytes, enum occ_how how,
		   float *d_y)
{
	(void)bytes; /* always the bound */
	c->dev->ops->accumulate(c->dev, c->n * c->m, c->type, d_wire, how, d_y);
}

const struct occ_codec_ops occ_codec_none = {
	.name = "none",
	.bound = bound,
	.encode = encode,
	.decode = decode,
};

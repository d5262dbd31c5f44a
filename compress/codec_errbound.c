/* Bounded error: |x - x'| <= epsilon for every finite value, all others as they are. The length
 * follows the data. */
#include "compress/codec.h"

/* Every block as it is, and a byte for each. */
static size_t bound(const struct occ_codec *c)
{
	int64_t blocks = (c->n * c->m + OCC_BOUND_BLOCK - 1) / OCC_BOUND_BLOCK;
	return (size_t)((blocks + 3) / 4 * 4 + blocks * OCC_BOUND_BLOCK * 4);
}

static size_t encode(struct occ_codec *c, const float *d_x, void *d_wire)
{
	int64_t bytes;
	c->dev->ops->bound_pack(c->dev, c->n * c->m, c->knobs.epsilon, d_x, d_wire, &bytes);
	return (size_t)bytes;
}

static void decode(struct occ_codec *c, const void *d_wire, size_t bytes, enum occ_how how,
		   float *d_y)
{
	(void)bytes; /* each block says its own length */
	c->dev->ops->bound_unpack(c->dev, c->n * c->m, c->knobs.epsilon, d_wire, how, d_y);
}

const struct occ_codec_ops occ_codec_errbound = {
	.name = "errbound",
	.varies = 1,
	.bound = bound,
	.encode = encode,
	.decode = decode,
};

/* The table of codecs, and what all of them share: their memory. */
#include "compress/codec.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

static const struct row {
	const char *name;
	const struct occ_codec_ops *weights, *tokens;
} rows[] = {
	{"cast", &occ_codec_cast, &occ_codec_cast},
	{"quant", &occ_codec_quant, &occ_codec_quant},
	{"topk", &occ_codec_topk, &occ_codec_topk},
	{"dct", &occ_codec_dct, &occ_codec_dct_rows},
	{"powersgd", &occ_codec_powersgd, &occ_codec_powersgd},
	{"auto", &occ_codec_powersgd, &occ_codec_powersgd},
	{"errbound", &occ_codec_errbound, &occ_codec_errbound},
};

const struct occ_codec_ops *occ_codec_find(const char *name, enum occ_use use)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (!strcmp(rows[i].name, name))
			return use == OCC_USE_WEIGHTS ? rows[i].weights : rows[i].tokens;
	return NULL;
}

int64_t occ_codec_rank(const struct occ_knobs *k, int64_t n, int64_t m)
{
	int64_t most = n < m ? n : m;
	return k->rank < most ? k->rank : most;
}

int64_t occ_codec_kept(double fraction, int64_t n)
{
	int64_t k = llround(fraction * (double)n);
	return k < 1 ? 1 : k > n ? n : k;
}

static struct occ_codec shape(const struct occ_knobs *k, int64_t n, int64_t m, enum occ_type type)
{
	return (struct occ_codec){.ops = k->codec, .knobs = *k, .n = n, .m = m, .type = type};
}

size_t occ_codec_bound(const struct occ_knobs *k, int64_t n, int64_t m, enum occ_type type)
{
	struct occ_codec c = shape(k, n, m, type);
	return c.ops->bound(&c);
}

int64_t occ_codec_state(const struct occ_codec *c)
{
	return c->ops->state ? c->ops->state(c) : 0;
}

static float *floats(struct occ_device *d, int64_t n)
{
	return n ? d->ops->alloc(d, occ_size_mul((size_t)n, sizeof(float))) : NULL;
}

void occ_codec_init(struct occ_codec *c, struct occ_device *dev, const struct occ_knobs *k,
		    int64_t n, int64_t m, enum occ_type type)
{
	occ_check(n >= 1 && m >= 1, "a codec of %lld x %lld", (long long)n, (long long)m);
	*c = shape(k, n, m, type);
	c->dev = dev;
	c->d_scratch = floats(dev, c->ops->scratch ? c->ops->scratch(c) : 0);
}

void occ_codec_start(struct occ_codec *c, uint64_t key, uint32_t id)
{
	c->key = key;
	c->id = id;
	if (!c->d_state)
		c->d_state = floats(c->dev, occ_codec_state(c));
	if (c->ops->start)
		c->ops->start(c);
}

void occ_codec_release(struct occ_codec *c)
{
	if (c->d_state)
		c->dev->ops->free(c->dev, c->d_state);
	if (c->d_scratch)
		c->dev->ops->free(c->dev, c->d_scratch);
	memset(c, 0, sizeof(*c));
}

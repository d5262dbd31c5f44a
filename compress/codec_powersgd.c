/* Low rank by power iteration with a warm start (Optimus-CC, section 4; PowerSGD): x is about
 * P Q^T with P (n, r) orthonormal. Q (m, r) is kept: each encoding goes on from the last one's.
 *
 * On a link one encoding makes P and Q and sends both. Summed over ranks, P and Q are sums, which
 * makes the result that of the summed matrix: x enters linearly in each round. What a rank itself
 * contributed is P with its own Q, so its residual is of what it did not get across, and stays
 * bounded (taking the sum's Q instead lets it grow without end). */
#include "compress/codec.h"

#include "base/mem.h"

static int64_t rank_of(const struct occ_codec *c)
{
	return occ_codec_rank(&c->knobs, c->n, c->m);
}

static int64_t p_size(const struct occ_codec *c)
{
	return c->n * rank_of(c);
}

static int64_t q_size(const struct occ_codec *c)
{
	return c->m * rank_of(c);
}

static size_t bound(const struct occ_codec *c)
{
	return (size_t)(p_size(c) + q_size(c)) * occ_type_size(c->type);
}

static int64_t state(const struct occ_codec *c)
{
	return q_size(c);
}

static void start(struct occ_codec *c)
{
	c->dev->ops->draw(c->dev, q_size(c), c->key, c->id, c->d_state);
	c->calls = 0;
}

/* Columns that there were stay; new ones are drawn. */
static void resize(struct occ_codec *c, int64_t rank)
{
	int64_t r0 = rank_of(c), r1;
	float *q0 = occ_alloc((size_t)q_size(c), sizeof(*q0));
	c->dev->ops->get(c->dev, q0, c->d_state, (size_t)q_size(c) * sizeof(*q0));
	c->knobs.rank = rank;
	r1 = rank_of(c);
	float *q1 = occ_alloc((size_t)q_size(c), sizeof(*q1));
	for (int64_t i = 0; i < q_size(c); i++)
		q1[i] = i % r1 < r0 ? q0[i / r1 * r0 + i % r1]
				    : occ_rng_normal(c->key, c->id, (uint64_t)i);
	c->dev->ops->put(c->dev, c->d_state, q1, (size_t)q_size(c) * sizeof(*q1));
	c->dev->ops->sync(c->dev);
	occ_free(q1);
	occ_free(q0);
}

/* Scratch: P, this rank's own Q, and a Q to subtract with. */
static int64_t scratch(const struct occ_codec *c)
{
	return p_size(c) + 2 * q_size(c);
}

static float *p_at(const struct occ_codec *c)
{
	return c->d_scratch;
}

static float *own_at(const struct occ_codec *c)
{
	return c->d_scratch + p_size(c);
}

static float *minus_at(const struct occ_codec *c)
{
	return own_at(c) + q_size(c);
}

/* P = X Q */
static void project(struct occ_codec *c, const float *d_x, const float *d_q, float *d_p)
{
	int64_t r = rank_of(c);
	struct occ_gemm g = {.m = c->n, .n = r, .k = c->m, .lda = c->m, .ldb = r, .ldc = r};
	g.f32 = 1;
	c->dev->ops->gemm(c->dev, &g, d_x, d_q, NULL, d_p);
}

/* Q = X^T P */
static void project_back(struct occ_codec *c, const float *d_x, const float *d_p, float *d_q)
{
	int64_t r = rank_of(c);
	struct occ_gemm g = {.m = c->m, .n = r, .k = c->n, .lda = c->m, .ldb = r, .ldc = r};
	g.ta = 1;
	g.f32 = 1;
	c->dev->ops->gemm(c->dev, &g, d_x, d_p, NULL, d_q);
}

/* Y =, += or -= P Q^T */
static void expand(struct occ_codec *c, const float *d_p, const float *d_q, enum occ_how how,
		   float *d_y)
{
	const struct occ_device_ops *o = c->dev->ops;
	int64_t r = rank_of(c);
	struct occ_gemm g = {.m = c->n, .n = c->m, .k = r, .lda = r, .ldb = r, .ldc = c->m};
	g.tb = 1;
	g.f32 = 1;
	g.beta = how == OCC_SET ? 0 : 1;
	if (how == OCC_SUB) {
		o->zero(c->dev, minus_at(c), (size_t)q_size(c) * sizeof(float));
		o->accumulate(c->dev, q_size(c), OCC_F32, d_q, OCC_SUB, minus_at(c));
		d_q = minus_at(c);
	}
	o->gemm(c->dev, &g, d_p, d_q, NULL, d_y);
}

static size_t encode(struct occ_codec *c, const float *d_x, void *d_wire)
{
	const struct occ_device_ops *o = c->dev->ops;
	int64_t r = rank_of(c);
	size_t p_bytes = (size_t)p_size(c) * occ_type_size(c->type);
	for (int64_t i = 0; i < c->knobs.iterations; i++) {
		o->orthonormalise(c->dev, c->m, r, c->d_state);
		project(c, d_x, c->d_state, p_at(c));
		o->orthonormalise(c->dev, c->n, r, p_at(c));
		project_back(c, d_x, p_at(c), c->d_state);
	}
	c->calls++;
	o->cast(c->dev, p_size(c), OCC_F32, p_at(c), c->type, d_wire);
	o->cast(c->dev, q_size(c), OCC_F32, c->d_state, c->type, (char *)d_wire + p_bytes);
	return bound(c);
}

static void decode(struct occ_codec *c, const void *d_wire, size_t bytes, enum occ_how how,
		   float *d_y)
{
	const struct occ_device_ops *o = c->dev->ops;
	const float *d_p = d_wire, *d_q = d_p + p_size(c);
	(void)bytes;
	if (c->type != OCC_F32) {
		const char *d_from = d_wire;
		d_from += (size_t)p_size(c) * occ_type_size(c->type);
		o->cast(c->dev, p_size(c), c->type, d_wire, OCC_F32, p_at(c));
		o->cast(c->dev, q_size(c), c->type, d_from, OCC_F32, own_at(c));
		d_p = p_at(c);
		d_q = own_at(c);
	}
	expand(c, d_p, d_q, how, d_y);
}

static int rounds(const struct occ_codec *c)
{
	return 2 * (int)c->knobs.iterations;
}

static int64_t part(const struct occ_codec *c, int round)
{
	return round % 2 ? q_size(c) : p_size(c);
}

static void offer(struct occ_codec *c, int round, const float *d_x, float *d_part)
{
	const struct occ_device_ops *o = c->dev->ops;
	if (round % 2) {
		project_back(c, d_x, p_at(c), d_part);
		o->copy(c->dev, own_at(c), d_part, (size_t)q_size(c) * sizeof(float));
		return;
	}
	o->orthonormalise(c->dev, c->m, rank_of(c), c->d_state);
	project(c, d_x, c->d_state, d_part);
}

static void take(struct occ_codec *c, int round, const float *d_sum)
{
	const struct occ_device_ops *o = c->dev->ops;
	size_t bytes = (size_t)part(c, round) * sizeof(float);
	o->copy(c->dev, round % 2 ? c->d_state : p_at(c), d_sum, bytes);
	if (round % 2 == 0)
		o->orthonormalise(c->dev, c->n, rank_of(c), p_at(c));
	c->calls += round == rounds(c) - 1;
}

static void decode_sum(struct occ_codec *c, enum occ_how how, float *d_y)
{
	expand(c, p_at(c), c->d_state, how, d_y);
}

static void decode_own(struct occ_codec *c, enum occ_how how, float *d_y)
{
	expand(c, p_at(c), own_at(c), how, d_y);
}

const struct occ_codec_ops occ_codec_powersgd = {
	.name = "powersgd",
	.bound = bound,
	.state = state,
	.scratch = scratch,
	.start = start,
	.resize = resize,
	.encode = encode,
	.decode = decode,
	.rounds = rounds,
	.part = part,
	.offer = offer,
	.take = take,
	.decode_sum = decode_sum,
	.decode_own = decode_own,
};

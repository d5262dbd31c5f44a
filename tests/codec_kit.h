/* What tests of codecs and streams share: the rows of codecs and knobs, matrices on the host, and
 * their way in and out of a device, always by put and get. */
#ifndef OCC_TESTS_CODEC_KIT_H
#define OCC_TESTS_CODEC_KIT_H

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "compress/stream.h"
#include "tests/check.h"

/* Device i of the three that tests run on: the environment's takes the place of cpu. */
static inline const char *kit_device(int i)
{
	return i == 0 ? "ref" : i == 1 ? check_device("cpu") : "strict";
}

/* Only that one, then: the others are tested without. */
static inline int kit_takes(int i)
{
	return i == 1 || !check_device(NULL);
}

static inline struct occ_device *kit_open(const char *name, enum occ_type type)
{
	struct occ_err e = {0};
	struct occ_device *d = occ_device_open(name, type, 2, &e);
	if (!d) {
		fprintf(stderr, "%s: %s\n", name, e.text);
		exit(1);
	}
	return d;
}

/* ---- Every codec with the knobs that it is tested with. ---- */

struct kit_row {
	const char *what;
	enum occ_type type;
	struct occ_knobs knobs;
};

static const struct kit_row kit_rows[] = {
	{"none", OCC_F32, {.codec = &occ_codec_none}},
	{"none of bf16", OCC_BF16, {.codec = &occ_codec_none}},
	{"cast to bf16", OCC_F32, {.codec = &occ_codec_cast}},
	{"cast to fp16", OCC_F32, {.codec = &occ_codec_cast, .fp16 = 1}},
	{"quant 2", OCC_F32, {.codec = &occ_codec_quant, .bits = 2, .group = 7}},
	{"quant 4", OCC_F32, {.codec = &occ_codec_quant, .bits = 4, .group = 64}},
	{"quant 8", OCC_F32, {.codec = &occ_codec_quant, .bits = 8, .group = 33}},
	{"topk", OCC_F32, {.codec = &occ_codec_topk, .fraction = 0.1}},
	{"topk of bf16", OCC_BF16, {.codec = &occ_codec_topk, .fraction = 0.2}},
	{"dct", OCC_F32, {.codec = &occ_codec_dct, .fraction = 0.1, .period = 3}},
	{"dct of rows", OCC_F32, {.codec = &occ_codec_dct_rows, .fraction = 0.25}},
	{"dct of bf16 rows", OCC_BF16, {.codec = &occ_codec_dct_rows, .fraction = 0.3}},
	{"powersgd", OCC_F32, {.codec = &occ_codec_powersgd, .rank = 3, .iterations = 1}},
	{"powersgd twice", OCC_F32, {.codec = &occ_codec_powersgd, .rank = 2, .iterations = 2}},
	{"powersgd of bf16", OCC_BF16, {.codec = &occ_codec_powersgd, .rank = 3, .iterations = 1}},
	{"errbound", OCC_F32, {.codec = &occ_codec_errbound, .epsilon = 0.01}},
};

enum { KIT_ROWS = sizeof(kit_rows) / sizeof(kit_rows[0]) };

static const struct {
	int64_t n, m;
} kit_shapes[] = {{16, 24}, {7, 9}, {1, 33}, {33, 1}, {1, 1}, {5, 64}, {65, 3}};

enum { KIT_SHAPES = sizeof(kit_shapes) / sizeof(kit_shapes[0]) };

static inline int kit_is_powersgd(const struct occ_knobs *k)
{
	return k->codec == &occ_codec_powersgd;
}

/* ---- Matrices on the host; the caller frees them with occ_free. ---- */

static inline float *kit_floats(int64_t n)
{
	return occ_alloc((size_t)n, sizeof(float));
}

static inline float *kit_normals(int64_t n, uint64_t key)
{
	float *x = kit_floats(n);
	for (int64_t i = 0; i < n; i++)
		x[i] = occ_rng_normal(key, 1, (uint64_t)i);
	return x;
}

/* The same bits everywhere: multiples of 2^-20 in -1 .. 1. */
static inline float *kit_exact(int64_t n, uint64_t key)
{
	float *x = kit_floats(n);
	for (int64_t i = 0; i < n; i++)
		x[i] = (float)((int64_t)(occ_rng_u64(key, (uint64_t)i) >> 43) - (1 << 20)) *
		       0x1p-20f;
	return x;
}

static inline double kit_norm(int64_t n, const float *x)
{
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += (double)x[i] * (double)x[i];
	return sqrt(sum);
}

/* ||a - b|| */
static inline double kit_distance(int64_t n, const float *a, const float *b)
{
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
	return sqrt(sum);
}

static inline int kit_finite(int64_t n, const float *x)
{
	for (int64_t i = 0; i < n; i++)
		if (!isfinite(x[i]))
			return 0;
	return 1;
}

static inline uint64_t kit_fnv(const void *x, size_t n)
{
	uint64_t h = 0xcbf29ce484222325u;
	for (size_t i = 0; i < n; i++)
		h = (h ^ ((const uint8_t *)x)[i]) * 0x100000001b3u;
	return h;
}

/* ---- In and out of a device. ---- */

static inline void *kit_put(struct occ_device *d, const void *x, size_t bytes)
{
	void *d_x = d->ops->alloc(d, bytes);
	d->ops->put(d, d_x, x, bytes);
	d->ops->sync(d);
	return d_x;
}

static inline void *kit_get(struct occ_device *d, const void *d_x, size_t bytes)
{
	void *x = occ_alloc(bytes, 1);
	d->ops->get(d, x, d_x, bytes);
	return x;
}

/* n floats as an array of `type`. */
static inline void *kit_put_type(struct occ_device *d, const float *x, int64_t n,
				 enum occ_type type)
{
	uint16_t *half = occ_alloc((size_t)n, sizeof(*half));
	for (int64_t i = 0; i < n; i++)
		half[i] = occ_f32_to_bf16(x[i]);
	void *d_x = kit_put(d, type == OCC_F32 ? (const void *)x : half,
			    (size_t)n * occ_type_size(type));
	occ_free(half);
	return d_x;
}

static inline void kit_round(int64_t n, float *x, enum occ_type type)
{
	for (int64_t i = 0; i < n && type == OCC_BF16; i++)
		x[i] = occ_bf16_to_f32(occ_f32_to_bf16(x[i]));
}

/* ---- A wire on the host. ---- */

struct kit_wire {
	uint8_t *at; /* owned */
	size_t bytes;
};

/* Encodes x on memory of just the size, full of `fill` before. x must stay as it is. */
static inline struct kit_wire kit_encode(struct occ_codec *c, const float *x, int fill)
{
	struct occ_device *d = c->dev;
	size_t bytes = (size_t)(c->n * c->m) * sizeof(*x), bound = c->ops->bound(c);
	uint8_t *before = occ_alloc(bound, 1);
	memset(before, fill, bound);
	void *d_x = kit_put(d, x, bytes), *d_wire = kit_put(d, before, bound);
	struct kit_wire w = {NULL, c->ops->encode(c, d_x, d_wire)};
	CHECK(w.bytes <= bound && (c->ops->varies || w.bytes == bound),
	      "%s %lld x %lld: %zu bytes, bound %zu", c->ops->name, (long long)c->n,
	      (long long)c->m, w.bytes, bound);
	w.at = kit_get(d, d_wire, w.bytes);
	float *after = kit_get(d, d_x, bytes);
	CHECK(!memcmp(after, x, bytes), "%s: x is changed", c->ops->name);
	d->ops->free(d, d_x);
	d->ops->free(d, d_wire);
	occ_free(after);
	occ_free(before);
	return w;
}

/* y =, += or -= the wire's matrix; y on the host. */
static inline void kit_decode(struct occ_codec *c, const struct kit_wire *w, enum occ_how how,
			      float *y)
{
	struct occ_device *d = c->dev;
	size_t bytes = (size_t)(c->n * c->m) * sizeof(*y);
	void *d_wire = kit_put(d, w->at, w->bytes), *d_y = kit_put(d, y, bytes);
	c->ops->decode(c, d_wire, w->bytes, how, d_y);
	d->ops->get(d, y, d_y, bytes);
	d->ops->free(d, d_wire);
	d->ops->free(d, d_y);
}

/* x through the codec; the caller frees the result. */
static inline float *kit_through(struct occ_codec *c, const float *x)
{
	struct kit_wire w = kit_encode(c, x, 0);
	float *y = kit_floats(c->n * c->m);
	kit_decode(c, &w, OCC_SET, y);
	occ_free(w.at);
	return y;
}

#endif

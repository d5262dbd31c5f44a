/* One run of a device's slot, for tests: inputs drawn from a seed, what they held before, outputs.
 */
#ifndef OCC_TESTS_SLOT_RUN_H
#define OCC_TESTS_SLOT_RUN_H

#include <string.h>

#include "base/device.h"
#include "base/mem.h"
#include "tests/check.h"

enum { MAX_ARRAYS = 24 };

struct array {
	void *d_base, *d_x;
	int64_t n;
	enum occ_type type;
	int is_out;
	void *before; /* what an input held */
};

struct run {
	struct occ_device *d;
	uint64_t key, drawn;
	int big; /* 1: shapes that are worth a team of threads */
	int odd; /* 1: arrays begin one element after where they could */
	int n;
	struct array at[MAX_ARRAYS];
};

/* Uniform in lo..hi. */
static inline int64_t pick(struct run *r, int64_t lo, int64_t hi)
{
	return lo + (int64_t)(occ_rng_u64(r->key, r->drawn++) % (uint64_t)(hi - lo + 1));
}

static inline void *array(struct run *r, int64_t n, enum occ_type type, const void *host,
			  int is_out)
{
	size_t bytes = (size_t)n * occ_type_size(type);
	size_t shift = r->odd ? occ_type_size(type) : 0;
	void *d_base = r->d->ops->alloc(r->d, bytes + shift), *d_x = (char *)d_base + shift;
	void *before = is_out ? NULL : memcpy(occ_alloc(bytes, 1), host, bytes);
	r->d->ops->put(r->d, d_x, host, bytes);
	r->d->ops->sync(r->d);
	r->at[r->n++] = (struct array){d_base, d_x, n, type, is_out, before};
	return d_x;
}

/* n normal numbers times scale plus shift, or NaN. */
static inline void *draw(struct run *r, int64_t n, enum occ_type type, double scale, double shift,
			 int is_out)
{
	float *x = occ_alloc((size_t)n, sizeof(*x));
	for (int64_t i = 0; i < n; i++) {
		double v = (double)occ_rng_normal(r->key, (uint32_t)r->drawn, (uint64_t)i);
		x[i] = (float)(v * scale + shift);
		if (type == OCC_BF16)
			((uint16_t *)x)[i] = occ_f32_to_bf16(x[i]);
	}
	r->drawn++;
	void *d_x = array(r, n, type, x, is_out);
	occ_free(x);
	return d_x;
}

static inline void *in(struct run *r, int64_t n)
{
	return draw(r, n, r->d->type, 1, 0, 0);
}

static inline float *in_f32(struct run *r, int64_t n, double scale, double shift)
{
	return draw(r, n, OCC_F32, scale, shift, 0);
}

/* An output that is wholly written, full of NaN before; one that is added to, or changed in place.
 */
static inline void *out(struct run *r, int64_t n, enum occ_type type)
{
	return draw(r, n, type, 0, NAN, 1);
}

static inline void *inout(struct run *r, int64_t n, enum occ_type type)
{
	return draw(r, n, type, 1, 0, 1);
}

static inline int32_t *put_ids(struct run *r, int64_t n, int32_t *x)
{
	int32_t *d_x = array(r, n, OCC_F32, x, 0);
	occ_free(x);
	return d_x;
}

static inline int32_t *ids(struct run *r, int64_t n, int64_t lo, int64_t hi)
{
	int32_t *x = occ_alloc((size_t)n, sizeof(*x));
	for (int64_t i = 0; i < n; i++)
		x[i] = (int32_t)pick(r, lo, hi);
	return put_ids(r, n, x);
}

static inline struct occ_drop dropout(struct run *r)
{
	struct occ_drop drop = {.p = pick(r, 0, 2) ? 0.0f : 0.3f, .key = r->key, .step = 3};
	drop.site = (uint32_t)pick(r, 0, 40);
	drop.row0 = pick(r, 0, 1) ? pick(r, 0, 1000) : 0x1fffffff0;
	drop.col0 = pick(r, 0, 9);
	return drop;
}

/* Input of n words that begins where it can, `odd` or not. */
static inline void *aligned(struct run *r, int64_t n, const void *host)
{
	int odd = r->odd;
	r->odd = 0;
	void *d_x = array(r, n, OCC_F32, host, 0);
	r->odd = odd;
	return d_x;
}

enum { MOST_PIECES = 6 };

/* Pieces with gaps before and behind, now and then none: any places, or such as wide accesses can
 * take. One is as long as can be where shapes are large. *size: elements of the arrays; gaps in
 * *d_x, normal numbers, hold NaN. */
static inline struct occ_pieces pieces(struct run *r, int64_t *size, float **d_x)
{
	struct occ_piece at[MOST_PIECES], first;
	struct occ_pieces p = {.n = (int)pick(r, 1, MOST_PIECES)};
	int64_t wide = pick(r, 0, 1) ? 4 : 1, end = 0;
	for (int k = 0; k < p.n; k++) {
		int64_t most = r->big ? 3000 : 100, gap = pick(r, 0, 2) ? pick(r, 0, 9) : 0;
		at[k].at = (end + gap + wide - 1) / wide * wide;
		at[k].n = r->big && k == 1 ? OCC_PIECE : (int32_t)pick(r, 1, most);
		at[k].decay = (float)pick(r, 0, 1);
		end = at[k].at + at[k].n;
		p.total += at[k].n;
	}
	*size = end + pick(r, 0, 5);
	float *x = occ_alloc((size_t)*size, sizeof(*x));
	for (int64_t i = 0; i < *size; i++)
		x[i] = NAN;
	for (int k = 0; k < p.n; k++)
		for (int64_t i = at[k].at; i < at[k].at + at[k].n; i++)
			x[i] = occ_rng_normal(r->key, (uint32_t)r->drawn, (uint64_t)i);
	r->drawn++;
	*d_x = array(r, *size, OCC_F32, x, 0);
	occ_free(x);
	first = at[0]; /* they need not stand in the order of their places */
	at[0] = at[p.n - 1];
	at[p.n - 1] = first;
	p.d_at = aligned(r, p.n * (int64_t)sizeof(*at) / 4, at);
	return p;
}

#endif

/* One run of a codec's device slot, for tests: inputs drawn from a seed, outputs collected as
 * bytes. */
#ifndef OCC_TESTS_CODEC_SLOT_RUN_H
#define OCC_TESTS_CODEC_SLOT_RUN_H

#include <string.h>

#include "base/device.h"
#include "base/mem.h"
#include "tests/check.h"

enum { MAX_ARRAYS = 8 };
enum content { NORMAL, TIES, ODD, SPIKES, ZEROS, CONTENTS };

struct array {
	void *d_x, *before; /* before: what an input held */
	size_t bytes;
	int floats; /* an fp32 output that is calculated: a NaN is as good as another */
};

struct run {
	struct occ_device *d;
	uint64_t key, drawn;
	int big;     /* 1: shapes that are worth a team of threads */
	int culprit; /* the array that stays in the host's memory, or -1 */
	int n;
	struct array at[MAX_ARRAYS];
};

/* Uniform in lo..hi. */
static inline int64_t any(struct run *r, int64_t lo, int64_t hi)
{
	return lo + (int64_t)(occ_rng_u64(r->key, r->drawn++) % (uint64_t)(hi - lo + 1));
}

static inline void *array(struct run *r, size_t bytes, const void *host, int is_in, int floats)
{
	void *before = memcpy(occ_alloc(bytes + 1, 1), host, bytes);
	void *d_x = r->culprit == r->n && bytes ? before : r->d->ops->alloc(r->d, bytes);
	if (d_x != before)
		r->d->ops->put(r->d, d_x, host, bytes);
	r->d->ops->sync(r->d);
	if (!is_in && d_x != before)
		before = (occ_free(before), NULL);
	r->at[r->n++] = (struct array){d_x, before, bytes, floats};
	return d_x;
}

static inline float from_bits(uint32_t u)
{
	float v;
	memcpy(&v, &u, sizeof(v));
	return v;
}

/* Numbers for element i: usual ones; few magnitudes; NaN, infinities, denormal and huge ones
 * between them; a sample of every 16th that misleads; zeros. */
static inline float number(uint64_t key, enum content c, uint32_t id, int64_t i)
{
	static const uint32_t odd[] = {0x7fc00000, 0xffc00001, 0x7f800000, 0xff800000,
				       0x00000001, 0x80000400, 0x7f7fffff, 0x80000000};
	float v = occ_rng_normal(key, id, (uint64_t)i);
	if (c == TIES)
		return roundf(v * 2);
	if (c == SPIKES)
		return i % 16 == 0 ? v + copysignf(20, v) : v;
	if (c == ODD && occ_rng_u64(key + id, (uint64_t)i) % 64 < 8)
		return from_bits(odd[occ_rng_u64(key + id, (uint64_t)i) % 64]);
	return c == ZEROS ? 0 : v;
}

static inline float *numbers(uint64_t key, enum content c, uint32_t id, int64_t n)
{
	float *x = occ_alloc((size_t)n + 1, sizeof(*x));
	for (int64_t i = 0; i < n; i++)
		x[i] = number(key, c, id, i);
	return x;
}

static inline float *floats(struct run *r, int64_t n, enum content c, int is_in)
{
	float *x = numbers(r->key, c, (uint32_t)r->drawn++, n);
	float *d_x = array(r, (size_t)n * sizeof(*x), x, is_in, !is_in);
	occ_free(x);
	return d_x;
}

static inline float *in(struct run *r, int64_t n)
{
	return floats(r, n, (enum content)any(r, 0, CONTENTS - 1), 1);
}

static inline float *inout(struct run *r, int64_t n)
{
	return floats(r, n, NORMAL, 0);
}

/* Bytes that are written: 0xa5 before. */
static inline void *out(struct run *r, int64_t bytes)
{
	void *x = memset(occ_alloc((size_t)bytes + 1, 1), 0xa5, (size_t)bytes);
	void *d_x = array(r, (size_t)bytes, x, 0, 0);
	occ_free(x);
	return d_x;
}

static inline void count_out(struct run *r, int64_t count)
{
	r->culprit = -1; /* no slot sees this one */
	array(r, sizeof(count), &count, 0, 0);
}

static inline int64_t size(struct run *r)
{
	return r->big ? any(r, 20000, 90000) : any(r, 0, 4) ? any(r, 1, 300) : 1;
}

static inline enum occ_how how(struct run *r)
{
	return (enum occ_how)any(r, OCC_SET, OCC_SUB);
}

#endif

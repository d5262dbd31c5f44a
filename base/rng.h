/* Counter-based random numbers (Philox 4x32-10): a pure function of (key, counter), so that nothing
 * depends on the order of drawing, the layout, the thread count or a restart. */
#ifndef OCC_BASE_RNG_H
#define OCC_BASE_RNG_H

#include <math.h>
#include <stdint.h>

#include "base/type.h"

struct occ_philox {
	uint32_t x[4];
};

OCC_INLINE struct occ_philox occ_philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2,
					uint32_t c3)
{
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
	for (int r = 0; r < 10; r++) {
		uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
		uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
		c0 = n0;
		c1 = (uint32_t)b;
		c2 = n2;
		c3 = (uint32_t)a;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	struct occ_philox r = {{c0, c1, c2, c3}};
	return r;
}

/* Streams keep independent uses of one seed apart. Every use stands here. */
enum occ_stream_id {
	OCC_RNG_INIT = 1,
	OCC_RNG_DROPOUT,
	OCC_RNG_ORDER,
	OCC_RNG_SAMPLE,
	OCC_RNG_CODEC
};

uint64_t occ_rng_key(uint64_t seed, enum occ_stream_id stream); /* mixes the two */
uint64_t occ_rng_u64(uint64_t key, uint64_t index);
double occ_rng_uniform(uint64_t key, uint64_t index); /* [0, 1), 53 bits */
/* Standard normal number `index` of tensor `tensor` (Box-Muller); the formula, for kernels too. */
float occ_rng_normal(uint64_t key, uint32_t tensor, uint64_t index);
OCC_INLINE float occ_rng_normal_inline(uint64_t key, uint32_t tensor, uint64_t index)
{
	struct occ_philox r = occ_philox(key, (uint32_t)index, (uint32_t)(index >> 32), tensor, 2);
	uint64_t a = (uint64_t)r.x[1] << 32 | r.x[0], b = (uint64_t)r.x[3] << 32 | r.x[2];
	double u = ((double)(a >> 11) + 0.5) * 0x1p-53, v = (double)(b >> 11) * 0x1p-53;
	return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}
/* Element i of a random permutation of 0..n-1 (Feistel network with cycle walking); n >= 1. */
uint64_t occ_rng_permute(uint64_t key, uint64_t n, uint64_t i);

/* Dropout by global position: the mask of element (row, col) depends on (seed, step, site, row,
 * col) only, whatever rank computes it. `row` is sample * seq_len + token with the sample's index
 * in the global batch; `site` is 4 * layer + {0 embedding, 1 attention, 2 attention output, 3 mlp
 * output}. */
struct occ_drop {
	float p;       /* probability of dropping; 0 = off */
	uint64_t key;  /* occ_rng_key(seed, OCC_RNG_DROPOUT) */
	uint32_t step; /* from 0 */
	uint32_t site;
	int64_t row0; /* global row of local row 0 */
	int64_t col0; /* global column of local column 0 */
};

/* The four factors (0 or 1/(1-p)) of columns 4*quad .. 4*quad+3 of a row, in global indices. */
OCC_INLINE void occ_drop_quad(const struct occ_drop *d, int64_t row, int64_t quad, float out[4])
{
	struct occ_philox r =
		occ_philox(d->key, (uint32_t)row, (uint32_t)(row >> 32) ^ (d->site << 16),
			   (uint32_t)quad, d->step);
	uint32_t limit = (uint32_t)((double)d->p * 4294967296.0);
	float keep = 1.0f / (1.0f - d->p);
	for (int i = 0; i < 4; i++)
		out[i] = r.x[i] < limit ? 0.0f : keep;
}

/* The factor of one element, local indices. */
OCC_INLINE float occ_drop_at(const struct occ_drop *d, int64_t row, int64_t col)
{
	float f[4];
	int64_t c = d->col0 + col;
	occ_drop_quad(d, d->row0 + row, c >> 2, f);
	return f[c & 3];
}

#endif

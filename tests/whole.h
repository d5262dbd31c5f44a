/* Values of whole tensors for tests of what moves weights: any shard of any layout gets its part of
 * the same tensors, and unlike in the model's own start no vector is constant. */
#ifndef OCC_TESTS_WHOLE_H
#define OCC_TESTS_WHOLE_H

#include <string.h>

#include "model/weights.h"

static inline uint64_t whole_mix(uint64_t x)
{
	x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
	x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
	return x ^ x >> 33;
}

/* Padding rows and gaps are 0. */
static inline void whole_fill(const struct occ_weights *w, uint64_t seed, float *flat)
{
	memset(flat, 0, (size_t)w->size * sizeof(*flat));
	for (int i = 0; i < w->n; i++) {
		const struct occ_weight *p = &w->at[i];
		uint64_t h = whole_mix(seed);
		for (const char *c = p->name; *c; c++)
			h = whole_mix(h ^ (uint64_t)*c);
		for (int64_t k = 0; k < p->lrows * p->lcols; k++) {
			int64_t row = occ_weight_row(w, p, k / p->lcols);
			int64_t col = occ_weight_col(w, p, k % p->lcols);
			if (row < p->real_rows)
				flat[p->at + k] = (float)(int32_t)whole_mix(
					h ^ (uint64_t)(row * p->cols + col));
		}
	}
}

#endif

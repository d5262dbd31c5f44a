/* Elementary functions that the compiler vectorises: no calls, no branches, no tables. Errors are
 * about two units in the last place; NaN stays NaN. */
#ifndef OCC_BASE_VMATH_H
#define OCC_BASE_VMATH_H

#include <stdint.h>
#include <string.h>

static inline float occ_bits_to_f32(uint32_t u)
{
	float f;
	memcpy(&f, &u, sizeof(f));
	return f;
}

static inline uint32_t occ_f32_to_bits(float f)
{
	uint32_t u;
	memcpy(&u, &f, sizeof(u));
	return u;
}

/* exp(x); below -87.3 it stays at about 1e-38, above 88 it is about 1.6e38. */
static inline float occ_exp(float x)
{
	const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
	x = x < -87.3f ? -87.3f : x;
	x = x > 88.0f ? 88.0f : x;
	float t = x * 1.44269504f + magic, n = t - magic;
	float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
	float p = 1.0f / 5040;
	p = p * r + 1.0f / 720;
	p = p * r + 1.0f / 120;
	p = p * r + 1.0f / 24;
	p = p * r + 1.0f / 6;
	p = p * r + 0.5f;
	p = p * r + 1.0f;
	p = p * r + 1.0f;
	return p * occ_bits_to_f32((occ_f32_to_bits(t) - occ_f32_to_bits(magic) + 127u) << 23);
}

#endif

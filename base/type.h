/* Numeric types of device arrays, and bf16 conversion (round to nearest even). */
#ifndef OCC_BASE_TYPE_H
#define OCC_BASE_TYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum occ_type { OCC_F32, OCC_BF16 };

static inline size_t occ_type_size(enum occ_type t)
{
	return t == OCC_BF16 ? 2 : 4;
}

static inline float occ_bf16_to_f32(uint16_t h)
{
	uint32_t u = (uint32_t)h << 16;
	float f;
	memcpy(&f, &u, sizeof(f));
	return f;
}

/* NaN stays NaN (quiet), infinity stays infinity. */
static inline uint16_t occ_f32_to_bf16(float f)
{
	uint32_t u;
	memcpy(&u, &f, sizeof(u));
	uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
	uint32_t quiet = (u >> 16) | 0x40u;
	return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

#endif

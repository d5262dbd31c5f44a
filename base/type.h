/* Numeric types of device arrays, and bf16 conversion (round to nearest even). */
#ifndef OCC_BASE_TYPE_H
#define OCC_BASE_TYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Small functions that kernels use too. */
#ifdef __CUDACC__
#define OCC_INLINE static inline __host__ __device__
#else
#define OCC_INLINE static inline
#endif

enum occ_type { OCC_F32, OCC_BF16 };

OCC_INLINE size_t occ_type_size(enum occ_type t)
{
	return t == OCC_BF16 ? 2 : 4;
}

OCC_INLINE float occ_bf16_to_f32(uint16_t h)
{
	uint32_t u = (uint32_t)h << 16;
	float f;
	memcpy(&f, &u, sizeof(f));
	return f;
}

/* NaN stays NaN (quiet), infinity stays infinity. */
OCC_INLINE uint16_t occ_f32_to_bf16(float f)
{
	uint32_t u;
	memcpy(&u, &f, sizeof(u));
	uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
	uint32_t quiet = (u >> 16) | 0x40u;
	return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/* fp16, round to nearest even; overflow gives infinity, NaN stays NaN. */
OCC_INLINE uint16_t occ_f32_to_f16(float f)
{
	uint32_t u, sign, magnitude;
	memcpy(&u, &f, sizeof(u));
	sign = u >> 16 & 0x8000u;
	magnitude = u & 0x7fffffffu;
	if (magnitude >= 0x7f800000u)
		return (uint16_t)(sign | 0x7c00u | (magnitude > 0x7f800000u ? 0x200u : 0));
	if (magnitude >= 0x477ff000u) /* 65520: rounds past the largest */
		return (uint16_t)(sign | 0x7c00u);
	if (magnitude < 0x38800000u) { /* below 2^-14: a multiple of 2^-24 */
		float scaled;
		memcpy(&scaled, &magnitude, sizeof(scaled));
		scaled = scaled + 0.5f; /* the sum's last bit is worth 2^-24 */
		memcpy(&u, &scaled, sizeof(u));
		return (uint16_t)(sign | (u - 0x3f000000u));
	}
	magnitude += 0xfffu + (magnitude >> 13 & 1u);
	return (uint16_t)(sign | (magnitude - 0x38000000u) >> 13);
}

OCC_INLINE float occ_f16_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = h >> 10 & 0x1fu, m = h & 0x3ffu, u;
	float f;
	if (e == 0) {
		f = (float)m * 0x1p-24f;
		return sign ? -f : f;
	}
	u = sign | (e == 0x1f ? 0x7f800000u : (e + 112) << 23) | m << 13;
	memcpy(&f, &u, sizeof(f));
	return f;
}

#endif

/* Vectors of fp32 for the cpu device: as wide as the target's registers, written with the
 * compiler's vector types, so that one source serves AVX-512, AVX2 and NEON. Arrays of both compute
 * types are read and written through these; partial vectors at the end of a row too, by the same
 * arithmetic, so that no bit depends on how a row is cut. */
#ifndef OCC_BASE_VMATH_H
#define OCC_BASE_VMATH_H

#include <math.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

#include "base/type.h"

#if defined(__AVX512F__)
enum { VW = 16 };
#elif defined(__AVX__)
enum { VW = 8 };
#else
enum { VW = 4 };
#endif

typedef float vf __attribute__((vector_size(4 * VW)));
typedef int32_t vi __attribute__((vector_size(4 * VW)));
typedef uint32_t vu __attribute__((vector_size(4 * VW)));
typedef uint16_t vh __attribute__((vector_size(2 * VW)));

#define INLINE static inline __attribute__((always_inline))

/* Calls f with the type as a constant in front, so that each type gets its own loops. */
#define BY_TYPE(type, f, ...)                                                                      \
	do {                                                                                       \
		if ((type) == OCC_F32)                                                             \
			f(OCC_F32, __VA_ARGS__);                                                   \
		else                                                                               \
			f(OCC_BF16, __VA_ARGS__);                                                  \
	} while (0)

INLINE vf vset(float x)
{
	return x - (vf){0};
}

/* a where the mask is all ones, b where it is 0. */
INLINE vf vselect(vi mask, vf a, vf b)
{
	return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

INLINE vi vnan(vf x)
{
	return x != x;
}

/* vmax: a > b ? a : b, vmin: a < b ? a : b; so b where one is NaN. Written lane by lane the
 * compiler now and then takes them apart for good, hence the three names of x86. */
#if defined(__AVX512F__)
#define X86(f) _mm512_##f##_ps
#elif defined(__AVX__)
#define X86(f) _mm256_##f##_ps
#endif

#ifdef X86
INLINE vf vmax(vf a, vf b)
{
	return (vf)X86(max)(a, b);
}

INLINE vf vmin(vf a, vf b)
{
	return (vf)X86(min)(a, b);
}

INLINE vf vsqrt(vf a)
{
	return (vf)X86(sqrt)(a);
}
#else
INLINE vf vmax(vf a, vf b)
{
	return vselect(a > b, a, b);
}

INLINE vf vmin(vf a, vf b)
{
	return vselect(a < b, a, b);
}

INLINE vf vsqrt(vf a)
{
	for (int i = 0; i < VW; i++)
		a[i] = sqrtf(a[i]);
	return a;
}
#endif
#undef X86

/* EACH(f, d): f(lane, d) for each lane. VSWAP: a with lane i and lane i ^ d exchanged. VWEAVE:
 * lanes of a where bit d of the lane's number is 0, else of b. d is a literal power of two below
 * VW. */
#if defined(__AVX512F__)
#define EACH(f, d)                                                                                 \
	f(0, d), f(1, d), f(2, d), f(3, d), f(4, d), f(5, d), f(6, d), f(7, d), f(8, d), f(9, d),  \
		f(10, d), f(11, d), f(12, d), f(13, d), f(14, d), f(15, d)
#elif defined(__AVX__)
#define EACH(f, d) f(0, d), f(1, d), f(2, d), f(3, d), f(4, d), f(5, d), f(6, d), f(7, d)
#else
#define EACH(f, d) f(0, d), f(1, d), f(2, d), f(3, d)
#endif
#define LANE(i, d) (i)
#define OTHER(i, d) (((i) ^ (d)) & (VW - 1))
#define EITHER(i, d) ((i) & (d) ? (i) + VW : (i))
#define VSWAP(a, d) __builtin_shufflevector(a, a, EACH(OTHER, d))
#define VWEAVE(a, b, d) __builtin_shufflevector(a, b, EACH(EITHER, d))

INLINE vi vlanes(void)
{
	return (vi){EACH(LANE, 0)};
}

/* One bit for each lane whose mask is all ones. */
INLINE unsigned vbits(vi mask)
{
#if defined(__AVX512DQ__)
	return _mm512_movepi32_mask((__m512i)mask);
#elif defined(__AVX512F__)
	return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask);
#elif defined(__AVX__)
	return (unsigned)_mm256_movemask_ps((__m256)mask);
#else
	unsigned bits = 0;
	for (int i = 0; i < VW; i++)
		bits |= (unsigned)(mask[i] & 1) << i;
	return bits;
#endif
}

/* The first n lanes of a (n may be anything), `fill` in the others. */
INLINE vf vkeep(vf a, int64_t n, float fill)
{
	if (n >= VW)
		return a;
	return vselect(vlanes() < (int32_t)n, a, vset(fill));
}

INLINE float vsum(vf a)
{
	if (VW > 8)
		a += VSWAP(a, 8);
	if (VW > 4)
		a += VSWAP(a, 4);
	a += VSWAP(a, 2);
	a += VSWAP(a, 1);
	return a[0];
}

INLINE float vtop(vf a)
{
	if (VW > 8)
		a = vmax(a, VSWAP(a, 8));
	if (VW > 4)
		a = vmax(a, VSWAP(a, 4));
	a = vmax(a, VSWAP(a, 2));
	a = vmax(a, VSWAP(a, 1));
	return a[0];
}

/* Lanes between 16 and 32 bits; generic conversion takes three instructions where AVX-512 has one.
 */
INLINE vu vwiden(vh h)
{
#ifdef __AVX512F__
	return (vu)_mm512_cvtepu16_epi32((__m256i)h);
#else
	return __builtin_convertvector(h, vu);
#endif
}

INLINE vh vnarrow(vu u)
{
#ifdef __AVX512F__
	return (vh)_mm512_cvtepi32_epi16((__m512i)u);
#else
	return __builtin_convertvector(u, vh);
#endif
}

INLINE vf vfrom_bf16(vh h)
{
	return (vf)(vwiden(h) << 16);
}

INLINE vh vto_bf16(vf f)
{
	vu u = (vu)f, rounded = u + 0x7fffu + ((u >> 16) & 1u), quiet = u | 0x400000u;
	return vnarrow((vu)vselect(vnan(f), (vf)quiet, (vf)rounded) >> 16);
}

/* Elements i .. i+VW-1 of an array of type t. */
INLINE vf vload(enum occ_type t, const void *x, int64_t i)
{
	vf v;
	vh h;
	if (t == OCC_F32) {
		memcpy(&v, (const float *)x + i, sizeof(v));
		return v;
	}
	memcpy(&h, (const uint16_t *)x + i, sizeof(h));
	return vfrom_bf16(h);
}

INLINE void vstore(enum occ_type t, void *x, int64_t i, vf v)
{
	if (t == OCC_F32) {
		memcpy((float *)x + i, &v, sizeof(v));
		return;
	}
	vh h = vto_bf16(v);
	memcpy((uint16_t *)x + i, &h, sizeof(h));
}

/* The same where only n elements are left (n may be more than a vector); the rest reads as `fill`.
 */
INLINE vf vget_or(enum occ_type t, const void *x, int64_t i, int64_t n, float fill)
{
	if (n >= VW)
		return vload(t, x, i);
	float part[VW];
	for (int k = 0; k < VW; k++)
		part[k] = k >= n         ? fill
			  : t == OCC_F32 ? ((const float *)x)[i + k]
					 : occ_bf16_to_f32(((const uint16_t *)x)[i + k]);
	return vload(OCC_F32, part, 0);
}

INLINE vf vget(enum occ_type t, const void *x, int64_t i, int64_t n)
{
	return vget_or(t, x, i, n, 0);
}

INLINE void vput(enum occ_type t, void *x, int64_t i, int64_t n, vf v)
{
	if (n >= VW) {
		vstore(t, x, i, v);
		return;
	}
	float part[VW];
	vstore(OCC_F32, part, 0, v);
	for (int k = 0; k < n; k++)
		if (t == OCC_F32)
			((float *)x)[i + k] = part[k];
		else
			((uint16_t *)x)[i + k] = occ_f32_to_bf16(part[k]);
}

/* e^x within 1 ulp; 0 below -87.7, infinity above 88.4, NaN stays NaN. x = n ln2 + r with
 * |r| <= ln2/2; e^r = 1 + r + r^2 q(r), q by Remez exchange to 3e-9; times 2^n through the
 * exponent. */
INLINE vf vexp(vf x)
{
	x = vmin(vset(89.0f), vmax(vset(-88.0f), x));
	vf magic = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: n stands in the low bits */
	vf n = magic - 12582912.0f;
	vf r = x - n * 0.693359375f; /* ln2 in two parts, the first exact in n * part */
	r = r + n * 2.12194440e-4f;
	vf q = r * 0.00138145406f + 0.00836874545f;
	q = q * r + 0.041668389f;
	q = q * r + 0.166665211f;
	q = q * r + 0.49999994f;
	vf p = q * (r * r) + r + 1.0f;
	return p * (vf)(((vu)magic + 127u) << 23);
}

#endif

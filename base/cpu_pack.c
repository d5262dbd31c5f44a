/* Cpu attention: packing of a head's blocks, and the product that gives a block of scores. */
#include "base/cpu_attention.h"

INLINE void pack(enum occ_type t, const struct head *s, const void *x, int64_t at, int64_t ld,
		 int64_t n, float scale, float *out)
{
	for (int64_t i = 0; i < n; i++)
		for (int64_t c = 0; c < s->Dp; c += VW)
			vstore(OCC_F32, out, i * s->Dp + c,
			       vget(t, x, at + i * ld + c, s->a->D - c) * scale);
	memset(out + n * s->Dp, 0, (size_t)((BLOCK - n) * s->Dp) * sizeof(*out));
}

void occ_cpu_pack_rows(const struct head *s, const void *x, int64_t at, int64_t ld, int64_t n,
		       float scale, float *out)
{
	BY_TYPE(s->type, pack, s, x, at, ld, n, scale, out);
}

/* Rows i and i + d exchange the lanes in which they belong to each other. */
#define EXCHANGE(v, i, d)                                                                          \
	do {                                                                                       \
		vf a = (v)[i], b = (v)[(i) + (d)];                                                 \
		(v)[i] = VWEAVE(a, VSWAP(b, d), d);                                                \
		(v)[(i) + (d)] = VWEAVE(VSWAP(a, d), b, d);                                        \
	} while (0)

/* VW x VW elements transposed in registers: step d exchanges what differs in bit d. */
INLINE void turn(const float *x, int64_t ldx, float *out, int64_t ldo)
{
	vf v[VW];
#pragma GCC unroll 16
	for (int i = 0; i < VW; i++)
		v[i] = vload(OCC_F32, x, i * ldx);
#pragma GCC unroll 16
	for (int i = 0; i < VW; i += 2)
		EXCHANGE(v, i, 1);
#pragma GCC unroll 16
	for (int i = 0; i + 2 < VW; i++)
		if (!(i & 2))
			EXCHANGE(v, i, 2);
#pragma GCC unroll 16
	for (int i = 0; i + 4 < VW; i++)
		if (!(i & 4))
			EXCHANGE(v, i, 4);
#pragma GCC unroll 16
	for (int i = 0; i + 8 < VW; i++)
		EXCHANGE(v, i, 8);
#pragma GCC unroll 16
	for (int i = 0; i < VW; i++)
		vstore(OCC_F32, out, i * ldo, v[i]);
}

void occ_cpu_pack_columns(const struct head *s, const float *rows, float *out)
{
	for (int64_t c = 0; c < s->Dp; c += VW)
		for (int64_t i = 0; i < BLOCK; i += VW)
			turn(rows + i * s->Dp + c, s->Dp, out + c * BLOCK + i, BLOCK);
}

INLINE void unpack(enum occ_type t, const struct head *s, const float *rows, int64_t n, float scale,
		   void *x, int64_t at, int64_t ld)
{
	for (int64_t i = 0; i < n; i++)
		for (int64_t c = 0; c < s->a->D; c += VW)
			vput(t, x, at + i * ld + c, s->a->D - c,
			     vload(OCC_F32, rows, i * s->Dp + c) * scale);
}

void occ_cpu_unpack_rows(const struct head *s, const float *rows, int64_t n, float scale, void *x,
			 int64_t at, int64_t ld)
{
	BY_TYPE(s->type, unpack, s, rows, n, scale, x, at, ld);
}

void occ_cpu_scores(int64_t rows, int64_t Dp, int64_t ahead, const float *q, const float *kt,
		    float *out)
{
	for (int64_t j = 0; j < BLOCK; j += NR)
		for (int64_t i = 0; i < rows; i += MR)
			if (j <= ahead + i + MR - 1)
				tile(0, 0, Dp, q + i * Dp, Dp, kt + j, BLOCK, out + i * BLOCK + j,
				     BLOCK);
}

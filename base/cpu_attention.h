/* What both passes of cpu attention share: the cut into blocks and the packing of one head.
 *
 * A head's rows stand 3*H*D (or H*D) elements apart in either type; blocks of them are packed in
 * fp32, dense, columns padded with zeros to whole tiles (Dp), so that the products run at full
 * speed whatever the type and the head size are. */
#ifndef OCC_BASE_CPU_ATTENTION_H
#define OCC_BASE_CPU_ATTENTION_H

#include "base/cpu.h"
#include "base/cpu_tile.h"

enum { BLOCK = 64 }; /* queries and keys of a block of scores; multiple of MR and NR */

struct head {
	const struct occ_attention *a;
	enum occ_type type;
	int64_t b, h;
	int64_t Dp, Tp; /* D and T in whole tiles and blocks */
};

static inline int64_t round_up(int64_t n, int64_t to)
{
	return (n + to - 1) / to * to;
}

static inline struct head head_of(const struct occ_device *d, const struct occ_attention *a)
{
	return (struct head){a, d->type, 0, 0, round_up(a->D, NR), round_up(a->T, BLOCK)};
}

/* First element of part 0 (q), 1 (k), 2 (v) of token t in packed projections. */
static inline int64_t qkv_at(const struct head *s, int64_t t, int part)
{
	int64_t H = s->a->H, D = s->a->D;
	return ((s->b * s->a->T + t) * 3 + part) * H * D + s->h * D;
}

static inline int64_t out_at(const struct head *s, int64_t t)
{
	return (s->b * s->a->T + t) * s->a->H * s->a->D + s->h * s->a->D;
}

/* Rows x[at + i * ld] (n, D) times scale into out (BLOCK, Dp); rows from n to BLOCK are zero. */
void occ_cpu_pack_rows(const struct head *s, const void *x, int64_t at, int64_t ld, int64_t n,
		       float scale, float *out);
/* The transpose of what pack_rows gives (Dp, BLOCK). */
void occ_cpu_pack_columns(const struct head *s, const float *rows, float *out);
/* Rows (n, D) of a packed block times scale to x[at + i * ld] in the head's type. */
void occ_cpu_unpack_rows(const struct head *s, const float *rows, int64_t n, float scale, void *x,
			 int64_t at, int64_t ld);

/* Score block s (BLOCK, BLOCK) = q (rows, Dp) * kt (Dp, BLOCK), whole tiles of which some key is at
 * or before some query; `ahead` = first query - first key of the block, 0 on the diagonal. */
void occ_cpu_scores(int64_t rows, int64_t Dp, int64_t ahead, const float *q, const float *kt,
		    float *out);

#endif

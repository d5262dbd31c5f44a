/* Cpu attention, forward: block by block with a running maximum and sum per query, so that one
 * block of scores is all that is ever held. Heads in parallel; where there are few, blocks of
 * queries too. */
#include "base/cpu_attention.h"

#include <omp.h>

/* One thread's memory; all in fp32. */
struct room {
	float *kt;              /* [Tp/BLOCK][Dp][BLOCK] keys, each block transposed */
	float *v;               /* [Tp][Dp] values */
	float *q, *o;           /* [BLOCK][Dp] queries times scale; sums of probability * value */
	float *s;               /* [BLOCK][BLOCK] scores, then probabilities */
	float *max, *sum, *fix; /* [BLOCK] per query: so far; e^(old max - new max) */
	float *mask;            /* [BLOCK] dropout factors of a row */
};

static size_t room_size(const struct head *s)
{
	return (size_t)(2 * s->Tp * s->Dp + 2 * BLOCK * s->Dp + BLOCK * BLOCK + 4 * BLOCK);
}

static struct room room_at(const struct head *s, float *at)
{
	struct room w;
	w.kt = at;
	w.v = w.kt + s->Tp * s->Dp;
	w.q = w.v + s->Tp * s->Dp;
	w.o = w.q + BLOCK * s->Dp;
	w.s = w.o + BLOCK * s->Dp;
	w.max = w.s + BLOCK * BLOCK;
	w.sum = w.max + BLOCK;
	w.fix = w.sum + BLOCK;
	w.mask = w.fix + BLOCK;
	return w;
}

/* Packs keys and values of the blocks from `from` to `end`. */
static void pack_keys(const struct head *s, const struct room *w, const void *qkv, int64_t from,
		      int64_t end)
{
	int64_t ld = 3 * s->a->H * s->a->D;
	for (int64_t k0 = from; k0 < end; k0 += BLOCK) {
		int64_t n = s->a->T - k0 < BLOCK ? s->a->T - k0 : BLOCK;
		occ_cpu_pack_rows(s, qkv, qkv_at(s, k0, 1), ld, n, 1, w->q);
		occ_cpu_pack_columns(s, w->q, w->kt + k0 * s->Dp);
		occ_cpu_pack_rows(s, qkv, qkv_at(s, k0, 2), ld, n, 1, w->v + k0 * s->Dp);
	}
}

/* Keys of a block that query i of the block may see. */
INLINE int64_t seen(int64_t ahead, int64_t i)
{
	return ahead + i + 1 < BLOCK ? ahead + i + 1 : BLOCK;
}

/* The new maximum of every row, and what it makes of the old sums. */
static void raise_max(const struct room *w, int64_t rows, int64_t ahead)
{
	for (int64_t i = 0; i < rows; i++) {
		int64_t n = seen(ahead, i);
		vf top = vset(w->max[i]);
		w->fix[i] = w->max[i];
		for (int64_t j = 0; j < n; j += VW)
			top = vmax(top,
				   vkeep(vload(OCC_F32, w->s, i * BLOCK + j), n - j, -INFINITY));
		w->max[i] = vtop(top);
	}
	for (int64_t i = 0; i < rows; i += VW) {
		vf fix = vexp(vload(OCC_F32, w->fix, i) - vload(OCC_F32, w->max, i));
		vstore(OCC_F32, w->fix, i, fix);
		vstore(OCC_F32, w->sum, i, vload(OCC_F32, w->sum, i) * fix);
	}
}

/* Scores to probabilities in place, not yet divided by their sum; zero for keys ahead of the query,
 * as far as the row's tile reaches. */
static void exponentiate(const struct room *w, int64_t rows, int64_t ahead)
{
	for (int64_t i = 0; i < rows; i++) {
		int64_t n = seen(ahead, i), width = seen(ahead, i | (MR - 1));
		vf sum = vset(0);
		for (int64_t j = 0; j < width; j += VW) {
			vf x = vkeep(vload(OCC_F32, w->s, i * BLOCK + j), n - j, -INFINITY);
			vf p = vexp(x - w->max[i]);
			sum += p;
			vstore(OCC_F32, w->s, i * BLOCK + j, p);
		}
		w->sum[i] += vsum(sum);
	}
}

static void drop_row(const struct head *s, const struct room *w, int64_t q, int64_t k0, int64_t i,
		     int64_t n)
{
	occ_cpu_drop(&s->a->drop, s->b * s->a->T + q, s->h * s->a->T + k0, n, w->mask);
	for (int64_t j = 0; j < n; j += VW)
		vstore(OCC_F32, w->s, i * BLOCK + j,
		       vload(OCC_F32, w->s, i * BLOCK + j) *
			       vkeep(vload(OCC_F32, w->mask, j), n - j, 0));
}

/* o = o * fix + p * v */
static void add_values(const struct room *w, int64_t rows, int64_t ahead, int64_t Dp,
		       const float *v)
{
	for (int64_t i = 0; i < rows; i++)
		for (int64_t c = 0; c < Dp && w->fix[i] != 1; c += VW)
			vstore(OCC_F32, w->o, i * Dp + c,
			       vload(OCC_F32, w->o, i * Dp + c) * w->fix[i]);
	for (int64_t c = 0; c < Dp; c += NR)
		for (int64_t i = 0; i < rows; i += MR)
			tile(0, 1, seen(ahead, i + MR - 1), w->s + i * BLOCK, BLOCK, v + c, Dp,
			     w->o + i * Dp + c, Dp);
}

/* One block of queries against all keys up to it. */
static void query_block(const struct head *s, const struct room *w, const void *qkv, int64_t q0,
			void *out, float *lse)
{
	int64_t D = s->a->D, H = s->a->H, T = s->a->T, n = T - q0 < BLOCK ? T - q0 : BLOCK;
	int64_t rows = round_up(n, MR);
	occ_cpu_pack_rows(s, qkv, qkv_at(s, q0, 0), 3 * H * D, n, 1 / sqrtf((float)D), w->q);
	memset(w->o, 0, (size_t)(BLOCK * s->Dp) * sizeof(*w->o));
	memset(w->sum, 0, BLOCK * sizeof(*w->sum));
	for (int64_t i = 0; i < BLOCK; i++)
		w->max[i] = -INFINITY;
	for (int64_t k0 = 0; k0 <= q0; k0 += BLOCK) {
		int64_t ahead = q0 - k0;
		occ_cpu_scores(rows, s->Dp, ahead, w->q, w->kt + k0 * s->Dp, w->s);
		raise_max(w, rows, ahead);
		exponentiate(w, rows, ahead);
		for (int64_t i = 0; i < n && s->a->drop.p > 0; i++)
			drop_row(s, w, q0 + i, k0, i, seen(ahead, i));
		add_values(w, rows, ahead, s->Dp, w->v + k0 * s->Dp);
	}
	for (int64_t i = 0; i < n; i++) {
		lse[(s->b * H + s->h) * T + q0 + i] = w->max[i] + logf(w->sum[i]);
		occ_cpu_unpack_rows(s, w->o + i * s->Dp, 1, 1 / w->sum[i], out, out_at(s, q0 + i),
				    H * D);
	}
}

/* Part `part` of `parts` of a head: every parts-th block of queries. */
static void part_forward(const struct head *s, const struct room *w, const void *qkv, int64_t part,
			 int64_t parts, void *out, float *lse)
{
	int64_t packed = 0;
	for (int64_t q0 = part * BLOCK; q0 < s->a->T; q0 += parts * BLOCK) {
		pack_keys(s, w, qkv, packed, q0 + BLOCK);
		packed = q0 + BLOCK;
		query_block(s, w, qkv, q0, out, lse);
	}
}

void occ_cpu_attention_forward(struct occ_device *d, const struct occ_attention *a,
			       const void *d_qkv, void *d_out, float *d_lse)
{
	struct head any = head_of(d, a);
	int nt = cpu_team(d, a->B * a->H * a->T * a->T);
	int64_t heads = a->B * a->H, parts = 1, blocks = any.Tp / BLOCK;
	if (heads < 4 * nt && nt > 1) /* the cut into parts changes no sum */
		parts = blocks < 4 * nt ? blocks : 4 * nt;
	size_t size = room_size(&any);
	float *scratch = occ_cpu_scratch(d, size * (size_t)nt);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(dynamic)
	for (int64_t k = 0; k < heads * parts; k++) {
		struct room w = room_at(&any, scratch + size * (size_t)omp_get_thread_num());
		struct head s = any;
		s.b = k / parts / a->H;
		s.h = k / parts % a->H;
		part_forward(&s, &w, d_qkv, k % parts, parts, d_out, d_lse);
	}
}

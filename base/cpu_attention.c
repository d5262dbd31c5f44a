/* cpu: causal attention a block of scores at a time, with the running softmax of FlashAttention;
 * backward computes the probabilities again from the kept log-sum. One (sequence, head) is one
 * task, in fp32 whatever the compute type; its operands are packed and padded once, so that the
 * block products need no edges. */
#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "base/vmath.h"

#if defined(__AVX512F__)
enum { LANES = 16, MR = 8 };
#elif defined(__AVX__)
enum { LANES = 8, MR = 4 };
#else
enum { LANES = 4, MR = 4 };
#endif
typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

enum { NR = 2 * LANES, BQ = 32, BK = 64 }; /* both multiples of MR; BK of NR for every LANES */

/* A matrix operand of a block product: element (i, j) at at[i * rs + j * cs]. */
struct mat {
	const float *at;
	int64_t rs, cs;
};

/* c (MR, NR) [+]= a (MR, k) * b (k, NR); b's and c's rows are dense in their ld. */
static inline void tile(int64_t k, struct mat a, const float *b, int64_t ldb, float *c, int64_t ldc,
			int add)
{
	vec acc[MR][2];
	for (int i = 0; i < MR; i++)
		for (int j = 0; j < 2; j++)
			acc[i][j] = add ? *(const vec *)(c + i * ldc + j * LANES) : (vec){0};
	for (int64_t p = 0; p < k; p++) {
		vec b0 = *(const vec *)(b + p * ldb), b1 = *(const vec *)(b + p * ldb + LANES);
#pragma GCC unroll 8
		for (int i = 0; i < MR; i++) {
			float x = a.at[i * a.rs + p * a.cs];
			acc[i][0] += x * b0;
			acc[i][1] += x * b1;
		}
	}
	for (int i = 0; i < MR; i++)
		for (int j = 0; j < 2; j++)
			*(vec *)(c + i * ldc + j * LANES) = acc[i][j];
}

/* c (m, n) [+]= a (m, k) * b (k, n); m is a multiple of MR, n of NR. */
static void product(int64_t m, int64_t n, int64_t k, struct mat a, const float *b, int64_t ldb,
		    float *c, int64_t ldc, int add)
{
	for (int64_t j = 0; j < n; j += NR)
		for (int64_t i = 0; i < m; i += MR)
			tile(k, (struct mat){a.at + i * a.rs, a.rs, a.cs}, b + j, ldb,
			     c + i * ldc + j, ldc, add);
}

/* One task: the operands of a head, padded with zeros to whole blocks. T and D below are padded. */
struct head {
	const struct occ_device *d;
	const struct occ_attention *a;
	int64_t b, h, T, D;
	float scale;
};

static int64_t round_up(int64_t n, int64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

static int64_t qkv_at(const struct head *s, int64_t t, int which)
{
	int64_t width = s->a->H * s->a->D;
	return ((s->b * s->a->T + t) * 3 + which) * width + s->h * s->a->D;
}

static int64_t out_at(const struct head *s, int64_t t)
{
	return (s->b * s->a->T + t) * s->a->H * s->a->D + s->h * s->a->D;
}

enum { Q, K, V, OUT };

/* x (T, D) of the head, dense; rows and columns beyond the real ones are 0. */
static void pack(const struct head *s, const void *x, int which, float *out)
{
	int64_t D = s->a->D;
	float buf[256];
	memset(out, 0, (size_t)(s->T * s->D) * sizeof(float));
	for (int64_t t = 0; t < s->a->T; t++) {
		int64_t at = which == OUT ? out_at(s, t) : qkv_at(s, t, which);
		memcpy(out + t * s->D, cpu_in(s->d, x, at, D, buf), (size_t)D * sizeof(float));
	}
}

static void transpose(const struct head *s, const float *x, float *out)
{
	enum { TILE = 16 };
	for (int64_t t0 = 0; t0 < s->T; t0 += TILE)
		for (int64_t c0 = 0; c0 < s->D; c0 += TILE)
			for (int64_t c = c0; c < c0 + TILE; c++)
#pragma GCC unroll 16
				for (int64_t t = t0; t < t0 + TILE; t++)
					out[c * s->T + t] = x[t * s->D + c];
}

static void unpack(const struct head *s, const float *x, int64_t t, void *out, int64_t at)
{
	float buf[256], *to = cpu_out(s->d, out, at, buf);
	memcpy(to, x + t * s->D, (size_t)s->a->D * sizeof(float));
	cpu_done(s->d, out, at, s->a->D, to);
}

/* Scores of a block, scaled; keys after the query become -inf. */
static void scores(const struct head *s, const float *q, const float *kt, int64_t q0, int64_t k0,
		   float *S)
{
	product(BQ, BK, s->D, (struct mat){q + q0 * s->D, s->D, 1}, kt + k0, s->T, S, BK, 0);
	for (int64_t i = 0; i < BQ; i++) {
#pragma omp simd
		for (int64_t j = 0; j < BK; j++)
			S[i * BK + j] = k0 + j > q0 + i ? -INFINITY : S[i * BK + j] * s->scale;
	}
}

static void mask_row(const struct head *s, int64_t q, int64_t k0, float *row)
{
	struct occ_drop drop = s->a->drop;
	int64_t n = s->a->T - k0 < BK ? s->a->T - k0 : BK;
	drop.col0 += s->h * s->a->T + k0;
	if (q < s->a->T)
		occ_cpu_mask(&drop, s->b * s->a->T + q, n, row);
}

/* Softmax of a row so far: maximum and sum; the output so far is rescaled when the maximum grows.
 */
static void softmax_row(float *row, float *max, float *sum, float *out, int64_t D)
{
	float top = *max, total = 0;
#pragma omp simd reduction(max : top)
	for (int64_t j = 0; j < BK; j++)
		top = row[j] > top ? row[j] : top;
	float shrink = *max == -INFINITY ? 0.0f : occ_exp(*max - top);
#pragma omp simd reduction(+ : total)
	for (int64_t j = 0; j < BK; j++) {
		float p = row[j] == -INFINITY ? 0.0f : occ_exp(row[j] - top);
		row[j] = p;
		total += p;
	}
	*sum = *sum * shrink + total;
	*max = top;
#pragma omp simd
	for (int64_t c = 0; c < D; c++)
		out[c] *= shrink;
}

static void forward_block(const struct head *s, const float *q, const float *kt, const float *v,
			  int64_t q0, float *S, float *O, float *lse)
{
	float max[BQ], sum[BQ] = {0};
	for (int i = 0; i < BQ; i++)
		max[i] = -INFINITY;
	memset(O, 0, (size_t)(BQ * s->D) * sizeof(float));
	for (int64_t k0 = 0; k0 < q0 + BQ; k0 += BK) {
		scores(s, q, kt, q0, k0, S);
		for (int64_t i = 0; i < BQ; i++) {
			softmax_row(S + i * BK, &max[i], &sum[i], O + i * s->D, s->D);
			if (s->a->drop.p > 0)
				mask_row(s, q0 + i, k0, S + i * BK);
		}
		product(BQ, s->D, BK, (struct mat){S, BK, 1}, v + k0 * s->D, s->D, O, s->D, 1);
	}
	for (int64_t i = 0; i < BQ && q0 + i < s->a->T; i++) {
		float inverse = 1.0f / sum[i];
#pragma omp simd
		for (int64_t c = 0; c < s->D; c++)
			O[i * s->D + c] *= inverse;
		lse[q0 + i] = max[i] + logf(sum[i]);
	}
}

static struct head head_of(const struct occ_device *d, const struct occ_attention *a, int64_t task)
{
	occ_check(a->D <= 256, "head size %lld", (long long)a->D);
	return (struct head){
		d,
		a,
		task / a->H,
		task % a->H,
		round_up(a->T, BK),
		round_up(a->D, NR > 16 ? NR : 16),
		1.0f / sqrtf((float)a->D),
	};
}

void occ_cpu_attention_forward(struct occ_device *d, const struct occ_attention *a,
			       const void *d_qkv, void *d_out, float *d_lse)
{
	struct head any = head_of(d, a, 0);
	size_t whole = (size_t)(any.T * any.D);
	occ_cpu_reserve(d, (4 * whole + BQ * (size_t)(BK + any.D)) * sizeof(float), 0);
	OCC_CPU_FOR(d, task, a->B * a->H)
	{
		struct head s = head_of(d, a, task);
		float *q = occ_cpu_mine(d), *k = q + whole, *v = k + whole, *kt = v + whole;
		float *S = kt + whole, *O = S + BQ * BK, *lse = d_lse + task * a->T;
		pack(&s, d_qkv, Q, q);
		pack(&s, d_qkv, K, k);
		pack(&s, d_qkv, V, v);
		transpose(&s, k, kt);
		for (int64_t q0 = 0; q0 < a->T; q0 += BQ) {
			forward_block(&s, q, kt, v, q0, S, O, lse);
			for (int64_t i = 0; i < BQ && q0 + i < a->T; i++)
				unpack(&s, O, i, d_out, out_at(&s, q0 + i));
		}
	}
}

/* The packed arrays of a backward task. */
struct back {
	float *q, *k, *v, *dout, *kt, *vt; /* (T, D), the last two (D, T) */
	float *dq, *dk, *dv;               /* (T, D) */
	float *delta;                      /* (T) dout . out */
	float *P, *dS;                     /* (BQ, BK) */
	const float *lse;
};

/* P = probabilities (after dropout), dS = gradient of the unscaled scores, of one block. */
static void block_gradient(const struct head *s, const struct back *g, int64_t q0, int64_t k0)
{
	scores(s, g->q, g->kt, q0, k0, g->P);
	product(BQ, BK, s->D, (struct mat){g->dout + q0 * s->D, s->D, 1}, g->vt + k0, s->T, g->dS,
		BK, 0);
	for (int64_t i = 0; i < BQ; i++) {
		float *p = g->P + i * BK, *ds = g->dS + i * BK, factor[BK];
		int real = q0 + i < s->a->T;
		float lse = real ? g->lse[q0 + i] : INFINITY, delta = g->delta[q0 + i];
		for (int64_t j = 0; j < BK; j++)
			factor[j] = 1.0f;
		if (s->a->drop.p > 0)
			mask_row(s, q0 + i, k0, factor);
#pragma omp simd
		for (int64_t j = 0; j < BK; j++) {
			float clean = p[j] == -INFINITY ? 0.0f : occ_exp(p[j] - lse);
			clean = real ? clean : 0.0f;
			ds[j] = clean * (ds[j] * factor[j] - delta) * s->scale;
			p[j] = clean * factor[j];
		}
	}
}

static void backward_head(const struct head *s, const struct back *g)
{
	int64_t D = s->D;
	for (int64_t k0 = 0; k0 < s->a->T; k0 += BK)
		for (int64_t q0 = k0 / BQ * BQ; q0 < s->a->T; q0 += BQ) {
			block_gradient(s, g, q0, k0);
			product(BK, D, BQ, (struct mat){g->P, 1, BK}, g->dout + q0 * D, D,
				g->dv + k0 * D, D, 1);
			product(BK, D, BQ, (struct mat){g->dS, 1, BK}, g->q + q0 * D, D,
				g->dk + k0 * D, D, 1);
			product(BQ, D, BK, (struct mat){g->dS, BK, 1}, g->k + k0 * D, D,
				g->dq + q0 * D, D, 1);
		}
}

static void pack_back(const struct head *s, struct back *g, const void *qkv, const void *out,
		      const void *dout)
{
	float *o = g->dq; /* free until the sums start */
	pack(s, qkv, Q, g->q);
	pack(s, qkv, K, g->k);
	pack(s, qkv, V, g->v);
	pack(s, dout, OUT, g->dout);
	pack(s, out, OUT, o);
	transpose(s, g->k, g->kt);
	transpose(s, g->v, g->vt);
	for (int64_t t = 0; t < s->T; t++) {
		float sum = 0;
#pragma omp simd reduction(+ : sum)
		for (int64_t c = 0; c < s->D; c++)
			sum += g->dout[t * s->D + c] * o[t * s->D + c];
		g->delta[t] = sum;
	}
	memset(g->dq, 0, 3 * (size_t)(s->T * s->D) * sizeof(float));
}

void occ_cpu_attention_backward(struct occ_device *d, const struct occ_attention *a,
				const void *d_qkv, const void *d_out, const float *d_lse,
				const void *d_dout, void *d_dqkv)
{
	struct head any = head_of(d, a, 0);
	size_t whole = (size_t)(any.T * any.D);
	occ_cpu_reserve(d, (9 * whole + (size_t)any.T + 2 * BQ * BK) * sizeof(float), 0);
	OCC_CPU_FOR(d, task, a->B * a->H)
	{
		struct head s = head_of(d, a, task);
		float *p = occ_cpu_mine(d);
		struct back g = {
			p,
			p + whole,
			p + 2 * whole,
			p + 3 * whole,
			p + 4 * whole,
			p + 5 * whole,
			p + 6 * whole,
			p + 7 * whole,
			p + 8 * whole,
			p + 9 * whole,
			p + 9 * whole + s.T,
			p + 9 * whole + s.T + BQ * BK,
			d_lse + task * a->T,
		};
		pack_back(&s, &g, d_qkv, d_out, d_dout);
		backward_head(&s, &g);
		for (int64_t t = 0; t < a->T; t++) {
			unpack(&s, g.dq, t, d_dqkv, qkv_at(&s, t, Q));
			unpack(&s, g.dk, t, d_dqkv, qkv_at(&s, t, K));
			unpack(&s, g.dv, t, d_dqkv, qkv_at(&s, t, V));
		}
	}
}

/* Cpu attention, backward: probabilities again from the scores and lse, one block at a time. Heads
 * in parallel; within a head key blocks go in order, so each sum has one order. */
#include "base/cpu_attention.h"

#include <omp.h>

/* One thread's memory; all in fp32. */
struct room {
	float *q, *dout, *dq; /* [Tp][Dp]; q times scale; dq without it */
	float *delta;         /* [Tp] dout . out of each query */
	float *k, *kt, *vt;   /* [BLOCK][Dp]; keys, and keys and values transposed, of a block */
	float *dk, *dv;       /* [BLOCK][Dp] */
	float *p, *ds;        /* [BLOCK][BLOCK] probabilities and gradients of the scores */
	float *mask;          /* [BLOCK] */
};

static size_t room_size(const struct head *s)
{
	return (size_t)(3 * s->Tp * s->Dp + s->Tp + 5 * BLOCK * s->Dp + 2 * BLOCK * BLOCK + BLOCK);
}

static struct room room_at(const struct head *s, float *at)
{
	struct room w;
	int64_t whole = s->Tp * s->Dp, block = BLOCK * s->Dp;
	w.q = at;
	w.dout = w.q + whole;
	w.dq = w.dout + whole;
	w.delta = w.dq + whole;
	w.k = w.delta + s->Tp;
	w.kt = w.k + block;
	w.vt = w.kt + block;
	w.dk = w.vt + block;
	w.dv = w.dk + block;
	w.p = w.dv + block;
	w.ds = w.p + BLOCK * BLOCK;
	w.mask = w.ds + BLOCK * BLOCK;
	return w;
}

struct arrays {
	const void *qkv, *out, *dout;
	const float *lse;
	void *dqkv;
};

static void pack_queries(const struct head *s, const struct room *w, const struct arrays *x)
{
	int64_t D = s->a->D, H = s->a->H, T = s->a->T, Dp = s->Dp;
	for (int64_t q0 = 0; q0 < T; q0 += BLOCK) {
		int64_t n = T - q0 < BLOCK ? T - q0 : BLOCK;
		occ_cpu_pack_rows(s, x->out, out_at(s, q0), H * D, n, 1, w->q + q0 * Dp);
		occ_cpu_pack_rows(s, x->dout, out_at(s, q0), H * D, n, 1, w->dout + q0 * Dp);
		for (int64_t t = q0; t < q0 + BLOCK; t++) {
			vf sum = vset(0);
			for (int64_t c = 0; c < Dp; c += VW)
				sum += vload(OCC_F32, w->q, t * Dp + c) *
				       vload(OCC_F32, w->dout, t * Dp + c);
			w->delta[t] = vsum(sum);
		}
		occ_cpu_pack_rows(s, x->qkv, qkv_at(s, q0, 0), 3 * H * D, n, 1 / sqrtf((float)D),
				  w->q + q0 * Dp);
	}
	memset(w->dq, 0, (size_t)(s->Tp * Dp) * sizeof(*w->dq));
}

static void pack_keys(const struct head *s, const struct room *w, const struct arrays *x,
		      int64_t k0, int64_t n)
{
	int64_t ld = 3 * s->a->H * s->a->D;
	size_t bytes = (size_t)(BLOCK * s->Dp) * sizeof(float);
	occ_cpu_pack_rows(s, x->qkv, qkv_at(s, k0, 2), ld, n, 1, w->k);
	occ_cpu_pack_columns(s, w->k, w->vt);
	occ_cpu_pack_rows(s, x->qkv, qkv_at(s, k0, 1), ld, n, 1, w->k);
	occ_cpu_pack_columns(s, w->k, w->kt);
	memset(w->dk, 0, bytes);
	memset(w->dv, 0, bytes);
}

/* Scores and dp of row i to p and ds; zero for keys ahead of the query, as far as `width`. */
static void softmax_back(const struct room *w, int64_t i, int64_t n, int64_t width, float lse,
			 float delta, const float *mask)
{
	for (int64_t j = 0; j < width; j += VW) {
		int64_t at = i * BLOCK + j;
		vf p = vexp(vkeep(vload(OCC_F32, w->p, at), n - j, -INFINITY) - lse);
		vf dp = vkeep(vload(OCC_F32, w->ds, at), n - j, 0), kept = p;
		if (mask) {
			vf m = vkeep(vload(OCC_F32, mask, j), n - j, 0);
			dp *= m;
			kept *= m;
		}
		vstore(OCC_F32, w->p, at, kept);
		vstore(OCC_F32, w->ds, at, p * (dp - delta));
	}
}

/* p and ds of a block, all but what lies wholly ahead of the queries. */
static void probabilities(const struct head *s, const struct room *w, const float *lse, int64_t q0,
			  int64_t k0, int64_t n)
{
	int64_t ahead = q0 - k0, T = s->a->T, rows = round_up(n, MR);
	occ_cpu_scores(rows, s->Dp, ahead, w->q + q0 * s->Dp, w->kt, w->p);
	occ_cpu_scores(rows, s->Dp, ahead, w->dout + q0 * s->Dp, w->vt, w->ds);
	for (int64_t i = 0; i < n; i++) {
		int64_t see = ahead ? BLOCK : i + 1, width = ahead ? BLOCK : (i | (MR - 1)) + 1;
		int dropping = s->a->drop.p > 0;
		if (dropping)
			occ_cpu_drop(&s->a->drop, s->b * T + q0 + i, s->h * T + k0, see, w->mask);
		softmax_back(w, i, see, width, lse[q0 + i], w->delta[q0 + i],
			     dropping ? w->mask : NULL);
	}
}

/* dv += p^T dout, dk += ds^T q, dq += ds k; on the diagonal only from the first query that sees. */
static void add_gradients(const struct head *s, const struct room *w, int64_t q0, int64_t n,
			  int diagonal)
{
	int64_t Dp = s->Dp;
	for (int64_t c = 0; c < Dp; c += NR)
		for (int64_t j = 0; j < BLOCK; j += MR) {
			int64_t i = diagonal ? j : 0, at = (q0 + i) * Dp + c, from = i * BLOCK + j;
			if (i >= n)
				continue;
			tile(1, 1, n - i, w->p + from, BLOCK, w->dout + at, Dp, w->dv + j * Dp + c,
			     Dp);
			tile(1, 1, n - i, w->ds + from, BLOCK, w->q + at, Dp, w->dk + j * Dp + c,
			     Dp);
		}
	for (int64_t c = 0; c < Dp; c += NR)
		for (int64_t i = 0; i < n; i += MR)
			tile(0, 1, diagonal ? i + MR : BLOCK, w->ds + i * BLOCK, BLOCK, w->k + c,
			     Dp, w->dq + (q0 + i) * Dp + c, Dp);
}

static void head_backward(const struct head *s, const struct room *w, const struct arrays *x)
{
	int64_t D = s->a->D, H = s->a->H, T = s->a->T, ld = 3 * H * D;
	const float *lse = x->lse + (s->b * H + s->h) * T;
	pack_queries(s, w, x);
	for (int64_t k0 = 0; k0 < T; k0 += BLOCK) {
		int64_t nk = T - k0 < BLOCK ? T - k0 : BLOCK;
		pack_keys(s, w, x, k0, nk);
		for (int64_t q0 = k0; q0 < T; q0 += BLOCK) {
			int64_t n = T - q0 < BLOCK ? T - q0 : BLOCK;
			probabilities(s, w, lse, q0, k0, n);
			add_gradients(s, w, q0, n, q0 == k0);
		}
		occ_cpu_unpack_rows(s, w->dk, nk, 1, x->dqkv, qkv_at(s, k0, 1), ld);
		occ_cpu_unpack_rows(s, w->dv, nk, 1, x->dqkv, qkv_at(s, k0, 2), ld);
	}
	occ_cpu_unpack_rows(s, w->dq, T, 1 / sqrtf((float)D), x->dqkv, qkv_at(s, 0, 0), ld);
}

void occ_cpu_attention_backward(struct occ_device *d, const struct occ_attention *a,
				const void *d_qkv, const void *d_out, const float *d_lse,
				const void *d_dout, void *d_dqkv)
{
	struct head any = head_of(d, a);
	struct arrays x = {d_qkv, d_out, d_dout, d_lse, d_dqkv};
	int nt = cpu_team(d, a->B * a->H * a->T * a->T);
	size_t size = room_size(&any);
	float *scratch = occ_cpu_scratch(d, size * (size_t)nt);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(dynamic)
	for (int64_t k = 0; k < a->B * a->H; k++) {
		struct room w = room_at(&any, scratch + size * (size_t)omp_get_thread_num());
		struct head s = any;
		s.b = k / a->H;
		s.h = k % a->H;
		head_backward(&s, &w, &x);
	}
}

/* Attention: cuDNN's where it has a plan (bf16, no dropout); else batched products and a softmax
 * kernel, which is also what cuDNN is compared with (OCC_ATTENTION=plain in the environment). The
 * latter takes as many heads of a sequence at once as fit SCORES bytes of scores. */
#include <math.h>

#include "base/cuda_cudnn.h"
#include "base/cuda_softmax.h"

enum { SCORES = 256 << 20 };
enum { Q, K, V };

/* One operand of a batched product: element 0 of its first head, and strides in elements. */
struct operand {
	const void *x;
	enum occ_type type;
	int64_t ld, head;
};

static const void *shifted(const void *x, enum occ_type t, int64_t elements)
{
	return (const char *)x + elements * (int64_t)occ_type_size(t);
}

/* q, k or v of the packed projections. */
static struct operand packed(const struct occ_device *d, const struct occ_cuda_heads *s,
			     const void *d_qkv, int which)
{
	int64_t row = 3 * s->H * s->D;
	int64_t at = s->b * s->T * row + which * s->H * s->D + s->h0 * s->D;
	return (struct operand){shifted(d_qkv, d->type, at), d->type, row, s->D};
}

/* Of an array (R, H*D). */
static struct operand plain(const struct occ_device *d, const struct occ_cuda_heads *s,
			    const void *d_x)
{
	int64_t row = s->H * s->D, at = s->b * s->T * row + s->h0 * s->D;
	return (struct operand){shifted(d_x, d->type, at), d->type, row, s->D};
}

/* (heads,T,T) */
static struct operand square(const struct occ_cuda_heads *s, enum occ_type t, const void *d_x)
{
	return (struct operand){d_x, t, s->T, s->T * s->T};
}

/* c (T,n) = alpha * op(a) (T,k) * op(b) (k,n) of every head. */
static void product(struct occ_device *d, const struct occ_cuda_heads *s, int64_t n, int64_t k,
		    float alpha, int ta, struct operand a, int tb, struct operand b,
		    struct operand c)
{
	static const cudaDataType of[] = {[OCC_F32] = CUDA_R_32F, [OCC_BF16] = CUDA_R_16BF};
	float zero = 0;
	occ_cuda_blas(cublasGemmStridedBatchedEx(
			      occ_cuda_of(d)->now->blas, tb ? CUBLAS_OP_T : CUBLAS_OP_N,
			      ta ? CUBLAS_OP_T : CUBLAS_OP_N, (int)n, (int)s->T, (int)k, &alpha,
			      b.x, of[b.type], (int)b.ld, b.head, a.x, of[a.type], (int)a.ld,
			      a.head, &zero, (void *)c.x, of[c.type], (int)c.ld, c.head,
			      (int)s->heads, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
		      "cublasGemmStridedBatchedEx");
}

/* Heads that fit, with `bytes` for each score. */
static int64_t at_once(const struct occ_attention *a, int64_t bytes)
{
	int64_t fit = SCORES / bytes / a->T / a->T;
	return fit < 1 ? 1 : fit < a->H ? fit : a->H;
}

static struct occ_cuda_heads heads_of(const struct occ_attention *a)
{
	occ_check(3 * a->H * a->D <= INT32_MAX && a->T <= INT32_MAX, "a row of %lld values",
		  (long long)(3 * a->H * a->D));
	return (struct occ_cuda_heads){
		.T = a->T, .H = a->H, .D = a->D, .scale = 1 / sqrtf((float)a->D), .drop = a->drop};
}

/* cuDNN, or NULL. Gradients are summed in one order, so that runs repeat and resumed ones go on
 * with the same bits. */
static struct occ_cudnn *fused(struct occ_device *d, const struct occ_attention *a)
{
	struct occ_cuda *c = occ_cuda_of(d);
	if (d->type != OCC_BF16 || a->drop.p > 0 || occ_cuda_asked("OCC_ATTENTION", "plain"))
		return NULL;
	occ_check(c->now == &c->queue[OCC_COMPUTE], "attention on another queue");
	if (!c->cudnn_asked)
		c->cudnn = occ_cudnn_open(c->now->stream, 1);
	c->cudnn_asked = 1;
	return c->cudnn;
}

static int fused_forward(struct occ_device *d, const struct occ_attention *a, const void *d_qkv,
			 void *d_out, float *d_lse)
{
	struct occ_cudnn *c = fused(d, a);
	int64_t room = c ? occ_cudnn_room(c, a, OCC_CUDNN_FORWARD) : -1;
	return room >= 0 &&
	       occ_cudnn_forward(c, a, d_qkv, d_out, d_lse, occ_cuda_scratch(d, (size_t)room));
}

static int fused_backward(struct occ_device *d, const struct occ_attention *a, const void *d_qkv,
			  const void *d_out, const float *d_lse, const void *d_dout, void *d_dqkv)
{
	struct occ_cudnn *c = fused(d, a);
	int64_t room = c ? occ_cudnn_room(c, a, OCC_CUDNN_BACKWARD) : -1;
	return room >= 0 && occ_cudnn_backward(c, a, d_qkv, d_out, d_lse, d_dout, d_dqkv,
					       occ_cuda_scratch(d, (size_t)room));
}

static void forward(struct occ_device *d, const struct occ_cuda_heads *s, const void *d_qkv,
		    float *d_score, void *d_p, void *d_out, float *d_lse)
{
	product(d, s, s->T, s->D, s->scale, 0, packed(d, s, d_qkv, Q), 1, packed(d, s, d_qkv, K),
		square(s, OCC_F32, d_score));
	occ_cuda_softmax(d, s, d_score, d_p, d_lse);
	product(d, s, s->D, s->T, 1, 0, square(s, d->type, d_p), 0, packed(d, s, d_qkv, V),
		plain(d, s, d_out));
}

void occ_cuda_attention_forward(struct occ_device *d, const struct occ_attention *a,
				const void *d_qkv, void *d_out, float *d_lse)
{
	int apart = d->type != OCC_F32; /* in fp32 probabilities take the place of scores */
	int64_t step = at_once(a, apart ? 6 : 4), n = step * a->T * a->T;
	struct occ_cuda_heads s = heads_of(a);
	if (a->B * a->T * a->H == 0 || fused_forward(d, a, d_qkv, d_out, d_lse))
		return;
	float *score = occ_cuda_scratch(d, (size_t)n * (apart ? 6 : 4));
	void *p = apart ? (void *)(score + n) : (void *)score;
	for (s.b = 0; s.b < a->B; s.b++)
		for (s.h0 = 0; s.h0 < a->H; s.h0 += s.heads) {
			s.heads = a->H - s.h0 < step ? a->H - s.h0 : step;
			forward(d, &s, d_qkv, score, p, d_out, d_lse);
		}
}

/* Room for the squares of the way back. */
struct squares {
	float *score, *dp;
	void *p, *ds;
};

static void backward(struct occ_device *d, const struct occ_cuda_heads *s, const void *d_qkv,
		     const void *d_out, const float *d_lse, const void *d_dout,
		     const struct squares *x, void *d_dqkv)
{
	struct operand p = square(s, d->type, x->p), ds = square(s, d->type, x->ds);
	product(d, s, s->T, s->D, s->scale, 0, packed(d, s, d_qkv, Q), 1, packed(d, s, d_qkv, K),
		square(s, OCC_F32, x->score));
	product(d, s, s->T, s->D, 1, 0, plain(d, s, d_dout), 1, packed(d, s, d_qkv, V),
		square(s, OCC_F32, x->dp));
	occ_cuda_softmax_backward(d, s, x->score, d_lse, d_out, d_dout, x->dp, x->p, x->ds);
	product(d, s, s->D, s->T, 1, 0, ds, 0, packed(d, s, d_qkv, K), packed(d, s, d_dqkv, Q));
	product(d, s, s->D, s->T, 1, 1, ds, 0, packed(d, s, d_qkv, Q), packed(d, s, d_dqkv, K));
	product(d, s, s->D, s->T, 1, 1, p, 0, plain(d, s, d_dout), packed(d, s, d_dqkv, V));
}

void occ_cuda_attention_backward(struct occ_device *d, const struct occ_attention *a,
				 const void *d_qkv, const void *d_out, const float *d_lse,
				 const void *d_dout, void *d_dqkv)
{
	int apart = d->type != OCC_F32;
	int64_t step = at_once(a, apart ? 12 : 8), n = step * a->T * a->T;
	struct occ_cuda_heads s = heads_of(a);
	struct squares x;
	if (a->B * a->T * a->H == 0 || fused_backward(d, a, d_qkv, d_out, d_lse, d_dout, d_dqkv))
		return;
	x.score = occ_cuda_scratch(d, (size_t)n * (apart ? 12 : 8));
	x.dp = x.score + n;
	x.p = apart ? (void *)(x.dp + n) : (void *)x.score;
	x.ds = apart ? (void *)((char *)x.p + 2 * n) : (void *)x.dp;
	for (s.b = 0; s.b < a->B; s.b++)
		for (s.h0 = 0; s.h0 < a->H; s.h0 += s.heads) {
			s.heads = a->H - s.h0 < step ? a->H - s.h0 : step;
			backward(d, &s, d_qkv, d_out, d_lse, d_dout, &x, d_dqkv);
		}
}

/* The device table: every operation that touches weights, activations or gradients.
 *
 * One table per backend and every slot filled in every table (occ_device_open names a missing one):
 *   ref     plain loops, the truth for tests
 *   cpu     oneDNN products and own vectorised kernels on OpenMP threads
 *   strict  ref on memory that the host cannot touch (a PROT_NONE range, filled with NaN)
 *   cuda    GPUs (its row says how to get it in a build without)
 *
 * Conventions. Pointers named d_ are device memory. `void *` arrays have the device's compute type
 * T (fp32 or bf16); `float *` arrays are fp32: gradients of weights, statistics, master weights.
 * Arithmetic inside a kernel is fp32 or better whatever T is. Arrays are row-major and dense.
 * "+=" outputs are added to, all others are written. Inputs and outputs may not overlap unless
 * said. Calls enqueue; only `get` and `sync` wait. Nothing here fails to its caller and nothing
 * allocates after the first step with the same shapes. No result depends on the number of threads.
 * Shapes: R rows (tokens), C channels, B sequences, T tokens, H heads, D head size, V vocabulary.
 */
#ifndef OCC_BASE_DEVICE_H
#define OCC_BASE_DEVICE_H

#include "base/err.h"
#include "base/rng.h"
#include "base/trace.h"
#include "base/type.h"

/* c (m,n) = op(a) (m,k) * op(b) (k,n) + beta * c [+ bias (n) on every row]; op transposes where
 * asked. */
struct occ_gemm {
	int ta, tb; /* 0 or 1: the stored matrix is the transpose, (k,m) or (n,k) */
	int64_t m, n, k;
	int64_t lda, ldb, ldc; /* elements between stored rows */
	enum occ_type c_type;  /* a, b and bias have the device's type; c this one */
	float beta;            /* 0 (c may hold anything, NaN too) or 1 */
	int bias;              /* 1: a bias is added, only with beta 0 */
	int f32;               /* 1: all operands are fp32 whatever the device's type */
};

/* Queues of a device: what is enqueued on one runs in its order. */
enum occ_queue {
	OCC_COMPUTE, /* passes and the optimizer; the current one at first */
	OCC_PIPE,    /* what goes to other stages and comes from them */
	OCC_DATA,    /* sums over replicas */
	OCC_NQUEUES
};

/* How a result meets what its array holds. */
enum occ_how { OCC_SET, OCC_ADD, OCC_SUB };

/* Causal self-attention on packed projections: row b*T+t of d_qkv (R, 3*H*D) is q | k | v,
 * head-major. */
struct occ_attention {
	int64_t B, T, H, D;
	struct occ_drop drop; /* on the probabilities: row0 + (b*T + query), col0 + h*T + key */
};

/* Vocabulary-parallel cross-entropy over the columns v0 .. v0+V-1 of the vocabulary. */
struct occ_xent {
	int64_t rows, V, ld; /* logits (rows, V) of type T, ld elements between rows */
	int64_t v0;          /* first vocabulary id of this shard */
	int64_t valid;       /* ids >= valid are padding: never in the loss, gradient 0 */
};

/* Flat arrays are worked on by pieces: runs of neighbours with one weight decay. They do not
 * overlap, what lies between them is left alone, and their order says nothing. */
enum { OCC_PIECE = 16384 }; /* elements of a piece, at most: a GPU's blocks take one each */

struct occ_piece {
	int64_t at;  /* its first element */
	int32_t n;   /* 1 .. OCC_PIECE elements */
	float decay; /* 1, or 0 where weights do not decay; times that of struct occ_adamw */
};

struct occ_pieces {
	int n;
	int64_t total; /* elements of all */
	const struct occ_piece *d_at;
};

struct occ_adamw {
	float lr, beta1, beta2, eps, decay;
	float scale;  /* multiplies the gradient first (clipping) */
	float c1, c2; /* 1 - beta^t: bias corrections */
};

struct occ_device;

struct occ_device_ops {
	const char *name;
	int host_visible; /* 1: device pointers may be read and written by the host */
	int dry;          /* 1: there is no memory behind pointers, nor on the host for wires */
	int64_t wide;     /* bytes of a large intermediate array worth having; 0: 64 MB */
	int (*open)(struct occ_device *d, struct occ_err *e); /* fills d->impl */
	void (*close)(struct occ_device *d);

	/* Memory. alloc: zeroed for ref and cpu, NaN for strict; 64-byte aligned; dies (8). */
	void *(*alloc)(struct occ_device *d, size_t bytes);
	void (*free)(struct occ_device *d, void *d_x); /* after what is enqueued on the queue */
	/* Host memory that put and get reach fastest; any content; dies (8). Not during a step. */
	void *(*alloc_host)(struct occ_device *d, size_t bytes);
	void (*free_host)(struct occ_device *d, void *x);
	/* src stays as it is until the queue has passed the copy, wherever it lies. From memory
	 * that alloc_host did not give it may also wait for what was enqueued before. */
	void (*put)(struct occ_device *d, void *d_dst, const void *src, size_t bytes);
	void (*get)(struct occ_device *d, void *dst, const void *d_src, size_t bytes); /* waits */
	void (*copy)(struct occ_device *d, void *d_dst, const void *d_src, size_t bytes);
	void (*zero)(struct occ_device *d, void *d_dst, size_t bytes);
	void (*sync)(struct occ_device *d); /* waits */

	/* Queues. Calls are enqueued on the current one; `get` and `sync` wait for it alone. A mark
	 * is a point of a queue: `mark` puts it at the end of the current one, `after` makes what
	 * is enqueued next on the current queue wait for it (NULL, or a mark never put,
	 * holds nobody up).
	 * Devices that run each call at once (ref, cpu, strict, dry) have queues in name only. */
	void (*queue)(struct occ_device *d, enum occ_queue q);
	void *(*mark_open)(struct occ_device *d);
	void (*mark_close)(struct occ_device *d, void *m); /* NULL is allowed */
	void (*mark)(struct occ_device *d, void *m);
	void (*after)(struct occ_device *d, void *m);
	/* Work that comes again and again: work(arg) enqueues on the current queue, for one r
	 * always the same calls with the same arguments, of which only the memory may hold other
	 * values. It waits for nothing, allocates nothing and puts no marks. A device may record
	 * the calls and enqueue the record in their place; then work is not called. r NULL: work is
	 * called. */
	void *(*repeat_open)(struct occ_device *d);          /* NULL: nothing is recorded here */
	void (*repeat_close)(struct occ_device *d, void *r); /* NULL is allowed */
	void (*repeat)(struct occ_device *d, void *r, void (*work)(void *arg), void *arg);

	/* Elementwise. */
	void (*cast)(struct occ_device *d, int64_t n, enum occ_type from, const void *d_x,
		     enum occ_type to, void *d_y);
	void (*add)(struct occ_device *d, int64_t n, const void *d_x, void *d_y); /* y += x */
	void (*gelu_forward)(struct occ_device *d, int64_t n, const void *d_x,
			     void *d_y); /* tanh form */
	/* dx = dy * gelu'(x); dx may be dy */
	void (*gelu_backward)(struct occ_device *d, int64_t n, const void *d_x, const void *d_dy,
			      void *d_dx);

	/* Matrix product; the bias pointer is NULL unless g->bias. */
	void (*gemm)(struct occ_device *d, const struct occ_gemm *g, const void *d_a,
		     const void *d_b, const void *d_bias, void *d_c);
	/* Products of type T that meet GELU, dense, beta 0: h (m,n) = product [+ bias] and y (m,n)
	 * = gelu(h); dx (m,n) = product * gelu'(h). */
	void (*gemm_gelu)(struct occ_device *d, const struct occ_gemm *g, const void *d_a,
			  const void *d_b, const void *d_bias, void *d_h, void *d_y);
	void (*gemm_gelu_backward)(struct occ_device *d, const struct occ_gemm *g, const void *d_a,
				   const void *d_b, const void *d_h, void *d_dx);
	/* db (C) += column sums of dy (R,C) */
	void (*bias_backward)(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
			      float *d_db);

	/* xo = x + drop(delta + bias) (delta and bias NULL: xo is not written, x is used as it is);
	 * then, unless w is NULL, y = layernorm(xo) * w + b with mean and rstd (R) kept, eps 1e-5.
	 * xo may be x. */
	void (*residual_norm_forward)(struct occ_device *d, int64_t R, int64_t C, const void *d_x,
				      const void *d_delta, const void *d_bias,
				      const struct occ_drop *drop, const void *d_w, const void *d_b,
				      void *d_xo, void *d_y, float *d_mean, float *d_rstd);
	/* The way back: dx = dres + d(layernorm)(dy) (dres NULL: 0; w NULL: no norm, dy unused, x
	 * unused); dw, db (C) += . If ddelta is not NULL: ddelta = dx * mask and dbias (C) += its
	 * column sums. x is what was normalised (xo above). dx may be dres; ddelta may be dx only
	 * where drop->p is 0. */
	void (*residual_norm_backward)(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
				       const void *d_dres, const void *d_x, const void *d_w,
				       const float *d_mean, const float *d_rstd,
				       const struct occ_drop *drop, void *d_dx, void *d_ddelta,
				       float *d_dw, float *d_db, float *d_dbias);

	/* out (R, H*D), lse (B,H,T) = log of the sum of exp(score). Scores are q.k/sqrt(D), causal.
	 * At most one block of scores per thread is ever held. */
	void (*attention_forward)(struct occ_device *d, const struct occ_attention *a,
				  const void *d_qkv, void *d_out, float *d_lse);
	void (*attention_backward)(struct occ_device *d, const struct occ_attention *a,
				   const void *d_qkv, const void *d_out, const float *d_lse,
				   const void *d_dout, void *d_dqkv);

	/* out (R,C) = row tokens[r]-v0 of wte (V,C), or zeros where the id is of another shard. */
	void (*embed_forward)(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
			      const int32_t *d_tokens, const void *d_wte, void *d_out);
	/* dwte (V,C) += ; rows of one token are added in the order of r. */
	void (*embed_backward)(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
			       const int32_t *d_tokens, const void *d_dout, float *d_dwte);
	/* x (R,C) = drop(x + wpe[(r % T)]) in place, wpe (>=T, C). */
	void (*position_forward)(struct occ_device *d, int64_t R, int64_t C, int64_t T,
				 const void *d_wpe, const struct occ_drop *drop, void *d_x);
	/* dx = dx * mask in place; dwpe (T,C) += , rows of one position in the order of r. */
	void (*position_backward)(struct occ_device *d, int64_t R, int64_t C, int64_t T,
				  const struct occ_drop *drop, void *d_dx, float *d_dwpe);

	/* Cross-entropy in three passes, so that a tensor group can reduce between them; the first
	 * and the last read the logits, once each. Rows with target < 0 count nothing.
	 * max[r] over the valid ids of this shard, -inf if it has none; sum[r] of exp(logit -
	 * max[r]) over them; hit[r] = logit[target], 0 if the target is of another shard. */
	void (*xent_stats)(struct occ_device *d, const struct occ_xent *x, const void *d_logits,
			   const int32_t *d_targets, float *d_max, float *d_sum, float *d_hit);
	/* sum[r] *= exp(max[r] - top[r]), where top (rows) is the largest max of all shards. Sums,
	 * and hits, of the shards may then be added; adjacent ones in one reduction. */
	void (*xent_rescale)(struct occ_device *d, int64_t rows, const float *d_max,
			     const float *d_top, float *d_sum);
	/* loss[r] = log(sum) + top - hit (0 where the target is < 0). If d_dlogits is not NULL
	 * (type T, stride x->ld, may be d_logits): (softmax - onehot) * scale, 0 for padding and
	 * for target < 0. */
	void (*xent_finish)(struct occ_device *d, const struct occ_xent *x, const void *d_logits,
			    const int32_t *d_targets, const float *d_top, const float *d_sum,
			    const float *d_hit, float scale, float *d_loss, void *d_dlogits);

	/* Optimizer, over pieces of flat arrays. master may be NULL with T = fp32: then w itself is
	 * the master. */
	void (*adamw)(struct occ_device *d, const struct occ_adamw *a, const struct occ_pieces *p,
		      const float *d_g, float *d_m, float *d_v, float *d_master, void *d_w);
	/* *d_sum = sum of squares in double, fixed blocks in fixed order. */
	void (*sum_squares)(struct occ_device *d, int64_t n, const float *d_x, double *d_sum);
	/* sum[i] = sum of squares of piece i of x in double, in fixed order. */
	void (*piece_squares)(struct occ_device *d, const struct occ_pieces *p, const float *d_x,
			      double *d_sum);

	/* What codecs need (compress/). Wires are bytes at 4-byte aligned addresses; indices are
	 * `width` bytes each, 2 or 4. Magnitudes are compared as bits, so that NaN is the largest.
	 * x = standard normal numbers 0 .. n-1 of (key, id), occ_rng_normal's. */
	void (*draw)(struct occ_device *d, int64_t n, uint64_t key, uint32_t id, float *d_x);
	/* x *= a */
	void (*scale)(struct occ_device *d, int64_t n, float a, float *d_x);
	/* y =, += or -= x, where y is fp32 and x of `type`. */
	void (*accumulate)(struct occ_device *d, int64_t n, enum occ_type type, const void *d_x,
			   enum occ_how how, float *d_y);
	/* y (n) = the sum of the k >= 1 rows of x (k,n), or with max 1 the largest (NaN wins): row
	 * after row in fp32, rounded once. Both of `type`. */
	void (*fold)(struct occ_device *d, int k, int64_t n, enum occ_type type, int max,
		     const void *d_x, void *d_y);
	/* Columns of a (n,r), r <= n, become orthonormal, each in the span of itself and those
	 * before it. One that is zero, or lies in the span of those before to 1e-6 of its length,
	 * becomes some direction that depends on (n, r, its number) only. Any scale. */
	void (*orthonormalise)(struct occ_device *d, int64_t n, int64_t r, float *d_a);
	/* The k <= C largest magnitudes of each row of x (R,C), ties to the lowest column: at and
	 * value (R,k) in the order of columns, least (R, or NULL) the smallest magnitude kept. */
	void (*select)(struct occ_device *d, int64_t R, int64_t C, int64_t k, const float *d_x,
		       int width, void *d_at, float *d_value, float *d_least);
	/* The first cap elements with magnitude >= *d_least, in order; indices of 4 bytes. *count
	 * (host) is the number of all of them; waits. */
	void (*above)(struct occ_device *d, int64_t n, const float *d_x, const float *d_least,
		      int64_t cap, int32_t *d_at, float *d_value, int64_t *count);
	/* value (R,k) = x (R,C) at `at`; and y (R,C) at `at` =, += or -= value: SET first zeroes
	 * all of y. No index stands twice in a row. */
	void (*pick)(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width,
		     const void *d_at, const float *d_x, float *d_value);
	void (*place)(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width,
		      const void *d_at, const float *d_value, enum occ_how how, float *d_y);
	/* Wire: a scale (fp32, the largest magnitude) for each `group` values, then codes of 2, 4
	 * or 8 bits, low bits first, two's complement: code q stands for scale * (q / L) with L =
	 * 2^(bits-1) - 1, nearest, so 0 and +-scale are exact. A group that is not finite gets the
	 * scale NaN. */
	void (*quantise)(struct occ_device *d, int64_t n, int bits, int64_t group, const float *d_x,
			 void *d_wire);
	void (*dequantise)(struct occ_device *d, int64_t n, int bits, int64_t group,
			   const void *d_wire, enum occ_how how, float *d_y);
	/* Wire: a power of two (fp32), then n values times it in fp16, nearest: the largest lies in
	 * 2^14 .. 2^15, so nothing overflows; 1 where x is 0 or not finite. */
	void (*half_pack)(struct occ_device *d, int64_t n, const float *d_x, void *d_wire);
	void (*half_unpack)(struct occ_device *d, int64_t n, const void *d_wire, enum occ_how how,
			    float *d_y);
	/* |x - what is unpacked| <= eps for every finite value, all others as they are. Wire: for
	 * each block of OCC_BOUND_BLOCK values a byte (bits a code, or OCC_BOUND_RAW), padded to 4;
	 * then the blocks' codes, zigzag of x / (2 eps) to nearest, or their fp32 values. *bytes
	 * (host) is the wire's length; waits. */
	void (*bound_pack)(struct occ_device *d, int64_t n, double eps, const float *d_x,
			   void *d_wire, int64_t *bytes);
	void (*bound_unpack)(struct occ_device *d, int64_t n, double eps, const void *d_wire,
			     enum occ_how how, float *d_y);
};

enum { OCC_BOUND_BLOCK = 64, OCC_BOUND_RAW = 255 };

/* What is looked at while the host waits for the device: it may wait for a peer that is gone.
 * Waited is since the device last got on with its work; time that this process was stopped for does
 * not count. */
struct occ_watch {
	void (*look)(void *self, double waited_ms);
	void *self;
	struct occ_watch *next;
};

struct occ_device {
	const struct occ_device_ops *ops;
	enum occ_type type; /* the compute type T */
	int threads;        /* OpenMP threads of this rank, >= 1 */
	int number;         /* which GPU was asked for, counted from 0, modulo those there are */
	struct occ_watch *watch; /* borrowed: the first of a list */
	char unit[48];           /* the GPU itself, the same string in every process; "": no GPU */
	struct occ_trace *trace; /* borrowed; where this rank notes what it does; NULL: nowhere */
	double *d_word;          /* owned: of occ_sum_squares */
	void *impl;              /* owned by the backend */
};

/* Opens backend `name` ("auto": cuda where built and usable, else cpu) for the calling thread: one
 * handle serves one thread. A number may follow, "cuda:1": the rank's among those of its node, by
 * which GPUs are dealt out; devices without GPU ignore it. Refusals: unknown or not built -> 2, no
 * usable GPU -> 8. */
struct occ_device *occ_device_open(const char *name, enum occ_type type, int threads,
				   struct occ_err *e);
void occ_device_close(struct occ_device *d);                               /* NULL is allowed */
double occ_sum_squares(struct occ_device *d, int64_t n, const float *d_x); /* the slot; waits */
/* Cuts n elements from `at` on: to[] gets up to n / OCC_PIECE + 1 pieces, their number is given. */
int occ_pieces_cut(int64_t at, int64_t n, float decay, struct occ_piece *to);
const char *occ_device_missing(const struct occ_device_ops *ops); /* first empty slot, or NULL */

/* The two slots by two others each, for devices that have no better way. */
void occ_gemm_gelu(struct occ_device *d, const struct occ_gemm *g, const void *d_a, const void *d_b,
		   const void *d_bias, void *d_h, void *d_y);
void occ_gemm_gelu_backward(struct occ_device *d, const struct occ_gemm *g, const void *d_a,
			    const void *d_b, const void *d_h, void *d_dx);

/* Slots of devices that run each call at once, on ordinary memory. */
void *occ_host_alloc(struct occ_device *d, size_t bytes);
void occ_host_free(struct occ_device *d, void *x);
void occ_queue_none(struct occ_device *d, enum occ_queue q);
void *occ_mark_open_none(struct occ_device *d);
void occ_mark_none(struct occ_device *d, void *m);
void occ_repeat_none(struct occ_device *d, void *r, void (*work)(void *arg), void *arg);
#define OCC_HOST_SLOTS                                                                             \
	.alloc_host = occ_host_alloc, .free_host = occ_host_free, .queue = occ_queue_none,         \
	.mark_open = occ_mark_open_none, .mark_close = occ_mark_none, .mark = occ_mark_none,       \
	.after = occ_mark_none, .repeat_open = occ_mark_open_none, .repeat_close = occ_mark_none,  \
	.repeat = occ_repeat_none

extern const struct occ_device_ops occ_device_ref, occ_device_cpu, occ_device_strict,
	occ_device_dry;

/* The dry device. What it can do in a second; 0: no limit. */
struct occ_rates {
	double products[2]; /* [enum occ_type] floating-point operations of matrix products */
	double others;      /* of everything else */
	double bytes;       /* to and from memory */
	double call_s;      /* seconds of any call (a kernel's launch) */
};
size_t occ_device_dry_bytes(const struct occ_device *d); /* asked for so far */
void occ_device_dry_rates(struct occ_device *d, const struct occ_rates *r);
double occ_device_dry_ms(void *device); /* its clock, as a trace takes one */

#endif

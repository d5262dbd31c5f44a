/* Inside of the cpu device: threads, scratch, and rows of either compute type as fp32.
 *
 * Kernels are written once, in fp32, on rows: for fp32 a row is the array itself, for bf16 it is
 * converted into a buffer of the thread and back. Work is divided in fixed blocks, and sums over
 * rows are made block by block in order, so that no result depends on the number of threads. */
#ifndef OCC_BASE_CPU_H
#define OCC_BASE_CPU_H

#include <omp.h>

#include "base/device.h"
#include "base/gemm.h"

struct occ_cpu {
	struct occ_gemm_lib *gemm;
	char *scratch; /* [threads][per_thread], then `shared` bytes */
	size_t per_thread, shared;
};

/* Makes room for this call; allocates only when a call needs more than any before. */
void occ_cpu_reserve(struct occ_device *d, size_t per_thread, size_t shared);
void *occ_cpu_mine(
	struct occ_device *d); /* the calling thread's part, in a parallel region or not */
void *occ_cpu_shared(struct occ_device *d);

/* A parallel loop over blocks; with one thread no team is started. */
#define OCC_PRAGMA(words) _Pragma(#words)
#define OCC_CPU_FOR(d, i, n)                                                                       \
	OCC_PRAGMA(omp parallel for num_threads((d)->threads) if ((d)->threads > 1))               \
	for (int64_t i = 0; i < (n); i++)

static inline void cpu_load(int64_t n, const uint16_t *x, float *y)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		y[i] = occ_bf16_to_f32(x[i]);
}

static inline void cpu_store(int64_t n, const float *x, uint16_t *y)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		y[i] = occ_f32_to_bf16(x[i]);
}

/* n values of x from element `at`, as fp32: in place, or in buf. */
static inline const float *cpu_in(const struct occ_device *d, const void *x, int64_t at, int64_t n,
				  float *buf)
{
	if (d->type == OCC_F32)
		return (const float *)x + at;
	cpu_load(n, (const uint16_t *)x + at, buf);
	return buf;
}

/* Where to put n values: the array itself, or buf until cpu_done. */
static inline float *cpu_out(const struct occ_device *d, void *x, int64_t at, float *buf)
{
	return d->type == OCC_F32 ? (float *)x + at : buf;
}

static inline void cpu_done(const struct occ_device *d, void *x, int64_t at, int64_t n,
			    const float *buf)
{
	if (d->type != OCC_F32)
		cpu_store(n, buf, (uint16_t *)x + at);
}

/* row[c] *= the dropout factor of (r, c), local indices. */
void occ_cpu_mask(const struct occ_drop *drop, int64_t r, int64_t n, float *row);
/* out[c] += sum over blocks of partial[block][c], in order. */
void occ_cpu_fold(struct occ_device *d, int64_t nblocks, int64_t n, const float *partial,
		  int64_t stride, float *out);

void occ_cpu_residual_norm_forward(struct occ_device *d, int64_t R, int64_t C, const void *d_x,
				   const void *d_delta, const void *d_bias,
				   const struct occ_drop *drop, const void *d_w, const void *d_b,
				   void *d_xo, void *d_y, float *d_mean, float *d_rstd);
void occ_cpu_residual_norm_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
				    const void *d_dres, const void *d_x, const void *d_w,
				    const float *d_mean, const float *d_rstd,
				    const struct occ_drop *drop, void *d_dx, void *d_ddelta,
				    float *d_dw, float *d_db, float *d_dbias);
void occ_cpu_attention_forward(struct occ_device *d, const struct occ_attention *a,
			       const void *d_qkv, void *d_out, float *d_lse);
void occ_cpu_attention_backward(struct occ_device *d, const struct occ_attention *a,
				const void *d_qkv, const void *d_out, const float *d_lse,
				const void *d_dout, void *d_dqkv);
void occ_cpu_bias_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
			   float *d_db);
void occ_cpu_embed_forward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
			   const int32_t *d_tokens, const void *d_wte, void *d_out);
void occ_cpu_embed_backward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
			    const int32_t *d_tokens, const void *d_dout, float *d_dwte);
void occ_cpu_position_forward(struct occ_device *d, int64_t R, int64_t C, int64_t T,
			      const void *d_wpe, const struct occ_drop *drop, void *d_x);
void occ_cpu_position_backward(struct occ_device *d, int64_t R, int64_t C, int64_t T,
			       const struct occ_drop *drop, void *d_dx, float *d_dwpe);
void occ_cpu_xent_max(struct occ_device *d, const struct occ_xent *x, const float *d_logits,
		      float *d_max);
void occ_cpu_xent_sum(struct occ_device *d, const struct occ_xent *x, const float *d_logits,
		      const int32_t *d_targets, const float *d_max, float *d_sum, float *d_hit);
void occ_cpu_xent_finish(struct occ_device *d, const struct occ_xent *x, const float *d_logits,
			 const int32_t *d_targets, const float *d_max, const float *d_sum,
			 const float *d_hit, float scale, float *d_loss, void *d_dlogits);
void occ_cpu_adamw(struct occ_device *d, const struct occ_adamw *a, int64_t n, const float *d_g,
		   float *d_m, float *d_v, float *d_master, void *d_w);
void occ_cpu_sum_squares(struct occ_device *d, int64_t n, const float *d_x, double *sum);

#endif

/* Inside of the cuda device: its state, and the slots that stand in base/cuda_*.{c,cu}.
 *
 * Kernels are written once, in .cu files: nvcc builds them for GPUs, and the tests build the same
 * files with g++ to run them on the CPU (tests/cudaemu). So they keep to what both know:
 *   - launches by OCC_LAUNCH, dynamic shared memory by OCC_DYN_SMEM (base/cuda.cuh);
 *   - warp operations with full masks; no lane returns before one of its warp;
 *   - no __device__ variables, no CUB, no cooperative groups, no waiting between blocks;
 *   - no float atomics: sums have one order, whatever the GPU. How work is cut depends on shapes
 *     only, never on the number of multiprocessors, wherever the cut can be seen in a result. */
#ifndef OCC_BASE_CUDA_H
#define OCC_BASE_CUDA_H

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/device.h"

enum { OCC_CUDA_PULSES = 64 };

/* Points of a queue since the host last waited to the end (cuda_pulse.c). */
struct occ_cuda_pulse {
	cudaEvent_t at[OCC_CUDA_PULSES]; /* owned; made when first needed, from the first on */
	int n, seen;                     /* put; known to be passed */
	int64_t calls, skips;            /* after each point put, so many calls put none */
};

struct occ_cuda_queue {
	cudaStream_t stream;
	cublasHandle_t blas;
	void *workspace; /* cuBLAS's: one a stream, so that its results repeat */
	char *d_scratch; /* see occ_cuda_scratch */
	size_t room;
	struct occ_cuda_pulse pulse;
	int64_t grown; /* how often: records of before hold pointers to what is gone */
};

struct occ_cuda {
	int gpu; /* its number among the visible ones */
	struct occ_cuda_queue queue[OCC_NQUEUES], *now;
	cudaStream_t memory;     /* nothing but allocations: they wait for no other work */
	void *pinned;            /* host; small results on their way back */
	struct occ_cudnn *cudnn; /* opened when first asked; NULL: cannot be used */
	struct occ_cuda_lt *lt;  /* the same */
	int cudnn_asked, lt_asked;
	int64_t beats;                              /* atomic: grows while the host gets on */
	int64_t recorded, launched, graphs_refused; /* of cuda_graph.c: how many, for the log */
};

enum { OCC_CUDA_PINNED = 4096, OCC_CUDA_WORKSPACE = 32 << 20 };

static inline struct occ_cuda *occ_cuda_of(const struct occ_device *d)
{
	return (struct occ_cuda *)d->impl;
}

/* Of the current queue. */
static inline cudaStream_t occ_cuda_stream(const struct occ_device *d)
{
	return occ_cuda_of(d)->now->stream;
}

/* A stream that waits for none but those it is told to; urgent: before others where the GPU can
 * choose, as transfers and what they wait for should be. */
cudaError_t occ_cuda_stream_open(cudaStream_t *s, int urgent);

/* Dies (8) unless e is success: the line names `what` and CUDA's word for it. */
void occ_cuda_must(cudaError_t e, const char *what);

void occ_cuda_blas(cublasStatus_t e, const char *what); /* the same for cuBLAS */

int occ_cuda_asked(const char *name, const char *way); /* 1: the environment has NAME=WAY */

/* 1: this thread is recording (cuda_graph.c) and a call has failed: nothing of the recording is
 * executed, so the caller goes on as if it had not; the first `what` and `why` are kept. */
int occ_cuda_excused(const char *what, const char *why);

int occ_cuda_recording(void); /* 1: by this thread */

/* A point of the current queue that shows later whether work goes on; not where nobody watches. */
void occ_cuda_pulse(struct occ_device *d);
int occ_cuda_moved(struct occ_cuda *c); /* 1: points were passed since the last call */
/* Any thread: counts what this rank's host calls. The same twice: it is inside one call, or
 * elsewhere. */
int64_t occ_cuda_beats(const struct occ_device *d);
void occ_cuda_rested(struct occ_cuda *c); /* a wait has ended: points of before say nothing more */
void occ_cuda_pulse_close(struct occ_cuda_pulse *p);

/* Device memory for the call in hand, 256-byte aligned, of any content: the next call on the same
 * queue may use it again. Grows where a larger one than ever before is asked for;
 * pointers of an earlier call are void. While a recording is made it stays as it is, and the
 * recording fails. One piece per call: cut it by hand. */
void *occ_cuda_scratch(struct occ_device *d, size_t bytes);

/* Copies at most OCC_CUDA_PINNED bytes of results to the host; waits. */
void occ_cuda_read(struct occ_device *d, void *dst, const void *d_src, size_t bytes);

/* y (R,C; ld elements between rows) = x (C) on every row. */
void occ_cuda_rows(struct occ_device *d, int64_t R, int64_t C, enum occ_type from, const void *d_x,
		   enum occ_type to, void *d_y, int64_t ld);

/* The slots; contracts in base/device.h. */
void *occ_cuda_repeat_open(struct occ_device *d);
void occ_cuda_repeat_close(struct occ_device *d, void *r);
void occ_cuda_repeat(struct occ_device *d, void *r, void (*work)(void *arg), void *arg);
void occ_cuda_cast(struct occ_device *d, int64_t n, enum occ_type from, const void *d_x,
		   enum occ_type to, void *d_y);
void occ_cuda_add(struct occ_device *d, int64_t n, const void *d_x, void *d_y);
void occ_cuda_gelu_forward(struct occ_device *d, int64_t n, const void *d_x, void *d_y);
void occ_cuda_gelu_backward(struct occ_device *d, int64_t n, const void *d_x, const void *d_dy,
			    void *d_dx);
void occ_cuda_gemm(struct occ_device *d, const struct occ_gemm *g, const void *d_a, const void *d_b,
		   const void *d_bias, void *d_c);
void occ_cuda_gemm_gelu(struct occ_device *d, const struct occ_gemm *g, const void *d_a,
			const void *d_b, const void *d_bias, void *d_h, void *d_y);
void occ_cuda_gemm_gelu_backward(struct occ_device *d, const struct occ_gemm *g, const void *d_a,
				 const void *d_b, const void *d_h, void *d_dx);
void occ_cuda_bias_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
			    float *d_db);
void occ_cuda_residual_norm_forward(struct occ_device *d, int64_t R, int64_t C, const void *d_x,
				    const void *d_delta, const void *d_bias,
				    const struct occ_drop *drop, const void *d_w, const void *d_b,
				    void *d_xo, void *d_y, float *d_mean, float *d_rstd);
void occ_cuda_residual_norm_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
				     const void *d_dres, const void *d_x, const void *d_w,
				     const float *d_mean, const float *d_rstd,
				     const struct occ_drop *drop, void *d_dx, void *d_ddelta,
				     float *d_dw, float *d_db, float *d_dbias);
void occ_cuda_attention_forward(struct occ_device *d, const struct occ_attention *a,
				const void *d_qkv, void *d_out, float *d_lse);
void occ_cuda_attention_backward(struct occ_device *d, const struct occ_attention *a,
				 const void *d_qkv, const void *d_out, const float *d_lse,
				 const void *d_dout, void *d_dqkv);
void occ_cuda_embed_forward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
			    const int32_t *d_tokens, const void *d_wte, void *d_out);
void occ_cuda_embed_backward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
			     const int32_t *d_tokens, const void *d_dout, float *d_dwte);
void occ_cuda_position_forward(struct occ_device *d, int64_t R, int64_t C, int64_t T,
			       const void *d_wpe, const struct occ_drop *drop, void *d_x);
void occ_cuda_position_backward(struct occ_device *d, int64_t R, int64_t C, int64_t T,
				const struct occ_drop *drop, void *d_dx, float *d_dwpe);
void occ_cuda_xent_stats(struct occ_device *d, const struct occ_xent *x, const void *d_logits,
			 const int32_t *d_targets, float *d_max, float *d_sum, float *d_hit);
void occ_cuda_xent_rescale(struct occ_device *d, int64_t rows, const float *d_max,
			   const float *d_top, float *d_sum);
void occ_cuda_xent_finish(struct occ_device *d, const struct occ_xent *x, const void *d_logits,
			  const int32_t *d_targets, const float *d_top, const float *d_sum,
			  const float *d_hit, float scale, float *d_loss, void *d_dlogits);
void occ_cuda_adamw(struct occ_device *d, const struct occ_adamw *a, const struct occ_pieces *p,
		    const float *d_g, float *d_m, float *d_v, float *d_master, void *d_w);
void occ_cuda_sum_squares(struct occ_device *d, int64_t n, const float *d_x, double *d_sum);
void occ_cuda_piece_squares(struct occ_device *d, const struct occ_pieces *p, const float *d_x,
			    double *d_sum);
void occ_cuda_draw(struct occ_device *d, int64_t n, uint64_t key, uint32_t id, float *d_x);
void occ_cuda_scale(struct occ_device *d, int64_t n, float a, float *d_x);
void occ_cuda_accumulate(struct occ_device *d, int64_t n, enum occ_type type, const void *d_x,
			 enum occ_how how, float *d_y);
void occ_cuda_fold(struct occ_device *d, int k, int64_t n, enum occ_type type, int max,
		   const void *d_x, void *d_y);
void occ_cuda_orthonormalise(struct occ_device *d, int64_t n, int64_t r, float *d_a);
void occ_cuda_select(struct occ_device *d, int64_t R, int64_t C, int64_t k, const float *d_x,
		     int width, void *d_at, float *d_value, float *d_least);
void occ_cuda_above(struct occ_device *d, int64_t n, const float *d_x, const float *d_least,
		    int64_t cap, int32_t *d_at, float *d_value, int64_t *count);
void occ_cuda_pick(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width,
		   const void *d_at, const float *d_x, float *d_value);
void occ_cuda_place(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width,
		    const void *d_at, const float *d_value, enum occ_how how, float *d_y);
void occ_cuda_quantise(struct occ_device *d, int64_t n, int bits, int64_t group, const float *d_x,
		       void *d_wire);
void occ_cuda_dequantise(struct occ_device *d, int64_t n, int bits, int64_t group,
			 const void *d_wire, enum occ_how how, float *d_y);
void occ_cuda_half_pack(struct occ_device *d, int64_t n, const float *d_x, void *d_wire);
void occ_cuda_half_unpack(struct occ_device *d, int64_t n, const void *d_wire, enum occ_how how,
			  float *d_y);
void occ_cuda_bound_pack(struct occ_device *d, int64_t n, double eps, const float *d_x,
			 void *d_wire, int64_t *bytes);
void occ_cuda_bound_unpack(struct occ_device *d, int64_t n, double eps, const void *d_wire,
			   enum occ_how how, float *d_y);

#ifdef __cplusplus
}
#endif

#endif

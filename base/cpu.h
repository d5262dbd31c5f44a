/* Inside of the cpu device: its state, and the slots that stand in files of their own.
 *
 * Work is cut in pieces that depend on shapes only, never on the number of threads, and each piece
 * is computed by one thread in one order: no result depends on how many threads there are. */
#ifndef OCC_BASE_CPU_H
#define OCC_BASE_CPU_H

#include "base/device.h"
#include "base/gemm.h"

struct occ_cpu {
	struct occ_gemm_lib *gemm;
	float *scratch; /* grown only: nothing is allocated once every shape has been seen */
	size_t room;
};

/* At least n floats, valid until the next call; of no particular value. */
float *occ_cpu_scratch(struct occ_device *d, size_t n);

/* Threads for a loop over `work` elements: a team is not worth starting for little. */
static inline int cpu_team(const struct occ_device *d, int64_t work)
{
	return work < 16384 ? 1 : d->threads;
}

/* Dropout factors of n columns from `col` of a row, local indices; drop->p > 0. */
void occ_cpu_drop(const struct occ_drop *drop, int64_t row, int64_t col, int64_t n, float *out);

void occ_cpu_residual_norm_forward(struct occ_device *d, int64_t R, int64_t C, const void *d_x,
				   const void *d_delta, const void *d_bias,
				   const struct occ_drop *drop, const void *d_w, const void *d_b,
				   void *d_xo, void *d_y, float *d_mean, float *d_rstd);
void occ_cpu_residual_norm_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
				    const void *d_dres, const void *d_x, const void *d_w,
				    const float *d_mean, const float *d_rstd,
				    const struct occ_drop *drop, void *d_dx, void *d_ddelta,
				    float *d_dw, float *d_db, float *d_dbias);
void occ_cpu_bias_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
			   float *d_db);
void occ_cpu_attention_forward(struct occ_device *d, const struct occ_attention *a,
			       const void *d_qkv, void *d_out, float *d_lse);
void occ_cpu_attention_backward(struct occ_device *d, const struct occ_attention *a,
				const void *d_qkv, const void *d_out, const float *d_lse,
				const void *d_dout, void *d_dqkv);
void occ_cpu_embed_forward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
			   const int32_t *d_tokens, const void *d_wte, void *d_out);
void occ_cpu_embed_backward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V,
			    const int32_t *d_tokens, const void *d_dout, float *d_dwte);
void occ_cpu_position_forward(struct occ_device *d, int64_t R, int64_t C, int64_t T,
			      const void *d_wpe, const struct occ_drop *drop, void *d_x);
void occ_cpu_position_backward(struct occ_device *d, int64_t R, int64_t C, int64_t T,
			       const struct occ_drop *drop, void *d_dx, float *d_dwpe);
void occ_cpu_xent_stats(struct occ_device *d, const struct occ_xent *x, const void *d_logits,
			const int32_t *d_targets, float *d_max, float *d_sum, float *d_hit);
void occ_cpu_xent_rescale(struct occ_device *d, int64_t rows, const float *d_max,
			  const float *d_top, float *d_sum);
void occ_cpu_xent_finish(struct occ_device *d, const struct occ_xent *x, const void *d_logits,
			 const int32_t *d_targets, const float *d_top, const float *d_sum,
			 const float *d_hit, float scale, float *d_loss, void *d_dlogits);
void occ_cpu_adamw(struct occ_device *d, const struct occ_adamw *a, const struct occ_pieces *p,
		   const float *d_g, float *d_m, float *d_v, float *d_master, void *d_w);
void occ_cpu_sum_squares(struct occ_device *d, int64_t n, const float *d_x, double *sum);
void occ_cpu_piece_squares(struct occ_device *d, const struct occ_pieces *p, const float *d_x,
			   double *sum);

/* y =, += or -= v, by the calling thread. */
void occ_cpu_put(enum occ_how how, int64_t n, const float *v, float *y);

void occ_cpu_scale(struct occ_device *d, int64_t n, float a, float *d_x);
void occ_cpu_accumulate(struct occ_device *d, int64_t n, enum occ_type type, const void *d_x,
			enum occ_how how, float *d_y);
void occ_cpu_fold(struct occ_device *d, int k, int64_t n, enum occ_type type, int max,
		  const void *d_x, void *d_y);
void occ_cpu_orthonormalise(struct occ_device *d, int64_t n, int64_t r, float *d_a);
void occ_cpu_select(struct occ_device *d, int64_t R, int64_t C, int64_t k, const float *d_x,
		    int width, void *d_at, float *d_value, float *d_least);
void occ_cpu_above(struct occ_device *d, int64_t n, const float *d_x, const float *d_least,
		   int64_t cap, int32_t *d_at, float *d_value, int64_t *count);
void occ_cpu_pick(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width,
		  const void *d_at, const float *d_x, float *d_value);
void occ_cpu_place(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width,
		   const void *d_at, const float *d_value, enum occ_how how, float *d_y);
void occ_cpu_quantise(struct occ_device *d, int64_t n, int bits, int64_t group, const float *d_x,
		      void *d_wire);
void occ_cpu_dequantise(struct occ_device *d, int64_t n, int bits, int64_t group,
			const void *d_wire, enum occ_how how, float *d_y);
void occ_cpu_half_pack(struct occ_device *d, int64_t n, const float *d_x, void *d_wire);
void occ_cpu_half_unpack(struct occ_device *d, int64_t n, const void *d_wire, enum occ_how how,
			 float *d_y);
void occ_cpu_bound_pack(struct occ_device *d, int64_t n, double eps, const float *d_x, void *d_wire,
			int64_t *bytes);
void occ_cpu_bound_unpack(struct occ_device *d, int64_t n, double eps, const void *d_wire,
			  enum occ_how how, float *d_y);

#endif

/* Inside of the ref device: element access for both compute types, and the slots that stand in
 * files of their own. `strict` uses the same slots through the table. */
#ifndef OCC_BASE_REF_H
#define OCC_BASE_REF_H

#include "base/device.h"

/* Element i of an array of type t, in double: sums inside the ref kernels are double. */
static inline double ref_get(enum occ_type t, const void *x, int64_t i)
{
	if (t == OCC_F32)
		return (double)((const float *)x)[i];
	return (double)occ_bf16_to_f32(((const uint16_t *)x)[i]);
}

static inline void ref_set(enum occ_type t, void *x, int64_t i, double v)
{
	if (t == OCC_F32)
		((float *)x)[i] = (float)v;
	else
		((uint16_t *)x)[i] = occ_f32_to_bf16((float)v);
}

/* Dropout factor of a local position; 1 where dropout is off. */
static inline double ref_mask(const struct occ_drop *drop, int64_t row, int64_t col)
{
	return drop && drop->p > 0 ? (double)occ_drop_at(drop, row, col) : 1.0;
}

void occ_ref_residual_norm_forward(struct occ_device *d, int64_t R, int64_t C, const void *d_x,
				   const void *d_delta, const void *d_bias,
				   const struct occ_drop *drop, const void *d_w, const void *d_b,
				   void *d_xo, void *d_y, float *d_mean, float *d_rstd);
void occ_ref_residual_norm_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
				    const void *d_dres, const void *d_x, const void *d_w,
				    const float *d_mean, const float *d_rstd,
				    const struct occ_drop *drop, void *d_dx, void *d_ddelta,
				    float *d_dw, float *d_db, float *d_dbias);
void occ_ref_attention_forward(struct occ_device *d, const struct occ_attention *a,
			       const void *d_qkv, void *d_out, float *d_lse);
void occ_ref_attention_backward(struct occ_device *d, const struct occ_attention *a,
				const void *d_qkv, const void *d_out, const float *d_lse,
				const void *d_dout, void *d_dqkv);
void occ_ref_xent_stats(struct occ_device *d, const struct occ_xent *x, const void *d_logits,
			const int32_t *d_targets, float *d_max, float *d_sum, float *d_hit);
void occ_ref_xent_rescale(struct occ_device *d, int64_t rows, const float *d_max,
			  const float *d_top, float *d_sum);
void occ_ref_xent_finish(struct occ_device *d, const struct occ_xent *x, const void *d_logits,
			 const int32_t *d_targets, const float *d_top, const float *d_sum,
			 const float *d_hit, float scale, float *d_loss, void *d_dlogits);
void occ_ref_draw(struct occ_device *d, int64_t n, uint64_t key, uint32_t id, float *d_x);
void occ_ref_scale(struct occ_device *d, int64_t n, float a, float *d_x);
void occ_ref_accumulate(struct occ_device *d, int64_t n, enum occ_type type, const void *d_x,
			enum occ_how how, float *d_y);
void occ_ref_fold(struct occ_device *d, int k, int64_t n, enum occ_type type, int max,
		  const void *d_x, void *d_y);
void occ_ref_orthonormalise(struct occ_device *d, int64_t n, int64_t r, float *d_a);
void occ_ref_select(struct occ_device *d, int64_t R, int64_t C, int64_t k, const float *d_x,
		    int width, void *d_at, float *d_value, float *d_least);
void occ_ref_above(struct occ_device *d, int64_t n, const float *d_x, const float *d_least,
		   int64_t cap, int32_t *d_at, float *d_value, int64_t *count);
void occ_ref_pick(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width,
		  const void *d_at, const float *d_x, float *d_value);
void occ_ref_place(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width,
		   const void *d_at, const float *d_value, enum occ_how how, float *d_y);
void occ_ref_quantise(struct occ_device *d, int64_t n, int bits, int64_t group, const float *d_x,
		      void *d_wire);
void occ_ref_dequantise(struct occ_device *d, int64_t n, int bits, int64_t group,
			const void *d_wire, enum occ_how how, float *d_y);
void occ_ref_half_pack(struct occ_device *d, int64_t n, const float *d_x, void *d_wire);
void occ_ref_half_unpack(struct occ_device *d, int64_t n, const void *d_wire, enum occ_how how,
			 float *d_y);
void occ_ref_bound_pack(struct occ_device *d, int64_t n, double eps, const float *d_x, void *d_wire,
			int64_t *bytes);
void occ_ref_bound_unpack(struct occ_device *d, int64_t n, double eps, const void *d_wire,
			  enum occ_how how, float *d_y);

#endif

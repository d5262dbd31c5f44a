/* Slots that are still to come. */
#include "base/cuda.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

void occ_cuda_rows(struct occ_device *d, int64_t R, int64_t C, enum occ_type from, const void *d_x, enum occ_type to, void *d_y, int64_t ld)
{
	occ_die(8, "occ_cuda_rows: not built yet");
}

void occ_cuda_cast(struct occ_device *d, int64_t n, enum occ_type from, const void *d_x, enum occ_type to, void *d_y)
{
	occ_die(8, "occ_cuda_cast: not built yet");
}

void occ_cuda_add(struct occ_device *d, int64_t n, const void *d_x, void *d_y)
{
	occ_die(8, "occ_cuda_add: not built yet");
}

void occ_cuda_gelu_forward(struct occ_device *d, int64_t n, const void *d_x, void *d_y)
{
	occ_die(8, "occ_cuda_gelu_forward: not built yet");
}

void occ_cuda_gelu_backward(struct occ_device *d, int64_t n, const void *d_x, const void *d_dy, void *d_dx)
{
	occ_die(8, "occ_cuda_gelu_backward: not built yet");
}

void occ_cuda_bias_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy, float *d_db)
{
	occ_die(8, "occ_cuda_bias_backward: not built yet");
}

void occ_cuda_residual_norm_forward(struct occ_device *d, int64_t R, int64_t C, const void *d_x, const void *d_delta, const void *d_bias, const struct occ_drop *drop, const void *d_w, const void *d_b, void *d_xo, void *d_y, float *d_mean, float *d_rstd)
{
	occ_die(8, "occ_cuda_residual_norm_forward: not built yet");
}

void occ_cuda_residual_norm_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy, const void *d_dres, const void *d_x, const void *d_w, const float *d_mean, const float *d_rstd, const struct occ_drop *drop, void *d_dx, void *d_ddelta, float *d_dw, float *d_db, float *d_dbias)
{
	occ_die(8, "occ_cuda_residual_norm_backward: not built yet");
}

void occ_cuda_embed_forward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V, const int32_t *d_tokens, const void *d_wte, void *d_out)
{
	occ_die(8, "occ_cuda_embed_forward: not built yet");
}

void occ_cuda_embed_backward(struct occ_device *d, int64_t R, int64_t C, int64_t v0, int64_t V, const int32_t *d_tokens, const void *d_dout, float *d_dwte)
{
	occ_die(8, "occ_cuda_embed_backward: not built yet");
}

void occ_cuda_position_forward(struct occ_device *d, int64_t R, int64_t C, int64_t T, const void *d_wpe, const struct occ_drop *drop, void *d_x)
{
	occ_die(8, "occ_cuda_position_forward: not built yet");
}

void occ_cuda_position_backward(struct occ_device *d, int64_t R, int64_t C, int64_t T, const struct occ_drop *drop, void *d_dx, float *d_dwpe)
{
	occ_die(8, "occ_cuda_position_backward: not built yet");
}

void occ_cuda_xent_max(struct occ_device *d, const struct occ_xent *x, const float *d_logits, float *d_max)
{
	occ_die(8, "occ_cuda_xent_max: not built yet");
}

void occ_cuda_xent_sum(struct occ_device *d, const struct occ_xent *x, const float *d_logits, const int32_t *d_targets, const float *d_max, float *d_sum, float *d_hit)
{
	occ_die(8, "occ_cuda_xent_sum: not built yet");
}

void occ_cuda_xent_finish(struct occ_device *d, const struct occ_xent *x, const float *d_logits, const int32_t *d_targets, const float *d_max, const float *d_sum, const float *d_hit, float scale, float *d_loss, void *d_dlogits)
{
	occ_die(8, "occ_cuda_xent_finish: not built yet");
}

void occ_cuda_sum_squares(struct occ_device *d, int64_t n, const float *d_x, double *sum)
{
	occ_die(8, "occ_cuda_sum_squares: not built yet");
}

void occ_cuda_draw(struct occ_device *d, int64_t n, uint64_t key, uint32_t id, float *d_x)
{
	occ_die(8, "occ_cuda_draw: not built yet");
}

void occ_cuda_scale(struct occ_device *d, int64_t n, float a, float *d_x)
{
	occ_die(8, "occ_cuda_scale: not built yet");
}

void occ_cuda_accumulate(struct occ_device *d, int64_t n, enum occ_type type, const void *d_x, enum occ_how how, float *d_y)
{
	occ_die(8, "occ_cuda_accumulate: not built yet");
}

void occ_cuda_orthonormalise(struct occ_device *d, int64_t n, int64_t r, float *d_a)
{
	occ_die(8, "occ_cuda_orthonormalise: not built yet");
}

void occ_cuda_select(struct occ_device *d, int64_t R, int64_t C, int64_t k, const float *d_x, int width, void *d_at, float *d_value, float *d_least)
{
	occ_die(8, "occ_cuda_select: not built yet");
}

void occ_cuda_above(struct occ_device *d, int64_t n, const float *d_x, const float *d_least, int64_t cap, int32_t *d_at, float *d_value, int64_t *count)
{
	occ_die(8, "occ_cuda_above: not built yet");
}

void occ_cuda_pick(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width, const void *d_at, const float *d_x, float *d_value)
{
	occ_die(8, "occ_cuda_pick: not built yet");
}

void occ_cuda_place(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width, const void *d_at, const float *d_value, enum occ_how how, float *d_y)
{
	occ_die(8, "occ_cuda_place: not built yet");
}

void occ_cuda_quantise(struct occ_device *d, int64_t n, int bits, int64_t group, const float *d_x, void *d_wire)
{
	occ_die(8, "occ_cuda_quantise: not built yet");
}

void occ_cuda_dequantise(struct occ_device *d, int64_t n, int bits, int64_t group, const void *d_wire, enum occ_how how, float *d_y)
{
	occ_die(8, "occ_cuda_dequantise: not built yet");
}

void occ_cuda_half_pack(struct occ_device *d, int64_t n, const float *d_x, void *d_wire)
{
	occ_die(8, "occ_cuda_half_pack: not built yet");
}

void occ_cuda_half_unpack(struct occ_device *d, int64_t n, const void *d_wire, enum occ_how how, float *d_y)
{
	occ_die(8, "occ_cuda_half_unpack: not built yet");
}

void occ_cuda_bound_pack(struct occ_device *d, int64_t n, double eps, const float *d_x, void *d_wire, int64_t *bytes)
{
	occ_die(8, "occ_cuda_bound_pack: not built yet");
}

void occ_cuda_bound_unpack(struct occ_device *d, int64_t n, double eps, const void *d_wire, enum occ_how how, float *d_y)
{
	occ_die(8, "occ_cuda_bound_unpack: not built yet");
}


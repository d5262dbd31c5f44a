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

void occ_cuda_attention_forward(struct occ_device *d, const struct occ_attention *a, const void *d_qkv, void *d_out, float *d_lse)
{
	occ_die(8, "occ_cuda_attention_forward: not built yet");
}

void occ_cuda_attention_backward(struct occ_device *d, const struct occ_attention *a, const void *d_qkv, const void *d_out, const float *d_lse, const void *d_dout, void *d_dqkv)
{
	occ_die(8, "occ_cuda_attention_backward: not built yet");
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

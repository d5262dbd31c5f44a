/* Slots that are still to come. */
#include "base/cuda.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

void occ_cuda_attention_forward(struct occ_device *d, const struct occ_attention *a, const void *d_qkv, void *d_out, float *d_lse)
{
	occ_die(8, "occ_cuda_attention_forward: not built yet");
}

void occ_cuda_attention_backward(struct occ_device *d, const struct occ_attention *a, const void *d_qkv, const void *d_out, const float *d_lse, const void *d_dout, void *d_dqkv)
{
	occ_die(8, "occ_cuda_attention_backward: not built yet");
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


/* The cpu device: the table, memory, elementwise slots; products go to the library in gemm.h.
 * The other slots stand in cpu_*.c. */
#include "base/cpu.h"
#include "base/ref.h"

#include <string.h>

#include "base/mem.h"
#include "base/vmath.h"

enum { CHUNK = 8192 }; /* elements of one piece of an elementwise loop */

float *occ_cpu_scratch(struct occ_device *d, size_t n)
{
	struct occ_cpu *cpu = d->impl;
	if (n > cpu->room) {
		occ_free(cpu->scratch);
		cpu->scratch = occ_alloc(n, sizeof(float));
		cpu->room = n;
	}
	return cpu->scratch;
}

static int cpu_open(struct occ_device *d, struct occ_err *e)
{
	(void)e;
	struct occ_cpu *cpu = occ_alloc(1, sizeof(*cpu));
	cpu->gemm = occ_gemm_open(d->type, d->threads);
	d->impl = cpu;
	return 0;
}

static void cpu_close(struct occ_device *d)
{
	struct occ_cpu *cpu = d->impl;
	occ_gemm_close(cpu->gemm);
	occ_free(cpu->scratch);
	occ_free(cpu);
}

static void *cpu_alloc(struct occ_device *d, size_t bytes)
{
	(void)d;
	return occ_alloc(bytes, 1);
}

static void cpu_free(struct occ_device *d, void *d_x)
{
	(void)d;
	occ_free(d_x);
}

/* Pieces of a copy; one thread cannot draw on the whole bandwidth of the memory. */
static void cpu_put(struct occ_device *d, void *d_dst, const void *src, size_t bytes)
{
	int64_t n = (int64_t)bytes, step = 1 << 18;
	int nt = cpu_team(d, n / 16);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t i = 0; i < n; i += step)
		memcpy((char *)d_dst + i, (const char *)src + i,
		       (size_t)(n - i < step ? n - i : step));
}

static void cpu_zero(struct occ_device *d, void *d_dst, size_t bytes)
{
	int64_t n = (int64_t)bytes, step = 1 << 18;
	int nt = cpu_team(d, n / 16);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t i = 0; i < n; i += step)
		memset((char *)d_dst + i, 0, (size_t)(n - i < step ? n - i : step));
}

static void cpu_sync(struct occ_device *d)
{
	(void)d;
}

INLINE void convert(enum occ_type from, enum occ_type to, int64_t i, int64_t end, const void *x,
		    void *y)
{
	for (; i < end; i += VW)
		vput(to, y, i, end - i, vget(from, x, i, end - i));
}

INLINE void convert_to(enum occ_type to, enum occ_type from, int64_t i, int64_t end, const void *x,
		       void *y)
{
	if (from == OCC_F32)
		convert(OCC_F32, to, i, end, x, y);
	else
		convert(OCC_BF16, to, i, end, x, y);
}

static void cpu_cast(struct occ_device *d, int64_t n, enum occ_type from, const void *d_x,
		     enum occ_type to, void *d_y)
{
	int nt = cpu_team(d, n);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t i = 0; i < n; i += CHUNK)
		BY_TYPE(to, convert_to, from, i, i + CHUNK < n ? i + CHUNK : n, d_x, d_y);
}

INLINE void add(enum occ_type t, int64_t i, int64_t end, const void *x, void *y)
{
	for (; i < end; i += VW)
		vput(t, y, i, end - i, vget(t, y, i, end - i) + vget(t, x, i, end - i));
}

static void cpu_add(struct occ_device *d, int64_t n, const void *d_x, void *d_y)
{
	int nt = cpu_team(d, n);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t i = 0; i < n; i += CHUNK)
		BY_TYPE(d->type, add, i, i + CHUNK < n ? i + CHUNK : n, d_x, d_y);
}

/* gelu(x) = x/2 (1 + tanh u) = x / (1 + e^-2u) with u = sqrt(2/pi) (x + 0.044715 x^3) */
INLINE vf exp_2u(vf x)
{
	return vexp(x * (x * x * -0.0713548162726f - 1.59576912160573f));
}

INLINE void gelu(enum occ_type t, int64_t i, int64_t end, const void *x, void *y)
{
	for (; i < end; i += VW) {
		vf v = vget(t, x, i, end - i);
		vput(t, y, i, end - i, v / (1.0f + exp_2u(v)));
	}
}

static void cpu_gelu_forward(struct occ_device *d, int64_t n, const void *d_x, void *d_y)
{
	int nt = cpu_team(d, n);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t i = 0; i < n; i += CHUNK)
		BY_TYPE(d->type, gelu, i, i + CHUNK < n ? i + CHUNK : n, d_x, d_y);
}

/* With s = 1 / (1 + e^-2u): gelu' = s + x s (1 - s) 2u' */
INLINE void gelu_slope(enum occ_type t, int64_t i, int64_t end, const void *x, const void *dy,
		       void *dx)
{
	for (; i < end; i += VW) {
		vf v = vget(t, x, i, end - i), e = vmin(vset(1e30f), exp_2u(v));
		vf s = 1.0f / (1.0f + e), slope = v * v * 0.2140644488178f + 1.59576912160573f;
		vf g = s + v * s * (e * s) * slope;
		vput(t, dx, i, end - i, vget(t, dy, i, end - i) * g);
	}
}

static void cpu_gelu_backward(struct occ_device *d, int64_t n, const void *d_x, const void *d_dy,
			      void *d_dx)
{
	int nt = cpu_team(d, n);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t i = 0; i < n; i += CHUNK)
		BY_TYPE(d->type, gelu_slope, i, i + CHUNK < n ? i + CHUNK : n, d_x, d_dy, d_dx);
}

static void cpu_gemm(struct occ_device *d, const struct occ_gemm *g, const void *d_a,
		     const void *d_b, const void *d_bias, void *d_c)
{
	struct occ_cpu *cpu = d->impl;
	occ_gemm_run(cpu->gemm, g, d_a, d_b, d_bias, d_c);
}

const struct occ_device_ops occ_device_cpu = {
	.name = "cpu",
	.host_visible = 1,
	.open = cpu_open,
	.close = cpu_close,
	.alloc = cpu_alloc,
	.free = cpu_free,
	.put = cpu_put,
	.get = cpu_put,
	.copy = cpu_put,
	.zero = cpu_zero,
	.sync = cpu_sync,
	OCC_HOST_SLOTS,
	.cast = cpu_cast,
	.add = cpu_add,
	.gelu_forward = cpu_gelu_forward,
	.gelu_backward = cpu_gelu_backward,
	.gemm = cpu_gemm,
	.gemm_gelu = occ_gemm_gelu,
	.gemm_gelu_backward = occ_gemm_gelu_backward,
	.bias_backward = occ_cpu_bias_backward,
	.residual_norm_forward = occ_cpu_residual_norm_forward,
	.residual_norm_backward = occ_cpu_residual_norm_backward,
	.attention_forward = occ_cpu_attention_forward,
	.attention_backward = occ_cpu_attention_backward,
	.embed_forward = occ_cpu_embed_forward,
	.embed_backward = occ_cpu_embed_backward,
	.position_forward = occ_cpu_position_forward,
	.position_backward = occ_cpu_position_backward,
	.xent_stats = occ_cpu_xent_stats,
	.xent_rescale = occ_cpu_xent_rescale,
	.xent_finish = occ_cpu_xent_finish,
	.adamw = occ_cpu_adamw,
	.sum_squares = occ_cpu_sum_squares,
	.piece_squares = occ_cpu_piece_squares,
	.draw = occ_ref_draw,
	.scale = occ_cpu_scale,
	.accumulate = occ_cpu_accumulate,
	.fold = occ_cpu_fold,
	.orthonormalise = occ_cpu_orthonormalise,
	.select = occ_cpu_select,
	.above = occ_cpu_above,
	.pick = occ_cpu_pick,
	.place = occ_cpu_place,
	.quantise = occ_cpu_quantise,
	.dequantise = occ_cpu_dequantise,
	.half_pack = occ_cpu_half_pack,
	.half_unpack = occ_cpu_half_unpack,
	.bound_pack = occ_cpu_bound_pack,
	.bound_unpack = occ_cpu_bound_unpack,
};

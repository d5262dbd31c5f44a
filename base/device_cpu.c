/* The cpu device: memory, elementwise slots and the table. Norms, attention, embedding,
 * cross-entropy and optimizer stand in cpu_*.c, products in gemm_*.c. */
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/vmath.h"

enum { CHUNK = 2048 }; /* elements that a thread handles at once: buffers stay in the first cache */

static int cpu_open(struct occ_device *d, struct occ_err *e)
{
	struct occ_cpu *c = occ_alloc(1, sizeof(*c));
	(void)e;
	omp_set_num_threads(d->threads); /* of this thread's teams: a rank may be a thread itself */
	c->gemm = occ_gemm_open(d->type, d->threads);
	d->impl = c;
	occ_cpu_reserve(d, 3 * CHUNK * sizeof(float), 0);
	return 0;
}

static void cpu_close(struct occ_device *d)
{
	struct occ_cpu *c = d->impl;
	occ_gemm_close(c->gemm);
	occ_free(c->scratch);
	occ_free(c);
}

void occ_cpu_reserve(struct occ_device *d, size_t per_thread, size_t shared)
{
	struct occ_cpu *c = d->impl;
	per_thread = (per_thread + 4095) & ~(size_t)4095;
	if (per_thread <= c->per_thread && shared <= c->shared)
		return;
	c->per_thread = per_thread > c->per_thread ? per_thread : c->per_thread;
	c->shared = shared > c->shared ? shared : c->shared;
	occ_free(c->scratch);
	c->scratch = occ_alloc((size_t)d->threads * c->per_thread + c->shared, 1);
}

void *occ_cpu_mine(struct occ_device *d)
{
	struct occ_cpu *c = d->impl;
	int me = d->threads > 1 ? omp_get_thread_num() : 0;
	return c->scratch + (size_t)me * c->per_thread;
}

void *occ_cpu_shared(struct occ_device *d)
{
	struct occ_cpu *c = d->impl;
	return c->scratch + (size_t)d->threads * c->per_thread;
}

void occ_cpu_mask(const struct occ_drop *drop, int64_t r, int64_t n, float *row)
{
	int64_t c = 0;
	for (; c < n && ((drop->col0 + c) & 3); c++)
		row[c] *= occ_drop_at(drop, r, c);
	for (; c + 4 <= n; c += 4) {
		float f[4];
		occ_drop_quad(drop, drop->row0 + r, (drop->col0 + c) >> 2, f);
		for (int i = 0; i < 4; i++)
			row[c + i] *= f[i];
	}
	for (; c < n; c++)
		row[c] *= occ_drop_at(drop, r, c);
}

void occ_cpu_fold(struct occ_device *d, int64_t nblocks, int64_t n, const float *partial,
		  int64_t stride, float *out)
{
	enum { COLUMNS = 256 };
	OCC_CPU_FOR(d, k, (n + COLUMNS - 1) / COLUMNS)
	{
		int64_t from = k * COLUMNS, to = from + COLUMNS < n ? from + COLUMNS : n;
		for (int64_t b = 0; b < nblocks; b++) {
			const float *p = partial + b * stride;
#pragma omp simd
			for (int64_t c = from; c < to; c++)
				out[c] += p[c];
		}
	}
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

static void cpu_copy(struct occ_device *d, void *d_dst, const void *d_src, size_t bytes)
{
	enum { PIECE = 1 << 20 };
	OCC_CPU_FOR(d, k, (int64_t)((bytes + PIECE - 1) / PIECE))
	{
		size_t at = (size_t)k * PIECE, n = bytes - at < PIECE ? bytes - at : PIECE;
		memcpy((char *)d_dst + at, (const char *)d_src + at, n);
	}
}

static void cpu_zero(struct occ_device *d, void *d_dst, size_t bytes)
{
	enum { PIECE = 1 << 20 };
	OCC_CPU_FOR(d, k, (int64_t)((bytes + PIECE - 1) / PIECE))
	{
		size_t at = (size_t)k * PIECE, n = bytes - at < PIECE ? bytes - at : PIECE;
		memset((char *)d_dst + at, 0, n);
	}
}

static void cpu_sync(struct occ_device *d)
{
	(void)d; /* every call has finished when it returns */
}

#define CHUNKS(n) (((n) + CHUNK - 1) / CHUNK)
#define CHUNK_LENGTH(n, at) ((n) - (at) < CHUNK ? (n) - (at) : CHUNK)

static void cpu_cast(struct occ_device *d, int64_t n, enum occ_type from, const void *d_x,
		     enum occ_type to, void *d_y)
{
	if (from == to) {
		cpu_copy(d, d_y, d_x, (size_t)n * occ_type_size(to));
		return;
	}
	OCC_CPU_FOR(d, k, CHUNKS(n))
	{
		int64_t at = k * CHUNK, m = CHUNK_LENGTH(n, at);
		if (from == OCC_F32)
			cpu_store(m, (const float *)d_x + at, (uint16_t *)d_y + at);
		else
			cpu_load(m, (const uint16_t *)d_x + at, (float *)d_y + at);
	}
}

static void cpu_add(struct occ_device *d, int64_t n, const void *d_x, void *d_y)
{
	OCC_CPU_FOR(d, k, CHUNKS(n))
	{
		int64_t at = k * CHUNK, m = CHUNK_LENGTH(n, at);
		float *buf = occ_cpu_mine(d);
		const float *x = cpu_in(d, d_x, at, m, buf),
			    *y = cpu_in(d, d_y, at, m, buf + CHUNK);
		float *out = cpu_out(d, d_y, at, buf + 2 * CHUNK);
#pragma omp simd
		for (int64_t i = 0; i < m; i++)
			out[i] = y[i] + x[i];
		cpu_done(d, d_y, at, m, out);
	}
}

/* gelu(x) = x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form without tanh. */
static inline float gelu_sigmoid(float x)
{
	float u = 0.7978845608f * (x + 0.044715f * x * x * x);
	return 1.0f / (1.0f + occ_exp(-2.0f * u));
}

static void cpu_gelu_forward(struct occ_device *d, int64_t n, const void *d_x, void *d_y)
{
	OCC_CPU_FOR(d, k, CHUNKS(n))
	{
		int64_t at = k * CHUNK, m = CHUNK_LENGTH(n, at);
		float *buf = occ_cpu_mine(d);
		const float *x = cpu_in(d, d_x, at, m, buf);
		float *y = cpu_out(d, d_y, at, buf + CHUNK);
#pragma omp simd
		for (int64_t i = 0; i < m; i++)
			y[i] = x[i] * gelu_sigmoid(x[i]);
		cpu_done(d, d_y, at, m, y);
	}
}

static void cpu_gelu_backward(struct occ_device *d, int64_t n, const void *d_x, const void *d_dy,
			      void *d_dx)
{
	OCC_CPU_FOR(d, k, CHUNKS(n))
	{
		int64_t at = k * CHUNK, m = CHUNK_LENGTH(n, at);
		float *buf = occ_cpu_mine(d);
		const float *x = cpu_in(d, d_x, at, m, buf),
			    *dy = cpu_in(d, d_dy, at, m, buf + CHUNK);
		float *dx = cpu_out(d, d_dx, at, buf + 2 * CHUNK);
#pragma omp simd
		for (int64_t i = 0; i < m; i++) {
			float s = gelu_sigmoid(x[i]);
			float slope =
				1.5957691216f * (1.0f + 0.134145f * x[i] * x[i]); /* d(2u)/dx */
			dx[i] = dy[i] * (s + x[i] * s * (1.0f - s) * slope);
		}
		cpu_done(d, d_dx, at, m, dx);
	}
}

static void cpu_gemm(struct occ_device *d, const struct occ_gemm *g, const void *d_a,
		     const void *d_b, const void *d_bias, void *d_c)
{
	struct occ_cpu *c = d->impl;
	occ_gemm_run(c->gemm, g, d_a, d_b, d_bias, d_c);
}

const struct occ_device_ops occ_device_cpu = {
	.name = "cpu",
	.host_visible = 1,
	.open = cpu_open,
	.close = cpu_close,
	.alloc = cpu_alloc,
	.free = cpu_free,
	.put = cpu_copy,
	.get = cpu_copy,
	.copy = cpu_copy,
	.zero = cpu_zero,
	.sync = cpu_sync,
	.cast = cpu_cast,
	.add = cpu_add,
	.gelu_forward = cpu_gelu_forward,
	.gelu_backward = cpu_gelu_backward,
	.gemm = cpu_gemm,
	.bias_backward = occ_cpu_bias_backward,
	.residual_norm_forward = occ_cpu_residual_norm_forward,
	.residual_norm_backward = occ_cpu_residual_norm_backward,
	.attention_forward = occ_cpu_attention_forward,
	.attention_backward = occ_cpu_attention_backward,
	.embed_forward = occ_cpu_embed_forward,
	.embed_backward = occ_cpu_embed_backward,
	.position_forward = occ_cpu_position_forward,
	.position_backward = occ_cpu_position_backward,
	.xent_max = occ_cpu_xent_max,
	.xent_sum = occ_cpu_xent_sum,
	.xent_finish = occ_cpu_xent_finish,
	.adamw = occ_cpu_adamw,
	.sum_squares = occ_cpu_sum_squares,
};

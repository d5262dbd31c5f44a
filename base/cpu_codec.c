/* Cpu: dense wires of the codecs (fp16, quantised, bounded error). Every byte is what ref writes:
 * the same fp32 operations in the same order. Decoded values pass through a small buffer before
 * they meet y, so that no product is fused with that sum. */
#include "base/cpu.h"

#include "base/vmath.h"

enum { PIECE = 4096 }; /* values in one piece of work; a multiple of 8 and of OCC_BOUND_BLOCK */

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

INLINE void put(enum occ_how how, int64_t n, const float *v, float *y)
{
	for (int64_t i = 0; i < n; i++)
		y[i] = how == OCC_SET ? v[i] : how == OCC_ADD ? y[i] + v[i] : y[i] - v[i];
}

void occ_cpu_put(enum occ_how how, int64_t n, const float *v, float *y)
{
	if (how == OCC_SET)
		memcpy(y, v, (size_t)n * sizeof(*y));
	else if (how == OCC_ADD)
		put(OCC_ADD, n, v, y);
	else
		put(OCC_SUB, n, v, y);
}

void occ_cpu_scale(struct occ_device *d, int64_t n, float a, float *d_x)
{
	int nt = cpu_team(d, n);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t i = 0; i < n; i++)
		d_x[i] *= a;
}

void occ_cpu_accumulate(struct occ_device *d, int64_t n, enum occ_type type, const void *d_x,
			enum occ_how how, float *d_y)
{
	int nt = cpu_team(d, n);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t at = 0; at < n; at += PIECE) {
		int64_t m = least(PIECE, n - at);
		float v[PIECE];
		if (type == OCC_F32) {
			occ_cpu_put(how, m, (const float *)d_x + at, d_y + at);
			continue;
		}
		for (int64_t i = 0; i < m; i += VW)
			vput(OCC_F32, v, i, m - i, vget(OCC_BF16, d_x, at + i, m - i));
		occ_cpu_put(how, m, v, d_y + at);
	}
}

INLINE void fold_in(enum occ_type type, int max, int64_t n, const void *x, int64_t at, float *y)
{
	for (int64_t i = 0; i < n; i += VW) {
		vf v = vget(type, x, at + i, n - i), w = vget(OCC_F32, y, i, n - i);
		vput(OCC_F32, y, i, n - i, max ? vselect((v > w) | vnan(v), v, w) : w + v);
	}
}

void occ_cpu_fold(struct occ_device *d, int k, int64_t n, enum occ_type type, int max,
		  const void *d_x, void *d_y)
{
	int nt = cpu_team(d, k * n);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t at = 0; at < n; at += PIECE) {
		int64_t m = least(PIECE, n - at);
		float y[PIECE];
		for (int64_t i = 0; i < m; i += VW)
			vput(OCC_F32, y, i, m - i, vget(type, d_x, at + i, m - i));
		for (int r = 1; r < k; r++)
			fold_in(type, max, m, d_x, r * n + at, y);
		for (int64_t i = 0; i < m; i += VW)
			vput(type, d_y, at + i, m - i, vget(OCC_F32, y, i, m - i));
	}
}

/* ---- The largest magnitude, as bits. ---- */

static uint32_t top(int64_t n, const float *x)
{
	uint32_t most = 0, u;
	for (int64_t i = 0; i < n; i++) {
		memcpy(&u, &x[i], sizeof(u));
		u &= 0x7fffffffu;
		most = u > most ? u : most;
	}
	return most;
}

static float from_bits(uint32_t u)
{
	float v;
	memcpy(&v, &u, sizeof(v));
	return v;
}

/* The same by a team. */
static float largest(struct occ_device *d, int64_t n, const float *x)
{
	uint32_t most = 0;
	int nt = cpu_team(d, n);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static) reduction(max : most)
	for (int64_t at = 0; at < n; at += PIECE) {
		uint32_t u = top(least(PIECE, n - at), x + at);
		most = u > most ? u : most;
	}
	return from_bits(most);
}

/* ---- Quantised. ---- */

static float scale_of(float most)
{
	return isfinite(most) ? most : NAN;
}

/* A team for each group, or groups for each thread. */
static void scales(struct occ_device *d, int64_t n, int64_t group, const float *x, float *scale)
{
	int64_t groups = (n + group - 1) / group;
	int nt = cpu_team(d, n);
	if (group > 64 * PIECE) {
		for (int64_t at = 0; at < n; at += group)
			*scale++ = scale_of(largest(d, least(group, n - at), x + at));
		return;
	}
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t g = 0; g < groups; g++)
		scale[g] = scale_of(from_bits(top(least(group, n - g * group), x + g * group)));
}

static void codes_of(int64_t n, float scale, float L, const float *x, int8_t *q)
{
	if (!(scale > 0)) {
		memset(q, 0, (size_t)n);
		return;
	}
	for (int64_t i = 0; i < n; i++)
		q[i] = (int8_t)(int)nearbyintf(x[i] / scale * L);
}

/* q has room for a whole last byte, zeros behind n. */
static void pack(int64_t n, int bits, const int8_t *q, uint8_t *code)
{
	if (bits == 8)
		memcpy(code, q, (size_t)n);
	else if (bits == 4)
		for (int64_t i = 0; i < (n + 1) / 2; i++)
			code[i] = (uint8_t)((q[2 * i] & 15) | (q[2 * i + 1] & 15) << 4);
	else
		for (int64_t i = 0; i < (n + 3) / 4; i++)
			code[i] = (uint8_t)((q[4 * i] & 3) | (q[4 * i + 1] & 3) << 2 |
					    (q[4 * i + 2] & 3) << 4 | (q[4 * i + 3] & 3) << 6);
}

void occ_cpu_quantise(struct occ_device *d, int64_t n, int bits, int64_t group, const float *d_x,
		      void *d_wire)
{
	float *scale = d_wire, L = (float)((1 << (bits - 1)) - 1);
	uint8_t *code = (uint8_t *)(scale + (n + group - 1) / group);
	int nt = cpu_team(d, n);
	scales(d, n, group, d_x, scale);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t at = 0; at < n; at += PIECE) {
		int64_t end = least(at + PIECE, n);
		int8_t q[PIECE + 4];
		for (int64_t i = at, to; i < end; i = to) {
			to = least((i / group + 1) * group, end);
			codes_of(to - i, scale[i / group], L, d_x + i, q + (i - at));
		}
		memset(q + (end - at), 0, 4);
		pack(end - at, bits, q, code + at * bits / 8);
	}
}

/* Writes whole bytes: up to 3 values behind n. */
static void unpack(int64_t n, int bits, const uint8_t *code, int8_t *q)
{
	if (bits == 8)
		memcpy(q, code, (size_t)n);
	else if (bits == 4)
		for (int64_t i = 0; i < (n + 1) / 2; i++) {
			q[2 * i] = (int8_t)(((code[i] & 15) ^ 8) - 8);
			q[2 * i + 1] = (int8_t)(((code[i] >> 4) ^ 8) - 8);
		}
	else
		for (int64_t i = 0; i < (n + 3) / 4; i++)
			for (int k = 0; k < 4; k++)
				q[4 * i + k] = (int8_t)(((code[i] >> 2 * k & 3) ^ 2) - 2);
}

void occ_cpu_dequantise(struct occ_device *d, int64_t n, int bits, int64_t group,
			const void *d_wire, enum occ_how how, float *d_y)
{
	const float *scale = d_wire;
	const uint8_t *code = (const uint8_t *)(scale + (n + group - 1) / group);
	float L = (float)((1 << (bits - 1)) - 1);
	int nt = cpu_team(d, n);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t at = 0; at < n; at += PIECE) {
		int64_t end = least(at + PIECE, n);
		int8_t q[PIECE + 4];
		float v[PIECE];
		unpack(end - at, bits, code + at * bits / 8, q);
		for (int64_t i = at, to; i < end; i = to) {
			float s = scale[i / group];
			to = least((i / group + 1) * group, end);
			for (int64_t k = i - at; k < to - at; k++)
				v[k] = s * ((float)q[k] / L);
		}
		occ_cpu_put(how, end - at, v, d_y + at);
	}
}

/* ---- fp16 with one scale: occ_f32_to_f16 and back, lane by lane. ---- */

INLINE vu either(vi mask, vu a, vu b)
{
	return (vu)vselect(mask, (vf)a, (vf)b);
}

INLINE vh to_half(vf x)
{
	vu u = (vu)x, m = u & 0x7fffffffu;
	vu small = (vu)((vf)m + 0.5f) - 0x3f000000u; /* the sum's last bit is worth 2^-24 */
	vu h = (m + 0xfffu + (m >> 13 & 1u) - 0x38000000u) >> 13;
	h = either((vi)m < 0x38800000, small, h);
	h = either((vi)m >= 0x477ff000, 0x7c00u - (vu){0}, h);
	h = either((vi)m > 0x7f800000, 0x7e00u - (vu){0}, h);
	return vnarrow(h | (u >> 16 & 0x8000u));
}

INLINE vf from_half(vh half)
{
	vu h = vwiden(half), m = h & 0x3ffu, e = h >> 10 & 0x1fu;
	vu small = (vu)(__builtin_convertvector((vi)m, vf) * 0x1p-24f);
	vu u = (e + 112u) << 23 | m << 13;
	u = either((vi)e == 0x1f, 0x7f800000u | m << 13, u);
	u = either((vi)e == 0, small, u);
	return (vf)(u | (h & 0x8000u) << 16);
}

static void halves(int64_t n, float scale, const float *x, uint16_t *half)
{
	int64_t i = 0;
	for (; i + VW <= n; i += VW) {
		vh h = to_half(vload(OCC_F32, x, i) * scale);
		memcpy(half + i, &h, sizeof(h));
	}
	for (; i < n; i++)
		half[i] = occ_f32_to_f16(x[i] * scale);
}

void occ_cpu_half_pack(struct occ_device *d, int64_t n, const float *d_x, void *d_wire)
{
	float *scale = d_wire, most = largest(d, n, d_x), by = 1;
	uint16_t *half = (void *)(scale + 1);
	int e = 0, nt = cpu_team(d, n);
	if (isfinite(most) && most > 0) {
		frexpf(most, &e); /* most in 2^(e-1) .. 2^e */
		by = ldexpf(1, 15 - e < 126 ? 15 - e : 126);
	}
	*scale = by;
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t at = 0; at < n; at += PIECE)
		halves(least(PIECE, n - at), by, d_x + at, half + at);
}

void occ_cpu_half_unpack(struct occ_device *d, int64_t n, const void *d_wire, enum occ_how how,
			 float *d_y)
{
	const float *scale = d_wire, by = *scale;
	const uint16_t *half = (const void *)(scale + 1);
	int nt = cpu_team(d, n);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t at = 0; at < n; at += PIECE) {
		int64_t m = least(PIECE, n - at), i = 0;
		float v[PIECE];
		for (vh h; i + VW <= m; i += VW) {
			memcpy(&h, half + at + i, sizeof(h));
			vstore(OCC_F32, v, i, from_half(h) / by);
		}
		for (; i < m; i++)
			v[i] = occ_f16_to_f32(half[at + i]) / by;
		occ_cpu_put(how, m, v, d_y + at);
	}
}

/* What codecs need, on the ref device: plain loops, and the meaning of every wire's bytes. */
#include "base/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* v is volatile so that no product is fused with the sum: then every device has the same bits. */
static void put(enum occ_how how, volatile float v, float *y)
{
	*y = how == OCC_SET ? v : how == OCC_ADD ? *y + v : *y - v;
}

static uint32_t magnitude(float x)
{
	uint32_t u;
	memcpy(&u, &x, sizeof(u));
	return u & 0x7fffffffu;
}

void occ_ref_draw(struct occ_device *d, int64_t n, uint64_t key, uint32_t id, float *d_x)
{
	(void)d;
	for (int64_t i = 0; i < n; i++)
		d_x[i] = occ_rng_normal(key, id, (uint64_t)i);
}

void occ_ref_scale(struct occ_device *d, int64_t n, float a, float *d_x)
{
	(void)d;
	for (int64_t i = 0; i < n; i++)
		d_x[i] *= a;
}

void occ_ref_accumulate(struct occ_device *d, int64_t n, enum occ_type type, const void *d_x,
			enum occ_how how, float *d_y)
{
	(void)d;
	for (int64_t i = 0; i < n; i++)
		put(how, (float)ref_get(type, d_x, i), &d_y[i]);
}

void occ_ref_fold(struct occ_device *d, int k, int64_t n, enum occ_type type, int max,
		  const void *d_x, void *d_y)
{
	(void)d;
	for (int64_t i = 0; i < n; i++) {
		float y = (float)ref_get(type, d_x, i);
		for (int r = 1; r < k; r++) {
			float v = (float)ref_get(type, d_x, r * n + i);
			y = !max ? y + v : v > y || v != v ? v : y;
		}
		ref_set(type, d_y, i, (double)y);
	}
}

/* ---- Gram-Schmidt in double, each column again until nothing is left to take away. ---- */

static double dot(int64_t n, const double *a, const double *b)
{
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

/* Takes columns 0 .. j-1 out of column j; returns the length that is left. */
static double project(int64_t n, int64_t j, double *q)
{
	double *a = q + j * n;
	for (int64_t k = 0; k < j; k++) {
		double c = dot(n, q + k * n, a);
		for (int64_t i = 0; i < n; i++)
			a[i] -= c * q[k * n + i];
	}
	return sqrt(dot(n, a, a));
}

static void divide(int64_t n, double length, double *a)
{
	for (int64_t i = 0; i < n; i++)
		a[i] /= length;
}

/* Column j of the transpose q (r,n). */
static void make_column(int64_t n, int64_t j, double *q)
{
	double *a = q + j * n, length = sqrt(dot(n, a, a)), left = 0;
	uint64_t key = occ_rng_key((uint64_t)n, OCC_RNG_CODEC);
	if (length > 0) {
		divide(n, length, a);
		left = project(n, j, q);
	}
	for (uint32_t draw = 0; !(left > 1e-6) && draw < 8; draw++) {
		for (int64_t i = 0; i < n; i++)
			a[i] = (double)occ_rng_normal(key, (uint32_t)j + (draw << 24), (uint64_t)i);
		divide(n, sqrt(dot(n, a, a)), a);
		left = project(n, j, q);
	}
	divide(n, left, a);
	divide(n, project(n, j, q), a); /* twice is enough */
}

void occ_ref_orthonormalise(struct occ_device *d, int64_t n, int64_t r, float *d_a)
{
	double *q = occ_alloc((size_t)(n * r), sizeof(*q));
	(void)d;
	occ_check(r <= n, "%lld columns of %lld rows", (long long)r, (long long)n);
	for (int64_t i = 0; i < n * r; i++)
		q[i % r * n + i / r] = (double)d_a[i];
	for (int64_t j = 0; j < r; j++)
		make_column(n, j, q);
	for (int64_t i = 0; i < n * r; i++)
		d_a[i] = (float)q[i % r * n + i / r];
	occ_free(q);
}

/* ---- Sparse. ---- */

static int64_t index_get(int width, const void *d_at, int64_t i)
{
	return width == 2 ? ((const uint16_t *)d_at)[i] : ((const int32_t *)d_at)[i];
}

static void index_set(int width, void *d_at, int64_t i, int64_t v)
{
	if (width == 2)
		((uint16_t *)d_at)[i] = (uint16_t)v;
	else
		((int32_t *)d_at)[i] = (int32_t)v;
}

static int ascending(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

void occ_ref_select(struct occ_device *d, int64_t R, int64_t C, int64_t k, const float *d_x,
		    int width, void *d_at, float *d_value, float *d_least)
{
	uint64_t *key =
		occ_alloc((size_t)C, sizeof(*key)); /* large magnitudes and low columns first */
	(void)d;
	for (int64_t r = 0; r < R; r++) {
		const float *x = d_x + r * C;
		for (int64_t c = 0; c < C; c++)
			key[c] = (uint64_t)(0x7fffffffu - magnitude(x[c])) << 32 | (uint64_t)c;
		qsort(key, (size_t)C, sizeof(*key), ascending);
		if (d_least && k)
			d_least[r] = fabsf(x[(uint32_t)key[k - 1]]);
		for (int64_t i = 0; i < k; i++)
			key[i] = (uint32_t)key[i];
		qsort(key, (size_t)k, sizeof(*key), ascending);
		for (int64_t i = 0; i < k; i++) {
			index_set(width, d_at, r * k + i, (int64_t)key[i]);
			d_value[r * k + i] = x[key[i]];
		}
	}
	occ_free(key);
}

void occ_ref_above(struct occ_device *d, int64_t n, const float *d_x, const float *d_least,
		   int64_t cap, int32_t *d_at, float *d_value, int64_t *count)
{
	int64_t found = 0;
	(void)d;
	for (int64_t i = 0; i < n; i++) {
		if (magnitude(d_x[i]) < magnitude(*d_least))
			continue;
		if (found < cap) {
			d_at[found] = (int32_t)i;
			d_value[found] = d_x[i];
		}
		found++;
	}
	*count = found;
}

void occ_ref_pick(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width,
		  const void *d_at, const float *d_x, float *d_value)
{
	(void)d;
	for (int64_t i = 0; i < R * k; i++)
		d_value[i] = d_x[i / k * C + index_get(width, d_at, i)];
}

void occ_ref_place(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width,
		   const void *d_at, const float *d_value, enum occ_how how, float *d_y)
{
	(void)d;
	if (how == OCC_SET && R > 0 && C > 0)
		memset(d_y, 0, (size_t)(R * C) * sizeof(*d_y));
	for (int64_t i = 0; i < R * k; i++)
		put(how, d_value[i], &d_y[i / k * C + index_get(width, d_at, i)]);
}

/* ---- Quantised, groups of `group` values. ---- */

static float largest(int64_t n, const float *x)
{
	uint32_t most = 0;
	float v;
	for (int64_t i = 0; i < n; i++)
		most = magnitude(x[i]) > most ? magnitude(x[i]) : most;
	memcpy(&v, &most, sizeof(v));
	return v;
}

void occ_ref_quantise(struct occ_device *d, int64_t n, int bits, int64_t group, const float *d_x,
		      void *d_wire)
{
	int64_t groups = (n + group - 1) / group;
	float *scale = d_wire, L = (float)((1 << (bits - 1)) - 1);
	uint8_t *code = (uint8_t *)(scale + groups);
	(void)d;
	memset(code, 0, (size_t)((n * bits + 7) / 8));
	for (int64_t g = 0; g < groups; g++) {
		int64_t at = g * group, end = at + group < n ? at + group : n;
		scale[g] = largest(end - at, d_x + at);
		if (!isfinite(scale[g]))
			scale[g] = NAN;
		for (int64_t i = at; i < end && scale[g] > 0; i++) {
			int q = (int)nearbyintf(d_x[i] / scale[g] * L);
			unsigned field = (unsigned)q & ((1u << bits) - 1);
			code[i * bits / 8] |= (uint8_t)(field << (i * bits % 8));
		}
	}
}

void occ_ref_dequantise(struct occ_device *d, int64_t n, int bits, int64_t group,
			const void *d_wire, enum occ_how how, float *d_y)
{
	int64_t groups = (n + group - 1) / group;
	const float *scale = d_wire;
	float L = (float)((1 << (bits - 1)) - 1);
	const uint8_t *code = (const uint8_t *)(scale + groups);
	(void)d;
	for (int64_t i = 0; i < n; i++) {
		int q = code[i * bits / 8] >> (i * bits % 8) & ((1 << bits) - 1);
		q -= q >> (bits - 1) << bits; /* the sign bit */
		put(how, scale[i / group] * ((float)q / L), &d_y[i]);
	}
}

/* ---- Half precision with one scale. ---- */

void occ_ref_half_pack(struct occ_device *d, int64_t n, const float *d_x, void *d_wire)
{
	float *scale = d_wire, most = largest(n, d_x);
	uint16_t *half = (void *)(scale + 1);
	int e = 0;
	(void)d;
	*scale = 1;
	if (isfinite(most) && most > 0) {
		frexpf(most, &e); /* most in 2^(e-1) .. 2^e */
		*scale = ldexpf(1, 15 - e < 126 ? 15 - e : 126);
	}
	for (int64_t i = 0; i < n; i++)
		half[i] = occ_f32_to_f16(d_x[i] * *scale);
}

void occ_ref_half_unpack(struct occ_device *d, int64_t n, const void *d_wire, enum occ_how how,
			 float *d_y)
{
	const float *scale = d_wire;
	const uint16_t *half = (const void *)(scale + 1);
	(void)d;
	for (int64_t i = 0; i < n; i++)
		put(how, occ_f16_to_f32(half[i]) / *scale, &d_y[i]);
}

/* ---- Bounded error: blocks of codes with as many bits as the largest needs. ---- */

static uint32_t zigzag(int32_t q)
{
	return (uint32_t)q << 1 ^ (0u - (q < 0));
}

static float code_value(uint32_t u, double eps)
{
	int32_t q = (int32_t)(u >> 1) ^ -(int32_t)(u & 1);
	return (float)(q * (2 * eps));
}

/* The block's codes and the bits that they need; OCC_BOUND_RAW where a value would miss eps. */
static int block_codes(int64_t n, double eps, const float *x, uint32_t code[OCC_BOUND_BLOCK])
{
	uint32_t all = 0;
	int bits = 0;
	memset(code, 0, OCC_BOUND_BLOCK * sizeof(*code));
	for (int64_t i = 0; i < n; i++) {
		double q = nearbyint((double)x[i] / (2 * eps));
		if (!(fabs(q) < 0x1p30))
			return OCC_BOUND_RAW;
		code[i] = zigzag((int32_t)q);
		if (!(fabs((double)x[i] - (double)code_value(code[i], eps)) <= eps))
			return OCC_BOUND_RAW;
		all |= code[i];
	}
	for (; all; all >>= 1)
		bits++;
	return bits;
}

static int64_t block_bytes(int head)
{
	return head == OCC_BOUND_RAW ? OCC_BOUND_BLOCK * 4 : head * OCC_BOUND_BLOCK / 8;
}

void occ_ref_bound_pack(struct occ_device *d, int64_t n, double eps, const float *d_x, void *d_wire,
			int64_t *bytes)
{
	int64_t blocks = (n + OCC_BOUND_BLOCK - 1) / OCC_BOUND_BLOCK;
	uint8_t *head = d_wire, *to = head + (blocks + 3) / 4 * 4;
	uint32_t code[OCC_BOUND_BLOCK];
	(void)d;
	memset(head, 0, (size_t)(to - head));
	for (int64_t b = 0; b < blocks; b++) {
		const float *x = d_x + b * OCC_BOUND_BLOCK;
		int64_t left = n - b * OCC_BOUND_BLOCK;
		left = left < OCC_BOUND_BLOCK ? left : OCC_BOUND_BLOCK;
		int bits = block_codes(left, eps, x, code);
		head[b] = (uint8_t)bits;
		memset(to, 0, (size_t)block_bytes(bits));
		if (bits == OCC_BOUND_RAW)
			memcpy(to, x, (size_t)left * sizeof(*x));
		for (int i = 0; bits != OCC_BOUND_RAW && i < OCC_BOUND_BLOCK * bits; i++)
			to[i / 8] |= (uint8_t)((code[i / bits] >> i % bits & 1) << i % 8);
		to += block_bytes(bits);
	}
	*bytes = to - head;
}

void occ_ref_bound_unpack(struct occ_device *d, int64_t n, double eps, const void *d_wire,
			  enum occ_how how, float *d_y)
{
	int64_t blocks = (n + OCC_BOUND_BLOCK - 1) / OCC_BOUND_BLOCK;
	const uint8_t *head = d_wire, *from = head + (blocks + 3) / 4 * 4;
	(void)d;
	for (int64_t i = 0; i < n; i++) {
		int bits = head[i / OCC_BOUND_BLOCK], at = (int)(i % OCC_BOUND_BLOCK);
		uint32_t u = 0;
		float v;
		if (bits == OCC_BOUND_RAW)
			memcpy(&v, from + at * 4, sizeof(v));
		for (int k = 0; bits != OCC_BOUND_RAW && k < bits; k++)
			u |= (uint32_t)(from[(at * bits + k) / 8] >> (at * bits + k) % 8 & 1) << k;
		put(how, bits == OCC_BOUND_RAW ? v : code_value(u, eps), &d_y[i]);
		if (at == OCC_BOUND_BLOCK - 1)
			from += block_bytes(bits);
	}
}

/* Dropout factors for runs of columns: occ_drop_quad, many quads at a time. */
#include "base/cpu.h"

#include "base/vmath.h"

/* Words of the generator's state, 32 bits each in 64-bit lanes: one quad of columns a lane. */
enum { LANES = VW / 2, RUN = 4 * LANES };
typedef uint64_t vq __attribute__((vector_size(8 * LANES)));

/* Philox 4x32-10 on LANES counters at once; c is replaced by the output. */
static void philox(uint64_t key, vq c[4])
{
	const vq low = (vq){0} + 0xffffffffu;
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
	for (int round = 0; round < 10; round++) {
		vq a = c[0] * 0xD2511F53u, b = c[2] * 0xCD9E8D57u;
		c[0] = (b >> 32) ^ c[1] ^ (uint64_t)k0;
		c[2] = (a >> 32) ^ c[3] ^ (uint64_t)k1;
		c[1] = b & low;
		c[3] = a & low;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
}

/* The factors of RUN columns from 4 * quad of a row, global indices. */
static void run(const struct occ_drop *d, int64_t row, int64_t quad, float *out)
{
	uint32_t limit = (uint32_t)((double)d->p * 4294967296.0);
	float keep = 1.0f / (1.0f - d->p);
	vq c[4], zero = {0};
	uint64_t word[4][LANES];
	for (int i = 0; i < LANES; i++)
		c[2][i] = (uint32_t)(quad + i);
	c[0] = zero + (uint64_t)(uint32_t)row;
	c[1] = zero + (uint64_t)((uint32_t)(row >> 32) ^ (d->site << 16));
	c[3] = zero + (uint64_t)d->step;
	philox(d->key, c);
	memcpy(word, c, sizeof(word));
	for (int q = 0; q < LANES; q++)
		for (int i = 0; i < 4; i++)
			out[4 * q + i] = word[i][q] < limit ? 0.0f : keep;
}

void occ_cpu_drop(const struct occ_drop *drop, int64_t row, int64_t col, int64_t n, float *out)
{
	int64_t first = drop->col0 + col, skip = first & 3, quad = first >> 2, i = 0;
	float part[RUN];
	if (!skip)
		for (; i + RUN <= n; i += RUN, quad += LANES)
			run(drop, drop->row0 + row, quad, out + i);
	for (; i < n; quad += LANES, skip = 0) {
		run(drop, drop->row0 + row, quad, part);
		for (int64_t k = skip; k < RUN && i < n; k++)
			out[i++] = part[k];
	}
}

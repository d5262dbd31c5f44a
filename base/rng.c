/* Uses of the counter-based generator: keys, uniforms, normals, permutations. */
#include "base/rng.h"

uint64_t occ_rng_key(uint64_t seed, enum occ_stream_id stream)
{
	struct occ_philox r = occ_philox(seed, 0, 0, 0, (uint32_t)stream);
	return (uint64_t)r.x[1] << 32 | r.x[0];
}

uint64_t occ_rng_u64(uint64_t key, uint64_t index)
{
	struct occ_philox r = occ_philox(key, (uint32_t)index, (uint32_t)(index >> 32), 0, 1);
	return (uint64_t)r.x[1] << 32 | r.x[0];
}

double occ_rng_uniform(uint64_t key, uint64_t index)
{
	return (double)(occ_rng_u64(key, index) >> 11) * 0x1p-53;
}

float occ_rng_normal(uint64_t key, uint32_t tensor, uint64_t index)
{
	return occ_rng_normal_inline(key, tensor, index);
}

/* Four Feistel rounds over 2 * half bits. */
static uint64_t feistel(uint64_t key, int half, uint64_t x)
{
	uint64_t mask = ((uint64_t)1 << half) - 1, left = x >> half, right = x & mask;
	for (uint32_t round = 0; round < 4; round++) {
		struct occ_philox f =
			occ_philox(key, (uint32_t)right, (uint32_t)(right >> 32), round, 3);
		uint64_t next = left ^ (((uint64_t)f.x[1] << 32 | f.x[0]) & mask);
		left = right;
		right = next;
	}
	return left << half | right;
}

uint64_t occ_rng_permute(uint64_t key, uint64_t n, uint64_t i)
{
	int half = 1;
	while (half < 32 && n > (uint64_t)1 << 2 * half)
		half++;
	do /* the domain is at most 4n, so about four rounds of the walk are expected at worst */
		i = feistel(key, half, i);
	while (i >= n);
	return i;
}

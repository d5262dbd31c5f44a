/* Cpu: the wire of bounded error. Two passes: how many bits each block needs, which says where
 * each block's codes lie, then the codes. A block's 64 codes of `bits` bits are `bits` words of 64
 * bits, low bits first. */
#include "base/cpu.h"

#include "base/vmath.h"

enum { BLOCK = OCC_BOUND_BLOCK, BATCH = 64 }; /* blocks in one piece of work */

static int64_t block_bytes(int head)
{
	return head == OCC_BOUND_RAW ? BLOCK * 4 : head * BLOCK / 8;
}

/* The block that starts at x, of n values and zeros behind them. */
static void fetch(int64_t n, const float *x, float out[BLOCK])
{
	memcpy(out, x, (size_t)n * sizeof(*x));
	memset(out + n, 0, (size_t)(BLOCK - n) * sizeof(*x));
}

/* Codes of a block and the bits that they need. */
static int block_codes(double eps, const float x[BLOCK], uint32_t code[BLOCK])
{
	uint32_t all = 0;
	int missed = 0;
	for (int i = 0; i < BLOCK; i++) {
		double q = nearbyint((double)x[i] / (2 * eps));
		int fits = fabs(q) < 0x1p30;
		int32_t k = (int32_t)(fits ? q : 0);
		float back = (float)(k * (2 * eps));
		missed |= !fits | !(fabs((double)x[i] - (double)back) <= eps);
		code[i] = (uint32_t)k << 1 ^ (0u - (k < 0));
		all |= code[i];
	}
	return missed ? OCC_BOUND_RAW : all ? 32 - __builtin_clz(all) : 0;
}

static void pack(int bits, const uint32_t code[BLOCK], uint8_t *to)
{
	uint64_t word = 0;
	for (int i = 0, fill = 0; i < BLOCK && bits; i++) {
		word |= (uint64_t)code[i] << fill;
		fill += bits;
		if (fill < 64)
			continue;
		memcpy(to, &word, sizeof(word));
		to += sizeof(word);
		fill -= 64;
		word = (uint64_t)code[i] >> (bits - fill);
	}
}

static void unpack(int bits, const uint8_t *from, uint32_t code[BLOCK])
{
	uint64_t word = 0, mask = ((uint64_t)1 << bits) - 1;
	for (int i = 0, have = 0; i < BLOCK; i++) {
		uint64_t u = word;
		if (have < bits) {
			memcpy(&word, from, sizeof(word));
			from += sizeof(word);
			u |= word << have;
			word >>= bits - have;
			have += 64 - bits;
		} else {
			word >>= bits;
			have -= bits;
		}
		code[i] = (uint32_t)(u & mask);
	}
}

static int64_t blocks_of(int64_t n)
{
	return (n + BLOCK - 1) / BLOCK;
}

/* Where the codes of each batch start, counted from the first; returns the bytes of all. */
static int64_t starts(int64_t blocks, const uint8_t *head, int64_t *start)
{
	int64_t bytes = 0;
	for (int64_t b = 0; b < blocks; b++) {
		if (b % BATCH == 0)
			start[b / BATCH] = bytes;
		bytes += block_bytes(head[b]);
	}
	return bytes;
}

static int64_t *start_room(struct occ_device *d, int64_t blocks)
{
	void *room = occ_cpu_scratch(d, (size_t)(blocks / BATCH + 1) * 2);
	return room;
}

static void measure_batch(int64_t n, double eps, const float *x, uint8_t *head)
{
	uint32_t code[BLOCK];
	float v[BLOCK];
	for (int64_t i = 0; i < n; i += BLOCK) {
		fetch(n - i < BLOCK ? n - i : BLOCK, x + i, v);
		head[i / BLOCK] = (uint8_t)block_codes(eps, v, code);
	}
}

static void pack_batch(int64_t n, double eps, const float *x, const uint8_t *head, uint8_t *to)
{
	uint32_t code[BLOCK];
	float v[BLOCK];
	for (int64_t i = 0; i < n; i += BLOCK) {
		int bits = head[i / BLOCK];
		fetch(n - i < BLOCK ? n - i : BLOCK, x + i, v);
		if (bits == OCC_BOUND_RAW) {
			memcpy(to, v, sizeof(v));
		} else {
			block_codes(eps, v, code);
			pack(bits, code, to);
		}
		to += block_bytes(bits);
	}
}

static int64_t batch_size(int64_t n, int64_t at)
{
	return n - at < BATCH * BLOCK ? n - at : BATCH * BLOCK;
}

void occ_cpu_bound_pack(struct occ_device *d, int64_t n, double eps, const float *d_x, void *d_wire,
			int64_t *bytes)
{
	int64_t blocks = blocks_of(n), *start = start_room(d, blocks);
	uint8_t *head = d_wire, *to = head + (blocks + 3) / 4 * 4;
	int nt = cpu_team(d, n);
	memset(head + blocks, 0, (size_t)(to - head - blocks));
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t at = 0; at < n; at += BATCH * BLOCK)
		measure_batch(batch_size(n, at), eps, d_x + at, head + at / BLOCK);
	*bytes = to - head + starts(blocks, head, start);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t at = 0; at < n; at += BATCH * BLOCK)
		pack_batch(batch_size(n, at), eps, d_x + at, head + at / BLOCK,
			   to + start[at / (BATCH * BLOCK)]);
}

static void unpack_batch(int64_t n, double eps, const uint8_t *head, const uint8_t *from,
			 float v[BATCH * BLOCK])
{
	uint32_t code[BLOCK];
	for (int64_t i = 0; i < n; i += BLOCK) {
		int bits = head[i / BLOCK];
		if (bits == OCC_BOUND_RAW) {
			memcpy(v + i, from, BLOCK * sizeof(*v));
		} else {
			unpack(bits, from, code);
			for (int k = 0; k < BLOCK; k++) {
				uint32_t u = code[k];
				int32_t q = (int32_t)(u >> 1) ^ -(int32_t)(u & 1);
				v[i + k] = (float)(q * (2 * eps));
			}
		}
		from += block_bytes(bits);
	}
}

void occ_cpu_bound_unpack(struct occ_device *d, int64_t n, double eps, const void *d_wire,
			  enum occ_how how, float *d_y)
{
	int64_t blocks = blocks_of(n), *start = start_room(d, blocks);
	const uint8_t *head = d_wire, *from = head + (blocks + 3) / 4 * 4;
	int nt = cpu_team(d, n);
	starts(blocks, head, start);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t at = 0; at < n; at += BATCH * BLOCK) {
		float v[BATCH * BLOCK];
		unpack_batch(batch_size(n, at), eps, head + at / BLOCK,
			     from + start[at / (BATCH * BLOCK)], v);
		occ_cpu_put(how, batch_size(n, at), v, d_y + at);
	}
}
